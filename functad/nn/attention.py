"""Attention as a layer, and the cache that decoding keeps."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from functad import dtypes, ops
from functad.creation import arange, zeros
from functad.device import Device
from functad.errors import ArgumentError, DTypeError, ShapeError
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.linear import Linear
from functad.nn.parameters import Maker, at_least, dtype_of, entered, probability
from functad.ops.operand import operand
from functad.ops.quantize import QuantTensor, rows
from functad.param import Param
from functad.tensor import Tensor


class KVCache(NamedTuple):
    """Keys and values of what was decoded so far, in room for more: `(batch, heads, room, head_dim)`, and how many.

    >>> import functad as fd
    >>> attend = fd.nn.MultiheadAttention(8, 2, batch_first=True, key=fd.random.key(0))
    >>> cache = attend.init_cache(batch=3, room=16)
    >>> out, cache = attend.step(fd.ones((3, 1, 8)), cache)
    >>> out.shape, cache.keys.shape, cache.length.item()
    ((3, 1, 8), (3, 2, 16, 4), 1)
    """

    keys: Any
    values: Any
    length: Any


class MultiheadAttention(Module):
    """Attention in several heads at once (Vaswani et al. 2017): torch's arguments, parameters and results.

    One thing differs: in every mask here True means *attend* (a float mask is added to the scores).

    Args:
        embed_dim: the width of queries and outputs.
        num_heads: into how many parts it falls.
        dropout: the probability that a weight is dropped, in training.
        bias: whether the projections add one.
        kdim: the width of keys, if another one.
        vdim: the width of values, if another one.
        batch_first: whether the batch is axis 0 instead of axis 1.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the parameters.
        device: where they are.

    >>> import functad as fd
    >>> attend = fd.nn.MultiheadAttention(8, 2, batch_first=True, key=fd.random.key(0))
    >>> x = fd.ones((3, 5, 8))
    >>> out, weights = attend(x, x, x, is_causal=True)
    >>> out.shape, weights.shape, weights[0, 0].tolist()
    ((3, 5, 8), (3, 5, 5), [1.0, 0.0, 0.0, 0.0, 0.0])
    """

    embed_dim: int = field(static=True)
    num_heads: int = field(static=True)
    dropout: float = field(static=True)
    batch_first: bool = field(static=True)
    in_proj_weight: Param | None
    q_proj_weight: Param | None
    k_proj_weight: Param | None
    v_proj_weight: Param | None
    in_proj_bias: Param | None
    out_proj: Linear

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        name = "MultiheadAttention"
        at_least(name, 1, embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ArgumentError(f"{name}: num_heads={num_heads} does not divide embed_dim={embed_dim}.")
        probability(name, "dropout", dropout)
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = embed_dim, num_heads, dropout, batch_first
        make = Maker(name, key, dtype, device)
        widths = (embed_dim, embed_dim if kdim is None else kdim, embed_dim if vdim is None else vdim)
        at_least(name, 1, kdim=widths[1], vdim=widths[2])
        one = len(set(widths)) == 1
        self.in_proj_weight = make.uniform((3 * embed_dim, embed_dim), math.sqrt(6 / (4 * embed_dim))) if one else None
        q, k, v = [
            None if one else make.uniform((embed_dim, width), math.sqrt(6 / (embed_dim + width))) for width in widths
        ]
        self.q_proj_weight, self.k_proj_weight, self.v_proj_weight = q, k, v
        self.in_proj_bias = make.zeros((3 * embed_dim,)) if bias else None
        out = Linear(embed_dim, embed_dim, bias, key=make.key(), dtype=dtype, device=device)
        self.out_proj = out if out.bias is None else out.replace(bias=out.bias.detach() * 0.0)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        dropout_key: Any = None,
    ) -> tuple[Any, Any]:
        """The output and the weights (None unless `need_weights`).

        Args:
            query: shape (time, batch, embed_dim), (batch, time, embed_dim) with `batch_first`, or no batch.
            key: the same with a time of its own.
            value: as `key`.
            key_padding_mask: shape (batch, time of key), True where a key may be attended to.
            need_weights: whether to return the weights; without them it is faster.
            attn_mask: shape (time of query, time of key), or one for each batch * head or (batch, head).
            average_attn_weights: whether the weights are the mean over heads.
            is_causal: whether each query attends only to keys up to its own time.
            dropout_key: what dropout draws from in training.
        """
        query, key, value = self._entered(query, key, value)
        ranks = [x.ndim for x in (query, key, value)]
        if ranks not in ([2, 2, 2], [3, 3, 3]):
            raise ShapeError(
                "MultiheadAttention: query, key and value have 3 axes each (time, batch and width), or 2 without a batch, "
                f"got shapes {query.shape}, {key.shape} and {value.shape}."
            )
        masks = (attn_mask, key_padding_mask)
        attn_mask, key_padding_mask = [None if m is None else operand(m, query, where="attention") for m in masks]
        batched = query.ndim == 3
        if not batched:
            query, key, value = query[None], key[None], value[None]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            query, key, value = query.swapaxes(0, 1), key.swapaxes(0, 1), value.swapaxes(0, 1)
        q, k, v = self._projected(query, key, value)
        mask = self._mask(q, k, attn_mask, key_padding_mask)
        p = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            weights = _weights(q, k, mask, is_causal)
            kept = F.dropout(weights, p, key=dropout_key) if p else weights
            out, weights = kept @ v, (weights.mean(axis=1) if average_attn_weights else weights)
        else:
            out = F.scaled_dot_product_attention(q, k, v, mask, p, is_causal, dropout_key=dropout_key)
        out = self.out_proj(self._joined(out))
        if not batched:
            return out[0], weights if weights is None else weights[0]
        return (out if self.batch_first else out.swapaxes(0, 1)), weights

    def init_cache(self, batch: int, room: int) -> KVCache:
        """An empty cache for `room` positions."""
        like = self.out_proj.weight
        empty = zeros((batch, self.num_heads, room, self.embed_dim // self.num_heads), dtype_of(like), like.device)
        return KVCache(empty, empty, zeros((), "int32", like.device))

    def step(self, x: Any, cache: KVCache) -> tuple[Any, KVCache]:
        """Causal self-attention of the next positions `x`, shape (batch, time, embed_dim), and the cache after them.

        Runs under jit with one compilation for all positions. What does not fit into the cache's room is
        the caller's to avoid: `cache.length` counts.
        """
        x, _, _ = self._entered(x, x, x)
        if x.ndim != 3:
            raise ShapeError(f"MultiheadAttention.step: takes shape (batch, time, embed_dim), got {x.shape}.")
        q, k, v = self._projected(x, x, x)
        steps = q.shape[2]
        places = cache.length + arange(steps, device=q.device)
        keys, values = (
            old.swapaxes(0, 2).at[places].set(new.swapaxes(0, 2)).swapaxes(0, 2)
            for old, new in ((cache.keys, k), (cache.values, v))
        )
        seen = arange(keys.shape[2], device=q.device) <= places[:, None]
        out = F.scaled_dot_product_attention(q, keys, values, seen)
        return self.out_proj(self._joined(out)), KVCache(keys, values, cache.length + steps)

    def _entered(self, query: Any, key: Any, value: Any) -> tuple[Any, Any, Any]:
        """The inputs as tensors; what is one stays one."""
        like = self.q_proj_weight if self.in_proj_weight is None else self.in_proj_weight
        q = entered("MultiheadAttention", query, like)
        k = q if key is query else entered("MultiheadAttention", key, like)
        return q, k, q if value is query else k if value is key else entered("MultiheadAttention", value, like)

    def _projected(self, query: Any, key: Any, value: Any) -> list[Any]:
        """Queries, keys and values as (batch, head, time, head_dim)."""
        if self.in_proj_weight is not None and query is key and key is value:
            joint = query @ self.in_proj_weight.T
            joint = joint if self.in_proj_bias is None else joint + self.in_proj_bias
            return [self._split(x) for x in ops.split(joint, 3, axis=-1)]
        e = self.embed_dim
        weights: list[Any]
        if self.in_proj_weight is not None:
            weights = [_rows(self.in_proj_weight, slice(i * e, (i + 1) * e)) for i in range(3)]
        else:
            weights = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
        found = []
        for i, (name, x, weight) in enumerate(
            zip(("query", "key", "value"), (query, key, value), weights, strict=True)
        ):
            if x.shape[-1] != weight.shape[1]:
                raise ShapeError(f"MultiheadAttention: {name} has width {x.shape[-1]}, the layer {weight.shape[1]}.")
            y = x @ weight.T
            found.append(self._split(y if self.in_proj_bias is None else y + self.in_proj_bias[i * e : (i + 1) * e]))
        return found

    def _split(self, x: Any) -> Any:
        batch, time, width = x.shape
        return x.reshape(batch, time, self.num_heads, width // self.num_heads).swapaxes(1, 2)

    def _joined(self, x: Any) -> Any:
        batch, heads, time, width = x.shape
        return x.swapaxes(1, 2).reshape(batch, time, heads * width)

    def _mask(self, q: Any, k: Any, attn_mask: Any, padding: Any) -> Any:
        """One mask that broadcasts to (batch, head, time, time)."""
        batch, heads, rows, columns = q.shape[0], self.num_heads, q.shape[2], k.shape[2]
        for name, mask in (("attn_mask", attn_mask), ("key_padding_mask", padding)):
            if mask is not None and mask.dtype != "bool" and not dtypes.is_float(mask.dtype):
                raise DTypeError(
                    f"MultiheadAttention: {name} is boolean (True may attend) or of floats that are added to the scores, "
                    f"got {mask.dtype}; write {name} != 0."
                )
        if attn_mask is not None:
            if attn_mask.ndim == 3:
                attn_mask = attn_mask.reshape(batch, -1, rows, columns)
            if attn_mask.shape[-2:] != (rows, columns):
                raise ShapeError(
                    f"MultiheadAttention: attn_mask must have shape {(rows, columns)}, {(batch * heads, rows, columns)} or "
                    f"{(batch, heads, rows, columns)}, got {attn_mask.shape}."
                )
        if padding is None:
            return attn_mask
        if padding.shape != (batch, columns):
            raise ShapeError(f"MultiheadAttention: key_padding_mask must be {(batch, columns)}, got {padding.shape}.")
        padding = padding[:, None, None, :]
        if attn_mask is None:
            return padding
        if padding.dtype == attn_mask.dtype == "bool":
            return attn_mask & padding
        return _added(attn_mask) + _added(padding)


def _rows(weight: Any, part: slice) -> Any:
    return rows(weight, lambda x: x[part]) if isinstance(weight, QuantTensor) else weight[part]


def _added(mask: Any) -> Any:
    """A mask as numbers to add."""
    return ops.where(mask, 0.0, -math.inf) if mask.dtype == "bool" else mask


def _weights(q: Any, k: Any, mask: Any, is_causal: bool) -> Any:
    """The weights alone; a query that may attend to nothing has zeros."""
    scores = (q * (1 / math.sqrt(q.shape[-1]))) @ k.mT
    rows, columns = scores.shape[-2:]
    seen = None
    if mask is not None and mask.dtype == "bool":
        seen = mask
    elif mask is not None:
        scores, seen = scores + mask, mask > -math.inf
    if is_causal:
        causal = arange(columns, device=q.device) <= arange(rows, device=q.device)[:, None]
        seen = causal if seen is None else seen & causal
    return ops.softmax(scores, -1, seen)


MultiHeadAttention = MultiheadAttention
