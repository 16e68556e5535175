"""What goes on behind recorded ops on the tape is what would be there without recording them, compiled or not."""

import gc
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import functad as fd
from functad.backends import fusion_compile
from functad.dispatch import pending

REPEATS = 6


@pytest.fixture(params=["compiled", "op by op", "not recorded"])
def device(request, monkeypatch):
    """A device whose structures are compiled as soon as they recur, one that never compiles, and one that does not fuse."""
    monkeypatch.setattr(fusion_compile, "_START", 2 if request.param == "compiled" else -1)
    monkeypatch.setattr(fusion_compile, "_SWITCH", 0)
    pending.at_once = pending.futile = 0
    return fd.Device.cpu(fusion=request.param != "not recorded")


def repeated(device):
    """Several rounds, each with what was compiled in the one before."""
    for _ in range(REPEATS):
        pending.futile = 0  # short programs that are looked at all the time would not be recorded for a while
        yield
        if device.base.fuses:
            device.base.compiler.wait()


def leaf(device, *values):
    return fd.tensor(values, device=device.autodiff()).require_grad()


def test_what_the_loss_does_not_need_sends_nothing_back(device):
    a, b = leaf(device, 1.0, 2.0), leaf(device, 0.5, 0.7)
    m = fd.tensor([[np.inf, 1.0], [2.0, 3.0]], device=device)
    for _ in repeated(device):
        h, k, j = (a.sin() * a).exp().tanh(), (m @ a).tanh().exp(), (b.cos() * b).tanh().exp()
        assert np.isfinite(h.sum().item())
        grads = (h * 2.0).sum().backward()
        np.testing.assert_allclose(grads[a].numpy(), [0.243095, 1.7e-05], rtol=0.1)
        assert (len(grads), grads.explain(b).reason.name, b.grad(grads)) == (1, "NOT_REACHED", None)
        assert (k.shape, j.shape) == ((2,), (2,))


@pytest.mark.parametrize("observed", [False, True])
def test_releasing_a_graph_leaves_others_alone(device, observed):
    a, b = leaf(device, 1.0, 2.0), leaf(device, 0.5, 0.7)
    for _ in repeated(device):
        h, k, m = (a.sin() * a).exp().tanh(), (b.cos() * b).tanh().exp(), (a * a).sum()
        if observed:
            h.sum().item()
        (h * 2.0).sum().backward(retain_graph=False)
        assert (k * 2.0).sum().backward()[b].shape == (2,)
        assert m.backward()[a].tolist() == [2.0, 4.0]
        with pytest.raises(fd.errors.GraphConsumedError):
            (h * 3.0).sum().backward()


def test_a_cut_is_told_wherever_it_was_recorded(device):
    a, b = leaf(device, 1.0, 2.0), leaf(device, 0.5, 0.7)
    cuts = {"CUT_BY_DETACH": lambda x: (x * 3.0).detach(), "CUT_BY_INT_CAST": lambda x: (x * 3.0).astype("int32")}
    for _ in repeated(device):
        for reason, cut in cuts.items():
            k = ((cut(a) * b).sin().exp() * b).sum()
            k.item()
            assert k.backward().explain(a).reason.name == reason
            other = (b.sin() * b).exp().sum()
            both = (cut(a) * b).sin().exp().sum()
            assert np.isfinite(other.item() + both.item())
            assert other.backward().explain(a).reason.name != reason


def test_an_intermediate_is_retained_whenever_it_is_asked_for(device):
    a = leaf(device, 1.0, 2.0)
    for _ in repeated(device):
        h = (a.sin() * a).exp() * a
        loss = (h.tanh() * 3.0).sum()
        h.retain_grad()
        grads = loss.backward()
        np.testing.assert_allclose(grads[h].numpy(), 3 / np.cosh(h.numpy()) ** 2, rtol=1e-4, atol=1e-5)
        assert len(grads) == 2


def test_an_intermediate_of_another_thread_is_retained(device):
    a, made = leaf(device, 1.0, 2.0), []

    def record():
        h = a.sin() * a
        made.extend([h, (h * 3.0).sum()])

    thread = Thread(target=record)
    thread.start()
    thread.join()
    h, loss = made
    h.retain_grad()
    assert loss.backward()[h].tolist() == [3.0, 3.0]


def test_a_loss_that_was_looked_at_is_differentiated_in_one_call(device):
    a = leaf(device, 1.0, 2.0)
    for _ in repeated(device):
        loss = ((a.sin() * a).exp() * a).sum()
        assert np.isfinite(loss.item())
        with fd.profile() as p:
            grads = loss.backward()
        x = np.array([1.0, 2.0])
        e = np.exp(x * np.sin(x))
        np.testing.assert_allclose(grads[a].numpy(), e + x * e * (np.sin(x) + x * np.cos(x)), rtol=1e-5)
    if device.base.fuses and fusion_compile._START > 0:
        assert (p.hits, p.single_ops) == (1, 0)


def test_half_types_are_rounded_after_every_op(device):
    x = fd.tensor([2.0, 1.5, 0.7], device=device)
    for _ in repeated(device):
        z = (((x.astype(fd.bfloat16) * 1.01) * 1.01) * 1.01).astype(fd.float32)
        assert z.tolist() == [2.046875, 1.546875, 0.7109375]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident memory from /proc")
@pytest.mark.parametrize("kept", [False, True])
def test_what_the_program_drops_is_not_held(device, kept):
    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    w = leaf(device, *[1.0] * 256)
    held = []

    def step(i):
        batch = fd.tensor(np.full((8192, 256), i, np.float32), device=device)  # 8 MiB
        loss = (batch @ w).mean()
        if kept:
            held.append((w * 2.0).sin())  # does not need the batch
            loss.item()

    for i in range(20):
        step(i)
    before = resident()
    for i in range(40):
        step(i)
    assert resident() - before < 150  # of 320 MiB
