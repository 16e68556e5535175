"""The `repr` of a tensor: value, dtype, device and autodiff state."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad.dispatch import base_tensor
from functad.errors import ConcreteValueError, DonatedError

_EDGE = 3
_MOST_SHOWN = 200


def tensor_repr(x: Any) -> str:
    """`tensor([1., 2.], dtype=float32, device=autodiff<cpu:0>, require_grad)`."""
    device = x.device
    where = "autodiff<" * device.order + device.base.hardware + ">" * device.order
    state = ", require_grad" if x.is_require_grad else ", tracked" if x.is_tracked else ""
    return f"tensor({_elements(x)}, dtype={x.dtype}, device={where}{state})"


def _elements(x: Any) -> str:
    base = base_tensor(x)
    try:
        array = base._backend.host(base._value)
    except ConcreteValueError:
        return f"<traced, shape={x.shape}>"
    except DonatedError:
        return f"<donated, shape={x.shape}>"
    if base.shape != x.shape:
        return f"<shape={x.shape}, one of a batch {base.shape}>"
    if not array.size:
        return f"[], shape={x.shape}"
    if array.size > _MOST_SHOWN:  # fetch and format only what is shown
        text = np.array2string(
            array, separator=", ", prefix="tensor(", threshold=0, edgeitems=_EDGE, formatter=_format(array)
        )
        return f"{text}, shape={x.shape}"
    return np.array2string(array, separator=", ", prefix="tensor(", formatter=_format(array))


def _format(array: np.ndarray[Any, Any]) -> Any:
    """Extension floats (bfloat16, float8) print as numbers, not as quoted strings."""
    return {"void": lambda v: f"{float(v):g}"} if array.dtype.kind == "V" else None
