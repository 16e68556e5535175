"""NumPy's dispatch protocols: `np.sin(x)` and `np.sum(x)` on a tensor run functad's function.

A NumPy function that functad lacks works on untracked tensors through their NumPy value; on
tracked ones it is refused, since it would cut the gradient silently.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np

from functad import ops, tree
from functad.dispatch import Handle, bind
from functad.errors import ArgumentTypeError
from functad.ops.rules import zeros_like_op

_RENAMED = {
    "absolute": "abs",
    "amax": "max",
    "amin": "min",
    "bitwise_invert": "bitwise_not",
    "conjugate": "conj",
    "divide": "div",
    "invert": "bitwise_not",
    "mod": "remainder",
    "multiply": "mul",
    "negative": "neg",
    "power": "pow",
    "rint": "round",
    "subtract": "sub",
    "true_divide": "div",
}
"""NumPy's names that are not the op's."""

_OPTIONS = {"a_max": "max", "a_min": "min"}
_ATTRIBUTES = ("ndim", "shape", "size")
_UNDIFFERENTIATED = ("allclose", "array2string", "array_equal", "array_repr", "array_str", "isclose")
"""Functions whose results have no derivative: they may look at the values of tracked tensors."""


def numpy_ufunc(ufunc: Any, method: str, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.__array_ufunc__`."""
    ours = _find(ufunc.__name__) if method == "__call__" and not kwargs else None
    if ours is not None:
        return ours(*inputs)
    call = ufunc if method == "__call__" else getattr(ufunc, method)
    name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
    return _on_values(call, name, inputs, kwargs)


def numpy_function(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`Tensor.__array_function__`."""
    if func.__name__ in _ATTRIBUTES and len(args) == 1 and not kwargs:
        return getattr(args[0], func.__name__)
    if func.__name__ in _UNDIFFERENTIATED:
        return func(*tree.map(_value, args), **tree.map(_value, kwargs))
    if func.__name__ in ("zeros_like", "ones_like") and len(args) == 1 and not kwargs:
        zeros = bind(zeros_like_op, (args[0],))
        return zeros if func.__name__ == "zeros_like" else zeros + 1
    call = _translated(func, args, kwargs)
    return call() if call is not None else _on_values(func, func.__name__, args, kwargs)


def _translated(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """The call of functad's function with NumPy's arguments, by name; None if it lacks one of them."""
    ours = _find(func.__name__) if func.__module__ == "numpy" or func is np.linalg.norm else None
    if ours is None or (func is np.linalg.norm and not _is_vector_norm(*args, **kwargs)):
        return None
    numpys, own = _signature(func), _signature(ours)
    if numpys is None or own is None:
        return partial(ours, *args, **kwargs)
    bound = numpys.bind(*args, **kwargs)
    leading: list[Any] = []
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        parameter = numpys.parameters[name]
        if parameter.kind is parameter.VAR_POSITIONAL:
            leading.extend(value)
        elif parameter.default is parameter.empty and not named:
            leading.append(value)
        elif value is not parameter.default:
            named[_OPTIONS.get(name, name)] = value
    try:
        own.bind(*leading, **named)
    except TypeError:
        return None
    return partial(ours, *leading, **named)


def _is_vector_norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> bool:
    return ord is None or isinstance(axis, int) or (axis is None and np.ndim(x) == 1)


@lru_cache(1024)
def _signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):  # some of NumPy's are written in C
        return None


def _find(name: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = getattr(ops, _RENAMED.get(name, name), None)
    return found if callable(found) else None


def _on_values(call: Callable[..., Any], name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    def value(x: Any) -> Any:
        if not isinstance(x, Handle):
            return x
        if x._moves():  # type: ignore[attr-defined]
            raise ArgumentTypeError(
                f"np.{name}: functad has no such function for these arguments, and computing it in NumPy would cut the "
                "gradient of a tracked tensor silently. Compose it from functad functions, or say that the cut is "
                "meant: x.numpy()."
            )
        return x.numpy()  # type: ignore[attr-defined]

    args, kwargs = tree.map(value, (args, kwargs))
    return call(*args, **kwargs)


def _value(x: Any) -> Any:
    return x.numpy() if isinstance(x, Handle) else x  # type: ignore[attr-defined]  # Tensor's
