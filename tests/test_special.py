"""Special functions: values against SciPy, special points, the derivatives that samples do not reach."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special as sp

import functad as fd
from functad.errors import ArgumentError, DTypeError, NotDifferentiableError

S = fd.special
INF, NAN = math.inf, math.nan

VALUES = [
    ("bessel_j0", sp.j0, [(-60, 60)], 1e-14),
    ("bessel_j1", sp.j1, [(-60, 60)], 1e-14),
    ("beta", sp.beta, [(0.1, 60), (0.1, 60)], 1e-12),
    ("betainc", sp.betainc, [(0.2, 20), (0.2, 20), (0, 1)], 1e-12),
    ("betaln", sp.betaln, [(0.1, 60), (0.1, 60)], 1e-13),
    ("binom", sp.binom, [(0.1, 20), (0, 20)], 1e-11),
    ("digamma", sp.digamma, [(-20, 40)], 1e-11),
    ("ellipe", sp.ellipe, [(-30, 1.1)], 3e-15),
    ("ellipk", sp.ellipk, [(-30, 1.1)], 3e-15),
    ("ellipkm1", sp.ellipkm1, [(0, 1e-6)], 3e-15),
    ("entr", sp.entr, [(-1, 3)], 1e-14),
    ("erfcinv", sp.erfcinv, [(0.001, 2)], 1e-14),
    ("erfcx", sp.erfcx, [(-4, 100)], 1e-14),
    ("erfinv", sp.erfinv, [(-1, 1)], 1e-13),
    ("exp1", sp.exp1, [(0.001, 40)], 1e-14),
    ("expi", sp.expi, [(-20, 40)], 1e-13),
    ("expit", sp.expit, [(-40, 40)], 1e-14),
    ("exprel", sp.exprel, [(-40, 40)], 1e-14),
    ("factorial", sp.factorial, [(0, 25)], 1e-14),
    ("gamma", sp.gamma, [(-10, 30)], 3e-14),
    ("gammainc", sp.gammainc, [(0.1, 20), (0, 30)], 1e-13),
    ("gammaincc", sp.gammaincc, [(0.1, 20), (0, 30)], 1e-13),
    ("gammaln", sp.gammaln, [(-20, 40)], 1e-13),
    ("i0", sp.i0, [(-60, 60)], 1e-14),
    ("i0e", sp.i0e, [(-60, 60)], 1e-14),
    ("i1", sp.i1, [(-60, 60)], 1e-14),
    ("i1e", sp.i1e, [(-60, 60)], 1e-14),
    ("k0", sp.k0, [(1e-6, 60)], 1e-14),
    ("k0e", sp.k0e, [(1e-6, 60)], 1e-14),
    ("k1", sp.k1, [(1e-6, 60)], 1e-14),
    ("k1e", sp.k1e, [(1e-6, 60)], 1e-14),
    ("kl_div", sp.kl_div, [(-1, 3), (-1, 3)], 1e-13),
    ("log_ndtr", sp.log_ndtr, [(-100, 8)], 1e-13),
    ("logit", sp.logit, [(0, 1)], 1e-13),
    ("ndtr", sp.ndtr, [(-30, 8)], 1e-12),
    ("ndtri", sp.ndtri, [(1e-6, 1)], 1e-14),
    ("log1mexp", lambda x: np.log1p(-np.exp(-x)), [(0.5, 800)], 1e-14),
    ("poch", sp.poch, [(0.1, 10), (0.1, 5)], 1e-13),
    ("rel_entr", sp.rel_entr, [(-1, 3), (-1, 3)], 1e-13),
    ("spence", sp.spence, [(0, 20)], 1e-14),
    ("voigt_profile", sp.voigt_profile, [(-5, 5), (0, 3), (0, 3)], 1e-12),
    ("xlog1py", sp.xlog1py, [(-2, 2), (-1, 3)], 1e-13),
    ("xlogy", sp.xlogy, [(-2, 2), (0, 3)], 1e-13),
    ("zeta", sp.zeta, [(1.1, 9), (0.1, 30)], 1e-14),
]


@pytest.mark.parametrize(("name", "reference", "ranges", "bound"), VALUES, ids=[v[0] for v in VALUES])
def test_values(name, reference, ranges, bound, x64):
    rng = np.random.default_rng(0)
    xs = [rng.uniform(low, high, 500) for low, high in ranges]
    got = getattr(S, name)(*[fd.tensor(x) for x in xs]).numpy()
    with np.errstate(invalid="ignore"):
        want = reference(*xs)
    finite = np.isfinite(want)
    assert np.array_equal(got[~finite], want[~finite], equal_nan=True)
    error = np.abs(got[finite] - want[finite]) / np.maximum(np.abs(want[finite]), 0.1 if name != "ndtr" else 1e-300)
    assert error.max() < bound


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_polygamma_of_negative_arguments(n, device, x64):
    """XLA's zeta sums nine terms and an asymptotic series, which is wrong below about -4."""
    x = np.random.default_rng(n).uniform(-40, 40, 300)
    got = S.polygamma(n, fd.tensor(x, device=device)).numpy()
    assert np.allclose(got, sp.polygamma(n, x), rtol=1e-11)
    several = S.polygamma(fd.tensor([0, n], device=device), fd.tensor(x[:, None], device=device)).numpy()
    assert np.allclose(several, np.stack([sp.digamma(x), sp.polygamma(n, x)], 1), rtol=1e-11)


def test_zeta_of_negative_arguments(device, x64):
    s, q = np.meshgrid([2, 3, 4, 7], np.random.default_rng(0).uniform(-30, 0, 100))
    s = fd.tensor(s.astype(float), device=device)
    assert np.allclose(S.zeta(s, fd.tensor(q, device=device)).numpy(), sp.zeta(s.numpy(), q), rtol=1e-9)


POINTS = [
    (S.xlogy, (0.0, 0.0), 0.0, (0.0, 0.0)),
    (S.xlogy, (0.0, 2.0), 0.0, (math.log(2), 0.0)),
    (S.xlog1py, (0.0, -1.0), 0.0, (0.0, 0.0)),
    (S.entr, (0.0,), 0.0, (INF,)),
    (S.entr, (-1.0,), -INF, (NAN,)),
    (S.rel_entr, (0.0, 0.0), 0.0, (0.0, 0.0)),
    (S.rel_entr, (1.0, 0.0), INF, None),
    (S.rel_entr, (2.0, 2.0), 0.0, (1.0, -1.0)),
    (S.kl_div, (0.0, 0.0), 0.0, (0.0, 0.0)),
    (S.kl_div, (0.0, 2.0), 2.0, (-INF, 1.0)),
    (S.kl_div, (3.0, 3.0), 0.0, (0.0, 0.0)),
    (S.digamma, (0.0,), NAN, None),
    (S.gammaln, (-INF,), INF, None),
    (S.expi, (INF,), INF, None),
    (S.i0e, (1e20,), 1 / math.sqrt(2e20 * math.pi), (0.0,)),
    (S.i1e, (-1e20,), -1 / math.sqrt(2e20 * math.pi), None),
    (S.k0e, (1e20,), math.sqrt(math.pi / 2e20), None),
    (S.k1, (1e20,), 0.0, (0.0,)),
    (S.digamma, (-3.0,), NAN, None),
    (S.zeta, (3.0, -2.0), INF, None),
    (S.zeta, (2.5, -2.5), NAN, None),
    (S.erfinv, (1.0,), INF, (INF,)),
    (S.erfinv, (-1.0,), -INF, (INF,)),
    (S.erfinv, (0.0,), 0.0, (math.sqrt(math.pi) / 2,)),
    (S.erfcx, (INF,), 0.0, None),
    (S.log_ndtr, (-1e6,), -500000000014.7344, (1e6 + 1e-6,)),
    (S.log_ndtr, (50.0,), 0.0, (0.0,)),
    (S.ndtri, (0.5,), 0.0, (math.sqrt(2 * math.pi),)),
    (S.logit, (0.5,), 0.0, (4.0,)),
    (S.logit, (1.0,), INF, None),
    (S.gammainc, (1.0, 0.0), 0.0, None),
    (S.gammasgn, (-0.5,), -1.0, (0.0,)),
    (S.bessel_j0, (0.0,), 1.0, (0.0,)),
    (S.spherical_bessel_j0, (math.inf,), 0.0, (0.0,)),
    (S.bessel_j1, (0.0,), 0.0, (0.5,)),
    (S.i0, (0.0,), 1.0, (0.0,)),
    (S.i1, (0.0,), 0.0, (0.5,)),
    (S.i1e, (0.0,), 0.0, (0.5,)),
    (S.i0e, (0.0,), 1.0, (0.0,)),
    (S.k0, (0.0,), INF, None),
    (S.exprel, (0.0,), 1.0, (0.5,)),
    (S.sinc, (0.0,), 1.0, (0.0,)),
    (S.spence, (1.0,), 0.0, (-1.0,)),
    (S.spence, (0.0,), math.pi**2 / 6, (-INF,)),
    (S.exp1, (0.0,), INF, (-INF,)),
    (lambda x: S.expn(3, x), (0.0,), 0.5, (-1.0,)),
    (S.factorial, (-1.0,), 0.0, (0.0,)),
    (S.factorial, (0.0,), 1.0, (-float(np.euler_gamma),)),
    (lambda n: S.comb(n, 7), (5.0,), 0.0, (0.0,)),
    (lambda n: S.comb(n, 2, repetition=True), (5.0,), 15.0, (5.5,)),
    (lambda a: S.multigammaln(a, 1), (3.0,), math.log(2), None),
]


def test_special_points(device, x64):
    def all_points(points):
        return [
            (fn(*xs), fd.grad(fn, argnums=tuple(range(len(xs))))(*xs) if slopes is not None else ())
            for (fn, _, _, slopes), xs in zip(POINTS, points, strict=True)
        ]

    points = [[fd.tensor(a, device=device) for a in at] for _, at, _, _ in POINTS]
    found = (all_points if device.name == "numpy" else fd.jit(all_points))(points)  # one compilation, not a hundred
    for (_, at, value, slopes), (got, grads) in zip(POINTS, found, strict=True):
        assert got.item() == pytest.approx(value, rel=1e-13, nan_ok=True), at
        assert [g.item() for g in grads] == pytest.approx(slopes or (), rel=1e-12, abs=1e-14, nan_ok=True), at


@pytest.mark.parametrize(
    ("fn", "at", "orders"),
    [
        (S.spence, 1.0, [-1.0, 0.5, -2 / 3]),
        (S.exprel, 0.0, [1 / 2, 1 / 3, 1 / 4]),
        (S.bessel_j0, 0.0, [0.0, -0.5, 0.0]),
        (S.bessel_j1, 0.0, [0.5, 0.0, -0.375]),
        (S.i1, 0.0, [0.5, 0.0, 0.375]),
        (S.erfcx, 0.0, [-2 / math.sqrt(math.pi), 2.0, -8 / math.sqrt(math.pi)]),
        (S.erfcx, 1e4, [-5.641895666936604e-09, 1.1283791249485e-12, -3.385137341e-16]),
        (S.digamma, -5.3, [sp.polygamma(1, -5.3), sp.polygamma(2, -5.3), sp.polygamma(3, -5.3)]),
        (S.log_ndtr, 0.0, [math.sqrt(2 / math.pi), -2 / math.pi, math.sqrt(2 / math.pi) * (4 / math.pi - 1)]),
    ],
)
def test_higher_derivatives(fn, at, orders, device, x64):
    for order in orders:
        fn = fd.grad(fn)
        assert fn(fd.tensor(at, device=device)).item() == pytest.approx(order, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize(
    ("fn", "xs"),
    [
        (S.gammainc, (2.5, 1.7)),
        (S.gammaincc, (0.6, 3.1)),
        (lambda x: S.betainc(2.5, 0.7, x), (0.3,)),
        (lambda q: S.zeta(3.5, q), (2.3,)),
        (lambda q: S.zeta(3.0, q), (-2.3,)),
        (lambda x: S.polygamma(2, x), (-6.4,)),
        (S.beta, (2.5, 1.7)),
        (S.beta, (-2.5, 1.7)),
        (S.poch, (2.5, 1.7)),
        (S.binom, (5.5, 1.7)),
        (lambda a: S.multigammaln(a, 3), (2.5,)),
        (S.log_ndtr, (-7.0,)),
        (S.erfcinv, (0.02,)),
        (lambda x: S.bessel_jn(3, x), (29.0,)),
        (S.k1, (0.3,)),
        (S.logit, (0.2,)),
    ],
)
def test_derivatives_by_differences(fn, xs, x64):
    order = 1 if fn in (S.gammainc, S.gammaincc) else 2
    fd.testing.check_grads(fn, tuple([fd.tensor(x) for x in xs]), order=order)


@pytest.mark.parametrize(("fn", "sign"), [(S.gammainc, 1), (S.gammaincc, -1)])
def test_gammainc_in_both_arguments(fn, sign, device, x64):
    """The mixed second derivative is the density times log(x) - digamma(a)."""
    a, x = 2.5, 1.7
    density = sign * x ** (a - 1) * math.exp(-x) / math.gamma(a)
    at = fd.tensor(a, device=device), fd.tensor(x, device=device)
    assert fd.grad(fn, argnums=1)(*at).item() == pytest.approx(density)
    for first, second in ((0, 1), (1, 0)):
        mixed = fd.grad(fd.grad(fn, argnums=first), argnums=second)(*at).item()
        assert mixed == pytest.approx(density * (math.log(x) - sp.digamma(a)))


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        pytest.param(lambda: fd.grad(lambda x: S.zeta(x, 2.0))(3.0), NotDifferentiableError, "in x", id="zeta"),
        pytest.param(lambda: fd.grad(S.betainc)(3.0, 2.0, 0.5), NotDifferentiableError, "in a", id="betainc"),
        pytest.param(lambda: fd.hessian(S.gammainc)(3.0, 2.0), NotDifferentiableError, "second", id="gammainc"),
        pytest.param(lambda: S.polygamma(1.5, 2.0), DTypeError, "counts derivatives", id="polygamma"),
        pytest.param(lambda: S.polygamma(-1, 2.0), ArgumentError, "at least 0", id="negative"),
        pytest.param(lambda: S.expn(-1, 2.0), ArgumentError, "at least 0", id="expn"),
        pytest.param(lambda: S.multigammaln(2.0, 0), ArgumentError, "dimension", id="multigammaln"),
        pytest.param(lambda: S.factorial(5, exact=True), ArgumentError, "math.factorial", id="exact"),
        pytest.param(lambda: S.logsumexp([1.0], 0, True), ArgumentError, "keepdims=True", id="logsumexp"),
    ],
)
def test_errors(call, error, names):
    with pytest.raises(error) as raised:
        call()
    assert names in str(raised.value)


def test_logsumexp_with_factors(device, x64):
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 4)) * 300, rng.normal(size=(3, 4))
    b[0, 0] = 0
    a[0, 0] = INF
    ours = [fd.tensor(v, device=device) for v in (a, b)]
    got, sign = S.logsumexp(ours[0], 1, b=ours[1], return_sign=True)
    want, want_sign = sp.logsumexp(a, 1, b=b, return_sign=True)
    assert np.allclose(got.numpy(), want) and np.array_equal(sign.numpy(), want_sign)
    assert S.logsumexp(ours[0], 0, where=ours[0] < 0, keepdims=True).shape == (1, 4)
    grads = fd.grad(lambda a, b: S.logsumexp(a, b=b), argnums=(0, 1))(fd.tensor([1.0, 2.0]), fd.tensor([1.0, 3.0]))
    weights = np.exp([1.0, 2.0]) / (np.exp([1.0, 2.0]) @ [1.0, 3.0])
    assert np.allclose(grads[1].numpy(), weights) and np.allclose(grads[0].numpy(), weights * [1, 3])


def test_half_types_compute_in_float32(device):
    x = fd.tensor([0.3, 2.0, 7.0], dtype="float16", device=device)
    for fn in (S.gammaln, S.gamma, S.erfcx, S.exprel):
        out = fn(x)
        assert out.dtype == fd.float16
        assert np.allclose(out.numpy(), fn(x.astype("float32")).numpy().astype(np.float16), rtol=1e-3)


def test_methods():
    x = fd.tensor([0.3, 0.6])
    for name in ("lgamma", "digamma", "erfinv", "logit", "sinc"):
        assert getattr(x, name)().tolist() == getattr(S, name)(x).tolist()
    assert x.polygamma(1).tolist() == S.polygamma(1, x).tolist()
    assert x.xlogy(2.0).tolist() == S.xlogy(x, 2.0).tolist()


# --- orthogonal polynomials, and what is made of others

POLYNOMIALS = [  # at x = 0.3, by their coefficients
    ("chebyshev_polynomial_t", 0.3 * (4 * 0.09 - 3)),
    ("chebyshev_polynomial_u", 8 * 0.027 - 4 * 0.3),
    ("chebyshev_polynomial_v", 8 * 0.027 - 4 * 0.09 - 4 * 0.3 + 1),
    ("chebyshev_polynomial_w", 8 * 0.027 + 4 * 0.09 - 4 * 0.3 - 1),
    ("hermite_polynomial_h", 8 * 0.027 - 12 * 0.3),
    ("hermite_polynomial_he", 0.027 - 3 * 0.3),
    ("laguerre_polynomial_l", (-0.027 + 9 * 0.09 - 18 * 0.3 + 6) / 6),
    ("legendre_polynomial_p", (5 * 0.027 - 3 * 0.3) / 2),
]


@pytest.mark.parametrize(("name", "value"), POLYNOMIALS)
def test_polynomials_of_degree_three(name, value, device):
    fn = getattr(fd.special, name)
    assert fn(fd.tensor(0.3, device=device), 3).item() == pytest.approx(value, rel=1e-5)
    assert fn(fd.tensor([0.3], device=device), 0).tolist() == [1.0]
    with pytest.raises(ValueError, match="the degree n must be an int of at least 0, got -1"):
        fn(0.3, -1)
    if name.startswith("chebyshev"):
        assert getattr(fd.special, f"shifted_{name}")(fd.tensor(0.65, device=device), 3).item() == pytest.approx(
            value, rel=1e-5
        )


def test_polynomials_are_smooth_at_the_ends():
    """Where the formula with arccos has no derivative: T_n'(1) = n^2."""
    x = fd.tensor(1.0)
    assert fd.grad(fd.special.chebyshev_polynomial_t)(x, 5).item() == 25.0
    assert fd.grad(fd.grad(fd.special.chebyshev_polynomial_t))(x, 5).item() == 200.0  # n^2 (n^2 - 1) / 3


@pytest.mark.parametrize("lmbda", [-1.0, 0.0, 0.5, 1.0, 2.0])
def test_boxcox(lmbda, device):
    x = fd.tensor([0.1, 1.0, 4.0], device=device)
    y = fd.special.boxcox(x, lmbda)
    np.testing.assert_allclose(y.numpy(), sp.boxcox(x.numpy(), np.float32(lmbda)), rtol=2e-6)
    np.testing.assert_allclose(fd.special.inv_boxcox(y, lmbda).numpy(), x.numpy(), rtol=2e-5)
    np.testing.assert_allclose(fd.special.boxcox1p(x - 1, lmbda).numpy(), y.numpy(), rtol=1e-5, atol=1e-5)
    slope = fd.grad(lambda x: fd.special.boxcox(x, lmbda).sum())(x)
    np.testing.assert_allclose(slope.numpy(), x.numpy() ** (lmbda - 1), rtol=1e-5)
    end = fd.tensor(0.0, device=device)
    assert fd.special.boxcox(end, lmbda).item() == (-1 / lmbda if lmbda > 0 else -np.inf)
    if lmbda >= 1:
        assert fd.grad(fd.special.boxcox)(end, lmbda).item() == (1.0 if lmbda == 1 else 0.0)


@pytest.mark.parametrize("k", [0, -1])
def test_lambertw_solves_its_equation(k, device, x64):
    """Near -1/e too, where SciPy's is off by 1e-4."""
    x = -np.exp(-1) + np.geomspace(1e-12, 0.36, 50)
    w = fd.special.lambertw(fd.tensor(x, "float64", device), k).numpy()
    np.testing.assert_allclose(w * np.exp(w), x, atol=1e-15)
    assert (w >= -1).all() if k == 0 else (w <= -1).all()
    ends = fd.special.lambertw(fd.tensor([-1.0, -np.exp(-1), 0.0], "float64", device), k).tolist()
    np.testing.assert_array_equal(ends, [np.nan, -1.0, 0.0 if k == 0 else -np.inf])


def test_bessel_of_the_second_kind(device, x64):
    x = np.geomspace(1e-6, 1e3, 60)
    for n in (0, 1, 3):
        found = fd.special.bessel_yn(n, fd.tensor(x, "float64", device)).numpy()
        want = sp.yn(n, x)
        assert np.max(np.abs(found - want) / (np.abs(want) + 0.01)) < 1e-11
    ends = fd.special.bessel_y0(fd.tensor([0.0, -1.0, np.inf], "float64", device)).tolist()
    np.testing.assert_array_equal(ends, [-np.inf, np.nan, 0.0])


@pytest.mark.parametrize("n", [12, 13, 20, 34])
def test_high_orders_do_not_overflow_on_the_way(device, n):
    """The factorial of 13 fits no int32: on XLA it was an OverflowError of JAX's."""
    x = fd.tensor([0.75, 2.0, 3.5], device=device)
    wide = x.numpy().astype(np.float64)
    np.testing.assert_allclose(S.bessel_jn(n, x).numpy(), sp.jv(n, wide), rtol=1e-5, atol=1e-38)
    np.testing.assert_allclose(S.polygamma(n, x[1:]).numpy(), sp.polygamma(n, wide[1:]), rtol=1e-5)


def test_elliptic_integrals_and_their_derivatives(device, x64):
    """At m = 0 the formulas divide 0 by 0; the power series gives pi / 2 times 1/4, 9/64 ..., -1/4, -3/64 ..."""
    for fn, series in ((S.ellipk, (1, 1 / 4, 9 / 32, 75 / 128)), (S.ellipe, (1, -1 / 4, -3 / 32, -15 / 128))):
        for at, bound in ((0.0, 1e-14), (1e-9, 1e-8)):
            derivative = fn
            for value in series:
                got = derivative(fd.tensor(at, device=device)).item()
                assert abs(got / (math.pi / 2 * value) - 1) < bound
                derivative = fd.grad(derivative)
    for m in (-7.0, -0.5001, -0.4999, 0.4999, 0.5001, 0.97):
        k, e = (fd.tensor(m, device=device) for _ in range(2))
        k, k1, k2 = S.ellipk(k), fd.grad(S.ellipk)(k), fd.grad(fd.grad(S.ellipk))(k)
        e, e1, e2 = S.ellipe(e), fd.grad(S.ellipe)(e), fd.grad(fd.grad(S.ellipe))(e)
        assert abs(m * (1 - m) * k2 + (1 - 2 * m) * k1 - k / 4).item() < 1e-13 * abs(k2).item() + 1e-14
        assert abs(m * (1 - m) * e2 + (1 - m) * e1 + e / 4).item() < 1e-13 * abs(e2).item() + 1e-14
    points = fd.tensor([1.0, -INF, 2.0, NAN], device=device)
    assert S.ellipk(points).tolist()[:2] == [INF, 0.0] and S.ellipe(points).tolist()[:2] == [1.0, INF]
    assert np.isnan(S.ellipk(points).numpy()[2:]).all() and np.isnan(S.ellipe(points).numpy()[2:]).all()
    assert fd.grad(S.ellipk)(points[0]).item() == INF and fd.grad(S.ellipe)(points[0]).item() == -INF


def test_faddeeva_and_voigt(device, x64):
    z = np.array([0.5 - 0.3j, 3.0 + 0.1j, -2.0 + 2.0j])
    np.testing.assert_allclose(S.wofz(fd.tensor(z, device=device)).numpy(), sp.wofz(z), rtol=1e-12)
    w = fd.grad(S.wofz, holomorphic=True)(fd.tensor(0.5 - 0.3j, device=device)).item()
    step = 1e-5
    assert abs(w - (sp.wofz(0.5 - 0.3j + step) - sp.wofz(0.5 - 0.3j - step)) / (2 * step)) < 1e-9
    x = fd.tensor([0.0, 1.0, 0.0, 1.0], device=device)
    sigma, gamma = fd.tensor([0.0, 0.0, 1.0, 0.0], device=device), fd.tensor([0.0, 1.0, 0.0, 0.0], device=device)
    np.testing.assert_allclose(
        S.voigt_profile(x, sigma, gamma).numpy(), [INF, 1 / (2 * math.pi), 1 / math.sqrt(2 * math.pi), 0.0], rtol=1e-13
    )
    grads = fd.grad(lambda *args: S.voigt_profile(*args)[1:].sum(), argnums=(0, 1, 2))(x, sigma, gamma)
    assert all(np.isfinite(g.numpy()).all() for g in grads)


def test_logmeanexp(device, x64):
    x, mask = fd.tensor([[0.0, 1000.0], [3.0, 3.0]], device=device), [[True, False], [True, True]]
    assert S.logmeanexp(x, 1, keepdims=True).tolist() == [[1000 - math.log(2)], [3.0]]
    assert S.logmeanexp(x, 1, where=mask).tolist() == [0.0, 3.0]


def test_polygamma_half_way_between_its_poles(device):
    """The terms on both sides of 0 cancel there for even n, and what is left is the function at the reflected point."""
    x = fd.tensor([-0.5, -3.5, -7.5], device=device)
    even = S.polygamma(8, x).numpy()
    reflected = -math.factorial(8) * sp.zeta(9, np.array([1.5, 4.5, 8.5]))
    np.testing.assert_allclose(even, reflected, rtol=2e-6)


def test_bessel_of_the_second_kind_beyond_what_floats_hold(device):
    """-inf minus -inf is no number."""
    x = fd.tensor([1e-30, 1e-12], device=device)
    assert S.bessel_yn(5, x).tolist() == [-INF, -INF]
    assert fd.grad(lambda x: S.bessel_yn(5, x).sum())(x).tolist() == [INF, INF]
