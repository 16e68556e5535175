"""What a recorded structure computes: the ops some results need, as programs forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp

from functad.backends.autodiff import Autodiff
from functad.backends.fusion_record import Token
from functad.backends.fusion_state import CONSTANT, TRACKED, State, path
from functad.backends.trace import open_trace
from functad.dispatch import bind
from functad.dtypes import is_inexact
from functad.levels import deeper
from functad.ops.op import Type
from functad.ops.operand import operand
from functad.ops.rules import broadcast
from functad.tape import Cut, Leaf, Origin, sweep

_MOST_ORIGINS = 8
_NO_NODES = frozenset({Leaf, type(None)})


def reach(steps: Sequence[State], wanted: set[int]) -> list[bool]:
    """Which ops the `wanted` places need; all places they need are added."""
    needed = [False] * len(steps)
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        if any(p in wanted for p in range(step.first, step.size)):
            needed[i] = True
            wanted.update(step.inputs)
    return needed


class Plan:
    """One structure that ends in one way: which results are wanted, and from which one backward starts."""

    def __init__(self, state: State, held: tuple[int, ...], below: tuple[int, ...], root: int | None):
        self.live = live = tuple(sorted({*held, *below}))
        self.root = root
        self.steps = path(state)
        wanted = set(live) if root is None else {*live, root}
        self.needed = reach(self.steps, wanted)
        places = [p for step in self.steps for p in range(step.first - len(step.kinds), step.first)]
        self.reads = [p in wanted for p in places]  # of the tensors from outside
        self.where = [i for i, read in enumerate(self.reads) if read]
        kinds = [kind for step in self.steps for kind in step.kinds]
        self.inputs = [kinds[i] for i in self.where]
        self.count = sum(self.needed)
        self.last: dict[int, list[int]] = {}  # by step, the places that no later one reads
        seen = wanted = set(live) if root is None else {*live, root}
        for i in range(len(self.steps) - 1, -1, -1):
            if self.needed[i]:
                self.last[i] = [p for p in {*self.steps[i].inputs} if p not in seen]
                seen.update(self.steps[i].inputs)
        taped = {p: (s.taped, t) for s in self.steps for p, t in zip(range(s.first, s.size), s.tracked, strict=True)}
        self.followed = tuple([p for p in held if taped[p][1]])  # by a tape, after the recording has ended
        self.results = [(live.index(p), p in self.followed, taped[p][0]) for p in held]
        self.results += [(live.index(p), False, False) for p in below]
        wanted = set(self.followed)
        reach(self.steps, wanted)
        self.keeps = [
            p in wanted for p in places
        ]  # whether what goes on behind the recording needs a tensor from outside
        self.on_tape = [k.role != CONSTANT for k in self.inputs]
        self.types = [t for s in self.steps for p, t in zip(range(s.first, s.size), s.types, strict=True) if p in live]
        self.novel = sum([step.novel for step in self.steps])
        for step in self.steps:
            step.novel = 0  # other structures that begin alike are not new for that
        self.met = 0
        self.used = 0
        self.done: Any = None  # an event: whether it has been compiled
        self.made: Any = None  # what the compiler made of it
        self.by_op: Any = None
        self.call: Any = None
        self.staged: Any = None
        self.reached: list[tuple[int, Type]] = []
        self.refused = False  # it reads values, so it cannot be written down
        self.bytes = 0  # of the executable, by estimate
        self.kept = False  # among those that are counted

    def forget(self) -> None:
        """Let go of the executables."""
        self.call = self.made = self.done = self.staged = self.by_op = None
        self.met = self.bytes = self.novel = 0
        self.kept = False

    def arrays(self, knowns: Sequence[Any]) -> list[Any]:
        """The arrays of the tensors from outside, on the tape or below it."""
        return [
            knowns[i]._value._value if taped else knowns[i]._value
            for i, taped in zip(self.where, self.on_tape, strict=True)
        ]

    # --- as programs

    def _write(self, inputs: Sequence[Any], taped: bool) -> list[Any]:
        """Run the needed ops on tensors that stand for the recording's knowns; the value at each place."""
        values: list[Any] = []
        given, reads = iter(inputs), iter(self.reads)
        for step, needed in zip(self.steps, self.needed, strict=True):
            values += [next(given) if next(reads) else None for _ in step.kinds]
            if not needed:
                values += [None] * len(step.types)
                continue
            ins = [
                _constant(values[p]) if plain else values[p] for p, plain in zip(step.inputs, step.plain, strict=True)
            ]
            if taped and not step.taped:
                ins = [_untaped(x) for x in ins]
            out = bind(step.op, ins, step.params)
            values += out if type(out) is tuple else [out]
        return values

    def forward(self, fusion: Any) -> Any:
        """The program that computes the live results."""
        with deeper() as level, open_trace(level, fusion, "fusion") as trace:
            inputs = [trace.input(k.shape, k.dtype) for k in self.inputs]
            values = self._write(inputs, taped=False)
            return trace.program([values[p] for p in self.live])

    def evaluator(self, call: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """A function of arrays that computes the live results, each op through `call(op, arrays, params)`."""
        call = call or _call
        steps, needed, live, last = self.steps, self.needed, self.live, self.last

        def evaluate(*arrays: Any) -> Any:
            values: list[Any] = []
            given, reads = iter(arrays), iter(self.reads)
            for i, (step, want) in enumerate(zip(steps, needed, strict=True)):
                values += [next(given) if next(reads) else None for _ in step.kinds]
                if not want:
                    values += [None] * len(step.types)
                    continue
                out = call(step.op, [values[p] for p in step.inputs], step.params)
                values += out if type(out) is tuple else [out]
                for p in last[i]:
                    values[p] = None
            return [values[p] for p in live]

        return evaluate

    def backward(self, fusion: Any) -> Callable[..., Any]:
        """A function of arrays that computes the live results and the gradients of the tracked inputs it `reached`."""
        with deeper() as level, open_trace(level, fusion, "fusion") as trace:
            variables = [trace.input(k.shape, k.dtype) for k in self.inputs]
            with deeper() as above:
                tape = Autodiff(above)
                inputs = [
                    v if k.role == CONSTANT else tape.leaf(v) if k.role == TRACKED else tape.lift(v)
                    for v, k in zip(variables, self.inputs, strict=True)
                ]
                values = self._write(inputs, taped=True)
                loss = values[self.root]  # type: ignore[index]
                seed = broadcast(operand(1, loss._value, loss._dtype), loss._shape)
                found = sweep([(loss._context, seed)])
                tape.close()
            leaves = {
                x._context.id: i for i, (x, k) in enumerate(zip(inputs, self.inputs, strict=True)) if k.role == TRACKED
            }
            self.reached = [
                (i, Type(self.inputs[i].shape, self.inputs[i].dtype))
                for leaf, i in leaves.items()
                if leaf in found.gradients
            ]
            grads = [found.gradients[leaf] for leaf in leaves if leaf in found.gradients]
            program = trace.program([*[_untaped(values[p]) for p in self.live], *grads])

        def whole(*arrays: Any) -> Any:
            return program.call(_call, arrays)

        return whole


def _call(op: Any, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
    return op.impl(jnp, *inputs, **dict(zip(op.params, params, strict=True)))


def _constant(x: Any) -> Any:
    """What a tensor below the tape is to the op."""
    return x._value if type(x._backend) is Autodiff else x._backend.detach(x)


def _untaped(x: Any) -> Any:
    return x._value if type(x._backend) is Autodiff else x


# --- where constants came from


def origins_of(plan: Plan, contexts: Sequence[Any]) -> tuple[dict[int, tuple[Origin, ...]], list[tuple[Origin, ...]]]:
    """Per place that is a constant of the tape: what it came from; and all that tracked ops met.

    `contexts` has, per known that is read, its leaves if it is tracked, its origins if it is a constant, else None.
    """
    about: list[Any] = []
    met = []
    given, reads = iter(contexts), iter(plan.reads)
    for step, needed in zip(plan.steps, plan.needed, strict=True):
        about += [next(given) if next(reads) else None for _ in step.kinds]
        if not (needed and step.taped):
            about += [None] * len(step.types)
            continue
        parents = [a for p, plain in zip(step.inputs, step.plain, strict=True) if not plain and (a := about[p])]
        constants = tuple([o for tracked, os in parents if not tracked for o in os])
        leaves = tuple([found for tracked, found in parents if tracked])
        if any(step.tracked) and constants:
            met.append(constants)
        for type, tracked in zip(step.types, step.tracked, strict=True):
            cut = "detach" if is_inexact(type.dtype) else "int"
            found = tuple([Cut(cut, part) for part in leaves]) + constants
            about.append((True, leaves) if tracked else (False, found[-_MOST_ORIGINS:]))
    return {p: a[1] for p, a in enumerate(about) if a and not a[0]}, met


def summary(knowns: Sequence[Any]) -> list[Any]:
    """What `origins_of` reads of the contexts: nothing that holds arrays."""
    found: list[Any] = []
    for x in knowns:
        entry = x._entry
        if type(entry) is Token and entry.context is None and x._backend is entry.recording.tape:
            found.append((True, leaves_of(entry.recording)))
        elif (c := x._context) is None:
            found.append(None)
        else:
            found.append((True, c.leaves) if c.tracked else (False, (c.id, *c.origins)))
    return found


class Origins:
    """The origins a backward met, worked out when somebody asks."""

    __slots__ = ("found", "plan")

    def __init__(self, plan: Plan, recording: Any):
        self.plan: Any = plan
        knowns = [recording.knowns[i] for i in plan.where]
        if recording.continued:  # some contexts are not there, and must not be made for this
            self._find([knowns[i]._context for i, _ in plan.reached], summary(knowns))
            return
        self.found: Any = [x._context if taped else None for x, taped in zip(knowns, plan.on_tape, strict=True)]
        if not _NO_NODES.issuperset(map(type, self.found)):
            self._find([self.found[i] for i, _ in plan.reached], summary(knowns))

    def _find(self, reached: Sequence[Any], contexts: Sequence[Any]) -> None:
        own = [c.origins for c in reached if type(c) is Leaf and c.origins]  # of leaves that others were cut off to
        self.found = [*own, *origins_of(self.plan, contexts)[1]]
        self.plan = None

    def __iter__(self) -> Any:
        if self.plan is not None:
            self._find(
                [self.found[i] for i, _ in self.plan.reached],
                [
                    c if c is None else (True, c.leaves) if c.tracked else (False, (c.id, *c.origins))
                    for c in self.found
                ],
            )
        return iter(self.found)


# --- recordings that a tape goes on behind


def is_consumed(recording: Any, place: int) -> bool:
    """Whether a backward that was to release what it walked has walked an op that a result needs."""
    if not recording.released:
        return False
    steps = path(recording.state)
    mine = reach(steps, {place})
    return any(
        here and there and any(step.tracked)
        for root in recording.released
        for step, here, there in zip(steps, mine, reach(steps, {root}), strict=True)
    )


def _leaves(x: Any) -> Any:
    """The leaves of a tensor from outside, without making the context of a recorded one."""
    entry = x._entry
    return leaves_of(entry.recording) if type(entry) is Token and entry.context is None else x._context.leaves


def leaves_of(recording: Any) -> Any:
    """The leaves that a recording depends on."""
    if recording.leaves is None:
        recording.leaves = tuple(
            [_leaves(x) for x in recording.knowns if x is not None and x._backend is recording.tape]
        )
    return recording.leaves
