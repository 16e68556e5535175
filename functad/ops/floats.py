"""The parts of floating-point numbers, and whole-number arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import DTypeError
from functad.ops.arithmetic import copysign, fmod, trunc
from functad.ops.logic import INTEGERS, isinf, where
from functad.ops.op import Op, Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import ONE, PAIR, align_rows, elementwise, linear, nondiff, unbroadcast

__all__ = ["bitwise_count", "frexp", "gcd", "lcm", "ldexp", "ldexp_op", "modf", "nextafter", "signbit"]


def _scaled(rng: np.random.Generator) -> list[Any]:
    x, y = rng.normal(size=(3, 2)), rng.integers(-3, 4, (2,)).astype(np.int32)
    return [((x, y), {}), ((x[0, 0], y), {}), ((x[:0], y), {})]


def _ldexp(xp: Any, x: Any, y: Any) -> Any:
    return xp.ldexp(x.astype(dtypes.accumulator(x.dtype)), y.astype(np.int32)).astype(x.dtype)


ldexp_op: Op = linear(
    "ldexp", _ldexp, lambda g, y, x_shape: unbroadcast(bind(ldexp_op, (g, y)), x_shape), None,
    samples=Samples(make=_scaled), batch=align_rows, doc="x * 2**y for whole y.",
)  # fmt: skip
frexp_exponent_op = nondiff(
    "frexp_exponent", lambda xp, x: xp.frexp(x.astype(dtypes.accumulator(x.dtype)))[1].astype(np.int32),
    samples=ONE, batch=align_rows, doc="The exponent e of x = m * 2**e with 0.5 <= |m| < 1; 0 for 0, inf and NaN.",
)  # fmt: skip
nextafter = elementwise(
    "nextafter", lambda xp, x, y: xp.nextafter(x, y), 1, 0, promote="float", samples=PAIR,
    doc="The float next to x towards y; as a function of x, its derivative is 1.",
    example=("fd.numpy.nextafter(1.0, 3.0).item() > 1.0", "True"),
)  # fmt: skip
signbit = nondiff(
    "signbit", lambda xp, x: xp.signbit(x), promote="float", samples=ONE, batch=align_rows,
    doc="Where the sign bit is set: negative numbers, -0.0 too.",
    example=("fd.numpy.signbit(-2.0).item()", "True"),
)  # fmt: skip
gcd = nondiff(
    "gcd",
    lambda xp, x, y: xp.gcd(x, y),
    promote="bits",
    samples=INTEGERS,
    doc="The greatest common divisor of integers.",
    example=("fd.numpy.gcd(12, 18).item()", "6"),
)
lcm = nondiff(
    "lcm",
    lambda xp, x, y: xp.lcm(x, y),
    promote="bits",
    samples=INTEGERS,
    doc="The least common multiple of integers.",
    example=("fd.numpy.lcm(4, 6).item()", "12"),
)
bitwise_count = nondiff(
    "bitwise_count", lambda xp, x: xp.bitwise_count(x).astype(np.uint8), promote="bits",
    samples=Samples(make=lambda rng: [((rng.integers(-8, 8, (3, 2)),), {}), ((rng.integers(0, 8, (0, 2)),), {})]),
    doc="The number of ones in the bits of |x|.",
    example=("fd.numpy.bitwise_count(7).item()", "3"),
)  # fmt: skip


def ldexp(x: Any, y: Any) -> Any:
    """`x * 2**y` for integers `y`, exact where the result is a float.

    Raises `DTypeError` for floats in `y`.

    >>> import functad as fd
    >>> fd.ops.ldexp(fd.tensor([1.0, 3.0]), [2, -1]).tolist()
    [4.0, 1.5]
    """
    x, y = operands("ldexp", "same", (x, y))
    if y._dtype.kind not in "iu":
        raise DTypeError(f"ldexp: the exponents are integers, got {y._dtype}; write x * 2.0**y for others.")
    (x,) = operands("ldexp", "float", (x,))
    return bind(ldexp_op, (x, y))


def frexp(x: Any) -> tuple[Any, Any]:
    """`(m, e)` with `x == m * 2**e`, 0.5 <= |m| < 1 (or m = 0) and `e` an int32.

    The derivative of `m` is `2**-e`.

    >>> import functad as fd
    >>> m, e = fd.ops.frexp(fd.tensor([6.0]))
    >>> m.tolist(), e.tolist()
    ([0.75], [3])
    """
    (x,) = operands("frexp", "float", (x,))
    exponent = bind(frexp_exponent_op, (x,))
    return bind(ldexp_op, (x, -exponent)), exponent


def modf(x: Any) -> tuple[Any, Any]:
    """The fractional and the whole part, both with the sign of `x`. The derivative is the fraction's.

    >>> import functad as fd
    >>> [part.tolist() for part in fd.ops.modf(fd.tensor([2.5, -0.25]))]
    [[0.5, -0.25], [2.0, -0.0]]
    """
    (x,) = operands("modf", "float", (operand(x, where="modf"),))
    return where(isinf(x), copysign(0, x), fmod(x, 1)), trunc(x)
