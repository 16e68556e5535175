"""Complete elliptic integrals, Faddeeva's function and Voigt's profile, log(1 - exp(-x))."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import scipy.special

from functad.dispatch import bind
from functad.ops.arithmetic import reciprocal
from functad.ops.elementary import expm1, real_only, widened
from functad.ops.halves import rounded_once
from functad.ops.logic import logical_and, where
from functad.ops.op import Op, Samples
from functad.ops.operand import operands
from functad.ops.rules import ONE, cast, elementwise

__all__ = ["ellipe", "ellipe_op", "ellipk", "ellipk_op", "ellipkm1", "log1mexp", "voigt_profile", "wofz"]

_STEPS = {4: 10, 8: 14}  # by the bytes of a number, for the smallest one
_TERMS = {4: 30, 8: 60}  # of the power series


def _cel(xp: Any, p: Any, a: Any, b: Any) -> Any:
    """The integral of (a cos^2 + b sin^2) / sqrt(cos^2 + p sin^2) over a quarter turn, by sums without cancellation.

    Bulirsch's scheme (1969), for 0 < p < inf.
    """
    root, one = xp.sqrt(p), xp.ones_like(p)
    large = p > 1  # there sine and cosine change places, or the sums would be too large
    kc = xp.where(large, 1 / root, root)
    a, b = xp.where(large, b / root, a * one), xp.where(large, a / root, b * one)
    e, em, c = kc, one, one
    for _ in range(_STEPS[p.dtype.itemsize]):
        a, g, before = a + b / c, e / c, a
        b = 2 * (b + before * g)
        c = g + c
        em = kc + em
        kc = 2 * xp.sqrt(e)
        e = kc * em
    return (math.pi / 2) * (b + a * em) / (em * (em + c))


def _series(xp: Any, m: Any, coefficients: Sequence[float], order: int) -> Any:
    """The derivative of a power series of some order."""
    out = xp.zeros_like(m)
    for k in reversed(range(order, len(coefficients))):
        out = out * m + coefficients[k] * math.perm(k, order)
    return out


def _binomials(count: int) -> list[float]:
    """Of the power series of the integrals, pi / 2 times the squares of (1/2)(3/2)...(k - 1/2) / k!."""
    found = [math.pi / 2]
    for k in range(1, count):
        found.append(found[-1] * ((k - 0.5) / k) ** 2)
    return found


def _derivative(xp: Any, p: Any, low: Any, first: Any, order: int, squares: Any, slopes: Any, series: Any) -> Any:
    """By the recurrence that follows from the differential equation, and by the power series where it cancels."""
    m = 1 - p
    small = abs(m) <= 0.5
    far = xp.where(small, xp.ones((), p.dtype), m)
    before, here = low, first
    for n in range(order - 1):
        before, here = here, (squares(n) * before - slopes(n, m, p) * here) / (far * p)
    count = _TERMS[p.dtype.itemsize] + 4 * order
    return xp.where(small, _series(xp, xp.where(small, m, xp.zeros((), p.dtype)), series(count), order), here)


def _inside(xp: Any, p: Any) -> tuple[Any, Any]:
    real_only("ellipk", p)
    inside = (p > 0) & (p < xp.inf)
    return inside, xp.where(inside, p, xp.ones((), p.dtype))


def _outside(xp: Any, p: Any, inside: Any, out: Any, at_zero: float, at_infinity: float) -> Any:
    ends = xp.where(p == 0, at_zero, xp.where(p == xp.inf, at_infinity, xp.nan))
    return xp.where(inside, out, ends.astype(p.dtype))


@widened
def _ellipk(xp: Any, p: Any, *, order: int) -> Any:
    inside, safe = _inside(xp, p)
    low = _cel(xp, safe, 1, 1)
    if order:
        first = _cel(xp, safe, 1, 0) / (2 * safe)
        out = first if order == 1 else _derivative(
            xp, safe, low, first, order, lambda n: (n + 0.5) ** 2, lambda n, m, p: (n + 1) * (1 - 2 * m), _binomials
        )  # fmt: skip
    return _outside(xp, p, inside, out if order else low, math.inf, 0.0)


@widened
def _ellipe(xp: Any, p: Any, *, order: int) -> Any:
    inside, safe = _inside(xp, p)
    low = _cel(xp, safe, 1, safe)
    if order:
        first = -_cel(xp, safe, 0, 1) / 2
        out = first if order == 1 else _derivative(
            xp, safe, low, first, order, lambda n: n * n - 0.25, lambda n, m, p: n * (1 - 2 * m) + p,
            lambda count: [-c / (2 * k - 1) for k, c in enumerate(_binomials(count))],
        )  # fmt: skip
    return _outside(xp, p, inside, out if order else low, -math.inf if order else 1.0, 0.0 if order else math.inf)


_ORDERS = Samples([(((3, 2),), {"order": 0}), (((0, 2),), {"order": 0})], low=0.2, high=1.8)

ellipk_op: Op = elementwise(
    "ellipk", _ellipk, lambda p, order: -bind(ellipk_op, (p,), (order + 1,)), samples=_ORDERS,
    doc="The derivative of some order in m of the complete elliptic integral of the first kind, at m = 1 - p.",
)  # fmt: skip
ellipe_op: Op = elementwise(
    "ellipe", _ellipe, lambda p, order: -bind(ellipe_op, (p,), (order + 1,)), samples=_ORDERS,
    doc="The derivative of some order in m of the complete elliptic integral of the second kind, at m = 1 - p.",
)  # fmt: skip


@rounded_once
def ellipk(m: Any) -> Any:
    """The complete elliptic integral of the first kind, of 1 / sqrt(1 - m sin^2 t) from 0 to pi / 2.

    `m` is the parameter (the square of the modulus), at most 1, where it is inf; smooth at 0.

    >>> import functad as fd
    >>> round(fd.special.ellipk(0.5).item(), 5), round(fd.grad(fd.special.ellipk)(0.0).item(), 5)
    (1.85407, 0.3927)
    """
    return ellipkm1(_rest("ellipk", m))


def ellipkm1(p: Any) -> Any:
    """`ellipk(1 - p)`, exact near p = 0, where it is inf.

    >>> import functad as fd
    >>> round(fd.special.ellipkm1(1e-20).item(), 2)
    24.41
    """
    (p,) = operands("ellipkm1", "float", (p,))
    return bind(ellipk_op, (p,), (0,))


@rounded_once
def ellipe(m: Any) -> Any:
    """The complete elliptic integral of the second kind, of sqrt(1 - m sin^2 t) from 0 to pi / 2.

    >>> import functad as fd
    >>> round(fd.special.ellipe(0.5).item(), 5), fd.special.ellipe(1.0).item()
    (1.35064, 1.0)
    """
    return bind(ellipe_op, (_rest("ellipe", m),), (0,))


def _rest(where: str, m: Any) -> Any:
    (m,) = operands(where, "float", (m,))
    return 1 - m


# --- Faddeeva's function


def _wofz(xp: Any, z: Any) -> Any:
    out = scipy.special.wofz(z) if xp is np else jax.scipy.special.wofz(z)
    return out.astype(z.dtype)


wofz_op: Op = elementwise(
    "wofz", _wofz, lambda z, out: -2 * z * out + 2j / math.sqrt(math.pi),
    samples=Samples(make=lambda rng: [((rng.uniform(-2, 2, s) + 1j * rng.uniform(-1, 2, s),), {}) for s in ((3, 2), ())]),
    doc="exp(-z^2) erfc(-i z) of complex numbers.",
)  # fmt: skip


def wofz(z: Any) -> Any:
    """Faddeeva's function exp(-z^2) erfc(-i z), complex.

    >>> import functad as fd
    >>> fd.special.wofz(0.0).item()
    (1+0j)
    """
    (z,) = operands("wofz", "float", (z,))
    return bind(wofz_op, (z if z.dtype.kind == "c" else z + 0j,))


@rounded_once
def voigt_profile(x: Any, sigma: Any, gamma: Any) -> Any:
    """Voigt's profile: the density at `x` of the sum of a normal and a Cauchy number, of widths `sigma` and `gamma`.

    With `sigma` 0 it is the density of the one, with `gamma` 0 that of the other; with both 0 it is inf at 0 and else 0.

    >>> import functad as fd
    >>> (
    ...     round(fd.special.voigt_profile(0.0, 1.0, 0.0).item(), 4),
    ...     round(fd.special.voigt_profile(0.0, 0.0, 1.0).item(), 4),
    ... )
    (0.3989, 0.3183)
    """
    x, sigma, gamma = operands("voigt_profile", "float", (x, sigma, gamma))
    given = x.dtype
    x, sigma, gamma = (cast(v, np.promote_types(given, np.float32)) for v in (x, sigma, gamma))
    sharp = sigma == 0
    width = where(sharp, 1.0, sigma)
    smooth = wofz((x + 1j * gamma) / (width * math.sqrt(2))).real / (width * math.sqrt(2 * math.pi))
    point = logical_and(x == 0, gamma == 0)
    square = where(point, 1.0, x * x + gamma * gamma)
    cauchy = where(point, float("inf"), gamma / (math.pi * square))
    return cast(where(sharp, cauchy, smooth), given)


# --- the logarithm of a complement


@widened
def _log1mexp(xp: Any, x: Any) -> Any:
    real_only("log1mexp", x)
    near = x < math.log(2)
    one = xp.ones((), x.dtype)
    low, high = xp.where(near, x, one), xp.where(near, one, x)
    return xp.where(near, xp.log(-xp.expm1(-low)), xp.log1p(-xp.exp(-high)))


log1mexp: Op = elementwise(
    "log1mexp", _log1mexp, lambda x: reciprocal(expm1(x)), promote="float", samples=ONE._replace(low=0.2, high=3.0),
    doc="log(1 - exp(-x)) for positive x, exact near 0 and for large x; as in `jax.nn`.",
    example=("round(fd.special.log1mexp(1.0).item(), 4)", "-0.4587"),
)  # fmt: skip
