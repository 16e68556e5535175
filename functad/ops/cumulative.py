"""Running sums, products, extrema and log-sum-exps along an axis.

The derivatives of the running products are first-order linear recurrences, and the derivative of
a recurrence is a recurrence. So none of them divides, and zeros are exact at every order.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import Any

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import bind
from functad.ops.elementary import log_of_sum, widened
from functad.ops.ieee import is_strict
from functad.ops.op import Cost, Op, Samples
from functad.ops.operand import operands
from functad.ops.order import line
from functad.ops.prefix import running
from functad.ops.rules import cast, custom, elementwise, linear, mul, nondiff, product, shift_axis, widen, zero_mul

__all__ = [
    "cummax", "cummin", "cumprod", "cumprod_op", "cumsum", "cumsum_op", "logcumsumexp", "logcumsumexp_op",
    "others_op",
]  # fmt: skip


# --- what runs along an axis


def _along(xp: Any, fn: Any, x: Any, axis: int, reverse: bool) -> Any:
    if not x.shape[axis]:  # refuses 0-d, which NumPy takes
        return x
    return xp.flip(fn(xp.flip(x, axis), axis), axis) if reverse else fn(x, axis)


def _accumulated(xp: Any, fn: Any, step: Any, unit: int, x: Any, axis: int, reverse: bool) -> Any:
    """By XLA's own form, but on CPUs."""
    if xp is np:
        return _along(np, fn, x, axis, reverse)
    return jax.lax.platform_dependent(
        x,
        cpu=lambda x: running(lambda a, b: (step(a[0], b[0]),), (x,), (unit,), axis, reverse)[0],
        default=lambda x: _along(xp, fn, x, axis, reverse),
    )


def _accumulator(x: Any) -> Any:
    return x.astype(dtypes.accumulator(x.dtype))


def _cumsum(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    return _accumulated(xp, xp.cumsum, xp.add, 0, _accumulator(x), axis, reverse).astype(x.dtype)


def _cumprod(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    return _accumulated(xp, xp.cumprod, xp.multiply, 1, _accumulator(x), axis, reverse).astype(x.dtype)


def _logaddexps(x: Any, axis: int) -> Any:
    if x.dtype.kind != "c":
        return np.logaddexp.accumulate(x, axis)
    return np.stack(list(accumulate(np.moveaxis(x, axis, 0), partial(log_of_sum, np))), axis)


def _logcumsumexp(xp: Any, x: Any, *, axis: int, reverse: bool) -> Any:
    w = _accumulator(x)
    if xp is np:
        out = _along(np, _logaddexps, w, axis, reverse)
    else:
        # jax.lax.cumlogsumexp takes up to a hundred times as long on CPUs
        out = jax.lax.associative_scan(xp.logaddexp, w, reverse, axis) if w.shape[axis] else w
    return out.astype(x.dtype)


def _lowest(dtype: Any, largest: bool) -> Any:
    """What no element is beyond."""
    if dtypes.is_float(dtype):
        return -float("inf") if largest else float("inf")
    if dtype.kind == "b":
        return not largest
    return np.iinfo(dtype).min if largest else np.iinfo(dtype).max


def _running(xp: Any, x: Any, *, axis: int, largest: bool) -> Any:
    if xp is np:
        return (np.maximum if largest else np.minimum).accumulate(x, axis)
    step, unit = xp.maximum if largest else xp.minimum, _lowest(x.dtype, largest)
    return jax.lax.platform_dependent(
        x,
        cpu=lambda x: running(lambda a, b: (step(a[0], b[0]),), (x,), (unit,), axis, False)[0],
        default=lambda x: (jax.lax.cummax if largest else jax.lax.cummin)(x, axis),
    )


def _is_running(xp: Any, x: Any, *, axis: int, largest: bool) -> Any:
    if xp is not np:
        x = jax.lax.optimization_barrier(x)  # compared with itself: it must not be computed twice
    extreme = _running(xp, x, axis=axis, largest=largest)
    return (x == extreme) | ((x != x) & (extreme != extreme))


def _places(xp: Any, shape: tuple[int, ...], axis: int) -> Any:
    return xp.arange(shape[axis], dtype=dtypes.default_int()).reshape(
        [n if i == axis else 1 for i, n in enumerate(shape)]
    )


def _running_index(xp: Any, x: Any, *, axis: int, largest: bool) -> Any:
    here, place = _is_running(xp, x, axis=axis, largest=largest), _places(xp, x.shape, axis)
    return _running(xp, xp.where(here, place, xp.zeros_like(place)), axis=axis, largest=True)


def _carry(xp: Any, here: Any, x: Any, *, axis: int) -> Any:
    if xp is np:
        index = np.maximum.accumulate(np.where(here, _places(np, x.shape, axis), 0), axis)
        return np.take_along_axis(x, index, axis)

    def after(first: Any, then: Any) -> Any:
        return first[0] | then[0], xp.where(then[0], then[1], first[1])

    return running(after, (here, x), (False, 0), axis, False)[1]


def _collect(xp: Any, here: Any, x: Any, *, axis: int) -> Any:
    dtype, wide = x.dtype, _accumulator(x)
    if xp is np:
        index = np.maximum.accumulate(np.where(here, _places(np, x.shape, axis), 0), axis)
        out = np.zeros_like(wide)
        grid = np.ogrid[tuple([slice(n) for n in x.shape])]
        np.add.at(out, tuple([index if i == axis else grid[i] for i in range(x.ndim)]), wide)
        return out.astype(dtype)

    def after(first: Any, then: Any) -> Any:
        return first[0] | then[0], xp.where(then[0], then[1], first[1] + then[1])

    last = _move(xp, here, axis, True, False) if here.shape[axis] else here  # of the elements that share one
    total = running(after, (last, wide), (False, 0), axis, True)[1]
    return xp.where(here, total, xp.zeros((), total.dtype)).astype(dtype)


def _slice(x: Any, axis: int, start: int | None, stop: int | None) -> Any:
    return x[(slice(None),) * axis + (slice(start, stop),)]


def _move(xp: Any, x: Any, axis: int, reverse: bool, fill: float, by: int = 1) -> Any:
    """Every element `by` places later (or earlier), and `fill` where none comes from."""
    edge = xp.full_like(_slice(x, axis, 0, by), fill)
    return xp.concatenate([_slice(x, axis, by, None), edge] if reverse else [edge, _slice(x, axis, None, -by)], axis)


def _shift(xp: Any, x: Any, *, axis: int, reverse: bool, fill: float) -> Any:
    return _move(xp, x, axis, reverse, fill) if x.shape[axis] else x


def _recurrence(xp: Any, x: Any, y: Any, *, axis: int, reverse: bool) -> Any:
    dtype = y.dtype
    x, y = _accumulator(x), _accumulator(y)

    def after(first: Any, then: Any) -> Any:
        """The step `out -> x * out + y` that two steps make together."""
        return _masked_product(xp, first[0], then[0]), _masked_product(xp, first[1], then[0]) + then[1]

    if xp is not np:
        return running(after, (x, y), (1, 0), axis, reverse)[1].astype(dtype)
    by = 1
    while by < x.shape[axis]:  # after each pass an element stands for twice as many steps
        x, y = after((_move(xp, x, axis, reverse, 1, by), _move(xp, y, axis, reverse, 0, by)), (x, y))
        by *= 2
    return y.astype(dtype)


def _others(xp: Any, x: Any, *, axis: int) -> Any:
    if xp is np:  # those before times those after
        before, after = (np.cumprod(_move(xp, y, axis, False, 1), axis) for y in (x, np.flip(x, axis)))
        return before * np.flip(after, axis)
    levels = []
    while x.shape[axis] > 1:  # halve it by products of pairs, and come back
        first, last = xp.split(x, [(x.shape[axis] + 1) // 2], axis)
        edge = [(0, n - m) for n, m in zip(first.shape, last.shape, strict=True)]
        levels.append((x.shape[axis], first, xp.pad(last, edge, constant_values=1)))
        x = first * levels[-1][2]
    x = xp.ones_like(x)
    for length, first, last in reversed(levels):
        x = _slice(xp.concatenate([x * last, x * first], axis), axis, 0, length)
    return x


def _masked_product(xp: Any, x: Any, y: Any) -> Any:
    return xp.where(x == 0, x, x * y)  # as in rules.masked_mul


# --- the ops


def shift(x: Any, axis: int, reverse: bool, fill: float = 0) -> Any:
    """Every element one place later along `axis` (earlier with `reverse`), and `fill` first."""
    return bind(shift_op, (x,), (axis, reverse, fill))


def recurrence(x: Any, y: Any, axis: int, reverse: bool) -> Any:
    """out[i] = x[i] * out[i - 1] + y[i] along `axis` (out[i + 1] with `reverse`)."""
    return bind(recurrence_op, (x, y), (axis, reverse))


def _recurrence_pull(g: Any, x: Any, axis: int, reverse: bool) -> Any:
    """The cotangent of y: the transposed recurrence, which runs the other way."""
    return recurrence(shift(x, axis, not reverse), g, axis, not reverse)


def _step(g: Any, out: Any) -> Any:
    """How a factor of a recurrence moves: 0 where nothing was multiplied by it, as in the rule of masked_mul."""
    return mul(g, out) if is_strict() else zero_mul(g, out)


def exclusive_cumprod(x: Any, axis: int, reverse: bool) -> Any:
    """The product of the elements before each one."""
    return bind(cumprod_op, (shift(x, axis, reverse, 1),), (axis, reverse))


def _cumprod_pull(g: Any, x: Any, axis: int, reverse: bool) -> Any:
    wide = widen(x)
    later = _recurrence_pull(widen(g), wide, axis, reverse)
    return cast(product(later, exclusive_cumprod(wide, axis, reverse)), g._dtype)


def _cumprod_push(t: Any, x: Any, axis: int, reverse: bool) -> Any:
    wide = widen(x)
    return cast(recurrence(wide, product(widen(t), exclusive_cumprod(wide, axis, reverse)), axis, reverse), t._dtype)


def _others_pull(g: Any, x: Any, axis: int) -> Any:
    sides = []
    for reverse in (False, True):
        share = product(g, exclusive_cumprod(x, axis, not reverse))
        sides.append(shift(_cumprod_pull(share, shift(x, axis, reverse, 1), axis, reverse), axis, not reverse))
    return sides[0] + sides[1]


def _others_push(t: Any, x: Any, axis: int) -> Any:
    sides = []
    for reverse in (False, True):
        moved = _cumprod_push(shift(t, axis, reverse), shift(x, axis, reverse, 1), axis, reverse)
        sides.append(product(moved, exclusive_cumprod(x, axis, not reverse)))
    return sides[0] + sides[1]


def _logcumsumexp_weights(x: Any, out: Any, axis: int, reverse: bool) -> tuple[Any, Any]:
    """How much of each partial sum is its last term, and how much is the one before it."""
    wide = widen(x)
    out = out if wide is x else bind(logcumsumexp_op, (wide,), (axis, reverse))  # never the rounded one
    return exp_below(wide, out), exp_below(shift(out, axis, reverse, float("-inf")), out)


def _logcumsumexp_pull(g: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    last, before = _logcumsumexp_weights(x, out, axis, reverse)
    return cast(product(_recurrence_pull(widen(g), before, axis, reverse), last), g._dtype)


def _logcumsumexp_push(t: Any, x: Any, out: Any, axis: int, reverse: bool) -> Any:
    last, before = _logcumsumexp_weights(x, out, axis, reverse)
    return cast(recurrence(before, product(widen(t), last), axis, reverse), t._dtype)


_LINES = Samples([
    (((4,),), {"axis": 0, "reverse": False}), (((2, 5),), {"axis": 1, "reverse": True}),
    (((3, 2, 2),), {"axis": 1, "reverse": False}), (((0, 2),), {"axis": 0, "reverse": False}),
    (((1,),), {"axis": 0, "reverse": True}),
])  # fmt: skip

cumsum_op: Op = linear(
    "cumsum", _cumsum, lambda g, axis, reverse: bind(cumsum_op, (g,), (axis, not reverse)),
    samples=_LINES, batch=shift_axis, doc="Running sums along an axis.",
)  # fmt: skip
shift_op: Op = custom(
    "shift", _shift, jvp=lambda t, axis, reverse: bind(shift_op, (t,), (axis, reverse, 0)),
    vjp=lambda g, axis, reverse: shift(g, axis, not reverse),
    samples=Samples([
        (((4,),), {"axis": 0, "reverse": False, "fill": 1}), (((2, 3),), {"axis": 1, "reverse": True, "fill": 0}),
        (((2, 0),), {"axis": 1, "reverse": True, "fill": 0}),
    ]),
    batch=shift_axis, doc="Every element one place further along an axis.",
)  # fmt: skip
recurrence_op = custom(
    "recurrence", _recurrence,
    jvp=[
        lambda t, x, out, axis, reverse: recurrence(x, _step(t, shift(out, axis, reverse)), axis, reverse),
        lambda t, x, axis, reverse: recurrence(x, t, axis, reverse),
    ],
    vjp=[
        lambda g, x, out, axis, reverse: _step(_recurrence_pull(g, x, axis, reverse), shift(out, axis, reverse)),
        _recurrence_pull,
    ],
    cost=Cost.COMPUTE,
    samples=Samples([
        (((4,), (4,)), {"axis": 0, "reverse": False}), (((2, 5), (2, 5)), {"axis": 1, "reverse": True}),
        (((0,), (0,)), {"axis": 0, "reverse": False}),
    ]),
    batch=shift_axis, doc="out[i] = x[i] * out[i - 1] + y[i] along an axis.",
)  # fmt: skip
cumprod_op = custom(
    "cumprod", _cumprod, jvp=_cumprod_push, vjp=_cumprod_pull, samples=_LINES, batch=shift_axis,
    doc="Running products along an axis.",
)  # fmt: skip
others_op = custom(
    "others", _others, jvp=_others_push, vjp=_others_pull, promote="float",
    samples=Samples([(((5,),), {"axis": 0}), (((2, 3),), {"axis": 1}), (((0, 2),), {"axis": 0})]), batch=shift_axis,
    doc="The product of all elements along an axis but each one, without a division.",
)  # fmt: skip
exp_below = elementwise(
    "exp_below",
    widened(
        lambda xp, x, y: xp.where(x == -xp.inf, xp.zeros_like(x), xp.where(x == y, xp.ones_like(x), xp.exp(x - y)))
    ),
    lambda out: out, lambda out: -out, promote="float",
    samples=Samples([(((3, 2), (3, 2)), {})], low=(-2.0, 2.0), high=(2.0, 4.0)),
    doc="exp(x - y) for x <= y, with 0 for x = -inf and 1 for x = y = inf.",
)  # fmt: skip
logcumsumexp_op = custom(
    "logcumsumexp", _logcumsumexp, jvp=_logcumsumexp_push, vjp=_logcumsumexp_pull, cost=Cost.COMPUTE, promote="float",
    samples=_LINES, batch=shift_axis, doc="Running log-sum-exps along an axis.",
)  # fmt: skip
_EXTREMES = Samples([(((4,),), {"axis": 0, "largest": True}), (((2, 5),), {"axis": 1, "largest": False})])
running_index_op = nondiff(
    "running_index", _running_index, samples=_EXTREMES, batch=shift_axis,
    doc="The index of the largest (smallest) element so far, the latest among equals.",
)  # fmt: skip
is_running_op = nondiff(
    "is_running", _is_running, samples=_EXTREMES, batch=shift_axis,
    doc="Whether no element before is larger (smaller).",
)  # fmt: skip
running_op = custom(
    "running", _running,
    jvp=lambda t, x, axis, largest: bind(carry_op, (bind(is_running_op, (x,), (axis, largest)), t), (axis,)),
    vjp=lambda g, x, axis, largest: bind(collect_op, (bind(is_running_op, (x,), (axis, largest)), g), (axis,)),
    samples=_EXTREMES, batch=shift_axis, doc="The largest (smallest) element so far; the latest among equals.",
)  # fmt: skip


def _marked(rng: Any) -> Any:
    here = rng.uniform(size=(3, 5)) < 0.5
    here[:, 0] = True
    return [((here, rng.normal(size=(3, 5))), {"axis": 1}), ((here.T, rng.normal(size=(5, 3))), {"axis": 0})]


carry_op: Op = linear(
    "carry", _carry, None, lambda g, here, axis: bind(collect_op, (here, g), (axis,)),
    samples=Samples(make=_marked), batch=shift_axis, doc="The latest element so far that is marked; the first one is.",
)  # fmt: skip
collect_op: Op = linear(
    "collect", _collect, None, lambda g, here, axis: bind(carry_op, (here, g), (axis,)),
    samples=Samples(make=_marked), batch=shift_axis,
    doc="For each marked element the sum of those from it to before the next, and 0 for the others.",
)  # fmt: skip


# --- the functions


def cumsum(x: Any, axis: int | None = None) -> Any:
    """Running sums along `axis`; of the flattened tensor without one. Small integers become the default int.

    >>> import functad as fd
    >>> fd.ops.cumsum(fd.tensor([1.0, 2.0, 3.0])).tolist()
    [1.0, 3.0, 6.0]
    """
    x, axis = line(x, axis, "cumsum")
    return bind(cumsum_op, (integers_widened(x),), (axis, False))


def cumprod(x: Any, axis: int | None = None) -> Any:
    """Running products along `axis`; of the flattened tensor without one. Derivatives are exact at zeros.

    >>> import functad as fd
    >>> fd.grad(lambda x: fd.ops.cumprod(x).sum())(fd.tensor([2.0, 0.0, 3.0, 4.0])).tolist()
    [1.0, 32.0, 0.0, 0.0]
    """
    x, axis = line(x, axis, "cumprod")
    return bind(cumprod_op, (integers_widened(x),), (axis, False))


def logcumsumexp(x: Any, axis: int | None = None) -> Any:
    """Running log(sum(exp(x))) along `axis`, stable; of the flattened tensor without one.

    >>> import functad as fd
    >>> fd.ops.logcumsumexp(fd.tensor([-1000.0, 0.0, 1000.0])).tolist()
    [-1000.0, 0.0, 1000.0]
    """
    (x,) = operands("logcumsumexp", "float", (x,))
    x, axis = line(x, axis, "logcumsumexp")
    return bind(logcumsumexp_op, (x,), (axis, False))


def cummax(x: Any, axis: int | None = None, return_indices: bool = False) -> Any:
    """The largest element so far along `axis`; of the flattened tensor without one.

    Equal elements give the derivative to the latest. With `return_indices`, a pair of the values
    and where they stand.

    >>> import functad as fd
    >>> fd.ops.cummax(fd.tensor([1.0, 3.0, 2.0])).tolist()
    [1.0, 3.0, 3.0]
    """
    return _extreme(x, axis, return_indices, "cummax")


def cummin(x: Any, axis: int | None = None, return_indices: bool = False) -> Any:
    """The smallest element so far along `axis`; see `cummax`.

    >>> import functad as fd
    >>> fd.ops.cummin(fd.tensor([3.0, 1.0, 2.0]), return_indices=True)[1].tolist()
    [0, 1, 1]
    """
    return _extreme(x, axis, return_indices, "cummin")


def integers_widened(x: Any) -> Any:
    """`x` with integers at least as wide as the default int, in which sums and products are kept."""
    if x._dtype.kind not in "biu":
        return x
    default = dtypes.default_int()
    if x._dtype.kind == "u":
        default = np.dtype(f"u{default.name}")
    return cast(x, default) if x._dtype.itemsize < default.itemsize else x


def _extreme(x: Any, axis: int | None, return_indices: bool, where: str) -> Any:
    x, axis = line(x, axis, where)
    params = (axis, where == "cummax")
    values = bind(running_op, (x,), params)
    return (values, bind(running_index_op, (x,), params)) if return_indices else values
