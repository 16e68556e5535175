"""`fd.profile()`: what a block of code ran, compiled and kept."""

from __future__ import annotations

import gc
import time
from collections import Counter
from contextlib import AbstractContextManager
from typing import Any, Self

import jax.monitoring

from functad.backends.fusion_compile import COMPILERS, STRUCTURE, Counts
from functad.backends.fusion_record import Recording
from functad.dispatch import Handle, pending
from functad.errors import ArgumentError
from functad.source import line_of
from functad.tape import Node

__all__ = ["profile"]

_MANY = 8  # compilations


class profile(AbstractContextManager["profile"]):
    """Count what the devices that fuse do inside a `with` block; `print(p)` is a table.

    Attributes:
        hits: how many structures ran as one executable that was there.
        compiled: how many structures were compiled, `compile_seconds` in how much time.
        op_by_op: how many structures ran op by op, since compiling them did not pay yet.
        ends: the lines of the program where structures ended, as a value was read or a gradient taken, with how many.
        programs: how often each jitted function and loop was called.
        single_ops: how many ops ran by themselves, `singles` how many of each name.
        op_compilations: how often XLA compiled each op and program, for shapes that were new, and in how many seconds.
        tape_bytes: the bytes of the arrays that tapes keep for backward when the block ends.
        seconds: how long the block took.

    Ops on devices that do not fuse are not counted, though their compilations are; `ends` are those of this thread.

    >>> import functad as fd
    >>> x = fd.ones(3, device=fd.Device.cpu())
    >>> with fd.profile() as p:
    ...     y = ((x + 1) * 2).tolist()
    >>> p.hits + p.compiled + p.op_by_op + p.single_ops > 0
    True
    """

    _places: Counter[Any] | None = None  # where structures ended, while the block is open

    def __enter__(self) -> Self:
        if pending.recording is not None:  # what was recorded before does not count
            pending.recording.fusion.end(pending.recording)
        self._before = {c: c.snapshot() for c in COMPILERS}
        if self._places is not None:
            raise ArgumentError("profile: this block is open already; use another fd.profile() inside it.")
        self.__dict__.pop("seconds", None)
        self._places, self._open = Counter(), pending.ends
        self._open.append(self._places)  # blocks may overlap, in tasks that take turns
        self.op_compilations: dict[str, tuple[int, float]] = {}
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        self._start = time.perf_counter()
        return self

    def __exit__(self, *exc: object) -> None:
        self.seconds = time.perf_counter() - self._start
        jax.monitoring.unregister_event_duration_listener(self._on_event)
        places, self._places = self._places, None
        assert places is not None
        self._open[:] = [counter for counter in self._open if counter is not places]
        self.ends: Counter[str] = Counter()
        for place, n in places.items():
            self.ends[line_of(place)] += n
        totals = Counts()
        for compiler in COMPILERS:
            now = compiler.snapshot()
            totals = totals + (now - self._before[compiler] if compiler in self._before else now)
        self.programs, self.singles = totals.programs, totals.singles
        self.compile_seconds = totals.seconds + sum(seconds for _, seconds in self.op_compilations.values())
        self.compiled_ops = totals.ops
        self.hits = totals.runs["hits"]
        self.compiled = totals.runs["compiled"]
        self.op_by_op = totals.runs["op by op"]
        self.single_ops = self.singles.total()
        self.tape_bytes = _tape_bytes()

    def _on_event(self, event: str, duration_secs: float, **about: Any) -> None:
        """Count what JAX says of a compilation: in any thread, lowering and compiling apart."""
        name = str(about.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
        if event.startswith("/jax/core/compile/") and not event.endswith("trace_duration") and name != STRUCTURE:
            count, before = self.op_compilations.get(name, (0, 0.0))
            self.op_compilations[name] = count + event.endswith("backend_compile_duration"), before + duration_secs

    def __repr__(self) -> str:
        if not hasattr(self, "seconds"):
            return "<profile: the block has not ended>"
        compiled = {name: count for name, (count, _) in self.op_compilations.items()}
        what = [f"{self.compiled:,} structures"] * bool(self.compiled) + [_most(Counter(compiled))] * bool(compiled)
        rows = [
            ("seconds", f"{self.seconds:.4f}", ""),
            ("executables run", f"{self.hits + self.compiled:,}", f"{self.compiled:,} of them compiled first"),
            ("structures run op by op", f"{self.op_by_op:,}", ""),
            ("structures ended", f"{self.ends.total():,}", _most(self.ends)),
            ("programs called", f"{self.programs.total():,}", _most(self.programs)),
            ("ops run singly", f"{self.single_ops:,}", _most(self.singles)),
            ("compiling", f"{self.compile_seconds:.4f} s", "; ".join(what)),
            ("kept by tapes", f"{self.tape_bytes / 2**20:.2f} MiB", ""),
        ]
        wide = max(len(value) for _, value, _ in rows)
        lines = [f"{name:<26}{value:>{wide}}  {note}".rstrip() for name, value, note in rows]
        if self.compiled + sum(compiled.values()) > _MANY and self.compile_seconds > self.seconds / 2:
            lines.append(
                "Most of the time went into compiling for shapes that were new. If shapes keep changing, pad to a few of "
                "them, or compute on fd.Device.numpy(), which compiles nothing."
            )
        return "\n".join(lines)


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


def _most(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {n:,}" for name, n in counts.most_common(5))
