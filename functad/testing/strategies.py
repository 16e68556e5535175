"""Hypothesis strategies for shapes, dtypes, arrays and tensors.

Numbers are drawn away from the points named as `kinks`, where a function has no derivative, so
that finite differences and derivatives agree. Needs `pip install functad[testing]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from functad import dtypes as _dtypes
from functad.creation import tensor
from functad.device import Device
from functad.errors import ArgumentError, MissingDependencyError
from functad.keywords import explain
from functad.tensor import Tensor

try:
    from hypothesis import strategies as st
    from hypothesis.extra import numpy as hnp
except ImportError as error:
    raise MissingDependencyError(
        "functad.testing.strategies needs Hypothesis; install it with: pip install 'functad[testing]'"
    ) from error

__all__ = ["arrays", "broadcastable_shapes", "dtypes", "shapes", "tensors"]

Shape = tuple[int, ...]


def __dir__() -> list[str]:
    return __all__


_KINDS: dict[str, tuple[Any, ...]] = {
    "float": (_dtypes.float32, _dtypes.float64, _dtypes.float16, _dtypes.bfloat16),
    "int": (
        _dtypes.int32, _dtypes.int64, _dtypes.int8, _dtypes.int16,
        _dtypes.uint8, _dtypes.uint16, _dtypes.uint32, _dtypes.uint64,
    ),
    "bool": (_dtypes.bool_,),
    "complex": (_dtypes.complex64, _dtypes.complex128),
}  # fmt: skip
_WIDE = (_dtypes.float64, _dtypes.int64, _dtypes.uint64, _dtypes.complex128)


def shapes(min_dims: int = 0, max_dims: int = 3, min_side: int = 0, max_side: int = 4) -> st.SearchStrategy[Shape]:
    """Shapes, with lengths of 0 and 1 among them unless `min_side` forbids.

    >>> import functad as fd
    >>> from hypothesis import given
    >>> @given(fd.testing.strategies.shapes(max_dims=2, min_side=1))
    ... def test(shape):
    ...     assert len(shape) <= 2 and fd.ones(shape).size == len(fd.ones(shape).tobytes()) // 4
    >>> test()
    """
    return hnp.array_shapes(min_dims=min_dims, max_dims=max_dims, min_side=min_side, max_side=max_side)


def broadcastable_shapes(
    count: int = 2, max_dims: int = 3, min_side: int = 0, max_side: int = 4
) -> st.SearchStrategy[tuple[Shape, ...]]:
    """Tuples of `count` shapes that broadcast together, of equal and of different ranks.

    >>> import functad as fd
    >>> from hypothesis import given
    >>> @given(fd.testing.strategies.broadcastable_shapes())
    ... def test(shapes):
    ...     one, other = shapes
    ...     assert (fd.ones(one) * fd.ones(other)).shape == fd.numpy.broadcast_shapes(one, other)
    >>> test()
    """
    drawn = hnp.mutually_broadcastable_shapes(num_shapes=count, max_dims=max_dims, min_side=min_side, max_side=max_side)
    return drawn.map(lambda broadcast: tuple(broadcast.input_shapes))


def dtypes(*kinds: str, wide: bool | None = None) -> st.SearchStrategy[_dtypes.DType]:
    """Dtypes of the given kinds among "float", "int", "bool" and "complex"; of all of them without any.

    Those of 64 bits are drawn if `wide` is true; None means if JAX's x64 mode is on.
    Raises `ArgumentError` for another kind.

    >>> import functad as fd
    >>> from hypothesis import given
    >>> @given(fd.testing.strategies.dtypes("float", "complex"))
    ... def test(dtype):
    ...     assert fd.ones(2, dtype).dtype == dtype
    >>> test()
    """
    unknown = set(kinds) - _KINDS.keys()
    if unknown:
        raise ArgumentError(f"strategies.dtypes: there is no kind {sorted(unknown)}; use some of {', '.join(_KINDS)}.")

    def known() -> st.SearchStrategy[_dtypes.DType]:
        narrow = not (_dtypes.x64_enabled() if wide is None else wide)
        found = [d for kind in kinds or _KINDS for d in _KINDS[kind]]
        return st.sampled_from([d for d in found if d not in _WIDE or not narrow])

    return st.deferred(known)


def arrays(
    dtype: Any = np.float64,
    shape: Shape | st.SearchStrategy[Shape] | None = None,
    low: float = -2.0,
    high: float = 2.0,
    kinks: Iterable[float] = (),
    gap: float = 0.05,
) -> st.SearchStrategy[Any]:
    """NumPy arrays with entries in `[low, high]`, at least `gap` away from every value in `kinks`.

    Args:
        dtype: a dtype, or a strategy of them. Complex numbers have both parts in the range.
        shape: a shape, or a strategy of them (`shapes()` by default).
        low: the smallest entry.
        high: the largest entry.
        kinks: what to stay away from.
        gap: how far.

    >>> import functad as fd
    >>> from hypothesis import given
    >>> @given(fd.testing.strategies.arrays(shape=(3,), kinks=[0.0]))
    ... def test(x):
    ...     assert x.dtype == "float64" and (abs(x) >= 0.05).all() and (abs(x) <= 2).all()
    >>> test()
    """
    wanted = dtype if isinstance(dtype, st.SearchStrategy) else st.just(_dtypes.parse(dtype, "strategies.arrays"))
    places = shapes() if shape is None else shape if isinstance(shape, st.SearchStrategy) else st.just(tuple(shape))
    holes = sorted(kinks)
    return st.tuples(wanted, places).flatmap(lambda pair: _array(pair[0], pair[1], low, high, holes, gap))


def tensors(
    dtype: Any = np.float32,
    shape: Shape | st.SearchStrategy[Shape] | None = None,
    low: float = -2.0,
    high: float = 2.0,
    kinks: Iterable[float] = (),
    gap: float = 0.05,
    device: Device | None = None,
) -> st.SearchStrategy[Tensor]:
    """Tensors on `device`, drawn as `arrays` draws.

    >>> import functad as fd
    >>> from hypothesis import given, settings
    >>> @settings(deadline=None)  # the first gradient is compiled
    ... @given(fd.testing.strategies.tensors(shape=(3,), kinks=[0.0]))
    ... def test(x):
    ...     assert (fd.grad(lambda x: abs(x).sum())(x) == x.sign()).all()
    >>> test()
    """
    return arrays(dtype, shape, low, high, kinks, gap).map(lambda a: tensor(a, a.dtype, device))


def _array(
    dtype: _dtypes.DType, shape: Shape, low: float, high: float, kinks: Sequence[float], gap: float
) -> st.SearchStrategy[Any]:
    """Arrays of one dtype and shape."""
    elements: st.SearchStrategy[Any]
    if dtype == _dtypes.bool_:
        elements = st.booleans()
    elif dtype.kind in "iu":
        whole = [n for n in range(int(np.ceil(low)), int(high) + 1) if n >= 0 or dtype.kind == "i"]
        clear = [n for n in whole if all(abs(n - kink) >= gap for kink in kinks)]
        elements = st.sampled_from(_some(clear, low, high, kinks))
    else:
        unit = float(np.finfo(np.float32).eps) if dtype.kind == "c" else float(ml_dtypes.finfo(dtype).eps)
        margin = gap + 2 * unit * max(abs(low), abs(high), 1.0) if kinks else 0.0
        parts = [st.floats(a, b) for a, b in _some(_intervals(low, high, kinks, margin), low, high, kinks)]
        real = st.one_of(parts)
        elements = st.builds(complex, real, real) if dtype.kind == "c" else real
    size = int(np.prod(shape))
    return st.lists(elements, min_size=size, max_size=size).map(lambda xs: np.array(xs, dtype).reshape(shape))


def _intervals(low: float, high: float, kinks: Sequence[float], margin: float) -> list[tuple[float, float]]:
    """What is left of `[low, high]` without the surroundings of the kinks."""
    found = []
    start = low
    for kink in kinks:
        if start <= kink - margin:
            found.append((start, min(kink - margin, high)))
        start = max(start, kink + margin)
    return [*found, (start, high)] if start <= high else found


def _some(found: Sequence[Any], low: float, high: float, kinks: Sequence[float]) -> Sequence[Any]:
    if not found:
        raise ArgumentError(
            f"strategies: there is no number between {low} and {high} that is clear of the kinks {list(kinks)}; widen "
            "the range or lower gap."
        )
    return found


explain(globals(), __all__)
