"""Functions of slices and of elements, by `vmap`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from functad import ops
from functad.errors import ArgumentError, ShapeError
from functad.ops.axes import normalize_axis, several
from functad.ops.operand import operand, operands
from functad.transforms.vmap import vmap

__all__ = ["apply_along_axis", "apply_over_axes", "vectorize"]


def apply_along_axis(func1d: Callable[..., Any], axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """`func1d` of every vector along an axis, all at once; its results take the place of the axis.

    Inside, a vector stands for many: its values cannot be read, nor decide an `if`.

    >>> import functad.numpy as fnp
    >>> fnp.apply_along_axis(lambda x: x[::-1], 0, [[1, 2], [3, 4]]).tolist()
    [[3, 4], [1, 2]]
    """
    arr = operand(arr, where="apply_along_axis")
    axis = normalize_axis(axis, arr.ndim, "apply_along_axis")
    rest = arr._shape[:axis] + arr._shape[axis + 1 :]
    rows = ops.reshape(ops.moveaxis(arr, axis, -1), (ops.broadcast_to(0, rest).size, arr._shape[axis]))
    out = vmap(lambda row: func1d(row, *args, **kwargs))(rows)
    out = operand(out, arr)
    made = out.ndim - 1
    out = ops.reshape(out, (*rest, *out._shape[1:]))
    return ops.moveaxis(out, tuple(range(len(rest), out.ndim)), tuple(range(axis, axis + made)))


def apply_over_axes(func: Callable[..., Any], a: Any, axes: Any) -> Any:
    """`func(a, axis)` for one axis after the other, each kept with length 1.

    >>> import functad.numpy as fnp
    >>> fnp.apply_over_axes(fnp.sum, [[1, 2], [3, 4]], [0, 1]).tolist()
    [[10]]
    """
    a = operand(a, where="apply_over_axes")
    for axis in several(axes):
        axis = normalize_axis(axis, a.ndim, "apply_over_axes")
        out = operand(func(a, axis), a)
        a = out if out.ndim == a.ndim else ops.expand_dims(out, axis)
        if a.ndim != out.ndim and out.ndim != a.ndim - 1:
            raise ShapeError("apply_over_axes: the function must return a tensor with as many axes, or one less.")
    return a


def vectorize(
    pyfunc: Callable[..., Any], otypes: Any = None, doc: str | None = None, excluded: Iterable[Any] = (),
    cache: bool = False, signature: str | None = None,
) -> Callable[..., Any]:  # fmt: skip
    """`pyfunc` of elements, or of the arrays a signature such as "(n),(n)->()" tells, over arrays that broadcast.

    Args:
        pyfunc: the function. It runs once for all elements: their values cannot decide an `if`
            (write `fd.where` or `fd.cond`).
        otypes: there for NumPy's sake.
        doc: the docstring of the result.
        excluded: positions and names of arguments that are passed as they are.
        cache: there for NumPy's sake.
        signature: the core axes of arguments and results; without one there are none.

    >>> import functad.numpy as fnp
    >>> fnp.vectorize(lambda x, y: x + 10 * y)([1, 2], [[1], [2]]).tolist()
    [[11, 12], [21, 22]]
    """
    left_out = set(excluded)

    def call(*args: Any, **kwargs: Any) -> Any:
        places = [i for i in range(len(args)) if i not in left_out]
        names = [name for name in kwargs if name not in left_out]
        given = operands("vectorize", "same", [*[args[i] for i in places], *[kwargs[n] for n in names]])
        core = _core(signature, len(given))
        loops = []
        for i, (x, axes) in enumerate(zip(given, core, strict=True)):
            if x.ndim < len(axes):
                raise ShapeError(f"vectorize: argument {i} of shape {x.shape} lacks the axes ({','.join(axes)}).")
            loops.append(x._shape[: x.ndim - len(axes)])
        shape = ops.broadcast_shapes(*loops) if loops else ()
        rows = []
        for x, axes in zip(given, core, strict=True):
            rest = x._shape[x.ndim - len(axes) :]
            rows.append(ops.reshape(ops.broadcast_to(x, (*shape, *rest)), (_size(shape), *rest)))

        def one(*xs: Any) -> Any:
            values = dict(zip([*places, *names], xs, strict=True))
            return pyfunc(
                *[values.get(i, x) for i, x in enumerate(args)], **{n: values.get(n, x) for n, x in kwargs.items()}
            )

        out = vmap(one, axis_size=_size(shape))(*rows)
        many = isinstance(out, (tuple, list))
        results = tuple([ops.reshape(x, (*shape, *operand(x)._shape[1:])) for x in (out if many else (out,))])
        return results if many else results[0]

    call.__name__ = getattr(pyfunc, "__name__", "vectorized")
    call.__doc__ = doc or pyfunc.__doc__
    return call


def _core(signature: str | None, count: int) -> list[list[str]]:
    """The core axes of each argument."""
    if signature is None:
        return [[] for _ in range(count)]
    inputs, arrow, _ = signature.replace(" ", "").partition("->")
    groups = re.findall(r"\(([^()]*)\)", inputs)
    if not arrow or len(groups) != count:
        raise ArgumentError(f"vectorize: the signature {signature!r} does not tell the axes of {count} arguments.")
    return [[name for name in group.split(",") if name] for group in groups]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size
