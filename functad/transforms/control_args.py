"""What loops and choices share: their arguments as tensors, and which values can be read now."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functad import tree
from functad.backends.base import BaseBackend
from functad.backends.trace import Trace
from functad.device import Device
from functad.dispatch import Handle, base_backend, tracing
from functad.errors import ArgumentTypeError, ConcreteValueError, ShapeError
from functad.ops.op import Type
from functad.ops.operand import operand
from functad.transforms.arguments import alive, common_float
from functad.transforms.captures import reachable

Name = Callable[[str], str]
"""How messages call the place with a path."""


def scalar(where: str, name: str, x: Any) -> Any:
    """An argument as a tensor with one element."""
    x = alive(operand(x, where=f"{where}({name})"))
    if x._shape:
        raise ShapeError(
            f"{where}: {name} must be a scalar, got shape {x._shape}; reduce it with .any(), .all() or .sum()."
        )
    return x


def known(x: Any) -> Any:
    """The value of a scalar tensor; the tensor itself if it has none now, or is read anew at each run."""
    if is_writing():
        return x
    try:
        return x.item()
    except ConcreteValueError:
        return x


def is_writing() -> bool:
    """Whether ops are being written down now."""
    interpreter = tracing.get()
    while interpreter is not None and not isinstance(interpreter, Trace):
        interpreter = getattr(interpreter, "below", None)
    return interpreter is not None


def like_of(values: Any, *fns: Callable[..., Any]) -> Any:
    """A tensor among some values, else one that a function reaches: numbers and arrays go where it is."""
    found = next((x for x in tree.leaves(values) if isinstance(x, Handle)), None)
    return found if found is not None else next((x for fn in fns for x in reachable(fn)), None)


def base_of(like: Any) -> BaseBackend:
    """The backend that will run what is written down."""
    backend = Device.default().base if like is None else base_backend(like)
    return backend.base if isinstance(backend, Trace) else backend


def tensors_of(where: str, values: Any, like: Any, name: Name, others: Sequence[Any] = ()) -> list[Any]:
    """The leaves of a pytree as tensors; Python floats take the float dtype of those and of `others`."""
    found = tree.leaves(values)
    for i, x in enumerate(found):
        try:
            found[i] = x if type(x) is float else alive(operand(x, like, where=where))
        except ArgumentTypeError:
            place = name(tree.paths(values)[i])
            raise ArgumentTypeError(
                f"{where}: {place} is {x!r} of type {type(x).__name__}. Pass tensors, arrays, numbers or pytrees of "
                "them; bind anything else with functools.partial."
            ) from None
    weak = common_float([*found, *others])
    return [operand(x, like, weak) if type(x) is float else x for x in found]


def type_of(x: Any) -> Type:
    """The type of a tensor."""
    return Type(x._shape, x._dtype)


def text_of(t: Type) -> str:
    """A type as messages show it."""
    return f"{t.dtype}{list(t.shape)}"


def describe(x: Any) -> str:
    """A value as messages show it."""
    return f"a tensor {text_of(type_of(x))}" if isinstance(x, Handle) else f"{x!r} of type {type(x).__name__}"
