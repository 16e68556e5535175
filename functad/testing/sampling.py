"""Inputs for an op, drawn from the samples declared beside it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from functad import dtypes
from functad.errors import CheckFailedError
from functad.ops.op import Op, Samples

GAP = 0.05
"""How far drawn numbers stay from an op's kinks: many steps of a finite difference."""


class Case(NamedTuple):
    """One call of an op: arrays (float64 where they are floats) and the values of its parameters."""

    op: Op
    number: int
    inputs: tuple[Any, ...]
    params: tuple[Any, ...]
    drawn: bool  # from shapes; the samples' own `make` made it otherwise
    optional: bool = False  # of a kind that the op need not take

    def __str__(self) -> str:
        types = [
            f"{name} {describe(x)}" for name, x in zip(input_names(self.op, self.inputs), self.inputs, strict=True)
        ]
        given = [f"{name}={value!r}" for name, value in zip(self.op.params, self.params, strict=True)]
        return f"case {self.number} ({', '.join(types + given)})"


def describe(x: Any) -> str:
    """The type of an array as errors show it: `float64[2, 3]`."""
    return f"{x.dtype}{list(x.shape)}"


def input_names(op: Op, inputs: Sequence[Any]) -> list[str]:
    """The op's names for its inputs; a variadic op counts the last."""
    fixed = len(op.inputs) - op.variadic
    return [*op.inputs[:fixed], *[f"{op.inputs[-1]}[{i}]" for i in range(len(inputs) - fixed)]]


def draw(op: Op, seed: int = 0) -> list[Case]:
    """The op's sample cases with numbers filled in, the same ones for the same seed."""
    samples = op.samples
    if samples is None or (not samples.cases and samples.make is None):
        raise CheckFailedError(
            f"op {op.name!r} has no samples, so nothing can be checked. Declare them beside it: "
            "samples=Samples(cases=[(((3, 2), (2,)), {})]), or make=... for inputs with structure."
        )
    rng = generator(op, seed)
    found = [(draw_inputs(op, samples, shapes, rng), params, True) for shapes, params in samples.cases]
    for inputs, params in samples.make(rng) if samples.make else ():
        found.append((tuple(np.asarray(x) for x in inputs), params, False))
    cases = []
    for number, (inputs, given, drawn) in enumerate(found):
        params = {**op.defaults, **given}
        if set(params) != set(op.params) or len(inputs) < len(op.inputs) - op.variadic:
            raise CheckFailedError(
                f"op {op.name!r}, case {number}: samples give {len(inputs)} inputs and parameters {sorted(params)}; "
                f"the op takes {', '.join(op.inputs)} and parameters {sorted(op.params)}."
            )
        cases.append(Case(op, number, inputs, tuple(params[name] for name in op.params), drawn))
    return cases


def smallest(cases: Sequence[Case], count: int) -> list[int]:
    """Where the cases with the fewest elements are, in their order."""
    return sorted(sorted(range(len(cases)), key=lambda i: sum(np.size(x) for x in cases[i].inputs))[:count])


def generator(op: Op, seed: int) -> np.random.Generator:
    """A generator of its own for each op, so that adding one moves no other's numbers."""
    return np.random.default_rng([seed, zlib.crc32(op.name.encode())])


def draw_inputs(
    op: Op, samples: Samples, shapes: Sequence[tuple[int, ...]], rng: np.random.Generator
) -> tuple[Any, ...]:
    """One array per shape, of the kind of dtype that the op takes."""
    drawn = []
    for index, shape in enumerate(shapes):
        low, high = (b[min(index, len(b) - 1)] if isinstance(b, Sequence) else b for b in (samples.low, samples.high))
        if op.promote == "logical":
            drawn.append(np.asarray(rng.random(shape) < 0.5))
        elif op.promote == "bits":
            drawn.append(np.asarray(rng.integers(int(np.ceil(low)), int(high) + 1, shape), np.int32))
        else:
            drawn.append(uniform(rng, shape, low, high, samples.kinks))
    return tuple(drawn)


def uniform(rng: np.random.Generator, shape: tuple[int, ...], low: float, high: float, kinks: Sequence[float]) -> Any:
    """Uniform float64 numbers in `[low, high]`, further than `GAP` from every kink."""
    x = np.asarray(rng.uniform(low, high, shape))
    for _ in range(200):
        near = np.zeros(shape, bool)
        for kink in kinks:
            near |= np.abs(x - kink) < GAP
        if not near.any():
            return x
        x = np.where(near, rng.uniform(low, high, shape), x)
    raise CheckFailedError(f"there is no room between {low} and {high} that is clear of the kinks {list(kinks)}.")


def cast(inputs: Sequence[Any], dtype: dtypes.DType) -> tuple[Any, ...]:
    """The inputs with floats in `dtype`, complex numbers in the complex dtype of that precision."""
    wide = np.complex128 if dtype == dtypes.float64 else np.complex64
    return tuple(
        x.astype(dtype) if dtypes.is_float(x.dtype) else x.astype(wide) if x.dtype.kind == "c" else x for x in inputs
    )


def with_edges(shapes: Sequence[tuple[int, ...]], scalars: bool) -> Iterator[list[tuple[int, ...]]]:
    """The shapes with each of their lengths set to 0 in turn, and with `scalars` all of them 0-d."""
    for length in sorted({n for shape in shapes for n in shape if n}):
        yield [tuple(0 if n == length else n for n in shape) for shape in shapes]
    if scalars:
        yield [() for _ in shapes]
