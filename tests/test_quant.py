"""Quantized tensors: values, what matmul does with them, that nothing tracks them."""

from __future__ import annotations

import copy
import pickle

import jax
import numpy as np
import pytest

import functad as fd
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnknownAttributeError

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
