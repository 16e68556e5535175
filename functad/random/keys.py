"""Keys, and what every draw shares: the key is checked, JAX draws, on every device the same numbers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from functad import dtypes, generator
from functad.backends.base import BaseBackend
from functad.backends.trace import Trace
from functad.creation import Shape, as_shape
from functad.device import Device, checked
from functad.dispatch import Handle, base_backend, bind, tracing
from functad.errors import ArgumentError, ArgumentTypeError, ConcreteValueError, DTypeError, ShapeError
from functad.ops.hosted import hosted, in_precision
from functad.ops.op import Op, Samples
from functad.ops.operand import operand
from functad.ops.rules import elementwise, nondiff
from functad.random import host
from functad.tensor import Tensor

KEY = np.array([0, 7], np.uint32)


_WORD = 0xFFFFFFFF


def key(seed: int, device: Device | None = None) -> Tensor:
    """A key made from a seed: two unsigned 32-bit integers, the same for the same seed (threefry, as in JAX).

    Seeds have up to 64 bits, and those beyond 32 count without JAX's x64 mode too.

    >>> import functad as fd
    >>> fd.random.key(0).tolist()
    [0, 0]
    """
    number = _seed(seed, "random.key")
    high = number >> 32 & _WORD if dtypes.x64_enabled() or not -(1 << 31) <= number < 1 << 32 else 0
    data = np.array([high, number & _WORD], np.uint32)
    where = checked(device, "random.key")
    return where.lift(where.base.put(data, dtypes.uint32, "random.key"))


def _seed(seed: Any, where: str) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        raise ArgumentTypeError(f"{where}: a seed is an int, got {seed!r} of type {type(seed).__name__}.") from None
    if not -(1 << 63) <= number < 1 << 64:
        raise ArgumentError(f"{where}: a seed has at most 64 bits, got {number}; write seed % 2**64.")
    return number


def split(key: Any, num: Shape = 2) -> Tensor:
    """`num` new keys (an int or a shape), stacked: the result has shape `(num, 2)`. Unpack or index them.

    >>> import functad as fd
    >>> k1, k2 = fd.random.split(fd.random.key(0))
    >>> k1.shape
    (2,)
    """
    key, sizes = checked_key(key, "split"), as_shape(num, "random.split")
    made = host.split(key, sizes)
    return bind(split_op, (key,), (sizes,)) if made is None else made


def fold_in(key: Any, data: Any) -> Tensor:
    """A new key from a key and an integer, such as a step count; an int, or a 0-d tensor of integers.

    >>> import functad as fd
    >>> key = fd.random.key(0)
    >>> k1, k2 = fd.random.fold_in(key, 1), fd.random.fold_in(key, 2)
    >>> (k1 == k2).all().item(), (k1 == fd.random.fold_in(key, 1)).all().item()
    (False, True)
    """
    key = checked_key(key, "fold_in")
    given, data = data, operand(data, key, where="random.fold_in")
    if data.dtype.kind not in "biu" or data.shape:
        raise ArgumentTypeError(f"random.fold_in: data must be one integer, got {data.dtype}{list(data.shape)}.")
    made = host.derived("fold_in", key, number, 1) if (number := _integer(given)) is not None else None
    return bind(fold_in_op, (key, data.astype("uint32"))) if made is None else made[0]


def _integer(x: Any) -> int | None:
    return x if type(x) is int and 0 <= x < 1 << 32 else None


def seed(seed: int) -> None:
    """Start the default generator again; what draws without a key (dropout, layers' first weights) follows from it.

    The generator belongs to the process. After `fd.seed(n)` the draws of one thread come out the same in every
    run, on every device; draws of several threads are each used once, in whatever order the threads run. A
    checkpointed function draws the same numbers when it is run again.

    >>> import functad as fd
    >>> fd.seed(0)
    >>> first = fd.random.draw_key()
    >>> fd.seed(0)
    >>> (first == fd.random.draw_key()).all().item()
    True
    """
    _refuse_mapped_and_traced("fd.seed")
    generator.current().seed(_seed(seed, "fd.seed"))


def draw_key(device: Device | None = None) -> Tensor:
    """A fresh key from the default generator, another one at each call; see `fd.seed`.

    Raises `ConcreteValueError` under vmap (all rows would share one key), jit and the bodies of loops (the key
    would be drawn once, and compiled in); there pass a key.

    >>> import functad as fd
    >>> fd.seed(0)
    >>> k1, k2 = fd.random.draw_key(), fd.random.draw_key()
    >>> (k1 == k2).all().item()
    False
    """
    if not generator.current().known():
        _refuse_mapped_and_traced("random.draw_key")
    where = checked(device, "random.draw_key")
    if isinstance(_same(_ZERO), jax.core.Tracer):
        _refuse("random.draw_key", "jax.jit (or another transform of JAX)")
    seed, number = generator.current().draw()
    return where.lift(_keys(where.base, seed, number // _BLOCK)[number % _BLOCK])


_BLOCK = 32
_ZERO = np.uint32(0)
_same = jax.jit(lambda x: x)  # a tracer comes out where JAX is writing a function down


@lru_cache(64)
def _keys(base: BaseBackend, seed: int, block: int) -> tuple[Tensor, ...]:
    """The keys of some draws in a row, made in one call: `fold_in(key(seed), number)`."""
    start = key(seed, Device(base))
    made = host.derived("key_block", start, block * _BLOCK, _BLOCK, initial=True)
    if made is not None:
        return tuple(made)
    first = base.put(np.asarray(block * _BLOCK & 0xFFFFFFFF, np.uint32))
    keys: tuple[Tensor, ...] = base.run(key_block_op, (start, first), ())
    return keys


def _refuse_mapped_and_traced(where: str) -> None:
    mapped = generator.refused()
    if mapped is not None:
        raise ConcreteValueError(
            f"{where}: under {mapped} a key from the default generator would be one for all rows. Pass keys instead, one "
            f"per row: fd.{mapped}(f)(fd.random.split(key, n), x), and key=... to what draws."
        )
    trace = tracing.get()
    while trace is not None and not isinstance(trace, Trace):  # code that runs now, such as a checkpointed function
        trace = getattr(trace, "below", None)
    if trace is not None:
        _refuse(where, trace.what)


def _refuse(where: str, what: str) -> None:
    raise ConcreteValueError(
        f"{where}: {what} runs the function once, to compile it, so a key from the default generator would be the same "
        "in every call. Pass a key as an argument (fd.random.key, fd.random.split, fd.random.fold_in), and give it to what "
        "draws: key=..., for attention and what contains it dropout_key=...."
    )


def noise(op: Op, name: str, key: Any, shape: Shape, dtype: Any, device: Device | None, *params: Any) -> Tensor:
    """Floats of a shape and dtype from an op on a key alone."""
    key = checked_key(key, name)
    wanted = float_dtype(dtype, name, key)
    return placed(bind(op, (key,), (*params, as_shape(shape, f"random.{name}"), wanted)), device)


def on_host(
    name: str,
    key: Any,
    shape: Shape,
    dtype: Any,
    device: Device | None,
    bounds: tuple[float, float] | None = None,
    std: float | None = None,
    mean: float | None = None,
    initial: bool = False,
) -> Tensor | None:
    """Uniform or normal numbers drawn without compiling; None where a program is to draw. See `random.host`."""
    key = checked_key(key, name)
    wanted = float_dtype(dtype, name, key)
    scale, shift = std, mean
    if bounds is not None and bounds != (0, 1):
        low, high = map(np.float32, bounds)
        scale, shift = float(high - low), float(low)
    made = host.noise(name, key, as_shape(shape, f"random.{name}"), wanted, scale, shift, initial)
    return None if made is None else placed(made, device)


class Drawn(NamedTuple):
    """What a draw with parameters needs, checked."""

    key: Tensor
    params: list[Tensor]  # in the dtype of the draw
    shape: tuple[int, ...]
    dtype: dtypes.DType


def parameters(name: str, key: Any, shape: Shape | None, dtype: Any, *params: Any) -> Drawn:
    """The parameters of a distribution as tensors beside the key; by default the draw has the shape they broadcast to."""
    key = checked_key(key, name)
    where = f"random.{name}"
    params = tuple([p if isinstance(p, dtypes.SCALARS) else operand(p, key, where=where) for p in params])
    known = [p.dtype for p in params if isinstance(p, Handle) and dtypes.is_float(p.dtype)]
    wanted = float_dtype(dtypes.promote(dtypes.default_float(), *known) if dtype is None else dtype, name, key)
    tensors = [operand(p, key, wanted, where) for p in params]
    shapes = [p.shape for p in tensors]
    try:
        common = np.broadcast_shapes(*shapes)
        sizes = common if shape is None else as_shape(shape, where)
        if np.broadcast_shapes(common, sizes) != sizes:
            raise ValueError
    except ValueError:
        raise ShapeError(
            f"{where}: parameters of shapes {' and '.join(map(str, shapes))} do not broadcast to "
            f"{'one shape' if shape is None else f'shape={as_shape(shape, where)}'}; the shape of the draw is that of the "
            "result, and its last axes must be those of the parameters."
        ) from None
    return Drawn(key, tensors, sizes, wanted)


def float_dtype(dtype: Any, name: str, key: Tensor) -> dtypes.DType:
    """The dtype of floats to draw, the default one for None."""
    wanted = dtypes.default_float() if dtype is None else dtypes.parse(dtype, f"random.{name}")
    if not dtypes.is_float(wanted):
        raise DTypeError(f"random.{name}: draws floats, got dtype={wanted}; see fd.random.randint for integers.")
    base_backend(key).requires(wanted, f"random.{name}")
    return wanted


def int_dtype(dtype: Any, name: str) -> dtypes.DType:
    """The dtype of integers to draw, the default one for None."""
    wanted = dtypes.default_int() if dtype is None else dtypes.parse(dtype, f"random.{name}")
    if wanted.kind not in "iu":
        raise DTypeError(
            f"random.{name}: draws integers, got dtype={wanted}; write .astype({str(wanted)!r}) on the result."
        )
    return wanted


def placed(drawn: Tensor, device: Device | None) -> Tensor:
    """What was drawn, on `device` if one was asked for."""
    return drawn if device is None else drawn.to_device(device)


def checked_key(key: Any, name: str) -> Tensor:
    """`key` as a tensor, or an error that says how keys are made."""
    if isinstance(key, Handle) and key.shape == (2,) and key.dtype == dtypes.uint32:
        return key  # type: ignore[return-value]  # Tensor is the only kind of handle
    if isinstance(key, jax.Array) and jax.numpy.issubdtype(key.dtype, jax.dtypes.prng_key) and not key.shape:
        return Device.default().base.put(jax.random.key_data(key), dtypes.uint32)
    if isinstance(key, jax.Array) and key.shape == (2,) and key.dtype == dtypes.uint32:  # of jax.random.PRNGKey
        return Device.default().base.put(key, dtypes.uint32)
    several = isinstance(key, Handle) and key.ndim > 1 and key.shape[-1] == 2 and key.dtype == dtypes.uint32
    advice = f" Write key=fd.random.key({key})." if type(key) is int else ""
    advice = " These are several keys: take one with keys[i], or map over them with fd.vmap." if several else advice
    raise ArgumentTypeError(
        f"random.{name}: the first argument must be one key, as fd.random.key(0) makes it, got "
        f"{f'{key.dtype}{list(key.shape)}' if isinstance(key, Handle) else repr(key)}.{advice}"
    )


def random_op(name: str, draw: Callable[..., Any], params: dict[str, Any], doc: str, *inputs: Any) -> Op:
    """An op on one key (and `inputs`) without derivatives, drawn by JAX on every backend."""
    impl = precise(draw)
    samples = Samples(make=lambda rng: [((KEY, *inputs), params)])
    return nondiff(f"random_{name}", impl, numpy_impl=hosted(impl), samples=samples, doc=doc)


def sampler(
    name: str, impl: Callable[..., Any], *partials: Any, samples: Samples, doc: str, numpy_impl: Any = None
) -> Op:
    """An op on a key and parameters, which is differentiable in the parameters; one partial for each."""
    drawn = precise(impl)
    return elementwise(
        f"random_{name}", drawn, None, *partials, promote="same", numpy_impl=numpy_impl or hosted(drawn), batch=None,
        samples=samples, doc=doc,
    )  # fmt: skip


def precise(draw: Callable[..., Any]) -> Callable[..., Any]:
    """`draw`, in JAX's x64 mode if it draws 64 bits, which the NumPy device can hold without it."""

    @functools.wraps(draw)
    def impl(xp: Any, *arrays: Any, **params: Any) -> Any:
        with in_precision(params.get("dtype"), *arrays):
            return draw(xp, *arrays, **params)

    return impl


def wrap(key: Any) -> Any:
    """The two integers as JAX's key."""
    return jax.random.wrap_key_data(key, impl="threefry2x32")


split_op = random_op(
    "split",
    lambda xp, key, *, num: jax.random.key_data(jax.random.split(wrap(key), num)),
    {"num": (2,)},
    "New keys from a key.",
)
fold_in_op = random_op(
    "fold_in",
    lambda xp, key, data: jax.random.key_data(jax.random.fold_in(wrap(key), data)),
    {},
    "A new key from a key and a number.",
    np.uint32(3),
)


def _key_block(xp: Any, key: Any, first: Any) -> Any:
    numbers = first + xp.arange(_BLOCK, dtype=dtypes.uint32)
    return tuple(jax.random.key_data(jax.vmap(lambda n: jax.random.fold_in(wrap(key), n))(numbers)))


key_block_op = random_op(
    "key_block", _key_block, {}, "New keys from a key and the numbers that follow one.", np.uint32(3)
)
