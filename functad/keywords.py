"""Calls with another library's arguments: `x.sum(dim=1)` says what to write instead."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, TypeVar

from functad.errors import ArgumentTypeError

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")
_COUNT = re.compile(r"takes .*positional arguments? but .*given$")

_INSTEAD = {
    "dim": "axis=",
    "dims": "axis=",
    "dim0": "the axes by position",
    "axes": "axis=",
    "keepdim": "keepdims=",
    "unbiased": "ddof=1 for unbiased=True, ddof=0 for unbiased=False (the default here)",
    "correction": "ddof=",
    "inplace": "the call without it: tensors are immutable",
    "requires_grad": "fd.tensor(data, device=fd.Device.cpu().autodiff()).require_grad()",
    "gradient": "cotangent=",
    "create_graph": "fd.grad(fd.grad(f)), or a leaf on device.autodiff(order=2)",
    "start_dim": "x.reshape(*x.shape[:start], -1), or the layer nn.Flatten(start)",
    "end_dim": "x.reshape(shape), or the layer nn.Flatten(start, end)",
    "use_bias": "bias=",
    "features": "the sizes by torch's names, such as in_features and out_features",
    "non_blocking": "the call without it: transfers do not block",
    "memory_format": "the call without it: tensors have no strides",
    "out": "the call without it, and use what it returns",
    "size_average": "reduction='mean' or reduction='sum'",
    "reduce": "reduction=",
    "lr": "learning_rate=",
    "betas": "b1= and b2=",
    "in_dims": "in_axes=",
    "out_dims": "out_axes=",
    "argnum": "argnums=",
    "static_args": "static_argnums=, or static_argnames=",
    "rngs": "key=",
    "rng": "key=",
    "generator": "key=, such as fd.random.key(0)",
}


def better_error(error: TypeError, what: str, too_many: str | None = None) -> ArgumentTypeError | None:
    """The error that says what to write, if Python refused the call that was just made for an argument that is known."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is not None:  # something further in failed
        return None
    found = _UNKNOWN.search(str(error))
    if found is not None and found[1] in _INSTEAD:
        return ArgumentTypeError(f"{what}: there is no argument {found[1]!r}; write {_INSTEAD[found[1]]}.")
    if too_many is not None and _COUNT.search(str(error)):
        return ArgumentTypeError(f"{what}: too many arguments; write {too_many}.")
    return None


def explained(fn: F, too_many: str | None = None) -> F:
    """A function whose refusal of another library's argument says what to write."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return fn(*args, **kwargs)
        except TypeError as error:
            better = better_error(error, fn.__name__, too_many)
            if better is None:
                raise
        raise better

    return call  # type: ignore[return-value]
