"""Transforms inside one another, over values of the outer ones: every nest agrees with JAX in float64.

Each transform here maps a function of R^3 to another one, and its body also reads a value of the
level around it by closure. So a nest tests what a lone transform does not: whose value a closure
holds when the function runs again, at another depth, after transforms around it have ended.
"""

import functools
import itertools
import random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
from functad import ops

pytestmark = pytest.mark.usefixtures("x64")


class Lib(NamedTuple):
    """One library under one set of names."""

    xp: object
    grad: object
    jvp: object
    vjp: object
    vmap: object
    jit: object
    checkpoint: object
    custom_vjp: object
    hessian: object
    scan: object
    cond: object


OURS = Lib(
    ops, fd.grad, fd.jvp, fd.vjp, fd.vmap, fd.jit, fd.checkpoint, fd.custom_vjp, fd.hessian, fd.scan, fd.cond
)  # fmt: skip


class _Plain:
    """A function whose rule is not used: JAX's `custom_vjp` refuses forward mode, ours does not."""

    def __init__(self, fn):
        self.fn = fn

    def defvjp(self, fwd, bwd):
        pass

    def __call__(self, *args):
        return self.fn(*args)


JAX = Lib(
    jnp, jax.grad, jax.jvp, jax.vjp, jax.vmap, jax.jit, jax.checkpoint, _Plain, jax.hessian, jax.lax.scan, jax.lax.cond
)  # fmt: skip

POINT = np.array([0.7, -0.3, 1.2])
WEIGHTS = np.array([1.0, -0.5, 0.5])
W = np.array([[0.3, -0.8, 0.5], [1.1, 0.2, -0.4], [-0.6, 0.9, 0.7]])
ROWS = np.array([[1.0, 0.5, -0.5], [0.8, -1.2, 1.0]])
COUNTS = np.array([2, 1, 3])


# --- functions


def elementary(lib, x):
    return lib.xp.exp(lib.xp.sin(x) * x) * 0.3 + x * x * x


def matrix(lib, x):
    return lib.xp.tanh(W @ x) + (x @ W) * x


def reductions(lib, x):
    return x * lib.xp.max(x) + lib.xp.mean(x) * lib.xp.prod(x) - lib.xp.sum(x) * 0.1


def softmax(lib, x):
    e = lib.xp.exp(x - lib.xp.max(x))
    return e / e.sum()


def indexing(lib, x):
    return x[::-1] * x[0] + x[np.array([2, 0, 0])] * x[1:2]


def branches(lib, x):
    return lib.xp.where(x > 0, lib.xp.sqrt(lib.xp.abs(x)) * x, x * x)


def integers(lib, x):
    n = x.astype(int)
    return x**2 * COUNTS + n * x + lib.xp.sin(x)[lib.xp.abs(n) % 3]


def loop(lib, x):
    for i in range(3):
        x = x * 0.5 + lib.xp.sin(x) * (i + 1) if i != 1 else lib.xp.cos(x)
    return x


def order(lib, x):
    return lib.xp.cumsum(x) * lib.xp.sort(x)


def constant(lib, x):
    return x * 0.0 + WEIGHTS


def pytree(lib, x):
    params = {"w": (x, W), "b": [x[0], None]}
    return lib.xp.tanh(params["w"][1] @ params["w"][0]) * params["b"][0]


def own_gradient(lib, x):
    """A derivative of a function over the value it closes over: perturbations must stay apart."""
    return x * lib.grad(lambda y: (y * x * x).sum() + lib.xp.sin(y).sum())(x)


FUNCTIONS = [
    elementary, matrix, reductions, softmax, indexing, branches, integers, loop, order, constant, pytree, own_gradient,
]  # fmt: skip


# --- transforms


def by_grad(lib, f):
    return lambda x: lib.grad(lambda y: (f(y) * WEIGHTS * x).sum())(x * 0.5)


def by_jvp(lib, f):
    return lambda x: lib.jvp(lambda y: f(y) * x, (x,), (lib.xp.sin(x),))[1]


def by_vmap(lib, f):
    return lambda x: lib.vmap(lambda row: f(row * x) * x)(ROWS).sum(0)


def by_jit(lib, f):
    return lambda x: lib.jit(lambda y: f(y) * x)(x * 0.5)


def by_checkpoint(lib, f):
    return lambda x: lib.checkpoint(lambda y: f(y) * x)(x * 0.5)


def by_custom_vjp(lib, f):
    def call(x):
        def body(y, z):
            return f(y) * z

        rule = lib.custom_vjp(body)
        rule.defvjp(lambda y, z: (rule(y, z), (y, z)), lambda res, g: lib.vjp(body, *res)[1](g))
        return rule(x, x * 0.5)

    return call


def by_hessian(lib, f):
    return lambda x: lib.hessian(lambda y: (f(y) * x).sum())(x * 0.5) @ WEIGHTS * 0.2


def by_scan(lib, f):
    def call(x):
        last, rows = lib.scan(lambda c, row: (lib.xp.tanh(f(c) * row), (c * x).sum()), x, ROWS * x)
        return last + rows.sum()

    return call


def by_cond(lib, f):
    return lambda x: lib.cond((x * x).sum() > 0.01, lambda y: f(y) * x, lambda y: y, x)


MAIN = [by_grad, by_jvp, by_vmap, by_jit, by_checkpoint, by_custom_vjp]
ALL = [*MAIN, by_hessian, by_scan, by_cond]

chance = random.Random(0)
PAIRS = [(pair, chance.choice(FUNCTIONS)) for pair in itertools.product(MAIN, repeat=2)]
TRIPLES = [(triple, chance.choice(FUNCTIONS)) for triple in itertools.product(MAIN, repeat=3)]
SOME = chance.sample(TRIPLES, 40)  # all of them pass, and take minutes
OTHERS = [(tuple(chance.choices(ALL, k=3)), chance.choice(FUNCTIONS)) for _ in range(6)]


def label(value):
    return "-".join(f.__name__.removeprefix("by_") for f in value) if isinstance(value, tuple) else value.__name__


def composed(lib, stack, fn):
    """`fn` under each transform of the stack in turn, the last one outermost."""
    f = functools.partial(fn, lib)
    for transform in stack:
        f = transform(lib, f)
    return f


@functools.cache
def by_jax(stack, fn):
    return np.asarray(composed(JAX, stack, fn)(POINT))


def check(stack, fn, device):
    with fd.set_default_device(device):
        out = composed(OURS, stack, fn)(fd.tensor(POINT))
    assert isinstance(out, fd.Tensor)
    expected = by_jax(stack, fn)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize(("stack", "fn"), PAIRS, ids=label)
def test_pairs_agree_with_jax(stack, fn):
    check(stack, fn, fd.Device.numpy())


@pytest.mark.parametrize(("stack", "fn"), SOME, ids=label)
def test_triples_agree_with_jax(stack, fn):
    check(stack, fn, fd.Device.numpy())


@pytest.mark.parametrize(("stack", "fn"), OTHERS, ids=label)
def test_nests_with_hessians_loops_and_choices_agree_with_jax(stack, fn):
    check(stack, fn, fd.Device.numpy())


@pytest.mark.parametrize(("stack", "fn"), SOME[:4], ids=label)
def test_nests_agree_with_jax_on_xla(stack, fn):
    check(stack, fn, fd.Device.cpu())


@pytest.mark.parametrize(("stack", "fn"), SOME[::7], ids=label)
def test_nests_under_an_object_style_backward(stack, fn):
    device = fd.Device.numpy()
    with fd.set_default_device(device):
        x = fd.tensor(POINT, device=device.autodiff()).require_grad()
        grads = (composed(OURS, stack, fn)(x) * WEIGHTS).sum().backward()
    f = composed(JAX, stack, fn)
    expected = jax.grad(lambda x: (f(x) * WEIGHTS).sum())(jnp.asarray(POINT))
    np.testing.assert_allclose(x.grad(grads).numpy(), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


# --- single cases that once failed


@pytest.mark.parametrize("inner", [fd.checkpoint, fd.jit], ids=["checkpoint", "jit"])
def test_a_function_inside_a_checkpoint_closes_over_a_row(inner):
    """When the checkpoint runs again its vmap has ended, and the row that the inner function reads with it."""

    def f(x):
        return fd.checkpoint(lambda y: inner(lambda z: z * x)(y))(x * 0.5)  # noqa: PLW0108  # a function that calls another is what is tested

    v = fd.tensor([1.0, 2.0, 3.0])
    assert fd.grad(lambda v: fd.vmap(f)(v).sum())(v).tolist() == [1.0, 2.0, 3.0]
    assert fd.hessian(lambda v: fd.vmap(f)(v).sum())(v).tolist() == np.eye(3).tolist()
    assert fd.vmap(fd.hessian(f))(v).tolist() == [1.0, 1.0, 1.0]
    x = v.autodiff().require_grad()
    assert x.grad(fd.vmap(f)(x).sum().backward()).tolist() == [1.0, 2.0, 3.0]


def test_a_checkpoint_runs_again_at_a_lesser_depth():
    """The loss leaves transforms that have nothing to do with it; its backward runs outside of all of them."""
    kept = []
    x = fd.tensor([1.0, 2.0, 3.0]).autodiff().require_grad()

    def loss(_):
        kept.append(fd.vmap(lambda r: fd.checkpoint(lambda y: fd.checkpoint(lambda z: z * r)(y) * r)(r * 0.5))(x).sum())
        return _

    for _ in range(6):
        loss = fd.grad(loss)
    loss(1.0)
    assert x.grad(kept[-1].backward()).tolist() == [1.5, 6.0, 13.5]


def test_a_function_that_is_found_by_no_search_is_still_an_input():
    """A tensor that the inner function takes from an opaque object is known to the checkpoint around it."""

    class Box:
        __slots__ = ("value",)

    def f(x):
        box = Box()
        box.value = x
        return fd.checkpoint(lambda y: fd.checkpoint(lambda z: z * box.value)(y))(x * 0.5)  # noqa: PLW0108  # a function that calls another is what is tested

    v = fd.tensor([1.0, 2.0, 3.0])
    assert fd.grad(lambda v: fd.vmap(f)(v).sum())(v).tolist() == [1.0, 2.0, 3.0]
    assert fd.grad(fd.grad(f))(2.0).item() == 1.0


def test_an_object_style_tape_made_inside_ends_with_the_transform():
    """What a jit returns is a plain tensor, like what vmap and jvp return; it did not leak."""

    def inside(x):
        w = x.autodiff().require_grad()
        loss = w * w * w
        return w.grad(loss.backward()), loss

    for transform in (fd.jit, lambda f: fd.vmap(f, in_axes=None, axis_size=1, out_axes=None)):
        gradient, loss = transform(inside)(fd.tensor(2.0))
        assert (gradient.item(), loss.item()) == (12.0, 8.0)
        assert not gradient.is_autodiff
    assert fd.grad(fd.jit(lambda x: inside(x)[0]))(2.0).item() == 12.0


PERTURBED = {
    "x * d(x y)": (lambda d: lambda x: x * d(lambda y: x * y)(2.0), 1.0, 2.0),
    "x * d(x + y)": (lambda d: lambda x: x * d(lambda y: x + y)(1.0), 1.0, 1.0),
    "y (x - y) at y = x": (lambda d: lambda x: d(lambda y: y * (x - y))(x), 1.0, -1.0),
    "three deep": (lambda d: lambda x: d(lambda y: y * d(lambda z: x * y * z * z)(y))(x), 2.0, 72.0),
}


@pytest.mark.parametrize("wrap", [lambda f: f, fd.jit, fd.checkpoint], ids=["plain", "jit", "checkpoint"])
@pytest.mark.parametrize("way", ["grad", "jvp"])
@pytest.mark.parametrize("case", PERTURBED)
def test_perturbations_stay_apart(case, way, wrap):
    make, point, expected = PERTURBED[case]

    def derivative(f):
        if way == "grad":
            return fd.grad(wrap(f))
        return lambda x: fd.jvp(wrap(f), (x,), (1.0,))[1]

    assert derivative(make(derivative))(point).item() == expected
    assert fd.vmap(derivative(make(derivative)))(fd.tensor([point] * 2)).tolist() == [expected] * 2
