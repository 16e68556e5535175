"""What the checks run: functad's two modes on lists of tensors, eagerly or inside one XLA program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import jax

from functad.backends.xla import Xla
from functad.device import Device
from functad.dispatch import Handle
from functad.transforms import forward
from functad.transforms import vjp as reverse

Tensors = Sequence[Any]
Function = Callable[..., Tensors]
"""Tensors in, a list of tensors out."""


def vjp(fn: Function, xs: Tensors) -> tuple[list[Any], Callable[[Tensors], list[Any]]]:
    """The outputs of `fn`, and the map from their cotangents to those of `xs`."""
    outs, pullback = reverse.vjp(lambda *at: list(fn(*at)), *xs)
    return outs, lambda gs: list(pullback(list(gs)))


def jvp(fn: Function, xs: Tensors, tangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The outputs of `fn` and their tangents; an input whose tangent is None is held."""
    which = [i for i, t in enumerate(tangents) if t is not None]

    def moved(*point: Any) -> list[Any]:
        filled = dict(zip(which, point, strict=True))
        return list(fn(*[filled.get(i, x) for i, x in enumerate(xs)]))

    outs, pushed = forward.jvp(moved, [xs[i] for i in which], [tangents[i] for i in which])
    return outs, pushed


def execute(device: Device, work: Callable[[Any], Any], arrays: Any) -> Any:
    """`work` on a pytree of tensors on `device`; arrays in, arrays out. On XLA it is one program."""
    base = getattr(device.base, "xla", device.base)  # without fusion: it is one program as it is

    def call(values: Any) -> Any:
        inputs = jax.tree.map(lambda a: base.put(a, a.dtype), values)
        outs = work(inputs)
        return jax.tree.map(lambda x: x._value, outs, is_leaf=lambda x: isinstance(x, Handle))

    return jax.tree.map(base.host, (compiled(call) if isinstance(base, Xla) else call)(arrays))


def compiled(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """One XLA program for all that a check computes; it runs once, so compiling quickly is what counts."""
    return jax.jit(call, compiler_options=_quick_options())


@lru_cache
def _quick_options() -> dict[str, Any]:
    """Of the options that shorten compilation, those that this XLA knows."""
    known: dict[str, Any] = {}
    for name, value in (("xla_backend_optimization_level", 0), ("xla_cpu_use_fusion_emitters", False)):
        try:
            jax.jit(lambda x: x, compiler_options={name: value})(0)
        except jax.errors.JaxRuntimeError:  # an option of another release
            continue
        known[name] = value
    return known
