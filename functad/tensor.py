"""`Tensor`: the user's handle. Operators, methods and protocols; every one calls a function of `ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from functad import dtypes, ops, printing, protocols
from functad.dispatch import Handle, base_tensor
from functad.errors import (
    ArgumentTypeError,
    ConcreteValueError,
    DTypeError,
    ImmutableError,
    NotALeafError,
    NotTrackedError,
    ShapeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from functad.device import Device
    from functad.gradients import Gradients

    Axis = int | Sequence[int] | None


class Tensor(Handle):
    """An immutable array that carries its autodiff context.

    Made by `fd.tensor`, `fd.zeros`, `fd.random.normal` and the like, or by operations on others.
    Dispatch goes by the tensor: one that is tracked records what is done with it, wherever it goes.

    >>> import functad as fd
    >>> x = fd.tensor([1.0, 2.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> loss = (x * x).sum()
    >>> x.grad(loss.backward()).tolist()
    [2.0, 4.0]
    """

    __slots__ = ()
    __array_priority__ = 200

    # --- what it is

    @property
    def device(self) -> Device:
        """Where it lives, and whether a tape records what is done with it."""
        device: Device = self._backend.device(self)
        return device

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return ops.transpose(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes swapped."""
        return ops.matrix_transpose(self)

    @property
    def at(self) -> ops.At:
        """Functional updates: `x.at[i].set(v)`, `.add`, `.mul`, `.min`, `.max` return a new tensor."""
        return ops.At(self)

    @property
    def real(self) -> Tensor:
        """The real part."""
        return ops.real(self)

    @property
    def imag(self) -> Tensor:
        """The imaginary part."""
        return ops.imag(self)

    @property
    def nbytes(self) -> int:
        """The bytes its elements take."""
        return self.size * int(self.dtype.itemsize)

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return int(self.dtype.itemsize)

    # --- autodiff

    @property
    def is_autodiff(self) -> bool:
        """Whether it is on an autodiff device (or inside `grad` and the like)."""
        return bool(self._backend.is_tape)

    @property
    def is_tracked(self) -> bool:
        """Whether a leaf that requires grad reaches it, on whatever tape is open."""
        x = self
        while isinstance(x._value, Handle):
            if x._backend.is_tape and x._context.tracked:
                return True
            x = x._value
        return False

    @property
    def is_require_grad(self) -> bool:
        """Whether it is a leaf whose gradient `backward` keeps."""
        return self.is_autodiff and self._context.requirement.value == "grad"

    def autodiff(self) -> Tensor:
        """This tensor on the autodiff device; as it is if it is there already.

        Inside a transform it starts a tape of its own, whose gradients the transform can differentiate.
        """
        return self if self._backend.level[1] else self.device.autodiff().lift(self)

    def without_autodiff(self) -> Tensor:
        """This tensor off every tape: a plain constant."""
        constant: Tensor = self._backend.constant(self)
        return constant

    def inner(self) -> Tensor:
        """This tensor with one tape level less."""
        inner: Tensor = self._value if self.is_autodiff else self
        return inner

    @staticmethod
    def from_inner(x: Tensor) -> Tensor:
        """A plain tensor as a constant on its autodiff device."""
        return x.autodiff()

    def require_grad(self) -> Tensor:
        """A handle of the same leaf whose gradient `backward` keeps.

        Call it before computing with the tensor. Raises `NotALeafError` on an intermediate or on
        a device without autodiff, `DTypeError` on integers.
        """
        return self.set_require_grad(True)

    def set_require_grad(self, flag: bool) -> Tensor:
        """`require_grad()`, or its opposite: a handle of the same leaf as a constant."""
        if not dtypes.is_inexact(self.dtype):
            raise DTypeError(
                f"require_grad: a tensor of {self.dtype} has no derivative; make it a float first: x.astype('float32')."
            )
        if not self.is_autodiff:
            raise NotALeafError(
                "require_grad requires autodiff: this tensor is on a device without it; call x.autodiff() first, or "
                "make it with device=dev.autodiff()."
            )
        leaf: Tensor = self._backend.require_grad(self, flag)
        return leaf

    def detach(self) -> Tensor:
        """This value without its history.

        An intermediate becomes an untracked leaf; a leaf that requires grad becomes a new leaf
        that still does, as in burn. For a plain constant use `without_autodiff()`.
        """
        detached: Tensor = self._backend.detach(self)
        return detached

    def retain_grad(self) -> Tensor:
        """Keep the gradient of this intermediate in the `Gradients` of later backwards."""
        if not self.is_autodiff or not self._context.tracked:
            raise NotTrackedError(
                "retain_grad: no leaf that requires grad reaches this tensor; call require_grad() on the source leaf "
                "before computing it."
            )
        if not self.is_require_grad:
            self._context.retained = True
        return self

    def backward(self, cotangent: Any = None, retain_graph: bool = True) -> Gradients:
        """The gradients of this tensor with respect to every leaf that requires grad.

        `cotangent` has this tensor's shape; without it each element counts with weight 1. The
        graph stays as long as its tensors do, so several losses may share it;
        `retain_graph=False` frees what it walked at once.
        """
        if not dtypes.is_inexact(self.dtype):
            raise DTypeError(f"backward(): a tensor of {self.dtype} has no derivative; the loss must be a float.")
        grads: Gradients = self._backend.backward(self, cotangent, retain_graph)
        return grads

    def grad(self, grads: Gradients) -> Tensor | None:
        """Its gradient in `grads`, or None; `grads.explain(x)` tells why."""
        return grads.get(self)

    def grad_remove(self, grads: Gradients) -> Tensor | None:
        """Take its gradient out of `grads`."""
        return grads.remove(self)

    def grad_replace(self, grads: Gradients, g: Tensor) -> None:
        """Put `g` in the place of its gradient in `grads`."""
        grads.replace(self, g)

    # --- reading values

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as a read-only NumPy array; tracked tensors too."""
        x = base_tensor(self._concrete("numpy()"))
        host: np.ndarray[Any, Any] = x._backend.host(x._value)
        return host

    def jax(self) -> Any:
        """The elements as a `jax.Array`."""
        return base_tensor(self._concrete("jax()"))._backend.jax_array(base_tensor(self)._value)

    def item(self) -> Any:
        """The one element as a Python number."""
        if self.size != 1:
            raise ShapeError(f"item(): the tensor has {self.size} elements (shape {self.shape}); index or reduce it first.")
        return self.numpy().reshape(()).tolist() if self.dtype != dtypes.bfloat16 else float(self.numpy().reshape(()))

    def tolist(self) -> Any:
        """The elements as nested lists of Python numbers."""
        return self.numpy().tolist()

    def block_until_ready(self) -> Tensor:
        """Wait until the value is computed."""
        base = base_tensor(self)
        value = base._backend.concrete(base._value)
        if hasattr(value, "block_until_ready"):
            value.block_until_ready()
        return self

    def _concrete(self, what: str) -> Tensor:
        """Itself, if it stands for one value; under vmap it stands for many."""
        x = self
        while isinstance(x._value, Handle):
            if hasattr(x._backend, "refuse_value"):
                x._backend.refuse_value(x, what)
            x = x._value
        return self

    def _moves(self) -> bool:
        """Whether a derivative follows it: it is tracked, or carries a tangent."""
        x = self
        while isinstance(x._value, Handle):
            if x._backend.moves(x):
                return True
            x = x._value
        return False

    def __float__(self) -> float:
        return float(self._scalar("float()"))

    def __int__(self) -> int:
        return int(self._scalar("int()"))

    def __complex__(self) -> complex:
        return complex(self._scalar("complex()"))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ConcreteValueError(
                f"the truth value of a tensor with {self.size} elements (shape {self.shape}) is ambiguous; write "
                "x.any() or x.all()."
            )
        return bool(self._scalar("bool()"))

    def __index__(self) -> int:
        if self.dtype.kind not in "iu" or self.ndim:
            raise ArgumentTypeError(f"only a 0-d integer tensor can be an index, got {self.dtype}{list(self.shape)}.")
        return int(self._scalar("int()"))

    def _scalar(self, what: str) -> Any:
        if self.size != 1:
            raise ShapeError(f"{what}: the tensor has {self.size} elements (shape {self.shape}); index or reduce it first.")
        self._concrete(what)
        return self.numpy().reshape(())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if self._moves():
            raise ArgumentTypeError(
                "converting a tracked tensor to a NumPy array would cut its gradient silently. Use functad functions "
                "on it, or say that the cut is meant: x.numpy()."
            )
        array = self.numpy()
        return np.array(array, dtype) if copy or (dtype is not None and dtype != array.dtype) else array

    def __jax_array__(self) -> Any:
        if self._moves():
            raise ArgumentTypeError(
                "passing a tracked tensor to a jax function would cut its gradient silently. Use functad functions, "
                "wrap the jax function with fd.from_jax, or say that the cut is meant: x.jax()."
            )
        return self.jax()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return protocols.numpy_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return protocols.numpy_function(func, args, kwargs)

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
        return self

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

    # --- reductions

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The sum over axes (all by default)."""
        return ops.sum(self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The mean over axes."""
        return ops.mean(self, axis, keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The product over axes."""
        return ops.prod(self, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The largest element; ties share the derivative."""
        return ops.max(self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest element; ties share the derivative."""
        return ops.min(self, axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether all elements are nonzero."""
        return ops.all(self, axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether any element is nonzero."""
        return ops.any(self, axis, keepdims)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """log(sum(exp(x))), stable."""
        return ops.logsumexp(self, axis, keepdims)

    def amax(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Like `max`."""
        return ops.max(self, axis, keepdims)

    def amin(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Like `min`."""
        return ops.min(self, axis, keepdims)

    def var(self, axis: Axis = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
        """The variance; `ddof` is subtracted from the count."""
        return ops.var(self, axis, ddof, keepdims)

    def std(self, axis: Axis = None, ddof: float = 0, keepdims: bool = False) -> Tensor:
        """The standard deviation; its derivative where all are equal is 0."""
        return ops.std(self, axis, ddof, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first largest element."""
        return ops.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first smallest element."""
        return ops.argmin(self, axis, keepdims)

    def norm(self, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The vector norm over axes (Euclidean by default); its derivative at 0 is 0."""
        return ops.norm(self, ord, axis, keepdims)

    def cumsum(self, axis: int | None = None) -> Tensor:
        """Running sums; over the flattened tensor without an axis."""
        return ops.cumsum(self, axis)

    def cumprod(self, axis: int | None = None) -> Tensor:
        """Running products; over the flattened tensor without an axis."""
        return ops.cumprod(self, axis)

    def softmax(self, axis: Axis = -1) -> Tensor:
        """exp(x) divided by its sum over the axis."""
        return ops.softmax(self, axis)

    def log_softmax(self, axis: Axis = -1) -> Tensor:
        """The logarithm of softmax, stable."""
        return ops.log_softmax(self, axis)

    # --- shape

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape; one length may be -1."""
        return ops.reshape(self, shape[0] if len(shape) == 1 else shape)

    def ravel(self) -> Tensor:
        """The elements in one axis."""
        return ops.reshape(self, -1)

    def flatten(self) -> Tensor:
        """The elements in one axis."""
        return ops.reshape(self, -1)

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in another order, reversed by default."""
        return ops.transpose(self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    def permute(self, *axes: Any) -> Tensor:
        """The axes in another order."""
        return ops.transpose(self, axes[0] if len(axes) == 1 else axes)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two axes swapped."""
        return ops.swapaxes(self, axis1, axis2)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Without axes of length 1."""
        return ops.squeeze(self, axis)

    def expand_dims(self, axis: Axis) -> Tensor:
        """With new axes of length 1."""
        return ops.expand_dims(self, axis)

    def broadcast_to(self, shape: Any) -> Tensor:
        """Repeated to a larger shape."""
        return ops.broadcast_to(self, shape)

    def flip(self, axis: Axis = None) -> Tensor:
        """In reverse order along axes."""
        return ops.flip(self, axis)

    def roll(self, shift: Any, axis: Axis = None) -> Tensor:
        """Shifted cyclically."""
        return ops.roll(self, shift, axis)

    def tile(self, reps: Any) -> Tensor:
        """Repeated as a whole."""
        return ops.tile(self, reps)

    def repeat(self, repeats: Any, axis: int | None = None) -> Tensor:
        """Each element repeated."""
        return ops.repeat(self, repeats, axis)

    def pad(self, pad_width: Any, constant_values: Any = 0) -> Tensor:
        """With a constant border."""
        return ops.pad(self, pad_width, constant_values=constant_values)

    def split(self, indices_or_sections: Any, axis: int = 0) -> list[Tensor]:
        """Cut along an axis into equal parts, or at indices."""
        return ops.split(self, indices_or_sections, axis)

    def tril(self, k: int = 0) -> Tensor:
        """The lower triangle."""
        return ops.tril(self, k)

    def triu(self, k: int = 0) -> Tensor:
        """The upper triangle."""
        return ops.triu(self, k)

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The elements of a diagonal."""
        return ops.diagonal(self, offset, axis1, axis2)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Tensor:
        """The sum of a diagonal."""
        return ops.trace(self, offset, axis1, axis2)

    def astype(self, dtype: Any) -> Tensor:
        """With another dtype; differentiable between floats."""
        return ops.astype(self, dtype)

    def to_device(self, device: Device) -> Tensor:
        """On another device; the move between hardware is differentiable."""
        return ops.to_device(self, device)

    # --- indices and order

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """The slices at indices along an axis."""
        return ops.take(self, indices, axis)

    def take_along_axis(self, indices: Any, axis: int | None = -1) -> Tensor:
        """One element per index along an axis."""
        return ops.take_along_axis(self, indices, axis)

    def gather(self, axis: int, indices: Any) -> Tensor:
        """Elements picked along an axis, as in torch."""
        return ops.gather(self, axis, indices)

    def scatter(self, axis: int, indices: Any, values: Any, reduce: str = "set") -> Tensor:
        """With values written ("set") or added ("add") along an axis."""
        return ops.scatter(self, axis, indices, values, reduce)

    def index_add(self, axis: int, indices: Any, values: Any) -> Tensor:
        """With slices of values added at indices along an axis."""
        return ops.index_add(self, axis, indices, values)

    def mask_fill(self, mask: Any, value: Any) -> Tensor:
        """With `value` where the mask is true."""
        return ops.mask_fill(self, mask, value)

    def mask_select(self, mask: Any) -> Tensor:
        """The elements where the mask is true, in one axis."""
        return ops.mask_select(self, mask)

    def sort(self, axis: int = -1, descending: bool = False) -> Tensor:
        """In order along an axis (stable)."""
        return ops.sort(self, axis, descending)

    def argsort(self, axis: int = -1, descending: bool = False) -> Tensor:
        """The indices that sort an axis (stable)."""
        return ops.argsort(self, axis, descending)

    def topk(self, k: int, axis: int = -1) -> tuple[Tensor, Tensor]:
        """The `k` largest elements along an axis and their indices."""
        return ops.topk(self, k, axis)

    def unfold(self, axis: int, size: int, step: int = 1) -> Tensor:
        """Sliding windows along an axis; the window is the new last axis."""
        return ops.unfold(self, axis, size, step)

    def one_hot(self, num_classes: int) -> Tensor:
        """Integers as rows of a unit matrix."""
        return ops.one_hot(self, num_classes)

    # --- as a container

    def __getitem__(self, index: Any) -> Tensor:
        return ops.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        raise ImmutableError(
            "tensors are immutable: instead of x[i] = v write x = x.at[i].set(v) (also .add, .mul, .min, .max)."
        )

    def __len__(self) -> int:
        if not self.shape:
            raise ArgumentTypeError("len() of a 0-d tensor.")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        if not self.shape:
            raise ArgumentTypeError("a 0-d tensor cannot be iterated; use x.item() for its value.")
        return iter([self[i] for i in range(self.shape[0])])

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __hash__(self) -> int:
        raise ArgumentTypeError(
            "tensors are compared elementwise and have no hash; use id(x) as a key, or look gradients up with grads[x]."
        )

    def __copy__(self) -> Tensor:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec and self.size == 1 else format(repr(self), spec)

    def __repr__(self) -> str:
        return printing.tensor_repr(self)
