"""Dtypes: defaults, promotion, and the refusal to lose precision silently."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from functad.errors import DTypeError

DType: TypeAlias = np.dtype[Any]

float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
float16 = np.dtype(np.float16)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
uint8 = np.dtype(np.uint8)
uint16 = np.dtype(np.uint16)
uint32 = np.dtype(np.uint32)
uint64 = np.dtype(np.uint64)
bool_ = np.dtype(np.bool_)
complex64 = np.dtype(np.complex64)
complex128 = np.dtype(np.complex128)

SCALARS = (bool, int, float, complex)
_HALF = (float16, bfloat16)
_WIDE = {float64: float32, complex128: complex64, int64: int32, uint64: uint32}
_USUAL = {
    bool_,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    *_HALF,
    float32,
    float64,
    complex64,
    complex128,
}
_PYTHON: dict[str, type] = {"float": float, "int": int, "complex": complex}
_NAMES = {"bf16": bfloat16, "f16": float16, "f32": float32, "f64": float64, "bfloat16": bfloat16, "bool": bool_}


class enable_x64(AbstractContextManager["enable_x64"]):
    """Allow float64 on XLA, from now on or inside a `with` block (JAX's own switch).

    >>> import functad as fd
    >>> with fd.enable_x64():
    ...     fd.ones(2, dtype="float64").dtype
    dtype('float64')
    """

    def __init__(self, enabled: bool = True):
        self._before = jax.config.read("jax_enable_x64")
        _switch(bool(enabled))

    def __exit__(self, *exc: object) -> None:
        _switch(self._before)


BEFORE_SWITCH: list[Callable[[], None]] = []
"""What has to be done before the mode changes."""


def _switch(enabled: bool) -> None:
    for prepare in BEFORE_SWITCH:
        prepare()
    jax.config.update("jax_enable_x64", enabled)


def x64_enabled() -> bool:
    """Whether JAX computes in 64 bits."""
    return bool(jax.config.read("jax_enable_x64"))


def default_float() -> DType:
    """The dtype of Python floats and of float data without a dtype."""
    return float64 if x64_enabled() else float32


def float_of(dtype: DType) -> DType:
    """The float dtype that functions such as `sin` compute integers of `dtype` in, as in JAX."""
    return float64 if dtype in (int64, uint64) and x64_enabled() else float32


def default_int() -> DType:
    """The dtype of Python ints and of indices."""
    return int64 if x64_enabled() else int32


def default_complex() -> DType:
    """The dtype of Python complex numbers."""
    return complex128 if x64_enabled() else complex64


@lru_cache(1024)
def is_inexact(dtype: DType) -> bool:
    """Whether tensors of `dtype` can carry a derivative (float or complex)."""
    return dtype.kind in "fc" or bool(jnp.issubdtype(dtype, jnp.inexact))


@lru_cache(1024)
def is_float(dtype: DType) -> bool:
    """Whether `dtype` is a real floating-point type."""
    return dtype.kind == "f" or bool(jnp.issubdtype(dtype, jnp.floating))


def is_half(dtype: DType) -> bool:
    """Whether sums of `dtype` are kept in float32."""
    return dtype in _HALF


def accumulator(dtype: DType) -> DType:
    """The dtype in which sums of `dtype` are kept until they are complete."""
    return float32 if dtype in _HALF else dtype


def of_scalar(value: object) -> DType:
    """The default dtype of a Python number."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, int):
        return default_int()
    return default_float() if isinstance(value, float) else default_complex()


def parse(dtype: Any, where: str) -> DType:
    """A dtype as a user writes it: `"float32"`, `np.float32`, `jnp.bfloat16`, `float`, ..."""
    if isinstance(dtype, type) and dtype in SCALARS:  # np.dtype(float) == float
        return of_scalar(dtype(0))
    if isinstance(dtype, int) and not isinstance(dtype, bool):
        raise DTypeError(f"{where}: {dtype!r} is not a dtype; a shape is one argument: {where}((2, 3)).")
    if hasattr(dtype, "ndim") and not isinstance(dtype, (type, np.dtype)):  # np.dtype would take that of an array
        raise DTypeError(f"{where}: the dtype cannot be an array or tensor; write dtype=x.dtype for that of one.")
    if isinstance(dtype, str) and dtype in _PYTHON:
        return of_scalar(_PYTHON[dtype](0))
    try:
        found = _NAMES[dtype] if isinstance(dtype, str) and dtype in _NAMES else np.dtype(dtype)
    except TypeError:
        raise DTypeError(f"{where}: {dtype!r} is not a dtype; write for example dtype='float32'.") from None
    return found if found in _USUAL else native(found, where)


def native(dtype: DType, where: str) -> DType:
    """`dtype` in the byte order of this machine; raises if tensors cannot have it."""
    found = dtype.newbyteorder("=")
    if found not in _USUAL and found.type.__module__ != ml_dtypes.__name__:
        raise DTypeError(
            f"{where}: a tensor cannot have dtype {dtype}. Convert the data before, for example with "
            "array.astype('float32'), or take a field of a structured array: array['x']."
        )
    return found


def is_usual(dtype: object) -> bool:
    """Whether `dtype` is one of the common ones, in the byte order of this machine."""
    return dtype in _USUAL


def refuse_wide(dtype: DType, where: str) -> None:
    """Raise if XLA would silently narrow `dtype`."""
    if dtype in _WIDE and not x64_enabled():
        raise DTypeError(
            f"{where}: {dtype} needs JAX's x64 mode, without which XLA would silently compute in "
            f"{_WIDE[dtype]}. Call fd.enable_x64() (or set JAX_ENABLE_X64=1) before, use the device "
            f"fd.Device.numpy(), or ask for dtype='{_WIDE[dtype]}'."
        )


def narrow(dtype: DType) -> DType:
    """What data of `dtype` becomes when no dtype was asked for (as in JAX)."""
    return dtype if x64_enabled() else _WIDE.get(dtype, dtype)


def promote(*dtypes: DType) -> DType:
    """The common dtype under JAX's promotion rules."""
    return dtypes[0] if len(set(dtypes)) == 1 else _promote(dtypes, x64_enabled())


@lru_cache(4096)
def _promote(dtypes: tuple[DType, ...], x64: bool) -> DType:
    if not x64 and any(d in _WIDE for d in dtypes):  # float64 tensors of the NumPy device
        with jax.enable_x64(True):
            return np.dtype(jnp.result_type(*dtypes))
    return np.dtype(jnp.result_type(*dtypes))


def with_scalar(dtype: DType, scalar_type: type) -> DType:
    """The dtype of an op between a tensor and a Python number, which is weakly typed."""
    if dtype.kind == "f" and (scalar_type is float or scalar_type is int):  # the usual case
        return dtype
    return _with_scalar(dtype, scalar_type, x64_enabled())


@lru_cache(4096)
def _with_scalar(dtype: DType, scalar_type: type, x64: bool) -> DType:  # x64 is what the defaults depend on
    is_complex = issubclass(scalar_type, complex)
    if scalar_type is bool or dtype.kind == "c" or (is_inexact(dtype) and not is_complex):
        return dtype
    if is_complex:
        return complex128 if dtype == float64 else complex64
    if issubclass(scalar_type, float):  # NumPy's float64 is one too
        return default_float()
    return default_int() if dtype == bool_ else dtype
