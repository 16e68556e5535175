"""Layers at several places: one set of buffers, whatever happened to the model in between."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import functad as fd
from functad import nn


class Count(fd.Module):
    """Adds one to its count at each use."""

    scale: fd.Param
    count: fd.Tensor

    def forward(self, x):
        if self.training:
            self.update(count=self.latest("count") + 1)
        return x * self.scale


class Block(fd.Module):
    linear: nn.Linear
    count: Count

    def forward(self, x):
        return self.count(self.linear(x))


def shared(device=None):
    count = Count(fd.Param(1.0, device=device), fd.tensor(0.0, device=device))
    first, second = (Block(nn.Linear(2, 2, key=key, device=device), count) for key in fd.random.split(fd.random.key(0)))
    return nn.Sequential(first, count, second)


def counts(model):
    return [x.item() for path, x in model.named_buffers() if path.endswith("count")]


X = np.ones((3, 2), np.float32)


def plain(model):
    return model.call_and_update(X)[1]


def compiled(model):
    return fd.jit(lambda m: m.call_and_update(X))(model)[1]


def under_grad(model):
    def loss(m):
        y, m = m.call_and_update(X)
        return y.sum(), m

    return fd.grad(loss, has_aux=True)(model)[1]


def after_a_step(model):
    opt = fd.optim.sgd(0.1)
    model, _ = opt.step(plain(model), fd.grad(lambda m: m(X).sum())(model), opt.init(model))
    return model


MOVES = {
    "nothing": lambda m: m,
    "valid and train": lambda m: m.valid().train().valid().train(),
    "freeze": lambda m: m.freeze("layers.0.*").unfreeze("layers.0.*"),
    "deepcopy": copy.deepcopy,
    "pickle": lambda m: pickle.loads(pickle.dumps(m)),
    "astype": lambda m: m.astype("float16").astype("float32"),
    "map": lambda m: m.map(lambda p: p * 1),
    "tree.map": lambda m: fd.tree.map(lambda x: x * 1, m),
    "replace": lambda m: m.replace({"layers.0.linear.bias": fd.zeros(2)}),
}


@pytest.mark.parametrize("call", [plain, compiled, under_grad, after_a_step])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_a_layer_at_three_places_counts_as_one(call, move):
    model = shared()
    for n in (3.0, 6.0):
        model = call(move(model))
        assert counts(model) == [n] * 3
        assert model.layers[0].count is model.layers[1] is model.layers[2].count


def test_layers_that_are_two_stay_two():
    model = shared()
    other = model.replace({"layers.1": Count(fd.Param(1.0), fd.tensor(0.0))})
    step = fd.jit(lambda m: m.call_and_update(X)[1])
    assert counts(step(other)) == [2.0, 1.0, 2.0]
    assert counts(step(model)) == [3.0] * 3
    assert step.compilations == 2
    with pytest.raises(ValueError, match="that are shared"):
        fd.tree.map(lambda x, y: x + y, model, other)


def test_a_shared_batch_norm_after_files_and_in_ensembles(tmp_path):
    model = compiled(shared())
    model.save(tmp_path / "m")
    assert counts(plain(shared().load(tmp_path / "m"))) == [6.0] * 3
    stacked = fd.tree.map(lambda x: fd.stack([x, x + 1]), model)
    _, stacked = fd.vmap(lambda m: m.call_and_update(X))(stacked)
    assert stacked.layers[1].count.tolist() == [6.0, 7.0]
    assert stacked.layers[2].count.count.tolist() == [6.0, 7.0]


def test_running_means_of_a_shared_batch_norm():
    norm = nn.BatchNorm1d(2, affine=False)
    model = nn.Sequential(norm, nn.Lambda(lambda x: x + 1), norm)
    x = fd.tensor([[0.0, 2.0], [4.0, 10.0]])
    for _ in range(2):
        model = compiled_with(model, x)
    # means 2, 6 of what comes in, then 1 of what was standardized and shifted, each with weight 0.1, twice
    mean = np.zeros(2)
    for _ in range(2):
        for now in ([2.0, 6.0], [1.0, 1.0]):
            mean = 0.9 * mean + 0.1 * np.array(now)
    np.testing.assert_allclose(model.layers[0].running_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(model.layers[2].running_mean.numpy(), mean, rtol=1e-5)
    assert model.layers[0] is model.layers[2]


def compiled_with(model, x):
    return fd.jit(lambda m: m.call_and_update(x))(model)[1]
