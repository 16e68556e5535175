"""The Trace interpreter: write ops down as a program instead of computing them.

While a trace is open in a context, every op that no higher level takes is written down, also those
on tensors from outside: these become hidden inputs of the program, read anew at each run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp

from functad import dtypes
from functad.backends.base import BaseBackend, refuse
from functad.device import Device
from functad.dispatch import NOTHING_KNOWN, bind, tracing
from functad.errors import ConcreteValueError, FunctadError, LevelError, NotTrackedError
from functad.levels import BASE, Level, is_recording
from functad.ops.op import Op, Type
from functad.source import line_of, user_line, user_place
from functad.tape import fresh_id
from functad.tensor import Tensor


class Equation(NamedTuple):
    """One op of a program. An input is the number of a variable, or a constant tensor."""

    op: Op
    params: tuple[Any, ...]
    inputs: tuple[int | Tensor, ...]
    outputs: tuple[int, ...]
    single: bool
    where: Any = None  # the line of the user's, and the op whose derivative it is part of, if it is


class Program:
    """Ops in order, over numbered variables; `types[i]` is that of variable `i`."""

    def __init__(self, inputs: list[int], equations: list[Equation], outputs: list[int | Tensor], types: list[Type]):
        self.inputs = inputs
        self.equations = equations
        self.outputs = outputs
        self.types = types

    def run(
        self, *tensors: Tensor, call: Callable[..., Any] = bind, at: Callable[[Any], None] | None = None
    ) -> list[Tensor]:
        """Run it on tensors of any level, each op through `call`; `at` is told where it was written."""
        values: dict[int, Tensor] = dict(zip(self.inputs, tensors, strict=True))

        def read(x: int | Tensor) -> Tensor:
            return values[x] if type(x) is int else x  # type: ignore[return-value]

        for eq in self.equations:
            if at is not None:
                at(eq.where)
            out = call(eq.op, [read(x) for x in eq.inputs], eq.params)
            values.update(zip(eq.outputs, (out,) if eq.single else out, strict=True))
        return [read(x) for x in self.outputs]

    def call(
        self,
        call: Callable[[Op, list[Any], tuple[Any, ...]], Any],
        arrays: Sequence[Any],
        own: Sequence[int] | slice = (),
        at: Callable[[Any], None] | None = None,
    ) -> tuple[Any, ...]:
        """Run it on arrays, each op through `call`.

        What is carried round a loop, or donated, is its `own`: pieces of it are replaced in place, and so on in the results.
        """
        values: dict[int, Any] = dict(zip(self.inputs, arrays, strict=True))
        owned = set(self.inputs[own] if isinstance(own, slice) else [self.inputs[i] for i in own])

        def read(x: int | Tensor) -> Any:
            return values[x] if type(x) is int else x._value  # type: ignore[union-attr]

        for eq in self.equations:
            if at is not None:
                at(eq.where)
            op = eq.op
            if op.in_place is not None:
                x = eq.inputs[0]
                op = op.in_place if type(x) is int and x in owned else op
                owned.update(eq.outputs)
            out = call(op, [read(x) for x in eq.inputs], eq.params)
            values.update(zip(eq.outputs, (out,) if eq.single else out, strict=True))
        return tuple([read(x) for x in self.outputs])

    def needed(self, outputs: Sequence[int | Tensor]) -> list[Equation]:
        """The equations that `outputs` depend on, in order."""
        wanted = {x for x in outputs if type(x) is int}
        kept = []
        for eq in reversed(self.equations):
            if not wanted.isdisjoint(eq.outputs):
                kept.append(eq)
                wanted.update(x for x in eq.inputs if type(x) is int)
        return kept[::-1]

    def __repr__(self) -> str:
        lines = [
            f"  {', '.join(f'%{o}: {self.types[o].dtype}{list(self.types[o].shape)}' for o in eq.outputs)} = "
            f"{eq.op.name}({', '.join(f'%{x}' if type(x) is int else 'const' for x in eq.inputs)})"
            for eq in self.equations
        ]
        return "\n".join(["program(" + ", ".join(f"%{i}" for i in self.inputs) + "):", *lines])


class Trace(BaseBackend):
    """Writes ops down at one level. The value of its tensors is the number of a variable."""

    of: Any = None  # the node whose derivative rule is being written down
    ruled = False  # whether rules of the user's ran at a level above, which leave no trace in the program

    def __init__(self, level: Level, base: BaseBackend, what: str):
        super().__init__()
        self.level = level
        self.base = base
        self.what = what  # the transform, for messages
        self.name = base.name
        self.hardware = base.hardware
        self.closed = False
        self.opened = fresh_id()
        self.inputs: list[int] = []
        self.equations: list[Equation] = []
        self.types: list[Type] = []
        self.hidden: dict[int, tuple[Tensor, int]] = {}  # tensors from outside, by id
        self.known = NOTHING_KNOWN  # what the function is known to reach

    def input(self, shape: tuple[int, ...], dtype: dtypes.DType) -> Tensor:
        """A new input of the program."""
        x = self._variable(Type(shape, dtype))
        self.inputs.append(x._value)
        return x

    def run(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> Any:
        """Write `op` down."""
        if op.base_run is not None:
            return op.base_run(self, inputs, params)
        places = tuple([x._value if x._backend is self else self.place(x) for x in inputs])
        types = tuple([Type(x._shape, x._dtype) for x in inputs])
        try:
            out = abstract(op, params, types, dtypes.x64_enabled())
        except FunctadError:
            raise
        except (TypeError, ValueError, IndexError) as error:
            refuse(op, inputs, params, error)
        single = isinstance(out, Type)
        made = tuple([self._variable(t) for t in ((out,) if single else out)])
        of = self.of
        where = (user_place(2), None) if of is None else (of.where, of.op.name)
        self.equations.append(Equation(op, params, places, tuple([x._value for x in made]), single, where))
        if not is_recording(self.level) and op is not _STOP:
            made = tuple([self.detach(x) for x in made])
        return made[0] if single else made

    def place(self, x: Tensor) -> int | Tensor:
        """The variable or constant that `x` is in this program."""
        if x._backend is self:
            return x._value
        if id(x) in self.hidden:
            return self.hidden[id(x)][1]
        if x in self.known or x._backend.level > BASE:
            if x not in self.known and getattr(x._backend, "closed", False):
                inner = x._backend.resolve(x)
                return self.place(inner) if inner is not None else bind(_ESCAPED, [x])
            number: int = self.input(x._shape, x._dtype)._value
            self.hidden[id(x)] = (x, number)
            return number
        return self.outside(x)

    def outside(self, x: Tensor) -> int | Tensor:
        """A tensor from outside, which is a constant."""
        constant: Tensor = x._backend.embedded(x)
        return constant

    def meet(self, x: Tensor, cut: bool = False) -> Tensor:
        """A tensor from outside as a variable, if it is an input of the program."""
        if cut and x._backend.level[1] and x not in self.known:  # of a device's tape: a constant, known by nobody
            constant: Tensor = x._backend.constant(x)
            return constant
        place = self.place(x)
        return Tensor(self, place, None, x._shape, x._dtype) if type(place) is int else x

    def program(self, outputs: Sequence[Tensor]) -> Program:
        """What was written down, giving `outputs`."""
        places = [self.place(x) for x in outputs]
        everything = Program(self.inputs, self.equations, places, self.types)
        return Program(self.inputs, everything.needed(places), places, self.types)

    def _variable(self, type: Type) -> Tensor:
        self.types.append(type)
        return Tensor(self, len(self.types) - 1, None, type.shape, type.dtype)

    def detach(self, x: Tensor) -> Tensor:
        """`x` as a constant for whatever differentiates the program later."""
        return self.run(_STOP, [x], ()) if dtypes.is_inexact(x._dtype) else x

    def constant(self, x: Tensor) -> Tensor:
        return self.detach(x)

    inner = constant

    def device(self, x: Tensor) -> Device:
        return Device(self.base)

    def put(self, data: Any, dtype: dtypes.DType | None = None, where: str = "tensor", brief: bool = False) -> Tensor:
        return self.base.put(data, dtype, where, brief)

    def held(self, array: Any) -> Tensor:
        return self.base.held(array)

    def scalar(self, value: complex, dtype: dtypes.DType) -> Tensor:
        return self.base.scalar(value, dtype)

    def requires(self, dtype: dtypes.DType, where: str) -> None:
        self.base.requires(dtype, where)

    def backward(self, x: Tensor, cotangent: Any, retain_graph: bool) -> NoReturn:
        raise NotTrackedError(
            f"{user_line()}: backward() requires a tracked autodiff tensor, but {self.what} reaches tensors from outside "
            "without their tape. Pass the model, on an autodiff device, as an argument of the function that fd.jit compiles; "
            "or write fd.value_and_grad(loss_fn)(model, ...) inside, or first model = "
            "model.fork(fd.Device.cpu().autodiff()), x = x.autodiff().require_grad() for a tensor."
        )

    def host(self, value: Any) -> NoReturn:
        raise ConcreteValueError(
            f"{user_line()}: this value has no number yet, since {self.what} is writing the function down to compile "
            "it: return the value from the function and read it outside. Where Python's `if`, `while`, range() or float() "
            "need it: for a flag or a count pass the argument as static (static_argnums), for what is computed use "
            "fd.where, fd.cond, fd.while_loop or fd.fori_loop; fd.from_jax(fn) for a function of JAX; or leave out the "
            "jit: eager code runs ordinary Python."
        )

    def jax_array(self, value: Any) -> NoReturn:
        raise ConcreteValueError(
            f"{user_line()}: a function of JAX (or x.jax()) asks for a value that has no number yet, since {self.what} runs "
            "the function once, on variables, to compile it. Wrap the function of JAX, fd.from_jax(jnp.sin)(x), or write "
            "functad's own; what is to be read return, and read it outside."
        )

    def compiled(self, op: Op, params: tuple[Any, ...]) -> NoReturn:
        raise AssertionError("a trace computes nothing")

    def array(self, data: Any, dtype: dtypes.DType) -> NoReturn:
        raise AssertionError("a trace holds no arrays")

    def close(self) -> None:
        """End the trace: a tensor of it that leaked is refused from now on."""
        self.closed = True
        self.run = self._refuse_leak  # type: ignore[method-assign]  # costs the open level nothing

    def resolve(self, x: Tensor) -> None:
        if self.closed:
            self._refuse_leak(_ESCAPED, [x], ())

    def _refuse_leak(self, op: Op, inputs: Sequence[Tensor], params: tuple[Any, ...]) -> NoReturn:
        """Raise for a tensor that is used when the trace that it is of has ended."""
        number = next((x._value for x in inputs if x._backend is self), None)
        made = next((eq for eq in self.equations if number in eq.outputs), None)
        by = f", which {made.op.name} made at {line_of(made.where[0])}," if made is not None else ""
        where = user_line() if op is _ESCAPED else op.name
        raise LevelError(
            f"{where}: a tensor{by} leaked out of {self.what}: the function stored it outside (in an attribute, a list, a "
            "global name) while it was run once to be compiled. It never had a value. Return it from the function, and "
            "store what comes out: y, self.state = step(x, self.state)."
        )


@lru_cache(16384)
def abstract(op: Op, params: tuple[Any, ...], types: tuple[Type, ...], x64: bool) -> Any:
    """The type or types of an op's output."""
    if op.out_types is not None:
        return tuple(op.out_types)
    fixed = dict(zip(op.params, params, strict=True))
    given = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    wide = {t.dtype.kind for t in types if dtypes.narrow(t.dtype) != t.dtype}  # the NumPy device needs no x64 mode
    with jax.enable_x64(bool(wide)) if wide else nullcontext():
        out = jax.eval_shape(lambda *arrays: op.impl(jnp, *arrays, **fixed), *given)
    made = [
        Type(o.shape, dtypes.narrow(o.dtype) if wide and o.dtype.kind in "iu" and not wide & {"i", "u"} else o.dtype)
        for o in (out if type(out) is tuple else (out,))
    ]
    return tuple(made) if type(out) is tuple else made[0]


class open_trace:
    """Trace a block: `with open_trace(level, base, what) as trace`."""

    def __init__(self, level: Level, base: BaseBackend, what: str):
        self.trace = Trace(level, base, what)

    def __enter__(self) -> Trace:
        self._token = tracing.set(self.trace)
        return self.trace

    def __exit__(self, *exc: object) -> None:
        tracing.reset(self._token)
        self.trace.close()


_ESCAPED = Op("escaped", lambda xp, x: x)
_STOP = Op("stop", lambda xp, x: x, differentiable=False, doc="x, as a constant of every tape and tangent.")
