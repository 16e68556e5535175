"""The front door's first half: what a user passes becomes tensors of one dtype."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any, Literal, NoReturn

import jax
import numpy as np

from functad import dtypes
from functad.device import Device
from functad.dispatch import Handle, base_backend
from functad.dtypes import DType
from functad.errors import ArgumentTypeError, DTypeError, ShapeError
from functad.habits import NoArithmetic

Promote = Literal["numeric", "count", "float", "compare", "logical", "bits", "same"]
"""How an op unifies dtypes: `count` also turns bools into integers, `float` integers into floats, `logical` everything into
bool, `bits` takes integers and bools only, `same` leaves each operand as it is."""

_WEAK = ("numeric", "float", "count")
_NUMBERS = (float, int)


def operand(x: Any, like: Any = None, dtype: DType | None = None, where: str = "functad") -> Any:
    """`x` as a tensor, on the device of the tensor `like` (else the default device)."""
    if isinstance(x, Handle):
        if dtype is None or x._dtype == dtype:
            return x
        _check_real(x._dtype.kind, dtype, where)
        return x.astype(dtype)  # type: ignore[attr-defined]  # Tensor's
    if type(x) is list and _lists_numbers(x):
        return operand(JOIN[0](x), like, dtype, where)
    base = base_backend(like) if like is not None else Device.default().base
    if isinstance(x, dtypes.SCALARS):
        if dtype is not None and isinstance(x, complex):
            _check_real("c", dtype, where)
        return base.scalar(x, dtypes.of_scalar(x) if dtype is None else dtype)
    return base.put(as_array(x, where), dtype, brief=True)


def _check_real(kind: str, dtype: DType, where: str) -> None:
    """Refuse to leave an imaginary part out silently."""
    if kind == "c" and dtype.kind not in "cb":
        raise DTypeError(f"{where}: complex numbers do not fit {dtype}; take their .real or .imag, or abs.")


def holds_tensors(x: Any) -> bool:
    """Whether a nested list holds a tensor."""
    return any(isinstance(y, Handle) or (isinstance(y, (list, tuple)) and holds_tensors(y)) for y in x)


JOIN: list[Any] = []
"""The function that makes one tensor of nested lists, once there is one."""


def _lists_numbers(xs: list[Any]) -> bool:
    """Whether nested lists hold nothing but numbers, some of them 0-d tensors: no layer returns its results so."""
    found = False
    for x in xs:
        if isinstance(x, Handle):
            if x._shape:
                return False
            found = True
        elif type(x) is list:
            if not _lists_numbers(x):
                return False
            found = True
        elif not isinstance(x, (*dtypes.SCALARS, np.generic)):
            return False
    return found


def as_array(x: Any, where: str) -> Any:
    """`x` as a NumPy or JAX array, or an error that says what was passed."""
    if isinstance(x, jax.Array) and not hasattr(x.dtype, "kind"):
        raise ArgumentTypeError(
            f"{where}: a typed key of JAX ({x.dtype}) is no tensor; make one with fd.random.key(seed), or pass "
            "jax.random.key_data(key)."
        )
    if isinstance(x, (np.ndarray, np.generic, jax.Array)) and x.dtype.kind not in "OUSMm":
        if dtypes.is_usual(x.dtype) or isinstance(x, jax.Array):
            return x
        return x if (dtype := dtypes.native(x.dtype, where)) == x.dtype else x.astype(dtype)
    if hasattr(x, "__jax_array__"):
        return x.__jax_array__()
    if isinstance(x, (list, tuple)) and holds_tensors(x):
        _refuse_several(x, where)
    if isinstance(x, (list, tuple)) or hasattr(x, "__array__") or hasattr(x, "__dlpack__") or _has_buffer(x):
        array = _read(x, where)
        if isinstance(array, jax.Array):
            return array
        if array.dtype.kind in "biufc":
            return array if dtypes.is_usual(array.dtype) else array.astype(dtypes.native(array.dtype, where))
        if array.dtype == object and array.size and all(isinstance(value, int) for value in array.flat):
            raise DTypeError(
                f"{where}: the value {max(array.flat, key=abs)} fits no integer dtype; write it as a float."
            )
    hint = "; x.grad(grads) is None where there is no gradient, and grads.explain(x) says why" if x is None else ""
    if isinstance(x, NoArithmetic):
        hint = f"; {x._instead}"
    shown = f"a {type(x).__name__}" if hint and x is not None else f"{x!r} of type {type(x).__name__}"
    raise ArgumentTypeError(f"{where}: expected a tensor, an array or a number, got {shown}{hint}.")


def _has_buffer(x: Any) -> bool:
    """Whether `x` shows its memory as numbers: array.array, bytearray, memoryview, mmap and the like; not text."""
    try:
        return not isinstance(x, bytes) and memoryview(x).format != "c"
    except TypeError:
        return False


def _read(x: Any, where: str) -> np.ndarray[Any, Any] | jax.Array:
    try:
        return np.asarray(x)
    except TypeError:  # torch's bfloat16, which NumPy lacks
        if not hasattr(x, "__dlpack__"):
            raise
        return jax.numpy.array(jax.dlpack.from_dlpack(x))  # a copy: the other library may write into it
    except ValueError:
        if not isinstance(x, (list, tuple)):
            raise
    raise ShapeError(
        f"{where}: the nested list {reprlib.repr(x)} is no array, as its rows differ in length; make them equal, or pass one "
        "at a time."
    )


def _refuse_several(x: list[Any] | tuple[Any, ...], where: str) -> NoReturn:
    """Raise for a list of tensors: taken for one tensor, the result of a layer that returns several would go on as nonsense."""
    kind = type(x).__name__
    if all(isinstance(y, Handle) for y in x):
        what = f"{kind} of {len(x)} tensor{'s' * (len(x) != 1)}, of shape {', '.join([str(y._shape) for y in x[:4]])}"
    else:
        what = f"{kind} of {len(x)} items, tensors among them"
    raise ArgumentTypeError(
        f"{where}: an argument is a {what}{', ...' * (len(x) > 4)}, where one tensor is expected. Stack them with "
        "fd.stack, or unpack: out, state = gru(x) and out, weights = attention(q, k, v), say."
    )


def without_value(shape: Any) -> str:
    """What to do about a tensor where a number of Python's is wanted, for a message; nothing if there is none."""
    parts = shape if isinstance(shape, (tuple, list)) else (shape,)
    if not any(isinstance(n, Handle) and n.ndim < 2 for n in parts):
        return ""
    return (
        " Inside fd.jit and fd.vmap values are not known, and those that decide shapes have to be: pass such a number as a static "
        "argument (static_argnums), or take it from x.shape."
    )


def operands(name: str, promote: Promote, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Every input as a tensor of the op's common dtype; Python numbers are weakly typed."""
    if len(inputs) == 2 and promote in _WEAK:  # the usual case: a float tensor and a number
        x, y = inputs
        if type(y) in _NUMBERS and isinstance(x, Handle) and x._dtype.kind == "f":
            return x, base_backend(x).scalar(y, x._dtype)
        if type(x) in _NUMBERS and isinstance(y, Handle) and y._dtype.kind == "f":
            return base_backend(y).scalar(x, y._dtype), y
    like = next((x for x in inputs if isinstance(x, Handle)), None)
    if promote == "same":
        return tuple([operand(x, like, where=name) for x in inputs])
    values = [x if isinstance(x, (Handle, *dtypes.SCALARS)) else operand(x, like, where=name) for x in inputs]
    dtype = _common(name, promote, values)
    if dtype == dtypes.int64 and promote == "compare" and like is not None:
        values, dtype = _without_int64(like, values, dtype)
    return tuple([operand(x, like, dtype, name) for x in values])


def _common(name: str, promote: Promote, values: Sequence[Any]) -> DType:
    if promote == "logical":
        return dtypes.bool_
    strong = [x._dtype for x in values if isinstance(x, Handle)]
    weak = [x for x in values if not isinstance(x, Handle)]
    dtype = dtypes.promote(*strong) if strong else dtypes.of_scalar(max(weak, key=_kind_rank))
    for scalar in weak:
        dtype = dtypes.with_scalar(dtype, type(scalar))
    if promote == "compare" and dtype.kind in "iu":
        dtype = _holding(dtype, [x for x in weak if isinstance(x, int)])
    if promote == "float" and not dtypes.is_inexact(dtype):
        return dtypes.float_of(dtype)
    if promote == "count" and dtype == dtypes.bool_:
        return dtypes.default_int()
    if promote == "bits" and dtypes.is_inexact(dtype):
        raise DTypeError(f"{name}: takes integers or bools, got {dtype}; write x.astype(int) first.")
    return dtype


def _holding(dtype: DType, numbers: list[Any]) -> DType:
    """An integer dtype that also holds numbers that are only compared with: no uint8 equals 300."""
    for wide in (dtype, dtypes.int32, dtypes.int64):
        if np.can_cast(dtype, wide) and all(np.iinfo(wide).min <= x <= np.iinfo(wide).max for x in numbers):
            return wide
    return dtype


def _without_int64(like: Any, values: list[Any], dtype: DType) -> tuple[list[Any], DType]:
    """Where there is no int64, integers are compared as floats with a number that none of them reaches: by its sign."""
    numbers = [x for x in values if not isinstance(x, Handle)]
    if dtypes.x64_enabled() or len(numbers) != 1 or like._dtype == dtype:  # NumPy has int64, but for fd.jit
        return values, dtype
    far = float("inf") if numbers[0] > 0 else -float("inf")
    return [x if isinstance(x, Handle) else far for x in values], dtypes.float32


def _kind_rank(scalar: Any) -> int:
    return dtypes.SCALARS.index(type(scalar)) if type(scalar) in dtypes.SCALARS else 1
