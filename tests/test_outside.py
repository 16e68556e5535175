"""What a function reaches from outside by something that is no op: `detach` and its like, values that are read."""

import functools

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad import errors, hessian, jvp, vjp, vmap

grad = fd.grad
T = np.array([1.0, 2.0, 3.0])
CUTS = {
    "stop_gradient": fd.stop_gradient,
    "detach": fd.Tensor.detach,
    "without_autodiff": fd.Tensor.without_autodiff,
    "inner": fd.Tensor.inner,
    "copied": lambda w: w.autodiff().without_autodiff(),
    "a leaf of its own": lambda w: w.detach().autodiff().require_grad(),
}
STATES = {
    "plain": fd.tensor,
    "constant": lambda v: fd.tensor(v).autodiff(),
    "tracked": lambda v: fd.tensor(v).autodiff().require_grad(),
    "intermediate": lambda v: fd.tensor(v).autodiff().require_grad() * 1.0,
    "parameter": fd.Param,
    "tracked parameter": lambda v: fd.Param(v, device=fd.Device.default().autodiff()),
}


def ruled(make):
    def wrap(f):
        op = make(f)
        if make is fd.custom_vjp:
            op.defvjp(lambda x: (f(x), x), lambda x, g: (g * x,))
        else:
            op.defjvp(lambda p, t: (f(p[0]), t[0] * p[0]))
        return op

    return wrap


WRAPS = {
    "jit": fd.jit,
    "checkpoint": fd.checkpoint,
    "custom_vjp": ruled(fd.custom_vjp),
    "custom_jvp": ruled(fd.custom_jvp),
    "scan": lambda f: lambda x: fd.scan(lambda c, _: (f(c), None), x, None, length=1)[0],
    "cond": lambda f: lambda x: fd.cond(x > -9.0, f, f, x),
    "fori_loop": lambda f: lambda x: fd.fori_loop(0, 1, lambda i, c: f(c), x),
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("make", STATES.values(), ids=STATES)
def test_a_tensor_that_is_cut_off_inside_is_read_again_at_each_call(cut, make, device):
    """Under jit `w.detach()` made a tensor that was compiled in: w = w - rate * g went unseen (a frozen target network)."""
    with fd.set_default_device(device):
        w = make(2.0)
        step = fd.jit(lambda x: x * cut(w))
        looped = fd.jit(lambda x: fd.scan(lambda c, _: (c * cut(w), None), x, None, length=1)[0])
        again = fd.jit(lambda x: fd.checkpoint(lambda c: c * cut(w))(x) * 1.0)
        slope = grad(fd.jit(lambda x: x * cut(w)))
        assert [f(1.0).item() for f in (step, step, looped, again, slope)] == [2] * 5
        w = make(5.0)
        assert [f(1.0).item() for f in (step, step, looped, again, slope)] == [5] * 5


@pytest.mark.parametrize(
    "again",
    [lambda w: w.set_require_grad(False), lambda w: w.autodiff().set_require_grad(True), lambda w: fd.jit(lambda: w)()],
)
def test_a_leaf_in_another_state_is_read_again_at_each_call(again):
    w = fd.tensor(2.0).autodiff()
    step = fd.jit(lambda x: x * again(w))
    assert step(1.0).item() == 2
    w = fd.tensor(5.0).autodiff()
    assert step(1.0).item() == 5


def test_a_parameter_of_a_model_is_read_again_however_it_is_reached():
    model = fd.nn.Linear(1, 1, bias=False)
    step = fd.jit(lambda x: x * model.weight.value.sum() + model.weight.detach().sum() + model.weight.autodiff().sum())
    model = model.replace(weight=fd.ones((1, 1)))
    assert step(1.0).item() == 3
    model = model.replace(weight=fd.full((1, 1), 2.0))
    assert step(1.0).item() == 6


READS = {
    "item": fd.Tensor.item,
    "float": float,
    "numpy": fd.Tensor.numpy,
    "jax": fd.Tensor.jax,
    "asarray": np.asarray,
    "tolist": fd.Tensor.tolist,
    "range": lambda w: sum(1.0 for _ in range(int(w))),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_value_that_is_read_inside_is_that_of_now(read, device):
    """A captured tensor is read again at each call; what Python makes of its value has to follow."""
    with fd.set_default_device(device):
        w = fd.tensor(2.0)
        step = fd.jit(lambda x: x * read(w))
        nested = fd.jit(lambda x: step(x) * 1.0)
        slope = grad(step)
        assert [f(1.0).item() for f in (step, step, nested, slope, slope)] == [2] * 5
        w = fd.tensor(5.0)
        assert [f(1.0).item() for f in (step, step, nested, slope, slope)] == [5] * 5
        assert step.compilations == 2


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("cut", [CUTS["stop_gradient"], CUTS["detach"], CUTS["without_autodiff"], CUTS["copied"]])
def test_a_tensor_of_a_transform_outside_is_cut_off_inside_a_function(cut, wrap, device):
    """checkpoint and the custom rules refused stop_gradient of a mapped or traced tensor that they closed over."""

    def f(a, x):
        return wrap(lambda y: fnp.sin(y) * cut(a))(x * 1.5)

    with fd.set_default_device(device):
        want = np.sin(1.5 * T) * T
        assert np.allclose(vmap(lambda a: f(a, a))(T).numpy(), want, rtol=1e-5)
        assert np.allclose(fd.jit(vmap(lambda a: f(a, a)))(T).numpy(), want, rtol=1e-5)
        assert np.allclose(vmap(fd.jit(lambda a: f(a, a)))(T).numpy(), want, rtol=1e-5)
        value, tangent = jvp(lambda a: f(a, 1.0), (2.0,), (1.0,))
        assert value.item() == pytest.approx(np.sin(1.5) * 2)
        assert tangent.item() == 0
        assert grad(lambda a: f(a, 1.0))(2.0).item() == 0
        assert vmap(grad(lambda a: f(a, 1.0)))(T).tolist() == [0, 0, 0]


@pytest.mark.parametrize("wrap", [fd.checkpoint, fd.jit, WRAPS["scan"], WRAPS["fori_loop"]])
def test_the_derivative_of_a_function_that_cuts_off_what_it_closes_over(wrap):
    def f(a, x):
        return wrap(lambda y: fnp.sin(y) * fd.stop_gradient(a) * a)(x)

    assert grad(f)(2.0, 1.0).item() == pytest.approx(2 * np.sin(1.0))
    assert vmap(grad(f, argnums=1))(T, T).tolist() == pytest.approx((np.cos(T) * T * T).tolist())
    assert grad(grad(f, argnums=1), argnums=0)(2.0, 1.0).item() == pytest.approx(2 * np.cos(1.0))
    w = fd.tensor(2.0).autodiff().require_grad()
    assert w.grad(f(w, 1.0).backward()).item() == pytest.approx(2 * np.sin(1.0))


INNER = {
    "grad": lambda x2: grad(lambda y: y * y * x2)(x2),
    "grad with respect to it": lambda x2: grad(lambda y: y * y)(x2) * x2,
    "linearize": lambda x2: fd.linearize(lambda y: y * y, x2)[1](x2),
    "jvp": lambda x2: jvp(lambda y: y * y, (x2,), (x2,))[1],
    "vjp": lambda x2: vjp(lambda y: y * y, x2)[1](x2)[0],
    "vmap": lambda x2: vmap(lambda y: y * x2)(fnp.stack([x2, x2])).sum(),
    "cond": lambda x2: fd.cond(x2 > 0, lambda y: 2 * y * y, lambda y: y, x2),
    "scan": lambda x2: 2 * fd.scan(lambda c, _: (c * x2, None), x2, None, length=1)[0],
    "jit": lambda x2: fd.jit(lambda y: y * y)(x2) * 2,
    "hessian": lambda x2: hessian(lambda y: y * y * y)(x2) * x2 / 3,
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER)
def test_a_checkpoint_runs_again_after_the_vmap_round_it_has_ended(inner):
    """A transform inside took what the checkpoint closes over for a tensor that had leaked."""

    def f(a):
        return vmap(lambda x2: fd.checkpoint(lambda x3: inner(x2) * x3)(a))(T).sum()

    assert grad(f)(1.0).item() == pytest.approx(float((2 * T * T).sum()))
    assert grad(fd.jit(f))(1.0).item() == pytest.approx(float((2 * T * T).sum()))
    w = fd.tensor(1.0).autodiff().require_grad()
    assert w.grad(f(w).backward()).item() == pytest.approx(float((2 * T * T).sum()))


def test_one_of_several_levels_cannot_be_taken_off_what_is_compiled():
    w = fd.tensor(2.0, device=fd.Device.cpu().autodiff(order=2)).require_grad()
    with pytest.raises(errors.LevelError, match=r"Pass x.inner\(\) as an argument"):
        fd.jit(lambda x: x * w.inner())(1.0)
    assert fd.jit(lambda x, y: x * y)(1.0, w.inner()).is_tracked
    assert functools.reduce(lambda y, f: f(y), [fd.Tensor.inner] * 2, w).item() == 2
