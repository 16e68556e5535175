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
_NAN = 2
_QUESTIONS = ("isnan", "isinf", "isfinite", "isposinf", "isneginf", "signbit")
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
        self._at: Any = None  # where an op of a compiled function was written, and of what it is a derivative, if it is

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Run `op`, and note what it made."""
        program = getattr(op, "program", None)
        if program is not None and op.whole:
            before = self._at
            try:
                return tuple(program.run(*inputs, at=self._go_to))  # its ops come by here, one by one
            finally:
                self._at = before
        out = inputs[0]._backend.run(op, inputs, params)
        for x in out if type(out) is tuple else (out,):
            self._note(op, inputs, x)
        return out

    def _go_to(self, place: Any) -> None:
        self._at = place

    def _note(self, op: Op, inputs: Sequence[Tensor], x: Tensor) -> None:
        known = self._made.get(id(x))
        if known is not None and known[0]() is x:  # by the ops that a function is made of
            return
        kind = _kind_of(x)
        if not kind:
            if not is_inexact(x._dtype) and not _asks(op, inputs):
                self._decided(inputs, x)
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
            origin = self._within(op, inputs) or f"{self._where(op)} made {_KINDS[kind]} of {_types(inputs)}"
            if worst:
                origin += f", which held {_KINDS[worst]} already"
        self._keep(x, kind, origin)
        if self.at_once and kind > worst:
            raise _error(f"the output of {op.name}", kind, origin)

    def _within(self, op: Op, inputs: Sequence[Tensor]) -> str | None:
        """Which op in a loop or a branch, which are compiled as a whole, was the first to make it so: run step by step."""
        stepped = getattr(op, "stepped", None)
        if stepped is None:
            return None
        base = base_tensor(inputs[0])._backend
        found: list[str] = []
        before = self._at

        def call(inner: Op, arrays: Sequence[Any], params: tuple[Any, ...]) -> Any:
            outs = base.call(inner, arrays, params)
            if not found:
                values = list(map(np.asarray, arrays))
                kind = max([_worst(np.asarray(x)) for x in (outs if type(outs) is tuple else (outs,))])
                if kind > max(map(_worst, values), default=0):
                    types = " and ".join([_ranged(f"{x.dtype}{list(x.shape)}", x) for x in values])
                    found.append(f"{self._where(inner)} made {_KINDS[kind]} of {types}")
            return outs

        try:
            stepped([np.asarray(base.host(base_tensor(x)._value)) for x in inputs], call, self._go_to)
        finally:
            self._at = before
        return f"{found[0]}, in {self._where(op)}" if found else None

    def _decided(self, inputs: Sequence[Tensor], x: Tensor) -> None:
        """Note a bool or an int that was got of NaN, by a comparison, say."""
        for y in inputs:
            known = self._made.get(id(y))
            if known is not None and known[0]() is y and known[1] == _NAN:
                self._keep(x, _NAN, known[2])

    def _keep(self, x: Tensor, kind: int, origin: str) -> None:
        self._made[id(x)] = weakref.ref(x, partial(_forget, self._made, id(x))), kind, origin

    def _where(self, op: Op) -> str:
        node = self._node
        if node is None:
            if self._at is not None:
                place, of = self._at
                return (
                    f"{op.name} at {line_of(place)}"
                    if of is None
                    else f"the derivative of {of} at {line_of(place)}{_by(of, op)}"
                )
            return f"{op.name} at {user_line()}"
        if self._at is not None and self._at[1] is not None:
            place, of = self._at
            return f"the derivative of {of} at {line_of(place)}{_by(of, op)}"
        return f"the derivative of {node.op.name} at {line_of(node.where)}{_by(node.op.name, op)}"

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
        if kind == _NAN and not is_inexact(x._dtype):
            raise _error(f"{what or 'what is read here'} was decided by a value that", kind, origin)
        if kind == _NAN or _FROM_OUTSIDE not in origin:  # the inf of a mask is meant
            raise _error(what or f"a value of shape {x.shape} that is read here", kind, origin)


def _forget(made: dict[int, Any], number: int, gone: Any) -> None:
    if number in made and made[number][0] is gone:
        del made[number]


def _by(of: str, op: Op) -> str:
    return "" if of == op.name else f" (its rule computes {op.name})"


def _asks(op: Op, inputs: Sequence[Tensor]) -> bool:
    """Whether an op is there to ask for NaN: isnan and the like, and x == x."""
    return op.name in _QUESTIONS or (op.name in ("equal", "not_equal") and inputs[0] is inputs[1])


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
    return _worst(np.asarray(base._backend.host(base._value)))


def _worst(value: np.ndarray[Any, Any]) -> int:
    if not is_inexact(value.dtype) or np.isfinite(value).all():
        return 0
    return 2 if np.isnan(value).any() else 1


def _types(inputs: Sequence[Any]) -> str:
    return " and ".join([_described(x) for x in inputs])


def _described(x: Any) -> str:
    base = base_tensor(x)
    return _ranged(f"{x.dtype}{list(x.shape)}", np.asarray(base._backend.host(base._value)))


def _ranged(text: str, value: np.ndarray[Any, Any]) -> str:
    if not value.size or value.dtype.kind in "cb":
        return text
    value = value[np.isfinite(value)] if is_inexact(value.dtype) else value
    return f"{text} from {value.min():.4g} to {value.max():.4g}" if value.size else text
