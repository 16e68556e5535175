"""Indices outside their axis: eager code raises; where they have no values the functions do as JAX's do."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import functad as fd
from functad import nn
from functad import numpy as fnp
from functad.nn import functional as F

NAN = math.nan
DEVICES = [pytest.param(fd.Device.cpu(), id="xla"), pytest.param(fd.Device.numpy(), id="numpy")]


def array(*data, device):
    return fd.tensor(list(data), device=device)


READS = {
    "x[i]": (lambda x, i: x[i], lambda x, i: x[i]),
    "at.get": (lambda x, i: x.at[i].get(), lambda x, i: x.at[i].get()),
    "take": (fnp.take, jnp.take),
    "take of 0-d": (lambda x, i: fnp.take(x, i[0]), lambda x, i: jnp.take(x, i[0])),
    "x.take": (lambda x, i: x.take(i, 0), jnp.take),
    "take_along_axis": (lambda x, i: fnp.take_along_axis(x, i, 0), lambda x, i: jnp.take_along_axis(x, i, 0)),
    "gather": (lambda x, i: x.gather(0, i), lambda x, i: jnp.take_along_axis(x, i, 0)),
    "index_select": (lambda x, i: x.index_select(0, i), jnp.take),
    "take of ints": (lambda x, i: fnp.take(x.astype("int32"), i), lambda x, i: jnp.take(x.astype("int32"), i)),
    "take of bools": (lambda x, i: fnp.take(x > 2, i), lambda x, i: jnp.take(x > 2, i)),
    "set": (lambda x, i: x.at[i].set(9.0), lambda x, i: x.at[i].set(9.0)),
    "set of 0-d": (lambda x, i: x.at[i[0]].set(9.0), lambda x, i: x.at[i[0]].set(9.0)),
    "add of 0-d": (lambda x, i: x.at[i[0]].add(9.0), lambda x, i: x.at[i[0]].add(9.0)),
    "max of 0-d": (lambda x, i: x.at[i[0]].max(9.0), lambda x, i: x.at[i[0]].max(9.0)),
    "mul": (lambda x, i: x.at[i].mul(9.0), lambda x, i: x.at[i].mul(9.0)),
    "mul of 0-d": (lambda x, i: x.at[i[0]].mul(9.0), lambda x, i: x.at[i[0]].mul(9.0)),
    "set of an axis of 1": (lambda x, i: x[:1].at[i[0]].set(9.0), lambda x, i: x[:1].at[i[0]].set(9.0)),
    "set beside an array": (
        lambda x, i: fnp.stack([x, x]).at[i[0], fnp.asarray([0, 1], device=x.device)].set(9.0),
        lambda x, i: jnp.stack([x, x]).at[i[0], jnp.array([0, 1])].set(9.0),
    ),
    "one_hot": (lambda x, i: F.one_hot(i, 3), lambda x, i: jax.nn.one_hot(i, 3)),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", READS)
def test_in_a_trace_they_do_as_jax(name, device):
    ours, theirs = READS[name]
    data = [1.0, 2.0, 3.0]
    for number in (7, -7, 1) if name == "one_hot" else (7, -7, 1, -1):
        expected = np.asarray(jax.jit(theirs)(jnp.array(data), jnp.array([number]))).tolist()
        x, i = fd.tensor(data, device=device), array(number, device=device)
        assert repr(fd.jit(ours)(x, i).tolist()) == repr(expected), number
        if name == "set of an axis of 1":
            continue
        if number in (1, -1):
            assert ours(x, i).tolist() == expected
        else:
            with pytest.raises(fd.errors.OutOfBoundsError):
                ours(x, i)


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_not_there_gets_no_gradient(device):
    x = array(1.0, 2.0, 3.0, device=device)
    i = array(1, 7, device=device)
    cotangent = array(10.0, 100.0, device=device)
    for read in (fnp.take, lambda x, i: fnp.take_along_axis(x, i, 0), lambda x, i: F.embedding(i, x[:, None])[:, 0]):
        f = fd.jit(lambda x, i, read=read: (read(x, i) * cotangent).sum())
        assert fd.grad(f)(x, i).tolist() == [0.0, 10.0, 0.0]
        _, tangent = fd.jit(lambda x, i, read=read: fd.jvp(lambda x: read(x, i), (x,), (x,)))(x, i)
        assert tangent.tolist() == [2.0, 0.0]
    assert fd.grad(fd.jit(lambda x, i: (x[i] * cotangent).sum()))(x, i).tolist() == [0.0, 10.0, 100.0]
    written = fd.jit(lambda x, v, i: (x.at[i].set(v) * array(1.0, 2.0, 4.0, device=device)).sum())
    for number, expected in ((7, ([1.0, 2.0, 4.0], 0.0)), (1, ([1.0, 0.0, 4.0], 2.0))):
        place = fd.tensor(number, device=device)
        grads = fd.grad(written, argnums=(0, 1))(x, fd.tensor(5.0, device=device), place)
        assert tuple(g.tolist() for g in grads) == expected


@pytest.mark.parametrize("device", DEVICES)
def test_bodies_of_loops_are_traced_also_on_values(device):
    x = array(1.0, 2.0, 3.0, device=device)
    i = array(0, 2, 3, device=device)
    zero = fd.tensor(0.0, device=device)
    assert repr(fd.scan(lambda c, i: (c, fnp.take(x, i)), zero, i)[1].tolist()) == "[1.0, 3.0, nan]"
    assert fd.scan(lambda c, i: (c, x[i]), zero, i)[1].tolist() == [1.0, 3.0, 3.0]
    assert fd.scan(lambda c, i: (c.at[i].add(1.0), None), x, i)[0].tolist() == [2.0, 2.0, 4.0]
    assert fd.fori_loop(1, 6, lambda i, c: c.at[i].set(9.0), x).tolist() == [1.0, 9.0, 9.0]
    with pytest.raises(fd.errors.OutOfBoundsError):
        fd.vmap(lambda i: fnp.take(x, i))(i)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_a_table(device):
    """Under jit the last row stood for one that is not there, where torch raises."""
    layer = nn.Embedding(10, 2, device=device)
    rows = fd.jit(layer)(array(9, 10, -1, device=device)).tolist()
    assert rows[0] == layer.weight[9].tolist()
    assert np.isnan(rows[1:]).all()
    bag = fd.jit(lambda i: F.embedding_bag(i, layer.weight, mode="sum"))(fd.tensor([[0, 1], [0, 10]], device=device))
    np.testing.assert_allclose(bag.tolist()[0], (layer.weight[0] + layer.weight[1]).tolist(), rtol=1e-6)
    assert np.isnan(bag.tolist()[1]).all()


LOSSES = {
    "cross_entropy": lambda x, t: F.cross_entropy(x, t, reduction="none"),
    "smoothed": lambda x, t: F.cross_entropy(x, t, reduction="none", label_smoothing=0.1),
    "weighted": lambda x, t: F.cross_entropy(x, t, weight=np.array([1.0, 2.0, 3.0]), reduction="none"),
    "nll_loss": lambda x, t: F.nll_loss(x, t, reduction="none"),
    "multi_margin_loss": lambda x, t: F.multi_margin_loss(x, t, reduction="none"),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_classes_that_do_not_exist(loss, device):
    """The loss of an element is NaN; its logits got a gradient all the same. The others are as ever."""
    x = fd.tensor([[0.5, 1.0, -1.0]] * 4, device=device)
    right = array(1, 2, 0, 1, device=device)
    wrong = array(1, 5, -1, 1, device=device)
    values, f = loss(x, right).tolist(), fd.jit(loss)
    found = f(x, wrong).tolist()
    np.testing.assert_allclose(found, [values[0], NAN, NAN, values[3]], rtol=1e-6)
    slopes = fd.grad(lambda x: loss(x, right).sum())(x).tolist()
    np.testing.assert_allclose(
        fd.grad(lambda x: f(x, wrong).sum())(x).tolist(), [slopes[0], [0] * 3, [0] * 3, slopes[3]], atol=1e-6
    )
    with pytest.raises(fd.errors.OutOfBoundsError):
        loss(x, wrong)


def test_an_ignored_element_is_no_class_that_does_not_exist():
    x = fd.tensor([[0.5, 1.0, -1.0]] * 2)
    f = fd.jit(F.cross_entropy)
    assert f(x, fd.tensor([1, -100])).item() == pytest.approx(F.cross_entropy(x[:1], fd.tensor([1])).item(), rel=1e-6)


def test_labels_of_a_sequence_that_do_not_exist():
    scores = F.log_softmax(fd.random.normal(fd.random.key(0), (6, 2, 4)), -1)
    f = lambda s, t: F.ctc_loss(s, t, np.array([6, 6]), np.array([2, 2]), reduction="none")
    right, wrong = fd.tensor([[1, 2], [3, 3]]), fd.tensor([[1, 2], [3, 4]])
    found = fd.jit(f)(scores, wrong).tolist()
    np.testing.assert_allclose(found, [f(scores, right)[0].item(), NAN], rtol=1e-5)
    grads = fd.grad(lambda s: fd.jit(f)(s, wrong).sum())(scores)
    assert not grads[:, 1].any()
    assert grads[:, 0].any()


def test_rows_without_derivative_stay_so_at_second_order():
    cube = fd.jit(lambda x, i: (fnp.take(x, i) ** 3).sum())
    found = fd.hessian(cube)(fd.tensor([1.0, 2.0]), fd.tensor([1, 5]))
    assert found.tolist() == [[0.0, 0.0], [0.0, 12.0]]
