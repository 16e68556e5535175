"""Linear systems: Cholesky factors, triangular and general solves, inverses, integer powers.

A singular matrix gives inf or NaN, and one that is not positive definite a Cholesky factor of NaN,
on every backend: raising would have to wait for the values.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from functad.dispatch import base_backend, bind
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.ops.arithmetic import conj
from functad.ops.axes import normalize_axis
from functad.ops.diagonal import tril_op, triu_op
from functad.ops.halves import rounded_once
from functad.ops.linalg_base import (
    complex_of,
    dagger,
    guarded,
    hermitian,
    in_float32,
    mm,
    mT,
    or_nan,
    positive_definite,
    regular,
    same_params,
    square,
    stacked,
    widened,
)
from functad.ops.op import Cost, Op, Residuals, Samples
from functad.ops.operand import operand
from functad.ops.rules import broadcast, cast, custom, register
from functad.ops.shape import moveaxis, reshaped, unchanged

__all__ = [
    "cholesky", "cholesky_op", "inv", "inv_op", "matrix_power", "solve", "solve_op", "solve_triangular", "tensorinv",
    "tensorsolve", "triangular_solve", "triangular_solve_op",
]  # fmt: skip


# --- Cholesky factors


@in_float32
def _cholesky(xp: Any, x: Any) -> Any:
    if xp is np:
        return np.tril(or_nan(np.linalg.cholesky, (x + x.swapaxes(-1, -2).conj()) / 2))
    return xp.linalg.cholesky(x)  # which takes the Hermitian part too


def _lower_half(x: Any) -> Any:
    """The lower triangle, with half the diagonal."""
    return (bind(tril_op, (x,), (0,)) + bind(tril_op, (x,), (-1,))) * 0.5


def _cholesky_push(t: Any, out: Any) -> Any:
    half = triangular(out, hermitian(t))
    return mm(out, _lower_half(mT(triangular(conj(out), mT(half)))))


def _cholesky_pull(g: Any, out: Any) -> Any:
    half = triangular(out, _lower_half(mm(mT(out), g)), transpose=True)
    return hermitian(mT(triangular(conj(out), mT(half), transpose=True)))


cholesky_op = custom(
    "cholesky", _cholesky, jvp=guarded(_cholesky_push), vjp=guarded(_cholesky_pull), cost=Cost.COMPUTE,
    samples=Samples(make=lambda rng: [
        ((positive_definite(rng, 3),), {}), ((positive_definite(rng, 2, 2),), {}),
        ((complex_of(rng, positive_definite(rng, 2)),), {}), ((np.zeros((0, 0)),), {}),
    ]),
    batch=same_params, doc="The lower Cholesky factor of the Hermitian part; NaN if it is not positive definite.",
)  # fmt: skip


# --- solves


class _Solve(Op):
    """An op whose two cotangents share a solve: that of the matrix is made from that of the right-hand side."""

    of_matrix: Any

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        if not wanted[0] or not wanted[1]:
            return super().pull(g, res, wanted)
        of_right = self.pulls[1](res, g)  # type: ignore[misc]  # both inputs have a rule
        return [guarded(self.of_matrix)(of_right, res.out, *res.params), of_right]


def _solving(op: _Solve, of_matrix: Any, vjp: Sequence[Any], jvp: Sequence[Any]) -> Op:
    op.of_matrix = of_matrix
    op.pulls = [op.derivative(guarded(rule), 1) for rule in vjp]
    op.pushes = [op.derivative(guarded(rule), 1) for rule in jvp]
    return register(op)


def _solve_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    """Rows of right-hand sides alone are more columns: the matrix is factored once."""
    a, b = inputs
    if mapped[0]:
        return same_params(op, inputs, mapped, size, params)
    wide = moveaxis(b, 0, -1)
    x = bind(op, (a, reshaped(wide, (*wide._shape[:-2], wide._shape[-2] * size))), params)
    return moveaxis(reshaped(x, wide._shape), -1, 0)


@in_float32
def _solve(xp: Any, a: Any, b: Any, *, transpose: bool) -> Any:
    if xp is np:
        return or_nan(np.linalg.solve, a.swapaxes(-1, -2) if transpose else a, b)
    if not transpose:
        return xp.linalg.solve(a, b)
    lu, _, order = jax.lax.linalg.lu(a)  # the factors that the plain solve has: one program computes them once
    x = jax.lax.linalg.triangular_solve(lu, b, left_side=True, transpose_a=True)
    x = jax.lax.linalg.triangular_solve(lu, x, left_side=True, lower=True, transpose_a=True, unit_diagonal=True)
    return xp.take_along_axis(x, xp.argsort(order, axis=-1)[..., None], -2)


def _of_matrix(h: Any, out: Any, transpose: bool) -> Any:
    """The cotangent of the matrix, from that of the right-hand side."""
    return -(mm(out, mT(h)) if transpose else mm(h, mT(out)))


def _solution(a: Any, b: Any, transpose: bool) -> Any:
    return bind(solve_op, (a, b), (transpose,))


solve_op: Op = _solving(
    _Solve(
        "solve", _solve, cost=Cost.COMPUTE, batch=_solve_rows, samples=Samples(make=lambda rng: [
            ((regular(rng, 3), rng.normal(size=(3, 2))), {"transpose": False}),
            ((regular(rng, 2, 2), rng.normal(size=(2, 2, 1))), {"transpose": True}),
            ((complex_of(rng, regular(rng, 2)), rng.normal(size=(2, 1)) + 1j), {"transpose": False}),
            ((np.zeros((0, 0)), np.zeros((0, 2))), {"transpose": False}),
        ]),
        doc="The solution x of a @ x = b, or of a.mT @ x = b.",
    ),
    _of_matrix,
    vjp=[lambda g, a, out, transpose: _of_matrix(_solution(a, g, not transpose), out, transpose),
         lambda g, a, transpose: _solution(a, g, not transpose)],
    jvp=[lambda t, a, out, transpose: -_solution(a, mm(mT(t) if transpose else t, out), transpose),
         lambda t, a, transpose: _solution(a, t, transpose)],
)  # fmt: skip


@in_float32
def _triangular_solve(xp: Any, a: Any, b: Any, *, lower: bool, transpose: bool, unit: bool) -> Any:
    if xp is not np:
        return jax.lax.linalg.triangular_solve(
            a, b, left_side=True, lower=lower, transpose_a=transpose, unit_diagonal=unit
        )
    if transpose:
        a, lower = a.swapaxes(-1, -2), not lower
    x, n = b.copy(), a.shape[-1]
    for i in range(n) if lower else reversed(range(n)):  # substitution: a zero on the diagonal gives inf or NaN
        known = slice(0, i) if lower else slice(i + 1, n)
        x[..., i, :] -= (a[..., i : i + 1, known] @ x[..., known, :])[..., 0, :]
        if not unit:
            x[..., i, :] /= a[..., i, i, None]
    return x


def triangular(a: Any, b: Any, lower: bool = True, transpose: bool = False, unit: bool = False) -> Any:
    return bind(triangular_solve_op, (a, b), (lower, transpose, unit))


def _of_triangle(h: Any, out: Any, lower: bool, transpose: bool, unit: bool) -> Any:
    return _triangle(_of_matrix(h, out, transpose), lower, unit)


def _triangle(x: Any, lower: bool, unit: bool) -> Any:
    """The part of a matrix that a triangular solve reads."""
    return bind(tril_op if lower else triu_op, (x,), ((-unit if lower else int(unit)),))


def _triangular_push(t: Any, a: Any, out: Any, lower: bool, transpose: bool, unit: bool) -> Any:
    t = _triangle(t, lower, unit)
    return -triangular(a, mm(mT(t) if transpose else t, out), lower, transpose, unit)


triangular_solve_op: Op = _solving(
    _Solve(
        "triangular_solve", _triangular_solve, cost=Cost.COMPUTE, batch=_solve_rows, samples=Samples(make=lambda rng: [
            ((regular(rng, 3), rng.normal(size=(3, 2))), {"lower": True, "transpose": False, "unit": False}),
            ((regular(rng, 2, 2), rng.normal(size=(2, 2, 1))), {"lower": False, "transpose": True, "unit": False}),
            ((regular(rng, 2), rng.normal(size=(2, 1))), {"lower": True, "transpose": True, "unit": True}),
            ((complex_of(rng, regular(rng, 2)), rng.normal(size=(2, 1)) + 1j),
             {"lower": False, "transpose": False, "unit": False}),
        ]),
        doc="The solution x of a @ x = b (or a.mT @ x = b) for a triangular matrix, of which only one triangle is read.",
    ),
    _of_triangle,
    vjp=[
        lambda g, a, out, lower, transpose, unit: _of_triangle(
            triangular(a, g, lower, not transpose, unit), out, lower, transpose, unit
        ),
        lambda g, a, lower, transpose, unit: triangular(a, g, lower, not transpose, unit),
    ],
    jvp=[_triangular_push, lambda t, a, lower, transpose, unit: triangular(a, t, lower, transpose, unit)],
)  # fmt: skip


@in_float32
def _inv(xp: Any, x: Any) -> Any:
    return or_nan(np.linalg.inv, x) if xp is np else xp.linalg.inv(x)


inv_op = custom(
    "inv", _inv, jvp=guarded(lambda t, out: -mm(out, t, out)), vjp=guarded(lambda g, out: -mm(mT(out), g, mT(out))),
    cost=Cost.COMPUTE, samples=Samples(make=lambda rng: [
        ((regular(rng, 3),), {}), ((regular(rng, 2, 2),), {}), ((complex_of(rng, regular(rng, 2)),), {}),
        ((np.zeros((0, 0)),), {}),
    ]),
    batch=same_params, doc="The inverse of square matrices.",
)  # fmt: skip


# --- the functions


def cholesky(x: Any, upper: bool = False) -> Any:
    """The Cholesky factor `L` of Hermitian positive definite matrices, `x = L @ L^H`; with `upper`, `L^H`.

    The Hermitian part of `x` is factored, so the derivative is Hermitian, as in JAX. A matrix that is
    not positive definite gives NaN (raising would have to wait for the values). Raises `ShapeError`
    for a matrix that is not square.

    >>> import functad as fd
    >>> fd.ops.cholesky(fd.tensor([[4.0, 2.0], [2.0, 5.0]])).tolist()
    [[2.0, 0.0], [1.0, 2.0]]
    """
    (x,) = square("cholesky", x)
    out = cast(bind(cholesky_op, widened([x])), x._dtype)
    return dagger(out) if upper else out


def solve(a: Any, b: Any) -> Any:
    """The solution `x` of `a @ x = b`, for stacks of square matrices `a` that broadcast with those of `b`.

    A `b` with one axis is a vector, any other a stack of matrices (as in NumPy 2). A singular `a`
    gives inf or NaN. Raises `ShapeError` if the shapes do not fit.

    >>> import functad as fd
    >>> fd.ops.solve(fd.tensor([[2.0, 0.0], [0.0, 4.0]]), fd.tensor([2.0, 2.0])).tolist()
    [1.0, 0.5]
    """
    a, b = square("solve", a, b)
    return _solved("solve", solve_op, a, b, (False,))


def solve_triangular(a: Any, b: Any, trans: Any = 0, lower: bool = False, unit_diagonal: bool = False) -> Any:
    """The solution `x` of `a @ x = b` for triangular `a`, by substitution (SciPy's arguments).

    Args:
        a: square matrices, of which one triangle is read.
        b: a vector, or matrices; stacks broadcast.
        trans: 0 or "N" for `a`, 1 or "T" for its transpose, 2 or "C" for its conjugate transpose.
        lower: whether the lower triangle is the one.
        unit_diagonal: whether the diagonal counts as ones and is not read.

    >>> import functad as fd
    >>> fd.ops.solve_triangular(fd.tensor([[2.0, 0.0], [1.0, 1.0]]), fd.tensor([2.0, 3.0]), lower=True).tolist()
    [1.0, 2.0]
    """
    a, b = square("solve_triangular", a, b)
    if trans not in (0, 1, 2, "N", "T", "C"):
        raise ArgumentError(f"solve_triangular: trans is 0 ('N'), 1 ('T') or 2 ('C'), got {trans!r}.")
    transpose = trans not in (0, "N")
    a = conj(a) if trans in (2, "C") else a
    return _solved("solve_triangular", triangular_solve_op, a, b, (bool(lower), transpose, bool(unit_diagonal)))


def triangular_solve(
    a: Any,
    b: Any,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """The solution of `a @ x = b` (`left_side`) or `x @ a = b` for triangular `a`: the arguments of `jax.lax`.

    >>> import functad as fd
    >>> fd.ops.triangular_solve(fd.tensor([[2.0, 1.0], [0.0, 1.0]]), fd.tensor([[2.0, 3.0]])).tolist()
    [[1.0, 2.0]]
    """
    a, b = square("triangular_solve", a, b)
    a = conj(a) if conjugate_a else a
    if b.ndim > 1 and not left_side:
        params = (bool(lower), not transpose_a, bool(unit_diagonal))
        return mT(_solved("triangular_solve", triangular_solve_op, a, mT(b), params))
    transpose = bool(transpose_a) == bool(left_side)
    return _solved("triangular_solve", triangular_solve_op, a, b, (bool(lower), transpose, bool(unit_diagonal)))


def inv(x: Any) -> Any:
    """The inverse of square matrices; inf or NaN where there is none.

    Raises `ShapeError` for a matrix that is not square.

    >>> import functad as fd
    >>> fd.ops.inv(fd.tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    (x,) = square("inv", x)
    return cast(bind(inv_op, widened([x])), x._dtype)


@rounded_once
def matrix_power(x: Any, n: int) -> Any:
    """`x` multiplied by itself `n` times, in about `2 log2(n)` products; of the inverse if `n` is negative.

    >>> import functad as fd
    >>> fd.ops.matrix_power(fd.tensor([[1.0, 1.0], [0.0, 1.0]]), 5).tolist()
    [[1.0, 5.0], [0.0, 1.0]]
    """
    try:
        n = operator.index(n)
    except TypeError:
        raise ArgumentTypeError(
            f"matrix_power: n must be an int, got {n!r}; for other powers of a Hermitian matrix write "
            "linalg.funm_hermitian(x, lambda w: w**p)."
        ) from None
    given = operand(x, where="matrix_power")
    (checked,) = square("matrix_power", given)
    if n < 0:
        return matrix_power(inv(checked), -n)
    if n == 0:
        return broadcast(base_backend(given).put(np.eye(given.shape[-1]), given._dtype), given._shape)
    power, square_, out = n, given, None
    while True:
        if power & 1:
            out = square_ if out is None else mm(out, square_)
        power >>= 1
        if not power:
            return unchanged(out)
        square_ = mm(square_, square_)


def tensorinv(x: Any, ind: int = 2) -> Any:
    """The inverse of `x` as a map from its axes after the first `ind` to those.

    >>> import functad as fd
    >>> fd.ops.tensorinv(fd.ops.reshape(fd.eye(6), (6, 2, 3)), ind=1).shape
    (2, 3, 6)
    """
    x = operand(x, where="tensorinv")
    if ind <= 0:
        raise ArgumentError(
            f"tensorinv: ind says how many leading axes of x the map leads to, so it is at least 1; got {ind}."
        )
    first, last = x.shape[:ind], x.shape[ind:]
    if math.prod(first) != math.prod(last):
        raise ShapeError(
            f"tensorinv: the first {ind} axes of shape {x.shape} have {math.prod(first)} entries and the others "
            f"{math.prod(last)}; an invertible map needs as many."
        )
    return reshaped(inv(reshaped(x, (math.prod(first), math.prod(last)))), (*last, *first))


def tensorsolve(a: Any, b: Any, axes: Any = None) -> Any:
    """The tensor `x` with `tensordot(a, x, x.ndim) = b`; `axes` of `a` are moved to its end first.

    >>> import functad as fd
    >>> fd.ops.tensorsolve(fd.ops.reshape(2 * fd.eye(6), (6, 2, 3)), fd.ones(6)).tolist()
    [[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]
    """
    a, b = operand(a, where="tensorsolve"), operand(b, where="tensorsolve")
    if axes is not None:
        moved = [normalize_axis(i, a.ndim, "tensorsolve") for i in (axes if hasattr(axes, "__len__") else (axes,))]
        a = moveaxis(a, moved, list(range(a.ndim - len(moved), a.ndim)))
    found = a.shape[b.ndim :]
    if math.prod(found) != b.size or a.size != b.size**2:
        raise ShapeError(
            f"tensorsolve: a of shape {a.shape} must have the axes of b, shape {b.shape}, and then as many entries, "
            f"{b.size}; it has {math.prod(found)} in the axes {found}."
        )
    return reshaped(solve(reshaped(a, (b.size, b.size)), reshaped(b, (b.size,))), found)


def _solved(where: str, op: Op, a: Any, b: Any, params: tuple[Any, ...]) -> Any:
    """Broadcast, solve in single precision at least, and give a vector for a vector."""
    vector = b.ndim == 1
    n = a._shape[-1]
    if not b.ndim or b._shape[0 if vector else -2] != n:
        raise ShapeError(
            f"{where}: a of shape {a.shape} has {n} rows, so b needs {n} entries or rows (the last axis but one), got "
            f"shape {b.shape}."
            + (" For a stack of vectors write b[..., None]." if b.ndim and b._shape[-1] == n else "")
        )
    dtype = a._dtype
    a, b = widened([a, reshaped(b, (n, 1)) if vector else b])
    stack, k = b._shape[:-2], b._shape[-1]
    if a.ndim == 2 and stack:  # one matrix, many right-hand sides: all are columns of one
        wide = reshaped(moveaxis(b, -2, 0), (n, b.size // n if n else 0))
        x = moveaxis(reshaped(bind(op, (a, wide), params), (n, *stack, k)), 0, -2)
    else:
        x = bind(op, stacked(where, a, b), params)
    return cast(reshaped(x, x._shape[:-1]) if vector else x, dtype)
