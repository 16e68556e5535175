"""Draws of floats: noise by JAX, and differentiable functions of it and of the parameters."""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import scipy.special

from functad import dtypes, ops
from functad.creation import Shape, as_shape
from functad.device import Device
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.axes import counted
from functad.ops.elementary import widened
from functad.ops.op import Op, Samples
from functad.ops.operand import operand
from functad.ops.rules import elementwise
from functad.random.keys import (
    KEY,
    checked_key,
    float_dtype,
    noise,
    on_host,
    parameters,
    placed,
    random_op,
    sampler,
    wrap,
)
from functad.tensor import Tensor


def _noise(name: str, doc: str) -> Op:
    draw = getattr(jax.random, name)
    return random_op(
        name,
        lambda xp, key, *, shape, dtype: draw(wrap(key), shape=shape, dtype=dtype),
        {"shape": (2, 3), "dtype": dtypes.float32},
        doc,
    )


# --- without parameters


def normal(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Standard normal numbers.

    >>> import functad as fd
    >>> fd.random.normal(fd.random.key(0), (2, 3), dtype="bfloat16").dtype
    dtype(bfloat16)
    """
    made = on_host("normal", key, shape, dtype, device)
    return noise(_normal_op, "normal", key, shape, dtype, device) if made is None else made


def exponential(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Exponential numbers of mean 1.

    >>> import functad as fd
    >>> x = fd.random.exponential(fd.random.key(0), (10000,))
    >>> x.min().item() >= 0, round(x.mean().item(), 1)
    (True, 1.0)
    """
    return noise(_exponential_op, "exponential", key, shape, dtype, device)


def gumbel(
    key: Any, shape: Shape = (), dtype: Any = None, mode: str | None = None, device: Device | None = None
) -> Tensor:
    """Gumbel numbers; `mode="high"` spends more random bits on the tail.

    >>> import functad as fd
    >>> g = fd.random.gumbel(fd.random.key(0), (10000, 2))  # the larger of log p + g is drawn with probability p
    >>> round((g + fd.tensor([0.2, 0.8]).log()).argmax(-1).mean().item(), 1)
    0.8
    """
    if mode not in (None, "low", "high"):
        raise ArgumentError(f"random.gumbel: mode must be 'low' or 'high', got {mode!r}.")
    return noise(_gumbel_op, "gumbel", key, shape, dtype, device, mode)


def laplace(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Laplace numbers of scale 1.

    >>> import functad as fd
    >>> x = fd.random.laplace(fd.random.key(0), (10000,))
    >>> round(abs(x).mean().item(), 1), x.dtype
    (1.0, dtype('float32'))
    """
    return noise(_laplace_op, "laplace", key, shape, dtype, device)


def logistic(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Logistic numbers of scale 1: their sigmoid is uniform.

    >>> import functad as fd
    >>> x = fd.random.logistic(fd.random.key(0), (10000,))
    >>> round(x.sigmoid().mean().item(), 1)
    0.5
    """
    return noise(_logistic_op, "logistic", key, shape, dtype, device)


def cauchy(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Cauchy numbers of scale 1, which have no mean.

    >>> import functad as fd
    >>> x = fd.random.cauchy(fd.random.key(0), (10000,))
    >>> round((abs(x) < 1).mean().item(), 1)
    0.5
    """
    return noise(_cauchy_op, "cauchy", key, shape, dtype, device)


def maxwell(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Maxwell numbers: the lengths of normal vectors in three dimensions.

    >>> import functad as fd
    >>> x = fd.random.maxwell(fd.random.key(0), (10000,))
    >>> round((x * x).mean().item())
    3
    """
    return noise(_maxwell_op, "maxwell", key, shape, dtype, device)


def orthogonal(
    key: Any, n: int, shape: Shape = (), dtype: Any = None, m: int | None = None, device: Device | None = None
) -> Tensor:
    """Matrices uniform among the orthogonal ones, of shape `shape + (n, n)`; with `m` among those of shape `(n, m)`.

    >>> import functad as fd
    >>> q = fd.random.orthogonal(fd.random.key(0), 3, (5,))
    >>> bool(fd.numpy.allclose(q.mT @ q, fd.eye(3), atol=1e-5)), q.shape
    (True, (5, 3, 3))
    """
    rows, columns = (counted(x, "random.orthogonal", name) for x, name in ((n, "n"), (n if m is None else m, "m")))
    return noise(_orthogonal_op, "orthogonal", key, shape, dtype, device, rows, columns)


# --- with parameters


def uniform(
    key: Any, shape: Shape = (), dtype: Any = None, minval: Any = 0.0, maxval: Any = 1.0, device: Device | None = None
) -> Tensor:
    """Uniform numbers in `[minval, maxval)`; differentiable in the bounds.

    >>> import functad as fd
    >>> x = fd.random.uniform(fd.random.key(0), (1000,), minval=-1.0)
    >>> bool(x.min() >= -1) and bool(x.max() < 1)
    True
    """
    plain = isinstance(minval, (int, float)) and isinstance(maxval, (int, float))
    made = on_host("uniform", key, shape, dtype, device, (minval, maxval)) if plain else None
    if made is not None:
        return made
    unit = noise(_uniform_op, "uniform", key, shape, dtype, None)
    if plain and (minval, maxval) == (0, 1):
        return placed(unit, device)
    low, high = (operand(bound, unit, unit.dtype, "random.uniform") for bound in (minval, maxval))
    drawn = unit * (high - low) + low
    if drawn.shape != unit.shape:
        raise ShapeError(
            f"random.uniform: bounds of shapes {low.shape} and {high.shape} do not fit shape={unit.shape}."
        )
    return placed(drawn, device)


def truncated_normal(
    key: Any,
    lower: Any,
    upper: Any,
    shape: Shape | None = None,
    dtype: Any = None,
    device: Device | None = None,
) -> Tensor:
    """Standard normal numbers between `lower` and `upper`; differentiable in the bounds.

    >>> import functad as fd
    >>> x = fd.random.truncated_normal(fd.random.key(0), 1.0, [2.0, 3.0], (100, 2))
    >>> 1 <= x.min().item(), x[:, 0].max().item() <= 2, x.max().item() <= 3
    (True, True, True)
    """
    (key, bounds, sizes, wanted) = parameters("truncated_normal", key, shape, dtype, lower, upper)
    return placed(truncated_op(uniform(key, sizes, wanted), *bounds), device)


def lognormal(
    key: Any, sigma: Any = 1.0, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """exp(sigma z) for normal z; differentiable in `sigma`.

    >>> import functad as fd
    >>> x = fd.random.lognormal(fd.random.key(0), 0.5, (10000,))
    >>> round(x.log().std().item(), 1)
    0.5
    """
    drawn = parameters("lognormal", key, shape, dtype, sigma)
    return placed(bind(_lognormal_op, (drawn.key, *drawn.params), (drawn.shape,)), device)


def pareto(key: Any, b: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Pareto numbers of shape parameter `b`, from 1 up; differentiable in `b`.

    >>> import functad as fd
    >>> x = fd.random.pareto(fd.random.key(0), 2.0, (10000,))
    >>> x.min().item() >= 1, round((x > 2).mean().item(), 2)
    (True, 0.25)
    """
    (key, (b,), sizes, wanted) = parameters("pareto", key, shape, dtype, b)
    return placed(ops.exp(exponential(key, sizes, wanted) / b), device)


def rayleigh(
    key: Any, scale: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Rayleigh numbers, the lengths of normal vectors in the plane times `scale`; differentiable in it.

    >>> import functad as fd
    >>> x = fd.random.rayleigh(fd.random.key(0), 3.0, (10000,))
    >>> round((x * x).mean().item() / 9)
    2
    """
    (key, (scale,), sizes, wanted) = parameters("rayleigh", key, shape, dtype, scale)
    return placed(scale * noise(_rayleigh_op, "rayleigh", key, sizes, wanted, None), device)


def weibull_min(
    key: Any,
    scale: Any,
    concentration: Any,
    shape: Shape | None = None,
    dtype: Any = None,
    device: Device | None = None,
) -> Tensor:
    """Weibull numbers, scale * e ** (1 / concentration) for exponential e; differentiable in both parameters.

    >>> import functad as fd
    >>> x = fd.random.weibull_min(fd.random.key(0), 2.0, 3.0, (10000,))
    >>> round((x < 2).mean().item(), 2)  # 1 - 1 / e
    0.63
    """
    (key, (scale, power), sizes, wanted) = parameters("weibull_min", key, shape, dtype, scale, concentration)
    return placed(exponential(key, sizes, wanted) ** (1 / power) * scale, device)


def double_sided_maxwell(
    key: Any, loc: Any, scale: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Maxwell numbers of either sign; differentiable in `loc` and `scale`, whose shape follows `shape` in the result's.

    >>> import functad as fd
    >>> x = fd.random.double_sided_maxwell(fd.random.key(0), 1.0, [1.0, 2.0], (10000,))
    >>> x.shape, round(x.mean().item())
    ((10000, 2), 1)
    """
    (key, (loc, scale), inner, _) = parameters("double_sided_maxwell", key, None, dtype, loc, scale)
    sizes = (*(as_shape(shape, "random.double_sided_maxwell") or inner), *inner)
    return placed(bind(_double_sided_maxwell_op, (key, loc, scale), (sizes,)), device)


def triangular(
    key: Any,
    left: Any,
    mode: Any,
    right: Any,
    shape: Shape | None = None,
    dtype: Any = None,
    device: Device | None = None,
) -> Tensor:
    """Numbers with a density that rises from `left` to `mode` and falls to `right`; differentiable in all three.

    >>> import functad as fd
    >>> x = fd.random.triangular(fd.random.key(0), 0.0, 1.0, 5.0, (10000,))
    >>> 0 <= x.min().item() < x.max().item() <= 5, round(x.mean().item())
    (True, 2)
    """
    (key, (left, mode, right), sizes, wanted) = parameters("triangular", key, shape, dtype, left, mode, right)
    u = uniform(key, sizes, wanted)
    width = right - left
    rising = left + ops.sqrt(u * width * (mode - left))
    falling = right - ops.sqrt((1 - u) * width * (right - mode))
    return placed(ops.where(u < (mode - left) / width, rising, falling), device)


def wald(key: Any, mean: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Wald (inverse Gaussian) numbers of scale 1; differentiable in `mean`.

    The derivative is that of the sample at a fixed quantile, so its mean is the derivative of the mean;
    differentiating the algorithm, which chooses between two roots, would be biased.

    >>> import functad as fd
    >>> x = fd.random.wald(fd.random.key(0), 0.5, (10000,))
    >>> x.min().item() > 0, round(x.mean().item(), 1)
    (True, 0.5)
    """
    drawn = parameters("wald", key, shape, dtype, mean)
    return placed(bind(_wald_op, (drawn.key, *drawn.params), (drawn.shape,)), device)


def multivariate_normal(
    key: Any,
    mean: Any,
    cov: Any,
    shape: Shape | None = None,
    dtype: Any = None,
    method: str = "cholesky",
    device: Device | None = None,
) -> Tensor:
    """Normal vectors; differentiable in `mean` and `cov`.

    Args:
        key: the key.
        mean: the means, along the last axis.
        cov: covariances, in the last two axes.
        shape: that of the batch; the axes in front of those, by default. The result has `mean`'s last axis too.
        dtype: of the result.
        method: how `cov` is factored: "cholesky" (fast), "eigh" or "svd" (for singular matrices).
        device: where the result goes.

    >>> import functad as fd
    >>> fd.random.multivariate_normal(fd.random.key(0), fd.zeros(2), fd.eye(2), (3,)).shape
    (3, 2)
    """
    where = "random.multivariate_normal"
    key = checked_key(key, "multivariate_normal")
    mean, cov = operand(mean, key, where=where), operand(cov, key, where=where)
    known = [x.dtype for x in (mean, cov) if dtypes.is_float(x.dtype)]
    wanted = dtypes.promote(dtypes.default_float(), *known) if dtype is None else dtype
    wanted = float_dtype(wanted, "multivariate_normal", key)
    mean, cov = mean.astype(wanted), cov.astype(wanted)
    n = mean.shape[-1] if mean.ndim else 0
    if not mean.ndim or cov.shape[-2:] != (n, n):
        raise ShapeError(
            f"{where}: mean needs an axis of length n and cov two of them, got shapes {mean.shape} and {cov.shape}."
        )
    common = np.broadcast_shapes(mean.shape[:-1], cov.shape[:-2])
    batch = common if shape is None else as_shape(shape, where)
    if method == "cholesky":
        factor = ops.cholesky(cov)
    elif method in ("eigh", "svd"):
        values, vectors = ops.eigh(cov) if method == "eigh" else ops.svd(cov)[1::-1]
        factor = vectors * ops.sqrt(values).expand_dims(-2)
    else:
        raise ArgumentError(f"{where}: method must be 'cholesky', 'eigh' or 'svd', got {method!r}.")
    drawn = mean + ops.einsum("...ij,...j->...i", factor, normal(key, (*batch, n), wanted))
    if drawn.shape != (*batch, n):
        raise ShapeError(f"{where}: shape={batch} must end with the axes of mean and cov in front, {common}.")
    return placed(drawn, device)


# --- ops


_normal_op = _noise("normal", "Standard normal numbers.")
_uniform_op = _noise("uniform", "Uniform numbers in [0, 1).")
_exponential_op = _noise("exponential", "Exponential numbers.")
_laplace_op = _noise("laplace", "Laplace numbers.")
_logistic_op = _noise("logistic", "Logistic numbers.")
_cauchy_op = _noise("cauchy", "Cauchy numbers.")
_maxwell_op = _noise("maxwell", "Maxwell numbers.")
_gumbel_op = random_op(
    "gumbel",
    lambda xp, key, *, mode, shape, dtype: jax.random.gumbel(wrap(key), shape, dtype, mode),
    {"mode": None, "shape": (2, 3), "dtype": dtypes.float32},
    "Gumbel numbers.",
)
_rayleigh_op = random_op(
    "rayleigh",
    lambda xp, key, *, shape, dtype: jax.random.rayleigh(wrap(key), xp.ones((), dtype), shape, dtype),
    {"shape": (2, 3), "dtype": dtypes.float32},
    "Rayleigh numbers of scale 1.",
)
_orthogonal_op = random_op(
    "orthogonal",
    lambda xp, key, *, n, m, shape, dtype: jax.random.orthogonal(wrap(key), n, shape, dtype, m),
    {"n": 2, "m": 2, "shape": (), "dtype": dtypes.float32},
    "Orthogonal matrices.",
)

_ROOT = math.sqrt(2)


@widened
def _truncated(xp: Any, u: Any, lower: Any, upper: Any) -> Any:
    root = np.asarray(_ROOT, u.dtype)
    erf, erfinv = (scipy.special.erf, scipy.special.erfinv) if xp is np else (jax.lax.erf, jax.lax.erf_inv)
    low, high = erf(lower / root), erf(upper / root)
    quantile = xp.maximum(low, u * (high - low) + low)
    inf = np.asarray(np.inf, u.dtype)
    if xp is not np:  # nextafter has no derivative
        lower, upper = jax.lax.stop_gradient((lower, upper))
    return xp.clip(root * erfinv(quantile), xp.nextafter(lower, inf), xp.nextafter(upper, -inf))


def _quantile_slope(x: Any, mean: Any) -> Any:
    """Minus the derivative of the distribution function in the mean, over the density."""
    root = ops.sqrt(x)
    return math.sqrt(2 * math.pi) * (x * root) * ops.erfcx((x / mean + 1) / (_ROOT * root)) / (mean * mean)


def _bounds_samples(rng: np.random.Generator) -> Any:
    return [
        ((rng.uniform(0.1, 0.9, shape), rng.uniform(-2, -1, shape), rng.uniform(1, 2)), {})
        for shape in ((3, 2), (0, 2))
    ]


truncated_op = elementwise(
    "truncated_normal", _truncated,
    lambda u, lower, upper, out: math.sqrt(math.pi / 2) * ops.exp(out * out / 2) * (ops.erf(upper / _ROOT) - ops.erf(lower / _ROOT)),
    lambda u, lower, out: (1 - u) * ops.exp((out * out - lower * lower) / 2),
    lambda u, upper, out: u * ops.exp((out * out - upper * upper) / 2),
    samples=Samples(make=_bounds_samples),
    doc="The quantile u of the normal distribution between two bounds.",
)  # fmt: skip


def _parametric(low: float, *, count: int = 1) -> Samples:
    """A key and positive parameters."""
    return Samples(
        make=lambda rng: [
            ((KEY, *[rng.uniform(low, 2, shape) for _ in range(count)]), {"shape": sizes})
            for shape, sizes in (((2,), (3, 2)), ((), ()))
        ]
    )


def _double_sided_maxwell(xp: Any, key: Any, loc: Any, scale: Any, *, shape: tuple[int, ...]) -> Any:
    first, second = jax.random.split(wrap(key))
    signs = jax.random.rademacher(second, shape, scale.dtype)
    return signs * jax.random.maxwell(first, shape, scale.dtype) * scale + loc


def _signed_maxwell(key: Any, scale_dtype: Any, shape: tuple[int, ...]) -> Any:
    one = operand(1.0, key, scale_dtype)
    return bind(_double_sided_maxwell_op, (key, one - one, one), (shape,))


_lognormal_op = sampler(
    "lognormal",
    lambda xp, key, sigma, *, shape: jax.random.lognormal(wrap(key), sigma, shape, sigma.dtype),
    lambda key, out, shape: out * normal(key, shape, out.dtype),
    samples=_parametric(0.5),
    doc="exp(sigma z) for normal z.",
)
_double_sided_maxwell_op: Op = sampler(
    "double_sided_maxwell",
    _double_sided_maxwell,
    1,
    _signed_maxwell,
    samples=_parametric(0.5, count=2),
    doc="Maxwell numbers of either sign.",
)
_wald_op = sampler(
    "wald",
    lambda xp, key, mean, *, shape: jax.random.wald(wrap(key), mean, shape, mean.dtype),
    lambda mean, out: _quantile_slope(out, mean),
    samples=_parametric(0.5),
    doc="Wald numbers; the derivative in the mean is that at a fixed quantile.",
)
