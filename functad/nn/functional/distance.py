"""Distances and similarities, and the losses made of them. The derivative of a distance between equal points is 0."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functad import ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError
from functad.keywords import explained
from functad.nn.functional.checks import check_reduction, floats, number, reduced, wide
from functad.ops.axes import normalize_axis
from functad.ops.halves import rounded_once
from functad.ops.index import take_inside
from functad.ops.loss import nudge_op
from functad.ops.operand import operand

__all__ = [
    "cdist", "cosine_embedding_loss", "cosine_similarity", "pairwise_distance", "pdist", "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
]  # fmt: skip


@rounded_once
@explained
def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between `x1` and `x2` along `axis`; both broadcast.

    A vector shorter than `eps` counts as that long, so the cosine with a zero vector is 0.

    >>> import functad as fd
    >>> fd.nn.functional.cosine_similarity(fd.tensor([[3.0, 0.0]]), fd.tensor([[4.0, 0.0]])).tolist()
    [1.0]
    """
    where = "cosine_similarity"
    x1, x2 = floats(where, x1, x2)
    dtype, least = x1.dtype, number(where, "eps", eps)
    axis = normalize_axis(axis, max(x1.ndim, x2.ndim), where)
    x1, x2 = ops.broadcast_arrays(*wide(x1, x2))
    lengths = [ops.clip(ops.norm(x, 2, axis), least) for x in (x1, x2)]
    return ops.astype(ops.sum(x1 * x2, axis) / (lengths[0] * lengths[1]), dtype)


@rounded_once
def pairwise_distance(x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Any:
    """The `p`-norm of `x1 - x2 + eps` along the last axis; both broadcast.

    Where the points are equal the derivative is 0, of the two that the kink has the smaller one.

    >>> import functad as fd
    >>> fd.nn.functional.pairwise_distance(fd.tensor([[3.0, 4.0]]), fd.tensor([[0.0, 0.0]]), eps=0.0).tolist()
    [5.0]
    """
    where = "pairwise_distance"
    x1, x2 = floats(where, x1, x2)
    if not max(x1.ndim, x2.ndim):
        raise ShapeError(f"{where}: x1 and x2 have axes (..., D), got two 0-d tensors.")
    moved, shift = wide(x1) - wide(x2), number(where, "eps", eps)
    if shift:
        moved = bind(nudge_op, (moved,), (shift, -1))
    length = ops.norm(moved, p, -1, keepdim)
    return length if x1.dtype.kind == "c" else ops.astype(length, x1.dtype)


@rounded_once
def pdist(x: Any, p: float = 2.0) -> Any:
    """The `p`-norm distances of all pairs of rows of `x`, in the order (0, 1), (0, 2), ..., (1, 2), ...

    Raises `ShapeError` unless `x` has shape (N, D), `ArgumentError` for a negative `p`.

    >>> import functad as fd
    >>> fd.nn.functional.pdist(fd.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])).tolist()
    [5.0, 1.0, 4.242640495300293]
    """
    x = floats("pdist", x)
    if x.ndim != 2:
        raise ShapeError(f"pdist: x must have shape (N, D), got {x.shape}.")
    if number("pdist", "p", p) < 0:
        raise ArgumentError(f"pdist: p must not be negative, got {p}.")
    first, second = np.triu_indices(x.shape[0], 1)
    rows = wide(x)
    lengths = ops.norm(take_inside(rows, first, 0) - take_inside(rows, second, 0), p, -1)
    return lengths if x.dtype.kind == "c" else ops.astype(lengths, x.dtype)


@rounded_once
def cdist(x1: Any, x2: Any, p: float = 2.0) -> Any:
    """The `p`-norm distances of all rows of `x1`, (..., P, D), from all rows of `x2`, (..., R, D), as (..., P, R).

    Raises `ShapeError` unless rows are equally long, `ArgumentError` for a negative `p`. The differences are taken as
    they are, so distances of points that are close have all digits.

    >>> import functad as fd
    >>> fd.nn.functional.cdist(fd.tensor([[0.0, 0.0], [0.0, 1.0]]), fd.tensor([[3.0, 4.0]]), p=1).tolist()
    [[7.0], [6.0]]
    """
    x1, x2 = floats("cdist", x1, x2)
    if min(x1.ndim, x2.ndim) < 2 or x1.shape[-1] != x2.shape[-1]:
        raise ShapeError(
            f"cdist: x1 has shape (..., P, D) and x2 (..., R, D), with one length of rows, got {x1.shape} and {x2.shape}."
        )
    if number("cdist", "p", p) < 0:
        raise ArgumentError(f"cdist: p must not be negative, got {p}.")
    lengths = ops.norm(ops.expand_dims(wide(x1), -2) - ops.expand_dims(wide(x2), -3), p, -1)
    return lengths if x1.dtype.kind == "c" else ops.astype(lengths, x1.dtype)


@rounded_once
def cosine_embedding_loss(input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    """`1 - cosine` where the target is 1, `max(0, cosine - margin)` where it is -1; shapes (N, D) and (N), or (D).

    >>> import functad as fd
    >>> x = fd.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> fd.nn.functional.cosine_embedding_loss(x, x, fd.tensor([1, -1]), reduction="none").tolist()
    [0.0, 1.0]
    """
    where = "cosine_embedding_loss"
    check_reduction(where, reduction)
    input1, input2 = floats(where, input1, input2)
    target = operand(target, input1, where=where)
    if input1.shape != input2.shape or input1.ndim not in (1, 2) or target.shape != input1.shape[:-1]:
        raise ShapeError(
            f"{where}: the inputs have shape (N, D) and the target (N), or (D) and (); got {input1.shape}, "
            f"{input2.shape} and {target.shape}."
        )
    cosine = cosine_similarity(input1, input2, -1)
    apart = ops.relu(cosine - number(where, "margin", margin))
    return reduced(ops.where(target == 1, 1 - cosine, 0.0) + ops.where(target == -1, apart, 0.0), reduction)


@rounded_once
def triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """`max(0, d(anchor, positive) - d(anchor, negative) + margin)` with the distance `pairwise_distance`.

    With `swap` the distance to the negative is the smaller one of those from the anchor and from the positive.

    >>> import functad as fd
    >>> a, b, c = fd.tensor([[0.0]]), fd.tensor([[2.0]]), fd.tensor([[0.5]])
    >>> round(fd.nn.functional.triplet_margin_loss(a, b, c).item(), 4)
    2.5
    """

    def distance(x: Any, y: Any) -> Any:
        return pairwise_distance(x, y, p, eps)

    return _triplet("triplet_margin_loss", anchor, positive, negative, distance, margin, swap, reduction)


@rounded_once
def triplet_margin_with_distance_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    *,
    distance_function: Callable[[Any, Any], Any] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Any:
    """`triplet_margin_loss` with any distance, a function of two tensors; `pairwise_distance` without one.

    >>> import functad as fd
    >>> a, b, c = fd.tensor([[0.0]]), fd.tensor([[2.0]]), fd.tensor([[0.5]])
    >>> fd.nn.functional.triplet_margin_with_distance_loss(a, b, c, distance_function=lambda x, y: abs(x - y)).item()
    2.5
    """
    where = "triplet_margin_with_distance_loss"
    distance = pairwise_distance if distance_function is None else distance_function
    if not callable(distance):
        raise ArgumentTypeError(f"{where}: distance_function must be a function of two tensors, got {distance!r}.")
    return _triplet(where, anchor, positive, negative, distance, margin, swap, reduction)


def _triplet(
    where: str,
    anchor: Any,
    positive: Any,
    negative: Any,
    distance: Callable[[Any, Any], Any],
    margin: float,
    swap: bool,
    reduction: str,
) -> Any:
    check_reduction(where, reduction)
    anchor, positive, negative = floats(where, anchor, positive, negative)
    if not anchor.ndim == positive.ndim == negative.ndim:
        raise ShapeError(
            f"{where}: anchor, positive and negative must have as many axes, got shapes {anchor.shape}, {positive.shape} "
            f"and {negative.shape}."
        )
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = ops.minimum(far, distance(positive, negative))
    return reduced(ops.relu(near - far + number(where, "margin", margin)), reduction)
