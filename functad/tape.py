"""The tape: nodes, what they keep, and the backward sweep.

The graph hangs on the tensors: a node is owned by the tensor it made and by the nodes that
consumed it, points only to its parents, and never holds its own output's handle. Dropping the
outputs frees the graph by reference count.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple, NoReturn, TypeAlias

from functad import dtypes
from functad.dispatch import bind, tracing
from functad.errors import DTypeError, GraphConsumedError, ShapeError
from functad.ops.ieee import guarded
from functad.ops.op import Op, Residuals, Type
from functad.ops.rules import zeros
from functad.source import Place, line_of, user_place

Leaves: TypeAlias = "int | tuple[Leaves, ...]"
"""The leaves a node depends on: an id, or the parts it was put together from (shared, not copied)."""

_ids = count(1)


def depends_on(leaves: Leaves, leaf: int) -> bool:
    """Whether a leaf is among some."""
    stack = [leaves]
    seen = set()
    while stack:
        part = stack.pop()
        if part == leaf:
            return True
        if isinstance(part, tuple) and id(part) not in seen:
            seen.add(id(part))
            stack.extend(part)
    return False


fresh_id = _ids.__next__
"""A number above those of all nodes so far."""


class Requirement(enum.Enum):
    """Whether a node's gradient is wanted."""

    GRAD = "grad"
    """A leaf that requires grad."""
    GRAD_IN_BACKWARD = "grad_in_backward"
    """An op's output with a tracked input: its gradient passes through."""
    NONE = "none"
    """A constant."""


class Cut(NamedTuple):
    """A place where a tracked value became a constant."""

    kind: str  # "detach" or "int"
    leaves: Leaves


Origin: TypeAlias = "int | Cut"
"""What a constant came from: the id of an untracked leaf, or a cut."""


class Leaf:
    """A tensor no op on this tape made: a constant, or a leaf that requires grad."""

    __slots__ = ("__weakref__", "dtype", "id", "leaves", "origins", "requirement", "shape", "tracked")

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: dtypes.DType,
        requirement: Requirement = Requirement.NONE,
        origins: tuple[Origin, ...] = (),
        id: int | None = None,
    ):
        self.id = fresh_id() if id is None else id
        self.shape = shape
        self.dtype = dtype
        self.requirement = requirement
        self.tracked = requirement is Requirement.GRAD
        self.leaves: Leaves = self.id
        self.origins = origins


class Made:
    """What nodes of ops have in common. What few of them have is in a dict that the others lack."""

    __slots__ = ("__dict__", "__weakref__")
    requirement = Requirement.GRAD_IN_BACKWARD
    tracked = True
    retained: bool = False  # whether its own gradient is kept
    mixed: Sequence[Any] = ()  # of order 2: inputs that are constants here, but tracked one level down
    recompute: bool = False
    depth: int = 0  # how many ops in a row are recomputed up to here
    origins: tuple[Origin, ...] | None = None


class Node(Made):
    """An op's output with a tracked input, and what its derivative rule needs.

    An entry of `inputs` is a tensor (kept), a node (recomputed from it, or only its type is
    needed), a type, or None (not needed).
    """

    __slots__ = ("dtype", "id", "inputs", "leaves", "op", "out", "params", "parents", "shape", "where")
    inputs: tuple[Any, ...] | None
    where: Place

    def __init__(
        self,
        op: Op,
        params: tuple[Any, ...],
        parents: tuple[AnyNode | None, ...],
        inputs: tuple[Any, ...],
        out: Any,
        shape: Any,
        dtype: Any,
        leaves: Leaves,
        origins: tuple[Origin, ...] | None = None,
        recompute: bool = False,
    ):
        self.id = fresh_id()
        self.op = op
        self.params = params
        self.parents = parents
        self.inputs = inputs
        self.out = out
        self.shape = shape  # of an op with several outputs, the types of all; then `dtype` is None
        self.dtype = dtype
        self.leaves = leaves
        if origins is not None:
            self.origins = origins
        if recompute:
            self.recompute = True
        self.where = user_place()


class Part(Made):
    """One output of a node whose op has several (`parent.shape` lists the types of all), or of ops recorded together."""

    __slots__ = ("dtype", "id", "index", "parent", "shape")

    def __init__(self, parent: Any, index: int, shape: tuple[int, ...], dtype: dtypes.DType):
        self.id = fresh_id()
        self.parent = parent
        self.index = index
        self.shape = shape
        self.dtype = dtype

    @property
    def leaves(self) -> Leaves:
        """The leaves it depends on."""
        parent = self.parent
        found: Leaves = parent.leaves if type(parent) is Node else parent.leaves_at(self.index)
        return found


class Watched(Made):
    """What stands for another node: it notes, by a number, that backward goes on from there."""

    __slots__ = ("dtype", "id", "leaves", "node", "number", "seen", "shape")

    def __init__(self, node: AnyNode, number: int, seen: set[int]):
        self.id = fresh_id()
        self.node = node
        self.number = number
        self.seen = seen
        self.leaves: Leaves = node.leaves
        self.shape: Any = node.shape
        self.dtype: Any = node.dtype

    def pull(self, g: Any, release: bool, found: Swept) -> list[tuple[AnyNode, Any, bool]]:
        """The same cotangent, for the node it stands for."""
        self.seen.add(self.number)
        if self.retained:
            found.gradients[self.id] = g
        return [(self.node, g, False)]


AnyNode: TypeAlias = "Node | Part | Watched | Leaf"


class Swept(NamedTuple):
    """What a backward sweep found."""

    gradients: dict[int, Any]  # by the id of a leaf or a retained intermediate
    origins: list[Iterable[Origin]]  # of the constants that were met
    behind: set[int]  # the nodes whose cotangent came through an op that guards


def pulled(node: Node, g: Any, res: Residuals) -> Sequence[Any]:
    """The cotangents of the inputs of `node`, by its rule."""
    return node.op.pull(g, res, node.parents)


def sweep(
    seeds: Iterable[tuple[AnyNode, Any]],
    release: bool = False,
    pull: Callable[[Node, Any, Residuals], Sequence[Any]] = pulled,
    behind: Iterable[int] = (),
) -> Swept:
    """Send the cotangents of `seeds` to the leaves, in reverse order of creation; `pull` runs the rules.

    Rules that are `behind` an op that guards, or whose node is said to be, run as `guarded`.
    """
    found = Swept({}, [], set(behind))
    watch = getattr(tracing.get(), "swept", None)  # of `debug_nans`, which runs the rules itself
    if watch is not None:
        pull = watch.__self__.pull
    written = tracing.get() if watch is None else None  # a trace, which notes of what it writes the derivative
    pending: dict[int, Any] = {}
    queue: list[tuple[int, Any]] = []
    recomputed: dict[int, Any] = {}
    guarding = found.behind

    def send(node: AnyNode, g: Any) -> None:
        if node.id in pending:
            pending[node.id] = _accumulate(pending[node.id], g)
        else:
            pending[node.id] = g
            heappush(queue, (-node.id, node))

    for node, g in seeds:
        send(node, g)
    while queue:
        node = heappop(queue)[1]
        g = pending.pop(node.id)
        if type(g) is not dict and g._dtype != node.dtype:  # accumulated in float32
            g = g.astype(node.dtype)
        if type(node) is Node:
            if node.retained:
                found.gradients[node.id] = g
            if node.origins is not None:
                found.origins.append(node.origins)
            if type(g) is dict:
                g = _fill(g, node.shape)  # of several outputs, their types
            res = _residuals(node, recomputed)
            if written is not None:
                written.of = node
            if node.id in guarding:
                with guarded():
                    pieces = pull(node, g, res)
            else:
                pieces = pull(node, g, res)
            guards = node.op.guards or node.id in guarding
            for index, (parent, piece) in enumerate(zip(node.parents, pieces, strict=True)):
                if piece is not None and parent is not None:
                    _check(node, index, piece, parent)
                    send(parent, piece)
                    if guards:
                        guarding.add(parent.id)
            recomputed.pop(node.id, None)
            if release:
                node.inputs = node.out = None
        elif type(node) is Leaf:
            found.gradients[node.id] = g
            if node.origins:
                found.origins.append(node.origins)
        elif type(node) is Part:
            if node.retained:
                found.gradients[node.id] = g
            parent = node.parent
            if parent.id not in pending:
                pending[parent.id] = {}
                heappush(queue, (-parent.id, parent))
            pending[parent.id][node.index] = g
            if node.id in guarding:
                guarding.add(parent.id)
        else:  # ops that were recorded together
            guards = node.id in guarding
            with guarded() if guards else nullcontext():
                sent = node.pull(g, release, found)
            for place, piece, behind_one in sent:
                send(place, piece)
                if guards or behind_one:
                    guarding.add(place.id)
    if written is not None:
        written.of = None
    if watch is not None:
        watch(found)
    return found


def _accumulate(total: Any, g: Any) -> Any:
    if dtypes.is_half(g._dtype):  # many small terms: keep the sum in float32, round once
        total, g = total.astype(dtypes.float32), g.astype(dtypes.float32)
    return total + g


def _fill(parts: dict[int, Any], types: Sequence[Type]) -> tuple[Any, ...]:
    like = next(iter(parts.values()))
    return tuple(parts[i] if i in parts else zeros(t, like) for i, t in enumerate(types))


def _residuals(node: Node, recomputed: dict[int, Any]) -> Residuals:
    """What the rule of `node` may read, recomputing what was not kept."""
    inputs, out = node.inputs, node.out
    if inputs is None:
        refuse_consumed(node.op, node.shape, node.where)
    needed = [x for x in inputs if type(x) is Node and x.recompute]
    if needed or node.recompute:
        keep = node.op.keep(tuple([p is not None for p in node.parents]))
        inputs = tuple(
            _recompute(x, recomputed) if i in keep.values and type(x) is Node and x.recompute else x
            for i, x in enumerate(inputs)
        )
        if node.recompute and keep.out:
            out = _recompute(node, recomputed)
    return Residuals(inputs, out, node.params)


def refuse_consumed(op: Op, shape: Any, where: Place) -> NoReturn:
    """Raise since backward has released what it would walk again."""
    if any(hasattr(part, "shape") for part in shape):  # types, of an op with several outputs
        shape = shape[0].shape if len(shape) == 1 else tuple([part.shape for part in shape])
    raise GraphConsumedError(
        f"backward: the residuals of {op.name} (output shape {shape}, made at {line_of(where)}) were "
        "released by an earlier backward(retain_graph=False). Call backward() without retain_graph=False on "
        "every loss but the last, or add the losses and call backward() once."
    )


def _recompute(node: Node, values: dict[int, Any]) -> Any:
    """The value of a node that was not kept, from its nearest kept ancestors."""
    stack = [node]
    while stack:
        top = stack[-1]
        if top.id in values:
            stack.pop()
            continue
        if top.inputs is None:
            _residuals(top, values)  # raises
        assert top.inputs is not None
        missing = [x for x in top.inputs if type(x) is Node and x.id not in values]
        if missing:
            stack.extend(missing)
        else:
            values[top.id] = bind(top.op, [values[x.id] if type(x) is Node else x for x in top.inputs], top.params)
    return values[node.id]


def _check(node: Node, index: int, g: Any, parent: AnyNode) -> None:
    if g._shape != parent.shape:
        raise ShapeError(
            f"the derivative rule of {node.op.name} gave a cotangent of shape {g._shape} for input {index}, whose "
            f"shape is {parent.shape}; a cotangent has the shape of its input."
        )
    if dtypes.is_inexact(parent.dtype) and g._dtype != parent.dtype:
        raise DTypeError(
            f"the derivative rule of {node.op.name} gave a cotangent of {g._dtype} for input {index}, which is "
            f"{parent.dtype}; a cotangent has the dtype of its input."
        )
