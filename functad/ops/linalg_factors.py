"""Factors that are kept to solve with, square roots of matrices, and matrices made of blocks."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.diagonal import tril_op
from functad.ops.halves import rounded_once
from functad.ops.index import take_along_axis
from functad.ops.join import concatenate, pad
from functad.ops.linalg_base import (
    complex_of,
    guarded,
    identity,
    in_float32,
    matrices,
    mT,
    narrowed,
    or_nan,
    positive_definite,
    same_params,
    square,
    widened,
)
from functad.ops.linalg_qr import lu_op
from functad.ops.linalg_solve import cholesky, solve_triangular
from functad.ops.op import Cost, Op, Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import broadcast, cast, custom
from functad.ops.shape import expand_dims

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "lu_factor", "lu_solve", "sqrtm", "sqrtm_op",
]  # fmt: skip


class LUFactorResult(NamedTuple):
    """What `lu_factor` returns."""

    lu: Any
    order: Any


def lu_factor(a: Any) -> LUFactorResult:
    """The LU factors of matrices in one matrix, and the order in which pivoting took the rows.

    For `lu_solve`, if they are square. The order is that of all rows, where SciPy's `piv` lists interchanges.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> factors = fnp.linalg.lu_factor(fd.tensor([[0.0, 2.0], [1.0, 3.0]]))
    >>> fnp.linalg.lu_solve(factors, fd.tensor([2.0, 4.0])).tolist()
    [1.0, 1.0]
    """
    (a,) = matrices("lu_factor", a)
    order, lower, upper = bind(lu_op, widened([a]))
    lower = bind(tril_op, (lower,), (-1,))
    (m, n), stack = a._shape[-2:], [(0, 0)] * (a.ndim - 2)
    if m > n:
        upper = pad(upper, [*stack, (0, m - n), (0, 0)])
    elif n > m:
        lower = pad(lower, [*stack, (0, 0), (0, n - m)])
    return LUFactorResult(narrowed(lower + upper, a), order)


@rounded_once
def lu_solve(lu_and_order: Any, b: Any, trans: int = 0) -> Any:
    """The solution of `a @ x = b` from the result of `lu_factor`.

    `trans` is 1 for the transpose of `a`, 2 for its conjugate transpose.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.lu_solve(fnp.linalg.lu_factor(fd.tensor([[4.0]])), fd.tensor([2.0])).tolist()
    [0.5]
    """
    if trans not in (0, 1, 2):
        raise ArgumentError(f"lu_solve: trans is 0, 1 (transpose) or 2 (conjugate transpose), got {trans!r}.")
    packed, order = lu_and_order
    b = operand(b, packed, where="lu_solve")
    vector = b.ndim == 1
    b = expand_dims(b, -1) if vector else b
    rows = expand_dims(order, -1)
    if trans:
        y = solve_triangular(packed, b, trans)
        x = _rows(solve_triangular(packed, y, trans, lower=True, unit_diagonal=True), rows.argsort(-2))
    else:
        y = solve_triangular(packed, _rows(b, rows), lower=True, unit_diagonal=True)
        x = solve_triangular(packed, y)
    return x[..., 0] if vector else x


def _rows(b: Any, rows: Any) -> Any:
    stack = np.broadcast_shapes(b._shape[:-2], rows._shape[:-2])
    b = broadcast(b, (*stack, *b._shape[-2:]))
    return take_along_axis(b, broadcast(rows, (*stack, rows._shape[-2], b._shape[-1])), -2)


def cho_factor(a: Any, lower: bool = False) -> tuple[Any, bool]:
    """The Cholesky factor of Hermitian positive definite matrices, and whether it is the lower one: for `cho_solve`.

    The other triangle is 0.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.cho_solve(fnp.linalg.cho_factor(fd.tensor([[4.0]])), fd.tensor([2.0])).tolist()
    [0.5]
    """
    return cholesky(a, upper=not lower), bool(lower)


@rounded_once
def cho_solve(c_and_lower: Any, b: Any) -> Any:
    """The solution of `a @ x = b` from the result of `cho_factor`.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> factor = fnp.linalg.cho_factor(fd.tensor([[2.0, 0.0], [0.0, 4.0]]))
    >>> [round(x, 4) for x in fnp.linalg.cho_solve(factor, fd.tensor([2.0, 2.0])).tolist()]
    [1.0, 0.5]
    """
    c, lower = c_and_lower
    first, second = ("N", "C") if lower else ("C", "N")
    return solve_triangular(c, solve_triangular(c, b, first, lower=lower), second, lower=lower)


def block_diag(*arrays: Any) -> Any:
    """A matrix with the given ones along its diagonal and 0 elsewhere; vectors count as one row.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.block_diag([[1.0, 2.0]], 3.0).tolist()
    [[1.0, 2.0, 0.0], [0.0, 0.0, 3.0]]
    """
    blocks = list(operands("block_diag", "numeric", arrays)) if arrays else [operand([[]], where="block_diag")]
    if any(b.ndim > 2 for b in blocks):
        raise ShapeError(f"block_diag: takes matrices, got shapes {', '.join(str(b.shape) for b in blocks)}.")
    blocks = [b.reshape((1,) * (2 - b.ndim) + b.shape) for b in blocks]
    width, at, rows = sum(b.shape[1] for b in blocks), 0, []
    for b in blocks:
        rows.append(pad(b, ((0, 0), (at, width - at - b.shape[1]))))
        at += b.shape[1]
    return concatenate(rows, 0)


# --- square roots

_STEPS, _SCALED = 18, 10


@in_float32
def _sqrtm(xp: Any, x: Any) -> Any:
    """The product form of the iteration of Denman and Beavers, scaled by determinants (Higham 2008, ch. 6)."""
    n, one = x.shape[-1], identity(xp, x)

    def step(k: Any, state: Any) -> Any:
        m, out = state
        inverse = or_nan(np.linalg.inv, m) if xp is np else xp.linalg.inv(m)
        mu = xp.exp(-xp.linalg.slogdet(m)[1] / (2 * max(n, 1)))[..., None, None].astype(x.dtype)
        mu = xp.where(k < _SCALED, mu, xp.ones((), x.dtype))
        out = mu * (out @ (one + inverse / mu**2)) / 2
        return (one + (mu**2 * m + inverse / mu**2) / 2) / 2, out

    if xp is np:
        m, out = functools.reduce(lambda state, k: step(k, state), range(_STEPS), (x, x))
    else:
        m, out = jax.lax.fori_loop(0, _STEPS, step, (x, x))
    settled = xp.max(xp.abs(m - one), axis=(-2, -1), initial=0)[..., None, None] < 1e-3
    return xp.where(settled, out, xp.nan)


def _change(t: Any, x: Any) -> Any:
    """The derivative in a direction: the upper block of the root of ((x, t), (0, x)), exact whatever the eigenvalues."""
    n = x._shape[-1]
    below = concatenate([x * 0, x], -1)
    return bind(sqrtm_op, (concatenate([concatenate([x, t], -1), below], -2),))[..., :n, n:]


sqrtm_op: Op = custom(
    "sqrtm", _sqrtm, jvp=guarded(_change), vjp=guarded(lambda g, x: mT(_change(mT(g), x))), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((positive_definite(rng, 3) + 0.3 * rng.normal(size=(3, 3)),), {}),
        ((np.stack([np.eye(2), [[1.0, 1.0], [0.0, 1.0]]]),), {}),
        ((complex_of(rng, positive_definite(rng, 2)),), {}),
    ]),
    batch=same_params, doc="The principal square root of square matrices.",
)  # fmt: skip


def sqrtm(a: Any) -> Any:
    """The principal square root of square matrices: the one whose eigenvalues have positive real parts.

    Real for real matrices; NaN for a singular one and where an eigenvalue is real and negative (a complex
    matrix has its root there only on either side of that line). The derivative is exact for repeated
    eigenvalues too.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> [[round(v, 4) for v in row] for row in fnp.linalg.sqrtm(fd.tensor([[4.0, 1.0], [0.0, 4.0]])).tolist()]
    [[2.0, 0.25], [0.0, 2.0]]
    """
    (a,) = square("sqrtm", a)
    return cast(bind(sqrtm_op, widened([a])), a._dtype)
