"""What stands for elements at positions that are outside, where nobody could look: indices without values, in a trace."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import Handle, base_tensor, bind
from functad.levels import BASE
from functad.ops.logic import gate, greater_equal, less, logical_and
from functad.ops.op import Op, Samples
from functad.ops.rules import align_rows, custom, reshape_op, unbroadcast

__all__ = ["fill_outside_op"]


def is_known(x: Any) -> bool:
    """Whether a tensor or array has values, so that they were looked at."""
    if not isinstance(x, Handle):
        return True
    base = base_tensor(x)
    return base._backend.level == BASE and not isinstance(base._value, jax.core.Tracer)


def inside(indices: Any, first: int, n: int) -> Any:
    """Which of some ints are from `first` to n - 1."""
    return logical_and(greater_equal(indices, first), less(indices, n))


def filled(x: Any, where: Any, after: int = 0) -> Any:
    """`x` where it holds, else NaN (the least int, the largest unsigned one, True), whose derivative is 0.

    The condition has the last axes of `x`, or those that have `after` more behind them.
    """
    if after:
        where = bind(reshape_op, (where,), ((*where._shape, *[1] * after),))
    return bind(fill_outside_op, (x, where))


def _missing(dtype: dtypes.DType) -> Any:
    if dtypes.is_inexact(dtype):
        return np.nan
    if dtype == dtypes.bool_:
        return True
    return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max


def _samples(rng: np.random.Generator) -> list[Any]:
    return [
        ((rng.uniform(-2, 2, shape), np.ones(mask, bool)), {})
        for shape, mask in (((2, 3), (2, 1)), ((), ()), ((0, 2), (2,)))
    ]


fill_outside_op: Op = custom(
    "fill_outside", lambda xp, x, inside: xp.where(inside, x, xp.asarray(_missing(x.dtype), x.dtype)),
    vjp=[lambda g, inside, x_shape: unbroadcast(gate(g, inside), x_shape), None], jvp=[lambda t, inside: gate(t, inside), None],
    samples=Samples(make=_samples), batch=align_rows,
    doc="x where the condition, which broadcasts to it, holds, else NaN or what stands for it, whose derivative is 0.",
)  # fmt: skip
