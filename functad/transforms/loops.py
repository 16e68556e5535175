"""The loops behind `scan`, `fori_loop` and `while_loop`."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from functad import dtypes, tree
from functad.backends.base import BaseBackend
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, StructureError
from functad.ops.op import Type
from functad.ops.operand import operand, without_value
from functad.ops.rules import cast
from functad.transforms.bodies import Written, write_down
from functad.transforms.control_args import (
    Name,
    base_of,
    describe,
    is_writing,
    known,
    like_of,
    scalar,
    tensors_of,
    text_of,
    type_of,
)
from functad.transforms.control_ops import while_op
from functad.transforms.scan_op import scan_op

_MOST_PROMOTIONS = 3

_NUMBERS = (int, float, complex)
"""Types of Python numbers, which take the dtype that a body makes of them."""


def run_scan(
    where: str,
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any,
    length: Any,
    reverse: bool,
    unroll: int | bool,
    name: Name,
) -> tuple[Any, Any]:
    """`scan`; `where` and `name` say how messages call the loop and the places in its carry."""
    like = like_of((init, xs), f)
    rows = tensors_of(where, xs, like, "xs{}".format)
    carry = tensors_of(where, init, like, name, rows)
    steps = _length(where, rows, xs, length)
    unroll = _unroll(where, unroll, steps)

    def passed_on(out: Any) -> Any:
        if not (isinstance(out, (tuple, list)) and len(out) == 2):
            raise ArgumentTypeError(f"{where}: the function must return a pair (carry, y), got {describe(out)}.")
        return out[0]

    row_types = [Type(x._shape[1:], x._dtype) for x in rows]
    body, carry = _settled(where, f, (init, xs), carry, row_types, passed_on, base_of(like), name)
    op = scan_op(body.op, len(carry), len(rows), steps, bool(reverse), unroll)
    last, results = tree.unflatten(body.structure, bind(op, [*carry, *rows, *body.outside]))
    return last, results


def run_while(where: str, cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init: Any, name: Name) -> Any:
    """`while_loop`; `where` and `name` say how messages call the loop and the places in its value."""
    first, structure = tree.flatten(init)
    like = like_of(init, cond_fun, body_fun)
    carry = tensors_of(where, init, like, name)
    while not is_writing():
        go = _condition(where, cond_fun(tree.unflatten(structure, carry)))
        if isinstance(go, Handle):
            break  # it has no value: compile the rest of the loop
        if not go:
            return tree.unflatten(structure, carry)
        out = body_fun(tree.unflatten(structure, carry))
        check_structure(where, name(""), structure, out)
        outs = [_next(x, y, where) for x, y in zip(carry, tree.leaves(out), strict=True)]
        promoted = _promoted(where, first, carry, list(map(type_of, outs)), structure, name)
        if promoted is None:
            carry, first = outs, [None] * len(carry)  # types are settled after the first step
        else:
            carry = promoted

    def checked(out: Any) -> Sequence[dtypes.DType]:
        _condition(where, out)
        return ()

    base = base_of(like)
    body, carry = _settled(where, body_fun, (init,), carry, [], lambda out: out, base, name)
    condition = write_down(cond_fun, tree.flatten((init,))[1], map(type_of, carry), base, where, checked)
    op = while_op(where, condition.op, body.op, len(carry))
    return tree.unflatten(structure, bind(op, [*carry, *condition.outside, *body.outside]))


def _settled(
    where: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    carry: list[Any],
    row_types: list[Type],
    passed_on: Callable[[Any], Any],
    base: BaseBackend,
    name: Name,
) -> tuple[Written, list[Any]]:
    """The body of a loop, and its first carry in the dtypes that the body keeps; `args[0]` is the carry as given."""
    first, structure = tree.flatten(args[0])
    whole = tree.flatten(args)[1]

    def wanted(out: Any) -> Sequence[dtypes.DType]:
        check_structure(where, name(""), structure, passed_on(out))
        return [x._dtype for x in carry]

    for attempt in count():
        body = write_down(fn, whole, [*map(type_of, carry), *row_types], base, where, wanted)
        numbers = first if attempt < _MOST_PROMOTIONS else [None] * len(carry)
        promoted = _promoted(where, numbers, carry, body.types[: len(carry)], structure, name)
        if promoted is None:
            break
        carry = promoted
    return body, carry


def _next(x: Any, y: Any, where: str) -> Any:
    """What a Python loop passes on in the place of `x`."""
    fits = isinstance(y, dtypes.SCALARS) and dtypes.with_scalar(x._dtype, type(y)) == x._dtype
    return operand(y, x, x._dtype if fits else None, where)


def _condition(where: str, go: Any) -> Any:
    """What `cond_fun` returned: a bool, or a tensor if it has no value."""
    if isinstance(go, (bool, np.bool_)):
        return bool(go)
    if not isinstance(go, Handle) or go._dtype != dtypes.bool_ or go._shape:
        raise ArgumentTypeError(
            f"{where}: cond_fun must return one bool, got {describe(go)}; write a comparison, or .any()."
        )
    return known(go)


def _promoted(
    where: str,
    first: Sequence[Any],
    carry: list[Any],
    types: Sequence[Type],
    structure: tree.Structure,
    name: Name,
) -> list[Any] | None:
    """The carry with its Python numbers in the dtypes that a body made of them; None if all types agree."""
    if list(map(type_of, carry)) == list(types):
        return None
    promoted = list(carry)
    for i, (given, x, t) in enumerate(zip(first, carry, types, strict=True)):
        if x._dtype == t.dtype and x._shape == t.shape:
            continue
        dtype = dtypes.with_scalar(t.dtype, type(given)) if type(given) in _NUMBERS else x._dtype
        if dtype == x._dtype or t.shape:
            place = name(tree.paths_of(structure)[i])
            if t.shape != x._shape:
                hint = "Start with the shape that it ends with, or return what grows as a result of scan."
                raise ShapeError(_changes(where, place, x, t, hint))
            raise DTypeError(_changes(where, place, x, t, f"Write .astype('{x._dtype}') on what the function returns."))
        promoted[i] = cast(x, dtype)
    return promoted


def _changes(where: str, place: str, x: Any, t: Type, hint: str) -> str:
    return (
        f"{where}: {place} must keep its type from step to step, but goes in as {text_of(type_of(x))} and comes out as "
        f"{text_of(t)}. {hint}"
    )


def check_structure(where: str, name: str, structure: tree.Structure, out: Any) -> None:
    """Refuse what a body passes on in another structure."""
    found = tree.flatten(out)[1]
    if found != structure:
        nothing = " The function returned None: does its `return` lack?" if out is None else ""
        raise StructureError(
            f"{where}: {name} must keep its structure from step to step, but goes in as {tree.shown(structure)} and comes out "
            f"as {tree.shown(found)}.{nothing}"
        )


def _length(where: str, rows: Sequence[Any], xs: Any, length: Any) -> int:
    """How many rows there are."""
    for i, x in enumerate(rows):
        if not x._shape:
            raise ShapeError(f"{where}: xs{tree.paths(xs)[i]} has shape (), so no axis of rows to loop over.")
    lengths = {x._shape[0] for x in rows}
    if length is not None:
        try:
            length = operator.index(length)
        except TypeError:
            raise ArgumentTypeError(f"{where}: length must be an int, got {length!r}.{without_value(length)}") from None
        if length < 0:
            raise ArgumentError(f"{where}: length must not be negative, got {length}.")
        lengths.add(length)
    if not lengths:
        raise ArgumentError(f"{where}: without xs the number of steps is unknown; pass length.")
    if len(lengths) > 1:
        each = ", ".join(f"xs{path} has {x._shape[0]}" for path, x in zip(tree.paths(xs), rows, strict=True))
        asked = "" if length is None else f"length is {length}, but "
        raise ShapeError(f"{where}: {asked}{each} rows; axis 0 must have one length everywhere.")
    return lengths.pop()


def _unroll(where: str, unroll: Any, steps: int) -> int:
    if not isinstance(unroll, int) or unroll < 0:
        raise ArgumentError(f"{where}: unroll must be a bool or a non-negative int, got {unroll!r}.")
    return max(steps, 1) if unroll is True or (unroll == 0 and unroll is not False) else max(int(unroll), 1)


def bounds(lower: Any, upper: Any) -> tuple[list[Any], dtypes.DType]:
    """The bounds of a `fori_loop`, ints where they have values, and the dtype of what counts."""
    found = []
    strong = set()
    for name, x in (("lower", lower), ("upper", upper)):
        if isinstance(x, int) and not isinstance(x, bool):
            found.append(x)
            continue
        if isinstance(x, dtypes.SCALARS):
            raise DTypeError(f"fori_loop: {name} must be an integer, got {x!r}.")
        bound = scalar("fori_loop", name, x)
        if bound._dtype.kind not in "iu":
            raise DTypeError(f"fori_loop: {name} must be an integer, got {bound._dtype}; write {name}.astype(int).")
        strong.add(bound._dtype)
        found.append(known(bound))
    if len(strong) > 1:
        raise DTypeError(
            f"fori_loop: lower and upper must have one dtype, got {' and '.join(sorted(map(str, strong)))}."
        )
    return found, strong.pop() if strong else dtypes.default_int()
