"""Pooling: values of torch, which element of equals counts, borders, long windows, the way back, errors."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import checksums, wave

import functad as fd
from functad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError

F = fd.nn.functional
pytestmark = pytest.mark.usefixtures("x64")


def gradient(fn, x):
    return fd.grad(lambda x: fn(x).sum())(x).tolist()


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        pytest.param(
            lambda x: F.max_pool2d(x, (3, 2), (2, 1), (1, 1), (2, 1), True), [1.134808652, 5.6951020799], id="max"
        ),
        pytest.param(lambda x: F.avg_pool2d(x, (3, 2), 2, 1, True, False), [-0.6581512547, 0.6980790002], id="avg"),
        pytest.param(lambda x: F.lp_pool2d(x, 2, 2), [0.1301087112, -8.5620885277], id="lp"),
        pytest.param(lambda x: F.adaptive_avg_pool2d(x, (3, 4)), [0.8576899411, 0.7113123706], id="adaptive avg"),
        pytest.param(lambda x: F.adaptive_max_pool2d(x, (3, 4)), [2.1708923375, 3.5797852283], id="adaptive max"),
    ],
)
def test_as_torch_in_float64(fn, expected, device):
    """The numbers are torch 2.13's."""
    np.testing.assert_allclose(checksums(fn, wave(2, 2, 7, 6, device=device)), expected, atol=2e-9)


def test_indices_as_torch(device):
    _, indices = F.max_pool2d(wave(2, 2, 7, 6, device=device), 3, 2, 1, return_indices=True)
    assert indices.dtype.kind == "i"
    assert indices[0, 0].tolist() == [[1, 1, 11], [6, 20, 11], [30, 25, 35], [30, 39, 35]]


# --- which element counts


def test_the_first_of_equals(device):
    x = fd.tensor([[[2.0, 2.0, 1.0, 1.0, 2.0]]], device=device)
    values, indices = F.max_pool1d(x, 3, 2, return_indices=True)
    assert values.tolist() == [[[2.0, 2.0]]] and indices.tolist() == [[[0, 4]]]
    assert gradient(lambda x: F.max_pool1d(x, 3, 2), x) == [[[1.0, 0.0, 0.0, 0.0, 1.0]]]
    assert gradient(lambda x: F.adaptive_max_pool1d(x, 3), x) == [[[1.0, 1.0, 0.0, 0.0, 1.0]]]
    _, tangent = fd.jvp(
        lambda x: F.max_pool1d(x, 3, 2), (x,), (fd.tensor([[[1.0, 2.0, 3.0, 4.0, 5.0]]], device=device),)
    )
    assert tangent.tolist() == [[[1.0, 5.0]]]


def test_padding_is_never_the_largest(device):
    low = fd.full((1, 1, 3), float("-inf"), device=device)
    values, indices = F.max_pool1d(low, 2, 2, 1, return_indices=True)
    assert values.tolist() == [[[float("-inf")] * 2]] and indices.tolist() == [[[0, 1]]]
    assert gradient(lambda x: F.max_pool1d(x, 2, 2, 1), low) == [[[1.0, 1.0, 0.0]]]
    ints = fd.tensor([[[-128, -128]]], dtype="int8", device=device)
    out = F.max_pool1d(ints, 2, 2, 1)
    assert out.dtype == np.int8 and out.tolist() == [[[-128, -128]]]
    half = fd.tensor([[[-60000.0, -60000.0]]], dtype="float16", device=device)
    assert F.max_pool1d(half, 2, 2, 1).tolist() == half.tolist()


def test_a_window_that_lies_outside(device):
    """With a dilation a window can read nothing but padding."""
    x = fd.tensor([[[3.0]]], device=device)
    assert F.max_pool1d(x, 2, 1, 1, 2).tolist() == [[[float("-inf")]]]
    assert gradient(lambda x: F.max_pool1d(x, 2, 1, 1, 2), x) == [[[0.0]]]
    assert fd.jvp(lambda x: F.max_pool1d(x, 2, 1, 1, 2), (x,), (x,))[1].tolist() == [[[0.0]]]


def test_nan_is_the_largest(device):
    x = fd.tensor([[[1.0, float("nan"), 3.0, 2.0]]], device=device)
    values, indices = F.max_pool1d(x, 2, return_indices=True)
    assert math.isnan(values[0, 0, 0].item()) and indices.tolist() == [[[1, 2]]]
    assert gradient(lambda x: F.max_pool1d(x, 2), x) == [[[0.0, 1.0, 1.0, 0.0]]]


@pytest.mark.parametrize("kernel", [(9, 9), (9, 8)])
def test_long_windows(kernel, device):
    """Windows of more than 64 elements take another way on XLA."""
    x = wave(2, 10, 11, device=device).at[0, 3:6].set(1.5)

    def short(x):
        return F.max_pool2d(F.max_pool2d(x, (kernel[0], 1), 1), (1, kernel[1]), 1)

    def long(x):
        return F.max_pool2d(x, kernel, 1, return_indices=True)

    values, indices = long(x)
    np.testing.assert_array_equal(values.numpy(), short(x).numpy())
    flat = x.numpy().reshape(2, -1)
    np.testing.assert_array_equal(
        np.take_along_axis(flat, indices.numpy().reshape(2, -1), 1), values.numpy().reshape(2, -1)
    )
    assert (indices[0].numpy() // 11 == 3).all()
    g = fd.grad(lambda x: (long(x)[0] * wave(*values.shape, device=x.device.inner())).sum())(x).numpy()
    want = np.zeros((2, 110))
    for row in range(2):
        np.add.at(want[row], indices[row].numpy().ravel(), wave(*values.shape).numpy()[row].ravel())
    np.testing.assert_allclose(g.reshape(2, -1), want, atol=1e-12)
    t = wave(2, 10, 11, device=device)
    _, tangent = fd.jvp(lambda x: long(x)[0], (x,), (t,))
    np.testing.assert_allclose((tangent.numpy() * wave(*values.shape).numpy()).sum(), (g * t.numpy()).sum(), rtol=1e-12)
    mean = F.avg_pool2d(x, (10, 11), padding=0)
    np.testing.assert_allclose(mean.numpy().ravel(), x.numpy().mean((1, 2)), rtol=1e-12)


def test_averages_over_more_than_64(device):
    x = wave(1, 140, device=device)
    out = F.avg_pool1d(x, 70, 30)
    np.testing.assert_allclose(out.numpy()[0], [x.numpy()[0, i : i + 70].mean() for i in (0, 30, 60)], rtol=1e-10)
    g = fd.grad(lambda x: F.avg_pool1d(x, 70, 30).sum())(x).numpy()[0] * 70
    np.testing.assert_allclose(g[[0, 30, 65, 75, 110, 135]], [1, 2, 3, 2, 1, 0], atol=1e-12)


# --- means and norms


def test_what_the_mean_counts(device):
    x = fd.tensor([[[1.0, 2.0, 3.0, 4.0]]], device=device)
    assert F.avg_pool1d(x, 3, 2, 1, False, True).tolist() == [[[1.0, 3.0]]]
    assert F.avg_pool1d(x, 3, 2, 1, False, False).tolist() == [[[1.5, 3.0]]]
    assert F.avg_pool1d(x, 3, 2, 0, True).tolist() == [[[2.0, 3.5]]]
    assert F.avg_pool2d(x[None], (1, 2), divisor_override=4).tolist() == [[[[0.75, 1.75]]]]
    assert F.avg_pool1d(fd.tensor([[1, 2]], device=device), 2).tolist() == [[1.5]]


def test_half_sums_do_not_overflow(device):
    x = fd.full((1, 1, 400), 400.0, dtype="float16", device=device)
    assert F.avg_pool1d(x, 400).tolist() == [[[400.0]]]
    assert F.adaptive_avg_pool1d(x, 1).tolist() == [[[400.0]]]
    assert F.avg_pool1d(x, 400).dtype == np.float16


def test_inf_stays_in_its_windows(device):
    x = fd.tensor([[[float("inf"), 1.0, 2.0, 3.0, 4.0]]], device=device)
    assert F.adaptive_avg_pool1d(x, 2).tolist() == [[[float("inf"), 3.0]]]
    assert F.avg_pool1d(x, 2, 1).tolist() == [[[float("inf"), 1.5, 2.5, 3.5]]]


def test_the_norm_of_zeros(device):
    x = fd.tensor([[[0.0, 0.0, 3.0, 4.0]]], device=device)
    assert F.lp_pool1d(x, 2, 2).tolist() == [[[0.0, 5.0]]]
    np.testing.assert_allclose(gradient(lambda x: F.lp_pool1d(x, 2, 2), x), [[[0.0, 0.0, 0.6, 0.8]]], rtol=1e-6)


def test_adaptive_sizes(device):
    x = wave(2, 3, 5, 6, device=device)
    assert F.adaptive_avg_pool2d(x, (None, 2)).shape == (2, 3, 5, 2)
    assert F.adaptive_max_pool2d(x[0], 3).shape == (3, 3, 3)
    np.testing.assert_allclose(F.adaptive_avg_pool2d(x, 1).numpy()[..., 0, 0], x.numpy().mean((2, 3)), rtol=1e-12)


# --- back


def test_unpool_inverts(device):
    x = fd.tensor([[[[1.0, 2.0, 5.0, 0.0], [3.0, 4.0, 0.0, 6.0]]]], device=device)
    values, indices = F.max_pool2d(x, 2, return_indices=True)
    back = F.max_unpool2d(values, indices, 2)
    assert back.tolist() == [[[[0.0, 0.0, 0.0, 0.0], [0.0, 4.0, 0.0, 6.0]]]]
    assert F.max_unpool2d(values, indices, 2, output_size=(3, 5)).shape == (1, 1, 3, 5)
    assert gradient(lambda v: F.max_unpool2d(v, indices, 2) * x, values) == [[[[4.0, 6.0]]]]


def test_unpool_of_overlapping_windows_does_not_add(device):
    x = fd.tensor([[[1.0, 9.0, 1.0]]], device=device)
    values, indices = F.max_pool1d(x, 2, 1, return_indices=True)
    assert F.max_unpool1d(values, indices, 2, 1).tolist() == [[[0.0, 9.0, 0.0]]]


# --- nesting


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 3, 2, 1, True, False),
        lambda x: F.adaptive_avg_pool2d(x, (2, 3)),
        lambda x: F.adaptive_max_pool2d(x, (2, 3)),
        lambda x: F.lp_pool2d(x, 3.0, 2),
    ],
    ids=["max", "avg", "adaptive avg", "adaptive max", "lp"],
)
def test_second_order_rows_and_jit(fn, device):
    x = wave(2, 5, 4, device=device) + 1.5
    if device == fd.Device.numpy():  # on XLA the matrix of ops compares with JAX
        fd.testing.check_grads(lambda x: fn(x) ** 2, (x,), order=2)
    rows = fd.stack([x, x[..., ::-1]])
    want = np.stack([fd.grad(lambda x: (fn(x) ** 2).sum())(row).numpy() for row in rows])
    for call in (
        fd.vmap(fd.grad(lambda x: (fn(x) ** 2).sum())),
        fd.jit(fd.vmap(fd.grad(lambda x: (fn(x) ** 2).sum()))),
    ):
        np.testing.assert_allclose(call(rows).numpy(), want, atol=1e-12)


def test_against_jax_and_no_loop():
    x = jnp.asarray(wave(2, 3, 8, 8).numpy())

    def loss(x):
        window = (1, 1, 3, 3), (1, 1, 2, 2), [(0, 0), (0, 0), (1, 1), (1, 1)]
        return (jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, *window) ** 2).sum()

    step = jax.jit(fd.to_jax(fd.grad(lambda x: (F.max_pool2d(x, 3, 2, 1) ** 2).sum())))
    assert "while" not in step.lower(x).as_text()
    np.testing.assert_allclose(step(x), jax.grad(loss)(x), atol=1e-12)


def test_empty_batch(device):
    x = fd.zeros((0, 2, 4, 4), device=device)
    for fn in (lambda x: F.max_pool2d(x, 2), lambda x: F.avg_pool2d(x, 2), lambda x: F.adaptive_avg_pool2d(x, 2)):
        assert fn(x).shape == (0, 2, 2, 2)
        assert fd.grad(lambda x: fn(x).sum())(x).shape == x.shape  # noqa: B023  # called in the same round of the loop


# --- errors


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: F.max_pool2d(wave(1, 1, 3, 3), 2, dilation=4), ShapeError, r"spatial size \(0, 0\).*spans \(5, 5\)"),
        (lambda: F.max_pool1d(wave(1, 1, 9), 2, padding=2), ArgumentError, "at most half of kernel_size=2"),
        (lambda: F.avg_pool1d(wave(1, 1, 9), 0), ArgumentError, "kernel_size must be at least 1, got 0"),
        (lambda: F.max_pool2d(wave(9, 9), 2), ShapeError, r"input takes 4 axes .* or 3 .*\(9, 9\)"),
        (lambda: F.max_pool1d(fd.ones((1, 1, 4)) > 0, 2), DTypeError, "floats or ints"),
        (lambda: F.adaptive_avg_pool2d(wave(1, 1, 4, 4), (2, 2, 2)), ArgumentError, "for each of the 2 spatial axes"),
        (lambda: F.adaptive_avg_pool2d(wave(1, 1, 4, 4), 0), ArgumentError, "output_size must be at least 1, got 0"),
        (lambda: F.lp_pool1d(wave(1, 1, 4), 0, 2), ArgumentError, "norm_type must not be 0"),
        (lambda: F.max_unpool1d(fd.ones((1, 1, 2)), fd.tensor([[[0, 9]]]), 2), OutOfBoundsError, "from 0 to 9, .* 0 to 3"),
        (lambda: F.max_unpool1d(fd.ones((1, 1, 2)), fd.ones((1, 1, 2)), 2), DTypeError, "indices are ints"),
        (lambda: F.max_unpool1d(fd.ones((1, 1, 2)), fd.tensor([[[0, 1]]]), 2, output_size=(9,)), ArgumentError, "within one stride"),
        (lambda: F.avg_pool2d(wave(1, 1, 4, 4), 2, divisor_override=0), ArgumentError, "divisor_override must be at least 1"),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


# --- windows whose places are drawn


def windows(n, kernel, count, u):
    """Where they begin, by the definition."""
    if count == 1:
        return [n - kernel]
    step = (n - kernel) / (count - 1)
    return [int((i + u) * step) - int(u * step) for i in range(count - 1)] + [n - kernel]


@pytest.mark.parametrize(("shape", "kernel", "count"), [((7, 8), (2, 3), (4, 1)), ((5, 6, 7), (2, 1, 3), (3, 6, 2))])
def test_fractional_windows(shape, kernel, count, device):
    rng = np.random.default_rng(0)
    x, samples = rng.normal(size=(2, 3, *shape)), rng.uniform(size=(2, 3, len(shape)))
    fn = F.fractional_max_pool2d if len(shape) == 2 else F.fractional_max_pool3d
    order = (1, 0) if len(shape) == 2 else (0, 1, 2)
    tensor, drawn = fd.tensor(x, device=device), fd.tensor(samples, device=device)
    values, indices = fn(tensor, kernel, count, return_indices=True, random_samples=drawn)
    for plane in np.ndindex(2, 3):
        starts = [
            windows(n, k, m, samples[plane][o]) for n, k, m, o in zip(shape, kernel, count, order, strict=True)
        ]  # fmt: skip
        for at in np.ndindex(*count):
            box = tuple(slice(s[i], s[i] + k) for s, i, k in zip(starts, at, kernel, strict=True))
            assert values[(*plane, *at)].item() == x[plane][box].max()
            assert x[plane].ravel()[indices[(*plane, *at)].item()] == x[plane][box].max()
    grad = fd.grad(lambda x: (fn(x, kernel, count, random_samples=drawn) ** 2).sum())(tensor).numpy()
    expected = np.zeros_like(x)
    np.add.at(
        expected.reshape(6, -1),
        (np.arange(6)[:, None], indices.numpy().reshape(6, -1)),
        2 * values.numpy().reshape(6, -1),
    )
    np.testing.assert_allclose(grad, expected, rtol=1e-12)


def test_fractional_windows_are_drawn():
    x, key = fd.arange(400.0).reshape(1, 1, 20, 20), fd.random.key(0)
    once = F.fractional_max_pool2d(x, 2, output_ratio=0.45, key=key)
    assert once.shape == (1, 1, 9, 9)
    assert (once == fd.jit(lambda x, key: F.fractional_max_pool2d(x, 2, output_ratio=0.45, key=key))(x, key)).all()
    assert (once != F.fractional_max_pool2d(x, 2, output_ratio=0.45, key=fd.random.key(1))).any()
    rows = fd.vmap(lambda key: F.fractional_max_pool2d(x, 2, 9, key=key))(fd.random.split(key, 3))
    assert rows.shape == (3, 1, 1, 9, 9)
    assert F.fractional_max_pool3d(fd.ones((0, 2, 5, 5, 5)), 2, 3, key=key).shape == (0, 2, 3, 3, 3)


@pytest.mark.parametrize(
    ("kwargs", "error", "match"),
    [
        ({}, ArgumentError, "neither"),
        ({"output_size": 2, "output_ratio": 0.5}, ArgumentError, "both"),
        ({"output_size": 6}, ArgumentError, "output_size \\+ kernel_size - 1"),
        ({"output_ratio": 1.0}, ArgumentError, "between 0 and 1"),
        ({"output_ratio": 0.1}, ArgumentError, "nothing is left"),
        ({"output_size": 2, "random_samples": np.zeros((1, 2))}, ShapeError, "shape \\(1, 1, 2\\)"),
    ],
)
def test_fractional_refusals(kwargs, error, match):
    with pytest.raises(error, match=match):
        F.fractional_max_pool2d(fd.ones((1, 1, 6, 6)), 2, **kwargs)
