"""The NumPy backend: no compilation, no accelerator; the tests' independent reference."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from functad.backends.base import BaseBackend
from functad.device import BASE_BACKENDS
from functad.dtypes import DType
from functad.ops.op import Op


@lru_cache(8192)
def compiled(op: Op, params: tuple[Any, ...]) -> Callable[..., Any]:
    """The call of `op` with its parameters, quiet about inf and NaN."""
    impl = op.numpy_impl or op.impl
    fixed = dict(zip(op.params, params, strict=True))

    @np.errstate(all="ignore")
    def call(*arrays: Any) -> Any:
        out = impl(np, *arrays, **fixed)
        return tuple(map(frozen, out)) if type(out) is tuple else frozen(out)

    return call


def frozen(array: Any) -> np.ndarray[Any, Any]:
    """An array that no view of it can change."""
    array = np.asarray(array)
    array.flags.writeable = False
    return array


class NumPy(BaseBackend):
    """Runs ops on `numpy.ndarray`s."""

    name = "numpy"
    hardware = "numpy"

    compiled = staticmethod(compiled)  # a C function: no frame of Python's on the way

    def array(self, data: Any, dtype: DType) -> Any:
        return frozen(np.array(data, dtype))

    def host(self, value: Any) -> np.ndarray[Any, Any]:
        view: np.ndarray[Any, Any] = value.view()
        return view

    def jax_array(self, value: Any) -> Any:
        return jax.device_put(np.array(value))  # of a copy; jnp.array would compile for each shape

    def requires(self, dtype: DType, where: str) -> None:
        """NumPy holds every dtype."""


@lru_cache
def _devices() -> list[BaseBackend]:
    return [NumPy()]


BASE_BACKENDS["numpy"] = _devices
