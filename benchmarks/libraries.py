"""The contenders: each library's way to arrays, elementwise functions and gradients, under one interface.

A workload is written once, with Python's operators and the functions here, and runs on every library.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import functad as fd

Loss = Callable[..., Any]
"""`loss(library, params, *data)`, a scalar."""


class Library:
    """JAX's names; the others override what they call differently."""

    name = "jax, not jitted"
    np: Any = jnp

    def array(self, a: np.ndarray) -> Any:
        """`a` as an array of the library."""
        return self.np.asarray(a)

    def tanh(self, x: Any) -> Any:
        """The hyperbolic tangent."""
        return self.np.tanh(x)

    def sin(self, x: Any) -> Any:
        """The sine."""
        return self.np.sin(x)

    def exp(self, x: Any) -> Any:
        """The exponential."""
        return self.np.exp(x)

    def sqrt(self, x: Any) -> Any:
        """The square root."""
        return self.np.sqrt(x)

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        """The axes in another order."""
        return self.np.transpose(x, axes)

    def softmax(self, x: Any) -> Any:
        """Over the last axis."""
        e = self.exp(x - jax.lax.stop_gradient(x.max(-1, keepdims=True)))
        return e / e.sum(-1, keepdims=True)

    def conv(self, x: Any, w: Any) -> Any:
        """The valid convolution of images (batch, channels, height, width)."""
        return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID")

    def value(self, x: Any) -> float:
        """A scalar as a Python number, outside of any derivative."""
        return float(jax.lax.stop_gradient(x))

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        """A call that computes the loss and its gradients."""
        fn = jax.value_and_grad(lambda p, *d: loss(self, p, *d))
        p, d = [self.array(a) for a in params], [self.array(a) for a in data]
        return lambda: fn(p, *d)

    def step(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        """A call that makes one step of Adam and returns the loss."""
        d = [self.array(a) for a in data]
        state = [[self.array(a) for a in group] for group in (params, [a * 0 for a in params], [a * 0 for a in params])]
        t = 0

        def call() -> Any:
            nonlocal t
            t += 1
            value, *state[:] = self.update(loss, state, d, 1 - 0.9**t, 1 - 0.999**t)
            return value

        return call

    def update(self, loss: Loss, state: Any, data: Any, c1: Any, c2: Any) -> Any:
        """The loss, and parameters, means and squares after a step."""
        value, grads = jax.value_and_grad(lambda p: loss(self, p, *data))(state[0])
        return value, *adam(self, state, grads, c1, c2)

    def wait(self, out: Any) -> None:
        """Until results are there."""
        jax.block_until_ready(out)

    def numpy(self, x: Any) -> np.ndarray:
        """An array on the host."""
        return np.asarray(x)


def adam(lib: Library, state: Any, grads: Any, c1: Any, c2: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Adam's formulas, parameter by parameter."""
    ps, ms, vs = state
    ms = [0.9 * m + 0.1 * g for m, g in zip(ms, grads, strict=True)]
    vs = [0.999 * v + 0.001 * (g * g) for v, g in zip(vs, grads, strict=True)]
    ps = [p - 1e-3 * (m / c1) / (lib.sqrt(v / c2) + 1e-8) for p, m, v in zip(ps, ms, vs, strict=True)]
    return ps, ms, vs


class JaxJit(Library):
    """The whole call under `jax.jit`."""

    name = "jax.jit"

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        fn = jax.jit(jax.value_and_grad(lambda p, *d: loss(self, p, *d)))
        p, d = [self.array(a) for a in params], [self.array(a) for a in data]
        return lambda: fn(p, *d)

    def update(self, loss: Loss, state: Any, data: Any, c1: Any, c2: Any) -> Any:
        if not hasattr(self, "_jitted"):
            self._jitted = jax.jit(lambda s, d, a, b: Library.update(self, loss, s, d, a, b))
        return self._jitted(state, data, c1, c2)


class Functad(Library):
    """Un-annotated eager code, object style."""

    name = "functad"
    np: Any = fd.numpy
    fusion = True

    def __init__(self) -> None:
        self.device = fd.Device.cpu(fusion=self.fusion)

    def array(self, a: np.ndarray) -> Any:
        return fd.tensor(a, device=self.device)

    def softmax(self, x: Any) -> Any:
        return fd.nn.functional.softmax(x, axis=-1)

    def conv(self, x: Any, w: Any) -> Any:
        return fd.nn.functional.conv2d(x, w)

    def value(self, x: Any) -> float:
        return x.item()

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        leaves = [self.array(a).autodiff().require_grad() for a in params]
        d = [self.array(a) for a in data]

        def call() -> Any:
            value = loss(self, leaves, *d)
            grads = value.backward()
            return value, [w.grad(grads) for w in leaves]

        return call

    def step(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        """With the library's own optimiser, as for PyTorch."""
        opt = fd.optim.adam(1e-3)
        leaves: Any = [self.array(a).autodiff().require_grad() for a in params]
        state, d = opt.init(leaves), [self.array(a) for a in data]

        def call() -> Any:
            nonlocal leaves, state
            value = loss(self, leaves, *d)
            leaves, state = opt.step(leaves, value.backward(), state)
            return value, leaves

        return call

    def wait(self, out: Any) -> None:
        for x in fd.tree.leaves(out):
            x.block_until_ready()

    def numpy(self, x: Any) -> np.ndarray:
        return x.numpy()


class FunctadOpByOp(Functad):
    """The same without fusion."""

    name = "functad, op by op"
    fusion = False


class FunctadJit(Functad):
    """The whole call under `fd.jit`, with the same formulas as under `jax.jit`."""

    name = "fd.jit"
    step = Library.step

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        fn = fd.jit(fd.value_and_grad(lambda p, *d: loss(self, p, *d)))
        p, d = [self.array(a) for a in params], [self.array(a) for a in data]
        return lambda: fn(p, *d)

    def update(self, loss: Loss, state: Any, data: Any, c1: Any, c2: Any) -> Any:
        if not hasattr(self, "_jitted"):

            def whole(s: Any, d: Any, a: Any, b: Any) -> Any:
                value, grads = fd.value_and_grad(lambda p: loss(self, p, *d))(s[0])
                return value, *adam(self, s, grads, a, b)

            self._jitted = fd.jit(whole)
        return self._jitted(state, data, c1, c2)


class GradOfJit(FunctadJit):
    """The loss under `fd.jit`, its gradient outside of it."""

    name = "grad of fd.jit"

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        fn = fd.value_and_grad(fd.jit(lambda p, *d: loss(self, p, *d)))
        p, d = [self.array(a) for a in params], [self.array(a) for a in data]
        return lambda: fn(p, *d)

    def step(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        raise NotImplementedError


def libraries() -> list[Callable[[], Library]]:
    """What is installed, as makers: a workload gets contenders of its own."""
    found: list[Callable[[], Library]] = [JaxJit, Functad, FunctadJit, GradOfJit, FunctadOpByOp, Library]
    for name in ("torch", "mlx", "autograd"):
        try:
            module = __import__(f"benchmarks.with_{name}", fromlist=["Contender"])
        except ImportError:  # one contender less
            continue
        found.append(module.Contender)
    return found
