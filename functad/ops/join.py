"""Joining, cutting, repeating and padding."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, AxisError, DTypeError, ShapeError
from functad.keywords import explained
from functad.ops.axes import counted, normalize_axis, several
from functad.ops.border import MODES, extend_op
from functad.ops.op import Op, Residuals
from functad.ops.operand import JOIN, holds_tensors, operand, operands
from functad.ops.rules import broadcast, custom, linear, masked_mul, shift_axis
from functad.ops.scatter import gather_op
from functad.ops.shape import atleast_1d, atleast_2d, atleast_3d, fixed, on_rows, ravel, reshape, unchanged
from functad.ops.slices import Cut, moves, position_dtype, slice_op

__all__ = [
    "array_split", "column_stack", "concatenate", "dstack", "hstack", "pad", "repeat", "split", "stack", "tile",
    "unstack", "vstack",
]  # fmt: skip


def _part(g: Any, start: int, size: int, axis: int, keep: bool = True) -> Any:
    """The entries `start` to `start + size` of an axis; one compiled call serves every start."""
    cuts = tuple([Cut(size, 1, keep) if i == axis else Cut(n) for i, n in enumerate(g._shape)])
    starts = [operand(start, g, position_dtype(g._shape[axis]))] if moves(cuts[axis], g._shape[axis]) else []
    return bind(slice_op, (g, *starts), (cuts,))


def _unstack(xp: Any, x: Any, *, axis: int) -> Any:
    return tuple(xp.squeeze(part, axis) for part in xp.split(x, x.shape[axis], axis))


def _crop(xp: Any, x: Any, *, widths: tuple[tuple[int, int], ...]) -> Any:
    return x[tuple(slice(low, n - high) for n, (low, high) in zip(x.shape, widths, strict=True))]


concatenate_op = linear(
    "concatenate", lambda xp, *xs, axis, bounds: xp.concatenate(xs, axis),
    lambda g, i, axis, bounds: _part(g, bounds[i], bounds[i + 1] - bounds[i], axis),
    samples=fixed(
        (((2, 3), (1, 3)), {"axis": 0, "bounds": (0, 2, 3)}),
        (((2, 3), (2, 0), (2, 2)), {"axis": 1, "bounds": (0, 3, 3, 5)}),
        (((2,),), {"axis": 0, "bounds": (0, 2)}),
    ),
    batch=on_rows(lambda size, axis, bounds: (axis + 1, bounds)),
    doc="Joined along an axis; input i fills `bounds[i]` to `bounds[i + 1]`.",
)  # fmt: skip
stack_op = linear(
    "stack", lambda xp, *xs, axis: xp.stack(xs, axis), lambda g, i, axis: _part(g, i, 1, axis, keep=False),
    samples=fixed((((2, 3), (2, 3)), {"axis": 1}), (((), (), ()), {"axis": 0}), (((0, 2),), {"axis": 2})),
    batch=on_rows(lambda size, axis: (axis + 1,)), doc="Joined along a new axis.",
)  # fmt: skip
split_op = linear(
    "split", lambda xp, x, *, axis, bounds: tuple(xp.split(x, bounds[1:-1], axis)),
    lambda g, axis, bounds: bind(concatenate_op, g, (axis, bounds)),
    samples=fixed(
        (((3, 2),), {"axis": 0, "bounds": (0, 2, 3)}), (((2, 4),), {"axis": 1, "bounds": (0, 0, 3, 4)}),
    ),
    batch=shift_axis, doc="Cut along an axis at `bounds[1:-1]`.",
)  # fmt: skip
unstack_op = linear(
    "unstack", _unstack, lambda g, axis: bind(stack_op, g, (axis,)),
    samples=fixed((((3, 2),), {"axis": 0}), (((2, 1, 3),), {"axis": 2})),
    batch=shift_axis, doc="The slices of an axis.",
)  # fmt: skip
pad_op: Op = custom(
    "pad", lambda xp, x, *, widths, value: xp.pad(x, widths, constant_values=value),
    jvp=lambda t, widths: bind(pad_op, (t,), (widths, 0)),
    vjp=lambda g, widths: bind(crop_op, (g,), (widths,)),
    samples=fixed(
        (((2, 3),), {"widths": ((1, 0), (0, 2)), "value": 0}), (((2,),), {"widths": ((1, 1),), "value": 1.5}),
        (((0, 2),), {"widths": ((1, 0), (0, 0)), "value": 0}),
    ),
    batch=on_rows(lambda size, widths, value: (((0, 0), *widths), value)), doc="With a constant border.",
)  # fmt: skip
crop_op: Op = linear(
    "crop", _crop, lambda g, widths: bind(pad_op, (g,), (widths, 0)),
    samples=fixed((((4, 3),), {"widths": ((1, 0), (0, 2))}), (((3,),), {"widths": ((1, 2),)})),
    batch=on_rows(lambda size, widths: (((0, 0), *widths),)), doc="Without a border.",
)  # fmt: skip


def _pull_all(op: Op, cut: Op) -> Any:
    """The pull of a joining op: one cut gives every cotangent, where more than one is wanted."""

    def pull(g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        if sum(map(bool, wanted)) < 2:
            return Op.pull(op, g, res, wanted)
        pieces = bind(cut, (g,), res.params)
        return [piece if want else None for piece, want in zip(pieces, wanted, strict=True)]

    return pull


concatenate_op.pull = _pull_all(concatenate_op, split_op)  # type: ignore[method-assign]  # one pull for all inputs together
stack_op.pull = _pull_all(stack_op, unstack_op)  # type: ignore[method-assign]  # one pull for all inputs together


@explained
def concatenate(xs: Any, axis: int | None = 0) -> Any:
    """Tensors joined along an axis, in their common dtype; flattened first if `axis` is None.

    Raises `ShapeError` naming the first input whose shape does not fit.

    >>> import functad as fd
    >>> fd.ops.concatenate([[1.0, 2.0], fd.ones(1)]).tolist()
    [1.0, 2.0, 1.0]
    """
    tensors = _several(xs, "concatenate")
    if axis is None:
        tensors, axis = [ravel(x) for x in tensors], 0
    first = tensors[0]._shape
    if not first:
        raise ShapeError("concatenate: input 0 is 0-d and has no axis to join along; use stack(xs) for 0-d tensors.")
    axis = normalize_axis(axis, len(first), "concatenate")
    rest = first[:axis] + first[axis + 1 :]
    bounds = [0]
    for i, x in enumerate(tensors):
        shape = x._shape
        if len(shape) != len(first) or shape[:axis] + shape[axis + 1 :] != rest:
            raise ShapeError(
                f"concatenate: input {i} has shape {shape}, input 0 has {first}; all lengths but that of axis {axis} "
                "must be equal."
            )
        bounds.append(bounds[-1] + shape[axis])
    return bind(concatenate_op, tensors, (axis, tuple(bounds)))


@explained
def stack(xs: Any, axis: int = 0) -> Any:
    """Tensors of one shape joined along a new axis, in their common dtype.

    >>> import functad as fd
    >>> fd.ops.stack([fd.ones(3), fd.zeros(3)], axis=1).shape
    (3, 2)
    """
    tensors = _several(xs, "stack")
    first = tensors[0]._shape
    for i, x in enumerate(tensors):
        if x._shape != first:
            raise ShapeError(
                f"stack: input {i} has shape {x._shape}, input 0 has {first}, and all must be equal; use "
                "concatenate(xs, axis) to join along an axis they have."
            )
    return bind(stack_op, tensors, (normalize_axis(axis, len(first) + 1, "stack"),))


def vstack(xs: Any) -> Any:
    """Joined row by row: along axis 0, vectors as rows.

    >>> import functad as fd
    >>> fd.ops.vstack([fd.ones(3), fd.ones((2, 3))]).shape
    (3, 3)
    """
    return concatenate([atleast_2d(x) for x in _several(xs, "vstack")])


def hstack(xs: Any) -> Any:
    """Joined column by column: along axis 1, vectors end to end.

    >>> import functad as fd
    >>> fd.ops.hstack([fd.ones((2, 1)), fd.ones((2, 3))]).shape
    (2, 4)
    """
    tensors = [atleast_1d(x) for x in _several(xs, "hstack")]
    return concatenate(tensors, 0 if tensors[0].ndim == 1 else 1)


def dstack(xs: Any) -> Any:
    """Joined along axis 2, after giving each at least three axes.

    >>> import functad as fd
    >>> fd.ops.dstack([fd.ones((2, 3)), fd.ones((2, 3))]).shape
    (2, 3, 2)
    """
    return concatenate([atleast_3d(x) for x in _several(xs, "dstack")], 2)


def column_stack(xs: Any) -> Any:
    """Joined along axis 1, vectors as columns.

    >>> import functad as fd
    >>> fd.ops.column_stack([fd.ones(2), fd.zeros(2)]).tolist()
    [[1.0, 0.0], [1.0, 0.0]]
    """
    return concatenate([x if x.ndim > 1 else reshape(x, (-1, 1)) for x in _several(xs, "column_stack")], 1)


def split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """Cut along an axis into so many equal parts, or at the indices of a sequence.

    Raises `ShapeError` if the axis does not divide; `array_split` makes unequal parts.

    >>> import functad as fd
    >>> [part.tolist() for part in fd.ops.split(fd.arange(4), [1, 3])]
    [[0], [1, 2], [3]]
    """
    x = operand(x, where="split")
    axis = normalize_axis(axis, x.ndim, "split")
    length = x.shape[axis]
    if not hasattr(indices_or_sections, "__len__") or isinstance(indices_or_sections, str):
        sections = _count(indices_or_sections, "split", length or 0)
        if length % sections:
            raise ShapeError(
                f"split: axis {axis} of shape {x.shape} has length {length}, which {sections} equal parts do not "
                "divide; use array_split for unequal parts, or pass the indices to cut at."
            )
        return _cut(x, range(0, length + 1, length // sections) if length else [0] * (sections + 1), axis)
    return _cut(x, [0, *[counted(i, "split", "an index") for i in indices_or_sections], length], axis)


def array_split(x: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """`split` that lets the first parts be one longer where the axis does not divide.

    >>> import functad as fd
    >>> [part.tolist() for part in fd.ops.array_split(fd.arange(5), 2)]
    [[0, 1, 2], [3, 4]]
    """
    x = operand(x, where="array_split")
    if hasattr(indices_or_sections, "__len__") and not isinstance(indices_or_sections, str):
        return split(x, indices_or_sections, axis)
    axis = normalize_axis(axis, x.ndim, "array_split")
    each, more = divmod(x.shape[axis], sections := _count(indices_or_sections, "array_split", x.shape[axis]))
    return _cut(x, [each * i + min(i, more) for i in range(sections + 1)], axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The slices of an axis, which they do not have.

    >>> import functad as fd
    >>> [row.tolist() for row in fd.ops.unstack([[1, 2], [3, 4]], axis=1)]
    [[1, 3], [2, 4]]
    """
    x = operand(x, where="unstack")
    axis = normalize_axis(axis, x.ndim, "unstack")
    return tuple(bind(unstack_op, (x,), (axis,))) if x.shape[axis] else ()


def tile(x: Any, reps: Any) -> Any:
    """The whole tensor repeated so many times along each axis.

    Fewer `reps` than axes count from the last axis on, more add axes in front.

    >>> import functad as fd
    >>> fd.ops.tile([1, 2], 2).tolist()
    [1, 2, 1, 2]
    """
    x = operand(x, where="tile")
    times = [counted(r, "tile", "reps") for r in several(reps)]
    if min(times, default=0) < 0:
        raise ArgumentError(f"tile: reps must not be negative, got {reps!r}.")
    ndim = max(len(times), x.ndim)
    times = [1] * (ndim - len(times)) + times
    lengths = [1] * (ndim - x.ndim) + list(x.shape)
    return _repeated(x, times, lengths, outer=True)


def repeat(x: Any, repeats: Any, axis: int | None = None) -> Any:
    """Each entry of an axis repeated; without an axis, of the flattened tensor.

    Args:
        x: the tensor.
        repeats: how often, an int or one per entry (concrete: they decide the shape).
        axis: the axis.

    >>> import functad as fd
    >>> fd.ops.repeat([1, 2], 2).tolist()
    [1, 1, 2, 2]
    """
    x = operand(x, where="repeat")
    if axis is None:
        x, axis = ravel(x), 0
    if isinstance(repeats, int) and isinstance(axis, int) and axis >= x.ndim:
        raise AxisError(
            f"repeat: axis {axis} is out of range for a tensor with {x.ndim} axes; the arguments are (repeats, axis). For all "
            f"of it {repeats} and {axis} times along its axes write x.tile(({repeats}, {axis}))."
        )
    axis = normalize_axis(axis, x.ndim, "repeat")
    counts = np.asarray(repeats)
    length = x.shape[axis]
    if counts.dtype.kind not in "iub" or (counts.size and counts.min() < 0):
        raise ArgumentError(f"repeat: repeats must be ints that are not negative, got {repeats!r}.")
    if counts.ndim > 1 or counts.size not in (1, length):
        raise ShapeError(
            f"repeat: repeats has shape {counts.shape}, but axis {axis} of shape {x.shape} has {length} entries; pass "
            "one int, or one per entry."
        )
    if counts.size == 1:
        times = [1] * x.ndim
        times[axis] = int(counts.reshape(()))
        return _repeated(x, times, list(x.shape), outer=False)
    return _gathered(x, np.repeat(np.arange(length), counts), axis)


def pad(x: Any, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Any:
    """With a border along each axis.

    Args:
        x: the tensor.
        pad_width: an int, a pair (before, after) for every axis, one pair per axis, or a dict of ints or pairs by axis.
        mode: "constant", "edge", "reflect", "symmetric" or "wrap", as in NumPy.
        constant_values: what a constant border holds, in the same forms as `pad_width`; a tensor
            (0-d) is differentiated too.

    >>> import functad as fd
    >>> fd.ops.pad([1, 2], (1, 2)).tolist()
    [0, 1, 2, 0, 0]
    """
    x = operand(x, where="pad")
    widths = pairs(pad_width, x.ndim, "pad_width")
    if any(type(w) is not int or w < 0 for pair in widths for w in pair):
        raise ArgumentError(f"pad: pad_width must hold ints that are not negative, got {pad_width!r}.")
    if all(pair == (0, 0) for pair in widths):
        return unchanged(x)
    if mode != "constant":
        return _extended(x, widths, mode)
    if isinstance(constant_values, Handle):
        return _padded_by_tensor(x, widths, constant_values)
    values = pairs(constant_values, x.ndim, "constant_values")
    values = tuple([tuple([_border(v, x.dtype) for v in pair]) for pair in values])
    if len(distinct := {v for pair in values for v in pair}) == 1:
        return bind(pad_op, (x,), (widths, distinct.pop()))
    for axis in range(x.ndim):  # one side after the other, the later over the corners of the earlier
        for side in range(2):
            if widths[axis][side]:
                one = [(0, 0)] * x.ndim
                one[axis] = (widths[axis][0], 0) if side == 0 else (0, widths[axis][1])
                x = bind(pad_op, (x,), (tuple(one), values[axis][side]))
    return x


def joined(xs: Any) -> Any:
    """Nested lists with tensors in them as one tensor, in their common dtype; gradients flow to each."""

    def leaves(x: Any) -> Any:
        return [leaf for y in x for leaf in leaves(y)] if isinstance(x, (list, tuple)) else [x]

    parts = iter(operands("asarray", "numeric", leaves(xs)))

    def join(x: Any) -> Any:
        return stack([join(y) for y in x]) if isinstance(x, (list, tuple)) else next(parts)

    return join(xs)


JOIN.append(joined)


def _several(xs: Any, where: str) -> list[Any]:
    if isinstance(xs, Handle) or (hasattr(xs, "ndim") and xs.ndim):
        xs = unstack(xs)
    if not isinstance(xs, (list, tuple)):
        raise ArgumentTypeError(f"{where}: takes a sequence of tensors, got {xs!r}; write {where}([x, y]).")
    if not xs:
        raise ShapeError(f"{where}: needs at least one tensor, got an empty sequence.")
    xs = [joined(x) if isinstance(x, (list, tuple)) and holds_tensors(x) else x for x in xs]
    return list(operands(where, "numeric", xs))


_MOST_EMPTY = 1 << 16
"""Parts of an axis that is shorter."""


def _count(sections: Any, where: str, length: int) -> int:
    if not hasattr(sections, "__index__"):
        raise ArgumentTypeError(f"{where}: takes a number of parts or the indices to cut at, got {sections!r}.")
    count = operator.index(sections)
    if count < 1:
        raise ArgumentError(f"{where}: the number of parts must be at least 1, got {count}.")
    if count > max(length, _MOST_EMPTY):
        raise ShapeError(f"{where}: {count} parts of an axis of length {length} are nearly all empty; cut fewer.")
    return count


def _cut(x: Any, bounds: Any, axis: int) -> list[Any]:
    """The parts between `bounds`, which are slices as Python reads them: they may be negative or overlap."""
    spans = [slice(a, b).indices(x.shape[axis])[:2] for a, b in pairwise(bounds)]
    spans = [(a, max(a, b)) for a, b in spans]
    ends = (0, *[b for _, b in spans])
    if ends[-1] == x.shape[axis] and all(a == end for (a, _), end in zip(spans, ends, strict=False)):
        return list(bind(split_op, (x,), (axis, ends)))
    return [_part(x, a, b - a, axis) for a, b in spans]


def _repeated(x: Any, times: list[int], lengths: list[int], outer: bool) -> Any:
    """Repeat axes by broadcasting over a new axis before each (the whole) or after it (each entry)."""
    split_shape: list[int] = []
    wide: list[int] = []
    for r, n in zip(times, lengths, strict=True):
        if r == 1:
            split_shape, wide = [*split_shape, n], [*wide, n]
        else:
            split_shape += [1, n] if outer else [n, 1]
            wide += [r, n] if outer else [n, r]
    out = broadcast(reshape(x, split_shape), tuple(wide))
    return reshape(out, [r * n for r, n in zip(times, lengths, strict=True)])


def pairs(given: Any, ndim: int, what: str) -> tuple[tuple[Any, Any], ...]:
    """One pair per axis, from the forms NumPy takes."""
    if isinstance(given, dict) and what == "pad_width":
        return _by_axis(given, ndim)
    array = np.asarray(given)
    try:
        return tuple([tuple(pair) for pair in np.broadcast_to(array, (ndim, 2)).tolist()])
    except ValueError:
        raise ShapeError(
            f"pad: {what} has shape {array.shape}; pass one number, a pair (before, after), or one pair for each of "
            f"the {ndim} axes."
        ) from None


def _by_axis(given: dict[Any, Any], ndim: int) -> tuple[tuple[Any, Any], ...]:
    """The widths of the axes that are named, and 0 along the others."""
    widths: list[tuple[Any, Any]] = [(0, 0)] * ndim
    for axis, width in given.items():
        place = normalize_axis(axis, ndim, "pad")
        if axis != place and place in given:
            raise ArgumentError(f"pad: pad_width names axis {place} twice, as {place} and as {axis}.")
        widths[place] = pairs(width, 1, f"pad_width[{axis}]")[0]
    return tuple(widths)


def _border(value: Any, dtype: dtypes.DType) -> Any:
    if isinstance(value, complex) and dtype.kind != "c":
        raise DTypeError(f"pad: the border {value} is complex, the tensor {dtype}; write x.astype('complex64') first.")
    if not dtypes.is_inexact(dtype) and not math.isfinite(value):
        raise DTypeError(f"pad: the border {value} does not fit {dtype}; write x.astype(float) first.")
    return math.nan if value != value else value  # one NaN, so that the compiled call is found again


def _padded_by_tensor(x: Any, widths: Any, value: Any) -> Any:
    if value.ndim:
        raise ShapeError(
            f"pad: constant_values as a tensor must be 0-d, got shape {value.shape}; pass a sequence of numbers."
        )
    inside = operand(np.zeros(x.shape), x, dtypes.float32)
    border = bind(pad_op, (inside,), (widths, 1)).astype(x.dtype)
    return bind(pad_op, (x,), (widths, 0)) + masked_mul(border, value.astype(x.dtype))


def _gathered(x: Any, index: Any, axis: int) -> Any:
    """The entries of an axis at the positions in a NumPy array, which are known to be there."""
    positions = operand(index, x, position_dtype(x._shape[axis]))
    return bind(gather_op, (x, positions), ((axis,), axis, False))


def _extended(x: Any, widths: Any, mode: str) -> Any:
    if mode not in MODES:
        raise ArgumentError(f"pad: mode={mode!r} is not one of 'constant', 'edge', 'reflect', 'symmetric' and 'wrap'.")
    for axis, pair in enumerate(widths):
        if pair != (0, 0) and not x.shape[axis]:
            raise ShapeError(f"pad: mode={mode!r} cannot extend axis {axis} of shape {x.shape}, which is empty.")
    return bind(extend_op, (x,), (widths, mode))
