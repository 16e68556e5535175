"""Train a small convolutional network on 1,797 handwritten digits: metrics, early stopping, checkpoints, resuming.

    python examples/cnn_digits.py             # trains, reports, saves pictures and checkpoints
    python examples/cnn_digits.py --resume    # goes on from the last checkpoint, as if it had never stopped

All that a step depends on is in one pytree, `Run`: the model, the optimiser's state, the key of the
random numbers, the epoch. Saving it is saving the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import functad as fd
import functad.nn.functional as F
from functad import nn

BATCH, PATIENCE = 64, 12
REQUIRED_ACCURACY = 0.985


def new_model(key: fd.Tensor) -> nn.Sequential:
    """Two convolutions, one pooling, two linear layers: 151,306 parameters."""
    k1, k2, k3, k4 = fd.random.split(key, 4)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1, key=k1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, key=k2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(1024, 128, key=k3),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10, key=k4),
    )


class Run(NamedTuple):
    """All that the rest of the training depends on."""

    model: nn.Sequential
    state: fd.optim.OptState
    key: fd.Tensor
    epoch: int
    losses: list[float]
    accuracies: list[float]  # on the validation images
    best: nn.Sequential


def loss_fn(model: nn.Sequential, images: fd.Tensor, labels: fd.Tensor, key: fd.Tensor) -> fd.Tensor:
    """The mean cross entropy."""
    return F.cross_entropy(model(images, key=key), labels, label_smoothing=0.05)


def accuracy(model: nn.Sequential, images: fd.Tensor, labels: fd.Tensor) -> float:
    """The share of images that are read right."""
    return (predict(model.valid(), images) == labels).astype("float32").mean().item()


@fd.jit
def predict(model: nn.Sequential, images: fd.Tensor) -> fd.Tensor:
    """The digit each image is read as."""
    return model(images).argmax(axis=-1)


Step = Callable[..., tuple[nn.Sequential, fd.optim.OptState, fd.Tensor]]


def step_of(opt: fd.optim.Optimizer) -> Step:
    """One step of training, compiled."""

    @fd.jit
    def step(
        model: nn.Sequential, state: fd.optim.OptState, images: fd.Tensor, labels: fd.Tensor, key: fd.Tensor
    ) -> tuple[nn.Sequential, fd.optim.OptState, fd.Tensor]:
        loss, grads = fd.value_and_grad(loss_fn)(model, images, labels, key)
        return *opt.step(model, grads, state), loss

    return step


def train_epoch(run: Run, step: Step, images: fd.Tensor, labels: fd.Tensor, progress: tqdm) -> Run:
    """One pass over the images; which batches there are follows from the epoch, what is dropped from the key."""
    model, state, key, losses = run.model, run.state, run.key, []
    order = np.random.default_rng(run.epoch).permutation(len(images))
    for batch in order[: len(order) // BATCH * BATCH].reshape(-1, BATCH):
        key, dropout_key = fd.random.split(key)
        model, state, loss = step(model, state, images[batch], labels[batch], dropout_key)
        losses.append(loss)
        progress.update()
    return run._replace(
        model=model, state=state, key=key, epoch=run.epoch + 1, losses=run.losses + [x.item() for x in losses]
    )


def last_best(accuracies: list[float]) -> int:
    """The number of the last epoch that was as good as the best."""
    return max(i for i, a in enumerate(accuracies) if a == max(accuracies)) + 1


def save_curves(run: Run, path: Path) -> None:
    """The loss of every step, and the validation accuracy of every epoch."""
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.semilogy(run.losses, linewidth=0.8)
    left.set(xlabel="step", ylabel="cross entropy", title="Loss on the training batches")
    right.plot(np.arange(1, len(run.accuracies) + 1), 100 * np.array(run.accuracies))
    right.set(xlabel="epoch", ylabel="%", title="Accuracy on the validation images")
    figure.savefig(path)


def save_predictions(images: np.ndarray, labels: np.ndarray, read: np.ndarray, path: Path) -> None:
    """32 test images and the digit each is read as, mistakes first and in red."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    for axes, i in zip(figure.subplots(4, 8).flat, np.argsort(read == labels, kind="stable"), strict=False):
        axes.imshow(images[i, 0], cmap="gray_r")
        axes.set_title(str(read[i]), color="black" if read[i] == labels[i] else "red")
        axes.axis("off")
    figure.savefig(path)


def main() -> None:
    """Train, report, save; exits with an error below the required accuracy."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=36)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("cnn-out"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "run.safetensors"

    data = load_digits()
    rest, test, y_rest, y_test = train_test_split(
        data.images[:, None] / 16, data.target, test_size=0.2, random_state=0, stratify=data.target
    )
    train, valid, y_train, y_valid = train_test_split(rest, y_rest, test_size=0.1, random_state=0, stratify=y_rest)
    x, y, x_valid, labels_valid = map(fd.tensor, (train, y_train, valid, y_valid))

    steps = len(train) // BATCH * args.epochs
    opt = fd.optim.adamw(fd.optim.cosine_decay_schedule(2e-3, steps), weight_decay=1e-3)
    key, model_key = fd.random.split(fd.random.key(args.seed))
    model = new_model(model_key)
    run = Run(model, opt.init(model), key, 0, [], [], model)
    if args.resume and checkpoint.exists():
        run = fd.load(checkpoint, like=run)
        print(f"going on after epoch {run.epoch}")

    step = step_of(opt)
    start, first = time.perf_counter(), len(run.losses)
    with tqdm(total=steps, initial=first, unit=" steps", mininterval=0.5) as progress:
        while run.epoch < args.epochs:
            run = train_epoch(run, step, x, y, progress)
            reached = accuracy(run.model, x_valid, labels_valid)
            better = not run.accuracies or reached >= max(run.accuracies)
            run = run._replace(accuracies=[*run.accuracies, reached], best=run.model if better else run.best)
            fd.save(run, checkpoint)
            progress.set_postfix(loss=f"{run.losses[-1]:.4f}", valid=f"{reached:.2%}")
            if len(run.accuracies) - last_best(run.accuracies) > PATIENCE:
                break  # early: no better epoch for a while
    rate = (len(run.losses) - first) / (time.perf_counter() - start)

    read = predict(run.best.valid(), fd.tensor(test)).numpy()
    reached = float((read == y_test).mean())
    print(f"epoch {run.epoch}, loss {run.losses[-1]:.6f}, validation accuracy {max(run.accuracies):.2%}")
    print(f"test accuracy {reached:.2%}, {rate:.0f} steps per second with compilation")
    run.best.save(args.out / "model.safetensors")
    save_curves(run, args.out / "curves.png")
    save_predictions(test, y_test, read, args.out / "predictions.png")
    print(f"saved the run, the model, curves.png and predictions.png in {args.out}")
    if reached < REQUIRED_ACCURACY:
        sys.exit(f"the test accuracy {reached:.2%} is below {REQUIRED_ACCURACY:.1%}")


if __name__ == "__main__":
    main()
