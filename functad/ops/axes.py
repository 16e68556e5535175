"""Axes as a user writes them, checked: one message for every function that takes an axis."""

from __future__ import annotations

import itertools
import operator
from contextlib import suppress
from typing import Any

import numpy as np

from functad.errors import ArgumentTypeError, AxisError, ShapeError
from functad.ops.operand import without_value


def several(given: Any) -> Any:
    """One int or several, as a sequence: arrays and tensors of them count as lists do."""
    if isinstance(given, (tuple, list, range)):
        return given
    return tuple(given) if getattr(given, "ndim", 0) == 1 else (given,)


def normalize_axes(axis: Any, ndim: int, where: str) -> tuple[int, ...]:
    """`axis` (None for all, an int, or several) as sorted non-negative ints without repeats.

    Raises `AxisError` for an axis that is not there, `ShapeError` for one named twice, `ArgumentTypeError`
    for anything but ints; `where` is the function's name.
    """
    if axis is None:
        return tuple(range(ndim))
    if type(axis) is int and -ndim <= axis < ndim:
        return (axis % ndim,)
    axes = sorted(_normalize(a, ndim, where, axis) for a in several(axis))
    for a, b in itertools.pairwise(axes):
        if a == b:
            raise ShapeError(
                f"{where}: axis={axis!r} names axis {a} of a tensor with {ndim} axes twice; name each axis once."
            )
    return tuple(axes)


def normalize_axis(axis: Any, ndim: int, where: str) -> int:
    """One `axis` as a non-negative int; raises as `normalize_axes` does."""
    return _normalize(axis, ndim, where, axis)


def _normalize(axis: Any, ndim: int, where: str, given: Any) -> int:
    try:
        index = operator.index(axis)
    except TypeError:
        index = None
    if index is None or isinstance(axis, bool):
        raise ArgumentTypeError(
            f"{where}: axis must be an int (some functions also take a tuple of ints or None), got {given!r}."
            f"{without_value(given)}"
        )
    if not -ndim <= index < ndim:
        if ndim == 0:
            raise AxisError(f"{where}: axis={given!r} asks for an axis of a 0-d tensor, which has none.")
        raise AxisError(
            f"{where}: axis {index} is out of range for a tensor with {ndim} axes; use one from {-ndim} to {ndim - 1}."
        )
    return index % ndim


def counted(value: Any, where: str, name: str) -> int:
    """An argument that must be a whole number."""
    if not isinstance(value, (bool, np.bool_)):
        with suppress(TypeError):
            return operator.index(value)
    raise ArgumentTypeError(
        f"{where}: {name} must be an int, got {value!r} of type {type(value).__name__}.{without_value(value)}"
    )
