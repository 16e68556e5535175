"""Rectangular pieces of a tensor: read one, put one into zeros, put one into a tensor.

What fixes the shape of a piece is a parameter: per axis its length, its step, and whether the
axis stays. Where the piece starts is an operand, so a loop over positions compiles once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from functad.dispatch import bind
from functad.dtypes import DType, int32, int64
from functad.ops.op import Op, Samples, Type
from functad.ops.rules import broadcast, cast, linear, zeros

__all__: list[str] = []


class Cut(NamedTuple):
    """How a piece lies along one axis: `length` elements `step` apart; the axis goes if not `keep`."""

    length: int
    step: int = 1
    keep: bool = True

    @property
    def span(self) -> int:
        """How many elements of the axis lie between its first and its last, both included."""
        return (self.length - 1) * abs(self.step) + 1 if self.length else 0


Cuts = tuple[Cut, ...]


def moves(cut: Cut, n: int) -> bool:
    """Whether the piece has room to move along an axis of length `n`, so that its start is an operand."""
    return 0 < cut.span < n


def piece_shape(cuts: Cuts) -> tuple[int, ...]:
    """The shape of a piece."""
    return tuple([cut.length for cut in cuts if cut.keep])


def position_dtype(n: int) -> DType:
    """The dtype of positions on an axis of length `n`."""
    return int32 if n <= 2**31 - 1 else int64


def position(index: Any) -> Any:
    """The ints of a tensor in a dtype that holds the length of an axis too: uint8 holds 200, but not 300."""
    return cast(index, int32) if index._dtype.itemsize < 4 else index


# --- XLA. `starts` has, for each axis that the piece can move along, its lowest position.


def _lows(shape: tuple[int, ...], starts: Sequence[Any], cuts: Cuts) -> list[Any]:
    dtype = position_dtype(max(shape))
    left = iter(starts)
    return [next(left).astype(dtype) if moves(cut, n) else dtype.type(0) for cut, n in zip(cuts, shape, strict=True)]


def _window(x: Any, starts: Sequence[Any], cuts: Cuts) -> Any:
    """The part of `x` from the first to the last element of a piece."""
    spans = [cut.span for cut in cuts]
    if starts:
        return lax.dynamic_slice(x, _lows(x.shape, starts, cuts), spans)
    return x if tuple(spans) == x.shape else lax.slice(x, [0] * x.ndim, spans)


def _slice(xp: Any, x: Any, *starts: Any, cuts: Cuts) -> Any:
    x = _window(x, starts, cuts)
    if any(cut.step not in (1, -1) for cut in cuts):
        x = lax.slice(x, [0] * x.ndim, x.shape, [abs(cut.step) for cut in cuts])
    return _reversed(x, cuts).reshape(piece_shape(cuts))


def _reversed(x: Any, cuts: Cuts) -> Any:
    axes = [i for i, cut in enumerate(cuts) if cut.step < 0]
    return lax.rev(x, axes) if axes else x


def _spread(x: Any, cuts: Cuts) -> Any:
    """A piece as it lies in its window, with zeros between its elements."""
    x = _reversed(x.reshape([cut.length for cut in cuts]), cuts)
    if any(cut.step not in (1, -1) for cut in cuts):
        x = lax.pad(x, x.dtype.type(0), [(0, 0, abs(cut.step) - 1) for cut in cuts])
    return x


def _unslice(xp: Any, x: Any, *starts: Any, shape: tuple[int, ...], cuts: Cuts) -> Any:
    if x.size == 0:
        return xp.zeros(shape, x.dtype)
    x = _spread(x, cuts)
    return lax.dynamic_update_slice(xp.zeros(shape, x.dtype), x, _lows(shape, starts, cuts)) if starts else x


def _put_slice(xp: Any, x: Any, values: Any, *starts: Any, cuts: Cuts) -> Any:
    """By a choice for each element, in one pass.

    XLA's own update in place may overwrite what it has still to read, in `y.at[1:].set(y[:-1])` where y is a reshape.
    """
    if values.size == 0:
        return x
    values = _spread(values, cuts)
    if not starts:
        return xp.where(_hit(values.shape, [0] * x.ndim, cuts), values, x) if _has_steps(cuts) else values
    room = [n - m for n, m in zip(x.shape, values.shape, strict=True)]
    lows = [
        xp.clip(xp.where(low < 0, low + n, low), 0, r)  # as XLA does
        for low, n, r in zip(_lows(x.shape, starts, cuts), x.shape, room, strict=True)
    ]
    wide = lax.pad(values, x.dtype.type(0), [(r, r, 0) for r in room])
    spread = lax.dynamic_slice(wide, [r - low for r, low in zip(room, lows, strict=True)], x.shape)
    return xp.where(_hit(x.shape, lows, cuts), spread, x)


def _put_in_place(xp: Any, x: Any, values: Any, *starts: Any, cuts: Cuts) -> Any:
    if values.size == 0 or not starts:
        return _put_slice(xp, x, values, cuts=cuts)
    values = _spread(values, cuts)
    if _has_steps(cuts):
        values = xp.where(_hit(values.shape, [0] * x.ndim, cuts), values, _window(x, starts, cuts))
    return lax.dynamic_update_slice(x, values, _lows(x.shape, starts, cuts))


def _has_steps(cuts: Cuts) -> bool:
    return any(abs(cut.step) > 1 for cut in cuts)


def _hit(shape: tuple[int, ...], lows: Sequence[Any], cuts: Cuts) -> Any:
    """Which elements a piece replaces that begins at `lows`."""
    hit: Any = True
    for axis, (cut, n, low) in enumerate(zip(cuts, shape, lows, strict=True)):
        if cut.span < n or abs(cut.step) > 1:
            at = lax.broadcasted_iota(int32, shape, axis) - low
            hit = hit & (at >= 0) & (at < cut.span) & (at % abs(cut.step) == 0)
    return hit


# --- NumPy: the same by its own slicing


def _key(shape: tuple[int, ...], starts: Sequence[Any], cuts: Cuts) -> tuple[Any, ...]:
    left = iter(starts)
    key: list[Any] = []
    for cut, n in zip(cuts, shape, strict=True):
        low = int(next(left)) if moves(cut, n) else 0
        low = min(max(low + n if low < 0 else low, 0), n - cut.span)  # as XLA does where nobody checked
        if not cut.keep:
            key.append(low)
        elif cut.step > 0:
            key.append(slice(low, low + cut.span, cut.step))
        else:
            key.append(slice(low + cut.span - 1, low - 1 if low else None, cut.step))
    return tuple(key)


def _slice_numpy(xp: Any, x: Any, *starts: Any, cuts: Cuts) -> Any:
    return x[_key(x.shape, starts, cuts)]


def _unslice_numpy(xp: Any, x: Any, *starts: Any, shape: tuple[int, ...], cuts: Cuts) -> Any:
    return _put_slice_numpy(xp, np.zeros(shape, x.dtype), x, *starts, cuts=cuts)


def _put_slice_numpy(xp: Any, x: Any, values: Any, *starts: Any, cuts: Cuts) -> Any:
    out = np.array(x)  # a copy; a row of a batch may be a NumPy scalar
    out[_key(x.shape, starts, cuts)] = values
    return out


# --- the ops


def _rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    """All rows at once, if their pieces start at one place."""
    n = len(op.inputs) - 1  # before the starts
    if any(mapped[n:]):
        return NotImplemented
    rows = [x if m else broadcast(x, (size, *x._shape)) for x, m in zip(inputs[:n], mapped, strict=False)]
    *shape, cuts = params
    return bind(op, (*rows, *inputs[n:]), (*[(size, *s) for s in shape], (Cut(size), *cuts)))


def _samples(rng: np.random.Generator) -> list[tuple[tuple[Any, ...], tuple[int, ...], Cuts]]:
    """A tensor and starts, the tensor's shape, and the cuts."""

    def case(shape: tuple[int, ...], starts: Sequence[int], *cuts: Cut) -> Any:
        return (rng.uniform(-2, 2, shape), *map(np.int32, starts)), shape, cuts

    return [
        case((4, 3), [2], Cut(1, keep=False), Cut(3)),
        case((4, 5), [1, 0], Cut(2), Cut(2, 3)),
        case((5, 2), [], Cut(3, -2), Cut(2, -1)),
        case((6, 3), [1, 2], Cut(2, -3), Cut(1, keep=False)),
        case((3, 2), [], Cut(0), Cut(2)),
        case((0, 2), [1], Cut(0), Cut(1)),
        case((), []),
    ]


slice_op: Op = linear(
    "slice",
    _slice,
    lambda g, x_shape, starts, cuts: bind(unslice_op, (g, *starts), (x_shape, cuts)),
    None,
    numpy_impl=_slice_numpy,
    batch=_rows,
    samples=Samples(make=lambda rng: [(inputs, {"cuts": cuts}) for inputs, _, cuts in _samples(rng)]),
    doc="A rectangular piece of x.",
)
unslice_op: Op = linear(
    "unslice",
    _unslice,
    lambda g, starts, cuts: bind(slice_op, (g, *starts), (cuts,)),
    None,
    numpy_impl=_unslice_numpy,
    batch=_rows,
    samples=Samples(
        make=lambda rng: [
            ((rng.uniform(-2, 2, piece_shape(cuts)), *starts), {"shape": shape, "cuts": cuts})
            for (_, *starts), shape, cuts in _samples(rng)
        ]
    ),
    doc="Zeros with x as a rectangular piece.",
)


def _put_op(name: str, impl: Callable[..., Any], doc: str) -> Op:
    return linear(
        name,
        impl,
        lambda g, values_shape, starts, cuts: bind(
            put_slice_op, (g, zeros(Type(values_shape, g.dtype), g), *starts), (cuts,)
        ),
        lambda g, starts, cuts: bind(slice_op, (g, *starts), (cuts,)),
        None,
        numpy_impl=_put_slice_numpy,
        batch=_rows,
        guards=True,
        samples=Samples(
            make=lambda rng: [
                ((x, rng.uniform(-2, 2, piece_shape(cuts)), *starts), {"cuts": cuts})
                for (x, *starts), _, cuts in _samples(rng)
            ]
        ),
        doc=doc,
    )


put_slice_op: Op = _put_op("put_slice", _put_slice, "x with a rectangular piece replaced.")
put_slice_op.in_place = _put_op(
    "put_slice_in_place", _put_in_place, "put_slice in the memory of x, where XLA may do so."
)
