"""Losses. Each takes `reduction`: "none" for one loss per element, "mean" or "sum" for their mean or sum.

`input` and `target` must have one shape (or the target is a number): what torch warns of is refused here.
"""

from __future__ import annotations

import math
from typing import Any

from functad import ops
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.nn.functional.checks import (
    REDUCTIONS,
    check_reduction,
    check_same_shape,
    floats,
    looked_at,
    number,
    reduced,
    weighted,
)
from functad.ops.elementary import difference
from functad.ops.halves import rounded_once
from functad.ops.loss import bce_logits_op, bce_op, huber_op
from functad.ops.operand import operand
from functad.ops.rules import zero_mul
from functad.ops.transfer import stop_gradient

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "gaussian_nll_loss", "hinge_embedding_loss",
    "huber_loss", "kl_div", "l1_loss", "margin_ranking_loss", "mse_loss", "poisson_nll_loss", "sigmoid_focal_loss",
    "smooth_l1_loss", "soft_margin_loss",
]  # fmt: skip


@rounded_once
def mse_loss(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    """`(input - target) ** 2`; with a `weight` for each element the mean is the weighted one.

    Raises `ShapeError` if the shapes of `input` and `target` differ.

    >>> import functad as fd
    >>> fd.nn.functional.mse_loss(fd.tensor([1.0, 2.0]), fd.tensor([1.0, 4.0])).item()
    2.0
    """
    input, target = _pair("mse_loss", input, target, reduction)
    return weighted("mse_loss", ops.square(input - target), weight, reduction)


@rounded_once
def l1_loss(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Any:
    """`abs(input - target)`, whose derivative where they are equal is 0.

    >>> import functad as fd
    >>> fd.nn.functional.l1_loss(fd.tensor([1.0, 2.0]), fd.tensor([1.0, 4.0])).item()
    1.0
    """
    input, target = _pair("l1_loss", input, target, reduction)
    return weighted("l1_loss", abs(input - target), weight, reduction)


@rounded_once
def huber_loss(input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None) -> Any:
    """Half the square of the difference up to `delta`, and a line of slope `delta` beyond (Huber 1964).

    >>> import functad as fd
    >>> fd.nn.functional.huber_loss(fd.tensor([0.5, 3.0]), fd.zeros(2), reduction="none").tolist()
    [0.125, 2.5]
    """
    input, target = _pair("huber_loss", input, target, reduction)
    size = number("huber_loss", "delta", delta)
    if size <= 0:
        raise ArgumentError(f"huber_loss: delta must be positive, got {delta}.")
    return weighted("huber_loss", _huber(input - target, size), weight, reduction)


@rounded_once
def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    """`huber_loss` with `delta=beta` over `beta`: slope 1 far away; `l1_loss` for `beta=0` (Fast R-CNN, 2015).

    >>> import functad as fd
    >>> fd.nn.functional.smooth_l1_loss(fd.tensor([0.5, 3.0]), fd.zeros(2), reduction="none").tolist()
    [0.125, 2.5]
    """
    input, target = _pair("smooth_l1_loss", input, target, reduction)
    size = number("smooth_l1_loss", "beta", beta)
    if size < 0:
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, got {beta}.")
    return reduced(_huber(input - target, size) / size if size else abs(input - target), reduction)


def _huber(x: Any, size: float) -> Any:
    return bind(huber_op, (x,), (size,))


# --- two classes


@rounded_once
def binary_cross_entropy(input: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    """`-target * log(input) - (1 - target) * log(1 - input)` of probabilities; logarithms are at least -100.

    `weight` multiplies the losses. Raises `ArgumentError` for an input outside [0, 1] where values are known, in the
    first calls of a line (a look at values waits for them); later the loss of such an element is NaN.
    `binary_cross_entropy_with_logits` takes what comes before the sigmoid, and is exact.

    >>> import functad as fd
    >>> fd.nn.functional.binary_cross_entropy(fd.tensor([0.0, 1.0]), fd.tensor([1.0, 1.0]), reduction="none").tolist()
    [100.0, 0.0]
    """
    where = "binary_cross_entropy"
    input, target = _pair(where, input, target, reduction)
    values = looked_at(input, lambda p: bool(((p >= 0) & (p <= 1) | (p != p)).all()))
    if values is not None:
        raise ArgumentError(
            f"{where}: input holds probabilities, from 0 to 1, but its values reach from {values.min()} to "
            f"{values.max()}. Apply a sigmoid, or write {where}_with_logits(input, target)."
        )
    return reduced(_times(where, bind(bce_op, (input, target)), weight), reduction)


@rounded_once
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Any:
    """`binary_cross_entropy` of `sigmoid(input)`, exact for logits of any size.

    `weight` multiplies the losses, `pos_weight` the part of the positive class; both broadcast.

    >>> import functad as fd
    >>> loss = lambda x: fd.nn.functional.binary_cross_entropy_with_logits(x, fd.tensor(1.0))
    >>> fd.grad(loss)(0.0).item(), loss(fd.tensor(1000.0)).item()
    (-0.5, 0.0)
    """
    where = "binary_cross_entropy_with_logits"
    input, target = _pair(where, input, target, reduction)
    loss = bind(bce_logits_op, (input, target))
    if pos_weight is not None:
        more = operand(pos_weight, input, input.dtype, where) - 1
        loss = loss - zero_mul(more * target, ops.log_sigmoid(input))
    return reduced(_times(where, loss, weight), reduction)


@rounded_once
def sigmoid_focal_loss(
    inputs: Any, targets: Any, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> Any:
    """Cross entropy of `sigmoid(inputs)`, times how far it is from the target to the power `gamma`; of detectors.

    Args:
        inputs: logits.
        targets: 0 or 1 (or between), in the shape of `inputs`.
        alpha: the weight of targets 1, those of 0 have `1 - alpha`; none, if it is negative.
        gamma: how much less what is right already counts; 0 for plain cross entropy.
        reduction: "none", "mean" or "sum".

    The arguments are torchvision's.

    >>> import functad as fd
    >>> loss = fd.nn.functional.sigmoid_focal_loss(fd.tensor([0.0, 50.0]), fd.tensor([1.0, 1.0]))
    >>> [round(x, 4) for x in loss.tolist()]
    [0.0433, 0.0]
    """
    where = "sigmoid_focal_loss"
    alpha, gamma = number(where, "alpha", alpha), number(where, "gamma", gamma)
    inputs, targets = _pair(where, inputs, targets, reduction)
    off = targets * ops.sigmoid(-inputs) + (1 - targets) * ops.sigmoid(inputs)
    loss = bind(bce_logits_op, (inputs, targets)) * off**gamma
    loss = loss if alpha < 0 else loss * (alpha * targets + (1 - alpha) * (1 - targets))
    return reduced(loss, reduction)


@rounded_once
def soft_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Any:
    """`log(1 + exp(-target * input))` for targets 1 and -1.

    >>> import functad as fd
    >>> fd.nn.functional.soft_margin_loss(fd.tensor([1000.0]), fd.tensor([-1.0])).item()
    1000.0
    """
    input, target = _pair("soft_margin_loss", input, target, reduction)
    return reduced(ops.softplus(-target * input), reduction)


@rounded_once
def hinge_embedding_loss(input: Any, target: Any, margin: float = 1.0, reduction: str = "mean") -> Any:
    """`input` where the target is 1, `max(0, margin - input)` where it is -1.

    >>> import functad as fd
    >>> fd.nn.functional.hinge_embedding_loss(fd.tensor([0.25, 0.25]), fd.tensor([1, -1]), reduction="none").tolist()
    [0.25, 0.75]
    """
    input, target = _pair("hinge_embedding_loss", input, target, reduction)
    apart = ops.relu(number("hinge_embedding_loss", "margin", margin) - input)
    return reduced(ops.where(target == 1, input, ops.where(target == -1, apart, input + apart)), reduction)


@rounded_once
def margin_ranking_loss(input1: Any, input2: Any, target: Any, margin: float = 0.0, reduction: str = "mean") -> Any:
    """`max(0, margin - target * (input1 - input2))`: the target is 1 where `input1` should be larger, else -1.

    >>> import functad as fd
    >>> fd.nn.functional.margin_ranking_loss(fd.tensor([1.0]), fd.tensor([3.0]), fd.tensor([1.0])).item()
    2.0
    """
    where = "margin_ranking_loss"
    check_reduction(where, reduction)
    input1, input2, target = floats(where, input1, input2, target)
    check_same_shape(where, input1, input2)
    check_same_shape(where, input1, target)
    return reduced(ops.relu(number(where, "margin", margin) - target * (input1 - input2)), reduction)


# --- distributions


@rounded_once
def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Any:
    """`target * (log(target) - input)`, the terms of a Kullback-Leibler divergence; `input` holds logarithms.

    Where the target is 0 the term is 0. With `log_target` the target holds logarithms too. The reduction
    "batchmean" divides the sum by the length of axis 0, which is the divergence itself; "mean" does not.

    >>> import functad as fd
    >>> fd.nn.functional.kl_div(fd.tensor([0.0, -1.0]), fd.tensor([0.0, 1.0]), reduction="sum").item()
    1.0
    """
    where = "kl_div"
    check_reduction(where, reduction, (*REDUCTIONS[:1], "batchmean", *REDUCTIONS[1:]))
    input, target = floats(where, input, target)
    check_same_shape(where, input, target)
    if log_target:
        loss = zero_mul(ops.exp(target), difference(target, input))
    else:
        loss = ops.xlogy(target, target) - zero_mul(target, input)
    if reduction == "batchmean":
        if not input.ndim:
            raise ShapeError("kl_div: reduction='batchmean' needs an axis of the batch, and input is 0-d; use 'sum'.")
        return ops.sum(loss) / input.shape[0]
    return reduced(loss, reduction)


@rounded_once
def poisson_nll_loss(
    input: Any, target: Any, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean"
) -> Any:
    """The negative log likelihood of counts: `exp(input) - target * input` for the logarithm of a rate.

    Without `log_input` the input is the rate, and `eps` keeps its logarithm finite. `full` adds Stirling's
    approximation of the term in the target alone.

    >>> import functad as fd
    >>> fd.nn.functional.poisson_nll_loss(fd.tensor([0.0]), fd.tensor([3.0])).item()
    1.0
    """
    input, target = _pair("poisson_nll_loss", input, target, reduction)
    if log_input:
        loss = ops.exp(input) - target * input
    else:
        loss = input - target * ops.log(input + number("poisson_nll_loss", "eps", eps))
    if full:
        count = ops.where(target > 1, target, 1.0)
        stirling = count * ops.log(count) - count + 0.5 * ops.log(2 * math.pi * count)
        loss = loss + ops.where(target > 1, stirling, 0.0)
    return reduced(loss, reduction)


@rounded_once
def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Any:
    """The negative log likelihood of normal numbers: `(log(var) + (input - target) ** 2 / var) / 2`.

    `var` has the shape of `input`, or one element for its last axis; it counts as `eps` where it is smaller, and
    its derivative passes through as if it did not (as in torch). `full` adds the constant log(2 pi) / 2. Raises
    `ShapeError` for another shape and `ArgumentError` for a negative variance where values are known, in the
    first calls of a line (a look at values waits for them).

    >>> import functad as fd
    >>> fd.nn.functional.gaussian_nll_loss(fd.tensor([3.0]), fd.tensor([1.0]), fd.tensor([1.0])).item()
    2.0
    """
    where = "gaussian_nll_loss"
    check_reduction(where, reduction)
    input, target, var = floats(where, input, target, var)
    check_same_shape(where, input, target)
    least = number(where, "eps", eps)
    if least <= 0:
        raise ArgumentError(f"{where}: eps must be positive, got {eps}.")
    if var.ndim and var.shape == input.shape[:-1]:
        var = ops.expand_dims(var, -1)
    elif var.ndim and var.shape not in (input.shape, (*input.shape[:-1], 1)):
        raise ShapeError(
            f"{where}: var of shape {var.shape} does not fit input of shape {input.shape}; it has that shape, or length 1 "
            "along the last axis, or no such axis."
        )
    values = looked_at(var, lambda v: not (v < 0).any())
    if values is not None:
        raise ArgumentError(f"{where}: var holds the negative variance {values.min()}.")
    var = var + stop_gradient(ops.clip(var, least) - var)
    loss = 0.5 * (ops.log(var) + ops.square(input - target) / var)
    return reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


# --- their parts


def _pair(where: str, input: Any, target: Any, reduction: str) -> tuple[Any, Any]:
    check_reduction(where, reduction)
    input, target = floats(where, input, target)
    check_same_shape(where, input, target)
    return input, target


def _times(where: str, loss: Any, weight: Any) -> Any:
    return loss if weight is None else loss * operand(weight, loss, loss.dtype, where)
