"""Relatives of the error function: its inverses, the normal distribution, the scaled complement."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import scipy.special

from functad.dispatch import bind
from functad.ops.arithmetic import reciprocal, square
from functad.ops.elementary import UNIT, erfc, exp, real_only, widened
from functad.ops.halves import rounded_once
from functad.ops.op import Op, Samples
from functad.ops.operand import operands
from functad.ops.rules import ONE, elementwise

__all__ = [
    "erfcinv", "erfcx", "erfcx_op", "erfinv", "log_ndtr", "logit", "ndtr", "ndtri",
]  # fmt: skip

_ROOT = math.sqrt(math.pi)
_DEPTHS = {4: 20, 8: 54}  # of the continued fraction, by the bytes of a number
_DEGREES = {4: 11, 8: 26}  # of the polynomial


@lru_cache
def _chebyshev(degree: int) -> list[float]:
    """Of (1 + 2 x) erfcx(x) for x >= 0, in t = (x - 2) / (x + 2)."""
    angles = (np.arange(64) + 0.5) * np.pi / 64
    x = 2 / np.tan(angles / 2) ** 2
    waves = np.cos(np.arange(degree + 1)[:, None] * angles)
    sums: list[float] = (waves @ (scipy.special.erfcx(x) * (1 + 2 * x)) / 32).tolist()
    return [sums[0] / 2, *sums[1:]]


def _scaled(xp: Any, x: Any) -> Any:
    """erfcx(|x|), by Clenshaw's recurrence."""
    real_only("erfcx", x)
    x = xp.abs(x)
    t = 1 - 4 / (x + 2)
    first, *others = _chebyshev(_DEGREES[x.dtype.itemsize])
    here = before = xp.zeros_like(x)
    for c in reversed(others):
        here, before = 2 * t * here - before + c, here
    return (t * here - before + first) / (1 + 2 * x)


@widened
def _erfcx(xp: Any, x: Any, *, order: int) -> Any:
    """exp(x * x) times the error function's complement, integrated `order` times from infinity.

    Up to 2 by the recurrence in the order; beyond by the continued fraction of the ratio of neighbours,
    which has no cancellation.
    """
    one, scaled = xp.ones((), x.dtype), _scaled(xp, x)
    whole = xp.where(x < 0, 2 * xp.exp(x * x) - scaled, scaled)
    if order == 0:
        return whole
    large = x > 2
    near, far = xp.where(large, one, x), xp.where(large, x, 2 * one)
    before, here = 2 / _ROOT * one, xp.where(large, one, whole)
    ratio = xp.zeros_like(far)
    for n in reversed(range(1, order + _DEPTHS[x.dtype.itemsize])):
        if n == order:
            deep = ratio
        ratio = 1 / (2 * far + 2 * (n + 1) * ratio)
        if n <= order:
            deep = deep * ratio if n < order else ratio
    beyond = deep / _ROOT / (far + ratio)  # of order 0: 2 x y0 + 2 y1 = 2 / sqrt(pi)
    for n in range(1, order + 1):
        before, here = here, (before - 2 * near * here) / (2 * n)
    return xp.where(large, beyond, here)


@widened
def _erfinv(xp: Any, x: Any) -> Any:
    return scipy.special.erfinv(x) if xp is np else jax.lax.erf_inv(x)


@widened
def _ndtri(xp: Any, p: Any) -> Any:
    return scipy.special.ndtri(p) if xp is np else jax.scipy.special.ndtri(p)


@widened
def _log_ndtr(xp: Any, x: Any) -> Any:
    real_only("log_ndtr", x)
    if xp is np:
        return scipy.special.log_ndtr(x)
    tail = _scaled(xp, x * math.sqrt(0.5)) / 2
    half = x * x / 2
    return xp.where(x < 0, xp.log(tail) - half, xp.log1p(-tail * xp.exp(-half)))


erfcx_op: Op = elementwise(
    "erfcx", _erfcx, lambda x, order: -2 * (order + 1) * bind(erfcx_op, (x,), (order + 1,)),
    samples=Samples([(shapes, {"order": n}) for n in (0, 2) for shapes, _ in ONE.cases], low=-1.5, high=4.0),
    doc="exp(x * x) times an integral of erfc of some order.",
)  # fmt: skip
erfinv: Op = elementwise(
    "erfinv", _erfinv, lambda x: _ROOT / 2 * exp(square(erfinv(x))), promote="float", samples=UNIT,
    doc="The inverse of erf; inf at 1, -inf at -1.",
    example=("round(fd.special.erfinv(0.5).item(), 4)", "0.4769"),
)  # fmt: skip
ndtri: Op = elementwise(
    "ndtri", _ndtri, lambda p: math.sqrt(2 * math.pi) * exp(square(ndtri(p)) / 2), promote="float",
    samples=UNIT._replace(low=0.05), doc="The inverse of ndtr: the quantiles of the normal distribution.",
    example=("round(fd.special.ndtri(0.975).item(), 4)", "1.96"),
)  # fmt: skip
log_ndtr = elementwise(
    "log_ndtr", _log_ndtr, lambda x: math.sqrt(2 / math.pi) * reciprocal(erfcx(x * -math.sqrt(0.5))), promote="float",
    samples=ONE, doc="The logarithm of ndtr, exact far to the left.",
    example=("round(fd.special.log_ndtr(0.0).item(), 4)", "-0.6931"),
)  # fmt: skip
logit = elementwise(
    # 1 - x is exact from 1/2 on; below, its rounding is no more than that of the quotient
    "logit", widened(lambda xp, x: xp.log(x / (1 - x))), lambda x: reciprocal(x * (1 - x)), promote="float",
    samples=UNIT._replace(low=0.05), doc="log(x / (1 - x)), the inverse of the logistic function expit.",
    example=("fd.special.logit(0.5).item()", "0.0"),
)  # fmt: skip


def erfcx(x: Any) -> Any:
    """exp(x * x) * erfc(x), which neither over- nor underflows for positive x.

    >>> import functad as fd
    >>> round(fd.special.erfcx(100.0).item(), 8)
    0.00564161
    """
    return bind(erfcx_op, operands("erfcx", "float", (x,)), (0,))


@rounded_once
def erfcinv(x: Any) -> Any:
    """The inverse of erfc, exact near 0.

    >>> import functad as fd
    >>> fd.special.erfcinv(1.0).item()
    0.0
    """
    (x,) = operands("erfcinv", "float", (x,))
    return ndtri(x / 2) * -math.sqrt(0.5) + 0.0


@rounded_once
def ndtr(x: Any) -> Any:
    """The distribution function of the standard normal distribution, exact in both tails.

    >>> import functad as fd
    >>> fd.special.ndtr(0.0).item()
    0.5
    """
    (x,) = operands("ndtr", "float", (x,))
    return erfc(x * -math.sqrt(0.5)) / 2
