"""The Fusion decorator: record ops now, run them when a value is needed, compiled as a whole.

Observationally eager. Every op's shape and dtype rule runs at the call, so errors come from the
line that made them. What was recorded runs when a value is observed, and at the end of a backward:
then one executable returns the gradients and whatever results are still held, and no derivative
rule runs.

Recording is in `fusion_record`, the trie of structures in `fusion_state`, what one computes in `fusion_structure`,
whether and when it is compiled in `fusion_compile`; what runs on the host until then is in `fusion_host`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from functad import dtypes
from functad.backends.base import BaseBackend
from functad.backends.fusion_compile import STRUCTURE, Compiler, concrete, gained, resume, weigh
from functad.backends.fusion_host import Host
from functad.backends.fusion_record import ARRAYS, Recording, Token, immediate, record, referenced
from functad.backends.fusion_replay import one_by_one, replay
from functad.backends.fusion_state import CONSTANT, Kind, State
from functad.backends.fusion_structure import (
    Origins,
    Plan,
    become_node,
    is_consumed,
    is_python,
    is_recorded,
    origins_of,
    released,
    snapshot,
    summary,
)
from functad.backends.fusion_sweep import sweep_again
from functad.backends.fusion_written import written_plan
from functad.backends.numpy import frozen
from functad.backends.pulls import Pulls
from functad.backends.xla import Xla, compiled
from functad.device import FUSED
from functad.dispatch import pending as local
from functad.dispatch import tracing
from functad.dtypes import DType
from functad.ops.ieee import is_guarded, is_strict
from functad.ops.op import Op, Type
from functad.source import user_place
from functad.tape import AnyNode, Leaf, Part, Swept, refuse_consumed, sweep
from functad.tensor import Tensor

_EXACT = {"xla_allow_excess_precision": False}  # half types are rounded after every op, as they are op by op
_run = BaseBackend.run
_new = object.__new__
_MOST_STATES = 50_000
_MOST_LITERALS = 1024
_SMALL = 1 << 12  # elements


class Fusion(BaseBackend):
    """Records ops for one XLA device, and runs them in as few calls as it can."""

    name = "xla"
    fuses = True
    tells_types = True

    def __init__(self, xla: Xla, near: bool = True):
        super().__init__()
        self.xla = xla
        self.hardware = xla.hardware
        self.transfers = xla.transfers
        self.sharding = jax.sharding.SingleDeviceSharding(xla.jax_device)
        self.states = 0
        self._roots: dict[Any, State] = {}
        self._seen: set[Any] = set()
        self.sweeps: dict[Any, Any] = {}
        """What upper tapes made of the graphs that they walked; see `fusion_sweep`."""
        self._literals: dict[Any, tuple[Tensor, float]] = {}  # by the id of the number
        self.near = Host(near and not self.transfers)
        self.compiler = Compiler(self.near.runs)
        self.pulls = Pulls(self, self.near)
        self.ended = Recording.__new__(Recording)  # what the token of a computed tensor belongs to
        self.ended.fusion = self
        self.ended.knowns = []
        self.ended.id = 0
        self._kinds: dict[Any, Kind] = {}

    # --- recording

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Record `op`; its type is known at once."""
        at_once = local.at_once
        if at_once > 1:
            local.at_once = at_once - 1
        elif not op.whole and (out := record(self, op, inputs, params)) is not None:
            return out
        if op.whole:
            self.calls(op, inputs)
        else:
            self.compiler.counts.singles[op.name] += 1
            if op.base_run is None and (out := self._run_near(op, inputs, params)) is not None:
                return out
        return _run(self, op, inputs, params)

    def _run_near(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """What an op makes on the host; None if it does not run there."""
        if inputs and inputs[0]._dtype is dtypes.float64 and not dtypes.x64_enabled():
            return None  # refused
        arrays = [x._value for x in inputs]
        out = self.near.run(op, tuple([(x._shape, x._dtype) for x in inputs]), arrays, params)
        if out is None:
            return None
        if type(out) is tuple:
            return tuple([Tensor(self, o, None, o.shape, o.dtype) for o in out])
        return Tensor(self, out, None, out.shape, out.dtype)

    def calls(self, op: Op, inputs: Sequence[Tensor] = ()) -> None:
        """Take note of an op that is a program."""
        if op.donate and (recording := local.recording) is not None:  # which may read what the call takes over
            recording.fusion.end(recording)
        for x in [inputs[i] for i in op.donate] if inputs else ():
            x._known_value = self.jax_array(x._value)  # an array that can be taken over
        self.compiler.counts.programs[op.name] += 1

    def root(self, x64: bool, nested: bool = False) -> State:
        """Where recordings start, those of inner tapes elsewhere; by the precision mode, as results have other dtypes."""
        if self.states > _MOST_STATES:
            self._prune()
        return self._roots.get((x64, nested)) or self._roots.setdefault((x64, nested), State())

    def kind(self, shape: tuple[int, ...], dtype: DType, role: int, scalar: bool = False) -> Kind:
        """What a tensor from outside is to recordings."""
        key = (shape, dtype, role, scalar)
        return self._kinds.get(key) or self._kinds.setdefault(key, Kind(*key, self.ended))

    def is_novel(self, op: Op, params: tuple[Any, ...], types: tuple[Type, ...]) -> int:
        """1 if no structure had this op on such inputs so far."""
        key = (op, params, types)
        if key in self._seen:
            return 0
        if len(self._seen) > _MOST_STATES:
            self._seen.clear()
        self._seen.add(key)
        return 1

    def _prune(self) -> None:
        """Forget the structures; those that are in use come back."""
        self._roots = {}
        self.sweeps.clear()
        self.states = 0
        self.compiler.clear()

    compiled = staticmethod(compiled)

    def array(self, data: Any, dtype: DType) -> Any:
        return self.xla.array(data, dtype)

    def brief(self, data: Any, dtype: DType) -> Any:
        if self.near.near and not isinstance(data, jax.Array) and data.size <= _SMALL:
            return frozen(np.array(data, dtype))  # JAX's own arrays are passed on quicker, and take long to make
        return self.xla.array(data, dtype)

    def scalar(self, value: complex, dtype: DType) -> Tensor:
        """A Python number; one object is one operand of a recording, however often it is used."""
        if type(value) is not float:
            return super().scalar(value, dtype)
        recording = local.recording
        if recording is None:
            return super().scalar(value, dtype)
        key = (id(value), dtype)
        found = self._literals.get(key) or recording.numbers.get(key)
        if found is None:
            recurs = (value, dtype) in self._numbers  # as a literal does
            array = super().scalar(value, dtype)._value
            x = Tensor(self, array, None, (), dtype)
            x._entry = self.kind((), dtype, CONSTANT)
            found = recording.numbers[key] = (x, value)  # the number is kept, so its id stays its own
            if recurs:
                if len(self._literals) > _MOST_LITERALS:
                    self._literals.clear()
                self._literals[key] = found
        return found[0]

    def _scalar(self, value: complex, dtype: DType) -> Tensor:
        x = super()._scalar(value, dtype)
        x._entry = self.kind((), dtype, CONSTANT, scalar=True)
        return x

    def requires(self, dtype: DType, where: str) -> None:
        self.xla.requires(dtype, where)

    # --- observing

    def host(self, value: Any) -> np.ndarray[Any, Any]:
        resume()
        return self.xla.host(value)

    def jax_array(self, value: Any) -> Any:
        return self.xla.jax_array(value)

    def detach(self, x: Tensor) -> Tensor:
        if type(x._entry) is Token or not isinstance(x._value, jax.core.Tracer):
            return x
        return Tensor(self, jax.lax.stop_gradient(x._value), None, x._shape, x._dtype)  # JAX may be differentiating

    constant = detach

    def unfused(self, x: Tensor) -> Tensor:
        """`x` for an op whose other inputs are on the same hardware without fusion: that op runs at once."""
        return Tensor(self.xla, x._value, None, x._shape, x._dtype)

    def array_of(self, token: Token) -> Any:
        """The array of a recorded tensor."""
        recording = token.recording
        if local.recording is recording:
            self.end(recording)
        if token.array is None:  # recorded in another thread, or its run failed
            plan = self.plan(recording.state, recording.x64, (), (token.place,))
            token.array = concrete(recording, lambda: one_by_one(self, recording, plan))[0]
        return token.array

    def context_of(self, token: Token, x: Tensor) -> AnyNode:
        """The tape's context of a recorded tensor."""
        recording = token.recording
        if local.recording is recording:
            self.end(recording)
        if token.context is None:  # recorded in another thread, or its run failed
            tracked = recording.state.tracks(token.place)
            token.context = (
                Part(snapshot(recording, token.place), token.place, x._shape, x._dtype)
                if tracked
                else Leaf(x._shape, x._dtype)
            )
        found: AnyNode = token.context
        return found

    def end(self, recording: Recording) -> None:
        """Run what was recorded."""
        if local.recording is recording:
            local.recording = None
        if recording.tokens is None:
            return
        plan, tokens = self._close(recording)
        if not tokens:
            return
        if local.ends:
            _count_end()
        made: dict[int, AnyNode] = {}
        if plan.followed:
            arrays = concrete(recording, lambda: self._run_taped(recording, plan, made))
        elif plan.count > 1 and self.compiler.ready(plan, recording.x64, self._build_forward):
            arrays = concrete(recording, lambda: self._call(plan, recording))
            gained(plan)
        else:
            arrays = concrete(recording, lambda: one_by_one(self, recording, plan))
            weigh(plan, taped=False)
        self._settle(recording, plan, tokens, arrays, made)

    def pull(self, x: Tensor, release: bool) -> Swept | None:
        """Gradients of a recorded result, at the end of its recording; None if backward must walk the tape."""
        token = x._entry
        recording, place = token.recording, token.place
        if local.recording is not recording or not recording.state.tracks(place):
            return None
        local.recording = None
        plan, tokens = self._close(recording, (place,))
        if local.ends:
            _count_end()
        if release:
            recording.released += (place,)
        made: dict[int, AnyNode] = {}
        if self.compiler.ready(plan, recording.x64, self._build_backward):
            arrays = concrete(recording, lambda: self._call(plan, recording))
            found = self._swept(recording, plan, arrays, release)
            gained(plan)
        else:
            gradients: list[Any] = []
            arrays = concrete(recording, lambda: replay(self, recording, plan, made, gradients, release))
            found = gradients[-1]
            weigh(plan)
        self._settle(recording, plan, tokens, arrays, made)
        return found

    def pull_recorded(
        self, recording: Recording, g: dict[int, Tensor], release: bool, found: Swept
    ) -> list[tuple[AnyNode, Any, bool]]:
        """The cotangents that a recording which has ended sends on, from those of its results."""
        roots = tuple(sorted(g))
        if any(is_consumed(recording, p) for p in roots):
            refuse_consumed(recording.state.op, g[roots[0]]._shape, user_place())
        if release:
            recording.released += roots
        watched, kept = tuple(sorted(recording.retained)), recording.kept
        plan = self._plan_beyond(recording.state, recording.x64, roots, kept, watched)
        cotangents = [g[p] for p in roots]
        pieces = self._pulled(recording, plan, cotangents)
        if not recording.tape.functional:
            found.origins.append(Origins(plan, recording))
        nodes: list[AnyNode] = [
            recording.knowns[plan.where[i]]._context if i >= 0 else Leaf(*type, id=recording.retained[~i])
            for i, type in plan.reached
        ]
        if release:
            released(recording, plan)
        return list(zip(nodes, pieces, plan.behind, strict=True))

    def _pulled(self, recording: Recording, plan: Plan, cotangents: Sequence[Tensor]) -> list[Tensor]:
        knowns = [recording.knowns[i] for i in plan.where]
        inputs = [x._value if taped else x for x, taped in zip(knowns, plan.on_tape, strict=True)]
        plain = tracing.get() is None and all([c._backend is self for c in cotangents])  # noqa: C419
        if not plain:
            if tracing.get() is None and (program := written_plan(plan, recording)) is not None:
                saved = [Tensor(self, recording.saved[p], None, *plan.types_at[p]) for p in plan.reads_saved]
                return program.play([*inputs, *cotangents, *saved])
            return plan.gradients(inputs, cotangents)[1]
        arrays = [x._value for x in (*inputs, *cotangents)]
        if all([type(a) in ARRAYS for a in arrays]):  # noqa: C419
            if plan.met == 0:
                self.compiler.expect(plan, recording.recurs)
            if self.compiler.ready(plan, recording.x64, self._build_backward):
                arrays += [recording.saved[p] for p in plan.reads_saved]
                results = concrete(recording, lambda: self._in_mode(recording, plan.call, arrays))
                return [Tensor(self, a, None, *type) for a, (_, type) in zip(results, plan.reached, strict=True)]
            self.compiler.counts.runs["op by op"] += 1
        with immediate(recording.x64, apart=False):
            return plan.gradients(inputs, cotangents)[1]

    def sweep(
        self,
        seeds: Sequence[tuple[AnyNode, Tensor]],
        outputs: Sequence[Tensor],
        release: bool,
        behind: Sequence[int] = (),
    ) -> Swept:
        """Run the rules of a tape that is not in the recording, and compute the gradients."""
        based = outputs and all([x._backend is self for x in outputs])  # noqa: C419  # a list is quicker
        plain = [is_recorded(node) or (based and not is_python(node)) for node, _ in seeds]
        if local.at_once or all(plain):  # else rules of rules, or of the user's, which are worth recording
            for _, g in seeds:
                if g._backend is self:
                    g._value  # noqa: B018  # which may end a recording
            with immediate(dtypes.x64_enabled(), apart=False):
                found = sweep(seeds, release, self.pulls, behind)
            resume()
            return found
        found = (None if behind else sweep_again(self, seeds, release)) or sweep(seeds, release, behind=behind)
        if local.recording is not None and any(g._backend is self for g in found.gradients.values()):
            self.end(local.recording)
        return found

    # --- the end of a recording

    def _close(self, recording: Recording, roots: tuple[int, ...] = ()) -> tuple[Plan, list[Token]]:
        """What to do with a recording that ends, and the tokens of the results that somebody holds."""
        tokens = referenced(recording.tokens)
        live = tuple([t.place for t in tokens])
        below: tuple[int, ...] = ()
        if recording.more:
            more = referenced(recording.more)
            below = tuple([t.place for t in more])
            tokens += more
        recording.tokens = recording.more = recording.places = None
        return self.plan(recording.state, recording.x64, live, below, roots), tokens

    def plan(self, state: State, x64: bool, *ends: Any, **named: Any) -> Plan:
        """The plan of a structure that ends as the further arguments of `Plan` say."""
        plans = state.plans
        key = (ends, *named.values(), is_guarded(), is_strict(), x64)
        plan = plans.get(key)
        if plan is None:
            plan = plans[key] = Plan(state, *ends, **named)
            plan.key = key
            self.compiler.keep(plan)
        return plan

    def _plan_beyond(
        self, state: State, x64: bool, roots: tuple[int, ...], kept: tuple[int, ...], watched: tuple[int, ...] = ()
    ) -> Plan:
        """The plan of the backward of a recording that has ended."""
        return self.plan(state, x64, roots=roots, seeded=True, watched=watched, kept=kept)

    def _call(self, plan: Plan, recording: Recording) -> Any:
        return self._in_mode(recording, plan.call, plan.arrays(recording.knowns))

    def _in_mode(self, recording: Recording, call: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        if recording.x64 != dtypes.x64_enabled():
            with jax.enable_x64(recording.x64):
                return call(*arrays)
        return call(*arrays)

    def _build_forward(self, plan: Plan) -> Any:
        if plan.followed:
            plan.save(self)
        return self._jit(plan.evaluator())

    def _with_backward(self, plan: Plan, x64: bool) -> Plan | None:
        """The backward that a structure is likely to have, compiled, lest it run op by op, with its forward once more."""
        if not plan.pulled or plan.guarded:
            return None
        backward = self._plan_beyond(plan.state, x64, tuple(sorted(plan.pulled.copy())), plan.saved)
        self.compiler.compile(backward, x64, self._build_backward)
        return backward

    def _build_backward(self, plan: Plan) -> Any:
        return self._jit(plan.backward(self))

    def _jit(self, fn: Callable[..., Any]) -> Any:
        fn.__name__ = fn.__qualname__ = STRUCTURE
        return jax.jit(fn, in_shardings=self.sharding, compiler_options=_EXACT)

    def _run_taped(self, recording: Recording, plan: Plan, made: dict[int, AnyNode]) -> Any:
        """The live results, some with a tape that goes on: the recording is a node of it, or each op has its own."""
        if plan.count == 1:
            if self.compiler.recurs(plan):
                return one_by_one(self, recording, plan)
        elif self.compiler.ready(plan, recording.x64, self._build_forward, self._with_backward):
            recording.recurs = plan.met > 1
            gained(plan)
            arrays = self._call(plan, recording)
            if plan.saved:
                recording.kept = plan.saved
                recording.saved = plan.saved_of(arrays)
            return arrays
        weigh(plan)
        return replay(self, recording, plan, made)

    def _settle(
        self, recording: Recording, plan: Plan, tokens: list[Token], arrays: Any, made: dict[int, AnyNode]
    ) -> None:
        """Give the tokens their arrays and their contexts; they let go of the recording, which may be a node now."""
        ended = self.ended
        if plan.cuts:
            for token, (at, tracked, taped) in zip(tokens, plan.results, strict=True):
                if taped and not tracked:
                    token.context = self._constant_context(recording, plan, at)
        followed: Any = {}
        if plan.followed:
            followed = made or become_node(recording, plan)
        for token, (at, tracked, _) in zip(tokens, plan.results, strict=True):
            token.array = arrays[at]
            if tracked:
                token.context = followed[token.key]
            token.recording = ended

    def _constant_context(self, recording: Recording, plan: Plan, at: int) -> Leaf:
        shape, dtype = plan.types[at]
        if recording.tape.functional:
            return Leaf(shape, dtype)
        origins = origins_of(plan, summary([recording.knowns[i] for i in plan.where]))[0]
        return Leaf(shape, dtype, origins=origins.get(plan.live[at], ()))

    def _swept(self, recording: Recording, plan: Plan, results: Any, release: bool) -> Swept:
        """The gradients an executable returned, by node."""
        gradients: dict[int, Any] = {}
        knowns = recording.knowns
        at = len(plan.live)
        for i, (shape, dtype) in plan.reached:
            node = knowns[plan.where[i]]._context
            if type(node) is not Leaf or node.id in gradients:
                return self._swept_on(recording, plan, results, release)
            g = gradients[node.id] = _new(Tensor)
            g._backend, g._known_value, g._known_context, g._entry = self, results[at], None, None
            g._shape, g._dtype = shape, dtype
            at += 1
        return Swept(gradients, [] if recording.tape.functional else [Origins(plan, recording)], set())

    def _swept_on(self, recording: Recording, plan: Plan, results: Any, release: bool) -> Swept:
        """The same where the tape goes on behind some of the tensors from outside."""
        seeds = [
            (recording.knowns[plan.where[i]]._context, Tensor(self, g, None, *type))
            for (i, type), g in zip(plan.reached, results[len(plan.live) :], strict=True)
        ]
        behind = [node.id for (node, _), guards in zip(seeds, plan.behind, strict=True) if guards]
        found = self.sweep(seeds, [g for _, g in seeds], release, behind)
        if not recording.tape.functional:
            found.origins.append(Origins(plan, recording))
        return found


def _count_end() -> None:
    place = user_place()
    for counter in local.ends:
        counter[place] += 1


@lru_cache
def _fused(xla: Xla) -> Fusion:
    return Fusion(xla)


def _end() -> None:
    if local.recording is not None:
        local.recording.fusion.end(local.recording)


FUSED.append(_fused)
dtypes.BEFORE_SWITCH.append(_end)
