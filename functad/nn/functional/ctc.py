"""Connectionist temporal classification: the probability of a label sequence, summed over all its alignments."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.errors import ArgumentError, ConcreteValueError, DTypeError, OutOfBoundsError, ShapeError
from functad.nn.functional.checks import check_reduction, floats, known, wide
from functad.ops.operand import operand
from functad.ops.outside import filled, inside, is_known
from functad.transforms.control_flow import scan

__all__ = ["ctc_loss"]

_NEVER = float("-inf")  # the logarithm of the probability of what cannot be


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """`-log p(targets | log_probs)` (Graves 2006), by one scan over time; differentiable to any order.

    A target that no alignment of its input reaches has loss inf and gradient 0; with `zero_infinity` the loss is
    0 too. The gradient is that with respect to `log_probs` itself; after `log_softmax` it is torch's.

    Args:
        log_probs: logarithms of probabilities, shape (T, N, C), or (T, C) for one sequence.
        targets: class indices other than `blank`, shape (N, S), or (S) for one sequence; or all of them one after
            the other, shape (sum of target_lengths), which needs lengths that have values.
        input_lengths: how many steps of each sequence count, shape (N) (a number for one).
        target_lengths: how many of its targets count, shape (N) (a number for one).
        blank: the class that stands for no label.
        reduction: "none", "sum", or "mean": each loss over its target's length, and the mean of these.
        zero_infinity: whether infinite losses count as 0.

    Raises `ShapeError` for shapes and lengths that do not fit, `OutOfBoundsError` for a class that does not exist,
    where values are known.

    >>> import functad as fd
    >>> even = fd.ops.log(fd.full((2, 3), 1 / 3))
    >>> round(fd.nn.functional.ctc_loss(even, [1], 2, 1).item(), 4)  # 3 of 9 paths: 1 1, 1 blank, blank 1
    1.0986
    """
    check_reduction("ctc_loss", reduction)
    log_probs = floats("ctc_loss", log_probs)
    if log_probs.ndim not in (2, 3):
        raise ShapeError(f"ctc_loss: log_probs must have shape (T, N, C) or (T, C), got {log_probs.shape}.")
    single = log_probs.ndim == 2
    dtype = log_probs.dtype
    log_probs = wide(log_probs[:, None] if single else log_probs)
    blank = _blank(blank, log_probs.shape[2])
    lengths = _lengths("target_lengths", target_lengths, log_probs)
    steps = _lengths("input_lengths", input_lengths, log_probs)
    _check_between("input_lengths", steps, log_probs.shape[0], "log_probs has that many steps (axis 0)")
    targets = _targets(targets, lengths, log_probs, blank)
    loss = -_log_likelihood(log_probs, targets, steps, lengths, blank)
    if not is_known(targets):  # nobody could look whether the classes exist
        loss = filled(loss, ops.all(inside(targets, 0, log_probs.shape[2]), -1))
    if zero_infinity:
        loss = ops.where(loss == float("inf"), 0.0, loss)
    if reduction == "mean":
        loss = ops.mean(loss / ops.maximum(lengths, 1))
    elif reduction == "sum":
        loss = ops.sum(loss)
    elif single:
        loss = loss[0]
    return ops.astype(loss, dtype)


def _log_likelihood(log_probs: Any, targets: Any, steps: Any, lengths: Any, blank: int) -> Any:
    """The forward recursion over the target with a blank before, between and behind its labels."""
    time, batch, _ = log_probs.shape
    labels = _with_blanks(targets, blank)
    count = labels.shape[1]
    emitted = log_probs[:, np.arange(batch)[:, None], labels]
    before = _later(labels, 2, blank)
    may_skip = ops.logical_and(labels != blank, labels != before)  # no blank need stand between two different labels
    going = operand(np.arange(time)[:, None, None], steps, steps.dtype) < steps[:, None]

    def step(alpha: Any, row: Any) -> tuple[Any, None]:
        emission, counts = row
        skipped = ops.where(may_skip, _later(alpha, 2, _NEVER), _NEVER)
        arrived = ops.logsumexp(ops.stack([alpha, _later(alpha, 1, _NEVER), skipped]), 0)
        return ops.where(counts, emission + arrived, alpha), None

    start = np.full((batch, count), _NEVER, log_probs.dtype)
    start[:, 0] = 0  # before the first step; from here it reaches the first blank and the first label
    alpha = scan(step, operand(start, log_probs, log_probs.dtype), (emitted, going))[0]
    last = ops.take_along_axis(alpha, (2 * lengths)[:, None], 1)
    label = ops.take_along_axis(alpha, ops.maximum(2 * lengths - 1, 0)[:, None], 1)
    label = ops.where((lengths > 0)[:, None], label, _NEVER)
    return ops.logsumexp(ops.concatenate([last, label], 1), 1)


def _with_blanks(targets: Any, blank: int) -> Any:
    """(N, S) labels as (N, 2 S + 1), with blanks around each."""
    blanks = targets * 0 + blank
    pairs = ops.reshape(ops.stack([blanks, targets], -1), (targets.shape[0], -1))
    return ops.pad(pairs, ((0, 0), (0, 1)), constant_values=blank)


def _later(x: Any, by: int, fill: float) -> Any:
    """The elements of each row moved `by` places to the right."""
    return ops.pad(x, ((0, 0), (by, 0)), constant_values=fill)[:, : x.shape[1]]


# --- arguments


def _blank(blank: int, count: int) -> int:
    index = operator.index(blank)
    if not 0 <= index < count:
        raise OutOfBoundsError(f"ctc_loss: blank={blank} is not a class: log_probs has {count} (its last axis).")
    return index


def _lengths(name: str, lengths: Any, log_probs: Any) -> Any:
    """Lengths as a tensor of shape (N)."""
    batch = log_probs.shape[1]
    lengths = operand(lengths, log_probs, where="ctc_loss")
    if lengths.dtype.kind not in "iu":
        raise DTypeError(f"ctc_loss: {name} must be ints, got {lengths.dtype}.")
    if lengths.shape != (batch,) and not (batch == 1 and lengths.shape == ()):
        raise ShapeError(f"ctc_loss: {name} must have shape ({batch},), one for each sequence, got {lengths.shape}.")
    return ops.reshape(ops.astype(lengths, dtypes.default_int()), (batch,))


def _check_between(name: str, lengths: Any, most: int, why: str) -> None:
    values = known(lengths)
    if values is not None and values.size and (values.min() < 0 or values.max() > most):
        bad = int(values.min() if values.min() < 0 else values.max())
        raise ShapeError(f"ctc_loss: {name} holds {bad}; a length is from 0 to {most}, since {why}.")


def _targets(targets: Any, lengths: Any, log_probs: Any, blank: int) -> Any:
    """Targets of shape (N, S), with blanks where they do not count."""
    batch, classes = log_probs.shape[1:]
    targets = operand(targets, log_probs, where="ctc_loss")
    if targets.dtype.kind not in "iu":
        raise DTypeError(f"ctc_loss: targets must be ints, got {targets.dtype}; write targets.astype(int).")
    if targets.ndim == 1 and batch == 1:
        targets = targets[None]
    elif targets.ndim == 1:
        targets = _cut(targets, lengths)
    if targets.ndim != 2 or targets.shape[0] != batch:
        raise ShapeError(f"ctc_loss: targets must have shape ({batch}, S), or one axis, got {targets.shape}.")
    longest = targets.shape[1]
    _check_between("target_lengths", lengths, longest, "targets has that many labels (its last axis)")
    counts = operand(np.arange(longest), lengths, lengths.dtype) < lengths[:, None]
    values, counted = known(targets), known(counts)
    if values is not None and counted is not None:
        wrong = counted & ((values < 0) | (values >= classes))
        if wrong.any():
            bad = int(values[wrong].flat[0])
            raise OutOfBoundsError(
                f"ctc_loss: targets holds the class {bad}, but log_probs has {classes} classes (its last axis): use 0 to "
                f"{classes - 1}."
            )
        if (counted & (values == blank)).any():
            raise ArgumentError(f"ctc_loss: targets holds the blank {blank}, which is no label; leave it out.")
    return ops.where(counts, targets, blank)


def _cut(targets: Any, lengths: Any) -> Any:
    """Targets that stand one after the other as rows."""
    values = known(lengths)
    if values is None:
        raise ConcreteValueError(
            "ctc_loss: targets one after the other are cut by target_lengths, which has no values here (under vmap or "
            "jit); pass targets of shape (N, S)."
        )
    values = np.asarray(values)
    if values.sum() != targets.shape[0]:
        raise ShapeError(
            f"ctc_loss: targets holds {targets.shape[0]} labels, but target_lengths adds up to {int(values.sum())}."
        )
    place = np.cumsum(values)[:, None] - values[:, None] + np.arange(values.max(initial=0))
    return ops.take(targets, np.minimum(place, max(targets.shape[0] - 1, 0)), 0)
