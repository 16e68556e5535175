"""Functional updates: `x.at[index].set(value)` and its kin, which return a new tensor."""

from __future__ import annotations

from functools import reduce, wraps
from typing import Any, NoReturn

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import Handle, bind
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcreteValueError,
    DTypeError,
    ImmutableError,
    OutOfBoundsError,
    ShapeError,
    UnknownAttributeError,
)
from functad.ops.arithmetic import div, maximum, minimum, pow
from functad.ops.axes import normalize_axis
from functad.ops.halves import rounded_once
from functad.ops.index import getitem
from functad.ops.logic import gate, logical_and, where
from functad.ops.operand import as_array, operand
from functad.ops.outside import inside
from functad.ops.plan import (
    Plan,
    along,
    check_lengths,
    concrete,
    index_array,
    integers,
    one_axis,
    read_index,
    selects_nothing,
)
from functad.ops.rules import add, broadcast, mul, reshape_op
from functad.ops.scatter import (
    gather_op,
    scatter_add_op,
    scatter_max_op,
    scatter_min_op,
    scatter_mul_op,
    scatter_set_op,
)
from functad.ops.slices import Cut, put_slice_op, slice_op, unslice_op

__all__ = ["At", "index_add", "scatter"]

_KINDS = ("set", "add", "mul", "min", "max")
_METHODS = (*_KINDS, "subtract", "multiply", "divide", "power", "apply", "get")


def _said(method: Any) -> Any:
    """A method that says what it takes, where it was called with something else."""
    takes = method.__code__.co_varnames[1]

    @wraps(method)
    def call(self: Any, *values: Any, **others: Any) -> Any:
        if len(values) == 1 and not others:
            return method(self, *values)
        if not values and set(others) == {takes}:
            return method(self, others[takes])
        name = f"x.at[i].{method.__name__}"
        if gone := [key for key in others if key != takes]:
            jax = (
                " An index out of bounds raises; inside fd.jit, where it has no value yet, it is left out."
                if {"mode", "fill_value", "indices_are_sorted", "unique_indices"} & set(gone)
                else ""
            )
            raise ArgumentTypeError(f"{name}: there is no argument {gone[0]!r}; write {name}({takes}).{jax}")
        raise ArgumentTypeError(f"{name}: it takes one value, and got {len(values)}; write x = {name}({takes}).")

    return call


class At:
    """What `x.at` is: `x.at[index]` has the updates."""

    __slots__ = ("_x",)

    def __init__(self, x: Any):
        self._x = x

    def __getitem__(self, index: Any) -> Indexed:
        return Indexed(self._x, index)

    def __call__(self, *index: Any) -> NoReturn:
        raise ArgumentTypeError("x.at is indexed, not called: write x.at[i].set(value), with square brackets.")

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ImmutableError("tensors are immutable: write x = x.at[i].set(v), which returns the updated tensor.")

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_attribute("x.at", name, f"index it first: x.at[i].{name if name in _METHODS else 'set'}(...).")

    def __repr__(self) -> str:
        return f"<at of {self._x.dtype}{list(self._x.shape)}: x.at[index] has .{', .'.join(_METHODS)}>"


class Indexed:
    """What `x.at[index]` is. Every form of index that `x[index]` takes, masks and slices included.

    Values broadcast to the shape of `x[index]` and take the dtype of `x`. Each method returns a new
    tensor; `x` is as before.

    >>> import functad as fd
    >>> x = fd.zeros(4)
    >>> x.at[1:3].set(5.0).tolist(), x.at[[0, 0, 2]].add(1.0).tolist()
    ([0.0, 5.0, 5.0, 0.0], [2.0, 0.0, 1.0, 0.0])
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Any, index: Any):
        self._x = x
        self._index = index

    def get(self) -> Any:
        """`x[index]`."""
        return getitem(self._x, self._index)

    @_said
    def set(self, value: Any) -> Any:
        """With `value` there. Of several values for one place the last counts, and alone has a gradient."""
        return _update(self._x, self._index, value, "set")

    @_said
    def add(self, value: Any) -> Any:
        """With `value` added there; several values for one place add up."""
        return _update(self._x, self._index, value, "add")

    @_said
    def mul(self, value: Any) -> Any:
        """Multiplied by `value` there; several values for one place multiply, zeros included."""
        return _update(self._x, self._index, value, "mul")

    @_said
    def min(self, value: Any) -> Any:
        """The smaller of x and `value` there; equal ones share the gradient."""
        return _update(self._x, self._index, value, "min")

    @_said
    def max(self, value: Any) -> Any:
        """The larger of x and `value` there; equal ones share the gradient."""
        return _update(self._x, self._index, value, "max")

    @_said
    def subtract(self, value: Any) -> Any:
        """With `value` taken away there; several values for one place add up."""
        name = "x.at[...].subtract"
        return _update(self._x, self._index, -_cast(value, self._x, name), "add", name)

    @_said
    def multiply(self, value: Any) -> Any:
        """The same as `mul`."""
        return _update(self._x, self._index, value, "mul", "x.at[...].multiply")

    @_said
    def divide(self, value: Any) -> Any:
        """Divided by `value` there; several values for one place multiply. Of floats and complex numbers."""
        return _by_product(self._x, self._index, value, "divide", div)

    @_said
    def power(self, value: Any) -> Any:
        """To the power `value` there; several values for one place multiply."""
        return _by_product(self._x, self._index, value, "power", pow)

    @_said
    def apply(self, func: Any) -> Any:
        """With `func`, an elementwise function of a tensor, applied there; as often as an index names a place.

        >>> import functad as fd
        >>> fd.tensor([1.0, 4.0, 16.0]).at[[1, 2, 2]].apply(fd.numpy.sqrt).tolist()
        [1.0, 2.0, 2.0]
        """
        return _apply(self._x, self._index, func)

    def __getattr__(self, name: str) -> NoReturn:
        _refuse_attribute("x.at[i]", name, f"it has .{', .'.join(_METHODS)}; for anything else: x.at[i].set(f(x[i])).")

    def __repr__(self) -> str:
        return f"<at[{self._index!r}] of {self._x.dtype}{list(self._x.shape)}: .{', .'.join(_METHODS)}>"


def index_add(x: Any, axis: int, indices: Any, values: Any) -> Any:
    """`x` with slices of `values` added at a 1-d array of indices along an axis; repeats add up.

    >>> import functad as fd
    >>> fd.ops.index_add(fd.zeros(3), 0, [0, 0, 2], fd.tensor([1.0, 10.0, 100.0])).tolist()
    [11.0, 0.0, 100.0]
    """
    x = operand(x, where="index_add")
    indices = one_axis(integers(indices, x, "index_add"), "index_add")
    axis = normalize_axis(axis, x.ndim, "index_add")
    values = _cast(values, x, "index_add")
    if values.ndim not in (0, x.ndim):
        raise ShapeError(
            f"index_add: values has the {x.ndim} axes of x, whose shape is {x.shape}, axis {axis} with the length of the "
            f"indices; got shape {values.shape}. To add one slice at every index write values.expand_dims({axis})."
        )
    return _update(x, along(axis, indices), values, "add", "index_add")


def scatter(x: Any, axis: int, indices: Any, values: Any, reduce: str = "set") -> Any:
    """`x` with `out[indices[i, j], j] = values[i, j]` for axis 0, and so on; the opposite of `gather`.

    Args:
        x: the tensor to start from.
        axis: the axis that `indices` are positions of.
        indices: as many axes as `x`, along the others at most as long as it.
        values: broadcast to the shape of `indices`.
        reduce: "set" writes them (the last of several counts), "add" adds them; "mul", "min" and "max" do as
            `x.at[...]` does. For a mean, or without the element of `x`, see `scatter_reduce`.

    >>> import functad as fd
    >>> fd.ops.scatter(fd.zeros((2, 2)), 1, [[1], [0]], 5.0).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    x = operand(x, where="scatter")
    axis = normalize_axis(axis, x.ndim, "scatter")
    indices = integers(indices, x, "scatter")
    if reduce not in _KINDS:
        raise ArgumentError(
            f"scatter: reduce={reduce!r} is none of {', '.join(map(repr, _KINDS))}; see also scatter_reduce."
        )
    check_lengths(x, axis, indices, "scatter")
    grid: list[Any] = list(np.ogrid[tuple([slice(n) for n in indices.shape])])
    grid[axis] = indices
    return _update(x, tuple(grid), values, reduce, "scatter")


# --- how


def _update(x: Any, index: Any, value: Any, kind: str, name: str | None = None) -> Any:
    name = name or f"x.at[...].{kind}"
    alike = isinstance(value, dtypes.SCALARS)  # whichever of several updates comes last
    value = _cast(value, x, name)
    mask = _lone_mask(x, index, name)
    if mask is not None:
        row = _row_value(value, x, mask, name)
        if row is not None:
            return where(mask.reshape((*mask.shape, *[1] * (x.ndim - mask.ndim))), _combine(x, row, kind), x)
    plan = read_index(x, index, name)
    value = _fit(value, plan.shape, name)
    if value._shape != plan.picked:
        value = bind(reshape_op, (value,), (plan.picked,))
    whole = x if plan.merged is None else bind(reshape_op, (x,), (plan.merged,))
    new = _into_arrays(whole, value, plan, kind, alike) if plan.indices else _into_piece(whole, value, plan, kind)
    return new if new._shape == x._shape else bind(reshape_op, (new,), (x._shape,))


def _by_product(x: Any, index: Any, value: Any, kind: str, fn: Any) -> Any:
    """`fn` of x and the product of the values for each place; of 1 where there is none."""
    name = f"x.at[...].{kind}"
    if kind == "divide" and not dtypes.is_inexact(x._dtype):
        raise DTypeError(
            f"{name}: the quotient of {x.dtype} is no {x.dtype}; write x.astype(float).at[i].divide(value)."
        )
    return _of_product(x, _cast(value, x, name), index=index, name=name, fn=fn)


@rounded_once
def _of_product(x: Any, value: Any, *, index: Any, name: str, fn: Any) -> Any:
    ones = operand(np.ones((), np.uint8), x).astype(x._dtype)
    return fn(x, _update(broadcast(ones, x._shape), index, value, "mul", name))


def _apply(x: Any, index: Any, func: Any) -> Any:
    name = "x.at[...].apply"
    if not callable(func):
        raise ArgumentTypeError(f"{name}: takes a function of a tensor, got {func!r}; to write values: x.at[i].set(v).")
    mask = _lone_mask(x, index, name)
    if mask is None:
        plan = read_index(x, index, name)
        if not plan.indices or plan.unique or all(i.size == 1 for i in plan.indices):
            return _update(x, index, _alike(func, getitem(x, index)), "set", name)
        if any(concrete(i) is None for i in plan.indices):
            raise ConcreteValueError(
                f"{name}: an index array that is not known under jit or vmap may name a place twice. If it does not, write "
                "x.at[i].set(f(x[i])); else apply the function outside."
            )
    count = _update(operand(np.zeros(x._shape, np.int32), x), index, 1, "add", name)
    times = 1 if mask is not None else int(np.max(count.numpy(), initial=0))
    for i in range(times):
        x = where(count > i, _alike(func, x), x)
    return x


def _alike(func: Any, x: Any) -> Any:
    out = operand(func(x), x)
    if out._shape != x._shape:
        raise ShapeError(
            f"x.at[...].apply: the function must be elementwise; of shape {x.shape} it made {out.shape}. Write "
            "x.at[i].set(f(x[i])) for another."
        )
    return _cast(out, x, "x.at[...].apply")


def _into_piece(whole: Any, value: Any, plan: Plan, kind: str) -> Any:
    """Update the rectangular piece of a plan without index arrays."""
    cuts = plan.cuts or tuple([Cut(n) for n in whole._shape])
    if kind == "add":
        value = gate(value, _is_there(plan)) if plan.unsure else value
        return add(whole, bind(unslice_op, (value, *plan.starts), (whole._shape, cuts)))
    if kind != "set" or plan.unsure:
        old = bind(slice_op, (whole, *plan.starts), (cuts,))
        value = _combine(old, value, kind)
        value = where(_is_there(plan), value, old) if plan.unsure else value
    return bind(put_slice_op, (whole, value, *plan.starts), (cuts,))


def _is_there(plan: Plan) -> Any:
    """Whether a piece is where its 0-d indices say, which had no values to look at."""
    return reduce(logical_and, [inside(i, -n, n) for i, n in plan.unsure])


def _into_arrays(whole: Any, value: Any, plan: Plan, kind: str, alike: bool) -> Any:
    """Update at the index arrays of a plan, within its piece."""
    piece = whole if plan.cuts is None else bind(slice_op, (whole, *plan.starts), (plan.cuts,))
    inputs, place = (piece, value, *plan.indices), (plan.axes, plan.position)
    if kind == "add":
        new = bind(scatter_add_op, inputs, place)
    elif kind == "set":
        new = bind(scatter_set_op, inputs, (*place, plan.unique or alike))
    elif kind == "mul" and not (plan.unique or _distinct(piece, plan)):
        new = bind(scatter_mul_op, inputs, place)
    elif kind == "mul":
        picked = bind(gather_op, (piece, *plan.indices), (*place, False))
        new = bind(scatter_set_op, (piece, mul(picked, value), *plan.indices), (*place, True))
    else:
        new = bind(scatter_max_op if kind == "max" else scatter_min_op, inputs, place)
    new = where(_is_there(plan), new, piece) if plan.unsure else new
    return new if plan.cuts is None else bind(put_slice_op, (whole, new, *plan.starts), (plan.cuts,))


def _combine(old: Any, value: Any, kind: str) -> Any:
    match kind:
        case "add":
            return add(old, value)
        case "mul":
            return mul(old, value)
        case "min":
            return minimum(old, value)
        case "max":
            return maximum(old, value)
    return value


def _distinct(piece: Any, plan: Plan) -> bool:
    """Whether the positions are known and no two are the same."""
    known = [concrete(i) for i in plan.indices]
    if any(i is None for i in known):
        return False
    lengths = [piece._shape[axis] for axis in plan.axes]
    wrapped = [np.where(i < 0, i + n, i) for i, n in zip(known, lengths, strict=True)]
    places = np.ravel_multi_index(np.broadcast_arrays(*wrapped), lengths)
    return np.unique(places).size == places.size


def _lone_mask(x: Any, index: Any, name: str) -> Any:
    """The index as a bool tensor, if it is one boolean mask and nothing else."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    if isinstance(index, list):
        index = index_array(index, name)
    if not isinstance(index, (Handle, np.ndarray, jax.Array)) or index.dtype != bool or not 0 < index.ndim <= x.ndim:
        return None
    if selects_nothing(index.shape, x.shape[: index.ndim]):
        return operand(np.zeros(x.shape[: index.ndim], bool), x)
    return operand(index, x)


def _row_value(value: Any, x: Any, mask: Any, name: str) -> Any:
    """The value for every place of the mask, if it is one and the same; else None."""
    if mask.shape != x.shape[: mask.ndim]:
        raise OutOfBoundsError(
            f"{name}: a boolean mask of shape {mask.shape} does not fit a tensor of shape {x.shape}; a mask has the "
            "shape of the axes it selects from."
        )
    row = x.shape[mask.ndim :]
    if value.ndim == len(row) + 1 and value.shape[0] == 1:
        value = value.reshape(value.shape[1:])
    return value if value.ndim <= len(row) and _broadcasts(value.shape, row) else None


def _fit(value: Any, shape: tuple[int, ...], name: str) -> Any:
    if not _broadcasts(value.shape, shape):
        raise ShapeError(
            f"{name}: a value of shape {value.shape} does not broadcast to {shape}, the shape of x[index]."
        )
    return broadcast(value, shape)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    tail = target[len(target) - len(shape) :]
    return len(shape) <= len(target) and all(m in (1, n) for m, n in zip(shape, tail, strict=True))


def _cast(value: Any, x: Any, name: str) -> Any:
    """`value` as a tensor of the dtype of `x`, unless that would lose its kind."""
    if not isinstance(value, (Handle, *dtypes.SCALARS)):
        value = as_array(value, name)
    dtype = dtypes.of_scalar(value) if isinstance(value, dtypes.SCALARS) else value.dtype
    if _rank(dtype) > _rank(x._dtype):
        raise DTypeError(
            f"{name}: a value of {dtype} does not fit a tensor of {x._dtype}, which the update keeps. Convert one of "
            f"them: x.astype('{dtype}').at[...] or value.astype('{x._dtype}')."
        )
    return operand(value, x, x._dtype, name)


def _rank(dtype: dtypes.DType) -> int:
    return 2 if dtypes.is_float(dtype) else {"b": 0, "i": 1, "u": 1, "c": 3}[dtype.kind]


def _refuse_attribute(what: str, name: str, instead: str) -> NoReturn:
    raise UnknownAttributeError(f"{what} has no attribute {name!r}; {instead}")
