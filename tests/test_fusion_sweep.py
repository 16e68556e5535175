"""Tapes of a higher order in object style are swept by structure: as op by op, with no derivative rule run for what recurs."""

import gc

import numpy as np
import pytest
from helpers import compile_soon, rules_that_run

import functad as fd
from functad import numpy as fnp
from functad.backends import fusion_sweep
from functad.backends.fusion_written import Written
from functad.dispatch import pending
from functad.errors import GraphConsumedError, LevelError
from functad.ops import rules as op_rules

ROUNDS = 5
X = np.array([0.5, -0.3, 0.8])


@pytest.fixture
def fused(x64, monkeypatch):
    compile_soon(monkeypatch)
    device = fd.Device.cpu(fusion=True)
    device.base._prune()
    return device


@pytest.fixture
def rules(monkeypatch):
    """The ops whose derivative rules have run in Python."""
    return rules_that_run(monkeypatch, forward=False)


def leaf(x, device, order=2):
    return fd.tensor(x, device=device.autodiff(order=order)).require_grad()


def penalty(x):
    """A loss with the square of its gradient."""
    y = ((x * 1.3).sin() * x + 2.0 * x.tanh()).sum()
    g = x.grad(y.backward())
    return (y.inner() + (g * g).sum()).backward()


def product(x):
    """A product of the Hessian with a vector."""
    y = (x * x * x).sum() * x.cos().sum()
    return (x.grad(y.backward()) * 0.7).sum().backward()


def several(x):
    """An op with several outputs, of which one is used; with a guard."""
    values, _ = fnp.topk(x, 2)
    y = (values * values).sum() + fnp.where(x > 0, x.sqrt(), x * x).sum()
    return (x.grad(y.backward()) ** 3).sum().backward()


def branches(x):
    """Dead ends, constants, and a number that is used twice."""
    (x * x).exp()
    y = (x * x + x.detach() * x.sum() * 0.5 + (x > 0.1).astype("int32").sum() * x.cos() * 0.5).sum()
    return (x.grad(y.backward()) * x.inner()).sum().backward()


CASES = [penalty, product, several, branches]


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_sweeps_are_as_op_by_op_and_run_no_rules(fused, rules, fn):
    plain = fd.Device.cpu(fusion=False)
    for n in range(ROUNDS):
        x, y = leaf(X + n / 8, fused), leaf(X + n / 8, plain)
        pending.at_once = pending.futile = 0
        del rules[:]
        found = x.grad(fn(x)).tolist()
        ran = list(rules)
        np.testing.assert_allclose(found, y.grad(fn(y)).tolist(), rtol=1e-13)
        fused.base.compiler.wait()
    assert not ran
    assert len(fused.base.sweeps) == 1


def test_three_orders(fused, rules):
    for n in range(ROUNDS):
        pending.at_once = pending.futile = 0
        del rules[:]
        x = leaf(2.0 + n, fused, order=3)
        first = x.grad((x**4).backward())
        second = x.grad(first.backward())
        third = x.grad(second.backward())
        assert [first.item(), second.item(), third.item()] == [4 * (2 + n) ** 3, 12 * (2 + n) ** 2, 24 * (2 + n)]
        fused.base.compiler.wait()
    assert not rules


def test_an_intermediate_keeps_its_gradient(fused, rules):
    for _ in range(ROUNDS):
        pending.at_once = pending.futile = 0
        del rules[:]
        x = leaf([1.0, 2.0], fused)
        h = x * x
        h.retain_grad()
        grads = (h * h).sum().backward()
        assert h.grad(grads).tolist() == [2.0, 8.0]
        assert x.grad(grads).tolist() == [4.0, 32.0]
    assert not rules


def test_what_is_released_is_gone(fused):
    for _ in range(ROUNDS):
        x = leaf([1.0, 2.0], fused)
        loss = (x.sin() * x).sum()
        assert x.grad(loss.backward(retain_graph=False)) is not None
        with pytest.raises(GraphConsumedError, match="released by an earlier backward"):
            loss.backward()


def test_absent_gradients_are_explained(fused):
    for _ in range(ROUNDS):
        x, w = leaf([1.0, 2.0], fused), leaf([3.0, 4.0], fused)
        grads = (x.detach() * w).sum().backward()
        assert grads.explain(x).reason.name == "CUT_BY_DETACH"
        assert w.grad(grads).tolist() == [1.0, 2.0]
        grads = (x.astype("int32").astype(x.dtype) * w).sum().backward()
        assert grads.explain(x).reason.name == "CUT_BY_INT_CAST"


def test_a_gradient_taken_for_a_constant_is_refused_each_time(fused):
    for _ in range(ROUNDS):
        x = leaf([1.0, 2.0], fused)
        y = (x * x).sum()
        g = x.grad(y.backward())
        with pytest.raises(LevelError, match="count as a constant"):
            (y + (g * g).sum()).backward()


def test_rules_of_the_users_run_each_time(fused):
    calls = []

    @fd.custom_vjp
    def double(x):
        return x * 2

    def backward(_, g):
        calls.append(g)
        return (g * 2,)

    double.defvjp(lambda x: (x * 2, None), backward)
    for n in range(1, ROUNDS):
        x = leaf(3.0, fused)
        assert x.grad((double(x) * x).backward()).item() == 12.0
        assert len(calls) == n


def test_values_and_numbers_are_operands(fused):
    for n in range(ROUNDS):
        x = leaf(2.0, fused)
        y = x * float(n) * x + x * (0.25 * n)
        g = x.grad(y.backward())
        assert g.item() == 4.25 * n
        assert x.grad(g.backward()).item() == 2.0 * n
    assert fused.base.compiler.wait() is None
    assert len(fused.base.sweeps) == 1


def test_long_graphs_are_walked_by_their_rules(fused, monkeypatch):
    monkeypatch.setattr(fusion_sweep, "_MOST_NODES", 20)
    for _ in range(ROUNDS):
        x = leaf(1.0, fused)
        y = x
        for _ in range(30):
            y = y * x
        assert x.grad(y.backward()).item() == 31.0
    assert not fused.base.sweeps


def test_few_sweeps_are_kept(fused, monkeypatch):
    monkeypatch.setattr(fusion_sweep, "_MOST_KEPT", 3)
    for n in range(1, 9):
        x = leaf(1.0, fused)
        y = x
        for _ in range(n):
            y = y * x
        assert x.grad(y.backward()).item() == n + 1.0
    assert len(fused.base.sweeps) <= 4


def test_a_tensor_that_a_rule_reaches_is_no_other_tensor_of_the_program(fused, monkeypatch):
    """A rule's constant is met before it runs, or is its operand; later another tensor is where it was."""
    monkeypatch.setattr(op_rules, "TABLE", dict(op_rules.TABLE))  # the op is forgotten afterwards
    first, second = fd.tensor([1.0, 2.0], device=fused), fd.tensor([10.0, 20.0], device=fused)
    scaled = fd.op.elementwise(
        "scaled", lambda xp, x: xp.sin(x), lambda x: x * first, samples=fd.op.Samples([]), doc=""
    )
    for n in range(3 * ROUNDS):
        pending.at_once = pending.futile = 0
        other = second if n >= 2 * ROUNDS else first
        x = leaf([1.0, 1.0], fused)
        y = x.inner() * other
        z = y + x.grad(scaled(x).sum().backward())
        grads = z.sum().backward()
        assert z.tolist() == x.grad(grads).tolist() == (other + first).tolist(), n
        fused.base.compiler.wait()


def test_programs_that_are_written_again_are_let_go_of(fused, monkeypatch):
    monkeypatch.setattr(fusion_sweep, "_MOST_KEPT", 2)
    counts = []
    for _ in range(4):
        for n in range(1, 5):
            for _ in range(3):
                pending.at_once = pending.futile = 0
                x = leaf(1.0, fused)
                y = x
                for _ in range(n):
                    y = y * x
                assert x.grad(y.backward()).item() == n + 1.0
        gc.collect()
        counts.append(sum(type(x) is Written for x in gc.get_objects()))
    assert counts[-1] <= counts[0]
