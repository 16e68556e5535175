"""`no_grad`: a region where no tape that is open records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from functad.errors import ArgumentTypeError
from functad.levels import unrecorded

F = TypeVar("F", bound=Callable[..., Any])


class no_grad(AbstractContextManager[None]):
    """Record nothing inside: a context manager and a decorator, as in PyTorch.

    A transform opened inside, such as `grad`, still works on its own.

    >>> import functad as fd
    >>> w = fd.tensor([3.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> with fd.no_grad():
    ...     (w * 2).is_tracked
    False
    """

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
