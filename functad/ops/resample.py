"""Resampling along an axis: each element of the result is a weighted sum of a few neighbours.

The neighbours and their weights depend on lengths only, so they are worked out once, in NumPy. Read the
other way round the same table is the transpose, which so is a weighted sum of neighbours too.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.ops.op import Op
from functad.ops.rules import linear, shift_axis
from functad.ops.shape import fixed

__all__: list[str] = []

Kind = Literal["nearest", "nearest-exact", "linear", "cubic", "area"]

_MOST_TERMS = 16  # of a sum that is unrolled
_DENSE = 32  # what a term that is looked up costs, in terms of a product of matrices


class Resampling(NamedTuple):
    """How positions in the result map to positions in the input."""

    kind: Kind
    align_corners: bool = False
    antialias: bool = False
    scale: float | None = None  # of the result against the input; None for the ratio of the lengths


class Table(NamedTuple):
    """Per element of the result the numbers of its neighbours and their weights; both [length, terms]."""

    indices: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]


def cubic_weights(t: Any, a: float) -> list[Any]:
    """Keys' cubic convolution weights of the neighbours at -1, 0, 1 and 2 for a position `t` in [0, 1]."""
    u = 1 - t

    def outer(d: Any) -> Any:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    def inner(d: Any) -> Any:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    return [outer(t + 1), inner(t), inner(u), outer(u + 1)]


def _step(n: int, size: int, how: Resampling) -> float:
    if how.align_corners:
        return (n - 1) / (size - 1) if size > 1 else 0.0
    return n / size if how.scale is None else 1 / how.scale


@lru_cache(512)
def table(n: int, size: int, how: Resampling) -> Table:
    """The table that takes an axis of length `n` to one of length `size`."""
    place = np.arange(size)
    step = _step(n, size, how)
    if how.kind == "area":
        starts, stops = place * n // size, -(-(place + 1) * n // size)
        steps = np.arange((stops - starts).max())
        inside = starts[:, None] + steps < stops[:, None]
        return Table(np.minimum(starts[:, None] + steps, n - 1), inside / (stops - starts)[:, None])
    if how.kind == "nearest":
        source = place * n // size if how.scale is None else np.floor(place * step).astype(int)
        return Table(np.minimum(source, n - 1)[:, None], np.ones((size, 1)))
    if how.kind == "nearest-exact":
        source = (2 * place + 1) * n // (2 * size) if how.scale is None else np.floor((place + 0.5) * step).astype(int)
        return Table(np.minimum(source, n - 1)[:, None], np.ones((size, 1)))
    if how.antialias:
        return _antialiased(n, place, step, how.kind)
    at = place * step if how.align_corners else (place + 0.5) * step - 0.5
    if how.kind == "linear":
        at = np.maximum(at, 0)
        low = np.minimum(np.floor(at).astype(int), n - 1)
        t = np.minimum(at - low, 1)
        return Table(np.stack([low, np.minimum(low + 1, n - 1)], 1), np.stack([1 - t, t], 1))
    low = np.floor(at).astype(int)
    return Table(np.clip(low[:, None] + np.arange(-1, 3), 0, n - 1), np.stack(cubic_weights(at - low, -0.75), 1))


def _antialiased(n: int, place: Any, step: float, kind: Kind) -> Table:
    """A filter as wide as what one element of the result stands for."""
    wide = max(step, 1.0)
    reach = (1 if kind == "linear" else 2) * wide
    centre = (place + 0.5) * step
    starts = np.maximum((centre - reach + 0.5).astype(int), 0)
    stops = np.minimum((centre + reach + 0.5).astype(int), n)
    steps = np.arange(max((stops - starts).max(), 1))
    indices = starts[:, None] + steps
    d = np.abs((indices - centre[:, None] + 0.5) / wide)
    if kind == "linear":
        weights = np.maximum(1 - d, 0)
    else:
        near, _, _, _ = cubic_weights(np.clip(d - 1, 0, 1), -0.5)
        _, here, _, _ = cubic_weights(np.clip(d, 0, 1), -0.5)
        weights = np.where(d < 1, here, np.where(d < 2, near, 0))
    weights = np.where(indices < stops[:, None], weights, 0)
    return Table(np.minimum(indices, n - 1), weights / weights.sum(1, keepdims=True))


@lru_cache(512)
def _transposed(n: int, size: int, how: Resampling) -> Table:
    """The table from length `size` back to length `n`."""
    indices, weights = table(n, size, how)
    matrix = np.zeros((n, size))
    np.add.at(matrix, (indices, np.arange(size)[:, None]), weights)
    terms = max((matrix != 0).sum(1).max(), 1)
    order = np.argsort(matrix == 0, axis=1, kind="stable")[:, :terms]
    return Table(order, np.take_along_axis(matrix, order, 1))


class Phases(NamedTuple):
    """An enlargement by a whole factor: per phase of the result the offsets of its neighbours, and their weights."""

    offsets: np.ndarray[Any, Any]
    weights: np.ndarray[Any, Any]
    reach: tuple[int, int]  # how far neighbours lie below and above


@lru_cache(512)
def _phases(n: int, size: int, how: Resampling) -> Phases | None:
    """What the table says if it repeats; None if it does not, or there is little to win."""
    if how.kind not in ("linear", "cubic") or size % n or size == n or n < 8:
        return None
    indices, weights = table(n, size, how)
    factor, middle = size // n, n // 2
    offsets, repeated = (a[middle * factor : (middle + 1) * factor] for a in (indices - middle, weights))
    matrix = np.zeros((2, size, n))
    rows = np.arange(size)[:, None]
    np.add.at(matrix[0], (rows, indices), weights)
    places = np.clip(np.repeat(np.arange(n), factor)[:, None] + np.tile(offsets, (n, 1)), 0, n - 1)
    np.add.at(matrix[1], (rows, places), np.tile(repeated, (n, 1)))
    if factor > 4 or not np.allclose(matrix[0], matrix[1], rtol=0, atol=1e-12):
        return None
    return Phases(offsets, repeated, (max(-offsets.min(), 0), max(offsets.max(), 0)))


def _enlarge(x: Any, axis: int, phases: Phases) -> Any:
    """Weighted sums of slices, which fuse, in place of gathers."""
    n, (below, above) = x.shape[axis], phases.reach
    x = jnp.pad(x, [(below, above) if i == axis else (0, 0) for i in range(x.ndim)], mode="edge")
    found = []
    for offsets, weights in zip(phases.offsets, phases.weights, strict=True):
        pairs = zip(offsets.tolist(), weights.tolist(), strict=True)
        terms = [_span(x, axis, below + o, n) * w for o, w in pairs if w]  # 0 * inf is none of its business
        found.append(sum(terms[1:], terms[0]))
    return jnp.stack(found, axis + 1).reshape(*x.shape[:axis], n * len(found), *x.shape[axis + 1 :])


def _span(x: Any, axis: int, start: int, length: int) -> Any:
    return jax.lax.slice_in_dim(x, start, start + length, axis=axis)


def _resample(xp: Any, x: Any, *, axis: int, size: int, how: Resampling, back: bool) -> Any:
    n = x.shape[axis]
    indices, weights = _transposed(size, n, how) if back else table(n, size, how)
    if (weights == 1).all() and weights.shape[1] == 1:
        return _taken(xp, x, indices[:, 0], axis)
    dtype, wide = x.dtype, dtypes.accumulator(x.dtype)
    x = x.astype(wide)
    if xp is not np and axis == x.ndim - 1:  # along others the loops over neighbours are fast
        if back and n <= _DENSE * weights.shape[1]:
            return _multiplied(x, indices, weights).astype(dtype)
        if not back and (phases := _phases(n, size, how)) is not None:
            return _enlarge(x, axis, phases).astype(dtype)
    column = (-1, *[1] * (x.ndim - 1 - axis))
    if xp is np or weights.shape[1] <= _MOST_TERMS:
        total: Any = None
        for index, weight in zip(indices.T, weights.T, strict=True):
            term = _weighted(xp, _taken(xp, x, index, axis), weight.reshape(column))
            total = term if total is None else total + term
    else:
        parts = _taken(xp, x, indices.reshape(-1), axis).reshape(*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        total = xp.sum(_weighted(xp, parts, weights.reshape(*weights.shape, *column[1:])), axis + 1)
    return total.astype(dtype)


def _multiplied(x: Any, indices: Any, weights: Any) -> Any:
    """Along the last axis, as a product with a matrix. For cotangents only: an inf or NaN reaches its whole row."""
    matrix = np.zeros((x.shape[-1], len(indices)))
    np.add.at(matrix, (indices, np.arange(len(indices))[:, None]), weights)
    return jnp.matmul(x, jnp.asarray(matrix, x.dtype), precision=jax.lax.Precision.HIGHEST)


def _taken(xp: Any, x: Any, index: Any, axis: int) -> Any:
    return x.take(index, axis) if xp is np else xp.take(x, index, axis, mode="clip")


def _weighted(xp: Any, x: Any, weights: Any) -> Any:
    """The product, with 0 where the weight is 0, also for inf and NaN."""
    out = x * xp.asarray(weights, x.dtype if x.dtype.kind != "c" else x.real.dtype)
    return out if (weights != 0).all() else xp.where(weights != 0, out, xp.zeros((), out.dtype))


def resampled(x: Any, axis: int, size: int, how: Resampling) -> Any:
    """`x` with an axis of length `size`."""
    return bind(resample_op, (x,), (axis, size, how, False))


resample_op: Op = linear(
    "resample", _resample,
    lambda g, x_shape, axis, how, back: bind(resample_op, (g,), (axis, x_shape[axis], how, not back)),
    samples=fixed(
        (((2, 3),), {"axis": 1, "size": 5, "how": Resampling("linear"), "back": False}),
        (((5, 2),), {"axis": 0, "size": 3, "how": Resampling("cubic", align_corners=True), "back": False}),
        (((3,),), {"axis": 0, "size": 7, "how": Resampling("area"), "back": True}),
        (((9, 2),), {"axis": 0, "size": 18, "how": Resampling("cubic"), "back": False}),
        (((24,),), {"axis": 0, "size": 8, "how": Resampling("linear"), "back": True}),
    ),
    batch=shift_axis, doc="Weighted sums of neighbours along an axis; with `back` the transpose of that.",
)  # fmt: skip
