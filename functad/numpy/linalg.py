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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import base_backend, bind
from functad.errors import ShapeError
from functad.hints import missing_name
from functad.ops import (
    block_diag,
    cho_factor,
    cho_solve,
    cholesky,
    circulant,
    cond,
    det,
    eig,
    eigh,
    eigvals,
    eigvalsh,
    expm,
    hankel,
    householder_product,
    inv,
    lstsq,
    lu,
    lu_factor,
    lu_solve,
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
    sqrtm,
    svd,
    svdvals,
    tensordot,
    tensorinv,
    tensorsolve,
    toeplitz,
    triangular_solve,
    vecdot,
    vector_norm,
)
from functad.ops.axes import counted
from functad.ops.linalg_base import columns, dagger, hermitian, mm, narrowed, rows, square, widened
from functad.ops.linalg_eigen import eigh_op, near
from functad.ops.linalg_norms import norm
from functad.ops.logic import gate
from functad.ops.operand import operand
from functad.transforms.forward import jvp

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "expm", "funm_hermitian", "hankel", "householder_product", "inv", "lstsq", "lu", "lu_factor", "lu_solve",
    "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm", "outer", "pinv",
    "qr", "slogdet", "solve", "solve_triangular", "sqrtm", "svd", "svdvals", "tensordot", "tensorinv", "tensorsolve", "toeplitz", "trace",
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
    return ops.trace(x, counted(offset, "trace", "offset"), -2, -1)


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


def funm_hermitian(x: Any, fn: Callable[[Any], Any]) -> Any:
    """The function `fn` of real symmetric or Hermitian matrices: of their eigenvalues, in the eigenvectors.

    Args:
        x: square matrices; their Hermitian part is taken.
        fn: an elementwise function of a real tensor, such as `fnp.sqrt` or `lambda w: w**0.3`.

    The first derivative is exact for repeated eigenvalues too, where that of `eigh` lacks what it
    takes: the slope of `fn`. Higher derivatives are exact where no eigenvalues are repeated.

    >>> import functad as fd
    >>> import functad.numpy as fnp
    >>> fd.grad(lambda x: fnp.linalg.funm_hermitian(x, fnp.square)[0, 1])(fd.eye(2)).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    (x,) = square("funm_hermitian", x)
    (wide,) = widened([x])
    tolerance = float(np.finfo(wide._dtype).eps) ** (1 / 3)  # rounding over the gap, and the gap squared, are alike
    w, v = bind(eigh_op, (wide,), (tolerance,))
    values, slopes = jvp(fn, (w,), (ops.astype(w * 0 + 1, w._dtype),))
    pairs = gate((columns(slopes) + rows(slopes)) * 0.5, ops.logical_and(near(w, tolerance), _apart(w)))
    moved = hermitian(wide)
    turned = mm(dagger(v), moved - ops.stop_gradient(moved), v) * pairs  # 0 by value: what eigh left out
    return narrowed(mm(v * columns(values) + mm(v, turned), dagger(v)), x)


def _apart(w: Any) -> Any:
    """Whether two places are not the same one."""
    n = w._shape[-1]
    return base_backend(w).put(~np.eye(n, dtype=bool), dtypes.bool_)


def _matrices(x: Any, where: str) -> Any:
    x = operand(x, where=where)
    if x.ndim < 2:
        raise ShapeError(f"{where}: takes a matrix or a stack of them (the last two axes), got shape {x.shape}.")
    return x


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise missing_name(__name__, name, __dir__())
