"""Columns of matrices by their numbers, and the transpose of that: what gathers by position are made of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.ops.op import Op, Samples
from functad.ops.rules import broadcast, linear

__all__: list[str] = []


def _stacked(x: Any, indices: Any) -> tuple[Any, Any]:
    """Matrices and their column numbers as one stack each."""
    n = math.prod(indices.shape[:-1])
    return x.reshape(n, *x.shape[-2:]), indices.reshape(n, indices.shape[-1])


def _take(xp: Any, x: Any, indices: Any) -> Any:
    width = x.shape[-1]
    rows, picks = _stacked(x, indices)
    picks = xp.where((picks >= 0) & (picks < width), picks, width)  # jax.numpy would count negative ones from the end
    if xp is np:
        rows = np.concatenate([rows, np.zeros((*rows.shape[:2], 1), x.dtype)], 2)
        out = np.take_along_axis(rows, picks[:, None], 2)
    else:
        out = jax.vmap(lambda row, pick: row.at[:, pick].get(mode="fill", fill_value=0))(rows, picks)
    return out.reshape(*x.shape[:-1], indices.shape[-1])


def _put(xp: Any, x: Any, indices: Any, *, width: int) -> Any:
    wide = dtypes.accumulator(x.dtype)
    rows, picks = _stacked(x.astype(wide), indices)
    picks = xp.where((picks >= 0) & (picks < width), picks, width)
    if xp is np:
        total = np.zeros((*rows.shape[:2], width + 1), wide)
        stack, row = np.ogrid[: rows.shape[0], : rows.shape[1]]
        np.add.at(total, (stack[..., None], row[..., None], picks[:, None]), rows)
        total = total[..., :width]
    else:
        empty = xp.zeros((rows.shape[1], width), wide)
        total = jax.vmap(lambda row, pick: empty.at[:, pick].add(row, mode="drop"))(rows, picks)
    return total.reshape(*x.shape[:-1], width).astype(x.dtype)


def _rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    x, indices = [x if m else broadcast(x, (size, *x._shape)) for x, m in zip(inputs, mapped, strict=True)]
    return bind(op, (x, indices), params)


def _samples(rng: np.random.Generator) -> list[Any]:
    """A stack of matrices with 5 columns, column numbers, and what they pick."""
    picks = [np.array([[0, 4, 4], [-1, 2, 5]]), np.array([3, 3])]
    return [(rng.uniform(-2, 2, (*i.shape[:-1], 2, 5)), i.astype(np.int32)) for i in picks]


take_columns_op: Op = linear(
    "take_columns", _take, lambda g, indices, x_shape: bind(put_columns_op, (g, indices), (x_shape[-1],)), None,
    samples=Samples(make=lambda rng: [(case, {}) for case in _samples(rng)]), batch=_rows,
    doc="out[..., c, p] = x[..., c, indices[..., p]], and 0 where there is no such column.",
)  # fmt: skip
put_columns_op: Op = linear(
    "put_columns", _put, lambda g, indices: bind(take_columns_op, (g, indices)), None,
    samples=Samples(
        make=lambda rng: [
            ((rng.uniform(-2, 2, (*x.shape[:-1], i.shape[-1])), i), {"width": 5}) for x, i in _samples(rng)
        ]
    ),
    batch=_rows, doc="Zeros of `width` columns with x[..., c, p] added at column indices[..., p].",
)  # fmt: skip
