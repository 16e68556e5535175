"""Wrong arguments: each is refused in the words of the function that was called, whatever it ran into further in."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad import errors
from functad.culprits import told
from functad.keywords import explained

F = fd.nn.functional
X = fd.tensor([1.0, 2.0, 3.0])
M = fd.tensor([[4.0, 1.0], [1.0, 3.0]])

WRONG = [
    (lambda: fnp.fft.fft(X, norm=["ortho"]), errors.ArgumentTypeError, "fft: norm must be a string or None"),
    (lambda: fnp.fft.fft2(M, 5), errors.ArgumentTypeError, "fft2: s must be a tuple"),
    (lambda: fnp.fft.fftfreq(4, None), errors.ArgumentTypeError, "fftfreq: d must be a number, got None"),
    (lambda: fnp.bartlett(X), errors.ArgumentTypeError, "bartlett: M must be an int, got float32[3]"),
    (lambda: fnp.hanning("a"), errors.ArgumentTypeError, "hanning: M must be an int, got 'a'"),
    (lambda: fnp.linalg.cho_solve(3, X), errors.FunctadError, "cho_solve: cannot go on with c_and_lower=3"),
    (lambda: fnp.linalg.lu_solve(3, X), errors.FunctadError, "lu_solve: cannot go on with lu_and_order=3"),
    (lambda: fnp.trim_zeros("a"), errors.FunctadError, "trim_zeros"),
    (lambda: fnp.ix_("a"), errors.FunctadError, "ix_"),
    (lambda: fnp.tril_indices_from("a"), errors.FunctadError, "tril_indices_from"),
    (lambda: fnp.sum(X, keepdims="a"), errors.ArgumentTypeError, "sum: keepdims must be True or False, got 'a'"),
    (lambda: X.sum(0, None), errors.ArgumentTypeError, "sum: keepdims must be True or False, got None"),
    (lambda: F.softmax(X, dim=0), errors.ArgumentTypeError, "write axis="),
    (
        lambda: F.gelu(X, aproximate="tanh"),
        errors.ArgumentTypeError,
        "gelu: got an unexpected keyword argument 'aproximate'; did you mean 'approximate'",
    ),
    (lambda: fnp.add(X, [[1.0], [1.0, 2.0]]), errors.ShapeError, "rows differ in length"),
    (lambda: X.at[:2].set([[1.0], [1.0, 2.0]]), errors.ShapeError, "rows differ in length"),
    (fnp.exp, errors.ArgumentTypeError, "exp: takes 1 input (x), got 0"),
    (lambda: fnp.exp(X, X), errors.ArgumentTypeError, "exp: takes 1 input (x), got 2"),
    (lambda: fnp.add(X), errors.ArgumentTypeError, "add: takes 2 inputs (x, y), got 1"),
    (lambda: fnp.add(X, X, X), errors.ArgumentTypeError, "got 3"),
    (lambda: F.relu(X, True), errors.ArgumentTypeError, "relu: takes 1 input (x), got 2"),
    (
        lambda: F.relu(X, inplace=True),
        errors.ArgumentTypeError,
        "relu: there is no argument 'inplace'; write the call without",
    ),
    (lambda: F.relu(input=X), errors.ArgumentTypeError, "relu: there is no argument 'input'; write it by position"),
    (lambda: fnp.exp(X, out=X), errors.ArgumentTypeError, "exp: there is no argument 'out'; write the call without it"),
    (lambda: fnp.exp(X, dtype="float16"), errors.ArgumentTypeError, "write x.astype(dtype)"),
    (lambda: fnp.add(X, X, where=X > 1), errors.ArgumentTypeError, "write fd.where(mask, f(x), y)"),
    (lambda: X // 2j, errors.DTypeError, "floor_divide: does not take complex numbers"),
    (lambda: X % 2j, errors.DTypeError, "remainder: does not take complex numbers"),
    (
        lambda: fd.where(X > 0, fd.ones(2), 1.0),
        errors.ShapeError,
        "where: shapes (3,) and (2,) and () do not broadcast",
    ),
    (lambda: fd.Device.gpu("a"), errors.ArgumentTypeError, "fd.Device.gpu(0)"),
    (lambda: fd.seed(2**70), errors.ArgumentError, "at most 64 bits"),
    (lambda: X.grad_replace("a", X), errors.ArgumentTypeError, "grad_replace: expected the Gradients"),
    (lambda: X.grad_remove("a"), errors.ArgumentTypeError, "grad_remove: expected the Gradients"),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=[text for _, _, text in WRONG])
def test_what_is_wrong_is_said_of_which_argument(call, kind, text):
    with pytest.raises(kind) as raised:
        call()
    assert text in str(raised.value)


def test_an_error_of_a_function_of_the_users_stays_as_it_is():
    with pytest.raises(ZeroDivisionError):
        fnp.apply_along_axis(lambda row: 1 / 0, 0, M)
    with pytest.raises(AttributeError) as raised:
        fnp.fromfunction(lambda i: {}.nothing, (2,))
    assert not isinstance(raised.value, fd.FunctadError)


def test_the_error_from_further_in_is_the_cause():
    @explained
    def halved(x, parts: int, name="half"):
        return [x][parts] + name

    with pytest.raises(errors.ArgumentTypeError, match="parts must be an int, got 'a'") as raised:
        told_of(halved, X, "a")
    assert isinstance(raised.value.__cause__, TypeError)


def told_of(fn, *args):
    """Call a function of this file as if it were one of functad's."""
    names = fn.__wrapped__.__globals__
    here, names["__name__"] = names["__name__"], "functad.here"
    try:
        return fn(*args)
    finally:
        names["__name__"] = here


def test_flags_are_numbers_or_bools():
    assert fnp.sum(X, keepdims=1).shape == fnp.sum(X, keepdims=np.bool_(True)).shape == (1,)


def test_what_is_not_of_the_arguments_is_not_told():
    with pytest.raises(errors.ShapeError) as raised:
        fnp.reshape(X, (7,))
    assert told(raised.value, "reshape", fnp.reshape, (X, (7,)), {}) is None


def test_functions_are_still_found_by_pickle():
    for fn in (fnp.clip, F.relu, F.linear, fd.special.logsumexp, fnp.linalg.svd, fd.random.normal):
        assert pickle.loads(pickle.dumps(fn)) is fn


def test_seeds_beyond_32_bits_count():
    keys = [tuple(fd.random.key(seed).tolist()) for seed in (0, 1 << 32, 1 << 40, -(1 << 40), (1 << 64) - 1)]
    assert len(set(keys)) == len(keys)


def test_a_function_is_not_blamed_for_what_its_values_do():
    with pytest.raises(fd.FunctadError) as raised:
        fd.testing.check_grads(lambda x: x[x > 1], (X,))
    assert "fn cannot be" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fd.custom_vjp(abs, argnums=1), "custom_vjp: .* fun, nondiff_argnums, nondiff_argnames"),
        (fd.custom_jvp, "custom_jvp: the argument 'fun' must be given"),
        (lambda: fd.custom_jvp(lambda x: x).defjvp(rule=abs), "defjvp: .* the arguments are jvp"),
        (lambda: fd.optim.GradientsAccumulator(steps=4), "GradientsAccumulator: .*'steps'; it takes none by name"),
        (lambda: fd.optim.GradientsAccumulator().grads(means=True), "did you mean 'mean'"),
        (lambda: fd.QuantScheme(width=8), "QuantScheme: .* the arguments are dtype, block"),
    ],
)
def test_classes_list_their_arguments(call, text):
    with pytest.raises(errors.ArgumentTypeError, match=text):
        call()


def test_functions_with_rules_list_their_arguments():
    f = fd.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    with pytest.raises(errors.ArgumentTypeError, match=r"missing a required argument: 'x'; its arguments are \(x\)"):
        f(y=1.0)
