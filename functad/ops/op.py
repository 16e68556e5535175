"""Ops as data: a name, an implementation over an array namespace, and a derivative rule.

An op is declared in one place:

    mul = elementwise("mul", lambda xp, x, y: xp.multiply(x, y), lambda y: y, lambda x: x)

The implementation's positional arguments after `xp` are the op's tensor inputs, its keyword-only
arguments are static parameters. The functions of a rule receive what they *name*: an input
(`x`), the output (`out`), a parameter, an input's type (`x_shape`, `x_dtype`), the cotangent `g`,
the tangent `t`. Nothing else is kept for backward, so a rule's signature is its memory cost.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, NoReturn

from functad import dtypes
from functad.dispatch import Handle, bind, pending
from functad.errors import ArgumentTypeError, NotDifferentiableError, UnknownAttributeError
from functad.keywords import no_argument
from functad.ops.operand import Promote, operands

if TYPE_CHECKING:
    import numpy as np

Rule = Callable[..., Any]

DROP, KEEP, TYPE, MIXED = range(4)
_MOST_PLANS = 256


class Cost(enum.Enum):
    """What bounds an op's run time; decides what balanced checkpointing recomputes.

    >>> import functad as fd
    >>> fd.ops.svd_op.cost is fd.op.Cost.COMPUTE, fd.ops.mul.cost is fd.op.Cost.MEMORY
    (True, True)
    """

    MEMORY = "memory"
    COMPUTE = "compute"


class Type(NamedTuple):
    """Shape and dtype of a tensor that is not kept."""

    shape: tuple[int, ...]
    dtype: dtypes.DType


class Residuals(NamedTuple):
    """What a rule may read. An input that the rule does not name is only something with a type."""

    inputs: Sequence[Any]
    out: Any
    params: tuple[Any, ...]


class Samples(NamedTuple):
    """Inputs for the property tests, as plain data.

    Each case is `(shapes, params)`: one shape per input, and the values of the op's parameters.
    Entries are drawn uniformly from `[low, high]` (per input) and kept clear of the values in
    `kinks`. `make` adds inputs with structure (indices, positive definite matrices); it maps a
    `numpy.random.Generator` to a list of `(inputs, params)`, floats as float64 arrays.

    >>> import functad as fd
    >>> samples = fd.op.Samples([(((2, 3), (3,)), {}), (((0,), ()), {})], low=(0.5, -2.0), kinks=[1.0])
    >>> len(samples.cases), samples.high
    (2, 2.0)
    """

    cases: Sequence[tuple[Sequence[tuple[int, ...]], dict[str, Any]]] = ()
    low: float | Sequence[float] = -2.0
    high: float | Sequence[float] = 2.0
    kinks: Sequence[float] = ()
    make: Callable[[np.random.Generator], list[tuple[tuple[Any, ...], dict[str, Any]]]] | None = None


class Read(NamedTuple):
    """Where a rule's argument comes from."""

    kind: Literal["value", "shape", "dtype", "out", "param", "all", "shapes"]
    place: int

    def __call__(self, res: Residuals) -> Any:
        match self.kind:
            case "value":
                return res.inputs[self.place]
            case "shape":
                return res.inputs[self.place].shape
            case "dtype":
                return res.inputs[self.place].dtype
            case "out":
                return res.out
            case "param":
                return res.params[self.place]
            case "all":
                return tuple(res.inputs[self.place :])
            case "shapes":
                return tuple(x.shape for x in res.inputs[self.place :])


class Derivative(NamedTuple):
    """A rule's function bound to where its arguments come from."""

    fn: Rule
    leading: int  # how many of t, g and the like come first
    reads: tuple[Read, ...]

    def __call__(self, res: Residuals, *leading: Any) -> Any:
        return self.fn(*leading, *[read(res) for read in self.reads])


class Keep(NamedTuple):
    """What one subset of tracked inputs needs kept for backward."""

    values: frozenset[int]
    types: frozenset[int]
    out: bool


class Plan(NamedTuple):
    """How a tape records an op for one subset of tracked inputs."""

    wanted: tuple[bool, ...]  # the tracked inputs that the output depends on smoothly
    smooth: bool  # whether there is one
    recorded: Op | None  # what runs in the op's place
    actions: tuple[int, ...]  # per input: KEEP its value, keep its TYPE, or DROP it
    keeps_out: bool
    simple: int | None  # if no unwanted input leaves its type: KEEP if all are kept, DROP if none is, or MIXED
    constants: int  # the inputs that are not wanted

    def of_recorded(self) -> Plan:
        """The same with what the recorded form keeps."""
        assert self.recorded is not None
        return self._replace(**_kept(self.recorded, self.wanted))


def _kept(op: Op, wanted: tuple[bool, ...]) -> dict[str, Any]:
    keep = op.keep(wanted)
    actions = [KEEP if i in keep.values else TYPE if i in keep.types else DROP for i in range(len(wanted))]
    kept = actions.count(KEEP)
    return {
        "actions": tuple(actions),
        "keeps_out": keep.out,
        "simple": None
        if any(action == TYPE and not w for action, w in zip(actions, wanted, strict=True))
        else (DROP if not kept else KEEP if kept == len(actions) else MIXED),
        "constants": wanted.count(False),
    }


_LIKE_UFUNCS = {
    "reduce": (
        {
            "add": "fd.numpy.sum(x, axis)",
            "mul": "fd.numpy.prod(x, axis)",
            "maximum": "fd.numpy.max(x, axis)",
            "minimum": "fd.numpy.min(x, axis)",
            "logical_and": "fd.numpy.all(x, axis)",
            "logical_or": "fd.numpy.any(x, axis)",
            "logaddexp": "fd.special.logsumexp(x, axis)",
        },
        "functools.reduce(f, x), which runs over the first axis",
    ),
    "accumulate": (
        {
            "add": "fd.numpy.cumsum(x, axis)",
            "mul": "fd.numpy.cumprod(x, axis)",
            "maximum": "fd.numpy.cummax(x, axis)",
            "minimum": "fd.numpy.cummin(x, axis)",
            "logaddexp": "x.logcumsumexp(axis)",
        },
        "fd.associative_scan(f, x) for a function that is associative",
    ),
    "at": (
        {
            "add": "x = x.at[i].add(v)",
            "sub": "x = x.at[i].add(-v)",
            "mul": "x = x.at[i].mul(v)",
            "maximum": "x = x.at[i].max(v)",
            "minimum": "x = x.at[i].min(v)",
        },
        "x = x.at[i].set(f(x[i], v))",
    ),
    "outer": ({"mul": "fd.numpy.outer(x, y)"}, "f(x[:, None], y) for vectors"),
    "reduceat": ({}, "fd.ops.segment_sum(x, segments) or segment_max and the like"),
}
"""What ufuncs can do, and what to write instead."""


class _OfUfuncs:
    """A method of NumPy's ufuncs, which ops do not have."""

    def __init__(self, name: str):
        self._name = name

    def __get__(self, op: Op | None, owner: Any = None) -> Any:
        known, otherwise = _LIKE_UFUNCS[self._name]
        name = "an op" if op is None else op.name
        raise UnknownAttributeError(
            f"{name} is no ufunc and has no {self._name!r}; write {known.get(name, otherwise)}."
        )


@dataclass(eq=False)
class Op:
    """One primitive operation. Hashed by identity; the op table is `functad.ops.TABLE`.

    Made by `fd.op.elementwise` and the like.

    >>> import functad as fd
    >>> fd.ops.mul, fd.ops.mul.inputs, fd.ops.sort_op.params
    (<op mul>, ('x', 'y'), ('axis', 'descending'))
    """

    name: str
    impl: Callable[..., Any]
    doc: str = ""
    cost: Cost = Cost.MEMORY
    promote: Promote = "same"
    samples: Samples | None = None
    numpy_impl: Callable[..., Any] | None = None
    differentiable: bool = True
    refuses: str = ""
    """Of an op without derivative: what is raised where one is asked of it, in the place of zeros."""
    guards: bool = False
    """Whether programs leave values out by it: zeros in what it sends back stand for these, and win over inf and NaN."""
    pulls: Sequence[Derivative | None] = ()
    pushes: Sequence[Derivative | None] = ()
    joint_push: Derivative | None = None
    base_run: Callable[..., Any] | None = None
    """`(backend, inputs, params)`: how a base backend or a trace runs an op that is no array function."""
    pushes_itself: bool = False
    """Whether a tangent goes through the op itself, in its input's place: so by IEEE 754, 0 times inf is NaN."""
    in_place: Op | None = None
    """The same for a first input whose memory the output may take over; see `Program.call`."""
    batch: Callable[..., Any] | None = None
    """`(op, inputs, mapped, size, params)`: how to run over rows by means of ops; NotImplemented for `jax.vmap`."""
    example: tuple[str, str] | None = None
    """An expression and what it prints, for the docstring."""
    inputs: tuple[str, ...] = field(init=False)
    params: tuple[str, ...] = field(init=False)
    variadic: bool = field(init=False)
    defaults: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ArgumentTypeError(f"an op is made with its name first, a string, got {self.name!r}.")
        if not callable(self.impl):
            raise ArgumentTypeError(f"op {self.name!r}: its implementation must be a function, got {self.impl!r}.")
        arguments = list(inspect.signature(self.impl).parameters.values())[1:]
        self.params = tuple(a.name for a in arguments if a.kind is a.KEYWORD_ONLY)
        self.inputs = tuple(a.name for a in arguments if a.kind is not a.KEYWORD_ONLY)
        if not self.inputs:
            raise ArgumentTypeError(
                f"op {self.name!r}: its implementation takes an array namespace, jax.numpy or numpy, before its inputs: "
                "lambda xp, x: xp.sin(x)."
            )
        self.variadic = any(a.kind is a.VAR_POSITIONAL for a in arguments)
        self.defaults = {a.name: a.default for a in arguments if a.kind is a.KEYWORD_ONLY and a.default is not a.empty}
        self.__name__ = self.name
        self.__doc__ = self.doc
        if self.example is not None:
            code, prints = self.example
            self.__doc__ = f"{self.doc}\n\n>>> import functad as fd\n>>> {code}\n{prints}\n"
        self.plans: dict[int, Plan] = {}
        self.keep = lru_cache(256)(self.keep)  # type: ignore[method-assign]  # a cache per op

    def __call__(self, *inputs: Any, **params: Any) -> Any:
        """The front door: make operands of `inputs`, promote their dtypes, run."""
        values = self._values(params) if params or self.params else ()
        if (recording := pending.recording) is not None and (out := recording.repeat(self, inputs, values)) is not None:
            return out
        if not inputs:
            self.refuse_count(inputs)
        x, y = inputs[0], inputs[-1]
        alike = isinstance(x, Handle) and isinstance(y, Handle) and x._dtype is y._dtype and len(inputs) <= 2
        if alike and (self.promote == "numeric" or (self.promote == "float" and x._dtype.kind == "f")):
            return bind(self, inputs, values)
        return bind(self, operands(self.name, self.promote, inputs), values)

    def refuse_count(self, inputs: Sequence[Any]) -> None:
        """Raise if these are not as many inputs as it takes."""
        if len(inputs) != len(self.inputs) and not (self.variadic and len(inputs) >= len(self.inputs) - 1):
            count = f"{len(self.inputs)} input{'s' * (len(self.inputs) != 1)} ({', '.join(self.inputs)})"
            raise ArgumentTypeError(f"{self.name}: takes {count}, got {len(inputs)}.")

    def _values(self, params: dict[str, Any]) -> tuple[Any, ...]:
        given, params = params, {**self.defaults, **params}
        if params.keys() != set(self.params):
            if (odd := next((name for name in given if name not in self.params), None)) is not None:
                raise no_argument(self.name, odd, list(self.params), "besides its inputs it takes none by name", True)
            raise ArgumentTypeError(
                f"{self.name}: besides its inputs it takes the arguments {', '.join(self.params)}, got "
                f"{', '.join(params) or 'none'}."
            )
        values = tuple([params[name] for name in self.params])
        try:
            hash(values)
        except TypeError:
            raise ArgumentTypeError(
                f"{self.name}: parameters are known when it is compiled, and hashable: numbers, strings and tuples of them, "
                f"got {', '.join(f'{k}={v!r}' for k, v in params.items())}; what varies is an input."
            ) from None
        return values

    def __repr__(self) -> str:
        return f"<op {self.name}>"

    reduce, accumulate, at, outer, reduceat = map(_OfUfuncs, ("reduce", "accumulate", "at", "outer", "reduceat"))

    def pull_of(self, index: int) -> Derivative | None:
        """How the cotangent of the output becomes that of input `index`."""
        return self.pulls[min(index, len(self.pulls) - 1)] if self.pulls else None

    out_types: ClassVar[Sequence[Type] | None] = None  # of an op with several outputs, where they are known
    whole: ClassVar[bool] = False  # a program that is compiled as it is
    donate: ClassVar[tuple[int, ...]] = ()  # inputs whose memory the outputs may take over
    visible: ClassVar[int] = 0  # of the outputs of a recorded form, those that the user sees

    def recorded(self, tracked: tuple[bool, ...]) -> Op | None:
        """The op a tape runs in this one's place: it also returns residuals, after `visible` outputs."""
        return None

    def joined(self, moving: tuple[bool, ...]) -> Op | None:
        """The op forward mode runs in this one's place: primals and tangents in, both out."""
        return None

    def apply(self, inputs: Sequence[Any], params: tuple[Any, ...]) -> Any:
        """Run a recorded or joined form one level down; one that is Python code runs as plain code."""
        return bind(self, inputs, params)

    def batched(self, axes: tuple[int | None, ...]) -> Op | None:
        """This op over rows, where `jax.vmap` of its implementation will not do."""
        return None

    def takes(self, index: int) -> bool:
        """Whether the output depends smoothly on input `index`, which is differentiated."""
        if self.refuses:
            self.refuse()
        return self.pull_of(index) is not None

    def refuse(self) -> NoReturn:
        """Raise for whoever differentiates it."""
        raise NotDifferentiableError(self.refuses)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        """The cotangents of the inputs that `wanted` marks, None for the others."""
        pieces: list[Any] = []
        for index, want in enumerate(wanted):
            derivative = self.pull_of(index) if want else None
            if derivative is None:
                pieces.append(None)
            elif self.variadic and index >= len(self.inputs) - 1:
                pieces.append(derivative(res, g, index - len(self.inputs) + 1))
            else:
                pieces.append(derivative(res, g))
        return pieces

    def push(self, tangents: Sequence[Any], res: Residuals) -> Any:
        """The tangent of the output, or None if it is zero; None stands for a zero tangent."""
        if self.joint_push is not None:
            return self.joint_push(res, tangents)
        total = None
        for index, t in enumerate(tangents):
            derivative = self.pushes[min(index, len(self.pushes) - 1)] if t is not None and self.pushes else None
            if derivative is not None:
                term = derivative(res, t)
                total = term if total is None else total + term
        return total

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        """What backward needs of inputs and output when the inputs in `tracked` have a gradient."""
        values: set[int] = set()
        types: set[int] = set()
        out = False
        for index, wanted in enumerate(tracked):
            derivative = self.pull_of(index) if wanted else None
            for read in derivative.reads if derivative else ():
                if read.kind in ("value", "all"):
                    values.update(range(read.place, len(tracked)) if read.kind == "all" else [read.place])
                elif read.kind in ("shape", "dtype", "shapes"):
                    types.update(range(read.place, len(tracked)) if read.kind == "shapes" else [read.place])
                elif read.kind == "out":
                    out = True
        return Keep(frozenset(values), frozenset(types - values), out)

    def plan(self, tracked: int) -> Plan:
        """How a tape records this op; `tracked` has one bit per input, under a leading 1."""
        bits = [bit == "1" for bit in f"{tracked:b}"[1:]]
        wanted = tuple(
            [t and (self.differentiable or bool(self.refuses)) and self.takes(i) for i, t in enumerate(bits)]
        )
        recorded = self.recorded(wanted) if any(wanted) else None
        kept = (
            _kept(self, wanted)
            if recorded is None
            else {"actions": (), "keeps_out": False, "simple": None, "constants": 0}
        )
        if len(self.plans) >= _MOST_PLANS:
            self.plans.clear()
        plan = self.plans[tracked] = Plan(wanted, any(wanted), recorded, **kept)
        return plan

    def derivative(self, fn: Rule | None, leading: int) -> Derivative | None:
        """Bind a rule's function to this op's inputs, output and parameters by name."""
        if fn is None:
            return None
        if not callable(fn):
            raise ArgumentTypeError(
                f"op {self.name!r}: a rule must be a function or None, a partial also a number, got {fn!r}."
            )
        reads = []
        for name in list(inspect.signature(fn).parameters)[leading:]:
            stem, _, suffix = name.rpartition("_")
            if name == "out":
                reads.append(Read("out", 0))
            elif name in self.params:
                reads.append(Read("param", self.params.index(name)))
            elif name in self.inputs:
                last = self.variadic and name == self.inputs[-1]
                reads.append(Read("all" if last else "value", self.inputs.index(name)))
            elif stem in self.inputs and suffix in ("shape", "dtype"):
                reads.append(Read("shape" if suffix == "shape" else "dtype", self.inputs.index(stem)))
            elif stem in self.inputs and suffix == "shapes":
                reads.append(Read("shapes", self.inputs.index(stem)))
            else:
                raise ArgumentTypeError(
                    f"op {self.name!r}: its rule names {name!r}, which is neither an input "
                    f"{self.inputs}, a parameter {self.params}, 'out', nor an input's _shape or _dtype."
                )
        return Derivative(fn, leading, tuple(reads))
