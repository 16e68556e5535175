"""`custom_vjp` and `custom_jvp`: a function with derivative rules of its own.

A rule is ordinary code: what it computes is differentiated, mapped and compiled like any other.
Each mode uses the rule given for it; a missing one is the transpose of the other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

from functad import tree
from functad.dispatch import tracing
from functad.errors import ArgumentError, ArgumentTypeError
from functad.keywords import explain_methods, explained
from functad.levels import open_depth
from functad.tensor import Tensor
from functad.transforms.arguments import check_callable
from functad.transforms.captures import Captures
from functad.transforms.custom_op import Call, CustomOp
from functad.transforms.python_op import bind_closed, outside, zeros_like


class _Custom:
    """A function and its rules; what `custom_vjp` and `custom_jvp` have in common."""

    def __init__(
        self,
        fun: Callable[..., Any],
        nondiff_argnums: int | Sequence[int] = (),
        nondiff_argnames: str | Sequence[str] = (),
    ):
        check_callable(fun, type(self).__name__)
        functools.update_wrapper(self, fun, updated=())
        self._fun = fun
        self._name = f"{type(self).__name__}({getattr(fun, '__name__', type(fun).__name__)})"
        self._signature = _signature(fun)
        self._count = _count(self._signature)
        self._nondiff = _positions(nondiff_argnums, nondiff_argnames, self._signature, self._name)
        self._fwd: Any = None
        self._bwd: Any = None
        self._jvp: Any = None
        self._captures: Captures | None = None

    @partial(explained, missing="give both rules: f.defvjp(fwd, bwd)")
    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Give the rule for reverse mode.

        Args:
            fwd: takes what the function takes, and returns `(result, residuals)`; residuals may
                be any pytree.
            bwd: takes the non-differentiable arguments, the residuals and the cotangent of the
                result, and returns a tuple with one cotangent for each of the other arguments.
                None stands for zero; for integers there is nothing else. NumPy values will do.
        """
        for rule, name in ((fwd, "fwd"), (bwd, "bwd")):
            check_callable(rule, f"{self._name}.defvjp({name})")
        self._fwd, self._bwd, self._captures = fwd, bwd, None

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Give the rule for forward mode; usable as a decorator.

        Args:
            jvp: takes the non-differentiable arguments, the tuple of the other arguments and the
                tuple of their tangents (None for integers), and returns `(result, tangent)`. The
                tangent must be linear in the tangents.
        """
        check_callable(jvp, f"{self._name}.defjvp")
        self._jvp, self._captures = jvp, None
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Give one rule per argument: `jvp(tangent, result, *arguments)`, None for zero."""
        if self._nondiff:
            raise ArgumentError(f"{self._name}.defjvps: not with nondiff_argnums; write one rule and use defjvp.")

        def jvp(primals: Any, tangents: Any) -> Any:
            out = self(*primals)
            terms = [
                rule(t, out, *primals)
                for rule, t in zip(jvps, tangents, strict=True)
                if rule is not None and t is not None
            ]
            if not terms:
                return out, tree.map(zeros_like, out)
            return out, functools.reduce(lambda a, b: tree.map(lambda x, y: x + y, a, b), terms)

        self.defjvp(jvp)

    @property
    def _rules(self) -> tuple[Any, ...]:
        """Every function the result or a derivative may run."""
        return (self._fun, self._fwd, self._bwd, self._jvp)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._bwd is None and self._jvp is None:
            raise ArgumentError(
                f"{self._name} has no derivative rule yet: give it one with .defvjp(fwd, bwd) or .defjvp(jvp) before "
                "calling it."
            )
        call = Call(self._name, self._signature, self._nondiff, self._positional(args, kwargs))
        closed = self._outside() if open_depth() or tracing.get() is not None else []
        _, outs = bind_closed(functools.partial(CustomOp, call, self._rules), call.tensors, closed)
        return tree.unflatten(call.result, outs)

    def _outside(self) -> list[Tensor]:
        if self._captures is None:
            self._captures = Captures(_all_of(self._rules))
        return outside(self._captures())

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments by position, with defaults, as the rules take them."""
        if self._signature is None:
            if kwargs:
                raise ArgumentTypeError(
                    f"{self._name}: its signature is unknown, so pass {sorted(kwargs)} by position."
                )
            return args
        if not kwargs and len(args) == self._count:
            return args
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            bare = [p.replace(annotation=p.empty) for p in self._signature.parameters.values()]
            takes = self._signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
            raise ArgumentTypeError(f"{self._name}: {error}; its arguments are {takes}.") from None
        bound.apply_defaults()
        if bound.kwargs:
            raise ArgumentTypeError(
                f"{self._name}: its rules take arguments by position, but {sorted(bound.kwargs)} can only be passed by "
                "keyword; leave out the * in the signature of the function."
            )
        return bound.args

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<{self._name}>"


class custom_vjp(_Custom):
    """A function with its own rule for reverse mode, given by `defvjp`. The meaning is JAX's.

    Args:
        fun: the function.
        nondiff_argnums: positions of static arguments, passed to the rules as they are.
        nondiff_argnames: the same by name.

    An array that has no gradient is an ordinary argument: let `bwd` return None for it.

    >>> import functools
    >>> import functad as fd
    >>> from functad import numpy as fnp
    >>> @fd.custom_vjp
    ... def log1pexp(x):
    ...     return fnp.log(1 + fnp.exp(x))
    >>> log1pexp.defvjp(lambda x: (log1pexp(x), x), lambda x, g: (g * (1 - 1 / (1 + fnp.exp(x))),))
    >>> fd.grad(log1pexp)(100.0).item()
    1.0

    Two arguments and a static one, which comes first in `bwd`; `i` has no gradient:

    >>> @functools.partial(fd.custom_vjp, nondiff_argnums=(0,))
    ... def pick(scale, x, i):
    ...     return scale * x[i]
    >>> def pick_bwd(scale, saved, g):
    ...     x, i = saved
    ...     return fnp.zeros_like(x).at[i].set(scale * g), None
    >>> pick.defvjp(lambda scale, x, i: (pick(scale, x, i), (x, i)), pick_bwd)
    >>> fd.grad(lambda x: pick(2.0, x, 1))(fd.ones(3)).tolist()
    [0.0, 2.0, 0.0]
    """


class custom_jvp(_Custom):
    """A function with its own rule for forward mode, given by `defjvp`. The meaning is JAX's.

    Reverse mode transposes the rule. See `custom_vjp` for the arguments.

    >>> import functad as fd
    >>> @fd.custom_jvp
    ... def f(x):
    ...     return x * x
    >>> @f.defjvp
    ... def f_jvp(primals, tangents):
    ...     return f(*primals), 2 * primals[0] * tangents[0]
    >>> fd.grad(f)(3.0).item()
    6.0
    """


def _signature(fn: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def _count(signature: inspect.Signature | None) -> int | None:
    """How many arguments there are, if each can be passed by position."""
    parameters = signature.parameters.values() if signature is not None else ()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len(parameters) if parameters and all(p.kind in by_position for p in parameters) else None


def _positions(nums: Any, names: Any, signature: inspect.Signature | None, where: str) -> frozenset[int]:
    numbers = list(nums) if isinstance(nums, (tuple, list)) else [nums]
    parameters = list(signature.parameters) if signature is not None else []
    for name in [names] if isinstance(names, str) else names:
        if name not in parameters:
            raise ArgumentError(f"{where}: nondiff_argnames names {name!r}, but the arguments are {parameters}.")
        numbers.append(parameters.index(name))
    if not all(isinstance(n, int) and n >= 0 for n in numbers):
        raise ArgumentError(f"{where}: nondiff_argnums must be non-negative ints, got {nums!r}.")
    variadic = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()) if signature is not None else True
    if not variadic and numbers and max(numbers) >= len(parameters):
        raise ArgumentError(f"{where}: nondiff_argnums={nums!r}, but the arguments are {parameters}.")
    return frozenset(numbers)


def _all_of(rules: tuple[Any, ...]) -> Callable[[], Any]:
    """A function that reaches what any of the rules reaches."""

    def reach() -> Any:
        return rules

    return reach


def _explain() -> None:
    """Let both refuse another library's arguments in their own names."""
    for kind in (custom_vjp, custom_jvp):
        made = FunctionType(_Custom.__init__.__code__, globals(), kind.__name__, _Custom.__init__.__defaults__)
        kind.__init__ = explained(made)  # type: ignore[method-assign]
    explain_methods(_Custom)


_explain()
