"""Calls with other libraries' names: every public function, and every tensor, says what to write instead."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad.errors import ArgumentTypeError, UnknownAttributeError
from functad.foreign_attributes import FUNCTIONS
from functad.nn import functional as F
from functad.testing import strategies

MODULES = (
    *(fd, fnp, fnp.linalg, fnp.fft, fd.special, F, fd.random, fd.tree, fd.nn.init, fd.op, fd.quant, fd.testing),
    strategies,
)
X = fd.ones((3, 3))
KEY = fd.random.key(0)


def functions(module):
    return [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_function_explains_an_argument_it_does_not_take(module):
    silent = []
    for name in functions(module):
        fn = getattr(module, name)
        if isinstance(fn, type) or name in ("strict_ieee", "fromfunction", "apply_along_axis"):
            continue
        try:
            fn(no_such_argument=1)
        except fd.FunctadError:
            continue
        except TypeError as error:
            silent.append((name, str(error)))
        else:
            silent.append((name, "took it"))
    assert not silent


def test_every_method_explains_an_argument_it_does_not_take():
    silent = []
    for name in functions(fd.Tensor):
        if isinstance(vars(fd.Tensor).get(name), (property, staticmethod)) or name == "grad":
            continue
        try:
            getattr(X, name)(no_such_argument=1)
        except fd.FunctadError:
            continue
        except TypeError as error:
            silent.append((name, str(error)))
    assert not silent


ARGUMENTS = {
    "solve_triangular(upper=)": (
        lambda: fnp.linalg.solve_triangular(X, X, upper=True),
        "write lower=False for upper=True",
    ),
    "svd(some=)": (lambda: fnp.linalg.svd(X, some=True), "write full_matrices=False for some=True"),
    "conv2d(data_format=)": (lambda: F.conv2d(X, X, data_format="NHWC"), "channels come before space"),
    "tensors(dtypes=)": (lambda: strategies.tensors(dtypes=1), "write dtype="),
    "bessel_jn(x, v=)": (lambda: fd.special.bessel_jn(X, v=3), r"write bessel_jn\(n, x\)"),
    "bessel_jn(x, n)": (lambda: fd.special.bessel_jn(X, 2), r"write bessel_jn\(2, x\)"),
    "categorical(probs=)": (lambda: fd.random.categorical(KEY, probs=X), r"categorical\(key, fd.numpy.log\(probs\)\)"),
    "gamma(scale=)": (lambda: fd.random.gamma(KEY, 1.0, scale=2), r"scale \* fd.random.gamma\(key, a, shape\)"),
    "uniform(low=)": (lambda: fd.random.uniform(KEY, low=0.0), "write minval="),
    "attention(key=)": (lambda: F.scaled_dot_product_attention(X, X, X, dropout_p=0.5, key=KEY), "write dropout_key="),
    "dropout(rate=)": (lambda: F.dropout(X, rate=0.5), "write p="),
    "linspace(steps=)": (lambda: fd.linspace(0, 1, steps=4), "write num="),
    "histogram(bin=)": (lambda: fnp.histogram(X, bin=3), "did you mean 'bins'"),
    "clip(a_mn=)": (lambda: fnp.clip(X, a_mn=3), "did you mean 'a_min'"),
    "exp(out=)": (lambda: X.exp(out=X), "use what it returns"),
    "exp(1)": (lambda: X.exp(1), "more arguments by position than it takes; it takes none"),
    "argmax(1, 2, 3)": (lambda: X.argmax(1, 2, 3), r"its arguments are \(axis=None, keepdims=False\)"),
    "where(condition=)": (lambda: fnp.where(condition=X, x=1, y=2), "are given by position, not by name"),
    "sum(x, a=)": (lambda: fnp.sum(X, a=X), "is given by position and by name"),
    "tree.map(is_leaf=)": (lambda: fd.tree.map(abs, [1], is_leaf=None), "jax.tree.map"),
    "x.add(y, alpha=)": (lambda: X.add(X, alpha=2), r"write x \+ alpha \* y"),
    "nadam(lr=)": (lambda: fd.optim.nadam(lr=1e-3), "write learning_rate="),
}


@pytest.mark.parametrize(("call", "text"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_an_argument_of_another_library(call, text):
    with pytest.raises(fd.FunctadError, match=text) as caught:
        call()
    assert isinstance(caught.value, (ArgumentTypeError, ValueError))


# --- attributes


@pytest.mark.parametrize("array", [np.ones(2), jnp.ones(2)], ids=["numpy", "jax"])
def test_every_attribute_of_other_arrays_is_here_or_says_what_to_write(array):
    for name in dir(array):
        if name.startswith("_"):
            continue
        if not hasattr(X, name):
            with pytest.raises(UnknownAttributeError, match="; write "):
                getattr(X, name)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_are_no_methods_are_found(name):
    with pytest.raises(UnknownAttributeError, match=rf"write fd\.\S*{name}\(x"):
        getattr(X, name)


ATTRIBUTES = {
    "cholesky": r"fd.numpy.linalg.cholesky\(x",
    "where": r"fd.where\(mask, x, y\)",
    "addmm": r"beta \* x \+ alpha \* \(a @ b\)",
    "is_cuda": "x.device",
    "register_hook": "w.grad_replace",
    "to_sparse": "no sparse tensors",
    "q_scale": "quantize_dynamic",
    "flat": "x.ravel|x.numpy",
    "atan2_": r"x = fd.numpy.atan2\(x",
    "median_": r"x = x.median\(",
    "smm": "nothing like it",
    "H": "x.mH",
}


@pytest.mark.parametrize(("name", "text"), ATTRIBUTES.items())
def test_attributes_of_torch(name, text):
    with pytest.raises(UnknownAttributeError, match=text):
        getattr(X, name)
    assert name not in dir(X)


METHODS = {
    "median": (lambda x: x.median(0), [2.0, 2.5]),
    "quantile": (lambda x: x.quantile(0.5, axis=1), [2.5, 2.0]),
    "nansum": (lambda x: x.nansum(0), [4.0, 5.0]),
    "nanmean": (lambda x: x.nanmean(1, keepdims=True), [[2.5], [2.0]]),
    "count_nonzero": (lambda x: x.count_nonzero(0), [2, 2]),
    "diff": (lambda x: x.diff(), [[3.0], [-2.0]]),
    "moveaxis": (lambda x: x.moveaxis(0, 1), [[1.0, 3.0], [4.0, 1.0]]),
    "unbind": (lambda x: x.unbind(1)[0], [1.0, 3.0]),
    "unique": (lambda x: x.unique(), [1.0, 3.0, 4.0]),
    "isclose": (lambda x: x.isclose(x.T), [[True, False], [False, True]]),
    "allclose": (lambda x: x.allclose(x + 1e-7), True),
    "nan_to_num": (lambda x: (x / 0.0 * 0.0).nan_to_num(7.0), [[7.0, 7.0], [7.0, 7.0]]),
    "lerp": (lambda x: x.lerp(3.0, 0.5), [[2.0, 3.5], [3.0, 2.0]]),
    "logaddexp": (lambda x: (x - x).logaddexp(0.0).exp().round(), [[2.0, 2.0], [2.0, 2.0]]),
    "mH": (lambda x: (1j * x).mH, [[-1j, -3j], [-4j, -1j]]),
}


@pytest.mark.parametrize(("call", "want"), METHODS.values(), ids=METHODS)
def test_methods_after_torch_and_numpy(call, want):
    assert call(fd.tensor([[1.0, 4.0], [3.0, 1.0]])).tolist() == want


# --- names in modules, and of what ops and results have

NAMES = {
    "fd.segment_sum": (lambda: fd.segment_sum, "it is fd.ops.segment_sum"),
    "F.segment_sum": (lambda: F.segment_sum, "it is fd.ops.segment_sum"),
    "linalg.inverse": (lambda: fnp.linalg.inverse, r"fd.numpy.linalg.inv\(x\)"),
    "linalg.matrix_exp": (lambda: fnp.linalg.matrix_exp, "expm"),
    "random.student_t": (lambda: fd.random.student_t, r"fd.random.t\(key"),
    "random.shuffle": (lambda: fd.random.shuffle, "fd.random.permutation"),
    "special.igamma": (lambda: fd.special.igamma, "fd.special.gammainc"),
    "special.jv": (lambda: fd.special.jv, r"bessel_jn\(n, x\)"),
    "maximum.reduce": (lambda: fnp.maximum.reduce, r"write fd.numpy.max\(x, axis\)"),
    "add.at": (lambda: fnp.add.at, r"write x = x.at\[i\].add\(v\)"),
    "logaddexp.accumulate": (lambda: fnp.logaddexp.accumulate, r"x.logcumsumexp\(axis\)"),
    "add.outer": (lambda: fnp.add.outer, r"f\(x\[:, None\], y\)"),
    "hypot.reduce": (lambda: fnp.arctan2.reduce, "functools.reduce"),
    "sort().values": (lambda: X.sort().values, r"x.argsort\(axis\)"),
}


@pytest.mark.parametrize(("read", "text"), NAMES.values(), ids=NAMES)
def test_a_name_that_is_elsewhere(read, text):
    with pytest.raises(UnknownAttributeError, match=text):
        read()


def test_results_with_places_have_torchs_names():
    x = fd.tensor([[5.0, 4.0, 6.0]])
    for found in (x.topk(1), fnp.topk(x, 1), x.kthvalue(3, keepdims=True), fd.jit(lambda x: x.topk(1))(x)):
        assert (found.values.tolist(), found.indices.tolist()) == ([[6.0]], [[2]])
        values, indices = found
        assert values is found.values
        assert indices is found.indices


class OfTorch:
    """A tensor of bfloat16 as torch's: NumPy has no such type."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        raise TypeError("Got unsupported ScalarType BFloat16")

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=str)
def test_arrays_that_numpy_cannot_hold_come_by_dlpack(device):
    theirs = OfTorch(jnp.asarray([1.0, 2.5], jnp.bfloat16))
    x = fd.tensor(theirs, device=device)
    assert (x.dtype, x.tolist()) == (fd.bfloat16, [1.0, 2.5])
    assert (fd.ones(2, "bfloat16", device) + theirs).tolist() == [2.0, 3.5]
