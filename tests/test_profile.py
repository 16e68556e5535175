"""`fd.profile()` says what ran."""

import asyncio

import pytest
from helpers import compile_soon, settled

import functad as fd
from functad.dispatch import pending


def step(w, x):
    loss = ((x @ w).tanh() ** 2).mean()
    return w.grad(loss.backward())


def test_what_ran_is_counted(monkeypatch):
    compile_soon(monkeypatch)
    device = settled()
    w = fd.tensor([[0.5, 1.5], [2.5, 0.25], [0.125, 7.0]], device=device.autodiff()).require_grad()
    x = fd.ones((19, 3), device=device)
    with fd.profile() as p:
        assert "not ended" in repr(p)
        step(w, x)
    assert (p.hits, p.compiled + p.op_by_op) == (0, 1)
    for _ in range(20):
        step(w, x)
        device.base.compiler.wait()
    with fd.profile() as p, fd.profile() as inner:
        for _ in range(5):
            step(w, x)
    assert (p.hits, p.compiled, p.op_by_op, p.single_ops) == (5, 0, 0, 0)
    assert inner.hits == 5
    lines = str(p).splitlines()
    assert lines[1].split()[:3] == ["executables", "run", "5"]
    assert len(lines) == 8
    assert not p.op_compilations
    place = f"{__file__}:{step.__code__.co_firstlineno + 2}"
    assert p.ends == inner.ends == {place: 5}
    assert lines[3].split() == ["structures", "ended", "5", place, "5"]


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


def test_shapes_that_are_new_are_named():
    device = settled(forget=True)
    w = fd.ones((3, 3), device=device)
    with fd.profile() as p:
        for n in range(40, 52):
            fd.ones((n, 2000), device=device).cosh().tolist()  # too large for the host
            (fd.ones((n, 3), device=device) @ w).sinh().tolist()
    named = {name: count for name, (count, _) in p.op_compilations.items()}
    assert (named["cosh"], "sinh" in named) == (12, False)
    assert p.compile_seconds >= sum(seconds for _, seconds in p.op_compilations.values()) > 0
    assert "cosh 12" in str(p)
    assert "pad to a few" in str(p)
    with fd.profile() as again:
        fd.ones((40, 2000), device=device).cosh().tolist()
    assert not again.op_compilations
    assert "pad to a few" not in str(again)


def test_programs_are_counted_apart_from_ops():
    @fd.jit
    def triple(x):
        return x * 3

    x = fd.ones(3, device=fd.Device.cpu(fusion=True))
    triple(x)
    with fd.profile() as p:
        for _ in range(4):
            triple(x)
    assert (p.programs, p.single_ops) == ({"triple": 4}, 0)
    assert "triple 4" in str(p)


def test_blocks_may_overlap_as_in_tasks_that_take_turns():
    x = fd.ones(3, device=settled())

    async def look(times):
        with fd.profile() as p:
            for _ in range(times):
                ((x + 1) * 2).tolist()
                await asyncio.sleep(0)
        return p

    async def both():
        return await asyncio.gather(look(1), look(3))

    first, second = asyncio.run(both())
    assert (first.ends.total(), second.ends.total()) == (2, 3)  # what ran while each was open
    assert pending.ends == []
    with second:
        ((x + 1) * 2).tolist()
        assert "not ended" in repr(second)
        with pytest.raises(fd.errors.ArgumentError, match="open already"), second:
            pass
    assert second.ends.total() == 1
    assert pending.ends == []
