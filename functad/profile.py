"""`fd.profile()`: what a block of code ran, compiled and kept."""

from __future__ import annotations

import gc
import time
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, Self

from functad.backends.fusion_compile import COMPILERS
from functad.backends.fusion_record import Recording
from functad.dispatch import Handle, pending
from functad.tape import Node

__all__ = ["profile"]


class profile(AbstractContextManager["profile"]):
    """Count what the devices that fuse do inside a `with` block; `print(p)` is a table.

    Attributes:
        hits: how many structures ran as one executable that was there.
        compiled: how many structures were compiled, `compile_seconds` in how much time.
        op_by_op: how many structures ran op by op, since compiling them did not pay yet.
        single_ops: how many ops ran by themselves, `singles` how many of each name.
        tape_bytes: the bytes of the arrays that tapes keep for backward when the block ends.
        seconds: how long the block took.

    Ops on devices that do not fuse are not counted.

    >>> import functad as fd
    >>> x = fd.ones(3, device=fd.Device.cpu())
    >>> with fd.profile() as p:
    ...     y = ((x + 1) * 2).tolist()
    >>> p.hits + p.compiled + p.op_by_op + p.single_ops > 0
    True
    """

    def __enter__(self) -> Self:
        if pending.recording is not None:  # what was recorded before does not count
            pending.recording.fusion.end(pending.recording)
        self._before = {c: c.snapshot() for c in COMPILERS}
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._start
        totals: Counter[str] = Counter()
        self.singles: Counter[str] = Counter()
        self.compile_seconds = 0.0
        self.compiled_ops = 0
        for compiler in COMPILERS:
            counts, singles, seconds, ops = compiler.snapshot()
            if compiler in self._before:
                counts_before, singles_before, seconds_before, ops_before = self._before[compiler]
                counts, singles = counts - counts_before, singles - singles_before
                seconds, ops = seconds - seconds_before, ops - ops_before
            totals += counts
            self.singles += singles
            self.compile_seconds += seconds
            self.compiled_ops += ops
        self.hits = totals["hits"]
        self.compiled = totals["compiled"]
        self.op_by_op = totals["op by op"]
        self.single_ops = self.singles.total()
        self.tape_bytes = _tape_bytes()

    def __repr__(self) -> str:
        if not hasattr(self, "seconds"):
            return "<profile: the block has not ended>"
        rows = [
            ("seconds", f"{self.seconds:.4f}", ""),
            ("executables run", f"{self.hits + self.compiled:,}", f"{self.compiled:,} of them compiled first"),
            ("compiling", f"{self.compile_seconds:.4f} s", f"{self.compiled_ops:,} ops" if self.compiled_ops else ""),
            ("structures run op by op", f"{self.op_by_op:,}", ""),
            ("ops run singly", f"{self.single_ops:,}", _most(self.singles)),
            ("kept by tapes", f"{self.tape_bytes / 2**20:.2f} MiB", ""),
        ]
        wide = max(len(value) for _, value, _ in rows)
        return "\n".join(f"{name:<26}{value:>{wide}}  {note}".rstrip() for name, value, note in rows)


def _tape_bytes() -> int:
    """The bytes of the arrays that nodes refer to, each once."""
    arrays: dict[int, int] = {}
    for node in gc.get_objects():
        kept: tuple[Any, ...] = ()
        if type(node) is Node:
            kept = (*(node.inputs or ()), *(node.out if type(node.out) is tuple else (node.out,)))
        elif type(node) is Recording and node.id:  # ops that were recorded together
            kept = (*node.knowns, *node.saved.values())
        for x in kept:
            while isinstance(x, Handle):
                x = getattr(x, "_known_value", None)  # none where its op has not run
            if x is not None and hasattr(x, "nbytes"):
                arrays[id(x)] = int(x.nbytes)
    return sum(arrays.values())


def _most(singles: Counter[str]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in singles.most_common(5))
