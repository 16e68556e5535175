"""Matrices that are built from vectors by moving them along."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad.errors import ShapeError
from functad.ops.arithmetic import conj
from functad.ops.index import take_inside
from functad.ops.join import concatenate
from functad.ops.operand import operand, operands

__all__ = ["circulant", "hankel", "toeplitz"]


def toeplitz(c: Any, r: Any = None) -> Any:
    """Matrices with equal elements along each diagonal: the first column `c`, the first row `r`.

    Without `r` the row is the conjugate of `c`. The first element of `r` is not read. Further axes in front are those of
    a stack. Raises `ShapeError` for a number.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.toeplitz([1.0, 2.0], [1.0, 5.0, 6.0]).tolist()
    [[1.0, 5.0, 6.0], [2.0, 1.0, 5.0]]
    """
    c, r = _vectors("toeplitz", c, conj(operand(c, where="toeplitz")) if r is None else r)
    m, n = c.shape[-1], r.shape[-1]
    line = concatenate([take_inside(r, np.arange(n - 1, 0, -1), -1), c], -1)  # the diagonals from the upper right
    return take_inside(line, np.arange(m)[:, None] - np.arange(n) + max(n - 1, 0), -1)


def hankel(c: Any, r: Any = None) -> Any:
    """Matrices with equal elements along each antidiagonal: the first column `c`, the last row `r`, 0 without it.

    The first element of `r` is not read. Further axes in front are those of a stack.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.hankel([1.0, 2.0], [2.0, 5.0, 6.0]).tolist()
    [[1.0, 2.0, 5.0], [2.0, 5.0, 6.0]]
    """
    c, r = _vectors("hankel", c, operand(c, where="hankel") * 0 if r is None else r)
    m, n = c.shape[-1], r.shape[-1]
    line = concatenate([c, take_inside(r, np.arange(1, n), -1)], -1)
    return take_inside(line, np.arange(m)[:, None] + np.arange(n), -1)


def circulant(c: Any) -> Any:
    """Square matrices whose columns are `c`, each moved on by one: products with them are circular convolutions.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.circulant([1.0, 2.0, 3.0]).tolist()
    [[1.0, 3.0, 2.0], [2.0, 1.0, 3.0], [3.0, 2.0, 1.0]]
    """
    (c,) = _vectors("circulant", c)
    places = np.arange(c.shape[-1])
    return take_inside(c, (places[:, None] - places) % max(c.shape[-1], 1), -1)


def _vectors(where: str, *xs: Any) -> tuple[Any, ...]:
    vectors = operands(where, "numeric", xs)
    if any(not v.ndim for v in vectors):
        raise ShapeError(f"{where}: takes vectors, or stacks of them (the last axis), got a number; write [x] for one.")
    return vectors
