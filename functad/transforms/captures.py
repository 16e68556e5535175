"""The tensors a function reaches from outside: by closure, by global name, or through a Module."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from functad import tree
from functad.dispatch import Handle

_OURS = ("functad", "jax", "numpy", "optree", "builtins")
_PLAIN = (int, float, str, bytes, bool, type, types.ModuleType, types.BuiltinFunctionType, type(None))
_EMPTY = object()  # an unfilled cell, a global that is not there

Read = Callable[[], Any]


def reachable(fn: Any) -> list[Any]:
    """The tensors that `fn` reaches now, in an order that its code fixes."""
    return Captures(fn)()


class Captures:
    """Finds the tensors a function reaches; quick when nothing but tensors has been rebound."""

    def __init__(self, fn: Any):
        self._fn = fn
        self._others: list[tuple[Read, Any]] = []  # what was found to be no tensor, and must still be that
        self._tensors: list[tuple[Read, bool]] = []  # where tensors are; whether in a container
        self._walk()

    def __call__(self) -> list[Any]:
        for read, value in self._others:
            if read() is not value:
                self._walk()
                break
        found = self._collect()
        if found is None:  # a tensor was rebound to something else
            self._walk()
            found = self._collect()
        assert found is not None
        return found

    def _collect(self) -> list[Any] | None:
        found: list[Any] = []
        for read, inside in self._tensors:
            value = read()
            if inside:
                found.extend(x for x in _leaves(value) if isinstance(x, Handle))
            elif isinstance(value, Handle):
                found.append(value)
            else:
                return None
        return found

    def _walk(self) -> None:
        self._others, self._tensors = [], []
        seen: set[int] = set()
        queue: list[Read] = [_constant(self._fn)]
        for read in queue:
            value = read()
            if isinstance(value, Handle):
                self._tensors.append((read, False))
                continue
            if id(value) not in seen:
                seen.add(id(value))
                queue.extend(self._references(read, value))
            self._others.append((read, value))
        self._others = [(read, value) for read, value in self._others if not isinstance(read, _constant)]

    def _references(self, read: Read, value: Any) -> list[Read]:
        """What a value that is no tensor refers to in turn."""
        if isinstance(value, _PLAIN):
            return []
        if isinstance(value, types.FunctionType):
            if (value.__module__ or "").partition(".")[0] in _OURS and not value.__closure__:
                return []
            return _code_references(value)
        if isinstance(value, types.MethodType):
            return [_constant(value.__func__), _constant(value.__self__)]
        if isinstance(value, functools.partial):
            return [_constant(x) for x in (value.func, *value.args, *value.keywords.values())]
        if callable(value) and hasattr(value, "__wrapped__"):
            return [_constant(value.__wrapped__)]
        leaves = _leaves(value)
        if any(isinstance(x, Handle) for x in leaves):
            self._tensors.append((read, True))
        return [_constant(x) for x in leaves if x is not value and not isinstance(x, Handle)]


class _constant:
    """Reads what cannot be rebound."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _code_references(fn: types.FunctionType) -> list[Read]:
    """What a function's code names outside itself."""
    reads: list[Read] = [functools.partial(_cell, cell) for cell in fn.__closure__ or ()]
    reads += [_constant(x) for x in (*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values())]
    if (fn.__module__ or "").partition(".")[0] not in _OURS:
        space = fn.__globals__
        reads += [functools.partial(space.get, name, _EMPTY) for name in _names(fn.__code__) if name in space]
    return reads


def _cell(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return _EMPTY


@functools.lru_cache(4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The names that code and the functions defined in it look up."""
    names = list(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names.extend(_names(constant))
    return tuple(dict.fromkeys(names))


def _leaves(value: Any) -> list[Any]:
    try:
        return tree.leaves(value)
    except (TypeError, ValueError):  # not a pytree: sets of mixed types and the like
        return []
