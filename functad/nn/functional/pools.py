"""The public names of pooling, for each number of spatial axes; `pooling.py` says what they do."""

from __future__ import annotations

from typing import Any

from functad.nn.functional import pooling as _pooling

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "lp_pool1d", "lp_pool2d", "lp_pool3d",
    "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
]  # fmt: skip


def max_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window over one spatial axis; see `max_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.max_pool1d(fd.ones((1, 2, 6)), 3, stride=2, padding=1).shape
    (1, 2, 3)
    """
    return _pooling.max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_unpool1d(
    input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Any:
    """The partial inverse of a max pool over one spatial axis; see `max_unpool2d`.

    >>> import functad as fd
    >>> F = fd.nn.functional
    >>> values, indices = F.max_pool1d(fd.ones((1, 2, 4)), 2, return_indices=True)
    >>> F.max_unpool1d(values, indices, 2).shape
    (1, 2, 4)
    """
    return _pooling.max_unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


def avg_pool1d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """The mean of each window over one spatial axis; see `avg_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.avg_pool1d(fd.ones((1, 2, 6)), 2).shape
    (1, 2, 3)
    """
    return _pooling.avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def lp_pool1d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The p-norm of each window over one spatial axis; see `lp_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.lp_pool1d(fd.ones((1, 2, 4)), 2.0, 2).shape
    (1, 2, 2)
    """
    return _pooling.lp_pool("lp_pool1d", 1, input, norm_type, kernel_size, stride, ceil_mode)


def adaptive_max_pool1d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest element of each of so many windows over one spatial axis; see `adaptive_max_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.adaptive_max_pool1d(fd.ones((1, 2, 5)), 2).shape
    (1, 2, 2)
    """
    return _pooling.adaptive_max_pool("adaptive_max_pool1d", 1, input, output_size, return_indices)


def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any:
    """The mean of each of so many windows over one spatial axis; see `adaptive_avg_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.adaptive_avg_pool1d(fd.ones((1, 2, 5)), 2).shape
    (1, 2, 2)
    """
    return _pooling.adaptive_avg_pool("adaptive_avg_pool1d", 1, input, output_size)


def max_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window of `input`, (batch, channels, height, width) or without the batch.

    Of equal elements the first in the window counts, for the index and for the derivative; NaN is larger than any
    number. Padding is never the largest.

    Args:
        input: floats or ints.
        kernel_size: the size of a window, an int or one per axis.
        stride: the step between windows, by default their size.
        padding: how far windows may reach over each side, at most half of the kernel.
        dilation: the step between the elements that a window reads.
        ceil_mode: whether a last window that starts inside but reaches over the end counts.
        return_indices: return a pair, with the place of each largest element in its flattened plane.

    Raises `ShapeError` with the size that would result if no window fits, `ArgumentError` for too much padding.


    >>> import functad as fd
    >>> fd.nn.functional.max_pool2d(fd.ones((1, 2, 6, 6)), 3, stride=2, padding=1).shape
    (1, 2, 3, 3)
    """
    return _pooling.max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_unpool2d(
    input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Any:
    """Zeros with each element of `input` at the place that `max_pool2d(..., return_indices=True)` gave for it.

    Of several elements for one place the last counts, and gets the derivative.

    Args:
        input: what the pooling returned, or something of that shape.
        indices: the places it returned.
        kernel_size: the size of its windows.
        stride: their step, by default their size.
        padding: the padding of the pooling.
        output_size: the spatial size of what was pooled, where several are possible.

    Raises `OutOfBoundsError` for a place outside the output.


    >>> import functad as fd
    >>> F = fd.nn.functional
    >>> values, indices = F.max_pool2d(fd.ones((1, 2, 4, 4)), 2, return_indices=True)
    >>> F.max_unpool2d(values, indices, 2).shape
    (1, 2, 4, 4)
    """
    return _pooling.max_unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


def avg_pool2d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window of `input`, (batch, channels, height, width) or without the batch.

    Args:
        input: floats; ints become floats.
        kernel_size: the size of a window, an int or one per axis.
        stride: the step between windows, by default their size.
        padding: zeros at each side, at most half of the kernel.
        ceil_mode: whether a last window that starts inside but reaches over the end counts.
        count_include_pad: whether zeros of the padding count as elements.
        divisor_override: what to divide the sum of each window by instead of the count.

    Raises `ShapeError` with the size that would result if no window fits, `ArgumentError` for too much padding.


    >>> import functad as fd
    >>> fd.nn.functional.avg_pool2d(fd.ones((1, 2, 6, 6)), 2).shape
    (1, 2, 3, 3)
    """
    return _pooling.avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def lp_pool2d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """`(sum of x**p) ** (1 / p)` over each window, with p = `norm_type`.

    Where the sum is 0 so is the derivative. A window that reaches over the end (`ceil_mode`) is scaled up to a whole
    one, as in torch.


    >>> import functad as fd
    >>> fd.nn.functional.lp_pool2d(fd.ones((1, 2, 4, 4)), 2.0, 2).shape
    (1, 2, 2, 2)
    """
    return _pooling.lp_pool("lp_pool2d", 2, input, norm_type, kernel_size, stride, ceil_mode)


def adaptive_max_pool2d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest element of each of `output_size` windows that together cover everything.

    Window i of m over n elements reaches from floor(i * n / m) to ceil((i + 1) * n / m).

    Args:
        input: floats or ints, with or without a batch.
        output_size: an int or one per axis; None keeps a length.
        return_indices: return a pair, with the place of each largest element in its flattened plane.


    >>> import functad as fd
    >>> fd.nn.functional.adaptive_max_pool2d(fd.ones((1, 2, 5, 5)), 2).shape
    (1, 2, 2, 2)
    """
    return _pooling.adaptive_max_pool("adaptive_max_pool2d", 2, input, output_size, return_indices)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """The mean of each of `output_size` windows that together cover everything; see `adaptive_max_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.adaptive_avg_pool2d(fd.ones((1, 2, 5, 5)), 2).shape
    (1, 2, 2, 2)
    """
    return _pooling.adaptive_avg_pool("adaptive_avg_pool2d", 2, input, output_size)


def max_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window over three spatial axes; see `max_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.max_pool3d(fd.ones((1, 2, 6, 6, 6)), 3, stride=2, padding=1).shape
    (1, 2, 3, 3, 3)
    """
    return _pooling.max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_unpool3d(
    input: Any, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0, output_size: Any = None
) -> Any:
    """The partial inverse of a max pool over three spatial axes; see `max_unpool2d`.

    >>> import functad as fd
    >>> F = fd.nn.functional
    >>> values, indices = F.max_pool3d(fd.ones((1, 2, 4, 4, 4)), 2, return_indices=True)
    >>> F.max_unpool3d(values, indices, 2).shape
    (1, 2, 4, 4, 4)
    """
    return _pooling.max_unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)


def avg_pool3d(
    input: Any,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window over three spatial axes; see `avg_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.avg_pool3d(fd.ones((1, 2, 6, 6, 6)), 2).shape
    (1, 2, 3, 3, 3)
    """
    return _pooling.avg_pool(
        "avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def lp_pool3d(input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Any:
    """The p-norm of each window over three spatial axes; see `lp_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.lp_pool3d(fd.ones((1, 2, 4, 4, 4)), 2.0, 2).shape
    (1, 2, 2, 2, 2)
    """
    return _pooling.lp_pool("lp_pool3d", 3, input, norm_type, kernel_size, stride, ceil_mode)


def adaptive_max_pool3d(input: Any, output_size: Any, return_indices: bool = False) -> Any:
    """The largest element of each of so many windows over three spatial axes; see `adaptive_max_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.adaptive_max_pool3d(fd.ones((1, 2, 5, 5, 5)), 2).shape
    (1, 2, 2, 2, 2)
    """
    return _pooling.adaptive_max_pool("adaptive_max_pool3d", 3, input, output_size, return_indices)


def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """The mean of each of so many windows over three spatial axes; see `adaptive_avg_pool2d`.

    >>> import functad as fd
    >>> fd.nn.functional.adaptive_avg_pool3d(fd.ones((1, 2, 5, 5, 5)), 2).shape
    (1, 2, 2, 2, 2)
    """
    return _pooling.adaptive_avg_pool("adaptive_avg_pool3d", 3, input, output_size)
