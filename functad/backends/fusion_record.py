"""What eager code does between two observations, as a path through the structures met so far.

A recording is a place in a trie. Each op leads from one state to the next by its name, its
parameters and the numbers of its inputs; the state knows the type of the result. So recording an
op that has been recorded before is one lookup, and at the end the state stands for all of it.

A tensor whose op is recorded has neither value nor context until somebody reads them: it has a
`Token`. `Tensor` asks `read` for what is missing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes
from functad.backends.base import refuse, refuse_donated
from functad.backends.fusion_state import CONSTANT, LOOK_BYTES, MOST_STEPS, TRACKED, UNTRACKED, Kind, State, extend
from functad.dispatch import base_backend, tracing
from functad.dispatch import pending as local
from functad.errors import FunctadError
from functad.levels import BASE, _unrecorded
from functad.ops.op import Op, Type
from functad.tape import AnyNode, Leaves, Part, Swept
from functad.tensor import Tensor

_PAUSE = 8 * MOST_STEPS
ARRAYS = (type(jnp.zeros(())), np.ndarray)  # no tracers

_NUMBERS = (float, int)
_WEAK = ("numeric", "float", "count")

_new = object.__new__


class Token:
    """Stands for a recorded result: its place in the recording, then its array."""

    __slots__ = ("array", "context", "key", "recording")
    recorded = True  # its tensor is an op's output, which may not have been computed
    deferred = True  # ... and lies directly on the device
    leaf = None
    array: Any
    context: Any  # on the tape, once the recording has ended
    recording: Any

    def __init__(self, recording: Any, key: int):
        self.recording = recording
        self.key = key  # the place, or ~place for the tensor that one of the tape holds
        self.array = self.context = None

    @property
    def place(self) -> int:
        """The place of the result in the recording."""
        return self.key if self.key >= 0 else ~self.key

    def read(self, x: Tensor, name: str) -> Any:
        """The value or context of `x`, whose op is recorded."""
        if x._backend.level == BASE:
            x._known_value = self.recording.fusion.array_of(self) if self.array is None else self.array
            x._entry = None
            return x._known_value
        if name == "_value":
            x._known_value = self._below(x)
            return x._known_value
        x._known_context = self.recording.fusion.context_of(self, x) if self.context is None else self.context
        return x._known_context

    def pull(self, x: Tensor, release: bool) -> Swept | None:
        """The gradients of `x`, by the structure of what was recorded; None if backward must walk the tape."""
        found: Swept | None = self.recording.fusion.pull(x, release)
        return found

    def retain(self) -> None:
        """Have its gradient kept, as its context says."""
        context = self.context
        if type(context) is Part and type(context.parent) is Recording:
            context.parent.retained[context.index] = context.id

    def tracked(self, x: Tensor) -> bool:
        """Whether a tape follows `x`, without making its context."""
        if not x._backend.is_tape:
            return False
        known: Any = self.context
        return bool(self.recording.state.tracks(self.place) if known is None else known.tracked)

    def host(self, x: Tensor) -> np.ndarray[Any, Any]:
        """The elements of `x`, without the tensor below a tape."""
        fusion = self.recording.fusion
        array = self.array
        if array is None:
            array = fusion.array_of(self)
        if x._backend is fusion:
            x._known_value, x._entry = array, None
        else:
            x._backend.was_read = True
        found: np.ndarray[Any, Any] = fusion.host(array)
        return found

    def _below(self, x: Tensor) -> Tensor:
        """The tensor below the tape that `x` holds."""
        recording = self.recording
        if self.array is None and local.recording is recording:
            inner = Token(recording, ~self.place)
            recording.more.append(inner)
            return pending_tensor(recording.fusion, inner, Type(x._shape, x._dtype), base=True)
        array = recording.fusion.array_of(self) if self.array is None else self.array
        return Tensor(recording.fusion, array, None, x._shape, x._dtype)


class immediate:
    """A block whose ops run at once, in the given precision mode; those of a recording `apart` from what is open now."""

    def __init__(self, x64: bool, apart: bool = True):
        self.mode = None if x64 == dtypes.x64_enabled() else jax.enable_x64(x64)
        self.apart = apart

    def __enter__(self) -> None:
        if self.mode is not None:
            self.mode.__enter__()
        if self.apart:  # no_grad() where a value is looked at says nothing about what was recorded before
            self.tokens = _unrecorded.set(-1), tracing.set(None)
        self.before = local.recording, local.at_once
        local.recording, local.at_once = None, -1

    def __exit__(self, *exc: object) -> None:
        local.recording, local.at_once = self.before
        if self.apart:
            _unrecorded.reset(self.tokens[0])
            tracing.reset(self.tokens[1])
        if self.mode is not None:
            self.mode.__exit__(None, None, None)


class Recording:
    """Ops that one thread recorded. Once it has ended it is a node of its tape, if the tape goes on behind it."""

    __slots__ = (
        "__weakref__",
        "apart",
        "followed",
        "fusion",
        "id",
        "kept",
        "knowns",
        "leaves",
        "more",
        "numbers",
        "outputs",
        "places",
        "recurs",
        "released",
        "retained",
        "saved",
        "state",
        "tape",
        "tokens",
        "x64",
    )

    direct = True  # on the device: what it records is compiled as it is

    def __init__(self, fusion: Any, tape: Any):
        self.fusion = fusion
        self.tape = tape
        self.x64 = dtypes.x64_enabled()
        self.state: State = fusion.root(self.x64)
        self.knowns: list[Tensor] = []
        self.places: dict[int, int] | None = {}
        self.tokens: Any = []
        self.numbers: dict[Any, Any] = {}  # tensors of Python floats, by the id of the float
        self.more: Any = []  # of tensors below the tape
        self.id = 0  # as a node, and the leaves it depends on
        self.leaves: Leaves = ()
        self.apart: Any = (
            None  # if results depend on different leaves: the plan, leaves by number of the tensor, by place
        )
        self.outputs: list[Any] = []  # weak references to its results on the tape, if they need different things
        self.recurs = True  # whether its structure had been met before when it ran
        self.retained: dict[int, int] = {}  # the ids of results whose gradients are kept, by place
        self.kept: tuple[int, ...] = ()  # places of results that backward would have to compute again
        self.saved: dict[int, Any] = {}  # ... and the arrays of those that somebody may need
        self.followed: tuple[int, ...] = ()  # places of the results that the tape goes on behind
        self.released: tuple[int, ...] = ()  # where backwards began that were to release what they walk

    def repeat(self, op: Op, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """The output of an op that was recorded at this point before, else None.

        Inputs may be what a user passes: the step is known only if they are tensors that go into the op as they are.
        """
        if tracing.get() is not None or _unrecorded.get() >= 0:
            return None
        try:
            try:
                if len(inputs) == 2:
                    x, y = inputs
                    if type(y) in _NUMBERS:
                        y = self.number(op, x, y)
                    elif type(x) in _NUMBERS:
                        x = self.number(op, y, x)
                    a = x._entry
                    a = a.key if a is not None and a.recording is self else self.known(x)
                    b = y._entry
                    b = b.key if b is not None and b.recording is self else self.known(y)
                    state = self.state.after.get((op, params, a, b))
                elif len(inputs) == 1:
                    x = inputs[0]
                    a = x._entry
                    a = a.key if a is not None and a.recording is self else self.known(x)
                    state = self.state.after.get((op, params, a))
                elif op.whole:
                    return None
                else:
                    state = self.state.after.get((op, params, *self.parts(inputs)))
            except AttributeError:
                state = None  # an input is no tensor yet
            if state is not None:
                return self.goes(state)
            if len(self.knowns) != self.state.count:
                self.forget()
            return None
        except BaseException:  # an interrupt, too, leaves the recording as it was
            self.forget()
            raise

    def number(self, op: Op, x: Any, value: float) -> Any:
        """A Python number beside the tensor `x` as the tensor it becomes; itself where that is not so plain."""
        dtype = x._dtype
        if dtype.kind != "f" or op.promote not in _WEAK or (x._entry is None and base_backend(x) is not self.fusion):
            return value
        return self.fusion.scalar(value, dtype)

    def parts(self, inputs: Sequence[Tensor]) -> list[Any]:
        """Each input as a part of a key."""
        return [e.key if (e := x._entry) is not None and e.recording is self else self.known(x) for x in inputs]

    def goes(self, state: State) -> Any:
        """Take the step to `state`: its output, a tensor whose op is recorded."""
        self.state = state
        place = state.place
        if place is None or state.full or state.heavy or state.piece:
            return _several(self, state)
        token = _new(Token)
        token.recording = self
        token.key = place
        token.array = token.context = None
        self.tokens.append(token)
        out = _new(Tensor)
        out._shape = state.shape
        out._dtype = state.dtype
        out._entry = token
        if state.taped:
            out._backend = self.tape
        else:
            out._backend = self.fusion
            out._known_context = None
        return out

    def known(self, x: Tensor) -> Any:
        """A tensor from outside as a part of a key: its place if it was met before, else its kind. None if it cannot be."""
        places = self.places
        if places is None:  # reading the value of another input has ended the recording
            return None
        place = places.get(id(x))
        if place is not None:
            return place
        kind = x._entry
        if (
            type(kind) is not Kind
            or kind.recording is not self.fusion.ended
            or (kind.role and x._backend is not self.tape)
        ):
            kind = self._kind(x)
            if kind is None:
                return None
        state = self.state
        knowns = self.knowns
        place = state.size + len(knowns) - state.count
        knowns.append(x)  # before it has a place: `forget` goes by what is here, whenever an interrupt comes
        if not kind.scalar:
            places[id(x)] = place
        return kind

    def _kind(self, x: Tensor) -> Kind | None:
        fusion, tape = self.fusion, self.tape
        if x._backend is fusion:
            value, role = x._value, CONSTANT
        elif tape is not None and x._backend is tape:
            inner = x._value
            if inner._backend is not fusion:
                return None
            value = inner._value
            role = TRACKED if x._context.tracked else UNTRACKED
        else:
            return None
        if (
            type(value) not in ARRAYS or local.recording is not self
        ):  # traced by JAX, or computing it ended the recording
            return None
        refuse_donated("an op", [value])  # where it is met first, or again after it was given away
        kind: Kind = fusion.kind(x._shape, x._dtype, role)
        if x._entry is None:
            x._entry = kind
            if role == TRACKED and inner._entry is None:
                inner._entry = fusion.kind(x._shape, x._dtype, CONSTANT)
                inner._entry.leaf = kind
        return kind

    def pull(self, g: dict[int, Any], release: bool, found: Swept) -> list[tuple[AnyNode, Any, bool]]:
        """The cotangents that go on to other nodes, and whether behind a guard, from those of results by their places."""
        pieces: list[tuple[AnyNode, Any, bool]] = self.fusion.pull_recorded(self, g, release, found)
        return pieces

    def leaves_at(self, place: int) -> Leaves:
        """The leaves that a result depends on."""
        if self.apart is None:
            return self.leaves
        plan, leaves, found = self.apart
        if place not in found:
            needed = plan.needs(place)
            found[place] = tuple([part for i, part in leaves.items() if plan.places[i] in needed])
        some: Leaves = found[place]
        return some

    def end(self) -> None:
        """Run what was recorded."""
        self.fusion.end(self)

    def forget(self) -> None:
        """Take back tensors from outside whose op was not recorded."""
        while self.places is not None and len(self.knowns) > self.state.count:
            self.places.pop(id(self.knowns[-1]), None)
            self.knowns.pop()


def record(fusion: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    """The output of `op` below the tape, to be computed later; None if it must run now."""
    recording = local.recording
    if recording is None or recording.fusion is not fusion:
        if local.at_once:
            local.at_once -= local.at_once > 1  # the last one goes when a value is looked at
            return None
        recording = ready(fusion, None)
    return _step(recording, None, op, inputs, params)


def record_on(tape: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    """`record` for ops of a tape: None unless its tensors lie directly on a device that fuses."""
    if op.whole or not tape.records:
        return None
    recording = local.recording
    if recording is None or recording.tape is not tape:
        for x in inputs:  # a constant may come first
            base = x._value._backend if x._backend is tape else x._backend
            if not getattr(base, "fuses", False):
                return None
        recording = ready(base, tape)
    if tape.level[0] <= _unrecorded.get() or tracing.get() is not None:
        return None
    return _step(recording, tape, op, inputs, params)


def _step(recording: Recording, tape: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    try:
        if recording.state.closed:
            recording.fusion.end(recording)
        parts = recording.parts(inputs)
        if local.recording is not recording:  # that, or reading a value, has ended it
            return record(recording.fusion, op, inputs, params) if tape is None else record_on(tape, op, inputs, params)
        key = (op, params, *parts)
        state = recording.state.after.get(key) or add(recording, tape, key, inputs)
        return None if state is None else recording.goes(state)
    except BaseException:
        recording.forget()
        raise


def _several(recording: Recording, state: State) -> Any:
    """Several outputs, or those of an op where the recording may end."""
    outs = []
    for i, t in enumerate(state.types):
        token = Token(recording, state.first + i)
        recording.tokens.append(token)
        outs.append(pending_tensor(recording.tape if state.taped else recording.fusion, token, t, not state.taped))
    if state.piece and getattr(recording.tape, "balanced", False):
        recording.state = state.at_end()  # backward computes one piece again at a time
    elif state.heavy and not state.full and alone(recording) >= LOOK_BYTES:
        recording.fusion.end(recording)  # what the program has dropped must not be kept here until it reads a value
    if state.full:
        recording.fusion.end(recording)
        local.at_once = _PAUSE  # far too long to be compiled: do not record what will be run op by op
    return tuple(outs) if state.place is None else outs[0]


def referenced(things: list[Any], ours: int | None = None) -> list[Any]:
    """Those that something besides the list refers to."""
    most = _OURS if ours is None else ours
    count = sys.getrefcount
    return [x for x in things if count(x) > most]


_OURS = next(n for n in range(9) if not referenced([Token(None, 0)], n))
"""What `getrefcount` says there of what nothing but a list refers to; it differs between Pythons."""


def alone(recording: Recording) -> int:
    """The bytes of the tensors from outside that nothing but a recording holds."""
    all, held = [sum([x.nbytes for x in xs]) for xs in (recording.knowns, referenced(recording.knowns))]
    return all - held


def add(recording: Recording, tape: Any, key: Any, inputs: Sequence[Tensor]) -> State | None:
    """A new state; None if the op cannot be recorded. Raises if it does not fit its inputs."""
    state = None
    op, params = key[:2]
    try:
        if recording.x64 != dtypes.x64_enabled():  # JAX's own switch was used
            recording.end()
        elif None not in key[2:]:
            state = extend(recording, tape, key)
    except (TypeError, ValueError, IndexError) as error:
        if isinstance(error, FunctadError):
            raise
        refuse(op, inputs, params, error)
    finally:
        if state is None:
            recording.forget()
    if state is not None:
        recording.state.after[key] = state
    return state


def ready(fusion: Any, tape: Any) -> Recording:
    """The recording of this thread that takes ops of `fusion` and `tape`."""
    recording = local.recording
    if recording is not None and recording.fusion is fusion and recording.tape is None:
        recording.tape = tape
    else:
        if recording is not None:
            recording.fusion.end(recording)
        recording = local.recording = Recording(fusion, tape)
    return recording


def pending_tensor(backend: Any, token: Token, type: Type, base: bool) -> Tensor:
    """A tensor that `token` stands for, of the base or of a tape."""
    out = _new(Tensor)
    out._backend = backend
    out._shape, out._dtype = type
    out._entry = token
    if base:
        out._known_context = None
    return out
