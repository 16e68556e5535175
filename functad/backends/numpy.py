"""The NumPy backend: no compilation, no accelerator; the tests' independent reference."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax.numpy as jnp
import numpy as np

from functad.backends.base import BaseBackend
from functad.device import BASE_BACKENDS
from functad.dtypes import DType
from functad.ops.op import Op


class NumPy(BaseBackend):
    """Runs ops on `numpy.ndarray`s."""

    name = "numpy"
    hardware = "numpy"

    def call(self, op: Op, arrays: list[Any], params: tuple[Any, ...]) -> Any:
        impl = op.numpy_impl or op.impl
        with np.errstate(all="ignore"):
            out = impl(np, *arrays, **dict(zip(op.params, params, strict=True)))
        return tuple(map(np.asarray, out)) if type(out) is tuple else np.asarray(out)

    def array(self, data: Any, dtype: DType) -> Any:
        return np.array(data, dtype)

    def host(self, value: Any) -> np.ndarray[Any, Any]:
        view: np.ndarray[Any, Any] = value.view()
        view.flags.writeable = False
        return view

    def jax_array(self, value: Any) -> Any:
        return jnp.array(value)

    def requires(self, dtype: DType, where: str) -> None:
        """NumPy holds every dtype."""


@lru_cache
def _devices() -> list[BaseBackend]:
    return [NumPy()]


BASE_BACKENDS["numpy"] = _devices
