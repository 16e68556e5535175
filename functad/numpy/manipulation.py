"""Shapes, joining, cutting and editing, with NumPy's arguments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.numpy.arguments import beside, host, named, refuse_out
from functad.ops.axes import counted, normalize_axis, several
from functad.ops.index import take_inside
from functad.ops.operand import operand, operands

__all__ = [
    "append", "array_split", "block", "broadcast_arrays", "broadcast_to", "column_stack", "concat", "concatenate", "copy",
    "delete", "dsplit", "dstack", "expand_dims", "flip", "fliplr", "flipud", "hsplit", "hstack", "insert", "matrix_transpose",
    "moveaxis", "ndim", "permute_dims", "ravel", "repeat", "reshape", "resize", "roll", "rollaxis", "rot90", "shape",
    "size", "split", "squeeze", "stack", "swapaxes", "tile", "transpose", "trim_zeros", "unstack", "vsplit", "vstack",
]  # fmt: skip

broadcast_to = named(ops.broadcast_to, "subok", array="x")
copy = named(ops.copy, "order", "subok", a="x")
expand_dims = named(ops.expand_dims, a="x")
flip = named(ops.flip, m="x")
fliplr = named(ops.fliplr, m="x")
flipud = named(ops.flipud, m="x")
matrix_transpose = ops.matrix_transpose
moveaxis = named(ops.moveaxis, a="x")
permute_dims = transpose = named(ops.transpose, a="x")
roll = named(ops.roll, a="x")
rot90 = named(ops.rot90, m="x")
split = named(ops.split, ary="x")
array_split = named(ops.array_split, ary="x")
swapaxes = named(ops.swapaxes, a="x")
tile = named(ops.tile, A="x")
unstack = ops.unstack


def reshape(a: Any, /, shape: Any = None, order: str = "C", *, newshape: Any = None, copy: bool | None = None) -> Any:
    """The same elements in another shape; one length may be -1.

    Args:
        a: anything a tensor can be made of.
        shape: the shape (`newshape` in older versions of NumPy).
        order: "C" reads and fills row by row, "F" column by column.
        newshape: see `shape`.
        copy: makes no difference: tensors are immutable.

    >>> import functad.numpy as fnp
    >>> fnp.reshape([[1, 2, 3], [4, 5, 6]], (3, 2), order="F").tolist()
    [[1, 5], [4, 3], [2, 6]]
    """
    target = newshape if shape is None else shape
    if target is None:
        raise ArgumentTypeError("reshape: the new shape is missing; write reshape(x, shape).")
    return ops.reshape(a, target, order)


def ravel(a: Any, order: str = "C") -> Any:
    """The elements in one axis, row by row ("C") or column by column ("F").

    >>> import functad.numpy as fnp
    >>> fnp.ravel([[1, 2], [3, 4]], order="F").tolist()
    [1, 3, 2, 4]
    """
    return ops.ravel(a, order)


def squeeze(a: Any, axis: Any = None) -> Any:
    """Without the axes of length 1, or without those named; raises `ShapeError` if one is longer.

    >>> import functad.numpy as fnp
    >>> fnp.squeeze(fnp.ones((1, 3, 1)), axis=0).shape
    (3, 1)
    """
    return ops.squeeze(a, axis)


def repeat(a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None) -> Any:
    """Each entry of an axis repeated; without an axis, of the flattened tensor.

    `repeats` is an int or one per entry, and decides the shape. Where it has no value
    (under jit), `total_repeat_length` does: the last entry fills up, what is beyond is cut.

    >>> import functad.numpy as fnp
    >>> fnp.repeat([1, 2], [2, 1]).tolist()
    [1, 1, 2]
    """
    if total_repeat_length is None:
        return ops.repeat(a, host(repeats, "repeat") if isinstance(repeats, Handle) else repeats, axis)
    a = operand(a, where="repeat")
    if axis is None:
        a, axis = ops.ravel(a), 0
    axis = normalize_axis(axis, a.ndim, "repeat")
    ends = ops.cumsum(ops.broadcast_to(operand(repeats, a), (a.shape[axis],)))
    places = operand(np.arange(counted(total_repeat_length, "repeat", "total_repeat_length")), a, dtypes.default_int())
    index = ops.sum(ops.expand_dims(places, 1) >= ends, 1)
    return take_inside(a, ops.clip(index, 0, a.shape[axis] - 1), axis)


def broadcast_arrays(*args: Any, subok: bool = False) -> list[Any]:
    """All tensors broadcast to their common shape.

    >>> import functad.numpy as fnp
    >>> [x.shape for x in fnp.broadcast_arrays(fnp.ones((2, 1)), 1.0)]
    [(2, 1), (2, 1)]
    """
    return list(ops.broadcast_arrays(*args))


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """`axis` moved until it stands before the axis `start`; see `moveaxis`.

    >>> import functad.numpy as fnp
    >>> fnp.rollaxis(fnp.ones((3, 4, 5)), 2).shape
    (5, 3, 4)
    """
    a = operand(a, where="rollaxis")
    axis = normalize_axis(axis, a.ndim, "rollaxis")
    end = a.ndim if start == a.ndim else normalize_axis(start, a.ndim, "rollaxis")
    return ops.moveaxis(a, axis, end - (axis < end))


def resize(a: Any, new_shape: Any) -> Any:
    """In another shape, of another size: the elements are repeated as often as needed.

    >>> import functad.numpy as fnp
    >>> fnp.resize([1, 2, 3], (2, 2)).tolist()
    [[1, 2], [3, 1]]
    """
    a = ops.ravel(operand(a, where="resize"))
    given = several(new_shape)
    sizes = tuple([counted(n, "resize", "a length") for n in given])
    if any(n < 0 for n in sizes):
        raise ShapeError(f"resize: lengths are not negative, got {sizes}.")
    total = int(np.prod(sizes, dtype=np.int64))
    if not a.size:
        return ops.broadcast_to(operand(0, a, a._dtype), sizes)
    return ops.reshape(ops.tile(a, -(-total // a.size))[:total], sizes)


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """Without the zeros at the front ("f") and at the back ("b") of each axis. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.trim_zeros([0, 1, 0, 2, 0]).tolist()
    [1, 0, 2]
    """
    filt = operand(filt, where="trim_zeros")
    trim = trim.lower()
    if not trim or set(trim) - {"f", "b"}:
        raise ArgumentError(f"trim_zeros: trim is made of 'f' and 'b', got {trim!r}.")
    places = np.argwhere(host(filt, "trim_zeros"))
    axes = range(filt.ndim) if axis is None else np.atleast_1d(axis).tolist()
    cut = [slice(None)] * filt.ndim
    for i in axes:
        i = normalize_axis(i, filt.ndim, "trim_zeros")
        first, last = (places[:, i].min(), places[:, i].max() + 1) if len(places) else (filt.shape[i], filt.shape[i])
        cut[i] = slice(int(first) if "f" in trim else 0, int(last) if "b" in trim else filt.shape[i])
        if not len(places) and "f" not in trim:
            cut[i] = slice(0, 0)
    return ops.getitem(filt, tuple(cut))


# --- joining


def concatenate(arrays: Any, axis: int | None = 0, out: Any = None, *, dtype: Any = None, casting: Any = None) -> Any:
    """Tensors joined along an axis, in their common dtype; flattened first if `axis` is None.

    >>> import functad.numpy as fnp
    >>> fnp.concatenate([[1.0, 2.0], fnp.ones(1)]).tolist()
    [1.0, 2.0, 1.0]
    """
    refuse_out(out, "concatenate")
    joined = ops.concatenate(arrays, axis)
    return joined if dtype is None else joined.astype(dtype)


concat = concatenate


def stack(arrays: Any, axis: int = 0, out: Any = None, *, dtype: Any = None, casting: Any = None) -> Any:
    """Tensors of one shape joined along a new axis, in their common dtype.

    >>> import functad.numpy as fnp
    >>> fnp.stack([[1, 2], [3, 4]], axis=1).tolist()
    [[1, 3], [2, 4]]
    """
    refuse_out(out, "stack")
    joined = ops.stack(arrays, axis)
    return joined if dtype is None else joined.astype(dtype)


def hstack(tup: Any, *, dtype: Any = None, casting: Any = None) -> Any:
    """Joined column by column: along axis 1, vectors end to end.

    >>> import functad.numpy as fnp
    >>> fnp.hstack([[1, 2], [3]]).tolist()
    [1, 2, 3]
    """
    return ops.hstack(tup) if dtype is None else ops.hstack(tup).astype(dtype)


def vstack(tup: Any, *, dtype: Any = None, casting: Any = None) -> Any:
    """Joined row by row: along axis 0, vectors as rows.

    >>> import functad.numpy as fnp
    >>> fnp.vstack([[1, 2], [3, 4]]).tolist()
    [[1, 2], [3, 4]]
    """
    return ops.vstack(tup) if dtype is None else ops.vstack(tup).astype(dtype)


def dstack(tup: Any) -> Any:
    """Joined along axis 2, after giving each at least three axes.

    >>> import functad.numpy as fnp
    >>> fnp.dstack([[1, 2], [3, 4]]).tolist()
    [[[1, 3], [2, 4]]]
    """
    return ops.dstack(tup)


def column_stack(tup: Any) -> Any:
    """Joined along axis 1, vectors as columns.

    >>> import functad.numpy as fnp
    >>> fnp.column_stack([[1, 2], [3, 4]]).tolist()
    [[1, 3], [2, 4]]
    """
    return ops.column_stack(tup)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` joined to the end of `arr`; both flattened without an axis.

    >>> import functad.numpy as fnp
    >>> fnp.append([1, 2], [[3], [4]]).tolist()
    [1, 2, 3, 4]
    """
    arr, values = operands("append", "numeric", (arr, values))
    return ops.concatenate([arr, values], axis)


def block(arrays: Any) -> Any:
    """Nested lists of tensors put together: the innermost along the last axis, and so on outwards.

    >>> import functad.numpy as fnp
    >>> fnp.block([[fnp.eye(1), fnp.zeros((1, 1))], [fnp.ones((1, 2))]]).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """

    def depth(x: Any) -> int:
        if not isinstance(x, list):
            return 0
        if not x:
            raise ShapeError("block: a list in it is empty.")
        deep = {depth(y) for y in x}
        if len(deep) > 1:
            raise ShapeError("block: all tensors must be nested equally deep.")
        return 1 + deep.pop()

    levels = depth(arrays)
    tensors = list(_leaves(arrays))
    like = next((x for x in tensors if isinstance(x, Handle)), None)
    ndim = max([levels, *[operand(x, like, where="block").ndim for x in tensors]])

    def join(x: Any, axis: int) -> Any:
        if isinstance(x, list):
            return ops.concatenate([join(y, axis + 1) for y in x], axis)
        x = operand(x, like, where="block")
        return ops.reshape(x, (1,) * (ndim - x.ndim) + x._shape)

    return join(arrays, ndim - levels)


def _leaves(x: Any) -> Any:
    if isinstance(x, list):
        for y in x:
            yield from _leaves(y)
    else:
        yield x


# --- cutting and editing


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 1, of a vector along axis 0.

    >>> import functad.numpy as fnp
    >>> [x.tolist() for x in fnp.hsplit([1, 2, 3, 4], 2)]
    [[1, 2], [3, 4]]
    """
    ary = operand(ary, where="hsplit")
    return ops.split(ary, indices_or_sections, 0 if ary.ndim == 1 else 1)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 0 of a tensor with at least two axes.

    >>> import functad.numpy as fnp
    >>> [x.tolist() for x in fnp.vsplit([[1, 2], [3, 4]], 2)]
    [[[1, 2]], [[3, 4]]]
    """
    return ops.split(_at_least(ary, 2, "vsplit"), indices_or_sections, 0)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`split` along axis 2 of a tensor with at least three axes.

    >>> import functad.numpy as fnp
    >>> [x.tolist() for x in fnp.dsplit([[[1, 2]]], 2)]
    [[[[1]]], [[[2]]]]
    """
    return ops.split(_at_least(ary, 3, "dsplit"), indices_or_sections, 2)


def _at_least(x: Any, ndim: int, where: str) -> Any:
    x = operand(x, where=where)
    if x.ndim < ndim:
        raise ShapeError(f"{where}: takes a tensor with at least {ndim} axes, got shape {x.shape}.")
    return x


def delete(arr: Any, obj: Any, axis: int | None = None) -> Any:
    """Without the entries `obj` (an int, a slice, indices or a mask) of an axis; flattened first without one.

    >>> import functad.numpy as fnp
    >>> fnp.delete([1, 2, 3, 4], [0, -1]).tolist()
    [2, 3]
    """
    arr = operand(arr, where="delete")
    if axis is None:
        arr, axis = ops.ravel(arr), 0
    axis = normalize_axis(axis, arr.ndim, "delete")
    kept = np.delete(np.arange(arr.shape[axis]), _positions(obj, "delete"))
    return take_inside(arr, kept, axis)


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """With `values` put in before the entries `obj` of an axis; flattened first without one.

    >>> import functad.numpy as fnp
    >>> fnp.insert([1, 2, 3], [0, 2], [8, 9]).tolist()
    [8, 1, 2, 9, 3]
    """
    arr, values = beside("insert", arr, values)
    arr = operand(arr, where="insert")
    if axis is None:
        arr, axis = ops.ravel(arr), 0
    axis = normalize_axis(axis, arr.ndim, "insert")
    values = operand(values, arr, where="insert").astype(arr._dtype)
    n = arr.shape[axis]
    places = np.asarray(_positions(obj, "insert"))
    if isinstance(obj, slice):
        places = np.arange(*obj.indices(n))
    if places.dtype == bool:
        places = np.flatnonzero(places)
    single = places.size == 1
    if places.ndim == 0:  # one place: all of `values`, which has the axis, or gets it
        values = ops.moveaxis(_lifted(values, arr.ndim), 0, axis)
    elif single and values.ndim == arr.ndim and values.shape[axis] != 1:
        places = np.repeat(places, values.shape[axis])
    count = values.shape[axis] if single and values.ndim > axis and values.ndim == arr.ndim else places.size
    places = np.where(places < 0, places + n, places).reshape(-1)
    if places.size and (places.min() < 0 or places.max() > n):
        raise ArgumentError(f"insert: a place is out of bounds for axis {axis} of length {n}; got {obj!r}.")
    places = np.repeat(places, count) if places.size == 1 else places
    values = ops.broadcast_to(values, tuple([places.size if i == axis else m for i, m in enumerate(arr.shape)]))
    joined = ops.concatenate([arr, values], axis)
    order = np.argsort(np.concatenate([np.arange(n) + 0.5, places]), kind="stable")
    return take_inside(joined, order, axis)


def _lifted(values: Any, ndim: int) -> Any:
    return ops.reshape(values, (1,) * (ndim - values.ndim) + values._shape) if values.ndim < ndim else values


def _positions(obj: Any, where: str) -> Any:
    if isinstance(obj, slice) or obj is None:
        return obj
    found = host(obj, where)
    return found.astype(np.int64) if found.size == 0 or found.dtype.kind in "iu" else found


# --- questions


def shape(a: Any) -> tuple[int, ...]:
    """The length of each axis.

    >>> import functad.numpy as fnp
    >>> fnp.shape([[1, 2]])
    (1, 2)
    """
    found: tuple[int, ...] = operand(a, where="shape").shape
    return found


def ndim(a: Any) -> int:
    """The number of axes.

    >>> import functad.numpy as fnp
    >>> fnp.ndim([[1, 2]])
    2
    """
    return len(shape(a))


def size(a: Any, axis: int | Sequence[int] | None = None) -> int:
    """The number of elements, or of entries of some axes.

    >>> import functad.numpy as fnp
    >>> fnp.size([[1, 2]], 1)
    2
    """
    lengths = shape(a)
    axes = range(len(lengths)) if axis is None else several(axis)
    return int(np.prod([lengths[normalize_axis(i, len(lengths), "size")] for i in axes], dtype=np.int64))
