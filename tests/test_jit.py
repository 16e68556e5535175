"""`jit`: what it sees, what it compiles, what it keeps; and every nesting of transforms against JAX."""

import contextvars
import functools
import itertools
import threading
from collections import OrderedDict, defaultdict, deque
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
from functad import numpy as fnp
from functad import ops
from functad.transforms.checkpoint import checkpoint
from functad.transforms.custom import custom_vjp
from functad.transforms.forward import jvp
from functad.transforms.jit import jit
from functad.transforms.vmap import vmap

XS = np.linspace(0.3, 1.7, 4)
RNG = np.random.default_rng(0)
A = RNG.normal(size=(3, 3))


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


def on_numpy(x):
    return fd.tensor(x, device=fd.Device.numpy())


def tracked(data, device=None):
    return fd.tensor(data, device=(device or fd.Device.cpu()).autodiff()).require_grad()


# --- hidden inputs


def test_a_closed_over_tensor_is_read_anew(device):
    s = fd.tensor(1.0, device=device)
    f = jit(lambda x: x * s)
    x = fd.tensor(2.0, device=device)
    assert f(x).item() == 2.0
    s = fd.tensor(10.0, device=device)
    assert f(x).item() == 20.0
    assert fd.grad(f)(x).item() == 10.0
    assert f.compilations == 1
    s = fd.tensor([1.0, 2.0], device=device)
    assert f(x).tolist() == [2.0, 4.0]
    assert f.compilations == 2


SCALE = fd.tensor(1.0)


@jit
def by_global_name(x):
    return helper(x) * LATER  # defined below, after jit


def helper(x):
    return x * SCALE


def test_global_names_also_of_helpers_and_those_defined_later():
    global SCALE, LATER  # noqa: PLW0603  # a global that changes is what is tested
    SCALE = LATER = fd.tensor(1.0)
    assert by_global_name(2.0).item() == 2.0
    SCALE = fd.tensor(10.0)
    LATER = fd.tensor(3.0)
    assert by_global_name(2.0).item() == 60.0
    assert by_global_name.compilations == 2  # at first both names were one tensor
    SCALE = fd.tensor(100.0)
    assert by_global_name(2.0).item() == 600.0
    assert by_global_name.compilations == 2
    SCALE = fd.tensor(1.0)


def test_containers_in_closures():
    params = {}
    layers = [fd.tensor(1.0)]
    f = jit(lambda x: x * params["w"][0] + sum(layers, 0))
    params["w"] = (fd.tensor(2.0), "name")
    assert f(3.0).item() == 7.0
    params["w"] = (fd.tensor(5.0), "name")
    layers[0] = fd.tensor(100.0)
    assert f(3.0).item() == 115.0
    assert f.compilations == 1
    layers.append(fd.tensor(1000.0))
    assert f(3.0).item() == 1115.0
    assert f.compilations == 2


def test_partials_defaults_and_nested_functions():
    w = fd.tensor(2.0)
    f = jit(functools.partial(lambda a, x, b: a * x + b, w, b=fd.tensor(1.0)))
    assert f(3.0).item() == 7.0
    assert fd.grad(f)(3.0).item() == 2.0
    g = jit(lambda x, k=w: x * k)
    assert g(3.0).item() == 6.0

    def outer(x):
        def inner(y):
            return y * w

        return inner(x) + fd.grad(lambda z: z * z * w)(x)

    h = jit(outer)
    assert h(3.0).item() == 18.0
    w = fd.tensor(10.0)
    assert h(3.0).item() == 90.0
    assert h.compilations == 1


class Model(NamedTuple):
    """A pytree with a method."""

    w: fd.Tensor

    def forward(self, x):
        return x * self.w


def test_pytrees_with_methods_in_closures_arguments_and_bound_methods():
    model = Model(fd.tensor(2.0))
    by_closure, by_method = jit(lambda x: model.forward(x)), jit(model.forward)  # noqa: PLW0108  # a function that calls another is what is tested
    assert (by_closure(3.0).item(), by_method(3.0).item()) == (6.0, 6.0)
    model = Model(fd.tensor(5.0))
    assert by_closure(3.0).item() == 15.0
    assert by_closure.compilations == 1
    as_argument = jit(lambda m, x: m.forward(x))
    assert as_argument(model, 3.0).item() == 15.0
    assert as_argument(Model(fd.tensor(7.0)), 3.0).item() == 21.0
    assert as_argument.compilations == 1


def test_a_python_number_that_is_captured_is_a_constant():
    k = 2.0
    f = jit(lambda x: x * k)
    assert f(1.0).item() == 2.0
    k = 3.0
    assert f(1.0).item() == 2.0  # as documented
    assert jit(lambda x: x * k)(1.0).item() == 3.0


def test_gradients_flow_to_hidden_inputs():
    w = tracked(3.0)
    f = jit(lambda x: x * w * w)
    assert f(2.0).backward()[w].item() == 12.0
    assert fd.grad(lambda v: jit(lambda x: x * v * v)(2.0))(3.0).item() == 12.0
    assert jvp(lambda v: jit(lambda x: x * v * v)(2.0), (3.0,), (1.0,))[1].item() == 12.0
    assert vmap(lambda v: jit(lambda x: x * v)(2.0))(XS).tolist() == (2 * XS).tolist()
    assert jit(lambda v: jit(lambda x: x * v)(2.0))(3.0).item() == 6.0


# --- what is compiled


def test_compilations_by_type_structure_and_static_values():
    f = jit(lambda x, n=1, mode="a": {"y": x * n if mode == "a" else x - n}, static_argnames=("n", "mode"))
    one, two = fd.ones(3), fd.ones(4)
    for count, call in enumerate(
        [
            lambda: f(one),
            lambda: f(two),
            lambda: f(fd.ones(3, dtype="float32")),
            lambda: f(one, n=2),
            lambda: f(one, 2, "b"),
            lambda: f(on_numpy(np.ones(3))),
        ],
        1,
    ):
        call()
        call()
        assert f.compilations == count
    f = jit(lambda tree: tree["a"])
    f({"a": 1.0})
    f({"a": 2.0})
    f({"a": 1.0, "b": 2.0})
    assert f.compilations == 2
    with fd.enable_x64(False):
        f({"a": 1.0})
    assert f.compilations == 3


def test_the_function_runs_only_while_it_is_written_down():
    runs = []
    f = jit(lambda x: runs.append(1) or x * 2)
    for k in range(3):
        f(float(k))
        fd.grad(f)(float(k))
        vmap(f)(XS)
    assert len(runs) == f.compilations == 1


@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnames": "n"}, {"static_argnums": (-1,)}])
def test_static_arguments_by_position_and_keyword(how):
    f = jit(lambda x, n: fnp.stack([x] * n).sum() if n > 1 else x, **how)
    assert f(2.0, 3).item() == f(2.0, n=3).item() == f(n=3, x=2.0).item() == 6.0
    assert f(2.0, 1).item() == 2.0
    assert fd.grad(f)(2.0, n=3).item() == 3.0


def test_bad_static_arguments():
    f = jit(lambda x, n: x, static_argnums=1)
    with pytest.raises(fd.errors.ArgumentTypeError, match="has no hash"):
        f(1.0, [2])
    with pytest.raises(fd.errors.ArgumentError, match="static_argnums=5"):
        jit(lambda x, n: x, static_argnums=5)
    with pytest.raises(fd.errors.ArgumentError, match="static_argnames='m'"):
        jit(lambda x, n: x, static_argnames="m")
    with pytest.raises(fd.errors.ArgumentError, match="ints"):
        jit(lambda x, n: x, static_argnums="n")
    assert jit(lambda *xs: xs[0] * xs[1], static_argnums=1)(2.0, 3).item() == 6.0
    assert jit(lambda x, **kw: x * kw["k"], static_argnames="k")(2.0, k=3).item() == 6.0


def test_donation():
    f = jit(lambda x, y: x * y, donate_argnums=0)
    x, y = fd.ones(3), fd.ones(3) * 2
    assert f(x, y).tolist() == [2.0] * 3
    assert x._value.is_deleted()
    assert f(x=fd.ones(3), y=y).tolist() == [2.0] * 3
    assert fd.grad(lambda x: f(x, y).sum())(fd.ones(3)).tolist() == [2.0] * 3
    z = tracked(np.ones(3))
    assert f(z, y).sum().backward()[z].tolist() == [2.0] * 3
    assert y.tolist() == [2.0] * 3


def test_donated_places_are_those_of_arguments():
    for wrong in (5, -5, (0, 1)):
        with pytest.raises(fd.errors.ArgumentError, match=r"donate_argnums=.*takes 1 by position"):
            jit(lambda a: a + 1, donate_argnums=wrong)
    with pytest.raises(fd.errors.ArgumentError, match="argument 0 is static and donated"):
        jit(lambda a: a + 1, static_argnums=0, donate_argnums=0)
    assert jit(lambda *xs: xs[1] + 1, donate_argnums=1)(fd.ones(2), fd.ones(2)).tolist() == [2.0, 2.0]


def test_one_tensor_cannot_be_donated_twice():
    x = fd.ones(3)
    with pytest.raises(fd.errors.DonatedError, match="in two places"):
        jit(lambda x, y: (x + y, x - y), donate_argnums=(0, 1))(x, x)
    assert x.tolist() == [1.0] * 3


def test_python_numbers_stay_weak():
    half = fd.tensor([1.0], dtype="float16")
    assert jit(lambda x, k: x * k)(half, 2.0).dtype == half.dtype
    assert jit(lambda x, k: x * k)(half, 2).dtype == half.dtype
    assert jit(lambda k: half * k)(2.0).dtype == half.dtype
    assert jit(lambda k, x: x * k)(2.0, on_numpy(1.0)).device == fd.Device.numpy()


def test_results_of_every_kind(device):
    x = fd.tensor(2.0, device=device)
    constant = fd.tensor(7.0, device=device)

    def fn(x):
        return {"y": x * 2, "same": x, "text": "s", "number": 3, "none": None, "array": np.ones(2), "c": [constant]}

    f = jit(fn)
    for _ in range(2):
        out = f(x)
        assert out["y"].item() == 4.0
        assert (out["text"], out["none"]) == ("s", None)
        assert (out["same"].item(), out["number"].item(), out["c"][0].item()) == (2.0, 3, 7.0)
        assert out["array"].tolist() == [1.0, 1.0]
    assert jit(lambda x: {})(x) == {}
    assert jit(lambda: fd.ones(3, device=device) * 2)().tolist() == [2.0] * 3
    assert jit(lambda n: n + 1)(3).dtype.kind == "i"
    assert jit(lambda b: ~b)(True).item() is False
    assert jit(lambda x: (x, x))(x)[1].item() == 2.0


def test_on_the_numpy_device():
    f = jit(lambda x: ops.tanh(x) * x)
    x = on_numpy(XS)
    assert f(x).device == fd.Device.numpy()
    np.testing.assert_array_equal(f(x).numpy(), np.tanh(XS) * XS)
    assert fd.grad(lambda x: f(x).sum())(x).device == fd.Device.numpy()
    with pytest.raises(fd.errors.DeviceError):
        jit(lambda x, y: x + y)(x, fd.ones(4))


def test_stop_gradient_and_no_grad_survive_compilation():
    def muted(x):
        with fd.no_grad():
            y = x * x
        return x * y

    for fn, expected in (
        (lambda x: x * fd.stop_gradient(x), 3.0),
        (muted, 9.0),
        (lambda x: x * x.without_autodiff(), 3.0),
    ):
        for route in (fd.grad(jit(fn)), jit(fd.grad(fn)), lambda x: jvp(jit(fn), (x,), (1.0,))[1]):  # noqa: B023  # called in the same round of the loop
            assert route(3.0).item() == expected
        w = tracked(3.0)
        assert jit(fn)(w).backward()[w].item() == expected
    with fd.no_grad():
        assert not jit(lambda x: x * x)(tracked(3.0)).is_tracked


# --- differentiation


def test_forward_does_not_run_again_in_backward():
    runs = []

    def impl(xp, x):
        runs.extend([1] if xp is np else [])
        return xp.exp(x)

    counted = ops.Op("counted_exp", impl)
    counted.pulls = [counted.derivative(lambda g, out: g * out, 1)]
    f = jit(lambda x: ops.tanh(counted(x)).sum())
    x = tracked(XS, fd.Device.numpy())
    loss = f(x)
    assert len(runs) == 1
    for _ in range(2):
        grads = loss.backward()
    assert len(runs) == 1
    np.testing.assert_allclose(grads[x].numpy(), jax.grad(lambda x: jnp.tanh(jnp.exp(x)).sum())(XS), rtol=1e-9)


def loss(p, x, scale=1.0):
    return ((x @ p["w"] + p["b"]).tanh() ** 2).sum() * scale


def loss_and_more(p, x):
    h = x @ p["w"]
    return (h * h).sum(), {"h": h, "k": 3, "none": None}


@pytest.mark.parametrize(
    ("fn", "options", "kwargs"),
    [
        (loss, {}, {}),
        (loss, {"argnums": (1, 0)}, {}),
        (loss, {"argnums": -1}, {}),
        (loss, {}, {"scale": 2.0}),
        (loss_and_more, {"has_aux": True}, {}),
        (lambda p, x: x.sum(), {}, {}),
        (lambda p, x: fd.stop_gradient(p["w"]).sum(), {"argnums": 0}, {}),
    ],
)
def test_value_and_gradient_of_a_compiled_function_are_one_call(device, fn, options, kwargs):
    rng = np.random.default_rng(0)
    w, b, x = (fd.tensor(rng.normal(size=s).astype("float32"), device=device) for s in [(3, 2), (2,), (4, 3)])
    args, kwargs = ({"w": w, "b": b}, x), {k: fd.tensor(v, device=device) for k, v in kwargs.items()}
    compiled = jit(fn)
    found, structure = fd.tree.flatten(fd.value_and_grad(compiled, **options)(*args, **kwargs))
    again = fd.tree.leaves(fd.value_and_grad(compiled, **options)(*args, **kwargs))
    expected, other = fd.tree.flatten(fd.value_and_grad(fn, **options)(*args, **kwargs))
    assert structure == other
    for x, y, z in zip(found, again, expected, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(z), rtol=2e-5, atol=1e-6)
        assert np.array_equal(np.asarray(x), np.asarray(y))
    assert compiled(*args, **kwargs) is not None
    assert compiled.compilations == 1


def test_gradients_of_a_compiled_function_refuse_what_those_of_a_plain_one_do():
    x, n = fd.ones(3), fd.tensor([1, 2])
    for fn, args, options in [
        (lambda x: x * x, (x,), {}),
        (lambda x: x.sum(), (n,), {}),
        (lambda x: (x > 0).sum(), (x,), {}),
        (lambda x: (x.sum(), 1), (x,), {}),
        (lambda x: x.sum(), (x,), {"has_aux": True}),
        (lambda x: x.sum(), (x,), {"argnums": 1}),
        (lambda x: x.sum(), (x.astype("complex64"),), {}),
    ]:
        with pytest.raises(fd.FunctadError) as expected:
            fd.grad(fn, **options)(*args)
        with pytest.raises(fd.FunctadError) as found:
            fd.grad(jit(fn), **options)(*args)
        assert str(found.value) == str(expected.value)


def test_a_call_like_the_last_one_sees_what_changed():
    c = fd.tensor([1.0, 2.0])
    f = jit(lambda x: (x * c).sum())
    x, y = fd.ones(2), fd.tensor([1.0, 2.0])
    gradient = fd.value_and_grad(f)
    assert [f(x).item(), f(x).item(), gradient(x)[0].item(), f(y).item()] == [3.0, 3.0, 3.0, 5.0]
    c = fd.tensor([10.0, 20.0])
    assert f(x).item() == 30.0
    assert gradient(x)[1].tolist() == [10.0, 20.0]
    z = tracked(np.ones(2))
    assert f(z).backward()[z].tolist() == [10.0, 20.0]
    assert fd.grad(fd.grad(lambda s: gradient(s * x)[0]))(fd.tensor(1.0)).item() == 0.0
    assert fd.vmap(f)(fd.stack([x, y])).tolist() == [30.0, 50.0]
    assert jit(lambda x: f(x) + gradient(x)[0])(x).item() == 60.0
    assert f(x.astype("float16")).dtype == c.dtype
    c = c.autodiff().require_grad()
    assert f(x).backward()[c].tolist() == [1.0, 1.0]
    assert gradient(x)[0].backward()[c].tolist() == [1.0, 1.0]


def test_calls_in_turn_of_every_kind_see_their_own_program(device):
    f = jit(lambda x, y, n=1, *, k="a": (x["u"] * n + y * (2 if k == "a" else 3), x["u"].shape[0]), static_argnames="k")
    gradient = fd.grad(jit(lambda x, y: (x["u"] * y).sum()))

    def want(u, y, n=1, k="a"):
        return np.asarray(u) * n + np.asarray(y) * (2 if k == "a" else 3)

    one, two = np.arange(2.0), np.arange(3.0)
    half = one.astype("float32")
    for _ in range(3):
        for u, y, options in [
            (one, one, {}), (one, one, {}), (two, two, {}), (half, half, {}), (two, two, {"k": "b"}),
            (two, two, {"n": two}), (two, two, {"n": 2}), (one, one, {"k": "b", "n": one}), (one, half, {}),
        ]:  # fmt: skip
            tensors = {"u": fd.tensor(u, device=device)}, fd.tensor(y, device=device)
            given = {k: fd.tensor(v, device=device) if isinstance(v, np.ndarray) else v for k, v in options.items()}
            out, n = f(*tensors, **given)
            assert out.tolist() == want(u, y, **options).tolist()
            assert (out.dtype, n.item(), out.device) == (want(u, y, **options).dtype, len(u), device)
            assert gradient(*tensors)["u"].tolist() == y.tolist()
    assert f.compilations == 8


def test_the_types_of_what_is_captured_and_not_computed_with():
    c = fd.ones(3)
    f = jit(lambda x: x * c.shape[0])
    assert [f(fd.ones(())).item() for _ in range(3)] == [3.0] * 3
    c = fd.ones(5)
    assert [f(fd.ones(())).item() for _ in range(3)] == [5.0] * 3


class Scaled:
    """An object with a compiled method."""

    def __init__(self, w):
        self.w = fd.tensor(w)

    @functools.partial(jit, static_argnums=0)
    def scale(self, x):
        return x * self.w


def test_tensors_that_static_arguments_reach_are_read_anew():
    k = fd.tensor(2.0)
    call = jit(lambda fn, x: fn(x), static_argnums=0)
    fn = lambda x: x * k
    assert [call(fn, 3.0).item(), call(fn, fd.tensor(3.0)).item()] == [6.0, 6.0]
    k = fd.tensor(5.0)
    assert [call(fn, fd.tensor(3.0)).item(), call(ops.sin, fd.tensor(0.0)).item()] == [15.0, 0.0]
    assert fd.grad(lambda x: call(fn, x))(3.0).item() == 5.0
    k = tracked(7.0)
    assert call(fn, 3.0).backward()[k].item() == 3.0
    one, two = Scaled(2.0), Scaled(10.0)
    x = fd.ones(())
    assert [one.scale(x).item(), one.scale(x).item(), two.scale(x).item()] == [2.0, 2.0, 10.0]
    one.w = fd.tensor(4.0)
    assert [one.scale(x).item(), two.scale(x).item(), one.scale(x).item()] == [4.0, 10.0, 4.0]


def test_devices_in_turn():
    f = jit(lambda x: x * 2)
    devices = [fd.Device.cpu(fusion=False), fd.Device.numpy(), fd.Device.cpu(fusion=True), fd.Device.cpu().autodiff()]
    for device in devices * 2 + devices[::-1]:
        out = f(fd.tensor([1.0, 2.0], device=device) + 1)
        assert (out.tolist(), out.device, out.device.name) == ([4.0, 6.0], device, device.name)
        assert out._backend is (fd.tensor(1.0, device=device) + 1)._backend


def test_x64_and_strictness_in_turn():
    f = jit(lambda x: fnp.where(x > 0, fnp.sqrt(x), 0.0).sum())
    place = jit(fnp.argmax)
    x = fd.tensor(np.array([0.0, 4.0], np.float32))
    for _ in range(2):
        assert (f(x).item(), place(x).dtype) == (2.0, "int64")
        with fd.enable_x64(False):
            assert (f(x).item(), place(x).dtype) == (2.0, "int32")
        assert fd.grad(f)(x).tolist() == [0.0, 0.25]
        with fd.strict_ieee():
            assert np.isnan(fd.grad(f)(x).tolist()[0])


def test_models_in_turn_keep_their_ids_and_marks():
    def make(seed):
        return fd.nn.Linear(2, 2, key=fd.random.key(seed))

    step = jit(lambda model, x: model.map(lambda p: p + x.sum()))
    one, two = make(0), make(1)
    x = fd.ones(())
    for model in (one, one, two, two.no_grad(), one, two):
        new = step(model, x)
        assert [p.id for p in new.parameters()] == [p.id for p in model.parameters()]
        assert [p.is_frozen for p in new.parameters()] == [p.is_frozen for p in model.parameters()]
        assert np.allclose(new.weight.numpy(), model.weight.numpy() + 1)
    assert step.compilations == 2  # one with frozen parameters


def test_a_function_that_is_rebound_or_emptied():
    def helper(x):
        return x * 2

    f = jit(lambda x: helper(x))  # noqa: PLW0108  # a function that calls another is what is tested
    x = fd.tensor(1.0)
    assert [f(x).item(), f(x).item()] == [2.0, 2.0]
    before = helper
    del helper
    with pytest.raises(NameError):
        jit(lambda x: helper(x))(x)  # noqa: PLW0108  # a function that calls another is what is tested
    helper = before
    assert f(x).item() == 2.0


def test_donation_counts_static_arguments():
    f = jit(lambda n, x, y: x * y * n, static_argnums=0, donate_argnums=2)
    x, y = fd.ones(3), fd.ones(3)
    f(2, x, y)
    assert y._value.is_deleted()
    assert x.tolist() == [1.0] * 3


@pytest.mark.parametrize("fusion", [False, True])
def test_a_donated_tensor_says_so_and_what_was_computed_of_it_before_is_right(fusion):
    device = fd.Device.cpu(fusion=fusion)
    f = jit(lambda x, y: x * y, donate_argnums=0)
    for _ in range(3):
        x, y = fd.ones(3, device=device), fd.ones(3, device=device)
        before = x + 1  # with fusion it has not run yet
        assert f(x, y).tolist() == [1.0] * 3
        assert before.tolist() == [2.0] * 3
    with pytest.raises(fd.errors.DonatedError, match=r"float64\[3\].*donate_argnums"):
        f(x, y)
    with pytest.raises(fd.errors.DonatedError, match="donate_argnums"):
        x.numpy()
    assert "donated" in repr(x)
    if not fusion:
        with pytest.raises(fd.errors.DonatedError, match="add"):
            x + 1


def test_several_losses_and_order_two_in_object_style():
    f = jit(lambda x: (x * x * x, x * 2, (x * 3).astype("int32")))
    x = fd.tensor(2.0, device=fd.Device.cpu().autodiff(order=2)).require_grad()
    cube, double, integer = f(x)
    assert not integer.is_tracked
    g = x.grad(cube.backward())
    assert (g.item(), x.grad(g.backward()).item()) == (12.0, 12.0)
    assert x.grad(double.backward()).item() == 2.0
    y = tracked(2.0)
    cube, double, _ = f(y)
    assert (cube + double).backward(retain_graph=False)[y].item() == 14.0
    with pytest.raises(fd.errors.GraphConsumedError):
        cube.backward()


def test_a_tape_of_its_own_inside():
    def fn(x):
        w = x.autodiff().require_grad()
        return (w * w).backward()[w]

    assert jit(fn)(3.0).item() == 6.0
    assert fd.grad(jit(fn))(3.0).item() == 2.0


# --- errors


def test_a_branch_on_a_value_names_the_line_and_the_way_out():
    def fn(x):
        return x if x > 0 else -x

    for use, what in ((fn, "jit"), (lambda x: float(x), "jit"), (np.asarray, "jit"), (lambda x: range(x), "jit")):  # noqa: PLW0108  # a function that calls another is what is tested
        with pytest.raises(fd.errors.ConcreteValueError, match=what) as caught:
            jit(use)(3)
        assert "fd.where" in str(caught.value)
    with pytest.raises(fd.errors.ConcreteValueError, match=r"test_jit\.py:\d+"):
        jit(fn)(1.0)
    with pytest.raises(TypeError):
        jit(fn)(1.0)


def test_an_argument_that_cannot_be_traced_is_named():
    f = jit(lambda config, x, *, other=None: x)
    with pytest.raises(fd.errors.ArgumentTypeError, match=r"config\['a'\]\[1\] is 'text' of type str"):
        f({"a": [1.0, "text"]}, 1.0)
    with pytest.raises(fd.errors.ArgumentTypeError, match=r"other\['k'\] is <object"):
        f(1.0, 1.0, other={"k": object()})
    with pytest.raises(fd.errors.ArgumentTypeError, match="argument x is"):
        jit(lambda n, x: x, static_argnums=0)("static", "dynamic")
    with pytest.raises(fd.errors.ArgumentTypeError, match="expected a function"):
        jit(3)


def test_a_leaked_tensor_is_refused_where_it_is_used():
    box = []
    f = jit(lambda x: box.append(x * 2) or x)
    assert f(1.0).item() == 1.0
    for use in (lambda: box[0] + 1, lambda: fd.grad(lambda y: y * box[0])(1.0), lambda: jit(lambda y: y * box[0])(1.0)):
        with pytest.raises(fd.errors.LevelError, match="leaked"):
            use()
    with pytest.raises(fd.FunctadError):
        box[0].item()


def test_a_traced_tensor_prints_and_has_a_type():
    seen = []
    jit(lambda x: seen.extend([repr(x), f"{x}", x.shape, x.dtype, x.device, len(x)]) or x)(XS)
    assert "traced" in seen[0]
    assert seen[2:] == [(4,), np.dtype("float64"), fd.Device.cpu(), 4]


def test_an_exception_inside_leaves_nothing_open():
    f = jit(lambda x, fail: 1 / 0 if fail else x * 2, static_argnums=1)
    with pytest.raises(ZeroDivisionError):
        f(1.0, True)
    assert fd.tensor(1.0).item() == 1.0
    assert f(1.0, False).item() == 2.0
    assert fd.grad(f)(1.0, False).item() == 2.0


def test_methods_and_names():
    class Scaler:
        @functools.partial(jit, static_argnums=0)
        def double(self, x):
            """Twice x."""
            return x * 2

    assert Scaler().double(3.0).item() == 6.0
    assert Scaler.double.__name__ == "double"
    assert Scaler.double.__doc__ == "Twice x."
    assert "1 compilation" in repr(jit_once())


def jit_once():
    f = jit(lambda x: x)
    f(1.0)
    return f


def test_threads():
    s = fd.tensor(2.0)
    f = jit(lambda x: ops.sin(x) * s)
    failures = []

    def work(k):
        try:
            for _ in range(20):
                assert abs(f(float(k)).item() - 2 * np.sin(k)) < 1e-12
                assert abs(fd.grad(f)(float(k)).item() - 2 * np.cos(k)) < 1e-12
        except Exception as error:  # collected for the main thread
            failures.append(error)

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, k)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


# --- every nesting, against JAX


FUNCTIONS = {
    "smooth": lambda m, x: m.sin(x) * m.exp(-x) + x**3,
    "matmul": lambda m, x: m.sum(m.tanh(m.outer(x * m.asarray(XS), m.asarray(XS)) @ m.asarray(np.ones((4, 2))))),
    "logsumexp": lambda m, x: m.log(m.sum(m.exp(x * m.asarray(XS)))),
    "where": lambda m, x: m.where(x > 0.5, m.sqrt(m.maximum(x, 0.1)), -x) + m.where(x < 0, m.log(m.abs(x)), x * x),
    "cumulative": lambda m, x: m.sum(m.cumsum(x * m.asarray(XS)) * m.cumprod(x + m.asarray(XS))),
    "norm": lambda m, x: m.sqrt(m.sum((x - m.asarray(XS)) ** 2)),
    "index": lambda m, x: (m.asarray(XS) * x)[m.asarray([0, 0, 2])].sum() * (x * m.asarray(XS))[1],
    "divide": lambda m, x: m.sum(1 / (x + m.asarray(XS))) / (1 + x * x),
    "max": lambda m, x: m.max(m.sin(x * m.asarray(XS))) + m.min(m.asarray(XS) * x),
    "sort": lambda m, x: m.sum(m.sort(m.sin(3 * x * m.asarray(XS))) * m.asarray(XS)),
    "shapes": lambda m, x: (
        m.sum(m.reshape(x * m.asarray(A), (9,))[::2]) * m.sum(m.transpose(m.sin(x * m.asarray(A)))[0])
    ),
    "join": lambda m, x: m.prod(m.concatenate([m.stack([x, x * x]), x + m.asarray(XS)])),
}


@functools.cache
def derivatives(name, x):
    """The first derivatives of a function at a point, by JAX."""
    f = functools.partial(FUNCTIONS[name], jnp)
    every = [f, jax.grad(f), jax.grad(jax.grad(f)), jax.jacfwd(jax.grad(jax.grad(f)))]
    with jax.enable_x64(True):
        return [float(d) for d in jax.jit(lambda x: [d(x) for d in every])(x)]


def with_rule(f):
    """`f` with its own derivative as a rule."""
    g = custom_vjp(f)
    g.defvjp(lambda x: (f(x), x), lambda x, c: (c * fd.grad(f)(x),))
    return g


# a transform of functions of x, and what it makes of their derivatives: f(k, x) is the k-th at x
TRANSFORMS = {
    "grad": (fd.grad, lambda f: lambda k, x: f(k + 1, x)),
    "jvp": (lambda f: lambda x: jvp(f, (x,), (2.0,))[1], lambda f: lambda k, x: 2 * f(k + 1, x)),
    "vmap": (
        lambda f: lambda x: (vmap(f)(fnp.stack([x, 2 * x])) * np.array([1.0, 10.0])).sum(),
        lambda f: lambda k, x: f(k, x) + 10 * 2**k * f(k, 2 * x),
    ),
    "jit": (jit, lambda f: f),
    "checkpoint": (checkpoint, lambda f: f),
    "custom_vjp": (with_rule, lambda f: f),
}


def check(name, chain, x=0.4):
    ours = functools.partial(FUNCTIONS[name], fnp)
    theirs = lambda k, x: derivatives(name, x)[k]
    for step in chain:
        transform, jet = TRANSFORMS[step]
        ours, theirs = transform(ours), jet(theirs)
    with fd.set_default_device(fd.Device.numpy()):  # nothing to compile
        np.testing.assert_allclose(
            ours(fd.tensor(x)).numpy(), theirs(0, x), rtol=1e-8, err_msg=" of ".join(chain[::-1])
        )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_pairs_of_transforms(name):
    for chain in itertools.product(TRANSFORMS, repeat=2):
        check(name, chain)


@pytest.mark.parametrize("last", TRANSFORMS)
def test_all_triples_of_transforms(last):
    for i, chain in enumerate(itertools.product(TRANSFORMS, repeat=2)):
        check(list(FUNCTIONS)[i % len(FUNCTIONS)], (*chain, last))


@pytest.mark.parametrize("chain", [("grad", "jit"), ("jit", "grad"), ("grad", "vmap", "jit"), ("jit", "jvp", "grad")])
def test_some_nestings_on_xla(chain):
    for name in ("smooth", "index"):
        ours = functools.partial(FUNCTIONS[name], fnp)
        theirs = lambda k, x: derivatives(name, x)[k]  # noqa: B023  # called in the same round of the loop
        for step in chain:
            transform, jet = TRANSFORMS[step]
            ours, theirs = transform(ours), jet(theirs)
        np.testing.assert_allclose(ours(fd.tensor(0.4)).numpy(), theirs(0, 0.4), rtol=1e-8)


def test_numbers_and_arrays_among_arguments_are_read_at_each_call(device):
    f = jit(lambda x, a: x * a)
    x, half = fd.tensor([1.0, 2.0], "float32", device), fd.tensor([1.0, 2.0], "float16", device)
    numbers = [0.5, 0.25, 3, 4, True, 1e-3, np.float32(2.0), np.array(2.0, "float32"), np.array([1, 2]), jnp.ones(2)]
    for _ in range(2):
        for t in (x, half):
            for a in numbers:
                for _ in range(2):
                    out = f(t, a)
                    assert out.dtype == (t.dtype if isinstance(a, float) else (t * fd.tensor(a, device=device)).dtype)
                    np.testing.assert_allclose(out.numpy(), (t.numpy() * np.asarray(a)).astype(out.dtype), rtol=1e-3)
    before = f.compilations
    assert [f(x, a).tolist()[0] for a in np.arange(5.0).tolist()] == [0, 1, 2, 3, 4]
    assert f.compilations == before
    assert f(x, 1e300).tolist() == [np.inf, np.inf]
    for bad in ("a", np.array(["a"]), None):
        with pytest.raises(fd.FunctadError):
            f(x, bad)
    for wide in (True, False, True):
        with fd.enable_x64(wide):
            for _ in range(2):
                assert f(fd.tensor([1]), 2).dtype == ("int64" if wide else "int32")


def test_a_structure_is_not_taken_for_another_kind_of_dict():
    a, b = fd.ones(2), fd.zeros(3)
    same = jit(lambda tree: tree)
    trees = [
        {"x": a, "y": b}, OrderedDict(x=a, y=b), OrderedDict(y=b, x=a), defaultdict(list, x=a, y=b), deque([a, b], 3),
        deque([a, b]), [a, b], (a, b), (a, None), (a, [b]), {"x": a, "z": b},
    ]  # fmt: skip
    for _ in range(2):
        for tree in trees:
            for _ in range(2):
                out = same(tree)
                assert type(out) is type(tree)
                assert fd.tree.flatten(out)[1] == fd.tree.flatten(tree)[1]
                assert not isinstance(tree, OrderedDict) or list(out) == list(tree)


class Product(fd.Module):
    def __init__(self, seed, tied=False):
        rng = np.random.default_rng(seed)
        self.a = fd.Param(rng.normal(size=(3, 3)).astype("float32"))
        self.b = self.a if tied else fd.Param(rng.normal(size=(3, 3)).astype("float32"))
        self.times = fd.tensor(2)

    def forward(self, x):
        return x @ self.a @ self.b * self.times


@pytest.mark.parametrize("argnums", [0, (2, 0)])
def test_gradients_of_compiled_functions_of_models_and_static_arguments(argnums):
    def loss(model, power, x, scale=1.0):
        return (model(x) ** power).sum() * scale

    gradient = fd.value_and_grad(jit(loss, static_argnums=1), argnums)
    expected = fd.value_and_grad(loss, argnums)
    x = fd.tensor([[1.0, 2.0, 3.0]])
    one, two, tied = Product(0), Product(1), Product(2, tied=True)
    for _ in range(2):
        for model in (one, two, tied, one.freeze("a"), one.fork(fd.Device.cpu().autodiff())):
            for power, options in [(2, {}), (2, {"scale": 0.5})]:
                for _ in range(2):
                    found, structure = fd.tree.flatten(gradient(model, power, x, **options))
                    wanted, other = fd.tree.flatten(expected(model, power, x, **options))
                    assert structure == other
                    for y, z in zip(found, wanted, strict=True):
                        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=2e-5, atol=1e-6)
                        assert (type(y), y.is_tracked, y.device.name) == (type(z), z.is_tracked, z.device.name)
                        assert not isinstance(y, fd.Param) or (y.id, y.is_frozen) == (z.id, z.is_frozen)


def test_python_numbers_are_weak_and_static_ones_told_apart():
    """A static 1 and 1.0 are equal; a number beside an int8 tensor became an int32 tensor under jit."""
    times = fd.jit(lambda x, n: x * n, static_argnums=1)
    x = fd.tensor([1, 2])
    assert all(times(x, n).dtype == (x * n).dtype for n in (1, 1.0, True, 1, 1.0))
    times = fd.jit(lambda x, n: x * n)
    for dtype, n in (("int8", 3), ("uint8", 3), ("float32", 1j), ("bfloat16", np.float64(0.5)), ("int32", 2.5)):
        x = fd.ones(3, dtype=dtype)
        assert [times(x, n).dtype for _ in range(2)] == [(x * n).dtype] * 2
    with pytest.raises(fd.errors.DTypeError, match="300 does not fit int8"):
        times(fd.ones(3, dtype="int8"), 300)


def test_a_donated_tensor_is_refused_where_it_is_used_and_spoils_nothing_else():
    add = fd.jit(lambda x, y: x + y, donate_argnums=0)
    x = fd.tensor(np.ones(70_000, "f"))  # smaller ones are made on the host, and copied instead
    y, z = x * 1.0, x * 1.0
    assert (z * 2.0).sum().item() == 140_000  # z was recorded before it goes
    add(y, x), add(z, x)
    other = x * 3.0
    with pytest.raises(fd.errors.DonatedError, match=r"float32\[70000\] has no value"):
        y * 2.0
    with pytest.raises(fd.errors.DonatedError, match=r"float32\[70000\] has no value"):
        (z * 2.0).numpy()
    assert other.tolist() == [3.0] * 70_000
