"""Reading between the elements: resizing, sampling at a grid of positions, and convolutions whose kernels bend."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.nn.functional.checks import floats, number
from functad.nn.functional.pooling import adaptive_avg_pool
from functad.nn.functional.spatial import fitting, integer, moves, per_axis
from functad.ops.contract import contract_op
from functad.ops.halves import rounded_once
from functad.ops.operand import operand
from functad.ops.pick import take_columns_op
from functad.ops.resample import Resampling, cubic_weights, resampled
from functad.ops.rules import cast, widen
from functad.ops.shape import unchanged
from functad.ops.transfer import stop_gradient

__all__ = ["affine_grid", "deform_conv2d", "grid_sample", "interpolate", "upsample"]

_KINDS: dict[str, Any] = {
    "nearest": ("nearest", None), "nearest-exact": ("nearest-exact", None), "area": ("area", None),
    "linear": ("linear", 1), "bilinear": ("linear", 2), "bicubic": ("cubic", 2), "trilinear": ("linear", 3),
}  # fmt: skip


# --- resizing


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """`input` with other spatial lengths.

    Args:
        input: (batch, channels, 1 to 3 spatial axes), floats.
        size: the lengths, an int or one per axis; or
        scale_factor: what to multiply them by; the result is rounded down.
        mode: "nearest", "nearest-exact" (the element whose centre is nearest), "linear", "bilinear" and "trilinear"
            (for 1, 2 and 3 spatial axes), "bicubic" or "area" (the mean of what an element covers).
        align_corners: whether first and last elements keep their places, or else their edges do (the default).
        recompute_scale_factor: use the ratio of the rounded lengths instead of `scale_factor`.
        antialias: for "bilinear" and "bicubic": widen the filter when shrinking, so that every element counts.

    Raises `ArgumentError` for a mode that does not exist or fit the number of axes, or unless exactly one of `size`
    and `scale_factor` is given.

    >>> import functad as fd
    >>> x = fd.tensor([[[1.0, 3.0]]])
    >>> fd.nn.functional.interpolate(x, 4, mode="linear").tolist()
    [[[1.0, 1.5, 2.5, 3.0]]]
    """
    x = floats("interpolate", input)
    ndim = x.ndim - 2
    if not 1 <= ndim <= 3:
        raise ShapeError(f"interpolate: input is (batch, channels, 1 to 3 spatial axes), got shape {x.shape}.")
    kind, needs = _KINDS.get(mode, (None, None))
    if kind is None or needs not in (None, ndim):
        fitting_modes = [repr(m) for m, (_, n) in _KINDS.items() if n in (None, ndim)]
        raise ArgumentError(
            f"interpolate: mode={mode!r} does not fit input of shape {x.shape}; with {ndim} spatial axes it is one of "
            f"{', '.join(fitting_modes)}."
        )
    if align_corners is not None and needs is None:
        raise ArgumentError(f"interpolate: align_corners has no meaning with mode={mode!r}; leave it out.")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f'interpolate: antialias=True takes mode="bilinear" or "bicubic", got {mode!r}.')
    lengths, scales = _lengths(x, size, scale_factor, recompute_scale_factor)
    if kind == "area":
        return adaptive_avg_pool("interpolate", ndim, x, lengths)
    wide = widen(x)
    # the last axis is the slowest: after those that shrink, before those that grow
    order = sorted(range(ndim), key=lambda i: 1 if i == ndim - 1 else 2 * (lengths[i] > x.shape[2 + i]))
    for i in order:
        axis, n, scale = 2 + i, lengths[i], scales[i]
        if n != x.shape[axis] or scale not in (None, 1):
            wide = resampled(wide, axis, n, Resampling(kind, bool(align_corners), bool(antialias), scale))
    return unchanged(cast(wide, x.dtype))


def upsample(
    input: Any, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: bool | None = None
) -> Any:
    """The same as `interpolate`, by torch's older name.

    >>> import functad as fd
    >>> fd.nn.functional.upsample(fd.ones((1, 1, 2)), scale_factor=2).shape
    (1, 1, 4)
    """
    return interpolate(input, size, scale_factor, mode, align_corners)


def _lengths(x: Any, size: Any, scale_factor: Any, recompute: bool | None) -> tuple[Any, Any]:
    ndim = x.ndim - 2
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: takes either size or scale_factor.")
    if not all(x.shape[2:]):
        raise ShapeError(f"interpolate: input of shape {x.shape} has an empty spatial axis.")
    if size is not None:
        if recompute:
            raise ArgumentError("interpolate: recompute_scale_factor has no meaning with size.")
        return per_axis("interpolate", "size", size, ndim), (None,) * ndim
    given = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * ndim
    if len(given) != ndim:
        raise ArgumentError(
            f"interpolate: scale_factor={scale_factor!r} takes a number, or one per spatial axis ({ndim})."
        )
    scales = [number("interpolate", "scale_factor", s) for s in given]
    lengths = tuple([math.floor(n * s) for n, s in zip(x.shape[2:], scales, strict=True)])
    if min(lengths) < 1:
        raise ShapeError(
            f"interpolate: scale_factor={scale_factor!r} makes the spatial size {lengths} of {x.shape[2:]}."
        )
    # a whole number of copies is exactly the ratio of the lengths
    exact = [recompute or n == m * s for n, m, s in zip(lengths, x.shape[2:], scales, strict=True)]
    return lengths, tuple([None if e else s for e, s in zip(exact, scales, strict=True)])


# --- sampling


def grid_sample(
    input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool | None = None
) -> Any:
    """`input` read at the positions of `grid`, between elements too.

    Args:
        input: (batch, channels, height, width) or (batch, channels, depth, height, width).
        grid: (batch, out height, out width, 2) or (batch, out depth, out height, out width, 3): positions from -1
            to 1, the last spatial axis (x) first.
        mode: "bilinear" (trilinear in 3-d), "nearest" or, in 2-d, "bicubic".
        padding_mode: what lies outside: "zeros", "border" (the nearest element) or "reflection".
        align_corners: whether -1 and 1 are the centres of the first and last elements, or else their outer edges
            (the default).

    A position that is not finite reads zeros (with "zeros"). Raises `ShapeError` if grid and input do not fit,
    `ArgumentError` for modes that do not exist.

    >>> import functad as fd
    >>> x = fd.tensor([[[[1.0, 3.0]]]])
    >>> fd.nn.functional.grid_sample(x, fd.tensor([[[[0.0, 0.0]]]])).item()
    2.0
    """
    x, grid = floats("grid_sample", input, grid)
    ndim = x.ndim - 2
    if ndim not in (2, 3) or grid.ndim != x.ndim or grid.shape[-1] != ndim or grid.shape[0] != x.shape[0]:
        raise ShapeError(
            f"grid_sample: input of shape {x.shape} and grid of shape {grid.shape} do not fit: they are (batch, channels, "
            "height, width) and (batch, out height, out width, 2), or the same with a depth and 3."
        )
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and ndim == 3):
        raise ArgumentError(
            f'grid_sample: mode is "bilinear", "nearest" or, in 2-d, "bicubic", got {mode!r} in {ndim}-d.'
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(f'grid_sample: padding_mode is "zeros", "border" or "reflection", got {padding_mode!r}.')
    size, out = x.shape[2:], grid.shape[1:-1]
    align = bool(align_corners)
    wide, places = widen(x), ops.reshape(widen(grid), (x.shape[0], math.prod(out), ndim))
    at = [_unscaled(places[..., ndim - 1 - axis], n, align) for axis, n in enumerate(size)]
    if mode != "bicubic":
        at = [_outside(p, n, padding_mode, align) for p, n in zip(at, size, strict=True)]
    flat = ops.reshape(wide, (*x.shape[:2], math.prod(size)))
    if mode == "bilinear":
        result = _linear(flat, size, at)
    elif mode == "nearest":
        result = _read(flat, size, [_within(ops.round(stop_gradient(p)), n) for p, n in zip(at, size, strict=True)])
    else:
        result = _cubic(flat, size, at, padding_mode, align)
    return cast(ops.reshape(result, (*x.shape[:2], *out)), x.dtype)


@rounded_once
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool | None = None) -> Any:
    """The grid for `grid_sample` that an affine map of positions gives.

    Args:
        theta: (batch, 2, 3) or (batch, 3, 4): the maps.
        size: of the result of `grid_sample`, (batch, channels, height, width) or with a depth.
        align_corners: as in `grid_sample`.

    >>> import functad as fd
    >>> identity = fd.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    >>> fd.nn.functional.affine_grid(identity, (1, 1, 1, 2)).tolist()
    [[[[-0.5, 0.0], [0.5, 0.0]]]]
    """
    maps = floats("affine_grid", theta)
    if not isinstance(size, (tuple, list)):
        raise ArgumentTypeError(f"affine_grid: size is a tuple of ints, got {size!r}.")
    lengths = tuple([integer("affine_grid", "size", n, 1) for n in size])
    ndim = len(lengths) - 2
    if ndim not in (2, 3) or maps.shape != (lengths[0], ndim, ndim + 1):
        raise ShapeError(
            f"affine_grid: theta of shape {maps.shape} and size={lengths} do not fit: they are (batch, 2, 3) and (batch, "
            "channels, height, width), or (batch, 3, 4) and the same with a depth."
        )
    lines = []
    for n in lengths[2:]:
        line = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        lines.append(line if align_corners else line * ((n - 1) / n))
    base = np.stack([*np.meshgrid(*lines, indexing="ij")[::-1], np.ones(lengths[2:])], -1).reshape(-1, ndim + 1)
    places = bind(contract_op, (operand(base, maps, maps.dtype), maps), ("pk,nak->npa",))
    return ops.reshape(places, (lengths[0], *lengths[2:], ndim))


def deform_conv2d(
    input: Any,
    offset: Any,
    weight: Any,
    bias: Any = None,
    stride: Any = (1, 1),
    padding: Any = (0, 0),
    dilation: Any = (1, 1),
    mask: Any = None,
) -> Any:
    """A 2-d convolution whose windows read at places of their own (deformable convolution, v1; v2 with `mask`).

    Args:
        input: (batch, channels, height, width).
        offset: (batch, 2 * offset groups * kernel height * kernel width, out height, out width): how far, down and
            to the right, each place is moved. Groups of channels may have offsets of their own.
        weight: (out channels, channels / groups, kernel height, kernel width); groups follow from it.
        bias: one number per out channel.
        stride: the step between windows.
        padding: zeros at each side.
        dilation: the step between the elements of a window.
        mask: (batch, offset groups * kernel height * kernel width, out height, out width): a factor for each place.

    Names and layout are torchvision's. Raises `ShapeError` for shapes that do not fit.

    >>> import functad as fd
    >>> x, w = fd.ones((1, 1, 3, 3)), fd.ones((1, 1, 2, 2))
    >>> fd.nn.functional.deform_conv2d(x, fd.zeros((1, 8, 2, 2)), w).tolist()
    [[[[4.0, 4.0], [4.0, 4.0]]]]
    """
    given = [input, offset, weight, *[t for t in (bias, mask) if t is not None]]
    x, offset, weight, *more = floats("deform_conv2d", *given)
    bias = more.pop(0) if bias is not None else None
    mask = more.pop(0) if mask is not None else None
    if {x.ndim, offset.ndim, weight.ndim} != {4}:
        raise ShapeError(
            f"deform_conv2d: input, offset and weight have four axes, got {x.shape}, {offset.shape} and {weight.shape}."
        )
    kernel = weight.shape[2:]
    sides = per_axis("deform_conv2d", "padding", padding, 2, 0)
    how = moves(
        per_axis("deform_conv2d", "stride", stride, 2),
        tuple([(p, p) for p in sides]),
        per_axis("deform_conv2d", "dilation", dilation, 2),
    )
    out = fitting("deform_conv2d", x.shape[2:], kernel, how)
    n, channels, size = x.shape[0], x.shape[1], x.shape[2:]
    places = math.prod(kernel)
    parts = offset.shape[1] // (2 * places)
    groups = channels // max(weight.shape[1], 1)
    if offset.shape != (n, 2 * parts * places, *out) or not parts or channels % parts:
        raise ShapeError(
            f"deform_conv2d: offset has shape {offset.shape}; for input {x.shape} and weight {weight.shape} it takes ({n}, "
            f"{2 * places} * g, {out[0]}, {out[1]}) with a number of groups g that divides the {channels} channels."
        )
    if groups * weight.shape[1] != channels or weight.shape[0] % groups:
        raise ShapeError(
            f"deform_conv2d: weight of shape {weight.shape} does not fit the {channels} channels of input."
        )
    if mask is not None and mask.shape != (n, parts * places, *out):
        raise ShapeError(
            f"deform_conv2d: mask has shape {mask.shape}, offset {offset.shape} makes it {(n, parts * places, *out)}."
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"deform_conv2d: bias has shape {bias.shape}, weight {weight.shape} makes it {weight.shape[:1]}."
        )

    moved = ops.reshape(widen(offset), (n, parts, places, 2, *out))
    at = []
    for axis in range(2):
        column = (-1, 1) if axis == 0 else (1, -1)
        steps = np.arange(kernel[axis]).reshape(column) * how.dilation[axis]
        starts = np.arange(out[axis]).reshape(column) * how.stride[axis] - sides[axis]
        base = np.broadcast_to(steps, kernel).reshape(places, 1, 1) + np.broadcast_to(starts, out)
        position = moved[:, :, :, axis] + operand(base, moved, moved.dtype)
        at.append(_outside(ops.reshape(position, (n, parts, places * math.prod(out))), size[axis], "zeros", False))
    flat = ops.reshape(widen(x), (n, parts, channels // parts, math.prod(size)))
    columns = ops.reshape(_linear(flat, size, at), (n, parts, channels // parts, places, math.prod(out)))
    if mask is not None:
        columns = columns * ops.reshape(widen(mask), (n, parts, 1, places, math.prod(out)))
    columns = ops.reshape(columns, (n, groups, weight.shape[1] * places, math.prod(out)))
    matrices = ops.reshape(widen(weight), (groups, weight.shape[0] // groups, weight.shape[1] * places))
    result = bind(contract_op, (columns, matrices), ("ngkl,gok->ngol",))
    result = cast(ops.reshape(result, (n, weight.shape[0], *out)), x.dtype)
    return result if bias is None else result + ops.reshape(bias, (bias.size, 1, 1))


# --- positions


def _unscaled(p: Any, n: int, align: bool) -> Any:
    """A position from -1 to 1 as one from 0 to n - 1."""
    return (p + 1) * ((n - 1) / 2) if align else ((p + 1) * n - 1) * 0.5


def _outside(p: Any, n: int, padding_mode: str, align: bool) -> Any:
    """Where positions outside read: moved inside, or to one place that is far outside and so reads zeros."""
    if padding_mode == "zeros":
        return ops.where((p > -2) & (p < n + 1), p, -100.0)  # NaN too
    p = ops.where(ops.isfinite(p), p, 0.0)
    if padding_mode == "reflection":
        p = _reflected(p, n, align)
    return ops.clip(p, 0, n - 1)


def _reflected(p: Any, n: int, align: bool) -> Any:
    least, span = (0.0, n - 1) if align else (-0.5, n)
    if not span:
        return p * 0
    away = ops.abs(p - least)
    turns = stop_gradient(ops.floor(away / span))
    rest = away - turns * span
    return ops.where(ops.remainder(turns, 2) == 0, rest, span - rest) + least


def _within(place: Any, n: int) -> tuple[Any, Any]:
    """A whole-number position as an index, and whether it is inside."""
    return place.astype(dtypes.int32), (place >= 0) & (place < n)


def _read(flat: Any, size: Sequence[int], places: Sequence[tuple[Any, Any]]) -> Any:
    """The elements at places given axis by axis, 0 for those outside."""
    index, inside = places[0]
    for (i, here), n in zip(places[1:], size[1:], strict=True):
        index, inside = index * n + i, inside & here
    return bind(take_columns_op, (flat, ops.where(inside, index, -1)))


def _linear(flat: Any, size: Sequence[int], at: Sequence[Any]) -> Any:
    """Linear interpolation between the 2 neighbours along each axis; `flat` is (..., channels, all places)."""
    lows = [stop_gradient(ops.floor(p)) for p in at]
    steps = [p - low for p, low in zip(at, lows, strict=True)]
    total: Any = None
    for corner in itertools.product((0, 1), repeat=len(size)):
        places = [_within(low + c, n) for low, c, n in zip(lows, corner, size, strict=True)]
        weight = math.prod(t if c else 1 - t for t, c in zip(steps, corner, strict=True))
        term = _read(flat, size, places) * ops.expand_dims(weight, -2)
        total = term if total is None else total + term
    return total


def _cubic(flat: Any, size: Sequence[int], at: Sequence[Any], padding_mode: str, align: bool) -> Any:
    places, weights = [], []
    for p, n in zip(at, size, strict=True):
        p = ops.where(ops.isfinite(p), p, -100.0)
        low = stop_gradient(ops.floor(p))
        weights.append(cubic_weights(p - low, -0.75))
        taps = [_outside(low + k, n, padding_mode, align) for k in (-1, 0, 1, 2)]
        places.append([_within(tap if padding_mode == "zeros" else ops.round(tap), n) for tap in taps])
    total: Any = None
    for i, j in itertools.product(range(4), range(4)):
        weight = weights[0][i] * weights[1][j]
        term = _read(flat, size, [places[0][i], places[1][j]]) * ops.expand_dims(weight, -2)
        total = term if total is None else total + term
    return total
