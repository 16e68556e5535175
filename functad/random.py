"""Random numbers from explicit keys, as in `jax.random`: the same key gives the same numbers, on every device.

>>> import functad as fd
>>> key = fd.random.key(0)
>>> k1, k2 = fd.random.split(key)
>>> fd.random.normal(k1, (2, 3)).shape
(2, 3)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from functad import dtypes, ops
from functad.creation import Shape, as_shape
from functad.device import Device, checked
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError
from functad.ops.op import Op, Samples
from functad.ops.operand import operand
from functad.ops.rules import nondiff
from functad.tensor import Tensor

__all__ = ["bernoulli", "fold_in", "key", "normal", "permutation", "randint", "split", "truncated_normal", "uniform"]

_KEY = np.array([0, 7], np.uint32)


def key(seed: int, device: Device | None = None) -> Tensor:
    """A key made from a seed: two unsigned 32-bit integers."""
    data = np.asarray(jax.random.key_data(jax.random.key(seed, impl="threefry2x32")))
    where = checked(device, "random.key")
    return where.lift(where.base.put(data, dtypes.uint32, "random.key"))


def split(key: Any, num: int = 2) -> Tensor:
    """`num` new keys, shape `(num, 2)`; unpack them or index them."""
    return bind(_split_op, (_checked(key, "split"),), (int(num),))


def fold_in(key: Any, data: Any) -> Tensor:
    """A new key from a key and an integer, such as a step count."""
    key = _checked(key, "fold_in")
    return bind(_fold_in_op, (key, operand(data, key).astype("uint32")))


def normal(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Standard normal numbers."""
    return _draw(_normal_op, "normal", key, shape, dtype, device)


def truncated_normal(
    key: Any, lower: float, upper: float, shape: Shape = (), dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Standard normal numbers between `lower` and `upper`."""
    return _draw(_truncated_normal_op, "truncated_normal", key, shape, dtype, device, float(lower), float(upper))


def uniform(
    key: Any, shape: Shape = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, device: Device | None = None
) -> Tensor:
    """Uniform numbers in `[minval, maxval)`; differentiable in the bounds."""
    unit = _draw(_uniform_op, "uniform", key, shape, dtype, device)
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
        _randint_op, (_checked(key, "randint"),), (as_shape(shape, "randint"), int(minval), int(maxval), wanted)
    )
    return drawn if device is None else drawn.to_device(device)


def permutation(key: Any, n: int, device: Device | None = None) -> Tensor:
    """The integers from 0 up to `n` in random order."""
    drawn = bind(_permutation_op, (_checked(key, "permutation"),), (int(n), dtypes.default_int()))
    return drawn if device is None else drawn.to_device(device)


def _draw(op: Op, name: str, key: Any, shape: Shape, dtype: Any, device: Device | None, *params: Any) -> Tensor:
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, f"random.{name}")
    if not dtypes.is_float(wanted):
        raise DTypeError(f"random.{name}: draws floats, got dtype={wanted}; see fd.random.randint for integers.")
    drawn = bind(op, (_checked(key, name),), (*params, as_shape(shape, f"random.{name}"), wanted))
    return drawn if device is None else drawn.to_device(device)


def _checked(key: Any, name: str) -> Tensor:
    if isinstance(key, Handle) and key.shape == (2,) and key.dtype == dtypes.uint32:
        return key  # type: ignore[return-value]
    if isinstance(key, jax.Array) and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key):
        return Device.default().base.put(jax.random.key_data(key), dtypes.uint32)
    raise ArgumentTypeError(
        f"random.{name}: the first argument must be one key, as fd.random.key(0) makes it, got "
        f"{f'{key.dtype}{list(key.shape)}' if isinstance(key, Handle) else repr(key)}."
    )


def _random(name: str, draw: Callable[..., Any], params: dict[str, Any], doc: str) -> Op:
    """An op on one key, drawn by JAX on every backend."""
    samples = Samples(make=lambda rng: [((_KEY,), params)])
    return nondiff(name, draw, numpy_impl=_on_host(draw), samples=samples, doc=doc)


def _on_host(draw: Callable[..., Any]) -> Callable[..., Any]:
    def impl(xp: Any, key: Any, *rest: Any, **params: Any) -> Any:
        with jax.default_device(jax.devices("cpu")[0]):
            return np.asarray(draw(jax.numpy, jax.numpy.asarray(key), *rest, **params))

    return impl


def _wrap(key: Any) -> Any:
    return jax.random.wrap_key_data(key, impl="threefry2x32")


_split_op = _random(
    "random_split",
    lambda xp, key, *, num: jax.random.key_data(jax.random.split(_wrap(key), num)),
    {"num": 2},
    "New keys from a key.",
)
_fold_in_op = nondiff(
    "random_fold_in",
    lambda xp, key, data: jax.random.key_data(jax.random.fold_in(_wrap(key), data)),
    numpy_impl=_on_host(lambda xp, key, data: jax.random.key_data(jax.random.fold_in(_wrap(key), data))),
    samples=Samples(make=lambda rng: [((_KEY, np.uint32(3)), {})]),
    doc="A new key from a key and a number.",
)
_normal_op = _random(
    "random_normal",
    lambda xp, key, *, shape, dtype: jax.random.normal(_wrap(key), shape, dtype),
    {"shape": (2, 3), "dtype": dtypes.float32},
    "Standard normal numbers.",
)
_truncated_normal_op = _random(
    "random_truncated_normal",
    lambda xp, key, *, lower, upper, shape, dtype: jax.random.truncated_normal(_wrap(key), lower, upper, shape, dtype),
    {"lower": -1.0, "upper": 2.0, "shape": (2, 3), "dtype": dtypes.float32},
    "Standard normal numbers between bounds.",
)
_uniform_op = _random(
    "random_uniform",
    lambda xp, key, *, shape, dtype: jax.random.uniform(_wrap(key), shape, dtype),
    {"shape": (2, 3), "dtype": dtypes.float32},
    "Uniform numbers in [0, 1).",
)
_randint_op = _random(
    "random_randint",
    lambda xp, key, *, shape, minval, maxval, dtype: jax.random.randint(_wrap(key), shape, minval, maxval, dtype),
    {"shape": (2, 3), "minval": 0, "maxval": 9, "dtype": dtypes.int32},
    "Integers in a range.",
)
_permutation_op = _random(
    "random_permutation",
    lambda xp, key, *, n, dtype: jax.random.permutation(_wrap(key), n).astype(dtype),
    {"n": 5, "dtype": dtypes.int32},
    "Integers in random order.",
)
