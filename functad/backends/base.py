"""What the backends at the base share: they hold arrays, and compute op by op."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from functad import dtypes
from functad.device import Device
from functad.dtypes import DType
from functad.errors import ArgumentTypeError, DonatedError, DTypeError, FunctadError, NotTrackedError, ShapeError
from functad.levels import BASE, Level
from functad.ops.op import Op, Type
from functad.ops.rules import align_rows
from functad.tape import AnyNode, Swept, sweep
from functad.tensor import Tensor

_new = object.__new__
_MOST_NUMBERS = 4096


class BaseBackend(ABC):
    """A backend that computes. Subclasses say how arrays are stored and how an op is called."""

    level: Level = BASE
    is_tape = False
    fuses = False  # whether it records ops to compile them together
    tells_types = False  # whether a compiled call finds out by itself that its inputs are of other types
    transfers = False  # whether its arrays live in another memory than NumPy's
    name: str
    hardware: str

    def __init__(self) -> None:
        self._numbers: dict[Any, Tensor] = {}

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Compute `op` now."""
        if op.base_run is not None:
            return op.base_run(self, inputs, params)
        try:
            arrays = [x._known_value for x in inputs]
        except AttributeError:
            arrays = [x._value for x in inputs]
        if inputs and inputs[0]._dtype is dtypes.float64:  # it may have outlived an enable_x64 block
            self.requires(dtypes.float64, op.name)
        try:
            out = self.compiled(op, params)(*arrays)
        except FunctadError:
            raise
        except (TypeError, ValueError, IndexError) as error:
            refuse(op, inputs, params, error)
        except RuntimeError:
            refuse_donated(op.name, arrays, op.donate)
            raise
        if type(out) is tuple:
            if op.out_types is not None:
                return wrapped(self, out, op.out_types)
            return tuple([Tensor(self, o, None, o.shape, o.dtype) for o in out])
        return Tensor(self, out, None, out.shape, out.dtype)

    def calls(self, op: Op, inputs: Sequence[Tensor] = ()) -> None:  # noqa: B027  # most do nothing
        """What is to do before the compiled call of `op` is made."""

    def embedded(self, x: Tensor) -> Tensor:
        """`x` as a constant of a program, whose ops take arrays of their own library only."""
        value = x._value
        if self.name != "xla" or type(value) is not np.ndarray or not x._shape:
            return x
        return Tensor(self, self.jax_array(value), None, x._shape, x._dtype)

    @abstractmethod
    def compiled(self, op: Op, params: tuple[Any, ...]) -> Callable[..., Any]:
        """The cached call that computes `op` on arrays of this backend."""

    def call(self, op: Op, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Compute `op` on arrays of this backend."""
        return self.compiled(op, params)(*arrays)

    @abstractmethod
    def array(self, data: Any, dtype: DType) -> Any:
        """A copy of `data` as an array of this backend."""

    @abstractmethod
    def host(self, value: Any) -> np.ndarray[Any, Any]:
        """The elements of a value of this backend as a read-only NumPy array."""

    @abstractmethod
    def requires(self, dtype: DType, where: str) -> None:
        """Raise `DTypeError` if this backend cannot hold `dtype`."""

    def put(self, data: Any, dtype: DType | None = None, where: str = "tensor", brief: bool = False) -> Tensor:
        """A tensor with the elements of an array, narrowed only where no dtype was asked for; `brief` if for one op."""
        make = self.brief if brief else self.array
        if dtype is None:
            dtype = dtypes.narrow(data.dtype)
            if dtype != data.dtype and dtype.kind in "iu" and not isinstance(data, jax.core.Tracer):
                _check_fits(np.asarray(data), dtype, where)
        else:
            self.requires(dtype, where)
            if data.dtype.kind == "c" and dtype.kind != "c":
                raise DTypeError(f"{where}: {data.dtype} data does not fit {dtype}; take its .real or .imag, or abs.")
            traced = isinstance(data, jax.core.Tracer)
            if dtype.kind in "iu" and data.dtype.kind in "iuf" and not np.can_cast(data.dtype, dtype) and not traced:
                _check_fits(np.asarray(data), dtype, where)
        array = make(data, dtype) if data.dtype == dtype or dtype.kind == "b" else self._cast(data, dtype, where, make)
        return Tensor(self, array, None, array.shape, array.dtype)

    def brief(self, data: Any, dtype: DType) -> Any:
        """An array that is an operand of one op."""
        return self.array(data, dtype)

    def _cast(self, data: Any, dtype: DType, where: str, make: Callable[[Any, DType], Any]) -> Any:
        try:
            with np.errstate(over="raise"):
                return make(data, dtype)
        except FloatingPointError:
            finite = np.abs(data[np.isfinite(data)])
            raise DTypeError(
                f"{where}: the value {finite.max()} does not fit {dtype}, where it would be inf. Write float('inf') or "
                f"fd.numpy.finfo({str(dtype)!r}).max for the largest, or ask for a dtype that holds it."
            ) from None

    def held(self, array: np.ndarray[Any, Any]) -> Tensor:
        """A constant that nobody else has; it stays with NumPy, unless another memory is used, as a copy costs more."""
        if self.transfers:
            return self.put(array, array.dtype)
        array.flags.writeable = False
        return Tensor(self, array, None, array.shape, array.dtype)

    def scalar(self, value: complex, dtype: DType) -> Tensor:
        """A 0-d tensor of a Python number.

        It stays with NumPy, where another memory is used until it recurs: a transfer has its price.
        """
        if value == 0 and str(value) != "0" and str(value) != "0.0":  # -0.0 and 0.0 would be one key
            return self._scalar(value, dtype)
        key = value, dtype
        x = self._numbers.get(key)
        if x is None:
            if len(self._numbers) >= _MOST_NUMBERS:
                self._numbers.clear()
            x = self._numbers[key] = self._scalar(value, dtype)
        elif self.transfers and type(x._value) is np.ndarray:
            x._known_value = self.array(x._value, dtype)
        return x

    def _scalar(self, value: complex, dtype: DType) -> Tensor:
        self.requires(dtype, "a Python number")
        array = self.checked_scalar(value, dtype)
        array.flags.writeable = False
        return Tensor(self, array, None, (), dtype)

    def number(self, value: complex, dtype: DType) -> Tensor:
        """`scalar`, of a number that is not expected to recur and a dtype that this backend holds."""
        if self.transfers:
            return self.scalar(value, dtype)
        return Tensor(self, self.checked_scalar(value, dtype), None, (), dtype)

    def checked_scalar(self, value: complex, dtype: DType) -> np.ndarray[Any, Any]:
        """A Python number as a 0-d array, or an error if it does not fit `dtype`."""
        if isinstance(value, complex) and dtype.kind != "c":
            raise DTypeError(
                f"the complex number {value} does not fit a tensor of {dtype}; write x.astype('complex64')."
            )
        if dtype.kind in "fc" and abs(value) < 6e4:  # it fits; to ignore errors would cost more than the array
            return np.asarray(value, dtype)
        try:
            with np.errstate(over="ignore"):  # too large for a half type is inf, as in any op
                return np.asarray(value, dtype)
        except OverflowError:
            raise DTypeError(f"the Python integer {value} does not fit {dtype}; write x.astype(...) first.") from None

    def device(self, x: Tensor) -> Device:
        return Device(self)

    def resolve(self, x: Tensor) -> None:
        return None

    def moves(self, x: Tensor) -> bool:
        return False

    def constant(self, x: Tensor) -> Tensor:
        return x

    def detach(self, x: Tensor) -> Tensor:
        return x

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> NoReturn:
        raise NotTrackedError(
            "backward() requires a tracked autodiff tensor, and this one is on a device without autodiff; call "
            "x.autodiff().require_grad() on the source leaf before computing the output, or model = model.train() for a "
            "model. (Gradients are such tensors: for a second derivative make the leaf on device.autodiff(order=2).)"
        )

    def sweep(self, seeds: Sequence[tuple[AnyNode, Tensor]], outputs: Sequence[Tensor], release: bool) -> Swept:
        """Run backward from `seeds`; a backend may compute the `outputs` with it."""
        return sweep(seeds, release)

    @abstractmethod
    def jax_array(self, value: Any) -> Any:
        """A value of this backend as a `jax.Array`."""

    def __repr__(self) -> str:
        return self.hardware


def values_on(backend: Any, tensors: Sequence[Any]) -> list[Any]:
    """The values of those tensors that are of this backend."""
    try:
        return [x._known_value for x in tensors if x._backend is backend]
    except AttributeError:  # one is recorded and has not run
        return [x._value for x in tensors if x._backend is backend]


def wrapped(backend: BaseBackend, arrays: Sequence[Any], types: Sequence[Type]) -> tuple[Tensor, ...]:
    """Tensors of known types, made without a call for each, as small programs take little longer than these."""
    made = []
    for array, (shape, dtype) in zip(arrays, types, strict=True):
        x = _new(Tensor)
        x._backend = backend  # one by one, which is quicker than a tuple of them
        x._known_value = array
        x._known_context = None
        x._shape = shape
        x._dtype = dtype
        x._entry = None
        made.append(x)
    return tuple(made)


def _check_fits(data: np.ndarray[Any, Any], dtype: DType, where: str) -> None:
    info = np.iinfo(dtype)
    if data.size and not (data.min() >= info.min and data.max() <= info.max):
        least, most = data.min(), data.max()
        what = f"the value {least} does" if least == most else f"{data.dtype} values between {least} and {most} do"
        narrow = f"{dtype} (without JAX's x64 mode the default integer). Call fd.enable_x64() before, or pass"
        narrow = narrow if dtype == dtypes.default_int() and not dtypes.x64_enabled() else f"{dtype}; pass"
        raise DTypeError(f"{where}: {what} not fit {narrow} a dtype that holds {'it' if least == most else 'them'}.")


def refuse_donated(where: str, arrays: Sequence[Any], donate: Sequence[int] = ()) -> None:
    """Raise if one of the arrays has no memory any more, or if one that is donated is there twice."""
    for x in arrays:
        if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.is_deleted():
            raise DonatedError(
                f"{where}: a tensor of {x.dtype}{list(x.shape)} has no value any more, since a jitted function took its "
                "memory over (donate_argnums). Use what that call returned, or leave donate_argnums out."
            ) from None
    if any(arrays[i] is x for i in donate for j, x in enumerate(arrays) if j != i):
        raise DonatedError(
            f"{where}: one tensor is passed in two places, and its memory is to be taken over (donate_argnums), which can "
            "happen once. Pass x + 0 in one of them, or leave donate_argnums out."
        ) from None


def refuse(op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...], error: Exception) -> NoReturn:
    """Say in the user's terms why `op` could not run on these inputs."""
    refuse_donated(op.name, [x._value for x in inputs])
    op.refuse_count(inputs)
    if isinstance(error, jax.errors.TracerArrayConversionError):
        raise ArgumentTypeError(
            f"{op.name}: its implementation passes an input to NumPy, which XLA cannot compile. Write it with its first "
            "argument, which is jax.numpy or numpy as the device asks: xp.square(x) instead of np.square(x)."
        ) from error
    if isinstance(error, jax.errors.ConcretizationTypeError):
        raise ArgumentTypeError(
            f"{op.name}: its implementation asks for the value of an input (if, while, float, int), which is not known "
            "when XLA compiles it. Write xp.where(condition, a, b) instead of `if`; numbers that are known before are "
            "keyword-only parameters of the implementation."
        ) from error
    types = ", ".join(f"{x.dtype}{list(x.shape)}" for x in inputs)
    given = "".join(f", {k}={v!r}" for k, v in zip(op.params, params, strict=True))
    shapes = [x.shape for x in inputs]
    if (op.promote != "same" or op.batch is align_rows) and len(shapes) > 1:
        try:
            np.broadcast_shapes(*shapes)
        except ValueError:
            listed = " and ".join(map(str, shapes))
            raise ShapeError(
                f"{op.name}: shapes {listed} do not broadcast: from the last axis backwards, lengths must be "
                "equal or 1. Insert an axis with x[:, None] or x.reshape(...) where one is missing."
            ) from None
    of_types = isinstance(error, TypeError) or re.search(r"dtype|must be integers|complex", str(error))
    kind = DTypeError if of_types and "shape" not in str(error) else ShapeError
    if kind is DTypeError and any(x.dtype.kind == "c" for x in inputs):
        raise DTypeError(
            f"{op.name}: does not take complex numbers, got {types}; take their .real, .imag or abs first."
        ) from error
    if kind is DTypeError and any(x.dtype.kind == "b" for x in inputs):
        raise DTypeError(f"{op.name}: does not take bools, got {types}; write x.astype(int) first.") from error
    raise kind(f"{op.name}({types}{given}): {str(error).splitlines()[0]}") from error
