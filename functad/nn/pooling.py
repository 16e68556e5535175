"""Pooling as layers, with torch's arguments."""

from __future__ import annotations

from typing import Any, ClassVar

from functad.module import Module
from functad.nn import functional as F


class _MaxPool(Module):
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    dilation: Any = 1
    return_indices: bool = False
    ceil_mode: bool = False

    _function: ClassVar[Any]

    def forward(self, x: Any) -> Any:
        """The largest value of each window; with `return_indices` also where it was."""
        return type(self)._function(
            x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode, self.return_indices
        )


class MaxPool1d(_MaxPool):
    """The largest value of each window of `(batch, channels, length)`."""

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest value of each window of images `(batch, channels, height, width)`.

    >>> import functad as fd
    >>> fd.nn.MaxPool2d(2)(fd.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest value of each window of `(batch, channels, depth, height, width)`."""

    _function = staticmethod(F.max_pool3d)


class AvgPool1d(Module):
    """The mean of each window of `(batch, channels, length)`."""

    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True

    def forward(self, x: Any) -> Any:
        """The means."""
        return F.avg_pool1d(x, self.kernel_size, self.stride, self.padding, self.ceil_mode, self.count_include_pad)


class _AvgPool(Module):
    kernel_size: Any
    stride: Any = None
    padding: Any = 0
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None

    _function: ClassVar[Any]

    def forward(self, x: Any) -> Any:
        """The means."""
        return type(self)._function(
            x,
            self.kernel_size,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
        )


class AvgPool2d(_AvgPool):
    """The mean of each window of images."""

    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of volumes."""

    _function = staticmethod(F.avg_pool3d)


class _Adaptive(Module):
    output_size: Any

    _function: ClassVar[Any]

    def forward(self, x: Any) -> Any:
        """`x`, pooled to the output size."""
        return type(self)._function(x, self.output_size)


class AdaptiveAvgPool1d(_Adaptive):
    """Means over as many windows as the output is long."""

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_Adaptive):
    """Means over as many windows as the output is large; None keeps an axis.

    >>> import functad as fd
    >>> fd.nn.AdaptiveAvgPool2d(1)(fd.ones((2, 3, 5, 7))).shape
    (2, 3, 1, 1)
    """

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_Adaptive):
    """Means over as many windows as the output is large."""

    _function = staticmethod(F.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_Adaptive):
    """The largest values of as many windows as the output is long."""

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_Adaptive):
    """The largest values of as many windows as the output is large."""

    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_Adaptive):
    """The largest values of as many windows as the output is large."""

    _function = staticmethod(F.adaptive_max_pool3d)


class _LPPool(Module):
    norm_type: float
    kernel_size: Any
    stride: Any = None
    ceil_mode: bool = False

    _function: ClassVar[Any]

    def forward(self, x: Any) -> Any:
        """The norm of each window."""
        return type(self)._function(x, self.norm_type, self.kernel_size, self.stride, self.ceil_mode)


class LPPool1d(_LPPool):
    """The p-norm of each window of `(batch, channels, length)`."""

    _function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """The p-norm of each window of images."""

    _function = staticmethod(F.lp_pool2d)
