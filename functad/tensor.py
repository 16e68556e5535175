"""`Tensor`: the user's handle: what it is, its autodiff state, and what makes it a container."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from functad import dtypes, ops, printing
from functad.dispatch import Handle, met
from functad.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    ImmutableError,
    LevelError,
    NotALeafError,
    NotTrackedError,
)
from functad.habits import Count, Foreign, Grad, Hosts, unsettable
from functad.hints import foreign_names, settings
from functad.keywords import explain_methods, explained
from functad.levels import BASE
from functad.methods import Methods
from functad.operators import Operators
from functad.values import Values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from functad.device import Device
    from functad.gradients import Gradients


class Tensor(Operators, Methods, Values, metaclass=Hosts):
    """An immutable array that carries its autodiff context.

    Made by `fd.tensor`, `fd.zeros`, `fd.random.normal` and the like, or by operations on others.
    Dispatch goes by the tensor: one that is tracked records what is done with it, wherever it goes.

    >>> import functad as fd
    >>> x = fd.tensor([1.0, 2.0], device=fd.Device.cpu().autodiff()).require_grad()
    >>> loss = (x * x).sum()
    >>> x.grad(loss.backward()).tolist(), loss.block_until_ready().item()
    ([2.0, 4.0], 5.0)
    >>> x.numpy().dtype, x.jax().shape, len(x.tobytes())
    (dtype('float32'), (2,), 8)
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
    def mH(self) -> Tensor:
        """The last two axes swapped, and conjugated."""
        return ops.conj(ops.matrix_transpose(self))

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
    def size(self) -> int:
        """The number of elements."""
        return Count(math.prod(self._shape))

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
        x: Any = self
        if (entry := x._entry) is not None and entry.deferred:
            return entry.tracked(x)
        while isinstance(x._value, Handle):
            if x._backend.is_tape and x._context.tracked:
                return True
            x = x._value
        return False

    @property
    def is_require_grad(self) -> bool:
        """Whether it is a leaf whose gradient `backward` keeps."""
        if (entry := self._entry) is not None and entry.deferred:
            return False
        return self.is_autodiff and self._context.requirement.value == "grad"

    @partial(explained, too_many="x.device.autodiff(order=2).lift(x)")
    def autodiff(self) -> Tensor:
        """This tensor on the autodiff device; as it is if it is there already.

        Inside a transform it starts a tape of its own, whose gradients the transform can differentiate.

        >>> import functad as fd
        >>> x = fd.ones(2).autodiff()
        >>> x.is_autodiff, x.is_tracked, x.require_grad().is_tracked
        (True, False, True)
        """
        return self if self._backend.level[1] else self.device.autodiff().lift(self)

    def without_autodiff(self) -> Tensor:
        """This tensor off every tape: a plain constant.

        >>> import functad as fd
        >>> w = fd.ones(2).autodiff().require_grad()
        >>> (w * 2).without_autodiff().is_autodiff
        False
        """
        x = self._met(cut=True)
        constant: Tensor = x._backend.constant(x)
        return constant

    def inner(self) -> Tensor:
        """This tensor with one tape level less: on `device.autodiff(order=2)` still on one tape.

        >>> import functad as fd
        >>> x = fd.ones(2, device=fd.Device.cpu().autodiff(order=2))
        >>> x.inner().is_autodiff, x.inner().inner().is_autodiff
        (True, False)
        """
        x: Any = self._met()
        if x is not self and self.is_autodiff and self._value._moves() and not isinstance(x._value, Handle):
            raise LevelError(
                "inner(): a function that is compiled reaches this tensor from outside, where a derivative follows it on more "
                "than one level, and these cannot be told apart inside. Pass x.inner() as an argument, or write "
                "x.without_autodiff() to cut them all."
            )
        inner: Tensor = x._backend.inner(x) if hasattr(x._backend, "inner") else x._value if x.is_autodiff else x
        return inner

    def _met(self, cut: bool = False) -> Tensor:
        """Itself, or what stands for it in a function that it is from outside of."""
        x: Tensor = met(self, cut) if self._backend.level > BASE else self
        return x

    @staticmethod
    def from_inner(x: Tensor) -> Tensor:
        """A plain tensor as a constant on its autodiff device.

        >>> import functad as fd
        >>> fd.Tensor.from_inner(fd.ones(2)).is_autodiff
        True
        """
        return x.autodiff()

    def require_grad(self) -> Tensor:
        """A handle of the same leaf whose gradient `backward` keeps.

        Call it before computing with the tensor. Raises `NotALeafError` on an intermediate or on
        a device without autodiff, `DTypeError` on integers.
        """
        return self.set_require_grad(True)

    def set_require_grad(self, flag: bool) -> Tensor:
        """`require_grad()`, or its opposite: a handle of the same leaf as a constant.

        >>> import functad as fd
        >>> w = fd.ones(2).autodiff().require_grad()
        >>> (w.set_require_grad(False) * 2).is_tracked
        False
        """
        if not dtypes.is_inexact(self.dtype):
            raise DTypeError(
                f"require_grad: a tensor of {self.dtype} has no derivative; make it a float first: x.astype('float32')."
            )
        if not self.is_autodiff:
            raise NotALeafError(
                "require_grad requires autodiff: this tensor is on a device without it; call x.autodiff() first, or "
                "make it with device=dev.autodiff()."
            )
        if self._backend.level[1] and flag is not self.is_require_grad and (x := self._met(cut=True)) is not self:
            self._backend.require_grad(self, flag)  # an intermediate is refused as elsewhere
            lifted: Tensor = self.device.lift(x.detach())
            return lifted.set_require_grad(flag)
        leaf: Tensor = self._backend.require_grad(self, flag)
        return leaf

    def detach(self) -> Tensor:
        """This value without its history.

        An intermediate becomes an untracked leaf; a leaf that requires grad becomes a new leaf
        that still does, as in burn. For a plain constant use `without_autodiff()`.

        >>> import functad as fd
        >>> w = fd.tensor([3.0]).autodiff().require_grad()
        >>> w.grad((w * w.exp().detach()).sum().backward()).item() == w.exp().item()
        True
        """
        x = self._met(cut=True)
        detached: Tensor = x._backend.detach(x)
        return detached

    def retain_grad(self) -> Tensor:
        """Keep the gradient of this intermediate in the `Gradients` of later backwards.

        Raises `NotTrackedError` where no leaf that requires grad reaches it.

        >>> import functad as fd
        >>> w = fd.tensor(3.0).autodiff().require_grad()
        >>> h = (w * w).retain_grad()
        >>> h.grad((h * 5).backward()).item()
        5.0
        """
        if not self.is_autodiff or not self._context.tracked:
            raise NotTrackedError(
                "retain_grad: no leaf that requires grad reaches this tensor; call require_grad() on the source leaf "
                "before computing it."
            )
        if not self.is_require_grad:
            self._context.retained = True
            if (entry := self._entry) is not None and entry.deferred:
                entry.retain()
        return self

    @explained
    def backward(self, cotangent: Any = None, retain_graph: bool = True) -> Gradients:
        """The gradients of this tensor with respect to every leaf that requires grad.

        `cotangent` has this tensor's shape; without it each element counts with weight 1. The
        graph stays as long as its tensors do, so several losses may share it;
        `retain_graph=False` frees what it walked at once.

        Raises `DTypeError` for integers, `NotTrackedError` where there is no leaf, `GraphConsumedError` after a release.

        >>> import functad as fd
        >>> w = fd.tensor([1.0, 2.0]).autodiff().require_grad()
        >>> y = w * w
        >>> w.grad(y.backward()).tolist(), w.grad(y.backward(fd.tensor([1.0, 10.0]))).tolist()
        ([2.0, 4.0], [2.0, 40.0])
        """
        if not dtypes.is_inexact(self.dtype):
            raise DTypeError(f"backward(): a tensor of {self.dtype} has no derivative; the loss must be a float.")
        grads: Gradients = self._backend.backward(self, cotangent, retain_graph)
        return grads

    if TYPE_CHECKING:

        def grad(self, grads: Gradients) -> Tensor | None:
            """Its gradient in `grads`, or None; `grads.explain(x)` tells why."""

    else:
        grad = Grad()

    def grad_remove(self, grads: Gradients) -> Tensor | None:
        """Take its gradient out of `grads`; None if there is none, as the second time.

        >>> import functad as fd
        >>> w = fd.tensor(3.0).autodiff().require_grad()
        >>> grads = (w * w).backward()
        >>> w.grad_remove(grads).item(), w.grad_remove(grads), grads.explain(w).reason.name
        (6.0, None, 'REMOVED')
        """
        return _container(grads, "grad_remove").remove(self)

    def grad_replace(self, grads: Gradients, g: Tensor) -> None:
        """Put `g` in the place of its gradient in `grads`; raises `NoGradientError` where there is none.

        >>> import functad as fd
        >>> w = fd.tensor(3.0).autodiff().require_grad()
        >>> grads = (w * w).backward()
        >>> w.grad_replace(grads, w.grad(grads).clip(-1.0, 1.0))
        >>> grads[w].item()
        1.0
        """
        _container(grads, "grad_replace").replace(self, g)

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
        """A leaf that requires grad becomes a new leaf, as in torch; anything else is immutable and shared."""
        return self.detach() if self.is_require_grad else self

    def __reduce__(self) -> tuple[Any, ...]:
        if self.is_tracked and not self.is_require_grad:
            raise NotALeafError(
                "pickle: this tensor is an intermediate, and its graph cannot be pickled. Pickle x.detach(), or the leaves "
                "it was computed from."
            )
        return _restore, (np.array(self.numpy()), self.device, self.is_require_grad)

    def __dir__(self) -> list[str]:
        return dir(type(self))

    def __format__(self, spec: str) -> str:
        if spec and self.size == 1:
            return format(self._read("format()").item(), spec)
        try:
            return format(str(self), spec)
        except ValueError:
            raise ArgumentError(
                f"format: {spec!r} is for one number, and the tensor has {self.size} (shape {self.shape}); write one of "
                "them, x[i], or [f'{v:" + spec + "}' for v in x.tolist()]."
            ) from None

    def __repr__(self) -> str:
        return printing.tensor_repr(self)

    def __str__(self) -> str:
        self._observed()
        return repr(self)


explain_methods(Tensor)
for _name, _texts in foreign_names(Tensor).items():
    setattr(Tensor, _name, Foreign(*_texts))
for _name, _text in settings(Tensor).items():  # assigning to what is there
    setattr(Tensor, _name, unsettable(getattr(Tensor, _name), _text))


def _container(grads: Any, where: str) -> Any:
    """`grads`, which is to be what `backward()` returned."""
    if hasattr(grads, "_level"):
        return grads
    raise ArgumentTypeError(f"x.{where}: expected the Gradients that backward() returned, got {type(grads).__name__}.")


def _restore(array: np.ndarray[Any, Any], device: Device, require_grad: bool) -> Tensor:
    """What `pickle` calls to make a tensor again."""
    x: Tensor = device.lift(device.base.put(array, array.dtype))
    return x.require_grad() if require_grad else x
