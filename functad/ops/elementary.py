"""Elementary functions: exponentials, logarithms, roots, trigonometry, the error function."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import scipy.special

from functad import dtypes
from functad.dispatch import bind
from functad.errors import DTypeError
from functad.ops.arithmetic import APART, pow, ratio, reciprocal
from functad.ops.logic import logical_and, where_op
from functad.ops.op import Op, Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import ONE, PAIR, elementwise

__all__ = [
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "cbrt",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "rsqrt",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "xlogy",
]  # fmt: skip

LN2 = math.log(2)
POSITIVE = ONE._replace(low=0.2)
UNIT = ONE._replace(low=-0.9, high=0.9)


def widened(impl: Callable[..., Any]) -> Callable[..., Any]:
    """`impl`, computing half types in float32 and rounding once."""

    @functools.wraps(impl)
    def call(xp: Any, *xs: Any, **params: Any) -> Any:
        dtype = xs[0].dtype
        if not dtypes.is_half(dtype):
            return impl(xp, *xs, **params)
        return impl(xp, *[x.astype(dtypes.float32) for x in xs], **params).astype(dtype)

    return call


def real_only(where: str, x: Any) -> None:
    """Raise unless `x` holds floats."""
    if not dtypes.is_float(x.dtype):
        raise DTypeError(f"{where}: takes real floating-point numbers, got {x.dtype}.")


def _host_or_jax(name: str) -> Callable[..., Any]:
    """The special function of this name, SciPy's on NumPy arrays and JAX's on others."""
    on_host, on_jax = getattr(scipy.special, name), getattr(jax.scipy.special, name)
    return lambda xp, *xs: (on_host if xp is np else on_jax)(*xs)


_real_expit, _erf, _xlogy, erfc_impl = (_host_or_jax(name) for name in ("expit", "erf", "xlogy", "erfc"))


def _expit(xp: Any, x: Any) -> Any:
    return 1 / (1 + xp.exp(-x)) if x.dtype.kind == "c" else _real_expit(xp, x)


def log_of_sum(xp: Any, x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)) of two arrays."""
    if xp is not np or x.dtype.kind != "c":
        return xp.logaddexp(x, y)
    top = np.maximum(x.real, y.real)  # NumPy's takes real numbers only
    top = np.where(np.isfinite(top), top, 0)
    return top + np.log(np.exp(x - top) + np.exp(y - top))


def _log2_of_sum(xp: Any, x: Any, y: Any) -> Any:
    return xp.logaddexp2(x, y) if x.dtype.kind != "c" else log_of_sum(xp, x * LN2, y * LN2) / LN2


# --- exponentials, logarithms, roots

exp = elementwise(
    "exp",
    lambda xp, x: xp.exp(x),
    lambda out: out,
    promote="float",
    samples=ONE,
    doc="e to the x.",
    example=("round(fd.numpy.exp(1.0).item(), 4)", "2.7183"),
)
exp2 = elementwise(
    "exp2",
    lambda xp, x: xp.exp2(x),
    lambda out: out * LN2,
    promote="float",
    samples=ONE,
    doc="2 to the x.",
    example=("fd.numpy.exp2(1.0).item()", "2.0"),
)


def _expm1(xp: Any, x: Any) -> Any:
    if xp is not np or x.dtype.kind != "c":
        return xp.expm1(x)
    out = np.where(np.isfinite(x.real), np.expm1(x), np.exp(x) - 1)  # NumPy's makes 0j beside an infinity NaN
    out.real += 0.0  # and its zero is -0.0 for -0.0
    return out


expm1 = elementwise(
    "expm1",
    _expm1,
    lambda x: exp(x),
    promote="float",
    samples=ONE,
    doc="exp(x) - 1, exact near 0.",
    example=("round(fd.numpy.expm1(1.0).item(), 4)", "1.7183"),
)
log = elementwise(
    "log", lambda xp, x: xp.log(x), lambda x: reciprocal(x), promote="float", samples=POSITIVE,
    doc="The natural logarithm.",
    example=("fd.numpy.log(1.0).item()", "0.0"),
)  # fmt: skip
log2 = elementwise(
    "log2", lambda xp, x: xp.log2(x), lambda x: 1 / LN2 / x, promote="float", samples=POSITIVE,
    doc="The logarithm to base 2.",
    example=("round(fd.numpy.log2(8.0).item(), 4)", "3.0"),
)  # fmt: skip
log10 = elementwise(
    "log10", lambda xp, x: xp.log10(x), lambda x: 1 / math.log(10) / x, promote="float", samples=POSITIVE,
    doc="The logarithm to base 10.",
    example=("round(fd.numpy.log10(1000.0).item(), 4)", "3.0"),
)  # fmt: skip
log1p = elementwise(
    "log1p", lambda xp, x: xp.log1p(x), lambda x: reciprocal(1 + x), promote="float", samples=ONE._replace(low=-0.8),
    doc="log(1 + x), exact near 0.",
    example=("round(fd.numpy.log1p(1.0).item(), 4)", "0.6931"),
)  # fmt: skip
difference = elementwise(
    "difference", lambda xp, x, y: xp.where(x == y, xp.zeros((), x.dtype), x - y), 1, -1, samples=PAIR,
    doc="x - y, but 0 for two equal infinities.",
)  # fmt: skip
logaddexp = elementwise(
    "logaddexp", widened(lambda xp, x, y: log_of_sum(xp, x, y)),
    lambda x, y: sigmoid(difference(x, y)), lambda x, y: sigmoid(difference(y, x)),
    promote="float", samples=PAIR, doc="log(exp(x) + exp(y)), stable.",
    example=("round(fd.numpy.logaddexp(1.0, 3.0).item(), 4)", "3.1269"),
)  # fmt: skip
logaddexp2 = elementwise(
    "logaddexp2", widened(_log2_of_sum),
    lambda x, y: sigmoid(difference(x, y) * LN2), lambda x, y: sigmoid(difference(y, x) * LN2),
    promote="float", samples=PAIR, doc="log2(2**x + 2**y), stable.",
    example=("round(fd.numpy.logaddexp2(1.0, 3.0).item(), 4)", "3.3219"),
)  # fmt: skip
sigmoid: Op = elementwise(
    "sigmoid", widened(lambda xp, x: _expit(xp, x)), lambda out: out * (1 - out), promote="float", samples=ONE,
    doc="1 / (1 + exp(-x)).",
    example=("round(fd.special.expit(1.0).item(), 4)", "0.7311"),
)  # fmt: skip
sqrt = elementwise(
    "sqrt", lambda xp, x: xp.sqrt(x), lambda out: 0.5 / out, promote="float", samples=POSITIVE,
    doc="The square root; its derivative at 0 is inf.",
    example=("fd.numpy.sqrt(9.0).item()", "3.0"),
)  # fmt: skip
rsqrt = elementwise(
    "rsqrt", lambda xp, x: jax.lax.rsqrt(x), lambda out: -0.5 * pow(out, 3), promote="float", samples=POSITIVE,
    numpy_impl=lambda xp, x: xp.reciprocal(xp.sqrt(x)), doc="1 / sqrt(x).",
    example=("fd.tensor(0.25).rsqrt().item()", "2.0"),
)  # fmt: skip
cbrt = elementwise(
    "cbrt", lambda xp, x: xp.cbrt(x), lambda out: reciprocal(3 * out * out), promote="float", samples=POSITIVE,
    doc="The cube root.",
    example=("round(fd.numpy.cbrt(27.0).item(), 4)", "3.0"),
)  # fmt: skip


def _xlogy_safe(x: Any, y: Any) -> Any:
    """`y`, but 1 where both are 0."""
    return bind(where_op, (logical_and(x == 0, y == 0), operand(1, y, y._dtype), y))


xlogy = elementwise(
    "xlogy", widened(lambda xp, x, y: _xlogy(xp, x, y)),
    lambda x, y: log(_xlogy_safe(x, y)), lambda x, y: x / _xlogy_safe(x, y),
    promote="float", samples=APART, doc="x * log(y), but 0 where x is 0; both derivatives at (0, 0) are 0.",
    example=("round(fd.special.xlogy(1.0, 3.0).item(), 4)", "1.0986"),
)  # fmt: skip

# --- trigonometry

sin = elementwise(
    "sin",
    lambda xp, x: xp.sin(x),
    lambda x: cos(x),
    promote="float",
    samples=ONE,
    doc="The sine.",
    example=("round(fd.numpy.sin(1.0).item(), 4)", "0.8415"),
)
cos: Op = elementwise(
    "cos",
    lambda xp, x: xp.cos(x),
    lambda x: -sin(x),
    promote="float",
    samples=ONE,
    doc="The cosine.",
    example=("round(fd.numpy.cos(1.0).item(), 4)", "0.5403"),
)
tan = elementwise(
    "tan", lambda xp, x: xp.tan(x), lambda out: 1 + out * out, promote="float", doc="The tangent.",
    example=("round(fd.numpy.tan(1.0).item(), 4)", "1.5574"),
    samples=ONE._replace(low=-1.2, high=1.2),
)  # fmt: skip
arcsin = elementwise(
    "arcsin", lambda xp, x: xp.arcsin(x), lambda x: rsqrt((1 - x) * (1 + x)), promote="float", samples=UNIT,
    doc="The inverse sine.",
    example=("round(fd.numpy.arcsin(1.0).item(), 4)", "1.5708"),
)  # fmt: skip
arccos = elementwise(
    "arccos", lambda xp, x: xp.arccos(x), lambda x: -rsqrt((1 - x) * (1 + x)), promote="float", samples=UNIT,
    doc="The inverse cosine.",
    example=("fd.numpy.arccos(1.0).item()", "0.0"),
)  # fmt: skip
arctan = elementwise(
    "arctan", lambda xp, x: xp.arctan(x), lambda x: reciprocal(1 + x * x), promote="float", samples=ONE,
    doc="The inverse tangent.",
    example=("round(fd.numpy.arctan(1.0).item(), 4)", "0.7854"),
)  # fmt: skip
hypot = elementwise(
    "hypot", lambda xp, x, y: xp.hypot(x, y), lambda x, out: ratio(x, out), lambda y, out: ratio(y, out),
    promote="float", samples=PAIR, doc="sqrt(x * x + y * y) without overflow; the derivatives at (0, 0) are 0.",
    example=("fd.numpy.hypot(3.0, 4.0).item()", "5.0"),
)  # fmt: skip


@widened
def _over_square(xp: Any, x: Any, y: Any) -> Any:
    """By numbers whose squares neither overflow nor vanish."""
    size = xp.maximum(xp.abs(x), xp.abs(y))
    apart = 60 if size.dtype.itemsize < 8 else 500
    up, down, one = (xp.asarray(2.0**e, size.dtype) for e in (apart + 30, -apart - 8, 0))
    scale = xp.where(size > 2.0**apart, down, xp.where(size < 2.0**-apart, up, one))
    none = (size == 0) | (size == xp.inf)
    x, y = (xp.where(none, xp.zeros((), z.dtype), z * scale) for z in (x, y))
    return x / xp.where(none, xp.ones((), x.dtype), x * x + y * y) * scale


over_square: Op = elementwise(
    "over_square", _over_square,
    lambda x, y, out: (over_square(y, x) - out) * (over_square(y, x) + out),
    lambda x, y, out: -2 * out * over_square(y, x),
    promote="float", samples=APART, doc="x / (x * x + y * y) without overflow, 0 at the origin and at infinity.",
)  # fmt: skip


def _arctan2(xp: Any, y: Any, x: Any) -> Any:
    real_only("arctan2", y)
    real_only("arctan2", x)
    return xp.arctan2(y, x)


arctan2 = elementwise(
    "arctan2", _arctan2, lambda y, x: over_square(x, y), lambda y, x: -over_square(y, x),
    promote="float", samples=APART,
    doc="The angle of the point (x, y), for arctan2(y, x); the derivatives at the origin are 0.",
    example=("round(fd.numpy.arctan2(1.0, 1.0).item(), 4)", "0.7854"),
)  # fmt: skip

# --- hyperbolic functions

sinh = elementwise(
    "sinh",
    lambda xp, x: xp.sinh(x),
    lambda x: cosh(x),
    promote="float",
    samples=ONE,
    doc="The hyperbolic sine.",
    example=("round(fd.numpy.sinh(1.0).item(), 4)", "1.1752"),
)
cosh: Op = elementwise(
    "cosh",
    lambda xp, x: xp.cosh(x),
    lambda x: sinh(x),
    promote="float",
    samples=ONE,
    doc="The hyperbolic cosine.",
    example=("round(fd.numpy.cosh(1.0).item(), 4)", "1.5431"),
)
one_minus_square = elementwise(  # one call where the derivative of tanh would take three
    "one_minus_square", lambda xp, x: (1 - x) * (1 + x), lambda x: -2 * x, promote="float", samples=ONE,
    doc="1 - x * x, exact near 1.",
)  # fmt: skip
tanh = elementwise(
    "tanh", lambda xp, x: xp.tanh(x), lambda out: one_minus_square(out), promote="float", samples=ONE,
    doc="The hyperbolic tangent.",
    example=("round(fd.numpy.tanh(1.0).item(), 4)", "0.7616"),
)  # fmt: skip
arcsinh = elementwise(
    "arcsinh", lambda xp, x: xp.arcsinh(x),
    lambda x: rsqrt(1 + x * x) if x._dtype.kind == "c" else reciprocal(hypot(x, 1)),  # x * x may overflow
    promote="float", samples=ONE, doc="The inverse hyperbolic sine.",
    example=("round(fd.numpy.arcsinh(1.0).item(), 4)", "0.8814"),
)  # fmt: skip
arccosh = elementwise(
    "arccosh", lambda xp, x: xp.arccosh(x), lambda x: rsqrt(x - 1) * rsqrt(x + 1), promote="float",
    samples=ONE._replace(low=1.2), doc="The inverse hyperbolic cosine.",
    example=("fd.numpy.arccosh(1.0).item()", "0.0"),
)  # fmt: skip
arctanh = elementwise(
    "arctanh", lambda xp, x: xp.arctanh(x), lambda x: reciprocal((1 - x) * (1 + x)), promote="float", samples=UNIT,
    doc="The inverse hyperbolic tangent.",
    example=("round(fd.numpy.arctanh(0.5).item(), 4)", "0.5493"),
)  # fmt: skip

# --- the error function and sinc

erf = elementwise(
    "erf", widened(lambda xp, x: _erf(xp, x)), lambda x: 2 / math.sqrt(math.pi) * exp(-(x * x)), promote="float",
    samples=ONE, doc="The error function.",
    example=("round(fd.special.erf(1.0).item(), 4)", "0.8427"),
)  # fmt: skip
erfc = elementwise(
    "erfc", widened(lambda xp, x: erfc_impl(xp, x)), lambda x: -2 / math.sqrt(math.pi) * exp(-(x * x)), promote="float",
    samples=ONE, doc="1 - erf(x), exact for large x.",
    example=("round(fd.special.erfc(1.0).item(), 4)", "0.1573"),
)  # fmt: skip


@widened
def _sinc(xp: Any, x: Any, *, order: int) -> Any:
    """The derivative of sin(u) / u of this order at u = pi * x, times pi**order.

    Away from 0 by u f_n + n f_(n-1) = sin^(n)(u), which is stable for |u| > n; else by the series.
    """
    u = math.pi * x
    if order == 0:
        return xp.where(u == 0, xp.ones((), x.dtype), xp.sin(u) / xp.where(u == 0, xp.ones((), x.dtype), u))
    near = xp.abs(u) < order + 1
    one = xp.ones((), x.dtype)
    inner, outer = xp.where(near, u, one), xp.where(near, one, u)
    waves = (xp.sin(u), xp.cos(u))  # of which a program with the value has one already
    far = waves[0] / outer
    for n in range(1, order + 1):
        far = (waves[n % 2] * (1 if n % 4 < 2 else -1) - n * far) / outer
    # sum over k of (-1)**k u**(2k - n) / ((2k - n)! (2k + 1)), from the first 2k >= n, by Horner
    first, squared, series = (order + 1) // 2, inner * inner, xp.zeros_like(inner)
    for k in reversed(range(first, first + 12 + 2 * order)):
        m = 2 * k - order
        series = (-1) ** k / (math.factorial(m) * (2 * k + 1)) + series * squared
    series = series * inner if order % 2 else series
    return math.pi**order * xp.where(near, series, far)


sinc_op: Op = elementwise(
    "sinc", _sinc, lambda x, order: bind(sinc_op, (x,), (order + 1,)),
    samples=Samples([(shapes, {"order": n}) for n in (0, 1, 2) for shapes, _ in ONE.cases]),
    doc="The derivative of sin(pi x) / (pi x) of some order.",
)  # fmt: skip


def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), and 1 at 0; smooth there to every order.

    >>> import functad as fd
    >>> abs(fd.grad(fd.ops.sinc)(0.0)).item()
    0.0
    """
    return bind(sinc_op, operands("sinc", "float", (x,)), (0,))
