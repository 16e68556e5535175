"""Convolutions and transposed convolutions over 1 to 3 spatial axes."""

from __future__ import annotations

from typing import Any

from functad import ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.nn.functional.spatial import fitting, integer, moves, per_axis, per_axis_padding, with_batch, without_batch
from functad.ops.conv import conv_input_grad_op, conv_op
from functad.ops.operand import operands
from functad.ops.quantize import dense

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


def conv1d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Convolution over one spatial axis; see `conv2d`.

    >>> import functad as fd
    >>> x = fd.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    >>> fd.nn.functional.conv1d(x, fd.tensor([[[1.0, -1.0]]])).tolist()
    [[[-1.0, -1.0, -1.0]]]
    """
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Convolution (without flipping, as everywhere in deep learning) over two spatial axes.

    Args:
        input: (batch, channels, height, width), or without the batch.
        weight: kernels (out channels, channels / groups, height, width).
        bias: one number per out channel.
        stride: the step between windows, an int or one per axis.
        padding: zeros around the input: an int, one per axis, one pair (before, after) per axis, "valid"
            (none) or "same" (the output has the input's size; of an odd total the larger half goes after).
        dilation: the step between the elements that a window reads.
        groups: how many equal parts the channels are split into, each with its own kernels.

    Raises `ShapeError` if channels and groups do not fit, or no window does (with the size that would result),
    `ArgumentError` for other arguments.

    >>> import functad as fd
    >>> fd.nn.functional.conv2d(fd.ones((1, 1, 3, 3)), fd.ones((1, 1, 2, 2)), padding="same")[0, 0].tolist()
    [[4.0, 4.0, 2.0], [4.0, 4.0, 2.0], [2.0, 2.0, 1.0]]
    """
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Any:
    """Convolution over three spatial axes; see `conv2d`.

    >>> import functad as fd
    >>> fd.nn.functional.conv3d(fd.ones((2, 1, 3, 3, 3)), fd.ones((4, 1, 2, 2, 2))).shape
    (2, 4, 2, 2, 2)
    """
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def conv_transpose1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Transposed convolution over one spatial axis; see `conv_transpose2d`.

    >>> import functad as fd
    >>> x = fd.tensor([[[1.0, 2.0]]])
    >>> fd.nn.functional.conv_transpose1d(x, fd.tensor([[[1.0, 10.0]]]), stride=2).tolist()
    [[[1.0, 10.0, 2.0, 20.0]]]
    """
    return _transposed("conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """What `conv2d` with the same arguments does to a cotangent: every element of the input adds a scaled kernel.

    The output size is `(n - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1`.

    Args:
        input: (batch, channels, height, width), or without the batch.
        weight: kernels (channels, out channels / groups, height, width).
        bias: one number per out channel.
        stride: the step between the places that neighbouring elements are added to.
        padding: how much is cut off at each side: an int, one per axis, or one pair (before, after) per axis.
        output_padding: how much longer the output is at its end; it may be as large as the stride or larger.
        groups: how many equal parts the channels are split into.
        dilation: the step between the elements of a kernel.

    Raises `ShapeError` if channels and groups do not fit or nothing is left of the output.

    >>> import functad as fd
    >>> fd.nn.functional.conv_transpose2d(fd.ones((1, 3, 4, 4)), fd.ones((3, 5, 3, 3)), stride=2).shape
    (1, 5, 9, 9)
    """
    return _transposed("conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation)


def conv_transpose3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """Transposed convolution over three spatial axes; see `conv_transpose2d`.

    >>> import functad as fd
    >>> fd.nn.functional.conv_transpose3d(fd.ones((3, 2, 2, 2)), fd.ones((3, 1, 2, 2, 2)), stride=2).shape
    (1, 4, 4, 4)
    """
    return _transposed("conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation)


def _conv(
    where: str, ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: Any
) -> Any:
    x, weight, bias, added = _operands(where, ndim, input, weight, bias)
    groups = integer(where, "groups", groups, 1)
    out, channels, *kernel = weight.shape
    if channels * groups != x.shape[1]:
        raise ShapeError(
            f"{where}: input of shape {x.shape} has {x.shape[1]} channels, but weight of shape {weight.shape} with "
            f"groups={groups} takes {channels} * {groups} = {channels * groups}; weight is (out channels, channels / "
            f"groups{', size' * ndim})."
        )
    if out % groups:
        raise ShapeError(
            f"{where}: groups={groups} do not divide the {out} out channels of weight, shape {weight.shape}."
        )
    _check_bias(where, bias, out)
    stride, dilation = per_axis(where, "stride", stride, ndim), per_axis(where, "dilation", dilation, ndim)
    how = moves(stride, per_axis_padding(where, padding, tuple(kernel), stride, dilation), dilation, groups)
    fitting(where, x.shape[2:], tuple(kernel), how)
    return _finished(bind(conv_op, (x, weight), (how,)), bias, ndim, added)


def _transposed(
    where: str, ndim: int, input: Any, weight: Any, bias: Any, stride: Any, padding: Any, output_padding: Any,
    groups: Any, dilation: Any,
) -> Any:  # fmt: skip
    x, weight, bias, added = _operands(where, ndim, input, weight, bias)
    groups = integer(where, "groups", groups, 1)
    channels, out, *kernel = weight.shape
    if channels != x.shape[1]:
        raise ShapeError(
            f"{where}: input of shape {x.shape} has {x.shape[1]} channels, but weight of shape {weight.shape} takes "
            f"{channels}; weight is (channels, out channels / groups{', size' * ndim})."
        )
    if channels % groups:
        raise ShapeError(f"{where}: groups={groups} do not divide the {channels} channels of input, shape {x.shape}.")
    _check_bias(where, bias, out * groups)
    if isinstance(padding, str):
        raise ArgumentError(f"{where}: padding must be given in numbers, got {padding!r}; padding=0 cuts nothing off.")
    stride, dilation = per_axis(where, "stride", stride, ndim), per_axis(where, "dilation", dilation, ndim)
    paddings = per_axis_padding(where, padding, tuple(kernel), stride, dilation)
    more = per_axis(where, "output_padding", output_padding, ndim, 0)
    # The convolution this transposes cuts what is added off again, so that it gives exactly the size of x.
    how = moves(
        stride, tuple([(low, high - m) for (low, high), m in zip(paddings, more, strict=True)]), dilation, groups
    )
    size = tuple([
        (n - 1) * s + d * (k - 1) + 1 - low - high
        for n, k, s, (low, high), d in zip(x.shape[2:], kernel, stride, how.padding, dilation, strict=True)
    ])  # fmt: skip
    if min(size) < 1 or not all(x.shape[2:]):
        raise ShapeError(
            f"{where}: the output would have spatial size {size}: the padding {paddings} cuts off more than input of spatial "
            f"size {x.shape[2:]} with a kernel of size {tuple(kernel)}, stride {stride} and dilation {dilation} makes."
        )
    return _finished(bind(conv_input_grad_op, (x, weight), (size, how)), bias, ndim, added)


def _operands(where: str, ndim: int, input: Any, weight: Any, bias: Any) -> tuple[Any, Any, Any, bool]:
    weight = dense(weight, input)
    if bias is None:
        input, weight = operands(where, "numeric", (input, weight))
    else:
        input, weight, bias = operands(where, "numeric", (input, weight, bias))
    if weight.ndim != ndim + 2:
        raise ShapeError(
            f"{where}: weight takes {ndim + 2} axes, 2 of channels and {ndim} spatial, got shape {weight.shape}."
        )
    if not all(weight.shape[2:]):
        raise ShapeError(f"{where}: weight has an empty kernel, shape {weight.shape}.")
    x, added = with_batch(where, input, ndim)
    return x, weight, bias, added


def _check_bias(where: str, bias: Any, channels: int) -> None:
    if bias is not None and bias.shape != (channels,):
        raise ShapeError(
            f"{where}: bias has shape {bias.shape}, and there are {channels} out channels: it takes ({channels},)."
        )


def _finished(out: Any, bias: Any, ndim: int, added: bool) -> Any:
    if bias is not None:
        out = out + ops.reshape(bias, (bias.size, *[1] * ndim))
    return without_batch(out, added)
