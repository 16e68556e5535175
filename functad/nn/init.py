"""First values of parameters: `init.xavier_uniform(key, shape)` and the like, torch's names and JAX's argument order.

A shape is read as torch's weights are laid out: `(out, in, *window)`.

>>> import functad as fd
>>> w = fd.nn.init.kaiming_normal(fd.random.key(0), (64, 32))
>>> w.shape
(64, 32)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from functad import random
from functad.creation import Shape, as_shape, eye, full, ones, tensor, zeros
from functad.device import Device
from functad.errors import ArgumentError, ShapeError
from functad.hints import missing_name
from functad.keywords import explain
from functad.nn import parameters
from functad.ops import where
from functad.tensor import Tensor

__all__ = [
    "calculate_gain", "constant", "dirac", "fans", "glorot_normal", "glorot_uniform", "he_normal", "he_uniform", "identity",
    "kaiming_normal", "kaiming_uniform", "lecun_normal", "lecun_uniform", "normal", "ones", "orthogonal",
    "sparse", "trunc_normal", "uniform", "variance_scaling", "xavier_normal", "xavier_uniform", "zeros",
]  # fmt: skip

_CUT_STD = 0.8796256610342398  # the standard deviation of normal numbers that are cut at 2
_GAINS = {
    "linear": 1.0,
    "conv1d": 1.0,
    "conv2d": 1.0,
    "conv3d": 1.0,
    "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0,
    "conv_transpose3d": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 0.75,
}


def uniform(
    key: Any, shape: Shape, a: float = 0.0, b: float = 1.0, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Uniform in [a, b).

    >>> import functad as fd
    >>> w = fd.nn.init.uniform(fd.random.key(0), (100,), -2.0, -1.0)
    >>> -2 <= w.min().item() < w.max().item() < -1
    True
    """
    return parameters.uniform(key, shape, dtype, a, b, device)


def normal(
    key: Any, shape: Shape, mean: float = 0.0, std: float = 1.0, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Normal with a mean and a standard deviation.

    >>> import functad as fd
    >>> w = fd.nn.init.normal(fd.random.key(0), (100, 100), mean=5.0, std=0.25)
    >>> round(w.mean().item(), 1), round(w.std().item(), 2)
    (5.0, 0.25)
    """
    return parameters.normal(key, shape, dtype, std, mean, device)


def trunc_normal(
    key: Any,
    shape: Shape,
    mean: float = 0.0,
    std: float = 1.0,
    a: float = -2.0,
    b: float = 2.0,
    dtype: Any = None,
    device: Device | None = None,
) -> Tensor:
    """Normal with a mean and a standard deviation (before the cut), within [a, b].

    >>> import functad as fd
    >>> w = fd.nn.init.trunc_normal(fd.random.key(0), (100,), std=10.0)
    >>> -2 <= w.min().item() < w.max().item() <= 2
    True
    """
    low, high = (a - mean) / std, (b - mean) / std
    return random.truncated_normal(key, low, high, shape, dtype, device=device) * std + mean


def constant(shape: Shape, value: float, dtype: Any = None, device: Device | None = None) -> Tensor:
    """One value everywhere.

    >>> import functad as fd
    >>> fd.nn.init.constant((2,), 0.5).tolist()
    [0.5, 0.5]
    """
    return full(shape, value, dtype, device)


def identity(shape: Shape, dtype: Any = None, device: Device | None = None) -> Tensor:
    """The identity matrix, or what of it fits in a shape of two axes.

    Raises `ShapeError` for another number of axes.

    >>> import functad as fd
    >>> fd.nn.init.identity((2, 3)).tolist()
    [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """
    rows, columns = _two("identity", shape)
    return eye(rows, columns, dtype=dtype, device=device)


def xavier_uniform(
    key: Any, shape: Shape, gain: float = 1.0, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Uniform in +-gain * sqrt(6 / (fan_in + fan_out)) (Glorot and Bengio 2010); `glorot_uniform` is another name.

    Raises `ShapeError` for fewer than two axes.

    >>> import functad as fd
    >>> w = fd.nn.init.xavier_uniform(fd.random.key(0), (2, 4))
    >>> w.shape, abs(w).max().item() < 1  # sqrt(6 / (4 + 2))
    ((2, 4), True)
    """
    fan_in, fan_out = fans(shape, "xavier_uniform")
    bound = gain * math.sqrt(6 / max(fan_in + fan_out, 1))
    return uniform(key, shape, -bound, bound, dtype, device)


def xavier_normal(key: Any, shape: Shape, gain: float = 1.0, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Normal with std = gain * sqrt(2 / (fan_in + fan_out)) (Glorot and Bengio 2010); `glorot_normal` is another name.

    Raises `ShapeError` for fewer than two axes.

    >>> import functad as fd
    >>> round(fd.nn.init.xavier_normal(fd.random.key(0), (100, 100)).std().item(), 2)
    0.1
    """
    fan_in, fan_out = fans(shape, "xavier_normal")
    return normal(key, shape, 0.0, gain * math.sqrt(2 / max(fan_in + fan_out, 1)), dtype, device)


def kaiming_uniform(
    key: Any,
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    dtype: Any = None,
    device: Device | None = None,
) -> Tensor:
    """Uniform in +-gain * sqrt(3 / fan) (He et al. 2015); `he_uniform` is another name.

    Args:
        key: the key.
        shape: that of the weight, `(out, in, *window)`.
        a: the negative slope of a leaky relu.
        mode: "fan_in" keeps the variance of what goes forward, "fan_out" that of gradients.
        nonlinearity: what the gain is of; see `calculate_gain`.
        dtype: of the result; the default float without it.
        device: where it goes.

    Raises `ShapeError` for fewer than two axes, `ArgumentError` for another `mode` or `nonlinearity`.

    >>> import functad as fd
    >>> w = fd.nn.init.kaiming_uniform(fd.random.key(0), (4, 2, 3), nonlinearity="linear")
    >>> w.shape, abs(w).max().item() < 0.5**0.5  # fan_in = 2 * 3
    ((4, 2, 3), True)
    """
    bound = math.sqrt(3) * _kaiming_std("kaiming_uniform", shape, a, mode, nonlinearity)
    return uniform(key, shape, -bound, bound, dtype, device)


def kaiming_normal(
    key: Any,
    shape: Shape,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    dtype: Any = None,
    device: Device | None = None,
) -> Tensor:
    """Normal with std = gain / sqrt(fan) (He et al. 2015); arguments as those of `kaiming_uniform`. `he_normal` is another name.

    >>> import functad as fd
    >>> round(fd.nn.init.kaiming_normal(fd.random.key(0), (100, 200)).std().item(), 2)
    0.1
    """
    return normal(key, shape, 0.0, _kaiming_std("kaiming_normal", shape, a, mode, nonlinearity), dtype, device)


def variance_scaling(
    key: Any,
    shape: Shape,
    scale: float = 1.0,
    mode: str = "fan_in",
    distribution: str = "truncated_normal",
    dtype: Any = None,
    device: Device | None = None,
) -> Tensor:
    """Numbers of variance `scale / fan`, of which the other rules are cases (JAX's `variance_scaling`).

    `mode` is "fan_in", "fan_out" or "fan_avg", their mean; `distribution` is "truncated_normal" (within two standard
    deviations before the cut), "normal" or "uniform". Raises `ArgumentError` for another one.

    >>> import functad as fd
    >>> w = fd.nn.init.variance_scaling(fd.random.key(0), (100, 300), 2.0, "fan_avg", "uniform")
    >>> round(w.std().item(), 2)
    0.1
    """
    name = "init.variance_scaling"
    fan_in, fan_out = fans(shape, "variance_scaling")
    found = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}
    if mode not in found:
        raise ArgumentError(f"{name}: mode must be 'fan_in', 'fan_out' or 'fan_avg', got {mode!r}.")
    if scale < 0:
        raise ArgumentError(f"{name}: scale is a variance times a fan and must not be negative, got {scale}.")
    std = math.sqrt(scale / max(found[mode], 1))
    if distribution == "normal":
        return normal(key, shape, 0.0, std, dtype, device)
    if distribution == "uniform":
        return uniform(key, shape, -math.sqrt(3) * std, math.sqrt(3) * std, dtype, device)
    if distribution != "truncated_normal":
        raise ArgumentError(
            f"{name}: distribution must be 'truncated_normal', 'normal' or 'uniform', got {distribution!r}."
        )
    return random.truncated_normal(key, -2.0, 2.0, shape, dtype, device=device) * (std / _CUT_STD)


def dirac(shape: Shape, groups: int = 1, dtype: Any = None, device: Device | None = None) -> Tensor:
    """The weight of a convolution that passes on as many channels as it can, `(out, in, *window)`, in each of the groups.

    Raises `ShapeError` for less than three axes, or channels that `groups` does not divide.

    >>> import functad as fd
    >>> fd.nn.init.dirac((1, 2, 3)).tolist()
    [[[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]
    """
    sizes = as_shape(shape, "init.dirac")
    if not 3 <= len(sizes) <= 5 or sizes[0] % groups:
        raise ShapeError(
            f"init.dirac: a shape (out, in, *window) of 3 to 5 axes is needed, with a multiple of groups={groups} for out; "
            f"got {sizes}."
        )
    each = sizes[0] // groups
    made = np.zeros(sizes)
    for group in range(groups):
        for i in range(min(each, sizes[1])):
            made[(group * each + i, i, *[n // 2 for n in sizes[2:]])] = 1
    return tensor(made, dtype, device)


def sparse(
    key: Any, shape: Shape, sparsity: float, std: float = 0.01, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Normal numbers, of which a part `sparsity` of each column is 0 (Martens 2010).

    Raises `ShapeError` for another number of axes than two.

    >>> import functad as fd
    >>> (fd.nn.init.sparse(fd.random.key(0), (10, 3), 0.3) == 0).sum(0).tolist()
    [3, 3, 3]
    """
    rows, columns = _two("sparse", shape)
    if not 0 <= sparsity <= 1:
        raise ArgumentError(f"init.sparse: sparsity is a part, from 0 to 1, got {sparsity}.")
    first, second = random.split(key)
    made = normal(first, (rows, columns), 0.0, std, dtype, device)
    order = random.uniform(second, (rows, columns), device=made.device).argsort(0).argsort(0)
    return where(order < math.ceil(sparsity * rows), 0.0, made)


def lecun_uniform(key: Any, shape: Shape, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Uniform in +-sqrt(3 / fan_in) (LeCun et al. 1998).

    >>> import functad as fd
    >>> abs(fd.nn.init.lecun_uniform(fd.random.key(0), (4, 12))).max().item() < 0.5
    True
    """
    return kaiming_uniform(key, shape, nonlinearity="linear", dtype=dtype, device=device)


def lecun_normal(key: Any, shape: Shape, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Normal with std = 1 / sqrt(fan_in) (LeCun et al. 1998).

    >>> import functad as fd
    >>> round(fd.nn.init.lecun_normal(fd.random.key(0), (100, 100)).std().item(), 2)
    0.1
    """
    return kaiming_normal(key, shape, nonlinearity="linear", dtype=dtype, device=device)


def orthogonal(key: Any, shape: Shape, gain: float = 1.0, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Orthonormal rows or columns, whichever are fewer, of the weight as a matrix, times `gain` (Saxe et al. 2014).

    Raises `ShapeError` for fewer than two axes.

    >>> import functad as fd
    >>> w = fd.nn.init.orthogonal(fd.random.key(0), (2, 3))
    >>> abs((w @ w.T).round()).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    sizes = as_shape(shape, "init.orthogonal")
    if len(sizes) < 2:
        raise ShapeError(f"init.orthogonal: a shape of at least two axes is needed, got {sizes}.")
    rows, columns = sizes[0], math.prod(sizes[1:])
    n, m = max(rows, columns), min(rows, columns)
    matrix = random.orthogonal(key, n, (), dtype=dtype)[:, :m]
    made: Tensor = (matrix if rows >= columns else matrix.T).reshape(sizes) * gain
    return made if device is None else made.to_device(device)


glorot_uniform, glorot_normal = xavier_uniform, xavier_normal
he_uniform, he_normal = kaiming_uniform, kaiming_normal


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """By how much to scale weights before a nonlinearity; torch's table.

    `param` is the slope of "leaky_relu" (0.01 without it). Raises `ArgumentError` for a name that is not in the table.

    >>> import functad as fd
    >>> fd.nn.init.calculate_gain("tanh") == 5 / 3, fd.nn.init.calculate_gain("leaky_relu", 1.0)
    (True, 1.0)
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(
            f"init: nonlinearity must be one of {', '.join(sorted([*_GAINS, 'leaky_relu']))}, got {nonlinearity!r}."
        )
    return _GAINS[nonlinearity]


def fans(shape: Shape, where: str = "fans") -> tuple[int, int]:
    """How many numbers go into one output of a weight `(out, in, *window)`, and out of one input.

    Raises `ShapeError` for fewer than two axes.

    >>> import functad as fd
    >>> fd.nn.init.fans((8, 4, 3, 3))
    (36, 72)
    """
    sizes = as_shape(shape, f"init.{where}")
    if len(sizes) < 2:
        raise ShapeError(f"init.{where}: a shape of at least two axes (out, in, *window) is needed, got {sizes}.")
    window = math.prod(sizes[2:])
    return sizes[1] * window, sizes[0] * window


def _kaiming_std(where: str, shape: Shape, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"init.{where}: mode must be 'fan_in' or 'fan_out', got {mode!r}.")
    fan_in, fan_out = fans(shape, where)
    fan = fan_in if mode == "fan_in" else fan_out
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def _two(where: str, shape: Shape) -> tuple[int, int]:
    sizes = as_shape(shape, f"init.{where}")
    if len(sizes) != 2:
        raise ShapeError(f"init.{where}: a shape of two axes is needed, got {sizes}.")
    return sizes[0], sizes[1]


explain(globals(), __all__)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise missing_name(__name__, name, __all__)
