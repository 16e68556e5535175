"""`no_grad`: a region where no tape that is open records."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from functad.levels import unrecorded


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing inside: a context manager and a decorator, as in PyTorch.

    A transform opened inside, such as `grad`, still works on its own.

    >>> import functad as fd
    >>> w = fd.tensor([3.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> with fd.no_grad():
    ...     (w * 2).is_tracked
    False
    """
    with unrecorded():
        yield
