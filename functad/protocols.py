"""NumPy's dispatch protocols: `np.sin(x)` and `np.median(x)` on a tensor run functad's function.

`functad.numpy` says which function of NumPy each of its own stands for. One that functad lacks
works on untracked tensors through their NumPy value; on tracked ones it is refused, since it
would cut the gradient silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np

from functad import tree
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, ImmutableError
from functad.hints import home_of

STANDARD_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")
"""The versions of the array API standard that `functad.numpy` fulfils."""

TABLE: dict[Any, Callable[..., Any]] = {}
"""Ours, by NumPy's function or ufunc."""

NAMESPACES: list[ModuleType] = []
"""The array namespace of tensors, once it is imported."""

_ON_VALUES = (np.array2string, np.array_repr, np.array_str)
"""Functions whose results have no derivative: they may look at the values of tracked tensors."""

_IN_PLACE = (np.copyto, np.fill_diagonal, np.place, np.put, np.put_along_axis, np.putmask)
_REDUCE: dict[Any, Any] = {
    np.add: np.sum, np.multiply: np.prod, np.maximum: np.max, np.minimum: np.min, np.logical_and: np.all,
    np.logical_or: np.any,
}  # fmt: skip
_ACCUMULATE: dict[Any, Any] = {np.add: np.cumsum, np.multiply: np.cumprod}


def enter(module: ModuleType) -> None:
    """Make `module` the array namespace of tensors, which NumPy's functions run."""
    adopt(np, vars(module))
    NAMESPACES.append(module)


def adopt(theirs: ModuleType, ours: dict[str, Any]) -> None:
    """Let the functions of a module of NumPy, and of its submodules, run ours of the same name."""
    for name, value in list(ours.items()):
        found = getattr(theirs, name, None)
        if name.startswith("_") or found is None:
            continue
        if isinstance(value, ModuleType):
            if isinstance(found, ModuleType):
                adopt(found, vars(value))
        elif callable(found) and callable(value) and not isinstance(found, type):
            TABLE[found] = value


def namespace(version: str | None) -> ModuleType:
    """`Tensor.__array_namespace__`."""
    if version is not None and version not in STANDARD_VERSIONS:
        listed = ", ".join(STANDARD_VERSIONS)
        raise ArgumentError(f"__array_namespace__: there is no version {version!r} of the standard here; use {listed}.")
    return NAMESPACES[0]


def numpy_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.__array_ufunc__`."""
    if not _writes(kwargs):
        ours = TABLE.get(ufunc)
        if method == "__call__" and ours is not None and not kwargs:
            return ours(*inputs)
        if method == "__call__" and ours is not None and set(kwargs) == {"dtype"}:
            return tree.map(lambda x: x.astype(kwargs["dtype"]), ours(*inputs))
        if method == "__call__" and ours is not None and _takes(ours, inputs, kwargs):
            return ours(*inputs, **kwargs)
        if method == "outer" and ours is not None and not kwargs and len(inputs) == 2:
            x, y = (TABLE[np.asarray](x) for x in inputs)
            return ours(x.reshape((*x.shape, *[1] * y.ndim)), y)
        whole = _REDUCE.get(ufunc) if method == "reduce" else _ACCUMULATE.get(ufunc) if method == "accumulate" else None
        if whole is not None and len(inputs) == 1:
            options = {"axis": 0, **kwargs}
            options.pop("out", None)
            if _takes(TABLE[whole], inputs, options):
                return TABLE[whole](*inputs, **options)
    call = ufunc if method == "__call__" else getattr(ufunc, method)
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    return _on_values(call, name, inputs, kwargs)


def numpy_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.__array_function__`."""
    if func in _ON_VALUES:
        return func(*tree.map(_value, args), **tree.map(_value, kwargs))
    if func in _IN_PLACE and args and isinstance(args[0], Handle):
        name = func.__name__
        instead = (
            "x.at[...].set(v)" if name == "copyto" else f"x = functad.numpy.{name}(x, ...), which returns a new one"
        )
        raise ImmutableError(f"np.{name}: tensors are immutable; write {instead}.")
    ours = TABLE.get(func)
    if ours is not None and not _writes(kwargs) and _takes(ours, args, kwargs):
        return ours(*args, **kwargs)
    return _on_values(func, func.__name__, args, kwargs)


def _writes(kwargs: dict[str, Any]) -> bool:
    """Whether an array is to be written into."""
    out = kwargs.get("out")
    return any(x is not None for x in out) if isinstance(out, tuple) else out is not None


def _takes(ours: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    signature = _signature(ours)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return not kwargs or all(
        name in signature.parameters or not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
        for name in kwargs
    )


@lru_cache(1024)
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


def _on_values(call: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    def value(x: Any) -> Any:
        if not isinstance(x, Handle):
            return x
        if x._moves():  # type: ignore[attr-defined]
            whole = f"np.{name}" if hasattr(np, name.partition(".")[0]) else name
            ours = home_of(name)
            raise ArgumentTypeError(
                f"{whole}: {'' if ours else 'functad has no such function for these arguments, and '}computing it in NumPy would "
                f"cut the gradient of a tracked tensor silently. {f'Write {ours}(...)' if ours else 'Compose it from functad functions'}"
                ", or say that the cut is meant: x.numpy()."
            )
        return x.numpy()  # type: ignore[attr-defined]

    args, kwargs = tree.map(value, (args, kwargs))
    return call(*args, **kwargs)


def _value(x: Any) -> Any:
    return x.numpy() if isinstance(x, Handle) else x  # type: ignore[attr-defined]  # Tensor's
