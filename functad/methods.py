"""The methods of a tensor over axes, shapes, indices and order; every one calls a function of `ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from functad import ops, protocols
from functad.dispatch import Handle
from functad.keywords import explain_methods
from functad.ops.search import searchsorted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from functad.device import Device
    from functad.tensor import Tensor

    Axis = int | Sequence[int] | None


class Methods(Handle):
    """The methods of `Tensor` named after NumPy's and torch's functions."""

    __slots__ = ()

    # --- reductions

    def sum(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
        """The sum over axes (all by default). `dtype` is that of the computation."""
        if dtype is None:
            return ops.sum(self, axis, keepdims)
        return ops.astype(ops.sum(ops.astype(self, dtype), axis, keepdims), dtype)

    def mean(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
        """The mean over axes. `dtype` is that of the computation."""
        if dtype is None:
            return ops.mean(self, axis, keepdims)
        return ops.astype(ops.mean(ops.astype(self, dtype), axis, keepdims), dtype)

    def prod(self, axis: Axis = None, keepdims: bool = False, *, dtype: Any = None) -> Tensor:
        """The product over axes. `dtype` is that of the computation."""
        if dtype is None:
            return ops.prod(self, axis, keepdims)
        return ops.astype(ops.prod(ops.astype(self, dtype), axis, keepdims), dtype)

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

    def var(
        self, axis: Axis = None, ddof: float = 0, keepdims: bool = False, *, correction: float | None = None
    ) -> Tensor:
        """The variance; `ddof` is subtracted from the count."""
        return ops.var(self, axis, ddof if correction is None else correction, keepdims)

    def std(
        self, axis: Axis = None, ddof: float = 0, keepdims: bool = False, *, correction: float | None = None
    ) -> Tensor:
        """The standard deviation; its derivative where all are equal is 0."""
        return ops.std(self, axis, ddof if correction is None else correction, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first largest element."""
        return ops.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first smallest element."""
        return ops.argmin(self, axis, keepdims)

    def norm(self, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The vector norm over axes (Euclidean by default); its derivative at 0 is 0."""
        return ops.norm(self, ord, axis, keepdims)

    def cumsum(self, axis: int | None = None, dtype: Any = None) -> Tensor:
        """Running sums; over the flattened tensor without an axis."""
        if dtype is None:
            return ops.cumsum(self, axis)
        return ops.astype(ops.cumsum(ops.astype(self, dtype), axis), dtype)

    def cumprod(self, axis: int | None = None, dtype: Any = None) -> Tensor:
        """Running products; over the flattened tensor without an axis."""
        if dtype is None:
            return ops.cumprod(self, axis)
        return ops.astype(ops.cumprod(ops.astype(self, dtype), axis), dtype)

    def cummax(self, axis: int | None = None, return_indices: bool = False) -> Any:
        """The largest element so far; over the flattened tensor without an axis."""
        return ops.cummax(self, axis, return_indices)

    def cummin(self, axis: int | None = None, return_indices: bool = False) -> Any:
        """The smallest element so far; over the flattened tensor without an axis."""
        return ops.cummin(self, axis, return_indices)

    def logcumsumexp(self, axis: int | None = None) -> Tensor:
        """Running log(sum(exp(x))), stable."""
        return ops.logcumsumexp(self, axis)

    def median(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The median, the mean of the two middle elements of an even number, as in NumPy."""
        return namespace().median(self, axis, keepdims=keepdims)

    def quantile(self, q: Any, axis: Axis = None, keepdims: bool = False, *, method: str = "linear") -> Tensor:
        """The value below which the part `q` of the elements is."""
        return namespace().quantile(self, q, axis, method=method, keepdims=keepdims)

    def nansum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The sum of what is not NaN."""
        return namespace().nansum(self, axis, keepdims=keepdims)

    def nanmean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The mean of what is not NaN."""
        return namespace().nanmean(self, axis, keepdims=keepdims)

    def count_nonzero(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """How many elements are not zero."""
        return ops.count_nonzero(self, axis, keepdims)

    def diff(self, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
        """The differences of neighbours along an axis, `n` times."""
        return namespace().diff(self, n, axis, prepend, append)

    def softmax(self, axis: Axis = -1) -> Tensor:
        """exp(x) divided by its sum over the axis."""
        return ops.softmax(self, axis)

    def log_softmax(self, axis: Axis = -1) -> Tensor:
        """The logarithm of softmax, stable."""
        return ops.log_softmax(self, axis)

    # --- shape

    def reshape(self, *shape: Any, order: str = "C") -> Tensor:
        """The same elements in another shape; one length may be -1. They are read and filled by rows, for "F" by columns."""
        return ops.reshape(self, shape[0] if len(shape) == 1 else shape, order)

    def ravel(self, order: str = "C") -> Tensor:
        """The elements in one axis, row by row ("C") or column by column ("F")."""
        return ops.ravel(self, order)

    def flatten(self, order: str = "C") -> Tensor:
        """The elements in one axis, row by row ("C") or column by column ("F")."""
        return ops.ravel(self, order)

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in another order, reversed by default."""
        return ops.transpose(self, (axes[0] if len(axes) == 1 else axes) if axes else None)

    def permute(self, *axes: Any) -> Tensor:
        """The axes in another order."""
        return ops.transpose(self, axes[0] if len(axes) == 1 else axes)

    def swapaxes(self, axis1: int, axis2: int) -> Tensor:
        """Two axes swapped."""
        return ops.swapaxes(self, axis1, axis2)

    def moveaxis(self, source: Any, destination: Any) -> Tensor:
        """Axes moved to other places, the others in order."""
        return ops.moveaxis(self, source, destination)

    def unbind(self, axis: int = 0) -> tuple[Tensor, ...]:
        """The slices along an axis, without it."""
        return ops.unstack(self, axis)

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

    def astype(self, dtype: Any, *, copy: bool = True) -> Tensor:
        """With another dtype; differentiable between floats. `copy` makes no difference: tensors are immutable."""
        return ops.astype(self, dtype)

    def to_device(self, device: Device, /, *, stream: Any = None) -> Tensor:
        """On another device; the move between hardware is differentiable. `stream` makes no difference.

        >>> import functad as fd
        >>> x = fd.ones(2).to_device(fd.Device.numpy())
        >>> x.device, fd.grad(lambda x: x.to_device(fd.Device.numpy()).sum())(fd.ones(2)).tolist()
        (Device(numpy), [1.0, 1.0])
        """
        return ops.to_device(self, device)

    def copy(self) -> Tensor:
        """Itself: tensors are immutable."""
        return ops.copy(self)

    def conjugate(self) -> Tensor:
        """The complex conjugate."""
        return ops.conj(self)

    def quantize(self, scheme: Any, scale: Any) -> ops.QuantTensor:
        """As 8-bit integers times given scales; see `fd.QuantScheme`."""
        return ops.quantize(self, scheme, scale)

    def quantize_dynamic(self, scheme: Any) -> ops.QuantTensor:
        """As 8-bit integers times the smallest scales under which nothing is clipped; see `fd.ops.quantize_dynamic`."""
        return ops.quantize_dynamic(self, scheme)

    # --- indices and order

    def nonzero(self) -> tuple[Tensor, ...]:
        """Where it is not zero, one int tensor per axis (eager only)."""
        return ops.nonzero(self)

    def searchsorted(self, v: Any, side: str = "left", sorter: Any = None) -> Tensor:
        """Where each element of `v` would have to be inserted into this sorted vector."""
        return searchsorted(self, v, side, sorter)

    def take(self, indices: Any, axis: int | None = None) -> Tensor:
        """The slices at indices along an axis."""
        return ops.take(self, indices, axis)

    def choose(self, choices: Any, mode: str = "raise") -> Tensor:
        """Each element from the choice with its number."""
        return ops.choose(self, choices, mode)

    def compress(self, condition: Any, axis: int | None = None) -> Tensor:
        """The entries of an axis whose condition holds (eager only)."""
        return ops.compress(self, condition, axis)

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

    def scatter_reduce(self, axis: int, indices: Any, values: Any, reduce: str, include_self: bool = True) -> Tensor:
        """With values reduced into it: "sum", "prod", "mean", "amax" or "amin"."""
        return ops.scatter_reduce(self, axis, indices, values, reduce, include_self)

    def index_copy(self, axis: int, indices: Any, values: Any) -> Tensor:
        """With slices of values written at indices along an axis."""
        return ops.index_copy(self, axis, indices, values)

    def index_fill(self, axis: int, indices: Any, value: Any) -> Tensor:
        """With a value in the slices at indices along an axis."""
        return ops.index_fill(self, axis, indices, value)

    def index_select(self, axis: int, indices: Any) -> Tensor:
        """The slices at a 1-d array of indices along an axis."""
        return ops.index_select(self, axis, indices)

    def masked_fill(self, mask: Any, value: Any) -> Tensor:
        """With `value` where the mask is true."""
        return ops.masked_fill(self, mask, value)

    def masked_scatter(self, mask: Any, source: Any) -> Tensor:
        """With the elements of `source`, in order, where the mask is true."""
        return ops.masked_scatter(self, mask, source)

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

    def partition(self, kth: Any, axis: int | None = -1) -> Tensor:
        """With the `kth` element where sorting puts it, smaller ones before it and larger ones after it."""
        return ops.partition(self, kth, axis)

    def argpartition(self, kth: Any, axis: int | None = -1) -> Tensor:
        """The indices of `partition`."""
        return ops.argpartition(self, kth, axis)

    def topk(self, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> Any:
        """The `k` largest (or smallest) elements along an axis and their indices, as `values` and `indices`."""
        return ops.topk(self, k, axis, largest, sorted)

    def kthvalue(self, k: int, axis: int = -1, keepdims: bool = False) -> Any:
        """The `k`-th smallest element along an axis and its index, as `values` and `indices`."""
        return ops.kthvalue(self, k, axis, keepdims)

    def unique(
        self,
        return_index: bool = False,
        return_inverse: bool = False,
        return_counts: bool = False,
        axis: int | None = None,
    ) -> Any:
        """The values there are, in order (eager only), as in NumPy."""
        return namespace().unique(self, return_index, return_inverse, return_counts, axis)

    def isclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Tensor:
        """Where the elements are nearly those of `other`: |x - y| <= atol + rtol |y|."""
        return namespace().isclose(self, other, rtol, atol, equal_nan)

    def allclose(self, other: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Tensor:
        """Whether they are everywhere."""
        return namespace().allclose(self, other, rtol, atol, equal_nan)

    def nan_to_num(self, nan: Any = 0.0, posinf: Any = None, neginf: Any = None) -> Tensor:
        """With numbers in place of NaN and infinities (the largest ones there are, by default)."""
        return ops.nan_to_num(self, nan, posinf, neginf)

    def lerp(self, end: Any, weight: Any) -> Tensor:
        """x + weight * (end - x).

        >>> import functad as fd
        >>> fd.tensor([0.0, 10.0]).lerp(20.0, 0.25).tolist()
        [5.0, 12.5]
        """
        return self + weight * (end - self)

    def unfold(self, axis: int, size: int, step: int = 1) -> Tensor:
        """Sliding windows along an axis; the window is the new last axis."""
        return ops.unfold(self, axis, size, step)

    def one_hot(self, num_classes: int) -> Tensor:
        """Integers as rows of a unit matrix."""
        return ops.one_hot(self, num_classes)


def namespace() -> Any:
    """`functad.numpy`, which is above this module."""
    return protocols.namespace(None)


_TOO_MANY = {
    "repeat": "x.tile((m, n)) for all of it again, x.repeat(n, axis) for each entry",
}
explain_methods(Methods, _TOO_MANY)
