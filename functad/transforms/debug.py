"""`debug_nans`: a region in which NaN and inf are traced to the op that made them."""

from __future__ import annotations

from contextlib import ContextDecorator
from typing import Any

from functad.backends.watch import Watch
from functad.dispatch import tracing
from functad.errors import ArgumentTypeError


class debug_nans(ContextDecorator):
    """Inside, a NaN or inf that is read, or is in the gradient of a leaf, raises and names the op that made it.

    A context manager and a decorator. The error (`NonFiniteError`, which is a FloatingPointError too) says which op
    made it of which inputs, and the line of the program, also within `fd.jit`, `fd.checkpoint`, loops and `fd.cond`; for
    a derivative, the line of the op that was differentiated (of a compiled function or a loop that is differentiated from
    outside, the line of its call). Read is what Python gets of a tensor: by `print`, `float`, `.item()`, `.numpy()`, and what
    a comparison, an `argmax` or a cast to ints made of NaN; not by `repr`, `fnp.isnan` and the like. A branch that
    `fd.where` does not take, and masks of -inf, are left alone. Every op is waited for and looked at, compiled functions
    op by op, so use it to find a fault, not in training as such.

    Args:
        at_once: raise in the op itself, as soon as its output is worse than its inputs, whether anything comes of it
            or not.

    >>> import functad as fd
    >>> x = fd.tensor([1.0, 0.0])
    >>> with fd.debug_nans():
    ...     y = (x.log() * 0).sum()
    ...     y.item()  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    functad.errors.NonFiniteError: a value of shape () that is read here holds NaN: mul at ... made NaN of ...
    """

    def __init__(self, at_once: bool = False):
        if not isinstance(at_once, bool):
            raise ArgumentTypeError(
                f"debug_nans: at_once must be True or False, got {at_once!r}; call it: debug_nans()."
            )
        self._at_once = at_once
        self._tokens: list[Any] = []

    def _recreate_cm(self) -> debug_nans:
        return debug_nans(self._at_once)

    def __enter__(self) -> None:
        open_now = tracing.get()
        # what is being written down by jit has no values: there the region has no effect
        watched = open_now is None or isinstance(open_now, Watch)
        self._tokens.append(tracing.set(Watch(None, self._at_once)) if watched else None)

    def __exit__(self, *exc: object) -> None:
        token = self._tokens.pop()
        if token is not None:
            tracing.reset(token)
