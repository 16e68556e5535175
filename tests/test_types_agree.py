"""Results have one dtype and one value on every device, also of bools, small integers and Python numbers."""

from __future__ import annotations

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad import errors

BOOLS, BYTES = [True, False, True], [200, 100, 3]


@pytest.mark.parametrize("shift", [fnp.left_shift, fnp.right_shift])
def test_bools_are_shifted_as_default_integers_on_every_device(device, shift):
    x = fd.tensor(BOOLS, device=device)
    out = shift(x, x)
    assert out.dtype == "int32"
    assert out.tolist() == shift(fd.tensor([1, 0, 1]), fd.tensor([1, 0, 1])).tolist()


@pytest.mark.parametrize(("dtype", "number"), [("int8", 1), ("bfloat16", 1.0), ("float16", 2)])
def test_a_number_that_is_clipped_is_weak(device, dtype, number):
    low = fd.tensor([0, 1, 2], dtype=dtype, device=device)
    assert fnp.clip(number, low).dtype == fd.ops.clip(number, low).dtype == dtype


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint32"])
def test_distances_of_coordinates_do_not_wrap_round(device, dtype):
    at = np.array([100, 3, -100 if dtype == "int8" else 1]).astype(dtype)
    got = fnp.gradient(fd.tensor([1.0, 2.0, 4.0], device=device), fd.tensor(at, device=device))
    np.testing.assert_allclose(got.numpy(), np.gradient([1.0, 2.0, 4.0], at.astype(float)), rtol=1e-5)

    area = fnp.trapezoid(fd.tensor([1.0, 2.0, 4.0], device=device), fd.tensor(at, device=device))
    np.testing.assert_allclose(area.numpy(), np.trapezoid([1.0, 2.0, 4.0], at.astype(float)), rtol=1e-5)


def test_coordinates_of_fewer_axes_broadcast_from_the_last():
    y, x = np.arange(12.0).reshape(2, 2, 3), np.array([[0.0, 1.0, 3.0], [0.0, 2.0, 3.0]])
    np.testing.assert_allclose(fnp.trapezoid(y, x).numpy(), np.trapezoid(y, x))


WRONG = [
    (lambda: fnp.polyadd(fd.ones((2, 3)), 1.0), errors.ShapeError, "polyadd: a polynomial is a vector"),
    (lambda: fnp.polyder(fd.ones((2, 3))), errors.ShapeError, "polyder: a polynomial is a vector"),
    (lambda: fnp.polymul(fd.ones((2, 3)), 1.0), errors.ShapeError, "polymul: a polynomial is a vector"),
    (lambda: fnp.matvec(fd.ones(3), fd.ones(3)), errors.ShapeError, "matvec: takes matrices and vectors"),
    (lambda: fnp.vecmat(fd.ones(3), fd.ones(3)), errors.ShapeError, "vecmat: takes vectors and matrices"),
    (lambda: fnp.ix_([0.7]), errors.DTypeError, "argument 0 must hold integers or bools"),
    (lambda: fnp.ix_([0], [[1]]), errors.ShapeError, "argument 1 must be a vector"),
    (lambda: fnp.ones(2, fd.ones(3)), errors.DTypeError, "write dtype=x.dtype"),
    (lambda: fd.ones(2).astype(np.ones(2)), errors.DTypeError, "write dtype=x.dtype"),
    (lambda: fnp.isposinf(1j), errors.DTypeError, "isposinf: takes real"),
    (lambda: fnp.heaviside(1j, 0.0), errors.DTypeError, "heaviside: takes real"),
    (lambda: fnp.choose([0], []), errors.ShapeError, "choose: there are no choices"),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_what_has_no_meaning_is_refused(call, kind, text):
    with pytest.raises(kind) as raised:
        call()
    assert text in str(raised.value)


@pytest.mark.parametrize("name", ["gcd", "lcm"])
def test_a_dtype_that_an_op_cannot_take_is_a_dtype_error_on_every_device(device, name):
    x = fd.tensor(BOOLS, device=device)
    with pytest.raises(errors.DTypeError, match=f"{name}: does not take bools"):
        getattr(fnp, name)(x, x)


def test_the_condition_numbers_of_no_matrices_are_none(device):
    assert fnp.linalg.cond(fd.zeros((0, 3, 3), device=device)).shape == (0,)


def test_functions_of_integers_are_floats_and_of_no_factors_one(device):
    n = fd.tensor([1, 2, 3], device=device)
    out = fd.special.hyp1f1(n, n, n)
    assert out.dtype == "float32"
    np.testing.assert_allclose(out.numpy(), np.exp([1.0, 2.0, 3.0]), rtol=1e-5)
    assert fd.special.poch(fd.tensor([0.0, -2.0, 2.0], device=device), 0.0).tolist() == [1.0, 1.0, 1.0]


def test_the_dilogarithm_refuses_complex_numbers_on_every_device(device):
    with pytest.raises(errors.DTypeError, match="spence: takes real"):
        fd.special.spence(fd.tensor([1j], device=device))
