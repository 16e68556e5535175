"""NumPy's arguments: its names for ours, and those of them that immutable tensors cannot take."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from functad import dtypes
from functad.culprits import DEEP
from functad.dispatch import Handle
from functad.errors import ArgumentTypeError, ConcreteValueError, ImmutableError
from functad.keywords import refusal
from functad.ops.operand import operand

__all__: list[str] = []

IGNORED = ("casting", "kind", "order", "subok")
"""Arguments about how NumPy lays data out or sorts it, which cannot change a result here."""


def named(fn: Callable[..., Any], *extra: str, **names: str) -> Callable[..., Any]:
    """`fn` under NumPy's argument names too.

    Args:
        fn: a function of ours.
        extra: NumPy's further arguments: `out`, which is refused, and those that make no difference.
        names: NumPy's name of an argument, and ours: `a="x"`.
    """
    own = inspect.signature(fn)
    renamed = {ours: theirs for theirs, ours in names.items()}
    kept = [p.replace(name=renamed.get(name, name)) for name, p in own.parameters.items()]
    more = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in extra]
    tail = [p for p in kept if p.kind is p.VAR_KEYWORD]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            refuse_out(kwargs.pop("out", None), fn.__name__)
            for name in extra:
                kwargs.pop(name, None)
            for theirs, ours in names.items():
                if theirs in kwargs:
                    if ours in kwargs:
                        raise ArgumentTypeError(f"{fn.__name__}: {theirs} and {ours} are two names of one argument.")
                    kwargs[ours] = kwargs.pop(theirs)
        try:
            return fn(*args, **kwargs)
        except DEEP as error:
            better = refusal(error, fn.__name__, fn, args, kwargs, taken=lambda: inspect.signature(call))
            if better is None:
                raise
        try:
            raise better
        finally:
            del better

    call.__doc__ = _renamed(fn.__doc__, renamed)
    call.__signature__ = inspect.Signature([*[p for p in kept if p not in tail], *more, *tail])  # type: ignore[attr-defined]
    return call


def _renamed(doc: str | None, names: dict[str, str]) -> str | None:
    """A docstring with other names of arguments, in its list of them and where they are quoted."""

    def with_names(found: re.Match[str]) -> str:
        return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), found[0])

    return doc and re.sub(r"^ +\w+(?=: )|`[^`\n]+`", with_names, doc, flags=re.MULTILINE)


def refuse_out(out: Any, where: str) -> None:
    """Raise if a result is to be written into an array."""
    if out is not None and not (isinstance(out, tuple) and all(x is None for x in out)):
        raise ImmutableError(f"{where}: tensors are immutable, so there is no out=; write y = {where}(...) instead.")


def beside(where: str, *xs: Any) -> list[Any]:
    """Arguments of one function: arrays and lists go to the device of the first tensor; numbers and None stay."""
    like = next((x for x in xs if isinstance(x, Handle)), None)
    stay = (Handle, *dtypes.SCALARS)
    return [x if x is None or isinstance(x, stay) else operand(x, like, where=where) for x in xs]


def host(x: Any, where: str, why: str = "it decides the shape of the result") -> Any:
    """`x`, whose values have to be known, as a NumPy array."""
    if not isinstance(x, Handle):
        x = operand(x, where=where)
    try:
        return x.numpy()
    except ConcreteValueError:
        raise ConcreteValueError(
            f"{where}: needs values, which are not known under vmap or jit: {why}. Call it outside, or keep the shape "
            "with fd.where and masks."
        ) from None


def known(x: Any) -> Any:
    """`x` as a NumPy array if it comes from the host (a number, a list, an array), else None."""
    if isinstance(x, Handle):
        return None
    array = np.asarray(x) if isinstance(x, (int, float, list, tuple, np.ndarray, np.generic)) else None
    return array if array is not None and array.dtype != object else None
