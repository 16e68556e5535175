"""Gradients of NumPy's functions: under every transform, at NaN and infinity, at the points where they have a choice."""

from __future__ import annotations

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp

RNG = np.random.default_rng(3)
X, V, W = RNG.normal(size=(3, 4)), RNG.normal(size=5), RNG.normal(size=7)
POINTS = np.sort(RNG.normal(size=6))

TRACED = {
    "cov": lambda x: fnp.cov(x, x**2),
    "histogram": lambda x: fnp.histogram(x, 3, weights=x)[0],
    "interp": lambda x: fnp.interp(x, [0.0, 1.0, 3.0], [1.0, 4.0, 2.0]),
    "lexsort": lambda x: x[fnp.lexsort([x])],
    "nanmedian": fnp.nanmedian,
    "nanvar": fnp.nanvar,
    "percentile": lambda x: fnp.percentile(x, [10, 50]),
    "piecewise": lambda x: fnp.piecewise(x, [x < 1], [fnp.sin, fnp.exp]),
    "polyfit": lambda x: fnp.polyfit(x, x**3, 1),
    "quantile in q": lambda x: fnp.quantile(x, x[0] / 9),
    "unwrap": lambda x: fnp.unwrap(3 * x),
    "convolve": lambda x: fnp.convolve(x, x[:2], "same"),
    "fill_diagonal": lambda x: fnp.fill_diagonal(fnp.outer(x, x), x[0]),
    "put_along_axis": lambda x: fnp.put_along_axis(x, fnp.argsort(x)[:1], x[1:2], 0),
    "nanquantile": lambda x: fnp.nanquantile(x, 0.3),
    "repeat": lambda x: fnp.repeat(x, fnp.argsort(x), total_repeat_length=4),
    "bincount": lambda x: fnp.bincount(fnp.argsort(x), x, length=3),
}


@pytest.mark.parametrize("name", TRACED)
def test_works_under_jit_vmap_and_grad(name):
    f = TRACED[name]
    loss = lambda x: sum((y**2).sum() for y in (f(x) if isinstance(f(x), tuple) else (f(x),)))
    rows = fd.tensor([[0.5, 2.5, 1.25, 0.9], [2.0, 0.25, 0.75, 1.5]], device=fd.Device.cpu())
    expected = [fd.grad(loss)(row).numpy() for row in rows]
    np.testing.assert_allclose(fd.jit(fd.vmap(fd.grad(loss)))(rows).numpy(), expected, rtol=2e-5, atol=1e-5)


GRADIENTS = {
    "average": (lambda x, w: fnp.average(x, weights=w * w), (V, W[:5])),
    "cov": (fnp.cov, (X,)),
    "corrcoef": (fnp.corrcoef, (X,)),
    "gradient": (lambda f, h: fnp.gradient(f, h, edge_order=2), (V[:5], POINTS[:5])),
    "interp": (lambda x, xp, fp: fnp.interp(x, xp, fp, period=4.0), (V, POINTS, W[:6])),
    "nanstd": (lambda x: fnp.nanstd(fnp.append(x, np.nan)), (V,)),
    "polyfit": (lambda x, y: fnp.polyfit(x, y, 2), (V, W[:5])),
    "polydiv": (fnp.polydiv, (W, V)),
    "quantile": (fnp.quantile, (V, np.array([0.1, 0.63]))),
    "roots": (lambda p: fnp.roots(p).real.sum() + (fnp.roots(p) ** 3).real.sum(), (np.array([1.0, -4.5, 3.0, 0.5]),)),
    "trapezoid": (fnp.trapezoid, (V, POINTS[:5])),
    "vander": (lambda x: fnp.vander(x, 4), (V,)),
    "correlate": (lambda a, v: fnp.correlate(a, v, "full"), (V, W)),
    "insert": (lambda x, v: fnp.insert(x, [1, 1], v), (V, W[:2])),
    "ldexp": (lambda x: fnp.ldexp(x, [1, 2, 3, 4, 5]), (V,)),
    "frexp": (lambda x: fnp.frexp(x)[0] * x, (V,)),
    "geomspace": (lambda a, b: fnp.geomspace(a, b, 4), (np.array(1.5), np.array(7.0))),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    fn, args = GRADIENTS[name]
    fd.testing.check_grads(fn, [fd.tensor(x, dtype="float64", device=fd.Device.numpy()) for x in args])


# --- NaN and infinities in gradients


@pytest.mark.parametrize(
    ("fn", "gradient"),
    [
        (fnp.nanmean, [[0.0, 0.0], [0.5, 0.5]]),
        (fnp.nanvar, [[0.0, 0.0], [-2.0, 2.0]]),
        (fnp.nanstd, [[0.0, 0.0], [-0.5, 0.5]]),
        (fnp.nanmax, [[0.0, 0.0], [0.0, 1.0]]),
        (fnp.nanmedian, [[0.0, 0.0], [0.5, 0.5]]),
        (lambda x, axis: fnp.nanquantile(x, 0.25, axis), [[0.0, 0.0], [0.75, 0.25]]),
    ],
)
def test_a_row_of_nan_has_no_gradient(fn, gradient, device):
    x = fd.tensor([[np.nan, np.nan], [1.0, 5.0]], device=device)
    assert np.isnan(fn(x, axis=1).numpy()).tolist() == [True, False]
    np.testing.assert_allclose(fd.grad(lambda x: fn(x, axis=1).sum())(x).numpy(), gradient, rtol=1e-6)


def test_spread_of_equal_elements_has_gradient_zero(device):
    x = fd.tensor([2.0, np.nan, 2.0], device=device)
    assert fd.grad(fnp.nanstd)(x).tolist() == [0, 0, 0]


def test_quantiles_next_to_infinity(device):
    x = fd.tensor([1.0, 3.0, np.inf], device=device)
    assert fnp.quantile(x, [0.5, 1.0]).tolist() == [3, np.inf]
    assert fnp.median(fd.tensor([np.inf, np.inf], device=device)).item() == np.inf
    assert fd.grad(fnp.median)(x).tolist() == [0, 1, 0]


def test_median_shares_between_the_two_in_the_middle(device):
    assert fd.grad(fnp.median)(fd.tensor([4.0, 1.0, 2.0, 9.0], device=device)).tolist() == [0.5, 0, 0.5, 0]
    assert fd.grad(lambda x: fnp.quantile(x, 0.25))(fd.tensor([7.0], device=device)).tolist() == [1]


def test_interp_at_the_points_and_beyond(device):
    xs = fd.tensor([-1.0, 0.0, 1.0, 1.5, 2.0, 9.0], device=device)
    f = lambda x: fnp.interp(x, [0.0, 1.0, 2.0], [0.0, 10.0, 30.0])
    assert f(xs).tolist() == [0, 0, 10, 20, 30, 30]
    assert fd.grad(lambda x: f(x).sum())(xs).tolist() == [0, 10, 20, 20, 20, 0]
    jump = fd.tensor([0.0, 1.0, 1.0, 2.0], device=device)
    assert np.isfinite(
        fd.grad(lambda xp: fnp.interp([0.5, 1.0, 1.5], xp, [0.0, 1.0, 5.0, 6.0]).sum())(jump).numpy()
    ).all()


def test_unwrap_has_the_gradient_of_what_it_corrects(device):
    x = fd.tensor([0.0, 3.0, 6.5, 10.0], device=device)
    assert fd.grad(lambda x: (fnp.unwrap(x) * fd.tensor([1.0, 2.0, 3.0, 4.0], device=device)).sum())(x).tolist() == [
        1,
        2,
        3,
        4,
    ]


def test_roots_follow_the_implicit_function_theorem():
    """For x^2 - c, the derivatives of the root sqrt(c) at 4: 1/4, -1/32, 3/256."""
    root = lambda c: fnp.max(fnp.roots(fd.stack([1.0, 0.0, -c])).real)
    f = root
    for expected in (2, 1 / 4, -1 / 32, 3 / 256):
        assert f(4.0).item() == pytest.approx(expected, rel=1e-5)
        f = fd.grad(f)
    assert fnp.roots([0.0, 1.0, -2.0, 0.0]).real.tolist() == pytest.approx([2, 0])


def test_gradients_flow_to_the_elements_a_set_keeps(device):
    x = fd.tensor([3.0, 1.0, 3.0], device=device)
    assert fd.grad(lambda x: (fnp.unique(x) * fd.tensor([1.0, 10.0], device=device)).sum())(x).tolist() == [10, 1, 0]


def test_weights_of_a_histogram_have_a_gradient(device):
    x = fd.tensor([0.5, 1.5, 1.7, 9.0], device=device)
    f = lambda w: fnp.histogram(x, [0.0, 1.0, 2.0], weights=w)[0]
    assert f(fd.ones(4, device=device)).tolist() == [1, 2]
    assert fd.grad(lambda w: (f(w) * fd.tensor([1.0, 5.0], device=device)).sum())(
        fd.ones(4, device=device)
    ).tolist() == [1, 5, 5, 0]
