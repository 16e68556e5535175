"""Grids, and the indices of places in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functad import creation, dtypes, ops
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from functad.numpy.arguments import host
from functad.ops.axes import counted
from functad.ops.operand import operand

__all__ = [
    "bartlett", "blackman", "c_", "diag_indices", "diag_indices_from", "hamming", "hanning", "index_exp", "indices", "ix_",
    "kaiser", "mask_indices", "meshgrid", "mgrid", "ogrid", "r_", "s_", "tril_indices", "tril_indices_from", "triu_indices",
    "triu_indices_from",
]  # fmt: skip


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """The coordinates of every point of a grid, one tensor per vector.

    With `indexing="xy"` the first vector runs along axis 1, with "ij" along axis 0; `sparse` leaves
    the other axes at length 1.

    >>> import functad.numpy as fnp
    >>> [x.tolist() for x in fnp.meshgrid([1, 2], [3, 4])]
    [[[1, 2], [1, 2]], [[3, 3], [4, 4]]]
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: indexing must be 'xy' or 'ij', got {indexing!r}.")
    like = next((x for x in xi if isinstance(x, Handle)), None)
    vectors = [operand(x, like, where="meshgrid") for x in xi]
    for i, x in enumerate(vectors):
        if x.ndim > 1:
            raise ShapeError(f"meshgrid: argument {i} must be a vector, got shape {x.shape}.")
    order = list(range(len(vectors)))
    if indexing == "xy" and len(order) > 1:
        order[:2] = 1, 0
    shape = [1] * len(vectors)
    for axis, x in zip(order, vectors, strict=True):
        shape[axis] = x.size
    out = [
        ops.reshape(x, tuple([x.size if i == axis else 1 for i in range(len(vectors))]))
        for axis, x in zip(order, vectors, strict=True)
    ]
    return out if sparse else [ops.broadcast_to(x, tuple(shape)) for x in out]


class _Grid:
    """What `mgrid` and `ogrid` are: an index of slices makes a grid."""

    def __init__(self, name: str, dense: bool):
        self._name = name
        self._dense = dense

    def __getitem__(self, key: Any) -> Any:
        if self._dense:
            return creation.tensor(np.mgrid[key])
        found: Any = np.ogrid[key]
        return tuple([creation.tensor(x) for x in found]) if isinstance(found, tuple) else creation.tensor(found)

    def __repr__(self) -> str:
        return f"<{self._name}: index it with slices, {self._name}[0:3, 0:2]; an imaginary step is a number of points>"


mgrid = _Grid("mgrid", dense=True)
ogrid = _Grid("ogrid", dense=False)


def indices(dimensions: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    """The index of every place of a grid, axis by axis (stacked, or with `sparse` a tuple).

    >>> import functad.numpy as fnp
    >>> fnp.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    wanted = dtypes.default_int() if dtype is None else dtypes.parse(dtype, "indices")
    found: Any = np.indices(
        creation.as_shape(dimensions if isinstance(dimensions, int) else tuple(dimensions), "indices"), sparse=sparse
    )  # type: ignore[call-overload]
    return tuple([creation.tensor(x, wanted) for x in found]) if sparse else creation.tensor(found, wanted)


def ix_(*args: Any) -> tuple[Any, ...]:
    """Vectors of indices (or masks) as an open grid: `x[ix_(rows, columns)]`.

    >>> import functad.numpy as fnp
    >>> [x.shape for x in fnp.ix_([0, 1], [2, 3, 4])]
    [(2, 1), (1, 3)]
    """
    found = [host(a, "ix_") for a in args]
    for i, x in enumerate(found):
        if x.ndim != 1:
            raise ShapeError(f"ix_: argument {i} must be a vector, got shape {x.shape}.")
        if x.size and x.dtype.kind not in "iub":
            raise DTypeError(f"ix_: argument {i} must hold integers or bools, got {x.dtype}.")
    return tuple([creation.tensor(x, dtypes.default_int()) for x in np.ix_(*found)])


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """The indices of the main diagonal of an array with `ndim` axes of length `n`.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.diag_indices(2)]
    [[0, 1], [0, 1]]
    """
    return (creation.arange(n),) * ndim


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """`diag_indices` for the shape of `arr`, whose lengths are all equal.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.diag_indices_from(fnp.ones((2, 2)))]
    [[0, 1], [0, 1]]
    """
    shape = operand(arr, where="diag_indices_from").shape
    if len(shape) < 2 or len(set(shape)) > 1:
        raise ShapeError(f"diag_indices_from: takes at least two axes, all of one length, got shape {shape}.")
    return diag_indices(shape[0], len(shape))


def _triangle(where: str, n: Any, m: Any, k: Any, below: int = 0) -> np.ndarray[Any, Any]:
    rows, columns = creation.as_shape((n, n if m is None else m), where)
    return np.tri(rows, columns, counted(k, where, "k") - below, dtype=bool)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """The rows and columns of the lower triangle of an `n` by `m` matrix, up to the `k`-th diagonal.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return _positions(_triangle("tril_indices", n, m, k))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """The rows and columns of the upper triangle of an `n` by `m` matrix, from the `k`-th diagonal.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.triu_indices(2)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return _positions(~_triangle("triu_indices", n, m, k, below=1))


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`tril_indices` for the shape of a matrix.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.tril_indices_from(fnp.ones((2, 2)), -1)]
    [[1], [0]]
    """
    rows, columns = operand(arr, where="tril_indices_from").shape
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`triu_indices` for the shape of a matrix.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.triu_indices_from(fnp.ones((2, 2)), 1)]
    [[0], [1]]
    """
    rows, columns = operand(arr, where="triu_indices_from").shape
    return triu_indices(rows, k, columns)


def _positions(mask: Any) -> tuple[Any, Any]:
    rows, columns = np.nonzero(mask)
    wanted = dtypes.default_int()
    return creation.tensor(rows, wanted), creation.tensor(columns, wanted)


def mask_indices(n: int, mask_func: Callable[..., Any], k: Any = 0) -> tuple[Any, ...]:
    """The indices of an `n` by `n` matrix that a function such as `triu` leaves nonzero.

    >>> import functad.numpy as fnp
    >>> [i.tolist() for i in fnp.mask_indices(2, fnp.triu)]
    [[0, 0, 1], [0, 1, 1]]
    """
    found: tuple[Any, ...] = ops.nonzero(mask_func(creation.ones((n, n)), k))
    return found


s_, index_exp = np.s_, np.index_exp


class _Joined:
    """What `r_` and `c_` are: an index of numbers, slices and tensors joins them."""

    def __init__(self, name: str, columns: bool):
        self._name = name
        self._columns = columns

    def __getitem__(self, key: Any) -> Any:
        items = key if isinstance(key, tuple) else (key,)
        if any(isinstance(item, str) for item in items):
            raise ArgumentTypeError(f"{self._name}: takes no directives, got {key!r}; use concatenate or stack.")
        parts = [creation.tensor(np.r_[item]) if isinstance(item, slice) else item for item in items]
        like = next((x for x in parts if isinstance(x, Handle)), None)
        parts = [ops.atleast_1d(operand(x, like, where=self._name)) for x in parts]
        if self._columns:
            parts = [x if x.ndim > 1 else ops.expand_dims(x, 1) for x in parts]
        return ops.concatenate(parts, -1 if self._columns else 0)

    def __repr__(self) -> str:
        return f"<{self._name}: index it with what to join, {self._name}[x, 0, 1:3]>"


r_ = _Joined("r_", columns=False)
c_ = _Joined("c_", columns=True)


# --- windows


def bartlett(M: int) -> Any:  # noqa: N803  # NumPy's name
    """The triangular window of `M` points, 0 at the ends.

    >>> import functad.numpy as fnp
    >>> fnp.bartlett(3).tolist()
    [0.0, 1.0, 0.0]
    """
    return creation.tensor(np.bartlett(M))


def blackman(M: int) -> Any:  # noqa: N803
    """Blackman's window of `M` points.

    >>> import functad.numpy as fnp
    >>> fnp.blackman(3).shape
    (3,)
    """
    return creation.tensor(np.blackman(M))


def hamming(M: int) -> Any:  # noqa: N803
    """Hamming's window of `M` points.

    >>> import functad.numpy as fnp
    >>> fnp.hamming(1).tolist()
    [1.0]
    """
    return creation.tensor(np.hamming(M))


def hanning(M: int) -> Any:  # noqa: N803
    """Hann's window of `M` points.

    >>> import functad.numpy as fnp
    >>> fnp.hanning(3).tolist()
    [0.0, 1.0, 0.0]
    """
    return creation.tensor(np.hanning(M))


def kaiser(M: int, beta: float) -> Any:  # noqa: N803
    """Kaiser's window of `M` points with the parameter `beta`.

    >>> import functad.numpy as fnp
    >>> fnp.kaiser(3, 0.0).tolist()
    [1.0, 1.0, 1.0]
    """
    return creation.tensor(np.kaiser(M, beta))
