"""Polynomials as vectors of coefficients, highest power first."""

from __future__ import annotations

from typing import Any

import numpy as np

from functad import dtypes, ops
from functad.errors import ArgumentError, ConcreteValueError, ShapeError
from functad.numpy.arguments import beside
from functad.numpy.creation import vander
from functad.ops.axes import counted
from functad.ops.halves import rounded_once
from functad.ops.linalg_eigen import eigvals
from functad.ops.linalg_qr import qr
from functad.ops.linalg_solve import solve_triangular
from functad.ops.operand import operand, operands

__all__ = ["poly", "polyadd", "polyder", "polydiv", "polyfit", "polyint", "polymul", "polysub", "polyval", "roots"]


@rounded_once
def polyval(p: Any, x: Any) -> Any:
    """The polynomial with the coefficients `p` at `x`, by Horner's rule.

    >>> import functad.numpy as fnp
    >>> fnp.polyval([3, 0, 1], 5).item()
    76
    """
    p, x = operands("polyval", "numeric", (p, x))
    if p.ndim < 1:
        raise ShapeError(f"polyval: the coefficients are a vector, got shape {p.shape}.")
    out: Any = 0 * x
    for coefficient in ops.unstack(p):
        out = out * x + coefficient
    return out


@rounded_once
def polyadd(a1: Any, a2: Any) -> Any:
    """The sum of two polynomials.

    >>> import functad.numpy as fnp
    >>> fnp.polyadd([1, 2], [9, 5, 4]).tolist()
    [9, 6, 6]
    """
    a1, a2 = _aligned("polyadd", a1, a2)
    return a1 + a2


@rounded_once
def polysub(a1: Any, a2: Any) -> Any:
    """The difference of two polynomials.

    >>> import functad.numpy as fnp
    >>> fnp.polysub([2, 10, -2], [3, 10, -4]).tolist()
    [-1, 0, 2]
    """
    a1, a2 = _aligned("polysub", a1, a2)
    return a1 - a2


@rounded_once
def polymul(a1: Any, a2: Any) -> Any:
    """The product of two polynomials.

    >>> import functad.numpy as fnp
    >>> fnp.polymul([1, 2], [1, 3]).tolist()
    [1, 5, 6]
    """
    a1, a2 = operands("polymul", "numeric", (a1, a2))
    return ops.convolve(_coefficients("polymul", a1), _coefficients("polymul", a2))


@rounded_once
def polydiv(u: Any, v: Any) -> tuple[Any, Any]:
    """The quotient and the remainder of two polynomials; the first coefficient of `v` must not be 0.

    >>> import functad.numpy as fnp
    >>> [part.tolist() for part in fnp.polydiv([3.0, 5.0, 2.0], [2.0, 1.0])]
    [[1.5, 1.75], [0.25]]
    """
    u, v = operands("polydiv", "float", (u, v))
    u, v = _coefficients("polydiv", u), _coefficients("polydiv", v)
    steps = u.size - v.size + 1
    if steps < 1:
        return operand(np.zeros(1), u, u._dtype), u
    quotient = []
    for _ in range(steps):
        first = u[0] / v[0]
        quotient.append(first)
        rest = u[: v.size] - first * v
        u = ops.concatenate([rest[1:], u[v.size :]])
    return ops.stack(quotient), u if u.size else operand(np.zeros(1), u, u._dtype)


@rounded_once
def polyder(p: Any, m: int = 1) -> Any:
    """The `m`-th derivative of a polynomial.

    >>> import functad.numpy as fnp
    >>> fnp.polyder([1, 1, 1, 1]).tolist()
    [3, 2, 1]
    """
    p = _coefficients("polyder", operand(p, where="polyder"))
    for _ in range(min(_order(m, "polyder"), p.size)):
        p = p[:-1] * operand(np.arange(p.size - 1, 0, -1), p, dtypes.default_int()) if p.size > 1 else p[:0]
    return p


@rounded_once
def polyint(p: Any, m: int = 1, k: Any = None) -> Any:
    """The `m`-th integral of a polynomial, with `k` as the constants (0 by default).

    >>> import functad.numpy as fnp
    >>> fnp.polyint([3.0, 2.0, 1.0]).tolist()
    [1.0, 1.0, 1.0, 0.0]
    """
    p, k = beside("polyint", p, k)
    (p,) = operands("polyint", "float", (p,))
    p = _coefficients("polyint", p)
    m = _order(m, "polyint")
    constants = ops.ravel(operand(operand(0 if k is None else k, p), p, p._dtype, "polyint"))
    if constants.size == 1:
        constants = ops.broadcast_to(constants, (m,))
    if constants.size < m:
        raise ShapeError(f"polyint: k must be a number or hold m={m} of them, got shape {constants.shape}.")
    for i in range(m):
        p = ops.concatenate([p / operand(np.arange(p.size, 0, -1.0), p, None).astype(p._dtype), constants[i : i + 1]])
    return p


@rounded_once
def poly(seq_of_zeros: Any) -> Any:
    """The polynomial with these zeros (or the characteristic one of a matrix), its first coefficient 1.

    >>> import functad.numpy as fnp
    >>> fnp.poly([1.0, 2.0]).tolist()
    [1.0, -3.0, 2.0]
    """
    (zeros,) = operands("poly", "float", (seq_of_zeros,))
    if zeros.ndim == 2:
        whole = poly(eigvals(zeros))
        return whole if zeros._dtype.kind == "c" else ops.real(whole)
    if zeros.ndim != 1:
        raise ShapeError(f"poly: takes a vector of zeros or a square matrix, got shape {zeros.shape}.")
    one = operand(np.ones(1), zeros, zeros._dtype)
    out = one
    for zero in ops.unstack(zeros):
        out = ops.convolve(out, ops.stack([one[0], -zero]))
    return out


@rounded_once
def roots(p: Any) -> Any:
    """The complex zeros of a polynomial, leading zeros of `p` aside.

    They are found in NumPy; Newton steps from there make them differentiable in `p`, exactly up to
    the third order, unless a zero is multiple. Where values are not known (vmap, jit) they are the
    eigenvalues of the companion matrix, and the first coefficient must not be 0.

    >>> import functad as fd
    >>> sorted(fd.numpy.roots([1.0, -3.0, 2.0]).real.tolist())
    [1.0, 2.0]
    """
    (p,) = operands("roots", "float", (p,))
    if p.ndim != 1:
        raise ShapeError(f"roots: the coefficients are a vector, got shape {p.shape}.")
    try:
        values = p.numpy()
    except ConcreteValueError:
        return eigvals(_companion(p))
    found = np.roots(values)
    kind = dtypes.complex128 if p._dtype in (dtypes.float64, dtypes.complex128) else dtypes.complex64
    z = operand(found.astype(np.complex128), p, kind)
    places = np.flatnonzero(values)
    if not len(places) or not z.size:
        return z
    p = p[int(places[0]) :].astype(kind)
    slope = polyder(p)
    for _ in range(2):
        z = z - _quotient(polyval(p, z), polyval(slope, z))
    return z


def _companion(p: Any) -> Any:
    """The matrix whose eigenvalues are the zeros of a polynomial."""
    n = p.size - 1
    below = operand(np.eye(n, k=-1), p, p._dtype)
    return below.at[0].set(-p[1:] / p[0]) if n else below


def _quotient(x: Any, y: Any) -> Any:
    """`x / y`, and 0 at a multiple zero, where the slope `y` vanishes."""
    flat = y == 0
    return ops.where(flat, 0, x / ops.where(flat, 1, y))


@rounded_once
def polyfit(
    x: Any, y: Any, deg: int, rcond: float | None = None, full: bool = False, w: Any = None, cov: Any = False
) -> Any:
    """The coefficients of the polynomial of degree `deg` nearest to the points (`x`, `y`).

    Args:
        x: the coordinates, a vector.
        y: the values, a vector or one per column.
        deg: the degree.
        rcond: not used: the points must determine the polynomial.
        full: not supported.
        w: what each residual is multiplied by.
        cov: whether to return the covariance matrix of the coefficients too ("unscaled" as it is).

    By a QR factorisation of the scaled powers of `x`; differentiable in `x`, `y` and `w`.

    >>> import functad.numpy as fnp
    >>> [round(c, 4) for c in fnp.polyfit([0.0, 1.0, 2.0], [1.0, 3.0, 5.0], 1).tolist()]
    [2.0, 1.0]
    """
    x, y, w = beside("polyfit", x, y, w)
    x, y = operands("polyfit", "float", (x, y))
    deg = counted(deg, "polyfit", "deg")
    if full:
        raise ArgumentError(
            "polyfit: full=True is not supported; write fd.numpy.linalg.lstsq(fd.numpy.vander(x, n), y)."
        )
    if deg < 0 or x.ndim != 1 or not x.size or y.ndim not in (1, 2) or y.shape[0] != x.size:
        raise ShapeError(
            f"polyfit: takes deg >= 0, a vector x and as many values y, got deg={deg}, shapes {x.shape} and {y.shape}."
        )
    if x.size <= deg:
        raise ShapeError(f"polyfit: {x.size} points do not determine a polynomial of degree {deg}.")
    matrix, values = vander(x, deg + 1), y
    if w is not None:
        w = operand(w, x).astype(x._dtype)
        matrix = matrix * ops.expand_dims(w, 1)
        values = values * (ops.expand_dims(w, 1) if y.ndim == 2 else w)
    scale = ops.stop_gradient(ops.norm(matrix, axis=0))  # any scale gives the same result
    scale = ops.where(scale == 0, 1, scale)
    q, r = qr(matrix / scale)
    solution = solve_triangular(r, ops.conj(q.mT) @ values, lower=False)
    out = solution / (ops.expand_dims(scale, 1) if y.ndim == 2 else scale)
    if cov is False:
        return out
    inverse = solve_triangular(r, operand(np.eye(deg + 1), r, r._dtype), lower=False)
    spread = inverse @ ops.conj(inverse.mT) / ops.outer(scale, scale)
    if cov != "unscaled":
        freedom = x.size - (deg + 1)
        if freedom <= 0:
            raise ArgumentError(f"polyfit: cov takes more than {deg + 1} points, got {x.size}.")
        rest = values - matrix @ out
        spread = spread * (ops.sum(rest * rest, 0) / freedom)
    return out, spread


def _aligned(where: str, a1: Any, a2: Any) -> tuple[Any, Any]:
    a1, a2 = operands(where, "numeric", (a1, a2))
    a1, a2 = _coefficients(where, a1), _coefficients(where, a2)
    n = max(a1.size, a2.size)
    return ops.pad(a1, (n - a1.size, 0)), ops.pad(a2, (n - a2.size, 0))


def _coefficients(where: str, p: Any) -> Any:
    """A polynomial: a vector, or one number."""
    if p.ndim > 1:
        raise ShapeError(
            f"{where}: a polynomial is a vector of coefficients, got shape {p.shape}; use fd.vmap for several."
        )
    return ops.atleast_1d(p)


def _order(m: Any, where: str) -> int:
    order = counted(m, where, "m")
    if order < 0:
        raise ArgumentError(f"{where}: m must not be negative, got {m}.")
    return order
