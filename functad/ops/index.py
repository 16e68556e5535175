"""Indexing as NumPy has it: `x[...]`, and the functions that pick elements by position.

An index is read once into a `Plan`: merge the axes of boolean masks, cut a rectangular piece,
gather at index arrays, insert new axes. Each step is one linear op whose positions are operands.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import Handle, base_backend, bind
from functad.errors import ArgumentError, ConcreteValueError, DTypeError, OutOfBoundsError, ShapeError
from functad.ops.axes import counted, normalize_axis
from functad.ops.logic import where_op
from functad.ops.op import Op, Samples
from functad.ops.operand import operand
from functad.ops.order import line, take_along_axis_op
from functad.ops.outside import filled, inside, is_known
from functad.ops.plan import (
    along,
    bounds,
    check_inside,
    check_lengths,
    concrete,
    every_value,
    integers,
    mask_values,
    one_axis,
    read_index,
    refuse_outside,
    start,
)
from functad.ops.rules import broadcast, nondiff, reshape_op
from functad.ops.scatter import gather_op
from functad.ops.shape import moveaxis, unchanged
from functad.ops.slices import Cut, Cuts, position_dtype, slice_op

__all__ = [
    "argwhere", "gather", "getitem", "index_select", "mask_select", "nonzero", "one_hot", "take", "take_along_axis",
    "unfold",
]  # fmt: skip


def getitem(x: Any, index: Any, where: str = "x[...]") -> Any:
    """`x[index]` for every form of index that NumPy takes.

    Ints, slices, None, Ellipsis, boolean masks, arrays (lists, tensors) of ints, and tuples of
    these. Positions do not recompile anything, so loops over `x[i]` and `x[i : i + n]` are cheap.

    Raises `OutOfBoundsError` for an index outside its axis (checked wherever it has a value),
    `DTypeError` for floats as indices, `ConcreteValueError` for masks under vmap and jit.

    >>> import functad as fd
    >>> x = fd.arange(6).reshape(2, 3)
    >>> x[1, ::-2].tolist(), x[:, [0, 0, 2]].tolist(), x[x > 3].tolist()
    ([5, 3], [[0, 0, 2], [3, 3, 5]], [4, 5])
    """
    shape = x._shape
    if shape:  # the most frequent indices, without a plan: one row, or some in a row
        n = shape[0]
        if type(index) is int:
            if not -n <= index < n:
                refuse_outside(index, 0, shape, where)
            return bind(slice_op, (x, start(x, index % n, n)) if n > 1 else (x,), (_rows(shape, None),))
        if type(index) is slice and index.step is None:
            first, stop, _ = bounds(index, n, where)
            length = stop - first
            if 0 < length < n:
                return bind(slice_op, (x, start(x, first, n)), (_rows(shape, length),))
    plan = read_index(x, index, where)
    if plan.merged is not None:
        x = bind(reshape_op, (x,), (plan.merged,))
    if plan.cuts is not None:
        x = bind(slice_op, (x, *plan.starts), (plan.cuts,))
    if plan.indices:
        x = bind(gather_op, (x, *plan.indices), (plan.axes, plan.position, False))
        if plan.masked and dtypes.is_inexact(x._dtype):  # it leaves out, as `where` does: zeros of what comes back win
            x = bind(where_op, (operand(True, x), x, operand(0, x, x._dtype)))
    return unchanged(x) if x._shape == plan.shape else bind(reshape_op, (x,), (plan.shape,))


@lru_cache(1024)
def _rows(shape: tuple[int, ...], length: int | None) -> Cuts:
    """One row (None), or `length` of them."""
    return (Cut(1, keep=False) if length is None else Cut(length), *[Cut(n) for n in shape[1:]])


# --- functions


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """The slices of `x` at `indices` along an axis; of the flattened tensor without one.

    Raises `OutOfBoundsError` for an index outside the axis; where indices have no values (under jit), NaN stands there.

    >>> import functad as fd
    >>> fd.ops.take(fd.tensor([[1.0, 2.0], [3.0, 4.0]]), [1, 1], axis=0).tolist()
    [[3.0, 4.0], [3.0, 4.0]]
    """
    x, axis = line(x, axis, "take")
    return _taken(x, axis, integers(indices, x, "take"), "take")


def take_inside(x: Any, indices: Any, axis: int | None = None) -> Any:
    """`take` at indices that are inside for certain."""
    x, axis = line(x, axis, "take")
    indices = integers(indices, x, "take")
    n = x._shape[axis]
    if not n or not indices.shape:
        return getitem(x, along(axis, indices), "take")
    if not isinstance(indices, Handle):
        indices = base_backend(x).held(np.array(indices, position_dtype(n)))
    return bind(gather_op, (x, indices), ((axis,), axis, False))


def _taken(x: Any, axis: int, indices: Any, where: str) -> Any:
    out = getitem(x, along(axis, indices), where)
    if is_known(indices):
        return out
    return filled(out, _counted_inside(indices, x._shape[axis]), len(x._shape) - axis - 1)


def _counted_inside(indices: Any, n: int) -> Any:
    """Which indices are inside an axis, negative ones counted from its end."""
    return inside(indices, -n, n)


def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Any:
    """One element per index along an axis: what `argsort` and `argmax` return picks with it.

    `indices` has as many axes as `x`; all but `axis` broadcast. The flattened tensor without an axis. Raises
    `OutOfBoundsError` for an index outside the axis; where indices have no values (under jit), NaN stands there.

    >>> import functad as fd
    >>> x = fd.tensor([[3.0, 1.0, 2.0]])
    >>> fd.ops.take_along_axis(x, fd.ops.argsort(x)).tolist()
    [[1.0, 2.0, 3.0]]
    """
    x, axis = line(x, axis, "take_along_axis")
    indices = integers(indices, x, "take_along_axis")
    others = [(*i.shape[:axis], *i.shape[axis + 1 :]) for i in (x, indices)]
    try:
        if len(indices.shape) != x.ndim:
            raise ValueError
        common = np.broadcast_shapes(*others)
    except ValueError:
        raise ShapeError(
            f"take_along_axis: indices of shape {indices.shape} do not fit x of shape {x.shape}: they take as many "
            f"axes, and all but axis {axis} must broadcast."
        ) from None
    check_inside(x, axis, indices, "take_along_axis")
    known = is_known(indices)
    indices = operand(indices, x, position_dtype(x.shape[axis]))
    x, indices = [broadcast(i, (*common[:axis], i.shape[axis], *common[axis:])) for i in (x, indices)]
    out = bind(take_along_axis_op, (x, indices), (axis,))
    return out if known else filled(out, _counted_inside(indices, x._shape[axis]))


def index_select(x: Any, axis: int, indices: Any) -> Any:
    """The slices of `x` at a 1-d array of indices along an axis.

    >>> import functad as fd
    >>> fd.ops.index_select(fd.tensor([[1.0, 2.0], [3.0, 4.0]]), 1, [1]).tolist()
    [[2.0], [4.0]]
    """
    x = operand(x, where="index_select")
    indices = one_axis(integers(indices, x, "index_select"), "index_select")
    return _taken(x, normalize_axis(axis, x.ndim, "index_select"), indices, "index_select")


def gather(x: Any, axis: int, indices: Any) -> Any:
    """Elements picked along an axis: `out[i, j] = x[indices[i, j], j]` for axis 0, and so on.

    `indices` has as many axes as `x`, and may be shorter than `x` along the others, as in torch.

    >>> import functad as fd
    >>> fd.ops.gather(fd.tensor([[1.0, 2.0], [3.0, 4.0]]), 1, [[1], [0]]).tolist()
    [[2.0], [3.0]]
    """
    x = operand(x, where="gather")
    axis = normalize_axis(axis, x.ndim, "gather")
    indices = integers(indices, x, "gather")
    check_lengths(x, axis, indices, "gather")
    check_inside(x, axis, indices, "gather")
    rows = getitem(x, tuple([slice(None if i == axis else n) for i, n in enumerate(indices.shape)]))
    known = is_known(indices)
    indices = operand(indices, x, position_dtype(x.shape[axis]))
    out = bind(take_along_axis_op, (rows, indices), (axis,))
    return out if known else filled(out, _counted_inside(indices, x._shape[axis]))


def mask_select(x: Any, mask: Any) -> Any:
    """The elements of `x` where the mask is true, in one axis; the two broadcast.

    Eager only: the length depends on the mask's values.

    >>> import functad as fd
    >>> fd.ops.mask_select(fd.tensor([1.0, 2.0, 3.0]), [True, False, True]).tolist()
    [1.0, 3.0]
    """
    x = operand(x, where="mask_select")
    mask = mask_values(mask, "mask_select")
    if mask.dtype != bool:
        raise DTypeError(f"mask_select: the mask must hold bools, got {mask.dtype}; write a comparison such as x > 0.")
    try:
        shape = np.broadcast_shapes(x.shape, mask.shape)
    except ValueError:
        raise ShapeError(f"mask_select: the mask of shape {mask.shape} does not broadcast with {x.shape}.") from None
    return getitem(x.broadcast_to(shape), np.broadcast_to(mask, shape), "mask_select")


def nonzero(x: Any) -> tuple[Any, ...]:
    """The positions of the nonzero elements, one int tensor per axis. Eager only.

    >>> import functad as fd
    >>> [i.tolist() for i in fd.ops.nonzero(fd.tensor([[0.0, 1.0], [2.0, 0.0]]))]
    [[0, 1], [1, 0]]
    """
    x = operand(x, where="nonzero")
    if not x.shape:
        raise ShapeError("nonzero: a 0-d tensor has no positions; write x.reshape(1) or compare it with 0.")
    return tuple([operand(i, x, dtypes.default_int()) for i in np.nonzero(_values(x, "nonzero"))])


def argwhere(x: Any) -> Any:
    """The positions of the nonzero elements, one row each. Eager only.

    >>> import functad as fd
    >>> fd.ops.argwhere(fd.tensor([0.0, 1.0, 2.0])).tolist()
    [[1], [2]]
    """
    x = operand(x, where="argwhere")
    return operand(np.argwhere(_values(x, "argwhere")), x, dtypes.default_int())


def one_hot(x: Any, num_classes: int, dtype: Any = None) -> Any:
    """Integers as rows of a unit matrix, on a new last axis; float32 unless told otherwise.

    Raises `OutOfBoundsError` for a value outside 0 to `num_classes - 1` where values are known
    (under jit its row is zero).

    >>> import functad as fd
    >>> fd.ops.one_hot([1, 0], 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    x = operand(integers(x, None, "one_hot"))
    count = counted(num_classes, "one_hot", "num_classes")
    values = every_value(x)
    if values is not None and values.size and (values.min() < 0 or values.max() >= count):
        bad = int(values.min() if values.min() < 0 else values.max())
        raise OutOfBoundsError(f"one_hot: {bad} is not a class: num_classes={count} allows 0 to {count - 1}.")
    return bind(one_hot_op, (x,), (count, dtypes.default_float() if dtype is None else dtypes.parse(dtype, "one_hot")))


def unfold(x: Any, axis: int, size: int, step: int = 1) -> Any:
    """Windows of `size` elements every `step` along an axis; the window is the new last axis.

    >>> import functad as fd
    >>> fd.ops.unfold(fd.arange(5), 0, 3, 2).tolist()
    [[0, 1, 2], [2, 3, 4]]
    """
    x = operand(x, where="unfold")
    axis = normalize_axis(axis, x.ndim, "unfold")
    size, step, n = counted(size, "unfold", "size"), counted(step, "unfold", "step"), x.shape[axis]
    if not 0 <= size <= n or step < 1:
        raise ArgumentError(
            f"unfold: size={size} and step={step} do not fit axis {axis} of length {n}; the size is 0 to {n}, the step "
            "1 or more."
        )
    windows = np.arange(0, n - size + 1, step)[:, None] + np.arange(size)
    return moveaxis(getitem(x, along(axis, windows)), axis + 1, -1)


one_hot_op: Op = nondiff(
    "one_hot",
    lambda xp, x, *, count, dtype: (x[..., None] == xp.arange(count)).astype(dtype),
    samples=Samples(
        make=lambda rng: [
            ((rng.integers(0, 3, shape).astype(np.int32),), {"count": 3, "dtype": dtypes.float32})
            for shape in [(4,), (), (0, 2), (2, 3)]
        ]
    ),
    doc="Integers as rows of a unit matrix.",
)


def _values(x: Any, where: str) -> Any:
    values = concrete(x)
    if values is None:
        raise ConcreteValueError(
            f"{where}: the number of nonzero elements depends on values, which are not known under vmap or jit. Keep "
            "the shape: use fd.where, or sum a comparison to count."
        )
    return values
