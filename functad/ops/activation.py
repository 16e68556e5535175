"""Activation functions, each smooth as a whole or with its slope at the kink fixed."""

from __future__ import annotations

import math
from typing import Any

from functad.dispatch import Handle, bind
from functad.errors import ArgumentError
from functad.ops.arithmetic import reciprocal, square
from functad.ops.elementary import erfc, erfc_impl, exp, log_of_sum, real_only, sigmoid, tanh, widened
from functad.ops.logic import gate, where, where_op
from functad.ops.op import Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import ONE, PAIR, align_rows, cast, custom, elementwise, product, unbroadcast, widen

__all__ = [
    "elu_op", "gelu", "hardswish", "hardtanh_op", "leaky_relu", "log_sigmoid", "mish", "relu", "sigmoid", "silu",
    "softplus", "softsign", "squareplus_op", "tanhshrink",
]  # fmt: skip


def _each(kinks: tuple[float, ...] = (), **params: Any) -> Samples:
    """Samples of one input with these values of the parameters."""
    return Samples([(shapes, params) for shapes, _ in ONE.cases], kinks=kinks)


relu = custom(
    "relu", lambda xp, x: xp.maximum(x, xp.zeros((), x.dtype)), promote="numeric",
    vjp=lambda g, out: gate(g, out > 0), jvp=lambda t, out: gate(t, out > 0),
    samples=ONE._replace(kinks=(0.0,)), batch=align_rows, doc="max(x, 0); the derivative at 0 is 0.",
    example=("fd.nn.functional.relu(-1.0).item()", "0.0"),
)  # fmt: skip
leaky_relu_op = custom(
    "leaky_relu", lambda xp, x, slope: xp.where(x > 0, x, slope * x),
    vjp=[lambda g, x, slope, x_shape: unbroadcast(bind(where_op, (x > 0, g, product(g, slope))), x_shape),
         lambda g, x, slope_shape: unbroadcast(product(gate(g, x <= 0), x), slope_shape)],
    jvp=[lambda t, x, slope: bind(where_op, (x > 0, t, product(t, slope))),
         lambda t, x: product(gate(t, x <= 0), x)],
    samples=PAIR._replace(kinks=(0.0,)), batch=align_rows, doc="x where it is positive, else slope * x.",
)  # fmt: skip


def leaky_relu(x: Any, negative_slope: Any = 0.01) -> Any:
    """`x` where it is positive, else `negative_slope * x`; a tensor of slopes (PReLU) gets its derivative.

    At 0 the derivative is the negative slope.

    >>> import functad as fd
    >>> fd.ops.leaky_relu(fd.tensor([2.0, -2.0]), 0.5).tolist()
    [2.0, -1.0]
    """
    like = negative_slope if isinstance(negative_slope, Handle) else None
    (x,) = operands("leaky_relu", "float", (operand(x, like, where="leaky_relu"),))
    return bind(leaky_relu_op, (x, operand(negative_slope, x, x._dtype, "leaky_relu")))


# --- pieces of lines and exponentials


def _hardtanh(xp: Any, x: Any, *, low: float, high: float) -> Any:
    # NumPy's clip would widen bfloat16
    return xp.maximum(xp.minimum(x, xp.asarray(high, x.dtype)), xp.asarray(low, x.dtype))


def _between(g: Any, x: Any, low: float, high: float) -> Any:
    return gate(g, (x > low) & (x < high))


hardtanh_op = custom(
    "hardtanh", _hardtanh, vjp=_between, jvp=_between, samples=_each((-1.0, 1.5), low=-1.0, high=1.5),
    batch=align_rows, doc="x limited to [low, high]; the derivative at a bound is 0.",
)  # fmt: skip


@widened
def _elu(xp: Any, x: Any, *, alpha: float, scale: float, rate: float) -> Any:
    return xp.where(x > 0, scale * x, scale * alpha * xp.expm1(rate * xp.minimum(x, xp.zeros((), x.dtype))))


def _elu_partial(x: Any, alpha: float, scale: float, rate: float) -> Any:
    return where(x > 0, scale, exp(gate(x, x <= 0) * rate) * (scale * alpha * rate))


elu_op = elementwise(
    "elu", _elu, _elu_partial, promote="float",
    samples=_each((0.0,), alpha=1.5, scale=1.1, rate=0.7),
    doc="scale * x where it is positive, else scale * alpha * (exp(rate * x) - 1).",
)  # fmt: skip
hardswish = elementwise(
    "hardswish", widened(lambda xp, x: xp.where(x >= 3, x, xp.where(x <= -3, xp.zeros((), x.dtype), x * (x + 3) / 6))),
    lambda x: where(x >= 3, 1.0, gate(x / 3 + 0.5, x > -3)), promote="float",
    samples=ONE._replace(low=-4.0, high=4.0, kinks=(-3.0, 3.0)),
    doc="x * relu6(x + 3) / 6: 0 up to -3, x from 3 on; the derivatives there are 0 and 1.",
    example=("round(fd.nn.functional.hardswish(1.0).item(), 4)", "0.6667"),
)  # fmt: skip

# --- smooth ones. `_saturated` stands before products such as x * sigmoid'(x), which are inf * 0 at infinity: the
# limits below are where the factor is 0 in float64 too, so that nothing is lost.


def _limited(xp: Any, x: Any, limit: float) -> Any:
    return _hardtanh(xp, x, low=-limit, high=limit)


def _times(xp: Any, x: Any, factor: Any, limit: float) -> Any:
    """`x * factor`, where the factor is 0 below -limit."""
    return xp.maximum(x, xp.asarray(-limit, x.dtype)) * factor


def _saturated(x: Any, limit: float) -> Any:
    """The same as an op. A compiled program finds what value and derivative both compute of it."""
    return bind(hardtanh_op, (x,), (-limit, limit))


@widened
def _softplus(xp: Any, x: Any, *, beta: float, threshold: float) -> Any:
    scaled = x if beta == 1 else x * beta
    if x.dtype.kind == "c":
        soft = log_of_sum(xp, scaled, xp.zeros((), x.dtype))
    else:
        soft = xp.maximum(scaled, xp.zeros((), x.dtype)) + xp.log1p(xp.exp(-xp.abs(scaled)))
    soft = soft if beta == 1 else soft / beta
    return soft if threshold == math.inf else xp.where(scaled > threshold, x, soft)


def _softplus_partial(x: Any, beta: float, threshold: float) -> Any:
    scaled = x if beta == 1 else x * beta
    return sigmoid(scaled) if threshold == math.inf else where(scaled > threshold, 1.0, sigmoid(scaled))


@widened
def _softsign(xp: Any, x: Any) -> Any:
    real_only("softsign", x)
    return xp.where(xp.isinf(x), xp.sign(x), x / (1 + xp.abs(x)))


@widened
def _squareplus(xp: Any, x: Any, *, b: float) -> Any:
    real_only("squareplus", x)
    size, limit = xp.abs(x), xp.asarray(math.sqrt(b) * 2 ** (13 if x.dtype.itemsize < 8 else 27), x.dtype)
    near = xp.minimum(size, limit)  # beyond the limit b is lost, and the square may be inf
    twice = size + (xp.sqrt(near * near + b) + (size - near))
    positive = xp.maximum(x, xp.zeros((), x.dtype))
    return positive + b / 2 / twice if b else positive


def _squareplus_partial(x: Any, out: Any, b: float) -> Any:
    if not b:
        return (x > 0).astype(x.dtype)
    return where(x == math.inf, 1.0, out / (out + (out - x)))  # that is the root


softplus_op = elementwise(
    "softplus", _softplus, _softplus_partial, promote="float",
    samples=Samples([
        *[(shapes, {"beta": 1.0, "threshold": math.inf}) for shapes, _ in ONE.cases],
        (((3, 2),), {"beta": 2.0, "threshold": 1.0}),
    ], kinks=(0.5,)),
    doc="log(1 + exp(beta * x)) / beta, stable; x itself where beta * x is above the threshold.",
)  # fmt: skip
softsign = elementwise(
    "softsign", _softsign,
    lambda x: square(reciprocal(1 + abs(x))), promote="float", samples=ONE._replace(kinks=(0.0,)),
    doc="x / (1 + |x|).",
    example=("fd.nn.functional.softsign(1.0).item()", "0.5"),
)  # fmt: skip
squareplus_op = elementwise(
    "squareplus", _squareplus, _squareplus_partial, promote="float", samples=_each(b=4.0), doc="(x + sqrt(x * x + b)) / 2, without cancellation for negative x.",
)  # fmt: skip
tanhshrink = elementwise(
    "tanhshrink", widened(lambda xp, x: x - xp.tanh(x)), lambda x: square(tanh(x)), promote="float", samples=ONE,
    doc="x - tanh(x).",
    example=("round(fd.nn.functional.tanhshrink(1.0).item(), 4)", "0.2384"),
)  # fmt: skip
log_sigmoid = elementwise(
    "log_sigmoid", widened(lambda xp, x: -log_of_sum(xp, -x, xp.zeros((), x.dtype))), lambda x: sigmoid(-x),
    promote="float", samples=ONE, doc="log(sigmoid(x)), stable.",
    example=("round(fd.special.log_expit(1.0).item(), 4)", "-0.3133"),
)  # fmt: skip


@widened
def _silu(xp: Any, x: Any) -> Any:
    if x.dtype.kind == "c":
        return x * sigmoid.impl(xp, x)
    return _times(xp, x, sigmoid.impl(xp, _limited(xp, x, _LIMIT)), _LIMIT)


def _silu_partial(x: Any) -> Any:
    x = x if x._dtype.kind == "c" else _saturated(x, _LIMIT)
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


@widened
def _gelu(xp: Any, x: Any, *, approximate: str) -> Any:
    if approximate == "tanh":
        inner = _limited(xp, x, _TANH_LIMIT)
        return _times(xp, x, 0.5 * (1 + xp.tanh(_TANH_SCALE * (inner + _TANH_CUBIC * inner**3))), _TANH_LIMIT)
    return _times(xp, x, 0.5 * erfc_impl(xp, _limited(xp, x, _ERF_LIMIT) * -math.sqrt(0.5)), _ERF_LIMIT)


def _gelu_partial(x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        x = _saturated(x, _TANH_LIMIT)
        t = tanh(_TANH_SCALE * (x + _TANH_CUBIC * x**3))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * x**2)
        return 0.5 * (1 + t) + 0.5 * x * (1 - t) * (1 + t) * slope
    x = _saturated(x, _ERF_LIMIT)
    z = x * -math.sqrt(0.5)
    return 0.5 * erfc(z) + x * exp(-(z * z)) * (1 / math.sqrt(2 * math.pi))  # erfc has this exponential in it too


_LIMIT, _ERF_LIMIT, _TANH_LIMIT = 1000.0, 40.0, 25.0
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


_MISH_LIMIT = 20.0  # beyond it tanh(softplus(x)) is 1


@widened
def _mish(xp: Any, x: Any) -> Any:
    u = xp.exp(_hardtanh(xp, x, low=-_LIMIT, high=_MISH_LIMIT))
    return _times(xp, x, u * (u + 2) / (u * (u + 2) + 2), _LIMIT)  # tanh(log(1 + u))


def _mish_partial(x: Any) -> Any:
    dtype = x._dtype
    x = bind(hardtanh_op, (widen(x),), (-_LIMIT, _MISH_LIMIT))
    u = exp(x)
    w = u * (u + 2)
    r = 2 / (w + 2)
    return cast(0.5 * w * r + x * (u * (1 + u) * r * r), dtype)


silu = elementwise(
    "silu",
    _silu,
    _silu_partial,
    promote="float",
    samples=ONE,
    doc="x * sigmoid(x).",
    example=("round(fd.nn.functional.silu(1.0).item(), 4)", "0.7311"),
)
mish = elementwise(
    "mish", _mish, _mish_partial, promote="float", samples=ONE, doc="x * tanh(softplus(x)), smooth as a whole.",
    example=("round(fd.nn.functional.mish(1.0).item(), 4)", "0.8651"),
)  # fmt: skip
gelu_op = elementwise(
    "gelu", _gelu, _gelu_partial, promote="float", doc="x * Phi(x), Phi the normal distribution function.",
    samples=Samples([(shapes, {"approximate": a}) for a in ("none", "tanh") for shapes, _ in ONE.cases]),
)  # fmt: skip


def gelu(x: Any, approximate: str = "none") -> Any:
    """`x * Phi(x)` with the normal distribution function `Phi`, or its usual `"tanh"` approximation.

    Raises `ArgumentError` if `approximate` is neither `"none"` nor `"tanh"`.

    >>> import functad as fd
    >>> fd.grad(fd.ops.gelu)(0.0).item()
    0.5
    """
    if approximate not in ("none", "tanh"):
        raise ArgumentError(f'gelu: approximate must be "none" or "tanh", got {approximate!r}.')
    return bind(gelu_op, operands("gelu", "float", (x,)), (approximate,))


def softplus(x: Any, beta: float = 1.0, threshold: float = math.inf) -> Any:
    """log(1 + exp(beta * x)) / beta, without overflow; `x` itself where `beta * x` is above `threshold`.

    >>> import functad as fd
    >>> fd.grad(fd.ops.softplus)(0.0).item()
    0.5
    """
    return bind(softplus_op, operands("softplus", "float", (x,)), (float(beta), float(threshold)))
