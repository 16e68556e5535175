"""What goes on behind recorded ops on the tape is what would be there without recording them, compiled or not."""

import gc
from collections import Counter
from itertools import chain
from pathlib import Path
from threading import Thread
from weakref import ref

import jax
import numpy as np
import pytest
from helpers import compile_soon, settled

import functad as fd
from functad import numpy as fnp
from functad.backends import fusion_compile, fusion_state
from functad.backends.pulls import Pulls
from functad.dispatch import pending
from functad.ops.op import Cost, Op

REPEATS = 6


@pytest.fixture(params=["compiled", "op by op", "not recorded"])
def device(request, monkeypatch):
    """A device whose structures are compiled as soon as they recur, one that never compiles, and one that does not fuse."""
    compile_soon(monkeypatch, 2 if request.param == "compiled" else -1)
    fused = settled(forget=True)
    return fused if request.param != "not recorded" else fd.Device.cpu(fusion=False)


def repeated(device):
    """Several rounds, each with what was compiled in the one before."""
    for _ in range(REPEATS):
        pending.at_once = pending.futile = 0  # new structures in a row would not be recorded for a while
        yield
        if device.base.fuses:
            device.base.compiler.wait()


def leaf(device, *values):
    return fd.tensor(values, device=device.autodiff()).require_grad()


def test_what_the_loss_does_not_need_sends_nothing_back(device):
    a, b = leaf(device, 1.0, 2.0), leaf(device, 0.5, 0.7)
    m = fd.tensor([[np.inf, 1.0], [2.0, 3.0]], device=device)
    for _ in repeated(device):
        h, k, j = (a.sin() * a).exp().tanh(), (m @ a).tanh().exp(), (b.cos() * b).tanh().exp()
        assert np.isfinite(h.sum().item())
        grads = (h * 2.0).sum().backward()
        np.testing.assert_allclose(grads[a].numpy(), [0.243095, 1.7e-05], rtol=0.1)
        assert (len(grads), grads.explain(b).reason.name, b.grad(grads)) == (1, "NOT_REACHED", None)
        assert (k.shape, j.shape) == ((2,), (2,))


@pytest.mark.parametrize("observed", [False, True])
def test_releasing_a_graph_leaves_others_alone(device, observed):
    a, b = leaf(device, 1.0, 2.0), leaf(device, 0.5, 0.7)
    for _ in repeated(device):
        h, k, m = (a.sin() * a).exp().tanh(), (b.cos() * b).tanh().exp(), (a * a).sum()
        if observed:
            h.sum().item()
        (h * 2.0).sum().backward(retain_graph=False)
        assert (k * 2.0).sum().backward()[b].shape == (2,)
        assert m.backward()[a].tolist() == [2.0, 4.0]
        with pytest.raises(fd.errors.GraphConsumedError):
            (h * 3.0).sum().backward()


def test_a_cut_is_told_wherever_it_was_recorded(device):
    a, b = leaf(device, 1.0, 2.0), leaf(device, 0.5, 0.7)
    cuts = {"CUT_BY_DETACH": lambda x: (x * 3.0).detach(), "CUT_BY_INT_CAST": lambda x: (x * 3.0).astype("int32")}
    for _ in repeated(device):
        for reason, cut in cuts.items():
            k = ((cut(a) * b).sin().exp() * b).sum()
            k.item()
            assert k.backward().explain(a).reason.name == reason
            other = (b.sin() * b).exp().sum()
            both = (cut(a) * b).sin().exp().sum()
            assert np.isfinite(other.item() + both.item())
            assert other.backward().explain(a).reason.name != reason


def test_an_intermediate_is_retained_whenever_it_is_asked_for(device):
    a = leaf(device, 1.0, 2.0)
    for _ in repeated(device):
        h = (a.sin() * a).exp() * a
        loss = (h.tanh() * 3.0).sum()
        h.retain_grad()
        grads = loss.backward()
        np.testing.assert_allclose(grads[h].numpy(), 3 / np.cosh(h.numpy()) ** 2, rtol=1e-4, atol=1e-5)
        assert len(grads) == 2


def test_an_intermediate_of_another_thread_is_retained(device):
    a, made = leaf(device, 1.0, 2.0), []

    def record():
        h = a.sin() * a
        made.extend([h, (h * 3.0).sum()])

    thread = Thread(target=record)
    thread.start()
    thread.join()
    h, loss = made
    h.retain_grad()
    assert loss.backward()[h].tolist() == [3.0, 3.0]


def test_a_loss_that_was_looked_at_is_differentiated_in_one_call(device):
    a = leaf(device, 1.0, 2.0)
    for _ in repeated(device):
        loss = ((a.sin() * a).exp() * a).sum()
        assert np.isfinite(loss.item())
        with fd.profile() as p:
            grads = loss.backward()
        x = np.array([1.0, 2.0])
        e = np.exp(x * np.sin(x))
        np.testing.assert_allclose(grads[a].numpy(), e + x * e * (np.sin(x) + x * np.cos(x)), rtol=1e-5)
    if device.base.fuses and fusion_compile._START > 0:
        assert (p.hits, p.single_ops) == (1, 0)


@pytest.fixture
def rules(monkeypatch):
    """The names of the ops whose derivative rules have run in Python."""
    ran = []
    for owner in (Op, Pulls):
        name = "pull" if owner is Op else "__call__"
        run = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, *args, run=run: ran.append(self) or run(self, *args))
    return ran


def decaying(x, read):
    """A loop whose branches and length depend on values."""
    n = 0
    while read((x * x).sum()) > 0.1 and n < 9:
        x = x * 0.8 if read(x[0]) > 0.3 else x.sin() * 0.9
        n += 1
    return x.tanh().sum()


def summed(x, read):
    """A sum of losses that are looked at."""
    total = 0.0
    for i in range(3):
        loss = ((x * i).sin() * x).sum()
        read(loss)
        total = total + loss
    return total


def two_states(x, read):
    """A recurrence of two states, with a branch in each step."""
    h, c = x, x * 0.0
    for _ in range(4):
        c = (c + h.sin()) * 0.5
        h = (h * c.tanh()).exp()
        if read(h.mean()) > 1.2:
            h = h * 0.7
    return (h * c).sum()


@pytest.mark.parametrize("program", [decaying, summed, two_states])
def test_a_loop_that_reads_values_is_differentiated_without_rules(device, rules, program):
    a = leaf(device, 1.0, 0.7)
    plain = fd.tensor([1.0, 0.7], device=fd.Device.numpy().autodiff()).require_grad()
    expected = plain.grad(program(plain, fd.Tensor.item).backward()).numpy()
    for _ in chain(repeated(device), repeated(device)):
        loss = program(a, fd.Tensor.item)
        rules.clear()
        np.testing.assert_allclose(loss.backward()[a].numpy(), expected, rtol=1e-5)
    if device.base.fuses and fusion_compile._START > 0:
        assert not rules


def test_a_read_in_the_middle_does_not_have_products_computed_again(device):
    """Backward is given what costly ops made, if it reads it."""
    a, m = leaf(device, 1.0, 0.7), fd.tensor([[0.3, 0.2], [0.1, 0.4]], device=device)
    for _ in repeated(device):
        h = (m @ a).tanh()
        loss = ((m @ h) * 2.0).sum()
        assert np.isfinite(loss.item())
        grads = loss.backward()
    np.testing.assert_allclose(grads[a].numpy(), [0.303149, 0.549477], rtol=1e-5)
    if device.base.fuses and fusion_compile._START > 0:
        plans = [p for p in device.base.compiler.plans if p.seeds and p.call is not None]
        assert [len(p.reads_saved) for p in plans] == [1]  # the tanh of m @ a, and not m @ h


def twice(fn):
    return lambda w, x: fn(fn(x @ w) @ w)


@pytest.mark.parametrize("device", ["compiled"], indirect=True)
@pytest.mark.parametrize(
    ("fn", "kept"),
    [
        (twice(fnp.tanh), ["tanh", "tanh"]),  # their own derivatives are functions of them
        (twice(lambda h: h.tanh() + 1), ["tanh", "tanh"]),
        (twice(lambda h: h * h.sigmoid()), ["contract", "contract"]),  # read by two rules, and all follows from it
        (lambda w, x: ((x @ w) @ w).tanh().exp(), ["contract", "tanh"]),  # which exp follows from
        (lambda w, x: (x @ w).reshape(2, 2, 3).sum(0).cos(), ["sum"]),  # the smaller one
        (lambda w, x: ((x[:, 0] * w[0, 0]).tanh() * w[0, 1]).exp(), []),  # nothing costly
    ],
)
def test_what_is_kept_for_backward_is_the_least_that_spares_costly_ops(device, fn, kept):
    w = fd.tensor(np.linspace(-0.5, 0.4, 9).reshape(3, 3), device=device.autodiff()).require_grad()
    x = fd.tensor(np.linspace(-1.0, 1.0, 12).reshape(4, 3), device=device)
    plain = fd.tensor(w.numpy(), device=fd.Device.numpy().autodiff()).require_grad()
    expected = plain.grad((fn(plain, fd.tensor(x.numpy(), device=fd.Device.numpy())) ** 2).sum().backward()).numpy()
    for _ in repeated(device):
        loss = (fn(w, x) ** 2).sum()
        loss.item()
        np.testing.assert_allclose(loss.backward()[w].numpy(), expected, rtol=2e-5)
    plan = next(p for p in device.base.compiler.plans if p.followed and not p.seeds and p.call is not None)
    names = {step.first: step.op.name for step in plan.steps}
    assert [names[p] for p in plan.saved] == kept


@pytest.mark.parametrize("read", [False, True])
def test_balanced_checkpointing_is_by_structure(device, rules, monkeypatch, read):
    monkeypatch.setattr(fusion_state, "PIECE_BYTES", 0)
    tape = device.autodiff().gradient_checkpointing()
    a = fd.tensor([0.5, -0.3], device=tape).require_grad()
    plain = fd.tensor([0.5, -0.3], device=fd.Device.numpy().autodiff()).require_grad()

    def loss(x):
        for i in range(12):
            x = (x * 1.3 + 0.1).tanh()
            if read and i % 5 == 0:
                x.numpy()
        return x.sum()

    expected = plain.grad(loss(plain).backward()).numpy()
    for _ in chain(repeated(device), repeated(device)):
        with fd.profile() as p:
            total = loss(a)
            rules.clear()
            np.testing.assert_allclose(total.backward()[a].numpy(), expected, rtol=1e-4)
    if device.base.fuses and fusion_compile._START > 0:
        assert not rules
        assert p.single_ops == 0
        assert 4 < p.hits < 12  # pieces, forward and backward


@fd.custom_vjp
def cube(x):
    return x * x * x


cube.defvjp(lambda x: (x * x * x, x), lambda x, g: (g * 3.0 * x * x,))

APART = {
    "from_jax": (fd.from_jax(jax.nn.softplus), lambda x: np.logaddexp(0, x), 1),
    "jit": (fd.jit(lambda x: (x * x).tanh()), lambda x: np.tanh(x * x), 1),
    "custom_vjp": (cube, lambda x: x**3, 0),
}


@pytest.mark.parametrize("name", APART)
def test_around_an_op_with_rules_of_its_own_no_rule_runs(device, rules, name):
    fn, _, own = APART[name]
    a = leaf(device, 0.5, -0.3)
    for _ in chain(repeated(device), repeated(device)):
        loss = (fn((a * 1.1).tanh() * a).sin() * 2.0).sum()
        rules.clear()
        grads = loss.backward()
        grads[a].numpy()
    if device.base.fuses and fusion_compile._START > 0:
        assert len(rules) <= own
    f = lambda x: (np.sin(APART[name][1](np.tanh(x * 1.1) * x)) * 2).sum()
    x, eps = np.array([0.5, -0.3]), 1e-6
    expected = [(f(x + eps * e) - f(x - eps * e)) / (2 * eps) for e in np.eye(2)]
    np.testing.assert_allclose(grads[a].numpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("style", ["functional", "object"])
def test_second_derivatives_are_one_executable(device, style):
    x = fd.tensor([0.5, -0.3], device=device)
    z = fd.tensor([0.5, -0.3], device=device.autodiff(order=2)).require_grad()

    def squared():
        if style == "functional":
            return fd.grad(lambda v: (fd.grad(lambda u: (u.sin() * u).sum())(v) ** 2).sum())(x)
        g = z.grad((z.sin() * z).sum().backward())
        return (g * g).sum().backward()[z.inner()]

    for _ in repeated(device):
        with fd.profile() as p:
            found = squared().numpy()
    v = np.array([0.5, -0.3])
    np.testing.assert_allclose(
        found, 2 * (np.sin(v) + v * np.cos(v)) * (2 * np.cos(v) - v * np.sin(v)), rtol=1e-5, atol=1e-6
    )
    if device.base.fuses and fusion_compile._START > 0:
        assert (p.hits, p.single_ops) == (1, 0)


def test_a_number_in_front_does_not_end_a_recording_of_an_outer_tape(device):
    """Its tensor is of the base, as are those of tapes that may be recorded."""
    x = fd.tensor([0.5, -0.3], device=device)
    second = fd.grad(lambda v: fd.grad(lambda u: (2.0 * u * (1.0 - u.sin())).sum())(v).sum())
    for _ in repeated(device):
        with fd.profile() as p:
            found = second(x).numpy()
    v = np.array([0.5, -0.3])
    np.testing.assert_allclose(found, 2 * v * np.sin(v) - 4 * np.cos(v), rtol=1e-5)
    if device.base.fuses and fusion_compile._START > 0:
        assert (p.hits, p.single_ops) == (1, 0)


def test_an_inner_tape_over_an_outer_one_is_differentiated_piece_by_piece(device):
    """A piece of the inner tape that ended as a recording was run again on a tape that recorded it, without end."""
    w = leaf(device, 3.0)
    x = fd.tensor([2.0], device=device)
    for _ in repeated(device):
        inner = fd.grad(lambda y: (y * y * w).sum())(x)  # y * y is recorded, its product with w on the outer tape
        assert w.grad(inner.sum().backward()).tolist() == [4.0]


def test_a_reason_is_of_the_loss_not_of_what_else_is_alive(device):
    a, b = leaf(device, 1.0, 2.0), leaf(device, 3.0, 0.5)
    for _ in repeated(device):
        alive = a * (b * 1.0).detach(), fd.numpy.where(a > b, a, b * 0.5)
        grads = ((a * 2.0) ** 2).sum().backward()
        assert grads.explain(b).reason.name == "NOT_REACHED"
        assert alive[0].shape == (2,)


def test_what_a_result_needed_goes_with_it(device):
    """Of two results of one recording, each keeps what it needs itself."""
    for _ in repeated(device):
        a, b = leaf(device, 1.0, 2.0), leaf(device, 0.5, 0.7)
        gone = ref(b)
        h = (a.sin() * a).exp()
        loss = (h * b).sum()
        assert np.isfinite(loss.item())
        del loss, b
        assert gone() is None
        np.testing.assert_allclose(h.sum().backward()[a].numpy()[0], 3.205, rtol=1e-3)


def test_a_chain_of_many_reads_is_walked_and_dropped_without_recursion(device):
    a = leaf(device, 0.5, 0.2)
    x, held = a, []
    for i in range(1500):
        x = x * 0.999 + a * 0.001
        total = x.sum()
        total.item()
        if i % 3 == 0:
            held.append(total)
    np.testing.assert_allclose(x.sum().backward()[a].numpy(), 1.0, rtol=1e-3)
    del x, total
    held.clear()


def test_zeros_of_a_where_win_in_what_was_recorded_before_it(device):
    """A contraction behind a `where` is guarded, whichever recordings the two are in."""
    for read in (False, True):
        for _ in repeated(device):
            a = leaf(device, 1.0, 2.0)
            h = (fd.tensor([[np.inf, 1.0], [2.0, 3.0]], device=device) @ a) * 2.0
            if read:
                h.numpy()
            loss = fd.where(fd.tensor([False, True], device=device), h, 0.0).tanh().sum()
            assert np.isfinite(loss.backward()[a].numpy()).all()


def test_half_types_are_rounded_after_every_op(device):
    x = fd.tensor([2.0, 1.5, 0.7], device=device)
    for _ in repeated(device):
        z = (((x.astype(fd.bfloat16) * 1.01) * 1.01) * 1.01).astype(fd.float32)
        assert z.tolist() == [2.046875, 1.546875, 0.7109375]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the resident memory from /proc")
@pytest.mark.parametrize("kept", [False, True])
def test_what_the_program_drops_is_not_held(device, kept):
    def resident():
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    w = leaf(device, *[1.0] * 256)
    held = []

    def step(i):
        batch = fd.tensor(np.full((8192, 256), i, np.float32), device=device)  # 8 MiB
        loss = (batch @ w).mean()
        if kept:
            held.append((w * 2.0).sin())  # does not need the batch
            loss.item()

    for i in range(20):
        step(i)
    before = resident()
    for i in range(40):
        step(i)
    assert resident() - before < 150  # of 320 MiB


def test_forward_and_backward_of_a_piece_are_used_from_the_same_time_on(monkeypatch, rules):
    compile_soon(monkeypatch, 4)
    a = leaf(settled(forget=True), 1.0, 2.0)
    for op in (fd.Tensor.sin, fd.Tensor.exp, lambda x: x * x):  # what is new would be compiled at once
        op(a).numpy()
    counts = a.device.base.compiler.counts.runs
    singly = []
    for _ in repeated(a.device):
        rules.clear()
        before = counts["op by op"]
        y = (a.sin() * a).exp()
        e = np.exp(np.sin(x := np.array([1.0, 2.0])) * x)
        np.testing.assert_allclose(y.numpy(), e, rtol=1e-5)
        grad = y.sum().backward()[a]
        np.testing.assert_allclose(grad.numpy(), e * (np.sin(x) + x * np.cos(x)), rtol=1e-5)
        singly.append(counts["op by op"] - before)
        assert bool(rules) == (singly[-1] > 0)  # never the forward as a whole, and once more for a backward op by op
    assert singly[0] and not singly[-1]


def test_of_small_structures_that_recur_one_in_some_is_recorded():
    a = leaf(settled(forget=True), 1.0, 2.0)
    (a * 0.9).numpy(), (a + 0.1).numpy(), a.sum().numpy()  # what is new would be compiled at once
    counts = a.device.base.compiler.counts.runs
    before = dict(counts)
    steps = 400
    x = a
    for _ in range(steps):
        x = x * 0.9 + 0.1
        assert np.isfinite(x.numpy()).all()
    np.testing.assert_allclose(x.sum().backward()[a].numpy(), 0.9**steps, rtol=1e-3)
    assert counts["compiled"] == before["compiled"]
    assert 8 < counts["op by op"] - before["op by op"] < steps / 10


def test_a_step_of_known_ops_is_whole_after_some_dozen_times(rules):
    a = leaf(settled(forget=True), 1.0, 2.0)
    for op in (fd.Tensor.sin, fd.Tensor.exp, lambda x: x * x, lambda x: x + x, fd.Tensor.sum):
        op(a).numpy()  # what is new would be compiled at once
    counts = a.device.base.compiler.counts.runs
    hits, steps = counts["hits"], 0
    while counts["hits"] == hits and steps < 100:
        steps += 1
        rules.clear()
        x = a
        for _ in range(4):
            x = (x.sin() * x).exp() + x
        loss = x.sum()
        grads = loss.backward()
        assert np.isfinite(loss.item()) and grads[a].shape == (2,)
    assert 16 < steps < 80 and not rules


def test_a_reason_is_of_the_result_not_of_what_was_recorded_with_it(device):
    """A cut behind a value that was read says which leaves were cut off, by what the value depends on."""
    for _ in repeated(device):
        a, b, c = (leaf(device, float(i + 1), 0.5) for i in range(3))
        x, y = a * 2.0 + 0.5, b * 3.0
        (x.sum() + y.sum()).item()
        grads = (y.astype("int32").astype("float32") * c).sum().backward()
        reasons = [grads.explain(w).reason.name for w in (a, b, c)]
        assert reasons == ["NOT_REACHED", "CUT_BY_INT_CAST", "PRESENT"]


def test_a_backward_that_releases_lets_go_of_what_was_kept_for_it(device):
    for _ in repeated(device):
        before = {id(x) for x in jax.live_arrays()}
        w = fd.tensor(np.linspace(-0.05, 0.04, 300 * 300).reshape(300, 300), device=device.autodiff()).require_grad()
        loss = ((w @ w).tanh() @ w).cos().sum()
        other = (w * 2).sum()
        loss.item()
        assert w.grad(loss.backward(retain_graph=False)).shape == (300, 300)
        gc.collect()
        made = [x for x in jax.live_arrays() if id(x) not in before and x.shape == (300, 300)]
        assert len(made) == 1  # the leaf
        with pytest.raises(fd.errors.GraphConsumedError):
            loss.backward()
        np.testing.assert_array_equal(w.grad(other.backward()).numpy(), np.full((300, 300), 2.0))


@pytest.mark.parametrize("device", ["compiled"], indirect=True)
@pytest.mark.parametrize(
    ("fn", "costly"),
    [
        (lambda w, x: ((h := x @ w).tanh() * h, h), {"contract": 1}),  # the result is held when the loss is read
        (lambda w, x: ((h := (x @ w).tanh()) @ w, h), {"contract": 3}),
        (lambda w, x: (fnp.linalg.eigh((x @ w).T @ x @ w)[0].sin(),), {"contract": 7}),  # rules that read other results
        (lambda w, x: (fnp.sort(x @ w).sin(),), {"contract": 1, "put_along_axis": 1}),
    ],
)
def test_costly_results_that_are_held_or_one_of_several_are_not_computed_again(device, fn, costly):
    w = fd.tensor(np.linspace(-0.5, 0.4, 9).reshape(3, 3), device=device.autodiff()).require_grad()
    x = fd.tensor(np.linspace(-1.0, 1.0, 12).reshape(4, 3) ** 2, device=device)
    plain = fd.tensor(w.numpy(), device=fd.Device.numpy().autodiff()).require_grad()
    expected = plain.grad(fn(plain, fd.tensor(x.numpy(), device=fd.Device.numpy()))[0].sum().backward()).numpy()
    for _ in repeated(device):
        outs = fn(w, x)
        loss = outs[0].sum()
        loss.item()
        np.testing.assert_allclose(loss.backward()[w].numpy(), expected, rtol=2e-4, atol=1e-6)
    plan = next(p for p in device.base.compiler.plans if p.seeds and p.call is not None)
    names = [eq.op.name for eq in plan.program(device.base).equations if eq.op.cost is Cost.COMPUTE]
    assert Counter(names) == costly
