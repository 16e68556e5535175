"""Tapes over other levels are differentiated by structure: as op by op, with no derivative rule run for what recurs."""

import gc
from threading import Thread
from weakref import ref

import numpy as np
import pytest
from helpers import compile_soon, rules_that_run

import functad as fd
from functad import numpy as fnp
from functad.dispatch import pending
from functad.errors import ShapeError
from functad.ops.op import Op

ROUNDS = 5
X = [0.5, -0.3, 0.8]


@pytest.fixture
def device(x64, monkeypatch):
    """One that fuses, and compiles what recurs at once."""
    compile_soon(monkeypatch)
    device = fd.Device.cpu(fusion=True)
    device.base._prune()
    return device


@pytest.fixture
def rules(monkeypatch):
    """The ops whose derivative rules have run in Python, backward and forward."""
    return rules_that_run(monkeypatch)


def rounds(device):
    for _ in range(ROUNDS):
        pending.at_once = pending.futile = 0
        yield
        device.base.compiler.wait()


def f(x):
    return ((x * 1.3).sin() * x + (2.0 * x).tanh()).sum()


def guards(x):
    return fnp.where(x > 0, x.sqrt(), x * x).sum()


def dead_ends(x):
    (x * x).exp()
    return (x * x + x.detach() * x.sum() + (x > 0.1).astype("int32").sum() * x.cos()).sum()


def outputs(x):
    first, second, third = fnp.split(x, 3)
    return (first * second + third.sin() * first.detach()).sum() + fnp.sort(x)[1] * x[0]


NESTS = {
    "grad of grad of grad": lambda f: fd.grad(lambda x: fd.grad(lambda y: fd.grad(f)(y).sum())(x).sum()),
    "gradient penalty": lambda f: fd.grad(lambda x: f(x) + (fd.grad(f)(x) ** 2).sum()),
    "step that is differentiated": lambda f: fd.grad(lambda x: f(x - 0.1 * fd.grad(f)(x))),
    "hvp": lambda f: lambda x: fd.hvp(f, (x,), (x.cos(),)),
    "hessian": fd.hessian,
    "jacfwd of grad": lambda f: fd.jacfwd(fd.grad(f)),
    "jacrev of grad": lambda f: fd.jacrev(fd.grad(f)),
    "gradients of rows": lambda f: lambda x: fd.vmap(fd.grad(f))(fnp.stack([x, 2.0 * x])),
    "rows of one argument": lambda f: lambda x: fd.vmap(lambda s: fd.grad(lambda y: f(y * s))(x))(x),
    "grad through rows of gradients": lambda f: fd.grad(
        lambda x: (fd.vmap(fd.grad(f))(fnp.stack([x, x * 2])) ** 2).sum()
    ),
    "tangent of a pullback": lambda f: lambda x: fd.jvp(lambda y: fd.vjp(f, y)[1](1.0)[0], (x,), (x,))[1],
    "grad of a pullback used twice": lambda f: fd.grad(lambda x: twice(f, x)),
    "value, gradient and aux": lambda f: fd.grad(lambda x: with_aux(f, x)),
    "tangents of rows of gradients": lambda f: (
        lambda x: fd.jvp(
            lambda y: fd.vmap(fd.grad(lambda s: f(s * y)))(fd.tensor([1.0, 2.0], device=y.device)), (x,), (x.exp(),)
        )[1]
    ),
    "hessian of a hessian's trace": lambda f: fd.hessian(lambda x: fnp.trace(fd.hessian(f)(x))),
}


def twice(f, x):
    value, pull = fd.vjp(lambda y: f(y) * y, x)
    return (pull(value)[0] * pull(value.sin())[0]).sum()


def with_aux(f, x):
    value, grad = fd.value_and_grad(lambda y: (f(y), (y * 2.0, y.sin())), has_aux=True)(x)
    return value[0] * (grad * value[1][1] + value[1][0]).sum()


@pytest.mark.parametrize("name", NESTS)
@pytest.mark.parametrize("fn", [f, guards, dead_ends, outputs])
def test_nests_are_as_op_by_op_and_run_no_rules(device, rules, name, fn):
    nest = NESTS[name](fn)
    expected = nest(fd.tensor(X, device=fd.Device.cpu(fusion=False))).numpy()
    x = fd.tensor(X, device=device)
    for _ in rounds(device):
        rules.clear()
        np.testing.assert_allclose(nest(x).numpy(), expected, rtol=1e-9, atol=1e-12)
    assert not rules


@pytest.mark.parametrize("name", ["gradient penalty", "hvp", "hessian", "gradients of rows"])
def test_a_nest_is_one_executable(device, name):
    nest, x = NESTS[name](f), fd.tensor(X, device=device)
    for _ in rounds(device):
        with fd.profile() as p:
            nest(x).numpy()
    assert (p.hits, p.single_ops) == (1, 0)


def test_a_leap_leads_to_the_structure_that_was_recorded_op_by_op(device):
    """Also in what is alive at its end, or it would be met as new."""
    a, b, c = (fd.tensor(np.roll(X, i), device=device) for i in range(3))
    counts = []
    for _ in rounds(device):
        second = fd.hvp(lambda a, b, c: f((a * b).sin() * c) + f(b * c), (a, b, c), (c, a, b))
        first = fd.vmap(fd.grad(lambda a, b, c: (((a * b).sin() * c) * b).tanh(), argnums=(0, 1, 2)))(a, b, c)
        assert all(np.isfinite(g.numpy()).all() for g in (*second, *first))
        counts.append(len(device.base.compiler.plans))
    assert counts[1:] == counts[:-1]


def test_an_inner_tape_in_a_loss_of_object_style(device, rules):
    x = fd.tensor(X, device=device.autodiff()).require_grad()
    plain = fd.tensor(X, device=fd.Device.numpy().autodiff()).require_grad()
    loss = lambda v: (fd.grad(lambda u: (u * u * v).sum())(v.sin()) ** 2).sum() + f(v)
    expected = loss(plain).backward()[plain].numpy()
    for _ in rounds(device):
        rules.clear()
        np.testing.assert_allclose(loss(x).backward()[x].numpy(), expected, rtol=1e-9)
    assert not rules
    cut = fd.grad(lambda u: (u.detach() * 2.0).sum())(x)
    with pytest.raises(fd.errors.NotTrackedError):
        cut.sum().backward()


def test_numbers_are_operands_also_where_one_object_is_used_twice(device):
    x, plain = fd.tensor(X, device=device), fd.tensor(X, device=fd.Device.numpy())
    for i, _ in enumerate(rounds(device)):
        for first, second in ((2.0, 2.0), (2.0, 0.25 * i), (i + 0.5, 2.0)):
            nest = fd.grad(
                lambda v, a=first, b=second: (fd.grad(lambda u: (a * u.sin() * u + b * u.exp()).sum())(v) ** 2).sum()
            )
            np.testing.assert_allclose(nest(x).numpy(), nest(plain).numpy(), rtol=1e-9)


def test_values_are_read_in_the_middle(device, rules):
    """What was recorded up to there becomes a node, as on the device."""

    def loss(u):
        h = u * 1.5
        while float((h * h).sum()) > 0.4:
            h = (h * 0.8).sin() if float(h[0]) > 0.2 else h * 0.6
        return (h.exp() * u).sum()

    nest = fd.grad(lambda x: (fd.grad(loss)(x) * x).sum())
    expected = nest(fd.tensor(X, device=fd.Device.cpu(fusion=False))).numpy()
    x = fd.tensor(X, device=device)
    for _ in rounds(device):
        rules.clear()
        np.testing.assert_allclose(nest(x).numpy(), expected, rtol=1e-9)
    assert not rules


def test_no_grad_covers_what_is_in_it_alone(device):
    def loss(u):
        a = u.sin()
        with fd.no_grad():
            b = a * u
        return (a * b * u).sum()

    nest = fd.grad(lambda x: (fd.grad(loss)(x) ** 2).sum())
    x, plain = fd.tensor(X, device=device), fd.tensor(X, device=fd.Device.cpu(fusion=False))
    for _ in rounds(device):
        np.testing.assert_allclose(nest(x).numpy(), nest(plain).numpy(), rtol=1e-9)


@fd.custom_vjp
def cube(x):
    return x * x * x


cube.defvjp(lambda x: (x * x * x, x), lambda x, g: (g * 3.0 * x * x,))


@pytest.mark.parametrize(
    "own",
    [
        cube,
        fd.checkpoint(lambda x: (x * x).sin()),
        fd.checkpoint(lambda x: x.sin().detach() * x),
        fd.checkpoint(fd.grad(lambda x: (x * x).sin().sum())),
        fd.jit(f),
    ],
    ids=["custom_vjp", "checkpoint", "checkpointed cut", "checkpointed grad", "jit"],
)
def test_ops_with_rules_of_their_own_inside(device, own):
    nest = fd.grad(lambda x: (fd.grad(lambda u: (own(u.sin() * x) * u.cos()).sum())(x) ** 2).sum())
    x, plain = fd.tensor(X, device=device), fd.tensor(X, device=fd.Device.cpu(fusion=False))
    for _ in rounds(device):
        np.testing.assert_allclose(nest(x).numpy(), nest(plain).numpy(), rtol=1e-9)


def test_strict_ieee_and_guards_make_structures_of_their_own(device):
    nest = fd.vmap(fd.grad(lambda x: fnp.where(x > 0, x.sqrt(), 0.0)))
    x = fd.tensor([0.0, 4.0], device=device)
    for _ in rounds(device):
        assert nest(x).tolist() == [0.0, 0.25]
        with fd.strict_ieee():
            assert np.isnan(nest(x).numpy()[0])


def test_precision_is_switched_between_and_inside(device):
    def loss(u):
        a = u.sin()
        with fd.enable_x64(False):
            b = fd.tensor([1.0, 2.0, 3.0], device=device) * 2.0
        return (a * b * u).sum()

    x = fd.tensor(X, device=device)
    for _ in rounds(device):
        assert fd.hvp(loss, (x,), (x,)).dtype == fd.float64
        with fd.enable_x64(False):
            y = fd.tensor(X, device=device)
            assert fd.hvp(f, (y,), (y,)).dtype == fd.float32


def test_an_error_in_a_rule_is_raised_and_leaves_nothing_behind(device):
    bad = Op("bad", lambda xp, x: x * 2.0)
    bad.pulls = [bad.derivative(lambda g: g.sum(), 1)]
    plain = fd.tensor(X, device=fd.Device.numpy())
    expected = fd.hvp(f, (plain,), (plain,)).numpy()
    x = fd.tensor(X, device=device)
    for _ in rounds(device):
        with pytest.raises(ShapeError, match="the derivative rule of bad"):
            fd.grad(lambda v: fd.grad(lambda u: bad(u.sin()).sum())(v).sum())(x)
        np.testing.assert_allclose(fd.hvp(f, (x,), (x,)).numpy(), expected, rtol=1e-9)


def test_a_rule_that_reads_values_runs_each_time(device):
    def rule(g, x):
        return g * (2.0 if float(x.sum()) > 0 else -1.0)

    reading = Op("reading", lambda xp, x: abs(x))
    reading.pulls = [reading.derivative(rule, 1)]
    nest = fd.grad(lambda v: (fd.grad(lambda u: (reading(u * 1.0) * u).sum())(v) * v).sum())
    for _ in rounds(device):
        for sign in (1.0, -1.0):
            x = fd.tensor([sign, sign], device=device)
            plain = nest(fd.tensor([sign, sign], device=fd.Device.cpu(fusion=False)))
            np.testing.assert_allclose(nest(x).numpy(), plain.numpy())


def test_nothing_is_held_longer(device):
    """By reference count: no collector is needed, also where the function raises or a tensor leaks."""
    kept = []

    def leaking(u):
        kept.append(u.sin())
        return (kept[0] * u).sum()

    def failing(u):
        return (u.sin() * u).sum() / (1 // 0)

    gc.collect()
    gc.disable()
    try:
        for _ in rounds(device):
            x = fd.tensor(X, device=device)
            held = ref(x)
            second = fd.grad(lambda v: fd.grad(leaking)(v).sum())(x)
            with pytest.raises(ZeroDivisionError):
                fd.grad(lambda v: fd.grad(failing)(v).sum())(x)
            assert np.isfinite(second.numpy()).all()
            np.testing.assert_allclose(kept.pop().numpy(), np.sin(X))
            del x, second
            assert held() is None
    finally:
        gc.enable()


def test_threads_have_recordings_of_their_own(device):
    nest = NESTS["gradient penalty"](f)
    expected = nest(fd.tensor(X, device=fd.Device.cpu(fusion=False))).numpy()
    found = []

    def work():
        with fd.enable_x64():
            x = fd.tensor(X, device=device)
            found.extend([nest(x).numpy() for _ in range(10)])

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    np.testing.assert_allclose(np.stack(found), np.stack([expected] * 40), rtol=1e-9)
