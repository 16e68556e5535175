"""NumPy's functions beyond the standard: values against NumPy, on both backends, and what is new in each."""

from __future__ import annotations

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad.errors import ArgumentError, ArgumentTypeError, ConcreteValueError, OutOfBoundsError, ShapeError

RNG = np.random.default_rng(3)
X, V, W = RNG.normal(size=(3, 4)), RNG.normal(size=5), RNG.normal(size=7)
Z = RNG.normal(size=4) + 1j * RNG.normal(size=4)
POINTS = np.sort(RNG.normal(size=6))
HOLES = np.where(RNG.random((3, 4)) < 0.3, np.nan, X)
COUNTS = np.array([3, 1, 3, 2])


def call(name, *args, **kwargs):
    return pytest.param(name, args, kwargs, id=f"{name}-{len(args)}{'-'.join(kwargs)}")


CASES = [
    # statistics
    call("average", X, axis=1, weights=np.abs(V[:4]), returned=True), call("average", X, axis=(1, 0), weights=np.abs(X.T)),
    call("bincount", COUNTS, minlength=6), call("bincount", COUNTS, weights=Z.real), call("corrcoef", X),
    call("corrcoef", X + 1j * X**2), call("correlate", V, W, "same"), call("correlate", Z, Z[:2], "full"),
    call("convolve", V, W, "same"), call("cov", X, fweights=COUNTS, aweights=np.abs(V[:4])), call("cov", V, V**2),
    call("digitize", V, POINTS, right=True), call("digitize", V, POINTS[::-1]), call("histogram", X, bins=4, density=True),
    call("histogram", X, range=(-1, 1)), call("histogram", X, bins="sturges"), call("histogram", V, weights=np.abs(V)),
    call("histogram2d", V, V**2, bins=[2, 3]), call("histogramdd", X.T, bins=3), call("ptp", X, axis=0),
    # pad
    *[call("pad", x, [(1, 2), (0, 3)], mode, **more) for x in (X, np.arange(12).reshape(3, 4) ** 2) for mode, more in (
        ("linear_ramp", {}), ("linear_ramp", {"end_values": [(3, -2), (1, 5)]}), ("maximum", {}), ("minimum", {"stat_length": 2}),
        ("mean", {"stat_length": (1, 3)}), ("median", {}), ("reflect", {"reflect_type": "odd"}),
        ("symmetric", {"reflect_type": "odd"}), ("wrap", {}), ("constant", {"constant_values": (1, 2)}),
    )],
    # NaN
    call("nanargmax", HOLES, axis=0), call("nancumprod", HOLES, axis=1), call("nancumsum", HOLES), call("nanmax", HOLES, axis=0),
    call("nanmean", HOLES, axis=0), call("nanmedian", HOLES, axis=0), call("nanpercentile", HOLES, [10, 60], axis=0),
    call("nanprod", HOLES), call("nanquantile", HOLES, 0.3, axis=1, method="hazen"), call("nanstd", HOLES, axis=1),
    call("nansum", HOLES, axis=0), call("nanvar", HOLES, axis=0, keepdims=True),
    # quantiles
    call("median", X, axis=(0, 1)), call("percentile", X, 30, axis=1, keepdims=True),
    *[call("quantile", X, [0, 0.3, 0.5, 1], axis=1, method=m) for m in (
        "inverted_cdf", "averaged_inverted_cdf", "closest_observation", "interpolated_inverted_cdf", "hazen", "weibull",
        "linear", "median_unbiased", "normal_unbiased", "lower", "higher", "midpoint", "nearest")],
    call("quantile", X, 0.3, axis=1, method="inverted_cdf", weights=np.abs(X)),
    # calculus
    call("diff", X, n=2, axis=0), call("diff", X, prepend=0.0, append=X[:, :2]), call("diff", X > 0),
    call("ediff1d", X, to_begin=-1.0, to_end=[1.0, 2.0]), call("gradient", X, edge_order=2),
    call("gradient", X, POINTS[:3], POINTS[:4], edge_order=2), call("interp", V, POINTS, W[:6], left=-9.0),
    call("interp", V, POINTS, W[:6], period=1.5), call("interp", V, POINTS[:4], Z), call("trapezoid", X, dx=0.5, axis=0),
    call("trapezoid", X, POINTS[:4]), call("unwrap", 5 * W), call("unwrap", np.array([0, 1, 2, -1, 0]), period=4),
    # polynomials
    call("poly", V), call("poly", X[:, :3]), call("polyadd", V, W), call("polyder", W, 2), call("polydiv", W, V),
    call("polyfit", V, V**3, 2, w=np.abs(V)), call("polyfit", W, W**3, 2, cov=True), call("polyint", V, 2, [1.0, 2.0]),
    call("polymul", V, W), call("polysub", W, V), call("polyval", V, X), call("vander", V, 3, increasing=True),
    # sets
    call("intersect1d", COUNTS, [3, 9, 2], return_indices=True), call("isin", COUNTS, [3, 9], invert=True),
    call("setdiff1d", COUNTS, [3]), call("setxor1d", COUNTS, [3, 9]), call("union1d", COUNTS, [9]),
    call("unique", COUNTS, return_index=True, return_inverse=True, return_counts=True),
    call("unique", np.array([[1, 2], [1, 2], [0, 5]]), axis=0), call("unique", np.array([np.nan, 1, np.nan])),
    call("unique", np.array([np.nan, 1, np.nan]), equal_nan=False),
    # choosing
    call("choose", COUNTS % 2, [V[:4], W[:4]]), call("compress", [True, False, True], X, axis=0), call("extract", X > 0, X),
    call("flatnonzero", X > 0), call("lexsort", (COUNTS, [2, 1, 1, 2])), call("piecewise", V, [V < 0, V >= 0], [-1.0, 1.0]),
    call("ravel_multi_index", (np.array([1, 2]), np.array([0, 3])), (3, 4), order="F"), call("select", [X < 0, X < 1], [X, 2 * X], 7.0),
    call("searchsorted", POINTS, V, side="right"), call("sort_complex", Z), call("take", X, [50, -60], mode="wrap"),
    call("unravel_index", np.array([5, 7, 0]), (3, 4)), call("where", X > 0),
    # editing
    call("append", X, X[:1], axis=0), call("block", [[X, X[:, :1]], [np.ones((1, 5))]]), call("delete", X, slice(0, 2), axis=1),
    call("delete", V, [0, -1]), call("insert", X, [0, 2], X[:, :2], axis=1), call("insert", V, [2, 1, 1], [1.0, 2.0, 3.0]),
    call("insert", X, 1, V[:3], axis=1), call("insert", X, 1, 5.0), call("hstack", [V, W]), call("dstack", [V, V]),
    call("reshape", X, (4, 3), order="F"), call("resize", V, (2, 4)), call("rollaxis", RNG.normal(size=(2, 3, 4)), 2, 1),
    call("trim_zeros", np.array([0.0, 1, 0, 2, 0])), call("vsplit", X, 3), call("tri", 3, 4, 1), call("tril_indices", 3, -1, 4),
    # numbers
    call("angle", Z, deg=True), call("bitwise_count", np.array([7, -7])), call("divmod", V, 0.3), call("float_power", COUNTS, -2),
    call("fmax", np.array([1.0, np.nan, 3.0]), np.array([np.nan, 2.0, 3.0])), call("frexp", V), call("gcd", COUNTS, 6),
    call("heaviside", np.array([-1.0, 0.0, 2.0, np.nan]), 0.5), call("i0", V), call("isclose", V, V + 1e-9), call("lcm", COUNTS, 4),
    call("ldexp", V, np.array([1, -2, 3, 0, 9])), call("modf", np.array([-0.0, 2.0, -3.5, np.inf, np.nan])), call("rint", 3 * V),
    call("spacing", V), call("array_equiv", V, V[None]), call("packbits", X > 0, axis=1, bitorder="little"),
    call("matvec", X, V[:4]), call("vecmat", V[:3], X), call("einsum", "ij,kj", X, X), call("cross", X[:, :3], X[:, 1:]),
    call("geomspace", 1.0, V[:2] ** 2 + 1, 4), call("logspace", 0, 2, 5, base=3.0), call("indices", (2, 3)),
]  # fmt: skip


def values(x):
    return [v for y in x for v in values(y)] if isinstance(x, (tuple, list)) else [np.asarray(x)]


def to_tensor(x, device):
    if isinstance(x, np.ndarray):
        return fd.tensor(x, dtype=x.dtype, device=device)
    return type(x)(to_tensor(y, device) for y in x) if isinstance(x, (list, tuple)) else x


@pytest.mark.parametrize(("name", "args", "kwargs"), CASES)
def test_values_are_numpys(name, args, kwargs, x64):
    device = fd.Device.numpy()
    expected = values(getattr(np, name)(*args, **kwargs))
    for fn in (getattr(fnp, name), getattr(np, name)):
        found = fn(*[to_tensor(x, device) for x in args], **{k: to_tensor(x, device) for k, x in kwargs.items()})
        found = values(tuple(found) if isinstance(found, (tuple, list)) else found)
        assert len(found) == len(expected)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype.kind == theirs.dtype.kind
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


# --- functions of functions


def test_apply_along_axis_and_vectorize():
    x = fd.arange(12.0).reshape(3, 4)
    assert fnp.apply_along_axis(fnp.cumsum, 0, x).tolist() == np.cumsum(x.numpy(), 0).tolist()
    assert fnp.apply_along_axis(lambda r: r.sum(), 1, x).tolist() == [6, 22, 38]
    assert fnp.apply_along_axis(lambda r: fnp.outer(r, r), 0, x).shape == (3, 3, 4)
    dot = fnp.vectorize(lambda a, b: (a * b).sum(), signature="(n),(n)->()")
    assert dot(x, x[0]).tolist() == [14, 38, 62]
    scaled = fnp.vectorize(lambda a, power: a**power, excluded={1})
    assert scaled(x, 2).tolist() == (x.numpy() ** 2).tolist()
    assert fd.grad(lambda x: fnp.vectorize(fnp.sin)(x).sum())(x)[0, 0].item() == 1
    assert fnp.apply_over_axes(fnp.sum, x, [0, 1]).shape == (1, 1)


def test_placing_returns_a_new_tensor(device):
    x = fd.zeros((2, 2), device=device)
    assert fnp.fill_diagonal(x, 3).tolist() == [[3, 0], [0, 3]]
    assert fnp.put_along_axis(x, [[1], [0]], 5.0, 1).tolist() == [[0, 5], [5, 0]]
    assert fnp.put(x, [0, 3], [1, 2]).tolist() == [[1, 0], [0, 2]]
    assert fnp.place(x, [[True, False], [True, True]], [1, 2]).tolist() == [[1, 0], [2, 1]]
    assert fnp.putmask(x, [[True, False], [True, True]], [7, 8, 9, 10]).tolist() == [[7, 0], [9, 10]]
    assert x.tolist() == [[0, 0], [0, 0]]
    assert fd.grad(lambda v: fnp.fill_diagonal(x, v).sum())(fd.tensor(3.0, device=device)).item() == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda v, t: fnp.interp(v, v, t),
        fnp.trapezoid,
        fnp.gradient,
        lambda v, t: fnp.average(v, weights=t),
        fnp.cov,
        fnp.percentile,
        lambda v, t: fnp.put_along_axis(v, [0], t[:1], 0),
        lambda v, t: fnp.insert(v, 1, t[0]),
        lambda v, t: fnp.histogram(v, [0.0, 9.0], weights=t)[0],
        lambda v, t: fnp.polyfit(v, t, 1),
        lambda v, t: fnp.select([v > 1], [t], 5.0),
        lambda v, t: fnp.block([[v], [t]]),
        lambda v, t: fnp.geomspace(1.0, t, 3),
    ],
)
def test_arrays_go_to_the_device_of_the_tensor_beside_them(call):
    """An array in the first place went to the default device, and met the tensor of another."""
    device = fd.Device.numpy()
    assert call(np.array([1.0, 2.0, 4.0]), fd.tensor([1.0, 2.0, 3.0], device=device)).device == device


@pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=["xla", "numpy"])
def test_numbers_of_small_integer_types_count_along_long_axes(device):
    """An axis of 400 has no length in uint8, which its indices may have."""
    u, x = np.array([1, 200, 0, 3], np.uint8), np.arange(400.0)
    t = fd.tensor(x, device=device)
    i, small = fd.tensor(u, dtype="uint8", device=device), fd.tensor([1, 100, 0, -1], dtype="int8", device=device)
    for found, want in (
        (fnp.take(t, small, mode="wrap"), x[[1, 100, 0, -1]]),
        (fnp.take(t, i, mode="clip"), x[u]),
        (fnp.bincount(i, minlength=300), np.bincount(u, minlength=300)),
        (fnp.unravel_index(i, (20, 20))[0], [0, 10, 0, 0]),
        (fnp.ravel_multi_index((i, i), (300, 300)), [301, 60200, 0, 903]),
        (fnp.insert(t, i, 7.0), np.insert(x, u.astype(int), 7.0)),
    ):
        np.testing.assert_array_equal(found.numpy(), want)


@pytest.mark.parametrize(
    ("mode", "more"),
    [
        ("linear_ramp", {"end_values": 5}),
        ("mean", {"stat_length": 2}),
        ("median", {}),
        ("reflect", {"reflect_type": "odd"}),
    ],
)
def test_borders_made_of_the_values_are_differentiated(mode, more):
    x = fd.tensor(X, device=fd.Device.numpy())
    fd.testing.check_grads(lambda x: fnp.pad(x, (1, 2), mode, **more), (x,), order=2)
    rows = fd.vmap(lambda row: fnp.pad(row, 2, mode, **more))(x)
    np.testing.assert_allclose(rows.numpy(), np.pad(X, [(0, 0), (2, 2)], mode, **more))


def test_arguments_of_padding_that_do_not_fit():
    with pytest.raises(ArgumentError, match="not one of"):
        fnp.pad([1.0], 1, "mirror")
    with pytest.raises(ArgumentTypeError, match="mode='mean' takes stat_length"):
        fnp.pad([1.0], 1, "mean", constant_values=1)
    with pytest.raises(ShapeError, match="several steps"):
        fnp.pad([1.0, 2.0], 5, "reflect", reflect_type="odd")


@pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=["xla", "numpy"])
def test_integers_are_convolved_exactly(device):
    """Not in floats, which hold 24 bits, or saturate when cast back."""
    for values in (np.array([100_000_001, 3, 7], np.int32), np.array([1, 200, 0], np.uint8)):
        x = fd.tensor(values, dtype=values.dtype, device=device)
        for mode in ("full", "same", "valid"):
            want = np.convolve(values, values[:2], mode)
            np.testing.assert_array_equal(fnp.convolve(x, x[:2], mode).numpy(), want)


@pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=["xla", "numpy"])
def test_comparing_with_integers_out_of_range(device):
    x = fd.tensor([1, 200], dtype="uint8", device=device)
    assert (x == 300).tolist() == [False, False]
    assert (x < 300).tolist() == (x > -1).tolist() == [True, True]
    assert (300 > x).tolist() == [True, True]  # noqa: SIM300  # the reflected operator


def test_rolling_by_nothing():
    assert fnp.roll([1, 2], ()).tolist() == [1, 2]
    assert fnp.roll([[1, 2]], (), ()).tolist() == [[1, 2]]


# --- errors


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: fnp.quantile(x, 1.5), ArgumentError, "from 0 to 1"),
        (lambda x: fnp.percentile(x, 101), ArgumentError, "from 0 to 100"),
        (lambda x: fnp.quantile(x, 0.5, method="best"), ArgumentError, "linear"),
        (lambda x: fnp.median(x[:0]), ShapeError, "no elements"),
        (lambda x: fnp.interp(x, [1.0, 2.0], [1.0]), ShapeError, "one length"),
        (lambda x: fnp.gradient(x[:1]), ShapeError, "at least 2"),
        (lambda x: fnp.polyfit(x, x, 9), ShapeError, "degree 9"),
        (lambda x: fnp.convolve(x, x[:0]), ShapeError, "not empty"),
        (lambda x: fnp.choose([5], [x, x]), OutOfBoundsError, "0 to 1"),
        (lambda x: fnp.nanargmax(x * np.nan), ArgumentError, "nothing but NaN"),
        (lambda x: fnp.max(x, where=x > 0), ArgumentError, "initial="),
        (lambda x: fnp.meshgrid(x, indexing="yx"), ArgumentError, "'xy' or 'ij'"),
        (lambda x: fnp.put(x, 0, 1, inplace=True), ArgumentError, "immutable"),
        (fd.jit(fnp.unique), ConcreteValueError, "under vmap or jit"),
        (fd.jit(lambda x: fnp.bincount(fnp.argsort(x))), ConcreteValueError, "length="),
        (lambda x: fd.vmap(lambda r: fnp.compress(r > 0, r))(x.reshape(1, 3)), ConcreteValueError, "boolean mask"),
        (lambda x: fnp.cumulative_sum(x.reshape(3, 1)), ArgumentError, "axis=0"),
        (lambda x: fnp.std(x, ddof=1, correction=2), ArgumentError, "two names"),
        (lambda x: fnp.hsplit(x, "abc"), ArgumentTypeError, "number of parts"),
    ],
)
def test_errors_say_what_to_write(call, error, message):
    with pytest.raises(error, match=message):
        call(fd.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: fnp.rot90(fd.ones((2, 2)), 1.5), "rot90: k must be an int, got 1.5"),
        (lambda: fnp.tril_indices(3, 1.5), "tril_indices: k must be an int"),
        (lambda: fnp.triu(fd.ones((2, 2)), "a"), "triu: k must be an int, got 'a'"),
        (lambda: fnp.tile(fd.ones(2), "a"), "tile: reps must be an int"),
        (lambda: fnp.unique(fd.ones(2), axis=9), "unique: axis 9 is out of range"),
        (lambda: fnp.arange(fd.ones(2)), "has 2 elements"),
        (lambda: fd.special.bessel_jn(2.7, 1.0), "the order n must be an int of at least 0, got 2.7"),
        (lambda: fd.random.orthogonal(fd.random.key(0), 2.7), "random.orthogonal: n must be an int, got 2.7"),
    ],
)
def test_numbers_that_must_be_whole_are_not_cut_to_be(call, match):
    """Most of these were taken as the whole number below, or as another one."""
    with pytest.raises(fd.FunctadError, match=match):
        call()


def test_running_integrals(device):
    y, x = np.array([[1.0, 2.0, 4.0], [0.0, 1.0, 0.0]]), np.array([0.0, 1.0, 3.0])
    tensor = fd.tensor(y, device=device)
    assert fnp.cumulative_trapezoid(tensor, x).tolist() == [[1.5, 7.5], [0.5, 1.5]]
    assert fnp.cumulative_trapezoid(tensor, axis=0, dx=2.0, initial=0).tolist() == [[0, 0, 0], [1.0, 3.0, 4.0]]
    assert fd.grad(lambda y: fnp.cumulative_trapezoid(y, x)[:, -1].sum())(tensor)[0].tolist() == [0.5, 1.5, 1.0]
    with pytest.raises(ShapeError, match="no points"):
        fnp.cumulative_trapezoid(fd.ones((2, 0)))


def test_choosing_as_methods(device):
    x = fd.tensor([1, 0], device=device)
    assert x.choose([[1, 2], [3, 4]]).tolist() == [3, 2] and x.choose([[1, 2]], mode="clip").tolist() == [1, 2]
    assert fd.ones((2, 3), device=device).compress([True, False, True], 1).shape == (2, 2)
    with pytest.raises(OutOfBoundsError, match="0 to 0"):
        x.choose([[1, 2]])


BOTH = pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=str)


@BOTH
def test_padding_by_a_dict_of_axes(device):
    x = np.arange(6.0).reshape(2, 3)
    for widths, pairs in (
        ({0: (1, 2)}, [(1, 2), (0, 0)]),
        ({-1: 2}, [(0, 0), (2, 2)]),
        ({1: (0, 1), 0: 1}, [(1, 1), (0, 1)]),
    ):
        for mode in ("constant", "edge", "linear_ramp"):
            got = fnp.pad(fd.tensor(x, device=device), widths, mode)
            np.testing.assert_allclose(got.numpy(), np.pad(x, pairs, mode))
    with pytest.raises(ArgumentError, match="names axis 1 twice, as 1 and as -1"):
        fnp.pad(fd.tensor(x, device=device), {1: 1, -1: 2})
    with pytest.raises(fd.errors.AxisError, match="axis 2 is out of range"):
        fnp.pad(fd.tensor(x, device=device), {2: 1})


@BOTH
def test_cross_products_of_two_components(device):
    def put(x):
        return fd.tensor(x, device=device)

    x, y, z = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[4.0, -1.0], [2.0, 7.0]]), np.array([1.0, -2.0, 0.5])
    flat = x[:, 0] * y[:, 1] - x[:, 1] * y[:, 0]
    np.testing.assert_allclose(fnp.cross(put(x), put(y)).numpy(), flat)
    np.testing.assert_allclose(fnp.cross(put(x.T), put(y.T), axis=0).numpy(), flat)
    in_space = np.pad(x, [(0, 0), (0, 1)])
    np.testing.assert_allclose(fnp.cross(put(x), put(z)).numpy(), np.cross(in_space, z))
    np.testing.assert_allclose(fnp.cross(put(z), put(x)).numpy(), np.cross(z, in_space))
    fd.testing.check_grads(fnp.cross, (put(x), put(y)), order=2)
    fd.testing.check_grads(fnp.cross, (put(x), put(z)), order=2)
    with pytest.raises(ShapeError, match="3 components, got 2 and 2"):
        fnp.linalg.cross(put(x), put(y))


@BOTH
def test_unique_of_a_size(device):
    x = fd.tensor([3.0, 1.0, 3.0, np.nan, np.nan], device=device)

    def found(x, size):
        parts = fnp.unique(x, True, True, True, size=size, fill_value=9)
        return [
            part.tolist() for part in fd.jit(lambda x: fnp.unique(x, True, True, True, size=size, fill_value=9))(x)
        ], [part.tolist() for part in parts]

    for got in found(x, 5):
        np.testing.assert_equal(got, [[1, 3, np.nan, 9, 9], [1, 0, 3, 1, 1], [1, 0, 1, 2, 2], [1, 2, 2, 0, 0]])
    for got in found(x, 1):
        assert got == [[1], [1], [1, 0, 1, 2, 2], [1]]
    rows = fd.tensor([[1, 2], [0, 5], [1, 2]], device=device)
    assert fd.jit(lambda x: fnp.unique(x, axis=0, size=3))(rows).tolist() == [[0, 5], [1, 2], [0, 5]]
    assert fd.vmap(lambda x: fnp.unique(x, size=2))(rows).tolist() == [[1, 2], [0, 5], [1, 2]]
    weights = fd.tensor([1.0, 2.0, 4.0], device=device)
    slope = fd.grad(lambda x: (fnp.unique(x, size=3) * weights).sum())(fd.tensor([5.0, 1.0, 5.0], device=device))
    assert slope.tolist() == [2, 5, 0]
    with pytest.raises(ArgumentError, match="nothing to fill 2 places"):
        fnp.unique(fd.tensor([], device=device), size=2)
    with pytest.raises(ArgumentError, match="size=n, fill_value=v"):
        fnp.unique(rows, fill_value=0)


def test_einsum_path_is_that_of_numpy():
    shapes = [(2, 9), (9, 8), (8, 3)]
    args = [np.ones(shape) for shape in shapes]
    assert fnp.einsum_path("ij,jk,kl->il", *map(fd.tensor, args)) == np.einsum_path("ij,jk,kl->il", *args)
    assert fnp.einsum_path(fd.tensor(args[0]), [0, 1], [0])[0] == ["einsum_path", (0,)]
    with pytest.raises(ArgumentError, match="'greedy' or 'optimal', got 'best'"):
        fnp.einsum_path("ij,jk,kl->il", *args, optimize="best")
    with pytest.raises(ShapeError, match="has 1 letter"):
        fnp.einsum_path("i->", args[0])
