"""Gradients by parameter: what an optimiser takes, whatever route they came by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from functad import dtypes, ops, tree
from functad.dispatch import Handle
from functad.errors import (
    ArgumentTypeError,
    FunctadWarning,
    NoGradientError,
    ShapeError,
    StructureError,
)
from functad.gradients import Gradients
from functad.habits import NoArithmetic
from functad.keywords import explain_methods, explained
from functad.module import Module
from functad.module.layout import Found, walk, walk_tree
from functad.ops.operand import operand
from functad.ops.rules import widen
from functad.param import Param, ParamId
from functad.source import warn
from functad.tensor import Tensor

_MOST_NAMED = 6


class MissingGradientsWarning(FunctadWarning):
    """Parameters that are to be trained and have no gradient."""


class GradientsParams(NoArithmetic):
    """The gradients of a Module's parameters, by `ParamId`.

    >>> import functad as fd
    >>> model = fd.nn.Linear(2, 1, device=fd.Device.cpu().autodiff())
    >>> grads = fd.optim.GradientsParams.from_grads(model(fd.ones((3, 2))).sum().backward(), model)
    >>> len(grads), grads[model.bias].tolist()
    (2, [3.0])
    """

    __slots__ = ("_gradients",)
    _instead = (
        "it is looked up by Param. grads.map(lambda g: 0.5 * g) scales it, fd.optim.GradientsAccumulator() sums several, and "
        "grads.tree(model) has them as a pytree"
    )

    def __init__(self, gradients: Mapping[ParamId, Tensor] | None = None):
        self._gradients: dict[ParamId, Tensor] = dict(gradients or {})

    @classmethod
    def from_grads(cls, grads: Any, model: Any) -> GradientsParams:
        """Those of a `Gradients`, or of a pytree that `fd.grad` made, for the parameters of a Module (or of a pytree of some).

        Warns (`MissingGradientsWarning`) of parameters that require grad and have no gradient, and says why;
        `len()` counts those that have one. Frozen parameters are left out.
        """
        if not isinstance(model, Module):
            _check_model(model)
        if isinstance(grads, GradientsParams):
            return grads
        if isinstance(grads, Gradients):
            found, missing = _of_backward(grads, model)
        else:
            found, missing = _of_tree(grads, model)
        warn_of_missing(missing)
        return cls(found)

    def get(self, param: Param | ParamId) -> Tensor | None:
        """The gradient of a parameter, or None.

        >>> import functad as fd
        >>> fc = fd.nn.Linear(2, 1)
        >>> grads = fd.optim.GradientsParams.from_grads(fd.grad(lambda m: m(fd.ones(2)).sum())(fc), fc)
        >>> grads.get(fc.bias).tolist(), grads.get(fc.weight.id).tolist(), grads.get(fd.nn.Linear(2, 1).bias)
        ([1.0], [[1.0, 1.0]], None)
        """
        return self._gradients.get(param.id if isinstance(param, Param) else param)

    def items(self) -> Iterator[tuple[ParamId, Tensor]]:
        """Ids and gradients.

        >>> import functad as fd
        >>> fc = fd.nn.Linear(2, 1)
        >>> grads = fd.optim.GradientsParams.from_grads(fd.grad(lambda m: m(fd.ones(2)).sum())(fc), fc)
        >>> [id == fc.weight.id for id, g in grads.items()]
        [True, False]
        """
        return iter(self._gradients.items())

    def map(self, fn: Callable[[Tensor], Any]) -> GradientsParams:
        """With `fn` applied to every gradient.

        >>> import functad as fd
        >>> fc = fd.nn.Linear(2, 1)
        >>> grads = fd.optim.GradientsParams.from_grads(fd.grad(lambda m: m(fd.ones(2)).sum())(fc), fc)
        >>> grads.map(lambda g: g * 0.5)[fc.bias].tolist()
        [0.5]
        """
        return GradientsParams({id: fn(g) for id, g in self._gradients.items()})

    def tree(self, model: Module) -> Any:
        """The gradients in the structure of `model`, None where there is none.

        >>> import functad as fd
        >>> fc = fd.nn.Linear(2, 1)
        >>> grads = fd.optim.GradientsParams.from_grads(fd.grad(lambda m: m(fd.ones(2)).sum())(fc), fc)
        >>> grads.tree(fc).weight.tolist()
        [[1.0, 1.0]]
        """
        return tree.map(lambda p: self.get(p) if isinstance(p, Param) else None, model)

    def remove(self, param: Param | ParamId) -> Tensor | None:
        """Take the gradient of a parameter out; None if there is none.

        >>> import functad as fd
        >>> fc = fd.nn.Linear(2, 1)
        >>> grads = fd.optim.GradientsParams.from_grads(fd.grad(lambda m: m(fd.ones(2)).sum())(fc), fc)
        >>> grads.remove(fc.bias).tolist(), len(grads)
        ([1.0], 1)
        """
        return self._gradients.pop(param.id if isinstance(param, Param) else param, None)

    def __getitem__(self, param: Param | ParamId) -> Tensor:
        g = self.get(param)
        if g is None:
            raise NoGradientError(f"no gradient for the parameter {param!r}; there are {len(self)} others.")
        return g

    def __contains__(self, param: object) -> bool:
        return isinstance(param, (Param, ParamId)) and self.get(param) is not None

    def __iter__(self) -> Iterator[ParamId]:
        return iter(self._gradients)

    def __len__(self) -> int:
        return len(self._gradients)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{g.dtype}{list(g.shape)}" for g in self._gradients.values())
        return f"GradientsParams({len(self)}: {shapes})"


def _check_model(model: Any) -> None:
    """Raise unless what is to be trained of a pytree are Params."""
    found = list(walk_tree(model))
    loose = [x.path for x in found if x.mark is None and is_trained(x)]
    if not any(x.mark is not None or x.owners for x in found):
        raise ArgumentTypeError(
            f"from_grads: the second argument must be a Module, or a pytree with some, got {type(model).__name__}."
        )
    if loose:
        raise ArgumentTypeError(
            f"from_grads: gradients are kept by ParamId here, and {', '.join(map(repr, loose[:4]))} of the model "
            f"{'is' if len(loose) == 1 else 'are'} no Param: make it one, fd.Param(x). Or use the gradients as they are, which "
            "opt.step takes; fd.tree.map(lambda a, b: a + b, total, grads.tree(model)) sums those of a pytree."
        )


def _of_backward(grads: Gradients, model: Any) -> tuple[dict[ParamId, Tensor], dict[str, str]]:
    """The gradients a backward found, and why others are missing."""
    found: dict[ParamId, Tensor] = {}
    missing: dict[str, str] = {}
    nodes: dict[ParamId, set[int]] = {}
    for x in walk_tree(model):
        if x.mark is None or x.mark.frozen or not isinstance(x.value, Param):
            continue
        id = x.mark.id
        g = grads.get(x.value)
        node = _node(x.value)
        if g is None:
            if id not in found:
                missing.setdefault(x.path, str(grads.explain(x.value)))
        elif id not in found:
            found[id], nodes[id] = g, {node}
        elif node not in nodes[id]:  # a shared parameter whose places became leaves of their own
            found[id] = _sum(found[id], g)
            nodes[id].add(node)
    return found, missing


def is_trained(x: Found) -> bool:
    """Whether optimisers train a tensor of a pytree: within a Module its Params, elsewhere every float; nothing frozen."""
    if x.owners and x.mark is None:
        return False
    if x.mark is not None and x.mark.frozen:
        return False
    return (hasattr(x.value, "dtype") and dtypes.is_inexact(np.dtype(x.value.dtype))) or isinstance(x.value, float)


def summed(found: list[Any], leaves: list[Any], shared: list[tuple[int, int]]) -> list[Any]:
    """The gradients of leaves, those at later places of a shared parameter added to the first if they are leaves of their own."""
    found = list(found)
    nodes: dict[int, set[int]] = {}
    for later, first in shared:
        met = nodes.setdefault(first, {_node(leaves[first])})
        g = found[later]
        if g is not None and _node(leaves[later]) not in met:
            found[first] = g if found[first] is None else _sum(found[first], g)
        met.add(_node(leaves[later]))
    return found


def _node(x: Any) -> int:
    number: int = getattr(x._context, "id", -1)
    return number


def _of_tree(grads: Any, model: Any) -> tuple[dict[ParamId, Tensor], dict[str, str]]:
    found: dict[ParamId, Tensor] = {}
    missing: dict[str, str] = {}
    leaves, structure = tree.flatten(model)
    for x, g, path in zip(
        leaves, aligned(grads, leaves, structure, "from_grads"), tree.paths_of(structure), strict=True
    ):
        if not isinstance(x, Param) or x.is_frozen or x.id in found:
            continue
        if g is None:
            missing[path.removeprefix(".")] = "there is None in its place"
        else:
            found[x.id] = g
    return found, missing


def warn_of_missing(missing: Mapping[str, str]) -> None:
    """Name the parameters that got no gradient, and say why."""
    if missing:
        lines = [f"{path}: {why}" for path, why in list(missing.items())[:_MOST_NAMED]]
        if len(missing) > _MOST_NAMED:
            lines.append(f"... and {len(missing) - _MOST_NAMED} more")
        warn(f"{len(missing)} parameter(s) got no gradient:\n  " + "\n  ".join(lines), MissingGradientsWarning)


def _sum(total: Any, g: Any) -> Any:
    if dtypes.is_half(total.dtype) or dtypes.is_half(g.dtype):
        total, g = total.astype("float32"), g.astype("float32")
    return total + g


class GradientsAccumulator:
    """The sum of the gradients of several backwards, for steps on batches that do not fit at once.

    >>> import functad as fd
    >>> model = fd.nn.Linear(2, 1, device=fd.Device.cpu().autodiff())
    >>> total = fd.optim.GradientsAccumulator()
    >>> for part in (fd.ones((3, 2)), fd.ones((1, 2))):
    ...     total.accumulate(model, model(part).sum().backward())
    >>> total.count, total.grads()[model.bias].tolist(), total.count
    (2, [4.0], 0)
    """

    def __init__(self) -> None:
        self._sums: dict[ParamId, Tensor] = {}
        self._dtypes: dict[ParamId, Any] = {}
        self.count = 0
        """How many backwards are in the sum."""

    def accumulate(self, model: Any, grads: Any) -> None:
        """Add the gradients of a backward (`Gradients`), a `GradientsParams`, or a pytree of `fd.grad`.

        Half types are summed in float32.
        """
        if isinstance(model, (Gradients, GradientsParams)):
            raise ArgumentTypeError("accumulate: pass the model first: accumulate(model, grads).")
        for id, g in GradientsParams.from_grads(grads, model).items():
            old = self._sums.get(id)
            if old is not None and old.shape != g.shape:
                raise ShapeError(f"accumulate: a gradient of shape {g.shape} where the sum so far has {old.shape}.")
            self._dtypes[id] = g.dtype
            self._sums[id] = g if old is None else _sum(old, g)
        self.count += 1

    def grads(self, mean: bool = False) -> GradientsParams:
        """The sum (or the mean over the backwards), after which the accumulator is empty again."""
        factor = 1 / self.count if mean and self.count else None
        out = {}
        for id, g in self._sums.items():
            total = g if factor is None else g * factor
            out[id] = total.astype(self._dtypes[id])
        self._sums, self._dtypes, self.count = {}, {}, 0
        return GradientsParams(out)

    def __len__(self) -> int:
        return len(self._sums)


_init: Any = GradientsAccumulator.__init__
_init.__name__ = "GradientsAccumulator"  # what a refusal of an argument speaks of
GradientsAccumulator.__init__ = explained(_init)  # type: ignore[method-assign]
explain_methods(GradientsAccumulator)


def global_norm(grads: Any) -> Tensor:
    """The norm of all gradients as one vector: of a `Gradients`, a `GradientsParams`, or a pytree; shared ones once.

    Of a Module those of its Params: what `clip_by_norm` clips.

    >>> import functad as fd
    >>> fd.optim.global_norm([fd.tensor([3.0, 0.0]), fd.tensor(4.0)]).item()
    5.0
    """
    if isinstance(grads, Gradients):
        found: list[Any] = list(grads._gradients.values())
    elif isinstance(grads, GradientsParams):
        found = [g for _, g in grads.items()]
    else:
        once = {
            object() if x.mark is None else x.mark.id: x for x in walk_tree(grads) if x.mark is not None or not x.owners
        }
        found = [operand(x.value, where="global_norm") for x in once.values()]
    found = [widen(g) for g in found if dtypes.is_inexact(g.dtype)]
    if not found:
        raise ArgumentTypeError(f"global_norm: there is no gradient in {grads!r}.")
    return ops.norm(ops.stack([ops.norm(g) for g in found]))


def aligned(grads: Any, leaves: list[Any], structure: Any, where: str) -> list[Any]:
    """The gradient of each leaf of a pytree of parameters, None where there is none."""
    if isinstance(grads, Gradients):
        if grads._level[1] == 1 and all(x._backend.level == grads._level for x in leaves if isinstance(x, Handle)):
            by_leaf = grads._gradients
            return [by_leaf.get(x._context.id) if isinstance(x, Handle) else None for x in leaves]
        return [grads.get(x) if isinstance(x, Handle) else None for x in leaves]  # type: ignore[arg-type]
    if isinstance(grads, Handle) and not (len(leaves) == 1 and leaves[0] is not None and structure.num_nodes == 1):
        raise ArgumentTypeError(
            f"{where}: grads is a tensor of shape {grads.shape}; if it is the loss, pass its gradients: "
            "opt.step(model, loss.backward(), state)."
        )
    if isinstance(grads, GradientsParams):
        found = grads._gradients
        return [found.get(x.mark.id) if type(x) is Param else None for x in leaves]
    try:
        return tree.up_to(structure, grads, where)
    except StructureError as error:
        if isinstance(grads, Module):  # that of a model in another mode, say: its Params say whose gradients they are
            found = {x.mark.id: x.value for x in walk(grads) if x.mark is not None}
            if any(type(x) is Param and x.mark.id in found for x in leaves):
                return [found.get(x.mark.id) if type(x) is Param else None for x in leaves]
        raise StructureError(
            f"{error} Pass what loss.backward() or fd.grad(...) of these parameters returned."
        ) from None


def explain(grads: Any, x: Any) -> str:
    """Why a leaf has no gradient."""
    if isinstance(grads, Gradients) and isinstance(x, Handle):
        return str(grads.explain(x))  # type: ignore[arg-type]  # a Tensor
    if isinstance(grads, Gradients):
        return f"it is a {type(x).__name__}. Make it a tensor that requires grad, or keep it out of what is trained."
    return "there is none among those passed"
