"""`Plan`: which tensors of one kind of pytree an optimiser trains, and the compiled call that updates them."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes, tree
from functad.device import Device
from functad.dispatch import Handle, base_tensor, tracing
from functad.errors import ArgumentError, ArgumentTypeError, MissingDependencyError, StructureError
from functad.gradients import Gradients
from functad.keywords import no_argument
from functad.levels import BASE
from functad.module import Module, ParamGroup
from functad.module.layout import Found, walk_tree
from functad.ops.operand import operand
from functad.optim.gradients import GradientsParams, aligned, is_trained
from functad.optim.state import OptState, is_committed, numbers_of
from functad.param import Param
from functad.tensor import Tensor
from functad.transforms.interop import in_jax, to_jax

_MOST_KEPT = 64
_OPTIONAL = frozenset({"value", "grad", "value_fn"})
"""What any optimiser may be given besides gradients, as in optax, whether it looks at it or not."""

_HOW = {
    "value": "value=loss, a number",
    "value_fn": "value_fn=f, where f(model) is the loss",
    "grad": "grad=grads",
}
_GIVEN = {"value": "value=loss", "value_fn": "value_fn=f", "grad": "grad=grads"}
_NUMBERS = (Handle, np.ndarray, np.generic, jax.Array, int, float, complex)
_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.*)$")


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

    def __init__(
        self, found: Sequence[Found], names: Sequence[str], pack: Callable[[Sequence[Any]], Any], adjust: bool = True
    ):
        self.found = found
        self.names = names
        self.pack = pack
        self.adjust = adjust  # whether learning rates are numbers of the state
        wide = any(getattr(x.value, "dtype", None) == dtypes.float64 for x in found)
        self.dtype = dtypes.float64 if wide else dtypes.float32  # of numbers that are kept in the state

    def mask(self, group: ParamGroup) -> Any:
        """Whether each parameter is in a group, in the structure optax sees."""
        chosen = [x in group for x in self.found]
        if not any(chosen):
            raise ArgumentError(f"{group!r} matches none of the parameters {', '.join(self.names)}.")
        return self.pack(chosen)


Make = Callable[[Context], Any]


class Plan:
    """How one optimiser updates one kind of pytree."""

    def __init__(self, make: Make, text: str, model: Any, leaves: list[Any], structure: Any, where: str):
        self._text = text
        found = list(walk_tree(model))
        self.places: list[int] = []
        self.shared: list[tuple[int, int]] = []
        first: dict[Any, int] = {}
        for i, x in enumerate(found):
            if not is_trained(x):
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
            raise ArgumentError(f"{where}: there is nothing to train in {type(model).__name__}: {_why_nothing(found)}")
        names = [found[i].path for i in self.places]
        if len(set(names)) < len(names):  # keys with dots in them
            paths = tree.paths_of(structure)
            names = [paths[i] for i in self.places]
        self.names = tuple(names)
        marks = [found[i].mark for i in self.places]
        self.ids = tuple([m and m.id for m in marks]) if any(m is not None for m in marks) else None
        self._by_name = any(x.mark is not None or x.owners for x in found)
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
        return numbers_of(state.tree)

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
        for name, x in numbers.items():
            if not all(isinstance(y, _NUMBERS) for y in tree.leaves(x)):
                raise self._no_argument(name, state.tree)
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
            and (arrays := raw(params)) is not None
            and (cotangents := raw(grads)) is not None
            and (before := raw(memory)) is not None
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
            [off_tape(x) for x in params],
            [off_tape(g) for g in grads],
            [off_tape(x) for x in memory],
            tree.map(off_tape, numbers),
        )
        return [_on_tape_of(x, new) for x, new in zip(params, results, strict=True)], memory

    def _compile(self, form: Any, functions: dict[str, Any], leaves: list[Any], structure: Any) -> Any:
        apply_updates = optax_module().apply_updates
        called: set[str] = set()
        adapted = {k: self._of_arrays(f, list(leaves), structure, k, called) for k, f in functions.items()}

        def update(params: Any, grads: Any, memory: Any, numbers: Any) -> tuple[list[Any], list[Any]]:
            packed = self.pack(params)
            state = jax.tree.unflatten(form, memory)
            self._check_state(state, packed)  # once for each shape: this runs when it is compiled
            cotangents = self.pack(grads)
            updates, new = self._update(cotangents, state, packed, {**numbers, **adapted})
            unknown = {k: x for k, x in numbers.items() if k not in _OPTIONAL}
            if unknown:
                known = {k: x for k, x in numbers.items() if k in _OPTIONAL} | adapted
                unknown = _unused(lambda given: self.tx.update(cotangents, state, packed, **known, **given), unknown)
            for name in (*unknown, *[k for k in adapted if k not in _OPTIONAL and k not in called]):
                raise self._no_argument(name, state)
            return self.unpack(apply_updates(packed, updates)), jax.tree.leaves(new)

        return jax.jit(update), in_jax(update)

    def _update(self, grads: Any, state: Any, params: Any, extra: dict[str, Any]) -> Any:
        """What the transformation makes of gradients; raises where it asks for more than it is given."""
        try:
            return self.tx.update(grads, state, params, **extra)
        except TypeError as error:
            asked = _MISSING.search(str(error))
            names = [] if asked is None else re.findall(r"'(\w+)'", asked[1])
            if not names or any(name in extra for name in names):
                raise
        wanted = [name for name in names if name != "grad" or "value_fn" not in names]  # which brings it along
        given = ", ".join(_GIVEN.get(name, f"{name}=...") for name in wanted)
        raise ArgumentTypeError(
            f"step: {self._text} asks for more than gradients: {'; '.join([_HOW.get(n, f'{n}=') for n in wanted])}. Write "
            f"model, state = opt.step(model, grads, state, {given})."
        )

    def _no_argument(self, name: str, state: Any) -> ArgumentTypeError:
        """The error for an argument that nothing in this optimiser looks at."""
        have = list(numbers_of(state))
        if name == "learning_rate" and name not in have:
            return ArgumentTypeError(
                f"step: {self._text} has no learning_rate to set, as it was made with a schedule or has none. Make it with a "
                "number, fd.optim.adam(1e-3) say, and give steps their own: learning_rate=rate."
            )
        known = [*have, *_OPTIONAL]
        return no_argument("step", name, known, f"{self._text} takes none but {', '.join(sorted(known))}")

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

    def _of_arrays(
        self, fn: Callable[[Any], Any], leaves: list[Any], structure: Any, name: str, called: set[str]
    ) -> Callable[[Any], Any]:
        """A function of the model as JAX's function of what optax sees, which notes that it was called."""
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

        def of_packed(packed: Any, *rest: Any, **more: Any) -> Any:
            called.add(name)
            return in_jax(*self.unpack(packed))

        return of_packed


def _why_nothing(found: list[Found]) -> str:
    """Why an optimiser would train none of these tensors."""
    params = [x for x in found if x.mark is not None]
    if params and all(x.mark.frozen for x in params if x.mark is not None):
        return "all its parameters are frozen; unfreeze some."
    if params:
        return "its parameters are no floats."
    if any(x.owners for x in found):
        return (
            "it has no Params, and a Module's other tensors are buffers, which no optimiser touches. Write "
            "self.w = fd.Param(...) for what is to be trained, or declare the field as w: fd.Param."
        )
    return "it holds no float tensor."


def _unused(fn: Callable[[Any], Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the arguments of a function of JAX arrays those that no part of its result is computed from."""
    written = jax.make_jaxpr(fn)(given).jaxpr
    read = {id(x) for x in written.outvars}.union(*[map(id, eqn.invars) for eqn in written.eqns])
    places = iter(written.invars)
    seen = {name: [id(next(places)) in read for _ in jax.tree.leaves(given[name])] for name in sorted(given)}
    return {name: given[name] for name, parts in seen.items() if not any(parts)}


# --- tensors and arrays


def raw(values: Sequence[Any]) -> list[Any] | None:
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
    arrays = raw(leaves)
    return None if arrays is None else tree.unflatten(structure, arrays)


def off_tape(x: Any) -> Any:
    """`x` off the tapes of autodiff devices."""
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
