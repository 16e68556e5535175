"""Where a jitted function finds tensors: whatever holds them, they are read anew at each call."""

import argparse
import collections
import dataclasses
import logging
import threading
import types

import pytest

import functad as fd
from functad.transforms.captures import Captures


@dataclasses.dataclass
class Data:
    w: object


@dataclasses.dataclass(slots=True)
class Slotted:
    w: object


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    w: object


class Inherited(Slotted):
    __slots__ = ("other",)


class Hidden:
    __slots__ = ("__w", "never_set")

    def __init__(self, w):
        self.__w = w

    @property
    def w(self):
        return self.__w

    @w.setter
    def w(self, value):
        self.__w = value


class Mapping(dict):
    """Items as attributes."""

    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class Listed(list):
    @property
    def w(self):
        return self[0]

    @w.setter
    def w(self, value):
        self[:] = [value, None]


class Settings:
    w = None


class FromSettings(Settings):
    pass


def class_of(w):
    return type("Config", (), {"w": w, "__module__": __name__})


def module_of(w):
    module = types.ModuleType("settings")
    module.w = w
    return module


HOLDERS = {
    "object": Data, "slots": Slotted, "inherited slots": Inherited, "private slots": Hidden,
    "SimpleNamespace": lambda w: types.SimpleNamespace(w=w), "argparse": lambda w: argparse.Namespace(w=w),
    "dict of the user's": lambda w: Mapping(w=w), "list of the user's": lambda w: Listed([w]),
    "class": class_of, "object of a class that has it": lambda w: class_of(w)(), "module": module_of,
    "module in a module": lambda w: types.SimpleNamespace(inner=module_of(w), w=w),
}  # fmt: skip


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_attributes_are_read_anew(make):
    """Most kinds of objects but those with a __dict__ gave the value of the first call for ever."""
    holder = make(fd.tensor(2.0))
    f = fd.jit(lambda x: x * holder.w)
    values = [f(3.0).item(), f(3.0).item()]
    holder.w = fd.tensor(5.0)
    values += [f(3.0).item(), fd.grad(f)(3.0).item()]
    holder.w = fd.tensor([1.0, 2.0])
    assert (values, f(3.0).tolist()) == ([6.0, 6.0, 15.0, 5.0], [3.0, 6.0])


@pytest.mark.parametrize(
    "make", [collections.UserDict, collections.ChainMap, collections.defaultdict, collections.OrderedDict, Mapping]
)
def test_items_are_read_anew(make):
    holder = make()
    holder["w"] = fd.tensor(2.0)
    f = fd.jit(lambda x: x * holder["w"] + holder.get("b", 0.0))
    values = [f(3.0).item(), f(3.0).item()]
    holder["w"] = fd.tensor(5.0)
    values += [f(3.0).item()]
    holder["b"] = fd.tensor(1.0)
    assert [*values, f(3.0).item()] == [6.0, 6.0, 15.0, 16.0]


def test_an_attribute_that_is_new_or_covers_that_of_the_class():
    Settings.w = fd.tensor(2.0)
    settings = FromSettings()
    f = fd.jit(lambda x: x * settings.w)
    values = [f(1.0).item(), f(1.0).item()]
    Settings.w = fd.tensor(3.0)
    values += [f(1.0).item(), f(1.0).item()]
    settings.w = fd.tensor(4.0)
    values += [f(1.0).item(), f(1.0).item()]
    del settings.w
    assert [*values, f(1.0).item()] == [2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 3.0]


def test_slots_that_are_emptied_and_filled():
    holder = Inherited(fd.tensor(2.0))
    f = fd.jit(lambda x: x * getattr(holder, "other", 10.0))
    values = [f(1.0).item(), f(1.0).item()]
    holder.other = fd.tensor(3.0)
    values += [f(1.0).item(), f(1.0).item()]
    holder.other = fd.tensor(4.0)
    assert [*values, f(1.0).item()] == [10.0, 10.0, 3.0, 3.0, 4.0]


def test_objects_in_containers_in_objects():
    inner = Slotted(fd.tensor(2.0))
    outer = types.SimpleNamespace(layers=[{"first": inner}], fixed=Frozen(fd.tensor(1.0)))
    f = fd.jit(lambda x: x * outer.layers[0]["first"].w + outer.fixed.w)
    values = [f(1.0).item(), f(1.0).item()]
    inner.w = fd.tensor(3.0)
    values += [f(1.0).item()]
    outer.fixed = Frozen(fd.tensor(10.0))
    assert [*values, f(1.0).item()] == [3.0, 3.0, 4.0, 13.0]


def test_defaults_of_a_function():
    def scaled(x, w=fd.tensor(2.0), *, k=fd.tensor(1.0)):  # noqa: B008  # that they are read once is what is tested
        return x * w * k

    f = fd.jit(scaled)
    values = [f(1.0).item(), f(1.0).item()]
    scaled.__defaults__ = (fd.tensor(3.0),)
    values += [f(1.0).item()]
    scaled.__kwdefaults__["k"] = fd.tensor(2.0)
    values += [f(1.0).item()]
    scaled.__kwdefaults__ = {"k": fd.tensor(5.0)}
    assert [*values, f(1.0).item()] == [2.0, 2.0, 3.0, 6.0, 15.0]


SCALE = fd.tensor(2.0)


class Model:
    """Whose methods read a global name."""

    def predict(self, x):
        return self._scaled(x) + self.shift

    def _scaled(self, x):
        return x * SCALE

    @property
    def shift(self):
        return SCALE - SCALE

    @staticmethod
    def fixed(x):
        return x * SCALE


class Layer(fd.Module):
    def __init__(self):
        self.one = fd.tensor(1.0)

    def forward(self, x):
        return self.scaled(x) * self.one

    def scaled(self, x):
        return x * SCALE


@pytest.mark.parametrize("call", [Model().predict, Model.fixed, Layer()])
def test_global_names_in_methods(call):
    """Only __call__ and forward were looked through, not what they call."""
    global SCALE  # noqa: PLW0603  # a global that changes is what is tested
    SCALE = fd.tensor(2.0)
    f = fd.jit(lambda x: call(x) + 0)
    values = [f(1.0).item(), f(1.0).item()]
    SCALE = fd.tensor(3.0)
    assert [*values, f(1.0).item()] == [2.0, 2.0, 3.0]


def test_a_static_class():
    holder = class_of(fd.tensor(2.0))
    f = fd.jit(lambda x, config: x * config.w, static_argnums=1)
    values = [f(1.0, holder).item(), f(1.0, holder).item()]
    holder.w = fd.tensor(3.0)
    assert [*values, f(1.0, holder).item()] == [2.0, 2.0, 3.0]


def test_a_number_that_counts_is_no_reason_to_search_again(monkeypatch):
    holder = types.SimpleNamespace(w=fd.tensor(2.0), step=0)
    captures = Captures(lambda x: x * holder.w)
    monkeypatch.setattr(captures, "_walk", lambda: pytest.fail("it searched"))
    for step in range(300, 303):
        holder.step, holder.w = step, fd.tensor(float(step))
        assert [x.item() for x in captures()] == [float(step)]


def test_objects_of_python_itself_are_left_alone():
    """A lock or a logger has attributes too, and a logger leads to every other."""
    lock, logger = threading.RLock(), logging.getLogger("functad test")

    def f(x):
        with lock:
            logger.debug("called")
        return x * 2

    assert Captures(f)() == []
    assert fd.jit(f)(1.0).item() == 2.0
