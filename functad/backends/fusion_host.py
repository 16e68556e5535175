"""Small ops on the host: what is not compiled with others, and has been met a few times only, runs by NumPy.

XLA takes some 20 to 60 ms to compile one op for new shapes, and NumPy runs a small one in microseconds. Where shapes
keep changing (a sequence that grows, a last batch), and at a prompt, nothing else would be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functad.backends.fusion_record import ARRAYS
from functad.backends.fusion_structure import Plan
from functad.backends.numpy import compiled
from functad.ops.op import Op

TIMES = 256
"""How often an op on some types runs on the host, unless it is worth compiling with others before."""

_MOST_BYTES = 1 << 18  # of the arrays of an op that runs on the host
_MOST_OPS = 64  # in a structure that does
_MOST_KNOWN = 1 << 16


class Host:
    """Which ops of one device run on the host."""

    def __init__(self, near: bool):
        self.near = near  # whether arrays are where NumPy reads them
        self._met: dict[Any, int] = {}

    def runs(self, plan: Plan) -> bool:
        """Whether a structure that is new is not compiled for that, as its ops run here."""
        return self.near and plan.count <= _MOST_OPS and plan.largest <= _MOST_BYTES

    def takes(self, op: Op, arrays: Sequence[Any], params: tuple[Any, ...]) -> bool:
        """Whether an op runs here this time."""
        if not self.near:
            return False
        size = 0
        types = []
        for x in arrays:
            if type(x) not in ARRAYS:  # JAX is tracing
                return False
            size += x.nbytes
            types.append((x.shape, x.dtype))
        if size > _MOST_BYTES or not arrays:
            return False
        key = (op, params, *types)
        met = self._met.get(key, 0)
        if met < TIMES:
            if len(self._met) > _MOST_KNOWN:
                self._met.clear()
            self._met[key] = met + 1
        return met < TIMES

    def call(self, op: Op, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """What an op makes of some arrays."""
        return compiled(op, params)(*[np.asarray(x) for x in arrays])
