"""Normalization: elements scaled by the statistics of what they stand with. Half types are rounded once, at the end."""

from __future__ import annotations

import math
import operator
from typing import Any

import ml_dtypes

from functad import dtypes, ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.keywords import explained
from functad.nn.functional.checks import floats, number, wide
from functad.ops.axes import normalize_axes
from functad.ops.operand import operand
from functad.ops.standardize import normalize_op, standardize_op
from functad.ops.transfer import stop_gradient
from functad.ops.window import near_sum_op

__all__ = [
    "batch_norm", "batch_norm_with_stats", "group_norm", "instance_norm", "instance_norm_with_stats", "layer_norm",
    "local_response_norm", "normalize", "rms_norm",
]  # fmt: skip


def layer_norm(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """`x` with mean 0 and variance 1 over its last axes, times `weight`, plus `bias` (layer normalization, 2016).

    `normalized_shape` (an int or a tuple) is the shape of these axes, and that of `weight` and `bias`.
    Raises `ShapeError` if it is not how the shape of `x` ends.

    >>> import functad as fd
    >>> fd.nn.functional.layer_norm(fd.tensor([[1.0, 3.0], [5.0, 5.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0], [0.0, 0.0]]
    """
    x, axes = _last_axes("layer_norm", x, normalized_shape)
    shape = x.shape[x.ndim - len(axes) :]
    return _normalized("layer_norm", x, weight, bias, shape, shape, axes, eps)


def rms_norm(x: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    """`x` over its root mean square along its last axes, times `weight` (RMS normalization, 2019).

    `normalized_shape` is as in `layer_norm`. `eps` is added under the root; by default it is the precision
    of the dtype it is computed in.

    >>> import functad as fd
    >>> fd.nn.functional.rms_norm(fd.tensor([3.0, 3.0]), 2, eps=0.0).tolist()
    [1.0, 1.0]
    """
    x, axes = _last_axes("rms_norm", x, normalized_shape)
    eps = float(ml_dtypes.finfo(dtypes.accumulator(x.dtype)).eps) if eps is None else eps
    shape = x.shape[x.ndim - len(axes) :]
    return _normalized("rms_norm", x, weight, None, shape, shape, axes, eps, centered=False)


def group_norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """`x` of shape (N, C, ...) with mean 0 and variance 1 over each of `num_groups` groups of channels (2018).

    `weight` and `bias` have one element for each channel. Raises `ShapeError` if the channels do not
    fall into groups of one size.

    >>> import functad as fd
    >>> fd.nn.functional.group_norm(fd.tensor([[1.0, 3.0, 4.0, 8.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    x = _with_channels("group_norm", x)
    try:
        groups = operator.index(num_groups)
    except TypeError:
        raise ArgumentTypeError(f"group_norm: num_groups must be an int, got {num_groups!r}.") from None
    channels = x.shape[1]
    if groups < 1 or channels % groups:
        raise ShapeError(
            f"group_norm: the {channels} channels (axis 1) of x of shape {x.shape} do not fall into num_groups={groups} "
            "groups of one size."
        )
    grouped = ops.reshape(x, (x.shape[0], groups, channels // groups, *x.shape[2:]))
    axes = tuple(range(2, grouped.ndim))
    affine = (groups, channels // groups, *[1] * (x.ndim - 2))
    return ops.reshape(_normalized("group_norm", grouped, weight, bias, (channels,), affine, axes, eps), x.shape)


def batch_norm(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """`x` of shape (N, C, ...) with mean 0 and variance 1 in each channel (batch normalization, 2015).

    With `training` the statistics are those of `x`, else `running_mean` and `running_var`. Nothing is changed in
    place: `batch_norm_with_stats` also returns the running statistics after this batch. Raises `ShapeError` if
    in training a channel has one element only, `ArgumentError` if statistics are needed and absent.

    >>> import functad as fd
    >>> fd.nn.functional.batch_norm(fd.tensor([[1.0], [3.0]]), None, None, training=True, eps=0.0).tolist()
    [[-1.0], [1.0]]
    """
    number("batch_norm", "momentum", momentum)
    x = _with_channels("batch_norm", x)
    axes = (0, *range(2, x.ndim))
    if not training:
        return _by_running("batch_norm", x, running_mean, running_var, weight, bias, eps)
    _check_several("batch_norm", x, axes)
    return _normalized("batch_norm", x, weight, bias, x.shape[1:2], _over_channels(x), axes, eps)


def batch_norm_with_stats(
    x: Any,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, Any, Any]:
    """`batch_norm`, the running mean and the running variance after this batch, which are not differentiated.

    A running statistic moves by the share `momentum` towards that of the batch, whose variance is the unbiased one.
    They stay as they are unless `training`, and None stays None.

    >>> import functad as fd
    >>> x = fd.tensor([[1.0], [3.0]])
    >>> _, mean, var = fd.nn.functional.batch_norm_with_stats(x, fd.zeros(1), fd.ones(1), momentum=0.5)
    >>> mean.tolist(), var.tolist()
    ([1.0], [1.5])
    """
    out = batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    x = floats("batch_norm", x)
    axes = (0, *range(2, x.ndim))
    return (out, *_moved("batch_norm", x, running_mean, running_var, axes, (), training, momentum))


def instance_norm(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """`x` of shape (N, C, ...) with mean 0 and variance 1 in each channel of each instance (2016).

    Without `use_input_stats` the statistics are `running_mean` and `running_var`.
    `instance_norm_with_stats` also returns these after this batch.

    >>> import functad as fd
    >>> fd.nn.functional.instance_norm(fd.tensor([[[1.0, 3.0]]]), eps=0.0).tolist()
    [[[-1.0, 1.0]]]
    """
    number("instance_norm", "momentum", momentum)
    x = _with_channels("instance_norm", x)
    axes = tuple(range(2, x.ndim))
    if not use_input_stats:
        return _by_running("instance_norm", x, running_mean, running_var, weight, bias, eps)
    _check_several("instance_norm", x, axes)
    return _normalized("instance_norm", x, weight, bias, x.shape[1:2], _over_channels(x), axes, eps)


def instance_norm_with_stats(
    x: Any,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Any, Any, Any]:
    """`instance_norm` and the running statistics after this batch; see `batch_norm_with_stats`.

    >>> import functad as fd
    >>> x = fd.tensor([[[1.0, 3.0]]])
    >>> _, mean, _ = fd.nn.functional.instance_norm_with_stats(x, fd.zeros(1), fd.ones(1), momentum=0.5)
    >>> mean.tolist()
    [1.0]
    """
    out = instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    x = floats("instance_norm", x)
    axes = tuple(range(2, x.ndim))
    return (out, *_moved("instance_norm", x, running_mean, running_var, axes, (0,), use_input_stats, momentum))


def local_response_norm(x: Any, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> Any:
    """`x / (k + alpha * m) ** beta`, `m` the mean square over `size` neighbouring channels (AlexNet, 2012).

    Channels beyond the first and the last count as 0.

    >>> import functad as fd
    >>> fd.nn.functional.local_response_norm(fd.tensor([[[1.0], [1.0]]]), 2, alpha=2.0, beta=1.0).tolist()
    [[[0.5], [0.3333333432674408]]]
    """
    given = _with_channels("local_response_norm", x)
    if given.ndim < 3:
        raise ShapeError(f"local_response_norm: x needs at least 3 axes (N, C, ...), got shape {given.shape}.")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ArgumentError(f"local_response_norm: size must be an int of at least 1, got {size!r}.")
    x = wide(given)
    total = bind(near_sum_op, (ops.square(x),), (1, size // 2, (size - 1) // 2))
    return ops.astype(x / (total * (alpha / size) + k) ** beta, given.dtype)


@explained
def normalize(x: Any, p: float = 2.0, axis: Any = 1, eps: float = 1e-12) -> Any:
    """`x` over its `p`-norm along `axis`, which counts as `eps` where it is smaller.

    >>> import functad as fd
    >>> fd.nn.functional.normalize(fd.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    given = floats("normalize", x)
    axes = normalize_axes(axis, given.ndim, "normalize")
    x = wide(given)
    length = ops.norm(x, p, axes, keepdims=True)
    return ops.astype(x / ops.clip(length, number("normalize", "eps", eps)), given.dtype)


# --- their parts


def _normalized(
    where: str,
    x: Any,
    weight: Any,
    bias: Any,
    shape: tuple[int, ...],
    affine: tuple[int, ...],
    axes: tuple[int, ...],
    eps: float,
    centered: bool = True,
) -> Any:
    """Standardized along axes, times `weight`, plus `bias`, which have one shape and are used in another."""
    params = (axes, number(where, "eps", eps), centered)
    if weight is None and bias is None:
        return bind(standardize_op, (x,), params)
    scale = _affine(where, "weight", 1 if weight is None else weight, x, shape, affine)
    shift = _affine(where, "bias", 0 if bias is None else bias, x, shape, affine)
    return bind(normalize_op, (x, scale, shift), params)


def _affine(where: str, name: str, value: Any, x: Any, shape: tuple[int, ...], affine: tuple[int, ...]) -> Any:
    if isinstance(value, int):
        return operand(value, x, x.dtype)
    value = floats(where, operand(value, x, where=where))
    if value.shape != shape:
        raise ShapeError(f"{where}: {name} must have shape {shape} for x of shape {x.shape}, got {value.shape}.")
    return ops.reshape(value, affine) if affine != shape else value


def _last_axes(where: str, x: Any, shape: Any) -> tuple[Any, tuple[int, ...]]:
    x = floats(where, x)
    try:
        given = (operator.index(shape),) if not isinstance(shape, (tuple, list)) else tuple(map(operator.index, shape))
    except TypeError:
        raise ArgumentTypeError(f"{where}: normalized_shape must be an int or several, got {shape!r}.") from None
    first = x.ndim - len(given)
    if not given or first < 0 or x.shape[first:] != given:
        raise ShapeError(
            f"{where}: normalized_shape={given} must be how the shape of x ends, which is {x.shape}; write for example "
            f"normalized_shape={x.shape[-1:] or (1,)}."
        )
    return x, tuple(range(first, x.ndim))


def _with_channels(where: str, x: Any) -> Any:
    x = floats(where, x)
    if x.ndim < 2:
        raise ShapeError(f"{where}: x has axes (N, C, ...), at least 2 of them, got shape {x.shape}.")
    return x


def _over_channels(x: Any) -> tuple[int, ...]:
    """The shape of one number for each channel."""
    return (x.shape[1], *[1] * (x.ndim - 2))


def _check_several(where: str, x: Any, axes: tuple[int, ...]) -> None:
    if math.prod([x.shape[i] for i in axes]) == 1:
        raise ShapeError(
            f"{where}: x of shape {x.shape} has one element in each channel, whose variance is 0: the output would not "
            "depend on x. Pass more elements, or use running statistics."
        )


def _running(where: str, name: str, value: Any, x: Any) -> Any:
    value = floats(where, operand(value, x, where=where))
    if value.shape != x.shape[1:2]:
        raise ShapeError(
            f"{where}: {name} must have one element for each of the {x.shape[1]} channels (axis 1) of x of shape "
            f"{x.shape}, got shape {value.shape}."
        )
    return value


def _by_running(where: str, given: Any, mean: Any, var: Any, weight: Any, bias: Any, eps: float) -> Any:
    if mean is None or var is None:
        raise ArgumentError(
            f"{where}: without statistics of the input it needs running_mean and running_var, got None; pass both, or "
            f"{'training' if where == 'batch_norm' else 'use_input_stats'}=True."
        )
    affine = _over_channels(given)
    x, mean, var = wide(given, _running(where, "running_mean", mean, given), _running(where, "running_var", var, given))
    scale = ops.rsqrt(var + number(where, "eps", eps))
    if weight is not None:
        scale = scale * wide(_affine(where, "weight", weight, given, given.shape[1:2], given.shape[1:2]))
    out = (x - ops.reshape(mean, affine)) * ops.reshape(scale, affine)
    if bias is not None:
        out = out + wide(_affine(where, "bias", bias, given, given.shape[1:2], affine))
    return ops.astype(out, given.dtype)


def _moved(
    where: str, x: Any, mean: Any, var: Any, axes: tuple[int, ...], then: tuple[int, ...], moving: bool, momentum: float
) -> tuple[Any, Any]:
    """The running statistics after a batch: of `axes`, averaged over the axes `then`."""
    if not moving:
        return mean, var
    x = wide(stop_gradient(x))
    share = number(where, "momentum", momentum)
    found: list[Any] = []
    for name, old, new in (("mean", mean, ops.mean(x, axes, True)), ("var", var, ops.var(x, axes, 1, True))):
        if old is None:
            found.append(None)
            continue
        old = _running(where, f"running_{name}", old, x)
        new = ops.reshape(ops.mean(new, then, True) if then else new, x.shape[1:2])
        found.append(ops.astype(wide(old) * (1 - share) + new * share, old.dtype))
    return found[0], found[1]
