"""What dtypes there are and how they combine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from functad import dtypes, ops
from functad.device import Device, checked
from functad.errors import ArgumentError, DTypeError
from functad.ops.operand import operand
from functad.tensor import Tensor

__all__ = [
    "__array_namespace_info__", "astype", "can_cast", "cdouble", "complex_", "complexfloating", "csingle", "double", "dtype",
    "finfo", "float_", "floating", "generic", "half", "iinfo", "inexact", "int_", "integer", "isdtype", "issubdtype", "ndarray",
    "number", "promote_types", "result_type", "signedinteger", "single", "unsignedinteger",
]  # fmt: skip

dtype, ndarray = np.dtype, Tensor
generic, number, integer, inexact = np.generic, np.number, np.integer, np.inexact
signedinteger, unsignedinteger = np.signedinteger, np.unsignedinteger
floating, complexfloating = np.floating, np.complexfloating
half, single, double = dtypes.float16, dtypes.float32, dtypes.float64
csingle, cdouble = dtypes.complex64, dtypes.complex128
int_, float_, complex_ = int, float, complex  # as dtypes, those of Python numbers

_KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}


@dataclass(frozen=True)
class FInfo:
    """The limits of a float dtype; of a complex one, those of its parts."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: dtypes.DType
    epsneg: float
    resolution: float
    smallest_subnormal: float
    nmant: int
    nexp: int

    @property
    def tiny(self) -> float:
        """The smallest positive normal number."""
        return self.smallest_normal


@dataclass(frozen=True)
class IInfo:
    """The limits of an integer dtype."""

    bits: int
    max: int
    min: int
    dtype: dtypes.DType


def finfo(type: Any, /) -> FInfo:
    """The limits of a float or complex dtype, or of that of a tensor.

    >>> import functad.numpy as fnp
    >>> fnp.finfo("float32").eps == 2.0**-23, fnp.finfo(fnp.bfloat16).bits
    (True, 16)
    """
    dtype = _dtype(type, "finfo")
    if not dtypes.is_inexact(dtype):
        raise DTypeError(f"finfo: takes a float or complex dtype, got {dtype}; of integers use iinfo.")
    info: Any = jnp.finfo(dtype)
    return FInfo(
        bits=int(info.bits),
        eps=float(info.eps),
        max=float(info.max),
        min=float(info.min),
        smallest_normal=float(info.smallest_normal),
        dtype=np.dtype(info.dtype),
        epsneg=float(info.epsneg),
        resolution=float(info.resolution),
        smallest_subnormal=float(info.smallest_subnormal),
        nmant=int(info.nmant),
        nexp=int(info.nexp),
    )


def iinfo(type: Any, /) -> IInfo:
    """The limits of an integer dtype, or of that of a tensor.

    >>> import functad.numpy as fnp
    >>> fnp.iinfo("int8").max
    127
    """
    dtype = _dtype(type, "iinfo")
    if dtype.kind not in "iu":
        raise DTypeError(f"iinfo: takes an integer dtype, got {dtype}; of floats use finfo.")
    info = np.iinfo(dtype)
    return IInfo(int(info.bits), int(info.max), int(info.min), dtype)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a dtype is `kind`: a dtype, the name of a kind, or a tuple of these.

    Kinds are "bool", "signed integer", "unsigned integer", "integral", "real floating", "complex
    floating" and "numeric".

    >>> import functad.numpy as fnp
    >>> fnp.isdtype(fnp.float32, "real floating"), fnp.isdtype(fnp.int8, (fnp.int16, "integral"))
    (True, True)
    """
    dtype = _dtype(dtype, "isdtype")
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in _KINDS:
            listed = ", ".join(map(repr, _KINDS))
            raise ArgumentError(f"isdtype: kind={kind!r} is neither a dtype nor one of {listed}.")
        return ("f" if dtypes.is_float(dtype) else dtype.kind) in _KINDS[kind]
    return bool(dtype == _dtype(kind, "isdtype"))


def issubdtype(arg1: Any, arg2: Any) -> bool:
    """Whether a dtype is of a kind of NumPy's hierarchy (`np.floating`, `np.integer`, ...).

    >>> import numpy as np, functad.numpy as fnp
    >>> fnp.issubdtype(fnp.bfloat16, np.floating)
    True
    """
    return bool(jnp.issubdtype(arg1, arg2))


def can_cast(from_: Any, to: Any, casting: str = "safe") -> bool:
    """Whether values of one dtype (or a tensor) fit another without loss; `casting` as in NumPy.

    >>> import functad.numpy as fnp
    >>> fnp.can_cast("int8", "int16"), fnp.can_cast("float32", "int32")
    (True, False)
    """
    source, target = _dtype(from_, "can_cast"), _dtype(to, "can_cast")
    if casting not in ("no", "equiv", "safe", "same_kind", "unsafe"):
        raise ArgumentError(f"can_cast: casting={casting!r} is not 'no', 'equiv', 'safe', 'same_kind' or 'unsafe'.")
    return bool(np.can_cast(source, target, casting))  # type: ignore[arg-type]


def result_type(*arrays_and_dtypes: Any) -> dtypes.DType:
    """The dtype of an operation between tensors, dtypes and Python numbers.

    >>> import functad.numpy as fnp
    >>> fnp.result_type(fnp.int8, fnp.ones(1, dtype="int16"), 1.0)
    dtype('float32')
    """
    if not arrays_and_dtypes:
        raise ArgumentError("result_type: needs at least one tensor, dtype or number.")
    numbers = [type(x) for x in arrays_and_dtypes if isinstance(x, dtypes.SCALARS) and not isinstance(x, np.generic)]
    strong = [
        _dtype(x, "result_type")
        for x in arrays_and_dtypes
        if not isinstance(x, dtypes.SCALARS) or isinstance(x, np.generic)
    ]
    if not strong:
        return dtypes.of_scalar(max(numbers, key=dtypes.SCALARS.index)(0))
    dtype = dtypes.promote(*strong)
    for number in numbers:
        dtype = dtypes.with_scalar(dtype, number)
    return dtype


def promote_types(type1: Any, type2: Any) -> dtypes.DType:
    """The common dtype of two, by the rules for tensors.

    >>> import functad.numpy as fnp
    >>> fnp.promote_types("int32", "float32")
    dtype('float32')
    """
    return dtypes.promote(_dtype(type1, "promote_types"), _dtype(type2, "promote_types"))


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Device | None = None) -> Any:
    """`x` with another dtype (and on another device); differentiable between floats and complex numbers.

    >>> import functad.numpy as fnp
    >>> fnp.astype([1.7, -1.7], int).tolist()
    [1, -1]
    """
    out = ops.astype(x, dtype)
    return out if device is None else ops.to_device(out, device)


def _dtype(given: Any, where: str) -> dtypes.DType:
    if not isinstance(given, type) and hasattr(given, "dtype") and hasattr(given, "shape"):
        return np.dtype(given.dtype)
    if given is None:
        raise DTypeError(f"{where}: None is not a dtype.")
    if isinstance(given, (list, tuple)):
        return np.dtype(operand(given, where=where).dtype)
    return dtypes.parse(given, where)


class NamespaceInfo:
    """What `__array_namespace_info__()` returns: the standard's questions about a library."""

    def capabilities(self) -> dict[str, Any]:
        """What may be done: boolean masks and results whose shapes depend on data (not under jit), and how many axes."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": 64}

    def default_device(self) -> Device:
        """Where new tensors live."""
        return Device.default()

    def devices(self) -> list[Device]:
        """Every device of this process."""
        return Device.enumerate()

    def default_dtypes(self, *, device: Any = None) -> dict[str, dtypes.DType]:
        """The dtypes of Python numbers, and of indices."""
        checked(device, "default_dtypes")
        return {
            "real floating": dtypes.default_float(),
            "complex floating": dtypes.default_complex(),
            "integral": dtypes.default_int(),
            "indexing": dtypes.default_int(),
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, dtypes.DType]:
        """The standard's dtypes that a device holds, all or those of a kind; 64 bits on XLA in x64 mode only."""
        base = checked(device, "dtypes").base
        names = (
            "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64",
            "complex64", "complex128",
        )  # fmt: skip
        found = {}
        for name in names:
            dtype = np.dtype(name)
            try:
                base.requires(dtype, "dtypes")
            except DTypeError:
                continue
            if kind is None or isdtype(dtype, kind):
                found[name] = dtype
        return found

    def __repr__(self) -> str:
        return "<functad.numpy's answers to the array API standard>"


def __array_namespace_info__() -> NamespaceInfo:  # noqa: N807  # the standard's name
    """What the standard asks of a library: its devices, dtypes and capabilities."""
    return NamespaceInfo()
