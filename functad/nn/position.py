"""Where in a sequence a vector stands."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.creation import arange
from functad.errors import ArgumentError, ShapeError
from functad.module import Module, field
from functad.nn.parameters import at_least, entered
from functad.ops.operand import operand
from functad.tensor import Tensor


class SinusoidalEncoding(Module):
    """Adds sines and cosines of the position, of wavelengths from 2 pi to 2 pi `base` (Vaswani et al. 2017).

    >>> import functad as fd
    >>> fd.numpy.rint(100 * fd.nn.SinusoidalEncoding(4)(fd.zeros((1, 2, 4)))).tolist()
    [[[0.0, 100.0, 0.0, 100.0], [84.0, 54.0, 1.0, 100.0]]]
    """

    d_model: int = field(static=True)
    base: float = field(static=True, default=10000.0)

    def __post_init__(self) -> None:
        at_least("SinusoidalEncoding", 2, d_model=self.d_model)
        if self.d_model % 2:
            raise ArgumentError(f"SinusoidalEncoding: d_model must be even, got {self.d_model}.")
        _check_base("SinusoidalEncoding", self.base)

    def forward(self, x: Any, offset: int = 0) -> Any:
        """`x` of shape (..., time, d_model) plus the encoding of positions `offset`, `offset + 1`, ..."""
        x = entered("SinusoidalEncoding", x)
        _check("SinusoidalEncoding", x, self.d_model)
        positions = np.arange(x.shape[-2])[:, None] + offset
        angles = positions * np.exp(np.arange(0, self.d_model, 2) * (-math.log(self.base) / self.d_model))
        table = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(x.shape[-2], self.d_model)
        return x + operand(table, x, x.dtype)


class RotaryEncoding(Module):
    """Turns pairs of numbers by angles that grow with the position, so that products see distances (Su et al. 2021).

    Args:
        head_dim: the length of the last axis of queries and keys.
        base: the longest wavelength over 2 pi.
        interleaved: whether neighbours are a pair; else the first half is paired with the second, as in
            Llama's released weights.

    >>> import functad as fd
    >>> turn = fd.nn.RotaryEncoding(2)
    >>> fd.numpy.rint(100 * turn(fd.tensor([[1.0, 0.0], [1.0, 0.0]]))).tolist()
    [[100.0, 0.0], [54.0, 84.0]]
    """

    head_dim: int = field(static=True)
    base: float = field(static=True, default=10000.0)
    interleaved: bool = field(static=True, default=False)

    def __post_init__(self) -> None:
        at_least("RotaryEncoding", 2, head_dim=self.head_dim)
        if self.head_dim % 2:
            raise ArgumentError(f"RotaryEncoding: head_dim must be even, got {self.head_dim}.")
        _check_base("RotaryEncoding", self.base)

    def forward(self, x: Any, offset: Any = 0) -> Any:
        """`x` of shape (..., time, head_dim), turned; positions start at `offset`, an int or a tensor."""
        x = entered("RotaryEncoding", x)
        _check("RotaryEncoding", x, self.head_dim)
        half = self.head_dim // 2
        rates = operand(np.exp(np.arange(half) * (-math.log(self.base) / half)), x, dtypes.float32)
        angles = (arange(x.shape[-2], device=x.device) + offset).astype("float32")[:, None] * rates
        cos, sin = ops.cos(angles).astype(x.dtype), ops.sin(angles).astype(x.dtype)
        if self.interleaved:
            a, b = x[..., 0::2], x[..., 1::2]
            return ops.stack([a * cos - b * sin, a * sin + b * cos], axis=-1).reshape(x.shape)
        a, b = x[..., :half], x[..., half:]
        return ops.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def _check_base(name: str, base: Any) -> None:
    if not isinstance(base, (int, float)) or not base > 0:
        raise ArgumentError(f"{name}: base must be a positive number, got {base!r}.")


def _check(name: str, x: Tensor, width: int) -> None:
    if x.ndim < 2 or x.shape[-1] != width:
        raise ShapeError(f"{name}: takes shape (..., time, {width}), got {x.shape}.")
