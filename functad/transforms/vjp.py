"""`vjp`: run a function once, and send cotangents back through it as often as wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from functad import tree
from functad.backends.autodiff import Autodiff
from functad.dispatch import base_backend
from functad.errors import ArgumentTypeError
from functad.keywords import explained
from functad.param import leaves_on
from functad.tape import AnyNode
from functad.transforms.arguments import (
    Blank,
    check_callable,
    leave,
    opened,
    outputs,
    split_aux,
    tensors,
    unflatten,
)


class Pullback:
    """The map from a cotangent of a function's output to those of its arguments.

    It holds the tape of the one run, and may be called many times. It is differentiable in the
    cotangent, and in the arguments by any tape that was open around the `vjp`.
    """

    __slots__ = ("_inputs", "_leaves", "_nodes", "_outputs", "_structure", "_structures")

    def __init__(
        self,
        leaves: Sequence[AnyNode | None],
        inputs: Sequence[Blank],
        structures: Sequence[tree.Structure],
        nodes: Sequence[AnyNode | None],
        outputs: Sequence[Blank],
        structure: tree.Structure,
    ):
        self._leaves = leaves
        self._inputs = inputs
        self._structures = structures
        self._nodes = nodes
        self._outputs = outputs
        self._structure = structure

    def __call__(self, *cotangent: Any) -> tuple[Any, ...]:
        """The cotangents of the arguments, one pytree for each; None for integer leaves.

        `cotangent` has the structure, shapes and dtypes of the output; whatever stands at an
        integer leaf is ignored.
        """
        if len(cotangent) != 1:
            form = (
                "pullback((g0, g1)) for an output that is a tuple" if cotangent else "pullback(1.0) for a scalar output"
            )
            raise ArgumentTypeError(
                f"vjp: the pullback takes one argument, the cotangent in the structure {tree.shown(self._structure)} of the "
                f"output, and got {len(cotangent)}; write {form}."
            )
        parts = tree.up_to(self._structure, cotangent[0], "vjp: the cotangent")
        seeds = {
            i: of.vector(part, partial(self._place, i))
            for i, (part, of) in enumerate(zip(parts, self._outputs, strict=True))
            if of.smooth
        }
        return tuple(unflatten(self._structures, self.pull(seeds)))

    def _place(self, i: int) -> str:
        return f"vjp: cotangent{tree.paths_of(self._structure)[i]}"

    def pull(self, seeds: dict[int, Any]) -> list[Any]:
        """The cotangents of all argument leaves, from those of some output leaves, by number."""
        known = [(node, g) for i, g in seeds.items() if (node := self._nodes[i]) is not None]
        found = base_backend(known[0][1]).sweep(known, [], False).gradients if known else {}
        return [
            None if not of.smooth else found[leaf.id] if leaf is not None and leaf.id in found else of.full(0)
            for leaf, of in zip(self._leaves, self._inputs, strict=True)
        ]

    def __repr__(self) -> str:
        types = ", ".join(f"{of.dtype}{list(of.shape)}" for of in self._outputs)
        return f"<pullback of {types}>"


@explained
def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """The value of `fn(*primals)`, and the function that pulls cotangents back to the primals.

    Args:
        fn: takes pytrees of tensors and returns one.
        primals: the arguments; integer leaves are allowed and have the cotangent None.
        has_aux: whether `fn` returns `(value, aux)`; the result is then `(value, pullback, aux)`.

    >>> import functad as fd
    >>> value, pullback = fd.vjp(lambda x, y: x * y, 2.0, 3.0)
    >>> value.item(), [g.item() for g in pullback(1.0)]
    (6.0, [3.0, 2.0])
    """
    out, structure, pullback, aux = trace_back("vjp", fn, primals, has_aux)
    value = tree.unflatten(structure, out)
    return (value, pullback, aux) if has_aux else (value, pullback)


def trace_back(
    where: str, fn: Callable[..., Any], primals: Sequence[Any], has_aux: bool
) -> tuple[list[Any], tree.Structure, Pullback, Any]:
    """The output's leaves, its structure, the pullback, and aux."""
    check_callable(fn, where)
    values, structures = tensors(primals, where, "argument {}")
    with opened(Autodiff) as tape:
        blanks = [Blank(x) for x in values]
        inputs = leaves_on(tape, values, [s.num_leaves for s in structures])
        out, aux = split_aux(fn(*unflatten(structures, inputs)), has_aux, where)
        results, structure = outputs(out, tape, where)
        if has_aux:
            aux = leave(tape, aux)
    pullback = Pullback(
        [x._context if of.smooth and x._backend is tape else None for x, of in zip(inputs, blanks, strict=True)],
        blanks,
        structures,
        [x._context if x._backend is tape and x._context.tracked else None for x in results],
        [Blank(x) for x in results],
        structure,
    )
    return [x._value if x._backend is tape else x for x in results], structure, pullback, aux
