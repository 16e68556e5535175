"""Borders that repeat what a tensor holds: its edge, its mirror image, itself again.

Along an axis a border is made of runs of neighbours, read forward, backward, or one element again and again. So on XLA it is
joined from slices, and its transpose adds slices, where a gather and a scatter would go element by element.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from functad import dtypes
from functad.dispatch import bind
from functad.ops.op import Op
from functad.ops.rules import linear
from functad.ops.shape import fixed, on_rows

__all__: list[str] = []

_MOST_RUNS = 16  # that are joined; more of them, of a short axis, are gathered

MODES = ("edge", "reflect", "symmetric", "wrap")

Widths = tuple[tuple[int, int], ...]


class Run(NamedTuple):
    """`length` elements of a border: from `low` on, forward or backward (step 1 or -1), or `low` again and again (0)."""

    low: int
    length: int
    step: int


@lru_cache(512)
def places(n: int, pair: tuple[int, int], mode: str) -> Any:
    """Which element of an axis of length `n` each one of the longer axis is."""
    return np.pad(np.arange(n), pair, mode)  # type: ignore[call-overload]  # one of MODES


@lru_cache(512)
def _runs(n: int, pair: tuple[int, int], mode: str) -> tuple[tuple[Run, ...], tuple[Run, ...]]:
    """The borders before and after."""
    found = places(n, pair, mode)
    return _cut(found[: pair[0]]), _cut(found[pair[0] + n :])


def _cut(border: Any) -> tuple[Run, ...]:
    runs = []
    steps = np.diff(border)
    start = 0
    while start < len(border):
        stop, step = start + 1, 1
        if stop < len(border) and abs(steps[start]) <= 1:
            step = int(steps[start])
            while stop < len(border) and steps[stop - 1] == step:
                stop += 1
        runs.append(Run(int(min(border[start], border[stop - 1])), stop - start, step))
        start = stop
    return tuple(runs)


def _axes(shape: tuple[int, ...], widths: Widths) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """The axes that have a border, with their length inside."""
    return ((axis, shape[axis], pair) for axis, pair in enumerate(widths) if pair != (0, 0))


def _extend(xp: Any, x: Any, *, widths: Widths, mode: str) -> Any:
    for axis, n, pair in _axes(x.shape, widths):
        before, after = _runs(n, pair, mode)
        if len(before) + len(after) > _MOST_RUNS:
            x = xp.take(x, places(n, pair, mode), axis, mode="clip")
            continue
        parts = [_read(x, axis, run) for run in before], [_read(x, axis, run) for run in after]
        x = lax.concatenate([*parts[0], x, *parts[1]], axis)
    return x


def _read(x: Any, axis: int, run: Run) -> Any:
    if run.step:
        piece = lax.slice_in_dim(x, run.low, run.low + run.length, axis=axis)
        return piece if run.step > 0 else lax.rev(piece, [axis])
    piece = lax.slice_in_dim(x, run.low, run.low + 1, axis=axis)
    return lax.broadcast_in_dim(piece, [run.length if i == axis else m for i, m in enumerate(x.shape)], range(x.ndim))


def _fold(xp: Any, x: Any, *, widths: Widths, mode: str) -> Any:
    dtype = x.dtype
    x = x.astype(dtypes.accumulator(dtype))
    inside = [n - low - high for n, (low, high) in zip(x.shape, widths, strict=True)]
    for axis, n, pair in [*_axes(tuple(inside), widths)][::-1]:
        if sum(map(len, _runs(n, pair, mode))) > _MOST_RUNS:
            front = xp.zeros((n, *x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)
            x = xp.moveaxis(front.at[places(n, pair, mode)].add(xp.moveaxis(x, axis, 0)), 0, axis)
            continue
        out = lax.slice_in_dim(x, pair[0], pair[0] + n, axis=axis)
        for start, runs in zip((0, pair[0] + n), _runs(n, pair, mode), strict=True):
            for at, run in zip(accumulate([run.length for run in runs], initial=start), runs, strict=False):
                piece = lax.slice_in_dim(x, at, at + run.length, axis=axis)
                if not run.step:
                    piece = xp.sum(piece, axis, keepdims=True)
                elif run.step < 0:
                    piece = lax.rev(piece, [axis])
                edge = (run.low, n - run.low - piece.shape[axis], 0)
                out = out + lax.pad(piece, x.dtype.type(0), [edge if i == axis else (0, 0, 0) for i in range(x.ndim)])
        x = out
    return x.astype(dtype)


def _extend_numpy(xp: Any, x: Any, *, widths: Widths, mode: str) -> Any:
    for axis, n, pair in _axes(x.shape, widths):
        x = x.take(places(n, pair, mode), axis)
    return x


def _fold_numpy(xp: Any, x: Any, *, widths: Widths, mode: str) -> Any:
    dtype = x.dtype
    x = x.astype(dtypes.accumulator(dtype))
    inside = [n - low - high for n, (low, high) in zip(x.shape, widths, strict=True)]
    for axis, n, pair in _axes(tuple(inside), widths):
        out = np.zeros((n, *x.shape[:axis], *x.shape[axis + 1 :]), x.dtype)
        np.add.at(out, places(n, pair, mode), np.moveaxis(x, axis, 0))
        x = np.moveaxis(out, 0, axis)
    return x.astype(dtype)


def _more(size: int, widths: Widths, mode: str) -> Any:
    return ((0, 0), *widths), mode


extend_op: Op = linear(
    "extend", _extend, lambda g, widths, mode: bind(fold_op, (g,), (widths, mode)), numpy_impl=_extend_numpy,
    samples=fixed(
        (((2, 3),), {"widths": ((1, 0), (3, 2)), "mode": "edge"}), (((3,),), {"widths": ((5, 4),), "mode": "reflect"}),
        (((3, 2),), {"widths": ((0, 0), (3, 5)), "mode": "symmetric"}), (((3,),), {"widths": ((4, 2),), "mode": "wrap"}),
        (((2, 2),), {"widths": ((0, 0), (9, 11)), "mode": "reflect"}),
    ),
    batch=on_rows(_more), doc="With a border that repeats what is inside.",
)  # fmt: skip
fold_op: Op = linear(
    "fold_border", _fold, lambda g, widths, mode: bind(extend_op, (g,), (widths, mode)), numpy_impl=_fold_numpy,
    samples=fixed(
        (((3, 8),), {"widths": ((1, 0), (3, 2)), "mode": "edge"}), (((12,),), {"widths": ((5, 4),), "mode": "reflect"}),
        (((22, 2),), {"widths": ((9, 11), (0, 0)), "mode": "reflect"}),
    ),
    batch=on_rows(_more), doc="Without a border, whose elements are added to those they repeat.",
)  # fmt: skip
