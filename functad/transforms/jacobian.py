"""`jacrev`, `jacfwd`, `hessian` and `hvp`: whole derivatives, and second ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from functad import tree
from functad.backends.batch import Batch
from functad.errors import DTypeError
from functad.keywords import explained
from functad.ops.index import getitem
from functad.ops.shape import moveaxis, reshape
from functad.transforms.arguments import (
    Argnums,
    Blank,
    check_callable,
    checked_argnums,
    differentiable,
    indices,
    opened,
    positional,
    split,
    unflatten,
    wraps,
)
from functad.transforms.forward import check_sequences, push_along, push_through
from functad.transforms.grad import differentiate
from functad.transforms.vjp import trace_back


@explained
def jacrev(
    fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that returns the Jacobian of `fn`, row by row in reverse mode.

    Cheaper than `jacfwd` where there are fewer outputs than inputs. The result has the structure
    of the output, each leaf replaced by the structure of the argument (a tuple of them for several
    `argnums`), with blocks of shape `output.shape + input.shape`; None for integer inputs.

    >>> import functad as fd
    >>> fd.jacrev(lambda x: x * x)(fd.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacrev("jacrev", fn, argnums, has_aux, holomorphic)


def _jacrev(
    where: str, fn: Callable[..., Any], argnums: Argnums, has_aux: bool, holomorphic: bool
) -> Callable[..., Any]:
    check_callable(fn, where)
    argnums = checked_argnums(argnums, where)

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen, call = _choose(where, fn, argnums, args, kwargs, holomorphic)
        out, structure, pullback, aux = trace_back(where, call, chosen, has_aux)
        structures = [tree.flatten(x)[1] for x in chosen]
        blocks = []
        for i, (y, path) in enumerate(zip(out, tree.paths_of(structure), strict=True)):
            _check_output(y, where, path, holomorphic)
            blocks.append(_inputs(structures, _rows(pullback, i, Blank(y)), argnums))
        jacobian = tree.unflatten(structure, blocks)
        return (jacobian, aux) if has_aux else jacobian

    return wrapped


def _rows(pullback: Any, i: int, of: Blank) -> list[Any]:
    """The blocks of output leaf `i`, one for each input leaf."""
    size = int(np.prod(of.shape, dtype=int))
    if size == 1:  # no need for a batch
        pieces = pullback.pull({i: of.full(1)})
        return [None if g is None else reshape(g, of.shape + g.shape) for g in pieces]
    with opened(partial(Batch, size=size)) as batch:
        pieces = pullback.pull({i: batch.wrap(_basis(of, size, 0, size))})
        rows = [None if g is None else batch.unwrap(g) for g in pieces]
    return [None if g is None else reshape(g, of.shape + g.shape[1:]) for g in rows]


@explained
def jacfwd(
    fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that returns the Jacobian of `fn`, column by column in forward mode.

    Cheaper than `jacrev` where there are fewer inputs than outputs; the result is the same.

    >>> import functad as fd
    >>> fd.jacfwd(lambda x: x * x)(fd.tensor([1.0, 2.0])).tolist()
    [[2.0, 0.0], [0.0, 4.0]]
    """
    return _jacfwd("jacfwd", fn, argnums, has_aux, holomorphic)


def _jacfwd(
    where: str, fn: Callable[..., Any], argnums: Argnums, has_aux: bool, holomorphic: bool
) -> Callable[..., Any]:
    check_callable(fn, where)
    argnums = checked_argnums(argnums, where)

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        chosen, call = _choose(where, fn, argnums, args, kwargs, holomorphic)
        values, structures = differentiable(chosen, range(len(chosen)), where, holomorphic)
        inputs = [Blank(x) for x in values]
        _check_inputs(inputs, where, holomorphic)
        sizes = [int(np.prod(of.shape, dtype=int)) if of.smooth else 0 for of in inputs]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        total = sum(sizes)
        with opened(partial(Batch, size=total)) as batch:
            moving = [
                batch.wrap(_basis(of, total, start, size)) if of.smooth else None
                for of, start, size in zip(inputs, starts, sizes, strict=True)
            ]
            out, structure, moved, aux = push_through(where, call, values, structures, moving, has_aux)
            columns = [None if t is None else moveaxis(batch.unwrap(t), 0, -1) for t in moved]
        blocks = []
        for y, column, path in zip(out, columns, tree.paths_of(structure), strict=True):
            if holomorphic:
                _check_output(y, where, path, holomorphic)
            pieces = [
                reshape(_piece(column, start, size, total), y.shape + of.shape)
                if of.smooth and column is not None
                else None
                for of, start, size in zip(inputs, starts, sizes, strict=True)
            ]
            blocks.append(_inputs(structures, pieces, argnums))
        jacobian = tree.unflatten(structure, blocks)
        return (jacobian, aux) if has_aux else jacobian

    return wrapped


@explained
def hessian(
    fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that returns the matrix of second derivatives of `fn`: `jacfwd` of `jacrev`.

    The result is nested as JAX nests it: the output's structure, then the argument's, then the
    argument's again.

    >>> import functad as fd
    >>> fd.hessian(lambda x: x[0] * x[0] * x[1])(fd.tensor([1.0, 2.0])).tolist()
    [[4.0, 2.0], [2.0, 0.0]]
    """
    gradient = _jacrev("hessian", fn, argnums, has_aux, holomorphic)
    return _jacfwd("hessian", gradient, argnums, has_aux, holomorphic)


@partial(explained, missing="write fd.hvp(f, (x,), (v,)), and for two arguments fd.hvp(f, (x, y), (v, w))")
def hvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> Any:
    """The Hessian of a scalar `fn` times a vector: forward mode over reverse, without the matrix.

    `primals` and `tangents` are tuples with an entry for each argument of `fn`, as for `jvp`; a
    tangent has its primal's structure, shapes and dtypes. The result is like the one primal, or with
    several primals a tuple, one entry for each.

    >>> import functad as fd
    >>> fd.hvp(lambda x: (x * x * x).sum(), (fd.tensor([1.0, 2.0]),), (fd.tensor([1.0, 0.0]),)).tolist()
    [6.0, 0.0]
    """
    check_callable(fn, "hvp")
    check_sequences("hvp", primals, tangents)
    argnums = tuple(range(len(primals))) if len(primals) != 1 else 0
    return push_along("hvp", lambda *args: differentiate("hvp", fn, argnums, args, {})[2], primals, tangents)[1]


def _choose(
    where: str,
    fn: Callable[..., Any],
    argnums: Argnums,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    holomorphic: bool,
) -> tuple[list[Any], Callable[..., Any]]:
    """The arguments to differentiate, and `fn` as a function of them alone."""
    args, kwargs = positional(fn, args, kwargs, argnums)
    numbers = indices(argnums, len(args), where)
    leaves, structures = differentiable([args[i] for i in numbers], numbers, where, holomorphic, args)

    def call(*chosen: Any) -> Any:
        full = list(args)
        for i, arg in zip(numbers, chosen, strict=True):
            full[i] = arg
        return fn(*full, **kwargs)

    return unflatten(structures, leaves), call


def _check_inputs(inputs: Sequence[Blank], where: str, holomorphic: bool) -> None:
    for of in inputs:
        if of.dtype.kind == "c" and not holomorphic:
            raise DTypeError(
                f"{where}: an input is {of.dtype}. Pass holomorphic=True for a holomorphic function, use fd.jacrev for "
                "a real function of complex inputs, or fd.jvp."
            )


def _check_output(y: Any, where: str, path: str, holomorphic: bool) -> None:
    of = Blank(y)
    place = f"{where}: the output{path} is {of.dtype}"
    if not of.smooth:
        raise DTypeError(f"{place}, which has no derivative. Return it as aux (has_aux=True), or make it a float.")
    if holomorphic and of.dtype.kind != "c":
        raise DTypeError(f"{place}, but holomorphic=True needs complex outputs; leave holomorphic out.")
    if of.dtype.kind == "c" and not holomorphic:
        raise DTypeError(f"{place}. Pass holomorphic=True for a holomorphic function, or use fd.vjp.")


def _basis(of: Blank, total: int, start: int, size: int) -> Any:
    """The rows of a unit matrix with `total` rows that belong to columns `start` to `start + size`."""
    eye = np.eye(total, size, -start, dtype=of.dtype).reshape(total, *of.shape)
    return of.base.held(eye)


def _piece(column: Any, start: int, size: int, total: int) -> Any:
    return column if size == total else getitem(column, (..., slice(start, start + size)))


def _inputs(structures: Sequence[tree.Structure], blocks: Sequence[Any], argnums: Argnums) -> Any:
    """Blocks in the structure of the arguments."""
    parts = [tree.unflatten(s, part) for s, part in zip(structures, split(structures, blocks), strict=True)]
    return tuple(parts) if isinstance(argnums, tuple) else parts[0]
