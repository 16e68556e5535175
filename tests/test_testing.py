"""The tester is tested: with a right rule it passes, with a wrong one it fails and says where."""

from __future__ import annotations

import pickle
import re
import sys

import jax
import ml_dtypes
import numpy as np
import pytest
from hypothesis import find, given
from hypothesis import strategies as st

import functad as fd
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, CheckFailedError
from functad.ops import TABLE, Op, Samples, custom, elementwise, linear, mul, multilinear, nondiff, rules
from functad.ops.op import Keep
from functad.testing import check_grads, check_op, strategies
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


def exp(xp, x):
    return xp.exp(x)


def times(xp, x, y):
    return xp.multiply(x, y)


def matrix_product(xp, x, y):
    return xp.matmul(x, y)


# --- check_grads: right functions


def test_one_mode_may_be_named_alone():
    check_grads(lambda x: x * x, (fd.tensor([3.0]),), modes="rev")
    check_grads(lambda x: x * x, (fd.tensor([3.0]),), modes="fwd")


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
        text = fails("is wrong", check_grads, op, (x,), modes=(mode,), eps=1e-6, order=1)
        assert "argument: args[0], element (1234,)" in text


def test_a_wrong_second_derivative_only(declare):
    frozen = declare(nondiff, "frozen_cos", lambda xp, x: xp.cos(x), samples=ONE)
    op = declare(elementwise, "frozen_sin", lambda xp, x: xp.sin(x), lambda x: bind(frozen, (x,)), samples=ONE)
    check_grads(op, (np.array([0.5, 1.0]),), order=1)
    text = fails("order 2", check_grads, op, (np.array([0.5, 1.0]),))
    assert "of the reverse-mode derivative" in text
    assert "argument: args[0], element" in text


def test_modes_that_disagree_by_little(declare):
    op = declare(
        custom, "nearly", lambda xp, x: xp.exp(x),
        vjp=lambda g, out: g * out, jvp=lambda t, out: mul(t, out * (1 + 3e-8)), samples=ONE,
    )  # fmt: skip
    fails("forward and reverse mode disagree about args", check_grads, op, (np.array([0.5, 1.0]),), order=1)


def test_a_rule_of_the_wrong_shape(declare):
    op = declare(custom, "flat", lambda xp, x: 1.0 * x, vjp=lambda g: g.reshape(-1), jvp=lambda t: t, samples=ONE)
    text = fails("reverse mode failed", check_grads, op, (np.ones((2, 3)),))
    assert "flat" in text and "(6,)" in text and "(2, 3)" in text and "input 0" in text
    op = declare(custom, "flat_push", lambda xp, x: 1.0 * x, vjp=lambda g: g, jvp=lambda t: t.reshape(-1), samples=ONE)
    assert "flat_push" in fails("forward mode failed", check_grads, op, (np.ones((2, 3)),))


def test_a_kink_is_pointed_out():
    text = fails("is wrong", check_grads, lambda x: x.relu(), (np.array([1.0, 0.0]),))
    assert "element (1,)" in text
    assert "slopes before and after the point are 0 and 1" in text
    assert "a kink or a jump" in fails("order 2", check_grads, lambda x: x.abs(), (np.array([1.0, 0.0]),))


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
    def tanh(xp, x):
        if xp is np:
            raise NotImplementedError
        return xp.tanh(x)

    op = declare(elementwise, "xla_only", tanh, lambda out: 1 - out * out, samples=ONE, promote="float")
    check_op(op, fd.Device.cpu())
    fails("NumPy refuses", check_op, op, properties=["backends"])


def test_an_op_that_jax_cannot_differentiate_is_checked_without_it(declare):
    def halved(xp, x):
        if xp is np:
            return x / 2
        return jax.pure_callback(
            lambda x: np.asarray(x / 2), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims"
        )

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
    assert re.search(
        r"against JAX.*of [xy], element \(", fails(r"\[jax\]", check_op, make(declare), properties=["jax"])
    )


def test_a_rule_that_is_wrong_for_complex_numbers_only_fails(declare):
    kept = [((np.array([1.0, 2.0]),), {})]
    op = declare(custom, "of_conj", lambda xp, x: 2 * x, jvp=lambda t: 2 * fd.ops.conj(t),
                 vjp=lambda g: 2 * fd.ops.conj(g), samples=Samples(make=lambda rng: kept))  # fmt: skip
    check_op(op, properties=["numeric"])
    fails(r"\[complex\]", check_op, op, properties=["complex"])


def test_a_rule_that_rounds_on_the_way_fails_in_half_types(declare):
    op = declare(custom, "rounded", lambda xp, x: x * x * x, jvp=lambda t, x: t * (x * x * 3 + 32 - 32),
                 vjp=lambda g, x: g * (x * x * 3 + 32 - 32), samples=ONE)  # fmt: skip
    check_op(op, properties=["numeric"])
    assert "gradient" in fails(r"\[rounding\].*round once", check_op, op, properties=["rounding"])


# --- check_op: an op that breaks one property


def unsaid(declare):
    """No doc."""
    return declare(elementwise, "unsaid", exp, lambda out: out, samples=ONE, doc="")


def off_on_numpy(declare):
    """Two backends, two values."""
    numpy_impl = lambda xp, x: xp.exp(x * xp.asarray(1.02, x.dtype))
    return declare(
        elementwise, "off_on_numpy", exp, lambda out: out, numpy_impl=numpy_impl, samples=ONE, promote="float"
    )


def held(declare):
    """A rule that says "no derivative" where there is one."""
    return declare(elementwise, "held", times, lambda y: y, None)


def skew(declare):
    """Two modes, two derivatives."""
    return declare(
        custom,
        "skew",
        exp,
        vjp=lambda g, out: g * out,
        jvp=lambda t, out: 1.5 * (t * out),
        samples=ONE,
        promote="float",
    )


def skew_alone(declare):
    """A gradient that depends on what else is tracked."""
    op = declare(elementwise, "skew_alone", times, lambda y: y, lambda x: x)
    pull, push = op.pull, op.push
    op.pull = lambda g, res, wanted: pull(g if all(wanted) else 2.0 * g, res, wanted)
    op.push = lambda ts, res: push([t if t is None or None not in ts else 2.0 * t for t in ts], res)
    return op


def sums_rows(declare):
    """A rule for rows that mixes them."""
    batch = lambda op, inputs, mapped, size, params: bind(op, inputs)
    return declare(nondiff, "sums_rows", lambda xp, x: xp.sum(x), samples=Samples([(((3, 2),), {})]), batch=batch)


def sweeping() -> bool:
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "sweep":
        frame = frame.f_back
    return frame is not None


def changes_its_mind(declare):
    """Another value when it is computed again during backward."""
    impl = lambda xp, x: 2.0 * x if sweeping() else 1.0 * x
    return declare(elementwise, "changes_its_mind", impl, 1, samples=ONE)


def widens(declare):
    """Half precision in, single precision out."""
    impl = lambda xp, x: xp.exp(x) * xp.ones((), "float32")
    return declare(elementwise, "widens", impl, lambda x: x.exp(), samples=ONE, promote="float")


def narrows(declare):
    """A derivative that float32 cannot hold, in which those of half types are computed."""
    return declare(
        elementwise,
        "narrows",
        lambda xp, x: xp.square(x),
        lambda x: (x * 1e38 * 100) * 2e-40,
        samples=ONE,
        promote="float",
    )


def never_empty(declare):
    """One backend refuses an empty array."""

    def impl(xp, x):
        if xp is not np and not x.size:
            raise ValueError("empty")
        return 1.0 * x

    return declare(elementwise, "never_empty", impl, 1, samples=Samples([(((3, 2),), {})]))


def unmasked(declare):
    """Zero times infinity."""
    rule = lambda g, x: mul(g, 1 / x)
    return declare(custom, "unmasked", lambda xp, x: xp.log(x), vjp=rule, jvp=rule, samples=ONE, promote="float")


def hoards(declare):
    """Keeps what its rule does not name."""
    op = declare(elementwise, "hoards", times, lambda y: y, lambda x: x)
    op.keep = lambda tracked: Keep(frozenset({0, 1}), frozenset(), out=False)
    return op


@pytest.mark.parametrize(
    ("make", "prop", "message"),
    [
        (unsaid, "declared", "no doc"),
        (off_on_numpy, "backends", r"value on XLA against NumPy, element \(0, 0\)"),
        (held, "jax", "y has no derivative by its rule, but JAX's gradient"),
        (skew, "adjoint", "with x tracked <g, J t>"),
        (skew_alone, "adjoint", "with only x tracked, gradient of x, element"),
        (sums_rows, "vmap", "value of vmap over x"),
        (changes_its_mind, "checkpoint", r"gradient with recomputation, element \(0, 0\)"),
        (widens, "dtypes", r"bfloat16\[3, 2\]"),
        (narrows, "dtypes", r"gradient in \w+ against float64, element \(\d, \d\): -?inf"),
        (never_empty, "edges", "XLA refuses these inputs"),
        (unmasked, "masked", r"at \(0.0,\) a zero cotangent gives"),
        (hoards, "memory", "keeps x, which no rule names"),
    ],
)
def test_a_broken_property_fails(declare, make, prop, message):
    op = make(declare)
    fails(message, check_op, op, properties=[prop])


def test_an_op_without_samples_fails(declare):
    op = declare(elementwise, "unsampled", exp, lambda out: out, samples=None)
    fails("'unsampled' has no samples.*samples=Samples", check_op, op, properties=["declared"])
    wrong = Samples([(((3, 2),), {"axis": 0})])
    op = declare(elementwise, "missampled", exp, lambda out: out, samples=wrong)
    fails(r"'missampled', case 0: samples give 1 inputs and parameters \['axis'\]", check_op, op)


def test_samples_leave_no_room():
    with pytest.raises(CheckFailedError, match=r"no room between -0\.01 and 0\.01"):
        draw(Op("tight", exp, samples=Samples([(((3,),), {})], low=-0.01, high=0.01, kinks=(0,))))


def test_samples_stay_clear_of_kinks():
    op = Op("kinked", exp, samples=Samples([(((500,),), {})], kinks=(-1, 0, 1)))
    x = draw(op)[0].inputs[0]
    assert np.abs(x[:, None] - np.array([-1, 0, 1])).min() >= 0.05
    assert x.min() < -1.05 and x.max() > 1.05
    assert np.array_equal(x, draw(op)[0].inputs[0])
    assert not np.array_equal(x, draw(op, 1)[0].inputs[0])


def test_refuses_what_is_no_op_or_property():
    with pytest.raises(ArgumentTypeError, match="expected an op"):
        check_op(np.sin)
    with pytest.raises(ArgumentError, match="there is no property"):
        check_op(TABLE["add"], properties=["speed"])


# --- strategies


@given(strategies.shapes(min_dims=1, max_dims=2, max_side=3))
def test_shapes_are_in_range(shape):
    assert 1 <= len(shape) <= 2
    assert all(0 <= n <= 3 for n in shape)


def test_shapes_have_empty_and_scalar_ones():
    assert find(strategies.shapes(), lambda s: 0 in s)
    assert find(strategies.shapes(), lambda s: s == ()) == ()
    assert 1 in find(strategies.shapes(min_side=1), lambda s: len(s) == 3)


@given(strategies.broadcastable_shapes(3))
def test_shapes_broadcast(shapes):
    assert len(shapes) == 3
    np.broadcast_shapes(*shapes)


def test_broadcastable_shapes_differ():
    find(strategies.broadcastable_shapes(), lambda pair: len(pair[0]) != len(pair[1]))
    find(strategies.broadcastable_shapes(), lambda pair: any(a == 1 < b for a, b in zip(*pair, strict=False)))


@given(strategies.dtypes("float", "int"))
def test_dtypes_are_of_the_kinds(dtype):
    assert fd.dtypes.is_float(dtype) or dtype.kind in "iu"
    assert dtype not in (np.float64, np.int64, np.uint64)


def test_dtypes_reach_all_of_a_kind():
    for dtype in (np.float16, np.float32, ml_dtypes.bfloat16):
        assert find(strategies.dtypes("float"), lambda d, dtype=dtype: d == dtype) == dtype
    assert find(strategies.dtypes("float", wide=True), lambda d: d == np.float64) == np.float64
    assert find(strategies.dtypes(), lambda d: d.kind == "b") == np.bool_
    with fd.enable_x64():
        find(strategies.dtypes("complex"), lambda d: d == np.complex128)
    with pytest.raises(ArgumentError, match="no kind"):
        strategies.dtypes("double")


@given(strategies.arrays(strategies.dtypes("float", "int", "complex"), low=-3, high=5, kinks=[0, 1], gap=0.25))
def test_arrays_stay_clear_of_kinks(x):
    parts = [x.real, x.imag] if x.dtype.kind == "c" else [x]
    for part in parts:
        wide = part.astype(np.float64)
        assert ((wide >= -3) & (wide <= 5)).all()
        assert (np.abs(wide) >= 0.25).all()
        assert (np.abs(wide - 1) >= 0.25).all()


def test_arrays_reach_every_side_of_a_kink():
    for low, high in ((-2, -0.05), (0.05, 2)):
        assert find(strategies.arrays(shape=(1,), kinks=[0]), lambda x, low=low, high=high: low <= x[0] <= high).shape
    with pytest.raises(ArgumentError, match="clear of the kinks"):
        find(strategies.arrays(low=0, high=0.01, shape=(1,), kinks=[0]), lambda x: True)


@given(st.data())
def test_tensors_have_what_was_asked_for(data):
    shape = data.draw(strategies.shapes())
    x = data.draw(strategies.tensors("bfloat16", shape, low=1, high=2, device=fd.Device.numpy()))
    assert isinstance(x, fd.Tensor)
    assert x.shape == shape and x.dtype == ml_dtypes.bfloat16 and x.device.name == "numpy"
    assert bool(((x >= 1) & (x <= 2)).all())


@given(strategies.tensors("float32", strategies.shapes(max_side=2), kinks=[0], device=fd.Device.numpy()))
def test_strategies_and_check_grads_work_together(x):
    check_grads(lambda x: x.abs() * x, (x,), order=1)


def test_an_op_of_a_users_may_have_defaults_and_refuse_complex_numbers():
    def huber(xp, x, *, delta=1.0):
        if x.dtype.kind == "c":
            raise TypeError("for real numbers")
        near = xp.abs(x) <= delta
        return xp.where(near, 0.5 * x * x, delta * (xp.abs(x) - 0.5 * delta)).astype(x.dtype)

    try:
        op = fd.op.elementwise(
            "test_huber", huber, lambda x, delta: x.clip(-delta, delta),
            samples=fd.op.Samples([([(2, 3)], {}), ([(2,)], {"delta": 0.5})], kinks=(-1, -0.5, 0.5, 1)), doc="Huber's loss.",
        )  # fmt: skip
        assert op(fd.tensor([0.5, 3.0])).tolist() == [0.125, 2.5]
        assert op(fd.tensor(3.0), delta=2.0).item() == 4
        check_op(op, properties=["declared", "backends", "adjoint", "numeric", "vmap", "dtypes"])
    finally:
        TABLE.pop("test_huber", None)


def test_an_op_may_be_declared_again(monkeypatch):
    """As the cell of a notebook is run again; the earlier one works on where something holds it."""
    monkeypatch.setattr(rules, "TABLE", dict(TABLE))
    declare = lambda n: fd.op.elementwise("scaled_again", lambda xp, x: x * n, n, doc="n x.")
    two, three = declare(2.0), declare(3.0)
    assert [fd.grad(op)(1.0).item() for op in (two, three, two)] == [2.0, 3.0, 2.0]
    assert rules.TABLE["scaled_again"] is three
    assert pickle.loads(pickle.dumps(three)) is three
    with pytest.raises(fd.errors.ArgumentError, match="'mul': functad has an op of this name"):
        fd.op.elementwise("mul", lambda xp, x: x, 1.0, doc="x.")


@pytest.mark.parametrize(
    ("declares", "message"),
    [
        (lambda: fd.op.elementwise("odd", lambda xp, x: x), "0 reverse rules for the inputs x;.*nondiff"),
        (lambda: fd.op.elementwise("odd", lambda xp, x, y: x * y, lambda y: y), "1 reverse rule for the inputs x, y"),
        (lambda: fd.op.linear("odd", lambda xp, x, y: x - y, lambda g: g), "1 reverse rule for the inputs x, y"),
        (lambda: fd.op.multilinear("odd", lambda xp, x: x, lambda g: g, lambda g: g), "2 reverse rules for the inputs x"),
        (lambda: fd.op.custom("odd", times, vjp=[lambda g: g, lambda g: g], jvp=lambda t: t), "1 forward rule for the inputs x, y"),
        (lambda: fd.op.elementwise("odd", lambda x: x + 1, 1.0), "takes an array namespace.*before its inputs"),
        (lambda: fd.op.elementwise("odd", lambda xp, x: x, lambda z: z), "its rule names 'z'"),
        (lambda: fd.op.reduction("odd", lambda xp, x: x.sum(), 1.0), r"odd\(xp, x, \*, axis, keepdims=False\)"),
    ],
)  # fmt: skip
def test_a_declaration_without_a_rule_for_each_input_is_refused(declares, message):
    with pytest.raises(fd.errors.FunctadError, match=message):
        declares()
    assert "odd" not in TABLE


def test_a_reduction_of_a_users_takes_axes_as_numpy_does(declare):
    def energy(xp, x, *, axis=None, keepdims=False):
        return xp.sum(x * x, axis=axis, keepdims=keepdims)

    axes = [None, 0, -1, (0,), (-2, 1)]
    cases = [([(2, 3)], {"axis": axis, "keepdims": keep}) for axis in axes for keep in (False, True)]
    op = declare(fd.op.reduction, "energies", energy, lambda x: 2 * x, samples=Samples(cases))
    check_op(op, properties=["numeric", "adjoint", "vmap"])
    assert op(fd.tensor([[3.0], [4.0]])).item() == 25


def test_a_multilinear_op_whose_tangents_go_through_itself_is_right(declare):
    """`masked` asked that 0 times inf be 0 in the op's own product, which no rule of the user's could change."""

    def to_x(g, y):
        return fd.op.product(g, y)

    def to_y(g, x):
        return fd.op.product(g, x)

    samples = Samples([(((3,), (3,)), {})])
    check_op(declare(fd.op.multilinear, "pairing", lambda xp, x, y: (x * y).sum(), to_x, to_y, samples=samples))
