"""State that a forward changes, such as running means: collected while a model runs, given back in a new model."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple

from functad import generator
from functad.backends.batch import Batch
from functad.backends.trace import Trace
from functad.dispatch import Handle, tracing
from functad.errors import ArgumentError, LevelError, ShapeError
from functad.levels import open_depth
from functad.module.layout import Layout, is_module
from functad.ops.transfer import stop_gradient


class Pending(NamedTuple):
    """The Module that was updated (held, so that its `id` stays its own) and its new tensors by field."""

    module: Any
    values: dict[str, Any]


class Collector:
    """The updates of one call by the `id` of the Module, and where the call runs."""

    __slots__ = ("depth", "draws", "pending", "trace")

    def __init__(self) -> None:
        self.pending: dict[int, Pending] = {}
        self.depth = open_depth()
        self.trace = _trace()
        self.draws = generator.current()


collected: ContextVar[Collector | None] = ContextVar("functad_module_updates", default=None)


def _trace() -> Any:
    """The function that is being written down, if one is."""
    trace = tracing.get()
    while trace is not None and not isinstance(trace, Trace):  # code that runs now, such as a checkpointed function
        trace = getattr(trace, "below", None)
    return trace


def latest(module: Any, name: str) -> Any:
    """A buffer as the running call has left it so far."""
    collector = collected.get()
    pending = None if collector is None else collector.pending.get(id(module))
    return module.__dict__[name] if pending is None else pending.values.get(name, module.__dict__[name])


def update(module: Any, values: dict[str, Any]) -> None:
    """Note new values of a Module's buffers, if someone collects them."""
    collector = collected.get()
    if collector is None or generator.again(collector.draws):  # what backward runs again has been noted
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
    notes = collector.pending.setdefault(id(module), Pending(module, {})).values
    notes.update({name: _outside(module, name, value, collector) for name, value in values.items()})


def _outside(module: Any, name: str, value: Any, collector: Collector) -> Any:
    """A new value as a constant, off the tapes that were opened within the call; raises where it is not one value."""
    value = stop_gradient(value)
    while value._backend.level[0] > collector.depth:
        if isinstance(value._backend, (Batch, Trace)):
            break
        value = value._value
    if value._backend.level[0] > collector.depth or _trace() is not collector.trace:
        raise LevelError(
            f"{type(module).__name__}.update: the new value of {name!r} is made in a vmap, jit or loop that runs within "
            "call_and_update, and means nothing outside of it. Let that function call_and_update and return the new "
            "Module: fd.jit(lambda m, x: m.call_and_update(x))."
        )
    return value


def call(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    """What a Module returns, and the Module with the updates of the call."""
    collector = Collector()
    pending = collector.pending
    token = collected.set(collector)
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
