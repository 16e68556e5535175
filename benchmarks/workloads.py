"""What is measured: one loss per workload, for arrays of any library, with its parameters and data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.libraries import Library, Loss

_TRACED = ("jax.jit", "fd.jit", "grad of fd.jit")


class Workload(NamedTuple):
    """A loss with the arrays it is called on; `calls` per round, `step` if Adam's step is measured too."""

    title: str
    loss: Loss
    params: list[np.ndarray]
    data: list[np.ndarray]
    calls: int = 10
    step: bool = False
    skip: tuple[str, ...] = ()


def _random(seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, (shape[0] if shape else 1) ** -0.5, shape).astype(np.float32) for shape in shapes]


def _mlp_loss(lib: Library, params: Any, x: Any, y: Any) -> Any:
    h = x
    for i in range(0, len(params) - 2, 2):
        h = lib.tanh(h @ params[i] + params[i + 1])
    error = h @ params[-2] + params[-1] - y
    return (error * error).mean()


def _mlp(title: str, batch: int, *sizes: int, calls: int = 10) -> Workload:
    shapes = [s for a, b in itertools.pairwise(sizes) for s in ((a, b), (b,))]
    data = [a * 10 for a in _random(1, (batch, sizes[0]), (batch, sizes[-1]))]
    return Workload(title, _mlp_loss, _random(0, *shapes), data, calls, step=True)


def _lenet_loss(lib: Library, params: Any, x: Any, y: Any) -> Any:
    c1, c2, w1, w2, w3 = params
    h = lib.tanh(lib.conv(x, c1))
    h = h.reshape(x.shape[0], 6, 12, 2, 12, 2).mean((3, 5))
    h = lib.tanh(lib.conv(h, c2))
    h = h.reshape(x.shape[0], 16, 4, 2, 4, 2).mean((3, 5)).reshape(x.shape[0], 256)
    error = lib.tanh(lib.tanh(h @ w1) @ w2) @ w3 - y
    return (error * error).mean()


def _block_loss(lib: Library, params: Any, x: Any) -> Any:
    """A transformer block: attention with four heads, then a perceptron, each with normalization in front."""
    qkv, out, up, down = params
    batch, length, size = x.shape
    heads = 4

    def norm(v: Any) -> Any:
        centred = v - v.mean(-1, keepdims=True)
        return centred / lib.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)

    def split(v: Any) -> Any:
        return lib.transpose(v.reshape(batch, length, heads, size // heads), (0, 2, 1, 3))

    h = norm(x)
    q, k, v = (split(h @ qkv[i]) for i in range(3))
    weights = lib.softmax((q @ lib.transpose(k, (0, 1, 3, 2))) * (size // heads) ** -0.5)
    x = x + lib.transpose(weights @ v, (0, 2, 1, 3)).reshape(batch, length, size) @ out
    x = x + lib.tanh(norm(x) @ up) @ down
    return (x * x).mean()


def _rnn_loss(lib: Library, params: Any, *xs: Any) -> Any:
    w, u = params
    h = xs[0] @ u
    for x in xs[1:]:
        h = lib.tanh(h @ w + x @ u)
    return (h * h).mean()


def _chain_loss(lib: Library, params: Any) -> Any:
    (x,) = params
    for _ in range(10):
        x = lib.sin(x) * 1.01 + 0.1
    return x.mean()


def _rosenbrock(lib: Library, params: Any) -> Any:
    (x,) = params
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def _flow_loss(lib: Library, params: Any) -> Any:
    """Python's `while` and `if` on values."""
    (x,) = params
    n = 0
    while lib.value((x * x).sum()) > 0.1 and n < 40:
        x = x * 0.8 if lib.value(x[0]) > 0.05 else x * 0.9 - 0.01 * x * x
        n += 1
    return (x * x).sum()


def workloads() -> list[Workload]:
    """All, smallest first."""
    lenet = _random(0, (6, 1, 5, 5), (16, 6, 5, 5), (256, 120), (120, 84), (84, 10))
    block = [*_random(0, (3, 128, 128)), *_random(2, (128, 128), (128, 512), (512, 128))]
    block[0] = block[0] * 3**0.5 / 128**0.5
    return [
        _mlp("tiny MLP, 32x64-64-64-10", 32, 64, 64, 64, 10, calls=20),
        Workload("Rosenbrock of 10", _rosenbrock, _random(0, (10,)), [], calls=20),
        Workload("data-dependent control flow", _flow_loss, _random(0, (64,)), [], calls=1, skip=_TRACED),
        Workload("RNN of 100 steps, Python loop", _rnn_loss, _random(0, (32, 32), (16, 32)),
                 _random(1, *[(8, 16)] * 100), calls=2),
        Workload("30 elementwise ops on 1M", _chain_loss, _random(0, (1_000_000,)), [], calls=1),
        _mlp("MNIST-size MLP, 256x784-512-512-10", 256, 784, 512, 512, 10, calls=1),
        Workload("LeNet, 64x1x28x28", _lenet_loss, lenet, _random(1, (64, 1, 28, 28), (64, 10)), calls=1),
        Workload("transformer block, 8x64x128, 4 heads", _block_loss, block, _random(1, (8, 64, 128)), calls=2),
    ]  # fmt: skip


def contenders(workload: Workload, makers: list[Callable[[], Library]], step: bool) -> dict[str, tuple[Library, Any]]:
    """What takes part in a workload: the library and its call, by name."""
    found = {}
    for make in makers:
        lib = make()
        if lib.name in workload.skip:
            continue
        try:
            call = (lib.step if step else lib.gradient)(workload.loss, workload.params, workload.data)
            lib.wait(call())
        except NotImplementedError:
            continue
        found[lib.name] = lib, call
    return found
