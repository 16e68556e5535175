"""What to write instead of names that other libraries have, for the errors that miss them."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Iterable
from functools import partial
from types import ModuleType
from typing import Any

from functad.errors import UnknownAttributeError
from functad.foreign import IN_MODULES, INSTEAD, MODES, OF_MODULES, SET, SETTING
from functad.foreign_attributes import ATTRIBUTES, FUNCTIONS, OTHERS

PUBLIC = frozenset(
    f"functad.{name}"
    for name in (
        *("errors", "nn", "nn.functional", "nn.init", "numpy", "numpy.fft", "numpy.linalg", "op", "ops", "optim"),
        *("quant", "random", "special", "testing", "tree"),
    )
)
"""The modules that users reach by name; others are files."""

_NAMESPACES = ("functad", "functad.numpy", "functad.nn.functional", "functad.numpy.linalg", "functad.special")
"""Where the names of other libraries' functions are looked for."""

_ELSEWHERE = (
    ("functad", "fd"),
    ("functad.nn.functional", "fd.nn.functional"),
    ("functad.numpy", "fd.numpy"),
    ("functad.special", "fd.special"),
    ("functad.numpy.linalg", "fd.numpy.linalg"),
    ("functad.numpy.fft", "fd.numpy.fft"),
    ("functad.nn", "fd.nn"),
    ("functad.optim", "fd.optim"),
    ("functad.ops", "fd.ops"),
)


def foreign_names(kind: type) -> dict[str, tuple[str | Callable[[], str], str]]:
    """Names that tensors, of a class, lack, and the texts of the errors for reading and setting them."""
    texts: dict[str, str | Callable[[], str]] = {
        name: f"; write {instead}" for name, instead in (ATTRIBUTES | INSTEAD).items()
    }
    methods = [name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name, None))]
    known = {name: f"x.{name}(...)" for name in methods} | ATTRIBUTES | INSTEAD
    for name, instead in known.items():
        texts.setdefault(f"{name}_", f"; tensors are immutable: write x = {instead}")
    for name in FUNCTIONS:
        texts.setdefault(name, partial(_function, name, "; write "))
        texts.setdefault(f"{name}_", partial(_function, name, "; tensors are immutable: write x = "))
    for name in OTHERS:
        texts.setdefault(name, ", and there is nothing like it here")
    return {
        name: (
            f"tensors have no attribute {name!r}{text}." if isinstance(text, str) else partial(_missed, name, text),
            f": instead of x.{name} = value write {SETTING[name]}" if name in SETTING else "",
        )
        for name, text in texts.items()
        if not hasattr(kind, name)
    }


def _missed(name: str, text: Callable[[], str]) -> str:
    return f"tensors have no attribute {name!r}{text()}."


def _function(name: str, how: str) -> str:
    """Where the function is that a tensor has not as a method."""
    where = home_of(name)
    return "" if where is None else f"{how}{where}(x, ...)"


def settings(kind: type) -> dict[str, str]:
    """The properties of tensors, of a class, and the texts of the errors for setting them; of methods those that are set."""
    names = [name for name in dir(kind) if not name.startswith("_") and isinstance(getattr(kind, name, None), property)]
    return {
        name: f"tensors are immutable: instead of x.{name} = value write {SET[name]}."
        if name in SET
        else f"tensors are immutable: x.{name} = value cannot be."
        for name in [*names, "require_grad"]
    }


def missing_part(kind: str, name: str, have: Iterable[str], unfinished: bool) -> UnknownAttributeError:
    """The error for a name that a Module lacks."""
    fields = [n for n in have if not n.startswith("_")]
    if name in OF_MODULES:
        return UnknownAttributeError(f"{kind} has no attribute {name!r}; write {OF_MODULES[name]}.")
    when = f", or not yet: assign self.{name} before reading it" if unfinished else ""
    return UnknownAttributeError(
        f"{kind} has no attribute {name!r}{when}; its fields are: {', '.join(fields) or 'none'}."
    )


def setting_part(name: str, fields: Iterable[str]) -> str:
    """What to write instead of assigning to a name of a Module that is made."""
    known = {"training": MODES, "train": MODES}.get(name, OF_MODULES.get(name))
    if name in fields:
        return (
            f"instead of model.{name} = value write model = model.replace({name}=value), or for a part of a part "
            "model = model.replace({'layers.0.weight': value})"
        )
    if known:
        return f"instead of model.{name} = value write {known}"
    near = difflib.get_close_matches(name, list(fields), 1)
    meant = f"did you mean {near[0]!r}" if near else f"its fields are {', '.join(fields) or 'none'}"
    return (
        f"model.{name} = value cannot be, and {name!r} is no field that model.replace could change; {meant}. What a model "
        "has, its class says: fields are assigned in __init__, methods defined"
    )


def missing_name(module: str, name: str, have: Iterable[str] = ()) -> UnknownAttributeError:
    """The error for a name that a module of functad lacks: what to write, where it is, or what is spelled like it."""
    hint, known = "", IN_MODULES.get(module, {})
    if not name.startswith("_"):
        plain = name.rstrip("_")
        where = [there for path, there in _ELSEWHERE if path != module and _has(path, plain)]
        near = difflib.get_close_matches(name, [n for n in have if not n.startswith("_")], n=1, cutoff=0.75)
        if name in known:
            hint = f"; write {known[name]}"
        elif plain != name and plain in have:
            hint = f"; tensors are immutable: write {plain}, which returns a new one"
        elif where:
            hint = f"; it is {where[0]}.{plain}"
        elif module in _NAMESPACES and plain in INSTEAD:
            hint = f"; write {INSTEAD[plain]}"
        elif module in _NAMESPACES and callable(getattr(vars(sys.modules["functad.tensor"])["Tensor"], plain, None)):
            hint = f"; write x.{plain}(...)"
        elif near:
            hint = f"; did you mean {near[0]!r}?"
    return UnknownAttributeError(f"{module} has no {name!r}{hint}{'' if hint.endswith('?') else '.'}")


def home_of(name: str) -> str | None:
    """Where a function of a name is here: `fd.special.expit`."""
    found = [there for path, there in _ELSEWHERE if _has(path, name)]
    return f"{found[0]}.{name}" if found else None


def known_name(module: str, name: str) -> str | None:
    """What to write for a name of another library, where that is known."""
    return IN_MODULES.get(module, {}).get(name)


def listed(names: dict[str, Any], *hidden: str) -> list[str]:
    """What `dir` shows of a module: its public names, without the files that they come from."""
    package = names["__name__"]
    return sorted(
        name
        for name, value in names.items()
        if name not in hidden
        and (name.startswith("__") or not name.startswith("_"))
        and not (
            isinstance(value, ModuleType) and value.__name__ == f"{package}.{name}" and value.__name__ not in PUBLIC
        )
        and type(value).__module__ != "__future__"
    )


def _has(module: str, name: str) -> bool:
    found: Any = sys.modules.get(module)
    return found is not None and callable(vars(found).get(name))
