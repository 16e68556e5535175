"""Determinants. The derivative of a determinant is its matrix of cofactors, exact for singular matrices too.

With `x = U S V^H` the cofactors are those of `S`, products of all singular values but one, turned
back: nothing is divided by the determinant. The second derivative is made of products of all but two.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from functad.dispatch import bind
from functad.ops.linalg_base import (
    complex_of,
    guarded,
    in_float32,
    mm,
    mT,
    narrowed,
    numbers,
    or_nan,
    regular,
    same_params,
    square,
    widened,
)
from functad.ops.linalg_solve import inv_op
from functad.ops.op import Cost, Op, Samples
from functad.ops.rules import cast, custom, product, sum_op, zeros_like_op

__all__ = ["cofactor_op", "det", "det_op", "slogdet", "slogdet_op"]


class SlogdetResult(NamedTuple):
    """What `slogdet` returns."""

    sign: Any
    logabsdet: Any


def _total(x: Any) -> Any:
    """The sum over each matrix."""
    return bind(sum_op, (x,), ((x.ndim - 2, x.ndim - 1), False))


# --- cofactors

_REST = np.array([[0, 1, 2, 3]] * 4)[~np.eye(4, dtype=bool)].reshape(4, 3)
"""The rows and columns left when one of four is struck out."""


def _others(xp: Any, s: Any) -> Any:
    """The product of all but each one along the last axis, with no division."""
    one = xp.ones_like(s[..., :1])
    before = xp.cumprod(xp.concatenate([one, s[..., :-1]], -1), -1)
    after = xp.flip(xp.cumprod(xp.concatenate([one, xp.flip(s[..., 1:], -1)], -1), -1), -1)
    return before * after


def _turned(xp: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """The singular value decomposition, and the determinant of its two rotations."""
    if xp is np:
        u, s, vh = or_nan(lambda m: tuple(np.linalg.svd(m)), x)
    else:
        u, s, vh = xp.linalg.svd(x, full_matrices=False)
    return u, s, vh, (xp.linalg.det(u) * xp.linalg.det(vh))[..., None, None]


@in_float32
def _cofactor(xp: Any, x: Any) -> Any:
    n = x.shape[-1]
    if n < 2:
        return xp.ones_like(x)
    if n == 2:
        return xp.flip(x, (-2, -1)) * xp.asarray([[1, -1], [-1, 1]], x.dtype)
    if n == 3:
        a, b, c = (x[..., i, :] for i in range(3))
        return xp.stack([xp.cross(b, c), xp.cross(c, a), xp.cross(a, b)], -2)
    if n == 4:
        minors = x[..., _REST[:, None, :, None], _REST[None, :, None, :]]
        return xp.linalg.det(minors) * xp.asarray((-1.0) ** np.add.outer(np.arange(4), np.arange(4)), x.dtype)
    if xp is np:
        return _cofactor_turned(xp, x)
    lu, _, _ = jax.lax.linalg.lu(x)  # as the determinant has it
    size = xp.abs(xp.diagonal(lu, axis1=-2, axis2=-1))
    apart = xp.min(size, -1) > xp.max(size, -1) * xp.finfo(x.dtype).eps ** (1 / 3)
    return jax.lax.cond(xp.all(apart), lambda: _cofactor_regular(xp, x), lambda: _cofactor_turned(xp, x))


def _cofactor_regular(xp: Any, x: Any) -> Any:
    return xp.linalg.det(x)[..., None, None] * xp.linalg.inv(x).mT


def _cofactor_turned(xp: Any, x: Any) -> Any:
    u, s, vh, turn = _turned(xp, x)
    return turn * xp.conj((u * _others(xp, s)[..., None, :]) @ vh)


@in_float32
def _cofactor_change(xp: Any, x: Any, y: Any) -> Any:
    n = x.shape[-1]
    if n < 3:
        return xp.zeros_like(x) if n < 2 else _cofactor(xp, y)
    u, s, vh, turn = _turned(xp, x)
    inner = xp.conj(u.swapaxes(-1, -2)) @ y @ xp.conj(vh.swapaxes(-1, -2))
    unit = xp.eye(n, dtype=bool)
    rest = xp.where(unit, xp.ones((), s.dtype), s[..., None, :])  # row i: all singular values but the i-th
    pairs = xp.where(unit, xp.zeros((), s.dtype), _others(xp, rest)).astype(x.dtype)
    diagonal = (pairs @ xp.diagonal(inner, axis1=-2, axis2=-1)[..., None])[..., 0]
    changed = xp.where(unit, diagonal[..., None, :], -pairs * inner.swapaxes(-1, -2))
    return turn * (xp.conj(u) @ changed @ xp.conj(vh))


def _change(x: Any, y: Any) -> Any:
    return bind(cofactor_change_op, (x, y))


def _change_of_change(t: Any, x: Any, y: Any) -> Any:
    """The derivative of the change with respect to `x`: exact up to 3 by 3, of regular matrices above."""
    n = x._shape[-1]
    if n < 3:
        return bind(zeros_like_op, (x,))
    if n == 3:
        return _change(t, y)  # what is bilinear in x and y does not depend on x
    w = mT(bind(inv_op, (x,)))
    c = bind(det_op, (x,))
    ty, tt = _total(w * y), _total(w * t)
    wyw, wtw = mm(w, mT(y), w), mm(w, mT(t), w)
    pair = ty * tt - _total(t * wyw)
    turned = mm(wyw, mT(t), w) + mm(wtw, mT(y), w)
    return numbers(c) * (w * numbers(pair) - wyw * numbers(tt) - wtw * numbers(ty) + turned)


cofactor_op = custom(
    "cofactor", _cofactor, jvp=guarded(lambda t, x: _change(x, t)), vjp=guarded(lambda g, x: _change(x, g)),
    cost=Cost.COMPUTE, samples=Samples([(((3, 3),), {}), (((2, 2, 2),), {}), (((4, 4),), {}), (((5, 5),), {})]),
    batch=same_params, doc="The cofactors of square matrices: the derivative of the determinant.",
)  # fmt: skip
cofactor_change_op: Op = custom(
    "cofactor_change", _cofactor_change,
    jvp=[guarded(_change_of_change), guarded(lambda t, x: _change(x, t))],
    vjp=[guarded(_change_of_change), guarded(lambda g, x: _change(x, g))],
    cost=Cost.COMPUTE, samples=Samples(make=lambda rng: [
        ((regular(rng, 4), rng.normal(size=(4, 4))), {}), ((rng.normal(size=(3, 3)), rng.normal(size=(3, 3))), {}),
        ((rng.normal(size=(2, 2, 2)), rng.normal(size=(2, 2, 2))), {}),
        ((complex_of(rng, regular(rng, 4)), rng.normal(size=(4, 4)) + 1j), {}),
    ]),
    batch=same_params, doc="The derivative of the cofactors of x in the direction y.",
)  # fmt: skip


# --- determinants


@in_float32
def _det(xp: Any, x: Any) -> Any:
    return xp.linalg.det(x)


@in_float32
def _slogdet(xp: Any, x: Any) -> Any:
    return tuple(xp.linalg.slogdet(x))


def _slogdet_pull(g: Any, x: Any, out: Any) -> Any:
    of_sign, of_log = g
    if x._dtype.kind == "c":
        of_log = cast(of_log, x._dtype) + 1j * cast((of_sign * out[0]).imag, x._dtype)
    return product(numbers(of_log), mT(bind(inv_op, (x,))))


def _slogdet_push(t: Any, x: Any, out: Any) -> Any:
    rate = _total(product(t, mT(bind(inv_op, (x,)))))
    if x._dtype.kind == "c":
        return 1j * cast(rate.imag, x._dtype) * out[0], rate.real
    return bind(zeros_like_op, (out[0],)), rate


det_op: Op = custom(
    "det", _det, jvp=guarded(lambda t, x: _total(t * bind(cofactor_op, (x,)))),
    vjp=guarded(lambda g, x: numbers(g) * bind(cofactor_op, (x,))), cost=Cost.COMPUTE,
    samples=Samples([(((3, 3),), {}), (((2, 2, 2),), {}), (((4, 4),), {}), (((1, 1),), {})]),
    batch=same_params, doc="The determinant of square matrices.",
)  # fmt: skip
slogdet_op = custom(
    "slogdet", _slogdet, jvp=guarded(_slogdet_push), vjp=guarded(_slogdet_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((regular(rng, 3),), {}), ((-regular(rng, 2, 3),), {}), ((complex_of(rng, regular(rng, 2)),), {}),
        ((np.zeros((0, 0)),), {}),
    ]),
    batch=same_params, doc="The sign of the determinant and the logarithm of its size.",
)  # fmt: skip


def det(x: Any) -> Any:
    """The determinant of square matrices.

    Its derivative is the matrix of cofactors, exact for singular matrices too; so is the second
    derivative (for third and higher ones a matrix larger than 3 by 3 must be regular). Raises
    `ShapeError` for a matrix that is not square.

    >>> import functad as fd
    >>> fd.ops.det(fd.tensor([[2.0, 4.0], [1.0, 5.0]])).item()
    6.0
    >>> fd.grad(fd.ops.det)(fd.tensor([[1.0, 2.0], [2.0, 4.0]])).tolist()
    [[4.0, -2.0], [-2.0, 1.0]]
    """
    (x,) = square("det", x)
    return cast(bind(det_op, widened([x])), x._dtype)


def slogdet(x: Any) -> Any:
    """The sign (for complex matrices: the phase) of the determinant, and the logarithm of its size.

    A singular matrix gives 0 and -inf, where the logarithm has no derivative: it is inf or NaN there,
    unless its cotangent is 0. Raises `ShapeError` for a matrix that is not square.

    >>> import functad as fd
    >>> sign, log = fd.ops.slogdet(fd.tensor([[0.0, 1.0], [1.0, 0.0]]))
    >>> sign.item(), log.item()
    (-1.0, 0.0)
    """
    (x,) = square("slogdet", x)
    sign, log = bind(slogdet_op, widened([x]))
    return SlogdetResult(narrowed(sign, x), narrowed(log, x))
