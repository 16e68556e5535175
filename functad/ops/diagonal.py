"""Diagonals and triangles of matrices."""

from __future__ import annotations

from typing import Any

from functad.dispatch import bind
from functad.errors import ShapeError
from functad.ops.axes import counted, normalize_axis
from functad.ops.cumulative import integers_widened
from functad.ops.op import Op, Samples
from functad.ops.operand import operand
from functad.ops.rules import linear, sum_op
from functad.ops.shape import at_least, fixed, on_rows

__all__ = ["diag", "diagonal", "trace", "tril", "triu"]


def _embed(xp: Any, x: Any, *, shape: tuple[int, ...], offset: int, axis1: int, axis2: int) -> Any:
    rows, cols = shape[axis1], shape[axis2]
    side = rows if offset >= 0 else cols  # element p of the diagonal is in row p, or below the main one in column p
    wide = xp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, side - x.shape[-1])])
    wide = wide[..., :, None] if offset >= 0 else wide[..., None, :]
    out = xp.where(xp.eye(rows, cols, offset, dtype=bool), wide, xp.zeros((), x.dtype))
    return xp.moveaxis(out, (-2, -1), (axis1, axis2))


tril_op: Op = linear(
    "tril", lambda xp, x, *, k: xp.tril(x, k), lambda g, k: bind(tril_op, (g,), (k,)),
    samples=Samples([(((3, 4),), {"k": 0}), (((2, 3, 2),), {"k": -1}), (((0, 2),), {"k": 1})]),
    batch=on_rows(lambda size, k: (k,)), doc="The lower triangle of the last two axes, the rest 0.",
)  # fmt: skip
triu_op: Op = linear(
    "triu", lambda xp, x, *, k: xp.triu(x, k), lambda g, k: bind(triu_op, (g,), (k,)),
    samples=Samples([(((3, 4),), {"k": 0}), (((2, 3, 2),), {"k": -1}), (((0, 2),), {"k": 1})]),
    batch=on_rows(lambda size, k: (k,)), doc="The upper triangle of the last two axes, the rest 0.",
)  # fmt: skip
diagonal_op = linear(
    "diagonal", lambda xp, x, *, offset, axis1, axis2: xp.diagonal(x, offset, axis1, axis2),
    lambda g, x_shape, offset, axis1, axis2: bind(embed_diagonal_op, (g,), (x_shape, offset, axis1, axis2)),
    samples=Samples([
        (((4, 2),), {"offset": 0, "axis1": 0, "axis2": 1}), (((3, 2, 4),), {"offset": -1, "axis1": 2, "axis2": 0}),
        (((2, 3),), {"offset": 5, "axis1": 0, "axis2": 1}), (((0, 2),), {"offset": 1, "axis1": 0, "axis2": 1}),
    ]),
    batch=on_rows(lambda size, offset, axis1, axis2: (offset, axis1 + 1, axis2 + 1)),
    doc="A diagonal of two axes, as the last axis.",
)  # fmt: skip
embed_diagonal_op: Op = linear(
    "embed_diagonal", _embed,
    lambda g, offset, axis1, axis2: bind(diagonal_op, (g,), (offset, axis1, axis2)),
    samples=fixed(
        (((2,),), {"shape": (4, 2), "offset": 0, "axis1": 0, "axis2": 1}),
        (((2, 3),), {"shape": (4, 2, 3), "offset": -1, "axis1": 0, "axis2": 2}),
        (((0,),), {"shape": (2, 3), "offset": 5, "axis1": 0, "axis2": 1}),
    ),
    batch=on_rows(lambda size, shape, offset, axis1, axis2: ((size, *shape), offset, axis1 + 1, axis2 + 1)),
    doc="Zeros of a shape with x on one diagonal.",
)  # fmt: skip


def tril(x: Any, k: int = 0) -> Any:
    """The lower triangle of the last two axes, up to the `k`-th diagonal; the rest is 0.

    >>> import functad as fd
    >>> fd.ops.tril(fd.ones((2, 2))).tolist()
    [[1.0, 0.0], [1.0, 1.0]]
    """
    return bind(tril_op, (at_least(operand(x, where="tril"), 2, "tril"),), (counted(k, "tril", "k"),))


def triu(x: Any, k: int = 0) -> Any:
    """The upper triangle of the last two axes, from the `k`-th diagonal; the rest is 0.

    >>> import functad as fd
    >>> fd.ops.triu(fd.ones((2, 2)), 1).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    return bind(triu_op, (at_least(operand(x, where="triu"), 2, "triu"),), (counted(k, "triu", "k"),))


def diagonal(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements of the `offset`-th diagonal of two axes, as the last axis.

    >>> import functad as fd
    >>> fd.ops.diagonal([[1, 2], [3, 4]]).tolist()
    [1, 4]
    """
    x = at_least(operand(x, where="diagonal"), 2, "diagonal")
    i, j = normalize_axis(axis1, x.ndim, "diagonal"), normalize_axis(axis2, x.ndim, "diagonal")
    if i == j:
        raise ShapeError(f"diagonal: axis1={axis1} and axis2={axis2} are the same axis of shape {x.shape}.")
    return bind(diagonal_op, (x,), (counted(offset, "diagonal", "offset"), i, j))


def diag(x: Any, k: int = 0) -> Any:
    """A matrix with a vector on its `k`-th diagonal; of a matrix, that diagonal.

    >>> import functad as fd
    >>> fd.ops.diag([1, 2]).tolist()
    [[1, 0], [0, 2]]
    """
    x = operand(x, where="diag")
    if x.ndim == 2:
        return diagonal(x, k)
    if x.ndim != 1:
        raise ShapeError(f"diag: takes a vector or a matrix, got shape {x.shape}; of a stack use diagonal(x).")
    k = counted(k, "diag", "k")
    side = x.shape[0] + abs(k)
    return bind(embed_diagonal_op, (x,), ((side, side), k, 0, 1))


def trace(x: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The sum of the `offset`-th diagonal of two axes; small integers are summed as default ones.

    >>> import functad as fd
    >>> fd.ops.trace([[1, 2], [3, 4]]).item()
    5
    """
    x = diagonal(x, offset, axis1, axis2)
    return bind(sum_op, (integers_widened(x),), ((x.ndim - 1,), False))
