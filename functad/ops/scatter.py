"""Reading and writing at index arrays: gather, its transpose, and the scatters.

All take the index arrays as operands, one for each of `axes`. They broadcast to a block, which
stands at `position` among the axes that are not indexed. Negative indices count from the end.
Indices are checked at the front door where they have values; where nobody could check, reading
takes the nearest element, writing drops what lies outside, and `drop=True` reads it as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax import lax

from functad import dtypes
from functad.dispatch import base_backend, bind
from functad.ops.cumulative import recurrence, shift
from functad.ops.logic import where
from functad.ops.op import Cost, Op, Samples, Type
from functad.ops.rules import broadcast, cast, custom, linear, mul, nondiff, product, reshape_op, zeros
from functad.ops.shape import moveaxis
from functad.ops.slices import position_dtype

__all__: list[str] = []

Axes = tuple[int, ...]


def block_ndim(indices: Sequence[Any]) -> int:
    """The number of axes that index arrays broadcast to."""
    return max(len(i.shape) for i in indices)


def _natural(axes: Axes) -> int:
    """Where NumPy puts the block of a key with slices everywhere else."""
    return axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0


def _moved(xp: Any, x: Any, indices: Sequence[Any], source: int, target: int) -> Any:
    """`x` with the block's axes, which start at `source`, starting at `target`."""
    block = range(block_ndim(indices))
    if source == target:
        return x
    return xp.moveaxis(x, tuple([source + i for i in block]), tuple([target + i for i in block]))


# --- XLA: jax.numpy's own indexing, which wraps negative indices


def _xla_key(shape: Sequence[int], indices: Sequence[Any], axes: Axes) -> tuple[Any, ...]:
    key: list[Any] = [slice(None)] * len(shape)
    for axis, i in zip(axes, indices, strict=True):
        key[axis] = i.astype(position_dtype(shape[axis]))
    return tuple(key)


def _gather(xp: Any, x: Any, *indices: Any, axes: Axes, position: int, drop: bool) -> Any:
    picked = x.at[_xla_key(x.shape, indices, axes)]
    out = picked.get(mode="fill", fill_value=0) if drop else picked.get(mode="clip")
    return _moved(xp, out, indices, _natural(axes), position)


def _updater(method: str) -> Any:
    """The XLA implementation of the scatter that jax.numpy calls `x.at[...].method`."""

    def scatter(
        xp: Any, x: Any, values: Any, indices: Sequence[Any], axes: Axes, position: int, mode: str = "drop"
    ) -> Any:
        values = _moved(xp, values, indices, position, _natural(axes))
        return getattr(x.at[_xla_key(x.shape, indices, axes)], method)(values, mode=mode)

    return scatter


_xla_add = _updater("add")
_xla_set = _updater("set")
_xla_max = _updater("max")
_xla_min = _updater("min")
_xla_mul = _updater("multiply")


def _sum(xp: Any, x: Any, values: Any, indices: Sequence[Any], axes: Axes, position: int, mode: str = "drop") -> Any:
    wide = dtypes.accumulator(x.dtype)
    add = _numpy_add if xp is np else _xla_add
    return add(xp, x.astype(wide), values.astype(wide), indices, axes, position, mode).astype(x.dtype)


# --- NumPy: on a view with the indexed axes first


def _numpy_key(x: Any, indices: Sequence[Any], axes: Axes) -> tuple[Any, tuple[Any, ...], Any]:
    """A view of `x` with the indexed axes first, flat indices into it, and which lie inside."""
    lengths = [x.shape[axis] for axis in axes]
    whole = [np.asarray(i).astype(np.int64) for i in np.broadcast_arrays(*indices)]
    whole = [np.where(i < 0, i + n, i).ravel() for i, n in zip(whole, lengths, strict=True)]
    inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(whole, lengths, strict=True)])
    return np.moveaxis(x, axes, range(len(axes))), tuple(whole), inside


def _flat_rows(values: Any, indices: Sequence[Any], position: int) -> Any:
    """`values` with the block as one axis, the first."""
    block = np.broadcast_shapes(*[i.shape for i in indices])
    moved = _moved(np, values, indices, position, 0)
    return moved.reshape((int(np.prod(block)), *moved.shape[len(block) :]))


def _gather_numpy(xp: Any, x: Any, *indices: Any, axes: Axes, position: int, drop: bool) -> Any:
    rows, key, inside = _numpy_key(x, indices, axes)
    block = np.broadcast_shapes(*[i.shape for i in indices])
    if not inside.all():
        key = tuple([np.clip(i, 0, n - 1) for i, n in zip(key, rows.shape, strict=False)])
    out = rows[key]
    if drop:
        out[~inside] = 0
    return _moved(xp, out.reshape((*block, *out.shape[1:])), indices, 0, position)


def _numpy_updater(update: Any) -> Any:
    def scatter(
        xp: Any, x: Any, values: Any, indices: Sequence[Any], axes: Axes, position: int, mode: str = "drop"
    ) -> Any:
        out = np.array(x)
        rows, key, inside = _numpy_key(out, indices, axes)
        values = _flat_rows(values, indices, position)
        if not inside.all():
            if mode == "clip":
                key = tuple([np.clip(i, 0, n - 1) for i, n in zip(key, rows.shape, strict=False)])
            else:
                key, values = tuple([i[inside] for i in key]), values[inside]
        update(rows, key, values)
        return out

    return scatter


_numpy_add = _numpy_updater(np.add.at)
_numpy_set = _numpy_updater(lambda rows, key, values: rows.__setitem__(key, values))
_numpy_max = _numpy_updater(np.maximum.at)
_numpy_min = _numpy_updater(np.minimum.at)
_numpy_mul = _numpy_updater(np.multiply.at)


# --- repeats: which of several updates of one place is the last, and how many came before each


def _places(xp: Any, shape: Sequence[int], indices: Sequence[Any], axes: Axes) -> tuple[Any, int]:
    """Per update the number of the place it goes to, row by row; outside all places, their count."""
    lengths = [shape[axis] for axis in axes]
    count = int(np.prod(lengths))
    total: Any = 0
    inside: Any = True
    for i, n in zip(indices, lengths, strict=True):
        i = i.astype(position_dtype(max(count, 1)))
        i = xp.where(i < 0, i + n, i)
        total = total * n + i
        inside = inside & (i >= 0) & (i < n)
    return xp.where(inside, total, count).ravel(), count


def _lasts(xp: Any, shape: Sequence[int], indices: Sequence[Any], axes: Axes) -> Any:
    """Which updates no later one overwrites, in the shape of the block."""
    places, count = _places(xp, shape, indices, axes)
    order = xp.arange(places.size, dtype=dtypes.int32)
    if xp is np:
        last = np.full(count + 1, -1, np.int32)
        np.maximum.at(last, places, order)
    else:
        last = xp.full(count + 1, -1, dtypes.int32).at[places].max(order)
    return (last[places] == order).reshape(np.broadcast_shapes(*[i.shape for i in indices]))


def _set(xp: Any, x: Any, values: Any, *indices: Any, axes: Axes, position: int, unique: bool) -> Any:
    put = _numpy_set if xp is np else _xla_set
    if not unique:  # nothing promises in which order a scatter writes: keep only the last of each place
        first = indices[0].astype(position_dtype(x.shape[axes[0]]))
        indices = (xp.where(_lasts(xp, x.shape, indices, axes), first, x.shape[axes[0]]), *indices[1:])
    return put(xp, x, values, indices, axes, position)


def _gather_last(xp: Any, x: Any, *indices: Any, axes: Axes, position: int) -> Any:
    gather = _gather_numpy if xp is np else _gather
    out = gather(xp, x, *indices, axes=axes, position=position, drop=True)
    lasts = _lasts(xp, x.shape, indices, axes)
    wide = (1,) * position + lasts.shape + (1,) * (out.ndim - position - lasts.ndim)
    return xp.where(lasts.reshape(wide), out, xp.zeros_like(out))


def _ranks(xp: Any, *indices: Any, shape: tuple[int, ...], axes: Axes) -> Any:
    places, _ = _places(xp, shape, indices, axes)
    order = xp.argsort(places, stable=True).astype(dtypes.int32)
    places = places[order]
    number = xp.arange(places.size, dtype=dtypes.int32)
    first = xp.concatenate([xp.ones(min(1, places.size), bool), places[1:] != places[:-1]])
    starts, ends = xp.where(first, number, 0), xp.where(xp.roll(first, -1), number, places.size)
    if xp is np:
        starts, ends = np.maximum.accumulate(starts), np.minimum.accumulate(ends[::-1])[::-1]
    else:
        starts, ends = lax.cummax(starts), lax.cummin(ends, reverse=True)
    return order, number - starts, ends - number


# --- the ops


def _samples(rng: np.random.Generator, first: str) -> list[Any]:
    """Inputs with a tensor, the values to write, or both first, then index arrays with repeats."""

    def case(shape: tuple[int, ...], out: tuple[int, ...], axes: Axes, position: int, *indices: Any) -> Any:
        x, values = rng.uniform(-2, 2, shape), rng.uniform(-2, 2, out)
        lead = {"x": (x,), "values": (values,), "both": (x, values)}[first]
        params = {"axes": axes, "position": position}
        return (*lead, *[np.asarray(i, np.int32) for i in indices]), params, shape

    return [
        case((3,), (3,), (0,), 0, [0, 0, 2]),
        case((3, 2), (2, 2, 2), (0,), 0, [[0, -1], [1, 1]]),
        case((2, 3, 4), (2, 5, 4), (1,), 1, [2, 0, 2, 1, 2]),
        case((2, 3, 4), (2, 3), (0, 2), 0, [1, 1], [0, 0]),
        case((2, 3, 4), (3, 2, 2), (0, 2), 1, [[1], [0]], [0, -1]),
        case((2, 3), (2,), (0, 1), 0, [1, 1], [2, 2]),
        case((3, 2), (0, 2), (0,), 0, []),
        case((0, 2), (0, 3), (1,), 1, [0, 1, 1]),
    ]


def _make(first: str, **more: Any) -> Samples:
    def make(rng: np.random.Generator) -> Any:
        return [
            (inputs, params | {k: v(shape) if callable(v) else v for k, v in more.items()})
            for inputs, params, shape in _samples(rng, first)
        ]

    return Samples(make=make)


gather_op: Op = linear(
    "gather",
    _gather,
    lambda g, x_shape, indices, axes, position, drop: bind(ungather_op, (g, *indices), (x_shape, axes, position, drop)),
    None,
    numpy_impl=_gather_numpy,
    samples=_make("x", drop=False),
    doc="The elements of x at index arrays.",
)
ungather_op: Op = linear(
    "ungather",
    lambda xp, values, *indices, shape, axes, position, drop: _sum(
        xp, xp.zeros(shape, values.dtype), values, indices, axes, position, "drop" if drop else "clip"
    ),
    lambda g, indices, axes, position, drop: bind(gather_op, (g, *indices), (axes, position, drop)),
    None,
    cost=Cost.COMPUTE,
    samples=_make("values", shape=lambda shape: shape, drop=False),
    doc="Zeros with values added at index arrays.",
)
scatter_add_op: Op = linear(
    "scatter_add",
    lambda xp, x, values, *indices, axes, position: _sum(xp, x, values, indices, axes, position),
    lambda g: g,
    lambda g, indices, axes, position: bind(gather_op, (g, *indices), (axes, position, True)),
    None,
    cost=Cost.COMPUTE,
    samples=_make("both"),
    doc="x with values added at index arrays; repeats add up.",
)
scatter_set_op: Op = linear(
    "scatter_set",
    _set,
    lambda g, values_shape, indices, axes, position: bind(
        scatter_set_op, (g, zeros(Type(values_shape, g.dtype), g), *indices), (axes, position, True)
    ),
    lambda g, indices, axes, position, unique: bind(
        gather_op if unique else gather_last_op, (g, *indices), (axes, position, True) if unique else (axes, position)
    ),
    None,
    cost=Cost.COMPUTE,
    guards=True,
    samples=_make("both", unique=False),
    doc="x with values written at index arrays; of repeats, the last one counts.",
)
gather_last_op: Op = linear(
    "gather_last",
    _gather_last,
    lambda g, x_shape, indices, axes, position: bind(
        scatter_set_op, (zeros(Type(x_shape, g.dtype), g), g, *indices), (axes, position, False)
    ),
    None,
    samples=_make("x"),
    doc="The elements of x at index arrays, but 0 for all of several equal indices except the last.",
)
repeat_ranks_op: Op = nondiff(
    "repeat_ranks",
    _ranks,
    cost=Cost.COMPUTE,
    samples=Samples(
        make=lambda rng: [
            (tuple(inputs), {"shape": shape, "axes": params["axes"]})
            for (_, *inputs), params, shape in _samples(rng, "x")
        ]
    ),
    doc="A stable order that brings updates of one place together, and how many of them are before each, and after.",
)


# --- scatter with max and min: the equal ones among x and all values share the derivative


def _shares(xp: Any, x: Any, values: Any, result: Any, *indices: Any, axes: Axes, position: int) -> Any:
    gather, add = (_gather_numpy, _numpy_add) if xp is np else (_gather, _xla_add)
    where: dict[str, Any] = {"axes": axes, "position": position, "drop": True}
    x_won = _same(xp, x, result)
    values_won = _same(xp, values, gather(xp, result, *indices, **where))
    count = add(xp, x_won.astype(dtypes.int32), values_won.astype(dtypes.int32), indices, axes, position)
    weight = (1 / xp.maximum(count, 1).astype(dtypes.float32)).astype(x.dtype)
    return x_won * weight, values_won * gather(xp, weight, *indices, **where)


def _same(xp: Any, x: Any, y: Any) -> Any:
    return (x == y) | (xp.isnan(x) & xp.isnan(y)) if dtypes.is_float(x.dtype) else x == y


shares_op: Op = nondiff(
    "shares",
    _shares,
    cost=Cost.COMPUTE,
    samples=Samples(
        make=lambda rng: [
            ((x, values, _numpy_max(np, x, values, indices, **params), *indices), params)
            for (x, values, *indices), params, _ in _samples(rng, "both")
        ]
    ),
    doc="After a scatter with max or min: the share of each element of x and of values in its place of the result.",
)


def _share(x: Any, values: Any, indices: Any, out: Any, axes: Axes, position: int) -> Any:
    return bind(shares_op, (x, values, out, *indices), (axes, position))


def _x_rule(g: Any, x: Any, values: Any, indices: Any, out: Any, axes: Axes, position: int) -> Any:
    return mul(g, _share(x, values, indices, out, axes, position)[0])


def _values_pull(g: Any, x: Any, values: Any, indices: Any, out: Any, axes: Axes, position: int) -> Any:
    share = _share(x, values, indices, out, axes, position)[1]
    return mul(bind(gather_op, (g, *indices), (axes, position, True)), share)


def _values_push(t: Any, x: Any, values: Any, indices: Any, out: Any, axes: Axes, position: int) -> Any:
    share = _share(x, values, indices, out, axes, position)[1]
    return bind(ungather_op, (mul(t, share), *indices), (out.shape, axes, position, True))


def _extremum(name: str, numpy_scatter: Any, xla_scatter: Any) -> Any:
    def impl(xp: Any, x: Any, values: Any, *indices: Any, axes: Axes, position: int) -> Any:
        return (numpy_scatter if xp is np else xla_scatter)(xp, x, values, indices, axes, position)

    return custom(
        f"scatter_{name}",
        impl,
        jvp=[_x_rule, _values_push, None],
        vjp=[_x_rule, _values_pull, None],
        cost=Cost.COMPUTE,
        samples=_make("both"),
        doc=f"The {name} of x and values at index arrays; equal ones share the derivative.",
    )


scatter_max_op: Op = _extremum("max", _numpy_max, _xla_max)
scatter_min_op: Op = _extremum("min", _numpy_min, _xla_min)


# --- scatter with a product


def _multiplied(xp: Any, x: Any, values: Any, *indices: Any, axes: Axes, position: int) -> Any:
    wide = dtypes.int32 if x.dtype.kind == "b" else dtypes.accumulator(x.dtype)
    mul = _numpy_mul if xp is np else _xla_mul
    return mul(xp, x.astype(wide), values.astype(wide), indices, axes, position).astype(x.dtype)


def _factor(x: Any, values: Any, indices: Any, axes: Axes, position: int) -> Any:
    """What each element of `x` is multiplied by."""
    one = broadcast(base_backend(x).scalar(1, x._dtype), x._shape)
    return bind(scatter_mul_op, (one, values, *indices), (axes, position))


def _others(x: Any, values: Any, indices: Any, axes: Axes, position: int) -> Any:
    """What each value is multiplied by: its place in `x`, and the other values there, those before and those after.

    Nothing is divided, so zeros are as good as any value, in derivatives of every order.
    """
    block = np.broadcast_shapes(*[i._shape for i in indices])
    count = int(np.prod(block))
    rest = values._shape[:position] + values._shape[position + len(block) :]
    front = tuple(range(len(block)))
    moved = tuple([position + i for i in front])
    old = bind(gather_op, (x, *indices), (axes, position, True))
    if not values.size:
        return old
    flat = bind(reshape_op, (moveaxis(values, moved, front),), ((count, *rest),))
    order, before, after = bind(
        repeat_ranks_op, [bind(reshape_op, (broadcast(i, block),), ((count,),)) for i in indices], (x._shape, axes)
    )
    ordered = bind(gather_op, (flat, order), ((0,), 0, False))
    sides = []
    for reverse, number in ((False, before), (True, after)):
        edge = bind(reshape_op, (number == 0,), ((count, *[1] * len(rest)),))
        start = broadcast(cast(edge, flat._dtype), flat._shape)
        sides.append(recurrence(where(edge, 0.0, shift(ordered, 0, reverse)), start, 0, reverse))
    total = mul(*sides)
    total = bind(scatter_set_op, (total, total, order), ((0,), 0, True))
    total = moveaxis(bind(reshape_op, (total,), ((*block, *rest),)), front, moved)
    return mul(old, total)


def _mul_values_pull(g: Any, x: Any, values: Any, indices: Any, axes: Axes, position: int) -> Any:
    return product(bind(gather_op, (g, *indices), (axes, position, True)), _others(x, values, indices, axes, position))


def _mul_values_push(t: Any, x: Any, values: Any, indices: Any, axes: Axes, position: int) -> Any:
    moved = product(t, _others(x, values, indices, axes, position))
    return bind(ungather_op, (moved, *indices), (x._shape, axes, position, True))


def _mul_x_rule(g: Any, x: Any, values: Any, indices: Any, axes: Axes, position: int) -> Any:
    return product(g, _factor(x, values, indices, axes, position))


scatter_mul_op: Op = custom(
    "scatter_mul",
    _multiplied,
    jvp=[_mul_x_rule, _mul_values_push, None],
    vjp=[_mul_x_rule, _mul_values_pull, None],
    cost=Cost.COMPUTE,
    samples=_make("both"),
    doc="x multiplied by values at index arrays; repeats multiply.",
)
