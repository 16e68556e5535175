"""The handle every tensor is, and `bind`, which finds the interpreter that runs an op."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from functad.dtypes import DType
from functad.errors import ArgumentTypeError, DeviceError, LevelError, StrategyMismatchError
from functad.levels import BASE, Level

if TYPE_CHECKING:
    from functad.device import Device
    from functad.ops.op import Op
    from functad.tensor import Tensor


class Backend(Protocol):
    """An interpreter of ops: `run` computes (base), or does its part and binds one level down."""

    level: Level
    is_tape: bool
    fuses: bool

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """The output tensor of `op`, or a tuple of them for an op with several outputs."""

    def device(self, x: Tensor) -> Device:
        """The device `x`, a tensor of this backend, reports."""

    def resolve(self, x: Tensor) -> Tensor | None:
        """What a tensor of this backend stands for once its transform has closed, if anything."""

    def moves(self, x: Tensor) -> bool:
        """Whether a derivative with respect to something follows `x` at this level."""

    def constant(self, x: Tensor) -> Tensor:
        """`x` off this level's tape, and those below."""


class Handle:
    """What dispatch needs of a tensor: its interpreter, that interpreter's value, its type.

    `_value` is an array at the base and a tensor of the level below elsewhere; `_context` is what
    the interpreter attaches to it (a tape node, a tangent). A tensor whose op is recorded and has
    not run lacks them until they are read; `_entry` says where it is recorded.
    """

    __slots__ = ("__weakref__", "_backend", "_dtype", "_entry", "_known_context", "_known_value", "_shape")
    _backend: Any
    _known_value: Any  # read as such where every op comes by; it may be unset
    _known_context: Any
    _entry: Any

    def __init__(
        self,
        backend: Any = None,
        value: Any = None,
        context: Any = None,
        shape: tuple[int, ...] | None = None,
        dtype: DType = None,  # type: ignore[assignment]
    ):
        if shape is None:  # a user's call
            raise ArgumentTypeError(
                "Tensor: it is the class of tensors, which functions make: fd.tensor(data), such as fd.tensor([1, 2]), "
                "or fd.zeros(shape) and its like."
            )
        self._backend = backend
        self._known_value = value
        self._known_context = context
        self._shape = shape
        self._dtype = dtype
        self._entry = None

    @property
    def _value(self) -> Any:
        try:
            return self._known_value
        except AttributeError:
            return self._entry.read(self, "_value")

    @property
    def _context(self) -> Any:
        try:
            return self._known_context
        except AttributeError:
            return self._entry.read(self, "_context")

    shape: property = property(attrgetter("_shape"), doc="The length of each axis.")
    dtype: property = property(attrgetter("_dtype"), doc="The element type, a `numpy.dtype`.")

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        size = 1
        for length in self._shape:
            size *= length
        return size


class Known:
    """Tensors that a function is known to reach from outside.

    It keeps none of them alive, and knows them after that by more than an id, which is that of another tensor by then.
    """

    __slots__ = ("_refs",)

    def __init__(self, tensors: Iterable[Any] = (), *others: Known):
        self._refs = {id(x): weakref.ref(x) for x in tensors}
        for other in others:
            self._refs.update((i, ref) for i, ref in other._refs.items() if ref() is not None)

    def __contains__(self, x: object) -> bool:
        ref = self._refs.get(id(x))
        return ref is not None and ref() is x


NOTHING_KNOWN = Known()


def known_here() -> Known:
    """What the function is known to reach that is written down now, or run to find its inputs."""
    return getattr(tracing.get(), "known", NOTHING_KNOWN)


tracing: ContextVar[Any] = ContextVar("functad_tracing", default=None)
"""The innermost interpreter that takes every op no higher level takes, on whatever tensors."""


reads: ContextVar[list[Any] | None] = ContextVar("functad_reads", default=None)
"""The tensors whose values were read while a function is written down: such a value is a constant of what it gives."""


def met(x: Any, cut: bool = False) -> Any:
    """`x` as the function that is written down now, or run to find its inputs, meets it.

    What is not an op (`detach` and its like) would otherwise make another tensor of one from outside, unknown to it.
    With `cut` no derivative is to go through it.
    """
    trace = tracing.get()
    if trace is None or x._backend is trace or x._backend.level > trace.level:
        return x
    meet = getattr(trace, "meet", None)
    return x if meet is None else meet(x, cut)


class _Pending(threading.local):
    recording: Any = None
    types: Any = (None, [])
    at_once: int = 0  # how many ops more run without being recorded; below 0, until further notice
    futile: int = 0  # ops that were recorded for nothing, less those for which it paid
    gained: int = 0  # ops that ran as parts of a whole, less those for which that makes up
    stands_for: int = 1  # how many structures the next one is a sample of
    dropping: bool = False

    def __init__(self) -> None:
        self.ends: list[Any] = []  # of those who count the places where recordings end, their counters
        self.dropped: list[Any] = []  # what recordings let go of


pending = _Pending()
"""What this thread has recorded and not run; see `backends.fusion_record`."""


def bind(op: Op, inputs: Sequence[Any], params: tuple[Any, ...] = ()) -> Any:
    """Run `op` at the highest level among its inputs (and the open trace, if there is one)."""
    if (recording := pending.recording) is not None and (out := recording.repeat(op, inputs, params)) is not None:
        return out  # the usual case where ops are recorded: it was met here before
    top = inputs[0]._backend
    if len(inputs) > 1 and (len(inputs) > 2 or inputs[1]._backend is not top):
        for x in inputs:
            backend = x._backend
            if backend is not top and (backend.level is not BASE or top.level is BASE):  # a constant decides nothing
                if backend.level > top.level:
                    top = backend
                elif backend.level == top.level:
                    return _bind_conflicting(op, inputs, params, backend, top)
    trace = tracing.get()
    if trace is not None and top.level < trace.level:
        top = trace
    return top.run(op, inputs, params)


def base_tensor(x: Any) -> Any:
    """The tensor at the base under every level of `x`."""
    while x._backend.level != BASE and isinstance(x._value, Handle):
        x = x._value
    return x


def base_backend(x: Any) -> Any:
    """The backend of the tensor at the base under every level of `x`."""
    backend = x._backend
    while backend.level is not BASE:
        entry = x._entry
        if entry is not None:
            return entry.recording.fusion
        x = x._known_value
        if not isinstance(x, Handle):
            break
        backend = x._backend
    return backend


def run_closed(op: Op, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
    """How a closed level runs an op: on what its tensors stand for (it holds no level, so none is kept alive)."""
    return bind(op, [x if (inner := x._backend.resolve(x)) is None else inner for x in inputs], params)


def _bind_conflicting(op: Op, inputs: Sequence[Any], params: tuple[Any, ...], *clash: Any) -> Any:
    """Two interpreters at one level: one belongs to a closed transform, or the mix is an error."""
    resolved = [x if (inner := x._backend.resolve(x)) is None else inner for x in inputs]
    if all(new is old for new, old in zip(resolved, inputs, strict=True)):
        one, other = clash
        if one.level != BASE or one.hardware != other.hardware:
            _refuse_mix(op, inputs, one, other)
        resolved = [x._backend.unfused(x) if x._backend.fuses else x for x in inputs]  # the op is not to be recorded
    return bind(op, resolved, params)


def _refuse_mix(op: Op, inputs: Sequence[Any], one: Any, other: Any) -> NoReturn:
    if one.level == (0, 0):
        name = "matmul or einsum" if op.name == "contract" else op.name  # whose op it is
        raise DeviceError(
            f"{name}: its inputs live on different devices, {other.hardware} and {one.hardware}. "
            "Move one of them: x.to_device(y.device)."
        )
    if one.level[1] == 0:
        raise LevelError(
            f"{op.name}: its inputs belong to two transforms that are open at once in different threads. Give a thread the "
            "context it was started from: contextvars.copy_context().run(fn, ...)."
        )
    raise StrategyMismatchError(
        f"{op.name}: gradient checkpointing strategy mismatch: {other.strategy.name} vs "
        f"{one.strategy.name}. Tensors in one operation must share a strategy; make both on the same "
        "device, or write x.to_device(y.device)."
    )
