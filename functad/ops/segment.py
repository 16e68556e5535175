"""Reductions into places: segments by their numbers, and torch's scatter with every reduction."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, ConcreteValueError, ShapeError
from functad.ops.arithmetic import floor_divide, maximum
from functad.ops.at import At
from functad.ops.axes import normalize_axis
from functad.ops.logic import logical_or, where
from functad.ops.operand import operand, without_value
from functad.ops.plan import check_inside, check_lengths, every_value, integers
from functad.ops.rules import broadcast, cast, widen
from functad.ops.scatter import scatter_add_op, scatter_max_op, scatter_min_op, scatter_mul_op

__all__ = ["scatter_reduce", "segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum"]

_SCATTERS = {"add": scatter_add_op, "mul": scatter_mul_op, "max": scatter_max_op, "min": scatter_min_op}
_METHODS = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def segment_sum(data: Any, segment_ids: Any, num_segments: int | None = None) -> Any:
    """The sums of the slices of `data` that have the same number: `out[segment_ids[i]] += data[i]`.

    Args:
        data: what is summed, along its first axis.
        segment_ids: the segment of each slice, ints in any order. A slice whose number is no segment's is left out.
        num_segments: the length of the result; by default one more than the largest number, which must have a
            value then (it has none under jit and vmap).

    >>> import functad as fd
    >>> fd.ops.segment_sum(fd.tensor([1.0, 10.0, 100.0]), [0, 2, 0], 3).tolist()
    [101.0, 0.0, 10.0]
    """
    return _segments(data, segment_ids, num_segments, "segment_sum", "add", lambda dtype: 0)


def segment_prod(data: Any, segment_ids: Any, num_segments: int | None = None) -> Any:
    """The products of segments, 1 for an empty one; see `segment_sum`. Zeros are as good as any value.

    >>> import functad as fd
    >>> fd.ops.segment_prod(fd.tensor([2.0, 3.0, 5.0]), [0, 1, 0]).tolist()
    [10.0, 3.0]
    """
    return _segments(data, segment_ids, num_segments, "segment_prod", "mul", lambda dtype: 1)


def segment_max(data: Any, segment_ids: Any, num_segments: int | None = None) -> Any:
    """The largest elements of segments, -inf (or the smallest integer) for an empty one; ties share the derivative.

    >>> import functad as fd
    >>> fd.ops.segment_max(fd.tensor([2.0, 3.0, 5.0]), [0, 1, 0]).tolist()
    [5.0, 3.0]
    """
    return _segments(data, segment_ids, num_segments, "segment_max", "max", _lowest)


def segment_min(data: Any, segment_ids: Any, num_segments: int | None = None) -> Any:
    """The smallest elements of segments, inf (or the largest integer) for an empty one; ties share the derivative.

    >>> import functad as fd
    >>> fd.ops.segment_min(fd.tensor([2.0, 3.0, 5.0]), [0, 1, 0]).tolist()
    [2.0, 3.0]
    """
    return _segments(data, segment_ids, num_segments, "segment_min", "min", _highest)


def segment_mean(data: Any, segment_ids: Any, num_segments: int | None = None) -> Any:
    """The means of segments, 0 for an empty one; see `segment_sum`.

    >>> import functad as fd
    >>> fd.ops.segment_mean(fd.tensor([2.0, 3.0, 5.0]), [0, 1, 0], 3).tolist()
    [3.5, 3.0, 0.0]
    """
    data = operand(data, where="segment_mean")
    if not dtypes.is_inexact(data.dtype):
        data = data.astype(dtypes.float_of(data.dtype))
    wide = widen(data)
    ids = integers(segment_ids, data, "segment_mean")
    total = segment_sum(wide, ids, num_segments)
    ones = operand(np.ones(ids.shape, np.float32), data, wide.dtype)
    counts = segment_sum(ones, ids, total.shape[0])
    counts = counts.reshape((total.shape[0], *[1] * (total.ndim - 1)))
    return cast(total / maximum(counts, 1.0), data.dtype)


def scatter_reduce(x: Any, axis: int, indices: Any, values: Any, reduce: str, include_self: bool = True) -> Any:
    """`x` with `values` reduced into it: `out[indices[i, j], j]` takes in `values[i, j]` for axis 0, as in torch.

    Args:
        x: the tensor to start from.
        axis: the axis that `indices` are positions of.
        indices: as many axes as `x`, along the others at most as long as it.
        values: broadcast to the shape of `indices`.
        reduce: "sum", "prod", "mean", "amax" or "amin".
        include_self: whether the element of `x` takes part, where values come in.

    Differentiable in `x` and `values`; equal extrema share the derivative, products may have zeros.

    >>> import functad as fd
    >>> x = fd.tensor([1.0, 2.0])
    >>> fd.ops.scatter_reduce(x, 0, [0, 0], fd.tensor([3.0, 5.0]), "mean").tolist()
    [3.0, 2.0]
    >>> fd.ops.scatter_reduce(x, 0, [0, 0], fd.tensor([3.0, 5.0]), "mean", include_self=False).tolist()
    [4.0, 2.0]
    """
    if reduce not in _METHODS:
        raise ArgumentError(f"scatter_reduce: reduce={reduce!r} is none of {', '.join(map(repr, _METHODS))}.")
    x = operand(x, where="scatter_reduce")
    axis = normalize_axis(axis, x.ndim, "scatter_reduce")
    indices = integers(indices, x, "scatter_reduce")
    check_lengths(x, axis, indices, "scatter_reduce")
    check_inside(x, axis, indices, "scatter_reduce")
    grid: list[Any] = list(np.ogrid[tuple([slice(n) for n in indices.shape])])
    grid[axis] = indices
    place = tuple(grid)
    start = widen(x) if reduce == "mean" else x
    values = operand(values, x, start.dtype, "scatter_reduce")
    if not include_self:
        start = At(start)[place].set(_neutral(reduce, x.dtype))
    out = getattr(At(start)[place], _METHODS[reduce])(values)
    if reduce != "mean":
        return out
    counts = operand(np.full(x.shape, float(include_self), np.float32), x)
    counts = maximum(At(counts)[place].add(1.0), 1.0)
    if x.dtype.kind in "iu":
        return floor_divide(out, counts.astype(x.dtype))
    return cast(out / counts.astype(out.dtype), x.dtype)


# --- how


def _neutral(reduce: str, dtype: Any) -> Any:
    return {"sum": 0, "mean": 0, "prod": 1}.get(reduce, _lowest(dtype) if reduce == "amax" else _highest(dtype))


def _lowest(dtype: Any) -> Any:
    return float("-inf") if dtypes.is_float(dtype) else False if dtype.kind == "b" else int(np.iinfo(dtype).min)


def _highest(dtype: Any) -> Any:
    return float("inf") if dtypes.is_float(dtype) else True if dtype.kind == "b" else int(np.iinfo(dtype).max)


def _segments(data: Any, ids: Any, count: int | None, name: str, method: str, start: Any) -> Any:
    data = operand(data, ids if isinstance(ids, Handle) else None, where=name)
    ids = operand(integers(ids, data, name), data)
    if not data.ndim or ids.shape != data.shape[: ids.ndim] or not ids.ndim:
        raise ShapeError(
            f"{name}: segment_ids of shape {ids.shape} must have the shape of the first axes of data, whose shape is "
            f"{data.shape}."
        )
    total = _count(ids, count, name)
    ids = where(logical_or(ids < 0, ids >= total), total, ids)  # a further segment, for what is in none
    rows = data.shape[ids.ndim :]
    base = broadcast(operand(start(data.dtype), data, data.dtype), (total + 1, *rows))
    return bind(_SCATTERS[method], (base, data, ids), ((0,), 0))[:total]  # all of them are inside


def _count(ids: Any, count: int | None, name: str) -> int:
    if count is None:
        values = every_value(ids)
        if values is None:
            raise ConcreteValueError(
                f"{name}: the number of segments is not known under jit; pass num_segments, an int, to it."
            )
        return int(values.max()) + 1 if values.size else 0
    try:
        number = operator.index(count)
    except TypeError:
        raise ArgumentTypeError(f"{name}: num_segments must be an int, got {count!r}.{without_value(count)}") from None
    if number < 0:
        raise ArgumentError(f"{name}: num_segments must not be negative, got {number}.")
    return number
