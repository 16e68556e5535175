"""Activation functions: figures of torch, kinks, infinities, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import functad as fd

F = fd.nn.functional


POINTS = [-3.5, -0.6, 0.3, 2.5]
INF = float("inf")

FIGURES = [
    ("celu", {"alpha": 0.5}, [-0.499544059017, -0.349402894044, 0.3, 2.5], [0.000911881965555, 0.301194211912, 1, 1]),
    ("elu", {"alpha": 2.0}, [-1.93960523316, -0.902376727812, 0.3, 2.5], [0.0603947668446, 1.09762327219, 1, 1]),
    ("gelu", {}, [-0.000814201776624, -0.16455187065, 0.185373426657, 2.48447583669],
     [-0.00282176035362, 0.074318356015, 0.732327766827, 1.03761108591]),
    ("gelu", {"approximate": "tanh"}, [-0.000616197655374, -0.164584800769, 0.185370923543, 2.48491573391],
     [-0.00242264376012, 0.0745084666675, 0.732295451639, 1.03795157621]),
    ("hardshrink", {}, [-3.5, -0.6, 0, 2.5], [1, 1, 0, 1]),
    ("hardswish", {}, [0, -0.24, 0.165, 2.29166666667], [0, 0.3, 0.6, 1.33333333333]),
    ("hardsigmoid", {}, [0, 0.4, 0.55, 0.916666666667], [0, 1 / 6, 1 / 6, 1 / 6]),
    ("hardtanh", {"min_val": -1.0, "max_val": 0.5}, [-1, -0.6, 0.3, 0.5], [0, 1, 1, 0]),
    ("leaky_relu", {"negative_slope": 0.2}, [-0.7, -0.12, 0.3, 2.5], [0.2, 0.2, 1, 1]),
    ("logsigmoid", {}, [-3.52975041827, -1.03748795049, -0.554355244469, -0.0788897342925],
     [0.970687769249, 0.645656306226, 0.425557483188, 0.0758581800212]),
    ("mish", {}, [-0.104095754486, -0.246936028306, 0.208001372348, 2.47139230456],
     [-0.0727604134433, 0.234965427392, 0.782827299551, 1.04112953013]),
    ("relu6", {}, [0, 0, 0.3, 2.5], [0, 0, 1, 1]),
    ("rrelu", {}, [-0.802083333333, -0.1375, 0.3, 2.5], [0.229166666667, 0.229166666667, 1, 1]),
    ("selu", {}, [-1.70500934096, -0.793233965181, 0.315210296207, 2.62675246839],
     [0.0530899998901, 0.964865375666, 1.05070098736, 1.05070098736]),
    ("sigmoid", {}, [0.0293122307514, 0.354343693774, 0.574442516812, 0.924141819979],
     [0.0284530238797, 0.228784240457, 0.244458311691, 0.0701037165451]),
    ("silu", {}, [-0.10259280763, -0.212606216265, 0.172332755043, 2.31035454995],
     [-0.0702733528277, 0.2170731495, 0.647780010319, 1.09940111134]),
    ("softplus", {"beta": 2.0, "threshold": 3.0}, [0.000455733226887, 0.131641233669, 0.518743975243, 2.5],
     [0.000911051194401, 0.231475216501, 0.645656306226, 1]),
    ("softshrink", {}, [-3, -0.1, 0, 2], [1, 1, 0, 1]),
    ("softsign", {}, [-0.777777777778, -0.375, 0.230769230769, 0.714285714286],
     [0.0493827160494, 0.390625, 0.591715976331, 0.0816326530612]),
    ("tanhshrink", {}, [-2.50182210239, -0.062950433002, 0.00868738754841, 1.51338570185],
     [0.99635911528, 0.288422237413, 0.0848630381734, 0.973407773317]),
    ("threshold", {"threshold": 0.0, "value": 7.0}, [7, 7, 0.3, 2.5], [0, 0, 1, 1]),
]  # fmt: skip
"""Name, arguments, value and derivative at POINTS, printed by torch 2.13 in float64."""

EVERY = [
    "celu", "elu", "gelu", "hardshrink", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "logsigmoid", "mish",
    "relu", "relu6", "relu_squared", "selu", "sigmoid", "silu", "softplus", "softshrink", "softsign", "squareplus",
    "tanh", "tanhshrink",
]  # fmt: skip


@pytest.mark.parametrize(("name", "arguments", "values", "slopes"), FIGURES)
def test_as_torch(name, arguments, values, slopes, device, x64):
    def fn(x):
        return getattr(F, name)(x, **arguments)

    x = fd.tensor(POINTS, dtype="float64", device=device)
    np.testing.assert_allclose(fn(x).numpy(), values, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(fd.grad(lambda x: fn(x).sum())(x).numpy(), slopes, rtol=1e-10, atol=1e-12)
    if device == fd.Device.numpy():  # the ops themselves are compared with differences on both
        np.testing.assert_array_equal(fd.vmap(fn)(x).numpy(), fn(x).numpy())
        fd.testing.check_grads(fn, (x,))


@pytest.mark.parametrize("name", EVERY)
def test_far_out_everything_is_a_number(name, device):
    """x * sigmoid'(x) and the like are inf * 0 at infinity."""
    fn = getattr(F, name)
    x = fd.tensor([-INF, -1e30, -1e4, 0.0, 1e4, 1e30, INF], device=device)
    slope = fd.grad(lambda x: fn(x).sum())

    def three(x):
        return fn(x), slope(x), fd.grad(lambda x: slope(x).sum())(x)

    found = [y.numpy() for y in (three(x) if device == fd.Device.numpy() else fd.jit(three)(x))]
    assert not np.isnan(found).any()
    assert np.isfinite(found[1][1:-1]).all() or name == "relu_squared"


@pytest.mark.parametrize(
    ("name", "point", "slope"),
    [
        ("relu", 0.0, 0.0), ("relu6", 0.0, 0.0), ("relu6", 6.0, 0.0), ("hardtanh", -1.0, 0.0), ("hardtanh", 1.0, 0.0),
        ("leaky_relu", 0.0, 0.01), ("hardsigmoid", -3.0, 0.0), ("hardsigmoid", 3.0, 0.0), ("hardswish", -3.0, 0.0),
        ("hardswish", 3.0, 1.0), ("hardshrink", 0.5, 0.0), ("softshrink", -0.5, 0.0), ("softplus", 0.0, 0.5),
        ("softsign", 0.0, 1.0), ("selu", 0.0, 1.7580993408473766), ("relu_squared", 0.0, 0.0), ("silu", 0.0, 0.5),
    ],
)  # fmt: skip
def test_kinks(name, point, slope):
    assert fd.grad(getattr(F, name))(fd.tensor(point, device=fd.Device.numpy())).item() == pytest.approx(
        slope, rel=1e-6
    )


def test_squareplus_does_not_cancel():
    """(x + sqrt(x * x + 4)) / 2 in float32 is 0 at -10000."""
    assert F.squareplus(fd.tensor(-1e4)).item() == pytest.approx(1e-4, rel=1e-6)
    assert F.squareplus(fd.tensor([-1.0, 2.0]), 0.0).tolist() == [0.0, 2.0]


def test_prelu_has_a_slope_for_each_channel(device):
    x = fd.tensor([[[-1.0, 2.0]], [[-3.0, -1.0]]], device=device).broadcast_to((2, 3, 2))
    weight = fd.tensor([0.5, 0.25, 1.0], device=device)
    assert F.prelu(x, weight)[1].tolist() == [[-1.5, -0.5], [-0.75, -0.25], [-3.0, -1.0]]
    assert fd.grad(lambda w: F.prelu(x, w).sum())(weight).tolist() == [-5.0, -5.0, -5.0]
    assert fd.grad(lambda w: F.prelu(x, w).sum())(fd.tensor([0.5], device=device)).tolist() == [-15.0]
    with pytest.raises(fd.errors.ShapeError, match="3 channels"):
        F.prelu(x, fd.ones(2, device=device))


def test_gates():
    x = fd.tensor([[1.0, -2.0, 0.0, 3.0]])
    assert F.glu(x).tolist() == [[0.5, pytest.approx(-2 / (1 + np.exp(-3)))]]
    assert F.swiglu(x).tolist() == [[0.0, pytest.approx(-6 / (1 + np.exp(2)))]]
    assert F.reglu(x).tolist() == [[0.0, 0.0]]
    assert F.geglu(x).tolist() == [[0.0, pytest.approx(-0.1365, abs=1e-4)]]
    assert F.glu(x.T, axis=0).shape == (2, 1)
    with pytest.raises(fd.errors.ShapeError, match="odd length 1"):
        F.glu(x, axis=0)


def test_softmax_takes_a_dtype_and_a_mask():
    x = fd.tensor([1, 2])
    assert F.softmax(x, dtype="bfloat16").dtype == fd.bfloat16
    assert F.softmax(x, where=fd.tensor([False, True])).tolist() == [0.0, 1.0]
    np.testing.assert_allclose(F.softmin(x).numpy(), F.softmax(-x).numpy())
    with pytest.raises(TypeError):
        F.softmax(x, dim=0)


def test_random_slopes_are_those_of_forward(device):
    x = fd.tensor([-1.0, -2.0, 0.0, 3.0], device=device)
    key = fd.random.key(0)
    out = F.rrelu(x, 0.2, 0.4, training=True, key=key)
    slope = fd.grad(lambda x: F.rrelu(x, 0.2, 0.4, training=True, key=key).sum())(x)
    np.testing.assert_allclose((slope * x).numpy(), out.numpy(), rtol=1e-6)
    assert (slope.numpy()[:3] >= 0.2).all() and (slope.numpy()[:3] < 0.4).all() and slope[3].item() == 1.0
    assert not np.array_equal(F.rrelu(x, training=True).numpy(), F.rrelu(x, training=True).numpy())


def test_gumbel_softmax_is_hard_with_a_soft_derivative():
    numpy = fd.Device.numpy()
    logits, key = fd.tensor([[0.0, 1.0, 2.0], [3.0, 1.0, 0.0]], device=numpy), fd.random.key(1, device=numpy)
    weight = fd.tensor([1.0, 2.0, 4.0], device=numpy)

    def loss(x, hard):
        return (F.gumbel_softmax(x, 0.5, hard, key=key) * weight).sum()

    assert sorted(F.gumbel_softmax(logits, hard=True, key=key).numpy().ravel()) == [0, 0, 0, 0, 1, 1]
    np.testing.assert_array_equal(fd.grad(loss)(logits, True).numpy(), fd.grad(loss)(logits, False).numpy())
    many = F.gumbel_softmax(fd.tensor(np.log([0.2, 0.8]), device=numpy).broadcast_to((4000, 2)), hard=True, key=key)
    assert many.mean(0)[1].item() == pytest.approx(0.8, abs=0.03)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: F.gelu(x, "exact"), "approximate"),
        (lambda x: F.hardtanh(x, 1.0, 0.0), "min_val=1.0"),
        (lambda x: F.softshrink(x, -1.0), "negative"),
        (lambda x: F.rrelu(x, 0.5, 0.2), "lower=0.5"),
        (lambda x: F.celu(x, 0.0), "alpha"),
        (lambda x: F.squareplus(x, -1.0), "b must not"),
        (lambda x: F.gumbel_softmax(x, 0.0), "tau"),
    ],
)
def test_refusals(call, text):
    with pytest.raises(fd.errors.ArgumentError, match=text):
        call(fd.ones(2))


def test_arguments_are_numbers():
    with pytest.raises(fd.errors.ArgumentTypeError, match="alpha must be a number"):
        F.elu(fd.ones(2), "1")
