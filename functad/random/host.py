"""Draws on the host, without compiling: the same numbers as JAX's, for what is drawn a few times only.

A model of twenty shapes would compile twenty programs to draw its first weights once. The bits of
threefry (Salmon et al. 2011) are integer arithmetic, which NumPy does as well.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from functad import dtypes
from functad.device import Device
from functad.dispatch import tracing
from functad.levels import BASE
from functad.tensor import Tensor

Array = np.ndarray[Any, Any]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_CHUNK = 1 << 14  # numbers whose bits stay in the cache
_COMPILING = 5e-2  # seconds that a program takes to compile, about
_PER_CALL, _PER_NUMBER = 2e-4, 2e-8  # seconds that a tensor made on the host takes

_spent: dict[Any, float] = {}
_lock = threading.Lock()


def concrete(key: Any, initial: bool = False) -> tuple[Device, Array] | None:
    """The device and the numbers of a key that has some; None where it is traced or mapped, or a program is to draw.

    Draws of the `initial` numbers of parameters never are part of a program that is recorded.
    """
    x = key
    while x._backend.level[1]:
        x = x._value
    backend = x._backend
    if (
        backend.level != BASE
        or tracing.get() is not None
        or backend.name not in ("xla", "numpy")
        or (backend.fuses and not initial)
    ):
        return None
    value = x._value
    if isinstance(value, jax.core.Tracer) or not jax.config.jax_threefry_partitionable:  # type: ignore[attr-defined]
        return None
    return key.device, np.asarray(value)


def is_cheaper(what: Any, count: int = 0, tensors: int = 1) -> bool:
    """Whether to draw on the host once more, rather than to compile a program for `what` that makes `count` numbers.

    As long as all the draws so far took less than compiling does.
    """
    with _lock:
        spent = _spent.get(what, 0.0) + _PER_CALL * tensors + _PER_NUMBER * count
        if spent > max(_COMPILING, _PER_NUMBER * min(count, 1 << 22) + _PER_CALL):
            return False
        _spent[what] = spent
        return True


def blocks(key: Array, numbers: Array) -> tuple[Array, Array]:
    """Two words of 32 bits for each number: the key it makes of `key` by `fold_in`, or as that of a row of `split`."""
    k0, k1 = np.uint32(key[0]), np.uint32(key[1])
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x0 = np.full_like(numbers, k0)
    x1 = numbers + k1
    turned = np.empty_like(x1)
    for i in range(5):
        for rotation in _ROTATIONS[i % 2]:
            x0 += x1
            np.left_shift(x1, np.uint32(rotation), out=turned)
            x1 >>= np.uint32(32 - rotation)
            x1 |= turned
            x1 ^= x0
        with np.errstate(over="ignore"):
            x0 += keys[(i + 1) % 3]
            x1 += keys[(i + 2) % 3] + np.uint32(i + 1)
    return x0, x1


def keys(key: Array, first: int, count: int) -> Array:
    """The keys of `count` numbers from `first`, in rows."""
    numbers = ((first + np.arange(count)) & 0xFFFFFFFF).astype(np.uint32)
    return np.stack(blocks(key, numbers), -1)


def _in_chunks(key: Array, count: int, fill: Callable[[Array, Array], None]) -> Array:
    made = np.empty(count, np.float32)
    for start in range(0, count, _CHUNK):
        x0, x1 = blocks(key, np.arange(start, min(start + _CHUNK, count), dtype=np.uint32))
        x0 ^= x1
        fill(made[start : start + _CHUNK], x0)
    return made


def _fill_uniform(out: Array, bits: Array) -> None:
    bits >>= np.uint32(9)
    bits |= np.uint32(0x3F800000)
    np.subtract(bits.view(np.float32), np.float32(1), out=out)


def _fill_normal(out: Array, bits: Array) -> None:
    padded = np.zeros(_CHUNK, np.float32)
    _fill_uniform(padded[: len(bits)], bits)
    out[:] = np.asarray(_quantiles()(padded))[: len(bits)]


@lru_cache(1)
def _quantiles() -> Any:
    """Normal numbers of uniform ones, as JAX makes them: one program for all shapes."""
    low = np.nextafter(np.float32(-1), np.float32(0))
    width = np.float32(1) - low

    def normal(unit: Any) -> Any:
        u = jax.numpy.maximum(unit * width + low, low)
        return np.float32(np.sqrt(2)) * jax.lax.erf_inv(u)

    return jax.jit(normal)


_FILLS = {"uniform": _fill_uniform, "normal": _fill_normal}


def noise(
    name: str,
    key: Any,
    shape: tuple[int, ...],
    dtype: Any,
    scale: float | None = None,
    shift: float | None = None,
    initial: bool = False,
) -> Tensor | None:
    """`draw * scale + shift` on the host; None where a program is to draw, or has to."""
    count = math.prod(shape)
    if dtype != dtypes.float32 or count >= 1 << 31:
        return None
    found = concrete(key, initial)
    if found is None or not is_cheaper((name, shape), count):
        return None
    made = _in_chunks(found[1], count, _FILLS[name]).reshape(shape)
    if scale is not None:
        made *= np.float32(scale)
    if shift is not None:
        made += np.float32(shift)
    return _put(found[0], made)


def derived(what: str, key: Any, first: int, count: int, initial: bool = False) -> list[Tensor] | None:
    """The keys of a key and of the numbers from `first`; None where a program is to make them."""
    found = concrete(key, initial)
    if found is None or not is_cheaper((what, count), count, count):
        return None
    return [_put(found[0], row) for row in keys(found[1], first, count)]


def split(key: Any, sizes: tuple[int, ...]) -> Tensor | None:
    """The rows of `keys` in a shape; None where a program is to make them."""
    found = concrete(key)
    count = math.prod(sizes)
    if found is None or not is_cheaper(("split", sizes), count):
        return None
    return _put(found[0], keys(found[1], 0, count).reshape(*sizes, 2))


def _put(device: Device, array: Array) -> Tensor:
    made: Tensor = device.lift(device.base.put(array, array.dtype))
    return made
