"""`Optimizer`: an optax transformation that updates Modules and pytrees of tensors, in one compiled call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes, tree
from functad.creation import zeros_like
from functad.device import Device
from functad.dispatch import Handle, base_tensor, tracing
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    MissingDependencyError,
    StructureError,
    UnknownAttributeError,
)
from functad.gradients import Gradients
from functad.hints import known_name
from functad.keywords import explained
from functad.levels import BASE
from functad.module import Module, ParamGroup
from functad.module.layout import Found, walk_tree
from functad.ops.operand import operand
from functad.optim.gradients import GradientsParams, aligned, explain, warn_of_missing
from functad.optim.state import Form, OptState, is_committed, of_tree
from functad.param import Param
from functad.tensor import Tensor
from functad.transforms.interop import in_jax, to_jax

_MOST_KEPT = 64


def optax_module() -> Any:
    """The optax package, imported when it is first needed."""
    try:
        import optax  # noqa: PLC0415  # an extra
    except ImportError:
        raise MissingDependencyError(
            "fd.optim needs the package optax; install it with: pip install 'functad[optim]'."
        ) from None
    return optax


class Context:
    """The parameters a transformation is made for: groups of them become masks."""

    def __init__(self, found: Sequence[Found], names: Sequence[str], pack: Callable[[Sequence[Any]], Any]):
        self.found = found
        self.names = names
        self.pack = pack
        wide = any(x.value.dtype == dtypes.float64 for x in found)
        self.dtype = dtypes.float64 if wide else dtypes.float32  # of numbers that are kept in the state

    def mask(self, group: ParamGroup) -> Any:
        """Whether each parameter is in a group, in the structure optax sees."""
        chosen = [x in group for x in self.found]
        if not any(chosen):
            raise ArgumentError(f"{group!r} matches none of the parameters {', '.join(self.names)}.")
        return self.pack(chosen)


Make = Callable[[Context], Any]


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
        arrays = _raw(params) if tracing.get() is None else None
        if arrays is not None:
            with jax.enable_x64(True) if plan.wide and not dtypes.x64_enabled() else nullcontext():
                return of_tree(plan.tx.init(plan.pack([jnp.asarray(x) for x in arrays])), plan.names, plan.ids)
        made = plan.init(*[_off_tape(x) for x in params])
        return OptState(made, Form(plan.made, plan.names, plan.ids if tracing.get() is None else None))

    def step(self, model: Any, grads: Any, state: OptState, **extra: Any) -> tuple[Any, OptState]:
        """The updated model and state.

        Args:
            model: a Module (its Params are updated) or a pytree of tensors (all floats are).
            grads: what `loss.backward()` returned, a `GradientsParams`, or the pytree `fd.grad` returned.
            state: from `init` or the step before.
            extra: numbers of the state to change from this step on (`learning_rate=...`), and what
                a transformation asks for besides gradients (`value`, and `value_fn`, a function of the model).

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
        if plan.shared and type(grads) is Gradients and isinstance(model, Module):
            grads = GradientsParams.from_grads(grads, model)
        found = aligned(grads, leaves, structure, "step")
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
            leaves[i] = new
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
            plan = self._plans[key] = Plan(self._make, model, leaves, structure, where)
            if len(self._plans) > _MOST_KEPT:
                self._plans.popitem(last=False)
        self._last = (structure, marks, plan)
        return plan

    def made(self, context: Context) -> Any:
        """The optax transformation for some parameters."""
        return self._make(context)

    def __repr__(self) -> str:
        return self._text


class Plan:
    """How one optimiser updates one kind of pytree."""

    def __init__(self, make: Make, model: Any, leaves: list[Any], structure: Any, where: str):
        found = list(walk_tree(model))
        has_params = any(x.mark is not None for x in found)
        self.places: list[int] = []
        self.shared: list[tuple[int, int]] = []
        first: dict[Any, int] = {}
        for i, x in enumerate(found):
            if (has_params and (x.mark is None or x.mark.frozen)) or not _is_float(x.value):
                continue
            if x.mark is not None and x.mark.id in first:
                self.shared.append((i, first[x.mark.id]))
                continue
            if x.mark is not None:
                first[x.mark.id] = i
            self.places.append(i)
        if not self.places and isinstance(model, (Gradients, GradientsParams)):
            raise ArgumentTypeError(f"{where}: the arguments are (model, grads, state), and the first is gradients.")
        if not self.places:
            raise ArgumentError(
                f"{where}: there is nothing to train in {type(model).__name__}: "
                + ("all its parameters are frozen; unfreeze some." if has_params else "it holds no float tensor.")
            )
        names = [found[i].path for i in self.places]
        if len(set(names)) < len(names):  # keys with dots in them
            paths = tree.paths_of(structure)
            names = [paths[i] for i in self.places]
        self.names = tuple(names)
        marks = [found[i].mark for i in self.places]
        self.ids = tuple([m.id for m in marks if m is not None]) if has_params else None
        self._by_name = has_params
        self._structure = structure
        self._size = len(leaves)
        context = Context([found[i] for i in self.places], self.names, self.pack)  # not kept: it holds the model
        self.wide = context.dtype == dtypes.float64
        self.tx = optax_module().with_extra_args_support(make(context))
        self.init = in_jax(self.init_arrays)  # one function, which is compiled once
        self.made: Any = None  # the structure of the state
        self._calls: OrderedDict[Any, Any] = OrderedDict()

    def init_arrays(self, *arrays: Any) -> Any:
        """The arrays of the state at first."""
        leaves, self.made = jax.tree.flatten(self.tx.init(self.pack(arrays)))
        return leaves

    def pack(self, values: Sequence[Any]) -> Any:
        """One value per parameter in the structure optax sees."""
        if self._by_name:
            return dict(zip(self.names, values, strict=True))
        filled: list[Any] = [None] * self._size
        for i, x in zip(self.places, values, strict=True):
            filled[i] = x
        return tree.unflatten(self._structure, filled)

    def unpack(self, packed: Any) -> list[Any]:
        """The values of what `pack` made."""
        if self._by_name:
            return [packed[name] for name in self.names]
        found = tree.up_to(self._structure, packed, "step")
        return [found[i] for i in self.places]

    def extras(self, given: dict[str, Any], grads: list[Any], leaves: list[Any], structure: Any) -> dict[str, Any]:
        """What a transformation asks for besides gradients, in the structure optax sees."""
        out = {}
        for name, x in given.items():
            if isinstance(x, (Gradients, GradientsParams, Module)):
                found = aligned(x, leaves, structure, f"step({name})")
                out[name] = self.pack([found[i] for i in self.places])
            else:
                out[name] = x
        if "value_fn" in out and "grad" not in out:
            out["grad"] = self.pack(grads)
        return out

    def hyperparams(self, state: OptState) -> Any:
        """The names of the numbers in a state."""
        return state.hyperparams

    def run(
        self,
        params: list[Any],
        grads: list[Any],
        state: OptState,
        extra: dict[str, Any],
        leaves: list[Any],
        structure: Any,
    ) -> tuple[list[Any], Sequence[Any]]:
        """The new parameters, as tensors like the old ones, and the new state."""
        functions = {k: f for k, f in extra.items() if callable(f) and not isinstance(f, Handle)}
        numbers = {k: x for k, x in extra.items() if k not in functions}
        key = state._form.structure, tuple(functions.items())
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._compile(state._form.structure, functions, leaves, structure)
            if len(self._calls) > _MOST_KEPT:
                self._calls.popitem(last=False)
        memory = state._leaves
        plain = tracing.get() is None
        if (
            plain
            and (arrays := _raw(params)) is not None
            and (cotangents := _raw(grads)) is not None
            and (before := _raw(memory)) is not None
            and (given := _raw_tree(numbers) if numbers else numbers) is not None
        ):
            if not state._placed and is_committed(arrays[0]):  # as after a step: compiled once
                before = jax.device_put(before, arrays[0].sharding)
            if self.wide and not dtypes.x64_enabled():  # the NumPy device has float64 always
                with jax.enable_x64(True):
                    results, memory = call[0](arrays, cotangents, before, given)
            else:
                results, memory = call[0](arrays, cotangents, before, given)
            return [_like(x, array) for x, array in zip(params, results, strict=True)], memory
        results, memory = call[1](
            [_off_tape(x) for x in params],
            [_off_tape(g) for g in grads],
            [_off_tape(x) for x in memory],
            tree.map(_off_tape, numbers),
        )
        return [_on_tape_of(x, new) for x, new in zip(params, results, strict=True)], memory

    def _compile(self, form: Any, functions: dict[str, Any], leaves: list[Any], structure: Any) -> Any:
        apply_updates = optax_module().apply_updates
        adapted = {k: self._of_arrays(f, list(leaves), structure) for k, f in functions.items()}

        def update(params: Any, grads: Any, memory: Any, numbers: Any) -> tuple[list[Any], list[Any]]:
            packed = self.pack(params)
            state = jax.tree.unflatten(form, memory)
            self._check_state(state, packed)  # once for each shape: this runs when it is compiled
            updates, state = self.tx.update(self.pack(grads), state, packed, **numbers, **adapted)
            new = jax.tree.leaves(state)
            return self.unpack(apply_updates(packed, updates)), new

        return jax.jit(update), in_jax(update)

    def _check_state(self, state: Any, packed: Any) -> None:
        """Raise unless a state has the structure and shapes of those that this optimiser makes for these parameters."""
        made = jax.eval_shape(self.tx.init, packed)
        found, wanted = (jax.tree_util.tree_leaves_with_path(x) for x in (state, made))
        structures: list[Any] = [jax.tree.structure(x) for x in (state, made)]
        if structures[0] != structures[1]:
            raise StructureError(
                "step: the state was made by another optimiser, or for parameters of another structure. Make one: "
                "state = opt.init(model)."
            )
        for (path, x), (_, y) in zip(found, wanted, strict=True):
            if jnp.shape(x) != y.shape:
                raise StructureError(
                    f"step: the state was made for parameters of other shapes: it has {jnp.shape(x)} at "
                    f"{jax.tree_util.keystr(path)}, and these parameters take {y.shape}. Make a new one: "
                    "state = opt.init(model)."
                )

    def _of_arrays(self, fn: Callable[[Any], Any], leaves: list[Any], structure: Any) -> Callable[[Any], Any]:
        """A function of the model as JAX's function of what optax sees."""
        for i in (*self.places, *[i for i, _ in self.shared]):
            leaves[i] = None

        def of_list(*values: Any) -> Any:
            filled = list(leaves)
            for i, x in zip(self.places, values, strict=True):
                filled[i] = x
            for i, j in self.shared:
                filled[i] = filled[j]
            return fn(tree.unflatten(structure, filled))

        in_jax = to_jax(of_list)
        return lambda packed, *rest, **more: in_jax(*self.unpack(packed))


# --- tensors and arrays


def _is_float(x: Any) -> bool:
    return (hasattr(x, "dtype") and dtypes.is_inexact(np.dtype(x.dtype))) or isinstance(x, float)


def _raw(values: Sequence[Any]) -> list[Any] | None:
    """The arrays of values at the base, or of tapes of devices over it; None if a transform has to see one."""
    arrays = []
    for x in values:
        if isinstance(x, Handle):
            while x._backend.level[1]:
                x = x._value
            if x._backend.level != BASE:
                return None
            x = x._value
        arrays.append(x)
    return arrays


def _raw_tree(values: Any) -> Any:
    """A pytree with arrays for tensors, or None."""
    leaves, structure = tree.flatten(values)
    arrays = _raw(leaves)
    return None if arrays is None else tree.unflatten(structure, arrays)


def _off_tape(x: Any) -> Any:
    if not isinstance(x, Handle):
        return x
    y: Any = x.value if type(x) is Param else x
    while y._backend.level[1]:
        y = y._value
    return y


def _like(x: Any, array: Any) -> Any:
    """An array as a tensor on the device of `x`, requiring grad if `x` does."""
    if not isinstance(x, Handle):
        return operand(array)
    backend = x._backend
    base = backend if backend.level == BASE else base_tensor(x)._backend
    if base.name == "numpy":
        array = np.asarray(array)
        array.flags.writeable = False
    new = Tensor(base, array, None, array.shape, array.dtype)
    return new if backend is base else _on_tape_of(x, new)


def _on_tape_of(x: Any, new: Any) -> Any:
    """A tensor on the tape that `x` is on."""
    if not isinstance(x, Handle) or not x._backend.level[1]:
        return new
    wanted = bool(x._context.tracked)
    if x._backend.level[1] == 1:
        return x._backend.leaf(new) if wanted else x._backend.lift(new)
    device: Device = x.device  # type: ignore[attr-defined]  # Tensor's
    lifted = device.lift(new)
    return lifted.require_grad() if wanted else lifted


# --- what is refused


def _filled(params: list[Any], grads: list[Any], source: Any, plan: Plan) -> list[Any]:
    missing = {name: explain(source, x) for name, x, g in zip(plan.names, params, grads, strict=True) if g is None}
    if len(missing) == len(params):
        name, why = next(iter(missing.items()))
        raise ArgumentError(f"step: none of the {len(params)} parameters has a gradient. {name}: {why}")
    warn_of_missing(missing)
    return [zeros_like(_off_tape(x)) if g is None else g for x, g in zip(params, grads, strict=True)]


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
