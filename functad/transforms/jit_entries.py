"""What a jitted function keeps: its programs, their gradients, and what its last call was like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from functad import dtypes, tree
from functad.backends.staged import StagedOp
from functad.param import pattern_of
from functad.transforms.captures import Captures

_NO_PARAMS: Any = ((), ())


@dataclass(slots=True)
class Entry:
    """A function written down for one kind of arguments."""

    op: StagedOp
    hidden: tuple[int | Any, ...]  # places among the reachable tensors, or tensors found otherwise
    structure: tree.Structure  # of the result
    outputs: tuple[Any, ...] | None  # places among the op's outputs, or constants; None for the outputs as they are
    ids: tuple[Any, ...]  # of the Params it was written down with
    made: tuple[Any, ...]  # ids of the Params it makes
    gradients: dict[Any, dict[Any, Gradient]]  # by the structure of the arguments, and which are differentiated
    ends: Any = None  # which outputs are not recorded on the tapes of devices, and what they are


@dataclass(slots=True)
class Gradient:
    """A function and its gradient as one op."""

    op: StagedOp | None  # None if that cannot be
    visible: int  # outputs, before the gradient
    structures: list[tree.Structure]  # of the gradient of each argument


@dataclass(slots=True)
class Last:
    """What the last call was like."""

    entry: Entry
    base: Any
    structure: tree.Structure  # of all arguments
    static: list[tuple[int, Any]]  # places among their leaves, and what was there
    dynamic: list[int]  # the places of the others
    size: int  # how many tensors are in the arguments and outside
    kinds: list[Any] | None  # their shapes and dtypes; None where the compiled call finds out
    marks: list[tuple[int, Any]]  # of the Params among them
    inputs: list[int] | None  # which of them the program takes; None for all as they are
    containers: Any
    shared: tuple[int, ...] | None
    x64: bool
    strict: bool
    gradients: dict[Any, Gradient]
    readers: tuple[Captures, ...]  # of the static arguments


def gradient_of(entry: Entry, structure: tree.Structure, numbers: tuple[int, ...], has_aux: bool) -> Gradient:
    """The op that computes an entry's outputs and its gradient; none if there is something to refuse."""
    none = Gradient(None, 0, [])
    arguments = structure.children() if structure.type is tuple else structure.child(0).children()
    if entry.made or entry.ends is not None or entry.ids != _NO_PARAMS or max(numbers, default=0) >= len(arguments):
        return none
    types = entry.op.out_types or ()
    out = tree.unflatten(entry.structure, range(len(types)) if entry.outputs is None else entry.outputs)
    if has_aux and not (isinstance(out, (tuple, list)) and len(out) == 2):
        return none
    place = out[0] if has_aux else out
    if type(place) is not int or types[place].shape or not dtypes.is_float(types[place].dtype):
        return none
    ends = list(accumulate([s.num_leaves for s in arguments], initial=0))
    places = [i for n in numbers for i in range(ends[n], ends[n + 1])]
    program = entry.op.program
    if not all(dtypes.is_float(program.types[program.inputs[i]].dtype) for i in places):
        return none
    return Gradient(entry.op.with_gradient(place, tuple(places)), len(types), [arguments[n] for n in numbers])


def about(outside: Sequence[Any], params: Any, containers: Any) -> tuple[Any, ...]:
    """What the program depends on of the tensors that a function reaches."""
    types = tuple([(x._shape, x._dtype) for x in outside])
    return types, shared_among(outside), containers, pattern_of(outside, params)


def is_fixed(x: Any) -> bool:
    """Whether a static value that is the same object has the same value."""
    kind: Any = type(x)
    return isinstance(x, (int, float, str, bytes, type)) or kind.__hash__ is object.__hash__


def shared_among(tensors: Sequence[Any]) -> tuple[int, ...] | None:
    """Which of the tensors are one and the same: the program reads those once. None if all differ."""
    places = {id(x): i for i, x in enumerate(tensors)}
    return None if len(places) == len(tensors) else tuple([places[id(x)] for x in tensors])
