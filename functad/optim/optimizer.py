"""`Optimizer`: an optax transformation that updates Modules and pytrees of tensors, in one compiled call."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from functad import dtypes, tree
from functad.creation import zeros_like
from functad.dispatch import tracing
from functad.errors import ArgumentError, ArgumentTypeError, StructureError, UnknownAttributeError
from functad.gradients import Gradients
from functad.hints import known_name
from functad.keywords import explained
from functad.optim.gradients import aligned, explain, summed, warn_of_missing
from functad.optim.plan import Context, Make, Plan, off_tape, raw
from functad.optim.state import Form, OptState, of_tree
from functad.param import Param, wrap

_MOST_KEPT = 64


class Optimizer:
    """A gradient transformation, ready for Modules and pytrees.

    Made by `fd.optim.adamw(1e-3)` and the like, or by `from_optax`. A step is one compiled call;
    another learning rate does not compile again.

    >>> import functad as fd
    >>> model = fd.nn.Linear(2, 1, device=fd.Device.cpu().autodiff())
    >>> opt = fd.optim.sgd(0.1)
    >>> state = opt.init(model)
    >>> loss = (model(fd.ones((3, 2))) ** 2).mean()
    >>> new, state = opt.step(model, loss.backward(), state)
    >>> new.weight.id == model.weight.id, new.weight.is_require_grad
    (True, True)
    """

    def __init__(self, make: Make, text: str):
        if not callable(make) or not isinstance(text, str):
            raise ArgumentTypeError(
                "Optimizer: optimisers are made by fd.optim.adam(1e-3) and the like, or fd.optim.from_optax(tx); the model "
                "comes with each step: model, state = opt.step(model, grads, state)."
            )
        self._make = make
        self._text = text
        self._plans: OrderedDict[Any, Plan] = OrderedDict()
        self._last: tuple[Any, list[Any], Plan] | None = None

    if not TYPE_CHECKING:  # type checkers are to see that the name is missing

        def __getattr__(self, name):
            known = known_name("functad.optim", f"Optimizer.{name}")
            hint = f"; write {known}" if known else "; it has init(model) and step(model, grads, state)"
            raise UnknownAttributeError(f"an Optimizer has no attribute {name!r}{hint}.")

    def init(self, model: Any) -> OptState:
        """The state for the trainable parameters of a Module or pytree: frozen ones have none.

        >>> import functad as fd
        >>> fd.optim.adam(1e-3).init(fd.nn.Linear(2, 1).freeze("bias"))
        OptState(1 parameters, 5 arrays)
        """
        leaves, structure = tree.flatten(model)
        plan = self._plan(model, leaves, structure, "init")
        params = [leaves[i] for i in plan.places]
        arrays = raw(params) if tracing.get() is None else None
        if arrays is not None:
            with jax.enable_x64(True) if plan.wide and not dtypes.x64_enabled() else nullcontext():
                return of_tree(plan.tx.init(plan.pack([jnp.asarray(x) for x in arrays])), plan.names, plan.ids)
        made = plan.init(*[off_tape(x) for x in params])
        return OptState(made, Form(plan.made, plan.names, plan.ids if tracing.get() is None else None))

    def step(self, model: Any, grads: Any, state: OptState, **extra: Any) -> tuple[Any, OptState]:
        """The updated model and state.

        Args:
            model: a Module or a pytree of Modules and tensors. Within Modules Params are updated, elsewhere all floats.
            grads: what `loss.backward()` returned, a `GradientsParams`, or the pytree `fd.grad` returned.
            state: from `init` or the step before.
            extra: numbers of the state to change from this step on (`learning_rate=...`), and what
                a transformation asks for besides gradients (`value`, and `value_fn`, a function of the model);
                `ArgumentTypeError` for what nothing looks at.

        The parameters keep their ids, and are new leaves that require grad where they did. A missing
        gradient counts as zero, with a warning that says why it is missing. Raises `ArgumentError`
        where no parameter has a gradient, `StructureError` for a state of other parameters.

        >>> import functad as fd
        >>> opt, w = fd.optim.sgd(0.25), fd.tensor([1.0, 2.0])
        >>> w, state = opt.step(w, fd.grad(lambda w: (w * w).sum())(w), opt.init(w))
        >>> w.tolist(), opt.step(w, fd.ones(2), state, learning_rate=0.5)[0].tolist()
        ([0.5, 1.0], [0.0, 0.5])
        """
        if not isinstance(state, OptState):
            raise ArgumentTypeError(
                f"step: the arguments are (model, grads, state), and state is {type(state).__name__}; make it with "
                "state = opt.init(model)."
            )
        leaves, structure = tree.flatten(model)
        plan = self._plan(model, leaves, structure, "step")
        if state._form.names != plan.names:
            _refuse_state(state._form.names, plan.names)
        form = state._form if state._form.ids is plan.ids else _checked_form(state._form, plan)
        found = aligned(grads, leaves, structure, "step")
        if plan.shared and type(grads) is Gradients:
            found = summed(found, leaves, plan.shared)
        params = [leaves[i] for i in plan.places]
        cotangents = [found[i] for i in plan.places]
        if any(g is None for g in cotangents):
            cotangents = _filled(params, cotangents, grads, plan)
        if extra:
            extra = plan.extras(extra, cotangents, leaves, structure)
            numbers = {k: extra.pop(k) for k in list(extra) if k in plan.hyperparams(state)}
            state = state.with_hyperparams(**numbers) if numbers else state
        results, memory = plan.run(params, cotangents, state, extra, leaves, structure)
        for i, new in zip(plan.places, results, strict=True):
            old = leaves[i]
            leaves[i] = wrap(new, old.mark) if type(old) is Param else new
        for i, j in plan.shared:
            leaves[i] = leaves[j]
        return tree.unflatten(structure, leaves), OptState(memory, form, placed=True)

    step = explained(
        step,
        missing="the arguments are (model, grads, state): model, state = opt.step(model, grads, state), with grads = "
        "loss.backward() and state = opt.init(model) before the first step",
    )

    def _plan(self, model: Any, leaves: list[Any], structure: Any, where: str) -> Plan:
        marks = [x.mark if type(x) is Param else None for x in leaves]
        last = self._last
        if last is not None and last[0] == structure and last[1] == marks:  # by identity, in a training loop
            return last[2]
        key = structure, tuple(marks)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = Plan(self._make, self._text, model, leaves, structure, where)
            if len(self._plans) > _MOST_KEPT:
                self._plans.popitem(last=False)
        self._last = (structure, marks, plan)
        return plan

    def made(self, context: Context) -> Any:
        """The optax transformation for some parameters."""
        return self._make(context)

    def __repr__(self) -> str:
        return self._text


# --- what is refused


def _filled(params: list[Any], grads: list[Any], source: Any, plan: Plan) -> list[Any]:
    missing = {name: explain(source, x) for name, x, g in zip(plan.names, params, grads, strict=True) if g is None}
    if len(missing) == len(params):
        name, why = next(iter(missing.items()))
        raise ArgumentError(f"step: none of the {len(params)} parameters has a gradient. {name}: {why}")
    warn_of_missing(missing)
    return [zeros_like(off_tape(x)) if g is None else g for x, g in zip(params, grads, strict=True)]


def _checked_form(form: Form, plan: Plan) -> Form:
    """The form of the state after a step; raises for the state of another model, where that is known."""
    if form.ids is None or plan.ids is None or form.ids == plan.ids:
        return form.of(None if tracing.get() is not None else plan.ids)
    others = [name for name, a, b in zip(plan.names, form.ids, plan.ids, strict=True) if a != b]
    listed = ", ".join(others[:4]) + (f" and {len(others) - 4} more" if len(others) > 4 else "")
    raise StructureError(
        f"step: the state was made for the parameters of another model: {listed} "
        f"{'has' if len(others) == 1 else 'have'} other ids. Pass the state that belongs to this model, or make one: state "
        "= opt.init(model); if the model is a copy that was made anew, go on with state.without_ids()."
    )


def _refuse_state(had: tuple[str, ...], have: tuple[str, ...]) -> None:
    gone = [name for name in had if name not in have]
    new = [name for name in have if name not in had]
    changes = [f"{', '.join(names[:6])} {what}" for names, what in ((new, "came"), (gone, "went")) if names]
    raise StructureError(
        "step: the state was made for other parameters: "
        + ("; ".join(changes) or "they are in another order")
        + ". After freeze, unfreeze or another change of the model make a new one: state = opt.init(model)."
    )
