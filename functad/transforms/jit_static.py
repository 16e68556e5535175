"""Which arguments of a jitted function are static, and which are donated."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError


def static_of(fn: Any, nums: Any, names: Any) -> tuple[tuple[int, ...], tuple[str, ...], list[str]]:
    """Static arguments by position and by name, each recognised however it is passed; the names of all."""
    numbers = ints(nums, "static_argnums")
    chosen = [names] if isinstance(names, str) else list(names)
    try:
        signature = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return tuple(numbers), tuple(chosen), []
    parameters = [p.name for p in signature]
    positional = [p.name for p in signature if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    kinds = {p.kind for p in signature}
    found = within(numbers, nums, "static_argnums", fn, positional)
    if inspect.Parameter.VAR_POSITIONAL not in kinds:
        numbers = [n % len(positional) for n in numbers]
    chosen += [positional[n] for n in found]
    if not set(chosen) <= set(parameters) and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ArgumentError(f"jit: static_argnames={names!r}, but the arguments of the function are {parameters}.")
    by_name = [positional.index(name) for name in chosen if name in positional]
    return tuple(dict.fromkeys([*numbers, *by_name])), tuple(dict.fromkeys(chosen)), positional


def within(numbers: Sequence[int], given: Any, where: str, fn: Any, positional: Sequence[str]) -> list[int]:
    """Those numbers that are places of named arguments; raises if one is no place at all."""
    found = [n for n in numbers if -len(positional) <= n < len(positional)]
    kinds = {p.kind for p in inspect.signature(fn).parameters.values()}
    if len(found) < len(numbers) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        raise ArgumentError(f"jit: {where}={given!r}, but the function takes {len(positional)} by position.")
    return found


def ints(value: Any, where: str) -> list[int]:
    """One int or several, as a list."""
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    if not all(isinstance(v, int) for v in values):
        raise ArgumentError(f"jit: {where} must be an int or a sequence of ints, got {value!r}.")
    return values


_HASHABLE: dict[type, str] = {
    list: "a tuple, tuple({0})",
    dict: "a tuple of its items, tuple({0}.items())",
    set: "frozenset({0})",
}


def unhashable(name: str, static: Any, positional: Sequence[str]) -> ArgumentTypeError:
    """The error for a static argument that cannot be told from others."""
    for place, value in (*static[0], *static[1]):
        try:
            hash(value)
        except TypeError:
            named = place if isinstance(place, str) else positional[place] if place < len(positional) else str(place)
            kind = type(value)
            if isinstance(value, (Handle, np.ndarray, jax.Array)):
                instead = (
                    "Leave it out of static_argnums and static_argnames: tensors and arrays are ordinary arguments."
                )
            elif kind in _HASHABLE:
                instead = f"Pass {_HASHABLE[kind].format(named)}, or leave it out of static_argnums if it holds numbers and tensors."
            else:
                instead = (
                    f"Give {kind.__name__} a __hash__ that goes with its __eq__, or leave it out of static_argnums."
                )
            return ArgumentTypeError(
                f"jit({name}): static argument {named} is {value!r} of type {kind.__name__}, which has no hash, by which what "
                f"was compiled for one value is told from that for another. {instead}"
            )
    return ArgumentTypeError(f"jit({name}): a static argument has no hash.")
