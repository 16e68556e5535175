"""What a Module is made of: which of its fields hold tensors, where, and what else it holds.

An instance is looked through once, when its construction ends. From then on flattening reads two
slots, and unflattening fills a dict.
"""

from __future__ import annotations

import copy
import enum
import functools
import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from functad import tree
from functad.creation import tensor
from functad.device import Device
from functad.dispatch import Handle
from functad.errors import ArgumentTypeError
from functad.habits import Count
from functad.ops.quantize import QuantTensor
from functad.param import Mark, Param, names, wrap

Place = tuple[Any, ...]
"""A field's name, and keys of the containers within it."""

ARRAYS = (Handle, np.ndarray, jax.Array)
_MUTABLE = (list, dict, deque, OrderedDict, defaultdict)
_PLAIN = (
    str, bytes, bool, int, float, complex, type, np.generic, np.dtype, enum.Enum, Device, Mark,
    types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, types.NoneType,
)  # fmt: skip


class Nest:
    """A container that holds children: how to make it of its parts (numbers of children, static values, nests)."""

    __slots__ = ("keys", "kind", "make", "parts")

    def __init__(self, kind: type, keys: tuple[Any, ...], make: Callable[[Sequence[Any]], Any], parts: list[Any]):
        self.kind = kind
        self.keys = keys
        self.make = make
        self.parts = parts

    def build(self, children: Sequence[Any]) -> Any:
        """The container with these children."""
        return self.make(
            [children[p.index] if type(p) is Child else p.build(children) if type(p) is Nest else p for p in self.parts]
        )

    def holds(self, container: Any, children: Sequence[Any]) -> bool:
        """Whether the lists and dicts in it still hold what they held when the Module was made."""
        if self.kind is tuple:
            return all(
                part.holds(held, children)
                for held, part in zip(container, self.parts, strict=True)
                if type(part) is Nest
            )
        if self.kind not in _MUTABLE:
            return True
        if len(container) != len(self.parts):
            return False
        for key, part in zip(self.keys, self.parts, strict=True):
            if self.kind not in (list, deque) and key not in container:
                return False
            held = container[key]
            if type(part) is Child:
                if held is not children[part.index]:
                    return False
            elif type(part) is Nest and (type(held) is not part.kind or not part.holds(held, children)):
                return False
        return True

    def key(self) -> Any:
        """What makes two nests equal."""
        return self.kind, comparable(self.keys), tuple([_part_key(p) for p in self.parts])


class Child:
    """The number of a child."""

    __slots__ = ("index",)

    def __init__(self, index: int):
        self.index = index


class Spec(NamedTuple):
    """What a class declares of a field."""

    static: bool = False
    param: bool = False  # tensors in it become Params


_UNDECLARED = Spec()


class Layout:
    """Everything about a Module but its tensors: the static part of the pytree.

    Two layouts are equal if their Modules differ in nothing but tensors, ids and what is frozen.
    """

    __slots__ = (
        "_hash", "_key", "direct", "entries", "has_buffers", "is_marked", "kind", "marks", "names", "nests", "same",
        "static", "training", "watched",
    )  # fmt: skip

    def __init__(self, kind: type, fields: dict[str, Any], training: bool):
        self.kind = kind
        self.training = training
        self.static: dict[str, Any] = dict.fromkeys(fields)  # also keeps the order
        self.direct: list[tuple[str, int]] = []
        self.nests: list[tuple[str, Nest]] = []
        self.entries: tuple[Any, ...] = ()  # the places of the children as `tree` writes them
        self.names: tuple[str, ...] = ()  # the places as files and patterns write them: layers.0
        self.marks: tuple[Mark | None, ...] = ()
        self.is_marked = False  # whether there are Params among the children
        self.has_buffers = False  # whether there are any, in it or in what it holds
        self.same: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()  # where a Module is that was met before
        self.watched: tuple[tuple[str, Any], ...] = ()  # static fields that can change in place, and what they held
        self._key: Any = None
        self._hash: int | None = None

    @staticmethod
    def of(module: Any, specs: dict[str, Spec], training: bool) -> tuple[Layout, tuple[Any, ...]]:
        """The layout of a new Module and its children; refuses tensors that are hidden."""
        fields = module.__dict__
        layout = Layout(type(module), fields, training)
        search = _Search(type(module))
        for name, value in fields.items():
            spec = specs.get(name, _UNDECLARED)
            if spec.static:
                value = int(value) if type(value) is Count else value
                fields[name] = layout.static[name] = _own(search.static(value, (name,)))
                continue
            search.as_params = spec.param
            part = search.part(value, (name,))
            if type(part) is Child:
                layout.direct.append((name, part.index))
                fields[name] = search.children[part.index]
            elif type(part) is Nest:
                layout.nests.append((name, part))
                fields[name] = part.build(search.children)
            else:
                fields[name] = layout.static[name] = _own(part)
        inside = {name for name, _ in (*layout.direct, *layout.nests)}
        layout.watched = tuple(
            [(n, comparable(x)) for n, x in layout.static.items() if n not in inside and _can_change(x)]
        )
        layout.entries = tuple([place[0] if len(place) == 1 else place for place in search.places])
        layout.names = tuple([".".join(map(str, place)) for place in search.places])
        layout.marks = tuple([x.mark if type(x) is Param else None for x in search.children])
        layout.is_marked = any(mark is not None for mark in layout.marks)
        layout.has_buffers = any(
            x._layout.has_buffers if is_module(x) else isinstance(x, Handle) and mark is None
            for x, mark in zip(search.children, layout.marks, strict=True)
        )
        layout.same = _met_again(search.children) if layout.has_buffers else ()
        return layout, tuple(search.children)

    def build(self, children: Sequence[Any]) -> Any:
        """The Module of this layout with these children."""
        others = names.get()
        if others is not None and any(mark is not None and mark.id in others for mark in self.marks):
            marks = [m if m is None or m.id not in others else m.called(others[m.id]) for m in self.marks]
            self = self.but(marks, self.training)  # noqa: PLW0642
        if self.is_marked:
            children = [x if m is None else wrap(x, m) for x, m in zip(children, self.marks, strict=True)]
        if self.same:  # a layer at several places stays one, and so do its running means
            children = list(children)
            for place, first in self.same:
                _put(children, place, _at(children, first))
        children = tuple(children)
        module: Any = object.__new__(self.kind)
        fields = module.__dict__
        fields.update(self.static)
        for name, index in self.direct:
            fields[name] = children[index]
        for name, nest in self.nests:
            fields[name] = nest.build(children)
        _set(module, "_layout", self)  # as seal does
        _set(module, "_children", children)
        return module

    def but(self, marks: Sequence[Mark | None], training: bool) -> Layout:
        """This layout with other marks, in another mode."""
        new = object.__new__(Layout)
        for name in ("kind", "static", "direct", "nests", "entries", "names", "watched", "has_buffers", "same"):
            setattr(new, name, getattr(self, name))
        new.marks = tuple(marks)
        new.is_marked = self.is_marked
        new.training = training
        same = training == self.training
        new._key, new._hash = (self._key, self._hash) if same else (None, None)
        return new

    def key(self) -> Any:
        """What makes two layouts equal."""
        if self._key is None:
            inside = {name for name, _ in (*self.direct, *self.nests)}
            self._key = (
                self.kind,
                self.training,
                tuple(self.direct),
                tuple([(name, nest.key()) for name, nest in self.nests]),
                tuple([(name, comparable(x)) for name, x in self.static.items() if name not in inside]),
                tuple([mark is None for mark in self.marks]),
                self.same,
            )
        return self._key

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and bool(self.key() == other.key()))

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.key())
        return self._hash

    def __repr__(self) -> str:
        static = [f"{name}={x!r}" for name, x in self.static.items() if x is not None]
        shared = [f"{len(self.same)} layers that are shared"] if self.same else []
        return ", ".join([*static, *shared, "training" if self.training else "valid"])


def _met_again(children: Sequence[Any]) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """The places, as numbers of children, of Modules with buffers that are at an earlier place too, and that place."""
    first: dict[int, tuple[int, ...]] = {}
    same: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def look(parts: Sequence[Any], place: tuple[int, ...]) -> None:
        for i, x in enumerate(parts):
            if is_module(x) and x._layout.has_buffers:
                here = (*place, i)
                if id(x) not in first:
                    first[id(x)] = here
                    look(x._children, here)
                elif first[id(x)][0] != here[0]:  # otherwise it is for the Module that holds both to say
                    same.append((here, first[id(x)]))

    look(children, ())
    return tuple(same)


def _at(children: Sequence[Any], place: tuple[int, ...]) -> Any:
    """What is at a place; None where something else stands for the Module that holds it."""
    for i in place[:-1]:
        if not is_module(children[i]):
            return None
        children = children[i]._children
    return children[place[-1]]


def _put(children: list[Any], place: tuple[int, ...], x: Any) -> None:
    """Put a Module at a place, in new Modules around it."""
    old = children[place[0]]
    if not is_module(x) or not is_module(old):
        return
    if len(place) > 1:
        parts = list(old._children)
        _put(parts, place[1:], x)
        x = old._layout.build(parts)
    children[place[0]] = x


class _Search:
    """Numbers the children of one Module."""

    def __init__(self, kind: type):
        self.kind = kind
        self.children: list[Any] = []
        self.places: list[Place] = []
        self.as_params = False

    def part(self, value: Any, place: Place) -> Any:
        """A value as a child, a nest or a static value."""
        if isinstance(value, ARRAYS) or is_module(value):
            self.children.append(self.child(value, place))
            self.places.append(place)
            return Child(len(self.children) - 1)
        if isinstance(value, _PLAIN):
            return int(value) if type(value) is Count else value
        opened = tree.one_level(value)
        if opened is None:
            return self.static(value, place)
        items, keys, make = opened
        before = len(self.children)
        as_params = self.as_params
        self.as_params = as_params and not isinstance(value, QuantTensor)  # which is not trained, wherever it stands
        parts = [self.part(x, (*place, key)) for key, x in zip(keys, items, strict=True)]
        self.as_params = as_params
        return value if len(self.children) == before else Nest(type(value), tuple(keys), make, parts)

    def child(self, value: Any, place: Place) -> Any:
        """A value as it is held: arrays as tensors."""
        if isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)  # what functad's own keys are
        if isinstance(value, np.ndarray) and value.dtype.kind in "OUSMm":
            raise ArgumentTypeError(
                f"{self.kind.__name__}: {tree.written(place).removeprefix('.')} is an array of {value.dtype}, which is no "
                "tensor; make it a list or tuple."
            )
        if self.as_params and isinstance(value, ARRAYS) and type(value) is not Param:
            return Param(value)
        return value if isinstance(value, Handle) or is_module(value) else tensor(value)

    def static(self, value: Any, place: Place) -> Any:
        """A value in which no tensor may be."""
        found = _hidden(value, tree.written(place).removeprefix("."))
        if found:
            raise ArgumentTypeError(
                f"{self.kind.__name__}: {found}, where no transform, optimiser or file would find it. Keep tensors and "
                "Modules in fields of their own, in lists, tuples or dicts, and leave static=True to what holds none."
            )
        return value


def _hidden(value: Any, path: str, depth: int = 4) -> str:
    """Where a tensor or Module is in a static value, in words; nothing if there is none."""
    if isinstance(value, ARRAYS):
        return f"{path} is a tensor in a static place"
    if is_module(value):
        return f"{path} is a {type(value).__name__} (a Module) in a static place"
    if isinstance(value, _PLAIN) or not depth:
        return ""
    inside: list[tuple[str, Any]] = []
    if isinstance(value, (set, frozenset)):
        inside = [(f"{path} (a set)", x) for x in value]
    elif isinstance(value, functools.partial):
        inside = [(f"{path} (a functools.partial)", x) for x in (*value.args, *value.keywords.values())]
    else:
        opened = tree.one_level(value)
        if opened is not None:
            inside = [(f"{path}[{key!r}]", x) for key, x in zip(opened[1], opened[0], strict=True)]
        elif hasattr(value, "__dict__") and not callable(value):
            inside = [(f"{path}.{name} (in a {type(value).__name__})", x) for name, x in vars(value).items()]
    return next((found for name, x in inside if (found := _hidden(x, name, depth - 1))), "")


_set = object.__setattr__


def seal(module: Any, layout: Layout | None, children: tuple[Any, ...]) -> None:
    """End the construction of a Module."""
    _set(module, "_layout", layout)
    _set(module, "_children", children)


def is_module(value: Any) -> bool:
    """Whether a value is a Module (whose class is declared above this file)."""
    return hasattr(type(value), "_is_module")


class Found(NamedTuple):
    """A tensor in a Module: its path, itself, what makes it a parameter, and the Modules it is in, outermost first."""

    path: str
    value: Any
    mark: Mark | None
    owners: tuple[Any, ...]


def walk(module: Any, prefix: str = "", owners: tuple[Any, ...] = ()) -> Iterator[Found]:
    """Every tensor of a Module and of those within it, in order; a shared one at each of its places."""
    layout = module._layout
    owners = (*owners, module)
    for name, child, mark in zip(layout.names, module._children, layout.marks, strict=True):
        if is_module(child):
            yield from walk(child, f"{prefix}{name}.", owners)
        elif isinstance(child, Handle):
            yield Found(prefix + name, child, mark, owners)


def walk_tree(x: Any, prefix: str = "") -> Iterator[Found]:
    """Every tensor, array and number of a pytree, whether Modules are in it or not, in the order of its leaves."""
    if is_module(x):
        yield from walk(x, prefix)
        return
    opened = tree.one_level(x)
    if opened is not None:
        for child, key in zip(opened[0], opened[1], strict=True):
            yield from walk_tree(child, f"{prefix}{key}.")
    elif x is not None:
        yield Found(prefix.removesuffix("."), x, x.mark if type(x) is Param else None, ())


Change = Callable[[Found], "tuple[Any, Mark | None]"]


def rebuild(
    module: Any,
    change: Change,
    training: bool | None = None,
    prefix: str = "",
    owners: tuple[Any, ...] = (),
    done: dict[Any, Any] | None = None,
) -> Any:
    """The Module with other tensors and marks; a shared tensor is changed once."""
    done = {} if done is None else done
    owners = (*owners, module)
    layout: Layout = module._layout
    children: list[Any] = []
    marks: list[Mark | None] = []
    for name, child, mark in zip(layout.names, module._children, layout.marks, strict=True):
        if is_module(child):
            child = rebuild(child, change, training, f"{prefix}{name}.", owners, done)
        elif isinstance(child, Handle):
            key: Any = id(child) if mark is None else mark.id
            if key not in done:
                done[key] = change(Found(prefix + name, child, mark, owners))
            child, mark = done[key]
        children.append(child)
        marks.append(mark)
    return layout.but(marks, layout.training if training is None else training).build(children)


# --- comparing static values


class _ByEquality:
    """A static value without a hash."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _ByEquality):
            return False
        try:
            return self.value is other.value or bool(self.value == other.value)
        except Exception:  # noqa: BLE001  # a table's == is a table: what cannot be compared is another value
            return False

    def __hash__(self) -> int:
        return hash(type(self.value))


def comparable(value: Any) -> Any:
    """A static value as a key: 1, 1.0 and True are three, lists and dicts are compared by what they hold."""
    kind = type(value)
    if kind in (list, tuple, deque):
        return kind, tuple([comparable(x) for x in value])
    if kind is OrderedDict:
        return kind, tuple([(comparable(k), comparable(x)) for k, x in value.items()])
    if kind in (dict, defaultdict):
        return kind, frozenset([(comparable(k), comparable(x)) for k, x in value.items()])
    if kind in (set, frozenset):
        return kind, frozenset([comparable(x) for x in value])
    if kind is float:
        return kind, str(value)  # which tells the zeros apart, and not one NaN from another
    try:
        hash(value)
    except TypeError:
        return kind, _ByEquality(value)
    return kind, value


def _own(value: Any, depth: int = 4) -> Any:
    """A static value with lists, dicts and sets of its own, which whoever passed them may go on changing."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        return kind([(k, _own(x, depth - 1)) for k, x in value.items()])
    if kind in (set, deque, defaultdict):
        return copy.copy(value)
    if not depth or kind not in (list, tuple):
        return value
    parts = [_own(x, depth - 1) for x in value]
    return parts if kind is list else tuple(parts) if any(map(operator.is_not, parts, value)) else value


def _can_change(value: Any, depth: int = 4) -> bool:
    """Whether a list, dict or set is in a static value."""
    kind = type(value)
    if kind in _MUTABLE or kind is set:
        return True
    return kind is tuple and depth > 0 and any(_can_change(x, depth - 1) for x in value)


def _part_key(part: Any) -> Any:
    return part.index if type(part) is Child else part.key() if type(part) is Nest else comparable(part)
