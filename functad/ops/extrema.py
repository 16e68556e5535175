"""The largest and smallest elements over axes, and where they stand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import DTypeError, ShapeError
from functad.ops.axes import normalize_axes
from functad.ops.logic import gate
from functad.ops.op import Op, Samples
from functad.ops.operand import operand
from functad.ops.order import line
from functad.ops.rules import cast, custom, expand_reduced, nondiff, reshape_op, shift_axis, sum_op, widen

__all__ = ["amax", "amin", "argmax", "argmin", "max", "max_op", "min", "min_op"]

Axes = tuple[int, ...]


def _count(shape: tuple[int, ...], axis: Axes) -> int:
    return math.prod([shape[i] for i in axis])


def _max(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    return xp.max(x, axis=axis, keepdims=keepdims)


def _min(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    return xp.min(x, axis=axis, keepdims=keepdims)


def _hit(xp: Any, x: Any, *, axis: Axes, largest: bool) -> Any:
    if xp is not np:
        x = jax.lax.optimization_barrier(x)  # compared with itself: it must not be computed twice
    extreme = (xp.max if largest else xp.min)(x, axis=axis, keepdims=True)
    return (x == extreme) | ((x != x) & (extreme != extreme))


def _hits(xp: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    # XLA adds floats several times faster than integers; such counts are exact up to 2**24
    exact = _count(x.shape, axis) <= 1 << 24
    return xp.sum(x.astype(np.float32 if exact else np.int32), axis=axis, keepdims=keepdims).astype(np.float32)


def _extremum(name: str, impl: Callable[..., Any], largest: bool, **about: Any) -> Op:
    """The largest or smallest element over axes: a derivative is divided by the number of ties before it is spread."""

    def pull(g: Any, x: Any, x_shape: Axes, axis: Axes, keepdims: bool) -> Any:
        hit = bind(hit_op, (x,), (axis, largest))
        share = _shared(g, bind(hits_op, (hit,), (axis, keepdims)))
        return gate(expand_reduced(share, x_shape, axis, keepdims), hit)

    def push(t: Any, x: Any, axis: Axes, keepdims: bool) -> Any:
        hit = bind(hit_op, (x,), (axis, largest))
        total = bind(sum_op, (gate(widen(t), hit),), (axis, keepdims))
        return cast(_shared(total, bind(hits_op, (hit,), (axis, keepdims))), t._dtype)

    return custom(name, impl, jvp=push, vjp=pull, batch=shift_axis, **about)


def _shared(g: Any, count: Any) -> Any:
    """A derivative for each of `count` ties; counts are beyond float16."""
    wide = widen(g)
    return cast(wide / cast(count, wide._dtype), g._dtype)


def _argmax(xp: Any, x: Any, *, axis: int, keepdims: bool) -> Any:
    return xp.argmax(_row(x, axis, "argmax"), axis=axis, keepdims=keepdims).astype(dtypes.default_int())


def _argmin(xp: Any, x: Any, *, axis: int, keepdims: bool) -> Any:
    return xp.argmin(_row(x, axis, "argmin"), axis=axis, keepdims=keepdims).astype(dtypes.default_int())


def _row(x: Any, axis: int, where: str) -> Any:
    if not x.shape[axis] or x.dtype.kind == "c":  # the index refuses 0-d, which NumPy takes
        raise DTypeError(f"{where}: {x.dtype}{list(x.shape)} has no largest or smallest element along axis {axis}.")
    return x


_CASES = Samples([
    ((shape,), {"axis": axis, "keepdims": keepdims})
    for shape, axis, keepdims in (
        ((3, 2), (0,), False), ((3, 2), (0, 1), False), ((3, 2, 2), (0, 2), True), ((2, 3), (1,), True),
        ((0, 2), (1,), False), ((4,), (), False), ((), (), False),
    )
])  # fmt: skip

hit_op = nondiff(
    "hit", _hit, samples=Samples([(((3, 2),), {"axis": (0,), "largest": True})]), batch=shift_axis,
    doc="Whether an element is the largest (smallest) over axes.",
)  # fmt: skip
hits_op = nondiff(
    "hits", _hits, samples=Samples(make=lambda rng: [((rng.random((3, 2)) > 0.5,), {"axis": (0,), "keepdims": True})]),
    batch=shift_axis, doc="How many are true over axes, as float32.",
)  # fmt: skip
max_op = _extremum(
    "max", _max, True, samples=_CASES,
    doc="The largest element over axes; ties share the derivative.",
)  # fmt: skip
min_op = _extremum(
    "min", _min, False, samples=_CASES,
    doc="The smallest element over axes; ties share the derivative.",
)  # fmt: skip
argmax_op = nondiff(
    "argmax", _argmax, samples=Samples([
        (((3, 2),), {"axis": 0, "keepdims": True}), (((3, 2),), {"axis": 1, "keepdims": False}),
    ]),
    batch=shift_axis, doc="The index of the first largest element.",
)  # fmt: skip
argmin_op = nondiff(
    "argmin", _argmin, samples=argmax_op.samples, batch=shift_axis, doc="The index of the first smallest element.",
)  # fmt: skip

# --- the functions


def max(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The largest element over axes; NaN if there is one. Ties share the derivative equally.

    >>> import functad as fd
    >>> fd.grad(fd.ops.max)(fd.tensor([1.0, 3.0, 3.0])).tolist()
    [0.0, 0.5, 0.5]
    """
    return extreme(max_op, "max", x, axis, keepdims)


def min(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The smallest element over axes; see `max`.

    >>> import functad as fd
    >>> fd.ops.min(fd.tensor([[3.0, 1.0], [2.0, 4.0]]), axis=1).tolist()
    [1.0, 2.0]
    """
    return extreme(min_op, "min", x, axis, keepdims)


amax, amin = max, min


def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The index of the first largest element along `axis`, of the flattened tensor without one.

    The first NaN, if there is one, counts as the largest (and in `argmin` as the smallest).

    >>> import functad as fd
    >>> fd.ops.argmax(fd.tensor([1.0, 3.0, 3.0])).item()
    1
    """
    return _arg(argmax_op, "argmax", x, axis, keepdims)


def argmin(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    """The index of the first smallest element; see `argmax`.

    >>> import functad as fd
    >>> fd.ops.argmin(fd.tensor([[3.0, 1.0], [2.0, 4.0]]), axis=1, keepdims=True).tolist()
    [[1], [0]]
    """
    return _arg(argmin_op, "argmin", x, axis, keepdims)


def extreme(op: Any, where: str, x: Any, axis: Any, keepdims: bool) -> Any:
    x = operand(x, where=where)
    axes = normalize_axes(axis, x.ndim, where)
    if not _count(x._shape, axes):
        _refuse_empty(where, x, axes)
    return bind(op, (x,), (axes, bool(keepdims)))


def _arg(op: Any, where: str, x: Any, axis: int | None, keepdims: bool) -> Any:
    x = operand(x, where=where)
    ndim = x.ndim
    x, axis_ = line(x, axis, where)
    if not x._shape[axis_]:
        _refuse_empty(where, x, (axis_,))
    out = bind(op, (x,), (axis_, bool(keepdims)))
    return bind(reshape_op, (out,), ((1,) * ndim,)) if keepdims and axis is None else out


def _refuse_empty(where: str, x: Any, axes: Axes) -> None:
    raise ShapeError(
        f"{where}: there are no elements over axis {axes} of a tensor of shape {x.shape}, so none is the largest or "
        "smallest. Reduce over axes that are not empty, or check x.size first."
    )
