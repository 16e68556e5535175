"""Activation functions as layers, with torch's names; `axis` where torch says `dim`.

>>> import functad as fd
>>> fd.nn.LeakyReLU(0.1)(fd.tensor([-1.0, 2.0])).numpy().round(2).tolist()
[-0.1..., 2.0]
"""

from __future__ import annotations

from typing import Any

from functad.device import Device
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.parameters import Maker, at_least
from functad.param import Param


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.relu(x)


class ReLU6(Module):
    """`x` limited to [0, 6]."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.relu6(x)


class LeakyReLU(Module):
    """`x`, and a fraction of it where negative."""

    negative_slope: float = 0.01

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """`x`, and alpha * expm1(x) where negative (Clevert et al. 2016)."""

    alpha: float = 1.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.elu(x, self.alpha)


class SELU(Module):
    """The self-normalizing ELU (Klambauer et al. 2017)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.selu(x)


class CELU(Module):
    """The continuously differentiable ELU (Barron 2017)."""

    alpha: float = 1.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.celu(x, self.alpha)


class GELU(Module):
    """x * P(normal < x) (Hendrycks and Gimpel 2016); `approximate="tanh"` for the other form."""

    approximate: str = "none"

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.gelu(x, self.approximate)


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.silu(x)


class Mish(Module):
    """x * tanh(softplus(x)) (Misra 2019)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.mish(x)


class Hardswish(Module):
    """x * relu6(x + 3) / 6 (Howard et al. 2019)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardswish(x)


class Hardsigmoid(Module):
    """relu6(x + 3) / 6."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardsigmoid(x)


class Hardtanh(Module):
    """`x` limited to an interval."""

    min_val: float = -1.0
    max_val: float = 1.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardtanh(x, self.min_val, self.max_val)


class Hardshrink(Module):
    """`x` where it is outside of +-lambd, else 0."""

    lambd: float = 0.5

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardshrink(x, self.lambd)


class Softshrink(Module):
    """`x` drawn to 0 by lambd."""

    lambd: float = 0.5

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softshrink(x, self.lambd)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta."""

    beta: float = 1.0
    threshold: float = 20.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softplus(x, self.beta, self.threshold)


class Softsign(Module):
    """x / (1 + |x|)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softsign(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.sigmoid(x)


class LogSigmoid(Module):
    """log(sigmoid(x))."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.logsigmoid(x)


class Tanh(Module):
    """tanh(x)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.tanh(x)


class Tanhshrink(Module):
    """x - tanh(x)."""

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.tanhshrink(x)


class Threshold(Module):
    """`x` above a threshold, else a value."""

    threshold: float
    value: float

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.threshold(x, self.threshold, self.value)


class GLU(Module):
    """One half of `x` times the sigmoid of the other (Dauphin et al. 2017)."""

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.glu(x, self.axis)


class Softmax(Module):
    """exp(x), normalized along an axis."""

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softmax(x, self.axis)


class LogSoftmax(Module):
    """The log of softmax."""

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.log_softmax(x, self.axis)


class Softmin(Module):
    """softmax of -x."""

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softmin(x, self.axis)


class PReLU(Module):
    """`x`, and a trained fraction of it where negative: one for all, or one for each channel (He et al. 2015)."""

    num_parameters: int = field(static=True)
    weight: Param

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: Any = None, device: Device | None = None):
        at_least("PReLU", 1, num_parameters=num_parameters)
        self.num_parameters = num_parameters
        self.weight = Param(Maker("PReLU", None, dtype, device).buffer((num_parameters,), 1.0) * init)

    def forward(self, x: Any) -> Any:
        """Of every element; channels are axis 1."""
        return F.prelu(x, self.weight)


class RReLU(Module):
    """`x`, and where negative a fraction of it, random in training and the mean of the bounds after `valid()`."""

    lower: float = 1 / 8
    upper: float = 1 / 3

    def forward(self, x: Any, *, key: Any = None) -> Any:
        """Of every element."""
        return F.rrelu(x, self.lower, self.upper, self.training, key=key)
