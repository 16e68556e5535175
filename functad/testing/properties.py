"""What must hold of every op, checked on the samples declared beside it.

Each property is a function of an op, a device (None: NumPy, and XLA where the two are compared)
and a seed; it raises `CheckFailedError`. Whether an op can take part follows from its data: its
dtypes, which inputs it differentiates, the shapes it accepts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from functad import dtypes
from functad.backends.autodiff import Autodiff
from functad.device import Device
from functad.dispatch import Handle, bind
from functad.errors import CheckFailedError
from functad.levels import deeper
from functad.ops.arithmetic import real
from functad.ops.op import Op
from functad.ops.rules import mul, sum_op
from functad.tape import Part
from functad.testing.derivatives import compiled, execute, jvp, vjp
from functad.testing.kinds import in_complex, rounding
from functad.testing.layouts import strided
from functad.testing.mapping import vmap
from functad.testing.numeric import pair, size_of
from functad.testing.running import (
    abstract,
    against_differences,
    all_of,
    arrays,
    compiling,
    concrete,
    draw_vectors,
    fail,
    in_dtypes,
    is_smooth,
    moving,
    of_case,
    precise,
    run,
    same,
    smooth,
    subsets,
    tensors,
    with_complex,
)
from functad.testing.sampling import Case, cast, draw, draw_inputs, generator, input_names, smallest, with_edges

Property = Callable[[Op, Device | None, int], None]

_SPECIAL = (0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan)


def declared(op: Op, device: Device | None, seed: int) -> None:
    """It says what it does, and has samples."""
    if not op.doc.strip():
        raise CheckFailedError(f"op {op.name!r} has no doc: say in one line what it computes.")
    draw(op, seed)


def backends(op: Op, device: Device | None, seed: int) -> None:
    """NumPy and XLA give the same values, shapes and dtypes, in every precision."""
    if device is not None:
        return
    cases = draw(op, seed)
    chosen = []
    with dtypes.enable_x64():
        for case in cases:
            for variant in in_dtypes(case, first=case is cases[0]):
                types, values = abstract(variant), concrete(variant)
                if types is not None and values is not None:
                    if variant.optional and not _keeps_kind(variant, types):
                        continue  # its front door casts these
                    _same_types(variant, values, types)
                    chosen.append((variant, values))
                elif not variant.optional or (types is not None and values is None and _is_complex(variant)):
                    fail(variant, f"{'XLA' if types is None else 'NumPy'} refuses these inputs.")

        def work(inputs: Any) -> Any:
            return [run(op, xs, variant.params) for xs, (variant, _) in zip(inputs, chosen, strict=True)]

        found = execute(Device.cpu(), work, [variant.inputs for variant, _ in chosen])
    for (variant, values), got in zip(chosen, found, strict=True):
        same(variant, "value on XLA against NumPy", got, values)
    case = cases[0]._replace(inputs=cast(cases[0].inputs, dtypes.float32))
    with dtypes.enable_x64(enabled=False):  # as most users run it, op by op
        got, want = (
            arrays(run(op, tensors(d, case.inputs, wide=False), case.params)) for d in (Device.cpu(), Device.numpy())
        )
    same(case, "value on XLA against NumPy, without x64", got, want)


def against_jax(op: Op, device: Device | None, seed: int) -> None:
    """Both modes, and reverse over reverse, agree with JAX's derivatives of the implementation."""
    where = device or Device.numpy()
    rng = generator(op, seed + 1)
    with dtypes.enable_x64():
        cases = [case for case in with_complex(draw(op, seed)) if is_smooth(case)]
        todo = [(case, *draw_vectors(rng, case)) for case in cases]
        twice = [id(cases[i]) for i in smallest(cases, 3)]  # those programs compile for long; `numeric` has them all

        def by_jax(inputs: Any) -> Any:
            found = []
            for (case, *_), each in zip(todo, inputs, strict=True):
                try:
                    found.append(_derivatives_by_jax(case, id(case) in twice, *each))
                except CheckFailedError:
                    if not case.optional:
                        raise
            return found

        theirs = jax.tree.map(np.asarray, compiled(by_jax)([(case.inputs, *vectors) for case, *vectors in todo]))
        todo = todo[: len(theirs)]  # without the complex numbers, where JAX has no derivative for them

        def ours_of(inputs: Any) -> Any:
            return [_derivatives(case, id(case) in twice, *each) for (case, *_), each in zip(todo, inputs, strict=True)]

        ours = execute(where, ours_of, [(case.inputs, *vectors) for case, *vectors in todo])
    for (case, *_), got, want in zip(todo, ours, theirs, strict=True):
        names = input_names(op, case.inputs)
        for i, g in want["held"].items():
            if np.any(g != 0):
                fail(case, f"{names[i]} has no derivative by its rule, but JAX's gradient of it is {g.tolist()}.")
        wanted = [names[i] for i in moving(case)]
        same(case, "gradient against JAX", got["gradient"], want["gradient"], 10, wanted)
        same(case, "tangent against JAX", got["tangent"], want["tangent"], 10)
        of_second = [*wanted, *["the cotangent" for _ in got["tangent"]]]
        same(case, "second derivative against JAX", got["second"], want["second"], 10, of_second)


def numeric(op: Op, device: Device | None, seed: int) -> None:
    """Both modes agree with central differences and with each other, to second order."""
    device = device or Device.numpy()
    with precise(device):
        for case in with_complex(draw(op, seed)):
            if moving(case) and is_smooth(case):
                against_differences(case, device, generator(op, seed + 2), order=2)


def adjoint(op: Op, device: Device | None, seed: int) -> None:
    """<g, J t> = <J^T g, t>, for every subset of the inputs; what is tracked changes no gradient."""
    device = device or Device.numpy()
    rng = generator(op, seed + 3)
    with precise(device):
        for case in draw(op, seed):
            if moving(case) and is_smooth(case):
                _check_adjoint(case, device, *draw_vectors(rng, case)[:2])


def checkpointed(op: Op, device: Device | None, seed: int) -> None:
    """Recomputing it and its inputs during backward changes no gradient, bit for bit on NumPy."""
    device = device or Device.numpy()
    rng = generator(op, seed + 5)
    with precise(device):
        for case in draw(op, seed):
            which = moving(case)
            if not which or not is_smooth(case):
                continue
            xs = tensors(device, case.inputs)
            gs = tensors(device, draw_vectors(rng, case)[0])
            fn = smooth(case, xs, which)
            tape = device.autodiff()
            kept, recomputed = (
                _backward(case, fn, [xs[i] for i in which], gs, on) for on in (tape, tape.gradient_checkpointing())
            )
            same(case, "gradient with recomputation", recomputed, kept, 0.0 if device == Device.numpy() else 1e-3)


def precisions(op: Op, device: Device | None, seed: int) -> None:
    """In half and single precision dtypes are kept, and values and derivatives are those of float64."""
    device = device or Device.numpy()
    rng = generator(op, seed + 6)
    with precise(device):
        for case in draw(op, seed):
            is_complex = any(x.dtype.kind == "c" for x in case.inputs)  # there is no half of a complex number
            for dtype in (dtypes.float32,) if is_complex else (dtypes.float32, dtypes.bfloat16, dtypes.float16):
                narrow = case._replace(inputs=cast(case.inputs, dtype))
                wide = case._replace(inputs=cast(narrow.inputs, dtypes.float64))
                vectors = draw_vectors(rng, narrow)[:2] if moving(case) and is_smooth(case) else None
                widened = vectors and [_like(v, w) for v, w in zip(vectors, draw_vectors(rng, wide)[:2], strict=True)]
                for what, got, want in zip(
                    ("value", "gradient", "tangent"),
                    all_of(narrow, device, vectors),
                    all_of(wide, device, widened),
                    strict=True,
                ):
                    kept = [_cast(y, dtype) if y.dtype in (dtypes.float64, dtypes.complex128) else y for y in want]
                    same(
                        narrow, f"{what} in {dtype} against float64", got, kept, 1 if what == "value" else 8, least=1.0
                    )


def edges(op: Op, device: Device | None, seed: int) -> None:
    """Zero-size and 0-d inputs: both backends take them or both refuse, and derivatives work there."""
    rng = generator(op, seed + 7)
    where = device or Device.numpy()
    for case in draw(op, seed):
        if not case.drawn or not {*op.params} <= {"axis", "keepdims"}:  # other parameters may fix lengths
            continue
        assert op.samples is not None
        for shapes in with_edges([x.shape for x in case.inputs], scalars=not op.params):
            edge = case._replace(inputs=draw_inputs(op, op.samples, shapes, rng))
            with dtypes.enable_x64():
                types, values = abstract(edge), concrete(edge, where)
                if device is None and (types is None) != (values is None):
                    fail(edge, f"{'XLA' if types is None else 'NumPy'} refuses these inputs, the other does not.")
                if values is None:
                    continue
                if device is None:
                    _same_types(edge, values, types)
                if moving(edge) and is_smooth(edge) and all(np.isfinite(y).all() for y in values):
                    _check_adjoint(edge, where, *draw_vectors(rng, edge)[:2])


def masked(op: Op, device: Device | None, seed: int) -> None:
    """A zero cotangent or tangent stays zero, however singular the derivative: checked on numbers."""
    device = device or Device.numpy()
    with precise(device):
        for case in draw(op, seed):
            numbers = case._replace(inputs=tuple(np.float64(0.5) for _ in case.inputs))
            if op.params or not case.drawn or not moving(case) or not is_smooth(numbers):
                continue
            for point in itertools.product(_SPECIAL, repeat=len(case.inputs)):
                here = case._replace(inputs=tuple(map(np.float64, point)))
                gs, ts, _ = draw_vectors(np.random.default_rng(0), numbers)
                _, pulled, pushed = all_of(here, device, [[0 * g for g in gs], [0 * t for t in ts]])
                pushed = [] if op.pushes_itself else pushed
                if any(np.any(g != 0) for g in (*pulled, *pushed)):
                    fail(
                        here,
                        f"at {point} a zero cotangent gives {[g.tolist() for g in pulled]} and a zero tangent "
                        f"{[t.tolist() for t in pushed]}; multiply with fd.op.product, which masks.",
                    )


def fused(op: Op, device: Device | None, seed: int) -> None:
    """Recorded by Fusion, and run with what was recorded around it, its values and gradients stay the same."""
    if device is not None:
        return
    rng = generator(op, seed + 8)
    with dtypes.enable_x64():
        case = draw(op, seed)[0]
        vectors = draw_vectors(rng, case)[:2] if moving(case) and is_smooth(case) else None
        (got, got_gradient, _), (want, want_gradient, _) = (
            all_of(case, on, vectors, tangents=False) for on in (compiling(), Device.numpy())
        )
    same(case, "value recorded by Fusion", got, want)
    same(case, "gradient recorded by Fusion", got_gradient, want_gradient, 10)


def memory(op: Op, device: Device | None, seed: int) -> None:
    """For backward it keeps the inputs and outputs that its rules name for the tracked ones, and no other."""
    device = device or Device.numpy()
    with precise(device):
        for case in draw(op, seed):
            which = moving(case)
            if not which or not is_smooth(case):
                continue
            for subset in subsets(len(which)):
                chosen = {which[j] for j in subset}
                with deeper() as level:
                    tape = Autodiff(level)
                    tape.records = False  # its nodes are looked at, op by op
                    xs = tensors(device, case.inputs)
                    outs = run(op, [tape.leaf(x) if i in chosen else x for i, x in enumerate(xs)], case.params)
                    tape.close()
                context = next(y._context for y in outs if dtypes.is_inexact(y._dtype))
                if not context.tracked:
                    fail(case, f"with {sorted(chosen)} tracked the output is not.")
                node = context.parent if type(context) is Part else context
                named, out = _named(op, chosen, len(xs))
                names = input_names(op, case.inputs)
                for i, kept in enumerate(node.inputs or ()):
                    if isinstance(kept, Handle) and i not in named:
                        fail(case, f"keeps {names[i]}, which no rule names when inputs {sorted(chosen)} are tracked.")
                if node.out is not None and not out:
                    fail(case, f"keeps its output, which no rule names when inputs {sorted(chosen)} are tracked.")


PROPERTIES: dict[str, Property] = {
    "declared": declared,
    "backends": backends,
    "jax": against_jax,
    "numeric": numeric,
    "adjoint": adjoint,
    "vmap": vmap,
    "checkpoint": checkpointed,
    "dtypes": precisions,
    "rounding": rounding,
    "complex": in_complex,
    "edges": edges,
    "strided": strided,
    "masked": masked,
    "memory": memory,
    "fused": fused,
}
"""Every property by name."""


def applicable(op: Op) -> dict[str, Property]:
    """The properties that have a meaning for `op`: an op that is no array function is only declared."""
    return PROPERTIES if op.base_run is None else {"declared": declared}


# --- their parts


def _cast(x: Any, dtype: Any) -> Any:
    return cast([x], dtype)[0]


def _like(values: Sequence[Any], others: Sequence[Any]) -> list[Any]:
    return [x.astype(y.dtype) for x, y in zip(values, others, strict=True)]


def _is_complex(case: Case) -> bool:
    """Whether it is of complex numbers: what takes them on XLA alone takes them by oversight."""
    return any(x.dtype.kind == "c" for x in case.inputs)


def _keeps_kind(case: Case, types: Sequence[Any]) -> bool:
    """Whether results are of the inputs' kind or of a lower one: no float from an integer, no integer from a bool."""
    order = "biufc"
    return max(order.index(y.dtype.kind) for y in types) <= max(order.index(x.dtype.kind) for x in case.inputs)


def _same_types(case: Case, values: Sequence[Any], types: Any) -> None:
    got, want = ([f"{y.dtype}{list(y.shape)}" for y in each] for each in (types, values))
    if got != want:
        hint = "End the implementation with .astype(x.dtype), or refuse what it is not for: raise a TypeError for complex x."
        fail(case, f"the result on XLA is {', '.join(got)}, on NumPy {', '.join(want)}. {hint}")


@of_case
def _derivatives(case: Case, second: bool, xs: Any, gs: Any, ts: Any, vs: Any) -> dict[str, Any]:
    """Gradient, tangent and the gradient of the gradient by functad."""
    which = moving(case)
    fn = smooth(case, xs, which)
    point = [xs[i] for i in which]

    def gradient(*at: Any) -> list[Any]:
        return vjp(fn, at[: len(which)])[1](at[len(which) :])

    return {
        "gradient": gradient(*point, *gs),
        "tangent": jvp(fn, point, ts)[1] if which else [],
        "second": vjp(gradient, [*point, *gs])[1](vs) if which and second else [],
    }


def _derivatives_by_jax(case: Case, second: bool, xs: Any, gs: Any, ts: Any, vs: Any) -> dict[str, Any]:
    """The same by JAX, and its gradients of the floats that functad holds constant."""
    which = moving(case)
    held = [i for i, x in enumerate(xs) if dtypes.is_inexact(x.dtype) and i not in which]
    fixed = dict(zip(case.op.params, case.params, strict=True))

    def fn(floats: dict[int, Any]) -> list[Any]:
        out = case.op.impl(jnp, *[floats.get(i, x) for i, x in enumerate(xs)], **fixed)
        return [y for y in (out if type(out) is tuple else (out,)) if dtypes.is_inexact(y.dtype)]

    def gradient(floats: dict[int, Any], gs: Any) -> Any:
        return jax.vjp(lambda moved: fn({**rest, **moved}), floats)[1](gs)[0]

    point, rest = {i: xs[i] for i in which}, {i: xs[i] for i in held}
    found: dict[str, Any] = {"held": {}, "tangent": [], "second": []}
    try:
        first, pull = jax.vjp(gradient, point, gs) if second else (gradient(point, gs), None)
        found["gradient"] = list(first.values())
        if held:
            found["held"] = jax.vjp(lambda moved: fn({**point, **moved}), rest)[1](gs)[0]
        if which:
            tangents = dict(zip(which, ts, strict=True))
            found["tangent"] = jax.jvp(lambda moved: fn({**rest, **moved}), (point,), (tangents,))[1]
        if which and pull:
            of_floats, of_gs = pull(dict(zip(which, vs, strict=True)))
            found["second"] = [*of_floats.values(), *of_gs]
    except (NotImplementedError, TypeError, ValueError) as error:
        fail(case, f"JAX cannot differentiate the implementation: {error}. Leave the property 'jax' out for this op.")
    return found


@of_case
def _check_adjoint(case: Case, device: Device, gs: Any, ts: Any) -> None:
    which = moving(case)
    names = input_names(case.op, case.inputs)
    xs = tensors(device, case.inputs)
    full: list[Any] = []
    for subset in subsets(len(which)):
        labels = [names[which[j]] for j in subset]
        fn = smooth(case, xs, [which[j] for j in subset])
        point = [xs[which[j]] for j in subset]
        tangents = [ts[j] for j in subset]
        pulled = arrays(vjp(fn, point)[1](tensors(device, gs)))
        pushed = arrays(jvp(fn, point, tensors(device, tangents))[1])
        left, right = sum(map(pair, gs, pushed)), sum(map(pair, pulled, tangents))
        size = sum(map(size_of, gs, pushed)) + sum(map(size_of, pulled, tangents))
        unit = max(float(ml_dtypes.finfo(v.dtype).eps) for v in (*gs, *pulled))
        if not abs(left - right) <= 1e5 * unit * size:
            fail(case, f"with {', '.join(labels)} tracked <g, J t> = {left:.15g} but <J^T g, t> = {right:.15g}.")
        full = full or pulled
        same(case, f"with only {', '.join(labels)} tracked, gradient", pulled, [full[j] for j in subset], 0.0, labels)


def _named(op: Op, chosen: Collection[int], count: int) -> tuple[set[int], bool]:
    """The inputs that the reverse rules of those in `chosen` name, and whether they name the output."""
    reads = [read for i in chosen if (rule := op.pull_of(i)) is not None for read in rule.reads]
    values = {i for read in reads if read.kind == "all" for i in range(read.place, count)}
    return values | {read.place for read in reads if read.kind == "value"}, any(read.kind == "out" for read in reads)


@of_case
def _backward(case: Case, fn: Any, point: Sequence[Any], gs: Sequence[Any], device: Device) -> list[Any]:
    """Gradients in object style, with something to recompute before and after the op."""
    leaves = [device.lift(x).require_grad() for x in point]
    outs = fn(*[mul(leaf, 1) for leaf in leaves])
    weighed = [mul(mul(y, y), g) for y, g in zip(outs, gs, strict=True)]
    total = sum(bind(sum_op, (y,), (tuple(range(y.ndim)), False)) for y in weighed)
    grads = (real(total) if total._dtype.kind == "c" else total).backward()
    found = [leaf.grad(grads) for leaf in leaves]
    return [np.zeros(x.shape, x.dtype) if g is None else g.numpy() for x, g in zip(point, found, strict=True)]
