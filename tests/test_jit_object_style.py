"""`jit` of functions in object style: arguments keep their tape inside, results come out as from a plain call."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from helpers import settled

import functad as fd
from functad import nn
from functad.tape import Node

CPU = fd.Device.cpu
DEVICES = [CPU().autodiff(), CPU().autodiff().gradient_checkpointing(), fd.Device.numpy().autodiff()]


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def by_backward(model, x, y):
    loss = loss_of(model, x, y)
    return loss, loss.backward()


def by_transform(model, x, y):
    return fd.value_and_grad(loss_of)(model, x, y)


def net(device):
    k1, k2 = fd.random.split(fd.random.key(0))
    return nn.Sequential(nn.Linear(3, 4, key=k1, device=device), nn.Tanh(), nn.Linear(4, 2, key=k2, device=device))


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("differentiate", [by_backward, by_transform])
def test_a_compiled_step_gives_what_the_plain_step_gives(device, differentiate):
    model = net(device)
    opt = fd.optim.chain(fd.optim.clip_by_norm(1.0), fd.optim.adam(1e-2))
    x, y = fd.ones((5, 3), device=device.inner()), fd.zeros((5, 2), device=device.inner())

    def step(model, state):
        loss, grads = differentiate(model, x, y)
        return *opt.step(model, grads, state), loss

    fast = fd.jit(step)
    a, b = (model, opt.init(model)), (model, opt.init(model))
    for _ in range(3):
        *a, loss_a = step(*a)
        *b, loss_b = fast(*b)
        np.testing.assert_allclose(loss_a.item(), loss_b.item(), rtol=1e-5)
    assert fast.compilations == 1
    for old, plain, compiled in zip(model.parameters(), a[0].parameters(), b[0].parameters(), strict=True):
        assert compiled.is_require_grad
        assert compiled.id == old.id == plain.id
        assert compiled.device.name == plain.device.name
        assert compiled.device.checkpointing == device.checkpointing
        np.testing.assert_allclose(compiled.numpy(), plain.numpy(), rtol=1e-4, atol=1e-6)
    assert not any(x.is_tracked for x in b[1]._leaves if isinstance(x, fd.Tensor))
    assert len(loss_of(b[0], x, y).backward()) == 4


def test_steps_leave_no_graph_behind():
    settled()
    device = CPU().autodiff()
    model = nn.Linear(3, 2, device=device)
    opt = fd.optim.sgd(0.1)
    state = opt.init(model)

    @fd.jit
    def step(model, state):
        grads = loss_of(model, fd.ones((5, 3)), fd.zeros((5, 2))).backward()
        return opt.step(model, grads, state)

    for _ in range(2):
        model, state = step(model, state)
    gc.collect()
    before = sum(type(o) is Node for o in gc.get_objects())
    for _ in range(5):
        model, state = step(model, state)
    assert sum(type(o) is Node for o in gc.get_objects()) == before


def test_what_is_returned_as_it_came_is_the_same_leaf():
    model = net(CPU().autodiff()).freeze("layers.0.*")
    same, out = fd.jit(lambda m, x: (m, m(x)))(model, fd.ones((1, 3)))
    assert same.layers[0].weight.is_frozen
    assert not same.layers[0].weight.is_tracked
    assert same.layers[2].weight.is_require_grad
    grads = out.sum().backward()
    assert grads[same.layers[2].weight].shape == (2, 4)
    assert len(grads) == 2


def test_a_tensor_passed_twice_is_one_leaf_inside():
    w = fd.tensor([3.0], device=CPU().autodiff()).require_grad()
    g = fd.jit(lambda a, b: a.grad((a * b).sum().backward()))(w, w)
    assert g.tolist() == [6.0]
    assert not g.is_autodiff


def test_shared_parameters_stay_shared():
    layer = nn.Linear(2, 2, bias=False, device=CPU().autodiff())
    model = nn.Sequential(layer, layer)
    opt = fd.optim.sgd(0.1)

    @fd.jit
    def step(model, state):
        return opt.step(model, model(fd.ones((1, 2))).sum().backward(), state)

    new, _ = step(model, opt.init(model))
    plain, _ = opt.step(model, model(fd.ones((1, 2))).sum().backward(), opt.init(model))
    assert new.layers[0].weight.id == new.layers[1].weight.id == layer.weight.id
    np.testing.assert_allclose(new.layers[0].weight.numpy(), plain.layers[0].weight.numpy(), rtol=1e-6)
    assert len(new(fd.ones((1, 2))).sum().backward()) == 1


def test_results_that_depend_on_leaves_are_still_recorded():
    w = fd.tensor([1.0, 2.0], device=CPU().autodiff()).require_grad()
    v = fd.tensor([3.0, 4.0], device=CPU().autodiff()).require_grad()
    product, other = fd.jit(lambda w: (w * w, v * 2))(w)  # v is reached from outside
    assert w.grad(product.sum().backward()).tolist() == [2.0, 4.0]
    assert v.grad(other.sum().backward()).tolist() == [2.0, 2.0]
    mixed = fd.jit(lambda w: w.detach() * v)(w)
    assert v.grad(mixed.sum().backward()).tolist() == [1.0, 2.0]


def test_an_intermediate_as_an_argument_keeps_its_history():
    w = fd.tensor([1.0, 2.0], device=CPU().autodiff()).require_grad()
    square = fd.jit(lambda x: x * x)
    assert w.grad(square(w * 3).sum().backward()).tolist() == [18.0, 36.0]
    assert w.grad(square(square(w)).sum().backward()).tolist() == [4.0, 32.0]


def test_a_second_derivative_through_jit():
    w = fd.tensor([2.0], device=CPU().autodiff(order=2)).require_grad()
    g = fd.jit(lambda w: w.grad((w**3).sum().backward()))(w)
    assert g.tolist() == [12.0]
    assert w.grad(g.sum().backward()).tolist() == [12.0]


def test_a_step_inside_a_transform_is_differentiated():
    model = nn.Linear(2, 1, bias=False, key=fd.random.key(0))
    opt = fd.optim.sgd(0.1)
    state, x = opt.init(model), fd.ones((1, 2))

    @fd.jit
    def step(model, state):
        return opt.step(model, fd.grad(lambda m: (m(x) ** 2).sum())(model), state)

    g = fd.grad(lambda m: step(m, state)[0](x).sum())(model).weight
    # y' = y - 0.1 * 2 y * 2 = 0.6 y, with y = w1 + w2
    np.testing.assert_allclose(g.numpy(), [[0.6, 0.6]], rtol=1e-5)
    tracked = model.train()
    g = fd.grad(lambda m: step(m, state)[0](x).sum())(tracked).weight
    np.testing.assert_allclose(g.numpy(), [[0.6, 0.6]], rtol=1e-5)


def test_a_model_made_in_jit_on_an_autodiff_device_requires_grad():
    model = fd.jit(lambda key: nn.Linear(2, 1, key=key, device=CPU().autodiff()))(fd.random.key(0))
    assert model.weight.is_require_grad
    assert len(model(fd.ones((1, 2))).sum().backward()) == 2


def test_backward_of_what_is_reached_from_outside_says_what_to_do():
    model = nn.Linear(2, 1, device=CPU().autodiff())
    with pytest.raises(fd.errors.NotTrackedError, match=r"as an argument.*fd\.value_and_grad"):
        fd.jit(lambda x: model.weight.grad(model(x).sum().backward()))(fd.ones((1, 2)))


def test_a_custom_rule_is_used_or_refused_in_object_style():
    """Where the function differentiates itself the tape outside cannot see the rule: no other number comes out."""
    square = fd.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, g: (100 * x * g,))
    w = fd.tensor(3.0, device=fd.Device.numpy().autodiff()).require_grad()
    assert fd.jit(square)(w).backward()[w].item() == 300.0

    @fd.jit
    def step(w):
        loss = square(w)
        return loss, loss.backward()[w]

    loss, g = step(w)
    assert (loss.item(), g.item()) == (9.0, 300.0)
    with pytest.raises(fd.errors.NotDifferentiableError, match="differentiates itself"):
        loss.backward()
    second = fd.tensor(3.0, device=fd.Device.numpy().autodiff(order=2)).require_grad()
    g = fd.jit(lambda w: square(w).backward()[w])(second)
    assert g.item() == 300.0
    with pytest.raises(fd.errors.NotDifferentiableError, match="differentiates itself"):
        g.backward()
