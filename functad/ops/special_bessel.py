"""Bessel functions of whole order; the derivative of one is made of its two neighbours, so nothing is divided."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import jax
import numpy as np
import scipy.special

from functad.dispatch import bind
from functad.errors import ArgumentError
from functad.ops.elementary import POSITIVE, real_only, widened
from functad.ops.op import Op, Samples
from functad.ops.operand import operands
from functad.ops.rules import ONE, elementwise

__all__ = [
    "bessel_iv_op", "bessel_ive_op", "bessel_j0", "bessel_j1", "bessel_jn", "bessel_jn_op", "bessel_kve_op",
    "i0", "i0e", "i1", "i1e", "k0", "k0e", "k1", "k1e",
]  # fmt: skip


# --- J


@widened
def bessel_jn_impl(xp: Any, x: Any, *, n: int) -> Any:
    """By the power series near 0, by Bessel's integral, to which the midpoint rule is exact, and by Hankel's series."""
    real_only("bessel_jn", x)
    if xp is np:
        return scipy.special.jv(x.dtype.type(n), x)
    one = xp.ones((), x.dtype)
    size = xp.abs(x)
    limit = 25 + n * n / 2
    large = size > limit
    near, far = xp.where(large, one, size), xp.where(large, size, limit * one)
    count = 36 + n + int(limit / 2)
    angles = (np.arange(count) + 0.5) * math.pi / count
    waves, sines = (xp.asarray(a, x.dtype) for a in (n * angles, np.sin(angles)))
    total = xp.sum(xp.cos(waves - near[..., None] * sines), -1)  # fused: the long axis is never stored
    low = xp.where(size < 4, size, one)
    term = one
    for k in range(1, n + 1):  # (low / 2)**n / n!, which as two powers would overflow
        term = term * (low / (2 * k))
    power = term
    for k in range(1, 22):
        term = term * (-low * low / (4 * k * (k + n)))
        power = power + term
    even, odd, term = one, xp.zeros((), x.dtype), one
    for k in range(1, 24):
        term = term * (4 * n * n - (2 * k - 1) ** 2) / (8 * k * far)
        sign = -1 if k % 4 >= 2 else 1
        even, odd = (even, odd + sign * term) if k % 2 else (even + sign * term, odd)
    # cos and sin of far - n pi / 2 - pi / 4, without rounding the difference
    c, s = (xp.cos(far) + xp.sin(far)) / math.sqrt(2), (xp.sin(far) - xp.cos(far)) / math.sqrt(2)
    for _ in range(n % 4):
        c, s = s, -c
    beyond = xp.sqrt(2 / (math.pi * far)) * (c * even - s * odd)
    beyond = xp.where(size == xp.inf, xp.zeros((), x.dtype), beyond)
    out = xp.where(large, beyond, xp.where(size < 4, power, total / count))
    return xp.where(xp.isnan(x), x, xp.where(x < 0, -out, out) if n % 2 else out)


def _neighbours(op: Op, x: Any, n: int, below: int, above: int) -> Any:
    """Half the sum (with signs) of the functions of the orders next to n; that of order -1 is +-that of order 1."""
    if n == 0:
        return above * bind(op, (x,), (1,))
    return (below * bind(op, (x,), (n - 1,)) + above * bind(op, (x,), (n + 1,))) / 2


bessel_jn_op: Op = elementwise(
    "bessel_jn", bessel_jn_impl, lambda x, n: _neighbours(bessel_jn_op, x, n, 1, -1),
    samples=Samples([(shapes, {"n": n}) for n in (0, 2) for shapes, _ in ONE.cases]),
    doc="The Bessel function of the first kind of order n.",
)  # fmt: skip


def bessel_j0(x: Any) -> Any:
    """The Bessel function of the first kind of order 0.

    >>> import functad as fd
    >>> round(fd.special.bessel_j0(1.0).item(), 5)
    0.7652
    """
    return bessel_jn(0, x)


def bessel_j1(x: Any) -> Any:
    """The Bessel function of the first kind of order 1.

    >>> import functad as fd
    >>> round(fd.special.bessel_j1(1.0).item(), 5)
    0.44005
    """
    return bessel_jn(1, x)


def bessel_jn(n: int, x: Any) -> Any:
    """The Bessel function of the first kind of a small whole order n >= 0.

    >>> import functad as fd
    >>> round(fd.special.bessel_jn(2, 1.0).item(), 5)
    0.1149
    """
    return bind(bessel_jn_op, operands("bessel_jn", "float", (x,)), (whole_order("bessel_jn", n, x),))


def whole_order(where: str, n: Any, x: Any = None) -> int:
    """The order of a function of `x` that has it for whole numbers alone."""
    if isinstance(x, int) and getattr(n, "ndim", False):
        raise ArgumentError(f"{where}: the order comes first; write {where}({x}, x).")
    if not hasattr(n, "__int__") or getattr(n, "ndim", False) or int(n) != n or n < 0:
        raise ArgumentError(f"{where}: the order n must be an int of at least 0, got {n!r}.")
    return int(n)


# --- I

_FAR = 1e9
"""Beyond it SciPy gives up (NaN), and two terms of the series in 1 / x are exact."""


@lru_cache
def _series_length(n: int, limit: int, eps: float) -> int:
    """How many terms after the first count in the power series of I_n up to `limit`."""
    term, k = 1.0, 0
    while term > eps / 8:
        k += 1
        term *= limit * limit / (4 * k * (k + n))
    return k


@widened
def _ive(xp: Any, x: Any, *, n: int) -> Any:
    """exp(-|x|) I_n(x). From order 2 on by the power series near 0, beyond by recurrence."""
    if xp is np:
        near = scipy.special.ive(x.dtype.type(n), np.clip(x, -_FAR, _FAR))
        with np.errstate(all="ignore"):
            far = (1 - (4 * n * n - 1) / (8 * np.abs(x))) / math.sqrt(2 * math.pi) / np.sqrt(np.abs(x))
        return np.where(np.abs(x) > _FAR, np.sign(x) ** (n % 2) * far, near)
    if n < 2:
        return (jax.lax.bessel_i1e if n else jax.lax.bessel_i0e)(x)
    one = xp.ones((), x.dtype)
    limit = min(n * n - 1, max(12, 2 * n))  # from where on the recurrence loses next to nothing
    large = xp.abs(x) > limit
    near, far = xp.where(large, one, x), xp.where(large, x, limit * one)
    squared = near * near / 4
    total = xp.zeros((), x.dtype)
    for k in range(_series_length(n, limit, float(xp.finfo(x.dtype).eps)), -1, -1):
        total = total * squared + 1 / (math.factorial(k) * math.factorial(k + n))
    total = total * xp.power(near / 2, n)
    before, here = jax.lax.bessel_i0e(x), jax.lax.bessel_i1e(x)  # as the orders 0 and 1 are: computed once
    for k in range(1, n):
        before, here = here, before - 2 * k / far * here
    return xp.where(large, here, total * xp.exp(-xp.abs(near)))


@widened
def _iv(xp: Any, x: Any, *, n: int) -> Any:
    return scipy.special.iv(x.dtype.type(n), x) if xp is np else xp.exp(xp.abs(x)) * _ive(xp, x, n=n)


bessel_iv_op: Op = elementwise(
    "bessel_iv", _iv, lambda x, n: _neighbours(bessel_iv_op, x, n, 1, 1),
    samples=Samples([(shapes, {"n": n}) for n in (0, 2) for shapes, _ in ONE.cases]),
    doc="The modified Bessel function of the first kind of order n.",
)  # fmt: skip
bessel_ive_op: Op = elementwise(
    "bessel_ive", _ive,
    lambda x, n: _neighbours(bessel_ive_op, x, n, 1, 1) - x.sign() * bind(bessel_ive_op, (x,), (n,)),
    samples=Samples([(shapes, {"n": n}) for n in (0, 2) for shapes, _ in ONE.cases], kinks=(0.0,)),
    doc="exp(-|x|) times the modified Bessel function of the first kind of order n.",
)  # fmt: skip


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 0.

    >>> import functad as fd
    >>> round(fd.special.i0(1.0).item(), 4)
    1.2661
    """
    return bind(bessel_iv_op, operands("i0", "float", (x,)), (0,))


def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 1.

    >>> import functad as fd
    >>> round(fd.grad(fd.special.i1)(0.0).item(), 4)
    0.5
    """
    return bind(bessel_iv_op, operands("i1", "float", (x,)), (1,))


def i0e(x: Any) -> Any:
    """exp(-|x|) * i0(x); its derivative at 0 is 0.

    >>> import functad as fd
    >>> round(fd.special.i0e(1.0).item(), 4)
    0.4658
    """
    return bind(bessel_ive_op, operands("i0e", "float", (x,)), (0,))


def i1e(x: Any) -> Any:
    """exp(-|x|) * i1(x).

    >>> import functad as fd
    >>> fd.special.i1e(0.0).item()
    0.0
    """
    return bind(bessel_ive_op, operands("i1e", "float", (x,)), (1,))


# --- K


@widened
def _kve(xp: Any, x: Any, *, n: int) -> Any:
    """exp(x) K_n(x), the integral of exp(-x (cosh t - 1)) cosh(n t) over t >= 0, by the trapezoidal rule."""
    real_only("bessel_kve", x)
    if xp is np:
        near = scipy.special.kve(x.dtype.type(n), np.minimum(x, _FAR))
        with np.errstate(all="ignore"):
            far = (1 + (4 * n * n - 1) / (8 * x)) * math.sqrt(math.pi / 2) / np.sqrt(x)
        return np.where(x > _FAR, far, near)
    positive = (x > 0) & (x < xp.inf)
    safe = xp.where(positive, x, xp.ones((), x.dtype))
    count = 160
    step = xp.arcsinh(xp.sqrt(25 / safe)) * (2 / count) * (1 + n / 8)

    t = step[..., None] * xp.arange(1, count + 1, dtype=x.dtype)
    terms = xp.exp(-2 * safe[..., None] * xp.sinh(t / 2) ** 2) * xp.cosh(n * t)
    total = (0.5 + xp.sum(terms, -1)) * step  # fused: the long axis is never stored
    return xp.where(positive, total, xp.where(x == 0, xp.inf, xp.where(x == xp.inf, 0.0, xp.nan)))


bessel_kve_op: Op = elementwise(
    "bessel_kve", _kve,
    lambda x, n: bind(bessel_kve_op, (x,), (n,)) + _neighbours(bessel_kve_op, x, n, -1, -1),
    samples=Samples([(shapes, {"n": n}) for n in (0, 2) for shapes, _ in ONE.cases], low=POSITIVE.low, high=4.0),
    doc="exp(x) times the modified Bessel function of the second kind of order n.",
)  # fmt: skip


def k0e(x: Any) -> Any:
    """exp(x) * k0(x).

    >>> import functad as fd
    >>> round(fd.special.k0e(1.0).item(), 5)
    1.14446
    """
    return bind(bessel_kve_op, operands("k0e", "float", (x,)), (0,))


def k1e(x: Any) -> Any:
    """exp(x) * k1(x).

    >>> import functad as fd
    >>> round(fd.special.k1e(1.0).item(), 5)
    1.63615
    """
    return bind(bessel_kve_op, operands("k1e", "float", (x,)), (1,))


def k0(x: Any) -> Any:
    """The modified Bessel function of the second kind of order 0, for positive x.

    >>> import functad as fd
    >>> round(fd.special.k0(1.0).item(), 5)
    0.42102
    """
    (x,) = operands("k0", "float", (x,))
    return k0e(x) * (-x).exp()


def k1(x: Any) -> Any:
    """The modified Bessel function of the second kind of order 1, for positive x.

    >>> import functad as fd
    >>> round(fd.special.k1(1.0).item(), 5)
    0.60191
    """
    (x,) = operands("k1", "float", (x,))
    return k1e(x) * (-x).exp()
