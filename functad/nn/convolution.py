"""Convolutions as layers, with torch's arguments, layouts and first weights."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from functad.device import Device
from functad.errors import ArgumentError
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.parameters import Maker, at_least, fan_bound, tuple_of
from functad.param import Param
from functad.tensor import Tensor

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}


class _Conv(Module):
    in_channels: int = field(static=True)
    out_channels: int = field(static=True)
    kernel_size: tuple[int, ...] = field(static=True)
    stride: tuple[int, ...] = field(static=True)
    padding: Any = field(static=True)
    dilation: tuple[int, ...] = field(static=True)
    groups: int = field(static=True)
    padding_mode: str = field(static=True)
    weight: Param
    bias: Param | None

    _axes: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        name, n = type(self).__name__, self._axes
        _check_channels(name, in_channels, out_channels, groups)
        if padding_mode not in _MODES:
            raise ArgumentError(f"{name}: padding_mode must be one of {', '.join(_MODES)}, got {padding_mode!r}.")
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = tuple_of(name, "kernel_size", kernel_size, n)
        at_least(name, 1, **{f"kernel_size[{i}]": size for i, size in enumerate(self.kernel_size)})
        self.stride = tuple_of(name, "stride", stride, n)
        self.dilation = tuple_of(name, "dilation", dilation, n)
        self.padding = tuple(padding) if isinstance(padding, list) else padding
        self.padding_mode = padding_mode
        make = Maker(name, key, dtype, device)
        bound = fan_bound(in_channels // groups * math.prod(self.kernel_size))
        self.weight = make.uniform((out_channels, in_channels // groups, *self.kernel_size), bound)
        self.bias = make.uniform((out_channels,), bound) if bias else None

    def forward(self, x: Any) -> Any:
        """The convolution of `x`, whose axes are (batch, channels, *space), or the same without batch."""
        conv = (F.conv1d, F.conv2d, F.conv3d)[self._axes - 1]
        padding = self.padding
        if self.padding_mode != "zeros":
            x = F.pad(x, self._around(), _MODES[self.padding_mode])
            padding = 0
        return conv(x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups)

    def _around(self) -> tuple[int, ...]:
        """The padding as `F.pad` takes it: before and after, last axis first."""
        if self.padding == "valid":
            return (0, 0) * self._axes
        if self.padding == "same":
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            pairs = [(total // 2, total - total // 2) for total in totals]
        else:
            given = self.padding if isinstance(self.padding, tuple) else (self.padding,) * self._axes
            pairs = [tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in given]
        return tuple(side for pair in reversed(pairs) for side in pair)


class Conv1d(_Conv):
    """A convolution over one axis of `(batch, channels, length)`; torch's arguments, layout and first weights.

    Args:
        in_channels: of what it takes.
        out_channels: of what it returns.
        kernel_size: an int, or one for each axis of space (so are stride, padding and dilation).
        stride: how far the window moves.
        padding: how much is added on both sides; also `"same"` and `"valid"`.
        dilation: how far the taps of the window are apart.
        groups: into how many independent parts the channels fall.
        bias: whether it adds one.
        padding_mode: what is added: `"zeros"`, `"reflect"`, `"replicate"` or `"circular"`.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the parameters.
        device: where they are.

    Raises `ArgumentError` for channels that `groups` does not divide.

    >>> import functad as fd
    >>> fd.nn.Conv1d(2, 4, 3, key=fd.random.key(0))(fd.ones((1, 2, 8))).shape
    (1, 4, 6)
    """

    _axes = 1


class Conv2d(_Conv):
    """A convolution over images `(batch, channels, height, width)`; arguments as those of `Conv1d`.

    >>> import functad as fd
    >>> fd.nn.Conv2d(1, 4, 3, padding="same", key=fd.random.key(0))(fd.ones((2, 1, 8, 8))).shape
    (2, 4, 8, 8)
    """

    _axes = 2


class Conv3d(_Conv):
    """A convolution over `(batch, channels, depth, height, width)`; arguments as those of `Conv1d`.

    >>> import functad as fd
    >>> fd.nn.Conv3d(1, 2, 3, stride=2, padding=1, key=fd.random.key(0))(fd.ones((1, 1, 4, 8, 8))).shape
    (1, 2, 2, 4, 4)
    """

    _axes = 3


class _ConvTranspose(Module):
    in_channels: int = field(static=True)
    out_channels: int = field(static=True)
    kernel_size: tuple[int, ...] = field(static=True)
    stride: tuple[int, ...] = field(static=True)
    padding: tuple[int, ...] = field(static=True)
    output_padding: tuple[int, ...] = field(static=True)
    groups: int = field(static=True)
    dilation: tuple[int, ...] = field(static=True)
    weight: Param
    bias: Param | None

    _axes: ClassVar[int]

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        name, n = type(self).__name__, self._axes
        _check_channels(name, in_channels, out_channels, groups)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = tuple_of(name, "kernel_size", kernel_size, n)
        at_least(name, 1, **{f"kernel_size[{i}]": size for i, size in enumerate(self.kernel_size)})
        self.stride = tuple_of(name, "stride", stride, n)
        self.padding = tuple_of(name, "padding", padding, n)
        self.output_padding = tuple_of(name, "output_padding", output_padding, n)
        self.dilation = tuple_of(name, "dilation", dilation, n)
        make = Maker(name, key, dtype, device)
        bound = fan_bound(out_channels // groups * math.prod(self.kernel_size))
        self.weight = make.uniform((in_channels, out_channels // groups, *self.kernel_size), bound)
        self.bias = make.uniform((out_channels,), bound) if bias else None

    def forward(self, x: Any, output_size: Any = None) -> Any:
        """The transposed convolution of `x`; `output_size` picks one of the sizes that a stride leaves open."""
        conv = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[self._axes - 1]
        extra = self.output_padding if output_size is None else self._extra(x, output_size)
        return conv(x, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _extra(self, x: Any, output_size: Any) -> tuple[int, ...]:
        name, n = type(self).__name__, self._axes
        wanted = tuple_of(name, "output_size", tuple(output_size)[-n:], n)
        extra = []
        for i, size in enumerate(wanted):
            least = (x.shape[i - n] - 1) * self.stride[i] - 2 * self.padding[i]
            least += self.dilation[i] * (self.kernel_size[i] - 1) + 1
            if not least <= size < least + self.stride[i]:
                raise ArgumentError(
                    f"{name}: output_size {size} cannot come of length {x.shape[i - n]} with stride {self.stride[i]}; "
                    f"{least} to {least + self.stride[i] - 1} can."
                )
            extra.append(size - least)
        return tuple(extra)


class ConvTranspose1d(_ConvTranspose):
    """The transpose of `Conv1d`, which upsamples by its stride; torch's arguments and layout `(in, out/groups, k)`.

    >>> import functad as fd
    >>> up = fd.nn.ConvTranspose1d(4, 2, 4, stride=2, padding=1, key=fd.random.key(0))
    >>> up(fd.ones((1, 4, 5))).shape
    (1, 2, 10)
    """

    _axes = 1


class ConvTranspose2d(_ConvTranspose):
    """The transpose of `Conv2d`; arguments as those of `ConvTranspose1d`.

    >>> import functad as fd
    >>> up = fd.nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, key=fd.random.key(0))
    >>> up(fd.ones((1, 4, 5, 5))).shape, up(fd.ones((1, 4, 5, 5)), output_size=(10, 10)).shape
    ((1, 2, 9, 9), (1, 2, 10, 10))
    """

    _axes = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of `Conv3d`; arguments as those of `ConvTranspose1d`.

    >>> import functad as fd
    >>> up = fd.nn.ConvTranspose3d(2, 1, 2, stride=2, key=fd.random.key(0))
    >>> up(fd.ones((1, 2, 2, 3, 3))).shape
    (1, 1, 4, 6, 6)
    """

    _axes = 3


def _check_channels(name: str, in_channels: int, out_channels: int, groups: int) -> None:
    at_least(name, 1, in_channels=in_channels, out_channels=out_channels, groups=groups)
    if in_channels % groups or out_channels % groups:
        raise ArgumentError(
            f"{name}: groups={groups} must divide in_channels={in_channels} and out_channels={out_channels}."
        )
