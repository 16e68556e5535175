"""Elementwise ops: JAX's AD and finite differences to second order."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import forward_derivative, jvp
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import functad as fd
from functad import ops
from functad.backends.batch import Batch
from functad.levels import deeper
from functad.ops.operand import operand

pytestmark = pytest.mark.usefixtures("x64")

INF, NAN = math.inf, math.nan
DEVICES = {"xla": fd.Device.cpu(), "numpy": fd.Device.numpy()}


# --- both modes, as functions of functions


def double(x, device):
    return fd.tensor(x, dtype="float64", device=device)


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
        return jax.device_get(compiled_fast(lambda xs: {n: fns[n](*x) for n, x in xs.items()})(inputs))


@pytest.fixture(scope="module")
def on_xla():
    """functad's values and first derivatives, from one program."""
    tables = [(UNARY, 1), (BINARY, 2)]
    with fd.enable_x64():
        inputs = {n: points(n, *row[2:], count) for table, count in tables for n, row in table.items()}
        fns = {n: functad_orders(row[0], count, 1) for table, count in tables for n, row in table.items()}

        def call(xs):
            return {n: {k: y.jax() for k, y in fns[n](*map(operand, x)).items()} for n, x in xs.items()}

        return jax.device_get(compiled_fast(call)(inputs))


def compiled_fast(fn):
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
    second = reverse_derivative(reverse_derivative(fn), 1)
    for derived in (fn, reverse_derivative(fn), forward_derivative(fn, 1), second) if on == "numpy" else (second,):
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
        return jax.device_get(compiled_fast(call)(Z, DZ))


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
