"""Models with 8-bit weights, which stand where Params stood and are not trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.module import Module, ParamGroup
from functad.module.layout import Found, is_module, walk
from functad.module.modes import off_devices
from functad.nn.attention import MultiheadAttention
from functad.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from functad.nn.embedding import Embedding, EmbeddingBag
from functad.nn.linear import Linear
from functad.ops.quantize import QuantScheme, QuantTensor, quantize_dynamic
from functad.param import Param

_WEIGHTS: dict[type, tuple[str, ...]] = {
    MultiheadAttention: ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"),
    **dict.fromkeys((Linear, Embedding, EmbeddingBag, Conv1d, Conv2d, Conv3d), ("weight",)),
    **dict.fromkeys((ConvTranspose1d, ConvTranspose2d, ConvTranspose3d), ("weight",)),
}
_USUAL = (Linear, MultiheadAttention)


def quantize(model: Any, scheme: QuantScheme | None = None, group: Any = _USUAL) -> Any:
    """A copy of a model in which the weights of the layers of a group are quantized: frozen, a quarter of the memory.

    They are no parameters then: `parameters()`, `num_params` and optimisers pass them by, gradients flow through the
    layers to what comes before, and `save`, `load`, `to_device`, `valid` and all transforms take them along. A product
    with one has the dtype of the other factor. `nn.lora` puts adapters on them: the whole is QLoRA (Dettmers et al. 2023).

    Args:
        model: a Module.
        scheme: a `fd.QuantScheme`; without it one scale per row of a matrix (per output), or per kernel of a convolution.
        group: a path pattern or a class, as for `nn.lora`. Of what it names, the weights of Linear, MultiheadAttention,
            Embedding, EmbeddingBag and convolutions are quantized; by default those of the first two. Biases stay.

    Raises `ArgumentError` if the group has no such layer, or where a weight is also used elsewhere (a head tied to an
    embedding outside of the group); `NotDifferentiableError` inside a transform that differentiates the weights.

    >>> import functad as fd
    >>> net = fd.nn.Sequential(fd.nn.Linear(4, 8), fd.nn.ReLU(), fd.nn.Linear(8, 2))
    >>> fd.nn.quantize(net, fd.QuantScheme(block=4))[0].weight
    QuantTensor(int8[8, 4], scale per block of 4, of float32)
    >>> tuned = fd.nn.lora(fd.nn.quantize(net), rank=1)
    >>> sum(p.size for p in tuned.parameters() if not p.is_frozen)
    22
    """
    if not is_module(model):
        raise ArgumentTypeError(
            f"quantize: expected a Module, got {type(model).__name__}; a tensor has quantize_dynamic."
        )
    places = weights_of(model, group, _WEIGHTS, "quantize")
    chosen = {weight.id for _, _, weight in places if isinstance(weight, Param)}
    if not chosen:
        raise ArgumentError(f"quantize: the weights of the group {group!r} are quantized already.")
    quantizable = {path for path, _, _ in _weights(model, _WEIGHTS)}
    made: dict[Any, QuantTensor] = {}
    changes: dict[str, QuantTensor] = {}
    for found in walk(model):
        if found.mark is None or found.mark.id not in chosen:
            continue
        if found.path not in quantizable:
            raise ArgumentError(
                f"quantize: the weight of a layer of the group is also {found.path!r}, which is that of no layer with "
                f"quantized weights ({', '.join([kind.__name__ for kind in _WEIGHTS])}). Leave the layer out: "
                "group=~fd.ParamGroup('head'), say."
            )
        if found.mark.id not in made:
            made[found.mark.id] = _quantized(found, scheme)
        changes[found.path] = made[found.mark.id]
    return model.replace(changes)


def _quantized(found: Found, scheme: QuantScheme | None) -> QuantTensor:
    weight = off_devices(found.value)
    try:
        q = quantize_dynamic(weight, _usual(weight.shape) if scheme is None else scheme)
    except ShapeError as error:
        raise ShapeError(f"quantize: {found.path!r}: {error}") from None
    return q.to_device(found.value.device) if found.value.device.is_autodiff else q


def _usual(shape: tuple[int, ...]) -> QuantScheme:
    """One scale per row of a matrix, one in all for a kernel."""
    return QuantScheme(block=shape[-1] if len(shape) == 2 and shape[-1] else None)


def dequantize(model: Any) -> Any:
    """A copy of a model in which quantized weights are Params again: the floats they stand for, with new ids.

    Raises `ArgumentError` if no layer has one.

    >>> import functad as fd
    >>> net = fd.nn.Linear(4, 2)
    >>> fd.nn.dequantize(fd.nn.quantize(net)).num_params == net.num_params
    True
    """
    found = {path: weight for path, _, weight in _weights(model, _WEIGHTS) if isinstance(weight, QuantTensor)}
    if not found:
        raise ArgumentError("dequantize: no layer of the model has a quantized weight.")
    params = {id(q._values): Param(q.dequantize()) for q in found.values()}
    return model.replace({path: params[id(q._values)] for path, q in found.items()})


def _weights(model: Module, kinds: Mapping[Any, tuple[str, ...]]) -> Iterator[tuple[str, Any, Any]]:
    """The weights of layers of some classes, each with its path and layer."""
    for path, layer in model.named_modules():
        for name in kinds.get(type(layer), ()):
            weight = getattr(layer, name)
            if weight is not None:
                yield f"{path}.{name}" if path else name, layer, weight


def weights_of(
    model: Module, group: Any, kinds: Mapping[Any, tuple[str, ...]], where: str
) -> list[tuple[str, Any, Any]]:
    """Those of `_weights`, Params or quantized, that are in a group; raises `ArgumentError` if there are none."""
    chosen = ParamGroup.of(group)
    ids = {found.mark.id for found in walk(model) if found.mark is not None and found in chosen}
    parts = model.named_modules()
    places: list[tuple[str, Any, Any]] = []
    for path, layer, weight in _weights(model, kinds):
        if isinstance(weight, Param):
            inside = weight.id in ids
        else:
            owners = tuple([part for at, part in parts if not at or path.startswith(at + ".")])
            inside = Found(path, weight, None, owners) in chosen
        if inside:
            places.append((path, layer, weight))
    if not places:
        chosen.ids(model)  # which says more if it names no parameter at all
        raise ArgumentError(f"{where}: the group {group!r} has no {' or '.join([kind.__name__ for kind in kinds])}.")
    return places
