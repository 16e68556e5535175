"""Ops whose work is Python code: what `checkpoint` and the custom rules are made of.

Such an op runs its function on tensors of whatever interpreter computes at the bottom. While it
runs, every op in it passes through a `Capture`, so that the tensors it reaches by closure are
known, and are inputs of the op like its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, NoReturn

from functad import dtypes, tree
from functad.backends.batch import Axes, Batch, BatchedOp
from functad.backends.staged import StagedOp
from functad.backends.trace import Program, Trace, open_trace
from functad.device import Device
from functad.dispatch import Handle, Known, bind, known_here, run_closed, tracing
from functad.errors import LevelError
from functad.levels import BASE, Level, deeper, open_depth
from functad.ops.op import Cost, Op, Type
from functad.ops.rules import zeros
from functad.tensor import Tensor
from functad.transforms.arguments import opened, settle

Function = Callable[[Sequence[Any]], tuple[Any, ...]]
"""From tensors to a tuple of tensors."""

_MOST_TRIES = 4

_paused: ContextVar[int] = ContextVar("functad_paused_depth", default=-1)


# --- interpreters that pass every op on


class Through:
    """An interpreter that computes each op one level down and adds nothing."""

    is_tape = False
    fuses = False

    def __init__(self, level: Level):
        self.level = level
        self.closed = False

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Pass `op` on."""
        return self.wrapped(bind(op, [x._value if x._backend is self else x for x in inputs], params))

    def wrap(self, x: Tensor) -> Tensor:
        """`x` as a tensor of this level."""
        return Tensor(self, x, None, x._shape, x._dtype)

    def wrapped(self, out: Any) -> Any:
        """What an op returned, on this level."""
        return tuple([self.wrap(o) for o in out]) if type(out) is tuple else self.wrap(out)

    def leave(self, x: Tensor) -> Tensor:
        """`x` one level down."""
        x = settle(x, self)
        return x._value if x._backend is self else x

    def device(self, x: Tensor) -> Device:
        return x._value.device

    def detach(self, x: Tensor) -> Tensor:
        return self.lowered(x, Tensor.detach)

    def constant(self, x: Tensor) -> Tensor:
        return self.lowered(x, Tensor.without_autodiff)

    def inner(self, x: Tensor) -> Tensor:
        """`x` with one tape level less."""
        return self.lowered(x, Tensor.inner)

    def lowered(self, x: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
        """What is no op, done one level down."""
        return self.wrap(how(x._value))

    def moves(self, x: Tensor) -> bool:
        return False

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> Any:
        if self.closed:
            return x._value.backward(cotangent, retain_graph)
        raise LevelError(
            "backward(): this tensor belongs to a checkpointed function or a custom rule that is still running. Return "
            "it and call backward() outside, or use fd.grad inside."
        )

    def close(self) -> None:
        """End it: its tensors are what they hold from now on."""
        self.closed = True
        self.run = run_closed  # type: ignore[method-assign]  # costs the open level nothing

    def resolve(self, x: Tensor) -> Tensor | None:
        return x._value if self.closed else None


class Surroundings(NamedTuple):
    """Where a function was called: it may run again elsewhere, when transforms that were open there have ended."""

    depth: int
    known: Known  # what a function around it is known to reach


def surroundings() -> Surroundings:
    """Those of a call that is made now."""
    return Surroundings(open_depth(), known_here())


class Missing(Exception):  # noqa: N818  # no user sees it
    """A function reached tensors from outside that were not known to be its inputs."""

    def __init__(self, owner: object, tensors: Sequence[Tensor]):
        super().__init__()
        self.owner = owner
        self.tensors = tensors


class Capture(Through):
    """Takes every op of a function, and puts given tensors in the place of those from outside."""

    def __init__(self, level: Level, closed: Sequence[Tensor], given: Sequence[Tensor], known: Known):
        super().__init__(level)
        self.given = {id(x): value for x, value in zip(closed, given, strict=True)}  # by the id of that from outside
        self.below = tracing.get()
        # what a function inside reaches is ours to replace too, even when its own level has closed by now
        self.known = Known(closed, known, known_here())
        self.touched: set[int] = set()
        self.missing: dict[int, Tensor] = {}

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        lowered = [x._value if x._backend is self else self.outside(x) for x in inputs]
        token = tracing.set(self.below)
        try:
            return self.wrapped(bind(op, lowered, params))
        finally:
            tracing.reset(token)

    def leave(self, x: Tensor) -> Tensor:
        x = settle(x, self)
        return x._value if x._backend is self else self.outside(x)

    def meet(self, x: Tensor, cut: bool) -> Tensor:
        """What stands for a tensor from outside, on this level."""
        touched = id(x) in self.touched
        out = self.wrap(self.outside(x))
        if cut and not touched:
            self.touched.discard(id(x))  # no derivative is lost
        return out

    def lowered(self, x: Tensor, how: Callable[[Tensor], Tensor]) -> Tensor:
        with _instead(self.below):
            return super().lowered(x, how)

    def outside(self, x: Tensor) -> Tensor:
        """What stands for a tensor from outside."""
        if id(x) in self.given:
            self.touched.add(id(x))
            return self.given[id(x)]
        if not _from_outside(x, self.known):
            return _constant_part(x)
        self.missing[id(x)] = x
        if _stands_for_one_value(x):
            with _instead(None):
                return x.without_autodiff()  # the run goes on, to find the others; its result is not used
        raise Missing(self, list(self.missing.values()))


@contextmanager
def _instead(interpreter: Any) -> Iterator[None]:
    token = tracing.set(interpreter)
    try:
        yield
    finally:
        tracing.reset(token)


def outside(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Those of `tensors` that a function must have as inputs if it reaches them."""
    known = known_here()
    found = {id(x): x for x in tensors if x in known or (not _leaked(x) and _from_outside(x, known))}
    return list(found.values())


def _stand_in(x: Tensor) -> Tensor:
    """What stands for a tensor from outside in the function that runs now: its own level may have ended."""
    capture = tracing.get()
    return capture.wrap(capture.outside(x)) if isinstance(capture, Capture) and id(x) in capture.given else x


def _from_outside(x: Any, known: Known) -> bool:
    return x in known or _constant_part(x)._backend.level > BASE


def _constant_part(x: Any) -> Any:
    """`x` without the levels where nothing moves it."""
    while isinstance(x._value, Handle):
        if getattr(x._backend, "closed", False):
            x = x._backend.resolve(x)
        elif x._backend.moves(x) or hasattr(x._backend, "refuse_value"):
            break
        else:
            x = x._value
    return x


def _stands_for_one_value(x: Any) -> bool:
    while isinstance(x._value, Handle):
        if hasattr(x._backend, "refuse_value"):
            return False
        x = x._value
    return not isinstance(x._backend, Trace)


def _leaked(x: Any) -> bool:
    """Whether `x` belongs to a vmap or jit that has ended."""
    while True:
        if getattr(x._backend, "closed", False) and (
            isinstance(x._backend, Trace) or hasattr(x._backend, "refuse_value")
        ):
            return True
        if not isinstance(x._value, Handle):
            return False
        x = x._value


@contextmanager
def capturing(
    inputs: Sequence[Tensor], closed: Sequence[Tensor], owner: Any, around: Surroundings
) -> Iterator[tuple[Capture, list[Any]]]:
    """Run a block in which the tensors `closed` are the last of `inputs`; it gets the others.

    Raises `Missing` when the block reached other tensors that it must have as inputs.
    """
    count = len(inputs) - len(closed)
    with opened(partial(Capture, closed=closed, given=inputs[count:], known=around.known), around.depth) as capture:
        token = tracing.set(capture)
        try:
            yield capture, [capture.wrap(x) for x in inputs[:count]]
        except Missing as missing:
            if missing.owner is capture:
                missing.owner = owner
            raise
        finally:
            tracing.reset(token)
        if capture.missing:
            raise Missing(owner, list(capture.missing.values()))


# --- pytrees with the tensors apart

_HOLE = object()


class Frame:
    """A pytree without its tensors."""

    __slots__ = ("fixed", "structure")

    def __init__(self, structure: tree.Structure, fixed: list[Any]):
        self.structure = structure
        self.fixed = fixed

    def fill(self, tensors: Iterable[Any]) -> Any:
        """The pytree with `tensors` in it."""
        parts = iter(tensors)
        return tree.unflatten(self.structure, [next(parts) if x is _HOLE else x for x in self.fixed])


def take_apart(values: Any) -> tuple[list[Any], Frame]:
    """The tensors of a pytree, and the rest."""
    leaves, structure = tree.flatten(values)
    fixed = [_HOLE if isinstance(x, Handle) else x for x in leaves]
    return [x for x in leaves if isinstance(x, Handle)], Frame(structure, fixed)


# --- ops


class _Forgets(dict[Any, Any]):
    """A cache that keeps nothing: a recorded form of Python code remembers its one run."""

    def __setitem__(self, key: Any, value: Any) -> None:
        """Nothing."""


class PythonOp(Op):
    """An op that runs Python code on tensors. Made for one call, so it caches nothing."""

    def __init__(self, name: str):
        self.name = self.__name__ = name
        self.plans = _Forgets()
        self.cost = Cost.COMPUTE
        self.inputs = ()
        self.params = ()
        self.variadic = True

    reverse_only = False  # its rule is for reverse mode, and need not be linear
    transparent = False  # its derivatives are those of its code

    @property
    def owner(self) -> object:
        """Whose run says that an input is missing."""
        return self

    @property
    def likeness(self) -> Any:
        """What its rules have in common with those of other runs of the same code; None if that is not known."""
        return None

    def python(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """What it computes."""
        raise NotImplementedError

    def staged(self, program: Program) -> PythonOp:
        """The op whose rules belong to what was written down of it."""
        raise NotImplementedError

    def closing(self, tensors: Sequence[Tensor]) -> PythonOp:
        """This op with more tensors from outside among its inputs, at the end."""
        raise NotImplementedError

    def prepare(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs as the code of a program reads them."""
        return inputs

    def takes(self, index: int) -> bool:
        return True

    def base_run(self, backend: Any, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Run the code, or write it down as one op that keeps its rules."""
        return stage(self, backend, inputs) if isinstance(backend, Trace) else self.python(inputs)


def stage(op: PythonOp, trace: Trace, inputs: Sequence[Tensor]) -> Any:
    """Write `op` down in a program of its own, called from `trace`."""
    with deeper() as level, open_trace(level, trace.base, op.name) as inner:
        inner.known = trace.known
        fresh = [inner.input(x._shape, x._dtype) for x in inputs]
        outs = op.python(op.prepare(fresh))
        program = inner.program(outs)
    hidden = [x for x, _ in inner.hidden.values()]
    return trace.run(StagedPython(op.closing(hidden) if hidden else op, program, trace.base), [*inputs, *hidden], ())


class StagedPython(StagedOp):
    """A program with the rules of the Python code that it was made from."""

    def __init__(self, op: PythonOp, program: Program, base: Any):
        super().__init__(op.name, program, base)
        self.rules = rules = op.staged(program)
        self.reverse_only = rules.reverse_only
        self.transparent = rules.transparent
        self.recorded = rules.recorded  # type: ignore[method-assign]
        self.joined = rules.joined  # type: ignore[method-assign]
        self.plans = _Forgets()

    def batched(self, axes: Axes) -> Op:
        op = BatchedOp(self, axes)
        op.plans = _Forgets()
        return op


class BatchedPython(BatchedOp):
    """Python code over rows: it runs once, on tensors that stand for all rows."""

    op: Any

    def __init__(self, op: Any, axes: Axes):
        self.op = op
        self.axes = axes
        for name in ("cost", "inputs", "params", "variadic"):
            setattr(self, name, getattr(op, name))
        self.name = self.__name__ = f"vmap({op.name})"
        self.plans = _Forgets()

    transparent = False

    @property
    def reverse_only(self) -> bool:
        """Whether its rule is for reverse mode."""
        return self.op.reverse_only

    @property
    def likeness(self) -> Any:
        """That of the code, if it has one."""
        own = self.op.likeness
        return None if own is None else (self.axes, own)

    @property
    def visible(self) -> int:  # type: ignore[override]  # known once it has run
        return self.op.visible

    def python(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return over_rows(self.op.python, self.axes, inputs)

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        return over_rows(lambda rows: self.op.apply(rows, params), self.axes, inputs)

    def staged(self, program: Program) -> Any:
        return BatchedPython(self.op.staged(program), self.axes)

    def closing(self, tensors: Sequence[Tensor]) -> Any:
        return BatchedPython(self.op.closing(tensors), (*self.axes, *(None,) * len(tensors)))

    def batched(self, axes: Axes) -> Op:
        return BatchedPython(self, axes)

    prepare = PythonOp.prepare
    base_run = PythonOp.base_run


def over_rows(run: Function, axes: Axes, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Run a function of tensors once for all rows of the inputs whose axis is 0."""
    size = next(x._shape[0] for x, axis in zip(inputs, axes, strict=True) if axis == 0)
    with opened(partial(Batch, size=size)) as batch:
        rows = [x if axis is None else batch.wrap(x) for x, axis in zip(inputs, axes, strict=True)]
        return tuple([batch.unwrap(x) for x in run(rows)])


def bind_closed(
    make: Callable[[tuple[Any, ...]], Any], tensors: Sequence[Any], closed: Sequence[Any]
) -> tuple[Any, Any]:
    """Make an op that has `closed` as further inputs and run it, adding those it turns out to reach."""
    for _ in range(_MOST_TRIES):
        op = make(tuple(closed))
        inputs = [*tensors, *map(_stand_in, closed)]
        try:
            return op, (bind(op, inputs) if inputs else op.python(inputs))
        except Missing as missing:
            if missing.owner is not op.owner:
                raise
            closed = [*closed, *missing.tensors]
    return refuse_outside(op.name, closed[-1])


def refuse_outside(name: str, x: Tensor) -> NoReturn:
    """A tensor from outside turned up that was not there in the first run."""
    raise LevelError(
        f"{name}: each run of the function reaches another tensor (here {x.dtype}{list(x.shape)}) that a gradient, a "
        "vmap or a jit outside follows, so it cannot be told what to differentiate. Pass such tensors as arguments, "
        "and do not replace those that the function reads from objects before backward()."
    )


@contextmanager
def paused() -> Iterator[None]:
    """A block whose ops no policy that is active now looks at."""
    token = _paused.set(open_depth())
    try:
        yield
    finally:
        _paused.reset(token)


def is_paused(level: Level) -> bool:
    """Whether a policy at `level` looks away."""
    return level[0] <= _paused.get()


def zeros_like(x: Any) -> Any:
    """Zeros of the type of `x`, a constant."""
    return zeros(Type(x._shape, x._dtype), x)


def is_smooth(x: Any) -> bool:
    """Whether `x` has a derivative."""
    return dtypes.is_inexact(x._dtype)
