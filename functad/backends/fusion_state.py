"""The structures of programs: a trie, in which each op leads from one state to the next.

A state says what the ops up to it are, by their names, their parameters and the numbers of their
inputs; it knows the types of all results, and holds no values.
"""

from __future__ import annotations

from copy import copy
from typing import Any

from functad import dtypes
from functad.backends.trace import abstract
from functad.dispatch import pending as local
from functad.dtypes import DType
from functad.ops.op import Op, Type

CONSTANT, UNTRACKED, TRACKED = range(3)
"""What a tensor from outside is to a recording: one of the base, or one of its tape."""

MOST_STEPS = 2048
MOST_BYTES = 1 << 30  # of results
LOOK_BYTES = 1 << 26  # of results and of tensors from outside, after which it is looked who holds those

PIECE_STEPS = 16  # what a tape that checkpoints keeps at intervals: of ops,
PIECE_BYTES = 1 << 24  # ... unless what they compute is small


class Kind:
    """The type and role of a tensor from outside; one object for each, so it is hashed by identity.

    It is also what such a tensor remembers as its entry. A Python number is an operand of its own at
    each use: which numbers happen to be equal must not make another structure.
    """

    __slots__ = ("dtype", "leaf", "recording", "role", "scalar", "shape")
    context = ()
    recorded = deferred = False
    leaf: Kind | None  # of a leaf of a tape over such a tensor

    def __init__(self, shape: tuple[int, ...], dtype: DType, role: int, scalar: bool, recording: Any):
        self.shape = shape
        self.dtype = dtype
        self.role = role
        self.scalar = scalar
        self.recording = recording
        self.leaf = None


class State:
    """One op more than `parent`. `inputs` are places; one is `plain` where the tape does not follow it."""

    __slots__ = (
        "after",
        "bytes",
        "closed",
        "count",
        "depth",
        "dtype",
        "end",
        "first",
        "full",
        "heavy",
        "held",
        "inputs",
        "kinds",
        "novel",
        "op",
        "params",
        "parent",
        "piece",
        "place",
        "plain",
        "plans",
        "shape",
        "size",
        "taped",
        "tracked",
        "types",
    )  # fmt: skip

    def __init__(self, parent: State | None = None):
        self.parent = parent
        self.after: dict[Any, State] = {}
        self.end: State | None = None  # this one, from where no op leads on
        self.closed = False
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
        self.size = self.count = self.depth = self.bytes = self.held = self.novel = 0
        self.full = self.heavy = self.piece = False
        self.tracked: tuple[bool, ...] = ()

    def at_end(self) -> State:
        """This state as the last of a recording."""
        if self.end is None:
            self.end = copy(self)
            self.end.after, self.end.plans, self.end.closed = {}, {}, True
        return self.end

    def tracks(self, place: int) -> bool:
        """Whether a tape follows the result at a place."""
        state = self
        while state.first > place:
            if state.parent is None or place >= state.first - len(state.kinds):
                return False
            state = state.parent
        return state.tracked[place - state.first]


def extend(recording: Any, tape: Any, key: Any) -> State | None:
    """The state after an op that was not met here before; raises if it does not fit its inputs."""
    fusion, parent, x64 = recording.fusion, recording.state, recording.x64
    op: Op = key[0]
    params: tuple[Any, ...] = key[1]
    if op.base_run is not None or op.whole:
        return None
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
    made = abstract(op, params, given, x64)
    state.novel = fusion.is_novel(op, params, given) if recording.direct else 0
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
    state.bytes = parent.bytes + sum([nbytes(t) for t in outs])
    state.held = parent.held + state.bytes - parent.bytes + sum([nbytes(k) for k in kinds])
    state.full = state.depth >= MOST_STEPS or state.bytes > MOST_BYTES
    state.heavy = state.held // LOOK_BYTES > parent.held // LOOK_BYTES
    state.piece = state.depth >= PIECE_STEPS and state.bytes > PIECE_BYTES
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


def nbytes(type: Type | Kind) -> int:
    """How many bytes a tensor of a type takes."""
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
