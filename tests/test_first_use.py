"""What someone new meets first: NumPy arrays in every layer, help, warnings, listings, short messages."""

from __future__ import annotations

import inspect
import warnings

import numpy as np
import pytest

import functad as fd
from functad import nn

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
            np.testing.assert_array_equal(got.numpy(), want.numpy())
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
