"""Reading an index: what `x[...]` does to a tensor, decided once, before anything is computed."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple, NoReturn

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import Handle, base_backend, base_tensor
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcreteValueError,
    DTypeError,
    FunctadError,
    OutOfBoundsError,
    ShapeError,
)
from functad.ops.operand import operand
from functad.ops.slices import Cut, Cuts, moves, position_dtype

__all__: list[str] = []

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
    masked: bool
    """Whether a boolean mask is among them."""
    unique: bool
    """Whether no two of the positions they name are the same for certain."""
    picked: tuple[int, ...]
    """The shape after gathering."""
    shape: tuple[int, ...]
    """The shape of the result: with new axes."""
    unsure: tuple[tuple[Any, int], ...]
    """0-d positions that nobody could check, and the lengths of their axes."""


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
        raise ArgumentError(
            f"{where}: an index can have one Ellipsis ('...'), this one has several; write ':' per axis."
        )
    if not ellipses:
        items.append(Ellipsis)
    reading = _Reading(x, items, where)
    for item in items:
        if item is Ellipsis:
            for _ in range(len(shape) - used):
                reading.add_slice(_FULL)
        elif item is None:
            reading.result.append(1)
        elif type(item) is slice:
            reading.add_slice(item)
        elif type(item) is int:
            reading.add_int(item)
        elif type(item) is np.ndarray and item.dtype == bool:
            reading.add_mask(item)
        elif not item.shape:
            reading.add_scalar(item)
        else:
            reading.add_array(item)
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
        self.unsure: list[tuple[Any, int]] = []
        arrays = [i for i, item in enumerate(items) if _is_array(item)]
        self.with_arrays = bool(arrays)
        # beside an array an int is a 0-d array, and arrays apart from each other put the block first
        joined = [i for i, item in enumerate(items) if _is_array(item) or _is_int(item)]
        together = not joined or joined[-1] - joined[0] == len(joined) - 1
        self.block: tuple[int, int] | None = None if together else (0, 0)

    def add_slice(self, item: slice) -> None:
        n = self._next()
        if item is _FULL:
            length, low, step = n, 0, 1
        else:
            start, stop, step = bounds(item, n, self.where)
            length = len(range(start, stop, step))
            low = start if step > 0 else start + (length - 1) * step
        self._cut(Cut(length, step if length > 1 else 1), n, low)
        self.picked.append(length)
        self.result.append(length)

    def add_int(self, item: int) -> None:
        n = self._next()
        if not -n <= item < n:
            refuse_outside(item, self.axis - 1, self.x.shape, self.where)
        self._enter_block()
        self._cut(Cut(1, keep=False), n, item % n)

    def add_scalar(self, item: Any) -> None:
        """A 0-d tensor: a position that stays an operand, whatever its value."""
        n = self._next()
        if not check_inside(self.x, self.axis - 1, item, self.where):
            self.unsure.append((item, n))
        self._enter_block()
        self._cut(Cut(1, keep=False), n, item)

    def add_array(self, item: Any) -> None:
        n = self._next()
        check_inside(self.x, self.axis - 1, item, self.where)
        self._gather(item if isinstance(item, Handle) else operand(item, self.x, position_dtype(n)), n)

    def add_mask(self, mask: Any) -> None:
        covered = self.x.shape[self.axis : self.axis + mask.ndim]
        if selects_nothing(mask.shape, covered):
            mask = np.zeros(covered, bool)
        for i, (n, m) in enumerate(zip(covered, mask.shape, strict=True)):
            if n != m:
                raise OutOfBoundsError(
                    f"{self.where}: a boolean mask of shape {mask.shape} does not fit a tensor of shape "
                    f"{self.x.shape}: axis {self.axis + i} has length {n}, the mask has {m} there. A mask has the "
                    "shape of the axes it selects from."
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
            self.masks > 0,
            len(self.indices) == 1 and (self.masks == 1 or self.indices[0].size == 1),
            picked[:position] + block + picked[position:],
            result[:place] + block + result[place:],
            tuple(self.unsure),
        )

    def _next(self) -> int:
        n: int = self.x._shape[self.axis]
        self.axis += 1
        self.merged.append(n)
        return n

    def _cut(self, cut: Cut, n: int, low: Any) -> None:
        self.cuts.append(cut)
        if moves(cut, n):
            self.starts.append(start(self.x, low, n) if type(low) is int else low)

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


def selects_nothing(mask: tuple[int, ...], covered: tuple[int, ...]) -> bool:
    """Whether a mask of this shape has no elements, which an axis of any length allows (NumPy, array API)."""
    return 0 in mask and all(m in (0, n) for m, n in zip(mask, covered, strict=True))


def every_value(x: Any) -> Any:
    """All elements of a tensor on the host, those of every row under vmap; None while jit is tracing."""
    base = base_tensor(x)
    try:
        return base._backend.host(base._value)
    except ConcreteValueError:
        return None


def concrete(x: Any) -> Any:
    """The elements of a tensor on the host, or None where it has no value yet (vmap, jit)."""
    try:
        return x.numpy()
    except ConcreteValueError:
        return None


def mask_values(mask: Any, where: str) -> Any:
    """A boolean mask on the host."""
    tensor: Any = mask
    try:
        return tensor.numpy() if isinstance(mask, Handle) else np.asarray(mask)
    except (ConcreteValueError, jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError):
        raise ConcreteValueError(
            f"{where}: a boolean mask without a value (under vmap or jit) selects an unknown number of elements. Keep "
            "the shape: write fd.where(mask, x, other), x.at[mask].set(value), or (x * mask).sum() and the like."
        ) from None


def _item(x: Any, item: Any, where: str) -> Any:
    """One part of an index: None, Ellipsis, an int, a slice, an int tensor, or a NumPy array of ints or bools."""
    kind = type(item)
    if kind is int or kind is slice or item is None or item is Ellipsis:
        return item
    if isinstance(item, (bool, np.bool_)):
        return np.asarray(item)
    if isinstance(item, jax.Array):
        item = operand(item, x, where=where)
    if isinstance(item, Handle):
        if item._dtype == dtypes.bool_:
            return mask_values(item, where)
        if item._dtype.kind in "iu":
            return item
        _refuse_dtype(item.dtype, where)
    if isinstance(item, (list, tuple, np.ndarray, np.generic)):
        array = index_array(item, where)
        if array.dtype.kind not in "biu":
            _refuse_dtype(array.dtype, where)
        return array if array.ndim or array.dtype == bool else int(array)
    if hasattr(item, "__array__"):  # torch's; one of length 1 has an __index__ too, and is no int
        return _item(x, np.asarray(item), where)
    try:
        return operator.index(item)
    except TypeError:
        if isinstance(item, float):
            _refuse_dtype(dtypes.of_scalar(item), where)
        raise ArgumentTypeError(
            f"{where}: an index is an int, a slice, None, '...', or an array or list of ints or bools (or a tuple of "
            f"these), got {item!r} of type {kind.__name__}."
        ) from None


def index_array(item: Any, where: str) -> Any:
    """A list, a tuple or an array as a NumPy array; an empty list holds ints."""
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


def start(x: Any, position: int, n: int) -> Any:
    """A position on an axis of `x` of length `n` as a 0-d tensor beside `x`."""
    return base_backend(x).scalar(position, position_dtype(n))


def bounds(item: slice, n: int, where: str) -> tuple[int, int, int]:
    try:
        return item.indices(n)
    except ConcreteValueError:
        raise ConcreteValueError(
            f"{where}: a bound of the slice has no value yet (under vmap or jit), so the result has no shape. For a "
            "piece of known length m write x[i + fd.arange(m)], or pass the bound as static (static_argnums)."
        ) from None
    except FunctadError:
        raise
    except TypeError:
        raise DTypeError(
            f"{where}: the bounds of a slice are ints or None, got {item.start!r}:{item.stop!r}:{item.step!r}; convert "
            "them with int(...)."
        ) from None
    except ValueError:
        raise ArgumentError(f"{where}: the step of a slice cannot be 0.") from None


def _refuse_dtype(dtype: Any, where: str) -> NoReturn:
    raise DTypeError(
        f"{where}: an index holds ints or bools, got {dtype}. Convert it: int(i) for a number, i.astype(int) for an "
        "array; a mask is a comparison such as x > 0."
    )


def refuse_outside(index: int, axis: int, shape: tuple[int, ...], where: str) -> NoReturn:
    n = shape[axis]
    valid = f"valid are {-n} to {n - 1}" if n else "the axis is empty"
    raise OutOfBoundsError(
        f"{where}: index {index} is out of bounds for axis {axis} of length {n} (shape {shape}); {valid}."
    )


# --- what functions of indices share


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
            f"{where}: indices of shape {indices.shape} do not fit x of shape {x.shape}: it takes as many axes, and "
            f"along every axis but {axis} lengths that are not larger."
        )


def check_inside(x: Any, axis: int, indices: Any, where: str) -> bool:
    """Raise if one of `indices` has a value outside an axis of `x`; whether they have values."""
    n = x.shape[axis]
    values = every_value(indices) if isinstance(indices, Handle) else indices
    if values is not None and values.size and (values.min() < -n or values.max() >= n):
        refuse_outside(int(values.min() if values.min() < -n else values.max()), axis, x.shape, where)
    return values is not None


def integers(indices: Any, x: Any, where: str) -> Any:
    """`indices` as an int tensor or, where they come from the host, as a NumPy array of ints."""
    if isinstance(indices, (Handle, jax.Array)):
        found = operand(indices, x, where=where)
    else:
        found = index_array(indices, where)
    if found.dtype.kind not in "iu":
        raise DTypeError(f"{where}: indices must be ints, got {found.dtype}; write indices.astype(int).")
    return found
