"""Elementwise functions that NumPy has and that are compositions of ops; tests of elements."""

from __future__ import annotations

import math
from typing import Any

from functad import dtypes, ops
from functad.dispatch import Handle
from functad.errors import DTypeError
from functad.keywords import no_argument
from functad.numpy.arguments import IGNORED, refuse_out
from functad.ops.elementary import real_only
from functad.ops.operand import operand, operands
from functad.ops.shape import unchanged

__all__ = [
    "allclose", "angle", "around", "array_equal", "array_equiv", "clip", "divmod", "fabs", "fix", "float_power", "fmax",
    "fmin", "heaviside", "isclose", "iscomplex", "iscomplexobj", "isneginf", "isposinf", "isreal", "isrealobj",
    "isscalar", "nan_to_num", "positive", "real_if_close", "rint", "round", "spacing",
]  # fmt: skip


def positive(x: Any, /) -> Any:
    """+x, elementwise: x itself.

    >>> import functad.numpy as fnp
    >>> fnp.positive([-1.0]).tolist()
    [-1.0]
    """
    return unchanged(operand(x, where="positive"))


def fabs(x: Any, /) -> Any:
    """|x| as a float; see `abs`.

    >>> import functad.numpy as fnp
    >>> fnp.fabs([-1, 2]).tolist()
    [1.0, 2.0]
    """
    (x,) = operands("fabs", "float", (x,))
    if x._dtype.kind == "c":
        raise DTypeError(f"fabs: takes real numbers, got {x.dtype}; write abs(x).")
    return ops.abs(x)


def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """Rounded to a number of decimals, halves to even; complex numbers part by part. The derivative is 0.

    >>> import functad.numpy as fnp
    >>> fnp.round([0.5, 1.5, 2.25], 1).tolist()
    [0.5, 1.5, 2.200000047683716]
    """
    refuse_out(out, "round")
    return ops.round(a, decimals)


around = round


def rint(x: Any, /) -> Any:
    """Rounded to whole numbers, halves to even; integers as floats.

    >>> import functad.numpy as fnp
    >>> fnp.rint([0.5, 1.5]).tolist()
    [0.0, 2.0]
    """
    (x,) = operands("rint", "float", (x,))
    return ops.round(x)


def fix(x: Any, out: Any = None) -> Any:
    """Rounded towards 0.

    >>> import functad.numpy as fnp
    >>> fnp.fix([1.7, -1.7]).tolist()
    [1.0, -1.0]
    """
    refuse_out(out, "fix")
    return ops.trunc(operand(x, where="fix"))


def clip(
    a: Any, min: Any = None, max: Any = None, out: Any = None, *, a_min: Any = None, a_max: Any = None, **layout: Any
) -> Any:
    """`a` limited to [min, max] (NumPy's older names: a_min, a_max); either may be left out, or be a tensor.

    Where `a` is at or beyond a bound its derivative is 0, and a bound that is a tensor gets it. Where
    min is larger than max, the result is max.

    >>> import functad.numpy as fnp
    >>> fnp.clip([-1.0, 0.5, 3.0], 0, max=1).tolist()
    [0.0, 0.5, 1.0]
    """
    refuse_out(out, "clip")
    for name in layout:
        if name not in IGNORED:
            raise no_argument("clip", name, ["min", "max", "a_min", "a_max"], "the arguments are a, min, max")
    low, high = a_min if min is None else min, a_max if max is None else max
    like = next((v for v in (a, low, high) if isinstance(v, Handle)), None)
    a = (
        operands("clip", "numeric", (a, like))[0]
        if isinstance(a, dtypes.SCALARS) and like is not None
        else operand(a, like, where="clip")
    )
    if dtypes.is_inexact(a._dtype) or (low is None and high is None):
        return ops.clip(a, low, high) if low is not None or high is not None else unchanged(a)
    return _clip_integers(a, low, high)


def _clip_integers(a: Any, low: Any, high: Any) -> Any:
    """Bounds that are Python integers beyond the dtype bound nothing."""
    info = None if a._dtype == dtypes.bool_ else dtypes_limits(a._dtype)
    if info is not None and type(low) is int and low < info[0]:
        low = None
    if info is not None and type(high) is int and high > info[1]:
        high = None
    return ops.clip(a, low, high) if low is not None or high is not None else unchanged(a)


def dtypes_limits(dtype: dtypes.DType) -> tuple[int, int]:
    """The smallest and the largest integer of a dtype."""
    bits = 8 * dtype.itemsize
    return (0, 2**bits - 1) if dtype.kind == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def nan_to_num(
    x: Any, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """`x` with `nan` for NaN, and `posinf`, `neginf` (the largest finite numbers) for the infinities.

    The derivative is 0 where an entry was replaced.

    >>> import functad.numpy as fnp
    >>> fnp.nan_to_num([float("nan"), float("inf"), 1.0], posinf=9.0).tolist()
    [0.0, 9.0, 1.0]
    """
    return ops.nan_to_num(x, nan, posinf, neginf)


def float_power(x1: Any, x2: Any, /) -> Any:
    """`x1` to the `x2` as floats, so that integers have negative powers.

    >>> import functad.numpy as fnp
    >>> fnp.float_power([2, 4], -1).tolist()
    [0.5, 0.25]
    """
    x1, x2 = operands("float_power", "float", (x1, x2))
    return ops.pow(x1, x2)


def divmod(x1: Any, x2: Any, /) -> tuple[Any, Any]:
    """The quotient rounded down, and the remainder.

    >>> import functad.numpy as fnp
    >>> [part.tolist() for part in fnp.divmod([7, -7], 3)]
    [[2, -3], [1, 2]]
    """
    return ops.floor_divide(x1, x2), ops.remainder(x1, x2)


def fmax(x1: Any, x2: Any, /) -> Any:
    """The larger of two, and the other one of a NaN. Ties share the derivative.

    >>> import functad.numpy as fnp
    >>> fnp.fmax([1.0, float("nan")], 0.5).tolist()
    [1.0, 0.5]
    """
    return _but_nan(ops.maximum, "fmax", x1, x2)


def fmin(x1: Any, x2: Any, /) -> Any:
    """The smaller of two, and the other one of a NaN; see `fmax`.

    >>> import functad.numpy as fnp
    >>> fnp.fmin([1.0, float("nan")], 0.5).tolist()
    [0.5, 0.5]
    """
    return _but_nan(ops.minimum, "fmin", x1, x2)


def _but_nan(op: Any, where: str, x1: Any, x2: Any) -> Any:
    x1, x2 = operands(where, "numeric", (x1, x2))
    if not dtypes.is_inexact(x1._dtype):
        return op(x1, x2)
    return ops.where(ops.isnan(x1), x2, ops.where(ops.isnan(x2), x1, op(x1, x2)))


def heaviside(x1: Any, x2: Any, /) -> Any:
    """0 for negative `x1`, 1 for positive, and `x2` for 0, which alone has a derivative.

    >>> import functad.numpy as fnp
    >>> fnp.heaviside([-1.0, 0.0, 2.0], 0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    x1, x2 = operands("heaviside", "float", (x1, x2))
    real_only("heaviside", x1)
    step = ops.where(ops.isnan(x1), math.nan, ops.where(x1 > 0, 1, operand(0, x1, x1._dtype)))
    return ops.where(x1 == 0, x2, step)


def spacing(x: Any, /) -> Any:
    """The distance from `x` to the next float away from 0, with the sign of `x`.

    >>> import functad.numpy as fnp
    >>> float(fnp.spacing(1.0)) == 2.0**-23
    True
    """
    (x,) = operands("spacing", "float", (x,))
    x = ops.stop_gradient(x)
    size = ops.abs(x)
    return ops.copysign(ops.nextafter(size, math.inf) - size, x)


# --- complex numbers


def angle(z: Any, deg: bool = False) -> Any:
    """The angle of a complex number, from -pi to pi (or in degrees); 0 or pi of a real one.

    >>> import functad.numpy as fnp
    >>> fnp.angle([1j, 1, -1], deg=True).tolist()
    [90.0, 0.0, 180.0]
    """
    (z,) = operands("angle", "float", (z,))
    out = ops.arctan2(ops.imag(z), ops.real(z))
    return ops.rad2deg(out) if deg else out


def real_if_close(a: Any, tol: float = 100) -> Any:
    """The real part, if every imaginary part is below `tol` times the precision. Eager only.

    >>> import functad.numpy as fnp
    >>> fnp.real_if_close([1 + 0j]).tolist()
    [1.0]
    """
    a = operand(a, where="real_if_close")
    if a._dtype.kind != "c":
        return unchanged(a)
    bound = tol * 2.0 ** (-23 if a._dtype == dtypes.complex64 else -52) if tol > 1 else tol
    return ops.real(a) if bool(ops.all(ops.abs(ops.imag(a)) < bound)) else unchanged(a)


def isreal(x: Any) -> Any:
    """Where the imaginary part is 0.

    >>> import functad.numpy as fnp
    >>> fnp.isreal([1 + 1j, 2]).tolist()
    [False, True]
    """
    return ops.imag(operand(x, where="isreal")) == 0


def iscomplex(x: Any) -> Any:
    """Where the imaginary part is not 0.

    >>> import functad.numpy as fnp
    >>> fnp.iscomplex([1 + 1j, 2]).tolist()
    [True, False]
    """
    return ops.imag(operand(x, where="iscomplex")) != 0


def iscomplexobj(x: Any) -> bool:
    """Whether the dtype of `x` is complex.

    >>> import functad.numpy as fnp
    >>> fnp.iscomplexobj([1.0])
    False
    """
    return bool(operand(x, where="iscomplexobj").dtype.kind == "c")


def isrealobj(x: Any) -> bool:
    """Whether the dtype of `x` is not complex.

    >>> import functad.numpy as fnp
    >>> fnp.isrealobj([1.0])
    True
    """
    return not iscomplexobj(x)


def isscalar(element: Any) -> bool:
    """Whether `element` is a number or a 0-d tensor.

    >>> import functad.numpy as fnp
    >>> fnp.isscalar(2.0), fnp.isscalar([2.0])
    (True, False)
    """
    if isinstance(element, dtypes.SCALARS):
        return True
    return hasattr(element, "dtype") and getattr(element, "ndim", 1) == 0


def isposinf(x: Any, out: Any = None) -> Any:
    """Where it is inf.

    >>> import functad.numpy as fnp
    >>> fnp.isposinf([float("inf"), -float("inf")]).tolist()
    [True, False]
    """
    refuse_out(out, "isposinf")
    (x,) = operands("isposinf", "float", (x,))
    real_only("isposinf", x)
    return x == math.inf


def isneginf(x: Any, out: Any = None) -> Any:
    """Where it is -inf.

    >>> import functad.numpy as fnp
    >>> fnp.isneginf([float("inf"), -float("inf")]).tolist()
    [False, True]
    """
    refuse_out(out, "isneginf")
    (x,) = operands("isneginf", "float", (x,))
    real_only("isneginf", x)
    return x == -math.inf


# --- comparison of arrays


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Where |a - b| <= atol + rtol * |b|, or both are the same infinity (or both NaN, with `equal_nan`).

    >>> import functad.numpy as fnp
    >>> fnp.isclose([1.0, 2.0], [1.0 + 1e-7, 2.1]).tolist()
    [True, False]
    """
    a, b = (ops.stop_gradient(x) for x in operands("isclose", "float", (a, b)))
    close = ops.logical_and(ops.abs(a - b) <= atol + rtol * ops.abs(b), ops.isfinite(b))
    close = ops.logical_or(ops.logical_and(close, ops.isfinite(a)), a == b)
    return ops.logical_or(close, ops.logical_and(ops.isnan(a), ops.isnan(b))) if equal_nan else close


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether all elements are close; see `isclose`.

    >>> import functad.numpy as fnp
    >>> bool(fnp.allclose([1.0, 2.0], [1.0, 2.0 + 1e-7]))
    True
    """
    return ops.all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether two arrays have the same shape and elements.

    >>> import functad.numpy as fnp
    >>> bool(fnp.array_equal([1, 2], [1, 2])), bool(fnp.array_equal([1, 2], [[1, 2]]))
    (True, False)
    """
    a1, a2 = operands("array_equal", "compare", (a1, a2))
    if a1._shape != a2._shape:
        return operand(False, a1)
    same = a1 == a2
    if equal_nan:
        same = ops.logical_or(same, ops.logical_and(ops.isnan(a1), ops.isnan(a2)))
    return ops.all(same)


def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether two arrays broadcast to one shape and are equal.

    >>> import functad.numpy as fnp
    >>> bool(fnp.array_equiv([1, 1], 1))
    True
    """
    a1, a2 = operands("array_equiv", "compare", (a1, a2))
    try:
        shape = ops.broadcast_shapes(a1._shape, a2._shape)
    except ValueError:
        return operand(False, a1)
    return ops.all(ops.broadcast_to(a1 == a2, shape))
