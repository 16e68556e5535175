"""The XLA backend: `jax.Array` on CPU, GPU or TPU, one cached compiled call per op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes
from functad.backends.base import BaseBackend, refuse_donated
from functad.backends.pulls import Pulls
from functad.device import BASE_BACKENDS
from functad.dtypes import DType
from functad.errors import ConcreteValueError
from functad.ops.op import Op
from functad.tape import AnyNode, Swept, sweep
from functad.tensor import Tensor


@lru_cache(8192)
def compiled(op: Op, params: tuple[Any, ...]) -> Callable[..., Any]:
    """The compiled call of `op`; `jax.jit` specialises it by shapes and dtypes."""
    fixed = dict(zip(op.params, params, strict=True))

    def call(*arrays: Any) -> Any:
        return op.impl(jnp, *arrays, **fixed)

    call.__name__ = call.__qualname__ = op.name
    return jax.jit(call, donate_argnums=op.donate)


class Xla(BaseBackend):
    """Runs ops on one XLA device, each through `jax.jit`."""

    name = "xla"
    tells_types = True

    def __init__(self, device: Any):
        super().__init__()
        self.jax_device = device
        self.hardware = f"{device.platform}:{device.id}"
        self.transfers = device.platform != "cpu"
        self.pulls = Pulls(self)

    compiled = staticmethod(compiled)  # a C function: no frame of Python's on the way

    def array(self, data: Any, dtype: DType) -> Any:
        if isinstance(data, jax.core.Tracer):
            return data.astype(dtype)
        if isinstance(data, jax.Array):
            return jax.device_put(data if data.dtype == dtype else data.astype(dtype), self.jax_device)
        mine = np.asarray(data).astype(dtype)  # a copy, which the result may share
        with jax.ensure_compile_time_eval():  # data is concrete, and kept scalars must not hold a trace
            return jax.device_put(mine, self.jax_device)  # jnp.asarray is quicker, and compiles for each shape

    def host(self, value: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, jax.core.Tracer):
            raise ConcreteValueError(
                "this value is being traced by jax.jit and has no number yet: return it from the "
                "function and read it outside. Use functad or jnp operations on it, fd.cond or jnp.where instead of `if`."
            )
        try:
            return np.asarray(value)
        except RuntimeError:
            refuse_donated("reading values", [value])
            raise

    def jax_array(self, value: Any) -> Any:
        if type(value) is np.ndarray:  # a small one stays so until it is asked for
            return self.array(value, value.dtype)
        return value

    def detach(self, x: Tensor) -> Tensor:
        if not isinstance(x._value, jax.core.Tracer):
            return x
        return Tensor(self, jax.lax.stop_gradient(x._value), None, x._shape, x._dtype)  # JAX may be differentiating

    constant = detach

    def sweep(self, seeds: Sequence[tuple[AnyNode, Tensor]], outputs: Sequence[Tensor], release: bool) -> Swept:
        """Run backward from `seeds`, each rule as one compiled call."""
        return sweep(seeds, release, self.pulls)

    def requires(self, dtype: DType, where: str) -> None:
        dtypes.refuse_wide(dtype, where)


@lru_cache
def _devices(kind: str) -> list[BaseBackend]:
    try:
        return [Xla(device) for device in jax.devices(kind)]
    except RuntimeError:  # JAX has no such platform here
        return []


for _kind in ("tpu", "gpu", "cpu"):
    BASE_BACKENDS[_kind] = partial(_devices, _kind)
