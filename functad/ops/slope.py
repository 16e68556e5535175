"""The slope of evenly spaced samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from functad import dtypes
from functad.dispatch import bind
from functad.ops.op import Op, Samples
from functad.ops.rules import linear, shift_axis

__all__: list[str] = []


def _cut(x: Any, axis: int, start: int, stop: int | None) -> Any:
    return x[(*[slice(None)] * axis, slice(start, stop))]


def _slope(xp: Any, x: Any, *, axis: int) -> Any:
    n = x.shape[axis]
    wide = x.astype(dtypes.accumulator(x.dtype))
    middle = (_cut(wide, axis, 2, None) - _cut(wide, axis, 0, n - 2)) * wide.dtype.type(0.5)
    first, last = (_cut(wide, axis, i + 1, i + 2) - _cut(wide, axis, i, i + 1) for i in (0, n - 2))
    return xp.concatenate([first, middle, last], axis).astype(x.dtype)


def _slope_back(xp: Any, g: Any, *, axis: int) -> Any:
    n = g.shape[axis]
    wide = g.astype(dtypes.accumulator(g.dtype))
    double = wide + wide

    def beside(move: int, edge: int) -> Any:
        """What the neighbours on one side give, twice: those at the ends count double, and the end beyond stands in for itself."""
        if xp is np:
            near: Any = np.roll(wide, move, axis)
            place: Any = np.arange(n).reshape([-1 if i == axis else 1 for i in range(g.ndim)])
        else:
            near = lax.pad(
                wide, wide.dtype.type(0), [(move, -move, 0) if i == axis else (0, 0, 0) for i in range(g.ndim)]
            )
            place = lax.broadcasted_iota(np.int32, g.shape, axis)
        return xp.where(place == edge, -double, xp.where(place == edge + move, near + near, near))

    return ((beside(1, 0) - beside(-1, n - 1)) * wide.dtype.type(0.5)).astype(g.dtype)


_SAMPLES = Samples([(((n, 2),), {"axis": 0}) for n in (2, 3)] + [(((2, 5),), {"axis": 1}), (((0, 3),), {"axis": 1})])

slope_op: Op = linear(
    "slope", _slope, lambda g, axis: bind(slope_back_op, (g,), (axis,)), samples=_SAMPLES, batch=shift_axis,
    doc="Half the difference of the neighbours along an axis; at the ends that of the end and its neighbour.",
)  # fmt: skip
slope_back_op: Op = linear(
    "slope_back", _slope_back, lambda g, axis: bind(slope_op, (g,), (axis,)), samples=_SAMPLES, batch=shift_axis,
    doc="The transpose of slope.",
)  # fmt: skip
