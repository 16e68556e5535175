"""Control flow as ops: a loop or a choice over bodies that were written down, each one compiled call.

The derivative of a loop is a loop over the derivative of its body, and that of a choice a choice
between derivatives. So they are differentiated again, mapped and compiled like any other op.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, NoReturn

import jax
import numpy as np

from functad import dtypes
from functad.backends.batch import Batch
from functad.backends.trace import Program, open_trace
from functad.dispatch import bind
from functad.errors import NotDifferentiableError
from functad.levels import deeper
from functad.ops.op import Cost, Keep, Op, Residuals, Type
from functad.ops.rules import broadcast, cast, widen, zeros
from functad.ops.shape import moveaxis
from functad.transforms.arguments import opened
from functad.transforms.bodies import Key, dependent, follow, hoisted, joined, run_xla, written
from functad.transforms.staged import RecordedOp, StagedOp

_MOST_OPS = 1024


class ControlOp(Op):
    """What loops and choices have in common."""

    whole = True

    def _set_types(self, in_types: Sequence[Type], out_types: Sequence[Type]) -> None:
        self.in_types = tuple(in_types)
        self.out_types: tuple[Type, ...] = tuple(out_types)  # type: ignore[misc]  # an instance's own
        self.inputs = tuple(f"x{i}" for i in range(len(in_types)))
        self.recorded = lru_cache(64)(self._recorded)  # type: ignore[method-assign]  # caches per op
        self.joined = lru_cache(64)(self._joined)  # type: ignore[method-assign]

    def _recorded(self, tracked: tuple[bool, ...]) -> Op | None:
        return None

    def _joined(self, flags: tuple[bool, ...]) -> Op:
        raise NotImplementedError

    def joint_types(self, flags: Sequence[bool]) -> dict[Key, Type]:
        """The inputs of the form for forward mode: the values, then the tangents of the flagged ones."""
        types: dict[Key, Type] = {("x", i): t for i, t in enumerate(self.in_types)}
        return types | {("t", i): t for i, t in enumerate(self.in_types) if flags[i]}

    def takes(self, index: int) -> bool:
        return dtypes.is_inexact(self.in_types[index].dtype)

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(), frozenset(), False)


# --- scan


class ScanOp(ControlOp):
    """A body that is run for each row. Inputs: carry, rows, constants; outputs: carry, a result for each row.

    The body takes the same with one row, and returns the carry and the results of that row.
    """

    def __init__(self, body: StagedOp, carry: int, rows: int, length: int, reverse: bool, unroll: int):
        doc = "A function run for each row, passing a carry on."
        super().__init__("scan", self._run_xla, doc, Cost.COMPUTE, numpy_impl=self._run_numpy, batch=_scan_over_rows)
        self.body = body
        self.carry = carry  # how many inputs are that
        self.last = carry + rows  # where the constants begin
        self.length = length
        self.reverse = reverse
        self.unroll = unroll
        self.types = [body.program.types[i] for i in body.program.inputs]
        self.row_types = list(body.out_types or ())
        self._set_types(
            [self.stacked(t) if carry <= i < self.last else t for i, t in enumerate(self.types)],
            [self.stacked(t) if carry <= i else t for i, t in enumerate(self.row_types)],
        )
        self.fixed, self.step = hoisted(body.program, self.last)
        self.over_rows = lru_cache(64)(self._over_rows)

    def stacked(self, t: Type) -> Type:
        """The type of a `t` for each row."""
        return Type((self.length, *t.shape), t.dtype)

    def _run_xla(self, xp: Any, *arrays: Any) -> Any:
        constants = arrays[self.last :]
        fixed = self.fixed.call(run_xla, constants)

        def step(carry: Any, row: Any) -> Any:
            outs = self.step.call(run_xla, [*carry, *row, *constants, *fixed])
            return outs[: self.carry], outs[self.carry :]

        carry, rows = arrays[: self.carry], arrays[self.carry : self.last]
        carry, results = jax.lax.scan(step, carry, rows, self.length, self.reverse, self.unroll)
        return (*carry, *results)

    def _run_numpy(self, xp: Any, *arrays: Any) -> Any:
        call = self.body.base.call
        constants = arrays[self.last :]
        fixed = self.fixed.call(call, constants)
        carry, rows = arrays[: self.carry], arrays[self.carry : self.last]
        results = [np.empty(t.shape, t.dtype) for t in self.out_types[self.carry :]]
        for i in range(self.length)[:: -1 if self.reverse else 1]:
            outs = self.step.call(call, [*carry, *[row[i, ...] for row in rows], *constants, *fixed])
            carry = outs[: self.carry]
            for result, out in zip(results, outs[self.carry :], strict=True):
                result[i] = out
        return (*carry, *results)

    def _recorded(self, tracked: tuple[bool, ...]) -> Op:
        return _split_scan(self, tracked)

    def _joined(self, flags: tuple[bool, ...]) -> Op:
        """(*primals, *tangents of the flagged ones) -> (*outputs, *their tangents)."""
        body, ins, ends = joined(self.body, self.carry, self.last, flags)
        carry = self.carry + sum([k == "t" and i < self.carry for k, i in ends])
        rows = sum([self.carry <= i < self.last for _, i in ins])
        both = scan_op(body, carry, rows, self.length, self.reverse, self.unroll)

        def run(values: dict[Key, Any]) -> Sequence[Any]:
            like = values["x", 0]
            given = {k: values[k] if k in values else zeros(self.in_types[k[1]], like) for k in ins}
            found = dict(zip(ends, bind(both, list(given.values())), strict=True))
            made = [(k, i) for k in "xt" for i in range(len(self.out_types))]
            return [found[k] if k in found else zeros(self.out_types[k[1]], like) for k in made]

        return written(self.body.base, "jvp(scan)", self.joint_types(flags), run)

    def _over_rows(self, mapped: tuple[bool, ...], size: int) -> tuple[ScanOp, tuple[bool, ...], tuple[bool, ...]]:
        """This scan with a further axis in front of what is mapped; which inputs and outputs of the body have it."""
        program, base = self.body.program, self.body.base
        while True:
            with deeper() as level, open_trace(level, base, self.body.name) as trace, opened(partial(Batch, size=size)) as batch:
                inputs = [
                    batch.wrap(trace.input((size, *t.shape), t.dtype)) if m else trace.input(*t)
                    for t, m in zip(self.types, mapped, strict=True)
                ]
                outs = program.run(*inputs)
                rowed = tuple([o._backend is batch or (i < self.carry and mapped[i]) for i, o in enumerate(outs)])
                if rowed[: self.carry] == mapped[: self.carry]:
                    values = [batch.unwrap(o) if r else o for o, r in zip(outs, rowed, strict=True)]
                    body = StagedOp(self.body.name, trace.program(values), base)
                    rows = self.last - self.carry
                    return scan_op(body, self.carry, rows, self.length, self.reverse, self.unroll), mapped, rowed
                mapped = (*rowed[: self.carry], *mapped[self.carry :])


@lru_cache(_MOST_OPS)
def scan_op(body: StagedOp, carry: int, rows: int, length: int, reverse: bool, unroll: int) -> ScanOp:
    """The scan of a body."""
    return ScanOp(body, carry, rows, length, reverse, unroll)


def _scan_over_rows(op: ScanOp, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    """A scan under vmap: for each row of the scan, all rows of the vmap."""
    rows, needed, rowed = op.over_rows(tuple(mapped), size)
    ins = []
    for i, (x, m) in enumerate(zip(inputs, mapped, strict=True)):
        x = x if m or not needed[i] else broadcast(x, (size, *x._shape))
        ins.append(moveaxis(x, 0, 1) if m and op.carry <= i < op.last else x)
    outs = []
    for i, (o, r) in enumerate(zip(bind(rows, ins), rowed, strict=True)):
        o = o if r else broadcast(o, (size, *o._shape))
        outs.append(moveaxis(o, 1, 0) if r and i >= op.carry else o)
    return tuple(outs)


class RecordedScan(ScanOp):
    """The forward half: for each row it also returns what the backward half reads."""

    def __init__(self, body: StagedOp, op: ScanOp, saved: Sequence[int], kept: Sequence[int], backward: Any):
        super().__init__(body, op.carry, op.last - op.carry, op.length, op.reverse, op.unroll)
        self.visible = len(op.row_types)  # type: ignore[misc]  # an instance's own
        self.saved = saved  # the outputs that are residuals; some are visible as well
        self.kept = kept  # the inputs that are residuals
        self.backward = backward

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        outs = bind(self, inputs, params)
        return (*outs[: self.visible], *[outs[i] for i in self.saved])

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(self.kept), frozenset(), True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        op, seeds, targets = self.backward
        found = bind(op, [*[res.inputs[i] for i in self.kept], *res.out, *[g[i] for i in seeds]])
        pieces = dict(zip(targets, found, strict=True))
        return [pieces.get(i) for i in range(len(wanted))]


def _split_scan(op: ScanOp, tracked: tuple[bool, ...]) -> RecordedScan:
    """Cut the body into a forward and a backward half, and scan each, the latter from the other end.

    The backward scan carries the cotangents of the carry, and the sums of those of the constants. It
    reads, for each row, what the forward half computed from carry or row; the rest it computes again.
    """
    base, types = op.body.base, op.types
    moves, _ = follow(op.body.program, op.carry, tracked)
    half = op.body.recorded(moves)
    assert isinstance(half, RecordedOp)
    first, (back, moved, reached) = half.program, half.backward
    residuals = first.outputs[half.visible :]
    per_row = dependent(first, op.last)
    made = [r for r in residuals if r in per_row] + [first.inputs[i] for i in half.kept if i < op.carry]
    outputs = list(first.outputs[: half.visible])
    numbers = [x if type(x) is int and i >= op.carry else None for i, x in enumerate(outputs)]
    outputs += [r for r in made if r not in numbers]
    numbers += [r for r in made if r not in numbers]
    again = Program([], [], [r for r in residuals if r not in per_row], first.types)
    again.equations = first.needed(again.outputs)
    read = {x for eq in again.equations for x in eq.inputs} | {first.inputs[i] for i in half.kept}
    kept = [i for i in range(op.carry, len(types)) if first.inputs[i] in read]
    again.inputs = [first.inputs[i] for i in kept if i >= op.last]
    results = [i for i in moved if i >= op.carry]

    carry = {("g", i): types[i] for i, m in enumerate(moves[: op.carry]) if m}
    sums = {("sum", i): Type(types[i].shape, dtypes.accumulator(types[i].dtype)) for i in reached if i >= op.last}
    rows = {("x", i): types[i] for i in kept if i < op.last} | {("saved", r): first.types[r] for r in made}
    rows |= {("g", i): op.row_types[i] for i in results}
    constants = {("x", i): types[i] for i in kept if i >= op.last}
    row_targets = [i for i in reached if op.carry <= i < op.last]

    def step(values: dict[Key, Any]) -> Sequence[Any]:
        known = {first.inputs[i]: values["x", i] for i in kept} | {r: values["saved", r] for r in made}
        known |= zip(again.outputs, again.run(*[known[v] for v in again.inputs]), strict=True)
        variables = [*[first.inputs[i] for i in half.kept], *residuals]
        grads = back.program.run(*[known[v] for v in variables], *[values["g", i] for i in moved])
        found = dict(zip(reached, grads, strict=True))
        return [
            *[found[i] if i in found else zeros(t, values["g", i]) for (_, i), t in carry.items()],
            *[values[k] + widen(found[k[1]]) for k in sums],
            *[found[i] for i in row_targets],
        ]

    body = written(base, "backward", carry | sums | rows | constants, step)
    scan = scan_op(body, len(carry) + len(sums), len(rows), op.length, not op.reverse, op.unroll)
    targets = [*carry, *sums, *[("x", i) for i in row_targets]]
    seeds = [*[i for _, i in carry], *results]

    def run(values: dict[Key, Any]) -> Sequence[Any]:
        given = values | {k: zeros(t, next(iter(values.values()))) for k, t in sums.items()}
        found = bind(scan, [given[k] for k in (carry | sums | rows | constants)])
        return [cast(x, types[i].dtype) for x, (_, i) in zip(found, targets, strict=True)]

    whole = {("x", i): op.in_types[i] for i in kept} | {("saved", r): op.stacked(first.types[r]) for r in made}
    whole |= {("g", i): op.out_types[i] for i in seeds}
    pull = written(base, "backward(scan)", whole, run)
    forward = StagedOp(op.body.name, Program(first.inputs, first.equations, outputs, first.types), base)
    saved = [numbers.index(r) for r in made]
    return RecordedScan(forward, op, saved, kept, (pull, seeds, [i for _, i in targets]))


# --- while


class WhileOp(ControlOp):
    """A body that is run as long as a condition holds. Inputs: carry, constants of the condition, of the body."""

    def __init__(self, name: str, condition: StagedOp, body: StagedOp, carry: int):
        doc = "A function run as long as a condition holds."
        super().__init__(name, self._run_xla, doc, Cost.COMPUTE, numpy_impl=self._run_numpy)
        self.condition = condition
        self.body = body
        self.carry = carry
        self.last = len(condition.program.inputs)  # where the constants of the body begin
        inputs = [condition.program.types[i] for i in condition.program.inputs]
        inputs += [body.program.types[i] for i in body.program.inputs[carry:]]
        self._set_types(inputs, body.out_types or ())

    def _run_xla(self, xp: Any, *arrays: Any) -> Any:
        own, others = arrays[self.carry : self.last], arrays[self.last :]
        return jax.lax.while_loop(
            lambda carry: self.condition.program.call(run_xla, [*carry, *own])[0],
            lambda carry: self.body.program.call(run_xla, [*carry, *others]),
            arrays[: self.carry],
        )

    def _run_numpy(self, xp: Any, *arrays: Any) -> Any:
        own, others = arrays[self.carry : self.last], arrays[self.last :]
        carry, call = arrays[: self.carry], self.body.base.call
        while self.condition.program.call(call, [*carry, *own])[0]:
            carry = self.body.program.call(call, [*carry, *others])
        return carry

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> NoReturn:
        raise NotDifferentiableError(
            f"{self.name}: there is no reverse-mode derivative of a loop whose number of steps is not known before it runs, "
            "since memory for what each step leaves cannot be set aside. Use fd.scan, or fd.fori_loop with bounds that are "
            "Python ints; outside of fd.jit and fd.vmap, where the condition has a value, fd.while_loop is differentiable."
        )

    def _joined(self, flags: tuple[bool, ...]) -> Op:
        """(*primals, *tangents of the flagged ones) -> (*outputs, *their tangents)."""
        numbers = [*range(self.carry), *range(self.last, len(self.in_types))]  # of the body's inputs, here
        body, ins, ends = joined(self.body, self.carry, self.carry, [flags[i] for i in numbers])
        moved = [self.in_types[i] for k, i in ends if k == "t"]
        carry = self.carry + len(moved)
        program = self.condition.program
        types = [*program.types, *moved]
        unread = range(len(program.types), len(types))
        inputs = [*program.inputs[: self.carry], *unread, *program.inputs[self.carry :]]
        condition = StagedOp(self.name, Program(inputs, program.equations, program.outputs, types), body.base)
        both = WhileOp(self.name, condition, body, carry)

        def run(values: dict[Key, Any]) -> Sequence[Any]:
            like = values["x", 0]
            places = [(k, numbers[i]) for k, i in ins]
            given = [values[p] if p in values else zeros(self.in_types[p[1]], like) for p in places]
            own = [values["x", i] for i in range(self.carry, self.last)]
            found = dict(zip(ends, bind(both, [*given[:carry], *own, *given[carry:]]), strict=True))
            made = [(k, i) for k in "xt" for i in range(self.carry)]
            return [found[k] if k in found else zeros(self.out_types[k[1]], like) for k in made]

        return written(body.base, f"jvp({self.name})", self.joint_types(flags), run)


@lru_cache(_MOST_OPS)
def while_op(name: str, condition: StagedOp, body: StagedOp, carry: int) -> WhileOp:
    """The loop of a condition and a body."""
    return WhileOp(name, condition, body, carry)


# --- cond and switch


class CondOp(ControlOp):
    """One of several branches, chosen by the first input; the others are passed to it.

    Under vmap with an index for each row all branches run, and what they give is chosen row by row.
    That holds for the backward branches too: what a branch not taken gives is never multiplied, only dropped.
    """

    def __init__(self, name: str, branches: tuple[StagedOp, ...]):
        super().__init__(name, self._run_xla, "One of several functions.", Cost.COMPUTE, numpy_impl=self._run_numpy)
        self.branches = branches
        self.base = branches[0].base
        program = branches[0].program
        index = Type((), dtypes.int32)
        self._set_types([index, *[program.types[i] for i in program.inputs]], branches[0].out_types or ())

    def _run_xla(self, xp: Any, index: Any, *arrays: Any) -> Any:
        return jax.lax.switch(index, [partial(_run_branch, branch.program) for branch in self.branches], *arrays)

    def _run_numpy(self, xp: Any, index: Any, *arrays: Any) -> Any:
        return self.branches[index].program.call(self.base.call, arrays)

    def _joined(self, flags: tuple[bool, ...]) -> Op:
        """(index, *primals, *tangents of the flagged ones) -> (*outputs, *their tangents)."""
        return CondOp(f"jvp({self.name})", tuple([branch.joined(flags[1:]) for branch in self.branches]))

    def _recorded(self, tracked: tuple[bool, ...]) -> Op:
        return _split_cond(self, tracked)


def _run_branch(program: Program, *arrays: Any) -> Any:
    return program.call(run_xla, arrays)


class RecordedCond(CondOp):
    """The forward halves: each also returns what its backward half reads, and zeros for those of the others."""

    def __init__(self, op: CondOp, branches: tuple[StagedOp, ...], kept: Sequence[int], backward: Any):
        super().__init__(op.name, branches)
        self.visible = len(op.out_types)  # type: ignore[misc]  # an instance's own
        self.kept = kept  # the inputs that are residuals, the index among them
        self.backward = backward

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(self.kept), frozenset(), True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        op, seeds, targets = self.backward
        found = bind(op, [*[res.inputs[i] for i in self.kept], *res.out, *[g[i] for i in seeds]]) if targets else ()
        pieces = dict(zip(targets, found, strict=True))
        return [pieces.get(i) for i in range(len(wanted))]


def _split_cond(op: CondOp, tracked: tuple[bool, ...]) -> RecordedCond:
    """Cut each branch into a forward and a backward half; residuals of one type share a place."""
    halves = [branch.recorded(tracked[1:]) for branch in op.branches]
    saved: list[Type] = []  # the places for residuals
    places = []  # of the residuals of each branch
    for half in halves:
        free = list(range(len(saved)))
        mine = []
        for x in half.out_types[half.visible :]:
            place = next((p for p in free if saved[p] == x), len(saved))
            if place == len(saved):
                saved.append(x)
            else:
                free.remove(place)
            mine.append(place)
        places.append(mine)
    kept = sorted({i for half in halves for i in half.kept})
    seeds = sorted({i for half in halves for i in half.backward[1]})
    targets = sorted({i for half in halves for i in half.backward[2]})
    types = op.in_types[1:]
    given: dict[Key, Type] = {("x", i): t for i, t in enumerate(types)}
    read = {("x", i): types[i] for i in kept} | {("saved", i): t for i, t in enumerate(saved)}
    read |= {("g", i): op.out_types[i] for i in seeds}

    def forward(half: RecordedOp, mine: list[int], values: dict[Key, Any]) -> Sequence[Any]:
        outs = half.program.run(*values.values())
        found = dict(zip(mine, outs[half.visible :], strict=True))
        rest = [found[i] if i in found else zeros(t, next(iter(values.values()))) for i, t in enumerate(saved)]
        return [*outs[: half.visible], *rest]

    def backward(half: RecordedOp, mine: list[int], values: dict[Key, Any]) -> Sequence[Any]:
        back, moved, reached = half.backward
        inputs = [*[values["x", i] for i in half.kept], *[values["saved", i] for i in mine], *[values["g", i] for i in moved]]
        found = dict(zip(reached, back.program.run(*inputs), strict=True))
        return [found[i] if i in found else zeros(types[i], next(iter(values.values()))) for i in targets]

    pairs = list(zip(halves, places, strict=True))
    branches = tuple([written(op.base, op.name, given, partial(forward, *pair)) for pair in pairs])
    back = tuple([written(op.base, "backward", read, partial(backward, *pair)) for pair in pairs])
    pull = CondOp(f"backward({op.name})", back) if targets else None
    return RecordedCond(op, branches, [0, *[i + 1 for i in kept]], (pull, seeds, [i + 1 for i in targets]))


@lru_cache(_MOST_OPS)
def cond_op(name: str, branches: tuple[StagedOp, ...]) -> CondOp:
    """The choice between branches."""
    return CondOp(name, branches)
