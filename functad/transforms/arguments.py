"""What the transforms share: choosing arguments, and carrying tensors into and out of a level."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from typing import Any

from functad import dtypes, tree
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError
from functad.ops.operand import operand

Argnums = int | Sequence[int]


def positional(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums) -> Any:
    """`args` and `kwargs`, with arguments passed by keyword moved to the place `argnums` counts."""
    wanted = max((operator.index(i) for i in _sequence(argnums)), default=0)
    if not kwargs or wanted < len(args):
        return args, kwargs
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    return bound.args, bound.kwargs


def indices(argnums: Argnums, count: int, where: str) -> tuple[int, ...]:
    """`argnums` as non-negative positions among `count` arguments."""
    found = []
    for i in _sequence(argnums):
        try:
            index = operator.index(i)
        except TypeError:
            raise ArgumentTypeError(f"{where}: argnums must be an int or a sequence of ints, got {argnums!r}.") from None
        if not -count <= index < count:
            raise ArgumentError(
                f"{where}: argnums={argnums!r} asks for argument {index}, but the function was called with "
                f"{count} positional argument(s)."
            )
        found.append(index % count)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{where}: argnums={argnums!r} names an argument twice.")
    return tuple(found)


def differentiable(args: Sequence[Any], numbers: Sequence[int], where: str, holomorphic: bool = False) -> Any:
    """The leaves of the chosen arguments as tensors, their structures, and which leaves are floats."""
    leaves: list[Any] = []
    structures = []
    for number, arg in zip(numbers, args, strict=True):
        found, structure = tree.flatten(arg)
        tensors = [_tensor(x, where, number, arg, i) for i, x in enumerate(found)]
        if tensors and not any(dtypes.is_inexact(x.dtype) for x in tensors):
            kinds = ", ".join(sorted({str(x.dtype) for x in tensors}))
            raise DTypeError(
                f"{where}: argument {number} holds nothing but {kinds}, which has no derivative. Pass floats "
                f"(2.0 instead of 2, or x.astype(float)), or choose other arguments with argnums."
            )
        for x in tensors:
            if x.dtype.kind == "c" and not holomorphic:
                raise DTypeError(
                    f"{where}: argument {number} is {x.dtype}. For the derivative of a holomorphic function pass "
                    "holomorphic=True; otherwise split it into real and imaginary parts, or use fd.vjp."
                )
            if holomorphic and x.dtype.kind != "c":
                raise DTypeError(f"{where}: holomorphic=True needs complex inputs, but argument {number} is {x.dtype}.")
        leaves.extend(tensors)
        structures.append(structure)
    return leaves, structures


def unflatten(structures: Sequence[tree.Structure], leaves: Sequence[Any]) -> list[Any]:
    """One pytree per structure, from all their leaves in a row."""
    out = []
    start = 0
    for structure in structures:
        out.append(tree.unflatten(structure, leaves[start : start + structure.num_leaves]))
        start += structure.num_leaves
    return out


def leave(backend: Any, values: Any) -> Any:
    """A pytree with the tensors of a closing level replaced by what they hold one level down."""
    return tree.map(lambda x: x._value if isinstance(x, Handle) and x._backend is backend else x, values)


def _tensor(x: Any, where: str, number: int, arg: Any, index: int) -> Any:
    try:
        return operand(x, where=where)
    except ArgumentTypeError:
        path = tree.paths(arg)[index]
        raise ArgumentTypeError(
            f"{where}: argument {number}{path} is {x!r} of type {type(x).__name__}, which has no derivative. Pass "
            "tensors, arrays, numbers or pytrees of them; bind anything else with functools.partial."
        ) from None


def _sequence(argnums: Argnums) -> Sequence[int]:
    return argnums if isinstance(argnums, (tuple, list)) else (argnums,)  # type: ignore[return-value]
