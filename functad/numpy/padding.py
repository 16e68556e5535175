"""`pad` with all of NumPy's modes; those with a value per line are made of `concatenate`, axis by axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functad import ops
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.numpy.quantiles import median
from functad.ops.halves import rounded_once
from functad.ops.join import pairs
from functad.ops.operand import operand

__all__ = ["pad"]

_ARGUMENTS: dict[str, tuple[str, Any]] = {
    "constant": ("constant_values", 0),
    "linear_ramp": ("end_values", 0),
    "maximum": ("stat_length", None),
    "mean": ("stat_length", None),
    "median": ("stat_length", None),
    "minimum": ("stat_length", None),
    "reflect": ("reflect_type", "even"),
    "symmetric": ("reflect_type", "even"),
}
"""The argument that a mode takes, and its default."""

_STATISTICS: dict[str, Callable[..., Any]] = {
    "maximum": ops.max,
    "mean": ops.mean,
    "median": median,
    "minimum": ops.min,
}

_MODES = (*_ARGUMENTS, "edge", "empty", "wrap")


def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Any:
    """With a border along each axis.

    Args:
        array: the tensor.
        pad_width: an int, a pair (before, after) for every axis, one pair per axis, or a dict of ints or pairs by axis.
        mode: "constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "maximum", "mean", "median",
            "minimum" or "empty" (zeros here).
        kwargs: of "constant": `constant_values`, a number, pairs of them as of `pad_width`, or a 0-d tensor,
            which is differentiated too; of "linear_ramp": `end_values`, in the same forms; of the statistics:
            `stat_length`, how many elements at each end count (all by default); of "reflect" and
            "symmetric": `reflect_type`, "even" or "odd" (twice the edge less the reflection).

    Raises `ArgumentTypeError` for an argument that the mode does not take.

    >>> import functad.numpy as fnp
    >>> fnp.pad([2.0, 4.0], (1, 2), "linear_ramp").tolist()
    [0.0, 2.0, 4.0, 2.0, 0.0]
    """
    if mode not in _MODES:
        raise ArgumentError(f"pad: mode={mode!r} is not one of {', '.join(_MODES)}.")
    name, default = _ARGUMENTS.get(mode, ("", None))
    given = kwargs.pop(name, default)
    if kwargs:
        takes = f"mode={mode!r} takes {name}" if name else f"mode={mode!r} takes no further argument"
        raise ArgumentTypeError(f"pad: got {', '.join(kwargs)}; {takes}.")
    if mode == "constant":
        return ops.pad(array, pad_width, constant_values=given)
    if mode in ("reflect", "symmetric") and given not in ("even", "odd"):
        raise ArgumentError(f"pad: reflect_type is 'even' or 'odd', got {given!r}.")
    if mode == "empty":
        return ops.pad(array, pad_width)
    if mode not in ("linear_ramp", *_STATISTICS) and given != "odd":
        return ops.pad(array, pad_width, mode)
    return _by_axis(operand(array, where="pad"), pad_width, mode, given)


@rounded_once
def _by_axis(x: Any, pad_width: Any, mode: str, given: Any) -> Any:
    """Borders with values of their own."""
    widths = pairs(pad_width, x.ndim, "pad_width")
    if any(type(w) is not int or w < 0 for pair in widths for w in pair):
        raise ArgumentError(f"pad: pad_width must hold ints that are not negative, got {pad_width!r}.")
    options = pairs(given, x.ndim, "end_values" if mode == "linear_ramp" else "stat_length")
    for axis, pair in enumerate(widths):
        if pair == (0, 0):
            continue
        if not x.shape[axis]:
            raise ShapeError(f"pad: mode={mode!r} cannot extend axis {axis} of shape {x.shape}, which is empty.")
        if mode == "linear_ramp":
            before, after = (_ramp(x, axis, w, v, i) for i, (w, v) in enumerate(zip(pair, options[axis], strict=True)))
        elif mode in _STATISTICS:
            before, after = (
                _statistic(x, axis, w, n, i, mode) for i, (w, n) in enumerate(zip(pair, options[axis], strict=True))
            )
        else:
            before, after = (_odd(x, axis, w, i, mode) for i, w in enumerate(pair))
        x = ops.concatenate([before, x, after], axis)
    return x


def _part(x: Any, axis: int, start: int, stop: int) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _end(x: Any, axis: int, count: int, after: int) -> Any:
    """The first `count` slices along an axis, or the last."""
    n = x.shape[axis]
    return _part(x, axis, n - count, n) if after else _part(x, axis, 0, count)


def _ramp(x: Any, axis: int, width: int, value: Any, after: int) -> Any:
    count = np.arange(width).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    whole = x.dtype.kind in "biu"
    edge = _end(x, axis, 1, after)
    edge = edge.astype(float) if whole else edge
    steps = operand(np.flip(count) if after else count, edge, edge.dtype)
    ramp = value + (edge - value) / max(width, 1) * steps
    return ops.floor(ramp).astype(x.dtype) if whole else ramp


def _statistic(x: Any, axis: int, width: int, length: Any, after: int, mode: str) -> Any:
    n = x.shape[axis]
    if length is not None and (type(length) is not int or length < 1):
        raise ArgumentError(f"pad: stat_length must hold ints of at least 1, got {length!r}.")
    found = _STATISTICS[mode](_end(x, axis, n if length is None else min(length, n), after), axis=axis, keepdims=True)
    if x.dtype.kind in "biu":
        found = ops.round(found).astype(x.dtype)
    return ops.broadcast_to(found, tuple([width if i == axis else m for i, m in enumerate(x.shape)]))


def _odd(x: Any, axis: int, width: int, after: int, mode: str) -> Any:
    skip = int(mode == "reflect")
    n = x.shape[axis]
    if width > n - skip:
        raise ShapeError(
            f"pad: reflect_type='odd' reaches {n - skip} elements past axis {axis} of shape {x.shape}, got {width}; pad in "
            "several steps."
        )
    mirrored = _part(x, axis, n - skip - width, n - skip) if after else _part(x, axis, skip, skip + width)
    return 2 * _end(x, axis, 1, after) - ops.flip(mirrored, axis)
