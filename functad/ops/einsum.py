"""Einstein's notation: sums of products over named indices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from string import ascii_letters, ascii_lowercase, ascii_uppercase
from typing import Any, NamedTuple

import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.errors import ArgumentError, ShapeError
from functad.ops.contract import contract_op, lengths, simplified, summed
from functad.ops.operand import operands
from functad.ops.quantize import QuantTensor, dense
from functad.ops.rules import cast_op
from functad.ops.shape import transpose

__all__ = ["einsum", "einsum_path"]

_MOST_EXHAUSTIVE = 5
"""Up to so many operands every order of contraction is tried."""


def einsum(subscripts: Any, *xs: Any, optimize: Any = True) -> Any:
    """Sums of products in Einstein's notation.

    Args:
        subscripts: one term of letters per operand and, after "->", one for the result (without it,
            the letters that stand once, in order); "..." stands for further axes, which broadcast.
            Or, as in NumPy, operands and lists of ints in turn, then the list of the result.
        xs: the operands.
        optimize: there for NumPy's sake; the order of contraction is always optimised.

    Raises `ShapeError` where lengths differ, `ArgumentError` for subscripts that make no sense.

    >>> import functad as fd
    >>> fd.ops.einsum("ij,ij->i", [[1, 2], [3, 4]], [[1, 1], [1, 1]]).tolist()
    [3, 7]
    """
    if not isinstance(subscripts, str):
        subscripts, xs = _from_lists((subscripts, *xs))
    if any(isinstance(x, QuantTensor) for x in xs):
        other = next((x for x in xs if not isinstance(x, QuantTensor)), None)
        xs = tuple([dense(x, other) for x in xs])
    if not xs:
        raise ArgumentError(
            "einsum: there are no operands; write them after the subscripts: einsum('ij,jk->ik', x, y)."
        )
    tensors = list(operands("einsum", "numeric", xs))
    plan = _plan(subscripts, tuple([x._shape for x in tensors]))
    if plan.direct:
        return bind(contract_op, tensors, (plan.direct,))
    dtype = tensors[0]._dtype
    if len(tensors) > 2 and dtypes.is_half(dtype):  # round once, not after each pair
        tensors = [bind(cast_op, (x,), (dtypes.float32,)) for x in tensors]
    simple = [simplified(x, term, plan.sizes) for x, term in zip(tensors, plan.terms, strict=True)]
    terms = [term for _, term in simple]
    left = [summed(x, term, "".join([plan.out, *terms[:i], *terms[i + 1 :]])) for i, (x, term) in enumerate(simple)]
    for first, second in _order(tuple([t for _, t in left]), plan.out, tuple([x._shape for x, _ in left])):
        (y, y_term), (x, x_term) = left.pop(second), left.pop(first)
        needed = "".join([plan.out, *[t for _, t in left]])
        made = "".join([i for i in dict.fromkeys(x_term + y_term) if i in needed]) if left else plan.out
        left.append((bind(contract_op, (x, y), (f"{x_term},{y_term}->{made}",)), made))
    ((result, term),) = left
    result = transpose(result, [term.index(i) for i in plan.out])
    return result if result._dtype == dtype else bind(cast_op, (result,), (dtype,))


def einsum_path(subscripts: Any, *xs: Any, optimize: Any = "greedy") -> tuple[list[Any], str]:
    """NumPy's order of contraction for an `einsum`, and what it says of the cost; only shapes are looked at.

    Args:
        subscripts: those of `einsum`, in both forms.
        xs: the operands.
        optimize: "greedy", "optimal", or these in a pair with the most elements of an intermediate result;
            True for "greedy" and False for no order.

    `einsum` finds an order itself.

    >>> import functad as fd
    >>> fd.ops.einsum_path("ij,jk,kl->il", fd.ones((2, 9)), fd.ones((9, 9)), fd.ones((9, 2)))[0]
    ['einsum_path', (0, 1), (0, 1)]
    """
    if not isinstance(subscripts, str):
        subscripts, xs = _from_lists((subscripts, *xs))
    tensors = list(operands("einsum_path", "numeric", [dense(x, None) for x in xs]))
    _plan(subscripts, tuple([x._shape for x in tensors]))
    blanks = [np.broadcast_to(np.float32(0), x._shape) for x in tensors]
    try:
        path, told = np.einsum_path(subscripts, *blanks, optimize=optimize)
    except (KeyError, TypeError) as error:
        raise ArgumentError(f"einsum_path: optimize must be 'greedy' or 'optimal', got {optimize!r}.") from error
    return path, told


class _Plan(NamedTuple):
    """The subscripts read."""

    terms: tuple[str, ...]
    out: str
    sizes: dict[str, int]
    direct: str | None  # the contraction that does it all, if one does


@lru_cache(1024)
def _plan(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> _Plan:
    terms, out = _parse(subscripts, shapes)
    sizes = lengths(terms, shapes)
    direct = len(terms) == 2 and all(
        term.count(i) == 1 and i in other + out and n == sizes[i]
        for term, other, shape in zip(terms, terms[::-1], shapes, strict=True)
        for i, n in zip(term, shape, strict=True)
    )
    return _Plan(terms, out, sizes, f"{terms[0]},{terms[1]}->{out}" if direct else None)


def _parse(subscripts: str, shapes: tuple[tuple[int, ...], ...]) -> tuple[tuple[str, ...], str]:
    """The terms of the operands and of the result, with letters in the place of "..."."""
    inputs, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = inputs.split(",")
    if len(terms) != len(shapes):
        count, given = f"{len(terms)} term{'s' * (len(terms) != 1)}", f"{len(shapes)} operand{'s' * (len(shapes) != 1)}"
        raise ArgumentError(
            f"einsum: the subscripts {subscripts!r} have {count}, and {given} {'was' if len(shapes) == 1 else 'were'} given; "
            "write one term for each operand, with commas between them, as in einsum('ij,jk->ik', x, y)."
        )
    spare = "".join([c for c in ascii_letters if c not in subscripts])
    hidden = [_hidden(subscripts, i, term, shape) for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))]
    stack = spare[: max(hidden)]
    parsed = tuple([t.replace("...", stack[len(stack) - n :]) for t, n in zip(terms, hidden, strict=True)])
    if not arrow:
        letters = "".join(terms).replace(".", "")
        return parsed, stack + "".join(sorted([c for c in set(letters) if letters.count(c) == 1]))
    named = _checked(subscripts, result)
    for c in named:
        if named.count(c) > 1 or not any(c in t for t in terms):
            fault = "stands twice in it" if named.count(c) > 1 else "stands for no axis of an operand"
            raise ArgumentError(
                f"einsum: the result of {subscripts!r} cannot have {c!r}, which {fault}; each letter of the result is that "
                "of an axis of the operands, and stands there once."
            )
    if stack and "..." not in result:
        raise ArgumentError(
            f"einsum: the '...' of {subscripts!r} stands for {len(stack)} {'axis' if len(stack) == 1 else 'axes'}, and the result "
            "has no '...'; write it there too, or sum over these axes first."
        )
    return parsed, result.replace("...", stack)


def _hidden(subscripts: str, number: int, term: str, shape: tuple[int, ...]) -> int:
    """How many axes "..." stands for in a term."""
    named = len(_checked(subscripts, term))
    if named > len(shape) or (named < len(shape) and "..." not in term):
        raise ShapeError(
            f"einsum: the term {term!r} of {subscripts!r} has {named} letter{'s' * (named != 1)}, and operand {number} has "
            f"{len(shape)} {'axis' if len(shape) == 1 else 'axes'} (shape {shape}); write one letter for each axis, or '...' for "
            "those that only broadcast."
        )
    return len(shape) - named


def _checked(subscripts: str, term: str) -> str:
    """The letters of a term."""
    letters = term.replace("...", "", 1)
    if not all(c in ascii_letters for c in letters):
        raise ArgumentError(
            f"einsum: the term {term!r} of {subscripts!r} may hold letters and one '...', and nothing else such as "
            f"{next(c for c in letters if c not in ascii_letters)!r}."
        )
    return letters


def _from_lists(args: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The form operand, list, operand, list, ..., with the list of the result at the end."""
    names = ascii_uppercase + ascii_lowercase  # in the order that sorts

    def term(entries: Any) -> str:
        try:
            return "".join(["..." if e is Ellipsis else names[e] for e in entries])
        except (TypeError, IndexError):
            raise ArgumentError(
                f"einsum: expected subscripts such as 'ij,jk->ik', or after each operand a list of ints below "
                f"{len(names)}; got {entries!r}."
            ) from None

    paired = len(args) - len(args) % 2
    subscripts = ",".join([term(entries) for entries in args[1:paired:2]])
    return (subscripts if paired == len(args) else f"{subscripts}->{term(args[-1])}"), tuple(args[:paired:2])


@lru_cache(1024)
def _order(terms: tuple[str, ...], out: str, shapes: tuple[tuple[int, ...], ...]) -> list[tuple[int, int]]:
    """Which two operands to contract next; what they make goes to the end of the list."""
    count = len(shapes)
    if count < 3:
        return [(0, 1)] * (count - 1)
    search = "optimal" if count <= _MOST_EXHAUSTIVE else "greedy"
    blanks = [np.broadcast_to(np.float32(0), shape) for shape in shapes]
    pairs = []
    for step in np.einsum_path(f"{','.join(terms)}->{out}", *blanks, optimize=(search, 2**62))[0][1:]:
        group = sorted(step)
        while len(group) > 1:
            pairs.append((group[0], group[1]))
            count -= 1
            group = [*[i - 2 for i in group[2:]], count - 1]
    return pairs
