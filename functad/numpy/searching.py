"""Choosing, sorting, finding and placing elements, with NumPy's arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import Handle, bind
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcreteValueError,
    DTypeError,
    ShapeError,
)
from functad.numpy.arguments import beside, host, named, refuse_out
from functad.ops.axes import counted, normalize_axis, several
from functad.ops.index import take_inside
from functad.ops.operand import operand, operands
from functad.ops.order import lexsort_op
from functad.ops.place import inside
from functad.ops.scatter import scatter_set_op
from functad.ops.search import searchsorted
from functad.ops.slices import position

__all__ = [
    "argpartition", "argsort", "argwhere", "choose", "compress", "digitize", "extract", "fill_diagonal", "flatnonzero",
    "lexsort", "nonzero", "partition", "piecewise", "place", "put", "put_along_axis", "putmask", "ravel_multi_index",
    "searchsorted", "select", "sort", "sort_complex", "take", "take_along_axis", "unravel_index", "where",
]  # fmt: skip

argwhere = named(ops.argwhere, a="x")
nonzero = named(ops.nonzero, a="x")


def where(condition: Any, x: Any = None, y: Any = None, /) -> Any:
    """`x` where `condition` is true (or nonzero), else `y`; with the condition alone, the places where it is.

    The branch not taken gets a derivative of exactly zero.

    >>> import functad.numpy as fnp
    >>> fnp.where([True, False], 1.0, 2.0).tolist(), fnp.where([0, 3])[0].tolist()
    ([1.0, 2.0], [1])
    """
    if x is None and y is None:
        return ops.nonzero(condition)
    if x is None or y is None:
        raise ArgumentTypeError("where: takes the condition alone, or both values; write where(condition, x, y).")
    return ops.where(condition, x, y)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """Each element from the first choice whose condition holds, else `default`.

    >>> import functad.numpy as fnp
    >>> x = fnp.arange(4)
    >>> fnp.select([x < 1, x < 3], [x, x * 10], 42).tolist()
    [0, 10, 20, 42]
    """
    if not condlist or len(condlist) != len(choicelist):
        raise ArgumentError(
            f"select: takes as many choices as conditions, at least one, got {len(choicelist)} and {len(condlist)}."
        )
    like = next((v for v in (*choicelist, default, *condlist) if isinstance(v, Handle)), None)
    *choices, out = operands("select", "numeric", (*choicelist, default))
    for i, (condition, choice) in reversed(list(enumerate(zip(condlist, choices, strict=True)))):
        condition = operand(condition, like, where="select")
        if condition._dtype != dtypes.bool_:
            raise DTypeError(f"select: condition {i} must be of bools, got {condition.dtype}; write a comparison.")
        out = ops.where(condition, choice, out)
    return out


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """By the last condition that holds, the value of its function (or its number).

    One function more than conditions is for where none holds; without it 0. Every function gets the
    whole of `x`; what it does where it is not chosen cannot reach the gradient.

    >>> import functad as fd
    >>> f = lambda x: fd.numpy.piecewise(x, [x < 0, x > 1], [-1.0, fd.numpy.sqrt, lambda x: x])
    >>> f(fd.tensor([-1.0, 0.5, 4.0])).tolist()
    [-1.0, 0.5, 2.0]
    """
    x = operand(x, where="piecewise")
    if not isinstance(condlist, (list, tuple)) or (condlist and isinstance(condlist[0], (bool, np.bool_))):
        condlist = [condlist]
    conditions = [operand(c, x, dtypes.bool_) for c in condlist]
    if len(funclist) not in (len(conditions), len(conditions) + 1):
        raise ArgumentError(
            f"piecewise: with {len(conditions)} conditions, there are as many functions or one more, got {len(funclist)}."
        )

    def value(fn: Any) -> Any:
        found = operand(fn(x, *args, **kw) if callable(fn) else fn, x)
        return ops.broadcast_to(found.astype(x._dtype), x._shape)

    functions = list(funclist)
    out = value(functions.pop() if len(functions) > len(conditions) else 0)
    for condition, fn in zip(conditions, functions, strict=True):
        out = ops.where(condition, value(fn), out)
    return out


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """Each element from the choice with the number in `a`; all broadcast.

    `mode` says what a number outside does: "raise", "wrap" or "clip".

    >>> import functad.numpy as fnp
    >>> fnp.choose([1, 0], [[1, 2], [3, 4]]).tolist()
    [3, 2]
    """
    refuse_out(out, "choose")
    return ops.choose(a, choices, mode)


# --- order


def sort(
    a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: bool | None = None,
    descending: bool = False,
) -> Any:  # fmt: skip
    """The elements in order along `axis`; of the flattened tensor with None. Always stable, NaN last.

    >>> import functad.numpy as fnp
    >>> fnp.sort([3, 1, 2], descending=True).tolist()
    [3, 2, 1]
    """
    return ops.sort(a, axis, descending)


def argsort(
    a: Any, axis: int | None = -1, kind: Any = None, order: Any = None, *, stable: bool | None = None,
    descending: bool = False,
) -> Any:  # fmt: skip
    """The indices that put `axis` in order; see `sort`.

    >>> import functad.numpy as fnp
    >>> fnp.argsort([5, 4, 6]).tolist()
    [1, 0, 2]
    """
    return ops.argsort(a, axis, descending)


def partition(a: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: Any = None) -> Any:
    """With the `kth` element where it is in order, smaller ones before and larger ones after it.

    >>> import functad.numpy as fnp
    >>> fnp.partition([3, 1, 2], 1).tolist()
    [1, 2, 3]
    """
    return ops.partition(a, host(kth, "partition"), axis)


def argpartition(a: Any, kth: Any, axis: int | None = -1, kind: Any = None, order: Any = None) -> Any:
    """The indices of `partition`.

    >>> import functad.numpy as fnp
    >>> fnp.argpartition([3, 1, 2], 1).tolist()
    [1, 2, 0]
    """
    return ops.argpartition(a, host(kth, "argpartition"), axis)


def sort_complex(a: Any) -> Any:
    """The elements as complex numbers in order: by their real parts, then by their imaginary parts.

    >>> import functad.numpy as fnp
    >>> fnp.sort_complex([2 + 1j, 1 + 2j, 2 - 1j]).tolist()
    [(1+2j), (2-1j), (2+1j)]
    """
    a = operand(a, where="sort_complex")
    if a._dtype.kind != "c":
        a = a.astype(dtypes.complex128 if a._dtype == dtypes.float64 else dtypes.complex64)
    return ops.sort(a)


def lexsort(keys: Any, axis: int = -1) -> Any:
    """The indices that sort by several keys, the last one first.

    >>> import functad.numpy as fnp
    >>> fnp.lexsort(([1, 2, 3], [2, 1, 1])).tolist()
    [1, 2, 0]
    """
    like = next((k for k in keys if isinstance(k, Handle)), None) if not isinstance(keys, Handle) else keys
    many = list(ops.unstack(keys)) if isinstance(keys, Handle) else [operand(k, like, where="lexsort") for k in keys]
    if not many:
        raise ArgumentError("lexsort: needs at least one key.")
    if not many[0].ndim:
        return operand(0, many[0], dtypes.default_int())
    for i, key in enumerate(many):
        if key.shape != many[0].shape:
            raise ShapeError(f"lexsort: keys have one shape, key {i} has {key.shape} and key 0 has {many[0].shape}.")
    return bind(lexsort_op, many, (normalize_axis(axis, many[0].ndim, "lexsort"),))


def digitize(x: Any, bins: Any, right: bool = False) -> Any:
    """The number of the bin of each element: how many edges are at or below it (below, with `right`).

    `bins` is ascending or, where its values are known, descending.

    >>> import functad.numpy as fnp
    >>> fnp.digitize([0.2, 6.4, 3.0], [0.0, 1.0, 2.5, 4.0]).tolist()
    [1, 4, 3]
    """
    x, bins = operands("digitize", "compare", (x, bins))
    if bins.ndim != 1:
        raise ShapeError(f"digitize: bins must be a vector, got shape {bins.shape}.")
    try:
        edges = bins.numpy()
        steps = np.diff(edges.astype(np.float64))
    except ConcreteValueError:
        steps = np.ones(1)
    if (steps < 0).any():
        if (steps > 0).any():
            raise ArgumentError("digitize: bins must be in ascending or descending order.")
        return bins.size - searchsorted(ops.flip(bins), x, "left" if right else "right")
    return searchsorted(bins, x, "left" if right else "right")


# --- picking


def take(a: Any, indices: Any, axis: int | None = None, out: Any = None, mode: str = "raise") -> Any:
    """The slices of `a` at `indices` along an axis; of the flattened tensor without one.

    `mode` says what an index outside does: "raise" (where indices have no values, under jit, NaN stands there instead),
    "wrap" or "clip".

    >>> import functad.numpy as fnp
    >>> fnp.take([1.0, 2.0, 4.0], [3, 2], mode="clip").tolist()
    [4.0, 4.0]
    """
    refuse_out(out, "take")
    if mode == "raise":
        return ops.take(a, indices, axis)
    a = operand(a, where="take")
    n = a.size if axis is None else a.shape[normalize_axis(axis, a.ndim, "take")]
    return take_inside(a, inside(operand(indices, a), n, mode, "take"), axis)


take_along_axis = named(ops.take_along_axis, arr="x")


def compress(condition: Any, a: Any, axis: int | None = None, out: Any = None) -> Any:
    """The entries of an axis whose condition holds; of the flattened tensor without one. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.compress([False, True], [[1, 2], [3, 4]], axis=1).tolist()
    [[2], [4]]
    """
    refuse_out(out, "compress")
    return ops.compress(a, condition, axis)


def extract(condition: Any, arr: Any) -> Any:
    """The elements whose condition holds, in one axis. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.extract([[True, False], [False, True]], [[1, 2], [3, 4]]).tolist()
    [1, 4]
    """
    return compress(np.ravel(host(condition, "extract")), ops.ravel(operand(arr, where="extract")))


def flatnonzero(a: Any) -> Any:
    """The places of the nonzero elements of the flattened tensor. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.flatnonzero([[0, 1], [2, 0]]).tolist()
    [1, 2]
    """
    return ops.nonzero(ops.ravel(operand(a, where="flatnonzero")))[0]


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Any, ...]:
    """Places in a flattened tensor of a shape as one index per axis; outside they count as the nearest.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.unravel_index([3, 5], (2, 3))]
    [[1, 1], [0, 2]]
    """
    sizes = tuple([counted(n, "unravel_index", "a length") for n in several(shape)])
    rest = position(operand(indices, where="unravel_index"))
    total = math.prod(sizes)
    rest = inside(ops.where(rest < 0, rest + total, rest), total, "raise", "unravel_index")
    found = []
    for n in reversed(sizes) if order == "C" else sizes:
        found.append(ops.remainder(rest, n))
        rest = ops.floor_divide(rest, n)
    return tuple(reversed(found)) if order == "C" else tuple(found)


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    """One index per axis as places in the flattened tensor; the opposite of `unravel_index`.

    >>> import functad.numpy as fnp
    >>> fnp.ravel_multi_index(([1, 1], [0, 2]), (2, 3)).tolist()
    [3, 5]
    """
    parts = list(ops.unstack(multi_index)) if isinstance(multi_index, Handle) else list(multi_index)
    if len(parts) != len(dims):
        raise ShapeError(f"ravel_multi_index: takes one index for each of {len(dims)} axes, got {len(parts)}.")
    modes = (mode,) * len(parts) if isinstance(mode, str) else tuple(mode)
    like = next((p for p in parts if isinstance(p, Handle)), None)
    out: Any = 0
    axes = range(len(parts)) if order == "C" else reversed(range(len(parts)))
    for i in axes:
        out = out * dims[i] + inside(operand(parts[i], like), dims[i], modes[i], "ravel_multi_index")
    return out


# --- placing: each returns a new tensor, where NumPy changes its argument


def put_along_axis(arr: Any, indices: Any, values: Any, axis: int | None, inplace: bool = False) -> Any:
    """A new tensor with `values` at one index per element along an axis; the opposite of `take_along_axis`.

    >>> import functad.numpy as fnp
    >>> fnp.put_along_axis([[1, 2, 3]], [[0]], 9, axis=1).tolist()
    [[9, 2, 3]]
    """
    _refuse_in_place(inplace, "put_along_axis")
    arr, indices, values = beside("put_along_axis", arr, indices, values)
    if axis is None:
        return ops.reshape(put_along_axis(ops.ravel(arr), indices, values, 0), arr._shape)
    indices = operand(indices, arr, where="put_along_axis")
    axis = normalize_axis(axis, arr.ndim, "put_along_axis")
    if indices.ndim != arr.ndim:
        raise ShapeError(f"put_along_axis: indices of shape {indices.shape} need the {arr.ndim} axes of {arr.shape}.")
    shape = tuple([indices.shape[i] if i == axis else n for i, n in enumerate(arr.shape)])
    index = ops.broadcast_to(indices, shape)
    grid: list[Any] = list(np.ogrid[tuple([slice(n) for n in shape])])
    grid[axis] = index
    return arr.at[tuple(grid)].set(_fitted("put_along_axis", values, arr))


def fill_diagonal(a: Any, val: Any, wrap: bool = False, *, inplace: bool = False) -> Any:
    """A new tensor with `val` on the main diagonal (of all axes, which then are of one length).

    With `wrap` the diagonal of a tall matrix starts again below.

    >>> import functad.numpy as fnp
    >>> fnp.fill_diagonal(fnp.zeros((2, 2)), 1).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    _refuse_in_place(inplace, "fill_diagonal")
    a, val = beside("fill_diagonal", a, val)
    if a.ndim < 2 or (a.ndim > 2 and len(set(a.shape)) > 1):
        raise ShapeError(f"fill_diagonal: takes a matrix, or axes that are all of one length, got shape {a.shape}.")
    step = 1 + int(np.cumprod(a.shape[:-1]).sum()) if a.ndim > 2 else a.shape[1] + 1
    end = a.size if wrap or a.ndim > 2 else min(a.size, a.shape[1] * a.shape[1])
    places = np.arange(0, end, step)
    values = ops.ravel(_fitted("fill_diagonal", val, a))
    values = values[:0] if not places.size else ops.tile(values, -(-places.size // values.size))[: places.size]
    flat = bind(scatter_set_op, (ops.ravel(a), values, operand(places, a)), ((0,), 0, True))
    return ops.reshape(flat, a._shape)


def put(a: Any, ind: Any, v: Any, mode: str = "raise", *, inplace: bool = False) -> Any:
    """A new tensor with `v` (repeated as needed) at places of the flattened one.

    >>> import functad.numpy as fnp
    >>> fnp.put([1, 2, 3], [0, 2], [8, 9]).tolist()
    [8, 2, 9]
    """
    _refuse_in_place(inplace, "put")
    a, ind, v = beside("put", a, ind, v)
    ind = ops.ravel(operand(ind, a, where="put"))
    if mode != "raise":
        ind = inside(ind, a.size, mode, "put")
    v = ops.ravel(_fitted("put", v, a))
    if not ind.size or not v.size:
        return a
    values = ops.tile(v, -(-ind.size // v.size))[: ind.size]
    return ops.reshape(ops.ravel(a).at[ind].set(values), a._shape)


def place(arr: Any, mask: Any, vals: Any, *, inplace: bool = False) -> Any:
    """A new tensor with `vals`, one after the other and repeated as needed, where the mask is true.

    >>> import functad.numpy as fnp
    >>> fnp.place([1, 2, 3], [True, False, True], [8, 9]).tolist()
    [8, 2, 9]
    """
    _refuse_in_place(inplace, "place")
    arr, mask, vals = beside("place", arr, mask, vals)
    mask = ops.ravel(operand(mask, arr, dtypes.bool_))
    vals = ops.ravel(_fitted("place", vals, arr))
    number = ops.remainder(ops.maximum(ops.cumsum(mask) - 1, 0), max(vals.size, 1))
    return ops.reshape(ops.where(mask, take_inside(vals, number), ops.ravel(arr)), arr._shape)


def putmask(a: Any, mask: Any, values: Any, *, inplace: bool = False) -> Any:
    """A new tensor with the element of `values` (repeated as needed) in its place where the mask is true.

    >>> import functad.numpy as fnp
    >>> fnp.putmask([1, 2, 3], [True, False, True], [7, 8, 9]).tolist()
    [7, 2, 9]
    """
    _refuse_in_place(inplace, "putmask")
    a, mask, values = beside("putmask", a, mask, values)
    values = ops.ravel(_fitted("putmask", values, a))
    every = ops.reshape(ops.tile(values, -(-a.size // max(values.size, 1)))[: a.size], a._shape)
    return ops.where(operand(mask, a, dtypes.bool_), every, a)


def _refuse_in_place(inplace: bool, where: str) -> None:
    if inplace:
        raise ArgumentError(f"{where}: tensors are immutable; write x = {where}(x, ...), which returns a new one.")


def _fitted(where: str, values: Any, a: Any) -> Any:
    """Values as tensors of the dtype of `a`; complex ones do not fit real numbers."""
    return operand(operand(values, a, where=where), a, a._dtype, where)
