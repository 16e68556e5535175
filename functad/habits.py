"""Descriptors that answer to what other libraries' tensors have: `w.grad.norm()`, `x.requires_grad = True`."""

from __future__ import annotations

from collections.abc import Callable
from types import MethodType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from functad.errors import ArgumentTypeError, ImmutableError, UnknownAttributeError

_READ_GRAD = (
    "gradients are not kept on tensors: grads = loss.backward() returns them, and w.grad(grads) or grads[w] reads one "
    "(model, state = opt.step(model, grads, state) uses them all)"
)


class GradOf:
    """The method `x.grad`, which says what it is when it is taken for a tensor."""

    __slots__ = ("__self__",)

    def __init__(self, x: Any):
        self.__self__ = x

    def __call__(self, grads: Any = None) -> Any:
        """The gradient of the tensor in `grads`, or None."""
        if not hasattr(grads, "get"):
            raise ArgumentTypeError(
                f"x.grad(grads): expected what backward() returned, got "
                f"{'nothing' if grads is None else type(grads).__name__}: {_READ_GRAD}."
            )
        read = getattr(type(grads), "_read", None)
        return grads.get(self.__self__) if read is None else read(grads, self.__self__)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownAttributeError(f"x.grad is a method and has no {name!r}: {_READ_GRAD}.")

    def _refuse(self, *others: Any) -> NoReturn:
        raise ArgumentTypeError(f"x.grad is a method, not a tensor: {_READ_GRAD}.")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __pow__ = __abs__ = __matmul__ = __rmatmul__ = __getitem__ = __bool__ = __float__ = __array__ = __iter__ = _refuse
    __array_ufunc__ = None

    def __repr__(self) -> str:
        return f"<the method grad of a tensor of shape {self.__self__.shape}: {_READ_GRAD}>"


class Grad:
    """`x.grad(grads)`: the gradient of `x` in `grads`, or None; `grads.explain(x)` tells why, a warning that `x` is no leaf."""

    def __get__(self, x: Any, owner: Any = None) -> Any:
        return self if x is None else GradOf(x)

    def __set__(self, x: Any, value: Any) -> NoReturn:
        raise ImmutableError(
            f"x.grad cannot be set, and needs no zeroing: {_READ_GRAD}; g replaces one by w.grad_replace(grads, g)."
        )


class Foreign:
    """An attribute that tensors lack: what to write instead of reading it, and of setting it.

    For each name one of these, and no `__getattr__`, which would make every attribute slower to read.
    """

    def __init__(self, read: str | Callable[[], str], write: str = ""):
        self._read = read
        self._write = write

    def __get__(self, x: Any, owner: Any = None) -> NoReturn:
        raise UnknownAttributeError(self._read if isinstance(self._read, str) else self._read())

    def __set__(self, x: Any, value: Any) -> NoReturn:
        raise ImmutableError(f"tensors are immutable{self._write}.")


class Unsettable:
    """A method that cannot be assigned to, and says what to write instead."""

    def __init__(self, method: Any, text: str):
        self._method = method
        self._text = text
        self.__doc__ = method.__doc__

    def __get__(self, x: Any, owner: Any = None) -> Any:
        return self._method if x is None else MethodType(self._method, x)

    def __set__(self, x: Any, value: Any) -> NoReturn:
        raise ImmutableError(self._text)


def unsettable(part: Any, text: str) -> Any:
    """A property or method that says what to write instead of assigning to it."""

    def refuse(x: Any, value: Any) -> NoReturn:
        raise ImmutableError(text)

    return property(part.fget, refuse, None, part.__doc__) if isinstance(part, property) else Unsettable(part, text)


class Hosts(type):
    """The class of classes that have foreign attributes, which are not listed."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if not is_foreign(cls, name)]


def is_foreign(cls: type, name: str) -> bool:
    """Whether an attribute is there for its error alone."""
    return any(type(base.__dict__.get(name)) is Foreign for base in cls.__mro__)


class Count(int):
    """The number of elements, which says what it is when it is called."""

    __slots__ = ()

    def __call__(self, *axes: Any) -> NoReturn:
        """Raise: it is a number."""
        raise ArgumentTypeError(
            f"x.size is the number of elements, {int(self)}, and no function; write x.shape for the lengths of all axes, "
            f"x.shape[{axes[0] if axes else 0}] for that of one."
        )

    def __reduce__(self) -> Any:
        return int, (int(self),)


class NoArithmetic:
    """What is made of tensors and is none: `2 * grads` says how to get it."""

    __slots__ = ()
    _instead: ClassVar[str]

    if not TYPE_CHECKING:  # type checkers are to see that there is none

        def _refuse(self, *others):
            raise ArgumentTypeError(f"{type(self).__name__} has no arithmetic: {self._instead}.")

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
        __pow__ = __matmul__ = __rmatmul__ = __abs__ = _refuse
