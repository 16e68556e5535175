"""Optax's functions under functad: with Optimizers and groups of parameters where optax has transformations and masks."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np

from functad import tree
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, UnknownAttributeError
from functad.gradients import Gradients
from functad.hints import known_name
from functad.keywords import explained
from functad.module import ParamGroup
from functad.optim.gradients import GradientsParams
from functad.optim.optimizer import Optimizer
from functad.optim.plan import Context, optax_module
from functad.transforms.interop import from_jax

_BY_HAND = {
    "lookahead": "it takes pairs of fast and slow parameters for a model. By hand: every few steps slow = "
    "fd.tree.map(lambda a, b: a + 0.5 * (b - a), slow, model) and model = slow"
}
_INJECTORS = ("inject_hyperparams", "inject_stateful_hyperparams")
_NUMBERS = (int, float, np.number, np.ndarray, jax.Array, Handle)


def is_transformation(x: Any) -> bool:
    """Whether `x` has optax's form of a transformation: a named tuple, or an object such as `optax.MultiSteps` makes."""
    return not isinstance(x, type) and callable(getattr(x, "init", None)) and callable(getattr(x, "update", None))


def from_optax(tx: Any) -> Optimizer:
    """An optax transformation as an Optimizer.

    >>> import functad as fd, optax
    >>> opt = fd.optim.from_optax(optax.chain(optax.clip(1.0), optax.adam(1e-3)))
    """
    if isinstance(tx, Optimizer):
        return tx
    if not is_transformation(tx):
        raise ArgumentTypeError(f"from_optax: expected a transformation such as optax.adam(1e-3), got {tx!r}.")
    return Optimizer(lambda context: tx, f"from_optax({type(tx).__name__})")


def named(name: str) -> Any:
    """What optax calls by a name, in a form for functad."""
    optax = optax_module()
    thing = getattr(optax, name, None)
    if thing is None:
        thing = getattr(getattr(optax, "contrib", None), name, None)
    if thing is None or name.startswith("_"):
        ours = known_name("functad.optim", name)
        lower = name.lower()
        if ours is None and lower != name and not name.startswith("_") and hasattr(optax, lower):
            ours = f"fd.optim.{lower}(learning_rate)"
        if ours is not None:
            raise UnknownAttributeError(
                f"fd.optim has no {name!r}; write {ours}, then state = opt.init(model) and "
                "model, state = opt.step(model, grads, state)."
            )
        raise UnknownAttributeError(
            f"fd.optim has no {name!r}, and optax neither. dir(fd.optim) lists the optimisers, schedules and "
            "transformations there are."
        )
    if name in _BY_HAND:
        raise UnknownAttributeError(f"fd.optim has no {name!r}: {_BY_HAND[name]}.")
    if isinstance(thing, type):  # a class of states; or of optimisers, as MultiSteps is
        made = all(inspect.isfunction(getattr(thing, method, None)) for method in ("init", "update"))
        return wrapped(thing, name) if made else thing
    if name in _INJECTORS:
        return _injector(thing, name)
    return wrapped(thing, name) if callable(thing) else thing


def _injector(injector: Callable[..., Any], name: str) -> Callable[..., Any]:
    """`inject_hyperparams`: its factory may be one of `fd.optim`, or one that makes Optimizers."""

    @functools.wraps(injector)
    def inject(inner_factory: Callable[..., Any], *options: Any, **named: Any) -> Callable[..., Any]:
        factory = getattr(inner_factory, "__wrapped__", inner_factory)

        @functools.wraps(factory)
        def made(*args: Any, **kwargs: Any) -> Optimizer:
            def make(context: Context) -> Any:
                fixed = Context(context.found, context.names, context.pack, adjust=False)

                @functools.wraps(factory)
                def resolved(*args: Any, **kwargs: Any) -> Any:
                    return _resolved(factory(*args, **kwargs), fixed)

                filled, more = (
                    [_resolved(x, context) for x in args],
                    {k: _resolved(x, context) for k, x in kwargs.items()},
                )
                return injector(resolved, *options, **named)(*filled, **more)

            return Optimizer(make, _text(f"{name}({_shown(inner_factory)})", args, kwargs))

        return made

    return inject


def wrapped(factory: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A function of optax that may be given Optimizers and groups, and returns an Optimizer for a transformation."""
    try:
        parameters = inspect.signature(factory).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    factory = explained(factory)

    @functools.wraps(factory)
    def made(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(parameters, args, strict=False)) | kwargs
        rate = given.get("learning_rate")
        adjustable = isinstance(rate, _NUMBERS) and not isinstance(rate, bool)
        plain = not any(_is_ours(x) for x in (*args, *kwargs.values()))
        if adjustable or "learning_rate" in given:
            _check_rate(name, rate)
        if plain and not adjustable:
            if any(isinstance(x, Handle) for x in tree.leaves((args, kwargs))) or any(map(_holds_gradients, args)):
                args, kwargs = tree.map(_as_tree, (args, kwargs))
                return from_jax(factory)(*args, **kwargs)  # not a transformation: a function of tensors
            out = factory(*args, **kwargs)
            return Optimizer(lambda context: out, _text(name, args, kwargs)) if is_transformation(out) else out

        def make(context: Context) -> Any:
            filled = [_resolved(x, context) for x in args]
            named = {k: _resolved(x, context) for k, x in kwargs.items()}
            if not adjustable or not context.adjust:
                return factory(*filled, **named)
            others = tuple([p for p in parameters if p != "learning_rate"])
            inject = optax_module().inject_hyperparams(factory, static_args=others, hyperparam_dtype=context.dtype)
            return inject(*filled, **named)

        if plain:
            factory(*args, **kwargs)  # its own errors come now
        return Optimizer(make, _text(name, args, kwargs))

    return made


def _holds_gradients(x: Any) -> bool:
    return isinstance(x, (Gradients, GradientsParams))


def _as_tree(x: Any) -> Any:
    if isinstance(x, Gradients):
        return list(x._gradients.values())
    return [g for _, g in x.items()] if isinstance(x, GradientsParams) else x


def _is_ours(x: Any) -> bool:
    if isinstance(x, (Optimizer, ParamGroup)):
        return True
    return isinstance(x, (list, tuple, dict)) and any(_is_ours(y) for y in (x.values() if isinstance(x, dict) else x))


def _resolved(x: Any, context: Context) -> Any:
    """An argument as optax takes it."""
    if isinstance(x, Optimizer):
        return x.made(context)
    if isinstance(x, ParamGroup):
        return context.mask(x)
    if isinstance(x, dict):
        return {k: _resolved(y, context) for k, y in x.items()}
    if isinstance(x, (list, tuple)) and _is_ours(x):
        return type(x)([_resolved(y, context) for y in x])
    return x.numpy() if isinstance(x, Handle) and not x.shape else x  # type: ignore[attr-defined]  # Tensor's


def _check_rate(name: str, rate: Any) -> None:
    if rate is not None and not callable(rate) and not isinstance(rate, _NUMBERS):
        what = "the parameters" if isinstance(rate, (list, tuple)) else f"a {type(rate).__name__}"
        raise ArgumentTypeError(
            f"{name}: learning_rate must be a number or a schedule, got {what}. The optimiser holds no parameters: write opt "
            f"= fd.optim.{name}(1e-3), state = opt.init(model), and model, state = opt.step(model, grads, state)."
        )
    if getattr(rate, "shape", ()) != ():
        raise ArgumentError(f"{name}: learning_rate must be one number or a schedule, got the shape {rate.shape}.")
    if isinstance(rate, (int, float)) and rate < 0:
        raise ArgumentError(f"{name}: learning_rate must not be negative, got {rate}: steps go against the gradient.")


def _text(name: str, args: Iterable[Any], kwargs: dict[str, Any]) -> str:
    shown = [*map(_shown, args), *[f"{k}={_shown(x)}" for k, x in kwargs.items()]]
    return f"{name}({', '.join(shown)})"


def _shown(x: Any) -> str:
    """An argument; a function by its name, a schedule by that of what made it."""
    name = getattr(x, "__qualname__", None)
    return name.partition(".<locals>")[0] if isinstance(name, str) and callable(x) else repr(x)


# --- parts with names of their own


def chain(*parts: Any) -> Optimizer:
    """Transformations one after another: `chain(clip_by_norm(1.0), adam(1e-3))`; optax's, or Optimizers.

    >>> import functad as fd
    >>> opt = fd.optim.chain(fd.optim.clip_by_norm(1.0), fd.optim.sgd(0.5))
    >>> w = fd.tensor([1.0, 1.0])
    >>> opt.step(w, fd.tensor([0.0, 100.0]), opt.init(w))[0].tolist()
    [1.0, 0.5]
    """
    made = [from_optax(part) for part in parts]

    def make(context: Context) -> Any:
        return optax_module().chain(*[part.made(context) for part in made])

    return Optimizer(make, f"chain({', '.join(map(repr, made))})")


def clip_by_norm(max_norm: float) -> Optimizer:
    """All gradients scaled down together where their norm as one vector exceeds `max_norm`.

    Raises `ArgumentError` for a negative `max_norm`.

    >>> import functad as fd
    >>> opt, w = fd.optim.clip_by_norm(5.0), {"a": fd.tensor(0.0), "b": fd.tensor(0.0)}
    >>> moved, _ = opt.step(
    ...     w, {"a": fd.tensor(6.0), "b": fd.tensor(8.0)}, opt.init(w)
    ... )  # adds what it makes of gradients
    >>> moved["a"].item(), moved["b"].item()
    (3.0, 4.0)
    """
    if max_norm < 0:
        raise ArgumentError(f"clip_by_norm: max_norm must not be negative, got {max_norm}.")
    return Optimizer(lambda context: optax_module().clip_by_global_norm(max_norm), f"clip_by_norm({max_norm})")


def clip_by_value(max_value: float) -> Optimizer:
    """Every element of the gradients brought into `[-max_value, max_value]`.

    Raises `ArgumentError` for a negative `max_value`.

    >>> import functad as fd
    >>> opt, w = fd.optim.chain(fd.optim.clip_by_value(1.0), fd.optim.sgd(1.0)), fd.zeros(3)
    >>> opt.step(w, fd.tensor([-0.5, 0.0, 100.0]), opt.init(w))[0].tolist()
    [0.5, 0.0, -1.0]
    """
    if max_value < 0:
        raise ArgumentError(f"clip_by_value: max_value must not be negative, got {max_value}.")
    return Optimizer(lambda context: optax_module().clip(max_value), f"clip_by_value({max_value})")


_UNSAID = object()


def param_groups(*groups: tuple[Any, Any], default: Any = _UNSAID) -> Optimizer:
    """Optimisers of their own for groups of parameters.

    Args:
        groups: pairs of a `ParamGroup` (or what makes one) and an optimiser; the first that matches counts.
        default: the optimiser of the others; None leaves them as they are. Without it, a parameter in
            no group is an error.

    >>> import functad as fd
    >>> opt = fd.optim.param_groups(("*bias", fd.optim.sgd(0.1)), default=fd.optim.adamw(1e-3))
    """
    chosen = [(ParamGroup.of(group), from_optax(part)) for group, part in groups]
    rest = default if default is _UNSAID or default is None else from_optax(default)

    def make(context: Context) -> Any:
        optax = optax_module()
        labels = [next((i for i, (group, _) in enumerate(chosen) if x in group), -1) for x in context.found]
        for i, (group, _) in enumerate(chosen):
            if i not in labels:
                context.mask(group)  # raises where it matches nothing at all
                raise ArgumentError(
                    f"param_groups: all parameters of {group!r} are in groups before it, so its optimiser would have none. "
                    "The first group that matches counts: put the narrower group first."
                )
        if rest is _UNSAID and -1 in labels:
            left = [name for name, label in zip(context.names, labels, strict=True) if label == -1]
            raise ArgumentError(
                f"param_groups: {', '.join(left[:8])} {'is' if len(left) == 1 else 'are'} in no group. Add "
                "default=fd.optim.adam(...) to train the rest, or default=None to leave it as it is."
            )
        parts = {i: _within(part, context, labels, i) for i, (_, part) in enumerate(chosen) if i in labels}
        if -1 in labels:
            parts[-1] = optax.set_to_zero() if rest is None else _within(rest, context, labels, -1)  # type: ignore[arg-type]
        return optax.multi_transform({str(i): tx for i, tx in parts.items()}, context.pack([str(i) for i in labels]))

    shown = [f"({group!r}, {part!r})" for group, part in chosen]
    shown += [] if rest is _UNSAID else [f"default={rest!r}"]
    return Optimizer(make, f"param_groups({', '.join(shown)})")


def _within(part: Optimizer, context: Context, labels: list[int], label: int) -> Any:
    """The transformation of one group, whose masks see the others as absent."""
    optax = optax_module()
    inside = Context(
        [x for x, i in zip(context.found, labels, strict=True) if i == label],
        [x for x, i in zip(context.names, labels, strict=True) if i == label],
        lambda values: context.pack(_spread(values, labels, label, optax.MaskedNode())),
    )
    return part.made(inside)


def _spread(values: Any, labels: list[int], label: int, elsewhere: Any) -> list[Any]:
    rest = iter(values)
    return [next(rest) if i == label else elsewhere for i in labels]


def names() -> list[str]:
    """The functions of optax, if it is installed; classes of states and types are there too, and in no list."""
    try:
        optax = optax_module()
    except ImportError:
        return []
    return [
        name
        for name in dir(optax)
        if name not in _BY_HAND and (name[0].islower() or name == "MultiSteps") and callable(getattr(optax, name))
    ]
