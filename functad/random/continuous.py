"""Draws from distributions."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from functad import dtypes, ops
from functad.creation import Shape, as_shape
from functad.device import Device
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError
from functad.random.keys import checked_key, draw, random_op, wrap
from functad.tensor import Tensor


def normal(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Standard normal numbers."""
    return draw(_normal_op, "normal", key, shape, dtype, device)


def truncated_normal(
    key: Any, lower: float, upper: float, shape: Shape = (), dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Standard normal numbers between `lower` and `upper`."""
    return draw(_truncated_normal_op, "truncated_normal", key, shape, dtype, device, float(lower), float(upper))


def uniform(
    key: Any, shape: Shape = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, device: Device | None = None
) -> Tensor:
    """Uniform numbers in `[minval, maxval)`; differentiable in the bounds."""
    unit = draw(_uniform_op, "uniform", key, shape, dtype, device)
    if isinstance(minval, (int, float)) and isinstance(maxval, (int, float)):
        return unit if (minval, maxval) == (0, 1) else unit * (maxval - minval) + minval
    return unit * (ops.sub(maxval, minval)) + minval


def bernoulli(key: Any, p: Any = 0.5, shape: Shape | None = None, device: Device | None = None) -> Tensor:
    """True with probability `p`; of the shape of `p` unless told otherwise."""
    like = (p.shape if isinstance(p, Handle) else np.shape(p)) if shape is None else shape
    return uniform(key, like, device=device) < p


def randint(
    key: Any, shape: Shape, minval: int, maxval: int, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Integers in `[minval, maxval)`."""
    if minval >= maxval:
        raise ArgumentError(f"random.randint: minval={minval} must be less than maxval={maxval}.")
    wanted = dtypes.default_int() if dtype is None else dtypes.parse(dtype, "random.randint")
    drawn = bind(
        _randint_op, (checked_key(key, "randint"),), (as_shape(shape, "randint"), int(minval), int(maxval), wanted)
    )
    return drawn if device is None else drawn.to_device(device)


def permutation(key: Any, n: int, device: Device | None = None) -> Tensor:
    """The integers from 0 up to `n` in random order."""
    drawn = bind(_permutation_op, (checked_key(key, "permutation"),), (int(n), dtypes.default_int()))
    return drawn if device is None else drawn.to_device(device)


_normal_op = random_op(
    "random_normal",
    lambda xp, key, *, shape, dtype: jax.random.normal(wrap(key), shape, dtype),
    {"shape": (2, 3), "dtype": dtypes.float32},
    "Standard normal numbers.",
)
_truncated_normal_op = random_op(
    "random_truncated_normal",
    lambda xp, key, *, lower, upper, shape, dtype: jax.random.truncated_normal(wrap(key), lower, upper, shape, dtype),
    {"lower": -1.0, "upper": 2.0, "shape": (2, 3), "dtype": dtypes.float32},
    "Standard normal numbers between bounds.",
)
_uniform_op = random_op(
    "random_uniform",
    lambda xp, key, *, shape, dtype: jax.random.uniform(wrap(key), shape, dtype),
    {"shape": (2, 3), "dtype": dtypes.float32},
    "Uniform numbers in [0, 1).",
)
_randint_op = random_op(
    "random_randint",
    lambda xp, key, *, shape, minval, maxval, dtype: jax.random.randint(wrap(key), shape, minval, maxval, dtype),
    {"shape": (2, 3), "minval": 0, "maxval": 9, "dtype": dtypes.int32},
    "Integers in a range.",
)
_permutation_op = random_op(
    "random_permutation",
    lambda xp, key, *, n, dtype: jax.random.permutation(wrap(key), n).astype(dtype),
    {"n": 5, "dtype": dtypes.int32},
    "Integers in random order.",
)
