"""Low-rank adapters (Hu et al. 2021): a frozen layer plus a product of two small trained matrices."""

from __future__ import annotations

import math
from typing import Any

from functad import random
from functad.errors import ArgumentError, ArgumentTypeError
from functad.module import Module, field
from functad.nn.linear import Linear
from functad.nn.parameters import Maker, at_least, dtype_of
from functad.nn.quantize import weights_of
from functad.ops.quantize import QuantTensor
from functad.param import Param
from functad.tensor import Tensor

_ADAPTED = {Linear: ("weight",)}


class LoraLinear(Module):
    """A frozen `Linear` plus `scale * (x @ lora_a.T) @ lora_b.T`; at first the same function as the `Linear`.

    Args:
        base: the layer, whose parameters are frozen; its weight may be quantized (`nn.quantize`), and stays so.
        rank: the width between the two factors.
        alpha: `scale` is `alpha / rank`; the rank by default.
        key: where the first values of `lora_a` are drawn from; `lora_b` starts at zero.

    >>> import functad as fd
    >>> fc = fd.nn.Linear(8, 4, key=fd.random.key(0))
    >>> tuned = fd.nn.LoraLinear(fc, rank=2, key=fd.random.key(1))
    >>> [name for name, p in tuned.named_parameters() if not p.is_frozen]
    ['lora_a', 'lora_b']
    """

    scale: float = field(static=True)
    base: Linear
    lora_a: Param
    lora_b: Param

    def __init__(self, base: Linear, rank: int, alpha: float | None = None, *, key: Tensor | None = None):
        at_least("LoraLinear", 1, rank=rank)
        if not isinstance(base, Linear):
            raise ArgumentTypeError(f"LoraLinear: base must be a Linear, got {type(base).__name__}.")
        weight: Any = base.weight
        make = Maker("LoraLinear", key, dtype_of(weight), weight.device)
        self.scale = (rank if alpha is None else alpha) / rank
        self.base = base.no_grad()
        self.lora_a = make.uniform((rank, base.in_features), 1 / math.sqrt(max(base.in_features, 1)))
        self.lora_b = make.zeros((base.out_features, rank))

    def forward(self, x: Any) -> Any:
        """The map of the last axis."""
        return self.base(x) + (x @ self.lora_a.T) @ self.lora_b.T * self.scale

    def merge(self) -> Linear:
        """One `Linear`, trained again, that computes the same; of a quantized base the floats, in the adapter's dtype."""
        base: Any = self.base.weight
        base = base.dequantize(self.lora_a.dtype) if isinstance(base, QuantTensor) else base.detach()
        weight = base + (self.lora_b.detach() @ self.lora_a.detach()) * self.scale
        merged: Linear = self.base.replace(weight=weight).unfreeze("*")
        return merged


def lora(model: Any, rank: int, alpha: float | None = None, group: Any = Linear, *, key: Tensor | None = None) -> Any:
    """A copy of a model in which all is frozen and every `Linear` of a group has an adapter.

    Args:
        model: a Module, also one with quantized weights (`nn.quantize`).
        rank: of the adapters.
        alpha: see `LoraLinear`.
        group: a path pattern such as `"blocks.*.attention.*"`, or a class; by default every `Linear`.
        key: where the first values are drawn from.

    Raises `ArgumentError` if the group has no `Linear`.

    >>> import functad as fd
    >>> net = fd.nn.Sequential(fd.nn.Linear(4, 4), fd.nn.ReLU(), fd.nn.Linear(4, 2))
    >>> tuned = fd.nn.lora(net, rank=1)
    >>> sum(p.size for p in tuned.parameters() if not p.is_frozen)
    14
    """
    places = [
        (path.removesuffix("weight").rstrip("."), layer)
        for path, layer, _ in weights_of(model, group, _ADAPTED, "lora")
    ]
    key = random.draw_key() if key is None else key
    if places[0][0] == "":
        return LoraLinear(model, rank, alpha, key=key)
    adapters = {
        path: LoraLinear(layer, rank, alpha, key=random.fold_in(key, i)) for i, (path, layer) in enumerate(places)
    }
    return model.no_grad().replace(adapters)


def merge_lora(model: Any) -> Any:
    """A copy of a model in which every adapter has become part of its `Linear`, and all is trained again.

    A quantized base comes back as floats, so that nothing of the adapter is rounded away: the merged layer computes what
    the two did. `nn.quantize(merged)` rounds it, if that is wanted.

    Raises `ArgumentError` if the model has no adapter.

    >>> import functad as fd
    >>> net = fd.nn.Sequential(fd.nn.Linear(4, 4), fd.nn.ReLU(), fd.nn.Linear(4, 2))
    >>> merged = fd.nn.merge_lora(fd.nn.lora(net, rank=1))
    >>> type(merged[0]).__name__, merged.num_params == net.num_params
    ('Linear', True)
    """
    if isinstance(model, LoraLinear):
        return model.merge()
    merged = {path: m.merge() for path, m in model.named_modules() if isinstance(m, LoraLinear)}
    if not merged:
        raise ArgumentError("merge_lora: the model has no LoraLinear.")
    return model.replace(merged).unfreeze("*")
