"""Shapes: the same elements arranged otherwise; and the change of dtype."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import Handle, base_backend, bind
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.ops.axes import counted, normalize_axes, normalize_axis, several
from functad.ops.op import Op, Samples
from functad.ops.operand import operand, without_value
from functad.ops.rules import broadcast, broadcast_to_op, cast_op, linear, reshape_op, shift_axis
from functad.ops.slices import position_dtype

__all__ = [
    "astype", "atleast_1d", "atleast_2d", "atleast_3d", "broadcast_arrays", "broadcast_shapes", "broadcast_to", "copy",
    "expand_dims", "flip", "fliplr", "flipud", "matrix_transpose", "moveaxis", "permute",
    "permute_dims", "ravel", "reshape", "roll", "rot90", "squeeze", "swapaxes", "transpose",
]  # fmt: skip


def on_rows(shifted: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """The `batch` rule of an op that runs on all rows at once with the parameters `shifted(size, *params)`."""

    def batch(op: Any, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
        rows = [x if m else broadcast(x, (size, *x._shape)) for x, m in zip(inputs, mapped, strict=True)]
        return bind(op, rows, shifted(size, *params))

    return batch


def fixed(*cases: tuple[Sequence[tuple[int, ...]], dict[str, Any]]) -> Samples:
    """Samples for an op whose parameters speak of lengths, so that no other shapes may be tried with them."""
    return Samples(make=lambda rng: [(tuple([rng.uniform(-2, 2, s) for s in shapes]), p) for shapes, p in cases])


def _transpose_back(g: Any, axes: tuple[int, ...]) -> Any:
    return bind(transpose_op, (g,), (tuple(np.argsort(axes).tolist()),))


transpose_op = linear(
    "transpose", lambda xp, x, *, axes: xp.transpose(x, axes), _transpose_back,
    samples=Samples([(((3, 2),), {"axes": (1, 0)}), (((2, 0, 4),), {"axes": (1, 2, 0)}), (((),), {"axes": ()})]),
    batch=on_rows(lambda size, axes: ((0, *[a + 1 for a in axes]),)), doc="The axes in another order.",
)  # fmt: skip
flip_op: Op = linear(
    "flip", lambda xp, x, *, axis: xp.flip(x, axis), lambda g, axis: bind(flip_op, (g,), (axis,)),
    samples=Samples([(((3, 2),), {"axis": (0,)}), (((2, 1, 3),), {"axis": (0, 2)}), (((0,),), {"axis": (0,)})]),
    batch=shift_axis, doc="In reverse order along axes.",
)  # fmt: skip


def _roll(xp: Any, x: Any, *shifts: Any, axis: tuple[int, ...], back: bool) -> Any:
    for shift, a in zip(shifts, axis, strict=True):
        shift = -shift if back else shift  # here, where a number is one to the compiler
        x = x if not x.size else xp.roll(x, int(shift) if xp is np else shift, a)
    return x


def _roll_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    return NotImplemented if any(mapped[1:]) else bind(op, inputs, (tuple([a + 1 for a in params[0]]), params[1]))


def _roll_samples(rng: np.random.Generator) -> Any:
    return [
        ((rng.uniform(-2, 2, shape), *map(np.int32, shifts)), {"axis": axis, "back": len(shifts) > 1})
        for shape, shifts, axis in (((3, 2), (1,), (0,)), ((3, 4), (-2, 5), (0, 1)), ((0, 2), (1,), (0,)))
    ]


roll_op: Op = linear(
    "roll", _roll, lambda g, shifts, axis, back: bind(roll_op, (g, *shifts), (axis, not back)), None,
    samples=Samples(make=_roll_samples), batch=_roll_rows, doc="Shifted cyclically along axes.",
)  # fmt: skip


def unchanged(x: Any) -> Any:
    """`x` as the result of a function with nothing to do; never a leaf, which no op's output is."""
    return bind(cast_op, (x,), (x._dtype,)) if x.is_require_grad else x


def reshape(x: Any, shape: Any, order: str = "C") -> Any:
    """The same elements in another shape, row by row ("C") or column by column ("F"); one length may be -1.

    Raises `ShapeError` if the sizes differ.

    >>> import functad as fd
    >>> fd.ops.reshape(fd.arange(6), (2, -1)).shape
    (2, 3)
    """
    x = operand(x, where="reshape")
    target = _sizes(shape, "reshape")
    if order != "C" and _by_columns(order, "reshape"):
        return transpose(reshape(transpose(x), target[::-1]))
    unknown = [i for i, n in enumerate(target) if n < 0]
    if unknown:
        known = _size(n for n in target if n >= 0)
        if len(unknown) > 1 or target[unknown[0]] != -1 or not known or x.size % known:
            why = "one length may be -1, and no other may be negative"
            if len(unknown) == 1 and target[unknown[0]] == -1:
                why = f"its {x.size} elements do not determine the length that is -1"
            raise ShapeError(f"reshape: a tensor of shape {x.shape} cannot take the shape {target}: {why}.")
        target = (*target[: unknown[0]], x.size // known, *target[unknown[0] + 1 :])
    if _size(target) != x.size:
        raise ShapeError(
            f"reshape: a tensor of shape {x.shape} has {x.size} elements, the shape {target} takes {_size(target)}; "
            "write -1 for one length to have it worked out."
        )
    return unchanged(x) if target == x._shape else bind(reshape_op, (x,), (target,))


def reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    """`reshape` within a function: nothing to check, and no op where there is nothing to do."""
    return x if x._shape == shape else bind(reshape_op, (x,), (shape,))


def ravel(x: Any, order: str = "C") -> Any:
    """The elements in one axis, row by row ("C") or column by column ("F").

    >>> import functad as fd
    >>> fd.ops.ravel(fd.ones((2, 3))).shape
    (6,)
    """
    return reshape(transpose(x) if order != "C" and _by_columns(order, "ravel") else x, -1)


def _by_columns(order: Any, where: str) -> bool:
    if not isinstance(order, str) or order not in ("C", "F", "A", "K"):
        more = (
            ""
            if isinstance(order, str)
            else "; to keep the first axis write x.reshape(x.shape[0], -1), or the layer nn.Flatten()"
        )
        raise ArgumentError(f"{where}: order must be 'C' or 'F', got {order!r}{more}.")
    return order == "F"


def transpose(x: Any, axes: Any = None) -> Any:
    """The axes in the order `axes`, reversed by default.

    Raises `ShapeError` unless `axes` names every axis once.

    >>> import functad as fd
    >>> fd.ops.transpose(fd.ones((2, 3, 4)), (1, 0, 2)).shape
    (3, 2, 4)
    """
    x = operand(x, where="transpose")
    ndim = x.ndim
    if axes is None:
        order = tuple(range(ndim - 1, -1, -1))
    else:
        given = several(axes)
        order = tuple([normalize_axis(a, ndim, "transpose") for a in given])
        if len(order) != ndim or len(set(order)) != ndim:
            swap = (
                f"; to swap two axes write x.swapaxes{given}"
                if len(order) == 2
                else "; to transpose matrices write x.mT"
            )
            raise ShapeError(
                f"transpose: axes={axes!r} must name each of the {ndim} axes of shape {x.shape} once, in their new order"
                f"{swap if ndim > 1 else ''}."
            )
    return unchanged(x) if order == tuple(range(ndim)) else bind(transpose_op, (x,), (order,))


permute = permute_dims = transpose


def matrix_transpose(x: Any) -> Any:
    """The last two axes swapped; raises `ShapeError` below two axes.

    >>> import functad as fd
    >>> fd.ops.matrix_transpose(fd.ones((5, 2, 3))).shape
    (5, 3, 2)
    """
    x = at_least(operand(x, where="matrix_transpose"), 2, "matrix_transpose")
    return swapaxes(x, -1, -2)


def swapaxes(x: Any, axis1: int, axis2: int) -> Any:
    """Two axes swapped.

    >>> import functad as fd
    >>> fd.ops.swapaxes(fd.ones((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = operand(x, where="swapaxes")
    i, j = normalize_axis(axis1, x.ndim, "swapaxes"), normalize_axis(axis2, x.ndim, "swapaxes")
    order = list(range(x.ndim))
    order[i], order[j] = j, i
    return transpose(x, order)


def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """The axes `source` moved to the places `destination`, the others in their order.

    >>> import functad as fd
    >>> fd.ops.moveaxis(fd.ones((2, 3, 4)), 0, -1).shape
    (3, 4, 2)
    """
    x = operand(x, where="moveaxis")
    sources, targets = (
        [normalize_axis(a, x.ndim, "moveaxis") for a in several(given)] for given in (source, destination)
    )
    if len(sources) != len(targets) or len(set(sources)) != len(sources) or len(set(targets)) != len(targets):
        raise ShapeError(
            f"moveaxis: source={source!r} and destination={destination!r} must name as many axes, each once."
        )
    order = [a for a in range(x.ndim) if a not in sources]
    for target, a in sorted(zip(targets, sources, strict=True)):
        order.insert(target, a)
    return transpose(x, order)


def squeeze(x: Any, axis: Any = None) -> Any:
    """Without the axes of length 1, or without those named; raises `ShapeError` if one is longer.

    >>> import functad as fd
    >>> fd.ops.squeeze(fd.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    x = operand(x, where="squeeze")
    if axis is None:
        return reshape(x, [n for n in x.shape if n != 1])
    axes = normalize_axes(axis, x.ndim, "squeeze")
    for a in axes:
        if x.shape[a] != 1:
            raise ShapeError(
                f"squeeze: axis {a} of shape {x.shape} has length {x.shape[a]}, and only axes of length 1 can go; "
                f"select one entry of it with an index, or sum it."
            )
    return reshape(x, [n for i, n in enumerate(x.shape) if i not in axes])


def expand_dims(x: Any, axis: Any) -> Any:
    """With new axes of length 1 at the places `axis` (an int or several) of the result.

    >>> import functad as fd
    >>> fd.ops.expand_dims(fd.ones((2, 3)), (0, -1)).shape
    (1, 2, 3, 1)
    """
    x = operand(x, where="expand_dims")
    given = tuple(several(axis))
    axes = normalize_axes(given, x.ndim + len(given), "expand_dims")
    lengths = iter(x.shape)
    return reshape(x, [1 if i in axes else next(lengths) for i in range(x.ndim + len(axes))])


def broadcast_to(x: Any, shape: Any) -> Any:
    """`x` repeated along axes of length 1 and new leading axes, to a larger shape.

    >>> import functad as fd
    >>> fd.ops.broadcast_to(fd.ones((2, 1)), (3, 2, 4)).shape
    (3, 2, 4)
    """
    x = operand(x, where="broadcast_to")
    target = _sizes(shape, "broadcast_to")
    lead = len(target) - x.ndim
    if lead < 0 or min(target, default=0) < 0 or any(n not in (1, target[lead + i]) for i, n in enumerate(x.shape)):
        raise ShapeError(
            f"broadcast_to: shape {x.shape} does not broadcast to {target}: from the last axis backwards, each length "
            "must be 1 or the one wanted. Insert axes of length 1 with x.expand_dims(axis) where they are missing."
        )
    return unchanged(x) if target == x._shape else bind(broadcast_to_op, (x,), (target,))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The common shape that `shapes` broadcast to.

    >>> import functad as fd
    >>> fd.ops.broadcast_shapes((2, 1), (3,))
    (2, 3)
    """
    sizes = [_sizes(s, "broadcast_shapes") for s in shapes]
    try:
        return np.broadcast_shapes(*sizes)
    except ValueError:
        listed = " and ".join(map(str, sizes))
        raise ShapeError(
            f"broadcast_shapes: {listed} do not broadcast: from the last axis backwards, lengths must be equal or 1."
        ) from None


def broadcast_arrays(*xs: Any) -> tuple[Any, ...]:
    """All tensors broadcast to their common shape.

    >>> import functad as fd
    >>> [x.shape for x in fd.ops.broadcast_arrays(fd.ones((2, 1)), 1.0)]
    [(2, 1), (2, 1)]
    """
    like = next((x for x in xs if hasattr(x, "_backend")), None)
    tensors = [operand(x, like, where="broadcast_arrays") for x in xs]
    shape = broadcast_shapes(*[x.shape for x in tensors])
    return tuple([broadcast_to(x, shape) for x in tensors])


def atleast_1d(*xs: Any) -> Any:
    """With at least one axis; several tensors give a tuple.

    >>> import functad as fd
    >>> fd.ops.atleast_1d(2.0).shape
    (1,)
    """
    return _each(xs, "atleast_1d", lambda x: unchanged(x) if x.ndim else reshape(x, (1,)))


def atleast_2d(*xs: Any) -> Any:
    """With at least two axes, new ones in front; several tensors give a tuple.

    >>> import functad as fd
    >>> fd.ops.atleast_2d(fd.ones(3)).shape
    (1, 3)
    """
    return _each(xs, "atleast_2d", lambda x: unchanged(x) if x.ndim > 1 else reshape(x, (1, x.size)))


def atleast_3d(*xs: Any) -> Any:
    """With at least three axes: (n,) becomes (1, n, 1) and (m, n) becomes (m, n, 1).

    >>> import functad as fd
    >>> fd.ops.atleast_3d(fd.ones(3)).shape
    (1, 3, 1)
    """
    return _each(
        xs, "atleast_3d", lambda x: unchanged(x) if x.ndim > 2 else expand_dims(x, ((0, 1, 2), (0, 2), 2)[x.ndim])
    )


def flip(x: Any, axis: Any = None) -> Any:
    """In reverse order along axes (all by default).

    >>> import functad as fd
    >>> fd.ops.flip(fd.arange(3)).tolist()
    [2, 1, 0]
    """
    x = operand(x, where="flip")
    axes = normalize_axes(axis, x.ndim, "flip")
    return bind(flip_op, (x,), (axes,)) if axes else unchanged(x)


def fliplr(x: Any) -> Any:
    """The columns (axis 1) in reverse order.

    >>> import functad as fd
    >>> fd.ops.fliplr([[1, 2], [3, 4]]).tolist()
    [[2, 1], [4, 3]]
    """
    return flip(at_least(operand(x, where="fliplr"), 2, "fliplr"), 1)


def flipud(x: Any) -> Any:
    """The rows (axis 0) in reverse order.

    >>> import functad as fd
    >>> fd.ops.flipud([[1, 2], [3, 4]]).tolist()
    [[3, 4], [1, 2]]
    """
    return flip(at_least(operand(x, where="flipud"), 1, "flipud"), 0)


def rot90(x: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """Turned by `k` quarters in the plane of two axes, from the first towards the second.

    >>> import functad as fd
    >>> fd.ops.rot90([[1, 2], [3, 4]]).tolist()
    [[2, 4], [1, 3]]
    """
    x = operand(x, where="rot90")
    plane = [normalize_axis(a, x.ndim, "rot90") for a in axes]
    if len(plane) != 2 or plane[0] == plane[1]:
        raise ShapeError(f"rot90: axes={axes!r} must name two different axes.")
    turns = counted(k, "rot90", "k") % 4
    if turns % 2 == 0:
        return flip(x, plane) if turns else unchanged(x)
    return flip(swapaxes(x, *plane), plane[0]) if turns == 1 else swapaxes(flip(x, plane[0]), *plane)


def roll(x: Any, shift: Any, axis: Any = None) -> Any:
    """Shifted cyclically along axes; without an axis, over the flattened tensor.

    Args:
        x: the tensor.
        shift: an int (or a tensor of one), or one per axis; other shifts recompile nothing.
        axis: an int or several; an axis named twice is shifted twice.

    >>> import functad as fd
    >>> fd.ops.roll(fd.arange(4), 1).tolist()
    [3, 0, 1, 2]
    """
    x = operand(x, where="roll")
    if axis is None:
        return reshape(roll(ravel(x), shift, 0), x.shape)
    axes = [normalize_axis(a, x.ndim, "roll") for a in several(axis)]
    shifts = [_shift(s, x) for s in ((shift,) if isinstance(shift, Handle) else several(shift))]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise ShapeError(f"roll: shift={shift!r} and axis={axis!r} must have as many entries, or one.")
    if not axes or not shifts:
        return unchanged(x)
    total: dict[int, Any] = dict.fromkeys(axes, 0)
    count = max(len(axes), len(shifts))
    for a, s in zip(axes * (count // len(axes)), shifts * (count // len(shifts)), strict=False):
        total[a] += s
    base = base_backend(x)
    moves = [
        base.scalar(s % max(x.shape[a], 1), position_dtype(x.shape[a])) if isinstance(s, int) else s
        for a, s in total.items()
    ]
    return bind(roll_op, (x, *moves), (tuple(total), False))


def _shift(shift: Any, x: Any) -> Any:
    """A shift as an int, or as a 0-d tensor of one."""
    if not isinstance(shift, Handle):
        return counted(shift, "roll", "shift")
    if shift._shape or shift._dtype.kind not in "iu":
        raise ArgumentTypeError(f"roll: a shift is one int, got {shift._dtype}{list(shift._shape)}.")
    return shift


def astype(x: Any, dtype: Any) -> Any:
    """`x` with another dtype; differentiable between floats and complex numbers.

    Floats become integers by truncation (which has no derivative), complex numbers real ones by
    their real part. Raises `DTypeError` for a dtype that the device cannot hold.

    >>> import functad as fd
    >>> fd.ops.astype([1.7, -1.7], int).tolist()
    [1, -1]
    """
    x = operand(x, where="astype")
    wanted = dtypes.parse(dtype, "astype")
    if wanted == x._dtype:
        return unchanged(x)
    base_backend(x).requires(wanted, "astype")
    return bind(cast_op, (x,), (wanted,))


def copy(x: Any) -> Any:
    """`x`: tensors are immutable, so none is ever needed.

    >>> import functad as fd
    >>> fd.ops.copy(fd.ones(2)).tolist()
    [1.0, 1.0]
    """
    return unchanged(operand(x, where="copy"))


def _sizes(shape: Any, where: str) -> tuple[int, ...]:
    try:
        return tuple([operator.index(n) for n in several(shape)])
    except TypeError:
        raise ArgumentTypeError(
            f"{where}: a shape is an int or a tuple of ints, got {shape!r}.{without_value(shape)}"
        ) from None


def _size(lengths: Any) -> int:
    size = 1
    for n in lengths:
        size *= n
    return size


def at_least(x: Any, ndim: int, where: str) -> Any:
    """`x`, if it has as many axes as the function `where` needs."""
    if x.ndim < ndim:
        raise ShapeError(
            f"{where}: takes a tensor with at least {ndim} {'axis' if ndim == 1 else 'axes'}, got shape {x.shape}; "
            "insert one with x.expand_dims(axis)."
        )
    return x


def _each(xs: tuple[Any, ...], where: str, fn: Callable[[Any], Any]) -> Any:
    out = tuple([fn(operand(x, where=where)) for x in xs])
    return out[0] if len(out) == 1 else out
