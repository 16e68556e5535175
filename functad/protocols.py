"""NumPy's dispatch protocols: `np.sin(x)` and `np.sum(x)` on a tensor run functad's own function."""

from __future__ import annotations

from typing import Any

from functad import ops
from functad.errors import ArgumentTypeError

_UFUNCS = {"subtract": "sub", "multiply": "mul", "divide": "div", "true_divide": "div", "negative": "neg", "power": "pow"}
"""NumPy's names that differ from the op's."""


def numpy_ufunc(ufunc: Any, method: str, inputs: Any, kwargs: Any) -> Any: ...


def numpy_function(func: Any, args: Any, kwargs: Any) -> Any: ...
