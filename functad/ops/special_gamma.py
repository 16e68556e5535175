"""The gamma function and its family: log-gamma, polygamma, zeta, the incomplete ones, beta, factorials."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, NoReturn

import jax
import numpy as np
import scipy.special

from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, DTypeError, NotDifferentiableError
from functad.ops.arithmetic import floor_divide
from functad.ops.elementary import POSITIVE, exp, log, real_only, widened, xlogy
from functad.ops.halves import rounded_once
from functad.ops.hosted import hosted_elements
from functad.ops.logic import logical_and, logical_or, where
from functad.ops.op import Op, Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import PAIR, align_rows, elementwise, nondiff
from functad.ops.special_entropy import xlog1py

__all__ = [
    "beta", "betainc", "betainc_op", "betaln", "binom", "comb", "digamma", "factorial", "gamma", "gammainc", "gammaincc",
    "gammaln", "gammasgn", "multigammaln", "poch", "polygamma", "polygamma_op", "zeta", "zeta_op",
]  # fmt: skip

_MOST = 1 << 12
_TWO = Samples(PAIR.cases, low=0.5, high=4.0)


def refused(message: str) -> Callable[[], NoReturn]:
    """The partial derivative that an op does not have."""

    def partial() -> NoReturn:
        raise NotDifferentiableError(message)

    return partial


# --- implementations


@widened
def _gamma(xp: Any, x: Any) -> Any:
    real_only("gamma", x)
    if xp is np:
        return scipy.special.gamma(x)
    # a product from the interval [1, 2) keeps all digits where exp(log-gamma) would lose some
    steps = xp.clip(xp.floor(x) - 1, 0, 24)
    start = x - steps
    product = xp.ones_like(x)
    for i in range(24):
        product = product * xp.where(i < steps, start + i, xp.ones((), x.dtype))
    sign = _gammasgn(xp, start)
    return xp.where(start == 1, product, sign * xp.exp(jax.lax.lgamma(start)) * product)


@widened
def _gammasgn(xp: Any, x: Any) -> Any:
    if xp is np:
        return scipy.special.gammasgn(x)
    pole = (x <= 0) & (xp.floor(x) == x)
    odd = xp.floor(x) % 2 != 0
    one = xp.ones_like(x)
    signs = xp.where(pole, xp.where(x == 0, xp.copysign(one, x), xp.nan), xp.where((x < 0) & odd, -one, one))
    return xp.where(xp.isnan(x), x, signs)


@widened
def _digamma(xp: Any, x: Any) -> Any:
    value = scipy.special.digamma(x) if xp is np else jax.lax.digamma(x)
    return xp.where((x <= 0) & (xp.floor(x) == x), xp.nan, value).astype(x.dtype)


@widened
def _polygamma(xp: Any, x: Any, *, n: int) -> Any:
    if n == 0:
        return _digamma(xp, x)
    order = xp.full_like(x, n + 1)
    high = _times_factorial(_zeta(xp, order, x), n)
    return high if n % 2 else -high


def _times_factorial(x: Any, n: int) -> Any:
    """x * n!, by factors that an int32 holds, as 13! is none. XLA folds them: inf where n! overflows the dtype."""
    factor = 1
    for k in range(2, n + 1):
        if factor * k > 1 << 24:
            x, factor = x * factor, 1
        factor *= k
    return x * factor if factor > 1 else x


def _alike(impl: Callable[..., Any]) -> Callable[..., Any]:
    """`impl` on arrays of the last one's dtype and of one shape, half types in float32."""
    impl = widened(impl)

    @functools.wraps(impl)
    def call(xp: Any, *xs: Any) -> Any:
        return impl(xp, *xp.broadcast_arrays(*[x.astype(xs[-1].dtype) for x in xs]))

    return call


def _zeta(xp: Any, x: Any, q: Any) -> Any:
    """The Hurwitz zeta function.

    For negative q and whole x by the sum over all integers, 1 / (q + k)**x, which repeats in q, less
    the part of it that is a zeta function of a positive argument.
    """
    positive = q > 0
    zeta = scipy.special.zeta if xp is np else jax.lax.zeta
    direct = zeta(x, xp.where(positive, q, 1 - q))
    if xp is np:
        return direct if positive.all() else _reflected(xp, zeta, x, q, direct)
    return jax.lax.cond(xp.all(positive), lambda: direct, lambda: _reflected(xp, zeta, x, q, direct))


_PAIRS = 6


def _reflected(xp: Any, zeta: Any, x: Any, q: Any, direct: Any) -> Any:
    """The sum over all integers by pairs on both sides of 0: half way between two integers they cancel for odd x."""
    one = xp.ones((), q.dtype)
    positive = q > 0
    even = xp.floor(x) % 2 == 0
    sign = xp.where(even, one, -one)
    offset = xp.where(positive, one / 4, q - xp.round(q))
    f = xp.abs(offset)  # zeta(x, 1 - f) and zeta(x, 1 + f) change places with the sign of the offset
    safe = xp.where(f == 0, one, f)
    whole = zeta(x, _PAIRS + f) + sign * zeta(x, _PAIRS + 1 - f)
    for k in reversed(range(_PAIRS)):
        near, far = (safe if k == 0 else k + f), k + 1 - f
        tail = xp.power(far, -x)
        apart = tail * xp.expm1(x * xp.log1p((1 - 2 * f) / near))  # near**-x - far**-x
        whole = whole + xp.where(even, 2 * tail + apart, apart)
    whole = xp.where(offset < 0, sign, one) * whole
    reflected = xp.where(xp.floor(x) == x, whole - sign * direct, xp.nan)
    return xp.where(positive | xp.isnan(q), direct, xp.where(offset == 0, xp.inf, reflected)).astype(q.dtype)


def _incomplete(on_host: Any, on_jax: Any) -> Any:
    return _alike(lambda xp, a, x: (on_host if xp is np else on_jax)(a, x))


@_alike
def _betainc(xp: Any, a: Any, b: Any, x: Any) -> Any:
    return (scipy.special if xp is np else jax.lax).betainc(a, b, x)


@widened
def _betaln(xp: Any, x: Any, y: Any) -> Any:
    """By Stirling's series where an argument is large: there the log-gammas would cancel."""
    if xp is np:
        return scipy.special.betaln(x, y)
    one = xp.ones((), x.dtype)
    small, large = xp.minimum(x, y), xp.maximum(x, y)
    log_gamma = jax.lax.lgamma
    far, both = (small > 0) & (large >= 8), small >= 8
    plain = log_gamma(small) + log_gamma(large) - log_gamma(small + large)
    b = xp.where(far, large, 8 * one)
    a = xp.where(both, small, 8 * one)
    twice = (a - 0.5) * xp.log(a / (a + b)) - b * xp.log1p(a / b) - 0.5 * xp.log(b) + 0.5 * math.log(2 * math.pi)
    twice = twice + _stirling(a) + _stirling(b) - _stirling(a + b)
    a = xp.where(far, small, one)
    once = log_gamma(a) - (a + b - 0.5) * xp.log1p(a / b) - a * xp.log(b) + a + _stirling(b) - _stirling(a + b)
    return xp.where(both, twice, xp.where(far, once, plain))


def _stirling(x: Any) -> Any:
    """What Stirling's formula leaves of log-gamma, for x of at least 8."""
    squared, out = 1 / (x * x), 0.0
    for c in (1 / 156, -691 / 360360, 1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12):
        out = out * squared + c
    return out / x


@_alike
def _gammainc_slope(xp: Any, a: Any, x: Any) -> Any:
    return jax.lax.igamma_grad_a(a, x)


def _floats(*xs: Any) -> Any:
    """Every one in the dtype of the last; an op may be run on whole numbers."""
    return tuple([x if x.dtype == xs[-1].dtype else x.astype(xs[-1].dtype) for x in xs])


def _zeta_slope(x: Any, q: Any) -> Any:
    x, q = _floats(x, q)
    return -x * zeta_op(x + 1, q)


def _gamma_density(a: Any, x: Any) -> Any:
    """The derivative of gammainc in x."""
    a, x = _floats(a, x)
    return exp(xlogy(a - 1, x) - x - gammaln(a))


def _gammainc_mixed(a: Any, x: Any) -> Any:
    """The derivative of gammainc in a and x."""
    a, x = _floats(a, x)
    return _gamma_density(a, x) * (log(x) - digamma(a))


def _beta_density(a: Any, b: Any, x: Any) -> Any:
    """The derivative of betainc in x."""
    a, b, x = _floats(a, b, x)
    return exp(xlogy(a - 1, x) + xlog1py(b - 1, -x) - betaln(a, b))


# --- the gamma function and its logarithm's derivatives


def _whole_first(rng: np.random.Generator, count: int) -> list[Any]:
    """Inputs whose first ones are whole numbers: in those there is no (second) derivative."""
    return [
        ((*[rng.integers(2, 5, shape).astype(np.int32) for _ in range(count)], rng.uniform(0.2, 0.9, shape)), {})
        for shape in ((3, 2), (), (0, 2))
    ]


gammaln = elementwise(
    "gammaln", widened(lambda xp, x: scipy.special.gammaln(np.where(x == -np.inf, 0, x)) if xp is np else jax.lax.lgamma(x)),
    lambda x: digamma(x), promote="float", samples=POSITIVE, doc="log |gamma(x)|.",
    example=("round(fd.special.gammaln(5.0).item(), 4)", "3.1781"),
)  # fmt: skip
gammasgn = nondiff(
    "gammasgn", _gammasgn, promote="float", samples=POSITIVE._replace(low=-2.0, kinks=(-1.0, 0.0)),
    batch=align_rows, doc="The sign of gamma(x).",
    example=("fd.special.gammasgn(-0.5).item()", "-1.0"),
)  # fmt: skip
gamma: Op = elementwise(
    "gamma", _gamma, lambda x, out: out * digamma(x), promote="float", samples=POSITIVE._replace(high=4.0),
    doc="The gamma function.",
    example=("round(fd.special.gamma(5.0).item(), 4)", "24.0"),
)  # fmt: skip
digamma: Op = elementwise(
    "digamma", _digamma, lambda x: bind(polygamma_op, (x,), (1,)), promote="float", samples=POSITIVE,
    doc="The derivative of gammaln; NaN at its poles 0, -1, -2, ...",
    example=("round(fd.special.digamma(1.0).item(), 4)", "-0.5772"),
)  # fmt: skip
polygamma_op: Op = elementwise(
    "polygamma", _polygamma, lambda x, n: bind(polygamma_op, (x,), (n + 1,)),
    samples=Samples([(((3, 2),), {"n": 1}), (((),), {"n": 2}), (((0, 2),), {"n": 0})], low=0.5, high=4.0),
    doc="The n-th derivative of digamma.",
)  # fmt: skip
zeta_op: Op = elementwise(
    "zeta", _alike(_zeta),
    refused("zeta: there is no derivative in x, its first argument; take x off the tape with fd.stop_gradient(x)."),
    _zeta_slope,
    promote="same", samples=Samples(make=lambda rng: _whole_first(rng, 1)),
    doc="The Hurwitz zeta function, the sum of 1 / (q + k)**x over k = 0, 1, 2, ...",
)  # fmt: skip


def polygamma(n: Any, x: Any) -> Any:
    """The n-th derivative of digamma, for n = 0, 1, 2, ... (an int, or a tensor of ints); right for negative x too.

    >>> import functad as fd
    >>> round(fd.special.polygamma(1, 1.0).item(), 5)
    1.64493
    """
    try:
        order = operator.index(n) if not isinstance(n, Handle) else None
    except TypeError:
        order, n = None, operand(n, x if isinstance(x, Handle) else None, where="polygamma")
    if order is not None:
        if order < 0:
            raise ArgumentError(f"polygamma: n counts derivatives and is at least 0, got {order}.")
        if order > _MOST:
            raise ArgumentError(f"polygamma: n is at most {_MOST}, got {order}: no float holds n! by far.")
        return bind(polygamma_op, operands("polygamma", "float", (x,)), (order,))
    if n.dtype.kind not in "iu":
        raise DTypeError(
            f"polygamma: n counts derivatives: an int or a tensor of ints, got {n.dtype}; write n.astype(int)."
        )
    (x,) = operands("polygamma", "float", (x,))
    order = n.astype(x.dtype)
    sign = 1 - 2 * (n + 1).astype(x.dtype).__mod__(2)
    high = sign * gamma(order + 1) * bind(zeta_op, (n + 1, x))
    return where(n == 0, digamma(x), high)


def zeta(x: Any, q: Any = 1.0) -> Any:
    """The Hurwitz zeta function, the sum of 1 / (q + k)**x over k >= 0; Riemann's without `q`.

    For negative `q` and whole `x` too (`polygamma` needs it); NaN for x < 1. It has a derivative in `q` only.

    >>> import functad as fd
    >>> round(fd.special.zeta(2.0).item(), 5)
    1.64493
    """
    return bind(zeta_op, operands("zeta", "float", (x, q)))


# --- the incomplete gamma functions


_SECOND_IN_A = (
    "gammainc: the second derivative in a has no closed form and is not provided; the first in a, all in x and the mixed "
    "one are. Take a off the tape with fd.stop_gradient(a) where it is not meant."
)
gammainc = elementwise(
    "gammainc", _incomplete(scipy.special.gammainc, jax.lax.igamma),
    lambda a, x: gammainc_slope(*_floats(a, x)), _gamma_density,
    promote="float", samples=Samples(make=lambda rng: _whole_first(rng, 1)),
    doc="The regularised lower incomplete gamma function, in a and x.",
    example=("round(fd.special.gammainc(1.0, 3.0).item(), 4)", "0.9502"),
)  # fmt: skip
gammaincc = elementwise(
    "gammaincc", _incomplete(scipy.special.gammaincc, jax.lax.igammac),
    lambda a, x: -gammainc_slope(*_floats(a, x)), lambda a, x: -_gamma_density(a, x),
    promote="float", samples=Samples(make=lambda rng: _whole_first(rng, 1)),
    doc="The regularised upper incomplete gamma function, 1 - gammainc(a, x).",
    example=("round(fd.special.gammaincc(1.0, 3.0).item(), 4)", "0.0498"),
)  # fmt: skip
gammainc_slope: Op = elementwise(
    "gammainc_slope", _gammainc_slope, refused(_SECOND_IN_A),
    _gammainc_mixed,
    promote="float", numpy_impl=hosted_elements(_gammainc_slope),
    samples=Samples(make=lambda rng: _whole_first(rng, 1)), doc="The derivative of gammainc in a.",
)  # fmt: skip


# --- the beta functions

betaln = elementwise(
    "betaln", _betaln,
    lambda x, y: digamma(x) - digamma(x + y), lambda x, y: digamma(y) - digamma(x + y),
    promote="float", samples=_TWO, doc="log |beta(x, y)|.",
    example=("round(fd.special.betaln(1.0, 3.0).item(), 4)", "-1.0986"),
)  # fmt: skip


@rounded_once
def beta(a: Any, b: Any) -> Any:
    """The beta function, gamma(a) gamma(b) / gamma(a + b).

    >>> import functad as fd
    >>> round(fd.special.beta(2.0, 3.0).item(), 5)
    0.08333
    """
    a, b = operands("beta", "float", (a, b))
    return gammasgn(a) * gammasgn(b) * gammasgn(a + b) * exp(betaln(a, b))


_IN_A_OR_B = (
    "betainc: there is no derivative in {}, only in x; take it off the tape with fd.stop_gradient({}), or write the "
    "integral out."
)
betainc_op: Op = elementwise(
    "betainc", _betainc,
    refused(_IN_A_OR_B.format("a", "a")), refused(_IN_A_OR_B.format("b", "b")),
    _beta_density,
    promote="same", samples=Samples(make=lambda rng: _whole_first(rng, 2)),
    doc="The regularised incomplete beta function, in a, b and x.",
)  # fmt: skip


def betainc(a: Any, b: Any, x: Any) -> Any:
    """The regularised incomplete beta function, for x in [0, 1]; it has a derivative in `x` only.

    >>> import functad as fd
    >>> round(fd.special.betainc(2.0, 3.0, 0.5).item(), 5)
    0.6875
    """
    return bind(betainc_op, operands("betainc", "float", (a, b, x)))


# --- factorials


@rounded_once
def factorial(n: Any, exact: bool = False) -> Any:
    """n! = gamma(n + 1), as floats; 0 for negative n. `exact=True` (whole numbers of any size) is refused.

    >>> import functad as fd
    >>> fd.special.factorial(4).item()
    24.0
    """
    _refuse_exact(exact, "factorial", "math.factorial")
    (n,) = operands("factorial", "float", (n,))
    return where(n < 0, 0.0, gamma(where(n < 0, 0.0, n) + 1))


@rounded_once
def poch(z: Any, m: Any) -> Any:
    """The rising factorial gamma(z + m) / gamma(z).

    >>> import functad as fd
    >>> round(fd.special.poch(2.0, 3.0).item(), 3)
    24.0
    """
    z, m = operands("poch", "float", (z, m))
    out = gammasgn(z + m) * gammasgn(z) * exp(gammaln(z + m) - gammaln(z))
    pole = logical_and(z <= 0, floor_divide(z, 1) == z)
    return where(logical_and(m == 0, pole), 1.0, out)  # the product of no factors, also where gamma has a pole


@rounded_once
def binom(x: Any, y: Any) -> Any:
    """The binomial coefficient of real numbers, 1 / ((x + 1) beta(x - y + 1, y + 1)).

    >>> import functad as fd
    >>> round(fd.special.binom(5.0, 2.0).item(), 4)
    10.0
    """
    x, y = operands("binom", "float", (x, y))
    outside = logical_and(x >= 0, logical_or(y < 0, y > x))
    outside = logical_and(outside, floor_divide(x, 1) == x)
    outside = logical_and(outside, floor_divide(y, 1) == y)
    x, y = where(outside, 1.0, x), where(outside, 1.0, y)
    signs = gammasgn(x + 1) * gammasgn(y + 1) * gammasgn(x - y + 1)
    return where(outside, 0.0, signs * exp(gammaln(x + 1) - gammaln(y + 1) - gammaln(x - y + 1)))


@rounded_once
def comb(N: Any, k: Any, *, exact: bool = False, repetition: bool = False) -> Any:  # noqa: N803  # SciPy's name
    """In how many ways `k` of `N` things are taken (each at most once, unless `repetition`); 0 where there is none.

    >>> import functad as fd
    >>> round(fd.special.comb(5, 2).item(), 4)
    10.0
    """
    _refuse_exact(exact, "comb", "math.comb")
    n, k = operands("comb", "float", (N, k))
    n = n + k - 1 if repetition else n
    none = logical_or(logical_or(k > n, k < 0), n < 0)
    n, k = where(none, 1.0, n), where(none, 1.0, k)
    return where(none, 0.0, exp(-betaln(n - k + 1, k + 1)) / (n + 1))


@rounded_once
def multigammaln(a: Any, d: int) -> Any:
    """The logarithm of the multivariate gamma function of dimension `d`; torch calls it mvlgamma.

    >>> import functad as fd
    >>> round(fd.special.multigammaln(3.0, 2).item(), 4)
    1.5502
    """
    try:
        count = operator.index(d)
    except TypeError:
        count = 0
    if count < 1:
        raise ArgumentError(f"multigammaln: the dimension d must be an int of at least 1, got {d!r}.")
    (a,) = operands("multigammaln", "float", (a,))
    steps = operand(np.arange(count) / 2, a, a.dtype)
    return gammaln(a.expand_dims(-1) - steps).sum(-1) + count * (count - 1) / 4 * math.log(math.pi)


def _refuse_exact(exact: bool, where: str, instead: str) -> None:
    if exact:
        raise ArgumentError(f"{where}: exact=True gives Python integers of any size; write {instead} for them.")
