"""Recordings of inner tapes: tapes that lie over another tape, over tangents or over rows.

What such a tape records is a structure too. Its results and its gradients are a program of ops of the level below,
which is written down when the structure is met first; from then on no derivative rule of it runs. The ops of the
program are recorded by the level below: one by one, or in one leap where that is directly on the device. Tangents and
rows are written into the program itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, NamedTuple
from weakref import WeakSet

from functad import dtypes
from functad.backends.autodiff import OVER, Autodiff
from functad.backends.batch import Batch
from functad.backends.forward import Forward
from functad.backends.fusion_record import (
    Recording,
    Token,
    _add,
    _alone,
    _pending,
    _ready,
    immediate,
    referenced,
)
from functad.backends.fusion_state import CONSTANT, LOOK_BYTES, TRACKED, UNTRACKED, Kind, State
from functad.backends.fusion_structure import Plan, keep_needed, leaves_of
from functad.backends.trace import Program, Trace, open_trace
from functad.dispatch import base_backend, tracing
from functad.dispatch import pending as local
from functad.errors import ConcreteValueError
from functad.levels import BASE, _unrecorded, deeper
from functad.ops.op import Op, Type
from functad.ops.rules import is_guarded, is_strict
from functad.tape import AnyNode, Leaf, Part, Swept, fresh_id, sweep
from functad.tensor import Tensor

_new = object.__new__
_BELOW, _STILL, _MOVED = range(3)
"""What an output is to the level that a program runs on: no tensor of it, one at rest, one that moves."""


# --- programs that run on tensors of any level


class Leap(NamedTuple):
    """Where a program leads a recording."""

    state: State
    knowns: tuple[tuple[int | Tensor, int | None], ...]  # tensors from outside: an input or a constant, and its place
    outs: tuple[Any, ...]  # (place, whether on the tape, type), the number of an input, or a constant


class Written(Program):
    """A program, and what was found out about running it."""

    def __init__(self, program: Program, fusion: Any, marks: Sequence[int] = ()):
        super().__init__(program.inputs, program.equations, program.outputs, program.types)
        self.fusion = fusion
        self.marks = marks
        self.forms: dict[Any, Written | None] = {}
        parts = [*self.outputs, *[x for eq in self.equations for x in eq.inputs]]
        self.constants = {id(x): x for x in parts if type(x) is not int}

    def play(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Run it on tensors of any level."""
        top = _highest(tensors)
        if top is not None and tracing.get() is None:
            if type(top) is Forward and top.level[0] > _unrecorded.get():
                return self._push(top, tensors)
            if type(top) is Batch:
                return self._map(top, tensors)
            recording = _direct(top, tensors)
            if recording is not None:
                return self._leap(recording, tensors)
        return self.run(*tensors)

    # --- with tangents or rows

    def _push(self, level: Forward, tensors: Sequence[Tensor]) -> list[Tensor]:
        mine = [x._backend is level for x in tensors]
        tangents = [x._context if m else None for x, m in zip(tensors, mine, strict=True)]
        moving = tuple([None if not m else t is not None for m, t in zip(mine, tangents, strict=True)])
        form = self._form(("jvp", moving), lambda trace: self._pushed(trace, moving))
        if form is None:
            return self.run(*tensors)
        primals = [x._value if m else x for x, m in zip(tensors, mine, strict=True)]
        outs = form.play([*primals, *[t for t in tangents if t is not None]])
        moved = iter(outs[len(self.outputs) :])
        return [
            x if mark == _BELOW else level.wrap(x, next(moved) if mark == _MOVED else None)
            for x, mark in zip(outs, form.marks, strict=False)
        ]

    def _pushed(self, trace: Trace, moving: Sequence[bool | None]) -> tuple[list[Tensor], list[int]]:
        """(*primals, *tangents of the moving ones) -> (*outputs, *tangents of those that move)."""
        types = [self.types[i] for i in self.inputs]
        primals = [trace.input(*t) for t in types]
        tangents = [trace.input(*t) if m else None for t, m in zip(types, moving, strict=True)]
        with deeper() as above:
            level = Forward(above)
            outs = self.run(
                *[x if m is None else level.wrap(x, t) for x, m, t in zip(primals, moving, tangents, strict=True)]
            )
            level.close()
        mine = [x._backend is level for x in outs]
        marks = [_BELOW if not m else _STILL if x._context is None else _MOVED for x, m in zip(outs, mine, strict=True)]
        values = [x._value if m else x for x, m in zip(outs, mine, strict=True)]
        return [*values, *[x._context for x, mark in zip(outs, marks, strict=True) if mark == _MOVED]], marks

    def _map(self, level: Batch, tensors: Sequence[Tensor]) -> list[Tensor]:
        mapped = tuple([x._backend is level for x in tensors])
        form = self._form(("vmap", mapped, level.size), lambda trace: self._mapped(trace, mapped, level.size))
        if form is None:
            return self.run(*tensors)
        outs = form.play([x._value if m else x for x, m in zip(tensors, mapped, strict=True)])
        return [level.wrap(x) if mark else x for x, mark in zip(outs, form.marks, strict=True)]

    def _mapped(self, trace: Trace, mapped: Sequence[bool], size: int) -> tuple[list[Tensor], list[int]]:
        types = [self.types[i] for i in self.inputs]
        inputs = [trace.input((size, *t.shape) if m else t.shape, t.dtype) for t, m in zip(types, mapped, strict=True)]
        with deeper() as above:
            level = Batch(above, size)
            outs = self.run(*[level.wrap(x) if m else x for x, m in zip(inputs, mapped, strict=True)])
            level.close()
        mine = [x._backend is level for x in outs]
        return [x._value if m else x for x, m in zip(outs, mine, strict=True)], [_STILL if m else _BELOW for m in mine]

    def _form(self, kind: Any, write: Callable[[Trace], tuple[list[Tensor], list[int]]]) -> Written | None:
        """The program as it is under a level; None if it cannot be written down."""
        key = (*kind, is_guarded(), is_strict(), dtypes.x64_enabled())
        if key not in self.forms:
            self.forms[key] = written(self.fusion, write)
        return self.forms[key]

    # --- as a step of a recording

    def _leap(self, recording: Recording, tensors: Sequence[Tensor]) -> list[Tensor]:
        count = len(recording.knowns)
        try:
            parts = recording.parts(tensors)
            if local.recording is not recording:  # reading a value has ended it
                return self.run(*tensors)
            start = recording.state
            key = (self, *parts)
            leap: Any = start.after.get(key)
        finally:
            recording.forget()
        if leap is not None:
            return self._follow(recording, leap, tensors)
        # a number is an operand of its own wherever it stands, so each needs a tensor of its own to be told from others
        apart = [_apart(x) for x in tensors]
        outs = self.run(*apart)
        if local.recording is recording and None not in parts:
            leap = self._found(recording, start, count, apart, outs)
            if leap is not None:
                start.after[key] = leap
        return outs

    def _found(
        self, recording: Recording, start: State, count: int, tensors: Sequence[Tensor], outs: Sequence[Tensor]
    ) -> Leap | None:
        """The way that a recording has just gone, if it may be gone again in one leap."""
        step = recording.state
        while step is not start:
            if step.heavy or step.piece or step.full or step.parent is None:  # where it is looked what is alive
                return None
            step = step.parent
        numbers = {id(x): i for i, x in reversed([*enumerate(tensors)])}
        find = lambda x: numbers.get(id(x), self.constants.get(id(x)))
        places = recording.places or {}
        knowns = tuple([(find(x), places.get(id(x))) for x in recording.knowns[count:]])
        ends = []
        for x in outs:
            token = x._entry
            end = find(x)
            if end is None and type(token) is Token and token.recording is recording and token.key >= 0:
                end = token.key, x._backend is not self.fusion, Type(x._shape, x._dtype)
            ends.append(end)
        if None in ends or any([source is None for source, _ in knowns]):  # noqa: C419
            return None
        return Leap(recording.state, knowns, tuple(ends))

    def _follow(self, recording: Recording, leap: Leap, tensors: Sequence[Tensor]) -> list[Tensor]:
        places: Any = recording.places
        for source, place in leap.knowns:
            x = tensors[source] if type(source) is int else source
            recording.knowns.append(x)
            if place is not None:
                places[id(x)] = place
        recording.state = leap.state
        outs: list[Tensor] = []
        for end in leap.outs:
            if type(end) is tuple:
                place, taped, type_ = end
                token = Token(recording, place)
                recording.tokens.append(token)
                outs.append(_pending(recording.tape if taped else self.fusion, token, type_, not taped))
            else:
                outs.append(tensors[end] if type(end) is int else end)
        return outs


def written(fusion: Any, write: Callable[[Trace], tuple[list[Tensor], list[int]]]) -> Written | None:
    """What `write` runs on the inputs of a trace, as a program; None if it reads values, or tensors from outside."""
    with (
        immediate(dtypes.x64_enabled()),
        deeper() as level,
        open_trace(level, fusion, "a derivative rule") as trace,
    ):
        try:
            outs, marks = write(trace)
        except ConcreteValueError:
            return None
        program = trace.program(outs)
        return None if trace.hidden else Written(program, fusion, marks)


def _highest(tensors: Sequence[Tensor]) -> Any:
    """The one level that takes an op on these tensors, if it is open."""
    top: Any = None
    for x in tensors:
        backend = x._backend
        if top is None or (backend is not top and backend.level > top.level):
            top = backend
        elif backend is not top and backend.level == top.level:
            return None
    return None if top is None or getattr(top, "closed", False) else top


def _direct(top: Any, tensors: Sequence[Tensor]) -> Recording | None:
    """The recording of this thread, where the tensors lie directly on a device that fuses."""
    recording = local.recording
    if top.level is BASE:
        if not top.fuses:
            return None
        tape = recording.tape if recording is not None and recording.fusion is top else None
        fusion = top
    else:
        tape = top
        if not getattr(tape, "records", False) or tape.level[0] <= _unrecorded.get():
            return None
        fusion = base_backend(tensors[0])
        if not fusion.fuses or (
            (recording is None or recording.tape is not tape)
            and any([(x._value if x._backend is tape else x)._backend is not fusion for x in tensors])  # noqa: C419
        ):
            return None
    if recording is not None and recording.state.closed:
        recording.end()
    recording = local.recording
    if recording is None or recording.fusion is not fusion or recording.tape is not tape:
        recording = None if local.at_once else _ready(fusion, tape)
    return recording


def _apart(x: Tensor) -> Tensor:
    kind = x._entry
    if type(kind) is not Kind or not kind.scalar:
        return x
    copy = Tensor(x._backend, x._value, None, x._shape, x._dtype)
    copy._entry = kind
    return copy


# --- recordings of inner tapes


class Inner(Token):
    """Stands for a result that an inner tape has recorded; its `array` is the tensor one level down."""

    __slots__ = ()
    deferred = False

    def read(self, x: Tensor, name: str) -> Any:
        nested: Nested = self.recording
        if self.array is None:
            nested.end()
        if name == "_context":
            x._context = nested.context_of(self, x)
            return x._context
        x._value = nested.value_of(self.place) if self.array is None else self.array
        return x._value

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
                state = self.state.after.get(key) or _add(self, tape, key, inputs)
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
            outs.append(_pending(self.tape, token, type, base=False))
        if state.full or (state.heavy and _alone(self) >= LOOK_BYTES):
            self.end()
        return tuple(outs) if state.place is None else outs[0]

    def end(self) -> None:
        """Compute the results that somebody holds, one level down."""
        tokens = self._stop()
        if not tokens:
            return
        plan = self.fusion._plan(self, tuple([t.place for t in tokens]))
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
        if plan.made is None and plan.followed:
            plan.save(self.fusion)
        outs = self._play(plan, ())
        if outs is None:
            outs = plan.gradients(self._below(plan), ())[0]
            return [outs[p] for p in plan.live]
        if plan.followed:
            self.kept = plan.saved
            self.saved = dict(zip(plan.saved, outs[len(plan.live) :], strict=True))
        return outs

    def value_of(self, place: int) -> Tensor:
        """A result that was held when the tape was closed, one level down."""
        if self.alive.get(place) is None:
            plan = self.fusion._plan(self, tuple({**self.alive, place: None}))
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
        return token.context  # type: ignore[no-any-return]

    # --- derivatives

    def gradients(self, token: Inner) -> Swept | None:
        """Those of a result; None if backward must walk the tape."""
        if self.tokens is None or not self.state.tracks(token.place):
            return None
        tokens = self._stop()
        plan = self.fusion._plan(self, tuple([t.place for t in tokens]), (), (token.place,))
        with _Recorded(self):
            outs = self._play(plan, ())
        if outs is None:
            self.tokens = tokens
            return None
        for one, (at, _, _) in zip(tokens, plan.results, strict=True):
            one.array = outs[at]
        found = self._reached(plan, outs[len(plan.live) :])
        if all([type(node) is Leaf for node, _, _ in found]):  # noqa: C419
            return Swept({node.id: g for node, g, _ in found}, [], set())
        return sweep([(node, g) for node, g, _ in found], behind=[node.id for node, _, guards in found if guards])

    def pull(self, g: dict[int, Any], release: bool, found: Swept) -> list[tuple[AnyNode, Any, bool]]:
        roots = tuple(sorted(g))
        plan = self.fusion._plan(self, roots=roots, seeded=True, kept=self.kept)
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
        if plan.made is None and not plan.refused:
            plan.made = _program(plan, self)
            plan.refused = plan.made is None
        if plan.refused:
            return None
        program: Written = plan.made
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


def _program(plan: Plan, nested: Nested) -> Written | None:
    fusion = nested.fusion
    with immediate(nested.x64):
        try:
            program = plan.program(fusion)
        except ConcreteValueError:
            return None
    known = len(plan.inputs) + len(plan.seeds) + len(plan.reads_saved)
    return Written(program, fusion) if len(program.inputs) == known else None


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
