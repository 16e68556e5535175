"""Making tensors: from data, by formula, on grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from functad import creation, dtypes, ops
from functad.device import Device, checked
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.numpy.arguments import host
from functad.ops.axes import counted
from functad.ops.halves import rounded_once
from functad.ops.join import joined
from functad.ops.operand import as_array, holds_tensors, operand, operands
from functad.tensor import Tensor

__all__ = [
    "arange", "array", "asanyarray", "asarray", "ascontiguousarray", "diagflat", "empty", "empty_like", "eye",
    "from_dlpack", "frombuffer", "fromfunction", "fromiter", "full", "full_like", "geomspace", "identity", "linspace",
    "logspace", "ones", "ones_like", "tri", "vander", "zeros", "zeros_like",
]  # fmt: skip


def asarray(
    obj: Any, dtype: Any = None, order: str | None = None, *, device: Device | None = None, copy: bool | None = None
) -> Any:
    """`obj` as a tensor: a number, nested lists (of numbers or of tensors), an array, a tensor, a buffer (array.array).

    Args:
        obj: the data. Gradients flow through tensors, also through those in a list.
        dtype: the dtype; by default that of the data, float64 as the default float.
        order: there for NumPy's sake; tensors have no strides.
        device: where it is to live.
        copy: False raises where data would have to be copied, which is all but a tensor that fits.

    >>> import functad as fd
    >>> fd.numpy.asarray([fd.tensor(1.0), 2.0]).tolist()
    [1.0, 2.0]
    """
    if copy is False and not _fits(obj, dtype, device):
        raise ArgumentError("asarray: copy=False, but only a tensor of this dtype and device is taken without a copy.")
    if isinstance(obj, (list, tuple)) and holds_tensors(obj):
        obj = joined(obj)
    return creation.tensor(obj, dtype, device)


def array(
    object: Any, dtype: Any = None, *, copy: bool | None = True, order: str | None = None, subok: bool = False,
    ndmin: int = 0, device: Device | None = None,
) -> Any:  # fmt: skip
    """`asarray`, with at least `ndmin` axes.

    >>> import functad.numpy as fnp
    >>> fnp.array([1, 2], ndmin=2).shape
    (1, 2)
    """
    x = asarray(object, dtype, device=device, copy=False if copy is False else None)
    return ops.reshape(x, (1,) * (ndmin - x.ndim) + x.shape) if x.ndim < ndmin else x


asanyarray = ascontiguousarray = asarray


def _fits(obj: Any, dtype: Any, device: Device | None) -> bool:
    if not isinstance(obj, Tensor):
        return False
    return (dtype is None or obj.dtype == dtypes.parse(dtype, "asarray")) and (device is None or obj.device == device)


# --- by shape


def zeros(shape: Any, dtype: Any = None, order: str = "C", *, device: Device | None = None) -> Any:
    """A tensor of zeros, of the default float unless told otherwise.

    >>> import functad.numpy as fnp
    >>> fnp.zeros(2).tolist()
    [0.0, 0.0]
    """
    return creation.zeros(_shape(shape), dtype, device)


def ones(shape: Any, dtype: Any = None, order: str = "C", *, device: Device | None = None) -> Any:
    """A tensor of ones, of the default float unless told otherwise.

    >>> import functad.numpy as fnp
    >>> fnp.ones(2).tolist()
    [1.0, 1.0]
    """
    return creation.ones(_shape(shape), dtype, device)


def empty(shape: Any, dtype: Any = None, order: str = "C", *, device: Device | None = None) -> Any:
    """`zeros`: tensors are immutable, so one without values would be of no use.

    >>> import functad.numpy as fnp
    >>> fnp.empty((2, 0)).shape
    (2, 0)
    """
    return creation.zeros(_shape(shape), dtype, device)


def full(shape: Any, fill_value: Any, dtype: Any = None, order: str = "C", *, device: Device | None = None) -> Any:
    """A tensor filled with a number, or with what broadcasts to its shape; gradients flow to a tensor.

    >>> import functad.numpy as fnp
    >>> fnp.full((2, 2), [1, 2]).tolist()
    [[1, 2], [1, 2]]
    """
    if isinstance(fill_value, (list, tuple, np.ndarray)):
        fill_value = asarray(fill_value, dtype, device=device)
    return creation.full(_shape(shape), fill_value, dtype, device)


def zeros_like(
    x: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Device | None = None
) -> Any:
    """Zeros of the shape, dtype and device of `x`.

    >>> import functad.numpy as fnp
    >>> fnp.zeros_like([1, 2]).tolist()
    [0, 0]
    """
    return _like(0, x, dtype, shape, device)


def ones_like(
    x: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Device | None = None
) -> Any:
    """Ones of the shape, dtype and device of `x`.

    >>> import functad.numpy as fnp
    >>> fnp.ones_like([1.5, 2.0]).tolist()
    [1.0, 1.0]
    """
    return _like(1, x, dtype, shape, device)


def empty_like(
    x: Any, dtype: Any = None, order: str = "K", subok: bool = True, shape: Any = None, *, device: Device | None = None
) -> Any:
    """`zeros_like`: see `empty`.

    >>> import functad.numpy as fnp
    >>> fnp.empty_like([1, 2]).shape
    (2,)
    """
    return _like(0, x, dtype, shape, device)


def full_like(
    x: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Device | None = None,
) -> Any:
    """A tensor filled with `fill_value`, of the shape, dtype and device of `x`.

    >>> import functad.numpy as fnp
    >>> fnp.full_like([1.0, 2.0], 3).tolist()
    [3.0, 3.0]
    """
    return _like(fill_value, x, dtype, shape, device)


def _like(fill: Any, x: Any, dtype: Any, shape: Any, device: Device | None) -> Any:
    x = operand(x, where="full_like")
    wanted = x.dtype if dtype is None else dtypes.parse(dtype, "full_like")
    return full(x.shape if shape is None else shape, fill, wanted, device=x.device if device is None else device)


def _shape(shape: Any) -> Any:
    return tuple(shape) if isinstance(shape, (np.ndarray, range)) else shape


def eye(N: Any, M: Any = None, k: int = 0, dtype: Any = None, order: str = "C", *, device: Device | None = None) -> Any:  # noqa: N803  # NumPy's names
    """An `N` by `M` matrix with ones on its `k`-th diagonal.

    >>> import functad.numpy as fnp
    >>> fnp.eye(2, 3, 1).tolist()
    [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    n = counted(N, "eye", "N")
    m = n if M is None else counted(M, "eye", "M")
    if min(n, m) < 0:
        raise ShapeError(f"eye: lengths are not negative, got {n} and {m}.")
    return creation.eye(n, m, counted(k, "eye", "k"), dtype, device)


def identity(n: int, dtype: Any = None) -> Any:
    """The `n` by `n` unit matrix.

    >>> import functad.numpy as fnp
    >>> fnp.identity(2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None, *, device: Device | None = None) -> Any:  # noqa: N803
    """An `N` by `M` matrix of ones at and below the `k`-th diagonal.

    >>> import functad.numpy as fnp
    >>> fnp.tri(2, 3).tolist()
    [[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, "tri")
    rows, columns = creation.as_shape((N, N if M is None else M), "tri")
    return creation.tensor(np.tri(rows, columns, counted(k, "tri", "k"), dtype=bool), wanted, device)


def diagflat(v: Any, k: int = 0) -> Any:
    """A matrix with the elements of `v` on its `k`-th diagonal.

    >>> import functad.numpy as fnp
    >>> fnp.diagflat([[1, 2]]).tolist()
    [[1, 0], [0, 2]]
    """
    return ops.diag(ops.ravel(v), k)


# --- ranges


def arange(start: Any, stop: Any = None, step: Any = 1, dtype: Any = None, *, device: Device | None = None) -> Any:
    """Evenly spaced numbers from `start` up to, not including, `stop`; the numbers are concrete.

    >>> import functad.numpy as fnp
    >>> fnp.arange(1, 7, 2).tolist()
    [1, 3, 5]
    """
    start, stop, step = (
        host(ops.reshape(x, ()), "arange").item() if isinstance(x, Handle) else x for x in (start, stop, step)
    )
    return creation.arange(start, stop, 1 if step is None else step, dtype, device)


@rounded_once
def linspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, retstep: bool = False, dtype: Any = None,
    axis: int = 0, *, device: Device | None = None,
) -> Any:  # fmt: skip
    """`num` evenly spaced numbers from `start` to `stop`, which may be arrays, and tensors with gradients.

    Args:
        start: the first number.
        stop: the last, or with `endpoint=False` the one after it.
        num: how many.
        endpoint: whether `stop` is one of them.
        retstep: whether to return a pair with the distance.
        dtype: the dtype; rounded down if of integers.
        axis: where the new axis goes.
        device: where the result is to live.

    >>> import functad as fd
    >>> fd.numpy.linspace(0.0, 1.0, 3).tolist()
    [0.0, 0.5, 1.0]
    >>> fd.grad(lambda stop: fd.numpy.linspace(0.0, stop, 3).sum())(2.0).item()
    1.5
    """
    num = _how_many(num, "linspace")
    pieces = num - 1 if endpoint else num
    if _numbers(start, stop):
        kind = (
            dtypes.default_complex()
            if isinstance(start + stop, (complex, np.complexfloating))
            else dtypes.default_float()
        )
        wanted = kind if dtype is None else dtypes.parse(dtype, "linspace")
        out: Any = creation.tensor(np.linspace(start, stop, num, endpoint, dtype=_host_dtype(wanted)), wanted, device)
        step = creation.tensor((stop - start) / pieces if pieces > 0 else math.nan, kind, device)
        return (out, step) if retstep else out
    like = next((x for x in (start, stop) if isinstance(x, Handle)), None)
    if like is None and device is not None:
        start = creation.tensor(start, None, device)
    start, stop = operands("linspace", "float", (start, stop))
    if like is not None and device is not None:
        start, stop = start.to_device(device), stop.to_device(device)
    part = np.arange(num, dtype=np.float64) / (pieces or 1)
    shape = ops.broadcast_shapes(start._shape, stop._shape)
    real = dtypes.float32 if start._dtype.itemsize < 8 or start._dtype == dtypes.complex64 else dtypes.float64
    part = operand(part.reshape((num, *[1] * len(shape))), start, start._dtype if start._dtype.kind != "c" else real)
    out = start * (1 - part) + stop * part  # exact at both ends
    out = ops.moveaxis(ops.broadcast_to(out, (num, *shape)), 0, axis)
    if dtype is not None:
        wanted = dtypes.parse(dtype, "linspace")
        out = (out if dtypes.is_inexact(wanted) else ops.floor(out)).astype(wanted)
    return (out, (stop - start) / (pieces if pieces > 0 else math.nan)) if retstep else out


@rounded_once
def logspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, base: Any = 10.0, dtype: Any = None, axis: int = 0
) -> Any:
    """`base` to the powers `linspace(start, stop, num)`.

    >>> import functad.numpy as fnp
    >>> fnp.logspace(0, 2, 3, base=2.0).tolist()
    [1.0, 2.0, 4.0]
    """
    num = _how_many(num, "logspace")
    if _numbers(start, stop, base):
        return creation.tensor(np.logspace(start, stop, num, endpoint, base), dtype)
    powers = linspace(start, stop, num, endpoint, axis=axis)
    if isinstance(base, Handle) and base.ndim:
        base = ops.expand_dims(base, axis)
    out = ops.pow(base, powers)
    return out if dtype is None else out.astype(dtype)


@rounded_once
def geomspace(start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0) -> Any:
    """`num` numbers from `start` to `stop`, each the same multiple of the one before; none may be 0.

    >>> import functad.numpy as fnp
    >>> [round(x, 4) for x in fnp.geomspace(1.0, 8.0, 4).tolist()]
    [1.0, 2.0, 4.0, 8.0]
    """
    num = _how_many(num, "geomspace")
    if _numbers(start, stop):
        if not start or not stop:
            raise ArgumentError(f"geomspace: neither end may be 0, got {start} and {stop}.")
        return creation.tensor(np.geomspace(start, stop, num, endpoint), dtype)
    start, stop = operands("geomspace", "float", (start, stop))
    quotient = stop / start
    part = linspace(0.0, 1.0, num, endpoint)
    shape = ops.broadcast_shapes(start._shape, stop._shape)
    part = operand(part.numpy(), start, None).astype(start._dtype).reshape((num, *[1] * len(shape)))
    out = ops.where(part == 1, stop, start * ops.pow(quotient, part))
    out = ops.moveaxis(ops.broadcast_to(out, (num, *shape)), 0, axis)
    return out if dtype is None else out.astype(dtype)


def _how_many(num: Any, where: str) -> int:
    if (count := counted(num, where, "num")) < 0:
        raise ArgumentError(f"{where}: num must not be negative, got {num}.")
    return count


def _numbers(*values: Any) -> bool:
    return all(isinstance(x, (int, float, complex, np.number)) for x in values)


def _host_dtype(wanted: dtypes.DType) -> Any:
    return wanted if wanted.kind in "iu" else (np.complex128 if wanted.kind == "c" else np.float64)


@rounded_once
def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803
    """The matrix of the powers of a vector, highest first unless `increasing`.

    >>> import functad.numpy as fnp
    >>> fnp.vander([2, 3], 3).tolist()
    [[4, 2, 1], [9, 3, 1]]
    """
    x = operand(x, where="vander")
    if x.ndim != 1:
        raise ShapeError(f"vander: takes a vector, got shape {x.shape}.")
    columns = x.size if N is None else counted(N, "vander", "N")
    powers = np.arange(columns) if increasing else np.arange(columns)[::-1]
    return ops.pow(ops.expand_dims(x, 1), operand(powers.copy(), x, dtypes.default_int()))


# --- from elsewhere


def fromfunction(function: Callable[..., Any], shape: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    """`function` of the index arrays of a shape, as floats unless `dtype` says otherwise.

    >>> import functad.numpy as fnp
    >>> fnp.fromfunction(lambda i, j: i + j, (2, 2)).tolist()
    [[0.0, 1.0], [1.0, 2.0]]
    """
    sizes = creation.as_shape(shape, "fromfunction")
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, "fromfunction")
    return function(*[creation.tensor(i, wanted) for i in np.indices(sizes)], **kwargs)


def fromiter(iter: Iterable[Any], dtype: Any = None, count: int = -1) -> Any:
    """The numbers of an iterable as a vector.

    >>> import functad.numpy as fnp
    >>> fnp.fromiter((i * i for i in range(3)), int).tolist()
    [0, 1, 4]
    """
    found = [x for i, x in enumerate(iter) if count < 0 or i < count]
    return asarray(found, dtype)


def frombuffer(buffer: Any, dtype: Any = float, count: int = -1, offset: int = 0) -> Any:
    """The bytes of a buffer as a vector of `dtype`.

    >>> import functad.numpy as fnp
    >>> fnp.frombuffer(bytes([1, 0, 2, 0]), "int16").tolist()
    [1, 2]
    """
    wanted = dtypes.parse(dtype, "frombuffer")
    return creation.tensor(np.frombuffer(buffer, wanted, count, offset), wanted)


def from_dlpack(x: Any, /, *, device: Device | None = None, copy: bool | None = None) -> Any:
    """A tensor from an array of another library that speaks the DLPack protocol (PyTorch, CuPy, NumPy, ...).

    Its elements are copied, as a tensor is immutable and the other array may not be; `copy=False`
    raises. A tensor is taken as it is.

    >>> import numpy as np, functad.numpy as fnp
    >>> fnp.from_dlpack(np.arange(3)).tolist()
    [0, 1, 2]
    """
    if isinstance(x, Tensor):
        return asarray(x, device=device, copy=False if copy is False else None)
    if not hasattr(x, "__dlpack__"):
        raise ArgumentTypeError(f"from_dlpack: expected an array with a __dlpack__ method, got {x!r}.")
    if copy is False:
        raise ArgumentError("from_dlpack: copy=False, but elements are always copied: tensors are immutable.")
    try:
        data: Any = np.from_dlpack(x)
    except (BufferError, RuntimeError, TypeError, ValueError):  # bfloat16, or an accelerator's
        data = jax.dlpack.from_dlpack(x)
    return checked(device, "from_dlpack").lift(checked(device, "from_dlpack").base.put(as_array(data, "from_dlpack")))
