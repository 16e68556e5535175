"""Learning to learn: the gradient goes through the gradient steps of another learning.

    python examples/maml.py

A task is one patient group of the diabetes data (10 measurements, one outcome): sex times age band.
`adapt` takes a few gradient steps on the patients it may see. MAML chooses where `adapt` starts from,
and a learning rate for every weight, so that the result is good on patients it has not seen: the outer
`fd.grad` differentiates through `fd.grad` inside, and `fd.vmap` does all tasks at once.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from tqdm import tqdm

import functad as fd

HIDDEN, SHOTS, INNER, OUTER, RATE = 16, 8, 3, 400, 0.02
Params = dict[str, fd.Tensor]


def initial(seed: int) -> dict[str, Params]:
    """A network to start from, and the logarithm of a learning rate for each of its weights."""
    rng = np.random.default_rng(seed)
    shapes = {"w1": (10, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN,), "b2": ()}
    start = {k: fd.tensor(rng.normal(0, 0.3 if k[0] == "w" else 0.0, s)) for k, s in shapes.items()}
    return {"start": start, "rates": {k: fd.full(s, np.log(0.05)) for k, s in shapes.items()}}


def error(params: Params, x: fd.Tensor, y: fd.Tensor) -> fd.Tensor:
    """The mean squared error of the network's prediction."""
    hidden = (x @ params["w1"] + params["b1"]).tanh()
    return ((hidden @ params["w2"] + params["b2"] - y) ** 2).mean()


def adapt(meta: dict[str, Params], x: fd.Tensor, y: fd.Tensor) -> Params:
    """A few steps of gradient descent: ordinary Python, and differentiable like any other."""
    params = meta["start"]
    for _ in range(INNER):
        grads = fd.grad(error)(params, x, y)
        params = {k: params[k] - meta["rates"][k].exp() * grads[k] for k in params}
    return params


def after_adapting(meta: dict[str, Params], task: tuple[fd.Tensor, ...]) -> fd.Tensor:
    """The error on a task's unseen patients, after learning from the seen ones."""
    x, y, unseen_x, unseen_y = task
    return error(adapt(meta, x, y), unseen_x, unseen_y)


def mean_over_tasks(meta: dict[str, Params], tasks: tuple[fd.Tensor, ...]) -> fd.Tensor:
    """All tasks at once."""
    return fd.vmap(after_adapting, in_axes=(None, 0))(meta, tasks).mean()


def load_groups() -> list[tuple[np.ndarray, np.ndarray]]:
    """Patients of one sex and a narrow age band are a group; outcomes are centred and scaled."""
    x, y = load_diabetes(return_X_y=True)
    y = (y - y.mean()) / y.std()
    order = np.lexsort((x[:, 0], x[:, 1]))  # by sex, then by age
    return [(x[part] / x.std(), y[part]) for part in np.array_split(order, 12)]


def sample(groups: list[tuple[np.ndarray, np.ndarray]], rng: np.random.Generator) -> tuple[fd.Tensor, ...]:
    """For each group, `SHOTS` patients to learn from and as many others to be judged by."""
    rows = [rng.permutation(len(y))[: 2 * SHOTS] for _, y in groups]
    x = np.stack([g[0][r] for g, r in zip(groups, rows, strict=True)])
    y = np.stack([g[1][r] for g, r in zip(groups, rows, strict=True)])
    return tuple(map(fd.tensor, (x[:, :SHOTS], y[:, :SHOTS], x[:, SHOTS:], y[:, SHOTS:])))


def check_against_differences(meta: dict[str, Params], tasks: tuple[fd.Tensor, ...]) -> float:
    """How far the gradient through the inner steps is from a difference quotient along it (relative)."""
    with fd.enable_x64():
        meta, tasks = (fd.tree.map(lambda t: fd.tensor(t.numpy().astype("float64")), tree) for tree in (meta, tasks))
        grads = fd.grad(mean_over_tasks)(meta, tasks)
        slope = sum((g * g).sum().item() for g in fd.tree.leaves(grads))
        ahead, behind = (fd.tree.map(lambda p, g, h=h: p + h * g, meta, grads) for h in (1e-5, -1e-5))
        numeric = (mean_over_tasks(ahead, tasks) - mean_over_tasks(behind, tasks)).item() / 2e-5
    return abs(slope - numeric) / abs(slope)


def save_curve(losses: list[float], path: Path) -> None:
    """The error after adapting, over meta-training."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(losses, linewidth=0.5, alpha=0.5)
    axes.plot(np.convolve(losses, np.ones(25) / 25, "valid"), label="mean of 25")
    axes.set(xlabel="outer step", ylabel="error on unseen patients", title=f"After {INNER} steps on {SHOTS} patients")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Meta-train, judge on groups that were held out, save a picture; exits with an error if nothing was learned."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "gpu", "numpy"], default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("maml-out"))
    args = parser.parse_args()

    groups, rng = load_groups(), np.random.default_rng(args.seed)
    train, held_out = groups[::2] + groups[1:-1:4], groups[3:-1:4] + groups[-1:]
    with fd.set_default_device(getattr(fd.Device, args.device)()):
        meta = initial(args.seed)
        judged = [sample(held_out, np.random.default_rng(s)) for s in range(50)]
        before = np.mean([mean_over_tasks(meta, tasks).item() for tasks in judged])
        step, losses = fd.value_and_grad(mean_over_tasks), []
        for _ in (progress := tqdm(range(OUTER), unit=" outer steps")):
            loss, grads = step(meta, sample(train, rng))
            meta = fd.tree.map(lambda p, g: p - RATE * g.clip(-1, 1), meta, grads)
            losses.append(loss.item())
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
        after = np.mean([mean_over_tasks(meta, tasks).item() for tasks in judged])
        apart = check_against_differences(meta, judged[0])
    print(
        f"error on unseen patients of held-out groups after {INNER} steps: {before:.3f} before meta-training, "
        f"{after:.3f} after; gradient through the inner steps right to {apart:.1e}"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    save_curve(losses, args.out / "loss.png")
    if after > 0.8 * before or apart > 1e-6:
        sys.exit("meta-training did not help, or its gradient is wrong")


if __name__ == "__main__":
    main()
