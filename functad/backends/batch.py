"""The Batch decorator: every op runs once for all the rows that vmap maps over.

An op over rows is often an op again: elementwise ops broadcast, reductions move their axis (the
op's `batch` rule says how). Any other becomes one: its implementation is the op's under
`jax.vmap`, its rule is the op's rule run on batched tensors. So no other transform needs to know
that vmap exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NoReturn

import jax
import numpy as np

from functad.backends.base import refuse
from functad.device import Device
from functad.dispatch import bind
from functad.errors import ConcreteValueError, LevelError, ShapeError
from functad.levels import Level, deeper
from functad.ops.op import Keep, Op, Residuals, Type
from functad.ops.rules import broadcast, sum_op
from functad.ops.transfer import stop_gradient
from functad.source import user_line
from functad.tensor import Tensor

Axes = tuple[int | None, ...]


class Batch:
    """vmap at one level. The value of a tensor has the mapped axis first."""

    is_tape = False
    fuses = False

    def __init__(self, level: Level, size: int):
        self.level = level
        self.size = size
        self.closed = False

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Run `op` over all rows, one level down."""
        mapped = [x._backend is self for x in inputs]
        below = [x._value if m else x for x, m in zip(inputs, mapped, strict=True)]
        try:
            out = NotImplemented if op.batch is None else op.batch(op, below, mapped, self.size, params)
            if out is NotImplemented:
                out = bind(batched(op, tuple([0 if m else None for m in mapped])), below, params)
        except ShapeError as error:
            refuse(op, inputs, params, error)  # in the shapes that the user sees
        return tuple([self.wrap(o) for o in out]) if type(out) is tuple else self.wrap(out)

    def wrap(self, x: Tensor) -> Tensor:
        """`x`, whose first axis is the mapped one, as a tensor of this level."""
        return Tensor(self, x, None, x._shape[1:], x._dtype)

    def unwrap(self, x: Tensor) -> Tensor:
        """A tensor with the mapped axis first, repeated if `x` does not depend on it."""
        return x._value if x._backend is self else broadcast(x, (self.size, *x._shape))

    def device(self, x: Tensor) -> Device:
        return x._value.device

    def detach(self, x: Tensor) -> Tensor:
        return self.wrap(stop_gradient(x._value))

    def refuse_value(self, x: Tensor, what: str) -> NoReturn:
        if self.closed:
            self._refuse_leak(what)
        raise ConcreteValueError(
            f"{user_line()}: {what}: under vmap this tensor of shape {x.shape} stands for {self.size} rows at once, so "
            "it has no one value: return it from the mapped function and read it outside. Use fd.where or fd.cond instead "
            "of `if`, fd.tensor(a)[i] to index a NumPy array, fd.from_jax(fn) for a function of JAX."
        )

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> NoReturn:
        if self.closed:
            self._refuse_leak("backward()")
        raise LevelError(
            "backward(): this tensor belongs to a vmap that is still open. Use fd.grad inside the mapped function, or "
            "call backward() on what vmap returns."
        )

    def close(self) -> None:
        """End the transform: a tensor of it that leaked is refused from now on."""
        self.closed = True
        self.run = self._run_closed  # type: ignore[method-assign]  # costs the open level nothing

    def _run_closed(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> NoReturn:
        self._refuse_leak(op.name)

    def _refuse_leak(self, what: str) -> NoReturn:
        raise LevelError(
            f"{what}: a tensor leaked out of a vmap that has ended (stored outside the mapped function). It stands for "
            f"{self.size} rows and has no meaning here; return it from the function instead."
        )

    def moves(self, x: Tensor) -> bool:
        return False

    def constant(self, x: Tensor) -> Tensor:
        return self.wrap(x._value.without_autodiff())

    def resolve(self, x: Tensor) -> Tensor | None:
        if self.closed:
            self._refuse_leak("this operation")
        return None


class BatchedOp(Op):
    """An op over rows: `axes` says which inputs have a leading mapped axis."""

    def __init__(self, op: Op, axes: Axes):
        self.op = op
        self.axes = axes
        for name in ("cost", "defaults", "differentiable", "guards", "inputs", "params", "refuses", "variadic", "doc"):
            setattr(self, name, getattr(op, name))
        self.name = f"vmap({op.name})"
        self.plans = {}
        self.impl = _batched_impl(op, axes)
        self.visible = getattr(op, "visible", 0)  # type: ignore[misc]  # an instance's own
        self.numpy_impl = _looped_impl(op, axes)

    def recorded(self, tracked: tuple[bool, ...]) -> Op | None:
        recorded = self.op.recorded(tracked)
        return None if recorded is None else batched(recorded, self.axes)

    def joined(self, moving: tuple[bool, ...]) -> Op | None:
        joined = self.op.joined(moving)
        tangents = [axis for axis, m in zip(self.axes, moving, strict=True) if m]
        return None if joined is None else batched(joined, (*self.axes, *tangents))

    def takes(self, index: int) -> bool:
        return self.op.takes(index)

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return self.op.keep(tracked)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        with deeper() as level:
            batch = Batch(level, (g[0] if type(g) is tuple else g)._shape[0])
            try:
                pieces = self.op.pull(_wrap(batch, g), self._rows(batch, res), wanted)
                rows = [None if piece is None else batch.unwrap(piece) for piece in pieces]
            finally:
                batch.close()
        return [
            row if row is None or axis == 0 else bind(sum_op, (row,), ((0,), False))
            for row, axis in zip(rows, self.axes, strict=True)
        ]

    def push(self, tangents: Sequence[Any], res: Residuals) -> Any:
        first = res.out[0] if type(res.out) is tuple else res.out
        with deeper() as level:
            batch = Batch(level, first._shape[0])
            try:
                rows = [
                    t if t is None or a is None else batch.wrap(t) for t, a in zip(tangents, self.axes, strict=True)
                ]
                moved = self.op.push(rows, self._rows(batch, res))
                if type(moved) is tuple:
                    return tuple(None if m is None else batch.unwrap(m) for m in moved)
                return None if moved is None else batch.unwrap(moved)
            finally:
                batch.close()

    def _rows(self, batch: Batch, res: Residuals) -> Residuals:
        inputs = [
            x if axis is None or x is None else batch.wrap(x) if isinstance(x, Tensor) else Type(x.shape[1:], x.dtype)
            for x, axis in zip(res.inputs, self.axes, strict=True)
        ]
        return Residuals(inputs, None if res.out is None else _wrap(batch, res.out), res.params)


def _wrap(batch: Batch, x: Any) -> Any:
    return tuple([batch.wrap(o) for o in x]) if type(x) is tuple else batch.wrap(x)


def batched(op: Op, axes: Axes) -> Op:
    """The op that runs `op` over a leading axis of the inputs whose entry in `axes` is 0."""
    return op.batched(axes) or _batched(op, axes)


@lru_cache(8192)
def _batched(op: Op, axes: Axes) -> Op:
    return BatchedOp(op, axes)


def _batched_impl(op: Op, axes: Axes) -> Callable[..., Any]:
    def impl(xp: Any, *arrays: Any, **params: Any) -> Any:
        return jax.vmap(lambda *rows: op.impl(xp, *rows, **params), in_axes=axes)(*arrays)

    return impl


def _looped_impl(op: Op, axes: Axes) -> Callable[..., Any]:
    def impl(xp: Any, *arrays: Any, **params: Any) -> Any:
        size = next(a.shape[0] for a, axis in zip(arrays, axes, strict=True) if axis == 0)
        call = op.numpy_impl or op.impl
        if not size:  # one row of zeros tells the shape
            arrays = tuple([a if axis is None else _one_row(a) for a, axis in zip(arrays, axes, strict=True)])
        rows = [
            call(xp, *[a if axis is None else a[i] for a, axis in zip(arrays, axes, strict=True)], **params)
            for i in range(max(size, 1))
        ]
        if type(rows[0]) is tuple:
            return tuple([np.stack(outs)[:size] for outs in zip(*rows, strict=True)])
        return np.stack(rows)[:size]

    return impl


def _one_row(a: Any) -> Any:
    return np.zeros((1, *a.shape[1:]), a.dtype)
