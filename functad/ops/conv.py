"""Convolution and its two transposes: three ops that are one trilinear form.

With x[N, C, *I], w[O, C / groups, *K] and y[N, O, *L] the form sums x * w * y over every place that a
window of `stride`, `padding` and `dilation` reads. Its derivative with respect to y is the convolution,
with respect to x the transposed convolution, with respect to w the gradient of a kernel; and the
derivatives of these are each other again. So every order of differentiation stays among the three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from functad import dtypes
from functad.dispatch import bind
from functad.ops.ieee import is_guarded
from functad.ops.logic import isfinite, logical_or, not_equal, where
from functad.ops.op import Cost, Op, Samples
from functad.ops.operand import operand
from functad.ops.rules import broadcast, cast, multilinear, sum_op
from functad.ops.shape import reshaped, transpose_op

__all__: list[str] = []

Sizes = tuple[int, ...]


class Conv(NamedTuple):
    """How a kernel moves: one entry per spatial axis; a padding may be negative."""

    stride: Sizes
    padding: tuple[tuple[int, int], ...]
    dilation: Sizes
    groups: int = 1


def out_size(size: Sizes, kernel: Sizes, how: Any) -> Sizes:
    """The spatial size of what windows over `size` give; 0 or less where none fits."""
    return tuple([
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, s, (low, high), d in zip(size, kernel, how.stride, how.padding, how.dilation, strict=True)
    ])  # fmt: skip


# --- XLA: all three are convolutions. On a CPU it has no fast form of some; those are unrolled over the kernel's places.

_MOST_PLACES = 64


def _reads(x: Any, kernel: Sizes, out: Sizes, stride: Sizes, padding: Any, dilation: Sizes, spread: Sizes) -> Any:
    """Per place in the kernel what all windows read there; `spread` puts zeros between the elements of x."""
    edges = [(low, high, s - 1) for (low, high), s in zip(padding, spread, strict=True)]
    x = lax.pad(x, x.dtype.type(0), [(0, 0, 0), (0, 0, 0), *edges])
    for place in np.ndindex(*kernel):
        starts = [k * d for k, d in zip(place, dilation, strict=True)]
        stops = [a + (n - 1) * s + 1 for a, n, s in zip(starts, out, stride, strict=True)]
        yield place, lax.slice(x, (0, 0, *starts), (*x.shape[:2], *stops), (1, 1, *stride))


def _depthwise(x: Any, w: Any, window_strides: Sizes, padding: Any, rhs_dilation: Sizes, lhs_dilation: Sizes) -> Any:
    """A convolution of each channel with a kernel of its own."""
    wide = dtypes.accumulator(x.dtype)
    x, w = x.astype(wide), w.astype(wide)
    spread = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], lhs_dilation, strict=True)]
    size = out_size(tuple(spread), w.shape[2:], Conv(window_strides, padding, rhs_dilation))
    reads = _reads(x, w.shape[2:], size, window_strides, padding, rhs_dilation, lhs_dilation)
    column = (-1, *[1] * len(size))
    return sum(part * w[(slice(None), 0, *place)].reshape(column) for place, part in reads)


def _grouped_kernel_grad(x: Any, y: Any, size: Sizes, padding: Any, how: Conv) -> Any:
    """One matrix product per place in the kernel; XLA's own form takes up to 60 times as long on a CPU."""
    wide = dtypes.accumulator(x.dtype)
    n, groups, out = x.shape[0], how.groups, y.shape[2:]
    y = y.reshape(n, groups, -1, *out)
    axes = [0, *range(3, y.ndim)]
    parts = [
        lax.dot_general(y, part.reshape(n, groups, -1, *out), ((axes, axes), ([1], [1])), preferred_element_type=wide)
        for _, part in _reads(x, size, out, how.stride, padding, how.dilation, (1,) * len(size))
    ]
    stacked = lax.concatenate([part[..., None] for part in parts], 3)
    return stacked.reshape(-1, stacked.shape[2], *size).astype(x.dtype)


def _grouped(x: Any, groups: int) -> Any:
    """A kernel whose input and output channels change places within each group."""
    o, c, *size = x.shape
    return x.reshape(groups, o // groups, c, *size).swapaxes(1, 2).reshape(groups * c, o // groups, *size)


def _convolved(x: Any, w: Any, specs: Any, **how: Any) -> Any:
    numbers = lax.ConvDimensionNumbers(*specs)
    wide = dtypes.accumulator(x.dtype)

    def convolution(x: Any, w: Any) -> Any:
        out = lax.conv_general_dilated(x, w, dimension_numbers=numbers, preferred_element_type=wide, **how)
        return out.astype(x.dtype)

    def depthwise(x: Any, w: Any) -> Any:
        return _depthwise(x, w, **{name: how[name] for name in how if name != "feature_group_count"}).astype(x.dtype)

    groups = how.get("feature_group_count", 1)
    if 1 < groups == x.shape[1] == w.shape[0] and math.prod(w.shape[2:]) <= _MOST_PLACES:
        return lax.platform_dependent(x, w, cpu=depthwise, default=convolution)
    return convolution(x, w)


def _conv(xp: Any, x: Any, w: Any, *, how: Conv) -> Any:
    plain = tuple(range(x.ndim))
    size = out_size(x.shape[2:], w.shape[2:], how)
    if not x.size or not w.size:
        return xp.zeros((x.shape[0], w.shape[0], *size), x.dtype)
    return _convolved(
        x, w, (plain, plain, plain), window_strides=how.stride, padding=how.padding, lhs_dilation=(1,) * len(size),
        rhs_dilation=how.dilation, feature_group_count=how.groups,
    )  # fmt: skip


def _input_grad(xp: Any, y: Any, w: Any, *, size: Sizes, how: Conv) -> Any:
    if not y.size or not w.size:
        return xp.zeros((y.shape[0], w.shape[1] * how.groups, *size), y.dtype)
    plain = tuple(range(y.ndim))
    padding = []
    for n, out, k, s, (low, _), d in zip(size, y.shape[2:], w.shape[2:], *how[:3], strict=True):
        reach = d * (k - 1)
        padding.append((reach - low, n - 1 - (out - 1) * s + low))
    flipped = lax.rev(w, plain[2:])
    swapped = (1, 0, *plain[2:]) if how.groups == 1 else plain
    return _convolved(
        y, flipped if how.groups == 1 else _grouped(flipped, how.groups), (plain, swapped, plain),
        window_strides=(1,) * len(size), padding=padding, lhs_dilation=how.stride, rhs_dilation=how.dilation,
        feature_group_count=how.groups,
    )  # fmt: skip


def _kernel_grad(xp: Any, x: Any, y: Any, *, size: Sizes, how: Conv) -> Any:
    if not x.size or not y.size:
        return xp.zeros((y.shape[1], x.shape[1] // how.groups, *size), x.dtype)
    padding = []
    for k, n, out, s, (low, _), d in zip(size, x.shape[2:], y.shape[2:], *how[:3], strict=True):
        padding.append((low, (k - 1) * d + (out - 1) * s + 1 - n - low))
    if how.groups == 1 and set(size) == {1} and x.shape[2:] == y.shape[2:] and {*padding} == {(0, 0)}:
        axes = [0, *range(2, x.ndim)]  # one matrix product, which XLA runs some 4 times faster on a CPU
        out = xp.tensordot(y, x, (axes, axes), preferred_element_type=dtypes.accumulator(x.dtype))
        return out.astype(x.dtype).reshape(*out.shape, *size)
    swapped = (1, 0, *range(2, x.ndim))  # the batch is what is summed

    def convolution(x: Any, y: Any) -> Any:
        return _convolved(
            x, y, (swapped, swapped, swapped), window_strides=how.dilation, padding=padding, rhs_dilation=how.stride,
            batch_group_count=how.groups,
        )  # fmt: skip

    if how.groups > 1 and math.prod(size) <= _MOST_PLACES:
        products = partial(_grouped_kernel_grad, size=size, padding=padding, how=how)
        return lax.platform_dependent(x, y, cpu=products, default=convolution)
    return convolution(x, y)


# --- NumPy: matrix products of strided views


def widened(x: Any, padding: Sequence[tuple[int, int]], fill: Any = 0) -> Any:
    """A NumPy array with `padding` round its last axes, cut where that is negative."""
    lead = x.ndim - len(padding)
    cut = [slice(max(0, -low), n - max(0, -high)) for n, (low, high) in zip(x.shape[lead:], padding, strict=True)]
    x = x[(..., *cut)]
    more = [(max(0, low), max(0, high)) for low, high in padding]
    if not any(map(any, more)):
        return x
    return np.pad(x, [(0, 0)] * lead + more, constant_values=fill)


def _windows(x: Any, kernel: Sizes, out: Sizes, how: Conv) -> Any:
    """A view [C, *kernel, N, *out] of what each place of the kernel reads."""
    x = widened(x, how.padding)
    strides = [a * s for a, s in zip(x.strides[2:], how.stride, strict=True)]
    dilated = [a * d for a, d in zip(x.strides[2:], how.dilation, strict=True)]
    n, c = x.shape[:2]
    return np.lib.stride_tricks.as_strided(
        x, (c, *kernel, n, *out), (x.strides[1], *dilated, x.strides[0], *strides), writeable=False
    )


def _columns(x: Any, kernel: Sizes, out: Sizes, how: Conv) -> Any:
    """What is read, as [groups, C / groups * kernel, N * out]: long runs of memory, and one product for all."""
    rows = x.shape[1] // how.groups * math.prod(kernel)
    return _windows(x, kernel, out, how).reshape(how.groups, rows, x.shape[0] * math.prod(out))


def _by_group(y: Any, groups: int) -> Any:
    """y[N, O, *L] as [groups, O / groups, N * L]."""
    n, o, *size = y.shape
    return y.swapaxes(0, 1).reshape(groups, o // groups, n * math.prod(size))


def _conv_numpy(xp: Any, x: Any, w: Any, *, how: Conv) -> Any:
    wide = dtypes.accumulator(x.dtype)
    n, o, groups = x.shape[0], w.shape[0], how.groups
    size = out_size(x.shape[2:], w.shape[2:], how)
    columns = _columns(x.astype(wide, copy=False), w.shape[2:], size, how)
    matrices = w.astype(wide, copy=False).reshape(groups, o // groups, columns.shape[1])
    return (matrices @ columns).reshape(o, n, *size).swapaxes(0, 1).astype(x.dtype, order="C")


def _input_grad_numpy(xp: Any, y: Any, w: Any, *, size: Sizes, how: Conv) -> Any:
    wide = dtypes.accumulator(y.dtype)
    groups, kernel, out = how.groups, w.shape[2:], y.shape[2:]
    n, c = y.shape[0], groups * w.shape[1]
    matrices = w.astype(wide, copy=False).reshape(groups, w.shape[0] // groups, w.shape[1] * math.prod(kernel))
    columns = matrices.swapaxes(1, 2) @ _by_group(y.astype(wide, copy=False), groups)
    columns = columns.reshape(c, *kernel, n, *out)
    padded = [i + low + high for i, (low, high) in zip(size, how.padding, strict=True)]
    total = np.zeros((c, n, *padded), wide)
    for place in np.ndindex(*kernel):
        at: tuple[Any, ...] = tuple([
            slice(k * d, k * d + (o - 1) * s + 1, s)
            for k, o, s, d in zip(place, out, how.stride, how.dilation, strict=True)
        ])  # fmt: skip
        total[(..., *at)] += columns[(slice(None), *place)]
    total = widened(total, [(-low, -high) for low, high in how.padding])
    return total.swapaxes(0, 1).astype(y.dtype, order="C")


def _kernel_grad_numpy(xp: Any, x: Any, y: Any, *, size: Sizes, how: Conv) -> Any:
    wide = dtypes.accumulator(x.dtype)
    columns = _columns(x.astype(wide, copy=False), size, y.shape[2:], how)
    out = _by_group(y.astype(wide, copy=False), how.groups) @ columns.swapaxes(1, 2)
    return out.reshape(y.shape[1], x.shape[1] // how.groups, *size).astype(x.dtype)


# --- rows: the axis of rows joins the axis of the form that every tensor with rows has, so that a
# convolution over rows is a convolution

_AXES = {"x": ("n", "gc"), "w": ("go", "c"), "y": ("n", "go")}
_JOINS = {"xy": "n", "wx": "c", "wy": "o", "wxy": "g"}


def _split(shape: Sequence[int], tensor: str, groups: int) -> tuple[list[str], list[int]]:
    """The letters of a tensor's axes, and their lengths."""
    letters: list[str] = []
    lengths: list[int] = []
    for axis, n in zip(_AXES[tensor], shape, strict=False):
        letters += axis
        lengths += [groups, n // groups] if len(axis) == 2 else [n]
    return letters, lengths + list(shape[2:])


def _join_rows(x: Any, tensor: str, groups: int, letter: str) -> Any:
    """Rows of a tensor as one tensor in which the axis `letter` is longer."""
    size, *shape = x._shape
    letters, lengths = _split(shape, tensor, groups)
    place = letters.index(letter)
    x = reshaped(x, (size, *lengths))
    order = (*range(1, place + 1), 0, *range(place + 1, x.ndim))
    x = bind(transpose_op, (x,), (order,)) if place else x
    return reshaped(x, _joined(shape, tensor, letter, size))


def _part_rows(x: Any, tensor: str, groups: int, letter: str, size: int) -> Any:
    """The rows that such a tensor holds."""
    shape = list(x._shape)
    axis = next(i for i, a in enumerate(_AXES[tensor]) if letter in a)
    shape[axis] //= size
    letters, lengths = _split(shape, tensor, groups)
    place = letters.index(letter)
    x = reshaped(x, (*lengths[:place], size, *lengths[place:]))
    order = (place, *[i for i in range(x.ndim) if i != place])
    x = bind(transpose_op, (x,), (order,)) if place else x
    return reshaped(x, (size, *shape))


def _joined(shape: Sequence[int], tensor: str, letter: str, size: int) -> Sizes:
    return tuple([n * size if i < 2 and letter in _AXES[tensor][i] else n for i, n in enumerate(shape)])


def _rows(tensors: str, out: str) -> Any:
    """The `batch` rule of an op on two `tensors` of the form that gives the third."""

    def batch(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
        *sizes, how = params
        letter = _JOINS["".join(sorted([out, *[t for t, m in zip(tensors, mapped, strict=True) if m]]))]
        joined = [
            _join_rows(x, t, how.groups, letter) if m else x for x, t, m in zip(inputs, tensors, mapped, strict=True)
        ]
        moved = how._replace(groups=how.groups * size) if letter == "g" else how
        return _part_rows(bind(op, joined, (*sizes, moved)), out, how.groups, letter, size)

    return batch


# --- behind a `where`: an inf or NaN that only zeros of the cotangent would be multiplied by counts as 0


def _met(x: Any, g: Any, where_used: Any, *about: Any) -> Any:
    """`x`, but 0 where it is not finite and is used with zeros of `g` alone, if zeros are to win."""
    if not is_guarded():
        return x
    live = cast(not_equal(g, 0), dtypes.float32)
    return where(logical_or(not_equal(where_used(x._shape, live, *about), 0), isfinite(x)), x, 0)


def _kernels_of_made(w: Sizes, live: Any, x: Sizes, how: Conv) -> Any:
    """How often each entry of a kernel makes something live, from places of x."""
    return bind(conv_kernel_grad_op, (_ones(live, x[0], how.groups, x[2:]), live), (w[2:], how))


def _kernels_of_read(w: Sizes, live: Any, y: Sizes, how: Conv) -> Any:
    """How often each entry of a kernel reads something live."""
    found = bind(conv_kernel_grad_op, (live, _ones(live, y[0], how.groups, y[2:])), (w[2:], how))
    return _for_all(found, 0, w)


def _places_read(x: Sizes, live: Any, kernel: Sizes, how: Conv) -> Any:
    """How often something live is made from each place."""
    window = _ones(live, how.groups, 1, kernel)
    return _for_all(bind(conv_input_grad_op, (_by_any(live, how.groups), window), (x[2:], how)), 1, x)


def _places_made(y: Sizes, live: Any, kernel: Sizes, how: Conv) -> Any:
    """How often each place is made from something live."""
    return _for_all(bind(conv_op, (_by_any(live, how.groups), _ones(live, how.groups, 1, kernel)), (how,)), 1, y)


def _ones(like: Any, first: int, second: int, size: Sizes) -> Any:
    return broadcast(operand(1.0, like, like._dtype), (first, second, *size))


def _by_any(live: Any, groups: int) -> Any:
    """How many channels of each group are live."""
    n, channels, *size = live._shape
    return (
        bind(sum_op, (reshaped(live, (n, groups, channels // groups, *size)),), ((2,), False))
        if channels != groups
        else live
    )


def _for_all(x: Any, axis: int, shape: Sizes) -> Any:
    """What is known for each group along an axis, for each channel."""
    ahead, behind, groups = x._shape[:axis], x._shape[axis + 1 :], x._shape[axis]
    if groups in (1, shape[axis]):
        return x
    x = reshaped(x, (*ahead, groups, 1, *behind))
    return reshaped(broadcast(x, (*ahead, groups, shape[axis] // groups, *behind)), (*ahead, shape[axis], *behind))


# --- the ops. The samples: stride and dilation with an uneven padding, a stride that leaves some over, groups, a cut.

_CASES: list[tuple[Sizes, Sizes, Conv]] = [
    ((2, 4, 5), (6, 2, 2), Conv((2,), ((1, 0),), (2,), 2)),
    ((1, 2, 6, 5), (3, 2, 3, 2), Conv((2, 1), ((1, 0), (-1, 2)), (1, 2))),
    ((2, 1, 3, 4), (2, 1, 1, 1), Conv((1, 1), ((0, 0), (0, 0)), (1, 1))),
    ((1, 2, 6), (2, 1, 3), Conv((2,), ((1, 1),), (1,), 2)),
]


def _samples(tensors: str) -> Samples:
    def make(rng: np.random.Generator) -> Any:
        found = []
        for x, w, how in _CASES:
            shapes = {"x": x, "w": w, "y": (x[0], w[0], *out_size(x[2:], w[2:], how))}
            size: dict[str, Any] = {"xw": {}, "yw": {"size": x[2:]}, "xy": {"size": w[2:]}}[tensors]
            found.append((tuple([rng.uniform(-2, 2, shapes[t]) for t in tensors]), {**size, "how": how}))
        return found

    return Samples(make=make)


conv_op: Op = multilinear(
    "conv", _conv,
    lambda g, w, x_shape, how: bind(conv_input_grad_op, (g, _met(w, g, _kernels_of_made, x_shape, how)), (x_shape[2:], how)),
    lambda g, x, w_shape, how: bind(conv_kernel_grad_op, (_met(x, g, _places_read, w_shape[2:], how), g), (w_shape[2:], how)),
    numpy_impl=_conv_numpy, batch=_rows("xw", "y"), cost=Cost.COMPUTE, samples=_samples("xw"),
    doc="Convolution of x[N, C, ...] with kernels w[O, C / groups, ...]; half types accumulate in float32.",
)  # fmt: skip
conv_input_grad_op: Op = multilinear(
    "conv_input_grad", _input_grad,
    lambda g, w, y_shape, how: bind(conv_op, (g, _met(w, g, _kernels_of_read, y_shape, how)), (how,)),
    lambda g, y, w_shape, how: bind(conv_kernel_grad_op, (g, _met(y, g, _places_made, w_shape[2:], how)), (w_shape[2:], how)),
    numpy_impl=_input_grad_numpy, batch=_rows("yw", "x"), cost=Cost.COMPUTE, samples=_samples("yw"),
    doc="The transpose of a convolution with respect to its input, of spatial size `size`.",
)  # fmt: skip
conv_kernel_grad_op: Op = multilinear(
    "conv_kernel_grad", _kernel_grad,
    lambda g, y, x_shape, how: bind(conv_input_grad_op, (y, g), (x_shape[2:], how)),
    lambda g, x, how: bind(conv_op, (x, g), (how,)),
    numpy_impl=_kernel_grad_numpy, batch=_rows("xy", "w"), cost=Cost.COMPUTE, samples=_samples("xy"),
    doc="The transpose of a convolution with respect to its kernels, of spatial size `size`.",
)  # fmt: skip
