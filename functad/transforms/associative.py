"""Running results of an associative function, in a logarithmic number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functad import ops, tree
from functad.errors import ArgumentError, ShapeError, StructureError
from functad.keywords import explained
from functad.ops.axes import normalize_axis
from functad.ops.operand import operand
from functad.transforms.arguments import check_callable


@explained
def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """What `fn` makes of the first one, two, three, ... elements along an axis, for an associative `fn` (Blelloch 1990).

    Args:
        fn: `fn(a, b)` of two pytrees like `elems` gives a third one. It is called on several elements at once, along
            `axis`, about twice as often as the length has binary digits.
        elems: a pytree of tensors with a common length of `axis`.
        reverse: whether to start at the last element; results keep the order.
        axis: the axis of the elements.

    Where `fn` is not associative the result has no meaning. Differentiable, as `fn` is.

    >>> import functad as fd
    >>> fd.associative_scan(lambda a, b: a * b, fd.tensor([1.0, 2.0, 3.0, 4.0])).tolist()
    [1.0, 2.0, 6.0, 24.0]
    """
    where = "associative_scan"
    check_callable(fn, where, " It is fn of fd.associative_scan(fn, elems), which takes two elements.")
    leaves, structure = tree.flatten(elems)
    if not leaves:
        raise ArgumentError(f"{where}: elems hold no tensors.")
    xs = [operand(x, where=where) for x in leaves]
    axes = [normalize_axis(axis, x.ndim, where) for x in xs]
    lengths = {x.shape[a] for x, a in zip(xs, axes, strict=True)}
    if len(lengths) > 1:
        shapes = ", ".join(str(x.shape) for x in xs)
        raise ShapeError(f"{where}: axis {axis} must have one length everywhere, got shapes {shapes}.")

    def joined(a: list[Any], b: list[Any]) -> list[Any]:
        out, found = tree.flatten(fn(tree.unflatten(structure, a), tree.unflatten(structure, b)))
        if found != structure:
            raise StructureError(
                f"{where}: fn must return what it takes, {tree.shown(structure)}, got {tree.shown(found)}."
            )
        return [operand(x, y, where=where) for x, y in zip(out, a, strict=True)]

    def cut(some: list[Any], start: int | None, stop: int | None, step: int = 1) -> list[Any]:
        return [x[(slice(None),) * a + (slice(start, stop, step),)] for x, a in zip(some, axes, strict=True)]

    def running(some: list[Any]) -> list[Any]:
        n = some[0].shape[axes[0]]
        if n < 2:
            return some
        odd = running(joined(cut(some, 0, n - 1, 2), cut(some, 1, None, 2)))
        even = joined(odd if n % 2 else cut(odd, 0, -1), cut(some, 2, None, 2)) if n > 2 else cut(some, 0, 0)
        first = cut(some, 0, 1)
        return [
            _in_turn(ops.concatenate([f, e], a), o, a) for f, e, o, a in zip(first, even, odd, axes, strict=True)
        ]  # fmt: skip

    if reverse:
        xs = [ops.flip(x, a) for x, a in zip(xs, axes, strict=True)]
    out = running(xs)
    if reverse:
        out = [ops.flip(x, a) for x, a in zip(out, axes, strict=True)]
    return tree.unflatten(structure, out)


def _in_turn(even: Any, odd: Any, axis: int) -> Any:
    """The elements of two tensors in turn; the first has as many, or one more."""
    n, m = even.shape[axis], odd.shape[axis]
    last = even[(slice(None),) * axis + (slice(m, n),)]
    pairs = ops.stack([even[(slice(None),) * axis + (slice(0, m),)], odd], axis + 1)
    whole = ops.reshape(pairs, (*odd.shape[:axis], 2 * m, *odd.shape[axis + 1 :]))
    return ops.concatenate([whole, last], axis) if n > m else whole
