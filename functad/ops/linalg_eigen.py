"""Eigenvalues and eigenvectors.

Eigenvectors turn by the reciprocal gaps between eigenvalues. Where two are equal there is no
derivative of either vector, only of what does not depend on how the two were chosen; there the gap
counts as infinite. So every derivative is finite, and that of the eigenvalues and of whole
eigenspaces is right. A function of the matrix needs more, the slope of the function: see
`funm_hermitian` and `expm`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from functad.dispatch import bind
from functad.errors import ArgumentError
from functad.ops.arithmetic import conj, ratio
from functad.ops.diagonal import embed_diagonal_op, tril_op
from functad.ops.halves import rounded_once
from functad.ops.linalg_base import (
    columns,
    dagger,
    diagonal_of,
    guarded,
    hermitian,
    in_float32,
    mm,
    mT,
    narrowed,
    or_nan,
    rows,
    same_params,
    square,
    widened,
)
from functad.ops.linalg_solve import solve
from functad.ops.logic import gate, logical_not
from functad.ops.op import Cost, Samples
from functad.ops.rules import cast, custom

__all__ = ["eig", "eig_op", "eigh", "eigh_op", "eigvals", "eigvalsh"]


class EighResult(NamedTuple):
    """What `eigh` returns."""

    eigenvalues: Any
    eigenvectors: Any


class EigResult(NamedTuple):
    """What `eig` returns."""

    eigenvalues: Any
    eigenvectors: Any


def reciprocal_gaps(w: Any, tolerance: float = 0.0) -> Any:
    """1 / (w[j] - w[i]), and 0 where they are equal, or apart by no more than a part of the largest."""
    gaps = columns(w) - rows(w)
    return ratio(1, gaps if not tolerance else gate(gaps, logical_not(near(w, tolerance))))


def near(w: Any, tolerance: float) -> Any:
    """Which two eigenvalues are apart by no more than a part of the largest."""
    size = w.abs()
    top = size.max(axis=-1, keepdims=True) if w._shape[-1] else size
    return (columns(w) - rows(w)).abs() <= columns(top * tolerance)


def diagonal_matrix(v: Any) -> Any:
    """Matrices with the vectors `v` on the diagonal."""
    return bind(embed_diagonal_op, (v,), ((*v._shape, v._shape[-1]), 0, v.ndim - 1, v.ndim))


@in_float32
def _eigh(xp: Any, x: Any, *, tolerance: float) -> Any:
    if xp is np:
        return tuple(or_nan(lambda m: tuple(np.linalg.eigh(m)), (x + x.swapaxes(-1, -2).conj()) / 2))
    return tuple(xp.linalg.eigh(x))  # which takes the Hermitian part too


def _eigh_push(t: Any, out: Any, tolerance: float) -> Any:
    w, v = out
    inner = mm(dagger(v), hermitian(t), v)
    return diagonal_of(inner).real, mm(v, inner * reciprocal_gaps(w, tolerance))


def _eigh_pull(g: Any, out: Any, tolerance: float) -> Any:
    w, v = out
    of_w, of_v = g
    inner = mm(mT(v), of_v) * reciprocal_gaps(w, tolerance) + diagonal_matrix(of_w)
    return hermitian(mm(conj(v), inner, mT(v)))


@in_float32
def _eig(xp: Any, x: Any) -> Any:
    w, v = or_nan(lambda m: tuple(np.linalg.eig(m)), x) if xp is np else xp.linalg.eig(x)
    kind = xp.result_type(x.dtype, xp.complex64)
    return w.astype(kind), v.astype(kind)


def _eig_push(t: Any, x: Any, out: Any) -> Any:
    w, v = out
    inner = solve(v, mm(cast(t, v._dtype), v))
    turn = inner * reciprocal_gaps(w)
    length = diagonal_of(mm(dagger(v), v, turn)).real  # how much longer the vectors would become
    return diagonal_of(inner), mm(v, turn) - v * columns(cast(length, v._dtype))


def _eig_pull(g: Any, x_dtype: Any, out: Any) -> Any:
    w, v = out
    of_w, of_v = g
    turn = mm(mT(v), of_v)
    length = cast(diagonal_of(turn).real, v._dtype)
    turn = turn - mT(mm(dagger(v), v)) * columns(length)
    inner = turn * reciprocal_gaps(w) + diagonal_matrix(of_w)
    return cast(solve(mT(v), mm(inner, mT(v))), x_dtype)


def _symmetric_samples(rng: np.random.Generator) -> list[Any]:
    spread = [np.diag(np.arange(n) * 2.0) + 0.4 * rng.uniform(-1, 1, (n, n)) for n in (3, 2)]
    return [((spread[0],), {}), ((np.stack([spread[1], -spread[1]]),), {}), ((np.zeros((0, 0)),), {})]


eigh_op = custom(
    "eigh", _eigh, jvp=guarded(_eigh_push), vjp=guarded(_eigh_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [(x, {"tolerance": 0.0}) for x, _ in _symmetric_samples(rng)]), batch=same_params,
    doc="Eigenvalues in ascending order and eigenvectors (columns) of the Hermitian part.",
)  # fmt: skip
eig_op = custom(
    "eig", _eig, jvp=guarded(_eig_push), vjp=guarded(_eig_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: _symmetric_samples(rng)[:2]), batch=same_params,
    doc="Eigenvalues and right eigenvectors (columns, of length 1) of general matrices, complex.",
)  # fmt: skip


# --- the functions


@rounded_once
def eigh(x: Any, UPLO: str | None = None) -> Any:  # noqa: N803  # NumPy's name
    """The eigenvalues (ascending) and eigenvectors (the columns) of real symmetric or Hermitian matrices.

    Args:
        x: square matrices. Their Hermitian part is decomposed, so the derivative is Hermitian, as in JAX.
        UPLO: "L" or "U" to read the lower or upper triangle instead; then it alone has the derivative.

    Vectors of equal eigenvalues have no derivative of their own: what depends on them only through
    the eigenspace is right, and everything is finite. For functions of `x` use `funm_hermitian`.

    >>> import functad as fd
    >>> fd.ops.eigh(fd.tensor([[2.0, 1.0], [1.0, 2.0]])).eigenvalues.tolist()
    [1.0, 3.0]
    """
    (x,) = square("eigh", x)
    values, vectors = bind(eigh_op, widened([_read(x, UPLO, "eigh")]), (0.0,))
    return EighResult(narrowed(values, x), narrowed(vectors, x))


@rounded_once
def eigvalsh(x: Any, UPLO: str | None = None) -> Any:  # noqa: N803  # NumPy's name
    """The eigenvalues of real symmetric or Hermitian matrices in ascending order; see `eigh`.

    Where eigenvalues are equal, their derivatives are those for the vectors that were found, and
    that of their sum is exact.

    >>> import functad as fd
    >>> fd.grad(lambda x: fd.ops.eigvalsh(x).sum())(fd.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    (x,) = square("eigvalsh", x)
    return narrowed(bind(eigh_op, widened([_read(x, UPLO, "eigvalsh")]), (0.0,))[0], x)


def eig(x: Any) -> Any:
    """The eigenvalues and right eigenvectors (the columns, of length 1) of general matrices, both complex.

    The derivative of a vector keeps its length and is that of a vector whose phase is not looked at.
    JAX computes them on the CPU, and on GPUs where its build can.

    >>> import functad as fd
    >>> values = fd.ops.eig(fd.tensor([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues
    >>> sorted(values.imag.tolist())
    [-1.0, 1.0]
    """
    (x,) = square("eig", x)
    return EigResult(*bind(eig_op, widened([x])))


def eigvals(x: Any) -> Any:
    """The eigenvalues of general matrices, complex; see `eig`.

    >>> import functad as fd
    >>> fd.ops.eigvals(fd.tensor([[3.0, 1.0], [0.0, 3.0]])).real.tolist()
    [3.0, 3.0]
    """
    (x,) = square("eigvals", x)
    return bind(eig_op, widened([x]))[0]


def _read(x: Any, triangle: str | None, where: str) -> Any:
    """The matrix that one triangle stands for."""
    if triangle is None:
        return x
    if not isinstance(triangle, str) or triangle.upper() not in ("L", "U"):
        raise ArgumentError(f"{where}: UPLO is 'L' (lower) or 'U' (upper), got {triangle!r}.")
    lower = x if triangle.upper() == "L" else dagger(x)
    return bind(tril_op, (lower,), (0,)) + dagger(bind(tril_op, (lower,), (-1,)))
