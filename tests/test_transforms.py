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


def composed(lib, stack, fn):
    f = functools.partial(fn, lib.xp)
    for transform in stack:
        f = transform(lib, f)
    return f


@functools.cache
def expected(stack, fn):
    return np.asarray(composed(JAX, stack, fn)(jnp.asarray(POINT)))


def check(stack, fn, device):
    out = composed(OURS, stack, fn)(fd.tensor(POINT, device=device))
    assert isinstance(out, fd.Tensor)
    assert out.device.name == device.name
    np.testing.assert_allclose(out.numpy(), expected(stack, fn), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=name)
@pytest.mark.parametrize("one", ALL, ids=name)
def test_each_transform_agrees_with_jax(one, fn, device):
    check((one,), fn, device)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=name)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: "_of_".join(map(name, p)))
def test_pairs_agree_with_jax(pair, fn):
    check(pair, fn, fd.Device.cpu())


@pytest.mark.parametrize("fn", [matrix, branches, softmax], ids=name)
@pytest.mark.parametrize("pair", PAIRS, ids=lambda p: "_of_".join(map(name, p)))
def test_pairs_agree_with_jax_on_numpy(pair, fn):
    check(pair, fn, fd.Device.numpy())


@pytest.mark.parametrize("triple", TRIPLES, ids=lambda p: "_of_".join(map(name, p)))
def test_triples_agree_with_jax(triple):
    for fn in (elementary, matrix):
        check(triple, fn, fd.Device.cpu())


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(ALL), min_size=2, max_size=3), st.sampled_from(FUNCTIONS), st.booleans())
def test_any_stack_agrees_with_jax(stack, fn, on_numpy):
    check(tuple(stack), fn, fd.Device.numpy() if on_numpy else fd.Device.cpu())
