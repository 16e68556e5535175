"""The properties of an op in other kinds of numbers: how half types are rounded, and derivatives in complex numbers."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from functad import dtypes
from functad.device import Device
from functad.ops.op import Op
from functad.testing.derivatives import vjp
from functad.testing.running import (
    against_differences,
    all_of,
    as_complex,
    concrete,
    draw_vectors,
    fail,
    is_smooth,
    moving,
    precise,
    smooth,
    tensors,
    widen,
)
from functad.testing.sampling import Case, cast, draw, generator, smallest

_ULPS = {"value": 1.0, "gradient": 2.0, "tangent": 2.0}
_SMALL = 32  # elements of the outputs: each is differentiated by itself


def rounding(op: Op, device: Device | None, seed: int) -> None:
    """In half types values are those of float64 to one unit in the last place, and derivatives to two.

    The unit is that of the result, or of what it is the sum of where its terms cancel. What is drawn by a key is left
    out: one key draws other numbers in another dtype.
    """
    device = device or Device.numpy()
    rng = generator(op, seed + 10)
    with precise(device):
        cases = [] if "key" in op.inputs else [case for case in draw(op, seed) if _has_halves(case)]
        for i, dtype in zip(smallest(cases, 2), (dtypes.float16, dtypes.bfloat16), strict=False):
            _check_rounding(cases[i]._replace(inputs=cast(cases[i].inputs, dtype)), dtype, device, rng)


def in_complex(op: Op, device: Device | None, seed: int) -> None:
    """Made complex, inputs that are samples of real numbers still have the derivatives that differences have."""
    device = device or Device.numpy()
    with precise(device):
        cases = draw(op, seed)
        if "key" in op.inputs or any(x.dtype.kind == "c" for case in cases for x in case.inputs):
            return  # numbers that are drawn are real; those in the samples are differentiated with the others
        cases = [case for case in cases if all(x.size and np.all(np.isfinite(x)) for x in case.inputs)]
        for case in [as_complex(cases[i]) for i in smallest(cases, 2)]:
            takes = moving(case) and any(x.dtype.kind == "c" for x in case.inputs)
            values = concrete(case, device) if takes else None
            if values is not None and any(dtypes.is_inexact(y.dtype) and y.size for y in values):
                against_differences(case, device, generator(op, seed + 11), order=1)


def _has_halves(case: Case) -> bool:
    floats = [x for x in case.inputs if dtypes.is_float(x.dtype)]
    return any(x.size for x in floats) and not any(x.dtype.kind == "c" for x in case.inputs)


def _check_rounding(case: Case, dtype: Any, device: Device, rng: np.random.Generator) -> None:
    wide = case._replace(inputs=cast(case.inputs, dtypes.float64))
    found = concrete(case, device)
    if found is None or not any(y.dtype == dtype for y in found):
        return  # results of another kind are not rounded so
    vectors = draw_vectors(rng, case)[:2] if moving(case) and is_smooth(case) else None
    widened = vectors and ([widen(g) for g in vectors[0]], [widen(t) for t in vectors[1]])
    scales = _scales(wide, widened, device) if widened else None
    for what, got, want in zip(_ULPS, all_of(case, device, vectors), all_of(wide, device, widened), strict=True):
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            if a.dtype != dtype or not a.size:
                continue
            scale = np.abs(b) if what == "value" else scales and scales[what][i]
            if scale is None:
                continue
            off = _ulps(a, b, scale, dtype)
            if np.max(off) > _ULPS[what]:
                at = np.unravel_index(np.argmax(off), off.shape)
                fail(
                    case,
                    f"{what}, output {i}, element {tuple(map(int, at))}: {float(a[at])} is {off[at]:.3g} units from "
                    f"{float(b[at])}; compute in float32 and round once.",
                )


def _ulps(got: Any, want: Any, scale: Any, dtype: Any) -> Any:
    """By how many units in the last place of `scale` (or of the result, if that is larger) two arrays differ."""
    info = ml_dtypes.finfo(dtype)
    got, rounded = widen(got), widen(want.astype(dtype))
    with np.errstate(all="ignore"):
        size = np.maximum(np.maximum(np.abs(want), scale), float(info.smallest_normal))
        off = np.abs(got - rounded) / (float(info.eps) * 2.0 ** np.floor(np.log2(size)))
    return np.where((got == rounded) | (np.isnan(got) & np.isnan(rounded)), 0.0, np.where(np.isnan(off), np.inf, off))


def _scales(case: Case, vectors: Any, device: Device) -> dict[str, list[Any]] | None:
    """What gradients and tangents would be without cancellation, from the derivative of each output element."""
    which = moving(case)
    xs = tensors(device, case.inputs)
    outs, back = vjp(smooth(case, xs, which), [xs[i] for i in which])
    if sum(y.size for y in outs) > _SMALL:
        return None
    gs, ts = vectors
    gradients = [np.zeros(case.inputs[i].shape) for i in which]
    tangents = [np.zeros(y.shape) for y in outs]
    for k, y in enumerate(outs):
        for at in np.ndindex(y.shape):
            units = [np.zeros(z.shape, z._dtype) for z in outs]
            units[k][at] = 1
            rows = [np.abs(j.numpy()) for j in back(tensors(device, units))]
            for total, row in zip(gradients, rows, strict=True):
                total += np.abs(gs[k][at]) * row
            tangents[k][at] = sum(np.sum(row * np.abs(t)) for row, t in zip(rows, ts, strict=True))
    return {"gradient": gradients, "tangent": tangents}
