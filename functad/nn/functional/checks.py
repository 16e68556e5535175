"""What the functions of this package ask of their arguments, with one message for each mistake."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from functad import ops
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, OutOfBoundsError, ShapeError
from functad.ops.operand import operand, operands, without_value
from functad.ops.plan import every_value
from functad.ops.rules import widen
from functad.ops.slices import position
from functad.source import user_place

__all__: list[str] = []

REDUCTIONS = ("none", "mean", "sum")


def floats(where: str, *xs: Any) -> Any:
    """Tensors of one float dtype; a single one is returned as it is."""
    found = operands(where, "float", xs)
    return found if len(xs) > 1 else found[0]


def number(where: str, name: str, value: Any) -> float:
    """A real number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ArgumentTypeError(
            f"{where}: {name} must be a number, got {value!r} of type {type(value).__name__}.{without_value(value)}"
        )
    return float(value)


def probability(where: str, p: Any) -> float:
    """A number between 0 and 1."""
    value = number(where, "p", p)
    if not 0 <= value <= 1:
        raise ArgumentError(f"{where}: p is the probability of dropping, a number from 0 to 1, got p={p!r}.")
    return value


def check_reduction(where: str, reduction: str, allowed: Sequence[str] = REDUCTIONS) -> None:
    """Raise unless `reduction` is one that `where` knows."""
    if reduction not in allowed:
        listed = ", ".join(map(repr, allowed))
        raise ArgumentError(f"{where}: reduction must be one of {listed}, got {reduction!r}.")


def reduced(loss: Any, reduction: str) -> Any:
    """The losses of all elements: as they are, their mean or their sum."""
    if reduction == "none":
        return loss
    return ops.mean(loss) if reduction == "mean" else ops.sum(loss)


def weighted(where: str, loss: Any, weight: Any, reduction: str) -> Any:
    """The same with a weight for each element; the mean is the weighted one."""
    if weight is None:
        return reduced(loss, reduction)
    weight = operand(weight, loss, loss.dtype, where)
    check_same_shape(where, loss, weight, "weight")
    if reduction == "mean":
        return ops.sum(loss * weight) / (ops.sum(weight) if weight.ndim else weight * loss.size)
    return reduced(loss * weight, reduction)


def check_same_shape(where: str, input: Any, target: Any, name: str = "target") -> None:
    """Raise unless `target` has the shape of `input`, or is a number: broadcasting would hide a mistake."""
    if target.shape != input.shape and target.ndim:
        raise ShapeError(
            f"{where}: {name} has shape {target.shape} and input {input.shape}; they must be equal, since broadcasting "
            f"would pair elements that do not belong together. {_alike(name, target.shape, input.shape)}"
        )


def _alike(name: str, theirs: tuple[int, ...], shape: tuple[int, ...]) -> str:
    """What to write for a shape that is not the one of the input."""
    ways = [f"{name}.reshape({shape})"] if math.prod(theirs) == math.prod(shape) else []
    try:
        both = np.broadcast_shapes(theirs, shape)
    except ValueError:
        both = ()
    if both == shape:
        ways.append(f"{name}.broadcast_to({shape}) if you mean it")
    elif both == theirs:
        ways.append(f"input.broadcast_to({theirs}) if you mean it")
    return f"Write {', or '.join(ways)}." if ways else f"Give a {name} of shape {shape}."


def classes(where: str, target: Any, count: int, like: Any, ignore_index: int | None = None) -> Any:
    """Class indices as an int tensor; where they are known, raise for one that is not below `count`."""
    target = operand(target, like, where=where)
    if target.dtype.kind not in "iu":
        raise DTypeError(
            f"{where}: target holds class indices, which are ints, got {target.dtype}{list(target.shape)}. Write "
            "target.astype(int); class probabilities must have the shape of the input."
        )
    values = every_value(target)
    if values is not None:
        wrong = (values < 0) | (values >= count)
        if ignore_index is not None:
            wrong &= values != ignore_index
        if wrong.any():
            refuse_class(where, int(values[wrong].flat[0]), count, ignore_index)
    return position(target)


def refuse_class(where: str, index: int, count: int, ignore_index: int | None) -> NoReturn:
    """Raise for a class that does not exist."""
    also = "" if ignore_index is None else f", or ignore_index={ignore_index} to leave an element out"
    raise OutOfBoundsError(
        f"{where}: target holds the class {index}, but there are {count} classes: use 0 to {count - 1}{also}."
    )


def wide(*xs: Any) -> Any:
    """Tensors in the dtype in which sums are kept: float32 for half types; None as it is."""
    found = tuple([x if x is None else widen(x) for x in xs])
    return found if len(xs) > 1 else found[0]


def known(x: Any) -> Any:
    """The elements of a tensor, array or number on the host; None where they have no values yet."""
    return every_value(x) if isinstance(x, Handle) else every_value(operand(x))


_MOST_LOOKS = 3
_MOST_PLACES = 4096
_looks: dict[Any, int] = {}


def looked_at(x: Any, is_right: Callable[[Any], bool]) -> Any:
    """The elements of a tensor if they are known and not right; None otherwise, and where a line was right before.

    To look waits for the value, which would take a training loop its head start, so only the first few calls of a
    line of the user's code look.
    """
    place = user_place(2)
    if _looks.get(place, 0) >= _MOST_LOOKS:
        return None
    values = known(x)
    if values is None:
        return None
    if not is_right(values):
        return values
    if len(_looks) >= _MOST_PLACES:
        _looks.clear()
    _looks[place] = _looks.get(place, 0) + 1
    return None
