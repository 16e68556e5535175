"""Sorting, the largest elements, and what runs along an axis."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import draw, exactly
from hypothesis import given, settings
from hypothesis import strategies as st

import functad as fd
from functad import ops
from functad.dispatch import bind
from functad.errors import ArgumentTypeError, OutOfBoundsError, ShapeError
from functad.testing import check_grads
from functad.transforms.forward import jvp
from functad.transforms.jacobian import hessian
from functad.transforms.vmap import vmap

INF = float("inf")
NAN = float("nan")
DEVICES = [fd.Device.cpu(), fd.Device.numpy()]


def on(device, data, dtype="float32"):
    return fd.tensor(data, dtype=dtype, device=device)


def close(got, want, rtol=1e-12, atol=1e-12):
    np.testing.assert_allclose(got.numpy(), want, rtol=rtol, atol=atol)


def compiled(device, fn):
    """`fn`, on XLA as one program: one compilation instead of one per op."""
    return fn if device.name == "numpy" else fd.jit(fn)


# --- sort, argsort, topk


@pytest.mark.parametrize("axis", [0, -1, None])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
def test_sort_and_argsort_are_numpy_s(device, dtype, axis):
    data = np.random.default_rng(0).integers(-2, 3, (3, 5))  # with many ties
    x = fd.tensor(data, dtype=dtype, device=device)
    host = x.numpy().astype(np.float64)
    exactly(ops.sort(x, axis), np.sort(host, axis))
    assert ops.argsort(x, axis).tolist() == np.argsort(host, axis, stable=True).tolist()
    assert ops.sort(x, axis).dtype == x.dtype
    assert ops.argsort(x, axis).dtype == np.int32


def test_equal_elements_keep_their_order_both_ways(device):
    x = on(device, [1.0, 2.0, 1.0, 2.0, 0.0, -0.0])
    assert ops.argsort(x).tolist() == [4, 5, 0, 2, 1, 3]
    assert ops.argsort(x, descending=True).tolist() == [1, 3, 0, 2, 4, 5]
    assert ops.topk(-x, 6)[1].tolist() == [4, 5, 0, 2, 1, 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_nan_is_the_largest(device, dtype):
    x = on(device, [2.0, NAN, INF, -INF, NAN], dtype)
    assert ops.argsort(x).tolist() == [3, 0, 2, 1, 4]
    assert ops.argsort(x, descending=True).tolist() == [1, 4, 2, 0, 3]
    values, indices = ops.topk(x, 3)
    assert indices.tolist() == [1, 4, 2]
    exactly(values, [NAN, NAN, INF])
    exactly(ops.sort(x), [-INF, 2, INF, NAN, NAN])


def test_topk_along_an_axis(device):
    x = fd.tensor([[1, 5, 3], [4, 2, 6]], device=device)
    values, indices = ops.topk(x, 2)
    assert (values.tolist(), indices.tolist()) == ([[5, 3], [6, 4]], [[1, 2], [2, 0]])
    values, indices = ops.topk(x, 1, axis=0)
    assert (values.tolist(), indices.tolist()) == ([[4, 5, 6]], [[1, 0, 1]])
    assert ops.topk(x, 3, axis=None)[0].tolist() == [6, 5, 4]
    assert ops.topk(x, 0)[0].shape == (2, 0)
    assert ops.topk(x[:, :0], 0)[0].shape == (2, 0)


def test_gradients_follow_the_permutation(device):
    w = on(device, [1.0, 10.0, 100.0, 1000.0])
    x = on(device, [3.0, 1.0, 3.0, 2.0])  # ties are not shared: each slot has one source
    exactly(fd.grad(lambda x: (ops.sort(x) * w).sum())(x), [100, 1, 1000, 10])
    exactly(fd.grad(lambda x: (ops.sort(x, descending=True) * w).sum())(x), [1, 1000, 10, 100])
    exactly(fd.grad(lambda x: (ops.topk(x, 2)[0] * w[:2]).sum())(x), [1, 0, 10, 0])
    exactly(jvp(ops.sort, (x,), (w,))[1], [10, 1000, 1, 100])
    rows = on(device, [[3.0, 1.0], [1.0, 2.0]])
    exactly(vmap(fd.grad(lambda x: (ops.sort(x) * w[:2]).sum()))(rows), [[10, 1], [1, 10]])


def test_sort_is_differentiable_again():
    w = np.array([1.0, 2.0, 3.0])
    for fn in (
        lambda x: ops.sort(x * x) * x * fd.tensor(w, device=x.device),
        lambda x: ops.topk(x * x, 2)[0] * x[:2],
        lambda x: ops.cummax(x * x) * x,
    ):
        check_grads(fn, (on(fd.Device.numpy(), draw(3), "float64"),))


def test_the_choice_is_that_of_the_forward_run():
    x = fd.tensor(draw(40).astype(np.float32))
    fn = lambda x: ops.topk(ops.sin(x * 3.7) * 1.1 + x / 3.0, 5)[0].sum()
    close(fd.jit(fd.grad(fn))(x), fd.grad(fn)(x).numpy(), 1e-5)
    assert np.count_nonzero(fd.grad(fn)(x).numpy()) == 5


def test_order_errors():
    x = fd.ones((2, 3))
    with pytest.raises(ShapeError, match=r"topk: k=4 elements of axis 1, which has 3 \(shape \(2, 3\)\)"):
        ops.topk(x, 4)
    with pytest.raises(ShapeError, match="k=-1"):
        ops.topk(x, -1)
    with pytest.raises(ArgumentTypeError, match=r"topk: k must be an int, got 1\.5"):
        ops.topk(x, 1.5)
    for fn in (ops.sort, ops.argsort, lambda x, axis: ops.topk(x, 1, axis), ops.cumsum, ops.cumprod, ops.cummax):
        with pytest.raises(ShapeError, match="axis 2 is out of range"):
            fn(x, axis=2)
        with pytest.raises(ShapeError, match="0-d"):
            fn(fd.tensor(1.0), axis=-1)
        with pytest.raises(ArgumentTypeError, match="axis must be an int"):
            fn(x, axis=(0, 1))


def test_gather_and_scatter_along_an_axis(device):
    x, g = on(device, [1.0, 2.0, 3.0]), on(device, [1.0, 10.0, 100.0])
    indices = fd.tensor([0, 0, 2], device=device)
    gather = lambda x: bind(ops.take_along_axis_op, (x, indices), (0,))
    exactly(gather(x), [1, 1, 3])
    exactly(fd.grad(lambda x: (gather(x) * g).sum())(x), [11, 0, 100])
    scatter = lambda x: bind(ops.put_along_axis_op, (x, indices), (0, 4))
    exactly(scatter(g), [11, 0, 100, 0])
    exactly(fd.grad(lambda g: (scatter(g) * on(device, [1.0, 2.0, 3.0, 4.0])).sum())(g), [1, 1, 3])


def test_many_small_halves_are_scattered_in_float32(device):
    ones, zeros = on(device, np.ones(3000), "bfloat16"), fd.tensor(np.zeros(3000, np.int32), device=device)
    assert bind(ops.put_along_axis_op, (ones, zeros), (0, 1)).tolist() == [np.float32(3000).astype(ones.dtype)]


# --- running sums and products


@pytest.mark.parametrize("axis", [0, -1, None])
def test_running_values(x64, device, axis):
    x = draw(3, 4)
    names = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
    got = compiled(device, lambda x: [getattr(ops, name)(x, axis) for name in names])(on(device, x, "float64"))
    flat, at = (x.ravel(), 0) if axis is None else (x, axis)
    for y, want in zip(
        got,
        (
            np.cumsum(x, axis),
            np.cumprod(x, axis),
            np.maximum.accumulate(flat, at),
            np.minimum.accumulate(flat, at),
            np.logaddexp.accumulate(flat, at),
        ),
        strict=True,
    ):
        close(y, want)


def test_running_values_of_nothing_and_of_a_scalar(device):
    for fn in (ops.cumsum, ops.cumprod, ops.cummax, ops.logcumsumexp):
        assert fn(on(device, np.zeros((2, 0))), axis=1).shape == (2, 0)
        assert fn(on(device, 2.0)).tolist() == [2.0]
        assert fd.grad(lambda x, fn=fn: fn(x).sum())(on(device, np.zeros((0, 2)))).shape == (0, 2)


def test_cumprod_at_zeros(device):
    x = on(device, [2.0, 0.0, 3.0, 4.0])
    exactly(fd.grad(lambda x: ops.cumprod(x).sum())(x), [1, 32, 0, 0])
    exactly(jvp(ops.cumprod, (x,), (on(device, [1.0, 1.0, 1.0, 1.0]),))[1], [1, 2, 6, 24])
    last = compiled(device, hessian(lambda x: ops.cumprod(x)[-1]))(on(device, [2.0, 3.0, 0.0, 0.0]))
    want = np.zeros((4, 4))
    want[2, 3] = want[3, 2] = 6
    exactly(last, want)


def cumprod_jacobian(x):
    return np.array(
        [[math.prod(x[:j] + x[j + 1 : k + 1]) if j <= k else 0 for j in range(len(x))] for k in range(len(x))]
    )


def sum_of_cumprod_hessian(x):
    n = len(x)
    h = np.zeros((n, n))
    for k in range(n):
        for i in range(k + 1):
            for j in range(k + 1):
                if i != j:
                    h[i, j] += math.prod([x[m] for m in range(k + 1) if m not in (i, j)])
    return h


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=5, max_size=5), st.lists(st.integers(-3, 3), min_size=5, max_size=5))
def test_cumprod_is_exact_at_integers(x, w):
    for device in DEVICES:
        y, g = on(device, x), on(device, w)
        exactly(fd.grad(lambda y, g: (ops.cumprod(y) * g).sum())(y, g), np.array(w) @ cumprod_jacobian(x))
        exactly(jvp(ops.cumprod, (y,), (g,))[1], cumprod_jacobian(x) @ np.array(w))
        exactly(hessian(lambda y: ops.cumprod(y).sum())(y), sum_of_cumprod_hessian(x))


def test_cumprod_with_infinity_has_no_nan_where_the_cotangent_is_zero(device):
    x = on(device, [2.0, INF, 3.0])
    exactly(fd.grad(lambda x: ops.cumprod(x)[0])(x), [1, 0, 0])


@pytest.mark.parametrize("length", [1, 2, 7, 16])
@pytest.mark.parametrize("reverse", [False, True])
def test_recurrence_is_a_loop(device, length, reverse):
    x, y = draw(length), draw(length, seed=1)
    want, total = np.zeros(length), 0.0
    for i in reversed(range(length)) if reverse else range(length):
        want[i] = total = x[i] * total + y[i]
    got = bind(ops.TABLE["recurrence"], (on(device, x), on(device, y)), (0, reverse))
    close(got, want, 1e-5, 1e-5)


def test_derivatives_along_an_axis():
    x = on(fd.Device.numpy(), draw(2, 4), "float64")
    for fn in (
        lambda x: ops.cumsum(x * x, 1),
        ops.cumprod,
        lambda x: ops.cumprod(x, 0),
        lambda x: ops.logcumsumexp(x, 1),
        lambda x: ops.cummin(x * x, 0),
    ):
        check_grads(fn, (x,))


def test_second_derivatives_are_jax_s(x64):
    x = draw(5)
    mine = lambda x: (ops.cumprod(x) * ops.sort(x * x)).sum()
    theirs = lambda x: (jnp.cumprod(x) * jnp.sort(x * x)).sum()
    close(fd.jit(hessian(mine))(fd.tensor(x)), jax.jit(jax.hessian(theirs))(x), 1e-9)


def test_running_sums_of_halves_round_once(device):
    x = on(device, np.ones(3000), "float16")
    assert ops.cumsum(x)[-1].item() == 3000
    exactly(fd.grad(lambda x: ops.cumsum(x).sum())(on(device, np.ones(3000), "bfloat16"))[0], 3008)  # the nearest
    near = on(device, np.full(100, 1.001), "float16")
    g = compiled(device, fd.grad(lambda x: ops.cumprod(x)[-1]))(near)
    assert math.isclose(g[0].item(), 1.0009765625**99, rel_tol=1e-3)
    ramp = on(device, np.linspace(0, 10, 50), "float16")
    wide = on(fd.Device.numpy(), ramp.numpy().astype(np.float64), "float64")
    w = np.linspace(1, 2, 50)
    g = fd.grad(lambda x: (ops.logcumsumexp(x) * fd.tensor(w, x.dtype, x.device)).sum())
    close(compiled(device, g)(ramp), g(wide).numpy(), 2e-3, 1e-3)


def test_logcumsumexp_far_apart_and_at_infinity(device):
    x = on(device, [-INF, 0.0, 1000.0, -1000.0])
    exactly(ops.logcumsumexp(x), [-INF, 0, 1000, 1000])
    exactly(fd.grad(lambda x: (ops.logcumsumexp(x) * on(device, [1.0, 1, 1, 1])).sum())(x), [0, 1, 2, 0])
    exactly(jvp(ops.logcumsumexp, (x,), (on(device, [1.0, 2, 3, 4]),))[1], [0, 2, 3, 3])
    big = on(device, [0.0, INF, 1.0])
    exactly(ops.logcumsumexp(big), [0, INF, INF])
    exactly(fd.grad(lambda x: ops.logcumsumexp(x).sum())(big), [1, 2, 0])
    z = np.array([-INF, 1 + 1j, 2 - 3j, 3j], np.complex64)  # NumPy's own running logaddexp takes real numbers only
    close(ops.logcumsumexp(on(device, z, "complex64"))[1:], np.log(np.cumsum(np.exp(z[1:]))), 1e-6)


def test_cummax_gives_ties_to_the_latest(device):
    x = on(device, [1.0, 3.0, 3.0, 2.0, NAN, 5.0])
    values, indices = ops.cummax(x, return_indices=True)
    exactly(values, [1, 3, 3, 3, NAN, NAN])
    assert indices.tolist() == [0, 1, 2, 2, 4, 4]
    exactly(fd.grad(lambda x: ops.cummax(x)[:4].sum())(x), [1, 1, 2, 0, 0, 0])
    exactly(fd.grad(lambda x: ops.cummin(x)[:4].sum())(-x), [1, 1, 2, 0, 0, 0])
    exactly(jvp(ops.cummax, (x,), (on(device, [1.0, 2, 3, 4, 5, 6]),))[1], [1, 2, 3, 3, 5, 5])


def test_vmap_of_running_ops(device):
    x = on(device, draw(3, 4))
    for fn in (ops.cumprod, ops.logcumsumexp, ops.cummax, ops.sort):
        g = fd.grad(lambda x, fn=fn: (fn(x) * x).sum())
        close(vmap(g)(x), np.stack([g(x[i]).numpy() for i in range(3)]), 1e-5, 1e-6)


# --- the smallest, and one in order


def test_topk_of_the_smallest(device):
    x = fd.tensor([[3.0, math.nan, 1.0, 3.0], [0.0, -0.0, -1.0, 2.0]], device=device)
    values, indices = x.topk(2, largest=False)
    assert values.tolist() == [[1.0, 3.0], [-1.0, 0.0]]
    assert indices.tolist() == [[2, 0], [2, 0]]
    assert fd.grad(lambda x: (x.topk(1, axis=0, largest=False)[0]).sum())(fd.ones((2, 2), device=device)).tolist() == [
        [1.0, 1.0],
        [0.0, 0.0],
    ]


def test_kthvalue(device):
    x = fd.tensor([[5.0, 4.0, 6.0], [1.0, 3.0, 2.0]], device=device)
    assert [y.tolist() for y in x.kthvalue(2)] == [[5.0, 2.0], [0, 2]]
    assert [y.tolist() for y in x.kthvalue(1, axis=0, keepdims=True)] == [[[1.0, 3.0, 2.0]], [[1, 1, 1]]]
    assert fd.grad(lambda x: x.kthvalue(3)[0].sum())(x).tolist() == [[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]
    for k in (0, 4):
        with pytest.raises(ShapeError, match="counts from 1"):
            x.kthvalue(k)
    with pytest.raises(ArgumentTypeError, match="must be an int"):
        x.kthvalue(1.5)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("fn", [ops.cumprod, ops.logcumsumexp, ops.cumsum])
def test_running_values_of_the_branch_not_taken(fn, bad, device):
    """A NaN behind a mask reached the Hessian through the factors of the recurrence."""

    def loss(x):
        return ops.where(fd.tensor([True, True, False], device=device), fn(x, 0), 0.0).sum()

    found = hessian(loss)(fd.tensor([2.0, 3.0, bad], device=device)).numpy()
    want = hessian(loss)(fd.tensor([2.0, 3.0, 1.0], device=device)).numpy()
    assert np.allclose(found, want, atol=1e-6) and np.all(found[2] == 0) and np.all(found[:, 2] == 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "uint8"])
def test_topk_of_the_largest_and_the_smallest(dtype, device):
    """A NaN with its sign bit set, as 0 / 0 gives on some processors, was the smallest; the smallest were sorted in full."""
    values = [3, 0, 5, 0, 2, 7, 1]
    x = fd.tensor(np.array(values, "float32"), device=device).astype(dtype)
    assert [y.tolist() for y in x.topk(3)] == [[7, 5, 3], [5, 2, 0]]
    assert [y.tolist() for y in x.topk(3, largest=False)] == [[0, 0, 1], [1, 3, 6]]
    if dtype.startswith(("int", "uint")):
        return
    odd = np.array([1, np.nan, -0.0, np.inf, 0.0, -np.nan, -np.inf], "float32")
    x = fd.tensor(odd, device=device).astype(dtype)
    assert x.topk(7)[1].tolist() == [1, 5, 3, 0, 2, 4, 6]
    assert x.topk(7, largest=False)[1].tolist() == [6, 2, 4, 0, 3, 1, 5]


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_partition_puts_the_kth_in_order(n, device):
    rng = np.random.default_rng(n)
    for kth in range(-n, n):
        x = rng.integers(0, 4, (3, n)).astype("float32")
        x[0, :1] = -np.nan  # the largest
        order = ops.argpartition(fd.tensor(x, device=device), kth).numpy()
        assert np.sort(order, 1).tolist() == [[*range(n)]] * 3
        found = np.nan_to_num(np.take_along_axis(x, order, 1), nan=9)
        np.testing.assert_array_equal(found[:, kth], np.sort(np.nan_to_num(x, nan=9), 1)[:, kth])
        k = kth % n
        assert (found[:, :k] <= found[:, k : k + 1]).all() and (found[:, k:] >= found[:, k : k + 1]).all()
    x = fd.tensor([5.0, 4.0, 6.0, 1.0], device=device)
    assert ops.partition(x, [3, 1]).tolist() == [1.0, 4.0, 5.0, 6.0]
    assert fd.grad(lambda x: ops.partition(x, 2)[2])(x).tolist() == [1.0, 0.0, 0.0, 0.0]
    with pytest.raises(OutOfBoundsError, match="kth=4 is outside axis 0 of length 4"):
        ops.partition(x, 4)
    with pytest.raises(ArgumentTypeError, match="kth is an int"):
        ops.argpartition(x, 1.5)
