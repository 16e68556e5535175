"""Devices that record eager ops and compile what recurs: same values, same errors, few structures."""

import gc
import resource
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers import compilations, settled

import functad as fd
from functad import dtypes
from functad.backends import fusion_host
from functad.backends.fusion_record import immediate


@pytest.fixture
def fused():
    return settled()


def train(device, steps):
    rng = np.random.default_rng(0)
    x, y = (fd.tensor(rng.normal(size=s), dtype="float32", device=device) for s in ((16, 5), (16, 2)))
    shapes = ((5, 8), (8,), (8, 2))
    ws = [fd.tensor(rng.normal(size=s), dtype="float32", device=device.autodiff()).require_grad() for s in shapes]
    velocity = [w.inner() * 0 for w in ws]
    losses = []
    for _ in range(steps):
        loss = (((x @ ws[0] + ws[1]).tanh() @ ws[2] - y) ** 2).mean()
        grads = loss.backward()
        for i, w in enumerate(ws):
            velocity[i] = velocity[i] * 0.9 + w.grad(grads)
            ws[i] = (w.inner() - velocity[i] * 0.01).autodiff().require_grad()
        losses.append(loss.item())
    return losses


def test_a_training_loop_equals_the_unfused_one_and_settles_on_few_structures(fused):
    fused = settled(forget=True)
    np.testing.assert_allclose(train(fused, 12), train(fd.Device.cpu(fusion=False), 12), rtol=1e-5)
    for _ in range(2):  # what a run leaves pending is run with the start of the next one
        train(fused, 12)
        fused.base.compiler.wait()
    before = fused.base.compiler.counts.runs["compiled"]
    states = fused.base.states
    train(fused, 12)
    assert (fused.base.compiler.counts.runs["compiled"], fused.base.states) == (before, states)


def test_shape_errors_come_from_the_line_that_made_them(fused):
    x = fd.ones((2, 3), device=fused)
    with pytest.raises(fd.errors.ShapeError, match=r"\(2, 3\) and \(4,\)"):
        x + fd.ones(4, device=fused)
    with pytest.raises(IndexError):
        x[7]


def test_values_are_computed_when_they_are_observed(fused):
    x = fd.tensor([1.0, 2.0], device=fused)
    y = (x * 3 + 1).exp()
    assert y._entry is not None
    assert y.shape == (2,)
    np.testing.assert_allclose(y.numpy(), np.exp([4.0, 7.0]), rtol=1e-6)
    assert y._entry is None


@pytest.mark.parametrize("repeat", [1, 3])
def test_a_structure_that_recurs_gives_the_same_gradients(fused, repeat):
    for k in range(repeat):  # op by op first, as one executable afterwards
        w = fd.tensor([1.0 + k, 2.0], device=fused.autodiff()).require_grad()
        h = (w * w).retain_grad()
        grads = (h.exp() * w + h.max()).sum().backward()
        np.testing.assert_allclose(
            grads[w].numpy(), fd.grad(lambda x: ((x * x).exp() * x + (x * x).max()).sum())(w.numpy()).numpy(), rtol=1e-5
        )
        assert grads[h].shape == (2,)


def test_nested_transforms_and_order_2(fused):
    for _ in range(3):
        w = fd.tensor([3.0, 4.0], device=fused.autodiff(order=2)).require_grad()
        g = w.grad((w * w * w).sum().backward())
        assert w.grad(g.sum().backward()).tolist() == [18.0, 24.0]
        x = fd.tensor(1.3, device=fused)
        assert np.isclose(
            fd.grad(fd.grad(lambda x: x.sin() * x))(x).item(), 2 * np.cos(1.3) - 1.3 * np.sin(1.3), atol=1e-5
        )
        rows = fd.tensor([[1.0, 2.0], [3.0, 4.0]], device=fused)
        assert fd.vmap(fd.grad(lambda v: (v * v).sum()))(rows).tolist() == [[2, 4], [6, 8]]


def test_released_graphs_say_so(fused):
    for _ in range(3):
        w = fd.tensor(1.0, device=fused.autodiff()).require_grad()
        loss = w.exp() * w
        loss.backward(retain_graph=False)
        with pytest.raises(fd.errors.GraphConsumedError):
            loss.backward()


def test_a_leaf_that_was_cut_off_another_is_a_reason(fused):
    """The gradient that one executable returns forgot where the leaves themselves came from."""
    for _ in range(3):
        w = fd.tensor([1.0, 2.0], device=fused.autodiff()).require_grad()
        grads = (w.detach() * 2).sum().backward()
        assert grads.explain(w).reason.name == "CUT_BY_DETACH"


def test_a_long_chain_is_run_in_pieces(fused):
    w = x = fd.tensor(1.0, device=fused.autodiff()).require_grad()
    for _ in range(2000):
        x = x * 1.0
    assert (x.item(), w.grad(x.backward()).item()) == (1.0, 1.0)


def test_threads_may_observe_one_value_at_once(fused):
    for _ in range(10):
        y = (fd.tensor([1.0, 2.0], device=fused) * 3 + 1).exp().sum()
        got = []
        threads = [threading.Thread(target=lambda y=y, got=got: got.append(y.item())) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(set(got)) == 1
        assert len(got) == 8


def turns(device, choices, read):
    """A loss of one op after another as `choices` has it, and its gradient."""
    w = x = fd.tensor([0.5, -0.25, 1.5], device=device.autodiff()).require_grad()
    seen = []
    for k in choices:
        x = (x * 0.8, x * 0.9 - 0.01 * x * x, x.tanh() * 0.9, x.sin() * 0.85 + 0.001)[k]
        if read:
            seen.append(x[0].item())
    loss = (x * x).sum()
    return [*seen, loss.item(), *w.grad(loss.backward()).tolist()]


@pytest.mark.parametrize("read", [False, True])
def test_code_that_gains_nothing_is_not_recorded(fused, read):
    fused = settled(forget=True)
    choices = np.random.default_rng(0).integers(0, 4, (40, 8)).tolist()
    plain = fd.Device.cpu(fusion=False)
    for c in choices[:20]:
        np.testing.assert_allclose(turns(fused, c, read), turns(plain, c, read), rtol=1e-5)
    fused.base.compiler.wait()
    before = fused.base.states
    compiled = fused.base.compiler.counts.runs["compiled"]
    for c in choices[20:]:
        turns(fused, c, read)
    fused.base.compiler.wait()
    assert fused.base.states - before < 200
    assert fused.base.compiler.counts.runs["compiled"] - compiled <= (
        6 if read else 1
    )  # what lies between reads comes back
    hits = fused.base.compiler.counts.runs["hits"]
    for _ in range(1000):  # what comes back is recorded and compiled after all
        turns(fused, choices[0], read=False)
        fused.base.compiler.wait()
        if fused.base.compiler.counts.runs["hits"] > hits + 5:
            return
    pytest.fail("not compiled")


PLAIN = fd.Device.cpu(fusion=False)
MIXED = {
    "two pending": lambda x, y: (x + 1) * (y + 1),
    "three": lambda x, y: fd.numpy.concatenate([x * 1, y * 1, x]),
    "update": lambda x, y: x.at[0].set(y[1]),
    "ufunc": np.multiply,
    "grad": lambda x, y: fd.grad(lambda v: (v * v * (y * 2) * (x + 0)).sum())(x * 1),
    "second order": lambda x, y: fd.grad(lambda u: fd.grad(lambda v: (v**3 * y * u).sum())(x).sum())(y),
    "vmap": lambda x, y: fd.vmap(lambda u, v: u * v + y.sum())(x * 1, y),
    "jvp": lambda x, y: fd.jvp(lambda v: v * y, (x,), (x * 2,))[1],
    "jit": lambda x, y: fd.jit(lambda u, v: u * v + y * x)(x * 1, y),
    "jit of a move": lambda x, y: fd.jit(lambda v: v.to_device(y.device) * y)(x),
    "checkpoint": lambda x, y: fd.checkpoint(lambda v: (v * y).exp())(x),
    "scan": lambda x, y: fd.scan(lambda c, s: (c + s, c * y.sum()), x.sum(), y)[1],
    "cond": lambda x, y: fd.cond(x.sum() > 0, lambda v: v * y, lambda v: v, x),
}


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("name", MIXED)
def test_tensors_with_and_without_fusion_meet_in_one_op(fused, name, swap):
    want = MIXED[name](*(fd.tensor(v, device=PLAIN) for v in ([1.0, 2.0], [3.0, 4.0]))).numpy()
    for _ in range(3):
        x, y = (fd.tensor(v, device=PLAIN if i == swap else fused) for i, v in enumerate(([1.0, 2.0], [3.0, 4.0])))
        np.testing.assert_allclose(MIXED[name](x, y).numpy(), want, rtol=1e-6)
    assert (x + y).device.base is PLAIN.base  # it was asked for, so it stays


@pytest.mark.parametrize("swap", [False, True])
def test_tensors_with_and_without_fusion_meet_on_one_tape(fused, swap):
    one, other = (PLAIN, fused) if swap else (fused, PLAIN)
    for _ in range(3):
        w = fd.tensor([1.0, 2.0], device=one.autodiff()).require_grad()
        u = fd.tensor([3.0, 4.0], device=other.autodiff()).require_grad()
        y = fd.tensor([5.0, 6.0], device=other)
        grads = ((w * w + 1) * (u * 2) * y).sum().backward()
        assert (grads[w].tolist(), grads[u].tolist()) == ([60.0, 192.0], [20.0, 60.0])
        w = (w.inner() - grads[u] * 0.05).autodiff().require_grad()
        np.testing.assert_allclose(w.numpy(), [0.0, -1.0])
        moved = (w * 2).to_device(other.autodiff())
        np.testing.assert_allclose(w.grad((moved * moved * u).sum().backward()).numpy(), [0.0, -32.0])
        v = fd.tensor([1.0, 2.0], device=one.autodiff(order=2)).require_grad()
        first = v.grad((v**3 * y).sum().backward())
        assert v.grad((first * y).sum().backward()).tolist() == [150.0, 432.0]


def test_a_tensor_moves_between_fusion_and_none_without_a_copy(fused):
    x = fd.ones(10_000, device=fused)
    y = x.to_device(PLAIN)
    assert y.device.base is PLAIN.base
    assert y.jax().unsafe_buffer_pointer() == x.jax().unsafe_buffer_pointer()
    assert y.to_device(fused).device.base is fused.base


@pytest.mark.skipif(sys.platform != "linux", reason="reads the resident memory from /proc")
def test_ten_thousand_steps_compile_nothing_new_and_keep_nothing(fused):
    fused = settled(forget=True)
    x, y = fd.arange(8, dtype="float32", device=fused) / 8, fd.ones(8, device=fused)
    w = fd.zeros(8, device=fused.autodiff()).require_grad()
    kept = []
    for step in range(10_000):
        if step % 5_000 == 4_000:  # what recurs is compiled by then
            fused.base.compiler.wait()
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            kept.append(
                (fused.base.compiler.counts.runs["compiled"], fused.base.states, pages * resource.getpagesize() / 2**20)
            )
        loss = ((x * w - y) ** 2).mean()
        w = (w.inner() - 1 / (1 + step) * w.grad(loss.backward())).autodiff().require_grad()  # another number each time
        assert step % 1_000 or loss.item() < 1.1
    (compiled, states, memory), (*after, memory_after) = kept
    assert after == [compiled, states]
    assert memory_after - memory < 16


def test_small_ops_on_shapes_that_are_new_are_not_compiled(fused):
    """A sequence that grows waited some 50 ms for each op of each length."""
    device = settled(forget=True)
    w = fd.tensor(np.linspace(-1, 1, 12).reshape(3, 4), device=device.autodiff()).require_grad()
    near = fd.tensor(w.numpy(), device=fd.Device.numpy().autodiff()).require_grad()
    with compilations() as heard:
        for n in range(3, 40):
            x = np.cos(np.arange(n * 3)).reshape(n, 3)
            found = []
            for v in (w, near):
                y = (fd.tensor(x, device=v.device.inner()) @ v).softmax(-1)
                loss = (y.log() * 0.1).sum() + y[n // 2].sum()
                found.append(v.grad(loss.backward()).numpy())
            np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
    assert not heard


def test_ops_leave_the_host_after_so_many_bytes(fused, monkeypatch):
    device = settled(forget=True)
    device.base.near._left.clear()
    monkeypatch.setattr(fusion_host, "_TOTAL_BYTES", 3 * fusion_host._LEAST_BYTES)
    x = fd.tensor(np.linspace(0, 1, 77), device=device)
    with immediate(dtypes.x64_enabled()), compilations() as heard:
        for n in range(5):
            np.testing.assert_allclose(x.cosh().numpy(), np.cosh(np.linspace(0, 1, 77)), rtol=1e-6)
            assert len(heard) == (n >= 3)
        large = fd.ones(fusion_host.MOST_BYTES // 4 + 1, device=device)
        large.sinh().block_until_ready()
    assert len(heard) == 2
