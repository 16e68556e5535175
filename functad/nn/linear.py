"""Linear maps as layers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functad import random
from functad.device import Device, checked
from functad.errors import ShapeError
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.parameters import Maker, at_least, fan_bound, two_keys, uniform
from functad.ops.operand import operand
from functad.ops.quantize import QuantTensor
from functad.param import Param
from functad.tensor import Tensor


class Linear(Module):
    """`x @ weight.T + bias`; `weight` is `[out_features, in_features]`, as in torch.

    Args:
        in_features: the length of the last axis of what it takes.
        out_features: that of what it returns.
        bias: whether it adds one.
        key: where its numbers are drawn from, uniform in +-1/sqrt(in_features) as in torch; the
            generator of `fd.seed` without it.
        dtype: of the parameters; the default float without it.
        device: where they are (that of the key without it); on an autodiff device they require grad at once.

    >>> import functad as fd
    >>> fd.nn.Linear(3, 2, key=fd.random.key(0))(fd.ones((5, 3))).shape
    (5, 2)
    """

    in_features: int = field(static=True)
    out_features: int = field(static=True)
    weight: Param
    bias: Param | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        at_least("Linear", 0, in_features=in_features, out_features=out_features)
        if device is not None:
            checked(device, "Linear")
        bound = 1 / math.sqrt(in_features) if in_features else 0.0
        key_w, key_b = two_keys(random.draw_key(device) if key is None else key)
        self.in_features = in_features
        self.out_features = out_features
        self.weight = Param(uniform(key_w, (out_features, in_features), dtype, -bound, bound, device))
        self.bias = Param(uniform(key_b, (out_features,), dtype, -bound, bound, device)) if bias else None

    def forward(self, x: Any) -> Any:
        """The map of the last axis."""
        if isinstance(x, (list, tuple)):
            weight: Any = self.weight
            x = operand(x, weight.values if isinstance(weight, QuantTensor) else weight, where="Linear")
        try:
            out = x @ self.weight.T
        except ShapeError:
            raise ShapeError(
                f"Linear: the last axis of x must be in_features={self.in_features}, got shape {np.shape(x)}."
            ) from None
        return out if self.bias is None else out + self.bias


class Bilinear(Module):
    """`x1 @ weight[k] @ x2 + bias[k]` for each output k.

    Args:
        in1_features: the length of the last axis of `x1`.
        in2_features: that of `x2`.
        out_features: that of what it returns.
        bias: whether it adds one.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the parameters; `weight` is `[out_features, in1_features, in2_features]`, as in torch.
        device: where they are.

    >>> import functad as fd
    >>> layer = fd.nn.Bilinear(2, 3, 4, key=fd.random.key(0))
    >>> layer(fd.ones((5, 2)), fd.ones((5, 3))).shape, layer.weight.shape
    ((5, 4), (4, 2, 3))
    """

    in1_features: int = field(static=True)
    in2_features: int = field(static=True)
    out_features: int = field(static=True)
    weight: Param
    bias: Param | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        at_least("Bilinear", 1, in1_features=in1_features, in2_features=in2_features, out_features=out_features)
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        make, bound = Maker("Bilinear", key, dtype, device), fan_bound(in1_features)
        self.weight = make.uniform((out_features, in1_features, in2_features), bound)
        self.bias = make.uniform((out_features,), bound) if bias else None

    def forward(self, x1: Any, x2: Any) -> Any:
        """The outputs for each pair of rows."""
        return F.bilinear(x1, x2, self.weight, self.bias)
