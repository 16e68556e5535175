"""vmap: axes, structures, closures, nesting; it is a loop written without one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import functad as fd
from functad import hessian, jacrev, jvp, linearize, ops, vjp, vmap
from functad.backends.batch import Batch
from functad.backends.numpy import NumPy
from functad.ops.op import Op

grad = fd.grad


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


def array(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape)


X, Y = array(3, 4), array(3, 4) + 1


@pytest.mark.parametrize(
    ("f", "options", "args"),
    [
        (lambda x, y: x * y, {}, (X, Y)),
        (lambda x, y: x @ y, {}, (X, Y)),
        (lambda x, y: x @ y, {"in_axes": (0, None)}, (X, Y[0])),
        (lambda x, y: x @ y, {"in_axes": (None, 1)}, (X, Y.T)),
        (lambda x, y: x @ y, {"in_axes": (1, 0)}, (X.T, Y)),
        (lambda x, y: x @ y, {"in_axes": (-1, -2)}, (X.T, Y)),
        (lambda x, y: x.T @ y, {"in_axes": (2, None), "out_axes": 1}, (array(4, 3, 2), Y.T)),
        (lambda x: x * 2, {"in_axes": 1, "out_axes": -1}, (array(2, 3, 4),)),
        (lambda x: (x, x.sum()), {"out_axes": (1, 0)}, (X,)),
        (lambda x: (x, 3.0), {"out_axes": (0, None)}, (X,)),
        (lambda x: {"a": x, "b": [x.sum(), x * 2]}, {"out_axes": {"a": 1, "b": 0}}, (X,)),
        (lambda x: 2.0, {}, (X,)),
        (lambda x: 2.0, {"in_axes": None, "axis_size": 5}, (X,)),
        (lambda x, y: x + y, {"in_axes": (0, None), "axis_size": 3}, (X, 1.0)),
        (lambda p, y: p["w"] * y + p["b"][0], {"in_axes": ({"w": 0, "b": None}, 0)}, ({"w": X, "b": [2.0]}, Y)),
        (lambda p, y: p["w"] * y + p["b"][0], {"in_axes": ({"w": 0, "b": [1]}, 0)}, ({"w": X, "b": [Y.T]}, Y)),
        (lambda p: p[0] + p[1][0], {"in_axes": ((0, (0, None)),)}, ((X, (Y, None)),)),
        (lambda p, q: p, {"in_axes": (0, None)}, (X, None)),
        (lambda x: x[::-1].cumsum(), {"in_axes": [1]}, (X,)),
        (lambda i, x: x[i] * 2, {}, (np.array([2, 0, 1]), X)),
        (lambda x: (x > 0).any(), {}, (X,)),
    ],
)  # fmt: skip
def test_vmap_agrees_with_jax(f, options, args, device):
    with fd.set_default_device(device):
        ours = vmap(f, **options)(*args)
    theirs = jax.jit(jax.vmap(f, **options))(*jax.tree.map(jnp.asarray, args))
    flat = fd.tree.leaves(ours)
    assert fd.tree.flatten(fd.tree.map(lambda x: 0, ours)) == fd.tree.flatten(fd.tree.map(lambda x: 0, theirs))
    for a, b in zip(flat, jax.tree.leaves(theirs), strict=True):
        assert isinstance(a, fd.Tensor)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-12)


def test_a_mapped_index_picks_per_row(device):
    table = fd.tensor(X, device=device)
    picked = vmap(lambda i: table[i] * 2)(fd.tensor([2, 0, 1, 1], device=device))
    np.testing.assert_allclose(picked.numpy(), 2 * X[[2, 0, 1, 1]])
    with pytest.raises(fd.errors.ConcreteValueError, match=r"fd.tensor\(a\)\[i\]"):
        vmap(lambda i: X[i])(fd.arange(3))


def test_keyword_arguments_are_mapped_over_axis_0():
    assert vmap(lambda x, *, y: x * y.sum(), in_axes=1)(X, y=np.ones((4, 2))).shape == (4, 3)
    assert vmap(lambda **p: p["a"]["k"] + 1)(a={"k": X}).shape == (3, 4)


def test_rows_without_any_array():
    assert vmap(lambda: fd.ones(2), axis_size=3)().shape == (3, 2)


def test_an_argument_that_is_not_mapped_passes_as_it_is():
    seen = []
    vmap(lambda x, k: (seen.append(k), x)[1], in_axes=(0, None))(X, {"text": "abc", "n": 3})
    assert seen == [{"text": "abc", "n": 3}]


def test_nested_vmaps_map_different_axes(device):
    x, y = (fd.tensor(a, device=device) for a in (X, Y))
    dots = vmap(lambda a: vmap(lambda b: (a * b).sum())(y))(x)
    np.testing.assert_allclose(dots.numpy(), X @ Y.T, rtol=1e-12)
    gaps = vmap(vmap(lambda a, b: a - b, in_axes=(0, None)), in_axes=(None, 1), out_axes=2)(x, y.T)  # columns of y.T
    np.testing.assert_allclose(gaps.numpy(), X[:, :, None] - Y.T[None], rtol=1e-12)
    cube = array(2, 3, 4)
    triple = vmap(vmap(vmap(ops.exp)))(fd.tensor(cube, device=device))
    np.testing.assert_allclose(triple.numpy(), np.exp(cube), rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_axes_are_a_loop(data):
    def axes(ndim):
        return data.draw(st.integers(-ndim, ndim - 1))

    size, shape = 2, data.draw(st.sampled_from([(), (3,), (3, 2), (1, 2), (0,)]))
    args, in_axes = [], []
    for i in range(data.draw(st.integers(1, 3))):
        mapped = data.draw(st.booleans()) or i == 0
        rows = np.random.default_rng(i).normal(size=((size, *shape) if mapped else shape))
        axis = axes(len(shape) + 1) if mapped else None
        args.append(np.moveaxis(rows, 0, axis) if mapped else rows)
        in_axes.append(axis)
    out_axis = axes(len(shape) + 1)

    def f(*xs):
        return ops.sin(sum(x * (i + 1) for i, x in enumerate(xs)))

    out = vmap(f, in_axes=tuple(in_axes), out_axes=out_axis)(*[fd.tensor(a, device=fd.Device.numpy()) for a in args])

    def row(r):
        return [a if k is None else np.take(a, r, k) for a, k in zip(args, in_axes, strict=True)]

    expected = np.stack([np.sin(sum(x * (i + 1) for i, x in enumerate(row(r)))) for r in range(size)], out_axis)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-12)


def test_zero_rows(device):
    empty = fd.tensor(np.zeros((0, 3)), device=device)
    assert vmap(lambda x: ops.sin(x).sum())(empty).shape == (0,)
    assert vmap(lambda x: (x[np.array([0, 2])], ops.sort(x)))(empty)[0].shape == (0, 2)
    assert vmap(grad(lambda x: (x[0] * x).sum()))(empty).shape == (0, 3)
    assert grad(lambda w: vmap(lambda x: (x * w).sum())(empty).sum())(fd.tensor(2.0, device=device)).item() == 0


def test_closures_over_tensors_of_outer_transforms(device):
    w = fd.tensor(0.4, device=device)
    x = fd.tensor(X, device=device)
    expected = jax.jit(jax.grad(lambda w: jax.vmap(lambda x: jnp.sin(x * w).sum() * w)(X).sum()))(0.4)

    def loss(w):
        return vmap(lambda row: ops.sin(row * w).sum() * w)(x).sum()

    np.testing.assert_allclose(grad(loss)(w).item(), expected, rtol=1e-12)
    np.testing.assert_allclose(jvp(loss, (w,), (1.0,))[1].item(), expected, rtol=1e-12)
    tracked = w.autodiff().require_grad()
    np.testing.assert_allclose(tracked.grad(loss(tracked).backward()).item(), expected, rtol=1e-12)
    np.testing.assert_allclose(vmap(grad(loss))(w.reshape(1)).item(), expected, rtol=1e-12)


def test_tensors_on_an_autodiff_device_stay_tracked_through_vmap(device):
    x = fd.tensor(X, device=device.autodiff()).require_grad()
    y = vmap(lambda row: row * row.sum(), in_axes=1)(x)
    assert y.is_tracked
    expected = jax.jit(jax.grad(lambda x: jax.vmap(lambda r: r * r.sum(), in_axes=1)(x).sum()))(X)
    np.testing.assert_allclose(x.grad(y.sum().backward()).numpy(), expected, rtol=1e-12)


def test_a_tape_inside_the_mapped_function_gives_each_row_its_gradient(device):
    def slope(x):
        leaf = x.autodiff().require_grad()
        return leaf.grad((leaf * leaf * leaf).sum().backward())

    rows = vmap(slope)(fd.tensor(X, device=device))
    np.testing.assert_allclose(rows.numpy(), 3 * X**2, rtol=1e-12)


def test_a_constant_made_inside_is_the_same_for_all_rows():
    out = vmap(lambda x: (fd.ones(2) * 3, x.sum() * fd.arange(2)))(X)
    assert out[0].tolist() == [[3, 3]] * 3
    assert out[1].shape == (3, 2)


def test_per_row_integers_and_bools_keep_their_dtypes():
    n, b = vmap(lambda x: (x.astype(int), x > 0))(X)
    assert (n.dtype, b.dtype) == (fd.tensor(1).dtype, np.dtype(bool))


def test_derivatives_per_row_agree_with_jax(device):
    def f(xp):
        return lambda w, x: (xp.tanh(w * x) * x).sum()

    w, x = array(3, 4), X
    with fd.set_default_device(device):
        per_row = vmap(hessian(f(ops)))(w, x)
        shared = vmap(grad(f(ops)), in_axes=(None, 0))(w[0], x)
    np.testing.assert_allclose(per_row.numpy(), jax.jit(jax.vmap(jax.hessian(f(jnp))))(w, x), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(
        shared.numpy(), jax.jit(jax.vmap(jax.grad(f(jnp)), in_axes=(None, 0)))(w[0], x), rtol=1e-10
    )


def test_an_op_without_a_rule_for_rows_runs_under_jax_vmap(device):
    # two outputs, one an integer, and a rule of its own: nothing says how it runs over rows
    polar = Op("polar", lambda xp, x, y: (x * y, xp.asarray(x > y)))
    polar.pulls = [polar.derivative(lambda g, y: g[0] * y, 1), polar.derivative(lambda g, x: g[0] * x, 1)]
    polar.pushes = [
        polar.derivative(lambda t, y: (t * y, None), 1),
        polar.derivative(lambda t, x: (t * x, None), 1),
    ]
    x, y = (fd.tensor(a, device=device) for a in (X, Y))
    product, larger = vmap(polar)(x, y)
    np.testing.assert_allclose(product.numpy(), X * Y, rtol=1e-12)
    assert larger.tolist() == (X > Y).tolist()

    def shared(v):
        return vmap(lambda a: polar(a, v)[0], in_axes=0)(x).sum()

    np.testing.assert_allclose(grad(shared)(y[0]).numpy(), X.sum(0), rtol=1e-12)
    np.testing.assert_allclose(jvp(shared, (y[0],), (y[1],))[1].item(), (X * Y[1]).sum(), rtol=1e-12)
    np.testing.assert_allclose(linearize(shared, y[0])[1](y[1]).item(), (X * Y[1]).sum(), rtol=1e-12)
    np.testing.assert_allclose(vmap(grad(lambda a: polar(a, a)[0].sum()))(x).numpy(), 2 * X, rtol=1e-12)
    np.testing.assert_allclose(vmap(vmap(lambda a, b: polar(a, b)[0]))(x, y).numpy(), X * Y, rtol=1e-12)
    assert vmap(polar)(x[:0], y[:0])[0].shape == (0, 4)


def counted(monkeypatch):
    """The ops that the NumPy backend computes from now on, and the size of the largest array they see."""
    seen = []
    compiled = NumPy.compiled

    def counting(op, params):
        def call(*arrays):
            out = compiled(op, params)(*arrays)
            seen.append((op.name, max(a.size for a in (*arrays, out))))
            return out

        return call

    monkeypatch.setattr(NumPy, "compiled", staticmethod(counting))
    return seen


def test_elementwise_ops_and_reductions_are_one_call_for_all_rows(monkeypatch):
    x = fd.tensor(array(500, 4), device=fd.Device.numpy())
    seen = counted(monkeypatch)
    vmap(lambda row: (ops.exp(row) * row.sum() + 2).max())(x)
    assert [name for name, _ in seen] == ["exp", "sum", "reshape", "mul", "add", "max"]
    assert all(size == 2000 for name, size in seen if name in ("exp", "mul", "add"))


def test_shared_weights_get_no_gradient_per_row(monkeypatch):
    x = fd.tensor(array(64, 32), device=fd.Device.numpy())
    w = fd.tensor(array(32, 16), device=fd.Device.numpy())
    seen = counted(monkeypatch)
    g = grad(lambda w: vmap(lambda row: ops.tanh(row @ w).sum())(x).sum())(w)
    assert max(size for _, size in seen) == 64 * 32  # and not 64 * 32 * 16
    np.testing.assert_allclose(g.numpy(), x.numpy().T @ (1 - np.tanh(x.numpy() @ w.numpy()) ** 2), rtol=1e-10)


def test_a_batch_at_the_base_is_seen_by_no_other_transform():
    x = fd.tensor(X, device=fd.Device.numpy())
    inner = []
    vmap(lambda row: (inner.append(type(row._backend)), row)[1])(x)
    assert inner == [Batch]
    out, pullback = vjp(vmap(lambda row: row * 2), x)
    assert type(out._backend) is NumPy
    assert type(pullback(X)[0]._backend) is NumPy
    assert jacrev(vmap(lambda row: row.sum()))(x).shape == (3, 3, 4)
