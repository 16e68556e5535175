"""The matrix exponential, by scaling, a Pade approximant, and squaring.

Its derivative in a direction is the same computation carried out on pairs of a matrix and a change,
so repeated eigenvalues need no care. The derivative of that is the derivative of a block matrix.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np
import scipy.linalg

from functad.dispatch import bind
from functad.ops.join import concatenate
from functad.ops.linalg_base import (
    complex_of,
    guarded,
    in_float32,
    mT,
    narrowed,
    same_params,
    square,
    widened,
)
from functad.ops.op import Cost, Op, Samples
from functad.ops.rules import custom, zeros_like_op

__all__ = ["expm", "expm_change_op", "expm_op"]

Pair = tuple[Any, ...]
"""A matrix, and perhaps its change."""

_DEGREES = {4: (7, 3.925724783138660), 8: (13, 5.371920351148152)}
"""By the bytes of a real number: the degree of the approximant, and the norm up to which it is exact (Higham)."""

_MOST_SQUARINGS = 32  # enough for norms of 1e10, where no digit is left


def _times(x: Pair, y: Pair) -> Pair:
    """The product, and its change."""
    product = x[0] @ y[0]
    return (product,) if len(x) == 1 else (product, x[1] @ y[0] + x[0] @ y[1])


def _weighed(powers: list[Pair], weights: list[float]) -> Pair:
    """The sum of even powers (the first is the identity) times weights."""
    return tuple(sum(w * p for w, p in zip(weights, each, strict=True)) for each in zip(*powers, strict=True))


def _pade(x: Pair, one: Any, degree: int) -> tuple[Pair, Pair]:
    """The even and the odd part of the approximant's numerator; the denominator is their difference."""
    b = [math.factorial(2 * degree - k) // (math.factorial(k) * math.factorial(degree - k)) for k in range(degree + 1)]
    powers: list[Pair] = [(one, one * 0)[: len(x)], _times(x, x)]
    while len(powers) < 4:
        powers.append(_times(powers[-1], powers[1]))
    even, odd = _weighed(powers, [float(w) for w in b[0:8:2]]), _weighed(powers, [float(w) for w in b[1:8:2]])
    if degree > 7:
        top = [[float(w) for w in b[8 + i :: 2]] for i in (0, 1)]
        even, odd = (
            tuple(map(sum, zip(low, _times(powers[3], _weighed(powers[1:], high)), strict=True)))
            for low, high in zip((even, odd), top, strict=True)
        )
    return even, _times(x, odd)


def _exponential(xp: Any, x: Pair) -> Pair:
    """exp of a matrix, and the change of it."""
    degree, bound = _DEGREES[xp.finfo(x[0].dtype).bits // 8]
    size = xp.max(xp.sum(xp.abs(x[0]), axis=-2, keepdims=True), axis=-1, keepdims=True, initial=0)
    times = xp.ceil(xp.log2(xp.maximum(size, bound) / bound))
    times = xp.where(xp.isfinite(times), times, xp.zeros_like(times))
    x = tuple(p * xp.exp2(-times).astype(p.dtype) for p in x)
    even, odd = _pade(x, xp.broadcast_to(xp.eye(x[0].shape[-1], dtype=x[0].dtype), x[0].shape), degree)
    above, below = ([p + q for p, q in zip(even, odd, strict=True)], [p - q for p, q in zip(even, odd, strict=True)])
    out: Pair = (xp.linalg.solve(below[0], above[0]),)
    if len(x) > 1:
        out = (*out, xp.linalg.solve(below[0], above[1] - below[1] @ out[0]))

    def square_once(power: Pair, i: Any) -> tuple[Pair, None]:
        def chosen() -> Pair:
            return tuple(xp.where(i < times, q, p) for p, q in zip(power, _times(power, power), strict=True))

        return jax.lax.cond(i < xp.max(times, initial=0), chosen, lambda: power), None

    out = jax.lax.scan(square_once, out, xp.arange(_MOST_SQUARINGS, dtype=times.dtype))[0]
    return tuple(xp.where(times > _MOST_SQUARINGS, xp.asarray(xp.nan, p.dtype), p) for p in out)


@in_float32
def _expm(xp: Any, x: Any) -> Any:
    return scipy.linalg.expm(x).astype(x.dtype) if xp is np and x.size else _exponential(xp, (x,))[0] if x.size else x


@in_float32
def _expm_change(xp: Any, x: Any, y: Any) -> Any:
    if not x.size:
        return x
    if xp is np:
        n = x.shape[-1]
        return scipy.linalg.expm(np.block([[x, y], [np.zeros_like(x), x]]))[..., :n, n:].astype(x.dtype)
    return _exponential(xp, (x, y))[1]


def _change(x: Any, y: Any) -> Any:
    return bind(expm_change_op, (x, y))


def _second_change(t: Any, x: Any, y: Any) -> Any:
    """How the change of exp(x) by `y` changes with `x`."""
    n = x._shape[-1]
    nothing = bind(zeros_like_op, (x,))
    block = concatenate([concatenate([x, y], -1), concatenate([nothing, x], -1)], -2)
    moved = concatenate([concatenate([t, nothing], -1), concatenate([nothing, t], -1)], -2)
    return _change(block, moved)[..., :n, n:]


def _draw(rng: np.random.Generator, *shape: int) -> Any:
    return 3 * rng.uniform(-1, 1, shape)


expm_op = custom(
    "expm", _expm, jvp=guarded(lambda t, x: _change(x, t)), vjp=guarded(lambda g, x: _change(mT(x), g)),
    cost=Cost.COMPUTE, samples=Samples(make=lambda rng: [
        ((_draw(rng, 2, 2, 2),), {}), ((complex_of(rng, _draw(rng, 2, 2)),), {}),
    ]),
    batch=same_params, doc="The exponential of square matrices.",
)  # fmt: skip
expm_change_op: Op = custom(
    "expm_change", _expm_change,
    jvp=[guarded(_second_change), guarded(lambda t, x: _change(x, t))],
    vjp=[guarded(lambda g, x, y: _second_change(g, mT(x), mT(y))), guarded(lambda g, x: _change(mT(x), g))],
    cost=Cost.COMPUTE, samples=Samples(make=lambda rng: [((_draw(rng, 2, 2), _draw(rng, 2, 2)), {})]),
    batch=same_params,
    doc="The derivative of the exponential of x in the direction y.",
)  # fmt: skip


def expm(x: Any) -> Any:
    """The exponential of square matrices.

    Derivatives of every order are exact for repeated eigenvalues and for matrices that have no full
    set of eigenvectors. Raises `ShapeError` for a matrix that is not square.

    >>> import functad as fd
    >>> fd.ops.expm(fd.tensor([[0.0, 1.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    (x,) = square("expm", x)
    return narrowed(bind(expm_op, widened([x])), x)
