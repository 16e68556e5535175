"""Rows with mean 0 and variance 1: what layer, batch, group and RMS normalization have in common.

The ops keep their input and compute the statistics again in backward, where a compiled program finds that it has
them: one array of the input's size is kept, however many things are scaled and shifted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from functad import dtypes
from functad.dispatch import bind
from functad.ops.op import Op, Residuals, Samples
from functad.ops.reduce import center_op, mean_op
from functad.ops.rules import broadcast, cast, custom, front_rows, product, reduction, shift_axis, unbroadcast, widen

__all__ = ["inverse_std_op", "normalize_op", "standardize_op"]

Axes = tuple[int, ...]


def _parts(xp: Any, x: Any, axis: Axes, eps: float, centered: bool) -> tuple[Any, Any]:
    """Deviations (or the elements as they are), and one over their root mean square; 0 for a row of zeros."""
    x = x.astype(dtypes.accumulator(x.dtype))
    moved = center_op.impl(xp, x, axis=axis) if centered else x
    count = math.prod([x.shape[i] for i in axis])
    mean = xp.sum(moved * moved, axis=axis, keepdims=True) / float(count) + eps
    none = mean == 0
    return moved, xp.where(none, xp.zeros_like(mean), 1 / xp.sqrt(xp.where(none, xp.ones_like(mean), mean)))


def _standardize(xp: Any, x: Any, *, axis: Axes, eps: float, centered: bool) -> Any:
    moved, scale = _parts(xp, x, axis, eps, centered)
    return (moved * scale).astype(x.dtype)


def _normalize(xp: Any, x: Any, weight: Any, bias: Any, *, axis: Axes, eps: float, centered: bool) -> Any:
    moved, scale = _parts(xp, x, axis, eps, centered)
    wide = moved.dtype
    return (moved * scale * weight.astype(wide) + bias.astype(wide)).astype(x.dtype)


def _inverse_std(xp: Any, x: Any, *, eps: float, centered: bool, axis: Axes, keepdims: bool) -> Any:
    out = _parts(xp, x, axis, eps, centered)[1].astype(x.dtype)
    return out if keepdims else xp.squeeze(out, axis=axis)


def _scaled(x: Any, axis: Axes, eps: float, centered: bool) -> tuple[Any, Any]:
    """The standardized rows and their scales, in float32 for half types."""
    x = widen(x)
    return bind(standardize_op, (x,), (axis, eps, centered)), bind(inverse_std_op, (x,), (eps, centered, axis, True))


def _through(g: Any, rows: Any, scale: Any, axis: Axes, centered: bool) -> Any:
    """A cotangent, or a tangent: the Jacobian is symmetric."""
    along = product(g, rows)
    rest = bind(center_op, (g,), (axis,)) if centered else g
    return product(rest - rows * bind(mean_op, (along,), (axis, True)), scale)


def _standardize_rule(g: Any, x: Any, axis: Axes, eps: float, centered: bool) -> Any:
    rows, scale = _scaled(x, axis, eps, centered)
    return cast(_through(widen(g), rows, scale, axis, centered), x._dtype)


def _inverse_std_partial(x: Any, eps: float, centered: bool, axis: Axes) -> Any:
    rows, scale = _scaled(x, axis, eps, centered)
    return rows * scale * scale * (-1 / math.prod([x._shape[i] for i in axis]) if x.size else 0.0)


def _normalize_x_pull(g: Any, x: Any, weight: Any, axis: Axes, eps: float, centered: bool) -> Any:
    return cast(_standardize_rule(product(widen(g), widen(weight)), widen(x), axis, eps, centered), x._dtype)


def _weight_pull(g: Any, x: Any, weight_shape: Any, weight_dtype: Any, axis: Axes, eps: float, centered: bool) -> Any:
    rows = bind(standardize_op, (widen(x),), (axis, eps, centered))
    return cast(unbroadcast(product(widen(g), rows), weight_shape), weight_dtype)


def _bias_pull(g: Any, bias_shape: Any, bias_dtype: Any) -> Any:
    return cast(unbroadcast(widen(g), bias_shape), bias_dtype)


def _normalize_x_push(t: Any, x: Any, weight: Any, axis: Axes, eps: float, centered: bool) -> Any:
    moved = _standardize_rule(widen(t), widen(x), axis, eps, centered)
    return cast(product(moved, widen(weight)), t._dtype)


def _weight_push(t: Any, x: Any, axis: Axes, eps: float, centered: bool) -> Any:
    return cast(product(bind(standardize_op, (widen(x),), (axis, eps, centered)), widen(t)), x._dtype)


def _pull_both(g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
    """The pull of `normalize`, with one computation of the rows for both `x` and `weight`."""
    if wanted[0] is None or wanted[1] is None or not wanted[0] or not wanted[1]:
        return Op.pull(normalize_op, g, res, wanted)
    (x, weight, _), (axis, eps, centered) = res.inputs, res.params
    rows, scale = _scaled(x, axis, eps, centered)
    wide = widen(g)
    pieces = Op.pull(normalize_op, g, res, (None, None, wanted[2]))
    pieces[0] = cast(_through(product(wide, widen(weight)), rows, scale, axis, centered), x._dtype)
    pieces[1] = cast(unbroadcast(product(wide, rows), weight._shape), weight._dtype)
    return pieces


def _normalize_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    x, *affine = inputs
    x = x if mapped[0] else broadcast(x, (size, *x._shape))
    rank = len(x._shape) - 1
    affine = [front_rows(a, rank) if m else a for a, m in zip(affine, mapped[1:], strict=True)]
    axis, eps, centered = params
    return bind(op, (x, *affine), (tuple([a + 1 for a in axis]), eps, centered))


_ROWS: list[tuple[tuple[int, ...], Axes]] = [((3, 4), (1,)), ((2, 3, 2), (0, 2)), ((0, 2), (1,))]


def _cases(centered: bool, shape: tuple[int, ...], axis: Axes, *more: tuple[int, ...]) -> Any:
    return ((shape, *more), {"axis": axis, "eps": 1e-3, "centered": centered})


standardize_op: Op = custom(
    "standardize", _standardize, jvp=_standardize_rule, vjp=_standardize_rule, batch=shift_axis,
    samples=Samples([_cases(c, *row) for c in (True, False) for row in _ROWS]),
    doc="x (less its mean, if centered) over its root mean square along axes; 0 where that is 0.",
)  # fmt: skip
inverse_std_op: Op = reduction(
    "inverse_std", _inverse_std, _inverse_std_partial, samples=Samples([
        (((3, 4),), {"eps": 1e-3, "centered": True, "axis": (1,), "keepdims": True}),
        (((2, 3, 2),), {"eps": 1e-3, "centered": False, "axis": (0, 2), "keepdims": False}),
    ]),
    doc="The number that `standardize` multiplies by, along axes.",
)  # fmt: skip
normalize_op: Op = custom(
    "normalize", _normalize, vjp=[_normalize_x_pull, _weight_pull, _bias_pull],
    jvp=[_normalize_x_push, _weight_push, lambda t, out: broadcast(cast(t, out._dtype), out.shape)],
    batch=_normalize_rows,
    samples=Samples([_cases(True, (3, 4), (1,), (4,), (4,)), _cases(False, (2, 3, 2), (0, 2), (3, 1), ())]),
    doc="Standardized along axes, times a weight, plus a bias; half types are rounded once.",
)  # fmt: skip
normalize_op.pull = _pull_both  # type: ignore[method-assign]  # one pull for all inputs together
