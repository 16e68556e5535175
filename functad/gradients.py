"""Gradients: the container every route to a derivative fills, and why a gradient is absent."""

from __future__ import annotations

import enum
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from functad import tree
from functad.dispatch import Handle, bind
from functad.errors import (
    ArgumentTypeError,
    DTypeError,
    IntermediateGradientWarning,
    NoGradientError,
    ShapeError,
    UnknownAttributeError,
)
from functad.habits import NoArithmetic
from functad.levels import Level
from functad.ops.rules import depend_op
from functad.source import warn
from functad.tape import AnyNode, Cut, Leaf, Origin, Requirement, Swept, depends_on

if TYPE_CHECKING:
    from functad.tensor import Tensor


class Reason(enum.Enum):
    """Why a gradient is absent, or that it is present: what `Gradients.explain` finds.

    >>> import functad as fd
    >>> w = fd.tensor([1.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> x = fd.tensor([2.0], device=w.device)
    >>> (w * x).sum().backward().explain(x).reason is fd.Reason.NOT_REQUIRE_GRAD
    True
    """

    NOT_AUTODIFF_DEVICE = "not_autodiff_device"
    NOT_REQUIRE_GRAD = "not_require_grad"
    INTERMEDIATE = "intermediate"
    REQUIRED_TOO_LATE = "required_too_late"
    NOT_REACHED = "not_reached"
    CUT_BY_DETACH = "cut_by_detach"
    CUT_BY_INT_CAST = "cut_by_int_cast"
    REMOVED = "removed"
    OTHER_GRADIENTS = "other_gradients"
    PRESENT = "present"


_TEXT = {
    Reason.NOT_AUTODIFF_DEVICE: (
        "the tensor is not on an autodiff device, so nothing done with it was recorded",
        "make it with device=dev.autodiff(), or write x = x.autodiff().require_grad() before using it",
    ),
    Reason.NOT_REQUIRE_GRAD: (
        "the tensor is on an autodiff device but does not require grad",
        "write x = x.require_grad() before using it",
    ),
    Reason.INTERMEDIATE: (
        "the tensor is an intermediate: its gradient passed through and was not kept",
        "call x.retain_grad() before backward(), or make it a leaf with x.detach().require_grad()",
    ),
    Reason.REQUIRED_TOO_LATE: (
        "the tensor was used in the forward computation before require_grad() was called on it",
        "call require_grad() right after making the tensor, and compute with the handle it returns",
    ),
    Reason.NOT_REACHED: (
        "backward did not reach the tensor: the differentiated output does not depend on it",
        (
            "use the tensor in the loss; if it should be there, look for without_autodiff(), a plain copy, "
            "or a detach() or integer within a jitted function or a scan on the way"
        ),
    ),
    Reason.CUT_BY_DETACH: (
        "every path from it to the output passes through detach(), stop_gradient(), no_grad() or a new leaf (of Module.astype)",
        "leave that out (fd.tree.map casts a Module on the tape), or ask for the gradient of the handle it returned",
    ),
    Reason.CUT_BY_INT_CAST: (
        "every path from the tensor to the output passes through an integer or boolean result, which has no derivative",
        "keep the computation in floats, or use a smooth surrogate for the rounding, comparison or index",
    ),
    Reason.REMOVED: (
        "the gradient was taken out of this container by grad_remove()",
        "keep the tensor that grad_remove() returned, or use x.grad(grads), which leaves it in place",
    ),
    Reason.OTHER_GRADIENTS: (
        "this backward did not reach the tensor, but another Gradients that is still alive holds its gradient",
        "look it up in that container, or add the losses and call backward() once",
    ),
    Reason.PRESENT: ("the gradient is here", "read it with grads[x] or x.grad(grads)"),
}


@dataclass(frozen=True)
class GradientReport:
    """Why `grads` has or lacks the gradient of a tensor, and what to do about it: what `Gradients.explain` returns.

    >>> import functad as fd
    >>> w = fd.tensor([1.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> print((w * 2).sum().backward().explain(w))
    PRESENT: the gradient is here. Read it with grads[x] or x.grad(grads).
    """

    reason: Reason
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.reason.name}: {self.message}. {self.hint[0].upper()}{self.hint[1:]}."


_living: set[weakref.ref[Gradients]] = set()
"""Every container there is, for `explain` to look in."""


class Gradients(NoArithmetic):
    """The gradients of one backward, by tensor.

    Made by `loss.backward()`. Its tensors live one level below the tape, on the inner device.

    >>> import functad as fd
    >>> w = fd.tensor([3.0, 4.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> grads = (w * w).sum().backward()
    >>> grads[w].tolist(), w in grads, len(grads)
    ([6.0, 8.0], True, 1)
    """

    __slots__ = ("__weakref__", "_gradients", "_level", "_origins", "_removed")
    _instead = (
        "it is looked up by tensor. g = grads.tree(model) has them as a pytree, fd.tree.map(lambda g: 0.5 * g, g) scales "
        "those, fd.tree.map(lambda a, b: a + b, g, h) sums them (fd.optim.GradientsAccumulator() over batches), and "
        "opt.step(model, g, state) takes them"
    )

    def __init__(self, level: Level, gradients: dict[int, Tensor], origins: Iterable[Iterable[Origin]]):
        self._level = level
        self._gradients = gradients
        self._origins = origins
        self._removed: set[int] = set()

    @staticmethod
    def of(level: Level, swept: Swept) -> Gradients:
        """The container of a sweep."""
        grads = Gradients(level, swept.gradients, swept.origins)
        _living.add(weakref.ref(grads, _living.discard))
        return grads

    def get(self, x: Tensor) -> Tensor | None:
        """The gradient of `x`, or None; `explain(x)` tells why there is none. `grads[x]` raises `NoGradientError` instead.

        >>> import functad as fd
        >>> w = fd.ones(2, device=fd.Device.cpu().autodiff()).require_grad()
        >>> grads = w.sum().backward()
        >>> grads.get(w).tolist(), grads.get(fd.ones(2))
        ([1.0, 1.0], None)
        """
        level = self._level
        node = x._context if isinstance(x, Handle) and x._backend.level == level else self._node(x)
        if node is None or (node.requirement is not Requirement.GRAD and not _wanted(node)):
            return None
        g = self._gradients.get(node.id)
        if g is not None and level[1] > 1:  # order 2: tracked with respect to x, even where it is constant in x
            g = bind(depend_op, (g, _at_level(x, level)._value))
        return g

    def _read(self, x: Tensor) -> Tensor | None:
        """`x.grad(grads)`: what `get` returns; None for an intermediate is seldom meant, and warned of."""
        g = self.get(x)
        if g is None and self._reason(x) is Reason.INTERMEDIATE:
            warn(
                f"x.grad(grads) is None, as x of shape {x.shape} is an intermediate, computed from what requires grad: backward "
                "passed its gradient on. To train it in a loop make each new value a leaf: w = (w.inner() - rate * "
                "g).autodiff().require_grad(). To keep the gradient of an intermediate call x.retain_grad() before "
                "backward(). (grads.get(x) asks without a warning.)",
                IntermediateGradientWarning,
            )
        return g

    def remove(self, x: Tensor) -> Tensor | None:
        """Take the gradient of `x` out of the container; None if there is none.

        >>> import functad as fd
        >>> w = fd.ones(2, device=fd.Device.cpu().autodiff()).require_grad()
        >>> grads = w.sum().backward()
        >>> grads.remove(w).tolist(), len(grads)
        ([1.0, 1.0], 0)
        """
        g = self.get(x)
        if g is not None:
            node = self._node(x)
            assert node is not None
            del self._gradients[node.id]
            self._removed.add(node.id)
        return g

    def replace(self, x: Tensor, g: Tensor) -> None:
        """Put `g` in the place of the gradient of `x`.

        Raises `NoGradientError` where there is none, `ShapeError` and `DTypeError` for a `g` of another type than `x`.

        >>> import functad as fd
        >>> w = fd.ones(2, device=fd.Device.cpu().autodiff()).require_grad()
        >>> grads = w.sum().backward()
        >>> grads.replace(w, grads[w] * 0.5)
        >>> grads[w].tolist()
        [0.5, 0.5]
        """
        if self.get(x) is None:
            raise NoGradientError(f"grad_replace: there is no gradient to replace. {self.explain(x)}", self.explain(x))
        if not isinstance(g, Handle):
            raise ArgumentTypeError(f"grad_replace: the new gradient must be a Tensor, got {type(g).__name__}.")
        if g.shape != x.shape or g.dtype != x.dtype:
            kind = ShapeError if g.shape != x.shape else DTypeError
            raise kind(
                f"grad_replace: the new gradient is {g.dtype}{list(g.shape)} where the tensor is "
                f"{x.dtype}{list(x.shape)}; a gradient has the type of its tensor."
            )
        node = self._node(x)
        assert node is not None
        self._gradients[node.id] = g

    def tree(self, params: Any) -> Any:
        """The gradients of a pytree of tensors in its structure, None where there is none.

        Those of intermediates are None, as only leaves' are kept: call `x.retain_grad()` on one before
        backward. `explain(x)` says why one is missing.

        >>> import functad as fd
        >>> w, b = fd.tensor([3.0, 4.0]).autodiff().require_grad(), fd.tensor(1.0).autodiff()
        >>> grads = (w.sum() + b).backward()
        >>> grads.tree({"b": b, "w": w})["w"].tolist(), grads.tree({"b": b, "w": w})["b"]
        ([1.0, 1.0], None)
        """
        return tree.map(lambda x: self.get(x) if isinstance(x, Handle) else None, params)  # type: ignore[arg-type]  # Tensors

    def explain(self, x: Tensor) -> GradientReport:
        """Whether the gradient of `x` is here, else which of nine reasons keeps it away.

        >>> import functad as fd
        >>> x = fd.tensor([1.0, 2.0], device=fd.Device.cpu().autodiff()).require_grad()
        >>> grads = (x.detach() * 2).sum().backward()
        >>> grads.explain(x).reason.name
        'CUT_BY_DETACH'
        """
        reason = self._reason(x)
        message, hint = _TEXT[reason]
        if reason is Reason.PRESENT and self._met(self._node(x)) is Reason.REQUIRED_TOO_LATE:
            message += ", but it lacks the part from uses of the tensor before require_grad() was called on it"
            hint = _TEXT[Reason.REQUIRED_TOO_LATE][1]
        return GradientReport(reason, message, hint)

    def _reason(self, x: Tensor) -> Reason:
        node = self._node(x)
        if node is None:
            return Reason.NOT_AUTODIFF_DEVICE
        if node.requirement is Requirement.NONE:
            return Reason.NOT_REQUIRE_GRAD
        if node.id in self._gradients and _wanted(node):
            return Reason.PRESENT
        if node.id in self._removed:
            return Reason.REMOVED
        if not isinstance(node, Leaf):
            return Reason.INTERMEDIATE  # if it is retained, then since after this backward
        met = self._met(node)
        if met is not None:
            return met
        living = [other for ref in tuple(_living) if (other := ref()) is not None and other._level == self._level]
        others = any(node.id in other._gradients for other in living)
        return Reason.OTHER_GRADIENTS if others else Reason.NOT_REACHED

    def _met(self, node: AnyNode | None) -> Reason | None:
        """Whether backward met a constant that `node` became."""
        if type(node) is not Leaf:
            return None
        for origins in self._origins:
            for origin in origins:
                if origin == node.id:
                    return Reason.REQUIRED_TOO_LATE
                if isinstance(origin, Cut) and depends_on(origin.leaves, node.id):
                    return Reason.CUT_BY_DETACH if origin.kind == "detach" else Reason.CUT_BY_INT_CAST
        return None

    def _node(self, x: Tensor) -> AnyNode | None:
        """The node of `x` on the tape these gradients come from."""
        if not isinstance(x, Handle):
            raise ArgumentTypeError(f"Gradients: expected a Tensor, got {type(x).__name__}.")
        x = _at_level(x, self._level)
        return None if x is None else x._context

    def __getitem__(self, x: Tensor) -> Tensor:
        g = self.get(x)
        if g is None:
            report = self.explain(x)
            raise NoGradientError(f"no gradient for this tensor of shape {x.shape}. {report}", report)
        return g

    def __contains__(self, x: object) -> bool:
        return isinstance(x, Handle) and self.get(x) is not None  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._gradients)

    def __iter__(self) -> Iterator[Tensor]:
        raise ArgumentTypeError(
            "Gradients is looked up by tensor, not iterated: write grads[w], w.grad(grads) or grads.tree(params)."
        )

    if not TYPE_CHECKING:  # type checkers are to see that the name is missing

        def __getattr__(self, name):
            raise UnknownAttributeError(
                f"Gradients has no attribute {name!r}: it is looked up by tensor. Write grads[model.weight], "
                "w.grad(grads), or grads.tree(model).weight for the gradients in the structure of a model."
            )

    def __repr__(self) -> str:
        shapes = ", ".join(f"{g.dtype}{list(g.shape)}" for g in self._gradients.values())
        return f"Gradients({len(self)}: {shapes})"


def _at_level(x: Any, level: Level) -> Any:
    """The tensor at `level` that `x` is or wraps."""
    while isinstance(x, Handle):
        if x._backend.level == level:
            return x
        x = x._value
    return None


def _wanted(node: AnyNode) -> bool:
    return node.requirement is Requirement.GRAD or (not isinstance(node, Leaf) and node.retained)
