"""Arguments that make no sense by their size, ops of the user's that are not well formed, and numbers out of range."""

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad.dispatch import pending as local

HUGE = 10**20


@pytest.mark.parametrize(
    "call",
    [
        lambda x: fnp.array_split(x, HUGE),
        lambda x: fnp.split(x[:0], HUGE),
        lambda x: x.polygamma(HUGE),
        lambda x: fd.special.legendre_polynomial_p(x, HUGE),
    ],
)
def test_a_count_that_would_take_for_ever_is_refused(call, device):
    with pytest.raises(fd.FunctadError, match=r"parts|at most"):
        call(fd.tensor([1.0, 2.0, 3.0], device=device))


def test_differences_and_derivatives_of_nothing_are_nothing(device):
    x = fd.tensor([1.0, 2.0, 4.0], device=device)
    assert fnp.diff(x, HUGE).shape == (0,)
    assert fnp.diff(fd.ones((2, 3), device=device), 3).shape == (2, 0)
    assert fnp.diff(x, 2).tolist() == [1.0]
    assert fnp.polyder(x, HUGE).shape == fnp.polyder(x, 4).shape == np.polyder(x.numpy(), 4).shape


@pytest.mark.parametrize("number", [-1, 2**40, 2**32])
@pytest.mark.parametrize("dtype", ["uint32", "int32"])
def test_numbers_that_no_element_equals_are_compared_with(device, dtype, number):
    if (dtype, number) == ("int32", -1):
        return
    info = np.iinfo(dtype)
    host = np.array([info.min, 2, info.max], dtype)
    x = fd.tensor(host, device=device)
    for f in (np.equal, np.not_equal, np.less, np.greater_equal):
        assert getattr(fnp, f.__name__)(x, number).tolist() == f(host, number).tolist()
        assert getattr(fnp, f.__name__)(number, x).tolist() == f(number, host).tolist()
    assert fnp.isin(x, number).tolist() == [False] * 3
    assert fnp.isin(number, x).item() is False
    assert fnp.array_equal(x, number).item() is False
    assert fnp.searchsorted(x, number).item() == (0 if number < 0 else 3)
    assert fd.jit(lambda x: x == number)(x).tolist() == [False] * 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: fd.op.elementwise(3, lambda xp, x: x, lambda x: x), "name first, a string, got 3"),
        (lambda: fd.op.elementwise("odd", "a", 1.0), "implementation must be a function, got 'a'"),
        (lambda: fd.op.elementwise("odd", lambda xp, x: x, "a"), "partial also a number, got 'a'"),
        (lambda: fd.op.linear("odd", lambda xp, x: x, "a"), "rule must be a function or None"),
    ],
)
def test_an_op_that_is_not_well_formed(make, says):
    with pytest.raises(fd.FunctadError, match=says):
        make()


def test_parameters_are_hashable(device):
    scaled = fd.op.Op("scaled", lambda xp, x, *, k: x * k[0])
    x = fd.tensor([1.0], device=device)
    assert scaled(x, k=(2.0,)).tolist() == [2.0]
    with pytest.raises(fd.errors.ArgumentTypeError, match=r"hashable.*got k=\[2.0\]"):
        scaled(x, k=[2.0])


@pytest.fixture
def unrecorded():
    """Ops run by themselves, as they do where nothing recurs."""
    before, local.at_once = local.at_once, 1000
    yield
    local.at_once = before


def test_ops_of_the_user_s_are_checked_where_nothing_is_recorded(unrecorded):
    x = fd.tensor([0.5, 1.0, 2.0], device=fd.Device.cpu())
    for impl, says in ((lambda xp, x: np.square(x), "xp.square"), (lambda xp, x: x if x.sum() else -x, "xp.where")):
        with pytest.raises(fd.FunctadError, match=says):
            fd.op.Op("wrong", impl)(x)
    wide = fd.op.Op("wide", lambda xp, x: x * xp.arange(3))
    assert [wide(x).dtype for _ in range(3)] == [np.float32] * 3  # NumPy makes float64 of it


def test_flags_that_may_be_none():
    x = fd.ones((1, 1, 4))
    with pytest.raises(fd.errors.ArgumentTypeError, match="align_corners must be True or False"):
        fd.nn.functional.interpolate(x, 2, mode="linear", align_corners="a")
    assert fd.nn.functional.interpolate(x, 2, mode="linear", align_corners=None).shape == (1, 1, 2)


def test_a_device_that_is_none():
    with pytest.raises(fd.FunctadError, match="device"):
        fd.ones_like(fd.ones(2), device={})
