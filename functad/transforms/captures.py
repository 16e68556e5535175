"""The tensors a function reaches from outside: by closure, by global name, in containers and as attributes."""

from __future__ import annotations

import argparse
import collections
import dis
import functools
import operator
import sys
import types
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import jax

from functad import tree
from functad.dispatch import Handle

_OURS = ("functad", "jax", "numpy", "optree", "builtins")
_VALUES = (int, float, str, bytes, bool, types.BuiltinFunctionType, type(None))
PLAIN = (*_VALUES, types.ModuleType)
_HOLDERS = (types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList, collections.ChainMap)
_is_tensor = Handle.__instancecheck__
_EMPTY = object()  # an unfilled cell, a global that is not there


class Read(NamedTuple):
    """Where a value is: what it is got by, and from what."""

    get: Callable[[Any], Any]
    place: Any

    def __call__(self) -> Any:
        return self.get(self.place)


def reachable(fn: Any) -> list[Any]:
    """The tensors that `fn` reaches now, in an order that its code fixes."""
    return Captures(fn)()


class Captures:
    """Finds the tensors a function reaches; quick when nothing but tensors has been rebound."""

    def __init__(self, fn: Any):
        self._fn = fn
        # what was found to be no tensor, and must still be that: how it is read, from which places, and what all were
        self._others: tuple[list[Callable[[Any], Any]], list[list[Any]], list[Any]] = ([], [], [])
        self._tensors: list[tuple[Read, list[Any] | None, bool]] = []  # where; what else is there; whether Modules are
        self._walk()

    def __call__(self) -> list[Any]:
        return self.look()[0]

    def look(self) -> tuple[list[Any], tuple[tree.Structure, ...]]:
        """The tensors, and the structures of the Modules that hold some: their static fields are compiled in."""
        found: Any = None
        gets, places, values = self._others
        try:
            if all(map(operator.is_, chain.from_iterable(map(map, gets, places)), values)) or self._counts_on():
                found = self._collect() if self._tensors else ([], ())
        except (ValueError, AttributeError, IndexError):  # a cell or a slot was emptied, a list is shorter
            pass
        if found is None:  # something else than a tensor was rebound
            self._walk()
            found = self._collect()
        known: tuple[list[Any], tuple[tree.Structure, ...]] = found
        return known

    def _counts_on(self) -> bool:
        """Whether what was rebound are numbers and the like, which lead nowhere; they are known from here on."""
        gets, spaces, known = self._others
        old, now = iter(known), []
        for get, places in zip(gets, spaces, strict=True):
            for place in places:
                x, y = get(place), next(old)
                if x is not y and (x != y if get is len else not (isinstance(x, _VALUES) and isinstance(y, _VALUES))):
                    return False
                now.append(x)
        self._others = gets, spaces, now
        return True

    def _collect(self) -> tuple[list[Any], tuple[tree.Structure, ...]] | None:
        found: list[Any] = []
        structures: list[tree.Structure] = []
        for (get, place), others, modules in self._tensors:
            value = get(place)
            if others is not None:
                leaves, structure = _flatten(value)
                if structure is not None and modules:
                    structures.append(structure)
                if others:
                    rest = [x for x in leaves if not isinstance(x, Handle)]
                    leaves = [x for x in leaves if isinstance(x, Handle)]
                    if len(rest) != len(others) or not all(map(operator.is_, rest, others)):
                        return None
                elif not all(map(_is_tensor, leaves)):
                    return None
                found += leaves
            elif isinstance(value, Handle):
                found.append(value)
            else:
                return None
        return found, tuple(structures)

    def _walk(self) -> None:
        self._tensors = []
        others: dict[Any, tuple[Any, list[Any], list[Any]]] = {}
        seen: set[int] = set()
        known: set[tuple[int, int]] = set()
        queue: list[Read] = [_constant(self._fn)]
        for read in queue:
            value = read()
            key = id(getattr(read.get, "__self__", read.get))  # all of one space are read together
            if read.get is not _itself:
                if (key, id(read.place)) in known:  # several functions name it
                    continue
                known.add((key, id(read.place)))
            if isinstance(value, Handle):
                self._tensors.append((read, None, False))
                continue
            if id(value) not in seen:
                seen.add(id(value))
                queue.extend(self._references(read, value))
            if read.get is not _itself:
                _, places, values = others.setdefault(key, (read.get, [], []))
                places.append(read.place)
                values.append(value)
        gets, spaces, contents = zip(*others.values(), strict=True) if others else ((), (), ())
        self._others = list(gets), list(spaces), [*chain.from_iterable(contents)]

    def _references(self, read: Read, value: Any) -> list[Read]:
        """What a value that is no tensor refers to in turn."""
        if isinstance(value, PLAIN):
            return []
        if read.get is _defaults:
            return [_constant(x) for x in value or ()]
        if isinstance(value, type):
            return _class_attributes(value)
        if isinstance(value, types.FunctionType):
            if _is_ours(value) and not value.__closure__:
                return []
            return _code_references(value)
        if isinstance(value, types.MethodType):
            return [_constant(value.__func__), _constant(value.__self__)]
        if isinstance(value, functools.partial):
            return [_constant(x) for x in (value.func, *value.args, *value.keywords.values())]
        if callable(value) and hasattr(value, "__wrapped__"):
            return [_constant(x) for x in (value.__wrapped__, *getattr(value, "_rules", ()))]
        leaves = _leaves(value)
        if len(leaves) == 1 and leaves[0] is value:
            return _attributes(value)
        rest = [x for x in leaves if not isinstance(x, Handle)]
        self._tensors.append((read, rest, tree.holds(value, _is_module)))
        own = [type(value)] if _is_module(value) else []  # what its methods name
        return [_constant(x) for x in (*rest, *own)]


def _is_module(value: Any) -> bool:
    return hasattr(type(value), "_is_module")


def _attributes(value: Any) -> list[Read]:
    """What an object holds that is no pytree, and what its methods name."""
    kind = type(value)
    if not (_is_users(kind.__module__) or kind in _HOLDERS):
        return []
    reads = []
    if hasattr(value, "__dict__"):
        space = vars(value)
        reads += [Read(space.get, name) for name in space]
        reads.append(Read(len, space))  # whether there are others now
    for one in kind.__mro__:
        for name, slot in vars(one).items():
            if isinstance(slot, types.MemberDescriptorType) and name != "__dict__":
                filled = _slot((slot, value)) is not _EMPTY
                reads.append(Read(slot.__get__, value) if filled else Read(_slot, (slot, value)))
    if isinstance(value, dict):
        reads += [Read(dict.get.__get__(value), name) for name in dict.keys(value)]
        reads.append(Read(len, value))
    elif isinstance(value, list):
        reads += [Read(list.__getitem__.__get__(value), i) for i in range(len(value))]
        reads.append(Read(len, value))
    elif isinstance(value, tuple):
        reads += [_constant(x) for x in tuple.__iter__(value)]
    return [*reads, _constant(kind)]


def _class_attributes(kind: type) -> list[Read]:
    """The attributes of a class of the user's, and what its methods name."""
    reads = []
    lent = {
        name for one in kind.__mro__ if not _is_users(one.__module__) for name in vars(one)
    }  # of fd.Module and the like
    for one in kind.__mro__:
        if not _is_users(one.__module__) or _is_installed(sys.modules.get(one.__module__)):
            continue
        space = vars(one)
        for name, value in space.items():
            function = _function_of(value)
            if function is not None:
                reads.append(_constant(function))
            elif not (name in lent or name.startswith("__") or hasattr(type(value), "__get__")):
                reads.append(Read(space.get, name))
    return reads


def _function_of(value: Any) -> Any:
    """The function of a method, in a class."""
    if isinstance(value, types.FunctionType):
        return value
    if isinstance(value, (staticmethod, classmethod)):
        return value.__func__
    if isinstance(value, functools.cached_property):
        return value.func
    return value.fget if isinstance(value, property) else None


@functools.lru_cache(1024)
def _is_users(module: str | None) -> bool:
    """Whether what is defined in a module is neither functad's, nor what that is made of, nor Python's own."""
    root = (module or "").partition(".")[0]
    return root not in _OURS and (root == "__main__" or root not in sys.stdlib_module_names)


def _is_installed(module: Any) -> bool:
    """Whether a module is of an installed package: what is deep in its code is not looked through."""
    path = getattr(module, "__file__", None) or ""
    return "site-packages" in path or "dist-packages" in path


def _slot(place: tuple[Any, Any]) -> Any:
    """What is in a slot of an object, which may be empty."""
    try:
        return place[0].__get__(place[1])
    except AttributeError:
        return _EMPTY


def _itself(value: Any) -> Any:
    return value


def _constant(value: Any) -> Read:
    """What cannot be rebound."""
    return Read(_itself, value)


def _code_references(fn: types.FunctionType) -> list[Read]:
    """What a function's code names outside itself."""
    rebinds = not str(fn.__globals__.get("__name__")).startswith("functad.")
    reads: list[Read] = []
    for cell in fn.__closure__ or ():
        content = _cell(cell)
        read = Read(_cell, cell) if content is _EMPTY else Read(_contents, cell) if rebinds else _constant(content)
        reads.append(read)
    if fn.__defaults__:
        reads.append(Read(_defaults, fn))
    if fn.__kwdefaults__:
        reads += [_constant(fn.__kwdefaults__)] if not rebinds else [Read(_named_defaults, fn)]
    if not _is_ours(fn):
        space = fn.__globals__
        reads += [Read(space.get, name) for name in global_names(fn.__code__)]
        reads += _of_modules(fn)
    return reads


def _of_modules(fn: types.FunctionType) -> list[Read]:
    """What a function's code reads from modules, as `config.scale`."""
    if not dotted_names(fn.__code__) or _is_installed(sys.modules.get(str(fn.__globals__.get("__name__")))):
        return []
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    reads = []
    for name, *path in dotted_names(fn.__code__):
        value = _cell(cells[name]) if name in cells else fn.__globals__.get(name)
        for attribute in path:
            if not (isinstance(value, types.ModuleType) and _is_users(value.__name__)):
                break
            space = vars(value)
            reads.append(Read(space.get, attribute))
            value = space.get(attribute)
    return reads


_defaults = operator.attrgetter("__defaults__")
_named_defaults = operator.attrgetter("__kwdefaults__")
_contents = operator.attrgetter("cell_contents")  # in C


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _EMPTY


@functools.lru_cache(4096)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The global names that code and the functions defined in it read."""
    return _named(code, "LOAD_GLOBAL", "LOAD_NAME")


def _named(code: types.CodeType, *operations: str) -> tuple[str, ...]:
    names = [i.argval for i in dis.get_instructions(code) if i.opname in operations]
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.extend(_named(constant, *operations))
    return tuple(dict.fromkeys(names))


@functools.lru_cache(4096)
def dotted_names(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """The names from outside with the attributes that code and the functions defined in it read of them."""
    found: list[tuple[str, ...]] = []
    path: tuple[str, ...] = ()
    for i in dis.get_instructions(code):
        if i.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, i.argval)
            found.append(path)
        else:
            path = (i.argval,) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") else ()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found += dotted_names(constant)
    return tuple(dict.fromkeys(found))


def _leaves(value: Any) -> list[Any]:
    return _flatten(value)[0]


def _flatten(value: Any) -> tuple[list[Any], tree.Structure | None]:
    try:
        return tree.flatten(value)
    except (TypeError, ValueError):  # not a pytree: sets of mixed types and the like
        return [], None


# --- functions that read names as they were


def frozen(fn: Any, done: dict[int, Any] | None = None) -> Any:
    """`fn`, with the values that its closure and its global names have now.

    Also that of the functions it reaches, by name or closure. What it writes stays shared.
    """
    return _frozen(fn, {} if done is None else done)


def _frozen(value: Any, done: dict[int, Any]) -> Any:
    if id(value) in done:
        return done[id(value)]
    if isinstance(value, types.MethodType):
        return types.MethodType(_frozen(value.__func__, done), value.__self__)
    if type(value) is functools.partial:
        return functools.partial(_frozen(value.func, done), *value.args, **value.keywords)
    if not isinstance(value, types.FunctionType) or (_is_ours(value) and not value.__closure__):
        return value
    code = value.__code__
    space, globals_read = value.__globals__, global_names(code)
    if _is_ours(value) or _written_globals(code):
        globals_read = ()
    else:
        space = {name: x for name, x in space.items() if name.startswith("__")}
    written = _written_cells(code)
    cells = [
        cell if name in written else types.CellType()
        for name, cell in zip(code.co_freevars, value.__closure__ or (), strict=True)
    ]
    copy = types.FunctionType(code, space, value.__name__, value.__defaults__, tuple(cells))
    copy.__kwdefaults__ = value.__kwdefaults__
    copy.__qualname__, copy.__module__ = value.__qualname__, value.__module__
    copy.__dict__.update(value.__dict__)
    done[id(value)] = copy
    same = True
    for cell, now in zip(cells, value.__closure__ or (), strict=True):
        content = _cell(now)
        if cell is not now and content is not _EMPTY:
            cell.cell_contents = _frozen(content, done)
            same = same and _is_stable(content) and cell.cell_contents is content
    for name in globals_read:
        content = value.__globals__.get(name, _EMPTY)
        if content is not _EMPTY:
            space[name] = _frozen(content, done)
            same = same and _is_stable(content) and space[name] is content
    if same:  # nothing it reads can change: keep its identity
        done[id(value)] = value
    return done[id(value)]


def _is_ours(fn: types.FunctionType) -> bool:
    return str(fn.__globals__.get("__name__", "")).partition(".")[0] in _OURS


def _is_stable(value: Any) -> bool:
    return isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType, types.FunctionType))


@functools.lru_cache(4096)
def _written_globals(code: types.CodeType) -> tuple[str, ...]:
    return _named(code, "STORE_GLOBAL", "DELETE_GLOBAL")


@functools.lru_cache(4096)
def _written_cells(code: types.CodeType) -> frozenset[str]:
    return frozenset(_named(code, "STORE_DEREF", "DELETE_DEREF")) & frozenset(code.co_freevars)


# --- functions that compute the same


class Same:
    """A value that can stand for nothing but itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def likeness(value: Any) -> Any:
    """What functions that compute the same have in common, however often they were made.

    Code and what it reads: numbers by value, tensors and other things that cannot change by identity. A
    function that reads what can change has only itself.
    """
    try:
        return _likeness(value, {})
    except _Changeable:
        return Same(value)


class _Changeable(Exception):  # noqa: N818  # no user sees it
    """A value that may not be tomorrow what it is today."""


def _likeness(value: Any, seen: dict[int, int]) -> Any:
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value), repr(value)
    if id(value) in seen:
        return "again", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, tuple):
        return type(value), *[_likeness(x, seen) for x in value]
    if isinstance(value, types.MethodType):
        return "method", _likeness(value.__func__, seen), _likeness(value.__self__, seen)
    if type(value) is functools.partial:
        named = tuple(value.keywords.items())
        return "partial", _likeness(value.func, seen), _likeness(value.args, seen), _likeness(named, seen)
    if isinstance(value, types.FunctionType) and (value.__closure__ or not _is_ours(value)):
        code = value.__code__
        if _written_cells(code) or _written_globals(code):
            raise _Changeable
        cells = tuple([_cell(cell) for cell in value.__closure__ or ()])
        names = () if _is_ours(value) else global_names(code)
        space = tuple([value.__globals__.get(name, _EMPTY) for name in names])
        defaults = (value.__defaults__, tuple((value.__kwdefaults__ or {}).items()))
        return code, *[_likeness(x, seen) for x in (cells, space, defaults)]
    if hasattr(value, "_rules") and callable(value):  # of custom_vjp and custom_jvp
        return type(value), _likeness(value._rules, seen)
    if value is _EMPTY or _is_stable(value) or isinstance(value, (Handle, jax.Array)):
        return Same(value)
    raise _Changeable
