"""Files: weights by name, any pytree, other libraries' weights, crashes and corruption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import OrderedDict, deque
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

import functad as fd
from functad import optim, tree
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, RecordError
from functad.module.files import PartialLoadWarning
from functad.nn import Linear
from functad.records.format import Reader, write


class Net(fd.Module):
    def __init__(self, seed=0, device=None, hidden=3):
        k1, k2 = fd.random.split(fd.random.key(seed))
        self.layers = [Linear(2, hidden, key=k1, device=device), Linear(hidden, 1, key=k2, device=device)]
        self.count = fd.tensor(7, device=device)
        self.act = fd.numpy.tanh

    def forward(self, x):
        return self.layers[1](self.act(self.layers[0](x)))


class Tied(fd.Module):
    first: fd.Param
    second: fd.Param


NAMES = ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "count"]


def values(model):
    return [x.numpy() for x in tree.leaves(model)]


def same(a, b):
    for x, y in zip(values(a), values(b), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


# --- Modules


def test_save_and_load(path, device):
    old, new = Net(0, device.autodiff()), Net(1, device.autodiff()).freeze("layers.0.bias")
    assert old.save(path) is None
    got = new.load(path)
    same(got, old)
    assert [p.id for p in got.parameters()] == [p.id for p in new.parameters()]
    assert [p.is_require_grad for p in got.parameters()] == [True, False, True, True]
    assert got.devices == [device] and got.training
    assert not np.array_equal(values(new)[0], values(got)[0])
    assert got.valid().load(str(path)).training is False


def test_other_readers_read_it_and_we_read_theirs(path):
    model = Net()
    model.save(path)
    theirs = safetensors.numpy.load_file(path)
    assert sorted(theirs) == sorted(NAMES)
    np.testing.assert_array_equal(theirs["layers.0.weight"], model.layers[0].weight.numpy())
    changed = {name: np.asarray(x + 1) for name, x in theirs.items()}
    safetensors.numpy.save_file(changed, path)
    np.testing.assert_array_equal(model.load(path).layers[0].weight.numpy(), changed["layers.0.weight"])


ALL = [
    np.bool_, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.float16, np.float32,
    np.float64, np.complex64, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3b11fnuz,
]  # fmt: skip


@pytest.mark.parametrize("dtype", ALL, ids=lambda d: np.dtype(d).name)
def test_every_dtype(path, dtype):
    arrays = {
        "x": np.arange(6).reshape(2, 3).astype(dtype),
        "t": np.arange(6).reshape(2, 3).astype(dtype).T,
        "empty": np.zeros((0, 2), dtype),
        "scalar": np.ones((), dtype),
    }
    write(path, arrays)
    for name, x in Reader(path).arrays().items():
        assert x.dtype == np.dtype(dtype) and x.shape == arrays[name].shape
        np.testing.assert_array_equal(x.astype(np.complex128), arrays[name].astype(np.complex128))


def test_dtype_policies(path):
    model = Net()
    model.save(path, dtype="bfloat16")
    assert {x.dtype.name for x in Reader(path).arrays().values()} == {"bfloat16", "int32"}
    assert {p.dtype.name for p in model.load(path).parameters()} == {"float32"}
    assert {p.dtype.name for p in model.load(path, dtype="file").parameters()} == {"bfloat16"}
    half = model.load(path, dtype="float16")
    assert half.layers[0].weight.dtype == fd.float16 and half.count.dtype == fd.int32
    np.testing.assert_allclose(half.layers[0].weight.numpy(), model.layers[0].weight.numpy(), atol=1e-2)
    for use in (lambda: model.save(path, dtype="int32"), lambda: model.load(path, dtype="int8")):
        with pytest.raises(DTypeError, match="float type"):
            use()


def test_shared_parameters_are_written_once(path):
    w = fd.Param([1.0, 2.0])
    Tied(w, w).save(path)
    assert Reader(path).names() == ["first"]
    v = fd.Param([0.0, 0.0])
    got = Tied(v, v).load(path)
    assert got.first.tolist() == got.second.tolist() == [1.0, 2.0] and got.num_params == 2
    both = {"first": np.ones(2), "second": np.ones(2)}  # as torch writes them
    assert Tied(v, v).load(both).second.tolist() == [1.0, 1.0]
    with pytest.raises(RecordError, match=r"second.*shared in the model"):
        Tied(v, v).load({"first": np.ones(2), "second": np.zeros(2)})
    assert Tied(v, v).load({"second": np.ones(2)}).first.tolist() == [1.0, 1.0]


def test_what_does_not_fit_is_reported(path):
    model = Net()
    arrays = dict(zip(NAMES, values(model), strict=True))
    arrays["layers.0.bias"] = np.zeros(5, np.float32)
    arrays["extra"] = np.zeros(1, np.float32)
    arrays["count"] = np.zeros((), np.float32)
    del arrays["layers.1.bias"]
    write(path, arrays)
    before = values(model)
    with pytest.raises(RecordError) as error:
        model.load(path)
    text = str(error.value)
    for part in (
        "2 loaded",
        "missing in the file: layers.1.bias",
        "unexpected in the file: extra",
        "layers.0.bias (shape (5,) in the file, (3,) in the model)",
        "count (float32 in the file, int32 in the model)",
        "strict=False",
    ):
        assert part in text
    with pytest.warns(PartialLoadWarning, match="missing in the file") as record:
        got = model.load(path, strict=False)
    assert record[0].message.report.unexpected == ["extra"]
    np.testing.assert_array_equal(got.layers[0].weight.numpy(), arrays["layers.0.weight"])
    np.testing.assert_array_equal(got.layers[1].bias.numpy(), before[3])
    _, report = fd.load_into(model, path, strict=False)
    assert sorted(report.mismatched) == ["count", "layers.0.bias"] and not report.complete
    assert fd.load_into(model, dict(zip(NAMES, before, strict=True)))[1].complete


def test_names_of_other_libraries():
    model = Net()
    new = [x + 1 for x in values(model)]
    theirs = dict(zip(["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "n"], new, strict=True))
    mapping = dict(zip(theirs, NAMES, strict=True))
    rules = [(r"^fc1", "layers.0"), (r"^fc2", "layers.1"), (r"^n$", "count")]
    for names in (mapping, mapping.get, rules):
        got = model.load(theirs, names=names)
        for x, y in zip(values(got), new, strict=True):
            np.testing.assert_array_equal(x, y)
    got, report = fd.load_into(model, theirs | {"optimizer": np.ones(1)}, names=[(r"optim", None), *rules])
    assert report.complete
    with pytest.raises(ArgumentError, match=r"'count' of both 'fc1\.weight' and 'fc1\.bias'"):
        model.load(theirs, names=lambda name: "count")
    with pytest.raises(ArgumentTypeError, match="names must be"):
        model.load(theirs, names=3)
    with pytest.raises(ArgumentTypeError, match=r"torch\.load"):
        model.load(3)


def test_flax_parameters_with_transposed_kernels():
    model = Net()
    w0, b0, w1, b1, _ = values(model)
    flax = {
        "params": {"Dense_0": {"kernel": w0.T * 2, "bias": b0}, "Dense_1": {"kernel": jnp.asarray(w1.T), "bias": b1}}
    }
    rules = [
        (r"^params\.Dense_(\d)\.", r"layers.\1."),
        (r"kernel$", "weight", np.transpose),
    ]
    got, report = fd.load_into(model, flax, strict=False, names=rules)
    assert report.missing == ["count"] and not report.mismatched and not report.unexpected
    np.testing.assert_array_equal(got.layers[0].weight.numpy(), w0 * 2)
    np.testing.assert_array_equal(got.layers[1].weight.numpy(), w1)


class TorchLike:
    """What a torch tensor shows of itself."""

    def __init__(self, x, dtype="torch.float32"):
        self.x, self.dtype = x, dtype

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        return TorchLike(self.x.astype(np.float32))

    def numpy(self):
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.x


def test_torch_state_dicts():
    fc = Linear(2, 1)
    state = {
        "weight": TorchLike(np.ones((1, 2), np.float32)),
        "bias": TorchLike(np.ones(1, ml_dtypes.bfloat16), "torch.bfloat16"),
    }
    got = fc.load(state, dtype="file")
    assert got.weight.tolist() == [[1.0, 1.0]] and got.bias.dtype == fd.bfloat16


# --- pytrees


class Pair(NamedTuple):
    a: Any
    b: Any


def test_any_pytree_keeps_its_structure(path):
    w = fd.Param([1.0, 2.0])
    value = {
        "step": 3, "big": 2**80, "rate": 0.1, "nan": float("nan"), "inf": -float("inf"), "z": 1 - 2j, "flag": True, "none": None,
        "text": "é\n", "bytes": b"\x00\xff", "dtype": np.dtype("float16"), "id": w.id,
        "nested": [(), [], {}, (1, (2, [None]))], 7: "int key", (1, "a"): "tuple key", None: "none key", 1.5: "float key",
        "tensor": fd.tensor([[1, 2]]), "bf16": fd.ones(3, dtype="bfloat16"), "param": [w, w],
        "numpy": np.arange(3.0), "scalar": np.float32(2.5), "jax": jnp.ones((2, 0)), "key": fd.random.key(3),
        "jax key": jax.random.key(5), "od": OrderedDict([("z", 1), ("a", 2)]), "deque": deque([1, 2], maxlen=3),
        "a.b": 1, "a": {"b": fd.ones(1)}, "a#2": fd.zeros(1),
    }  # fmt: skip
    fd.save(value, path)
    got = fd.load(path)
    assert list(got) == list(value)
    for key in (
        "step",
        "big",
        "rate",
        "inf",
        "z",
        "flag",
        "none",
        "text",
        "bytes",
        "dtype",
        "id",
        "nested",
        7,
        (1, "a"),
        "od",
    ):
        assert got[key] == value[key] and type(got[key]) is type(value[key]), key
    assert np.isnan(got["nan"]) and got["deque"].maxlen == 3 and list(got["deque"]) == [1, 2]
    assert type(got["od"]) is OrderedDict and list(got["od"]) == ["z", "a"]
    assert got["tensor"].tolist() == [[1, 2]] and got["bf16"].dtype == fd.bfloat16
    assert got["param"][0] is got["param"][1] and got["param"][0].id == w.id
    assert isinstance(got["numpy"], np.ndarray) and got["numpy"].dtype == np.float64 and got["numpy"].flags.writeable
    assert type(got["scalar"]) is np.float32 and isinstance(got["jax"], jax.Array) and got["jax"].shape == (2, 0)
    assert fd.random.normal(got["key"], 2).tolist() == fd.random.normal(value["key"], 2).tolist()
    assert jax.random.normal(got["jax key"]) == jax.random.normal(value["jax key"])
    assert got["a"]["b"].tolist() == [1.0] and got["a#2"].tolist() == [0.0]
    assert sorted(safetensors.numpy.load_file(path))  # other readers see the arrays


def test_devices_on_loading(path):
    fd.save({"x": fd.ones(2), "w": fd.Param(1.0)}, path)
    got = fd.load(path, device=fd.Device.numpy().autodiff())
    assert got["x"].device.name == "autodiff<numpy>" and got["w"].is_require_grad
    like = {"x": fd.zeros(2, dtype="float16"), "w": fd.Param(0.0)}
    got = fd.load(path, like=like)
    assert got["x"].dtype == fd.float16 and got["w"].id == like["w"].id and got["w"].item() == 1.0


def test_a_training_run_continues_where_it_stopped(path, device):
    def loss(m, x):
        return (m(x) ** 2).mean()

    x = fd.tensor([[1.0, 2.0], [0.5, -1.0]], device=device)
    opt = optim.adamw(0.1)

    def train(model, state, steps):
        for _ in range(steps):
            model, state = opt.step(model, loss(model, x).backward(), state)
        return model, state

    model = Net(0, device.autodiff())
    model, state = train(model, opt.init(model), 2)
    fd.save({"model": model, "state": state, "step": 2, "key": fd.random.key(1)}, path)
    expected, _ = train(model, state, 2)

    fresh = Net(5, device.autodiff())
    like = {"model": fresh, "state": opt.init(fresh), "step": 0, "key": fd.random.key(0)}
    got = fd.load(path, like=like)
    assert got["step"] == 2 and [p.id for p in got["model"].parameters()] == [p.id for p in fresh.parameters()]
    same(train(got["model"], got["state"], 2)[0], expected)
    fd.save(state, path)  # a state alone needs no like
    same(train(model, fd.load(path), 2)[0], expected)


def test_what_does_not_fit_like_is_named(path):
    fd.save({"a": fd.ones(2), "m": Net(), "t": (1, 2)}, path)
    with pytest.raises(RecordError, match=r"m is a Module Net in the file, and float32\[1\] in like="):
        fd.load(path, like={"a": fd.ones(2), "m": fd.ones(1), "t": (1, 2)})
    with pytest.raises(RecordError, match=r"a is float32\[2\] in the file, and float32\[3\] in like="):
        fd.load(path, like={"a": fd.ones(3), "m": Net(), "t": (1, 2)})
    with pytest.raises(RecordError, match="the value is dict with a, m, t in the file, and dict with a, b"):
        fd.load(path, like={"a": 1, "b": 2})
    with pytest.raises(RecordError, match=r"m: .*layers\.0\.weight \(shape"):
        fd.load(path, like={"a": fd.ones(2), "m": Net(hidden=4), "t": (1, 2)})
    with pytest.raises(RecordError, match="t is tuple with 0, 1"):
        fd.load(path, like={"a": fd.ones(2), "m": Net(), "t": None})


def test_what_cannot_be_written_is_named(path):
    with pytest.raises(ArgumentTypeError, match=r"a\.1 is .*object.*no form in a file"):
        fd.save({"a": [1, object()]}, path)
    with pytest.raises(ArgumentTypeError, match="no form"):
        fd.save(lambda x: x, path)
    assert list(path.parent.iterdir()) == []
    Net().save(path)
    with pytest.raises(RecordError, match=r"no structure.*model\.load"):
        fd.load(path)

    class Holder(fd.Module):
        x: Any

    with pytest.raises(RecordError, match=r"two tensors have the path 'x\.a\.b'"):
        Holder({"a.b": fd.ones(1), "a": {"b": fd.ones(1)}}).save(path)


def test_named_tuples_are_found_and_never_imported_from_strange_places(path, monkeypatch):
    fd.save(Pair(fd.ones(1), [None]), path)
    got = fd.load(path)
    assert type(got) is Pair and got.b == [None]
    monkeypatch.setattr(Pair, "__module__", "a_strange_place")
    fd.save(Pair(fd.ones(1), [None]), path)
    with pytest.raises(RecordError, match=r"no such class now\. Import a_strange_place first"):
        fd.load(path)


# --- files that are spoilt


@pytest.mark.parametrize("cut", [0, 4, 8, 50, -1, -20])
def test_a_truncated_file(path, cut):
    model = Net()
    model.save(path)
    raw = path.read_bytes()
    path.write_bytes(raw[:cut])
    for load in (model.load, fd.load):
        with pytest.raises(RecordError, match=r"is corrupt.*Nothing was loaded"):
            load(path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda raw: raw + b"\0", "it should have"),
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "the bytes of"),
        (lambda raw: b"\xff" * 8 + raw[8:], "does not start as"),
        (lambda raw: raw[:9] + b"!" + raw[10:], "header cannot be read"),
        (lambda raw: raw.replace(b'"F32"', b'"F99"'), "dtype 'F99'"),
        (lambda raw: raw.replace(b'"shape": [3]', b'"shape": [4]'), r"F32\[4\] in 12 bytes"),
        (lambda raw: b"PK\x03\x04 a torch archive", r"torch\.load"),
    ],
)
def test_a_corrupt_file(path, change, why):
    Net().save(path)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(RecordError, match=why):
        Net().load(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(RecordError, match="there is no file"):
        Net().load(tmp_path / "nothing")
    with pytest.raises(RecordError, match="is a folder"):
        Net().load(tmp_path)
    with pytest.raises(RecordError, match="is a folder"):
        Net().save(tmp_path)
    with pytest.raises(RecordError, match="no folder"):
        Net().save(tmp_path / "a" / "b")


def test_links_and_permissions_stay(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    Net(0).save(real)
    real.chmod(0o600)
    link.symlink_to(real)
    Net(1).save(link)
    assert link.is_symlink() and real.stat().st_mode & 0o777 == 0o600
    same(Net(0).load(real), Net(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "real"]


def test_a_failing_write_leaves_the_old_file(path, monkeypatch):
    Net(0).save(path)
    monkeypatch.setattr(os, "replace", lambda *a: (_ for _ in ()).throw(OSError("No space left on device")))
    with pytest.raises(OSError, match="No space"):
        Net(1).save(path)
    monkeypatch.undo()
    same(Net(3).load(path), Net(0))
    assert [p.name for p in path.parent.iterdir()] == [path.name]


_KILLER = """
import os, signal, sys, time
import numpy as np
from functad.records.format import Reader, write

path = sys.argv[1]
write(path, {"x": np.zeros(1_000_000, np.float32)}, {"n": 0})
last = 0
for delay in (0.002, 0.005, 0.009, 0.014, 0.02, 0.03, 0.05, 0.08, 0.15, 0.3):
    child = os.fork()
    if not child:
        while True:
            last += 1
            write(path, {"x": np.full(1_000_000, last, np.float32)}, {"n": last})
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    reader = Reader(path)
    assert (reader["x"] == reader.about["n"]).all() and reader.about["n"] >= last
    last = reader.about["n"]
print("written", last, "left behind", len(os.listdir(os.path.dirname(path))) - 1)
"""


def test_the_last_good_file_survives_a_kill(path):
    """SIGKILL at many moments of a save: what is there is always one whole file."""
    command = [sys.executable, "-W", "ignore", "-c", _KILLER, str(path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("written")


def test_the_header_is_plain_json(path):
    Net().save(path)
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["layers.0.bias"]["dtype"] == "F32" and (8 + int.from_bytes(raw[:8], "little")) % 8 == 0
    assert Path(path).suffix == ".safetensors"


def test_like_leaves_histories_as_they_are_in_the_file(tmp_path):
    path = tmp_path / "run.safetensors"
    fd.save({"w": fd.ones(2), "losses": [0.5, 0.25], "by_name": {"a": [1]}}, path)
    like = {"w": fd.zeros(2), "losses": [], "by_name": {}}
    run = fd.load(path, like=like)
    assert run["losses"] == [0.5, 0.25] and run["by_name"] == {"a": [1]}
    with pytest.raises(RecordError, match="w"):
        fd.load(path, like=like | {"w": fd.zeros(3)})


def test_no_flipped_byte_goes_unnoticed(tmp_path):
    """Names and numbers of the structure are in the header, which the sums of the tensors do not cover."""
    value = {"step": 3, "x": fd.tensor([[1, 2, 3], [4, 5, 6]]), "name": "abc", "rate": 0.125, "m": np.arange(4.0)}
    path, spoilt = tmp_path / "whole", tmp_path / "spoilt"
    fd.save(value, path)
    raw = path.read_bytes()
    rng = np.random.default_rng(0)
    for place in range(len(raw)):
        changed = bytearray(raw)
        changed[place] ^= 1 << int(rng.integers(8))
        spoilt.write_bytes(changed)
        try:
            found = fd.load(spoilt)
        except RecordError:
            continue
        assert repr(found) == repr(value), f"byte {place}"


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(tmp_path):
    path = tmp_path / "w"
    old, new = Linear(2, 2, key=fd.random.key(0)), Linear(2, 2, key=fd.random.key(1))
    old.save(path)
    reader = Reader(path)
    new.save(path)
    assert reader["weight"].tolist() == old.weight.tolist()
    assert old.load(path).weight.tolist() == new.weight.tolist()


def test_a_name_that_the_format_keeps_for_itself(tmp_path):
    class Odd(fd.Module):
        __metadata__: fd.Param

    fd.save({"__metadata__": fd.ones(2)}, tmp_path / "x")
    assert fd.load(tmp_path / "x")["__metadata__"].tolist() == [1, 1]
    with pytest.raises(RecordError, match="__metadata__"):
        Odd(fd.ones(2)).save(tmp_path / "x")


def test_what_killed_writers_left_is_removed_later(tmp_path):
    path = tmp_path / "a[1].safetensors"
    old, new, other = (tmp_path / name for name in (f".{path.name}.0a.part", f".{path.name}.0b.part", ".b.0a.part"))
    for left in (old, new, other):
        left.write_bytes(b"half")
    for left in (old, other):
        os.utime(left, (0, 0))
    fd.save({"x": 1}, path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([path.name, new.name, other.name])
