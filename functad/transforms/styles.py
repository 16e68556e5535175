"""Object style inside `jit`: arguments on autodiff devices are on them inside too, and results come out as from a plain call.

What a function returns is one of three: an argument as it was passed, a leaf or a constant of its own (new
parameters, an optimiser's state, gradients), or an intermediate, which alone is recorded on the tapes outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

from functad.device import Device, GradientCheckpointing
from functad.dispatch import Handle, base_backend, bind
from functad.errors import NotDifferentiableError
from functad.levels import BASE
from functad.ops.op import Op
from functad.tape import Leaf


class Style(NamedTuple):
    """How a tensor is on the tapes of an autodiff device."""

    order: int
    strategy: GradientCheckpointing
    first: int | None  # the first of the arguments that is this very leaf; None for a constant


class End(NamedTuple):
    """What a result that is not recorded comes out as."""

    argument: int | None  # the place of the argument that it is
    order: int = 0
    strategy: GradientCheckpointing = GradientCheckpointing.DISABLED
    required: bool = False
    same: int | None = None  # an earlier result that is this very leaf


Ends = tuple[End | None, ...]


def styles_of(leaves: Sequence[Any], outside: Sequence[Any]) -> tuple[Style | bool | None, ...] | None:
    """How each argument is on the tapes of autodiff devices, and whether what else is reached requires grad.

    None if no argument is, or where a transform that is open may differentiate all of it.
    """
    if not any([x._backend.level[1] for x in leaves]):  # noqa: C419  # a list is quicker
        return None
    if any(x._backend.level != BASE and not x._backend.level[1] for x in (*leaves, *outside)):
        return None
    first: dict[int, int] = {}
    found: list[Style | bool | None] = [any(map(_requires_grad, outside))]
    for i, x in enumerate(leaves):
        if not x._backend.level[1]:
            found.append(None)
            continue
        context = x._context
        place = first.setdefault(context.id, i) if context.tracked else None
        found.append(Style(x._backend.level[1], x._backend.strategy, place))
    return tuple(found)


def lifted(inputs: Sequence[Any], styles: Sequence[Style | None]) -> list[Any]:
    """The arguments of a function that is written down, on tapes like those outside."""
    made: list[Any] = []
    for x, style in zip(inputs, styles, strict=True):
        if style is None:
            made.append(x)
        elif style.first is not None and style.first < len(made):
            made.append(made[style.first])
        else:
            y = Device(base_backend(x), style.order, style.strategy).lift(x)
            made.append(y if style.first is None else y.require_grad())
    return made


def ends_of(found: Sequence[Any], inputs: Sequence[Any], trace: Any, styled: bool) -> Ends | None:
    """How each result of a function that was written down comes out; None if all are recorded."""
    reached = [x for x, _ in trace.hidden.values()]
    styled = styled and not any(x._backend.level != BASE and not x._backend.level[1] for x in reached)
    alone = styled and not any(map(_requires_grad, reached))  # nothing but arguments requires grad
    places = {x._context.id: i for i, x in reversed([*enumerate(inputs)]) if x._backend.level[1]} if styled else {}
    ends: list[End | None] = []
    leaves: dict[int, int] = {}
    for i, x in enumerate(found):
        level = x._backend.level
        own = level[1] and level > trace.level  # on the tape of a device, put there in the function
        if own and type(x._context) is Leaf and x._context.id in places:
            ends.append(End(places[x._context.id]))
        elif own and x.is_require_grad:
            first = leaves.setdefault(x._context.id, i)
            ends.append(End(None, level[1], x._backend.strategy, True, None if first == i else first))
        elif alone and not x.is_tracked:
            ends.append(End(None, level[1], x._backend.strategy) if own else End(None))
        else:
            ends.append(None)
    if all(end is None for end in ends):
        return None
    return tuple([RULED if end is None and trace.ruled else end for end in ends])


def _refuse() -> NoReturn:
    raise NotDifferentiableError(
        "fd.jit: this result is being differentiated, but the function that made it differentiates itself (backward() or "
        "value_and_grad inside) and uses custom_vjp or custom_jvp, whose rules the tape outside does not see. Differentiate "
        "inside only, or return the value for it from a jitted function of its own."
    )


_RULED = Op("recorded_once", lambda xp, x: x)
_RULED.pulls = [_RULED.derivative(lambda g: _refuse(), 1)]
_RULED.pushes = [_RULED.derivative(lambda t: _refuse(), 1)]


RULED = End(None, order=-1)
"""What is recorded outside, by a tape that does not see the rules which made it."""


def call_in_style(call: Callable[..., Any], op: Any, inputs: Sequence[Any], ends: Ends) -> Any:
    """The outputs of an op, each as `ends` says; `call` records it, unless there is nothing to record."""
    if any(x._backend.level != BASE and not x._backend.level[1] for x in inputs):
        return call(op, inputs)  # a transform that is open may differentiate all of it
    outs = call(op, inputs if None in ends or RULED in ends else [_off(x) for x in inputs])
    made: list[Any] = []
    for x, end in zip(outs, ends, strict=True):
        made.append(x if end is None else bind(_RULED, [x]) if end is RULED else _ended(x, end, inputs, made))
    return made


def _ended(x: Any, end: End, inputs: Sequence[Any], made: Sequence[Any]) -> Any:
    if end.argument is not None:
        return inputs[end.argument]
    if end.same is not None:
        return made[end.same]
    x = _off(x)
    if not end.order:
        return x
    y = Device(base_backend(x), end.order, end.strategy).lift(x)
    return y.require_grad() if end.required else y


def _requires_grad(x: Any) -> bool:
    return bool(x._backend.level[1] and x._context.tracked)


def _off(x: Any) -> Any:
    while isinstance(x, Handle) and x._backend.level[1]:
        x = x._value
    return x
