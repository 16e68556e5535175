"""A physics-informed network (Raissi et al. 2019): a network that solves Poisson's equation on the unit square.

    python examples/pinn.py

u_xx + u_yy = f with u = 0 on the boundary, and f such that u = sin(pi x) sin(2 pi y) is the solution.
The loss is the residual of the equation, so training differentiates second derivatives once more:
reverse over forward over forward.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

import functad as fd
from functad import nn

WIDTH, POINTS = 32, 256


def solution(x: fd.Tensor, y: fd.Tensor) -> fd.Tensor:
    """What is to be found."""
    return (np.pi * x).sin() * (2 * np.pi * y).sin()


class Network(fd.Module):
    """A function of the square that is 0 on its boundary whatever the parameters are."""

    def __init__(self, key: fd.Tensor):
        k1, k2, k3 = fd.random.split(key, 3)
        self.body = nn.Sequential(
            nn.Linear(2, WIDTH, key=k1), nn.Tanh(), nn.Linear(WIDTH, WIDTH, key=k2), nn.Tanh(),
            nn.Linear(WIDTH, 1, key=k3),
        )  # fmt: skip

    def forward(self, point: fd.Tensor) -> fd.Tensor:
        """The value at one point, shape (2,)."""
        x, y = point[0], point[1]
        return x * (1 - x) * y * (1 - y) * 16 * self.body(point)[0]


def laplacian(u: Network, point: fd.Tensor) -> fd.Tensor:
    """The trace of the Hessian, one second directional derivative for each axis."""

    def along(direction: fd.Tensor) -> fd.Tensor:
        def slope(p: fd.Tensor) -> fd.Tensor:
            return fd.jvp(u, (p,), (direction,))[1]

        return fd.jvp(slope, (point,), (direction,))[1]

    return fd.vmap(along)(fd.eye(2)).sum()


def loss_fn(u: Network, points: fd.Tensor) -> fd.Tensor:
    """The mean square of the equation's residual."""
    f = -5 * np.pi**2 * solution(points[:, 0], points[:, 1])
    return ((fd.vmap(lambda p: laplacian(u, p))(points) - f) ** 2).mean()


def main() -> None:
    """Solve, compare with the exact solution, draw; exits with an error if it is off by more than 2%."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("pinn-out"))
    args = parser.parse_args()

    u = Network(fd.random.key(args.seed))
    opt = fd.optim.adam(fd.optim.cosine_decay_schedule(5e-3, args.steps))
    state = opt.init(u)

    @fd.jit
    def step(u: Network, state: fd.optim.OptState, key: fd.Tensor) -> tuple:
        loss, grads = fd.value_and_grad(loss_fn)(u, fd.random.uniform(key, (POINTS, 2)))
        return *opt.step(u, grads, state), loss

    losses, keys = [], fd.random.split(fd.random.key(args.seed + 1), args.steps)
    for number in (progress := tqdm(range(args.steps), unit=" steps", mininterval=0.5)):
        u, state, loss = step(u, state, keys[number])
        losses.append(loss)
        if number % 100 == 0:
            progress.set_postfix(loss=f"{loss.item():.4f}", refresh=False)

    axis = np.linspace(0, 1, 101)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    found = fd.vmap(u)(fd.tensor(grid.reshape(-1, 2))).numpy().reshape(101, 101)
    exact = np.sin(np.pi * grid[..., 0]) * np.sin(2 * np.pi * grid[..., 1])
    error = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    print(f"mean square residual {losses[-1].item():.4f}, relative error of the solution {error:.2%}")

    args.out.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(10, 3.2), layout="constrained")
    for axes, (title, image) in zip(
        figure.subplots(1, 3), [("found", found), ("exact", exact), ("difference", found - exact)], strict=True
    ):
        figure.colorbar(axes.imshow(image.T, origin="lower", extent=(0, 1, 0, 1)), ax=axes)
        axes.set_title(title)
    figure.savefig(args.out / "solution.png")
    print(f"saved solution.png in {args.out}")
    if error > 0.02:
        sys.exit(f"the relative error {error:.2%} is above 2%")


if __name__ == "__main__":
    main()
