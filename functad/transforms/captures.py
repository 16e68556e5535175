"""The tensors a function reaches from outside: by closure, by global name, or through a Module."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

from functad import tree
from functad.dispatch import Handle

_OURS = ("functad", "jax", "numpy", "optree", "builtins")
_PLAIN = (int, float, str, bytes, bool, type, types.ModuleType, types.BuiltinFunctionType, type(None))

def reachable(fn: Any) -> list[Any]:
    """The tensors that `fn` reaches now, in an order that its code fixes."""
    found: list[Any] = []
    seen: set[int] = set()
    stack = [fn]
    while stack:
        value = stack.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Handle):
            found.append(value)
        elif isinstance(value, types.FunctionType):
            if not value.__module__ or value.__module__.partition(".")[0] not in _OURS:
                stack.extend(_references(value))
        elif isinstance(value, types.MethodType):
            stack.extend((value.__func__, value.__self__))
        elif isinstance(value, functools.partial):
            stack.extend((value.func, *value.args, *value.keywords.values()))
        elif callable(value) and hasattr(value, "__wrapped__"):
            stack.append(value.__wrapped__)
        else:
            stack.extend(x for x in _leaves(value) if x is not value)
    return found

def _references(fn: types.FunctionType) -> Iterator[Any]:
    """What a function's code names outside itself."""
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from fn.__defaults__ or ()
    yield from (fn.__kwdefaults__ or {}).values()
    for name in _names(fn.__code__):
        if name in fn.__globals__:
            yield fn.__globals__[name]

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

Callable_ = Callable[..., Any]
