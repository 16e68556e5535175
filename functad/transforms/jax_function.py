"""Programs as JAX functions, whose derivatives are functad's under every transform of JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp

from functad import dtypes
from functad.backends.batch import BatchedOp, batched
from functad.backends.forward import Forward
from functad.backends.staged import StagedOp
from functad.backends.trace import Equation, Program, open_trace
from functad.dispatch import bind
from functad.levels import deeper
from functad.ops.contract import contract_op, guarded_contract_op
from functad.ops.cumulative import recurrence_op
from functad.ops.op import Op, Type
from functad.ops.rules import guarded_mul, masked_mul, zero_mul
from functad.ops.scatter import scatter_set_op
from functad.transforms.control_ops import CondOp, ControlOp
from functad.transforms.jax_op import FLOAT0, Arrays, JaxOp, default_xla, still
from functad.transforms.python_op import StagedPython, over_rows


def unfolded(program: Program, base: Any) -> Program:
    """A program with those in it written out, but for the ones that have rules of their own."""
    with deeper() as level, open_trace(level, base, "to_jax") as trace:
        inputs = [trace.input(*program.types[i]) for i in program.inputs]
        return trace.program(program.run(*inputs, call=_unfold))


def _unfold(op: Op, inputs: Sequence[Any], params: Any) -> Any:
    inner = op
    while isinstance(inner, BatchedOp):
        inner = inner.op
    if not isinstance(inner, StagedOp) or (isinstance(inner, StagedPython) and not inner.transparent):
        return bind(op, inputs, params)
    if isinstance(op, BatchedOp):
        return over_rows(lambda rows: _unfold(op.op, rows, params), op.axes, inputs)
    return tuple(inner.program.run(*inputs, call=_unfold))


def differentiable_by_jax(program: Program) -> Callable[..., Arrays]:
    """A program as a JAX function whose derivatives are functad's."""
    return _by_vjp(program) if any(_reverse_only(eq.op) for eq in program.equations) else _by_jvp(program)


def _reverse_only(op: Op) -> bool:
    """Whether a rule for reverse mode alone is in `op`, which then need not be linear: JAX cannot transpose it."""
    while isinstance(op, BatchedOp):
        op = op.op
    if isinstance(op, (StagedPython, JaxOp)) and op.reverse_only:
        return True
    if isinstance(op, ControlOp):
        parts = [x for value in vars(op).values() for x in (value if isinstance(value, tuple) else (value,))]
        return any(_reverse_only(body) for body in parts if isinstance(body, StagedOp))
    return isinstance(op, StagedOp) and any(_reverse_only(eq.op) for eq in op.program.equations)


def _by_vjp(program: Program) -> Callable[..., Arrays]:
    """A program with functad's rules for reverse mode: its two halves."""

    @lru_cache(1)
    def halves() -> Any:  # not before it is differentiated: the first may contain the same rule again
        smooth = tuple([dtypes.is_inexact(program.types[i].dtype) for i in program.inputs])
        return StagedOp("to_jax", program, default_xla()).recorded(smooth)

    def forward(*arrays: Any) -> tuple[Arrays, Any]:
        half = halves()
        outs = differentiable_by_jax(half.program)(*arrays)
        return outs[: half.visible], ([arrays[i] for i in half.kept], outs[half.visible :])

    def backward(saved: Any, cotangents: Arrays) -> Arrays:
        op, moved, targets = halves().backward
        pieces = differentiable_by_jax(op.program)(*saved[0], *saved[1], *[cotangents[i] for i in moved])
        found = dict(zip(targets, pieces, strict=True))
        return tuple([found.get(i) for i in range(len(program.inputs))])

    call: Any = jax.custom_vjp(lambda *arrays: program.call(_run, arrays))
    call.defvjp(forward, backward)
    return call


def _by_jvp(program: Program) -> Callable[..., Arrays]:
    """A program with functad's rules for forward mode, in a form that JAX can transpose."""

    @jax.custom_jvp
    def call(*arrays: Any) -> Arrays:
        return program.call(_run, arrays)

    @call.defjvp
    def rule(primals: Arrays, tangents: Arrays) -> tuple[Arrays, Arrays]:
        moving = tuple([getattr(t, "dtype", None) != FLOAT0 for t in tangents])  # JAX may pass a Python float
        first, second, moved = _linearized(program, moving)
        count = len(program.outputs)
        both = differentiable_by_jax(first)(*primals)
        outs = both[:count]
        found = dict(
            zip(
                moved,
                second([*both[count:], *[jnp.asarray(t) for t, m in zip(tangents, moving, strict=True) if m]]),
                strict=True,
            )
        )
        return outs, tuple([found[i] if i in found else _zero_tangent(o) for i, o in enumerate(outs)])

    return call


def _run(op: Op, arrays: Sequence[Any], params: Arrays) -> Any:
    return op.impl(jnp, *arrays, **dict(zip(op.params, params, strict=True)))


def _zero_tangent(x: Any) -> Any:
    return jnp.zeros_like(x) if dtypes.is_inexact(x.dtype) else still(Type(x.shape, x.dtype))


def _linearized(
    program: Program, moving: tuple[bool, ...]
) -> tuple[Program, Callable[[Sequence[Any]], Arrays], list[int]]:
    """A program that returns its outputs and what its derivative needs, and that derivative.

    The derivative is linear in every step, so that JAX can transpose it; its last arguments are
    the tangents of the inputs that are `moving`, its results those of the outputs listed.
    """
    types = [program.types[i] for i in program.inputs]
    base = default_xla()
    with deeper() as level, open_trace(level, base, "to_jax") as trace:
        primals = [trace.input(*t) for t in types]
        tangents: list[Any] = [trace.input(*t) if m else None for t, m in zip(types, moving, strict=True)]
        with deeper() as above:
            forward = Forward(above)
            outs = program.run(*[forward.wrap(x, t) for x, t in zip(primals, tangents, strict=True)])
            forward.close()
        mine = [x._backend is forward for x in outs]
        values = [x._value if m else x for x, m in zip(outs, mine, strict=True)]
        found = [x._context if m else None for x, m in zip(outs, mine, strict=True)]
        moved = [i for i, t in enumerate(found) if t is not None]
        results: list[Any] = [found[i] for i in moved]
        joint = unfolded(trace.program([*values, *results]), base)
    tangent_inputs = joint.inputs[len(types) :]
    linear = set(tangent_inputs)
    equations: list[Equation] = []
    still: list[Equation] = []
    for eq in joint.equations:
        for part in _apart(eq, joint.types) if _moves(eq, linear) else [eq]:
            if _moves(part, linear):
                equations.append(part)
                linear.update(part.outputs)
            else:
                still.append(part)
    ends = joint.outputs[len(values) :]
    second = Program([], equations, ends, joint.types)
    equations = second.equations = second.needed(ends)
    made = {*tangent_inputs, *[o for eq in equations for o in eq.outputs]}
    used = [*[x for eq in equations for x in eq.inputs], *ends]
    kept = [x for x in dict.fromkeys(x for x in used if type(x) is int) if x not in made]
    second.inputs = [*kept, *tangent_inputs]
    first = Program(joint.inputs[: len(types)], still, [*joint.outputs[: len(values)], *kept], joint.types)
    first.equations = first.needed(first.outputs)
    return first, partial(second.call, _run_linear), moved


def _moves(eq: Equation, linear: set[int]) -> bool:
    return any(type(x) is int and x in linear for x in eq.inputs)


def _apart(eq: Equation, types: list[Type]) -> list[Equation]:
    """Of an op for values and tangents: one equation for the values, which keeps their rules, one for the tangents."""
    op, axes = eq.op, []
    while isinstance(op, BatchedOp):
        axes.append(op.axes)
        op = op.op
    if not isinstance(op, (ControlOp, JaxOp)) or op.primal is None:
        return [eq]
    primal = op.primal
    values = primal.op
    for each in reversed(axes):
        values = batched(values, tuple([each[i] for i in primal.inputs]))
    inputs = tuple([eq.inputs[i] for i in primal.inputs])
    outputs = list(eq.outputs)
    for i in primal.outputs:  # the second equation gives them too, under names that nobody reads
        types.append(types[eq.outputs[i]])
        outputs[i] = len(types) - 1
    return [
        Equation(values, eq.params, inputs, tuple([eq.outputs[i] for i in primal.outputs]), single=False),
        eq._replace(outputs=tuple(outputs)),
    ]


def _run_linear(op: Op, arrays: Sequence[Any], params: Arrays) -> Any:
    """An op of a derivative, in steps that JAX can transpose."""
    if isinstance(op, BatchedOp):
        return jax.vmap(lambda *rows: _run_linear(op.op, rows, params), in_axes=op.axes)(*arrays)
    if isinstance(op, StagedOp):
        return op.program.call(_run_linear, arrays)
    if isinstance(op, CondOp):
        return _choose_linear(op, arrays)
    if isinstance(op, ControlOp):
        return op.run(_run_linear, arrays)
    return _LINEAR[op](params, *arrays) if op in _LINEAR else _run(op, arrays, params)


def _choose_linear(op: CondOp, arrays: Sequence[Any]) -> Any:
    """All branches, each on tangents that are 0 unless it is taken, and what the one taken gives.

    A choice of JAX's cannot be transposed when it is mapped with an index for each row.
    """
    index, *inputs = arrays
    count = len(inputs) if op.primal is None else len(op.primal.inputs) - 1
    found = []
    for i, branch in enumerate(op.branches):
        taken = [x if n < count else jnp.where(index == i, x, jnp.zeros_like(x)) for n, x in enumerate(inputs)]
        found.append(branch.program.call(_run_linear, taken))
    return tuple([_select(index, outs) for outs in zip(*found, strict=True)])


def _select(index: Any, outs: Sequence[Any]) -> Any:
    chosen = outs[0]
    for i, out in enumerate(outs[1:], 1):
        chosen = jnp.where(index == i, out, chosen)
    return chosen


def _winning(params: Any, t: Any, partial: Any) -> Any:
    """t * partial, and 0 for t = 0 even if partial is not finite.

    A partial that is not finite becomes a product of two large numbers, which overflows unless t is 0.
    """
    big = jnp.asarray(jnp.finfo(partial.dtype).max, partial.dtype)
    finite = jnp.isfinite(partial)
    large = big if jnp.iscomplexobj(partial) else jnp.copysign(big, partial)
    return t * jnp.where(finite, partial, large) * jnp.where(finite, jnp.ones((), partial.dtype), big)


def _winning_contraction(params: Any, x: Any, y: Any) -> Any:
    subscripts, wins = params
    partial = y if wins == "x" else x
    big = jnp.asarray(jnp.finfo(partial.dtype).max, partial.dtype)
    finite = jnp.isfinite(partial)
    usual = jnp.where(finite, partial, jnp.zeros((), partial.dtype))
    large = jnp.where(
        finite, jnp.zeros((), partial.dtype), big if jnp.iscomplexobj(partial) else jnp.copysign(big, partial)
    )
    near, far = (_run(contract_op, [x, p] if wins == "x" else [p, y], (subscripts,)) for p in (usual, large))
    return near + far * big


def _winning_zero(params: Any, t: Any, x: Any) -> Any:
    return jnp.where(x == 0, jnp.zeros((), t.dtype), _winning(params, t, x))


def _recurrence(params: Any, x: Any, t: Any) -> Any:
    axis, reverse = params

    def after(first: Any, then: Any) -> Any:
        return first[0] * then[0], _winning(params, first[1], then[0]) + then[1]

    return jax.lax.associative_scan(after, (x, t), reverse, axis)[1] if t.shape[axis] else t


def _scatter_set(params: Any, x: Any, values: Any, *indices: Any) -> Any:
    if not values.size:
        return x
    numbers = jnp.arange(values.size).reshape(values.shape)
    written = _run(scatter_set_op, [jnp.full(x.shape, -1), numbers, *indices], params)  # by which value, if any
    return jnp.where(written < 0, x, values.reshape(-1)[jnp.maximum(written, 0)])


_LINEAR: dict[Op, Callable[..., Any]] = {
    masked_mul: _winning,
    guarded_mul: _winning,
    guarded_contract_op: _winning_contraction,
    zero_mul: _winning_zero,
    recurrence_op: _recurrence,
    scatter_set_op: _scatter_set,
}
"""Ops whose implementation is linear, but not step by step."""
