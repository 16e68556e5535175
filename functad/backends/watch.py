"""The Watch interpreter: runs ops as ever, and remembers which of them made NaN or inf."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from functad.dispatch import base_tensor
from functad.dtypes import is_inexact
from functad.errors import NonFiniteError
from functad.levels import Level
from functad.ops.op import Op, Residuals
from functad.source import line_of, user_line
from functad.tape import Node, Swept, pulled
from functad.tensor import Tensor

_KINDS = ("finite", "inf", "NaN")
_OUTSIDE = "outside"
_FROM_OUTSIDE = " was given "


class Watch:
    """Takes every op on base tensors, after the tapes above have recorded it.

    A value is finite, or holds inf, or holds NaN. The op whose output is worse than its inputs made it so; what is
    computed from it inherits that. Nothing is said before such a value is read or is the gradient of a leaf: a
    branch that `where` does not take may be what it likes.
    """

    level: Level = (0, 1)
    is_tape = False
    fuses = False

    def __init__(self, below: Any, at_once: bool):
        self.below = below
        self.at_once = at_once
        self._made: dict[int, tuple[Any, int, str]] = {}  # by the id of a tensor: itself, how bad it is, who made it so
        self._node: Node | None = None  # whose derivative rule runs

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Run `op`, and note what it made."""
        program = getattr(op, "program", None)
        if program is not None and op.whole:
            return tuple(program.run(*inputs))  # its ops come by here, one by one
        out = inputs[0]._backend.run(op, inputs, params)
        for x in out if type(out) is tuple else (out,):
            self._note(op, inputs, x)
        return out

    def _note(self, op: Op, inputs: Sequence[Tensor], x: Tensor) -> None:
        kind = _kind_of(x)
        if not kind:
            return
        worst, origin = 0, _OUTSIDE
        for y in inputs:
            known = self._made.get(id(y))
            have = (known[1], known[2]) if known is not None and known[0]() is y else (_kind_of(y), _OUTSIDE)
            if have[0] > worst:
                worst, origin = have
        if worst >= kind:
            if origin is _OUTSIDE:
                origin = f"{self._where(op)}{_FROM_OUTSIDE}{_KINDS[worst]} already, among {_types(inputs)}"
        else:
            origin = f"{self._where(op)} made {_KINDS[kind]} of {_types(inputs)}"
            if worst:
                origin += f", which held {_KINDS[worst]} already"
        self._made[id(x)] = weakref.ref(x, partial(_forget, self._made, id(x))), kind, origin
        if self.at_once and kind > worst:
            raise _error(f"the output of {op.name}", kind, origin)

    def _where(self, op: Op) -> str:
        node = self._node
        if node is None:
            return f"{op.name} at {user_line()}"
        rule = "" if node.op is op else f" (its rule computes {op.name})"
        return f"the derivative of {node.op.name} at {line_of(node.where)}{rule}"

    def pull(self, node: Node, g: Any, res: Residuals) -> Sequence[Any]:
        """Run a derivative rule, op by op."""
        before, self._node = self._node, node
        try:
            return pulled(node, g, res)
        finally:
            self._node = before

    def swept(self, found: Swept) -> None:
        """Raise if a gradient is not finite."""
        for g in found.gradients.values():
            self.observe(g, f"the gradient of a leaf of shape {g.shape}")

    def observe(self, x: Any, what: str = "") -> None:
        """Raise if a value that is looked at is not finite because of an op."""
        x = base_tensor(x)
        known = self._made.get(id(x))
        if known is None or known[0]() is not x:
            return
        _, kind, origin = known
        if kind == 2 or _FROM_OUTSIDE not in origin:  # the inf of a mask is meant
            raise _error(what or f"a value of shape {x.shape} that is read here", kind, origin)


def _forget(made: dict[int, Any], number: int, gone: Any) -> None:
    if number in made and made[number][0] is gone:
        del made[number]


def _error(what: str, kind: int, origin: str) -> NonFiniteError:
    if _FROM_OUTSIDE in origin:
        return NonFiniteError(
            f"{what} holds {_KINDS[kind]}: {origin}. Look at the data and at the parameters, or begin debug_nans() where they "
            "are made."
        )
    return NonFiniteError(
        f"{what} holds {_KINDS[kind]}: {origin}. Keep its inputs where it is finite (x.clip(min=1e-6) before a log or a "
        "division, a smaller learning rate, clipped gradients), or put fd.where round the inputs as well."
    )


def _kind_of(x: Any) -> int:
    """0 for a finite value, 1 for one that holds inf, 2 for NaN."""
    if not is_inexact(x._dtype):
        return 0
    base = base_tensor(x)
    value = np.asarray(base._backend.host(base._value))
    if np.isfinite(value).all():
        return 0
    return 2 if np.isnan(value).any() else 1


def _types(inputs: Sequence[Any]) -> str:
    return " and ".join([_described(x) for x in inputs])


def _described(x: Any) -> str:
    text = f"{x.dtype}{list(x.shape)}"
    base = base_tensor(x)
    value = np.asarray(base._backend.host(base._value))
    if not value.size or value.dtype.kind in "cb":
        return text
    value = value[np.isfinite(value)] if is_inexact(value.dtype) else value
    return f"{text} from {value.min():.4g} to {value.max():.4g}" if value.size else text
