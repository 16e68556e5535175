"""What a recorded structure computes: the ops some results need, as programs forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any
from weakref import ref

import jax.numpy as jnp

from functad.backends.autodiff import Autodiff
from functad.backends.fusion_record import Recording
from functad.backends.fusion_saved import least_saved
from functad.backends.fusion_state import CONSTANT, TRACKED, State, nbytes, path
from functad.backends.trace import Program, open_trace
from functad.dispatch import bind
from functad.dispatch import pending as local
from functad.dtypes import is_inexact
from functad.levels import deeper
from functad.ops.ieee import guarded, is_guarded
from functad.ops.op import Cost, Type
from functad.ops.operand import operand
from functad.ops.rules import broadcast
from functad.tape import Cut, Leaf, Leaves, Node, Origin, Part, fresh_id, sweep

_MOST_ORIGINS = 8
FORTH_AND_BACK = 3
"""How many ops run for each one of a forward, with its backward, about."""

_MOST_SETS = 16  # of results, of which a plan remembers what they need
_SMALL = 1 << 12  # bytes of a constant that may be held for nothing


def reach(steps: Sequence[State], wanted: set[int]) -> list[bool]:
    """Which ops the `wanted` places need; all places they need are added."""
    needed = [False] * len(steps)
    for i in range(len(steps) - 1, -1, -1):
        step = steps[i]
        if any(p in wanted for p in range(step.first, step.size)):
            needed[i] = True
            wanted.update(step.inputs)
            wanted.update(range(step.first, step.size))  # its rule may read what else it made
    return needed


class Plan:
    """One structure that ends in one way: which results are wanted, and from which ones backward starts.

    Backward starts with ones where the recording ends with it, else (`seeded`) with cotangents that it is given.
    """

    def __init__(
        self,
        state: State,
        held: tuple[int, ...] = (),
        below: tuple[int, ...] = (),
        roots: tuple[int, ...] = (),
        seeded: bool = False,
        watched: tuple[int, ...] = (),  # results whose gradients are kept
        kept: tuple[int, ...] = (),  # results of costly ops that backward is given, if it reads them
    ):
        self.state = state
        self.live = live = tuple(sorted({*held, *below}))
        self.roots = roots
        self.watched = watched
        self.saved = kept
        self.guarded = is_guarded()  # it is written down in another context
        self.steps = path(state)
        wanted = {*live, *roots}
        self.needed = reach(self.steps, wanted)
        self.places = [p for step in self.steps for p in range(step.first - len(step.kinds), step.first)]
        self.reads = [p in wanted for p in self.places]  # of the tensors from outside
        self.where = [i for i, read in enumerate(self.reads) if read]
        kinds = [kind for step in self.steps for kind in step.kinds]
        self.inputs = [kinds[i] for i in self.where]
        self.count = sum(self.needed)
        self.ops = max(self.count * (FORTH_AND_BACK if roots else 1), 1)  # that run, about
        self.last: dict[int, list[int]] = {}  # by step, the places that no later one reads
        seen = {*live, *roots, *watched}
        for i in range(len(self.steps) - 1, -1, -1):
            if self.needed[i]:
                self.last[i] = [p for p in {*self.steps[i].inputs} if p not in seen]
                seen.update(self.steps[i].inputs)
        self.types_at = made = {p: t for s in self.steps for p, t in zip(range(s.first, s.size), s.types, strict=True)}
        self.seeds = [made[p] for p in roots] if seeded else []
        taped = {p: (s.taped, t) for s in self.steps for p, t in zip(range(s.first, s.size), s.tracked, strict=True)}
        self.followed = tuple([p for p in held if taped[p][1]])  # by a tape, after the recording has ended
        self.results = [(live.index(p), p in self.followed, taped[p][0]) for p in held]
        self.cuts = any(taped and not tracked for _, tracked, taped in self.results)
        self.results += [(live.index(p), False, False) for p in below]
        read = {p for step, needed in zip(self.steps, self.needed, strict=True) if needed for p in step.inputs}
        self.ends = frozenset(self.followed) - read if self.count > 1 else frozenset()
        self.tracked_in = [i for i, k in enumerate(kinds) if k.role == TRACKED]  # of the tensors from outside
        self._needs: dict[int, frozenset[int]] = {}
        self._needed_by: dict[tuple[int, ...], list[bool]] = {}
        self.on_tape = [k.role != CONSTANT for k in self.inputs]
        self.types = [made[p] for p in live]
        self.novel = sum([step.novel for step in self.steps])
        for step in self.steps:
            step.novel = 0  # other structures that begin alike are not new for that
        self.met = 0  # how often, by what was sampled
        self.pulled: set[int] = set()  # the results from which backward went on
        self.expected = False  # to recur, as what it belongs to does
        self.switch = 0  # how often it has been met when its executable is used
        self.used = 0
        self.key: Any = None  # by which the state knows it
        self.done: Any = None  # an event: whether it has been compiled
        self.made: Any = None  # what the compiler made of it
        self.by_op: Any = None
        self.call: Any = None
        self.beyond: Plan | None = None  # its backward, if that was compiled with it
        self.written: Any = None  # as a program for tensors of any level; False if it cannot be
        self.reached: list[tuple[int, Type]] = []  # where gradients go: a tensor from outside, or ~place
        self.reads_saved: list[int] = []  # of the results of costly ops
        self.behind: list[bool] = []  # ... and whether through an op that guards
        self.refused = False  # it reads values, so it cannot be written down
        self.bytes = 0  # of the executable, by estimate
        self.kept = False  # among those that are counted

    def needs(self, place: int) -> frozenset[int]:
        """The places that a result depends on."""
        if place not in self._needs:
            wanted = {place}
            reach(self.steps, wanted)
            self._needs[place] = frozenset(wanted)
        return self._needs[place]

    def needed_by(self, places: tuple[int, ...]) -> list[bool]:
        """Which tensors from outside some results depend on."""
        found = self._needed_by.get(places)
        if found is None:
            wanted = frozenset().union(*[self.needs(p) for p in places])
            found = [p in wanted for p in self.places]
            if len(self._needed_by) < _MOST_SETS:
                self._needed_by[places] = found
        return found

    @cached_property
    def differ(self) -> bool:
        """Whether results on the tape depend on different things that are worth letting go of."""
        kinds = [kind for step in self.steps for kind in step.kinds]
        large = {p for p, k in zip(self.places, kinds, strict=True) if k.role == TRACKED or nbytes(k) > _SMALL}
        large.update(self.saved)
        return len({self.needs(p) & large for p in self.followed}) > 1

    @cached_property
    def largest(self) -> int:
        """The bytes of the largest array in it."""
        made = [nbytes(t) for step, needed in zip(self.steps, self.needed, strict=True) if needed for t in step.types]
        return max([*map(nbytes, self.inputs), *made], default=0)

    def forget(self) -> None:
        """Let go of the executables."""
        self.call = self.made = self.done = self.by_op = self.written = self.beyond = None
        self.met = self.bytes = self.novel = 0
        self.kept = False

    def arrays(self, knowns: Sequence[Any]) -> list[Any]:
        """The arrays of the tensors from outside, on the tape or below it."""
        return [
            knowns[i]._value._value if taped else knowns[i]._value
            for i, taped in zip(self.where, self.on_tape, strict=True)
        ]

    # --- as programs

    def _write(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the needed ops on tensors of a tape that stand for the tensors from outside; the value at each place."""
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
            if not step.taped:
                ins = [_untaped(x) for x in ins]
            out = bind(step.op, ins, step.params)
            values += out if type(out) is tuple else [out]
        return values

    def evaluator(self, call: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """A function of arrays that computes the live results and those saved, each op through `call(op, arrays, params)`."""
        call = call or _call
        steps, needed, last = self.steps, self.needed, self.last
        results = (*self.live, *self.only_saved)
        kept = set(self.saved)

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
                    if p not in kept:
                        values[p] = None
            return [values[p] for p in results]

        return evaluate

    def program(self, fusion: Any) -> Program:
        """What computes the live results and the gradients of what it `reached`."""
        program, variables = self._traced(fusion)
        given = {variables[p]: p for p in self.saved if p in variables} if self.seeds else {}
        inside, read = _cut(program, given)
        self.reads_saved = [given[x] for x in read]
        return inside

    def backward(self, fusion: Any) -> Callable[..., Any]:
        """The same as a function of arrays."""
        inside = self.program(fusion)

        def whole(*arrays: Any) -> Any:
            return inside.call(_call, arrays)

        return whole

    def save(self, fusion: Any) -> None:
        """Find what forward is to return for backward, lest it compute costly ops again."""
        backward = Plan(self.state, roots=self.followed, seeded=True)
        program, variables = backward._traced(fusion)
        compute = {p for s in self.steps if s.op.cost is Cost.COMPUTE for p in range(s.first, s.size)}
        forward = {x: p for p, x in variables.items()}
        held = {x for x, p in forward.items() if p in self.live}
        costly = {x for x, p in forward.items() if p in compute}
        self.saved = tuple(sorted([forward[x] for x in least_saved(program, forward, costly, held)]))

    @property
    def only_saved(self) -> tuple[int, ...]:
        """The places whose results are returned for backward alone."""
        return tuple([p for p in self.saved if p not in self.live])

    def saved_of(self, results: Sequence[Any]) -> dict[int, Any]:
        """What is kept for backward, by place, of what a forward has returned."""
        found = dict(zip((*self.live, *self.only_saved), results, strict=False))
        return {p: found[p] for p in self.saved}

    def _traced(self, fusion: Any) -> tuple[Program, dict[int, int]]:
        """The program, and the variables that stand for results by their places."""
        with deeper() as level, open_trace(level, fusion, "fusion") as trace:
            inputs = [trace.input(k.shape, k.dtype) for k in self.inputs]
            seeds = [trace.input(*t) for t in self.seeds]
            values, gradients = self.gradients(inputs, seeds)
            saved = () if self.seeds else self.only_saved
            program = trace.program([*[values[p] for p in (*self.live, *saved)], *gradients])
            return program, {p: x._value for p, x in enumerate(values) if x is not None and x._backend is trace}

    def gradients(self, variables: Sequence[Any], seeds: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The value at each place and the gradients of what it `reached`, from tensors of any level, op by op."""
        with deeper() as above, guarded() if self.guarded else nullcontext():
            tape = Autodiff(above)
            tape.records = False  # a recording of its own would be a node that asks for this again
            inputs = [
                v if k.role == CONSTANT else tape.leaf(v) if k.role == TRACKED else tape.lift(v)
                for v, k in zip(variables, self.inputs, strict=True)
            ]
            values = self._write(inputs)
            ends = [values[p] for p in self.roots]
            starts = seeds or [broadcast(operand(1, x._value, x._dtype), x._shape) for x in ends]
            wanted = {
                x._context.id: (i, x)
                for i, (x, k) in enumerate(zip(inputs, self.inputs, strict=True))
                if k.role == TRACKED
            }
            for p in self.watched:
                if (x := values[p]) is not None:
                    x._context.retained = True
                    wanted[x._context.id] = ~p, x
            found = sweep([(x._context, g) for x, g in zip(ends, starts, strict=True)])
            tape.close()
        reached = [id for id in wanted if id in found.gradients]
        self.reached = [(i, Type(x._shape, x._dtype)) for i, x in [wanted[id] for id in reached]]
        self.behind = [id in found.behind for id in reached]
        return [x if x is None else _untaped(x) for x in values], [found.gradients[id] for id in reached]


def _cut(program: Program, given: dict[int, int]) -> tuple[Program, list[int]]:
    """The program with those of the variables `given` as inputs that it reads; and these."""
    wanted = {x for x in program.outputs if type(x) is int}
    equations = []
    read: list[int] = []
    for eq in reversed(program.equations):
        if wanted.isdisjoint(eq.outputs):
            continue
        mine = [x for x in eq.outputs if x in wanted]
        if all(x in given for x in mine):
            read += mine
        else:
            equations.append(eq)
            wanted.update(x for x in eq.inputs if type(x) is int)
    return Program([*program.inputs, *read], equations[::-1], program.outputs, program.types), read


def _call(op: Any, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
    return op.impl(jnp, *inputs, **dict(zip(op.params, params, strict=True)))


def _constant(x: Any) -> Any:
    """What a tensor below the tape is to the op."""
    return x._value if type(x._backend) is Autodiff else x._backend.detach(x)


def _untaped(x: Any) -> Any:
    return x._value if type(x._backend) is Autodiff else x


# --- where constants came from


def origins_of(plan: Plan, contexts: Sequence[Any]) -> tuple[dict[int, tuple[Origin, ...]], list[tuple[Origin, ...]]]:
    """Per place that is a constant of the tape: what it came from; and all that ops met which backward walks.

    `contexts` has, per known that is read, its leaf or its leaves (with True), or None if it is below the tape.
    """
    contexts = [
        ((True, c.leaves) if c.tracked else (False, (c.id, *c.origins))) if type(c) is Leaf else c for c in contexts
    ]
    about: list[Any] = []
    met = []
    given, reads = iter(contexts), iter(plan.reads)
    for step, needed, walked in zip(plan.steps, plan.needed, _walked(plan), strict=True):
        about += [next(given) if next(reads) else None for _ in step.kinds]
        if not (needed and step.taped):
            about += [None] * len(step.types)
            continue
        parents = [a for p, plain in zip(step.inputs, step.plain, strict=True) if not plain and (a := about[p])]
        constants = tuple([o for tracked, os in parents if not tracked for o in os])
        leaves = tuple([found for tracked, found in parents if tracked])
        if walked and constants:
            met.append(constants)
        for t, tracked in zip(step.types, step.tracked, strict=True):
            cut = "detach" if is_inexact(t.dtype) else "int"
            found = tuple([Cut(cut, part) for part in leaves]) + constants
            about.append((True, leaves) if tracked else (False, found[-_MOST_ORIGINS:]))
    return {p: a[1] for p, a in enumerate(about) if a and not a[0]}, met


def _walked(plan: Plan) -> list[bool]:
    """Which ops backward walks from the roots: not those that only a cut, or what else is alive, needs."""
    places = set(plan.roots)
    found = []
    for step in reversed(plan.steps):
        walked = any(t and p in places for p, t in zip(range(step.first, step.size), step.tracked, strict=True))
        found.append(walked)
        if walked:
            places.update(p for p, plain in zip(step.inputs, step.plain, strict=True) if not plain)
    return found[::-1]


def summary(knowns: Sequence[Any]) -> list[Any]:
    """What `origins_of` reads of the contexts: nothing that holds arrays."""
    contexts = [x._context for x in knowns]
    return [c if c is None or type(c) is Leaf else (True, c.leaves) for c in contexts]


class Origins:
    """The origins that backward met in one structure, worked out when somebody asks."""

    __slots__ = ("contexts", "found", "plan")

    def __init__(self, plan: Plan, recording: Any):
        self.plan = plan
        self.contexts: Any = summary([recording.knowns[i] for i in plan.where])
        self.found: Any = None

    def __iter__(self) -> Iterator[Origin]:
        if self.found is None:
            reached = [self.contexts[i] for i, _ in self.plan.reached if i >= 0]
            own = [c.origins for c in reached if type(c) is Leaf]  # of leaves that others were cut off to
            parts = [*own, *origins_of(self.plan, self.contexts)[1]]
            self.found = [origin for origins in parts for origin in origins]
            self.contexts = None
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


def is_recorded(node: Any) -> bool:
    """Whether a node is a result of ops that were recorded together."""
    return type(node) is Part and type(node.parent) is Recording


def is_python(node: Any) -> bool:
    """Whether the rule of a node is Python code of the user's, whose ops are recorded."""
    parent = node.parent if type(node) is Part else node
    return type(parent) is Node and parent.op.base_run is not None


def snapshot(recording: Recording, place: int) -> Recording:
    """A recording as it is now, as a node with one result: another thread goes on with it, or its run failed."""
    copy = Recording.__new__(Recording)
    for name in ("fusion", "tape", "x64", "state", "recurs", "released", "retained", "kept", "saved"):
        setattr(copy, name, getattr(recording, name))
    steps, wanted = path(copy.state), {place}
    reach(steps, wanted)
    places = [p for step in steps for p in range(step.first - len(step.kinds), step.first)]
    copy.knowns = [x if p in wanted else None for x, p in zip(recording.knowns, places)]  # type: ignore[misc]  # noqa: B905  # those met later are not read
    copy.tokens = copy.apart = None
    copy.followed = (place,)
    copy.leaves = leaves_of(copy)  # the contexts it depends on are made before it
    copy.id = fresh_id()
    return copy


def become_node(recording: Recording, plan: Plan) -> dict[int, Part]:
    """Make a recording that has ended a node of its tape; its results that the tape follows, by place."""
    recording.id = fresh_id()
    keep_needed(recording, plan, plan.followed)
    recording.followed = plan.followed
    knowns = recording.knowns
    leaves = {i: x._context.leaves for i in plan.tracked_in if (x := knowns[i]) is not None}
    recording.leaves = tuple(leaves.values())
    types = plan.types_at
    parts = {p: Part(recording, p, *types[p]) for p in plan.followed}
    if plan.differ:
        recording.apart = plan, leaves, {}
        recording.outputs = [ref(part, partial(_let_go, ref(recording), plan)) for part in parts.values()]
    return parts


def keep_needed(recording: Recording, plan: Plan, places: tuple[int, ...]) -> None:
    """Keep what backward needs from the results at some places."""
    needed = plan.needed_by(places)
    if len(recording.knowns) > len(needed) or not all(needed):
        recording.knowns = [x if want else None for x, want in zip(recording.knowns, needed)]  # type: ignore[misc]  # noqa: B905  # those met later are not read
    if recording.saved:
        wanted = frozenset().union(*[plan.needs(p) for p in places])
        recording.saved = {p: x for p, x in recording.saved.items() if p in wanted}


def released(recording: Recording, plan: Plan) -> None:
    """Let go of what only results need from which backward has released what it walked."""
    if recording.followed:
        keep_needed(recording, plan, tuple([p for p in recording.followed if not is_consumed(recording, p)]))


def leaves_of(recording: Recording) -> Leaves:
    """The leaves that what it recorded depends on."""
    contexts = [x._context for x in recording.knowns if x is not None and x._backend is recording.tape]
    return tuple([c.leaves for c in contexts if c.tracked])


def _let_go(of: Any, plan: Plan, gone: Any) -> None:
    """What only a result needed that nobody holds any more is not held either."""
    recording = of()
    alive = () if recording is None else tuple([part.index for x in recording.outputs if (part := x()) is not None])
    if not alive:  # it goes itself
        return
    local.dropped.append(recording.knowns)
    keep_needed(recording, plan, alive)
    if not local.dropping:  # what this lets go of may call this: one after the other, however long the chain
        try:
            local.dropping = True
            while local.dropped:
                local.dropped.pop()
        finally:  # an interrupt may come anywhere
            local.dropping = False
