"""What someone new meets first: NumPy arrays in every layer, help, warnings, listings, short messages."""

from __future__ import annotations

import doctest
import inspect
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
from functad import nn
from functad.ops import TABLE
from functad.ops.op import Op

KEY = fd.random.key(0)
SEQUENCE = np.linspace(-1, 1, 2 * 3 * 4).reshape(2, 3, 4)

TAKES_ARRAYS = {
    "LSTM": (nn.LSTM(4, 2, key=KEY), ()),
    "LSTM with states": (nn.LSTM(4, 2, key=KEY), ((np.zeros((1, 3, 2)), np.zeros((1, 3, 2))),)),
    "GRU": (nn.GRU(4, 2, key=KEY), (np.ones((1, 3, 2)),)),
    "RNN": (nn.RNN(4, 2, key=KEY), ()),
    "Bidirectional": (nn.Bidirectional(nn.GRU(4, 2, key=KEY), nn.GRU(4, 2, key=KEY)), ()),
    "LSTMCell": (nn.LSTMCell(4, 2, key=KEY), ()),
    "GRUCell": (nn.GRUCell(4, 2, key=KEY), (np.ones((2, 3, 2)),)),
    "RNNCell": (nn.RNNCell(4, 2, key=KEY), ()),
    "RotaryEncoding": (nn.RotaryEncoding(4), (np.int64(2),)),
    "SinusoidalEncoding": (nn.SinusoidalEncoding(4), ()),
    "BatchNorm1d": (nn.BatchNorm1d(3), ()),
    "InstanceNorm1d": (nn.InstanceNorm1d(3), ()),
    "MultiheadAttention": (nn.MultiheadAttention(4, 2, key=KEY), (np.ones((5, 3, 4)), np.ones((5, 3, 4)))),
    "TransformerEncoderLayer": (nn.TransformerEncoderLayer(4, 2, 8, norm_first=True, key=KEY).valid(), ()),
    "TransformerDecoderLayer": (
        nn.TransformerDecoderLayer(4, 2, 8, norm_first=True, key=KEY).valid(),
        (np.ones((5, 3, 4)),),
    ),
    "Flatten": (nn.Flatten(), ()),
    "Unflatten": (nn.Unflatten(-1, (2, 2)), ()),
}


@pytest.mark.parametrize("case", TAKES_ARRAYS)
def test_layers_take_arrays(case):
    layer, states = TAKES_ARRAYS[case]
    as_tensors = fd.tree.map(lambda s: fd.tensor(s, dtype="float32") if isinstance(s, np.ndarray) else s, states)
    expected = fd.tree.leaves(layer(fd.tensor(SEQUENCE, dtype="float32"), *as_tensors))
    for x in (SEQUENCE, SEQUENCE.tolist()):
        for got, want in zip(fd.tree.leaves(layer(x, *states)), expected, strict=True):
            assert isinstance(got, fd.Tensor)
            np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-6, atol=1e-7)
    whole = fd.tree.leaves(layer((SEQUENCE * 10).astype("int32"), *states))
    assert all(isinstance(x, fd.Tensor) for x in whole)


class Pair(fd.Module):
    first: fd.Tensor
    second: int = 3


class ByHand(fd.Module):
    def __init__(self, width, *, key=None):
        self.width = width


@pytest.mark.parametrize(
    ("kind", "names"),
    [(nn.Linear, ["in_features", "out_features"]), (Pair, ["first", "second"]), (ByHand, ["width", "key"])],
)
def test_signature_of_a_module_class(kind, names):
    assert list(inspect.signature(kind).parameters)[: len(names)] == names


def test_warnings_point_at_the_users_line():
    device = fd.Device.cpu().autodiff()
    model = nn.Sequential(nn.Linear(2, 2, key=KEY, device=device), nn.Linear(2, 2, key=KEY, device=device))
    opt = fd.optim.sgd(0.1)
    grads = model[0](fd.ones((1, 2))).sum().backward()
    calls = {
        "step": lambda: opt.step(model, grads, opt.init(model)),
        "from_grads": lambda: fd.optim.GradientsParams.from_grads(grads, model),
        "to_device": lambda: model.to_device(fd.Device.numpy()),
    }
    for name, call in calls.items():
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            call()
        assert [w.filename for w in found] == [__file__], name


@pytest.mark.parametrize("module", [fd, fd.nn, fd.nn.functional, fd.numpy, fd.optim, fd.random, fd.special, fd.tree])
def test_listings_hold_what_is_for_users(module):
    names = [name for name in dir(module) if not name.startswith("_")]
    modules = {name for name in names if inspect.ismodule(getattr(module, name))}
    subpackages = {
        "functional",
        "init",
        "fft",
        "linalg",
        "nn",
        "numpy",
        "op",
        "ops",
        "optim",
        "quant",
        "random",
        "special",
    }
    assert modules <= subpackages | {"errors", "testing", "tree"}
    assert len(names) > 5
    assert not {"Any", "annotations", "bind", "missing_name", "operand", "operands", "ScaleByAdamState"} & set(names)


def test_every_public_op_has_an_example_that_runs():
    modules = [fd, fd.numpy, fd.numpy.linalg, fd.numpy.fft, fd.special, fd.nn.functional]
    public = [getattr(module, name) for module in modules for name in dir(module)]
    ops = {op.name: op for op in [*public, *TABLE.values()] if isinstance(op, Op)}
    assert [op.name for op in public if isinstance(op, Op) and op.example is None] == []
    for op in ops.values():
        if op.example is not None:
            assert op.__doc__ is not None
            test = doctest.DocTestParser().get_doctest(op.__doc__, {}, op.name, None, None)
            assert doctest.DocTestRunner(verbose=False).run(test) == (0, 2), op.name


@pytest.mark.parametrize("module", [fd.numpy.fft, fd.numpy.linalg, fd.nn.init, fd.quant, fd.testing])
def test_listings_of_small_modules_are_what_they_export(module):
    assert sorted(dir(module)) == sorted(module.__all__)


def test_listings_of_the_testers():
    assert dir(fd.testing) == ["check_grads", "check_op", "strategies"]
    assert dir(fd.testing.strategies) == ["arrays", "broadcastable_shapes", "dtypes", "shapes", "tensors"]


def test_star_import_takes_no_other_packages_name():
    space: dict[str, object] = {}
    exec("from functad import *", space)
    assert space["Tensor"] is fd.Tensor
    assert not {"numpy", "random", "operators", "hints"} & set(space)


def test_what_raises_is_not_listed():
    assert not {"data", "requires_grad"} & set(dir(fd.ones(1)))
    assert "reshape" in dir(fd.ones(1))


def test_texts_are_short():
    assert repr(fd.optim.adam(fd.optim.cosine_decay_schedule(1e-3, 10))) == "adam(cosine_decay_schedule)"
    model = nn.Linear(2, 2, key=KEY)
    structure = fd.tree.flatten({"model": model, "rest": [None, (1.0,)]})[1]
    text = "{'model': Linear[in_features=2, out_features=2, training](*, *), 'rest': [None, (*,)]}"
    assert fd.tree.shown(structure) == text
    nested = fd.tree.flatten(nn.Sequential(model, nn.ReLU()))[1]
    assert "CustomTreeNode" not in fd.tree.shown(nested)
    assert fd.tree.shown(nested).count("(*, *)") == 1


def test_devices_without_fusion_say_so():
    assert repr(fd.Device.cpu(fusion=False)) != repr(fd.Device.cpu(fusion=True))
    assert repr(fd.Device.numpy()) == "Device(numpy)"


def test_saved_module_without_like(tmp_path):
    path = tmp_path / "run.safetensors"
    model = nn.Linear(2, 2, key=KEY)
    fd.save({"model": model}, path)
    saved = fd.load(path)["model"]
    assert len(repr(saved)) < 200
    for misuse in (lambda: saved(fd.ones((1, 2))), lambda: saved.layers, lambda: fd.load_into({"model": model}, path)):
        with pytest.raises(fd.FunctadError, match="like="):
            misuse()
    assert isinstance(fd.load(path, like={"model": model})["model"], nn.Linear)


class Remembers:
    """What it computes it keeps, which a compiled function cannot."""

    last = None

    def step(self, x):
        self.last = x * 2 if self.last is None else x * 2 + self.last
        return self.last


def leaked():
    step = fd.jit(Remembers().step)
    return step(fd.ones(2)), step(fd.ones(3))


COMPILED = {
    "reshape": (lambda: fd.jit(lambda x, n: x.reshape(n, -1))(fd.ones(4), 2), "static_argnums"),
    "zeros": (lambda: fd.jit(lambda n: fd.zeros(n))(2), "static_argnums"),  # noqa: PLW0108
    "zeros of two": (lambda: fd.jit(lambda n: fd.zeros((n, 2)))(2), "static_argnums"),
    "sum": (lambda: fd.jit(lambda x, n: x.sum(n))(fd.ones(4), 0), "static_argnums"),
    "topk": (lambda: fd.jit(lambda x, k: x.topk(k))(fd.ones(4), 2), "static_argnums"),
    "slice": (lambda: fd.jit(lambda x, n: x[:n])(fd.ones(4), 2), "static_argnums"),
    "length": (lambda: fd.jit(lambda n: fd.scan(lambda c, _: (c, c), 0.0, None, length=n))(2), "static_argnums"),
    "dropout": (
        lambda: fd.jit(lambda x, p: fd.nn.functional.dropout(x, p, key=KEY))(fd.ones(4), 0.5),
        "static_argnums",
    ),
    "jnp in jit": (lambda: fd.jit(jnp.sin)(fd.ones(2)), "fd.from_jax"),
    "jax.nn in jit": (lambda: fd.jit(jax.nn.relu)(fd.ones(2)), "fd.from_jax"),
    "jnp in scan": (lambda: fd.scan(lambda c, x: (c, jnp.sin(x)), 0.0, fd.ones(2)), "fd.from_jax"),
    "jnp in vmap": (lambda: fd.vmap(jnp.sin)(fd.ones(2)), "fd.from_jax"),
    "attention": (
        lambda: fd.jit(lambda x: nn.MultiheadAttention(4, 2, dropout=0.5, key=KEY).train()(x, x, x)[0])(
            fd.ones((5, 2, 4))
        ),
        "dropout_key=",
    ),
    "attribute": (
        leaked,
        r"test_first_use.py:\d+: a tensor, which mul made at .*test_first_use.py:\d+, leaked out of jit\(step\)",
    ),
    "transpose": (lambda: fd.ones((2, 3, 4)).transpose(0, 1), r"x.swapaxes\(0, 1\)"),
    "transpose of one": (lambda: fd.ones((2, 3)).transpose(1), "x.mT"),
}


@pytest.mark.parametrize(("call", "text"), COMPILED.values(), ids=COMPILED)
def test_what_to_write_instead_is_said(call, text):
    with pytest.raises(fd.FunctadError, match=text):
        call()
