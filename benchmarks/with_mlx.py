"""MLX, eager (lazy, evaluated at the end of each call)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from benchmarks.libraries import Library, Loss, adam


class Contender(Library):
    """MLX's names."""

    name = "mlx"
    np: Any = mx

    def array(self, a: np.ndarray) -> Any:
        return mx.array(a)

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        return mx.transpose(x, list(axes))

    def softmax(self, x: Any) -> Any:
        return mx.softmax(x, axis=-1)

    def conv(self, x: Any, w: Any) -> Any:
        y = mx.conv2d(mx.transpose(x, [0, 2, 3, 1]), mx.transpose(w, [0, 2, 3, 1]))
        return mx.transpose(y, [0, 3, 1, 2])

    def value(self, x: Any) -> float:
        return mx.stop_gradient(x).item()

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        p, d = [self.array(a) for a in params], [self.array(a) for a in data]
        fn = mx.value_and_grad(lambda p: loss(self, p, *d))
        return lambda: fn(p)

    def update(self, loss: Loss, state: Any, data: Any, c1: Any, c2: Any) -> Any:
        value, grads = mx.value_and_grad(lambda p: loss(self, p, *data))(state[0])
        return value, *adam(self, state, grads, c1, c2)

    def wait(self, out: Any) -> None:
        mx.eval(out)
