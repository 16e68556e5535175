"""Control flow as ops: a loop or a choice over bodies that were written down, each one compiled call.

The derivative of a loop is a loop over the derivative of its body, and that of a choice a choice
between derivatives. So they are differentiated again, mapped and compiled like any other op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, NoReturn

import jax

from functad import dtypes
from functad.backends.staged import RecordedOp, StagedOp
from functad.backends.trace import Program
from functad.dispatch import bind
from functad.errors import NotDifferentiableError
from functad.ops.ieee import is_guarded
from functad.ops.op import Cost, Keep, Op, Residuals, Type
from functad.ops.rules import zeros
from functad.transforms.bodies import Key, joined, run_xla, written

MOST_OPS = 1024


Call = Callable[[Op, Sequence[Any], tuple[Any, ...]], Any]
"""How to run an op on arrays."""


class Primal(NamedTuple):
    """Of an op for values and tangents: the op for the values alone, and which inputs and outputs those are."""

    op: Op
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class ControlOp(Op):
    """What loops and choices have in common."""

    whole = True
    primal: Primal | None = None

    def run(self, call: Call, arrays: Sequence[Any]) -> Any:
        """Compute it on arrays of XLA, each op in it by `call`."""
        raise NotImplementedError

    def _run_xla(self, xp: Any, *arrays: Any) -> Any:
        return self.run(run_xla, arrays)

    def _run_numpy(self, xp: Any, *arrays: Any) -> Any:
        return self.stepped(arrays)

    def stepped(self, arrays: Sequence[Any], call: Call | None = None, at: Any = None) -> Any:
        """The same step by step, on arrays of NumPy; `at` is told the line of each op."""
        raise NotImplementedError

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
        """Whether input `index` has a derivative."""
        return dtypes.is_inexact(self.in_types[index].dtype)

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        """Nothing, unless a recorded form says otherwise."""
        return Keep(frozenset(), frozenset(), False)


class Halved:
    """A recorded form, whose rule runs a backward half."""

    backward: Any
    again: Callable[[], Any]
    guarded: Any = None

    def half(self) -> Any:
        """The backward half; behind an op that guards one in which zeros of the cotangents win, written when needed."""
        if not is_guarded():
            return self.backward
        if self.guarded is None:
            self.guarded = self.again().backward
        return self.guarded


def values_among(keys: Sequence[Key]) -> tuple[int, ...]:
    """Where among `keys` the values are, in their order."""
    return tuple(sorted([i for i, (kind, _) in enumerate(keys) if kind == "x"], key=lambda i: keys[i][1]))


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

    def run(self, call: Call, arrays: Sequence[Any]) -> Any:
        """A loop of XLA."""
        own, others = arrays[self.carry : self.last], arrays[self.last :]
        return jax.lax.while_loop(
            lambda carry: self.condition.program.call(call, [*carry, *own])[0],
            lambda carry: self.body.program.call(call, [*carry, *others], slice(self.carry)),
            tuple(arrays[: self.carry]),
        )

    def stepped(self, arrays: Sequence[Any], call: Call | None = None, at: Any = None) -> Any:
        """A loop of Python."""
        own, others = arrays[self.carry : self.last], arrays[self.last :]
        carry, call = arrays[: self.carry], call or self.body.base.call
        while self.condition.program.call(call, [*carry, *own], at=at)[0]:
            carry = self.body.program.call(call, [*carry, *others], at=at)
        return carry

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        """What refuses to run: a program may write it down and never ask for it."""
        targets = [i for i, node in enumerate(wanted) if node is not None]
        refused = _Refused(self.name, [self.in_types[i] for i in targets])
        pieces = dict(zip(targets, bind(refused, [next(x for x in g if dtypes.is_inexact(x._dtype))]), strict=True))
        return [pieces.get(i) for i in range(len(wanted))]

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
        places: list[Key] = [(k, numbers[i]) for k, i in ins]
        places[carry:carry] = [("x", i) for i in range(self.carry, self.last)]
        both.primal = Primal(self, values_among(places), values_among(ends))

        def run(values: dict[Key, Any]) -> Sequence[Any]:
            like = values["x", 0]
            given = [values[p] if p in values else zeros(self.in_types[p[1]], like) for p in places]
            found = dict(zip(ends, bind(both, given), strict=True))
            made = [(k, i) for k in "xt" for i in range(self.carry)]
            return [found[k] if k in found else zeros(self.out_types[k[1]], like) for k in made]

        return written(body.base, f"jvp({self.name})", self.joint_types(flags), run)


class _Refused(Op):
    """The derivative that there is not."""

    def __init__(self, name: str, out_types: Sequence[Type]):
        super().__init__(name, self._refuse, differentiable=False)
        self.out_types = out_types  # type: ignore[misc]  # an instance's own

    def _refuse(self, xp: Any, g: Any) -> NoReturn:
        raise NotDifferentiableError(
            f"{self.name}: a compiled loop whose number of steps is not known before it runs has no reverse-mode "
            "derivative: memory for what each step leaves cannot be set aside. Use fd.scan, or fd.fori_loop with "
            "bounds that are Python ints. Outside of fd.jit and fd.vmap, where the condition has a value, "
            "fd.while_loop is a Python loop and differentiable."
        )


@lru_cache(MOST_OPS)
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

    def run(self, call: Call, arrays: Sequence[Any]) -> Any:
        """A choice of XLA."""
        branches = [partial(_run_branch, branch.program, call) for branch in self.branches]
        return jax.lax.switch(arrays[0], branches, *arrays[1:])

    def stepped(self, arrays: Sequence[Any], call: Call | None = None, at: Any = None) -> Any:
        """A choice of Python."""
        branch = self.branches[max(0, min(int(arrays[0]), len(self.branches) - 1))]
        return branch.program.call(call or self.base.call, arrays[1:], at=at)

    def _joined(self, flags: tuple[bool, ...]) -> Op:
        """(index, *primals, *tangents of the flagged ones) -> (*outputs, *their tangents)."""
        branches: list[Any] = [branch.joined(flags[1:]) for branch in self.branches]
        both = CondOp(f"jvp({self.name})", tuple(branches))
        both.primal = Primal(self, tuple(range(len(self.in_types))), tuple(range(len(self.out_types))))
        return both

    def _recorded(self, tracked: tuple[bool, ...]) -> Op:
        return _split_cond(self, tracked)


def _run_branch(program: Program, call: Call, *arrays: Any) -> Any:
    return program.call(call, arrays)


class RecordedCond(Halved, CondOp):
    """The forward halves: each also returns what its backward half reads, and zeros for those of the others."""

    def __init__(
        self, op: CondOp, branches: tuple[StagedOp, ...], tracked: tuple[bool, ...], kept: Sequence[int], backward: Any
    ):
        super().__init__(op.name, branches)
        self.again = partial(_split_cond, op, tracked)
        self.visible = len(op.out_types)  # type: ignore[misc]  # an instance's own
        self.kept = kept  # the inputs that are residuals, the index among them
        self.backward = backward

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        """The residuals."""
        return Keep(frozenset(self.kept), frozenset(), True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        """Run the backward half."""
        op, seeds, targets = self.half()
        found = bind(op, [*[res.inputs[i] for i in self.kept], *res.out, *[g[i] for i in seeds]]) if targets else ()
        pieces = dict(zip(targets, found, strict=True))
        return [pieces.get(i) for i in range(len(wanted))]


def _split_cond(op: CondOp, tracked: tuple[bool, ...]) -> RecordedCond:
    """Cut each branch into a forward and a backward half; residuals of one type share a place."""
    halves: list[Any] = [branch.recorded(tracked[1:]) for branch in op.branches]
    backs = [half.half() for half in halves]
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
    seeds = sorted({i for half in backs for i in half.moved})
    targets = sorted({i for half in backs for i in half.targets})
    types = op.in_types[1:]
    given: dict[Key, Type] = {("x", i): t for i, t in enumerate(types)}
    read: dict[Key, Type] = {("x", i): types[i] for i in kept} | {("saved", i): t for i, t in enumerate(saved)}
    read |= {("g", i): op.out_types[i] for i in seeds}

    def forward(half: RecordedOp, mine: list[int], values: dict[Key, Any]) -> Sequence[Any]:
        outs = half.program.run(*values.values())
        found = dict(zip(mine, outs[half.visible :], strict=True))
        rest = [found[i] if i in found else zeros(t, next(iter(values.values()))) for i, t in enumerate(saved)]
        return [*outs[: half.visible], *rest]

    def backward(half: RecordedOp, mine: list[int], values: dict[Key, Any]) -> Sequence[Any]:
        back, moved, reached = half.half()
        inputs = [
            *[values["x", i] for i in half.kept],
            *[values["saved", i] for i in mine],
            *[values["g", i] for i in moved],
        ]
        found = dict(zip(reached, back.program.run(*inputs), strict=True))
        return [found[i] if i in found else zeros(types[i], next(iter(values.values()))) for i in targets]

    pairs = list(zip(halves, places, strict=True))
    branches = tuple([written(op.base, op.name, given, partial(forward, *pair)) for pair in pairs])
    back = tuple([written(op.base, "backward", read, partial(backward, *pair)) for pair in pairs])
    pull = CondOp(f"backward({op.name})", back) if targets else None
    return RecordedCond(op, branches, tracked, [0, *[i + 1 for i in kept]], (pull, seeds, [i + 1 for i in targets]))


@lru_cache(MOST_OPS)
def cond_op(name: str, branches: tuple[StagedOp, ...]) -> CondOp:
    """The choice between branches."""
    return CondOp(name, branches)
