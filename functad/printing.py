"""The `repr` of a tensor: value, dtype, device and autodiff state."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad.dispatch import base_tensor


def tensor_repr(x: Any) -> str:
    """`tensor([1., 2.], dtype=float32, device=cpu:0, require_grad)`; levels and tracers by name."""
    return f"tensor({_body(x)}, dtype={x.dtype}{_state(x)})"


def _body(x: Any) -> str:
    base = base_tensor(x)
    try:
        array = base._backend.host(base._value)
    except Exception:  # traced by jax: there is no value to show
        return f"<traced {list(x.shape)}>"
    if base.shape != x.shape:
        return f"<{list(x.shape)} mapped over {list(base.shape)}>"
    if array.dtype.kind == "V":  # bfloat16 and other extension floats print through float32
        array = array.astype(np.float32)
    text = np.array2string(array, separator=", ", prefix="tensor(", threshold=200, edgeitems=3)
    return text if array.size else f"[], shape={x.shape}"


def _state(x: Any) -> str:
    text = f", device={x.device.name}:{x.device.base.hardware.rpartition(':')[0] or 'cpu'}" if x.device.is_autodiff else f", device={x.device.base.hardware}"
    if x.is_require_grad:
        return text + ", require_grad"
    return text + ", tracked" if x.is_tracked else text
