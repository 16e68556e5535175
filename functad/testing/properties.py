"""What must hold of every op, checked on the samples declared beside it.

Each property is a function of an op, a device (None: NumPy, and XLA where the two are compared)
and a seed; it raises `CheckFailedError`. Whether an op can take part follows from its data: its
dtypes, which inputs it differentiates, the shapes it accepts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes
from functad.backends.autodiff import Autodiff
from functad.device import Device, GradientCheckpointing
from functad.dispatch import Handle
from functad.errors import CheckFailedError, FunctadError
from functad.levels import deeper
from functad.ops.op import Op
from functad.ops.rules import mul
from functad.tape import Part
from functad.testing.derivatives import compiled, execute, jvp, vjp
from functad.testing.numeric import Check, direction, pair, size_of
from functad.testing.running import (
    abstract,
    arrays,
    concrete,
    fail,
    in_dtypes,
    is_smooth,
    mapped,
    moving,
    precise,
    run,
    same,
    smooth,
    subsets,
    tensors,
    with_complex,
)
from functad.testing.sampling import Case, cast, draw, draw_inputs, generator, input_names, with_edges

Property = Callable[[Op, Device | None, int], None]

_SPECIAL = (0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan)
_ROWS = 2  # of a batch


def declared(op: Op, device: Device | None, seed: int) -> None:
    """It says what it does, has samples, and has a rule for each input or says that it has none."""
    if not op.doc.strip():
        raise CheckFailedError(f"op {op.name!r} has no doc: say in one line what it computes.")
    draw(op, seed)
    if op.differentiable and op.pulls and len(op.pulls) != len(op.inputs):
        raise CheckFailedError(
            f"op {op.name!r} has {len(op.pulls)} reverse rules for the {len(op.inputs)} inputs {op.inputs}; give one per "
            "input, None where it takes no derivative."
        )


def backends(op: Op, device: Device | None, seed: int) -> None:
    """NumPy and XLA give the same values, shapes and dtypes, in every precision."""
    if device is not None:
        return
    cases = draw(op, seed)
    chosen = []
    with dtypes.enable_x64():
        for case in cases:
            for variant, optional in in_dtypes(case):
                types, values = abstract(variant), concrete(variant)
                if types is not None and values is not None:
                    _same_types(variant, values, types)
                    if variant.number == 0 or variant.inputs[0].dtype in (dtypes.float64, dtypes.float32):
                        chosen.append((variant, values))
                elif not optional:
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
        todo = [(case, *_vectors(rng, case)) for case in with_complex(draw(op, seed)) if is_smooth(case)]
        inputs = [(case.inputs, *vectors) for case, *vectors in todo]

        def work(by: Callable[..., Any]) -> Any:
            return lambda inputs: [by(case, *each) for (case, *_), each in zip(todo, inputs, strict=True)]

        ours, theirs = execute(where, work(_derivatives), inputs), compiled(work(_derivatives_by_jax))(inputs)
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
            which = moving(case)
            if not which or not is_smooth(case):
                continue
            fn = smooth(case, tensors(device, case.inputs), which)
            names = input_names(op, case.inputs)

            def named(*xs: Any, fn: Any = fn) -> dict[str, Any]:
                outs = fn(*xs)
                return {"out" if len(outs) == 1 else f"out[{k}]": y for k, y in enumerate(outs)}

            Check(
                named,
                [names[i] for i in which],
                [case.inputs[i] for i in which],
                lambda a: device.base.put(a, a.dtype),
                f"{op.name}, {case}",
                rng=generator(op, seed + 2),
            ).run(2, ("rev", "fwd"))


def adjoint(op: Op, device: Device | None, seed: int) -> None:
    """<g, J t> = <J^T g, t>, for every subset of the inputs; what is tracked changes no gradient."""
    device = device or Device.numpy()
    rng = generator(op, seed + 3)
    with precise(device):
        for case in draw(op, seed):
            if moving(case) and is_smooth(case):
                _check_adjoint(case, device, *_vectors(rng, case)[:2])


def vmap(op: Op, device: Device | None, seed: int) -> None:
    """Mapping the op is a loop over rows, whichever inputs are mapped; so are its derivatives, both ways round."""
    rng = generator(op, seed + 4)
    looped = device or Device.numpy()
    with dtypes.enable_x64():
        cases, inputs = [], []
        for case, other in zip(draw(op, seed), draw(op, seed + 1), strict=True):
            if list(map(np.shape, case.inputs)) != list(map(np.shape, other.inputs)) or case.params != other.params:
                other = case  # random structure: the second row repeats the first
            vectors = [_vectors(rng, case)[:2] for _ in range(_ROWS)] if moving(case) and is_smooth(case) else []
            rows = (case.inputs, other.inputs)
            cases.append(case)
            inputs.append((rows, _stack(rows), vectors, [_stack(each) for each in zip(*vectors, strict=True)]))

        def work(by: Callable[..., Any]) -> Any:
            return lambda inputs: [by(case, *each) for case, each in zip(cases, inputs, strict=True)]

        want = execute(looped, work(_looped), inputs)
        found = [execute(looped, work(_mapped), inputs)]
        if device is None:  # on XLA each result costs a compilation: values of all cases, derivatives of the first
            found.append(execute(Device.cpu(), work(_mapped_values), inputs))
            cases = cases[:1]
            found.append(execute(Device.cpu(), work(_mapped_wholly), inputs[:1]))
    for of_cases in found:
        for case, got_of, want_of in zip(draw(op, seed), of_cases, want, strict=False):
            _same_rows(case, got_of, want_of)


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
            fn = smooth(case, xs, which)

            def chain(*point: Any, fn: Any = fn) -> list[Any]:
                return [mul(y, y) for y in fn(*[mul(x, 1) for x in point])]

            gs = tensors(device, _vectors(rng, case)[0])
            kept, recomputed = (
                arrays(vjp(chain, [xs[i] for i in which], strategy)[1](gs)) for strategy in GradientCheckpointing
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
                vectors = _vectors(rng, narrow)[:2] if moving(case) and is_smooth(case) else None
                for what, got, want in zip(
                    ("value", "gradient", "tangent"),
                    _all_of(narrow, device, vectors),
                    _all_of(wide, device, vectors and [[_cast(v, dtypes.float64) for v in vs] for vs in vectors]),
                    strict=True,
                ):
                    kept = [_cast(y, dtype) if y.dtype in (dtypes.float64, dtypes.complex128) else y for y in want]
                    same(narrow, f"{what} in {dtype} against float64", got, kept, 1 if what == "value" else 8)


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
                    fail(edge, f"{'XLA' if types is None else 'NumPy'} refuses these inputs, the other backend takes them.")
                if values is None:
                    continue
                if device is None:
                    _same_types(edge, values, types)
                if moving(edge) and is_smooth(edge) and all(np.isfinite(y).all() for y in values):
                    _check_adjoint(edge, where, *_vectors(rng, edge)[:2])


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
                gs, ts, _ = _vectors(np.random.default_rng(0), numbers)
                _, pulled, pushed = _all_of(here, device, [[0 * g for g in gs], [0 * t for t in ts]])
                if any(np.any(g != 0) for g in (*pulled, *pushed)):
                    fail(
                        here,
                        f"at {point} a zero cotangent gives {[g.tolist() for g in pulled]} and a zero tangent "
                        f"{[t.tolist() for t in pushed]}; multiply with functad.ops.rules.product, which masks.",
                    )


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
                    xs = tensors(device, case.inputs)
                    outs = run(op, [tape.leaf(x) if i in chosen else x for i, x in enumerate(xs)], case.params)
                    tape.close()
                context = next(y._context for y in outs if dtypes.is_inexact(y._dtype))
                if not context.tracked:
                    fail(case, f"with {sorted(chosen)} tracked the output is not.")
                node = context.parent if type(context) is Part else context
                keep = op.keep(tuple(i in chosen for i in range(len(xs))))
                names = input_names(op, case.inputs)
                for i, kept in enumerate(node.inputs):
                    if isinstance(kept, Handle) and i not in keep.values:
                        fail(case, f"keeps {names[i]}, which no rule names when inputs {sorted(chosen)} are tracked.")
                if node.out is not None and not keep.out:
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
    "edges": edges,
    "masked": masked,
    "memory": memory,
}
"""Every property by name."""


# --- their parts


def _cast(x: Any, dtype: Any) -> Any:
    return cast([x], dtype)[0]


def _stack(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [np.stack(each) for each in zip(*rows, strict=True)]


def _same_types(case: Case, values: Sequence[Any], types: Any) -> None:
    got, want = ([f"{y.dtype}{list(y.shape)}" for y in each] for each in (types, values))
    if got != want:
        fail(case, f"the result on XLA is {', '.join(got)}, on NumPy {', '.join(want)}.")


def _vectors(rng: np.random.Generator, case: Case) -> tuple[list[Any], list[Any], list[Any]]:
    """Random cotangents of the outputs, tangents of the inputs, and cotangents of the gradients."""
    outs = [y for y in concrete(case) or abstract(case) or () if dtypes.is_inexact(y.dtype)]
    ins = [case.inputs[i] for i in moving(case)]
    return [direction(rng, y) for y in outs], [direction(rng, x) for x in ins], [direction(rng, x) for x in ins]


def _derivatives(case: Case, xs: Any, gs: Any, ts: Any, vs: Any) -> dict[str, Any]:
    """Gradient, tangent and the gradient of the gradient by functad."""
    which = moving(case)
    fn = smooth(case, xs, which)
    point = [xs[i] for i in which]

    def gradient(*at: Any) -> list[Any]:
        return vjp(fn, at[: len(which)])[1](at[len(which) :])

    return {
        "gradient": gradient(*point, *gs),
        "tangent": jvp(fn, point, ts)[1] if which else [],
        "second": vjp(gradient, [*point, *gs])[1](vs) if which else [],
    }


def _derivatives_by_jax(case: Case, xs: Any, gs: Any, ts: Any, vs: Any) -> dict[str, Any]:
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
        found["gradient"] = list(gradient(point, gs).values())
        if held:
            found["held"] = jax.vjp(lambda moved: fn({**point, **moved}), rest)[1](gs)[0]
        if which:
            found["tangent"] = jax.jvp(lambda moved: fn({**rest, **moved}), (point,), (dict(zip(which, ts, strict=True)),))[1]
            of_floats, of_gs = jax.vjp(gradient, point, gs)[1](dict(zip(which, vs, strict=True)))
            found["second"] = [*of_floats.values(), *of_gs]
    except (NotImplementedError, TypeError, ValueError) as error:
        fail(case, f"JAX cannot differentiate the implementation: {error}. Leave the property 'jax' out for this op.")
    return found


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
        try:
            pulled = arrays(vjp(fn, point)[1](tensors(device, gs)))
            pushed = arrays(jvp(fn, point, tensors(device, tangents))[1])
        except FunctadError as error:
            fail(case, f"with {', '.join(labels)} tracked: {error}")
        left, right = sum(map(pair, gs, pushed)), sum(map(pair, pulled, tangents))
        size = sum(map(size_of, gs, pushed)) + sum(map(size_of, pulled, tangents))
        unit = max(float(jnp.finfo(v.dtype).eps) for v in (*gs, *pulled))
        if not abs(left - right) <= 1e5 * unit * size:
            fail(case, f"with {', '.join(labels)} tracked <g, J t> = {left:.15g} but <J^T g, t> = {right:.15g}.")
        full = full or pulled
        same(case, f"with only {', '.join(labels)} tracked, gradient", pulled, [full[j] for j in subset], 0.0, labels)


def _all_of(case: Case, device: Device, vectors: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Values, gradients and tangents as arrays."""
    xs = tensors(device, case.inputs)
    values = arrays(run(case.op, xs, case.params))
    if vectors is None:
        return values, [], []
    which = moving(case)
    fn = smooth(case, xs, which)
    point = [xs[i] for i in which]
    gs, ts = (tensors(device, v) for v in vectors)
    return values, arrays(vjp(fn, point)[1](gs)), arrays(jvp(fn, point, ts)[1])


def _rows_for(case: Case, over: Sequence[bool], rows: Any) -> list[list[Any]]:
    """The inputs of each row, when only those marked in `over` differ between rows."""
    return [[row[i] if o else rows[0][i] for i, o in enumerate(over)] for row in rows]


def _gradient(case: Case, gs: int) -> Callable[..., list[Any]]:
    """The gradient of the op as a function of its inputs and of the cotangents of its outputs."""
    which = moving(case)

    def fn(*at: Any) -> list[Any]:
        return vjp(smooth(case, at[:-gs], which), [at[i] for i in which])[1](at[-gs:])

    return fn


def _looped(case: Case, rows: Any, both: Any, vectors: Any, stacked: Any) -> list[Any]:
    """For each subset of mapped inputs: values, gradients and tangents of each row."""
    found = []
    which = moving(case)
    for subset in subsets(len(case.inputs)):
        over = [i in subset for i in range(len(case.inputs))]
        picked = _rows_for(case, over, rows)
        results = {"value": [run(case.op, row, case.params) for row in picked]}
        if vectors:
            results["gradient"] = [
                _gradient(case, len(gs))(*row, *gs) for row, (gs, _) in zip(picked, vectors, strict=True)
            ]
            tangents = [[ts[n] if over[i] else vectors[0][1][n] for n, i in enumerate(which)] for _, ts in vectors]
            results["tangent"] = [
                jvp(smooth(case, row, which), [row[i] for i in which], ts)[1]
                for row, ts in zip(picked, tangents, strict=True)
            ]
        found.append(results)
    return found


def _mapped(case: Case, rows: Any, both: Any, vectors: Any, stacked: Any, parts: str = "all") -> list[Any]:
    """The same by mapping: gradients taken inside of the map and outside of it."""
    found = []
    which = moving(case)
    for subset in subsets(len(case.inputs)):
        over = [i in subset for i in range(len(case.inputs))]
        joined = [both[i] if o else rows[0][i] for i, o in enumerate(over)]
        results = {"value": mapped(_all(case), _ROWS, over)(*joined)}
        found.append(results)
        if not vectors or parts == "values":
            continue

        def outside(*point: Any, joined: Any = joined, over: Any = over) -> list[Any]:
            filled = dict(zip(which, point, strict=True))
            full = [filled.get(i, x) for i, x in enumerate(joined)]
            return mapped(_all(case, smooth_only=True), _ROWS, over)(*full)

        gs, ts = stacked
        point = [joined[i] for i in which]
        moved = [ts[n] if over[i] else vectors[0][1][n] for n, i in enumerate(which)]
        results["gradient inside"] = mapped(_gradient(case, len(gs)), _ROWS, [*over, *[True for _ in gs]])(*joined, *gs)
        results["gradient outside"] = vjp(outside, point)[1](gs)
        results["tangent outside"] = jvp(outside, point, moved)[1]
        if parts == "whole":
            break
    return found


def _mapped_values(*args: Any) -> list[Any]:
    return _mapped(*args, parts="values")


def _mapped_wholly(*args: Any) -> list[Any]:
    return _mapped(*args, parts="whole")


def _same_rows(case: Case, got: Sequence[Any], want: Sequence[Any]) -> None:
    names = input_names(case.op, case.inputs)
    for subset, results, rows in zip(subsets(len(names)), got, want, strict=False):
        for what, mapped_over in results.items():
            expected = _stack(rows[what.split()[0]])
            if what == "gradient outside":  # what is not mapped gathers the rows' gradients
                pairs = zip(moving(case), expected, strict=True)
                expected = [g if i in subset else np.sum(g, 0) for i, g in pairs]
            same(case, f"{what} of vmap over {', '.join(names[i] for i in subset)}", mapped_over, expected)


def _all(case: Case, smooth_only: bool = False) -> Callable[..., list[Any]]:
    """The op as a function of all its inputs."""

    def fn(*xs: Any) -> list[Any]:
        return [y for y in run(case.op, xs, case.params) if not smooth_only or dtypes.is_inexact(y._dtype)]

    return fn
