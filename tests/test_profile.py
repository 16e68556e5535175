"""`fd.profile()` says what ran."""

from helpers import settled

import functad as fd


def step(w, x):
    loss = ((x @ w).tanh() ** 2).mean()
    return w.grad(loss.backward())


def test_what_ran_is_counted():
    device = settled()
    w = fd.tensor([[0.5, 1.5], [2.5, 0.25], [0.125, 7.0]], device=device.autodiff()).require_grad()
    x = fd.ones((19, 3), device=device)
    with fd.profile() as p:
        assert "not ended" in repr(p)
        step(w, x)
    assert (p.hits, p.compiled + p.op_by_op) == (0, 1)
    for _ in range(200):
        step(w, x)
        device.base.compiler.wait()
    with fd.profile() as p, fd.profile() as inner:
        for _ in range(5):
            step(w, x)
    assert (p.hits, p.compiled, p.op_by_op, p.single_ops) == (5, 0, 0, 0)
    assert inner.hits == 5
    lines = str(p).splitlines()
    assert lines[1].split()[:3] == ["executables", "run", "5"]
    assert len(lines) == 6


def test_what_the_tape_keeps_is_measured():
    device = fd.Device.cpu(fusion=False)
    w = fd.ones((64, 1024), device=device.autodiff()).require_grad()
    with fd.profile() as before:
        pass
    with fd.profile() as after:
        kept = w.exp().exp()
    assert after.tape_bytes - before.tape_bytes >= 2 * 64 * 1024 * 4
    del kept


def test_single_ops_are_named():
    x = fd.ones(5, device=fd.Device.cpu(fusion=True))
    with fd.profile() as p:
        (x + x).tolist()
    assert p.single_ops == 1
    assert p.singles == {"add": 1}
    assert "add 1" in str(p)
