"""Losses of classes: the target says which of the elements along an axis is the right one."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.dispatch import bind
from functad.errors import ArgumentError, DTypeError, ShapeError
from functad.nn.functional.checks import check_reduction, check_same_shape, classes, floats, known, number, reduced
from functad.ops.halves import rounded_once
from functad.ops.index import take_inside
from functad.ops.logic import gate
from functad.ops.loss import bce_logits_op, class_nll_op
from functad.ops.operand import operand
from functad.ops.outside import filled, inside
from functad.ops.rules import cast, zero_mul

__all__ = ["cross_entropy", "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "nll_loss"]


def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    """`-log(softmax(input))` of the target's class, from logits; stable for logits of any size.

    Args:
        input: logits of shape (C), (N, C) or (N, C, ...); -inf excludes a class.
        target: class indices of shape (), (N) or (N, ...); or class probabilities of the shape of `input`.
        weight: one for each class. With class indices the mean is the weighted one.
        ignore_index: the index of elements that count nothing.
        reduction: "none", "mean" or "sum". The mean over no element is NaN, with gradient 0.
        label_smoothing: the share of the target that is spread over all classes alike.

    Raises `OutOfBoundsError` naming a class that does not exist where values are known (under jit its loss is
    NaN, with gradient 0), and `ShapeError` if the shapes do not fit.

    >>> import functad as fd
    >>> logits = fd.tensor([[0.0, 1000.0], [0.0, float("-inf")]])
    >>> loss = lambda x: fd.nn.functional.cross_entropy(x, fd.tensor([0, 0]), reduction="sum")
    >>> loss(logits).item(), fd.grad(loss)(logits).tolist()
    (1000.0, [[-1.0, 1.0], [0.0, 0.0]])
    """
    where = "cross_entropy"
    check_reduction(where, reduction)
    smoothing = number(where, "label_smoothing", label_smoothing)
    if not 0 <= smoothing <= 1:
        raise ArgumentError(f"{where}: label_smoothing must be from 0 to 1, got {label_smoothing}.")
    input, axis = _logits(where, input)
    target = operand(target, input, where=where)
    if (
        weight is None and not smoothing and not dtypes.is_float(target.dtype)
    ):  # one op, that reads half types as they are
        return _cross_entropy(where, input, axis, target, None, ignore_index, reduction, smoothing)
    return _rounded_cross_entropy(where, input, axis, target, weight, ignore_index, reduction, smoothing)


def _cross_entropy(
    where: str, input: Any, axis: int, target: Any, weight: Any, ignore_index: int, reduction: str, smoothing: float
) -> Any:
    weight = None if weight is None else _class_weight(where, weight, input, axis)
    if dtypes.is_float(target.dtype):
        return _soft_cross_entropy(input, target, axis, weight, reduction, smoothing)
    target, kept, there = _hard(where, input, target, axis, ignore_index)
    evenly = smoothing if weight is None else 0.0
    loss = bind(class_nll_op, (input, target), (axis, evenly))
    share = None if weight is None else take_inside(weight, target)
    loss = loss if share is None else _shared(loss, share)
    if smoothing != evenly:
        rest = _summed(ops.log_softmax(input, axis), weight, axis)
        loss = loss * (1 - smoothing) - rest * (smoothing / input.shape[axis])
    return _over_kept(loss, share, kept, there, reduction)


_rounded_cross_entropy = rounded_once(_cross_entropy)


def nll_loss(input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> Any:
    """`-input` of the target's class, for log probabilities; the arguments are those of `cross_entropy`.

    >>> import functad as fd
    >>> fd.nn.functional.nll_loss(fd.tensor([[-1.0, -2.0]]), fd.tensor([1])).item()
    2.0
    """
    where = "nll_loss"
    check_reduction(where, reduction)
    input, axis = _logits(where, input)
    if weight is None:  # the elements are read as they are
        return _nll_loss(where, input, axis, target, None, ignore_index, reduction)
    return _rounded_nll_loss(where, input, axis, target, weight, ignore_index, reduction)


def _nll_loss(where: str, input: Any, axis: int, target: Any, weight: Any, ignore_index: int, reduction: str) -> Any:
    target, kept, there = _hard(where, input, operand(target, input, where=where), axis, ignore_index)
    loss = -_picked(input, target, axis)
    share = None
    if weight is not None:
        share = take_inside(_class_weight(where, weight, input, axis), target)
        loss = _shared(loss, share)
    return _over_kept(loss, share, kept, there, reduction)


_rounded_nll_loss = rounded_once(_nll_loss)


@rounded_once
def multi_margin_loss(
    input: Any, target: Any, p: int = 1, margin: float = 1.0, weight: Any = None, reduction: str = "mean"
) -> Any:
    """The mean over classes of `max(0, margin - input[target] + input[class]) ** p`, the target left out.

    `input` has shape (N, C) or (C), `p` is 1 or 2; `weight` has one element for each class, and that of the
    target multiplies the loss.

    >>> import functad as fd
    >>> fd.nn.functional.multi_margin_loss(fd.tensor([0.5, 1.0]), fd.tensor(0)).item()
    0.75
    """
    where = "multi_margin_loss"
    check_reduction(where, reduction)
    if p not in (1, 2):
        raise ArgumentError(f"{where}: p must be 1 or 2, got {p!r}.")
    input = _rows(where, input)
    target, _, there = _hard(where, input, operand(target, input, where=where), input.ndim - 1, None)
    right = ops.expand_dims(_picked(input, target, input.ndim - 1), -1)
    terms = ops.relu(number(where, "margin", margin) - right + input)
    terms = terms if p == 1 else ops.square(terms)
    others = ops.expand_dims(target, -1) != _places(input)
    loss = ops.sum(gate(terms, others), -1) / input.shape[-1]
    loss = loss if there is None else filled(loss, there)
    if weight is not None:
        loss = loss * take_inside(_class_weight(where, weight, input, input.ndim - 1), target)
    return reduced(loss, reduction)


@rounded_once
def multilabel_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """The sum of `max(0, 1 - input[right] + input[wrong])` over right and wrong classes, over the number of classes.

    `input` has shape (N, C) or (C); the target, of the same shape, lists the right classes, up to the first -1.

    >>> import functad as fd
    >>> fd.nn.functional.multilabel_margin_loss(fd.tensor([0.5, 1.0]), fd.tensor([0, -1])).item()
    0.75
    """
    where = "multilabel_margin_loss"
    check_reduction(where, reduction)
    input = _rows(where, input)
    target = classes(where, target, input.shape[-1], input, ignore_index=-1)
    if target.shape != input.shape:
        raise ShapeError(f"{where}: target must have the shape of input, {input.shape}, got {target.shape}.")
    listed = ops.cumprod((target >= 0).astype(dtypes.int32), -1) > 0
    target = ops.where(listed, target, 0)
    right = ops.take_along_axis(input, target, -1)
    hits = ops.logical_and(ops.expand_dims(target, -1) == _places(input), ops.expand_dims(listed, -1))
    wrong = ops.logical_not(ops.any(hits, -2))
    terms = ops.relu(1 - ops.expand_dims(right, -1) + ops.expand_dims(input, -2))
    counted = ops.logical_and(ops.expand_dims(listed, -1), ops.expand_dims(wrong, -2))
    return reduced(ops.sum(gate(terms, counted), (-2, -1)) / input.shape[-1], reduction)


@rounded_once
def multilabel_soft_margin_loss(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """The mean over classes (the last axis) of `binary_cross_entropy_with_logits`; `weight` multiplies each class.

    >>> import functad as fd
    >>> fd.nn.functional.multilabel_soft_margin_loss(fd.tensor([[1000.0, -1000.0]]), fd.tensor([[0.0, 0.0]])).item()
    500.0
    """
    where = "multilabel_soft_margin_loss"
    check_reduction(where, reduction)
    input, target = floats(where, input, target)
    check_same_shape(where, input, target)
    if not input.ndim:
        raise ShapeError(f"{where}: input has axes (..., C), got a 0-d tensor.")
    loss = bind(bce_logits_op, (input, target))
    if weight is not None:
        loss = loss * operand(weight, loss, loss.dtype, where)
    return reduced(ops.mean(loss, -1), reduction)


# --- their parts


def _logits(where: str, input: Any) -> tuple[Any, int]:
    """The input, and its axis of classes."""
    input = floats(where, input)
    if not input.ndim:
        raise ShapeError(f"{where}: input has shape (C), (N, C) or (N, C, ...), got a 0-d tensor.")
    return input, min(input.ndim - 1, 1)


def _rows(where: str, input: Any) -> Any:
    input = floats(where, input)
    if input.ndim not in (1, 2) or not input.shape[-1]:
        raise ShapeError(f"{where}: input has shape (N, C) or (C) with at least one class, got {input.shape}.")
    return input


def _hard(where: str, input: Any, target: Any, axis: int, ignore_index: int | None) -> tuple[Any, Any, Any]:
    """Class indices, which elements are kept if some may not be, and which have a class that exists if nobody could look.

    The index of the others is then 0.
    """
    shape = input.shape[:axis] + input.shape[axis + 1 :]
    if target.shape != shape:
        also = (
            f" If it holds probabilities, it needs a float dtype, and the input's shape (it has {target.dtype})."
            if target.shape == input.shape and where == "cross_entropy"
            else ""
        )
        raise ShapeError(
            f"{where}: for input of shape {input.shape}, whose axis {axis} counts the classes, target must have shape "
            f"{shape}, got {target.shape}.{also}"
        )
    target = classes(where, target, input.shape[axis], input, ignore_index)
    values = known(target)
    if values is None:
        there = inside(target, 0, input.shape[axis])
        kept = None if ignore_index is None else target != ignore_index
        return (
            ops.where(there, target, 0),
            kept,
            there if kept is None else ops.logical_or(there, ops.logical_not(kept)),
        )
    if ignore_index is None or not (values == ignore_index).any():
        return target, None, None
    kept = target != ignore_index
    return ops.where(kept, target, 0), kept, None


def _class_weight(where: str, weight: Any, input: Any, axis: int) -> Any:
    weight = operand(weight, input, input.dtype, where)
    if weight.shape != (input.shape[axis],):
        raise ShapeError(
            f"{where}: weight must have one element for each of the {input.shape[axis]} classes, got shape {weight.shape}."
        )
    return weight


def _picked(input: Any, target: Any, axis: int) -> Any:
    """The element of the target's class."""
    return ops.squeeze(ops.take_along_axis(input, ops.expand_dims(target, axis), axis), axis)


def _places(input: Any) -> Any:
    """The numbers of the classes, along the last axis."""
    return operand(np.arange(input.shape[-1]), input, dtypes.int32)


def _summed(terms: Any, weight: Any, axis: int) -> Any:
    """The sum over classes, weighted if there are weights."""
    if weight is not None:
        terms = terms * ops.reshape(weight, (-1, *[1] * (terms.ndim - 1 - axis)))
    return ops.sum(terms, axis)


def _shared(loss: Any, share: Any) -> Any:
    """The loss of each element times its weight; with weight 0 it counts nothing, whatever it is."""
    return gate(loss, share != 0) * share


def _over_kept(loss: Any, share: Any, kept: Any, there: Any, reduction: str) -> Any:
    """The reduction over the elements that are kept, by weight; NaN for one of a class that is not there."""
    if there is not None:
        loss = filled(loss, there)
    if kept is not None:
        loss = gate(loss, kept)
    if reduction != "mean" or (share is None and kept is None):
        return reduced(loss, reduction)
    share = cast(kept, loss.dtype) if share is None else share if kept is None else gate(share, kept)
    return ops.sum(loss) / ops.sum(share)


def _soft_cross_entropy(input: Any, target: Any, axis: int, weight: Any, reduction: str, smoothing: float) -> Any:
    if target.shape != input.shape:
        raise DTypeError(
            f"cross_entropy: target of {target.dtype}{list(target.shape)} is neither class indices (ints of shape "
            f"{input.shape[:axis] + input.shape[axis + 1 :]}) nor class probabilities (floats of shape {input.shape})."
        )
    target = operand(target, input, input.dtype)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / input.shape[axis]
    loss = -_summed(zero_mul(target, ops.log_softmax(input, axis)), weight, axis)
    return reduced(loss, reduction)
