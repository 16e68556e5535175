"""Layers: values and gradients against torch's (recorded figures), training and validation, keys, caches, adapters."""

from __future__ import annotations

import importlib.util
import json

import jax
import layer_cases
import numpy as np
import pytest
from layer_cases import CASES, FIGURES, figures, flat, inputs_of, wave, weight_of

import functad as fd
from functad import nn
from functad.errors import ArgumentError, ArgumentTypeError, ConcreteValueError, ShapeError

RECORDED = json.loads(FIGURES.read_text())
HOST = fd.Device.numpy()


def with_waves(model):
    return model.replace(
        {name: fd.tensor(weight_of(name, p.shape), "float64", p.device) for name, p in model.named_parameters()}
    )


def layer_of(case, device=HOST):
    layer, args, kwargs, _ = CASES[case]
    kind = getattr(nn, layer)
    try:
        model = kind(*args, **kwargs, dtype="float64", device=device)
    except TypeError:  # one without parameters
        model = kind(*args, **kwargs)
    return with_waves(model) if model.parameters() else model


def own_figures(case, device=HOST):
    model = layer_of(case, device)
    xs = [fd.tensor(x, str(x.dtype), device) for x in inputs_of(case)]
    floats = [i for i, x in enumerate(xs) if x.dtype == "float64"]

    def loss(model, *xs):
        outs = flat(model(*xs))
        return sum((y * fd.tensor(wave(y.shape, 3), "float64", device)).sum() for y in outs), outs

    where = tuple(i + 1 for i in floats)
    if model.parameters():
        (_, outs), (of_model, *of_xs) = fd.value_and_grad(loss, (0, *where), has_aux=True)(model, *xs)
        grads = {name: g.numpy() for name, g in of_model.named_parameters()}
    else:
        (_, outs), of_xs = fd.value_and_grad(loss, where, has_aux=True)(model, *xs)
        grads = {}
    grads |= {f"~{i}": g.numpy() for i, g in zip(floats, of_xs, strict=True)}
    return figures([y.numpy() for y in outs], grads)


@pytest.mark.parametrize("case", CASES)
def test_equals_torch(case):
    np.testing.assert_allclose(own_figures(case), RECORDED[case], rtol=1e-9, atol=1e-9)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the figures need torch to be made anew")
@pytest.mark.parametrize("case", CASES)
def test_figures_are_torch_s(case):
    np.testing.assert_allclose(layer_cases._torch_figures(case), RECORDED[case], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("case", ["conv2d", "lstm"])
def test_both_devices_agree(case):
    with fd.enable_x64():
        np.testing.assert_allclose(own_figures(case, fd.Device.cpu()), RECORDED[case], rtol=1e-9, atol=1e-9)


# --- training and validation


def test_running_statistics_move_as_torch_moves_them():
    x = wave((6, 4, 3), 1)
    model = nn.BatchNorm1d(4, dtype="float64", device=HOST)
    for scale in (1.0, 2.0):
        _, model = model.call_and_update(fd.tensor(x * scale, "float64", HOST))
    mean, var = x.mean((0, 2)), x.var((0, 2), ddof=1)
    np.testing.assert_allclose(model.running_mean.numpy(), 0.9 * 0.1 * mean + 0.1 * 2 * mean, rtol=1e-12)
    np.testing.assert_allclose(model.running_var.numpy(), 0.81 + 0.09 * var + 0.1 * 4 * var, rtol=1e-12)
    assert model.num_batches_tracked.item() == 2
    by_running = model.valid()(fd.tensor(x, "float64", HOST)).numpy()
    at = (slice(None), None)
    expected = (x - model.running_mean.numpy()[at]) / np.sqrt(model.running_var.numpy()[at] + 1e-5)
    np.testing.assert_allclose(by_running, expected, rtol=1e-9)


def test_a_cumulative_average_is_the_mean_of_all_batches():
    model = nn.BatchNorm1d(2, momentum=None, device=HOST)
    batches = [wave((5, 2), i) for i in range(3)]
    for x in batches:
        _, model = model.call_and_update(fd.tensor(x, device=HOST))
    np.testing.assert_allclose(model.running_mean.numpy(), np.mean([x.mean(0) for x in batches], 0), atol=1e-6)


def test_statistics_are_no_parameters_and_move_under_grad_and_jit():
    model = nn.Sequential(
        nn.Linear(3, 4, key=fd.random.key(0)), nn.BatchNorm1d(4), nn.Linear(4, 1, key=fd.random.key(1))
    )
    assert [name for name, _ in model.named_parameters()] == [
        "layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias", "layers.2.weight", "layers.2.bias",
    ]  # fmt: skip

    @fd.jit
    def step(model, x):
        def loss(model):
            y, model = model.call_and_update(x)
            return (y**2).mean(), model

        return fd.value_and_grad(loss, has_aux=True)(model)

    (_, after), grads = step(model, fd.tensor(wave((5, 3), 1)))
    assert after[1].num_batches_tracked.item() == 1
    assert abs(after[1].running_mean.numpy()).max() > 0
    assert grads[0].weight.shape == (4, 3)


def test_dropout_in_training_only_and_by_key():
    drop = nn.Dropout(0.5)
    key = fd.random.key(3)
    assert (drop(fd.ones(50), key=key) == drop(fd.ones(50), key=key)).all()
    assert drop.valid()(fd.ones(3)).tolist() == [1, 1, 1]
    fd.seed(7)
    first = drop(fd.ones(50)).tolist()
    fd.seed(7)
    assert drop(fd.ones(50)).tolist() == first
    with pytest.raises(ConcreteValueError, match="key"):
        fd.jit(drop)(fd.ones(3))


def test_sequential_shares_a_key_among_its_layers():
    model = nn.Sequential(nn.Dropout(0.5), nn.ReLU(), nn.Sequential(nn.Dropout(0.5)))
    key = fd.random.key(0)
    once = fd.jit(lambda x: model(x, key=key))(fd.ones(1000))
    assert set(once.tolist()) == {0.0, 4.0}
    assert 150 < (once == 4.0).sum().item() < 350


# --- containers


def test_sequential_is_indexed_sliced_and_named():
    model = nn.Sequential({"up": nn.Linear(2, 4, key=fd.random.key(0)), "act": nn.ReLU()})
    assert model["up"] is model.up is model[0]
    assert [type(layer).__name__ for layer in model] == ["Linear", "ReLU"]
    assert len(model[:1]) == 1 and model[:1]["up"] is model[0]
    short = nn.Sequential(nn.ReLU(), nn.Tanh(), nn.ReLU())[:2]
    assert len(short) == 2  # once a Sequential in a Sequential
    assert isinstance(short[1], nn.Tanh)
    assert nn.Sequential()(fd.tensor(1.0)).item() == 1.0


def test_sequential_refuses_what_is_no_layer():
    with pytest.raises(ArgumentTypeError, match=r"ReLU\(...\)"):
        nn.Sequential(nn.ReLU)
    with pytest.raises(ArgumentTypeError, match=r"\*layers"):
        nn.Sequential([nn.ReLU()])


# --- what is refused


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), ArgumentError, "groups=2"),
        (lambda: nn.Conv2d(3, 4, (3, 3, 3)), ArgumentError, "2 ints"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="mirror"), ArgumentError, "mirror"),
        (lambda: nn.MultiheadAttention(7, 2), ArgumentError, "embed_dim=7"),
        (lambda: nn.GroupNorm(2, 5), ShapeError, "num_channels=5"),
        (lambda: nn.Embedding(3, 2, padding_idx=3), ArgumentError, "padding_idx=3"),
        (lambda: nn.Dropout(1.5), ArgumentError, "1.5"),
        (lambda: nn.LSTM(2, 0), ArgumentError, "hidden_size"),
        (lambda: nn.LSTM(2, 3)(fd.ones((4, 5, 3))), ShapeError, "input_size=2"),
        (lambda: nn.LSTM(2, 3)(fd.ones((4, 5, 2)), (fd.ones((2, 5, 3)),) * 2), ShapeError, r"\(1, 5, 3\)"),
        (lambda: nn.BatchNorm2d(3)(fd.ones((2, 3))), ShapeError, "4 axes"),
        (lambda: nn.BatchNorm2d(3)(fd.ones((2, 4, 5, 5))), ShapeError, "4 channels"),
        (lambda: nn.TransformerEncoder([]), ArgumentError, "list of layers"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation="swish"), ArgumentError, "swish"),
        (lambda: nn.RNN(2, 3, nonlinearity="gelu"), ArgumentError, "gelu"),
        (lambda: nn.Conv1d(2, 2, -1), ArgumentError, r"kernel_size\[0\] must be at least 1, got -1"),
        (lambda: nn.Dropout("a"), ArgumentError, "probability in .*, got 'a'"),
        (lambda: nn.MultiheadAttention(4, 2, kdim=0), ArgumentError, "kdim must be at least 1"),
        (lambda: nn.TransformerEncoderLayer(4, 2)(fd.ones((2, 3, 5, 4))), ShapeError, r"3 axes each .* \(2, 3, 5, 4\)"),
        (lambda: nn.TransformerEncoderLayer(4, 2, activation=3), ArgumentError, "activation must be a function"),
        (lambda: nn.RotaryEncoding(4, base=-1.0), ArgumentError, "base must be a positive number"),
        (lambda: nn.Flatten(5)(fd.ones((2, 3, 4))), ShapeError, "Flatten: axis 5 is out of range"),  # was taken as 2
        (lambda: nn.Unflatten(5, (3, 2))(fd.ones((2, 6))), ShapeError, "Unflatten: axis 5 is out of range"),
        (lambda: nn.Unflatten(1, 3), ArgumentTypeError, "several lengths"),
        (
            lambda: nn.ConvTranspose1d(2, 2, 3, stride=2)(fd.ones((1, 2, 5)), output_size=(20,)),
            ArgumentError,
            "11 to 12",
        ),
    ],
)
def test_refusals(make, error, words):
    with pytest.raises(error, match=words):
        make()


# --- attention, decoding


def test_decoding_with_a_cache_equals_the_whole_pass():
    keys = fd.random.split(fd.random.key(0, HOST), 2)
    model = nn.TransformerEncoder(
        [nn.TransformerEncoderLayer(8, 2, 16, norm_first=True, batch_first=True, key=k) for k in keys],
        nn.LayerNorm(8, device=HOST),
    ).valid()
    x = fd.tensor(wave((2, 5, 8), 1), device=HOST)
    whole = model(x, is_causal=True)
    step = fd.jit(model.step)
    cache, outs = model.init_cache(2, 7), []
    for i in range(5):
        y, cache = step(x[:, i : i + 1], cache)
        outs.append(y.numpy())
    np.testing.assert_allclose(np.concatenate(outs, 1), whole.numpy(), atol=2e-6)
    assert cache[0].length.item() == 5


def test_a_decoder_steps_as_it_runs():
    decoder = nn.TransformerDecoder([nn.TransformerDecoderLayer(8, 2, 16, key=fd.random.key(0), device=HOST)]).valid()
    x, memory = fd.tensor(wave((4, 2, 8), 1), device=HOST), fd.tensor(wave((3, 2, 8), 2), device=HOST)
    whole = decoder(x, memory, tgt_is_causal=True)
    y, _ = decoder.step(x.swapaxes(0, 1), memory.swapaxes(0, 1), decoder.init_cache(2, 4))
    np.testing.assert_allclose(y.swapaxes(0, 1).numpy(), whole.numpy(), atol=2e-6)


def test_a_query_that_may_see_nothing_gives_zeros_and_no_nan():
    attend = nn.MultiheadAttention(4, 2, batch_first=True, bias=False, key=fd.random.key(0), device=HOST)
    x = fd.tensor(wave((1, 3, 4), 1), device=HOST)
    mask = fd.tensor(np.array([[True, False, False], [False] * 3, [True] * 3]), device=HOST)
    for need in (True, False):
        value, g = fd.value_and_grad(
            lambda x, need=need: attend(x, x, x, attn_mask=mask, need_weights=need)[0][0, 1].sum()
        )(x)
        assert value.item() == 0
        assert np.isfinite(g.numpy()).all()


# --- adapters


def test_an_adapter_changes_nothing_at_first_and_only_its_factors_train():
    net = nn.Sequential(
        nn.Linear(4, 6, key=fd.random.key(0), device=HOST),
        nn.Tanh(),
        nn.Linear(6, 2, key=fd.random.key(1), device=HOST),
    )
    tuned = nn.lora(net, rank=2, key=fd.random.key(2, HOST))
    x = fd.tensor(wave((3, 4), 1), device=HOST)
    np.testing.assert_array_equal(tuned(x).numpy(), net(x).numpy())
    trained = [name for name, p in tuned.named_parameters() if not p.is_frozen]
    assert trained == ["layers.0.lora_a", "layers.0.lora_b", "layers.2.lora_a", "layers.2.lora_b"]
    grads = fd.grad(lambda m: (m(x) ** 2).sum())(tuned)
    assert abs(grads[0].base.weight.numpy()).max() == 0
    assert abs(grads[0].lora_b.numpy()).max() > 0

    moved = tuned.replace({"layers.0.lora_b": fd.tensor(wave((6, 2), 2), device=HOST)})
    merged = nn.merge_lora(moved)
    np.testing.assert_allclose(merged(x).numpy(), moved(x).numpy(), atol=1e-5)
    assert [type(layer).__name__ for layer in merged] == ["Linear", "Tanh", "Linear"]
    assert not any(p.is_frozen for p in merged.parameters())
    with pytest.raises(ArgumentError, match="Linear"):
        nn.lora(nn.Sequential(nn.PReLU()), 1)


# --- positions, first values


def test_a_rotation_sees_only_distances():
    turn = nn.RotaryEncoding(8)
    q, k = fd.tensor(wave((8,), 1)), fd.tensor(wave((8,), 2))
    tiled = lambda v: turn(fd.numpy.tile(v, (6, 1)))
    products = (tiled(q) @ tiled(k).T).numpy()
    np.testing.assert_allclose(np.diag(products, 2), products[0, 2], rtol=1e-4)
    np.testing.assert_allclose(turn(fd.ones((3, 8)), offset=2)[0].numpy(), turn(fd.ones((5, 8)))[2].numpy(), rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "std"),
    [
        (nn.init.xavier_normal, np.sqrt(2 / 500)),
        (nn.init.xavier_uniform, np.sqrt(2 / 500)),
        (nn.init.kaiming_normal, np.sqrt(2 / 300)),
        (nn.init.kaiming_uniform, np.sqrt(2 / 300)),
        (nn.init.lecun_normal, np.sqrt(1 / 300)),
        (nn.init.variance_scaling, np.sqrt(1 / 300)),
        (
            lambda key, shape, device: nn.init.variance_scaling(key, shape, 2.0, "fan_avg", "uniform", device=device),
            np.sqrt(2 / 250),
        ),
    ],
)
def test_first_values_have_the_published_spread(make, std):
    w = make(fd.random.key(0), (200, 300), device=HOST).numpy()
    assert abs(w.std() / std - 1) < 0.02
    assert abs(w.mean()) < 4 * std / np.sqrt(w.size)


def test_what_a_convolution_of_dirac_passes_on():
    x = fd.tensor(wave((2, 4, 5), 1), device=HOST)
    weight = nn.init.dirac((4, 2, 3), groups=2, device=HOST)
    assert (nn.functional.conv1d(x, weight, padding=1, groups=2) == x).all()
    thin = nn.init.sparse(fd.random.key(0, HOST), (10, 3), 0.35, device=HOST)
    assert (thin == 0).sum(0).tolist() == [4, 4, 4]


def test_orthogonal_rows():
    w = nn.init.orthogonal(fd.random.key(0, HOST), (3, 5), gain=2.0).numpy()
    np.testing.assert_allclose(w @ w.T, 4 * np.eye(3), atol=1e-5)


# --- modules under every transform


def test_an_ensemble_by_vmap():
    keys = fd.random.split(fd.random.key(0), 3)
    models = fd.vmap(lambda k: nn.Linear(2, 1, key=k))(keys)
    assert models.weight.shape == (3, 1, 2)
    x = fd.tensor(wave((5, 2), 1))
    out = fd.vmap(lambda m: m(x))(models)
    one = nn.Linear(2, 1, key=keys[1])
    np.testing.assert_allclose(out[1].numpy(), one(x).numpy(), rtol=1e-6)


def test_jax_sees_a_model_as_a_pytree():
    model = nn.LSTM(2, 3, key=fd.random.key(0))
    doubled = jax.tree.map(lambda leaf: leaf * 2, model)
    np.testing.assert_allclose(doubled.weight_ih_l0.numpy(), 2 * model.weight_ih_l0.numpy())


def test_torch_names_the_layers_of_a_sequential_as_its_own():
    def net(seed):
        keys = fd.random.split(fd.random.key(seed), 3)
        a, b, c = [nn.Linear(2, 2, key=k) for k in keys]
        return nn.Sequential(a, nn.ReLU(), nn.Sequential(b), nn.Sequential({"up": c}))

    model, other = net(0), net(1)
    paths = {"0": "0", "2.0": "2.layers.0", "3.up": "3.layers.0"}
    weights = {
        f"{name}.{part}": dict(other.named_parameters())[f"layers.{path}.{part}"].numpy()
        for name, path in paths.items()
        for part in ("weight", "bias")
    }
    loaded = model.load(weights)
    for (_, new), (_, old) in zip(loaded.named_parameters(), other.named_parameters(), strict=True):
        assert new.tolist() == old.tolist()
    with pytest.raises(fd.errors.RecordError, match=r"missing in the file: layers\.0\.weight"):
        model.load({k: v for k, v in weights.items() if k != "0.weight"})


# --- running statistics that were never learned


@pytest.mark.parametrize("style", ["object", "functional"])
@pytest.mark.parametrize(
    "kind",
    [nn.BatchNorm1d, lambda n, device: nn.InstanceNorm1d(n, affine=True, track_running_stats=True, device=device)],
)
def test_a_norm_that_was_trained_without_its_statistics_says_so(device, style, kind):
    """After training by model(x) alone, valid() normalized by zeros and ones."""
    norm = kind(2, device=device.autodiff() if style == "object" else device)
    x = fd.tensor(np.arange(12.0).reshape(2, 2, 3), device=device)
    norm.valid()(x)  # a new one is what it is
    opt = fd.optim.sgd(0.1)

    def loss(m):
        y, m = m.call_and_update(x)
        return (y * x).sum(), m

    def trained(update):
        if style == "object":
            value, moved = loss(norm)
            grads = value.backward()
        else:
            (_, moved), grads = fd.value_and_grad(loss, has_aux=True)(norm)
        return opt.step(moved if update else norm, grads, opt.init(norm))[0]

    model = trained(False).valid()
    with pytest.warns(fd.errors.UnlearnedStatisticsWarning, match=r"model = model\.call_and_update\(x\)"):
        model(x)
    model(x)  # once
    fd.jit(lambda m, x: m(x))(trained(False).valid(), x)
    trained(True).valid()(x)
