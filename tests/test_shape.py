"""Shapes, joins and diagonals: values against NumPy, derivatives of both modes against JAX's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import settled, vmap
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import functad as fd
from functad import errors, ops
from functad.backends.xla import compiled
from functad.testing.derivatives import execute, jvp, vjp

DEVICES = {"xla": fd.Device.cpu(), "numpy": fd.Device.numpy()}


@pytest.fixture(params=DEVICES)
def device(request):
    return DEVICES[request.param]


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def put(x, device):
    """The arrays of a nest as tensors on `device`, everything else as it is."""
    if isinstance(x, (list, tuple)):
        return type(x)(put(e, device) for e in x)
    return fd.tensor(x, device=device) if isinstance(x, np.ndarray) else x


def same(got, want):
    if isinstance(want, (list, tuple)):
        assert len(got) == len(want)
        for g, w in zip(got, want, strict=True):
            same(g, w)
    else:
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-6)
        assert got.shape == np.shape(want)
        assert got.dtype.kind == np.asarray(want).dtype.kind


# --- values: the function's name, its arguments, its keyword arguments

X = draw(2, 3, 4)
VALUES = [
    ("reshape", (X, (4, 6))), ("reshape", (X, -1)), ("reshape", (X, (3, -1, 2))), ("reshape", (draw(0, 3), (-1, 3))),
    ("reshape", (draw(0, 3), (5, 0))), ("reshape", (draw(1), ())), ("reshape", (draw(), (1, 1))), ("ravel", (X,)),
    ("transpose", (X,)), ("transpose", (X, (1, 0, 2))), ("transpose", (X, (-1, 0, 1))), ("transpose", (draw(),)),
    ("permute_dims", (X, (2, 0, 1))), ("matrix_transpose", (X,)), ("swapaxes", (X, 0, -1)), ("moveaxis", (X, 0, -1)),
    ("moveaxis", (X, (0, 1), (2, 0))), ("squeeze", (draw(1, 3, 1),)), ("squeeze", (draw(1, 3, 1), 0)),
    ("squeeze", (draw(1, 3, 1), (0, -1))), ("expand_dims", (X, 0)), ("expand_dims", (X, (0, -1))),
    ("expand_dims", (draw(), (0, 1))), ("broadcast_to", (draw(2, 1), (3, 2, 4))), ("broadcast_to", (draw(), 2)),
    ("broadcast_to", (draw(1, 2), (0, 2))), ("broadcast_arrays", (draw(2, 1), draw(3))),
    *[(f"atleast_{n}d", (draw(*s),)) for n in (1, 2, 3) for s in [(), (3,), (0,), (2, 3), (2, 3, 4)]],
    ("atleast_2d", (draw(), draw(3))), *[("flip", (X, axis)) for axis in (None, 0, -1, (0, 2))], ("flip", (draw(),)),
    ("fliplr", (X,)), ("flipud", (X,)), *[("rot90", (X, k)) for k in range(-1, 5)], ("rot90", (X, 1, (2, 0))),
    ("roll", (X, 1)), ("roll", (X, -5)), ("roll", (X, 7, 1)), ("roll", (X, (1, 2), (0, 2))), ("roll", (X, 2, (0, 1))),
    ("roll", (X, (1, 2), 0)), ("roll", (X, (1, -1), (0, 0))), ("roll", (draw(0, 2), 1, 0)), ("roll", (draw(), 1)),
    *[(f, (x, k)) for f in ("tril", "triu") for x in (X, draw(3, 5)) for k in (-2, 0, 1)],
    *[("diag", (x, k)) for x in (draw(3), draw(3, 4)) for k in (-2, 0, 1)], ("diag", (draw(0),)),
    *[("diagonal", (x, k)) for x in (draw(4, 2), X) for k in (-9, -1, 0, 1)], ("diagonal", (X, 1, 2, 0)),
    ("trace", (draw(4, 2),)), ("trace", (X, -1, 2, 1)), ("trace", (np.full((2, 2), 100, np.int8),)),
    ("trace", (np.ones((2, 2), bool),)), ("concatenate", ([draw(2, 3), draw(1, 3)],)),
    ("concatenate", ([draw(2, 3), draw(2, 1)], -1)), ("concatenate", ([draw(2, 3), draw(4)], None)),
    ("concatenate", ([draw(2), np.arange(2)],)), ("concatenate", ([draw(0, 2), draw(3, 2)],)),
    ("stack", ([draw(2, 3), draw(2, 3)],)), ("stack", ([draw(2, 3), draw(2, 3)], -1)), ("stack", ([draw(), draw()],)),
    *[(f, ([draw(*s), draw(*s)],)) for f in ("vstack", "hstack", "dstack", "column_stack") for s in [(3,), (2, 3)]],
    ("hstack", ([draw(), draw(2)],)), ("vstack", (X,)), ("split", (X, 2)), ("split", (X, [1])), ("split", (X, [1, 1])),
    ("split", (X, [3, 1], 1)), ("split", (X, [-2, 7], 1)), ("split", (X, (), 0)), ("split", (X, [2, -1], 2)),
    ("split", (draw(0, 2), 3)), ("array_split", (X, 2, 1)), ("array_split", (X, 5, 2)), ("array_split", (X, [1], 1)),
    ("unstack", (X,)), ("unstack", (draw(0, 2),)),
    *[("tile", (X, r)) for r in [2, (2, 1), (1, 2, 3), (2, 1, 1, 2), ()]], ("tile", (X, (0, 1, 1))),
    ("tile", (draw(), (2, 3))), ("repeat", (X, 2)), ("repeat", (X, 2, 0)),
    ("repeat", (X, np.array([2, 0, 1]), 1)), ("repeat", (X, [2], 1)), ("repeat", (X, 0, 1)), ("repeat", (draw(), 3)),
    *[("pad", (X, ((1, 2), (0, 0), (5, 0)), mode)) for mode in ("constant", "edge", "reflect", "symmetric", "wrap")],
    ("pad", (X, 1)), ("pad", (X, (1, 2))), ("pad", (X, 0)), ("pad", (draw(), 3)), ("pad", (draw(0, 2), 1)),
    ("pad", (draw(1), 2, "reflect")), ("copy", (X,)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), VALUES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(VALUES)])
def test_value_is_numpys(name, args, device):
    same(getattr(ops, name)(*put(args, device)), getattr(np, name)(*args))


@pytest.mark.parametrize("values", [2.5, (1, 2), ((1, 2), (3, 4)), -np.inf, np.nan], ids=str)
def test_pad_with_constants(values, device):
    x = draw(2, 3)
    same(
        ops.pad(put(x, device), ((1, 2), (0, 1)), constant_values=values),
        np.pad(x, ((1, 2), (0, 1)), constant_values=values),
    )


def test_negative_strides(device):
    x = draw(4, 3)[::-1, ::2]
    same(ops.transpose(put(x, device)), x.T)
    same(ops.concatenate([put(x, device), x[::-1]], axis=1), np.concatenate([x, x[::-1]], axis=1))
    same(ops.diagonal(ops.flip(put(x, device), 0)), np.diagonal(x[::-1]))


def test_inputs_need_not_be_tensors():
    assert ops.concatenate([[1.0], 2 * np.ones(1), fd.ones(1)]).tolist() == [1.0, 2.0, 1.0]
    assert ops.stack([1, 2.5]).tolist() == [1.0, 2.5]
    assert ops.broadcast_shapes((2, 1), 3, ()) == (2, 3)


def test_joined_dtype_is_the_common_one(device):
    half, ints = fd.ones(2, dtype="bfloat16", device=device), fd.arange(2, device=device)
    assert ops.concatenate([half, fd.ones(1, device=device)]).dtype == np.float32
    assert ops.stack([half, ints]).dtype == half.dtype
    assert ops.concatenate([ints > 0, ints]).dtype == ints.dtype


# --- derivatives: the function, JAX's, the shapes


def pieces(split):
    """A function of the parts that `split` makes, weighing them differently."""
    return lambda x: sum((i + 1.0) * (part * part).sum() for i, part in enumerate(split(x)))


DERIVATIVES = {
    "moveaxis": (lambda x: ops.moveaxis(x, 0, 1), lambda x: jnp.moveaxis(x, 0, 1), [(2, 3, 2)]),
    "rot90": (ops.rot90, jnp.rot90, [(2, 3)]),
    "roll": (lambda x: ops.roll(x, (1, -2), (0, 1)), lambda x: jnp.roll(x, (1, -2), (0, 1)), [(2, 3)]),
    "diag": (lambda x: ops.diag(x, -1), lambda x: jnp.diag(x, -1), [(3,)]),
    "diagonal": (lambda x: ops.diagonal(x, 1, 2, 0), lambda x: jnp.diagonal(x, 1, 2, 0), [(3, 2, 4)]),
    "trace": (lambda x: ops.trace(x, -1), lambda x: jnp.trace(x, -1), [(4, 2)]),
    "concatenate": (lambda *xs: ops.concatenate(xs, 1), lambda *xs: jnp.concatenate(xs, 1), [(2, 3), (2, 0), (2, 1)]),
    "split": (pieces(lambda x: ops.split(x, [1, 2])), pieces(lambda x: jnp.split(x, [1, 2])), [(4, 2)]),
    "one part": (lambda x: ops.split(x, [1, 2])[1], lambda x: x[1:2], [(4, 2)]),
    "overlapping": (
        pieces(lambda x: ops.split(x, [3, 1])), pieces(lambda x: (x[:3], x[3:1], x[1:])), [(4, 2)],
    ),
    "unstack": (pieces(lambda x: ops.unstack(x, 1)), pieces(lambda x: jnp.moveaxis(x, 1, 0)), [(2, 3)]),
    "tile": (lambda x: ops.tile(x, (2, 1, 3)), lambda x: jnp.tile(x, (2, 1, 3)), [(2, 2)]),
    "repeat": (lambda x: ops.repeat(x, 3, 1), lambda x: jnp.repeat(x, 3, 1), [(2, 2)]),
    "repeats": (lambda x: ops.repeat(x, [2, 0, 1], 0), lambda x: x[np.array([0, 0, 2])], [(3, 2)]),
    "pad": (lambda x: ops.pad(x, 1, constant_values=0.5), lambda x: jnp.pad(x, 1, constant_values=0.5), [(2, 3)]),
    "pad by tensor": (
        lambda x, c: ops.pad(x, (1, 2), constant_values=c),
        lambda x, c: jnp.pad(x, (1, 2), constant_values=c), [(2,), ()],
    ),
    **{
        mode: (lambda x, m=mode: ops.pad(x, (2, 3), m), lambda x, m=mode: jnp.pad(x, (2, 3), m), [(3, 2)])
        for mode in ("edge", "wrap")
    },
    "astype": (lambda x: ops.astype(x, "float32"), lambda x: x.astype(jnp.float32), [(3,)]),
}  # fmt: skip


def ours(fn, xs, vs, weigh, all_ways):
    """Tangent, gradient, and the gradient along `vs`; also forward over reverse, and row by row."""

    def loss(*xs):
        out = fn(*xs)
        return [(ops.sin(out) * weigh(out)).sum()]

    def gradient(*xs):
        (out,), pull = vjp(loss, xs)
        return pull([fd.ones_like(out)])

    def along(*xs):
        return [sum((g * v).sum() for g, v in zip(gradient(*xs), vs, strict=True))]

    tangent = jvp(lambda *xs: [fn(*xs)], xs, vs)[1]
    if not all_ways:
        gradients, pull = vjp(gradient, xs)
        return [*tangent, *gradients, *pull(vs)]
    (out,), pull = vjp(along, xs)
    rows = [ops.stack([x, v]) for x, v in zip(xs, vs, strict=True)]
    first = vmap(lambda *xs: gradient(*xs)[0], 2)(*rows)
    second = [*pull([fd.ones_like(out)]), *jvp(gradient, xs, vs)[1]]
    return [*tangent, *gradient(*xs), *second, first]


def theirs(fn, xs, vs, weigh):
    def loss(*xs):
        out = fn(*xs)
        return (jnp.sin(out) * weigh(out)).sum()

    every = tuple(range(len(xs)))
    gradient = jax.grad(loss, every)
    tangents = jax.jvp(gradient, xs, vs)[1]
    first = jnp.stack([gradient(*xs)[0], gradient(*vs)[0]])
    return [jax.jvp(fn, xs, vs)[1], *gradient(*xs), *tangents, *tangents, first]


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_jaxs(name):
    fn, by_jax, shapes = DERIVATIVES[name]
    with fd.enable_x64():
        rng = np.random.default_rng(1)
        xs, vs = (tuple(rng.normal(size=s) for s in shapes) for _ in range(2))

        def weigh(out):  # so that no two elements of a result count alike
            return np.cos(np.arange(float(out.size))).reshape(out.shape).astype(out.dtype)

        options = {"xla_backend_optimization_level": 0}  # compiled to run once
        want = jax.jit(lambda xs, vs: theirs(by_jax, xs, vs, weigh), compiler_options=options)(xs, vs)
        tolerance = 1e-5 if name == "astype" else 1e-12
        for device in DEVICES.values():
            numpy = device.name == "numpy"  # computes all in no time; XLA compiles
            found = execute(device, lambda a: ours(fn, *a, weigh, numpy), (xs, vs))  # noqa: B023  # called in the same round of the loop
            for got, expected in zip(found, want, strict=numpy):
                np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance, err_msg=device.name)


# --- a cotangent goes to the right operand, place and shape


def leaf(data, device, dtype="float32"):
    return fd.tensor(data, dtype=dtype, device=device.autodiff()).require_grad()


def test_join_with_an_untracked_part(device):
    x = leaf([1.0, 2.0, 3.0], device)
    joined = ops.concatenate([fd.tensor([7.0, 8.0], device=device), x])
    grads = (joined * fd.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=device)).sum().backward()
    assert grads[x].tolist() == [3.0, 4.0, 5.0]


def test_one_tensor_joined_with_itself(device):
    x = leaf([1.0, 2.0], device)
    grads = (ops.stack([x, x, x]) * fd.tensor([[1.0], [10.0], [100.0]], device=device)).sum().backward()
    assert grads[x].tolist() == [111.0, 111.0]


def test_trace_of_a_tall_matrix(device):
    x = leaf(np.ones((4, 2)), device)
    assert x.grad(ops.trace(x).backward()).tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [0.0, 0.0]]


def test_product_of_two_broadcast_tensors(device):
    x, y = leaf([[1.0], [2.0]], device), leaf([[3.0, 4.0, 5.0]], device)
    grads = (x * y).sum().backward()
    assert grads[x].tolist() == [[12.0], [12.0]]
    assert grads[y].tolist() == [[3.0, 3.0, 3.0]]


def test_infinite_border_keeps_gradients_finite(device):
    x, c = leaf([1.0, 2.0], device), leaf(np.inf, device)
    out = ops.pad(x, 1, constant_values=c)
    assert out.tolist() == [np.inf, 1.0, 2.0, np.inf]
    grads = (out * fd.tensor([1.0, 2.0, 3.0, 4.0], device=device)).sum().backward()
    assert grads[x].tolist() == [2.0, 3.0]
    assert grads[c].item() == 5.0


def test_half_types_keep_their_dtype(device):
    x = leaf(np.ones((3, 2)), device, "bfloat16")
    for fn in (ops.trace, lambda x: ops.tile(x, 300), lambda x: ops.pad(x, 1), lambda x: ops.concatenate([x, x])):
        g = x.grad(fn(x).sum().backward())
        assert g.dtype == x.dtype
        assert fn(x).dtype == x.dtype
    assert x.grad(ops.tile(x, 300).sum().backward()).tolist() == [[300.0, 300.0]] * 3


def test_a_result_is_never_a_leaf(device):
    x = leaf([1.0, 2.0], device)
    for fn in (
        lambda x: ops.reshape(x, (2,)), lambda x: ops.astype(x, x.dtype), lambda x: ops.pad(x, 0),
        lambda x: ops.broadcast_to(x, (2,)), lambda x: ops.rot90(ops.reshape(x, (2, 1)), 0),
        ops.copy, ops.transpose, ops.squeeze, ops.atleast_1d,
    ):  # fmt: skip
        y = fn(x)
        assert not y.is_require_grad
        assert y.is_tracked
        assert x.grad((y * 3.0).sum().backward()).tolist() == [3.0, 3.0]


def test_many_parts_compile_once():
    """Un-jitted, joining n parts and back is a fixed number of compiled calls, whatever n."""

    def run(n):
        xs = [leaf([1.0], DEVICES["xla"]) for _ in range(n)]
        grads = ops.concatenate(xs).sum().backward()
        assert all(grads[x].tolist() == [1.0] for x in xs)

    settled()
    run(40)
    before = compiled.cache_info().misses
    run(41)
    assert compiled.cache_info().misses - before < 8


# --- dtypes


def test_astype(device):
    x = fd.tensor([1.7, -1.7], device=device)
    assert ops.astype(x, int).tolist() == [1, -1]
    assert ops.astype(x, "bfloat16").dtype == fd.ones(1, dtype="bfloat16").dtype
    assert ops.astype(x, float).dtype == np.float32
    assert ops.astype(x, bool).tolist() == [True, True]
    z = fd.tensor(np.array([1 + 2j], np.complex64), device=device)
    assert ops.astype(z, "float32").tolist() == [1.0]
    assert ops.astype(z, int).tolist() == [1]


def test_astype_between_complex_and_real(device):
    x = leaf([1.0, 2.0], device)
    grads = ops.astype(ops.astype(x, "complex64") * 2j, "float32").sum().backward()
    assert grads[x].tolist() == [0.0, 0.0]
    grads = ops.astype(ops.astype(x, "complex64") * 2, "float32").sum().backward()
    assert grads[x].tolist() == [2.0, 2.0]


def test_astype_refuses_what_the_device_cannot_hold():
    with fd.enable_x64(enabled=False):
        with pytest.raises(errors.DTypeError, match="astype: float64 needs JAX's x64 mode"):
            ops.astype(fd.ones(2, device=DEVICES["xla"]), "float64")
        assert ops.astype(fd.ones(2, device=DEVICES["numpy"]), "float64").dtype == np.float64


# --- refusals

REFUSED = {
    "size": (lambda x: ops.reshape(x, (4,)), r"6 elements, the shape \(4,\) takes 4"),
    "two unknown": (lambda x: ops.reshape(x, (-1, -1)), "one length may be -1"),
    "negative": (lambda x: ops.reshape(x, (-2, 3)), "no other may be negative"),
    "indivisible": (lambda x: ops.reshape(x, (4, -1)), "6 elements do not determine"),
    "ambiguous": (lambda x: ops.reshape(x[:0], (0, -1)), "0 elements do not determine"),
    "axes": (lambda x: ops.transpose(x, (0, 0)), r"axes=\(0, 0\) must name each of the 2 axes"),
    "too few axes": (lambda x: ops.transpose(x, (0,)), "each of the 2 axes"),
    "out of range": (lambda x: ops.swapaxes(x, 0, 2), "axis 2 is out of range"),
    "moveaxis": (lambda x: ops.moveaxis(x, (0, 1), 0), "as many axes"),
    "squeeze": (lambda x: ops.squeeze(x, 1), "axis 1 of shape .2, 3. has length 3"),
    "expand_dims": (lambda x: ops.expand_dims(x, (0, 0)), "twice"),
    "broadcast": (lambda x: ops.broadcast_to(x, (2, 4)), r"\(2, 3\) does not broadcast to \(2, 4\)"),
    "broadcast less": (lambda x: ops.broadcast_to(x, (3,)), "does not broadcast"),
    "shapes": (lambda x: ops.broadcast_shapes((2,), (3,)), r"\(2,\) and \(3,\) do not broadcast"),
    "matrix": (lambda x: ops.tril(x[0]), "at least 2 axes"),
    "same axis": (lambda x: ops.diagonal(x, 0, 1, -1), "same axis"),
    "diag": (lambda x: ops.diag(ops.reshape(x, (1, 2, 3))), "a vector or a matrix"),
    "rot90": (lambda x: ops.rot90(x, 1, (0, -2)), "two different axes"),
    "roll": (lambda x: ops.roll(x, (1, 2, 3), (0, 1)), "as many entries"),
    "join": (lambda x: ops.concatenate([x, x, x[:, :1]]), r"input 2 has shape \(2, 1\), input 0 has \(2, 3\)"),
    "join ranks": (lambda x: ops.concatenate([x, x[0]]), "input 1 has shape"),
    "join numbers": (lambda x: ops.concatenate([1.0, 2.0]), "use stack"),
    "join nothing": (lambda x: ops.concatenate([]), "at least one"),
    "stack": (lambda x: ops.stack([x, x[0]]), "stack: input 1"),
    "split": (lambda x: ops.split(x, 2, 1), "2 equal parts do not divide.*array_split"),
    "repeats": (lambda x: ops.repeat(x, [1, 2], 1), "has 3 entries"),
    "widths": (lambda x: ops.pad(x, ((1, 2, 3),)), "one pair for each of the 2 axes"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_shapes(name, device):
    call, message = REFUSED[name]
    with pytest.raises(errors.ShapeError, match=f"(?s){message}"):
        call(fd.ones((2, 3), device=device))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: ops.reshape(x, "ab"), errors.ArgumentTypeError, "a shape is an int"),
        (lambda x: ops.concatenate(3), errors.ArgumentTypeError, r"write concatenate\(\[x, y\]\)"),
        (lambda x: ops.pad(x, -1), errors.ArgumentError, "not negative"),
        (lambda x: ops.pad(x, 1, "mirror"), errors.ArgumentError, "'mirror' is not one of"),
        (lambda x: ops.tile(x, -1), errors.ArgumentError, "must not be negative"),
        (lambda x: ops.repeat(x, 1.5), errors.ArgumentError, "must be ints"),
        (lambda x: ops.repeat(x, -1), errors.ArgumentError, "not negative"),
        (lambda x: ops.split(x, 0), errors.ArgumentError, "at least 1"),
        (lambda x: ops.pad(x, 1, constant_values=1j), errors.DTypeError, "complex"),
        (lambda x: ops.pad(ops.astype(x, int), 1, constant_values=np.inf), errors.DTypeError, "does not fit int"),
    ],
)
def test_refused_arguments(call, error, message):
    with pytest.raises(error, match=message):
        call(fd.ones((2, 3)))


# --- any shape, with lengths 0 and 1 among them: value, and <g, J t> = <J^T g, t>

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3)


@st.composite
def arrangements(draw):
    """A shape, and a function of NumPy's module or functad's that takes an array of that shape."""
    shape = draw(SHAPES)
    ndim = len(shape)
    axis = draw(st.integers(-ndim, ndim - 1))
    kinds = {
        "transpose": lambda: (draw(st.permutations(range(ndim))),),
        "flip": lambda: (draw(st.sets(st.integers(0, ndim - 1))).__iter__.__self__,),
        "roll": lambda: (draw(st.integers(-4, 4)), axis),
        "moveaxis": lambda: (axis, draw(st.integers(-ndim, ndim - 1))),
        "expand_dims": lambda: (draw(st.integers(-ndim - 1, ndim)),),
        "tile": lambda: (draw(st.lists(st.integers(0, 3), max_size=4)),),
        "repeat": lambda: (draw(st.lists(st.integers(0, 2), min_size=shape[axis], max_size=shape[axis])), axis),
        "pad": lambda: (draw(st.lists(st.tuples(*[st.integers(0, 2)] * 2), min_size=ndim, max_size=ndim)),),
        "concatenate": lambda: (axis,),
        "split": lambda: (draw(st.lists(st.integers(-4, 4), max_size=3)), axis),
    }
    name = draw(st.sampled_from(sorted(kinds)))
    args = kinds[name]()
    if name == "flip":
        args = (tuple(args[0]),)
    if name == "repeat" and not args[0]:
        args = (1, axis)

    def call(module, x):
        first = [x, x] if name == "concatenate" else x
        out = getattr(module, name)(first, *args)
        return module.concatenate(out, axis) if name == "split" else out

    return shape, call


@settings(max_examples=150, deadline=None)
@given(arrangements(), st.integers(0, 99))
def test_any_arrangement(arrangement, seed):
    shape, call = arrangement
    rng = np.random.default_rng(seed)
    device = DEVICES["numpy"]
    x, t = (fd.tensor(rng.integers(-9, 9, shape).astype(np.float32), device=device) for _ in range(2))
    out, moved = jvp(lambda x: [call(ops, x)], [x], [t])
    np.testing.assert_array_equal(out[0].numpy(), call(np, x.numpy()))
    np.testing.assert_array_equal(moved[0].numpy(), call(np, t.numpy()))
    g = fd.tensor(rng.integers(-9, 9, out[0].shape).astype(np.float32), device=device)
    (back,) = vjp(lambda x: [call(ops, x)], [x])[1]([g])
    assert back.shape == shape
    assert (g * moved[0]).sum().item() == (back * t).sum().item()


def test_roll_by_a_tensor(device):
    """A shift is an operand: a loop over shifts compiles once, and jit and vmap take it."""
    x = fd.arange(5, device=device)
    shifts = fd.tensor([0, 1, -2], device=device)
    want = [np.roll(np.arange(5), s).tolist() for s in (0, 1, -2)]
    assert [ops.roll(x, s).tolist() for s in shifts] == want
    assert fd.vmap(ops.roll, (None, 0))(x, shifts).tolist() == want
    assert fd.jit(ops.roll)(x, shifts[2]).tolist() == want[2]
    with pytest.raises(errors.ArgumentTypeError, match="a shift is one int"):
        ops.roll(x, shifts)


def test_casts_saturate_and_integers_divide_by_zero_alike(device):
    x = fd.tensor([np.inf, -np.inf, np.nan, 3e9, -1.9], device=device)
    assert x.astype("int32").tolist() == [2**31 - 1, -(2**31), 0, 2**31 - 1, -1]
    assert x.astype("uint8").tolist() == [255, 0, 0, 255, 0]
    n = fd.tensor([5, -5, 0], device=device)
    assert (n // 0).tolist() == (n % 0).tolist() == [0, 0, 0]


INTS = {
    "transpose": lambda xp, x, ints: xp.transpose(x, ints([2, 0, 1])),
    "x.transpose": lambda xp, x, ints: x.transpose(ints([2, 0, 1])),
    "x.reshape": lambda xp, x, ints: x.reshape(ints([4, 6])),
    "moveaxis": lambda xp, x, ints: xp.moveaxis(x, ints([0, 1]), ints([1, 2])),
    "tile": lambda xp, x, ints: xp.tile(x, ints([2, 1, 1])),
    "roll": lambda xp, x, ints: xp.roll(x, np.array([1, 2]), ints([0, 2])),
    "broadcast_to": lambda xp, x, ints: xp.broadcast_to(x, ints([2, 2, 3, 4])),
    "resize": lambda xp, x, ints: xp.resize(x, ints([5, 2])),
    "expand_dims": lambda xp, x, ints: xp.expand_dims(x, tuple(ints([0, 2]))),
    "fftn": lambda xp, x, ints: xp.fft.fftn(x, axes=ints([0, 2])).real,
    "fftshift": lambda xp, x, ints: xp.fft.fftshift(x, axes=ints([1])),
    "unravel_index": lambda xp, x, ints: xp.stack(xp.unravel_index(ints([3, 17]), ints([2, 3, 4]))),
    "zeros": lambda xp, x, ints: xp.zeros(ints([2, 3])),
}


@pytest.mark.parametrize("name", INTS)
@pytest.mark.parametrize("ints", [np.array, fd.tensor, lambda v: v], ids=["array", "tensor", "list"])
def test_axes_and_lengths_may_be_arrays_of_ints(name, ints, device):
    """Programs for NumPy compute them, and had each to be made a tuple first."""
    x = draw(2, 3, 4)
    want = INTS[name](np, x, np.array if name == "unravel_index" else lambda v: v)
    found = INTS[name](fd.numpy, fd.tensor(x, device=device), ints)
    np.testing.assert_allclose(found.numpy(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
def test_methods_take_an_order(order, device):
    x = draw(2, 3, 4)
    if order == "F":
        want = (x.reshape((4, -1), order="F"), x.ravel(order="F"), x.flatten("F"))
    else:
        want = (x.reshape(4, -1), x.ravel(), x.flatten())
    y = fd.tensor(x, device=device)
    for found, expected in zip(
        (y.reshape((4, -1), order=order), y.ravel(order=order), y.flatten(order)), want, strict=True
    ):
        np.testing.assert_array_equal(found.numpy(), expected)
    slopes = fd.grad(lambda y: (y.reshape(4, 6, order=order) * fd.tensor(draw(4, 6), device=device)).sum())(y)
    np.testing.assert_array_equal(slopes.numpy(), draw(4, 6).reshape(x.shape, order="F" if order == "F" else "C"))


def test_an_order_that_is_none_says_what_else_was_meant():
    with pytest.raises(errors.ArgumentError, match=r"order must be 'C' or 'F', got 1; to keep the first axis write"):
        fd.ones((2, 3)).flatten(1)
    with pytest.raises(errors.ArgumentError, match="order must be 'C' or 'F', got 'B'"):
        fd.ones((2, 3)).reshape(6, order="B")


def test_a_shape_that_is_computed_under_jit_says_why_it_cannot_be():
    with pytest.raises(errors.ArgumentTypeError, match="those that decide shapes have to be"):
        fd.jit(fd.numpy.reshape)(fd.ones((2, 3)), np.array([3, 2]))
