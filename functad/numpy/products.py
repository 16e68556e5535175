"""Products of arrays, diagonals and triangles, with NumPy's arguments; bits."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.errors import ArgumentError, DTypeError, ShapeError
from functad.numpy.arguments import named, refuse_out
from functad.ops.axes import normalize_axis
from functad.ops.halves import rounded_once
from functad.ops.operand import operand, operands

__all__ = [
    "cross", "diag", "diagonal", "dot", "einsum", "einsum_path", "inner", "kron", "matvec", "outer", "packbits", "tensordot", "trace",
    "tril", "triu", "unpackbits", "vdot", "vecmat",
]  # fmt: skip

diag = named(ops.diag, v="x")
diagonal = named(ops.diagonal, a="x")
dot = named(ops.dot, "out", a="x", b="y")
einsum_path = ops.einsum_path
inner = named(ops.inner, a="x", b="y")
kron = named(ops.kron, a="x", b="y")
outer = named(ops.outer, "out", a="x", b="y")
tensordot = named(ops.tensordot, a="x", b="y")
tril = named(ops.tril, m="x")
triu = named(ops.triu, m="x")
vdot = named(ops.vdot, a="x", b="y")


@partial(named, a="x", b="y")
def cross(x: Any, y: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The cross product of vectors of three components; of two vectors of two, its third component alone.

    Args:
        x: the left factors. Vectors of two components beside those of three have 0 for the third.
        y: the right factors; the other axes broadcast.
        axisa: the axis of `x` that holds the components.
        axisb: that of `y`.
        axisc: that of the result.
        axis: all three at once.

    >>> import functad.numpy as fnp
    >>> fnp.cross([1, 0, 0], [0, 1, 0]).tolist(), fnp.cross([1, 2], [3, 4]).item()
    ([0, 0, 1], -2)
    """
    x, y = operands("cross", "numeric", (x, y))
    axisa, axisb = (axisa, axisb) if axis is None else (axis, axis)
    axisa, axisb = normalize_axis(axisa, x.ndim, "cross"), normalize_axis(axisb, y.ndim, "cross")
    flat = [z._shape[i] == 2 for z, i in ((x, axisa), (y, axisb))]
    if all(flat):
        return _flat_cross(ops.moveaxis(x, axisa, -1), ops.moveaxis(y, axisb, -1))
    x, y = (ops.pad(z, {i: (0, 1)}) if f else z for z, i, f in ((x, axisa, flat[0]), (y, axisb, flat[1])))
    return ops.cross(x, y, axisa, axisb, axisc if axis is None else axis)


@rounded_once
def _flat_cross(x: Any, y: Any) -> Any:
    return x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]


def einsum(
    subscripts: Any, /, *operands: Any, out: Any = None, dtype: Any = None, order: str = "K", casting: str = "safe",
    optimize: Any = True,
) -> Any:  # fmt: skip
    """Sums of products in Einstein's notation; the order of contraction is always optimised.

    >>> import functad.numpy as fnp
    >>> fnp.einsum("ij,ij->i", [[1, 2], [3, 4]], [[1, 1], [1, 1]]).tolist()
    [3, 7]
    """
    refuse_out(out, "einsum")
    if dtype is not None and isinstance(subscripts, str):
        operands = tuple([operand(x, where="einsum").astype(dtype) for x in operands])
    return ops.einsum(subscripts, *operands)


def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> Any:
    """The sum of the `offset`-th diagonal of two axes; small integers are summed as default ones.

    >>> import functad.numpy as fnp
    >>> fnp.trace([[1, 2], [3, 4]]).item()
    5
    """
    refuse_out(out, "trace")
    a = operand(a, where="trace")
    if dtype is None:
        return ops.trace(a, offset, axis1, axis2)
    return ops.trace(a.astype(dtype), offset, axis1, axis2).astype(dtype)


def matvec(x1: Any, x2: Any, /) -> Any:
    """Matrices times vectors; stacks broadcast.

    >>> import functad.numpy as fnp
    >>> fnp.matvec([[1, 2], [3, 4]], [[1, 0], [0, 1]]).tolist()
    [[1, 3], [2, 4]]
    """
    x1, x2 = operands("matvec", "numeric", (x1, x2))
    if not x2.ndim or x1.ndim < 2:
        raise ShapeError(f"matvec: takes matrices and vectors, got shapes {x1.shape} and {x2.shape}.")
    return ops.matmul(x1, ops.expand_dims(x2, -1))[..., 0]


def vecmat(x1: Any, x2: Any, /) -> Any:
    """Vectors, conjugated, times matrices; stacks broadcast.

    >>> import functad.numpy as fnp
    >>> fnp.vecmat([[1, 0], [0, 1]], [[1, 2], [3, 4]]).tolist()
    [[1, 2], [3, 4]]
    """
    x1, x2 = operands("vecmat", "numeric", (x1, x2))
    if not x1.ndim or x2.ndim < 2:
        raise ShapeError(f"vecmat: takes vectors and matrices, got shapes {x1.shape} and {x2.shape}.")
    return ops.matmul(ops.expand_dims(ops.conj(x1), -2), x2)[..., 0, :]


# --- bits


def packbits(a: Any, axis: int | None = None, bitorder: str = "big") -> Any:
    """Eight elements, zero or not, as the bits of one uint8; the last one is filled with zeros.

    >>> import functad.numpy as fnp
    >>> fnp.packbits([1, 0, 1]).tolist()
    [160]
    """
    a = operand(a, where="packbits")
    if a._dtype.kind not in "iub":
        raise DTypeError(f"packbits: takes integers or bools, got {a.dtype}.")
    if axis is None:
        a, axis = ops.ravel(a), 0
    bits = ops.moveaxis(a, normalize_axis(axis, a.ndim, "packbits"), -1) != 0
    missing = -bits.shape[-1] % 8
    bits = ops.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])
    bits = ops.reshape(bits, (*bits.shape[:-1], bits.shape[-1] // 8, 8))
    return ops.moveaxis(ops.sum(bits * operand(_powers(bitorder), a), -1).astype(np.uint8), -1, axis)


def unpackbits(a: Any, axis: int | None = None, count: int | None = None, bitorder: str = "big") -> Any:
    """The bits of uint8 as one element each, the first `count` of an axis (all but the last, if negative).

    >>> import functad.numpy as fnp
    >>> fnp.unpackbits(fnp.packbits([1, 0, 1]), count=3).tolist()
    [1, 0, 1]
    """
    a = operand(a, where="unpackbits")
    if a._dtype != dtypes.uint8:
        raise DTypeError(f"unpackbits: takes uint8, got {a.dtype}.")
    if axis is None:
        a, axis = ops.ravel(a), 0
    axis = normalize_axis(axis, a.ndim, "unpackbits")
    rows = ops.moveaxis(a, axis, -1)
    bits = ops.bitwise_and(ops.expand_dims(rows, -1), operand(_powers(bitorder), a)) != 0
    out = ops.reshape(bits, (*rows.shape[:-1], rows.shape[-1] * 8)).astype(np.uint8)
    if count is not None:
        missing = max(count - out.shape[-1], 0)
        out = ops.pad(out[..., :count], [(0, 0)] * (out.ndim - 1) + [(0, missing)])
    return ops.moveaxis(out, -1, axis)


def _powers(bitorder: str) -> Any:
    if bitorder not in ("big", "little"):
        raise ArgumentError(f"bitorder must be 'big' or 'little', got {bitorder!r}.")
    powers = (2 ** np.arange(8)).astype(np.uint8)
    return powers[::-1].copy() if bitorder == "big" else powers
