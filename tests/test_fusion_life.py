"""Fusion beside interrupts, threads, async tasks and JAX's caches: whatever happens, values are those of eager code."""

import asyncio
import os
import subprocess
import sys
import threading
import time
import weakref

import jax
import numpy as np
import pytest
from helpers import compile_soon, settled

import functad as fd
from functad.backends import fusion_compile
from functad.dispatch import pending


@pytest.fixture
def fused():
    return settled()


class Interrupt(BaseException):
    """What Ctrl-C raises, at a moment of our choice."""


def interrupted(fn, after):
    """Run `fn`, interrupted after so many instructions of Fusion's; whether that came to pass."""
    count = 0

    def local(frame, event, arg):
        nonlocal count
        count += event == "opcode"
        if count == after:
            sys.settrace(None)
            raise Interrupt
        return local

    def trace(frame, event, arg):
        if any(name in frame.f_code.co_filename for name in ("fusion", "dispatch")):
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return local
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        fn()
    except Interrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def loss_of(a, b, w):
    return ((a * w + b).tanh() * (a * b + a) * 0.3 + b).sum()


def around_an_interrupt(device, after=None):
    """Ops before, an interrupted computation, and the same on other tensors after it."""
    rng = np.random.default_rng(0)
    a, b = (fd.tensor(rng.normal(size=3), dtype="float32", device=device) for _ in range(2))
    w = fd.tensor([1.0, 2.0, 3.0], device=device.autodiff()).require_grad()
    earlier, plain = a * w + b, a * b + 1
    came = after is not None and interrupted(lambda: loss_of(a, b, w).backward(), after)
    loss = loss_of(b, a, w)
    total = (earlier * 2).sum() + loss
    grads = total.backward()
    return came, [loss.item(), total.item(), *grads[w].tolist(), *plain.tolist(), *earlier.tolist()]


def test_an_interrupt_between_any_two_instructions_changes_no_later_value(fused):
    """Once a tensor from outside stayed half recorded, and later ops read their neighbours' inputs."""
    want = around_an_interrupt(fd.Device.cpu(fusion=False))[1]
    for _ in range(3):
        around_an_interrupt(fused)
    fused.base.compiler.wait()
    after, came = 1, True
    while came:
        pending.at_once = pending.futile = 0
        came, got = around_an_interrupt(fused, after)
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=f"interrupted after {after} instructions")
        after += 23
    assert after > 1000


def test_an_exception_between_recorded_ops_loses_nothing(fused):
    x = fd.tensor([1.0, 2.0], device=fused)
    y = x * 3
    with pytest.raises(fd.errors.ShapeError):
        y + fd.ones(3, device=fused)
    z = y + x
    with pytest.raises(ZeroDivisionError):
        fd.grad(lambda v: (v * y).sum() * (1 // 0))(x)
    assert ((z * y).tolist(), fd.grad(lambda v: (v * z).sum())(x).tolist()) == ([12.0, 48.0], [4.0, 8.0])


def chain(x, n):
    for _ in range(n):
        x = x * x * 0.5 + 1
    return x


@pytest.mark.parametrize("n", [1, 6])
def test_reading_a_value_under_no_grad_does_not_take_it_off_its_tape(fused, n):
    """What was recorded before ran where it was read, and was off the tape there."""
    want = fd.grad(lambda v: chain(v, n).sum())(fd.tensor([1.0, 0.5], device=fd.Device.numpy())).numpy()
    for _ in range(3):
        w = fd.tensor([1.0, 0.5], device=fused.autodiff()).require_grad()
        x = chain(w, n)
        with fd.no_grad():
            x.tolist()
            assert x.is_tracked
            assert not (x * 2).is_tracked
        np.testing.assert_allclose(w.grad(x.sum().backward()).numpy(), want, rtol=1e-5)


class Box:
    """Holds a tensor where `jit` does not look for it."""

    __slots__ = ("x",)


WHERE_JAX_TRACES = {
    "jit": lambda box, x: fd.jit(lambda v: v * next(iter([box.x])))(x).numpy(),
    "jax.jit": lambda box, x: jax.jit(fd.to_jax(lambda v: v * box.x.without_autodiff()))(x.jax()),
    "from_jax": lambda box, x: fd.from_jax(lambda v: v * box.x.jax())(x).numpy(),
    "jax.grad": lambda box, x: jax.grad(fd.to_jax(lambda v: (v * v * 0.5 * box.x.without_autodiff()).sum()))(x.jax()),
}


@pytest.mark.parametrize("taped", [False, True])
@pytest.mark.parametrize("where", WHERE_JAX_TRACES)
def test_what_was_recorded_runs_while_jax_is_tracing(fused, where, taped):
    """Run op by op there, it became part of what JAX wrote down, and had no value afterwards."""
    box, x = Box(), fd.tensor([1.0, 2.0], device=fused)
    for n in (1, 4):
        for k in range(3):
            start = x * 0.5 + k
            box.x = chain(start.autodiff().require_grad() if taped else start, n)
            got = WHERE_JAX_TRACES[where](box, x)
            np.testing.assert_allclose(got, [1.0, 2.0] * box.x.numpy(), rtol=1e-5)


def in_threads(fn, count=8):
    errors, results = [], [None] * count

    def run(i):
        try:
            results[i] = fn(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]
    return results


def step(device, k, shared):
    w = fd.tensor([1.0 + k, 2.0], device=device.autodiff()).require_grad()
    h = (w * shared).tanh() * (k + 0.5)
    grads = (h * w + shared).sum().backward()
    inner = fd.grad(lambda v: (v * v * shared).sum())(w.inner() * 0.5)
    return [*h.tolist(), *grads[w].tolist(), *inner.tolist()]


def test_eight_threads_train_at_once(fused):
    plain = fd.Device.cpu(fusion=False)
    shared = [fd.tensor([0.5, -0.25], device=d) for d in (fused, plain)]
    got = in_threads(lambda i: [step(fused, i + k % 3, shared[0]) for k in range(12)])
    for i in range(8):
        np.testing.assert_allclose(got[i], [step(plain, i + k % 3, shared[1]) for k in range(12)], rtol=1e-5)


def test_what_one_thread_recorded_others_go_on_with(fused):
    for _ in range(6):
        w = fd.tensor([1.0, 2.0], device=fused.autodiff()).require_grad()
        trunk, data = (w * w).exp(), fd.tensor([3.0, 4.0], device=fused) * 2

        def branch(i, w=w, trunk=trunk, data=data):
            grads = (trunk * data * (i + 1)).sum().backward()
            return grads[w].numpy()

        got = in_threads(branch)
        mine = (trunk * data).sum().backward()[w].numpy()  # recorded here all the while
        for i, g in enumerate(got):
            np.testing.assert_allclose(g, mine * (i + 1), rtol=1e-5)


def test_a_recording_outlives_its_thread(fused):
    kept = []
    in_threads(lambda i: kept.append((fd.tensor([1.0, 2.0], device=fused) * 3 + i).exp()), 1)
    np.testing.assert_allclose((kept[0] * 2).numpy(), 2 * np.exp([3.0, 6.0]), rtol=1e-6)


def test_async_tasks_take_turns(fused):
    async def task(i):
        w = fd.tensor([1.0 + i, 2.0], device=fused.autodiff()).require_grad()
        x = w
        for k in range(6):
            x = x * 0.9 + 0.1 * k
            await asyncio.sleep(0)
            if i % 3 == 0:
                with fd.no_grad():
                    x + 1
                    await asyncio.sleep(0)
        g = fd.grad(lambda v: (v * v).sum())(w.inner() + 0)
        await asyncio.sleep(0)
        return [*x.tolist(), *(x * x).sum().backward()[w].tolist(), *g.tolist()]

    async def main():
        return await asyncio.gather(*[task(i) for i in range(6)])

    for _ in range(4):
        together = asyncio.run(main())
        for i, got in enumerate(together):
            np.testing.assert_allclose(got, asyncio.run(task(i)), rtol=1e-5)


def test_compiling_in_the_background_keeps_no_tensor_alive(fused, monkeypatch):
    """It compiled by running the step on its own inputs once more, and held them until it was done."""
    free, compiling = threading.Event(), threading.Event()
    compile_ = fusion_compile._compile

    def slow(*args):
        compiling.set()
        free.wait(60)
        return compile_(*args)

    def forward(x):
        return (x.tanh() * 2 + x.sin()).sum()

    compiler = fused.base.compiler
    compiler.wait()
    forward(fd.tensor([1.0, 2.0], device=fused)).item()  # compiled at once, being new
    monkeypatch.setattr(fusion_compile, "_compile", slow)
    compile_soon(monkeypatch, 8)
    monkeypatch.setattr(fusion_compile, "_WAIT", 1000)  # nobody waits for it
    try:
        for _ in range(500):
            x = fd.tensor([1.0, 2.0, 3.0], device=fused)
            (x.tanh() * 2 + x.sin() + x.tanh()).mean().item()
            array = weakref.ref(x.jax())
            del x
            if compiling.is_set():
                break
            time.sleep(0.001)
        assert compiling.is_set()
        assert array() is None
    finally:
        free.set()
        compiler.wait()


def test_executables_are_bounded_in_bytes(fused, monkeypatch):
    compiler = fusion_compile.Compiler(lambda plan: False)  # what is new is compiled at once
    monkeypatch.setattr(fused.base, "compiler", compiler)  # what other tests left does not count
    x = fd.tensor(np.ones(1007), device=fused)  # lengths that no other test has met
    before = compiler.bytes
    (x.cos() * 2 + x.sin() - 1).sum().item()
    size = compiler.bytes - before
    assert size > 1000
    monkeypatch.setattr(fusion_compile, "_MOST_BYTES", 4 * size)
    for n in range(1008, 1018):
        x = fd.tensor(np.ones(n), device=fused)
        (x.cos() * 2 + x.sin() - 1).sum().item()
        compiler.wait()
        assert compiler.bytes <= 5 * size
    assert compiler.bytes == sum(p.bytes for p in compiler.plans)


def test_plans_are_bounded_whatever_the_program_holds(fused, monkeypatch):
    """A structure has a plan for each set of results that are held when it ends."""
    monkeypatch.setattr(fusion_compile, "_MOST_PLANS", 8)
    w = fd.tensor(np.ones(3), device=fused.autodiff()).require_grad()
    for n in range(64):
        pending.at_once = pending.futile = 0
        held, x = [], w
        for bit in range(6):
            x = (x * 1.25).cos()
            if n >> bit & 1:
                held.append(x)
        x.sum().item()
    state = next(plan.state for plan in fused.base.compiler.plans if plan.count > 1)
    assert len(state.plans) <= 9


PROGRAM = """
import sys, time
import jax
import functad as fd

jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
found = []
jax.monitoring.register_event_listener(lambda name, **kw: found.append(name.split("/")[-1]))
device = fd.Device.cpu(fusion=True)
for k in range(5):
    w = fd.ones(100_000, device=device.autodiff()).require_grad()  # too large for the host
    g = w.grad(((w * 3) * w).sum().backward())
    device.base.compiler.wait()
print(*g[:2].tolist(), found.count("cache_hits"), found.count("cache_misses"), device.base.compiler.counts.runs["hits"])
"""


def test_jaxs_compilation_cache_serves_fusion(tmp_path):
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    runs = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PROGRAM, str(tmp_path)],
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        runs.append([float(x) for x in done.stdout.split()])
    first, second = runs
    assert second[:2] == first[:2]
    assert first[3] > 0
    assert (second[2] >= first[3], second[3]) == (True, 0)
    assert second[4] >= 2


@pytest.mark.parametrize("switch", [fd.enable_x64, lambda: jax.enable_x64(True)], ids=["fd", "jax"])
def test_the_precision_mode_may_change_between_ops(fused, switch):
    """A recording went on in the other mode: results had other dtypes than they said, or float64 was lost."""
    for _ in range(3):
        x = fd.tensor([1.0, 3.0, 2.0], device=fused)
        y = x * 2 + 1
        with switch():
            wide = fd.tensor([1.0, 2.0, 3.0], dtype="float64", device=fused) * 3 + 1e-12
            place, total = (x * 2).argmin(), (y + 1).sum()
            assert (wide.numpy().dtype, (wide * wide)[0].item()) == (np.float64, (3 + 1e-12) ** 2)
            rest = wide * wide
        other = (x * 2).argmin()
        assert (place.dtype, other.dtype) == (place.numpy().dtype, other.numpy().dtype)
        assert other.dtype == np.int32
        assert rest.tolist()[1] == (6 + 1e-12) ** 2
        assert (total.item(), y.tolist()) == (18.0, [3.0, 7.0, 5.0])
