"""`grad` and `value_and_grad`: reverse mode as a function of functions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from functad import dtypes
from functad.backends.autodiff import Autodiff
from functad.dispatch import Handle
from functad.errors import ArgumentTypeError, DTypeError, ShapeError
from functad.levels import deeper
from functad.ops.op import Type
from functad.ops.operand import operand
from functad.ops.rules import zeros
from functad.transforms.arguments import Argnums, differentiable, indices, leave, positional, unflatten


def value_and_grad(
    fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that returns `fn(...)` and its gradient.

    Args:
        fn: returns a scalar tensor, or with `has_aux` a pair of it and anything else.
        argnums: the positional arguments to differentiate; an int, or a sequence (then the
            gradient is a tuple). They may be any pytrees; integer leaves get None.
        has_aux: whether `fn` returns `(value, aux)`; the result is then `((value, aux), grad)`.
        holomorphic: whether `fn` is a holomorphic function of complex arguments.

    Raises `ShapeError` for a value that is not a scalar and `DTypeError` for integer arguments.
    The meaning is JAX's.

    >>> import functad as fd
    >>> value, grad = fd.value_and_grad(lambda x: (x * x).sum())(fd.tensor([1.0, 2.0]))
    >>> value.item(), grad.tolist()
    (5.0, [2.0, 4.0])
    """
    _check_callable(fn, "value_and_grad")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, aux, grads = _differentiate("value_and_grad", fn, argnums, has_aux, holomorphic, args, kwargs)
        return ((value, aux) if has_aux else value), grads

    return wrapped


def grad(
    fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of `fn`; see `value_and_grad` for the arguments.

    >>> import functad as fd
    >>> fd.grad(lambda x: x * fd.grad(lambda y: x * y)(2.0))(3.0).item()
    6.0
    """
    _check_callable(fn, "grad")

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _, aux, grads = _differentiate("grad", fn, argnums, has_aux, holomorphic, args, kwargs)
        return (grads, aux) if has_aux else grads

    return wrapped


def _differentiate(
    where: str,
    fn: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool,
    holomorphic: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, Any, Any]:
    args, kwargs = positional(fn, args, kwargs, argnums)
    numbers = indices(argnums, len(args), where)
    primals, structures = differentiable([args[i] for i in numbers], numbers, where, holomorphic)
    with deeper() as level:
        tape = Autodiff(level)
        try:
            inputs = [tape.leaf(x) if dtypes.is_inexact(x._dtype) else x for x in primals]
            call = list(args)
            for i, arg in zip(numbers, unflatten(structures, inputs), strict=True):
                call[i] = arg
            out = fn(*call, **kwargs)
            value, aux = _split_aux(out, where) if has_aux else (out, None)
            value = _scalar(value, where, holomorphic)
            found = tape.gradients(value)
        finally:
            tape.close()
    grads = [_gradient(found, x) for x in inputs]
    trees = unflatten(structures, grads)
    return leave(tape, value), leave(tape, aux), trees[0] if not isinstance(argnums, (tuple, list)) else tuple(trees)


def _gradient(found: Any, x: Any) -> Any:
    if not dtypes.is_inexact(x._dtype):
        return None
    g = found.get(x)
    return zeros(Type(x._shape, x._dtype), x) if g is None else g


def _split_aux(out: Any, where: str) -> tuple[Any, Any]:
    if not (isinstance(out, tuple) and len(out) == 2):
        raise ArgumentTypeError(
            f"{where}(has_aux=True): the function must return a pair (value, aux), got {type(out).__name__}."
        )
    return out


def _scalar(value: Any, where: str, holomorphic: bool) -> Any:
    if isinstance(value, (tuple, list, dict)) or value is None:
        hint = " If it returns (loss, aux), pass has_aux=True." if isinstance(value, tuple) else ""
        raise ArgumentTypeError(
            f"{where}: the function must return a scalar tensor, got a {type(value).__name__}.{hint}"
        )
    value = value if isinstance(value, Handle) else operand(value, where=where)
    if value._shape != ():
        raise ShapeError(
            f"{where}: the function must return a scalar, got shape {value._shape}. Reduce it (.sum() or .mean()), or "
            "use fd.jacrev or fd.vjp for outputs with many elements."
        )
    if value._dtype.kind == "c" and not holomorphic:
        raise DTypeError(f"{where}: the function must return a real scalar, got {value._dtype}; see holomorphic=True.")
    if not dtypes.is_inexact(value._dtype):
        raise DTypeError(f"{where}: the function must return a float, got {value._dtype}, which has no derivative.")
    return value


def _check_callable(fn: Any, where: str) -> None:
    if not callable(fn):
        raise ArgumentTypeError(f"{where}: expected a function to differentiate, got {fn!r} of type {type(fn).__name__}.")
