"""`vmap`: a function of one example as a function of many."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from functad import tree
from functad.backends.batch import Batch
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, ShapeError, StructureError
from functad.generator import refusing
from functad.keywords import explained
from functad.ops.operand import operand
from functad.ops.shape import moveaxis
from functad.transforms.arguments import alive, check_callable, opened, outputs, wraps


class _Leaf(NamedTuple):
    """One leaf of the arguments, and which of its axes is mapped."""

    value: Any
    axis: int | None


@explained
def vmap(
    fn: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0, axis_size: int | None = None
) -> Callable[..., Any]:
    """`fn` over a new axis of its arguments, all at once.

    Args:
        fn: a function of pytrees of tensors that returns one.
        in_axes: which axis of each argument is mapped: an int, None (the same for all), or a tuple
            with one entry per positional argument, each an int, None or a pytree of them that is
            a prefix of the argument. Keyword arguments are mapped over axis 0.
        out_axes: where the mapped axis goes in the result; a prefix of its structure. None for
            outputs that are the same for all.
        axis_size: the length of the mapped axis, needed only if no argument is mapped.

    Inside, a tensor stands for many values at once: its value cannot be read, nor decide an `if`.

    >>> import functad as fd
    >>> fd.vmap(lambda x, w: (x * w).sum(), in_axes=(0, None))(fd.ones((3, 2)), fd.tensor([1.0, 2.0])).tolist()
    [3.0, 3.0, 3.0]

    A pytree of which a part is mapped, and gradients example by example:

    >>> f = lambda p, x: p["w"] * x + p["b"]
    >>> fd.vmap(f, in_axes=({"w": 0, "b": None}, None))({"w": fd.tensor([1.0, 2.0]), "b": 1.0}, 3.0).tolist()
    [4.0, 7.0]
    >>> fd.vmap(fd.grad(lambda w, x: w * x * x), in_axes=(None, 0))(1.0, fd.tensor([2.0, 3.0])).tolist()
    [4.0, 9.0]
    """
    check_callable(fn, "vmap")
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    if in_axes is not None and not isinstance(in_axes, tuple) and not hasattr(in_axes, "__index__"):
        raise ArgumentTypeError(
            f"vmap: in_axes must be an int, None, or a tuple with one entry per positional argument, got {in_axes!r}; "
            "for a single argument that is a pytree write in_axes=(axes,)."
        )
    _check_axes(in_axes, "in_axes")
    _check_axes(out_axes, "out_axes")

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = _arguments(in_axes, args, kwargs)
        if not leaves and axis_size is None:
            raise ArgumentError(
                "vmap: the function was called without any array; pass an argument that holds one, or axis_size."
            )
        size = _size(leaves, axis_size, structure)
        with opened(partial(Batch, size=size)) as batch, refusing("vmap"):
            rows = [batch.wrap(_front(x.value, x.axis)) if x.axis is not None else x.value for x in leaves]
            args, kwargs = tree.unflatten(structure, rows)
            out = fn(*args, **kwargs)
            results, out_structure = outputs(out, batch, "vmap")
            axes = tree.spread(out_axes, out_structure, out, "out_axes", "vmap")
            stacked = [
                _stack(x, axis, batch, out_structure, i) for i, (x, axis) in enumerate(zip(results, axes, strict=True))
            ]
        return tree.unflatten(out_structure, stacked)

    return wrapped


def _arguments(in_axes: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[_Leaf], tree.Structure]:
    """All leaves of the arguments with their axes, and the structure of `(args, kwargs)`."""
    if isinstance(in_axes, tuple) and len(in_axes) != len(args):
        raise StructureError(
            f"vmap: in_axes={in_axes!r} has {len(in_axes)} entries, but the function was called with {len(args)} "
            "positional argument(s); give one entry for each (keyword arguments are mapped over axis 0)."
        )
    found, structure = tree.flatten((args, kwargs))
    if isinstance(in_axes, tuple):
        axes: list[Any] = []
        for i, (entry, arg) in enumerate(zip(in_axes, args, strict=True)):
            axes.extend(tree.spread(entry, tree.flatten(arg)[1], arg, f"in_axes[{i}]", "vmap"))
    else:
        axes = [in_axes] * tree.flatten(args)[1].num_leaves
    axes.extend([0] * (len(found) - len(axes)))  # the keyword arguments
    like = next((x for x in found if isinstance(x, Handle)), None)
    return [_leaf(x, axis, like, structure, i) for i, (x, axis) in enumerate(zip(found, axes, strict=True))], structure


def _leaf(x: Any, axis: int | None, like: Any, structure: tree.Structure, index: int) -> _Leaf:
    if axis is None:
        return _Leaf(x, None)
    try:
        x = alive(operand(x, like, where="vmap"))
    except ArgumentTypeError:
        raise ArgumentTypeError(
            f"vmap: {_place(structure, index)} is {x!r} of type {type(x).__name__}, which has no axis to map. Give it "
            "None in in_axes, or bind it with functools.partial."
        ) from None
    if not -x.ndim <= axis < x.ndim:
        place = _place(structure, index)
        hint = "Choose another axis in in_axes, or None to pass it whole."
        if place.startswith("keyword"):
            hint = "Keyword arguments are; to pass it whole, bind it with functools.partial."
        raise ShapeError(
            f"vmap: {place} is to be mapped over axis {axis}, but has {x.ndim} axes (shape {x.shape}). {hint}"
        )
    return _Leaf(x, axis % x.ndim)


def _place(structure: tree.Structure, index: int) -> str:
    """How messages call a leaf of `(args, kwargs)`."""
    path = tree.paths_of(structure)[index]
    if path.startswith("[1]"):
        return f"keyword argument {path[3:]}"
    number, _, rest = path.removeprefix("[0][").partition("]")
    return f"argument {number}{rest}"


def _size(leaves: Sequence[_Leaf], axis_size: int | None, structure: tree.Structure) -> int:
    """The length of the mapped axis."""
    sizes = {x.value._shape[x.axis] for x in leaves if x.axis is not None}
    if axis_size is None:
        if len(sizes) == 1:
            return sizes.pop()
    else:
        try:
            axis_size = operator.index(axis_size)
        except TypeError:
            raise ArgumentTypeError(f"vmap: axis_size must be an int, got {axis_size!r}.") from None
        if axis_size < 0:
            raise ArgumentError(f"vmap: axis_size must not be negative, got {axis_size}.")
        if sizes <= {axis_size}:
            return axis_size
    if not sizes:
        raise ArgumentError(
            "vmap: no argument is mapped (every entry of in_axes is None), so the number of rows is unknown. Map one "
            "with in_axes, or pass axis_size."
        )
    lengths = "; ".join(
        f"{_place(structure, i)} has {x.value.shape[x.axis]} (axis {x.axis} of {x.value.shape})"
        for i, x in enumerate(leaves)
        if x.axis is not None
    )
    asked = f"axis_size is {axis_size}; " if axis_size is not None else ""
    raise ShapeError(
        f"vmap: the mapped axes have different lengths: {asked}{lengths}. They must be equal; choose other axes with "
        "in_axes, or None for an argument that is the same for all rows."
    )


def _front(x: Any, axis: int) -> Any:
    return moveaxis(x, axis, 0) if axis else x


def _stack(x: Any, axis: int | None, batch: Batch, structure: tree.Structure, index: int) -> Any:
    """One output with the mapped axis where it is wanted."""
    if axis == 0:
        return batch.unwrap(x)
    if axis is None:
        if x._backend is batch:
            path = tree.paths_of(structure)[index]
            raise ArgumentError(
                f"vmap: out_axes is None for the output{path}, but that output differs from row to row (shape "
                f"{x.shape} each). Give it an axis, or reduce over the rows outside of vmap."
            )
        return x
    ndim = x.ndim + 1
    if not -ndim <= axis < ndim:
        path = tree.paths_of(structure)[index]
        raise ShapeError(
            f"vmap: out_axes asks for axis {axis} of the output{path}, which has {ndim} axes with the mapped one "
            f"(shape {x.shape} for each row); use one from {-ndim} to {ndim - 1}."
        )
    return moveaxis(batch.unwrap(x), 0, axis % ndim)


def _check_axes(axes: Any, name: str) -> None:
    for entry in tree.leaves(axes):
        if isinstance(entry, (Handle, bool)) or not hasattr(entry, "__index__"):
            raise ArgumentTypeError(f"vmap: {name} must hold ints and None, got {entry!r} in {name}={axes!r}.")
