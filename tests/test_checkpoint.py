"""`checkpoint`: what it computes is what the function computes, and what it keeps is little."""

import contextvars
import functools
import gc
import queue
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
from functad import ops
from functad.transforms.checkpoint import checkpoint
from functad.transforms.forward import jvp
from functad.transforms.jit import jit
from functad.transforms.vmap import vmap

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 4))
W = RNG.normal(size=(4, 4))
POLICIES = ["save_nothing", "save_everything", "save_matmuls", "by_cost", lambda op: op.name == "tanh"]


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


def layer(x, w):
    return ops.tanh(x @ w) * ops.sin(x) + x


def tracked(data, device=None):
    return fd.tensor(data, device=(device or fd.Device.cpu()).autodiff()).require_grad()


@pytest.fixture
def calls(monkeypatch):
    """The names of the ops that run, on the NumPy device."""
    names = []
    backend = type(fd.Device.numpy().base)
    run = backend.run

    def counted(self, op, inputs, params):
        names.append(op.name)
        return run(self, op, inputs, params)

    monkeypatch.setattr(backend, "run", counted)
    return names


# --- the result is the function's


@pytest.mark.parametrize("policy", POLICIES)
def test_value_and_gradient_are_bitwise_those_of_the_function(policy, device):
    for fn in (layer, checkpoint(layer, policy)):
        x, w = tracked(X, device), tracked(W, device)
        loss = fn(x, w).sum()
        grads = loss.backward()
        found = [loss.numpy(), grads[x].numpy(), grads[w].numpy()]
        if fn is layer:
            expected = found
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("policy", POLICIES)
def test_functional_gradients_of_higher_order(policy):
    x = fd.tensor(1.3, device=fd.Device.numpy())
    cp = checkpoint(lambda x: ops.exp(ops.sin(x)) * x, policy)
    jx = lambda x: jnp.exp(jnp.sin(x)) * x
    for order in range(1, 4):
        cp, jx = fd.grad(cp), jax.grad(jx)
        np.testing.assert_allclose(cp(x).numpy(), jx(1.3), rtol=1e-12, err_msg=str(order))


def test_gradient_of_a_checkpointed_gradient():
    assert fd.grad(checkpoint(fd.grad(lambda x: x * x * x)))(2.0).item() == 12.0
    assert fd.grad(checkpoint(lambda x: fd.grad(checkpoint(lambda y: y * y * x))(x)))(2.0).item() == 8.0


def test_nested_checkpoints():
    inner = checkpoint(lambda x: ops.sin(x) * x)
    outer = checkpoint(lambda x: inner(inner(x)) + x)
    plain = lambda x: x + jnp.sin(jnp.sin(x) * x) * jnp.sin(x) * x
    np.testing.assert_allclose(fd.grad(outer)(0.7).numpy(), jax.grad(plain)(0.7), rtol=1e-12)
    np.testing.assert_allclose(fd.grad(fd.grad(outer))(0.7).numpy(), jax.grad(jax.grad(plain))(0.7), rtol=1e-12)


def test_python_control_flow_reads_values():
    runs = []

    def fn(x):
        runs.append(float(x))
        return x * x if x > 0 else -x

    grad = fd.grad(checkpoint(fn))
    assert grad(3.0).item() == 6.0
    assert grad(-3.0).item() == -1.0
    assert runs == [3.0, 3.0, -3.0, -3.0]


def test_a_function_that_is_not_differentiated_runs_once():
    runs = []
    checkpoint(lambda x: runs.append(1) or x * 2)(tracked(1.0))
    assert len(runs) == 1


def test_pytrees_integers_and_keywords(device):
    def fn(params, n, *, scale, mode="up"):
        assert mode == "down"
        assert isinstance(n, int)
        return {"y": params["w"] * scale[0] * n, "name": mode, "index": params["i"] + 1, "none": None}

    w, s = tracked(2.0, device), tracked(5.0, device)
    out = checkpoint(fn)({"w": w, "i": fd.tensor(3, device=device)}, 7, scale=(s,), mode="down")
    assert out["name"] == "down"
    assert out["none"] is None
    assert out["index"].item() == 4
    grads = out["y"].backward()
    assert (grads[w].item(), grads[s].item()) == (35.0, 14.0)


def test_arguments_arrive_as_they_were_passed():
    seen = []
    checkpoint(lambda *args: seen.extend(map(type, args)) or args[0])(tracked(1.0), 2, 3.0, np.ones(2), "x", None)
    assert seen == [fd.Tensor, int, float, np.ndarray, str, type(None)]


def test_without_tensors():
    assert checkpoint(lambda n: n + 1)(2) == 3
    assert checkpoint(lambda: fd.tensor(2.0))().item() == 2.0


def test_several_outputs_and_unused_ones():
    x = tracked(2.0)
    a, b, c = checkpoint(lambda x: (x * x, x * 3, fd.tensor(7.0)))(x)
    assert a.backward()[x].item() == 4.0
    assert b.backward()[x].item() == 3.0
    assert c.backward()[x].item() == 0.0  # outputs of one op are tracked together
    assert fd.grad(lambda x: checkpoint(lambda x: (x * x, x * 3))(x)[1])(2.0).item() == 3.0


def test_backward_twice_and_release():
    x = tracked(2.0)
    y = checkpoint(lambda x: x * x * x)(x)
    assert y.backward()[x].item() == y.backward()[x].item() == 12.0
    y.backward(retain_graph=False)
    with pytest.raises(fd.errors.GraphConsumedError):
        y.backward()


def test_order_two_in_object_style():
    x = fd.tensor(2.0, device=fd.Device.cpu().autodiff(order=2)).require_grad()
    g = x.grad(checkpoint(lambda x: x * x * x)(x).backward())
    assert g.item() == 12.0
    assert x.grad(g.backward()).item() == 12.0


def test_on_a_device_that_checkpoints_already():
    x = fd.tensor(0.5, device=fd.Device.cpu().autodiff().gradient_checkpointing()).require_grad()
    y = checkpoint(lambda x: ops.sin(ops.exp(x)) * x)(ops.sin(x * 2))
    expected = jax.grad(lambda x: jnp.sin(jnp.exp(jnp.sin(x * 2))) * jnp.sin(x * 2))(0.5)
    np.testing.assert_allclose(y.backward()[x].numpy(), expected, rtol=1e-12)


def test_forward_mode_and_vmap():
    cp = checkpoint(lambda x: ops.sin(x) * x)
    jx = lambda x: jnp.sin(x) * x
    np.testing.assert_allclose(jvp(cp, (0.7,), (2.0,))[1].numpy(), 2 * jax.grad(jx)(0.7), rtol=1e-12)
    np.testing.assert_allclose(vmap(fd.grad(cp))(X[0]).numpy(), jax.vmap(jax.grad(jx))(X[0]), rtol=1e-12)
    total = fd.grad(lambda x: vmap(cp)(x).sum())(X[0])
    np.testing.assert_allclose(total.numpy(), jax.vmap(jax.grad(jx))(X[0]), rtol=1e-12)


# --- closures


def test_gradients_flow_to_closed_over_tensors():
    w, b = tracked(W), tracked(np.ones(4))
    y = checkpoint(lambda x: ops.tanh(x @ w) + b)(fd.tensor(X))
    grads = y.sum().backward()
    expected = jax.grad(lambda w: jnp.tanh(X @ w).sum())(W)
    np.testing.assert_allclose(grads[w].numpy(), expected, rtol=1e-10)
    np.testing.assert_array_equal(grads[b].numpy(), np.full(4, 3.0))


def test_closures_over_every_kind_of_level():
    f = checkpoint
    assert fd.grad(lambda w: f(lambda x: x * w * w)(3.0 * w))(2.0).item() == 36.0
    assert fd.grad(lambda w: f(lambda: w * w)())(2.0).item() == 4.0
    assert jvp(lambda w: f(lambda x: x * w)(w), (3.0,), (1.0,))[1].item() == 6.0
    np.testing.assert_array_equal(
        vmap(lambda w: fd.grad(f(lambda x: x * x * w))(2.0))(np.arange(3.0)).numpy(), [0, 4, 8]
    )
    np.testing.assert_array_equal(vmap(lambda w: f(lambda x: x * w)(fd.tensor(2.0)))(np.arange(3.0)).numpy(), [0, 2, 4])
    total = fd.grad(lambda x: vmap(lambda w: f(lambda y: y * w)(x * x))(np.arange(3.0)).sum())(2.0)
    assert total.item() == 12.0
    assert jit(lambda w: f(lambda x: x * w)(w))(3.0).item() == 9.0
    assert fd.grad(jit(lambda w: f(lambda x: x * w)(w)))(3.0).item() == 6.0


class Plain:
    """No pytree, and its tensors are hard to find: nothing tells what it holds before its function has run."""

    def __init__(self, *weights):
        self.hold(weights)

    def hold(self, weights):
        self.weights = queue.Queue()
        self.weights.queue.extend(weights)

    def __call__(self, x):
        for w in self.weights.queue:
            x = ops.sin(x * w)
        return x


def test_tensors_held_by_plain_objects_are_found():
    ws = [tracked(v) for v in (0.5, 0.6, 0.7)]
    runs = []
    block = Plain(*ws)
    y = checkpoint(lambda x: runs.append(1) or block(x))(fd.tensor(1.1))
    grads = y.backward()

    def plain(ws):
        x = 1.1
        for w in ws:
            x = jnp.sin(x * w)
        return x

    np.testing.assert_allclose([grads[w].item() for w in ws], jax.grad(plain)([0.5, 0.6, 0.7]), rtol=1e-12)
    assert len(runs) == 3  # one to find them all, one forward, one in backward


def test_a_loop_variable_has_the_value_it_had():
    x = tracked(1.0)
    y = x
    for i in range(1, 4):
        y = checkpoint(lambda y: y * i)(y)  # noqa: B023  # called in the same round of the loop
    assert y.item() == 6.0
    assert y.backward()[x].item() == 6.0


SCALE = 2.0


def test_globals_and_tensors_have_the_value_they_had():
    global SCALE  # noqa: PLW0603  # a global that changes is what is tested
    s = fd.tensor(3.0)

    def helper(x):
        return x * s * SCALE

    x = tracked(1.0)
    y = checkpoint(lambda x: helper(x))(x)  # noqa: PLW0108  # a function that calls another is what is tested
    s = fd.tensor(100.0)
    SCALE = 100.0
    try:
        assert y.backward()[x].item() == 6.0
    finally:
        SCALE = 2.0


def test_what_the_function_writes_is_seen_outside():
    count = 0

    def fn(x):
        nonlocal count
        count += 1
        return x * x

    y = checkpoint(fn)(tracked(2.0))
    assert count == 1
    y.backward()
    assert count == 2


def recursive(x, n):
    return x if n == 0 else recursive(x * SCALE, n - 1)


def test_recursive_functions_methods_and_partials():
    x = tracked(1.0)
    assert checkpoint(recursive)(x, 3).backward()[x].item() == 8.0

    class Layer:
        def __init__(self, k):
            self.k = k

        def forward(self, x, n):
            return x * self.k * n

    y = checkpoint(functools.partial(Layer(3.0).forward, n=5))(x)
    assert y.backward()[x].item() == 15.0


def test_a_parameter_replaced_before_backward_is_refused():
    block = Plain(tracked(2.0))
    y = checkpoint(lambda x: block(x))(tracked(1.0))  # noqa: PLW0108  # a function that calls another is what is tested
    block.hold((tracked(3.0),))
    with pytest.raises(fd.errors.LevelError, match="each run of the function reaches another tensor"):
        y.backward()


# --- surroundings


def test_no_grad_inside_and_outside():
    def fn(x):
        with fd.no_grad():
            k = x * x
        return k * x

    x = tracked(3.0)
    assert checkpoint(fn)(x).backward()[x].item() == 9.0
    with fd.no_grad():
        assert not checkpoint(fn)(x).is_tracked
    y = checkpoint(lambda x: x * x)(x)
    with fd.no_grad():
        assert y.backward()[x].item() == 6.0


def test_stop_gradient_inside():
    assert fd.grad(checkpoint(lambda x: x * fd.stop_gradient(x)))(3.0).item() == 3.0
    assert fd.grad(jit(checkpoint(lambda x: x * fd.stop_gradient(x))))(3.0).item() == 3.0


def test_the_default_device_and_strictness_are_those_of_the_call():
    def fn(x):
        return x * fd.ones(2).sum() + fd.grad(lambda y: ops.where(y > 0, ops.sqrt(y), 0 * y))(fd.tensor(0.0)) * 0

    x = fd.tensor(3.0, device=fd.Device.numpy().autodiff()).require_grad()
    with fd.set_default_device(fd.Device.numpy()):
        y = checkpoint(fn)(x)
    assert y.backward()[x].item() == 2.0


STATE = contextvars.ContextVar("state", default=0)


def test_state_in_a_context_variable_is_as_it_was():
    def fn(x):
        STATE.set(STATE.get() + 1)  # as a default random generator would
        return x * STATE.get()

    x = tracked(1.0)
    y = checkpoint(fn)(x)
    z = checkpoint(fn)(x)
    assert (y.item(), z.item(), STATE.get()) == (1.0, 2.0, 2)
    assert (y.backward()[x].item(), z.backward()[x].item()) == (1.0, 2.0)
    assert STATE.get() == 2


def test_random_keys():
    key = fd.random.key(0)
    x = tracked(np.ones(5))
    y = checkpoint(lambda x, k: x * fd.random.normal(k, (5,)))(x, key)
    np.testing.assert_array_equal(y.sum().backward()[x].numpy(), y.numpy())


def test_precision_is_as_it_was():
    seen = []

    def fn(x):
        seen.append((jax.config.jax_default_matmul_precision, jax.config.jax_enable_x64))
        return x * x

    x = tracked(np.float32(2.0))
    with jax.default_matmul_precision("float32"):
        y = checkpoint(fn)(x)
    with fd.enable_x64(False):
        y.backward()
    assert seen == [("float32", True)] * 2


# --- policies


@pytest.mark.parametrize(
    ("policy", "again"),
    [
        ("save_nothing", {"contract": 1, "tanh": 1, "sin": 1}),
        ("save_everything", {"contract": 0, "tanh": 0, "sin": 0}),
        ("save_matmuls", {"contract": 0, "tanh": 1, "sin": 1}),
        ("by_cost", {"contract": 0, "tanh": 1, "sin": 1}),
        (lambda op: op.name == "tanh", {"contract": 1, "tanh": 0, "sin": 1}),
    ],
)
def test_what_a_policy_computes_again(policy, again, calls):
    x = tracked(X, fd.Device.numpy())
    w = fd.tensor(W, device=fd.Device.numpy())
    y = checkpoint(layer, policy)(x, w).sum()
    forward = list(calls)
    assert [forward.count(name) for name in again] == [1, 1, 1]
    calls.clear()
    y.backward()
    matmuls_of_the_rule = 1
    found = {name: calls.count(name) - (matmuls_of_the_rule if name == "contract" else 0) for name in again}
    assert found == again


@pytest.mark.parametrize("policy", ["save_matmuls", "by_cost", lambda op: op.name in ("tanh", "sin")])
def test_policies_with_other_transforms_inside(policy):
    weights = fd.tensor(W, device=fd.Device.numpy())  # nothing to compile
    data = fd.tensor(X, device=fd.Device.numpy())

    def fn(x):
        inner = fd.grad(lambda y: ops.tanh(y @ weights).sum())(x)
        rows = vmap(lambda r: ops.tanh(r @ weights))(x)
        compiled = jit(lambda z: ops.sin(z @ weights))(x)
        nested = checkpoint(lambda z: ops.tanh(z @ weights), policy)(x)
        return (inner * rows * compiled * nested).sum()

    plain = fd.grad(fn)(data)
    np.testing.assert_array_equal(fd.grad(checkpoint(fn, policy))(data).numpy(), plain.numpy())
    np.testing.assert_allclose(jit(fd.grad(checkpoint(fn, policy)))(data).numpy(), plain.numpy(), rtol=1e-9)
    np.testing.assert_allclose(fd.grad(jit(checkpoint(fn, policy)))(data).numpy(), plain.numpy(), rtol=1e-9)
    second = lambda f: fd.grad(lambda x: (fd.grad(f)(x) * x).sum())(data).numpy()
    np.testing.assert_allclose(second(checkpoint(fn, policy)), second(fn), rtol=1e-9)
    over = lambda f: vmap(fd.grad(lambda x: f(x.reshape(1, 4))))(data).numpy()
    np.testing.assert_allclose(over(checkpoint(fn, policy)), over(fn), rtol=1e-9)
    forward = lambda f: jvp(fd.grad(f), (data,), (data,))[1].numpy()
    np.testing.assert_allclose(forward(checkpoint(fn, policy)), forward(fn), rtol=1e-9)


def test_a_run_that_takes_another_way_computes():
    turns = iter([True, False])

    def fn(x, w):
        return (ops.tanh(x @ w) if next(turns) else ops.sin(x @ w)).sum()

    x = tracked(X)
    y = checkpoint(fn, lambda op: op.name in ("tanh", "sin"))(x, fd.tensor(W))
    expected = jax.grad(lambda x: jnp.sin(x @ W).sum())(X)
    np.testing.assert_allclose(y.backward()[x].numpy(), expected, rtol=1e-10)


def test_an_unknown_policy_is_refused():
    with pytest.raises(fd.errors.ArgumentError, match="save_nothing"):
        checkpoint(layer, "save_some")
    with pytest.raises(fd.errors.ArgumentTypeError, match="expected a function"):
        checkpoint(3)


# --- memory


def kept_by(policy):
    """Which intermediates are alive after forward."""
    alive = {}

    def note(name, x):
        alive.setdefault(name, weakref.ref(fd.dispatch.base_tensor(x)._value))
        return x

    def fn(x, w):
        h = note("matmul", x @ w)
        t = note("tanh", ops.tanh(h))
        return (t * note("sin", ops.sin(x))).sum()

    y = checkpoint(fn, policy)(tracked(X), tracked(W))
    y.numpy()
    return {name for name, ref in alive.items() if ref() is not None}, y


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("save_nothing", set()), ("save_matmuls", {"matmul"}), ("save_everything", {"tanh", "sin"})],
)
def test_what_stays_alive_for_backward(policy, expected):
    alive, loss = kept_by(policy)
    assert alive == expected
    loss.backward()


def test_the_graph_dies_by_reference_count():
    gc.collect()
    gc.disable()
    try:
        x = tracked(X)
        value = weakref.ref(fd.dispatch.base_tensor(x)._value)
        y = checkpoint(lambda x: ops.tanh(x).sum(), "save_matmuls")(x * 2)
        y.backward()
        del x, y
        assert value() is None
    finally:
        gc.enable()


def test_a_compiled_program_computes_again_too():
    def program(fn):
        return jax.jit(lambda a: [x.jax() for x in fn(fd.tensor(a))]).lower(np.ones(3)).as_text()

    def chain(x):
        return ops.tanh(ops.sin(ops.exp(x) * 2) * 3).sum()

    plain = program(jit(fd.value_and_grad(chain)))
    for fn in (
        jit(fd.value_and_grad(checkpoint(chain))),
        fd.value_and_grad(jit(checkpoint(chain))),
        fd.value_and_grad(checkpoint(jit(chain))),
    ):
        text = program(fn)
        assert "optimization_barrier" in text  # or XLA would merge the second run with the first
        assert text.count("stablehlo.exponential") > plain.count("stablehlo.exponential")
    assert "optimization_barrier" not in plain


def test_a_nested_checkpoint_keeps_what_it_reaches_after_the_level_has_closed():
    """The pullback of vjp runs after its level; the inner closure was taken for a constant, and half the gradient lost."""
    remat = fd.checkpoint
    x = fd.tensor(0.7)

    def half_square(x):
        return remat(lambda y: remat(lambda z: z * x)(y) + 0.0)(x * 0.5)

    for gradient in (fd.grad(half_square)(x), fd.jacrev(half_square)(x), fd.vjp(half_square, x)[1](1.0)[0]):
        np.testing.assert_allclose(gradient.item(), 0.7, rtol=1e-6)
