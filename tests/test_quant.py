"""Quantized tensors: values, what matmul does with them, that nothing tracks them."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytest

import functad as fd
import functad.nn.functional as F
from functad import nn
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    NotDifferentiableError,
    RecordError,
    ShapeError,
    UnknownAttributeError,
)

PER_TENSOR, BLOCKS = fd.QuantScheme(), fd.QuantScheme(block=4)
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(6, 8)).astype(np.float32)
X = RNG.normal(size=(3, 6)).astype(np.float32)


def quantized(scheme, device=None, dtype=None):
    return fd.tensor(WEIGHT, dtype=dtype, device=device).quantize_dynamic(scheme)


@pytest.mark.parametrize("scheme", [PER_TENSOR, BLOCKS])
def test_values_and_scales(scheme, device):
    q = quantized(scheme, device)
    blocks = WEIGHT.reshape(6, 2, 4) if scheme.block else WEIGHT
    scale = np.abs(blocks).max(-1 if scheme.block else None) * np.float32(1 / 127)
    wide = scale[..., None] if scheme.block else scale
    assert np.array_equal(q.scale.numpy(), scale)
    assert np.array_equal(q.values.numpy(), np.rint(blocks / wide).reshape(6, 8))
    back = q.dequantize()
    assert back.dtype == fd.float32 and back.device == device
    assert np.all(np.abs(back.numpy() - WEIGHT).reshape(blocks.shape) <= wide / 2 * 1.0001)
    assert (q.shape, q.ndim, q.size, q.dtype, len(q)) == ((6, 8), 2, 48, fd.int8, 6)
    assert q.nbytes == 48 + 4 * scale.size


def test_given_scales_clip(device):
    x = fd.tensor([-100.0, -0.25, 0.0, 0.375, 0.126, 9.0, 1.0, 2.0], device=device)
    assert x.quantize(PER_TENSOR, 0.25).values.tolist() == [-127, -1, 0, 2, 1, 36, 4, 8]
    assert x.quantize(BLOCKS, fd.tensor([1.0, 2.0], device=device)).values.tolist() == [-100, 0, 0, 0, 0, 4, 0, 1]
    assert fd.zeros(4, device=device).quantize_dynamic(BLOCKS).dequantize().tolist() == [0.0] * 4


@pytest.mark.parametrize("scheme", [PER_TENSOR, BLOCKS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_are_those_with_the_floats(scheme, dtype, device):
    q = quantized(scheme, device)
    floats = q.dequantize(dtype)
    x = fd.tensor(X, dtype=dtype, device=device)
    y = fd.tensor(WEIGHT.T, dtype=dtype, device=device)
    for got, want in (
        (x @ q, x @ floats),
        (fd.ops.matmul(x, q), x @ floats),
        (x[0] @ q, x[0] @ floats),
        (x.reshape(1, 3, 6) @ q, x.reshape(1, 3, 6) @ floats),
        (y.T @ q.T, y.T @ floats.T),
        (q @ y, floats @ y),
        (q @ y[:, 0], floats @ y[:, 0]),
        (X @ q, fd.tensor(X, device=device) @ q.dequantize()),
    ):
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        assert np.allclose(
            got.numpy().astype(float), want.numpy().astype(float), rtol=1e-2 if dtype != "float32" else 1e-5
        )


@pytest.mark.parametrize("scheme", [PER_TENSOR, BLOCKS])
def test_gradients_are_those_with_the_floats(scheme, device):
    q = quantized(scheme, device)
    x = fd.tensor(X, device=device)
    for ours, plain in (
        (lambda x: x @ q, lambda x: x @ q.dequantize()),
        (lambda x: q.T @ x.T, lambda x: q.dequantize().T @ x.T),
    ):
        got, want = (fd.grad(lambda x, f=f: fd.ops.sin(f(x)).sum())(x).numpy() for f in (ours, plain))
        assert np.allclose(got, want, rtol=1e-5, atol=1e-6)
        got, want = (fd.jvp(f, (x,), (x,))[1].numpy() for f in (ours, plain))
        assert np.allclose(got, want, rtol=1e-5, atol=1e-6)
    rows = fd.vmap(fd.grad(lambda row: (row @ q).sum()))(x)
    assert np.allclose(rows.numpy(), fd.grad(lambda x: (x @ q).sum())(x).numpy(), rtol=1e-5)


def test_backward_keeps_integers():
    q = quantized(PER_TENSOR)
    x = fd.tensor(X, device=fd.Device.cpu(fusion=False).autodiff()).require_grad()
    node = (x @ q)._context
    assert sorted(str(kept.dtype) for kept in node.inputs if isinstance(kept, fd.Tensor)) == ["int32", "int8"]


def test_low_rank_updates_of_a_frozen_base(device):
    """QLoRA: the base has no gradient, what is added to it has the exact one."""
    dev = device.autodiff()
    q = quantized(BLOCKS, dev)
    down, up = (fd.tensor(RNG.normal(size=s), device=dev).astype("float32") for s in ((6, 2), (2, 8)))
    down, up = down.detach().require_grad(), up.detach().require_grad()
    x = fd.tensor(X, device=dev)
    loss = ((x @ q + x @ down @ up) ** 2).sum()
    grads = loss.backward()
    out = X @ q.dequantize().numpy() + X @ down.numpy() @ up.numpy()
    assert np.allclose(up.grad(grads).numpy(), (X @ down.numpy()).T @ (2 * out), rtol=1e-4)
    assert np.allclose(down.grad(grads).numpy(), X.T @ (2 * out) @ up.numpy().T, rtol=1e-4)
    assert not q.is_tracked and not q.is_require_grad and not q.dequantize().is_tracked
    assert len(grads) == 2


def test_it_is_a_pytree_without_float_leaves(device):
    q = quantized(BLOCKS, device)
    leaves, structure = fd.tree.flatten({"base": q})
    assert [str(x.dtype) for x in leaves] == ["int8", "int32"]
    again = fd.tree.unflatten(structure, leaves)["base"]
    assert again.scheme == BLOCKS and again.dequantize().tolist() == q.dequantize().tolist()
    assert len(jax.tree.leaves(q)) == 2
    params = {"base": q, "bias": fd.zeros(8, device=device)}
    x = fd.tensor(X, device=device)
    grads = fd.grad(lambda p: (x @ p["base"] + p["bias"]).sum())(params)
    assert grads["bias"].tolist() == [3.0] * 8
    assert jax.tree.leaves(grads["base"]) == []
    assert "None" in repr(grads["base"])
    step = fd.jit(lambda p, x: x @ p["base"] + p["bias"])
    assert np.allclose(step(params, x).numpy(), (x @ q).numpy(), rtol=1e-5, atol=1e-6)
    assert np.allclose(fd.jit(lambda x: x @ q)(x).numpy(), (x @ q).numpy(), rtol=1e-5, atol=1e-6)


def test_a_module_holds_it():
    class Adapted(fd.Module):
        def __init__(self, base):
            self.base = base
            self.low = fd.Param(fd.zeros((6, 8)))

        def forward(self, x):
            return x @ self.base + x @ self.low

    model = Adapted(quantized(BLOCKS))
    assert model(fd.tensor(X)).shape == (3, 8)
    assert model.num_params == 48
    grads = fd.grad(lambda m, x: m(x).sum())(model, fd.tensor(X))
    assert np.allclose(grads.low.numpy(), X.sum(0)[:, None] + np.zeros((6, 8)), rtol=1e-5)
    trained = model.to_device(fd.Device.cpu().autodiff()).train()
    assert len(trained(fd.tensor(X)).sum().backward()) == 1
    assert trained.base.dequantize().tolist() == model.base.dequantize().tolist()


def test_moves_copies_and_shows():
    q = quantized(BLOCKS, dtype="bfloat16")
    moved = q.to_device(fd.Device.numpy())
    assert moved.device == fd.Device.numpy() and moved.dequantize().dtype == fd.bfloat16
    assert moved.dequantize("float32").tolist() == q.dequantize("float32").tolist()
    assert repr(q) == "QuantTensor(int8[6, 8], scale per block of 4, of bfloat16)"
    assert repr(quantized(PER_TENSOR).T) == "QuantTensor(int8[8, 6], scale per tensor, of float32)"
    for twin in (pickle.loads(pickle.dumps(q)), copy.deepcopy(q), copy.copy(q)):
        assert twin.dequantize().tolist() == q.dequantize().tolist()
    assert q.T.T.shape == q.shape and q.T.values.shape == (8, 6)


ADVICE = "q.dequantize()"


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda q: q + 1.0, ArgumentTypeError, ADVICE),
        (lambda q: fd.ones((6, 8)) + q, ArgumentTypeError, ADVICE),
        (lambda q: 2.0 * q, ArgumentTypeError, ADVICE),
        (lambda q: q + q, ArgumentTypeError, ADVICE),
        (fd.ops.exp, ArgumentTypeError, ADVICE),
        (np.asarray, ArgumentTypeError, ADVICE),
        (lambda q: q[0], ArgumentTypeError, ADVICE),
        (lambda q: q @ q, ArgumentTypeError, "both are quantized"),
        (fd.Param, ArgumentTypeError, "nn.quantize(model)"),
        (lambda q: F.linear(fd.ones((3, 6)), q), ShapeError, "(3, 6)"),
        (lambda q: F.linear(fd.ones((3, 8)), q, fd.ones(8)), ShapeError, "(6,)"),
        (lambda q: nn.Linear(6, 8).replace(weight=q), ShapeError, "(8, 6)"),
        (lambda q: nn.LoraLinear(q, 2), ArgumentTypeError, "must be a Linear"),
        (lambda q: q.sum(), UnknownAttributeError, "q.dequantize().sum"),
        (lambda q: q.require_grad(), DTypeError, "no gradient"),
        (lambda q: fd.ones((3, 5)) @ q, ShapeError, "5 columns meet 6 rows"),
        (lambda q: fd.ones((3, 8)) @ q, ShapeError, "x @ q.T"),
        (lambda q: fd.ones((2, 6)).quantize_dynamic(BLOCKS), ShapeError, "do not divide"),
        (lambda q: fd.ones((2, 6)).quantize(PER_TENSOR, fd.ones(2)), ShapeError, "takes ()"),
        (lambda q: fd.ones(4).astype(int).quantize_dynamic(PER_TENSOR), DTypeError, "takes floats"),
        (lambda q: fd.ones(4).quantize_dynamic("int8"), ArgumentTypeError, "fd.QuantScheme"),
        (lambda q: fd.QuantScheme("int4"), ArgumentError, "'int8'"),
        (lambda q: fd.QuantScheme(block=0), ArgumentError, "at least 1"),
        (lambda q: fd.QuantScheme(bits=3), ArgumentTypeError, 'dtype="int8"'),
        (lambda q: fd.QuantScheme(axis=0), ArgumentTypeError, "block=x.shape[-1]"),
        (lambda q: fd.QuantScheme(group_size=32), ArgumentTypeError, "write block="),
        (lambda q: fd.QuantScheme(wide=1), ArgumentTypeError, "the arguments are dtype, block"),
        (lambda q: fd.QuantScheme(block=True), ArgumentError, "got True"),
        (lambda q: fd.ones(4).quantize(PER_TENSOR, 0.0), ArgumentError, "quantize_dynamic"),
        (lambda q: fd.ones(4).quantize(PER_TENSOR, -1.0), ArgumentError, "got -1.0"),
        (lambda q: fd.ones(4).quantize(PER_TENSOR, float("nan")), ArgumentError, "got nan"),
        (lambda q: fd.ones(4).quantize(PER_TENSOR, float("inf")), ArgumentError, "got inf"),
        (lambda q: fd.ones((2, 8)).quantize(BLOCKS, fd.tensor([[1.0, 0.0]] * 2)), ArgumentError, "got 0.0"),
    ],
)
def test_errors(call, error, names):
    with pytest.raises(error) as raised:
        call(quantized(BLOCKS))
    assert names in str(raised.value)


class Holder(fd.Module):
    weight: fd.QuantTensor
    bias: fd.Param


@pytest.mark.parametrize("scheme", [PER_TENSOR, BLOCKS], ids=str)
def test_a_quantized_tensor_comes_back_from_a_file(scheme, tmp_path):
    q = quantized(scheme)
    fd.save({"q": q, "turned": q.T}, tmp_path / "a")
    for found in (fd.load(tmp_path / "a"), fd.load(tmp_path / "a", like={"q": q, "turned": q.T})):
        np.testing.assert_array_equal(found["q"].dequantize().numpy(), q.dequantize().numpy())
        np.testing.assert_array_equal(found["turned"].dequantize().numpy(), q.dequantize().numpy().T)
        assert found["q"].scheme == scheme
    model = Holder(q, fd.ones(2))
    fd.save(model, tmp_path / "b")
    model.save(tmp_path / "c")
    empty = Holder(fd.zeros(q.shape).quantize_dynamic(scheme), fd.zeros(2))
    for found in (fd.load(tmp_path / "b", like=empty), empty.load(tmp_path / "c")):
        np.testing.assert_array_equal(found.weight.dequantize().numpy(), q.dequantize().numpy())
        assert found.bias.tolist() == [1.0, 1.0]


# --- what has no scale, and what has a gradient


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_not_finite_comes_back_as_nan(compiled, device):
    run = fd.jit if compiled else lambda fn: fn
    nan, inf = float("nan"), float("inf")
    x = fd.tensor([[1.0, 2.0, nan, 4.0], [-inf, 2.0, 3.0, 254.0]], device=device)
    pairs = fd.QuantScheme(block=2)
    dynamic = run(lambda x: x.quantize_dynamic(pairs).dequantize())(x)
    want = [[4 / 254, 2.0, nan, nan], [nan, nan, 3 * 1.0, 254.0]]
    np.testing.assert_allclose(dynamic.numpy(), want, atol=1.0)
    assert np.isnan(dynamic.numpy()).tolist() == np.isnan(want).tolist()
    assert np.isnan(run(lambda x: x.quantize_dynamic(PER_TENSOR).dequantize())(x).numpy()).all()
    assert np.isnan(run(lambda x: fd.ones((1, 2), device=device) @ x.quantize_dynamic(PER_TENSOR))(x).numpy()).all()
    given = run(lambda x: x.quantize(pairs, 1.0).dequantize())(x)
    np.testing.assert_array_equal(given.numpy(), [[1.0, 2.0, nan, nan], [-127.0, 2.0, 3.0, 127.0]])


def test_small_and_large_numbers_keep_their_size(device):
    for x in ([1.3e-37, 1e-38, 0.0], [3.4e38, -3.4e38, 1.0]):
        x = fd.tensor(x, device=device)
        off = abs(x.quantize_dynamic(PER_TENSOR).dequantize() - x).numpy()
        assert off.max() <= max(abs(x.numpy()).max() / 254, 6e-39) * 1.01


def quiet(w):
    return (w.quantize_dynamic(PER_TENSOR).dequantize() ** 2).sum()


def objects(device):
    return lambda w: quiet(w.to_device(device.autodiff()).require_grad())


@pytest.mark.parametrize(
    "ask",
    [
        fd.grad(quiet),
        fd.grad(lambda w: w.quantize(PER_TENSOR, 0.5).dequantize().sum()),
        fd.grad(lambda w: fd.ones_like(w).quantize(PER_TENSOR, w[0]).dequantize().sum()),
        fd.grad(fd.jit(quiet)),
        fd.jit(fd.grad(quiet)),
        fd.grad(fd.checkpoint(quiet)),
        fd.grad(lambda w: fd.grad(lambda x: x * quiet(w))(2.0)),
        fd.grad(lambda w: fd.vmap(quiet)(w[None]).sum()),
        fd.vmap(fd.grad(lambda w: quiet(w[None]))),
        lambda w: fd.jvp(quiet, (w,), (w,)),
        lambda w: fd.linearize(quiet, w),
        fd.jacfwd(quiet),
        lambda w: objects(w.device)(w),
        lambda w: fd.jit(quiet)(w.autodiff().require_grad() * 2),
    ],
)
def test_a_gradient_is_not_cut_in_silence(ask, device):
    w = fd.tensor([1.0, 2.0], device=device)
    with pytest.raises(NotDifferentiableError, match="fake_quantize"):
        ask(w)


def test_what_is_said_to_be_constant_is_quantized(device):
    w = fd.tensor([1.0, 2.0], device=device)
    value = quiet(w).item()
    assert fd.grad(lambda w: quiet(fd.stop_gradient(w)) * w.sum())(w).tolist() == [value, value]
    assert fd.grad(lambda w: fd.no_grad(quiet)(w) * w.sum())(w).tolist() == [value, value]
    leaf = w.autodiff().require_grad()
    with pytest.raises(NotDifferentiableError):
        quiet(leaf * 2)
    loss = quiet(fd.stop_gradient(leaf)) * (leaf * leaf).sum()  # what was recorded before the error still stands
    assert leaf.grad(loss.backward()).tolist() == [2 * value, 4 * value]


@pytest.mark.parametrize("scheme", [PER_TENSOR, BLOCKS])
def test_fake_quantize_passes_gradients_straight_through(scheme, device):
    w = fd.tensor(WEIGHT, device=device)
    assert F.fake_quantize(w, scheme).tolist() == w.quantize_dynamic(scheme).dequantize().tolist()
    for run in (lambda f: f, fd.jit):
        got = run(fd.grad(lambda w: (F.fake_quantize(w, scheme) ** 2).sum()))(w)
        np.testing.assert_allclose(got.numpy(), 2 * w.quantize_dynamic(scheme).dequantize().numpy(), rtol=1e-6)
    value, moved = fd.jvp(lambda w: F.fake_quantize(w, scheme), (w,), (w,))
    assert moved.tolist() == w.tolist() and value.shape == w.shape


# --- products, functions and layers


def test_every_product_takes_it(device):
    q = quantized(BLOCKS, device)
    floats, x, y = q.dequantize(), fd.tensor(X, device=device), fd.tensor(WEIGHT, device=device)
    for name, got, want in [
        ("linear", F.linear(y, q, fd.ones(6, device=device)), y @ floats.T + 1.0),
        ("linear of a vector", F.linear(y[0], q), y[0] @ floats.T),
        ("linear of a stack", F.linear(y[None], q), (y @ floats.T)[None]),
        ("np.dot", np.dot(x, q), x @ floats),
        ("np.dot turned", np.dot(y, q.T), y @ floats.T),
        ("np.inner", np.inner(y, q), y @ floats.T),
        ("np.einsum", np.einsum("ij,kj->ki", q, y), y @ floats.T),
        ("np.tensordot", np.tensordot(x, q, 1), x @ floats),
        ("matmul of ints", fd.ones((2, 6), "int32", device) @ q, fd.ones((2, 6), device=device) @ floats),
        ("matmul of bools", fd.ones((2, 6), "bool", device) @ q, fd.ones((2, 6), device=device) @ floats),
        ("q with ints", q @ fd.ones((8, 2), "int32", device), floats @ fd.ones((8, 2), device=device)),
        ("complex", (x * 1j) @ q, (x * 1j) @ floats),
        ("complex on the right", q @ (y.T * 1j), floats @ (y.T * 1j)),
    ]:
        assert (got.shape, got.dtype) == (want.shape, want.dtype), name
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-5, atol=1e-5, err_msg=name)


def network(device):
    return nn.Sequential(
        nn.Linear(8, 6, key=fd.random.key(0, device)), nn.Tanh(), nn.Linear(6, 4, key=fd.random.key(1, device))
    )


@pytest.mark.parametrize("scheme", [None, PER_TENSOR, fd.QuantScheme(block=2)], ids=str)
def test_a_model_with_quantized_weights(scheme, device, tmp_path):
    net, x = network(device), fd.tensor(WEIGHT, device=device)
    model = nn.quantize(net, scheme)
    floats = nn.dequantize(model)
    assert np.allclose(model(x).numpy(), floats(x).numpy(), rtol=1e-5, atol=1e-6)
    assert 0 < abs(model(x) - net(x)).max().item() < 0.05
    assert [name for name, _ in model.named_parameters()] == ["layers.0.bias", "layers.2.bias"]
    assert (model.num_params, floats.num_params) == (10, net.num_params)
    assert repr(model[0].weight) in repr(model) and "10 parameters, 72 quantized numbers" in repr(model)
    assert "10 parameters, 72 quantized numbers" in model.summary(x)
    for other in (
        fd.jit(lambda m, x: m(x))(model, x),
        fd.vmap(model)(x),
        fd.vmap(lambda m, x: m(x), in_axes=(None, 0))(model, x),
        model.to_device(fd.Device.numpy())(x.to_device(fd.Device.numpy())),
        model.fork(device.autodiff()).train().valid()(x),
        copy.deepcopy(model)(x),
        pickle.loads(pickle.dumps(model))(x),
    ):
        np.testing.assert_allclose(other.numpy(), model(x).numpy(), rtol=1e-5, atol=1e-6)
    model.save(tmp_path / "model")
    again = nn.quantize(network(device).map(lambda p: p * 0.5), scheme).load(tmp_path / "model")
    assert again(x).tolist() == model(x).tolist()
    with pytest.raises(RecordError):
        net.load(tmp_path / "model")
    got, want = (fd.grad(lambda x, m=m: (m(x) ** 2).sum())(x).numpy() for m in (model, floats))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("style", ["functional", "compiled", "object"])
def test_adapters_train_on_a_quantized_base(style, device):
    """QLoRA: exact gradients of the adapters, none of the base, which stays as it is."""
    net, x = network(device), fd.tensor(WEIGHT, device=device)
    base = nn.quantize(net, fd.QuantScheme(block=2))
    model = nn.lora(base, rank=2, key=fd.random.key(2, device))
    model = model.replace({"layers.0.lora_b": fd.tensor(RNG.normal(size=(6, 2)).astype("f"), device=device)})
    plain = nn.lora(nn.dequantize(base), rank=2, key=fd.random.key(2, device)).replace(
        {"layers.0.lora_b": model[0].lora_b}
    )
    trained = [name for name, p in model.named_parameters() if not p.is_frozen]
    assert trained == ["layers.0.lora_a", "layers.0.lora_b", "layers.2.lora_a", "layers.2.lora_b"]
    assert model[0].lora_a.dtype == fd.float32

    def loss(m, x):
        return (m(x) ** 2).mean()

    opt = fd.optim.adam(1e-2)
    state = opt.init(model)
    if style == "object":
        frozen = [name for name, p in model.named_parameters() if p.is_frozen]
        model = model.fork(device.autodiff()).train().freeze(frozen)
        grads = loss(model, x).backward()
        assert len(grads) == 4
        found = [p.grad(grads) for p in model.parameters() if not p.is_frozen]
    else:
        differentiate = fd.jit(fd.grad(loss)) if style == "compiled" else fd.grad(loss)
        grads = differentiate(model, x)
        found = [p for p in grads.parameters() if not p.is_frozen]
        assert jax.tree.leaves(grads[0].base.weight) == []
    want = [p for p in fd.grad(loss)(plain, x).parameters() if not p.is_frozen]
    for g, w in zip(found, want, strict=True):
        np.testing.assert_allclose(g.numpy(), w.numpy(), rtol=1e-4, atol=1e-6)
    moved, state = opt.step(model, grads, state)
    assert moved[0].base.weight.values.tolist() == base[0].weight.values.tolist()
    assert moved[0].lora_a.tolist() != model[0].lora_a.tolist()
    merged = nn.merge_lora(moved)  # in floats: nothing of the adapter is rounded away
    assert type(merged[0].weight) is fd.Param and merged.num_params == net.num_params
    np.testing.assert_allclose(merged(x).numpy(), moved(x).numpy(), rtol=1e-4, atol=1e-5)


def test_which_layers_are_quantized(device):
    net = network(device)
    one = nn.quantize(net, group="layers.2")
    assert type(one[0].weight) is fd.Param and isinstance(one[2].weight, fd.QuantTensor)
    assert isinstance(nn.quantize(one)[0].weight, fd.QuantTensor)
    tuned = nn.lora(nn.quantize(net), 1, group="layers.2")
    assert [type(layer).__name__ for layer in (tuned[0], tuned[2])] == ["Linear", "LoraLinear"]
    assert type(nn.lora(nn.quantize(nn.Linear(4, 2, bias=False)), 1, group=nn.Linear)) is nn.LoraLinear
    back = one.replace({"layers.2.weight": one[2].weight.dequantize()})
    assert type(back[2].weight) is fd.Param
    x = fd.tensor(RNG.normal(size=(1, 2, 6, 6)).astype("f"), device=device)
    for layer, given in [
        (nn.Conv2d(2, 4, 3, key=fd.random.key(0, device)), x),
        (nn.ConvTranspose2d(2, 4, 3, key=fd.random.key(0, device)), x),
        (nn.Embedding(5, 4, padding_idx=1, key=fd.random.key(0, device)), fd.tensor([[1, 0], [4, 4]], device=device)),
        (nn.EmbeddingBag(5, 4, key=fd.random.key(0, device)), fd.tensor([[1, 0], [4, 4]], device=device)),
    ]:
        q = nn.quantize(layer, group=type(layer))
        np.testing.assert_allclose(q(given).numpy(), nn.dequantize(q)(given).numpy(), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(fd.jit(lambda m, x: m(x))(q, given).numpy(), q(given).numpy(), rtol=1e-5, atol=1e-6)


def test_tied_weights_stay_tied():
    table, head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
    model = nn.Sequential(table, nn.Linear(4, 4), head.replace(weight=table.weight))
    assert model[0].weight.id == model[2].weight.id
    q = nn.quantize(model)
    assert q[0].weight.values is q[2].weight.values
    back = nn.dequantize(q)
    assert back[0].weight.id == back[2].weight.id

    class Scaled(fd.Module):
        head: nn.Linear
        scale: fd.Param

    with pytest.raises(ArgumentError, match="'scale'"):
        nn.quantize(Scaled(head, head.weight))


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: nn.quantize(fd.ones(2)), ArgumentTypeError, "expected a Module"),
        (lambda: nn.quantize(nn.Sequential(nn.PReLU())), ArgumentError, "matches none"),
        (lambda: nn.quantize(nn.PReLU(), group="*"), ArgumentError, "Linear"),
        (lambda: nn.quantize(nn.quantize(nn.Linear(2, 2))), ArgumentError, "already"),
        (lambda: nn.quantize(nn.Linear(3, 2), fd.QuantScheme(block=2)), ShapeError, "'weight'"),
        (lambda: nn.quantize(nn.Linear(3, 2), "int8"), ArgumentTypeError, "fd.QuantScheme"),
        (lambda: nn.dequantize(nn.Linear(3, 2)), ArgumentError, "no layer"),
        (lambda: fd.grad(lambda m: nn.quantize(m)(fd.ones(3)).sum())(nn.Linear(3, 2)), NotDifferentiableError, "stop_"),
    ],
)
def test_errors_of_models(call, error, names):
    with pytest.raises(error) as raised:
        call()
    assert names in str(raised.value)


def test_attention_and_its_cache_on_quantized_weights(device):
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, key=fd.random.key(0, device)).valid()
    x = fd.tensor(RNG.normal(size=(2, 3, 8)).astype("f"), device=device)
    model = nn.quantize(layer, fd.QuantScheme(block=4))
    assert isinstance(model.self_attn.in_proj_weight, fd.QuantTensor)
    assert isinstance(model.self_attn.out_proj.weight, fd.QuantTensor)
    floats = nn.dequantize(model)
    attend, plain = model.self_attn, floats.self_attn
    cache = attend.init_cache(2, 4)
    assert cache.keys.dtype == fd.float32
    for got, want in [
        (model(x), floats(x)),
        (fd.jit(lambda m, x: m(x))(model, x), floats(x)),
        (attend(x, x * 0.5, x)[0], plain(x, x * 0.5, x)[0]),
        (attend.step(x, cache)[0], plain.step(x, plain.init_cache(2, 4))[0]),
        (nn.lora(model, 2, key=fd.random.key(1, device))(x), floats(x)),
    ]:
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)
