"""Recordings of inner tapes: tapes that lie over another tape, over tangents or over rows.

What such a tape records is a structure too. Its results and its gradients are a program of ops of the level below,
which is written down when the structure is met first; from then on no derivative rule of it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import get_ident
from typing import Any
from weakref import WeakSet

from functad import dtypes
from functad.backends.autodiff import OVER, Autodiff
from functad.backends.fusion_record import Recording, Token, add, alone, pending_tensor, referenced
from functad.backends.fusion_state import CONSTANT, LOOK_BYTES, TRACKED, UNTRACKED, Kind, State
from functad.backends.fusion_structure import Plan, keep_needed, leaves_of
from functad.backends.fusion_written import written_plan
from functad.dispatch import base_backend, tracing
from functad.dispatch import pending as local
from functad.levels import _unrecorded
from functad.ops.op import Op
from functad.tape import AnyNode, Leaf, Part, Swept, fresh_id, sweep
from functad.tensor import Tensor


class Inner(Token):
    """Stands for a result that an inner tape has recorded; its `array` is the tensor one level down."""

    __slots__ = ()
    deferred = False

    def read(self, x: Tensor, name: str) -> Any:
        nested: Nested = self.recording
        if self.array is None:
            nested.end()
        if name == "_context":
            x._known_context = nested.context_of(self, x)
            return x._known_context
        x._known_value = nested.value_of(self.place) if self.array is None else self.array
        return x._known_value

    def pull(self, x: Tensor, release: bool) -> Swept | None:
        found: Swept | None = self.recording.gradients(self)
        return found


class Nested(Recording):
    """What an inner tape has recorded since a value was read last. Then it is a node of the tape."""

    __slots__ = ("alive", "thread", "unrecorded")
    direct = False

    def __init__(self, fusion: Any, tape: Any):
        super().__init__(fusion, tape)
        self.state = fusion.root(self.x64, nested=True)
        self.alive: dict[int, Tensor | None] = {}  # the results that somebody held when the tape was closed
        self.thread = get_ident()
        self.unrecorded = _unrecorded.get()
        tape.nested = self
        tape.run = self.run
        _open.add(self)

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Record `op`; its type is known at once."""
        tape = self.tape
        if self.tokens is None:
            return Nested(self.fusion, tape).run(op, inputs, params)
        unrecorded = _unrecorded.get()
        if not (local.at_once or op.whole or tracing.get() is not None or tape.level[0] <= unrecorded):
            if unrecorded != self.unrecorded:
                self.end()
                return Nested(self.fusion, tape).run(op, inputs, params)
            try:
                parts = self.parts(inputs)
                key = (op, params, *parts)
                state = self.state.after.get(key) or add(self, tape, key, inputs)
                if state is not None:
                    return self.goes(state)
            except BaseException:
                self.forget()
                raise
            self.forget()
        return Autodiff.run(tape, op, inputs, params)

    def known(self, x: Tensor) -> Any:
        places = self.places
        if places is None:
            return None
        place = places.get(id(x))
        if place is not None:
            return place
        backend, tape = x._backend, self.tape
        if backend is tape:
            role = TRACKED if x._context.tracked else UNTRACKED
            if self.places is None:
                return None
        elif backend.level < tape.level and not getattr(backend, "closed", False) and base_backend(x) is self.fusion:
            role = CONSTANT
        else:
            return None
        entry = x._entry
        scalar = type(entry) is Kind and entry.scalar
        state = self.state
        place = state.size + len(self.knowns) - state.count
        self.knowns.append(x)
        if not scalar:
            places[id(x)] = place
        return self.fusion.kind(x._shape, x._dtype, role, scalar)

    def goes(self, state: State) -> Any:
        self.state = state
        outs = []
        for i, type in enumerate(state.types):
            token = Inner(self, state.first + i)
            self.tokens.append(token)
            outs.append(pending_tensor(self.tape, token, type, base=False))
        if state.full or (state.heavy and alone(self) >= LOOK_BYTES):
            self.end()
        return tuple(outs) if state.place is None else outs[0]

    def end(self) -> None:
        """Compute the results that somebody holds, one level down."""
        tokens = self._stop()
        if not tokens:
            return
        plan = self.fusion.plan(self.state, self.x64, tuple([t.place for t in tokens]))
        outs = self._values(plan)
        for token, (at, _, _) in zip(tokens, plan.results, strict=True):
            token.array = outs[at]
        keep_needed(self, plan, plan.followed)

    def close(self) -> None:
        """The tape ends; results that are still held are computed when somebody asks."""
        self.alive = dict.fromkeys([t.place for t in self._stop()])

    def _stop(self) -> list[Inner]:
        tokens, self.tokens, self.places = self.tokens, None, None
        _open.discard(self)
        return [] if tokens is None else referenced(tokens)

    def _values(self, plan: Plan) -> list[Tensor]:
        with _Recorded(self):
            return self._computed(plan)

    def _computed(self, plan: Plan) -> list[Tensor]:
        outs = self._play(plan, ())
        if outs is None:
            outs = plan.gradients(self._below(plan), ())[0]
            return [outs[p] for p in plan.live]
        if plan.followed:
            self.kept = plan.saved
            self.saved = plan.saved_of(outs)
        return outs

    def value_of(self, place: int) -> Tensor:
        """A result that was held when the tape was closed, one level down."""
        if self.alive.get(place) is None:
            plan = self.fusion.plan(self.state, self.x64, tuple({**self.alive, place: None}))
            self.alive = dict(zip(plan.live, self._values(plan), strict=False))
        value = self.alive[place]
        assert value is not None
        self.alive[place] = None
        return value

    def context_of(self, token: Inner, x: Tensor) -> AnyNode:
        """What a result is on the tape."""
        if token.context is None:
            if not self.state.tracks(token.place):
                token.context = Leaf(x._shape, x._dtype)
            else:
                if not self.id:
                    self.id, self.leaves = fresh_id(), leaves_of(self)
                token.context = Part(self, token.place, x._shape, x._dtype)
        found: AnyNode = token.context
        return found

    # --- derivatives

    def gradients(self, token: Inner) -> Swept | None:
        """Those of a result; None if backward must walk the tape."""
        if self.tokens is None or not self.state.tracks(token.place):
            return None
        tokens = self._stop()
        plan = self.fusion.plan(self.state, self.x64, tuple([t.place for t in tokens]), (), (token.place,))
        with _Recorded(self):
            outs = self._play(plan, ())
        if outs is None:
            self.tokens = tokens
            return None
        for one, (at, _, _) in zip(tokens, plan.results, strict=True):
            one.array = outs[at]
        found = self._reached(plan, outs[len(plan.live) :])
        leaves = {node.id: g for node, g, _ in found if type(node) is Leaf}
        if len(leaves) == len(found):  # each one once: two tensors may stand for one
            return Swept(leaves, [], set())
        return sweep([(node, g) for node, g, _ in found], behind=[node.id for node, _, guards in found if guards])

    def pull(self, g: dict[int, Any], release: bool, found: Swept) -> list[tuple[AnyNode, Any, bool]]:
        roots = tuple(sorted(g))
        plan = self.fusion.plan(self.state, self.x64, roots=roots, seeded=True, kept=self.kept)
        seeds = [g[p] for p in roots]
        pieces = self._play(plan, seeds)
        return self._reached(plan, plan.gradients(self._below(plan), seeds)[1] if pieces is None else pieces)

    def _reached(self, plan: Plan, pieces: Sequence[Tensor]) -> list[tuple[AnyNode, Any, bool]]:
        nodes = [self.knowns[plan.where[i]]._context for i, _ in plan.reached]
        return list(zip(nodes, pieces, plan.behind, strict=True))

    def _below(self, plan: Plan) -> list[Tensor]:
        knowns = [self.knowns[i] for i in plan.where]
        return [x._value if taped else x for x, taped in zip(knowns, plan.on_tape, strict=True)]

    def _play(self, plan: Plan, seeds: Sequence[Tensor]) -> list[Tensor] | None:
        """What the plan's program makes of the tensors below the tape; None if it could not be written down."""
        program = written_plan(plan, self)
        if program is None:
            return None
        return program.play([*self._below(plan), *seeds, *[self.saved[p] for p in plan.reads_saved]])


class _Recorded:
    """A block that runs what was recorded: where it is looked at has no say in what the levels below make of it."""

    def __init__(self, nested: Nested):
        self.unrecorded = nested.unrecorded

    def __enter__(self) -> None:
        self.tokens = _unrecorded.set(self.unrecorded), tracing.set(None)

    def __exit__(self, *exc: object) -> None:
        _unrecorded.reset(self.tokens[0])
        tracing.reset(self.tokens[1])


_open: WeakSet[Nested] = WeakSet()


def _over(tape: Any, x: Tensor) -> None:
    """Have an inner tape record its ops, if it lies over a device that fuses."""
    fusion = base_backend(x)
    if fusion.fuses and not local.at_once and tracing.get() is None:
        tape.records = False
        Nested(fusion, tape)


def _end() -> None:
    for nested in tuple(_open):
        if nested.thread == get_ident():
            nested.end()


OVER.append(_over)
dtypes.BEFORE_SWITCH.append(_end)
