"""One call of a function with derivative rules, as an op, and the forms that a tape or forward mode runs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from functad import dtypes, tree
from functad.backends.autodiff import Autodiff
from functad.backends.batch import Axes
from functad.backends.trace import Program
from functad.dispatch import Handle, base_tensor, bind, tracing
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    ConcreteValueError,
    DTypeError,
    LevelError,
    ShapeError,
    StructureError,
)
from functad.ops.op import Keep, Op, Residuals
from functad.ops.operand import operand
from functad.tape import sweep
from functad.tensor import Tensor
from functad.transforms.arguments import common_float, opened
from functad.transforms.captures import Same, frozen, likeness
from functad.transforms.python_op import (
    BatchedPython,
    Capture,
    Frame,
    Missing,
    PythonOp,
    capturing,
    is_smooth,
    paused,
    surroundings,
    take_apart,
    zeros_like,
)


class Call:
    """The arguments of one call, its tensors apart, and the structure of its result."""

    result: tree.Structure

    def __init__(self, name: str, signature: inspect.Signature | None, nondiff: frozenset[int], args: tuple[Any, ...]):
        self.name = name
        self.around = surroundings()
        self.signature = signature
        self.count = len(args)
        self.nondiff = frozenset(n for n in nondiff if n < len(args))
        self.structures: list[tree.Structure] = []  # of the arguments that are differentiable
        self.smooth: list[int] = []  # of the tensors, those in such arguments
        like = next((x for x in tree.leaves(args) if isinstance(x, Handle)), None)
        weak = common_float(tree.leaves(args))
        converted = []
        count = 0
        for i, arg in enumerate(args):
            if i in self.nondiff:
                converted.append(arg)
                count += sum(isinstance(x, Handle) for x in tree.leaves(arg))
                continue
            leaves, structure = tree.flatten(arg)
            leaves = [self._tensor(x, like, weak, i, structure, n) for n, x in enumerate(leaves)]
            converted.append(tree.unflatten(structure, leaves))
            self.structures.append(structure)
            self.smooth.extend(range(count, count + len(leaves)))
            count += len(leaves)
        self.tensors, self.frame = take_apart(tuple(converted))

    def _tensor(self, x: Any, like: Any, weak: Any, index: int, structure: tree.Structure, leaf: int) -> Any:
        try:
            return operand(x, like, weak if type(x) is float else None, where=self.name)
        except ArgumentTypeError:
            place = self.names[index] + tree.paths_of(structure)[leaf]
            raise ArgumentTypeError(
                f"{self.name}: argument {place} is {x!r} of type {type(x).__name__}, which is no tensor. If it is a "
                f"static argument, name it: nondiff_argnums=({index},)."
            ) from None

    @property
    def names(self) -> list[str]:
        """What the arguments are called."""
        return _names(self.signature, self.count)

    def by_argument(self) -> list[tuple[str, tree.Structure]]:
        """Name and structure of the differentiable arguments."""
        chosen = [name for i, name in enumerate(self.names) if i not in self.nondiff]
        return list(zip(chosen, self.structures, strict=True))

    def nondiff_args(self, tensors: dict[int, Any]) -> list[Any]:
        """The static arguments, from the tensors in them by number."""
        args = self.frame.fill([tensors.get(i) for i in range(len(self.tensors))])
        return [args[i] for i in sorted(self.nondiff)]

    def result_of(self, out: Any, capture: Capture, like: Any) -> list[Any]:
        """The leaves of a result as tensors one level down."""
        leaves, self.result = tree.flatten(out)
        try:
            return [capture.leave(operand(x, like, where=self.name)) for x in leaves]
        except ArgumentTypeError as error:
            raise ArgumentTypeError(f"{error} It is part of the result, which must be a pytree of tensors.") from None


def _names(signature: inspect.Signature | None, count: int) -> list[str]:
    names: list[str] = []
    for parameter in signature.parameters.values() if signature is not None else ():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
        else:
            names.append(parameter.name)
    return [*names, *map(str, range(len(names), count))][:count]


class CustomOp(PythonOp):
    """One call of a function with rules. Its inputs are the tensors of the arguments, then those from outside."""

    def __init__(self, call: Call, rules: tuple[Any, ...], closed: tuple[Tensor, ...]):
        super().__init__(call.name)
        self.call = call
        self.rules = rules
        self.fun, self.fwd, self.bwd, self.jvp = rules
        self.reverse_only = self.jvp is None
        self.closed = closed

    @property
    def likeness(self) -> Any:
        call, frame = self.call, self.call.frame
        fixed = tuple([likeness(x) for x in frame.fixed])
        closed = tuple(map(Same, self.closed))
        return likeness(self.rules), frame.structure, fixed, call.nondiff, tuple(call.smooth), closed

    def python(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        with capturing(inputs, self.closed, self, self.call.around) as (capture, tensors):
            out = self.fun(*self.call.frame.fill(tensors))
            return tuple(self.call.result_of(out, capture, _first(tensors)))

    def staged(self, program: Program) -> CustomOp:
        done: dict[int, Any] = {}
        return CustomOp(self.call, tuple(frozen(rule, done) for rule in self.rules), self.closed)

    def closing(self, tensors: Sequence[Tensor]) -> CustomOp:
        return CustomOp(self.call, self.rules, (*self.closed, *tensors))

    def recorded(self, tracked: tuple[bool, ...]) -> Op:
        self.check_static(tracked)
        if (trace := tracing.get()) is not None:
            trace.ruled = True
        return _FromVjp(self, tracked) if self.bwd is not None else _FromJvp(self, tracked)

    def joined(self, moving: tuple[bool, ...]) -> Op:
        self.check_static(moving)
        return _Joined(self, moving)

    def batched(self, axes: Axes) -> Op:
        return BatchedPython(self, axes)

    def check_static(self, moving: Sequence[bool]) -> None:
        """Refuse a derivative with respect to a static argument."""
        for i in set(range(len(self.call.tensors))) - set(self.call.smooth):
            if moving[i]:
                raise ArgumentError(
                    f"{self.name}: a static argument (nondiff_argnums) is a tensor that is being differentiated, and "
                    "its gradient would be lost. Make it an ordinary argument, for which bwd may return None, or pass "
                    "fd.stop_gradient of it."
                )

    def check_closed(self, capture: Capture, moving: Sequence[bool]) -> None:
        """Refuse a derivative with respect to a tensor from outside that was used."""
        for x, moves in zip(self.closed, moving[len(self.call.tensors) :], strict=True):
            if moves and id(x) in capture.touched:
                self.refuse_closed(x)

    def refuse_closed(self, x: Tensor) -> None:
        raise LevelError(
            f"{self.name}: the function or a rule of it uses a tensor ({x.dtype}{list(x.shape)}) from outside that is "
            "being differentiated, for which no rule gives a gradient. Pass it as an argument, or use fd.stop_gradient "
            "of it."
        )


class _Rule(PythonOp):
    """A form of a `CustomOp` that a tape or forward mode runs one level down, as plain code."""

    def __init__(self, op: CustomOp, moving: tuple[bool, ...]):
        super().__init__(op.name)
        self.op = op
        self.moving = moving

    def batched(self, axes: Axes) -> Op:
        return BatchedPython(self, axes)

    def split(self, inputs: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The tensors of the arguments, and those from outside."""
        count = len(self.op.call.tensors)
        return list(inputs[:count]), list(inputs[count:])


class _FromVjp(_Rule):
    """`fwd`, and `bwd` on what it saved."""

    residuals: Frame

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        op = self.op
        with paused(), capturing(inputs, op.closed, op, op.call.around) as (capture, tensors):
            out = op.fwd(*op.call.frame.fill(tensors))
            if not (isinstance(out, tuple) and len(out) == 2):
                raise StructureError(f"{op.name}: fwd must return a pair (result, residuals), got {_describe(out)}.")
            outs = op.call.result_of(out[0], capture, _first(tensors))
            saved, self.residuals = take_apart(out[1])
            saved = [capture.leave(x) for x in saved]
        op.check_closed(capture, self.moving)
        self.visible = len(outs)  # type: ignore[misc]  # an instance's own
        return (*outs, *saved)

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        static = set(range(len(tracked))) - set(self.op.call.smooth)
        return Keep(frozenset(static), frozenset(range(len(tracked))) - static, True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        op, call = self.op, self.op.call
        args, closed = self.split(res.inputs)
        static = [i for i in range(len(args)) if i not in call.smooth]
        given = [*[args[i] for i in static], *res.out, *g]
        try:
            with capturing([*given, *closed], op.closed, op, op.call.around) as (capture, tensors):
                nondiff = call.nondiff_args(dict(zip(static, tensors, strict=False)))
                saved = tensors[len(static) : len(static) + len(res.out)]
                cotangent = tree.unflatten(call.result, tensors[len(static) + len(res.out) :])
                found = op.bwd(*nondiff, self.residuals.fill(saved), cotangent)
                found = [None if c is None else capture.leave(c) for c in _cotangents(op, found, args, g[0])]
        except Missing as missing:
            op.refuse_closed(missing.tensors[0])
        op.check_closed(capture, self.moving)
        pieces: list[Any] = [None] * len(wanted)
        for i, c in zip(call.smooth, found, strict=True):
            pieces[i] = c if wanted[i] is not None else None
        return pieces


class _FromJvp(_Rule):
    """The function, and the transpose of its rule for forward mode."""

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        if tracing.get() is None and not any(x._moves() for x in inputs):
            outs = bind(self.op, inputs)
        else:  # what differentiates this again finds the result that the rule gives, as in forward mode
            with paused():
                found, _ = _push(self.op, *self.split(inputs), {}, self.moving)
            outs = tuple(found)
        self.visible = len(outs)  # type: ignore[misc]  # an instance's own
        return outs

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(range(len(tracked))), frozenset(), False)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        op = self.op
        args, closed = self.split(res.inputs)
        moving = [i for i in op.call.smooth if wanted[i] is not None]
        try:
            with opened(_Linear) as tape:
                tangents = {i: tape.leaf(zeros_like(args[i])) for i in moving}
                _, moved = _push(op, args, closed, tangents, self.moving)
                found = _transpose(moved, g, tape)
        except Missing as missing:
            op.refuse_closed(missing.tensors[0])
        return [found.get(tangents[i]._context.id) if i in tangents else None for i in range(len(wanted))]


class _Joined(_Rule):
    """Forward mode: the rule given for it, or the transpose of `bwd`."""

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        count = len(self.moving)
        args, closed = self.split(inputs[:count])
        numbers = [i for i, moves in enumerate(self.moving) if moves]
        tangents = dict(zip(numbers, inputs[count:], strict=True))
        with paused():
            if self.op.jvp is not None:
                outs, moved = _push(self.op, args, closed, tangents, self.moving)
            else:
                outs, moved = self._transposed(args, closed, tangents)
        pairs = zip(outs, moved, strict=True)
        return (*outs, *[zeros_like(o) if t is None else t for o, t in pairs])

    def _transposed(self, args: list[Any], closed: list[Any], tangents: dict[int, Any]) -> tuple[list[Any], list[Any]]:
        op = self.op
        rule = _FromVjp(op, self.moving)
        both = rule.apply([*args, *closed], ())
        outs, saved = list(both[: rule.visible]), both[rule.visible :]
        with opened(_Linear) as tape:
            seeds = [tape.leaf(zeros_like(o)) if is_smooth(o) else zeros_like(o) for o in outs]
            pieces = rule.pull(tuple(seeds), Residuals([*args, *closed], tuple(saved), ()), [*args, *closed])
            found = _transpose([pieces[i] for i in tangents], list(tangents.values()), tape)
        return outs, [found.get(s._context.id) if s._backend is tape else None for s in seeds]


def _push(
    op: CustomOp, args: list[Any], closed: list[Any], tangents: dict[int, Any], moving: Sequence[bool]
) -> tuple[list[Any], list[Any]]:
    """The results of the rule for forward mode, and their tangents (None for zero)."""
    call = op.call
    numbers = list(tangents)
    with capturing([*args, *tangents.values(), *closed], op.closed, op, op.call.around) as (capture, tensors):
        primals = list(call.frame.fill(tensors[: len(args)]))
        moved = dict(zip(numbers, tensors[len(args) :], strict=True))
        leaves = [
            moved.get(i, zeros_like(args[i]) if i in call.smooth and is_smooth(args[i]) else None)
            for i in range(len(args))
        ]
        directions = list(call.frame.fill(leaves))
        static = [primals[i] for i in sorted(call.nondiff)]
        chosen = [i for i in range(len(primals)) if i not in call.nondiff]
        out = op.jvp(*static, tuple(primals[i] for i in chosen), tuple(directions[i] for i in chosen))
        if not (isinstance(out, tuple) and len(out) == 2):
            raise StructureError(f"{op.name}: the jvp rule must return a pair (result, tangent), got {_describe(out)}.")
        outs = call.result_of(out[0], capture, _first(tensors))
        found = _parts(call.result, out[1], f"{op.name}: the tangent that the jvp rule returned", "result")
        results = [
            None if t is None or not is_smooth(o) else capture.leave(_vector(t, o, f"{op.name}: the tangent"))
            for o, t in zip(outs, found, strict=True)
        ]
    op.check_closed(capture, moving)
    return outs, results


def _transpose(outs: Sequence[Any], cotangents: Sequence[Any], tape: Autodiff) -> dict[int, Any]:
    """Send cotangents back through what a linear map gave; by the ids of its inputs."""
    ends = [
        (o._context, c)
        for o, c in zip(outs, cotangents, strict=True)
        if o is not None and o._backend is tape and o._context.tracked
    ]
    return sweep(ends, release=True).gradients


class _Linear(Autodiff):
    """The tape that transposes a linear map, at no particular point: values of its tensors mean nothing."""

    def refuse_value(self, x: Tensor, what: str) -> None:
        if x._context.tracked:
            raise ConcreteValueError(
                f"{what}: the value of a tangent or cotangent was read while its rule was transposed to derive the "
                "other mode. Write the rule with functad functions, or give both rules: .defvjp(fwd, bwd) and "
                ".defjvp(jvp)."
            )


def _cotangents(op: CustomOp, found: Any, args: Sequence[Any], like: Any) -> list[Any]:
    """What bwd returned, for each tensor of the differentiable arguments; None for zero."""
    arguments = op.call.by_argument()
    names = ", ".join(name for name, _ in arguments)
    if isinstance(found, list):
        found = tuple(found)
    if not isinstance(found, tuple) or len(found) != len(arguments):
        raise StructureError(
            f"{op.name}: bwd must return a tuple with one cotangent for each of the {len(arguments)} differentiable "
            f"argument(s) ({names}), got {_describe(found)}."
        )
    types = iter([args[i] for i in op.call.smooth])
    out = []
    for c, (name, structure) in zip(found, arguments, strict=True):
        what = f"{op.name}: the cotangent that bwd returned for argument {name!r}"
        parts = _parts(structure, c, what)
        for part, path in zip(parts, tree.paths_of(structure), strict=True):
            x = next(types)
            smooth = part is not None and dtypes.is_inexact(x.dtype)
            out.append(_vector(part, x, what + path, like) if smooth else None)
    return out


def _parts(structure: tree.Structure, values: Any, what: str, of: str = "argument") -> list[Any]:
    """The entries of a pytree at the leaves of a structure; a None stands for all leaves under it."""
    if values is None:
        return [None] * structure.num_leaves
    whole = tree.unflatten(structure, range(structure.num_leaves))
    try:
        return tree.spread(values, structure, whole, "it", what)
    except StructureError:
        found = tree.flatten(values)[1]
        raise StructureError(
            f"{what} has the structure {tree.shown(found)}, but the {of} has {tree.shown(structure)}."
        ) from None


def _vector(v: Any, x: Any, what: str, like: Any = None) -> Any:
    """A tangent or cotangent for `x`, which has its type."""
    if not isinstance(v, Handle):
        v = operand(v, x if like is None else like, x.dtype, where=what)
    if v._shape != tuple(x.shape):
        raise ShapeError(
            f"{what} has shape {v._shape}, but what it belongs to has shape {tuple(x.shape)}; they must be equal."
        )
    if v._dtype != x.dtype:
        raise DTypeError(f"{what} is {v._dtype}, but what it belongs to is {x.dtype}; write .astype('{x.dtype}').")
    return v


def _first(tensors: Sequence[Any]) -> Any:
    return base_tensor(tensors[0]) if tensors else None


def _describe(out: Any) -> str:
    return f"a {type(out).__name__}" + (f" of length {len(out)}" if isinstance(out, (tuple, list)) else "")
