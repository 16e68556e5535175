"""Optimisers: optax's results on Modules and pytrees, groups, frozen and shared parameters, gradients by id."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import warnings
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import functad as fd
from functad import optim, tree
from functad.errors import ArgumentError, ArgumentTypeError, StructureError
from functad.nn import Linear
from functad.optim import GradientsAccumulator, GradientsParams, MissingGradientsWarning

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype(np.float32)


class Net(fd.Module):
    def __init__(self, device=None):
        self.layers = [
            Linear(3, 4, key=fd.random.key(0), device=device),
            Linear(4, 1, key=fd.random.key(1), device=device),
        ]
        self.seen = fd.zeros(2, device=device)

    def forward(self, x):
        return self.layers[1](self.layers[0](x).tanh())


def loss(model, x):
    return (model(x) ** 2).mean()


def loss_in_jax(p):
    h = jnp.tanh(X @ p["layers.0.weight"].T + p["layers.0.bias"])
    return ((h @ p["layers.1.weight"].T + p["layers.1.bias"]) ** 2).mean()


def named(model):
    return {name: p.numpy() for name, p in model.named_parameters()}


def in_optax(tx, model, steps=3):
    p = {name: jnp.asarray(x) for name, x in named(model).items()}

    @jax.jit  # a step op by op compiles a program for each op
    def step(p, state):
        updates, state = tx.update(jax.grad(loss_in_jax)(p), state, p)
        return optax.apply_updates(p, updates), state

    state = tx.init(p)
    for _ in range(steps):
        p, state = step(p, state)
    return p


def train(opt, model, steps=3, x=X):
    state = opt.init(model)
    for _ in range(steps):
        grads = loss(model, x).backward() if model.devices[0].is_autodiff else fd.grad(loss)(model, x)
        model, state = opt.step(model, grads, state)
    return model, state


def agree(model, expected, rtol=1e-5):
    for name, x in named(model).items():
        np.testing.assert_allclose(x, expected[name], rtol=rtol, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("style", ["object", "functional"])
def test_adamw_is_optax_adamw(device, style):
    model = Net(device.autodiff() if style == "object" else device)
    new, _ = train(optim.adamw(1e-2, weight_decay=0.1), model, x=fd.tensor(X, device=device))
    agree(new, in_optax(optax.adamw(1e-2, weight_decay=0.1), model))
    assert [p.id for p in new.parameters()] == [p.id for p in model.parameters()]
    assert all(p.is_require_grad is (style == "object") for p in new.parameters())
    assert new.devices == [device] and new.seen is not None and new.training


@pytest.mark.parametrize("name", ["sgd", "adam", "rmsprop", "lion", "lamb", "adafactor"])
def test_optimisers_by_name(name):
    model = Net()
    new, _ = train(getattr(optim, name)(1e-2), model, steps=2)
    agree(new, in_optax(getattr(optax, name)(1e-2), model, 2))


def test_signatures_are_optax_own():
    assert list(inspect.signature(optim.adamw).parameters) == list(inspect.signature(optax.adamw).parameters)
    assert "adamw" in dir(optim) and "cosine_decay_schedule" in dir(optim)
    assert repr(optim.adam(1e-3, b1=0.5)) == "adam(0.001, b1=0.5)"
    with pytest.raises(AttributeError, match=r"no 'adamm'.*dir\(fd\.optim\)"):
        _ = optim.adamm
    with pytest.raises(TypeError):
        optim.adam(1e-3, beta=2)
    with pytest.raises(ArgumentError, match="must not be negative, got -1"):
        optim.sgd(-1.0)


def test_schedules_chains_and_clipping():
    model = Net()
    rate = optim.exponential_decay(0.1, 1, 0.5)
    new, _ = train(optim.chain(optim.clip_by_norm(0.01), optim.sgd(rate, momentum=0.9)), model)
    agree(
        new,
        in_optax(
            optax.chain(optax.clip_by_global_norm(0.01), optax.sgd(optax.exponential_decay(0.1, 1, 0.5), momentum=0.9)),
            model,
        ),
    )
    new, _ = train(optim.chain(optim.clip_by_value(1e-3), optax.adam(0.1)), model)
    agree(new, in_optax(optax.chain(optax.clip(1e-3), optax.adam(0.1)), model))
    new, _ = train(optim.from_optax(optax.sgd(0.1)), model)
    agree(new, in_optax(optax.sgd(0.1), model))
    for bad in (optim.clip_by_norm, optim.clip_by_value):
        with pytest.raises(ArgumentError, match="negative"):
            bad(-1)
    with pytest.raises(ArgumentTypeError, match=r"optax\.adam"):
        optim.from_optax(3)


def test_another_learning_rate_does_not_compile_again():
    model = Net()
    opt = optim.sgd(0.5)
    state = opt.init(model)
    grads = fd.grad(loss)(model, X)
    traced = []
    with jax.log_compiles(False):
        one, state = opt.step(model, grads, state)
        plan = next(iter(opt._plans.values()))
        call = next(iter(plan._calls.values()))[0]
        traced.append(call._cache_size())
        two, state = opt.step(model, grads, state, learning_rate=0.25)
        three, _ = opt.step(model, grads, state)  # it stays
        four, _ = opt.step(model, grads, state.with_hyperparams(learning_rate=fd.tensor(1.0)))
        traced.append(call._cache_size())
    assert traced == [1, 1]
    w, g = model.layers[0].weight.numpy(), grads.layers[0].weight.numpy()
    for m, rate in ((one, 0.5), (two, 0.25), (three, 0.25), (four, 1.0)):
        np.testing.assert_allclose(m.layers[0].weight.numpy(), w - rate * g, rtol=1e-6)
    with pytest.raises(ArgumentError, match="no momentum to set; the state has: learning_rate"):
        state.with_hyperparams(momentum=1)
    with pytest.raises(fd.errors.ImmutableError, match="with_hyperparams"):
        state.learning_rate = 1


def test_frozen_parameters_have_no_state_and_stay(device):
    model = Net(device.autodiff()).freeze("layers.0")
    x = fd.tensor(X, device=device)
    opt = optim.adamw(0.1, weight_decay=1.0)
    new, state = train(opt, model, x=x)
    assert state._form.names == ("layers.1.weight", "layers.1.bias")
    assert np.array_equal(new.layers[0].weight.numpy(), model.layers[0].weight.numpy())
    assert not np.array_equal(new.layers[1].weight.numpy(), model.layers[1].weight.numpy())
    assert new.layers[0].weight.is_frozen
    grads = loss(new.unfreeze("layers.0.bias"), x).backward()
    with pytest.raises(StructureError, match=r"layers\.0\.bias came.*opt\.init"):
        opt.step(new.unfreeze("layers.0.bias"), grads, state)
    with pytest.raises(ArgumentError, match="all its parameters are frozen"):
        opt.init(model.no_grad())


class Tied(fd.Module):
    first: fd.Param
    second: fd.Param

    def forward(self, x):
        return (self.first * x * self.second).sum()


@pytest.mark.parametrize("style", ["object", "functional", "forked places"])
def test_a_shared_parameter_is_updated_once(style):
    w = fd.Param(3.0, device=fd.Device.cpu().autodiff() if style != "functional" else None)
    model = Tied(w, w)
    if style == "forked places":  # one id, two leaves
        model = tree.map(lambda p: p.detach(), model)
    grads = fd.grad(lambda m: m(2.0))(model) if style == "functional" else model(2.0).backward()
    opt = optim.adam(0.5)
    state = opt.init(model)
    assert state._form.names == ("first",)
    new, _ = optim.sgd(0.5).step(model, grads, optim.sgd(0.5).init(model))
    assert new.first.item() == new.second.item() == 3.0 - 0.5 * 12.0
    if style != "functional":
        assert len(new(2.0).backward()) == 1
        assert len(GradientsParams.from_grads(grads, model)) == 1


def test_groups_with_their_own_rates():
    model = Net()
    grads = fd.grad(loss)(model, X)
    opt = optim.param_groups(
        ("*bias", optim.sgd(1.0)),
        (fd.ParamGroup(lambda path, p: p.shape[0] == 4), optim.sgd(0.5)),
        default=None,
    )
    state = opt.init(model)
    new, state = opt.step(model, grads, state)
    rates = {"layers.0.weight": 0.5, "layers.0.bias": 1.0, "layers.1.weight": 0.0, "layers.1.bias": 1.0}
    for (name, p), q, g in zip(model.named_parameters(), new.parameters(), grads.parameters(), strict=True):
        np.testing.assert_allclose(q.numpy(), p.numpy() - rates[name] * g.numpy(), rtol=1e-6, err_msg=name)
    again, _ = opt.step(model, grads, state, learning_rate=2.0)
    np.testing.assert_allclose(
        again.layers[0].bias.numpy(), model.layers[0].bias.numpy() - 2 * grads.layers[0].bias.numpy(), rtol=1e-6
    )
    with pytest.raises(ArgumentError, match=r"layers\.0\.weight, layers\.1\.weight are in no group.*default="):
        optim.param_groups(("*bias", optim.sgd(1.0))).init(model)
    with pytest.raises(ArgumentError, match="matches none"):
        optim.param_groups(("conv", optim.sgd(1.0)), default=None).init(model)


def test_weight_decay_masks_are_groups():
    model = Net()
    new, _ = train(optim.adamw(1e-2, weight_decay=1.0, mask=fd.ParamGroup("*weight")), model)
    mask = {name: name.endswith("weight") for name in named(model)}
    agree(new, in_optax(optax.adamw(1e-2, weight_decay=1.0, mask=mask), model))
    inner = optim.param_groups(
        (Linear, optim.adamw(1e-2, weight_decay=1.0, mask=fd.ParamGroup("*weight"))), default=None
    )
    agree(train(inner, model)[0], in_optax(optax.adamw(1e-2, weight_decay=1.0, mask=mask), model))


def test_pytrees_of_tensors(device):
    params = {
        "w": fd.tensor([1.0, 2.0], device=device),
        "n": fd.tensor(3, device=device),
        "deep": [fd.tensor(4.0, device=device), None],
    }

    def f(p):
        return (p["w"] ** 2).sum() * p["deep"][0]

    opt = optim.sgd(0.1)
    state = opt.init(params)
    new, state = opt.step(params, fd.grad(f)(params), state)
    np.testing.assert_allclose(new["w"].numpy(), [1.0 - 0.8, 2.0 - 1.6], rtol=1e-6)
    assert new["n"].item() == 3 and new["deep"][1] is None
    assert new["deep"][0].item() == 3.5
    arrays = {"w": jnp.ones(2)}
    new, _ = opt.step(arrays, {"w": jnp.ones(2)}, opt.init(arrays))
    assert isinstance(new["w"], fd.Tensor)
    leaf = fd.tensor(1.0, device=device.autodiff()).require_grad()
    new, _ = opt.step(leaf, (leaf * 3).backward(), opt.init(leaf))
    np.testing.assert_allclose(new.item(), 0.7, rtol=1e-6)
    assert new.is_require_grad
    two = (Net(), Linear(1, 1, key=fd.random.key(3)))
    state = optim.adam(0.1).init(two)
    assert "0.layers.0.weight" in state._form.names and "1.bias" in state._form.names


def test_order_two_and_checkpointing_devices():
    for device in (fd.Device.cpu().autodiff(order=2), fd.Device.cpu().autodiff().gradient_checkpointing()):
        new, _ = train(optim.sgd(0.1), Net(device))
        p = new.layers[0].weight
        assert p.is_require_grad and p.device.order == device.order and p.device.checkpointing is device.checkpointing
        agree(new, in_optax(optax.sgd(0.1), Net()))


def test_half_and_double_precision(x64):
    for dtype in ("bfloat16", "float64"):
        model = Net().astype(dtype)
        new, _ = train(optim.adam(1e-3), model, steps=1, x=X.astype("float64"))
        assert {str(p.dtype) for p in new.parameters()} == {dtype}
    agree(new, in_optax(optax.adam(1e-3), model, 1), rtol=1e-5)
    p = {name: jnp.asarray(x) for name, x in named(model).items()}
    assert p["layers.0.bias"].dtype == jnp.float64


def test_float64_on_numpy_needs_no_x64():
    model = Net(fd.Device.numpy()).astype("float64")
    x = fd.tensor(X, dtype="float64", device=fd.Device.numpy())
    opt = optim.adam(0.1)
    grads = fd.grad(loss)(model, x)
    new, _ = opt.step(model, grads, opt.init(model))
    w, g = model.layers[0].weight.numpy(), grads.layers[0].weight.numpy()
    assert new.layers[0].weight.dtype == np.float64
    np.testing.assert_allclose(new.layers[0].weight.numpy(), w - 0.1 * g / (np.abs(g) + 1e-8), rtol=1e-9)


# --- inside transforms


def test_inside_jit():
    opt = optim.adamw(1e-2)

    @fd.jit
    def step(model, state, x):
        value, grads = fd.value_and_grad(loss)(model, x)
        model, state = opt.step(model, grads, state)
        return model, state, value

    model = start = Net()
    state = opt.init(model)
    for _ in range(3):
        model, state, _ = step(model, state, X)
    agree(model, in_optax(optax.adamw(1e-2), start))
    assert step.compilations == 1
    assert [p.id for p in model.parameters()] == [p.id for p in start.parameters()]
    model, state = opt.step(model, fd.grad(loss)(model, X), state)  # and eagerly from there
    agree(model, in_optax(optax.adamw(1e-2), start, 4))

    @jax.jit
    def in_jax(model, state):
        return opt.step(model, fd.grad(loss)(model, X), state)

    model, state = start, opt.init(start)
    for _ in range(2):
        model, state = in_jax(model, state)
    agree(model, in_optax(optax.adamw(1e-2), start, 2))


def test_an_ensemble_trains_as_its_members():
    opt = optim.adam(0.1)
    models = fd.vmap(lambda k: Linear(3, 1, key=k))(fd.random.split(fd.random.key(0), 3))
    states = fd.vmap(opt.init)(models)
    grads = fd.vmap(fd.grad(loss), in_axes=(0, None))(models, fd.tensor(X))
    new, _ = fd.vmap(opt.step)(models, grads, states)
    for i in range(3):
        one = tree.map(lambda x, i=i: x[i], models)
        expected, _ = opt.step(one, fd.grad(loss)(one, X), opt.init(one))
        np.testing.assert_allclose(new.weight.numpy()[i], expected.weight.numpy(), rtol=1e-5)


def test_a_step_can_be_differentiated():
    """One step of gradient descent inside a loss, as in meta-learning: d/dw (w - r w)^2 / 2 = (1 - r)^2 w."""
    opt = optim.sgd(0.25)

    class Scalar(fd.Module):
        w: fd.Param

    def outer(m):
        inner, _ = opt.step(m, fd.grad(lambda m: m.w * m.w * 0.5)(m), opt.init(m))
        return inner.w * inner.w * 0.5

    np.testing.assert_allclose(fd.grad(outer)(Scalar(fd.tensor(2.0))).w.item(), 0.75**2 * 2, rtol=1e-6)


def test_line_searches_get_the_value_and_the_function():
    opt = optim.lbfgs()
    model = Net()
    state = opt.init(model)

    def objective(m):
        return loss(m, X)

    before = objective(model).item()
    for _ in range(5):
        value, grads = fd.value_and_grad(objective)(model)
        model, state = opt.step(
            model, grads, state, value=value, grad=dict(grads.named_parameters()), value_fn=objective
        )
    assert objective(model).item() < before / 10


# --- gradients by parameter


def test_gradients_params(device):
    model = Net(device.autodiff())
    grads = loss(model, fd.tensor(X, device=device)).backward()
    by_id = GradientsParams.from_grads(grads, model)
    assert len(by_id) == 4 and model.layers[0].bias in by_id and model.layers[0].bias.id in by_id
    assert by_id[model.layers[1].weight].tolist() == grads[model.layers[1].weight].tolist()
    assert by_id.tree(model).seen is None
    assert len(GradientsParams.from_grads(fd.grad(loss)(model.valid(), fd.tensor(X, device=device)), model)) == 4
    doubled = by_id.map(lambda g: g * 2)
    np.testing.assert_allclose(doubled[model.layers[0].bias].numpy(), 2 * by_id[model.layers[0].bias].numpy())
    opt = optim.sgd(0.1)
    for source in (grads, by_id, grads.tree(model), fd.grad(loss)(model.valid(), fd.tensor(X, device=device))):
        new, _ = opt.step(model, source, opt.init(model))
        agree(new, in_optax(optax.sgd(0.1), model, 1))
    assert by_id.remove(model.layers[0].bias) is not None and len(by_id) == 3
    with pytest.raises(fd.errors.NoGradientError, match="3 others"):
        by_id[model.layers[0].bias]


def test_missing_gradients_are_named_and_explained(device):
    model = Net(device.autodiff())
    x = fd.tensor(X, device=device)
    grads = (model.layers[0](x).detach() + model.layers[1].bias).sum().backward()
    with pytest.warns(MissingGradientsWarning) as record:
        by_id = GradientsParams.from_grads(grads, model)
    text = str(record[0].message)
    assert len(by_id) == 1 and text.startswith("3 parameter(s) got no gradient")
    assert "layers.0.weight: CUT_BY_DETACH" in text and "layers.1.weight: NOT_REACHED" in text
    opt = optim.sgd(0.1)
    with pytest.warns(MissingGradientsWarning, match=r"layers\.0\.weight: CUT_BY_DETACH"):
        new, _ = opt.step(model, grads, opt.init(model))
    assert np.array_equal(new.layers[0].weight.numpy(), model.layers[0].weight.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(GradientsParams.from_grads(grads, model.freeze(["layers.0", "layers.1.weight"]))) == 1
    other = Net(device.autodiff())
    with pytest.raises(
        ArgumentError, match=r"none of the 4 parameters has a gradient\. layers\.0\.weight: NOT_REACHED"
    ):
        opt.step(other, grads, opt.init(other))


def test_a_moved_model_says_where_its_gradients_are():
    model = Net(fd.Device.cpu().autodiff())
    with pytest.warns(fd.errors.IntermediateParamsWarning):
        moved = model.to_device(fd.Device.numpy())
    grads = loss(moved, fd.tensor(X, device=fd.Device.numpy())).backward()
    opt = optim.sgd(0.1)
    with pytest.raises(ArgumentError, match="INTERMEDIATE"):
        opt.step(moved, grads, opt.init(moved))
    assert len(GradientsParams.from_grads(grads, model)) == 4


def test_accumulator_is_the_gradient_of_the_whole_batch(device):
    model = Net(device.autodiff())
    x = fd.tensor(X, device=device)
    total = GradientsAccumulator()
    for part in x.split(4):
        total.accumulate(model, loss(model, part).backward())
    assert (total.count, len(total)) == (4, 4)
    mean = total.grads(mean=True)
    assert total.count == 0 and len(total) == 0
    whole = loss(model, x).backward()
    for p in model.parameters():
        np.testing.assert_allclose(mean[p].numpy(), whole[p].numpy(), rtol=1e-5, atol=1e-6)
    new, _ = optim.sgd(0.1).step(model, mean, optim.sgd(0.1).init(model))
    agree(new, in_optax(optax.sgd(0.1), model, 1))


def test_accumulating_half_types_does_not_stall():
    """K18: 300 ones in bfloat16 stop at 256."""
    w = Tied(fd.Param(fd.ones((), dtype="bfloat16")), fd.Param(fd.ones((), dtype="bfloat16")))
    total = GradientsAccumulator()
    for _ in range(300):
        total.accumulate(w, GradientsParams({p.id: fd.ones((), dtype="bfloat16") for p in w.parameters()}))
    g = total.grads()[w.first]
    assert g.item() == 300.0 and g.dtype == fd.bfloat16


# --- the state


def test_the_state_is_a_pytree_and_pickles():
    opt = optim.adam(1e-3)
    model = Net()
    model, state = opt.step(model, fd.grad(loss)(model, X), opt.init(model))
    copies = [pickle.loads(pickle.dumps(state)), tree.map(lambda x: x, state), jax.tree.map(lambda x: x, state)]
    grads = fd.grad(loss)(model, X)
    expected, _ = opt.step(model, grads, state)
    for copied in copies:
        agree(opt.step(model, grads, copied)[0], named(expected))
    assert "4 parameters" in repr(state)
    with pytest.raises(ArgumentTypeError, match=r"opt\.init\(model\)"):
        opt.step(model, state, grads)


def test_an_optimiser_keeps_no_model_alive():
    opt = optim.adamw(0.1, mask=fd.ParamGroup("*weight"))
    model = Net(fd.Device.cpu().autodiff())
    gone = [weakref.ref(model), *map(weakref.ref, model.parameters())]
    state = opt.init(model)
    model, state = opt.step(model, loss(model, X).backward(), state)
    assert [ref() for ref in gone] == [None] * 5


@pytest.mark.parametrize(("mistake", "text"), [
    (lambda: optim.Adam(1e-3), r"fd\.optim\.adam\(learning_rate\)"),
    (lambda: optim.SGD(1e-3), r"fd\.optim\.sgd"),
    (lambda: optim.lr_scheduler, r"a schedule as the learning rate"),
    (lambda: optim.adam(lr=1e-3), r"learning_rate="),
    (lambda: optim.adam(1e-3).update, r"opt\.step\(model, grads, state\)"),
    (lambda: optim.adam(1e-3).zero_grad(), r"not accumulated"),
])  # fmt: skip
def test_torch_habits_are_told_what_to_write(mistake, text):
    with pytest.raises(fd.FunctadError, match=text):
        mistake()


def test_without_optax_the_extra_is_named():
    code = (
        "import sys; sys.modules['optax'] = None\n"
        "import functad as fd\n"
        "for use in (lambda: fd.optim.adam(1e-3), lambda: fd.optim.clip_by_norm(1.0).init(fd.ones(2))):\n"
        "    try: use()\n"
        "    except fd.errors.MissingDependencyError as e: assert 'functad[optim]' in str(e)\n"
        "    else: raise SystemExit('no error')\n"
        "fd.optim.GradientsParams(), dir(fd.optim)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("run", [lambda f: f, fd.jit])
@pytest.mark.parametrize("other", [
    lambda model: optim.adam(0.1).init(Linear(2, 3)),
    lambda model: optim.adam(0.1).init(Linear(1, 2)),
    lambda model: optim.sgd(0.1).init(model),
])  # fmt: skip
def test_a_state_of_other_shapes_or_of_another_optimiser_is_refused(run, other):
    model = Linear(2, 2)
    grads = fd.grad(lambda m: m(fd.ones(2)).sum())(model)
    opt = optim.adam(0.1)
    with pytest.raises(StructureError, match=r"the state was made .* state = opt\.init\(model\)"):
        run(lambda state: opt.step(model, grads, state))(other(model))


def test_a_missing_gradient_leaves_what_is_not_finite_as_it_is():
    class Two(fd.Module):
        a: fd.Param
        b: fd.Param

    device = fd.Device.numpy().autodiff()
    model = Two(fd.Param(1.0, device=device), fd.Param(float("inf"), device=device))
    opt = optim.sgd(0.25)
    with pytest.warns(optim.MissingGradientsWarning):
        new, _ = opt.step(model, (model.a * 2).backward(), opt.init(model))
    assert (new.a.item(), new.b.item()) == (0.5, float("inf"))


def test_a_group_that_others_leave_nothing_is_refused():
    opt = optim.param_groups(("*", optim.sgd(0.1)), ("*bias", optim.sgd(1.0)))
    with pytest.raises(ArgumentError, match="groups before it"):
        opt.init(Linear(2, 2))


@pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=str)
def test_steps_inside_jit_and_grad_on_both_devices(device):
    model = Linear(2, 2, key=fd.random.key(0), device=device)
    x = fd.ones((3, 2), device=device)
    opt = optim.adam(0.1)

    def step(model, state):
        return opt.step(model, fd.grad(lambda m: (m(x) ** 2).mean())(model), state)

    plain = step(*step(model, opt.init(model)))[0]
    compiled = fd.jit(step)
    new = compiled(*compiled(model, opt.init(model)))[0]
    assert new.weight.device == device
    np.testing.assert_allclose(new.weight.numpy(), plain.weight.numpy(), rtol=1e-5)
    through = fd.grad(lambda m: (optim.sgd(0.5).step(m, m, optim.sgd(0.5).init(m))[0].weight ** 2).sum())(model)
    np.testing.assert_allclose(through.weight.numpy(), model.weight.numpy() / 2, rtol=1e-5)


# --- whose state it is


def stepped(opt, model, state):
    return opt.step(model, fd.grad(loss)(model, X), state)


def test_the_state_of_another_model_is_refused():
    opt, a, b = optim.adam(1e-2), Net(), Net()
    state = opt.init(a)
    with pytest.raises(StructureError, match=r"layers.0.weight.*opt.init\(model\).*without_ids"):
        stepped(opt, b, state)
    a, state = stepped(opt, a, state)
    with pytest.raises(StructureError, match="another model"):
        stepped(opt, b, state)
    stepped(opt, b, state.without_ids())
    new = a.replace({"layers.0.bias": fd.Param(fd.zeros(4))})
    with pytest.raises(StructureError, match=r"layers\.0\.bias has other ids"):
        stepped(opt, new, state)


def test_a_state_goes_where_its_model_goes(tmp_path):
    opt, a, b = optim.adam(1e-2), Net(), Net()
    state = opt.init(a)
    for move in (
        lambda m: m.train().valid().train(),
        lambda m: m.astype("float32"),
        lambda m: m.fork(),
        lambda m: m.map(lambda p: p * 2),
        lambda m: pickle.loads(pickle.dumps(m)),
        lambda m: tree.map(lambda x: x * 2, m),
    ):
        stepped(opt, move(a), pickle.loads(pickle.dumps(state)))
        stepped(opt, move(a), tree.map(lambda x: x, state))
    fd.save(state, tmp_path / "state")
    stepped(opt, b, fd.load(tmp_path / "state"))  # a new process has a new model
    stepped(opt, b, fd.load(tmp_path / "state", like=opt.init(b)))


def test_compiled_steps_serve_several_models():
    opt, a, b = optim.adam(1e-2), Net(), Net()
    step = fd.jit(lambda m, s: stepped(opt, m, s))
    bump = fd.jit(lambda s: s.with_hyperparams(learning_rate=0.1))
    for model in (a, b):
        state = bump(opt.init(model))
        for _ in range(2):
            model, state = step(model, state)
        model, state = stepped(opt, model, state)
        model, state = step(model, state)
        stepped(opt, model, state)
    assert step.compilations == bump.compilations == 1
    stacked = tree.map(lambda x, y: fd.stack([x, y]), a, b)
    states = tree.map(lambda x, y: fd.stack([fd.tensor(x), fd.tensor(y)]), opt.init(a), opt.init(b))
    stacked, states = fd.vmap(lambda m, s: stepped(opt, m, s))(stacked, states)
    fd.vmap(lambda m, s: stepped(opt, m, s))(stacked, states)
    made = fd.jit(lambda key: (m := Linear(3, 1, key=key), opt.init(m)))
    for _ in range(2):
        model, state = made(fd.random.key(0))
        opt.step(model, fd.grad(lambda m: m(X).sum())(model), state)


# --- what is trained


class Table(fd.Module):
    def __init__(self):
        self.rows = fd.ones(3)


@pytest.mark.parametrize("model", [lambda: fd.nn.BatchNorm1d(4, affine=False), Table, lambda: [Table(), fd.arange(3)]])
def test_a_module_without_params_has_nothing_to_train(model):
    """Its buffers were trained, as the floats of a pytree are."""
    opt = optim.adam(0.1)
    with pytest.raises(ArgumentError, match=r"it has no Params, .* buffers.*fd\.Param"):
        opt.init(model())


def scaled(p, x):
    return ((p["net"](x) * p["scale"]) ** 2).mean()


@pytest.mark.parametrize("style", ["object", "functional", "jit"])
def test_a_float_beside_a_module_is_trained_with_it(device, style):
    """d/ds (s y)^2 = 2 s y^2; it had a gradient, and no update."""
    there = device.autodiff() if style == "object" else device
    net = fd.nn.Sequential(
        Linear(3, 1, key=fd.random.key(0), device=there), fd.nn.BatchNorm1d(1, affine=False, device=there)
    )
    scale = fd.tensor(2.0, device=there)
    p = {
        "net": net.valid() if style == "jit" else net,
        "n": fd.tensor(3, device=there),
        "scale": scale.require_grad() if style == "object" else scale,
    }
    x = fd.tensor(X, device=device)
    y2 = (net(x).numpy() ** 2).mean() if style != "jit" else (p["net"](x).numpy() ** 2).mean()
    opt = optim.sgd(0.25)
    state = opt.init(p)
    assert state._form.names == ("net.layers.0.weight", "net.layers.0.bias", "scale")

    def step(p, state, x):
        return opt.step(p, scaled(p, x).backward() if style == "object" else fd.grad(scaled)(p, x), state)

    new, state = (fd.jit(step) if style == "jit" else step)(p, state, x)
    np.testing.assert_allclose(new["scale"].item(), 2.0 - 0.25 * 2 * 2.0 * y2, rtol=1e-5)
    assert new["scale"].is_require_grad is (style == "object") and new["n"].item() == 3
    assert new["net"][1].running_mean.tolist() == [0.0]
    assert not np.array_equal(new["net"][0].weight.numpy(), net[0].weight.numpy())
    new, _ = step(new, state, x)
    assert opt.init({**p, "net": p["net"].no_grad()})._form.names == ("scale",)


def test_a_number_beside_a_module_has_no_gradient_in_object_style():
    p = (Linear(3, 1, device=fd.Device.cpu().autodiff()), 0.5)
    opt = optim.sgd(0.1)
    with pytest.warns(MissingGradientsWarning, match="1: it is a float. Make it a tensor that requires grad"):
        new, _ = opt.step(p, loss(p[0], X).backward(), opt.init(p))
    assert float(new[1]) == 0.5
    new, _ = opt.step(
        (2.0, p[0].valid()), fd.grad(lambda p: p[0] * p[1](X).sum())((2.0, p[0].valid())), opt.init((2.0, p[0].valid()))
    )
    assert float(new[0]) != 2.0


def test_norms_and_clipping_see_what_is_trained():
    """A Module-shaped gradient holds one of its buffers too, which no step uses."""

    class Shifted(fd.Module):
        w: fd.Param
        shift: fd.Tensor

        def forward(self):
            return self.w * 3.0 + self.shift * 100.0

    p = (Shifted(fd.tensor(0.0), fd.tensor(0.0)), fd.tensor(0.0))
    grads = fd.grad(lambda p: p[0]() + 4.0 * p[1])(p)
    assert grads[0].shift.item() == 100.0
    assert optim.global_norm(grads).item() == 5.0
    opt = optim.chain(optim.clip_by_norm(1.0), optim.sgd(1.0))
    new, _ = opt.step(p, grads, opt.init(p))
    np.testing.assert_allclose((new[0].w.item(), new[1].item()), (-0.6, -0.8), rtol=1e-6)


def test_accumulating_and_ids_of_pytrees():
    device = fd.Device.cpu().autodiff()
    p = {"net": Linear(3, 1, key=fd.random.key(0), device=device), "scale": fd.Param(2.0, device=device)}
    total = GradientsAccumulator()
    for part in (X[:4], X[4:]):
        total.accumulate(p, scaled(p, part).backward())
    grads = total.grads(mean=True)
    np.testing.assert_allclose(grads[p["scale"]].item(), scaled(p, X).backward()[p["scale"]].item(), rtol=1e-5)
    opt = optim.sgd(0.1)
    new, state = opt.step(p, grads, opt.init(p))
    assert new["scale"].id == p["scale"].id and new["scale"].is_require_grad
    opt.step(new, scaled(new, X).backward(), state)
    loose = {**p, "scale": p["scale"].value}
    with pytest.raises(ArgumentTypeError, match=r"'scale' of the model is no Param: make it one"):
        total.accumulate(loose, scaled(loose, X).backward())
    with pytest.raises(ArgumentTypeError, match="pass the model first"):
        total.accumulate(grads, p)


def test_forked_places_of_a_shared_parameter_in_a_pytree():
    w = fd.Param(3.0, device=fd.Device.cpu().autodiff())
    model = {"net": tree.map(lambda p: p.detach(), Tied(w, w)), "scale": fd.ones((), device=w.device).require_grad()}
    grads = (model["net"](2.0) * model["scale"]).backward()
    opt = optim.sgd(0.5)
    new, _ = opt.step(model, grads, opt.init(model))
    assert new["net"].first.item() == new["net"].second.item() == 3.0 - 0.5 * 12.0
    assert new["scale"].item() == 1.0 - 0.5 * 18.0


# --- what a step is given


@pytest.mark.parametrize("run", [lambda f: f, fd.jit])
@pytest.mark.parametrize(("given", "text"), [
    ({"lr": 1e-6}, "step: there is no argument 'lr'; write learning_rate="),
    ({"learning_rat": 1.0}, "did you mean 'learning_rate'"),
    ({"foo": 3}, r"no argument 'foo'; adam\(0\.1\) takes none but grad, learning_rate, value, value_fn"),
    ({"foo": "text"}, "no argument 'foo'"),
    ({"foo": None}, "no argument 'foo'"),
    ({"foo": [1.0, 2.0]}, "no argument 'foo'"),
    ({"closure": lambda model: 1.0}, "no argument 'closure'; write value_fn="),
    ({"weight_decay": 0.1, "value": 3.0}, "adamw"),
])  # fmt: skip
def test_an_argument_that_no_part_looks_at_is_refused(run, given, text):
    """Optax's transformations drop what they do not know: `lr=` trained on with the old rate."""
    model = Linear(3, 1)
    opt = optim.adam(0.1)
    grads = fd.grad(loss)(model, X)
    with pytest.raises(ArgumentTypeError, match=text):
        run(lambda model, state: opt.step(model, grads, state, **given))(model, opt.init(model))


def test_what_a_transformation_of_the_users_looks_at_is_taken():
    model = Linear(3, 1)
    grads = fd.grad(loss)(model, X)

    def update(updates, state, params=None, *, factor, extra_fn=None, **others):
        return jax.tree.map(lambda g: -factor * g * (1.0 if extra_fn is None else extra_fn(params)), updates), state

    opt = optim.chain(optim.from_optax(optax.GradientTransformationExtraArgs(lambda p: (), update)), optim.scale(2.0))
    state = opt.init(model)
    new, _ = opt.step(model, grads, state, factor=0.25, value=1.0)
    np.testing.assert_allclose(new.bias.numpy(), model.bias.numpy() - 0.5 * grads.bias.numpy(), rtol=1e-6)
    new, _ = opt.step(model, grads, state, factor=0.25, extra_fn=lambda m: (m.bias * 0.0 + 2.0).sum())
    np.testing.assert_allclose(new.bias.numpy(), model.bias.numpy() - grads.bias.numpy(), rtol=1e-6)
    with pytest.raises(ArgumentTypeError, match=r"asks for more than gradients: factor=.*state, factor="):
        opt.step(model, grads, state, fact=0.25)


def test_a_rate_that_follows_a_schedule_cannot_be_set():
    model = Linear(3, 1)
    grads = fd.grad(loss)(model, X)
    rate = optim.linear_schedule(0.5, 0.0, 2)
    opt = optim.sgd(rate)
    with pytest.raises(
        ArgumentTypeError, match=r"sgd\(polynomial_schedule\) has no learning_rate to set.*with a number"
    ):
        opt.step(model, grads, opt.init(model), learning_rate=0.1)
    opt = optim.inject_hyperparams(optim.sgd)(learning_rate=rate)
    state, seen = opt.init(model), []
    for step in range(3):
        old = model
        model, state = opt.step(model, grads, state)
        seen.append(state.hyperparams["learning_rate"].item())
        np.testing.assert_allclose(model.bias.numpy(), old.bias.numpy() - rate(step) * grads.bias.numpy(), rtol=1e-6)
    assert seen == [0.5, 0.25, 0.0]
    with pytest.raises(ArgumentError, match="learning_rate follows a schedule"):
        opt.step(model, grads, state, learning_rate=0.1)


def test_hyperparams_are_tensors():
    opt, model = optim.adam(0.5), Linear(3, 1)
    state = opt.init(model)
    step = fd.jit(lambda model, state: opt.step(model, fd.grad(loss)(model, X), state))
    for each in (state, opt.step(model, fd.grad(loss)(model, X), state)[1], step(model, state)[1]):
        for one in (
            each,
            each.with_hyperparams(learning_rate=0.5),
            each.with_hyperparams(learning_rate=fd.tensor(0.5)),
        ):
            assert (
                type(one.hyperparams["learning_rate"]) is fd.Tensor and one.hyperparams["learning_rate"].item() == 0.5
            )


@pytest.mark.parametrize(("opt", "text"), [
    (optim.lbfgs(), r"lbfgs\(\) asks for more than gradients: value=loss.*; value_fn=f.*state, value=loss, value_fn=f\)"),
    (optim.chain(optim.sgd(0.1), optim.reduce_on_plateau()), r"asks for more than gradients: value=loss, a number\. Write"),
    (optim.polyak_sgd(), r"value=loss"),
])  # fmt: skip
@pytest.mark.parametrize("run", [lambda f: f, fd.jit])
def test_what_an_optimiser_asks_for_is_said(opt, text, run):
    model = Linear(3, 1)
    grads = fd.grad(loss)(model, X)
    with pytest.raises(ArgumentTypeError, match=text):
        run(lambda model, state: opt.step(model, grads, state))(model, opt.init(model))
    new, _ = opt.step(model, grads, opt.init(model), value=loss(model, X), value_fn=lambda m: loss(m, X))
    assert loss(new, X).item() < loss(model, X).item()


@pytest.mark.parametrize("inner", [optim.sgd, optax.sgd])
def test_optimisers_that_optax_makes_as_objects(inner):
    """MultiSteps: the mean of 2 gradients at every 2nd step."""
    model = Linear(3, 1)
    grads = fd.grad(loss)(model, X)
    opt = optim.MultiSteps(inner(0.5), every_k_schedule=2)
    state = opt.init(model)
    one, state = opt.step(model, grads, state)
    assert np.array_equal(one.bias.numpy(), model.bias.numpy())
    two, state = opt.step(one, grads.map(lambda g: g * 3.0), state)
    np.testing.assert_allclose(two.bias.numpy(), model.bias.numpy() - 0.5 * 2.0 * grads.bias.numpy(), rtol=1e-6)
    assert repr(optim.MultiSteps(optim.sgd(0.5), 2)) == "MultiSteps(sgd(0.5), 2)"
    assert isinstance(optim.from_optax(optax.MultiSteps(optax.sgd(0.5), 2)), optim.Optimizer)
    with pytest.raises(AttributeError, match=r"no 'lookahead': .*fd\.tree\.map"):
        _ = optim.lookahead


@pytest.mark.parametrize("factory", [
    optim.sgd,
    optax.sgd,
    lambda learning_rate: optim.chain(optim.clip_by_norm(1e9), optim.sgd(learning_rate)),
])  # fmt: skip
def test_injected_numbers_can_be_set(factory):
    model = Linear(3, 1)
    grads = fd.grad(loss)(model, X)
    opt = optim.inject_hyperparams(factory)(learning_rate=0.5)
    state = opt.init(model)
    new, state = opt.step(model, grads, state)
    np.testing.assert_allclose(new.bias.numpy(), model.bias.numpy() - 0.5 * grads.bias.numpy(), rtol=1e-6)
    new, state = opt.step(model, grads, state, learning_rate=0.25)
    np.testing.assert_allclose(new.bias.numpy(), model.bias.numpy() - 0.25 * grads.bias.numpy(), rtol=1e-6)
    decayed = optim.inject_hyperparams(optim.adamw)(0.1, weight_decay=0.0, mask=fd.ParamGroup("weight"))
    new, _ = decayed.step(model, grads, decayed.init(model).with_hyperparams(weight_decay=1.0))
    still, _ = decayed.step(model, grads, decayed.init(model))
    assert not np.array_equal(new.weight.numpy(), still.weight.numpy()) and (new.bias == still.bias).all().item()


def test_a_state_that_is_made_inside_a_gradient_is_compiled_once():
    opt = fd.optim.adam(0.1)

    def tuned(w):
        state = opt.init(w)
        new, _ = opt.step(w, fd.grad(lambda v: (v * v).sum())(w), state)
        return (new * new).sum()

    step = fd.grad(tuned)
    for _ in range(3):
        step(fd.tensor([1.0, 2.0]))
    with fd.profile() as p:
        step(fd.tensor([1.0, 3.0]))
    assert not [name for name in p.op_compilations if "init" in name or "update" in name]


def test_python_floats_are_trained_as_tensors_are():
    """`init` asked them for a dtype."""
    opt, params = fd.optim.sgd(0.5), {"w": 1.5, "v": fd.tensor(2.0)}
    params, _ = opt.step(params, {"w": 1.0, "v": fd.tensor(1.0)}, opt.init(params))
    assert (params["w"].item(), params["v"].item()) == (1.0, 1.5)
