"""`Module`: a class whose instances are immutable pytrees of parameters."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from abc import ABCMeta
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, dataclass_transform

from functad import tree
from functad.errors import ArgumentError, ArgumentTypeError, ImmutableError, MissingForwardError
from functad.habits import NoArithmetic
from functad.hints import missing_part, setting_part
from functad.keywords import better_error, called_wrong, explained, unknown_argument
from functad.module import files, modes, show, updates
from functad.module.fields import field, specs_of
from functad.module.group import ParamGroup
from functad.module.layout import Layout, comparable, is_module, seal, walk
from functad.param import Param
from functad.tensor import Tensor

if TYPE_CHECKING:
    from functad.device import Device


@dataclass_transform(field_specifiers=(field, dataclasses.field))
class ModuleType(ABCMeta):
    """The class of Module classes: makes each a dataclass and a pytree, and closes instances once they are made."""

    _specs: dict[str, Any]
    _by_hand: bool

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwargs: Any) -> Any:
        """A class of Modules."""
        kind: Any = super().__new__(cls, name, bases, namespace, **kwargs)
        derived = any(isinstance(base, ModuleType) for base in bases)  # from Module, which itself is made here too
        if "__init__" in namespace:
            kind._by_hand = derived
        if derived:
            dataclasses.dataclass(init=not kind._by_hand, repr=False, eq=False)(kind)
            for taken in sorted(_RESERVED & {f.name for f in dataclasses.fields(kind)}):
                _refuse_name(name, taken)
            kind._specs = specs_of(kind)
        tree.register(kind, _flatten, Layout.build)
        return kind

    @property
    def __signature__(cls) -> inspect.Signature:
        """What help shows: the arguments of `__init__`, and not those of the call above it."""
        found = inspect.signature(cls.__init__)  # type: ignore[misc]  # read, and not called
        return found.replace(parameters=[*found.parameters.values()][1:], return_annotation=found.empty)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """An instance, closed."""
        try:
            module = super().__call__(*args, **kwargs)
        except TypeError as error:
            better = _no_argument(error, cls) or better_error(error, cls.__name__, taken=lambda: cls.__signature__)
            if better is None:
                raise
            raise better from None
        _finish(module, training=True)
        return module


def _no_argument(error: TypeError, kind: Any) -> ArgumentTypeError | None:
    """The error for a field that is passed to a class whose `__init__` makes it, as dataclasses.replace does."""
    name = unknown_argument(error)
    if not name or name not in {f.name for f in dataclasses.fields(kind)}:
        return None
    return ArgumentTypeError(
        f"{kind.__name__}: the field {name!r} is made by its __init__, and no argument. In a model that is made write "
        f"model = model.replace({name}=value), also for dataclasses.replace."
    )


def _flatten(module: Any) -> tuple[tuple[Any, ...], Layout, tuple[Any, ...]]:
    layout = module._layout
    children = module._children
    for name, nest in layout.nests:
        if not nest.holds(module.__dict__[name], children):
            raise ImmutableError(
                f"{type(module).__name__}.{name} was changed after the Module was made, which no transform or optimiser "
                f"would see. Write model = model.replace({name}=[*model.{name}, ...]) instead."
            )
    for name, held in layout.watched:
        if comparable(module.__dict__[name]) != held:
            raise ImmutableError(
                f"{type(module).__name__}.{name} was changed after the Module was made, which what is compiled for it "
                f"would not see. Write model = model.replace({name}=...) instead, with a new value."
            )
    return children, layout, layout.entries


def _finish(module: Any, training: bool) -> None:
    """Fill in defaults, look for what is missing or hidden, and close the instance."""
    fields = module.__dict__
    for f in dataclasses.fields(module) if module._specs else ():
        if f.name in fields:
            continue
        if f.default is not dataclasses.MISSING:
            fields[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            fields[f.name] = f.default_factory()
        else:
            kind = type(module)
            maker = next(c for c in kind.__mro__ if "__init__" in vars(c) or c is Module)
            where = "__post_init__" if not kind._by_hand else f"{maker.__name__}.__init__"
            raise ArgumentError(
                f"{kind.__name__}: the field {f.name!r} is declared and was not assigned; write self.{f.name} = ... in "
                f"{where}, or give it a default: {f.name}: ... = fd.field(default=...)."
            )
    layout, children = Layout.of(module, module._specs, training)
    seal(module, layout, children)


class Module(NoArithmetic, metaclass=ModuleType):
    """A model or a part of one: fields and a `forward`.

    Write it as a dataclass, or with an `__init__` that assigns fields. Fields that are Params,
    tensors or Modules, and lists, tuples and dicts that hold some, are the children of a pytree;
    everything else is static. Arrays become tensors; tensors become Params where the field's type
    says `Param`. After construction an instance does not change: methods return new ones.

    >>> import functad as fd
    >>> class Net(fd.Module):
    ...     def __init__(self, key):
    ...         k1, k2 = fd.random.split(key)
    ...         self.layers = [fd.nn.Linear(2, 8, key=k1), fd.nn.Linear(8, 1, key=k2)]
    ...
    ...     def forward(self, x):
    ...         return self.layers[1](self.layers[0](x).tanh())
    >>> model = Net(fd.random.key(0))
    >>> model(fd.ones((3, 2))).shape, model.num_params, len(model.parameters())
    ((3, 1), 33, 4)
    >>> grads = fd.grad(lambda m, x: (m(x) ** 2).mean())(model, fd.ones((3, 2)))
    >>> grads.layers[0].weight.shape
    (8, 2)
    """

    __slots__ = ("__dict__", "__weakref__", "_children", "_layout")
    _instead: ClassVar[str] = (
        "it is a pytree, and so is its gradient. fd.tree.map(lambda x: 0.5 * x, m) and fd.tree.map(lambda x, y: x + y, m, n) "
        "compute with all its tensors, model.map(lambda p: 0.5 * p) with its parameters"
    )
    _is_module: ClassVar[bool] = True
    _by_hand: ClassVar[bool] = False
    _specs: ClassVar[dict[str, Any]] = {}
    if TYPE_CHECKING:  # slots, which no one is to take for fields
        _layout: ClassVar[Any]
        _children: ClassVar[tuple[Any, ...]]

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """An instance under construction."""
        module = object.__new__(cls)
        seal(module, None, ())
        return module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `forward` returns."""
        if show.watched.get() is not None:
            return show.observe(self, args, kwargs)
        try:
            return self.forward(*args, **kwargs)
        except TypeError as error:
            better = called_wrong(error, type(self).__name__, self.forward)
            if better is None:
                raise
            raise better from None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the Module computes; each class has its own."""
        raise MissingForwardError(
            f"{type(self).__name__} has no forward: define `def forward(self, x): ...` in the class."
        )

    # --- immutability

    def __setattr__(self, name: str, value: Any) -> None:
        if self._layout is not None:
            raise ImmutableError(
                f"{type(self).__name__} is immutable once it is made: {setting_part(name, self._layout.static)}."
            )
        if name in _RESERVED:
            _refuse_name(type(self).__name__, name)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> NoReturn:
        raise ImmutableError(
            f"{type(self).__name__} is immutable: instead of del model.{name} write model = model.replace({name}=None)."
        )

    if not TYPE_CHECKING:  # type checkers are to see that the name is missing

        def __getattr__(self, name):
            raise missing_part(type(self).__name__, name, self.__dict__, self._layout is None)

    def replace(self, changes: Mapping[str, Any] | None = None, /, **fields: Any) -> Self:
        """A copy with some fields changed; by path for parts of parts: `{"layers.0.weight": w}`.

        A tensor put in the place of a Param becomes that Param (same id). Raises `ArgumentError` for
        a field that does not exist.

        >>> import functad as fd
        >>> fc = fd.nn.Linear(2, 1, key=fd.random.key(0))
        >>> fc.replace(bias=fd.zeros(1)).bias.id == fc.bias.id
        True
        """
        return modes.replaced(self, {**(changes or {}), **fields}, _made)

    # --- autodiff and training

    @property
    def training(self) -> bool:
        """Whether dropout drops and batch norm learns; `valid()` turns it off, `train()` on."""
        return self._layout is None or bool(self._layout.training)

    def valid(self) -> Self:
        """A copy for inference: off the autodiff device, training behaviour off.

        >>> import functad as fd
        >>> fd.nn.Dropout(0.5).valid()(fd.ones(2)).tolist()
        [1.0, 1.0]
        """
        return modes.valid(self)

    def train(self, mode: bool = True) -> Self:
        """A copy for training: on the autodiff device it came from, every parameter requiring grad.

        >>> import functad as fd
        >>> model = fd.nn.Linear(2, 1).train()
        >>> model.training, model.bias.is_require_grad, model.valid().bias.is_require_grad
        (True, True, False)
        """
        if mode is not True:
            raise ArgumentTypeError("train: it takes no mode; write model = model.valid() for train(False) or eval().")
        return modes.train(self)

    def no_grad(self) -> Self:
        """A copy with every parameter frozen; training behaviour stays as it is.

        >>> import functad as fd
        >>> model = fd.nn.Linear(2, 1).train().no_grad()
        >>> model.training, model.bias.is_frozen, model(fd.ones(2)).is_tracked
        (True, True, False)
        """
        return modes.freeze(self, None, True)

    @partial(
        explained, missing="write model.freeze('encoder.*') for a part, model.freeze('*') or model.no_grad() for all"
    )
    def freeze(self, group: Any) -> Self:
        """A copy in which the parameters of a group require no grad and no optimiser touches them.

        `group` is a `ParamGroup` or what makes one: `"encoder.*"`, `nn.Linear`, a Param. Raises
        `ArgumentError` if it matches nothing.

        >>> import functad as fd
        >>> model = fd.nn.Linear(2, 1).freeze("bias")
        >>> model.bias.is_frozen, model.weight.is_frozen, model.unfreeze("bias").bias.is_frozen
        (True, False, False)
        """
        return modes.freeze(self, ParamGroup.of(group), True)

    @partial(explained, missing="write model.unfreeze('encoder.*') for a part, model.unfreeze('*') for all")
    def unfreeze(self, group: Any) -> Self:
        """A copy in which the parameters of a group, and no others, are trained again; see `freeze`."""
        return modes.freeze(self, ParamGroup.of(group), False)

    # --- state that a forward changes

    def call_and_update(self, *args: Any, **kwargs: Any) -> tuple[Any, Self]:
        """What the model returns, and the model with the buffers (running means) that this call updated.

        A plain `model(x)` leaves them as they are. Inside `fd.grad` return the new model as aux.

        >>> import functad as fd
        >>> class Mean(fd.Module):
        ...     mean: fd.Tensor
        ...
        ...     def forward(self, x):
        ...         if self.training:
        ...             self.update(mean=0.5 * self.latest("mean") + 0.5 * x.mean())
        ...         return x - self.mean
        >>> y, model = Mean(fd.tensor(0.0)).call_and_update(fd.tensor([1.0, 3.0]))
        >>> y.tolist(), model.mean.item()
        ([1.0, 3.0], 1.0)
        """
        return updates.call(self, args, kwargs)

    def update(self, **values: Any) -> None:
        """For a `forward`: give buffers new values, as constants. `call_and_update` collects them."""
        updates.update(self, values)

    def latest(self, name: str) -> Any:
        """For a `forward`: a buffer with the updates of the call that is running."""
        return updates.latest(self, name)

    # --- devices and types

    @property
    def devices(self) -> list[Device]:
        """The devices its tensors are on, each once."""
        found: dict[Device, Device] = {}
        for x in walk(self):
            found.setdefault(x.value.device, x.value.device)
        return list(found.values())

    def to_device(self, device: Device) -> Self:
        """A copy on another device, the move recorded on the tape.

        Parameters that require grad are intermediates there: their gradients are those of the
        parameters of this model. For a model to train there use `fork`.

        >>> import functad as fd
        >>> fd.nn.Linear(2, 1).to_device(fd.Device.numpy()).devices
        [Device(numpy)]
        """
        return modes.to_device(self, device)

    def fork(self, device: Device | None = None) -> Self:
        """A copy on a device (its own by default) whose parameters are leaves of their own, with the same ids.

        >>> import functad as fd
        >>> model = fd.nn.Linear(2, 1)
        >>> copy = model.fork(fd.Device.numpy().autodiff())
        >>> copy.bias.is_require_grad, copy.bias.id == model.bias.id
        (True, True)
        """
        return modes.fork(self, device)

    def astype(self, dtype: Any) -> Self:
        """A copy with its floats in another dtype; parameters are new leaves with the same ids.

        >>> import functad as fd
        >>> fd.nn.Linear(2, 1).astype("bfloat16")(fd.ones(2, "bfloat16")).dtype
        dtype(bfloat16)
        """
        return modes.astype(self, dtype)

    # --- parameters

    @property
    def num_params(self) -> int:
        """How many numbers its parameters have, shared ones counted once."""
        return sum(p.size for p in self.parameters())

    def parameters(self) -> list[Param]:
        """Its parameters in order, each once."""
        return [p for _, p in self.named_parameters()]

    def named_parameters(self) -> list[tuple[str, Param]]:
        """Its parameters with their paths, each once, at the first of its places.

        >>> import functad as fd
        >>> [name for name, _ in fd.nn.Sequential(fd.nn.Linear(2, 1), fd.nn.PReLU()).named_parameters()]
        ['layers.0.weight', 'layers.0.bias', 'layers.1.weight']
        """
        seen: dict[Any, tuple[str, Param]] = {}
        for x in walk(self):
            if x.mark is not None and isinstance(x.value, Param):
                seen.setdefault(x.mark.id, (x.path, x.value))
        return list(seen.values())

    def named_buffers(self) -> list[tuple[str, Tensor]]:
        """Its other tensors (running means, tables) with their paths.

        >>> import functad as fd
        >>> [name for name, _ in fd.nn.BatchNorm1d(2).named_buffers()]
        ['running_mean', 'running_var', 'num_batches_tracked']
        """
        return [(x.path, x.value) for x in walk(self) if x.mark is None]

    def named_modules(self) -> list[tuple[str, Module]]:
        """Itself (path `""`) and the Modules within it, with their paths.

        >>> import functad as fd
        >>> [path for path, _ in fd.nn.Sequential(fd.nn.Linear(2, 1), fd.nn.PReLU()).named_modules()]
        ['', 'layers.0', 'layers.1']
        """
        return list(_modules(self, ""))

    def map(self, fn: Callable[[Param], Any]) -> Self:
        """A copy with `fn(p)` in the place of every parameter `p`; ids stay, and so does what is frozen.

        In object style the results are leaves: the tape does not connect them to the old ones.

        >>> import functad as fd
        >>> fd.nn.Linear(2, 1).map(lambda p: p * 0.0)(fd.ones(2)).tolist()
        [0.0]
        """
        return modes.mapped(self, fn)

    def visit(self, fn: Callable[[str, Tensor], Any]) -> None:
        """Call `fn(path, x)` for every tensor, a shared one at each of its places.

        >>> import functad as fd
        >>> fd.nn.Linear(2, 1).visit(lambda path, x: print(path, x.shape))
        weight (1, 2)
        bias (1,)
        """
        for x in walk(self):
            fn(x.path, x.value)

    # --- files

    def save(self, path: Any, dtype: Any = None) -> None:
        """Write its tensors to a safetensors file, by path.

        A crash or a full disk leaves the file that was there. `dtype` casts the floats in the file.

        >>> import functad as fd, tempfile, os
        >>> model, path = fd.nn.Linear(2, 1), os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> model.save(path)
        >>> (fd.nn.Linear(2, 1).load(path).weight == model.weight).all().item()
        True
        """
        files.save(self, path, dtype)

    def load(self, path: Any, strict: bool = True, names: Any = None, dtype: Any = None) -> Self:
        """A copy with the tensors of a file (or of another library's weights), and the ids of this model.

        Raises `RecordError` if they do not fit. With `strict=False` what fits is loaded, and a warning says what was missing,
        unexpected or mismatched. See `fd.load_into` for the arguments, and for the report as a value.
        """
        return files.load(self, path, strict, names, dtype)

    # --- seen

    def summary(self, *args: Any, **kwargs: Any) -> str:
        """A table of its parts: parameters, and the shapes they return when called with these arguments.

        >>> import functad as fd
        >>> print(fd.nn.Sequential(fd.nn.Linear(2, 1), fd.nn.ReLU()).summary(fd.ones((3, 2))))
        module         parameters  returns
        ----------------------------------------
        Sequential              3  float32[3, 1]
            0: Linear           3  float32[3, 1]
            1: ReLU             0  float32[3, 1]
        ----------------------------------------
        3 parameters
        """
        return show.summary(self, args, kwargs)

    def __repr__(self) -> str:
        if self._layout is None:
            return f"<{type(self).__name__} under construction>"
        return show.tree_repr(self)

    # --- copies

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return _restore(type(self), copy.deepcopy(_fields(self), memo), self.training)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), _fields(self), self.training)


def _fields(module: Any) -> dict[str, Any]:
    """The fields, without what a cached_property has put beside them."""
    return {name: module.__dict__[name] for name in module._layout.static}


def _made(module: Any, fields: dict[str, Any]) -> Any:
    """A Module like another, with other fields."""
    return _restore(type(module), fields, module.training)


def _restore(kind: type, fields: dict[str, Any], training: bool) -> Any:
    module: Any = object.__new__(kind)
    seal(module, None, ())
    module.__dict__.update(fields)
    _finish(module, training)
    return module


def _modules(module: Any, path: str) -> Iterator[tuple[str, Module]]:
    yield path, module
    for name, child in zip(module._layout.names, module._children, strict=True):
        if is_module(child):
            yield from _modules(child, f"{path}.{name}" if path else name)


def _refuse_name(kind: str, name: str) -> NoReturn:
    raise ArgumentTypeError(
        f"{kind}: a field cannot be called {name!r}, which is a method or property of every Module; choose another name."
    )


_RESERVED = frozenset(name for name in vars(Module) if not name.startswith("__"))
