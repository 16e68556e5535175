"""Reductions that leave NaN out. It is masked before anything is computed, so no gradient ever meets it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from functad import dtypes, ops
from functad.errors import ArgumentError, ConcreteValueError
from functad.numpy.arguments import refuse_out
from functad.numpy.reductions import converted, masked_mean, masked_var
from functad.ops.halves import rounded_once
from functad.ops.operand import operand

__all__ = [
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum",
    "nanvar",
]  # fmt: skip


def _filled(a: Any, number: float) -> Any:
    """`a` with a number for NaN."""
    return ops.where(ops.isnan(a), number, a) if dtypes.is_inexact(a._dtype) else a


def _counted(a: Any, where: Any) -> Any:
    """Which elements count."""
    present = ops.logical_not(ops.isnan(a))
    return present if where is None else ops.logical_and(present, where)


def nansum(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The sum of the elements that are not NaN; 0 of none.

    >>> import functad.numpy as fnp
    >>> fnp.nansum([1.0, float("nan"), 2.0]).item()
    3.0
    """
    refuse_out(out, "nansum")
    x = _filled(converted(a, dtype, "nansum"), 0)
    total = ops.sum(x if where is None else ops.where(where, x, 0), axis, keepdims)
    total = total if initial is None else total + initial
    return total if dtype is None else total.astype(dtype)


def nanprod(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None,
    where: Any = None,
) -> Any:  # fmt: skip
    """The product of the elements that are not NaN; 1 of none.

    >>> import functad.numpy as fnp
    >>> fnp.nanprod([3.0, float("nan"), 2.0]).item()
    6.0
    """
    refuse_out(out, "nanprod")
    x = _filled(converted(a, dtype, "nanprod"), 1)
    total = ops.prod(x if where is None else ops.where(where, x, 1), axis, keepdims)
    total = total if initial is None else total * initial
    return total if dtype is None else total.astype(dtype)


@rounded_once
def nanmean(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """The mean of the elements that are not NaN; NaN of none. Its gradient at a NaN is 0.

    >>> import functad as fd
    >>> fd.grad(fd.numpy.nanmean)(fd.tensor([1.0, float("nan"), 2.0])).tolist()
    [0.5, 0.0, 0.5]
    """
    refuse_out(out, "nanmean")
    a = converted(a, dtype, "nanmean")
    return masked_mean(a, _counted(a, where), axis, keepdims, "nanmean")


@rounded_once
def nanvar(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The variance of the elements that are not NaN; NaN of `ddof` or fewer. See `var`.

    >>> import functad.numpy as fnp
    >>> fnp.nanvar([1.0, float("nan"), 3.0]).item()
    1.0
    """
    refuse_out(out, "nanvar")
    a = converted(a, dtype, "nanvar")
    freedom = ddof if correction is None else correction
    return masked_var(a, _counted(a, where), axis, freedom, keepdims, "nanvar", mean)


@rounded_once
def nanstd(
    a: Any, axis: Any = None, dtype: Any = None, out: Any = None, ddof: float = 0, keepdims: bool = False, *,
    where: Any = None, mean: Any = None, correction: float | None = None,
) -> Any:  # fmt: skip
    """The standard deviation of the elements that are not NaN; the derivative where all are equal is 0.

    >>> import functad.numpy as fnp
    >>> fnp.nanstd([1.0, float("nan"), 3.0]).item()
    1.0
    """
    refuse_out(out, "nanstd")
    a = converted(a, dtype, "nanstd")
    freedom = ddof if correction is None else correction
    return masked_var(a, _counted(a, where), axis, freedom, keepdims, "nanstd", mean)


def nanmax(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The largest of the elements that are not NaN; NaN if all are. Ties share the derivative.

    >>> import functad.numpy as fnp
    >>> fnp.nanmax([[1.0, float("nan")], [4.0, 3.0]], axis=0).tolist()
    [4.0, 3.0]
    """
    return _extreme(ops.max, "nanmax", -math.inf, a, axis, out, keepdims, initial, where)


def nanmin(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, initial: Any = None, where: Any = None
) -> Any:
    """The smallest of the elements that are not NaN; see `nanmax`.

    >>> import functad.numpy as fnp
    >>> fnp.nanmin([1.0, float("nan"), 3.0]).item()
    1.0
    """
    return _extreme(ops.min, "nanmin", math.inf, a, axis, out, keepdims, initial, where)


def nanargmax(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """The index of the first largest element that is not NaN.

    Raises `ArgumentError` for a row of nothing but NaN; where values are not known its index is -1.

    >>> import functad.numpy as fnp
    >>> fnp.nanargmax([1.0, float("nan"), 3.0]).item()
    2
    """
    return _arg(ops.argmax, "nanargmax", -math.inf, a, axis, out, keepdims)


def nanargmin(a: Any, axis: int | None = None, out: Any = None, *, keepdims: bool = False) -> Any:
    """The index of the first smallest element that is not NaN; see `nanargmax`.

    >>> import functad.numpy as fnp
    >>> fnp.nanargmin([1.0, float("nan"), 3.0]).item()
    0
    """
    return _arg(ops.argmin, "nanargmin", math.inf, a, axis, out, keepdims)


def nancumsum(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running sums with NaN as 0.

    >>> import functad.numpy as fnp
    >>> fnp.nancumsum([1.0, float("nan"), 3.0]).tolist()
    [1.0, 1.0, 4.0]
    """
    refuse_out(out, "nancumsum")
    return ops.cumsum(_filled(converted(a, dtype, "nancumsum"), 0), axis)


def nancumprod(a: Any, axis: int | None = None, dtype: Any = None, out: Any = None) -> Any:
    """Running products with NaN as 1.

    >>> import functad.numpy as fnp
    >>> fnp.nancumprod([2.0, float("nan"), 3.0]).tolist()
    [2.0, 2.0, 6.0]
    """
    refuse_out(out, "nancumprod")
    return ops.cumprod(_filled(converted(a, dtype, "nancumprod"), 1), axis)


def _extreme(
    op: Callable[..., Any], name: str, empty: float, a: Any, axis: Any, out: Any, keepdims: bool, initial: Any,
    where: Any,
) -> Any:  # fmt: skip
    refuse_out(out, name)
    a = operand(a, where=name)
    if where is None and not dtypes.is_inexact(a._dtype):
        best = op(a, axis, keepdims)
    else:
        counted = _counted(a, where)
        if not dtypes.is_inexact(a._dtype) and initial is None:
            raise ArgumentError(f"{name}: with where=, a row may hold no element that counts; pass initial=.")
        best = op(ops.where(counted, a, empty if dtypes.is_inexact(a._dtype) else initial), axis, keepdims)
        if initial is None:  # whatever it is, a row without elements has no gradient
            best = ops.where(ops.any(counted, axis, keepdims), best, math.nan)
    if initial is None:
        return best
    return (ops.maximum if op is ops.max else ops.minimum)(best, initial)


def _arg(op: Callable[..., Any], name: str, empty: float, a: Any, axis: int | None, out: Any, keepdims: bool) -> Any:
    refuse_out(out, name)
    a = operand(a, where=name)
    if not dtypes.is_inexact(a._dtype):
        return op(a, axis, keepdims)
    nan = ops.isnan(a)
    found = op(ops.where(nan, empty, a), axis, keepdims)
    lost = ops.all(nan, axis, keepdims)
    try:
        if lost.numpy().any():
            raise ArgumentError(
                f"{name}: there is a row of nothing but NaN; mask it, or fill it with fd.numpy.nan_to_num."
            )
    except ConcreteValueError:
        return ops.where(lost, -1, found)
    return found
