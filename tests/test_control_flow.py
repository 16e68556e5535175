"""Loops and choices: JAX's values and derivatives, in every style, on both backends."""

import gc
import math
import weakref
from functools import cache
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import compiles

import functad as fd
import functad.numpy as fnp
from functad.backends.trace import open_trace
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcreteValueError,
    DTypeError,
    NotDifferentiableError,
    ShapeError,
    StructureError,
)
from functad.levels import deeper
from functad.transforms.checkpoint import checkpoint
from functad.transforms.control_flow import cond, fori_loop, scan, switch, while_loop
from functad.transforms.custom import custom_vjp
from functad.transforms.forward import jvp, linearize
from functad.transforms.jacobian import hessian, jacfwd, jacrev
from functad.transforms.scan_op import scan_op
from functad.transforms.vjp import vjp
from functad.transforms.vmap import vmap

OURS = SimpleNamespace(
    np=fnp,
    grad=fd.grad,
    jvp=jvp,
    vmap=vmap,
    scan=scan,
    cond=cond,
    switch=switch,
    while_loop=while_loop,
    fori_loop=fori_loop,
)
JAX = SimpleNamespace(
    np=jnp, grad=jax.grad, jvp=jax.jvp, vmap=jax.vmap, scan=jax.lax.scan, cond=jax.lax.cond, switch=jax.lax.switch,
    while_loop=jax.lax.while_loop, fori_loop=jax.lax.fori_loop,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _x64(x64):
    """Float64 throughout."""


def array(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape)


def close(found, expected, rtol=1e-9):
    found, expected = fd.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for x, y in zip(found, expected, strict=True):
        assert isinstance(x, fd.Tensor)
        assert (x.shape, x.dtype) == (y.shape, y.dtype)
        np.testing.assert_allclose(x.numpy(), y, rtol=rtol, atol=1e-11)


# --- functions of `m`, a namespace of functad's or of JAX's functions, and of float arguments


def rnn(m, w, u, b, h, xs):
    def step(h, x):
        h = m.np.tanh(h @ w.T + x @ u + b)  # w.T does not change from row to row
        return h, h

    h, hs = m.scan(step, h, xs)
    return (h * h).sum() + (hs**3).sum()


def running_sums(m, xs):
    total, sums = m.scan(lambda c, x: (c + x, c + x), 0.0, xs)
    return (sums * sums).sum() * total


def logistic(m, r, x):
    x, _ = m.scan(lambda x, _: (r * x * (1 - x), None), x, None, length=6)
    return x


def reverse(m, c, xs):
    last, ys = m.scan(lambda c, x: (c * m.np.sin(x), c * x), c, xs, reverse=True)
    return last + (ys * m.np.cos(xs)).sum()


def counters(m, c, xs):
    def step(carry, x):
        i, c = carry
        return (i + 1, c * x + i), (i, c * i)

    (n, c), (numbers, ys) = m.scan(step, (0, c), xs)
    return c * n + (ys * numbers).sum()


def pytrees(m, p, s, xs):
    def step(carry, x):
        a, (b, none) = carry["a"], carry["b"]
        y = m.np.sin(a * p["w"][0]) + x["k"]
        return {"a": y, "b": (b + x["q"][1], none)}, [y * b, {"y": y}, None]

    last, (first, second, none) = m.scan(step, {"a": s[0], "b": (s[1], None)}, xs)
    assert none is None
    return (last["a"] * last["b"][0]).sum() + (first * second["y"]).sum()


def nested(m, c, xs):
    def outer(c, row):
        inner, ys = m.scan(lambda d, x: (d * m.np.sin(c + x), d), c, row)
        return inner, (ys * c).sum()

    last, ys = m.scan(outer, c, xs)
    return last + ys.sum()


def choices(m, c, k, xs):
    def step(c, x):
        c = m.cond(x > 0, lambda c: c * k, lambda c: m.np.sin(c) + x, c)
        return m.switch((x * 3).astype(int), [lambda c: c * c, lambda c: c + k, lambda c: k * m.np.exp(c)], c), c

    last, ys = m.scan(step, c, xs)
    return last * ys.sum()


def shifted(m, w, x):
    """What moves comes to the first carry late; the third never moves, the last result is a constant."""
    (a, b, c), (ys, ones) = m.scan(lambda s, _: ((s[1], s[1] * w, s[2] * 2.0), (s[0], 1.0)), (0.0, x, 1.0), length=4)
    return a * a + b + c + (ys * ones).sum()


def counted(m, x, w):
    return m.fori_loop(2, 6, lambda i, c: m.np.tanh(c * w) + i * x, x)


def unrolled(m, c, xs):
    a, _ = m.scan(lambda c, x: (c * m.np.sin(x), None), c, xs, unroll=2)
    b, _ = m.scan(lambda c, x: (c + m.np.cos(c * x), None), c, xs, unroll=True)
    return a * b


def gradients_within(m, c, xs):
    def step(c, x):
        _, t = m.jvp(lambda z: m.np.exp(z * x), (c,), (x,))
        return m.grad(lambda z: m.np.sin(z * x) * c)(c) + t * 0.1, m.vmap(lambda z: z * c)(m.np.stack([x, c]))

    last, ys = m.scan(step, c, xs)
    return last + (ys * ys).sum()


XS = array(5)
TREE = ({"w": [0.7]}, (array(2), array(2, seed=1)), {"k": array(3), "q": (array(3, seed=2), array(3, 2))})
CASES = {
    rnn: (array(3, 3), array(2, 3), array(3), array(4, 3), array(5, 4, 2)),
    running_sums: (XS,),
    logistic: (1.7, 0.3),
    reverse: (0.8, XS),
    counters: (0.8, XS),
    pytrees: TREE,
    nested: (0.8, array(2, 3)),
    choices: (0.4, 0.9, XS),
    shifted: (0.9, 0.8),
    counted: (0.8, 0.5),
    unrolled: (0.8, XS),
    gradients_within: (0.8, XS),
}
CASES = {fn: jax.tree.map(np.asarray, args) for fn, args in CASES.items()}


def derivatives(m, fn, args):
    """The value, and first and second derivatives in both modes."""
    f = lambda *args: fn(m, *args)
    g = m.grad(f, tuple(range(len(args))))
    return (
        f(*args),
        g(*args),
        m.jvp(f, args, args),
        m.jvp(g, args, args)[1],
        m.grad(lambda *a: m.jvp(f, a, a)[1])(*args),
    )


def over_rows(m, fn, args):
    """Gradients row by row, and the gradient of the sum over rows."""
    f = lambda *args: fn(m, *args)
    g = m.grad(f, tuple(range(len(args))))
    rows = jax.tree.map(lambda x: np.stack([x, x * 0.5, x + 0.1]), args)
    mapped = lambda *args: m.vmap(f)(*args).sum()
    return m.vmap(g)(*rows), m.grad(mapped, tuple(range(len(args))))(*rows)


def all_of(m, fn, args):
    return derivatives(m, fn, args), over_rows(m, fn, args)


@cache
def expected(fn):
    return jax.jit(lambda: all_of(JAX, fn, CASES[fn]))()


every_case = pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)


@every_case
def test_values_and_derivatives_are_those_of_jax(fn):
    with fd.set_default_device(fd.Device.numpy()):
        close(all_of(OURS, fn, CASES[fn]), expected(fn))


@every_case
def test_compiled_they_are_those_of_jax(fn):
    with fd.set_default_device(fd.Device.cpu()):
        close(fd.jit(lambda: all_of(OURS, fn, CASES[fn]))(), expected(fn))


@pytest.mark.parametrize("fn", [counters, choices, shifted], ids=lambda fn: fn.__name__)
def test_on_xla_without_jit_they_are_those_of_jax(fn):
    close(derivatives(OURS, fn, CASES[fn]), expected(fn)[0])


def test_over_rows_on_xla_without_jit():
    close(over_rows(OURS, choices, CASES[choices]), expected(choices)[1])


@pytest.mark.parametrize("mapped", range(5))
def test_rows_of_one_argument(mapped):
    """The carry comes to have rows by what it meets; what has none is shared."""
    args = list(CASES[rnn])
    args[mapped] = np.stack([args[mapped], args[mapped] * 0.5])
    axes = tuple([0 if i == mapped else None for i in range(5)])
    found, theirs = (
        lambda m=m: m.vmap(m.grad(lambda *args: rnn(m, *args), (0, 1, 2, 3, 4)), axes)(*args) for m in (OURS, JAX)
    )
    with fd.set_default_device(fd.Device.numpy()):
        close(found(), jax.jit(theirs)())


def test_derivatives_of_a_jitted_loop(device):
    args = CASES[rnn]
    with fd.set_default_device(device):
        close(fd.grad(fd.jit(lambda *args: rnn(OURS, *args)), (0, 1, 2, 3, 4))(*args), expected(rnn)[0][1])


# --- scan


def test_object_style_backward_reaches_closures_carry_and_rows(device):
    args = CASES[rnn]
    leaves = [fd.tensor(x, device=device.autodiff()).require_grad() for x in args]
    grads = rnn(OURS, *leaves).backward()
    close([grads[x] for x in leaves], expected(rnn)[0][1])


def test_object_style_second_order(device):
    x = fd.tensor(0.3, device=device.autodiff(order=2)).require_grad()
    g = x.grad(logistic(OURS, 1.7, x).backward())
    second = x.grad(g.backward())
    close(second, jax.grad(jax.grad(lambda x: logistic(JAX, 1.7, x)))(0.3))


def test_every_transform_takes_a_scan():
    f, g = (lambda x, m=m: m.scan(lambda c, _: (m.np.sin(c * x) + c, c), x, length=3)[1] for m in (OURS, JAX))
    device = fd.Device.numpy()
    x = fd.tensor(array(2), device=device)
    theirs = lambda x: (
        jax.jacfwd(g)(x),
        jax.jvp(g, (x,), (x,))[1],
        jax.hessian(lambda x: g(x).sum())(x),
        jax.grad(jax.grad(jax.grad(lambda x: g(x).sum())))(x[0]),
    )
    jacobian, push, second, third = jax.jit(theirs)(array(2))
    close([jacrev(f)(x), jacfwd(f)(x)], [jacobian] * 2)
    close(linearize(f, x)[1](x), push)
    close(vjp(f, x)[1](fd.ones((3, 2), device=device))[0], jacobian.sum((0, 1)))
    close(hessian(lambda x: f(x).sum())(x), second)
    close(fd.grad(fd.grad(fd.grad(lambda x: f(x).sum())))(x[0]), third)


def test_checkpoint_outside_and_inside(device):
    body = lambda c, x: (fnp.sin(c * x) * c, None)
    x = fd.tensor(0.8, device=device)
    loops = [
        lambda x: scan(body, x, XS)[0],
        checkpoint(lambda x: scan(body, x, XS)[0]),
        lambda x: scan(checkpoint(body), x, XS)[0],
    ]
    expected = fd.grad(loops[0])(x), fd.grad(fd.grad(loops[0]))(x), jvp(loops[0], (x,), (x,))[1]
    for loop in loops[1:]:
        found = fd.grad(loop)(x), fd.grad(fd.grad(loop))(x), jvp(loop, (x,), (x,))[1]
        close(found, [y.numpy() for y in expected])


def test_custom_rules_in_a_body():
    @custom_vjp
    def thrice(x):
        return fnp.sin(x)

    thrice.defvjp(lambda x: (thrice(x), x), lambda x, g: (3 * g * fnp.cos(x),))
    found = fd.grad(lambda c: scan(lambda c, x: (thrice(c) * x, None), c, XS[:2])[0])(0.8)
    y = np.sin(0.8) * XS[0]
    np.testing.assert_allclose(found.item(), 9 * np.cos(y) * XS[1] * np.cos(0.8) * XS[0], rtol=1e-12)


def test_no_grad_and_stop_gradient_in_a_body(device):
    def paused(c):
        with fd.no_grad():
            return c * 1

    x = fd.tensor(1.3, device=device)
    for stop in (fd.stop_gradient, paused):
        found = fd.grad(lambda c, stop=stop: scan(lambda c, _: (stop(c) * c, None), c, length=3)[0])(x)
        np.testing.assert_allclose(found.item(), 1.3**7, rtol=1e-12)


def test_no_rows(device):
    args = fd.tensor(2.0, device=device), fd.tensor(np.zeros((0, 3)), device=device)
    f = lambda c, xs: scan(lambda c, x: (c * x.sum(), (c * x, 1)), c, xs)
    last, (ys, ones) = f(*args)
    assert (last.item(), ys.shape, ones.shape, ones.dtype) == (2.0, (0, 3), (0,), np.int64)
    grads = fd.grad(lambda c, xs: f(c, xs)[0] + f(c, xs)[1][0].sum(), (0, 1))(*args)
    assert grads[0].item() == 1
    assert grads[1].shape == (0, 3)
    assert jvp(lambda c: f(c, args[1])[0], (args[0],), (args[0],))[1].item() == 2
    assert fori_loop(5, 2, lambda i, x: x * 2, args[0]).item() == 2


@pytest.mark.parametrize(
    ("init", "xs", "body", "dtype"),
    [
        (0, np.ones(3, "float32"), lambda c, x: (c + x, x), "float32"),
        (0.0, np.ones(3, "float32"), lambda c, x: (c + x, x), "float32"),
        (0, np.ones(3), lambda c, x: (c / 2, x), "float64"),
        (0, np.ones(3, "int8"), lambda c, x: (c + 1, x), "int64"),
        (False, np.ones(3), lambda c, x: (c | (x > 0), x), "bool"),
        (np.float32(0), np.ones(3), lambda c, x: (1.0, x), "float32"),
        (np.int8(0), np.ones(3), lambda c, x: (1, x), "int8"),
    ],
)
def test_python_numbers_take_the_dtype_that_the_body_makes_of_them(init, xs, body, dtype, device):
    with fd.set_default_device(device):
        last, _ = scan(body, init, xs)
    assert last.dtype == dtype


def test_numpy_needs_no_x64_mode_for_float64():
    with fd.enable_x64(enabled=False):
        xs = fd.tensor(XS, dtype="float64", device=fd.Device.numpy())
        grads = fd.grad(lambda xs: scan(lambda c, x: (fnp.sin(c + x), c.argmax()), 0.0, xs)[0])(xs)
    assert grads.dtype == np.float64
    close(grads, jax.grad(lambda xs: jax.lax.scan(lambda c, x: (jnp.sin(c + x), None), 0.0, xs)[0])(XS))


def test_half_types_sum_the_cotangents_of_constants_in_float32(device):
    """300 ones in bfloat16 stop at 256 when every partial sum is rounded."""
    w = fd.tensor(1.0, dtype="bfloat16", device=device)
    g = fd.grad(lambda w: scan(lambda c, _: (c, w * 1), 0, length=300)[1].sum())(w)
    assert (g.item(), g.dtype) == (300.0, w.dtype)


def test_nothing_that_is_the_same_for_all_rows_is_saved_for_each_row(device):
    """h @ w.T saved the transpose for every row; a result that the rule reads is saved once."""
    shapes = []
    w, xs = (fd.tensor(x, device=device.autodiff()).require_grad() for x in (array(3, 3), array(5, 3)))

    def step(h, x):
        h = fnp.tanh(h @ w.T + x)
        return h, h

    _, hs = scan(step, fnp.zeros(3, device=device), xs)
    node = hs._context.parent
    shapes = sorted(x.shape for x in (*node.out, *node.inputs) if isinstance(x, fd.Tensor))
    assert shapes == [(3, 3), (5, 3), (5, 3)]  # w, and h before and after each step
    assert any(x is hs.inner() for x in node.out)


def test_graphs_are_freed_without_the_garbage_collector():
    w = fd.tensor(0.5).autodiff().require_grad()

    def run():
        big = fd.ones(100) * w
        out, _ = scan(lambda c, x: (c * x + big.sum(), c), w, XS)
        vmap(lambda p: cond(p, lambda: big, lambda: big * 2))(fd.tensor([True, False]))
        out.backward()
        return weakref.ref(big)

    run()
    gc.collect()
    gc.disable()
    try:
        assert run()() is None
    finally:
        gc.enable()


# --- compiling


def test_eager_loops_are_compiled_once():
    def run(i):
        w = fd.tensor(array(3, 3, seed=i))
        rate, k = 0.1 * i, fd.tensor(float(i))
        f = lambda w: scan(lambda c, x: (fnp.tanh(c @ w * rate + x * k), c * 0.0), fd.zeros(3), array(4, 3))[0].sum()
        return fd.grad(f)(w)

    assert compiles(lambda: [run(i) for i in (0, 1)]) > 0  # now the Python number is known to change
    assert compiles(lambda: [run(i) for i in range(2, 20)]) == 0
    assert len({run(i).numpy().tobytes() for i in range(2, 20)}) == 18


def test_a_numbers_place_in_a_program_counts():
    f = lambda a, b: scan(lambda c, x: (c * a + x * b, a), 1.0, XS)[0].item()
    g = lambda a, b: jax.lax.scan(lambda c, x: (c * a + x * b, a), 1.0, XS)[0]
    for a, b in [(2.0, 2.0), (3.0, 3.0), (2.0, 3.0), (3.0, 2.0), (2.0, 2.0), (0.0, -0.0), (-0.0, 0.0)]:
        np.testing.assert_allclose(f(a, b), g(a, b), rtol=1e-12)


def test_checkpointed_bodies_are_compiled_once():
    layer = checkpoint(lambda c, x: (fnp.sin(c * x), None))
    run = lambda i: fd.grad(lambda c: scan(layer, c, XS * i)[0])(0.5)
    assert compiles(lambda: run(1)) > 0
    assert compiles(lambda: [run(i) for i in range(2, 5)]) == 0


def test_a_loop_is_one_call():
    calls = []
    backend = fd.Device.cpu().base
    run = type(backend).run
    xs = fd.tensor(XS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(backend), "run", lambda self, op, *rest: (calls.append(op.name), run(self, op, *rest))[1])
        scan(lambda c, x: (fnp.sin(c) * x, c), xs[0], xs)
    assert calls[1:] == ["scan"]


def test_what_a_body_reaches_is_read_at_each_call(device):
    """Programs cached by the function's identity froze what it read from objects."""

    class Holder:
        k = fd.tensor(2.0, device=device)
        flag = True

    def step(c, _):
        return c * Holder.k if Holder.flag else c, None

    def run():
        return scan(step, Holder.k * 0 + 1, length=3)[0].item()

    assert run() == 8
    Holder.k = fd.tensor(3.0, device=device)
    assert run() == 27
    Holder.flag = False
    assert run() == 1


def test_a_closure_of_a_jitted_loop_is_read_at_each_call(device):
    k = fd.tensor(2.0, device=device)
    f = fd.jit(lambda x: scan(lambda c, _: (c * k, None), x, length=3)[0])
    x = fd.tensor(1.0, device=device)
    assert f(x).item() == 8
    k = fd.tensor(3.0, device=device)
    assert f(x).item() == 27
    assert f.compilations == 1


# --- cond and switch


def test_a_choice_with_a_value_runs_one_branch_as_ordinary_python(device):
    runs = []

    def power(x, n):
        runs.append(float(x))
        return cond(n > 0, lambda: x * power(x, n - 1), lambda: 1.0 + 0 * x)

    x = fd.tensor(2.0, device=device)
    assert power(x, 3).item() == 8
    assert runs == [2.0] * 4
    assert fd.grad(lambda x: power(x, 3))(x).item() == 12
    assert jvp(lambda x: cond(x > 0, lambda x: float(x) * x, lambda x: x, x), (x,), (x,))[1].item() == 4
    assert cond(x > 3, lambda x: 1 / 0, lambda x: {"y": x, "n": 1}, x)["n"].dtype == np.int64


@pytest.mark.parametrize("pred", [True, 1, 2.5, np.True_, np.array(3), fd.tensor(True), fd.tensor(0.5)])
def test_what_counts_as_true(pred):
    assert cond(pred, lambda: 1.0, lambda: 2.0).item() == 1
    assert fd.jit(lambda p: cond(p, lambda: 1.0, lambda: 2.0))(pred).item() == 1
    assert (
        cond(type(pred)(0) if isinstance(pred, (bool, int, float)) else pred * 0, lambda: 1.0, lambda: 2.0).item() == 2
    )


def test_an_index_out_of_range_takes_the_nearest_branch(device):
    branches = [lambda x: x, lambda x: x * x, lambda x: x * x * x]
    numbers = fd.tensor([-3, 0, 1, 2, 9], device=device)
    x = fd.tensor(2.0, device=device)
    expected = [2.0, 2.0, 4.0, 8.0, 8.0]
    assert [switch(int(i), branches, x).item() for i in numbers] == expected
    assert [switch(i, branches, x).item() for i in numbers] == expected
    jitted = fd.jit(lambda i: switch(i, branches, x))
    assert [jitted(i).item() for i in numbers] == expected
    assert vmap(lambda i: switch(i, branches, x))(numbers).tolist() == expected
    assert switch(7, branches[:1], x).item() == 2


POLES = {
    "sqrt": lambda m, x: m.cond(x > 0, m.np.sqrt, lambda x: 0 * x, x),
    "log / x": lambda m, x: m.cond(x == 0, lambda: x * 3, lambda: m.np.log(x) / x),
    "inf and nan": lambda m, x: m.switch(
        (x > 0).astype(int), [lambda: m.np.sin(x), lambda: x * (m.np.log(0 * x) + x / 0)]
    ),
    "scan": lambda m, x: m.cond(
        x > 0, lambda: m.scan(lambda c, _: (m.np.sqrt(c), None), x, length=2)[0], lambda: 2 * x
    ),
}


@cache
def at_poles(name):
    """Some points, and JAX's derivative there with one branch at a time."""
    points = [0.0, -1.0, -4.0] if name == "inf and nan" else [0.0, -1.0, 4.0]
    g = jax.jit(jax.grad(lambda x: POLES[name](JAX, x)))
    return points, np.stack([g(p) for p in points])


def gradients_by_row(f, x):
    return fd.grad(lambda x: vmap(f)(x).sum())(x), vmap(fd.grad(f))(x), jvp(vmap(f), (x,), (x * 0 + 1,))[1]


@pytest.mark.parametrize("name", POLES)
def test_the_branch_not_taken_does_not_poison_derivatives(name, device):
    """Zero times infinity, the field's most repeated report."""
    points, expected = at_poles(name)
    f = lambda x: POLES[name](OURS, x)
    run = gradients_by_row if device == fd.Device.numpy() else fd.jit(gradients_by_row, static_argnums=0)
    close(run(f, fd.tensor(points, device=device)), [expected] * 3)
    single = fd.jit(fd.grad(f))
    close([single(fd.tensor(p, device=device)) for p in points], list(expected))


def test_under_strict_ieee_it_does_not_either(device):
    """What the branch not taken gives is dropped, not multiplied by zero."""
    points, expected = at_poles("sqrt")
    with fd.strict_ieee():
        close(gradients_by_row(lambda x: POLES["sqrt"](OURS, x), fd.tensor(points, device=device)), [expected] * 3)


def test_tensors_that_branches_reach_have_gradients(device):
    w, k = (fd.tensor(v, device=device) for v in (2.0, 3.0))
    x = fd.tensor(XS, device=device)

    def loss(m, w, k, x):
        return m.vmap(lambda x: m.cond(x > 0, lambda: w * x, lambda: m.np.sin(k * w) * x))(x).sum()

    found = fd.grad(lambda *args: loss(OURS, *args), (0, 1, 2))(w, k, x)
    expected = jax.jit(jax.grad(lambda *args: loss(JAX, *args), (0, 1, 2)))(2.0, 3.0, XS)
    close(found, expected)
    leaf = w.autodiff().require_grad()
    close(leaf.grad(loss(OURS, leaf, k, x).backward()), expected[0])
    jitted = fd.jit(lambda p, w: cond(p, lambda: w * k, lambda: w))
    assert [fd.grad(lambda w, p=p: jitted(p, w))(w).item() for p in (True, False)] == [3.0, 1.0]


def test_branches_of_several_shapes_share_residuals_and_differentiate_twice(device):
    def f(m, i, x):
        branches = [lambda x: m.np.sin(x).sum() * x[0], lambda x: m.np.exp(x * x).sum(), lambda x: 3.0]
        return m.switch(i, branches, x) * x[1]

    x = fd.tensor(XS, device=device)
    ours = fd.jit(lambda i, x: (fd.grad(fd.jit(lambda x: f(OURS, i, x)))(x), hessian(lambda x: f(OURS, i, x))(x)))
    theirs = jax.jit(lambda i, x: (jax.grad(lambda x: f(JAX, i, x))(x), jax.hessian(lambda x: f(JAX, i, x))(x)))
    for i in range(3):
        close(ours(i, x), theirs(i, XS))


def test_python_numbers_adapt_to_the_other_branch():
    f = fd.jit(lambda p, x: cond(p, lambda: (1, x, 2), lambda: (x, 0.0, 3)))
    for p in (True, False):
        assert [t.dtype.name for t in f(p, fd.tensor(2.0, dtype="float32"))] == ["float32", "float32", "int64"]


# --- while_loop and fori_loop


def test_a_while_loop_with_values_is_a_python_loop(device):
    x = fd.tensor(1.1, device=device)
    f = lambda m, x: m.while_loop(lambda c: c[1] < 10, lambda c: (c[0] + 1, c[1] * c[1] + x), (0, x))[1]
    steps = []
    while_loop(lambda c: float(c) < 10, lambda c: (steps.append(float(c)), c * 2)[1], x)
    assert steps == [1.1, 2.2, 4.4, 8.8]
    y = [1.1]
    for _ in range(3):
        y.append(y[-1] ** 2 + 1.1)
    unrolled = lambda x: ((x * x + x) ** 2 + x) ** 2 + x
    np.testing.assert_allclose(f(OURS, x).item(), y[3], rtol=1e-12)
    close(fd.grad(lambda x: f(OURS, x))(x), jax.grad(unrolled)(1.1))
    close(fd.grad(fd.grad(lambda x: f(OURS, x)))(x), jax.grad(jax.grad(unrolled))(1.1))
    close(jvp(lambda x: f(OURS, x), (x,), (x,)), jax.jvp(unrolled, (1.1,), (1.1,)))


def test_a_compiled_while_loop_is_differentiable_in_forward_mode(device):
    def f(m, x, k):
        body = lambda c: {"i": c["i"] + 1, "y": m.np.sin(c["y"] * k) + x, "z": c["y"]}
        return m.while_loop(lambda c: (c["y"] < 1.5) & (c["i"] < 5), body, {"i": 0, "y": x, "z": 1.0})

    x, k = (fd.tensor(v, device=device) for v in (0.3, 1.2))
    compiled = fd.jit(lambda x, k: f(OURS, x, k))
    expected = jax.jvp(lambda x: f(JAX, x, 1.2), (0.3,), (1.0,))
    value, tangent = jvp(lambda x: compiled(x, k), (x,), (1.0,))
    close(value, expected[0])
    assert tangent["i"] is None
    close([tangent["y"], tangent["z"]], [expected[1]["y"], expected[1]["z"]])
    close(
        fd.jit(jacfwd(jacfwd(lambda x: f(OURS, x, k)["y"])))(x),
        jax.jacfwd(jax.jacfwd(lambda x: f(JAX, x, 1.2)["y"]))(0.3),
    )


def test_under_vmap_each_row_stops_by_itself(device):
    f = lambda m, n, x: m.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * x), (0, 1.0))[1]
    n, x = np.array([0, 1, 4]), np.array([2.0, 3.0, 0.5])
    ours, theirs = (lambda x, m=m: m.vmap(lambda n, x: f(m, n, x))(n, x) for m in (OURS, JAX))
    with fd.set_default_device(device):
        assert ours(x).tolist() == [1.0, 3.0, 0.0625]
        close(jvp(ours, (x,), (x,)), jax.jvp(theirs, (x,), (x,)))
        assert vmap(lambda n: fori_loop(0, n, lambda i, x: x + i, 0))(n).tolist() == [0, 0, 6]


def test_reverse_mode_of_a_compiled_while_loop_is_refused():
    f = fd.jit(lambda x: while_loop(lambda c: c < 10, lambda c: c * x, x))
    with pytest.raises(NotDifferentiableError, match=r"while_loop: .*Use fd.scan, or fd.fori_loop with bounds"):
        fd.grad(f)(2.0)
    g = fd.jit(lambda x, n: fori_loop(0, n, lambda i, c: c * x, x))
    with pytest.raises(NotDifferentiableError, match="fori_loop: a compiled loop"):
        fd.grad(g)(2.0, 3)
    assert g(2.0, 3).item() == 16
    assert fd.grad(lambda x: fd.stop_gradient(f(x)) * x)(2.0).item() == 16  # nothing asks for it


def test_bounds_with_values_make_a_scan(device):
    x = fd.tensor(1.5, device=device)
    f = lambda x, a, b: fori_loop(a, b, lambda i, c: c * x, x)
    for a, b in [(0, 3), (np.int64(2), 5), (fd.tensor(1, device=device), 4)]:
        np.testing.assert_allclose(fd.grad(f)(x, a, b).item(), 4 * 1.5**3, rtol=1e-12)
        np.testing.assert_allclose(fd.jit(fd.grad(lambda x: f(x, 0, 3)))(x).item(), 4 * 1.5**3, rtol=1e-12)
    assert fori_loop(0, np.int8(3), lambda i, c: i, np.int8(0)).dtype == np.int8
    assert fori_loop(0, 3, lambda i, c: c + 1.5, 2).item() == 6.5
    assert fori_loop(0, 3, lambda i, c: c + x, x, unroll=True).item() == 6


# --- refusals


def two(x):
    return fd.ones(2), x


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: scan(lambda c, x: c, 0.0, XS), ArgumentTypeError, r"a pair \(carry, y\), got a tensor float64"),
        (lambda: scan(3, 0.0, XS), ArgumentTypeError, "scan: expected a function, got 3"),
        (lambda: scan(two, 0.0, length=2), TypeError, "positional"),
        (lambda: scan(lambda c, x: ({"a": c["b"]}, x), {"b": 1.0}, XS), StructureError, "keep its structure"),
        (
            lambda: scan(lambda c, x: ({"a": [c["a"][0] * x]}, x), {"a": [np.float32(1)]}, XS),
            DTypeError,
            r"carry\['a'\]\[0\] must .* float32\[\] and comes out as float64\[\].*astype\('float32'\)",
        ),
        (
            lambda: scan(lambda c, x: (fnp.concatenate([c, fd.ones(1)]), x), np.ones(2), XS),
            ShapeError,
            r"scan: carry must keep its type .* as float64\[2\] and comes out as float64\[3\]",
        ),
        (lambda: scan(lambda c, x: (1.0, x), np.int32(0), XS), DTypeError, r"int32\[\] and comes out as float64\[\]"),
        (lambda: scan(lambda c, x: (c, x), 0, {"a": XS, "b": XS[:2]}), ShapeError, r"xs\['a'\] has 5, xs\['b'\] has 2"),
        (lambda: scan(lambda c, x: (c, x), 0, XS, length=4), ShapeError, "length is 4, but xs has 5"),
        (lambda: scan(lambda c, x: (c, x), 0), ArgumentError, "pass length"),
        (lambda: scan(lambda c, x: (c, x), 0, length=-1), ArgumentError, "must not be negative, got -1"),
        (lambda: scan(lambda c, x: (c, x), 0, length=2.0), ArgumentTypeError, "length must be an int, got 2.0"),
        (lambda: scan(lambda c, x: (c, x), 0, {"k": 1.0}), ShapeError, r"xs\['k'\] has shape \(\)"),
        (lambda: scan(lambda c, x: (c, x), 0, XS, unroll=-1), ArgumentError, "unroll"),
        (lambda: scan(lambda c, x: (c, x), {"k": "a"}, XS), ArgumentTypeError, r"carry\['k'\] is 'a' of type str"),
        (lambda: scan(lambda c, x: (c, "a"), 0, XS), ArgumentTypeError, r"returned 'a' of type str at \[1\]"),
        (lambda: scan(lambda c, x: (c if x > 0 else -c, x), 0, XS), ConcreteValueError, "scan runs the function once"),
        (lambda: cond(fd.ones(2) > 0, lambda: 1, lambda: 2), ShapeError, r"pred must be a scalar, got shape \(2,\)"),
        (lambda: cond("a", lambda: 1, lambda: 2), ArgumentTypeError, "pred"),
        (lambda: cond(True, 1, lambda: 2), ArgumentTypeError, "cond: expected a function, got 1"),
        (
            lambda: vmap(lambda x: cond(x > 0, lambda: 1, lambda: (1, 2)))(XS),
            StructureError,
            "false_fun returns .* and true_fun returns",
        ),
        (
            lambda: vmap(lambda x: cond(x > 0, lambda: {"a": fd.ones(2)}, lambda: {"a": fd.ones(3)}))(XS),
            ShapeError,
            r"at \['a'\] false_fun gives float64\[3\] and true_fun gives float64\[2\]",
        ),
        (
            lambda: fd.jit(lambda x: switch(x, [lambda: x, lambda: 1.0]))(1),
            DTypeError,
            r"branches\[0\] gives int64\[\] and branches\[1\] gives float64\[\]",
        ),
        (lambda: switch(0, []), ArgumentError, "branches is empty"),
        (lambda: switch(0.0, [abs, abs]), DTypeError, "index must be an integer, got 0.0"),
        (lambda: switch(True, [abs, abs]), DTypeError, "index must be an integer, got True"),
        (lambda: switch(fd.ones(2), [abs, abs]), ShapeError, "index must be a scalar"),
        (lambda: while_loop(lambda x: x, lambda x: x + 1, 0), ArgumentTypeError, r"one bool, got a tensor int64\[\]"),
        (lambda: while_loop(lambda x: x[0] < x, lambda x: x, XS), ArgumentTypeError, r"got a tensor bool\[5\]"),
        (lambda: while_loop(lambda x: x < 3, lambda x: (x,), 0), StructureError, "while_loop: .*structure"),
        (
            lambda: while_loop(lambda x: x["n"] < 3, lambda x: {"n": x["n"] + 0.5}, {"n": np.int32(0)}),
            DTypeError,
            r"init_val\['n'\] must keep its type .* int32\[\] and comes out as float64\[\]",
        ),
        (
            lambda: fd.jit(lambda x: while_loop(lambda c: c < 3, lambda c: c * fd.ones(2), x))(1.0),
            ShapeError,
            r"init_val must keep its type .* float64\[\] and comes out as float64\[2\]",
        ),
        (lambda: fori_loop(0.0, 2, lambda i, x: x, 0), DTypeError, "lower must be an integer, got 0.0"),
        (lambda: fori_loop(0, fd.ones(2), lambda i, x: x, 0), ShapeError, "upper must be a scalar"),
        (lambda: fori_loop(np.int16(0), np.int32(2), lambda i, x: x, 0), DTypeError, "one dtype, got int16 and int32"),
        (lambda: fori_loop(0, 2, lambda i, x: (x,), [0]), StructureError, "fori_loop"),
        (lambda: fori_loop(0, 2, lambda i, x: [x[0] * 1.5], [np.int32(0)]), DTypeError, r"init_val\[0\] must keep"),
        (
            lambda: fd.jit(lambda n: fori_loop(0, n, lambda i, x: x, 0, unroll=2))(3),
            ArgumentError,
            "unroll needs bounds that have values",
        ),
    ],
)  # fmt: skip
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_a_refusal_leaves_no_trace_open():
    with pytest.raises(ZeroDivisionError):
        scan(lambda c, x: (c / 0, 1 // 0), 0.0, XS)
    with deeper() as level, open_trace(level, fd.Device.cpu().base, "a test") as trace:
        assert trace.level == (1, 0)


def test_a_body_with_a_rule_of_its_own_is_compiled_once():
    """The body is written down at each call; what it calls is recognised, custom rules and inner jits too."""

    @fd.custom_vjp
    def wave(x):
        return x.sin()

    wave.defvjp(lambda x: (x.sin(), x), lambda x, g: (g * x.cos(),))

    def loss(c, rows, inner):
        return fd.scan(lambda c, x: (inner(c * x), None), c, rows)[0]

    rows = fd.tensor([1.0, 2.0])
    kinds = {
        "custom_vjp": wave,
        "jit": lambda x: fd.jit(lambda y: y.sin())(x),  # noqa: PLW0108  # a function that calls another is what is tested
        "checkpoint": lambda x: fd.checkpoint(lambda y: y.sin(), policy="by_cost")(x),  # noqa: PLW0108  # a function that calls another is what is tested
        "vmap": lambda x: fd.vmap(wave)(x.reshape(1))[0],
    }
    for inner in kinds.values():
        fd.grad(loss)(fd.tensor(1.0), rows, inner)
        before = scan_op.cache_info().misses
        grads = [fd.grad(loss)(fd.tensor(1.0), rows, inner).item() for _ in range(2)]
        assert scan_op.cache_info().misses == before
        assert grads == pytest.approx([math.cos(1) * 2 * math.cos(2 * math.sin(1))] * 2)


def test_a_body_whose_rule_reads_another_number_is_another_body():
    def scaled(by):
        @fd.custom_vjp
        def f(x):
            return x * by

        f.defvjp(lambda x: (x * by, None), lambda _, g: (g * (10 * by),))
        return f

    def slope(by):
        return fd.grad(lambda c: fd.scan(lambda c, x: (scaled(by)(c), None), c, None, length=1)[0])(1.0).item()

    assert [slope(2.0), slope(3.0), slope(2.0)] == [20.0, 30.0, 20.0]


# --- associative scans


@pytest.mark.parametrize("n", [0, 1, 2, 3, 6, 7])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
def test_running_results_are_those_of_jax(n, reverse, axis, device, x64):
    """Of the composition of affine maps, which does not commute."""
    shape = (n, 2, 3) if axis == 0 else (2, 3, n)
    rng = np.random.default_rng(0)
    elems = (rng.normal(size=shape), rng.normal(size=shape))

    def after(p, q):
        return p[0] * q[0], p[1] * q[0] + q[1]

    expected = jax.lax.associative_scan(after, elems, reverse, axis % 3)
    found = fd.associative_scan(after, tuple(fd.tensor(x, device=device) for x in elems), reverse, axis)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-12)


def test_running_results_under_transforms():
    def run(x):
        return fd.associative_scan(lambda a, b: a * b, x)

    x = fd.tensor([2.0, 0.0, 3.0, 4.0])
    assert fd.grad(lambda x: run(x).sum())(x).tolist() == fd.grad(lambda x: fnp.cumprod(x).sum())(x).tolist()
    assert fd.jit(run)(x).tolist() == fd.vmap(run)(fd.stack([x, x]))[1].tolist() == [2, 0, 0, 0]
    with pytest.raises(StructureError, match="must return what it takes"):
        fd.associative_scan(lambda a, b: (a, b), x)
    with pytest.raises(ShapeError, match="one length"):
        fd.associative_scan(lambda a, b: a, (x, x[1:]))
