"""Devices: where a tensor lives and whether a tape records what is done with it."""

from __future__ import annotations

import enum
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from functad.errors import ArgumentError, ArgumentTypeError, DeviceError, UnknownAttributeError
from functad.levels import Level, open_depth

if TYPE_CHECKING:
    from functad.backends.base import BaseBackend

Kind = Literal["cpu", "gpu", "tpu", "numpy"]


class GradientCheckpointing(enum.Enum):
    """What a tape keeps for backward.

    >>> import functad as fd
    >>> device = fd.Device.cpu().autodiff().gradient_checkpointing()
    >>> device.gradient_checkpointing_strategy is fd.GradientCheckpointing.BALANCED
    True
    """

    DISABLED = "disabled"
    """Keep every residual."""
    BALANCED = "balanced"
    """Recompute memory-bound results during backward, keep compute-bound ones."""


_KINDS: tuple[Kind, ...] = ("tpu", "gpu", "cpu", "numpy")
"""In the order of preference."""

#: Base backends by kind: each entry lists the backends this process can use.
BASE_BACKENDS: dict[Kind, Callable[[], list[BaseBackend]]] = {}

#: How a base backend becomes one that fuses, once such a backend is imported.
FUSED: list[Callable[[BaseBackend], BaseBackend]] = []

FUSION = os.environ.get("FUNCTAD_FUSION", "1") != "0"
"""Whether XLA devices fuse unless told otherwise; `FUNCTAD_FUSION=0` says otherwise for a whole program."""

#: Decorator backends by name: how each puts a tensor at a level.
DECORATORS: dict[str, Callable[[Any, Level, GradientCheckpointing], Any]] = {}


def meant(device: object) -> str:
    """What to write for another library's name of a device: "cuda:1", torch.device("cpu")."""
    kind, _, index = str(device if isinstance(device, str) else getattr(device, "type", "")).partition(":")
    index = index if isinstance(device, str) else str(getattr(device, "index", "") or "")
    if kind in ("cuda", "gpu", "mps", "xpu", "rocm"):
        return f"; write fd.Device.gpu({index if index.isdigit() else 0})"
    return f"; write fd.Device.{kind}()" if kind in ("cpu", "numpy") else ""


class _Made(type):
    """Says what other libraries' names of devices are here: `Device.cuda`."""

    if not TYPE_CHECKING:  # type checkers are to see that the name is missing

        def __getattr__(cls, name):
            if name == "tpu":
                hint = "; write fd.Device.enumerate('tpu')[0]"
            else:
                hint = meant(name) or "; devices are made by .cpu(), .gpu(i), .numpy(), .default(), .enumerate()"
            raise UnknownAttributeError(f"Device has no {name!r}{hint}.")


@dataclass(frozen=True, eq=False, repr=False)
class Device(metaclass=_Made):
    """A place to compute, with or without autodiff.

    Equality and hash look at the hardware only, so `dev == dev.autodiff()` (as in burn).

    >>> import functad as fd
    >>> dev = fd.Device.cpu().autodiff()
    >>> dev.is_autodiff, dev.name, dev == fd.Device.cpu()
    (True, 'autodiff<xla>', True)
    """

    base: BaseBackend
    order: int = 0
    checkpointing: GradientCheckpointing = GradientCheckpointing.DISABLED

    @staticmethod
    def cpu(fusion: bool = FUSION) -> Device:
        """The CPU through XLA.

        Ops are recorded, run when a value is needed, and compiled together once they recur. With
        `fusion=False` each op runs at once by itself, which is equal to the bit from run to run.

        >>> import functad as fd
        >>> fd.Device.cpu().name, fd.Device.cpu(fusion=False) == fd.Device.cpu()
        ('xla', True)
        """
        return _find("cpu", 0, fusion)

    @staticmethod
    def gpu(i: int = 0, fusion: bool = FUSION) -> Device:
        """The GPU number `i`, with fusion as `cpu` has it; raises `DeviceError` when there is none.

        >>> import functad as fd
        >>> device = fd.Device.gpu() if fd.Device.enumerate("gpu") else fd.Device.cpu()
        >>> fd.ones(2, device=device).device == device
        True
        """
        if not hasattr(i, "__index__"):
            raise ArgumentTypeError(f"Device.gpu: a GPU is known by its number, such as fd.Device.gpu(0), got {i!r}.")
        return _find("gpu", i, fusion)

    @staticmethod
    def numpy() -> Device:
        """Plain NumPy on the CPU: no compilation, float64 always available.

        >>> import functad as fd
        >>> fd.ones(2, dtype="float64", device=fd.Device.numpy()).dtype
        dtype('float64')
        """
        return _find("numpy", 0, fusion=False)

    @staticmethod
    def default() -> Device:
        """The device new tensors are made on; see `set_default_device`.

        >>> import functad as fd
        >>> with fd.set_default_device(fd.Device.numpy()):
        ...     fd.Device.default()
        Device(numpy)
        """
        return _default.get() or _first()

    @staticmethod
    def enumerate(kind: Kind | None = None) -> list[Device]:
        """Every device of `kind`, or of all kinds (accelerators first, NumPy last); raises `DeviceError` for another kind.

        >>> import functad as fd
        >>> fd.Device.enumerate("cpu")[0] == fd.Device.cpu(), fd.Device.enumerate()[-1]
        (True, Device(numpy))
        """
        if kind is not None and kind not in BASE_BACKENDS:
            known = ", ".join(map(repr, _KINDS))
            raise DeviceError(f"Device.enumerate: there is no device kind {kind!r}; use one of {known}.")
        kinds = [kind] if kind else _KINDS
        return [_find(k, i, FUSION) for k in kinds for i in range(len(BASE_BACKENDS[k]()))]

    def autodiff(self, order: int = 1) -> Device:
        """This hardware with a tape; `order=2` lets gradients be differentiated again.

        >>> import functad as fd
        >>> w = fd.tensor(2.0, device=fd.Device.cpu().autodiff(order=2)).require_grad()
        >>> g = w.grad((w**3).backward())
        >>> g.item(), w.grad(g.backward()).item()
        (12.0, 12.0)
        """
        if not isinstance(order, int) or order < 1:
            raise ArgumentError(f"Device.autodiff: order must be an int of at least 1, got {order!r}.")
        return replace(self, order=order)

    def gradient_checkpointing(self) -> Device:
        """This device, recomputing memory-bound results during backward; raises `DeviceError` on one without autodiff.

        >>> import functad as fd
        >>> fd.Device.cpu().autodiff().gradient_checkpointing()
        Device(cpu:0).autodiff().gradient_checkpointing()
        """
        if not self.is_autodiff:
            raise DeviceError(
                f"Device.gradient_checkpointing: {self!r} has no autodiff to checkpoint; "
                "write device.autodiff().gradient_checkpointing()."
            )
        return replace(self, checkpointing=GradientCheckpointing.BALANCED)

    def inner(self) -> Device:
        """This device with one autodiff level less.

        >>> import functad as fd
        >>> fd.Device.cpu().autodiff(order=2).inner(), fd.Device.cpu().autodiff().inner()
        (Device(cpu:0).autodiff(), Device(cpu:0))
        """
        if self.order <= 1:
            return Device(self.base)
        return replace(self, order=self.order - 1)

    def __post_init__(self) -> None:
        if not hasattr(self.base, "hardware"):
            raise ArgumentTypeError(
                f"Device: got {self.base!r}; devices are made by fd.Device.cpu(), .gpu(i), .numpy() or .default()"
                f"{meant(self.base)}."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.base.hardware, self.order, self.checkpointing, self.base.fuses)

    def lift(self, x: Any) -> Any:
        """`x`, a tensor on this hardware without autodiff, as a constant on this device.

        >>> import functad as fd
        >>> fd.Device.cpu().autodiff(order=2).lift(fd.ones(2)).device.name
        'autodiff<autodiff<xla>>'
        """
        for order in range(1, self.order + 1):
            x = DECORATORS["autodiff"](x, (open_depth(), order), self.checkpointing)
        return x

    @property
    def is_autodiff(self) -> bool:
        """Whether tensors made here can require gradients."""
        return self.order > 0

    @property
    def gradient_checkpointing_strategy(self) -> GradientCheckpointing | None:
        """The strategy, or None on a device without autodiff."""
        return self.checkpointing if self.is_autodiff else None

    @property
    def name(self) -> str:
        """The backends by name, outermost first: `"xla"`, `"autodiff<xla>"`."""
        return "autodiff<" * self.order + self.base.name + ">" * self.order

    def __eq__(self, other: object) -> bool:
        return self.base.hardware == other.base.hardware if isinstance(other, Device) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.base.hardware)

    def __repr__(self) -> str:
        other = self.base.fuses != FUSION and not self.base.hardware.startswith("numpy")
        text = f"Device({self.base.hardware}{f', fusion={self.base.fuses}' if other else ''})"
        if self.order:
            text += ".autodiff()" if self.order == 1 else f".autodiff(order={self.order})"
        if self.checkpointing is GradientCheckpointing.BALANCED:
            text += ".gradient_checkpointing()"
        return text

    if not TYPE_CHECKING:  # type checkers are to see that it is none

        def __enter__(self):
            raise ArgumentTypeError("a Device is no context manager: write with fd.set_default_device(device): ...")

        def __exit__(self, *exc):
            """Never reached; without it Python would not ask `__enter__`."""


class set_default_device(AbstractContextManager["set_default_device"]):
    """Make new tensors on `device`, from now on or inside a `with` block.

    The choice belongs to the current context (thread or async task).

    >>> import functad as fd
    >>> with fd.set_default_device(fd.Device.numpy()):
    ...     fd.ones(2).device.name
    'numpy'
    """

    def __init__(self, device: Device):
        if not isinstance(device, Device):
            raise ArgumentTypeError(f"set_default_device: expected a Device such as fd.Device.cpu(), got {device!r}.")
        self._token = _default.set(device)

    def __exit__(self, *exc: object) -> None:
        _default.reset(self._token)


_default: ContextVar[Device | None] = ContextVar("functad_default_device", default=None)


def _find(kind: Kind, index: int, fusion: bool) -> Device:
    found = BASE_BACKENDS[kind]()
    if not 0 <= index < len(found):
        have = ", ".join(map(repr, Device.enumerate()))
        raise DeviceError(f"Device.{kind}({index}): there is no such device; found {have}.")
    base = found[index]
    return Device(FUSED[0](base) if fusion and FUSED and kind != "numpy" else base)


@lru_cache
def _first() -> Device:
    return Device.enumerate()[0]


def _restore(hardware: str, order: int, checkpointing: GradientCheckpointing, fusion: bool = FUSION) -> Device:
    """What `pickle` calls: the same hardware, or the default device where there is none such."""
    every = [_find(k, i, fusion) for k in _KINDS for i in range(len(BASE_BACKENDS[k]()))]
    found = next((d for d in every if d.base.hardware == hardware), Device.default())
    return replace(found, order=order, checkpointing=checkpointing)


def checked(device: object, where: str) -> Device:
    """`device`, or the default one for None; raises `ArgumentTypeError` for anything else."""
    if device is None:
        return Device.default()
    if isinstance(device, Device):
        return device
    raise ArgumentTypeError(
        f"{where}: device must be a Device, such as fd.Device.cpu(), fd.Device.gpu(0) or fd.Device.numpy(), got {device!r}"
        f"{meant(device)}."
    )


class _File(ModuleType):
    """This module, which says what it is when it is called."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: devices are made by the methods of Device."""
        hint = meant(args[0]) if args else ""
        raise ArgumentTypeError(
            f"fd.device is a module: devices are fd.Device.cpu(), fd.Device.gpu(0) and fd.Device.numpy(){hint}."
        )


sys.modules[__name__].__class__ = _File
