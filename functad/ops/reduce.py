"""Reductions over axes."""

from __future__ import annotations

import builtins
import math
import numbers
from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError
from functad.ops.arithmetic import ratio
from functad.ops.axes import normalize_axes
from functad.ops.cumulative import integers_widened, others_op
from functad.ops.extrema import extreme, max_op, min_op
from functad.ops.op import Op, Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import (
    cast,
    custom,
    expand_reduced,
    linear,
    nondiff,
    product,
    reduction,
    reshape_op,
    shift_axis,
    sum_op,
    widen,
)

__all__ = [
    "all", "any", "count_nonzero", "mean", "mean_op", "norm", "prod", "prod_op", "std", "std_op", "sum", "var",
    "var_op",
]  # fmt: skip

Axes = tuple[int, ...]


def _accumulator(x: Any) -> Any:
    return x.astype(dtypes.accumulator(x.dtype))


def _count(shape: tuple[int, ...], axis: Axes) -> int:
    """How many elements are reduced into one."""
    return math.prod([shape[i] for i in axis])


def _kept(op: Any, x: Any, out: Any, params: tuple[Any, ...], axis: Axes) -> Any:
    """The output of `op` with the reduced axes kept; for half types in float32, not the rounded one."""
    if dtypes.is_half(x._dtype):
        return bind(op, (widen(x),), (*params, axis, True))
    kept = tuple([1 if i in axis else n for i, n in enumerate(x._shape)])
    return out if out._shape == kept else bind(reshape_op, (out,), (kept,))


# --- sums and products


def _mean(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    total = xp.sum(_accumulator(x), axis=axis, keepdims=keepdims)
    return (total / float(_count(x.shape, axis))).astype(x.dtype)


def _mean_pull(g: Any, x_shape: tuple[int, ...], axis: Axes, keepdims: bool) -> Any:
    share = cast(widen(g) / float(_count(x_shape, axis) or 1), g._dtype)  # n may be beyond float16
    return expand_reduced(share, x_shape, axis, keepdims)


def _mean_push(t: Any, x_shape: tuple[int, ...], axis: Axes, keepdims: bool) -> Any:
    """The mean of the tangents; over none, where the mean is NaN whatever x is, 0."""
    return bind(mean_op if _count(x_shape, axis) else sum_op, (t,), (axis, keepdims))


def _prod(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    return xp.prod(_accumulator(x), axis=axis, keepdims=keepdims).astype(x.dtype)


def _prod_of_others(x: Any, axis: Axes) -> Any:
    """The product of all elements but each one."""
    if not axis:
        return 1
    x = widen(x)
    if len(axis) == 1:
        return bind(others_op, (x,), axis)
    order = (*[i for i in range(x.ndim) if i not in axis], *axis)
    moved = x.transpose(order)
    flat = bind(reshape_op, (moved,), ((*moved._shape[: x.ndim - len(axis)], _count(x._shape, axis)),))
    others = _prod_of_others(flat, (flat.ndim - 1,))
    return bind(reshape_op, (others,), (moved._shape,)).transpose([order.index(i) for i in range(x.ndim)])


# --- spread and length


def _mean_parts(xp: Any, x: Any, axis: Axes) -> tuple[Any, Any]:
    """The mean, by way of a first element, and what its rounding left off: 0 where all are equal.

    Nothing as large as x is used both here and by those who ask: XLA would write it out.
    """
    count = float(_count(x.shape, axis))
    if not count:
        none = xp.sum(x, axis=axis, keepdims=True) / count
        return none, none
    first = x[tuple([slice(0, 1) if i in axis else slice(None) for i in range(x.ndim)])]
    shift = xp.sum(x - first, axis=axis, keepdims=True) / count
    mean = first + shift
    return mean, first - mean + shift


def _center(xp: Any, x: Any, *, axis: Axes) -> Any:
    """Deviations from the mean: exactly 0 where all are equal, exact at large offsets."""
    wide = _accumulator(x)
    mean, rest = _mean_parts(xp, wide, axis)
    return (wide - mean - rest).astype(x.dtype)


def _var(xp: Any, x: Any, *, ddof: float, axis: Axes, keepdims: bool) -> Any:
    """The squares of deviations from the rounded mean are too large by rest**2 each: by half, at most."""
    wide = _accumulator(x)
    mean, rest = _mean_parts(xp, wide, axis)
    moved = wide - mean
    total = xp.sum(moved * moved, axis=axis, keepdims=True) - rest * rest * float(_count(x.shape, axis))
    out = total / float(_freedom(x.shape, axis, ddof))
    return (out if keepdims else xp.squeeze(out, axis=axis)).astype(x.dtype)


def _std(xp: Any, x: Any, *, ddof: float, axis: Axes, keepdims: bool) -> Any:
    return xp.sqrt(_var(xp, _accumulator(x), ddof=ddof, axis=axis, keepdims=keepdims)).astype(x.dtype)


def _freedom(shape: tuple[int, ...], axis: Axes, ddof: float) -> float:
    return builtins.max(_count(shape, axis) - ddof, 0)


def _centered(x: Any, axis: Axes) -> Any:
    return bind(center_op, (widen(x),), (axis,))


def _norm2(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    wide = _accumulator(x)
    return xp.sqrt(xp.sum(wide * wide, axis=axis, keepdims=keepdims)).astype(x.dtype)


def _norm_p(xp: Any, x: Any, *, p: float, axis: Axes, keepdims: bool) -> Any:
    if x.dtype.kind == "c":
        raise DTypeError("norm_p: takes the sizes of complex numbers; write abs(x).")
    wide = _accumulator(x)
    top = xp.max(xp.abs(wide), axis=axis, keepdims=True, initial=0)
    top = xp.where((top > 0) & xp.isfinite(top), top, xp.ones_like(top))  # so that no power overflows
    size = xp.abs(wide / top)
    # up to 1 the logarithm is as good as a power, and much faster
    powers = size**p if xp is np or p < 1 or p.is_integer() else xp.exp(p * xp.log(size))
    out = top * xp.sum(powers, axis=axis, keepdims=True) ** (1 / p)
    return (out if keepdims else xp.squeeze(out, axis=axis)).astype(x.dtype)


def _norm_p_partial(x: Any, out: Any, p: float, axis: Axes) -> Any:
    wide = widen(x)
    size = wide.abs()
    out = _kept(norm_p_op, x, out, (p,), axis)
    quotient = ratio(size, out) if p > 1 else ratio(out, size)
    return product(wide.sign(), quotient ** math.fabs(p - 1))  # the power is finite, and 0 at 0


# --- the ops


Case = tuple[tuple[int, ...], Axes, bool]

_AXES: list[Case] = [
    ((3, 2), (0,), False), ((3, 2), (0, 1), False), ((3, 2, 2), (0, 2), True), ((2, 3), (1,), True),
    ((0, 2), (1,), False),
]  # fmt: skip
_NO_AXES: list[Case] = [((4,), (), False), ((), (), False)]
_EMPTY: list[Case] = [((2, 0), (1,), False)]


def _samples(cases: list[Case], **params: Any) -> Samples:
    return Samples([((shape,), {**params, "axis": axis, "keepdims": keepdims}) for shape, axis, keepdims in cases])


mean_op = custom(
    "mean", _mean, jvp=_mean_push, vjp=_mean_pull, promote="float", samples=_samples([*_AXES, *_NO_AXES]),
    batch=shift_axis, doc="The mean over axes.",
)  # fmt: skip
prod_op = reduction(
    "prod", _prod, _prod_of_others, samples=_samples([*_AXES, *_NO_AXES, *_EMPTY]), doc="The product over axes.",
)  # fmt: skip
center_op: Op = linear(
    "center", _center, lambda g, axis: bind(center_op, (g,), (axis,)),
    samples=Samples([(((3, 2),), {"axis": (0,)}), (((3, 2, 2),), {"axis": (0, 2)}), (((0, 2),), {"axis": (1,)})]),
    batch=shift_axis, doc="x less its mean over axes.",
)  # fmt: skip
var_op = reduction(
    "var", _var,
    lambda x, ddof, axis: _centered(x, axis) * (2 / (_freedom(x.shape, axis, ddof) or math.nan)),
    promote="float", samples=_samples([*_AXES, *_NO_AXES], ddof=0), doc="The variance over axes.",
)  # fmt: skip
std_op: Op = reduction(
    "std", _std,
    lambda x, out, ddof, axis: ratio(
        _centered(x, axis), _kept(std_op, x, out, (ddof,), axis) * _freedom(x.shape, axis, ddof)
    ),
    promote="float", samples=_samples(_AXES, ddof=0),
    doc="The standard deviation over axes; its derivative where all are equal is 0.",
)  # fmt: skip
norm2_op: Op = reduction(
    "norm2", _norm2, lambda x, out, axis: ratio(widen(x), _kept(norm2_op, x, out, (), axis)),
    promote="float", samples=_samples(_AXES), doc="The Euclidean length over axes; its derivative at 0 is 0.",
)  # fmt: skip
norm_p_op = reduction(
    "norm_p", _norm_p, _norm_p_partial, promote="float", samples=_samples(_AXES, p=3.0)._replace(kinks=[0.0]),
    doc="The p-norm over axes; its derivative at 0 is 0.",
)  # fmt: skip

all_op = nondiff(
    "all", lambda xp, x, *, axis, keepdims: xp.all(x, axis=axis, keepdims=keepdims),
    samples=_samples([*_AXES, *_NO_AXES, *_EMPTY]), batch=shift_axis, doc="Whether all elements over axes are nonzero.",
)  # fmt: skip
any_op = nondiff(
    "any", lambda xp, x, *, axis, keepdims: xp.any(x, axis=axis, keepdims=keepdims),
    samples=_samples([*_AXES, *_NO_AXES, *_EMPTY]), batch=shift_axis, doc="Whether any element over axes is nonzero.",
)  # fmt: skip
count_nonzero_op = nondiff(
    "count_nonzero",
    lambda xp, x, *, axis, keepdims: xp.sum(x != 0, axis=axis, keepdims=keepdims, dtype=dtypes.default_int()),
    samples=_samples([*_AXES, *_NO_AXES, *_EMPTY]), batch=shift_axis, doc="How many elements over axes are nonzero.",
)  # fmt: skip


# --- the functions


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The sum over axes (an int, several, or None for all); 0 over none.

    Half types accumulate in float32; bools and small integers become the default int.

    >>> import functad as fd
    >>> fd.ops.sum(fd.tensor([[1.0, 2.0], [3.0, 4.0]]), axis=0).tolist()
    [4.0, 6.0]
    """
    x = integers_widened(operand(x, where="sum"))
    return bind(sum_op, (x,), (normalize_axes(axis, x.ndim, "sum"), bool(keepdims)))


def mean(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The mean over axes, a float; NaN over none.

    >>> import functad as fd
    >>> fd.ops.mean(fd.tensor([1, 2, 4, 5])).item()
    3.0
    """
    return _over_floats(mean_op, "mean", x, axis, keepdims)


def prod(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The product over axes; 1 over none. Derivatives are exact with any number of zeros.

    >>> import functad as fd
    >>> fd.grad(fd.ops.prod)(fd.tensor([2.0, 0.0, 3.0, 4.0])).tolist()
    [0.0, 24.0, 0.0, 0.0]
    """
    x = integers_widened(operand(x, where="prod"))
    return bind(prod_op, (x,), (normalize_axes(axis, x.ndim, "prod"), bool(keepdims)))


def var(x: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    """The variance over axes, from centred data; `ddof` is subtracted from the count.

    >>> import functad as fd
    >>> fd.ops.var(fd.tensor([10001.0, 10002.0, 10003.0]), ddof=1).item()
    1.0
    """
    (x,) = operands("var", "float", (x,))
    if x._dtype.kind == "c":
        return var(x.real, axis, ddof, keepdims) + var(x.imag, axis, ddof, keepdims)
    return bind(var_op, (x,), (_ddof(ddof, "var"), normalize_axes(axis, x.ndim, "var"), bool(keepdims)))


def std(x: Any, axis: Any = None, ddof: float = 0, keepdims: bool = False) -> Any:
    """The standard deviation over axes; the derivative where all elements are equal is 0.

    >>> import functad as fd
    >>> fd.grad(fd.ops.std)(fd.tensor([1.0, 1.0])).tolist()
    [0.0, 0.0]
    """
    (x,) = operands("std", "float", (x,))
    axes = normalize_axes(axis, x.ndim, "std")
    if x._dtype.kind == "c":
        freedom = _freedom(x._shape, axes, _ddof(ddof, "std"))
        return norm(bind(center_op, (x,), (axes,)), None, axes, keepdims) / math.sqrt(freedom)
    return bind(std_op, (x,), (_ddof(ddof, "std"), axes, bool(keepdims)))


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The vector norm over axes: of all elements in `axis` (None for all of them) as one vector.

    Args:
        x: anything a tensor can be made of.
        ord: None or 2 for the Euclidean length (of a matrix: its Frobenius norm), inf or -inf for
            the largest size (of none it is 0) or the smallest, 0 for the number of nonzeros, or any
            other number p.
        axis: an int, several, or None.
        keepdims: whether reduced axes stay, with length 1.

    The derivative at 0 is 0. Raises `ArgumentError` for another `ord`.

    >>> import functad as fd
    >>> fd.ops.norm(fd.tensor([3.0, -4.0])).item(), fd.ops.norm(fd.tensor([3.0, -4.0]), 1).item()
    (5.0, 7.0)
    >>> fd.grad(lambda x: fd.ops.norm(x) ** 2)(fd.tensor([0.0, 0.0])).tolist()
    [0.0, 0.0]
    """
    (x,) = operands("norm", "float", (x,))
    if x._dtype.kind == "c":
        x = x.abs()
    p = _order(ord)
    if math.isinf(p):
        return (largest_size if p > 0 else smallest_size)("norm", x.abs(), axis, keepdims)
    params = (normalize_axes(axis, x.ndim, "norm"), bool(keepdims))
    if p == 2:
        return bind(norm2_op, (x,), params)
    if p == 1:
        return bind(sum_op, (x.abs(),), params)
    if p == 0:
        return bind(sum_op, (cast(x != 0, x._dtype),), params)
    return bind(norm_p_op, (x,), (p, *params))


def largest_size(where: str, sizes: Any, axis: Any, keepdims: bool = False) -> Any:
    """The largest of numbers that are not negative, 0 of none."""
    axes = normalize_axes(axis, sizes.ndim, where)
    empty = 0 in [sizes._shape[a] for a in axes]
    return bind(sum_op if empty else max_op, (sizes,), (axes, bool(keepdims)))


def smallest_size(where: str, sizes: Any, axis: Any, keepdims: bool = False) -> Any:
    """The smallest of numbers that are not negative; of none there is none, and it raises."""
    return extreme(min_op, where, sizes, axis, keepdims)


def all(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether all elements over axes are nonzero (NaN is); True over none.

    >>> import functad as fd
    >>> fd.ops.all(fd.tensor([True, False])).item()
    False
    """
    return _over(all_op, "all", operand(x, where="all"), axis, keepdims)


def any(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """Whether any element over axes is nonzero (NaN is); False over none.

    >>> import functad as fd
    >>> fd.ops.any(fd.tensor([True, False])).item()
    True
    """
    return _over(any_op, "any", operand(x, where="any"), axis, keepdims)


def count_nonzero(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """How many elements over axes are nonzero.

    >>> import functad as fd
    >>> fd.ops.count_nonzero(fd.tensor([0.0, 2.0, -1.0])).item()
    2
    """
    return _over(count_nonzero_op, "count_nonzero", operand(x, where="count_nonzero"), axis, keepdims)


def _over(op: Any, where: str, x: Any, axis: Any, keepdims: bool) -> Any:
    return bind(op, (x,), (normalize_axes(axis, x.ndim, where), bool(keepdims)))


def _over_floats(op: Any, where: str, x: Any, axis: Any, keepdims: bool) -> Any:
    if not isinstance(x, Handle) or x._dtype.kind != "f":
        (x,) = operands(where, "float", (x,))
    return _over(op, where, x, axis, keepdims)


def _ddof(ddof: Any, where: str) -> float:
    if isinstance(ddof, bool) or not isinstance(ddof, numbers.Real):
        raise ArgumentTypeError(f"{where}: ddof must be a number, got {ddof!r} of type {type(ddof).__name__}.")
    return float(ddof)


def _order(ord: Any) -> float:
    if ord is None or (isinstance(ord, str) and ord == "fro"):
        return 2.0
    if isinstance(ord, bool) or not isinstance(ord, numbers.Real) or math.isnan(ord):
        raise ArgumentError(
            f"norm: ord={ord!r} is not the order of a vector norm; use None, a number, float('inf') or -float('inf')."
        )
    return float(ord)
