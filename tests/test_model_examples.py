"""The example programs with models: they learn, save what they say, and go on where they stopped, bit for bit."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from safetensors.numpy import load_file

import functad as fd

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture
def run(monkeypatch, tmp_path, capsys) -> Any:
    """Runs the main function of an example; returns what it printed."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)

    def call(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
        importlib.import_module(name).main()
        return capsys.readouterr().out

    return call


def drawn(*names: str) -> bool:
    return all(imread(name).std() > 0.02 for name in names)


def test_cnn_digits_stops_and_goes_on_with_the_same_numbers(run, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setattr(importlib.import_module("cnn_digits"), "REQUIRED_ACCURACY", 0.5)
    whole = run("cnn_digits", "--epochs", "2", "--out", "whole")

    # The same run, killed after the first epoch: the second save never happens.
    save, saves = fd.save, []

    def killed(value: Any, path: Any) -> None:
        if saves:
            raise KeyboardInterrupt
        saves.append(path)
        save(value, path)

    monkeypatch.setattr(fd, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        run("cnn_digits", "--epochs", "2", "--out", "parts")
    monkeypatch.setattr(fd, "save", save)
    resumed = run("cnn_digits", "--epochs", "2", "--out", "parts", "--resume")

    assert "going on after epoch 1" in resumed
    numbers = re.compile(r"epoch 2, loss (\S+), validation accuracy (\S+)%\ntest accuracy (\S+)%")
    assert numbers.search(whole).groups() == numbers.search(resumed).groups()
    for name in ("model.safetensors", "run.safetensors"):  # the headers hold parameter ids, which are new in each run
        a, b = (load_file(Path(folder, name)) for folder in ("whole", "parts"))
        assert {k: v.tobytes() for k, v in a.items()} == {k: v.tobytes() for k, v in b.items()}
    assert drawn("whole/curves.png", "whole/predictions.png")


def test_char_transformer_and_its_adapters(run, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    char = importlib.import_module("char_transformer")
    for name, value in {"WIDTH": 32, "HEADS": 2, "LAYERS": 1, "BATCH": 16, "CONTEXT": 32}.items():
        monkeypatch.setattr(char, name, value)
    lora = importlib.import_module("lora")
    monkeypatch.setattr(lora, "CONTEXT", 32)
    report = run("char_transformer", "--steps", "400")
    loss, entropy = re.search(r"held-out text (\S+) nats per character; single characters: (\S+)", report).groups()
    assert float(loss) < 0.8 * float(entropy)
    assert re.search(r"---\nThe .", report)
    assert drawn("char-out/loss.png")

    report = run("lora", "--steps", "120", "--rank", "8")  # exits with an error if the base was touched
    before, after, merged = map(float, re.search(r"code: (\S+) before, (\S+) after, (\S+) merged", report).groups())
    assert after < before - 0.1
    assert merged == pytest.approx(after, abs=2e-3)


def test_vae(run):
    report = run("vae", "--epochs", "12")  # exits with an error if the codes tell nothing
    total, pixels, code = map(float, re.search(r"images: (\S+) nats = (\S+) for pixels \+ (\S+)", report).groups())
    assert total == pytest.approx(pixels + code, abs=0.02)
    assert drawn("vae-out/samples.png")


def test_pinn(run):
    report = run("pinn", "--steps", "600")  # exits with an error above 2%
    assert float(re.search(r"relative error of the solution (\S+)%", report)[1]) < 2
    assert drawn("pinn-out/solution.png")


def test_gaussian_process(run):
    report = run("gaussian_process", "--steps", "60")  # exits with an error if it is worse than a line
    first, last = map(float, re.search(r"(\S+) nats per observation at first, (\S+) at the end", report).groups())
    assert last < first - 0.03
    assert drawn("gp-out/fit.png")


def test_a_gaussian_process_equals_the_closed_form():
    """Its log likelihood against the normal density written out with NumPy, in float64."""
    sys.path.insert(0, str(EXAMPLES))
    try:
        gp = importlib.import_module("gaussian_process")
    finally:
        sys.path.remove(str(EXAMPLES))
    host = fd.Device.numpy()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 10)), rng.normal(size=12)
    with fd.set_default_device(host):
        kernel = gp.Kernel(*(fd.tensor(v, "float64", host) for v in (np.full(10, 0.3), 0.1, -0.2)))
        found = gp.loss_fn(kernel, fd.tensor(x, "float64", host), fd.tensor(y, "float64", host)).item()
    squares = ((x[:, None] - x[None]) ** 2).sum(-1) / np.exp(0.6)
    cov = np.exp(0.2 - 0.5 * squares) + (np.exp(-0.4) + 1e-4) * np.eye(12)
    nll = 0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(cov)[1] + 12 * np.log(2 * np.pi))
    assert found == pytest.approx(nll / 12, rel=1e-6)
