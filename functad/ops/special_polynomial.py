"""Orthogonal polynomials, and special functions that are compositions of others."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

from functad import dtypes
from functad.dispatch import bind
from functad.errors import ArgumentError
from functad.ops.arithmetic import pow, reciprocal, square
from functad.ops.elementary import exp, log, log1p, real_only, sinc, widened
from functad.ops.halves import rounded_once
from functad.ops.logic import isinf, where
from functad.ops.op import Samples
from functad.ops.operand import operands
from functad.ops.rules import cast, elementwise, zeros_like_op
from functad.ops.special_integral import exprel_op, log1p_ratio

__all__ = [
    "boxcox", "boxcox1p", "chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v",
    "chebyshev_polynomial_w", "hermite_polynomial_h", "hermite_polynomial_he", "inv_boxcox", "inv_boxcox1p",
    "laguerre_polynomial_l", "legendre_polynomial_p", "shifted_chebyshev_polynomial_t",
    "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w",
    "spherical_bessel_j0",
]  # fmt: skip

_MOST = 1 << 16

Step = Callable[[int, Any, Any, Any], Any]


def _polynomial(where_: str, x: Any, n: Any, first: Callable[[Any], Any], step: Step) -> Any:
    """The n-th polynomial by recurrence: that of degree 0 is 1, `step(k, x, p_k, p_(k-1))` is that of degree k + 1."""
    try:
        degree = operator.index(n)
    except TypeError:
        degree = -1
    if degree < 0:
        raise ArgumentError(f"{where_}: the degree n must be an int of at least 0, got {n!r}.")
    if degree > _MOST:
        raise ArgumentError(f"{where_}: the recurrence takes a step for each degree, and at most {_MOST}, got n={n}.")
    (given,) = operands(where_, "float", (x,))
    x = cast(given, dtypes.accumulator(given._dtype))  # half types round once
    before, here = bind(zeros_like_op, (x,)) + 1, first(x)
    if degree == 0:
        return cast(before, given._dtype)
    for k in range(1, degree):
        before, here = here, step(k, x, here, before)
    return cast(here, given._dtype)


def _chebyshev(k: int, x: Any, here: Any, before: Any) -> Any:
    return 2 * x * here - before


def chebyshev_polynomial_t(x: Any, n: int) -> Any:
    """The Chebyshev polynomial of the first kind of degree n: cos(n t) at x = cos(t). As in torch.

    >>> import functad as fd
    >>> fd.special.chebyshev_polynomial_t(0.5, 3).item(), fd.grad(fd.special.chebyshev_polynomial_t)(1.0, 3).item()
    (-1.0, 9.0)
    """
    return _polynomial("chebyshev_polynomial_t", x, n, lambda x: x, _chebyshev)


def chebyshev_polynomial_u(x: Any, n: int) -> Any:
    """The Chebyshev polynomial of the second kind of degree n: sin((n + 1) t) / sin(t) at x = cos(t).

    >>> import functad as fd
    >>> fd.special.chebyshev_polynomial_u(1.0, 3).item()
    4.0
    """
    return _polynomial("chebyshev_polynomial_u", x, n, lambda x: 2 * x, _chebyshev)


def chebyshev_polynomial_v(x: Any, n: int) -> Any:
    """The Chebyshev polynomial of the third kind of degree n: cos((n + 1/2) t) / cos(t / 2) at x = cos(t).

    >>> import functad as fd
    >>> fd.special.chebyshev_polynomial_v(1.0, 3).item()
    1.0
    """
    return _polynomial("chebyshev_polynomial_v", x, n, lambda x: 2 * x - 1, _chebyshev)


def chebyshev_polynomial_w(x: Any, n: int) -> Any:
    """The Chebyshev polynomial of the fourth kind of degree n: sin((n + 1/2) t) / sin(t / 2) at x = cos(t).

    >>> import functad as fd
    >>> fd.special.chebyshev_polynomial_w(1.0, 3).item()
    7.0
    """
    return _polynomial("chebyshev_polynomial_w", x, n, lambda x: 2 * x + 1, _chebyshev)


def _shifted(name: str, fn: Callable[[Any, int], Any], at_one: float) -> Callable[[Any, int], Any]:
    def shifted(x: Any, n: int) -> Any:
        (x,) = operands(name, "float", (x,))
        return fn(2 * x - 1, n)

    shifted.__name__ = shifted.__qualname__ = name
    about = f"`{fn.__name__}` at 2 x - 1, for x between 0 and 1: orthogonal there with the weight moved along (as in torch)."
    shifted.__doc__ = f"{about}\n\n>>> import functad as fd\n>>> fd.special.{name}(1.0, 3).item()\n{at_one}\n"
    return rounded_once(shifted)


shifted_chebyshev_polynomial_t = _shifted("shifted_chebyshev_polynomial_t", chebyshev_polynomial_t, 1.0)
shifted_chebyshev_polynomial_u = _shifted("shifted_chebyshev_polynomial_u", chebyshev_polynomial_u, 4.0)
shifted_chebyshev_polynomial_v = _shifted("shifted_chebyshev_polynomial_v", chebyshev_polynomial_v, 1.0)
shifted_chebyshev_polynomial_w = _shifted("shifted_chebyshev_polynomial_w", chebyshev_polynomial_w, 7.0)


def hermite_polynomial_h(x: Any, n: int) -> Any:
    """The (physicists') Hermite polynomial of degree n, orthogonal with the weight exp(-x^2).

    >>> import functad as fd
    >>> fd.special.hermite_polynomial_h(2.0, 2).item()
    14.0
    """
    return _polynomial("hermite_polynomial_h", x, n, lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * k * q)


def hermite_polynomial_he(x: Any, n: int) -> Any:
    """The (probabilists') Hermite polynomial of degree n, orthogonal with the weight exp(-x^2 / 2).

    >>> import functad as fd
    >>> fd.special.hermite_polynomial_he(2.0, 2).item()
    3.0
    """
    return _polynomial("hermite_polynomial_he", x, n, lambda x: x, lambda k, x, p, q: x * p - k * q)


def laguerre_polynomial_l(x: Any, n: int) -> Any:
    """The Laguerre polynomial of degree n, orthogonal with the weight exp(-x) on x >= 0.

    >>> import functad as fd
    >>> fd.special.laguerre_polynomial_l(2.0, 2).item()
    -1.0
    """
    return _polynomial(
        "laguerre_polynomial_l", x, n, lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)
    )


def legendre_polynomial_p(x: Any, n: int) -> Any:
    """The Legendre polynomial of degree n, orthogonal on [-1, 1].

    >>> import functad as fd
    >>> fd.special.legendre_polynomial_p(2.0, 2).item(), fd.grad(fd.special.legendre_polynomial_p)(1.0, 2).item()
    (5.5, 3.0)
    """
    return _polynomial(
        "legendre_polynomial_p", x, n, lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)
    )


@rounded_once
def spherical_bessel_j0(x: Any) -> Any:
    """The spherical Bessel function of the first kind of order 0, sin(x) / x; smooth at 0, and 0 at infinity.

    >>> import functad as fd
    >>> fd.special.spherical_bessel_j0(0.0).item()
    1.0
    """
    (x,) = operands("spherical_bessel_j0", "float", (x,))
    return where(isinf(x), 0.0, sinc(x / math.pi))


@widened
def _boxcox(xp: Any, x: Any, lmbda: Any, *, plus_one: bool) -> Any:
    real_only("boxcox", x)
    y = (xp.log1p if plus_one else xp.log)(x)
    power = lmbda * y
    none = (lmbda == 0) | (xp.abs(power) < xp.finfo(x.dtype).eps / 4)
    return xp.where(none, y, xp.expm1(power) / xp.where(none, xp.ones((), x.dtype), lmbda))


def _boxcox_rate(x: Any, lmbda: Any, plus_one: bool) -> Any:
    """The derivative in lmbda: the square of the logarithm times a smooth function, and its limit where that is -inf."""
    none = x == (-1 if plus_one else 0)
    y = (log1p if plus_one else log)(where(none, 1.0, x))
    limit = where(lmbda > 0, square(reciprocal(where(lmbda > 0, lmbda, 1.0))), 0.0)
    return where(none, limit, square(y) * bind(exprel_op, (lmbda * y,), (1,)))


boxcox_op = elementwise(
    "boxcox", _boxcox, lambda x, lmbda, plus_one: pow(x + 1 if plus_one else x, lmbda - 1), _boxcox_rate,
    promote="float", doc="((x + plus_one)**lmbda - 1) / lmbda, and the logarithm where lmbda is 0.",
    samples=Samples([(((3, 2), (3, 2)), {"plus_one": False}), (((2,), ()), {"plus_one": True})], low=0.3, high=2.0),
)  # fmt: skip


def boxcox(x: Any, lmbda: Any) -> Any:
    """The Box-Cox transform (x**lmbda - 1) / lmbda, and log(x) where lmbda is 0; smooth there. For x >= 0.

    >>> import functad as fd
    >>> fd.special.boxcox(3.0, 1.0).item(), round(fd.grad(fd.special.boxcox, argnums=1)(1.0, 0.0).item(), 4)
    (2.0, 0.0)
    """
    return bind(boxcox_op, operands("boxcox", "float", (x, lmbda)), (False,))


def boxcox1p(x: Any, lmbda: Any) -> Any:
    """`boxcox(1 + x, lmbda)`, precise for small x.

    >>> import functad as fd
    >>> fd.special.boxcox1p(3.0, 1.0).item()
    3.0
    """
    return bind(boxcox_op, operands("boxcox1p", "float", (x, lmbda)), (True,))


@rounded_once
def inv_boxcox(y: Any, lmbda: Any) -> Any:
    """The x of which y is the `boxcox`: (1 + lmbda y)**(1 / lmbda), and exp(y) where lmbda is 0.

    >>> import functad as fd
    >>> fd.special.inv_boxcox(2.0, 1.0).item()
    3.0
    """
    y, lmbda = operands("inv_boxcox", "float", (y, lmbda))
    return exp(y * log1p_ratio(lmbda * y))


@rounded_once
def inv_boxcox1p(y: Any, lmbda: Any) -> Any:
    """`inv_boxcox(y, lmbda) - 1`, precise where it is small.

    >>> import functad as fd
    >>> fd.special.inv_boxcox1p(3.0, 1.0).item()
    3.0
    """
    y, lmbda = operands("inv_boxcox1p", "float", (y, lmbda))
    return (y * log1p_ratio(lmbda * y)).expm1()
