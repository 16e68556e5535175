"""The tape: lifetime, order, accumulation, release, checkpointing, levels, threads."""

import asyncio
import gc
import threading
import weakref

import numpy as np
import pytest

import functad as fd
from functad.tape import Node


def leaf(values, device, dtype="float32"):
    return fd.tensor(values, dtype=dtype, device=device.autodiff()).require_grad()


# --- what backward computes


def test_backward_of_a_leaf_is_one(device):
    w = leaf([3.0, 4.0], device)
    assert w.grad(w.backward()).tolist() == [1.0, 1.0]


def test_a_non_scalar_loss_is_seeded_with_ones_or_the_cotangent(device):
    w = leaf([3.0, 4.0], device)
    assert w.grad((w * w).backward()).tolist() == [6.0, 8.0]
    assert w.grad((w * w).backward([1.0, 10.0])).tolist() == [6.0, 80.0]
    with pytest.raises(fd.errors.ShapeError, match=r"\(3,\).*\(2,\)"):
        (w * w).backward([1.0, 2.0, 3.0])


def test_backward_does_not_consume(device):
    """K12: h = exp(w^2) once, then (k * h).backward() in a loop."""
    w = leaf(0.5, device)
    h = (w * w).exp()
    for k in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(w.grad((h * k).backward()).item(), k * np.exp(0.25), rtol=1e-6)


def test_two_losses_on_one_trunk(device):
    w = leaf([1.0, 2.0], device)
    trunk = w * w
    assert w.grad(trunk.sum().backward()).tolist() == [2.0, 4.0]
    assert w.grad((trunk * trunk).sum().backward()).tolist() == [4.0, 32.0]


def test_retain_graph_false_releases_and_a_second_backward_says_so(device):
    w = leaf([1.0, 2.0], device)
    trunk = w * w
    kept = weakref.ref(trunk._context)
    loss = (trunk * trunk).sum()
    assert w.grad(loss.backward(retain_graph=False)).tolist() == [4.0, 32.0]
    assert kept().inputs is None
    with pytest.raises(fd.errors.GraphConsumedError) as error:
        loss.backward()
    assert "sum" in str(error.value)
    assert "test_tape.py:" in str(error.value)
    assert "retain_graph=False" in str(error.value)
    with pytest.raises(fd.errors.GraphConsumedError, match=r"mul.*\(2,\)"):
        trunk.sum().backward()


def test_a_leaf_used_many_times_accumulates(device):
    w = leaf(2.0, device)
    total = w
    for _ in range(9):
        total = total + w
    assert w.grad(total.backward()).item() == 10.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_accumulate_in_float32(device, dtype):
    """K18: summing 300 ones in bfloat16 stops at 256."""
    w = leaf(1.0, device, dtype)
    total = w.astype("float32")
    for _ in range(299):
        total = total + w.astype("float32")
    g = w.grad(total.backward())
    assert (g.item(), str(g.dtype)) == (300.0, dtype)


def test_exponentially_many_paths_take_linear_time(device):
    """K11: p = p/2 + p/2 has 2^60 paths and 120 nodes."""
    p = w = leaf(1.0, device)
    for _ in range(60):
        p = p / 2 + p / 2
    assert w.grad(p.backward()).item() == 1.0


def test_gradients_live_on_the_inner_device(device):
    w = leaf([1.0], device)
    g = w.grad((w * w).backward())
    assert not g.is_autodiff
    assert g.device.name == device.name


def test_grad_replace_takes_the_type_of_the_tensor(device):
    w = leaf([1.0, 2.0], device)
    grads = (w * w).sum().backward()
    w.grad_replace(grads, fd.tensor([3.0, 4.0], device=device))
    assert grads[w].tolist() == [3.0, 4.0]
    for wrong, kind in (
        (fd.ones(3, device=device), fd.errors.ShapeError),
        (w.inner().astype("float16"), fd.errors.DTypeError),
    ):
        with pytest.raises(kind, match="grad_replace: the new gradient is float"):
            w.grad_replace(grads, wrong)


# --- retain_grad, detach, require_grad


def test_retain_grad_keeps_an_intermediates_gradient(device):
    w = leaf([1.0, 2.0], device)
    h = w * 3.0
    assert h.retain_grad() is h
    grads = (h * h).sum().backward()
    assert h.grad(grads).tolist() == [6.0, 12.0]
    assert len(grads) == 2
    assert grads.explain(h).reason is fd.Reason.PRESENT
    with pytest.raises(fd.errors.NotTrackedError):
        h.without_autodiff().retain_grad()


def test_require_grad_keeps_the_leaf_and_set_require_grad_undoes_it(device):
    x = fd.tensor([1.0], device=device.autodiff())
    w = x.require_grad()
    assert w._context.id == x._context.id
    assert w.require_grad() is w
    off = w.set_require_grad(False)
    assert off._context.id == x._context.id
    assert not off.is_tracked


def test_detach_makes_a_new_leaf(device):
    w = leaf([1.0], device)
    assert w.detach()._context.id != w._context.id
    assert w.detach().is_require_grad
    assert not (w * 2).detach().is_tracked


def test_integers_are_refused_at_the_call(device):
    n = fd.tensor([1, 2], device=device.autodiff())
    with pytest.raises(fd.errors.DTypeError, match=r"int32.*astype"):
        n.require_grad()
    with pytest.raises(fd.errors.DTypeError, match="int32"):
        n.backward()


def test_no_grad_is_a_decorator_and_leaves_inner_transforms_alone(device):
    w = leaf([1.0], device)

    @fd.no_grad()
    def double(x):
        return x * 2

    assert not double(w).is_tracked
    with fd.no_grad():
        assert fd.grad(lambda x: x * x)(3.0).item() == 6.0
    assert (w * 2).is_tracked


def test_strict_ieee_restores_zero_times_infinity(device):
    w = leaf([0.0, 4.0], device)
    mask = fd.tensor([False, True], device=device)

    def gradient():
        return w.grad(fd.numpy.where(mask, w.sqrt(), 0.0).sum().backward()).tolist()

    assert gradient() == [0.0, 0.25]
    with fd.strict_ieee():
        assert np.isnan(gradient()[0])


# --- order 2


def test_second_order_object_style(device):
    w = fd.tensor([3.0, 4.0], device=device.autodiff(order=2)).require_grad()
    g = w.grad((w * w * w).sum().backward())
    assert g.tolist() == [27.0, 48.0]
    assert g.is_tracked
    assert w.grad(g.sum().backward()).tolist() == [18.0, 24.0]


def test_the_second_derivative_of_a_linear_loss_is_zero(device):
    w = fd.tensor([3.0, 4.0], device=device.autodiff(order=2)).require_grad()
    g = w.grad((w * 5.0).sum().backward())
    assert w.grad(g.sum().backward()).tolist() == [0.0, 0.0]


def test_a_loss_of_a_value_and_its_gradient(device):
    """backward() took the gradient for a constant, and lost its part without a word."""
    w = fd.tensor(2.0, device=device.autodiff(order=2)).require_grad()
    y = w**3
    g = w.grad(y.backward())
    for loss in (y + g**2, (w - g / 16) ** 3, y * w + g):
        with pytest.raises(fd.errors.LevelError, match=r"loss\.inner\(\)\.backward\(\)"):
            loss.backward()
    assert w.grad((y + g**2).inner().backward()).item() == 12 + 2 * 12 * 12
    assert w.grad(((w - g / 16) ** 3).inner().backward()).item() == 3 * 1.25**2 * (1 - 12 / 16)
    assert w.grad((y + g.detach() ** 2).backward()).item() == 12
    scale = leaf(3.0, device)  # of another leaf one level down it may be a constant here
    g = w.grad((w * w * scale).backward())
    assert (g.item(), scale.grad(g.backward()).item()) == (12, 4)


def test_inner_takes_one_level_off_and_without_autodiff_all(device):
    w = fd.tensor([3.0], device=device.autodiff(order=2)).require_grad()
    assert w.device.name == f"autodiff<autodiff<{device.name}>>"
    assert w.inner().device.name == f"autodiff<{device.name}>"
    assert w.without_autodiff().device.name == device.name


def test_a_tape_inside_a_transform_is_inner_to_it(device):
    def loss(x):
        y = x.autodiff().require_grad()
        return y.grad((y * y * y).backward())  # 3 x^2, a function of x

    assert fd.grad(loss)(fd.tensor(2.0, device=device)).item() == 12.0


def test_a_tape_outside_a_transform_is_outer_to_it(device):
    w = leaf(3.0, device)
    g = fd.grad(lambda x: w * x * x)(fd.tensor(2.0, device=device))
    assert g.item() == 12.0
    assert w.grad(g.backward()).item() == 4.0


def test_backward_through_an_open_transform_is_refused(device):
    w = leaf(3.0, device)
    with pytest.raises(fd.errors.LevelError, match="still open"):
        fd.grad(lambda x: (w * x).backward()[w])(fd.tensor(2.0, device=device))


# --- balanced checkpointing


def network(x, w):
    h = x
    for _ in range(4):
        h = ((h @ w).tanh() * h.sigmoid() + h.exp().log1p()).relu()
    return (h.softmax(-1) * h).sum()


def test_balanced_checkpointing_gives_identical_gradients(device):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4)).astype("f"), rng.normal(size=(4, 4)).astype("f")

    def gradients(ad):
        a, b = fd.tensor(x, device=ad).require_grad(), fd.tensor(w, device=ad).require_grad()
        grads = network(a, b).backward()
        return grads[a].numpy(), grads[b].numpy()

    plain = gradients(device.autodiff())
    checkpointed = gradients(device.autodiff().gradient_checkpointing())
    for p, c in zip(plain, checkpointed, strict=True):
        np.testing.assert_array_equal(p, c)


def test_balanced_checkpointing_keeps_no_memory_bound_output(device):
    w = fd.tensor([1.0, 2.0], device=device.autodiff().gradient_checkpointing()).require_grad()
    h = w.exp()
    value = weakref.ref(h._value)
    out = (h * h).sin()
    del h
    assert value() is None
    np.testing.assert_allclose(
        w.grad(out.sum().backward()).numpy(), 2 * np.exp(2 * w.numpy()) * np.cos(np.exp(2 * w.numpy())), rtol=1e-5
    )


def test_balanced_checkpointing_of_a_long_chain_does_not_recurse(device):
    h = w = fd.tensor(1.0, device=device.autodiff().gradient_checkpointing()).require_grad()
    for _ in range(3000):
        h = h.sin()
    assert np.isfinite(w.grad(h.backward()).item())


def test_a_balanced_graph_can_be_released_too(device):
    w = fd.tensor(1.0, device=device.autodiff().gradient_checkpointing()).require_grad()
    h = w.exp()
    (h * h).backward(retain_graph=False)
    with pytest.raises(fd.errors.GraphConsumedError):
        (h.sin()).backward()


# --- lifetime


def test_dropping_the_output_frees_the_graph_by_reference_count(device):
    gc.disable()
    try:
        w = leaf([1.0, 2.0], device)
        h = w.exp()
        dead = [weakref.ref(h), weakref.ref(h._context), weakref.ref(h._value)]
        loss = (h * h).sum()
        loss.backward()
        del h
        assert dead[1]() is not None
        del loss
        assert [ref() for ref in dead] == [None, None, None]
    finally:
        gc.enable()


def test_the_container_does_not_hold_the_graph(device):
    gc.disable()
    try:
        w = leaf([1.0, 2.0], device)
        loss = (w.exp() * w).sum()
        node = weakref.ref(loss._context)
        grads = loss.backward()
        del loss
        assert node() is None
        assert len(grads) == 1
    finally:
        gc.enable()


def test_an_op_keeps_only_what_its_rule_names(device):
    w = leaf([1.0, 2.0], device)
    c = fd.tensor([3.0, 4.0], device=device)

    def kept(x):
        node = x._context
        assert isinstance(node, Node)
        return [isinstance(i, fd.Tensor) for i in node.inputs], node.out is not None

    assert kept(w + c) == ([False, False], False)
    assert kept(w * c) == ([False, True], False)
    assert kept(w * w) == ([True, True], False)
    assert kept(w.exp()) == ([False], True)
    assert kept(w.sin()) == ([True], False)
    assert kept(w.sum()) == ([False], False)


def test_a_chain_of_100_000_ops_neither_recurses_nor_overflows():
    w = fd.tensor(1.0, device=fd.Device.numpy().autodiff()).require_grad()
    one = fd.tensor(1.0, device=fd.Device.numpy())
    h = w
    for _ in range(100_000):
        h = h * one
    assert w.grad(h.backward()).item() == 1.0
    del h


def test_a_chain_of_a_million_nodes_is_released_without_overflow():
    """K11: the graph of a chain is a linked list a million long."""
    w = fd.tensor(1.0, device=fd.Device.numpy().autodiff()).require_grad()
    node = (w * w)._context
    op, leaves = node.op, node.leaves
    for _ in range(1_000_000):
        node = Node(op, (), (node, None), (None, None), None, (), node.dtype, leaves, None, False)
    del node


# --- contexts


def test_threads_build_and_differentiate_at_once(device):
    """K13: eight threads, shared leaves, exact results."""
    w = leaf([1.0, 2.0, 3.0], device)
    failures = []

    def work(k):
        try:
            for i in range(30):
                c = float(k * 30 + i)
                g = w.grad((w * w * c).sum().backward())
                assert g.tolist() == [2 * c, 4 * c, 6 * c]
                assert fd.grad(lambda x, c=c: x * fd.grad(lambda y: x * y * c)(2.0))(3.0).item() == 6.0 * c
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def test_concurrent_backward_over_one_graph(device):
    w = leaf([1.0, 2.0], device)
    loss = (w.exp() * w).sum()
    want = w.grad(loss.backward()).tolist()
    got = []
    threads = [threading.Thread(target=lambda: got.append(w.grad(loss.backward()).tolist())) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert got == [want] * 8


def test_async_tasks_keep_their_levels_apart():
    async def work(c):
        async def inner(x):
            await asyncio.sleep(0)
            return x

        with fd.no_grad():
            await asyncio.sleep(0)
            value = fd.grad(lambda x: x * x * c)(3.0)
        await inner(value)
        return value.item()

    async def main():
        return await asyncio.gather(*[work(float(c)) for c in range(8)])

    assert asyncio.run(main()) == [6.0 * c for c in range(8)]


def test_an_exception_inside_closes_the_level(device):
    def broken(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fd.grad(broken)(1.0)
    assert fd.grad(lambda x: x * fd.grad(lambda y: x * y)(2.0))(3.0).item() == 6.0


def test_a_tensor_that_leaks_from_grad_is_a_constant_afterwards():
    leaked = []

    def loss(x):
        leaked.append(x * 2)
        return x * x

    fd.grad(loss)(3.0)
    assert (leaked[0] * 5).item() == 30.0
    assert fd.grad(lambda x: x * leaked[0])(1.0).item() == 6.0
    assert fd.grad(lambda x: fd.grad(lambda y: y * x * leaked[0])(1.0))(1.0).item() == 6.0


def test_a_complex_tensor_is_no_loss(device):
    z = fd.tensor([1 + 2j], device=device.autodiff()).require_grad()
    for loss in ((z * z).sum(), z.sum() + 0):
        with pytest.raises(fd.errors.DTypeError, match=r"complex64.*z\.real\.backward\(\)"):
            loss.backward()
    assert z.grad((z * z).sum().real.backward()).tolist() == [2 + 4j]
    assert z.grad((z * z).sum().backward(fd.tensor(1 + 0j, device=device))).tolist() == [2 + 4j]
