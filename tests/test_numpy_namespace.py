"""The array API standard: names, dtypes, devices, special cases, the protocols between libraries."""

from __future__ import annotations

import inspect
import math
import operator
import re
import sys
from array import array

import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad import nn
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    AxisError,
    DTypeError,
    ImmutableError,
    OutOfBoundsError,
    ShapeError,
)
from functad.nn import functional as F

INF, NAN = math.inf, math.nan

STANDARD = [
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "asarray",
    "asin",
    "asinh",
    "astype",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "bool",
    "broadcast_arrays",
    "broadcast_to",
    "can_cast",
    "ceil",
    "clip",
    "complex128",
    "complex64",
    "concat",
    "conj",
    "copysign",
    "cos",
    "cosh",
    "count_nonzero",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "divide",
    "e",
    "empty",
    "empty_like",
    "equal",
    "exp",
    "expand_dims",
    "expm1",
    "eye",
    "finfo",
    "flip",
    "float32",
    "float64",
    "floor",
    "floor_divide",
    "from_dlpack",
    "full",
    "full_like",
    "greater",
    "greater_equal",
    "hypot",
    "iinfo",
    "imag",
    "inf",
    "int16",
    "int32",
    "int64",
    "int8",
    "isdtype",
    "isfinite",
    "isinf",
    "isnan",
    "less",
    "less_equal",
    "linspace",
    "log",
    "log10",
    "log1p",
    "log2",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "matmul",
    "matrix_transpose",
    "max",
    "maximum",
    "mean",
    "meshgrid",
    "min",
    "minimum",
    "moveaxis",
    "multiply",
    "nan",
    "negative",
    "newaxis",
    "nextafter",
    "nonzero",
    "not_equal",
    "ones",
    "ones_like",
    "permute_dims",
    "pi",
    "positive",
    "pow",
    "prod",
    "real",
    "reciprocal",
    "remainder",
    "repeat",
    "reshape",
    "result_type",
    "roll",
    "round",
    "searchsorted",
    "sign",
    "signbit",
    "sin",
    "sinh",
    "sort",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "take",
    "take_along_axis",
    "tan",
    "tanh",
    "tensordot",
    "tile",
    "tril",
    "triu",
    "trunc",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
    "unstack",
    "var",
    "vecdot",
    "where",
    "zeros",
    "zeros_like",
]


def test_every_name_of_the_standard_is_there():
    assert fnp.__array_api_version__ == "2024.12"
    assert [name for name in STANDARD if not hasattr(fnp, name)] == []
    for (
        name
    ) in "det eigh eigvalsh inv matrix_norm matrix_rank pinv qr slogdet solve svd svdvals trace vector_norm".split():  # noqa: SIM905
        assert hasattr(fnp.linalg, name)


def test_a_tensor_names_its_namespace():
    x = fd.ones(1)
    assert x.__array_namespace__() is x.__array_namespace__(api_version="2024.12") is fnp
    with pytest.raises(ArgumentError, match=r"2024\.12"):
        x.__array_namespace__(api_version="2050.12")


def test_namespace_info():
    info = fnp.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"]
    assert info.default_device() in info.devices()
    assert info.default_dtypes() == {
        "real floating": np.float32, "complex floating": np.complex64, "integral": np.int32, "indexing": np.int32,
    }  # fmt: skip
    assert "float64" not in info.dtypes(device=fd.Device.cpu())
    assert info.dtypes(device=fd.Device.numpy(), kind="real floating") == {"float32": np.float32, "float64": np.float64}
    assert list(info.dtypes(device=fd.Device.numpy(), kind=("bool", "complex floating"))) == [
        "bool",
        "complex64",
        "complex128",
    ]
    with fd.enable_x64():
        assert "float64" in info.dtypes(device=fd.Device.cpu())
        assert info.default_dtypes()["indexing"] == np.int64


# --- dtypes


def test_limits_of_dtypes():
    assert fnp.finfo(fnp.float32) == fnp.finfo(fd.ones(1)) == fnp.finfo("complex64")
    assert fnp.finfo("float32").eps == 2.0**-23
    assert isinstance(fnp.finfo("float64").max, float)
    assert fnp.finfo(fnp.bfloat16).bits == 16
    assert (fnp.iinfo("uint8").max, fnp.iinfo(fnp.int64).min) == (255, -(2**63))
    for call in (lambda: fnp.finfo("int8"), lambda: fnp.iinfo("float32")):
        with pytest.raises(DTypeError):
            call()


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ((fnp.int8, fnp.int16), "int16"),
        ((fnp.uint8, fnp.int8), "int16"),
        ((fnp.float32, 1.0), "float32"),
        ((fnp.int8, 1.0), "float32"),
        ((fnp.bfloat16, 2), "bfloat16"),
        ((fnp.float32, 1j), "complex64"),
        ((1, True), "int32"),
        ((np.float32, "float16"), "float32"),
        (([1.0], fnp.int8), "float32"),
    ],
)
def test_result_type(args, expected):
    assert fnp.result_type(*args) == expected


def test_kinds_and_casts():
    assert fnp.isdtype(fnp.bfloat16, "real floating")
    assert fnp.isdtype(fnp.uint8, ("bool", "unsigned integer"))
    assert not fnp.isdtype(fnp.bool, "numeric")
    assert fnp.issubdtype(fnp.bfloat16, np.floating)
    assert fnp.can_cast(fnp.float32, fnp.float64)
    assert not fnp.can_cast(fnp.float32, fnp.int8)
    assert fnp.promote_types("int32", "float16") == np.float16
    with pytest.raises(ArgumentError, match="real floating"):
        fnp.isdtype(fnp.int8, "float")


def test_sums_of_small_integers_are_kept_in_the_default_integers(device):
    small = fd.tensor([100, 100], dtype="int8", device=device)
    assert fnp.sum(small).dtype == fnp.prod(small).dtype == fnp.cumulative_sum(small).dtype == np.int32
    assert fnp.sum(small.astype("uint8")).dtype == np.uint32
    assert fnp.sum(small, dtype=fnp.int16).dtype == np.int16
    assert fnp.sum(fd.ones(2, dtype="bfloat16")).dtype == fnp.bfloat16


def test_python_numbers_as_either_argument(device):
    x = fd.tensor([2, 3], dtype="int16", device=device)
    assert fnp.add(1, x).dtype == fnp.add(x, 1).dtype == np.int16
    assert fnp.subtract(10, x).tolist() == [8, 7]
    assert fnp.pow(2, x).tolist() == [4, 8]
    assert fnp.atan2(1.0, fd.ones(1, device=device)).dtype == np.float32


# --- special cases


@pytest.mark.parametrize(
    ("name", "args", "expected"),
    [
        ("atan2", (0.0, -0.0), math.pi),
        ("atan2", (-0.0, -0.0), -math.pi),
        ("atan2", (INF, -INF), 3 * math.pi / 4),
        ("atan2", (-1.0, -INF), -math.pi),
        ("pow", (NAN, 0.0), 1.0),
        ("pow", (1.0, NAN), 1.0),
        ("pow", (-0.0, -3.0), -INF),
        ("pow", (-INF, 3.0), -INF),
        ("pow", (-1.0, INF), 1.0),
        ("pow", (0.5, -INF), INF),
        ("floor_divide", (1.0, -INF), -1.0),
        ("floor_divide", (1.0, 0.0), INF),
        ("floor_divide", (0.0, 0.0), NAN),
        ("floor_divide", (0.0, -2.0), -0.0),
        ("floor_divide", (-1.0, -2.0), 0.0),
        ("remainder", (-1.0, INF), INF),
        ("remainder", (5.0, -3.0), -1.0),
        ("remainder", (INF, 1.0), NAN),
        ("remainder", (-0.0, 1.0), 0.0),
        ("hypot", (INF, NAN), INF),
        ("maximum", (NAN, 1.0), NAN),
        ("copysign", (1.0, -0.0), -1.0),
        ("logaddexp", (-INF, -INF), -INF),
        ("sign", (NAN,), NAN),
        ("expm1", (-INF,), -1.0),
        ("log1p", (-1.0,), -INF),
        ("reciprocal", (-0.0,), -INF),
        ("trunc", (-0.5,), -0.0),
        ("round", (2.5,), 2.0),
        ("signbit", (-0.0,), True),
        ("nextafter", (0.0, 1.0), 2.0**-149),
    ],
)
def test_special_cases(name, args, expected, device):
    out = getattr(fnp, name)(*[fd.tensor(x, device=device) for x in args]).item()
    assert math.isclose(out, expected, rel_tol=1e-6) or out == expected or (out != out and expected != expected)
    if expected == 0:
        assert math.copysign(1, out) == math.copysign(1, expected)


def test_shapes_of_zero_axes_and_zero_lengths(device):
    x = fd.tensor(2.0, device=device)
    assert fnp.sum(x).shape == fnp.max(x).shape == fnp.var(x).shape == ()
    empty = fd.zeros((2, 0, 3), device=device)
    assert fnp.sum(empty, axis=1).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert fnp.prod(empty, axis=1).tolist() == [[1, 1, 1], [1, 1, 1]]
    assert bool(fnp.all(empty))
    assert not bool(fnp.any(empty))
    assert fnp.cumulative_sum(empty, axis=1, include_initial=True).shape == (2, 1, 3)
    assert fnp.unique_values(empty).shape == fnp.unique_all(empty).counts.shape == (0,)
    assert fnp.diff(fd.zeros(1, device=device)).shape == (0,)
    assert fnp.sort(empty, axis=1).shape == (2, 0, 3)
    with pytest.raises(ShapeError):
        fnp.max(empty, axis=1)
    with pytest.raises(ShapeError, match="0-d"):
        fnp.nonzero(x)


def test_operators_rebind():
    x = y = fd.tensor([1, 2])
    for op in (operator.iadd, operator.imul, operator.ipow, operator.ior, operator.ilshift):
        y = op(y, 1)
    assert x.tolist() == [1, 2]
    assert y.tolist() == [6, 6]
    x @= fd.tensor([1, 1])
    assert x.item() == 3
    assert range(5)[fd.tensor(2)] == 2
    assert complex(fd.tensor(1 + 2j)) == 1 + 2j
    for convert in (int, float):
        with pytest.raises(TypeError):
            convert(fd.tensor(1 + 2j))


# --- creation


def test_asarray_copies():
    x = fd.ones(2)
    assert fnp.asarray(x, copy=False) is x
    assert fnp.asarray(x, copy=True).tolist() == [1, 1]
    for data in (np.ones(2), [1.0], 1.0):
        with pytest.raises(ArgumentError, match="copy=False"):
            fnp.asarray(data, copy=False)
    with pytest.raises(ArgumentError, match="copy=False"):
        fnp.asarray(x, dtype=fnp.float16, copy=False)
    array = np.ones(2, np.float32)
    taken = fnp.asarray(array)
    array[:] = 5
    assert taken.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: array("d", [1.5, 2.5]), np.array([1.5, 2.5])),
        (lambda: array("h", [1, -2]), np.array([1, -2], np.int16)),
        (lambda: bytearray(b"ab"), np.array([97, 98], np.uint8)),
        (lambda: b"ab", np.array([97, 98], np.uint8)),
        (lambda: np.arange(6, dtype=np.float32).reshape(2, 3).T.data, np.array([[0, 3], [1, 4], [2, 5]], np.float32)),
    ],
)
def test_what_shows_its_memory_becomes_a_tensor_of_its_own(make, expected, device):
    source = make()
    x = fnp.asarray(source, device=device)
    assert (x.dtype, x.tolist()) == (fnp.asarray(expected).dtype, expected.tolist())
    if not isinstance(source, bytes):
        assert fnp.sum(source).item() == expected.sum()
        memoryview(source)[(0,) * expected.ndim] = 9
        assert x.tolist() == expected.tolist()


def test_text_is_no_data():
    for source in ("ab", memoryview(b"ab").cast("c"), array("w" if sys.version_info >= (3, 13) else "u", "ab")):
        with pytest.raises(ArgumentTypeError, match="expected a tensor"):
            fnp.asarray(source)
    with pytest.raises(ArgumentTypeError, match="expected a tensor"):
        fnp.ones(2) + b"ab"


@pytest.mark.parametrize("name", ["arange", "asarray", "empty", "eye", "linspace", "ones", "zeros"])
def test_creation_takes_a_device(name):
    args = {"asarray": ([1.0],), "linspace": (0, 1, 3)}.get(name, (2,))
    for device in (fd.Device.cpu(), fd.Device.numpy()):
        assert getattr(fnp, name)(*args, device=device).device == device
        assert fnp.zeros_like(getattr(fnp, name)(*args), device=device).device == device
    with pytest.raises(ArgumentTypeError, match="Device"):
        getattr(fnp, name)(*args, device="cpu")


def test_creation_values():
    assert fnp.eye(2, 3, k=1).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert fnp.arange(5, 1, -2).tolist() == [5, 3]
    assert fnp.linspace(0, 1, 5, endpoint=False).tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8])
    assert fnp.full((), True).dtype == np.bool_
    assert fnp.full_like(fd.arange(2), 7).tolist() == [7, 7]
    assert [x.shape for x in fnp.meshgrid(fd.arange(2), fd.arange(3))] == [(3, 2), (3, 2)]
    assert fnp.meshgrid() == []
    assert fnp.mgrid[0:2, 0:2].shape == (2, 2, 2)
    assert [x.shape for x in fnp.ogrid[0:2, 0:3]] == [(2, 1), (1, 3)]
    assert fnp.geomspace(1, 100, 3).tolist() == pytest.approx([1, 10, 100])
    assert fnp.linspace(1, 3, 3, retstep=True)[1].item() == 1
    assert fnp.frombuffer(np.arange(2, dtype=np.int32).tobytes(), "int32").tolist() == [0, 1]


def test_linspace_is_differentiable_at_its_ends():
    weights = fd.tensor([1.0, 10.0, 100.0])
    grads = fd.grad(lambda a, b: (fnp.linspace(a, b, 3) * weights).sum(), argnums=(0, 1))(1.0, 2.0)
    assert [g.item() for g in grads] == [6.0, 105.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: fnp.expand_dims(x, axis=3),
        lambda x: fnp.expand_dims(x, axis=-4),
        lambda x: fnp.squeeze(x, 2),
        lambda x: fnp.stack([x, x], axis=3),
        lambda x: fnp.unstack(x, axis=2),
        lambda x: fnp.flip(x, axis=(0, 2)),
        lambda x: fnp.moveaxis(x, 2, 0),
        lambda x: fnp.permute_dims(x, (0, 2)),
        lambda x: fnp.repeat(x, 2, axis=2),
        lambda x: fnp.any(x, axis=-3),
        lambda x: fnp.sum(x, axis=(0, 5)),
        lambda x: fnp.cumulative_sum(x, axis=2),
        lambda x: fnp.sort(x, axis=2),
        lambda x: fnp.take(x, fnp.asarray([0]), axis=2),
        lambda x: fnp.argmax(fnp.sum(x), axis=0),
    ],
)
def test_an_axis_that_is_not_there_is_an_index_error_and_a_value_error(call):
    with pytest.raises(AxisError, match="axis") as caught:
        call(fnp.ones((2, 3)))
    assert isinstance(caught.value, ShapeError) and isinstance(caught.value, OutOfBoundsError)
    assert isinstance(caught.value, IndexError) and isinstance(caught.value, ValueError)


# --- between libraries


def test_dlpack(device):
    x = fd.tensor([1.0, 2.0], device=device)
    assert x.__dlpack_device__()[1] == 0
    assert np.from_dlpack(x).tolist() == jnp.from_dlpack(x).tolist() == [1, 2]
    source = np.arange(3, dtype=np.int32)
    taken = fnp.from_dlpack(source, device=device)
    source[:] = 9
    assert (taken.tolist(), taken.dtype, taken.device) == ([0, 1, 2], np.int32, device)
    assert fnp.from_dlpack(jnp.ones(2, jnp.bfloat16)).dtype == fnp.bfloat16
    assert fnp.from_dlpack(x) is x
    with pytest.raises(ArgumentError, match="copy"):
        fnp.from_dlpack(source, copy=False)
    with pytest.raises(ArgumentTypeError, match="__dlpack__"):
        fnp.from_dlpack([1.0])
    with pytest.raises(ArgumentTypeError, match="cut its gradient"):
        np.from_dlpack(x.autodiff().require_grad() * 2)


def test_another_library_cannot_write_into_a_tensor():
    x = fd.tensor([1.0, 2.0], device=fd.Device.numpy())
    shared = np.from_dlpack(x)
    if shared.flags.writeable:
        shared[0] = 5
    assert x.tolist() == [1, 2]


@pytest.mark.parametrize("version", [None, (0, 0), (0, 8), (1, 0), (2, 0)])
@pytest.mark.parametrize("copy", [None, True, False])
def test_capsules_for_every_version_of_dlpack(version, copy, device):
    """A consumer tells the newest version that it reads; one before 1.0 gets a capsule that has none."""
    x = fd.tensor([1.0, 2.0], device=device)
    capsule = x.__dlpack__(max_version=version, dl_device=(1, 0), copy=copy)
    names = ["dltensor"] if version is None or version < (1, 0) else ["dltensor", "dltensor_versioned"]
    assert any(f'"{name}"' in repr(capsule) for name in names)


def test_to_device_takes_a_stream():
    assert fd.ones(1).to_device(fd.Device.numpy(), stream=None).device == fd.Device.numpy()


# --- NumPy's arguments


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda x: fnp.clip(a_max=2, a_min=1.5, a=x), [1.5, 2, 2]),
        (lambda x: fnp.clip(x, None, 2), [1, 2, 2]),
        (lambda x: fnp.sum(x, 0, np.float16), 6),
        (lambda x: fnp.std(x, ddof=1), 1),
        (lambda x: fnp.std(x, correction=1), 1),
        (lambda x: fnp.reshape(x, newshape=(3, 1)), [[1], [2], [3]]),
        (lambda x: fnp.take(indices=[2, 0], a=x), [3, 1]),
        (lambda x: fnp.take(x, [7], mode="clip"), [3]),
        (lambda x: fnp.concatenate(axis=0, arrays=[x, [4]]), [1, 2, 3, 4]),
        (lambda x: fnp.sort(x, -1, "quicksort"), [1, 2, 3]),
        (lambda x: fnp.sort(x, descending=True), [3, 2, 1]),
        (lambda x: fnp.nan_to_num(x, True, 5.0), [1, 2, 3]),
        (lambda x: fnp.moveaxis(destination=0, source=0, a=x), [1, 2, 3]),
        (lambda x: fnp.repeat(x, 2, axis=0)[:2], [1, 1]),
        (lambda x: fnp.mean(x, where=x < 3), 1.5),
        (lambda x: fnp.max(x, initial=9), 9),
        (lambda x: fnp.trace(fnp.asarray([[x[0], 0], [0, x[1]]]), dtype="float16"), 3),
        (lambda x: fnp.cumsum(x, dtype=int), [1, 3, 6]),
        (lambda x: fnp.ravel(x, order="F"), [1, 2, 3]),
        (lambda x: fnp.round(x, decimals=-1), [0, 0, 0]),
    ],
)
def test_numpy_names_and_order(call, expected):
    assert call(fd.tensor([1.0, 2.0, 3.0])).tolist() == expected


def test_positional_arguments_follow_numpy():
    """`fnp.sum(x, 0, True)` must not take True for keepdims where NumPy takes it for a dtype."""
    ours = {
        n: list(inspect.signature(getattr(fnp, n)).parameters)
        for n in ("sum", "prod", "mean", "std", "argmax", "median")
    }
    for name, parameters in ours.items():
        theirs = list(inspect.signature(getattr(np, name)).parameters)
        assert parameters[: len(theirs)] == theirs, name


def test_lists_of_tensors_are_joined_where_that_is_asked_for():
    a, b = fd.tensor(1.0), fd.tensor(2.0)
    assert fnp.asarray([[a, 2], [b, 3.5]]).tolist() == [[1, 2], [2, 3.5]]
    assert fd.grad(lambda x: fnp.prod(fnp.array([x, 2 * x, 3.0])))(2.0).item() == 24
    assert fnp.concatenate([[a, b], [b, 4.0]]).tolist() == [1, 2, 2, 4]
    with pytest.raises(ShapeError):
        fnp.asarray([a, fd.ones(2)])


NUMBERS = {  # a function of two numbers written with a list of them, and its derivative at 3
    "mean": (lambda x: fnp.mean([x, x + 2]), 1.0),
    "sum": (lambda x: fnp.sum([x, x * x, 2.0]), 7.0),
    "var": (lambda x: fnp.var([x, 3 * x]), 6.0),
    "norm": (lambda x: fnp.linalg.norm([3 * x, 4 * x]), 5.0),
    "append": (lambda x: fnp.append([1.0, x], [x]).sum(), 2.0),
    "nested": (lambda x: fnp.max([[x, 1.0], [2 * x, 5.0]], axis=1).sum(), 3.0),
    "dot": (lambda x: fnp.dot([x, 1.0], [x, 2.0]), 6.0),
    "beside a tensor": (lambda x: (fd.ones(2) * [x, 2.0] + [0, x]).sum(), 2.0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_lists_of_numbers_may_hold_0d_tensors(name, device):
    """`np.mean([f(x) for x in xs])` is how programs for NumPy are written, and was refused."""
    f, slope = NUMBERS[name]
    x = fd.tensor(3.0, device=device)
    with fd.set_default_device(device):
        assert fd.grad(f)(x).item() == pytest.approx(slope)
        assert fd.jit(fd.grad(f))(x).item() == pytest.approx(slope)
        assert fd.vmap(fd.grad(f))(fd.tensor([3.0, 3.0])).tolist() == pytest.approx([slope] * 2)


def test_a_tuple_of_0d_tensors_is_no_operand():
    """It is what a function returns beside its loss."""
    with pytest.raises(
        fd.errors.ArgumentTypeError, match=r"mean: an argument is a tuple of 2 tensors, of shape \(\), \(\)"
    ):
        fnp.mean((fd.tensor(1.0), fd.tensor(2.0)))


OPERANDS = {
    "add": lambda a, two: a + two,
    "add, on the left": lambda a, two: two + a,
    "equal": lambda a, two: a == two,
    "matmul": lambda a, two: a @ two,
    "relu": lambda a, two: F.relu(two),
    "Linear": lambda a, two: nn.Linear(3, 2)(two),
    "where": lambda a, two: fd.where(a > 0, two, 0.0),
    "sum": lambda a, two: fnp.sum(two),
    "x.at[...].set": lambda a, two: fd.zeros((2, 3)).at[:].set(two),
    "mse_loss": lambda a, two: F.mse_loss(two, a),
    "sin": lambda a, two: fd.ops.sin(two),
    "conv2d": lambda a, two: nn.Conv2d(1, 1, 3)(two),
    "einsum": lambda a, two: fnp.einsum("ij,j->i", two, a),
}


@pytest.mark.parametrize("two", [tuple, list])
@pytest.mark.parametrize("where", OPERANDS)
def test_lists_of_tensors_are_no_operands(where, two):
    """They were stacked, so that the result of a GRU with its state went on as nonsense where shapes agreed."""
    a = fd.ones(3)
    name = where.partition(",")[0]
    text = (
        re.escape(f"{name}: an argument is a {two.__name__} of 2 tensors, of shape (3,), (3,), where one")
        + ".*fd.stack"
    )
    with pytest.raises(fd.errors.ArgumentTypeError, match=text):
        OPERANDS[where](a, two([a, a]))
    assert (a + two([1, 2, 3])).tolist() == [2, 3, 4]


def test_what_layers_return_has_to_be_unpacked():
    x = fd.ones((5, 2, 4))
    with pytest.raises(
        fd.errors.ArgumentTypeError, match=r"Linear: .* tuple of 2 tensors, of shape \(5, 2, 8\), \(1, 2, 8\)"
    ):
        nn.Sequential(nn.GRU(4, 8), nn.Linear(8, 2))(x)
    with pytest.raises(fd.errors.ArgumentTypeError, match=r"relu: .* tuple of 2 items, tensors among them"):
        nn.Sequential(nn.LSTM(4, 8), F.relu)(x)
    with pytest.raises(fd.errors.ArgumentTypeError, match=r"add: .* tuple of 2 tensors.* out, weights = attention"):
        nn.MultiheadAttention(4, 2)(x, x, x) + x


@pytest.mark.parametrize(
    "call",
    [
        lambda x: fnp.sum(x, out=np.zeros(())),
        lambda x: fnp.dot(x, x, out=np.zeros(())),
        lambda x: fnp.concatenate([x, x], out=np.zeros(4)),
        lambda x: np.fill_diagonal(x, 0),
        lambda x: np.put_along_axis(x, np.zeros(1, int), 1, 0),
    ],
)
def test_what_would_write_is_refused(call):
    with pytest.raises(ImmutableError, match="immutable"):
        call(fd.ones(2))


def test_unknown_arguments_of_ops_are_refused():
    """They were ignored: `add(x, y, where=mask)` gave the whole sum."""
    with pytest.raises(ArgumentTypeError, match="where"):
        fnp.add(fd.ones(2), 1.0, where=[True, False])


# --- NumPy's functions on tensors


@pytest.fixture
def leaf():
    return fd.tensor([1.0, 2.0, 4.0]).autodiff().require_grad()


@pytest.mark.parametrize(
    ("call", "gradient"),
    [
        (np.median, [0, 1, 0]),
        (lambda x: np.percentile(x, 75), [0, 0.5, 0.5]),
        (lambda x: np.interp(1.5, x, x**2), [-0.5, 0.5, 0]),  # points and values both move
        (lambda x: np.nansum(x * x), [2, 4, 8]),
        (np.trapezoid, [0.5, 1, 0.5]),
        (np.add.reduce, [1, 1, 1]),
        (lambda x: np.multiply.accumulate(x)[-1], [8, 4, 2]),
        (lambda x: np.multiply.outer(x, x)[0, 1], [2, 1, 0]),
        (lambda x: np.append(x, 1.0)[0], [1, 0, 0]),
        (lambda x: np.sum(x, where=[True, False, True]), [1, 0, 1]),
        (lambda x: np.convolve(x, [1.0, 10.0])[1], [10, 1, 0]),
        (lambda x: np.linalg.norm(x[1:2]), [0, 1, 0]),
        (lambda x: np.polyval(x, 3.0), [9, 3, 1]),
        (lambda x: np.where(x > 1, x, 0.0).sum(), [0, 1, 1]),
        (lambda x: np.divmod(x, 3.0)[1].sum(), [1, 1, 1]),
        (np.ptp, [-1, 0, 1]),
    ],
)
def test_numpy_functions_stay_differentiable(leaf, call, gradient):
    out = call(leaf)
    assert leaf.grad(out.backward()).tolist() == pytest.approx(gradient)


def test_numpy_functions_that_look_at_values(leaf):
    assert np.allclose(leaf, leaf)
    assert np.shape(leaf) == (3,)
    assert np.ndim(leaf) == 1
    assert np.unique(leaf).is_tracked
    assert np.zeros(2, like=leaf).tolist() == [0, 0]
    assert np.array_repr(leaf.without_autodiff()) == "array([1., 2., 4.], dtype=float32)"
    out = np.zeros(3)
    assert np.add(leaf.without_autodiff(), 1, out=out) is out
    assert out.tolist() == [2, 3, 5]
