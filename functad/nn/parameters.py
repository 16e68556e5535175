"""What layers share: where the first numbers of a parameter come from, and checks of sizes."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from functad import dtypes, random
from functad.creation import full
from functad.device import Device, checked
from functad.errors import ArgumentError, ArgumentTypeError
from functad.ops.operand import operand
from functad.ops.quantize import QuantTensor
from functad.param import Param
from functad.random import host
from functad.random.keys import checked_key, on_host
from functad.tensor import Tensor


class Maker:
    """Makes the parameters of one layer, each from a key of its own."""

    def __init__(self, layer: str, key: Tensor | None, dtype: Any, device: Device | None):
        self.layer = layer
        self.dtype = dtype
        if device is not None:
            checked(device, layer)
        self.device = checked_key(key, layer).device if device is None and key is not None else device
        self._key = key
        self._count = 0

    def key(self) -> Tensor:
        """The next key."""
        if self._key is None:
            self._key = random.draw_key(self.device)
        self._count += 1
        made = host.derived("fold_in", checked_key(self._key, self.layer), self._count, 1, initial=True)
        return random.fold_in(self._key, self._count) if made is None else made[0]

    def uniform(self, shape: tuple[int, ...], bound: float) -> Param:
        """Uniform in +-bound."""
        return Param(uniform(self.key(), shape, self.dtype, -bound, bound, self.device))

    def normal(self, shape: tuple[int, ...], std: float = 1.0) -> Param:
        """Normal around 0."""
        return Param(normal(self.key(), shape, self.dtype, std, None, self.device))

    def zeros(self, shape: tuple[int, ...]) -> Param:
        """Zeros."""
        return Param(self.buffer(shape, 0.0))

    def ones(self, shape: tuple[int, ...]) -> Param:
        """Ones."""
        return Param(self.buffer(shape, 1.0))

    def buffer(self, shape: tuple[int, ...], value: float, dtype: Any = None) -> Tensor:
        """A tensor that is not trained."""
        return full(shape, value, dtype or self.dtype or dtypes.default_float(), self.device)


def uniform(key: Any, shape: Any, dtype: Any, low: float, high: float, device: Device | None) -> Tensor:
    """Uniform first numbers, drawn without compiling where that can be."""
    made = on_host("uniform", key, shape, dtype, device, (low, high), initial=True)
    return random.uniform(key, shape, dtype, low, high, device=device) if made is None else made


def normal(key: Any, shape: Any, dtype: Any, std: float, mean: float | None, device: Device | None) -> Tensor:
    """Normal first numbers, drawn without compiling where that can be."""
    made = on_host("normal", key, shape, dtype, device, None, std, mean, initial=True)
    if made is not None:
        return made
    drawn = random.normal(key, shape, dtype, device=device) * std
    return drawn if mean is None else drawn + mean


def entered(layer: str, x: Any, like: Any = None) -> Any:
    """What a layer is called with, as a float tensor: of a dtype of its own, or else that of `like`."""
    x = operand(x, like.values if isinstance(like, QuantTensor) else like, where=layer)
    if dtypes.is_inexact(x.dtype):
        return x
    return x.astype(dtypes.float_of(x.dtype) if like is None else dtype_of(like))


def dtype_of(weight: Any) -> dtypes.DType:
    """The dtype that a layer computes in: of a quantized weight that of the floats it stands for."""
    found: dtypes.DType = weight.of if isinstance(weight, QuantTensor) else weight.dtype
    return found


def beside(layer: str, states: Any, x: Any) -> Any:
    """States, one or a tuple, as tensors beside `x`."""
    if isinstance(states, tuple):
        return tuple([beside(layer, s, x) for s in states])
    return states if isinstance(states, Tensor) else operand(states, x, x.dtype, layer)


def two_keys(key: Any) -> list[Tensor]:
    """`random.split(key)`, made without compiling where that can be."""
    return host.derived("split", checked_key(key, "split"), 0, 2, initial=True) or list(random.split(key))


def at_least(layer: str, least: int, **sizes: Any) -> None:
    """Raise unless the named sizes are integers of at least `least`."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not hasattr(size, "__index__"):
            raise ArgumentTypeError(f"{layer}: {name} must be an int, got {size!r} of type {type(size).__name__}.")
        if size < least:
            raise ArgumentError(f"{layer}: {name} must be at least {least}, got {size}.")


def probability(layer: str, name: str, p: Any) -> None:
    """Raise unless an argument is a number in [0, 1]."""
    if not isinstance(p, (int, float, np.number)) or not 0 <= p <= 1:
        raise ArgumentError(f"{layer}: {name} must be a probability in [0, 1], got {p!r}.")


def tuple_of(layer: str, name: str, value: Any, n: int) -> tuple[int, ...]:
    """An int, or one for each of `n` axes, as a tuple."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * n
    if len(values) != n or any(isinstance(v, bool) or not hasattr(v, "__index__") for v in values):
        raise ArgumentError(f"{layer}: {name} must be an int or {n} ints, got {value!r}.")
    return tuple(int(v) for v in values)


def fan_bound(fan_in: int) -> float:
    """The bound of torch's first weights: 1 / sqrt(fan_in)."""
    return 1 / math.sqrt(fan_in) if fan_in else 0.0


def keys_for(layers: Any, key: Any) -> Iterator[dict[str, Any]]:
    """For each layer what to call it with so that it draws from `key`: a key of its own, if it takes one."""
    for number, layer in enumerate(layers):
        kind: Any = type(layer)
        yield {"key": random.fold_in(key, number)} if key is not None and takes_key(kind) else {}


@lru_cache(256)
def takes_key(kind: Any) -> bool:
    """Whether the forward of a class of layers has a `key` to draw from."""
    forward = getattr(kind, "forward", None)
    found = None if forward is None else inspect.signature(forward).parameters.get("key")
    return found is not None and found.kind is found.KEYWORD_ONLY
