"""vjp, jvp, linearize, Jacobians and Hessians: structures as JAX nests them, and their values."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
from functad import hessian, hvp, jacfwd, jacrev, jvp, linearize, ops, vjp


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


def model(p, x, n):
    y = ops.tanh(x @ p["w"]) * n
    return {"y": y, "loss": (y * y).sum(), "count": n + 1}


P = {"w": np.arange(6.0).reshape(3, 2) / 10, "b": np.ones(2)}
X = np.linspace(-1, 1, 12).reshape(4, 3)
POINT = np.array([0.7, -0.3, 1.2])
DIRECTION = np.array([0.5, 1.5, -1.0])
WEIGHTS = np.array([1.0, -2.0, 0.5])


def jax_model(p, x):
    y = jnp.tanh(x @ p["w"]) * 2
    return {"y": y, "loss": (y * y).sum()}


def test_vjp_has_the_structures_of_output_and_input(device):
    p, x = fd.tree.map(lambda a: fd.tensor(a, device=device), (P, X))
    out, pullback = vjp(model, p, x, 2)
    _, theirs = jax.vjp(jax_model, P, X)
    for seed in (1.0, 2.0):  # the pullback may be called many times
        cotangent = {"y": np.full((4, 2), seed), "loss": seed}
        dp, dx, dn = pullback({**cotangent, "count": None})
        jp, jx = theirs(jax.tree.map(jnp.asarray, cotangent))
        np.testing.assert_allclose(dp["w"].numpy(), jp["w"], rtol=1e-12)
        np.testing.assert_allclose(dx.numpy(), jx, rtol=1e-12)
        assert dp["b"].tolist() == [0, 0]  # not reached
        assert dn is None
    assert out["count"].item() == 3
    assert dx.device == device
    pullback({**cotangent, "count": np.zeros((), jax.dtypes.float0)})  # anything may stand at an integer


def test_jvp_and_linearize_have_the_structures_of_input_and_output(device):
    p, x = fd.tree.map(lambda a: fd.tensor(a, device=device), (P, X))
    tangents = ({"w": P["w"] + 1, "b": P["b"]}, X * 2)
    _, theirs = jax.jvp(jax_model, (P, X), tangents)
    out, moved, aux = jvp(lambda p, x, n: (model(p, x, n), "aux"), (p, x, 2), (*tangents, None), has_aux=True)
    value, push, text = linearize(lambda p, x, n: (model(p, x, n), "aux"), p, x, 2, has_aux=True)
    assert aux == text == "aux"
    for result in (moved, push(*tangents, None), push(*tangents, 0)):
        np.testing.assert_allclose(result["y"].numpy(), theirs["y"], rtol=1e-12)
        np.testing.assert_allclose(result["loss"].item(), theirs["loss"], rtol=1e-12)
        assert result["count"] is None
    assert out["count"].item() == value["count"].item() == 3


def test_vjp_aux_is_not_differentiated():
    value, pullback, aux = vjp(lambda x: (x * x, {"x": x, "text": "aux"}), 3.0, has_aux=True)
    assert (value.item(), pullback(1.0)[0].item(), aux["x"].item(), aux["text"]) == (9, 6, 3, "aux")
    assert not aux["x"].is_tracked


def test_tangents_of_what_does_not_move_are_zeros():
    out, moved = jvp(lambda x: (x, fd.ones(2), 3.0, x.astype(int)), (np.ones(3),), (np.ones(3),))
    assert [m if m is None else m.tolist() for m in moved] == [[1, 1, 1], [0, 0], 0, None]
    assert out[3].dtype == fd.tensor(1).dtype


def test_linearize_runs_the_function_once():
    calls = []
    _, push = linearize(lambda x: (calls.append(1), x * x)[1], 3.0)
    assert [push(t).item() for t in (1.0, 2.0, 0.0)] == [6, 12, 0]
    assert len(calls) == 1


def test_outputs_that_are_inputs_or_shared():
    out, pullback = vjp(lambda x, y: (x, x, y), 2.0, 3.0)
    assert [o.item() for o in out] == [2, 2, 3]
    assert [g.item() for g in pullback((1.0, 10.0, 100.0))] == [11, 100]
    assert jvp(lambda x: (x, x), (2.0,), (5.0,))[1][1].item() == 5
    assert linearize(lambda x: (x, x * x), 2.0)[1](1.0)[1].item() == 4


# --- jacobians


def as_jax(tree):
    return jax.tree.map(lambda x: x.numpy(), tree, is_leaf=lambda x: isinstance(x, fd.Tensor))


def assert_trees_equal(ours, theirs):
    ours, theirs = as_jax(ours), jax.tree.map(np.asarray, theirs)
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def curved(xp, p, x):
    y = xp.tanh(x @ p["w"] + p["b"])
    return {"y": y.sum(0), "s": (y[0, 0] * x[1, 2],)}


@functools.cache
def jax_jacobians(argnums):
    f = functools.partial(curved, jnp)
    return jax.jit(lambda p, x: (jax.jacrev(f, argnums)(p, x), jax.hessian(f, argnums)(p, x)))(P, X[:2])


@pytest.mark.parametrize(("argnums", "where"), [(0, "numpy"), (1, "numpy"), ((1,), "numpy"), ((0, 1), "cpu")], ids=str)
def test_jacobians_are_nested_as_jax_nests_them(argnums, where):
    first, second = jax_jacobians(argnums)
    f = functools.partial(curved, ops)
    with fd.set_default_device(fd.Device.enumerate(where)[0]):
        assert_trees_equal(jacrev(f, argnums)(P, X[:2]), first)
        assert_trees_equal(jacfwd(f, argnums)(P, X[:2]), first)
        assert_trees_equal(hessian(f, argnums)(P, X[:2]), second)


def test_jacobian_aux_integers_and_empty_arrays():
    def f(p):
        return ({"y": p["x"] * p["n"], "i": p["n"]}, "aux")

    p = {"x": np.array([1.0, 2.0]), "n": np.array([3, 4]), "e": np.zeros((0, 2))}
    jac, aux = jacfwd(f, has_aux=True)(p)
    assert aux == "aux"
    assert jac["y"]["x"].tolist() == [[3, 0], [0, 4]]
    assert jac["y"]["n"] is None
    assert jac["y"]["e"].shape == (2, 0, 2)
    assert jac["i"] == {"x": None, "n": None, "e": None}
    rev, _ = jacrev(lambda p: (f(p)[0]["y"], "aux"), has_aux=True)(p)
    assert rev["x"].tolist() == [[3, 0], [0, 4]]
    assert rev["n"] is None
    assert rev["e"].shape == (2, 0, 2)
    curved, _ = hessian(lambda p: ((p["x"] ** 2 * p["n"]).sum(), "aux"), has_aux=True)(p)
    assert curved["x"]["x"].tolist() == [[6, 0], [0, 8]]
    assert curved["x"]["n"] is None


def test_hvp_is_the_hessian_times_the_vector(device):
    def f(x, p):
        return (ops.sin(x) * p["a"]).sum() * p["b"]

    x, p = fd.tensor(POINT, device=device), {"a": fd.tensor(WEIGHTS, device=device), "b": 2.0}
    np.testing.assert_allclose(
        hvp(lambda x: f(x, p), (x,), (DIRECTION,)).numpy(), -2 * np.sin(POINT) * WEIGHTS * DIRECTION, rtol=1e-12
    )

    def jf(x, p):
        return (jnp.sin(x) * p["a"]).sum() * p["b"]

    q = {"a": WEIGHTS, "b": 2.0}
    v = (DIRECTION, {"a": DIRECTION, "b": 0.5})
    expected = jax.jvp(jax.grad(jf, (0, 1)), (POINT, q), v)[1]
    assert_trees_equal(hvp(f, (x, p), v), expected)
