"""Activation functions. Each is smooth as a whole, or its slope at a kink is the one `docs/conventions.md` states."""

from __future__ import annotations

from typing import Any

from functad import ops, random
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.keywords import explained
from functad.nn.functional.checks import floats, number
from functad.ops.activation import elu_op, hardtanh_op, squareplus_op
from functad.ops.axes import normalize_axis
from functad.ops.halves import rounded_once
from functad.ops.logic import gate
from functad.ops.operand import operand
from functad.ops.transfer import stop_gradient

__all__ = [
    "celu", "elu", "geglu", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish", "hardtanh",
    "leaky_relu", "log_softmax", "logsigmoid", "mish", "prelu", "reglu", "relu", "relu6", "relu_squared", "rrelu",
    "selu", "sigmoid", "silu", "softmax", "softmin", "softplus", "softshrink", "softsign", "squareplus", "swiglu",
    "swish", "tanh", "tanhshrink", "threshold",
]  # fmt: skip

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946

relu, leaky_relu = ops.relu, ops.leaky_relu
gelu, mish, hardswish = ops.gelu, ops.mish, ops.hardswish
silu = swish = ops.silu
sigmoid, logsigmoid = ops.sigmoid, ops.log_sigmoid
tanh, tanhshrink, softsign = ops.tanh, ops.tanhshrink, ops.softsign


# --- pieces of lines


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0) -> Any:
    """`x` limited to [min_val, max_val]; the derivative at a bound is 0.

    Raises `ArgumentError` if `min_val` is larger than `max_val`.

    >>> import functad as fd
    >>> fd.nn.functional.hardtanh(fd.tensor([-3.0, 0.5, 3.0])).tolist()
    [-1.0, 0.5, 1.0]
    """
    low, high = number("hardtanh", "min_val", min_val), number("hardtanh", "max_val", max_val)
    if low > high:
        raise ArgumentError(f"hardtanh: min_val={min_val} must not be larger than max_val={max_val}.")
    return bind(hardtanh_op, (floats("hardtanh", x),), (low, high))


def relu6(x: Any) -> Any:
    """`x` limited to [0, 6]; the derivative at 0 and at 6 is 0.

    >>> import functad as fd
    >>> fd.nn.functional.relu6(fd.tensor([-1.0, 3.0, 9.0])).tolist()
    [0.0, 3.0, 6.0]
    """
    return bind(hardtanh_op, (floats("relu6", x),), (0.0, 6.0))


def hardsigmoid(x: Any) -> Any:
    """`relu6(x + 3) / 6`; the derivative at -3 and at 3 is 0.

    >>> import functad as fd
    >>> fd.nn.functional.hardsigmoid(fd.tensor([-4.0, 0.0, 4.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return (bind(hardtanh_op, (floats("hardsigmoid", x),), (-3.0, 3.0)) + 3) / 6


def hardshrink(x: Any, lambd: float = 0.5) -> Any:
    """`x` where it is beyond `lambd` in size, else 0.

    >>> import functad as fd
    >>> fd.nn.functional.hardshrink(fd.tensor([-1.0, 0.3, 0.5])).tolist()
    [-1.0, 0.0, 0.0]
    """
    x = floats("hardshrink", x)
    return gate(x, ops.logical_not(abs(x) <= number("hardshrink", "lambd", lambd)))  # NaN stays


def softshrink(x: Any, lambd: float = 0.5) -> Any:
    """`x` moved towards 0 by `lambd`, and 0 where that passes it.

    Raises `ArgumentError` for a negative `lambd`.

    >>> import functad as fd
    >>> fd.nn.functional.softshrink(fd.tensor([-1.0, 0.3, 2.0])).tolist()
    [-0.5, 0.0, 1.5]
    """
    x, size = floats("softshrink", x), number("softshrink", "lambd", lambd)
    if size < 0:
        raise ArgumentError(f"softshrink: lambd must not be negative, got {lambd}.")
    return gate(x - ops.sign(x) * size, ops.logical_not(abs(x) <= size))


def threshold(x: Any, threshold: float, value: float) -> Any:
    """`x` where it is above `threshold`, else `value`.

    >>> import functad as fd
    >>> fd.nn.functional.threshold(fd.tensor([0.1, 0.6]), 0.5, 9.0).tolist()
    [9.0, 0.6000000238418579]
    """
    x = floats("threshold", x)
    limit, other = number("threshold", "threshold", threshold), number("threshold", "value", value)
    return ops.where(x <= limit, other, x)


def relu_squared(x: Any) -> Any:
    """`relu(x) ** 2`, whose derivative has no jump.

    >>> import functad as fd
    >>> fd.nn.functional.relu_squared(fd.tensor([-1.0, 3.0])).tolist()
    [0.0, 9.0]
    """
    return ops.square(relu(x))


@rounded_once
def prelu(x: Any, weight: Any) -> Any:
    """`x` where it is positive, else `weight * x`: one weight, or one for each channel (axis 1).

    Raises `ShapeError` for another number of weights.

    >>> import functad as fd
    >>> fd.nn.functional.prelu(fd.tensor([[-1.0, -1.0]]), fd.tensor([0.5, 0.25])).tolist()
    [[-0.5, -0.25]]
    """
    x, weight = floats("prelu", x, weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    if weight.ndim > 1 or weight.size not in (1, channels):
        raise ShapeError(
            f"prelu: weight must have 1 element or one for each of the {channels} channels (axis 1) of x of shape "
            f"{x.shape}, got shape {weight.shape}."
        )
    if weight.ndim:
        weight = weight.reshape((-1, *[1] * (x.ndim - 2)) if weight.size > 1 else ())
    return leaky_relu(x, weight)


def rrelu(x: Any, lower: float = 1.0 / 8, upper: float = 1.0 / 3, training: bool = False, key: Any = None) -> Any:
    """Leaky ReLU with a slope drawn uniformly from [lower, upper) for each element, or their mean if not `training`.

    Without a `key` it draws from the default generator (`fd.seed`). Raises `ArgumentError` if `lower` is
    above `upper`.

    >>> import functad as fd
    >>> fd.nn.functional.rrelu(fd.tensor([-1.0, 2.0]), 0.25, 0.75).tolist()
    [-0.5, 2.0]
    """
    low, high = number("rrelu", "lower", lower), number("rrelu", "upper", upper)
    if low > high:
        raise ArgumentError(f"rrelu: lower={lower} must not be larger than upper={upper}.")
    x = floats("rrelu", x)
    if not training:
        return leaky_relu(x, (low + high) / 2)
    return leaky_relu(x, drawn(x, key).astype(x.dtype) * (high - low) + low)


# --- exponentials


def elu(x: Any, alpha: float = 1.0) -> Any:
    """`x` where it is positive, else `alpha * (exp(x) - 1)`; the derivative at 0 is `alpha`.

    >>> import functad as fd
    >>> fd.grad(lambda x: fd.nn.functional.elu(x, 2.0))(0.0).item()
    2.0
    """
    return bind(elu_op, (floats("elu", x),), (number("elu", "alpha", alpha), 1.0, 1.0))


def selu(x: Any) -> Any:
    """`elu` with the scale and `alpha` that keep mean 0 and variance 1 (self-normalising networks, 2017).

    >>> import functad as fd
    >>> round(fd.nn.functional.selu(1.0).item(), 4)
    1.0507
    """
    return bind(elu_op, (floats("selu", x),), (_SELU_ALPHA, _SELU_SCALE, 1.0))


def celu(x: Any, alpha: float = 1.0) -> Any:
    """`x` where it is positive, else `alpha * (exp(x / alpha) - 1)`; the derivative at 0 is 1.

    Raises `ArgumentError` for `alpha=0`.

    >>> import functad as fd
    >>> fd.grad(lambda x: fd.nn.functional.celu(x, 2.0))(0.0).item()
    1.0
    """
    value = number("celu", "alpha", alpha)
    if value == 0:
        raise ArgumentError("celu: alpha must not be 0, x is divided by it.")
    return bind(elu_op, (floats("celu", x),), (value, 1.0, 1 / value))


def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """log(1 + exp(beta * x)) / beta, and `x` itself where `beta * x` is above `threshold`, as in torch.

    >>> import functad as fd
    >>> fd.grad(fd.nn.functional.softplus)(0.0).item()
    0.5
    """
    return ops.softplus(x, number("softplus", "beta", beta), number("softplus", "threshold", threshold))


def squareplus(x: Any, b: float = 4.0) -> Any:
    """`(x + sqrt(x * x + b)) / 2`, an algebraic softplus; `relu` for `b=0`.

    Raises `ArgumentError` for a negative `b`.

    >>> import functad as fd
    >>> fd.nn.functional.squareplus(fd.tensor([0.0])).tolist()
    [1.0]
    """
    curve = number("squareplus", "b", b)
    if curve < 0:
        raise ArgumentError(f"squareplus: b must not be negative, got {b}.")
    return bind(squareplus_op, (floats("squareplus", x),), (curve,))


# --- gates: half of an axis opens the other half


@explained
def glu(x: Any, axis: int = -1) -> Any:
    """The first half of `axis` times the sigmoid of the second half (gated linear unit, 2016).

    Raises `ShapeError` if the axis has an odd length.

    >>> import functad as fd
    >>> fd.nn.functional.glu(fd.tensor([2.0, 0.0])).tolist()
    [1.0]
    """
    first, second = _halves("glu", x, axis)
    return first * sigmoid(second)


def swiglu(x: Any, axis: int = -1) -> Any:
    """`silu` of the first half of `axis` times the second half (GLU variants, 2020); see `glu`.

    >>> import functad as fd
    >>> fd.nn.functional.swiglu(fd.tensor([0.0, 5.0])).tolist()
    [0.0]
    """
    first, second = _halves("swiglu", x, axis)
    return silu(first) * second


def geglu(x: Any, axis: int = -1, approximate: str = "none") -> Any:
    """`gelu` of the first half of `axis` times the second half (GLU variants, 2020); see `glu`.

    >>> import functad as fd
    >>> fd.nn.functional.geglu(fd.tensor([0.0, 5.0])).tolist()
    [0.0]
    """
    first, second = _halves("geglu", x, axis)
    return gelu(first, approximate) * second


def reglu(x: Any, axis: int = -1) -> Any:
    """`relu` of the first half of `axis` times the second half (GLU variants, 2020); see `glu`.

    >>> import functad as fd
    >>> fd.nn.functional.reglu(fd.tensor([2.0, 5.0])).tolist()
    [10.0]
    """
    first, second = _halves("reglu", x, axis)
    return relu(first) * second


def _halves(where: str, x: Any, axis: int) -> Any:
    x = floats(where, x)
    axis = normalize_axis(axis, x.ndim, where)
    if x.shape[axis] % 2:
        raise ShapeError(
            f"{where}: axis {axis} is cut into two halves, but it has the odd length {x.shape[axis]} (shape {x.shape})."
        )
    return ops.split(x, 2, axis)


# --- softmax and its kin


@explained
def softmax(x: Any, axis: Any = -1, where: Any = None, dtype: Any = None) -> Any:
    """exp(x) over its sum along `axis`, computed in `dtype` if one is given.

    Elements outside the mask `where` count as absent: they are 0, and a row without any is 0.

    >>> import functad as fd
    >>> fd.nn.functional.softmax(fd.tensor([0.0, 0.0])).tolist()
    [0.5, 0.5]
    """
    return ops.softmax(_as(x, dtype), axis, where)


@explained
def softmin(x: Any, axis: Any = -1, dtype: Any = None) -> Any:
    """The softmax of `-x`.

    >>> import functad as fd
    >>> fd.nn.functional.softmin(fd.tensor([0.0, 1000.0])).tolist()
    [1.0, 0.0]
    """
    return ops.softmax(-floats("softmin", _as(x, dtype)), axis)


@explained
def log_softmax(x: Any, axis: Any = -1, where: Any = None, dtype: Any = None) -> Any:
    """The logarithm of `softmax`, without losing small probabilities.

    >>> import functad as fd
    >>> fd.nn.functional.log_softmax(fd.tensor([0.0, 1000.0])).tolist()
    [-1000.0, 0.0]
    """
    return ops.log_softmax(_as(x, dtype), axis, where)


@rounded_once
@explained
def gumbel_softmax(logits: Any, tau: float = 1.0, hard: bool = False, axis: int = -1, key: Any = None) -> Any:
    """A sample from the Gumbel-softmax distribution (Jang 2016, Maddison 2016) with temperature `tau`.

    With `hard` it is a unit vector whose derivative is that of the soft sample. Without a `key` it draws
    from the default generator (`fd.seed`). Raises `ArgumentError` unless `tau` is positive.

    >>> import functad as fd
    >>> fd.nn.functional.gumbel_softmax(fd.tensor([0.0, 50.0]), hard=True, key=fd.random.key(0)).tolist()
    [0.0, 1.0]
    """
    temperature = number("gumbel_softmax", "tau", tau)
    if temperature <= 0:
        raise ArgumentError(f"gumbel_softmax: tau must be positive, got {tau}.")
    logits = floats("gumbel_softmax", logits)
    axis = normalize_axis(axis, logits.ndim, "gumbel_softmax")
    noise = -ops.log(-ops.log(drawn(logits, key)))
    soft = ops.softmax((logits + noise.astype(logits.dtype)) / temperature, axis)
    if not hard:
        return soft
    unit = ops.one_hot(ops.argmax(stop_gradient(soft), axis), logits.shape[axis], logits.dtype)
    return ops.moveaxis(unit, -1, axis) + (soft - stop_gradient(soft))


def _as(x: Any, dtype: Any) -> Any:
    return x if dtype is None else ops.astype(operand(x), dtype)


def drawn(x: Any, key: Any, shape: tuple[int, ...] | None = None) -> Any:
    """Uniform numbers in [0, 1), of the shape of `x` or another one, on its device; from a fresh key without one."""
    made: Any = random.uniform(random.draw_key() if key is None else key, x.shape if shape is None else shape)
    return made if made.device == x.device else made.to_device(x.device)
