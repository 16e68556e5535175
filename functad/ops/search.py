"""Places in a sorted vector."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import ArgumentError, DTypeError, ShapeError
from functad.ops.index import take
from functad.ops.op import Cost, Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import nondiff

__all__ = ["searchsorted", "searchsorted_op"]


def _position(xp: Any, x: Any, y: Any, *, right: bool) -> Any:
    if xp is np and dtypes.is_half(x.dtype):  # NumPy misplaces the NaNs of bfloat16
        x, y = x.astype(np.float32), y.astype(np.float32)
    return xp.searchsorted(x, y, side="right" if right else "left").astype(dtypes.default_int())


def _sorted(rng: np.random.Generator) -> list[Any]:
    x, y = np.sort(rng.integers(-3, 4, 6).astype(float)), rng.integers(-4, 5, (2, 3)).astype(float)
    return [
        ((x, y), {"right": False}),
        ((x, y[0, 0]), {"right": True}),
        ((x[:0], y), {"right": True}),
        ((x, y[:0]), {"right": False}),
    ]


searchsorted_op = nondiff(
    "searchsorted", _position, cost=Cost.COMPUTE, samples=Samples(make=_sorted),
    doc="Where each element would have to be inserted into a sorted vector.",
)  # fmt: skip


def searchsorted(a: Any, v: Any, side: str = "left", sorter: Any = None) -> Any:
    """Where each element of `v` would have to be inserted into the sorted vector `a` to keep it sorted.

    Args:
        a: a vector in ascending order, or put in it by `sorter`.
        v: the elements.
        side: "left" gives the first possible place, "right" the last.
        sorter: the indices that sort `a`.

    >>> import functad as fd
    >>> fd.ops.searchsorted([1, 2, 2, 3], [2, 5]).tolist()
    [1, 4]
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', got {side!r}.")
    a, v = operands("searchsorted", "compare", (a, v))
    if a.ndim != 1:
        raise ShapeError(f"searchsorted: the sorted tensor is a vector, got shape {a.shape}; use fd.vmap for rows.")
    if a._dtype.kind == "c":
        raise DTypeError(f"searchsorted: complex numbers have no order, got {a.dtype}.")
    if sorter is not None:
        a = take(a, operand(sorter, a))
    return bind(searchsorted_op, (a, v), (side == "right",))
