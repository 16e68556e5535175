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
        return ((p @ p).tanh() @ p).sum().block_until_ready()  # backward needs the first product

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


def matmuls(w: Any, x: Any, layer: Callable[..., Any]) -> Any:
    """64 layers tanh(x @ w)."""
    for _ in range(8):
        x = layer(x, w)
    return (x * x).mean()


def waves(x: Any, _: Any, layer: Callable[..., Any]) -> Any:
    """128 elementwise ops."""
    for _ in range(8):
        x = layer(x)
    return (x * x).mean()


def deep_chains() -> dict[str, float]:
    """The peak of value and gradient of chains, of which each step has a result of 1 MiB (1024 x 256)."""
    rng = np.random.default_rng(0)
    w, x = (rng.normal(0, 0.06, s).astype(np.float32) for s in ((256, 256), (1024, 256)))

    def dense(tanh: Any) -> Callable[..., Any]:
        def layers(x: Any, w: Any) -> Any:
            for _ in range(8):
                x = tanh(x @ w)
            return x

        return layers

    def sines(sin: Any) -> Callable[..., Any]:
        def ops(x: Any) -> Any:
            for _ in range(8):
                x = sin(x * 1.01)
            return x

        return ops

    found = {}
    fused, single = DEVICE.autodiff(), fd.Device.cpu(fusion=False).autodiff()
    ours, theirs = dense(fd.Tensor.tanh), dense(jnp.tanh)
    for chain, about, leaf, own, other in (
        (matmuls, "64 layers", w, ours, theirs),
        (waves, "128 elementwise ops", x, sines(fd.Tensor.sin), sines(jnp.sin)),
    ):
        jitted = jax.jit(jax.grad(lambda p, x, chain=chain, layer=other: chain(p, x, layer)))
        arrays = jnp.asarray(leaf), jnp.asarray(x)
        found[f"{about}, jax.jit"] = peak_of(lambda f=jitted, xs=arrays: f(*xs).block_until_ready())  # type: ignore[misc]
        for name, device, layer in (
            ("functad", fused, own),
            ("functad, fd.checkpoint of each 8", fused, fd.checkpoint(own)),
            ("functad, gradient_checkpointing()", fused.gradient_checkpointing(), own),
            ("functad, op by op", single, own),
            ("functad, op by op, fd.checkpoint of each 8", single, fd.checkpoint(own)),
            ("functad, op by op, gradient_checkpointing()", single.gradient_checkpointing(), own),
        ):
            param = fd.tensor(leaf, device=device).require_grad()
            data = fd.tensor(x, device=device.inner())

            def call(chain: Any = chain, param: Any = param, data: Any = data, layer: Any = layer) -> Any:
                return chain(param, data, layer).backward()[param].block_until_ready()

            hits = DEVICE.base.compiler.counts.runs["hits"]
            for _ in range(80 if device is not single and device.inner() == DEVICE else 4):
                call()  # until it is compiled as a whole
                if DEVICE.base.compiler.counts.runs["hits"] > hits:
                    break
            found[f"{about}, {name}"] = peak_of(call)
    return found


if __name__ == "__main__":
    print(json.dumps({name: round(mib, 1) for name, mib in (forwards() | deep_chains()).items()}))
