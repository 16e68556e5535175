"""Derivative rules as compiled calls: on an XLA device the rule of an op runs as one call, not op by op.

A rule is written down the second time it is met for ops, shapes and dtypes, since compiling it pays
only if it recurs. What it computes, and how, is what it computes op by op.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from functad import dtypes
from functad.backends.base import BaseBackend
from functad.backends.trace import Program, open_trace
from functad.dispatch import tracing
from functad.errors import ConcreteValueError
from functad.levels import deeper
from functad.ops.ieee import is_guarded, is_strict
from functad.ops.op import Op, Residuals, Type
from functad.tape import Node
from functad.tensor import Tensor

_MOST_KEPT = 2048

Place: TypeAlias = int | Tensor | None
"""Where a cotangent is found: a place among inputs and results, a constant, or nowhere."""


class _Rule(NamedTuple):
    """A rule for one kind of arguments."""

    plain: bool = False  # it runs op by op: it was met once only, reads values, or is one call as it is
    call: Callable[..., Any] | None = None  # None if it computes nothing
    types: Sequence[Type] = ()  # of what the call returns
    places: Sequence[Place] = ()  # of the cotangents


_PLAIN = _Rule(plain=True)
_MET = _Rule(plain=True)


class Pulls:
    """The compiled rules of one device."""

    def __init__(self, base: BaseBackend, near: Any = None):
        self.base = base
        self.near = near  # what runs small ops on the host, if that is done
        self.known: OrderedDict[Any, _Rule] = OrderedDict()

    def __call__(self, node: Node, g: Any, res: Residuals) -> Sequence[Any]:
        """The cotangents of the inputs of `node`, None for those that are not wanted."""
        op, base = node.op, self.base
        if op.whole or op.base_run is not None or type(g) is tuple or g._backend is not base:
            return op.pull(g, res, node.parents)
        types: list[Any] = [g._shape, g._dtype]
        given = [g]
        for x, parent in zip(res.inputs, node.parents):  # noqa: B905  # equally long, and this is the hot path
            if isinstance(x, Tensor):
                if x._backend is not base:
                    return op.pull(g, res, node.parents)
                given.append(x)
                types += (x._shape, x._dtype, parent is None)
            else:
                types.append(parent is None)
                if x is not None:
                    types += (x.shape, x.dtype)
        out = res.out
        if out is not None:
            if not isinstance(out, Tensor) or out._backend is not base:
                return op.pull(g, res, node.parents)
            given.append(out)
        if tracing.get() is not None:
            return op.pull(g, res, node.parents)
        key = (op, res.params, *types, out is None, is_guarded(), is_strict(), dtypes.x64_enabled())
        rule = self.known.get(key)
        if rule is None or rule is _MET:
            rule = self.known[key] = _MET if rule is None else self._compile(op, g, res, node.parents)
            if len(self.known) > _MOST_KEPT:
                self.known.popitem(last=False)
        if rule.plain:
            return op.pull(g, res, node.parents)
        if rule.call is not None:
            made = rule.call(*[x._value for x in given])
            given += [Tensor(base, o, None, *t) for o, t in zip(made, rule.types)]  # noqa: B905
        return [given[p] if type(p) is int else p for p in rule.places]

    def _compile(self, op: Op, g: Any, res: Residuals, wanted: Sequence[Any]) -> _Rule:
        """Write the rule down by running it on variables."""
        with deeper() as level, open_trace(level, self.base, f"the derivative rule of {op.name}") as trace:
            fresh = trace.input(g._shape, g._dtype)
            inputs = [
                trace.input(x._shape, x._dtype)
                if isinstance(x, Tensor)
                else x
                if x is None or type(x) is Type
                else Type(x.shape, x.dtype)
                for x in res.inputs
            ]
            out = None if res.out is None else trace.input(res.out._shape, res.out._dtype)
            try:
                pieces = op.pull(fresh, Residuals(inputs, out, res.params), wanted)
            except ConcreteValueError:
                return _PLAIN
            program = trace.program([p for p in pieces if p is not None])
        results = list(dict.fromkeys([x for x in program.outputs if type(x) is int and x not in program.inputs]))
        if len(program.equations) == 1 or trace.hidden:
            return _PLAIN
        places: dict[Any, int] = {x: i for i, x in enumerate([*program.inputs, *results])}
        found = iter([places[x] if type(x) is int else x for x in program.outputs])
        cotangents = tuple([None if p is None else next(found) for p in pieces])
        if not program.equations:
            return _Rule(places=cotangents)
        whole = Program(program.inputs, program.equations, list(results), program.types)
        call: Any = jax.jit(_function(whole, f"backward_{op.name}"))
        if self.near is not None and (times := self.near.times([program.types[i] for i in program.inputs])):
            call = _Near(whole, self.near, times, call)
        return _Rule(False, call, [program.types[i] for i in results], cotangents)


class _Near:
    """A rule that runs on the host some times, before XLA compiles it."""

    __slots__ = ("call", "left", "near", "program")

    def __init__(self, program: Program, near: Any, left: int, call: Callable[..., Any]):
        self.program = program
        self.near = near
        self.left = left
        self.call = call

    def __call__(self, *arrays: Any) -> Any:
        if self.left and self.near.reads(arrays):
            self.left -= 1
            try:
                return self.program.call(self.near.call, arrays)
            except Exception:  # noqa: BLE001  # an op of it has no NumPy implementation
                self.left = 0
        return self.call(*arrays)


def _function(program: Program, name: str) -> Callable[..., Any]:
    def call(*arrays: Any) -> Any:
        return program.call(
            lambda op, ins, params: op.impl(jnp, *ins, **dict(zip(op.params, params, strict=True))), arrays
        )

    call.__name__ = call.__qualname__ = name
    return call
