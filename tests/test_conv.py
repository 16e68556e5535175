"""Convolutions and their transposes: values of torch, the definition, adjoints, rows, what they compile to, errors."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import checksums, wave

import functad as fd
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError

F = fd.nn.functional
pytestmark = pytest.mark.usefixtures("x64")


def by_definition(x, w, stride, padding, dilation, groups):
    """A convolution written as its definition, one output element after the other."""
    x = np.pad(x, [(0, 0), (0, 0), *padding])
    n, (o, c, *kernel) = x.shape[0], w.shape
    size = [(m - d * (k - 1) - 1) // s + 1 for m, k, s, d in zip(x.shape[2:], kernel, stride, dilation, strict=True)]
    out = np.zeros((n, o, *size))
    for place in itertools.product(*map(range, size)):
        key = tuple(
            slice(p * s, p * s + d * (k - 1) + 1, d) for p, s, d, k in zip(place, stride, dilation, kernel, strict=True)
        )
        for channel in range(o):
            first = channel // (o // groups) * c
            window = x[(slice(None), slice(first, first + c), *key)]
            out[(slice(None), channel, *place)] = (window * w[channel]).reshape(n, -1).sum(1)
    return out


# --- values and gradients


@pytest.mark.parametrize(
    ("fn", "shapes", "expected"),
    [
        pytest.param(
            lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 2), (1, 2), 2), [(2, 4, 6, 5), (6, 2, 3, 2), (6,)],
            [-26.7351606512, 9.2811048126, 0.4227691619, -0.5674946032], id="conv2d",
        ),
        pytest.param(
            lambda x, w: F.conv1d(x, w, None, 1, "same", 2), [(2, 3, 9), (4, 3, 3)],
            [-1.5372223924, 10.7531185178, -0.0300058863], id="conv1d, same",
        ),
        pytest.param(
            lambda x, w: F.conv3d(x, w, None, (1, 2, 1), (0, 1, 2)), [(1, 2, 4, 3, 5), (3, 2, 2, 2, 3)],
            [2.2545806957, -2.2064415835, -1.8517759206], id="conv3d",
        ),
        pytest.param(
            lambda x, w, b: F.conv_transpose2d(x, w, b, (3, 2), (1, 0), (2, 1), 2, (1, 2)),
            [(2, 4, 3, 4), (4, 3, 3, 2), (6,)], [-7.1364721697, -1.5246888137, 1.3814867397, 0.3102351276],
            id="conv_transpose2d",
        ),
        pytest.param(
            lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 4), [(2, 4, 8, 8), (4, 1, 3, 3)],
            [-3.7457934033, 4.0261164771, 10.0974054461], id="depthwise",
        ),
    ],
)  # fmt: skip
def test_as_torch_in_float64(fn, shapes, expected, device):
    """The numbers are torch 2.13's."""
    np.testing.assert_allclose(checksums(fn, *[wave(*s, device=device) for s in shapes]), expected, atol=2e-9)


@pytest.mark.parametrize(
    ("x", "w", "stride", "padding", "dilation", "groups"),
    [
        ((2, 2, 7), (3, 2, 3), (2,), ((3, 0),), (2,), 1),
        ((1, 4, 5, 6), (6, 2, 2, 3), (1, 2), ((0, 2), (1, 0)), (2, 1), 2),
        ((2, 3, 4, 4), (3, 1, 3, 2), (1, 1), ((1, 1), (0, 1)), (1, 1), 3),
        ((1, 1, 3, 4, 3), (2, 1, 2, 2, 2), (1, 2, 1), ((0, 1), (1, 1), (0, 0)), (1, 1, 2), 1),
    ],
)
def test_by_its_definition(x, w, stride, padding, dilation, groups, device):
    x, w = wave(*x), wave(*w)
    conv = getattr(F, f"conv{x.ndim - 2}d")
    got = conv(x.to_device(device), w.to_device(device), None, stride, padding, dilation, groups)
    np.testing.assert_allclose(
        got.numpy(), by_definition(x.numpy(), w.numpy(), stride, padding, dilation, groups), atol=1e-12
    )


@pytest.mark.parametrize("output_padding", [0, 1, 2, 5])
def test_transposed_is_the_adjoint(output_padding, device):
    """An output_padding as long as the stride or longer is no special case."""
    w = wave(2, 3, 3, device=device)
    y = wave(1, 2, 4, device=device)
    up = F.conv_transpose1d(y, w, None, 2, 1, output_padding, 1, 2)
    assert up.shape == (1, 3, 9 + output_padding)
    x = wave(*up.shape, device=device)
    down = F.conv1d(x, w, None, 2, ((1, 1 - min(output_padding, 1)),), 2)[..., :4]
    np.testing.assert_allclose((up * x).sum().item(), (y * down).sum().item(), rtol=1e-12)


def test_same_padding_puts_the_larger_half_after(device):
    x = fd.tensor([[[1.0, 2.0, 3.0]]], device=device)
    w = fd.tensor([[[1.0, 10.0]]], device=device)
    assert F.conv1d(x, w, padding="same").tolist() == [[[21.0, 32.0, 3.0]]]
    assert F.conv1d(x, w, padding="valid").tolist() == [[[21.0, 32.0]]]
    assert F.conv1d(x, w, padding=((1, 0),)).tolist() == [[[10.0, 21.0, 32.0]]]


def test_without_a_batch(device):
    x, w, b = wave(2, 5, 4, device=device), wave(3, 2, 2, 2, device=device), wave(3, device=device)
    np.testing.assert_allclose(F.conv2d(x, w, b).numpy(), F.conv2d(x[None], w, b).numpy()[0])
    assert F.conv_transpose2d(x, wave(2, 3, 2, 2, device=device), stride=2).shape == (3, 10, 8)


def test_empty_batch_and_channels(device):
    w = wave(3, 2, 2, device=device)
    assert F.conv1d(fd.zeros((0, 2, 4), device=device), w).shape == (0, 3, 3)
    grad = fd.grad(lambda w: F.conv1d(fd.zeros((0, 2, 4), device=device), w).sum())(w)
    assert grad.shape == w.shape and not grad.numpy().any()
    assert F.conv1d(fd.zeros((1, 0, 4), device=device), fd.zeros((3, 0, 2), device=device)).tolist() == [
        [[0.0] * 3] * 3
    ]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_accumulate_in_float32(dtype, device):
    """Ones summed in bfloat16 stay at 256."""
    x, w = fd.ones((1, 3000, 1), dtype=dtype, device=device), fd.ones((1, 3000, 1), dtype=dtype, device=device)
    out = F.conv1d(x, w)
    assert out.dtype == x.dtype
    assert out.item() == float(fd.tensor(3000.0, dtype=dtype).item())
    g = fd.grad(lambda w: F.conv1d(fd.ones((1, 1, 3000), dtype=dtype, device=device), w).sum())(
        fd.ones((1, 1, 1), dtype=dtype, device=device)
    )
    assert g.item() == float(fd.tensor(3000.0, dtype=dtype).item())


def test_integers_stay_integers(device):
    x, w = fd.tensor([[[1, 2, 3]]], device=device), fd.tensor([[[1, -1]]], device=device)
    out = F.conv1d(x, w)
    assert out.dtype.kind == "i" and out.tolist() == [[[-1, -1]]]


# --- every order, every nesting


@pytest.mark.parametrize(
    ("fn", "kernels"),
    [
        pytest.param(lambda x, w: F.conv1d(x, w, None, 2, ((2, 0),), 1, 2), (4, 2, 3), id="groups"),
        pytest.param(lambda x, w: F.conv1d(x, w, None, 1, 1, 2, 4), (4, 1, 2), id="depthwise"),
        pytest.param(lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 2, 2), (4, 1, 3), id="transposed"),
    ],
)
def test_derivatives_to_second_order(fn, kernels, device):
    args = wave(2, 4, 5, device=device), wave(*kernels, device=device)
    fd.testing.check_grads(lambda x, w: fn(x, w) ** 2, args, order=2)


def test_third_derivative_of_a_cube(device):
    """The three ops are closed under differentiation: the third derivative of conv(x, w)**3 exists and is right."""
    x, w = wave(1, 1, 3, device=device), wave(1, 1, 3, device=device)

    def along(t):
        return (F.conv1d(x * t, w * t) ** 2).sum()

    c = F.conv1d(x, w).item() ** 2  # along(t) = c * t**4
    third = fd.grad(fd.grad(fd.grad(along)))(fd.tensor(2.0, dtype="float64", device=device))
    np.testing.assert_allclose(third.item(), 48 * c, rtol=1e-12)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
@pytest.mark.parametrize("groups", [1, 2])
def test_rows(axes, groups, device):
    xs, ws = wave(3, 2, 4, 5, device=device), wave(3, 4, 4 // groups, 2, device=device)
    conv = lambda x, w: F.conv1d(x, w, None, 2, 1, 1, groups)

    def loss(x, w):
        return (conv(x, w) ** 2).sum()

    got = fd.vmap(fd.grad(loss, argnums=(0, 1)), in_axes=axes)(
        xs if axes[0] == 0 else xs[0], ws if axes[1] == 0 else ws[0]
    )
    for i in range(3):
        want = fd.grad(loss, argnums=(0, 1))(xs[i if axes[0] == 0 else 0], ws[i if axes[1] == 0 else 0])
        for g, h in zip(got, want, strict=True):
            np.testing.assert_allclose(g[i].numpy(), h.numpy(), atol=1e-12)


def test_jit_and_grad_against_jax():
    x, w = wave(2, 4, 6, 6), wave(6, 2, 3, 3)
    ours = fd.jit(fd.grad(lambda x, w: (F.conv2d(x, w, None, 2, 1, 1, 2) ** 2).sum(), argnums=(0, 1)))(x, w)

    def loss(x, w):
        return (jax.lax.conv_general_dilated(x, w, (2, 2), [(1, 1)] * 2, feature_group_count=2) ** 2).sum()

    theirs = jax.grad(loss, argnums=(0, 1))(x.jax(), w.jax())
    for g, h in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(g.numpy(), h, atol=1e-12)


def test_compiles_to_three_convolutions_and_no_loop():
    step = fd.to_jax(fd.value_and_grad(lambda x, w: (F.conv2d(x, w, padding=1) ** 2).sum(), argnums=(0, 1)))
    text = jax.jit(step).lower(jnp.ones((2, 3, 8, 8)), jnp.ones((4, 3, 3, 3))).as_text()
    assert text.count("stablehlo.convolution") == 3
    assert "stablehlo.while" not in text


# --- errors


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: F.conv2d(wave(1, 1, 3, 3), wave(1, 1, 2, 2), dilation=4), ShapeError, r"spatial size \(-1, -1\).*spans \(5, 5\)"),
        (lambda: F.conv1d(wave(1, 3, 5), wave(2, 2, 2)), ShapeError, "3 channels, but weight .* takes 2 . 1 = 2"),
        (lambda: F.conv1d(wave(1, 4, 5), wave(3, 2, 2), groups=2), ShapeError, "groups=2 do not divide the 3 out"),
        (lambda: F.conv2d(wave(4, 5), wave(3, 2, 2, 2)), ShapeError, "4 axes .batch, channels, 2 spatial. or 3"),
        (lambda: F.conv2d(wave(1, 2, 5, 5), wave(3, 2, 2)), ShapeError, "weight takes 4 axes"),
        (lambda: F.conv1d(wave(1, 2, 5), wave(3, 2, 2), wave(2)), ShapeError, "bias has shape .2,., and there are 3"),
        (lambda: F.conv1d(wave(1, 2, 5), wave(3, 2, 2), stride=2, padding="same"), ArgumentError, "stride=1"),
        (lambda: F.conv1d(wave(1, 2, 5), wave(3, 2, 2), padding="full"), ArgumentError, "'full'"),
        (lambda: F.conv1d(wave(1, 2, 5), wave(3, 2, 2), padding=(1, 2)), ArgumentError, "one for each of the 1"),
        (lambda: F.conv1d(wave(1, 2, 5), wave(3, 2, 2), stride=0), ArgumentError, "stride must be at least 1, got 0"),
        (lambda: F.conv1d(wave(1, 2, 5), wave(3, 2, 2), dilation=1.5), ArgumentTypeError, "dilation must be an int"),
        (lambda: F.conv_transpose1d(wave(1, 2, 2), wave(2, 1, 2), padding=2), ShapeError, r"spatial size \(-1,\)"),
        (lambda: F.conv_transpose1d(wave(1, 3, 2), wave(2, 1, 2)), ShapeError, "3 channels, but weight .* takes 2"),
    ],
)  # fmt: skip
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()
