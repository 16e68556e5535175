"""What the checks run: functad's two modes on lists of tensors, eagerly or inside one XLA program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from functad.backends.autodiff import Autodiff
from functad.backends.forward import Forward
from functad.backends.xla import Xla
from functad.device import Device, GradientCheckpointing
from functad.dispatch import Handle
from functad.errors import CheckFailedError
from functad.levels import deeper
from functad.ops.op import Type
from functad.ops.rules import zeros
from functad.tape import sweep

Tensors = Sequence[Any]
Function = Callable[..., Tensors]
"""Tensors in, a list of tensors out."""


def vjp(
    fn: Function, xs: Tensors, strategy: GradientCheckpointing = GradientCheckpointing.DISABLED
) -> tuple[list[Any], Callable[[Tensors], list[Any]]]:
    """The outputs of `fn`, and the map from their cotangents to those of `xs`.

    Like the public `vjp`, but flat and with a choice of what the tape keeps.
    """
    with deeper() as level:
        tape = Autodiff(level, strategy)
        try:
            leaves = [tape.leaf(x) for x in xs]
            outs = fn(*leaves)
        finally:
            tape.close()
    roots = [out._context if out._backend is tape else None for out in outs]

    def pull(cotangents: Tensors) -> list[Any]:
        seeds = [(r, g) for r, g in zip(roots, cotangents, strict=True) if r is not None and r.tracked]
        found = sweep(seeds).gradients
        ids = [leaf._context.id for leaf in leaves]
        return [found[i] if i in found else zeros(Type(x._shape, x._dtype), x) for i, x in zip(ids, xs, strict=True)]

    return [out._value if out._backend is tape else out for out in outs], pull


def jvp(fn: Function, xs: Tensors, tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The outputs of `fn` and their tangents; a tangent of None is zero."""
    with deeper() as level:
        forward = Forward(level)
        try:
            outs = fn(*[forward.wrap(x, t) for x, t in zip(xs, tangents, strict=True)])
        finally:
            forward.close()
    primals = [out._value if out._backend is forward else out for out in outs]
    pushed = [out._context if out._backend is forward else None for out in outs]
    for x, t in zip(primals, pushed, strict=True):
        if t is not None and (t._shape != x._shape or t._dtype != x._dtype):
            raise CheckFailedError(
                f"the forward rule gave a tangent of {t._dtype}{list(t._shape)} for an output of "
                f"{x._dtype}{list(x._shape)}; a tangent has the type of its output."
            )
    return primals, [
        zeros(Type(x._shape, x._dtype), x) if t is None else t for x, t in zip(primals, pushed, strict=True)
    ]


def execute(device: Device, work: Callable[[Any], Any], arrays: Any) -> Any:
    """`work` on a pytree of tensors on `device`; arrays in, arrays out. On XLA it is one program."""
    base = device.base

    def call(values: Any) -> Any:
        inputs = jax.tree.map(lambda a: base.put(a, a.dtype), values)
        outs = work(inputs)
        return jax.tree.map(lambda x: x._value, outs, is_leaf=lambda x: isinstance(x, Handle))

    return jax.tree.map(base.host, (compiled(call) if isinstance(base, Xla) else call)(arrays))


def compiled(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One XLA program for all that a check computes, optimised little since it runs once."""
    return jax.jit(call, compiler_options={"xla_backend_optimization_level": 0})
