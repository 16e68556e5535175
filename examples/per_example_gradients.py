"""The gradient of each example by itself, by `vmap` of `grad`: which digits pull hardest on a trained network?

    python examples/per_example_gradients.py

A batch's gradient is the mean of its examples' gradients, and hides them. `fd.vmap(fd.grad(loss),
in_axes=(None, 0, 0))` maps over the examples and not over the weights: one call gives 1,797 gradients.
Their norms find mislabelled, odd and ambiguous images; clipping them is what private training does.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from tqdm import tqdm

import functad as fd

HIDDEN, STEPS, RATE, BATCH, SHOWN = 32, 600, 0.5, 256, 24
Params = dict[str, fd.Tensor]


def initial_params(seed: int) -> Params:
    """Weights scaled so that activations keep their size, and biases of zero."""
    rng = np.random.default_rng(seed)
    return {
        "w1": fd.tensor(rng.normal(0, 64**-0.5, (64, HIDDEN))),
        "b1": fd.zeros(HIDDEN),
        "w2": fd.tensor(rng.normal(0, HIDDEN**-0.5, (HIDDEN, 10))),
        "b2": fd.zeros(10),
    }


def scores(params: Params, image: fd.Tensor) -> fd.Tensor:
    """Ten logarithms of probabilities for one image."""
    hidden = (image @ params["w1"] + params["b1"]).tanh()
    return (hidden @ params["w2"] + params["b2"]).log_softmax()


def loss(params: Params, image: fd.Tensor, label: fd.Tensor) -> fd.Tensor:
    """The cross entropy of one image with its label (a row of ten)."""
    return -(scores(params, image) * label).sum()


def mean_loss(params: Params, images: fd.Tensor, labels: fd.Tensor) -> fd.Tensor:
    """That of a batch: the loss is written for one example, and mapped."""
    return fd.vmap(loss, in_axes=(None, 0, 0))(params, images, labels).mean()


def train(images: fd.Tensor, labels: fd.Tensor, seed: int) -> Params:
    """A few hundred steps of gradient descent on batches."""
    params = initial_params(seed)
    rng = np.random.default_rng(seed)
    step = fd.value_and_grad(mean_loss)
    for _ in (progress := tqdm(range(STEPS), unit=" steps")):
        batch = rng.choice(len(images), BATCH, replace=False)
        value, grads = step(params, images[batch], labels[batch])
        params = {k: params[k] - RATE * grads[k] for k in params}
        progress.set_postfix(loss=f"{value.item():.4f}", refresh=False)
    return params


def save_hardest(images: np.ndarray, labels: np.ndarray, guess: np.ndarray, norms: np.ndarray, path: Path) -> None:
    """The images with the largest gradients: label, and in red what the network reads instead."""
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    for axes, i in zip(figure.subplots(3, SHOWN // 3).flat, np.argsort(-norms)[:SHOWN], strict=True):
        axes.imshow(images[i].reshape(8, 8), cmap="gray_r")
        wrong = guess[i] != labels[i]
        axes.set_title(f"{labels[i]}, read {guess[i]}" if wrong else f"{labels[i]}", color="red" if wrong else "black")
        axes.set_xlabel(f"|g| = {norms[i]:.1f}")
        axes.set(xticks=[], yticks=[])
    figure.savefig(path)


def main() -> None:
    """Train, take 1,797 gradients, check them, save the hardest digits; exits with an error if a check fails."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "gpu", "numpy"], default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("per-example-out"))
    args = parser.parse_args()

    pixels, digits = load_digits(return_X_y=True)
    with fd.set_default_device(getattr(fd.Device, args.device)()):
        images, labels = fd.tensor(pixels / 16), fd.tensor(np.eye(10)[digits])
        params = train(images, labels, args.seed)

        for _ in range(2):  # the first time compiles
            start = time.perf_counter()
            grads = fd.vmap(fd.grad(loss), in_axes=(None, 0, 0))(params, images, labels)
            norms = np.sqrt(sum((g * g).reshape(len(images), -1).sum(1).numpy() for g in grads.values()))
            seconds = time.perf_counter() - start

        whole = fd.grad(mean_loss)(params, images, labels)
        error = max(abs(grads[k].mean(0).numpy() - whole[k].numpy()).max() for k in params)
        guess = fd.vmap(scores, in_axes=(None, 0))(params, images).argmax(-1).numpy()

    wrong = guess != digits
    hardest = np.argsort(-norms)[: max(wrong.sum(), 1)]
    found = wrong[hardest].mean()
    print(
        f"{len(norms)} gradients of {sum(p.size for p in params.values())} numbers in {seconds * 1e3:.0f} ms; their "
        f"mean is the batch's to {error:.1e}; {wrong.sum()} misread, {found:.0%} of them among the {len(hardest)} "
        "hardest"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    save_hardest(pixels, digits, guess, norms, args.out / "hardest.png")
    if error > 1e-5 or found < 0.5 or wrong.mean() > 0.05:
        sys.exit("the gradients do not add up, or do not find the misread digits")


if __name__ == "__main__":
    main()
