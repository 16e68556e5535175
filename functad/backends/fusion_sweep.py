"""Backward over nodes by their structure: the sweep of an upper tape, whose rules run once for each structure.

What an upper tape (`autodiff(order=2)`, say) records are nodes, op by op. Its sweep runs the rules of these on tensors of
the tape below. The second time that nodes hang together in the same way, what the rules compute is written down as a
program; from then on it is played.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

from functad import dtypes
from functad.backends.fusion_state import Kind
from functad.backends.fusion_written import Written, written
from functad.backends.trace import Trace
from functad.dispatch import Handle, tracing
from functad.ops.ieee import is_guarded, is_strict
from functad.ops.op import Op, Type
from functad.tape import AnyNode, Leaf, Node, Part, Requirement, Swept, sweep

_MOST_NODES = 2048
_MOST_KEPT = 256
_NODE, _PART, _LEAF = range(3)
_MET: Any = object()  # once


class Graph:
    """The nodes that backward walks from some seeds, in the order in which it does."""

    def __init__(self, seeds: Sequence[tuple[AnyNode, Any]]):
        self.nodes: list[Any] = []
        self.rows: list[Any] = []  # what each is, by the numbers of nodes and of tensors
        self.tensors: list[Any] = []
        self._numbers: dict[int, int] = {}  # of nodes, by their ids
        self._places: dict[int, int] = {}  # of tensors
        self._queue: list[tuple[int, AnyNode]] = []
        self.seeds = tuple([(self._number(node), self._place(g)) for node, g in seeds])
        self.whole = self._walk()

    def _walk(self) -> bool:
        """Follow the nodes; whether that went to the end."""
        while self._queue:
            node: Any = heappop(self._queue)[1]
            kind = type(node)
            if kind is Node:
                op: Op = node.op
                if node.inputs is None or node.recompute or op.whole or op.base_run is not None:
                    return False
                kept = tuple([self._kept(x) for x in node.inputs])
                out = tuple(map(self._kept, node.out)) if type(node.out) is tuple else self._kept(node.out)
                parents = tuple([None if p is None else self._number(p) for p in node.parents])
                row: Any = (_NODE, op, node.params, parents, kept, out, node.shape, node.dtype)
            elif kind is Part and type(node.parent) is Node:
                row = (_PART, self._number(node.parent), node.index, node.shape, node.dtype)
            elif kind is Leaf:
                row = (_LEAF, node.shape, node.dtype)
            else:
                return False
            self.nodes.append(node)
            self.rows.append((self._numbers[node.id], kind is not Leaf and node.retained, row))
            if len(self.rows) > _MOST_NODES:
                return False
        return True

    def _number(self, node: AnyNode) -> int:
        number = self._numbers.get(node.id)
        if number is None:
            number = self._numbers[node.id] = len(self._numbers)
            heappush(self._queue, (-node.id, node))
        return number

    def _kept(self, x: Any) -> Any:
        """What a node keeps: the place of a tensor, or a type."""
        if isinstance(x, Handle):
            return self._place(x)
        return None if x is None else Type(x.shape, x.dtype)

    def _place(self, x: Any) -> int:
        place = self._places.get(id(x))
        if place is None:
            place = len(self.tensors)
            self.tensors.append(x)
            kind = x._entry
            if type(kind) is not Kind or not kind.scalar:  # a number is an operand of its own at each use
                self._places[id(x)] = place
        return place

    def key(self) -> Any:
        """What graphs that hang together in one way have in common."""
        types = tuple([(x._shape, x._dtype) for x in self.tensors])
        return self.seeds, tuple(self.rows), types, is_guarded(), is_strict(), dtypes.x64_enabled()

    def write(self, trace: Trace) -> tuple[list[Any], list[int]]:
        """What the rules compute, on the inputs of a trace; and the numbers of the nodes whose gradients these are."""
        tensors = [trace.input(x._shape, x._dtype) for x in self.tensors]
        copies: dict[int, Any] = {}

        def kept(x: Any) -> Any:
            return tensors[x] if type(x) is int else x

        for number, retained, (kind, *row) in reversed(self.rows):  # what was made first, first
            if kind == _NODE:
                op, params, parents, inputs, out, shape, dtype = row
                copy: Any = Node(
                    op,
                    params,
                    tuple([None if p is None else copies[p] for p in parents]),
                    tuple(map(kept, inputs)),
                    tuple(map(kept, out)) if type(out) is tuple else kept(out),
                    shape,
                    dtype,
                    (),
                )
            elif kind == _PART:
                parent, index, shape, dtype = row
                copy = Part(copies[parent], index, shape, dtype)
            else:
                shape, dtype = row
                copy = Leaf(shape, dtype, Requirement.GRAD)
            if retained:
                copy.retained = True
            copies[number] = copy
        found = sweep([(copies[n], tensors[i]) for n, i in self.seeds]).gradients
        reached = {n: found[copy.id] for n, copy in copies.items() if copy.id in found}
        return list(reached.values()), list(reached)


def sweep_again(fusion: Any, seeds: Sequence[tuple[AnyNode, Any]], release: bool) -> Swept | None:
    """What `sweep` finds from these seeds, if a like graph was met before; no rule runs."""
    if tracing.get() is not None:
        return None
    graph = Graph(seeds)
    if not graph.whole:
        return None
    key, sweeps = graph.key(), fusion.sweeps
    if key not in sweeps:
        if len(sweeps) > _MOST_KEPT:
            sweeps.clear()
        sweeps[key] = _MET
        return None
    program: Written | None = sweeps[key]
    if program is _MET:
        program = sweeps[key] = written(fusion, graph.write)
    if program is None:  # rules that read values, say
        return None
    gradients = program.play(graph.tensors)
    numbered = {number: node for (number, _, _), node in zip(graph.rows, graph.nodes, strict=True)}
    origins = [node.origins for node in graph.nodes if getattr(node, "origins", None)]
    if release:
        for node in graph.nodes:
            if type(node) is Node:
                node.inputs = node.out = None
    return Swept({numbered[n].id: g for n, g in zip(program.marks, gradients, strict=True)}, origins, set())
