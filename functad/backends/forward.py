"""Forward mode: compute one level down, and push tangents through the ops' own rules.

`Forward` carries a tangent along with each value; `Record` notes where tangents would go, so that
any number of them can be pushed through later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functad import dtypes
from functad.device import Device
from functad.dispatch import bind, run_closed
from functad.errors import DTypeError, LevelError, ShapeError
from functad.levels import Level, _unrecorded
from functad.ops.op import Op, Residuals
from functad.ops.transfer import stop_gradient
from functad.tensor import Tensor


class _Moving:
    """What both have in common: a tensor's context says how it moves, None that it does not."""

    was_read = False  # whether a value was read off a tensor of it
    is_tape = False
    fuses = False

    def __init__(self, level: Level):
        self.level = level
        self.closed = False

    def wrap(self, x: Tensor, context: Any) -> Tensor:
        """`x` with what moves it; integers never move."""
        return Tensor(self, x, context if dtypes.is_inexact(x._dtype) else None, x._shape, x._dtype)

    def device(self, x: Tensor) -> Device:
        return x._value.device

    def detach(self, x: Tensor) -> Tensor:
        return self.wrap(stop_gradient(x._value), None)

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> Any:
        if self.closed:
            return x._value.backward(cotangent, retain_graph)
        raise LevelError(
            "backward(): this tensor belongs to a jvp that is still open. Return it, and let jvp finish, or use "
            "fd.grad inside."
        )

    def close(self) -> None:
        """End the transform: its tensors are constants from now on."""
        self.closed = True
        self.run = run_closed  # type: ignore[method-assign]  # costs the open level nothing

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Run `op` one level down, and move its output as its inputs move."""
        raise NotImplementedError

    def resolve(self, x: Tensor) -> Tensor | None:
        return x._value if self.closed else None

    def moves(self, x: Tensor) -> bool:
        return not self.closed and x._context is not None

    def constant(self, x: Tensor) -> Tensor:
        return x._value.without_autodiff()


class Forward(_Moving):
    """Forward mode at one level. A tensor's context is its tangent, or None for zero."""

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Compute `op` on the primals, and its tangent from theirs."""
        primals = [x._value if x._backend is self else x for x in inputs]
        tangents = [x._context if x._backend is self else None for x in inputs]
        moved = None
        if self.level[0] <= _unrecorded.get() or _still(tangents) or not (op.differentiable or op.refuses):
            out = bind(op, primals, params)
        elif op.refuses:
            op.refuse()
        else:
            out, moved = push(op, primals, tangents, params)
        if type(out) is tuple:
            return tuple([self.wrap(o, t) for o, t in zip(out, moved or [None] * len(out), strict=True)])
        return self.wrap(out, moved)


class Step(NamedTuple):
    """An op that tangents go through: the numbers of what moves its inputs, and of what it moves."""

    op: Op
    sources: tuple[int | None, ...]
    residuals: Residuals
    targets: tuple[int | None, ...]


class Record(_Moving):
    """Writes down the ops that tangents would go through. A tensor's context is a number, or None."""

    def __init__(self, level: Level):
        super().__init__(level)
        self.steps: list[Step] = []
        self.count = 0

    def source(self, x: Tensor) -> Tensor:
        """`x` as an input that moves."""
        return self.wrap(x, self._number())

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Compute `op`, and note it if an input moves."""
        primals = [x._value if x._backend is self else x for x in inputs]
        sources = tuple([x._context if x._backend is self else None for x in inputs])
        out = bind(op, primals, params)
        still = self.level[0] <= _unrecorded.get() or _still(sources)
        if op.refuses and not still:
            op.refuse()
        still = still or not op.differentiable
        outs = [self.wrap(o, None if still else self._number()) for o in (out if type(out) is tuple else (out,))]
        if not still:
            self.steps.append(Step(op, sources, Residuals(primals, out, params), tuple([o._context for o in outs])))
        return tuple(outs) if type(out) is tuple else outs[0]

    def needed(self, targets: Sequence[int | None]) -> list[Step]:
        """The steps that lead to `targets`."""
        wanted = {t for t in targets if t is not None}
        kept = []
        for step in reversed(self.steps):
            if not wanted.isdisjoint(step.targets):
                kept.append(step)
                wanted.update([s for s in step.sources if s is not None])
        return kept[::-1]

    def _number(self) -> int:
        self.count += 1
        return self.count


def replay(steps: Sequence[Step], moving: dict[int, Tensor]) -> None:
    """Push the tangents in `moving` (by number) through `steps`, adding those that they give."""
    for op, sources, residuals, targets in steps:
        tangents = [None if s is None else moving.get(s) for s in sources]
        if _still(tangents):
            continue
        _, moved = push(op, residuals.inputs, tangents, residuals.params, residuals.out)
        outs = moved if type(moved) is tuple else (moved,)
        moving.update({n: t for n, t in zip(targets, outs, strict=True) if n is not None and t is not None})


def push(
    op: Op, primals: Sequence[Tensor], tangents: Sequence[Tensor | None], params: tuple[Any, ...], out: Any = None
) -> tuple[Any, Any]:
    """The output of `op` (computed unless given) and its tangent, None for zero."""
    joined = op.joined(tuple([t is not None for t in tangents]))
    if joined is not None:
        both = joined.apply([*primals, *[t for t in tangents if t is not None]], params)
        half = len(both) // 2
        return both[:half], both[half:]
    if out is None:
        out = bind(op, primals, params)
    moved = op.push(tangents, Residuals(primals, out, params))
    if type(out) is not tuple and moved is not None:
        _check(op, moved, out)
    return out, moved


def _still(movements: Sequence[Any]) -> bool:
    """Whether nothing moves."""
    return not [m for m in movements if m is not None]


def _check(op: Op, moved: Tensor, out: Tensor) -> None:
    if moved._shape != out._shape:
        raise ShapeError(
            f"the derivative rule of {op.name} gave a tangent of shape {moved._shape} for an output of shape "
            f"{out._shape}; a tangent has the shape of its output."
        )
    if moved._dtype != out._dtype and dtypes.is_inexact(out._dtype):
        raise DTypeError(
            f"the derivative rule of {op.name} gave a tangent of {moved._dtype} for an output of {out._dtype}; a "
            "tangent has the dtype of its output."
        )
