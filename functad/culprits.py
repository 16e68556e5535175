"""Which argument made a call fail: an error from further in, told in the words of the function that was called.

Front doors check what they can say something better about. What gets past them fails in Python, NumPy or JAX, whose
error knows no argument; the function's signature and annotations find the one that it cannot be about.
"""

from __future__ import annotations

import inspect
import operator
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any

from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    FunctadError,
    OutOfBoundsError,
    ShapeError,
)

DEEP = (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError, NotImplementedError)
"""What an argument that nobody expected runs into further in."""

_LIBRARIES = frozenset(("functad", "jax", "jaxlib", "numpy", "ml_dtypes", "scipy", "optree", "opt_einsum"))
_LONGEST = 60


def told(
    error: Exception, name: str, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> FunctadError | None:
    """What to raise in place of `error`, which a call of `fn` ran into; None for what is no matter of its arguments."""
    trace = error.__traceback__
    if isinstance(error, (FunctadError, Warning)) or trace is None or trace.tb_next is None or not _is_ours(trace):
        return None
    given = dict(_arguments(fn, args, kwargs))
    problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0].rstrip('.')}"
    wrong = next(((key, text) for key, (value, of) in given.items() if (text := _mismatch(value, of))), None)
    if wrong is not None:
        key, text = wrong
        return ArgumentTypeError(f"{name}: {key} must be {text}, got {_shown(given[key][0])}.{_traced(given[key][0])}")
    odd = next((key for key, (value, of) in given.items() if _is_odd(value, of)), None)
    if odd is not None:
        return ArgumentTypeError(
            f"{name}: {odd} cannot be {_shown(given[odd][0])} ({problem}); help({name}) says what it takes."
        )
    shown = ", ".join(f"{key}={_shown(value)}" for key, (value, of) in given.items() if value is not of.default)
    return _kind(error)(f"{name}: cannot go on with {shown} ({problem}); help({name}) says what each may be.")


def check_flag(where: str, key: str, value: Any, or_none: bool) -> None:
    """Raise for what is given as a yes or no and is neither; numbers pass, whose truth is plain."""
    if not _is_flag(value) and not (or_none and value is None):
        raise ArgumentTypeError(f"{where}: {key} must be True or False, got {_shown(value)}.")


def flags_of(fn: Callable[..., Any]) -> dict[str, int]:
    """The arguments of a function that are a yes or no, and their places: by position, if they may be given so."""
    return {
        p.name: i if p.kind is p.POSITIONAL_OR_KEYWORD else sys.maxsize
        for i, p in enumerate(inspect.signature(fn).parameters.values())
        if (str(p.annotation) == "bool" and isinstance(p.default, bool)) or str(p.annotation) == "bool | None"
    }


def _is_flag(value: Any) -> bool:
    return isinstance(value, int) or getattr(value, "shape", None) == ()


def _is_ours(trace: TracebackType) -> bool:
    """Whether the error came about in functad or a library, and not in a function of the user's that was called."""
    step: TracebackType | None = trace
    while step is not None:
        top = str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        if top not in _LIBRARIES and top not in sys.stdlib_module_names:
            return False
        step = step.tb_next
    return True


def _arguments(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterator[tuple[str, tuple[Any, inspect.Parameter]]]:
    """What was given to a function, by name."""
    try:
        signature = inspect.signature(fn)
        bound = signature.bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return
    for key, value in bound.items():
        of = signature.parameters[key]
        if of.kind is of.VAR_POSITIONAL:
            for i, one in enumerate(value):
                yield f"{key}[{i}]", (one, of.replace(annotation="Any"))
        elif of.kind is of.VAR_KEYWORD:
            for word, one in value.items():
                yield word, (one, of.replace(annotation="Any"))
        elif key != "self":
            yield key, (value, of)


def _is_int(x: Any) -> bool:
    if isinstance(x, bool) or type(x).__name__ == "bool":
        return False
    try:
        operator.index(x)
    except (TypeError, ValueError):
        return False
    return True


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) or (hasattr(x, "dtype") and getattr(x, "shape", None) == ())


def _is_ints(x: Any) -> bool:
    return isinstance(x, (tuple, list, range)) and all(_is_int(n) for n in x)


_TESTS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "None": ("None", lambda x: x is None),
    "bool": ("True or False", _is_flag),
    "int": ("an int", _is_int),
    "float": ("a number", _is_number),
    "complex": ("a number", lambda x: isinstance(x, complex) or _is_number(x)),
    "str": ("a string", lambda x: isinstance(x, str)),
    "Shape": ("an int or a tuple of ints", lambda x: _is_int(x) or _is_ints(x)),
    "Axis": ("an int, a tuple of ints or None", lambda x: x is None or _is_int(x) or _is_ints(x)),
    "Sequence[int]": ("a tuple of ints", _is_ints),
    "Sequence[Any]": ("a tuple or list", lambda x: isinstance(x, (tuple, list))),
    "Iterable[Any]": ("iterable", lambda x: hasattr(x, "__iter__")),
    "Callable": ("a function", callable),
    "Device": ("a Device, such as fd.Device.cpu()", lambda x: type(x).__name__ == "Device"),
    "Tensor": ("a tensor", lambda x: hasattr(x, "_backend")),
}


def _mismatch(value: Any, of: inspect.Parameter) -> str | None:
    """What an argument must be by its annotation, if the value given is not."""
    if value is of.default:
        return None
    parts = [re.sub(r"^Callable\[.*", "Callable", part) for part in re.split(r" \| ", str(of.annotation))]
    if any(part not in _TESTS for part in parts) or any(_TESTS[part][1](value) for part in parts):
        return None
    return " or ".join(_TESTS[part][0] for part in parts)


def _is_odd(value: Any, of: inspect.Parameter) -> bool:
    """Whether no function takes a value there that may be many a thing: neither numbers nor a structure of them."""
    if "Any" not in str(of.annotation) or callable(value):  # as the annotation says; a function
        return False
    if value is of.default or hasattr(value, "dtype"):
        return bool(getattr(getattr(value, "dtype", None), "kind", "") in ("O", "U", "S", "M", "m"))
    if isinstance(value, (tuple, list)):
        return any(_is_odd(x, of) for x in value)
    if isinstance(value, str):
        return not isinstance(of.default, str)
    return not isinstance(value, (int, float, complex, range)) and not hasattr(value, "__array__")


def _shown(value: Any) -> str:
    """A value as it is told: tensors and arrays by type and shape."""
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is not None and isinstance(shape, tuple):
        return f"{dtype}{list(shape)}"
    if isinstance(value, (list, tuple)) and any(hasattr(x, "dtype") for x in value):
        return f"a {type(value).__name__} of {', '.join([_shown(x) for x in value[:4]])}{', ...' * (len(value) > 4)}"
    text = repr(value)
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return text if value is None or isinstance(value, (int, str)) else f"{text} of type {type(value).__name__}"


def _traced(value: Any) -> str:
    return " A number has to be known when it is called." if hasattr(value, "_backend") and not value.shape else ""


def _kind(error: Exception) -> type[FunctadError]:
    if isinstance(error, TypeError):
        return ArgumentTypeError
    if isinstance(error, IndexError):
        return OutOfBoundsError
    return ShapeError if re.search(r"shape|dimension|axis|axes|broadcast", str(error)) else ArgumentError
