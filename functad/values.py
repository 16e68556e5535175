"""The values of a tensor: how Python reads them, and what NumPy, JAX and other libraries get of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from functad import protocols
from functad.dispatch import Handle, base_tensor, reads, tracing
from functad.errors import ArgumentTypeError, ConcreteValueError, ShapeError
from functad.keywords import explain_methods

if TYPE_CHECKING:
    from typing import Self


class Values(Handle):
    """The part of `Tensor` that hands out its elements."""

    __slots__ = ()

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a read-only NumPy array; tracked tensors too, whose gradient ends there."""
        return self._read("numpy()")

    def _read(self, what: str) -> np.ndarray[Any, Any]:
        self._note_read()
        self._observed()
        if (entry := self._entry) is not None and entry.deferred:
            recorded: np.ndarray[Any, Any] = entry.host(self)
            return recorded
        x = base_tensor(self._concrete(what))
        host: np.ndarray[Any, Any] = x._backend.host(x._value)
        return host

    def _observed(self) -> None:
        """Let `debug_nans` look at what is read."""
        observe = getattr(tracing.get(), "observe", None)
        if observe is not None:
            observe(self)

    def jax(self) -> Any:
        """The elements as a `jax.Array`."""
        self._note_read()
        self._observed()
        return base_tensor(self._concrete("jax()"))._backend.jax_array(base_tensor(self)._value)

    def item(self) -> Any:
        """The one element as a Python number; raises `ShapeError` for several."""
        if self._shape and self.size != 1:
            raise ShapeError(
                f"item(): the tensor has {self.size} elements (shape {self.shape}); index or reduce it first."
            )
        return self._read("item()").item()

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self._read("tolist()").tolist()

    def tobytes(self, order: str = "C") -> bytes:
        """The bytes of the elements, row by row (column by column, for "F")."""
        return self._read("tobytes()").tobytes(order)  # type: ignore[arg-type]

    def block_until_ready(self) -> Self:
        """Wait until the value is computed."""
        wait = getattr(self._value, "block_until_ready", None)  # of an array, or of the tensor below
        if wait is not None:
            wait()
        return self

    def _note_read(self) -> None:
        """Tell a `jit` that writes a function down that its value is in there now."""
        if (seen := reads.get()) is not None:
            seen.append(self)

    def _concrete(self, what: str) -> Self:
        """Itself, if it stands for one value; under vmap it stands for many."""
        x: Any = self
        while isinstance(x._value, Handle):
            if hasattr(x._backend, "refuse_value"):
                x._backend.refuse_value(x, what)
            elif hasattr(x._backend, "was_read"):
                x._backend.was_read = True
            x = x._value
        return self

    def _moves(self) -> bool:
        """Whether a derivative follows it: it is tracked, or carries a tangent."""
        x: Any = self
        while isinstance(x._value, Handle):
            if x._backend.moves(x):
                return True
            x = x._value
        return False

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ConcreteValueError(
                f"the truth value of a tensor with {self.size} elements (shape {self.shape}) is ambiguous; write "
                "x.any() or x.all()."
            )
        return bool(self._scalar("bool()"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.ndim:
            raise ArgumentTypeError(f"only a 0-d integer tensor can be an index, got {self.dtype}{list(self.shape)}.")
        return int(self._scalar("int()"))

    def _scalar(self, what: str) -> Any:
        if self._shape and self.size != 1:
            raise ShapeError(
                f"{what}: the tensor has {self.size} elements (shape {self.shape}); index or reduce it first."
            )
        return self._read(what).reshape(())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self._moves():
            raise ArgumentTypeError(
                "converting a tracked tensor to a NumPy array would cut its gradient silently. Use functad functions on it "
                "(fd.numpy, fd.special and fd.nn.functional have NumPy's, SciPy's and torch's names), or say that the cut is "
                "meant: x.numpy()."
            )
        array = self.numpy()
        return np.array(array, dtype) if copy or (dtype is not None and dtype != array.dtype) else array

    def __jax_array__(self) -> Any:
        if self._moves():
            raise ArgumentTypeError(
                "passing a tracked tensor to a jax function would cut its gradient silently. Use functad functions "
                "(of an operator the tensor comes first: x * array), wrap the jax function with fd.from_jax, or say that "
                "the cut is meant: x.jax()."
            )
        return self.jax()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return protocols.numpy_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return protocols.numpy_function(func, args, kwargs)

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        return protocols.namespace(api_version)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        if self._moves():
            raise ArgumentTypeError(
                "handing a tracked tensor to another library would cut its gradient silently; say that the cut is meant: "
                "x.without_autodiff()."
            )
        if max_version is not None and tuple(max_version) < (1, 0):
            max_version = None  # the capsules without a version, which all that read DLPack before 1.0 take
        array = self._array("__dlpack__")
        if isinstance(array, np.ndarray) and not copy and (copy is None or max_version is None):
            array = np.array(array)  # the other library may write into it
        return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[Any, int]:
        device: tuple[Any, int] = self._array("__dlpack_device__").__dlpack_device__()
        return device

    def _array(self, what: str) -> Any:
        """The array of the base backend that holds its elements."""
        self._note_read()
        return base_tensor(self._concrete(what))._value


explain_methods(Values)
