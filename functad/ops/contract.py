"""Products summed over axes: matmul and its kin, all over one op.

`contract` is an einsum of two operands in which every index stands once in two of the three terms
(a repeated index, or one summed within an operand, is taken out before). So is its derivative with
respect to either operand, and the backward of `x @ w` is two matrix products, each reading its
operands as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from string import ascii_letters, ascii_uppercase
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from jax import lax

from functad import dtypes
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.arithmetic import conj
from functad.ops.axes import normalize_axis
from functad.ops.diagonal import diagonal_op
from functad.ops.ieee import is_guarded, is_strict
from functad.ops.op import Cost, Op, Samples
from functad.ops.operand import operands
from functad.ops.quantize import QuantTensor, dense
from functad.ops.quantize import product as quant_product
from functad.ops.rules import broadcast, custom, mul, multilinear, reshape_op, sum_op
from functad.ops.shape import moveaxis, reshaped

__all__ = ["cross", "dot", "inner", "kron", "matmul", "outer", "tensordot", "vdot", "vecdot"]


Wins: TypeAlias = Literal["x", "y", "both"]


class _Layout(NamedTuple):
    """How a contraction is a stack of matrix products."""

    x_axes: tuple[int, ...]  # batch, rows, summed
    y_axes: tuple[int, ...]  # batch, summed, columns
    batch: int
    summed: int
    out_axes: tuple[int, ...]
    plain: bool  # the operands are stacks of matrices already


def _contract(xp: Any, x: Any, y: Any, *, subscripts: str) -> Any:
    wide = dtypes.accumulator(x.dtype)
    return xp.einsum(subscripts, x, y, preferred_element_type=wide).astype(x.dtype)


def _contract_numpy(xp: Any, x: Any, y: Any, *, subscripts: str) -> Any:
    wide = dtypes.accumulator(x.dtype)
    plan = _layout(subscripts)
    a = x.astype(wide, copy=False).transpose(plan.x_axes)
    b = y.astype(wide, copy=False).transpose(plan.y_axes)
    if plan.plain:
        return (a @ b).transpose(plan.out_axes).astype(x.dtype, copy=False)
    batch, inner = b.shape[: plan.batch], b.shape[plan.batch : plan.batch + plan.summed]
    rows, columns = a.shape[plan.batch : a.ndim - plan.summed], b.shape[plan.batch + plan.summed :]
    n = math.prod(inner)
    out = a.reshape(*batch, math.prod(rows), n) @ b.reshape(*batch, n, math.prod(columns))
    return out.reshape(batch + rows + columns).transpose(plan.out_axes).astype(x.dtype, copy=False)


@lru_cache(1024)
def _layout(subscripts: str) -> _Layout:
    xs, ys, out = _terms(subscripts)
    batch = [i for i in xs if i in ys and i in out]
    shared = [i for i in xs if i not in out]
    rows = [i for i in xs if i not in ys]
    columns = [i for i in ys if i not in xs]
    made = [*batch, *rows, *columns]
    return _Layout(
        tuple(map(xs.index, [*batch, *rows, *shared])),
        tuple(map(ys.index, [*batch, *shared, *columns])),
        len(batch),
        len(shared),
        tuple(map(made.index, out)),
        len(rows) == len(columns) == len(shared) == 1,
    )


def _terms(subscripts: str) -> tuple[str, str, str]:
    inputs, _, out = subscripts.partition("->")
    xs, _, ys = inputs.partition(",")
    return xs, ys, out


@lru_cache(1024)
def _backward(subscripts: str) -> tuple[str, str]:
    xs, ys, out = _terms(subscripts)
    return f"{out},{ys}->{xs}", f"{xs},{out}->{ys}"


def _contract_rows(op: Any, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    return bind(op, inputs, (_with_rows(params[0], *mapped), *params[1:]))


@lru_cache(1024)
def _with_rows(subscripts: str, x_mapped: bool, y_mapped: bool) -> str:
    xs, ys, out = _terms(subscripts)
    row = next(c for c in ascii_letters if c not in subscripts)
    return f"{row * x_mapped}{xs},{row * y_mapped}{ys}->{row}{out}"


def _guarded(product: Callable[..., Any]) -> Callable[..., Any]:
    """`product` where zeros win: what in one operand only zeros of the other are multiplied by is taken as 0."""

    def impl(xp: Any, x: Any, y: Any, *, subscripts: str, wins: Wins) -> Any:
        xs, ys, _ = _terms(subscripts)
        left = x if wins == "x" else _met(xp, x, xs, y, ys)
        right = y if wins == "y" else _met(xp, y, ys, x, xs)
        return product(xp, left, right, subscripts=subscripts)

    return impl


def _met(xp: Any, x: Any, xs: str, other: Any, others: str) -> Any:
    """`x`, but 0 where all that it meets in the other operand is 0."""
    live = xp.any(other != 0, axis=tuple([i for i, index in enumerate(others) if index not in xs]))
    shared = [index for index in others if index in xs]
    live = xp.transpose(live, sorted(range(len(shared)), key=lambda i: xs.index(shared[i])))
    live = live.reshape([n if index in shared else 1 for index, n in zip(xs, x.shape, strict=True)])
    return xp.where(live, x, xp.zeros((), x.dtype))


guarded_contract_op: Op = custom(
    "guarded_contract", _guarded(_contract), guards=True,
    vjp=[lambda g, y, subscripts, wins: _guard(g, y, _backward(subscripts)[0], "x" if wins == "x" else "both"),
         lambda g, x, subscripts, wins: _guard(x, g, _backward(subscripts)[1], "y" if wins == "y" else "both")],
    jvp=[lambda t, y, subscripts: _guard(t, y, subscripts, "x"), lambda t, x, subscripts: _guard(x, t, subscripts, "y")],
    cost=Cost.COMPUTE, numpy_impl=_guarded(_contract_numpy), batch=_contract_rows,
    samples=Samples([
        (((3, 2), (2, 4)), {"subscripts": "ij,jk->ik", "wins": "x"}),
        (((2, 3), (2,)), {"subscripts": "ij,i->j", "wins": "y"}),
        (((2, 3), (3,)), {"subscripts": "ij,j->i", "wins": "both"}),
        (((0, 2), (2,)), {"subscripts": "ij,j->i", "wins": "x"}),
    ]),
    doc="A contraction in which rows of zeros in one operand (`wins`), or in both, win over inf and NaN in the other.",
)  # fmt: skip


def _guard(x: Any, y: Any, subscripts: str, wins: Wins) -> Any:
    if is_strict():
        return bind(contract_op, (x, y), (subscripts,))
    return bind(guarded_contract_op, (x, y), (subscripts, wins))


def _rule(x: Any, y: Any, subscripts: str, cotangent: Wins) -> Any:
    return _guard(x, y, subscripts, cotangent) if is_guarded() else bind(contract_op, (x, y), (subscripts,))


contract_op: Op = multilinear(
    "contract", _contract,
    lambda g, y, subscripts: _rule(g, y, _backward(subscripts)[0], "x"),
    lambda g, x, subscripts: _rule(x, g, _backward(subscripts)[1], "y"),
    cost=Cost.COMPUTE, numpy_impl=_contract_numpy, batch=_contract_rows,
    samples=Samples([
        (((3, 2), (2, 4)), {"subscripts": "ij,jk->ik"}), (((2,), (2,)), {"subscripts": "i,i->"}),
        (((2, 3, 4), (4, 5)), {"subscripts": "bij,jk->bik"}), (((2, 3), (2, 3)), {"subscripts": "ij,ij->j"}),
        (((2, 1, 3), (3, 2, 4)), {"subscripts": "bij,jbk->kbi"}), (((3,), (2,)), {"subscripts": "i,j->ji"}),
        (((3, 0), (0, 2)), {"subscripts": "ij,jk->ik"}), (((0, 2), (2,)), {"subscripts": "ij,j->i"}),
    ]),
    doc="Products of two operands summed over the indices not in the output; half types accumulate in float32.",
)  # fmt: skip


def _cross(xp: Any, x: Any, y: Any, *, wins: Wins | None) -> Any:
    wide = dtypes.accumulator(x.dtype)  # a difference of rounded products has few digits left

    def product(i: int, j: int) -> Any:
        left, right = x[..., i].astype(wide), y[..., j].astype(wide)
        zero = {"x": left, "y": right}.get(wins or "")
        return left * right if zero is None else xp.where(zero == 0, zero, left * right)

    parts = [product(i, j) - product(j, i) for i, j in ((1, 2), (2, 0), (0, 1))]
    if xp is not np and wins:  # in a rule XLA would lay the stack out the other way, and copy it
        edges = [[(0, 0, 0)] * (x.ndim - 1) + [(i, 2 - i, 0)] for i in range(3)]
        first, second, third = [lax.pad(p[..., None], wide.type(0), e) for p, e in zip(parts, edges, strict=True)]
        return (first + second + third).astype(x.dtype)
    return xp.moveaxis(xp.stack(parts), 0, -1).astype(x.dtype)  # on XLA faster than to stack along the last axis


def _cross_rule(x: Any, y: Any, moving: Wins) -> Any:
    return bind(cross_op, (x, y), (None if is_strict() else moving,))


cross_op: Op = custom(
    "cross", _cross, vjp=[lambda g, y: _cross_rule(y, g, "y"), lambda g, x: _cross_rule(g, x, "x")],
    jvp=[lambda t, y: _cross_rule(t, y, "x"), lambda t, x: _cross_rule(x, t, "y")],
    samples=Samples([
        (((3,), (3,)), {"wins": None}), (((2, 3), (2, 3)), {"wins": "x"}), (((0, 3), (0, 3)), {"wins": "y"}),
    ]),
    doc="Cross products of the last axis; with `wins`, zeros of that operand make a product 0 whatever the other is.",
)  # fmt: skip


def matmul(x: Any, y: Any) -> Any:
    """The matrix product over the last axis of `x` and the last but one of `y`.

    Further axes are a stack and broadcast; a vector is a row on the left and a column on the
    right. Raises `ShapeError` if the lengths differ.

    >>> import functad as fd
    >>> fd.ops.matmul([[1, 2], [3, 4]], [1, 1]).tolist()
    [3, 7]
    """
    if isinstance(y, QuantTensor) or isinstance(x, QuantTensor):
        return quant_product(x, y)
    x, y = _pair("matmul", x, y)
    xs, ys = x._shape, y._shape
    if not xs or not ys:
        raise ShapeError(
            f"matmul: takes tensors with at least one axis, got shapes {xs} and {ys}; use x * y for numbers."
        )
    if xs[-1] != ys[-2 if len(ys) > 1 else 0]:
        raise ShapeError(_mismatch(xs, ys))
    batch = min(len(xs), len(ys)) - 2
    if batch > 0 and xs[-2 - batch : -2] != ys[-2 - batch : -2]:
        _check_stack("matmul", xs, ys, xs[:-2], ys[:-2])
        return contract(x, y, *_terms(_matmul_subscripts(len(xs), len(ys))))
    return bind(contract_op, (x, y), (_matmul_subscripts(len(xs), len(ys)),))


def dot(x: Any, y: Any) -> Any:
    """The dot product by NumPy's rules: over the last axis of `x` and the last but one of `y`.

    Their other axes are all kept, those of `x` first (`matmul` broadcasts them); a number scales.

    >>> import functad as fd
    >>> fd.ops.dot([1, 2], [3, 4]).item()
    11
    """
    if isinstance(y, QuantTensor) and y.ndim == 2 and np.ndim(x):
        return quant_product(x, y, "dot")
    x, y = _pair("dot", x, y)
    if not x.ndim or not y.ndim:
        return mul(x, y)
    return _tensordot("dot", x, y, (x.ndim - 1,), (max(y.ndim - 2, 0),))


def vdot(x: Any, y: Any) -> Any:
    """The sum of the products of all elements; complex `x` is conjugated.

    >>> import functad as fd
    >>> fd.ops.vdot([[1, 2], [3, 4]], [[1, 1], [1, 1]]).item()
    10
    """
    x, y = _pair("vdot", x, y)
    if x.size != y.size:
        raise ShapeError(f"vdot: x of shape {x.shape} has {x.size} elements, y of shape {y.shape} has {y.size}.")
    return bind(contract_op, (_conjugate(_flat(x)), _flat(y)), ("i,i->",))


def vecdot(x: Any, y: Any, axis: int = -1) -> Any:
    """Dot products of the vectors along an axis; the others broadcast, complex `x` is conjugated.

    >>> import functad as fd
    >>> fd.ops.vecdot([[1, 2], [3, 4]], [1, 1]).tolist()
    [3, 7]
    """
    x, y = _pair("vecdot", x, y)
    i, j = normalize_axis(axis, x.ndim, "vecdot"), normalize_axis(axis, y.ndim, "vecdot")
    if x.shape[i] != y.shape[j]:
        raise ShapeError(
            f"vecdot: axis {axis} has length {x.shape[i]} in shape {x.shape} and {y.shape[j]} in {y.shape}."
        )
    _check_stack("vecdot", x.shape, y.shape, x.shape[:i] + x.shape[i + 1 :], y.shape[:j] + y.shape[j + 1 :])
    stack = ascii_letters[1 : max(x.ndim, y.ndim)]
    xs, ys = stack[len(stack) + 1 - x.ndim :], stack[len(stack) + 1 - y.ndim :]
    return contract(_conjugate(x), y, xs[:i] + "a" + xs[i:], ys[:j] + "a" + ys[j:], stack)


def inner(x: Any, y: Any) -> Any:
    """Sums of products over the last axis of both; a number scales.

    >>> import functad as fd
    >>> fd.ops.inner([[1, 2], [3, 4]], [[1, 1], [0, 1]]).tolist()
    [[3, 2], [7, 4]]
    """
    if isinstance(y, QuantTensor) and y.ndim == 2 and np.ndim(x):
        return quant_product(x, y.T, "inner")
    x, y = _pair("inner", x, y)
    if not x.ndim or not y.ndim:
        return mul(x, y)
    return _tensordot("inner", x, y, (x.ndim - 1,), (y.ndim - 1,))


def outer(x: Any, y: Any) -> Any:
    """All products of an element of `x` (rows) with one of `y` (columns).

    >>> import functad as fd
    >>> fd.ops.outer([1, 2], [3, 4]).tolist()
    [[3, 4], [6, 8]]
    """
    x, y = _pair("outer", x, y)
    return bind(contract_op, (_flat(x), _flat(y)), ("i,j->ij",))


def tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """Sums of products over several axes of both.

    Args:
        x: the first tensor.
        y: the second.
        axes: how many (the last of `x`, the first of `y`), or a pair: the axes of `x` and those of `y`.

    >>> import functad as fd
    >>> fd.ops.tensordot(fd.ones((2, 3, 4)), fd.ones((4, 3, 5)), ((1, 2), (1, 0))).shape
    (2, 5)
    """
    x, y = _pair("tensordot", x, y)
    if not hasattr(axes, "__len__"):
        if not 0 <= axes <= min(x.ndim, y.ndim):
            raise ShapeError(
                f"tensordot: axes={axes} asks for more axes than shapes {x.shape} and {y.shape} both have."
            )
        return _tensordot("tensordot", x, y, tuple(range(x.ndim - axes, x.ndim)), tuple(range(axes)))
    if len(axes) != 2:
        raise ArgumentError(f"tensordot: axes is an int or a pair (axes of x, axes of y), got {axes!r}.")
    mine, theirs = (
        tuple([normalize_axis(a, t.ndim, "tensordot") for a in (given if hasattr(given, "__len__") else (given,))])
        for given, t in zip(axes, (x, y), strict=True)
    )
    if len(mine) != len(theirs) or len(set(mine)) != len(mine) or len(set(theirs)) != len(theirs):
        raise ShapeError(f"tensordot: axes={axes!r} must name as many axes of x as of y, each once.")
    return _tensordot("tensordot", x, y, mine, theirs)


def kron(x: Any, y: Any) -> Any:
    """The Kronecker product: each element of `x` times the whole of `y`.

    >>> import functad as fd
    >>> fd.ops.kron([1, 2], [1, 1]).tolist()
    [1, 1, 2, 2]
    """
    x, y = _pair("kron", x, y)
    ndim = max(x.ndim, y.ndim)
    x, y = (reshaped(t, (1,) * (ndim - t.ndim) + t.shape) for t in (x, y))
    xs, ys = ascii_letters[:ndim], ascii_letters[ndim : 2 * ndim]
    out = bind(contract_op, (x, y), (f"{xs},{ys}->{''.join(a + b for a, b in zip(xs, ys, strict=True))}",))
    return reshaped(out, tuple([m * n for m, n in zip(x.shape, y.shape, strict=True)]))


def cross(x: Any, y: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None) -> Any:
    """The cross product of vectors of three components.

    Args:
        x: the left factors.
        y: the right factors; the other axes broadcast.
        axisa: the axis of `x` that holds the components.
        axisb: that of `y`.
        axisc: that of the result.
        axis: all three at once.

    >>> import functad as fd
    >>> fd.ops.cross([1, 0, 0], [0, 1, 0]).tolist()
    [0, 0, 1]
    """
    x, y = _pair("cross", x, y)
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = _with_last(x, axisa), _with_last(y, axisb)
    if x.shape[-1:] != (3,) or y.shape[-1:] != (3,):
        raise ShapeError(
            f"cross: the vectors must have 3 components, got {x.shape[-1]} and {y.shape[-1]}; for two components write "
            "x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]."
        )
    _check_stack("cross", x.shape, y.shape, x.shape[:-1], y.shape[:-1])
    shape = np.broadcast_shapes(x._shape, y._shape)
    return moveaxis(bind(cross_op, (broadcast(x, shape), broadcast(y, shape)), (None,)), -1, axisc)


def _pair(where: str, x: Any, y: Any) -> tuple[Any, Any]:
    if isinstance(x, Handle) and isinstance(y, Handle) and x._dtype is y._dtype:
        return x, y
    x, y = operands(where, "numeric", (dense(x, y), dense(y, x)))
    return x, y


def _flat(x: Any) -> Any:
    return reshaped(x, (x.size,))


def _with_last(x: Any, axis: int) -> Any:
    return x if normalize_axis(axis, x.ndim, "cross") == x.ndim - 1 else moveaxis(x, axis, -1)


def _conjugate(x: Any) -> Any:
    return conj(x) if x._dtype.kind == "c" else x


@lru_cache(256)
def _matmul_subscripts(x_ndim: int, y_ndim: int) -> str:
    stack = ascii_uppercase[: max(x_ndim, y_ndim, 2) - 2]
    xs = stack[len(stack) + 2 - x_ndim :] + "ij" if x_ndim > 1 else "j"
    ys = stack[len(stack) + 2 - y_ndim :] + "jk" if y_ndim > 1 else "j"
    return f"{xs},{ys}->{stack}{'i' if x_ndim > 1 else ''}{'k' if y_ndim > 1 else ''}"


def _tensordot(where: str, x: Any, y: Any, mine: tuple[int, ...], theirs: tuple[int, ...]) -> Any:
    for a, b in zip(mine, theirs, strict=True):
        if x.shape[a] != y.shape[b]:
            raise ShapeError(
                f"{where}: axis {a} of x has length {x.shape[a]} (shape {x.shape}) and axis {b} of y {y.shape[b]} "
                f"(shape {y.shape}); they are summed together and must be equal."
            )
    return bind(contract_op, (x, y), (_tensordot_subscripts(x.ndim, y.ndim, mine, theirs),))


@lru_cache(1024)
def _tensordot_subscripts(x_ndim: int, y_ndim: int, mine: tuple[int, ...], theirs: tuple[int, ...]) -> str:
    xs = ascii_letters[:x_ndim]
    free = iter(ascii_letters[x_ndim:])
    ys = "".join(xs[mine[theirs.index(b)]] if b in theirs else next(free) for b in range(y_ndim))
    summed = {xs[a] for a in mine}
    return f"{xs},{ys}->{''.join(i for i in xs + ys if i not in summed)}"


def contract(x: Any, y: Any, xs: str, ys: str, out: str) -> Any:
    """A contraction whose indices may have length 1 in one operand and more in the other."""
    sizes = lengths([xs, ys], [x._shape, y._shape])
    x, xs = simplified(x, xs, sizes)
    y, ys = simplified(y, ys, sizes)
    x, xs = summed(x, xs, ys + out)
    y, ys = summed(y, ys, xs + out)
    return bind(contract_op, (x, y), (f"{xs},{ys}->{out}",))


def lengths(terms: Iterable[str], shapes: Iterable[tuple[int, ...]]) -> dict[str, int]:
    """The length of every index; 1 broadcasts."""
    found: dict[str, int] = {}
    for i, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        for index, n in zip(term, shape, strict=True):
            known = found.setdefault(index, n)
            if known == 1:
                found[index] = n
            elif n not in (1, known):
                raise ShapeError(
                    f"einsum: the letter {index!r} stands for an axis of length {n} in operand {i} (shape {shape}), and for one "
                    f"of length {known} before; the axes of one letter have one length (or 1, which broadcasts)."
                )
    return found


def simplified(x: Any, term: str, sizes: dict[str, int]) -> tuple[Any, str]:
    """An operand with the diagonal taken of a repeated index, and lengths of 1 that broadcast dropped."""
    while len(set(term)) < len(term):
        repeated = next(index for i, index in enumerate(term) if index in term[:i])
        first, second = (i for i in range(len(term)) if term[i] == repeated and term[:i].count(repeated) < 2)
        if x.shape[first] != x.shape[second]:
            raise ShapeError(
                f"einsum: the repeated index {repeated!r} stands for axes of lengths {x.shape[first]} and "
                f"{x.shape[second]} of shape {x.shape}; a diagonal needs equal lengths."
            )
        x = bind(diagonal_op, (x,), (0, first, second))
        term = term[:first] + term[first + 1 : second] + term[second + 1 :] + repeated
    kept = "".join([index for index, n in zip(term, x._shape, strict=True) if n == sizes[index]])
    return (x, term) if kept == term else (bind(reshape_op, (x,), (tuple([sizes[i] for i in kept]),)), kept)


def summed(x: Any, term: str, needed: str) -> tuple[Any, str]:
    """An operand summed over the indices that stand nowhere else."""
    axes = tuple([i for i, index in enumerate(term) if index not in needed])
    if not axes:
        return x, term
    return bind(sum_op, (x,), (axes, False)), "".join([i for i in term if i in needed])


def _mismatch(xs: tuple[int, ...], ys: tuple[int, ...]) -> str:
    n = ys[-2 if len(ys) > 1 else 0]
    theirs = "last but one" if len(ys) > 1 else "only"
    text = (
        f"matmul: the last axis of the first operand, shape {xs}, has length {xs[-1]}, but the {theirs} axis of the "
        f"second, shape {ys}, has length {n}; they are summed together and must be equal."
    )
    flip = ".T" if max(len(xs), len(ys)) == 2 else ".mT"
    if len(ys) > 1 and ys[-1] == xs[-1]:
        return f"{text} Transpose the second operand ({flip})."
    if len(xs) > 1 and xs[-2] == n:
        return f"{text} Transpose the first operand ({flip})."
    if len(xs) > 1 and len(ys) > 1 and xs[-2] == ys[-1]:
        return f"{text} Exchange the operands."
    return text


def _check_stack(where: str, xs: Sequence[int], ys: Sequence[int], x_stack: Any, y_stack: Any) -> None:
    try:
        np.broadcast_shapes(x_stack, y_stack)
    except ValueError:
        raise ShapeError(
            f"{where}: the stacks {x_stack} of x, shape {xs}, and {y_stack} of y, shape {ys}, do not broadcast: from "
            "the last axis backwards, lengths must be equal or 1."
        ) from None
