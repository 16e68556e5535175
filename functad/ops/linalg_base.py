"""What the linear algebra ops share: stacks of matrices, checks, and what keeps zero cotangents zero."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import ShapeError
from functad.ops.arithmetic import conj
from functad.ops.contract import matmul
from functad.ops.diagonal import diagonal_op
from functad.ops.ieee import is_strict
from functad.ops.logic import gate
from functad.ops.op import Samples
from functad.ops.operand import operands
from functad.ops.rules import broadcast, cast, nondiff
from functad.ops.shape import on_rows, reshaped, transpose_op

__all__: list[str] = []

same_params = on_rows(lambda size, *params: params)
"""The `batch` rule of an op on stacks of matrices: rows are one more axis of the stack."""


# --- matrices in rules


def mT(x: Any) -> Any:
    """The last two axes swapped."""
    n = len(x._shape)
    return bind(transpose_op, (x,), ((*range(n - 2), n - 1, n - 2),))


def dagger(x: Any) -> Any:
    """The conjugate transpose."""
    return conj(mT(x)) if x._dtype.kind == "c" else mT(x)


def hermitian(x: Any) -> Any:
    """The Hermitian part."""
    return (x + dagger(x)) * 0.5


def mm(*factors: Any) -> Any:
    """The product of matrices, from the left."""
    return functools.reduce(matmul, factors)


def columns(v: Any) -> Any:
    """A vector as factors of the columns of a matrix."""
    return reshaped(v, (*v._shape[:-1], 1, v._shape[-1]))


def rows(v: Any) -> Any:
    """A vector as factors of the rows of a matrix."""
    return reshaped(v, (*v._shape, 1))


def diagonal_of(x: Any) -> Any:
    """The diagonal of matrices."""
    n = len(x._shape)
    return bind(diagonal_op, (x,), (0, n - 2, n - 1))


def numbers(g: Any) -> Any:
    """One number per matrix as a factor of all its entries."""
    return reshaped(g, (*g._shape, 1, 1))


def identity(xp: Any, x: Any) -> Any:
    """The identity of the size of the square matrices `x`, as one array."""
    return xp.eye(x.shape[-1], dtype=x.dtype)


# --- implementations


def in_float32(impl: Callable[..., Any]) -> Callable[..., Any]:
    """`impl`, computing half types in float32 and rounding once."""

    @functools.wraps(impl)
    def call(xp: Any, *xs: Any, **params: Any) -> Any:
        dtype = xs[0].dtype
        if not dtypes.is_half(dtype):
            return impl(xp, *xs, **params)
        out = impl(xp, *[x.astype(dtypes.float32) if x.dtype == dtype else x for x in xs], **params)
        if type(out) is tuple:
            return tuple([o.astype(dtype) if o.dtype == dtypes.float32 else o for o in out])
        return out.astype(dtype) if out.dtype == dtypes.float32 else out

    return call


def or_nan(fn: Callable[..., Any], x: Any, *others: Any) -> Any:
    """`fn` of a stack of matrices on NumPy, with NaN for those that LAPACK gives up on, as XLA has it."""
    try:
        return fn(x, *others)
    except np.linalg.LinAlgError:
        if x.ndim == 2:
            like = fn(np.eye(*x.shape, dtype=x.dtype), *others)
            return tuple(map(_nan_like, like)) if isinstance(like, tuple) else _nan_like(like)
        parts = [or_nan(fn, *each) for each in zip(x, *others, strict=True)]
        return tuple(map(np.stack, zip(*parts, strict=True))) if isinstance(parts[0], tuple) else np.stack(parts)


def _nan_like(x: Any) -> Any:
    return np.full_like(x, np.nan) if x.dtype.kind in "fc" else x


# --- a zero cotangent stays zero


def _reached(xp: Any, x: Any, *gs: Any, batch: int) -> Any:
    told = False
    for g in gs:
        told |= xp.any(g != 0, axis=tuple(range(batch, g.ndim)))
    return xp.isfinite(x) | told.reshape(told.shape + (1,) * (x.ndim - batch))  # type: ignore[attr-defined]  # an array, which has a shape


reached_op = nondiff(
    "reached", _reached, batch=on_rows(lambda size, batch: (batch + 1,)),
    samples=Samples(make=lambda rng: [
        ((np.array([[[np.inf, 1.0]], [[2.0, np.nan]]]), np.array([[0.0], [1.0]])), {"batch": 1}),
    ]),
    doc="Where x is finite, or a cotangent of its matrix is not all 0.",
)  # fmt: skip


def guarded(rule: Callable[..., Any]) -> Callable[..., Any]:
    """A rule for which a cotangent (or tangent) of a whole matrix that is 0 stays 0, inf and NaN notwithstanding.

    Entries that are finite are as they are, so that the derivative with respect to the cotangent is right.
    """

    @functools.wraps(rule)
    def call(g: Any, *args: Any) -> Any:
        out = rule(g, *args)
        if is_strict():
            return out
        gs, outs = (v if type(v) is tuple else (v,) for v in (g, out))
        batch = max([v.ndim for v in (*gs, *outs) if v is not None]) - 2
        kept = tuple([None if o is None else bind(gate, (o, bind(reached_op, (o, *gs), (batch,)))) for o in outs])
        return kept if type(out) is tuple else kept[0]

    return call


# --- the front doors' checks


def matrices(where: str, *xs: Any) -> tuple[Any, ...]:
    """The operands as floats, in single precision at least; the first must have two axes or more."""
    tensors = operands(where, "float", xs)
    if tensors[0].ndim < 2:
        _refuse_rank(where, tensors[0])
    return tensors


def square(where: str, *xs: Any) -> tuple[Any, ...]:
    """`matrices`, of which the first must be square."""
    tensors = matrices(where, *xs)
    m, n = tensors[0]._shape[-2:]
    if m != n:
        raise ShapeError(
            f"{where}: takes square matrices, got shape {tensors[0].shape}, that is {m} rows and {n} columns."
            + _RECTANGULAR.get(where, "")
        )
    return tensors


_RECTANGULAR = {
    "inv": " For a rectangular matrix write linalg.pinv(x).",
    "solve": " For a rectangular system write linalg.lstsq(a, b).",
    "eigh": " linalg.svd(x) takes rectangular ones.",
    "eig": " linalg.svd(x) takes rectangular ones.",
    "eigvals": " linalg.svdvals(x) takes rectangular ones.",
    "eigvalsh": " linalg.svdvals(x) takes rectangular ones.",
}


def _refuse_rank(where: str, x: Any) -> NoReturn:
    raise ShapeError(
        f"{where}: takes a matrix or a stack of them (the last two axes), got shape {x.shape}; write x[:, None] for a "
        "column or x[None, :] for a row."
    )


def widened(xs: Sequence[Any]) -> list[Any]:
    """Half types in float32, in which the ops and their rules then run."""
    return [cast(x, dtypes.accumulator(x._dtype)) for x in xs]


def narrowed(out: Any, x: Any) -> Any:
    """A result computed in float32 in the half type of `x`; others as they are."""
    return cast(out, x._dtype) if dtypes.is_half(x._dtype) else out


def stacked(where: str, x: Any, y: Any) -> tuple[Any, Any]:
    """Two stacks of matrices, broadcast to a common one."""
    if x._shape[:-2] == y._shape[:-2]:
        return x, y
    try:
        stack = np.broadcast_shapes(x._shape[:-2], y._shape[:-2])
    except ValueError:
        raise ShapeError(
            f"{where}: the stacks {x.shape[:-2]} of a, shape {x.shape}, and {y.shape[:-2]} of b, shape {y.shape}, do not "
            "broadcast: from the last axis backwards, lengths must be equal or 1."
        ) from None
    return broadcast(x, (*stack, *x._shape[-2:])), broadcast(y, (*stack, *y._shape[-2:]))


def positive_definite(rng: np.random.Generator, *shape: int) -> Any:
    """For samples: well-conditioned Hermitian matrices, real."""
    x = rng.uniform(-1, 1, (*shape, shape[-1]))
    return x @ x.swapaxes(-1, -2) + np.eye(shape[-1])


def regular(rng: np.random.Generator, *shape: int) -> Any:
    """For samples: well-conditioned matrices."""
    return rng.uniform(-1, 1, (*shape, shape[-1])) + (shape[-1] + 1) * np.eye(shape[-1])


def complex_of(rng: np.random.Generator, x: Any) -> Any:
    """For samples: `x` with a small imaginary part."""
    return x + 0.3j * rng.uniform(-1, 1, x.shape)
