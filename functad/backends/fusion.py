"""The Fusion decorator: record ops now, run them when a value is needed, compiled as a whole.

Observationally eager. Every op's shape and dtype rule runs at the call, so errors come from the
line that made them. Values are computed when they are observed, and at the end of a backward,
which looks the whole tape up by its structure: on a hit one executable returns the outputs and
all gradients, and no derivative rule runs.

A structure is compiled as a whole once it recurs. The first time it runs op by op, and so it does
whenever it is too large for compiling to pay.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from functad import dtypes
from functad.backends.base import BaseBackend, refuse
from functad.backends.trace import Trace, abstract
from functad.backends.xla import Xla
from functad.device import FUSED
from functad.dtypes import DType
from functad.errors import ConcreteValueError, FunctadError
from functad.levels import deeper
from functad.ops.op import Op, Type
from functad.ops.rules import is_strict
from functad.tape import AnyNode, Leaf, Node, Part, Requirement, Swept, sweep
from functad.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

_MOST_PENDING = 512  # ops in a row before they run unasked
_MOST_WHOLE = 768  # ops in a structure that is worth compiling as a whole
_MOST_STRUCTURES = 512


class Lazy:
    """A value: an array, or the op that will make it.

    The value of an op with several outputs is their tuple; each output is a value without an op,
    whose `params` is its place in the tuple.
    """

    __slots__ = ("__weakref__", "array", "depth", "inputs", "op", "params", "type")
    depth: int

    def __init__(self, op: Op | None, params: Any, inputs: Sequence[Lazy], type: Any, array: Any = None):
        self.op = op
        self.params = params
        self.inputs = inputs
        self.type = type
        self.array = array
        depth: int = 0
        for x in inputs:
            if x.depth >= depth:
                depth = x.depth + 1
        self.depth = depth

    def settle(self, array: Any) -> None:
        """Take the computed value and let go of what it was made from (in this order, for other threads)."""
        self.array = array
        self.depth = 0
        self.inputs = ()
        self.op = None


class Step(NamedTuple):
    """A value that is pending, as it was when the walk met it."""

    value: Lazy
    op: Op | None
    params: Any
    inputs: Sequence[Lazy]


class Structure:
    """What is known of one structure of pending work."""

    __slots__ = ("call", "met", "op_by_op")

    def __init__(self) -> None:
        self.met = 0
        self.call: Any = None
        self.op_by_op = False  # its rules need values


class Fusion(BaseBackend):
    """Records ops for one XLA device, and runs them in as few calls as it can."""

    name = "xla"

    def __init__(self, xla: Xla):
        super().__init__()
        self.xla = xla
        self.hardware = xla.hardware
        self.structures: OrderedDict[Any, Structure] = OrderedDict()

    # --- recording

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Record `op`; its type is known at once."""
        if op.base_run is not None:
            return op.base_run(self, inputs, params)
        values = [x._value for x in inputs]
        if inputs and inputs[0]._dtype is dtypes.float64:
            self.requires(dtypes.float64, op.name)
        try:
            made = abstract(op, params, tuple([v.type for v in values]), dtypes.x64_enabled())
        except FunctadError:
            raise
        except (TypeError, ValueError, IndexError) as error:
            refuse(op, inputs, params, error)
        value = Lazy(op, params, values, made)
        if op.whole or value.depth > _MOST_PENDING or any(isinstance(v.array, jax.core.Tracer) for v in values):
            self._run_steps(self._pending([value])[0])
        if type(made) is Type:
            return Tensor(self, value, None, *made)
        return tuple([Tensor(self, Lazy(None, i, (value,), t), None, *t) for i, t in enumerate(made)])

    def compiled(self, op: Op, params: tuple[Any, ...]) -> Callable[..., Any]:
        return self.xla.compiled(op, params)

    def array(self, data: Any, dtype: DType) -> Lazy:
        array = self.xla.array(data, dtype)
        return Lazy(None, None, (), Type(array.shape, array.dtype), array)

    def put(self, data: Any, dtype: DType | None = None, where: str = "tensor") -> Tensor:
        return self._known(self.xla.put(data, dtype, where)._value)

    def _scalar(self, value: complex, dtype: DType) -> Tensor:
        return self._known(self.checked_scalar(value, dtype))

    def _known(self, array: Any) -> Tensor:
        made = Type(array.shape, array.dtype)
        return Tensor(self, Lazy(None, None, (), made, array), None, *made)

    def requires(self, dtype: DType, where: str) -> None:
        self.xla.requires(dtype, where)

    # --- observing

    def concrete(self, value: Lazy) -> Any:
        if value.array is None:
            self.force([value])
        return value.array

    def host(self, value: Lazy) -> np.ndarray[Any, Any]:
        return self.xla.host(self.concrete(value))

    def jax_array(self, value: Lazy) -> Any:
        return jnp.asarray(self.concrete(value))

    def detach(self, x: Tensor) -> Tensor:
        array = x._value.array
        return self._known(jax.lax.stop_gradient(array)) if isinstance(array, jax.core.Tracer) else x

    constant = detach

    def force(self, wanted: Sequence[Lazy]) -> None:
        """Compute values, in one call if their structure recurs."""
        steps, known = self._pending(wanted)
        if len(steps) < 2 or len(steps) > _MOST_WHOLE:
            self._run_steps(steps)
            return
        number = _numbers(known, steps)
        targets = _live(steps, wanted)
        equations = _equations(steps, number)
        outputs = tuple([number[id(v)] for v in targets])
        structure = self._structure((_types(known), equations, outputs, dtypes.x64_enabled()))
        if structure.met == 1:
            self._run_steps(steps)
            return
        if structure.call is None:
            structure.call = jax.jit(_evaluator(len(known), equations, outputs))
        for v, array in zip(targets, structure.call(*[v.array for v in known]), strict=True):
            v.settle(array)

    def _pending(self, wanted: Sequence[Lazy]) -> tuple[list[Step], list[Lazy]]:
        """The values to compute for `wanted`, inputs first, and the known ones they come from."""
        steps: list[Step] = []
        known: list[Lazy] = []
        seen: set[int] = set()
        stack: list[Lazy | Step] = list(reversed(wanted))
        while stack:
            top = stack.pop()
            if type(top) is Step:
                steps.append(top)
                continue
            assert type(top) is Lazy
            if id(top) in seen:
                continue
            seen.add(id(top))
            step = Step(top, top.op, top.params, top.inputs)
            if step.op is None and step.inputs and step.inputs[0].array is not None:
                top.settle(step.inputs[0].array[step.params])
            if top.array is not None:  # read last: another thread may have settled it meanwhile
                known.append(top)
                continue
            stack.append(step)
            stack.extend([x for x in reversed(step.inputs) if id(x) not in seen])
        return steps, known

    def _run_steps(self, steps: Sequence[Step]) -> None:
        for value, op, params, inputs in steps:
            if op is None:
                value.settle(inputs[0].array[params])
            else:
                value.settle(self.xla.call(op, [x.array for x in inputs], params))

    def _structure(self, key: Any) -> Structure:
        structure = self.structures.get(key)
        if structure is None:
            structure = self.structures[key] = Structure()
            if len(self.structures) > _MOST_STRUCTURES:
                self.structures.popitem(last=False)
        structure.met += 1
        return structure

    # --- backward

    def sweep(self, seeds: Sequence[tuple[AnyNode, Tensor]], outputs: Sequence[Tensor], release: bool) -> Swept:
        """The gradients and the outputs, by one executable if the tape's structure recurs."""
        nodes = _ancestors([node for node, _ in seeds])
        tensors = _saved(nodes)
        if any(x._backend is not self for x in [*tensors, *outputs, *[g for _, g in seeds]]):
            return sweep(seeds, release)  # the values are on an outer level, which records the rules
        found = self._sweep_whole(seeds, outputs, release, nodes, tensors)
        if found is None:
            found = sweep(seeds, release)
            self.force([x._value for x in (*outputs, *found.gradients.values())])
        return found

    def _sweep_whole(
        self,
        seeds: Sequence[tuple[AnyNode, Tensor]],
        outputs: Sequence[Tensor],
        release: bool,
        nodes: list[AnyNode],
        tensors: list[Tensor],
    ) -> Swept | None:
        if any(type(node) is Node and (node.inputs is None or node.op.base_run is not None) for node in nodes):
            return None  # released, or Python code whose rule may read values
        roots = [x._value for x in (*tensors, *outputs, *[g for _, g in seeds])]
        steps, known = self._pending(roots)
        if len(steps) + len(nodes) > 2 * _MOST_WHOLE:
            return None
        number = _numbers(known, steps)
        ends = _ends(nodes, tensors, outputs, steps)
        places = {node.id: i for i, node in enumerate(nodes)}
        equations = _equations(steps, number)
        shape = tuple([_describe(node, places, number) for node in nodes])
        starts = tuple([(places[node.id], number[id(g._value)]) for node, g in seeds])
        key = (
            _types(known),
            equations,
            shape,
            starts,
            tuple([number[id(v)] for v in ends]),
            is_strict(),
            dtypes.x64_enabled(),
        )
        structure = self._structure(key)
        if structure.met == 1 or structure.op_by_op:
            return None
        if structure.call is None:
            try:
                structure.call = self._compile(key, nodes)
            except ConcreteValueError:
                structure.op_by_op = True
                return None
        call, reached = structure.call
        results = call(*[v.array for v in known])
        for v, array in zip(ends, results, strict=False):
            if v.array is None:
                v.settle(array)
        gradients = {nodes[i].id: self._known(array) for i, array in zip(reached, results[len(ends) :], strict=True)}
        origins = [node.origins for node in nodes if type(node) is not Part and node.origins]
        if release:
            for node in nodes:
                if type(node) is Node:
                    node.inputs = node.out = None
        return Swept(gradients, {nodes[i].id: nodes[i] for i in reached}, origins)

    def _compile(self, key: Any, nodes: list[AnyNode]) -> tuple[Callable[..., Any], tuple[int, ...]]:
        """Write forward and backward down by running the rules once, on variables."""
        types, equations, shape, starts, ends, _, _ = key
        with deeper() as level:
            trace = Trace(level, self, "fusion")
            values: list[Any] = [trace.input(*t) for t in types]
            for op, params, inputs in equations:
                if op is None:
                    values.append(values[inputs[0]][params])
                else:
                    values.append(trace.run(op, [values[i] for i in inputs], params))
            clones: list[AnyNode] = []
            for node, description in zip(nodes, shape, strict=True):
                clones.append(_clone(node, description, clones, values))
            found = sweep([(clones[i], values[g]) for i, g in starts])
            reached = tuple([i for i, clone in enumerate(clones) if clone.id in found.gradients])
            program = trace.program([*[values[i] for i in ends], *[found.gradients[clones[i].id] for i in reached]])
            trace.close()

        def whole(*arrays: Any) -> Any:
            return program.call(
                lambda op, ins, params: op.impl(jnp, *ins, **dict(zip(op.params, params, strict=True))), arrays
            )

        return jax.jit(whole), reached


def _numbers(known: Sequence[Lazy], steps: Sequence[Step]) -> dict[int, int]:
    numbers = {id(v): i for i, v in enumerate(known)}
    for i, step in enumerate(steps, len(known)):
        numbers[id(step.value)] = i
    return numbers


def _types(known: Sequence[Lazy]) -> tuple[Type, ...]:
    return tuple([v.type for v in known])


def _equations(steps: Sequence[Step], number: dict[int, int]) -> tuple[Any, ...]:
    return tuple([(s.op, s.params, tuple([number[id(x)] for x in s.inputs])) for s in steps])


def _ends(nodes: Sequence[AnyNode], tensors: Sequence[Tensor], outputs: Sequence[Tensor], steps: Any) -> list[Lazy]:
    """What a backward computes besides gradients.

    The outputs, the leaves and constants that are pending (an updated parameter), and what else the
    user holds (an optimiser's state); not what only the tape keeps.
    """
    ends = {id(x._value): x._value for x in outputs}
    for node in nodes:
        if type(node) is Node:
            for parent, x in zip(node.parents, node.inputs or (), strict=True):
                if isinstance(x, Tensor) and x._value.array is None and (parent is None or type(parent) is Leaf):
                    ends[id(x._value)] = x._value
    kept: dict[int, int] = {}
    for x in {id(x): x for x in tensors}.values():
        kept[id(x._value)] = kept.get(id(x._value), 0) + 1
    for v in _live(steps, (), kept):
        ends[id(v)] = v
    return list(ends.values())


def _live(steps: Sequence[Step], wanted: Sequence[Lazy], kept: dict[int, int] | None = None) -> list[Lazy]:
    """The values that something besides the pending ops (and what `kept` counts) refers to: they may be asked for."""
    inside: dict[int, int] = dict(kept or {})
    for step in steps:
        for x in step.inputs:
            inside[id(x)] = inside.get(id(x), 0) + 1
    asked = {id(v) for v in wanted}
    ours = 3  # the step, the loop's variable and the count's own argument
    live = []
    for step in steps:
        value = step.value
        if id(value) in asked or sys.getrefcount(value) - ours > inside.get(id(value), 0):
            live.append(value)
    return live


def _evaluator(n_known: int, equations: Sequence[Any], outputs: Sequence[int]) -> Callable[..., Any]:
    def evaluate(*arrays: Any) -> Any:
        values = list(arrays)
        for op, params, inputs in equations:
            if op is None:
                values.append(values[inputs[0]][params])
            else:
                fixed = dict(zip(op.params, params, strict=True))
                values.append(op.impl(jnp, *[values[i] for i in inputs], **fixed))
        return tuple([values[i] for i in outputs])

    return evaluate


# --- the tape as a structure


def _ancestors(roots: Sequence[AnyNode]) -> list[AnyNode]:
    """The nodes that `roots` depend on, in order of creation."""
    found: dict[int, AnyNode] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node.id not in found:
            found[node.id] = node
            if type(node) is Node:
                stack.extend([p for p in node.parents if p is not None])
            elif type(node) is Part:
                stack.append(node.parent)
    return [found[i] for i in sorted(found)]


def _saved(nodes: Sequence[AnyNode]) -> list[Tensor]:
    """The tensors the nodes keep."""
    kept: list[Tensor] = []
    for node in nodes:
        if type(node) is Node:
            kept.extend([x for x in node.inputs or () if isinstance(x, Tensor)])
            if node.out is not None:
                kept.extend(node.out if type(node.out) is tuple else [node.out])
    return kept


def _describe(node: AnyNode, places: dict[int, int], number: dict[int, int]) -> Any:
    """A node with its parents and tensors by number."""
    if type(node) is Leaf:
        return (node.shape, node.dtype)
    if type(node) is Part:
        return (places[node.parent.id], node.index, node.retained)
    assert type(node) is Node
    assert node.inputs is not None
    out = node.out
    return (
        node.op,
        node.params,
        tuple([-1 if p is None else places[p.id] for p in node.parents]),
        tuple([_entry(x, places, number) for x in node.inputs]),
        None if out is None else tuple([number[id(o._value)] for o in (out if type(out) is tuple else (out,))]),
        node.retained,
        node.recompute,
    )


def _entry(x: Any, places: dict[int, int], number: dict[int, int]) -> Any:
    """A kept tensor as its number, a node as its place (negative), a type or None as it is."""
    if isinstance(x, Tensor):
        return number[id(x._value)]
    if x is None or type(x) is Type:
        return x
    return -1 - places[x.id]


def _clone(node: AnyNode, description: Any, clones: list[AnyNode], values: list[Any]) -> AnyNode:
    """The node over the variables of a trace."""
    if type(node) is Leaf:
        return Leaf(node.shape, node.dtype, Requirement.GRAD)
    if type(node) is Part:
        parent = clones[description[0]]
        assert type(parent) is Node
        part = Part(parent, node.index, node.shape, node.dtype)
        part.retained = node.retained
        return part
    assert type(node) is Node
    op, params, parents, inputs, out, retained, recompute = description
    kept = None
    if out is not None:
        kept = tuple([values[i] for i in out])
        kept = kept if type(node.out) is tuple else kept[0]
    clone = Node(
        op,
        params,
        tuple([None if p < 0 else clones[p] for p in parents]),
        tuple([(values[x] if x >= 0 else clones[-1 - x]) if type(x) is int else x for x in inputs]),
        kept,
        node.shape,
        node.dtype,
        (),
        None,
        recompute,
    )
    clone.retained = retained
    return clone


@lru_cache
def _fused(xla: Xla) -> Fusion:
    return Fusion(xla)


FUSED.append(_fused)
