"""Integrals of waves and of the normal density, hypergeometric functions, Lambert's W, Bessel's Y."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import scipy.special

from functad.dispatch import bind
from functad.errors import ArgumentError, DTypeError
from functad.ops.elementary import cos, erf, exp, real_only, sin, sinc, widened
from functad.ops.halves import rounded_once
from functad.ops.logic import where
from functad.ops.op import Op, Samples
from functad.ops.operand import operands
from functad.ops.rules import ONE, PAIR, cast, elementwise
from functad.ops.special_bessel import bessel_jn_impl, whole_order
from functad.ops.special_gamma import refused

__all__ = [
    "bessel_y0",
    "bessel_y1",
    "bessel_yn",
    "bessel_yn_op",
    "cosine_integral",
    "dawsn",
    "fresnel",
    "fresnel_c",
    "fresnel_s",
    "hyp1f1",
    "hyp1f1_op",
    "lambertw",
    "lambertw_op",
    "owens_t",
    "sici",
    "sine_integral",
]  # fmt: skip


def _of(xp: Any, name: str) -> Any:
    return getattr(scipy.special if xp is np else jax.scipy.special, name)


def _alone(name: str, part: int | None = None) -> Any:
    """A function of one number of SciPy's and JAX's, or one of its results."""
    return widened(lambda xp, x: _of(xp, name)(x) if part is None else _of(xp, name)(x)[part])


dawsn: Op = elementwise(
    "dawsn", _alone("dawsn"), lambda x: 1 - 2 * x * dawsn(x), promote="float", samples=ONE,
    doc="Dawson's integral, exp(-x^2) times the integral of exp(t^2) from 0 to x.",
    example=("round(fd.special.dawsn(1.0).item(), 4)", "0.5381"),
)  # fmt: skip
fresnel_s: Op = elementwise(
    "fresnel_s", _alone("fresnel", 0), lambda x: sin(x * x * (math.pi / 2)), promote="float", samples=ONE,
    doc="The Fresnel integral of sin(pi t^2 / 2) from 0 to x.",
)  # fmt: skip
fresnel_c: Op = elementwise(
    "fresnel_c", _alone("fresnel", 1), lambda x: cos(x * x * (math.pi / 2)), promote="float", samples=ONE,
    doc="The Fresnel integral of cos(pi t^2 / 2) from 0 to x.",
)  # fmt: skip
sine_integral: Op = elementwise(
    "sine_integral", _alone("sici", 0), lambda x: sinc(x / math.pi), promote="float", samples=ONE,
    doc="The integral of sin(t) / t from 0 to x.",
)  # fmt: skip
cosine_integral: Op = elementwise(
    "cosine_integral", _alone("sici", 1), lambda x: cos(x) / x, promote="float",
    samples=ONE._replace(low=0.3, high=3.0),
    doc="Euler's constant plus log(x) plus the integral of (cos(t) - 1) / t from 0 to x, for positive x.",
)  # fmt: skip


@widened
def _owens_t(xp: Any, h: Any, a: Any) -> Any:
    real_only("owens_t", h)
    return _of(xp, "owens_t")(h, a).astype(h.dtype)


owens_t: Op = elementwise(
    "owens_t", _owens_t,
    lambda h, a: exp(-h * h / 2) * erf(a * h / math.sqrt(2)) * (-0.5 / math.sqrt(2 * math.pi)),
    lambda h, a: exp(-h * h * (1 + a * a) / 2) / ((1 + a * a) * (2 * math.pi)),
    promote="float", samples=PAIR,
    doc="Owen's T function: the normal probability of X > h and 0 < Y < a X.",
    example=("round(fd.special.owens_t(1.0, 3.0).item(), 4)", "0.0793"),
)  # fmt: skip


@rounded_once
def fresnel(x: Any) -> tuple[Any, Any]:
    """The Fresnel integrals: the pair of those of sin(pi t^2 / 2) and of cos(pi t^2 / 2), from 0 to x.

    >>> import functad as fd
    >>> s, c = fd.special.fresnel(1.0)
    >>> round(s.item(), 4), round(c.item(), 4)
    (0.4383, 0.7799)
    """
    (x,) = operands("fresnel", "float", (x,))
    return fresnel_s(x), fresnel_c(x)


@rounded_once
def sici(x: Any) -> tuple[Any, Any]:
    """The sine integral and the cosine integral, a pair.

    >>> import functad as fd
    >>> si, ci = fd.special.sici(1.0)
    >>> round(si.item(), 4), round(ci.item(), 4)
    (0.9461, 0.3374)
    """
    (x,) = operands("sici", "float", (x,))
    return sine_integral(x), cosine_integral(x)


# --- Lambert's W


@widened
def _lambertw(xp: Any, x: Any, *, k: int) -> Any:
    """By Halley's method on w - x exp(-w), from the series at the branch point or at infinity.

    On NumPy too: SciPy's is off by 1e-4 where the branches meet.
    """
    if x.dtype.kind == "c":
        raise DTypeError(f"lambertw: takes real numbers, on a real branch; got {x.dtype}.")
    one = xp.ones((), x.dtype)
    end = -math.exp(-1)
    inside = (x >= end) & ((x < 0) | (k == 0)) & (x < xp.inf)
    safe = xp.where(inside & (x != 0), x, one if k == 0 else -0.2 * one)
    root = xp.sqrt(xp.maximum(2 * (math.e * safe + 1), 0))
    if k == 0:
        w = xp.where(safe < 0.5, -1 + root - root * root / 3 + 11 / 72 * root**3, xp.log1p(xp.abs(safe)))
        w = xp.where(safe > 3, xp.log(xp.abs(safe)) - xp.log(xp.log(xp.maximum(safe, 3))), w)
    else:
        low = xp.log(-safe)
        w = xp.where(safe < -0.25, -1 - root - root * root / 3 - 11 / 72 * root**3, low - xp.log(-low))
    for _ in range(8):
        p = safe * xp.exp(-w)
        f, slope = w - p, 1 + p
        safe_slope = xp.where(slope == 0, one, slope)
        step = f / (safe_slope + f * p / (2 * safe_slope))
        w = w - xp.where((slope == 0) | ~xp.isfinite(step), 0 * one, step)
    w = xp.where(safe <= end * (1 - 4 * float(np.finfo(x.dtype).eps)), -one, w)  # a double root: rounding is amplified
    out = xp.where(inside, w, xp.where(x == xp.inf, xp.inf if k == 0 else xp.nan, xp.nan))
    return xp.where(x == 0, 0 * one if k == 0 else -xp.inf * one, out).astype(x.dtype)


lambertw_op: Op = elementwise(
    "lambertw", _lambertw, lambda x, out, k: 1 / (x + exp(out)),
    samples=Samples([(((3, 2),), {"k": 0}), (((),), {"k": 0})], low=-0.3, high=3.0,
                    make=lambda rng: [((rng.uniform(-0.33, -0.05, 3),), {"k": -1})]),
    doc="The w with w exp(w) = x on a real branch: 0 (w >= -1) or -1 (w <= -1).",
)  # fmt: skip


def lambertw(z: Any, k: int = 0) -> Any:
    """Lambert's W function: the real w with w exp(w) = z.

    Args:
        z: real numbers from -1/e on; NaN is given where w would be complex.
        k: the branch, 0 (w >= -1) or -1 (w <= -1, for z < 0).

    >>> import functad as fd
    >>> round(fd.special.lambertw(1.0).item(), 5), fd.grad(fd.special.lambertw)(0.0).item()
    (0.56714, 1.0)
    """
    if k not in (0, -1):
        raise ArgumentError(f"lambertw: the real branches are k=0 and k=-1, got {k!r}.")
    (z,) = operands("lambertw", "float", (z,))
    return bind(lambertw_op, (z,), (int(k),))


# --- the confluent hypergeometric function


def _hyp1f1(xp: Any, a: Any, b: Any, x: Any) -> Any:
    dtype = np.promote_types(x.dtype, np.float32)
    return _of(xp, "hyp1f1")(a.astype(dtype), b.astype(dtype), x.astype(dtype)).astype(x.dtype)


hyp1f1_op: Op = elementwise(
    "hyp1f1", _hyp1f1,
    refused("hyp1f1: there is no derivative in a; take it off the tape with fd.stop_gradient(a)."),
    refused("hyp1f1: there is no derivative in b; take it off the tape with fd.stop_gradient(b)."),
    lambda a, b, x: hyp1f1_op(a + 1, b + 1, x) * (cast(a, x._dtype) / cast(b, x._dtype)),
    promote="same",
    samples=Samples(make=lambda rng: [
        ((np.array([1, 2, 3], np.int32), np.array([2, 3, 2], np.int32), rng.uniform(-2, 2, 3)), {}),
    ]),
    doc="Kummer's confluent hypergeometric function 1F1(a; b; x).",
)  # fmt: skip


def hyp1f1(a: Any, b: Any, x: Any) -> Any:
    """Kummer's confluent hypergeometric function 1F1(a; b; x), differentiable in x.

    >>> import functad as fd
    >>> round(fd.special.hyp1f1(1.0, 1.0, 1.0).item(), 4)
    2.7183
    """
    (_, _, x) = operands("hyp1f1", "float", (a, b, x))
    return hyp1f1_op(a, b, x)


# --- Bessel's Y

_TERMS = 40
_LIMIT = 25.0


@widened
def _yn(xp: Any, x: Any, *, n: int) -> Any:
    """Orders 0 and 1 by Neumann's series of J_2k, summed inside one integral, and by Hankel's series; then upwards."""
    real_only("bessel_yn", x)
    if xp is np:
        with np.errstate(all="ignore"):
            return np.where(x < 0, np.nan, np.where(x == np.inf, 0, scipy.special.yn(n, x))).astype(x.dtype)
    one = xp.ones((), x.dtype)
    large = x > _LIMIT
    near, far = xp.where(large | (x <= 0), one, x), xp.where(large & (x < xp.inf), x, _LIMIT * one)
    count = 2 * _TERMS + int(3 * _LIMIT)
    angles = (np.arange(count) + 0.5) * math.pi / count
    weights = sum((-1) ** k * np.cos(2 * k * angles) / k for k in range(1, _TERMS))
    waves, sines = (xp.asarray(a, x.dtype) for a in (weights, np.sin(angles)))
    j0, j1 = bessel_jn_impl(xp, near, n=0), bessel_jn_impl(xp, near, n=1)
    logs = xp.log(near / 2) + float(np.euler_gamma)
    phase = near[..., None] * sines
    y0 = (2 / math.pi) * logs * j0 - (4 / math.pi) * xp.mean(waves * xp.cos(phase), -1)
    y1 = (2 / math.pi) * (logs * j1 - j0 / near) - (4 / math.pi) * xp.mean(waves * sines * xp.sin(phase), -1)
    orders = []
    for order, low in ((0, y0), (1, y1)):
        even, odd, term = one, xp.zeros((), x.dtype), one
        for k in range(1, 24):
            term = term * (4 * order * order - (2 * k - 1) ** 2) / (8 * k * far)
            sign = -1 if k % 4 >= 2 else 1
            even, odd = (even, odd + sign * term) if k % 2 else (even + sign * term, odd)
        c, s = (xp.cos(far) + xp.sin(far)) / math.sqrt(2), (xp.sin(far) - xp.cos(far)) / math.sqrt(2)
        if order:
            c, s = s, -c
        orders.append(xp.where(large, xp.sqrt(2 / (math.pi * far)) * (s * even + c * odd), low))
    before, here = orders
    at = xp.where(large, far, near)
    for k in range(1, n):
        before, here = here, xp.where(here > -xp.inf, 2 * k / at * here - before, here)
    out = before if n == 0 else here
    return xp.where(x > 0, xp.where(x == xp.inf, 0 * one, out), xp.where(x == 0, -xp.inf, xp.nan)).astype(x.dtype)


def _slope(low: Any, high: Any) -> Any:
    """Half the difference, and inf where the larger one has overflown."""
    large = high == -math.inf
    return where(large, math.inf, (where(large, 0.0, low) - where(large, 0.0, high)) / 2)


bessel_yn_op: Op = elementwise(
    "bessel_yn", _yn,
    lambda x, n: -bind(bessel_yn_op, (x,), (1,)) if n == 0
    else _slope(bind(bessel_yn_op, (x,), (n - 1,)), bind(bessel_yn_op, (x,), (n + 1,))),
    samples=Samples([(((3, 2),), {"n": 0}), (((),), {"n": 2})], low=0.5, high=6.0),  # they compile for long
    doc="The Bessel function of the second kind of order n.",
)  # fmt: skip


def bessel_y0(x: Any) -> Any:
    """The Bessel function of the second kind of order 0, for positive x.

    >>> import functad as fd
    >>> round(fd.special.bessel_y0(1.0).item(), 5)
    0.08826
    """
    return bessel_yn(0, x)


def bessel_y1(x: Any) -> Any:
    """The Bessel function of the second kind of order 1, for positive x.

    >>> import functad as fd
    >>> round(fd.special.bessel_y1(1.0).item(), 5)
    -0.78121
    """
    return bessel_yn(1, x)


def bessel_yn(n: int, x: Any) -> Any:
    """The Bessel function of the second kind of a small whole order n >= 0, for positive x.

    >>> import functad as fd
    >>> round(fd.special.bessel_yn(2, 1.0).item(), 5)
    -1.65068
    """
    return bind(bessel_yn_op, operands("bessel_yn", "float", (x,)), (whole_order("bessel_yn", n, x),))
