"""`describe`: all that is known of an op, as text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functad.errors import ArgumentError
from functad.ops.op import Derivative, Op
from functad.ops.rules import TABLE

__all__ = ["describe"]


def describe(op: Op | str) -> str:
    """An op's inputs, parameters, rules, cost and samples; raises `ArgumentError` for an unknown name.

    >>> import functad as fd
    >>> print(fd.ops.describe("exp"))
    exp(x)
      e to the x.
      derivative in x: reads out
      cost: memory, dtypes: float, samples: 3
    """
    if isinstance(op, str):
        if op not in TABLE:
            near = [name for name in sorted(TABLE) if op in name or name in op]
            hint = f"; near it are {', '.join(near)}" if near else ""
            raise ArgumentError(f"describe: there is no op {op!r}{hint}.")
        op = TABLE[op]
    params = f"; {', '.join(op.params)}" if op.params else ""
    lines = [f"{op.name}({', '.join(op.inputs)}{params})", f"  {op.doc}"]
    if not op.differentiable:
        lines.append("  no derivative: asking for one is an error" if op.refuses else "  no derivative")
    else:
        lines += [f"  derivative in {name}: {_reads(op, op.pull_of(i))}" for i, name in enumerate(op.inputs)]
    samples = 0 if op.samples is None else len(op.samples.cases) or "made"
    lines.append(f"  cost: {op.cost.value}, dtypes: {op.promote}, samples: {samples}")
    return "\n".join(lines)


def _reads(op: Op, derivative: Derivative | None) -> str:
    if derivative is None:
        return "none"
    names: dict[str, Callable[[int], str]] = {
        "value": lambda i: op.inputs[i],
        "all": lambda i: f"*{op.inputs[i]}",
        "out": lambda i: "out",
    }
    kept: list[Any] = [names[read.kind](read.place) for read in derivative.reads if read.kind in names]
    return "reads " + ", ".join(dict.fromkeys(kept)) if kept else "reads no value"
