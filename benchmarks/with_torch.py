"""PyTorch, eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.libraries import Library, Loss


class Contender(Library):
    """PyTorch's names."""

    name = "torch eager"
    np: Any = torch

    def array(self, a: np.ndarray) -> Any:
        return torch.tensor(a)

    def transpose(self, x: Any, axes: Sequence[int]) -> Any:
        return x.permute(tuple(axes))

    def softmax(self, x: Any) -> Any:
        return torch.softmax(x, -1)

    def conv(self, x: Any, w: Any) -> Any:
        return torch.nn.functional.conv2d(x, w)

    def value(self, x: Any) -> float:
        return x.item()

    def gradient(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        leaves = [torch.tensor(a, requires_grad=True) for a in params]
        d = [self.array(a) for a in data]

        def call() -> Any:
            value = loss(self, leaves, *d)
            return value, torch.autograd.grad(value, leaves)

        return call

    def step(self, loss: Loss, params: list[np.ndarray], data: list[np.ndarray]) -> Callable[[], Any]:
        leaves = [torch.tensor(a, requires_grad=True) for a in params]
        d = [self.array(a) for a in data]
        optimizer = torch.optim.Adam(leaves, lr=1e-3)

        def call() -> Any:
            optimizer.zero_grad()
            value = loss(self, leaves, *d)
            value.backward()
            optimizer.step()
            return value

        return call

    def wait(self, out: Any) -> None:
        """Nothing: results are there."""

    def numpy(self, x: Any) -> np.ndarray:
        return x.detach().numpy()
