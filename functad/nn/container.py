"""Layers made of layers, and layers that only change a shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, ImmutableError
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.parameters import keys_for
from functad.ops.axes import normalize_axis
from functad.ops.operand import operand


class Sequential(Module):
    """Layers one after the other; `model[i]` is a layer, `model[i:j]` a shorter model.

    Args:
        layers: Modules, or functions of one argument (`F.relu`); or one dict of names and layers, for `model["name"]`,
            `model.name` and torch's files. Paths have the numbers all the same: `"layers.0.weight"`.

    A `key=` is split among the layers that draw from one. `nn.Sequential(*model, layer)` is a longer model.

    >>> import functad as fd
    >>> k1, k2 = fd.random.split(fd.random.key(0))
    >>> model = fd.nn.Sequential(fd.nn.Linear(4, 8, key=k1), fd.nn.ReLU(), fd.nn.Linear(8, 2, key=k2))
    >>> model(fd.ones((3, 4))).shape, len(model), model[0].weight.shape
    ((3, 2), 3, (8, 4))
    """

    layers: tuple[Any, ...]
    names: tuple[str, ...] | None = field(static=True)
    _torch_splices: ClassVar[bool] = True  # torch's files name the layers in it as its own parts

    def __init__(self, *layers: Any):
        names = None
        if len(layers) == 1 and isinstance(layers[0], Mapping):
            names, layers = tuple(map(str, layers[0])), tuple(layers[0].values())
        elif len(layers) == 1 and isinstance(layers[0], (list, tuple)):
            raise ArgumentTypeError("Sequential: pass the layers one by one: nn.Sequential(*layers).")
        for i, layer in enumerate(layers):
            if not callable(layer) or isinstance(layer, (type, Handle)):
                hint = f"; write {layer.__name__}(...) to make one" if isinstance(layer, type) else ""
                raise ArgumentTypeError(f"Sequential: layer {i} must be a Module or a function, got {layer!r}{hint}.")
        self.layers = layers
        self.names = names

    def forward(self, x: Any, *, key: Any = None) -> Any:
        """What the last layer returns."""
        for layer, with_key in zip(self.layers, keys_for(self.layers, key), strict=True):
            x = layer(x, **with_key)
        return x

    if not TYPE_CHECKING:  # type checkers are to see that these are missing

        def append(self, *layers):
            """Raise: a model does not change."""
            _refuse("nn.Sequential(*model, layer)", "nn.Sequential({**dict(zip(model.names, model)), 'name': layer})")

        def insert(self, *layers):
            """Raise: a model does not change."""
            _refuse("nn.Sequential(*model[:i], layer, *model[i:])")

        def __delitem__(self, place=-1):
            _refuse("nn.Sequential(*model[:i], *model[i + 1:])")

        def __setitem__(self, place, layer):
            i = self.names.index(place) if place in (self.names or ()) else place
            _refuse(f"model.replace({{'layers.{i}': layer}})")

        extend, pop = append, __delitem__

        def __getattr__(self, name):
            return self[name] if name in (self.__dict__.get("names") or ()) else super().__getattr__(name)

    def __getitem__(self, place: int | slice | str) -> Any:
        if isinstance(place, str):
            if place not in (self.names or ()):
                raise ArgumentError(f"Sequential: no layer is called {place!r}; there are {self.names or len(self)}.")
            return self.layers[(self.names or ()).index(place)]
        if not isinstance(place, slice):
            return self.layers[place]
        layers = self.layers[place]
        if self.names is None:
            return Sequential(*layers)
        return Sequential(dict(zip(self.names[place], layers, strict=True)))

    def __len__(self) -> int:
        return len(self.layers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)


def _refuse(*forms: str) -> NoReturn:
    raise ImmutableError(f"Sequential is immutable: write model = {', or model = '.join(forms)}.")


class Identity(Module):
    """What it is given; it stands where a model may have a layer or none.

    >>> import functad as fd
    >>> fd.nn.Sequential(fd.nn.Identity(), fd.nn.ReLU())(fd.tensor([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """

    def forward(self, x: Any) -> Any:
        """`x`."""
        return x


class Lambda(Module):
    """A function as a layer.

    >>> import functad as fd
    >>> fd.nn.Lambda(lambda x: x * 2)(fd.tensor(3.0)).item()
    6.0
    """

    function: Callable[..., Any] = field(static=True)

    def forward(self, x: Any) -> Any:
        """What the function returns."""
        return self.function(x)


class Flatten(Module):
    """Several axes made one; all but the first unless told otherwise.

    >>> import functad as fd
    >>> fd.nn.Flatten()(fd.ones((2, 3, 4))).shape
    (2, 12)
    """

    start_axis: int = 1
    end_axis: int = -1

    def forward(self, x: Any) -> Any:
        """`x`, reshaped."""
        x = operand(x, where="Flatten")
        if x.ndim < 2:
            return x.reshape(-1)
        start, end = (normalize_axis(axis, x.ndim, "Flatten") for axis in (self.start_axis, self.end_axis))
        if start > end:
            raise ArgumentError(f"Flatten: start_axis={start} is after end_axis={end} for x of shape {x.shape}.")
        return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


class Unflatten(Module):
    """The axis `axis` made several, of lengths `sizes`; one of them may be -1.

    >>> import functad as fd
    >>> fd.nn.Unflatten(1, (3, -1))(fd.ones((2, 12))).shape
    (2, 3, 4)
    """

    axis: int
    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, (tuple, list)):
            raise ArgumentTypeError(f"Unflatten: sizes are several lengths, such as (2, 3), got {self.sizes!r}.")

    def forward(self, x: Any) -> Any:
        """`x`, reshaped."""
        x = operand(x, where="Unflatten")
        axis = normalize_axis(self.axis, x.ndim, "Unflatten")
        return x.reshape(*x.shape[:axis], *self.sizes, *x.shape[axis + 1 :])


class Upsample(Module):
    """`functad.nn.functional.interpolate` as a layer: to a `size`, or by a `scale_factor`.

    >>> import functad as fd
    >>> fd.nn.Upsample(scale_factor=2)(fd.tensor([[[1.0, 2.0]]])).tolist()
    [[[1.0, 1.0, 2.0, 2.0]]]
    >>> fd.nn.Upsample(size=3, mode="linear", align_corners=True)(fd.tensor([[[1.0, 2.0]]])).tolist()
    [[[1.0, 1.5, 2.0]]]
    """

    size: Any = None
    scale_factor: Any = None
    mode: str = "nearest"
    align_corners: bool | None = None

    def forward(self, x: Any) -> Any:
        """`x`, resized."""
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners)


class PixelShuffle(Module):
    """Channels moved into space: `(..., c * r**2, h, w)` to `(..., c, h * r, w * r)`, r being `upscale_factor` (Shi et al. 2016).

    >>> import functad as fd
    >>> fd.nn.PixelShuffle(2)(fd.arange(4.0).reshape(1, 4, 1, 1)).tolist()
    [[[[0.0, 1.0], [2.0, 3.0]]]]
    """

    upscale_factor: int

    def forward(self, x: Any) -> Any:
        """`x`, rearranged."""
        return F.pixel_shuffle(x, self.upscale_factor)


class PixelUnshuffle(Module):
    """The inverse of `PixelShuffle`: `(..., c, h * r, w * r)` to `(..., c * r**2, h, w)`.

    >>> import functad as fd
    >>> fd.nn.PixelUnshuffle(2)(fd.ones((1, 3, 4, 6))).shape
    (1, 12, 2, 3)
    """

    downscale_factor: int

    def forward(self, x: Any) -> Any:
        """`x`, rearranged."""
        return F.pixel_unshuffle(x, self.downscale_factor)


class ChannelShuffle(Module):
    """The channels (axis 1) of `groups` equal groups in turn (ShuffleNet, 2017).

    >>> import functad as fd
    >>> fd.nn.ChannelShuffle(2)(fd.arange(4.0).reshape(1, 4, 1)).ravel().tolist()
    [0.0, 2.0, 1.0, 3.0]
    """

    groups: int

    def forward(self, x: Any) -> Any:
        """`x`, rearranged."""
        return F.channel_shuffle(x, self.groups)


class Unfold(Module):
    """The blocks that a 2-d convolution multiplies with its kernels, as columns; see `functad.nn.functional.unfold`.

    >>> import functad as fd
    >>> fd.nn.Unfold((1, 2))(fd.arange(4.0).reshape(1, 1, 2, 2)).tolist()
    [[[0.0, 2.0], [1.0, 3.0]]]
    """

    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1

    def forward(self, x: Any) -> Any:
        """The columns, (batch, channels * block size, number of blocks)."""
        return F.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Module):
    """The transpose of `Unfold`: blocks put back into images of `output_size`, and added up where they overlap.

    >>> import functad as fd
    >>> fd.nn.Fold((2, 2), (1, 2))(fd.tensor([[[0.0, 2.0], [1.0, 3.0]]])).tolist()
    [[[[0.0, 1.0], [2.0, 3.0]]]]
    """

    output_size: Any
    kernel_size: Any
    dilation: Any = 1
    padding: Any = 0
    stride: Any = 1

    def forward(self, x: Any) -> Any:
        """The images."""
        return F.fold(x, self.output_size, self.kernel_size, self.dilation, self.padding, self.stride)
