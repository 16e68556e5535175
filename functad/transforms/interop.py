"""JAX and functad side by side: `from_jax`, `to_jax`, and tensors as pytrees of JAX."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes, tree
from functad.backends.trace import Program, open_trace
from functad.device import Device
from functad.dispatch import Handle, Known, base_backend, base_tensor, bind, tracing
from functad.errors import ArgumentError, ArgumentTypeError, DeviceError
from functad.keywords import explained
from functad.levels import deeper
from functad.ops.op import Type
from functad.ops.operand import operand
from functad.tensor import Tensor
from functad.transforms.arguments import check_callable, common_float, settle, wraps
from functad.transforms.captures import reachable
from functad.transforms.jax_function import differentiable_by_jax, unfolded
from functad.transforms.jax_op import FLOAT0, Arrays, JaxOp, default_xla

_MOST_KEPT = 256


# --- from JAX


@explained
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
    return in_jax(fn, static_argnums, static_argnames, on_numpy=False)


def in_jax(
    fn: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    on_numpy: bool = True,
) -> Callable[..., Any]:
    """`from_jax`, for tensors of the NumPy device too: JAX computes and NumPy arrays come out."""
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
        inputs = _tensors(leaves, name, dynamic, on_numpy)
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
        outs = bind(op, inputs) if inputs else default_xla().run(op, [], ())
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


def _tensors(leaves: Sequence[Any], name: str, dynamic: Any, on_numpy: bool) -> list[Any]:
    """The leaves of the arguments as tensors of one device."""
    handles = [x for x in leaves if isinstance(x, Handle)]
    for x in handles:
        if not on_numpy and base_backend(x).name == "numpy":
            raise DeviceError(
                f"{name}: a tensor of shape {x.shape} is on the NumPy device, where JAX does not compute. Move it "
                "first: x.to_device(fd.Device.cpu())."
            )
    weak = common_float(handles)
    base = base_backend(handles[0]) if handles else default_xla()
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
    except Exception as error:
        given = ", ".join(f"{t.dtype}{list(t.shape)}" for t in types)
        note = f"{name}: raised by the function{_defined(fn)}, called with {given or 'no arrays'}."
        if isinstance(error, (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)):
            note += (
                " JAX traces this function, so that arrays have no values yet in it. Name Python arguments (flags, "
                "sizes) with static_argnames; for what is computed use jnp.where or jax.lax.cond in place of `if`, and "
                "jnp in place of np."
            )
        error.add_note(note)
        raise
    return op, found[0]


def _defined(fn: Any) -> str:
    """Where a function was written, for a message."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return "" if code is None else f" at {code.co_filename}:{code.co_firstlineno}"


# --- to JAX


@explained
def to_jax(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A functad function as a pure JAX function of pytrees of arrays.

    It may be differentiated, mapped and compiled by JAX, whose transforms use functad's
    derivative rules, in every mode and order (in reverse only if it contains a `custom_vjp`
    without a jvp rule, as in JAX). Tensors it reaches otherwise are constants. A function that
    returns tensors needs it: without it `jax.grad` raises "Triggering __jax_array__() during
    abstractification". Arrays of NumPy take the dtypes that JAX has, as everywhere.

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
        arrays = [_array(_wrap(leaves[i]) if _is_host(leaves[i]) else leaves[i]) for i in places]

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
        trace.known = Known(x for x in reachable(fn) if isinstance(base_tensor(x)._value, jax.core.Tracer))
        inputs = [trace.input(x.shape, x.dtype) for x in arrays]
        found, structure = tree.flatten_as_jax(call(inputs))
        outs = [settle(x, trace) for x in found if isinstance(x, Handle)]
        program = unfolded(trace.program(outs), base)

    def fill(results: Arrays) -> Any:
        rest = iter(results)
        return jax.tree.unflatten(structure, [next(rest) if isinstance(x, Handle) else x for x in found])

    return program, [_array(x) for x, _ in trace.hidden.values()], fill


def _is_host(x: Any) -> bool:
    """Whether something is an array of NumPy's, whose dtype becomes one that JAX has."""
    return isinstance(x, np.ndarray) and x.dtype != FLOAT0


def _array(x: Any) -> Any:
    return x.__jax_array__() if isinstance(x, Handle) else x  # type: ignore[attr-defined]  # which refuses tracked ones


# --- tensors as pytrees of JAX


def _xla_of(array: Any) -> Any:
    """The backend that holds `array`."""
    if isinstance(array, jax.core.Tracer) or not isinstance(array, jax.Array):
        return default_xla()
    device = next(iter(array.devices()))
    return next(
        (d.base for d in Device.enumerate() if d.base.hardware == f"{device.platform}:{device.id}"), default_xla()
    )


def _wrap(x: Any) -> Tensor:
    """A tensor of an array, or of whatever JAX puts in an array's place."""
    if isinstance(x, (jax.Array, np.ndarray)) and x.dtype != FLOAT0:
        made: Tensor = _xla_of(x).put(x)
        return made
    base = default_xla()
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
