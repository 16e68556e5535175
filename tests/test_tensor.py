"""Tensors: making them, types, devices, NumPy's and JAX's protocols, copies, and what mistakes are told."""

import copy
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    ImmutableError,
    NotALeafError,
    OutOfBoundsError,
    ShapeError,
    UnknownAttributeError,
)
from functad.keywords import explained


@pytest.fixture
def leaf(device):
    return fd.tensor([1.0, 2.0], device=device.autodiff()).require_grad()


# --- making them


def test_data_is_copied(device):
    data = np.ones(3, np.float32)
    x = fd.tensor(data, device=device)
    data[0] = 7
    assert x.tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        x.numpy()[0] = 7


@pytest.mark.parametrize(
    "data", [np.arange(6.0).reshape(2, 3)[::-1, ::2], np.asfortranarray(np.eye(3)), np.zeros((0, 2))]
)
def test_any_layout_is_taken(device, data):
    np.testing.assert_array_equal(fd.tensor(data, device=device).numpy(), data)


def test_default_types(device):
    assert fd.tensor([1.0], device=device).dtype == np.float32
    assert fd.tensor(np.ones(1), device=device).dtype == np.float32
    assert fd.tensor([1], device=device).dtype == np.int32
    assert fd.tensor([True], device=device).dtype == bool
    assert fd.tensor(1j, device=device).dtype == np.complex64
    with fd.enable_x64():
        assert fd.tensor([1.0], device=device).dtype == np.float64
        assert fd.tensor([1], device=device).dtype == np.int64


def test_float64_is_never_silently_float32():
    for make in (
        lambda: fd.tensor([1.0], dtype="float64"),
        lambda: fd.ones(2).astype(np.float64),
        lambda: fd.zeros(2, dtype=np.float64),
        lambda: fd.tensor([1j], dtype="complex128"),
        lambda: fd.tensor([1], dtype="int64"),
    ):
        with pytest.raises(DTypeError, match=r"enable_x64"):
            make()
    with fd.set_default_device(fd.Device.numpy()):
        assert fd.ones(2, dtype="float64").dtype == np.float64
    with fd.enable_x64():
        outlives = fd.tensor([1 / 3])
    with pytest.raises(DTypeError, match=r"enable_x64"):
        outlives + 1


@pytest.mark.parametrize("make", [
    lambda: fd.tensor(2**40), lambda: fd.tensor(np.array([2**40])), lambda: fd.tensor([300], dtype="uint8"),
    lambda: fd.tensor([-1], dtype="uint8"), lambda: fd.tensor([1], dtype="uint8") + 300,
])  # fmt: skip
def test_integers_that_do_not_fit_raise(make):
    with pytest.raises(DTypeError, match="fit"):
        make()


def test_python_numbers_are_weak(device):
    for dtype in ("bfloat16", "float16", "float32"):
        x = fd.ones(2, dtype=dtype, device=device)
        assert (x * 2.0).dtype == (2 * x).dtype == (x + True).dtype == x.dtype
    n = fd.tensor([1, 2], device=device)
    assert (n * 2.0).dtype == np.float32
    assert (n / n).dtype == np.float32
    assert (fd.ones(2, device=device) + n).dtype == np.float32
    assert (1 / fd.tensor([-0.0, 0.0], device=device)).tolist() == [-np.inf, np.inf]
    assert (1 / (fd.zeros(1, device=device) * -0.0)).tolist() == [-np.inf]


def test_creation_functions(device):
    with fd.set_default_device(device):
        assert fd.full((2,), 3).tolist() == [3, 3]
        assert fd.eye(2, 3, k=1).tolist() == [[0, 1, 0], [0, 0, 1]]
        assert fd.arange(2, 8, 3).tolist() == [2, 5]
        assert fd.arange(3).dtype == np.int32
        assert fd.linspace(0, 1, 3).tolist() == [0, 0.5, 1]
        assert fd.zeros_like(fd.ones((2, 1), dtype="float16")).dtype == np.float16
        assert fd.ones(()).device == device
    x = fd.tensor(2.0, device=device)
    assert fd.grad(lambda x: fd.full((3,), x).sum())(x).item() == 3
    assert fd.full((3,), x, device=fd.Device.numpy()).device == fd.Device.numpy()  # it stayed where x was


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: fd.eye(-1), "negative length"),
        (lambda: fd.eye(2.5), "a shape is an int"),
        (lambda: fd.eye(2, k=1.5), "k must be an int, got 1.5"),
        (lambda: fd.linspace(0, 1, -1), "num must not be negative, got -1"),
        (lambda: fd.linspace("a", 1, 2), "takes finite numbers, got 'a'"),
        (lambda: fd.arange("a"), "takes finite numbers, got 0, 'a', 1"),
        (lambda: fd.arange(0, np.inf), "takes finite numbers, got 0, inf, 1"),
        (lambda: fd.arange(fd.tensor(3.0).autodiff().require_grad()), "cut its gradient silently"),
        (lambda: fd.numpy.logspace(0, 1, -1), "num must not be negative, got -1"),
        (lambda: fd.numpy.geomspace(1, 2, 2.5), "num must be an int, got 2.5"),
        (lambda: fd.numpy.tri(2.5), "a shape is an int"),
        (lambda: fd.numpy.indices((-1,)), "negative length"),
    ],
)
def test_creation_functions_refuse_in_words_of_their_own(make, match):
    with pytest.raises(fd.FunctadError, match=match):
        make()


# --- devices


def test_devices():
    assert fd.Device.cpu().name == "xla"
    assert fd.Device.numpy().name == "numpy"
    assert fd.Device.enumerate("cpu") == [fd.Device.cpu()]
    assert fd.Device.enumerate()[-1] == fd.Device.numpy()
    assert fd.Device.cpu() != fd.Device.numpy()
    assert fd.Device.default() == fd.Device.enumerate()[0]
    with fd.set_default_device(fd.Device.numpy().autodiff()):
        assert fd.ones(1).require_grad().is_require_grad
    for wrong in (lambda: fd.Device.gpu(i=99), lambda: fd.Device.enumerate("abacus")):
        with pytest.raises(DeviceError, match=r"there is no"):
            wrong()
    with pytest.raises(ArgumentTypeError, match=r"fd\.Device\.cpu\(\)"):
        fd.ones(1, device="cpu")


def test_moving_between_backends_is_differentiable():
    w = fd.tensor([1.0, 2.0], device=fd.Device.cpu().autodiff()).require_grad()
    moved = w.to_device(fd.Device.numpy()) * fd.tensor([3.0, 4.0], device=fd.Device.numpy())
    assert moved.device == fd.Device.numpy()
    g = w.grad(moved.sum().backward())
    assert g.tolist() == [3.0, 4.0]
    assert g.device == fd.Device.cpu()
    with pytest.raises(DeviceError, match=r"cpu:0 and numpy.*to_device"):
        fd.ones(2) + fd.ones(2, device=fd.Device.numpy())


# --- protocols


def test_numpy_functions_and_ufuncs_stay_on_the_tape(leaf):
    for out in (np.sin(leaf), np.sum(leaf), np.ones(2) * leaf, np.float32(2) * leaf, np.concatenate([leaf, leaf]),
                np.where(leaf > 1, leaf, 0.0), np.linalg.norm(leaf), np.maximum(leaf, 1.5), np.ones((1, 2)) @ leaf):  # fmt: skip
        assert isinstance(out, fd.Tensor)
        assert out.is_tracked
    assert np.shape(leaf) == (2,)
    assert np.allclose(leaf, leaf)
    assert np.zeros_like(leaf).tolist() == [0, 0]


def test_values_of_tracked_tensors_leave_by_name_only(leaf):
    for cut in (
        lambda: np.asarray(leaf),
        lambda: np.busday_count(leaf, leaf),
        lambda: np.add.reduceat(leaf, [0]),
        lambda: jnp.sin(leaf),
    ):
        with pytest.raises(TypeError, match=r"cut (its|the) gradient"):
            cut()
    assert leaf.numpy().tolist() == leaf.jax().tolist() == leaf.tolist() == [1, 2]
    plain = leaf.without_autodiff()
    assert np.asarray(plain).tolist() == jnp.asarray(plain).tolist() == [1, 2]
    assert np.add.reduceat(plain, [0]) == 3


def test_scalars(device):
    x = fd.tensor([[2.5]], device=device)
    assert (x.item(), float(x), int(x), bool(x), f"{x:.2f}") == (2.5, 2.5, 2, True, "2.50")
    assert [10, 20, 30][fd.tensor(1, device=device)] == 20
    pair = fd.ones(2, device=device)
    for wrong, text in ((float, "2 elements"), (bool, r"any\(\) or x\.all\(\)"), (hash, "no hash")):
        with pytest.raises((TypeError, ValueError), match=text):
            wrong(pair)
    assert len(pair) == 2
    assert [v.item() for v in pair] == [1, 1]
    assert (pair == None) is False  # noqa: E711  # what users type
    assert 1.0 in pair


def test_repr_shows_value_dtype_device_and_state(device, leaf):
    name = device.base.hardware
    assert repr(fd.tensor([1.0, 2.0], device=device)) == f"tensor([1., 2.], dtype=float32, device={name})"
    assert repr(leaf) == f"tensor([1., 2.], dtype=float32, device=autodiff<{name}>, require_grad)"
    assert repr(leaf * 2).endswith("tracked)")
    assert "shape=(0, 2)" in repr(fd.zeros((0, 2), device=device))
    assert "..." in repr(fd.zeros(1000, device=device))
    assert "bfloat16" in repr(fd.ones(2, dtype="bfloat16", device=device))
    shown = []
    fd.vmap(lambda row: shown.append(repr(row)) or row)(fd.ones((2, 3), device=device))
    fd.jit(lambda row: shown.append(repr(row)) or row)(fd.ones(3, device=device))
    assert "batch" in shown[0]
    assert "traced" in shown[1]


def test_a_deep_copy_of_a_leaf_is_a_leaf_of_its_own(leaf):
    other = copy.deepcopy(leaf)
    grads = (leaf * 2 + other * 3).sum().backward()
    assert (grads[leaf].tolist(), grads[other].tolist()) == ([2, 2], [3, 3])
    assert copy.copy(leaf) is leaf


def test_pickle(device, leaf):
    plain, half, again = pickle.loads(pickle.dumps((leaf.inner(), fd.ones(2, dtype="bfloat16", device=device), leaf)))
    assert (plain.tolist(), plain.device, plain.is_autodiff) == ([1, 2], device, False)
    assert half.dtype == fnp.bfloat16
    assert again.is_require_grad
    with pytest.raises(NotALeafError, match=r"x\.detach\(\)"):
        pickle.dumps(leaf * 2)


def test_reading_under_jax_tracing_explains_itself():
    with pytest.raises(TypeError, match=r"traced by jax\.jit"):
        jax.jit(lambda a: float(fd.tensor(a).sum()))(jnp.ones(2))


# --- mistakes


@pytest.mark.parametrize(("mistake", "error", "text"), [
    (lambda x: x.reshape(3, 5), ShapeError, r"4 elements.*15"),
    (lambda x: x.sum(axis=3), ShapeError, r"axis 3.*from -2 to 1"),
    (lambda x: x + fd.ones(3), ShapeError, r"\(2, 2\) and \(3,\) do not broadcast"),
    (lambda x: x @ fd.ones((3, 3)), ShapeError, r"\(2, 2\).*\(3, 3\)"),
    (lambda x: x[5], OutOfBoundsError, r"index 5.*axis 0 of length 2"),
    (lambda x: x[fd.tensor([0, 7])], OutOfBoundsError, r"7"),
    (lambda x: x.__setitem__(0, 1), ImmutableError, r"x\.at\[i\]\.set\(v\)"),
    (lambda x: x.view(4), UnknownAttributeError, r"x\.reshape"),
    (lambda x: x.add_(1), UnknownAttributeError, r"immutable"),
    (lambda x: x.masked_fill_(x > 1, 0), UnknownAttributeError, r"x = x\.mask_fill\(mask, value\)"),
    (lambda x: x.flatten(1), ArgumentError, r"x\.reshape\(x\.shape\[0\], -1\)"),
    (lambda x: x.sum(dim=1), ArgumentTypeError, r"axis="),
    (lambda x: x.mean(1, keepdim=True), ArgumentTypeError, r"keepdims="),
    (lambda x: x.var(unbiased=True), ArgumentTypeError, r"ddof=1"),
    (lambda x: x.backward(gradient=x), ArgumentTypeError, r"cotangent="),
    (lambda x: fd.tensor(1.0, requires_grad=True), ArgumentTypeError, r"require_grad\(\)"),
    (lambda x: fd.stack([x, x], dim=1), ArgumentTypeError, r"axis="),
    (lambda x: fd.nn.functional.softmax(x, dim=1), ArgumentTypeError, r"axis="),
    (lambda x: fd.vmap(abs, in_dims=0), ArgumentTypeError, r"in_axes="),
    (lambda x: fd.cat([x, x]), UnknownAttributeError, r"fd\.concatenate"),
    (lambda x: fd.einsum("ij->i", x), UnknownAttributeError, r"fd\.numpy\.einsum"),
    (lambda x: fd.vmpa(abs), UnknownAttributeError, r"'vmap'"),
    (lambda x: fd.numpy.flatten(x + 0), UnknownAttributeError, r"x\.reshape\(-1\)"),
    (lambda x: fd.nn.functional.relu_(x + 0), UnknownAttributeError, r"write relu,"),
    (lambda x: fd.nn.init.zeros_(x.shape), UnknownAttributeError, r"model\.replace"),
    (lambda x: x.item(), ShapeError, r"4 elements"),
    (lambda x: fd.tensor([[1], [2, 3]]), ShapeError, r"ragged"),
    (lambda x: fd.tensor("a"), ArgumentTypeError, r"'a'"),
    (lambda x: fd.tensor([2**70]), DTypeError, r"fits no integer dtype"),
    (lambda x: fd.zeros(-1), ShapeError, r"negative"),
    (lambda x: fd.zeros(2, 3), DTypeError, r"zeros\(\(2, 3\)\)"),
    (lambda x: fd.ones(2, dtype="float99"), DTypeError, r"float99"),
    (fd.grad, ArgumentTypeError, r"loss\.backward\(\)"),
])  # fmt: skip
def test_mistakes_are_told_what_was_wrong_and_what_to_write(mistake, error, text):
    with pytest.raises(error, match=text) as caught:
        mistake(fd.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert isinstance(caught.value, fd.FunctadError)


def test_errors_inside_and_unknown_arguments_stay_as_they_are():
    def broken(dim):
        return broken(dims=dim)

    with pytest.raises(TypeError, match="unexpected keyword argument 'foo'"):
        fd.ones(2).sum(foo=1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'dims'") as caught:
        explained(broken)(1)
    assert not isinstance(caught.value, fd.FunctadError)
    assert not hasattr(fd, "__wrapped__")


# --- regressions


def test_numpy_arguments_are_taken_by_their_names(leaf):
    """By position, np.sort's kind became `descending` and np.sum's dtype became `keepdims`."""
    x = fd.tensor([3.0, 1.0, 2.0])
    assert np.sort(x, -1, "quicksort").tolist() == [1, 2, 3]
    assert np.nan_to_num(fd.tensor([np.nan]), True, 5.0).tolist() == [5]  # NumPy's own order
    assert np.clip(leaf, a_min=0, a_max=1.5).tolist() == [1, 1.5]
    assert np.size(fd.ones((2, 3)), 0) == 2
    assert np.linalg.norm(fd.ones((2, 3)), 1) == 2  # a matrix norm, which functad leaves to NumPy
    assert np.sum(leaf, 0, np.float16).dtype == np.float16


def test_interleaved_no_grad_regions_leave_nothing_behind(leaf):
    """Reset by token, the region of the generator closed last stayed in force."""

    def region():
        with fd.no_grad():
            yield

    first, second = region(), region()
    next(first), next(second)
    first.close()
    assert not (leaf * 2).is_tracked
    second.close()
    assert (leaf * 2).is_tracked
    with pytest.raises(ArgumentTypeError, match="inside it"):
        fd.no_grad()(region)


@pytest.mark.parametrize("make", [
    lambda: fd.arange(0, 2**40, 2**39), lambda: fd.arange(300, dtype="uint8"), lambda: fd.linspace(0, 300, 2, dtype="uint8"),
    lambda: fd.full(2, 1j, dtype="float32"), lambda: fd.tensor(1j, dtype="float32"), lambda: fd.full(2, -1, dtype="uint8"),
    lambda: fd.tensor([np.nan], dtype="int32"),
])  # fmt: skip
def test_creation_loses_nothing_silently(make):
    with pytest.raises(DTypeError, match="fit"):
        make()


def test_indices_are_checked_under_an_eager_vmap_too(device):
    x = fd.tensor([1.0, 2.0, 3.0], device=device)
    with pytest.raises(OutOfBoundsError, match="5"):
        fd.vmap(lambda i: x[i])(fd.tensor([1, 5], device=device))


@pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=str)
def test_data_of_another_byte_order_is_taken_over_and_what_no_tensor_holds_is_refused(device):
    for name in (">f4", ">i2", ">c8", ">u4", ">f2"):
        data = np.array([1, 2], name)
        x = fd.tensor(data, device=device)
        assert (x.dtype, x.tolist()) == (data.dtype.newbyteorder("="), [1, 2])
        assert (fd.ones(2, device=device) + data).tolist() == [2, 3]
        assert fd.tensor([1, 2], dtype=name, device=device).dtype == x.dtype == x.astype(name).dtype
    for wrong in (np.zeros(2, [("a", "f4")]), np.ones(2, np.longdouble), np.zeros(2, "V4")):
        with pytest.raises(fd.errors.DTypeError, match="cannot have dtype"):
            fd.tensor(wrong, device=device)
        with pytest.raises(fd.errors.DTypeError, match="add: a tensor cannot have dtype"):
            fd.ones(2, device=device) + wrong
        with pytest.raises(fd.errors.DTypeError, match="cannot have dtype"):
            fd.tensor([1.0, 2.0], dtype=wrong.dtype, device=device)
