"""JAX functions in functad, functad functions in JAX, and tensors as pytrees of JAX."""

import functools

import jax
import jax.numpy as jnp
import jax.scipy.special
import numpy as np
import pytest

import functad as fd
from functad import ops
from functad.transforms import control_flow
from functad.transforms.checkpoint import checkpoint
from functad.transforms.custom import custom_jvp, custom_vjp
from functad.transforms.forward import jvp
from functad.transforms.interop import from_jax, to_jax
from functad.transforms.jit import jit
from functad.transforms.vmap import vmap

RNG = np.random.default_rng(0)
XS = np.linspace(0.3, 1.7, 4)


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


def tracked(data):
    return fd.tensor(data, device=fd.Device.cpu().autodiff()).require_grad()


def jax_fn(x):
    return jnp.sin(x) * jnp.exp(x)


# --- from_jax


ROUTES = {
    "value": (lambda f: f, lambda f: f),
    "grad": (fd.grad, jax.grad),
    "jvp": (lambda f: lambda x: jvp(f, (x,), (2.0,))[1], lambda f: lambda x: jax.jvp(f, (x,), (2.0,))[1]),
    "jit": (jit, jax.jit),
    "checkpoint": (checkpoint, jax.checkpoint),
    "vmap": (
        lambda f: lambda x: (vmap(f)(fd.numpy.stack([x, x * 2])) * fd.tensor([1.0, 2.0])).sum(),
        lambda f: lambda x: (jax.vmap(f)(jnp.stack([x, x * 2])) * jnp.array([1.0, 2.0])).sum(),
    ),
}


@pytest.mark.parametrize("outer", ["grad", "jvp", "jit", "checkpoint", "vmap"])
@pytest.mark.parametrize("inner", ["value", "grad", "jvp", "jit", "vmap"])
def test_from_jax_under_pairs_of_transforms(inner, outer):
    (inner, jax_inner), (outer, jax_outer) = ROUTES[inner], ROUTES[outer]
    found = outer(inner(from_jax(jax_fn)))(fd.tensor(0.7)).numpy()
    np.testing.assert_allclose(found, jax_outer(jax_inner(jax_fn))(0.7), rtol=1e-10)


def test_from_jax_in_object_style():
    w, x = tracked(RNG.normal(size=(4, 3))), RNG.normal(size=(5, 4))
    loss_of = lambda x, w: jax.nn.logsumexp(x @ w, axis=-1).sum()
    f = from_jax(loss_of)
    expected = jax.grad(loss_of, argnums=1)(x, w.numpy())
    for _ in range(2):
        np.testing.assert_allclose(f(x, w).backward()[w].numpy(), expected, rtol=1e-10)
    assert f(x, w.without_autodiff()).is_tracked is False


def test_from_jax_of_third_order():
    ours, theirs = from_jax(jax_fn), jax_fn
    for _ in range(3):
        ours, theirs = fd.grad(ours), jax.grad(theirs)
    np.testing.assert_allclose(ours(0.7).numpy(), theirs(0.7), rtol=1e-10)


def test_from_jax_with_pytrees_static_arguments_integers_and_keywords():
    traces = []

    def fn(params, n, idx, *, mode, scale=1.0):
        traces.append(1)
        out = params["w"][idx] * n * scale
        return {"out": out if mode == "sin" else -out, "parts": (params["b"][0] + 1, idx + 1), "none": None}

    f = from_jax(fn, static_argnums=1, static_argnames="mode")
    w, b = tracked(XS), tracked(2.0)
    params = {"w": w, "b": [b]}
    out = f(params, 3, fd.tensor([0, 0, 2]), mode="sin")
    assert out["none"] is None
    assert out["parts"][1].tolist() == [1, 1, 3]
    assert out["parts"][1].dtype.kind == "i"
    np.testing.assert_allclose(out["out"].numpy(), XS[[0, 0, 2]] * 3)
    loss = out["out"].sum() * 10 + out["parts"][0]
    grads = loss.backward()
    assert grads[w].tolist() == [60.0, 0.0, 30.0, 0.0]
    assert grads[b].item() == 1.0
    count = len(traces)
    f(params, n=3, idx=fd.tensor([1, 1, 2]), mode="sin")["out"].sum().backward()
    assert f(params, 3, fd.tensor([1, 1, 2]), scale=2.0, mode="neg")["out"].tolist() == (-6 * XS[[1, 1, 2]]).tolist()
    after = len(traces)
    assert after > count  # a new value of a static argument
    f(params, 3, fd.tensor([1, 3, 2]), scale=3.0, mode="neg")
    f(params, 3, fd.tensor([3, 1, 2]), mode="sin")["out"].sum().backward()
    assert len(traces) == after
    with pytest.raises(fd.errors.ArgumentTypeError, match="hashable"):
        f(params, [3], fd.tensor([1]), mode="sin")


def test_from_jax_traces_once_however_it_is_used():
    traces = []
    f = from_jax(lambda x: traces.append(1) or jnp.sin(x))
    x = tracked(XS)
    for step in range(3):
        f(x).sum().backward()
        fd.grad(lambda x: f(x).sum())(XS)
        if step == 0:
            count = len(traces)
    assert len(traces) == count


def test_from_jax_keeps_python_numbers_weak():
    f = from_jax(lambda x, k: x * k)
    x = fd.tensor([1.0], dtype="bfloat16")
    assert f(x, 2.0).dtype == x.dtype
    assert f(x, 2).dtype == x.dtype
    assert from_jax(lambda: jnp.ones(3))().shape == (3,)


def test_from_jax_on_functions_of_jax():
    q, k, v = (RNG.normal(size=(1, 3, 1, 2)) for _ in range(3))
    for fn, args in (
        (jax.nn.dot_product_attention, (q, k, v)),
        (jax.scipy.special.gammaln, (XS,)),
        (lambda a: jnp.linalg.eigh(a @ a.T)[0], (RNG.normal(size=(3, 3)),)),
        (lambda x: jax.lax.scan(lambda c, t: (c * t, c + t), 1.0, x), (XS,)),
        (lambda k, x: x * jax.random.normal(k, x.shape), (jax.random.key(0), XS)),
    ):
        f = from_jax(fn)
        total = lambda out: sum(jnp.sum(x * x) for x in jax.tree.leaves(out))
        for ours, theirs in zip(jax.tree.leaves(f(*args)), jax.tree.leaves(jax.jit(fn)(*args)), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10)
        last = len(args) - 1
        ours = fd.grad(lambda x: sum((o * o).sum() for o in fd.tree.leaves(f(*args[:last], x))))(args[last])  # noqa: B023  # called in the same round of the loop
        theirs = jax.jit(jax.grad(lambda x: total(fn(*args[:last], x))))(args[last])  # noqa: B023  # called in the same round of the loop
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-8)


def test_jax_rules_of_a_foreign_function_are_used():
    @jax.custom_jvp
    def f(x):
        return x * x

    f.defjvp(lambda p, t: (p[0] * p[0], 100 * p[0] * t[0]))
    g = from_jax(f)
    assert fd.grad(g)(3.0).item() == 300.0
    assert fd.grad(fd.grad(g))(3.0).item() == 100.0
    assert jvp(g, (3.0,), (1.0,))[1].item() == 300.0


def test_from_jax_on_the_numpy_device():
    x = fd.tensor(1.0, device=fd.Device.numpy())
    with pytest.raises(fd.errors.DeviceError, match="to_device"):
        from_jax(jnp.sin)(x)
    assert from_jax(jnp.sin)(x.to_device(fd.Device.cpu())).item() == np.sin(1.0)
    with fd.set_default_device(fd.Device.numpy()):
        assert from_jax(jnp.sin)(1.0).item() == np.sin(1.0)


def test_what_from_jax_refuses():
    with pytest.raises(fd.errors.ArgumentTypeError, match=r"\['mode'\].*static"):
        from_jax(lambda x, mode: x)(1.0, mode="sin")
    with pytest.raises(fd.errors.ArgumentTypeError, match="expected a function"):
        from_jax(3)
    with pytest.raises(TypeError, match="float"):  # JAX's own error, as it is
        from_jax(lambda x: float(x))(1.0)  # noqa: PLW0108  # a function that calls another is what is tested
    w = tracked(1.0)
    with pytest.raises(fd.errors.ArgumentTypeError, match="from_jax"):
        from_jax(lambda x: x * jnp.sin(w))(2.0)


# --- to_jax


def ours(x):
    return ops.sin(x) * ops.exp(x)


JAX_ROUTES = {
    "grad": jax.grad,
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": jax.hessian,
    "jit": jax.jit,
    "checkpoint": jax.checkpoint,
    "vmap": lambda f: lambda x: (jax.vmap(f)(jnp.stack([x, x * 2])) * jnp.array([1.0, 2.0])).sum(),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (2.0,))[1],
    "linearize": lambda f: lambda x: jax.linearize(f, x)[1](2.0),
    "vjp": lambda f: lambda x: jax.vjp(f, x)[1](2.0)[0],
}


@pytest.mark.parametrize("outer", ["grad", "jit", "vmap", "jvp"])
@pytest.mark.parametrize("inner", ["grad", "jacfwd", "vmap"])
def test_to_jax_under_pairs_of_transforms(inner, outer):
    inner, outer = JAX_ROUTES[inner], JAX_ROUTES[outer]
    np.testing.assert_allclose(outer(inner(to_jax(ours)))(0.7), outer(inner(jax_fn))(0.7), rtol=1e-10)


@pytest.mark.parametrize("route", JAX_ROUTES)
def test_to_jax_under_each_transform(route):
    np.testing.assert_allclose(JAX_ROUTES[route](to_jax(ours))(0.7), JAX_ROUTES[route](jax_fn)(0.7), rtol=1e-10)


def marked():
    f = custom_vjp(lambda x: x * x)
    f.defvjp(lambda x: (x * x, x), lambda x, g: (100 * x * g,))
    return f


def marked_jvp():
    f = custom_jvp(lambda x: x * x)
    f.defjvp(lambda p, t: (p[0] * p[0], 100 * p[0] * t[0]))
    return f


WRAPPED = {
    "plain": lambda f: f,
    "jit": jit,
    "checkpoint": checkpoint,
    "vmap": lambda f: lambda x: vmap(f)(x.reshape(1))[0],
    "jit of vmap": lambda f: lambda x: jit(vmap(f))(x.reshape(1))[0],
    "vmap of jit": lambda f: lambda x: vmap(jit(f))(x.reshape(1))[0],
    "from_jax": lambda f: from_jax(to_jax(f)),
}


@pytest.mark.parametrize("wrap", WRAPPED)
@pytest.mark.parametrize("make", [marked, marked_jvp])
def test_functad_rules_are_used_in_every_order(make, wrap):
    f = to_jax(WRAPPED[wrap](make()))
    assert f(3.0 * jnp.ones(())) == 9.0
    assert jax.grad(f)(3.0) == 300.0
    assert jax.jit(jax.grad(jax.grad(f)))(3.0) == 100.0
    assert jax.hessian(f)(3.0) == 100.0
    if make is marked_jvp:
        assert jax.jacfwd(f)(3.0) == 300.0
    else:
        with pytest.raises(TypeError, match="forward-mode"):  # JAX has it so, too
            jax.jacfwd(f)(3.0)
    assert jax.vmap(jax.grad(f))(XS).tolist() == (100 * XS).tolist()


def test_a_rule_that_is_not_linear():
    clip = custom_vjp(lambda x: x)
    clip.defvjp(lambda x: (x, None), lambda res, g: (ops.clip(g, -1.0, 1.0),))
    assert jax.grad(to_jax(lambda x: 100 * clip(x * x)))(3.0) == 6.0
    per_row = jax.jit(jax.vmap(jax.grad(to_jax(lambda x, n: 100 * clip(x * x) + n)), in_axes=(0, None)))
    assert per_row(XS, 3).tolist() == (2 * XS).tolist()


def test_stop_gradient_and_no_grad_are_kept():
    f = to_jax(lambda x: x * fd.stop_gradient(x))
    assert (jax.grad(f)(3.0), jax.grad(jax.grad(f))(3.0), jax.jacfwd(f)(3.0)) == (3.0, 0.0, 3.0)

    def g(x):
        with fd.no_grad():
            y = x * x
        return x * y

    assert jax.grad(to_jax(g))(3.0) == 9.0


def test_functad_conventions_hold_under_jax():
    safe = to_jax(lambda x: ops.where(x > 0, ops.sqrt(x), x))
    assert jax.grad(safe)(0.0) == 1.0
    assert jax.jacfwd(safe)(0.0) == 1.0
    assert jax.grad(safe)(4.0) == 0.25
    assert jax.grad(to_jax(ops.sqrt))(0.0) == np.inf
    assert jax.grad(to_jax(lambda x: -ops.sqrt(x)))(0.0) == -np.inf
    norm = to_jax(lambda x: ops.sqrt((x * x).sum()))
    np.testing.assert_allclose(jax.hessian(norm)(XS), jax.hessian(jnp.linalg.norm)(XS), atol=1e-12)
    assert jax.vmap(jax.grad(safe))(np.array([0.0, 4.0])).tolist() == [1.0, 0.25]
    inside = to_jax(lambda x: vmap(lambda r: ops.where(r > 0, ops.sqrt(r), r))(x).sum())
    assert jax.grad(inside)(np.array([0.0, 4.0])).tolist() == [1.0, 0.25]
    assert jax.grad(to_jax(lambda x: x.max()))(np.ones(4)).tolist() == [0.25] * 4
    half = np.float16([0.0, 4.0])
    assert jax.grad(lambda x: safe_sum(x))(half).tolist() == [1.0, 0.25]  # noqa: PLW0108  # a function that calls another is what is tested


def looping(m, scan, cond):
    def fn(x):
        total, parts = scan(lambda c, t: (m.sin(c) * t, c * x), x, m.asarray(XS))
        return cond(x > 0, lambda t: t * x, lambda t: t, total) + m.sum(parts)

    return fn


def scattering(m):
    def fn(x):
        rows = m.asarray(XS) * x
        return m.prod(rows.at[m.asarray([0, 0, 2])].set(rows[1:] * x) + x)

    return fn


@pytest.mark.parametrize(
    ("fn", "plain"),
    [
        (looping(fd.numpy, control_flow.scan, control_flow.cond), looping(jnp, jax.lax.scan, jax.lax.cond)),
        (scattering(fd.numpy), scattering(jnp)),
    ],
)
def test_loops_choices_and_updates(fn, plain):
    f = to_jax(fn)
    every = lambda f: jax.jit(lambda x: (jax.grad(f)(x), jax.hessian(f)(x), jax.vmap(jax.grad(f))(x[None])))
    for ours, theirs in zip(every(f)(0.7), every(plain)(0.7), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8)


def safe_sum(x):
    return to_jax(lambda x: ops.where(x > 0, ops.sqrt(x), x).sum())(x)


def test_to_jax_with_pytrees_integers_and_constants():
    w = fd.tensor(XS)

    def fn(params, n, flag, *, scale):
        assert flag == "on"
        return {"y": (params["a"] * w * scale).sum() + n, "n": n + 1, "name": "out"}

    f = to_jax(fn)
    out = f({"a": jnp.ones(4)}, jnp.asarray(3), "on", scale=2.0)
    assert isinstance(out["y"], jax.Array)
    assert (out["n"], out["name"]) == (4, "out")
    grad = jax.grad(lambda p: f(p, jnp.asarray(3), "on", scale=2.0)["y"])({"a": jnp.ones(4)})
    np.testing.assert_allclose(grad["a"], 2 * XS)

    def floats_and_ints(p, n):
        out = f(p, n, "on", scale=2.0)
        return [out["y"], out["n"]]

    pull = jax.vjp(floats_and_ints, {"a": jnp.ones(4)}, 3)[1]
    grads = pull([1.0, np.zeros((), jax.dtypes.float0)])
    np.testing.assert_allclose(grads[0]["a"], 2 * XS)
    assert jax.jit(lambda p, n: f(p, n, "on", scale=2.0)["n"])({"a": jnp.ones(4)}, 3) == 4


@pytest.mark.parametrize("mode", [False, True], ids=["x32", "x64"])
def test_to_jax_takes_arrays_of_numpy_in_every_transform(mode):
    """Under jax.grad and jax.vmap their 64 bits were refused; without x64 they count as 32, as everywhere."""
    with fd.enable_x64(mode):
        w, labels, targets = jnp.ones((2, 3), "float32"), np.array([0, 1]), np.full((2, 3), 2.0)
        grads = jax.grad(to_jax(fd.nn.functional.cross_entropy))(w, labels)
        np.testing.assert_allclose(grads, [[-1 / 3, 1 / 6, 1 / 6], [1 / 6, -1 / 3, 1 / 6]], rtol=1e-6)
        loss = to_jax(lambda w, y: ((w - y) ** 2).sum())
        for f in (jax.grad(loss), jax.jit(jax.grad(loss))):
            assert f(w, targets).tolist() == [[-2.0] * 3] * 2
        assert jax.vmap(loss)(w, targets).tolist() == [3.0, 3.0]
        pushed = jax.jvp(loss, (w, jnp.asarray(targets)), (w, np.ones_like(jnp.asarray(targets))))
        assert [x.item() for x in pushed] == [6.0, 0.0]
    with fd.enable_x64(False), pytest.raises(fd.errors.DTypeError, match="does not fit int32"):
        jax.grad(loss)(jnp.ones(1), np.array([2**40]))


def test_to_jax_without_tracing_runs_ordinary_python():
    assert to_jax(lambda x: x * 2 if x > 0 else -x)(jnp.asarray(-3.0)) == 3.0
    with pytest.raises(fd.errors.ConcreteValueError, match="to_jax"):
        jax.grad(to_jax(lambda x: x * 2 if x > 0 else -x))(3.0)
    assert isinstance(to_jax(ops.sin)(np.ones(3)), jax.Array)
    assert isinstance(to_jax(ops.sin)(fd.ones(3)), jax.Array)


def test_to_jax_does_not_cut_gradients_of_tracked_tensors():
    w = tracked(2.0)
    with pytest.raises(fd.errors.ArgumentTypeError, match="silently"):
        to_jax(lambda x: x * w)(jnp.ones(3))
    with pytest.raises(fd.errors.ArgumentTypeError, match="silently"):
        jax.grad(to_jax(lambda x: x * w))(3.0)
    with pytest.raises(fd.errors.ArgumentTypeError, match="silently"):
        to_jax(ops.sin)(w)
    assert jax.grad(to_jax(lambda x: x * w.without_autodiff()))(3.0) == 2.0


def test_inside_a_jax_training_loop():
    x, y = RNG.normal(size=(20, 3)), RNG.normal(size=20)

    @to_jax
    def loss(w, x, y):
        return ((ops.tanh(x @ w) - y) ** 2).mean()

    def plain(w, x, y):
        return ((jnp.tanh(x @ w) - y) ** 2).mean()

    results = []
    for fn in (loss, plain):
        step = jax.jit(lambda w: w - 0.1 * jax.grad(fn)(w, x, y))  # noqa: B023  # called in the same round of the loop
        w = np.zeros(3)
        for _ in range(5):
            w = step(w)
        results.append(w)
    np.testing.assert_allclose(*results, rtol=1e-10)
    per_example = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(w, x, y)
    np.testing.assert_allclose(per_example, jax.vmap(jax.grad(plain), in_axes=(None, 0, 0))(w, x, y), rtol=1e-8)


def test_back_and_forth():
    f = from_jax(to_jax(from_jax(jax_fn)))
    np.testing.assert_allclose(fd.grad(fd.grad(f))(0.7).numpy(), jax.grad(jax.grad(jax_fn))(0.7), rtol=1e-10)
    np.testing.assert_allclose(jit(fd.grad(f))(0.7).numpy(), jax.grad(jax_fn)(0.7), rtol=1e-10)
    g = to_jax(fd.grad(from_jax(jax_fn)))
    np.testing.assert_allclose(jax.grad(g)(0.7), jax.grad(jax.grad(jax_fn))(0.7), rtol=1e-10)


# --- pytrees


def test_tensors_are_pytrees_of_jax(device):
    x = fd.tensor(XS, device=device)
    assert jax.tree.map(lambda a: a * 2, x).tolist() == (2 * XS).tolist()
    assert isinstance(jax.tree.map(lambda a: a * 2, x), fd.Tensor)
    assert isinstance(jax.tree.leaves(x)[0], jax.Array)
    out = jax.jit(lambda t: {"y": t["x"] * 2 + 1})({"x": x})
    assert isinstance(out["y"], fd.Tensor)
    assert out["y"].tolist() == (XS * 2 + 1).tolist()
    assert (out["y"] + fd.ones(4)).shape == (4,)
    assert jax.block_until_ready(x).tolist() == XS.tolist()


def test_unflattening_takes_whatever_jax_puts_there():
    structure = jax.tree.structure(fd.ones(3))
    for thing in (None, object(), "x", jax.ShapeDtypeStruct((2,), np.float32), 3, np.ones(2)):
        assert isinstance(jax.tree.unflatten(structure, [thing]), fd.Tensor)
    shapes = jax.eval_shape(lambda t: t @ t.T, fd.ones((2, 3)))
    assert shapes.shape == (2, 2)
    jax.tree.transpose(structure, jax.tree.structure([0, 0]), jax.tree.map(lambda a: [a, a], fd.ones(3)))


def test_jax_transforms_take_tensors():
    x = fd.tensor(XS)
    g = jax.grad(lambda t: (t * t).sum().jax())(x)
    assert isinstance(g, fd.Tensor)
    np.testing.assert_allclose(g.numpy(), 2 * XS)
    np.testing.assert_allclose(jax.grad(lambda t: (t * fd.stop_gradient(t)).sum().jax())(x).numpy(), XS)
    rows = jax.vmap(lambda t: t.sum())(fd.ones((3, 4)))
    assert rows.tolist() == [4.0] * 3
    carried = jax.lax.fori_loop(0, 3, lambda i, t: t * 2, fd.ones(2))
    assert carried.tolist() == [8.0, 8.0]


def test_tracked_tensors_do_not_pass_silently():
    w = tracked(XS)
    for use in (lambda: jax.tree.map(lambda a: a, w), lambda: jax.jit(lambda t: t)(w), functools.partial(jnp.sin, w)):
        with pytest.raises(fd.errors.ArgumentTypeError, match="from_jax"):
            use()
    with pytest.raises(fd.errors.ArgumentTypeError, match="from_jax"):
        fd.grad(lambda x: jax.jit(jnp.sum)(x))(XS)  # noqa: PLW0108  # a function that calls another is what is tested
    jax.tree.map(lambda a: a, w.without_autodiff())


def test_a_choice_for_each_row_is_differentiated_by_jax():
    """JAX masks the operands of a mapped choice with stop_gradient, which it cannot transpose."""
    square_or_negate = fd.to_jax(lambda x: fd.cond(x > 0, lambda y: y * y, lambda y: -y, x))
    v = jnp.array([1.0, -2.0, 3.0])

    def loss(v):
        return jax.vmap(square_or_negate)(v).sum()

    np.testing.assert_array_equal(jax.grad(loss)(v), [2.0, -1.0, 6.0])
    np.testing.assert_array_equal(jax.jit(jax.grad(loss))(v), [2.0, -1.0, 6.0])
    np.testing.assert_array_equal(jax.hessian(loss)(v), np.diag([2.0, 0.0, 2.0]))
    loops = fd.to_jax(
        lambda x: fd.scan(lambda c, _: (fd.cond(c > 1, fd.ops.log, lambda y: y * y, c), None), x, None, 3)[0]
    )
    safe = jax.grad(lambda v: jax.vmap(loops)(v).sum())(jnp.array([0.0, 0.5]))
    np.testing.assert_allclose(safe, [0.0, 8 * 0.5**7])


@pytest.mark.parametrize(
    ("fn", "kind", "note"),
    [
        (lambda v: v if v.sum() > 0 else -v, jax.errors.TracerBoolConversionError, "jnp.where or jax.lax.cond"),
        (lambda v: v @ v, TypeError, "called with float64[2, 3]"),
    ],
)
def test_errors_inside_a_jax_function_name_it(fn, kind, note):
    with pytest.raises(kind) as raised:
        from_jax(fn)(np.ones((2, 3)))
    text = raised.value.__notes__[-1]
    assert note in text and f"at {__file__}:{fn.__code__.co_firstlineno}" in text
