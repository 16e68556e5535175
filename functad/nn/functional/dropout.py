"""Dropout: elements, or whole channels, are left out at random, and the others grow to keep the mean.

Without a `key` the numbers come from the default generator (`fd.seed`), which `fd.vmap` and `fd.jit` refuse: there
pass `key=...`.
"""

from __future__ import annotations

import math
from typing import Any

from functad import dtypes, ops
from functad.errors import DTypeError, ShapeError
from functad.nn.functional.activation import drawn
from functad.nn.functional.checks import probability
from functad.ops.logic import gate
from functad.ops.operand import operand

__all__ = ["alpha_dropout", "dropout", "dropout1d", "dropout2d", "dropout3d", "feature_alpha_dropout"]

_ALPHA = -1.7580993408473766  # what SELU tends to for negative numbers: the value of an element that is left out

_SHAPES = {1: "(N, C, L) or (C, L)", 2: "(N, C, H, W) or (N, C, L)", 3: "(N, C, D, H, W) or (C, D, H, W)"}


def dropout(x: Any, p: float = 0.5, training: bool = True, key: Any = None) -> Any:
    """Each element is 0 with probability `p`, else divided by `1 - p`; `x` itself unless `training` (2012).

    Raises `ArgumentError` for a `p` outside [0, 1], `DTypeError` for a tensor of integers.

    >>> import functad as fd
    >>> fd.nn.functional.dropout(fd.ones(6), 0.5, key=fd.random.key(1)).tolist()
    [0.0, 2.0, 0.0, 0.0, 2.0, 2.0]
    """
    return _dropped("dropout", x, p, training, key, None)


def dropout1d(x: Any, p: float = 0.5, training: bool = True, key: Any = None) -> Any:
    """`dropout` of whole channels: `x` has shape (N, C, L) or (C, L).

    >>> import functad as fd
    >>> fd.nn.functional.dropout1d(fd.ones((3, 2)), 0.5, key=fd.random.key(2)).tolist()
    [[2.0, 2.0], [2.0, 2.0], [0.0, 0.0]]
    """
    return _dropped("dropout1d", x, p, training, key, _channels("dropout1d", x, 1))


def dropout2d(x: Any, p: float = 0.5, training: bool = True, key: Any = None) -> Any:
    """`dropout` of whole channels: `x` has shape (N, C, H, W) or, as in torch, (N, C, L).

    >>> import functad as fd
    >>> fd.nn.functional.dropout2d(fd.ones((1, 2, 3, 3)), 0.0).shape
    (1, 2, 3, 3)
    """
    return _dropped("dropout2d", x, p, training, key, _channels("dropout2d", x, 2))


def dropout3d(x: Any, p: float = 0.5, training: bool = True, key: Any = None) -> Any:
    """`dropout` of whole channels: `x` has shape (N, C, D, H, W) or (C, D, H, W).

    >>> import functad as fd
    >>> fd.nn.functional.dropout3d(fd.ones((1, 2, 3, 3, 3)), 0.0).shape
    (1, 2, 3, 3, 3)
    """
    return _dropped("dropout3d", x, p, training, key, _channels("dropout3d", x, 3))


def alpha_dropout(x: Any, p: float = 0.5, training: bool = False, key: Any = None) -> Any:
    """Dropout that keeps mean 0 and variance 1, for `selu`: what is left out takes its least value (2017).

    As in torch it does nothing unless `training=True` is passed.

    >>> import functad as fd
    >>> fd.nn.functional.alpha_dropout(fd.ones(2)).tolist()
    [1.0, 1.0]
    """
    return _alpha_dropped("alpha_dropout", x, p, training, key, None)


def feature_alpha_dropout(x: Any, p: float = 0.5, training: bool = False, key: Any = None) -> Any:
    """`alpha_dropout` of whole channels: `x` has shape (N, C, ...).

    >>> import functad as fd
    >>> fd.nn.functional.feature_alpha_dropout(fd.ones((1, 2, 3))).shape
    (1, 2, 3)
    """
    x = _floats("feature_alpha_dropout", x)
    if x.ndim < 2:
        raise ShapeError(f"feature_alpha_dropout: x has shape (N, C, ...), got {x.shape}.")
    shape = (*x.shape[:2], *[1] * (x.ndim - 2))
    return _alpha_dropped("feature_alpha_dropout", x, p, training, key, shape)


def _dropped(where: str, x: Any, p: Any, training: bool, key: Any, shape: tuple[int, ...] | None) -> Any:
    p, x = probability(where, p), _floats(where, x)
    if not training or p == 0:
        return x
    if p == 1:
        return gate(x, operand(False, x))
    return gate(x * (1 / (1 - p)), drawn(x, key, shape) >= p)


def _alpha_dropped(where: str, x: Any, p: Any, training: bool, key: Any, shape: tuple[int, ...] | None) -> Any:
    p, x = probability(where, p), _floats(where, x)
    if not training or p == 0:
        return x
    if p == 1:
        return gate(x, operand(False, x))
    scale = 1 / math.sqrt((1 - p) * (1 + p * _ALPHA**2))
    return ops.where(drawn(x, key, shape) >= p, x, _ALPHA) * scale - scale * _ALPHA * p


def _floats(where: str, x: Any) -> Any:
    x = operand(x, where=where)
    if not dtypes.is_inexact(x.dtype):
        raise DTypeError(f"{where}: x must be a tensor of floats, got {x.dtype}; write x.astype(float) first.")
    return x


def _channels(where: str, x: Any, spatial: int) -> tuple[int, ...]:
    """The shape of one number for each channel of each instance."""
    shape = _floats(where, x).shape
    if spatial == 2 and len(shape) == 3:
        return (*shape[:2], 1)
    if len(shape) not in (spatial + 1, spatial + 2) or (spatial == 2 and len(shape) != 4):
        raise ShapeError(f"{where}: x has shape {_SHAPES[spatial]}, got {shape}.")
    return (*shape[: len(shape) - spatial], *[1] * spatial)
