"""Functional transforms against JAX: values, nesting, structures, and perturbation confusion."""

import functools
import itertools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import functad as fd
from functad import ops
from functad.transforms.forward import jvp, linearize
from functad.transforms.jacobian import hessian, hvp, jacfwd, jacrev
from functad.transforms.vjp import vjp
from functad.transforms.vmap import vmap

grad, value_and_grad = fd.grad, fd.value_and_grad


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


class Lib(NamedTuple):
    """One library under one set of names, so that a function is written once."""

    xp: object
    grad: object
    jvp: object
    vjp: object
    vmap: object
    linearize: object
    jacfwd: object
    jacrev: object


def central(f, h=0.02):
    """The derivative of `f` at 0, to about 12 digits."""
    weights = [4 / 5, -1 / 5, 4 / 105, -1 / 280]
    return sum(w * (f(i * h) - f(-i * h)) for i, w in enumerate(weights, 1)) / h


def columns(f, x):
    """The Jacobian at `x` with the input axis first."""
    return np.stack([central(lambda t, e=e: f(x + t * e)) for e in np.eye(len(x))])


def loop_over(f, in_axes=0, out_axes=0):
    return lambda x: np.stack([f(row) for row in np.moveaxis(x, in_axes, 0)], out_axes)


DEFINITIONS = Lib(
    np,
    lambda f: lambda x: columns(f, x),
    lambda f, x, v: (f(*x), central(lambda t: f(x[0] + t * v[0]))),
    lambda f, x: (f(x), lambda g: (columns(f, x) @ g,)),
    loop_over,
    lambda f, x: (f(x), lambda v: columns(f, x).T @ v),
    lambda f: lambda x: columns(f, x).T,
    lambda f: lambda x: columns(f, x).T,
)
OURS = Lib(ops, grad, jvp, vjp, vmap, linearize, jacfwd, jacrev)
JAX = Lib(jnp, jax.grad, jax.jvp, jax.vjp, jax.vmap, jax.linearize, jax.jacfwd, jax.jacrev)

W = np.array([[0.3, -0.8, 0.5], [1.1, 0.2, -0.4], [-0.6, 0.9, 0.7]])
POINT = np.array([0.7, -0.3, 1.2])
DIRECTION = np.array([0.5, 1.5, -1.0])
WEIGHTS = np.array([1.0, -2.0, 0.5])
ROWS = np.array([[1.0, 0.5, -0.5], [0.8, -1.2, 1.0]])
COUNTS = np.array([2, 1, 3])


def elementary(xp, x):
    return xp.exp(xp.sin(x) * x) + x * x * x


def matrix(xp, x):
    return xp.tanh(W @ x) + (x @ W) * x


def reductions(xp, x):
    return x * xp.max(x) + xp.mean(x) * xp.prod(x) - xp.sum(x) * 0.1


def softmax(xp, x):
    e = xp.exp(x - xp.max(x))
    return e / e.sum()


def indexing(xp, x):
    return x[::-1] * x[0] + x[np.array([2, 0, 0])] * x[1:2]


def branches(xp, x):
    return xp.where(x > 0, xp.sqrt(xp.abs(x)) * x, x * x)


def integers(xp, x):
    return x ** 2 * COUNTS + x.astype(int) * x


def loop(xp, x):
    for i in range(3):
        x = x * 0.5 + xp.sin(x) * (i + 1) if i != 1 else xp.cos(x)
    return x


def outer(xp, x):
    return (x[:, None] * xp.tanh(x)[None, :]).sum(0) + xp.reshape(x, (3, 1))[:, 0]


def order(xp, x):
    return xp.cumsum(x) * xp.sort(x)


def constant(xp, x):
    return x * 0.0 + WEIGHTS


def pytree(xp, x):
    params = {"w": (x, W), "b": [x[0], None]}
    return xp.tanh(params["w"][1] @ params["w"][0]) * params["b"][0]


FUNCTIONS = [
    elementary, matrix, reductions, softmax, indexing, branches, integers, loop, outer, order, constant, pytree,
]  # fmt: skip


# Each maps a function of R^3 to R^3 to another one, for either library.
def by_grad(lib, f):
    return lib.grad(lambda x: (f(x) * WEIGHTS).sum())


def by_jvp(lib, f):
    return lambda x: lib.jvp(f, (x,), (DIRECTION,))[1]


def by_vmap(lib, f):
    return lambda x: lib.vmap(lambda row: f(x * row))(ROWS).sum(0)


def by_columns(lib, f):
    return lambda x: lib.vmap(f, in_axes=1, out_axes=-1)(x[:, None] * ROWS.T).sum(-1)


def by_vjp(lib, f):
    return lambda x: lib.vjp(f, x)[1](WEIGHTS + 0 * x)[0]


def by_linearize(lib, f):
    return lambda x: lib.linearize(f, x)[1](DIRECTION)


def by_jacfwd(lib, f):
    return lambda x: lib.jacfwd(f)(x) @ DIRECTION


def by_jacrev(lib, f):
    return lambda x: lib.jacrev(f)(x).T @ WEIGHTS


MAIN = [by_grad, by_jvp, by_vmap]
PAIRS = list(itertools.product(MAIN, repeat=2))
TRIPLES = list(itertools.product(MAIN, repeat=3))
ALL = [*MAIN, by_columns, by_vjp, by_linearize, by_jacfwd, by_jacrev]


def name(f):
    return f.__name__


def names(stack):
    return "-".join(map(name, stack))


def composed(lib, stack, fn):
    f = functools.partial(fn, lib.xp)
    for transform in stack:
        f = transform(lib, f)
    return f


@functools.cache
def by_jax(stack, fn):
    return np.asarray(jax.jit(composed(JAX, stack, fn))(POINT))


@functools.cache
def by_definition(stack, fn):
    return composed(DEFINITIONS, stack, fn)(POINT)


def check(stack, fn, device, expected=by_definition):
    with fd.set_default_device(device):
        out = composed(OURS, stack, fn)(fd.tensor(POINT))
    assert isinstance(out, fd.Tensor)
    assert out.device.name == device.name
    np.testing.assert_allclose(out.numpy(), expected(stack, fn), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=name)
@pytest.mark.parametrize("one", ALL, ids=name)
def test_each_transform_does_what_it_says(one, fn):
    check((one,), fn, fd.Device.numpy())


@pytest.mark.parametrize("fn", FUNCTIONS, ids=name)
def test_each_function_agrees_with_jax_on_xla(fn):
    for one in MAIN:
        check((one,), fn, fd.Device.cpu(), by_jax)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=name)
@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_pairs_of_transforms(pair, fn):
    check(pair, fn, fd.Device.numpy())


@pytest.mark.parametrize("fn", [elementary, matrix], ids=name)
@pytest.mark.parametrize("pair", PAIRS, ids=names)
def test_pairs_agree_with_jax_on_xla(pair, fn):
    check(pair, fn, fd.Device.cpu(), by_jax)


@pytest.mark.parametrize("triple", TRIPLES, ids=names)
def test_triples_agree_with_jax(triple):
    check(triple, elementary, fd.Device.numpy(), by_jax)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(ALL), min_size=2, max_size=2), st.sampled_from(FUNCTIONS))
def test_any_two_transforms_nest(stack, fn):
    check(tuple(stack), fn, fd.Device.numpy())
