"""Reductions into places: scatter by every method, segments, copies and fills, masks, windows."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
from functad.errors import ArgumentError, ConcreteValueError, ShapeError

# --- scatter with every reduction, and segments


def reduced(x, axis, indices, values, reduce, include_self):
    """What `scatter_reduce` means, element by element."""
    out = x.astype(float)
    groups = {}
    for place in np.ndindex(indices.shape):
        target = (*place[:axis], int(indices[place]) % x.shape[axis], *place[axis + 1 :])
        groups.setdefault(target, []).append(float(values[place]))
    fold = {"sum": sum, "prod": math.prod, "mean": np.mean, "amax": max, "amin": min}[reduce]
    for target, found in groups.items():
        out[target] = fold([float(x[target]), *found] if include_self else found)
    return out


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce, include_self, device):
    rng = np.random.default_rng(0)
    x, values = rng.integers(-3, 4, (3, 4)).astype(float), rng.integers(-3, 4, (2, 4)).astype(float)
    indices = np.array([[0, 2, 1, 1], [0, -1, 0, 1]])
    ours = [fd.tensor(v, device=device) for v in (x, values)]
    got = ours[0].scatter_reduce(0, indices, ours[1], reduce, include_self)
    assert got.dtype == fd.float32
    assert np.allclose(got.numpy(), reduced(x, 0, indices, values, reduce, include_self))
    whole = ours[0].astype(int).scatter_reduce(0, indices, ours[1].astype(int), reduce, include_self)
    assert np.array_equal(whole.numpy(), np.floor(reduced(x, 0, indices, values, reduce, include_self)))


@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax"])
def test_scatter_reduce_derivatives(reduce, include_self):
    device = fd.Device.numpy()
    x = fd.tensor([0.0, 2.0, 3.0, 0.7], dtype="float64", device=device)
    values = fd.tensor([0.5, 0.0, 2.5, 1.5], dtype="float64", device=device)
    fd.testing.check_grads(
        lambda x, v: x.scatter_reduce(0, [0, 0, 2, 1], v, reduce, include_self), (x, values), order=2
    )


def test_equal_extrema_of_scatter_reduce_share():
    x, values = fd.tensor([1.0, 5.0]), fd.tensor([1.0, 1.0, 0.0])
    grads = fd.grad(lambda x, v: x.scatter_reduce(0, [0, 0, 1], v, "amax")[0], (0, 1))(x, values)
    assert np.allclose(grads[0].tolist(), [1 / 3, 0]) and np.allclose(grads[1].tolist(), [1 / 3, 1 / 3, 0])


SEGMENTS = [
    (fd.ops.segment_sum, jax.ops.segment_sum),
    (fd.ops.segment_prod, jax.ops.segment_prod),
    (fd.ops.segment_max, jax.ops.segment_max),
    (fd.ops.segment_min, jax.ops.segment_min),
]


@pytest.mark.parametrize(("ours", "theirs"), SEGMENTS, ids=[f.__name__ for f, _ in SEGMENTS])
def test_segments(ours, theirs, device):
    """Empty segments, segments out of range, ids in any order; JAX's values and gradients."""
    data = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    for ids, count in (([2, 0, 2, 2, 0, 3], 5), ([1, -1, 0, 7, 1, 1], 3), ([2, 0, 2, 2, 0, 3], None)):
        want = theirs(data, np.array(ids), count)
        x = fd.tensor(data, device=device)
        assert np.allclose(ours(x, ids, count).numpy(), want, rtol=1e-6)
        n = want.shape[0]
        if theirs is jax.ops.segment_prod:  # JAX has no derivative of a product with repeats
            fd.testing.check_grads(lambda x, ids=ids, n=n: ours(x, ids, n), (fd.tensor(data, device=device),), order=1)
            continue
        got = fd.grad(lambda x, ids=ids, n=n: fd.ops.where(fd.ops.isfinite(y := ours(x, ids, n)), y, 0.0).sum())(x)
        slopes = jax.grad(
            lambda x, ids=ids, n=n: jnp.where(jnp.isfinite(y := theirs(x, np.array(ids), n)), y, 0).sum()
        )(data)
        assert np.allclose(got.numpy(), slopes, rtol=1e-5)


def test_segment_means_and_tracing(device):
    data = fd.tensor([[2.0], [3.0], [5.0]], device=device)
    assert fd.ops.segment_mean(data, [0, 2, 0], 4).tolist() == [[3.5], [0.0], [3.0], [0.0]]
    assert fd.ops.segment_mean(fd.ones(300, dtype="bfloat16", device=device), [0] * 300, 1).tolist() == [1.0]
    ids = fd.tensor([0, 2, 0], device=device)
    assert fd.jit(lambda x, i: fd.ops.segment_sum(x, i, 3))(data, ids).tolist() == [[7.0], [0.0], [3.0]]
    rows = fd.vmap(lambda x, i: fd.ops.segment_max(x, i, 2))(
        fd.ones((2, 3), device=device), fd.tensor([[0, 1, 0]] * 2, device=device)
    )
    assert rows.tolist() == [[1.0, 1.0]] * 2
    with pytest.raises(ConcreteValueError, match="num_segments"):
        fd.jit(fd.ops.segment_sum)(data, ids)
    with pytest.raises(ShapeError, match="first axes"):
        fd.ops.segment_sum(data, [0, 1], 2)


def test_copy_fill_and_masked_scatter(device):
    x = fd.tensor(np.zeros((2, 3)), device=device)
    assert x.index_copy(1, [2, 0, 2], fd.tensor([[1.0, 2.0, 3.0]] * 2, device=device)).tolist() == [[2.0, 0.0, 3.0]] * 2
    assert x.index_fill(0, fd.tensor([1], device=device), 7).tolist() == [[0.0] * 3, [7.0] * 3]
    mask = np.array([[True, False, True], [False, True, False]])
    source = fd.tensor([1.0, 2.0, 3.0, 4.0], device=device)
    want = [[1.0, 0.0, 2.0], [0.0, 3.0, 0.0]]
    assert x.masked_scatter(mask, source).tolist() == want
    assert fd.jit(lambda x, m, s: x.masked_scatter(m, s))(x, fd.tensor(mask, device=device), source).tolist() == want
    assert x.masked_scatter(mask[0], source).tolist() == [[1.0, 0.0, 2.0], [3.0, 0.0, 4.0]]
    grads = fd.grad(lambda x, s: (x.masked_scatter(mask, s) * fd.tensor([1.0, 2.0, 3.0], device=device)).sum(), (0, 1))(
        x, source
    )
    assert grads[0].tolist() == [[0.0, 2.0, 0.0], [1.0, 0.0, 3.0]] and grads[1].tolist() == [1.0, 3.0, 2.0, 0.0]
    with pytest.raises(ShapeError, match="selects 3 elements, source has 2"):
        x.masked_scatter(mask, source[:2])
    with pytest.raises(ShapeError, match="one number"):
        x.index_fill(0, [0], source)


@pytest.mark.parametrize(
    ("shape", "window", "axis"),
    [((5,), 3, None), ((4, 5), (2, 3), None), ((4, 5), 2, 0), ((6,), (3, 2), (0, 0)), ((4,), (4,), -1)],
)
def test_sliding_window_view(shape, window, axis, device):
    x = np.arange(math.prod(shape)).reshape(shape)
    want = np.lib.stride_tricks.sliding_window_view(x, window, axis)
    assert fd.ops.sliding_window_view(fd.tensor(x, device=device), window, axis).tolist() == want.tolist()


@pytest.mark.parametrize("reduce", ["mul", "min", "max"])
def test_scatter_by_the_other_methods(reduce, device):
    x = fd.tensor([2.0, 3.0], device=device)
    want = {"mul": [-8.0, 3.0], "min": [-1.0, 3.0], "max": [4.0, 3.0]}[reduce]
    assert x.scatter(0, [0, 0], fd.tensor([-1.0, 4.0], device=device), reduce).tolist() == want
    with pytest.raises(ArgumentError, match="scatter_reduce"):
        x.scatter(0, [0], 1.0, "mean")


def test_arrays_of_other_libraries_of_length_one_are_no_ints():
    """They have an `__index__`, as torch's do, and took the axis away."""

    class Foreign:
        def __array__(self, dtype=None, copy=None):
            return np.array([1], dtype)

        def __index__(self):
            return 1

    x = fd.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert x[Foreign()].tolist() == [[3, 4]]
    assert x.at[Foreign()].set(0.0).tolist() == [[1, 2], [0, 0]]
