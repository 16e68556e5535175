"""A character-level transformer on the text of Python's own reference (`pydoc_data.topics`, 700 thousand characters).

    python examples/char_transformer.py            # trains, shows sampled text, saves the model
    python examples/char_transformer.py --resume   # goes on from the last checkpoint

The loss is compared with the entropy of single characters, which is what a model that knows only
their frequencies would reach. Sampling runs one compiled step for each character, with a cache of
keys and values.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

import functad as fd
import functad.nn.functional as F
from functad import nn

CONTEXT, BATCH = 64, 32
WIDTH, HEADS, LAYERS = 96, 4, 2
SAVE_EVERY = 100


def printable(text: str) -> str:
    """The text with everything but plain ASCII and line ends left out."""
    return "".join(c for c in text if c == "\n" or " " <= c <= "~")


TEXT = printable("\n".join(topics[name] for name in sorted(topics)))
LETTERS = "\n" + "".join(map(chr, range(32, 127)))


def encode(text: str) -> np.ndarray:
    """The number of each character."""
    return np.array([LETTERS.index(c) for c in text], np.int32)


class CharModel(fd.Module):
    """Scores of the next character, for each place of a text."""

    def __init__(self, key: fd.Tensor):
        k_token, k_place, k_head, *keys = fd.random.split(key, LAYERS + 3)
        self.token = nn.Embedding(len(LETTERS), WIDTH, key=k_token)
        self.place = nn.Embedding(CONTEXT, WIDTH, key=k_place)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True, key=k)
            for k in keys
        ]
        self.body = nn.TransformerEncoder(layers, nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, len(LETTERS), key=k_head)

    def forward(self, text: fd.Tensor) -> fd.Tensor:
        """Scores for whole texts, (batch, time, letters)."""
        x = self.token(text) + self.place(fd.arange(text.shape[1]))
        return self.head(self.body(x, is_causal=True))

    def step(self, letters: fd.Tensor, cache: tuple[nn.KVCache, ...]) -> tuple[fd.Tensor, tuple[nn.KVCache, ...]]:
        """Scores for the next characters, and the cache after them."""
        x = self.token(letters) + self.place(cache[0].length + fd.arange(letters.shape[1]))
        x, cache = self.body.step(x, cache)
        return self.head(x), cache


def loss_fn(model: CharModel, text: fd.Tensor) -> fd.Tensor:
    """Nats for each character after the first."""
    scores = model(text[:, :-1])
    return F.cross_entropy(scores.reshape(-1, len(LETTERS)), text[:, 1:].reshape(-1))


def unigram_entropy(text: str) -> float:
    """Nats for each character of a model that knows only how frequent each is."""
    counts = np.array(list(Counter(text).values()), float)
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum())


def batch_of(data: np.ndarray, number: int) -> fd.Tensor:
    """Pieces of the text; which ones follows from the number of the step."""
    starts = np.random.default_rng(number).integers(0, len(data) - CONTEXT - 1, BATCH)
    return fd.tensor(data[starts[:, None] + np.arange(CONTEXT + 1)])


def sample(model: CharModel, prompt: str, length: int, key: fd.Tensor, temperature: float = 0.8) -> str:
    """A text that goes on from a prompt; both together fit into the context."""
    model = model.valid()

    @fd.jit
    def step(model: CharModel, letter: fd.Tensor, cache: tuple[nn.KVCache, ...], key: fd.Tensor) -> tuple:
        scores, cache = model.step(letter, cache)
        return fd.random.categorical(key, scores[:, -1] / temperature)[:, None].astype("int32"), cache

    cache = model.body.init_cache(1, CONTEXT)
    _, cache = model.step(fd.tensor(encode(prompt[:-1])[None]), cache) if len(prompt) > 1 else (None, cache)
    letter = fd.tensor(encode(prompt[-1:])[None])
    text = []
    for _ in range(min(length, CONTEXT - len(prompt))):
        key, key_letter = fd.random.split(key)
        letter, cache = step(model, letter, cache, key_letter)
        text.append(LETTERS[letter.item()])
    return prompt + "".join(text)


class Run(NamedTuple):
    """All that the rest of the training depends on."""

    model: CharModel
    state: fd.optim.OptState
    losses: list[float]


def train(run: Run, opt: fd.optim.Optimizer, data: np.ndarray, steps: int, checkpoint: Path | None = None) -> Run:
    """Steps until there are `steps` in all; a checkpoint every `SAVE_EVERY`."""

    @fd.jit
    def step(
        model: CharModel, state: fd.optim.OptState, text: fd.Tensor
    ) -> tuple[CharModel, fd.optim.OptState, fd.Tensor]:
        loss, grads = fd.value_and_grad(loss_fn)(model, text)
        return *opt.step(model, grads, state), loss

    model, state, losses = run
    with tqdm(total=steps, initial=len(losses), unit=" steps", mininterval=0.5) as progress:
        while len(losses) < steps:
            model, state, loss = step(model, state, batch_of(data, len(losses)))
            losses = [*losses, loss.item()]
            progress.update()
            progress.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
            if checkpoint and len(losses) % SAVE_EVERY == 0:
                fd.save(Run(model, state, losses), checkpoint)
    return Run(model, state, losses)


def evaluate(model: CharModel, data: np.ndarray) -> float:
    """The loss on pieces of a text that training has not seen."""
    loss = fd.jit(loss_fn)
    return float(np.mean([loss(model.valid(), batch_of(data, 10**6 + i)).item() for i in range(20)]))


def main() -> None:
    """Train, report, sample, save; exits with an error if the text was not learnt."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("char-out"))
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint = args.out / "run.safetensors"

    cut = len(TEXT) * 9 // 10
    data, held_out = encode(TEXT[:cut]), encode(TEXT[cut:])
    rate = fd.optim.warmup_cosine_decay_schedule(0.0, 3e-3, 50, args.steps)
    opt = fd.optim.chain(
        fd.optim.clip_by_norm(1.0), fd.optim.adamw(rate, weight_decay=0.01, mask=fd.ParamGroup("*weight"))
    )
    model = CharModel(fd.random.key(args.seed))
    run = Run(model, opt.init(model), [])
    if args.resume and checkpoint.exists():
        run = fd.load(checkpoint, like=run)
        print(f"going on after step {len(run.losses)}")

    start, first = time.perf_counter(), len(run.losses)
    run = train(run, opt, data, args.steps, checkpoint)
    pace = (len(run.losses) - first) / (time.perf_counter() - start)
    loss, entropy = evaluate(run.model, held_out), unigram_entropy(TEXT[cut:])
    print(f"{model.num_params:,} parameters, {pace:.1f} steps per second with compilation")
    print(f"loss on held-out text {loss:.3f} nats per character; single characters: {entropy:.3f}")
    for prompt in ("The ", "If "):
        print("---\n" + sample(run.model, prompt, CONTEXT, fd.random.key(1)))

    run.model.save(args.out / "model.safetensors")
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(run.losses, linewidth=0.8)
    axes.axhline(entropy, color="gray", linestyle="--", label="single characters")
    axes.set(xlabel="step", ylabel="nats per character", title="Loss on the training text")
    axes.legend()
    figure.savefig(args.out / "loss.png")
    print(f"---\nsaved the run, the model and loss.png in {args.out}")
    if loss > 0.8 * entropy:
        sys.exit(f"the loss {loss:.3f} is not well under {entropy:.3f}")


if __name__ == "__main__":
    main()
