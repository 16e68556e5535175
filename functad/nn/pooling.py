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
    """The largest value of each window of `(batch, channels, length)`.

    Args:
        kernel_size: the length of a window.
        stride: how far windows are apart; `kernel_size` without it.
        padding: how much of -inf is added on both sides, at most half a window.
        dilation: how far the elements of a window are apart.
        return_indices: whether it returns also where each value was.
        ceil_mode: whether a window may reach beyond the end.

    >>> import functad as fd
    >>> fd.nn.MaxPool1d(2, return_indices=True)(fd.tensor([[1.0, 3.0, 2.0, 0.0]]))[1].tolist()
    [[1, 2]]
    """

    _function = staticmethod(F.max_pool1d)


class MaxPool2d(_MaxPool):
    """The largest value of each window of images `(batch, channels, height, width)`; arguments as those of `MaxPool1d`.

    >>> import functad as fd
    >>> fd.nn.MaxPool2d(2)(fd.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """

    _function = staticmethod(F.max_pool2d)


class MaxPool3d(_MaxPool):
    """The largest value of each window of `(batch, channels, depth, height, width)`; arguments as those of `MaxPool1d`.

    >>> import functad as fd
    >>> fd.nn.MaxPool3d(2)(fd.arange(8.0).reshape(1, 1, 2, 2, 2)).tolist()
    [[[[[7.0]]]]]
    """

    _function = staticmethod(F.max_pool3d)


class AvgPool1d(Module):
    """The mean of each window of `(batch, channels, length)`.

    Args:
        kernel_size: the length of a window.
        stride: how far windows are apart; `kernel_size` without it.
        padding: how many zeros are added on both sides, at most half a window.
        ceil_mode: whether a window may reach beyond the end.
        count_include_pad: whether those zeros count in the mean.

    >>> import functad as fd
    >>> fd.nn.AvgPool1d(2, padding=1, count_include_pad=False)(fd.tensor([[1.0, 3.0, 5.0, 7.0]])).tolist()
    [[1.0, 4.0, 7.0]]
    """

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
    """The mean of each window of images; arguments as those of `AvgPool1d`, and `divisor_override` to divide by.

    >>> import functad as fd
    >>> fd.nn.AvgPool2d(2)(fd.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[[[2.5, 4.5], [10.5, 12.5]]]]
    """

    _function = staticmethod(F.avg_pool2d)


class AvgPool3d(_AvgPool):
    """The mean of each window of volumes; arguments as those of `AvgPool2d`.

    >>> import functad as fd
    >>> fd.nn.AvgPool3d(2, divisor_override=1)(fd.ones((1, 1, 2, 2, 2))).tolist()
    [[[[[8.0]]]]]
    """

    _function = staticmethod(F.avg_pool3d)


class _Adaptive(Module):
    output_size: Any

    _function: ClassVar[Any]

    def forward(self, x: Any) -> Any:
        """`x`, pooled to the output size."""
        return type(self)._function(x, self.output_size)


class AdaptiveAvgPool1d(_Adaptive):
    """Means over as many windows as the output is long; they may overlap, as in torch.

    >>> import functad as fd
    >>> fd.nn.AdaptiveAvgPool1d(2)(fd.tensor([[1.0, 2.0, 3.0]])).tolist()
    [[1.5, 2.5]]
    """

    _function = staticmethod(F.adaptive_avg_pool1d)


class AdaptiveAvgPool2d(_Adaptive):
    """Means over as many windows as the output is large; None keeps an axis.

    >>> import functad as fd
    >>> fd.nn.AdaptiveAvgPool2d(1)(fd.ones((2, 3, 5, 7))).shape
    (2, 3, 1, 1)
    """

    _function = staticmethod(F.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(_Adaptive):
    """Means over as many windows as the output is large; None keeps an axis.

    >>> import functad as fd
    >>> fd.nn.AdaptiveAvgPool3d((None, 1, 1))(fd.ones((2, 3, 4, 5, 5))).shape
    (2, 3, 4, 1, 1)
    """

    _function = staticmethod(F.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(_Adaptive):
    """The largest values of as many windows as the output is long; they may overlap, as in torch.

    >>> import functad as fd
    >>> fd.nn.AdaptiveMaxPool1d(2)(fd.tensor([[1.0, 3.0, 2.0]])).tolist()
    [[3.0, 3.0]]
    """

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveMaxPool2d(_Adaptive):
    """The largest values of as many windows as the output is large; None keeps an axis.

    >>> import functad as fd
    >>> fd.nn.AdaptiveMaxPool2d(2)(fd.arange(16.0).reshape(1, 1, 4, 4)).tolist()
    [[[[5.0, 7.0], [13.0, 15.0]]]]
    """

    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool3d(_Adaptive):
    """The largest values of as many windows as the output is large; None keeps an axis.

    >>> import functad as fd
    >>> fd.nn.AdaptiveMaxPool3d(1)(fd.arange(8.0).reshape(1, 1, 2, 2, 2)).item()
    7.0
    """

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
    """The p-norm of each window of `(batch, channels, length)`, p being `norm_type`; its derivative where it is 0 is 0.

    >>> import functad as fd
    >>> fd.nn.LPPool1d(2, 2)(fd.tensor([[3.0, 4.0, 0.0, 0.0]])).tolist()
    [[5.0, 0.0]]
    """

    _function = staticmethod(F.lp_pool1d)


class LPPool2d(_LPPool):
    """The p-norm of each window of images, p being `norm_type`; its derivative where it is 0 is 0.

    >>> import functad as fd
    >>> fd.nn.LPPool2d(2, 2)(fd.ones((1, 1, 2, 4))).tolist()
    [[[[2.0, 2.0]]]]
    """

    _function = staticmethod(F.lp_pool2d)


class LPPool3d(_LPPool):
    """The p-norm of each window of volumes, p being `norm_type`; its derivative where it is 0 is 0.

    >>> import functad as fd
    >>> fd.nn.LPPool3d(3, 2)(fd.ones((1, 1, 2, 2, 2))).tolist()
    [[[[[2.0]]]]]
    """

    _function = staticmethod(F.lp_pool3d)


class _Fractional(Module):
    kernel_size: Any
    output_size: Any = None
    output_ratio: Any = None
    return_indices: bool = False

    _function: ClassVar[Any]

    def forward(self, x: Any, *, key: Any = None) -> Any:
        """The largest values; the places of the windows are drawn from `key`, or from the generator of `fd.seed`."""
        return type(self)._function(
            x, self.kernel_size, self.output_size, self.output_ratio, self.return_indices, key=key
        )


class FractionalMaxPool2d(_Fractional):
    """The largest value of each of so many windows of images whose places are drawn (Graham 2014).

    Args:
        kernel_size: the size of a window.
        output_size: how many windows there are; or
        output_ratio: the same as a part of the input's size.
        return_indices: whether it returns also where each value was.

    >>> import functad as fd
    >>> fd.nn.FractionalMaxPool2d(2, output_ratio=0.7)(fd.ones((1, 3, 10, 20)), key=fd.random.key(0)).shape
    (1, 3, 7, 14)
    """

    _function = staticmethod(F.fractional_max_pool2d)


class FractionalMaxPool3d(_Fractional):
    """The largest value of each of so many windows of volumes; arguments as those of `FractionalMaxPool2d`.

    >>> import functad as fd
    >>> fd.nn.FractionalMaxPool3d(2, output_size=3)(fd.ones((1, 3, 7, 7, 7)), key=fd.random.key(0)).shape
    (1, 3, 3, 3, 3)
    """

    _function = staticmethod(F.fractional_max_pool3d)


class _MaxUnpool(Module):
    kernel_size: Any
    stride: Any = None
    padding: Any = 0

    _function: ClassVar[Any]

    def forward(self, x: Any, indices: Any, output_size: Any = None) -> Any:
        """Zeros with the elements of `x` at the places that a max pool with `return_indices` gave."""
        return type(self)._function(x, indices, self.kernel_size, self.stride, self.padding, output_size)


class MaxUnpool1d(_MaxUnpool):
    """The partial inverse of `MaxPool1d` with the same arguments, from values and their places.

    >>> import functad as fd
    >>> values, places = fd.nn.MaxPool1d(2, return_indices=True)(fd.tensor([[1.0, 3.0, 2.0, 0.0]]))
    >>> fd.nn.MaxUnpool1d(2)(values, places).tolist()
    [[0.0, 3.0, 2.0, 0.0]]
    """

    _function = staticmethod(F.max_unpool1d)


class MaxUnpool2d(_MaxUnpool):
    """The partial inverse of `MaxPool2d` with the same arguments, from values and their places.

    >>> import functad as fd
    >>> values, places = fd.nn.MaxPool2d(2, return_indices=True)(fd.tensor([[[1.0, 3.0], [2.0, 0.0]]]))
    >>> fd.nn.MaxUnpool2d(2)(values, places).tolist()
    [[[0.0, 3.0], [0.0, 0.0]]]
    """

    _function = staticmethod(F.max_unpool2d)


class MaxUnpool3d(_MaxUnpool):
    """The partial inverse of `MaxPool3d` with the same arguments, from values and their places.

    >>> import functad as fd
    >>> values, places = fd.nn.MaxPool3d(2, return_indices=True)(fd.ones((1, 2, 2, 2)))
    >>> fd.nn.MaxUnpool3d(2)(values, places).sum().item()
    1.0
    """

    _function = staticmethod(F.max_unpool3d)
