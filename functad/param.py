"""`Param`: a tensor that is trained, and the id by which it is known wherever it goes."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn, Self

import jax

from functad.creation import tensor
from functad.dispatch import Handle, met
from functad.dtypes import is_inexact
from functad.errors import ArgumentTypeError, ImmutableError
from functad.ops.quantize import QuantTensor
from functad.tensor import Tensor

if TYPE_CHECKING:
    from functad.device import Device, GradientCheckpointing

Home = tuple[int, "GradientCheckpointing"]
"""The order and strategy of the autodiff device a parameter was taken off."""


class ParamId(str):
    """The name of a parameter that no copy, move, cast, pickle or file takes from it; unique without a registry.

    >>> import functad as fd
    >>> fd.ParamId() == fd.ParamId()
    False
    """

    __slots__ = ()

    def __new__(cls, value: str | None = None) -> Self:
        """A new id, or one that is known."""
        if value is None:
            value = base64.b32encode(os.urandom(10)).decode().lower()  # not from a generator a user may seed
        return super().__new__(cls, value)

    def __repr__(self) -> str:
        return f"ParamId({str(self)!r})"


class Mark:
    """What makes a tensor a parameter: its id, whether it is frozen, and where `train()` puts it back."""

    __slots__ = ("frozen", "home", "id")

    def __init__(self, id: ParamId, frozen: bool = False, home: Home | None = None):
        self.id = id
        self.frozen = frozen
        self.home = home

    def called(self, id: ParamId) -> Mark:
        """This mark with another id."""
        return Mark(id, self.frozen, self.home)

    def but(self, frozen: bool | None = None, home: Home | None = None) -> Mark:
        """This mark with something changed."""
        return Mark(self.id, self.frozen if frozen is None else frozen, home or self.home)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mark) and self.id == other.id and self.frozen == other.frozen

    def __hash__(self) -> int:
        return hash((self.id, self.frozen))

    def __repr__(self) -> str:
        return f"{self.id}, frozen" if self.frozen else str(self.id)


class Param(Tensor):
    """A trained tensor with a stable `id`; usable wherever a Tensor is.

    On an autodiff device it requires grad at once. What operations make of it are plain tensors;
    a Module gives it back with its id whatever transform it went through.

    Args:
        data: a tensor, an array, a number or nested lists.
        dtype: as for `fd.tensor`.
        device: as for `fd.tensor`.
        id: the id it has instead of a new one.

    >>> import functad as fd
    >>> w = fd.Param([1.0, 2.0], device=fd.Device.cpu().autodiff())
    >>> w.is_require_grad, (w * 2).tolist()
    (True, [2.0, 4.0])
    """

    __slots__ = ("mark",)
    mark: Mark

    def __init__(self, data: Any, dtype: Any = None, device: Device | None = None, *, id: ParamId | str | None = None):
        if isinstance(data, QuantTensor):
            raise ArgumentTypeError(
                f"Param: a quantized tensor is not trained, and so no parameter, got {data!r}. It stands in a Module as it is: "
                'model.replace({"layers.0.weight": q}), or nn.quantize(model).'
            )
        mark = Mark(ParamId(id) if not isinstance(id, ParamId) else id)
        _fill(self, as_leaf(tensor(data, dtype, device)), mark)

    @property
    def id(self) -> ParamId:
        """By which optimisers, files and gradients know it."""
        return self.mark.id

    @property
    def is_frozen(self) -> bool:
        """Whether `freeze` or `no_grad` keeps it as it is; `fd.grad` gives zeros for it."""
        return self.mark.frozen

    @property
    def value(self) -> Tensor:
        """The same tensor without the id."""
        x = met(self)
        return x if x is not self else self._bare()

    def _bare(self) -> Tensor:
        return Tensor(self._backend, self._value, self._context, self._shape, self._dtype)

    # --- the same parameter in another state

    def set_require_grad(self, flag: bool) -> Param:
        """This parameter, requiring grad or frozen."""
        x = met(self)
        x = self._bare() if x is self else self.device.lift(x)
        return wrap(x.set_require_grad(flag), self.mark.but(frozen=not flag))

    def autodiff(self) -> Param:
        """This parameter on the autodiff device."""
        return wrap(as_leaf(self.value.autodiff(), self.mark.frozen), self.mark)

    # --- plain tensors, also where there is nothing to do

    def without_autodiff(self) -> Tensor:
        """Its value off every tape: a plain constant."""
        return self.value.without_autodiff()

    def inner(self) -> Tensor:
        """Its value with one tape level less."""
        return self.value.inner()

    def detach(self) -> Tensor:
        """Its value without its history, as a leaf of its own."""
        return self.value.detach()

    def _refuse_in_place(self, *others: Any) -> NoReturn:
        raise ImmutableError(
            "a parameter is immutable, and p -= g would only give another tensor the name p. To train write model, state = "
            "opt.step(model, grads, state), or by hand model = model.map(lambda p: p - rate * grads[p]); to compute with "
            "its value write x = p - g."
        )

    __iadd__ = __isub__ = __imul__ = __itruediv__ = __ipow__ = __imatmul__ = _refuse_in_place

    # --- copies

    def __copy__(self) -> Param:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Param:
        """The same parameter (its id) as a leaf of its own."""
        return wrap(self.value.__deepcopy__(memo), self.mark)

    def __reduce__(self) -> tuple[Any, ...]:
        mark = self.mark
        return _restore, (self.value, str(mark.id), mark.frozen, mark.home)

    def __repr__(self) -> str:
        return "Param" + self._bare().__repr__().removeprefix("tensor")


def wrap(x: Any, mark: Mark) -> Any:
    """The tensor `x` as the parameter of `mark`; anything else, such as what stands for a tensor, as it is."""
    if not isinstance(x, Tensor) or (type(x) is Param and x.mark is mark):
        return x
    param = object.__new__(Param)
    _fill(param, x, mark)
    return param


def _fill(param: Param, x: Tensor, mark: Mark) -> None:
    Handle.__init__(param, x._backend, x._value, x._context, x._shape, x._dtype)
    param.mark = mark


def as_leaf(x: Tensor, frozen: bool = False) -> Tensor:
    """`x`, requiring grad if it is on an autodiff device and nothing that requires grad reaches it."""
    if x._backend.level[1] and not frozen and is_inexact(x._dtype) and not x.is_tracked:
        return x.require_grad()
    return x


def own_leaf(x: Tensor, frozen: bool = False) -> Tensor:
    """`x` as a leaf: what was computed on an autodiff device starts a history of its own."""
    if x._backend.level[1] and x.is_tracked and not x.is_require_grad:
        x = x.detach()
    if frozen and x.is_require_grad:
        return x.set_require_grad(False)
    return as_leaf(x, frozen)


def leaves_on(tape: Any, values: Sequence[Any], sizes: Iterable[int]) -> list[Any]:
    """The values as leaves of a tape, integers and frozen Params as they are.

    `sizes` counts the values of each argument: within one, the places of a shared Param are one leaf.
    """
    if Param not in set(map(type, values)):
        return [tape.leaf(x) if is_inexact(x._dtype) else x for x in values]
    leaves: list[Any] = []
    for size in sizes:
        shared: dict[ParamId, Any] = {}
        for x in values[len(leaves) : len(leaves) + size]:
            if type(x) is not Param:
                leaves.append(tape.leaf(x) if is_inexact(x._dtype) else x)
            elif x.mark.frozen or not is_inexact(x._dtype):
                leaves.append(x)
            else:
                if x.mark.id not in shared:
                    shared[x.mark.id] = tape.leaf(x)
                leaves.append(shared[x.mark.id])
    return leaves


# --- results that are made again and again from one structure


def ids_of(leaves: Sequence[Any]) -> tuple[ParamId | None, ...]:
    """The ids of the Params among leaves; nothing if there are none."""
    if Param not in set(map(type, leaves)):
        return ()
    return tuple([x.mark.id if type(x) is Param else None for x in leaves])


def pattern_of(leaves: Sequence[Any], ids: Sequence[ParamId | None]) -> tuple[Any, ...]:
    """What code that is compiled may depend on of Params: which are one, and which are frozen."""
    first: dict[ParamId, int] = {}
    return tuple([None if id is None else (first.setdefault(id, i), leaves[i].mark.frozen) for i, id in enumerate(ids)])


names: ContextVar[dict[ParamId, ParamId] | None] = ContextVar("functad_param_names", default=None)
"""What Modules call the Params of the structure they are being made from."""


@contextmanager
def renamed(old: Sequence[Sequence[Any]], new: Sequence[Sequence[Any]], made: Sequence[ParamId]) -> Iterator[None]:
    """Inside, Modules made from a structure have new ids for old ones, and fresh ids for those `made`."""
    mapping = dict(zip(chain(*old), chain(*new), strict=True)) | {id: ParamId() for id in made}
    token = names.set(mapping)
    try:
        yield
    finally:
        names.reset(token)


def _restore(x: Tensor, id: str, frozen: bool, home: Home | None) -> Param:
    """What `pickle` calls."""
    param: Param = wrap(x, Mark(ParamId(id), frozen, home))
    return param


jax.tree_util.register_pytree_node(
    Param,
    lambda p: ((p.value,), p.mark),  # for JAX, which has no other place for the id than the structure
    lambda mark, children: wrap(children[0], mark),
)
