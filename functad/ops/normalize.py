"""Softmax, log-softmax and logsumexp: stable, and with rules of their own."""

from __future__ import annotations

from typing import Any

from functad import dtypes
from functad.dispatch import bind
from functad.ops.axes import normalize_axes
from functad.ops.logic import where as where_
from functad.ops.op import Samples
from functad.ops.operand import operands
from functad.ops.rules import cast, custom, product, reduction, shift_axis, sum_op, widen

__all__ = ["log_softmax", "log_softmax_op", "logsumexp", "logsumexp_op", "softmax", "softmax_op"]

# `masked` says what becomes of -inf: by plain maths a row of nothing else is NaN, masked it is empty.
# There +inf counts as a tie too, so that logsumexp has a derivative where a plain softmax is NaN.


def _exponentials(xp: Any, x: Any, axis: tuple[int, ...], masked: bool) -> tuple[Any, Any, Any, Any]:
    """The largest, what x exceeds it by, the exponentials of that, and their sum, in the accumulator's dtype."""
    x = x.astype(dtypes.accumulator(x.dtype))
    # the largest real part, so that a complex logarithm is the principal one
    top = xp.max(xp.real(x), axis=axis, keepdims=True, initial=-xp.inf)
    if not masked:
        shifted = x - top
        weights = xp.exp(shifted)
        return top, shifted, weights, xp.sum(weights, axis=axis, keepdims=True)
    shifted = xp.where(x == top, xp.zeros_like(x), x - top)  # inf - inf is a tie
    weights = xp.where(x == -xp.inf, xp.zeros_like(x), xp.exp(shifted))
    total = xp.sum(weights, axis=axis, keepdims=True)
    return top, shifted, weights, xp.where(total == 0, xp.ones_like(total), total)


def _softmax(xp: Any, x: Any, *, axis: tuple[int, ...], masked: bool) -> Any:
    _, _, weights, total = _exponentials(xp, x, axis, masked)
    return (weights / total).astype(x.dtype)


def _log_softmax(xp: Any, x: Any, *, axis: tuple[int, ...], masked: bool) -> Any:
    _, shifted, _, total = _exponentials(xp, x, axis, masked)
    out = shifted - xp.log(total)
    return (xp.where(x == -xp.inf, -xp.inf, out) if masked else out).astype(x.dtype)


def _logsumexp(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    top, _, _, total = _exponentials(xp, x, axis, masked=True)  # as in its derivative: one program has it once
    out = xp.log(total) + top
    return (out if keepdims else xp.squeeze(out, axis=axis)).astype(x.dtype)


def _sum(x: Any, axis: tuple[int, ...]) -> Any:
    return bind(sum_op, (x,), (axis, True))


def _softmax_rule(g: Any, out: Any, axis: tuple[int, ...], x_dtype: Any) -> Any:
    """The Jacobian of softmax is symmetric: one rule for both modes."""
    g, out = widen(g), widen(out)
    return cast(product(g - _sum(product(g, out), axis), out), x_dtype)


def _log_softmax_pull(g: Any, out: Any, axis: tuple[int, ...], x_dtype: Any) -> Any:
    g = widen(g)
    return cast(g - product(_sum(g, axis), widen(out).exp()), x_dtype)


def _log_softmax_push(t: Any, out: Any, axis: tuple[int, ...], x_dtype: Any) -> Any:
    t = widen(t)
    return cast(t - _sum(product(t, widen(out).exp()), axis), x_dtype)


_ROWS = Samples([
    (((3, 4),), {"axis": (1,), "masked": False}), (((3, 2, 2),), {"axis": (0, 2), "masked": True}),
    (((),), {"axis": (), "masked": False}), (((0, 2),), {"axis": (1,), "masked": False}),
    (((2, 0),), {"axis": (1,), "masked": False}),
])  # fmt: skip

softmax_op = custom(
    "softmax", _softmax, jvp=_softmax_rule, vjp=_softmax_rule, promote="float", samples=_ROWS,
    batch=shift_axis, doc="exp(x) over its sum along axes; with `masked`, 0 in a row of -inf.",
)  # fmt: skip
log_softmax_op = custom(
    "log_softmax", _log_softmax, jvp=_log_softmax_push, vjp=_log_softmax_pull, promote="float", samples=_ROWS,
    batch=shift_axis, doc="The logarithm of softmax; with `masked`, -inf in a row of -inf.",
)  # fmt: skip
logsumexp_op = reduction(
    # not exp(x - out): what out was rounded by would be a relative error of the gradient
    "logsumexp", _logsumexp, lambda x, axis: bind(softmax_op, (widen(x),), (axis, True)),
    promote="float", samples=Samples([
        (((3, 4),), {"axis": (1,), "keepdims": False}), (((3, 2, 2),), {"axis": (0, 2), "keepdims": True}),
        (((),), {"axis": (), "keepdims": False}), (((0, 2),), {"axis": (1,), "keepdims": False}),
    ]),
    doc="log(sum(exp(x))) over axes.",
)  # fmt: skip


def softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """exp(x) divided by its sum over `axis` (an int, several, or None for all).

    Elements outside the mask `where` count as absent and give 0; a row that has none left is 0,
    and so is its gradient. Without a mask, a row of -inf is NaN, as the formula says.

    >>> import functad as fd
    >>> fd.ops.softmax(fd.tensor([[0.0, 0.0], [1.0, 5.0]]), where=fd.tensor([[True, True], [False, False]])).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """
    (x,) = operands("softmax", "float", (x,))
    x = x if where is None else _kept(x, where)
    return bind(softmax_op, (x,), (normalize_axes(axis, x.ndim, "softmax"), where is not None))


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Any:
    """log(softmax(x)) over `axis`, without losing small probabilities.

    Elements outside the mask `where` count as absent: they give -inf, and no gradient.

    >>> import functad as fd
    >>> fd.ops.log_softmax(fd.tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    (x,) = operands("log_softmax", "float", (x,))
    x = x if where is None else _kept(x, where)
    out = bind(log_softmax_op, (x,), (normalize_axes(axis, x.ndim, "log_softmax"), where is not None))
    return out if where is None else _kept(out, where)


def logsumexp(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """log(sum(exp(x))) over axes, without overflow; -inf, with gradient 0, over none or over -inf only.

    >>> import functad as fd
    >>> fd.ops.logsumexp(fd.tensor([1000.0, 1000.0])).item() - 1000.0 < 0.6932
    True
    """
    (x,) = operands("logsumexp", "float", (x,))
    return bind(logsumexp_op, (x,), (normalize_axes(axis, x.ndim, "logsumexp"), bool(keepdims)))


def _kept(x: Any, mask: Any) -> Any:
    return where_(mask, x, float("-inf"))
