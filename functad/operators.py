"""Python's operators and the elementwise methods of a tensor; every one calls a function of `ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from functad import ops
from functad.dispatch import Handle
from functad.keywords import explain_methods

if TYPE_CHECKING:
    from functad.tensor import Tensor


class Operators(Handle):  # noqa: PLW1641  # Tensor says that it has no hash
    """The operators and elementwise methods of `Tensor`."""

    __slots__ = ()

    # --- operators

    def __add__(self, other: Any) -> Tensor:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> Tensor:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> Tensor:
        return ops.sub(self, other)

    def __rsub__(self, other: Any) -> Tensor:
        return ops.sub(other, self)

    def __mul__(self, other: Any) -> Tensor:
        return ops.mul(self, other)

    def __rmul__(self, other: Any) -> Tensor:
        return ops.mul(other, self)

    def __truediv__(self, other: Any) -> Tensor:
        return ops.div(self, other)

    def __rtruediv__(self, other: Any) -> Tensor:
        return ops.div(other, self)

    def __floordiv__(self, other: Any) -> Tensor:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Tensor:
        return ops.floor_divide(other, self)

    def __mod__(self, other: Any) -> Tensor:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Tensor:
        return ops.remainder(other, self)

    def __pow__(self, other: Any) -> Tensor:
        return ops.pow(self, other)

    def __rpow__(self, other: Any) -> Tensor:
        return ops.pow(other, self)

    def __matmul__(self, other: Any) -> Tensor:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Tensor:
        return ops.matmul(other, self)

    def __and__(self, other: Any) -> Tensor:
        return ops.bitwise_and(self, other)

    def __rand__(self, other: Any) -> Tensor:
        return ops.bitwise_and(other, self)

    def __or__(self, other: Any) -> Tensor:
        return ops.bitwise_or(self, other)

    def __ror__(self, other: Any) -> Tensor:
        return ops.bitwise_or(other, self)

    def __xor__(self, other: Any) -> Tensor:
        return ops.bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Tensor:
        return ops.bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> Tensor:
        return ops.left_shift(self, other)

    def __rlshift__(self, other: Any) -> Tensor:
        return ops.left_shift(other, self)

    def __rshift__(self, other: Any) -> Tensor:
        return ops.right_shift(self, other)

    def __rrshift__(self, other: Any) -> Tensor:
        return ops.right_shift(other, self)

    def __divmod__(self, other: Any) -> tuple[Tensor, Tensor]:
        return ops.floor_divide(self, other), ops.remainder(self, other)

    def __neg__(self) -> Tensor:
        return ops.neg(self)

    def __pos__(self) -> Tensor:
        return self  # type: ignore[return-value]  # a Tensor is the only kind there is

    def __abs__(self) -> Tensor:
        return ops.abs(self)

    def __invert__(self) -> Tensor:
        return ops.bitwise_not(self)

    def __round__(self, ndigits: int | None = None) -> Tensor:
        return ops.round(self, ndigits or 0)

    def __lt__(self, other: Any) -> Tensor:
        return ops.less(self, other)

    def __le__(self, other: Any) -> Tensor:
        return ops.less_equal(self, other)

    def __gt__(self, other: Any) -> Tensor:
        return ops.greater(self, other)

    def __ge__(self, other: Any) -> Tensor:
        return ops.greater_equal(self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy
        return NotImplemented if other is None or isinstance(other, str) else ops.equal(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]  # elementwise, as in NumPy
        return NotImplemented if other is None or isinstance(other, str) else ops.not_equal(self, other)

    # --- elementwise methods

    def abs(self) -> Tensor:
        """|x|, elementwise."""
        return ops.abs(self)

    def sign(self) -> Tensor:
        """The sign: -1, 0 or 1."""
        return ops.sign(self)

    def square(self) -> Tensor:
        """x * x."""
        return ops.square(self)

    def sqrt(self) -> Tensor:
        """The square root."""
        return ops.sqrt(self)

    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)."""
        return ops.rsqrt(self)

    def reciprocal(self) -> Tensor:
        """1 / x."""
        return ops.reciprocal(self)

    def exp(self) -> Tensor:
        """e to the x."""
        return ops.exp(self)

    def expm1(self) -> Tensor:
        """exp(x) - 1, exact near 0."""
        return ops.expm1(self)

    def log(self) -> Tensor:
        """The natural logarithm."""
        return ops.log(self)

    def log2(self) -> Tensor:
        """The logarithm to base 2."""
        return ops.log2(self)

    def log10(self) -> Tensor:
        """The logarithm to base 10."""
        return ops.log10(self)

    def log1p(self) -> Tensor:
        """log(1 + x), exact near 0."""
        return ops.log1p(self)

    def sin(self) -> Tensor:
        """The sine."""
        return ops.sin(self)

    def cos(self) -> Tensor:
        """The cosine."""
        return ops.cos(self)

    def tan(self) -> Tensor:
        """The tangent."""
        return ops.tan(self)

    def arcsin(self) -> Tensor:
        """The inverse sine."""
        return ops.arcsin(self)

    def arccos(self) -> Tensor:
        """The inverse cosine."""
        return ops.arccos(self)

    def arctan(self) -> Tensor:
        """The inverse tangent."""
        return ops.arctan(self)

    def sinh(self) -> Tensor:
        """The hyperbolic sine."""
        return ops.sinh(self)

    def cosh(self) -> Tensor:
        """The hyperbolic cosine."""
        return ops.cosh(self)

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        return ops.tanh(self)

    def arcsinh(self) -> Tensor:
        """The inverse hyperbolic sine."""
        return ops.arcsinh(self)

    def arccosh(self) -> Tensor:
        """The inverse hyperbolic cosine."""
        return ops.arccosh(self)

    def arctanh(self) -> Tensor:
        """The inverse hyperbolic tangent."""
        return ops.arctanh(self)

    def erf(self) -> Tensor:
        """The error function."""
        return ops.erf(self)

    def erfc(self) -> Tensor:
        """1 - erf(x)."""
        return ops.erfc(self)

    def erfinv(self) -> Tensor:
        """The inverse of erf."""
        return ops.erfinv(self)

    def lgamma(self) -> Tensor:
        """The logarithm of the absolute value of the gamma function."""
        return ops.gammaln(self)

    def digamma(self) -> Tensor:
        """The derivative of lgamma."""
        return ops.digamma(self)

    def polygamma(self, n: Any) -> Tensor:
        """The n-th derivative of digamma, elementwise."""
        return ops.polygamma(n, self)

    def i0(self) -> Tensor:
        """The modified Bessel function of the first kind of order 0."""
        return ops.i0(self)

    def sinc(self) -> Tensor:
        """sin(pi x) / (pi x)."""
        return ops.sinc(self)

    def logit(self) -> Tensor:
        """log(x / (1 - x))."""
        return ops.logit(self)

    def xlogy(self, other: Any) -> Tensor:
        """x * log(other), 0 where x is."""
        return ops.xlogy(self, other)

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-x))."""
        return ops.sigmoid(self)

    def relu(self) -> Tensor:
        """max(x, 0)."""
        return ops.relu(self)

    def silu(self) -> Tensor:
        """x * sigmoid(x)."""
        return ops.silu(self)

    def softplus(self) -> Tensor:
        """log(1 + exp(x))."""
        return ops.softplus(self)

    def floor(self) -> Tensor:
        """Rounded down."""
        return ops.floor(self)

    def ceil(self) -> Tensor:
        """Rounded up."""
        return ops.ceil(self)

    def trunc(self) -> Tensor:
        """Rounded towards 0."""
        return ops.trunc(self)

    def isnan(self) -> Tensor:
        """Where it is NaN."""
        return ops.isnan(self)

    def isinf(self) -> Tensor:
        """Where it is infinite."""
        return ops.isinf(self)

    def isfinite(self) -> Tensor:
        """Where it is finite."""
        return ops.isfinite(self)

    def logical_not(self) -> Tensor:
        """Where it is zero."""
        return ops.logical_not(self)

    def conj(self) -> Tensor:
        """The complex conjugate."""
        return ops.conj(self)

    def neg(self) -> Tensor:
        """-x."""
        return ops.neg(self)

    def gelu(self, approximate: str = "none") -> Tensor:
        """x times the normal distribution function; `approximate` is "none" or "tanh"."""
        return ops.gelu(self, approximate)

    def round(self, decimals: int = 0) -> Tensor:
        """Rounded to the nearest, halves to even."""
        return ops.round(self, decimals)

    def clip(self, min: Any = None, max: Any = None) -> Tensor:
        """Limited to [min, max]; the derivative at a bound is 0."""
        return ops.clip(self, min, max)

    def add(self, other: Any) -> Tensor:
        """x + y."""
        return ops.add(self, other)

    def sub(self, other: Any) -> Tensor:
        """x - y."""
        return ops.sub(self, other)

    def mul(self, other: Any) -> Tensor:
        """x * y."""
        return ops.mul(self, other)

    def div(self, other: Any) -> Tensor:
        """x / y."""
        return ops.div(self, other)

    def pow(self, other: Any) -> Tensor:
        """x to the y."""
        return ops.pow(self, other)

    def remainder(self, other: Any) -> Tensor:
        """The remainder with the sign of y."""
        return ops.remainder(self, other)

    def fmod(self, other: Any) -> Tensor:
        """The remainder with the sign of x."""
        return ops.fmod(self, other)

    def maximum(self, other: Any) -> Tensor:
        """The larger; ties share the derivative."""
        return ops.maximum(self, other)

    def minimum(self, other: Any) -> Tensor:
        """The smaller; ties share the derivative."""
        return ops.minimum(self, other)

    def equal(self, other: Any) -> Tensor:
        """x == y."""
        return ops.equal(self, other)

    def not_equal(self, other: Any) -> Tensor:
        """x != y."""
        return ops.not_equal(self, other)

    def greater(self, other: Any) -> Tensor:
        """x > y."""
        return ops.greater(self, other)

    def greater_equal(self, other: Any) -> Tensor:
        """x >= y."""
        return ops.greater_equal(self, other)

    def less(self, other: Any) -> Tensor:
        """x < y."""
        return ops.less(self, other)

    def less_equal(self, other: Any) -> Tensor:
        """x <= y."""
        return ops.less_equal(self, other)

    def logical_and(self, other: Any) -> Tensor:
        """Where both are nonzero."""
        return ops.logical_and(self, other)

    def logical_or(self, other: Any) -> Tensor:
        """Where one is nonzero."""
        return ops.logical_or(self, other)

    def logical_xor(self, other: Any) -> Tensor:
        """Where exactly one is nonzero."""
        return ops.logical_xor(self, other)

    def logaddexp(self, other: Any) -> Tensor:
        """log(exp(x) + exp(y)), stable."""
        return ops.logaddexp(self, other)

    def matmul(self, other: Any) -> Tensor:
        """The matrix product x @ y."""
        return ops.matmul(self, other)

    def dot(self, other: Any) -> Tensor:
        """The dot product, by NumPy's rank rules."""
        return ops.dot(self, other)

    def outer(self, other: Any) -> Tensor:
        """All products of an element of x with one of y."""
        return ops.outer(self, other)

    def arctan2(self, other: Any) -> Tensor:
        """The angle of the point (y, x)."""
        return ops.arctan2(self, other)


explain_methods(Operators)
