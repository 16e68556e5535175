"""Elementwise ops: JAX's AD and finite differences to second order, and exact values at special points."""

from __future__ import annotations

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import functad as fd
from functad import ops
from functad.backends.batch import Batch
from functad.backends.forward import Forward
from functad.dispatch import base_tensor
from functad.levels import deeper
from functad.ops.operand import operand

INF, NAN = math.inf, math.nan
DEVICES = {"xla": fd.Device.cpu(), "numpy": fd.Device.numpy()}


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


@pytest.fixture(params=DEVICES)
def device(request):
    return DEVICES[request.param]


# --- both modes, as functions of functions


def jvp(fn, xs, ts):
    """The value of `fn(*xs)` and its tangent; a tangent of None is zero."""
    with deeper() as level:
        forward = Forward(level)
        y = fn(*[forward.wrap(operand(x), None if t is None else operand(t)) for x, t in zip(xs, ts, strict=True)])
        forward.close()
    if y._backend is not forward:
        return y, ops.mul(y, 0)
    return y._value, ops.mul(y._value, 0) if y._context is None else y._context


def forward_derivative(fn, index=0):
    def derivative(*xs):
        ts = [operand(1, x, x.dtype).broadcast_to(x.shape) if i == index else None for i, x in enumerate(xs)]
        return jvp(fn, xs, ts)[1]

    return derivative


def reverse_derivative(fn, index=0):
    return fd.grad(lambda *xs: fn(*xs).sum(), argnums=index)


def vmap(fn):
    def mapped(*xs):
        with deeper() as level:
            batch = Batch(level, xs[0].shape[0])
            out = batch.unwrap(fn(*[batch.wrap(x) for x in xs]))
            batch.close()
        return out

    return mapped


MODES = {"reverse": reverse_derivative, "forward": forward_derivative}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


# --- against JAX's AD, to second order

UNARY = {  # functad's function, JAX's, and the interval to draw from
    "abs": (ops.abs, jnp.abs, -2, 2),
    "arccos": (ops.arccos, jnp.arccos, -0.9, 0.9),
    "arccosh": (ops.arccosh, jnp.arccosh, 1.1, 3),
    "arcsin": (ops.arcsin, jnp.arcsin, -0.9, 0.9),
    "arcsinh": (ops.arcsinh, jnp.arcsinh, -3, 3),
    "arctan": (ops.arctan, jnp.arctan, -3, 3),
    "arctanh": (ops.arctanh, jnp.arctanh, -0.9, 0.9),
    "cbrt": (ops.cbrt, jnp.cbrt, 0.2, 3),
    "ceil": (ops.ceil, jnp.ceil, -3, 3),
    "clip": (lambda x: ops.clip(x, -1, 1.5), lambda x: jnp.clip(x, -1, 1.5), -3, 3),
    "cos": (ops.cos, jnp.cos, -3, 3),
    "cosh": (ops.cosh, jnp.cosh, -3, 3),
    "deg2rad": (ops.deg2rad, jnp.deg2rad, -90, 90),
    "erf": (ops.erf, jax.scipy.special.erf, -3, 3),
    "erfc": (ops.erfc, jax.scipy.special.erfc, -3, 3),
    "exp": (ops.exp, jnp.exp, -3, 3),
    "exp2": (ops.exp2, jnp.exp2, -3, 3),
    "expm1": (ops.expm1, jnp.expm1, -3, 3),
    "floor": (ops.floor, jnp.floor, -3, 3),
    "gelu": (ops.gelu, lambda x: jax.nn.gelu(x, approximate=False), -3, 3),
    "gelu_tanh": (lambda x: ops.gelu(x, "tanh"), lambda x: jax.nn.gelu(x, approximate=True), -3, 3),
    "leaky_relu": (lambda x: ops.leaky_relu(x, 0.3), lambda x: jax.nn.leaky_relu(x, 0.3), -3, 3),
    "log": (ops.log, jnp.log, 0.2, 3),
    "log10": (ops.log10, jnp.log10, 0.2, 3),
    "log1p": (ops.log1p, jnp.log1p, -0.8, 3),
    "log2": (ops.log2, jnp.log2, 0.2, 3),
    "log_sigmoid": (ops.log_sigmoid, jax.nn.log_sigmoid, -3, 3),
    "pow -1": (lambda x: x**-1, lambda x: x**-1, 0.3, 3),
    "pow -3": (lambda x: x**-3, lambda x: x**-3, -3, -0.3),
    "pow 0.5": (lambda x: x**0.5, lambda x: x**0.5, 0.3, 3),
    "pow 2": (lambda x: x**2, lambda x: x**2, -3, 3),
    "pow 7.0": (lambda x: x**7.0, lambda x: x**7, -3, 3),
    "pow 23": (lambda x: x**23, lambda x: x**23, -1.2, 1.2),
    "rad2deg": (ops.rad2deg, jnp.rad2deg, -2, 2),
    "reciprocal": (ops.reciprocal, jnp.reciprocal, 0.3, 3),
    "relu": (ops.relu, jax.nn.relu, -3, 3),
    "round": (ops.round, jnp.round, -3, 3),
    "rpow": (lambda x: 3.0**x, lambda x: 3.0**x, -3, 3),
    "rsqrt": (ops.rsqrt, jax.lax.rsqrt, 0.2, 3),
    "rsub": (lambda x: 1 - x, lambda x: 1 - x, -3, 3),
    "rtruediv": (lambda x: 2 / x, lambda x: 2 / x, 0.3, 3),
    "sigmoid": (ops.sigmoid, jax.nn.sigmoid, -3, 3),
    "sign": (ops.sign, jnp.sign, -3, 3),
    "silu": (ops.silu, jax.nn.silu, -3, 3),
    "sin": (ops.sin, jnp.sin, -3, 3),
    "sinc": (ops.sinc, jnp.sinc, 0.3, 3),
    "sinh": (ops.sinh, jnp.sinh, -3, 3),
    "softplus": (ops.softplus, jax.nn.softplus, -3, 3),
    "sqrt": (ops.sqrt, jnp.sqrt, 0.2, 3),
    "square": (ops.square, jnp.square, -3, 3),
    "tan": (ops.tan, jnp.tan, -1.2, 1.2),
    "tanh": (ops.tanh, jnp.tanh, -3, 3),
    "trunc": (ops.trunc, jnp.trunc, -3, 3),
}
BINARY = {
    "arctan2": (ops.arctan2, jnp.arctan2, -2, 2),
    "clip bounds": (lambda x, y: ops.clip(x, y, y + 1), lambda x, y: jnp.clip(x, y, y + 1), -2, 2),
    "copysign": (ops.copysign, lambda x, y: jnp.abs(x) * jnp.sign(y), -2, 2),
    "div": (ops.div, jnp.divide, 0.3, 2),
    "floor_divide": (ops.floor_divide, lambda x, y: jnp.floor(x / y), 0.3, 2),
    "fmod": (ops.fmod, lambda x, y: x - y * jnp.trunc(x / y), 0.3, 2),
    "fmod negative": (lambda x, y: ops.fmod(-3 * x, y), lambda x, y: -3 * x - y * jnp.trunc(-3 * x / y), 0.3, 2),
    "hypot": (ops.hypot, jnp.hypot, -2, 2),
    "leaky_relu slope": (ops.leaky_relu, lambda x, y: jnp.where(x > 0, x, x * y), -2, 2),
    "logaddexp": (ops.logaddexp, jnp.logaddexp, -2, 2),
    "logaddexp2": (ops.logaddexp2, jnp.logaddexp2, -2, 2),
    "mask_fill": (lambda x, y: ops.mask_fill(x * x, x > y, y * y), lambda x, y: jnp.where(x > y, y * y, x * x), -2, 2),
    "maximum": (lambda x, y: ops.maximum(x, y) ** 2, lambda x, y: jnp.maximum(x, y) ** 2, -2, 2),
    "minimum": (lambda x, y: ops.minimum(x, y) ** 2, lambda x, y: jnp.minimum(x, y) ** 2, -2, 2),
    "pow": (ops.pow, jnp.power, 0.3, 2),
    "remainder": (ops.remainder, lambda x, y: x - y * jnp.floor(x / y), 0.3, 2),
    "remainder negative": (
        lambda x, y: ops.remainder(-3 * x, y),
        lambda x, y: -3 * x - y * jnp.floor(-3 * x / y),
        0.3,
        2,
    ),
    "sub": (lambda x, y: ops.sub(x * y, y), lambda x, y: x * y - y, -2, 2),
    "where": (lambda x, y: ops.where(x > y, x * y, y**2), lambda x, y: jnp.where(x > y, x * y, y**2), -2, 2),
    "xlogy": (ops.xlogy, jax.scipy.special.xlogy, 0.3, 2),
}


def points(name, low, high, count):
    rng = np.random.default_rng(sum(map(ord, name)))
    return rng.uniform(low, high, (count, 5))


def functad_orders(fn, count, order):
    """Value, first derivatives in both modes, second ones in both, for `count` arguments."""

    def orders(*xs):
        out = {"value": fn(*xs)}
        for i in range(count):
            out[f"rev {i}"] = reverse_derivative(fn, i)(*xs)
            out[f"fwd {i}"] = forward_derivative(fn, i)(*xs)
            for j in range(count if order == 2 else 0):
                out[f"rev rev {i}{j}"] = reverse_derivative(reverse_derivative(fn, i), j)(*xs)
                out[f"fwd rev {i}{j}"] = forward_derivative(reverse_derivative(fn, i), j)(*xs)
                if i <= j:
                    out[f"rev fwd {i}{j}"] = reverse_derivative(forward_derivative(fn, i), j)(*xs)
                    out[f"fwd fwd {i}{j}"] = forward_derivative(forward_derivative(fn, i), j)(*xs)
        return out

    return orders


def jax_orders(fn, count):
    def along(fn, i):  # of an elementwise function
        return lambda *xs: jax.jvp(fn, xs, tuple(jnp.full_like(x, i == j) for j, x in enumerate(xs)))[1]

    def orders(*xs):
        first = {f"{i}": along(fn, i) for i in range(count)}
        second = {f"{i}{j}": along(first[f"{i}"], j) for i in range(count) for j in range(i, count)}
        found = {k: f(*xs) for k, f in {"value": fn, **first, **second}.items()}
        return found | ({"10": found["01"]} if count == 2 else {})

    return orders


@pytest.fixture(scope="module")
def oracle():
    """JAX's values and derivatives of every function, from one program."""
    tables = [(UNARY, 1), (BINARY, 2)]
    with fd.enable_x64():
        inputs = {n: points(n, *row[2:], count) for table, count in tables for n, row in table.items()}
        fns = {n: jax_orders(row[1], count) for table, count in tables for n, row in table.items()}
        return jax.device_get(_optimised_little(lambda xs: {n: fns[n](*x) for n, x in xs.items()})(inputs))


@pytest.fixture(scope="module")
def on_xla():
    """functad's values and first derivatives, from one program."""
    tables = [(UNARY, 1), (BINARY, 2)]
    with fd.enable_x64():
        inputs = {n: points(n, *row[2:], count) for table, count in tables for n, row in table.items()}
        fns = {n: functad_orders(row[0], count, 1) for table, count in tables for n, row in table.items()}

        def call(xs):
            return {n: {k: y.jax() for k, y in fns[n](*map(operand, x)).items()} for n, x in xs.items()}

        return jax.device_get(_optimised_little(call)(inputs))


def _optimised_little(fn):
    """Compiled fast, since it runs once."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "fusion"})


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_xla_agrees_with_jax(name, oracle, on_xla):
    agree(on_xla[name], oracle[name])


@pytest.mark.parametrize("name", [*UNARY, *BINARY])
def test_numpy_agrees_with_jax_to_second_order(name, oracle):
    count = 1 if name in UNARY else 2
    fn, _, low, high = {**UNARY, **BINARY}[name]
    xs = [fd.tensor(x, dtype="float64", device=fd.Device.numpy()) for x in points(name, low, high, count)]
    agree({k: y.numpy() for k, y in functad_orders(fn, count, 2)(*xs).items()}, oracle[name])


def agree(found, expected):
    for key, y in found.items():
        np.testing.assert_allclose(y, expected[key.split()[-1]], rtol=1e-10, atol=1e-12, err_msg=key)


# --- exact values at special points

PI = math.pi
LN2 = math.log(2)


def order_by_order(scheme, fn, x, count):
    """The first `count` derivatives of a function of one number."""
    found = []
    for n in range(count):
        fn = (reverse_derivative if scheme[n % len(scheme)] == "rev" else forward_derivative)(fn)
        found.append(fn(x).item())
    return found


SCHEMES = [*[(d, s) for d in DEVICES for s in ("rev", "fwd")], ("numpy", "rev-fwd"), ("numpy", "fwd-rev")]


@pytest.fixture(params=SCHEMES, ids=" ".join)
def case(request):
    """The device, and which mode differentiates at which order."""
    return DEVICES[request.param[0]], request.param[1].split("-")


def double(x, device):
    return fd.tensor(x, dtype="float64", device=device)


def constant(value, x):
    """A tensor beside `x`, as opposed to a Python number."""
    return operand(value, x, x.dtype)


POINTS = {  # the function, the point, and its derivatives there, first order first
    "abs at 0": (ops.abs, 0.0, [0, 0]),
    "sqrt at 0": (ops.sqrt, 0.0, [INF]),
    "cbrt at 0": (ops.cbrt, 0.0, [INF]),
    "relu at 0": (ops.relu, 0.0, [0, 0]),
    "leaky_relu at 0": (ops.leaky_relu, 0.0, [0.01, 0]),
    "clip at its lower bound": (lambda x: ops.clip(x, 0, 6), 0.0, [0, 0]),
    "clip at its upper bound": (lambda x: ops.clip(x, 0, 6), 6.0, [0, 0]),
    "copysign at 0": (lambda x: ops.copysign(x, -1.0), 0.0, [0, 0]),
    "sign at 0": (ops.sign, 0.0, [0, 0]),
    "floor at an integer": (ops.floor, 2.0, [0]),
    "softplus at 0": (ops.softplus, 0.0, [0.5, 0.25, 0]),
    "log_sigmoid at 0": (ops.log_sigmoid, 0.0, [0.5, -0.25, 0]),
    "gelu at 0": (ops.gelu, 0.0, [0.5, math.sqrt(2 / PI)]),
    "silu at 0": (ops.silu, 0.0, [0.5, 0.5, 0]),
    "sinc at 0": (ops.sinc, 0.0, [0, -(PI**2) / 3, 0, PI**4 / 5, 0]),
    "sinc at 1": (ops.sinc, 1.0, [-1, 2]),
    "x**0 at 0": (lambda x: x**0, 0.0, [0, 0]),
    "x**0.0 at 0": (lambda x: x**0.0, 0.0, [0, 0]),
    "x**0 with a tensor exponent at 0": (lambda x: x ** constant(0, x), 0.0, [0, 0, 0]),
    "x**0 with a tensor exponent at 3": (lambda x: x ** constant(0, x), 3.0, [0, 0]),
    "x**1 with a tensor exponent at 0": (lambda x: x ** constant(1, x), 0.0, [1, 0, 0]),
    "x**2 at -3": (lambda x: x**2, -3.0, [-6, 2, 0]),
    "x**3 at -2": (lambda x: x**3, -2.0, [12, -12, 6, 0]),
    "x**3 with a tensor exponent at -2": (lambda x: x ** constant(3, x), -2.0, [12, -12, 6, 0]),
    "x**3 with an int tensor at -2": (lambda x: x ** ops.astype(constant(3, x), "int32"), -2.0, [12, -12, 6, 0]),
    "x**4.0 at 0": (lambda x: x**4.0, 0.0, [0, 0, 0, 24, 0]),
    "x**4 with a tensor exponent at 0": (lambda x: x ** constant(4, x), 0.0, [0, 0, 0, 24, 0]),
    "x**17 at -1": (lambda x: x**17, -1.0, [17, -272]),
    "x**-1 at -2": (lambda x: x**-1, -2.0, [-0.25, -0.25]),
    "x**-1 at 0": (lambda x: x**-1, 0.0, [-INF]),
    "0**y at 2": (lambda y: 0.0**y, 2.0, [0, 0]),
    "0**y at 0.5": (lambda y: 0.0**y, 0.5, [0, 0]),
    "0**y at 0": (lambda y: 0.0**y, 0.0, [0, 0]),
    "2**y at 0": (lambda y: 2**y, 0.0, [LN2, LN2**2]),
    "square of sqrt(x) - 1 at 1": (lambda x: (ops.sqrt(x) - 1) ** 2 / 2, 1.0, [0, 0.25, -0.375]),
    "sqrt of relu where it is off": (lambda x: ops.sqrt(ops.relu(x)), -1.0, [0, 0]),
    "sqrt of clip below the bound": (lambda x: ops.sqrt(ops.clip(x, 0)), -1.0, [0, 0]),
    "sqrt of maximum where it is off": (lambda x: ops.sqrt(ops.maximum(x, 0)), -1.0, [0, 0]),
    "sqrt(x - 5) not taken": (lambda x: ops.where(x < 9, x, ops.sqrt(x - 5)), 5.0, [1, 0]),
    "nan_to_num at inf": (lambda x: ops.nan_to_num(x, posinf=1.0) * 3, INF, [0, 0]),
    "nan_to_num at 2": (lambda x: ops.nan_to_num(x) ** 2, 2.0, [4, 2]),
}


@pytest.mark.parametrize("name", POINTS)
def test_derivatives_at_a_special_point(name, case):
    device, scheme = case
    fn, x, expected = POINTS[name]
    found = order_by_order(scheme, fn, double(x, device), len(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


SINGULAR = {  # points where the function or its derivative is not finite
    "arccos": (ops.arccos, [1.0, 2.0]),
    "arccosh": (ops.arccosh, [1.0, 0.0]),
    "arcsin": (ops.arcsin, [1.0, -1.0, 2.0]),
    "arctanh": (ops.arctanh, [1.0, 2.0]),
    "cbrt": (ops.cbrt, [0.0]),
    "div": (lambda x: 2 / x, [0.0, NAN]),
    "div by a difference": (lambda x: x / (x - 1), [1.0]),
    "exp": (ops.exp, [INF, 1000.0]),
    "log": (ops.log, [0.0, -1.0]),
    "log10": (ops.log10, [0.0]),
    "log1p": (ops.log1p, [-1.0]),
    "log2": (ops.log2, [0.0]),
    "pow 0.5": (lambda x: x**0.5, [0.0, -1.0]),
    "pow -1": (lambda x: x**-1, [0.0]),
    "pow of a tensor": (lambda x: x ** constant(-1.5, x), [0.0, -1.0]),
    "power of x": (lambda x: x**x, [0.0, -1.0]),
    "product with inf": (lambda x: x * INF, [0.0]),
    "reciprocal": (ops.reciprocal, [0.0]),
    "rsqrt": (ops.rsqrt, [0.0, -1.0]),
    "sin": (ops.sin, [INF]),
    "sqrt": (ops.sqrt, [0.0, -1.0]),
    "sqrt of log": (lambda x: ops.sqrt(ops.log(x)), [0.0, 0.5]),
    "sqrt of square": (lambda x: ops.sqrt(x * x), [0.0]),
    "xlogy": (lambda x: ops.xlogy(x, x), [-1.0]),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_branch_not_taken_gives_exactly_zero_to_second_order(name, case):
    """`where(safe, f(x), ...)` must not be poisoned by what f's derivative is where it is not used."""
    device, scheme = case
    fn, at = SINGULAR[name]
    for point in at:
        for outer in (lambda y: y, lambda y: y**2 / 2):  # the second makes the cotangent depend on x

            def guarded(x, outer=outer, point=point):
                safe = ops.not_equal(x, point) if point == point else ops.logical_not(ops.isnan(x))
                return outer(ops.where(safe, fn(x), ops.where(safe, x, 2.0) * 3 + 0 * ops.nan_to_num(x, posinf=0.0)))

            assert order_by_order(scheme, guarded, double(point, device), 2) == [0, 0]


def test_quotient_not_taken(device):
    a, b = double([1.0, 1.0], device), double([0.0, 2.0], device)
    da, db = fd.grad(lambda a, b: ops.where(b == 0, 0, a / b).sum(), (0, 1))(a, b)
    assert da.tolist() == [0, 0.5]
    assert db.tolist() == [0, -0.25]


def test_strict_ieee_restores_nan():
    def guarded(x):
        return ops.where(x < 1, x, ops.sqrt(x))

    assert fd.grad(guarded)(0.0).item() == 1
    with ops.rules.strict_ieee():
        assert math.isnan(fd.grad(guarded)(0.0).item())


PAIRS = {  # the function, the point, the value and the gradient there
    "maximum, tied": (ops.maximum, (2.0, 2.0), 2.0, (0.5, 0.5)),
    "minimum, tied": (ops.minimum, (2.0, 2.0), 2.0, (0.5, 0.5)),
    "hypot at the origin": (ops.hypot, (0.0, 0.0), 0.0, (0, 0)),
    "hypot of 3 and 4": (ops.hypot, (3.0, 4.0), 5.0, (0.6, 0.8)),
    "arctan2 at the origin": (ops.arctan2, (0.0, 0.0), 0.0, (0, 0)),
    "arctan2 at infinity": (ops.arctan2, (INF, 1.0), PI / 2, (0, 0)),
    "arctan2 of huge numbers": (ops.arctan2, (1e300, 1e300), PI / 4, (5e-301, -5e-301)),
    "xlogy at the origin": (ops.xlogy, (0.0, 0.0), 0.0, (0, 0)),
    "xlogy at (0, 2)": (ops.xlogy, (0.0, 2.0), 0.0, (LN2, 0)),
    "logaddexp at -inf": (ops.logaddexp, (-INF, -INF), -INF, (0.5, 0.5)),
    "logaddexp at inf": (ops.logaddexp, (INF, INF), INF, (0.5, 0.5)),
    "logaddexp of -inf and 0": (ops.logaddexp, (-INF, 0.0), 0.0, (0, 1)),
    "logaddexp of inf and -inf": (ops.logaddexp, (INF, -INF), INF, (1, 0)),
    "logaddexp2 at -inf": (ops.logaddexp2, (-INF, -INF), -INF, (0.5, 0.5)),
    "a power of a difference": (lambda a, b: 123 * (a - b) ** b, (1.0, 1.0), 0.0, (123, -123)),
    "0**0": (ops.pow, (0.0, 0.0), 1.0, (0, 0)),
    "0**1": (ops.pow, (0.0, 1.0), 0.0, (1, 0)),
    "0**2": (ops.pow, (0.0, 2.0), 0.0, (0, 0)),
    "2**0": (ops.pow, (2.0, 0.0), 1.0, (0, LN2)),
    "remainder takes the sign of y": (ops.remainder, (-5.0, 3.0), 1.0, (1, 2)),
    "remainder of a negative divisor": (ops.remainder, (5.0, -3.0), -1.0, (1, 2)),
    "fmod takes the sign of x": (ops.fmod, (-5.0, 3.0), -2.0, (1, 1)),
    "fmod by infinity": (ops.fmod, (-5.0, INF), -5.0, (1, 0)),
    "floor_divide": (ops.floor_divide, (-5.0, 3.0), -2.0, (0, 0)),
    "copysign": (ops.copysign, (3.0, -2.0), -3.0, (-1, 0)),
    "clip at a lower bound": (lambda x, y: ops.clip(x, y, 9.0), (1.0, 1.0), 1.0, (0, 1)),
    "clip at an upper bound": (lambda x, y: ops.clip(x, 0.0, y), (1.0, 1.0), 1.0, (0, 1)),
    "clip inside": (lambda x, y: ops.clip(x, y, y + 2), (1.0, 0.0), 1.0, (1, 0)),
    "clip beyond": (lambda x, y: ops.clip(x, y, y + 2), (7.0, 0.0), 2.0, (0, 1)),
    "clip between equal bounds": (lambda x, y: ops.clip(x, y, y), (1.0, 1.0), 1.0, (0, 1)),
    "leaky_relu at 0": (ops.leaky_relu, (0.0, 0.2), 0.0, (0.2, 0)),
    "mask_fill": (lambda x, y: ops.mask_fill(x, x > 0, y), (1.0, 5.0), 5.0, (0, 1)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_gradient_at_a_special_pair(name, device, mode):
    fn, xs, value, expected = PAIRS[name]
    xs = [double(x, device) for x in xs]
    np.testing.assert_allclose(fn(*xs).item(), value, rtol=1e-14, atol=1e-15)
    np.testing.assert_allclose([mode(fn, i)(*xs).item() for i in (0, 1)], expected, rtol=1e-14)


HESSIANS = {  # the function, the point, and its second derivatives xx, xy, yy there
    "maximum of squares, tied": (lambda x, y: ops.maximum(x * x, y * y), (1.0, 1.0), (1, 0, 1)),
    "minimum, tied, with itself": (lambda x, y: ops.minimum(x * x, x) + 0 * y, (1.0, 1.0), (1, 0, 0)),
    "hypot at the origin": (ops.hypot, (0.0, 0.0), (0, 0, 0)),
    "arctan2 at the origin": (ops.arctan2, (0.0, 0.0), (0, 0, 0)),
    "logaddexp at -inf": (ops.logaddexp, (-INF, -INF), (0.25, -0.25, 0.25)),
    "x**y at (2, 0)": (ops.pow, (2.0, 0.0), (0, 0.5, LN2**2)),
    "x**y at (0, 2)": (ops.pow, (0.0, 2.0), (2, 0, 0)),
    "x**y at (0, 3)": (ops.pow, (0.0, 3.0), (0, 0, 0)),
}


@pytest.mark.parametrize("name", HESSIANS)
def test_hessian_at_a_special_pair(name, case):
    device, scheme = case
    fn, xs, expected = HESSIANS[name]
    xs = [double(x, device) for x in xs]
    first, second = ((reverse_derivative, forward_derivative)[s == "fwd"] for s in (scheme[0], scheme[-1]))
    found = {(i, j): second(first(fn, i), j)(*xs).item() for i in (0, 1) for j in (0, 1)}
    np.testing.assert_allclose([found[0, 0], found[0, 1], found[1, 1]], expected, rtol=1e-13, atol=1e-14)
    assert found[0, 1] == pytest.approx(found[1, 0])


# --- extreme values, all float types

EXTREMES = {  # values and derivatives at -inf, -1e4, 1e4, inf
    "sigmoid": (ops.sigmoid, [0, 0, 1, 1], [0, 0, 0, 0]),
    "softplus": (ops.softplus, [0, 0, 1e4, INF], [0, 0, 1, 1]),
    "log_sigmoid": (ops.log_sigmoid, [-INF, -1e4, 0, 0], [1, 1, 0, 0]),
    "gelu": (ops.gelu, [0, 0, 1e4, INF], [0, 0, 1, 1]),
    "gelu tanh": (lambda x: ops.gelu(x, "tanh"), [0, 0, 1e4, INF], [0, 0, 1, 1]),
    "silu": (ops.silu, [0, 0, 1e4, INF], [0, 0, 1, 1]),
    "tanh": (ops.tanh, [-1, -1, 1, 1], [0, 0, 0, 0]),
    "erf": (ops.erf, [-1, -1, 1, 1], [0, 0, 0, 0]),
    "erfc": (ops.erfc, [2, 2, 0, 0], [0, 0, 0, 0]),
    "relu": (ops.relu, [0, 0, 1e4, INF], [0, 0, 1, 1]),
    "clip": (lambda x: ops.clip(x, -3, 3), [-3, -3, 3, 3], [0, 0, 0, 0]),
    "arctan": (ops.arctan, [-PI / 2, math.atan(-1e4), math.atan(1e4), PI / 2], [0, 0, 0, 0]),
    "arcsinh": (ops.arcsinh, [-INF, -9.903487555, 9.903487555, INF], [0, 1e-4, 1e-4, 0]),
}
FLOATS = ["float64", "float32", "float16", "bfloat16"]


@pytest.fixture(scope="module")
def at_extremes():
    """Value and derivatives of every function in every float type, per device."""

    def work(xs):
        return {
            f"{name} {dtype}": [fn(x), reverse_derivative(fn)(x), forward_derivative(fn)(x)]
            + [reverse_derivative(reverse_derivative(fn))(x)] * (base_tensor(x)._backend.name == "numpy")
            for dtype, x in xs.items()
            for name, (fn, *_) in EXTREMES.items()
        }

    def call(arrays):
        found = work({k: operand(x) for k, x in arrays.items()})
        return {k: [y.jax().astype(jnp.float64) for y in ys] for k, ys in found.items()}

    points = [-INF, -1e4, 1e4, INF]
    with fd.enable_x64():
        on_numpy = work({d: fd.tensor(points, dtype=d, device=fd.Device.numpy()) for d in FLOATS})
        on_xla = jax.device_get(_optimised_little(call)({d: jnp.array(points, d) for d in FLOATS}))
    return {"numpy": {k: [y.numpy().astype(float) for y in ys] for k, ys in on_numpy.items()}, "xla": on_xla}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_values(name, dtype, device, at_extremes):
    value, reverse, forward, *second = at_extremes[device.name][f"{name} {dtype}"]
    rtol = {"float64": 1e-9, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(value, EXTREMES[name][1], rtol=rtol, atol=1e-30)
    np.testing.assert_allclose(reverse, EXTREMES[name][2], rtol=rtol, atol=1e-7)
    np.testing.assert_array_equal(forward, reverse)
    np.testing.assert_allclose(second, np.zeros_like(second), atol=1e-7)


# --- broadcasting

BROADCAST = {
    "arctan2": ops.arctan2, "clip": lambda x, y: ops.clip(x, y - 3, y), "copysign": ops.copysign, "div": ops.div,
    "fmod": ops.fmod, "hypot": ops.hypot, "leaky_relu": ops.leaky_relu, "logaddexp": ops.logaddexp,
    "maximum": ops.maximum, "minimum": ops.minimum, "pow": ops.pow, "remainder": ops.remainder, "sub": ops.sub,
    "where": lambda x, y: ops.where(x < y, x * x, y), "xlogy": ops.xlogy,
}  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(BROADCAST)),
    shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3),
    seed=st.integers(0, 2**16),
)
def test_broadcasting(name, shapes, seed):
    """Both modes against central differences, and against each other: <g, J t> = <J^T g, t>."""
    fn = BROADCAST[name]
    rng = np.random.default_rng(seed)
    x, y = (rng.uniform(0.5, 1.5, shape) for shape in shapes.input_shapes)
    s, t = rng.normal(size=x.shape), rng.normal(size=y.shape)
    g = rng.normal(size=shapes.result_shape)
    with fd.set_default_device(fd.Device.numpy()), fd.enable_x64():
        pushed = jvp(fn, (x, y), (s, t))[1].numpy()
        dx, dy = fd.grad(lambda x, y: (fn(x, y) * g).sum(), (0, 1))(x, y)
        step = 1e-6
        ahead, behind = (fn(operand(x + h * s), operand(y + h * t)).numpy() for h in (step, -step))
    assert pushed.shape == shapes.result_shape
    assert (dx.shape, dy.shape) == (x.shape, y.shape)
    pulled = np.vdot(dx.numpy(), s) + np.vdot(dy.numpy(), t)
    np.testing.assert_allclose(np.vdot(g, pushed), pulled, rtol=1e-9, atol=1e-12)
    crossed = np.abs(ahead - behind) > 0.1  # a jump of remainder or a kink lies between
    np.testing.assert_allclose(np.where(crossed, 0, (ahead - behind) / (2 * step) - pushed), 0, atol=2e-4)


@pytest.mark.parametrize(
    ("name", "on"),
    [(n, "numpy") for n in ("div", "hypot", "maximum", "sub")] + [(n, d) for n in ("pow", "where") for d in DEVICES],
)
def test_vmap_is_a_loop(name, on):
    fn, device = BROADCAST[name], DEVICES[on]
    x = double(np.random.default_rng(0).uniform(0.5, 1.5, (3, 2)), device)
    y = double(np.random.default_rng(1).uniform(0.5, 1.5, (3, 1)), device)
    for derived in (
        fn,
        reverse_derivative(fn),
        reverse_derivative(reverse_derivative(fn), 1),
        forward_derivative(fn, 1),
    ):
        rows = np.stack(
            [derived(double(a, device), double(b, device)).numpy() for a, b in zip(x.numpy(), y.numpy(), strict=True)]
        )
        np.testing.assert_allclose(vmap(derived)(x, y).numpy(), rows, rtol=1e-13)


def test_vmap_of_special_points(device):
    x = double([0.0, -2.0, 3.0], device)
    assert vmap(reverse_derivative(lambda x: x**3))(x).tolist() == [0, 12, 27]
    assert vmap(reverse_derivative(ops.abs))(x).tolist() == [0, -1, 1]
    assert vmap(reverse_derivative(lambda x: ops.where(x > 0, ops.log(x), x)))(x).tolist() == [1, 1, 1 / 3]


# --- complex numbers, in JAX's convention

COMPLEX = {
    "abs": (ops.abs, jnp.abs), "real": (ops.real, jnp.real), "imag": (ops.imag, jnp.imag), "conj": (ops.conj, jnp.conj),
    "exp": (ops.exp, jnp.exp), "log": (ops.log, jnp.log), "sin": (ops.sin, jnp.sin), "cos": (ops.cos, jnp.cos),
    "tan": (ops.tan, jnp.tan), "sinh": (ops.sinh, jnp.sinh), "cosh": (ops.cosh, jnp.cosh), "tanh": (ops.tanh, jnp.tanh),
    "sqrt": (ops.sqrt, jnp.sqrt), "reciprocal": (ops.reciprocal, jnp.reciprocal), "square": (ops.square, jnp.square),
    "arcsin": (ops.arcsin, jnp.arcsin), "arctan": (ops.arctan, jnp.arctan), "arcsinh": (ops.arcsinh, jnp.arcsinh),
    "arctanh": (ops.arctanh, jnp.arctanh), "pow 3": (lambda z: z**3, lambda z: z**3),
    "pow 2.5": (lambda z: z**2.5, lambda z: z**2.5), "pow 1j": (lambda z: z ** (1 + 1j), lambda z: z ** (1 + 1j)),
    "div": (lambda z: (2 + 1j) / z, lambda z: (2 + 1j) / z), "sub": (lambda z: 1j - z * z, lambda z: 1j - z * z),
    "abs2": (lambda z: (z * ops.conj(z)).real, lambda z: (z * jnp.conj(z)).real),
    "phase": (lambda z: z / ops.abs(z), lambda z: z / jnp.abs(z)),
    "where": (lambda z: ops.where(ops.real(z) > 0, z * z, ops.conj(z)),
              lambda z: jnp.where(z.real > 0, z * z, jnp.conj(z))),
}  # fmt: skip
Z = np.array([1 + 0.5j, 0.3 - 0.7j, -0.6 + 0.2j])
DZ = np.array([0.5 - 1j, 1 + 1j, -0.3 + 0.2j])


@pytest.fixture(scope="module")
def complex_oracle():
    def call(z, dz):
        found = {}
        for name, (_, fn) in COMPLEX.items():
            out, t = jax.jvp(fn, (z,), (dz,))
            g = dz if jnp.iscomplexobj(out) else dz.real
            found[name] = (out, t, jax.vjp(fn, z)[1](g)[0])
        return found

    with fd.enable_x64():
        return jax.device_get(_optimised_little(call)(Z, DZ))


@pytest.mark.parametrize("name", COMPLEX)
def test_complex_derivatives_are_jaxs(name, complex_oracle):
    fn = COMPLEX[name][0]
    out, pushed, pulled = complex_oracle[name]
    with fd.set_default_device(fd.Device.numpy()):
        z = fd.tensor(Z, dtype="complex128")
        found, t = jvp(fn, (z,), (fd.tensor(DZ, dtype="complex128"),))
        leaf = z.autodiff().require_grad()
        g = fd.tensor(DZ if out.dtype.kind == "c" else DZ.real, dtype=out.dtype)
        grads = fn(leaf).backward(g)
    np.testing.assert_allclose(found.numpy(), out, rtol=1e-12)
    np.testing.assert_allclose(t.numpy(), pushed, rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(leaf.grad(grads).numpy(), pulled, rtol=1e-12, atol=1e-15)


def test_complex_at_zero(device):
    leaf = fd.tensor([0j], dtype="complex128", device=device).autodiff().require_grad()
    assert leaf.grad(ops.abs(leaf).backward()).tolist() == [0]
    assert leaf.grad((ops.abs(leaf) ** 2).backward()).tolist() == [0]
    assert ops.sign(leaf).tolist() == [0]
    assert ops.sign(leaf + 2j).tolist() == [1j]


def test_real_tensors_are_their_own_parts(device):
    x = double([1.0, -2.0], device)
    assert ops.real(x) is x
    assert ops.conj(x) is x
    assert ops.imag(x).tolist() == [0, 0]


# --- values and dtypes


COMPARED = [
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
    "maximum", "minimum",
]  # fmt: skip
INTEGER = [
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "floor_divide", "remainder", "fmod",
]  # fmt: skip
ROUNDING = ["floor", "ceil", "trunc", "round", "sign"]
ALIKE = {  # functions that read the same over functad and NumPy
    **{
        f"{n} {k}": lambda xp, v, n=n, k=k: getattr(xp, n)(v[k[0]], v[k[1]])
        for n in COMPARED
        for k in ("xy", "ij", "bc")
    },
    **{f"{n} ij": lambda xp, v, n=n: getattr(xp, n)(v["i"], v["j"]) for n in INTEGER},
    **{
        f"{n} xy": lambda xp, v, n=n: getattr(xp, n)(v["x"], v["y"]) for n in ("copysign", "hypot", "fmod", "remainder")
    },
    **{f"{n} {k}": lambda xp, v, n=n, k=k: getattr(xp, n)(v[k]) for n in ROUNDING for k in "xi"},
    **{
        f"{n} {k}": lambda xp, v, n=n, k=k: getattr(xp, n)(v[k]) for n in ("isnan", "isinf", "isfinite") for k in "yibz"
    },
    "~i": lambda xp, v: ~v["i"],
    "~b": lambda xp, v: ~v["b"],
    "not y": lambda xp, v: xp.logical_not(v["y"]),
    "i**3": lambda xp, v: v["i"] ** 3,
    "i**j": lambda xp, v: v["i"] ** v["j"],
    "x > 0": lambda xp, v: v["x"] > 0,
    "0 > x": lambda xp, v: 0 > v["x"],  # noqa: SIM300  # the reflected operator is meant
    "i == 2.5": lambda xp, v: v["i"] == 2.5,
    "tenths": lambda xp, v: xp.round(v["x"], 1),
    "tens": lambda xp, v: xp.round(v["i"] * 5, -1),
    "thousands": lambda xp, v: xp.round(v["i"] * 500, -3),
    "where": lambda xp, v: xp.where(v["i"], v["x"], v["y"]),
    "nan_to_num": lambda xp, v: xp.nan_to_num(v["y"], nan=7.0),
    "nan_to_num of complex": lambda xp, v: xp.nan_to_num(v["z"]),
    "nan_to_num of ints": lambda xp, v: xp.nan_to_num(v["i"]),
    "divmod": lambda xp, v: sum(divmod(v["x"], 0.7)),
    "clip": lambda xp, v: xp.clip(v["x"], v["y"], 0.5),
}


def test_values_are_numpys(device):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.choice([-1.0, 0.0, 1.5, NAN], size=(3,))
    i, j = rng.integers(-9, 9, (4, 3)), rng.integers(1, 5, (3,))
    arrays = {"x": x, "y": y, "i": i, "j": j, "b": i > 0, "c": j > 2, "z": np.array([NAN + 1j, 1 - 1j * INF, 2j])}

    def call(values):
        tensors = {k: fd.tensor(v, device=device) for k, v in values.items()}
        return {name: fn(ops, tensors)._value for name, fn in ALIKE.items()}

    found = jax.device_get(_optimised_little(call)(arrays)) if device.name == "xla" else call(arrays)
    with np.errstate(all="ignore"):
        for name, fn in ALIKE.items():
            expected = fn(np, arrays)
            np.testing.assert_allclose(found[name], expected, rtol=1e-12, err_msg=name)
            assert found[name].dtype == expected.dtype, name


DTYPES = {  # without x64: the result's dtype
    "int / int": (lambda: ops.div(i32(3), i32(2)), "float32"),
    "sin(int)": (lambda: ops.sin(i32(3)), "float32"),
    "exp(bool)": (lambda: ops.exp(flag()), "float32"),
    "exp(float16)": (lambda: ops.exp(fd.tensor(1.0, dtype="float16")), "float16"),
    "uint8 - int8": (lambda: ops.sub(of("uint8"), of("int8")), "int16"),
    "uint32 * int32": (lambda: of("uint32") * i32(1), "int32"),
    "bfloat16 / float": (lambda: of("bfloat16") / 2.0, "bfloat16"),
    "float16 with bfloat16": (lambda: ops.maximum(of("float16"), of("bfloat16")), "float32"),
    "float16 with int64": (lambda: ops.maximum(of("float16"), i32(1)), "float16"),
    "bool + bool": (lambda: flag() + flag(), "bool"),
    "bool + int": (lambda: flag() + 1, "int32"),
    "bool**2": (lambda: flag() ** 2, "int32"),
    "bool**bool": (lambda: flag() ** flag(), "int32"),
    "int**2": (lambda: i32(3) ** 2, "int32"),
    "int**2.0": (lambda: i32(3) ** 2.0, "float32"),
    "int**0.5": (lambda: i32(3) ** 0.5, "float32"),
    "2**int": (lambda: 2 ** i32(3), "int32"),
    "2.0**int": (lambda: 2.0 ** i32(3), "float32"),
    "bfloat16**int": (lambda: of("bfloat16") ** i32(2), "bfloat16"),
    "bfloat16**bool": (lambda: of("bfloat16") ** flag(), "bfloat16"),
    "where of numbers": (lambda: ops.where(flag(), 1.0, 0), "float32"),
    "where with a weak number": (lambda: ops.where(flag(), of("bfloat16"), 0.5), "bfloat16"),
    "clip of ints by floats": (lambda: ops.clip(i32(3), 0, 1.5), "float32"),
    "mask_fill of ints": (lambda: ops.mask_fill(i32(3), flag(), 2), "int32"),
    "relu(int)": (lambda: ops.relu(i32(3)), "int32"),
    "gelu(int)": (lambda: ops.gelu(i32(3)), "float32"),
    "leaky_relu(int)": (lambda: ops.leaky_relu(i32(3)), "float32"),
    "abs(complex)": (lambda: ops.abs(of("complex64")), "float32"),
    "int == 2.5": (lambda: i32(3) == 2.5, "bool"),
    "floor(int)": (lambda: ops.floor(i32(3)), "int32"),
    "bool & int": (lambda: ops.bitwise_and(flag(), i32(3)), "int32"),
}


def of(dtype):
    return fd.tensor(1, dtype=dtype)


def i32(value):
    return fd.tensor(value, dtype="int32")


def flag():
    return fd.tensor(True)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_follow_jax(name, device):
    with fd.enable_x64(False), fd.set_default_device(device):
        assert str(DTYPES[name][0]().dtype) == DTYPES[name][1]


def test_bool_addition_is_or(device):
    with fd.set_default_device(device):
        assert (flag() + flag()).item() is True


@pytest.mark.parametrize("exponent", [257, -3])
def test_half_types_keep_every_digit_of_an_integer_exponent(device, exponent):
    """bfloat16 cannot hold 257: rounded to 256 it would turn the sign of (-1)**257."""
    x = fd.tensor([-1.0], dtype="bfloat16", device=device)
    assert (x ** fd.tensor([exponent], device=device)).tolist() == [-1.0]
    assert (x**exponent).tolist() == [-1.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_once(dtype, device):
    x = np.linspace(-3, 3, 41)
    half = fd.tensor(x, dtype=dtype, device=device)
    exact = half.numpy().astype(np.float64)
    for name in ["gelu", "silu", "softplus", "log_sigmoid", "sinc", "erf", "sigmoid"]:
        reference = getattr(ops, name)(fd.tensor(exact, dtype="float64", device=fd.Device.numpy())).numpy()
        rounded = reference.astype(half.dtype).astype(float)
        unit = np.abs(reference) * (2.0**-11 if dtype == "float16" else 2.0**-8) + 1e-7
        assert np.all(np.abs(getattr(ops, name)(half).numpy().astype(float) - rounded) <= 2 * unit), name


def test_small_integer_powers_are_multiplied_out():
    def program(fn):
        return str(jax.make_jaxpr(lambda a: fn(operand(a)).jax())(1.0))

    assert program(lambda x: x**2).count(" mul ") == program(lambda x: x * x).count(" mul ") == 1
    assert program(lambda x: x**5).count(" mul ") == 3
    assert not re.search(r"\bpow\b", program(lambda x: x**5.0))


def test_sinc_is_accurate_at_every_distance_from_0():
    """Where the series hands over to the recurrence there must be no seam."""
    x = np.concatenate([[0, 1e-300, 1e-8, 1e-3], np.linspace(0.01, 4, 200)])
    nodes, weights = np.polynomial.legendre.leggauss(60)
    t, weights = (nodes + 1) / 2, weights / 2
    for order in range(6):  # sinc(x) is the mean of cos(pi x t) over t in [0, 1]
        exact = ((PI * t) ** order * np.cos(PI * np.outer(x, t) + order * PI / 2)) @ weights
        for device in DEVICES.values():
            found = ops.elementary.sinc_op(double(x, device), order=order).numpy()
            np.testing.assert_allclose(found, exact, rtol=1e-11, atol=1e-13 * PI**order)


# --- refusals

REFUSALS = {
    "difference of bools": (lambda: flag() - flag(), fd.errors.DTypeError, "bools have no difference"),
    "int to a negative power": (lambda: i32(2) ** -1, fd.errors.ArgumentError, "float32"),
    "bits of floats": (lambda: of("float32") & 1, fd.errors.DTypeError, "float32"),
    "shift of floats": (lambda: of("float32") << 1, fd.errors.DTypeError, "float32"),
    "a mask of ints": (lambda: ops.mask_fill(of("float32"), i32(1), 0), fd.errors.DTypeError, "mask != 0"),
    "a mask too large": (
        lambda: ops.mask_fill(of("float32"), fd.tensor([True, False]), 0),
        fd.errors.ShapeError,
        r"\(2,\).*\(\)",
    ),
    "gelu of another kind": (lambda: ops.gelu(of("float32"), "erf"), fd.errors.ArgumentError, "'erf'"),
    "decimals": (lambda: ops.round(of("float32"), 1.5), fd.errors.ArgumentTypeError, "1.5"),
    "shapes": (lambda: ops.where(fd.ones(3) > 0, fd.ones(2), 0), fd.errors.ShapeError, r"\(3,\).*\(2,\)"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_what_to_write(name, device):
    call, kind, text = REFUSALS[name]
    with fd.set_default_device(device), pytest.raises(kind, match=text):
        call()
