"""Programs as ops: one compiled call forward, one backward, one for tangents.

The derivative of a program is a program: forward and backward are written down together, then
split. What the outputs need runs forward; the rest runs backward; the variables that cross over
are the residuals. So a compiled function is never run twice to differentiate it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from functad import dtypes
from functad.backends.autodiff import Autodiff
from functad.backends.base import BaseBackend
from functad.backends.forward import Forward
from functad.backends.trace import Program, open_trace
from functad.dispatch import bind
from functad.levels import deeper
from functad.ops.ieee import guarded, is_guarded
from functad.ops.op import Cost, Keep, Op, Residuals, Type
from functad.ops.rules import zeros
from functad.tape import sweep


class StagedOp(Op):
    """A program as one op, compiled as a whole on XLA; its outputs are always a tuple."""

    whole = True

    def __init__(self, name: str, program: Program, base: BaseBackend, donate: tuple[int, ...] = ()):
        super().__init__(name, _impl(program, donate), doc="A function written down.", cost=Cost.COMPUTE)
        self.program = program
        self.base = base
        self.out_types: list[Type] = [_type(x, program) for x in program.outputs]  # type: ignore[misc]  # an instance's own
        self.donate = donate  # type: ignore[misc]  # an instance's own
        self.inputs = tuple(f"x{i}" for i in range(len(program.inputs)))
        self.numpy_impl = _numpy_impl(program, base)
        self.recorded = lru_cache(64)(self._recorded)  # type: ignore[method-assign]  # caches per op
        self.joined = lru_cache(64)(self._joined)  # type: ignore[method-assign]
        self.with_gradient = lru_cache(64)(self._with_gradient)

    def takes(self, index: int) -> bool:
        return dtypes.is_inexact(self.program.types[self.program.inputs[index]].dtype)

    def _recorded(self, tracked: tuple[bool, ...]) -> Op:
        return _split(self, tracked)

    def _joined(self, moving: tuple[bool, ...]) -> Op:
        """(*primals, *tangents of the moving ones) -> (*outputs, *their tangents)."""
        types = [self.program.types[i] for i in self.program.inputs]
        with deeper() as level, open_trace(level, self.base, self.name) as trace:
            primals = [trace.input(*t) for t in types]
            tangents = [trace.input(*t) if m else None for t, m in zip(types, moving, strict=True)]
            with deeper() as above:
                forward = Forward(above)
                outs = self.program.run(*[forward.wrap(x, t) for x, t in zip(primals, tangents, strict=True)])
                forward.close()
            values, moved = [], []
            for out in outs:
                mine = out._backend is forward
                values.append(out._value if mine else out)
                tangent = out._context if mine else None
                moved.append(zeros(Type(out._shape, out._dtype), values[-1]) if tangent is None else tangent)
            program = trace.program([*values, *moved])
        return StagedOp(f"jvp({self.name})", program, self.base)

    def _with_gradient(self, place: int, targets: tuple[int, ...], still: tuple[int, ...], valued: bool) -> StagedOp:
        """(*inputs) -> (*outputs, *gradients of output number `place` with respect to some inputs), in one call.

        Without the outputs if not `valued`. Gradients of inputs that are `still` are zeros.
        """
        with deeper() as level, open_trace(level, self.base, self.name) as trace:
            inputs = [trace.input(*self.program.types[i]) for i in self.program.inputs]
            tracked = [i in targets and i not in still for i in range(len(inputs))]
            values, gradients = _differentiated(
                self.program, inputs, tracked, lambda i, t: trace.scalar(1, t.dtype) if i == place else None
            )
            grads = [
                gradients[i] if i in gradients else zeros(self.program.types[self.program.inputs[i]], inputs[i])
                for i in targets
            ]
            program = trace.program([*values, *grads] if valued else grads)
        return StagedOp(f"value_and_grad({self.name})", program, self.base)

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(), frozenset(), False)


class Backward(NamedTuple):
    """The backward half of a split program."""

    op: StagedOp
    moved: tuple[int, ...]  # the outputs whose cotangents it takes, behind the residuals
    targets: tuple[int, ...]  # the inputs whose cotangents it gives


class RecordedOp(StagedOp):
    """The forward half of a split program: outputs, then the residuals it computed."""

    def __init__(
        self,
        op: StagedOp,
        tracked: tuple[bool, ...],
        program: Program,
        visible: int,
        kept: tuple[int, ...],
        backward: Backward,
    ):
        super().__init__(op.name, program, op.base)
        self.of = op
        self.tracked = tracked
        self.visible = visible  # type: ignore[misc]  # an instance's own
        self.kept = kept  # inputs that are residuals themselves
        self.backward = backward
        self.guarded: Backward | None = None

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(self.kept), frozenset(), True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        op, moved, targets = self.half()
        cotangents = [g[i] for i in moved]
        pieces = iter(bind(op, [*[res.inputs[i] for i in self.kept], *res.out, *cotangents]) if targets else ())
        return [next(pieces) if i in targets else None for i in range(len(wanted))]

    def half(self) -> Backward:
        """The backward half; behind an op that guards one in which zeros of the cotangents win, written when needed."""
        if not is_guarded():
            return self.backward
        if self.guarded is None:
            with guarded():
                again = _split(self.of, self.tracked)
            alike = again.kept == self.kept and again.program.outputs == self.program.outputs
            self.guarded = again.backward if alike else self.backward
        return self.guarded


def _split(op: StagedOp, tracked: tuple[bool, ...]) -> RecordedOp:
    """Write forward and backward of a program down together, and cut between them."""
    program = op.program
    types = [program.types[i] for i in program.inputs]
    with deeper() as level, open_trace(level, op.base, op.name) as trace:
        inputs = [trace.input(*t) for t in types]
        moved: list[int] = []

        def seed(i: int, type: Type) -> Any:
            moved.append(i)
            return trace.input(*type)

        values, gradients = _differentiated(program, inputs, tracked, seed)
        joint = trace.program([*values, *gradients.values()])
    return _cut(op, joint, len(values), moved, list(gradients), tracked)


def _differentiated(
    program: Program, inputs: Sequence[Any], tracked: Sequence[bool], seed: Callable[[int, Type], Any]
) -> tuple[list[Any], dict[int, Any]]:
    """The outputs of a program, and the gradients of its tracked inputs by their number.

    `seed` gives the cotangent of an output that depends on them, or None for zero.
    """
    with deeper() as above:
        tape = Autodiff(above)
        leaves = [tape.leaf(x) if want else x for x, want in zip(inputs, tracked, strict=True)]
        outs = program.run(*leaves)
        values = [out._value if out._backend is tape else out for out in outs]
        moved = [(i, o) for i, o in enumerate(outs) if o._backend is tape and o._context.tracked]
        seeds = [(out._context, seed(i, Type(out._shape, out._dtype))) for i, out in moved]
        found = sweep([(context, g) for context, g in seeds if g is not None]).gradients
        tape.close()
    ids = {i: x._context.id for i, x in enumerate(leaves) if tracked[i]}
    return values, {i: found[id] for i, id in ids.items() if id in found}


def _cut(
    op: StagedOp, joint: Program, n_outs: int, moved: list[int], targets: list[int], tracked: tuple[bool, ...]
) -> RecordedOp:
    n_inputs = len(tracked)
    inputs, seeds = joint.inputs[:n_inputs], joint.inputs[n_inputs:]
    outs, grads = joint.outputs[:n_outs], joint.outputs[n_outs:]
    forward = joint.needed(outs)
    done = {id(eq) for eq in forward}
    backward = [eq for eq in joint.needed(grads) if id(eq) not in done]
    made_forward = {o for eq in forward for o in eq.outputs}
    used = [x for eq in backward for x in eq.inputs if type(x) is int] + [x for x in grads if type(x) is int]
    crossing = list(dict.fromkeys(used))
    kept = tuple(i for i, x in enumerate(inputs) if x in crossing)
    residuals = [x for x in crossing if x in made_forward]
    first = Program(inputs, forward, [*outs, *residuals], joint.types)
    second = Program([*[inputs[i] for i in kept], *residuals, *seeds], backward, grads, joint.types)
    pull = StagedOp(f"backward({op.name})", second, op.base)
    return RecordedOp(op, tracked, first, n_outs, kept, Backward(pull, tuple(moved), tuple(targets)))


def _type(x: Any, program: Program) -> Type:
    return program.types[x] if type(x) is int else Type(x._shape, x._dtype)


class OtherTypesError(Exception):
    """A program was called with arrays of other types than it was written down for; no user sees it."""


def _impl(program: Program, donate: Sequence[int]) -> Any:
    types = [program.types[i] for i in program.inputs]

    def impl(xp: Any, *arrays: Any) -> Any:
        if any([a.shape != t.shape or a.dtype != t.dtype for a, t in zip(arrays, types, strict=True)]):  # noqa: C419
            raise OtherTypesError
        return program.call(
            lambda op, ins, params: op.impl(xp, *ins, **dict(zip(op.params, params, strict=True))), arrays, donate
        )

    return impl


def _numpy_impl(program: Program, base: BaseBackend) -> Any:
    def impl(xp: Any, *arrays: Any) -> Any:
        return program.call(base.call, arrays)

    return impl
