"""`grad` and `value_and_grad`: reverse mode as a function of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functad import dtypes
from functad.backends.autodiff import Autodiff
from functad.dispatch import Handle
from functad.errors import ArgumentTypeError, DTypeError, ShapeError
from functad.keywords import explained
from functad.ops.op import Type
from functad.ops.operand import operand
from functad.ops.rules import zeros
from functad.param import leaves_on
from functad.transforms.arguments import (
    Argnums,
    below,
    check_callable,
    checked_argnums,
    differentiable,
    indices,
    leave,
    opened,
    positional,
    refuse_read,
    settle,
    split_aux,
    unflatten,
    wraps,
)
from functad.transforms.jit import Jitted


@explained
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
    check_callable(fn, "value_and_grad")
    argnums = checked_argnums(argnums, "value_and_grad")

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, aux, grads = differentiate("value_and_grad", fn, argnums, args, kwargs, has_aux, holomorphic)
        return ((value, aux) if has_aux else value), grads

    return wrapped


@explained
def grad(
    fn: Callable[..., Any], argnums: Argnums = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of `fn`.

    Args:
        fn: returns a scalar tensor, or with `has_aux` a pair of it and anything else.
        argnums: the positional arguments to differentiate; an int, or a sequence (then the
            gradient is a tuple). They may be any pytrees, Modules too; integer leaves get None.
        has_aux: whether `fn` returns `(value, aux)`; the result is then `(grad, aux)`.
        holomorphic: whether `fn` is a holomorphic function of complex arguments.

    Raises `ShapeError` for a value that is not a scalar and `DTypeError` for integer arguments.
    `value_and_grad` returns the value too.

    >>> import functad as fd
    >>> fd.grad(lambda x: x * fd.grad(lambda y: x * y)(2.0))(3.0).item()
    6.0

    Several arguments, and a pytree; something else beside the value:

    >>> gx, gp = fd.grad(lambda x, p: x * p["a"], argnums=(0, 1))(2.0, {"a": 3.0})
    >>> gx.item(), gp["a"].item()
    (3.0, 2.0)
    >>> slope, twice = fd.grad(lambda x: (x * x, 2 * x), has_aux=True)(3.0)
    >>> slope.item(), twice.item()
    (6.0, 6.0)
    """
    check_callable(fn, "grad")
    argnums = checked_argnums(argnums, "grad")

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _, aux, grads = differentiate("grad", fn, argnums, args, kwargs, has_aux, holomorphic, valued=False)
        return (grads, aux) if has_aux else grads

    return wrapped


def differentiate(
    where: str,
    fn: Callable[..., Any],
    argnums: int | tuple[int, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    has_aux: bool = False,
    holomorphic: bool = False,
    valued: bool = True,
) -> tuple[Any, Any, Any]:
    """The value of one call (perhaps None if not `valued`), its aux, and its gradient."""
    jitted = fn if type(fn) is Jitted and not holomorphic else None
    key = argnums, has_aux, valued
    found = None if jitted is None else jitted.differentiated_again(args, kwargs, key)
    if found is None:
        args, kwargs = positional(fn, args, kwargs, argnums)
        numbers = indices(argnums, len(args), where)
        found = None if jitted is None else jitted.differentiated(args, kwargs, numbers, key)
    if found is not None:
        value, aux, grads = found
        return value, aux, tuple(grads) if isinstance(argnums, tuple) else grads[0]
    primals, structures = differentiable([args[i] for i in numbers], numbers, where, holomorphic, args)
    with opened(Autodiff) as tape:
        inputs = leaves_on(tape, primals, [s.num_leaves for s in structures])
        call = list(args)
        for i, arg in zip(numbers, unflatten(structures, inputs), strict=True):
            call[i] = arg
        value, aux = split_aux(fn(*call, **kwargs), has_aux, where)
        if tape.was_read:
            refuse_read([value], where)
        value = settle(_scalar(value, where, holomorphic), tape)
        found = tape.gradients(value)
        if has_aux:
            aux = leave(tape, aux)
    grads = unflatten(structures, [_gradient(found, x) for x in inputs])
    return below(value, tape), aux, tuple(grads) if isinstance(argnums, tuple) else grads[0]


def _gradient(found: Any, x: Any) -> Any:
    if not dtypes.is_inexact(x._dtype):
        return None
    g = found.get(x)
    return zeros(Type(x._shape, x._dtype), x) if g is None else g


def _scalar(value: Any, where: str, holomorphic: bool) -> Any:
    if isinstance(value, (tuple, list, dict)) or value is None:
        hint = " If it returns (loss, aux), pass has_aux=True." if isinstance(value, tuple) else ""
        raise ArgumentTypeError(
            f"{where}: the function must return a scalar tensor, got a {type(value).__name__}.{hint}"
        )
    if not isinstance(value, Handle):
        value = operand(value, where=f"{where}: the function's result")
    if value._shape != ():
        raise ShapeError(
            f"{where}: the function must return a scalar, got shape {value._shape}. Reduce it (.sum() or .mean()), or "
            "use fd.jacrev or fd.vjp for outputs with many elements."
        )
    if not dtypes.is_inexact(value._dtype):
        raise DTypeError(
            f"{where}: the function must return a float, got {value._dtype}; integers, and sums of them, have no derivative."
        )
    if holomorphic and value._dtype.kind != "c":
        raise DTypeError(
            f"{where}: holomorphic=True needs a complex result, got {value._dtype}; leave holomorphic out."
        )
    if value._dtype.kind == "c" and not holomorphic:
        raise DTypeError(
            f"{where}: the function must return a real scalar, got {value._dtype}. Pass holomorphic=True for the "
            "derivative of a holomorphic function, or use fd.vjp."
        )
    return value
