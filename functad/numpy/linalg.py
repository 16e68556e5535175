"""Linear algebra: NumPy's names (and SciPy's for what NumPy lacks), the array API's arguments.

Everything takes stacks of matrices, in the last two axes, and is differentiable. A singular matrix
gives inf or NaN and one that is not positive definite a Cholesky factor of NaN, on every device:
raising an error would have to wait for the values.

>>> import functad as fd
>>> import functad.numpy as fnp
>>> fnp.linalg.solve(fd.tensor([[2.0, 0.0], [0.0, 4.0]]), fd.tensor([2.0, 2.0])).tolist()
[1.0, 0.5]
"""

from __future__ import annotations

import operator
from typing import Any

from functad import dtypes, ops
from functad.errors import ShapeError
from functad.ops import (
    cholesky,
    cond,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    expm,
    inv,
    lstsq,
    lu,
    matmul,
    matrix_norm,
    matrix_power,
    matrix_rank,
    matrix_transpose,
    multi_dot,
    pinv,
    qr,
    slogdet,
    solve,
    solve_triangular,
    svd,
    svdvals,
    tensordot,
    tensorinv,
    tensorsolve,
    triangular_solve,
    vecdot,
    vector_norm,
)
from functad.ops.linalg_norms import norm
from functad.ops.operand import operand

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "expm", "inv", "lstsq", "lu",
    "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv",
    "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "trace",
    "triangular_solve", "vecdot", "vector_norm",
]  # fmt: skip


def cross(x1: Any, x2: Any, axis: int = -1) -> Any:
    """The cross product of vectors of three components along `axis`; the other axes broadcast.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.cross(fd.tensor([1.0, 0.0, 0.0]), fd.tensor([0.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    return ops.cross(x1, x2, axis=axis)


def diagonal(x: Any, offset: int = 0) -> Any:
    """The `offset`-th diagonal of matrices (the last two axes).

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.diagonal(fd.tensor([[[1.0, 2.0], [3.0, 4.0]]])).tolist()
    [[1.0, 4.0]]
    """
    return ops.diagonal(_matrices(x, "diagonal"), offset, -2, -1)


def trace(x: Any, offset: int = 0, dtype: Any = None) -> Any:
    """The sum of the `offset`-th diagonal of matrices (the last two axes), in `dtype` if one is given.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.trace(fd.tensor([[1.0, 2.0], [3.0, 4.0]])).item()
    5.0
    """
    x = _matrices(x, "trace")
    x = x if dtype is None else ops.astype(x, dtypes.parse(dtype, "trace"))
    return ops.trace(x, operator.index(offset), -2, -1)


def outer(x1: Any, x2: Any) -> Any:
    """All products of an element of the vector `x1` (rows) with one of the vector `x2` (columns).

    Raises `ShapeError` for anything but vectors; `functad.numpy.outer` flattens.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fnp.linalg.outer(fd.tensor([1.0, 2.0]), fd.tensor([3.0, 4.0])).tolist()
    [[3.0, 4.0], [6.0, 8.0]]
    """
    first = operand(x1, where="outer")
    second = operand(x2, first, where="outer")
    if first.ndim != 1 or second.ndim != 1:
        raise ShapeError(
            f"outer: takes two vectors, got shapes {first.shape} and {second.shape}; functad.numpy.outer flattens its "
            "arguments."
        )
    return ops.outer(first, second)


def _matrices(x: Any, where: str) -> Any:
    x = operand(x, where=where)
    if x.ndim < 2:
        raise ShapeError(f"{where}: takes a matrix or a stack of them (the last two axes), got shape {x.shape}.")
    return x
