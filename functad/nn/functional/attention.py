"""Attention: each query takes a weighted mean of the values, by how well their keys fit it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.errors import DTypeError, ShapeError
from functad.nn.functional.checks import floats, number, probability
from functad.nn.functional.dropout import dropout
from functad.ops.halves import rounded_once
from functad.ops.operand import operand

__all__ = ["scaled_dot_product_attention"]


@rounded_once
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    dropout_key: Any = None,
) -> Any:
    """`softmax(query @ key.mT * scale) @ value` (Attention is all you need, 2017).

    A query that may attend to nothing gives 0, with gradient 0. Half types are computed in float32 and rounded once.

    Args:
        query: shape (..., L, E).
        key: shape (..., S, E).
        value: shape (..., S, V).
        attn_mask: broadcasts to (..., L, S). Booleans: True may attend. Floats are added to the scores.
        dropout_p: the probability that a weight is left out; pass 0 outside training.
        is_causal: query i attends to keys up to i only, besides what `attn_mask` says.
        scale: of the scores; 1 / sqrt(E) by default.
        enable_gqa: `key` and `value` have fewer heads (axis -3), each for as many heads of `query` in a row.
        dropout_key: the key that dropout draws with; the default generator without one.

    >>> import functad as fd
    >>> q, k, v = fd.ones((2, 4)), fd.ones((3, 4)), fd.tensor([[1.0], [2.0], [6.0]])
    >>> fd.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).tolist()
    [[1.0], [1.5]]
    """
    where = "scaled_dot_product_attention"
    p = probability(where, dropout_p)
    query, key, value = floats(where, query, key, value)
    groups = _check_shapes(where, query, key, value, enable_gqa)
    factor = 1 / math.sqrt(query.shape[-1] or 1) if scale is None else number(where, "scale", scale)
    if groups > 1:
        query = _grouped(query, groups)
        key, value = ops.expand_dims(key, -3), ops.expand_dims(value, -3)
    scores = ops.matmul(query * factor, ops.matrix_transpose(key))
    if groups > 1:
        scores = _joined(scores)
    scores, kept = _masked(where, scores, attn_mask, is_causal)
    weights = ops.softmax(scores, -1, kept)
    if p:
        weights = dropout(weights, p, key=dropout_key)
    out = ops.matmul(_grouped(weights, groups) if groups > 1 else weights, value)
    return _joined(out) if groups > 1 else out


def _check_shapes(where: str, query: Any, key: Any, value: Any, enable_gqa: bool) -> int:
    """Raise unless the shapes fit; gives how many heads of `query` share one of `key`."""
    shapes = f"query {query.shape}, key {key.shape} and value {value.shape}"
    if min(query.ndim, key.ndim, value.ndim) < 2:
        raise ShapeError(f"{where}: takes shapes (..., L, E), (..., S, E) and (..., S, V), got {shapes}.")
    if query.shape[-1] != key.shape[-1]:
        raise ShapeError(f"{where}: query and key must have one length of the last axis, got {shapes}.")
    if key.shape[-2] != value.shape[-2]:
        raise ShapeError(f"{where}: there must be a value for each key (axis -2), got {shapes}.")
    if not enable_gqa:
        return 1
    if min(query.ndim, key.ndim, value.ndim) < 3 or key.shape[-3] != value.shape[-3]:
        raise ShapeError(f"{where}: enable_gqa needs heads (axis -3), as many of key as of value, got {shapes}.")
    heads, shared = query.shape[-3], key.shape[-3]
    if not shared or heads % shared:
        raise ShapeError(
            f"{where}: enable_gqa needs a number of query heads (axis -3) that is a multiple of that of key heads, got "
            f"{shapes}."
        )
    return heads // shared


def _grouped(x: Any, groups: int) -> Any:
    """The heads (axis -3) as two axes: those of the keys, and those of the queries that share one."""
    return ops.reshape(x, (*x.shape[:-3], x.shape[-3] // groups, groups, *x.shape[-2:]))


def _joined(x: Any) -> Any:
    return ops.reshape(x, (*x.shape[:-4], x.shape[-4] * x.shape[-3], *x.shape[-2:]))


def _masked(where: str, scores: Any, mask: Any, is_causal: bool) -> tuple[Any, Any]:
    """The scores with a mask of floats added, and where attention is allowed, or None for everywhere."""
    kept = None
    if is_causal:
        kept = operand(np.tri(*scores.shape[-2:], dtype=bool), scores)
    if mask is None:
        return scores, kept
    mask = operand(mask, scores, where=where)
    if mask.dtype != dtypes.bool_ and not dtypes.is_float(mask.dtype):
        raise DTypeError(
            f"{where}: attn_mask is boolean (True may attend) or of floats that are added to the scores, got "
            f"{mask.dtype}; write attn_mask != 0."
        )
    try:
        shape = np.broadcast_shapes(mask.shape, scores.shape)
    except ValueError:
        shape = ()
    if shape[-2:] != scores.shape[-2:]:
        raise ShapeError(
            f"{where}: attn_mask of shape {mask.shape} does not broadcast to the scores of shape {scores.shape}."
        )
    if mask.dtype == dtypes.bool_:
        return scores, mask if kept is None else ops.logical_and(mask, kept)
    scores = scores + ops.astype(mask, scores.dtype)
    allowed = scores > float("-inf")
    return scores, allowed if kept is None else ops.logical_and(allowed, kept)
