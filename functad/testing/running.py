"""Running one op on a case: concretely, abstractly, as a function of what it differentiates, row by row."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from functad import dtypes
from functad.backends.fusion import Fusion
from functad.device import Device
from functad.dispatch import bind
from functad.errors import CheckFailedError, FunctadError
from functad.ops.op import Op
from functad.testing.derivatives import jvp, vjp
from functad.testing.numeric import Check, direction
from functad.testing.sampling import Case, cast, describe, input_names
from functad.transforms.vmap import vmap

R = TypeVar("R")


@functools.cache
def compiling() -> Device:
    """The CPU as a device that fuses, and compiles what is new at once: nothing runs on the host."""
    xla: Any = Device.cpu(fusion=False).base
    return Device(Fusion(xla, near=False))


def run(op: Op, inputs: Sequence[Any], params: tuple[Any, ...]) -> list[Any]:
    """The outputs of an op as a list."""
    out = bind(op, inputs, params)
    return list(out) if type(out) is tuple else [out]


def tensors(device: Device, arrays: Iterable[Any], wide: bool = True) -> list[Any]:
    """The arrays as tensors, in the dtypes they have, or else in those the device holds now."""
    return [device.base.put(np.asarray(a), a.dtype if wide else None) for a in arrays]


def arrays(values: Iterable[Any]) -> list[Any]:
    """Tensors as NumPy arrays."""
    return [x.numpy() for x in values]


def precise(device: Device) -> AbstractContextManager[Any]:
    """Float64 on that device."""
    return dtypes.enable_x64() if device.base.name == "xla" else nullcontext()


def abstract(case: Case) -> list[Any] | None:
    """The types of the outputs under JAX, or None if it refuses these inputs."""
    fixed = dict(zip(case.op.params, case.params, strict=True))
    try:
        out = jax.eval_shape(lambda *xs: case.op.impl(jnp, *xs, **fixed), *case.inputs)
    except (TypeError, ValueError, IndexError, NotImplementedError, FunctadError):
        return None
    return list(out) if type(out) is tuple else [out]


def concrete(case: Case, device: Device | None = None) -> list[Any] | None:
    """The outputs on a device (NumPy by default), or None if it refuses these inputs."""
    device = device or Device.numpy()
    try:
        return arrays(run(case.op, tensors(device, case.inputs), case.params))
    except (FunctadError, AttributeError, NotImplementedError):
        return None


def moving(case: Case) -> list[int]:
    """The inputs that have a derivative."""
    if not case.op.differentiable:
        return []
    return [i for i, x in enumerate(case.inputs) if dtypes.is_inexact(x.dtype) and case.op.takes(i)]


def is_smooth(case: Case) -> bool:
    """Whether it has a derivative to check: floats in, floats out, and finite unless something is empty."""
    values = concrete(case)
    outs = [y for y in values or abstract(case) or () if dtypes.is_inexact(y.dtype)]
    empty = any(x.size == 0 for x in case.inputs) and values is not None
    finite = not empty or all(np.isfinite(y).all() for y in outs)
    return bool(outs) and finite and any(dtypes.is_inexact(x.dtype) for x in case.inputs)


def smooth(case: Case, inputs: Sequence[Any], which: Sequence[int]) -> Callable[..., list[Any]]:
    """The op as a function of the inputs in `which`, with the outputs that have a derivative."""

    def fn(*xs: Any) -> list[Any]:
        full = list(inputs)
        for i, x in zip(which, xs, strict=True):
            full[i] = x
        return [y for y in run(case.op, full, case.params) if dtypes.is_inexact(y._dtype)]

    return fn


def mapped(fn: Callable[..., list[Any]], over: Sequence[bool]) -> Callable[..., list[Any]]:
    """`fn` over the first axis of the inputs marked in `over`; every output has that axis first."""
    return vmap(lambda *xs: list(fn(*xs)), in_axes=tuple(0 if o else None for o in over))


def subsets(count: int) -> Iterator[tuple[int, ...]]:
    """The non-empty subsets of `range(count)`, the whole first; of many inputs only it and each alone."""
    sizes = range(count, 0, -1) if count <= 3 else (count, 1)
    for size in sizes:
        yield from itertools.combinations(range(count), size)


def draw_vectors(rng: np.random.Generator, case: Case) -> tuple[list[Any], list[Any], list[Any]]:
    """Random cotangents of the outputs, tangents of the inputs, and cotangents of the gradients."""
    outs = [y for y in concrete(case) or abstract(case) or () if dtypes.is_inexact(y.dtype)]
    ins = [case.inputs[i] for i in moving(case)]
    return [direction(rng, y) for y in outs], [direction(rng, x) for x in ins], [direction(rng, x) for x in ins]


def against_differences(case: Case, device: Device, rng: np.random.Generator, order: int) -> None:
    """Derivatives in both modes against central differences, up to `order`."""
    which = moving(case)
    fn = smooth(case, tensors(device, case.inputs), which)
    names = input_names(case.op, case.inputs)

    def named(*xs: Any) -> dict[str, Any]:
        outs = fn(*xs)
        return {"out" if len(outs) == 1 else f"out[{k}]": y for k, y in enumerate(outs)}

    Check(
        named,
        [names[i] for i in which],
        [case.inputs[i] for i in which],
        lambda a: device.base.put(a, a.dtype),
        f"{case.op.name}, {case}",
        rng=rng,
    ).run(order, ("rev", "fwd"))


# --- comparing


def fail(case: Case, text: str) -> NoReturn:
    """Raise, saying which case of which op."""
    raise CheckFailedError(f"{case.op.name}, {case}: {text}")


def of_case(fn: Callable[..., R]) -> Callable[..., R]:
    """Make refusals inside `fn(case, ...)` failures of the check, which say in which case."""

    @functools.wraps(fn)
    def wrapped(case: Case, *args: Any, **kwargs: Any) -> R:
        try:
            return fn(case, *args, **kwargs)
        except CheckFailedError:
            raise
        except FunctadError as error:
            fail(case, str(error))

    return wrapped


@of_case
def all_of(
    case: Case, device: Device, vectors: Any, tangents: bool = True, put: Callable[..., list[Any]] = tensors
) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, gradients and tangents as arrays; `put` makes the tensors."""
    xs = put(device, case.inputs)
    values = arrays(run(case.op, xs, case.params))
    if vectors is None:
        return values, [], []
    which = moving(case)
    fn = smooth(case, xs, which)
    point = [xs[i] for i in which]
    gs, ts = (put(device, v) for v in vectors)
    gradient = arrays(vjp(fn, point)[1](gs))
    return values, gradient, arrays(jvp(fn, point, ts)[1]) if tangents else []


def precision(dtype: Any) -> float:
    """How closely two ways to compute in `dtype` agree."""
    if not dtypes.is_inexact(dtype):
        return 0.0
    unit = float(ml_dtypes.finfo(dtype).eps)
    return 4 * unit if dtypes.is_half(dtype) else 1e-9 if unit < 1e-10 else 3e-5


def same(
    case: Case,
    what: str,
    got: Sequence[Any],
    want: Sequence[Any],
    factor: float = 1.0,
    names: Sequence[str] = (),
    least: float = 0.0,
) -> None:
    """Two lists of arrays agree in shape and dtype, and in value to `factor` times their precision.

    The error is measured against the number itself and a tenth of the largest in its array, which
    counts as `least` if it is smaller.
    """
    if len(got) != len(want):
        fail(case, f"{what}: {len(got)} results where {len(want)} are expected.")
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        name = f"{what} of {names[i]}" if names else what + (f", output {i}" if len(want) > 1 else "")
        if a.shape != b.shape or a.dtype != b.dtype:
            fail(case, f"{name}: {describe(a)} where {describe(b)} is expected.")
        if not a.size:
            continue
        allowed = factor * precision(b.dtype)
        a, b = widen(a), widen(b)
        with np.errstate(all="ignore"):
            scale = np.max(np.abs(b), where=np.isfinite(b), initial=least)
            equal = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= allowed * (np.abs(b) + 0.1 * scale))
        if not equal.all():
            at = tuple(map(int, np.argwhere(~equal)[0]))
            fail(case, f"{name}, element {at}: {a[at]:.17g} where {b[at]:.17g} is expected.")


def widen(x: Any) -> Any:
    """An array in double precision."""
    return np.asarray(x).astype(np.complex128 if x.dtype.kind == "c" else np.float64)


# --- variants of a case


def in_dtypes(case: Case, first: bool) -> Iterator[Case]:
    """The case in float32, or the first one in all floats and (optional) integers, bools and complex numbers."""
    if not any(dtypes.is_float(x.dtype) for x in case.inputs):
        yield case
        return
    some: list[dtypes.DType] = [dtypes.float64, dtypes.bfloat16, dtypes.float16] if first else [dtypes.float32]
    for dtype in some:
        yield case._replace(inputs=cast(case.inputs, dtype))
    if not first or not case.drawn:
        return
    if case.op.promote != "float":
        for kind in (np.int32, np.bool_):
            yield case._replace(inputs=tuple(np.rint(x).astype(kind) for x in case.inputs), optional=True)
    if case.op.differentiable or case.op.promote != "same":
        yield as_complex(case)


def as_complex(case: Case) -> Case:
    """The case with an imaginary part for every float."""
    inputs = tuple(x + 0.25j * np.cos(3 * x + 1) if dtypes.is_float(x.dtype) else x for x in case.inputs)
    return case._replace(inputs=inputs, optional=True)


def with_complex(cases: Sequence[Case]) -> list[Case]:
    """The cases, and the first one in complex numbers if both backends take them."""
    first = as_complex(cases[0]) if cases[0].drawn else None
    if first is None or abstract(first) is None or concrete(first) is None:
        return list(cases)
    return [*cases, first]
