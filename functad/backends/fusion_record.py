"""What eager code does between two observations, as a path through the structures met so far.

A recording is a place in a trie. Each op leads from one state to the next by its name, its
parameters and the numbers of its inputs; the state knows the type of the result. So recording an
op that has been recorded before is one lookup, and at the end the state stands for all of it.

A tensor whose op is recorded has neither value nor context until somebody reads them: it has a
`Token`. `Tensor` asks `read` for what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes
from functad.backends.base import refuse
from functad.backends.trace import abstract
from functad.dispatch import pending as local
from functad.dispatch import tracing
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
_ARRAYS = (type(jnp.zeros(())), np.ndarray)  # no tracers

_new = object.__new__


class Kind:
    """The type and role of a tensor from outside; one object for each, so it is hashed by identity.

    It is also what such a tensor remembers as its entry. A Python number is an operand of its own at
    each use: which numbers happen to be equal must not make another structure.
    """

    __slots__ = ("dtype", "recording", "role", "scalar", "shape")
    context = ()

    def __init__(self, shape: tuple[int, ...], dtype: DType, role: int, scalar: bool, recording: Any):
        self.shape = shape
        self.dtype = dtype
        self.role = role
        self.scalar = scalar
        self.recording = recording


class Token:
    """Stands for a recorded result: its place in the recording, then its array."""

    __slots__ = ("array", "context", "key", "place", "recording")
    array: Any
    context: Any  # of a constant of the tape, once the recording has ended
    recording: Any

    def __init__(self, recording: Any, place: int, key: int):
        self.recording = recording
        self.place = place
        self.key = key  # the place, or ~place for the tensor that one of the tape holds
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
            inner = Token(recording, self.place, ~self.place)
            recording.more.append(inner)
            return _pending(recording.fusion, inner, Type(x._shape, x._dtype), base=True)
        array = recording.fusion.array_of(self) if self.array is None else self.array
        return Tensor(recording.fusion, array, None, x._shape, x._dtype)


class State:
    """One op more than `parent`. `inputs` are places; one is `plain` where the tape does not follow it."""

    __slots__ = (
        "after",
        "bytes",
        "count",
        "depth",
        "dtype",
        "first",
        "full",
        "inputs",
        "kinds",
        "novel",
        "op",
        "params",
        "parent",
        "place",
        "plain",
        "plans",
        "shape",
        "size",
        "stamp",
        "taped",
        "tracked",
        "types",
    )  # fmt: skip

    def __init__(self, parent: State | None = None):
        self.parent = parent
        self.after: dict[Any, State] = {}
        self.plans: dict[Any, Any] = {}
        self.op: Any = None
        self.params: tuple[Any, ...] = ()
        self.inputs: tuple[int, ...] = ()
        self.plain: tuple[bool, ...] = ()
        self.kinds: tuple[Kind, ...] = ()
        self.types: tuple[Type, ...] = ()
        self.taped = False
        self.first = 0
        self.place: int | None = None
        self.shape: Any = None
        self.dtype: Any = None
        self.size = self.count = self.depth = self.bytes = self.novel = self.stamp = 0
        self.full = False
        self.tracked: tuple[bool, ...] = ()


class immediate:
    """A block whose ops run at once, in the given precision mode."""

    def __init__(self, x64: bool):
        self.mode = None if x64 == dtypes.x64_enabled() else jax.enable_x64(x64)

    def __enter__(self) -> None:
        self.before = local.recording, local.at_once
        local.recording, local.at_once = None, -1
        if self.mode is not None:
            self.mode.__enter__()

    def __exit__(self, *exc: object) -> None:
        local.recording, local.at_once = self.before
        if self.mode is not None:
            self.mode.__exit__(None, None, None)


class Recording:
    """Ops that one thread recorded and has not run."""

    __slots__ = (
        "continued",
        "fusion",
        "knowns",
        "leaves",
        "live",
        "made",
        "more",
        "numbers",
        "places",
        "released",
        "state",
        "tape",
        "tokens",
        "x64",
    )

    def __init__(self, fusion: Any, tape: Any):
        self.fusion = fusion
        self.tape = tape
        self.state: State = fusion.root()
        self.x64 = dtypes.x64_enabled()
        self.knowns: list[Tensor] = []
        self.places: dict[int, int] | None = {}
        self.tokens: Any = []
        self.numbers: dict[Any, Any] = {}  # tensors of Python floats, by the id of the float
        self.more: Any = []  # of tensors below the tape
        self.live: tuple[int, ...] = ()  # what its tape follows and somebody holds
        self.leaves: Any = None  # of the tape; made when asked for
        self.continued = False  # a tensor from outside was recorded itself
        self.made: dict[int, Tensor] = {}
        self.released = False

    def repeat(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """The output of an op that was recorded at this point before, else None."""
        if len(inputs) == 2:
            x, y = inputs
            a = x._entry
            a = a.key if a is not None and a.recording is self else self.known(x, self.tape)
            b = y._entry
            b = b.key if b is not None and b.recording is self else self.known(y, self.tape)
            state = self.state.after.get((op, params, a, b))
        elif len(inputs) == 1:
            x = inputs[0]
            a = x._entry
            a = a.key if a is not None and a.recording is self else self.known(x, self.tape)
            state = self.state.after.get((op, params, a))
        else:
            tape = self.tape
            parts = [
                e.key if (e := x._entry) is not None and e.recording is self else self.known(x, tape) for x in inputs
            ]
            state = self.state.after.get((op, params, *parts))
        if state is not None:
            return self.goes(state)
        if len(self.knowns) != self.state.count:
            self.forget()
        return None

    def goes(self, state: State) -> Any:
        """Take the step to `state`: its output, a tensor whose op is recorded."""
        self.state = state
        place = state.place
        if place is None or state.full:
            return _several(self, state)
        token = _new(Token)
        token.recording = self
        token.place = token.key = place
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
            out._context = None
        return out

    def known(self, x: Tensor, tape: Any) -> Any:
        """A tensor from outside as a part of a key: its place if it was met before, else its kind. None if it cannot be."""
        places = self.places
        if places is None:  # reading the value of another input has ended the recording
            return None
        place = places.get(id(x))
        if place is not None:
            return place
        kind = x._entry
        if type(kind) is not Kind or kind.recording is not self.fusion.ended or (kind.role and x._backend is not tape):
            kind = self._kind(x, tape)
            if kind is None:
                return None
        state = self.state
        knowns = self.knowns
        if not kind.scalar:
            places[id(x)] = state.size + len(knowns) - state.count
        knowns.append(x)
        return kind

    def _kind(self, x: Tensor, tape: Any) -> Kind | None:
        fusion = self.fusion
        entry = x._entry
        if x._backend is fusion:
            value, role = x._value, CONSTANT
        elif tape is not None and x._backend is tape:
            inner = x._value
            if inner._backend is not fusion:
                return None
            value = inner._value
            unread = type(entry) is Token and entry.context is None
            tracked = unread or x._context.tracked
            self.continued = self.continued or unread
            role = TRACKED if tracked else UNTRACKED
        else:
            return None
        if (
            type(value) not in _ARRAYS or local.recording is not self
        ):  # traced by JAX, or computing it ended the recording
            return None
        kind: Kind = fusion.kind(x._shape, x._dtype, role)
        if x._entry is None:
            x._entry = kind
        return kind

    def forget(self) -> None:
        """Take back tensors from outside whose op was not recorded."""
        while self.places is not None and len(self.knowns) > self.state.count:
            self.places.pop(id(self.knowns.pop()), None)


def record(fusion: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    """The output of `op` below the tape, to be computed later; None if it must run now."""
    recording = local.recording
    if recording is None or recording.fusion is not fusion:
        if local.at_once:
            local.at_once -= local.at_once > 1  # the last one goes when a value is looked at
            return None
        recording = _ready(fusion, None)
    return _step(recording, None, op, inputs, params)


def record_on(tape: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    """`record` for ops of a tape: None unless its tensors lie directly on a device that fuses."""
    recording = local.recording
    if recording is None or recording.tape is not tape:
        if tape.balanced:
            return None
        x = inputs[0]
        base = x._value._backend if x._backend is tape else x._backend
        if not getattr(base, "fuses", False):
            return None
        recording = _ready(base, tape)
    if tape.level[0] <= _unrecorded.get() or tracing.get() is not None:
        return None
    return _step(recording, tape, op, inputs, params)


def _step(recording: Recording, tape: Any, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
    parts = [
        e.key if (e := x._entry) is not None and e.recording is recording else recording.known(x, tape) for x in inputs
    ]
    if local.recording is not recording:  # reading a value has ended it
        return record(recording.fusion, op, inputs, params) if tape is None else record_on(tape, op, inputs, params)
    key = (op, params, *parts)
    state = recording.state.after.get(key) or _add(recording, tape, key, inputs)
    return None if state is None else recording.goes(state)


def _several(recording: Recording, state: State) -> Any:
    """Several outputs, or the last one there is room for."""
    outs = []
    for i, t in enumerate(state.types):
        token = Token(recording, state.first + i, state.first + i)
        recording.tokens.append(token)
        outs.append(_pending(recording.tape if state.taped else recording.fusion, token, t, not state.taped))
    if state.full:
        recording.fusion.end(recording)
        local.at_once = _PAUSE  # far too long to be compiled: do not record what will be run op by op
    return tuple(outs) if state.place is None else outs[0]


def _add(recording: Recording, tape: Any, key: Any, inputs: Sequence[Tensor]) -> State | None:
    """A new state; None if the op cannot be recorded. Raises if it does not fit its inputs."""
    state = None
    op, params = key[:2]
    try:
        if None not in key[2:]:
            state = _extend(recording.fusion, recording, tape, op, params, key)
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


def _ready(fusion: Any, tape: Any) -> Recording:
    """The recording of this thread that takes ops of `fusion` and `tape`."""
    recording = local.recording
    if recording is not None and recording.fusion is fusion and recording.tape is None:
        recording.tape = tape
    else:
        if recording is not None:
            recording.fusion.end(recording)
        recording = local.recording = Recording(fusion, tape)
    return recording


def _pending(backend: Any, token: Token, type: Type, base: bool) -> Tensor:
    out = _new(Tensor)
    out._backend = backend
    out._shape, out._dtype = type
    out._entry = token
    if base:
        out._context = None
    return out


def _extend(
    fusion: Any, recording: Recording, tape: Any, op: Op, params: tuple[Any, ...], key: list[Any]
) -> State | None:
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
        wanted = tuple(
            [types[i][1] and not p and op.takes(n) for n, (i, p) in enumerate(zip(inputs, plain, strict=True))]
        )
        if any(wanted) and op.recorded(wanted) is not None:
            return None
    if dtypes.float64 in [t.dtype for t in given]:
        fusion.requires(dtypes.float64, op.name)
    made = abstract(op, params, given, recording.x64)
    state.novel = fusion.is_novel(op, params, given)
    single = type(made) is Type
    outs: tuple[Type, ...] = (made,) if single else made
    smooth = tape is not None and op.differentiable and any(wanted)
    state.inputs, state.plain, state.kinds = tuple(inputs), tuple(plain), tuple(kinds)
    state.types = outs
    state.tracked = tuple([smooth and dtypes.is_inexact(t.dtype) for t in outs])
    state.first = parent.size + len(kinds)
    state.size = state.first + len(outs)
    state.count = parent.count + len(kinds)
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
        return local.types[1]
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
