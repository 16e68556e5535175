"""What users of PyTorch, equinox, flax and JAX write: it works, or a functad error says what to write instead."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import pickle

import jax
import numpy as np
import pytest
import scipy.special

import functad as fd
from functad import nn
from functad.nn import functional as F

DEVICE = fd.Device.cpu().autodiff()


class Here:
    """What a line of a user's program has at hand."""

    def __init__(self):
        self.model = nn.Linear(3, 2, key=fd.random.key(0), device=DEVICE)
        self.x = fd.ones((4, 3))
        self.w = fd.tensor([1.0, 2.0], device=DEVICE).require_grad()
        self.opt = fd.optim.adam(1e-3)

    def loss(self):
        return self.model(self.x).sum()


@pytest.fixture(scope="module")
def here():
    return Here()


def set_attribute(name, value=None):
    return lambda h: setattr(h.w, name, value)


def each_parameter(line):
    def run(h):
        for p in h.model.parameters():
            line(p)

    return run


def in_place(p):
    p += 1.0


def in_place_data(p):
    p.data -= 0.1 * p.grad


def without_call(h):
    with fd.no_grad:
        pass


REFUSED = {
    # PyTorch
    "x.size(0)": (lambda h: h.x.size(0), "x.shape[0]"),
    "x.size()": (lambda h: h.x.size(), "x.shape"),
    "x.requires_grad": (lambda h: h.x.requires_grad, "is_require_grad"),
    "x.requires_grad =": (set_attribute("requires_grad", True), "x = x.require_grad()"),
    "x.data": (lambda h: h.x.data, "without_autodiff"),
    "x.data =": (set_attribute("data", 1.0), "model.map"),
    "w.grad.norm()": (lambda h: h.w.grad.norm(), "grads = loss.backward()"),
    "w.grad.zero_()": (lambda h: h.w.grad.zero_(), "grads = loss.backward()"),
    "0.1 * w.grad": (lambda h: 0.1 * h.w.grad, "grads = loss.backward()"),
    "w - w.grad": (lambda h: h.w - h.w.grad, "grads = loss.backward()"),
    "if w.grad": (lambda h: bool(h.w.grad), "grads = loss.backward()"),
    "w.grad = None": (set_attribute("grad"), "needs no zeroing"),
    "w.grad(loss)": (lambda h: h.w.grad(3), "what backward() returned"),
    "p += 1": (each_parameter(in_place), "opt.step(model, grads, state)"),
    "p.data -= lr * p.grad": (each_parameter(in_place_data), "opt.step(model, grads, state)"),
    "model.train(False)": (lambda h: h.model.train(False), "model.valid()"),
    "model.eval()": (lambda h: h.model.eval(), "model.valid()"),
    "model.cuda()": (lambda h: h.model.cuda(), "fork"),
    "model.state_dict()": (lambda h: h.model.state_dict(), "named_parameters"),
    "model.buffers()": (lambda h: h.model.buffers(), "named_buffers"),
    "optimizer.step()": (lambda h: h.opt.step(), "model, state = opt.step(model, grads, state)"),
    "optimizer.step(loss)": (lambda h: h.opt.step(h.loss()), "model, state = opt.step(model, grads, state)"),
    "step(model, loss, state)": (
        lambda h: h.opt.step(h.model, h.loss(), h.opt.init(h.model)),
        "opt.step(model, loss.backward(), state)",
    ),
    "optimizer.zero_grad()": (lambda h: h.opt.zero_grad(), "nothing"),
    "adam(parameters)": (lambda h: fd.optim.adam(h.model.parameters()), "opt.init(model)"),
    "adam(lr=)": (lambda h: fd.optim.adam(lr=1e-3), "learning_rate="),
    "with no_grad:": (without_call, "with fd.no_grad():"),
    "Linear(10)": (lambda h: nn.Linear(10), "'out_features'"),
    "device='cuda:1'": (lambda h: nn.Linear(2, 3, device="cuda:1"), "Linear: device must be a Device"),
    "a device's name": (lambda h: fd.ones(2, device="cuda:1"), "fd.Device.gpu(1)"),
    "Conv2d(device='cpu')": (lambda h: nn.Conv2d(2, 3, 3, device="cpu"), "fd.Device.cpu()"),
    "to_device('cpu')": (lambda h: h.x.to_device("cpu"), "fd.Device.cpu()"),
    "norm(p=2)": (lambda h: h.x.norm(p=2), "ord="),
    "grads.weight": (lambda h: h.loss().backward().weight, "grads.tree(model)"),
    "DataLoader": (lambda h: fd.DataLoader, "iterable"),
    # in place, and names that are elsewhere
    "x.fill_": (lambda h: h.x.fill_(0), "fd.full_like"),
    "x.normal_": (lambda h: h.x.normal_(), "fd.random.normal"),
    "x.index_put_": (lambda h: h.x.index_put_, "x.at[indices]"),
    "x.zero_": (lambda h: h.x.zero_(), "fd.zeros_like(x)"),
    "x.add_": (lambda h: h.x.add_(1), "x.add("),
    "FloatTensor": (lambda h: fd.FloatTensor([1.0]), "fd.tensor"),
    "fd.print": (lambda h: fd.print, "print(x)"),
    "fd.inf": (lambda h: fd.inf, "fd.numpy.inf"),
    "fd.linalg": (lambda h: fd.linalg, "fd.numpy.linalg"),
    "fd.jacobian": (lambda h: fd.jacobian, "fd.jacrev"),
    "fd.Generator": (lambda h: fd.Generator(), "fd.random.key"),
    "random.PRNGKey": (lambda h: fd.random.PRNGKey(0), "fd.random.key"),
    "Device.cuda": (lambda h: fd.Device.cuda(), "fd.Device.gpu(0)"),
    "Device.tpu": (lambda h: fd.Device.tpu(), "enumerate('tpu')"),
    "fd.device('cuda')": (lambda h: fd.device("cuda"), "fd.Device.gpu(0)"),
    "sgd(weight_decay=)": (lambda h: fd.optim.sgd(0.1, weight_decay=0.1), "add_decayed_weights"),
    "adam(weight_decay=)": (lambda h: fd.optim.adam(0.1, weight_decay=0.1), "adamw"),
    "rmsprop(alpha=)": (lambda h: fd.optim.rmsprop(0.1, alpha=0.9), "decay="),
    "sgd(foo=)": (lambda h: fd.optim.sgd(0.1, foo=1), "the arguments are learning_rate, momentum"),
    "Linear(foo=)": (lambda h: nn.Linear(2, 3, foo=1), "the arguments are in_features, out_features"),
    "Conv2d(kernel=)": (lambda h: nn.Conv2d(1, 2, kernel=3), "kernel_size="),
    "Dropout(rate=)": (lambda h: nn.Dropout(rate=0.5), "p="),
    "hvp(f)(x, v)": (lambda h: fd.hvp(lambda x: x.sum())(h.x, h.x), "fd.hvp(f, (x,), (v,))"),
    "x.repeat(1, 2)": (lambda h: h.x.repeat(1, 2), "x.tile((1, 2))"),
    "x.repeat(1, 2, 3)": (lambda h: h.x.repeat(1, 2, 3), "x.tile"),
    "step(grads, model, state)": (
        lambda h: h.opt.step(h.loss().backward(), h.model, h.opt.init(h.model)),
        "(model, grads, state)",
    ),
    "f'{x:.2f}'": (lambda h: f"{h.x:.2f}", "x.tolist()"),
    "item() in jit": (
        lambda h: fd.jit(lambda x: x.sum().item())(h.x),
        "return the value from the function and read it",
    ),
    "if flag in jit": (lambda h: fd.jit(lambda x, flag: x if flag else -x)(h.x, True), "static_argnums"),
    "item() in vmap": (lambda h: fd.vmap(lambda x: x.sum().item())(h.x), "item(): under vmap"),
    "fd.masked_fill": (lambda h: fd.masked_fill(h.x, h.x > 0, 0.0), "x.mask_fill(mask, value)"),
    "fd.backward": (lambda h: fd.backward(h.loss()), "loss.backward()"),
    "fnp.random": (lambda h: fd.numpy.random.rand(2), "fd.random.normal(fd.random.key(0), shape)"),
    "fd.BALANCED": (lambda h: fd.BALANCED, "fd.GradientCheckpointing.BALANCED"),
    "Linear('a', 3)": (lambda h: nn.Linear("a", 3), "Linear: in_features must be an int, got 'a'"),
    "Linear(3, 2.5)": (lambda h: nn.Linear(3, 2.5), "Linear: out_features must be an int, got 2.5"),
    "a target to broadcast": (
        lambda h: F.mse_loss(h.x, h.x[:, :1]),
        "Write target.broadcast_to((4, 3)) if you mean it.",
    ),
    "an input to broadcast": (lambda h: F.l1_loss(h.x[:, :1], h.x), "Write input.broadcast_to((4, 3)) if you mean it."),
    "a target to reshape": (lambda h: F.huber_loss(h.x, fd.ones(12)), "Write target.reshape((4, 3))."),
    "a target of another size": (lambda h: F.mse_loss(h.x, fd.ones((4, 2))), "Give a target of shape (4, 3)."),
    "a number too large": (lambda h: fd.tensor(2**40, dtype="int32"), "the value 1099511627776 does not fit int32"),
    "devices of x @ y": (
        lambda h: h.x @ fd.ones((3, 2), device=fd.Device.numpy()),
        "matmul or einsum: its inputs live",
    ),
    "Tensor([1, 2])": (lambda h: fd.Tensor([1, 2]), "fd.tensor([1, 2])"),
    "x.autodiff(order=2)": (lambda h: h.x.autodiff(order=2), "x.device.autodiff(order=2).lift(x)"),
    "x.autodiff(2)": (lambda h: h.x.autodiff(2), "x.device.autodiff(order=2).lift(x)"),
    "model.freeze()": (lambda h: h.model.freeze(), "model.freeze('*') or model.no_grad()"),
    "model.unfreeze()": (lambda h: h.model.unfreeze(), "model.unfreeze('*')"),
    "grad(wrt=)": (lambda h: fd.grad(lambda x: x, wrt=0), "argnums="),
    "value_and_grad(wrt=)": (lambda h: fd.value_and_grad(lambda x: x, wrt=0), "argnums="),
    "jacrev(wrt=)": (lambda h: fd.jacrev(lambda x: x, wrt=0), "argnums="),
    "jacfwd(wrt=)": (lambda h: fd.jacfwd(lambda x: x, wrt=0), "argnums="),
    "hessian(wrt=)": (lambda h: fd.hessian(lambda x: x, wrt=0), "argnums="),
    "checkpoint(f, use_reentrant=)": (lambda h: fd.checkpoint(abs, use_reentrant=False), "fd.checkpoint(f)(x)"),
    "checkpoint(f, x)": (lambda h: fd.checkpoint(abs, h.x), "fd.checkpoint(f)(x)"),
    "a number too large for its dtype": (
        lambda h: fd.tensor(300, dtype="uint8"),
        "300 does not fit uint8; pass a dtype",
    ),
    "a number too large for all": (
        lambda h: fd.full(2, 2**70),
        "1180591620717411303424 fits no integer dtype; write it as",
    ),
    "tensor(1e300)": (lambda h: fd.tensor(1e300), "1e+300 does not fit float32, where it would be inf"),
    "tensor(1e5, float16)": (
        lambda h: fd.tensor([1.0, np.inf, -1e5], dtype="float16"),
        "100000.0 does not fit float16",
    ),
    "an op in np": (
        lambda h: fd.op.Op("wrong", lambda xp, x: np.square(x))(h.x),
        "xp.square(x) instead of np.square(x)",
    ),
    "an op with if": (
        lambda h: fd.op.Op("wrong", lambda xp, x: x if x.sum() else -x)(h.x),
        "xp.where(condition, a, b)",
    ),
    "fnp.sum(dim=)": (lambda h: fd.numpy.sum(h.x, dim=1), "sum: there is no argument 'dim'; write axis="),
    "fnp.mean(keepdim=)": (lambda h: fd.numpy.mean(h.x, keepdim=True), "write keepdims="),
    "fnp.sort(dim=)": (lambda h: fd.numpy.sort(h.x, dim=1), "write axis="),
    "fnp.flip(dim=)": (lambda h: fd.numpy.flip(h.x, dim=1), "write axis="),
    "random.normal(size=)": (
        lambda h: fd.random.normal(fd.random.key(0), size=3),
        "normal: there is no argument 'size'; write shape=",
    ),
    "random.normal(loc=)": (
        lambda h: fd.random.normal(fd.random.key(0), loc=3),
        "write mean + std * fd.random.normal(key, shape)",
    ),
    "jit(static=)": (lambda h: fd.jit(abs, static=1), "the arguments are fn, static_argnums, static_argnames, donate"),
    "scan(len=)": (lambda h: fd.scan(abs, 0.0, None, len=1), "the arguments are f, init, xs, length, reverse, unroll"),
    "with Device": (lambda h: fd.Device.cpu().__enter__(), "write with fd.set_default_device(device): ..."),
    "fnp.transpose(dims=)": (
        lambda h: fd.numpy.transpose(h.x, dims=(1, 0)),
        "transpose: there is no argument 'dims'; write axes=.",
    ),
    "fnp.linalg.norm(dim=)": (lambda h: fd.numpy.linalg.norm(h.x, dim=1), "write axis="),
    "fnp.fft.fft(dim=)": (lambda h: fd.numpy.fft.fft(h.x, dim=1), "write axis="),
    "special.logsumexp(dim=)": (lambda h: fd.special.logsumexp(h.x, dim=1), "write axis="),
    # equinox, flax, JAX
    "filter_jit": (lambda h: fd.filter_jit, "fd.jit"),
    "filter_value_and_grad": (lambda h: fd.filter_value_and_grad, "fd.value_and_grad"),
    "tree_at": (lambda h: fd.tree_at, "model.replace"),
    "partition": (lambda h: fd.partition, "freeze"),
    "tree_serialise_leaves": (lambda h: fd.tree_serialise_leaves, "fd.save"),
    "inference_mode": (lambda h: nn.inference_mode, "model.valid()"),
    "Dropout(inference=)": (lambda h: nn.Dropout(0.5, inference=True), "model.valid()"),
    "dropout(x, deterministic=)": (lambda h: nn.Dropout(0.5)(h.x, deterministic=True), "model.valid()"),
    "norm(x, use_running_average=)": (lambda h: nn.BatchNorm1d(3)(h.x, use_running_average=True), "model.valid()"),
    "nn.MLP": (lambda h: nn.MLP, "nn.Sequential"),
    "nn.Rngs": (lambda h: nn.Rngs, "key="),
    "Linear(rngs=)": (lambda h: nn.Linear(2, 3, rngs=0), "key="),
    "Linear(key=0)": (lambda h: nn.Linear(2, 3, key=0), "key=fd.random.key(0)"),
    "model.apply(params, x)": (lambda h: h.model.apply({}, h.x), "model(x)"),
    "TrainState": (lambda h: fd.TrainState, "opt.step"),
    "Optimizer(model, tx)": (lambda h: fd.optim.Optimizer(h.model, 1), "fd.optim.adam(1e-3)"),
    "eval_shape": (lambda h: fd.eval_shape, "model.summary(x)"),
    # what looks as if it changed or computed
    "seq.append(layer)": (lambda h: nn.Sequential(h.model).append(nn.ReLU()), "model = nn.Sequential(*model, layer)"),
    "seq.extend(layers)": (lambda h: nn.Sequential(h.model).extend([nn.ReLU()]), "nn.Sequential(*model, layer)"),
    "seq.insert(i, layer)": (lambda h: nn.Sequential(h.model).insert(0, nn.ReLU()), "*model[:i], layer, *model[i:]"),
    "seq.pop()": (lambda h: nn.Sequential(h.model).pop(), "nn.Sequential(*model[:i], *model[i + 1:])"),
    "del seq[0]": (lambda h: operator.delitem(nn.Sequential(h.model), 0), "*model[i + 1:]"),
    "seq[1] =": (
        lambda h: operator.setitem(nn.Sequential(h.model, h.model), 1, nn.ReLU()),
        "model.replace({'layers.1'",
    ),
    "seq['a'] =": (
        lambda h: operator.setitem(nn.Sequential({"b": h.model, "a": h.model}), "a", h.model),
        "model.replace({'layers.1': layer})",
    ),
    "seq(x, key)": (
        lambda h: nn.Sequential(h.model)(h.x, fd.random.key(0)),
        "its forward takes (x, *, key=None), and more",
    ),
    "model()": (lambda h: h.model(), "Linear: its forward takes (x), and 'x' must be given"),
    "model(x, foo=)": (lambda h: h.model(h.x, foo=1), "Linear: its forward takes (x), and no 'foo'"),
    "model(x, lr=)": (lambda h: h.model(h.x, lr=1), "Linear: its forward takes (x), and no 'lr'"),
    "ones(lr=)": (lambda h: fd.ones(2, lr=1), "the arguments are shape, dtype, device"),
    "model.training =": (lambda h: setattr(h.model, "training", False), "write model = model.valid() to evaluate"),
    "model.train =": (lambda h: setattr(h.model, "train", False), "write model = model.valid() to evaluate"),
    "model.requires_grad =": (
        lambda h: setattr(h.model, "requires_grad", False),
        "write model = model.train() or model",
    ),
    "model.weights =": (lambda h: setattr(h.model, "weights", 0), "did you mean 'weight'"),
    "model.forward =": (
        lambda h: setattr(h.model, "forward", abs),
        "its fields are in_features, out_features, weight, bias",
    ),
    "grads * 0.5": (lambda h: h.loss().backward() * 0.5, "g = grads.tree(model)"),
    "0.5 * grads": (lambda h: 0.5 * h.loss().backward(), "fd.tree.map(lambda g: 0.5 * g, g)"),
    "grads + grads": (lambda h: h.loss().backward() + h.loss().backward(), "fd.optim.GradientsAccumulator()"),
    "x * grads": (lambda h: h.x * h.loss().backward(), "got a Gradients; it is looked up by tensor"),
    "tree.map(f, grads)": (lambda h: fd.tree.map(lambda g: -g, h.loss().backward()), "grads.tree(model)"),
    "params * 0.5": (
        lambda h: fd.optim.GradientsParams.from_grads(h.loss().backward(), h.model) * 0.5,
        "grads.map(lambda g: 0.5 * g)",
    ),
    "model * 0.5": (lambda h: h.model * 0.5, "fd.tree.map(lambda x: 0.5 * x, m)"),
    "x - None": (
        lambda h: h.x - None,
        "x.grad(grads) is None where there is no gradient, and grads.explain(x) says why",
    ),
    # names, and arguments in another order
    "w.require_grad =": (
        set_attribute("require_grad", True),
        "instead of x.require_grad = value write x = x.require_grad()",
    ),
    "x.shape =": (set_attribute("shape", (2, 1)), "x = x.reshape(shape)"),
    "x.dtype =": (set_attribute("dtype", "int32"), "x = x.astype(dtype)"),
    "x.ndim =": (set_attribute("ndim", 1), "tensors are immutable"),
    "scipy.special.logsumexp(w)": (lambda h: scipy.special.logsumexp(h.w), "fd.special"),
    "fd.config": (lambda h: fd.config, "fd.enable_x64()"),
    "fd.scipy": (lambda h: fd.scipy, "fd.special, fd.numpy.linalg"),
    "fd.Adam": (lambda h: fd.Adam, "fd.optim.adam(1e-3)"),
    "tree.structure": (lambda h: fd.tree.structure, "fd.tree.flatten(tree)[1]"),
    "tree.reduce": (lambda h: fd.tree.reduce, "functools.reduce(f, fd.tree.leaves(tree))"),
    "tree.tree_map": (lambda h: fd.tree.tree_map, "fd.tree.map(f, tree)"),
    "tree.leave": (lambda h: fd.tree.leave, "did you mean 'leaves'"),
    "linalg.nrm": (lambda h: fd.numpy.linalg.nrm, "did you mean 'norm'"),
    "state.count": (lambda h: h.opt.init(h.model).count, "counts and moments, is in state.tree"),
    "state.learning_rate": (lambda h: h.opt.init(h.model).learning_rate, "write state.hyperparams"),
    "state.state_dict()": (lambda h: h.opt.init(h.model).state_dict(), "fd.save(state, path)"),
    "state[0]": (lambda h: h.opt.init(h.model)[0], "state.tree[0]"),
    "scipy.special.expit(w)": (lambda h: scipy.special.expit(h.w), "expit: computing it in NumPy would cut"),
    "scipy.special.expit(w), ours": (lambda h: scipy.special.expit(h.w), "Write fd.special.expit(...), or say"),
    "load(value)": (lambda h: fd.load({"model": h.model}), "fd.load(path, like=value)"),
    "dataclasses.replace": (lambda h: dataclasses.replace(h.model, bias=None), "model.replace(weight=value)"),
}


@pytest.mark.parametrize(("line", "advice"), REFUSED.values(), ids=REFUSED)
def test_a_habit_that_is_refused_says_what_to_write(line, advice, here):
    with pytest.raises(fd.FunctadError) as raised:
        line(here)
    assert advice in str(raised.value)


def test_habits_that_work(here, tmp_path):
    assert nn.Linear(in_features=3, out_features=2, bias=False).bias is None
    assert len(here.model(here.x).backward()) == 2  # ones for a loss that is no scalar
    assert not fd.no_grad(lambda w: w * 2)(here.w).is_tracked
    assert nn.Linear(2, 3, key=jax.random.PRNGKey(0)).weight.shape == (3, 2)
    grads = here.loss().backward()
    np.testing.assert_allclose(fd.optim.global_norm(grads).item(), np.sqrt(6 * 16 + 2 * 16), rtol=1e-6)
    by_id = fd.optim.GradientsParams.from_grads(grads, here.model)
    assert fd.optim.global_norm(by_id).item() == fd.optim.global_norm(grads.tree(here.model)).item()
    assert repr(here.w.grad).startswith("<the method grad")
    assert here.w.grad((here.w * here.w).sum().backward()).tolist() == [2.0, 4.0]
    assert not hasattr(here.w, "data")


def test_the_number_of_elements_is_an_int_wherever_it_goes(tmp_path):
    size = fd.ones((2, 3)).size
    assert (size, size * 2, fd.zeros(size).shape, f"{size}") == (6, 12, (6,), "6")
    assert type(pickle.loads(pickle.dumps(size))) is int
    fd.save({"n": size}, tmp_path / "n")
    assert fd.load(tmp_path / "n") == {"n": 6}
    layer = nn.Flatten(size)
    assert type(layer.start_axis) is int
    assert (fd.ones(2) * size).dtype == fd.float32
    assert fd.jit(lambda x, n: x * n)(fd.ones(2), size).tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    ("start", "advice"), [(b"PK\x03\x04", "torch.load"), (b"\x89HDF\r\n", "h5py"), (b"\x80\x04\x95", "pickle")]
)
def test_files_of_other_libraries_are_named(start, advice, tmp_path):
    path = tmp_path / "model.pt"
    path.write_bytes(start + b"\x01" * 100)
    with pytest.raises(fd.errors.RecordError, match=advice):
        fd.load(path)
    with pytest.raises(fd.errors.RecordError, match=advice):
        nn.Linear(2, 1).load(path)


def test_a_header_may_be_as_long_as_a_pickle_begins(tmp_path):
    for length in range(40, 80):  # one of them makes a header of 128 or 256 + 128 bytes, which is 0x80 first
        fd.save({"a" * length: 1}, tmp_path / "file")
        assert list(fd.load(tmp_path / "file")) == ["a" * length]


@pytest.mark.parametrize("fn", [fd.numpy.sum, fd.numpy.sort, fd.numpy.linalg.norm, fd.special.logsumexp])
def test_functions_that_explain_their_arguments_are_found_by_name(fn):
    assert pickle.loads(pickle.dumps(fn)) is fn
    assert "axis" in inspect.signature(fn).parameters


def test_the_gradient_of_an_intermediate_is_none_and_a_warning_says_why():
    """w = w - 0.1 * w.grad(grads) in a loop: the second time w is an intermediate, and 0.1 * None says nothing."""
    w = fd.tensor([1.0, 2.0], device=DEVICE).require_grad()
    w = w - 0.1 * w.grad((w * w).sum().backward())
    grads = (w * w).sum().backward()
    with pytest.warns(
        fd.errors.IntermediateGradientWarning, match=r"\(2,\) is an intermediate.*w = \(w\.inner\(\) - rate"
    ):
        assert w.grad(grads) is None
    assert grads.get(w) is None  # asked for without a word
    assert fd.ones(2).grad(grads) is None
    w = (w.inner() - 0.1 * w.inner()).autodiff().require_grad()
    assert w.grad((w * w).sum().backward()) is not None


def test_load_takes_both_orders(here, tmp_path):
    fd.save(tmp_path / "a", {"model": here.model})
    found = fd.load({"model": here.model}, tmp_path / "a")["model"]
    assert (found.weight == here.model.weight).all().item()


def test_models_are_made_of_others(here):
    model = nn.Sequential(here.model, nn.ReLU())
    longer = nn.Sequential(*model[:1], nn.Tanh(), *model[1:])
    assert [type(layer).__name__ for layer in longer] == ["Linear", "Tanh", "ReLU"]
    named = nn.Sequential({"a": nn.ReLU()})
    assert nn.Sequential({**dict(zip(named.names, named, strict=True)), "b": nn.Tanh()}).names == ("a", "b")
    assert type(model.replace({"layers.1": nn.Tanh()})[1]) is nn.Tanh


AUTOGRAD = {  # a name of HIPS autograd: what is to be written of it, and its value for the sum of cubes at (1, 2)
    "elementwise_grad": ("fd.vjp(f, x)[1](fd.ones_like(x))[0]", [3.0, 12.0]),
    "deriv": ("fd.jvp(f, (x,), (fd.ones_like(x),))[1]", [3.0, 12.0]),
    "make_hvp": ("fd.vjp(fd.grad(g), x)[1](v)[0]", [18.0, 60.0]),
    "hessian_vector_product": ("fd.hvp(g, (x,), (v,))", [18.0, 60.0]),
    "vector_jacobian_product": ("fd.vjp(f, x)[1](v)[0]", [9.0, 60.0]),
    "grad_and_aux": ("fd.grad(lambda x: (g(x), x), has_aux=True)(x)[0]", [3.0, 12.0]),
}


@pytest.mark.parametrize("name", AUTOGRAD)
def test_names_of_autograd_say_what_to_write_and_that_runs(name):
    """Programs for HIPS autograd were told that there is no such name."""
    code, value = AUTOGRAD[name]
    with pytest.raises(AttributeError, match=rf"functad has no '{name}'; write .*fd\.") as error:
        getattr(fd, name)
    assert code.partition("(")[0] in str(error.value)
    x, v = fd.tensor([1.0, 2.0]), fd.tensor([3.0, 5.0])
    found = eval(code, {"fd": fd, "f": lambda x: x**3, "g": lambda x: (x**3).sum(), "x": x, "v": v})
    assert found.tolist() == value
