"""Sets of elements. Their number depends on values, so these are for eager mode; gradients flow to the elements kept."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from functad import dtypes, ops
from functad.dispatch import Handle
from functad.errors import ArgumentError, DTypeError
from functad.numpy.arguments import host
from functad.numpy.searching import lexsort
from functad.ops.axes import counted, normalize_axis
from functad.ops.index import take_inside
from functad.ops.operand import operand, operands
from functad.ops.search import searchsorted

__all__ = [
    "in1d", "intersect1d", "isin", "setdiff1d", "setxor1d", "union1d", "unique", "unique_all", "unique_counts",
    "unique_inverse", "unique_values",
]  # fmt: skip


class UniqueAll(NamedTuple):
    """What `unique_all` returns."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCounts(NamedTuple):
    """What `unique_counts` returns."""

    values: Any
    counts: Any


class UniqueInverse(NamedTuple):
    """What `unique_inverse` returns."""

    values: Any
    inverse_indices: Any


_FEW = 64  # elements that are compared with every one, before sorting them pays


def unique(
    ar: Any, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False,
    axis: int | None = None, *, equal_nan: bool = True, sorted: bool = True, size: int | None = None,
    fill_value: Any = None,
) -> Any:  # fmt: skip
    """The different elements in ascending order, or the different entries of an axis. Eager only without `size`.

    Args:
        ar: anything a tensor can be made of.
        return_index: whether to return where each occurs first.
        return_inverse: whether to return the number of each element among the results.
        return_counts: whether to return how often each occurs.
        axis: the axis; without one all elements count.
        equal_nan: whether NaN equals NaN.
        sorted: makes no difference: the result is always sorted.
        size: how many to return, as in JAX, so that the shape is known under jit and vmap: the first so many, filled up
            where there are fewer, with counts of 0.
        fill_value: what is filled in; the first result, without it.

    >>> import functad.numpy as fnp
    >>> [x.tolist() for x in fnp.unique([3, 1, 3], return_counts=True)]
    [[1, 3], [1, 2]]
    >>> fnp.unique([3, 1, 3], size=4, fill_value=0).tolist()
    [1, 3, 0, 0]
    """
    ar = operand(ar, where="unique")
    if size is None and fill_value is not None:
        raise ArgumentError("unique: fill_value fills up to a size; write unique(x, size=n, fill_value=v).")
    found = _unique(ar, axis, equal_nan) if size is None else _sized(ar, axis, equal_nan, size, fill_value)
    values, index, inverse, counts = found
    out = [values]
    out += [index] if return_index else []
    out += [inverse] if return_inverse else []
    out += [counts] if return_counts else []
    return out[0] if len(out) == 1 else tuple(out)


def _unique(x: Any, axis: int | None, equal_nan: bool) -> tuple[Any, Any, Any, Any]:
    axis = None if axis is None else normalize_axis(axis, x.ndim, "unique")
    data = host(x, "unique", "it decides how many there are")
    data = data.astype(np.float32) if dtypes.is_half(x._dtype) else data  # NumPy misplaces the NaNs of bfloat16
    _, index, inverse, counts = np.unique(data, True, True, True, axis, equal_nan=equal_nan)
    index, inverse, counts = (operand(i, x, dtypes.default_int()) for i in (index, inverse, counts))
    if axis is None:
        return take_inside(x, index), index, ops.reshape(inverse, x._shape), counts
    return take_inside(x, index, axis), index, inverse, counts


def _sized(x: Any, axis: int | None, equal_nan: bool, size: Any, fill_value: Any) -> tuple[Any, Any, Any, Any]:
    """The first `size` of them, found by sorting; entries of an axis as rows."""
    size = counted(size, "unique", "size")
    if size < 0:
        raise ArgumentError(f"unique: size must not be negative, got {size}.")
    axis = None if axis is None else normalize_axis(axis, x.ndim, "unique")
    flat = ops.ravel(x) if axis is None else ops.moveaxis(x, axis, 0)
    n, rest = flat._shape[0], flat._shape[1:]
    if size and not n and fill_value is None:
        raise ArgumentError(f"unique: there is nothing to fill {size} places with; write fill_value=.")
    rows = ops.reshape(ops.stop_gradient(flat), (n, math.prod(rest)))
    order = lexsort(ops.unstack(rows, 1)[::-1]) if rows._shape[1] else operand(np.arange(n), x)
    ordered = take_inside(rows, order, 0)
    before, after = ordered[:-1], ordered[1:]
    other = before != after
    if equal_nan and dtypes.is_inexact(x._dtype):
        other = ops.logical_and(other, ops.logical_not(ops.logical_and(ops.isnan(before), ops.isnan(after))))
    first = ops.concatenate([operand(np.ones(min(n, 1), bool), x), ops.any(other, 1)])
    number = ops.cumsum(first.astype(dtypes.default_int())) - 1
    places = operand(np.arange(n), x, dtypes.default_int())
    start = ops.broadcast_to(operand(n, x, dtypes.default_int()), (size + 1,))
    start = start.at[ops.minimum(number, size)].min(places)
    counts, start = start[1:] - start[:-1], start[:-1]
    there = start < n
    inverse = (number * 0).at[order].set(number)
    inverse = ops.reshape(inverse, x._shape) if axis is None else inverse
    if not n:
        values = ops.broadcast_to(operand(fill_value, x, x._dtype), (size, *rest))
        return (values if axis is None else ops.moveaxis(values, 0, axis)), start, inverse, counts
    index = take_inside(order, ops.where(there, start, 0))
    values = take_inside(flat, index, 0)
    if fill_value is not None:
        kept = ops.reshape(there, (size, *[1] * len(rest)))
        values = ops.where(kept, values, operand(fill_value, x).astype(x._dtype))
    return (values if axis is None else ops.moveaxis(values, 0, axis)), index, inverse, counts


def unique_all(x: Any, /) -> UniqueAll:
    """The different elements, where each occurs first, the number of each element among them, and how often it occurs.

    NaN equals nothing. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.unique_all([3, 1, 3]).counts.tolist()
    [1, 2]
    """
    return UniqueAll(*_unique(operand(x, where="unique_all"), None, equal_nan=False))


def unique_counts(x: Any, /) -> UniqueCounts:
    """The different elements and how often each occurs; see `unique_all`.

    >>> import functad.numpy as fnp
    >>> [part.tolist() for part in fnp.unique_counts([3, 1, 3])]
    [[1, 3], [1, 2]]
    """
    found = unique_all(x)
    return UniqueCounts(found.values, found.counts)


def unique_inverse(x: Any, /) -> UniqueInverse:
    """The different elements and the number of each element among them; see `unique_all`.

    >>> import functad.numpy as fnp
    >>> [part.tolist() for part in fnp.unique_inverse([3, 1, 3])]
    [[1, 3], [1, 0, 1]]
    """
    found = unique_all(x)
    return UniqueInverse(found.values, found.inverse_indices)


def unique_values(x: Any, /) -> Any:
    """The different elements; see `unique_all`.

    >>> import functad.numpy as fnp
    >>> fnp.unique_values([3, 1, 3]).tolist()
    [1, 3]
    """
    return unique_all(x).values


def isin(
    element: Any, test_elements: Any, assume_unique: bool = False, invert: bool = False, *, kind: Any = None
) -> Any:
    """Where `element` is among `test_elements` (is not, with `invert`). NaN is among nothing.

    >>> import functad.numpy as fnp
    >>> fnp.isin([[1, 2], [3, 4]], [1, 4]).tolist()
    [[True, False], [False, True]]
    """
    element, test_elements = (ops.stop_gradient(x) for x in operands("isin", "compare", (element, test_elements)))
    if element._dtype.kind == "c":
        raise DTypeError("isin: complex numbers have no order; compare the parts.")
    if not test_elements.size:
        found = ops.broadcast_to(operand(False, element), element._shape)
    elif test_elements.size <= _FEW:
        found = ops.any(ops.expand_dims(element, -1) == ops.ravel(test_elements), -1)
    else:
        ordered = ops.sort(ops.ravel(test_elements))
        place = ops.clip(searchsorted(ordered, element), 0, ordered.size - 1)
        found = take_inside(ordered, place) == element
    return ops.logical_not(found) if invert else found


def in1d(ar1: Any, ar2: Any, assume_unique: bool = False, invert: bool = False) -> Any:
    """`isin` of the flattened tensor.

    >>> import functad.numpy as fnp
    >>> fnp.in1d([[1, 2]], [2]).tolist()
    [False, True]
    """
    return isin(ops.ravel(operand(ar1, ar2 if isinstance(ar2, Handle) else None)), ar2, assume_unique, invert)


def union1d(ar1: Any, ar2: Any) -> Any:
    """The different elements of both. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.union1d([1, 3], [2, 3]).tolist()
    [1, 2, 3]
    """
    ar1, ar2 = operands("union1d", "numeric", (ar1, ar2))
    return unique(ops.concatenate([ar1, ar2], None))


def intersect1d(ar1: Any, ar2: Any, assume_unique: bool = False, return_indices: bool = False) -> Any:
    """The different elements that are in both (and where they occur first in each). Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.intersect1d([1, 3, 3], [2, 3]).tolist()
    [3]
    """
    ar1, ar2 = operands("intersect1d", "numeric", (ar1, ar2))
    first, second = (host(x, "intersect1d") for x in (ar1, ar2))
    _, mine, theirs = np.intersect1d(first, second, assume_unique, True)
    mine, theirs = (operand(i, ar1, dtypes.default_int()) for i in (mine, theirs))
    values = take_inside(ar1, mine)
    return (values, mine, theirs) if return_indices else values


def setdiff1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """The different elements of the first that are not in the second. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.setdiff1d([1, 3, 3], [2, 3]).tolist()
    [1]
    """
    ar1, ar2 = operands("setdiff1d", "numeric", (ar1, ar2))
    kept = ops.ravel(ar1) if assume_unique else unique(ar1)
    return kept[isin(kept, ar2, invert=True)]


def setxor1d(ar1: Any, ar2: Any, assume_unique: bool = False) -> Any:
    """The different elements that are in one of the two only. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.setxor1d([1, 3, 3], [2, 3]).tolist()
    [1, 2]
    """
    ar1, ar2 = operands("setxor1d", "numeric", (ar1, ar2))
    return ops.sort(ops.concatenate([setdiff1d(ar1, ar2), setdiff1d(ar2, ar1)]))
