"""Random programs give the same values, gradients and errors on a device that fuses as op by op."""

import gc
import os
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from helpers import settled
from hypothesis import HealthCheck, given, settings

import functad as fd
from functad.testing.running import compiling

UNARY = ("sin", "tanh", "neg", "relu", "transpose", "row", "reverse", "mean", "cast")
BINARY = ("add", "mul", "sub", "matmul", "maximum", "divide")

number = st.floats(-2, 2, width=16)
place = st.integers(0, 30)
actions = st.one_of(
    st.tuples(st.sampled_from(UNARY), place, st.integers(0, 2)),
    st.tuples(st.sampled_from(BINARY), place, place),
    st.tuples(st.just("scale"), place, number),
    st.tuples(st.sampled_from(["read", "branch", "drop", "detach", "retain", "inner", "fail", "count"]), place),
    st.tuples(st.sampled_from(["backward", "release", "no_grad", "nested", "rows"]), place),
)


def run(program, device):
    """Everything a program sees, in order."""
    rng = np.random.default_rng(0)
    leaves = [fd.tensor(rng.normal(size=(3, 3)), device=device.autodiff()).require_grad() for _ in range(2)]
    pool = [*leaves, fd.tensor(rng.normal(size=(3, 3)), device=device)]
    seen = []
    for name, at, *rest in program:
        x = pool[at % len(pool)]
        try:
            if name in BINARY:
                pool.append(binary(name, x, pool[rest[0] % len(pool)]))
            elif name in UNARY:
                pool.append(unary(name, x, rest[0]))
            elif name == "scale":
                pool.append(x * rest[0] + 1.0)
            elif name == "drop":
                if len(pool) > 4:
                    pool.pop(3 + at % (len(pool) - 3))
            elif name == "branch":
                pool.append(x + 1 if bool((x.sum() > 0).item()) else x * 2)
            elif name == "retain":
                x.retain_grad()
                seen.append(x.is_require_grad)
            elif name in ("backward", "release"):
                grads = (x * x).mean().backward(retain_graph=name == "backward")
                seen += [None if (g := grads.get(y)) is None else g.numpy() for y in (*leaves, x)]
                seen.append(grads.explain(leaves[0]).reason)
            else:
                observe(name, x, pool, seen)
        except fd.FunctadError as error:
            seen.append(type(error))
    return [*seen, *[x.numpy() for x in pool]]


def unary(name, x, i):
    if name == "row":
        return x[i] + x
    if name == "reverse":
        return x[::-1]
    if name == "mean":
        return x - x.mean(axis=i % 2, keepdims=True)
    if name == "transpose":
        return x.T
    if name == "neg":
        return -x
    if name == "cast":
        return (x * 2).astype("int32").astype("float32") + x
    return fd.ops.maximum(x, 0) if name == "relu" else getattr(x, name)()


def binary(name, x, y):
    if name == "divide":
        return x / (y * y + 1)
    if name == "maximum":
        return fd.ops.maximum(x, y)
    if name == "matmul":
        return (x @ y) * 0.25
    return {"add": x + y, "mul": x * y * 0.5, "sub": x - y}[name]


def observe(name, x, pool, seen):
    if name == "read":
        seen.append(x.numpy())
    elif name == "count":
        seen.append(int((x > 0).sum()))
    elif name == "detach":
        pool.append(x.detach() * x)
    elif name == "inner":
        pool.append(x.inner() * x)
    elif name == "no_grad":
        with fd.no_grad():
            pool.append(x.tanh())
    elif name == "nested":
        seen.append(fd.grad(lambda v: (v.sin() * fd.grad(lambda u: (u * u * v).sum())(v)).sum())(x.inner()).numpy())
    elif name == "rows":
        pool.append(fd.vmap(lambda v: v * v.mean())(x))
    elif name == "fail":
        x + fd.ones(7, device=pool[2].device)


def same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        if isinstance(b, np.ndarray):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
        else:
            assert a == b


@settings(max_examples=int(os.environ.get("FUNCTAD_RANDOM_PROGRAMS", "25")), suppress_health_check=list(HealthCheck))
@given(st.lists(actions, min_size=1, max_size=14), st.integers(1, 3))
def test_random_programs(program, repeats):
    expected = run(program, fd.Device.cpu(fusion=False))
    for device in (fd.Device.cpu(fusion=True), compiling()):  # small ops on the host, and compiled at once
        for _ in range(repeats):  # the first time it runs in one way, later perhaps in another
            same(run(program, device), expected)


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's account of memory")
def test_a_long_training_keeps_memory_and_compilations_constant():
    device = settled(forget=True)
    compiler = device.base.compiler
    w = fd.ones((64, 64), device=device)
    m = w * 0
    x = fd.ones((8, 64), device=device)

    def train(steps, w, m, first):
        for i in range(first, first + steps):
            p = w.autodiff().require_grad()
            loss = ((x @ p).tanh() ** 2).mean() + p[i % 64, 3] * 1e-3
            m = m * 0.9 + p.grad(loss.backward()) * (1 - 0.9**i)
            w = w - m * (1e-2 / (1 + i))
            if i % 100 == 0:
                loss.item()
        return w, m

    w, m = train(600, w, m, 1)
    compiler.wait()
    w, m = train(600, w, m, 601)
    compiler.wait()
    gc.collect()
    before = (compiler.counts.runs["compiled"], device.base.states)
    resident = resident_mib()
    steps = int(os.environ.get("FUNCTAD_LONG_TRAINING", "1000"))
    w, m = train(steps, w, m, 1201)
    compiler.wait()
    assert (compiler.counts.runs["compiled"], device.base.states) == before
    assert resident_mib() - resident < 8
    assert np.isfinite(w.numpy()).all()
