"""Losses that need a rule of their own: cross entropies, whose formula overflows or cancels where it matters most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from functad import dtypes
from functad.dispatch import bind
from functad.ops.activation import hardtanh_op
from functad.ops.arithmetic import clip_min, reciprocal
from functad.ops.elementary import log, sigmoid, widened
from functad.ops.logic import gate
from functad.ops.normalize import softmax_op
from functad.ops.op import Op, Samples
from functad.ops.reduce import any as any_over
from functad.ops.rules import (
    PAIR,
    cast,
    custom,
    elementwise,
    expand_reduced,
    product,
    shift_axis,
    sum_op,
    widen,
)

if TYPE_CHECKING:
    import numpy as np

__all__ = ["bce_logits_op", "bce_op", "class_nll_op", "huber_op", "nudge_op"]

_LEAST_LOG = -100.0  # log(0) counts as this in `bce`, as in torch
_LEAST_SPREAD = 1e-12


# --- classes: the loss of a softmax is log(sum(exp(x))) - x[class], its derivative softmax(x) - one_hot(class)


def _marked(xp: Any, x: Any, target: Any, axis: int) -> Any:
    """Where the class is that of `target`."""
    place = xp.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(x.ndim)])
    return xp.expand_dims(target, axis) == place


def _weights(xp: Any, x: Any, axis: int) -> tuple[Any, Any, Any]:
    """The largest element, exp of what the others exceed it by, and the sum of these; 0 for a row of -inf."""
    top = xp.max(x, axis=axis, keepdims=True, initial=-xp.inf)
    top = xp.where(xp.isfinite(top), top, xp.zeros_like(top))
    weights = xp.exp(x - top)
    return top, weights, xp.sum(weights, axis=axis, keepdims=True)


def _class_nll(xp: Any, x: Any, target: Any, *, axis: int, smoothing: float) -> Any:
    wide = x.astype(dtypes.accumulator(x.dtype))
    top, _, total = _weights(xp, wide, axis)
    inside = (target >= 0) & (target < x.shape[axis])
    chosen = xp.expand_dims(xp.where(inside, target, xp.zeros_like(target)), axis)
    picked = xp.take_along_axis(wide, chosen, axis) - top
    if smoothing:
        picked = picked * (1 - smoothing) + xp.mean(wide - top, axis=axis, keepdims=True) * smoothing
    loss = xp.squeeze(xp.log(total) - picked, axis)
    return xp.where(inside, loss, xp.asarray(xp.nan, wide.dtype)).astype(x.dtype)


def _softmax_less_unit(xp: Any, x: Any, target: Any, *, axis: int, smoothing: float) -> Any:
    wide = x.astype(dtypes.accumulator(x.dtype))
    _, weights, total = _weights(xp, wide, axis)
    p = weights / xp.where(total == 0, xp.ones_like(total), total)
    unit = _marked(xp, x, target, axis).astype(p.dtype)
    unit = unit * (1 - smoothing) + smoothing / x.shape[axis] if smoothing else unit
    return (p - unit).astype(x.dtype)


def _softmax_jacobian(g: Any, x: Any, axis: int) -> Any:
    """The Jacobian of softmax is symmetric: one rule for both modes."""
    wide = widen(g)
    p = bind(softmax_op, (widen(x),), ((axis,), True))
    return cast(product(wide - bind(sum_op, (product(wide, p),), ((axis,), True)), p), x._dtype)


def _slope(x: Any, target: Any, axis: int, smoothing: float) -> Any:
    return bind(softmax_less_unit_op, (widen(x), target), (axis, smoothing))


def _class_nll_pull(g: Any, x: Any, target: Any, axis: int, smoothing: float) -> Any:
    slope = _slope(x, target, axis, smoothing)
    return cast(product(expand_reduced(widen(g), x._shape, (axis,), False), slope), x._dtype)


def _class_nll_push(t: Any, x: Any, target: Any, axis: int, smoothing: float) -> Any:
    return cast(bind(sum_op, (product(widen(t), _slope(x, target, axis, smoothing)),), ((axis,), False)), x._dtype)


def _labelled(rng: np.random.Generator) -> list[Any]:
    return [
        (
            (3 * rng.normal(size=shape), rng.integers(0, shape[axis], shape[:axis] + shape[axis + 1 :])),
            {"axis": axis, "smoothing": smoothing},
        )
        for shape, axis, smoothing in (((3, 4), 1, 0.0), ((4,), 0, 0.3), ((2, 3, 2), 1, 0.0), ((0, 2), 1, 0.3))
    ]


softmax_less_unit_op: Op = custom(
    "softmax_less_unit", _softmax_less_unit, vjp=[_softmax_jacobian, None], jvp=[_softmax_jacobian, None],
    samples=Samples(make=_labelled), batch=shift_axis, doc="softmax(x) less the unit vector of a class, along an axis; or a share of it and the rest spread evenly.",
)  # fmt: skip
class_nll_op: Op = custom(
    "class_nll", _class_nll, vjp=[_class_nll_pull, None], jvp=[_class_nll_push, None],
    samples=Samples(make=_labelled), batch=shift_axis,
    doc="-log(softmax(x)[class]) along an axis; NaN for a class that does not exist.",
)  # fmt: skip


# --- two classes


def _real(name: str, *xs: Any) -> None:
    if any(x.dtype.kind == "c" for x in xs):
        raise TypeError(f"{name}: takes real numbers.")


@widened
def _bce_logits(xp: Any, x: Any, target: Any) -> Any:
    _real("bce_logits", x, target)
    zero = xp.zeros((), x.dtype)
    rest = (x > 0).astype(x.dtype) - target  # max(x, 0) - x * target, which must not be inf - inf
    return xp.where(rest == 0, zero, x * rest) + xp.log1p(xp.exp(-xp.abs(x)))


@widened
def _huber(xp: Any, x: Any, *, size: float) -> Any:
    _real("huber", x)
    apart = xp.abs(x)
    return xp.where(apart <= size, 0.5 * x * x, size * (apart - 0.5 * size))


@widened
def _bce(xp: Any, x: Any, target: Any) -> Any:
    _real("bce", x, target)
    least = xp.asarray(_LEAST_LOG, x.dtype)
    return target * -xp.maximum(xp.log(x), least) + (1 - target) * -xp.maximum(xp.log1p(-x), least)


def _bounded_log(x: Any) -> Any:
    return clip_min(log(x), _LEAST_LOG)


bce_logits_op = elementwise(
    "bce_logits", _bce_logits, lambda x, target: sigmoid(x) - target, lambda x: -x, promote="float",
    samples=PAIR._replace(low=(-3.0, 0.0), high=(3.0, 1.0)),
    doc="-target * log(p) - (1 - target) * log(1 - p) for p = sigmoid(x), stable.",
)  # fmt: skip
huber_op = elementwise(
    "huber", _huber, lambda x, size: bind(hardtanh_op, (x,), (-size, size)), promote="float",
    samples=Samples([(((3, 2),), {"size": 0.7})], kinks=(-0.7, 0.7)), doc="x**2 / 2, and a line of slope `size` beyond it.",
)  # fmt: skip
bce_op = elementwise(
    "bce", _bce, lambda x, target: (x - target) * reciprocal(clip_min(x * (1 - x), _LEAST_SPREAD)),
    lambda x: _bounded_log(1 - x) - _bounded_log(x), promote="float",
    samples=PAIR._replace(low=(0.1, 0.0), high=(0.9, 1.0)),
    doc="-target * log(x) - (1 - target) * log(1 - x), with logarithms of at least -100.",
)  # fmt: skip


# --- distances


def _moves(g: Any, x: Any, axis: int) -> Any:
    return gate(g, any_over(x != 0, axis, keepdims=True))


nudge_op = custom(
    "nudge", lambda xp, x, *, size, axis: x + xp.asarray(size, x.dtype), vjp=_moves, jvp=_moves,
    samples=Samples([(((3, 2),), {"size": 1e-3, "axis": -1}), (((0, 2),), {"size": 1e-3, "axis": -1})]), batch=shift_axis,
    doc="x + size, whose derivative is 0 where all of x along an axis is 0.",
)  # fmt: skip
