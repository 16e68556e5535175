"""The core's speed and memory, beside JAX's and (if it is installed) PyTorch's, in one process.

    python benchmarks/core.py               # a table
    python benchmarks/core.py --json FILE   # and the numbers, as JSON

Contenders take turns: each round times every one of them, so a busy machine slows all alike. Printed
are the medians over the rounds, and of the ratios within a round. Losses and gradients are compared
before anything is timed. Memory is measured in a fresh process.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import functad as fd
from functad import tree

try:
    import torch
except ImportError:  # one contender less
    torch = None

Contenders = dict[str, Callable[[], Any]]
DEVICE = fd.Device.cpu()


def take_turns(contenders: Contenders, calls: int, rounds: int = 40) -> dict[str, list[float]]:
    """Microseconds per call of each contender, one number per round."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():  # compile, warm caches
        for _ in range(max(5, calls // 10)):
            _wait(call())
    for _ in range(rounds):
        for name, call in contenders.items():
            start = time.perf_counter()
            for _ in range(calls):
                _wait(call())
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return times


def report(title: str, times: dict[str, list[float]], base: str) -> dict[str, Any]:
    """Print medians and the ratios to `base`; return them for the JSON."""
    print(f"\n{title}")
    result = {}
    for name, values in times.items():
        median = statistics.median(values)
        ratio = statistics.median(mine / other for mine, other in zip(values, times[base], strict=True))
        result[name] = {"us": round(median, 2), f"times {base}": round(ratio, 3)}
        print(f"  {name:<34}{median:10.1f} us{ratio:10.2f} x {base}")
    return result


def _wait(out: Any) -> None:
    """Until asynchronous or deferred results are there, as a program that looks at each would have to."""
    for leaf in tree.leaves(out):
        if hasattr(leaf, "block_until_ready"):
            leaf.block_until_ready()


# --- one multiplication


def multiplication() -> dict[str, Any]:
    """`x * y` of 32x64: functad's eager operator, jnp's, and a jitted multiply."""
    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(32, 64)).astype(np.float32) for _ in range(2))
    x, y = fd.tensor(a, device=DEVICE), fd.tensor(b, device=DEVICE)
    jx, jy, jitted = jnp.asarray(a), jnp.asarray(b), jax.jit(jnp.multiply)
    w = x.autodiff().require_grad()
    _agree("x * y", [(x * y).numpy(), (w * y).numpy()], np.asarray(jx * jy))

    times = take_turns(
        {
            "functad x * y": lambda: x * y,
            "functad w * y, recorded": lambda: w * y,
            "jnp x * y": lambda: jx * jy,
            "jax.jit(jnp.multiply)(x, y)": lambda: jitted(jx, jy),
        },
        calls=500,
    )
    result = report("x * y of 32x64, eager", times, "jnp x * y")
    overhead = statistics.median(
        r - p for r, p in zip(times["functad w * y, recorded"], times["functad x * y"], strict=True)
    )
    print(f"  {'recording one op costs':<34}{overhead:10.1f} us")
    return result | {"recording_us": round(overhead, 2)}


# --- loss and gradients of a small MLP


def mlp_loss(params: Any, x: Any, y: Any, tanh: Callable[[Any], Any]) -> Any:
    """Two hidden layers and the mean squared error, for tensors of any library."""
    w1, b1, w2, b2, w3, b3 = params
    hidden = tanh(x @ w1 + b1)
    hidden = tanh(hidden @ w2 + b2)
    error = hidden @ w3 + b3 - y
    return (error * error).mean()


def mlp() -> dict[str, Any]:
    """Forward and backward of a 64-64-64-10 tanh MLP on a batch of 32."""
    rng = np.random.default_rng(0)
    shapes = [(64, 64), (64,), (64, 64), (64,), (64, 10), (10,)]
    arrays = [rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for shape in shapes]
    data = [rng.normal(size=shape).astype(np.float32) for shape in ((32, 64), (32, 10))]

    plain = [fd.tensor(a, device=DEVICE) for a in arrays]
    leaves = [p.autodiff().require_grad() for p in plain]
    x, y = (fd.tensor(a, device=DEVICE) for a in data)
    functional = fd.value_and_grad(lambda params: mlp_loss(params, x, y, fd.Tensor.tanh))

    jparams, (jx, jy) = [jnp.asarray(a) for a in arrays], [jnp.asarray(a) for a in data]
    unjitted = jax.value_and_grad(lambda params: mlp_loss(params, jx, jy, jnp.tanh))
    jitted = jax.jit(unjitted)

    def object_style() -> Any:
        loss = mlp_loss(leaves, x, y, fd.Tensor.tanh)
        grads = loss.backward()
        return loss, [w.grad(grads) for w in leaves]

    contenders: Contenders = {
        "functad loss.backward()": object_style,
        "functad fd.value_and_grad": lambda: functional(plain),
        "jax.value_and_grad, not jitted": lambda: unjitted(jparams),
        "jax.jit(jax.value_and_grad)": lambda: jitted(jparams),
    }
    if torch is not None:
        tparams = [torch.tensor(a, requires_grad=True) for a in arrays]
        tx, ty = (torch.tensor(a) for a in data)

        def torch_eager() -> Any:
            loss = mlp_loss(tparams, tx, ty, torch.tanh)
            return loss, torch.autograd.grad(loss, tparams)

        contenders["torch eager"] = torch_eager

    expected_loss, expected = jitted(jparams)
    for name, call in contenders.items():
        loss, grads = call()
        _agree(f"{name}: loss", [_numpy(loss)], np.asarray(expected_loss))
        for i, (g, e) in enumerate(zip(grads, expected, strict=True)):
            _agree(f"{name}: gradient {i}", [_numpy(g)], np.asarray(e))
    times = take_turns(contenders, calls=10)
    return report("loss and gradients of a 32x64-64-64-10 tanh MLP", times, "jax.jit(jax.value_and_grad)")


def _numpy(x: Any) -> np.ndarray:
    return x.numpy() if isinstance(x, fd.Tensor) else np.asarray(x.detach() if hasattr(x, "detach") else x)


def _agree(what: str, found: list[np.ndarray], expected: np.ndarray) -> None:
    for value in found:
        if value.shape != expected.shape or not np.allclose(value, expected, rtol=1e-4, atol=1e-6):
            sys.exit(f"{what} differs: found {value}, expected {expected}")


# --- memory and depth


def memory() -> dict[str, Any]:
    """Growth of the resident set over 20 forwards at 1024x1024: dropped, then kept (which must show)."""
    p = fd.tensor(np.random.default_rng(0).normal(size=(1024, 1024)), device=DEVICE.autodiff()).require_grad()

    def forward() -> fd.Tensor:
        return ((p.exp() * p) @ p).sum().block_until_ready()

    def settled() -> float:  # XLA's threads let go of their buffers a moment later
        readings = []
        for _ in range(10):
            forward()
            time.sleep(0.01)
            readings.append(_resident_mib())
        return min(readings)

    for _ in range(5):
        forward().backward()[p].block_until_ready()
    gc.disable()  # reference counts alone must free the graph
    base = settled()
    for _ in range(20):
        forward()
    dropped = settled() - base
    kept = [forward() for _ in range(20)]
    grown = settled() - base
    return {"dropped_mib": round(dropped, 1), "kept_mib": round(grown, 1), "forwards": len(kept)}


def _resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])  # Linux
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def chain(length: int = 100_000) -> dict[str, Any]:
    """A chain of many ops: seconds forward, backward, and to let go of it."""
    w = fd.tensor(np.full(8, 0.5), device=DEVICE.autodiff()).require_grad()
    (w + w).sum().backward()  # compile
    marks = [time.perf_counter()]
    x = w
    for _ in range(length):
        x = x + w
    x.block_until_ready()
    marks.append(time.perf_counter())
    grads = x.backward()
    g = grads[w].block_until_ready()
    marks.append(time.perf_counter())
    del x
    marks.append(time.perf_counter())
    _agree("the gradient of the chain", [g.numpy()], np.full(8, length + 1, np.float32))
    spans = [round(b - a, 3) for a, b in itertools.pairwise(marks)]
    print(f"\na chain of {length:,} additions\n  forward {spans[0]} s, backward {spans[1]} s, release {spans[2]} s")
    return {"ops": length, **dict(zip(["forward_s", "backward_s", "release_s"], spans, strict=True))}


def main() -> None:
    """Measure all, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--memory", action="store_true", help="measure memory only (run in a process of its own)")
    args = parser.parse_args()
    if args.memory:
        print(json.dumps(memory()))
        return
    numbers = {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "torch": torch and torch.__version__,
        "cores": os.cpu_count(),
        "multiplication": multiplication(),
        "mlp": mlp(),
        "chain": chain(),
    }
    # glibc then takes each large buffer from the system and gives it back: resident is what is alive.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, __file__, "--memory"]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    numbers["memory"] = mib = json.loads(child.stdout)
    print(
        f"\n{mib['forwards']} forwards of ((p.exp() * p) @ p).sum() at 1024x1024, resident memory\n"
        f"  dropped {mib['dropped_mib']:+.1f} MiB, kept {mib['kept_mib']:+.1f} MiB"
    )
    if args.json:
        args.json.write_text(json.dumps(numbers, indent=2) + "\n")


if __name__ == "__main__":
    main()
