"""Functions that NumPy and SciPy lack, for the NumPy backend: computed by JAX on the CPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import numpy as np

from functad import dtypes

__all__: list[str] = []

_LEAST = 64  # elements of a row: small ones have one length


def hosted(fn: Callable[..., Any]) -> Callable[..., Any]:
    """An op's implementation `fn(xp, *arrays, **params)` for NumPy arrays; `xp` is `jax.numpy` to it."""

    @functools.lru_cache(256)
    def compiled(**params: Any) -> Any:
        return jax.jit(functools.partial(fn, jax.numpy, **params))

    @functools.wraps(fn)
    def impl(xp: Any, *arrays: Any, **params: Any) -> Any:
        with in_precision(params.get("dtype"), *arrays), jax.default_device(jax.devices("cpu")[0]):
            out = compiled(**params)(*arrays)
            return tuple(map(np.asarray, out)) if type(out) is tuple else np.asarray(out)

    return impl


def hosted_elements(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a function that maps elements: it is compiled for powers of two of them, not for every shape."""
    call = hosted(fn)

    @functools.wraps(fn)
    def impl(xp: Any, *arrays: Any, **params: Any) -> Any:
        shape = np.broadcast_shapes(*[x.shape for x in arrays])
        out = call(xp, *[padded(x, shape) for x in arrays], **params)
        return out[: math.prod(shape)].reshape(shape)

    return impl


def padded(x: Any, shape: tuple[int, ...]) -> Any:
    """The elements of an array, broadcast to a shape, in a row that is filled up to a power of two with ones."""
    count = math.prod(shape)
    row = np.ones(max(_LEAST, 1 << max(count - 1, 0).bit_length()), x.dtype)
    row[:count] = np.broadcast_to(x, shape).ravel()
    return row


def in_precision(dtype: Any, *arrays: Any) -> Any:
    """JAX's x64 mode for a block, if floats of 64 bits occur in it."""
    known = [x.dtype for x in arrays] if dtype is None else [dtype, *[x.dtype for x in arrays]]
    wide = dtypes.float64 in known  # not None, which NumPy holds to be equal to float64
    return jax.enable_x64(True) if wide and not dtypes.x64_enabled() else nullcontext()
