"""Medians and quantiles, by sorting: the derivative goes to the elements the result was read from."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import Handle
from functad.errors import ArgumentError, DTypeError, ShapeError
from functad.numpy.arguments import beside, known, refuse_out
from functad.ops.axes import normalize_axes
from functad.ops.elementary import difference
from functad.ops.halves import rounded_once
from functad.ops.index import take_inside
from functad.ops.operand import operand, operands
from functad.ops.rules import zero_mul

__all__ = ["median", "nanmedian", "nanpercentile", "nanquantile", "percentile", "quantile"]

_PLOTTING = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "linear": (1.0, 1.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
"""The continuous methods of Hyndman and Fan by their alpha and beta: q stands at n q + alpha + q (1 - alpha - beta)."""

METHODS = (
    "inverted_cdf", "averaged_inverted_cdf", "closest_observation", *_PLOTTING, "lower", "higher", "midpoint", "nearest",
)  # fmt: skip


@rounded_once
def quantile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None, interpolation: str | None = None,
) -> Any:  # fmt: skip
    """The `q`-quantiles over axes; NaN if there is a NaN.

    Args:
        a: the data, integers as floats.
        q: one probability or several, from 0 to 1; their axes come first in the result. A tensor is
            differentiated too, where the method is continuous.
        axis: an int, several, or None for all.
        out: refused: tensors are immutable.
        overwrite_input: makes no difference.
        method: any of NumPy's: "linear", "lower", "higher", "midpoint", "nearest", "inverted_cdf",
            "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen",
            "weibull", "median_unbiased", "normal_unbiased".
        keepdims: whether reduced axes stay, with length 1.
        weights: how much each element counts (of the shape of `a`, or of its one axis), with
            method="inverted_cdf".
        interpolation: the old name of `method`.

    >>> import functad as fd
    >>> fd.numpy.quantile([1.0, 2.0, 4.0], [0.5, 0.75]).tolist()
    [2.0, 3.0]
    >>> fd.grad(lambda x: fd.numpy.quantile(x, 0.75))(fd.tensor([4.0, 1.0, 2.0])).tolist()
    [0.5, 0.0, 0.5]
    """
    refuse_out(out, "quantile")
    return _quantile("quantile", a, q, axis, interpolation or method, keepdims, weights)


@rounded_once
def percentile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None, interpolation: str | None = None,
) -> Any:  # fmt: skip
    """The `q`-th percentiles over axes, `q` from 0 to 100; see `quantile`.

    >>> import functad.numpy as fnp
    >>> fnp.percentile([[1.0, 2.0], [3.0, 6.0]], 50, axis=0).tolist()
    [2.0, 4.0]
    """
    refuse_out(out, "percentile")
    return _quantile("percentile", a, _hundredths(q), axis, interpolation or method, keepdims, weights)


@rounded_once
def median(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The middle element over axes in order, the mean of the two in the middle of an even number.

    >>> import functad as fd
    >>> fd.grad(fd.numpy.median)(fd.tensor([4.0, 1.0, 2.0, 9.0])).tolist()
    [0.5, 0.0, 0.5, 0.0]
    """
    refuse_out(out, "median")
    return _quantile("median", a, 0.5, axis, "midpoint", keepdims, None)


@rounded_once
def nanquantile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None, interpolation: str | None = None,
) -> Any:  # fmt: skip
    """The `q`-quantiles of the elements that are not NaN; NaN of none. See `quantile`.

    >>> import functad.numpy as fnp
    >>> fnp.nanquantile([1.0, float("nan"), 2.0], 0.5).item()
    1.5
    """
    refuse_out(out, "nanquantile")
    return _quantile("nanquantile", a, q, axis, interpolation or method, keepdims, weights)


@rounded_once
def nanpercentile(
    a: Any, q: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, method: str = "linear",
    keepdims: bool = False, *, weights: Any = None, interpolation: str | None = None,
) -> Any:  # fmt: skip
    """The `q`-th percentiles of the elements that are not NaN; see `quantile`.

    >>> import functad.numpy as fnp
    >>> fnp.nanpercentile([1.0, float("nan"), 2.0], 100).item()
    2.0
    """
    refuse_out(out, "nanpercentile")
    return _quantile("nanpercentile", a, _hundredths(q), axis, interpolation or method, keepdims, weights)


@rounded_once
def nanmedian(a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False) -> Any:
    """The median of the elements that are not NaN; NaN of none. See `median`.

    >>> import functad.numpy as fnp
    >>> fnp.nanmedian([1.0, float("nan"), 2.0]).item()
    1.5
    """
    refuse_out(out, "nanmedian")
    return _quantile("nanmedian", a, 0.5, axis, "midpoint", keepdims, None)


def _hundredths(q: Any) -> Any:
    numbers = known(q)
    return operand(q, where="percentile") / 100 if numbers is None else numbers / 100


def _quantile(where: str, a: Any, q: Any, axis: Any, method: str, keepdims: bool, weights: Any) -> Any:
    if method not in METHODS:
        raise ArgumentError(f"{where}: method={method!r} is not one of {', '.join(map(repr, METHODS))}.")
    a, weights, _ = beside(where, a, weights, q if isinstance(q, Handle) else None)
    (a,) = operands(where, "float", (a,))
    if a._dtype.kind == "c":
        raise DTypeError(f"{where}: complex numbers have no order, got {a.dtype}.")
    q = _probabilities(q, a, where)
    axes = normalize_axes(axis, a.ndim, where)
    kept = tuple([1 if i in axes else n for i, n in enumerate(a._shape)])
    rows = _rows(a, axes)
    if not rows._shape[-1]:
        raise ShapeError(f"{where}: there are no elements over axes {axes} of a tensor of shape {a.shape}.")
    if weights is None:
        out = _read(where, rows, q.reshape((-1,)), method)
    else:
        out = _weighted(where, rows, _weight_rows(where, weights, a, axes, axis), q, method)
    rest = kept if keepdims else tuple([n for i, n in enumerate(a._shape) if i not in axes])
    return ops.reshape(ops.moveaxis(out, -1, 0), (*q.shape, *rest))


def _probabilities(q: Any, a: Any, where: str) -> Any:
    """`q` as a NumPy array of float64 where it comes from the host, else as a float tensor."""
    numbers = known(q)
    top = 100 if "percentile" in where else 1
    if numbers is not None:
        if numbers.size and not (numbers.min() >= 0 and numbers.max() <= 1):
            raise ArgumentError(f"{where}: q must be from 0 to {top}, got {q!r}.")
        return numbers.astype(np.float64)
    (q,) = operands(where, "float", (q,))
    return q.astype(dtypes.promote(q._dtype, dtypes.accumulator(a._dtype)))


def _rows(a: Any, axes: tuple[int, ...]) -> Any:
    """`a` with the axes to be reduced as one, the last."""
    others = [i for i in range(a.ndim) if i not in axes]
    moved = ops.transpose(a, [*others, *axes])
    return ops.reshape(moved, (*[a._shape[i] for i in others], math.prod([a._shape[i] for i in axes])))


def _read(where: str, rows: Any, q: Any, method: str) -> Any:
    """The quantiles of each row, as its last axis."""
    ordered = ops.sort(rows, -1)
    n = rows._shape[-1]
    nan = ops.isnan(ordered)  # the sort has them last
    if not where.startswith("nan"):
        lower, upper, weight = _place(q, n, method, np if isinstance(q, np.ndarray) else ops)
        return ops.where(nan[..., -1:], math.nan, _lookup(ordered, lower, upper, weight))
    count = ops.sum(ops.logical_not(nan), -1, True)
    if isinstance(q, np.ndarray):  # the places for every count, in float64
        lower, upper, weight = _place(q, np.arange(n + 1)[:, None], method, np)
        places = [operand(np.clip(i, 0, n - 1), rows, dtypes.int32) for i in (lower, upper)]
        lower, upper = (take_inside(i, count[..., 0], 0) for i in places)
        if not isinstance(weight, float):
            weight = take_inside(operand(weight, rows, dtypes.accumulator(rows._dtype)), count[..., 0], 0)
    else:
        lower, upper, weight = _place(q, count.astype(q.dtype), method, ops)
    last = ops.maximum(count - 1, 0)
    lower, upper = (ops.minimum(i.astype(count.dtype), last) for i in (lower, upper))
    # a row of nothing but NaN is NaN, and has no gradient
    return ops.where(count > 0, _lookup(ordered, lower, upper, weight), math.nan)


def _lookup(ordered: Any, lower: Any, upper: Any, weight: Any) -> Any:
    """Between the elements at two positions, host arrays for all rows or tensors."""
    n = ordered._shape[-1]
    if isinstance(lower, np.ndarray):
        low, high = (take_inside(ordered, np.clip(i, 0, n - 1).astype(np.int64), -1) for i in (lower, upper))
        return _between(low, high, weight)
    index = [ops.clip(i.astype(dtypes.default_int()), 0, n - 1) for i in (lower, upper)]
    low, high = (
        ops.take_along_axis(ordered, ops.broadcast_to(i, (*ordered._shape[:-1], i._shape[-1])), -1) for i in index
    )
    return _between(low, high, weight)


def _place(q: Any, n: Any, method: str, xp: Any) -> tuple[Any, Any, Any]:
    """Between which two positions each quantile lies, and how much the second counts."""
    rank, at = q * n, q * (n - 1)
    if method in _PLOTTING:
        alpha, beta = _PLOTTING[method]
        if method != "linear":
            at = xp.clip(rank + (alpha + q * (1 - alpha - beta)) - 1, 0, n - 1)
        lower = xp.floor(at)
        return lower, lower + 1, at - lower
    if method == "midpoint":
        return xp.floor(at), xp.ceil(at), 0.5
    if method == "averaged_inverted_cdf":
        return xp.ceil(rank) - 1, xp.floor(rank), 0.5
    if method == "closest_observation":
        down = xp.floor(rank - 0.5)
        tied = xp.equal(down, rank - 0.5)  # halfway between two, the one whose number, from 1 on, is even
        index = xp.where(tied, down - xp.equal(xp.remainder(down, 2), 0), xp.ceil(rank - 0.5) - 1)
    elif method == "inverted_cdf":
        index = xp.ceil(rank) - 1
    else:
        index = {"lower": xp.floor, "higher": xp.ceil, "nearest": xp.round}[method](at)
    return index, index, 0.0


def _between(low: Any, high: Any, weight: Any) -> Any:
    """From `low` to `high`: exact at both ends, monotonous, and never inf - inf."""
    if isinstance(weight, float):
        return low if weight == 0 else low * 0.5 + high * 0.5
    dtype = low._dtype
    low, high = (x.astype(dtypes.accumulator(dtype)) for x in (low, high))
    if not isinstance(weight, Handle):
        weight = operand(weight, low, low._dtype)
    apart = difference(high, low)
    near, far = low + zero_mul(apart, weight), high - zero_mul(apart, 1 - weight)
    return ops.where(ops.logical_or(weight < 0.5, ops.isinf(apart)), near, far).astype(dtype)


def _weighted(where: str, rows: Any, weights: Any, q: Any, method: str) -> Any:
    if method != "inverted_cdf":
        raise ArgumentError(f"{where}: weights are for method='inverted_cdf' only, got method={method!r}.")
    nan = ops.isnan(rows)
    if where.startswith("nan"):
        weights = ops.where(nan, 0, weights)
    order = ops.argsort(rows, -1)
    ordered = ops.take_along_axis(rows, order, -1)
    running = ops.cumsum(ops.take_along_axis(ops.stop_gradient(weights), order, -1), -1)
    q = operand(q.reshape((-1,)), rows, running._dtype)
    wanted = ops.expand_dims(ops.stop_gradient(q) * running[..., -1:], -1)  # (..., q, 1)
    reached = ops.expand_dims(running, -2) < wanted
    index = ops.sum(reached, -1)
    found = ops.take_along_axis(ordered, ops.clip(index, 0, rows._shape[-1] - 1), -1)
    missing = ops.all(nan, -1, True) if where.startswith("nan") else ops.any(nan, -1, True)
    return ops.where(missing, math.nan, found)


def _weight_rows(where: str, weights: Any, a: Any, axes: tuple[int, ...], axis: Any) -> Any:
    (weights,) = operands(where, "float", (operand(weights, a, where=where),))
    if weights._shape != a._shape:
        if weights._shape != tuple([a._shape[i] for i in axes]):
            raise ShapeError(
                f"{where}: weights of shape {weights.shape} fit neither the shape {a.shape} of the data nor its axes {axis}."
            )
        shape = tuple([n if i in axes else 1 for i, n in enumerate(a._shape)])
        weights = ops.broadcast_to(ops.reshape(weights, shape), a._shape)
    return _rows(weights, axes)
