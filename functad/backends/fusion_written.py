"""Programs that run on tensors of any level: what an inner tape makes of its structures.

Tangents and rows are written into the program itself. Where its tensors lie directly on a device that fuses, its ops
are recorded in one leap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from functad import dtypes
from functad.backends.batch import Batch
from functad.backends.forward import Forward
from functad.backends.fusion_record import Recording, Token, immediate, pending_tensor, ready
from functad.backends.fusion_state import Kind, State
from functad.backends.fusion_structure import Plan
from functad.backends.trace import Program, Trace, open_trace
from functad.dispatch import base_backend, tracing
from functad.dispatch import pending as local
from functad.errors import ConcreteValueError
from functad.levels import BASE, _unrecorded, deeper
from functad.ops.ieee import is_guarded, is_strict
from functad.ops.op import Type
from functad.tensor import Tensor

_place = attrgetter("key")
_MOST_KEPT = 256
_BELOW, _STILL, _MOVED = range(3)
"""What an output is to the level that a program runs on: no tensor of it, one at rest, one that moves."""


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
        self.leaps: dict[Any, Leap] = {}  # by the state where a recording was, and what the inputs were to it
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
            if len(self.forms) >= _MOST_KEPT:
                self.forms.clear()
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
            key = (start, *parts)
            leap = self.leaps.get(key)
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
                if len(self.leaps) >= _MOST_KEPT:
                    self.leaps.clear()
                self.leaps[key] = leap
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
        places = recording.places or {}
        if any([c in numbers or places.get(c, start.size) < start.size for c in self.constants]):  # noqa: C419
            return None  # another tensor may be what was that constant here

        def find(x: Tensor) -> Any:
            return numbers.get(id(x), self.constants.get(id(x)))

        knowns = tuple([(find(x), places.get(id(x))) for x in recording.knowns[count:]])
        ends = []
        for x in outs:
            token = x._entry
            end: Any = find(x)
            if end is None and type(token) is Token and token.recording is recording and token.key >= 0:
                end = token.key, x._backend is not self.fusion, Type(x._shape, x._dtype)
            ends.append(end)
        if None in ends or any([source is None for source, _ in knowns]):  # noqa: C419
            return None
        return Leap(recording.state, knowns, tuple(ends))

    def _follow(self, recording: Recording, leap: Leap, tensors: Sequence[Tensor]) -> list[Tensor]:
        places: Any = recording.places
        for source, place in leap.knowns:
            known: Any = tensors[source] if type(source) is int else source
            recording.knowns.append(known)
            if place is not None:
                places[id(known)] = place
        recording.state = leap.state
        outs: list[Tensor] = []
        tokens = []
        for end in leap.outs:
            if type(end) is tuple:
                place, taped, type_ = end
                token = Token(recording, place)
                tokens.append(token)
                outs.append(pending_tensor(recording.tape if taped else self.fusion, token, type_, not taped))
            else:
                x: Any = tensors[end] if type(end) is int else end
                outs.append(x)
        recording.tokens += sorted(tokens, key=_place)  # as they come one by one: what is alive is known by its order
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


def written_plan(plan: Plan, recording: Recording) -> Written | None:
    """What a plan computes, from the tensors below the tape; None if it cannot be written down."""
    if plan.written is None:
        plan.written = False
        with immediate(recording.x64):
            try:
                if plan.followed and not plan.roots:
                    plan.save(recording.fusion)
                program = plan.program(recording.fusion)
            except ConcreteValueError:
                return None
        if len(program.inputs) == len(plan.inputs) + len(plan.seeds) + len(plan.reads_saved):  # and none from outside
            plan.written = Written(program, recording.fusion)
    found: Written | None = plan.written or None
    return found


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
        recording = None if local.at_once else ready(fusion, tape)
    return recording


def _apart(x: Tensor) -> Tensor:
    kind = x._entry
    if type(kind) is not Kind or not kind.scalar:
        return x
    copy = Tensor(x._backend, x._value, None, x._shape, x._dtype)
    copy._entry = kind
    return copy
