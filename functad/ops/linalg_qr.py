"""Orthogonal-triangular and lower-upper factors, and products of reflections."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
import scipy.linalg

from functad import dtypes
from functad.dispatch import base_backend, bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.arithmetic import conj
from functad.ops.diagonal import tril_op, triu_op
from functad.ops.index import take_along_axis
from functad.ops.join import concatenate
from functad.ops.linalg_base import (
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
    regular,
    rows,
    same_params,
    stacked,
    widened,
)
from functad.ops.linalg_eigen import diagonal_matrix
from functad.ops.linalg_solve import triangular
from functad.ops.op import Cost, Samples
from functad.ops.order import argsort_op
from functad.ops.rules import broadcast, cast, custom

__all__ = ["householder_product", "lu", "lu_op", "qr", "qr_op"]


class QRResult(NamedTuple):
    """What `qr` returns."""

    Q: Any
    R: Any


class LUResult(NamedTuple):
    """What `lu` returns."""

    P: Any
    L: Any
    U: Any


def _lower(x: Any, k: int = 0) -> Any:
    return bind(tril_op, (x,), (k,))


def _upper(x: Any, k: int = 0) -> Any:
    return bind(triu_op, (x,), (k,))


def _over(x: Any, r: Any, transpose: bool = False) -> Any:
    """`x @ r^-1` for upper triangular `r`; with `transpose`, `x @ r.mT^-1`."""
    return mT(triangular(r, mT(x), lower=False, transpose=not transpose))


def _real_diagonal(x: Any) -> Any:
    """The real part of the diagonal, as a matrix."""
    return diagonal_matrix(cast(diagonal_of(x).real, x._dtype))


# --- QR: the strict lower triangle of Q^H dA R^-1 turns Q, and what is left is upper triangular


@in_float32
def _qr(xp: Any, x: Any, *, full: bool) -> Any:
    mode: Any = "complete" if full else "reduced"
    if xp is np:
        return or_nan(lambda m: tuple(np.linalg.qr(m, mode)), x)
    return tuple(xp.linalg.qr(x, mode=mode))


def _qr_push(t: Any, out: Any) -> Any:
    q, r = out
    m, n = q._shape[-2], r._shape[-1]
    k = min(m, n)
    q1, r1 = (q[..., :k], r[..., :k, :k]) if q._shape[-1] > k or n > k else (q, r)
    moved = _over(t[..., :k] if n > k else t, r1)
    inner = mm(dagger(q1), moved)
    rest = _upper(inner, 1) + _real_diagonal(inner) + dagger(_lower(inner, -1))
    of_q, of_r = moved - mm(q1, rest), mm(rest, r1)
    if n > k:
        more = mm(dagger(of_q), q, r[..., k:]) + mm(dagger(q), t[..., k:])
        return of_q, concatenate([of_r, more], -1)
    if q._shape[-1] > k:
        of_q = concatenate([of_q, -mm(q1, dagger(moved), q[..., k:])], -1)
        of_r = concatenate([of_r, r[..., k:, :] * 0], -2)
    return of_q, of_r


def _qr_pull(g: Any, out: Any) -> Any:
    (of_q, of_r), (q, r) = g, out
    m, n = q._shape[-2], r._shape[-1]
    k = min(m, n)
    beyond = None
    if n > k:  # the columns after the square are Q^H A
        of_r2, r2 = of_r[..., k:], r[..., k:]
        beyond = mm(conj(q), of_r2)
        of_q = of_q + conj(mm(q, r2, mT(of_r2)))
        of_r, r = of_r[..., :k], r[..., :k]
    q1, turned = q, None
    if q._shape[-1] > k:
        q1, q2, of_q2 = q[..., :k], q[..., k:], of_q[..., k:]
        turned = conj(mm(q2, mT(of_q2), q1))
        of_q, of_r, r = of_q[..., :k], of_r[..., :k, :], r[..., :k, :]
    inner = mm(of_r, mT(r)) - mm(mT(q1), of_q)
    above = _upper(inner, 1)
    moved = of_q + mm(conj(q1), above + dagger(above) + _real_diagonal(inner))
    total = _over(moved if turned is None else moved - turned, r, transpose=True)
    return total if beyond is None else concatenate([total, beyond], -1)


def _tall(rng: np.random.Generator, m: int, n: int) -> Any:
    return rng.uniform(-1, 1, (m, n)) + 2 * np.eye(m, n)


qr_op = custom(
    "qr", _qr, jvp=guarded(_qr_push), vjp=guarded(_qr_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((_tall(rng, 3, 2),), {"full": False}), ((np.stack([_tall(rng, 2, 2), _tall(rng, 2, 2)]),), {"full": True}),
        ((complex_of(rng, regular(rng, 2)),), {"full": False}), ((np.zeros((2, 0)),), {"full": False}),
    ]),
    batch=same_params, doc="Q with orthonormal columns and upper triangular R, of which the product is x.",
)  # fmt: skip


# --- LU


@in_float32
def _lu(xp: Any, x: Any) -> Any:
    if xp is np:
        return _lu_on_host(x)
    packed, _, order = jax.lax.linalg.lu(x)
    m, n = x.shape[-2:]
    k = min(m, n)
    lower = xp.tril(packed[..., :k], -1) + xp.eye(m, k, dtype=x.dtype)
    return order.astype(dtypes.default_int()), lower, xp.triu(packed[..., :k, :])


def _lu_on_host(x: Any) -> Any:
    if x.ndim > 2:
        parts = [_lu_on_host(m) for m in x] or [_lu_on_host(np.zeros(x.shape[1:], x.dtype))]
        return tuple(np.stack(each)[: len(x)] for each in zip(*parts, strict=True))
    m, n = x.shape
    if not x.size:
        return np.arange(m, dtype=dtypes.default_int()), np.eye(m, min(m, n), dtype=x.dtype), x[: min(m, n)]
    order, lower, upper = scipy.linalg.lu(x, p_indices=True, check_finite=False)
    return np.argsort(order).astype(dtypes.default_int()), lower, upper


def _picked(x: Any, order: Any) -> Any:
    """The rows of `x` in an order."""
    return take_along_axis(x, broadcast(rows(order), x._shape), -2)


def _lu_push(t: Any, out: Any) -> Any:
    order, lower, upper = out
    t = _picked(t, order)
    m, n, k = lower._shape[-2], upper._shape[-1], lower._shape[-1]
    l1, u1 = lower[..., :k, :], upper[..., :k]
    inner = _over(triangular(l1, t[..., :k, :k], unit=True), u1)
    of_lower, of_upper = mm(l1, _lower(inner, -1)), mm(_upper(inner), u1)
    if m > k:
        of_lower = concatenate([of_lower, _over(t[..., k:, :] - mm(lower[..., k:, :], of_upper), u1)], -2)
    if n > k:
        more = triangular(l1, t[..., k:] - mm(of_lower, upper[..., k:]), unit=True)
        of_upper = concatenate([of_upper, more], -1)
    return None, of_lower, of_upper


def _lu_pull(g: Any, out: Any) -> Any:
    (order, lower, upper), (_, of_lower, of_upper) = out, g
    m, n, k = lower._shape[-2], upper._shape[-1], lower._shape[-1]
    l1, u1 = lower[..., :k, :], upper[..., :k]
    below = beside = None
    if m > k:
        below = _over(of_lower[..., k:, :], u1, transpose=True)
        of_upper = of_upper - mm(mT(lower[..., k:, :]), below)
    if n > k:
        beside = triangular(l1, of_upper[..., k:], transpose=True, unit=True)
        of_lower = of_lower - mm(beside, mT(upper[..., k:]))
    inner = _lower(mm(mT(l1), of_lower[..., :k, :]), -1) + _upper(mm(of_upper[..., :k], mT(u1)))
    total = triangular(l1, _over(inner, u1, transpose=True), transpose=True, unit=True)
    total = total if below is None else concatenate([total, below], -2)
    total = total if beside is None else concatenate([total, beside], -1)
    return _picked(total, bind(argsort_op, (order,), (order.ndim - 1, False)))


lu_op = custom(
    "lu", _lu, jvp=guarded(_lu_push), vjp=guarded(_lu_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((np.flip(regular(rng, 3), 0),), {}), ((np.stack([_tall(rng, 3, 2), _tall(rng, 3, 2)]),), {}),
        ((_tall(rng, 2, 3),), {}), ((complex_of(rng, regular(rng, 2)),), {}),
    ]),
    batch=same_params, doc="The order of rows that pivoting chose, unit lower triangular L and upper triangular U.",
)  # fmt: skip


# --- the functions


def qr(x: Any, mode: str = "reduced") -> Any:
    """The factors `Q` (orthonormal columns) and `R` (upper triangular) of `x = Q @ R`.

    Args:
        x: matrices of any shape.
        mode: "reduced" (Q has as many columns as the smaller side), "complete" (Q is square), or "r"
            for R alone.

    The first `min(m, n)` columns of `x` must be independent for a derivative. Raises `ArgumentError`
    for another mode.

    >>> import functad as fd
    >>> q, r = fd.ops.qr(fd.tensor([[3.0], [4.0]]))
    >>> [round(abs(v), 4) for v in (q @ r).ravel().tolist()]
    [3.0, 4.0]
    """
    (x,) = matrices("qr", x)
    if mode not in ("reduced", "complete", "r"):
        raise ArgumentError(f"qr: mode is 'reduced', 'complete' or 'r', got {mode!r}.")
    full = mode == "complete" and x._shape[-2] > x._shape[-1]
    q, r = bind(qr_op, widened([x]), (full,))
    return narrowed(r, x) if mode == "r" else QRResult(narrowed(q, x), narrowed(r, x))


def householder_product(a: Any, taus: Any) -> Any:
    """The first columns of the product of reflections that LAPACK's `geqrf` describes Q by (torch, `jax.lax.linalg`).

    Args:
        a: matrices (..., m, n) with m >= n; below the diagonal of column i is the rest of the vector v of reflection i,
            whose element i is 1 and those above it 0. What is on and above the diagonal is not read.
        taus: the factors (..., k) with k <= n; reflection i is the identity minus taus[i] times v and its conjugate
            transpose.

    Returns matrices of the shape of `a`. Raises `ShapeError` for wide matrices or too many factors.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.householder_product(fd.tensor([[0.0], [1.0]]), fd.tensor([1.0])).tolist()
    [[0.0], [-1.0]]
    """
    where = "householder_product"
    a, taus = matrices(where, a, taus)
    (m, n), k = a._shape[-2:], taus._shape[-1] if taus.ndim else -1
    if m < n or not 0 <= k <= n:
        raise ShapeError(
            f"{where}: takes matrices (..., m, n) with m >= n and factors (..., k) with k <= n, got shapes {a.shape} and "
            f"{taus.shape}."
        )
    wide, factors = stacked(where, *widened([a[..., :k], rows(taus)]))
    one = base_backend(a).put(np.eye(m, n), wide._dtype)
    v = _lower(wide, -1) + one[:, :k]
    # H_1 ... H_k = 1 - V T V^H with T = (1 + D U)^-1 D for the strict upper triangle U of V^H V, and D of the factors
    inner = factors * _upper(mm(dagger(v), v), 1)
    weights = triangular(inner, factors * dagger(v[..., :n, :]), lower=False, unit=True)
    return narrowed(one - mm(v, weights), a)


def lu(x: Any, permute_l: bool = False) -> Any:
    """The factors of `x = P @ L @ U`, with pivots (SciPy's `lu`).

    `P` is a permutation matrix, `L` unit lower triangular, `U` upper triangular. With `permute_l`,
    the pair `(P @ L, U)`.

    >>> import functad as fd
    >>> fd.ops.lu(fd.tensor([[0.0, 2.0], [1.0, 3.0]])).U.tolist()
    [[1.0, 3.0], [0.0, 2.0]]
    """
    (x,) = matrices("lu", x)
    order, lower, upper = bind(lu_op, widened([x]))
    where = bind(argsort_op, (order,), (order.ndim - 1, False))
    if permute_l:
        return narrowed(_picked(lower, where), x), narrowed(upper, x)
    permutation = cast(rows(where) == _counted(order), x._dtype)
    return LUResult(permutation, narrowed(lower, x), narrowed(upper, x))


def _counted(order: Any) -> Any:
    """0, 1, 2, ... as the columns that `order` may name."""
    return base_backend(order).put(np.arange(order._shape[-1]), order._dtype)
