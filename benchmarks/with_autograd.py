"""HIPS autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import autograd
import autograd.numpy as anp
import numpy as np

from benchmarks.libraries import Library, Loss, adam


class Contender(Library):
    """NumPy's names; only eager, on NumPy."""

    name = "HIPS autograd"
    np: Any = anp

    def softmax(self, x: Any) -> Any:
        e = anp.exp(x - anp.max(x, -1, keepdims=True))
        return e / anp.sum(e, -1, keepdims=True)

    def conv(self, x: Any, w: Any) -> Any:
        raise NotImplementedError("autograd's convolution is too slow to be measured beside the others")

    def value(self, x: Any) -> float:
        return float(getattr(x, "_value", x))

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        fn = autograd.value_and_grad(lambda p: loss(self, p, *data))
        return lambda: fn(params)

    def update(self, loss: Loss, state: Any, data: Any, c1: Any, c2: Any) -> Any:
        value, grads = autograd.value_and_grad(lambda p: loss(self, p, *data))(state[0])
        return value, *adam(self, state, grads, c1, c2)

    def wait(self, out: Any) -> None:
        """Nothing: results are there."""
