"""Tests of derivatives and ops, for users and for functad itself.

`check_grads` compares the derivatives of a function with finite differences, `check_op` runs every
generic property on an op, `strategies` holds Hypothesis strategies for shapes, dtypes and tensors
(`pip install functad[testing]`).
"""

from __future__ import annotations

import importlib
from types import ModuleType

from functad.keywords import explain
from functad.testing.check import check_grads, check_op

__all__ = ["check_grads", "check_op", "strategies"]


explain(globals(), __all__)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> ModuleType:
    """`strategies` is imported when it is asked for: it needs Hypothesis, the rest does not."""
    if name == "strategies":
        return importlib.import_module("functad.testing.strategies")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
