"""What a zero cotangent does to an inf or NaN: it wins, unless derivatives are to follow IEEE 754 to the letter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_strict: ContextVar[bool] = ContextVar("functad_strict_ieee", default=False)
_guarded: ContextVar[bool] = ContextVar("functad_guarded", default=False)


@contextmanager
def strict_ieee() -> Iterator[None]:
    """Inside, derivatives follow IEEE 754 to the letter: a zero cotangent times inf is NaN.

    Outside, a cotangent that is exactly zero stays zero however singular the partial derivative,
    so that `where(x > 0, sqrt(x), 0)` has a finite gradient at 0.

    >>> import functad as fd
    >>> slope = fd.grad(lambda x: fd.where(x > 0, x.sqrt(), 0.0))
    >>> slope(0.0).item()
    0.0
    >>> with fd.strict_ieee():
    ...     slope(0.0).item()
    nan
    """
    token = _strict.set(True)
    try:
        yield
    finally:
        _strict.reset(token)


def is_strict() -> bool:
    """Whether `strict_ieee()` is on in this context."""
    return _strict.get()


@contextmanager
def guarded() -> Iterator[None]:
    """Inside, the cotangents that rules get came through an op that guards, such as `where`: their zeros win."""
    token = _guarded.set(True)
    try:
        yield
    finally:
        _guarded.reset(token)


def is_guarded() -> bool:
    """Whether rules run behind an op that guards, and zeros may win over inf and NaN."""
    return _guarded.get() and not _strict.get()
