"""`jvp` and `linearize`: forward mode, along with a function or after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np

from functad import tree
from functad.backends.forward import Forward, Record, Step, replay
from functad.errors import ArgumentTypeError, ConcreteValueError, DTypeError, StructureError
from functad.keywords import explained
from functad.tensor import Tensor
from functad.transforms.arguments import (
    Blank,
    check_callable,
    leave,
    opened,
    outputs,
    split,
    split_aux,
    tensors,
    unflatten,
)


@partial(explained, missing="write value, tangent = fd.jvp(f, (x,), (v,))")
def jvp(
    fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, ...]:
    """The value of `fn(*primals)` and its derivative along `tangents`.

    Args:
        fn: takes pytrees of tensors and returns one.
        primals: a tuple or list of the arguments.
        tangents: the same structure, shapes and dtypes; None (or zeros) for integer leaves.
        has_aux: whether `fn` returns `(value, aux)`; the result is then `(value, tangent, aux)`.

    The tangent of an integer output is None.

    >>> import functad as fd
    >>> value, tangent = fd.jvp(lambda x, y: x * y, (2.0, 3.0), (1.0, 10.0))
    >>> value.item(), tangent.item()
    (6.0, 23.0)
    """
    check_callable(fn, "jvp")
    value, tangent, aux = push_along("jvp", fn, primals, tangents, has_aux)
    return (value, tangent, aux) if has_aux else (value, tangent)


def push_along(
    where: str, fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> tuple[Any, Any, Any]:
    """The value of `fn`, its derivative along `tangents`, and aux."""
    check_sequences(where, primals, tangents)
    values, structures = tensors(primals, where, "primals[{}]")
    moving = _tangents(where, tangents, structures, [Blank(x) for x in values])
    out, structure, moved, aux = push_through(where, fn, values, structures, moving, has_aux)
    return tree.unflatten(structure, out), tree.unflatten(structure, moved), aux


def push_through(
    where: str,
    fn: Callable[..., Any],
    values: Sequence[Any],
    structures: Sequence[tree.Structure],
    moving: Sequence[Any],
    has_aux: bool,
) -> tuple[list[Any], tree.Structure, list[Any], Any]:
    """The output's leaves, its structure, their tangents (zeros where nothing moves), and aux."""
    with opened(Forward) as level:
        inputs = [x if t is None else level.wrap(x, t) for x, t in zip(values, moving, strict=True)]
        out, aux = split_aux(fn(*unflatten(structures, inputs)), has_aux, where)
        results, structure = outputs(out, level, where)
        if has_aux:
            aux = leave(level, aux)
    mine = [x._backend is level for x in results]
    moved = [_tangent_of(x, x._context if m else None) for x, m in zip(results, mine, strict=True)]
    return [x._value if m else x for x, m in zip(results, mine, strict=True)], structure, moved, aux


class Pushforward:
    """The map from tangents of a function's arguments to that of its output: `linearize`'s.

    It holds what the one run computed, and may be called many times. It is differentiable in the
    tangents, and in the arguments by any tape that was open around the `linearize`.
    """

    __slots__ = ("_inputs", "_outputs", "_sources", "_steps", "_structure", "_structures", "_targets")

    def __init__(
        self,
        sources: Sequence[int | None],
        inputs: Sequence[Blank],
        structures: Sequence[tree.Structure],
        steps: Sequence[Step],
        targets: Sequence[int | None],
        outputs: Sequence[Blank],
        structure: tree.Structure,
    ):
        self._sources = sources
        self._inputs = inputs
        self._structures = structures
        self._steps = steps
        self._targets = targets
        self._outputs = outputs
        self._structure = structure

    def __call__(self, *tangents: Any) -> Any:
        """The tangent of the output for one tangent per argument."""
        if len(tangents) != len(self._structures):
            raise StructureError(
                f"linearize: the function was linearized at {len(self._structures)} argument(s), and this call has "
                f"{len(tangents)} tangent(s); pass one for each."
            )
        given = _tangents("linearize", tangents, self._structures, self._inputs)
        moving = {s: t for s, t in zip(self._sources, given, strict=True) if s is not None and t is not None}
        replay(self._steps, moving)
        moved = [None if t is None else moving.get(t) for t in self._targets]
        return tree.unflatten(self._structure, [_tangent_of(of, t) for of, t in zip(self._outputs, moved, strict=True)])

    def __repr__(self) -> str:
        types = ", ".join(f"{of.dtype}{list(of.shape)}" for of in self._inputs)
        return f"<pushforward of {types}>"


@explained
def linearize(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of `fn(*primals)`, and its derivative there as a linear function of tangents.

    `fn` runs once. With many tangents this is cheaper than `jvp` for each; it keeps the values that
    the tangents meet on their way. With `has_aux` the result is `(value, pushforward, aux)`.

    >>> import functad as fd
    >>> value, push = fd.linearize(lambda x: x * x, 3.0)
    >>> value.item(), push(1.0).item(), push(10.0).item()
    (9.0, 6.0, 60.0)
    """
    check_callable(fn, "linearize")
    values, structures = tensors(primals, "linearize", "argument {}")
    blanks = [Blank(x) for x in values]
    with opened(Record) as record:
        inputs = [record.source(x) if of.smooth else x for x, of in zip(values, blanks, strict=True)]
        out, aux = split_aux(fn(*unflatten(structures, inputs)), has_aux, "linearize")
        results, structure = outputs(out, record, "linearize")
        if has_aux:
            aux = leave(record, aux)
    mine = [x._backend is record for x in results]
    targets = [x._context if m else None for x, m in zip(results, mine, strict=True)]
    value = tree.unflatten(structure, [x._value if m else x for x, m in zip(results, mine, strict=True)])
    push = Pushforward(
        [x._context if of.smooth else None for x, of in zip(inputs, blanks, strict=True)],
        blanks,
        structures,
        record.needed(targets),
        targets,
        [Blank(x) for x in results],
        structure,
    )
    return (value, push, aux) if has_aux else (value, push)


def _tangent_of(x: Any, tangent: Any) -> Any:
    if tangent is not None:
        return tangent
    of = x if isinstance(x, Blank) else Blank(x)
    return of.full(0) if of.smooth else None


def check_sequences(where: str, primals: Any, tangents: Any) -> None:
    """Refuse primals and tangents that are not one sequence each, of one length."""
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, (tuple, list)):
            raise ArgumentTypeError(
                f"{where}: {name} must be a tuple or list with one entry per argument, got {type(given).__name__}; "
                f"write ({name[:-1]},) for one argument."
            )
    if len(primals) != len(tangents):
        raise StructureError(
            f"{where}: there are {len(primals)} primals and {len(tangents)} tangents; pass one tangent per primal."
        )


def _tangents(
    where: str, tangents: Sequence[Any], structures: Sequence[tree.Structure], blanks: Sequence[Blank]
) -> list[Any]:
    """A tangent for each leaf, None for integers."""
    moving = []
    for i, (tangent, structure, types) in enumerate(zip(tangents, structures, split(structures, blanks), strict=True)):
        found = tree.up_to(structure, tangent, f"{where}: tangents[{i}]")
        for j, (t, of) in enumerate(zip(found, types, strict=True)):
            if of.smooth:
                moving.append(of.vector(t, partial(_place, where, structures, i, j)))
            elif _is_still(t):
                moving.append(None)
            else:
                place = _place(where, structures, i, j)
                raise DTypeError(f"{place} is {t!r}, but its primal is {of.dtype}, which cannot move; pass None.")
    return moving


def _place(where: str, structures: Sequence[tree.Structure], argument: int, leaf: int) -> str:
    return f"{where}: tangents[{argument}]{tree.paths_of(structures[argument])[leaf]}"


def _is_still(t: Any) -> bool:
    """Whether `t` is no movement: None or zeros."""
    if t is None or getattr(t, "dtype", None) == jax.dtypes.float0:
        return True
    try:
        return not np.any(t.numpy() if isinstance(t, Tensor) else np.asarray(t))
    except (ConcreteValueError, TypeError):
        return False
