"""Elementwise ops at their special points: exact derivatives, branches not taken, extreme values."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import forward_derivative

import functad as fd
from functad import ops
from functad.ops.operand import operand

pytestmark = pytest.mark.usefixtures("x64")

INF, NAN = math.inf, math.nan
DEVICES = {"xla": fd.Device.cpu(), "numpy": fd.Device.numpy()}


# --- both modes, as functions of functions


def reverse_derivative(fn, index=0):
    return fd.grad(lambda *xs: fn(*xs).sum(), argnums=index)


MODES = {"reverse": reverse_derivative, "forward": forward_derivative}


@pytest.fixture(params=MODES)
def mode(request):
    return MODES[request.param]


# --- exact values

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
    with ops.ieee.strict_ieee():
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


def derivatives_at_extremes(arrays, device):
    """Value and derivatives of every function in every float type; on NumPy also the second."""
    found = {}
    for dtype, array in arrays.items():
        x = fd.tensor(array, dtype=dtype, device=device)
        for name, (fn, *_) in EXTREMES.items():
            found[name, dtype] = [fn(x), reverse_derivative(fn)(x)]
            if device.name == "numpy":  # the same rules: XLA need not compile them all
                found[name, dtype] += [forward_derivative(fn)(x), reverse_derivative(reverse_derivative(fn))(x)]
    return {k: [y._value for y in ys] for k, ys in found.items()}


def compiled_fast(fn):
    """Compiled fast, since it runs once."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "fusion"})


@pytest.fixture(scope="module")
def at_extremes():
    points = {dtype: jnp.array([-INF, -1e4, 1e4, INF], dtype) for dtype in FLOATS[1:]}
    with fd.enable_x64():
        on_xla = jax.device_get(compiled_fast(lambda xs: derivatives_at_extremes(xs, DEVICES["xla"]))(points))
        points["float64"] = np.array([-INF, -1e4, 1e4, INF])
        return {"xla": on_xla, "numpy": derivatives_at_extremes(points, DEVICES["numpy"])}


@pytest.mark.parametrize(("on", "dtype"), [("numpy", d) for d in FLOATS] + [("xla", d) for d in FLOATS[1:]])
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_values(name, on, dtype, at_extremes):
    value, reverse, *more = (np.asarray(y, float) for y in at_extremes[on][name, dtype])
    rtol = {"float64": 1e-9, "float32": 1e-6, "float16": 2e-3, "bfloat16": 1e-2}[dtype]
    np.testing.assert_allclose(value, EXTREMES[name][1], rtol=rtol, atol=1e-30)
    np.testing.assert_allclose(reverse, EXTREMES[name][2], rtol=rtol, atol=1e-7)
    if more:
        forward, second = more
        np.testing.assert_array_equal(forward, reverse)
        np.testing.assert_allclose(second, [0, 0, 0, 0], atol=1e-7)


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


def test_integers_to_negative_integers_are_no_integers(device):
    """XLA gives 0 or garbage without a word."""
    x, y = (fd.tensor(v, dtype="int32", device=device) for v in ([2, 1, -1, 0], [-1, -2, -3, -1]))
    with pytest.raises(fd.errors.ArgumentError, match="float32"):
        _ = x**y
    if device != fd.Device.numpy():  # jit cannot look: truncated, as integers are
        assert fd.jit(lambda x, y: x**y)(x, y).tolist() == [0, 1, -1, 0]


def test_complex_logarithms_of_sums_are_principal(device):
    x, y = np.array([1 + 2j, 1 + 3j]), np.array([2 - 1j, 1 + 3.1j])
    a, b = (fd.tensor(v, dtype="complex128", device=device) for v in (x, y))
    np.testing.assert_allclose(fd.numpy.logaddexp(a, b).numpy(), np.log(np.exp(x) + np.exp(y)))
    many = fd.tensor([1 + 3j, 2 + 3j, 1 + 3.5j], dtype="complex128", device=device)
    want = np.log(np.exp(many.numpy()).sum())
    np.testing.assert_allclose(ops.logsumexp(many).numpy(), want)
    np.testing.assert_allclose(fd.special.logsumexp(many, b=[1.0, 1.0, 1.0]).numpy(), want)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, z: fd.numpy.arctan2(z, z),
        lambda x, z: fd.special.bessel_j0(z),  # XLA left the imaginary part out
        lambda x, z: fd.special.bessel_y0(z),
        lambda x, z: fd.special.gamma(z),
        fd.numpy.gradient,
        lambda x, z: fd.numpy.put(x, 0, 1 + 2j),
        fd.nn.functional.leaky_relu,
    ],
)
def test_an_imaginary_part_is_never_left_out(device, call):
    x, z = (fd.tensor(v, device=device) for v in ([1.0, 2.0], [1 + 1j, 2.0]))
    with pytest.raises(fd.errors.DTypeError, match=r"complex|real"):
        call(x, z)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_derivatives_of_half_types_are_rounded_once(device, dtype):
    """The slope of gelu crosses 0 near -0.75: computed in half types it had no digit right there."""
    x = fd.tensor([-0.75, -0.76], dtype=dtype, device=device)
    slope = fd.grad(lambda x: ops.gelu(x, approximate="tanh").sum())(x)
    wide = fd.grad(lambda x: ops.gelu(x, approximate="tanh").sum())(x.astype("float32"))
    assert slope.tolist() == wide.astype(dtype).tolist()
