"""A Module in another state: on or off autodiff, frozen, elsewhere, in another dtype, with other fields."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from functad import dtypes, tree
from functad.device import Device, GradientCheckpointing, checked
from functad.dispatch import Handle, base_tensor
from functad.errors import ArgumentError, IntermediateParamsWarning, ShapeError
from functad.module.group import ParamGroup
from functad.module.layout import Found, is_module, rebuild, walk
from functad.ops.operand import operand
from functad.ops.quantize import QuantTensor
from functad.ops.transfer import stop_gradient
from functad.param import Home, Mark, Param, as_leaf, own_leaf, wrap
from functad.source import warn

_ELSEWHERE: Home = (1, GradientCheckpointing.DISABLED)


def off_devices(x: Any) -> Any:
    """`x` off the tapes of autodiff devices; a transform that is open still differentiates it."""
    x = x.value if type(x) is Param else x
    while x._backend.level[1]:
        x = x._value
    return x


def valid(module: Any) -> Any:
    """Off autodiff, training behaviour off."""

    def change(found: Found) -> tuple[Any, Mark | None]:
        device = found.value.device
        mark = found.mark
        if mark is not None and device.is_autodiff:
            mark = mark.but(home=(device.order, device.checkpointing))
        return off_devices(found.value), mark

    return rebuild(module, change, training=False)


def train(module: Any) -> Any:
    """On autodiff, every parameter requiring grad, training behaviour on."""
    homes = [found.mark.home for found in walk(module) if found.mark is not None and found.mark.home]

    def change(found: Found) -> tuple[Any, Mark | None]:
        x, mark = found.value, found.mark
        x = x.value if mark is not None else x
        if not x._backend.level[1] and not x._backend.level[0]:  # plain: what a transform moves stays with it
            order, strategy = (mark.home if mark is not None else None) or (homes[0] if homes else _ELSEWHERE)
            x = Device(x._backend, order, strategy).lift(x)
        return (own_leaf(x), mark.but(frozen=False)) if mark is not None else (x, None)

    return rebuild(module, change, training=True)


def freeze(module: Any, group: ParamGroup | None, frozen: bool) -> Any:
    """With the parameters of a group (all by default) frozen or not."""
    ids = None if group is None else group.ids(module)

    def change(found: Found) -> tuple[Any, Mark | None]:
        x, mark = found.value, found.mark
        if mark is None or (ids is not None and mark.id not in ids):
            return x, mark
        x = x.value
        if not frozen:
            return as_leaf(x), mark.but(frozen=False)
        if x.is_require_grad:
            x = x.set_require_grad(False)
        elif x.is_tracked:
            x = stop_gradient(x)
        return x, mark.but(frozen=True)

    return rebuild(module, change)


def to_device(module: Any, device: Device) -> Any:
    """On another device, the move recorded."""
    device = checked(device, "Module.to_device")
    cut: list[str] = []

    def change(found: Found) -> tuple[Any, Mark | None]:
        x, mark = found.value, found.mark
        moved = (x.value if mark is not None else x).to_device(device)
        if mark is None:
            return moved, None
        if x.is_require_grad and not moved.is_require_grad:
            cut.append(found.path)
        return as_leaf(moved, mark.frozen), mark

    out = rebuild(module, change)
    if cut:
        listed = ", ".join(cut[:4]) + (f" and {len(cut) - 4} more" if len(cut) > 4 else "")
        warn(
            f"to_device recorded the move of {listed}: on {device!r} these parameters are intermediates, and their "
            "gradients belong to the parameters of the model that was moved. To train on the new device write "
            "model = model.fork(device); to infer there, model.valid().to_device(device).",
            IntermediateParamsWarning,
        )
    return out


def fork(module: Any, device: Device | None) -> Any:
    """On a device, with leaves of its own."""
    if device is not None:
        device = checked(device, "Module.fork")

    def change(found: Found) -> tuple[Any, Mark | None]:
        x, mark = found.value, found.mark
        there = device or x.device
        x = off_devices(x)
        x = x.to_device(there)
        return (own_leaf(x, mark.frozen), mark) if mark is not None else (x, None)

    return rebuild(module, change)


def astype(module: Any, dtype: Any) -> Any:
    """With floats in another dtype."""
    wanted = dtypes.parse(dtype, "Module.astype")

    def change(found: Found) -> tuple[Any, Mark | None]:
        x, mark = found.value, found.mark
        if not dtypes.is_float(x.dtype) or x.dtype == wanted:
            return x, mark
        x = (x.value if mark is not None else x).astype(wanted)
        return (own_leaf(x, mark.frozen), mark) if mark is not None else (x, None)

    return rebuild(module, change)


def mapped(module: Any, fn: Callable[[Param], Any]) -> Any:
    """With `fn` applied to every parameter."""

    def change(found: Found) -> tuple[Any, Mark | None]:
        x, mark = found.value, found.mark
        if mark is None:
            return x, None
        out = fn(x)
        if not isinstance(out, Handle):
            out = operand(out, x, where="Module.map")
        return own_leaf(out.value if type(out) is Param else out, mark.frozen), mark

    return rebuild(module, change)


# --- other fields


def replaced(module: Any, changes: dict[str, Any], make: Callable[[Any, dict[str, Any]], Any]) -> Any:
    """The Module with changes at paths."""
    by_field: dict[str, dict[str, Any]] = {}
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        if name not in module._layout.static:
            have = list(module._layout.static)
            near = difflib.get_close_matches(name, have, 1)
            meant = f"; did you mean {near[0]!r}?" if near else f"; its fields are {', '.join(have) or 'none'}."
            raise ArgumentError(f"{type(module).__name__}.replace: there is no field {name!r}{meant}")
        by_field.setdefault(name, {})[rest] = value
    fields = {name: module.__dict__[name] for name in module._layout.static}
    for name, inner in by_field.items():
        fields[name] = _changed(fields[name], inner, name, make)
    return make(module, fields)


def _changed(old: Any, changes: dict[str, Any], path: str, make: Any) -> Any:
    """A value with changes at paths within it; the path `""` is the value itself."""
    if "" in changes:
        if len(changes) > 1:
            raise ArgumentError(f"replace: {path!r} is replaced as a whole and in parts; choose one.")
        return _in_place_of(old, changes[""], path)
    if is_module(old):
        return replaced(old, changes, make)
    opened = tree.one_level(old)
    if opened is None:
        raise ArgumentError(f"replace: there is nothing within {path!r}, which is {type(old).__name__}.")
    items, keys, build = opened
    items = list(items)
    by_key: dict[str, dict[str, Any]] = {}
    for inner, value in changes.items():
        name, _, rest = inner.partition(".")
        by_key.setdefault(name, {})[rest] = value
    names = [str(key) for key in keys]
    for name, inside in by_key.items():
        if name not in names:
            raise ArgumentError(f"replace: {path!r} has no part {name!r}; it has {', '.join(names) or 'none'}.")
        index = names.index(name)
        items[index] = _changed(items[index], inside, f"{path}.{name}", make)
    return build(items)


def _in_place_of(old: Any, new: Any, path: str) -> Any:
    """What is put in a place; in that of a Param a tensor becomes it."""
    if isinstance(new, QuantTensor):  # which is no parameter
        if isinstance(old, (Param, QuantTensor)) and new.shape != old.shape:
            raise ShapeError(f"replace: {path!r} has the shape {old.shape}, and the quantized tensor {new.shape}.")
        return new
    if type(old) is Param and new is not None and not isinstance(new, Param) and not is_module(new):
        dtype = None if isinstance(new, Handle) and dtypes.is_inexact(new.dtype) else old.dtype
        x: Any = operand(new, base_tensor(old), dtype, f"replace({path})")
        if x.shape != old.shape:
            raise ShapeError(
                f"replace: the parameter {path!r} has the shape {old.shape}, and the new value {x.shape}. For another "
                "shape put a new Param there: fd.Param(value)."
            )
        if not x.device.is_autodiff and old.device.is_autodiff and not x._moves():
            x = old.device.lift(x)
        return wrap(own_leaf(x, old.is_frozen), old.mark)
    return new
