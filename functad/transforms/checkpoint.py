"""`checkpoint`: keep a function's inputs and run it again in backward, instead of keeping its intermediates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from functad import dtypes, generator
from functad.backends.autodiff import Autodiff
from functad.backends.batch import Axes, BatchedOp
from functad.backends.forward import Forward
from functad.backends.trace import Program
from functad.dispatch import bind, tracing
from functad.errors import ArgumentError
from functad.keywords import explained
from functad.levels import Level, _depth, _unrecorded
from functad.ops.op import Cost, Derivative, Keep, Op, Residuals
from functad.tape import sweep
from functad.tensor import Tensor
from functad.transforms.arguments import check_callable, opened, wraps
from functad.transforms.captures import Captures, frozen
from functad.transforms.python_op import (
    BatchedPython,
    Frame,
    Function,
    Missing,
    PythonOp,
    Through,
    bind_closed,
    capturing,
    is_paused,
    is_smooth,
    outside,
    over_rows,
    refuse_outside,
    surroundings,
    take_apart,
    zeros_like,
)

Selects = Callable[[Op], bool]
"""Whether the output of an op is kept for backward."""

_MATMULS = ("contract", "conv")
"""How the names of matrix products and convolutions begin."""

_POLICIES: dict[str, Selects] = {
    "save_nothing": lambda op: False,
    "save_matmuls": lambda op: op.name.startswith(_MATMULS),
    "by_cost": lambda op: op.cost is Cost.COMPUTE,
    "save_everything": lambda op: True,
}

barrier_op = Op(
    "barrier",
    lambda xp, *xs: tuple(xs) if xp.__name__ == "numpy" else tuple(jax.lax.optimization_barrier(xs)),
    doc="Its inputs, which XLA must not take for what they were computed from.",
)
barrier_op.pulls = [barrier_op.derivative(lambda g, i: g[i], 2)]
barrier_op.joint_push = Derivative(tuple, 1, ())


@explained
def checkpoint(fn: Callable[..., Any], policy: str | Selects = "save_nothing") -> Callable[..., Any]:
    """`fn`, whose intermediates are not kept for backward but computed again.

    Args:
        fn: any function of pytrees of tensors. It is run again in backward, as it was: names it
            reads have the values they had, and so have the default device, precision and default
            random generator. Gradients flow to the arguments and to tensors it reaches otherwise.
        policy: what is kept besides the inputs: `"save_nothing"`, `"save_matmuls"`, `"by_cost"`
            (what is not cheap to recompute, as `GradientCheckpointing.BALANCED`),
            `"save_everything"`, or a function of an op that says whether to keep its output.

    The result, and the derivatives in every mode and order, are those of `fn`.

    >>> import functad as fd
    >>> fd.grad(fd.checkpoint(fd.grad(lambda x: x * x * x)))(2.0).item()
    12.0
    """
    check_callable(fn, "checkpoint")
    selects = _selects(policy)
    captures = Captures(fn)
    name = f"checkpoint({getattr(fn, '__name__', type(fn).__name__)})"

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if policy == "save_everything":
            return fn(*args, **kwargs)
        tensors, frame = take_apart((args, kwargs))
        run = Rerun(fn, frame)

        def make(closed: tuple[Any, ...]) -> CheckpointOp:
            run.closed = closed
            return CheckpointOp(name, run, None if policy == "save_nothing" else selects)

        _, outs = bind_closed(make, tensors, outside(captures()))
        return run.result.fill(outs)

    return wrapped


def _selects(policy: Any) -> Selects:
    if callable(policy):
        return policy
    if isinstance(policy, str) and policy in _POLICIES:
        return _POLICIES[policy]
    raise ArgumentError(
        "checkpoint: policy must be 'save_nothing', 'save_everything', 'save_matmuls', 'by_cost' or a function of an "
        f"op, got {policy!r}. A call of the function is fd.checkpoint(f)(x)."
    )


class Rerun:
    """A user's function of given arguments, run as it was the first time however often."""

    result: Frame

    def __init__(self, fn: Callable[..., Any], frame: Frame):
        self.fn = fn
        self.again = frozen(fn)
        self.frame = frame
        self.closed: tuple[Any, ...] = ()
        self.around = surroundings()
        self.draws: list[generator.Draw] = []  # from the default generator, the same in every run
        self.context = copy_context()
        self.x64 = dtypes.x64_enabled()
        self.precision = _matmul_precision()
        self.runs = 0

    def __call__(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        self.runs += 1
        if self.runs == 1:
            return self._run(self.fn, inputs)
        open_now = tracing.get(), _depth.get(), _unrecorded.get()

        def run() -> tuple[Any, ...]:
            for variable, value in zip((tracing, _depth, _unrecorded), open_now, strict=True):
                variable.set(value)
            return self._run(self.again, inputs)

        with ExitStack() as stack:
            if self.x64 != dtypes.x64_enabled():
                stack.enter_context(dtypes.enable_x64(self.x64))
            if self.precision != _matmul_precision():
                stack.enter_context(jax.default_matmul_precision(self.precision))
            return self.context.copy().run(run)

    def _run(self, fn: Callable[..., Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
        replay = generator.replaying(self.draws, self.runs > 1)
        with replay, capturing(inputs, self.closed, self, self.around) as (capture, tensors):
            args, kwargs = self.frame.fill(tensors)
            outs, self.result = take_apart(fn(*args, **kwargs))
            return tuple([capture.leave(x) for x in outs])


def _matmul_precision() -> Any:
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]


class CheckpointOp(PythonOp):
    """A function of tensors that is differentiated by running it again; so are its derivatives."""

    transparent = True

    def __init__(self, name: str, run: Function, selects: Selects | None = None, barrier: bool = False):
        super().__init__(name)
        self.run = run
        self.selects = selects
        self.barrier = barrier  # keep XLA from merging it with the forward run

    @property
    def owner(self) -> object:
        return self.run

    @property
    def likeness(self) -> Any:
        return "checkpoint", self.selects, self.barrier

    def python(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        if self.barrier and any(_compiles_later(x._value) for x in inputs):
            inputs = bind(barrier_op, inputs)
        return self.run(inputs)

    def prepare(self, inputs: Sequence[Any]) -> Sequence[Any]:
        return bind(barrier_op, inputs) if self.barrier else inputs

    def staged(self, program: Program) -> PythonOp:
        return CheckpointOp(self.name, lambda inputs: tuple(program.run(*inputs)), self.selects)

    def closing(self, tensors: Sequence[Tensor]) -> PythonOp:
        return self  # its rules run the program, which has them as inputs

    def recorded(self, tracked: tuple[bool, ...]) -> Op:
        return RecomputedOp(self)

    def joined(self, moving: tuple[bool, ...]) -> Op:
        def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
            tangents = iter(inputs[len(moving) :])
            with opened(Forward) as level:
                pairs = zip(inputs, moving, strict=False)
                outs = self.run([level.wrap(x, next(tangents)) if moves else x for x, moves in pairs])
            mine = [o._backend is level for o in outs]
            moved = [o._context if m else None for o, m in zip(outs, mine, strict=True)]
            values = [o._value if m else o for o, m in zip(outs, mine, strict=True)]
            return (*values, *[zeros_like(o) if t is None else t for o, t in zip(values, moved, strict=True)])

        return CheckpointOp(f"jvp({self.name})", run, self.selects)

    def batched(self, axes: Axes) -> Op:
        return CheckpointOp(f"vmap({self.name})", partial(over_rows, self.run, axes), self.selects)


def _compiles_later(value: Any) -> bool:
    """Whether XLA will see what is computed from `value` together with what it was computed from."""
    return isinstance(value, jax.core.Tracer) or not isinstance(value, (jax.Array, np.ndarray))


class RecomputedOp(PythonOp):
    """The form that a tape runs: it keeps the inputs, and what the policy selects."""

    def __init__(self, op: CheckpointOp):
        super().__init__(op.name)
        self.op = op
        self.marks: list[Mark] = []

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        op = self.op
        if op.selects is None:
            outs = bind(op, inputs)
            self.visible = len(outs)  # type: ignore[misc]  # an instance's own
            return outs

        def run(inputs: Sequence[Any]) -> tuple[Any, ...]:
            with opened(partial(Watch, selects=op.selects)) as watch:
                outs = [watch.leave(x) for x in op.run([watch.wrap(x) for x in inputs])]
            self.visible, self.marks = len(outs), watch.marks  # type: ignore[misc]
            return (*outs, *watch.saved)

        return bind(CheckpointOp(op.name, run), inputs)

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(range(len(tracked))), frozenset(), self.op.selects is not None)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        """Run the function again on a tape of its own, and back through it."""
        inputs, saved = list(res.inputs), list(res.out or ())
        targets = [i for i, w in enumerate(wanted) if w is not None]
        moved = [i for i, c in enumerate(g) if is_smooth(c)]
        reached: list[int] = []

        def run(tensors: Sequence[Any]) -> tuple[Any, ...]:
            n, m = len(inputs), len(inputs) + len(saved)
            again = partial(Watch, selects=self.op.selects, marks=self.marks, saved=list(tensors[n:m]))
            with opened(again) as watch, opened(Autodiff) as tape:
                values = [watch.wrap(x) for x in tensors[:n]]
                leaves = [tape.leaf(x) if i in targets else x for i, x in enumerate(values)]
                outs = self.op.run(leaves)
                watch.selects = None
                ends = [(outs[i], c) for i, c in zip(moved, tensors[m:], strict=True)]
                tracked = [(o._context, c) for o, c in ends if o._backend is tape and o._context.tracked]
                found = sweep(tracked, release=True).gradients
                reached[:] = [i for i in targets if leaves[i]._context.id in found]
                return tuple([watch.leave(found[leaves[i]._context.id]) for i in reached])

        try:
            grads = bind(
                CheckpointOp(f"backward({self.op.name})", run, barrier=True), [*inputs, *saved, *[g[i] for i in moved]]
            )
        except Missing as missing:
            refuse_outside(self.op.name, missing.tensors[0])
        pieces: list[Any] = [None] * len(inputs)
        for i, grad in zip(reached, grads, strict=True):
            pieces[i] = grad
        return pieces

    def batched(self, axes: Axes) -> Op:
        return BatchedPython(self, axes)


class Mark(NamedTuple):
    """An op whose outputs were kept."""

    op: Op
    params: tuple[Any, ...]
    types: tuple[Any, ...]  # of the inputs
    outputs: int | None  # how many, None for a single one


class Watch(Through):
    """Keeps the outputs of the ops that a policy selects, or puts kept ones in place of computing."""

    def __init__(
        self, level: Level, selects: Selects | None, marks: Sequence[Mark] = (), saved: list[Any] | None = None
    ):
        super().__init__(level)
        self.selects = selects
        self.replays = saved is not None
        self.saved: list[Any] = saved or []
        self.marks = list(marks)

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        if self.selects is None or is_paused(self.level) or not self._selected(op):
            return super().run(op, inputs, params)
        types = tuple([(x._shape, x._dtype) for x in inputs])
        if self.replays:
            return self._replay(op, inputs, params, types)
        out = super().run(op, inputs, params)
        several = type(out) is tuple
        self.saved += [x._value for x in (out if several else (out,))]
        self.marks.append(Mark(op, params, types, len(out) if several else None))
        return out

    def _replay(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...], types: tuple[Any, ...]) -> Any:
        if not self.marks or self.marks[0][:3] != (op, params, types):
            self.marks = []  # the run takes another way: compute from here on
            return super().run(op, inputs, params)
        count = self.marks.pop(0).outputs
        outs = [self.wrap(self.saved.pop(0)) for _ in range(count or 1)]
        return outs[0] if count is None else tuple(outs)

    def _selected(self, op: Op) -> bool:
        while isinstance(op, BatchedOp):
            op = op.op
        return type(op).recorded is Op.recorded and self.selects(op)  # type: ignore[misc]  # others change under a tape
