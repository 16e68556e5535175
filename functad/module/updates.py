"""State that a forward changes, such as running means: collected while a model runs, given back in a new model."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

from functad.dispatch import Handle
from functad.errors import ArgumentError, ShapeError
from functad.module.layout import Layout, is_module
from functad.ops.transfer import stop_gradient


class Pending(NamedTuple):
    """The Module that was updated (held, so that its `id` stays its own) and its new tensors by field."""

    module: Any
    values: dict[str, Any]


collected: ContextVar[dict[int, Pending] | None] = ContextVar("functad_module_updates", default=None)


def latest(module: Any, name: str) -> Any:
    """A buffer as the running call has left it so far."""
    pending = (collected.get() or {}).get(id(module))
    return module.__dict__[name] if pending is None else pending.values.get(name, module.__dict__[name])


def update(module: Any, values: dict[str, Any]) -> None:
    """Note new values of a Module's buffers, if someone collects them."""
    pending = collected.get()
    if pending is None:
        return
    layout: Layout = module._layout
    buffers = {name: layout.marks[i] is None for name, i in layout.direct}
    for name, value in values.items():
        old = module.__dict__.get(name)
        if not buffers.get(name, False) or not isinstance(old, Handle):
            raise ArgumentError(
                f"{type(module).__name__}.update: {name!r} is no buffer (a field that holds a tensor and no Param)."
            )
        if value.shape != old.shape or value.dtype != old.dtype:
            raise ShapeError(
                f"{type(module).__name__}.update: {name!r} is {old.dtype}{list(old.shape)}, and its new value "
                f"{value.dtype}{list(value.shape)}."
            )
    notes = pending.setdefault(id(module), Pending(module, {})).values
    notes.update({name: stop_gradient(value) for name, value in values.items()})


def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What a Module returns, and the Module with the updates of the call."""
    pending: dict[int, Pending] = {}
    token = collected.set(pending)
    try:
        out = module(*args, **kwargs)
    finally:
        collected.reset(token)
    return out, (_applied(module, pending) if pending else module)


def _applied(module: Any, pending: dict[int, Pending]) -> Any:
    layout: Layout = module._layout
    children = [_applied(child, pending) if is_module(child) else child for child in module._children]
    if id(module) in pending:
        places = dict(layout.direct)
        for name, value in pending[id(module)].values.items():
            children[places[name]] = value
    return layout.build(children)
