"""Arguments of functions over spatial axes: one entry per axis, windows that fit, inputs with or without a batch."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from functad import ops
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.ops.conv import Conv, out_size
from functad.ops.operand import without_value

__all__: list[str] = []

Sizes = tuple[int, ...]
Paddings = tuple[tuple[int, int], ...]


def integer(where: str, name: str, value: Any, least: int) -> int:
    """An int that is at least `least`."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or isinstance(value, bool):
        raise ArgumentTypeError(f"{where}: {name} must be an int, got {value!r}.{without_value(value)}")
    if found < least:
        raise ArgumentError(f"{where}: {name} must be at least {least}, got {value!r}.")
    return found


def per_axis(where: str, name: str, value: Any, ndim: int, least: int = 1) -> Sizes:
    """An int for every spatial axis, from one int or a sequence of as many."""
    if type(value) is int and value >= least:
        return (value,) * ndim
    if not isinstance(value, Sequence) or isinstance(value, str):
        return (integer(where, name, value, least),) * ndim
    if len(value) not in (1, ndim):
        raise ArgumentError(
            f"{where}: {name} has {len(value)} entries, got {name}={value!r}; write one int, or one for each of the "
            f"{ndim} spatial axes."
        )
    entries = tuple([integer(where, name, v, least) for v in value])
    return entries * ndim if len(entries) < ndim else entries


def per_axis_padding(where: str, value: Any, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Paddings:
    """A padding (before, after) for every spatial axis, from an int, ints, pairs, "same" or "valid"."""
    ndim = len(kernel)
    if isinstance(value, str):
        if value == "valid":
            return ((0, 0),) * ndim
        if value != "same":
            raise ArgumentError(
                f'{where}: padding is an int, ints, pairs (before, after), "same" or "valid", got {value!r}.'
            )
        if max(stride, default=1) > 1:
            raise ArgumentError(
                f'{where}: padding="same" keeps the size, which a stride of {stride} cannot; pass stride=1 or the '
                "padding in numbers."
            )
        total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
        return tuple([(t // 2, t - t // 2) for t in total])
    if isinstance(value, Sequence) and value and isinstance(value[0], Sequence):
        if len(value) != ndim or any(not isinstance(pair, Sequence) or len(pair) != 2 for pair in value):
            raise ArgumentError(
                f"{where}: padding={value!r} must hold one pair (before, after) for each of the {ndim} spatial axes."
            )
        return tuple([tuple([integer(where, "padding", p, 0) for p in pair]) for pair in value])  # type: ignore[misc]
    return tuple([(p, p) for p in per_axis(where, "padding", value, ndim, 0)])


def with_batch(where: str, x: Any, ndim: int) -> tuple[Any, bool]:
    """`x` as (batch, channels, *spatial), and whether the batch had to be added."""
    if x.ndim == ndim + 2:
        return x, False
    if x.ndim == ndim + 1:
        return ops.reshape(x, (1, *x.shape)), True
    raise ShapeError(
        f"{where}: input takes {ndim + 2} axes (batch, channels, {ndim} spatial) or {ndim + 1} without a batch, got shape "
        f"{x.shape}."
    )


def without_batch(x: Any, added: bool) -> Any:
    """The result of an input that `with_batch` prepared."""
    return ops.reshape(x, x.shape[1:]) if added else x


def fitting(where: str, size: Sizes, kernel: Sizes, how: Any) -> Sizes:
    """The spatial output size, or an error that computes it if a window does not fit anywhere."""
    out = out_size(size, kernel, how)
    if min(out, default=1) < 1:
        reach = tuple([d * (k - 1) + 1 for k, d in zip(kernel, how.dilation, strict=True)])
        padded = tuple([n + low + high for n, (low, high) in zip(size, how.padding, strict=True)])
        raise ShapeError(
            f"{where}: the output would have spatial size {out}: a kernel of size {kernel} with dilation {how.dilation} "
            f"spans {reach}, but the input {size} with padding {how.padding} has only {padded}. Use a larger input, a "
            "smaller kernel or dilation, or more padding."
        )
    return out


def moves(stride: Sizes, padding: Paddings, dilation: Sizes, groups: int = 1) -> Conv:
    """How a kernel moves."""
    return Conv(stride, padding, dilation, groups)
