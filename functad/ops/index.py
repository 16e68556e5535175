"""Indexing as NumPy has it: `x[...]`, and the functions that pick elements by position.

An index is read once into a `Plan`: merge the axes of boolean masks, cut a rectangular piece,
gather at index arrays, insert new axes. Each step is one linear op whose positions are operands.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import Handle, base_tensor, bind
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcreteValueError,
    DTypeError,
    FunctadError,
    OutOfBoundsError,
    ShapeError,
)
from functad.ops.axes import normalize_axis
from functad.ops.op import Samples
from functad.ops.operand import operand
from functad.ops.order import line, take_along_axis_op
from functad.ops.rules import broadcast, nondiff, reshape_op
from functad.ops.scatter import gather_op
from functad.ops.shape import moveaxis, unchanged
from functad.ops.slices import Cut, Cuts, moves, position_dtype, slice_op

__all__ = [
    "argwhere", "gather", "getitem", "index_select", "mask_select", "nonzero", "one_hot", "take", "take_along_axis",
    "unfold",
]  # fmt: skip

_FULL = slice(None)


class Plan(NamedTuple):
    """What an index does to a tensor, step by step. A step with nothing to do is None or empty."""

    merged: tuple[int, ...] | None
    """The shape with the axes of each boolean mask merged into one."""
    cuts: Cuts | None
    """The rectangular piece, one cut per merged axis ..."""
    starts: tuple[Any, ...]
    """... and where it starts on the axes it can move along."""
    indices: tuple[Any, ...]
    """The index arrays ..."""
    axes: tuple[int, ...]
    """... the axes of the piece they index ..."""
    position: int
    """... and where the axes they broadcast to stand among the others."""
    unique: bool
    """Whether no two of the positions they name are the same for certain."""
    picked: tuple[int, ...]
    """The shape after gathering."""
    shape: tuple[int, ...]
    """The shape of the result: with new axes."""


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
    if type(index) is int and x._shape:  # the most frequent index: a row
        shape = x._shape
        n = shape[0]
        if not -n <= index < n:
            _refuse_outside(index, 0, shape, where)
        return bind(slice_op, (x, _start(x, index % n, n)) if n > 1 else (x,), (_row(shape),))
    plan = read_index(x, index, where)
    if plan.merged is not None:
        x = bind(reshape_op, (x,), (plan.merged,))
    if plan.cuts is not None:
        x = bind(slice_op, (x, *plan.starts), (plan.cuts,))
    if plan.indices:
        x = bind(gather_op, (x, *plan.indices), (plan.axes, plan.position, False))
    return unchanged(x) if x._shape == plan.shape else bind(reshape_op, (x,), (plan.shape,))


@lru_cache(1024)
def _row(shape: tuple[int, ...]) -> Cuts:
    return (Cut(1, keep=False), *[Cut(n) for n in shape[1:]])


def _start(x: Any, position: int, n: int) -> Any:
    return base_tensor(x)._backend.scalar(position, position_dtype(n))


# --- reading an index


def read_index(x: Any, index: Any, where: str) -> Plan:
    """The plan of an index of `x`; `where` names it in messages."""
    shape = x._shape
    items = [_item(x, i, where) for i in (index if isinstance(index, tuple) else (index,))]
    used = sum(_consumed(item) for item in items)
    if used > len(shape):
        raise OutOfBoundsError(
            f"{where}: too many indices: {used} of them for a tensor with {len(shape)} axes (shape {shape})."
        )
    ellipses = sum([item is Ellipsis for item in items])
    if ellipses > 1:
        raise ArgumentError(f"{where}: an index can have one Ellipsis ('...'), this one has several; write ':' per axis.")
    if not ellipses:
        items.append(Ellipsis)
    reading = _Reading(x, items, where)
    for item in items:
        if item is Ellipsis:
            for _ in range(len(shape) - used):
                reading.slice(_FULL)
        elif item is None:
            reading.result.append(1)
        elif type(item) is slice:
            reading.slice(item)
        elif type(item) is int:
            reading.int(item)
        elif type(item) is np.ndarray and item.dtype == bool:
            reading.mask(item)
        elif not item.shape:
            reading.scalar(item)
        else:
            reading.array(item)
    return reading.plan()


class _Reading:
    """The state of reading one index, axis by axis."""

    def __init__(self, x: Any, items: list[Any], where: str):
        self.x = x
        self.where = where
        self.axis = 0  # the next axis of x to be indexed
        self.merged: list[int] = []
        self.cuts: list[Cut] = []
        self.starts: list[Any] = []
        self.axes: list[int] = []
        self.indices: list[Any] = []
        self.masks = 0
        self.picked: list[int] = []
        self.result: list[int] = []
        arrays = [i for i, item in enumerate(items) if _is_array(item)]
        self.with_arrays = bool(arrays)
        # beside an array an int is a 0-d array, and arrays apart from each other put the block first
        joined = [i for i, item in enumerate(items) if _is_array(item) or _is_int(item)]
        together = not joined or joined[-1] - joined[0] == len(joined) - 1
        self.block: tuple[int, int] | None = None if together else (0, 0)

    def slice(self, item: slice) -> None:
        n = self._next()
        if item is _FULL:
            length, low, step = n, 0, 1
        else:
            start, stop, step = _bounds(item, n, self.where)
            length = len(range(start, stop, step))
            low = start if step > 0 else start + (length - 1) * step
        self._cut(Cut(length, step if length > 1 else 1), n, low)
        self.picked.append(length)
        self.result.append(length)

    def int(self, item: int) -> None:
        n = self._next()
        if not -n <= item < n:
            _refuse_outside(item, self.axis - 1, self.x.shape, self.where)
        self._enter_block()
        self._cut(Cut(1, keep=False), n, item % n)

    def scalar(self, item: Any) -> None:
        """A 0-d tensor: a position that stays an operand, whatever its value."""
        n = self._next()
        check_inside(self.x, self.axis - 1, item, self.where)
        self._enter_block()
        self._cut(Cut(1, keep=False), n, item)

    def array(self, item: Any) -> None:
        n = self._next()
        check_inside(self.x, self.axis - 1, item, self.where)
        self._gather(item if isinstance(item, Handle) else operand(item, self.x, position_dtype(n)), n)

    def mask(self, mask: Any) -> None:
        covered = self.x.shape[self.axis : self.axis + mask.ndim]
        for i, (n, m) in enumerate(zip(covered, mask.shape, strict=True)):
            if n != m:
                raise OutOfBoundsError(
                    f"{self.where}: a boolean mask of shape {mask.shape} does not fit a tensor of shape {self.x.shape}: "
                    f"axis {self.axis + i} has length {n}, the mask has {m} there. A mask has the shape of the axes it "
                    "selects from."
                )
        self.axis += mask.ndim
        self.masks += 1
        n = mask.size
        self.merged.append(n)
        self._gather(operand(np.flatnonzero(mask), self.x, position_dtype(n)), n)

    def plan(self) -> Plan:
        shape = self.x._shape
        merged = tuple(self.merged)
        trivial = all(cut.keep and cut.length == n for cut, n in zip(self.cuts, merged, strict=True))
        block = self._block_shape()
        picked, result = tuple(self.picked), tuple(self.result)
        position, place = self.block or (0, 0)
        return Plan(
            None if merged == shape else merged,
            None if trivial and all(cut.step == 1 for cut in self.cuts) else tuple(self.cuts),
            tuple(self.starts),
            tuple(self.indices),
            tuple(self.axes),
            position,
            len(self.indices) == 1 and (self.masks == 1 or self.indices[0].size == 1),
            picked[:position] + block + picked[position:],
            result[:place] + block + result[place:],
        )

    def _next(self) -> int:
        n: int = self.x._shape[self.axis]
        self.axis += 1
        self.merged.append(n)
        return n

    def _cut(self, cut: Cut, n: int, low: Any) -> None:
        self.cuts.append(cut)
        if moves(cut, n):
            self.starts.append(_start(self.x, low, n) if type(low) is int else low)

    def _gather(self, indices: Any, n: int) -> None:
        self._enter_block()
        self.axes.append(sum(cut.keep for cut in self.cuts))
        self.cuts.append(Cut(n))
        self.indices.append(indices)

    def _enter_block(self) -> None:
        if self.block is None and self.with_arrays:
            self.block = (len(self.picked), len(self.result))

    def _block_shape(self) -> tuple[int, ...]:
        shapes = [i.shape for i in self.indices]
        try:
            return np.broadcast_shapes(*shapes)
        except ValueError:
            raise ShapeError(
                f"{self.where}: index arrays of shapes {' and '.join(map(str, shapes))} do not broadcast to one shape."
            ) from None


def concrete(x: Any) -> Any:
    """The elements of a tensor on the host, or None where it has no value yet (vmap, jit)."""
    try:
        return x.numpy()
    except ConcreteValueError:
        return None


def mask_values(mask: Any, where: str) -> Any:
    """A boolean mask on the host."""
    try:
        return mask.numpy() if isinstance(mask, Handle) else np.asarray(mask)
    except (ConcreteValueError, jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        raise ConcreteValueError(
            f"{where}: a boolean mask without a value (under vmap or jit) selects an unknown number of elements. Keep the "
            "shape: write fd.where(mask, x, other), x.at[mask].set(value), or (x * mask).sum() and the like."
        ) from None


def _item(x: Any, item: Any, where: str) -> Any:
    """One part of an index: None, Ellipsis, an int, a slice, an int tensor, or a NumPy array of ints or bools."""
    kind = type(item)
    if kind is int or kind is slice or item is None or item is Ellipsis:
        return item
    if isinstance(item, (bool, np.bool_)):
        return np.asarray(item)
    if isinstance(item, jax.Array) and not isinstance(item, Handle):
        item = operand(item, x, where=where)
    if isinstance(item, Handle):
        if item._dtype == dtypes.bool_:
            return mask_values(item, where)
        if item._dtype.kind in "iu":
            return item
        _refuse_dtype(item.dtype, where)
    if isinstance(item, (list, tuple, np.ndarray, np.generic)):
        array = _as_array(item, where)
        if array.dtype.kind not in "biu":
            _refuse_dtype(array.dtype, where)
        return array if array.ndim or array.dtype == bool else int(array)
    try:
        return operator.index(item)
    except TypeError:
        if isinstance(item, float):
            _refuse_dtype(dtypes.of_scalar(item), where)
        raise ArgumentTypeError(
            f"{where}: an index is an int, a slice, None, '...', or an array or list of ints or bools (or a tuple of "
            f"these), got {item!r} of type {kind.__name__}."
        ) from None


def _as_array(item: Any, where: str) -> Any:
    try:
        array = np.asarray(item)
    except ValueError as error:
        raise ShapeError(f"{where}: the index {item!r} is ragged, so it is no array ({error}).") from None
    return array.astype(np.int32) if array.size == 0 and not isinstance(item, np.ndarray) else array


def _consumed(item: Any) -> int:
    """How many axes one part of an index indexes."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if type(item) is np.ndarray and item.dtype == bool else 1


def _is_array(item: Any) -> bool:
    return type(item) is np.ndarray or (isinstance(item, Handle) and bool(item._shape))


def _is_int(item: Any) -> bool:
    return type(item) is int or isinstance(item, Handle)


def _bounds(item: slice, n: int, where: str) -> tuple[int, int, int]:
    try:
        return item.indices(n)
    except ConcreteValueError:
        raise ConcreteValueError(
            f"{where}: a bound of the slice has no value yet (under vmap or jit), so the result has no shape. For a piece "
            "of known length m write x[i + fd.arange(m)]."
        ) from None
    except FunctadError:
        raise
    except TypeError:
        raise DTypeError(
            f"{where}: the bounds of a slice are ints or None, got {item.start!r}:{item.stop!r}:{item.step!r}; convert them "
            "with int(...)."
        ) from None
    except ValueError:
        raise ArgumentError(f"{where}: the step of a slice cannot be 0.") from None


def _refuse_dtype(dtype: Any, where: str) -> NoReturn:
    raise DTypeError(
        f"{where}: an index holds ints or bools, got {dtype}. Convert it: int(i) for a number, i.astype(int) for an array; "
        "a mask is a comparison such as x > 0."
    )


def _refuse_outside(index: int, axis: int, shape: tuple[int, ...], where: str) -> NoReturn:
    n = shape[axis]
    valid = f"valid are {-n} to {n - 1}" if n else "the axis is empty"
    raise OutOfBoundsError(
        f"{where}: index {index} is out of bounds for axis {axis} of length {n} (shape {shape}); {valid}."
    )


# --- functions


def take(x: Any, indices: Any, axis: int | None = None) -> Any:
    """The slices of `x` at `indices` along an axis; of the flattened tensor without one.

    Raises `OutOfBoundsError` for an index outside the axis.

    >>> import functad as fd
    >>> fd.ops.take(fd.tensor([[1.0, 2.0], [3.0, 4.0]]), [1, 1], axis=0).tolist()
    [[3.0, 4.0], [3.0, 4.0]]
    """
    x, axis = line(x, axis, "take")
    return getitem(x, along(axis, integers(indices, x, "take")), "take")


def take_along_axis(x: Any, indices: Any, axis: int | None = -1) -> Any:
    """One element per index along an axis: what `argsort` and `argmax` return picks with it.

    `indices` has as many axes as `x`; all but `axis` broadcast. The flattened tensor without an axis.

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
            f"take_along_axis: indices of shape {indices.shape} do not fit x of shape {x.shape}: they take as many axes, and "
            f"all but axis {axis} must broadcast."
        ) from None
    check_inside(x, axis, indices, "take_along_axis")
    indices = operand(indices, x, position_dtype(x.shape[axis]))
    x, indices = [broadcast(i, (*common[:axis], i.shape[axis], *common[axis:])) for i in (x, indices)]
    return bind(take_along_axis_op, (x, indices), (axis,))


def index_select(x: Any, axis: int, indices: Any) -> Any:
    """The slices of `x` at a 1-d array of indices along an axis.

    >>> import functad as fd
    >>> fd.ops.index_select(fd.tensor([[1.0, 2.0], [3.0, 4.0]]), 1, [1]).tolist()
    [[2.0], [4.0]]
    """
    x = operand(x, where="index_select")
    indices = one_axis(integers(indices, x, "index_select"), "index_select")
    return getitem(x, along(normalize_axis(axis, x.ndim, "index_select"), indices), "index_select")


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
    rows = getitem(x, tuple([_FULL if i == axis else slice(n) for i, n in enumerate(indices.shape)]))
    return bind(take_along_axis_op, (rows, operand(indices, x, position_dtype(x.shape[axis]))), (axis,))


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
    (under vmap and jit its row is zero).

    >>> import functad as fd
    >>> fd.ops.one_hot([1, 0], 3).tolist()
    [[0.0, 1.0, 0.0], [1.0, 0.0, 0.0]]
    """
    x = operand(integers(x, None, "one_hot"))
    count = operator.index(num_classes)
    values = concrete(x)
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
    size, step, n = operator.index(size), operator.index(step), x.shape[axis]
    if not 0 <= size <= n or step < 1:
        raise ArgumentError(
            f"unfold: size={size} and step={step} do not fit axis {axis} of length {n}; the size is 0 to {n}, the step 1 "
            "or more."
        )
    windows = np.arange(0, n - size + 1, step)[:, None] + np.arange(size)
    return moveaxis(getitem(x, along(axis, windows)), axis + 1, -1)


one_hot_op = nondiff(
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


# --- what functions of indices share


def _values(x: Any, where: str) -> Any:
    values = concrete(x)
    if values is None:
        raise ConcreteValueError(
            f"{where}: the number of nonzero elements depends on values, which are not known under vmap or jit. Keep the "
            "shape: use fd.where, or sum a comparison to count."
        )
    return values


def along(axis: int, index: Any) -> tuple[Any, ...]:
    """The index tuple that applies `index` to one axis."""
    return (*[_FULL] * axis, index)


def one_axis(indices: Any, where: str) -> Any:
    """`indices`, which must have one axis."""
    if len(indices.shape) != 1:
        raise ShapeError(f"{where}: indices must have one axis, got shape {indices.shape}; write indices.reshape(-1).")
    return indices


def check_lengths(x: Any, axis: int, indices: Any, where: str) -> None:
    """Raise unless `indices` has the axes of `x` and is no longer than it along the others."""
    fits = len(indices.shape) == x.ndim and all(
        i == axis or m <= n for i, (m, n) in enumerate(zip(indices.shape, x.shape, strict=True))
    )
    if not fits:
        raise ShapeError(
            f"{where}: indices of shape {indices.shape} do not fit x of shape {x.shape}: it takes as many axes, and along "
            f"every axis but {axis} lengths that are not larger."
        )


def check_inside(x: Any, axis: int, indices: Any, where: str) -> None:
    """Raise if one of `indices` has a value outside an axis of `x`."""
    n = x.shape[axis]
    values = concrete(indices) if isinstance(indices, Handle) else indices
    if values is not None and values.size and (values.min() < -n or values.max() >= n):
        _refuse_outside(int(values.min() if values.min() < -n else values.max()), axis, x.shape, where)


def integers(indices: Any, x: Any, where: str) -> Any:
    """`indices` as an int tensor or, where they come from the host, as a NumPy array of ints."""
    if isinstance(indices, (Handle, jax.Array)):
        found = operand(indices, x, where=where)
    else:
        found = _as_array(indices, where)
    if found.dtype.kind not in "iu":
        raise DTypeError(f"{where}: indices must be ints, got {found.dtype}; write indices.astype(int).")
    return found
