"""The examples and the README run, and show what they say."""

from __future__ import annotations

import gc
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from helpers import compiles, settled
from matplotlib.image import imread
from sklearn.datasets import load_digits

import functad as fd
from functad.tape import Node

ROOT = Path(__file__).parent.parent


def load(name: str) -> Any:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits() -> Any:
    return load("digits")


@pytest.fixture(scope="module")
def data() -> tuple[fd.Tensor, fd.Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    return fd.tensor(pixels[:512] / 16), fd.tensor(labels[:512])


def run_digits(digits: Any, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["digits.py", *arguments])
    digits.main()


def test_digits_reaches_its_accuracy_and_saves_its_pictures(digits, tmp_path, monkeypatch, capsys):
    # In one style only: below, both are shown to compute the same.
    run_digits(digits, monkeypatch, "--style", "functional", "--out", str(tmp_path / "new" / "folder"))
    report = re.search(r"loss (\S+), test accuracy (\S+)%, (\d+) steps per second", capsys.readouterr().out)
    assert float(report[1]) < 0.05
    assert float(report[2]) >= 97
    for name in ("loss.png", "predictions.png"):
        assert imread(tmp_path / "new" / "folder" / name).std() > 0.05, f"{name} is blank"


def test_digits_fails_below_its_accuracy(digits, tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match=r"test accuracy \d+\.\d+% is below 96%"):
        run_digits(digits, monkeypatch, "--epochs", "1", "--out", str(tmp_path))


@pytest.mark.parametrize("device", [fd.Device.cpu(fusion=False), fd.Device.numpy()], ids=lambda d: d.name)
def test_both_styles_compute_the_same_bits(device, digits, data):
    # Op by op: what is compiled together is rounded as XLA sees fit.
    images, labels = (x.to_device(device) for x in data)
    runs = {}
    for style in ("object", "functional"):
        params = digits.initial_params(seed=3, device=device)
        losses = digits.train(style, params, images, labels, epochs=2, seed=3)
        runs[style] = losses, {name: w.numpy() for name, w in params.items()}
    losses, params = runs["object"]
    assert losses == runs["functional"][0]
    assert losses[-1] < losses[0]
    for name, w in params.items():
        np.testing.assert_array_equal(w, runs["functional"][1][name])


@pytest.mark.parametrize("style", ["object", "functional"])
def test_no_step_compiles_anew(style, digits, data):
    # An index that is baked into the compiled program would compile at every batch.
    def train(seed):
        digits.train(style, digits.initial_params(seed, fd.Device.cpu(fusion=False)), *data, epochs=1, seed=seed)

    compiles(lambda: train(0))
    assert compiles(lambda: train(1)) == 0
    assert compiles(lambda: jax.jit(lambda x: x + len(style))(np.ones(17))) == 1  # they are heard


def test_a_training_loop_holds_one_graph_at_a_time(digits, data, monkeypatch):
    # A loss that outlives its step keeps its residuals while the next forward makes its own.
    inner, alive = digits.loss_fn, []

    def loss_fn(*args):
        alive.append(sum(type(thing) is Node for thing in gc.get_objects()))
        return inner(*args)

    monkeypatch.setattr(digits, "loss_fn", loss_fn)
    settled()
    gc.collect()
    gc.disable()
    try:
        digits.train("object", digits.initial_params(0, fd.Device.cpu()), *data, epochs=1)
    finally:
        gc.enable()
    assert len(alive) == 512 // digits.BATCH
    assert set(alive) == {alive[0]}


NINE = [
    ("w, a leaf on the path", "PRESENT", [5.0, 10.0]),
    ("1 x on a device without autodiff", "NOT_AUTODIFF_DEVICE", None),
    ("2 x without require_grad", "NOT_REQUIRE_GRAD", None),
    ("3 require_grad after use", "REQUIRED_TOO_LATE", None),
    ("4 unused leaf", "NOT_REACHED", None),
    ("5 path through detach()", "CUT_BY_DETACH", None),
    ("the detached copy itself", "PRESENT", [3.0, 4.0]),
    ("6 path through integers", "CUT_BY_INT_CAST", None),
    ("7 intermediate h", "INTERMEDIATE", None),
    ("7 the loss itself", "INTERMEDIATE", None),
    ("8 w after grad_remove", "REMOVED", None),
    ("9 w, in another container", "OTHER_GRADIENTS", None),
    ("unused, in that container", "PRESENT", [2.0, 2.0]),
    ("w, in the container that has it", "PRESENT", [5.0, 10.0]),
]
FIX = [
    ("w", "PRESENT", [1.0, 2.0]),
    ("x", "PRESENT", [3.0, 4.0]),
    ("h, a leaf by detach()", "PRESENT", [2.0, 2.0]),
    ("w, nothing cut", "PRESENT", [3.0, 6.0]),
    ("h, by retain_grad()", "PRESENT", [2.0, 2.0]),
]


@pytest.mark.parametrize(
    ("name", "shorter"),
    [("newton", {}), ("per_example_gradients", {"STEPS": 200}), ("maml", {"OUTER": 100}), ("jax_interop", {})],
    ids=lambda value: value if type(value) is str else "",
)
def test_the_example_runs_and_passes_its_own_checks(name, shorter, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    example = load(name)
    for constant, value in shorter.items():
        monkeypatch.setattr(example, constant, value)
    example.main()
    assert capsys.readouterr().out.strip()


def test_why_none_tells_the_nine_cases_apart():
    out = subprocess.run(
        [sys.executable, ROOT / "examples" / "why_none.py"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    rows = re.findall(r"^ *(\S.*?) +([A-Z_]{5,}) +(None|\[.*\])$", out, re.MULTILINE)
    assert rows == [(case, reason, str(gradient)) for case, reason, gradient in NINE + FIX]
    assert out.count("-> ") == sum(gradient is None for _, _, gradient in NINE)


PYTHON = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("block", PYTHON, ids=range(len(PYTHON)))
def test_the_readme_runs_and_prints_what_it_says(block, capsys):
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    for told in re.findall(r"^print\(.*\)  # (NOT_REACHED: .*: |[\d.]+)", block, re.MULTILINE):
        assert re.search(f"^{re.escape(told.strip().rstrip(':'))}", printed, re.MULTILINE), told


def test_what_the_readme_prints_is_looked_at():
    assert len(re.findall(r"^print\(.*\)  # (?:NOT_REACHED|6\.0)", "\n".join(PYTHON), re.MULTILINE)) == 2


def test_the_page_on_modules_quantizes(capsys):
    page = (ROOT / "docs" / "modules.md").read_text()
    (block,) = re.findall(
        r"^```python\n(.*?)^```$", page.partition("## Quantized weights")[2], re.MULTILINE | re.DOTALL
    )
    exec(block, {"fd": fd})
    assert capsys.readouterr().out == "QuantTensor(int8[64, 64], scale per block of 32, of float32) float32\n"


def test_the_page_on_modules_runs(capsys):
    """Its blocks go on from each other, and from names a reader has: a model, data and losses, files of torch and flax."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / "modules.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(blocks[0], names)
    assert names["Scale"](fd.ones(2))(names["Linear"](3, 2)(fd.ones((1, 3)))).shape == (1, 2)
    names["Net"] = lambda device: fd.nn.Linear(2, 1, device=device)
    names["batches"] = [(fd.ones((4, 2)), fd.ones((4, 1)))]
    names["loss_fn"] = fd.nn.functional.mse_loss
    names["loss"] = lambda model, x, y: names["loss_fn"](model(x), y)
    exec(blocks[1], names)
    exec(blocks[2], names)
    model, _, loss = names["step"](names["model"], names["state"], *names["batches"][0])
    assert loss.item() > names["loss"](model, *names["batches"][0]).item()
    first = names["model"]
    exec(blocks[3], names)
    moved = 0.999 * first.weight.numpy() + 0.001 * names["model"].weight.numpy()
    np.testing.assert_allclose(names["ema"].weight.numpy(), moved, rtol=1e-6)
    assert (
        not names["ema"].weight.is_autodiff
        and names["model"].weight.dtype == names["grads"][first.weight].dtype == fd.float32
    )
    exec(blocks[4], names)
    assert capsys.readouterr().out.split() == ["0.0", "0.0010000000474974513", "0.0"]

    parts = {"0.weight": np.ones((3, 2)), "0.bias": np.ones(3), "1.weight": np.ones((1, 3)), "1.bias": np.ones(1)}
    files = {"mlp.pt": parts, "resnet.pt": {f"module.layers.{name}": x for name, x in parts.items()}}
    loaded = []

    class Model(fd.nn.Sequential):
        def load(self, *args, **kwargs):
            loaded.append(super().load(*args, **kwargs)(fd.ones(2)).item())

    names["torch"] = SimpleNamespace(load=lambda path, weights_only: files[path])
    names["model"], names["np"] = Model(fd.nn.Linear(2, 3), fd.nn.Linear(3, 1)), np
    names["flax_params"] = {
        "params": {
            "Dense_0": {"kernel": np.ones((2, 3)), "bias": np.ones(3)},
            "Dense_1": {"kernel": np.ones((3, 1)), "bias": np.ones(1)},
        }
    }
    exec(blocks[5], names)
    assert loaded == [10.0] * 3


def test_the_readme_has_the_commands_ci_runs():
    text = (ROOT / "README.md").read_text()
    for name in ("example", "tests"):
        assert re.search(rf"^<!-- run: {name} -->\n```sh\npython3 -m venv .*\n```$", text, re.MULTILINE)
    assert PYTHON
