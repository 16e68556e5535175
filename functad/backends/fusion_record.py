"""What eager code does between two observations, as a path through the structures met so far.

A recording is a place in a trie. Each op leads from one state to the next by its name, its
parameters and the numbers of its inputs; the state knows the type of the result. So recording an
op that has been recorded before is one lookup, and at the end the state stands for all of it.

A tensor whose op is recorded has neither value nor context until somebody reads them: it has a
`Token`. `Tensor` asks `read` for what is missing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from functad import dtypes
from functad.backends.base import refuse
from functad.backends.trace import abstract
from functad.dtypes import DType
from functad.errors import FunctadError
from functad.levels import BASE, _unrecorded
from functad.ops.op import Op, Type
from functad.tensor import Tensor

CONSTANT, UNTRACKED, TRACKED = range(3)
"""What a tensor from outside is to a recording: one of the base, or one of its tape."""

MOST_STEPS = 2048
MOST_BYTES = 1 << 30
_PAUSE = 8 * MOST_STEPS
_ARRAY = type(jnp.zeros(()))  # not a tracer

_new = object.__new__


class Kind:
    """The type and role of a tensor from outside; one object for each, so it is hashed by identity."""

    __slots__ = ("dtype", "role", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: DType, role: int):
        self.shape = shape
        self.dtype = dtype
        self.role = role


_kinds: dict[tuple[Any, ...], Kind] = {}


def _kind(shape: tuple[int, ...], dtype: DType, role: int) -> Kind:
    kind = _kinds.get((shape, dtype, role))
    return kind or _kinds.setdefault((shape, dtype, role), Kind(shape, dtype, role))


class Token:
    """Stands for a recorded result: its place in the recording, then its array."""

    __slots__ = ("array", "context", "place", "recording")
    array: Any
    context: Any  # of a constant of the tape, once the recording has ended
    recording: Any

    def __init__(self, recording: Any, place: int):
        self.recording = recording
        self.place = place
        self.array = self.context = None

    def read(self, x: Tensor, name: str) -> Any:
        """The value or context of `x`, whose op is recorded."""
        if x._backend.level == BASE:
            x._value = self.recording.fusion.array_of(self) if self.array is None else self.array
            x._entry = None
            return x._value
        if name == "_value":
            x._value = self._below(x)
            return x._value
        x._context = self.recording.fusion.context_of(self) if self.context is None else self.context
        return x._context

    def _below(self, x: Tensor) -> Tensor:
        """The tensor below the tape that `x` holds."""
        recording = self.recording
        if self.array is None and local.recording is recording:
            inner = Token(recording, self.place)
            recording.more.append(inner)
            return _pending(recording.fusion, inner, Type(x._shape, x._dtype), base=True)
        array = recording.fusion.array_of(self) if self.array is None else self.array
        return Tensor(recording.fusion, array, None, x._shape, x._dtype)


SCALAR = Token(None, -1)
"""The entry of a tensor that stands for a Python number: an operand of its own at each use."""


class State:
    """One op more than `parent`. `inputs` are places; one is `plain` where the tape does not follow it."""

    __slots__ = (
        "after", "after_taped", "bytes", "depth", "dtype", "first", "full", "kinds", "novel", "op", "params", "parent", "place",
        "plain", "inputs", "plans", "shape", "size", "stamp", "taped", "tracked", "types",
    )  # fmt: skip

    def __init__(self, parent: State | None = None):
        self.parent = parent
        self.after: dict[Any, State] = {}  # by ops below the tape
        self.after_taped: dict[Any, State] = {}
        self.plans: dict[Any, Any] = {}
        self.first = 0
        self.kinds: tuple[Kind, ...] = ()
        self.size = self.depth = self.bytes = self.novel = self.stamp = 0
        self.full = False
        self.tracked: tuple[bool, ...] = ()


class _Local(threading.local):
    recording: Any = None
    types: Any = (None, [])


local = _Local()


class Immediate:
    """In the place of a recording: ops run at once, the next `left` of them or until it is taken away."""

    fusion = tape = None

    def __init__(self, left: int | None = None):
        self.left = left


class Recording:
    """Ops that one thread recorded and has not run."""

    __slots__ = ("fusion", "knowns", "leaves", "live", "made", "more", "places", "released", "state", "tape", "tokens", "x64")

    def __init__(self, fusion: Any, tape: Any):
        self.fusion = fusion
        self.tape = tape
        self.state: State = fusion.root()
        self.x64 = dtypes.x64_enabled()
        self.knowns: list[Tensor] = []
        self.places: dict[int, int] | None = {}
        self.tokens: Any = []
        self.more: Any = []  # of tensors below the tape
        self.live: tuple[int, ...] = ()  # what its tape follows and somebody holds
        self.leaves: Any = ()
        self.made: dict[int, Tensor] = {}
        self.released = False

    def known(self, x: Tensor, tape: Any, added: list[Kind]) -> Any:
        """A tensor from outside as a part of a key: its place if it was met before, else its kind. None if it cannot be."""
        place = self.places.get(id(x))  # type: ignore[union-attr]
        if place is not None:
            return place
        if x._backend is self.fusion:
            value, role = x._value, CONSTANT
        elif tape is not None and x._backend is tape:
            entry = x._entry
            inner = x._value
            if inner._backend is not self.fusion:
                return None
            value = inner._value
            role = TRACKED if (x._context.tracked if entry is None else entry.context is None) else UNTRACKED
        else:
            return None
        if type(value) is not _ARRAY or local.recording is not self:  # traced by JAX, or computing it ended the recording
            return None
        kind = _kind(x._shape, x._dtype, role)
        if x._entry is not SCALAR:
            self.places[id(x)] = self.state.size + len(added)  # type: ignore[index]
        self.knowns.append(x)
        added.append(kind)
        return kind

    def forget(self, added: list[Kind]) -> None:
        """Take back tensors from outside whose op was not recorded."""
        for _ in added:
            x = self.knowns.pop()
            self.places.pop(id(x), None)  # type: ignore[union-attr]


def record(fusion: Any, tape: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    """The output of `op`, to be computed later; None if it must run now."""
    recording = local.recording
    if recording is None or recording.fusion is not fusion or (tape is not None and recording.tape is not tape):
        recording = _ready(fusion, tape)
        if recording is None:
            return None
    key: list[Any] = [op, params]
    added: list[Kind] = []
    for x in inputs:
        entry = x._entry
        if entry is not None and entry.recording is recording:
            key.append(entry.place if tape is None or x._backend is tape else ~entry.place)
            continue
        part = recording.known(x, tape, added)
        if part is None:
            if local.recording is not recording:  # it has ended meanwhile
                return record(fusion, tape, op, inputs, params)
            recording.forget(added)
            return None
        key.append(part)
    state = recording.state
    steps = state.after if tape is None else state.after_taped
    following = steps.get(tuple(key))
    if following is None:
        try:
            following = _extend(fusion, recording, tape, op, params, key)
        except BaseException as error:
            recording.forget(added)
            if isinstance(error, (TypeError, ValueError, IndexError)) and not isinstance(error, FunctadError):
                refuse(op, inputs, params, error)
            raise
        if following is None:
            recording.forget(added)
            return None
        steps[tuple(key)] = following
    recording.state = following
    if following.place is not None:
        token = _new(Token)
        token.recording = recording
        token.place = following.place
        token.array = token.context = None
        recording.tokens.append(token)
        out = _new(Tensor)
        out._shape = following.shape
        out._dtype = following.dtype
        out._entry = token
        if tape is None:
            out._backend = fusion
            out._context = None
        else:
            out._backend = tape
    else:
        out = _several(recording, tape, following)
    if following.full:
        fusion.end(recording)
        local.recording = Immediate(_PAUSE)  # far too long to be compiled: do not record what will be run op by op
    return out


def _ready(fusion: Any, tape: Any) -> Recording | None:
    """The recording of this thread that takes ops of `fusion` and `tape`; None if they are to run at once."""
    recording = local.recording
    if type(recording) is Immediate:
        if recording.left is None:
            return None
        recording.left -= 1
        if recording.left > 0:
            return None
        recording = None
    if recording is not None and recording.fusion is fusion and recording.tape is None:
        recording.tape = tape
    else:
        if recording is not None:
            recording.fusion.end(recording)
        recording = local.recording = Recording(fusion, tape)
    return recording  # type: ignore[no-any-return]


def _several(recording: Recording, tape: Any, state: State) -> tuple[Tensor, ...]:
    outs = []
    for i, t in enumerate(state.types):
        token = Token(recording, state.first + i)
        recording.tokens.append(token)
        outs.append(_pending(recording.fusion if tape is None else tape, token, t, tape is None))
    return tuple(outs)


def _pending(backend: Any, token: Token, type: Type, base: bool) -> Tensor:
    out = _new(Tensor)
    out._backend = backend
    out._shape, out._dtype = type
    out._entry = token
    if base:
        out._context = None
    return out


def _extend(fusion: Any, recording: Recording, tape: Any, op: Op, params: tuple[Any, ...], key: list[Any]) -> State | None:
    """The state after an op that was not met here before; raises if it does not fit its inputs."""
    if op.base_run is not None or op.whole:
        return None
    parent = recording.state
    state = State(parent)
    state.op, state.params = op, params
    kinds: list[Kind] = []
    inputs: list[int] = []
    plain: list[bool] = []
    for part in key[2:]:
        if type(part) is Kind:
            inputs.append(parent.size + len(kinds))
            plain.append(False)
            kinds.append(part)
        else:
            inputs.append(part if part >= 0 else ~part)
            plain.append(part < 0)
    types = [*_types(parent), *[(Type(k.shape, k.dtype), k.role == TRACKED) for k in kinds]]
    given = tuple([types[i][0] for i in inputs])
    if tape is not None:
        wanted = tuple([types[i][1] and not p and op.takes(n) for n, (i, p) in enumerate(zip(inputs, plain, strict=True))])
        if any(wanted) and op.recorded(wanted) is not None:
            return None
    if dtypes.float64 in [t.dtype for t in given]:
        fusion.requires(dtypes.float64, op.name)
    made = abstract(op, params, given, recording.x64)
    state.novel = parent.novel + fusion.is_novel(op, params, given)
    single = type(made) is Type
    outs: tuple[Type, ...] = (made,) if single else made
    smooth = tape is not None and op.differentiable and any(wanted)
    state.inputs, state.plain, state.kinds = tuple(inputs), tuple(plain), tuple(kinds)
    state.types = outs
    state.tracked = tuple([smooth and dtypes.is_inexact(t.dtype) for t in outs])
    state.first = parent.size + len(kinds)
    state.size = state.first + len(outs)
    state.place = state.first if single else None
    state.shape, state.dtype = outs[0] if single else (None, None)
    state.depth = parent.depth + 1
    state.bytes = parent.bytes + sum([_nbytes(t) for t in outs])
    state.full = state.depth >= MOST_STEPS or state.bytes > MOST_BYTES
    state.taped = tape is not None
    local.types = (state, [*types, *zip(outs, state.tracked, strict=True)])
    fusion.states += 1
    return state


def _types(state: State) -> list[tuple[Type, bool]]:
    """The types of all places, and whether the tape follows them."""
    if local.types[0] is state:
        return local.types[1]  # type: ignore[no-any-return]
    types: list[tuple[Type, bool]] = []
    for step in path(state):
        types += [(Type(k.shape, k.dtype), k.role == TRACKED) for k in step.kinds]
        types += zip(step.types, step.tracked, strict=True)
    return types


def _nbytes(type: Type) -> int:
    size: int = type.dtype.itemsize
    for n in type.shape:
        size *= n
    return size


def path(state: State) -> list[State]:
    """The ops up to `state`, in order."""
    steps = []
    node: State | None = state
    while node is not None and node.parent is not None:
        steps.append(node)
        node = node.parent
    return steps[::-1]


def record_on(tape: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    """`record` for a tape: None unless its tensors lie directly on a device that fuses."""
    if tape.balanced or tape.level[0] <= _unrecorded.get():
        return None
    x = inputs[0]
    entry = x._entry
    if entry is not None and entry.recording is not None:
        fusion = entry.recording.fusion
    else:
        base = x._value._backend if x._backend is tape else x._backend
        if not getattr(base, "fuses", False):
            return None
        fusion = base
    return record(fusion, tape, op, inputs, params)
