"""Differences, slopes, integrals, interpolation and phases."""

from __future__ import annotations

import math
from typing import Any

from functad import dtypes, ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ConcreteValueError, DTypeError, ShapeError
from functad.numpy.arguments import beside
from functad.ops.arithmetic import ratio
from functad.ops.axes import counted, normalize_axes, normalize_axis
from functad.ops.halves import rounded_once
from functad.ops.index import take_inside
from functad.ops.operand import operand, operands
from functad.ops.rules import cast
from functad.ops.search import searchsorted
from functad.ops.slope import slope_op

__all__ = ["cumulative_trapezoid", "diff", "ediff1d", "gradient", "interp", "trapezoid", "trapz", "unwrap"]


def _cut(x: Any, axis: int, start: int | None, stop: int | None) -> Any:
    return ops.getitem(x, (*[slice(None)] * axis, slice(start, stop)))


@rounded_once
def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The `n`-th difference of neighbours along an axis; of bools, where they differ.

    `prepend` and `append` (numbers or tensors) are joined to the axis first.

    >>> import functad.numpy as fnp
    >>> fnp.diff([1, 4, 9], prepend=0).tolist()
    [1, 3, 5]
    """
    n = counted(n, "diff", "n")
    if n < 0:
        raise ArgumentError(f"diff: n must not be negative, got {n}.")
    a, prepend, append = beside("diff", a, prepend, append)
    a = operand(a, where="diff")
    axis = normalize_axis(axis, a.ndim, "diff")
    if n == 0:
        return a
    parts = []
    for part in (prepend, a, append):
        if part is None:
            continue
        part = operand(part, a, where="diff")
        if part is not a and not part.ndim:
            part = ops.broadcast_to(part, tuple([1 if i == axis else m for i, m in enumerate(a._shape)]))
        parts.append(part)
    if len(parts) > 1:
        a = ops.concatenate(parts, axis)
    less = ops.not_equal if a._dtype == dtypes.bool_ else ops.sub
    for _ in range(min(n, a._shape[axis])):  # then nothing is left
        a = less(_cut(a, axis, 1, None), _cut(a, axis, 0, max(a._shape[axis] - 1, 0)))
    return a


@rounded_once
def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """The differences of neighbours in the flattened tensor, between `to_begin` and `to_end`.

    >>> import functad.numpy as fnp
    >>> fnp.ediff1d([1, 4, 9], to_end=0).tolist()
    [3, 5, 0]
    """
    ary, to_begin, to_end = beside("ediff1d", ary, to_begin, to_end)
    ary = ops.ravel(operand(ary, where="ediff1d"))
    parts = [diff(ary)]
    if to_begin is not None:
        parts.insert(0, operand(ops.ravel(operand(to_begin, ary)), ary, ary._dtype, "ediff1d"))
    if to_end is not None:
        parts.append(operand(ops.ravel(operand(to_end, ary)), ary, ary._dtype, "ediff1d"))
    return ops.concatenate(parts) if len(parts) > 1 else parts[0]


@rounded_once
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """The slope along each axis by central differences, one-sided at the ends.

    Args:
        f: the samples, at least `edge_order + 1` along an axis.
        varargs: the distances: none (1), one number for all axes, or per axis a number or the
            coordinates.
        axis: an int, several, or None for all.
        edge_order: 1 or 2: the order of the differences at the ends.

    Returns a tensor for one axis, a tuple of them for several. Differentiable in samples and coordinates.

    >>> import functad.numpy as fnp
    >>> fnp.gradient([1.0, 4.0, 9.0]).tolist()
    [3.0, 4.0, 5.0]
    """
    f, *spacing = beside("gradient", f, *varargs)
    (f,) = operands("gradient", "float", (f,))
    axes = normalize_axes(axis, f.ndim, "gradient")
    if axis is not None and isinstance(axis, (tuple, list)):
        axes = tuple([normalize_axis(a, f.ndim, "gradient") for a in axis])
    if edge_order not in (1, 2):
        raise ArgumentError(f"gradient: edge_order must be 1 or 2, got {edge_order!r}.")
    if not spacing:
        spacing = [1.0] * len(axes)
    elif len(spacing) == 1 and (isinstance(spacing[0], dtypes.SCALARS) or not spacing[0].ndim):
        spacing *= len(axes)
    if len(spacing) != len(axes):
        raise ArgumentError(
            f"gradient: takes no distance, one, or one for each of {len(axes)} axes, got {len(spacing)}."
        )
    found = tuple([_slope(f, h, i, edge_order) for h, i in zip(spacing, axes, strict=True)])
    return found[0] if len(found) == 1 else found


def _slope(f: Any, h: Any, axis: int, edge_order: int) -> Any:
    n = f._shape[axis]
    if n < edge_order + 1:
        raise ShapeError(
            f"gradient: axis {axis} of shape {f.shape} has length {n}; edge_order={edge_order} takes at least "
            f"{edge_order + 1} samples."
        )

    def at(i: int, x: Any = f) -> Any:
        return _cut(x, axis, i, i + 1 if i != -1 else None)

    even = isinstance(h, dtypes.SCALARS) or not h.ndim
    if even and edge_order == 1:
        slope = bind(slope_op, (f,), (axis,))
        return slope if type(h) in (int, float) and h == 1 else slope / h
    if even:
        middle = (_cut(f, axis, 2, None) - _cut(f, axis, 0, n - 2)) / (2 * h)
        first = (-1.5 * at(0) + 2 * at(1) - 0.5 * at(2)) / h
        last = (0.5 * at(-3) - 2 * at(-2) + 1.5 * at(-1)) / h
        return ops.concatenate([first, middle, last], axis)
    if h.ndim != 1 or h.size != n:
        raise ShapeError(f"gradient: coordinates of shape {h.shape} do not fit axis {axis} of shape {f.shape}.")
    steps = ops.reshape(
        operand(_distances(h), f, f._dtype, "gradient"), tuple([n - 1 if i == axis else 1 for i in range(f.ndim)])
    )
    rise = diff(f, axis=axis) / steps  # between neighbours
    before, after = _cut(steps, axis, 0, n - 2), _cut(steps, axis, 1, None)
    low, high = _cut(rise, axis, 0, n - 2), _cut(rise, axis, 1, None)
    middle = (low * after + high * before) / (before + after)
    first, last = at(0, rise), at(-1, rise)
    if edge_order == 2:
        first = first - (at(1, rise) - first) * at(0, steps) / (at(0, steps) + at(1, steps))
        last = last + (last - at(-2, rise)) * at(-1, steps) / (at(-2, steps) + at(-1, steps))
    return ops.concatenate([first, middle, last], axis)


def _distances(x: Any, axis: int = -1) -> Any:
    """The differences of coordinates, with a sign for those of unsigned integers too, and beyond 127 for those of int8."""
    return diff(cast(x, dtypes.default_int()) if x.dtype.kind in "iub" else x, axis=axis)


@rounded_once
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral along an axis by the trapezoidal rule, at coordinates `x` or distances `dx`.

    >>> import functad.numpy as fnp
    >>> fnp.trapezoid([1.0, 2.0, 3.0], dx=2.0).item()
    8.0
    """
    y, x, dx = beside("trapezoid", y, x, dx)
    (y,) = operands("trapezoid", "float", (y,))
    axis = normalize_axis(axis, y.ndim, "trapezoid")
    if x is not None:
        if x.ndim == 1:
            dx = ops.reshape(_distances(x), tuple([-1 if i == axis else 1 for i in range(y.ndim)]))
        else:
            dx = _distances(x, axis - y.ndim)
    n = y._shape[axis]
    if n > 1 and not getattr(dx, "ndim", 0):  # even spacing: everything but half of both ends
        weights = operand([0.5, *[1.0] * (n - 2), 0.5], y, y._dtype)
        return dx * ops.sum(y * ops.reshape(weights, tuple([-1 if i == axis else 1 for i in range(y.ndim)])), axis)
    return ops.sum(dx * (_cut(y, axis, 1, None) + _cut(y, axis, 0, max(n - 1, 0))) * 0.5, axis)


trapz = trapezoid


@rounded_once
def cumulative_trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1, initial: Any = None) -> Any:
    """The integral from the first point to each of the others, by the trapezoidal rule (SciPy's `integrate`).

    `initial` (SciPy takes 0 only) stands for the integral up to the first point, and makes the result as long as `y`.

    >>> import functad.numpy as fnp
    >>> fnp.cumulative_trapezoid([1.0, 2.0, 3.0], initial=0).tolist()
    [0.0, 1.5, 4.0]
    """
    where = "cumulative_trapezoid"
    y, x, dx, initial = beside(where, y, x, dx, initial)
    (y,) = operands(where, "float", (y,))
    axis = normalize_axis(axis, y.ndim, where)
    n = y._shape[axis]
    if not n:
        raise ShapeError(f"{where}: axis {axis} of y, shape {y.shape}, has no points; it takes one at least.")
    if x is not None:
        along = ops.reshape(x, tuple([-1 if i == axis else 1 for i in range(y.ndim)])) if x.ndim == 1 else x
        dx = _distances(along, axis - y.ndim)
    out = ops.cumsum(dx * (_cut(y, axis, 1, None) + _cut(y, axis, 0, n - 1)) * 0.5, axis)
    if initial is None:
        return out
    shape = tuple([1 if i == axis else m for i, m in enumerate(out._shape)])
    return ops.concatenate([ops.broadcast_to(operand(initial, y, out._dtype, where), shape), out], axis)


@rounded_once
def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """The piecewise linear function through the points (`xp`, `fp`), at `x`.

    Args:
        x: where.
        xp: the coordinates of the points, ascending (unless there is a period).
        fp: the values, real or complex.
        left: the value below the first point, by default the first.
        right: the value above the last one, by default the last.
        period: the period of the coordinates, if the function is periodic.

    Differentiable in `x`, `xp` and `fp`. At a point the slope is that of the piece on its right.

    >>> import functad as fd
    >>> fd.numpy.interp(2.5, [1, 2, 3], [3, 2, 0]).item()
    1.0
    >>> fd.grad(lambda x: fd.numpy.interp(x, [1, 2, 3], [3, 2, 0]))(2.5).item()
    -2.0
    """
    x, xp, fp, left, right, period = beside("interp", x, xp, fp, left, right, period)
    x, xp = operands("interp", "float", (operand(x, fp), xp))
    (fp,) = operands("interp", "float", (operand(fp, x),))
    if xp.ndim != 1 or fp._shape != xp._shape or not xp.size:
        raise ShapeError(
            f"interp: the points are two vectors of one length, at least 1, got shapes {xp.shape} and {fp.shape}."
        )
    if x._dtype.kind == "c":
        raise DTypeError("interp: the coordinates must be real; the values alone may be complex.")
    dtype = dtypes.promote(x._dtype, fp._dtype)
    fp = fp.astype(dtype)
    if period is not None:
        _refuse_zero(period)
        left = right = None
        size = ops.abs(operand(period, x, x._dtype))
        x, xp = ops.remainder(x, size), ops.remainder(xp, size)
        order = ops.argsort(xp)
        xp, fp = take_inside(xp, order), take_inside(fp, order)
        xp = ops.concatenate([xp[-1:] - size, xp, xp[:1] + size])
        fp = ops.concatenate([fp[-1:], fp, fp[:1]])
    out = _between_points(x, xp, fp) if xp.size > 1 else ops.broadcast_to(fp[0], x._shape)
    first, last = (fp[0] if left is None else left), (fp[-1] if right is None else right)
    out = ops.where(x < xp[0], first, ops.where(x > xp[-1], last, out))
    return ops.where(ops.isnan(x), math.nan, out).astype(dtype)


def _between_points(x: Any, xp: Any, fp: Any) -> Any:
    place = ops.clip(searchsorted(xp, x, "right"), 1, xp.size - 1)
    low, high = take_inside(xp, place - 1), take_inside(xp, place)
    start, end = take_inside(fp, place - 1), take_inside(fp, place)
    part = ratio(x - low, high - low)  # 0 where two points are at one place
    near, far = start + part * (end - start), end - (1 - part) * (end - start)
    return ops.where(part < 0.5, near, far)  # exact at both


def _refuse_zero(period: Any) -> None:
    try:
        if not float(period):
            raise ArgumentError("interp: the period must not be 0.")
    except ConcreteValueError:
        pass


@rounded_once
def unwrap(p: Any, discont: Any = None, axis: int = -1, *, period: Any = 2 * math.pi) -> Any:
    """Phases without the jumps: multiples of the period are added so that neighbours differ by half of it at most.

    Args:
        p: the phases.
        discont: the least difference that is a jump, by default (and at least) half a period.
        axis: along which axis.
        period: the period; of integers an int keeps them integers.

    >>> import functad.numpy as fnp
    >>> fnp.unwrap([0, 1, 5, 4], period=4).tolist()
    [0, 1, 1, 0]
    """
    p = operand(p, where="unwrap")
    whole = p._dtype.kind in "iu" and isinstance(period, int)
    if not whole:
        (p,) = operands("unwrap", "float", (p,))
    axis = normalize_axis(axis, p.ndim, "unwrap")
    step = diff(p, axis=axis)
    low = -(period // 2) if whole else -period / 2
    back = ops.remainder(step - low, period) + low
    if not whole or period % 2 == 0:
        back = ops.where(ops.logical_and(back == low, step > 0), -low, back)
    jump = ops.where(ops.abs(step) < (period / 2 if discont is None else discont), 0, back - step)
    return ops.concatenate([_cut(p, axis, 0, 1), _cut(p, axis, 1, None) + ops.cumsum(jump, axis)], axis)
