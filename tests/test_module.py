"""Modules: pytrees, construction, what is refused, shared parameters, modes, devices, transforms."""

from __future__ import annotations

import copy
import functools
import pickle
from collections import OrderedDict
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
    MissingForwardError,
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
