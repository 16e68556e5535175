"""The gamma distribution and those made of it. Derivatives are implicit: of the sample at a fixed quantile."""

from __future__ import annotations

import math
import operator
from typing import Any, NoReturn

import jax
import numpy as np

from functad import dtypes, ops
from functad.creation import Shape, as_shape
from functad.device import Device
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, NotDifferentiableError
from functad.ops.elementary import widened
from functad.ops.hosted import hosted, hosted_elements, padded
from functad.ops.op import Samples
from functad.ops.rules import custom, elementwise, product, unbroadcast
from functad.random.continuous import normal
from functad.random.discrete import rademacher
from functad.random.keys import KEY, noise, parameters, placed, precise, random_op, sampler, split, wrap
from functad.tensor import Tensor


def gamma(key: Any, a: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Gamma numbers of shape parameter `a` and scale 1; differentiable in `a` (once).

    >>> import functad as fd
    >>> mean = lambda a: fd.random.gamma(fd.random.key(0), a, (10000,)).mean()
    >>> [round(x.item(), 1) for x in fd.value_and_grad(mean)(4.0)]
    [4.0, 1.0]
    """
    drawn = parameters("gamma", key, shape, dtype, a)
    return placed(bind(_gamma_op, (drawn.key, *drawn.params), (drawn.shape,)), device)


def loggamma(key: Any, a: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Logarithms of gamma numbers, which for small `a` would underflow; differentiable in `a` (once).

    >>> import functad as fd
    >>> x = fd.random.loggamma(fd.random.key(0), 0.001, (10000,))
    >>> bool(fd.numpy.isfinite(x).all()), x.min().item() < -200
    (True, True)
    """
    drawn = parameters("loggamma", key, shape, dtype, a)
    return placed(bind(_loggamma_op, (drawn.key, *drawn.params), (drawn.shape,)), device)


def beta(
    key: Any, a: Any, b: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Beta numbers, between 0 and 1; differentiable in `a` and `b` (once).

    >>> import functad as fd
    >>> x = fd.random.beta(fd.random.key(0), 1.0, 3.0, (10000,))
    >>> 0 <= x.min().item() < x.max().item() <= 1, round(x.mean().item(), 2)
    (True, 0.25)
    """
    (key, (a, b), sizes, wanted) = parameters("beta", key, shape, dtype, a, b)
    first, second = split(key)
    log_a, log_b = loggamma(first, a, sizes, wanted), loggamma(second, b, sizes, wanted)
    top = ops.stop_gradient(ops.maximum(log_a, log_b))
    one, other = ops.exp(log_a - top), ops.exp(log_b - top)
    return placed(one / (one + other), device)


def dirichlet(
    key: Any, alpha: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Points of the simplex, along the last axis of `alpha`; differentiable in `alpha` (once).

    `shape` is that of the batch: the result has shape `shape + alpha.shape[-1:]`. Raises `ArgumentError` for a number.

    >>> import functad as fd
    >>> x = fd.random.dirichlet(fd.random.key(0), [1.0, 3.0, 6.0], (1000,))
    >>> x.shape, [round(m, 1) for m in x.mean(0).tolist()]
    ((1000, 3), [0.1, 0.3, 0.6])
    """
    (key, (alpha,), _, _) = parameters("dirichlet", key, None, dtype, alpha)
    if not alpha.shape:
        raise ArgumentError("random.dirichlet: alpha needs an axis, one entry per corner of the simplex; got a number.")
    batch = alpha.shape[:-1] if shape is None else as_shape(shape, "random.dirichlet")
    return placed(bind(_dirichlet_op, (key, alpha), (batch,)), device)


def chisquare(key: Any, df: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Chi-square numbers of `df` degrees of freedom; differentiable in `df` (once).

    >>> import functad as fd
    >>> round(fd.random.chisquare(fd.random.key(0), 3.0, (10000,)).mean().item())
    3
    """
    (key, (df,), sizes, wanted) = parameters("chisquare", key, shape, dtype, df)
    return placed(ops.exp(loggamma(key, df / 2, sizes, wanted)) * 2, device)


def f(
    key: Any, dfnum: Any, dfden: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Numbers of the F distribution; differentiable in both degrees of freedom (once).

    >>> import functad as fd
    >>> x = fd.random.f(fd.random.key(0), 4.0, 12.0, (10000,))
    >>> x.min().item() >= 0, round(x.mean().item(), 1)
    (True, 1.2)
    """
    drawn = parameters("f", key, shape, dtype, dfnum, dfden)
    return placed(bind(_f_op, (drawn.key, *drawn.params), (drawn.shape,)), device)


def t(key: Any, df: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Student's t numbers of `df` degrees of freedom; differentiable in `df` (once).

    >>> import functad as fd
    >>> x = fd.random.t(fd.random.key(0), 12.0, (10000,))
    >>> round((x * x).mean().item(), 1)  # 12 / 10
    1.2
    """
    (key, (df,), sizes, wanted) = parameters("t", key, shape, dtype, df)
    first, second = split(key)
    half = df / 2
    return placed(normal(first, sizes, wanted) * ops.sqrt(half / gamma(second, half, sizes, wanted)), device)


def generalized_normal(
    key: Any, p: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Numbers with density proportional to exp(-|x|**p); differentiable in `p` (once).

    >>> import functad as fd
    >>> x = fd.random.generalized_normal(fd.random.key(0), 2.0, (10000,))
    >>> round((x * x).mean().item(), 1)
    0.5
    """
    (key, (p,), sizes, wanted) = parameters("generalized_normal", key, shape, dtype, p)
    first, second = split(key)
    size = gamma(first, 1 / p, sizes, wanted) ** (1 / p)
    return placed(rademacher(second, sizes, "int32").astype(wanted) * size, device)


def ball(key: Any, d: int, p: float = 2, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Points uniform in the unit ball of the p-norm in `d` dimensions; the result has shape `shape + (d,)`.

    >>> import functad as fd
    >>> x = fd.random.ball(fd.random.key(0), 3, shape=(100,))
    >>> x.shape, x.norm(axis=-1).max().item() <= 1
    ((100, 3), True)
    """
    try:
        count, power = operator.index(d), float(p)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"random.ball: d must be an int and p a number, got {d!r} and {p!r}.") from None
    return noise(_ball_op, "ball", key, shape, dtype, device, count, power)


# --- ops


def _refused() -> NoReturn:
    raise NotDifferentiableError(
        "random.gamma: a second derivative in the shape parameter has no closed form and is not provided (nor for beta, "
        "dirichlet, chisquare, f, t and generalized_normal, which are made of gamma numbers). Differentiate once, or take "
        "the parameter off one of the tapes with fd.stop_gradient."
    )


def _slope(xp: Any, a: Any, x: Any) -> Any:
    a, x = xp.broadcast_arrays(a.astype(x.dtype), x)
    return jax.lax.random_gamma_grad(a, x)


def _log_slope(xp: Any, a: Any, x: Any) -> Any:
    a, x = xp.broadcast_arrays(a.astype(x.dtype), x)
    small = x < math.log(float(jax.numpy.finfo(x.dtype).eps)) - 2
    safe = xp.where(small, xp.zeros((), x.dtype), x)
    # where the sample is tiny its distribution function is x**a / gamma(a + 1)
    tail = (jax.lax.digamma(a + 1) - x) / a
    return xp.where(small, tail, jax.lax.random_gamma_grad(a, xp.exp(safe)) / xp.exp(safe))


def _parameters(rng: np.random.Generator) -> Any:
    return [((KEY, rng.uniform(0.5, 3, (2,))), {"shape": (3, 2)})]  # one: its compilation takes seconds


def _two_parameters(rng: np.random.Generator) -> Any:
    return [((*inputs, rng.uniform(0.5, 3)), params) for inputs, params in _parameters(rng)]


def _slopes(low: float) -> Samples:
    def make(rng: np.random.Generator) -> Any:
        return [((rng.integers(2, 5, s).astype(np.int32), rng.uniform(low, 2, s)), {}) for s in ((2,), (0, 2))]

    return Samples(make=make)


def _curve(a: Any, x: Any, out: Any) -> Any:
    """How the derivative of a gamma number changes with the number."""
    a = a.astype(x.dtype)
    return ops.digamma(a) - ops.log(x) - out * ((a - 1) / x - 1)


def _log_curve(a: Any, x: Any) -> Any:
    a = a.astype(x.dtype)
    return ops.digamma(a) - x - loggamma_slope(a, x) * (a - ops.exp(x))


def _gamma_rule(a: Any, out: Any) -> Any:
    return gamma_slope(a, out)


def _loggamma_rule(a: Any, out: Any) -> Any:
    return loggamma_slope(a, out)


gamma_slope = elementwise(
    "gamma_slope", widened(_slope), _refused, _curve, promote="float", numpy_impl=hosted_elements(widened(_slope)),
    samples=_slopes(0.3), doc="The derivative of a gamma number x in the shape parameter a.",
)  # fmt: skip
loggamma_slope = elementwise(
    "loggamma_slope", widened(_log_slope), _refused, _log_curve, promote="float", numpy_impl=hosted_elements(widened(_log_slope)),
    samples=_slopes(-1.5), doc="The derivative of the logarithm x of a gamma number in the shape parameter a.",
)  # fmt: skip


def _f(xp: Any, key: Any, dfnum: Any, dfden: Any, *, shape: tuple[int, ...]) -> Any:
    above, below = xp.broadcast_to(dfnum, shape), xp.broadcast_to(dfden, shape)  # JAX's own does not broadcast
    return jax.random.f(wrap(key), above, below, shape, dfnum.dtype)


def _chisquare_rate(key: Any, df: Any, shape: tuple[int, ...]) -> Any:
    """The logarithmic derivative, in df, of a chi-square number over df."""
    half = df / 2
    return loggamma_slope(half, loggamma(key, half, shape, df.dtype)) / 2 - 1 / df


def _gamma(xp: Any, key: Any, a: Any, *, shape: tuple[int, ...]) -> Any:
    return jax.random.gamma(wrap(key), a, shape, a.dtype)


def _loggamma(xp: Any, key: Any, a: Any, *, shape: tuple[int, ...]) -> Any:
    return jax.random.loggamma(wrap(key), a, shape, a.dtype)


def _in_row(draw: Any) -> Any:
    """For NumPy, compiled for powers of two: the n-th number has a key of its own, whatever the shape."""
    call = hosted(precise(draw))

    def impl(xp: Any, key: Any, a: Any, *, shape: tuple[int, ...]) -> Any:
        row = padded(a, shape)
        return call(xp, key, row, shape=row.shape)[: math.prod(shape)].reshape(shape)

    return impl


_gamma_op = sampler(
    "gamma",
    _gamma,
    _gamma_rule,
    numpy_impl=_in_row(_gamma),
    samples=Samples(make=_parameters),
    doc="Gamma numbers.",
)
_loggamma_op = sampler(
    "loggamma",
    _loggamma,
    _loggamma_rule,
    numpy_impl=_in_row(_loggamma),
    samples=Samples(make=_parameters),
    doc="Logarithms of gamma numbers.",
)
_f_op = sampler(
    "f",
    _f,
    lambda key, dfnum, out, shape: out * _chisquare_rate(split(key)[1], dfnum, shape),
    lambda key, dfden, out, shape: -out * _chisquare_rate(split(key)[0], dfden, shape),
    samples=Samples(make=_two_parameters),
    doc="Numbers of the F distribution.",
)


@precise
def _dirichlet(xp: Any, key: Any, alpha: Any, *, batch: tuple[int, ...]) -> Any:
    return jax.random.dirichlet(wrap(key), alpha, batch, alpha.dtype)


def _hosted_dirichlet(xp: Any, key: Any, alpha: Any, *, batch: tuple[int, ...]) -> Any:
    logs = _loggamma_op.numpy_impl(xp, key, alpha, shape=(*batch, alpha.shape[-1]))  # type: ignore[misc]
    parts = xp.exp((logs - logs.max(-1, keepdims=True, initial=-xp.inf)).astype(dtypes.accumulator(alpha.dtype)))
    return (parts / parts.sum(-1, keepdims=True)).astype(alpha.dtype)


def _log_slopes(key: Any, alpha: Any, out: Any) -> Any:
    """The derivatives of the logarithms of the gamma numbers whose shares the result is."""
    return loggamma_slope(alpha, loggamma(key, alpha, out.shape, out.dtype))


def _dirichlet_pull(g: Any, key: Any, alpha: Any, out: Any) -> Any:
    inner = product(g, out)
    return unbroadcast(product(inner - out * inner.sum(-1, keepdims=True), _log_slopes(key, alpha, out)), alpha.shape)


def _dirichlet_push(t: Any, key: Any, alpha: Any, out: Any) -> Any:
    moved = product(product(t, _log_slopes(key, alpha, out)), out)
    return moved - out * moved.sum(-1, keepdims=True)


_dirichlet_op = custom(
    "random_dirichlet", _dirichlet, jvp=[None, _dirichlet_push], vjp=[None, _dirichlet_pull],
    numpy_impl=_hosted_dirichlet,
    samples=Samples(make=lambda rng: [((KEY, rng.uniform(0.5, 3, (3,))), {"batch": (2,)})]),
    doc="Points of the simplex.",
)  # fmt: skip
_ball_op = random_op(
    "ball",
    lambda xp, key, *, d, p, shape, dtype: jax.random.ball(wrap(key), d, p, shape, dtype),
    {"d": 2, "p": 2.0, "shape": (3,), "dtype": dtypes.float32},
    "Points of a ball.",
)
