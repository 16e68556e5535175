"""The state of an optimiser: the arrays of optax's own state in a row, and how to put them together again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from functad import tree
from functad.dispatch import Handle, base_tensor, tracing
from functad.errors import ArgumentError, ArgumentTypeError, ImmutableError, UnknownAttributeError
from functad.ops.operand import operand
from functad.records.structure import CODECS

_INSIDE = {
    "state_dict": "fd.save(state, path)",
    "load_state_dict": "state = fd.load(path, like=opt.init(model))",
    "replace": "state = state.with_hyperparams(learning_rate=value)",
}


class Form:
    """What is static of a state: optax's structure, and the parameters it was made for.

    Two forms are equal whatever the ids: states of two models map, stack and compile together.
    """

    __slots__ = ("ids", "names", "structure")

    def __init__(self, structure: Any, names: tuple[str, ...], ids: tuple[Any, ...] | None = None):
        self.structure = structure
        self.names = names
        self.ids = ids  # None where they are not known: in code that is compiled, from a file

    def of(self, ids: tuple[Any, ...] | None) -> Form:
        """This form for parameters of other ids."""
        return self if ids == self.ids else Form(self.structure, self.names, ids)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Form) and self.names == other.names and bool(self.structure == other.structure)
        )

    def __hash__(self) -> int:
        return hash((self.structure, self.names))

    def __repr__(self) -> str:
        return f"Form({self.structure}, {self.names})"


class OptState:
    """What an optimiser remembers between steps; immutable, and a pytree of both libraries.

    `tree` is optax's own state, with the parameters of a Module as a dict by path.

    >>> import functad as fd
    >>> model = fd.nn.Linear(2, 1)
    >>> state = fd.optim.adam(1e-3).init(model)
    >>> state.hyperparams["learning_rate"].item() == 1e-3
    False
    >>> round(state.with_hyperparams(learning_rate=0.5).hyperparams["learning_rate"].item(), 6)
    0.5
    """

    __slots__ = ("__weakref__", "_form", "_leaves", "_placed")
    _form: Form
    _leaves: tuple[Any, ...]
    _placed: bool  # its arrays are where the parameters are

    def __init__(self, leaves: Any, form: Form, placed: bool = False):
        object.__setattr__(self, "_leaves", tuple(leaves))
        object.__setattr__(self, "_form", form)
        object.__setattr__(self, "_placed", placed)

    def __setattr__(self, name: str, value: Any) -> None:
        raise ImmutableError(
            f"an optimiser's state is immutable: instead of state.{name} = value write "
            "state = state.with_hyperparams(learning_rate=value)."
        )

    if not TYPE_CHECKING:  # type checkers are to see that these are missing

        def __getattr__(self, name):
            if name.startswith("_"):
                raise AttributeError(f"an OptState has no attribute {name!r}")
            known = "state.hyperparams, a dict" if name in ("learning_rate", "lr") else _INSIDE.get(name)
            raise UnknownAttributeError(
                f"an optimiser's state has no attribute {name!r}; "
                f"{'write ' + known if known else 'what optax keeps, counts and moments, is in state.tree'}."
            )

        def __getitem__(self, place):
            raise ArgumentTypeError(
                f"an optimiser's state is no sequence: optax's own is state.tree: state.tree[{place!r}]."
            )

    @property
    def tree(self) -> Any:
        """The state as optax has it."""
        return jax.tree.unflatten(self._form.structure, self._leaves)

    @property
    def hyperparams(self) -> dict[str, Any]:
        """The numbers that may change between steps without compiling again, as tensors: `learning_rate`.

        Of a schedule there is none: what it is at step `n` is `schedule(n)`.
        """
        return {name: operand(x) for name, x in numbers_of(self.tree).items()}

    def with_hyperparams(self, **values: Any) -> OptState:
        """With other numbers, in every part that has them; raises `ArgumentError` for one that no part has."""
        whole = self.tree
        have = numbers_of(whole)
        unknown = [name for name in values if name not in have]
        if unknown:
            known = ", ".join(have) or "none; give the learning rate as a number, not as a schedule"
            raise ArgumentError(f"with_hyperparams: there is no {', '.join(unknown)} to set; the state has: {known}.")
        planned = [
            name for name in values for node in _injected(whole) if name in getattr(node, "hyperparams_states", ())
        ]
        if planned:
            raise ArgumentError(
                f"with_hyperparams: {', '.join(planned)} follows a schedule, which would set it anew at the next step. Make "
                "the optimiser with a number for it."
            )

        def changed(node: Any) -> Any:
            if not _is_injected(node):
                return node
            fresh = {
                name: _like(values[name], old) if name in values else old for name, old in node.hyperparams.items()
            }
            inner = jax.tree.map(changed, node.inner_state, is_leaf=_is_end)
            return node._replace(hyperparams=fresh, inner_state=inner)

        out = jax.tree.map(changed, whole, is_leaf=_is_end)
        leaves, structure = jax.tree.flatten(out, is_leaf=_is_tensor)
        assert structure == self._form.structure
        return OptState(leaves, self._form)

    def without_ids(self) -> OptState:
        """This state for a model whose parameters have other ids: a copy that was made anew and loaded, say.

        >>> import functad as fd
        >>> opt, one, other = fd.optim.sgd(0.25), fd.nn.Linear(2, 1), fd.nn.Linear(2, 1)
        >>> grads = fd.grad(lambda m: m(fd.ones(2)).sum())(other)
        >>> after, state = opt.step(other, grads, opt.init(one).without_ids())
        >>> (after.bias < other.bias).item()
        True
        """
        return OptState(self._leaves, self._form.of(None))

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (jax.tree.map(_picklable, self.tree, is_leaf=_is_tensor), self._form.names)

    def __repr__(self) -> str:
        sizes = [x.shape for x in self._leaves if hasattr(x, "shape")]
        return f"OptState({len(self._form.names)} parameters, {len(sizes)} arrays)"


def of_tree(whole: Any, names: tuple[str, ...], ids: tuple[Any, ...] | None = None) -> OptState:
    """A state as optax has it."""
    leaves, structure = jax.tree.flatten(whole, is_leaf=_is_tensor)
    return OptState(leaves, Form(structure, names, ids))


def numbers_of(whole: Any) -> dict[str, Any]:
    """The numbers in a state as optax has it that may change between steps."""
    found: dict[str, Any] = {}
    for node in _injected(whole):
        found.update(node.hyperparams)
    return found


def _restore(whole: Any, names: tuple[str, ...]) -> OptState:
    return of_tree(jax.tree.map(jnp.asarray, whole), names)


def _picklable(x: Any) -> Any:
    return x.numpy() if isinstance(x, Handle) else x  # type: ignore[attr-defined]  # Tensor's


def _is_tensor(x: Any) -> bool:
    return isinstance(x, Handle)


def _is_end(node: Any) -> bool:
    return _is_injected(node) or _is_tensor(node)


def _is_injected(node: Any) -> bool:
    return isinstance(node, tuple) and hasattr(node, "hyperparams")


def _injected(whole: Any) -> list[Any]:
    found = []
    for node in jax.tree.leaves(whole, is_leaf=_is_end):
        if _is_injected(node):
            found += [node, *_injected(node.inner_state)]
    return found


def _like(value: Any, old: Any) -> Any:
    """A number as the array it replaces."""
    if isinstance(value, Handle):
        value = base_tensor(value)._value if not isinstance(old, Handle) else value
    if isinstance(value, Handle) or isinstance(old, Handle):
        return value
    made = jnp.asarray(value, old.dtype)
    return jax.device_put(made, old.sharding) if is_committed(old) else made


def is_committed(array: Any) -> bool:
    """Whether an array is bound to its device: calls are compiled for that."""
    return isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer) and bool(array.committed)


CODECS["OptState"] = (
    OptState,
    lambda state: (state.tree, state._form.names),
    lambda parts: of_tree(*parts),
)
tree.register(
    OptState,
    lambda state: (state._leaves, state._form, tuple([("_leaves", i) for i in range(len(state._leaves))])),
    lambda form, leaves: OptState(
        leaves, form if tracing.get() is None else form.of(None)
    ),  # compiled for other models
)
