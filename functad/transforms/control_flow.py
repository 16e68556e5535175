"""`scan`, `cond`, `switch`, `while_loop`, `fori_loop`: loops and choices, with the meaning they have in JAX.

Where the number of steps is known, a loop is one compiled call. Where a choice or a condition has a
value now, it is Python's own; where it has none yet, all branches are written down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from functad import dtypes, tree
from functad.backends.staged import StagedOp
from functad.dispatch import Handle, bind
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, StructureError
from functad.keywords import explained
from functad.ops.arithmetic import maximum, minimum
from functad.ops.logic import not_equal
from functad.ops.operand import operand
from functad.ops.rules import cast
from functad.transforms.arguments import check_callable
from functad.transforms.bodies import Written, aligned, write_down
from functad.transforms.control_args import base_of, known, like_of, scalar, tensors_of, text_of, type_of
from functad.transforms.control_ops import cond_op
from functad.transforms.loops import bounds, check_structure, run_scan, run_while


@explained
def scan(
    f: Callable[[Any, Any], Any],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
) -> tuple[Any, Any]:
    """A loop over the rows of `xs` that passes a carry on; one compiled call, however many rows.

    Args:
        f: `f(carry, x) -> (carry, y)`, with pytrees for each; `x` is one row of `xs`. The carry keeps
            its structure, shapes and dtypes. `f` runs once, on variables without values.
        init: the first carry. A Python number in it takes the dtype that `f` makes of it.
        xs: a pytree of tensors with a common length of axis 0, or None.
        length: that length; needed if there are no `xs`.
        reverse: whether to start at the last row; results keep the order of the rows.
        unroll: how many steps the compiled loop has in a row; True or 0 for all.

    Returns the last carry, and the results `y` with those of all rows along a new axis 0.
    It is differentiable in every mode with respect to all that `f` reads, also by closure.

    >>> import functad as fd
    >>> total, sums = fd.scan(lambda c, x: (c + x, c + x), 0.0, fd.tensor([1.0, 2.0, 3.0]))
    >>> total.item(), sums.tolist()
    (6.0, [1.0, 3.0, 6.0])
    """
    check_callable(f, "scan", " It is f of fd.scan(f, init, xs), which takes (carry, x).")
    return run_scan("scan", f, init, xs, length, reverse, unroll, "carry{}".format)


@explained
def fori_loop(
    lower: Any, upper: Any, body_fun: Callable[[Any, Any], Any], init_val: Any, *, unroll: int | bool | None = None
) -> Any:
    """`for i in range(lower, upper): value = body_fun(i, value)`; gives the last value.

    With bounds that have values it is a `scan`, differentiable in every mode. With bounds that have
    none yet, in `fd.jit` or `fd.vmap`, it is a `while_loop`, differentiable in forward mode.

    >>> import functad as fd
    >>> fd.fori_loop(1, 5, lambda i, x: x * i, 1.0).item()
    24.0
    """
    check_callable(body_fun, "fori_loop", " It is body_fun of fd.fori_loop(lower, upper, body_fun, init_val).")
    (low, high), dtype = bounds(lower, upper)
    structure = tree.flatten(init_val)[1]

    def step(carry: Any, _: Any) -> Any:
        i, value = carry
        out = body_fun(i, value)
        check_structure("fori_loop", "init_val", structure, out)
        return (i + 1, out), None

    def name(path: str) -> str:
        return f"init_val{path.removeprefix('[1]')}"

    if isinstance(low, int) and isinstance(high, int):
        start = operand(low, like_of(init_val, body_fun), dtype)
        unroll = 1 if unroll is None else unroll
        return run_scan("fori_loop", step, (start, init_val), None, max(high - low, 0), False, unroll, name)[0][1]
    if unroll is not None:
        raise ArgumentError("fori_loop: unroll needs bounds that have values; pass Python ints, or leave unroll out.")
    like = high if isinstance(low, int) else low
    start, end = (operand(x, like, dtype) for x in (low, high))
    return run_while("fori_loop", lambda c: c[0] < end, lambda c: step(c, None)[0], (start, init_val), name)[1]


@explained
def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any) -> Any:
    """`while cond_fun(value): value = body_fun(value)`; gives the last value.

    The value keeps its structure, shapes and dtypes; a Python number in `init_val` takes the dtype that
    `body_fun` makes of it. Where the condition has a value, this is a Python loop, differentiable in every
    mode. Where it has none yet, in `fd.jit` or `fd.vmap`, the loop is compiled (under `vmap` each row stops
    by itself) and differentiable in forward mode; `scan` and `fori_loop` are so in reverse mode too.

    >>> import functad as fd
    >>> fd.while_loop(lambda x: x < 100, lambda x: x * 2, 3.0).item()
    192.0
    """
    check_callable(cond_fun, "while_loop", " It is cond_fun of fd.while_loop(cond_fun, body_fun, init_val).")
    check_callable(body_fun, "while_loop", " It is body_fun of fd.while_loop(cond_fun, body_fun, init_val).")
    return run_while("while_loop", cond_fun, body_fun, init_val, "init_val{}".format)


@explained
def cond(pred: Any, true_fun: Callable[..., Any], false_fun: Callable[..., Any], *operands: Any) -> Any:
    """`true_fun(*operands)` if `pred` holds, else `false_fun(*operands)`.

    Where `pred` has a value, only that branch runs, as ordinary Python. Where it has none yet, in `fd.jit`
    or `fd.scan`, both are compiled and one of them runs. Under `fd.vmap` with a `pred` for each row both run;
    what the branch not taken gives, be it inf or NaN, reaches neither value nor derivative.

    >>> import functad as fd
    >>> safe = lambda x: fd.cond(x > 0, fd.ops.sqrt, lambda x: 0 * x, x)
    >>> fd.vmap(fd.grad(safe))(fd.tensor([4.0, 0.0])).tolist()
    [0.25, 0.0]
    """
    check_callable(true_fun, "cond", " It is true_fun of fd.cond(pred, true_fun, false_fun, *operands).")
    check_callable(false_fun, "cond", " It is false_fun of fd.cond(pred, true_fun, false_fun, *operands).")
    index = _index("cond", "pred", pred)
    if isinstance(index, Handle):
        index = cast(not_equal(index, 0), dtypes.int32)
    branches = {"false_fun": false_fun, "true_fun": true_fun}
    return _choose("cond", index if isinstance(index, Handle) else bool(index), branches, operands)


@explained
def switch(index: Any, branches: Sequence[Callable[..., Any]], *operands: Any) -> Any:
    """`branches[index](*operands)`; an index out of range takes the nearest branch. See `cond`.

    >>> import functad as fd
    >>> fd.switch(1, [lambda x: x, lambda x: x * x], 3.0).item()
    9.0
    """
    if not isinstance(branches, (list, tuple)):
        raise ArgumentTypeError(
            f"switch: branches must be a list of functions, got {branches!r} of type {type(branches).__name__}. Write "
            "fd.switch(index, [f, g], *operands)."
        )
    named = {f"branches[{i}]": fn for i, fn in enumerate(branches)}
    if not named:
        raise ArgumentError("switch: branches is empty; pass at least one function.")
    for fn in named.values():
        check_callable(fn, "switch", " It is one of branches in fd.switch(index, branches, *operands).")
    index = _index("switch", "index", index)
    if isinstance(index, (bool, float, complex)) or (isinstance(index, Handle) and index._dtype.kind not in "iu"):
        raise DTypeError(f"switch: index must be an integer, got {index!r}; use fd.cond for a bool, or x.astype(int).")
    if len(named) == 1:
        index = 0
    return _choose("switch", index, named, operands)


# --- choices


def _choose(where: str, index: Any, named: dict[str, Callable[..., Any]], operands: tuple[Any, ...]) -> Any:
    """One of several functions; `index` is a number, or a tensor without a value."""
    fns = list(named.values())
    like = index if isinstance(index, Handle) else like_of(operands, *fns)
    inputs = tensors_of(where, operands, like, "operands{}".format)
    structure = tree.flatten(operands)[1]
    if not isinstance(index, Handle):
        out = fns[max(0, min(index, len(fns) - 1))](*tree.unflatten(structure, inputs))
        return tree.map(lambda x: operand(x, like, where=where), out)
    types = list(map(type_of, inputs))
    base = base_of(index)
    found = [write_down(fn, structure, types, base, where, lambda out: ()) for fn in fns]
    common = _common(where, list(named), found)
    if any([t.dtype for t in branch.types] != common for branch in found):
        found = [write_down(fn, structure, types, base, where, lambda out: common) for fn in fns]
    branches, outside = _aligned(found, len(inputs))
    index = cast(minimum(maximum(index, 0), len(fns) - 1), dtypes.int32)
    return tree.unflatten(found[0].structure, bind(cond_op(where, branches), [index, *inputs, *outside]))


def _aligned(found: Sequence[Written], count: int) -> tuple[tuple[StagedOp, ...], list[Any]]:
    """Branches that all take, after `count` arguments, what any of them reads from outside."""
    outside: dict[Any, Any] = {}
    keys = []
    for branch in found:
        seen = Counter[int]()  # a number may stand at several places of one branch
        keys.append([(id(x), seen.update([id(x)]) or seen[id(x)]) for x in branch.outside])
        outside.update(zip(keys[-1], branch.outside, strict=True))
    places = {key: i for i, key in enumerate(outside)}
    types = tuple(map(type_of, outside.values()))
    ops = [aligned(b.op, count, tuple([places[k] for k in mine]), types) for b, mine in zip(found, keys, strict=True)]
    return tuple(ops), list(outside.values())


def _common(where: str, names: list[str], found: Sequence[Written]) -> list[dtypes.DType]:
    """The dtype of each leaf of what branches return, to which Python numbers adapt."""
    structure = found[0].structure
    for name, branch in zip(names, found, strict=True):
        if branch.structure != structure:
            raise StructureError(
                f"{where}: the branches must return one structure, but {names[0]} returns {tree.shown(structure)} and {name} "
                f"returns {tree.shown(branch.structure)}."
            )
    common = []
    for i, types in enumerate(zip(*[branch.types for branch in found], strict=True)):
        numbers = [branch.numbers[i] for branch in found]
        strong = {t.dtype for t, n in zip(types, numbers, strict=True) if n is None}
        weak = [n for n in numbers if n is not None]
        dtype = next(iter(strong)) if strong else dtypes.of_scalar(max(weak, key=dtypes.SCALARS.index)(0))
        misfits = [n for n in weak if dtypes.with_scalar(dtype, n) != dtype]
        if len(strong) > 1 or misfits or len({t.shape for t in types}) > 1:
            other = next(j for j, t in enumerate(types) if t != types[0])
            kind = ShapeError if types[0].shape != types[other].shape else DTypeError
            place = tree.paths_of(structure)[i]
            raise kind(
                f"{where}: the branches must return equal types, but{' at ' + place if place else ''} {names[0]} gives "
                f"{text_of(types[0])} and {names[other]} gives {text_of(types[other])}. Change one with .astype() or "
                ".reshape()."
            )
        common.append(dtype)
    return common


def _index(where: str, name: str, x: Any) -> Any:
    """What chooses a branch: a Python number, or a tensor if it has no value."""
    return x if isinstance(x, dtypes.SCALARS) else known(scalar(where, name, x))
