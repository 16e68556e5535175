"""Short-time Fourier transforms, with torch's arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.axes import counted
from functad.ops.border import extend_op
from functad.ops.halves import rounded_once
from functad.ops.operand import operand, operands

__all__ = ["istft", "stft"]

_MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@rounded_once
def stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> Any:
    """The Fourier transforms of windows along a signal: complex, (..., frequencies, frames).

    Args:
        input: signals along the last axis, real or complex.
        n_fft: the length of a transform.
        hop_length: how far frames are apart; a quarter of `n_fft` without it.
        win_length: the length of the window, which stands in the middle of a frame; `n_fft` without it.
        window: its `win_length` factors, all 1 without it.
        center: whether frame t is centred at t * hop_length; the signal gets a border of half a frame then.
        pad_mode: what that holds: "constant" (zeros), "reflect", "replicate" or "circular".
        normalized: divide by the root of `n_fft`.
        onesided: give the frequencies up to half the sampling rate only; for real signals unless told otherwise.

    Raises `ShapeError` for a signal that is shorter than a frame.

    >>> import functad as fd
    >>> fd.numpy.fft.stft(fd.ones((3, 100)), 16, window=fd.numpy.hanning(16)).shape
    (3, 9, 26)
    """
    (x,) = operands("stft", "float", (input,))
    n, hop, factors = _frame("stft", x, n_fft, hop_length, win_length, window)
    if not x.ndim:
        raise ShapeError("stft: input holds signals along its last axis, got a number.")
    if center:
        x = _bordered(x, n // 2, pad_mode)
    if x.shape[-1] < n:
        raise ShapeError(f"stft: a frame of n_fft={n} does not fit into signals of {x.shape[-1]} samples.")
    is_complex = "c" in (x.dtype.kind, factors.dtype.kind)
    if onesided is None:
        onesided = not is_complex
    if onesided and is_complex:
        raise ArgumentError("stft: onesided=True takes a real signal and window: complex ones have all frequencies.")
    frames = ops.unfold(x, -1, n, hop) * factors
    transform = ops.rfft if onesided else ops.fft
    return ops.swapaxes(transform(frames, n, -1, "ortho" if normalized else "backward"), -1, -2)


def istft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
    return_complex: bool = False,
) -> Any:
    """The signals whose `stft` with the same arguments is nearest to `input`, (..., frequencies, frames).

    `length` cuts the signals, or fills them up with zeros. Raises `ShapeError` for another number of frequencies. Where
    no window reaches, the result is inf or NaN.

    >>> import functad as fd
    >>> x, window = fd.arange(64.0), fd.numpy.hanning(16) + 0.1
    >>> spectrum = fd.numpy.fft.stft(x, 16, window=window)
    >>> round(fd.numpy.fft.istft(spectrum, 16, window=window)[10].item(), 3)
    10.0
    """
    spectrum = operand(input, where="istft")
    if spectrum.dtype.kind != "c" or spectrum.ndim < 2:
        raise ShapeError(
            f"istft: input is complex, (..., frequencies, frames), got {spectrum.dtype}{list(spectrum.shape)}."
        )
    real = operand(0.0, spectrum, np.dtype(f"float{4 * spectrum.dtype.itemsize}"))
    n, hop, factors = _frame("istft", real, n_fft, hop_length, win_length, window)
    if onesided is None:
        onesided = spectrum.shape[-2] == n // 2 + 1 and not return_complex
    if spectrum.shape[-2] != (n // 2 + 1 if onesided else n):
        raise ShapeError(
            f"istft: with n_fft={n} and onesided={onesided} there are {n // 2 + 1 if onesided else n} frequencies, got input "
            f"of shape {spectrum.shape}."
        )
    transform = ops.irfft if onesided else ops.ifft
    frames = transform(ops.swapaxes(spectrum, -1, -2), n, -1, "ortho" if normalized else "backward") * factors
    if not onesided and not return_complex:
        frames = frames.real
    total = n + hop * (frames.shape[-2] - 1)
    out = _laid(frames, hop, total)
    weight = _laid(ops.broadcast_to(ops.square(factors), frames.shape[-2:]), hop, total)
    start = n // 2 if center else 0
    stop = total - start if length is None else min(start + counted(length, "istft", "length"), total)
    out, weight = out[..., start:stop], weight[start:stop]
    out = out / ops.astype(weight, out.dtype)
    missing = 0 if length is None else length - (stop - start)
    return ops.pad(out, [*[(0, 0)] * (out.ndim - 1), (0, missing)]) if missing > 0 else out


def _frame(where: str, x: Any, n_fft: Any, hop_length: Any, win_length: Any, window: Any) -> tuple[int, int, Any]:
    """The length of a frame, the step between frames, and the factors of a frame."""
    n = counted(n_fft, where, "n_fft")
    hop = n // 4 if hop_length is None else counted(hop_length, where, "hop_length")
    length = n if win_length is None else counted(win_length, where, "win_length")
    if n < 1 or hop < 1 or not 0 < length <= n:
        raise ArgumentError(
            f"{where}: n_fft and hop_length are at least 1 and win_length at most n_fft, got {n_fft}, {hop} and {length}."
        )
    if window is None:
        factors = operand(np.ones(length), x, x.dtype if x.dtype.kind == "f" else dtypes.float_of(x.dtype))
    else:
        factors = operand(window, x, where=where)
    if factors.shape != (length,):
        raise ShapeError(f"{where}: window must have win_length={length} elements, got shape {factors.shape}.")
    left = (n - length) // 2
    return n, hop, ops.pad(factors, [(left, n - length - left)])


def _bordered(x: Any, width: int, mode: str) -> Any:
    if mode == "constant":
        return ops.pad(x, [*[(0, 0)] * (x.ndim - 1), (width, width)])
    if mode not in _MODES:
        raise ArgumentError(f"stft: pad_mode is one of 'constant', {', '.join(map(repr, _MODES))}, got {mode!r}.")
    least = {"reflect": width + 1, "circular": width}.get(mode, 1)
    if x.shape[-1] < least:
        raise ShapeError(
            f"stft: with pad_mode={mode!r} and n_fft={2 * width} signals have at least {least} samples, got "
            f"{x.shape[-1]}; write center=False or pad_mode='constant'."
        )
    return bind(extend_op, (x,), ((*[(0, 0)] * (x.ndim - 1), (width, width)), _MODES[mode]))


def _laid(frames: Any, hop: int, total: int) -> Any:
    """The sum of frames (..., frames, n) laid out `hop` apart."""
    count, n = frames.shape[-2:]
    shifts = math.ceil(n / hop)  # frames so many apart do not overlap
    parts = []
    for first in range(min(shifts, count)):
        rows = frames[..., first::shifts, :]
        gap = shifts * hop - n
        line = ops.pad(rows, [*[(0, 0)] * (rows.ndim - 1), (0, gap)])
        line = ops.reshape(line, (*rows.shape[:-2], rows.shape[-2] * shifts * hop))
        before = first * hop
        line = line[..., : total - before]
        parts.append(ops.pad(line, [*[(0, 0)] * (line.ndim - 1), (before, total - before - line.shape[-1])]))
    return ops.sum(ops.stack(parts), 0)
