"""Norms of vectors and matrices, condition numbers, products of many matrices."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.arithmetic import abs as abs_
from functad.ops.arithmetic import div
from functad.ops.axes import normalize_axes, normalize_axis, several
from functad.ops.contract import matmul
from functad.ops.halves import rounded_once
from functad.ops.linalg_base import matrices, narrowed, square, widened
from functad.ops.linalg_solve import inv_op
from functad.ops.linalg_svd import svdvals_op
from functad.ops.logic import isnan, logical_and, logical_not, where
from functad.ops.operand import operands
from functad.ops.reduce import any as any_
from functad.ops.reduce import largest_size, smallest_size
from functad.ops.reduce import norm as vector_norm_
from functad.ops.reduce import sum as sum_
from functad.ops.shape import expand_dims, moveaxis

__all__ = ["cond", "matrix_norm", "multi_dot", "vector_norm"]


def vector_norm(x: Any, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm of the elements over axes (all of them by default) as one vector.

    Args:
        x: anything a tensor can be made of.
        axis: an int, several, or None.
        keepdims: whether reduced axes stay, with length 1.
        ord: 2 (Euclidean), 1, inf, -inf, 0 (the number of nonzeros), or any other number.

    The derivative at 0 is 0. Raises `ArgumentError` for another `ord`.

    >>> import functad as fd
    >>> fd.ops.vector_norm(fd.tensor([[3.0, 4.0]]), axis=1).tolist()
    [5.0]
    """
    return vector_norm_(x, ord, axis, keepdims)


def matrix_norm(x: Any, keepdims: bool = False, ord: Any = "fro") -> Any:
    """The norm of the matrices in the last two axes.

    Args:
        x: matrices.
        keepdims: whether the two axes stay, with length 1.
        ord: "fro" (Frobenius), "nuc" (the sum of the singular values), 1 or -1 (the largest or smallest
            sum of a column), inf or -inf (of a row), 2 or -2 (the largest or smallest singular value).

    The derivative of "fro" and "nuc" at 0 is 0, and that of "nuc" is exact for equal singular values.
    Raises `ArgumentError` for another `ord`.

    >>> import functad as fd
    >>> fd.ops.matrix_norm(fd.tensor([[0.0, 2.0], [1.0, 0.0]]), ord="nuc").item()
    3.0
    """
    (x,) = matrices("matrix_norm", x)
    out = _matrix_norm("matrix_norm", x, ord)
    return expand_dims(out, (-2, -1)) if keepdims else out


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of a vector or a matrix, by NumPy's rules.

    Args:
        x: anything a tensor can be made of.
        ord: the order, see `vector_norm` and `matrix_norm`; None for the Euclidean or Frobenius norm.
        axis: an int for vectors, two for matrices; None for the vector of all elements if `ord` is
            None, else for a tensor with one or two axes.
        keepdims: whether reduced axes stay, with length 1.

    The derivative at 0 is 0. Raises `ArgumentError` for an order that vectors (matrices) do not have,
    `ShapeError` for axes that name neither.

    >>> import functad as fd
    >>> from functad.numpy import linalg
    >>> linalg.norm(fd.tensor([[0.0, 2.0], [1.0, 0.0]]), 2).item()
    2.0
    """
    (x,) = operands("norm", "float", (x,))
    if axis is None and ord is None:
        return vector_norm_(x, None, None, keepdims)
    if axis is None:
        if x.ndim not in (1, 2):
            raise ShapeError(
                f"norm: with ord={ord!r} and no axis x must be a vector or a matrix, got shape {x.shape}; say which with "
                "axis=-1 or axis=(-2, -1), or write linalg.vector_norm(x, ord=...) for all elements as one vector."
            )
        axes: Sequence[int] = tuple(range(x.ndim))
    else:
        axes = [normalize_axis(a, x.ndim, "norm") for a in several(axis)]
    if len(axes) == 1:
        if isinstance(ord, str):
            raise ArgumentError(
                f"norm: ord={ord!r} is an order of matrices; for vectors use None, a number, inf or -inf."
            )
        return vector_norm_(x, ord, tuple(axes), keepdims)
    if len(axes) != 2 or axes[0] == axes[1]:
        raise ShapeError(f"norm: axis={axis!r} must be one axis (vectors) or two different ones (matrices).")
    out = _matrix_norm("norm", moveaxis(x, list(axes), [-2, -1]), ord)
    return expand_dims(out, normalize_axes(tuple(axes), x.ndim, "norm")) if keepdims else out


def _matrix_norm(where_: str, x: Any, ord: Any) -> Any:
    """The norm over the last two axes."""
    if ord is None or ord == "fro":
        return vector_norm_(x, None, (-2, -1))
    if ord == "nuc" or (_is_number(ord) and abs(ord) == 2):
        s = bind(svdvals_op, widened([x]))
        if ord == "nuc":
            return narrowed(sum_(s, -1), x)
        return narrowed((largest_size if ord > 0 else smallest_size)(where_, s, -1), x)
    if not _is_number(ord) or (abs(ord) != 1 and not math.isinf(ord)):
        raise ArgumentError(
            f"{where_}: ord={ord!r} is not the order of a matrix norm; use 'fro', 'nuc', 1, -1, 2, -2, inf or -inf, or "
            "give one axis for vectors."
        )
    sums = sum_(abs_(x), -2 if abs(ord) == 1 else -1)
    return (largest_size if ord > 0 else smallest_size)(where_, sums, -1)


def _is_number(ord: Any) -> bool:
    return isinstance(ord, numbers.Real) and not isinstance(ord, bool)


def cond(x: Any, p: Any = None) -> Any:
    """The condition number: how much a relative error may grow when a system is solved.

    Args:
        x: matrices; square ones unless `p` is None, 2 or -2.
        p: None or 2 for the ratio of the largest to the smallest singular value, -2 for its inverse,
            or another order of `matrix_norm`: the norm of `x` times that of its inverse.

    A singular matrix gives inf (or a number beyond 1 / eps, where rounding hides that it is singular).

    >>> import functad as fd
    >>> fd.ops.cond(fd.tensor([[4.0, 0.0], [0.0, 2.0]])).item()
    2.0
    """
    plain = p is None or p in (2, -2)
    (x,) = matrices("cond", x) if plain else square("cond", x)
    if 0 in x._shape[-2:]:
        raise ShapeError(f"cond: a matrix without entries, shape {x.shape}, has no condition number.")
    if plain:
        s = bind(svdvals_op, widened([x]))
        out = div(s[..., -1], s[..., 0]) if p == -2 else div(s[..., 0], s[..., -1])
    else:
        (wide,) = widened([x])
        out = _matrix_norm("cond", wide, p) * _matrix_norm("cond", bind(inv_op, (wide,)), p)
    broken = logical_and(isnan(out), logical_not(any_(isnan(x), (-2, -1))))
    return narrowed(where(broken, float("inf"), out), x)


@rounded_once
def multi_dot(arrays: Any) -> Any:
    """The product of several matrices, multiplied in the order that takes the fewest operations.

    The first may be a row and the last a column (one axis). Raises `ShapeError` if two neighbours do
    not fit.

    >>> import functad as fd
    >>> fd.ops.multi_dot([fd.ones((10, 2)), fd.ones((2, 10)), fd.ones((10, 1))]).shape
    (10, 1)
    """
    xs = list(operands("multi_dot", "numeric", list(arrays)))
    if len(xs) < 2:
        raise ArgumentError(f"multi_dot: takes at least two matrices, got {len(xs)}.")
    for i, x in enumerate(xs):
        if x.ndim != 2 and not (x.ndim == 1 and i in (0, len(xs) - 1)):
            raise ShapeError(
                f"multi_dot: factor {i} has shape {x.shape}; all are matrices, and the first and last may be vectors. For "
                "stacks write x @ y @ z."
            )
    sides = [1 if x.ndim == 1 and not i else x._shape[0] for i, x in enumerate(xs)]
    sides.append(1 if xs[-1].ndim == 1 else xs[-1]._shape[-1])
    for i in range(1, len(xs)):
        if xs[i - 1]._shape[-1] != xs[i]._shape[0]:
            raise ShapeError(
                f"multi_dot: factor {i - 1} of shape {xs[i - 1].shape} and factor {i} of shape {xs[i].shape} do not fit: "
                f"{xs[i - 1].shape[-1]} columns, {xs[i].shape[0]} rows."
            )
    return _chain(xs, _splits(sides), 0, len(xs) - 1)


def _splits(sides: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where to split each product of neighbouring matrices, of which the `i`-th is `sides[i]` by `sides[i + 1]`."""
    n = len(sides) - 1
    cost = {(i, i): 0 for i in range(n)}
    best: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            found = [(cost[i, k] + cost[k + 1, j] + sides[i] * sides[k + 1] * sides[j + 1], k) for k in range(i, j)]
            cost[i, j], best[i, j] = min(found)
    return best


def _chain(xs: Sequence[Any], best: dict[tuple[int, int], int], i: int, j: int) -> Any:
    if i == j:
        return xs[i]
    k = best[i, j]
    return matmul(_chain(xs, best, i, k), _chain(xs, best, k + 1, j))
