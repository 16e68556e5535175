"""Convolution of vectors; the derivatives of the two ops here are each other."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.arithmetic import conj
from functad.ops.op import Cost, Op
from functad.ops.operand import operands
from functad.ops.plan import start
from functad.ops.rules import multilinear
from functad.ops.shape import fixed, flip
from functad.ops.slices import Cut, slice_op

__all__ = ["convolve", "correlate"]


def _whole(x: Any, y: Any, mode: str) -> Any:
    """A convolution of integers on XLA, where jax.numpy would compute in floats."""
    turned, n = y[::-1], len(y)
    x = jnp.pad(x, n - 1) if mode == "full" else x
    windows = x[np.arange(len(x) - n + 1)[:, None] + np.arange(n)]
    return jnp.sum(windows * turned, 1, dtype=x.dtype)


def _convolution(xp: Any, x: Any, y: Any, mode: str) -> Any:
    wide = dtypes.accumulator(x.dtype)
    if xp is not np and x.dtype.kind in "iu":
        return _whole(x, y, mode)
    return xp.convolve(x.astype(wide), y.astype(wide), mode=mode).astype(x.dtype)


def _full(xp: Any, x: Any, y: Any) -> Any:
    return _convolution(xp, x, y, "full")


def _valid(xp: Any, x: Any, y: Any) -> Any:
    if len(x) < len(y):  # NumPy would exchange them
        raise ShapeError(f"correlate_valid: the first vector is the longer one, got lengths {len(x)} and {len(y)}.")
    return _convolution(xp, x, y[::-1], "valid")


convolve_op: Op = multilinear(
    "convolve", _full,
    lambda g, y: bind(correlate_op, (g, y)), lambda g, x: bind(correlate_op, (g, x)), cost=Cost.COMPUTE,
    samples=fixed((((4,), (3,)), {}), (((2,), (3,)), {}), (((1,), (1,)), {})),
    doc="out[k] = sum over i of x[i] * y[k - i], of length len(x) + len(y) - 1.",
)  # fmt: skip
correlate_op: Op = multilinear(
    "correlate_valid", _valid,
    lambda g, y: bind(convolve_op, (g, y)), lambda g, x: bind(correlate_op, (x, g)), cost=Cost.COMPUTE,
    samples=fixed((((4,), (3,)), {}), (((3,), (3,)), {}), (((3,), (1,)), {})),
    doc="out[k] = sum over i of x[k + i] * y[i], of length len(x) - len(y) + 1.",
)  # fmt: skip


def convolve(a: Any, v: Any, mode: str = "full") -> Any:
    """The convolution of two vectors, as in NumPy.

    Args:
        a: a vector.
        v: another; the longer one counts as the first.
        mode: "full", "same" (the length of the longer, centred) or "valid" (no padding).

    Raises `ShapeError` unless both are vectors that are not empty.

    >>> import functad as fd
    >>> fd.ops.convolve([1.0, 2.0, 3.0], [0.0, 1.0, 0.5]).tolist()
    [0.0, 1.0, 2.5, 4.0, 1.5]
    """
    return _convolve("convolve", a, v, mode)


def correlate(a: Any, v: Any, mode: str = "valid") -> Any:
    """The correlation of two vectors, as in NumPy: sums of `a[k + i] * conj(v[i])`; see `convolve`.

    >>> import functad as fd
    >>> fd.ops.correlate([1.0, 2.0, 3.0], [0.0, 1.0, 0.5]).tolist()
    [3.5]
    """
    a, v = operands("correlate", "numeric", (a, v))
    return _convolve("correlate", a, flip(conj(v)) if v.ndim else v, mode)


def _convolve(where: str, a: Any, v: Any, mode: str) -> Any:
    a, v = operands(where, "numeric", (a, v))
    for name, x in (("a", a), ("v", v)):
        if x.ndim != 1 or not x.size:
            raise ShapeError(f"{where}: {name} must be a vector that is not empty, got shape {x.shape}.")
    if mode not in ("full", "same", "valid"):
        raise ArgumentError(f"{where}: mode must be 'full', 'same' or 'valid', got {mode!r}.")
    long, short = (a, v) if a.size >= v.size else (v, a)
    if mode == "valid":
        return bind(correlate_op, (long, flip(short)))
    full = bind(convolve_op, (long, short))
    if mode == "full" or short.size == 1:
        return full
    odd = where == "correlate" and short is a  # NumPy correlates (v, a) then, and turns the result round
    first = (short.size - 1 + odd) // 2
    return bind(slice_op, (full, start(full, first, full.size)), ((Cut(long.size),),))
