"""functad beside PyTorch, JAX, MLX and HIPS autograd, in one process.

    python -m benchmarks                          # a table
    python -m benchmarks --json FILE --plot FILE  # the numbers, and a picture of the ratios
    python -m benchmarks --only MLP --rounds 5    # some workloads, quickly

Contenders take turns: each round times every one of them, so a busy machine slows all alike. Printed
are the medians over the rounds, and of the ratios to `jax.jit` within a round. Losses and gradients
are compared before anything is timed. Memory and the time to the first gradient are measured in
fresh processes. What is not installed does not take part.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import functad as fd
from benchmarks.libraries import Functad, Library, libraries
from benchmarks.workloads import Workload, contenders, workloads

Contenders = dict[str, tuple[Library, Any]]


def compare(workload: Workload, found: Contenders) -> None:
    """Stop if two libraries disagree on the loss or a gradient."""
    expected: list[np.ndarray] | None = None
    first = ""
    for name, (lib, call) in found.items():
        value, grads = call()
        results = [np.asarray(lib.numpy(x), np.float64) for x in (value, *grads)]
        if expected is None:
            expected, first = results, name
            continue
        for i, (a, b) in enumerate(zip(results, expected, strict=True)):
            if a.shape != b.shape or not np.allclose(a, b, rtol=2e-3, atol=2e-4 * max(1e-3, np.abs(b).max())):
                what = "loss" if i == 0 else f"gradient {i - 1}"
                sys.exit(f"{workload.title}: the {what} of {name} differs from that of {first}: {a}, {b}")


def take_turns(found: Contenders, calls: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds per call of each contender, one number per round."""
    times: dict[str, list[float]] = {name: [] for name in found}
    for lib, call in found.values():  # compile, warm caches
        start = time.perf_counter()
        for i in range(200):  # functad uses what recurs compiled after some dozen times, what is long after more
            lib.wait(call())
            if i > (150 if isinstance(lib, Functad) and lib.fusion else 3) and time.perf_counter() - start > 5:
                break
        if isinstance(lib, Functad) and lib.fusion:
            lib.device.base.compiler.wait()
            lib.wait(call())
            lib.wait(call())
    for _ in range(rounds):
        for name, (lib, call) in found.items():
            start = time.perf_counter()
            for _ in range(calls):
                lib.wait(call())
            times[name].append((time.perf_counter() - start) / calls * 1e6)
    return times


def report(title: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Print medians and ratios to the first contender; return them for the JSON."""
    print(f"\n{title}")
    base = next(iter(times))
    result = {}
    for name, values in times.items():
        median = statistics.median(values)
        ratio = statistics.median([mine / other for mine, other in zip(values, times[base], strict=True)])
        result[name] = {"us": round(median, 2), "ratio": round(ratio, 3)}
        print(f"  {name:<22}{median:12.1f} us{ratio:10.2f} x {base}", flush=True)
    return result


def timings(only: str, rounds: int) -> dict[str, Any]:
    """Every workload whose title has `only` in it."""
    results = {}
    makers = libraries()
    for workload in workloads():
        for step in (False, True) if workload.step else (False,):
            title = f"{workload.title}: " + ("step of Adam" if step else "value and gradient")
            if only.lower() not in title.lower():
                continue
            found = contenders(workload, makers, step)
            if not step:
                compare(workload, found)
            results[title] = report(title, take_turns(found, workload.calls, rounds))
    if only.lower() in "hessian of 20":
        results["Hessian of 20"] = report("Hessian of 20", take_turns(hessians(), 3, rounds))
    return results


class _Tensors(Library):
    def wait(self, out: Any) -> None:
        out.block_until_ready()


def hessians() -> Contenders:
    """The Hessian of a function of 20 numbers."""
    a = np.random.default_rng(0).normal(size=20).astype(np.float32)

    def fn(x: Any) -> Any:
        return (x[1:] * x[:-1] * x[:-1]).sum() + (x * x * x * x).sum()

    jitted, plain = jax.jit(jax.hessian(fn)), jax.hessian(fn)
    x, jx = fd.tensor(a, device=fd.Device.cpu(fusion=True)), jax.numpy.asarray(a)
    eager, compiled = fd.hessian(fn), fd.jit(fd.hessian(fn))
    if not np.allclose(eager(x).numpy(), plain(jx), rtol=1e-4, atol=1e-5):
        sys.exit("Hessian of 20: functad and jax differ")
    return {
        "jax.jit": (Library(), lambda: jitted(jx)),
        "functad": (_Tensors(), lambda: eager(x)),
        "fd.jit": (_Tensors(), lambda: compiled(x)),
        "jax, not jitted": (Library(), lambda: plain(jx)),
    }


def first_gradient() -> dict[str, float]:
    """Seconds from the start of a process to its first gradient of the tiny MLP."""
    print("\nfirst gradient of the tiny MLP, from the start of the process")
    seconds = {}
    for make in libraries():
        code = (
            f"from {make.__module__} import {make.__name__} as make\n"
            "from benchmarks.workloads import workloads\n"
            "w = workloads()[0]\nlib = make()\nlib.wait(lib.gradient(w.loss, w.params, w.data)())\n"
        )
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        seconds[make.name] = round(time.perf_counter() - start, 3)  # type: ignore[attr-defined]
        print(f"  {make.name:<22}{seconds[make.name]:10.2f} s", flush=True)  # type: ignore[attr-defined]
    return seconds


def memory() -> dict[str, Any]:
    """What `benchmarks.memory` finds, in a process of its own."""
    # glibc then takes each large buffer from the system and gives it back: resident is what is alive
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "1000000"}
    command = [sys.executable, "-m", "benchmarks.memory"]
    child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    found: dict[str, Any] = json.loads(child.stdout)
    print("\nresident memory")
    for name, mib in found.items():
        print(f"  {name:<60}{mib:+10.1f} MiB")
    return found


def plot(results: dict[str, Any], path: Path) -> None:
    """Bars of the ratios to the first contender, one group per workload."""
    import matplotlib.pyplot as plt  # noqa: PLC0415  # only who draws needs it

    names = list(dict.fromkeys(name for times in results.values() for name in times))
    height = 0.8 / len(names)
    figure, axes = plt.subplots(figsize=(9, 0.9 * len(results) + 1.5), layout="constrained")
    for i, name in enumerate(names):
        places = [k for k, times in enumerate(results.values()) if name in times]
        ratios = [times[name]["ratio"] for times in results.values() if name in times]
        axes.barh([k + i * height for k in places], ratios, height, label=name)
    axes.set_yticks([k + 0.4 - height / 2 for k in range(len(results))], list(results))
    axes.set(xscale="log", xlabel="time, as a multiple of the first contender's")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the numbers here")
    parser.add_argument("--plot", type=Path, help="draw the ratios here")
    parser.add_argument("--only", default="", help="workloads with this in their title")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    results = timings(arguments.only, arguments.rounds)
    numbers: dict[str, Any] = {
        "python": platform.python_version(),
        "jax": jax.__version__,
        "cores": os.cpu_count(),
        "timings": results,
    }
    if not arguments.only:
        numbers |= {"first_gradient_s": first_gradient(), "memory_mib": memory()}
    if arguments.json:
        arguments.json.write_text(json.dumps(numbers, indent=2) + "\n")
    if arguments.plot:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
