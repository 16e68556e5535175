"""`scan` as an op: its derivatives are scans again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np

from functad import dtypes
from functad.backends.batch import Batch
from functad.backends.staged import RecordedOp, StagedOp
from functad.backends.trace import Program, open_trace
from functad.dispatch import bind
from functad.levels import deeper
from functad.ops.op import Cost, Keep, Op, Residuals, Type
from functad.ops.rules import broadcast, cast, widen, zeros
from functad.ops.shape import moveaxis
from functad.transforms.arguments import opened
from functad.transforms.bodies import Key, dependent, follow, hoisted, joined, written
from functad.transforms.control_ops import MOST_OPS, Call, ControlOp, Halved, Primal, values_among


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

    def run(self, call: Call, arrays: Sequence[Any]) -> Any:
        """A loop of XLA."""
        constants = arrays[self.last :]
        fixed = self.fixed.call(call, constants)
        own = slice(self.carry if self.unroll == 1 else 0)

        def step(carry: Any, row: Any) -> Any:
            outs = self.step.call(call, [*carry, *row, *constants, *fixed], own)
            return outs[: self.carry], outs[self.carry :]

        carry, rows = tuple(arrays[: self.carry]), tuple(arrays[self.carry : self.last])
        carry, results = jax.lax.scan(step, carry, rows, self.length, self.reverse, self.unroll)
        return (*carry, *results)

    def stepped(self, arrays: Sequence[Any], call: Call | None = None, at: Any = None) -> Any:
        """A loop of Python."""
        call = call or self.body.base.call
        constants = arrays[self.last :]
        fixed = self.fixed.call(call, constants, at=at)
        carry, rows = arrays[: self.carry], arrays[self.carry : self.last]
        results = [np.empty(t.shape, t.dtype) for t in self.out_types[self.carry :]]
        for i in range(self.length)[:: -1 if self.reverse else 1]:
            outs = self.step.call(call, [*carry, *[row[i, ...] for row in rows], *constants, *fixed], at=at)
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
        both.primal = Primal(self, values_among(ins), values_among(ends))

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
            with (
                deeper() as level,
                open_trace(level, base, self.body.name) as trace,
                opened(partial(Batch, size=size)) as batch,
            ):
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


@lru_cache(MOST_OPS)
def scan_op(body: StagedOp, carry: int, rows: int, length: int, reverse: bool, unroll: int) -> ScanOp:
    """The scan of a body."""
    return ScanOp(body, carry, rows, length, reverse, unroll)


def _scan_over_rows(
    op: ScanOp, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]
) -> Any:
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


class RecordedScan(Halved, ScanOp):
    """The forward half: for each row it also returns what the backward half reads."""

    def __init__(
        self,
        body: StagedOp,
        op: ScanOp,
        tracked: tuple[bool, ...],
        saved: Sequence[int],
        kept: Sequence[int],
        backward: Any,
    ):
        super().__init__(body, op.carry, op.last - op.carry, op.length, op.reverse, op.unroll)
        self.again = partial(_split_scan, op, tracked)
        self.visible = len(op.row_types)  # type: ignore[misc]  # an instance's own
        self.saved = saved  # the outputs that are residuals; some are visible as well
        self.kept = kept  # the inputs that are residuals
        self.backward = backward

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Run it; a result that is a residual too is there once."""
        outs = bind(self, inputs, params)
        return (*outs[: self.visible], *[outs[i] for i in self.saved])

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        """The residuals."""
        return Keep(frozenset(self.kept), frozenset(), True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        """Run the backward half."""
        op, seeds, targets = self.half()
        found = bind(op, [*[res.inputs[i] for i in self.kept], *res.out, *[g[i] for i in seeds]]) if targets else ()
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
    first, (back, moved, reached) = half.program, half.half()
    residuals = first.outputs[half.visible :]
    per_row = dependent(first, op.last)
    made: list[Any] = [r for r in residuals if r in per_row] + [first.inputs[i] for i in half.kept if i < op.carry]
    outputs = list(first.outputs[: half.visible])
    numbers: list[Any] = [x if type(x) is int and i >= op.carry else None for i, x in enumerate(outputs)]
    outputs += [r for r in made if r not in numbers]
    numbers += [r for r in made if r not in numbers]
    again = Program([], [], [r for r in residuals if r not in per_row], first.types)
    again.equations = first.needed(again.outputs)
    read = {x for eq in again.equations for x in eq.inputs if type(x) is int} | {first.inputs[i] for i in half.kept}
    kept = [i for i in range(op.carry, len(types)) if first.inputs[i] in read]
    again.inputs = [first.inputs[i] for i in kept if i >= op.last]
    results = [i for i in moved if i >= op.carry]

    carry = {("g", i): types[i] for i, m in enumerate(moves[: op.carry]) if m}
    sums = {("sum", i): Type(types[i].shape, dtypes.accumulator(types[i].dtype)) for i in reached if i >= op.last}
    rows: dict[Key, Type] = {("x", i): types[i] for i in kept if i < op.last}
    rows |= {("saved", r): first.types[r] for r in made} | {("g", i): op.row_types[i] for i in results}
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

    whole: dict[Key, Type] = {("x", i): op.in_types[i] for i in kept}
    whole |= {("saved", r): op.stacked(first.types[r]) for r in made} | {("g", i): op.out_types[i] for i in seeds}
    pull = written(base, "backward(scan)", whole, run) if targets else None
    forward = StagedOp(op.body.name, Program(first.inputs, first.equations, outputs, first.types), base)
    saved = [numbers.index(r) for r in made]
    return RecordedScan(forward, op, tracked, saved, kept, (pull, seeds, [i for _, i in targets]))
