"""Keys and draws, and the default generator."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

import functad as fd
from functad.errors import ArgumentTypeError, ConcreteValueError
from functad.ops.hosted import padded
from functad.random import host, keys
from functad.random.keys import on_host

# --- the default generator


def noise(x):
    return x * fd.random.normal(fd.random.draw_key(), (3,))


def test_a_seed_decides_the_draws_on_every_device():
    fd.seed(3)
    first = [fd.random.draw_key().tolist() for _ in range(40)]
    fd.seed(3)
    assert [fd.random.draw_key(fd.Device.numpy()).tolist() for _ in range(40)] == first
    assert len(set(map(tuple, first))) == 40
    assert first[:2] == [fd.random.fold_in(fd.random.key(3), i).tolist() for i in range(2)]


def test_draws_of_threads_are_all_different():
    drawn: list[tuple[int, ...]] = []

    def work():
        drawn.extend([tuple(fd.random.draw_key().tolist()) for _ in range(50)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == len(set(drawn)) == 200


@pytest.mark.parametrize(
    ("call", "names"),
    [
        pytest.param(lambda: fd.jit(noise)(fd.ones(3)), "jit(noise)", id="jit"),
        pytest.param(lambda: fd.vmap(noise)(fd.ones((2, 3))), "one per row", id="vmap"),
        pytest.param(
            lambda: fd.vmap(fd.grad(lambda x: noise(x).sum()))(fd.ones((2, 3))), "one per row", id="vmap of grad"
        ),
        pytest.param(lambda: fd.jit(fd.checkpoint(noise))(fd.ones(3)), "Pass a key", id="jit of checkpoint"),
        pytest.param(lambda: fd.scan(lambda c, x: (noise(c), x), fd.ones(3), fd.ones(2)), "scan", id="scan"),
        pytest.param(
            lambda: fd.jit(lambda x: fd.cond(x.sum() > 0, noise, lambda x: x, x))(fd.ones(3)), "Pass a key", id="cond"
        ),
        pytest.param(lambda: jax.jit(fd.to_jax(noise))(np.ones(3, np.float32)), "to_jax", id="to_jax"),
        pytest.param(jax.jit(lambda: fd.random.draw_key().jax()), "jax.jit", id="jax.jit"),
        pytest.param(lambda: fd.jit(lambda x: (fd.seed(0), x)[1])(1.0), "fd.seed", id="seed"),
    ],
)
def test_draws_are_refused_where_one_key_would_serve_many_calls(call, names):
    with pytest.raises(ConcreteValueError) as error:
        call()
    assert names in str(error.value)


def test_draws_in_eager_transforms():
    fd.seed(0)
    drawn = fd.random.normal(fd.random.draw_key(), (3,)).tolist()
    fd.seed(0)
    assert fd.grad(lambda x: noise(x).sum())(fd.ones(3)).tolist() == drawn
    fd.seed(0)
    assert fd.jvp(noise, (fd.ones(3),), (fd.ones(3),))[1].tolist() == drawn


@pytest.mark.parametrize("wrap", [fd.checkpoint, lambda f: fd.checkpoint(lambda x: fd.checkpoint(f)(x) + 0)])
def test_checkpoint_draws_what_it_drew(wrap):
    """A second run that draws anew gives the gradient of another mask, and moves the generator on."""

    def loss(x):
        return fd.ops.sin(noise(x)).sum()

    fd.seed(1)
    plain, after = fd.grad(loss)(fd.ones(3)), fd.random.draw_key()
    fd.seed(1)
    again, after_again = fd.grad(wrap(loss))(fd.ones(3)), fd.random.draw_key()
    assert plain.tolist() == again.tolist()
    assert after.tolist() == after_again.tolist()


def test_checkpoint_seeds_once():
    def loss(x):
        fd.seed(5)
        return noise(x).sum()

    grads = fd.grad(fd.checkpoint(loss))(fd.ones(3))
    assert grads.tolist() == fd.random.normal(fd.random.fold_in(fd.random.key(5), 0), (3,)).tolist()
    assert fd.random.draw_key().tolist() == fd.random.fold_in(fd.random.key(5), 1).tolist()


@pytest.mark.parametrize("seed", [1.5, "a", None])
def test_a_seed_is_an_int(seed):
    for call in (fd.seed, fd.random.key):
        with pytest.raises(ArgumentTypeError, match="a seed is an int"):
            call(seed)


# --- keys


def test_keys_split_as_in_jax(device):
    ours, theirs = fd.random.key(3, device), jax.random.key(3)
    assert fd.random.split(ours, (2, 2)).tolist() == jax.random.key_data(jax.random.split(theirs, (2, 2))).tolist()
    assert fd.random.fold_in(ours, 9).tolist() == jax.random.key_data(jax.random.fold_in(theirs, 9)).tolist()


def test_keys_of_rows():
    keys = fd.random.split(fd.random.key(0), 3)
    rows = fd.vmap(lambda k: fd.random.normal(fd.random.split(k)[1], (2,)))(keys)
    assert rows.tolist() == [fd.random.normal(fd.random.split(k)[1], (2,)).tolist() for k in keys]


# --- distributions: JAX's numbers, bit for bit on XLA

A, B, PROBS = np.float32([0.3, 2.0, 7.0]), np.float32([1.0, 0.5, 3.0]), np.float32([0.2, 0.5, 0.3])
COV = np.float32([[2.0, 0.3], [0.3, 1.0]])
GRID = np.arange(12, dtype=np.float32).reshape(3, 4)

DRAWS = [
    ("ball", (3, 2, (5,))),
    ("bernoulli", (PROBS, (4, 3))),
    ("beta", (A, B, (4, 3))),
    ("binomial", (10.0, 0.3, (4,))),
    ("bits", ((4,),)),
    ("categorical", (np.stack([A, B]), -1, (3, 2))),
    ("categorical", (np.stack([A, B]), -1, (2, 2), False)),
    ("cauchy", ((4, 3),)),
    ("chisquare", (A, (4, 3))),
    ("choice", (7, (4,), False)),
    ("choice", (GRID, (2, 2), True, None, 1)),
    ("choice", (A, (2,), False, PROBS)),
    ("choice", (A, (5,), True, PROBS)),
    ("dirichlet", (A, (4,))),
    ("double_sided_maxwell", (A, B, (4,))),
    ("exponential", ((4, 3),)),
    ("f", (np.tile(A, (4, 1)), np.tile(B, (4, 1)), (4, 3))),
    ("gamma", (A, (4, 3))),
    ("generalized_normal", (1.5, (4, 3))),
    ("geometric", (0.3, (4,))),
    ("gumbel", ((4, 3),)),
    ("laplace", ((4, 3),)),
    ("loggamma", (A, (4, 3))),
    ("logistic", ((4, 3),)),
    ("lognormal", (A, (4, 3))),
    ("maxwell", ((4, 3),)),
    ("multivariate_normal", (A[:2], COV, (4,))),
    ("normal", ((4, 3),)),
    ("orthogonal", (3, (2,))),
    ("pareto", (A, (4, 3))),
    ("permutation", (7,)),
    ("permutation", (GRID, 1)),
    ("permutation", (GRID, 1, True)),
    ("poisson", (A, (4, 3))),
    ("rademacher", ((4, 3),)),
    ("randint", ((4, 3), -5, 7)),
    ("randint", ((4, 3), 0, 256, "uint8")),
    ("rayleigh", (A, (4, 3))),
    ("t", (A, (4, 3))),
    ("triangular", (-A, A - A, B, (4, 3))),
    ("truncated_normal", (A - 2, B + 1, (4, 3))),
    ("uniform", ((4, 3), "float32", -1.5, 2.5)),
    ("wald", (A, (4, 3))),
    ("weibull_min", (A, B, (4, 3))),
]


HEAVY = {"ball", "beta", "binomial", "chisquare", "dirichlet", "f", "generalized_normal", "poisson", "t"}
"""They compile for seconds, and draw by the same call on NumPy arrays."""

SEVERAL = {"multivariate_normal", "pareto", "truncated_normal"}
"""Made of several ops, which are rounded otherwise on the host."""


@pytest.mark.parametrize(("name", "args"), DRAWS, ids=[name for name, _ in DRAWS])
def test_draws_are_those_of_jax(name, args):
    want = np.asarray(getattr(jax.random, name)(jax.random.key(5), *args))
    got = getattr(fd.random, name)(fd.random.key(5), *args)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if name in HEAVY:  # some are made of several ops: rounded otherwise where XLA has them in other programs
        assert np.allclose(got.numpy(), want, rtol=1e-6, atol=0)
        return
    assert (
        np.allclose(got.numpy(), want, rtol=1e-5, atol=1e-7) if name in SEVERAL else np.array_equal(got.numpy(), want)
    )
    on_numpy = getattr(fd.random, name)(fd.random.key(5, fd.Device.numpy()), *args)
    assert on_numpy.dtype == want.dtype
    assert np.allclose(on_numpy.numpy(), want, rtol=1e-5, atol=1e-7)


# --- derivatives

SMOOTH = [
    ("beta", (A, B)),
    ("double_sided_maxwell", (A, B)),
    ("gamma", (A,)),
    ("loggamma", (A,)),
    ("lognormal", (A,)),
    ("pareto", (A,)),
    ("rayleigh", (A,)),
    ("t", (A,)),
    ("triangular", (-A, A - A, B)),
    ("truncated_normal", (PROBS - 1, B + 1)),
    ("weibull_min", (A, B)),
]


@pytest.mark.parametrize(("name", "params"), SMOOTH, ids=[name for name, _ in SMOOTH])
def test_derivatives_are_those_of_jax(name, params):
    shape = (2,) if name == "double_sided_maxwell" else (2, 3)
    weights = np.float32([[1, -2, 3], [0.5, 1, 2]])
    which = tuple(range(len(params)))
    key = jax.random.key(5)  # compiled whole: op by op each costs dozens of compilations
    got = fd.jit(fd.grad(lambda *p: (getattr(fd.random, name)(fd.random.key(5), *p, shape) * weights).sum(), which))(
        *params
    )
    want = jax.jit(jax.grad(lambda *p: (getattr(jax.random, name)(key, *p, shape) * weights).sum(), which))(*params)
    for g, w in zip(got, want, strict=True):
        assert np.allclose(g.numpy(), w, rtol=3e-4, atol=1e-5)


def test_derivatives_of_vectors():
    def simplex(module, key):
        return lambda alpha: (
            module.dirichlet(key, alpha, (4,)) * np.arange(12.0, dtype=np.float32).reshape(4, 3)
        ).sum()

    got = fd.grad(simplex(fd.random, fd.random.key(5)))(A).numpy()
    assert np.allclose(got, jax.grad(simplex(jax.random, jax.random.key(5)))(A), rtol=1e-3)

    def vectors(module, key):
        weights = np.arange(8.0, dtype=np.float32).reshape(4, 2)
        return lambda mean, cov: (module.multivariate_normal(key, mean, cov, (4,)) * weights).sum()

    grads = fd.grad(vectors(fd.random, fd.random.key(5)), (0, 1))(A[:2], COV)
    wanted = jax.grad(vectors(jax.random, jax.random.key(5)), (0, 1))(A[:2], COV)
    assert all(np.allclose(g.numpy(), w, rtol=1e-4) for g, w in zip(grads, wanted, strict=True))


def test_the_derivative_of_wald_numbers_has_the_right_mean():
    """Differentiating the algorithm's choice between two roots gives 1.35 at mean 4 where the mean's derivative is 1."""
    key = fd.random.key(0, fd.Device.numpy())
    for mean in (0.3, 1.0, 4.0):
        mean = fd.tensor(mean, device=fd.Device.numpy())
        samples, slopes = fd.jvp(lambda m: fd.random.wald(key, m, (40000,)), (mean,), (fd.ones_like(mean),))
        assert slopes.mean().item() == pytest.approx(1, abs=0.05)
        second = 2 * mean.item() + 3 * mean.item() ** 2  # of the mean square, m**2 + m**3
        assert (2 * samples * slopes).mean().item() == pytest.approx(second, rel=0.1)


def test_draws_of_tiny_gamma_numbers():
    """exp(-1000) is 0 in float32; the derivative of the logarithm must not come from it."""
    a = fd.tensor(1e-3, device=fd.Device.numpy())
    key = fd.random.key(0, fd.Device.numpy())
    value, slope = fd.value_and_grad(lambda a: fd.random.loggamma(key, a, ()))(a)
    assert value.item() < -100
    assert slope.item() == pytest.approx((-0.5756 - value.item()) / 1e-3, rel=1e-3)


def test_float64_on_numpy_without_x64():
    key = fd.random.key(0, fd.Device.numpy())
    for make in (lambda k: fd.random.normal(k, (2,), "float64"), lambda k: fd.random.gamma(k, 2.0, (2,), "float64")):
        drawn = make(key)
        assert drawn.dtype == fd.float64
        assert len({float(x) - float(np.float32(x)) for x in drawn.numpy()} - {0.0}) == 2
    with pytest.raises(fd.errors.DTypeError, match="x64"):
        fd.random.normal(fd.random.key(0, fd.Device.cpu()), (2,), "float64")


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda k: fd.random.normal(k, (2,), "int32"), fd.errors.DTypeError, "randint"),
        (lambda k: fd.random.gamma(k, A, (4, 2)), fd.errors.ShapeError, "last axes"),
        (lambda k: fd.random.choice(k, 3, (4,), False), fd.errors.ArgumentError, "without replacement"),
        (lambda k: fd.random.choice(k, 3, (4,), p=PROBS[:2]), fd.errors.ShapeError, "one probability"),
        (lambda k: fd.random.permutation(k, 2.5), ArgumentTypeError, "expected an int"),
        (lambda k: fd.random.randint(k, (2,), 3, 3), fd.errors.ArgumentError, "less than"),
        (lambda k: fd.random.randint(k, (2,), 0.5, 3), fd.errors.DTypeError, "ints"),
        (lambda k: fd.random.multivariate_normal(k, A, COV), fd.errors.ShapeError, "length n"),
        (lambda k: fd.random.multivariate_normal(k, A[:2], COV, method="qr"), fd.errors.ArgumentError, "'cholesky'"),
        (lambda k: fd.random.normal(fd.random.split(k, 3)), ArgumentTypeError, "several keys"),
        (lambda k: fd.random.fold_in(k, 0.5), ArgumentTypeError, "one integer"),
        (lambda k: fd.random.dirichlet(k, 1.0), fd.errors.ArgumentError, "needs an axis"),
        (lambda k: fd.hessian(lambda a: fd.random.gamma(k, a))(2.0), fd.errors.NotDifferentiableError, "second"),
    ],
)
def test_errors(call, error, names):
    with pytest.raises(error) as raised:
        call(fd.random.key(0))
    assert names in str(raised.value)


# --- draws on the host


@pytest.mark.parametrize("shape", [(), (1,), (0, 3), (7, 5), (130, 130)], ids=str)
@pytest.mark.parametrize("seed", [0, 5, 2**31 + 3, -1])
def test_what_is_drawn_without_compiling_is_what_jax_draws(shape, seed):
    key = fd.random.key(seed)
    jax_key = jax.random.wrap_key_data(key.numpy(), impl="threefry2x32")
    for name in ("uniform", "normal"):
        made = on_host(name, key, shape, None, None, initial=True)
        np.testing.assert_array_equal(made.numpy(), getattr(jax.random, name)(jax_key, shape))
    low, high = -0.3, 0.7
    made = on_host("uniform", key, shape, None, None, (low, high), initial=True).numpy()
    np.testing.assert_allclose(made, jax.random.uniform(jax_key, shape, minval=low, maxval=high), rtol=1e-6, atol=1e-7)
    words = [np.asarray(jax.random.key_data(jax.random.fold_in(jax_key, n))) for n in (3, 4)]
    np.testing.assert_array_equal(host.keys(key.numpy(), 3, 2), words)
    np.testing.assert_array_equal(host.keys(key.numpy(), 0, 4), jax.random.key_data(jax.random.split(jax_key, 4)))


def test_what_is_drawn_often_is_compiled_and_stays_the_same(monkeypatch):
    key = fd.random.key(3)

    def draws():
        k1, k2 = fd.random.split(key)
        layer = fd.nn.Linear(5, 7, key=fd.random.fold_in(k2, 4))
        norm = fd.nn.Embedding(4, 3, key=key)
        drawn = fd.random.normal(k1, (3, 2)), fd.random.uniform(k1, (3, 2), minval=-2.0, maxval=5.0)
        fd.seed(0)
        return [x.numpy() for x in (k1, layer.weight, layer.bias, norm.weight, *drawn, fd.random.draw_key())]

    host._spent.clear()
    first = draws()
    monkeypatch.setattr(host, "is_cheaper", lambda *what: False)
    keys._keys.cache_clear()
    for x, y in zip(first, draws(), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_draw_that_recurs_is_compiled():
    host._spent.clear()
    assert host.is_cheaper("a", 10**6)
    assert sum(host.is_cheaper("a", 10**6) for _ in range(10)) < 4
    assert sum(host.is_cheaper("b") for _ in range(2000)) < 1000
    assert not host.is_cheaper("c", 10**7)


@pytest.mark.parametrize("shape", [(5, 3), (2, 1, 3), (0, 3), (30, 3)])
def test_gamma_numbers_of_any_shape_are_those_of_jax(shape, device):
    """They are drawn in rows of a few lengths, so that a new shape waits for no compiler."""
    a = np.array([0.3, 1.0, 5.0], "float32")
    key = fd.random.key(3).to_device(device)
    for ours, theirs in ((fd.random.gamma, jax.random.gamma), (fd.random.loggamma, jax.random.loggamma)):
        want = theirs(jax.random.key(3), a, shape)
        np.testing.assert_allclose(ours(key, fd.tensor(a, device=device), shape).numpy(), want, rtol=1e-6)
    assert len(padded(a, shape)) == (128 if len(a) * shape[0] > 64 else 64)
