"""x log y and its kin: 0 where x is 0, whatever y."""

from __future__ import annotations

import math
from typing import Any

from functad.ops.elementary import POSITIVE, log, log1p, real_only, widened
from functad.ops.logic import logical_and, where
from functad.ops.op import Samples
from functad.ops.rules import PAIR, elementwise

__all__ = ["entr", "kl_div", "rel_entr", "xlog1py"]

_TWO = Samples(PAIR.cases, low=0.3, high=2.0)


@widened
def _xlog1py(xp: Any, x: Any, y: Any) -> Any:
    none = (x == 0) & ~xp.isnan(y)
    return xp.where(none, xp.zeros((), x.dtype), x * xp.log1p(xp.where(none, xp.zeros((), y.dtype), y)))


@widened
def _entr(xp: Any, x: Any) -> Any:
    one = xp.ones((), x.dtype)
    inside = -x * xp.log(xp.where(x > 0, x, one))
    return xp.where(x > 0, inside, xp.where(x == 0, xp.zeros((), x.dtype), xp.where(xp.isnan(x), x, -xp.inf)))


@widened
def _log_quotient(xp: Any, x: Any, y: Any) -> Any:
    """By the distance of the larger from the smaller one, which has all digits where they are close."""
    real_only("log_quotient", x)
    apart, least = xp.abs(x - y), xp.minimum(x, y)
    bits = 128 if x.dtype.itemsize < 8 else 1024
    # 1 where the quotient is more than a float holds, or nearly so; sums and products of it are faster than choices
    huge = (xp.abs(least) * 2.0 ** (bits - 2) < apart).astype(x.dtype)
    up, down = (xp.where(huge > 0, xp.asarray(2.0**e, x.dtype), xp.ones((), x.dtype)) for e in (bits // 2, -bits // 2))
    size = xp.log1p(apart * down / (least * up) - huge) + huge * (bits * math.log(2))
    return xp.where((x == 0) & (y == 0), xp.zeros((), x.dtype), xp.where(x < y, -size, size))


def _relative(xp: Any, x: Any, y: Any) -> Any:
    inside = x * _log_quotient(xp, x, y)
    outside = xp.where(xp.isnan(x) | xp.isnan(y), xp.nan, xp.where((x == 0) & (y >= 0), 0.0, xp.inf))
    return xp.where((x > 0) & (y > 0), inside, outside.astype(x.dtype))


def _kl_div(xp: Any, x: Any, y: Any) -> Any:
    out = _relative(xp, x, y)
    return xp.where(xp.isfinite(out), out - x + y, out)


def _ratio(x: Any, y: Any) -> Any:
    """x / y, and 0 where both are 0."""
    none = logical_and(x == 0, y == 0)
    return where(none, 0.0, x) / where(none, 1.0, y)


def _over(z: Any, x: Any, y: Any) -> Any:
    """1 / z, and 0 where x and y are both 0."""
    none = logical_and(x == 0, y == 0)
    return where(none, 0.0, 1 / where(none, 1.0, z))


def _one(x: Any, y: Any) -> Any:
    """1, and 0 where both are 0."""
    return where(logical_and(x == 0, y == 0), 0.0, 1.0).astype(x.dtype)


xlog1py = elementwise(
    "xlog1py", _xlog1py,
    lambda x, y: log1p(where(logical_and(x == 0, y == -1), 0.0, y)),
    lambda x, y: x / where(logical_and(x == 0, y == -1), 1.0, 1 + y),
    promote="float", samples=_TWO, doc="x * log(1 + y), but 0 where x is 0; both derivatives at (0, -1) are 0.",
    example=("round(fd.special.xlog1py(1.0, 3.0).item(), 4)", "1.3863"),
)  # fmt: skip
entr = elementwise(
    "entr", _entr, lambda x: -log(x) - 1, promote="float", samples=POSITIVE,
    doc="-x * log(x): 0 at 0, where its derivative is inf, and -inf for negative x.",
    example=("round(fd.special.entr(0.5).item(), 4)", "0.3466"),
)  # fmt: skip
log_quotient = elementwise(
    "log_quotient", _log_quotient, lambda x, y: _over(x, x, y), lambda x, y: -_over(y, x, y), promote="float", samples=_TWO,
    doc="log(x / y), exact where the two are close; 0, and so are its derivatives, where both are 0.",
)  # fmt: skip
rel_entr = elementwise(
    "rel_entr", widened(_relative), lambda x, y: log_quotient(x, y) + _one(x, y), lambda x, y: -_ratio(x, y),
    promote="float", samples=_TWO,
    doc="x * log(x / y): 0 where x is 0, inf for negative x or y; both derivatives at (0, 0) are 0.",
    example=("round(fd.special.rel_entr(1.0, 3.0).item(), 4)", "-1.0986"),
)  # fmt: skip
kl_div = elementwise(
    "kl_div", widened(_kl_div), lambda x, y: log_quotient(x, y), lambda x, y: _one(x, y) - _ratio(x, y),
    promote="float", samples=_TWO, doc="rel_entr(x, y) - x + y: the terms of a Kullback-Leibler divergence.",
    example=("round(fd.special.kl_div(1.0, 3.0).item(), 4)", "0.9014"),
)  # fmt: skip
