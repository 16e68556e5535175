"""`check_grads` and `check_op`: the two checks users call."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from functad import dtypes, tree
from functad.device import Device
from functad.dispatch import Handle, base_backend, base_tensor
from functad.errors import ArgumentError, ArgumentTypeError, CheckFailedError
from functad.ops.op import Op
from functad.ops.operand import as_array, operand
from functad.testing.numeric import Check, Mode, Tolerance
from functad.testing.properties import PROPERTIES, applicable


def check_grads(
    fn: Callable[..., Any],
    args: Sequence[Any],
    order: int = 2,
    modes: Mode | Sequence[Mode] = ("rev", "fwd"),
    eps: float | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    *,
    kwargs: dict[str, Any] | None = None,
    seed: int = 0,
) -> None:
    """Compare the derivatives of `fn(*args, **kwargs)` with central differences.

    Floats in `args` are taken to float64 and shifted along random directions, on the device of the
    first tensor among them (the default one if there is none). Where both modes are checked they
    must also be each other's adjoint: <g, J t> = <J^T g, t>.

    Args:
        fn: a function of tensors that returns a tensor or a pytree of them.
        args: its positional arguments, each a tensor, array, number or pytree. Integers are held.
        order: how often to differentiate; order 2 also checks both modes of both derivatives.
        modes: "rev" for reverse mode, "fwd" for forward mode, or both in a tuple.
        eps: the step of the differences, relative to numbers above 1.
        atol: the absolute tolerance. It, `eps` and `rtol` are chosen by the precision of the outputs.
        rtol: the relative tolerance.
        kwargs: keyword arguments of `fn`, held.
        seed: of the random directions.

    Raises `CheckFailedError`, an `AssertionError`, naming argument, element, both values, mode and
    order; also if `fn` is not finite there, or is not the same at every call.

    >>> import functad as fd
    >>> from functad.testing import check_grads
    >>> check_grads(lambda p: p["w"] * fd.tensor([1.0, 2.0]), ({"w": fd.tensor([3.0, 4.0])},))
    """
    where = "check_grads"
    if not isinstance(args, (tuple, list)):
        raise ArgumentTypeError(
            f"{where}: args must be a tuple of fn's arguments, got {type(args).__name__}; write (x,)."
        )
    modes = (modes,) if isinstance(modes, str) else tuple(modes)
    if not modes or any(mode not in ("rev", "fwd") for mode in modes):
        raise ArgumentError(f"{where}: modes must be some of 'rev' and 'fwd', got {modes!r}.")
    if order < 1:
        raise ArgumentError(f"{where}: order must be at least 1, got {order!r}.")
    leaves, structure = tree.flatten(tuple(args))
    arrays = {i: array for i, leaf in enumerate(leaves) if (array := _differentiable(leaf)) is not None}
    if not arrays:
        raise ArgumentTypeError(f"{where}: there is no float among the arguments, so there is no derivative to check.")
    paths = tree.paths(tuple(args))
    first = next((x for x in leaves if isinstance(x, Handle)), None)
    base = base_backend(first) if first is not None else Device.default().base

    def call(*tensors: Any) -> dict[str, Any]:
        filled = dict(zip(arrays, tensors, strict=True))
        full = [filled.get(i, leaf) for i, leaf in enumerate(leaves)]
        return _named(fn(*tree.unflatten(structure, full), **(kwargs or {})), where)

    with dtypes.enable_x64() if base.name == "xla" else nullcontext():
        check = Check(
            call,
            [f"args{paths[i]}" for i in arrays],
            list(arrays.values()),
            lambda a: base.put(a, a.dtype),
            where,
            Tolerance(eps, atol, rtol),
            np.random.default_rng(seed),
            given=[str(getattr(leaves[i], "dtype", array.dtype)) for i, array in arrays.items()],
        )
        check.run(order, modes)


def check_op(
    op: Op,
    device: Device | None = None,
    *,
    properties: Collection[str] | str | None = None,
    skip: Collection[str] | str = (),
    seed: int = 0,
) -> None:
    """Check an op against every generic property, on its own samples.

    Both backends agree; derivatives of both modes agree with finite differences to second order,
    with each other, and with JAX's of the implementation; vmap is a loop; checkpointing changes
    nothing; dtypes are kept; zero-size, 0-d and strided inputs work; a zero cotangent stays zero; nothing is
    kept that the rule does not name. `functad.testing.properties.PROPERTIES` lists them by name.

    Args:
        op: the op, with samples.
        device: the one to use; without it NumPy, and XLA for what compares them.
        properties: the names of those to check, all by default.
        skip: the names of those not to check.
        seed: of the numbers drawn.

    Raises `CheckFailedError`, an `AssertionError` that lists what failed and how to repeat it.

    >>> import functad as fd
    >>> from functad.testing import check_op
    >>> check_op(fd.ops.neg, properties=["adjoint", "memory"])
    """
    if not isinstance(op, Op):
        raise ArgumentTypeError(f"check_op: expected an op (functad.ops.TABLE lists them), got {type(op).__name__}.")
    skip = (skip,) if isinstance(skip, str) else skip
    properties = (properties,) if isinstance(properties, str) else properties
    unknown = ({*(properties or ()), *skip}) - PROPERTIES.keys()
    if unknown:
        raise ArgumentError(f"check_op: there is no property {sorted(unknown)}; there are {', '.join(PROPERTIES)}.")
    failures = []
    for name, prop in applicable(op).items():
        if name in skip or (properties is not None and name not in properties):
            continue
        try:
            prop(op, device, seed)
        except CheckFailedError as error:
            failures.append(f"[{name}] {error}")
    if failures:
        listed = "\n".join(failures)
        again = ", ".join(repr(text[1 : text.index("]")]) for text in failures)
        raise CheckFailedError(
            f"{listed}\nto repeat: functad.testing.check_op(op, properties=[{again}], seed={seed}) with op {op.name!r}"
        )


def _differentiable(leaf: Any) -> Any:
    """A float leaf as a float64 array, a complex one as complex128, None for any other."""
    if isinstance(leaf, Handle):
        leaf = base_tensor(leaf).numpy()
    elif not isinstance(leaf, (float, complex)):
        try:
            leaf = as_array(leaf, "check_grads")
        except ArgumentTypeError:
            return None
    array = np.asarray(leaf)
    if not dtypes.is_inexact(array.dtype):
        return None
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _named(out: Any, where: str) -> dict[str, Any]:
    """The float outputs of a function by their place."""
    leaves = [x if isinstance(x, Handle) else operand(x, where=where) for x in tree.leaves(out)]
    named = {f"out{p}": x for p, x in zip(tree.paths(out), leaves, strict=True) if dtypes.is_inexact(x.dtype)}
    if not named:
        raise ArgumentTypeError(f"{where}: the function returns no float tensor, so there is no derivative to check.")
    return named
