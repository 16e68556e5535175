"""JAX and functad side by side: `from_jax`, `to_jax`, and tensors as pytrees of JAX.

The one place where JAX's own derivatives serve: a foreign function comes with them.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes, tree
from functad.backends.batch import BatchedOp, batched
from functad.backends.forward import Forward
from functad.backends.trace import Equation, Program, open_trace
from functad.device import Device
from functad.dispatch import Handle, base_tensor, bind, tracing
from functad.errors import ArgumentError, ArgumentTypeError, DeviceError
from functad.levels import deeper
from functad.ops.op import Cost, Keep, Op, Residuals, Type
from functad.ops.operand import operand
from functad.ops.rules import masked_mul, zero_mul
from functad.tensor import Tensor
from functad.transforms.arguments import check_callable, common_float, wraps
from functad.transforms.captures import reachable
from functad.transforms.python_op import StagedPython, over_rows
from functad.transforms.staged import StagedOp

Arrays = tuple[Any, ...]

_MOST_KEPT = 256
_FLOAT0 = jax.dtypes.float0


# --- from JAX


def from_jax(
    fn: Callable[..., Any], static_argnums: int | Sequence[int] = (), static_argnames: str | Sequence[str] = ()
) -> Callable[..., Any]:
    """A function written in JAX as a functad function, compiled forward and backward.

    Args:
        fn: any function that `jax.jit` can trace, of pytrees of arrays.
        static_argnums: positions of arguments that are plain Python values.
        static_argnames: the same by name.

    JAX's own derivatives of `fn` are used, in every mode, order and style; it compiles once for
    each structure, shapes and dtypes. Raises `DeviceError` for tensors of the NumPy device.

    >>> import functad as fd, jax
    >>> softplus = fd.from_jax(jax.nn.softplus)
    >>> fd.grad(softplus)(0.0).item()
    0.5
    """
    check_callable(fn, "from_jax")
    name = f"from_jax({getattr(fn, '__name__', type(fn).__name__)})"
    numbers, names = _static(fn, static_argnums, static_argnames)
    known: OrderedDict[Any, tuple[JaxOp, Any]] = OrderedDict()

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        static = (
            tuple([(i, x) for i, x in enumerate(args) if i in numbers]),
            tuple([(k, kwargs[k]) for k in sorted(kwargs) if k in names]),
        )
        dynamic = (
            [x for i, x in enumerate(args) if i not in numbers],
            {k: x for k, x in kwargs.items() if k not in names},
        )
        leaves, structure = tree.flatten_as_jax(dynamic)
        inputs = _tensors(leaves, name, dynamic)
        key = (structure, static, tuple([Type(x._shape, x._dtype) for x in inputs]), dtypes.x64_enabled())
        try:
            found = known.get(key)
        except TypeError:
            raise ArgumentTypeError(f"{name}: static arguments must be hashable, got {static!r}.") from None
        if found is None:
            found = known[key] = _op_of(fn, name, static, structure, key[2])
            if len(known) > _MOST_KEPT:
                known.popitem(last=False)
        op, out_structure = found
        outs = bind(op, inputs) if inputs else _default_xla().run(op, [], ())
        return jax.tree.unflatten(out_structure, outs)

    return wrapped


def _static(fn: Any, nums: Any, names: Any) -> tuple[frozenset[int], frozenset[str]]:
    """Static arguments by position and by name, each recognised however it is passed."""
    numbers = list(nums) if isinstance(nums, (tuple, list)) else [nums]
    chosen = [names] if isinstance(names, str) else list(names)
    try:
        parameters = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        parameters = []
    if not all(isinstance(n, int) for n in numbers):
        raise ArgumentError(f"from_jax: static_argnums must be ints, got {nums!r}.")
    numbers = [n + len(parameters) if n < 0 else n for n in numbers]
    return (
        frozenset([*numbers, *[parameters.index(n) for n in chosen if n in parameters]]),
        frozenset([*chosen, *[parameters[n] for n in numbers if n < len(parameters)]]),
    )


def _tensors(leaves: Sequence[Any], name: str, dynamic: Any) -> list[Any]:
    """The leaves of the arguments as tensors of one XLA device."""
    handles = [x for x in leaves if isinstance(x, Handle)]
    for x in handles:
        if base_tensor(x)._backend.name == "numpy":
            raise DeviceError(
                f"{name}: a tensor of shape {x.shape} is on the NumPy device, where JAX does not compute. Move it "
                "first: x.to_device(fd.Device.cpu())."
            )
    weak = common_float(handles)
    base = base_tensor(handles[0])._backend if handles else _default_xla()
    like = Tensor(base, None, None, (), dtypes.float32)
    return [_tensor(x, i, like, weak, name, dynamic) for i, x in enumerate(leaves)]


def _tensor(x: Any, index: int, like: Any, weak: Any, name: str, dynamic: Any) -> Any:
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jax.dtypes.extended):  # random keys
        return like._backend.put(x)
    try:
        return operand(x, like, weak if type(x) is float else None, where=name)
    except ArgumentTypeError:
        path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(dynamic)[0][index][0])
        raise ArgumentTypeError(
            f"{name}: argument {path} is {x!r} of type {type(x).__name__}, which is no array. Name static arguments "
            "with static_argnums or static_argnames."
        ) from None


def _op_of(fn: Callable[..., Any], name: str, static: Any, structure: Any, types: Sequence[Type]) -> tuple[JaxOp, Any]:
    """The op of one kind of arguments, and the structure of its result."""
    found: list[Any] = []

    def call(*arrays: Any) -> Arrays:
        args, kwargs = jax.tree.unflatten(structure, arrays)
        for i, value in static[0]:
            args.insert(i, value)
        outs, out_structure = jax.tree.flatten(fn(*args, **kwargs, **dict(static[1])))
        found[:] = [out_structure]
        return tuple([jnp.asarray(out) for out in outs])

    try:
        op = JaxOp(name, call, types)
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        error.add_note(f"{name}: JAX traces this function. Name Python arguments (flags, sizes) with static_argnames.")
        raise
    return op, found[0]


class JaxOp(Op):
    """A JAX function of arrays, which returns a tuple of them. Its derivatives are JAX functions too."""

    def __init__(self, name: str, call: Callable[..., Arrays], types: Sequence[Type]):
        super().__init__(name, lambda xp, *arrays: call(*arrays), doc="A function written in JAX.", cost=Cost.COMPUTE)
        self.call = call
        self.types = tuple(types)
        self.out_types = _types(jax.eval_shape(call, *_blanks(types)))  # type: ignore[misc]  # an instance's own
        self.numpy_impl = partial(_refuse_numpy, name)
        self.recorded = lru_cache(64)(self._recorded)  # type: ignore[method-assign]  # caches per op
        self.joined = lru_cache(64)(self._joined)  # type: ignore[method-assign]

    def takes(self, index: int) -> bool:
        return True

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(), frozenset(), False)

    def _recorded(self, tracked: tuple[bool, ...]) -> Op:
        moving = [i for i, t in enumerate(tracked) if t]

        @jax.jit  # so that the pullback has one structure, however this is called
        def forward(*arrays: Any) -> tuple[Arrays, Any]:
            return jax.vjp(self._of(moving, arrays), *[arrays[i] for i in moving])

        _, pullback = jax.eval_shape(forward, *_blanks(self.types))
        structure: Any = jax.tree.structure(pullback)
        smooth = [i for i, t in enumerate(self.out_types or ()) if dtypes.is_inexact(t.dtype)]

        def call(*arrays: Any) -> Arrays:
            outs, pullback = forward(*arrays)
            return (*outs, *jax.tree.leaves(pullback))

        def back(*arrays: Any) -> Arrays:
            pullback = jax.tree.unflatten(structure, arrays[: structure.num_leaves])
            given = dict(zip(smooth, arrays[structure.num_leaves :], strict=True))
            return tuple(pullback(tuple([given.get(i, _still(t)) for i, t in enumerate(self.out_types or ())])))

        return RecordedJaxOp(self, call, back, moving, smooth)

    def _joined(self, moving: tuple[bool, ...]) -> Op:
        return JoinedJaxOp(self, [i for i, m in enumerate(moving) if m])

    @cached_property
    def reverse_only(self) -> bool:
        """Whether JAX has no forward mode of it, as of what `jax.custom_vjp` made."""
        moving = [i for i, t in enumerate(self.types) if dtypes.is_inexact(t.dtype)]
        try:
            jax.jit(JoinedJaxOp(self, moving).call).lower(*_blanks([*self.types, *[self.types[i] for i in moving]]))
        except TypeError:
            return True
        return False

    def _of(self, moving: Sequence[int], arrays: Sequence[Any]) -> Callable[..., Arrays]:
        """The function of the inputs in `moving` alone."""

        def call(*some: Any) -> Arrays:
            every = list(arrays)
            for i, x in zip(moving, some, strict=True):
                every[i] = x
            return self.call(*every)

        return call


class RecordedJaxOp(JaxOp):
    """The form that a tape runs: it also returns what JAX's pullback keeps."""

    def __init__(
        self, op: JaxOp, call: Callable[..., Arrays], back: Callable[..., Arrays], moving: list[int], smooth: list[int]
    ):
        super().__init__(op.name, call, op.types)
        self.visible = len(op.out_types or ())  # type: ignore[misc]  # an instance's own
        self.back = back
        self.moving = moving
        self.smooth = smooth
        self.backward: JaxOp | None = None

    def keep(self, tracked: tuple[bool, ...]) -> Keep:
        return Keep(frozenset(), frozenset(), True)

    def pull(self, g: Any, res: Residuals, wanted: Sequence[Any]) -> list[Any]:
        if self.backward is None:
            outs = self.out_types or ()
            self.backward = JaxOp(
                f"backward({self.name})", self.back, [*outs[self.visible :], *[outs[i] for i in self.smooth]]
            )
        grads = iter(bind(self.backward, [*res.out, *[g[i] for i in self.smooth]]))
        return [next(grads) if i in self.moving else None for i in range(len(wanted))]


class JoinedJaxOp(JaxOp):
    """Outputs and their tangents, from inputs and the tangents of those in `moving`."""

    def __init__(self, op: JaxOp, moving: Sequence[int]):
        self.primal = op
        self.moving = moving
        super().__init__(f"jvp({op.name})", self._both, [*op.types, *[op.types[i] for i in moving]])

    def _both(self, *arrays: Any) -> Arrays:
        primals, tangents = arrays[: len(self.primal.types)], arrays[len(self.primal.types) :]
        outs, moved = jax.jvp(self.primal._of(self.moving, primals), [primals[i] for i in self.moving], list(tangents))
        return (*outs, *[jnp.zeros_like(o) if t.dtype == _FLOAT0 else t for o, t in zip(outs, moved, strict=True)])

    def tangents(self) -> JaxOp:
        """The tangents alone: a function that is linear in the tangents given."""
        return JaxOp(self.name, lambda *arrays: self._both(*arrays)[len(self.primal.out_types or ()) :], self.types)


def _blanks(types: Sequence[Type]) -> list[Any]:
    return [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]


def _types(outs: Sequence[Any]) -> list[Type]:
    return [Type(o.shape, o.dtype) for o in outs]


def _still(t: Type) -> Any:
    """The tangent of an integer, as JAX has it."""
    return np.zeros(t.shape, _FLOAT0)


def _refuse_numpy(name: str, xp: Any, *arrays: Any) -> None:
    raise DeviceError(f"{name}: its inputs are on the NumPy device; move them first: x.to_device(fd.Device.cpu()).")


# --- to JAX


def to_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A functad function as a pure JAX function of pytrees of arrays.

    It may be differentiated, mapped and compiled by JAX, whose transforms use functad's
    derivative rules, in every mode and order (in reverse only if it contains a `custom_vjp`
    without a jvp rule, as in JAX). Tensors it reaches otherwise are constants.

    >>> import functad as fd, jax
    >>> jax.grad(fd.to_jax(lambda x: x.sqrt() * x))(4.0).item()
    3.0
    """
    check_callable(fn, "to_jax")
    name = getattr(fn, "__name__", type(fn).__name__)

    @wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten_as_jax((args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, (jax.Array, np.ndarray, Handle))]
        arrays = [_array(leaves[i]) for i in places]

        def call(tensors: Sequence[Any]) -> Any:
            filled = list(leaves)
            for i, x in zip(places, tensors, strict=True):
                filled[i] = x
            args, kwargs = jax.tree.unflatten(structure, filled)
            return fn(*args, **kwargs)

        token = tracing.set(None)  # JAX may call this from inside a functad trace
        try:
            if not any(isinstance(x, jax.core.Tracer) for x in arrays):
                found, structure = tree.flatten_as_jax(call([_wrap(x) for x in arrays]))
                return jax.tree.unflatten(structure, [_array(x) for x in found])
            program, hidden, fill = _write_down(call, fn, arrays, f"to_jax({name})")
        finally:
            tracing.reset(token)
        return fill(differentiable_by_jax(program)(*arrays, *hidden))

    return wrapped


def _write_down(
    call: Callable[..., Any], fn: Any, arrays: Sequence[Any], what: str
) -> tuple[Program, list[Any], Callable[[Arrays], Any]]:
    """The program of one call, the arrays it reads besides its inputs, and how to make its result of its outputs."""
    base = _xla_of(arrays[0])
    with deeper() as level, open_trace(level, base, what) as trace:
        trace.known = {id(x): x for x in reachable(fn) if isinstance(base_tensor(x)._value, jax.core.Tracer)}
        inputs = [trace.input(x.shape, x.dtype) for x in arrays]
        found, structure = tree.flatten_as_jax(call(inputs))
        outs = [x for x in found if isinstance(x, Handle)]
        program = _unfolded(trace.program(outs), base)  # type: ignore[arg-type]

    def fill(results: Arrays) -> Any:
        rest = iter(results)
        return jax.tree.unflatten(structure, [next(rest) if isinstance(x, Handle) else x for x in found])

    return program, [_array(x) for x, _ in trace.hidden.values()], fill


def _array(x: Any) -> Any:
    return x.__jax_array__() if isinstance(x, Handle) else x  # type: ignore[attr-defined]  # which refuses tracked ones


def _unfolded(program: Program, base: Any) -> Program:
    """A program with those in it written out, but for the ones that have rules of their own."""
    with deeper() as level, open_trace(level, base, "to_jax") as trace:
        inputs = [trace.input(*program.types[i]) for i in program.inputs]
        return trace.program(program.run(*inputs, call=_unfold))


def _unfold(op: Op, inputs: Sequence[Any], params: Any) -> Any:
    inner = op
    while isinstance(inner, BatchedOp):
        inner = inner.op
    if not isinstance(inner, StagedOp) or (isinstance(inner, StagedPython) and not inner.transparent):
        return bind(op, inputs, params)
    if isinstance(op, BatchedOp):
        return over_rows(lambda rows: _unfold(op.op, rows, params), op.axes, inputs)
    return tuple(inner.program.run(*inputs, call=_unfold))


def differentiable_by_jax(program: Program) -> Callable[..., Arrays]:
    """A program as a JAX function whose derivatives are functad's."""
    return _by_vjp(program) if any(_reverse_only(eq.op) for eq in program.equations) else _by_jvp(program)


def _reverse_only(op: Op) -> bool:
    """Whether a rule for reverse mode alone is in `op`, which then need not be linear: JAX cannot transpose it."""
    while isinstance(op, BatchedOp):
        op = op.op
    if isinstance(op, (StagedPython, JaxOp)) and op.reverse_only:
        return True
    return isinstance(op, StagedOp) and any(_reverse_only(eq.op) for eq in op.program.equations)


def _by_vjp(program: Program) -> Callable[..., Arrays]:
    """A program with functad's rules for reverse mode: its two halves."""

    @lru_cache(1)
    def halves() -> Any:  # not before it is differentiated: the first may contain the same rule again
        smooth = tuple([dtypes.is_inexact(program.types[i].dtype) for i in program.inputs])
        return StagedOp("to_jax", program, _default_xla()).recorded(smooth)

    def forward(*arrays: Any) -> tuple[Arrays, Any]:
        half = halves()
        outs = differentiable_by_jax(half.program)(*arrays)
        return outs[: half.visible], ([arrays[i] for i in half.kept], outs[half.visible :])

    def backward(saved: Any, cotangents: Arrays) -> Arrays:
        op, moved, targets = halves().backward
        pieces = differentiable_by_jax(op.program)(*saved[0], *saved[1], *[cotangents[i] for i in moved])
        found = dict(zip(targets, pieces, strict=True))
        return tuple([found.get(i) for i in range(len(program.inputs))])

    call: Any = jax.custom_vjp(lambda *arrays: program.call(_run, arrays))
    call.defvjp(forward, backward)
    return call


def _by_jvp(program: Program) -> Callable[..., Arrays]:
    """A program with functad's rules for forward mode, in a form that JAX can transpose."""

    @jax.custom_jvp
    def call(*arrays: Any) -> Arrays:
        return program.call(_run, arrays)

    @call.defjvp
    def rule(primals: Arrays, tangents: Arrays) -> tuple[Arrays, Arrays]:
        moving = tuple([getattr(t, "dtype", None) != _FLOAT0 for t in tangents])  # JAX may pass a Python float
        first, second, moved = _linearized(program, moving)
        count = len(program.outputs)
        both = differentiable_by_jax(first)(*primals)
        outs = both[:count]
        found = dict(
            zip(
                moved,
                second([*both[count:], *[jnp.asarray(t) for t, m in zip(tangents, moving, strict=True) if m]]),
                strict=True,
            )
        )
        return outs, tuple([found[i] if i in found else _zero_tangent(o) for i, o in enumerate(outs)])

    return call


def _run(op: Op, arrays: Sequence[Any], params: Arrays) -> Any:
    return op.impl(jnp, *arrays, **dict(zip(op.params, params, strict=True)))


def _zero_tangent(x: Any) -> Any:
    return jnp.zeros_like(x) if dtypes.is_inexact(x.dtype) else _still(Type(x.shape, x.dtype))


def _linearized(
    program: Program, moving: tuple[bool, ...]
) -> tuple[Program, Callable[[Sequence[Any]], Arrays], list[int]]:
    """A program that returns its outputs and what its derivative needs, and that derivative.

    The derivative is linear in every step, so that JAX can transpose it; its last arguments are
    the tangents of the inputs that are `moving`, its results those of the outputs listed.
    """
    types = [program.types[i] for i in program.inputs]
    base = _default_xla()
    with deeper() as level, open_trace(level, base, "to_jax") as trace:
        primals = [trace.input(*t) for t in types]
        tangents: list[Any] = [trace.input(*t) if m else None for t, m in zip(types, moving, strict=True)]
        with deeper() as above:
            forward = Forward(above)
            outs = program.run(*[forward.wrap(x, t) for x, t in zip(primals, tangents, strict=True)])
            forward.close()
        mine = [x._backend is forward for x in outs]
        values = [x._value if m else x for x, m in zip(outs, mine, strict=True)]
        found = [x._context if m else None for x, m in zip(outs, mine, strict=True)]
        moved = [i for i, t in enumerate(found) if t is not None]
        results: list[Any] = [found[i] for i in moved]
        joint = trace.program([*values, *results])
    linear = {t._value for t in tangents if t is not None}
    equations: list[Equation] = []
    still: list[Equation] = []
    for eq in joint.equations:
        for part in _apart(eq) if _moves(eq, linear) else [eq]:
            if _moves(part, linear):
                equations.append(part)
                linear.update(part.outputs)
            else:
                still.append(part)
    ends = joint.outputs[len(values) :]
    second = Program([], equations, ends, joint.types)
    equations = second.equations = second.needed(ends)
    made = {o for eq in equations for o in eq.outputs}
    used = [*[x for eq in equations for x in eq.inputs], *ends]
    inputs = [t._value for t in tangents if t is not None]
    kept = [x for x in dict.fromkeys(x for x in used if type(x) is int) if x not in made and x not in inputs]
    second.inputs = [*kept, *inputs]
    first = Program(joint.inputs[: len(types)], still, [*joint.outputs[: len(values)], *kept], joint.types)
    first.equations = first.needed(first.outputs)
    return first, partial(second.call, _run_linear), moved


def _moves(eq: Equation, linear: set[int]) -> bool:
    return any(type(x) is int and x in linear for x in eq.inputs)


def _apart(eq: Equation) -> list[Equation]:
    """For JAX's own forward mode: an equation for the values, and one for the tangents."""
    op, axes = eq.op, []
    while isinstance(op, BatchedOp):
        axes.append(op.axes)
        op = op.op
    if not isinstance(op, JoinedJaxOp):
        return [eq]
    values: Op = op.primal
    moved: Op = op.tangents()
    count, half = len(op.primal.types), len(eq.outputs) // 2
    for each in reversed(axes):
        values, moved = batched(values, each[:count]), batched(moved, each)
    return [
        eq._replace(op=values, inputs=eq.inputs[:count], outputs=eq.outputs[:half]),
        eq._replace(op=moved, outputs=eq.outputs[half:]),
    ]


def _run_linear(op: Op, arrays: Sequence[Any], params: Arrays) -> Any:
    """An op of a derivative. Products with a zero that wins over inf are linear here by other means."""
    if isinstance(op, BatchedOp):
        return jax.vmap(lambda *rows: _run_linear(op.op, rows, params), in_axes=op.axes)(*arrays)
    if isinstance(op, StagedOp):
        return op.program.call(_run_linear, arrays)
    if op is masked_mul:
        return _winning(*arrays)
    return _winning_zero(*arrays) if op is zero_mul else _run(op, arrays, params)


def _winning(t: Any, partial: Any) -> Any:
    """t * partial, linear in t, and 0 for t = 0 even if partial is not finite.

    A partial that is not finite becomes a product of two large numbers, which overflows unless t is 0.
    """
    big = jnp.asarray(jnp.finfo(partial.dtype).max, partial.dtype)
    finite = jnp.isfinite(partial)
    large = big if jnp.iscomplexobj(partial) else jnp.copysign(big, partial)
    return t * jnp.where(finite, partial, large) * jnp.where(finite, jnp.ones((), partial.dtype), big)


def _winning_zero(t: Any, x: Any) -> Any:
    return jnp.where(x == 0, jnp.zeros((), t.dtype), _winning(t, x))


# --- tensors as pytrees of JAX


def _default_xla() -> Any:
    """The backend of the default device, or the CPU's where that is NumPy."""
    base = Device.default().base
    return Device.cpu().base if base.name == "numpy" else base


def _xla_of(array: Any) -> Any:
    """The backend that holds `array`."""
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        return _default_xla()
    device = next(iter(array.devices()))
    return next(
        (d.base for d in Device.enumerate() if d.base.hardware == f"{device.platform}:{device.id}"), _default_xla()
    )


def _wrap(x: Any) -> Tensor:
    """A tensor of an array, or of whatever JAX puts in an array's place."""
    if isinstance(x, (jax.Array, np.ndarray)) and x.dtype != _FLOAT0:
        made: Tensor = _xla_of(x).put(x)
        return made
    base = _default_xla()
    return Tensor(getattr(base, "xla", base), x, None, getattr(x, "shape", ()), getattr(x, "dtype", None))  # type: ignore[arg-type]


def _flatten(x: Tensor) -> tuple[tuple[Any], None]:
    if x._moves():
        raise ArgumentTypeError(
            "passing a tracked tensor to a jax function would cut its gradient silently. Wrap the jax function with "
            "fd.from_jax, or say that the cut is meant: x.without_autodiff() or x.jax()."
        )
    return (x.jax(),), None


def _unflatten(_: None, children: Sequence[Any]) -> Tensor:
    return _wrap(children[0])


jax.tree_util.register_pytree_node(Tensor, _flatten, _unflatten)
