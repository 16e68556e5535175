"""Normalization: figures of torch, constant rows, running statistics, half precision, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import functad as fd

F = fd.nn.functional


def wave(shape, step):
    return np.sin(np.arange(1, np.prod(shape, dtype=int) + 1) * step).reshape(shape)


X = 2 * wave((2, 4, 3), 1.0)
WEIGHT, BIAS = 1 + 0.5 * wave((4,), 1.0), wave((4,), 2.0)
MEAN, VAR = 0.3 * wave((4,), 3.0), 1 + 0.5 * wave((4,), 0.5)

FIGURES = [
    ("layer", lambda x, w, b: F.layer_norm(x, (4, 3), w, b), (X, 1 + wave((4, 3), 0.3), wave((4, 3), 0.2)),
     8.37952592384, [-0.470568051441, -2.70553505902, 0.335600391706]),
    ("rms", lambda x, w: F.rms_norm(x, 3, w, eps=1e-3), (X, 1 + wave((3,), 0.3)),
     7.02369250762, [0.0895276112183, -1.9033414201]),
    ("group", lambda x, w, b: F.group_norm(x, 2, w, b), (X, WEIGHT, BIAS),
     10.3666788098, [-0.337782336091, 0.354848842731, 4.1319333069]),
    ("batch", lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (X, WEIGHT, BIAS),
     9.26643738096, [-0.756281304654, 0.853181937076, 4.1319333069]),
    ("running", lambda x, w, b: F.batch_norm(x, MEAN, VAR, w, b), (X, WEIGHT, BIAS),
     11.8362889592, [-0.47852060903, 0.795613065766, 4.1319333069]),
    ("instance", lambda x, w, b: F.instance_norm(x, None, None, w, b), (X, WEIGHT, BIAS),
     8.85591065163, [-1.30314927724, 0.718127876985, 4.1319333069]),
    ("response", lambda x: F.local_response_norm(x, 3, 0.5, 0.6, 1.5), (X,), 3.3512456412, [0.154520113193]),
    ("normalize", lambda x: F.normalize(x, 3.0, 1), (X,), 2.1864483521, [0.184949761709]),
]  # fmt: skip
"""A function, its arguments; the sum of its output times a wave, and its gradients times a wave, by torch in float64."""


@pytest.mark.parametrize(("fn", "inputs", "value", "slopes"), [f[1:] for f in FIGURES], ids=[f[0] for f in FIGURES])
def test_as_torch(fn, inputs, value, slopes, device, x64):
    xs = [fd.tensor(x, dtype="float64", device=device) for x in inputs]

    def loss(*xs):
        out = fn(*xs)
        return (out * wave(out.shape, 0.9)).sum()

    both = fd.value_and_grad(loss, argnums=tuple(range(len(xs))))
    found, grads = both(*xs) if device == fd.Device.numpy() else fd.jit(both)(*xs)
    assert found.item() == pytest.approx(value, rel=1e-10)
    assert [(g * wave(g.shape, 2.0)).sum().item() for g in grads] == pytest.approx(slopes, rel=1e-9)
    if device != fd.Device.numpy():  # the ops themselves are compared with differences on both
        return
    fd.testing.check_grads(fn, xs)
    rows = [fd.stack([x, 2 * x]) for x in xs]
    np.testing.assert_allclose(fd.vmap(fn)(*rows)[1].numpy(), fn(*[2 * x for x in xs]).numpy(), rtol=1e-12)


def test_running_statistics_are_returned(x64):
    out, mean, var = F.batch_norm_with_stats(fd.tensor(X), MEAN, VAR, momentum=0.3)
    np.testing.assert_allclose(out.numpy(), F.batch_norm(fd.tensor(X), None, None, training=True).numpy())
    np.testing.assert_allclose(
        mean.numpy(), [0.4249302669297794, -0.4582202869704035, 0.48233902485182517, -0.49680374387136195]
    )
    np.testing.assert_allclose(
        var.numpy(), [0.9952928158908466, 1.1099396908563819, 1.1752058653097488, 1.1768723060897321]
    )
    assert F.batch_norm_with_stats(fd.tensor(X), None, None)[1:] == (None, None)
    _, kept, _ = F.batch_norm_with_stats(fd.tensor(X), fd.tensor(MEAN), fd.tensor(VAR), training=False)
    np.testing.assert_array_equal(kept.numpy(), MEAN)
    _, mean, var = F.instance_norm_with_stats(fd.tensor(X), MEAN, VAR, momentum=1.0)
    np.testing.assert_allclose(mean.numpy(), X.mean((0, 2)))
    np.testing.assert_allclose(var.numpy(), X.var(2, ddof=1).mean(0))
    grads = fd.grad(lambda x: sum(s.sum() for s in F.batch_norm_with_stats(x, MEAN, VAR)[1:]))(fd.tensor(X))
    assert not grads.numpy().any()


@pytest.mark.parametrize("eps", [1e-5, 0.0])
def test_equal_elements(eps, device):
    """Deviations are exactly 0 however large the mean, and without eps the derivative is 0, not NaN."""
    x = fd.full((2, 3), 10000.1, device=device)
    weight = fd.tensor([1.0, 2.0, 3.0], device=device)
    assert F.layer_norm(x, 3, eps=eps).tolist() == [[0.0] * 3] * 2
    slope = fd.grad(lambda x: F.layer_norm(x, 3, weight, eps=eps).sum())(x).numpy()
    np.testing.assert_allclose(
        slope, [[-1 / np.sqrt(eps) if eps else 0, 0, 1 / np.sqrt(eps) if eps else 0]] * 2, atol=1e-3
    )
    assert F.rms_norm(fd.zeros((1, 3), device=device), 3, eps=0.0).tolist() == [[0.0] * 3]
    assert F.normalize(fd.zeros((1, 3), device=device)).tolist() == [[0.0] * 3]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_are_rounded_once(dtype, device):
    x = fd.tensor(300 * wave((3, 400), 1.0) + 1000, device=device).astype(dtype)
    weight, bias = fd.tensor(1 + wave((400,), 0.3), device=device), fd.tensor(wave((400,), 0.7), device=device)
    out = F.layer_norm(x, 400, weight, bias)
    wide = F.layer_norm(x.astype("float32"), 400, weight, bias)
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out.astype("float32").numpy(), wide.astype(dtype).astype("float32").numpy())
    grads = fd.grad(lambda *a: (F.layer_norm(a[0], 400, *a[1:]).astype("float32") ** 2).sum(), argnums=(0, 1))(
        x, weight, bias
    )
    assert [g.dtype for g in grads] == [x.dtype, fd.float32]


def test_one_array_of_the_size_of_x_is_kept():
    """layer_norm keeps its input, not the standardized rows as well."""
    device = fd.Device.cpu(fusion=False).autodiff()  # its nodes are looked at, op by op
    x = fd.ones((4, 8), device=device).require_grad()
    out = F.layer_norm(x * 2, 8, fd.ones(8, device=device).require_grad(), fd.zeros(8, device=device))
    kept = [k for k in out._context.inputs if isinstance(k, fd.Tensor) and k.shape == (4, 8)]
    assert len(kept) == 1 and out._context.out is None


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: F.layer_norm(x, 2), fd.errors.ShapeError, r"normalized_shape=\(3,\)"),
        (lambda x: F.layer_norm(x, 2.5), fd.errors.ArgumentTypeError, "int or several"),
        (lambda x: F.layer_norm(x, 3, fd.ones(4)), fd.errors.ShapeError, r"weight must have shape \(3,\)"),
        (lambda x: F.group_norm(x, 3), fd.errors.ShapeError, "4 channels"),
        (lambda x: F.batch_norm(x[:1, :, :1], None, None, training=True), fd.errors.ShapeError, "one element"),
        (lambda x: F.batch_norm(x, None, None), fd.errors.ArgumentError, "running_mean and running_var"),
        (lambda x: F.batch_norm(x, fd.ones(3), fd.ones(3)), fd.errors.ShapeError, "4 channels"),
        (lambda x: F.batch_norm(x[0, 0], None, None, training=True), fd.errors.ShapeError, "at least 2"),
        (lambda x: F.instance_norm(x[:, :, 0]), fd.errors.ShapeError, "one element"),
        (lambda x: F.local_response_norm(x, 0), fd.errors.ArgumentError, "size"),
        (lambda x: F.local_response_norm(x[0], 2), fd.errors.ShapeError, "3 axes"),
    ],
)
def test_refusals(call, error, text):
    with pytest.raises(error, match=text):
        call(fd.tensor(X))
