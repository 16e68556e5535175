"""The tester is tested: with a right rule it passes, with a wrong one it fails and says where."""

from __future__ import annotations

import re

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

import functad as fd
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, CheckFailedError
from functad.ops import TABLE, Cost, Samples, custom, elementwise, linear, mul, multilinear, nondiff, sub
from functad.testing import check_grads, check_op, strategies
from functad.testing.properties import PROPERTIES
from functad.testing.sampling import draw

PAIR = Samples([(((3, 2), (3, 2)), {}), (((2, 1), (1, 3)), {}), (((), (2,)), {})], low=0.5, high=2.0)
ONE = Samples([(((3, 2),), {}), (((),), {}), (((0, 2),), {})], low=0.5, high=2.0)


@pytest.fixture
def declare():
    """Declare ops as a user does, and forget them afterwards."""
    before = set(TABLE)

    def declared(kind, name, *args, **about):
        about.setdefault("doc", "An op under test.")
        about.setdefault("samples", PAIR)
        return kind(name, *args, **about)

    yield declared
    for name in set(TABLE) - before:
        del TABLE[name]


def fails(match, call, *args, **kwargs):
    with pytest.raises(CheckFailedError, match=match) as caught:
        call(*args, **kwargs)
    assert isinstance(caught.value, AssertionError)
    return str(caught.value)


def times(xp, x, y):
    return xp.multiply(x, y)


def matrix_product(xp, x, y):
    return xp.matmul(x, y)


# --- check_grads: right functions


def test_passes_for_pytrees_in_and_out(device):
    w = fd.tensor(np.array([[0.5, -1.5], [2.0, 1.0]], np.float32), device=device)
    b = fd.tensor(np.array([0.1, 0.2], np.float32), device=device)
    n = fd.tensor(np.array(3), device=device)

    def fn(params, x, n, scale=1.0):
        out = (x @ params["w"] + params["b"][0]).tanh() * scale
        return {"out": out, "parts": (out.sum() * n, n)}

    check_grads(fn, ({"w": w, "b": [b]}, np.array([[1.0, -2.0]]), n), kwargs={"scale": 2.0})


def test_takes_numbers_and_goes_to_order_three():
    check_grads(lambda x, y: x * x * x * y, (2.0, 3.0), order=3)


@pytest.mark.parametrize("mode", ["rev", "fwd"])
def test_one_mode_alone(mode):
    check_grads(lambda x: x.exp(), (np.array([0.5, 1.5]),), modes=(mode,))


def test_complex_arguments(device):
    z = fd.tensor(np.array([1 + 2j, 0.5 - 1j], np.complex64), device=device)
    check_grads(lambda z: z * z * (2 + 1j), (z,))


def test_precision_follows_the_outputs():
    check_grads(lambda x: (x.astype("float32") * 3).sin(), (np.array([0.3, -0.4]),))


def test_leaves_the_precision_mode_as_it_was():
    before = jax.config.read("jax_enable_x64")
    check_grads(lambda x: x * x, (fd.ones(2),))
    fails("reverse", check_grads, lambda x: x * x.detach(), (fd.ones(2),))
    assert jax.config.read("jax_enable_x64") == before


def test_large_and_small_numbers():
    check_grads(lambda x: x * x, (np.array([1e8, 1e-8, 1.0]),))


def test_a_zero_size_argument():
    check_grads(lambda x, y: (x * 2, y * y), (np.zeros((0, 2)), np.ones(2)))


def test_integers_are_held():
    check_grads(lambda x, n: x * n, (np.array([1.0, 2.0]), np.array([3, 4])))


# --- check_grads: wrong ones


def double_slope(declare):
    return declare(elementwise, "double_slope", lambda xp, x: 1.0 * x, lambda x: 2.0 + 0 * x)


def test_names_argument_element_and_values(declare):
    op = declare(elementwise, "wrong_at_big", times, lambda x, y: y, lambda x, y: x + (x > 1.9))
    x = np.array([[1.0, 1.5, 0.5], [0.7, 2.0, 1.1]])
    text = fails("reverse mode is wrong", check_grads, lambda p, k: op(k, p["w"][0]).sum(), ({"w": [x + 3]}, x))
    assert "argument: args[0]['w'][0], element (1, 1) of float64[2, 3]" in text
    assert "output:   out, element () of float64[]" in text
    assert re.search(r"analytic: 3\n", text)
    assert re.search(r"numeric: +2(\.0000|\b)|numeric: +1\.9999", text)
    assert "1 of 6 elements of this argument are wrong" in text
    assert "order 1" in text


def test_forward_mode_names_the_output_element(declare):
    op = declare(elementwise, "wrong_everywhere", times, lambda y: y, lambda x: 3 * x)
    x, y = np.array([1.0, 2.0]), np.array([0.5, 4.0])
    text = fails("forward mode is wrong", check_grads, lambda x, y: (x, op(x, y)), (x, y), modes=("fwd",))
    assert "argument: args[1], element (1,)" in text
    assert "output:   out[1], element (1,)" in text
    assert "2 of 2 elements of this argument are wrong; analytic / numeric is 3 in each" in text


def test_finds_the_element_of_a_large_argument(declare):
    op = declare(elementwise, "wrong_at_nine", lambda xp, x: 2.0 * x, lambda x: 2.0 + (x == 9.0))
    x = np.zeros(3000)
    x[1234] = 9.0
    for mode in ("rev", "fwd"):
        text = fails("is wrong", check_grads, lambda x: op(x), (x,), modes=(mode,), eps=1e-6, order=1)
        assert "argument: args[0], element (1234,)" in text


def test_a_wrong_second_derivative_only(declare):
    frozen = declare(nondiff, "frozen_cos", lambda xp, x: xp.cos(x), samples=ONE)
    op = declare(elementwise, "frozen_sin", lambda xp, x: xp.sin(x), lambda x: bind(frozen, (x,)), samples=ONE)
    check_grads(lambda x: op(x), (np.array([0.5, 1.0]),), order=1)
    text = fails("order 2", check_grads, lambda x: op(x), (np.array([0.5, 1.0]),))
    assert "of the reverse-mode derivative" in text
    assert "argument: args[0], element" in text


def test_modes_that_disagree_by_little(declare):
    op = declare(
        custom, "nearly", lambda xp, x: xp.exp(x),
        vjp=lambda g, out: mul(g, out), jvp=lambda t, out: mul(t, out * (1 + 3e-8)), samples=ONE,
    )  # fmt: skip
    fails("forward and reverse mode disagree about args", check_grads, lambda x: op(x), (np.array([0.5, 1.0]),), order=1)


def test_a_rule_of_the_wrong_shape(declare):
    op = declare(custom, "flat", lambda xp, x: 1.0 * x, vjp=lambda g: g.reshape(-1), jvp=lambda t: t, samples=ONE)
    text = fails("reverse mode failed", check_grads, lambda x: op(x), (np.ones((2, 3)),))
    assert "flat" in text and "(6,)" in text and "(2, 3)" in text and "input 0" in text
    op = declare(custom, "flat_push", lambda xp, x: 1.0 * x, vjp=lambda g: g, jvp=lambda t: t.reshape(-1), samples=ONE)
    assert "flat_push" in fails("forward mode failed", check_grads, lambda x: op(x), (np.ones((2, 3)),))


def test_a_kink_is_pointed_out():
    text = fails("is wrong", check_grads, lambda x: x.abs(), (np.array([1.0, 0.0]),), atol=1e-9)
    assert "element (1,)" in text
    assert "slopes before and after" in text


def test_a_cut_is_a_wrong_derivative():
    text = fails("is wrong", check_grads, lambda x: x * x.detach(), (np.array([3.0]),))
    assert "analytic: 3" in text and "numeric:  6" in text


def test_a_value_that_is_not_finite():
    fails(r"out\['a'\] is nan at element \(1,\)", check_grads, lambda x: {"a": x.sqrt()}, (np.array([1.0, -1.0]),))


def test_a_function_that_is_not_deterministic():
    rng = np.random.default_rng(0)
    fails("two values of out", check_grads, lambda x: x * float(rng.random()), (np.array([1.0]),))


def test_refuses_what_it_cannot_check():
    with pytest.raises(ArgumentTypeError, match="must be a tuple"):
        check_grads(lambda x: x, fd.ones(2))
    with pytest.raises(ArgumentTypeError, match="no float among the arguments"):
        check_grads(lambda x: x, (3,))
    with pytest.raises(ArgumentTypeError, match="returns no float"):
        check_grads(lambda x: x > 0, (fd.ones(2),))
    with pytest.raises(ArgumentError, match="modes"):
        check_grads(lambda x: x, (fd.ones(2),), modes=("reverse",))
    with pytest.raises(ArgumentError, match="order"):
        check_grads(lambda x: x, (fd.ones(2),), order=0)


# --- check_op: right ops


def test_a_right_op_passes(declare):
    check_op(declare(elementwise, "product", times, lambda y: y, lambda x: x))


def test_a_right_op_passes_on_one_device(declare, device):
    check_op(declare(elementwise, "product", times, lambda y: y, lambda x: x), device)


def test_an_op_without_a_numpy_implementation_passes_on_xla(declare):
    op = declare(
        elementwise, "xla_only", lambda xp, x: jax.lax.tanh(x), lambda out: 1 - out * out, samples=ONE, promote="float"
    )
    check_op(op, fd.Device.cpu())
    fails("NumPy refuses", check_op, op, properties=["backends"])


def test_an_op_that_jax_cannot_differentiate_is_checked_without_it(declare):
    def halved(xp, x):
        if xp is np:
            return x / 2
        return jax.pure_callback(lambda x: np.asarray(x / 2), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    op = declare(elementwise, "halved", halved, 0.5, samples=ONE, promote="float")
    fails("JAX cannot differentiate", check_op, op, properties=["jax"])
    check_op(op, skip=["jax"])


# --- check_op: one wrong op for each property


def wrong_partial(declare):
    return declare(elementwise, "wrong_partial", times, lambda y: y, lambda x: 2 * x)


def missing_factor(declare):
    return declare(elementwise, "missing_factor", lambda xp, x: 3.0 * x, 1, samples=ONE)


def swapped_operands(declare):
    return declare(multilinear, "swapped", matrix_product, lambda g, y: g @ y.mT, lambda g, x: (g.mT @ x),
                   samples=Samples([(((2, 2), (2, 2)), {})]))  # fmt: skip


def swapped_signs(declare):
    return declare(elementwise, "swapped_signs", lambda xp, x, y: xp.subtract(x, y), -1, 1)


def wrong_shape(declare):
    return declare(linear, "wrong_shape", lambda xp, x: xp.reshape(x, (-1,)), lambda g: g, samples=ONE)


def wrong_second_order(declare):
    frozen = declare(nondiff, "frozen", lambda xp, x: 1.0 * x, samples=ONE)
    return declare(elementwise, "cut_inside", lambda xp, x: x * x / 2, lambda x: bind(frozen, (x,)), samples=ONE)


@pytest.mark.parametrize(
    ("make", "argument", "order"),
    [
        (wrong_partial, "y, element", 1),
        (missing_factor, "x, element", 1),
        (swapped_operands, "y, element", 1),
        (swapped_signs, "x, element", 1),
        (wrong_shape, "input 0", 1),
        (wrong_second_order, "x, element", 2),
    ],
)
def test_wrong_rules_fail_by_differences(declare, make, argument, order):
    op = make(declare)
    text = fails(r"\[numeric\]", check_op, op, properties=["numeric"])
    assert argument in text
    assert f"order {order}" in text
    assert f"{op.name}, case 0" in text
    assert "to repeat: functad.testing.check_op(op, properties=['numeric'], seed=0)" in text


@pytest.mark.parametrize("make", [wrong_partial, missing_factor, swapped_operands, swapped_signs, wrong_second_order])
def test_wrong_rules_fail_against_jax(declare, make):
    assert re.search(r"against JAX.*of [xy], element \(", fails(r"\[jax\]", check_op, make(declare), properties=["jax"]))


def only(declare, kind, name, *args, **about):
    return declare(kind, name, *args, **about)


class Impure:
    """An implementation whose results differ from call to call."""

    def __init__(self):
        self.calls = 0

    def __call__(self, xp, x):
        self.calls += 1
        return x * (1 + self.calls % 2)


def broken(prop, declare):
    """An op that breaks one property, and what the message must say."""
    exp = lambda xp, x: xp.exp(x)  # noqa: E731
    match prop:
        case "declared":
            return declare(elementwise, "silent", exp, lambda out: out, samples=ONE, doc=""), "no doc"
        case "backends":
            numpy_impl = lambda xp, x: xp.exp(x) * (1 + 1e-4)  # noqa: E731
            return declare(elementwise, "off", exp, lambda out: out, numpy_impl=numpy_impl, samples=ONE), r"element \(0, 0\)"
        case "adjoint":
            op = declare(custom, "skew", exp, vjp=lambda g, out: g * out, jvp=lambda t, out: t * out * 1.5, samples=ONE)
            return op, "with x tracked <g, J t>"
        case "vmap":
            return declare(linear, "sum_all", lambda xp, x: x.sum() * (x.ndim + 1), lambda g, x_shape: bind(
                TABLE["broadcast_to"], (g,), (x_shape,)), samples=Samples([(((3, 2),), {})]),
                batch=lambda op, axes: None), "vmap over x"  # fmt: skip
        case "checkpoint":
            return declare(elementwise, "impure", Impure(), lambda x, out: out, samples=ONE), "recomputation"
        case "dtypes":
            wide = lambda xp, x: xp.exp(x).astype("float32")  # noqa: E731
            return declare(elementwise, "widens", wide, lambda x: x.exp(), samples=ONE), "float16 against float64"
        case "edges":
            first = lambda xp, x: x.reshape(-1)[0] * xp.ones(x.shape)  # noqa: E731
            return declare(elementwise, "first", first, 1, numpy_impl=lambda xp, x: x, samples=ONE), "refuses these"
        case "masked":
            from_product = lambda g, x: mul(g, 1 / x)  # noqa: E731
            return declare(custom, "naked_log", lambda xp, x: xp.log(x), vjp=from_product, jvp=from_product,
                           samples=ONE), r"at \(0.0,\) a zero cotangent"  # fmt: skip
        case "memory":
            return None, ""
    raise AssertionError(prop)
