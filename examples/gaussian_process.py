"""Gaussian-process regression on scikit-learn's diabetes data: length scales found by gradients through a Cholesky factor.

    python examples/gaussian_process.py

The log marginal likelihood of the training data, a function of a Cholesky factor, is maximised over a
length scale for each of ten features, the size of the signal and that of the noise.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import functad as fd
import functad.numpy as fnp


class Kernel(fd.Module):
    """The squared exponential with a length scale for each feature; everything is kept as logarithms."""

    log_scales: fd.Param
    log_signal: fd.Param
    log_noise: fd.Param

    def forward(self, a: fd.Tensor, b: fd.Tensor) -> fd.Tensor:
        """The covariance of the function between the rows of `a` and of `b`."""
        a, b = a / self.log_scales.exp(), b / self.log_scales.exp()
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
        return (2 * self.log_signal - 0.5 * squares.clip(min=0.0)).exp()

    def factor(self, x: fd.Tensor) -> fd.Tensor:
        """The Cholesky factor of the covariance of what is observed at `x`."""
        jitter = (2 * self.log_noise).exp() + 1e-4
        return fnp.linalg.cholesky(self(x, x) + jitter * fd.eye(len(x)))


def loss_fn(kernel: Kernel, x: fd.Tensor, y: fd.Tensor) -> fd.Tensor:
    """Minus the log marginal likelihood of one observation, in nats."""
    factor = kernel.factor(x)
    whitened = fnp.linalg.solve_triangular(factor, y[:, None], lower=True)
    log_det = 2 * fnp.log(fnp.diagonal(factor)).sum()
    return 0.5 * ((whitened**2).sum() + log_det + len(x) * math.log(2 * math.pi)) / len(x)


def predict(kernel: Kernel, x: fd.Tensor, y: fd.Tensor, new: fd.Tensor) -> tuple[fd.Tensor, fd.Tensor]:
    """Mean and standard deviation of what would be observed at the rows of `new`."""
    factor, across = kernel.factor(x), kernel(x, new)
    half = fnp.linalg.solve_triangular(factor, fnp.concatenate([across, y[:, None]], axis=1), lower=True)
    half, whitened = half[:, :-1], half[:, -1]
    variance = (2 * kernel.log_signal).exp() + (2 * kernel.log_noise).exp() - (half**2).sum(axis=0)
    return half.T @ whitened, variance.clip(min=1e-6).sqrt()


def main() -> None:
    """Fit, compare with a linear model, draw; exits with an error if it is clearly worse."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--out", type=Path, default=Path("gp-out"))
    args = parser.parse_args()

    data = load_diabetes()
    x = data.data / data.data.std(axis=0)
    y = (data.target - data.target.mean()) / data.target.std()
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, random_state=0)
    xs, ys = fd.tensor(x_train), fd.tensor(y_train)

    kernel = Kernel(fd.full(10, math.log(3.0)), fd.tensor(0.0), fd.tensor(-0.5))
    opt = fd.optim.adam(0.05)
    state = opt.init(kernel)
    loss_and_grad = fd.jit(fd.value_and_grad(loss_fn))
    losses = []
    for _ in (progress := tqdm(range(args.steps), unit=" steps", mininterval=0.5)):
        loss, grads = loss_and_grad(kernel, xs, ys)
        kernel, state = opt.step(kernel, grads, state)
        losses.append(loss.item())
        progress.set_postfix(nats=f"{losses[-1]:.4f}", refresh=False)

    mean, std = (t.numpy() for t in predict(kernel, xs, ys, fd.tensor(x_test)))
    rmse = float(np.sqrt(((mean - y_test) ** 2).mean()))
    inside = float((abs(mean - y_test) < 1.96 * std).mean())
    linear = LinearRegression().fit(x_train, y_train).predict(x_test)
    rmse_linear = float(np.sqrt(((linear - y_test) ** 2).mean()))
    print(f"{losses[0]:.4f} nats per observation at first, {losses[-1]:.4f} at the end")
    print(f"test error {rmse:.4f} of a standard deviation (linear regression: {rmse_linear:.4f})")
    print(f"{inside:.1%} of the test observations are within the 95% bands")
    order = np.argsort(kernel.log_scales.numpy())
    print("features, most relevant first: " + ", ".join(data.feature_names[i] for i in order))

    args.out.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(losses)
    left.set(xlabel="step", ylabel="nats per observation", title="Minus the log marginal likelihood")
    right.errorbar(y_test, mean, yerr=1.96 * std, fmt=".", elinewidth=0.4)
    right.plot([-2, 3], [-2, 3], color="gray", linewidth=0.8)
    right.set(xlabel="observed", ylabel="predicted, with 95% band", title="Test patients")
    figure.savefig(args.out / "fit.png")
    print(f"saved fit.png in {args.out}")
    if not (losses[-1] < losses[0] and rmse < 1.05 * rmse_linear and inside > 0.85):
        sys.exit("the fit is worse than it should be")


if __name__ == "__main__":
    main()
