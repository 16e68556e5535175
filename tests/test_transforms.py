"""Functional transforms against JAX: values, nesting, structures, and perturbation confusion."""

import dataclasses
import functools
import itertools
from collections import OrderedDict
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optree
import optree.dataclasses
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import functad as fd
from functad import hessian, jacfwd, jacrev, jvp, linearize, ops, vjp, vmap

pytestmark = pytest.mark.usefixtures("x64")

grad, value_and_grad = fd.grad, fd.value_and_grad


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
    return x**2 * COUNTS + x.astype(int) * x


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


# --- perturbation confusion


def test_an_inner_derivative_does_not_see_the_outer_perturbation():
    assert grad(lambda x: x * grad(lambda y: x * y)(2.0))(1.0).item() == 2
    assert grad(lambda x: x * grad(lambda y: x + y)(1.0))(1.0).item() == 1
    assert grad(lambda x: grad(lambda y: y * (x - y))(x))(1.0).item() == -1
    assert grad(lambda x: x * grad(lambda y: x * y)(2.0))(3.0).item() == 6


@pytest.mark.parametrize("inner", ["grad", "jvp", "vjp", "linearize", "jacfwd", "jacrev"])
@pytest.mark.parametrize("outer", ["grad", "jvp", "vjp", "linearize", "jacfwd", "jacrev"])
def test_every_pair_of_derivatives_keeps_perturbations_apart(outer, inner):
    derivative = {
        "grad": grad,
        "jvp": lambda f: lambda x: jvp(f, (x,), (1.0,))[1],
        "vjp": lambda f: lambda x: vjp(f, x)[1](1.0)[0],
        "linearize": lambda f: lambda x: linearize(f, x)[1](1.0),
        "jacfwd": jacfwd,
        "jacrev": jacrev,
    }
    d, e = derivative[outer], derivative[inner]
    assert d(lambda x: x * e(lambda y: x * y)(2.0))(1.0).item() == 2
    assert d(lambda x: x * e(lambda y: x + y)(1.0))(1.0).item() == 1
    assert d(lambda x: e(lambda y: y * (x - y))(x))(1.0).item() == -1
    assert d(lambda x: x * e(lambda y: e(lambda z: x * y * z)(1.0))(5.0))(3.0).item() == 6


def test_one_array_passed_twice_is_two_arguments():
    x = fd.tensor(3.0)
    assert [g.item() for g in grad(lambda a, b: a * a * b, (0, 1))(x, x)] == [18, 9]
    assert grad(lambda a: a * x)(x).item() == 3
    assert jvp(lambda a, b: a * b, (x, x), (1.0, 0.0))[1].item() == 3
    assert vmap(lambda a, b: a * b, in_axes=(0, None))(fd.ones(2), fd.ones(2)).shape == (2, 2)


def test_a_derivative_inside_a_row_of_vmap_is_of_that_row():
    rows = vmap(lambda x: grad(lambda y: grad(lambda z: x * y * z * z)(x))(2.0))(np.array([1.0, 2.0, 3.0]))
    assert rows.tolist() == [2, 8, 18]


def test_a_pullback_called_deeper_than_it_was_made():
    _, pullback = vjp(lambda x: x * x, 3.0)
    assert grad(lambda g: pullback(g * g)[0])(2.0).item() == 24
    assert vmap(lambda g: pullback(g)[0])(np.array([1.0, 2.0])).tolist() == [6, 12]
    assert jvp(lambda g: pullback(g)[0], (1.0,), (1.0,))[1].item() == 6


def test_pullback_and_pushforward_are_differentiable_in_the_primal():
    assert grad(lambda x: vjp(lambda y: y * y * y, x)[1](1.0)[0])(2.0).item() == 12
    assert grad(lambda x: linearize(lambda y: y * y * y, x)[1](1.0))(2.0).item() == 12
    assert jvp(lambda x: vjp(lambda y: y * y * y, x)[1](1.0)[0], (2.0,), (1.0,))[1].item() == 12

    def both(x):  # the pullback is made once and used at two places of the outer function
        _, pullback = vjp(lambda y: y * y * y, x)
        return pullback(x)[0] * pullback(1.0)[0]

    assert grad(both)(2.0).item() == pytest.approx(9 * 5 * 2**4)


# --- grad and value_and_grad


class Affine(NamedTuple):
    w: object
    b: object


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class KnownToJax:
    w: object
    inner: object


@optree.dataclasses.dataclass(namespace="functad")
class KnownToOptree:
    w: object
    name: str = optree.dataclasses.field(pytree_node=False)


PARAMETERS = [
    KnownToJax(np.arange(3.0), [KnownToJax(1.0, None)]),
    KnownToOptree(np.arange(3.0), "static"),
    {"w": np.arange(3.0), "b": 2.0},
    [np.arange(3.0), (1.0, None)],
    Affine(np.arange(3.0), [2.0]),
    OrderedDict(z=1.0, a=np.ones(2)),
    {1: 1.0, "a": 2.0, (0, 1): np.ones(2)},  # keys of mixed types do not sort
    {"empty": {}, "none": None, "x": 1.5},
]


@pytest.mark.parametrize("params", PARAMETERS, ids=str)
def test_gradients_have_the_structure_of_the_argument(params):
    def total(p):
        return sum((x * x).sum() for x in map(fd.tensor, fd.tree.leaves(p)))

    value, grads = value_and_grad(total)(params)
    assert type(grads) is type(params)
    assert fd.tree.flatten(grads)[1] == fd.tree.flatten(params)[1]
    for g, x in zip(fd.tree.leaves(grads), fd.tree.leaves(params), strict=True):
        assert isinstance(g, fd.Tensor)
        np.testing.assert_allclose(g.numpy(), 2 * np.asarray(x))
    np.testing.assert_allclose(value.item(), sum(np.sum(np.square(x)) for x in fd.tree.leaves(params)))


def test_unreached_leaves_get_zeros_and_integers_none():
    g = grad(lambda p: p["x"] * p["n"])({"x": 2.0, "n": 3, "unused": np.ones(2), "mask": np.array([True])})
    assert g["x"].item() == 3
    assert g["unused"].tolist() == [0, 0]
    assert g["n"] is None
    assert g["mask"] is None


def test_a_constant_or_linear_function_has_zero_derivatives():
    assert grad(lambda x: 3.0)(1.0).item() == 0
    assert grad(grad(lambda x: 2.0 * x))(1.0).item() == 0
    assert grad(grad(grad(lambda x: x * x)))(1.0).item() == 0
    assert hessian(lambda x: x.sum())(np.ones(2)).tolist() == [[0, 0], [0, 0]]


def test_aux_may_hold_anything():
    def f(x):
        return x * x, {"inner": (x * 2, [x.detach()]), "text": "done", "n": 3, "none": None, "array": np.ones(2)}

    (value, aux), g = value_and_grad(f, has_aux=True)(3.0)
    assert (value.item(), g.item()) == (9, 6)
    assert [t.item() for t in (aux["inner"][0], aux["inner"][1][0])] == [6, 3]
    assert (aux["text"], aux["n"], aux["none"]) == ("done", 3, None)
    assert not aux["inner"][0].is_autodiff
    assert grad(lambda x: [x * x, x], has_aux=True)(3.0)[1].item() == 3  # any pair


def test_aux_of_an_inner_transform_stays_differentiable_by_the_outer():
    def outer(x):
        _, doubled = grad(lambda y: (y * y, y * 2), has_aux=True)(x)
        return doubled * doubled

    assert grad(outer)(3.0).item() == 24


def test_arguments_by_keyword_and_position():
    def f(x, y=2.0, *, scale=1.0):
        return x * y * scale

    assert grad(f)(x=3.0).item() == 2
    assert grad(f)(3.0, scale=10.0).item() == 20
    assert grad(f, argnums=1)(3.0, y=4.0).item() == 3
    assert grad(f, argnums=-1)(3.0, 4.0).item() == 3
    assert [g.item() for g in grad(f, argnums=(1, 0))(3.0, 4.0)] == [3, 4]
    assert grad(lambda a, b=2.0, c=3.0: a * b * c, argnums=2)(1.0, c=5.0).item() == 2
    assert [g.item() for g in grad(f, argnums=[0])(3.0)] == [2]
    assert value_and_grad(f)(x=3.0, y=5.0)[1].item() == 5
    assert jacrev(f)(x=3.0).item() == 2
    assert jacfwd(f, argnums=1)(3.0, y=4.0).item() == 3


class Scaled:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * x * self.factor

    def method(self, x):
        return self(x)

    @classmethod
    def build(cls, x):
        return cls(2.0)(x)

    @staticmethod
    def plain(x):
        return x * x


@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (Scaled(3.0), 12),
        (Scaled(3.0).method, 12),
        (Scaled.build, 8),
        (Scaled.plain, 4),
        (functools.partial(lambda k, x: k * x * x, 5.0), 20),
        (functools.partial(lambda x, k: k * x * x, k=5.0), 20),
        (functools.partial(Scaled(3.0)), 12),
        (grad(lambda x: x * x * x), 12),
        (ops.sin, np.cos(2.0)),
        (np.sin, np.cos(2.0)),
    ],
    ids=range(10),
)
@pytest.mark.parametrize(
    "transform", [grad, jacrev, jacfwd, lambda f: vmap(grad(f)), lambda f: lambda x: vjp(f, x)[1](1.0)[0]]
)
def test_any_callable_can_be_transformed(transform, fn, expected):
    x = np.array([2.0]) if "vmap" in transform.__code__.co_names else 2.0
    assert transform(fn)(x).item() == pytest.approx(expected)


def test_a_decorator_keeps_name_and_doc():
    @grad
    def slope(x):
        """The slope."""
        return x * x

    assert (slope.__name__, slope.__doc__) == ("slope", "The slope.")


def test_values_are_concrete_under_derivatives():
    seen = []

    def f(x):
        seen.extend([float(x), x.item(), x.numpy().tolist(), int(x), f"{x:.1f}", repr(x), bool(x > 1), x.tolist()])
        while x < 10:  # Python decides on values
            x = x * x
        return x

    for derivative in (
        lambda: grad(f)(2.0),
        lambda: jvp(f, (2.0,), (1.0,))[1],
        lambda: vjp(f, 2.0)[1](1.0)[0],
        lambda: linearize(f, 2.0)[1](1.0),
        lambda: jacfwd(f)(2.0),
    ):
        seen.clear()
        assert derivative().item() == 32
        assert seen[:5] == [2.0, 2.0, 2.0, 2, "2.0"]
        assert "2." in seen[5]
        assert seen[6:] == [True, 2.0]


def test_numpy_functions_are_recorded_or_refused_under_derivatives():
    for derivative in (grad, lambda f: lambda x: jvp(f, (x,), (1.0,))[1], lambda f: lambda x: linearize(f, x)[1](1.0)):
        assert derivative(lambda x: np.sin(x) * np.float64(2))(1.0).item() == pytest.approx(2 * np.cos(1.0))
        with pytest.raises(fd.errors.ArgumentTypeError, match="cut its gradient"):
            derivative(lambda x: x * np.asarray(x))(1.0)
        with pytest.raises(fd.errors.ArgumentTypeError, match="cut the gradient"):
            derivative(np.common_type)(1.0)


def test_python_floats_are_weak_as_arguments():
    x = fd.ones(2, dtype="bfloat16")
    value, g = value_and_grad(lambda s, x: (s * x).sum())(2.0, x)
    assert value.dtype == g.dtype == x.dtype
    assert jvp(lambda s, x: s * x, (2.0, x), (1.0, x))[1].dtype == x.dtype
    assert grad(lambda p: (p["s"] * p["x"]).sum())({"s": 2.0, "x": x})["x"].dtype == x.dtype
    assert grad(lambda s: s * s)(2.0).dtype == np.dtype("float64")  # in x64 mode


def test_complex_derivatives_follow_jax():
    z = fd.tensor(1.0 + 2.0j, device=fd.Device.numpy())
    cases = [
        (grad, jax.grad, lambda xp: lambda z: xp.abs(z) ** 2, {}),
        (grad, jax.grad, lambda xp: lambda z: z * z * z, {"holomorphic": True}),
        (hessian, jax.hessian, lambda xp: lambda z: z * z * z, {"holomorphic": True}),
        (jacrev, jax.jacrev, lambda xp: lambda z: xp.real(z) * xp.imag(z), {}),
    ]
    for ours, theirs, f, options in cases:
        np.testing.assert_allclose(ours(f(ops), **options)(z).numpy(), jax.jit(theirs(f(jnp), **options))(1.0 + 2.0j))
    np.testing.assert_allclose(jacfwd(lambda x: x * 1j)(2.0).numpy(), 1j)


# --- no_grad and stop_gradient


@pytest.mark.parametrize("one", [*ALL], ids=name)
def test_no_grad_and_stop_gradient_make_constants(one):
    def cut(lib):  # sin(x) * c, with c = exp(x) held constant
        def f(x):
            if lib is not OURS:
                return lib.xp.sin(x) * jax.lax.stop_gradient(lib.xp.exp(x))
            with fd.no_grad():
                c = lib.xp.exp(x)
            half = fd.stop_gradient({"c": [lib.xp.exp(x), None, "text"]})["c"][0] / 2
            return lib.xp.sin(x) * (c / 2 + half)

        return f

    out = one(OURS, cut(OURS))(fd.tensor(POINT))
    np.testing.assert_allclose(out.numpy(), jax.jit(one(JAX, cut(JAX)))(POINT), rtol=1e-12)


def test_no_grad_as_a_decorator_and_transforms_inside():
    @fd.no_grad()
    def frozen(x):
        return x * x

    assert grad(lambda x: frozen(x) * x)(3.0).item() == 9
    with fd.no_grad():
        assert grad(lambda x: x * x)(3.0).item() == 6
        assert jvp(lambda x: x * x, (3.0,), (1.0,))[1].item() == 6
        assert linearize(lambda x: x * x, 3.0)[1](1.0).item() == 6


def test_without_autodiff_is_a_constant_at_every_level():
    def f(x):
        return x * x.without_autodiff()

    assert grad(f)(3.0).item() == 3
    assert jvp(f, (3.0,), (1.0,))[1].item() == 3
    assert vmap(grad(f))(np.array([3.0])).tolist() == [3]
    assert grad(lambda x: vmap(f)(x).sum())(np.array([3.0])).tolist() == [3]
    assert hessian(f)(3.0).item() == 0
