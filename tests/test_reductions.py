"""Reductions, norms and softmax: values, derivatives to second order, and the points where others go wrong."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from helpers import draw, exactly
from hypothesis import given, settings
from hypothesis import strategies as st

import functad as fd
from functad import ops
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.testing import check_grads
from functad.transforms.forward import jvp
from functad.transforms.jacobian import hessian
from functad.transforms.vmap import vmap

INF = float("inf")
NAN = float("nan")

AXES = [
    ((), None, True), ((5,), -1, False), ((3, 4), 0, True), ((3, 4), (0, 1), False), ((2, 3, 4), (2, 0), True),
    ((2, 3, 4), -2, False), ((2, 3), (), False), ((0, 3), 1, False),
]  # fmt: skip


def on(device, data, dtype="float64"):
    return fd.tensor(data, dtype=dtype, device=device)


def close(got, want, rtol=1e-12, atol=1e-12):
    np.testing.assert_allclose(got.numpy() if hasattr(got, "numpy") else got, want, rtol=rtol, atol=atol)


def compiled(device, fn):
    """`fn`, on XLA as one program: one compilation instead of one per op."""
    return fn if device.name == "numpy" else fd.jit(fn)


# --- values


NAMES = ["sum", "mean", "prod", "max", "min", "all", "any", "count_nonzero", "var", "std"]


@pytest.mark.parametrize(("shape", "axis", "keepdims"), AXES)
def test_values_are_numpy_s(x64, device, shape, axis, keepdims):
    x = draw(*shape) * (np.arange(math.prod(shape)).reshape(shape) % 3 != 1)  # with zeros
    call = compiled(device, lambda x: [getattr(ops, name)(x, axis=axis, keepdims=keepdims) for name in NAMES])
    for name, got in zip(NAMES, call(on(device, x)), strict=True):
        want = getattr(np, name)(x, axis=axis, keepdims=keepdims)
        assert got.shape == np.shape(want)
        close(got, want)


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_argmax_takes_the_first_and_nan_wins(device, axis, keepdims):
    x = np.array([[3.0, 1.0, 3.0], [NAN, 3.0, NAN], [-1.0, -INF, -1.0]], np.float32)
    for name in ("argmax", "argmin"):
        got = getattr(ops, name)(fd.tensor(x, device=device), axis, keepdims)
        want = getattr(np, name)(x, axis, keepdims=keepdims)
        assert got.tolist() == want.tolist()
        assert got.dtype == np.int32


def test_max_of_nan_is_nan_as_in_numpy(device):
    x = on(device, [1.0, NAN, 3.0], "float32")
    assert math.isnan(ops.max(x).item()) and math.isnan(ops.min(x).item())
    exactly(fd.grad(ops.max)(x), [0, 1, 0])  # and the derivative is that of the element it took


def test_empty_reductions(device):
    x = on(device, np.zeros((0, 3)), "float32")
    exactly(ops.sum(x, 0), [0, 0, 0])
    exactly(ops.prod(x, 0), [1, 1, 1])
    exactly(ops.mean(x, 0), [NAN] * 3)
    exactly(ops.var(x, 0), [NAN] * 3)
    exactly(ops.logsumexp(x, 0), [-INF] * 3)
    exactly(ops.norm(x, axis=0), [0, 0, 0])
    exactly(ops.norm(x, 3, axis=0), [0, 0, 0])
    exactly(ops.norm(x, INF, axis=0), [0, 0, 0])
    assert ops.all(x).item() and not ops.any(x).item()
    assert ops.softmax(x, 0).shape == (0, 3)
    fns = (ops.sum, ops.prod, ops.mean, ops.var, ops.std, ops.norm, ops.logsumexp)
    for g in compiled(device, lambda x: [fd.grad(lambda x, fn=fn: fn(x, axis=0).sum())(x) for fn in fns])(x):
        assert g.shape == (0, 3)
    for fn in (ops.max, ops.min, ops.argmax, ops.argmin, lambda x, axis: ops.norm(x, -INF, axis)):
        with pytest.raises(ShapeError, match=r"no elements over axis .*\(0, 3\)"):
            fn(x, axis=0)
        assert fn(x, axis=1).shape == (0,)


@pytest.mark.parametrize(("dtype", "kind"), [("bool", "i"), ("int8", "i"), ("uint8", "u"), ("uint32", "u")])
def test_sums_of_small_integers_are_of_the_default_integer(device, dtype, kind):
    x = fd.tensor(np.ones(300, dtype), device=device)
    fns = (ops.sum, ops.prod, ops.cumsum, ops.cumprod)
    for out in compiled(device, lambda x: [fn(x) for fn in fns])(x):
        assert out.dtype == np.dtype(f"{kind}4")
    assert ops.sum(x).item() == 300
    assert ops.mean(x).dtype == np.float32
    assert ops.max(x).dtype == np.dtype(dtype)
    with fd.enable_x64():
        assert ops.sum(x).dtype == np.dtype(f"{kind}8")
        assert ops.std(x).dtype == np.float32  # as in JAX: only 64-bit integers become float64


@pytest.mark.parametrize("name", ["sum", "max", "mean", "std", "norm", "softmax", "logsumexp"])
def test_axis_errors_name_function_axis_and_rank(name):
    fn, x = getattr(ops, name), fd.ones((2, 3))
    with pytest.raises(ShapeError, match=rf"{name}: axis 2 is out of range for a tensor with 2 axes; .* -2 to 1"):
        fn(x, axis=2)
    with pytest.raises(ShapeError, match=rf"{name}: axis=\(0, -2\) names axis 0 .* twice"):
        fn(x, axis=(0, -2))
    with pytest.raises(ArgumentTypeError, match=rf"{name}: axis must be an int .*'rows'"):
        fn(x, axis="rows")
    with pytest.raises(ShapeError, match=rf"{name}: axis=0 asks for an axis of a 0-d tensor"):
        fn(fd.tensor(1.0), axis=0)


def test_other_arguments_are_checked():
    with pytest.raises(ArgumentError, match="ord='nuc' is not the order"):
        ops.norm(fd.ones(3), "nuc")
    with pytest.raises(ArgumentTypeError, match="ddof must be a number"):
        ops.var(fd.ones(3), ddof="1")


# --- derivatives (that of each op is compared with JAX's from its samples; here the functions over them)


FUNCTIONS = {
    "mean": lambda x: ops.mean(x * x, 0),
    "prod": ops.prod,
    "prod of rows": lambda x: ops.prod(ops.prod(x, 1)),
    "max": lambda x: ops.max(x * x, 1),
    "min": lambda x: ops.min(x * x, (0, 1)),
    "var": lambda x: ops.var(x, 1, ddof=1) ** 2,
    "std": lambda x: ops.std(x, 1, ddof=0.5),
    "norm": ops.norm,
    "norm 1": lambda x: ops.norm(x * x, 1, 0),
    "norm 3": lambda x: ops.norm(x, 3),
    "norm 1.5": lambda x: ops.norm(x, 1.5, -1),
    "norm 0.5": lambda x: ops.norm(x, 0.5),
    "norm -2": lambda x: ops.norm(x, -2),
    "norm inf": lambda x: ops.norm(x**2, INF),
    "logsumexp": lambda x: ops.logsumexp(x, 1),
    "softmax": lambda x: ops.softmax(x, 1),
    "softmax of all": lambda x: ops.softmax(x, None),
    "log_softmax": lambda x: ops.log_softmax(x, 0),
    "masked softmax": lambda x: ops.softmax(x, where=[[True, True, False], [False, False, False]]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_to_second_order(name):
    check_grads(FUNCTIONS[name], (on(fd.Device.numpy(), draw(2, 3)),))


def test_second_derivatives_are_jax_s(x64):
    x = draw(2, 3)

    def theirs(x):
        return jnp.std(x) + jnp.linalg.norm(x) * jax.nn.logsumexp(x)

    def mine(x):
        return ops.std(x) + ops.norm(x) * ops.logsumexp(x)

    close(fd.jit(hessian(mine))(fd.tensor(x)), jax.jit(jax.hessian(theirs))(x), 1e-9)


@pytest.mark.parametrize("name", ["prod", "max", "std", "norm", "logsumexp", "softmax", "argmax"])
def test_vmap_of_the_gradient_is_a_loop(device, name):
    fn = {"softmax": lambda x: (ops.softmax(x) * x).sum(), "argmax": lambda x: x[ops.argmax(x)] ** 2}.get(
        name, getattr(ops, name)
    )
    rows = draw(3, 4)
    loop = [fd.grad(fn)(on(fd.Device.numpy(), row, "float32")).numpy() for row in rows]
    close(vmap(fd.grad(fn))(on(device, rows, "float32")), np.stack(loop), 1e-5, 1e-6)


# --- products: exact with any number of zeros


def test_prod_at_zeros(device):
    exactly(fd.grad(ops.prod)(on(device, [2.0, 0.0, 3.0, 4.0], "float32")), [0, 24, 0, 0])
    exactly(fd.grad(ops.prod)(on(device, [2.0, 0.0, 0.0, 4.0], "float32")), [0, 0, 0, 0])
    want = np.zeros((4, 4))
    want[2, 3] = want[3, 2] = 6
    exactly(compiled(device, hessian(ops.prod))(on(device, [2.0, 3.0, 0.0, 0.0], "float32")), want)
    third = compiled(device, fd.grad(lambda x: hessian(ops.prod)(x)[0, 1]))
    exactly(third(on(device, [0.0, 0.0, 0.0, 5.0], "float32")), [0, 0, 5, 0])


def prod_hessian(x):
    """By leaving out two factors."""
    n = len(x)
    h = np.zeros((n, n))
    for i, j in itertools.permutations(range(n), 2):
        h[i, j] = math.prod([x[k] for k in range(n) if k not in (i, j)])
    return h


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4))
def test_prod_is_exact_at_integers(x):
    for device in (fd.Device.cpu(), fd.Device.numpy()):
        square = on(device, np.reshape(x, (2, 2)), "float32")
        others = [math.prod(x[:i] + x[i + 1 :]) for i in range(4)]
        exactly(fd.grad(lambda v: ops.prod(v, (0, 1)))(square).reshape(4), others)
        exactly(hessian(ops.prod)(square).reshape(4, 4), prod_hessian(x))


def test_prod_of_infinity_has_no_nan_where_the_cotangent_is_zero(device):
    x = on(device, [[2.0, 0.5], [0.0, INF]], "float32")
    exactly(
        fd.grad(lambda x: ops.where(fd.tensor([True, False], device=device), ops.prod(x, 1), 0).sum())(x),
        [[0.5, 2], [0, 0]],
    )


# --- ties


def test_ties_share_with_total_mass_one(device):
    x = on(device, [3.0, 1.0, 3.0, 3.0, 3.0], "float32")
    exactly(fd.grad(ops.max)(x), [0.25, 0, 0.25, 0.25, 0.25])
    exactly(fd.grad(ops.min)(-x), [0.25, 0, 0.25, 0.25, 0.25])
    exactly(jvp(ops.max, (x,), (on(device, [1.0, 7, 2, 3, 6], "float32"),))[1], 3)
    exactly(fd.grad(lambda x: ops.norm(x, INF))(on(device, [2.0, -2.0], "float32")), [0.5, -0.5])
    exactly(fd.grad(ops.max)(on(device, [-INF, -INF], "float32")), [0.5, 0.5])


def test_ties_of_70000_halves_are_counted_exactly(device):
    x = on(device, np.full(70_000, 2.0), "float16")
    exactly(fd.grad(ops.max)(x), np.full(70_000, np.float16(1 / 70_000)))
    scaled = fd.grad(lambda x: ops.max(x) * 49_984.0)(x)  # rounded once, not the share and then the product
    exactly(scaled, np.full(70_000, np.float16(49_984 / 70_000)))


def test_max_decides_the_same_inside_jit():
    x = fd.tensor(draw(50).astype(np.float32))
    fn = lambda x: ops.max(ops.sin(x * 3.7) * 1.1 + x / 3.0)
    close(fd.jit(fd.grad(fn))(x), fd.grad(fn)(x).numpy(), 1e-6)
    assert np.count_nonzero(fd.jit(fd.grad(fn))(x).numpy()) == 1


# --- half types


def test_mean_of_large_halves_does_not_overflow(device):
    x = on(device, np.full(100_000, 60_000.0), "float16")
    assert ops.mean(x).item() == np.float16(60_000)
    close(fd.grad(lambda x: ops.mean(x) * 50_000.0)(x).numpy()[:3].astype(float), [0.5] * 3, 1e-3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_once(device, dtype):
    eps = 2.0**-8 if dtype == "bfloat16" else 2.0**-11
    x = on(device, draw(20) * 3, dtype)
    wide = x.numpy().astype(np.float64)
    fns = [
        ops.mean,
        ops.std,
        ops.var,
        ops.norm,
        ops.logsumexp,
        lambda x: ops.norm(x, 3),
        lambda x: ops.prod(x[:6]),
        lambda x: ops.sum(ops.softmax(x) * x),
        lambda x: ops.sum(ops.log_softmax(x) * ops.sin(x)),
    ]

    def report(x):
        return [fd.grad(fn)(x) for fn in fns]

    for got, want in zip(compiled(device, report)(x), report(on(fd.Device.numpy(), wide)), strict=True):
        assert got.dtype == x.dtype
        close(got.numpy().astype(float), want.numpy(), 4 * eps, 4 * eps * np.abs(want.numpy()).max())


def test_norm_of_halves_is_overflow_safe(device):
    x = on(device, np.full((2, 2), 200.0), "float16")
    assert ops.norm(x).item() == 400
    exactly(fd.grad(ops.norm)(x), np.full((2, 2), 0.5))
    exactly(jvp(ops.norm, (x,), (x,))[1], 400)
    big = on(device, np.full(4, 60_000.0), "float16")  # the norm itself does not fit; its direction does
    exactly(fd.grad(ops.norm)(big), [0.5] * 4)


def test_log_softmax_of_halves_cancels_in_float32(device):
    g = [5e4, 5e4, -5e4, -5e4]
    weights = on(device, g, "float16")
    exactly(fd.grad(lambda x: ops.sum(ops.log_softmax(x) * weights))(on(device, np.zeros(4), "float16")), np.float16(g))


def test_variance_at_a_large_offset(device):
    x = on(device, np.array([1.0, 2.0, 3.0, 4.0]) + 2.0**23, "float32")
    assert ops.var(x).item() == 1.25
    exactly(fd.grad(ops.var)(x), [-0.75, -0.25, 0.25, 0.75])


# --- norms and spreads at their kink


def test_norm_at_zero(device):
    def report(x, p):
        norm = lambda x: ops.norm(x, p)
        squared = fd.grad(lambda x: norm(x) ** 2)(x)
        return norm(x), fd.grad(norm)(x), hessian(norm)(x), squared, jvp(norm, (x,), (x + 1,))[1]

    zero = on(device, [0.0, 0.0], "float32")
    orders = (None, 1, 2, 3, 1.5, 0.5, 0, -1, INF, -INF) if device.name == "numpy" else (None, 3, 0.5)
    for values in compiled(device, lambda x: [report(x, p) for p in orders])(zero):
        for value in values:
            exactly(value, np.zeros(value.shape))


def test_hessian_of_the_squared_norm_is_finite_at_zero(device):
    zero = on(device, [0.0, 0.0], "float32")
    exactly(compiled(device, hessian(lambda x: ops.norm(x) ** 2))(zero), np.zeros((2, 2)))


def test_norm_with_some_zeros(device):
    x = on(device, [3.0, 0.0, -4.0], "float32")
    exactly(fd.grad(ops.norm)(x), np.float32([0.6, 0, -0.8]))
    exactly(fd.grad(lambda x: ops.norm(x, 1))(x), [1, 0, -1])

    def report(x, p):
        return fd.grad(lambda x: ops.norm(x, p))(x), hessian(lambda x: ops.norm(x, p))(x)

    for g, h in compiled(device, lambda x: [report(x, p) for p in (0.5, 1.5, 3, -1)])(x):
        assert np.isfinite(g.numpy()).all() and g[1].item() == 0
        assert np.isfinite(h.numpy()).all()


def test_norm_values(x64, device):
    x = draw(3, 4)
    orders = (None, 1, 2, 3, 0.5, 0, -1, INF, -INF)

    def report(x):
        return [(ops.norm(x, p, axis=1), ops.norm(x, p, axis=(0, 1), keepdims=True)) for p in orders]

    for p, (rows, whole) in zip(orders, compiled(device, report)(on(device, x)), strict=True):
        close(rows, np.linalg.norm(x, p, axis=1))
        close(whole, np.linalg.norm(x.ravel(), p).reshape(1, 1))
    close(ops.norm(on(device, x), "fro"), np.linalg.norm(x))
    close(ops.norm(on(device, [1e200, 1e200]), 8), 1e200 * 2 ** (1 / 8))  # no power overflows


def test_std_of_a_constant_is_flat_at_every_order(device):
    x = on(device, [0.1, 0.1, 0.1], "float32")  # whose sum over 3 is not 0.1

    def report(x):
        third = fd.grad(lambda x: hessian(ops.std)(x).sum())(x)
        return ops.std(x), fd.grad(ops.std)(x), hessian(ops.std)(x), third, jvp(ops.std, (x,), (x * 2 + 1,))[1]

    for value in compiled(device, report)(x):
        exactly(value, np.zeros(value.shape))
    columns = on(device, [[1.0, 1.0], [1.0, 3.0]], "float32")
    exactly(fd.grad(lambda x: ops.std(x, 0).sum())(columns), [[0, -0.5], [0, 0.5]])


def test_var_without_degrees_of_freedom_is_nan_as_in_numpy(device):
    x = on(device, [1.0], "float32")
    assert math.isnan(ops.var(x, ddof=1).item()) and math.isnan(ops.std(x, ddof=1).item())
    assert ops.var(on(device, [1.0, 3.0], "float32"), ddof=2).item() == INF


def test_complex(x64, device):
    z = draw(2, 3) + 1j * draw(2, 3, seed=1)
    names = ("sum", "mean", "prod", "var", "std")

    def report(x):
        values = [getattr(ops, name)(x, 1) for name in names]
        return values, ops.norm(x), [fd.grad(fn, holomorphic=True)(x) for fn in (ops.prod, ops.mean)]

    values, norm, grads = compiled(device, report)(on(device, z, "complex128"))
    for name, value in zip(names, values, strict=True):
        close(value, getattr(np, name)(z, 1))
    close(norm, np.linalg.norm(z))
    for g, theirs in zip(grads, (jnp.prod, jnp.mean), strict=True):
        close(g, jax.grad(theirs, holomorphic=True)(z))


# --- softmax and logsumexp


@pytest.mark.parametrize("axis", [0, -1, None, (0, 2)])
def test_softmax_values_are_scipy_s(x64, device, axis):
    x = draw(2, 3, 4) * 100
    for name in ("softmax", "log_softmax", "logsumexp"):
        close(getattr(ops, name)(on(device, x), axis), getattr(scipy.special, name)(x, axis), 1e-10, 1e-300)


def test_logsumexp_of_rows_of_infinities(device):
    x = on(device, [[-INF, -INF], [0.0, -INF], [INF, 0.0], [INF, INF]], "float32")
    exactly(ops.logsumexp(x, 1), [-INF, 0, INF, INF])
    exactly(fd.grad(lambda x: ops.logsumexp(x, 1).sum())(x), [[0, 0], [1, 0], [1, 0], [0.5, 0.5]])
    exactly(
        jvp(lambda x: ops.logsumexp(x, 1), (x,), (fd.ones((4, 2), device=device),))[1],
        [0, 1, 1, 1],
    )
    exactly(compiled(device, hessian(ops.logsumexp))(x[0]), np.zeros((2, 2)))


def test_logsumexp_is_smooth_where_the_terms_are_equal(device):
    exactly(fd.grad(ops.logsumexp)(on(device, [1000.0, 1000.0], "float32")), [0.5, 0.5])
    exactly(compiled(device, hessian(ops.logsumexp))(on(device, [0.0, 0.0], "float32")), [[0.25, -0.25], [-0.25, 0.25]])


MASK = [[True, True, False], [False, False, False], [True, False, True]]


def test_masked_softmax_has_no_nan(device):
    x = on(device, [[0.0, 0.0, NAN], [1.0, -INF, INF], [2.0, INF, 2.0]], "float32")
    mask = fd.tensor(MASK, device=device)
    weights = on(device, [[1.0, 3.0, 9.0], [1.0, 2.0, 3.0], [1.0, 9.0, 5.0]], "float32")
    exactly(ops.softmax(x, where=mask), [[0.5, 0.5, 0], [0, 0, 0], [0.5, 0, 0.5]])

    def fn(x, mask, weights):
        return (ops.softmax(x, where=mask) * weights).sum()

    def report(x, mask, weights):
        tangent = jvp(lambda x: fn(x, mask, weights), (x,), (fd.ones((3, 3), device=device),))[1]
        second = hessian(lambda x: fn(x, mask, weights))(x)
        return fd.grad(fn)(x, mask, weights), vmap(fd.grad(fn))(x, mask, weights), tangent, second

    first, by_row, tangent, second = compiled(device, report)(x, mask, weights)
    exactly(first, [[-0.5, 0.5, 0], [0, 0, 0], [-1, 0, 1]])
    exactly(by_row, first.numpy())
    exactly(tangent, 0)
    assert np.isfinite(second.numpy()).all()


def test_masked_log_softmax_drops_what_is_masked(device):
    x = on(device, [[0.0, 0.0, NAN], [1.0, -INF, INF], [2.0, INF, 2.0]], "float32")
    mask = fd.tensor(MASK, device=device)
    half = np.float32(math.log(0.5))
    exactly(ops.log_softmax(x, where=mask), [[half, half, -INF], [-INF] * 3, [half, -INF, half]])
    fn = lambda x: ops.where(mask, ops.log_softmax(x, where=mask) * x, 0).sum()
    close(fd.grad(fn)(x), [[half, half, 0], [0, 0, 0], [half, 0, half]], 1e-6)
    exactly(fd.grad(lambda x: ops.log_softmax(x, where=mask)[0, 0])(x), [[0.5, -0.5, 0], [0, 0, 0], [0, 0, 0]])


def test_a_mask_broadcasts(device):
    x = on(device, np.zeros(3), "float32")
    exactly(ops.softmax(x, where=fd.tensor(MASK, device=device)), [[0.5, 0.5, 0], [0, 0, 0], [0.5, 0, 0.5]])
    assert fd.grad(lambda x: ops.softmax(x, where=fd.tensor(MASK, device=device))[0, 0])(x).tolist() == [0.25, -0.25, 0]


def test_a_row_of_minus_infinity_is_nan_by_plain_maths(device):
    x = on(device, [-INF, -INF], "float32")
    exactly(ops.softmax(x), [NAN, NAN])
    exactly(ops.log_softmax(x), [NAN, NAN])


def test_what_backward_keeps(device):
    """Softmax keeps its output only, max its input only: both have them anyway."""
    assert ops.softmax_op.keep((True,)) == (frozenset(), frozenset({0}), True)
    assert ops.max_op.keep((True,)) == (frozenset({0}), frozenset(), False)
    assert ops.mean_op.keep((True,)) == (frozenset(), frozenset({0}), False)
