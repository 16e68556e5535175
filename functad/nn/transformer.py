"""The Transformer's layers (Vaswani et al. 2017), with torch's arguments and parameter names.

In every mask True means *attend*, as everywhere here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functad import random
from functad.creation import arange
from functad.device import Device
from functad.errors import ArgumentError
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.attention import KVCache, MultiheadAttention
from functad.nn.dropout import Dropout
from functad.nn.linear import Linear
from functad.nn.norm import LayerNorm
from functad.nn.parameters import Maker, at_least, entered
from functad.tensor import Tensor

_ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


class _Layer(Module):
    """What both kinds of layer have: self-attention and two linear maps."""

    norm_first: bool = field(static=True)
    activation: Any = field(static=True)
    self_attn: MultiheadAttention
    linear1: Linear
    dropout: Dropout
    linear2: Linear

    def _make(
        self,
        make: Maker,
        d_model: int,
        nhead: int,
        dim_feedforward: int,
        dropout: float,
        activation: str | Callable[[Any], Any],
        batch_first: bool,
        norm_first: bool,
        bias: bool,
    ) -> dict[str, Any]:
        at_least(make.layer, 1, d_model=d_model, nhead=nhead, dim_feedforward=dim_feedforward)
        about = {"dtype": make.dtype, "device": make.device}
        if activation not in _ACTIVATIONS if isinstance(activation, str) else not callable(activation):
            raise ArgumentError(
                f"{make.layer}: activation must be a function or one of {', '.join(_ACTIVATIONS)}, got {activation!r}."
            )
        self.activation = _ACTIVATIONS[activation] if isinstance(activation, str) else activation
        self.norm_first = norm_first
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, key=make.key(), **about
        )
        self.linear1 = Linear(d_model, dim_feedforward, bias, key=make.key(), **about)
        self.linear2 = Linear(dim_feedforward, d_model, bias, key=make.key(), **about)
        self.dropout = Dropout(dropout)
        return about

    def _feed_forward(self, x: Any, keys: Any) -> Any:
        hidden = self.dropout(self.activation(self.linear1(x)), key=keys[0])
        return self.dropout(self.linear2(hidden), key=keys[1])

    def _attend(self, x: Any, mask: Any, padding: Any, is_causal: bool, keys: Any) -> Any:
        out, _ = self.self_attn(
            x, x, x, padding, need_weights=False, attn_mask=mask, is_causal=is_causal, dropout_key=keys[0]
        )
        return self.dropout(out, key=keys[1])


class TransformerEncoderLayer(_Layer):
    """Self-attention and a feed-forward net, each with a residual and a LayerNorm.

    Args:
        d_model: the width of what it takes and returns.
        nhead: the number of heads.
        dim_feedforward: the width between the two linear maps.
        dropout: the probability of each dropout, in training.
        activation: `"relu"`, `"gelu"`, `"silu"` or a function.
        layer_norm_eps: the eps of the norms.
        batch_first: whether the batch is axis 0 instead of axis 1.
        norm_first: whether the norms come before attention and feed-forward instead of after the residual.
        bias: whether linear maps and norms have biases.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the parameters.
        device: where they are.

    >>> import functad as fd
    >>> layer = fd.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, key=fd.random.key(0)).valid()
    >>> layer(fd.ones((3, 5, 8)), is_causal=True).shape
    (3, 5, 8)
    """

    norm1: LayerNorm
    norm2: LayerNorm

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        make = Maker("TransformerEncoderLayer", key, dtype, device)
        about = self._make(make, d_model, nhead, dim_feedforward, dropout, activation, batch_first, norm_first, bias)
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **about)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **about)

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
        *,
        key: Any = None,
    ) -> Any:
        """The layer's output, of the shape of `src`; dropout draws from `key`."""
        src, keys = entered("TransformerEncoderLayer", src, self.norm1.weight), _keys(key, 4)
        if self.norm_first:
            x = src + self._attend(self.norm1(src), src_mask, src_key_padding_mask, is_causal, keys[:2])
            return x + self._feed_forward(self.norm2(x), keys[2:])
        x = self.norm1(src + self._attend(src, src_mask, src_key_padding_mask, is_causal, keys[:2]))
        return self.norm2(x + self._feed_forward(x, keys[2:]))

    def step(self, x: Any, cache: KVCache) -> tuple[Any, KVCache]:
        """The outputs of the next positions under causal attention, (batch, time, d_model), and the cache after them.

        `self_attn.init_cache(batch, room)` makes the first cache. Nothing is dropped.
        """
        out, cache = self.self_attn.step(self.norm1(x) if self.norm_first else x, cache)
        model = self.valid() if self.training else self
        x = x + out if self.norm_first else self.norm1(x + out)
        fed = model._feed_forward(self.norm2(x) if self.norm_first else x, (None, None))
        return (x + fed if self.norm_first else self.norm2(x + fed)), cache


class TransformerDecoderLayer(_Layer):
    """Causal self-attention, attention to an encoder's output, and a feed-forward net; arguments as the encoder layer's.

    >>> import functad as fd
    >>> layer = fd.nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, key=fd.random.key(0)).valid()
    >>> layer(fd.ones((3, 5, 8)), fd.ones((3, 7, 8)), tgt_is_causal=True).shape
    (3, 5, 8)
    """

    multihead_attn: MultiheadAttention
    norm1: LayerNorm
    norm2: LayerNorm
    norm3: LayerNorm

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        make = Maker("TransformerDecoderLayer", key, dtype, device)
        about = self._make(make, d_model, nhead, dim_feedforward, dropout, activation, batch_first, norm_first, bias)
        self.multihead_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, key=make.key(), **about
        )
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, **about)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, **about)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, **about)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        key: Any = None,
    ) -> Any:
        """The layer's output, of the shape of `tgt`; dropout draws from `key`."""
        tgt, memory = [entered("TransformerDecoderLayer", x, self.norm1.weight) for x in (tgt, memory)]
        keys = _keys(key, 6)

        def attend(x: Any) -> Any:
            return self._attend(x, tgt_mask, tgt_key_padding_mask, tgt_is_causal, keys[:2])

        def look(x: Any) -> Any:
            return self._look(x, memory, memory_mask, memory_key_padding_mask, memory_is_causal, keys[2:4])

        if self.norm_first:
            x = tgt + attend(self.norm1(tgt))
            x = x + look(self.norm2(x))
            return x + self._feed_forward(self.norm3(x), keys[4:])
        x = self.norm1(tgt + attend(tgt))
        x = self.norm2(x + look(x))
        return self.norm3(x + self._feed_forward(x, keys[4:]))

    def step(self, x: Any, memory: Any, cache: KVCache) -> tuple[Any, KVCache]:
        """The outputs of the next positions and the cache of self-attention after them; batch first, `memory` too."""
        model = self.valid() if self.training else self
        out, cache = self.self_attn.step(self.norm1(x) if self.norm_first else x, cache)
        x = x + out if self.norm_first else self.norm1(x + out)
        seen = model._look_first(self.norm2(x) if self.norm_first else x, memory)
        x = x + seen if self.norm_first else self.norm2(x + seen)
        fed = model._feed_forward(self.norm3(x) if self.norm_first else x, (None, None))
        return (x + fed if self.norm_first else self.norm3(x + fed)), cache

    def _look(self, x: Any, memory: Any, mask: Any, padding: Any, is_causal: bool, keys: Any) -> Any:
        out, _ = self.multihead_attn(
            x, memory, memory, padding, need_weights=False, attn_mask=mask, is_causal=is_causal, dropout_key=keys[0]
        )
        return self.dropout(out, key=keys[1])

    def _look_first(self, x: Any, memory: Any) -> Any:
        """Attention to memory with the batch on axis 0."""
        if self.multihead_attn.batch_first:
            return self._look(x, memory, None, None, False, (None, None))
        return self._look(x.swapaxes(0, 1), memory.swapaxes(0, 1), None, None, False, (None, None)).swapaxes(0, 1)


class _Stack(Module):
    layers: tuple[Any, ...]
    norm: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.layers, Sequence) or not self.layers:
            raise ArgumentError(
                f"{type(self).__name__}: pass a list of layers, each made with a key of its own: "
                f"{type(self).__name__}([nn.{type(self).__name__}Layer(d_model, nhead, key=k) for k in keys])."
            )
        self.layers = tuple(self.layers)

    def init_cache(self, batch: int, room: int) -> tuple[KVCache, ...]:
        """Empty caches, one for each layer."""
        return tuple(layer.self_attn.init_cache(batch, room) for layer in self.layers)

    def _end(self, x: Any) -> Any:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """Encoder layers one after the other, and a norm at the end if one is given.

    >>> import functad as fd
    >>> keys = fd.random.split(fd.random.key(0), 2)
    >>> encoder = fd.nn.TransformerEncoder([fd.nn.TransformerEncoderLayer(8, 2, 16, key=k) for k in keys])
    >>> encoder.valid()(fd.ones((5, 3, 8))).shape
    (5, 3, 8)
    """

    def forward(
        self, src: Any, mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False, *, key: Any = None
    ) -> Any:
        """The last layer's output."""
        for layer, k in zip(self.layers, _keys(key, len(self.layers)), strict=True):
            src = layer(src, mask, src_key_padding_mask, is_causal, key=k)
        return self._end(src)

    def step(self, x: Any, cache: tuple[KVCache, ...]) -> tuple[Any, tuple[KVCache, ...]]:
        """The outputs of the next positions under causal attention, (batch, time, d_model), and the caches after them."""
        after = []
        for layer, old in zip(self.layers, cache, strict=True):
            x, new = layer.step(x, old)
            after.append(new)
        return self._end(x), tuple(after)


class TransformerDecoder(_Stack):
    """Decoder layers one after the other, and a norm at the end if one is given.

    >>> import functad as fd
    >>> layer = fd.nn.TransformerDecoderLayer(8, 2, 16, key=fd.random.key(0))
    >>> decoder = fd.nn.TransformerDecoder([layer], norm=fd.nn.LayerNorm(8))
    >>> decoder.valid()(fd.ones((5, 3, 8)), fd.ones((7, 3, 8)), tgt_is_causal=True).shape
    (5, 3, 8)
    """

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        key: Any = None,
    ) -> Any:
        """The last layer's output."""
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal)
        for layer, k in zip(self.layers, _keys(key, len(self.layers)), strict=True):
            tgt = layer(tgt, memory, *masks, key=k)
        return self._end(tgt)

    def step(self, x: Any, memory: Any, cache: tuple[KVCache, ...]) -> tuple[Any, tuple[KVCache, ...]]:
        """The outputs of the next positions and the caches after them; batch first, `memory` too."""
        after = []
        for layer, old in zip(self.layers, cache, strict=True):
            x, new = layer.step(x, memory, old)
            after.append(new)
        return self._end(x), tuple(after)


class Transformer(Module):
    """An encoder and a decoder that attends to what it makes, each with a LayerNorm at the end, as in torch.

    Args:
        d_model: the width of what they take and return.
        nhead: the number of heads.
        num_encoder_layers: how many layers the encoder has.
        num_decoder_layers: how many layers the decoder has.
        dim_feedforward: as all further ones, for each layer; see `TransformerEncoderLayer`.
        dropout: the probability of each dropout, in training.
        activation: `"relu"`, `"gelu"`, `"silu"` or a function.
        layer_norm_eps: the eps of the norms.
        batch_first: whether the batch is axis 0 instead of axis 1.
        norm_first: whether the norms come before attention and feed-forward.
        bias: whether linear maps and norms have biases.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the parameters.
        device: where they are.

    >>> import functad as fd
    >>> model = fd.nn.Transformer(8, 2, 1, 1, 16, batch_first=True, key=fd.random.key(0)).valid()
    >>> model(fd.ones((3, 5, 8)), fd.ones((3, 4, 8)), tgt_is_causal=True).shape
    (3, 4, 8)
    """

    encoder: TransformerEncoder
    decoder: TransformerDecoder

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Callable[[Any], Any] = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        at_least("Transformer", 1, num_encoder_layers=num_encoder_layers, num_decoder_layers=num_decoder_layers)
        make = Maker("Transformer", key, dtype, device)
        about: dict[str, Any] = {"dtype": make.dtype, "device": make.device}
        each = (d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias)

        def several(kind: Callable[..., Any], count: int) -> tuple[Any, ...]:
            return tuple([kind(*each, key=make.key(), **about) for _ in range(count)])

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, **about)

        self.encoder = TransformerEncoder(several(TransformerEncoderLayer, num_encoder_layers), norm())
        self.decoder = TransformerDecoder(several(TransformerDecoderLayer, num_decoder_layers), norm())

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        key: Any = None,
    ) -> Any:
        """The decoder's output for `tgt`, given `src`; dropout draws from `key`. In masks True means attend."""
        first, second = _keys(key, 2)
        memory = self.encoder(src, src_mask, src_key_padding_mask, src_is_causal, key=first)
        return self.decoder(
            tgt, memory, tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal,
            memory_is_causal, key=second,
        )  # fmt: skip


def causal_mask(size: int, device: Device | None = None) -> Any:
    """A square mask, True where a position may attend: itself and those before it.

    >>> import functad as fd
    >>> fd.nn.causal_mask(3).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    at = arange(size, device=device)
    return at[None] <= at[:, None]


def _keys(key: Any, count: int) -> Any:
    return [None] * count if key is None else list(random.split(key, count))
