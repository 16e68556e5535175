"""Rules as compiled calls: the same gradients as op by op, in fewer calls."""

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad.backends.xla import Xla
from functad.tape import sweep

RULES = {
    "two factors": lambda x: x @ x,
    "one factor": lambda x: x @ fnp.eye(3),
    "passes on": lambda x: x + 1,
    "a difference": lambda x: 1 - x,
    "broadcast": lambda x: x / (1 + x[:1]),
    "reduction": lambda x: fnp.prod(x, axis=1),
    "several params": lambda x: fnp.cumprod(x, axis=0),
    "sorted": lambda x: fnp.sort(x, axis=1),
    "singular": lambda x: fnp.where(x > 1, x, fnp.sqrt(x - 2)),
    "several outputs": lambda x: fnp.split(x, 3)[1] * 2,
    "same input twice": lambda x: x * x * x,
    "jitted": fd.jit(lambda x: fnp.tanh(x) / x),
    "checkpointed": fd.checkpoint(lambda x: fnp.tanh(x) / x),
    "no derivative": lambda x: x * x.astype(int),
}


def gradients(f, device, times):
    x = fd.tensor(np.linspace(0.5, 2.5, 9).reshape(3, 3), device=device.autodiff()).require_grad()
    weights = fnp.cos(f(x).detach())
    loss = (f(x) * weights.detach()).sum()
    return [x.grad(loss.backward()).numpy() for _ in range(times)]


@pytest.mark.parametrize("rule", RULES)
def test_gradients_are_those_of_the_rules_op_by_op(rule, monkeypatch):
    device = fd.Device.cpu(fusion=False)
    found = gradients(RULES[rule], device, 4)  # compiled the second time
    monkeypatch.setattr(Xla, "sweep", lambda self, seeds, outputs, release: sweep(seeds, release))
    (expected,) = gradients(RULES[rule], device, 1)
    for g in found:
        np.testing.assert_allclose(g, expected, rtol=2e-6, atol=1e-6)


def test_strict_ieee_is_another_rule():
    x = fd.tensor([0.0, 4.0], device=fd.Device.cpu(fusion=False).autodiff()).require_grad()
    loss = fnp.where(x > 1, fnp.sqrt(x), 0).sum()
    for _ in range(3):
        assert x.grad(loss.backward()).tolist() == [0.0, 0.25]
        with fd.strict_ieee():
            assert np.isnan(x.grad(loss.backward()).numpy()[0])


def test_a_rule_is_one_call(monkeypatch):
    x = fd.tensor([[1.0, 2.0, 3.0]] * 2, device=fd.Device.cpu(fusion=False).autodiff()).require_grad()
    loss = fnp.prod(x, axis=1)
    for _ in range(3):
        loss.backward()
    ran = []
    run = Xla.run
    monkeypatch.setattr(Xla, "run", lambda self, op, *rest: ran.append(op.name) or run(self, op, *rest))
    loss.backward()
    assert set(ran) <= {"broadcast_to"}  # the seed


def test_second_derivatives_run_the_rules_on_the_outer_tape():
    device = fd.Device.cpu(fusion=False).autodiff(order=2)
    x = fd.tensor([1.0, 2.0], device=device).require_grad()
    for _ in range(3):
        g = x.grad((x * x * x).sum().backward())
        assert x.grad(g.sum().backward()).tolist() == [6.0, 12.0]


def test_what_is_kept_is_bounded_and_holds_no_data():
    base = fd.Device.cpu(fusion=False).base
    assert len(base.pulls.known) <= 2048
    assert not [x for key in base.pulls.known for x in key if isinstance(x, fd.Tensor)]


def test_a_param_that_was_kept_is_a_tensor():
    p = fd.Param([2.0, 3.0], device=fd.Device.cpu(fusion=False))
    for _ in range(3):
        assert fd.grad(lambda a, b: (a * b).sum(), argnums=(0, 1))(p, p)[0].tolist() == [2.0, 3.0]
