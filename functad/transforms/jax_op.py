"""JAX functions as ops: the one place where JAX's own derivatives serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes
from functad.device import Device
from functad.dispatch import bind
from functad.ops.hosted import hosted, in_precision
from functad.ops.op import Cost, Keep, Op, Residuals, Type
from functad.transforms.control_ops import Primal

Arrays = tuple[Any, ...]

FLOAT0 = jax.dtypes.float0
"""The dtype of the tangents of integers in JAX."""


class JaxOp(Op):
    """A JAX function of arrays, which returns a tuple of them. Its derivatives are JAX functions too."""

    whole = True
    primal: Primal | None = None

    def __init__(self, name: str, call: Callable[..., Arrays], types: Sequence[Type]):
        super().__init__(name, lambda xp, *arrays: call(*arrays), doc="A function written in JAX.", cost=Cost.COMPUTE)
        self.call = call
        self.types = tuple(types)
        with in_precision(None, *types):
            self.out_types = _types(jax.eval_shape(call, *_blanks(types)))  # type: ignore[misc]  # an instance's own
        compiled = jax.jit(call)
        self.numpy_impl = hosted(lambda xp, *arrays: compiled(*arrays))  # for what `from_jax` lets through
        self.recorded = lru_cache(64)(self._recorded)  # type: ignore[method-assign]  # caches per op
        self.joined = lru_cache(64)(self._joined)  # type: ignore[method-assign]

    def takes(self, index: int) -> bool:
        return True

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(), frozenset(), False)

    def _recorded(self, tracked: tuple[bool, ...]) -> Op:
        moving = [i for i, t in enumerate(tracked) if t]

        @jax.jit  # so that the pullback has one structure, however this is called
        def forward(*arrays: Any) -> tuple[Arrays, Any]:
            return jax.vjp(self._of(moving, arrays), *[arrays[i] for i in moving])

        _, pullback = jax.eval_shape(forward, *_blanks(self.types))
        structure: Any = jax.tree.structure(pullback)
        smooth = [i for i, t in enumerate(self.out_types or ()) if dtypes.is_inexact(t.dtype)]

        def call(*arrays: Any) -> Arrays:
            outs, pullback = forward(*arrays)
            return (*outs, *jax.tree.leaves(pullback))

        def back(*arrays: Any) -> Arrays:
            pullback = jax.tree.unflatten(structure, arrays[: structure.num_leaves])
            given = dict(zip(smooth, arrays[structure.num_leaves :], strict=True))
            return tuple(pullback(tuple([given.get(i, still(t)) for i, t in enumerate(self.out_types or ())])))

        return RecordedJaxOp(self, call, back, moving, smooth)

    def _joined(self, moving: tuple[bool, ...]) -> Op:
        return JoinedJaxOp(self, [i for i, m in enumerate(moving) if m])

    @cached_property
    def reverse_only(self) -> bool:
        """Whether JAX has no forward mode of it, as of what `jax.custom_vjp` made."""
        moving = [i for i, t in enumerate(self.types) if dtypes.is_inexact(t.dtype)]
        try:
            jax.jit(JoinedJaxOp(self, moving).call).lower(*_blanks([*self.types, *[self.types[i] for i in moving]]))
        except TypeError:
            return True
        return False

    def _of(self, moving: Sequence[int], arrays: Sequence[Any]) -> Callable[..., Arrays]:
        """The function of the inputs in `moving` alone."""

        def call(*some: Any) -> Arrays:
            every = list(arrays)
            for i, x in zip(moving, some, strict=True):
                every[i] = x
            return self.call(*every)

        return call


class RecordedJaxOp(JaxOp):
    """The form that a tape runs: it also returns what JAX's pullback keeps."""

    def __init__(
        self, op: JaxOp, call: Callable[..., Arrays], back: Callable[..., Arrays], moving: list[int], smooth: list[int]
    ):
        super().__init__(op.name, call, op.types)
        self.visible = len(op.out_types or ())  # type: ignore[misc]  # an instance's own
        self.back = back
        self.moving = moving
        self.smooth = smooth
        self.backward: JaxOp | None = None

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(), frozenset(), True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        if self.backward is None:
            outs = self.out_types or ()
            self.backward = JaxOp(
                f"backward({self.name})", self.back, [*outs[self.visible :], *[outs[i] for i in self.smooth]]
            )
        grads = iter(bind(self.backward, [*res.out, *[g[i] for i in self.smooth]]))
        return [next(grads) if i in self.moving else None for i in range(len(wanted))]


class JoinedJaxOp(JaxOp):
    """Outputs and their tangents, from inputs and the tangents of those in `moving`."""

    def __init__(self, op: JaxOp, moving: Sequence[int]):
        self.op = op
        self.moving = moving
        count = len(op.out_types or ())
        self.primal = Primal(op, tuple(range(len(op.types))), tuple(range(count)))
        super().__init__(f"jvp({op.name})", self._both, [*op.types, *[op.types[i] for i in moving]])

    def _both(self, *arrays: Any) -> Arrays:
        primals, tangents = arrays[: len(self.op.types)], arrays[len(self.op.types) :]
        outs, moved = jax.jvp(self.op._of(self.moving, primals), [primals[i] for i in self.moving], list(tangents))
        return (*outs, *[jnp.zeros_like(o) if t.dtype == FLOAT0 else t for o, t in zip(outs, moved, strict=True)])


def _blanks(types: Sequence[Type]) -> list[Any]:
    return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]


def _types(outs: Sequence[Any]) -> list[Type]:
    return [Type(o.shape, o.dtype) for o in outs]


def still(t: Type) -> Any:
    """The tangent of an integer, as JAX has it."""
    return np.zeros(t.shape, FLOAT0)


def default_xla() -> Any:
    """The backend of the default device, or the CPU's where that is NumPy."""
    base = Device.default().base
    return Device.cpu().base if base.name == "numpy" else base
