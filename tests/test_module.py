"""Modules: pytrees, construction, what is refused, shared parameters, modes, devices, transforms."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import OrderedDict, deque
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest

import functad as fd
from functad import tree
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    ImmutableError,
    IntermediateParamsWarning,
    LevelError,
    MissingForwardError,
    ShapeError,
    UnknownAttributeError,
)
from functad.nn import Linear

T = TypeVar("T")


def key(seed=0):
    return fd.random.key(seed)


class Net(fd.Module):
    def __init__(self, seed=0, device=None):
        k1, k2 = fd.random.split(key(seed))
        self.layers = [Linear(2, 3, key=k1, device=device), Linear(3, 1, key=k2, device=device)]
        self.act = fd.numpy.tanh
        self.mean = fd.zeros(2, device=device)

    def forward(self, x):
        return self.layers[1](self.act(self.layers[0](x - self.mean)))


class Tied(fd.Module):
    """w * x * w: both fields are one parameter."""

    first: fd.Param
    second: fd.Param

    def forward(self, x):
        return (self.first * x * self.second).sum()


def tied(device=None):
    w = fd.Param(3.0, device=device)
    return Tied(w, w)


def loss(model, x):
    return (model(x) ** 2).mean()


def ids(model):
    return [p.id for p in model.parameters()]


X = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)


# --- page 3 of the reference


def flags(x):
    return x.is_autodiff, x.is_tracked, x.is_require_grad


def test_the_reference_experiment(device):
    ad = device.autodiff()
    fc = Linear(2, 2, device=ad)
    x = fd.tensor([[1.0, 2.0]], device=ad)
    assert flags(fc(x)) == (True, True, False)
    valid = fc.valid()
    assert flags(valid.weight) == (False, False, False)
    assert flags(valid(x.without_autodiff())) == (False, False, False)
    assert flags(valid(x)) == (True, False, False)
    assert flags(valid.train().weight) == (True, True, True)


# --- construction


def test_dataclass_style(device):
    class Affine(fd.Module):
        scale: fd.Param
        shift: fd.Param | None = None
        power: int = fd.field(static=True, default=1)
        names: list[str] = fd.field(default_factory=list)

        def forward(self, x):
            y = x**self.power * self.scale
            return y if self.shift is None else y + self.shift

    m = Affine(fd.tensor(2.0, device=device), shift=fd.Param(1.0, device=device), power=2)
    assert m(3.0).item() == 19.0
    assert isinstance(m.scale, fd.Param)
    assert Affine(fd.tensor(2.0)).shift is None
    assert tree.paths(m) == [".scale", ".shift"]
    assert m.num_params == 2
    with pytest.raises(TypeError, match="scale"):
        Affine()


def test_generated_init_runs_post_init_and_computed_fields():
    class Table(fd.Module):
        size: int
        rows: fd.Tensor = fd.field(init=False)

        def __post_init__(self):
            self.rows = fd.arange(self.size)

    m = Table(3)
    assert m.rows.tolist() == [0, 1, 2]
    assert not isinstance(m.rows, fd.Param)
    assert Table.__init__.__code__.co_varnames[:2] == ("self", "size")


def test_inheritance_and_generics():
    class Base(fd.Module):
        def __init__(self, n):
            self.fc = Linear(n, n, key=key())

        def forward(self, x):
            return self.fc(x)

    class Child(Base, Generic[T]):
        def __init__(self, n):
            super().__init__(n)
            self.gain = fd.Param(2.0)

        def forward(self, x):
            return super().forward(x) * self.gain

    class Grandchild(Child[int]):
        pass

    m = Grandchild(2)
    assert [n for n, _ in m.named_parameters()] == ["fc.weight", "fc.bias", "gain"]
    np.testing.assert_allclose(m(X).numpy(), 2 * m.fc(X).numpy())

    class Declared(fd.Module):
        a: fd.Param

    class More(Declared):
        b: fd.Param

    assert tree.paths(More(fd.tensor(1.0), fd.tensor(2.0))) == [".a", ".b"]


def test_a_field_that_was_forgotten_is_named():
    class Forgetful(fd.Module):
        weight: fd.Param
        bias: fd.Param | None = None

        def __init__(self):
            pass

    with pytest.raises(ArgumentError, match=r"'weight'.*self\.weight = \.\.\. in Forgetful\.__init__"):
        Forgetful()

    class Late(fd.Module):
        n: int
        rows: fd.Tensor = fd.field(init=False)

    with pytest.raises(ArgumentError, match=r"'rows'.*__post_init__"):
        Late(2)


def test_immutable_with_the_way_out():
    m = Net()
    with pytest.raises(ImmutableError, match=r"model\.replace\(mean=value\)"):
        m.mean = fd.ones(2)
    with pytest.raises(ImmutableError, match=r"replace\(mean=None\)"):
        del m.mean
    m.layers.append(Linear(1, 1, key=key()))
    with pytest.raises(ImmutableError, match=r"Net\.layers was changed after.*replace\(layers="):
        fd.grad(loss)(m, X)


def test_a_list_the_caller_keeps_is_not_the_modules():
    class Chain(fd.Module):
        parts: list[Any]

    mine = [Linear(1, 1, key=key())]
    m = Chain(mine)
    mine.append(None)
    assert len(m.parts) == 1


def test_names_are_checked():
    with pytest.raises(ArgumentTypeError, match=r"Bad.*'map'"):

        class Bad(fd.Module):
            map: int

    class Worse(fd.Module):
        def __init__(self):
            self.train = True

    with pytest.raises(ArgumentTypeError, match=r"Worse.*'train'"):
        Worse()
    with pytest.raises(UnknownAttributeError, match=r"no attribute 'wieght'.*weight, bias"):
        _ = Linear(1, 1, key=key()).wieght
    with pytest.raises(UnknownAttributeError, match=r"model = model\.valid\(\)"):
        Linear(1, 1, key=key()).eval()
    with pytest.raises(ArgumentTypeError, match=r"ReLU: there is no argument 'inplace'"):
        fd.nn.ReLU(inplace=True)
    with pytest.raises(UnknownAttributeError, match=r"fd\.Module"):
        _ = fd.nn.Module
    with pytest.raises(MissingForwardError, match=r"no forward"):
        fd.Module()(1.0)


class Box:
    def __init__(self, inside):
        self.inside = inside


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (lambda: {fd_identity(fd.ones(1))}, "x.*set"),
        (lambda: Box(fd.ones(1)), r"x\.inside \(in a Box\)"),
        (lambda: [Box({"a": [Linear(1, 1, key=key())]})], r"x\[0\]\.inside"),
        (lambda: functools.partial(fd.numpy.add, fd.ones(1)), r"x \(a functools\.partial\)"),
    ],
    ids=["set", "object", "object in a list", "partial"],
)
def test_hidden_tensors_are_refused(value, where):
    class Holder(fd.Module):
        x: Any

    with pytest.raises(ArgumentTypeError, match=rf"Holder: {where}.*optimiser"):
        Holder(value())


class fd_identity:  # tensors have no hash: a set can hold one only inside something
    def __init__(self, x):
        self.x = x


def test_a_tensor_in_a_static_field_is_refused():
    class Static(fd.Module):
        table: Any = fd.field(static=True)

    for value in (fd.ones(2), np.ones(2), [1, jnp.ones(2)], {"a": Linear(1, 1, key=key())}):
        with pytest.raises(ArgumentTypeError, match=r"Static: table.*in a static place"):
            Static(value)
    assert Static([1, "a", None]).table == [1, "a", None]


def test_arrays_become_tensors_and_params_where_the_type_says_so():
    class Holder(fd.Module):
        w: fd.Param
        ws: list[fd.Param]
        table: Any
        maybe: fd.Param | fd.Tensor

    m = Holder(np.ones(2, np.float32), [fd.ones(1), jnp.ones(1)], np.arange(3), fd.ones(1))
    assert type(m.w) is fd.Param
    assert [type(w) for w in m.ws] == [fd.Param, fd.Param]
    assert type(m.table) is fd.Tensor and type(m.maybe) is fd.Tensor
    assert [n for n, _ in m.named_buffers()] == ["table", "maybe"]


def test_arrays_that_are_no_tensors():
    class Holder(fd.Module):
        x: Any

    with pytest.raises(ArgumentTypeError, match=r"Holder: x is an array of <U1, which is no tensor"):
        Holder(np.array(["a"]))
    assert Holder(jax.random.key(0)).x.tolist() == fd.random.key(0).tolist()


class Pair(NamedTuple):
    a: Any
    b: Any


def test_containers_of_children(device):
    class Bag(fd.Module):
        x: Any

    w = [fd.Param(float(i), device=device) for i in range(6)]
    value = {
        "list": [w[0], "relu", None],
        2: (w[1], {"deep": Pair(w[2], 7)}),
        "od": OrderedDict(z=w[3], a=w[4]),
        "m": Bag(w[5]),
        "static": [1, 2],
    }
    m = Bag(value)
    assert m.num_params == 6
    assert [type(leaf) for leaf in tree.leaves(m)] == [fd.Param] * 6
    assert len(jax.tree.leaves(m)) == 6
    for doubled in (tree.map(lambda x: x * 2, m), jax.tree.map(lambda x: x * 2, m) if device.name == "xla" else m):
        x = doubled.x
        assert x["list"][1:] == ["relu", None] and x["static"] == [1, 2] and x[2][1]["deep"].b == 7
        assert isinstance(x[2][1]["deep"], Pair) and list(x["od"]) == ["z", "a"]
        assert isinstance(x["m"].x, fd.Param) and ids(doubled) == ids(m)
    assert sorted(n for n, _ in m.named_parameters()) == [
        "x.2.0", "x.2.1.deep.0", "x.list.0", "x.m.x", "x.od.a", "x.od.z",
    ]  # fmt: skip


def test_a_container_that_only_jax_knows():
    @jax.tree_util.register_pytree_node_class
    class Couple:
        def __init__(self, a, b):
            self.a, self.b = a, b

        def tree_flatten(self):
            return (self.a, self.b), None

        @classmethod
        def tree_unflatten(cls, aux, children):
            return cls(*children)

    class Bag(fd.Module):
        x: Any

    m = Bag(Couple(fd.Param(1.0), "static"))
    assert m.num_params == 1
    out = tree.map(lambda x: x + 1, m)
    assert out.x.a.item() == 2.0 and out.x.b == "static" and out.x.a.id == m.x.a.id


def test_cached_properties_are_no_fields():
    class Square(fd.Module):
        w: fd.Param

        @functools.cached_property
        def square(self):
            return self.w * self.w

        def forward(self, x):
            return (self.square * x).sum()

    m = Square(fd.tensor(3.0))
    assert m.square.item() == 9.0
    assert m.num_params == 1
    assert fd.grad(lambda m: m(1.0))(m).w.item() == 6.0
    assert m.replace(w=fd.tensor(4.0)).square.item() == 16.0


# --- structures


def test_registered_with_both_libraries():
    m = Net()
    assert len(optree.tree_leaves(m)) == len(jax.tree.leaves(m)) == 5
    assert tree.paths(m)[0] == ".layers[0].weight" and ".mean" in tree.paths(m)
    accessors = optree.tree_accessors(m)
    assert accessors[0](m) is m.layers[0].weight
    assert jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(m)[0][0][0]).startswith(".layers[0].weight")
    assert tree.map(lambda x: x, m).layers[0].weight is m.layers[0].weight


def test_structures_differ_in_statics_and_mode_only():
    def structure(m):
        return tree.flatten(m)[1]

    assert structure(Net(0)) == structure(Net(1))
    assert hash(structure(Net(0))) == hash(structure(Net(1)))
    assert structure(Net()) != structure(Net().valid())
    assert structure(Linear(2, 2, key=key())) != structure(Linear(2, 3, key=key()))

    class Power(fd.Module):
        w: fd.Param
        p: Any

    shared = fd.tensor(1.0)
    kinds = [1, 1.0, True, "1", [1], (1,), {"a": 1}, 0.0, -0.0, None]
    structures = [structure(Power(shared, p)) for p in kinds]
    assert len(set(structures)) == len(kinds)
    assert structure(Power(shared, [1, {2: {3}}])) == structure(Power(shared, [1, {2: {3}}]))


def test_two_models_of_one_kind_map_together():
    a, b = Net(0), Net(1)
    both = tree.map(lambda x, y: fd.stack([x, y]), a, b)
    assert both.layers[0].weight.shape == (2, 3, 2)
    assert ids(both) == ids(a)


@pytest.mark.parametrize(
    "change", ["jit", "jax.jit", "vmap", "deepcopy", "pickle", "map", "astype", "fork", "train", "no_grad", "jax.tree"]
)
def test_ids_survive(change):
    m = Net()
    out = {
        "jit": lambda: fd.jit(lambda m: tree.map(lambda x: x * 2, m))(m),
        "jax.jit": lambda: jax.jit(lambda m: m)(m),
        "vmap": lambda: fd.vmap(lambda s: tree.map(lambda x: x * s, m))(fd.ones(4)),
        "deepcopy": lambda: copy.deepcopy(m),
        "pickle": lambda: pickle.loads(pickle.dumps(m)),
        "map": lambda: m.map(lambda p: p * 2),
        "astype": lambda: m.astype("bfloat16"),
        "fork": lambda: m.fork(fd.Device.numpy()),
        "train": lambda: m.train().valid().train(),
        "no_grad": m.no_grad,
        "jax.tree": lambda: jax.tree.map(jnp.zeros_like, m),
    }[change]()
    assert ids(out) == ids(m)
    assert all(isinstance(p, fd.Param) for p in out.parameters()) and len(out.parameters()) == 4


# --- gradients


def test_grad_is_module_shaped_and_right(device):
    m = Net(device=device)
    value, grads = fd.value_and_grad(loss)(m, fd.tensor(X, device=device))
    w0, b0, w1, b1, mean = [np.asarray(x.numpy()) for x in tree.leaves(m)]

    def in_jax(w0, b0, w1, b1, mean):
        h = jnp.tanh((X - mean) @ w0.T + b0)
        return ((h @ w1.T + b1) ** 2).mean()

    expected = jax.grad(in_jax, argnums=(0, 1, 2, 3, 4))(w0, b0, w1, b1, mean)
    np.testing.assert_allclose(value.item(), in_jax(w0, b0, w1, b1, mean), rtol=1e-5)
    assert type(grads) is Net and ids(grads) == ids(m)
    for g, e in zip(tree.leaves(grads), expected, strict=True):
        np.testing.assert_allclose(g.numpy(), e, rtol=1e-5, atol=1e-6)


def test_a_shared_parameter_is_one_leaf_with_one_gradient(device):
    """K19: w * x * w, w = 3, x = 2: 12, once."""
    m = tied(device)
    g = fd.grad(lambda m: m(2.0))(m)
    assert g.first.item() == g.second.item() == 12.0
    assert m.num_params == 1 and len(m.parameters()) == 1
    _, pullback = fd.vjp(lambda m: m(2.0), m)
    assert pullback(1.0)[0].second.item() == 12.0
    assert fd.jit(fd.grad(lambda m: m(2.0)))(m).first.item() == 12.0
    assert fd.vmap(lambda x: fd.grad(lambda m: m(x))(m).first)(fd.tensor([1.0, 2.0], device=device)).tolist() == [
        6.0,
        12.0,
    ]
    ad = tied(device.autodiff())
    grads = ad(2.0).backward()
    assert len(grads) == 1 and grads[ad.first].item() == grads[ad.second].item() == 12.0
    t = grads.tree(ad)
    assert t.first.item() == t.second.item() == 12.0


@pytest.mark.parametrize("change", ["train", "fork", "map", "deepcopy", "pickle", "astype"])
def test_what_was_shared_stays_shared(change, device):
    m = tied(device.autodiff())
    out = {
        "train": lambda: m.valid().train(),
        "fork": m.fork,
        "map": lambda: m.map(lambda p: p * 1),
        "deepcopy": lambda: copy.deepcopy(m),
        "pickle": lambda: pickle.loads(pickle.dumps(m)),
        "astype": lambda: m.astype("float16"),
    }[change]()
    grads = out(2.0).backward()
    assert len(grads) == 1 and grads[out.first].item() == 12.0


def test_one_model_passed_twice_is_two_arguments():
    m = Tied(fd.Param(3.0), fd.Param(5.0))
    a, b = fd.grad(lambda m, n: m.first * n.second, argnums=(0, 1))(m, m)
    assert (a.first.item(), a.second.item(), b.first.item(), b.second.item()) == (5.0, 0.0, 0.0, 3.0)


def test_frozen_parameters_are_constants_to_grad():
    m = Net().freeze("layers.0")
    g = fd.grad(loss)(m, X)
    assert not g.layers[0].weight.numpy().any() and g.layers[0].weight.shape == (3, 2)
    assert g.layers[1].weight.numpy().any()
    _, pullback = fd.vjp(lambda m: loss(m, X), m)
    assert not pullback(1.0)[0].layers[0].weight.numpy().any()


def test_integers_in_a_module_get_none():
    class Counted(fd.Module):
        w: fd.Param
        n: fd.Tensor

    g = fd.grad(lambda m: m.w * m.n)(Counted(fd.tensor(2.0), fd.tensor(3)))
    assert g.w.item() == 3.0 and g.n is None
    assert len(tree.leaves(g)) == 1


def test_second_order_and_forward_mode(x64):
    m = Net().astype("float64")
    x = fd.tensor(X.astype("float64"))
    g = fd.grad(loss)(m, x)
    _, push = fd.jvp(lambda m: loss(m, x), (m,), (g,))
    norm = sum((leaf * leaf).sum().item() for leaf in tree.leaves(g))
    np.testing.assert_allclose(push.item(), norm, rtol=1e-10)
    curved = fd.hvp(lambda m: loss(m, x), (m,), (g,))
    step = 1e-5
    moved = [fd.grad(loss)(tree.map(lambda p, d, s=s: p + s * step * d, m, g), x) for s in (1, -1)]
    for h, up, down in zip(*map(tree.leaves, (curved, *moved)), strict=True):
        np.testing.assert_allclose(h.numpy(), (up.numpy() - down.numpy()) / (2 * step), rtol=1e-5, atol=1e-8)


def test_ensembles():
    keys = fd.random.split(key(), 3)
    models = fd.vmap(lambda k: Linear(2, 1, key=k))(keys)
    assert models.weight.shape == (3, 1, 2)
    out = fd.vmap(lambda m, x: m(x), in_axes=(0, None))(models, fd.tensor(X))
    grads = fd.vmap(fd.grad(loss), in_axes=(0, None))(models, fd.tensor(X))
    for i in range(3):
        one = tree.map(lambda x, i=i: x[i], models)
        np.testing.assert_allclose(out.numpy()[i], one(X).numpy(), rtol=1e-6)
        np.testing.assert_allclose(grads.weight.numpy()[i], fd.grad(loss)(one, X).weight.numpy(), rtol=1e-5)


def test_object_style_and_functional_agree(device):
    m = Net(device=device.autodiff())
    x = fd.tensor(X, device=device)
    grads = loss(m, x).backward()
    expected = fd.grad(loss)(m.valid(), x)
    assert len(grads) == 4
    for p, e in zip(m.parameters(), expected.parameters(), strict=True):
        np.testing.assert_allclose(grads[p].numpy(), e.numpy(), rtol=1e-5)
    assert grads.tree(m).mean is None


def test_an_activation_in_a_field_is_copied_and_pickled_as_itself():
    m = Net()
    assert copy.deepcopy(m).act is m.act
    assert pickle.loads(pickle.dumps(m)).act is m.act


# --- compiled


class Gate(fd.Module):
    w: fd.Param

    def forward(self, x):
        return x * self.w if self.training else x + 0 * self.w


def test_one_program_serves_all_models_of_a_kind():
    double = fd.jit(lambda m: tree.map(lambda x: x * 2, m))
    a, b = Net(0), Net(1)
    for m in (a, b, a):
        out = double(m)
        assert ids(out) == ids(m)
        np.testing.assert_allclose(out.layers[0].weight.numpy(), 2 * m.layers[0].weight.numpy())
    assert double.compilations == 1


def test_models_made_in_a_compiled_function_are_different_models():
    """Ids that were fixed when the function was written down would tie the weights of all models it makes."""
    make = fd.jit(lambda k: Linear(1, 1, key=k))
    a, b, c = (make(key(i)) for i in range(3))
    assert len({*ids(a), *ids(b), *ids(c)}) == 6
    assert make.compilations == 1


def test_a_module_reached_by_closure_is_read_again_at_each_call():
    model = Gate(fd.tensor(3.0))
    run = fd.jit(lambda x: model(x))  # noqa: PLW0108  # which reads the name anew
    assert run(2.0).item() == 6.0
    model = model.replace(w=5.0)
    assert run(2.0).item() == 10.0
    assert run.compilations == 1
    model = model.valid()
    assert run(2.0).item() == 2.0
    model = model.train()
    out = run(2.0)
    assert out.item() == 10.0 and out.is_tracked
    assert model.w.grad(out.backward()).item() == 2.0
    assert run.compilations == 2


def test_shared_and_separate_parameters_are_two_programs():
    grad = fd.jit(fd.grad(lambda m: m(2.0)))
    assert grad(tied()).first.item() == 12.0
    assert grad(Tied(fd.Param(3.0), fd.Param(3.0))).first.item() == 6.0
    assert grad(tied().no_grad()).first.item() == 0.0


def test_jit_of_a_module_and_of_its_method():
    m = Net()
    expected = m(X).numpy()
    for fn in (fd.jit(m), fd.jit(m.forward), jax.jit(lambda m, x: m(x).jax())):
        out = fn(m, X) if not isinstance(fn, type(fd.jit(m))) else fn(X)
        np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-5)
    assert not hasattr(fd.jit(m), "layers")


def test_jax_differentiates_through_a_module():
    m = Net()
    ours = fd.grad(loss)(m, X)
    theirs = jax.grad(lambda m: loss(m, X).jax())(m)
    for a, b in zip(tree.leaves(ours), tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6)


# --- modes


def test_valid_and_train_go_back_to_where_they_came_from(device):
    ad = device.autodiff(order=2).gradient_checkpointing()
    m = Net(device=ad)
    valid = m.valid()
    assert not valid.training and not valid.layers[0].training and m.training
    assert [d.is_autodiff for d in valid.devices] == [False]
    back = valid.train()
    assert back.training and back.layers[1].training
    for x in (back.layers[0].weight, back.mean):
        assert x.device.order == 2
        assert x.device.gradient_checkpointing_strategy is fd.GradientCheckpointing.BALANCED
    assert all(p.is_require_grad for p in back.parameters()) and not back.mean.is_tracked
    assert ids(back) == ids(m)
    fresh = Net(device=device).train()
    assert fresh.devices[0].is_autodiff and all(p.is_require_grad for p in fresh.parameters())


def test_no_grad_freezes_and_keeps_training_behaviour(device):
    m = Net(device=device.autodiff()).no_grad()
    assert m.training
    assert not any(p.is_require_grad for p in m.parameters()) and all(p.is_frozen for p in m.parameters())
    assert not m(fd.tensor(X, device=device)).is_tracked
    assert all(p.is_require_grad for p in m.train().parameters())


def test_freeze_and_unfreeze_change_what_they_name(device):
    m = Net(device=device.autodiff()).freeze("layers.0")
    assert [p.is_require_grad for p in m.parameters()] == [False, False, True, True]
    m = m.unfreeze(fd.ParamGroup("*.weight"))
    assert [p.is_require_grad for p in m.parameters()] == [True, False, True, True]
    assert [p.is_frozen for p in m.valid().parameters()] == [False, True, False, False]
    assert [p.is_require_grad for p in m.fork().parameters()] == [True, False, True, True]
    assert [p.is_require_grad for p in pickle.loads(pickle.dumps(m)).parameters()] == [True, False, True, True]


@pytest.mark.parametrize(
    ("group", "names"),
    [
        ("*bias", ["layers.0.bias", "layers.1.bias"]),
        ("layers", ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]),
        ("layers.1", ["layers.1.weight", "layers.1.bias"]),
        (["layers.0.bias", "layers.1.w*"], ["layers.0.bias", "layers.1.weight"]),
        (Linear, ["layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias"]),
        (lambda path, p: p.ndim == 2, ["layers.0.weight", "layers.1.weight"]),
        (fd.ParamGroup("*bias") & "layers.0", ["layers.0.bias"]),
        (~fd.ParamGroup("*bias") | "layers.1.bias", ["layers.0.weight", "layers.1.weight", "layers.1.bias"]),
    ],
)
def test_groups(group, names):
    assert fd.ParamGroup.of(group).names(Net()) == names


def test_groups_by_id_follow_the_parameter():
    m = Net()
    group = fd.ParamGroup([m.layers[0].weight, m.layers[1].bias.id])
    assert group.names(m.train()) == ["layers.0.weight", "layers.1.bias"]
    assert fd.ParamGroup(ids=[m.layers[0].bias]).names(m) == ["layers.0.bias"]
    assert fd.ParamGroup(m.layers[1]).names(m) == ["layers.1.weight", "layers.1.bias"]
    with pytest.raises(ArgumentError, match=r"matches none of the 4 parameters of Net: layers\.0\.weight"):
        m.freeze("encoder")
    with pytest.raises(ArgumentError, match="one way"):
        fd.ParamGroup("a", ids=[])
    with pytest.raises(ArgumentTypeError, match="got 3"):
        fd.ParamGroup(3)


def test_what_is_frozen_or_off_inside_a_transform_stays_differentiable(device):
    m = Gate(fd.tensor(3.0, device=device))
    assert fd.grad(lambda m: m.train()(2.0))(m).w.item() == 2.0
    assert fd.grad(lambda m: m.fork()(2.0))(m).w.item() == 2.0
    assert fd.grad(lambda m: m.map(lambda p: p * p)(2.0))(m).w.item() == 12.0
    assert fd.grad(lambda m: m.no_grad()(2.0))(m).w.item() == 0.0
    assert fd.grad(lambda m: m.valid()(2.0) + m.valid().w)(m).w.item() == 1.0


# --- devices


def test_to_device_is_recorded_and_says_so(device):
    other = fd.Device.numpy() if device.name == "xla" else fd.Device.cpu()
    m = Gate(fd.Param(3.0, device=device.autodiff()))
    with pytest.warns(IntermediateParamsWarning, match=r"the move of w:.*fork\(device\)"):
        moved = m.to_device(other)
    assert moved.devices == [other] and moved.w.id == m.w.id
    assert moved.w.is_tracked and not moved.w.is_require_grad
    grads = moved(fd.tensor(2.0, device=other)).backward()
    assert grads[m.w].item() == 2.0 and grads.explain(moved.w).reason is fd.Reason.INTERMEDIATE
    plain = m.valid().to_device(other.autodiff())
    assert plain.w.is_require_grad


def test_fork_gives_leaves_of_its_own(device):
    other = fd.Device.numpy() if device.name == "xla" else fd.Device.cpu()
    m = Gate(fd.Param(3.0, device=device.autodiff()))
    there = m.fork(other.autodiff())
    grads = there(fd.tensor(2.0, device=other)).backward()
    assert grads[there.w].item() == 2.0 and m.w not in grads
    assert there.w.id == m.w.id
    assert not m.fork(device).w.is_autodiff


def test_astype_casts_floats_only():
    class Mixed(fd.Module):
        w: fd.Param
        mean: fd.Tensor
        n: fd.Tensor

    m = Mixed(fd.Param(1.0, device=fd.Device.cpu().autodiff()), fd.zeros(2), fd.tensor(3)).astype("bfloat16")
    assert (str(m.w.dtype), str(m.mean.dtype), str(m.n.dtype)) == ("bfloat16", "bfloat16", "int32")
    assert m.w.is_require_grad


# --- replace, map, visit


def test_replace():
    m = Net()
    out = m.replace({"layers.1.bias": np.ones(1), "mean": fd.ones(2)})
    assert out.layers[1].bias.tolist() == [1.0] and out.layers[1].bias.id == m.layers[1].bias.id
    assert out.mean.tolist() == [1.0, 1.0] and m.mean.tolist() == [0.0, 0.0]
    assert ids(out) == ids(m)
    assert not m.valid().replace(act=None).training
    new = fd.Param(fd.ones((1, 3)))
    assert m.replace({"layers.1.weight": new}).layers[1].weight.id == new.id
    assert m.replace({"layers.1": None}).num_params == 9
    ad = m.train().replace({"layers.0.bias": [1, 2, 3]})
    assert ad.layers[0].bias.is_require_grad
    with pytest.raises(ArgumentError, match=r"no field 'layer'; did you mean 'layers'"):
        m.replace(layer=None)
    with pytest.raises(ArgumentError, match=r"'layers' has no part '7'; it has 0, 1"):
        m.replace({"layers.7.bias": None})
    with pytest.raises(ArgumentError, match="nothing within 'mean'"):
        m.replace({"mean.0": 1})
    with pytest.raises(ShapeError, match=r"'bias'.*\(1,\).*\(2,\)"):
        m.replace({"layers.1.bias": fd.ones(2)})


def test_map_and_visit():
    m = Net(device=fd.Device.cpu().autodiff()).freeze("layers.0.bias")
    out = m.map(lambda p: p * 0)
    assert [p.is_require_grad for p in out.parameters()] == [True, False, True, True]
    assert not any(p.numpy().any() for p in out.parameters())
    seen = []
    m.visit(lambda path, x: seen.append((path, x.shape)))
    assert seen[0] == ("layers.0.weight", (3, 2)) and seen[-1] == ("mean", (2,)) and len(seen) == 5
    assert [n for n, _ in m.named_modules()] == ["", "layers.0", "layers.1"]


def test_params_are_tensors():
    w = fd.Param([[1.0, 2.0]], device=fd.Device.cpu().autodiff())
    assert type(w @ w.T) is fd.Tensor and type(w.value) is fd.Tensor
    for plain in (w.detach(), w.without_autodiff(), w.inner()):
        assert type(plain) is fd.Tensor
    assert w.set_require_grad(False).id == w.id and w.set_require_grad(False).is_frozen
    assert w.set_require_grad(False).require_grad().is_require_grad
    assert fd.Param(w.value).id != w.id and fd.Param(1.0, id=w.id).id == w.id
    assert isinstance(w.id, fd.ParamId) and fd.ParamId(str(w.id)) == w.id and hash(w.id) == hash(str(w.id))
    assert repr(w).startswith("Param([[1., 2.]]")
    assert type(fd.Param(1.0).autodiff()) is fd.Param and fd.Param(1.0).autodiff().is_require_grad
    hyper = fd.Param(w * 2)
    assert hyper.is_tracked and not hyper.is_require_grad
    copies = copy.deepcopy([w, w])
    assert copies[0] is copies[1] and copies[0].id == w.id and copies[0].is_require_grad


# --- state


class Mean(fd.Module):
    mean: fd.Tensor

    def forward(self, x):
        if self.training:
            self.update(mean=(self.latest("mean") + x.mean()) * 0.5)
        return x - self.mean


class Twice(fd.Module):
    inner: Mean

    def forward(self, x):
        return self.inner(self.inner(x))


def test_updates_of_buffers_are_collected(device):
    m = Twice(Mean(fd.tensor(0.0, device=device)))
    x = fd.tensor([1.0, 3.0], device=device)
    assert m(x).tolist() == [1.0, 3.0]
    out, new = m.call_and_update(x)
    assert out.tolist() == [1.0, 3.0] and new.inner.mean.item() == 1.5 and m.inner.mean.item() == 0.0
    assert new.valid().call_and_update(x)[1].inner.mean.item() == 1.5

    def step(m, x):
        out, new = m.call_and_update(x)
        return (out**2).sum(), new

    g, new = fd.grad(step, has_aux=True)(m, x)
    assert new.inner.mean.item() == 1.5 and not new.inner.mean.is_tracked and g.inner.mean.item() == -16.0
    assert fd.jit(lambda m, x: m.call_and_update(x)[1])(m, x).inner.mean.item() == 1.5

    class Wrong(fd.Module):
        w: fd.Param

        def forward(self, x):
            self.update(w=x)

    with pytest.raises(ArgumentError, match="'w' is no buffer"):
        Wrong(fd.tensor(1.0)).call_and_update(x)


# --- as text


def test_repr_and_summary():
    m = Net(device=fd.Device.cpu().autodiff()).freeze("layers.1.bias")
    lines = repr(m).splitlines()
    assert lines[0] == "Net(act=tanh): 13 parameters, training, Device(cpu:0).autodiff()"
    assert lines[1:4] == [
        "  layers.0: Linear(in_features=2, out_features=3)",
        "    weight: Param float32[3, 2], require_grad",
        "    bias: Param float32[3], require_grad",
    ]
    assert "    bias: Param float32[1], frozen" in lines and lines[-1] == "  mean: Tensor float32[2]"
    assert "shared with first" in repr(tied())
    assert ", valid, " in repr(m.valid())
    table = m.summary(fd.tensor(X)).splitlines()
    assert table[2].split() == ["Net", "13", "float32[2,", "1]"]
    assert table[3].split() == ["layers.0:", "Linear", "9", "float32[2,", "3]"] or "0: Linear" in table[3]
    assert table[-1] == "13 parameters, 1 of them frozen"
    assert "2 calls" in Twice(Mean(fd.tensor(0.0))).summary(fd.ones(2))
    with pytest.raises(ArgumentError, match="pass what the model takes"):
        m.summary()


@pytest.mark.parametrize("change", [
    lambda m: m.nest["a"].append(fd.Param(1.0)),
    lambda m: m.nest["a"].__setitem__(0, fd.Param(1.0)),
    lambda m: m.nest["b"][0].update(w=fd.Param(1.0)),
    lambda m: m.queue.append(fd.Param(1.0)),
    lambda m: m.ordered.__setitem__("w", fd.Param(1.0)),
    lambda m: m.sizes.append(3),
    lambda m: m.options["x"][0].append(3),
    lambda m: m.names.add("c"),
])  # fmt: skip
def test_containers_changed_in_place_are_noticed_at_every_depth(change):
    """Only the outermost lists and dicts were looked at, and jit went on with the old static ones."""

    class Nested(fd.Module):
        def __init__(self, sizes):
            self.nest = {"a": [fd.Param(1.0), 2], "b": ({"w": fd.Param(2.0)}, 1)}
            self.queue = deque([fd.Param(3.0)])
            self.ordered = OrderedDict(w=fd.Param(4.0))
            self.sizes = sizes
            self.options = {"x": ([1, 2],)}
            self.names = {"a", "b"}

        def forward(self, x):
            return x * len(self.sizes)

    sizes = [1, 2]
    model = Nested(sizes)
    call = fd.jit(lambda m, x: m(x))
    assert call(model, 1.0).item() == 2
    sizes.append(3)  # the caller's own list
    assert call(model, 1.0).item() == 2
    assert copy.deepcopy(model).sizes == [1, 2]
    change(model)
    with pytest.raises(ImmutableError, match="was changed after the Module was made"):
        call(model, 1.0)


def test_static_values_that_cannot_be_compared_count_as_different():
    class Table:
        __hash__ = None

        def __eq__(self, other):
            raise ValueError("the truth of a table is ambiguous")

    class Holder(fd.Module):
        w: fd.Param
        table: object = fd.field(static=True)

    call = fd.jit(lambda m: m.w * 2)
    table = Table()
    for x in (table, table, Table()):
        assert call(Holder(fd.tensor(1.0), x)).item() == 2
    assert call.compilations == 2


class Moving(fd.Module):
    mean: fd.Tensor

    def forward(self, x, inside=None):
        if inside is not None:
            return inside(self)(x)
        self.update(mean=self.latest("mean") + x)
        return x * x


def test_updates_from_transforms_within_the_call_are_plain_values():
    model = Moving(fd.tensor(0.0))
    for inside in (fd.grad, fd.checkpoint, lambda m: fd.grad(fd.checkpoint(m)), lambda m: fd.grad(fd.grad(m))):
        _, new = model.call_and_update(fd.tensor(3.0), inside)
        assert new.mean.item() == 3, "what backward runs again does not move it again"
        assert new.mean._backend.level == (0, 0)
        assert fd.grad(lambda m: m.mean * m.mean)(new).mean.item() == 6


@pytest.mark.parametrize("inside", [fd.jit, fd.vmap, lambda m: lambda x: fd.scan(lambda c, y: (c, m(y)), 0.0, x)[1]])
def test_updates_that_are_no_values_yet_are_refused_where_they_are_made(inside):
    with pytest.raises(LevelError, match=r"Moving\.update: the new value of 'mean'"):
        Moving(fd.tensor(0.0)).call_and_update(fd.tensor(1.0) if inside is fd.jit else fd.ones(2), inside)
    _, new = fd.jit(lambda m, x: m.call_and_update(x))(Moving(fd.tensor(0.0)), fd.tensor(2.0))
    assert new.mean.item() == 2


def test_hessian_with_a_frozen_parameter():
    """Its constant was taken for a leaf of the tape, on whatever level it was."""
    model = fd.nn.Linear(2, 1, key=key()).freeze("weight")
    hessian = fd.hessian(lambda m: (m(fd.ones(2)) ** 2).sum())(model)
    assert hessian.bias.bias.tolist() == [[2.0]]
    assert hessian.weight.weight.numpy().any() == np.False_
