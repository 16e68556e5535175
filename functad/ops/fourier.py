"""Discrete Fourier transforms, over several axes at once, and what belongs to them.

The sums over one axis are a symmetric matrix, so a complex transform is its own transpose. A real
transform keeps one half of a spectrum whose other half is its conjugate; its transpose is the inverse
real transform of the conjugate, with every frequency that stands for two weighed by one half.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.fft

from functad import dtypes
from functad.device import Device, checked
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from functad.ops.arithmetic import conj
from functad.ops.axes import normalize_axes, normalize_axis, several
from functad.ops.join import pad
from functad.ops.op import Cost, Op, Samples
from functad.ops.operand import operand, operands, without_value
from functad.ops.rules import cast, linear, shift_axis, widen
from functad.ops.shape import roll, unchanged

__all__ = [
    "fft", "fft2", "fft_op", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn",
    "irfft", "irfft2", "irfft_op", "irfftn", "rfft", "rfft2", "rfft_op", "rfftfreq", "rfftn",
]  # fmt: skip

Axes = tuple[int, ...]


# --- the ops: transforms without a factor, over axes of which the last is the one that is halved


def _transforms(xp: Any) -> Any:
    return scipy.fft if xp is np else xp.fft  # SciPy's keeps single precision


def _wide(x: Any) -> Any:
    return x.astype(dtypes.accumulator(x.dtype))


def _three_by_three(axes: Axes) -> list[Axes]:
    """XLA transforms at most three axes at once; the last go first, as the halved one must."""
    return [axes[max(i - 3, 0) : i] for i in range(len(axes), 0, -3)]


def _fft(xp: Any, x: Any, *, axis: Axes, inverse: bool) -> Any:
    for axes in _three_by_three(axis):
        x = _transforms(xp).ifftn(x, axes=axes, norm="forward") if inverse else _transforms(xp).fftn(x, axes=axes)
    return x


def _rfft(xp: Any, x: Any, *, axis: Axes) -> Any:
    first, *others = _three_by_three(axis)
    x = _transforms(xp).rfftn(_wide(x), axes=first)
    return _fft(xp, x, axis=tuple(a for axes in reversed(others) for a in axes), inverse=False)


def _irfft(xp: Any, x: Any, *, axis: Axes, n: int) -> Any:
    last, *others = _three_by_three(axis)
    x = _fft(xp, x, axis=tuple(a for axes in reversed(others) for a in axes), inverse=True)
    sides = [*[x.shape[a] for a in last[:-1]], n]
    return _transforms(xp).irfftn(x, s=sides, axes=last, norm="forward")


def _weights(x: Any, n: int, axis: int, whole: float) -> Any:
    """Along an axis of half a spectrum, `whole` for each frequency that stands for two, and 1 for the others."""
    size = n // 2 + 1
    found = np.full(size, whole)
    found[0] = 1.0
    if n % 2 == 0:
        found[-1] = 1.0
    shape = [size if i == axis else 1 for i in range(x.ndim)]
    real = np.dtype(f"f{x._dtype.itemsize // (2 if x._dtype.kind == 'c' else 1)}")
    return operand(found.reshape(shape), x, real)


def _rfft_pull(g: Any, x_shape: tuple[int, ...], x_dtype: Any, axis: Axes) -> Any:
    n = x_shape[axis[-1]]
    return cast(bind(irfft_op, (conj(g * _weights(g, n, axis[-1], 0.5)),), (axis, n)), x_dtype)


def _irfft_pull(g: Any, axis: Axes, n: int) -> Any:
    half = conj(bind(rfft_op, (g,), (axis,)))
    return half * _weights(half, n, axis[-1], 2.0)


def _complex(rng: np.random.Generator, *shape: int) -> Any:
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


fft_op: Op = linear(
    "fft", _fft, lambda g, axis, inverse: bind(fft_op, (g,), (axis, inverse)), cost=Cost.COMPUTE, batch=shift_axis,
    samples=Samples(make=lambda rng: [
        ((_complex(rng, 5),), {"axis": (0,), "inverse": False}),
        ((_complex(rng, 2, 3, 2),), {"axis": (2, 0), "inverse": True}),
    ]),
    doc="Sums over axes, each element times exp(-2i pi j k / n) (exp(2i pi j k / n) for the inverse).",
)  # fmt: skip
rfft_op: Op = linear(
    "rfft", _rfft, _rfft_pull, cost=Cost.COMPUTE, batch=shift_axis,
    samples=Samples(make=lambda rng: [
        ((rng.normal(size=(5,)),), {"axis": (0,)}), ((rng.normal(size=(2, 3, 4)),), {"axis": (0, 2)}),
    ]),
    doc="The transform of real numbers, without the second half of the last of the axes.",
)  # fmt: skip
irfft_op: Op = linear(
    "irfft", _irfft, _irfft_pull, cost=Cost.COMPUTE, batch=shift_axis,
    samples=Samples(make=lambda rng: [
        ((_complex(rng, 3),), {"axis": (0,), "n": 5}), ((_complex(rng, 3, 3, 2),), {"axis": (1, 0), "n": 4}),
    ]),
    doc="The inverse sums over half a spectrum, whose other half is the conjugate; the last axis gets length n.",
)  # fmt: skip


# --- the functions


def fft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The discrete Fourier transform along an axis; complex.

    Args:
        x: the input, real or complex.
        n: how many elements to transform: `x` is cut, or filled with zeros.
        axis: the axis.
        norm: "backward" (or None) for no factor here and 1/n in the inverse, "forward" for the other
            way round, "ortho" for 1/sqrt(n) in both.

    Raises `ArgumentError` for another `norm`, `ShapeError` for an axis that is not there or no elements.

    >>> import functad as fd
    >>> fd.ops.fft(fd.tensor([1.0, 1.0])).tolist()
    [(2+0j), 0j]
    """
    return _complex_transform("fft", x, _one(n), (axis,), norm, False)


def ifft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `fft`, which see for the arguments.

    >>> import functad as fd
    >>> fd.ops.ifft(fd.tensor([2.0, 0.0])).real.tolist()
    [1.0, 1.0]
    """
    return _complex_transform("ifft", x, _one(n), (axis,), norm, True)


def fft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The transform over two axes; see `fftn`.

    >>> import functad as fd
    >>> fd.ops.fft2(fd.ones((2, 2))).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return _complex_transform("fft2", x, s, axes, norm, False)


def ifft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `fft2`.

    >>> import functad as fd
    >>> fd.ops.ifft2(fd.tensor([[4.0, 0.0], [0.0, 0.0]])).real.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return _complex_transform("ifft2", x, s, axes, norm, True)


def fftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The discrete Fourier transform over several axes; complex.

    Args:
        x: the input, real or complex.
        s: how many elements to transform along each of the axes (None or -1: all there are).
        axes: the axes; by default all, or the last `len(s)`.
        norm: as for `fft`.

    >>> import functad as fd
    >>> fd.ops.fftn(fd.ones((2, 2))).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return _complex_transform("fftn", x, s, axes, norm, False)


def ifftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `fftn`.

    >>> import functad as fd
    >>> fd.ops.ifftn(fd.tensor([4.0, 0.0])).real.tolist()
    [2.0, 2.0]
    """
    return _complex_transform("ifftn", x, s, axes, norm, True)


def rfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The transform of real numbers along an axis: the `n // 2 + 1` frequencies that are not negative.

    Arguments as for `fft`. Raises `DTypeError` for complex numbers.

    >>> import functad as fd
    >>> fd.ops.rfft(fd.tensor([1.0, 1.0, 1.0])).real.tolist()
    [3.0, 0.0]
    """
    return _real_transform("rfft", x, _one(n), (axis,), norm)


def irfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `rfft`, real. `n` is the length of the result, by default twice that of `x`, less 2.

    >>> import functad as fd
    >>> fd.ops.irfft(fd.tensor([3.0, 0.0]), n=3).tolist()
    [1.0, 1.0, 1.0]
    """
    return _half_transform("irfft", x, _one(n), (axis,), norm)


def rfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The transform of real numbers over two axes; see `rfftn`.

    >>> import functad as fd
    >>> fd.ops.rfft2(fd.ones((2, 2))).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return _real_transform("rfft2", x, s, axes, norm)


def irfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `rfft2`.

    >>> import functad as fd
    >>> fd.ops.irfft2(fd.tensor([[4.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return _half_transform("irfft2", x, s, axes, norm)


def rfftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The transform of real numbers over several axes; of the last, only frequencies that are not negative.

    Arguments as for `fftn`. Raises `DTypeError` for complex numbers.

    >>> import functad as fd
    >>> fd.ops.rfftn(fd.ones((2, 3))).shape
    (2, 2)
    """
    return _real_transform("rfftn", x, s, axes, norm)


def irfftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `rfftn`, real; the last of `s` is the length of the result's last axis.

    >>> import functad as fd
    >>> fd.ops.irfftn(fd.ops.rfftn(fd.ones((2, 3))), s=(2, 3)).shape
    (2, 3)
    """
    return _half_transform("irfftn", x, s, axes, norm)


def hfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The transform of a signal of which `x` is one half and its conjugate the other: real, of length `n`.

    >>> import functad as fd
    >>> fd.ops.hfft(fd.tensor([1.0, 1.0]), n=2).tolist()
    [2.0, 0.0]
    """
    (x,) = operands("hfft", "float", (x,))
    return _half_transform("hfft", conj(x), _one(n), (axis,), _SWAPPED[_mode(norm, "hfft")])


def ihfft(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
    """The inverse of `hfft`.

    >>> import functad as fd
    >>> fd.ops.ihfft(fd.tensor([2.0, 0.0])).real.tolist()
    [1.0, 1.0]
    """
    return conj(_real_transform("ihfft", x, _one(n), (axis,), _SWAPPED[_mode(norm, "ihfft")]))


def hfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """`hfftn` over two axes.

    >>> import functad as fd
    >>> fd.ops.hfft2(fd.tensor([[1.0, 0.0], [0.0, 0.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return hfftn(x, s, axes, norm)


def hfftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The real transform over several axes of a signal of which `x` is one half along the last axis (torch, SciPy).

    >>> import functad as fd
    >>> fd.ops.hfftn(fd.tensor([1.0, 1.0]), (2,)).tolist()
    [2.0, 0.0]
    """
    (x,) = operands("hfftn", "float", (x,))
    return _half_transform("hfftn", conj(x), s, axes, _SWAPPED[_mode(norm, "hfftn")])


def ihfft2(x: Any, s: Any = None, axes: Any = (-2, -1), norm: str | None = None) -> Any:
    """The inverse of `hfft2`.

    >>> import functad as fd
    >>> fd.ops.ihfft2(fd.ones((2, 2))).real.tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return ihfftn(x, s, axes, norm)


def ihfftn(x: Any, s: Any = None, axes: Any = None, norm: str | None = None) -> Any:
    """The inverse of `hfftn`.

    >>> import functad as fd
    >>> fd.ops.ihfftn(fd.tensor([2.0, 0.0])).real.tolist()
    [1.0, 1.0]
    """
    return conj(_real_transform("ihfftn", x, s, axes, _SWAPPED[_mode(norm, "ihfftn")]))


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Device | None = None) -> Any:
    """The frequencies of `fft` over `n` samples at distance `d`: 0, 1, ..., -2, -1 over `n * d`.

    >>> import functad as fd
    >>> fd.ops.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    n = _count(n, "fftfreq")
    return _frequencies("fftfreq", np.fft.fftfreq(n, d), dtype, device)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = None, device: Device | None = None) -> Any:
    """The frequencies of `rfft` over `n` samples at distance `d`.

    >>> import functad as fd
    >>> fd.ops.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    n = _count(n, "rfftfreq")
    return _frequencies("rfftfreq", np.fft.rfftfreq(n, d), dtype, device)


def fftshift(x: Any, axes: Any = None) -> Any:
    """The frequency 0 moved to the middle of the axes (all by default).

    >>> import functad as fd
    >>> fd.ops.fftshift(fd.tensor([0.0, 1.0, 2.0, -2.0, -1.0])).tolist()
    [-2.0, -1.0, 0.0, 1.0, 2.0]
    """
    return _shifted("fftshift", x, axes, lambda n: n // 2)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of `fftshift`.

    >>> import functad as fd
    >>> fd.ops.ifftshift(fd.tensor([-2.0, -1.0, 0.0, 1.0, 2.0])).tolist()
    [0.0, 1.0, 2.0, -2.0, -1.0]
    """
    return _shifted("ifftshift", x, axes, lambda n: -(n // 2))


# --- their parts


_SWAPPED = {"backward": "forward", "forward": "backward", "ortho": "ortho"}


def _mode(norm: str | None, where: str) -> str:
    if norm is not None and norm not in _SWAPPED:
        raise ArgumentError(f"{where}: norm is 'backward' (None), 'ortho' or 'forward', got {norm!r}.")
    return norm or "backward"


def _count(n: Any, where: str) -> int:
    try:
        count = operator.index(n)
    except TypeError:
        raise ArgumentTypeError(
            f"{where}: n must be an int, got {n!r} of type {type(n).__name__}.{without_value(n)}"
        ) from None
    if count < 1:
        raise ArgumentError(f"{where}: n must be at least 1, got {count}.")
    return count


def _one(n: int | None) -> Any:
    return None if n is None else (n,)


def _sides(where: str, x: Any, s: Any, axes: Any) -> tuple[list[int | None], Axes]:
    """The lengths wanted along the axes (None where they are not given), and the axes."""
    if s is not None and not isinstance(s, (tuple, list)):
        raise ArgumentTypeError(
            f"{where}: s must be a tuple of lengths, one per axis, got {s!r}; write s=(n,) for one."
        )
    if axes is None:
        axes = tuple(range(x.ndim)) if s is None else tuple(range(-len(s), 0))
    given = several(axes)
    found = tuple([normalize_axis(a, x.ndim, where) for a in given])
    if len(set(found)) != len(found):
        raise ShapeError(f"{where}: axes={axes!r} names an axis of shape {x.shape} twice; transform it twice instead.")
    wanted: list[int | None] = [None] * len(found) if s is None else [None if n in (None, -1) else n for n in s]
    if len(wanted) != len(found):
        raise ShapeError(
            f"{where}: s={s!r} has {len(wanted)} lengths and axes={axes!r} names {len(found)}; give one each."
        )
    if not found:
        raise ShapeError(f"{where}: there is no axis to transform in shape {x.shape} with axes={axes!r}.")
    return [None if n is None else _count(n, where) for n in wanted], found


def _fitted(where: str, x: Any, sides: Sequence[int | None], axes: Axes) -> Any:
    """`x` cut, or filled with zeros, to these lengths."""
    wanted = dict(zip(axes, sides, strict=True))
    lengths = [n if (side := wanted.get(i)) is None else side for i, n in enumerate(x._shape)]
    if any(not lengths[a] for a in axes):
        raise ShapeError(f"{where}: an axis to transform has no elements, shape {x.shape}, axes {axes}.")
    if any(m < n for m, n in zip(lengths, x._shape, strict=True)):
        x = x[tuple([slice(min(m, n)) for m, n in zip(lengths, x._shape, strict=True)])]
    if any(m > n for m, n in zip(lengths, x._shape, strict=True)):
        x = pad(x, [(0, m - n) for m, n in zip(lengths, x._shape, strict=True)])
    return x


def _scaled(x: Any, mode: str, count: int, inverse: bool) -> Any:
    """The transform times the factor that this `norm` has in this direction."""
    if mode == "ortho":
        return x * (1 / math.sqrt(count))
    return x * (1 / count) if (mode == "backward") == inverse else x


def _as_complex(x: Any) -> Any:
    x = widen(x)
    return x if x._dtype.kind == "c" else cast(x, np.dtype(f"c{2 * x._dtype.itemsize}"))


def _complex_transform(where: str, x: Any, s: Any, axes: Any, norm: str | None, inverse: bool) -> Any:
    (x,) = operands(where, "float", (x,))
    mode = _mode(norm, where)
    sides, axes = _sides(where, x, s, axes)
    x = _as_complex(_fitted(where, x, sides, axes))
    return _scaled(bind(fft_op, (x,), (axes, inverse)), mode, math.prod([x._shape[a] for a in axes]), inverse)


def _real_transform(where: str, x: Any, s: Any, axes: Any, norm: str | None) -> Any:
    (x,) = operands(where, "float", (x,))
    if x._dtype.kind == "c":
        raise DTypeError(f"{where}: takes real numbers, got {x.dtype}; write fft for complex ones, or x.real.")
    mode = _mode(norm, where)
    sides, axes = _sides(where, x, s, axes)
    x = widen(_fitted(where, x, sides, axes))
    return _scaled(bind(rfft_op, (x,), (axes,)), mode, math.prod([x._shape[a] for a in axes]), False)


def _half_transform(where: str, x: Any, s: Any, axes: Any, norm: str | None) -> Any:
    (x,) = operands(where, "float", (x,))
    mode = _mode(norm, where)
    sides, axes = _sides(where, x, s, axes)
    n = sides[-1]
    if n is None:
        n = 2 * (x._shape[axes[-1]] - 1)
    if n < 1:
        raise ShapeError(
            f"{where}: {x.shape[axes[-1]]} frequencies along axis {axes[-1]} (shape {x.shape}) leave no length for the "
            "result by default; say it with n= (or s=)."
        )
    x = _as_complex(_fitted(where, x, [*sides[:-1], n // 2 + 1], axes))
    out = bind(irfft_op, (x,), (axes, n))
    return _scaled(out, mode, math.prod([out._shape[a] for a in axes]), True)


def _frequencies(where: str, found: Any, dtype: Any, device: Device | None) -> Any:
    on = checked(device, where)
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, where)
    return on.lift(on.base.put(found, wanted, where))


def _shifted(where: str, x: Any, axes: Any, by: Any) -> Any:
    x = operand(x, where=where)
    found = normalize_axes(axes, x.ndim, where)
    return roll(x, [by(x._shape[a]) for a in found], list(found)) if found else unchanged(x)
