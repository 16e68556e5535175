"""The kinds of derivative rule, and the few ops they are written with.

One rule serves both modes: from a partial derivative, or from a map and its transpose, follow
the pull of a cotangent and the push of a tangent.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from functad import dtypes
from functad.dispatch import Handle, base_backend, bind
from functad.errors import ArgumentError
from functad.ops.ieee import is_guarded, is_strict
from functad.ops.op import Derivative, Op, Read, Rule, Samples, Type

Partial = Rule | float | None

TABLE: dict[str, Op] = {}
"""Every primitive op by name."""


def register(op: Op) -> Op:
    """Enter `op` in the table; one of the user's takes the place of another, as a cell of a notebook runs again."""
    if (other := TABLE.get(op.name)) is not None and _is_own(other):
        raise ArgumentError(f"op {op.name!r}: functad has an op of this name; give yours another one.")
    for mode, rules in (("reverse", op.pulls), ("forward", op.pushes if op.joint_push is None else op.pulls)):
        if op.differentiable and len(rules) != len(op.inputs):
            raise ArgumentError(
                f"op {op.name!r}: it has {len(rules)} {mode} rule{'s' * (len(rules) != 1)} for the inputs "
                f"{', '.join(op.inputs)}; give one for each, None where it takes no derivative (fd.op.nondiff has none at all)."
            )
    TABLE[op.name] = op
    return op


def _is_own(op: Op) -> bool:
    return str(getattr(op.impl, "__module__", "")).startswith("functad.")


def _named(name: str) -> Op:
    return TABLE[name]


def _by_name(op: Op) -> Any:
    """For `pickle` and `copy`: an op is known by its identity, and found again by its name."""
    return (_named, (op.name,)) if TABLE.get(op.name) is op else object.__reduce_ex__(op, 2)


copyreg.pickle(Op, _by_name)


def nondiff(name: str, impl: Callable[..., Any], **about: Any) -> Op:
    """An op through which no derivative flows (comparisons, integer results).

    >>> import functad as fd
    >>> pair = fd.op.Samples([([(2, 3)], {})])
    >>> is_positive = fd.op.nondiff("is_positive", lambda xp, x: x > 0, samples=pair, doc="Whether x > 0.")
    >>> fd.grad(lambda x: x * is_positive(x))(3.0).item()
    1.0
    """
    if about.get("promote") in ("compare", "logical", "bits"):  # these are elementwise
        about.setdefault("batch", align_rows)
    return register(Op(name, impl, differentiable=False, **about))


def elementwise(name: str, impl: Callable[..., Any], *partials: Partial, **about: Any) -> Op:
    """An op that maps elements, with broadcasting; one partial derivative per input.

    A partial is a function of what it names, a number, or None where the op takes no derivative.

    >>> import functad as fd
    >>> pair = fd.op.Samples([([(2, 3), (3,)], {})])
    >>> area = fd.op.elementwise(
    ...     "area", lambda xp, x, y: x * y / 2, lambda y: y / 2, lambda x: x / 2, samples=pair, doc="Half x y."
    ... )
    >>> fd.grad(lambda x, y: area(x, y).sum(), argnums=1)(fd.tensor([1.0, 2.0]), 5.0).item()
    1.5
    """
    about.setdefault("promote", "numeric")
    about.setdefault("batch", align_rows)
    op = Op(name, impl, **about)
    op.pulls = [_elementwise_pull(op, i, p) for i, p in enumerate(partials)]
    op.pushes = [_elementwise_push(op, p) for p in partials]
    return register(op)


def linear(name: str, impl: Callable[..., Any], *transposes: Rule | None, **about: Any) -> Op:
    """An op jointly linear in the inputs that have a transpose.

    The others (None) are indices, masks and the like. For a variadic op the transpose takes `g` and
    the input's number.

    >>> import functad as fd
    >>> one = fd.op.Samples([([(2, 3)], {})])
    >>> twice = fd.op.linear("twice", lambda xp, x: x + x, lambda g: g + g, samples=one, doc="2 x.")
    >>> fd.grad(lambda x: twice(x) ** 2)(3.0).item()
    24.0
    """
    op = Op(name, impl, **about)
    op.pulls = [
        op.derivative(fn, 2 if op.variadic and i == len(op.inputs) - 1 else 1) for i, fn in enumerate(transposes)
    ]
    op.joint_push = Derivative(_linear_push(op), 1, (Read("all", 0), *_all_params(op)))
    return register(op)


def multilinear(name: str, impl: Callable[..., Any], *transposes: Rule | None, **about: Any) -> Op:
    """An op linear in each input by itself (products, contractions); one transpose for each.

    >>> import functad as fd
    >>> pair = fd.op.Samples([([(3,), (3,)], {})])
    >>> pairing = fd.op.multilinear(
    ...     "pairing", lambda xp, x, y: (x * y).sum(), lambda g, y: fd.op.product(g, y), lambda g, x: fd.op.product(g, x),
    ...     samples=pair, doc="<x, y>.",
    ... )  # fmt: skip
    >>> fd.grad(pairing)(fd.ones(2), fd.tensor([3.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    op = Op(name, impl, **about)
    op.pulls = [op.derivative(fn, 1) for fn in transposes]
    op.pushes = [
        Derivative(_multilinear_push(op, i), 1, (Read("all", 0), *_all_params(op))) if fn else None
        for i, fn in enumerate(transposes)
    ]
    op.pushes_itself = True
    return register(op)


def reduction(name: str, impl: Callable[..., Any], partial: Rule, **about: Any) -> Op:
    """An op that reduces the axes `axis` (a parameter, with `keepdims`) of its one input.

    The partial is that of each output with respect to the elements reduced into it; for half
    types it may be float32, which rounds the product once.

    >>> import functad as fd
    >>> def energy(xp, x, *, axis, keepdims=False):
    ...     return xp.sum(x * x, axis=axis, keepdims=keepdims)
    >>> one = fd.op.Samples([([(2, 3)], {"axis": (0,), "keepdims": False})])
    >>> energy_op = fd.op.reduction("energy", energy, lambda x: 2 * x, samples=one, doc="The sum of squares.")
    >>> fd.grad(lambda x: energy_op(x, axis=(0,)))(fd.tensor([1.0, 3.0])).tolist()
    [2.0, 6.0]
    """
    about.setdefault("batch", shift_axis)
    op = Op(name, impl, **about)
    if not {"axis", "keepdims"} <= {*op.params}:
        raise ArgumentError(f"op {name!r}: a reduction is of the form def {name}(xp, x, *, axis, keepdims=False).")
    reads = op.derivative(partial, 0)
    assert reads is not None
    axis, keepdims = (Read("param", op.params.index(p)) for p in ("axis", "keepdims"))

    def pull(g: Any, shape: Any, dtype: Any, axis: Any, keepdims: bool, *args: Any) -> Any:
        return cast(product(expand_reduced(g, shape, _axes(axis, len(shape)), keepdims), partial(*args)), dtype)

    def push(t: Any, out: Any, axis: Any, keepdims: bool, *args: Any) -> Any:
        return cast(bind(sum_op, (product(t, partial(*args)),), (_axes(axis, len(t._shape)), keepdims)), out._dtype)

    op.pulls = [Derivative(pull, 1, (Read("shape", 0), Read("dtype", 0), axis, keepdims, *reads.reads))]
    op.pushes = [Derivative(push, 1, (Read("out", 0), axis, keepdims, *reads.reads))]
    return register(op)


def _axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """The axes of a reduction as numbers from the front; those of functad's own ops are that already."""
    if axis is None:
        return tuple(range(ndim))
    return tuple([a % ndim for a in (axis if isinstance(axis, tuple) else (axis,))])


def custom(
    name: str,
    impl: Callable[..., Any],
    *,
    jvp: Sequence[Rule | None] | Rule,
    vjp: Sequence[Rule | None] | Rule,
    **about: Any,
) -> Op:
    """An op with its own pair of rules, one per input: `vjp(g, ...)` and `jvp(t, ...)`.

    For an op with several outputs `g` is the tuple of their cotangents, and `jvp` returns the
    tuple of their tangents.

    >>> import functad as fd
    >>> def turned(x):
    ...     return fd.numpy.stack([-x[1], x[0]])
    >>> turn = fd.op.custom(
    ...     "turn", lambda xp, x: xp.stack([-x[1], x[0]]), jvp=turned, vjp=lambda g: -turned(g),
    ...     samples=fd.op.Samples([([(2,)], {})]), doc="A quarter turn of a vector in the plane.",
    ... )  # fmt: skip
    >>> fd.jvp(turn, (fd.ones(2),), (fd.tensor([1.0, 2.0]),))[1].tolist()
    [-2.0, 1.0]
    """
    op = Op(name, impl, **about)
    op.pulls = [op.derivative(fn, 1) for fn in ([vjp] if callable(vjp) else vjp)]
    op.pushes = [op.derivative(fn, 1) for fn in ([jvp] if callable(jvp) else jvp)]
    return register(op)


def product(g: Any, partial: Any) -> Any:
    """Cotangent or tangent times partial derivative: what is exactly 0 stays 0, though the partial be inf or NaN.

    >>> import functad as fd
    >>> zero, one = fd.tensor(0.0), fd.tensor(1.0)
    >>> fd.op.product(zero, one / zero).item()
    0.0
    """
    if isinstance(partial, (int, float)):
        if partial == 1:
            return g
        if partial == -1:
            return neg(g)
        return mul(g, partial) if partial else bind(zeros_like_op, (g,))
    if is_strict():
        return mul(g, partial)
    return guarded_mul(g, partial) if is_guarded() else masked_mul(g, partial)


def unbroadcast(g: Any, shape: tuple[int, ...]) -> Any:
    """Sum `g` down to `shape`, from which broadcasting made it."""
    return g if g._shape == shape else bind(sum_to_op, (g,), (shape,))


def broadcast(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` broadcast to `shape`."""
    return x if x._shape == shape else bind(broadcast_to_op, (x,), (shape,))


def cast(x: Any, dtype: dtypes.DType) -> Any:
    """`x` with another dtype."""
    return x if x._dtype == dtype else bind(cast_op, (x,), (dtype,))


def widen(x: Any) -> Any:
    """`x` in the dtype its sums are kept in: float32 for half types."""
    return cast(x, dtypes.accumulator(x._dtype))


def zeros(type: Type, like: Any) -> Any:
    """Zeros of a shape and dtype on the device of `like`."""
    return broadcast(base_backend(like).scalar(0, type.dtype), type.shape)


def expand_reduced(g: Any, shape: tuple[int, ...], axis: tuple[int, ...], keepdims: bool) -> Any:
    """The cotangent of a reduction, spread over the elements that were reduced."""
    if not keepdims and axis and g._shape:  # a scalar broadcasts to any shape as it is
        kept = tuple(1 if i in axis else n for i, n in enumerate(shape))
        g = bind(reshape_op, (g,), (kept,))
    return broadcast(g, shape)


# --- rules for rows: `batch(op, inputs, mapped, size, params)` runs `op` on inputs of which those in
# `mapped` have a leading axis of `size` rows, and gives an output that has it, or NotImplemented


def align_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    """Rows of an elementwise op: put the axis of rows in front of the longest shape."""
    if len(inputs) == 1:
        return bind(op, inputs, params)
    rank = max([len(x._shape) - m for x, m in zip(inputs, mapped, strict=True)])
    return bind(op, [front_rows(x, rank) if m else x for x, m in zip(inputs, mapped, strict=True)], params)


def front_rows(x: Any, rank: int) -> Any:
    """`x`, whose first axis counts rows, with axes of length 1 behind it up to `rank` axes per row."""
    missing = rank + 1 - len(x._shape)
    return bind(reshape_op, (x,), ((x._shape[0], *[1] * missing, *x._shape[1:]),)) if missing > 0 else x


def shift_axis(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    """Rows of an op on inputs of one rank, whose only say about their shapes is the parameter `axis`."""
    if not all(mapped):
        inputs = [x if m else broadcast(x, (size, *x._shape)) for x, m in zip(inputs, mapped, strict=True)]
    at = op.params.index("axis")
    axis = params[at]
    if isinstance(axis, int):
        moved: Any = axis + (axis >= 0)
    else:
        moved = tuple([a + 1 for a in _axes(axis, len(inputs[0]._shape) - 1)])
    return bind(op, inputs, (*params[:at], moved, *params[at + 1 :]))


def _reshape_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    return bind(op, inputs, ((size, *params[0]),))


def _broadcast_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    return bind(op, (front_rows(inputs[0], len(params[0])),), ((size, *params[0]),))


def _depend_rows(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    x, y = inputs
    return bind(op, (x if mapped[0] else broadcast(x, (size, *x._shape)), y))


def _sum_rows_to(op: Op, inputs: Sequence[Any], mapped: Sequence[bool], size: int, params: tuple[Any, ...]) -> Any:
    (x,), (shape,) = inputs, params
    lead = len(x._shape) - 1 - len(shape)
    x = bind(sum_op, (x,), (tuple(range(1, 1 + lead)), False)) if lead else x
    return bind(op, (x,), ((size, *shape),))


def _elementwise_pull(op: Op, index: int, partial: Partial) -> Derivative | None:
    if partial is None:
        return None
    reads, of = _partial(op, partial)

    def pull(g: Any, shape: tuple[int, ...], *args: Any) -> Any:
        return of(g, args, shape)

    return Derivative(pull, 1, (Read("shape", index), *reads))


def _elementwise_push(op: Op, partial: Partial) -> Derivative | None:
    if partial is None:
        return None
    reads, of = _partial(op, partial)

    def push(t: Any, out: Any, *args: Any) -> Any:
        return broadcast(of(t, args, None), out.shape)

    return Derivative(push, 1, (Read("out", 0), *reads))


def _partial(op: Op, partial: Rule | float) -> tuple[Sequence[Read], Callable[..., Any]]:
    """What a partial derivative reads, and its product with a cotangent (summed down to a shape) or tangent.

    In half types all of it is computed in float32 and rounded once, unless the product is all that there is to round.
    """
    if hasattr(partial, "__float__") or isinstance(partial, complex):

        def scaled(g: Any, args: Sequence[Any], shape: tuple[int, ...] | None) -> Any:
            g = product(g, partial)
            return g if shape is None else unbroadcast(g, shape)

        return (), scaled
    derivative = op.derivative(partial, 0)
    assert derivative is not None

    def multiplied(g: Any, args: Sequence[Any], shape: tuple[int, ...] | None) -> Any:
        dtype = g._dtype
        wide = dtypes.is_half(dtype) and (shape not in (None, g._shape) or not _is_read(partial, len(args)))
        if wide:
            g, args = widen(g), [widen(x) if isinstance(x, Handle) else x for x in args]
        out = product(g, partial(*args))
        out = out if shape is None else unbroadcast(out, shape)
        return cast(out, dtype) if wide else out

    return derivative.reads, multiplied


@cache
def _is_read(partial: Rule, count: int) -> bool:
    """Whether a partial derivative is one of the values it reads, as it is."""
    args = [object() for _ in range(count)]
    try:
        return any(partial(*args) is x for x in args)
    except (TypeError, AttributeError):
        return False


def _all_params(op: Op) -> tuple[Read, ...]:
    return tuple(Read("param", i) for i in range(len(op.params)))


def _linear_push(op: Op) -> Rule:
    def push(tangents: Sequence[Any], inputs: Sequence[Any], *params: Any) -> Any:
        if all(t is None or not op.takes(i) for i, t in enumerate(tangents)):
            return None
        moved = [
            x if not op.takes(i) else bind(zeros_like_op, (x,)) if t is None else t
            for i, (x, t) in enumerate(zip(inputs, tangents, strict=True))
        ]
        return bind(op, moved, params)

    return push


def _multilinear_push(op: Op, index: int) -> Rule:
    def push(t: Any, inputs: Sequence[Any], *params: Any) -> Any:
        return bind(op, (*inputs[:index], t, *inputs[index + 1 :]), params)

    return push


# --- the ops that rules are written with


def _sum_to(xp: Any, x: Any, *, shape: tuple[int, ...]) -> Any:
    lead = x.ndim - len(shape)
    axes = (*range(lead), *(lead + i for i, n in enumerate(shape) if n == 1 and x.shape[lead + i] != 1))
    return xp.sum(x, axis=axes, dtype=dtypes.accumulator(x.dtype)).reshape(shape).astype(x.dtype)


def _sum(xp: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    return xp.sum(x, axis=axis, keepdims=keepdims, dtype=dtypes.accumulator(x.dtype)).astype(x.dtype)


def _cast(xp: Any, x: Any, *, dtype: Any) -> Any:
    return (xp.real(x) if x.dtype.kind == "c" and dtype.kind not in "cb" else x).astype(dtype)


def _cast_numpy(xp: Any, x: Any, *, dtype: Any) -> Any:
    """As XLA does: floats out of an integer's range become its nearest, and NaN 0."""
    if dtype.kind not in "iu" or not dtypes.is_float(x.dtype):
        return _cast(xp, x, dtype=dtype)
    info = xp.iinfo(dtype)
    wide = x.astype(dtypes.accumulator(x.dtype))
    inside = (wide > info.min) & (wide < info.max)
    out = xp.where(inside, wide, 0).astype(dtype)
    return xp.where(inside | xp.isnan(wide), out, xp.where(wide > 0, xp.array(info.max, dtype), info.min)).astype(dtype)


def _masked_mul(xp: Any, x: Any, y: Any) -> Any:
    return xp.where(x == 0, x, x * y)  # 0 times a finite y is 0 too, so y need not be looked at


def _zero_mul(xp: Any, x: Any, y: Any) -> Any:
    return xp.where((x == 0) | (y == 0), xp.zeros((), x.dtype), x * y)


PAIR = Samples([(((3, 2), (3, 2)), {}), (((2, 1), (1, 3)), {}), (((), (2,)), {}), (((0, 2), (2,)), {})])
ONE = Samples([(((3, 2),), {}), (((),), {}), (((0, 2),), {})])

add = elementwise(
    "add",
    lambda xp, x, y: xp.add(x, y),
    1,
    1,
    samples=PAIR,
    doc="x + y, elementwise.",
    example=("fd.numpy.add(1.0, 3.0).item()", "4.0"),
)
mul = elementwise(
    "mul", lambda xp, x, y: xp.multiply(x, y), lambda y: y, lambda x: x, samples=PAIR,
    doc="x * y, elementwise.",
    example=("fd.numpy.multiply(1.0, 3.0).item()", "3.0"),
)  # fmt: skip
neg = elementwise(
    "neg", lambda xp, x: xp.negative(x), -1, samples=ONE, doc="-x.", example=("fd.numpy.negative(1.0).item()", "-1.0")
)


def _winning(name: str, **about: Any) -> Op:
    return custom(
        name, _masked_mul, promote="numeric", samples=PAIR, batch=align_rows,
        vjp=[lambda g, y, x_shape: unbroadcast(product(g, y), x_shape),
             lambda g, x, y_shape: unbroadcast(zero_mul(g, x), y_shape)],
        jvp=[lambda t, y: masked_mul(t, y), lambda t, x: zero_mul(t, x)], **about,
    )  # fmt: skip


masked_mul: Op = _winning("masked_mul", doc="x * y, but 0 where x is exactly 0 and y is not finite.")
guarded_mul: Op = _winning("guarded_mul", guards=True, doc="masked_mul in a rule behind an op that guards.")
zero_mul: Op = custom(
    "zero_mul", _zero_mul, promote="numeric", samples=PAIR, batch=align_rows,
    vjp=[lambda g, y, x_shape: unbroadcast(zero_mul(g, y), x_shape),
         lambda g, x, y_shape: unbroadcast(zero_mul(g, x), y_shape)],
    jvp=[lambda t, y: zero_mul(t, y), lambda t, x: zero_mul(t, x)],
    doc="x * y, but 0 where either is exactly 0, and so are its derivatives: a zero factor wins over inf and NaN.",
)  # fmt: skip
zeros_like_op = nondiff(
    "zeros_like", lambda xp, x: xp.zeros_like(x), samples=ONE, batch=align_rows, doc="Zeros of the type of x.",
)  # fmt: skip
cast_op: Op = linear(
    "cast", _cast, lambda g, x_dtype: bind(cast_op, (g,), (x_dtype,)),
    samples=Samples([(((3, 2),), {"dtype": dtypes.float32})]), batch=align_rows, numpy_impl=_cast_numpy,
    doc="x with another dtype.",
)  # fmt: skip
sum_to_op = linear(
    "sum_to", _sum_to, lambda g, x_shape: broadcast(g, x_shape),
    samples=Samples([(((4, 3, 2),), {"shape": (3, 1)}), (((2, 3),), {"shape": ()})]),
    batch=_sum_rows_to, doc="Sum down to a shape that broadcasts to the input's.",
)  # fmt: skip
sum_op = linear(
    "sum", _sum, lambda g, x_shape, axis, keepdims: expand_reduced(g, x_shape, axis, keepdims),
    samples=Samples([
        (((3, 2),), {"axis": (0,), "keepdims": False}), (((3, 2, 4),), {"axis": (0, 2), "keepdims": True}),
        (((),), {"axis": (), "keepdims": False}), (((0, 2),), {"axis": (0,), "keepdims": False}),
    ]),
    batch=shift_axis, doc="Sum over axes; half types accumulate in float32.",
)  # fmt: skip
broadcast_to_op = linear(
    "broadcast_to", lambda xp, x, *, shape: xp.broadcast_to(x, shape),
    lambda g, x_shape: unbroadcast(g, x_shape),
    samples=Samples([(((3, 1),), {"shape": (2, 3, 4)}), (((),), {"shape": (2,)})]),
    batch=_broadcast_rows, doc="x repeated to a larger shape.",
)  # fmt: skip
reshape_op: Op = linear(
    "reshape", lambda xp, x, *, shape: xp.reshape(x, shape),
    lambda g, x_shape: bind(reshape_op, (g,), (x_shape,)),
    samples=Samples([(((2, 3),), {"shape": (3, 2)}), (((1,),), {"shape": ()}), (((0, 2),), {"shape": (2, 0)})]),
    batch=_reshape_rows, doc="The same elements in another shape.",
)  # fmt: skip
depend_op = linear(
    "depend", lambda xp, x, y: x, lambda g: g, lambda g, y_shape, y_dtype: zeros(Type(y_shape, y_dtype), g),
    samples=Samples([(((2,), (3,)), {})]), batch=_depend_rows, doc="x, as a function of y whose derivative is zero.",
)  # fmt: skip
