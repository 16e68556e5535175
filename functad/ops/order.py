"""Sorting and the largest elements: indices chosen once, in the forward run, and gathered."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import ArgumentTypeError, OutOfBoundsError, ShapeError
from functad.ops.axes import normalize_axis
from functad.ops.op import Cost, Op, Samples
from functad.ops.operand import operand, without_value
from functad.ops.rules import custom, linear, nondiff, reshape_op, shift_axis

__all__ = [
    "argpartition", "argsort", "argsort_op", "kthvalue", "partition", "put_along_axis_op", "sort", "sort_op",
    "take_along_axis_op", "topk",
]  # fmt: skip

# NaN counts as the largest value, as in NumPy's ascending sort and in max: a sort has it last, a
# descending one and topk first. Equal elements keep their order both ways.


def _grid(xp: Any, indices: Any, axis: int) -> tuple[Any, ...]:
    """The open grid with `indices` along `axis`."""
    shape = indices.shape
    return tuple(
        indices if i == axis else xp.arange(n).reshape([n if j == i else 1 for j in range(len(shape))])
        for i, n in enumerate(shape)
    )


def _put(xp: Any, x: Any, indices: Any, *, axis: int, size: int) -> Any:
    zeros = xp.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), dtypes.accumulator(x.dtype))
    if xp is np:
        np.add.at(zeros, _grid(xp, _brought_inside(indices, size), axis), x.astype(zeros.dtype))
    else:
        zeros = zeros.at[_grid(xp, indices, axis)].add(x.astype(zeros.dtype), mode="clip")
    return zeros.astype(x.dtype)


def _take_along(xp: Any, x: Any, indices: Any, *, axis: int) -> Any:
    if xp is np:
        return np.take_along_axis(x, _brought_inside(indices, x.shape[axis]), axis)
    return xp.take_along_axis(x, indices, axis, mode="clip")


def _brought_inside(indices: Any, n: int) -> Any:
    """NumPy's indices as XLA has them where nobody checked: the nearest position."""
    return np.clip(np.where(indices < 0, indices + n, indices), 0, max(n - 1, 0))


def _argsort(xp: Any, x: Any, *, axis: int, descending: bool) -> Any:
    if xp is not np:
        return xp.argsort(x, axis=axis, stable=True, descending=descending).astype(dtypes.default_int())
    x, last = _sortable(x), x.shape[axis] - 1  # which refuses 0-d
    if not descending:
        return np.argsort(x, axis, stable=True).astype(dtypes.default_int())
    order = np.argsort(np.flip(x, axis), axis, stable=True)
    return (last - np.flip(order, axis)).astype(dtypes.default_int())


def _sort(xp: Any, x: Any, *, axis: int, descending: bool) -> Any:
    """The values and where they stood; XLA leaves out the places if nothing reads them."""
    if xp is np:
        order = _argsort(xp, x, axis=axis, descending=descending)
        return np.take_along_axis(x, order, axis), order
    if descending:  # turned round, so that equal elements keep their order
        values, order = _sort(xp, xp.flip(x, axis), axis=axis, descending=False)
        return xp.flip(values, axis), x.shape[axis] - 1 - xp.flip(order, axis)
    place = jax.lax.broadcasted_iota(dtypes.default_int(), x.shape, axis)
    return jax.lax.sort((x, place), dimension=axis, is_stable=True, num_keys=1)


def _topk(xp: Any, x: Any, *, k: int, axis: int, largest: bool) -> Any:
    if k > x.shape[axis]:
        raise ShapeError(f"topk: k={k} elements of an axis that has {x.shape[axis]}.")
    if xp is np or x.dtype.kind == "c":
        return _front(_argsort(xp, x, axis=axis, descending=largest), k, axis)

    def found(keys: Any) -> Any:
        return xp.moveaxis(jax.lax.top_k(xp.moveaxis(keys, axis, -1), k)[1], -1, axis).astype(dtypes.default_int())

    if not dtypes.is_float(x.dtype):
        x = x.astype(np.uint8) if x.dtype == dtypes.bool_ else x
        return found(x if largest else ~x)
    # XLA has -0 below 0, and NaN at either end by its sign. float32 is the dtype in which a CPU does it fast.
    wide = x.astype(dtypes.accumulator(x.dtype))
    zero, nan = xp.zeros((), wide.dtype), xp.asarray(np.copysign(np.nan, 1 if largest else -1), wide.dtype)
    keys = xp.where(wide == 0, zero, xp.where(wide == wide, wide if largest else -wide, nan))
    if largest:
        return found(keys)
    return jax.lax.platform_dependent(
        keys, x, cpu=lambda keys, x: found(keys),
        default=lambda keys, x: _front(_argsort(xp, x, axis=axis, descending=False), k, axis),
    )  # fmt: skip


def _front(x: Any, k: int, axis: int) -> Any:
    return x[(slice(None),) * axis + (slice(k),)]


def _argpartition(xp: Any, x: Any, *, kth: int, axis: int) -> Any:
    """The few smallest (or largest) elements trade places with those that stand where they belong."""
    n = x.shape[axis]
    below = 2 * kth < n
    count = kth + 1 if below else n - kth
    chosen = xp.moveaxis(_topk(xp, x, k=count, axis=axis, largest=not below), axis, -1)
    lead = chosen.shape[:-1]
    chosen = (chosen if below else xp.flip(chosen, -1)).reshape(-1, count)
    start = 0 if below else kth  # of the region that the chosen ones go to
    inside = (chosen >= start) & (chosen < start + count)
    # the i-th element of the region that is not chosen goes to where the i-th chosen one from outside stood
    stays = _set(xp, xp.zeros((len(chosen), count + 1), bool), xp.where(inside, chosen - start, count), True)[:, :count]
    place = xp.broadcast_to(xp.arange(count, dtype=chosen.dtype), chosen.shape)
    leaving = xp.zeros((len(chosen), count + 1), chosen.dtype)
    leaving = _set(xp, leaving, xp.where(stays, count, xp.cumsum(~stays, -1) - 1), place + start)
    entering = xp.cumsum(~inside, -1) - 1
    order = xp.broadcast_to(xp.arange(n + 1, dtype=chosen.dtype), (len(chosen), n + 1))
    moved = xp.take_along_axis(leaving, xp.where(inside, count, entering), -1)
    order = _set(xp, order, xp.where(inside, n, chosen), moved)
    order = _set(xp, order, place + start, chosen)[:, :n]
    return xp.moveaxis(order.reshape(*lead, n), -1, axis).astype(dtypes.default_int())


def _set(xp: Any, x: Any, columns: Any, values: Any) -> Any:
    """`x` with `values` in some columns of each row."""
    if xp is not np:
        return x.at[xp.arange(len(x))[:, None], columns].set(values)
    x = np.array(x)
    np.put_along_axis(x, columns, values, -1)
    return x


def _lexsort(xp: Any, *keys: Any, axis: int) -> Any:
    if xp is np:
        return np.lexsort([_sortable(x) for x in keys], axis).astype(dtypes.default_int())
    place = jax.lax.broadcasted_iota(dtypes.default_int(), keys[0].shape, axis)
    return jax.lax.sort((*keys[::-1], place), dimension=axis, is_stable=True, num_keys=len(keys))[-1]


def _sortable(x: Any) -> Any:
    return x.astype(np.float32) if dtypes.is_half(x.dtype) else x  # NumPy misplaces the NaNs of bfloat16


def _gather_samples(rng: np.random.Generator) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [
        ((rng.normal(size=shape), rng.integers(0, shape[axis], picked)), {"axis": axis})
        for shape, picked, axis in (
            ((4,), (6,), 0),
            ((3, 4), (3, 2), 1),
            ((3, 4, 2), (5, 4, 2), 0),
            ((2, 3), (2, 0), 1),
        )
    ]


def _scatter_samples(rng: np.random.Generator) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [
        ((rng.normal(size=shape), rng.integers(0, size, shape)), {"axis": axis, "size": size})
        for shape, size, axis in (((6,), 4, 0), ((3, 2), 5, 1), ((2, 0), 3, 1))
    ]


take_along_axis_op = linear(
    "take_along_axis", _take_along,
    lambda g, indices, x_shape, axis: bind(put_along_axis_op, (g, indices), (axis, x_shape[axis])), None,
    cost=Cost.COMPUTE, samples=Samples(make=_gather_samples), batch=shift_axis,
    doc="One element per index along an axis; the other axes have equal lengths.",
)  # fmt: skip
put_along_axis_op: Op = linear(
    "put_along_axis", _put, lambda g, indices, axis: bind(take_along_axis_op, (g, indices), (axis,)), None,
    cost=Cost.COMPUTE, samples=Samples(make=_scatter_samples), batch=shift_axis,
    doc="Zeros of length `size` along an axis, with each element added at its index.",
)  # fmt: skip
sort_op = custom(
    "sort", _sort,
    vjp=lambda g, out, x_shape, axis: bind(put_along_axis_op, (g[0], out[1]), (axis, x_shape[axis])),
    jvp=lambda t, out, axis: (bind(take_along_axis_op, (t, out[1]), (axis,)), None),
    cost=Cost.COMPUTE, samples=Samples([
        (((5,),), {"axis": 0, "descending": False}), (((3, 4),), {"axis": 0, "descending": True}),
        (((2, 0),), {"axis": 1, "descending": False}),
    ]),
    batch=shift_axis, doc="The elements of an axis in order, and the indices that put them so; stable.",
)  # fmt: skip
argsort_op = nondiff(
    "argsort", _argsort, cost=Cost.COMPUTE, samples=Samples([
        (((5,),), {"axis": 0, "descending": False}), (((3, 4),), {"axis": 0, "descending": True}),
        (((2, 0),), {"axis": 1, "descending": False}),
    ]),
    batch=shift_axis, doc="The indices that sort an axis, stable.",
)  # fmt: skip
topk_op = nondiff(
    "topk", _topk, cost=Cost.COMPUTE, samples=Samples([
        (((5,),), {"k": 2, "axis": 0, "largest": True}), (((3, 4),), {"k": 3, "axis": 0, "largest": False}),
        (((2, 3),), {"k": 0, "axis": 1, "largest": True}),
    ]),
    batch=shift_axis, doc="The indices of the k largest (smallest) elements along an axis, in descending (ascending) order.",
)  # fmt: skip
argpartition_op = nondiff(
    "argpartition", _argpartition, cost=Cost.COMPUTE, samples=Samples([
        (((7,),), {"kth": 2, "axis": 0}), (((6, 2),), {"kth": 4, "axis": 0}), (((2, 1),), {"kth": 0, "axis": 1}),
    ]),
    batch=shift_axis, doc="The indices that put the `kth` element in order, smaller ones before it, larger ones after it.",
)  # fmt: skip
lexsort_op = nondiff(
    "lexsort", _lexsort, cost=Cost.COMPUTE, samples=Samples(
        make=lambda rng: [
            (tuple(rng.integers(0, 3, shape).astype(float) for _ in range(2)), {"axis": axis})
            for shape, axis in (((9,), 0), ((5, 3), 0))
        ]
    ),
    batch=shift_axis, doc="The indices that sort an axis by several keys, the last one first; stable.",
)  # fmt: skip


def sort(x: Any, axis: int | None = -1, descending: bool = False) -> Any:
    """The elements in order along `axis`; of the flattened tensor with None.

    Equal elements keep their order, NaN counts as the largest, and the derivative follows the
    permutation that was chosen.

    >>> import functad as fd
    >>> fd.grad(lambda x: (fd.ops.sort(x) * fd.tensor([1.0, 2.0, 3.0])).sum())(fd.tensor([5.0, 4.0, 6.0])).tolist()
    [2.0, 1.0, 3.0]
    """
    x, axis = line(x, axis, "sort")
    return bind(sort_op, (x,), (axis, bool(descending)))[0]


def argsort(x: Any, axis: int | None = -1, descending: bool = False) -> Any:
    """The indices that put `axis` in order; see `sort`.

    >>> import functad as fd
    >>> fd.ops.argsort(fd.tensor([5.0, 4.0, 6.0])).tolist()
    [1, 0, 2]
    """
    x, axis = line(x, axis, "argsort")
    return bind(argsort_op, (x,), (axis, bool(descending)))


class Chosen(NamedTuple):
    """Elements and their places along an axis, by torch's names."""

    values: Any
    indices: Any


def topk(x: Any, k: int, axis: int | None = -1, largest: bool = True, sorted: bool = True) -> Chosen:
    """The `k` largest elements along `axis`, largest first, and their indices.

    Args:
        x: the tensor.
        k: how many; a part of the result's shape.
        axis: where to look; the flattened tensor with None.
        largest: False for the `k` smallest, smallest first.
        sorted: torch's leave to return them in any order; they are sorted anyway.

    Among equal elements the first come first; NaN counts as the largest. Raises `ShapeError` if
    the axis has fewer than `k` elements.

    >>> import functad as fd
    >>> top = fd.ops.topk(fd.tensor([5.0, 4.0, 6.0]), 2)
    >>> top.values.tolist(), top.indices.tolist()
    ([6.0, 5.0], [2, 0])
    """
    x, axis = line(x, axis, "topk")
    count = _whole(k, "topk: k")
    if not 0 <= count <= x.shape[axis]:
        raise ShapeError(
            f"topk: k={count} elements of axis {axis}, which has {x.shape[axis]} (shape {x.shape}); k is at most that, "
            "and not negative."
        )
    indices = bind(topk_op, (x,), (count, axis, bool(largest)))
    return Chosen(bind(take_along_axis_op, (x, indices), (axis,)), indices)


def kthvalue(x: Any, k: int, axis: int | None = -1, keepdims: bool = False) -> Chosen:
    """The `k`-th smallest element along `axis` (from 1 on), and its index. The derivative goes to it alone.

    >>> import functad as fd
    >>> [y.item() for y in fd.ops.kthvalue(fd.tensor([5.0, 4.0, 6.0]), 2)]
    [5.0, 0]
    """
    x, axis = line(x, axis, "kthvalue")
    place = _whole(k, "kthvalue: k")
    if not 1 <= place <= x.shape[axis]:
        raise ShapeError(
            f"kthvalue: k={place} counts from 1 up to the length of axis {axis}, {x.shape[axis]} (shape {x.shape})."
        )
    piece = (slice(None),) * axis + (slice(place - 1, place),)
    index = bind(topk_op, (x,), (place, axis, False))[piece]
    found = Chosen(bind(take_along_axis_op, (x, index), (axis,)), index)
    return found if keepdims else Chosen(*[part.squeeze(axis) for part in found])


def partition(x: Any, kth: Any, axis: int | None = -1) -> Any:
    """The elements with the `kth` one where it is in order along `axis`, smaller ones before and larger ones after it.

    Args:
        x: the tensor.
        kth: an int, or several, which all come to stand in order; negative ones count from the end.
        axis: the axis; the flattened tensor with None.

    NaN counts as the largest. The derivative follows the permutation that was chosen. Raises `OutOfBoundsError` for a
    `kth` outside the axis.

    >>> import functad as fd
    >>> fd.ops.partition(fd.tensor([5.0, 4.0, 6.0, 1.0]), 0).tolist()
    [1.0, 4.0, 6.0, 5.0]
    """
    x, axis = line(x, axis, "partition")
    places = _places(kth, x, axis, "partition")
    if len(places) != 1:
        return bind(sort_op, (x,), (axis, False))[0]
    return bind(take_along_axis_op, (x, bind(argpartition_op, (x,), (*places, axis))), (axis,))


def argpartition(x: Any, kth: Any, axis: int | None = -1) -> Any:
    """The indices of `partition`.

    >>> import functad as fd
    >>> fd.ops.argpartition(fd.tensor([5.0, 4.0, 6.0, 1.0]), 0).tolist()
    [3, 1, 2, 0]
    """
    x, axis = line(x, axis, "argpartition")
    places = _places(kth, x, axis, "argpartition")
    if len(places) != 1:
        return bind(argsort_op, (x,), (axis, False))
    return bind(argpartition_op, (x,), (*places, axis))


def _places(kth: Any, x: Any, axis: int, where: str) -> list[int]:
    n = x.shape[axis]
    try:
        places = [operator.index(k) for k in (np.ravel(kth) if hasattr(kth, "__len__") else [kth])]
    except TypeError:
        raise ArgumentTypeError(f"{where}: kth is an int or a sequence of ints, got {kth!r}.") from None
    for k in places:
        if not -n <= k < n:
            raise OutOfBoundsError(f"{where}: kth={k} is outside axis {axis} of length {n} (shape {x.shape}).")
    return sorted({k % n for k in places})


def _whole(k: Any, what: str) -> int:
    try:
        return operator.index(k)
    except TypeError:
        raise ArgumentTypeError(
            f"{what} must be an int, got {k!r} of type {type(k).__name__}.{without_value(k)}"
        ) from None


def line(x: Any, axis: int | None, where: str) -> tuple[Any, int]:
    """`x` and one axis of it; None stands for the flattened tensor."""
    x = operand(x, where=where)
    if axis is None:
        return (x if x.ndim == 1 else bind(reshape_op, (x,), ((x.size,),))), 0
    return x, normalize_axis(axis, x.ndim, where)
