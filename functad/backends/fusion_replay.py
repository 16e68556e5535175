"""A recorded structure op by op: while it is not worth compiling, or has not been yet."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax

from functad import dtypes
from functad.backends.autodiff import Autodiff
from functad.backends.fusion_host import Host
from functad.backends.fusion_record import Recording, immediate
from functad.backends.fusion_structure import Plan
from functad.backends.xla import compiled
from functad.ops.op import Op
from functad.ops.operand import operand
from functad.ops.rules import broadcast
from functad.tape import AnyNode, Watched, sweep
from functad.tensor import Tensor


def one_by_one(fusion: Any, recording: Recording, plan: Plan) -> Any:
    """The live results of a structure that no tape follows, op by op."""
    if plan.by_op is None:
        plan.by_op = plan.evaluator(partial(_single, fusion))
    with jax.enable_x64(recording.x64) if recording.x64 != dtypes.x64_enabled() else nullcontext():
        results = plan.by_op(*plan.arrays(recording.knowns))
    fusion.compiler.counts.runs["op by op"] += 1
    return results


def _single(fusion: Any, op: Op, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
    fusion.compiler.counts.singles[op.name] += 1
    near: Host = fusion.near
    out = near.run(op, tuple([(x.shape, x.dtype) for x in inputs]), inputs, params)
    if out is not None:
        return out
    return compiled(op, params)(*inputs)


def replay(
    fusion: Any,
    recording: Recording,
    plan: Plan,
    made: dict[int, AnyNode],
    gradients: list[Any] | None = None,
    release: bool = False,
) -> list[Any]:
    """The live results op by op, with the contexts that are `made`; and the gradients, if they are asked for."""
    with immediate(recording.x64):
        values = _redone(fusion, recording, plan)
        if gradients is not None:
            loss = values[plan.roots[0]]
            seed = broadcast(operand(1, loss._value, loss._dtype), loss._shape)
            gradients.append(sweep([(loss._context, seed)], release, fusion.pulls))
    watches = plan.pulled.isdisjoint(plan.ends) and not recording.tape.balanced
    for p in plan.followed:
        context = values[p]._context
        made[p] = Watched(context, p, plan.pulled) if watches and p in plan.ends else context
    fusion.compiler.counts.runs["op by op"] += 1
    return [_array(values[p]) for p in plan.live]


def _redone(fusion: Any, recording: Recording, plan: Plan) -> list[Any]:
    """The value at each place that is needed, with its context."""
    values: list[Any] = []
    given = iter(recording.knowns)
    for i, step in enumerate(plan.steps):
        values += [next(given) for _ in step.kinds]
        if not plan.needed[i]:
            values += [None] * len(step.types)
            continue
        ins = [values[p] for p in step.inputs]
        if step.taped:
            ins = [
                x._value if plain and x._backend is not fusion else x for x, plain in zip(ins, step.plain, strict=True)
            ]
            out = Autodiff.run(recording.tape, step.op, ins, step.params)
        else:
            ins = [x if x._backend is fusion else x._value for x in ins]
            out = fusion.run(step.op, ins, step.params)
        values += out if type(out) is tuple else [out]
        for p in plan.last[i]:
            values[p] = None
    return values


def _array(x: Any) -> Any:
    while isinstance(x, Tensor):
        x = x._value
    return x
