"""What the transforms share: choosing arguments, and carrying tensors into and out of a level."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from functad import dtypes, tree
from functad.dispatch import Handle, base_backend, met
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    LevelError,
    ShapeError,
    StructureError,
)
from functad.levels import Level, deeper
from functad.ops.operand import as_array, operand
from functad.ops.rules import broadcast
from functad.tape import Leaves, fresh_id

Argnums = int | Sequence[int]


class opened(AbstractContextManager[Any]):
    """The interpreter of a transform at a level of its own, closed however the block ends."""

    __slots__ = ("_backend", "_level", "_make")

    def __init__(self, make: Callable[[Level], Any], above: int = 0):
        self._make = make
        self._level = deeper(above)

    def __enter__(self) -> Any:
        level = self._level.__enter__()
        self._backend = self._make(level)
        self._backend.opened = fresh_id()
        return self._backend

    def __exit__(self, *exc: object) -> None:
        self._level.__exit__(*exc)
        self._backend.close()


def check_callable(fn: Any, where: str, hint: str = "") -> None:
    """Refuse what cannot be called."""
    if not callable(fn):
        if not hint and isinstance(fn, Handle):
            hint = " For the gradients of a tensor call loss.backward() and read w.grad(grads)."
        raise ArgumentTypeError(f"{where}: expected a function, got {fn!r} of type {type(fn).__name__}.{hint}")


def wraps(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`functools.wraps` that leaves the attributes of callable objects (Modules) where they are."""
    return functools.wraps(fn, updated=())


# --- arguments


def positional(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], argnums: Argnums) -> Any:
    """`args` and `kwargs`, with arguments passed by keyword moved to the place `argnums` counts."""
    if not kwargs:
        return args, kwargs
    wanted = max((i for i in sequence(argnums) if isinstance(i, int)), default=0)
    if wanted < len(args):
        return args, kwargs
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    names = list(bound.signature.parameters)
    if wanted >= len(bound.args) and wanted < len(names) and names[wanted] in bound.arguments:
        bound.apply_defaults()  # a default before it was left out
    return bound.args, bound.kwargs


def indices(argnums: Argnums, count: int, where: str) -> tuple[int, ...]:
    """`argnums` as non-negative positions among `count` arguments."""
    if type(argnums) is int and 0 <= argnums < count:
        return (argnums,)
    found = []
    for i in sequence(argnums):
        index = operator.index(i)
        if not -count <= index < count:
            raise ArgumentError(
                f"{where}: argnums={argnums!r} asks for argument {index}, but the function was called with "
                f"{count} positional argument(s)."
            )
        found.append(index % count)
    if len(set(found)) != len(found):
        raise ArgumentError(f"{where}: argnums={argnums!r} names an argument twice.")
    return tuple(found)


def checked_argnums(argnums: Argnums, where: str) -> int | tuple[int, ...]:
    """`argnums` in a form that can be a key; refused at the call that passes it, not at that of the function it makes."""
    try:
        if isinstance(argnums, (tuple, list)):
            return tuple([operator.index(i) for i in argnums])
        return operator.index(argnums)  # type: ignore[arg-type]  # a range and the like raise
    except TypeError:
        raise ArgumentTypeError(f"{where}: argnums must be an int or a sequence of ints, got {argnums!r}.") from None


def sequence(argnums: Argnums) -> Sequence[Any]:
    """`argnums` as a sequence."""
    return argnums if isinstance(argnums, (tuple, list)) else (argnums,)


def tensors(
    args: Sequence[Any], where: str, name: str, numbers: Sequence[int] | None = None, among: Any = None
) -> tuple[list[Any], list[tree.Structure]]:
    """All leaves of `args` in a row, as tensors, and the structure of each.

    Arrays and numbers go to the device of the tensors among them. Python floats are weak: they take
    the float dtype of the tensors in `among` (else in `args`), if these share one. `name`, formatted
    with the number of an argument, says in messages which one is meant.
    """
    parts = [tree.flatten(arg) for arg in args]
    leaves: list[Any] = []
    like = None
    for n, (found, structure) in enumerate(parts):
        for i, x in enumerate(found):
            if isinstance(x, Handle):
                leaves.append(alive(x))
                continue
            if like is None:
                like = next((y for other, _ in parts for y in other if isinstance(y, Handle)), None)
            weak = beside(x, tree.leaves(args if among is None else among)) if isinstance(x, float) else None
            try:
                leaves.append(operand(x, like, weak, where))
            except ArgumentTypeError:
                place = name.format(numbers[n] if numbers else n) + tree.paths_of(structure)[i]
                raise ArgumentTypeError(
                    f"{where}: {place} is {x!r} of type {type(x).__name__}, which has no derivative. Pass tensors, "
                    "arrays, numbers or pytrees of them; bind anything else with functools.partial."
                ) from None
    return leaves, [structure for _, structure in parts]


def differentiable(
    args: Sequence[Any], numbers: Sequence[int], where: str, holomorphic: bool = False, among: Any = None
) -> tuple[list[Any], list[tree.Structure]]:
    """`tensors`, refusing arguments that have no derivative as a whole."""
    leaves, structures = tensors(args, where, "argument {}", numbers, among)
    if not holomorphic and all(dtypes.is_inexact(x._dtype) for x in leaves):
        return leaves, structures
    for number, found in zip(numbers, split(structures, leaves), strict=True):
        if found and not any(dtypes.is_inexact(x.dtype) for x in found):
            kinds = ", ".join(sorted({str(x.dtype) for x in found}))
            raise DTypeError(
                f"{where}: argument {number} holds nothing but {kinds}, which has no derivative. Pass floats "
                "(2.0 instead of 2, or x.astype(float)), or choose other arguments with argnums."
            )
        for x in found:
            if holomorphic and x.dtype.kind != "c":
                raise DTypeError(
                    f"{where}: holomorphic=True needs complex inputs, but argument {number} is {x.dtype}; write "
                    "x.astype('complex64'), or leave holomorphic out."
                )
    return leaves, structures


def alive(x: Any) -> Any:
    """What `x` stands for now, if it leaked out of a transform that has ended; raises if that is nothing."""
    while getattr(x._backend, "closed", False):
        here = met(x)  # in a function that runs again, where transforms round it have ended
        if here is not x:
            return here
        x = x._backend.resolve(x)
    return x


def split(structures: Sequence[tree.Structure], leaves: Sequence[Any]) -> list[Sequence[Any]]:
    """The leaves of each structure, from all of them in a row."""
    if len(structures) == 1:
        return [leaves]
    out = []
    start = 0
    for structure in structures:
        out.append(leaves[start : start + structure.num_leaves])
        start += structure.num_leaves
    return out


def unflatten(structures: Sequence[tree.Structure], leaves: Sequence[Any]) -> list[Any]:
    """One pytree per structure, from all their leaves in a row."""
    if len(structures) == 1:
        return [structures[0].unflatten(leaves)]
    return [tree.unflatten(s, part) for s, part in zip(structures, split(structures, leaves), strict=True)]


def common_float(values: Iterable[Any]) -> dtypes.DType | None:
    """The float dtype of the tensors among `values`, if they share one: what a Python float next to them has."""
    found = {x._dtype for x in values if isinstance(x, Handle) and dtypes.is_float(x._dtype)}
    return found.pop() if len(found) == 1 else None


def beside(x: Any, values: Iterable[Any]) -> dtypes.DType | None:
    """The dtype that a Python number has in an op with any of the tensors among `values`, if that is one."""
    if not isinstance(x, (int, float, complex)) or isinstance(x, bool):
        return None
    kinds = "iu" if isinstance(x, int) else "fc" if isinstance(x, complex) else "f"
    near = {v._dtype for v in values if isinstance(v, Handle)}
    found = {dtypes.with_scalar(t, type(x)) for t in near if t.kind in kinds or ("f" in kinds and dtypes.is_float(t))}
    return found.pop() if len(found) == 1 else None


class Blank:
    """The type and device of a tensor without its memory: what tangents and cotangents are made by."""

    __slots__ = ("base", "dtype", "shape")

    def __init__(self, x: Any):
        self.base = base_backend(x)
        self.shape: tuple[int, ...] = x._shape
        self.dtype: dtypes.DType = x._dtype

    @property
    def smooth(self) -> bool:
        """Whether it has tangents and cotangents."""
        return dtypes.is_inexact(self.dtype)

    def full(self, value: int) -> Any:
        """A tangent or cotangent of one number."""
        return broadcast(self.base.scalar(value, self.dtype), self.shape)

    def vector(self, v: Any, what: Callable[[], str]) -> Any:
        """A tangent or cotangent as a user gives it, which must have this type; `what` names it."""
        if v is None or not tree.is_leaf(v):
            expected = f"{self.dtype}{list(self.shape)}"
            raise StructureError(f"{what()} is {v!r} where a tensor of {expected} is expected.")
        if isinstance(v, dtypes.SCALARS):
            v = self.base.scalar(v, self.dtype)
        elif isinstance(v, Handle):
            v = alive(v)
        else:
            array = as_array(v, "tangent")
            v = self.base.put(array, self.dtype if array.dtype == self.dtype else None, "tangent")
        if (here := base_backend(v).hardware) != self.base.hardware:
            raise DeviceError(
                f"{what()} is on the device {here}, but what it belongs to is on {self.base.hardware}. Move one of them: "
                "x.to_device(y.device)."
            )
        if v._shape != self.shape:
            raise ShapeError(f"{what()} has shape {v._shape}, but what it belongs to has shape {self.shape}.")
        if v._dtype != self.dtype:
            raise DTypeError(
                f"{what()} is {v._dtype}, but what it belongs to is {self.dtype}; write .astype('{self.dtype}') on one "
                "of them."
            )
        return v


# --- results


def split_aux(out: Any, has_aux: bool, where: str) -> tuple[Any, Any]:
    """(value, aux) of what a function returned."""
    if not has_aux:
        return out, None
    if not (isinstance(out, (tuple, list)) and len(out) == 2):
        size = f" of length {len(out)}" if isinstance(out, (tuple, list)) else ""
        raise ArgumentTypeError(
            f"{where}(has_aux=True): the function must return a pair (value, aux), got {type(out).__name__}{size}."
        )
    return out[0], out[1]


def outputs(out: Any, backend: Any, where: str) -> tuple[list[Any], tree.Structure]:
    """The leaves of what a function returned, as tensors on `backend` or below, and its structure."""
    leaves, structure = tree.flatten(out)
    if getattr(backend, "was_read", False) and not any(isinstance(x, Handle) for x in leaves):
        refuse_read(leaves, where)
    return [settle(_output(x, where, structure, i), backend) for i, x in enumerate(leaves)], structure


def refuse_read(leaves: Sequence[Any], where: str) -> None:
    """Refuse numbers and arrays as the result of a function that read a value off what is differentiated."""
    for x in leaves:
        if isinstance(x, (*dtypes.SCALARS, np.generic, np.ndarray, jax.Array)):
            raise ArgumentTypeError(
                f"{where}: the function returned {x!r} of type {type(x).__name__}, and it read a value off a tensor that is "
                "being differentiated (item(), float(), numpy()), which cuts the gradient: it would be zero. Return the "
                "tensor itself, computed with functad operations; read it outside."
            )


def _output(x: Any, where: str, structure: tree.Structure, index: int) -> Any:
    try:
        return operand(x, where=where)
    except ArgumentTypeError:
        path = tree.paths_of(structure)[index]
        raise ArgumentTypeError(
            f"{where}: the function returned {x!r} of type {type(x).__name__}{' at ' + path if path else ''}. Return "
            f"tensors, arrays, numbers or pytrees of them{'' if where == 'vmap' else ', and other things as aux (has_aux=True)'}."
        ) from None


def settle(x: Any, backend: Any) -> Any:
    """`x` on `backend` or below it: tapes that were opened inside the transform end with it."""
    while x._backend is not backend and x._backend.level >= backend.level:
        owner = x._backend
        if owner.level[1] > 0:
            if x._context.tracked and _oldest(x._context.leaves) < backend.opened:
                raise LevelError(
                    "the function's result depends on a tensor that requires grad and was made inside an earlier "
                    "transform, so its tape counts as inner to this one and its gradient would be lost. Make tensors "
                    "that require grad outside of transforms."
                )
            x = x._value
        else:
            inner = owner.resolve(x)
            if inner is None:
                raise LevelError(
                    "the function's result belongs to a transform that is still open in another thread. Give the "
                    "thread its context, contextvars.copy_context().run(...), and return its results before the "
                    "transform ends."
                )
            x = inner
    return x


def _oldest(leaves: Leaves) -> int:
    stack: list[Leaves] = [leaves]
    oldest = None
    seen = set()
    while stack:
        part = stack.pop()
        if isinstance(part, int):
            oldest = part if oldest is None else min(part, oldest)
        elif id(part) not in seen:
            seen.add(id(part))
            stack.extend(part)
    return oldest or 0


def below(x: Any, backend: Any) -> Any:
    """What `x` is one level under `backend`."""
    x = settle(x, backend)
    return x._value if x._backend is backend else x


def leave(backend: Any, values: Any) -> Any:
    """A pytree with its tensors taken off a level that closes; other leaves stay as they are."""
    return tree.map(lambda x: below(x, backend) if isinstance(x, Handle) else x, values)
