"""What a jitted function keeps: its programs, their gradients, and what its last call was like."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from functad import dtypes, tree
from functad.backends.staged import StagedOp
from functad.param import Param, ids_of, pattern_of
from functad.transforms.captures import Captures


@dataclass(slots=True)
class Entry:
    """A function written down for one kind of arguments."""

    op: StagedOp
    hidden: tuple[int | Any, ...]  # places among the reachable tensors, or tensors found otherwise
    structure: tree.Structure  # of the result
    outputs: tuple[Any, ...] | None  # places among the op's outputs, or constants; None for the outputs as they are
    ids: tuple[Any, ...]  # of the Params it was written down with
    made: tuple[Any, ...]  # ids of the Params it makes
    gradients: dict[Any, Gradient]  # by the structure of the arguments, and which are differentiated
    ends: Any  # which outputs are not recorded on the tapes of devices, and what they are
    single: bool  # whether the result is the one output, and no container
    fixed: tuple[
        tuple[int, Any], ...
    ]  # places among the reachable tensors of those whose value was read, and which it was

    def holds(self, outside: Sequence[Any]) -> bool:
        """Whether the values that were read when it was written down are those of now."""
        return all([outside[i] is x for i, x in self.fixed])  # noqa: C419  # a list is quicker


@dataclass(slots=True)
class Gradient:
    """A function and its gradient as one op."""

    op: StagedOp | None = None  # None if that cannot be
    visible: int = 0  # outputs, before the gradient; none if nobody asked for the value
    has_aux: bool = False
    places: Sequence[int] = ()  # of the leaves that the differentiated arguments have
    order: list[int | None] | None = None  # where the gradient of each is, if some are integers and have none


@dataclass(slots=True)
class Last:
    """What the last call was like."""

    entry: Entry
    base: Any
    leaves_of: Any  # the leaves of all arguments, if they have the structure they had
    static: list[tuple[int, Any]]  # places among their leaves, and what was there
    numbers: list[tuple[int, type, Any]]  # those of numbers and arrays, their types, and the dtypes that numbers got
    dynamic: list[int]  # the places of what is not static
    size: int  # how many tensors are in the arguments and outside
    kinds: list[Any] | None  # their shapes and dtypes; None where the compiled call finds out
    marks: list[tuple[int, Any]]  # of the Params among them
    inputs: list[int] | None  # which of them the program takes; None for all as they are
    containers: Any
    shared: tuple[int, ...] | None
    x64: bool
    strict: bool
    readers: tuple[Captures, ...]  # of the static arguments
    gradients: dict[Any, tuple[Any, list[Any]]]  # with the structures of the arguments


@dataclass(slots=True)
class Call:
    """What one call runs, and on what."""

    entry: Entry
    inputs: list[Any]
    base: Any  # what runs it, if there is no level and no trace
    params: Any  # the ids of the Params
    structure: tree.Structure  # of the arguments that are not static
    given: list[Any]  # their leaves
    leaves: list[Any]  # the same as tensors
    static: Any
    last: Last | None = None  # if the next call may be like it


def gradient_of(
    entry: Entry, arguments: Sequence[Any], leaves: Sequence[Any], numbers: tuple[int, ...], has_aux: bool, valued: bool
) -> Gradient:
    """The op that computes an entry's outputs (if `valued` or with aux) and its gradient; none if there is something to refuse."""
    if entry.made or entry.ends is not None or max(numbers, default=0) >= len(arguments):
        return Gradient()
    types = entry.op.out_types
    out = tree.unflatten(entry.structure, range(len(types)) if entry.outputs is None else entry.outputs)
    if has_aux and not (isinstance(out, (tuple, list)) and len(out) == 2):
        return Gradient()
    place = out[0] if has_aux else out
    if type(place) is not int or types[place].shape or not dtypes.is_float(types[place].dtype):
        return Gradient()
    ends = list(accumulate([s.num_leaves if s else 0 for s in arguments], initial=0))
    parts = [range(ends[n], ends[n + 1]) for n in numbers]
    places = [i for part in parts for i in part]
    smooth = [i for i in places if dtypes.is_float(leaves[i]._dtype)]
    ids = [id for id in ids_of([leaves[i] for i in smooth]) if id]
    if (
        any(arguments[n] is None for n in numbers)
        or any(part and not any(i in smooth for i in part) for part in parts)
        or any(dtypes.is_inexact(leaves[i]._dtype) for i in places if i not in smooth)
        or len(set(ids)) < len(ids)
    ):
        return Gradient()
    frozen = tuple([i for i in smooth if type(leaves[i]) is Param and leaves[i].mark.frozen])
    visible = len(types) if valued or has_aux else 0
    number = iter(range(visible, visible + len(smooth)))
    order = None if len(smooth) == len(places) else [next(number) if i in smooth else None for i in places]
    return Gradient(entry.op.with_gradient(place, tuple(smooth), frozen, visible > 0), visible, has_aux, places, order)


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
