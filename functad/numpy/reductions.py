"""Sums, means, extrema and spreads over axes, with NumPy's arguments and the standard's."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from functad import dtypes, ops
from functad.errors import ArgumentError
from functad.numpy.arguments import beside, refuse_out
from functad.ops.axes import normalize_axes, normalize_axis, several
from functad.ops.cumulative import integers_widened
from functad.ops.halves import rounded_once
from functad.ops.operand import operand, operands

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "average", "count_nonzero", "cumprod", "cumsum", "cumulative_prod",
    "cumulative_sum", "max", "mean", "min", "prod", "ptp", "std", "sum", "var",
]  # fmt: skip


def converted(a: Any, dtype: Any, where: str) -> Any:
    """`a` as a tensor, of `dtype` if one is asked for."""
    a = operand(a, where=where)
    return a if dtype is None else a.astype(dtype)


def sum(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The sum over axes (an int, several, or None for all); 0 over none.

    Args:
        a: anything a tensor can be made of.
        axis: the axes.
        dtype: in which to sum; without it bools and small integers become the default int, half
            types accumulate in float32.
        out: refused: tensors are immutable.
        keepdims: whether reduced axes stay, with length 1.
        initial: a number that is added.
        where: which elements count; the others get no derivative.

    >>> import functad.numpy as fnp
    >>> fnp.sum([[1, 2], [3, 4]], axis=0, dtype="float32").tolist()
    [4.0, 6.0]
    """
    refuse_out(out, "sum")
    a = converted(a, dtype, "sum")
    given = a._dtype
    total = ops.sum(a if where is None else ops.where(where, a, 0), axis, keepdims)
    total = total if initial is None else total + initial
    return total if dtype is None else total.astype(given)


def prod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The product over axes; 1 over none. Derivatives are exact with any number of zeros; see `sum`.

    >>> import functad.numpy as fnp
    >>> fnp.prod([[1.0, 2.0], [3.0, 4.0]], axis=1, where=[[True, True], [False, True]]).tolist()
    [2.0, 4.0]
    """
    refuse_out(out, "prod")
    a = converted(a, dtype, "prod")
    given = a._dtype
    total = ops.prod(a if where is None else ops.where(where, a, 1), axis, keepdims)
    total = total if initial is None else total * initial
    return total if dtype is None else total.astype(given)


def mean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """The mean over axes, a float; NaN over none. See `sum`.

    >>> import functad.numpy as fnp
    >>> fnp.mean([1, 2, 9], where=[True, True, False]).item()
    1.5
    """
    refuse_out(out, "mean")
    a = converted(a, dtype, "mean")
    return ops.mean(a, axis, keepdims) if where is None else masked_mean(a, where, axis, keepdims, "mean")


def var(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The variance over axes, from centred data.

    Args:
        a: anything a tensor can be made of.
        axis: the axes.
        dtype: in which to compute.
        out: refused: tensors are immutable.
        ddof: what is subtracted from the count (the standard's name is `correction`).
        keepdims: whether reduced axes stay, with length 1.
        where: which elements count.
        mean: the mean, with reduced axes of length 1, where it is known.
        correction: another name of `ddof`.

    >>> import functad.numpy as fnp
    >>> fnp.var([10001.0, 10002.0, 10003.0], correction=1).item()
    1.0
    """
    refuse_out(out, "var")
    a = converted(a, dtype, "var")
    ddof = _correction(ddof, correction, "var")
    if where is None and mean is None:
        return ops.var(a, axis, ddof, keepdims)
    return masked_var(a, where, axis, ddof, keepdims, "var", mean)


def std(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The standard deviation over axes; the derivative where all are equal is 0. See `var`.

    >>> import functad.numpy as fnp
    >>> fnp.std([[1.0, 3.0], [2.0, 2.0]], axis=1).tolist()
    [1.0, 0.0]
    """
    refuse_out(out, "std")
    a = converted(a, dtype, "std")
    ddof = _correction(ddof, correction, "std")
    if where is None and mean is None:
        return ops.std(a, axis, ddof, keepdims)
    return masked_var(a, where, axis, ddof, keepdims, "std", mean)


def max(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest element over axes; NaN if there is one. Ties share the derivative equally.

    `initial` is a number that takes part; with `where`, which says what elements count, it is needed.

    >>> import functad.numpy as fnp
    >>> fnp.max([1.0, 5.0], where=[True, False], initial=0).item()
    1.0
    """
    return _extreme(ops.max, "max", ops.maximum, a, axis, out, keepdims, initial, where)


def min(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest element over axes; see `max`.

    >>> import functad.numpy as fnp
    >>> fnp.min([[3.0, 1.0], [2.0, 4.0]], axis=1).tolist()
    [1.0, 2.0]
    """
    return _extreme(ops.min, "min", ops.minimum, a, axis, out, keepdims, initial, where)


amax, amin = max, min


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The largest element less the smallest.

    >>> import functad.numpy as fnp
    >>> fnp.ptp([3.0, 1.0, 6.0]).item()
    5.0
    """
    refuse_out(out, "ptp")
    a = operand(a, where="ptp")
    return ops.max(a, axis, keepdims) - ops.min(a, axis, keepdims)


def all(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether all elements over axes are nonzero (NaN is); True over none.

    >>> import functad.numpy as fnp
    >>> fnp.all([[True, False], [True, True]], axis=1).tolist()
    [False, True]
    """
    refuse_out(out, "all")
    a = operand(a, where="all")
    return ops.all(a if where is None else ops.logical_or(a, ops.logical_not(where)), axis, keepdims)


def any(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None) -> Any:
    """Whether any element over axes is nonzero (NaN is); False over none.

    >>> import functad.numpy as fnp
    >>> fnp.any([[True, False], [False, False]], axis=1).tolist()
    [True, False]
    """
    refuse_out(out, "any")
    a = operand(a, where="any")
    return ops.any(a if where is None else ops.logical_and(a, where), axis, keepdims)


def count_nonzero(a: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    """How many elements over axes are nonzero.

    >>> import functad.numpy as fnp
    >>> fnp.count_nonzero([0.0, 2.0, -1.0]).item()
    2
    """
    return ops.count_nonzero(a, axis, keepdims)


def argmax(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """The index of the first largest element along `axis`, of the flattened tensor without one.

    >>> import functad.numpy as fnp
    >>> fnp.argmax([1.0, 3.0, 3.0]).item()
    1
    """
    refuse_out(out, "argmax")
    return ops.argmax(a, axis, keepdims)


def argmin(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """The index of the first smallest element; see `argmax`.

    >>> import functad.numpy as fnp
    >>> fnp.argmin([[3.0, 1.0], [2.0, 4.0]], axis=1).tolist()
    [1, 0]
    """
    refuse_out(out, "argmin")
    return ops.argmin(a, axis, keepdims)


@rounded_once
def average(a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: bool = False) -> Any:
    """The mean over axes, weighted by `weights` of the shape of `a`, or of the reduced axes.

    With `returned`, a pair of it and the sum of the weights. Differentiable in both.

    >>> import functad.numpy as fnp
    >>> fnp.average([1.0, 2.0, 6.0], weights=[1.0, 1.0, 2.0]).item()
    3.75
    """
    a, weights = beside("average", a, weights)
    (a,) = operands("average", "float", (a,))
    axes = normalize_axes(axis, a.ndim, "average")
    if weights is None:
        out = ops.mean(a, axes, keepdims)
        total: Any = float(_size(a._shape, axes))
    else:
        a, weights = operands("average", "float", (a, weights))
        if weights._shape != a._shape:
            given = several(axis)
            order = [normalize_axis(i, a.ndim, "average") for i in given] if axis is not None else []
            if weights._shape != tuple([a._shape[i] for i in order]):
                raise ArgumentError(
                    f"average: weights of shape {weights.shape} fit neither the shape {a.shape} of the data nor its "
                    f"axes {axis}."
                )
            weights = ops.transpose(weights, sorted(range(len(order)), key=order.__getitem__))
            weights = weights.reshape(tuple([n if i in axes else 1 for i, n in enumerate(a._shape)]))
        total = ops.sum(ops.broadcast_to(weights, a._shape), axes, keepdims)
        out = ops.sum(a * weights, axes, keepdims) / total
    if not returned:
        return out
    return out, ops.broadcast_to(operand(total, out, out._dtype), out._shape)


# --- running


def cumsum(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running sums along `axis`; of the flattened tensor without one. Small integers become the default int.

    >>> import functad.numpy as fnp
    >>> fnp.cumsum([[1, 2], [3, 4]], axis=1).tolist()
    [[1, 3], [3, 7]]
    """
    refuse_out(out, "cumsum")
    x = ops.cumsum(converted(a, dtype, "cumsum"), axis)
    return x if dtype is None else x.astype(dtype)


def cumprod(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running products along `axis`; see `cumsum`. Derivatives are exact at zeros.

    >>> import functad.numpy as fnp
    >>> fnp.cumprod([1, 2, 3]).tolist()
    [1, 2, 6]
    """
    refuse_out(out, "cumprod")
    x = ops.cumprod(converted(a, dtype, "cumprod"), axis)
    return x if dtype is None else x.astype(dtype)


def cumulative_sum(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Running sums along `axis`, which may be left out for a vector; with `include_initial` from 0 on.

    >>> import functad.numpy as fnp
    >>> fnp.cumulative_sum([1, 2, 3], include_initial=True).tolist()
    [0, 1, 3, 6]
    """
    return _cumulative(cumsum, "cumulative_sum", x, axis, dtype, 0 if include_initial else None)


def cumulative_prod(x: Any, /, *, axis: int | None = None, dtype: Any = None, include_initial: bool = False) -> Any:
    """Running products along `axis`, which may be left out for a vector; with `include_initial` from 1 on.

    >>> import functad.numpy as fnp
    >>> fnp.cumulative_prod([1, 2, 3], include_initial=True).tolist()
    [1, 1, 2, 6]
    """
    return _cumulative(cumprod, "cumulative_prod", x, axis, dtype, 1 if include_initial else None)


# --- with elements left out


def masked_sum(x: Any, mask: Any, axis: Any, keepdims: bool, where: str) -> tuple[Any, Any]:
    """The sum of the elements in the mask, in the dtype sums are kept in, and how many they are."""
    mask = ops.broadcast_to(operand(mask, x, dtypes.bool_, where), x._shape)
    total = ops.sum(ops.where(mask, x, 0), axis, keepdims)
    count = ops.sum(mask, axis, keepdims)
    return total, count.astype(dtypes.accumulator(_real(total._dtype)))


def masked_mean(x: Any, mask: Any, axis: Any, keepdims: bool, where: str) -> Any:
    """The mean of the elements in the mask; NaN of none."""
    (x,) = operands(where, "float", (x,))
    dtype = x._dtype
    total, count = masked_sum(x.astype(dtypes.accumulator(dtype)), mask, axis, keepdims, where)
    return (total / count).astype(dtype)


def masked_var(x: Any, mask: Any, axis: Any, ddof: float, keepdims: bool, where: str, mean: Any = None) -> Any:
    """The variance of the elements in the mask, or their standard deviation where `where` names one."""
    (x,) = operands(where, "float", (x,))
    dtype = x._dtype
    axes = normalize_axes(axis, x.ndim, where)
    wide = x.astype(dtypes.accumulator(dtype))
    mask = ops.broadcast_to(operand(True if mask is None else mask, x, dtypes.bool_, where), x._shape)
    if mean is None:
        # by way of the mean of all that is left: exact at large offsets after the second round
        rough = ops.stop_gradient(masked_mean(wide, mask, axes, True, where))
        mean = rough + masked_mean(wide - rough, mask, axes, True, where)
    apart = ops.where(mask, wide - mean, 0)
    freedom = ops.sum(mask, axes, keepdims).astype(_real(wide._dtype)) - ddof
    freedom = ops.where(freedom > 0, freedom, math.nan if where.startswith("nan") else 0.0)
    if where.endswith("std"):  # the length, so that the derivative is 0 where all are equal
        return (ops.norm(apart, None, axes, keepdims) / ops.sqrt(freedom)).astype(_real(dtype))
    square = apart * apart if dtype.kind != "c" else apart.real * apart.real + apart.imag * apart.imag
    return (ops.sum(square, axes, keepdims) / freedom).astype(_real(dtype))


def _real(dtype: dtypes.DType) -> dtypes.DType:
    if dtype.kind != "c":
        return dtype
    return dtypes.float32 if dtype == dtypes.complex64 else dtypes.float64


def _size(shape: tuple[int, ...], axes: tuple[int, ...]) -> int:
    return math.prod([shape[i] for i in axes])


def _correction(ddof: float, correction: float | None, where: str) -> float:
    if correction is None:
        return ddof
    if ddof:
        raise ArgumentError(f"{where}: ddof={ddof} and correction={correction} are two names of one argument.")
    return correction


def _extreme(
    op: Callable[..., Any], name: str, pair: Callable[..., Any], a: Any, axis: Any, out: Any, keepdims: bool,
    initial: Any, where: Any,
) -> Any:  # fmt: skip
    refuse_out(out, name)
    a = operand(a, where=name)
    if where is not None:
        if initial is None:
            raise ArgumentError(
                f"{name}: with where=, a row may hold no element that counts; pass initial=, the result of such a row."
            )
        a = ops.where(where, a, operand(initial, a, a._dtype))
    if initial is None:
        return op(a, axis, keepdims)
    axes = normalize_axes(axis, a.ndim, name)
    if not _size(a._shape, axes):
        shape = [1 if i in axes else n for i, n in enumerate(a._shape) if keepdims or i not in axes]
        return ops.broadcast_to(operand(initial, a, a._dtype), tuple(shape))
    return pair(op(a, axes, keepdims), initial)


def _cumulative(run: Callable[..., Any], where: str, x: Any, axis: int | None, dtype: Any, initial: int | None) -> Any:
    x = converted(x, dtype, where)
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(f"{where}: a tensor of shape {x.shape} has {x.ndim} axes; say along which: axis=0.")
        axis = 0
    axis = normalize_axis(axis, x.ndim, where)
    out = run(x if dtype is not None else integers_widened(x), axis, dtype)
    if initial is None:
        return out
    shape = tuple([1 if i == axis else n for i, n in enumerate(x._shape)])
    first = ops.broadcast_to(operand(initial, out, out._dtype), shape)
    return ops.concatenate([first, out], axis)
