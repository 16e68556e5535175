"""Resizing, sampling, padding, sliding blocks, embeddings: values of torch, known values, adjoints, errors."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import checksums, wave

import functad as fd
from functad.errors import ArgumentError, ConcreteValueError, DTypeError, OutOfBoundsError, ShapeError

F = fd.nn.functional
pytestmark = pytest.mark.usefixtures("x64")


# --- interpolate. The numbers are torch 2.13's.

RESIZED = [
    ({"size": (7, 3), "mode": "bilinear", "align_corners": False}, [0.2789220148, 0.5829625464]),
    ({"size": (7, 3), "mode": "bilinear", "align_corners": True}, [0.1958656143, 0.7598046254]),
    ({"scale_factor": (1.5, 2), "mode": "bicubic", "align_corners": False}, [-5.8651003134, 2.177288601]),
    ({"size": (2, 9), "mode": "nearest-exact"}, [19.2160056394, -2.8291399153]),
    ({"size": (3, 2), "mode": "area"}, [0.0865513232, 0.3218374436]),
    ({"size": (2, 3), "mode": "bilinear", "antialias": True}, [0.08264645, -0.1951133462]),
    ({"size": (2, 3), "mode": "bicubic", "antialias": True}, [0.1060618483, -0.2229326461]),
]


@pytest.mark.parametrize(("how", "expected"), RESIZED)
def test_interpolate_as_torch(how, expected, device):
    got = checksums(lambda x: F.interpolate(x, **how), wave(2, 2, 4, 5, device=device))
    np.testing.assert_allclose(got, expected, atol=2e-6 if how.get("antialias") else 2e-9)


def test_nearest_by_hand(device):
    x = fd.tensor([[[1.0, 2.0, 3.0]]], device=device)
    assert F.interpolate(x, scale_factor=2).tolist() == [[[1.0, 1.0, 2.0, 2.0, 3.0, 3.0]]]
    assert F.upsample(x, size=2).tolist() == [[[1.0, 2.0]]]
    assert F.interpolate(x, 2, mode="nearest-exact").tolist() == [[[1.0, 3.0]]]
    g = fd.grad(lambda x: F.interpolate(x, scale_factor=(1.3,)).sum())(x[..., :2])
    assert g.tolist() == [[[2.0, 0.0]]]  # positions 0 and 1 / 1.3; torch's backward gives (1, 1)


def test_a_weight_of_zero_reads_nothing(device):
    x = fd.tensor([[[1.0, float("inf"), 3.0]]], device=device)
    assert F.interpolate(x, 2, mode="linear", align_corners=True).tolist() == [[[1.0, 3.0]]]


def test_half_types_round_once(device):
    x = wave(1, 1, 5, 6, device=device).astype("bfloat16")
    out = F.interpolate(x, (7, 9), mode="bicubic")
    exact = F.interpolate(x.astype("float32"), (7, 9), mode="bicubic")
    assert out.dtype == x.dtype
    np.testing.assert_array_equal(out.astype("float32").numpy(), exact.astype("bfloat16").astype("float32").numpy())


# --- grid_sample

SAMPLED = [
    (("bilinear", "zeros", False), [0.1018699035, 1.1277866428, 2.0433228931]),
    (("bilinear", "border", True), [-0.3304851101, 1.2228377917, -0.7030571499]),
    (("bilinear", "reflection", False), [-0.2814054863, 1.8149004175, 4.2492724862]),
    (("nearest", "zeros", True), [1.3269870621, 3.1503318841, 0.0]),
    (("nearest", "reflection", True), [-1.0833969968, 2.4473181528, 0.0]),
    (("bicubic", "zeros", False), [0.2165515871, 1.5592632882, 3.4565910401]),
    (("bicubic", "reflection", True), [-0.5410073345, 1.750665476, 3.97017827]),
]


@pytest.mark.parametrize(("how", "expected"), SAMPLED)
def test_grid_sample_as_torch(how, expected, device):
    x, grid = wave(2, 2, 4, 5, device=device), wave(2, 3, 4, 2, device=device) * 1.4
    np.testing.assert_allclose(checksums(lambda x, g: F.grid_sample(x, g, *how), x, grid), expected, atol=2e-9)


def test_the_identity_grid_reads_the_input(device):
    for shape in ((1, 2, 3, 4), (1, 2, 2, 3, 4)):
        x, ndim = wave(*shape, device=device), len(shape) - 2
        theta = fd.tensor(np.eye(ndim, ndim + 1)[None], device=device, dtype="float64")
        for align in (False, True):
            out = F.grid_sample(x, F.affine_grid(theta, shape, align), align_corners=align)
            np.testing.assert_allclose(out.numpy(), x.numpy(), atol=1e-12)


def test_positions_that_are_not_finite_read_zeros(device):
    x = fd.ones((1, 1, 2, 2), device=device)
    grid = fd.tensor([[[[float("nan"), 0.0], [float("inf"), 0.0], [0.0, 0.0]]]], device=device)
    assert F.grid_sample(x, grid).tolist() == [[[[0.0, 0.0, 1.0]]]]
    g = fd.grad(lambda g: F.grid_sample(x, g).sum())(grid)
    assert np.isfinite(g.numpy()).all()


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_grid_sample_to_second_order(mode):
    device = fd.Device.numpy()
    x, grid = wave(1, 1, 4, 4, device=device), wave(1, 2, 2, 2, device=device) * 0.61 + 0.03
    fd.testing.check_grads(lambda x, g: F.grid_sample(x, g, mode, "border") ** 2, (x, grid), order=2)
    rows = fd.vmap(lambda x, g: F.grid_sample(x, g, mode))(fd.stack([x, x * 2]), fd.stack([grid, -grid]))
    np.testing.assert_allclose(rows[1].numpy(), F.grid_sample(x * 2, -grid, mode).numpy(), atol=1e-12)


# --- deformable convolution


def test_deformed_by_nothing_is_a_convolution(device):
    x, w, b = wave(2, 4, 5, 6, device=device), wave(6, 2, 3, 2, device=device), wave(6, device=device)
    out = F.conv2d(x, w, b, (2, 1), 1, (1, 2), 2)
    offset = fd.zeros((2, 2 * 2 * 6, *out.shape[2:]), dtype="float64", device=device)
    np.testing.assert_allclose(F.deform_conv2d(x, offset, w, b, (2, 1), 1, (1, 2)).numpy(), out.numpy(), atol=1e-12)
    half = fd.full((2, 2 * 6, *out.shape[2:]), 0.5, dtype="float64", device=device)
    masked = F.deform_conv2d(x, offset, w, None, (2, 1), 1, (1, 2), half)
    np.testing.assert_allclose(masked.numpy(), 0.5 * (out - b.reshape(6, 1, 1)).numpy(), atol=1e-12)


def test_deformed_by_a_shift_reads_the_shifted_input(device):
    """Offsets are (down, right) per place; half a step to the right is the mean of two neighbours."""
    x, w = wave(1, 1, 4, 6, device=device), wave(1, 1, 2, 2, device=device)
    moved = fd.tensor(
        np.tile([1.0, 0.5], 4).reshape(1, 8, 1, 1) * np.ones((1, 8, 3, 5)), dtype="float64", device=device
    )
    right = F.pad(x, (0, 1, 0, 1))
    want = F.conv2d((right[..., 1:, :-1] + right[..., 1:, 1:]) / 2, w)
    np.testing.assert_allclose(F.deform_conv2d(x, moved, w).numpy(), want.numpy(), atol=1e-12)


def test_deformed_to_second_order():
    device = fd.Device.numpy()
    x, w = wave(1, 2, 3, 3, device=device), wave(2, 1, 2, 2, device=device)
    offset, mask = wave(1, 8, 2, 2, device=device) * 0.37 + 0.02, wave(1, 4, 2, 2, device=device)
    fd.testing.check_grads(lambda x, o, w, m: F.deform_conv2d(x, o, w, mask=m) ** 2, (x, offset, w, mask), order=2)


# --- padding, blocks, channels


@pytest.mark.parametrize(
    ("pad", "mode", "expected"),
    [
        ((1, 2), "constant", [0, 1, 2, 3, 0, 0]), ((2, 1), "reflect", [3, 2, 1, 2, 3, 2]),
        ((1, 2), "replicate", [1, 1, 2, 3, 3, 3]), ((1, 3), "circular", [3, 1, 2, 3, 1, 2, 3]),
        ((-1, 1), "constant", [2, 3, 0]), ((-1, 2), "reflect", [2, 3, 2, 1]), ((-1, 1), "circular", [2, 3, 2]),
        ((-1, -1), "replicate", [2]), ((0, 0), "constant", [1, 2, 3]),
    ],
)  # fmt: skip
def test_pad(pad, mode, expected, device):
    """As torch, also where one side is cropped."""
    x = fd.tensor([[1.0, 2.0, 3.0]], device=device)
    assert F.pad(x, pad, mode).tolist() == [[float(v) for v in expected]]
    counts = [float(expected.count(v)) for v in (1, 2, 3)]
    assert fd.grad(lambda x: F.pad(x, pad, mode).sum())(x).tolist() == [counts]


def test_pad_begins_with_the_last_axis(device):
    assert F.pad(fd.zeros((2, 3, 4), device=device), (1, 2, 3, 4), value=7).shape == (2, 10, 7)
    assert F.pad(fd.tensor([1], device=device), (0, 1), value=7).tolist() == [1, 7]


def test_unfold_and_fold_are_adjoint(device):
    how = {"kernel_size": (2, 3), "dilation": (2, 1), "padding": (1, 2), "stride": (2, 1)}
    x = wave(2, 3, 5, 4, device=device)
    columns = F.unfold(x, **how)
    assert columns.shape == (2, 18, 18)
    y = wave(*columns.shape, device=device)
    np.testing.assert_allclose((columns * y).sum().item(), (F.fold(y, (5, 4), **how) * x).sum().item(), rtol=1e-12)
    w = wave(4, 3, 2, 3, device=device)
    conv = F.conv2d(x, w, None, (2, 1), (1, 2), (2, 1))
    np.testing.assert_allclose((w.reshape(4, 18) @ columns).reshape(*conv.shape).numpy(), conv.numpy(), atol=1e-12)
    side = F.unfold(x[0, :, :4], 2, stride=2)
    np.testing.assert_array_equal(F.fold(side, 4, 2, stride=2).numpy(), x[0, :, :4].numpy())


def test_channels_and_space(device):
    x = wave(2, 8, 3, 2, device=device)
    up = F.pixel_shuffle(x, 2)
    assert up.shape == (2, 2, 6, 4)
    assert up[1, 1, 3, 2].item() == x[1, 4 + 2, 1, 1].item()
    np.testing.assert_array_equal(F.pixel_unshuffle(up, 2).numpy(), x.numpy())
    np.testing.assert_array_equal(F.channel_shuffle(x, 2).numpy()[:, 1], x.numpy()[:, 4])


# --- tables and linear maps


def test_embedding(device):
    table = wave(4, 3, device=device)
    index = fd.tensor([[1, 3], [1, 0]], device=device)
    out, g = fd.value_and_grad(lambda w: F.embedding(index, w, padding_idx=-1).sum())(table)
    np.testing.assert_allclose(out.item(), table.numpy()[[1, 3, 1, 0]].sum())
    assert g[:, 0].tolist() == [1.0, 2.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("sum", [[5, 9], [0, 0], [8, 4]]), ("mean", [[2.5, 4.5], [0, 0], [8, 4]]), ("max", [[4, 7], [0, 0], [8, 4]])],
)
def test_bags(mode, expected, device):
    table = fd.tensor([[1.0, 2.0], [4.0, 7.0], [8.0, 4.0], [0.0, 0.0]], device=device)
    index, offsets = fd.tensor([0, 1, 2, 3], device=device), fd.tensor([0, 2, 2], device=device)
    pooled = F.embedding_bag(index, table, offsets, mode=mode, padding_idx=3)
    assert pooled.tolist() == expected
    rows = F.embedding_bag(fd.tensor([[0, 1], [3, 3], [2, 3]], device=device), table, mode=mode, padding_idx=3)
    assert rows.tolist() == expected
    jitted = fd.jit(lambda w, i, o: F.embedding_bag(i, w, o, mode=mode, padding_idx=3))(table, index, offsets)
    assert jitted.tolist() == expected


def test_weighed_bags(device):
    table, weights = wave(3, 2, device=device), wave(2, 2, device=device)
    index = fd.tensor([[0, 1], [2, 2]], device=device)
    g = fd.grad(lambda s: F.embedding_bag(index, table, mode="sum", per_sample_weights=s).sum())(weights)
    np.testing.assert_allclose(g.numpy(), table.numpy().sum(1)[index.numpy()])


def test_linear_and_bilinear(device):
    x, w, b = wave(2, 3, device=device), wave(4, 3, device=device), wave(4, device=device)
    np.testing.assert_allclose(F.linear(x, w, b).numpy(), x.numpy() @ w.numpy().T + b.numpy(), rtol=1e-12)
    assert F.linear(x[0], w).shape == (4,) and F.linear(x, w[0]).shape == (2,)
    y, k = wave(2, 5, device=device), wave(4, 3, 5, device=device)
    want = np.einsum("ni,kij,nj->nk", x.numpy(), k.numpy(), y.numpy()) + b.numpy()
    np.testing.assert_allclose(F.bilinear(x, y, k, b).numpy(), want, rtol=1e-10)


def test_one_hot_counts_classes(device):
    assert F.one_hot(fd.tensor([2, 0], device=device)).tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    assert F.one_hot(fd.tensor([1], device=device), 2, dtype=int).tolist() == [[0, 1]]
    with pytest.raises(ConcreteValueError, match="pass num_classes"):
        fd.jit(F.one_hot)(fd.tensor([2, 0], device=device))


# --- errors


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: F.interpolate(wave(1, 1, 4), 2, mode="bilinear"), ArgumentError, "one of 'nearest', .*'linear'"),
        (lambda: F.interpolate(wave(1, 1, 4)), ArgumentError, "either size or scale_factor"),
        (lambda: F.interpolate(wave(1, 1, 4), 2, align_corners=True), ArgumentError, "no meaning with mode='nearest'"),
        (lambda: F.interpolate(wave(1, 1, 4), scale_factor=0.1), ShapeError, r"spatial size \(0,\)"),
        (lambda: F.interpolate(wave(4, 4), 2), ShapeError, r"1 to 3 spatial axes.*\(4, 4\)"),
        (lambda: F.grid_sample(wave(1, 1, 4, 4), wave(1, 2, 2, 3)), ShapeError, "do not fit"),
        (lambda: F.grid_sample(wave(1, 1, 4, 4), wave(1, 2, 2, 2), "cubic"), ArgumentError, "got 'cubic'"),
        (lambda: F.affine_grid(wave(1, 3, 2), (1, 1, 4, 4)), ShapeError, "do not fit"),
        (lambda: F.deform_conv2d(wave(1, 1, 4, 4), wave(1, 6, 3, 3), wave(1, 1, 2, 2)), ShapeError, r"\(1, 8 \* g, 3, 3\)"),
        (lambda: F.pad(wave(3), (3, 0), "reflect"), ShapeError, "at most 2 elements"),
        (lambda: F.pad(wave(3), (1, 0, 2)), ArgumentError, "two numbers"),
        (lambda: F.pad(wave(3), (-2, -2)), ShapeError, "crops more"),
        (lambda: F.pad(wave(3), (1, 1), "edge"), ArgumentError, "'replicate'"),
        (lambda: F.fold(wave(1, 4, 5), 3, 2), ShapeError, "4 columns"),
        (lambda: F.pixel_shuffle(wave(1, 3, 2, 2), 2), ShapeError, "multiple of upscale_factor.*= 4"),
        (lambda: F.embedding(fd.tensor([4]), wave(4, 2)), OutOfBoundsError, "no row 4: .* 0 to 3"),
        (lambda: F.embedding(fd.tensor([-1]), wave(4, 2)), OutOfBoundsError, "no row -1"),
        (lambda: F.embedding(wave(4, 2), fd.tensor([1])), DTypeError, "the table comes second"),
        (lambda: F.embedding(fd.tensor([1]), wave(4, 2), max_norm=1.0), ArgumentError, "immutable"),
        (lambda: F.embedding_bag(fd.tensor([1]), wave(4, 2), fd.tensor([1])), ArgumentError, "must begin with 0"),
        (lambda: F.linear(wave(2, 3), wave(4, 2)), ShapeError, "do not fit"),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()
