"""The bodies of control flow: a user's function, written down as one op.

A body is run on variables each time it is passed, so that what it reaches from outside is what
stands there now. Programs are remembered instead: two that are equal are one op, compiled once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, NamedTuple, NoReturn

import jax.numpy as jnp

from functad import dtypes, tree
from functad.backends.base import BaseBackend
from functad.backends.staged import StagedOp
from functad.backends.trace import Equation, Program, Trace, open_trace
from functad.dispatch import Handle, known_here
from functad.errors import ArgumentTypeError, ConcreteValueError
from functad.levels import Level, deeper
from functad.ops.ieee import is_strict
from functad.ops.op import Op, Type
from functad.ops.operand import as_array
from functad.source import user_line
from functad.tensor import Tensor
from functad.transforms.arguments import settle
from functad.transforms.python_op import StagedPython

_MOST_KEPT = 512

Key = tuple[str, Any]
"""What a variable is, and a number."""

Wanted = Callable[[Any], Sequence[dtypes.DType | None]]
"""Checks what a body returned; gives the dtypes that Python numbers among its leaves take, if they can."""


class Body(Trace):
    """A trace in which every tensor from outside is an input, and only Python numbers are constants."""

    def __init__(self, level: Level, base: BaseBackend, what: str):
        super().__init__(level, base, what)
        self.known = known_here()
        self.literals: dict[int, tuple[Tensor, tuple[Any, ...]]] = {}

    def scalar(self, value: complex, dtype: dtypes.DType) -> Tensor:
        """A Python number, noted as that."""
        x = self.base.scalar(value, dtype)
        self.literals[id(x)] = (x, (type(value), repr(value)))
        return x

    def place(self, x: Tensor) -> int | Tensor:
        """The variable that `x` is, or the constant if it is a Python number."""
        return x if id(x) in self.literals else super().place(x)

    def outside(self, x: Tensor) -> int:
        """A tensor as an input of the program."""
        number: int = self.input(x._shape, x._dtype)._value
        self.hidden[id(x)] = (x, number)
        return number

    def leaf(self, x: Any, wanted: dtypes.DType | None, path: str) -> Tensor:
        """A leaf of what the function returned, as a tensor."""
        if isinstance(x, Handle):
            return settle(x, self)
        if isinstance(x, dtypes.SCALARS):
            fits = wanted is not None and dtypes.with_scalar(wanted, type(x)) == wanted
            return self.scalar(x, wanted if fits and wanted is not None else dtypes.of_scalar(x))
        try:
            return self.put(as_array(x, self.what))
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"{self.what}: the function returned {x!r} of type {type(x).__name__}{' at ' + path if path else ''}. "
                "Return tensors, arrays, numbers or pytrees of them."
            ) from None

    def host(self, value: Any) -> NoReturn:
        """It has no number."""
        raise ConcreteValueError(
            f"{user_line()}: this value has no number yet, since {self.what} runs the function once, on variables, to "
            "compile it: return the value from it and read it outside. Python's `if`, `while`, float() and NumPy need numbers: use fd.where, fd.cond or "
            "fd.while_loop in it, or call the function in a Python loop: eager code runs ordinary Python."
        )


class open_body(open_trace):
    """Write a body down in a block: `with open_body(level, base, what) as body`."""

    def __init__(self, level: Level, base: BaseBackend, what: str):
        self.trace: Body = Body(level, base, what)


class Written(NamedTuple):
    """A body that was written down."""

    op: StagedOp  # takes the arguments, then `outside`
    outside: list[Any]
    structure: tree.Structure  # of what the function returned
    numbers: Sequence[type | None]  # the type of each Python number among its leaves

    @property
    def types(self) -> list[Type]:
        """What the function returned, leaf by leaf."""
        return list(self.op.out_types or ())


def write_down(
    fn: Callable[..., Any],
    structure: tree.Structure,
    types: Iterable[Type],
    base: BaseBackend,
    what: str,
    wanted: Wanted,
) -> Written:
    """Run `fn` on variables of the given types, in the structure of its tuple of arguments."""
    with deeper() as level, open_body(level, base, what) as body:
        assert isinstance(body, Body)
        out = fn(*tree.unflatten(structure, [body.input(*t) for t in types]))
        numbers_as = iter(wanted(out))
        leaves, out_structure = tree.flatten(out)
        paths = tree.paths_of(out_structure) if not all(isinstance(x, Handle) for x in leaves) else [""] * len(leaves)
        outs = [body.leaf(x, next(numbers_as, None), path) for x, path in zip(leaves, paths, strict=True)]
        if not body.inputs:
            body.outside(base.scalar(0, dtypes.int32))  # an op has an input
        program = body.program(outs)
    op, varying = _same(program, body, what)
    outside = [x for x, _ in body.hidden.values()]
    body.hidden.clear()  # a trace that is closed waits for the garbage collector; what it read must not
    numbers = [next((kind for kind in dtypes.SCALARS if isinstance(x, kind)), None) for x in leaves]
    return Written(op, [*outside, *varying], out_structure, numbers)


# --- equal programs are one op


class _Kept:
    """A program as it was first met, and the op for all that differ from it in Python numbers only."""

    __slots__ = ("form", "numbers")

    def __init__(self, op: StagedOp, numbers: list[Any]):
        self.numbers = numbers
        self.form: tuple[StagedOp, tuple[int, ...]] = (op, ())  # and which numbers are inputs of it


_programs: OrderedDict[Any, _Kept] = OrderedDict()
_lock = Lock()


def _same(program: Program, body: Body, what: str) -> tuple[StagedOp, list[Tensor]]:
    """The op for a program, and the numbers in it that are inputs since they were seen to change."""
    literals: list[Tensor] = []
    numbers: list[Any] = []

    def number(x: int | Tensor) -> Any:
        if type(x) is int:
            return x
        literal, text = body.literals[id(x)]
        literals.append(literal)
        numbers.append(text)
        return literal._dtype

    key = (_text(program, number), body.base, is_strict(), dtypes.x64_enabled())
    with _lock:
        kept = _programs.pop(key, None) or _Kept(StagedOp(what, program, body.base), numbers)
        _programs[key] = kept  # at the end: the oldest goes first
        if len(_programs) > _MOST_KEPT:
            _programs.popitem(last=False)
    op, varying = kept.form
    changed = {i for i, (x, y) in enumerate(zip(numbers, kept.numbers, strict=True)) if x != y}
    if not changed <= set(varying):
        varying = tuple(sorted(changed | set(varying)))
        op = StagedOp(what, _opened(program, varying), body.base)
        kept.form = (op, varying)
    return op, [literals[i] for i in varying]


def _text(program: Program, constant: Callable[[Any], Any]) -> Any:
    """What equal programs have in common; `constant` says what stands for a variable or a constant."""
    return (
        tuple(program.inputs),
        tuple([program.types[i] for i in program.inputs]),
        tuple([(_likeness(eq.op), eq.params, tuple(map(constant, eq.inputs)), eq.outputs) for eq in program.equations]),
        tuple(map(constant, program.outputs)),
    )


def _likeness(op: Op) -> Any:
    """What ops that can stand for one another have in common."""
    if not isinstance(op, StagedOp):
        return op
    own = None
    if isinstance(op, StagedPython):  # made anew for each run of what it is in
        own = op.rules.likeness
        if own is None:
            return op
    elif type(op) is not StagedOp:
        return op
    return (op.name, own, op.base, op.donate, _text(op.program, lambda x: x if type(x) is int else id(x)))


def _opened(program: Program, varying: tuple[int, ...]) -> Program:
    """The program with some of its Python numbers as further inputs, by their place in its text."""
    types = list(program.types)
    added: dict[int, int] = {}
    count = 0

    def read(x: int | Tensor) -> int | Tensor:
        nonlocal count
        if type(x) is int:
            return x
        count += 1
        if count - 1 not in varying:
            return x
        types.append(Type((), x._dtype))  # type: ignore[union-attr]
        return added.setdefault(count - 1, len(types) - 1)

    equations = [eq._replace(inputs=tuple(map(read, eq.inputs))) for eq in program.equations]
    outputs = list(map(read, program.outputs))
    return Program([*program.inputs, *[added[i] for i in varying]], equations, outputs, types)


@lru_cache(_MOST_KEPT)
def aligned(op: StagedOp, count: int, places: tuple[int, ...], further: tuple[Type, ...]) -> StagedOp:
    """The op with the inputs `further` after the first `count`; its own after those are at `places` among them."""
    program = op.program
    inputs = [*program.inputs[:count], *range(len(program.types), len(program.types) + len(further))]
    for place, own in zip(places, program.inputs[count:], strict=True):
        inputs[count + place] = own
    return StagedOp(op.name, Program(inputs, program.equations, program.outputs, [*program.types, *further]), op.base)


# --- programs taken apart


def written(
    base: BaseBackend, name: str, types: Mapping[Key, Type], fn: Callable[[dict[Key, Any]], Sequence[Any]]
) -> StagedOp:
    """What functad itself computes of variables of the given types, as an op with these inputs in order."""
    with deeper() as level, open_trace(level, base, name) as trace:
        outs = fn({key: trace.input(*t) for key, t in types.items()})
        return StagedOp(name, trace.program(outs), base)


def moving(program: Program, start: Iterable[int]) -> set[int]:
    """The variables that move smoothly when those in `start` do."""
    found = set(start)
    for eq in program.equations:
        if (eq.op.differentiable or eq.op.refuses) and any(type(x) is int and x in found for x in eq.inputs):
            if eq.op.refuses:
                eq.op.refuse()
            found.update([o for o in eq.outputs if dtypes.is_inexact(program.types[o].dtype)])
    return found


def follow(program: Program, carry: int, flags: Sequence[bool]) -> tuple[tuple[bool, ...], list[int]]:
    """Of a loop's body: the inputs that move when the flagged ones do (a carry may come to), and the outputs."""
    while True:
        found = moving(program, [v for v, moves in zip(program.inputs, flags, strict=True) if moves])
        outs = [i for i, x in enumerate(program.outputs) if type(x) is int and x in found]
        grown = tuple([m or (i < carry and i in outs) for i, m in enumerate(flags)])
        if grown == tuple(flags):
            return grown, outs
        flags = grown


def joined(body: StagedOp, carry: int, last: int, flags: Sequence[bool]) -> tuple[StagedOp, list[Key], list[Key]]:
    """Of a loop's body: the body for values and tangents, its inputs and its outputs.

    The keys are `("x", i)` for the value and `("t", i)` for the tangent of an input or output of
    `body`. As for the loop's inputs, the carry comes first, and constants from number `last` on come last.
    """
    moves, outs = follow(body.program, carry, flags)
    joint: Program = body.joined(moves).program  # type: ignore[union-attr]  # a staged op
    numbers = [i for i, m in enumerate(moves) if m]
    given = [("x", i) for i in range(len(moves))] + [("t", i) for i in numbers]
    variables = dict(zip(given, joint.inputs, strict=True))
    count = len(joint.outputs) // 2
    values = dict(zip([(k, i) for k in "xt" for i in range(count)], joint.outputs, strict=True))
    ins = sorted(given, key=lambda key: (key[1] >= carry) + (key[1] >= last))
    ends = [("x", i) for i in range(carry)] + [("t", i) for i in numbers if i < carry]
    ends += [("x", i) for i in range(carry, count)] + [("t", i) for i in outs if i >= carry]
    program = Program([variables[k] for k in ins], joint.equations, [values[k] for k in ends], joint.types)
    return StagedOp(f"jvp({body.name})", program, body.base), list(ins), list(ends)


def dependent(program: Program, count: int) -> set[int]:
    """The variables that depend on one of the first `count` inputs."""
    found = set(program.inputs[:count])
    for eq in program.equations:
        if _reads(eq, found):
            found.update(eq.outputs)
    return found


def hoisted(program: Program, count: int) -> tuple[Program, Program]:
    """What depends on none of the first `count` inputs, and the rest, to which its results are passed last."""
    found = dependent(program, count)
    fixed = [eq for eq in program.equations if not _reads(eq, found)]
    made = [o for eq in fixed for o in eq.outputs]
    step = [eq for eq in program.equations if _reads(eq, found)]
    return (
        Program(program.inputs[count:], fixed, list(made), program.types),
        Program([*program.inputs, *made], step, program.outputs, program.types),
    )


def _reads(eq: Equation, variables: set[int]) -> bool:
    return any(type(x) is int and x in variables for x in eq.inputs)


def run_xla(op: Op, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
    """An op's implementation on arrays of XLA."""
    return op.impl(jnp, *arrays, **dict(zip(op.params, params, strict=True)))
