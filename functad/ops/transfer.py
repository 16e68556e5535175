"""Moving tensors between devices, and cutting them off the tape."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from functad import tree
from functad.device import Device
from functad.device import meant as device_meant
from functad.dispatch import Handle, base_backend, bind
from functad.errors import ArgumentTypeError
from functad.ops.op import Op, Samples
from functad.ops.rules import align_rows, linear, nondiff

__all__ = ["stop_gradient", "to_device"]

transfer_op: Op = linear(
    "transfer",
    lambda xp, x, *, source, target: x,
    lambda g, source, target: bind(transfer_op, (g,), (target, source)),
    samples=Samples(make=lambda rng: [((rng.normal(size=(2, 3)),), {"source": None, "target": None})]),
    base_run=lambda backend, inputs, params: _transfer(backend, inputs[0], params[1]),
    batch=align_rows,
    doc="x on other hardware.",
)


cut_op: Op = nondiff(
    "cut",
    lambda xp, x: x if xp is np else jax.lax.stop_gradient(x),
    batch=align_rows,
    samples=Samples([(((2, 3),), {}), (((),), {})]),
    doc="x as a constant: how a recorded tensor is detached without being computed.",
)


def _transfer(backend: Any, x: Any, target: Any) -> Any:
    if backend.hardware != target.hardware:
        return target.put(backend.host(x._value), x._dtype)
    if hasattr(backend, "base"):  # written down, and there is nothing to write
        return x
    return target.put(x._value, x._dtype)  # with fusion or without: the same array


def to_device(x: Any, device: Device) -> Any:
    """`x` on another device.

    The move between hardware is an op of its own, so gradients flow back through it. A tracked
    tensor stays tracked wherever it goes (`without_autodiff()` takes it off its tape); any other
    takes the autodiff state of `device`.

    >>> import functad as fd
    >>> fd.ones(2).to_device(fd.Device.numpy()).device.name
    'numpy'
    """
    if not isinstance(device, Device):
        raise ArgumentTypeError(
            f"to_device: expected a Device such as fd.Device.cpu(), got {device!r}{device_meant(device)}."
        )
    source = base_backend(x)
    if getattr(source, "base", source) is not device.base:  # what jit writes down is where it will run
        x = bind(transfer_op, (x,), (source, device.base))
    here = x.device
    if x.is_tracked or (here.order == device.order and here.checkpointing is device.checkpointing):
        return x  # a tracked tensor stays on the tape that its history is on
    return device.lift(x.without_autodiff())


def stop_gradient(x: Any) -> Any:
    """`x` as a constant for every tape and tangent; maps over pytrees (as `jax.lax.stop_gradient`).

    >>> import functad as fd
    >>> fd.grad(lambda x: x * fd.stop_gradient(x))(3.0).item()
    3.0
    """
    return tree.map(lambda leaf: _stop(leaf) if isinstance(leaf, Handle) else leaf, x)


def _stop(x: Any) -> Any:
    cut = x.detach()
    return cut.set_require_grad(False) if cut.is_require_grad else cut
