"""Arithmetic: sums, quotients, powers, remainders, rounding, signs, bounds, and complex parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError
from functad.ops.logic import gate, greater, greater_equal, less, less_equal
from functad.ops.op import Op, Samples
from functad.ops.operand import operand, operands
from functad.ops.plan import every_value
from functad.ops.rules import (
    ONE,
    PAIR,
    align_rows,
    cast,
    custom,
    elementwise,
    linear,
    mul,
    product,
    unbroadcast,
    zero_mul,
    zeros_like_op,
)

__all__ = [
    "abs", "ceil", "clip", "conj", "copysign", "deg2rad", "div", "floor", "floor_divide", "fmod", "imag", "maximum",
    "minimum", "pow", "rad2deg", "real", "reciprocal", "remainder", "round", "sign", "square", "sub", "trunc",
]  # fmt: skip

APART = PAIR._replace(low=(-2.0, 0.5), high=(2.0, 2.0))  # the second input away from 0
_MULTIPLIED_OUT = 16  # integer powers up to this are multiplied out, and compiled one by one


def _complex(rng: np.random.Generator) -> list[Any]:
    x = rng.normal(size=(3, 2)) + 1j * rng.normal(size=(3, 2))
    return [((x,), {}), ((x[0, 0],), {}), ((x[:0],), {})]


def _sub(xp: Any, x: Any, y: Any) -> Any:
    if x.dtype == bool:
        raise DTypeError("sub: bools have no difference; write x ^ y, or x.astype(int) first.")
    return xp.subtract(x, y)


sub = elementwise(
    "sub", _sub, 1, -1, samples=PAIR, doc="x - y.", example=("fd.numpy.subtract(1.0, 3.0).item()", "-2.0")
)
div = elementwise(
    "div", lambda xp, x, y: xp.true_divide(x, y), lambda y: reciprocal(y), lambda out, y: -(out / y),
    promote="float", samples=APART, doc="x / y; integers become floats.",
    example=("round(fd.numpy.divide(1.0, 3.0).item(), 4)", "0.3333"),
)  # fmt: skip
reciprocal: Op = elementwise(
    "reciprocal", lambda xp, x: xp.reciprocal(x), lambda out: -(out * out), promote="float",
    samples=ONE._replace(low=0.5), doc="1 / x.",
    example=("fd.numpy.reciprocal(4.0).item()", "0.25"),
)  # fmt: skip
ratio: Op = elementwise(
    "ratio", lambda xp, x, y: xp.where(y == 0, xp.zeros((), x.dtype), x / xp.where(y == 0, xp.ones((), y.dtype), y)),
    lambda y: ratio(1, y), lambda out, y: -ratio(out, y), promote="float", samples=APART,
    doc="x / y, but 0 where y is 0, and so are its derivatives: a direction x / |x| at the origin.",
)  # fmt: skip

# --- remainders and rounding: constant between jumps


def _floor_divide(xp: Any, x: Any, y: Any) -> Any:
    out = xp.floor_divide(x, y)
    if xp is np:
        return out
    if x.dtype.kind in "iub":
        return xp.where(y == 0, xp.zeros_like(out), out)  # as NumPy; XLA's is -1 or -2
    return xp.where(out == 0, xp.copysign(out, x) * xp.copysign(xp.ones((), y.dtype), y), out)  # XLA has no -0


floor_divide = elementwise(
    "floor_divide",
    _floor_divide,
    0,
    0,
    promote="count",
    samples=APART,
    doc="x / y rounded down.",
    example=("fd.numpy.floor_divide(-7.0, 2.0).item()", "-4.0"),
)


def _remainder(xp: Any, x: Any, y: Any) -> Any:
    if dtypes.is_half(x.dtype):  # round once
        return _remainder(xp, x.astype(dtypes.float32), y.astype(dtypes.float32)).astype(x.dtype)
    out = xp.remainder(x, y)
    if xp is np or x.dtype.kind in "iub":
        return out
    return xp.where(out == 0, xp.copysign(out, y), out)  # XLA keeps the sign of x in a zero


remainder = elementwise(
    "remainder", _remainder, 1, lambda x, y: -floor_divide(x, y), promote="count",
    samples=APART,
    doc="x - y * floor(x / y): the remainder with the sign of y.",
    example=("fd.numpy.remainder(-7.0, 2.0).item()", "1.0"),
)  # fmt: skip
fmod = elementwise(
    "fmod", lambda xp, x, y: xp.fmod(x, y), 1, lambda x, y, out: -round((x - out) / y), promote="count",
    samples=APART,
    doc="x - y * trunc(x / y): the remainder with the sign of x.",
    example=("fd.numpy.fmod(-7.0, 2.0).item()", "-1.0"),
)  # fmt: skip


def _of_floats(name: str) -> Callable[..., Any]:
    """NumPy's function of this name, which leaves integers as they are."""
    return lambda xp, x: x if x.dtype.kind in "iub" else getattr(xp, name)(x)


STEPS = ONE._replace(kinks=(-2.0, -1.0, 0.0, 1.0, 2.0))
floor = elementwise(
    "floor",
    _of_floats("floor"),
    0,
    samples=STEPS,
    doc="Rounded down; its derivative is 0.",
    example=("fd.numpy.floor(-1.5).item()", "-2.0"),
)
ceil = elementwise(
    "ceil",
    _of_floats("ceil"),
    0,
    samples=STEPS,
    doc="Rounded up; its derivative is 0.",
    example=("fd.numpy.ceil(-1.5).item()", "-1.0"),
)
trunc = elementwise(
    "trunc",
    _of_floats("trunc"),
    0,
    samples=STEPS,
    doc="Rounded towards 0; its derivative is 0.",
    example=("fd.numpy.trunc(-1.5).item()", "-1.0"),
)


def _round(xp: Any, x: Any, *, decimals: int) -> Any:
    if x.dtype.kind not in "iu" or decimals >= 0:
        return x if x.dtype.kind in "iub" else xp.round(x, decimals)
    if 10**-decimals > np.iinfo(x.dtype).max:
        return xp.zeros_like(x)
    unit = xp.asarray(10**-decimals, x.dtype)
    down = xp.floor_divide(x, unit)
    rest = x - down * unit
    up = (rest > unit - rest) | ((rest == unit - rest) & (down % 2 == 1))
    return (down + up.astype(x.dtype)) * unit


round_op = elementwise(
    "round", _round, 0, doc="Rounded to a number of decimals, halves to even.",
    samples=Samples([(shapes, {"decimals": 0}) for shapes, _ in ONE.cases], kinks=(-1.5, -0.5, 0.5, 1.5),
                    make=lambda rng: [((rng.integers(-9, 9, (3, 2)) / 10 + 0.02,), {"decimals": 1})]),
)  # fmt: skip


def round(x: Any, decimals: int = 0) -> Any:
    """`x` rounded to `decimals` decimals (tens, hundreds, ... if negative), halves to even.

    Its derivative is 0.

    >>> import functad as fd
    >>> fd.ops.round(fd.tensor([0.5, 1.5, 2.25])).tolist()
    [0.0, 2.0, 2.0]
    """
    if not isinstance(decimals, (int, np.integer)):
        raise ArgumentTypeError(f"round: decimals must be an int, got {decimals!r}.")
    return bind(round_op, (operand(x, where="round"),), (int(decimals),))


# --- signs


def _real_only(name: str) -> Callable[..., Any]:
    """NumPy's function of this name, refusing complex numbers, which have an op of their own."""

    def impl(xp: Any, x: Any) -> Any:
        if x.dtype.kind == "c":
            raise DTypeError(f"the op {name!r} is for real tensors, got {x.dtype}; call functad.ops.{name}(x).")
        return getattr(xp, name)(x)

    return impl


_sign_of_real = _real_only("sign")


def _sign(xp: Any, x: Any) -> Any:
    out = _sign_of_real(xp, x)
    return out if xp is np or x.dtype.kind in "iub" else xp.where(x == 0, xp.zeros((), x.dtype), out)  # XLA's keeps -0


sign_op = elementwise("sign", _sign, 0, samples=ONE._replace(kinks=(0.0,)), doc="The sign, -1, 0 or 1, of a real x.")
abs_op = elementwise(
    "abs", _real_only("abs"), lambda x: sign(x), samples=ONE._replace(kinks=(0.0,)),
    doc="|x| of a real x; the derivative at 0 is 0.",
)  # fmt: skip
complex_abs_op = custom(
    "complex_abs", lambda xp, x: xp.abs(x),
    vjp=lambda g, x, out: product(g, ratio(conj(x), cast(out, x._dtype))),
    jvp=lambda t, x, out: real(product(t, ratio(conj(x), cast(out, x._dtype)))),
    samples=Samples(make=_complex), batch=align_rows, doc="|x| of a complex x; the derivative at 0 is 0.",
)  # fmt: skip
copysign: Op = elementwise(
    "copysign", lambda xp, x, y: xp.copysign(x, y), lambda x, y: sign(x) * copysign(1, y), 0, promote="float",
    samples=PAIR._replace(kinks=(0.0,)), doc="|x| with the sign of y; the derivative at x = 0 is 0.",
    example=("fd.numpy.copysign(3.0, -1.0).item()", "-3.0"),
)  # fmt: skip


def abs(x: Any) -> Any:
    """|x|, elementwise. The derivative at 0 is 0; that of a complex tensor follows JAX's convention.

    >>> import functad as fd
    >>> fd.grad(fd.ops.abs)(-2.0).item()
    -1.0
    """
    x = operand(x, where="abs")
    return bind(complex_abs_op if x._dtype.kind == "c" else abs_op, (x,))


def sign(x: Any) -> Any:
    """The sign -1, 0 or 1 of a real tensor, x / |x| (0 at 0) of a complex one.

    >>> import functad as fd
    >>> fd.ops.sign(fd.tensor([-3.0, 0.0, 2.0])).tolist()
    [-1.0, 0.0, 1.0]
    """
    x = operand(x, where="sign")
    return ratio(x, cast(abs(x), x._dtype)) if x._dtype.kind == "c" else bind(sign_op, (x,))


# --- powers


def _integer_pow(xp: Any, x: Any, *, n: int) -> Any:
    if dtypes.is_half(x.dtype) and n not in (0, 1, 2):  # round once
        return _integer_pow(xp, x.astype(dtypes.float32), n=n).astype(x.dtype)
    if n < 0:
        return xp.reciprocal(_integer_pow(xp, x, n=-n))
    power = None
    for bit in reversed(range(n.bit_length())):
        power = x if power is None else power * power
        power = power * x if bit != n.bit_length() - 1 and n >> bit & 1 else power
    return xp.ones_like(x) if power is None else power


def _integer_pow_partial(x: Any, n: int) -> Any:
    if n in (0, 1):
        return n  # exactly constant: no power of x may enter
    return mul(x if n == 2 else bind(integer_pow_op, (x,), (n - 1,)), n)


integer_pow_op = elementwise(
    "integer_pow", _integer_pow, _integer_pow_partial, doc="x**n for a small integer n, multiplied out.",
    samples=Samples(make=lambda rng: [
        ((rng.uniform(0.5, 1.5, (3, 2)) * rng.choice([-1, 1], (3, 2)),), {"n": n}) for n in (-2, -1, 0, 1, 2, 3, 5)
    ]),
)  # fmt: skip


def _pow(xp: Any, x: Any, y: Any) -> Any:
    if dtypes.is_half(x.dtype):  # an integer exponent may have more digits than x
        return xp.power(x.astype(dtypes.float32), y.astype(dtypes.float32)).astype(x.dtype)
    if dtypes.is_inexact(x.dtype) and not dtypes.is_inexact(y.dtype):
        y = y.astype(x.dtype)
    if y.dtype.kind == "i" and x.dtype.kind != "f":
        # whole numbers: 1 / x**-y, truncated; where values are known, `pow` has refused it
        power = xp.power(x, xp.where(y < 0, -y % 2, y).astype(y.dtype))
        return xp.where((y < 0) & (xp.abs(x) != 1), xp.zeros_like(power), power)
    return xp.power(x, y)


pow_op = elementwise(
    "pow", _pow,
    lambda x, y: zero_mul(y, pow(x, y - 1)),  # y = 0 makes it 0, however singular the power
    lambda x, out: zero_mul(out, bind(_log_nonzero_op, (x,))),
    samples=PAIR._replace(low=(0.2, -2.0)), doc="x**y.",
)  # fmt: skip
_log_nonzero_op: Op = elementwise(
    "log_nonzero", lambda xp, x: xp.log(xp.where(x == 0, xp.ones((), x.dtype), x)), lambda x: ratio(1, x),
    samples=ONE._replace(low=0.2), doc="log(x), but 0 where x is 0, and so are its derivatives.",
)  # fmt: skip


def pow(x: Any, y: Any) -> Any:
    """`x` to the `y`, elementwise.

    Small integer exponents are multiplied out: `x**2` costs one product. The derivative of `x**0`
    is 0 everywhere, that of `0**y` (y >= 0) with respect to `y` is 0. Raises `ArgumentError` for an
    integer tensor to a negative integer, whose result would not be an integer.

    >>> import functad as fd
    >>> fd.grad(lambda x: x**3)(-2.0).item()
    12.0
    """
    if isinstance(y, (int, float)) and not isinstance(y, bool):
        x = operand(x, where="pow")
        dtype = dtypes.with_scalar(x._dtype, float if isinstance(y, float) else int)
        if y < 0 and not dtypes.is_inexact(dtype):
            raise ArgumentError(
                f"pow: {dtype} to the negative integer {y} is no integer; write x.astype('float32') ** {y}, or "
                f"x ** {float(y)}."
            )
        if -_MULTIPLIED_OUT <= y <= _MULTIPLIED_OUT and y == int(y):
            return bind(integer_pow_op, (cast(x, dtype),), (int(y),))
        if isinstance(y, int) and dtypes.is_half(dtype) and y.bit_length() < 32:
            y = operand(y, x, dtypes.int32)
    if not isinstance(x, dtypes.SCALARS) and not isinstance(y, dtypes.SCALARS):
        x, y = operands("pow", "same", (x, y))
        if dtypes.is_inexact(x._dtype) and not dtypes.is_inexact(y._dtype):  # keep every digit of the exponent
            return bind(pow_op, (x, cast(y, dtypes.int32) if y._dtype == dtypes.bool_ else y))
    x, y = operands("pow", "numeric", (x, y))
    if x._dtype == dtypes.bool_:
        x, y = cast(x, dtypes.default_int()), cast(y, dtypes.default_int())
    if y._dtype.kind == "i":
        exponents = every_value(y)
        if exponents is not None and (exponents < 0).any():
            raise ArgumentError(
                f"pow: {x.dtype} to the negative integer {exponents.min()} is no integer; write x.astype('float32') ** y."
            )
    return bind(pow_op, (x, y))


def square(x: Any) -> Any:
    """`x * x`, elementwise.

    >>> import functad as fd
    >>> fd.ops.square(fd.tensor([1.0, -3.0])).tolist()
    [1.0, 9.0]
    """
    return pow(x, 2)


# --- bounds: the derivative is sent to the one that was chosen, exactly 0 to the other

share: Op = linear(
    "share", lambda xp, value, x, y: xp.where(x > y, value, xp.where(x == y, value / 2, xp.zeros((), value.dtype))),
    lambda g, x, y, value_shape: unbroadcast(share(g, x, y), value_shape), None, None,
    samples=Samples([(((3, 2), (3, 2), (3, 2)), {}), (((2,), (3, 1), (2,)), {})]),
    batch=align_rows, doc="The value where x > y, half of it where x == y, else exactly 0.",
)  # fmt: skip
maximum = custom(
    "maximum", lambda xp, x, y: xp.maximum(x, y), promote="numeric", samples=PAIR,
    vjp=[lambda g, x, y, x_shape: unbroadcast(share(g, x, y), x_shape),
         lambda g, x, y, y_shape: unbroadcast(share(g, y, x), y_shape)],
    jvp=[lambda t, x, y: share(t, x, y), lambda t, x, y: share(t, y, x)],
    batch=align_rows, doc="The larger of x and y; ties share the derivative.",
    example=("fd.numpy.maximum(1.0, 3.0).item()", "3.0"),
)  # fmt: skip
minimum = custom(
    "minimum", lambda xp, x, y: xp.minimum(x, y), promote="numeric", samples=PAIR,
    vjp=[lambda g, x, y, x_shape: unbroadcast(share(g, y, x), x_shape),
         lambda g, x, y, y_shape: unbroadcast(share(g, x, y), y_shape)],
    jvp=[lambda t, x, y: share(t, y, x), lambda t, x, y: share(t, x, y)],
    batch=align_rows, doc="The smaller of x and y; ties share the derivative.",
    example=("fd.numpy.minimum(1.0, 3.0).item()", "1.0"),
)  # fmt: skip
clip_min = custom(
    "clip_min", lambda xp, x, bound: xp.maximum(x, bound), promote="numeric", samples=PAIR,
    vjp=[lambda g, x, bound, x_shape: unbroadcast(gate(g, greater(x, bound)), x_shape),
         lambda g, x, bound, bound_shape: unbroadcast(gate(g, less_equal(x, bound)), bound_shape)],
    jvp=[lambda t, x, bound: gate(t, greater(x, bound)), lambda t, x, bound: gate(t, less_equal(x, bound))],
    batch=align_rows, doc="The larger of x and a bound; at the bound, the bound has the derivative.",
)  # fmt: skip
clip_max = custom(
    "clip_max", lambda xp, x, bound: xp.minimum(x, bound), promote="numeric", samples=PAIR,
    vjp=[lambda g, x, bound, x_shape: unbroadcast(gate(g, less(x, bound)), x_shape),
         lambda g, x, bound, bound_shape: unbroadcast(gate(g, greater_equal(x, bound)), bound_shape)],
    jvp=[lambda t, x, bound: gate(t, less(x, bound)), lambda t, x, bound: gate(t, greater_equal(x, bound))],
    batch=align_rows, doc="The smaller of x and a bound; at the bound, the bound has the derivative.",
)  # fmt: skip


def clip(x: Any, min: Any = None, max: Any = None) -> Any:
    """`x` limited to [min, max]; either may be left out, and be a tensor.

    Where `x` is at or beyond a bound its derivative is 0, and a bound that is a tensor gets it.

    >>> import functad as fd
    >>> fd.ops.clip(fd.tensor([-1.0, 0.5, 3.0]), 0, 1).tolist()
    [0.0, 0.5, 1.0]
    """
    like = next((v for v in (min, max) if isinstance(v, Handle)), None)
    if isinstance(x, dtypes.SCALARS) and like is not None:
        x, _ = operands("clip", "numeric", (x, like))
    x = operand(x, like, where="clip")
    if min is not None:
        x = clip_min(x, min)
    return x if max is None else clip_max(x, max)


# --- complex parts and angles

real_op = linear(
    "real", lambda xp, x: xp.real(x), lambda g, x_dtype: cast(g, x_dtype), samples=Samples(make=_complex),
    batch=align_rows, doc="The real part of a complex x.",
)  # fmt: skip
imag_op = linear(
    "imag", lambda xp, x: xp.imag(x), lambda g, x_dtype: cast(g, x_dtype) * -1j, samples=Samples(make=_complex),
    batch=align_rows, doc="The imaginary part of a complex x.",
)  # fmt: skip
conj_op = linear(
    "conj", lambda xp, x: xp.conj(x), lambda g: conj(g), samples=Samples(make=_complex),
    batch=align_rows, doc="The complex conjugate of a complex x.",
)  # fmt: skip


def real(x: Any) -> Any:
    """The real part; a real tensor as it is.

    >>> import functad as fd
    >>> fd.ops.real(fd.tensor([1 + 2j])).tolist()
    [1.0]
    """
    x = operand(x, where="real")
    return bind(real_op, (x,)) if x._dtype.kind == "c" else x


def imag(x: Any) -> Any:
    """The imaginary part; zeros for a real tensor.

    >>> import functad as fd
    >>> fd.ops.imag(fd.tensor([1 + 2j])).tolist()
    [2.0]
    """
    x = operand(x, where="imag")
    return bind(imag_op if x._dtype.kind == "c" else zeros_like_op, (x,))


def conj(x: Any) -> Any:
    """The complex conjugate; a real tensor as it is.

    >>> import functad as fd
    >>> fd.ops.conj(fd.tensor([1 + 2j])).tolist()
    [(1-2j)]
    """
    x = operand(x, where="conj")
    return bind(conj_op, (x,)) if x._dtype.kind == "c" else x


def _scaled(name: str, factor: float) -> Callable[..., Any]:
    """For NumPy, whose function takes no complex numbers."""
    return lambda xp, x: x * x.dtype.type(factor) if x.dtype.kind == "c" else getattr(xp, name)(x)


deg2rad = elementwise(
    "deg2rad", lambda xp, x: xp.deg2rad(x), math.pi / 180, promote="float", samples=ONE,
    numpy_impl=_scaled("deg2rad", math.pi / 180), doc="Degrees to radians.",
    example=("round(fd.numpy.deg2rad(180.0).item(), 4)", "3.1416"),
)  # fmt: skip
rad2deg = elementwise(
    "rad2deg", lambda xp, x: xp.rad2deg(x), 180 / math.pi, promote="float", samples=ONE,
    numpy_impl=_scaled("rad2deg", 180 / math.pi), doc="Radians to degrees.",
    example=("round(fd.numpy.rad2deg(1.0).item(), 4)", "57.2958"),
)  # fmt: skip
