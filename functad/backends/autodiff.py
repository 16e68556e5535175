"""The Autodiff decorator: compute one level down, and record a node for backward."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from functad.backends.fusion_record import record_on
from functad.device import DECORATORS, Device, GradientCheckpointing
from functad.dispatch import base_backend, bind, pending, run_closed, tracing
from functad.dtypes import is_inexact
from functad.errors import DTypeError, LevelError, NotALeafError, NotTrackedError, ShapeError
from functad.gradients import Gradients
from functad.levels import BASE, Level, _unrecorded
from functad.ops.op import KEEP, MIXED, TYPE, Cost, Op, Plan, Type
from functad.ops.operand import operand
from functad.ops.rules import broadcast
from functad.ops.transfer import cut_op, stop_gradient
from functad.source import OURS
from functad.tape import AnyNode, Cut, Leaf, Leaves, Node, Origin, Part, Requirement, depends_on, fresh_id
from functad.tensor import Tensor

OVER: list[Callable[[Any, Tensor], None]] = []
"""How a tape over another level begins to record its ops; see `fusion_nested`."""

_MOST_ORIGINS = 8
_MOST_RECOMPUTED = 8  # ops in a row
_new = object.__new__
_frame = sys._getframe


class Autodiff:
    """A tape at one level, over whatever backend the values below it have.

    A functional transform makes a fresh one and closes it; tensors on an autodiff device share
    one per level and strategy, found by `at`.
    """

    is_tape = True
    fuses = False
    records = True  # whether devices that fuse may record its ops
    nested: Any = None  # the recording of a tape that does not lie directly on a device
    was_read = False  # whether a value was taken off a tensor of it, so that what follows from that is a constant

    def __init__(self, level: Level, strategy: GradientCheckpointing = GradientCheckpointing.DISABLED):
        self.level = level
        self.strategy = strategy
        self.balanced = strategy is GradientCheckpointing.BALANCED
        self.functional = level[1] == 0  # belongs to a transform, not to a device
        self.closed = False

    @staticmethod
    @lru_cache
    def at(level: Level, strategy: GradientCheckpointing) -> Autodiff:
        """The tape of autodiff devices at `level`."""
        return (HigherAutodiff if level[1] > 1 else Autodiff)(level, strategy)

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Compute `op` on the values below, and record it if an input is tracked."""
        x = inputs[0]
        if not pending.at_once and (x._entry or (x._known_value if x._backend is self else x)._backend.fuses):
            deferred = record_on(self, op, inputs, params)
            if deferred is not None:
                return deferred
        lowered: Any
        contexts: Any
        below = None
        try:
            if len(inputs) == 2:  # written out, as are other things below: every op that is recorded comes by here
                y = inputs[1]
                if x._backend is self:
                    a, c = x._known_value, x._known_context
                    tracked = 2 + c.tracked  # one bit per input, under a leading 1
                else:
                    a, c, tracked = x, None, 2
                if y._backend is self:
                    b, d = y._known_value, y._known_context
                    tracked += tracked + d.tracked
                else:
                    b, d = y, None
                    tracked += tracked
                lowered, contexts = (a, b), (c, d)
                if a._backend is b._backend and tracing.get() is None:
                    below = a._backend
            elif len(inputs) == 1 and x._backend is self:
                a, c = x._known_value, x._known_context
                tracked = 2 + c.tracked
                lowered, contexts = (a,), (c,)
                if tracing.get() is None:
                    below = a._backend
            else:
                lowered, contexts, tracked = self._parts(inputs)
        except AttributeError:  # an input is recorded and has not run
            lowered, contexts, tracked = self._parts(inputs)
        if tracked == 1 << len(inputs) or self.level[0] <= _unrecorded.get():
            return self._untracked(bind(op, lowered, params), contexts)
        plan = op.plans.get(tracked) or op.plan(tracked)
        if plan.recorded is not None:
            op = plan.recorded
            out = op.apply(lowered, params)
            plan = plan.of_recorded()  # what it keeps is known once it has run
            return self._record_parts(op, params, lowered, contexts, plan, out[: op.visible], out[op.visible :])
        out = bind(op, lowered, params) if below is None else below.run(op, lowered, params)
        if type(out) is tuple:
            if plan.smooth:
                return self._record_parts(op, params, lowered, contexts, plan, out, out)
            return self._untracked(out, contexts)
        dtype = out._dtype
        if not plan.smooth or not is_inexact(dtype):
            return self._untracked(out, contexts)
        shape = out._shape
        if self.balanced or plan.simple is None or contexts.count(None) != plan.constants:
            node = self._node(op, params, lowered, contexts, plan, out, shape, dtype)
        else:
            leaves: Any = None
            for context in contexts:
                if context is not None:
                    if leaves is None:
                        leaves = context.leaves
                    elif context.leaves is not leaves:
                        leaves = (leaves, context.leaves)  # shared, not copied
            simple = plan.simple
            if simple == MIXED and len(inputs) == 2:
                first, second = plan.actions
                kept = ((lowered if first == KEEP else contexts)[0], (lowered if second == KEEP else contexts)[1])
            elif simple == MIXED:
                kept = tuple([x if keep == KEEP else c for x, c, keep in zip(lowered, contexts, plan.actions)])  # noqa: B905
            else:
                kept = lowered if simple == KEEP else contexts
            node = _new(Node)
            node.id = fresh_id()
            node.op = op
            node.params = params
            node.parents = contexts
            node.inputs = kept
            node.out = out if plan.keeps_out else None
            node.shape = shape
            node.dtype = dtype
            node.leaves = leaves
            frame = _frame(3)  # past bind, the op and Tensor's operator
            while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
                frame = frame.f_back
            node.where = frame.f_code, frame.f_lasti
        made = _new(Tensor)
        made._backend, made._known_value, made._known_context = self, out, node
        made._shape, made._dtype, made._entry = shape, dtype, None
        return made

    def _parts(self, inputs: Sequence[Tensor]) -> tuple[Any, Any, int]:
        """The inputs one level down, their contexts, and a bit for each that is tracked, under a leading 1."""
        lowered = tuple([x._value if x._backend is self else x for x in inputs])
        contexts = tuple([x._context if x._backend is self else None for x in inputs])
        tracked = 1
        for context in contexts:
            tracked += tracked if context is None else tracked + context.tracked
        return lowered, contexts, tracked

    def _record_parts(
        self,
        op: Op,
        params: tuple[Any, ...],
        lowered: tuple[Any, ...],
        contexts: tuple[AnyNode | None, ...],
        plan: Plan,
        outs: tuple[Any, ...],
        saved: tuple[Any, ...],
    ) -> Any:
        """Wrap several outputs, each a part of one node; `saved` is what stands for the output in the rule."""
        types = tuple([Type(o._shape, o._dtype) for o in outs])
        node = self._node(op, params, lowered, contexts, plan, saved, types, None)
        return tuple(
            [
                Tensor(self, o, Part(node, i, *t), *t) if is_inexact(t.dtype) else self._untracked(o, contexts)
                for i, (o, t) in enumerate(zip(outs, types, strict=True))
            ]
        )

    def _node(
        self,
        op: Op,
        params: tuple[Any, ...],
        lowered: tuple[Any, ...],
        contexts: tuple[AnyNode | None, ...],
        plan: Plan,
        out: Any,
        shape: Any,
        dtype: Any,
    ) -> Node:
        """A node with what its rule needs and where it came from."""
        depth = 0
        if self.balanced and op.cost is Cost.MEMORY and dtype is not None:
            depth = 1 + max([c.depth for c in contexts if type(c) is Node], default=0)
        recompute = 0 < depth < _MOST_RECOMPUTED  # a chain is kept at intervals, or backward would hold all of it again
        parents: list[AnyNode | None] = []
        kept: list[Any] = []
        leaves: Any = None
        origins: tuple[Origin, ...] | None = None
        i = 0
        for wanted, action in zip(plan.wanted, plan.actions):  # noqa: B905  # equally long, and this is the hot path
            parent: Any = contexts[i]
            if wanted:
                if leaves is None:
                    leaves = parent.leaves
                elif leaves is not parent.leaves:
                    leaves = (leaves, parent.leaves)  # shared, not copied
            elif parent is not None:
                if not self.functional:
                    origins = _origins([parent], origins or ())
                parent = None
            parents.append(parent)
            if action == KEEP or recompute:
                kept.append(parent if type(parent) is Node and parent.recompute else lowered[i])
            elif action == TYPE and parent is None:
                kept.append(Type(lowered[i]._shape, lowered[i]._dtype))
            else:
                kept.append(parent)
            i += 1  # noqa: SIM113  # enumerate over zip costs a tuple more
        made = out if plan.keeps_out and not recompute else None
        node = Node(op, params, tuple(parents), tuple(kept), made, shape, dtype, leaves, origins, recompute)
        if recompute:
            node.depth = depth
        return node

    def _untracked(self, out: Any, contexts: Sequence[AnyNode | None]) -> Any:
        """Wrap `out` as a constant, which remembers where it came from."""
        if type(out) is tuple:
            return tuple([self._untracked(o, contexts) for o in out])
        if self.functional:
            leaf = Leaf(out._shape, out._dtype)
        else:
            kind = "detach" if is_inexact(out._dtype) else "int"
            cuts = tuple([Cut(kind, c.leaves) for c in contexts if c is not None and c.tracked])
            leaf = Leaf(out._shape, out._dtype, origins=_origins(contexts, cuts))
        return Tensor(self, out, leaf, out._shape, out._dtype)

    def lift(self, x: Tensor) -> Tensor:
        """`x` as a constant of this tape."""
        return Tensor(self, x, Leaf(x._shape, x._dtype), x._shape, x._dtype)

    def leaf(self, x: Tensor) -> Tensor:
        """`x` as a leaf of this tape whose gradient is wanted."""
        if (self.level[0] > 1 or x._backend.level != BASE) and self.functional and self.records:
            OVER[0](self, x)
        made = Tensor(self, x, Leaf(x._shape, x._dtype, Requirement.GRAD), x._shape, x._dtype)
        if (entry := x._entry) is not None:
            made._entry = entry.leaf
        return made

    def device(self, x: Tensor) -> Device:
        inner = x._value.device
        return inner if self.functional else Device(inner.base, inner.order + 1, self.strategy)

    def close(self) -> None:
        """End the transform: its tensors are constants from now on."""
        self.closed = True
        self.is_tape = False
        self.run = run_closed  # type: ignore[method-assign]  # costs the open tape nothing
        if self.nested is not None:
            self.nested.close()
            self.nested = None

    def resolve(self, x: Tensor) -> Tensor | None:
        return x._value if self.closed else None

    def moves(self, x: Tensor) -> bool:
        return not self.closed and bool(x._context.tracked)

    def constant(self, x: Tensor) -> Tensor:
        return x._value.without_autodiff()

    def require_grad(self, x: Tensor, flag: bool) -> Tensor:
        """A handle of the same leaf that requires grad, or does not."""
        context = x._context
        if type(context) is not Leaf:
            raise NotALeafError(
                "require_grad: this tensor is an intermediate, computed from tensors that require grad. To read its "
                "gradient use x.retain_grad(); to cut it off as a new leaf use x.detach().require_grad()."
            )
        value = x._value
        if isinstance(value._backend, Autodiff) and not value._backend.functional and self.level[1] > 1:
            value = value.set_require_grad(flag)
        requirement = Requirement.GRAD if flag else Requirement.NONE
        if requirement is context.requirement:
            return x
        leaf = Leaf(x._shape, x._dtype, requirement, context.origins, context.id)
        return Tensor(self, value, leaf, x._shape, x._dtype)

    def detach(self, x: Tensor) -> Tensor:
        """`x` without its history; a leaf that requires grad becomes a new one that does."""
        entry = x._entry
        if entry is not None and entry.recorded and not self.closed and (entry.deferred or tracing.get() is None):
            return bind(cut_op, (x,))  # of an inner tape, what takes every op would take a tensor from below
        context = x._context
        value = stop_gradient(x._value) if self.functional else x._value.detach()
        requirement = Requirement.NONE
        origins: tuple[Origin, ...] = ()
        if not self.functional:
            if context.requirement is Requirement.GRAD:
                requirement = Requirement.GRAD
            origins = (Cut("detach", context.leaves),) if context.tracked else _origins([context])
        return Tensor(self, value, Leaf(x._shape, x._dtype, requirement, origins), x._shape, x._dtype)

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> Gradients:
        """Sweep from `x`; its gradients live one level down."""
        if self.closed:
            return x._value.backward(cotangent, retain_graph)
        if self.functional:
            raise LevelError(
                "backward(): this tensor belongs to a functional transform (grad, vjp, ...) that is still open, and "
                "backward() would have to differentiate an outer tape through it. Return the loss and let the "
                "transform differentiate it, or put inputs on a tape of their own inside: x.autodiff().require_grad()."
            )
        if cotangent is None:
            if x._dtype.kind == "c":
                raise DTypeError(
                    f"backward(): the tensor is {x._dtype}, which has no order to go down in. Write z.real.backward() or "
                    "z.abs().backward() for what is to become small, z.backward(cotangent) for another combination, or "
                    "fd.grad(fn, holomorphic=True)."
                )
            if (found := self._deferred(x, not retain_graph)) is not None:
                return found
        if not x._context.tracked:
            raise NotTrackedError(
                "backward() requires a tracked autodiff tensor, and no leaf that requires grad reaches this one; call "
                "x.autodiff().require_grad() on the source leaf before computing the output. (For a second derivative make "
                "the leaf on device.autodiff(order=2); what no_grad() or detach() made is not tracked.)"
            )
        if cotangent is None:
            seed = broadcast(operand(1, x._value, x._dtype), x._shape)
        else:
            seed = _checked_cotangent(cotangent, x)
        return self._sweep(x, seed, release=not retain_graph)

    def gradients(self, x: Tensor) -> Gradients:
        """The gradients of a scalar with respect to the leaves of this tape; none if it has none."""
        if x._backend is self and (found := self._deferred(x, release=False)) is not None:
            return found
        if x._backend is not self or not x._context.tracked:
            return Gradients(self.level, {}, [])
        return self._sweep(x, operand(1, x._value, x._dtype), release=False)

    def _deferred(self, x: Tensor, release: bool) -> Gradients | None:
        """The gradients of a tensor whose op has not run yet, by the structure of the whole."""
        entry = x._entry
        if entry is None or not entry.recorded:
            return None
        found = entry.pull(x, release)
        return None if found is None else Gradients.of(self.level, found)

    def _sweep(self, x: Tensor, seed: Tensor, release: bool) -> Gradients:
        found = base_backend(x).sweep([(x._context, seed)], [x._value], release)
        return Gradients.of(self.level, found)


class HigherAutodiff(Autodiff):
    """The tape of an order above 1: its gradients are on the tape below, with respect to the same leaves."""

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Compute and record `op`, and note what is tracked below but a constant here."""
        out = super().run(op, inputs, params)
        mixed = [y for x in inputs if (y := self._tracked_below(x)) is not None]
        if mixed:
            context = (out[0] if type(out) is tuple else out)._context
            node = context.parent if type(context) is Part else context
            if node.tracked:
                node.mixed = mixed
        return out

    def _tracked_below(self, x: Tensor) -> Tensor | None:
        if x._backend is self:
            if x._context.tracked:
                return None
            x = x._value
        if not x._backend.level[1]:
            return None
        return x if (x._entry.tracked(x) if _is_deferred(x) else x._context.tracked) else None

    def lift(self, x: Tensor) -> Tensor:
        """`x` as a constant; it keeps its number, by which both tapes know the same leaf."""
        id = x._context.id if x._backend.level[1] and not _is_deferred(x) else None
        return Tensor(self, x, Leaf(x._shape, x._dtype, id=id), x._shape, x._dtype)

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> Gradients:
        """Sweep from `x`, unless a gradient in it would count as a constant."""
        mixed: list[Leaves] = []
        reached: list[int] = []
        seen: set[int] = set()
        stack = [x._context]
        while stack:
            node = stack.pop()
            if node is None or node.id in seen or not node.tracked:
                continue
            seen.add(node.id)
            if type(node) is Leaf:
                reached.append(node.id)
            else:
                stack += [node.parent] if type(node) is Part else node.parents
                mixed += [y._context.leaves for y in node.mixed]
        if any(depends_on(tuple(mixed), leaf) for leaf in reached):
            raise LevelError(
                "backward(): this tensor of order 2 was computed with a gradient, or with what follows from one, which is "
                "tracked one level down with respect to the same leaf; here it would count as a constant, and its part of "
                "the derivative would be lost. For the whole derivative write loss.inner().backward(); to leave that part "
                "out, use g.detach() for the gradient g."
            )
        return super().backward(x, cotangent, retain_graph)


def _is_deferred(x: Tensor) -> bool:
    return x._entry is not None and x._entry.deferred


def _origins(contexts: Sequence[AnyNode | None], before: tuple[Origin, ...] = ()) -> tuple[Origin, ...]:
    """Where the constants among `contexts` came from: the most recent few, which bounds a running sum."""
    origins = before
    for c in contexts:
        if type(c) is Leaf and not c.tracked:
            origins += (c.id, *c.origins)
    return origins[-_MOST_ORIGINS:] if len(origins) > _MOST_ORIGINS else origins


def _checked_cotangent(cotangent: Any, x: Tensor) -> Tensor:
    g = operand(cotangent, x._value, where="backward(cotangent)")
    if g.shape != x.shape:
        raise ShapeError(
            f"backward(cotangent): the cotangent has shape {g.shape}, the tensor {x.shape}; pass one number per element "
            "of the tensor, or leave it out for ones."
        )
    if g.dtype.kind == "c" and x.dtype.kind != "c":
        raise DTypeError(f"backward(cotangent): the cotangent is {g.dtype}, the tensor {x.dtype}; pass a real one.")
    return operand(g, dtype=x._dtype)


def _lift(x: Tensor, level: Level, strategy: GradientCheckpointing) -> Tensor:
    return Autodiff.at(level, strategy).lift(x)


DECORATORS["autodiff"] = _lift
