"""Pooling over 1 to 3 spatial axes: the largest element of windows, their mean, their p-norm; and the way back."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, OutOfBoundsError, ShapeError
from functad.nn.functional.checks import floats, number
from functad.nn.functional.spatial import Paddings, Sizes, fitting, integer, per_axis, with_batch, without_batch
from functad.ops.index import take_inside
from functad.ops.op import Type
from functad.ops.operand import operand
from functad.ops.pick import take_columns_op
from functad.ops.plan import every_value
from functad.ops.resample import Resampling, resampled
from functad.ops.rules import cast, widen, zeros
from functad.ops.scatter import scatter_set_op
from functad.ops.transfer import stop_gradient
from functad.ops.window import Windows, window_argmax_op, window_max_op, window_sum_op

__all__: list[str] = []


# --- max


def max_pool(
    where: str, ndim: int, input: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
    return_indices: bool,
) -> Any:  # fmt: skip
    """The largest element of each window, with its place on request."""
    x, added = comparable(where, ndim, input)
    how = _windows(where, ndim, x, kernel_size, stride, padding, dilation, ceil_mode)
    values = without_batch(bind(window_max_op, (x,), (how,)), added)
    if not return_indices:
        return values
    return values, without_batch(bind(window_argmax_op, (x,), (how,)), added)


def adaptive_max_pool(where: str, ndim: int, input: Any, output_size: Any, return_indices: bool) -> Any:
    """The largest element of each of so many windows."""
    x, added = comparable(where, ndim, input)
    size = x.shape[2:]
    out = _output_size(where, output_size, size)
    if all(n % o == 0 for n, o in zip(size, out, strict=True)):
        how = _side_by_side(size, out)
        values = bind(window_max_op, (x,), (how,))
        indices = bind(window_argmax_op, (x,), (how,)) if return_indices else None
    else:
        flat = ops.reshape(x, (*x.shape[:2], math.prod(size)))
        places = operand(_adaptive_places(size, out), x, dtypes.default_int())
        read = take_inside(stop_gradient(flat), places, axis=2)
        found = largest_read(flat, ops.broadcast_to(places, read.shape), read)
        values, indices = (ops.reshape(each, (*x.shape[:2], *out)) for each in found)
    values = without_batch(values, added)
    return (values, without_batch(indices, added)) if return_indices else values


def largest_read(planes: Any, places: Any, read: Any) -> tuple[Any, Any]:
    """The largest element of each window and its place, from what was read of `planes` at `places`.

    Planes are (batch, channels, elements), the others (batch, channels, windows, elements).
    """
    at = ops.expand_dims(ops.argmax(read, axis=-1), -1)
    chosen = ops.reshape(ops.take_along_axis(places, at, axis=-1), places.shape[:-1])
    values = taken(planes, chosen)
    return ops.reshape(values, chosen.shape), chosen


def taken(planes: Any, places: Any) -> Any:
    """What planes (batch, channels, elements) hold at places that are inside, (batch, channels, ...), as rows."""
    rows = planes.shape[0] * planes.shape[1]
    columns = ops.reshape(places, (rows, math.prod(places.shape[2:])))
    return bind(take_columns_op, (ops.reshape(planes, (rows, 1, planes.shape[2])), columns))


def max_unpool(
    where: str, ndim: int, input: Any, indices: Any, kernel_size: Any, stride: Any, padding: Any, output_size: Any
) -> Any:
    """Zeros with the elements of `input` at the places that a max pool returned."""
    x, added = with_batch(where, operand(input, where=where), ndim)
    places = operand(indices, x, where=where)
    if places.dtype.kind not in "iu":
        raise DTypeError(f"{where}: indices are ints, as max_pool{ndim}d returns them, got {places.dtype}.")
    places = with_batch(where, places, ndim)[0]
    if places.shape != x.shape:
        raise ShapeError(f"{where}: indices of shape {places.shape} must have the shape of input, {x.shape}.")
    kernel = per_axis(where, "kernel_size", kernel_size, ndim)
    strides = kernel if stride is None else per_axis(where, "stride", stride, ndim)
    paddings = per_axis(where, "padding", padding, ndim, 0)
    least = tuple([
        (n - 1) * s - 2 * p + k for n, s, p, k in zip(x.shape[2:], strides, paddings, kernel, strict=True)
    ])  # fmt: skip
    size = least if output_size is None else _unpooled_size(where, output_size, least, strides)
    total = math.prod(size)
    values = every_value(places)
    if values is not None and values.size and not 0 <= values.min() <= values.max() < total:
        raise OutOfBoundsError(
            f"{where}: indices reach from {values.min()} to {values.max()}, but an output of spatial size {size} has the "
            f"places 0 to {total - 1}; pass output_size, the spatial size of what was pooled."
        )
    rows = x.shape[0] * x.shape[1]
    flat = ops.reshape(x, (rows, math.prod(x.shape[2:])))
    row = operand(np.arange(rows)[:, None], x, dtypes.int32)
    column = ops.reshape(places, flat.shape)
    empty = zeros(Type((rows, total), x.dtype), x)
    out = bind(scatter_set_op, (empty, flat, row, column), ((0, 1), 0, False))
    return without_batch(ops.reshape(out, (*x.shape[:2], *size)), added)


# --- means


def avg_pool(
    where: str, ndim: int, input: Any, kernel_size: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_include_pad: bool, divisor_override: int | None,
) -> Any:  # fmt: skip
    """The mean of each window."""
    x, added = with_batch(where, floats(where, input), ndim)
    how = _windows(where, ndim, x, kernel_size, stride, padding, 1, ceil_mode)
    if divisor_override is not None:
        divisor: Any = integer(where, "divisor_override", divisor_override, 1)
    else:
        sides = per_axis(where, "padding", padding, ndim, 0)
        divisor = _counts(x.shape[2:], how, sides, bool(count_include_pad))
        if not isinstance(divisor, int):
            divisor = operand(divisor, x, dtypes.accumulator(x.dtype))
    out = bind(window_sum_op, (widen(x),), (how,)) / divisor
    return without_batch(cast(out, x.dtype), added)


def adaptive_avg_pool(where: str, ndim: int, input: Any, output_size: Any) -> Any:
    """The mean of each of so many windows."""
    x, added = with_batch(where, floats(where, input), ndim)
    size = x.shape[2:]
    out = _output_size(where, output_size, size)
    wide = widen(x)
    if all(n % o == 0 for n, o in zip(size, out, strict=True)):
        how = _side_by_side(size, out)
        if math.prod(out) == 1:
            wide = ops.mean(wide, axis=tuple(range(2, 2 + ndim)), keepdims=True)
        else:
            wide = bind(window_sum_op, (wide,), (how,)) / math.prod(how.kernel)
    else:
        for axis, o in enumerate(out, 2):
            wide = resampled(wide, axis, o, Resampling("area"))
    return without_batch(cast(wide, x.dtype), added)


def lp_pool(where: str, ndim: int, input: Any, norm_type: Any, kernel_size: Any, stride: Any, ceil_mode: bool) -> Any:
    """The p-norm of each window; 0, with derivative 0, where the sum of powers is 0."""
    p = number(where, "norm_type", norm_type)
    if p == 0:
        raise ArgumentError(f"{where}: norm_type must not be 0.")
    x, added = with_batch(where, floats(where, input), ndim)
    how = _windows(where, ndim, x, kernel_size, stride, 0, 1, ceil_mode)
    total = bind(window_sum_op, (widen(x) ** p,), (how,))
    count = math.prod(how.kernel)
    counts = _counts(x.shape[2:], how, (0,) * ndim, True)
    if not isinstance(counts, int):  # a window that reaches over the end counts as a whole one
        total = total * operand(count / counts, x, total.dtype)
    empty = total == 0
    safe = ops.where(empty, 1.0, total)
    root = ops.where(empty, 0.0, ops.sqrt(safe) if p == 2 else safe ** (1 / p))
    return without_batch(cast(root, x.dtype), added)


# --- arguments


def comparable(where: str, ndim: int, input: Any) -> tuple[Any, bool]:
    x = operand(input, where=where)
    if x.dtype.kind in "cb":
        raise DTypeError(f"{where}: takes floats or ints, which have an order, got {x.dtype}.")
    return with_batch(where, x, ndim)


def _windows(
    where: str, ndim: int, x: Any, kernel_size: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Windows:
    kernel = per_axis(where, "kernel_size", kernel_size, ndim)
    strides = kernel if stride is None else per_axis(where, "stride", stride, ndim)
    dilations = per_axis(where, "dilation", dilation, ndim)
    sides = per_axis(where, "padding", padding, ndim, 0)
    for p, k in zip(sides, kernel, strict=True):
        if 2 * p > k:
            raise ArgumentError(
                f"{where}: padding={padding!r} must be at most half of kernel_size={kernel_size!r}, or windows would lie in "
                "the padding alone; pad the input with F.pad for more."
            )
    how = Windows(kernel, strides, tuple([(p, p) for p in sides]), dilations)
    if ceil_mode:
        how = how._replace(padding=_rounded_up(x.shape[2:], how))
    fitting(where, x.shape[2:], kernel, how)
    return how


def _rounded_up(size: Sizes, how: Windows) -> Paddings:
    """The padding with which a last window that starts inside counts, though it reaches over the end."""
    found = []
    for n, k, s, (low, high), d in zip(size, *how, strict=True):
        reach = d * (k - 1) + 1
        out = -(-(n + low + high - reach) // s) + 1
        if (out - 1) * s >= n + low:
            out -= 1
        found.append((low, (out - 1) * s + reach - n - low))
    return tuple(found)


@lru_cache(512)
def _counts(size: Sizes, how: Windows, sides: Sizes, with_padding: bool) -> Any:
    """How many elements each window has: an int if all have as many. What lies beyond the padding never counts."""
    counts = np.ones((), int)
    for n, k, s, (low, high), p in zip(size, *how[:3], sides, strict=True):
        starts = np.arange((n + low + high - k) // s + 1) * s - low
        stops = np.minimum(starts + k, n + p if with_padding else n)
        counts = counts[..., None] * (stops - np.maximum(starts, -p if with_padding else 0))
    return int(counts.flat[0]) if counts.size and (counts == counts.flat[0]).all() else counts


def _side_by_side(size: Sizes, out: Sizes) -> Windows:
    kernel = tuple([n // o for n, o in zip(size, out, strict=True)])
    return Windows(kernel, kernel, ((0, 0),) * len(size), (1,) * len(size))


def _output_size(where: str, output_size: Any, size: Sizes) -> Sizes:
    """One length per axis; None keeps that of the input."""
    given = output_size if isinstance(output_size, (tuple, list)) else (output_size,) * len(size)
    if len(given) != len(size):
        raise ArgumentError(
            f"{where}: output_size={output_size!r} takes one int (or None, to keep the length), or one for each of the "
            f"{len(size)} spatial axes."
        )
    if not all(size):
        raise ShapeError(f"{where}: input of spatial size {size} is empty.")
    return tuple([n if o is None else integer(where, "output_size", o, 1) for o, n in zip(given, size, strict=True)])


@lru_cache(256)
def _adaptive_places(size: Sizes, out: Sizes) -> Any:
    """Per window the places it reads, row by row; a shorter window repeats its last along an axis."""
    places = np.zeros((1,) * (2 * len(size)), int)
    for axis, (n, o) in enumerate(zip(size, out, strict=True)):
        start, stop = np.arange(o) * n // o, -(-(np.arange(o) + 1) * n // o)
        read = np.minimum(start[:, None] + np.arange((stop - start).max()), stop[:, None] - 1)
        shape = [1] * (2 * len(size))
        shape[axis], shape[len(size) + axis] = read.shape
        places = places * n + read.reshape(shape)
    return places.reshape(math.prod(out), -1)


def _unpooled_size(where: str, output_size: Any, least: Sizes, strides: Sizes) -> Sizes:
    if not isinstance(output_size, (tuple, list)):
        raise ArgumentTypeError(f"{where}: output_size is a tuple of ints, got {output_size!r}.")
    given = tuple(output_size)[-len(least) :]
    if len(output_size) not in (len(least), len(least) + 1, len(least) + 2) or any(
        not n - s < g < n + s for g, n, s in zip(given, least, strides, strict=True)
    ):
        raise ArgumentError(
            f"{where}: output_size={output_size!r} must be within one stride, {strides}, of {least}, the size that these "
            "windows need."
        )
    return given
