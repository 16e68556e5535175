"""Padding and cropping, sliding blocks, and the exchange of channels with space."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from functad import ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.nn.functional.spatial import fitting, integer, per_axis, with_batch, without_batch
from functad.ops.border import extend_op
from functad.ops.join import crop_op
from functad.ops.operand import operand
from functad.ops.shape import unchanged
from functad.ops.window import Windows, patches_op, unpatches_op

__all__ = ["channel_shuffle", "fold", "pad", "pixel_shuffle", "pixel_unshuffle", "unfold"]

_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # NumPy's names


def pad(input: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    """`input` with a border along its last axes, or without one where a number is negative.

    Args:
        input: a tensor.
        pad: (before, after) for the last axis, then for the one before it, and so on; negative numbers crop.
        mode: "constant", "reflect" (without repeating the edge), "replicate" (the edge) or "circular".
        value: what a constant border holds, 0 by default.

    Raises `ShapeError` if the border is longer than what it mirrors or wraps, or cropping leaves nothing to crop,
    `ArgumentError` for a mode that does not exist or an odd count of numbers.

    >>> import functad as fd
    >>> fd.nn.functional.pad(fd.tensor([1.0, 2.0, 3.0]), (2, -1), mode="reflect").tolist()
    [3.0, 2.0, 1.0, 2.0]
    """
    x = operand(input, where="pad")
    widths = _widths(x, pad)
    if mode not in _MODES:
        raise ArgumentError(f"pad: mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}.")
    if value is not None and mode != "constant":
        raise ArgumentError(
            f"pad: value={value!r} has no meaning with mode={mode!r}; only a constant border has a value."
        )
    for axis, (low, high) in enumerate(widths):
        if x.shape[axis] + min(low, 0) + min(high, 0) < 0:
            raise ShapeError(f"pad: {(low, high)} crops more than axis {axis} of shape {x.shape} has.")
    grown = [(max(low, 0), max(high, 0)) for low, high in widths]
    shrunk = tuple([(max(-low, 0), max(-high, 0)) for low, high in widths])
    if any(map(any, shrunk)) and mode in ("constant", "circular"):
        x, shrunk = bind(crop_op, (x,), (shrunk,)), ()
    if mode == "constant":
        x = ops.pad(x, grown, constant_values=0 if value is None else value)
    else:
        for axis, pair in enumerate(grown):
            if any(pair):
                _check_border(x, axis, *pair, mode)
        if any(map(any, grown)):
            x = bind(extend_op, (x,), (tuple(grown), _MODES[mode]))
    return bind(crop_op, (x,), (shrunk,)) if any(map(any, shrunk)) else unchanged(x)


def unfold(input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """The blocks a 2-d convolution multiplies with its kernels, as columns (im2col).

    Args:
        input: (batch, channels, height, width), or without the batch.
        kernel_size: the size of a block, an int or a pair.
        dilation: the step between the elements of a block.
        padding: zeros at each side.
        stride: the step between blocks.

    Returns (batch, channels * block size, number of blocks). `x.unfold(axis, size, step)` is the sliding window
    along one axis.

    >>> import functad as fd
    >>> x = fd.arange(4.0).reshape(1, 1, 2, 2)
    >>> fd.nn.functional.unfold(x, (1, 2)).tolist()
    [[[0.0, 2.0], [1.0, 3.0]]]
    """
    x, added = with_batch("unfold", operand(input, where="unfold"), 2)
    how = _blocks("unfold", kernel_size, dilation, padding, stride)
    out = fitting("unfold", x.shape[2:], how.kernel, how)
    columns = bind(patches_op, (x,), (how,))
    return without_batch(ops.reshape(columns, (x.shape[0], x.shape[1] * math.prod(how.kernel), math.prod(out))), added)


def fold(input: Any, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Any:
    """The transpose of `unfold`: blocks put back, and added up where they overlap (col2im).

    Args:
        input: (batch, channels * block size, number of blocks), or without the batch.
        output_size: the height and width of the result.
        kernel_size: the size of a block.
        dilation: the step between the elements of a block.
        padding: zeros that `unfold` had added.
        stride: the step between blocks.

    Raises `ShapeError` if there are not as many blocks as the sizes make.

    >>> import functad as fd
    >>> F = fd.nn.functional
    >>> F.fold(F.unfold(fd.ones((1, 1, 2, 3)), 2), (2, 3), 2).tolist()
    [[[[1.0, 2.0, 1.0], [1.0, 2.0, 1.0]]]]
    """
    x = operand(input, where="fold")
    if x.ndim not in (2, 3):
        raise ShapeError(
            f"fold: input is (batch, channels * block size, blocks) or without a batch, got shape {x.shape}."
        )
    added = x.ndim == 2
    x = ops.reshape(x, (1, *x.shape)) if added else x
    how = _blocks("fold", kernel_size, dilation, padding, stride)
    size = per_axis("fold", "output_size", output_size, 2)
    out = fitting("fold", size, how.kernel, how)
    block = math.prod(how.kernel)
    if x.shape[1] % block or x.shape[2] != math.prod(out):
        raise ShapeError(
            f"fold: input of shape {x.shape} must have a multiple of {block} rows (blocks of {how.kernel}) and "
            f"{math.prod(out)} columns ({out[0]} x {out[1]} blocks fit output_size={size})."
        )
    columns = ops.reshape(x, (x.shape[0], x.shape[1] // block, *how.kernel, *out))
    return without_batch(bind(unpatches_op, (columns,), (size, how)), added)


def pixel_shuffle(input: Any, upscale_factor: int) -> Any:
    """(..., channels * r * r, height, width) as (..., channels, height * r, width * r).

    >>> import functad as fd
    >>> fd.nn.functional.pixel_shuffle(fd.arange(4.0).reshape(4, 1, 1), 2).tolist()
    [[[0.0, 1.0], [2.0, 3.0]]]
    """
    x = _planes("pixel_shuffle", input)
    r = integer("pixel_shuffle", "upscale_factor", upscale_factor, 1)
    *lead, c, h, w = x.shape
    if c % (r * r):
        raise ShapeError(
            f"pixel_shuffle: the {c} channels of input, shape {x.shape}, must be a multiple of upscale_factor**2 = {r * r}."
        )
    n = len(lead)
    x = ops.reshape(x, (*lead, c // (r * r), r, r, h, w))
    x = ops.transpose(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return ops.reshape(x, (*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Any, downscale_factor: int) -> Any:
    """The inverse of `pixel_shuffle`: space becomes channels.

    >>> import functad as fd
    >>> fd.nn.functional.pixel_unshuffle(fd.ones((1, 2, 4, 6)), 2).shape
    (1, 8, 2, 3)
    """
    x = _planes("pixel_unshuffle", input)
    r = integer("pixel_unshuffle", "downscale_factor", downscale_factor, 1)
    *lead, c, h, w = x.shape
    if h % r or w % r:
        raise ShapeError(
            f"pixel_unshuffle: height {h} and width {w} of input, shape {x.shape}, must be multiples of "
            f"downscale_factor={r}."
        )
    n = len(lead)
    x = ops.reshape(x, (*lead, c, h // r, r, w // r, r))
    x = ops.transpose(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return ops.reshape(x, (*lead, c * r * r, h // r, w // r))


def channel_shuffle(input: Any, groups: int) -> Any:
    """The channels (axis 1) of `groups` equal groups in turn: the first of each, the second of each, ...

    >>> import functad as fd
    >>> fd.nn.functional.channel_shuffle(fd.arange(4.0).reshape(1, 4, 1), 2).ravel().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """
    x = operand(input, where="channel_shuffle")
    count = integer("channel_shuffle", "groups", groups, 1)
    if x.ndim < 3 or x.shape[1] % count:
        raise ShapeError(
            f"channel_shuffle: input takes a batch, channels that groups={groups} divide, and spatial axes, got shape "
            f"{x.shape}."
        )
    n, c, *size = x.shape
    parts = ops.reshape(x, (n, count, c // count, *size))
    return ops.reshape(ops.swapaxes(parts, 1, 2), x.shape)


def _widths(x: Any, pad: Any) -> list[tuple[int, int]]:
    """A pair for every axis of `x`, from numbers that begin with the last axis."""
    if not isinstance(pad, Sequence) or isinstance(pad, str):
        raise ArgumentTypeError(f"pad: pad is a sequence (before, after) for the last axis and so on, got {pad!r}.")
    numbers = [integer("pad", "pad", p, -(2**62)) for p in pad]
    if len(numbers) % 2 or len(numbers) > 2 * x.ndim:
        raise ArgumentError(
            f"pad: pad={tuple(pad)!r} takes two numbers (before, after) per axis, last axis first, for at most the "
            f"{x.ndim} axes of shape {x.shape}."
        )
    pairs = [*zip(numbers[::2], numbers[1::2], strict=True)][::-1]
    return [(0, 0)] * (x.ndim - len(pairs)) + pairs


def _check_border(x: Any, axis: int, low: int, high: int, mode: str) -> None:
    n = x.shape[axis]
    most = {"reflect": n - 1, "circular": n, "replicate": max(low, high) if n else -1}[mode]
    if max(low, high) > most:
        raise ShapeError(
            f"pad: mode={mode!r} takes at most {max(most, 0)} elements at a side of axis {axis}, shape {x.shape}, got "
            f"{(low, high)}."
        )


def _blocks(where: str, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Windows:
    sides = per_axis(where, "padding", padding, 2, 0)
    return Windows(
        per_axis(where, "kernel_size", kernel_size, 2),
        per_axis(where, "stride", stride, 2),
        tuple([(p, p) for p in sides]),
        per_axis(where, "dilation", dilation, 2),
    )


def _planes(where: str, input: Any) -> Any:
    x = operand(input, where=where)
    if x.ndim < 3:
        raise ShapeError(f"{where}: input is (..., channels, height, width), got shape {x.shape}.")
    return x
