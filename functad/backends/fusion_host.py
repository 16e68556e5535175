"""Small ops on the host: what is not compiled with others, and has not been met often, runs by NumPy.

XLA takes some 20 to 60 ms to compile one op for new shapes, and NumPy runs a small one in microseconds. Where shapes
keep changing (a sequence that grows, a last batch), and at a prompt, nothing else would be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from functad import dtypes
from functad.backends.fusion_record import ARRAYS
from functad.backends.fusion_state import nbytes
from functad.backends.fusion_structure import Plan
from functad.backends.numpy import compiled
from functad.backends.trace import abstract
from functad.ops.op import Op, Type

MOST_BYTES = 1 << 18
"""Of the arrays of an op that runs on the host."""

_TOTAL_BYTES = 1 << 24  # that pass through one kind of op before XLA compiles it,
_LEAST_BYTES = 1 << 12  # ... each time counted as so many at least
_MOST_OPS = 64  # in a structure that runs op by op when it is new
_MOST_KNOWN = 1 << 16


class Host:
    """Which ops of one device run on the host."""

    def __init__(self, near: bool):
        self.near = near  # whether arrays are where NumPy reads them
        self._left: dict[Any, int] = {}

    def runs(self, plan: Plan) -> bool:
        """Whether a structure that is new is not compiled for that, as its ops run here."""
        return self.near and plan.count <= _MOST_OPS and plan.largest <= MOST_BYTES

    def times(self, types: Iterable[Type]) -> int:
        """How often what reads arrays of these types runs here."""
        size = sum([nbytes(t) for t in types]) if self.near else MOST_BYTES + 1
        return _TOTAL_BYTES // max(size, _LEAST_BYTES) if size <= MOST_BYTES else 0

    def _takes(
        self, op: Op, types: tuple[tuple[Any, Any], ...], arrays: Sequence[Any], params: tuple[Any, ...]
    ) -> bool:
        key = (op, params, types)
        left = self._left.get(key)
        if left is None:
            if len(self._left) > _MOST_KNOWN:
                self._left.clear()
            left = self.times([Type(*t) for t in types])
            if left and not str(getattr(op.impl, "__module__", "")).startswith("functad."):
                left *= _is_same(op, params, tuple([Type(*t) for t in types]), arrays)
        if left and self.reads(arrays):
            left -= 1
            self._left[key] = left
            return True
        self._left[key] = left
        return False

    def reads(self, arrays: Sequence[Any]) -> bool:
        """Whether these are arrays, and JAX is not tracing."""
        return all([type(x) in ARRAYS for x in arrays])  # noqa: C419  # a list is quicker

    def call(self, op: Op, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """What an op makes of some arrays; raises what its NumPy implementation does."""
        return compiled(op, params)(*[np.asarray(x) for x in arrays])

    def run(self, op: Op, types: tuple[tuple[Any, Any], ...], arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """What an op makes of some arrays; None if it does not run here this time, or not at all."""
        if not arrays or not self._takes(op, types, arrays, params):
            return None
        try:
            return self.call(op, arrays, params)
        except Exception:  # noqa: BLE001  # it has no NumPy implementation; or XLA's call says what is wrong
            self._left[op, params, types] = 0
            return None


def _is_same(op: Op, params: tuple[Any, ...], types: tuple[Type, ...], arrays: Sequence[Any]) -> bool:
    """Whether a user's op is one that XLA takes, and makes of the same types in NumPy."""
    try:
        there = abstract(op, params, types, dtypes.x64_enabled())
        here = compiled(op, params)(*[np.asarray(x) for x in arrays])
    except Exception:  # noqa: BLE001  # XLA's call says what is wrong
        return False
    if type(here) is tuple:
        return there == tuple([Type(x.shape, x.dtype) for x in here])
    return bool(there == Type(here.shape, here.dtype))
