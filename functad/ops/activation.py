"""Activation functions, each smooth as a whole or with its slope at the kink fixed."""

from __future__ import annotations

import math
from typing import Any

from functad.dispatch import Handle, bind
from functad.errors import ArgumentError
from functad.ops.elementary import erfc, erfc_impl, exp, sigmoid, tanh, widened
from functad.ops.logic import gate, where_op
from functad.ops.op import Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import ONE, PAIR, align_rows, custom, elementwise, product, unbroadcast

__all__ = ["gelu", "leaky_relu", "log_sigmoid", "relu", "sigmoid", "silu", "softplus"]

relu = custom(
    "relu", lambda xp, x: xp.maximum(x, xp.zeros((), x.dtype)), promote="numeric",
    vjp=lambda g, out: gate(g, out > 0), jvp=lambda t, out: gate(t, out > 0),
    samples=ONE._replace(kinks=(0.0,)), batch=align_rows, doc="max(x, 0); the derivative at 0 is 0.",
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


# --- smooth ones. `saturate` stands before products such as x * sigmoid'(x), which are inf * 0 at infinity: the
# limits below are where the factor is 0 in float64 too, so that nothing is lost.


def _saturate(xp: Any, x: Any, *, limit: int) -> Any:
    low, high = xp.asarray([-limit, limit], x.dtype)
    return xp.maximum(xp.minimum(x, high), low)  # NumPy's clip would widen bfloat16


saturate = custom(
    "saturate", _saturate,
    vjp=lambda g, x, limit: gate(g, abs(x) < limit), jvp=lambda t, x, limit: gate(t, abs(x) < limit),
    samples=Samples([(shapes, {"limit": 1.5}) for shapes, _ in ONE.cases], kinks=(-1.5, 1.5)),
    batch=align_rows, doc="x limited to [-limit, limit].",
)  # fmt: skip
softplus = elementwise(
    "softplus", widened(lambda xp, x: xp.logaddexp(x, xp.zeros((), x.dtype))), lambda x: sigmoid(x), promote="float",
    samples=ONE, doc="log(1 + exp(x)), stable.",
)  # fmt: skip
log_sigmoid = elementwise(
    "log_sigmoid", widened(lambda xp, x: -xp.logaddexp(-x, xp.zeros((), x.dtype))), lambda x: sigmoid(-x),
    promote="float", samples=ONE, doc="log(sigmoid(x)), stable.",
)  # fmt: skip


@widened
def _silu(xp: Any, x: Any) -> Any:
    s = 1 / (1 + xp.exp(-x))
    return xp.where(s == 0, s, x * s)


def _silu_partial(x: Any) -> Any:
    x = x if x._dtype.kind == "c" else bind(saturate, (x,), (1000,))
    s = sigmoid(x)
    return s * (1 + x * (1 - s))


@widened
def _gelu(xp: Any, x: Any, *, approximate: str) -> Any:
    if approximate == "tanh":
        inner = xp.clip(x, -_TANH_LIMIT, _TANH_LIMIT)
        cdf = 0.5 * (1 + xp.tanh(_TANH_SCALE * (inner + _TANH_CUBIC * inner**3)))
    else:
        cdf = 0.5 * erfc_impl(xp, x * -math.sqrt(0.5))
    return xp.where(cdf == 0, cdf, x * cdf)


def _gelu_partial(x: Any, approximate: str) -> Any:
    if approximate == "tanh":
        x = bind(saturate, (x,), (_TANH_LIMIT,))
        t = tanh(_TANH_SCALE * (x + _TANH_CUBIC * x**3))
        slope = _TANH_SCALE * (1 + 3 * _TANH_CUBIC * x**2)
        return 0.5 * (1 + t) + 0.5 * x * (1 - t) * (1 + t) * slope
    x = bind(saturate, (x,), (40,))
    return 0.5 * erfc(x * -math.sqrt(0.5)) + x * exp(x * x * -0.5) / math.sqrt(2 * math.pi)


_TANH_LIMIT = 25
_TANH_SCALE = math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715

silu = elementwise("silu", _silu, _silu_partial, promote="float", samples=ONE, doc="x * sigmoid(x).")
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
