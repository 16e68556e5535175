"""Functions made of ops on half types: computed in float32 and rounded once, as an op is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from functad import dtypes
from functad.dispatch import Handle
from functad.ops.rules import cast

F = TypeVar("F", bound=Callable[..., Any])

ROUNDED_ONCE: dict[str, Callable[..., Any]] = {}
"""The functions that are so, by module and name; a test has a call of each."""


def rounded_once(fn: F) -> F:
    """`fn` with half inputs computed in float32, and its results rounded to their type.

    Between its steps nothing is rounded then, and no gradient either. Inputs of another float type, or of both
    half types, promote as they do without it; so do results under an argument `dtype`.
    """

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        for x in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(x, Handle):
                if x._dtype.itemsize == 2:
                    return _rounded(fn, args, kwargs)
            elif type(x) in _SEQUENCES and _holds_half(x):
                return _rounded(fn, args, kwargs)
        return fn(*args, **kwargs)

    call.again = rounded_once  # type: ignore[attr-defined]  # what wraps the function inside has to go in between
    ROUNDED_ONCE[f"{fn.__module__}.{fn.__qualname__}"] = call
    return call  # type: ignore[return-value]


_SEQUENCES = (list, tuple)


def _holds_half(xs: Iterable[Any]) -> bool:
    return any([  # noqa: C419  # quicker than a generator
        x._dtype.itemsize == 2 if isinstance(x, Handle) else type(x) in _SEQUENCES and _holds_half(x) for x in xs
    ])  # fmt: skip


def _rounded(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found: set[Any] = set()
    _collect(args, found)
    _collect(kwargs.values(), found)
    if len(found) != 1 or not dtypes.is_half(dtype := found.pop()) or _has_dtype(fn, args, kwargs):
        return fn(*args, **kwargs)
    wide, names = _each(args, dtype, dtypes.float32), {k: _each(v, dtype, dtypes.float32) for k, v in kwargs.items()}
    return _each(fn(*wide, **names), dtypes.float32, dtype)


def _collect(xs: Iterable[Any], found: set[Any]) -> None:
    """The dtypes of what is float and no Python number."""
    for x in xs:
        if isinstance(x, (list, tuple)):
            _collect(x, found)
        elif (dtype := getattr(x, "dtype", None)) is not None and dtypes.is_inexact(dtype):
            found.add(dtype)


def _has_dtype(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    try:
        return inspect.signature(fn).bind(*args, **kwargs).arguments.get("dtype") is not None
    except TypeError:  # which the call will say
        return False


def _each(x: Any, old: Any, new: Any) -> Any:
    """`x`, in which tensors of one dtype have another one."""
    if isinstance(x, Handle):
        return cast(x, new) if x._dtype == old else x
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*[_each(y, old, new) for y in x])
    return type(x)(_each(y, old, new) for y in x) if type(x) in _SEQUENCES else x
