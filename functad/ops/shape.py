"""Shapes: the same elements, arranged otherwise."""

from __future__ import annotations

from typing import Any

from functad.dispatch import bind
from functad.ops.rules import linear
from functad.dtypes import parse
from functad.ops.rules import cast_op

__all__ = ["transpose", "astype"]

transpose_op = linear(
    "transpose", lambda xp, x, *, axes: xp.transpose(x, axes), lambda g, axes: bind(transpose_op, (g,), (_inverse(axes),))
)


def transpose(x: Any, axes: Any = None) -> Any:
    return bind(transpose_op, (x,), (tuple(reversed(range(x.ndim))) if axes is None else axes,))


def astype(x: Any, dtype: Any) -> Any:
    return bind(cast_op, (x,), (parse(dtype, "astype"),))


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))
