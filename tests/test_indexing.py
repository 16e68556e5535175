"""Indexing against NumPy, its gradients against NumPy's scatters and JAX's AD."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import compiles
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import functad as fd
import functad.numpy as fnp
from functad import ops
from functad.backends.xla import compiled
from functad.ops.slices import Cut, slice_op, unslice_op
from functad.transforms.forward import jvp
from functad.transforms.jit import jit
from functad.transforms.vmap import vmap

NUMPY, XLA = fd.Device.numpy(), fd.Device.cpu()
BOTH = pytest.mark.parametrize("device", [XLA, NUMPY], ids=["xla", "numpy"])


@pytest.fixture(autouse=True, scope="module")
def _x64():
    with fd.enable_x64():
        yield


def put(array, device=XLA):
    return fd.tensor(array, dtype=array.dtype, device=device)


def ramp(*shape):
    return np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)


# --- values: every form of index, as NumPy has it


@st.composite
def mixtures(draw, max_dims=4):
    """A shape and an index of it: ints, slices, new axes, arrays, masks and an ellipsis in any order."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=max_dims, min_side=0, max_side=4))
    block = draw(st.sampled_from([(2,), (1, 2), (3, 1), (1,), (0,)]))
    items, axis = [], 0
    while len(items) < 7:
        n = shape[axis] if axis < len(shape) else 0
        open_end = axis == len(shape) or not any(i is Ellipsis for i in items)
        kinds = ["none", "mask"] + ["end"] * open_end + ["ellipsis"] * (not any(i is Ellipsis for i in items))
        kinds += ["slice", "slice"] * (axis < len(shape)) + ["int", "array", "array"] * (n > 0)
        match draw(st.sampled_from(kinds)):
            case "none":
                items.append(None)
            case "end":
                break
            case "ellipsis":
                items.append(Ellipsis)
                axis += draw(st.integers(0, len(shape) - axis))
            case "slice":
                items.append(draw(st.slices(n)))
                axis += 1
            case "int":
                items.append(draw(st.sampled_from([int, np.int64, np.asarray]))(draw(st.integers(-n, n - 1))))
                axis += 1
            case "array":
                shrunk = tuple(draw(st.sampled_from([1, m])) if m > 1 else m for m in block)
                array = draw(hnp.arrays(np.int64, shrunk, elements=st.integers(-n, n - 1)))
                items.append(draw(st.sampled_from([array, array.tolist(), array.astype(np.int16)])))
                axis += 1
            case "mask":
                dims = draw(st.integers(0, min(2, len(shape) - axis)))
                mask = draw(hnp.arrays(bool, shape[axis : axis + dims]))
                items.append(mask if dims else bool(mask))
                axis += dims
    if any(i is Ellipsis for i in items):
        items += [slice(None)] * (len(shape) - axis)
    return shape, items[0] if len(items) == 1 and not isinstance(items[0], list) else tuple(items)


def agree(shape, index, device):
    x = ramp(*shape)
    try:
        want = x[index]
    except IndexError:
        with pytest.raises(fd.FunctadError):
            put(x, device)[index]
        return
    got = put(x, device)[index]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.numpy(), want)
    g = 1.0 + np.arange(want.size).reshape(want.shape)
    expected = np.zeros(shape)
    np.add.at(expected, index, g)
    np.testing.assert_array_equal(
        fd.grad(lambda t: (t[index] * put(g, device)).sum())(put(x, device)).numpy(), expected
    )


@settings(max_examples=150, deadline=None)
@given(mixtures())
def test_mixtures_match_numpy(case):
    agree(*case, NUMPY)


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(mixtures(max_dims=3))
def test_mixtures_match_numpy_on_xla(case):
    agree(*case, XLA)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_basic_indices_match_numpy(data):
    shape = data.draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    agree(shape, data.draw(hnp.basic_indices(shape, allow_newaxis=True, max_dims=6)), NUMPY)


STEPS = [slice(a, b, s) for a, b, s in itertools.product([None, 1, -2, 7], [None, 3, -1, 0], [None, 2, -1, -3])]


@BOTH
def test_slices_with_every_step(device):
    for s in STEPS[:: 1 if device == NUMPY else 5]:  # each shape of piece compiles anew
        agree((5,), s, device)


PLACED = [  # where the axes of several arrays go
    (0, slice(None), [1, 2]),
    (slice(None), 0, [1, 2]),
    ([0, 1], slice(None), [1, 2]),
    ([0, 1], None, [1, 2]),
    ([0, 1], ..., [1, 2]),
    (slice(None), [[0], [1]], [1, 2]),
    (None, [0, 1], [[1], [2]], slice(1)),
    (True, [0, 1]),
    (False, slice(None), [0, 1]),
    (np.array([[True, False, True], [False, True, False]]), [1, 0, 1]),
]


@BOTH
@pytest.mark.parametrize("index", PLACED, ids=str)
def test_where_the_axes_of_arrays_go(index, device):
    agree((2, 3, 4), index, device)


@BOTH
def test_index_types(device):
    x = put(ramp(3, 4), device)
    for two in (2, np.int32(2), np.uint8(2), np.array(2), fd.tensor(2, device=device), jnp.int16(2)):
        assert x[two].tolist() == [9, 10, 11, 12]
    for pair in ([2, 0], np.array([2, 0], np.uint8), fd.tensor([-1, 0], device=device), jnp.array([2, 0]), ((2, 0),)):
        assert x[pair].tolist() == [[9, 10, 11, 12], [1, 2, 3, 4]]
    for mask in ([True, False, True], np.array([True, False, True]), fd.tensor([True, False, True], device=device)):
        assert x[mask].tolist() == [[1, 2, 3, 4], [9, 10, 11, 12]]
    assert x[fd.tensor(1, device=device) :].shape == (2, 4)
    assert x[[]].shape == (0, 4)
    assert x[x > 10].tolist() == [11, 12]
    assert put(np.array([True, False]), device)[1:].tolist() == [False]
    assert put(np.arange(3, dtype=np.int8), device)[[2, 2]].tolist() == [2, 2]
    assert [row.tolist() for row in put(ramp(2, 1), device)] == [[1.0], [2.0]]


# --- gradients


def test_known_gradients():
    def pulled(index, g, *shape):
        return fd.grad(lambda x: (x[index] * fd.tensor(g, dtype="float64")).sum())(put(ramp(*shape))).tolist()

    assert pulled([0, 0, 2], [1.0, 10.0, 100.0], 3) == [11, 0, 100]
    assert pulled(slice(0, None, 2), [5.0], 1) == [5]  # keeps its one row
    assert pulled(slice(0, None, 2), [5.0], 2) == [5, 0]
    assert pulled(slice(3, 3, 2), np.zeros(0), 4) == [0, 0, 0, 0]
    assert pulled(slice(None, None, -2), [1.0, 2.0], 4) == [0, 2, 0, 1]
    assert pulled(np.array([True, False, True]), [1.0, 2.0], 3) == [1, 0, 2]


FORMS = {
    "int": 1,
    "slice": slice(2, 0, -1),
    "piece": (slice(1, 3), None, slice(None, None, 2)),
    "array": [2, 0, 2, -1],
    "pair": ([0, 2, 0], [1, 1, 1]),
    "apart": (0, slice(None), [3, 1, 1]),
    "with slice": (slice(1, 3), [3, 0, 3]),
}
"""On shape (3, 4)."""


def three_axes(index):
    return index if not isinstance(index, tuple) or len(index) < 3 or index[1] is None else (slice(0, 2), index[2])


def scattered(index, values, shape):
    out = np.zeros(shape)
    np.add.at(out, index, values)
    return out


@BOTH
@pytest.mark.parametrize("form", FORMS)
def test_derivatives_of_every_form(form, device):
    index = three_axes(FORMS[form])
    x, t = ramp(3, 4) / 7, np.cos(ramp(3, 4))

    def f(x):
        piece = x[index]
        return (piece * piece * piece).sum()

    def slope(x):
        return scattered(index, 3 * x[index] ** 2, x.shape)

    curved = scattered(index, 6 * x[index] * t[index], x.shape)
    gradient, moved = jvp(fd.grad(f), (put(x, device),), (put(t, device),))
    np.testing.assert_allclose(gradient.numpy(), slope(x), rtol=1e-12)
    np.testing.assert_allclose(moved.numpy(), curved, rtol=1e-12)
    if device == NUMPY:
        second = fd.grad(lambda x: (fd.grad(f)(x) * put(t, device)).sum())(put(x, device))
        np.testing.assert_allclose(second.numpy(), curved, rtol=1e-12)
    rows = np.stack([x, t])
    np.testing.assert_allclose(vmap(fd.grad(f))(put(rows, device)).numpy(), [slope(x), slope(t)], rtol=1e-12)


def test_derivatives_match_jax():
    x, t, i = ramp(3, 4) / 7, np.cos(ramp(3, 4)), np.array([2, 0, 2, -1])

    def f(x):
        y = x[i] * x[1] + x[::-2, None, 1:].sum() * x[0, i]
        return (y * y).sum()

    _, moved = jvp(fd.grad(f), (put(x),), (put(t),))
    np.testing.assert_allclose(
        moved.numpy(), jax.jit(lambda x, t: jax.jvp(jax.grad(f), (x,), (t,))[1])(x, t), rtol=1e-12
    )


@BOTH
def test_vmap_over_tensor_index_or_both(device):
    x, i = ramp(3, 4), np.array([2, 0, 2])
    tx, ti = put(x, device), put(i, device)
    np.testing.assert_array_equal(vmap(lambda r: r[1])(tx).numpy(), x[:, 1])
    np.testing.assert_array_equal(vmap(lambda k: tx[k])(ti).numpy(), x[i])
    np.testing.assert_array_equal(vmap(lambda k: tx[:, k])(ti).numpy(), x[:, i].T)
    np.testing.assert_array_equal(vmap(lambda r, k: r[k])(tx, ti).numpy(), x[range(3), i])
    np.testing.assert_array_equal(vmap(lambda k: tx[k - 3])(ti).numpy(), x[i])
    pairs = np.array([[0, 1], [1, 1], [2, -1]])
    np.testing.assert_array_equal(
        vmap(lambda r, k: r[k])(tx, put(pairs, device)).numpy(), x[np.arange(3)[:, None], pairs]
    )
    np.testing.assert_array_equal(vmap(lambda k: tx[k, ::2])(put(pairs, device)).numpy(), x[pairs][:, :, ::2])
    np.testing.assert_array_equal(vmap(lambda r: r[[0, 0]])(tx).numpy(), x[:, [0, 0]])

    def loss(x):
        return vmap(lambda r, k: r[k] * r[k])(x, ti).sum()

    want = np.zeros((3, 4))
    want[range(3), i] = 2 * x[range(3), i]
    np.testing.assert_array_equal(fd.grad(loss)(tx).numpy(), want)
    each = vmap(lambda k: fd.grad(lambda x: x[k].sum())(tx))(ti).numpy()
    np.testing.assert_array_equal(each.sum((1, 2)), [4, 4, 4])
    np.testing.assert_array_equal(each[0, 2], np.ones(4))


def test_indices_stay_those_of_the_forward_run():
    i = fd.tensor([1, 1])
    x = fd.tensor([1.0, 2.0, 3.0]).autodiff().require_grad()
    y = x[i].sum()
    i = fd.tensor([0, 2])
    assert x.grad(y.backward()).tolist() == [0, 2, 0]


# --- positions do not recompile


@pytest.mark.parametrize("form", ["jit", "recorded"])
def test_what_is_moved_within_itself_is_read_before_it_is_written(form):
    """XLA writes such updates in place, and with JAX 0.12 overwrote what it had still to read."""
    x = np.random.default_rng(0).normal(size=(6, 2))
    order = np.array([1, 4, 0, 2, 3, 5])
    sources = {
        "reshape": lambda xp, x: x.reshape((2, 6)).reshape((6, 2)),
        "gather": lambda xp, x: x[order],
        "sort": lambda xp, x: xp.sort(x.reshape((6, 1, 2)), axis=0).reshape((6, 2)),
        "cumsum": lambda xp, x: xp.cumsum(x.reshape((6, 1, 2)), axis=0).reshape((6, 2)),
        "transpose": lambda xp, x: x.reshape((2, 3, 2)).T.reshape((6, 2)),
    }
    moves = [(slice(1, None), slice(None, -1)), (slice(None, -2), slice(2, None)), (slice(2, 5), slice(1, 4))]
    device = fd.Device.cpu(fusion=form == "recorded")
    for source in sources.values():
        for to, of in moves:

            def moved(v, source=source, to=to, of=of):
                y = source(fnp, v)
                for _ in range(2):
                    y = y.at[to].set(y[of])
                return y

            expected = source(np, x).copy()
            for _ in range(2):
                expected[to] = expected[of].copy()
            run = jit(moved) if form == "jit" else moved
            for _ in range(3):
                np.testing.assert_allclose(run(fd.tensor(x, device=device)).numpy(), expected, rtol=1e-12)


def test_pieces_are_replaced_in_place_where_that_is_safe():
    """In what a loop carries round, in what was written into just before, and in what is donated."""

    def updates(fn, **options):
        jitted = fd.jit(fn, **options)
        jitted(fd.zeros(8, dtype="float64"))
        (entry,) = jitted._entries.values()
        text = compiled(entry.op, ()).lower(jax.ShapeDtypeStruct((8,), np.float64)).as_text()
        return text.count("stablehlo.dynamic_update_slice")

    def filled(x):
        return fd.fori_loop(1, 8, lambda i, c: c.at[i].set(c[i - 1] + 1.0), x)

    def scanned(x):
        return fd.scan(lambda c, i: (c.at[i].set(c[i - 1] + 1.0), None), x, fd.numpy.arange(1, 8))[0]

    chain = lambda x: x.at[1].set(x[0] + 1.0).at[2].set(2.0).at[3].set(3.0)
    assert [updates(f) for f in (lambda x: x.at[1].set(x[0]), chain, filled, scanned)] == [0, 2, 1, 1]
    assert updates(lambda x: x.at[1].set(x[0]), donate_argnums=0) == 1
    assert fd.jit(lambda i: fd.zeros(3).at[i].set(9.0))(1).tolist() == [0.0, 9.0, 0.0]  # into a constant
    for fn in (filled, scanned):
        assert fd.jit(fn)(fd.zeros(8)).tolist() == list(range(8))
        assert fd.grad(lambda x, fn=fn: fn(x).sum())(fd.zeros(8)).tolist() == [8.0, *[0.0] * 7]
    assert fd.jit(chain)(fd.zeros(5)).tolist() == [0.0, 1.0, 2.0, 3.0, 0.0]


def test_a_loop_over_positions_compiles_once():
    f = fd.grad(lambda x, i: (x[i] * x[i]).sum() + (x[i : i + 31] * x[i : i + 31]).sum() + x[[i, 5]].sum())

    def use(i):
        x = fd.ones((101, 3))  # a size of its own, which no other test compiles
        f(x, i)
        x[fd.tensor(i, dtype="int32")]

    assert compiles(lambda: [use(i) for i in (1, 2)]) > 5  # rules are compiled when they are met again
    assert compiles(lambda: [use(i) for i in range(0, 69, 4)]) == 0


def test_whole_axes_need_no_dynamic_slice():
    def text(cuts, *shapes):
        arrays = [jax.ShapeDtypeStruct(s, np.float32 if i == 0 else np.int32) for i, s in enumerate(shapes)]
        return compiled(slice_op, (cuts,)).lower(*arrays).as_text()

    assert "dynamic_slice" not in text((Cut(4, -1), Cut(2, 2)), (4, 3))
    assert "dynamic_slice" in text((Cut(4), Cut(1)), (4, 3), ())
    types = jax.ShapeDtypeStruct((2, 3), np.float32), jax.ShapeDtypeStruct((), np.int32)
    assert "scatter" not in compiled(unslice_op, ((6, 3), (Cut(2, 2), Cut(3)))).lower(*types).as_text()


# --- errors


@BOTH
def test_errors_name_axis_index_and_length(device):
    x = put(ramp(3, 4), device)
    for index, text in (
        (3, r"index 3 is out of bounds for axis 0 of length 3"),
        ((0, -5), r"index -5 is out of bounds for axis 1 of length 4"),
        ((slice(None), [0, 4]), r"index 4 is out of bounds for axis 1 of length 4"),
        (fd.tensor([0, 7], device=device), r"index 7 .* axis 0 of length 3"),
        (fd.tensor(-4, device=device), r"index -4 .* axis 0 of length 3"),
        ((0, 0, 0), r"too many indices: 3 of them for a tensor with 2 axes"),
        (np.ones(4, bool), r"mask of shape \(4,\) does not fit .* axis 0 has length 3"),
    ):
        with pytest.raises(fd.errors.OutOfBoundsError, match=text):
            x[index]
        with pytest.raises(IndexError):
            x.at[index].add(1.0)
    for index in (1.0, [0.5], np.ones(2), x, slice(0, 1.5)):
        with pytest.raises(fd.errors.DTypeError, match="int"):
            x[index]
    with pytest.raises(fd.errors.ArgumentTypeError, match="got 'a' of type str"):
        x["a"]
    with pytest.raises(fd.errors.ArgumentError, match="one Ellipsis"):
        x[..., ...]
    with pytest.raises(fd.errors.ArgumentError, match="step"):
        x[::0]
    with pytest.raises(fd.errors.ShapeError, match="do not broadcast"):
        x[[0, 1], [0, 1, 2]]
    with pytest.raises(fd.errors.ShapeError, match="ragged"):
        x.at[[[0, 1], [0]]].set(1.0)
    with pytest.raises(fd.errors.OutOfBoundsError, match="the axis is empty"):
        put(ramp(0), device)[0]
    with pytest.raises(IndexError):
        put(ramp(), device)[0]


@BOTH
@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3), (0, 0), (2, 3, 0)])
def test_a_mask_without_elements_selects_nothing_from_axes_of_any_length(shape, device):
    x, mask = ramp(2, 3, 2), np.zeros(shape, bool)
    tensor = put(x, device)
    value, pull = fd.vjp(lambda t: t[mask], tensor)
    assert value.shape == x[mask].shape
    assert pull(value)[0].tolist() == np.zeros_like(x).tolist()
    for key in (mask, put(mask, device)):
        assert tensor[key].shape == x[mask].shape
        assert tensor.at[key].set(7.0).tolist() == tensor.at[key].add(x[mask]).tolist() == x.tolist()
    assert fd.vmap(lambda row: row[mask])(put(np.stack([x, x]), device)).shape == (2, *x[mask].shape)
    with pytest.raises(fd.errors.OutOfBoundsError, match="does not fit"):
        tensor[np.zeros((3, 0), bool)]
    with pytest.raises(fd.errors.OutOfBoundsError, match="does not fit"):
        tensor.at[np.zeros((3, 0), bool)].set(1.0)


@BOTH
def test_masks_without_values_say_what_to_write(device):
    x = put(ramp(2, 3), device)
    with pytest.raises(fd.errors.ConcreteValueError, match=r"fd\.where"):
        vmap(lambda r: r[r > 2])(x)
    with pytest.raises(fd.errors.ConcreteValueError, match="slice"):
        vmap(lambda k: x[k:])(fd.tensor([0, 1], device=device))
    with pytest.raises(fd.errors.ConcreteValueError, match="nonzero"):
        vmap(ops.argwhere)(x)


def test_under_jax_tracing_nothing_is_checked_and_masks_are_refused():
    x = jnp.arange(3.0)
    f = jax.jit(lambda i: fd.tensor(x)[fd.tensor(i)].jax())
    assert f(jnp.array([2, -1])).tolist() == [2, 2]
    assert f(jnp.array(1)).tolist() == 1
    assert f(jnp.array([7, -9])).tolist() == [2, 0]  # the nearest
    with pytest.raises(fd.errors.ConcreteValueError, match=r"fd\.where"):
        jax.jit(lambda m: fd.tensor(x)[fd.tensor(m)].jax())(x > 1)
    masked = jax.jit(lambda m: fd.tensor(x).at[fd.tensor(m)].set(9.0).jax())
    assert masked(x > 1).tolist() == [0, 1, 9]
    dropped = jax.jit(lambda i: fd.tensor(x).at[fd.tensor(i)].add(1.0).jax())
    assert dropped(jnp.array([7, 0, -9])).tolist() == [1, 1, 2]


# --- functional updates


UFUNCS = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}


def updated(x, index, value, kind):
    out = x.copy()
    if kind == "set":
        out[index] = value
    else:
        UFUNCS[kind].at(out, index, value)
    return out


def updates_agree(shape, index, device, seed):
    x = np.asarray(ramp(*shape) / 4)
    try:
        size = x[index].shape
    except IndexError:
        return
    value = np.random.default_rng(seed).choice([-2.0, 0.0, 0.5, 3.0], size=size)
    for kind in ("set", *UFUNCS):
        got = getattr(put(x, device).at[index], kind)(put(value, device))
        np.testing.assert_array_equal(got.numpy(), updated(x, index, value, kind), err_msg=kind)


@settings(max_examples=60, deadline=None)
@given(mixtures(), st.integers(0, 9))
def test_updates_match_numpy(case, seed):
    updates_agree(*case, NUMPY, seed)


@pytest.mark.parametrize("form", FORMS)
def test_updates_of_every_form(form):
    updates_agree((3, 4), three_axes(FORMS[form]), NUMPY, 0)


@pytest.mark.parametrize("form", ["piece", "apart"])
def test_updates_on_xla(form):
    updates_agree((3, 4), three_axes(FORMS[form]), XLA, 0)


@BOTH
def test_updates_with_masks_and_broadcasting(device):
    x = put(ramp(3, 2), device)
    rows = np.array([True, False, True])
    full = ramp(3, 2) > 3
    cases = [(full, [1.0, 2.0, 3.0]), (rows, [1.0, 2.0]), (rows, [[1.0], [2.0]]), (full, 0.5), (rows, 7.0)]
    for mask, value in cases[: 5 if device == NUMPY else 2]:
        for kind in ("set", *UFUNCS):
            got = getattr(x.at[mask], kind)(np.asarray(value))
            np.testing.assert_array_equal(got.numpy(), updated(ramp(3, 2), mask, value, kind))
    assert x.at[...].set(1.0).tolist() == [[1, 1]] * 3
    assert x.at[1].get().tolist() == [3, 4]
    assert x.tolist() == ramp(3, 2).tolist()
    masked = vmap(lambda r: r.at[r > 2].set(0.0))(x)
    assert masked.tolist() == [[1, 2], [0, 0], [0, 0]]


@BOTH
def test_set_gives_the_last_value_and_the_gradient_to_it_alone(device):
    x, v = put(ramp(3), device), put(np.array([10.0, 20.0, 30.0]), device)
    g = put(np.array([1.0, 2.0, 4.0]), device)

    def loss(x, v):
        return (x.at[[0, 2, 0]].set(v) * g).sum()

    assert x.at[[0, 2, 0]].set(v).tolist() == [30, 2, 20]
    dx, dv = fd.grad(loss, argnums=(0, 1))(x, v)
    assert dx.tolist() == [0, 2, 0]
    assert dv.tolist() == [0, 4, 1]
    again = fd.grad(lambda v: (fd.grad(lambda v: (x.at[[0, 0]].set(v) ** 2).sum())(v) * v).sum())(v[:2])
    assert again.tolist() == [0, 4 * 20]
    sliced = fd.grad(lambda x, v: (x.at[::2].set(v) * g).sum(), argnums=(0, 1))(x, v[:2])
    assert [d.tolist() for d in sliced] == [[0, 2, 0], [1, 4]]
    whole = x.autodiff().require_grad()
    assert whole.grad(whole.at[:].set(1.0).sum().backward()).tolist() == [0, 0, 0]


@BOTH
def test_set_decides_repeats_by_position_in_two_dimensions(device):
    x, i, j = put(np.zeros((2, 2)), device), np.array([[0, 1], [0, 0]]), np.array([[1, 1], [1, 1]])
    v = ramp(2, 2)
    assert x.at[i, j].set(put(v, device)).tolist() == [[0, 4], [0, 2]]
    assert x.at[np.asfortranarray(i), j].set(put(v, device)).tolist() == [[0, 4], [0, 2]]


def products(x, v, index):
    """`x.at[index].mul(v)` one factor at a time."""
    rows = [x[i] for i in range(x.shape[0])]
    for k, i in enumerate(index):
        rows[i] = rows[i] * v[k]
    return jnp.stack(rows)


@BOTH
def test_mul_with_repeats_is_differentiable_at_zeros(device):
    index = [1, 0, 1, 3, 1]
    x, v = np.array([2.0, 3.0, 5.0, 0.0]), np.array([0.0, 2.0, 4.0, 7.0, 0.0])
    w = np.array([1.0, 2.0, 3.0, 4.0])

    def f(x, v):
        return (x.at[index].mul(v) * put(w, device)).sum()

    def jf(x, v):
        return (products(x, v, index) * w).sum()

    tx, tv = put(x, device), put(v, device)
    np.testing.assert_allclose(tx.at[index].mul(tv).numpy(), products(x, v, index))
    for got, want in zip(fd.grad(f, argnums=(0, 1))(tx, tv), jax.jit(jax.grad(jf, argnums=(0, 1)))(x, v), strict=True):
        np.testing.assert_allclose(got.numpy(), want, atol=1e-12)
    if device == XLA:
        return
    # second and third order, along one direction
    t = np.cos(np.arange(5.0))
    d2 = fd.grad(lambda v: (fd.grad(f, argnums=1)(tx, v) * put(t, device)).sum())
    jd2 = jax.grad(lambda v: (jax.grad(jf, argnums=1)(x, v) * t).sum())
    np.testing.assert_allclose(d2(tv).numpy(), jax.jit(jd2)(v), atol=1e-12)
    d3 = fd.grad(lambda v: (d2(v) * put(t, device)).sum())(tv).numpy()
    np.testing.assert_allclose(d3, jax.jit(jax.grad(lambda v: (jd2(v) * t).sum()))(v), atol=1e-12)
    rows = vmap(tx.at[index].mul)(put(np.stack([v, v + 1]), device)).numpy()
    np.testing.assert_allclose(rows, [products(x, v, index), products(x, v + 1, index)])


def test_mul_with_repeats_of_mapped_indices():
    index = np.array([[0, 0, 1], [2, 2, 2]])
    got = vmap(lambda i: fd.tensor([1.0, 2.0, 3.0]).at[i].mul(fd.tensor([2.0, 3.0, 5.0])))(fd.tensor(index))
    assert got.tolist() == [[6, 10, 3], [1, 2, 90]]


@BOTH
def test_min_and_max_share_ties(device):
    x, v = put(np.array([1.0, 5.0, 2.0]), device), put(np.array([1.0, 1.0, 3.0, 9.0]), device)
    g = put(np.array([6.0, 10.0, 100.0]), device)
    index = [0, 0, 1, 2]

    def loss(x, v):
        return (x.at[index].max(v) * g).sum()

    dx, dv = fd.grad(loss, argnums=(0, 1))(x, v)
    np.testing.assert_allclose(dx.numpy(), [2, 10, 0], rtol=1e-6)
    np.testing.assert_allclose(dv.numpy(), [2, 2, 0, 100], rtol=1e-6)
    _, moved = jvp(loss, (x, v), (g, put(np.array([1.0, 2.0, 3.0, 4.0]), device)))
    np.testing.assert_allclose(moved.numpy(), 6 * 3 + 100 + 400, rtol=1e-6)
    low = fd.grad(lambda x: x.at[1:].min(put(np.array([5.0, 0.0]), device)).sum())(x)
    assert low.tolist() == [1, 0.5, 0]


@BOTH
def test_add_accumulates_and_half_types_round_once(device):
    x, v = put(np.zeros(2), device), put(np.array([1.0, 10.0, 100.0]), device)
    dx, dv = fd.grad(lambda x, v: (x.at[[0, 0, 1]].add(v) ** 2).sum(), argnums=(0, 1))(x, v)
    assert dx.tolist() == [22, 200]
    assert dv.tolist() == [22, 22, 200]
    w = fd.ones(1, dtype="bfloat16", device=device)
    zeros = fd.zeros(300, dtype="int32", device=device)
    assert float(fd.grad(lambda w: w[zeros].sum())(w)[0]) == 300
    assert float(w.at[zeros].add(1.0)[0]) == 301 or float(w.at[zeros].add(1.0)[0]) == 300  # 301 rounded to bfloat16
    assert w.at[zeros].add(1.0).dtype == w.dtype


@BOTH
def test_updates_keep_the_dtype(device):
    ints = put(np.arange(3), device)
    with pytest.raises(fd.errors.DTypeError, match="float64 does not fit a tensor of int64"):
        ints.at[0].set(2.5)
    with pytest.raises(fd.errors.DTypeError, match="does not fit"):
        ints.at[[0]].add(np.ones(1))
    with pytest.raises(fd.errors.DTypeError, match="does not fit"):
        put(ramp(3), device).at[0].set(1j)
    assert ints.at[0].set(True).dtype == ints.dtype
    narrow = fd.ones(3, dtype="float32", device=device)
    assert narrow.at[1:].add(np.ones(2)).dtype == "float32"
    assert narrow.at[0].mul(3).tolist() == [3, 1, 1]
    with pytest.raises(fd.errors.ShapeError, match=r"\(4,\) does not broadcast to \(2,\)"):
        narrow.at[1:].set(fd.ones(4, device=device))


def test_at_explains_itself():
    x = fd.ones(3)
    assert "float64[3]" in repr(x.at)
    assert "slice(1, 2" in repr(x.at[1:2])
    with pytest.raises(AttributeError, match=r"index it first: x.at\[i\].set"):
        x.at.set  # noqa: B018
    with pytest.raises(fd.FunctadError, match=r"no attribute 'div'; it has .set, .add"):
        x.at[0].div(2.0)
    with pytest.raises(fd.errors.ImmutableError):
        x.at[0] = 1.0
    assert not hasattr(x.at[0], "nope")


@BOTH
@pytest.mark.parametrize("index", [[1, 2], [1, 1, 2], slice(1, 3), [False, True, True, False]], ids=str)
def test_updates_by_jax_names(index, device):
    x, w = np.array([1.5, -2.0, 3.0, 5.0]), np.array([3.0, 5.0, 7.0, 11.0])
    times = np.array([0, 2 if index == [1, 1, 2] else 1, 1, 0])
    v = np.array(2.0)
    expected = {
        "subtract": (x - times * v, w, -(w * times).sum()),
        "multiply": (x * v**times, w * v**times, (w * x * times * v ** (times - 1.0)).sum()),
        "divide": (x / v**times, w / v**times, -(w * x * times / v ** (times + 1.0)).sum()),
    }
    for name, (value, dx, dv) in expected.items():

        def call(x, v, name=name):
            return getattr(x.at[index], name)(v)

        np.testing.assert_allclose(call(put(x, device), v).numpy(), value)
        np.testing.assert_allclose(fd.jit(call)(put(x, device), put(v, device)).numpy(), value)
        got = fd.grad(lambda x, v, f=call: (f(x, v) * put(w, device)).sum(), (0, 1))(put(x, device), put(v, device))
        np.testing.assert_allclose(got[0].numpy(), dx)
        assert got[1].item() == pytest.approx(dv)

    def power(x):
        return x.at[index].power(2)

    def apply(x):
        return x.at[index].apply(lambda y: y * y)

    for f in (power, apply):
        np.testing.assert_allclose(f(put(x, device)).numpy(), x ** (2.0**times))
        slope = fd.grad(lambda x, f=f: f(x).sum())(put(x, device)).numpy()
        np.testing.assert_allclose(slope, 2.0**times * x ** (2.0**times - 1))


def test_what_updates_by_jax_names_refuse():
    x = fd.tensor([4, 9])
    with pytest.raises(fd.errors.DTypeError, match=r"quotient of int64 .*astype\(float\)"):
        x.at[0].divide(2)
    with pytest.raises(fd.errors.ArgumentTypeError, match=r"takes a function .* got 3; .*set\(v\)"):
        x.at[0].apply(3)
    with pytest.raises(fd.errors.ShapeError, match="must be elementwise"):
        x.at[:].apply(fd.numpy.sum)
    with pytest.raises(fd.errors.ConcreteValueError, match="may name a place twice"):
        fd.jit(lambda x, i: x.at[i].apply(fd.numpy.square))(x, fd.tensor([0, 1]))
    assert fd.jit(lambda x, i: x.at[i].apply(fd.numpy.square))(x, fd.tensor(1)).tolist() == [4, 81]


# --- functions


@BOTH
def test_take_and_along_axis(device):
    x = ramp(3, 4)
    t = put(x, device)
    for indices in (2, [0, -1], [[0, 1], [2, 2]]):
        np.testing.assert_array_equal(ops.take(t, indices).numpy(), np.take(x, indices))
        for axis in (0, 1, -1):
            np.testing.assert_array_equal(t.take(indices, axis).numpy(), np.take(x, indices, axis))
    order = np.argsort(-x, 1)[:, :2]
    np.testing.assert_array_equal(t.take_along_axis(order).numpy(), np.take_along_axis(x, order, 1))
    np.testing.assert_array_equal(t.take_along_axis(order[:1], 1).numpy(), np.take_along_axis(x, order[:1], 1))
    np.testing.assert_array_equal(t.take_along_axis([-1, 0], None).numpy(), [12, 1])
    assert ops.index_select(t, 1, [3, 3]).tolist() == x[:, [3, 3]].tolist()
    with pytest.raises(fd.errors.OutOfBoundsError, match=r"take_along_axis: index 4 .* axis 1 of length 4"):
        t.take_along_axis(np.array([[4]]))
    with pytest.raises(fd.errors.OutOfBoundsError, match="take: index 3 "):
        t.take([3], 0)
    with pytest.raises(fd.errors.DTypeError, match="take: indices must be ints"):
        t.take([0.5], 0)
    with pytest.raises(fd.errors.ShapeError, match="as many axes"):
        t.take_along_axis([0, 1])


@BOTH
def test_gather_and_scatter_follow_torch(device):
    x, i = ramp(3, 4), np.array([[3, 0, 3], [1, 1, -1]])
    t = put(x, device)
    rows = np.arange(2)[:, None]
    np.testing.assert_array_equal(t.gather(1, i).numpy(), x[rows, i])
    v = np.array([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])
    want = x.copy()
    want[rows, i] = v
    np.testing.assert_array_equal(t.scatter(1, i, v).numpy(), want)
    want = x.copy()
    np.add.at(want, (rows, i), v)
    np.testing.assert_array_equal(t.scatter(1, put(i, device), v, reduce="add").numpy(), want)
    np.testing.assert_array_equal(t.index_add(1, [0, 0], np.ones((3, 2))).numpy(), x + np.array([2, 0, 0, 0]))
    dx, dv = fd.grad(lambda x, v: (x.scatter(1, i, v) ** 2).sum() / 2, argnums=(0, 1))(t, put(v, device))
    assert dx[:2].tolist() == [[0, 2, 3, 0], [5, 0, 7, 0]]
    assert dv.tolist() == [[0, 20, 30], [0, 50, 60]]
    picked = fd.grad(lambda x: (x.gather(1, i) * put(v, device)).sum())(t)
    assert picked.tolist() == [[20, 0, 0, 40], [0, 90, 0, 60], [0, 0, 0, 0]]
    with pytest.raises(fd.errors.ShapeError, match="gather"):
        t.gather(0, np.zeros((1, 5), int))
    with pytest.raises(fd.errors.ShapeError, match="expand_dims"):  # which axis would it repeat along?
        t.index_add(1, [0, 0], np.ones(3))
    with pytest.raises(fd.errors.ArgumentError, match="none of 'set', 'add'"):
        t.scatter(0, i, v, "mean")


@BOTH
def test_masks_positions_and_windows(device):
    x = put(ramp(2, 3), device)
    assert ops.mask_select(x, x > 2).tolist() == [3, 4, 5, 6]
    assert x.mask_select([True, False, True]).tolist() == [1, 3, 4, 6]
    assert fd.grad(lambda x: (x.mask_select(x > 4) ** 2).sum())(x).tolist() == [[0, 0, 0], [0, 10, 12]]
    assert [i.tolist() for i in ops.nonzero(x > 2)] == [list(i) for i in np.nonzero(ramp(2, 3) > 2)]
    assert ops.argwhere(x > 4).tolist() == [[1, 1], [1, 2]]
    assert ops.argwhere(put(ramp(), device)).shape == (1, 0)
    windows = np.lib.stride_tricks.sliding_window_view(ramp(2, 5), 3, 1)[:, ::2]
    assert x.unfold(1, 2, 1).tolist() == [[[1, 2], [2, 3]], [[4, 5], [5, 6]]]
    np.testing.assert_array_equal(put(ramp(2, 5), device).unfold(1, 3, 2).numpy(), windows)
    assert ops.unfold(put(ramp(4, 2), device), 0, 2).shape == (3, 2, 2)
    assert fd.grad(lambda x: x.unfold(1, 2, 1).sum())(x).tolist() == [[1, 2, 1]] * 2
    with pytest.raises(fd.errors.ArgumentError, match="size=4"):
        x.unfold(1, 4, 1)


@BOTH
def test_one_hot(device):
    classes = fd.tensor([[2, 0]], device=device)
    assert classes.one_hot(3).tolist() == [[[0, 0, 1], [1, 0, 0]]]
    assert ops.one_hot(classes, 3, dtype="int8").dtype == np.int8
    with pytest.raises(fd.errors.OutOfBoundsError, match="2 is not a class"):
        classes.one_hot(2)
    with pytest.raises(fd.errors.OutOfBoundsError, match="-1 is not a class"):
        ops.one_hot(fd.tensor([-1], device=device), 2)
    assert vmap(lambda k: ops.one_hot(k, 2))(fd.tensor([1, 0], device=device)).tolist() == [[0, 1], [1, 0]]
    with pytest.raises(fd.errors.OutOfBoundsError, match="5 is not a class"):
        vmap(lambda k: ops.one_hot(k, 2))(fd.tensor([1, 5], device=device))


# --- every op of the family, by its own samples


FAMILY = [
    "slice", "unslice", "put_slice", "gather", "ungather", "scatter_add", "scatter_set", "gather_last",
    "scatter_max", "scatter_min",
]  # fmt: skip


@pytest.mark.parametrize("name", FAMILY)
def test_forward_and_reverse_rules_are_adjoint(name):
    op = ops.TABLE[name]
    rng = np.random.default_rng(0)
    for inputs, params in op.samples.make(rng):
        values = [put(np.asarray(x), NUMPY) for x in inputs]
        floats = [i for i, x in enumerate(values) if x.dtype.kind == "f"]

        def f(*moving, values=values, floats=floats, params=params):
            full = dict(enumerate(values)) | dict(zip(floats, moving, strict=True))
            return op(*full.values(), **params)

        primals = tuple(values[i] for i in floats)
        tangents = tuple(put(rng.normal(size=p.shape), NUMPY) for p in primals)
        out, moved = jvp(f, primals, tangents)
        g = put(rng.normal(size=out.shape), NUMPY)
        pulled = fd.grad(lambda *p, f=f, g=g: (f(*p) * g).sum(), argnums=tuple(range(len(primals))))(*primals)
        left = (g.numpy() * moved.numpy()).sum()
        right = sum((d.numpy() * t.numpy()).sum() for d, t in zip(pulled, tangents, strict=True))
        np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-9)  # shares of ties are float32


@pytest.mark.parametrize("i", [-4, -3, 0, 2, 3, 9])
@pytest.mark.parametrize("kind", ["set", "add", "mul", "min", "max"])
def test_an_index_without_a_value_that_is_out_of_bounds_updates_nothing(kind, i, device):
    """A traced 0-d index was moved to the nearest place, where index arrays and JAX leave it out."""
    x = np.array([1.0, 5.0, 3.0], np.float32)
    want = x.copy()
    if -3 <= i < 3:
        want[i] = {"set": 4.0, "add": x[i] + 4, "mul": x[i] * 4, "min": min(x[i], 4), "max": max(x[i], 4)}[kind]

    def update(x, i, v):
        return getattr(x.at[i], kind)(v)

    def mixed(x, i, v):
        return getattr(x.at[i, [0, 1]], kind)(v)

    with fd.set_default_device(device):
        assert fd.jit(update)(x, i, 4.0).tolist() == want.tolist()
        assert fd.jit(fd.vmap(update, in_axes=(None, 0, None)))(x, np.array([i]), 4.0).tolist() == [want.tolist()]
        assert fd.jit(mixed)(np.stack([x] * 2, 1), i, 4.0).tolist() == np.stack([want] * 2, 1).tolist()
        assert fd.fori_loop(i, i + 1, lambda k, c: update(c, k, 4.0), x).tolist() == want.tolist()
        slope = fd.jit(fd.grad(lambda v, i: update(fd.tensor(x), i, v).sum()))(4.5, i).item()
        assert slope == (-3 <= i < 3) * {
            "min": float(x[i % 3] > 4.5),
            "max": float(x[i % 3] < 4.5),
            "mul": x[i % 3],
        }.get(kind, 1)
    assert fd.jit(update)(np.ones(1, np.float32), 1, 4.0).tolist() == [1]
