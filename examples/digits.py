"""Train a small network on 1,797 handwritten digits, in the object style or in the functional one.

    python examples/digits.py                      # loss.backward(), then w.grad(grads)
    python examples/digits.py --style functional   # fd.value_and_grad(loss_fn)(params, ...)

The styles differ in one short function; they take the same steps and find the same numbers.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import functad as fd

HIDDEN, BATCH, RATE, MOMENTUM = 128, 64, 0.2, 0.9
REQUIRED_ACCURACY = 0.96

Params = dict[str, fd.Tensor]


def initial_params(seed: int, device: fd.Device) -> Params:
    """Weights scaled so that activations keep their size, and biases of zero."""
    rng = np.random.default_rng(seed)
    return {
        "w1": fd.tensor(rng.normal(0, 64**-0.5, (64, HIDDEN)), device=device),
        "b1": fd.zeros(HIDDEN, device=device),
        "w2": fd.tensor(rng.normal(0, HIDDEN**-0.5, (HIDDEN, 10)), device=device),
        "b2": fd.zeros(10, device=device),
    }


def logits(params: Params, images: fd.Tensor) -> fd.Tensor:
    """Ten scores for each image."""
    hidden = (images @ params["w1"] + params["b1"]).relu()
    return hidden @ params["w2"] + params["b2"]


def loss_fn(params: Params, images: fd.Tensor, labels: fd.Tensor) -> fd.Tensor:
    """The mean cross entropy."""
    scores = logits(params, images).log_softmax(axis=-1)
    return -scores.take_along_axis(labels[:, None], axis=-1).mean()


def predict(params: Params, images: fd.Tensor) -> fd.Tensor:
    """The digit each image is read as."""
    with fd.no_grad():  # nothing in here will be differentiated
        return logits(params, images).argmax(axis=-1)


def object_step(params: Params, velocity: Params, images: fd.Tensor, labels: fd.Tensor) -> float:
    """Object style: parameters are leaves that require grad. Compute, go backward, look each gradient up."""
    loss = loss_fn(params, images, labels)
    grads = loss.backward()
    for name, w in params.items():
        velocity[name] = MOMENTUM * velocity[name] + w.grad(grads)
        params[name] = (w.inner() - RATE * velocity[name]).autodiff().require_grad()
    return loss.item()
    # A number leaves this function; the loss stays, and with it goes its graph and what that kept for
    # backward. A loop that held on to the loss would carry two graphs while the next one is recorded.


def functional_step(params: Params, velocity: Params, images: fd.Tensor, labels: fd.Tensor) -> float:
    """Functional style: parameters are plain tensors. Transform the loss function and call it."""
    loss, grads = fd.value_and_grad(loss_fn)(params, images, labels)
    for name, w in params.items():
        velocity[name] = MOMENTUM * velocity[name] + grads[name]
        params[name] = w - RATE * velocity[name]
    return loss.item()


def train(style: str, params: Params, images: fd.Tensor, labels: fd.Tensor, epochs: int, seed: int = 0) -> list[float]:
    """Train `params` in place by SGD with momentum; returns the loss of every step."""
    step = object_step if style == "object" else functional_step
    velocity = {name: fd.zeros_like(w) for name, w in params.items()}
    if style == "object":
        params.update({name: w.autodiff().require_grad() for name, w in params.items()})
    # Index arrays of one length pick the batches: all steps have the same shapes, so none compiles anew.
    rng = np.random.default_rng(seed)
    whole = len(images) // BATCH * BATCH
    batches = [b for _ in range(epochs) for b in rng.permutation(len(images))[:whole].reshape(-1, BATCH)]
    losses = []
    for batch in (progress := tqdm(batches, desc=f"{style} style", unit=" steps", mininterval=0.5)):
        losses.append(step(params, velocity, images[batch], labels[batch]))
        progress.set_postfix(loss=f"{losses[-1]:.4f}", refresh=False)
    return losses


def save_loss_curve(losses: list[float], path: Path) -> None:
    """The loss of every step, on a logarithmic scale."""
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(losses, linewidth=0.8)
    axes.set(xlabel="step", ylabel="cross entropy", title="Loss on the training batches")
    figure.savefig(path)


def save_predictions(images: np.ndarray, labels: np.ndarray, read: np.ndarray, path: Path) -> None:
    """32 test images and the digit each is read as, mistakes first and in red."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    for axes, i in zip(figure.subplots(4, 8).flat, np.argsort(read == labels, kind="stable"), strict=False):
        axes.imshow(images[i].reshape(8, 8), cmap="gray_r")
        axes.set_title(str(read[i]), color="black" if read[i] == labels[i] else "red")
        axes.axis("off")
    figure.savefig(path)


def main() -> None:
    """Train, report, save the pictures; exits with an error below the required accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", choices=["object", "functional"], default="object")
    parser.add_argument("--device", choices=["cpu", "gpu", "numpy"], default="cpu")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("digits-out"))
    args = parser.parse_args()

    data = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(data[0] / 16, data[1], test_size=0.2, random_state=0, stratify=data[1])
    device = getattr(fd.Device, args.device)()
    params = initial_params(args.seed, device)

    start = time.perf_counter()
    losses = train(args.style, params, fd.tensor(x, device=device), fd.tensor(y, device=device), args.epochs, args.seed)
    rate = len(losses) / (time.perf_counter() - start)
    read = predict(params, fd.tensor(x_test, device=device)).numpy()
    accuracy = (read == y_test).mean()
    print(f"loss {losses[-1]:.6f}, test accuracy {accuracy:.2%}, {rate:.0f} steps per second with compilation")

    args.out.mkdir(parents=True, exist_ok=True)
    save_loss_curve(losses, args.out / "loss.png")
    save_predictions(x_test, y_test, read, args.out / "predictions.png")
    print(f"saved loss.png and predictions.png in {args.out}")
    if accuracy < REQUIRED_ACCURACY:
        sys.exit(f"the test accuracy {accuracy:.2%} is below {REQUIRED_ACCURACY:.0%}")


if __name__ == "__main__":
    main()
