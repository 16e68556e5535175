"""The property that an op takes its inputs as they lie in memory: transposed, reversed, with gaps, repeated."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from functad import dtypes
from functad.device import Device
from functad.ops.op import Op
from functad.ops.shape import broadcast_to, flip, transpose
from functad.testing.derivatives import execute, vjp
from functad.testing.running import all_of, draw_vectors, is_smooth, moving, of_case, run, same, smooth, tensors
from functad.testing.sampling import Case, draw, generator


def strided(op: Op, device: Device | None, seed: int) -> None:
    """Views as inputs (transposed, reversed, with gaps, repeated) give what contiguous copies give, derivatives too."""
    where = device or Device.numpy()
    rng = generator(op, seed + 9)
    with dtypes.enable_x64():
        cases = draw(op, seed)
        for case in cases:
            for name in LAYOUTS if case is cases[0] else ("all three",):
                if name == "repeated":
                    if not case.drawn:
                        continue  # made inputs have a structure that would be lost
                    case = case._replace(inputs=tuple(map(_equal, case.inputs)))
                vectors = draw_vectors(rng, case)[:2] if moving(case) and is_smooth(case) else None
                if vectors and name == "repeated":
                    vectors = (list(map(_equal, vectors[0])), list(map(_equal, vectors[1])))
                views, copies = (all_of(case, where, vectors, put=put) for put in (partial(_laid_out, name), tensors))
                for what, a, b in zip(("value", "gradient", "tangent"), views, copies, strict=True):
                    same(case, f"{what} where the inputs are {name}", a, b)
        if device is not None:
            return
        case = cases[0]
        gs = draw_vectors(rng, case)[0] if moving(case) and is_smooth(case) else []
        want = all_of(case, where, (gs, []) if gs else None, tangents=False)[:2]
        laid = [[_lay("all three", a) for a in each] for each in (case.inputs, gs)]
        found = execute(Device.cpu(), lambda laid: _on_views(case, *laid), laid)
    for what, a, b in zip(("value", "gradient"), found, want, strict=True):
        same(case, f"{what} on XLA where the inputs are transposed, reversed and with gaps", a, b, 10)


LAYOUTS = ("transposed", "reversed", "with gaps", "repeated")
"""Each alone for the first case; for the others "all three", the first three at once."""


def _lay(layout: str, a: Any) -> Any:
    """A contiguous array of which `_view` makes the elements of `a` again."""
    match layout:
        case "transposed":
            return np.ascontiguousarray(a.T).reshape(a.T.shape)
        case "reversed":
            return np.flip(a).copy()
        case "with gaps":
            return np.repeat(a, 2, axis=-1) if a.ndim else a
        case "repeated":
            return a[(slice(0, 1),) * a.ndim].copy()
        case _:
            return _lay("with gaps", _lay("reversed", _lay("transposed", a)))


def _view(layout: str, x: Any, shape: tuple[int, ...]) -> Any:
    match layout:
        case "transposed":
            return transpose(x)
        case "reversed":
            return flip(x)
        case "with gaps":
            return x[..., ::2] if shape else x
        case "repeated":
            return broadcast_to(x, shape)
        case _:
            return transpose(flip(x[..., ::2] if shape else x))


def _laid_out(layout: str, device: Device, arrays: Iterable[Any]) -> list[Any]:
    """The arrays as tensors that are views."""
    arrays = list(map(np.asarray, arrays))
    laid = tensors(device, [_lay(layout, a) for a in arrays])
    return [_view(layout, x, a.shape) for x, a in zip(laid, arrays, strict=True)]


def _equal(a: Any) -> Any:
    """An array of the same type whose elements are all its first one."""
    return np.broadcast_to(a[(slice(0, 1),) * a.ndim], a.shape)


@of_case
def _on_views(case: Case, laid: Any, laid_gs: Any) -> tuple[list[Any], list[Any]]:
    """Values and gradients at views of what was laid out."""
    xs = [_view("all three", x, a.shape) for x, a in zip(laid, case.inputs, strict=True)]
    which = moving(case)
    if not laid_gs:
        return run(case.op, xs, case.params), []
    gs = [_view("all three", g, g.shape) for g in laid_gs]
    return run(case.op, xs, case.params), vjp(smooth(case, xs, which), [xs[i] for i in which])[1](gs)
