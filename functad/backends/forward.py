"""The Forward decorator: compute one level down, and push tangents through the ops' own rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from functad import dtypes
from functad.device import Device
from functad.dispatch import bind
from functad.errors import LevelError
from functad.levels import Level
from functad.ops.op import Op, Residuals
from functad.tensor import Tensor


class Forward:
    """Forward mode at one level. A tensor's context is its tangent, or None for zero."""

    is_tape = False

    def __init__(self, level: Level):
        self.level = level
        self.closed = False

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Compute `op` on the primals, and its tangent from theirs."""
        primals = [x._value if x._backend is self else x for x in inputs]
        tangents = [x._context if x._backend is self else None for x in inputs]
        moving = tuple([t is not None for t in tangents])
        joined = op.joined(moving) if any(moving) else None
        if joined is not None:
            both = bind(joined, [*primals, *[t for t in tangents if t is not None]], params)
            half = len(both) // 2
            return tuple([self.wrap(o, t) for o, t in zip(both[:half], both[half:], strict=True)])
        out = bind(op, primals, params)
        moved = None
        if op.differentiable and any(moving):
            moved = op.push(tangents, Residuals(primals, out, params))
        if type(out) is tuple:
            return tuple([self.wrap(o, t) for o, t in zip(out, moved or [None] * len(out), strict=True)])
        return self.wrap(out, moved)

    def wrap(self, x: Tensor, tangent: Tensor | None) -> Tensor:
        """`x` with a tangent; integers have none."""
        if not dtypes.is_inexact(x._dtype):
            tangent = None
        return Tensor(self, x, tangent, x._shape, x._dtype)

    def device(self, x: Tensor) -> Device:
        return x._value.device

    def detach(self, x: Tensor) -> Tensor:
        return self.wrap(x._value.detach(), None)

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> NoReturn:
        raise LevelError(
            "backward(): this tensor belongs to a jvp that is still open. Return it, and let jvp finish, or use fd.grad "
            "inside."
        )

    def close(self) -> None:
        """End the transform: its tensors are constants from now on."""
        self.closed = True
        self.run = self._run_closed  # type: ignore[method-assign]  # costs the open level nothing

    def _run_closed(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        return bind(op, [x._value if x._backend is self else x for x in inputs], params)

    def resolve(self, x: Tensor) -> Tensor | None:
        return x._value if self.closed else None
