"""Resident memory of forwards that are dropped or kept, and of a deep chain; run in a process of its own."""

from __future__ import annotations

import gc
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import functad as fd

DEVICE = fd.Device.cpu(fusion=True)


def resident() -> float:
    """MiB of this process, once XLA's threads have let go of their buffers."""
    readings = []
    for _ in range(10):
        time.sleep(0.01)
        pages = int(Path("/proc/self/statm").read_text().split()[1])  # Linux
        readings.append(pages * os.sysconf("SC_PAGE_SIZE") / 2**20)
    return min(readings)


def forwards() -> dict[str, float]:
    """Growth over 20 forwards at 1024x1024: dropped, then kept (which must show)."""
    p = fd.tensor(np.random.default_rng(0).normal(size=(1024, 1024)), device=DEVICE.autodiff()).require_grad()

    def forward() -> Any:
        return ((p.exp() * p) @ p).sum().block_until_ready()

    for _ in range(60):
        forward()
    forward().backward()[p].block_until_ready()
    DEVICE.base.compiler.wait()
    gc.disable()  # reference counts alone must free the graph
    base = resident()
    for _ in range(20):
        forward()
    dropped = resident() - base
    kept = [forward() for _ in range(20)]
    grown = resident() - base
    del kept
    gc.enable()
    return {"20 forwards at 1024x1024, dropped": dropped, "20 forwards at 1024x1024, kept": grown}


def peak_of(call: Callable[[], Any]) -> float:
    """Growth of the peak over a call; the kernel's high-water mark is reset before."""
    call()
    gc.collect()
    base = resident()
    Path("/proc/self/clear_refs").write_text("5")
    call()
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024 - base


def deep_chain() -> dict[str, float]:
    """The peak of value and gradient of 64 layers tanh(x @ w) at 1024x256."""
    rng = np.random.default_rng(0)
    w, x = (rng.normal(0, 0.06, s).astype(np.float32) for s in ((256, 256), (1024, 256)))

    def chain(w: Any, x: Any, tanh: Any) -> Any:
        for _ in range(64):
            x = tanh(x @ w)
        return (x * x).mean()

    jw, jx = jnp.asarray(w), jnp.asarray(x)
    jitted = jax.jit(jax.grad(lambda w: chain(w, jx, jnp.tanh)))
    found = {"64 layers, jax.jit": peak_of(lambda: jitted(jw).block_until_ready())}
    for name, device in {
        "functad": DEVICE.autodiff(),
        "functad, gradient_checkpointing()": DEVICE.autodiff().gradient_checkpointing(),
        "functad, op by op": fd.Device.cpu(fusion=False).autodiff(),
        "functad, op by op, gradient_checkpointing()": fd.Device.cpu(fusion=False).autodiff().gradient_checkpointing(),
    }.items():
        leaf = fd.tensor(w, device=device).require_grad()
        data = fd.tensor(x, device=device.inner())

        def call(leaf: Any = leaf, data: Any = data) -> Any:
            return chain(leaf, data, fd.Tensor.tanh).backward()[leaf].block_until_ready()

        for _ in range(12):
            call()
        DEVICE.base.compiler.wait()
        found[f"64 layers, {name}"] = peak_of(call)
    return found


if __name__ == "__main__":
    print(json.dumps({name: round(mib, 1) for name, mib in (forwards() | deep_chain()).items()}))
