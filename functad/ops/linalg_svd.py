"""The singular value decomposition and what is made of it: pseudo-inverses, ranks, least squares.

The two rotations turn by reciprocal gaps and by reciprocal sums of singular values. Where two are
equal only the first is undefined, and counts as 0: products such as `U @ Vh` have the right derivative
all the same. What needs no vectors (singular values) or no gaps (the pseudo-inverse) has rules of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.arithmetic import abs as abs_
from functad.ops.arithmetic import conj, ratio
from functad.ops.halves import rounded_once
from functad.ops.join import concatenate
from functad.ops.linalg_base import (
    columns,
    complex_of,
    dagger,
    diagonal_of,
    guarded,
    in_float32,
    matrices,
    mm,
    mT,
    narrowed,
    or_nan,
    rows,
    same_params,
    square,
    stacked,
    widened,
)
from functad.ops.linalg_base import hermitian as hermitian_part
from functad.ops.linalg_eigen import diagonal_matrix, eigh_op, reciprocal_gaps
from functad.ops.logic import gate
from functad.ops.op import Cost, Op, Samples, Type
from functad.ops.operand import operand
from functad.ops.order import argsort_op, take_along_axis_op
from functad.ops.reduce import count_nonzero
from functad.ops.rules import broadcast, cast, custom, zeros
from functad.ops.shape import reshaped

__all__ = ["lstsq", "matrix_rank", "pinv", "pinv_op", "svd", "svd_op", "svdvals", "svdvals_op"]


class SVDResult(NamedTuple):
    """What `svd` returns."""

    U: Any
    S: Any
    Vh: Any


class LstsqResult(NamedTuple):
    """What `lstsq` returns: NumPy's tuple."""

    x: Any
    residuals: Any
    rank: Any
    s: Any


# --- the decomposition


@in_float32
def _svd(xp: Any, x: Any, *, full: bool) -> Any:
    if xp is np:
        return or_nan(lambda m: tuple(np.linalg.svd(m, full_matrices=full)), x)
    return tuple(xp.linalg.svd(x, full_matrices=full))


@in_float32
def _svdvals(xp: Any, x: Any) -> Any:
    if xp is np:
        return or_nan(lambda m: np.linalg.svd(m, compute_uv=False), x)
    return xp.linalg.svd(x, compute_uv=False)


def _parts(u: Any, s: Any, v: Any) -> tuple[Any, Any, Any, Any]:
    """The vectors that have a singular value, and those of `full` matrices that have none (or None)."""
    k = s._shape[-1]
    return (
        u[..., :k] if u._shape[-1] > k else u,
        u[..., k:] if u._shape[-1] > k else None,
        v[..., :k] if v._shape[-1] > k else v,
        v[..., k:] if v._shape[-1] > k else None,
    )


def _rates(s: Any) -> tuple[Any, Any, Any]:
    """Reciprocal gaps, sums, and singular values; 0 where what they divide by is."""
    return reciprocal_gaps(s), ratio(1, columns(s) + rows(s)), ratio(1, s)


def _odd(x: Any) -> Any:
    """The anti-Hermitian part."""
    return (x - dagger(x)) * 0.5


def _svd_push(t: Any, out: Any) -> Any:
    u, s, vh = out
    u1, u2, v1, v2 = _parts(u, s, dagger(vh))
    gaps, sums, inverse = _rates(s)
    inner = mm(dagger(u1), t, v1)
    even, odd = hermitian_part(inner) * gaps, _odd(inner) * sums
    of_u, of_v = mm(u1, even + odd), mm(v1, even - odd)
    m, n, k = t._shape[-2], t._shape[-1], s._shape[-1]
    if m > k:  # towards what the vectors do not span
        right = mm(t, v1) * columns(inverse)
        of_u = of_u + right - mm(u1, dagger(u1), right)
        if u2 is not None:
            of_u = _joined(of_u, -mm(u1 * columns(inverse), dagger(v1), dagger(t), u2))
    if n > k:
        left = mm(dagger(t), u1) * columns(inverse)
        of_v = of_v + left - mm(v1, dagger(v1), left)
        if v2 is not None:
            of_v = _joined(of_v, -mm(v1 * columns(inverse), dagger(u1), t, v2))
    return of_u, diagonal_of(inner).real, dagger(of_v)


def _svd_pull(g: Any, out: Any) -> Any:
    u, s, vh = out
    u1, u2, v1, v2 = _parts(u, s, dagger(vh))
    gaps, sums, inverse = _rates(s)
    of_u, of_u2, of_v, of_v2 = _parts(g[0], s, dagger(g[2]))
    turn_u, turn_v = mm(mT(u1), of_u), mm(mT(v1), of_v)
    inner = hermitian_part((turn_u + turn_v) * gaps) + _odd((turn_u - turn_v) * sums) + diagonal_matrix(g[1])
    left, right = conj(u1), mT(v1)
    if u._shape[-2] > s._shape[-1]:
        inner_u = (of_u - mm(left, turn_u)) * columns(inverse)
        total = mm(mm(left, inner) + inner_u, right)
    else:
        total = mm(left, inner, right)
    if v1._shape[-2] > s._shape[-1]:
        total = total + mm(left * columns(inverse), dagger(of_v - mm(conj(v1), turn_v)))
    if u2 is not None:
        total = total - conj(mm(u2, mT(of_u2), u1 * columns(inverse), dagger(v1)))
    if v2 is not None:
        total = total - mm(left * columns(inverse), right, of_v2, mT(v2))
    return total


def _joined(x: Any, y: Any) -> Any:
    return concatenate([x, y], -1)


def _svdvals_pull(g: Any, x: Any) -> Any:
    u, s, vh = bind(svd_op, (x,), (False,))
    return conj(mm(u * columns(gate(g, s > 0)), vh))  # a singular value is a size: at 0 its derivative is 0


def _svdvals_push(t: Any, x: Any) -> Any:
    u, s, vh = bind(svd_op, (x,), (False,))
    return gate(diagonal_of(mm(dagger(u), t, dagger(vh))).real, s > 0)


def _spread(rng: np.random.Generator, m: int, n: int) -> Any:
    """A matrix with singular values well apart."""
    x = 0.3 * rng.uniform(-1, 1, (m, n))
    np.fill_diagonal(x, 2.0 * np.arange(1, min(m, n) + 1))
    return x


svd_op: Op = custom(
    "svd", _svd, jvp=guarded(_svd_push), vjp=guarded(_svd_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((_spread(rng, 3, 2),), {"full": False}), ((np.stack([_spread(rng, 2, 3), -_spread(rng, 2, 3)]),), {"full": False}),
        ((_spread(rng, 3, 3),), {"full": True}),
    ]),
    batch=same_params, doc="U, the singular values in descending order, and the conjugate transpose of V.",
)  # fmt: skip
svdvals_op = custom(
    "svdvals", _svdvals, jvp=guarded(_svdvals_push), vjp=guarded(_svdvals_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((_spread(rng, 3, 2),), {}), ((np.stack([_spread(rng, 2, 3), -_spread(rng, 2, 3)]),), {}),
        ((complex_of(rng, _spread(rng, 2, 2)),), {}), ((np.zeros((0, 2)),), {}),
    ]),
    batch=same_params, doc="The singular values in descending order.",
)  # fmt: skip


# --- the pseudo-inverse


@in_float32
def _pinv(xp: Any, x: Any, tolerance: Any) -> Any:
    u, s, vh = _svd(xp, x, full=False)
    top = xp.max(s, axis=-1, keepdims=True, initial=0)
    kept = s > tolerance[..., None].astype(s.dtype) * top
    inverse = xp.where(kept, 1 / xp.where(kept, s, xp.ones((), s.dtype)), xp.zeros((), s.dtype))
    inverse = xp.where(xp.isnan(s), s, inverse)
    return (vh.swapaxes(-1, -2).conj() * inverse[..., None, :]) @ u.swapaxes(-1, -2).conj()


def _pinv_push(t: Any, x: Any, out: Any) -> Any:
    th, oh = dagger(t), dagger(out)
    beside = mm(out, oh, th)
    below = mm(th, oh, out)
    return beside - mm(beside, x, out) - mm(out, t, out) + below - mm(out, x, below)


def _pinv_pull(g: Any, x: Any, out: Any) -> Any:
    gt = mT(g)
    beside = mm(gt, out, dagger(out))
    below = mm(dagger(out), out, gt)
    rest = beside - mm(x, out, beside) + below - mm(below, out, x)
    return conj(rest) - mm(mT(out), g, mT(out))


pinv_op = custom(
    "pinv", _pinv, jvp=[guarded(_pinv_push), None], vjp=[guarded(_pinv_pull), None], cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((_spread(rng, 3, 2), np.float64(1e-3)), {}),
        ((np.stack([_spread(rng, 2, 3), -_spread(rng, 2, 3)]), np.array([1e-3, 0.1])), {}),
        ((complex_of(rng, _spread(rng, 2, 2)), np.float64(1e-3)), {}),
    ]),
    batch=same_params,
    doc="The pseudo-inverse, without singular values up to a tolerance times the largest; rank and tolerance are constant.",
)  # fmt: skip


# --- the functions


def svd(x: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """The singular value decomposition `x = U @ diag(S) @ Vh`, singular values in descending order.

    Args:
        x: matrices of any shape.
        full_matrices: whether U and V are square (NumPy's default), or have only the columns of S.
        compute_uv: False for the singular values alone, as from `svdvals`.
        hermitian: whether `x` is Hermitian, which is then used.

    The columns of equal singular values, and those without one, have no derivative of their own: what
    depends on the space that they span, and products such as `U @ Vh`, are right; everything is finite.

    >>> import functad as fd
    >>> fd.ops.svd(fd.tensor([[0.0, 2.0], [1.0, 0.0]])).S.tolist()
    [2.0, 1.0]
    """
    (x,) = matrices("svd", x)
    if not compute_uv:
        return svdvals(x)
    if hermitian:
        return _hermitian_svd(x)
    parts = bind(svd_op, widened([x]), (bool(full_matrices) and x._shape[-1] != x._shape[-2],))
    return SVDResult(*[narrowed(o, x) for o in parts])


def _hermitian_svd(x: Any) -> Any:
    (x,) = square("svd", x)
    w, v = bind(eigh_op, widened([x]), (0.0,))
    order = bind(argsort_op, (abs_(w),), (w.ndim - 1, True))
    w = bind(take_along_axis_op, (w, order), (w.ndim - 1,))
    v = bind(take_along_axis_op, (v, broadcast(columns(order), v._shape)), (v.ndim - 1,))
    sign = cast((w >= 0), w._dtype) * 2 - 1
    return SVDResult(*[narrowed(o, x) for o in (v, abs_(w), dagger(v * columns(cast(sign, v._dtype))))])


def svdvals(x: Any) -> Any:
    """The singular values in descending order.

    Equal ones have the derivative for the vectors that were found, and their sum the exact one; that
    of one which is 0 is 0.

    >>> import functad as fd
    >>> fd.ops.svdvals(fd.tensor([[0.0, 2.0], [1.0, 0.0]])).tolist()
    [2.0, 1.0]
    >>> fd.grad(lambda x: fd.ops.svdvals(x).sum())(fd.eye(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    (x,) = matrices("svdvals", x)
    return narrowed(bind(svdvals_op, widened([x])), x)


@rounded_once
def pinv(x: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """The Moore-Penrose pseudo-inverse.

    Args:
        x: matrices of any shape.
        rcond: singular values up to this times the largest count as 0; a number, or one per matrix.
            By default the larger side times the machine epsilon.
        hermitian: whether `x` is Hermitian; its Hermitian part is taken.
        rtol: another name of `rcond` (the array API's).

    The derivative is that at constant rank; equal singular values need no care.

    >>> import functad as fd
    >>> fd.ops.pinv(fd.tensor([[2.0, 0.0], [0.0, 0.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    (x,) = square("pinv", x) if hermitian else matrices("pinv", x)
    (wide,) = widened([hermitian_part(x) if hermitian else x])
    return narrowed(bind(pinv_op, (wide, _tolerance(wide, rcond, rtol, "pinv"))), x)


def matrix_rank(x: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> Any:
    """How many singular values are above a tolerance; of a vector, whether it has an entry that is not 0.

    Args:
        x: matrices, or a vector.
        tol: the tolerance, a number or one per matrix.
        hermitian: whether `x` is Hermitian, which changes nothing here.
        rtol: the tolerance as a part of the largest singular value (the array API's), by default the
            larger side times the machine epsilon.

    >>> import functad as fd
    >>> fd.ops.matrix_rank(fd.tensor([[1.0, 1.0], [1.0, 1.0]])).item()
    1
    """
    x = operand(x, where="matrix_rank")
    if x.ndim < 2:
        return cast((x != 0).any(), dtypes.default_int())
    (x,) = widened(matrices("matrix_rank", hermitian_part(x) if hermitian else x))
    s = bind(svdvals_op, (x,))
    if tol is not None:
        return count_nonzero(s > rows(operand(tol, x, s._dtype, "matrix_rank")), -1)
    return _rank(s, _tolerance(x, None, rtol, "matrix_rank"))


@rounded_once
def lstsq(a: Any, b: Any, rcond: Any = None) -> Any:
    """The `x` of least length among those for which `a @ x` is nearest to `b` (least squares).

    Args:
        a: matrices of shape (..., m, n).
        b: a vector of m entries, or matrices of shape (..., m, k).
        rcond: singular values up to this times the largest count as 0; by default the larger side
            times the machine epsilon.

    Returns:
        `(x, residuals, rank, s)`: the solution, the squared lengths of what is left over (empty
        unless m > n, as in NumPy), the rank and the singular values.

    Raises `ShapeError` if the shapes do not fit.

    >>> import functad as fd
    >>> a = fd.tensor([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]])
    >>> [round(v, 4) for v in fd.ops.lstsq(a, fd.tensor([1.0, 3.0, 5.0])).x.tolist()]
    [1.0, 2.0]
    """
    a, b = matrices("lstsq", a, b)
    vector = b.ndim == 1
    m, n = a._shape[-2:]
    if not b.ndim or b._shape[0 if vector else -2] != m:
        raise ShapeError(
            f"lstsq: a of shape {a.shape} has {m} rows, so b needs {m} entries or rows (the last axis but one), got "
            f"shape {b.shape}."
        )
    dtype = a._dtype
    a, b = widened([a, reshaped(b, (m, 1)) if vector else b])
    a, b = stacked("lstsq", a, b)
    tolerance = _tolerance(a, rcond, None, "lstsq")
    x = mm(bind(pinv_op, (a, tolerance)), b)
    s = bind(svdvals_op, (a,))
    rest = abs_(b - mm(a, x))
    residuals = (rest * rest).sum(axis=-2) if m > n else zeros(Type((*b._shape[:-2], 0), s._dtype), s)
    return LstsqResult(cast(reshaped(x, x._shape[:-1]) if vector else x, dtype), residuals, _rank(s, tolerance), s)


def _rank(s: Any, tolerance: Any) -> Any:
    """How many singular values are above a part of the largest."""
    return count_nonzero(s > rows(tolerance) * s[..., :1], -1)


def _tolerance(x: Any, rcond: Any, rtol: Any, where: str) -> Any:
    """A number per matrix: what was given, or the larger side times the machine epsilon."""
    if rcond is not None and rtol is not None:
        raise ArgumentError(f"{where}: rcond and rtol are one argument under two names, got {rcond!r} and {rtol!r}.")
    given = rtol if rcond is None else rcond
    real = x._dtype if x._dtype.kind != "c" else np.dtype(f"f{x._dtype.itemsize // 2}")
    if given is None:
        given = max(x._shape[-2:]) * float(np.finfo(real).eps)
    stack = x._shape[:-2]
    found = operand(given, x, real, where)
    if found.ndim > len(stack) or any(n not in (1, m) for n, m in zip(found._shape[::-1], stack[::-1], strict=False)):
        raise ShapeError(
            f"{where}: the tolerance has shape {found.shape}, which does not broadcast to the stack {stack} of matrices "
            f"of shape {x.shape}; give a number, or one per matrix."
        )
    return broadcast(found, stack)
