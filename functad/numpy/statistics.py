"""Covariance, histograms and counts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, DTypeError, ShapeError
from functad.numpy.arguments import beside, host, named
from functad.numpy.reductions import average
from functad.ops.axes import counted
from functad.ops.halves import rounded_once
from functad.ops.operand import operand, operands
from functad.ops.scatter import scatter_add_op
from functad.ops.search import searchsorted
from functad.ops.slices import position

__all__ = [
    "bincount", "convolve", "corrcoef", "correlate", "cov", "histogram", "histogram2d", "histogram_bin_edges", "histogramdd",
]  # fmt: skip

convolve = named(ops.convolve)
correlate = named(ops.correlate)


@rounded_once
def cov(
    m: Any, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights: Any = None,
    aweights: Any = None, *, dtype: Any = None,
) -> Any:  # fmt: skip
    """The covariance matrix of variables, one a row (a column, with `rowvar=False`).

    Args:
        m: the observations of one variable or of several.
        y: further variables.
        rowvar: whether a row is a variable.
        bias: whether to divide by the count n (not by n - 1).
        ddof: what is subtracted from the count, instead.
        fweights: how often each observation was made (integers).
        aweights: how much each observation weighs.
        dtype: in which to compute.

    >>> import functad.numpy as fnp
    >>> fnp.cov([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    m, y, fweights, aweights = beside("cov", m, y, fweights, aweights)
    (m,) = operands("cov", "float", (m,))
    m = m if dtype is None else m.astype(dtype)
    if m.ndim > 2:
        raise ShapeError(f"cov: m has at most two axes, got shape {m.shape}.")
    x = ops.atleast_2d(m)
    if not rowvar and m.ndim != 1:
        x = x.T
    if not x.shape[0]:
        return operand(np.zeros((0, 0)), x, x._dtype)
    if y is not None:
        x, y = operands("cov", "float", (x, y))
        if y.ndim > 2:
            raise ShapeError(f"cov: y has at most two axes, got shape {y.shape}.")
        y = ops.atleast_2d(y)
        x = ops.concatenate([x, y if rowvar or y.shape[0] == 1 else y.T], 0)
    if ddof is None:
        ddof = 0 if bias else 1
    weights = _weights(x, fweights, aweights)
    if weights is None:
        mean, freedom = ops.mean(x, 1, True), x.shape[1] - ddof
        scaled = x - mean
    else:
        mean, total = average(x, 1, weights, returned=True, keepdims=True)
        total = total[0, 0]
        both = (
            ddof if aweights is None else ddof * ops.sum(weights * operand(aweights, x).astype(weights._dtype)) / total
        )
        freedom = total - both if ddof else total
        scaled = (x - mean) * weights
    x = x - mean
    if not isinstance(freedom, Handle):
        freedom = max(freedom, 0)
    out = ops.matmul(x, ops.conj(scaled).T) / freedom
    return ops.squeeze(out)


def _weights(x: Any, fweights: Any, aweights: Any) -> Any:
    weights = None
    for name, given in (("fweights", fweights), ("aweights", aweights)):
        if given is None:
            continue
        given = operand(given, x, where="cov")
        if given._shape != (x.shape[1],):
            raise ShapeError(
                f"cov: {name} of shape {given.shape} must hold one weight for each of {x.shape[1]} observations."
            )
        if name == "fweights" and given._dtype.kind not in "iu":
            raise DTypeError(f"cov: fweights are integers, got {given.dtype}.")
        given = given.astype(x._dtype) if given._dtype.kind in "iub" else given
        weights = given if weights is None else weights * given
    return weights


@rounded_once
def corrcoef(x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None) -> Any:
    """The matrix of correlation coefficients of variables; see `cov`.

    >>> import functad.numpy as fnp
    >>> fnp.corrcoef([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]).tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    c = cov(x, y, rowvar, dtype=dtype)
    if not c.ndim:
        return c / c
    spread = ops.sqrt(ops.real(ops.diag(c)))
    c = c / ops.expand_dims(spread, 1) / ops.expand_dims(spread, 0)
    if c._dtype.kind == "c":
        return ops.clip(c.real, -1, 1) + 1j * ops.clip(c.imag, -1, 1)
    return ops.clip(c, -1, 1)


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each number from 0 on occurs in a vector of integers; or the sum of its `weights`.

    The result is as long as the largest number takes, and at least `minlength`; under jit its
    `length` must be given (numbers beyond it are not counted). Differentiable in the weights.

    >>> import functad.numpy as fnp
    >>> fnp.bincount([0, 1, 1, 3]).tolist()
    [1, 2, 0, 1]
    """
    x, weights = beside("bincount", x, weights)
    x = operand(x, where="bincount")
    if x.ndim != 1:
        raise ShapeError(f"bincount: takes a vector, got shape {x.shape}; write x.ravel().")
    if x._dtype.kind not in "iub":
        raise DTypeError(f"bincount: counts integers, got {x.dtype}; write x.astype(int).")
    if x._dtype == dtypes.bool_:
        x = x.astype(dtypes.default_int())
    if length is None:
        values = host(x, "bincount", "pass length=, the length of the result")
        if values.size and values.min() < 0:
            raise ArgumentError("bincount: the numbers must not be negative.")
        length = max(int(values.max()) + 1 if values.size else 0, counted(minlength, "bincount", "minlength"))
    return _counts(x, length, weights)


def _counts(index: Any, length: int, weights: Any) -> Any:
    """The sum of weights at each index; an index from `length` on is dropped."""
    if weights is None:
        values = ops.broadcast_to(operand(1, index, dtypes.default_int()), index._shape)
    else:
        values = operand(weights, index, where="weights")
        if values._dtype.kind in "iub":
            values = values.astype(dtypes.default_float())
        if values._shape != index._shape:
            raise ShapeError(f"weights of shape {values.shape} do not fit the data, of shape {index.shape}.")
    index = position(index)
    inside = ops.logical_and(index >= 0, index < length)
    places = ops.where(inside, index, length)
    zeros = ops.broadcast_to(operand(0, values, values._dtype), (length + 1,))
    return bind(scatter_add_op, (zeros, values, places), ((0,), 0))[:length]


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of the bins of `histogram`.

    `bins` is how many there are, their edges, or the name of one of NumPy's rules ("auto", "fd",
    "sturges", ...), which looks at the values.

    >>> import functad.numpy as fnp
    >>> fnp.histogram_bin_edges([0.0, 4.0], 4).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """
    a = ops.stop_gradient(operand(a, where="histogram"))
    if isinstance(bins, str):
        edges = np.histogram_bin_edges(host(a, "histogram"), bins, range)
        return operand(edges, a, dtypes.float_of(a._dtype) if a._dtype.kind in "iub" else a._dtype)
    if not isinstance(bins, (list, tuple)) and not getattr(bins, "ndim", 0):
        return _even_edges(a, counted(bins, "histogram", "bins"), range)
    edges = ops.stop_gradient(operand(bins, a, where="histogram"))
    if edges.ndim != 1 or not edges.size:
        raise ShapeError(f"histogram: the edges of the bins are a vector that is not empty, got shape {edges.shape}.")
    return edges


def _even_edges(a: Any, count: int, span: Any) -> Any:
    if count < 1:
        raise ArgumentError(f"histogram: there must be at least one bin, got bins={count}.")
    (wide,) = operands("histogram", "float", (a,))
    if span is None:
        low, high = (ops.min(wide), ops.max(wide)) if wide.size else (operand(0.0, wide), operand(1.0, wide))
        flat = low == high
        low, high = ops.where(flat, low - 0.5, low), ops.where(flat, high + 0.5, high)
    else:
        low, high = (float(v) for v in span)
        if not (math.isfinite(low) and math.isfinite(high) and low <= high):
            raise ArgumentError(f"histogram: range must be two finite numbers in order, got {span!r}.")
        if low == high:
            low, high = low - 0.5, high + 0.5
        edges = np.linspace(low, high, count + 1)
        return operand(edges, wide, wide._dtype)
    part = operand(np.arange(count + 1) / count, wide, wide._dtype)
    return low * (1 - part) + high * part


@rounded_once
def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> tuple[Any, Any]:
    """How many elements lie in each bin, and the edges of the bins (the last one includes its upper edge).

    Args:
        a: the data; all elements count, whatever the shape.
        bins: how many bins, their edges, or the name of a rule; see `histogram_bin_edges`.
        range: the first and the last edge, by default the smallest and the largest element.
        density: whether to divide so that the integral is 1.
        weights: what each element counts; the result is differentiable in it.

    >>> import functad.numpy as fnp
    >>> counts, edges = fnp.histogram([1.0, 2.0, 1.0, 4.0], bins=3)
    >>> counts.tolist(), edges.tolist()
    ([2, 1, 1], [1.0, 2.0, 3.0, 4.0])
    """
    a, weights, edges = beside("histogram", a, weights, None if isinstance(bins, str) else bins)
    a = ops.stop_gradient(operand(a, where="histogram"))
    edges = histogram_bin_edges(a, bins if edges is None else edges, range)
    if weights is not None:
        weights = operand(weights, a, where="histogram")
        if weights._shape != a._shape:
            raise ShapeError(f"histogram: weights of shape {weights.shape} do not fit the data, of shape {a.shape}.")
        weights = ops.ravel(weights)
    counts = _counts(_bin(ops.ravel(a), edges), edges.size - 1, weights)
    if not density:
        return counts, edges
    share = counts.astype(edges._dtype) if counts._dtype.kind in "iu" else counts
    return share / (edges[1:] - edges[:-1]) / ops.sum(share), edges


def _bin(a: Any, edges: Any) -> Any:
    """The number of the bin of each element; those in none have -1 or the number of bins."""
    index = searchsorted(edges, a, "right") - 1
    return ops.where(a == edges[-1], edges.size - 2, ops.where(ops.isnan(a), -1, index))


@rounded_once
def histogramdd(
    sample: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> tuple[Any, list[Any]]:
    """`histogram` of points in several dimensions: one a row, or one array per dimension.

    >>> import functad.numpy as fnp
    >>> counts, edges = fnp.histogramdd([[0.0, 0.0], [1.0, 1.0]], bins=2)
    >>> counts.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    if isinstance(sample, (tuple, list)) and sample and isinstance(sample[0], Handle) and sample[0].ndim == 1:
        sample = ops.stack(sample, 1)
    sample = ops.atleast_2d(ops.stop_gradient(operand(sample, where="histogramdd")))
    count = sample.shape[1]
    each: Sequence[Any] = bins if isinstance(bins, (list, tuple)) else [bins] * count
    if len(each) != count or (range is not None and len(range) != count):
        raise ArgumentError(f"histogramdd: takes one entry of bins and range for each of {count} dimensions.")
    columns = ops.unstack(sample, 1)
    edges = [histogram_bin_edges(x, each[i], None if range is None else range[i]) for i, x in enumerate(columns)]
    index: Any = 0
    inside: Any = True
    for x, edge in zip(columns, edges, strict=True):
        bin_ = _bin(x, edge)
        inside = ops.logical_and(inside, ops.logical_and(bin_ >= 0, bin_ < edge.size - 1))
        index = index * (edge.size - 1) + bin_
    sizes = tuple([edge.size - 1 for edge in edges])
    counts = ops.reshape(_counts(ops.where(inside, index, math.prod(sizes)), math.prod(sizes), weights), sizes)
    counts = counts.astype(dtypes.default_float()) if counts._dtype.kind in "iu" else counts
    if density:
        share = counts
        for i, edge in enumerate(edges):
            share = share / ops.reshape(edge[1:] - edge[:-1], tuple([-1 if j == i else 1 for j in np.arange(count)]))
        counts = share / ops.sum(counts)
    return counts, edges


@rounded_once
def histogram2d(
    x: Any, y: Any, bins: Any = 10, range: Any = None, density: bool | None = None, weights: Any = None
) -> tuple[Any, Any, Any]:
    """`histogram` of points in the plane: the counts, and the edges along `x` and along `y`.

    >>> import functad.numpy as fnp
    >>> fnp.histogram2d([0.0, 1.0], [0.0, 1.0], bins=2)[0].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    x, y = operands("histogram2d", "compare", (x, y))
    if x._shape != y._shape or x.ndim != 1:
        raise ShapeError(f"histogram2d: takes two vectors of one length, got shapes {x.shape} and {y.shape}.")
    single = isinstance(bins, (Handle, np.ndarray)) or (isinstance(bins, (list, tuple)) and len(bins) != 2)
    counts, (first, second) = histogramdd(
        ops.stack([x, y], 1), [bins, bins] if single else bins, range, density, weights
    )
    return counts, first, second
