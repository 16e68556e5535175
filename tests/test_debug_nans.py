"""`debug_nans`: which op made a NaN or inf, on which line; silent where nothing comes of it."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import functad as fd
from functad import nn
from functad.dispatch import tracing
from functad.errors import NonFiniteError

DEVICES = [fd.Device.cpu(fusion=False), fd.Device.cpu(fusion=True), fd.Device.numpy()]
ROOT = np.array([0.0, 4.0], np.float32)


def leaf(device, values=ROOT):
    return fd.tensor(values, device=device.autodiff()).require_grad()


def backward_at_a_kink(device):
    w = leaf(device)
    return w.sqrt().sum().backward()


def forward_read(device):
    return (leaf(device) - 1).log().sum().item()


def transform(device):
    return fd.grad(lambda w: fd.numpy.sqrt(w).sum())(fd.tensor(ROOT, device=device))


def mapped(device):
    return fd.vmap(fd.grad(lambda w: w.log()))(fd.tensor(ROOT, device=device)).tolist()


def forward_mode(device):
    w = fd.tensor(ROOT, device=device)
    return fd.jvp(lambda w: w.sqrt(), (w,), (w + 1,))[1].numpy()


def recomputed(device):
    return fd.checkpoint(lambda w: w.log().sum())(leaf(device)).backward()


def compiled(device):
    return fd.jit(lambda w: (1 / w).sum())(fd.tensor(ROOT, device=device)).item()


def compiled_backward(device):
    return fd.jit(lambda w: w.grad(w.sqrt().sum().backward()))(leaf(device)).numpy()


CASES = {
    backward_at_a_kink: "the derivative of sqrt",
    forward_read: "log at",
    transform: "the derivative of sqrt",
    mapped: "log at",
    forward_mode: "",
    recomputed: "log at",
    compiled: "made inf",
    compiled_backward: "made inf",
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("device", DEVICES, ids=["xla", "fusion", "numpy"])
@pytest.mark.parametrize(("case", "text"), CASES.items(), ids=[c.__name__ for c in CASES])
def test_the_op_and_the_line_are_named(case, text, device):
    with fd.debug_nans(), pytest.raises(NonFiniteError) as raised:
        case(device)
    message = str(raised.value)
    assert text in message
    lines, first = inspect.getsourcelines(case)
    assert any(f"{__file__}:{first + i}" in message for i in range(len(lines))), message
    case(device)  # outside of the region nothing is raised
    assert tracing.get() is None


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("device", DEVICES, ids=["xla", "fusion", "numpy"])
def test_what_nothing_comes_of_is_left_alone(device):
    w = leaf(device)
    with fd.debug_nans():
        loss = fd.where(w > 1, (w - 1).log(), 0.0).sum()
        assert w.grad(loss.backward()).tolist() == pytest.approx([0.0, 1 / 3])
        loss.item()
        masked = fd.where(w > 1, 0.0, -np.inf)
        assert masked.numpy().min() == -np.inf
        assert masked.softmax().tolist() == [0.0, 1.0]
    with fd.debug_nans(at_once=True), pytest.raises(NonFiniteError, match="the output of log"):
        fd.where(w > 1, (w - 1).log(), 0.0)


def test_what_came_from_outside_is_said_to():
    data = fd.tensor([1.0, np.nan])
    model = nn.Linear(2, 1, device=fd.Device.cpu().autodiff())
    with fd.debug_nans():
        assert np.isnan(data.numpy()).any()  # it is no op's fault
        with pytest.raises(NonFiniteError, match=r"was given NaN already.*Look at the data"):
            model(data).sum().backward()


def test_training_under_it_gives_the_same_numbers():
    def train(steps):
        fd.seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
        opt = fd.optim.adam(1e-2)
        state = opt.init(model)
        x = fd.random.normal(fd.random.key(1), (6, 3))
        for _ in range(steps):
            out, model = model.call_and_update(x)
            model, state = opt.step(model, (out**2).mean().backward(), state)
        return [p.numpy() for p in model.parameters()]

    for x, y in zip(train(3), fd.debug_nans()(train)(3), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6)


def test_errors():
    with pytest.raises(fd.errors.ArgumentTypeError, match="call it"):
        fd.debug_nans(lambda: None)
    assert issubclass(NonFiniteError, FloatingPointError)
    assert fd.jit(inside)(fd.tensor(0.0)).item() == np.inf  # no effect in what is compiled


def inside(x):
    with fd.debug_nans():
        return 1 / x


# --- on which line, of what is compiled


def logs(x):
    y = x - 1
    return fd.numpy.log(y) * 2


LINE = f"log at {__file__}:{inspect.getsourcelines(logs)[1] + 2} made NaN"
WHOLE = {
    "jit": fd.jit(logs),
    "checkpoint": fd.checkpoint(logs),
    "scan": lambda x: fd.scan(lambda c, row: (c, logs(row)), 0.0, x)[1],
    "scan in jit": fd.jit(lambda x: fd.scan(lambda c, row: (c, logs(row)), 0.0, x)[1]),
    "cond": lambda x: fd.cond(x[0] > 0, logs, lambda x: x, x),
    "cond in jit": fd.jit(lambda x: fd.cond(x[0] > 0, logs, lambda x: x, x)),
    "fori_loop": lambda x: fd.fori_loop(0, 1, lambda i, x: logs(x), x),
    "while_loop": lambda x: fd.while_loop(lambda s: s[0] < 1, lambda s: (s[0] + 1, logs(s[1])), (0, x))[1],
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("device", DEVICES, ids=["xla", "fusion", "numpy"])
@pytest.mark.parametrize("call", WHOLE.values(), ids=WHOLE)
def test_the_line_within_what_is_compiled(call, device):
    """It was the line of the call, and of loops only their name was told."""
    x = fd.tensor([0.5, 2.0], device=device)
    for _ in range(2):  # written down, then run
        with fd.debug_nans(), pytest.raises(NonFiniteError) as raised:
            call(x).tolist()
        assert LINE in str(raised.value)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_the_line_within_a_compiled_gradient(device):
    step = fd.jit(fd.grad(lambda x: logs(x).sum()))
    with fd.debug_nans(), pytest.raises(NonFiniteError) as raised:
        str(step(fd.tensor([1.0, 2.0], device=device)))
    assert "the derivative of log at" in str(raised.value)
    assert LINE.split(" made", maxsplit=1)[0].removeprefix("log at ") in str(raised.value)


READS = {
    "str": str, "format": "{}".format, "bool": lambda x: bool((x > 0).any()), "if": lambda x: bool(x[0] > 0),
    "argmax": lambda x: x.argmax().item(), "argsort": lambda x: x.argsort().tolist(), "int": lambda x: x.astype(int).tolist(),
    "float": lambda x: float(x[0]), "jax": lambda x: x.jax(), "equal": lambda x: bool((x == 2).all()),
    "jit": lambda x: fd.jit(lambda x: x > 0)(x).tolist(),
}  # fmt: skip
ASKS = {
    "isnan": lambda x: fd.numpy.isnan(x).tolist() == [True, False],
    "isfinite": lambda x: fd.where(fd.numpy.isfinite(x), 1.0, 0.0).tolist() == [0.0, 1.0],
    "x != x": lambda x: (x != x).tolist() == [True, False],  # how NaN is told
    "nan_to_num": lambda x: fd.numpy.nan_to_num(x, nan=5.0).tolist()[0] == 5.0,
    "nanmax": lambda x: fd.numpy.nanmax(x).item() == 0.0,
    "repr": lambda x: "nan" in repr(x),
}


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_counts_as_reading(read, device):
    """A comparison with NaN is False, so that a loop took a branch and nothing was said."""
    with fd.debug_nans(), pytest.raises(NonFiniteError, match="log at"):
        read(logs(fd.tensor([0.5, 2.0], device=device)))


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
def test_asking_for_nan_is_no_reading(ask, device):
    with fd.debug_nans():
        assert ask(logs(fd.tensor([0.5, 2.0], device=device)))
