"""What several test files need: fixed inputs, checks, derivatives of both modes as functions of functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

import functad as fd
from functad import ops
from functad.backends import fusion_compile
from functad.backends.batch import Batch
from functad.backends.forward import Forward
from functad.backends.pulls import Pulls
from functad.dispatch import pending
from functad.levels import deeper
from functad.ops.op import Op
from functad.ops.operand import operand


def draw(*shape, seed=0):
    """Normal numbers, float64."""
    return np.random.default_rng(seed).normal(size=shape)


def exactly(got, want):
    """Equal in every element, NaN to NaN."""
    np.testing.assert_array_equal(got.numpy().astype(np.float64), np.asarray(want, np.float64))


def wave(*shape, device=None):
    """Fixed numbers without symmetry."""
    array = np.sin(np.arange(np.prod(shape)) * 1.3 + 0.2).reshape(shape)
    return fd.tensor(array, dtype="float64", device=device)


def checksums(fn, *inputs):
    """A weighted sum of the value, and weighted sums of the gradients of that."""

    def loss(*xs):
        y = fn(*xs)
        weights = np.cos(np.arange(y.size) * 0.7).reshape(y.shape)
        return (y * fd.tensor(weights, dtype="float64", device=xs[0].device.inner())).sum()

    value, grads = fd.value_and_grad(loss, argnums=tuple(range(len(inputs))))(*inputs)
    sums = [(g.numpy() * np.sin(np.arange(g.size)).reshape(g.shape)).sum() for g in grads]
    return [value.item(), *sums]


def jvp(fn, xs, ts):
    """The value of `fn(*xs)` and its tangent; a tangent of None is zero."""
    with deeper() as level:
        forward = Forward(level)
        y = fn(*[forward.wrap(operand(x), None if t is None else operand(t)) for x, t in zip(xs, ts, strict=True)])
        forward.close()
    if y._backend is not forward:
        return y, ops.mul(y, 0)
    return y._value, ops.mul(y._value, 0) if y._context is None else y._context


def forward_derivative(fn, index=0):
    """The derivative of an elementwise function with respect to one argument, in forward mode."""

    def derivative(*xs):
        ts = [operand(1, x, x.dtype).broadcast_to(x.shape) if i == index else None for i, x in enumerate(xs)]
        return jvp(fn, xs, ts)[1]

    return derivative


def vmap(fn, size):
    """`fn` over rows, without the front door's checks."""

    def mapped(*xs):
        with deeper() as level:
            batch = Batch(level, size)
            try:
                return batch.unwrap(fn(*map(batch.wrap, xs)))
            finally:
                batch.close()

    return mapped


@contextmanager
def compilations() -> Iterator[list[str]]:
    """Grows by an entry whenever XLA compiles something for this thread, and not for what others ran before."""
    heard: list[str] = []
    here = threading.get_ident()

    def listen(event: str, _seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration") and threading.get_ident() == here:
            heard.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield heard
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def compiles(run: Callable[[], Any]) -> int:
    """How often XLA compiles something while `run` runs op by op: recurrences, which other tests add to, count not."""
    with fd.set_default_device(fd.Device.cpu(fusion=False)), compilations() as heard:
        run()
    return len(heard)


def compile_soon(monkeypatch: Any, met: int = 2) -> None:
    """Have structures compiled when they are `met` that often, and used from the next time on; with -1, never."""
    for name in ("_WAIT", "_WAIT_OPS", "_WORTH", "_WORTH_PIECE"):
        monkeypatch.setattr(fusion_compile, name, 0)
    for name, value in (("_START", met), ("_PER_OP", 10_000), ("_SAMPLED", 1)):
        monkeypatch.setattr(fusion_compile, name, value)


def rules_that_run(monkeypatch: Any, *, forward: bool = True) -> list[Any]:
    """Grows by the op whenever a derivative rule runs in Python, backward and (if asked for) forward."""
    ran: list[Any] = []
    for owner, name in ((Op, "pull"), (Pulls, "__call__"), *([(Op, "push")] if forward else [])):
        run = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, *args, run=run: ran.append(self) or run(self, *args))
    return ran


def settled(forget: bool = False) -> fd.Device:
    """The device that fuses, with nothing left of earlier tests to be run or compiled; `forget` what they ran, too.

    A test that counts what is recorded, compiled or alive asks for it, or it counts theirs.
    """
    device = fd.Device.cpu(fusion=True)
    if pending.recording is not None:
        pending.recording.fusion.end(pending.recording)
    pending.at_once = pending.futile = pending.gained = 0
    pending.stands_for = 1
    device.base.compiler.wait()
    if forget:
        device.base._prune()
    return device
