"""Max pooling over windows whose places are drawn, for sizes that no whole stride gives (Graham 2014)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.nn.functional.activation import drawn
from functad.nn.functional.checks import number
from functad.nn.functional.pooling import comparable, largest_read, taken
from functad.nn.functional.spatial import Sizes, per_axis, without_batch
from functad.ops.operand import operand
from functad.ops.transfer import stop_gradient

__all__ = ["fractional_max_pool2d", "fractional_max_pool3d"]


def fractional_max_pool2d(
    input: Any,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    random_samples: Any = None,
    key: Any = None,
) -> Any:
    """The largest element of each of so many windows, which are about evenly spread and whose places are drawn.

    Args:
        input: floats or ints, (batch, channels, height, width) or without the batch.
        kernel_size: the size of a window, an int or one per axis.
        output_size: how many windows, an int or one per axis; or
        output_ratio: the same as a part of the input's size, a number between 0 and 1 or one per axis.
        return_indices: return a pair, with the place of each largest element in its flattened plane.
        random_samples: numbers in [0, 1) of shape (batch, channels, 2) that say where the windows of a plane are, for
            the width first (as in torch); drawn without them,
        key: from this key, or else from the default generator (`fd.seed`).

    Window i of m over n elements begins at floor((i + u) a) - floor(u a) with the sample u and a = (n - kernel) / (m - 1);
    the last one ends where the input does. Of equal elements the first counts, as in `max_pool2d`. Raises
    `ArgumentError` unless exactly one of `output_size` and `output_ratio` is given and the windows fit.

    >>> import functad as fd
    >>> x = fd.arange(5.0).reshape(1, 1, 5)
    >>> fd.nn.functional.fractional_max_pool2d(x, (1, 2), (1, 3), random_samples=fd.full((1, 1, 2), 0.5)).tolist()
    [[[1.0, 3.0, 4.0]]]
    """
    return _pooled(
        "fractional_max_pool2d",
        (1, 0),
        input,
        kernel_size,
        output_size,
        output_ratio,
        return_indices,
        random_samples,
        key,
    )


def fractional_max_pool3d(
    input: Any,
    kernel_size: Any,
    output_size: Any = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    random_samples: Any = None,
    key: Any = None,
) -> Any:
    """`fractional_max_pool2d` over three spatial axes; the samples are in the order of the axes.

    >>> import functad as fd
    >>> fd.nn.functional.fractional_max_pool3d(fd.ones((2, 7, 7, 7)), 2, output_ratio=0.5, key=fd.random.key(0)).shape
    (2, 3, 3, 3)
    """
    return _pooled(
        "fractional_max_pool3d",
        (0, 1, 2),
        input,
        kernel_size,
        output_size,
        output_ratio,
        return_indices,
        random_samples,
        key,
    )


def _pooled(
    where: str, order: Sizes, input: Any, kernel_size: Any, output_size: Any, output_ratio: Any, return_indices: bool,
    random_samples: Any, key: Any,
) -> Any:  # fmt: skip
    """`order` says which sample is for which axis."""
    ndim = len(order)
    x, added = comparable(where, ndim, input)
    size = x.shape[2:]
    kernel = per_axis(where, "kernel_size", kernel_size, ndim)
    out = _counted(where, size, output_size, output_ratio)
    for n, k, m in zip(size, kernel, out, strict=True):
        if m + k - 1 > n:
            raise ArgumentError(
                f"{where}: {out} windows of size {kernel} do not fit into the spatial size {size}: along each axis it takes "
                "output_size + kernel_size - 1 elements."
            )
    samples = _samples(where, x, ndim, random_samples, key, added)
    places: Any = None
    for axis, (n, k, m) in enumerate(zip(size, kernel, out, strict=True)):
        starts = _starts(samples[..., order[axis]], n, k, m)
        shape = [1] * (2 * ndim)
        shape[axis], shape[ndim + axis] = m, k
        read = ops.expand_dims(starts, -1) + operand(np.arange(k), x, dtypes.default_int())
        read = ops.reshape(read, (*x.shape[:2], *shape))
        places = read if places is None else places * n + read
    columns = ops.reshape(places, (*x.shape[:2], math.prod(out), math.prod(kernel)))
    flat = ops.reshape(x, (*x.shape[:2], math.prod(size)))
    read = ops.reshape(taken(stop_gradient(flat), columns), columns.shape)
    values, indices = largest_read(flat, columns, read)
    values = without_batch(ops.reshape(values, (*x.shape[:2], *out)), added)
    return (values, without_batch(ops.reshape(indices, (*x.shape[:2], *out)), added)) if return_indices else values


def _starts(samples: Any, n: int, k: int, m: int) -> Any:
    """Where the windows along one axis begin, for each plane."""
    last = operand(n - k, samples, samples.dtype)
    if m == 1:
        return ops.astype(ops.expand_dims(samples * 0 + last, -1), dtypes.default_int())
    step = (n - k) / (m - 1)
    u = ops.expand_dims(samples, -1)
    inner = ops.floor((operand(np.arange(m - 1), u, u.dtype) + u) * step) - ops.floor(u * step)
    return ops.astype(ops.concatenate([inner, u * 0 + last], -1), dtypes.default_int())


def _counted(where: str, size: Sizes, output_size: Any, output_ratio: Any) -> Sizes:
    if (output_size is None) == (output_ratio is None):
        given = "neither" if output_size is None else "both"
        raise ArgumentError(f"{where}: takes one of output_size and output_ratio, got {given}.")
    if output_size is not None:
        return per_axis(where, "output_size", output_size, len(size))
    ratios = output_ratio if isinstance(output_ratio, (tuple, list)) else (output_ratio,) * len(size)
    if len(ratios) != len(size) or not all(0 < number(where, "output_ratio", r) < 1 for r in ratios):
        raise ArgumentError(
            f"{where}: output_ratio is a number between 0 and 1, or one for each of the {len(size)} spatial axes, got "
            f"{output_ratio!r}."
        )
    found = tuple([int(n * r) for n, r in zip(size, ratios, strict=True)])
    if min(found) < 1:
        raise ArgumentError(f"{where}: with output_ratio={output_ratio!r} nothing is left of the spatial size {size}.")
    return found


def _samples(where: str, x: Any, ndim: int, given: Any, key: Any, added: bool) -> Any:
    shape = (*x.shape[:2], ndim)
    if given is None:
        return drawn(x, key, shape)
    if isinstance(given, (bool, int, str)) or (not isinstance(given, Handle) and not hasattr(given, "__len__")):
        raise ArgumentTypeError(
            f"{where}: random_samples are numbers of shape {shape}, got {given!r}; return_indices comes before it."
        )
    samples = stop_gradient(operand(given, x, where=where))
    if added and samples.shape == shape[1:]:
        samples = ops.reshape(samples, shape)
    if samples.shape != shape or samples.dtype.kind != "f":
        raise ShapeError(
            f"{where}: random_samples hold a float in [0, 1) for each spatial axis of each plane, shape {shape}; got "
            f"{samples.dtype}{list(samples.shape)}."
        )
    return samples
