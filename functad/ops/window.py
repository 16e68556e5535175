"""Windows over the last axes of a tensor: their sum, their largest element, all their elements.

An axis at a time, what windows read is one strided slice for each place in the window, and what they
are given back is added at those places. XLA fuses such slices into one loop over the result, which on a
CPU is 2 to 10 times as fast as its own reduce-window and select-and-scatter. Long windows are left to
reduce-window, or to reductions if they lie side by side, and a scatter puts one element per window back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from functad import dtypes
from functad.dispatch import bind
from functad.ops.conv import Sizes, out_size, widened
from functad.ops.op import Op, Samples
from functad.ops.rules import broadcast, custom, linear, nondiff, shift_axis

__all__: list[str] = []

_MOST_PLACES = 64  # in a window that is unrolled


class Windows(NamedTuple):
    """How windows lie: one entry per axis, for as many of the last axes."""

    kernel: Sizes
    stride: Sizes
    padding: tuple[tuple[int, int], ...]
    dilation: Sizes


def _out(x: Any, how: Windows) -> Sizes:
    return out_size(x.shape[x.ndim - len(how.kernel) :], how.kernel, how)


def _axes(how: Windows, ndim: int) -> Any:
    """Per windowed axis: its number from the end, then kernel, stride, padding, dilation."""
    return zip(range(-len(how.kernel), 0), *how, strict=True)


# --- along one axis: reading each place of all windows, and adding at each place


def _reads(xp: Any, x: Any, axis: int, k: int, s: int, pad: tuple[int, int], d: int, fill: Any = 0) -> list[Any]:
    """Per place in the window what all windows read there."""
    axis += x.ndim
    n = x.shape[axis]
    out = (n + sum(pad) - d * (k - 1) - 1) // s + 1
    if pad != (0, 0):
        edges = [(0, 0)] * x.ndim
        edges[axis] = pad
        if xp is np:
            x = widened(x, edges, fill)
        else:
            x = lax.pad(x, xp.asarray(fill, x.dtype), [(*edge, 0) for edge in edges])
    parts = []
    for i in range(k):
        key = [slice(None)] * x.ndim
        key[axis] = slice(i * d, i * d + (out - 1) * s + 1, s)
        parts.append(x[tuple(key)])
    return parts


def _adds(xp: Any, parts: Sequence[Any], axis: int, s: int, low: int, d: int, size: int, wide: Any) -> Any:
    """An axis of length `size` with `parts[i]`, one entry per window, added at place i of the windows."""
    axis += parts[0].ndim
    out, k = parts[0].shape[axis], len(parts)
    length = max(low + size, (out - 1) * s + (k - 1) * d + 1)
    cut = (slice(None),) * axis + (slice(low, low + size),)
    if xp is np:
        shape = list(parts[0].shape)
        shape[axis] = length
        total = np.zeros(shape, wide)
        for i, part in enumerate(parts):
            total[(slice(None),) * axis + (slice(i * d, i * d + (out - 1) * s + 1, s),)] += part
        return total[cut]
    # Places that differ by a multiple of the stride are added up, and the sums take turns.
    turns = -(-length // s)
    sums: list[Any] = [None] * s
    for i, part in enumerate(parts):
        edges = [(0, 0, 0)] * part.ndim
        edges[axis] = (i * d // s, turns - i * d // s - out, 0)
        part = lax.pad(part.astype(wide), wide.type(0), edges)
        turn = i * d % s
        sums[turn] = part if sums[turn] is None else sums[turn] + part
    some = next(part for part in sums if part is not None)
    sums = [xp.zeros_like(some) if part is None else part for part in sums]
    if s == 1:
        return some[cut]
    joined = xp.stack(sums, axis + 1)
    return joined.reshape(*some.shape[:axis], turns * s, *some.shape[axis + 1 :])[cut]


# --- sums


def _sum(xp: Any, x: Any, *, how: Windows) -> Any:
    dtype = x.dtype
    x = x.astype(dtypes.accumulator(dtype))
    for axis, k, s, pad, d in [*_axes(how, x.ndim)][::-1]:
        if xp is np or k <= _MOST_PLACES:
            x = reduce(xp.add, _reads(xp, x, axis, k, s, pad, d))
        else:
            one = [1] * x.ndim
            window, strides, edges, dilation = [*one], [*one], [(0, 0)] * x.ndim, [*one]
            window[axis], strides[axis], edges[axis], dilation[axis] = k, s, pad, d
            x = lax.reduce_window(x, x.dtype.type(0), lax.add, window, strides, edges, window_dilation=dilation)
    return x.astype(dtype)


def _spread(xp: Any, g: Any, *, size: Sizes, how: Windows) -> Any:
    dtype = g.dtype
    wide = dtypes.accumulator(dtype)
    g = g.astype(wide)
    for n, (axis, k, s, (low, _), d) in zip(size, _axes(how, g.ndim), strict=True):
        if xp is np or k <= _MOST_PLACES:
            g = _adds(xp, [g] * k, axis, s, low, d, n, wide)
        else:
            at, out = axis + g.ndim, g.shape[axis]
            reach = d * (k - 1)
            edges, window, dilation = [(0, 0, 0)] * g.ndim, [1] * g.ndim, [1] * g.ndim
            edges[at] = (reach - low, n - 1 - (out - 1) * s + low, s - 1)
            window[at], dilation[at] = k, d
            g = lax.pad(g, wide.type(0), edges)
            g = lax.reduce_window(
                g, wide.type(0), lax.add, window, [1] * g.ndim, [(0, 0)] * g.ndim, window_dilation=dilation
            )
    return g.astype(dtype)


def _near_sum(xp: Any, x: Any, *, axis: int, low: int, high: int) -> Any:
    wide = x.astype(dtypes.accumulator(x.dtype))
    edges, window = [(0, 0)] * x.ndim, [1] * x.ndim
    edges[axis], window[axis] = (low, high), low + high + 1
    if xp is not np:  # not unrolled, as what is summed would be computed anew for each neighbour
        return lax.reduce_window(wide, wide.dtype.type(0), lax.add, window, [1] * x.ndim, edges).astype(x.dtype)
    views = np.lib.stride_tricks.sliding_window_view(np.pad(wide, edges), low + high + 1, axis)
    return views.sum(-1).astype(x.dtype)


# --- all elements


def _divides(size: Sizes, how: Windows) -> bool:
    """Whether the windows lie side by side and fill everything."""
    return (
        how.kernel == how.stride
        and set(how.dilation) == {1}
        and {*how.padding} == {(0, 0)}
        and all(n % k == 0 for n, k in zip(size, how.kernel, strict=True))
    )


def _patches(xp: Any, x: Any, *, how: Windows) -> Any:
    ndim = len(how.kernel)
    lead = x.ndim - ndim
    if _divides(x.shape[lead:], how):
        split = [n for out, k in zip(_out(x, how), how.kernel, strict=True) for n in (out, k)]
        order = [*range(lead), *range(lead + 1, lead + 2 * ndim, 2), *range(lead, lead + 2 * ndim, 2)]
        return x.reshape(*x.shape[:lead], *split).transpose(order)
    for number, (axis, k, s, pad, d) in enumerate(_axes(how, x.ndim)):
        x = xp.stack(_reads(xp, x, axis, k, s, pad, d), lead + number)
    return x


def _unpatches(xp: Any, g: Any, *, size: Sizes, how: Windows) -> Any:
    ndim = len(how.kernel)
    lead = g.ndim - 2 * ndim
    if _divides(size, how):
        order = [*range(lead), *[lead + a for i in range(ndim) for a in (ndim + i, i)]]
        return g.transpose(order).reshape(*g.shape[:lead], *size)
    dtype = g.dtype
    wide = dtypes.accumulator(dtype)
    for number, n, (axis, k, s, (low, _), d) in [*zip(range(ndim), size, _axes(how, g.ndim), strict=True)][::-1]:
        parts = [g[(*[slice(None)] * (lead + number), i)] for i in range(k)]
        g = _adds(xp, parts, axis, s, low, d, n, wide)
    return g.astype(dtype)


# --- the largest element. Of equal ones the first in the window counts, and a NaN is larger than any number.


def _least(dtype: Any) -> Any:
    return -np.inf if dtypes.is_float(dtype) else np.iinfo(dtype).min


def _inside(size: Sizes, out: Sizes, how: Windows, place: Sizes) -> Any:
    """Which windows have the place `place` inside the input."""
    inside = np.ones(out, bool)
    for axis, (n, o, i) in enumerate(zip(size, out, place, strict=True)):
        at = np.arange(o) * how.stride[axis] - how.padding[axis][0] + i * how.dilation[axis]
        inside &= ((at >= 0) & (at < n)).reshape([-1 if a == axis else 1 for a in range(len(size))])
    return inside


def _places(xp: Any, x: Any, how: Windows, fill: Any) -> Any:
    """Per place in the window, the last axis fastest, what all windows read there."""
    parts: list[tuple[Sizes, Any]] = [((), x)]
    for axis, k, s, pad, d in _axes(how, x.ndim):
        parts = [
            ((*place, i), part)
            for place, found in parts
            for i, part in enumerate(_reads(xp, found, axis, k, s, pad, d, fill))
        ]
    return parts


def _max(xp: Any, x: Any, *, how: Windows) -> Any:
    least = _least(x.dtype)
    if (
        xp is np
        or math.prod(how.kernel) <= _MOST_PLACES
        or (sum(how.kernel) <= _MOST_PLACES and not _divides(x.shape[x.ndim - len(how.kernel) :], how))
    ):
        for axis, k, s, pad, d in [*_axes(how, x.ndim)][::-1]:
            x = reduce(xp.maximum, _reads(xp, x, axis, k, s, pad, d, least))
        return x
    ones = (1,) * (x.ndim - len(how.kernel))
    if _divides(x.shape[len(ones) :], how):
        blocks, axes = _blocks(x, how)
        return xp.max(blocks, axes)
    return lax.reduce_window(
        x, xp.asarray(least, x.dtype), lax.max, (*ones, *how.kernel), (*ones, *how.stride),
        (*[(0, 0) for _ in ones], *how.padding), window_dilation=(*ones, *how.dilation),
    )  # fmt: skip


class _Choice(NamedTuple):
    """Which place each window chose."""

    places: Sequence[Sizes]
    number: Any  # of the place
    found: Any  # windows that lie somewhere inside the input; True if all do


def _choose(xp: Any, x: Any, how: Windows) -> _Choice:
    size, out = x.shape[x.ndim - len(how.kernel) :], _out(x, how)
    padded = any(map(any, how.padding))
    places: list[Sizes] = []
    best: Any = None
    number: Any = None
    found: Any = None
    for i, (place, part) in enumerate(_places(xp, x, how, _least(x.dtype))):
        places.append(place)
        inside = _inside(size, out, how, place) if padded else np.ones((), bool)
        if best is None:
            best, number, found = part, xp.zeros(part.shape, dtypes.int32), inside
            continue
        take = part > best
        if dtypes.is_float(x.dtype):
            take = take | ((part != part) & (best == best))
        if padded and not (found.all() and inside.all()):
            take = inside & (take | ~found)
        best, number, found = xp.where(take, part, best), xp.where(take, i, number), found | inside
    return _Choice(places, number.astype(dtypes.int32), True if found.all() else found)


def _argmax(xp: Any, x: Any, *, how: Windows) -> Any:
    size = x.shape[x.ndim - len(how.kernel) :]
    return xp.minimum(_stand(xp, x, how), max(math.prod(size) - 1, 0))


def _stand(xp: Any, x: Any, how: Windows) -> Any:
    """Where the largest element of each window stands; past the end for a window that lies outside."""
    ndim = len(how.kernel)
    size, out = x.shape[x.ndim - ndim :], _out(x, how)
    if xp is not np and math.prod(how.kernel) > _MOST_PLACES:
        return _stand_long(xp, x, how)
    choice = _choose(xp, x, how)
    flat: Any = 0
    for axis in range(ndim):
        steps = xp.asarray(np.array([place[axis] for place in choice.places], np.int32) * how.dilation[axis])
        start = np.arange(out[axis], dtype=np.int32) * how.stride[axis] - how.padding[axis][0]
        start = start.reshape([-1 if a == axis else 1 for a in range(ndim)])
        flat = flat * size[axis] + (steps[choice.number] + start)
    flat = flat.astype(dtypes.default_int())
    return flat if choice.found is True else xp.where(choice.found, flat, math.prod(size))


def _stand_long(xp: Any, x: Any, how: Windows) -> Any:
    """The same by XLA's reduce-window."""
    size = x.shape[x.ndim - len(how.kernel) :]
    ones = (1,) * (x.ndim - len(size))
    dtype = dtypes.default_int()
    n = math.prod(size)
    flat = xp.broadcast_to(xp.arange(n, dtype=dtype).reshape(size), x.shape)

    def larger(a: Any, b: Any) -> Any:
        take = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        if dtypes.is_float(x.dtype):
            both = (a[0] != a[0]) & (b[0] != b[0])
            take = take | ((a[0] != a[0]) & (b[0] == b[0])) | (both & (a[1] < b[1]))
        return lax.select(take, a[0], b[0]), lax.select(take, a[1], b[1])

    _, found = lax.reduce_window(
        (lax.stop_gradient(x), flat), (xp.asarray(_least(x.dtype), x.dtype), xp.asarray(n, dtype)), larger,
        (*ones, *how.kernel), (*ones, *how.stride), (*[(0, 0) for _ in ones], *how.padding),
        window_dilation=(*ones, *how.dilation),
    )  # fmt: skip
    return found


def _blocks(x: Any, how: Windows) -> tuple[Any, tuple[int, ...]]:
    """`x` with each axis of windows that fill it cut into windows, and the axes inside these."""
    ndim = len(how.kernel)
    lead = x.ndim - ndim
    split = [m for n, k in zip(x.shape[lead:], how.kernel, strict=True) for m in (n // k, k)]
    return x.reshape(*x.shape[:lead], *split), tuple([lead + 2 * i + 1 for i in range(ndim)])


def _firsts(xp: Any, blocks: Any, axes: tuple[int, ...]) -> Any:
    """Where in each block its first largest element is: a block of booleans, one of them true."""
    largest = xp.max(blocks, axes, keepdims=True)
    there = blocks == largest
    if dtypes.is_float(blocks.dtype):
        there = there | ((blocks != blocks) & (largest != largest))
    place: Any = 0
    for axis in axes:
        place = place * blocks.shape[axis] + lax.broadcasted_iota(dtypes.int32, blocks.shape, axis)
    none = np.int32(np.iinfo(np.int32).max)
    return place == xp.min(xp.where(there, place, none), axes, keepdims=True)


def _flat(x: Any, ndim: int) -> Any:
    """One row for all that windows move over."""
    lead = x.ndim - ndim
    return x.reshape(math.prod(x.shape[:lead]), math.prod(x.shape[lead:]))


def _pick(xp: Any, t: Any, x: Any, *, how: Windows) -> Any:
    ndim = len(how.kernel)
    if xp is not np and math.prod(how.kernel) > _MOST_PLACES:
        at = _stand_long(xp, x, how)
        out = xp.take_along_axis(_flat(t, ndim), _flat(at, ndim), -1, mode="fill", fill_value=0)
        return out.reshape(at.shape)
    choice = _choose(xp, x, how)
    parts = _places(xp, t, how, 0)
    out = parts[0][1]
    for i, (_, part) in enumerate(parts[1:], 1):
        out = xp.where(choice.number == i, part, out)
    return out if choice.found is True else xp.where(choice.found, out, xp.zeros_like(out))


def _overlaps(how: Windows) -> bool:
    return any(d * (k - 1) >= s for k, s, d in zip(how.kernel, how.stride, how.dilation, strict=True))


def _put(xp: Any, g: Any, x: Any, *, how: Windows) -> Any:
    size = x.shape[x.ndim - len(how.kernel) :]
    wide = dtypes.accumulator(g.dtype)

    def scattered(g: Any, x: Any) -> Any:
        at = _flat(_stand(xp, x, how), len(size))
        rows = xp.arange(at.shape[0], dtype=at.dtype)[:, None]
        total = xp.zeros((at.shape[0], math.prod(size)), wide)
        return total.at[rows, at].add(g.astype(wide).reshape(at.shape), mode="drop").reshape(x.shape).astype(g.dtype)

    def added(g: Any, x: Any) -> Any:
        choice = _choose(xp, x, how)
        zero = xp.zeros((), g.dtype)
        parts = [xp.where(choice.number == i, g, zero) for i in range(len(choice.places))]
        for n, (axis, k, s, (low, _), d) in [*zip(size, _axes(how, g.ndim), strict=True)][::-1]:
            parts = [_adds(xp, parts[i : i + k], axis, s, low, d, n, wide) for i in range(0, len(parts), k)]
        return parts[0].astype(g.dtype)

    if xp is not np and math.prod(how.kernel) > _MOST_PLACES:
        if not _divides(size, how):
            return scattered(g, x)
        blocks, axes = _blocks(x, how)
        spread = xp.expand_dims(g, axes)
        return xp.where(_firsts(xp, blocks, axes), spread, xp.zeros((), g.dtype)).reshape(x.shape)
    if xp is not np and (len(size) > 1 or _overlaps(how)):  # a scatter of one element per window: fast on a CPU
        return lax.platform_dependent(g, x, cpu=scattered, default=added)
    return added(g, x)


# --- the ops. They work on the last axes, so rows are one more axis in front.


def _rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    return bind(op, [x if m else broadcast(x, (size, *x._shape)) for x, m in zip(inputs, mapped, strict=True)], params)


_CASES: list[tuple[Sizes, Windows]] = [
    ((2, 5), Windows((2,), (1,), ((1, 0),), (2,))),
    ((1, 5, 5), Windows((3, 2), (2, 3), ((1, 1), (0, 0)), (1, 1))),
    ((4, 6), Windows((2, 2), (2, 2), ((0, 0), (0, 0)), (1, 1))),
]


def _samples(first: str, and_x: bool = False) -> Samples:
    def make(rng: np.random.Generator) -> Any:
        found = []
        for shape, how in _CASES:
            lead = shape[: len(shape) - len(how.kernel)]
            size = shape[len(lead) :]
            out = out_size(size, how.kernel, how)
            shapes = {"x": shape, "out": (*lead, *out), "patches": (*lead, *how.kernel, *out)}
            inputs = [rng.uniform(-2, 2, shapes[first])]
            if and_x:  # distinct by far, so that no rounding makes ties
                inputs.append(rng.permutation(math.prod(shape)).reshape(shape) / 4 - 2)
            params: dict[str, Any] = {"how": how} if first == "x" or and_x else {"size": size, "how": how}
            found.append((tuple(inputs), params))
        return found

    return Samples(make=make)


_DISTINCT = Samples(
    make=lambda rng: [
        ((rng.permutation(math.prod(shape)).reshape(shape) / 4 - 2,), {"how": how}) for shape, how in _CASES
    ]
)

window_sum_op: Op = linear(
    "window_sum", _sum, lambda g, x_shape, how: bind(spread_op, (g,), (x_shape[-len(how.kernel) :], how)),
    samples=_samples("x"), batch=_rows, doc="The sum of each window; half types accumulate in float32.",
)  # fmt: skip
spread_op: Op = linear(
    "window_spread", _spread, lambda x, how: bind(window_sum_op, (x,), (how,)),
    samples=_samples("out"), batch=_rows, doc="Each element added to all elements of its window.",
)  # fmt: skip
near_sum_op: Op = linear(
    "near_sum", _near_sum, lambda g, axis, low, high: bind(near_sum_op, (g,), (axis, high, low)),
    samples=Samples([
        (((2, 5),), {"axis": 1, "low": 1, "high": 0}), (((4, 2),), {"axis": 0, "low": 2, "high": 3}),
        (((0, 2),), {"axis": 1, "low": 1, "high": 1}),
    ]), batch=shift_axis, doc="Each element and `low` before it and `high` behind it, added up.",
)  # fmt: skip
patches_op: Op = linear(
    "patches", _patches, lambda g, x_shape, how: bind(unpatches_op, (g,), (x_shape[-len(how.kernel) :], how)),
    samples=_samples("x"), batch=_rows, doc="All elements of the windows, as axes [..., *kernel, *windows].",
)  # fmt: skip
unpatches_op: Op = linear(
    "unpatches", _unpatches, lambda x, how: bind(patches_op, (x,), (how,)),
    samples=_samples("patches"), batch=_rows, doc="The elements of windows added up where they overlap.",
)  # fmt: skip
window_max_op: Op = custom(
    "window_max", _max,
    jvp=lambda t, x, how: bind(window_pick_op, (t, x), (how,)),
    vjp=lambda g, x, how: bind(window_put_op, (g, x), (how,)),
    samples=_DISTINCT, batch=_rows,
    doc="The largest element of each window; the derivative goes to the first of equal ones.",
)  # fmt: skip
window_argmax_op: Op = nondiff(
    "window_argmax", _argmax, samples=_DISTINCT, batch=_rows,
    doc="Where the (first) largest element of each window stands, counted over the windowed axes.",
)  # fmt: skip
window_pick_op: Op = linear(
    "window_pick", _pick, lambda g, x, how: bind(window_put_op, (g, x), (how,)), None,
    samples=_samples("x", and_x=True), batch=_rows, doc="The element of t where each window of x has its largest.",
)  # fmt: skip
window_put_op: Op = linear(
    "window_put", _put, lambda t, x, how: bind(window_pick_op, (t, x), (how,)), None,
    samples=_samples("out", and_x=True), batch=_rows, doc="Zeros with g added where each window of x has its largest.",
)  # fmt: skip
