"""Exponential integrals, the dilogarithm, and quotients that are smooth at 0."""

from __future__ import annotations

import math
import operator
from typing import Any

import jax
import numpy as np
import scipy.special

from functad.dispatch import bind
from functad.errors import ArgumentError
from functad.ops.elementary import POSITIVE, exp, real_only, widened
from functad.ops.op import Op, Samples
from functad.ops.operand import operands
from functad.ops.rules import ONE, elementwise

__all__ = ["exp1", "expi", "expn", "expn_op", "exprel", "exprel_op", "log1p_ratio", "log1p_ratio_op", "spence"]


_EXPN_DEPTH = 60


@widened
def _exprel(xp: Any, x: Any, *, order: int) -> Any:
    """The integral of t**order exp(x t) from 0 to 1: near 0 by its series, else by recurrence in the order."""
    near = xp.abs(x) < order + 1
    one = xp.ones((), x.dtype)
    inner, outer = xp.where(near, x, one), xp.where(near, (order + 1) * one, x)
    series = xp.zeros_like(inner)
    for j in reversed(range(22 + 4 * order)):
        series = series * inner + 1 / (math.factorial(j) * (j + order + 1))
    far = xp.expm1(outer) / outer
    for n in range(1, order + 1):
        far = (xp.exp(outer) - n * far) / outer
    return xp.where(near, series, xp.where(x == xp.inf, x, far))


@widened
def _log1p_ratio(xp: Any, x: Any, *, order: int) -> Any:
    """The derivative of log(1 + x) / x of some order."""
    one = xp.ones((), x.dtype)
    near = xp.abs(x) < 0.4
    inner, outer = xp.where(near, x, 0 * one), xp.where(near, one, x)
    series = xp.zeros_like(inner)
    for j in reversed(range(order, order + 42)):
        series = series * inner + (-1) ** j * (math.factorial(j) // math.factorial(j - order)) / (j + 1)
    far = xp.log1p(outer) / outer
    for n in range(1, order + 1):
        far = ((-1) ** (n - 1) * math.factorial(n - 1) / (1 + outer) ** n - n * far) / outer
    return xp.where(near, series, far)


def _named(name: str) -> Any:
    def impl(xp: Any, x: Any) -> Any:
        real_only(name, x)
        return getattr(scipy.special if xp is np else jax.scipy.special, name)(x)

    return widened(impl)


@widened
def _expn(xp: Any, x: Any, *, n: int) -> Any:
    """Up to 1.5 by the series of order 1 and recurrence in the order; beyond by the continued fraction."""
    real_only("expn", x)
    if xp is np:
        return scipy.special.expn(np.asarray(n, x.dtype), x)
    one = xp.ones((), x.dtype)
    inside = (x > 0) & (x <= 1.5)
    near, far = xp.where(inside, x, one), xp.where(x > 1.5, x, 2 * one)
    series = xp.zeros_like(near)
    for k in reversed(range(1, 26)):
        series = (series + (-1) ** k / (k * math.factorial(k))) * near
    low = -float(np.euler_gamma) - xp.log(near) - series
    for k in range(1, n):
        low = (xp.exp(-near) - near * low) / k
    fraction = far + n + 2 * _EXPN_DEPTH
    for k in reversed(range(1, _EXPN_DEPTH + 1)):
        fraction = far + n + 2 * (k - 1) - k * (n + k - 1) / fraction
    out = xp.where(x > 1.5, xp.exp(-far) / fraction, low)
    return xp.where(x == 0, 1 / (n - 1) if n > 1 else xp.inf, xp.where(x < 0, xp.nan, xp.where(x == xp.inf, 0.0, out)))


exprel_op: Op = elementwise(
    "exprel", _exprel, lambda x, order: bind(exprel_op, (x,), (order + 1,)),
    samples=Samples([(shapes, {"order": n}) for n in (0, 1) for shapes, _ in ONE.cases]),
    doc="The derivative of (exp(x) - 1) / x of some order.",
)  # fmt: skip
log1p_ratio_op: Op = elementwise(
    "log1p_ratio", _log1p_ratio, lambda x, order: bind(log1p_ratio_op, (x,), (order + 1,)),
    samples=Samples([(shapes, {"order": n}) for n in (0, 1) for shapes, _ in ONE.cases], low=-0.7),
    doc="The derivative of log(1 + x) / x of some order.",
)  # fmt: skip
expi = elementwise(
    "expi", widened(lambda xp, x: xp.where(x == xp.inf, x, _named("expi")(xp, x))), lambda x: exp(x) / x,
    promote="float", samples=POSITIVE,
    doc="The exponential integral, of exp(t) / t from -inf to x.",
    example=("round(fd.special.expi(1.0).item(), 4)", "1.8951"),
)  # fmt: skip
expn_op: Op = elementwise(
    "expn",
    _expn,
    lambda x, n: -expn(n - 1, x), samples=Samples([(((3, 2),), {"n": 2}), (((),), {"n": 1}), (((0, 2),), {"n": 3})],
    low=0.3, high=3.0), doc="The integral of exp(-x t) / t**n from 1 to infinity.",
)  # fmt: skip
spence = elementwise(
    "spence", _named("spence"), lambda x: -bind(log1p_ratio_op, (x - 1,), (0,)), promote="float", samples=POSITIVE,
    doc="Spence's function, the integral of log(t) / (1 - t) from 1 to x; the dilogarithm of 1 - x.",
    example=("fd.special.spence(1.0).item()", "0.0"),
)  # fmt: skip


def exprel(x: Any) -> Any:
    """(exp(x) - 1) / x, and 1 at 0; smooth there.

    >>> import functad as fd
    >>> fd.special.exprel(0.0).item(), fd.grad(fd.special.exprel)(0.0).item()
    (1.0, 0.5)
    """
    return bind(exprel_op, operands("exprel", "float", (x,)), (0,))


def log1p_ratio(x: Any) -> Any:
    """log(1 + x) / x, and 1 at 0; smooth there.

    >>> import functad as fd
    >>> fd.special.log1p_ratio(0.0).item()
    1.0
    """
    return bind(log1p_ratio_op, operands("log1p_ratio", "float", (x,)), (0,))


def exp1(x: Any) -> Any:
    """The exponential integral E1, of exp(-t) / t from x to infinity, for positive x.

    >>> import functad as fd
    >>> round(fd.special.exp1(1.0).item(), 5)
    0.21938
    """
    return expn(1, x)


def expn(n: int, x: Any) -> Any:
    """The integral of exp(-x t) / t**n from 1 to infinity, for an int n >= 0 and positive x.

    >>> import functad as fd
    >>> round(fd.special.expn(2, 1.0).item(), 5)
    0.1485
    """
    try:
        order = operator.index(n)
    except TypeError:
        order = -1
    if order < 0:
        raise ArgumentError(f"expn: the order n must be an int of at least 0, got {n!r}.")
    (x,) = operands("expn", "float", (x,))
    return bind(expn_op, (x,), (order,)) if order else exp(-x) / x
