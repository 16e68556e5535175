"""Sets of elements. Their number depends on values, so these are for eager mode; gradients flow to the elements kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from functad import dtypes, ops
from functad.dispatch import Handle
from functad.errors import DTypeError
from functad.numpy.arguments import host
from functad.ops.axes import normalize_axis
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
    axis: int | None = None, *, equal_nan: bool = True, sorted: bool = True,
) -> Any:  # fmt: skip
    """The different elements in ascending order, or the different entries of an axis. Eager only.

    Args:
        ar: anything a tensor can be made of.
        return_index: whether to return where each occurs first.
        return_inverse: whether to return the number of each element among the results.
        return_counts: whether to return how often each occurs.
        axis: the axis; without one all elements count.
        equal_nan: whether NaN equals NaN.
        sorted: makes no difference: the result is always sorted.

    >>> import functad.numpy as fnp
    >>> [x.tolist() for x in fnp.unique([3, 1, 3], return_counts=True)]
    [[1, 3], [1, 2]]
    """
    ar = operand(ar, where="unique")
    values, index, inverse, counts = _unique(ar, axis, equal_nan)
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
