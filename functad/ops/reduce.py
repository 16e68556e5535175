"""Reductions over axes."""

from __future__ import annotations

from typing import Any

from functad.dispatch import bind
from functad.ops.rules import sum_op

__all__ = ["sum"]


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    return bind(sum_op, (x,), (tuple(range(x.ndim)), keepdims))
