"""Making tensors from data and from shapes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from functad import dtypes
from functad.device import Device, checked
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, FunctadError, ShapeError
from functad.keywords import explained
from functad.ops.axes import counted, several
from functad.ops.operand import as_array, without_value
from functad.tensor import Tensor

Shape = int | Sequence[int]


@explained
def tensor(data: Any, dtype: Any = None, device: Device | None = None) -> Tensor:
    """A tensor with a copy of `data`: a number, nested lists, an array or a buffer; a tensor is taken as it is.

    Without `dtype`, float data takes the default float dtype (float32, or float64 in x64 mode)
    when it is float64, as in JAX; an explicit float64 that XLA cannot hold raises `DTypeError`.

    >>> import functad as fd
    >>> fd.tensor([[1.0, 2.0], [3.0, 4.0]]).shape
    (2, 2)
    """
    wanted = None if dtype is None else dtypes.parse(dtype, "tensor")
    if isinstance(data, Tensor):
        x = data if device is None else data.to_device(device)
        return x if wanted is None else x.astype(wanted)
    where = checked(device, "tensor")
    if isinstance(data, (list, tuple)) and any(isinstance(x, Handle) for x in _flat(data)):
        raise ArgumentTypeError("tensor: data is a list that holds tensors; write fd.stack([...]) to join them.")
    if isinstance(data, dtypes.SCALARS):
        wanted, data = wanted or dtypes.of_scalar(data), np.asarray(data)
    if isinstance(data, bytes):  # the bytes themselves, as of every buffer
        data = memoryview(data)
    array = as_array(data, "tensor") if not isinstance(data, (list, tuple)) else _nested(data)
    return where.lift(where.base.put(array, wanted, "tensor"))


@explained
def full(shape: Shape, fill_value: Any, dtype: Any = None, device: Device | None = None) -> Tensor:
    """A tensor of `shape` filled with one number (or a 0-d tensor, through which gradients flow).

    Without `dtype` it has the one that `fd.tensor` of the number has. Errors are those of `zeros`, and `DTypeError` for a
    number that does not fit.

    >>> import functad as fd
    >>> fd.full((2, 2), 7).tolist(), fd.full(3, 0.5, dtype="bfloat16").dtype
    ([[7, 7], [7, 7]], dtype(bfloat16))
    >>> fd.grad(lambda v: fd.full((2, 3), v).sum())(1.0).item()
    6.0
    """
    if isinstance(fill_value, Tensor):
        filled = fill_value if dtype is None else fill_value.astype(dtype)
        filled = filled if device is None else filled.to_device(checked(device, "full"))
        return filled.broadcast_to(as_shape(shape, "full"))
    if not isinstance(fill_value, dtypes.SCALARS):
        fill_value = as_array(fill_value, "full")[()]
        return _make(
            np.full(as_shape(shape, "full"), fill_value),
            dtypes.parse(dtype or dtypes.narrow(fill_value.dtype), "full"),
            device,
            "full",
        )
    wanted = dtypes.of_scalar(fill_value) if dtype is None else dtypes.parse(dtype, "full")
    number = as_array(np.asarray(fill_value), "full")
    return _make(np.full(as_shape(shape, "full"), number), wanted, device, "full")


@explained
def zeros(shape: Shape, dtype: Any = None, device: Device | None = None) -> Tensor:
    """A tensor of zeros, of the default float (float32, float64 in x64 mode) unless told otherwise.

    Raises `ShapeError` for a negative length, `ArgumentTypeError` for what is no shape, `DTypeError` for a dtype that the
    device cannot hold.

    >>> import functad as fd
    >>> fd.zeros((2, 3), dtype="int32").tolist(), fd.zeros(2).dtype
    ([[0, 0, 0], [0, 0, 0]], dtype('float32'))
    """
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, "zeros")
    return _make(np.zeros(as_shape(shape, "zeros"), wanted), wanted, device, "zeros")


@explained
def ones(shape: Shape, dtype: Any = None, device: Device | None = None) -> Tensor:
    """A tensor of ones, of the default float unless told otherwise; arguments and errors as those of `zeros`.

    >>> import functad as fd
    >>> fd.ones(3).tolist(), fd.ones((0, 2)).shape
    ([1.0, 1.0, 1.0], (0, 2))
    """
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, "ones")
    return _make(np.ones(as_shape(shape, "ones"), wanted), wanted, device, "ones")


def eye(n: int, m: int | None = None, k: int = 0, dtype: Any = None, device: Device | None = None) -> Tensor:
    """An `n` by `m` matrix with ones on its `k`-th diagonal; `m` is `n` without it, and the dtype the default float.

    >>> import functad as fd
    >>> fd.eye(2, 3, k=1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, "eye")
    rows, columns = as_shape((n, n if m is None else m), "eye")
    return _make(np.eye(rows, columns, counted(k, "eye", "k"), wanted), wanted, device, "eye")


@explained
def arange(
    start: float, stop: float | None = None, step: float = 1, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Evenly spaced numbers from `start` up to, not including, `stop`; one number alone is `stop`, as in NumPy.

    Without `dtype` they are of the default int if all arguments are ints, else of the default float. Raises
    `ArgumentError` for a `step` of 0.

    >>> import functad as fd
    >>> fd.arange(3).tolist(), fd.arange(1.0, 2.0, 0.5).tolist(), fd.arange(3, 0, -1).tolist()
    ([0, 1, 2], [1.0, 1.5], [3, 2, 1])
    """
    start, stop = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ArgumentError("arange: step must not be 0.")
    data = _spaced("arange", np.arange, start, stop, step)
    default = dtypes.default_int() if data.dtype.kind in "iu" else dtypes.default_float()
    wanted = default if dtype is None else dtypes.parse(dtype, "arange")
    return _make(data, wanted, device, "arange")


def linspace(
    start: float, stop: float, num: int = 50, endpoint: bool = True, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """`num` evenly spaced numbers from `start` to `stop`, which is left out with `endpoint=False`; the default float.

    >>> import functad as fd
    >>> fd.linspace(0, 1, 5).tolist(), fd.linspace(0, 1, 4, endpoint=False).tolist()
    ([0.0, 0.25, 0.5, 0.75, 1.0], [0.0, 0.25, 0.5, 0.75])
    """
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, "linspace")
    if counted(num, "linspace", "num") < 0:
        raise ArgumentError(f"linspace: num must not be negative, got {num}.")
    return _make(_spaced("linspace", np.linspace, start, stop, int(num), endpoint), wanted, device, "linspace")


def zeros_like(x: Any, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Zeros of the shape, dtype and device of `x`.

    >>> import functad as fd
    >>> fd.zeros_like(fd.tensor([1, 2])).tolist()
    [0, 0]
    """
    return _like(zeros, x, dtype, device)


def ones_like(x: Any, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Ones of the shape, dtype and device of `x`.

    >>> import functad as fd
    >>> fd.ones_like(fd.tensor([[1.0, 2.0]]), dtype=bool).tolist()
    [[True, True]]
    """
    return _like(ones, x, dtype, device)


def full_like(x: Any, fill_value: complex, dtype: Any = None, device: Device | None = None) -> Tensor:
    """A tensor filled with one number (or a 0-d tensor), of the shape, dtype and device of `x`.

    >>> import functad as fd
    >>> fd.full_like(fd.tensor([1.0, 2.0]), 7).tolist()
    [7.0, 7.0]
    """
    return _like(lambda shape, *rest: full(shape, fill_value, *rest), x, dtype, device)


def as_shape(shape: Shape, where: str) -> tuple[int, ...]:
    """A shape as a user writes it, checked."""
    try:
        sizes = tuple(map(operator.index, several(shape)))
    except TypeError:
        raise ArgumentTypeError(
            f"{where}: a shape is an int or a tuple of ints, got {shape!r}.{without_value(shape)}"
        ) from None
    if any(n < 0 for n in sizes):
        raise ShapeError(f"{where}: a shape cannot have a negative length, got {shape!r}.")
    return sizes


def _make(array: np.ndarray[Any, Any], dtype: dtypes.DType, device: Device | None, where: str) -> Tensor:
    target = checked(device, where)
    return target.lift(target.base.put(array, dtype, where))


def _spaced(where: str, make: Any, *args: Any) -> np.ndarray[Any, Any]:
    """What NumPy makes of numbers, or an error for what are none."""
    try:
        array: np.ndarray[Any, Any] = make(*args)
    except FunctadError:  # a tensor that is tracked, say
        raise
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{where}: takes finite numbers, got {', '.join(map(repr, args))} ({error}).") from None
    return array


def _like(make: Any, x: Any, dtype: Any, device: Device | None) -> Tensor:
    if not isinstance(x, Handle):
        x = tensor(x)
    made: Tensor = make(x.shape, x.dtype if dtype is None else dtype, x.device if device is None else device)
    return made


def _nested(data: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"tensor: the nested lists are ragged, so they have no shape ({error}).") from None
    return as_array(array, "tensor")


def _flat(data: Any) -> Any:
    for x in data:
        if isinstance(x, (list, tuple)):
            yield from _flat(x)
        else:
            yield x
