"""Putting values at indices and under masks, by torch's names; and windows by NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad.dispatch import Handle
from functad.errors import ArgumentError, DTypeError, OutOfBoundsError, ShapeError
from functad.ops.arithmetic import maximum, minimum, remainder
from functad.ops.at import At
from functad.ops.axes import counted, normalize_axes, normalize_axis, several
from functad.ops.cumulative import cumsum
from functad.ops.index import mask_select, take, take_along_axis, take_inside, unfold
from functad.ops.join import stack, unstack
from functad.ops.logic import mask_fill, where
from functad.ops.operand import operand, operands
from functad.ops.plan import along, concrete, every_value, integers, mask_values, one_axis
from functad.ops.shape import broadcast_shapes, broadcast_to, expand_dims, reshape
from functad.ops.slices import position

__all__ = [
    "choose", "compress", "index_copy", "index_fill", "masked_fill", "masked_scatter", "masked_select", "sliding_window_view",
]  # fmt: skip

masked_fill = mask_fill
masked_select = mask_select


def choose(a: Any, choices: Any, mode: str = "raise") -> Any:
    """Each element from the choice with the number in `a`; all broadcast.

    `mode` says what a number outside does: "raise", "wrap" or "clip".

    >>> import functad as fd
    >>> fd.ops.choose(fd.tensor([1, 0]), [[1, 2], [3, 4]]).tolist()
    [3, 2]
    """
    many = list(unstack(choices)) if isinstance(choices, Handle) else list(choices)
    if not many:
        raise ShapeError("choose: there are no choices to take from.")
    like = next((v for v in (a, *many) if isinstance(v, Handle)), None)
    a = operand(a, like, where="choose")
    values = operands("choose", "numeric", [operand(c, a) for c in many])
    shape = broadcast_shapes(a._shape, *[v._shape for v in values])
    table = stack([broadcast_to(v, shape) for v in values])
    index = inside(broadcast_to(a, shape), len(values), mode, "choose")
    return take_along_axis(table, expand_dims(index, 0), 0)[0]


def inside(index: Any, n: int, mode: str, where: str) -> Any:
    """Indices of an axis of length `n`, those outside brought inside or refused."""
    index = position(index)
    if mode == "wrap":
        return remainder(index, n)
    if mode == "clip":
        return minimum(maximum(index, 0), n - 1)
    if mode != "raise":
        raise ArgumentError(f"{where}: mode must be 'raise', 'wrap' or 'clip', got {mode!r}.")
    values = every_value(index)
    if values is not None and values.size and (values.min() < 0 or values.max() >= n):
        raise OutOfBoundsError(f"{where}: an index is outside 0 to {n - 1}; mode='clip' or 'wrap' brings it inside.")
    return index


def compress(x: Any, condition: Any, axis: int | None = None) -> Any:
    """The entries of an axis whose condition holds; of the flattened tensor without one. Eager only.

    >>> import functad as fd
    >>> fd.ops.compress(fd.tensor([[1, 2], [3, 4]]), [False, True], axis=1).tolist()
    [[2], [4]]
    """
    x = operand(x, where="compress")
    if axis is None:
        x, axis = reshape(x, -1), 0
    mask = mask_values(operand(condition, x, where="compress"), "compress")
    if mask.ndim != 1:
        raise ShapeError(f"compress: the condition must be a vector, got shape {mask.shape}.")
    return take(x, np.flatnonzero(mask), axis)


def index_copy(x: Any, axis: int, indices: Any, values: Any) -> Any:
    """`x` with slices of `values` written at a 1-d array of indices along an axis; of repeats the last counts.

    >>> import functad as fd
    >>> fd.ops.index_copy(fd.zeros(3), 0, [2, 0], fd.tensor([1.0, 10.0])).tolist()
    [10.0, 0.0, 1.0]
    """
    return _at(x, axis, indices, "index_copy").set(values)


def index_fill(x: Any, axis: int, indices: Any, value: Any) -> Any:
    """`x` with one value written in the slices at a 1-d array of indices along an axis.

    >>> import functad as fd
    >>> fd.ops.index_fill(fd.zeros((2, 3)), 1, [0, 2], 1.0).tolist()
    [[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]]
    """
    value = operand(value, x, where="index_fill")
    if value.shape:
        raise ShapeError(f"index_fill: the value must be one number, got shape {value.shape}; see index_copy.")
    return _at(x, axis, indices, "index_fill").set(value)


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """`x` with the elements of `source`, in order, where the mask is true; `mask` broadcasts to `x`.

    Works under jit and vmap. Raises `ShapeError` if `source` has fewer elements than the mask selects
    (where the mask has a value).

    >>> import functad as fd
    >>> fd.ops.masked_scatter(fd.zeros(4), [True, False, True, True], fd.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 0.0, 2.0, 3.0]
    """
    x = operand(x, where="masked_scatter")
    mask = operand(mask, x, where="masked_scatter")
    if mask.dtype.kind != "b":
        raise DTypeError(
            f"masked_scatter: the mask must hold bools, got {mask.dtype}; write a comparison such as x > 0."
        )
    mask = mask.broadcast_to(x.shape)
    source = operand(source, x, x.dtype, "masked_scatter").ravel()
    known = concrete(mask)
    if known is not None and int(known.sum()) > source.size:
        raise ShapeError(f"masked_scatter: the mask selects {int(known.sum())} elements, source has {source.size}.")
    if not source.size:
        return x
    place = (cumsum(mask.ravel().astype(int)) - 1).clip(0, source.size - 1)
    return where(mask, take_inside(source, place).reshape(x.shape), x)


def sliding_window_view(x: Any, window_shape: Any, axis: Any = None) -> Any:
    """All windows of a shape: the result has the axes of `x`, shortened, and then those of the window.

    >>> import functad as fd
    >>> fd.ops.sliding_window_view(fd.arange(4), 3).tolist()
    [[0, 1, 2], [1, 2, 3]]
    """
    x = operand(x, where="sliding_window_view")
    given = several(window_shape)
    sizes = [counted(n, "sliding_window_view", "a length") for n in given]
    if axis is None:
        axes: Any = tuple(range(x.ndim))
    elif isinstance(axis, (tuple, list)):
        axes = tuple([normalize_axis(a, x.ndim, "sliding_window_view") for a in axis])  # one may come twice
    else:
        axes = normalize_axes(axis, x.ndim, "sliding_window_view")
    if len(axes) != len(sizes):
        raise ArgumentError(
            f"sliding_window_view: window_shape={tuple(sizes)} needs one length for each of the axes {axes}."
        )
    for a, n in zip(axes, sizes, strict=True):
        x = unfold(x, a, n)
    return x


def _at(x: Any, axis: int, indices: Any, where: str) -> Any:
    x = operand(x, where=where)
    indices = one_axis(integers(indices, x, where), where)
    return At(x)[along(normalize_axis(axis, x.ndim, where), indices)]
