"""Putting values at indices and under masks, by torch's names; and windows by NumPy's."""

from __future__ import annotations

from typing import Any

from functad.errors import ArgumentError, DTypeError, ShapeError
from functad.ops.at import At
from functad.ops.axes import counted, normalize_axes, normalize_axis
from functad.ops.cumulative import cumsum
from functad.ops.index import mask_select, take_inside, unfold
from functad.ops.logic import mask_fill, where
from functad.ops.operand import operand
from functad.ops.plan import along, concrete, integers, one_axis

__all__ = [
    "index_copy", "index_fill", "masked_fill", "masked_scatter", "masked_select", "sliding_window_view",
]  # fmt: skip

masked_fill = mask_fill
masked_select = mask_select


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
    given = window_shape if isinstance(window_shape, (tuple, list)) else (window_shape,)
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
