"""`no_grad`: a region where no tape that is open records."""

from __future__ import annotations

import functools
import inspect
from abc import ABCMeta
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from functad.errors import ArgumentTypeError
from functad.levels import unrecorded

F = TypeVar("F", bound=Callable[..., Any])


class _Unmade(ABCMeta):
    """The class of `no_grad`, which says what is missing in `with fd.no_grad:`."""

    def __enter__(cls) -> None:
        raise ArgumentTypeError("no_grad: it is called: write `with fd.no_grad():`.")

    def __exit__(cls, *exc: object) -> None:
        raise AssertionError("it is never entered")


class no_grad(AbstractContextManager[None], metaclass=_Unmade):
    """Record nothing inside: a context manager and a decorator, as in PyTorch.

    A transform opened inside, such as `grad`, still works on its own.

    >>> import functad as fd
    >>> w = fd.tensor([3.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> with fd.no_grad():
    ...     (w * 2).is_tracked
    False
    """

    def __new__(cls, fn: Any = None) -> Any:
        """A region, or a function as `@fd.no_grad` decorates it."""
        made = super().__new__(cls)
        if fn is None:
            return made
        if not callable(fn):
            raise ArgumentTypeError(f"no_grad: it takes a function as a decorator, and no {type(fn).__name__}.")
        made.__init__()  # type: ignore[misc]  # what is returned is no region
        return made(fn)

    def __init__(self) -> None:
        self._open: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        region = unrecorded()
        region.__enter__()
        self._open.append(region)

    def __exit__(self, *exc: object) -> None:
        self._open.pop().__exit__(None, None, None)

    def __call__(self, fn: F) -> F:
        """`fn`, recording nothing."""
        if inspect.isgeneratorfunction(fn) or inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn):
            raise ArgumentTypeError(
                f"no_grad: {fn.__name__} is a generator or coroutine function, whose body runs after the call; write "
                "`with fd.no_grad():` inside it."
            )

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with unrecorded():
                return fn(*args, **kwargs)

        return wrapped  # type: ignore[return-value]  # it has the signature of fn
