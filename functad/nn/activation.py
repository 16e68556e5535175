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
    """max(x, 0), with slope 0 at 0.

    >>> import functad as fd
    >>> fd.nn.ReLU()(fd.tensor([-1.0, 0.0, 2.0])).tolist()
    [0.0, 0.0, 2.0]
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.relu(x)


class ReLU6(Module):
    """`x` limited to [0, 6] (Howard et al. 2017); its slope is 0 at both ends.

    >>> import functad as fd
    >>> fd.nn.ReLU6()(fd.tensor([-1.0, 3.0, 8.0])).tolist()
    [0.0, 3.0, 6.0]
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.relu6(x)


class LeakyReLU(Module):
    """`x`, and `negative_slope` times it where negative (Maas et al. 2013); the slope at 0 is `negative_slope`.

    >>> import functad as fd
    >>> fd.nn.LeakyReLU(0.25)(fd.tensor([-1.0, 2.0])).tolist()
    [-0.25, 2.0]
    """

    negative_slope: float = 0.01

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.leaky_relu(x, self.negative_slope)


class ELU(Module):
    """`x`, and alpha * expm1(x) where negative (Clevert et al. 2016).

    >>> import functad as fd
    >>> fd.nn.ELU(alpha=2.0)(fd.tensor([float("-inf"), 0.0, 3.0])).tolist()
    [-2.0, 0.0, 3.0]
    """

    alpha: float = 1.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.elu(x, self.alpha)


class SELU(Module):
    """The ELU of alpha 1.6733 times 1.0507, which keeps mean 0 and variance 1 (Klambauer et al. 2017).

    >>> import functad as fd
    >>> [f"{y:.4f}" for y in fd.nn.SELU()(fd.tensor([-100.0, 1.0])).tolist()]
    ['-1.7581', '1.0507']
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.selu(x)


class CELU(Module):
    """`x`, and alpha * expm1(x / alpha) where negative, so that the slope at 0 is 1 for every alpha (Barron 2017).

    >>> import functad as fd
    >>> fd.nn.CELU(alpha=2.0)(fd.tensor([float("-inf"), 3.0])).tolist()
    [-2.0, 3.0]
    >>> fd.grad(fd.nn.CELU(alpha=2.0))(0.0).item()
    1.0
    """

    alpha: float = 1.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.celu(x, self.alpha)


class GELU(Module):
    """x * P(normal < x) (Hendrycks and Gimpel 2016); `approximate="tanh"` for the other form.

    >>> import functad as fd
    >>> [f"{y:.4f}" for y in fd.nn.GELU()(fd.tensor([-1.0, 0.0, 1.0])).tolist()]
    ['-0.1587', '0.0000', '0.8413']
    >>> f"{fd.nn.GELU('tanh')(fd.tensor(1.0)).item():.4f}"
    '0.8412'
    """

    approximate: str = "none"

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.gelu(x, self.approximate)


class SiLU(Module):
    """x * sigmoid(x), also called swish (Elfwing et al. 2018).

    >>> import functad as fd
    >>> f"{fd.nn.SiLU()(fd.tensor(1.0)).item():.4f}", fd.grad(fd.nn.SiLU())(0.0).item()
    ('0.7311', 0.5)
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.silu(x)


class Mish(Module):
    """x * tanh(softplus(x)) (Misra 2019).

    >>> import functad as fd
    >>> f"{fd.nn.Mish()(fd.tensor(1.0)).item():.4f}", f"{fd.grad(fd.nn.Mish())(0.0).item():.4f}"
    ('0.8651', '0.6000')
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.mish(x)


class Hardswish(Module):
    """x * relu6(x + 3) / 6 (Howard et al. 2019).

    >>> import functad as fd
    >>> fd.nn.Hardswish()(fd.tensor([-4.0, 0.0, 3.0, 4.0])).tolist()
    [0.0, 0.0, 3.0, 4.0]
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardswish(x)


class Hardsigmoid(Module):
    """relu6(x + 3) / 6, as in torch.

    >>> import functad as fd
    >>> fd.nn.Hardsigmoid()(fd.tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardsigmoid(x)


class Hardtanh(Module):
    """`x` limited to [min_val, max_val]; its slope at the ends is 0.

    >>> import functad as fd
    >>> fd.nn.Hardtanh(-2.0, 0.5)(fd.tensor([-3.0, 0.25, 1.0])).tolist()
    [-2.0, 0.25, 0.5]
    """

    min_val: float = -1.0
    max_val: float = 1.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardtanh(x, self.min_val, self.max_val)


class Hardshrink(Module):
    """`x` where it is outside of [-lambd, lambd], else 0.

    >>> import functad as fd
    >>> fd.nn.Hardshrink(1.0)(fd.tensor([-2.0, 1.0, 1.5])).tolist()
    [-2.0, 0.0, 1.5]
    """

    lambd: float = 0.5

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.hardshrink(x, self.lambd)


class Softshrink(Module):
    """`x` drawn to 0 by `lambd`: the proximal step of lambd * |x|.

    >>> import functad as fd
    >>> fd.nn.Softshrink(1.0)(fd.tensor([-2.0, 0.5, 1.5])).tolist()
    [-1.0, 0.0, 0.5]
    """

    lambd: float = 0.5

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softshrink(x, self.lambd)


class Softplus(Module):
    """log(1 + exp(beta x)) / beta, and `x` itself where beta x exceeds `threshold`, as in torch.

    >>> import functad as fd
    >>> f"{fd.nn.Softplus()(fd.tensor(0.0)).item():.4f}", fd.grad(fd.nn.Softplus(beta=3.0))(0.0).item()
    ('0.6931', 0.5)
    """

    beta: float = 1.0
    threshold: float = 20.0

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softplus(x, self.beta, self.threshold)


class Softsign(Module):
    """x / (1 + |x|).

    >>> import functad as fd
    >>> fd.nn.Softsign()(fd.tensor([-1.0, 0.0, 3.0])).tolist()
    [-0.5, 0.0, 0.75]
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softsign(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x)), without overflow.

    >>> import functad as fd
    >>> fd.nn.Sigmoid()(fd.tensor([-1000.0, 0.0, 1000.0])).tolist()
    [0.0, 0.5, 1.0]
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.sigmoid(x)


class LogSigmoid(Module):
    """log(sigmoid(x)), without overflow.

    >>> import functad as fd
    >>> fd.nn.LogSigmoid()(fd.tensor(-1000.0)).item(), fd.grad(fd.nn.LogSigmoid())(0.0).item()
    (-1000.0, 0.5)
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.logsigmoid(x)


class Tanh(Module):
    """tanh(x).

    >>> import functad as fd
    >>> fd.nn.Tanh()(fd.tensor([-1000.0, 0.0, 1000.0])).tolist(), fd.grad(fd.nn.Tanh())(0.0).item()
    ([-1.0, 0.0, 1.0], 1.0)
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.tanh(x)


class Tanhshrink(Module):
    """x - tanh(x).

    >>> import functad as fd
    >>> fd.nn.Tanhshrink()(fd.tensor([0.0, 100.0])).tolist()
    [0.0, 99.0]
    """

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.tanhshrink(x)


class Threshold(Module):
    """`x` where it is above `threshold`, else `value`.

    >>> import functad as fd
    >>> fd.nn.Threshold(1.0, 20.0)(fd.tensor([0.5, 1.0, 3.0])).tolist()
    [20.0, 20.0, 3.0]
    """

    threshold: float
    value: float

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.threshold(x, self.threshold, self.value)


class GLU(Module):
    """One half of `x` along `axis` times the sigmoid of the other, so that axis halves (Dauphin et al. 2017).

    Calling it raises `ShapeError` for an axis of odd length.

    >>> import functad as fd
    >>> fd.nn.GLU()(fd.tensor([[3.0, 4.0, 0.0, 1000.0]])).tolist()
    [[1.5, 4.0]]
    """

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.glu(x, self.axis)


class Softmax(Module):
    """exp(x), normalized to sum 1 along `axis` (the last by default); stable.

    >>> import functad as fd
    >>> fd.nn.Softmax(axis=0)(fd.tensor([[1000.0], [1000.0]])).tolist()
    [[0.5], [0.5]]
    """

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softmax(x, self.axis)


class LogSoftmax(Module):
    """The log of softmax along `axis` (the last by default); stable.

    >>> import functad as fd
    >>> fd.nn.LogSoftmax()(fd.tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.log_softmax(x, self.axis)


class Softmin(Module):
    """softmax of -x along `axis` (the last by default).

    >>> import functad as fd
    >>> fd.nn.Softmin()(fd.tensor([0.0, 1000.0])).tolist()
    [1.0, 0.0]
    """

    axis: int = -1

    def forward(self, x: Any) -> Any:
        """Of every element."""
        return F.softmin(x, self.axis)


class PReLU(Module):
    """`x`, and a trained fraction of it where negative (He et al. 2015).

    Args:
        num_parameters: 1, or one fraction for each channel; channels are axis 1 of what it takes.
        init: the first value of each.
        dtype: of the parameters.
        device: where they are.

    >>> import functad as fd
    >>> layer = fd.nn.PReLU()
    >>> layer(fd.tensor([-1.0, 2.0])).tolist(), layer.weight.shape
    ([-0.25, 2.0], (1,))
    """

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
    """`x`, and where negative a fraction of it, random in training and the mean of the bounds after `valid()` (Xu et al. 2015).

    Fractions are uniform in [lower, upper]; see `functad.nn.functional.rrelu` for where they are drawn from.

    >>> import functad as fd
    >>> layer = fd.nn.RReLU(0.25, 0.75)
    >>> layer.valid()(fd.tensor([-1.0, 2.0])).tolist()
    [-0.5, 2.0]
    >>> x = layer(fd.full(100, -1.0), key=fd.random.key(0))
    >>> -0.75 <= x.min().item() < x.max().item() <= -0.25
    True
    """

    lower: float = 1 / 8
    upper: float = 1 / 3

    def forward(self, x: Any, *, key: Any = None) -> Any:
        """Of every element."""
        return F.rrelu(x, self.lower, self.upper, self.training, key=key)


class Softmax2d(Module):
    """`Softmax` over the channels of images, (batch, channels, height, width) or without the batch.

    >>> import functad as fd
    >>> fd.nn.Softmax2d()(fd.zeros((2, 1, 1))).ravel().tolist()
    [0.5, 0.5]
    """

    def forward(self, x: Any) -> Any:
        """The shares of each place's channels."""
        return F.softmax(x, axis=-3)
