"""Calls with another library's arguments: `x.sum(dim=1)` says what to write instead."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from functad.culprits import DEEP, check_flag, flags_of, told
from functad.errors import ArgumentTypeError, FunctadError
from functad.foreign_arguments import OF, SAME

F = TypeVar("F", bound=Callable[..., Any])

_UNKNOWN = re.compile(r"got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"missing \d+ required (?:positional|keyword-only) arguments?: (.*)$")
_COUNT = re.compile(r"takes .*positional arguments? but .*given$")
_TWICE = re.compile(r"got multiple values for argument '(\w+)'")
_PLACED = re.compile(r"got some positional-only arguments passed as keyword arguments: '(.*)'$")

_INSTEAD = {
    "dim": "axis=",
    "dims": "axis=",
    "dim0": "the axes by position",
    "axes": "axis=",
    "keepdim": "keepdims=",
    "unbiased": "ddof=1 for unbiased=True, ddof=0 for unbiased=False (the default here)",
    "correction": "ddof=",
    "inplace": "the call without it: tensors are immutable",
    "requires_grad": "fd.tensor(data, device=fd.Device.cpu().autodiff()).require_grad()",
    "gradient": "cotangent=",
    "create_graph": "fd.grad(fd.grad(f)), or a leaf on device.autodiff(order=2)",
    "start_dim": "x.reshape(*x.shape[:start], -1), or the layer nn.Flatten(start)",
    "end_dim": "x.reshape(shape), or the layer nn.Flatten(start, end)",
    "use_bias": "bias=",
    "features": "the sizes by torch's names, such as in_features and out_features",
    "non_blocking": "the call without it: transfers do not block",
    "memory_format": "the call without it: tensors have no strides",
    "out": "the call without it, and use what it returns",
    "size_average": "reduction='mean' or reduction='sum'",
    "reduce": "reduction=",
    "lr": "learning_rate=",
    "betas": "b1= and b2=",
    "in_dims": "in_axes=",
    "out_dims": "out_axes=",
    "argnum": "argnums=",
    "wrt": "argnums=, the positions of the arguments to differentiate",
    "argnames": "argnums=, the positions of the arguments to differentiate",
    "static_args": "static_argnums=, or static_argnames=",
    "rngs": "key=",
    "rng": "key=",
    "generator": "key=, such as fd.random.key(0)",
    "inference": "model.valid() to switch dropout and batch norm off, model.train() to switch them on",
    "deterministic": "model.valid() to switch dropout off, model.train() to switch it on",
    "use_running_average": "model.valid() for running means, model.train() for those of the batch",
    "use_running_stats": "model.valid() for running means, model.train() for those of the batch",
    "train": "model.train() or model.valid()",
    "p": "ord=",
    "requires_grad_": "x.require_grad()",
    "kernel": "kernel_size=",
    "size": "shape=",
    "rate": "p= for dropout, learning_rate= for an optimiser",
}

_OF = {
    ("sgd", "weight_decay"): "fd.optim.chain(fd.optim.add_decayed_weights(weight_decay), fd.optim.sgd(learning_rate))",
    ("adam", "weight_decay"): "fd.optim.adamw(learning_rate, weight_decay=weight_decay), which decays apart from the "
    "gradient, or fd.optim.chain(fd.optim.add_decayed_weights(weight_decay), fd.optim.adam(learning_rate))",
    ("rmsprop", "weight_decay"): "fd.optim.chain(fd.optim.add_decayed_weights(weight_decay), fd.optim.rmsprop(...))",
    ("rmsprop", "alpha"): "decay=",
    ("autodiff", "order"): "x.device.autodiff(order=2).lift(x)",
    **{
        (
            "checkpoint",
            name,
        ): "the call without it: fd.checkpoint(f, policy) takes a function and returns one, so that a "
        "call is fd.checkpoint(f)(x); random numbers and names are as they were when it runs again"
        for name in ("use_reentrant", "preserve_rng_state", "determinism_check", "context_fn", "debug")
    },
    **{("normal", name): "mean + std * fd.random.normal(key, shape)" for name in ("loc", "scale", "mean", "std")},
    ("step", "loss"): "value=loss, for optimisers that ask for the loss",
    ("step", "closure"): "value_fn=, a function of the model, for optimisers that ask for one: fd.optim.lbfgs()",
    ("step", "value_and_grad_fn"): "value=, and the gradients as the second argument",
    ("step", "momentum"): "fd.optim.sgd(learning_rate, momentum), where the optimiser is made",
    ("step", "weight_decay"): "fd.optim.adamw(learning_rate, weight_decay=...), where the optimiser is made",
    ("step", "max_norm"): "fd.optim.chain(fd.optim.clip_by_norm(max_norm), optimiser), where the optimiser is made",
    **{
        ("QuantScheme", name): 'dtype="int8", the only width there is'
        for name in ("bits", "nbits", "num_bits", "value")
    },
    **{("QuantScheme", name): "block=" for name in ("block_size", "group_size", "groupsize", "blocksize")},
    **{
        (
            "QuantScheme",
            name,
        ): "block=x.shape[-1] for one scale per row, block=None for one in all: blocks run along the last axis"
        for name in ("axis", "ch_axis", "granularity", "level")
    },
    ("sgd", "dampening"): "the call without it: the momentum is not dampened",
}
"""What holds for one function alone."""

_OF_OPS = {
    "dtype": "x.astype(dtype) of an input or the result",
    "where": "fd.where(mask, f(x), y)",
    **dict.fromkeys(("casting", "order", "subok", "signature"), "the call without it"),
    **dict.fromkeys(("input", "other", "x", "y", "a", "b", "x1", "x2"), "it by position"),
}
"""What holds for ops: NumPy's further arguments, and torch's names for inputs."""


def better_error(
    error: TypeError,
    what: str,
    too_many: str | None = None,
    missing: str | None = None,
    taken: Callable[[], inspect.Signature] | None = None,
) -> ArgumentTypeError | None:
    """The error that says what to write, if Python refused the call that was just made for an argument that is known."""
    trace = error.__traceback__
    if trace is None or trace.tb_next is not None:  # something further in failed
        return None
    found = _UNKNOWN.search(str(error))
    if found is not None:
        instead = _advice(what, found[1], taken)
        if instead is not None:
            return ArgumentTypeError(f"{what}: there is no argument {found[1]!r}; write {instead}.")
        return (
            None if taken is None else ArgumentTypeError(f"{what}: {found[0]}{_near(found[1], taken)}{_listed(taken)}.")
        )
    gone = _MISSING.search(str(error))
    if gone is not None:
        if missing is not None:
            return ArgumentTypeError(f"{what}: {missing}.")
        return ArgumentTypeError(f"{what}: the argument{'s' if ' and ' in gone[1] else ''} {gone[1]} must be given.")
    if _COUNT.search(str(error)):
        if too_many is not None:
            return ArgumentTypeError(f"{what}: too many arguments; write {too_many}.")
        return (
            None
            if taken is None
            else ArgumentTypeError(f"{what}: more arguments by position than it takes{_form(taken)}.")
        )
    if (twice := _TWICE.search(str(error))) is not None and taken is not None:
        instead = OF.get((what, twice[1]))
        hint = f"; write {instead}" if instead else _form(taken)
        return ArgumentTypeError(f"{what}: the argument {twice[1]!r} is given by position and by name{hint}.")
    if (placed := _PLACED.search(str(error))) is not None and taken is not None:
        return ArgumentTypeError(f"{what}: the arguments {placed[1]} are given by position, not by name{_form(taken)}.")
    return None


def _advice(what: str, name: str, taken: Callable[[], inspect.Signature] | None) -> str | None:
    """What to write instead of an argument; not another that the function does not take either, as a layer no rate."""
    if (special := _OF.get((what, name)) or OF.get((what, name))) is not None:
        return special
    instead = _INSTEAD.get(name)
    known = None if taken is None else _known(taken)
    if known is None:
        return instead
    alike = next((names for names in SAME if name in names and not set(names).isdisjoint(known)), ())
    ours = next((other for other in alike if other in known), None)
    plain = instead is not None and instead.removesuffix("=").isidentifier()
    if plain and instead.removesuffix("=") in known:  # type: ignore[union-attr]
        return instead
    return f"{ours}=" if ours is not None else None if plain else instead


def _known(taken: Callable[[], inspect.Signature]) -> list[str] | None:
    """The arguments that a function takes by name; None where that is not known."""
    try:
        kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [p.name for p in taken().parameters.values() if p.kind in kinds and p.name != "self"]
    except (TypeError, ValueError, AttributeError):
        return None


def _near(name: str, taken: Callable[[], inspect.Signature]) -> str:
    near = difflib.get_close_matches(name, _known(taken) or (), 1, 0.7)
    return f"; did you mean {near[0]!r}" if near else ""


def _form(taken: Callable[[], inspect.Signature]) -> str:
    """How a function is called, for a message."""
    try:
        found = taken()
    except (TypeError, ValueError, AttributeError):
        return ""
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values() if p.name != "self"]
    return (
        f"; its arguments are {found.replace(parameters=bare, return_annotation=found.empty)}"
        if bare
        else "; it takes none"
    )


def _listed(taken: Callable[[], inspect.Signature]) -> str:
    """The arguments that a function takes, for a message."""
    known = _known(taken)
    if known is None:
        return ""
    return f"; the arguments are {', '.join(known)}" if known else "; it takes none by name"


def no_argument(what: str, name: str, known: list[str], otherwise: str, op: bool = False) -> ArgumentTypeError:
    """The error for an argument that a function which takes any, or an op, does not look at."""
    instead = (_OF_OPS.get(name) if op else None) or _OF.get((what, name)) or _INSTEAD.get(name)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"write {instead}." if instead else f"did you mean {near[0]!r}?" if near else f"{otherwise}."
    return ArgumentTypeError(f"{what}: there is no argument {name!r}; {hint}")


def unknown_argument(error: TypeError) -> str | None:
    """The argument that Python refused, if that is why a call failed."""
    found = _UNKNOWN.search(str(error))
    return None if found is None else found[1]


def called_wrong(error: TypeError, what: str, forward: Callable[..., Any]) -> ArgumentTypeError | None:
    """The same for a call that was made one frame further in, of a method."""
    trace = error.__traceback__
    if isinstance(error, ArgumentTypeError) or trace is None or trace.tb_next is not None:
        return None
    text = str(error)
    found = _UNKNOWN.search(text)
    if found is not None:
        instead = _advice(what, found[1], lambda: inspect.signature(forward))
        if instead is not None:
            return ArgumentTypeError(f"{what}: there is no argument {found[1]!r}; write {instead}.")
        return ArgumentTypeError(f"{what}: its forward takes {_call(forward)}, and no {found[1]!r}.")
    gone, count = _MISSING.search(text), _COUNT.search(text)
    if gone is None and count is None:
        return None
    given = f"{gone[1]} must be given" if gone is not None else "more were given by position"
    return ArgumentTypeError(f"{what}: its forward takes {_call(forward)}, and {given}.")


def _call(method: Callable[..., Any]) -> str:
    """The arguments of a method as code: `(x, *, key=None)`."""
    found = inspect.signature(method)
    bare = [p.replace(annotation=p.empty) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def explained(fn: F, too_many: str | None = None, missing: str | None = None) -> F:
    """A function that says what to write when it is called with another library's argument, or one it cannot use."""
    if (again := getattr(fn, "again", None)) is not None:  # a wrapper, which the error would come through
        made: F = again(explained(fn.__wrapped__, too_many, missing))  # type: ignore[attr-defined]
        return made
    name = getattr(getattr(fn, "func", fn), "__name__", "the function")  # of a partial
    flags = flags_of(fn)
    first = min(flags.values(), default=sys.maxsize)
    loose = [key for key in flags if "None" in str(inspect.signature(fn).parameters[key].annotation)]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            for key in flags:  # seldom more than one
                if key in kwargs and type(kwargs[key]) is not bool:
                    check_flag(name, key, kwargs[key], key in loose)
        if len(args) > first:
            for key, place in flags.items():
                if place < len(args):
                    check_flag(name, key, args[place], key in loose)
        try:
            return fn(*args, **kwargs)
        except DEEP as error:
            better = refusal(error, name, fn, args, kwargs, too_many, missing)
            if better is None:
                raise
        try:
            raise better
        finally:
            del better  # which would hold the arguments in a cycle

    return call  # type: ignore[return-value]


def refusal(
    error: Exception,
    name: str,
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    too_many: str | None = None,
    missing: str | None = None,
    taken: Callable[[], inspect.Signature] | None = None,
) -> FunctadError | None:
    """What to raise in place of an error that a call of `fn` gave; None if that is to stay."""
    if isinstance(error, FunctadError):
        return None
    if isinstance(error, TypeError):
        taken = taken or (lambda: inspect.signature(fn))
        if (better := better_error(error, name, too_many, missing, taken)) is not None:
            return better
    if (other := told(error, name, fn, args, kwargs)) is not None:
        other.__cause__ = error
    return other


def explain(names: dict[str, Any], only: Sequence[str] = ()) -> None:
    """Let the functions of a module (all, or `only` some) refuse another library's arguments so.

    One of the module's own files is replaced there too; one of another package is left there as it is,
    and the new one says that it is from here. So each is found, by pickle, where it is said to be.
    """
    here = names["__name__"]
    made: dict[Any, Any] = {}
    for name, value in list(names.items()):
        if name.startswith("_") or not inspect.isfunction(value):
            continue
        if hasattr(value, "__wrapped__") and (not hasattr(value, "again") or hasattr(value.__wrapped__, "__wrapped__")):
            continue
        if only and name not in only:
            continue
        if value not in made:
            made[value] = new = explained(value)
            home = vars(sys.modules[value.__module__])
            if here != "functad" and f"{value.__module__}.".startswith(f"{here}.") and home.get(new.__name__) is value:
                home[new.__name__] = new
            else:
                new.__module__, new.__qualname__ = here, name
        names[name] = made[value]


def explain_methods(kind: type, too_many: Mapping[str, str] = MappingProxyType({})) -> None:
    """The same for the methods of a class."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_") and not hasattr(method, "__wrapped__"):
            told = explained(method, too_many.get(name))
            setattr(kind, name, _alone(method, told) if _takes_self_alone(method) else told)


def _takes_self_alone(method: Callable[..., Any]) -> bool:
    return list(inspect.signature(method).parameters) == ["self"]


def _alone(method: F, told: F) -> F:
    """`told`, of a method without arguments: less in the way of a call."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return told(self, *args, **kwargs) if args or kwargs else method(self)

    return call  # type: ignore[return-value]
