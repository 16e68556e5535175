"""Elementwise ops: values against NumPy's, dtypes, rounding, refusals."""

from __future__ import annotations

import math
import re

import jax
import numpy as np
import pytest

import functad as fd
from functad import ops
from functad.ops.operand import operand

INF, NAN = math.inf, math.nan


@pytest.fixture(autouse=True)
def _x64():
    with fd.enable_x64():
        yield


@pytest.fixture(params=["xla", "numpy"])
def device(request):
    return fd.Device.cpu() if request.param == "xla" else fd.Device.numpy()


def compiled_fast(fn):
    """Compiled fast, since it runs once."""
    return jax.jit(fn, compiler_options={"xla_backend_optimization_level": 0, "xla_disable_hlo_passes": "fusion"})


COMPARED = [
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
    "maximum", "minimum",
]  # fmt: skip
INTEGER = [
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "floor_divide", "remainder", "fmod",
]  # fmt: skip
ROUNDING = ["floor", "ceil", "trunc", "round", "sign"]
ALIKE = {  # functions that read the same over functad and NumPy
    **{
        f"{n} {k}": lambda xp, v, n=n, k=k: getattr(xp, n)(v[k[0]], v[k[1]])
        for n in COMPARED
        for k in ("xy", "ij", "bc")
    },
    **{f"{n} ij": lambda xp, v, n=n: getattr(xp, n)(v["i"], v["j"]) for n in INTEGER},
    **{
        f"{n} xy": lambda xp, v, n=n: getattr(xp, n)(v["x"], v["y"]) for n in ("copysign", "hypot", "fmod", "remainder")
    },
    **{f"{n} {k}": lambda xp, v, n=n, k=k: getattr(xp, n)(v[k]) for n in ROUNDING for k in "xi"},
    **{
        f"{n} {k}": lambda xp, v, n=n, k=k: getattr(xp, n)(v[k]) for n in ("isnan", "isinf", "isfinite") for k in "yibz"
    },
    "~i": lambda xp, v: ~v["i"],
    "~b": lambda xp, v: ~v["b"],
    "not y": lambda xp, v: xp.logical_not(v["y"]),
    "i**3": lambda xp, v: v["i"] ** 3,
    "i**j": lambda xp, v: v["i"] ** v["j"],
    "x > 0": lambda xp, v: v["x"] > 0,
    "0 > x": lambda xp, v: 0 > v["x"],  # noqa: SIM300  # the reflected operator is meant
    "i == 2.5": lambda xp, v: v["i"] == 2.5,
    "tenths": lambda xp, v: xp.round(v["x"], 1),
    "tens": lambda xp, v: xp.round(v["i"] * 5, -1),
    "thousands": lambda xp, v: xp.round(v["i"] * 500, -3),
    "where": lambda xp, v: xp.where(v["i"], v["x"], v["y"]),
    "nan_to_num": lambda xp, v: xp.nan_to_num(v["y"], nan=7.0),
    "nan_to_num of complex": lambda xp, v: xp.nan_to_num(v["z"]),
    "nan_to_num of ints": lambda xp, v: xp.nan_to_num(v["i"]),
    "divmod": lambda xp, v: sum(divmod(v["x"], 0.7)),
    "clip": lambda xp, v: xp.clip(v["x"], v["y"], 0.5),
}


def test_values_are_numpys(device):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), rng.choice([-1.0, 0.0, 1.5, NAN], size=(3,))
    i, j = rng.integers(-9, 9, (4, 3)), rng.integers(1, 5, (3,))
    arrays = {"x": x, "y": y, "i": i, "j": j, "b": i > 0, "c": j > 2, "z": np.array([NAN + 1j, 1 - 1j * INF, 2j])}

    def call(values):
        tensors = {k: fd.tensor(v, device=device) for k, v in values.items()}
        return {name: fn(ops, tensors)._value for name, fn in ALIKE.items()}

    found = jax.device_get(compiled_fast(call)(arrays)) if device.name == "xla" else call(arrays)
    with np.errstate(all="ignore"):
        for name, fn in ALIKE.items():
            expected = fn(np, arrays)
            np.testing.assert_allclose(found[name], expected, rtol=1e-12, err_msg=name)
            assert found[name].dtype == expected.dtype, name


DTYPES = {  # without x64: the result's dtype
    "int / int": (lambda: ops.div(i32(3), i32(2)), "float32"),
    "sin(int)": (lambda: ops.sin(i32(3)), "float32"),
    "exp(bool)": (lambda: ops.exp(flag()), "float32"),
    "exp(float16)": (lambda: ops.exp(fd.tensor(1.0, dtype="float16")), "float16"),
    "uint8 - int8": (lambda: ops.sub(of("uint8"), of("int8")), "int16"),
    "uint32 * int32": (lambda: of("uint32") * i32(1), "int32"),
    "bfloat16 / float": (lambda: of("bfloat16") / 2.0, "bfloat16"),
    "float16 with bfloat16": (lambda: ops.maximum(of("float16"), of("bfloat16")), "float32"),
    "float16 with int64": (lambda: ops.maximum(of("float16"), i32(1)), "float16"),
    "bool + bool": (lambda: flag() + flag(), "bool"),
    "bool + int": (lambda: flag() + 1, "int32"),
    "bool**2": (lambda: flag() ** 2, "int32"),
    "bool**bool": (lambda: flag() ** flag(), "int32"),
    "int**2": (lambda: i32(3) ** 2, "int32"),
    "int**2.0": (lambda: i32(3) ** 2.0, "float32"),
    "int**0.5": (lambda: i32(3) ** 0.5, "float32"),
    "2**int": (lambda: 2 ** i32(3), "int32"),
    "2.0**int": (lambda: 2.0 ** i32(3), "float32"),
    "bfloat16**int": (lambda: of("bfloat16") ** i32(2), "bfloat16"),
    "bfloat16**bool": (lambda: of("bfloat16") ** flag(), "bfloat16"),
    "where of numbers": (lambda: ops.where(flag(), 1.0, 0), "float32"),
    "where with a weak number": (lambda: ops.where(flag(), of("bfloat16"), 0.5), "bfloat16"),
    "clip of ints by floats": (lambda: ops.clip(i32(3), 0, 1.5), "float32"),
    "mask_fill of ints": (lambda: ops.mask_fill(i32(3), flag(), 2), "int32"),
    "relu(int)": (lambda: ops.relu(i32(3)), "int32"),
    "gelu(int)": (lambda: ops.gelu(i32(3)), "float32"),
    "leaky_relu(int)": (lambda: ops.leaky_relu(i32(3)), "float32"),
    "abs(complex)": (lambda: ops.abs(of("complex64")), "float32"),
    "int == 2.5": (lambda: i32(3) == 2.5, "bool"),
    "floor(int)": (lambda: ops.floor(i32(3)), "int32"),
    "bool & int": (lambda: ops.bitwise_and(flag(), i32(3)), "int32"),
}


def of(dtype):
    return fd.tensor(1, dtype=dtype)


def i32(value):
    return fd.tensor(value, dtype="int32")


def flag():
    return fd.tensor(True)


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_follow_jax(name, device):
    with fd.enable_x64(False), fd.set_default_device(device):
        if device.name == "xla":  # nothing need be compiled
            found = jax.eval_shape(lambda: DTYPES[name][0]().jax())
        else:
            found = DTYPES[name][0]()
        assert str(found.dtype) == DTYPES[name][1]


def test_numbers_follow_the_x64_mode_of_the_moment(device):
    """A cached promotion must not outlive the mode it was made in."""
    with fd.set_default_device(device):
        for enabled, expected in [(False, "float32"), (True, "float64"), (False, "float32")]:
            with fd.enable_x64(enabled):
                assert (i32(3) * 2.5).dtype == expected
                assert (i32(3) * np.float64(2.5)).tolist() == 7.5


def test_bool_addition_is_or(device):
    with fd.set_default_device(device):
        assert (flag() + flag()).item() is True


@pytest.mark.parametrize("exponent", [257, -3])
def test_half_types_keep_every_digit_of_an_integer_exponent(device, exponent):
    """bfloat16 cannot hold 257: rounded to 256 it would turn the sign of (-1)**257."""
    x = fd.tensor([-1.0], dtype="bfloat16", device=device)
    assert (x ** fd.tensor([exponent], device=device)).tolist() == [-1.0]
    assert (x**exponent).tolist() == [-1.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_once(dtype, device):
    x = np.linspace(-3, 3, 41)
    half = fd.tensor(x, dtype=dtype, device=device)
    exact = half.numpy().astype(np.float64)
    for name in ["gelu", "silu", "softplus", "log_sigmoid", "sinc", "erf", "sigmoid"]:
        reference = getattr(ops, name)(fd.tensor(exact, dtype="float64", device=fd.Device.numpy())).numpy()
        rounded = reference.astype(half.dtype).astype(float)
        unit = np.abs(reference) * (2.0**-11 if dtype == "float16" else 2.0**-8) + 1e-7
        assert np.all(np.abs(getattr(ops, name)(half).numpy().astype(float) - rounded) <= 2 * unit), name


def test_small_integer_powers_are_multiplied_out():
    def program(fn):
        return str(jax.make_jaxpr(lambda a: fn(operand(a)).jax())(1.0))

    assert program(lambda x: x**2).count(" mul ") == program(lambda x: x * x).count(" mul ") == 1
    assert program(lambda x: x**5).count(" mul ") == 3
    assert not re.search(r"\bpow\b", program(lambda x: x**5.0))


# --- special values: what is compiled gives NumPy's, down to the sign of zero

SPECIAL = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 2.5, -3.0, INF, -INF, NAN]
OF_ONE = [
    "abs", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctanh", "cbrt", "ceil", "cos", "cosh", "exp", "exp2",
    "expm1", "floor", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round",
    "sign", "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc",
]  # fmt: skip
OF_TWO = [
    "add", "arctan2", "copysign", "div", "floor_divide", "fmod", "hypot", "less", "logaddexp", "mul", "nextafter", "pow",
    "remainder", "sub",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_special_values_where_compiled(dtype):
    def run(x, a, b):
        return [getattr(ops, n)(x) for n in OF_ONE] + [getattr(ops, n)(a, b) for n in OF_TWO]

    columns = [np.array(SPECIAL), np.repeat(SPECIAL, len(SPECIAL)), np.tile(SPECIAL, len(SPECIAL))]
    host, xla = ([fd.tensor(c, dtype=dtype, device=d) for c in columns] for d in (fd.Device.numpy(), fd.Device.cpu()))
    for name, expected, out in zip(OF_ONE + OF_TWO, run(*host), fd.jit(run)(*xla), strict=True):
        want, got = expected.numpy(), out.numpy()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=name)
        zero = (want == 0) & (got == 0)
        assert (np.signbit(got) == np.signbit(want))[zero].all(), name


def test_complex_expm1_beside_infinities():
    """What the array API standard lists, where NumPy runs; an imaginary part of 0 stays 0."""
    table = [
        (complex(INF, 0.0), complex(INF, 0.0)),
        (complex(INF, -0.0), complex(INF, -0.0)),
        (complex(-INF, INF), -1 + 0j),
        (complex(-INF, NAN), -1 + 0j),
        (complex(INF, INF), complex(INF, NAN)),
        (complex(NAN, 0.0), complex(NAN, 0.0)),
        (complex(-0.0, 0.0), 0j),
        (complex(0.0, -0.0), complex(0.0, -0.0)),
        (complex(1.0, INF), complex(NAN, NAN)),
        (complex(1e-20, 1e-20), complex(1e-20, 1e-20)),
    ]
    for dtype in ("complex64", "complex128"):
        x = fd.tensor([z for z, _ in table], dtype=dtype, device=fd.Device.numpy())
        out = ops.expm1(x).numpy()
        assert out.dtype == dtype
        for got, (z, want) in zip(out, table, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=str(z))
            assert want != 0 or np.signbit(got.real) == np.signbit(want.real), z
            assert want.imag != 0 or z.real == -INF or np.signbit(got.imag) == np.signbit(want.imag), z
        assert ops.expm1(x[0]).shape == ()


# --- refusals

REFUSALS = {
    "difference of bools": (lambda: flag() - flag(), fd.errors.DTypeError, "bools have no difference"),
    "int to a negative power": (lambda: i32(2) ** -1, fd.errors.ArgumentError, "float32"),
    "bits of floats": (lambda: of("float32") & 1, fd.errors.DTypeError, "float32"),
    "shift of floats": (lambda: of("float32") << 1, fd.errors.DTypeError, "float32"),
    "a mask of ints": (lambda: ops.mask_fill(of("float32"), i32(1), 0), fd.errors.DTypeError, "mask != 0"),
    "a float into ints": (
        lambda: ops.mask_fill(i32(3), flag(), NAN),
        fd.errors.DTypeError,
        "float.* value does not fit a tensor of int32",
    ),
    "a mask too large": (
        lambda: ops.mask_fill(of("float32"), fd.tensor([True, False]), 0),
        fd.errors.ShapeError,
        r"\(2,\).*\(\)",
    ),
    "gelu of another kind": (lambda: ops.gelu(of("float32"), "erf"), fd.errors.ArgumentError, "'erf'"),
    "decimals": (lambda: ops.round(of("float32"), 1.5), fd.errors.ArgumentTypeError, "1.5"),
    "shapes": (lambda: ops.where(fd.ones(3) > 0, fd.ones(2), 0), fd.errors.ShapeError, r"\(3,\).*\(2,\)"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals_say_what_to_write(name, device):
    call, kind, text = REFUSALS[name]
    with fd.set_default_device(device), pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("op", [ops.floor_divide, ops.remainder, ops.fmod])
def test_division_of_bools_is_of_the_default_integer(device, op):
    yes = fd.tensor([True, False], device=device)
    assert op(yes, fd.tensor([True, True], device=device)).dtype == fd.tensor(1).dtype
    assert op(yes, True).dtype == fd.tensor(1).dtype
