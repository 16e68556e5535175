"""Normalization as layers, with torch's arguments."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import numpy as np

from functad.device import Device
from functad.dispatch import Handle, tracing
from functad.errors import ShapeError, UnlearnedStatisticsWarning
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.parameters import Maker, at_least, entered
from functad.param import Param
from functad.source import warn
from functad.tensor import Tensor


class LayerNorm(Module):
    """Zero mean and unit variance over the last axes, then scale and offset (Ba et al. 2016).

    Args:
        normalized_shape: the lengths of those axes; an int for the last alone.
        eps: added to the variance.
        elementwise_affine: whether it has a `weight` and a `bias`.
        bias: whether it has a `bias`.
        dtype: of the parameters.
        device: where they are.

    >>> import functad as fd
    >>> fd.nn.LayerNorm(3)(fd.tensor([[1.0, 2.0, 3.0]])).numpy().round(2).tolist()
    [[-1.22..., 0.0, 1.22...]]
    """

    normalized_shape: tuple[int, ...] = field(static=True)
    eps: float = field(static=True)
    weight: Param | None
    bias: Param | None

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        *,
        dtype: Any = None,
        device: Device | None = None,
    ):
        make = Maker("LayerNorm", None, dtype, device)
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.weight = make.ones(self.normalized_shape) if elementwise_affine else None
        self.bias = make.zeros(self.normalized_shape) if elementwise_affine and bias else None

    def forward(self, x: Any) -> Any:
        """`x`, normalized."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Unit mean square over the last axes, then a scale (Zhang and Sennrich 2019).

    Args:
        normalized_shape: the lengths of those axes; an int for the last alone.
        eps: added to the mean square; the machine epsilon of the dtype without it, as in torch.
        elementwise_affine: whether it has a `weight`.
        dtype: of the parameter.
        device: where it is.

    >>> import functad as fd
    >>> [f"{y:.4f}" for y in fd.nn.RMSNorm(2)(fd.tensor([3.0, 4.0])).tolist()]
    ['0.8485', '1.1314']
    """

    normalized_shape: tuple[int, ...] = field(static=True)
    eps: float | None = field(static=True)
    weight: Param | None

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        *,
        dtype: Any = None,
        device: Device | None = None,
    ):
        make = Maker("RMSNorm", None, dtype, device)
        self.normalized_shape = _shape(normalized_shape)
        self.eps = eps
        self.weight = make.ones(self.normalized_shape) if elementwise_affine else None

    def forward(self, x: Any) -> Any:
        """`x`, normalized."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """Zero mean and unit variance within groups of channels, then scale and offset of each channel (Wu and He 2018).

    Args:
        num_groups: into how many groups the channels fall.
        num_channels: how many there are, axis 1 of what it takes.
        eps: added to the variance.
        affine: whether it has a `weight` and a `bias`.
        dtype: of the parameters.
        device: where they are.

    Raises `ShapeError` if `num_groups` does not divide `num_channels`.

    >>> import functad as fd
    >>> y = fd.nn.GroupNorm(2, 4)(fd.arange(8.0).reshape(1, 4, 2))
    >>> y.shape, abs(y.mean().item()) < 1e-6, [f"{v:.2f}" for v in y[0, 0].tolist()]
    ((1, 4, 2), True, ['-1.34', '-0.45'])
    """

    num_groups: int = field(static=True)
    num_channels: int = field(static=True)
    eps: float = field(static=True)
    weight: Param | None
    bias: Param | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: Any = None,
        device: Device | None = None,
    ):
        at_least("GroupNorm", 1, num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ShapeError(f"GroupNorm: num_groups={num_groups} does not divide num_channels={num_channels}.")
        make = Maker("GroupNorm", None, dtype, device)
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = make.ones((num_channels,)) if affine else None
        self.bias = make.zeros((num_channels,)) if affine else None

    def forward(self, x: Any) -> Any:
        """`x` with axes (batch, channels, *space), normalized."""
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class _Running(Module):
    """Normalization that may keep running statistics; a subclass says of what."""

    num_features: int = field(static=True)
    eps: float = field(static=True)
    momentum: float | None = field(static=True)
    weight: Param | None
    bias: Param | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    _ranks: ClassVar[tuple[int, ...]]

    def _make(
        self,
        num_features: int,
        eps: float,
        momentum: float | None,
        affine: bool,
        track_running_stats: bool,
        dtype: Any,
        device: Device | None,
    ) -> None:
        name = type(self).__name__
        at_least(name, 1, num_features=num_features)
        make = Maker(name, None, dtype, device)
        shape = (num_features,)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.weight = make.ones(shape) if affine else None
        self.bias = make.zeros(shape) if affine else None
        self.running_mean = make.buffer(shape, 0.0) if track_running_stats else None
        self.running_var = make.buffer(shape, 1.0) if track_running_stats else None
        self.num_batches_tracked = make.buffer((), 0, "int32") if track_running_stats else None

    def _check(self, x: Any) -> None:
        name = type(self).__name__
        if x.ndim not in self._ranks:
            raise ShapeError(f"{name}: x must have {' or '.join(map(str, self._ranks))} axes, got shape {x.shape}.")
        if x.shape[1] != self.num_features:
            raise ShapeError(f"{name}: x of shape {x.shape} has {x.shape[1]} channels, the layer {self.num_features}.")

    def _check_learned(self) -> None:
        """Warn once if the layer was trained, as its scale and offset show, and its running statistics have not moved."""
        if "_was_learned" in self.__dict__ or tracing.get() is not None or self.weight is None or self.bias is None:
            return
        state = (self.num_batches_tracked, self.running_mean, self.running_var, self.weight, self.bias)
        arrays = [getattr(x, "_known_value", None) for x in state]
        if any(isinstance(x, (jax.core.Tracer, Handle)) for x in arrays):
            return
        self.__dict__["_was_learned"] = True
        if any(x is None for x in arrays):  # it is recorded and has not run: something moved it
            return
        count, mean, var, weight, bias = map(np.asarray, arrays)
        if not count and not mean.any() and (var == 1).all() and (bias.any() or (weight != weight[0]).any()):
            warn(
                f"{type(self).__name__}: it was trained, and is evaluated with the running statistics that it was made with "
                "(num_batches_tracked is 0). A Module does not change: in training take the one with new statistics from "
                "each call, y, model = model.call_and_update(x), inside fd.grad as aux. A layer without them "
                "(track_running_stats=False) always normalizes by the batch.",
                UnlearnedStatisticsWarning,
            )

    def _learn(self, x: Any, with_stats: Any) -> Any:
        """Normalize by the batch's own statistics and note how the running ones move."""
        old = [self.latest(name) for name in ("running_mean", "running_var", "num_batches_tracked")]
        count = old[2] + 1
        momentum = 1.0 if self.momentum is None else self.momentum
        y, mean, var = with_stats(x, old[0], old[1], self.weight, self.bias, True, momentum, self.eps)
        if self.momentum is None:  # the mean of all batches
            mean, var = (before + (new - before) / count for before, new in zip(old[:2], (mean, var), strict=True))
        self.update(running_mean=mean, running_var=var, num_batches_tracked=count)
        return y


class _BatchNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: Any = None,
        device: Device | None = None,
    ):
        self._make(num_features, eps, momentum, affine, track_running_stats, dtype, device)

    def forward(self, x: Any) -> Any:
        """`x`, normalized: by the batch in training, by the running statistics after `valid()`."""
        x = entered(type(self).__name__, x, self.running_mean if self.weight is None else self.weight)
        self._check(x)
        if self.training and self.running_mean is not None:
            return self._learn(x, F.batch_norm_with_stats)
        by_batch = self.running_mean is None
        if not by_batch:
            self._check_learned()
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training=by_batch, eps=self.eps
        )


class BatchNorm1d(_BatchNorm):
    """Zero mean and unit variance of each channel over the batch (Ioffe and Szegedy 2015); torch's arguments.

    In training it normalizes by the batch; after `model.valid()` by running statistics. They are
    buffers, and a Module does not change: take the moved ones from `call_and_update`. A layer that was
    trained without it gives an `UnlearnedStatisticsWarning` when it is evaluated.

    Args:
        num_features: how many channels, axis 1 of what it takes.
        eps: added to the variance.
        momentum: the share of the new batch in the running statistics; None for the mean of all batches.
        affine: whether it has a `weight` and a `bias`.
        track_running_stats: whether it keeps running statistics.
        dtype: of parameters and statistics.
        device: where they are.

    >>> import functad as fd
    >>> bn = fd.nn.BatchNorm1d(2)
    >>> y, bn = bn.call_and_update(fd.tensor([[0.0, 1.0], [2.0, 5.0]]))
    >>> y.numpy().round(1).tolist(), bn.running_mean.numpy().round(2).tolist()
    ([[-1.0, -1.0], [1.0, 1.0]], [0.1..., 0.3...])
    """

    _ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """`BatchNorm1d` for images `(batch, channels, height, width)`.

    >>> import functad as fd
    >>> bn = fd.nn.BatchNorm2d(3)
    >>> y, after = bn.call_and_update(fd.ones((2, 3, 4, 4)))
    >>> y.shape, after.num_batches_tracked.item(), bn.num_batches_tracked.item()
    ((2, 3, 4, 4), 1, 0)
    """

    _ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """`BatchNorm1d` for `(batch, channels, depth, height, width)`.

    >>> import functad as fd
    >>> fd.nn.BatchNorm3d(2).valid()(fd.ones((1, 2, 2, 2, 2))).shape
    (1, 2, 2, 2, 2)
    """

    _ranks = (5,)


class _InstanceNorm(_Running):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        dtype: Any = None,
        device: Device | None = None,
    ):
        self._make(num_features, eps, momentum, affine, track_running_stats, dtype, device)

    def forward(self, x: Any) -> Any:
        """`x`, normalized: each channel of each sample by itself."""
        x = entered(type(self).__name__, x, self.running_mean if self.weight is None else self.weight)
        if x.ndim == self._ranks[-1] - 1:  # no batch
            return self.forward(x[None])[0]
        self._check(x)
        if self.running_mean is None:
            return F.instance_norm(x, weight=self.weight, bias=self.bias, eps=self.eps)
        if self.training:
            return self._learn(x, F.instance_norm_with_stats)
        self._check_learned()
        return F.instance_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, use_input_stats=False, eps=self.eps
        )


class InstanceNorm1d(_InstanceNorm):
    """Zero mean and unit variance of each channel of each sample (Ulyanov et al. 2016).

    Arguments as those of `BatchNorm1d`, of which `affine` and `track_running_stats` are False here by default, as in
    torch. It takes `(batch, channels, length)`, or the same without the batch.

    >>> import functad as fd
    >>> [f"{y:.2f}" for y in fd.nn.InstanceNorm1d(1)(fd.tensor([[1.0, 2.0, 3.0]]))[0].tolist()]
    ['-1.22', '0.00', '1.22']
    """

    _ranks = (3,)


class InstanceNorm2d(_InstanceNorm):
    """`InstanceNorm1d` for images `(batch, channels, height, width)`.

    >>> import functad as fd
    >>> y = fd.nn.InstanceNorm2d(3, affine=True)(fd.arange(24.0).reshape(1, 3, 2, 4))
    >>> y.shape, all(abs(m) < 1e-6 for m in y.mean((2, 3))[0].tolist())
    ((1, 3, 2, 4), True)
    """

    _ranks = (4,)


class InstanceNorm3d(_InstanceNorm):
    """`InstanceNorm1d` for `(batch, channels, depth, height, width)`.

    >>> import functad as fd
    >>> fd.nn.InstanceNorm3d(2)(fd.ones((1, 2, 2, 2, 2))).sum().item()
    0.0
    """

    _ranks = (5,)


class LocalResponseNorm(Module):
    """Each value over a power of the squares of its neighbours in channel (Krizhevsky et al. 2012).

    It is `x / (k + alpha * mean) ** beta`, the mean being that of the squares in `size` channels around, as in torch.

    >>> import functad as fd
    >>> fd.nn.LocalResponseNorm(1, alpha=1.0, beta=0.5, k=0.0)(fd.tensor([[[2.0], [-4.0]]])).tolist()
    [[[1.0], [-1.0]]]
    """

    size: int
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    def forward(self, x: Any) -> Any:
        """`x`, normalized."""
        return F.local_response_norm(x, self.size, self.alpha, self.beta, self.k)


def _shape(normalized_shape: Any) -> tuple[int, ...]:
    sizes = tuple(normalized_shape) if isinstance(normalized_shape, (tuple, list)) else (normalized_shape,)
    at_least("normalization", 1, **{f"normalized_shape[{i}]": n for i, n in enumerate(sizes)})
    return sizes
