"""Comparison, logic, bits, and choosing between values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from functad import dtypes
from functad.dispatch import Handle, bind
from functad.errors import DTypeError, ShapeError
from functad.ops.op import Op, Samples
from functad.ops.operand import operand, operands
from functad.ops.rules import ONE, PAIR, align_rows, custom, linear, nondiff, unbroadcast

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "equal", "greater", "greater_equal", "isfinite", "isinf",
    "isnan", "left_shift", "less", "less_equal", "logical_and", "logical_not", "logical_or", "logical_xor", "mask_fill",
    "nan_to_num", "not_equal", "right_shift", "where",
]  # fmt: skip


def _integers(rng: np.random.Generator) -> list[Any]:
    x, y = rng.integers(0, 8, (3, 2)), rng.integers(0, 8, (3, 1))
    return [((x, y), {}), ((x[0, 0], x), {}), ((x[:0], y[0]), {})]


def _chosen(rng: np.random.Generator) -> list[Any]:
    """A condition, and two values to choose from."""
    x, y = rng.normal(size=(3, 2)), rng.normal(size=(2,))
    return [((x > 0, x, y), {}), ((x[:, :1] > 0, y[0], x), {}), ((x[0, 0] > 0, y, y), {}), ((x[:0] > 0, y, y), {})]


def _gated(rng: np.random.Generator) -> list[Any]:
    return [((x, condition), params) for (condition, x, _), params in _chosen(rng)]


INTEGERS = Samples(make=_integers)

equal = nondiff(
    "equal",
    lambda xp, x, y: xp.equal(x, y),
    promote="compare",
    samples=PAIR,
    doc="x == y.",
    example=("fd.numpy.equal(1.0, 3.0).item()", "False"),
)
not_equal = nondiff(
    "not_equal",
    lambda xp, x, y: xp.not_equal(x, y),
    promote="compare",
    samples=PAIR,
    doc="x != y.",
    example=("fd.numpy.not_equal(1.0, 3.0).item()", "True"),
)
less = nondiff(
    "less",
    lambda xp, x, y: xp.less(x, y),
    promote="compare",
    samples=PAIR,
    doc="x < y.",
    example=("fd.numpy.less(1.0, 3.0).item()", "True"),
)
less_equal = nondiff(
    "less_equal",
    lambda xp, x, y: xp.less_equal(x, y),
    promote="compare",
    samples=PAIR,
    doc="x <= y.",
    example=("fd.numpy.less_equal(3.0, 3.0).item()", "True"),
)
greater = nondiff(
    "greater",
    lambda xp, x, y: xp.greater(x, y),
    promote="compare",
    samples=PAIR,
    doc="x > y.",
    example=("fd.numpy.greater(3.0, 1.0).item()", "True"),
)
greater_equal = nondiff(
    "greater_equal",
    lambda xp, x, y: xp.greater_equal(x, y),
    promote="compare",
    samples=PAIR,
    doc="x >= y.",
    example=("fd.numpy.greater_equal(3.0, 3.0).item()", "True"),
)

logical_and = nondiff(
    "logical_and",
    lambda xp, x, y: xp.logical_and(x, y),
    promote="logical",
    samples=PAIR,
    doc="Where both are nonzero.",
    example=("fd.numpy.logical_and(True, False).item()", "False"),
)
logical_or = nondiff(
    "logical_or",
    lambda xp, x, y: xp.logical_or(x, y),
    promote="logical",
    samples=PAIR,
    doc="Where one is nonzero.",
    example=("fd.numpy.logical_or(True, False).item()", "True"),
)
logical_xor = nondiff(
    "logical_xor", lambda xp, x, y: xp.logical_xor(x, y), promote="logical", samples=PAIR,
    doc="Where exactly one is nonzero.",
    example=("fd.numpy.logical_xor(True, False).item()", "True"),
)  # fmt: skip
logical_not = nondiff(
    "logical_not",
    lambda xp, x: xp.logical_not(x),
    promote="logical",
    samples=ONE,
    doc="Where it is zero.",
    example=("fd.numpy.logical_not(True).item()", "False"),
)

bitwise_and = nondiff(
    "bitwise_and",
    lambda xp, x, y: xp.bitwise_and(x, y),
    promote="bits",
    samples=INTEGERS,
    doc="x & y, bit by bit.",
    example=("fd.numpy.bitwise_and(6, 3).item()", "2"),
)
bitwise_or = nondiff(
    "bitwise_or",
    lambda xp, x, y: xp.bitwise_or(x, y),
    promote="bits",
    samples=INTEGERS,
    doc="x | y, bit by bit.",
    example=("fd.numpy.bitwise_or(6, 3).item()", "7"),
)
bitwise_xor = nondiff(
    "bitwise_xor",
    lambda xp, x, y: xp.bitwise_xor(x, y),
    promote="bits",
    samples=INTEGERS,
    doc="x ^ y, bit by bit.",
    example=("fd.numpy.bitwise_xor(6, 3).item()", "5"),
)
bitwise_not = nondiff(
    "bitwise_not", lambda xp, x: xp.invert(x), promote="bits", doc="~x, bit by bit; logical not of a bool.",
    example=("fd.numpy.bitwise_not(6).item()", "-7"),
    samples=Samples(make=lambda rng: [((rng.integers(0, 8, (3, 2)),), {}), ((rng.integers(0, 8, (0, 2)),), {})]),
)  # fmt: skip


def _counts(*xs: Any) -> list[Any]:
    """What is shifted, and by how much: bools count as default integers, as in JAX."""
    return [x.astype(dtypes.default_int()) if x.dtype.kind == "b" else x for x in xs]


left_shift = nondiff(
    "left_shift",
    lambda xp, x, y: xp.left_shift(*_counts(x, y)),
    promote="bits",
    samples=INTEGERS,
    doc="x << y: x * 2**y.",
    example=("fd.numpy.left_shift(1, 3).item()", "8"),
)
right_shift = nondiff(
    "right_shift", lambda xp, x, y: xp.right_shift(*_counts(x, y)), promote="bits", samples=INTEGERS,
    doc="x >> y: x // 2**y, keeping the sign.",
    example=("fd.numpy.right_shift(6, 1).item()", "3"),
)  # fmt: skip

isnan = nondiff(
    "isnan",
    lambda xp, x: xp.isnan(x),
    samples=ONE,
    batch=align_rows,
    doc="Where it is NaN.",
    example=('fd.numpy.isnan(float("nan")).item()', "True"),
)
isinf = nondiff(
    "isinf",
    lambda xp, x: xp.isinf(x),
    samples=ONE,
    batch=align_rows,
    doc="Where it is inf or -inf.",
    example=('fd.numpy.isinf(float("inf")).item()', "True"),
)
isfinite = nondiff(
    "isfinite",
    lambda xp, x: xp.isfinite(x),
    samples=ONE,
    batch=align_rows,
    doc="Where it is neither infinite nor NaN.",
    example=("fd.numpy.isfinite(1.0).item()", "True"),
)

gate: Op = linear(
    "gate", lambda xp, x, condition: xp.where(condition, x, xp.zeros((), x.dtype)),
    lambda g, condition, x_shape: unbroadcast(gate(g, condition), x_shape), None, samples=Samples(make=_gated),
    batch=align_rows,
    doc="x where the condition holds, else exactly 0 whatever x is: the rule of every op that chooses.",
)  # fmt: skip
where_op = linear(
    "where", lambda xp, condition, x, y: xp.where(condition, x, y), None,
    lambda g, condition, x_shape: unbroadcast(gate(g, condition), x_shape),
    lambda g, condition, y_shape: unbroadcast(gate(g, logical_not(condition)), y_shape),
    samples=Samples(make=_chosen), batch=align_rows, guards=True, doc="x where the condition holds, else y.",
)  # fmt: skip


def where(condition: Any, x: Any, y: Any) -> Any:
    """`x` where `condition` is true (or nonzero), else `y`.

    The branch not taken gets a derivative of exactly zero. The condition gets none.

    >>> import functad as fd
    >>> fd.grad(lambda x: fd.ops.where(x < 1, x, fd.ops.sqrt(x)))(0.0).item()
    1.0
    """
    like = next((v for v in (x, y, condition) if isinstance(v, Handle)), None)
    if not isinstance(x, Handle) and not isinstance(y, Handle) and like is not None:
        x, y = operand(x, like, where="where"), operand(y, like, where="where")
    x, y = operands("where", "numeric", (x, y))
    return bind(where_op, (operand(condition, x, dtypes.bool_, "where"), x, y))


def mask_fill(x: Any, mask: Any, value: Any) -> Any:
    """`x` with `value` where `mask` is true.

    `mask` and `value` broadcast to the shape of `x`; the derivative flows to `x` where it stayed
    and to `value` where it was written. Raises `DTypeError` for a mask that is not boolean, and for a
    float value in an integer tensor.

    >>> import functad as fd
    >>> fd.ops.mask_fill(fd.tensor([1.0, 2.0]), fd.tensor([True, False]), 0.5).tolist()
    [0.5, 2.0]
    """
    like = next((v for v in (x, value, mask) if isinstance(v, Handle)), None)
    x = operand(x, like, where="mask_fill")
    mask = operand(mask, x, where="mask_fill")
    written = dtypes.of_scalar(value) if isinstance(value, dtypes.SCALARS) else operand(value, x)._dtype
    if dtypes.is_inexact(written) and not dtypes.is_inexact(x._dtype):
        raise DTypeError(
            f"mask_fill: a {written} value does not fit a tensor of {x._dtype}; write x.astype(float) first."
        )
    value = operand(value, x, x._dtype, "mask_fill")
    if mask._dtype != dtypes.bool_:
        raise DTypeError(f"mask_fill: the mask must be boolean, got {mask._dtype}; write mask != 0.")
    for name, shape in (("mask", mask._shape), ("value", value._shape)):
        if not _broadcasts_to(shape, x._shape):
            raise ShapeError(
                f"mask_fill: the {name} of shape {shape} does not broadcast to the tensor's shape {x._shape}; "
                "broadcast the tensor first: x.broadcast_to(shape)."
            )
    return bind(where_op, (mask, value, x))


def _broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    tail = target[len(target) - len(shape) :] if len(shape) <= len(target) else ()
    return len(tail) == len(shape) and all(n in (1, m) for n, m in zip(shape, tail, strict=True))


def _nan_to_num(xp: Any, x: Any, *, nan: float, posinf: float | None, neginf: float | None) -> Any:
    limits = jnp.finfo(x.dtype)  # NumPy's does not know bfloat16
    top, bottom = limits.max if posinf is None else posinf, limits.min if neginf is None else neginf
    nan, top, bottom = (xp.asarray(v, x.dtype) for v in (nan, top, bottom))
    return xp.where(xp.isnan(x), nan, xp.where(x == xp.inf, top, xp.where(x == -xp.inf, bottom, x)))


nan_to_num_op = custom(
    "nan_to_num", _nan_to_num,
    vjp=lambda g, x: gate(g, isfinite(x)), jvp=lambda t, x: gate(t, isfinite(x)), guards=True,
    samples=Samples([(shapes, {"nan": 0.0, "posinf": None, "neginf": None}) for shapes, _ in ONE.cases]),
    batch=align_rows, doc="x with numbers for NaN and the infinities, where its derivative is 0.",
)  # fmt: skip


def nan_to_num(x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Any:
    """`x` with `nan` for NaN, and `posinf`, `neginf` (the largest finite numbers) for the infinities.

    The derivative is 0 where an entry was replaced.

    >>> import functad as fd
    >>> fd.ops.nan_to_num(fd.tensor([float("nan"), float("inf"), 1.0]), posinf=9.0).tolist()
    [0.0, 9.0, 1.0]
    """
    x = operand(x, where="nan_to_num")
    if not dtypes.is_inexact(x._dtype):
        return x
    if x._dtype.kind == "c":
        return nan_to_num(x.real, nan, posinf, neginf) + 1j * nan_to_num(x.imag, nan, posinf, neginf)
    numbers = (float(nan), *(None if v is None else float(v) for v in (posinf, neginf)))
    return bind(nan_to_num_op, (x,), numbers)
