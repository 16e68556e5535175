"""Quantized tensors: 8-bit integers and a scale, per tensor or per block of the last axis.

The fourth kind of tensor: it is stored, moved and multiplied with, and never tracked. Its two parts
are integers (the scale by its bits), so every tape and transform passes it untouched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import numpy as np

from functad import dtypes, tree
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, UnknownAttributeError
from functad.keywords import explained
from functad.ops.op import Cost, Op, Samples
from functad.ops.operand import operand
from functad.ops.plan import every_value
from functad.ops.rules import linear, nondiff

__all__ = ["QuantScheme", "QuantTensor", "dequantize_op", "quant_matmul_op", "quantize", "quantize_dynamic"]

_LARGEST = 127
_LEAST = np.finfo(np.float32).tiny  # scales below it would lose digits, or be 0 where such numbers are flushed
_REFUSES = (
    "quantize: what is quantized (or its scale) is differentiated here, and through the integers no gradient flows: it would "
    "be zero without a word. For a frozen base write fd.stop_gradient(x).quantize_dynamic(scheme), or quantize before the "
    "transform; to train through the rounding fd.nn.functional.fake_quantize(x, scheme), which lets gradients pass."
)


@dataclass(frozen=True)
class QuantScheme:
    """How floats become 8-bit integers: symmetrically, zero at zero, with one scale per tensor or per block.

    Args:
        dtype: "int8".
        block: how many neighbours along the last axis share a scale (its whole length: one per row, which is one per
            output for a layer's weight); None for one scale in all.

    >>> import functad as fd
    >>> fd.QuantScheme(block=32)
    QuantScheme(dtype='int8', block=32)
    """

    dtype: str = "int8"
    block: int | None = None

    def __post_init__(self) -> None:
        if self.dtype != "int8":
            raise ArgumentError(f"QuantScheme: dtype must be 'int8', got {self.dtype!r}.")
        if self.block is not None and (type(self.block) is not int or self.block < 1):
            raise ArgumentError(f"QuantScheme: block must be an int of at least 1 or None, got {self.block!r}.")

    def scale_shape(self, shape: Sequence[int], where: str) -> tuple[int, ...]:
        """The shape of the scales for a tensor of `shape`."""
        if self.block is None:
            return ()
        if not shape or shape[-1] % self.block:
            raise ShapeError(
                f"{where}: blocks of {self.block} do not divide the last axis of shape {tuple(shape)}; choose a block that "
                "does, or QuantScheme() with one scale per tensor."
            )
        return (*shape[:-1], shape[-1] // self.block)


_init: Any = QuantScheme.__init__
_init.__name__ = "QuantScheme"  # what a refusal of an argument speaks of
QuantScheme.__init__ = explained(_init)  # type: ignore[method-assign]


class QuantTensor:
    """A quantized tensor, made by `x.quantize_dynamic(scheme)` or `x.quantize(scheme, scale)`.

    `x @ q`, `F.linear(x, q)` and other products with a matrix (`dot`, `inner`) multiply with it as it is, `einsum`, `tensordot`
    and the like with the floats that it stands for, all in the dtype of `x`; for anything else write `q.dequantize()`. It has
    no gradient, and gradients flow through the product to `x` as through a constant. It may stand in a Module, also
    where a Param is declared, and is a buffer there: `nn.quantize(model)` puts it in the place of weights.

    >>> import functad as fd
    >>> q = fd.tensor([[1.0, -2.0], [0.5, 0.25]]).quantize_dynamic(fd.QuantScheme())
    >>> q
    QuantTensor(int8[2, 2], scale per tensor, of float32)
    >>> (fd.ones((1, 2)) @ q).shape, q.nbytes
    ((1, 2), 8)
    """

    __slots__ = ("_bits", "_of", "_transposed", "_values", "scheme")
    __array_priority__ = 300

    def __init__(self, values: Any, bits: Any, scheme: QuantScheme, of: dtypes.DType, transposed: bool = False):
        self._values = values  # int8, as they were quantized
        self._bits = bits  # of the float32 scales, as int32
        self._of = of
        self._transposed = transposed
        self.scheme = scheme

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        shape: tuple[int, ...] = self._values.shape
        return (*shape[:-2], shape[-1], shape[-2]) if self._transposed else shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self._values.size)

    @property
    def dtype(self) -> dtypes.DType:
        """The dtype it is stored in."""
        return dtypes.int8

    @property
    def of(self) -> dtypes.DType:
        """The dtype of the floats that it was made from, and that `dequantize()` gives."""
        return self._of

    @property
    def nbytes(self) -> int:
        """The bytes that elements and scales take."""
        return int(self._values.nbytes + self._bits.nbytes)

    @property
    def device(self) -> Any:
        """Where it lives."""
        return self._values.device

    @property
    def values(self) -> Any:
        """The 8-bit integers."""
        return self._values.mT if self._transposed else self._values

    @property
    def scale(self) -> Any:
        """The scales, float32: one, or one per block (in the layout it was quantized in)."""
        return bind(float_bits_op, (self._bits,))

    is_tracked = False
    is_require_grad = False

    @property
    def T(self) -> QuantTensor:
        """The two axes swapped."""
        if self.ndim != 2:
            raise ShapeError(f"QuantTensor.T: takes two axes, got shape {self.shape}; write q.dequantize().T.")
        return QuantTensor(self._values, self._bits, self.scheme, self._of, not self._transposed)

    @property
    def mT(self) -> QuantTensor:
        """The two axes swapped."""
        return self.T

    def dequantize(self, dtype: Any = None) -> Any:
        """The floats that it stands for, in the dtype it was made from; a constant, which requires no gradient.

        >>> import functad as fd
        >>> q = fd.tensor([2.0, -254.0]).quantize_dynamic(fd.QuantScheme())
        >>> q.dequantize().tolist(), q.dequantize("bfloat16").dtype
        ([2.0, -254.0], dtype(bfloat16))
        """
        wanted = self._of if dtype is None else dtypes.parse(dtype, "dequantize")
        return bind(dequantize_op, (self._values, self._bits), (self.scheme.block, self._transposed, wanted))

    def to_device(self, device: Any) -> QuantTensor:
        """On another device.

        >>> import functad as fd
        >>> q = fd.tensor([2.0, -254.0]).quantize_dynamic(fd.QuantScheme())
        >>> q.to_device(fd.Device.numpy()).device
        Device(numpy)
        """
        moved = self._values.to_device(device), self._bits.to_device(device)
        return QuantTensor(*moved, self.scheme, self._of, self._transposed)

    def without_autodiff(self) -> QuantTensor:
        """Off every tape, where it has no gradient either.

        >>> import functad as fd
        >>> q = fd.tensor([2.0, -254.0]).autodiff().quantize_dynamic(fd.QuantScheme())
        >>> q.device.is_autodiff, q.without_autodiff().device.is_autodiff
        (True, False)
        """
        bare = self._values.without_autodiff(), self._bits.without_autodiff()
        return QuantTensor(*bare, self.scheme, self._of, self._transposed)

    def require_grad(self) -> NoReturn:
        """Refused with `DTypeError`: it is made of integers.

        >>> import functad as fd
        >>> try:
        ...     fd.ones(2).quantize_dynamic(fd.QuantScheme()).require_grad()
        ... except fd.errors.DTypeError as error:
        ...     print(error)
        require_grad: a quantized tensor has no gradient; train q.dequantize(), or what is added to it.
        """
        raise DTypeError(
            "require_grad: a quantized tensor has no gradient; train q.dequantize(), or what is added to it."
        )

    def __matmul__(self, other: Any) -> Any:
        return product(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return product(other, self)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        if not isinstance(self._values, Handle):  # a gradient's place, say
            return f"QuantTensor({self._values!r}, {self._bits!r})"
        per = "tensor" if self.scheme.block is None else f"block of {self.scheme.block}"
        return f"QuantTensor(int8{list(self.shape)}, scale per {per}, of {self._of})"

    def __getattr__(self, name: str) -> NoReturn:
        raise UnknownAttributeError(
            f"a quantized tensor has no {name!r}: it has dequantize(), @, T, to_device(), shape, scale, values and the "
            f"like. Write q.dequantize().{name} instead."
        )

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        self._refuse()

    def __jax_array__(self) -> NoReturn:
        self._refuse()

    def _refuse(self, *others: Any) -> NoReturn:
        raise ArgumentTypeError(
            f"only products such as x @ q and F.linear(x, q) compute with a quantized tensor as it is, got {self!r}. Write "
            "q.dequantize() for its floats, for example q.dequantize() + x."
        )

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __pow__ = __rpow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __iter__ = _refuse


def _flatten(q: QuantTensor) -> Any:
    return (q._values, q._bits), (q.scheme, q._of, q._transposed), ("_values", "_bits")


tree.register(QuantTensor, _flatten, lambda static, parts: QuantTensor(*parts, *static))


# --- implementations


def _float_bits(xp: Any, x: Any) -> Any:
    return x.view(np.float32) if xp is np else jax.lax.bitcast_convert_type(x, dtypes.float32)


def _single(x: Any) -> Any:
    if x.dtype.kind == "c":
        raise TypeError("complex numbers are not quantized")
    return x.astype(dtypes.float32)


def _bits(xp: Any, x: Any) -> Any:
    x = _single(x)
    return x.view(np.int32) if xp is np else jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x), dtypes.int32)


def _blocks(x: Any, block: int | None) -> Any:
    """`x` with its blocks as an axis of their own."""
    return x if block is None else x.reshape(*x.shape[:-1], x.shape[-1] // block, block)


def _spread(scale: Any, block: int | None) -> Any:
    return scale if block is None else scale[..., None]


def _scale_bits(xp: Any, x: Any, *, block: int | None) -> Any:
    """The smallest scales under which no element leaves the range; 1 where all are 0, NaN where one is NaN or inf."""
    size = xp.abs(_blocks(_single(x), block))
    largest = xp.max(size, axis=None if block is None else -1, initial=0.0)
    scale = xp.maximum(largest * np.float32(1 / _LARGEST), _LEAST)
    return _bits(xp, xp.where(xp.isfinite(largest), xp.where(largest > 0, scale, np.float32(1)), np.float32("nan")))


def _given_bits(xp: Any, x: Any, scale: Any, *, block: int | None) -> Any:
    """The bits of given scales, NaN where an element is."""
    lost = xp.any(xp.isnan(_blocks(_single(x), block)), axis=None if block is None else -1)
    return _bits(xp, xp.where(lost, np.float32("nan"), _single(scale)))


def _quantize(xp: Any, x: Any, bits: Any, *, block: int | None) -> Any:
    scaled = _blocks(_single(x), block) / _spread(_float_bits(xp, bits), block)
    whole = xp.where(xp.isnan(scaled), np.float32(0), xp.clip(xp.round(scaled), -_LARGEST, _LARGEST))
    return whole.astype(dtypes.int8).reshape(x.shape)


def _dequantize(xp: Any, values: Any, bits: Any, *, block: int | None, transposed: bool, dtype: Any) -> Any:
    scale = _spread(_float_bits(xp, bits), block)
    floats = (_blocks(values.astype(dtypes.float32), block) * scale).reshape(values.shape).astype(dtype)
    return xp.swapaxes(floats, -1, -2) if transposed else floats


def _quant_matmul(xp: Any, x: Any, values: Any, bits: Any, *, block: int | None, transposed: bool) -> Any:
    wide = dtypes.accumulator(x.dtype)
    matrix = _dequantize(xp, values, bits, block=block, transposed=transposed, dtype=x.dtype)
    if xp is np:
        return (x.astype(wide) @ matrix.astype(wide)).astype(x.dtype)
    return xp.matmul(x, matrix, preferred_element_type=wide).astype(x.dtype)


def _matmul_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    return bind(op, inputs, params) if not mapped[1] and not mapped[2] else NotImplemented


# --- ops


def _quantized(params: dict[str, Any], *, first: Callable[[Any], Any] | None = None) -> Samples:
    """Integers with a scale per tensor, and with one per block."""

    def make(rng: np.random.Generator) -> Any:
        values = rng.integers(-127, 128, (4, 6)).astype(np.int8)
        scales = np.array(0.125, np.float32), np.full((4, 2), 0.25, np.float32)
        lead = () if first is None else (first(rng),)
        return [
            ((*lead, values, scale.view(np.int32)), params | {"block": block})
            for scale, block in zip(scales, (None, 3), strict=True)
        ]

    return Samples(make=make)


_ROWS: Any = [(((4, 6),), {"block": None}), (((4, 6),), {"block": 3})]

float_bits_op = nondiff(
    "float_bits", _float_bits, samples=Samples(make=lambda rng: [((np.array([1.5, -2.0], np.float32).view(np.int32),), {})]),
    doc="The float32 numbers with these bits.",
)  # fmt: skip
given_bits_op = nondiff(
    "given_scale_bits", _given_bits, refuses=_REFUSES,
    samples=Samples([(((4, 6), ()), {"block": None}), (((4, 6), (4, 2)), {"block": 3})]),
    doc="The bits of given scales, as int32; NaN for those of a NaN.",
)  # fmt: skip
scale_bits_op = nondiff(
    "scale_bits",
    _scale_bits,
    refuses=_REFUSES,
    samples=Samples(_ROWS),
    doc="The bits of the scales that quantization takes.",
)
quantize_op = nondiff(
    "quantize", _quantize, refuses=_REFUSES,
    samples=Samples(make=lambda rng: [((rng.normal(size=(4, 6)), np.array(0.1, np.float32).view(np.int32)), {"block": None})]),
    doc="The nearest whole multiples of the scale, within 8 bits.",
)  # fmt: skip
dequantize_op = nondiff(
    "dequantize", _dequantize, samples=_quantized({"transposed": True, "dtype": dtypes.float32}),
    doc="8-bit integers times their scales.",
)  # fmt: skip
quant_matmul_op: Op = linear(
    "quant_matmul", _quant_matmul,
    lambda g, values, bits, block, transposed: bind(quant_matmul_op, (g, values, bits), (block, not transposed)),
    None, None,
    cost=Cost.COMPUTE, batch=_matmul_rows, samples=_quantized({"transposed": False}, first=lambda rng: rng.normal(size=(2, 4))),
    doc="x times a quantized matrix, of which backward keeps the 8-bit integers.",
)  # fmt: skip


# --- the functions


def quantize_dynamic(x: Any, scheme: QuantScheme) -> QuantTensor:
    """`x` quantized, with the smallest scales under which no element is clipped.

    An element is stored as `round(x / scale)` (halves to even), with the scale `abs(x).max() / 127` of the tensor or of
    its block, 1 where all are 0; so `dequantize()` is at most half a scale off. A block (without blocks, a tensor) that
    holds a NaN, an inf or what float32 does not reach has no such scale and comes back as NaN.

    Args:
        x: floats, also an array or a list; tensors with a gradient are refused, which would be cut.
        scheme: a `fd.QuantScheme`; its blocks run along the last axis.

    Raises `DTypeError` for anything but floats, `ShapeError` where blocks do not divide the last axis,
    `NotDifferentiableError` where `x` is differentiated: write `fd.stop_gradient(x)` for a frozen base, or
    `fd.nn.functional.fake_quantize`.

    >>> import functad as fd
    >>> x = fd.tensor([0.0, 0.5, -1.0])
    >>> fd.ops.quantize_dynamic(x, fd.QuantScheme()).values.tolist()
    [0, 64, -127]
    """
    x = _floats(x, scheme, "quantize_dynamic")
    scheme.scale_shape(x.shape, "quantize_dynamic")
    bits = bind(scale_bits_op, (x,), (scheme.block,))
    return QuantTensor(bind(quantize_op, (x, bits), (scheme.block,)), bits, scheme, x.dtype)


def quantize(x: Any, scheme: QuantScheme, scale: Any) -> QuantTensor:
    """`x` quantized by given scales: a number, or one per block; what they do not reach, inf too, is clipped.

    A block that holds a NaN comes back as NaN. Errors as those of `quantize_dynamic`, and `ArgumentError` for a scale
    that is not a finite number above 0.

    >>> import functad as fd
    >>> fd.ops.quantize(fd.tensor([0.0, 0.5, -1.0]), fd.QuantScheme(), 0.25).values.tolist()
    [0, 2, -4]
    """
    x = _floats(x, scheme, "quantize")
    wanted = scheme.scale_shape(x.shape, "quantize")
    scale = operand(scale, x, where="quantize")
    if not dtypes.is_float(scale.dtype) and scale.dtype.kind not in "iu":
        raise DTypeError(f"quantize: the scale must be real numbers, got {scale.dtype}.")
    if scale.shape not in ((), wanted):
        raise ShapeError(f"quantize: the scale has shape {scale.shape}; {scheme} of shape {x.shape} takes {wanted}.")
    bits = bind(given_bits_op, (x, scale.broadcast_to(wanted)), (scheme.block,))
    _check_scale(scale)
    return QuantTensor(bind(quantize_op, (x, bits), (scheme.block,)), bits, scheme, x.dtype)


def _check_scale(scale: Any) -> None:
    """Raise for a scale that stands for nothing, where its value is known."""
    numbers = every_value(scale)
    if numbers is None:
        return
    numbers = numbers.astype(np.float32)
    if not (np.isfinite(numbers) & (numbers > 0)).all():
        bad = numbers[~(np.isfinite(numbers) & (numbers > 0))].reshape(-1)[0]
        raise ArgumentError(
            f"quantize: a scale must be a finite number above 0, got {bad}: an element is stored as round(x / scale). Take "
            "abs(x).max() / 127, or let x.quantize_dynamic(scheme) choose (which also copes with zeros)."
        )


def dense(q: Any, like: Any) -> Any:
    """The floats of a quantized tensor, in the dtype of `like` if that is one of floats; anything else as it is."""
    if not isinstance(q, QuantTensor):
        return q
    return q.dequantize(like.dtype if isinstance(like, Handle) and dtypes.is_float(like.dtype) else None)


def rows_of(q: QuantTensor, take: Callable[[Any], Any]) -> Any:
    """`take(q.dequantize())` for what takes whole rows, of which alone floats are made."""
    return take(q.dequantize()) if q._transposed else rows(q, take).dequantize()


def rows(q: QuantTensor, take: Callable[[Any], Any]) -> QuantTensor:
    """What `take` takes of the rows of `q`, which is not transposed."""
    bits = q._bits if q.scheme.block is None else take(q._bits)
    return QuantTensor(take(q._values), bits, q.scheme, q._of)


def product(x: Any, y: Any, where: str = "matmul") -> Any:
    """`x @ y` where one of them is quantized."""
    if isinstance(x, QuantTensor) and isinstance(y, QuantTensor):
        raise ArgumentTypeError(f"{where}: both are quantized; write x.dequantize() @ y.")
    if isinstance(x, QuantTensor):
        y = _factor(y, x, where)
        if x.ndim != 2 or y.ndim > 2 or not y.ndim or y.dtype.kind == "c":
            return dense(x, y) @ y
        return product(y, x.T, where) if y.ndim == 1 else product(y.T, x.T, where).T
    x = _factor(x, y, where)
    if y.ndim != 2 or not x.ndim or x.dtype.kind == "c":
        return x @ dense(y, x)
    if x.shape[-1] != y.shape[0]:
        raise ShapeError(
            f"{where}: x of shape {x.shape} and a quantized matrix of shape {y.shape} do not fit: {x.shape[-1]} columns meet "
            f"{y.shape[0]} rows; write x @ q.T if the weight is stored as (out, in)."
        )
    return bind(quant_matmul_op, (x, y._values, y._bits), (y.scheme.block, y._transposed))


def _factor(x: Any, beside: QuantTensor, where: str) -> Any:
    x = operand(x, beside._values, where=where)
    return x if dtypes.is_inexact(x.dtype) else x.astype(beside.of)


def _floats(x: Any, scheme: Any, where: str) -> Any:
    if not isinstance(scheme, QuantScheme):
        raise ArgumentTypeError(f"{where}: the scheme must be a fd.QuantScheme, got {scheme!r}.")
    x = operand(x, where=where)
    if not dtypes.is_float(x.dtype):
        raise DTypeError(f"{where}: takes floats, got {x.dtype}; write x.astype('float32').")
    return x
