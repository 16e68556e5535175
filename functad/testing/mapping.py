"""The property that mapping an op is a loop over rows, for values and for derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functad import dtypes
from functad.device import Device
from functad.ops.op import Op
from functad.testing.derivatives import execute, jvp, vjp
from functad.testing.running import draw_vectors, is_smooth, mapped, moving, of_case, run, same, smooth, subsets
from functad.testing.sampling import Case, draw, generator, input_names, smallest

_ROWS = 2  # of a batch


def vmap(op: Op, device: Device | None, seed: int) -> None:
    """Mapping the op is a loop over rows, whichever inputs are mapped; so are its derivatives, both ways round."""
    rng = generator(op, seed + 4)
    looped = device or Device.numpy()
    with dtypes.enable_x64():
        cases, inputs = [], []
        for case, other in zip(draw(op, seed), draw(op, seed + 1), strict=True):
            if list(map(np.shape, case.inputs)) != list(map(np.shape, other.inputs)) or case.params != other.params:
                other = case  # random structure: the second row repeats the first
            vectors = [draw_vectors(rng, case)[:2] for _ in range(_ROWS)] if moving(case) and is_smooth(case) else []
            rows = (case.inputs, other.inputs)
            cases.append(case)
            inputs.append((rows, _stack(rows), vectors, [_stack(each) for each in zip(*vectors, strict=True)]))

        def work(by: Callable[..., Any]) -> Any:
            return lambda inputs: [by(case, *each) for case, each in zip(cases, inputs, strict=True)]

        want = execute(looped, work(_looped), inputs)
        compared: list[Any] = [(range(len(cases)), execute(looped, work(_mapped), inputs))]
        if device is None:  # on XLA each result costs a compilation: values of two cases, derivatives of the first
            small = smallest(cases, 2)

            def on_xla(inputs: Any) -> Any:
                first = _mapped(cases[0], *inputs[0], parts="whole")
                return [_mapped(cases[i], *inputs[i], parts="values") for i in small], [first]

            compared += zip((small, [0]), execute(Device.cpu(), on_xla, inputs), strict=True)
    for which, of_cases in compared:
        for i, got in zip(which, of_cases, strict=True):
            _same_rows(cases[i], got, want[i])


def _rows_for(case: Case, over: Sequence[bool], rows: Any) -> list[list[Any]]:
    """The inputs of each row, when only those marked in `over` differ between rows."""
    return [[row[i] if o else rows[0][i] for i, o in enumerate(over)] for row in rows]


def _gradient(case: Case, gs: int) -> Callable[..., list[Any]]:
    """The gradient of the op as a function of its inputs and of the cotangents of its outputs."""
    which = moving(case)

    def fn(*at: Any) -> list[Any]:
        return vjp(smooth(case, at[:-gs], which), [at[i] for i in which])[1](at[-gs:])

    return fn


@of_case
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


@of_case
def _mapped(case: Case, rows: Any, both: Any, vectors: Any, stacked: Any, parts: str = "all") -> list[Any]:
    """The same by mapping: gradients taken inside of the map and outside of it."""
    found = []
    which = moving(case)
    for subset in subsets(len(case.inputs)):
        over = [i in subset for i in range(len(case.inputs))]
        joined = [both[i] if o else rows[0][i] for i, o in enumerate(over)]
        results = {"value": mapped(_all(case), over)(*joined)}
        found.append(results)
        if not vectors or parts == "values":
            continue

        def outside(*point: Any, joined: Any = joined, over: Any = over) -> list[Any]:
            filled = dict(zip(which, point, strict=True))
            full = [filled.get(i, x) for i, x in enumerate(joined)]
            return mapped(_all(case, smooth_only=True), over)(*full)

        gs, ts = stacked
        point = [joined[i] for i in which]
        moved = [ts[n] if over[i] else vectors[0][1][n] for n, i in enumerate(which)]
        results["gradient inside"] = mapped(_gradient(case, len(gs)), [*over, *[True for _ in gs]])(*joined, *gs)
        results["gradient outside"] = vjp(outside, point)[1](gs)
        results["tangent outside"] = jvp(outside, point, moved)[1]
        if parts == "whole":
            break
    return found


def _same_rows(case: Case, got: Sequence[Any], want: Sequence[Any]) -> None:
    names = input_names(case.op, case.inputs)
    for subset, results, rows in zip(subsets(len(names)), got, want, strict=False):
        for what, mapped_over in results.items():
            expected = _stack(rows[what.split()[0]])
            if what == "gradient outside":  # what is not mapped gathers the rows' gradients
                pairs = zip(moving(case), expected, strict=True)
                expected = [g if i in subset else np.sum(g, 0) for i, g in pairs]
            same(case, f"{what} of vmap over {', '.join(names[i] for i in subset)}", mapped_over, expected)


def _stack(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [np.stack(each) for each in zip(*rows, strict=True)]


def _all(case: Case, smooth_only: bool = False) -> Callable[..., list[Any]]:
    """The op as a function of all its inputs."""

    def fn(*xs: Any) -> list[Any]:
        return [y for y in run(case.op, xs, case.params) if not smooth_only or dtypes.is_inexact(y._dtype)]

    return fn
