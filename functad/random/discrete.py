"""Draws of integers, booleans and choices; no derivative flows through them."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np

from functad import dtypes, ops
from functad.creation import Shape, as_shape
from functad.device import Device
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from functad.ops.axes import normalize_axis
from functad.ops.index import take_inside
from functad.ops.operand import operand
from functad.random.keys import checked_key, int_dtype, parameters, placed, random_op, wrap
from functad.tensor import Tensor


def bits(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """Random bits, as unsigned integers: uint32, or another unsigned `dtype`.

    >>> import functad as fd
    >>> fd.random.bits(fd.random.key(0), (3,), dtype="uint8").dtype
    dtype('uint8')
    """
    wanted = dtypes.uint32 if dtype is None else dtypes.parse(dtype, "random.bits")
    if wanted.kind != "u":
        raise DTypeError(f"random.bits: bits are unsigned integers, got dtype={wanted}.")
    return placed(bind(_bits_op, (checked_key(key, "bits"),), (as_shape(shape, "random.bits"), wanted)), device)


def bernoulli(
    key: Any, p: Any = 0.5, shape: Shape | None = None, mode: str = "low", device: Device | None = None
) -> Tensor:
    """True with probability `p`; of the shape of `p` unless told otherwise. `mode="high"` resolves tiny `p` better.

    >>> import functad as fd
    >>> fd.random.bernoulli(fd.random.key(0), [0.0, 1.0]).tolist()
    [False, True]
    >>> round(fd.random.bernoulli(fd.random.key(0), 0.25, (10000,)).mean().item(), 2)
    0.25
    """
    if mode not in ("low", "high"):
        raise ArgumentError(f"random.bernoulli: mode must be 'low' or 'high', got {mode!r}.")
    known = p.dtype if isinstance(p, Handle) and dtypes.is_float(p.dtype) else None
    drawn = parameters("bernoulli", key, shape, known, p)
    return placed(bind(_bernoulli_op, (drawn.key, *drawn.params), (drawn.shape, mode)), device)


def rademacher(key: Any, shape: Shape = (), dtype: Any = None, device: Device | None = None) -> Tensor:
    """1 and -1 with equal probability; integers, of the default int without a `dtype`.

    >>> import functad as fd
    >>> sorted(set(fd.random.rademacher(fd.random.key(0), (20,)).tolist()))
    [-1, 1]
    """
    wanted = int_dtype(dtype, "rademacher")
    sizes = as_shape(shape, "random.rademacher")
    return placed(bind(_rademacher_op, (checked_key(key, "rademacher"),), (sizes, wanted)), device)


def randint(
    key: Any, shape: Shape, minval: Any, maxval: Any, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """Integers in `[minval, maxval)`; the bounds are ints or tensors of ints.

    >>> import functad as fd
    >>> x = fd.random.randint(fd.random.key(0), (100,), 2, 5)
    >>> x.min().item(), x.max().item()
    (2, 4)
    """
    if isinstance(minval, int) and isinstance(maxval, int) and minval >= maxval:
        raise ArgumentError(f"random.randint: minval={minval} must be less than maxval={maxval}.")
    key = checked_key(key, "randint")
    bounds = [operand(bound, key, where="random.randint") for bound in (minval, maxval)]
    for bound in bounds:
        if bound.dtype.kind not in "iu":
            raise DTypeError(f"random.randint: the bounds must be ints, got {bound.dtype}; write bound.astype(int).")
    sizes = as_shape(shape, "random.randint")
    return placed(bind(_randint_op, (key, *bounds), (sizes, int_dtype(dtype, "randint"))), device)


def poisson(key: Any, lam: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """Poisson numbers of mean `lam`; integers, of the default int without a `dtype`.

    >>> import functad as fd
    >>> x = fd.random.poisson(fd.random.key(0), [0.0, 9.0], (10000, 2))
    >>> x.dtype, [round(m) for m in x.mean(0).tolist()]
    (dtype('int32'), [0, 9])
    """
    drawn = parameters("poisson", key, shape, None, lam)
    return placed(bind(_poisson_op, (drawn.key, *drawn.params), (drawn.shape, int_dtype(dtype, "poisson"))), device)


def geometric(key: Any, p: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None) -> Tensor:
    """How many trials it takes, each successful with probability `p`, to the first success; integers.

    >>> import functad as fd
    >>> fd.random.geometric(fd.random.key(0), 1.0, (3,)).tolist()
    [1, 1, 1]
    >>> round(fd.random.geometric(fd.random.key(0), 0.25, (10000,)).mean().item())
    4
    """
    drawn = parameters("geometric", key, shape, None, p)
    return placed(bind(_geometric_op, (drawn.key, *drawn.params), (drawn.shape, int_dtype(dtype, "geometric"))), device)


def binomial(
    key: Any, n: Any, p: Any, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """How many of `n` trials succeed, each with probability `p`; floats, as in JAX.

    >>> import functad as fd
    >>> fd.random.binomial(fd.random.key(0), 7, [0.0, 1.0]).tolist()
    [0.0, 7.0]
    """
    drawn = parameters("binomial", key, shape, dtype, n, p)
    return placed(bind(_binomial_op, (drawn.key, *drawn.params), (drawn.shape, drawn.dtype)), device)


def multinomial(
    key: Any, n: Any, p: Any, *, shape: Shape | None = None, dtype: Any = None, device: Device | None = None
) -> Tensor:
    """How often each outcome comes up in `n` trials; `p` has the probabilities along its last axis. Floats, as in JAX.

    >>> import functad as fd
    >>> x = fd.random.multinomial(fd.random.key(0), 10, [0.5, 0.5, 0.0])
    >>> x.shape, x.sum().item(), x[2].item()
    ((3,), 10.0, 0.0)
    """
    key = checked_key(key, "multinomial")
    trials = operand(n, key, where="random.multinomial").expand_dims(-1)
    (_, (n, p), _, wanted) = parameters("multinomial", key, None, dtype, trials, p)
    sizes = None if shape is None else as_shape(shape, "random.multinomial")
    n = n.reshape(n.shape[:-1])
    return placed(bind(_multinomial_op, (key, n, p), (sizes, wanted)), device)


def categorical(
    key: Any,
    logits: Any,
    axis: int = -1,
    shape: Shape | None = None,
    replace: bool = True,
    device: Device | None = None,
) -> Tensor:
    """Indices along `axis` with probabilities proportional to exp(logits).

    Args:
        key: the key.
        logits: unnormalised log-probabilities.
        axis: the axis of the categories.
        shape: that of the result, whose last axes are those of `logits` without `axis`.
        replace: whether a category may be drawn again.
        device: where the result goes.

    >>> import functad as fd
    >>> fd.random.categorical(fd.random.key(0), [0.0, float("-inf")], shape=(3,)).tolist()
    [0, 0, 0]
    """
    (key, (logits,), _, _) = parameters("categorical", key, None, None, logits)
    axis = normalize_axis(axis, logits.ndim, "random.categorical")
    sizes = None if shape is None else as_shape(shape, "random.categorical")
    return placed(bind(_categorical_op, (key, logits), (axis, sizes, bool(replace), dtypes.default_int())), device)


def permutation(key: Any, x: Any, axis: int = 0, independent: bool = False, device: Device | None = None) -> Tensor:
    """`x` with the slices along `axis` in random order, or the integers from 0 up to an int `x`.

    With `independent` every line along `axis` has an order of its own. Differentiable in `x`.

    >>> import functad as fd
    >>> sorted(fd.random.permutation(fd.random.key(0), 4).tolist())
    [0, 1, 2, 3]
    """
    key = checked_key(key, "permutation")
    count = _count(x)
    if count is not None:
        return placed(bind(_permutation_op, (key,), ((count,), 0, dtypes.default_int())), device)
    x = operand(x, key, where="random.permutation")
    axis = normalize_axis(axis, x.ndim, "random.permutation")
    if independent:
        order = bind(_permutation_op, (key,), (x.shape, axis, dtypes.default_int()))
        return placed(ops.take_along_axis(x, order, axis), device)
    order = bind(_permutation_op, (key,), ((x.shape[axis],), 0, dtypes.default_int()))
    return placed(take_inside(x, order, axis), device)


def choice(
    key: Any,
    a: Any,
    shape: Shape = (),
    replace: bool = True,
    p: Any = None,
    axis: int = 0,
    device: Device | None = None,
) -> Tensor:
    """Slices of `a` along `axis` (or integers below an int `a`) picked at random; differentiable in `a`.

    Args:
        key: the key.
        a: what to pick from.
        shape: how many, in what shape; it stands in the place of `axis`.
        replace: whether one may be picked again.
        p: the probabilities, one per slice; equal by default.
        axis: the axis of the slices.
        device: where the result goes.

    >>> import functad as fd
    >>> fd.random.choice(fd.random.key(0), fd.tensor([5.0, 7.0]), (3,), p=[0.0, 1.0]).tolist()
    [7.0, 7.0, 7.0]
    """
    key = checked_key(key, "choice")
    sizes = as_shape(shape, "random.choice")
    count = _count(a)
    if count is None:
        a = operand(a, key, where="random.choice")
        axis = normalize_axis(axis, a.ndim, "random.choice")
    n = a.shape[axis] if count is None else count
    size = int(np.prod(sizes))
    if not n and size:
        raise ArgumentError("random.choice: there is nothing to pick from: a is empty.")
    if not replace and size > n:
        raise ArgumentError(f"random.choice: {size} of {n} cannot be picked without replacement; write replace=True.")
    inputs = [key]
    if p is not None:
        (_, (p,), _, _) = parameters("choice", key, None, None, p)
        if p.shape != (n,):
            raise ShapeError(f"random.choice: p must hold one probability for each of the {n}, got shape {p.shape}.")
        inputs.append(p)
    picked = bind(_choice_op, inputs, (n, sizes, bool(replace), dtypes.default_int()))
    return placed(picked if count is not None else take_inside(a, picked, axis), device)


def _count(x: Any) -> int | None:
    """`x` as an int, if it is one."""
    if isinstance(x, Handle) and x.shape:
        return None
    try:
        count = operator.index(x)
    except TypeError:
        if isinstance(x, float) or np.ndim(x) == 0:
            raise ArgumentTypeError(f"random: expected an int or a tensor with an axis, got {x!r}.") from None
        return None
    if count < 0:
        raise ArgumentError(f"random: the number of things cannot be negative, got {count}.")
    return count


# --- ops


def _floats(x: Any) -> Any:
    """Parameters that JAX takes as floats only; the samples of some ops are whole, for one draw in every dtype."""
    return x if dtypes.is_float(x.dtype) else x.astype(dtypes.float32)


_bits_op = random_op(
    "bits",
    lambda xp, key, *, shape, dtype: jax.random.bits(wrap(key), shape, dtype),
    {"shape": (2, 3), "dtype": dtypes.uint32},
    "Random bits.",
)
_bernoulli_op = random_op(
    "bernoulli",
    lambda xp, key, p, *, shape, mode: jax.random.bernoulli(wrap(key), _floats(p), shape, mode),
    {"shape": (3, 2), "mode": "low"},
    "True with probability p.",
    np.array([0, 1], np.int32),
)
_rademacher_op = random_op(
    "rademacher",
    lambda xp, key, *, shape, dtype: jax.random.rademacher(wrap(key), shape, dtype),
    {"shape": (2, 3), "dtype": dtypes.int32},
    "1 and -1.",
)
_randint_op = random_op(
    "randint",
    lambda xp, key, low, high, *, shape, dtype: jax.random.randint(wrap(key), shape, low, high, dtype),
    {"shape": (2, 3), "dtype": dtypes.int32},
    "Integers in a range.",
    np.int32(0),
    np.int32(9),
)
_poisson_op = random_op(
    "poisson",
    lambda xp, key, lam, *, shape, dtype: jax.random.poisson(wrap(key), lam.astype(dtypes.float32), shape, dtype),
    {"shape": (3, 2), "dtype": dtypes.int32},
    "Poisson numbers.",
    np.array([2, 5], np.int32),
)
_geometric_op = random_op(
    "geometric",
    lambda xp, key, p, *, shape, dtype: jax.random.geometric(wrap(key), p, shape, dtype),
    {"shape": (3, 2), "dtype": dtypes.int32},
    "Geometric numbers.",
    np.array([1, 1], np.int32),
)
_binomial_op = random_op(
    "binomial",
    lambda xp, key, n, p, *, shape, dtype: jax.random.binomial(wrap(key), n, p, shape, dtype),
    {"shape": (3, 2), "dtype": dtypes.float32},
    "Binomial numbers.",
    np.array([5, 9], np.int32),
    np.array([0, 1], np.int32),
)
_multinomial_op = random_op(
    "multinomial",
    lambda xp, key, n, p, *, shape, dtype: jax.random.multinomial(wrap(key), n, p, shape=shape, dtype=dtype),
    {"shape": None, "dtype": dtypes.float32},
    "Multinomial numbers.",
    np.int32(5),
    np.array([0, 1], np.int32),
)
_categorical_op = random_op(
    "categorical",
    lambda xp, key, logits, *, axis, shape, replace, dtype: jax.random.categorical(
        wrap(key), _floats(logits), axis, shape, replace
    ).astype(dtype),
    {"axis": 0, "shape": None, "replace": True, "dtype": dtypes.int32},
    "Indices drawn by their logits.",
    np.array([[0, 1], [2, 0]], np.int32),
)
_permutation_op = random_op(
    "permutation",
    lambda xp, key, *, shape, axis, dtype: jax.random.permutation(
        wrap(key), jax.lax.broadcasted_iota(dtype, shape, axis), axis, independent=len(shape) > 1
    ),
    {"shape": (5,), "axis": 0, "dtype": dtypes.int32},
    "Integers in random order.",
)
_choice_op = random_op(
    "choice",
    lambda xp, key, *p, n, shape, replace, dtype: jax.random.choice(wrap(key), n, shape, replace, *p).astype(dtype),
    {"n": 5, "shape": (2,), "replace": False, "dtype": dtypes.int32},
    "Integers picked at random.",
)
