"""A variational autoencoder (Kingma and Welling 2013) on the handwritten digits, and a picture of digits it makes up.

python examples/vae.py
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import functad as fd
import functad.nn.functional as F
from functad import nn

CODE, HIDDEN, BATCH = 8, 256, 64


class VAE(fd.Module):
    """An encoder to the mean and spread of a code, and a decoder from codes to the chance that each pixel is set."""

    def __init__(self, key: fd.Tensor):
        k1, k2, k3, k4 = fd.random.split(key, 4)
        self.encoder = nn.Sequential(nn.Linear(64, HIDDEN, key=k1), nn.SiLU(), nn.Linear(HIDDEN, 2 * CODE, key=k2))
        self.decoder = nn.Sequential(nn.Linear(CODE, HIDDEN, key=k3), nn.SiLU(), nn.Linear(HIDDEN, 64, key=k4))

    def forward(self, x: fd.Tensor, key: fd.Tensor) -> tuple[fd.Tensor, fd.Tensor]:
        """For each image the nats it takes to tell its pixels, and those it takes to tell its code."""
        mean, log_std = self.encoder(x).split(2, axis=-1)
        code = mean + log_std.exp() * fd.random.normal(key, mean.shape)
        pixels = F.binary_cross_entropy_with_logits(self.decoder(code), x, reduction="none").sum(axis=-1)
        divergence = 0.5 * (mean**2 + (2 * log_std).exp() - 1 - 2 * log_std).sum(axis=-1)
        return pixels, divergence

    def generate(self, key: fd.Tensor, count: int) -> fd.Tensor:
        """Images from codes that are drawn as the encoder is trained to give them."""
        return F.sigmoid(self.decoder(fd.random.normal(key, (count, CODE))))


def loss_fn(model: VAE, x: fd.Tensor, key: fd.Tensor) -> fd.Tensor:
    """Minus the evidence lower bound, in nats for each image."""
    pixels, divergence = model(x, key)
    return (pixels + divergence).mean()


def main() -> None:
    """Train, report, draw; exits with an error if the codes tell nothing of the images."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("vae-out"))
    args = parser.parse_args()

    images = load_digits().data / 16
    x, x_test = map(fd.tensor, train_test_split(images, test_size=0.2, random_state=0))
    model = VAE(fd.random.key(args.seed))
    opt = fd.optim.adam(2e-3)
    state = opt.init(model)

    @fd.jit
    def step(model: VAE, state: fd.optim.OptState, x: fd.Tensor, key: fd.Tensor) -> tuple:
        loss, grads = fd.value_and_grad(loss_fn)(model, x, key)
        return *opt.step(model, grads, state), loss

    rng, key = np.random.default_rng(args.seed), fd.random.key(args.seed + 1)
    losses = []
    for _ in (progress := tqdm(range(args.epochs), unit=" epochs", mininterval=0.5)):
        for batch in rng.permutation(len(x))[: len(x) // BATCH * BATCH].reshape(-1, BATCH):
            key, noise = fd.random.split(key)
            model, state, loss = step(model, state, x[batch], noise)
            losses.append(loss)
        progress.set_postfix(loss=f"{losses[-1].item():.2f}", refresh=False)

    pixels, divergence = (part.mean().item() for part in model(x_test, fd.random.key(7)))
    mean = images.mean(axis=0).clip(1e-3, 1 - 1e-3)
    blind = -(x_test.numpy() * np.log(mean) + (1 - x_test.numpy()) * np.log(1 - mean)).sum(axis=1).mean()
    print(f"test images: {pixels + divergence:.2f} nats = {pixels:.2f} for pixels + {divergence:.2f} for the code")
    print(f"without a code, pixels alone take {blind:.2f}")

    args.out.mkdir(parents=True, exist_ok=True)
    drawn = model.generate(fd.random.key(3), 64).numpy().reshape(8, 8, 8, 8)
    figure = Figure(figsize=(9, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([loss.item() for loss in losses], linewidth=0.6)
    left.set(xlabel="step", ylabel="nats per image", title="Minus the evidence lower bound")
    right.imshow(drawn.transpose(0, 2, 1, 3).reshape(64, 64), cmap="gray_r")
    right.set_title("Made-up digits")
    right.axis("off")
    figure.savefig(args.out / "samples.png")
    print(f"saved samples.png in {args.out}")
    if not (math.isfinite(pixels) and pixels + divergence < blind - 1):
        sys.exit("the codes tell too little of the images")


if __name__ == "__main__":
    main()
