"""`jit`: write a function down once per kind of arguments, and run it as one compiled call."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from functad import dtypes, tree
from functad.backends.base import refuse_donated, values_on, wrapped
from functad.backends.staged import OtherTypesError, StagedOp
from functad.backends.trace import Trace, open_trace
from functad.device import Device
from functad.dispatch import Handle, Known, base_backend, bind, known_here, reads, tracing
from functad.errors import ArgumentError, ArgumentTypeError, NotTrackedError
from functad.keywords import explained
from functad.levels import BASE, deeper
from functad.ops.ieee import is_strict
from functad.ops.operand import as_array, operand
from functad.param import Param, ids_of, pattern_of, renamed
from functad.tensor import Tensor
from functad.transforms.arguments import beside, settle, unflatten
from functad.transforms.captures import PLAIN, Captures
from functad.transforms.jit_entries import Call, Entry, Gradient, Last, about, gradient_of, is_fixed, shared_among
from functad.transforms.jit_static import ints, static_of, unhashable, within
from functad.transforms.styles import RULED, call_in_style, ends_of, lifted, styles_of

_MOST_KEPT = 512
_TYPES = {Tensor, Param}
_NUMBERS = (*dtypes.SCALARS, np.generic, np.ndarray, jax.Array)
_LEAF = tree.flatten(0)[1]
Differentiated = tuple[Any, Any, list[Any]]
_config: Any = jax.config


class Jitted:
    """What `fd.jit` returns: the function, its compiled forms and their count."""

    def __init__(
        self,
        fn: Callable[..., Any],
        static_argnums: int | Sequence[int],
        static_argnames: str | Sequence[str],
        donate_argnums: int | Sequence[int],
    ):
        functools.update_wrapper(self, fn, updated=())  # what a Module holds is not this object's
        self._fn = fn
        self._name = getattr(fn, "__name__", type(fn).__name__)
        self._static_nums, self._static_names, self._parameters = static_of(fn, static_argnums, static_argnames)
        self._donated = tuple(ints(donate_argnums, "donate_argnums"))
        if both := {n % max(len(self._parameters), 1) for n in self._donated} & {*self._static_nums}:
            raise ArgumentError(
                f"jit: argument {min(both)} is static and donated; a static value has no memory to take over."
            )
        if self._parameters:
            within(self._donated, donate_argnums, "donate_argnums", fn, self._parameters)
        self._captures = Captures(fn)
        self._has_static = bool(self._static_nums or self._static_names)
        self._entries: OrderedDict[Any, Entry] = OrderedDict()
        self._of_static: OrderedDict[int, Captures] = OrderedDict()  # by the id of a static argument, which they hold
        self._last: Last | None = None
        self.compilations = 0
        """How many kinds of arguments the function was written down for."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        last = self._last
        if (
            last is not None
            and (arrays := self._like(last, args, kwargs)) is not None
            and (outs := self._ran(last.base, last.entry.op, arrays)) is not None
        ):
            return _result(last.entry, outs, last.entry.ids)
        call: Call = self._find(args, kwargs)
        entry, base = call.entry, call.base
        if entry.ends is not None:
            outs = call_in_style(bind, entry.op, call.inputs, entry.ends)
        else:
            outs = bind(entry.op, call.inputs) if base is None else base.run(entry.op, call.inputs, ())
        return _result(entry, outs, call.params)

    def differentiated_again(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: Any) -> Differentiated | None:
        """What `differentiated` gives, if this call is like the last one."""
        last = self._last
        if (
            last is not None
            and (known := last.gradients.get(key)) is not None
            and (arrays := self._like(last, args, kwargs)) is not None
            and (outs := self._ran(last.base, known[0].op, arrays)) is not None
        ):
            return _differentiated(last.entry, *known, outs, last.entry.ids)
        return None

    def differentiated(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], numbers: tuple[int, ...], key: Any
    ) -> Differentiated | None:
        """The value, the aux and the gradients of one call, computed together; by `key`: (argnums, has_aux, valued).

        None where a tape has to do it: at other levels, where a Param is shared or made, and what is an error.
        """
        call = self._find(args, kwargs, only_plain=True)
        if call is None:
            return None
        entry, arguments = call.entry, self._arguments(call)
        gradient = entry.gradients.get((call.structure, key))
        if gradient is None:
            gradient = gradient_of(entry, arguments, call.leaves, numbers, *key[1:])
            entry.gradients[call.structure, key] = gradient
        if gradient.op is None or not _TYPES.issuperset([type(call.given[i]) for i in gradient.places]):
            return None
        structures = [arguments[n] for n in numbers]
        if call.last is not None:
            call.last.gradients[key] = gradient, structures
        return _differentiated(entry, gradient, structures, call.base.run(gradient.op, call.inputs, ()), call.params)

    def _like(self, last: Last, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """The arrays for the program, if this call is like the last one: nothing is hashed or looked up for it."""
        if tracing.get() is not None or _config.jax_enable_x64 is not last.x64 or is_strict() is not last.strict:
            return None
        base = last.base
        try:
            leaves = last.leaves_of([args, kwargs] if kwargs else args)
            for i, kind, dtype in last.numbers:
                x = leaves[i]
                if type(x) is not kind:
                    return None
                leaves[i] = base.put(as_array(x, "jit")) if dtype is None else base.number(x, dtype)
            if last.static:
                for i, value in last.static:
                    if leaves[i] is not value:
                        return None
                leaves = [leaves[i] for i in last.dynamic]
            outside, containers = self._look(last.readers) if last.readers else self._captures.look()
            if outside:
                leaves += outside
            arrays = values_on(base, leaves)
            if len(arrays) != last.size or containers != last.containers:
                return None
            if last.kinds is not None and [(x._shape, x._dtype) for x in leaves] != last.kinds:
                return None
            for i, mark in last.marks:
                if leaves[i].mark is not mark:
                    return None
        except (AttributeError, ValueError, ArgumentTypeError):  # no tensor, another structure, no array of numbers
            return None
        if len(outside) > 1 and shared_among(outside) != last.shared:
            return None
        return arrays if last.inputs is None else [arrays[i] for i in last.inputs]

    def _ran(self, base: Any, op: StagedOp, arrays: list[Any]) -> tuple[Any, ...] | None:
        """The outputs of a program that ran before; None if that was on inputs of other types."""
        if op.donate and any(type(arrays[i]) is np.ndarray for i in op.donate):
            return None  # it has to become an array that can be taken over
        if base.fuses:
            base.calls(op)
        try:
            return wrapped(base, base.compiled(op, ())(*arrays), op.out_types)
        except OtherTypesError:
            self._last = None
            return None
        except (RuntimeError, ValueError):
            refuse_donated(op.name, arrays, op.donate)
            raise

    def _find(self, args: tuple[Any, ...], kwargs: dict[str, Any], only_plain: bool = False) -> Any:
        """The compiled form for these arguments, and its inputs; with `only_plain` None if something is not at the base."""
        static, dynamic = self._partition(args, kwargs) if kwargs or self._has_static else (None, args)
        given, structure = tree.flatten(dynamic)
        readers = () if static is None else self._readers_of([x for part in static for _, x in part])
        outside, containers = self._look(readers)
        leaves = given
        if only_plain and not (tracing.get() is None and all(map(_is_plain, [*given, *outside]))):
            return None
        params = ids_of(leaves), ids_of(outside)
        if not all([isinstance(x, Handle) for x in leaves]):  # noqa: C419  # a list is quicker
            leaves = [
                x if isinstance(x, Handle) else self._tensor(x, i, leaves, outside, static, dynamic)
                for i, x in enumerate(leaves)
            ]
        base = base_backend(leaves[0] if leaves else outside[0]) if leaves or outside else Device.default().base
        base = base.base if isinstance(base, Trace) else base
        styles = styles_of(leaves, outside)
        key = (
            structure,
            _told_apart(static),
            styles,
            tuple([(x._shape, x._dtype) for x in leaves]),
            about(outside, params[1], containers) if outside else None,
            pattern_of(leaves, params[0]) if params[0] else None,
            base,
            dtypes.x64_enabled(),
            is_strict(),
        )
        try:
            entry = self._entries.get(key)
        except TypeError:
            raise unhashable(self._name, static, self._parameters) from None
        if entry is None or not entry.holds(outside):
            entry = self._entries[key] = self._write_down(static, structure, leaves, outside, base, params, styles)
            if len(self._entries) > _MOST_KEPT:
                self._entries.popitem(last=False)
        inputs = leaves + [outside[h] if type(h) is int else h for h in entry.hidden]
        if entry.fixed and (read := reads.get()) is not None:
            read += [x for _, x in entry.fixed]
        direct = tracing.get() is None and all([x._backend is base for x in inputs])  # noqa: C419  # a list is quicker
        call = Call(entry, inputs, base if direct or not inputs else None, params, structure, given, leaves, static)
        if direct and params == entry.ids and not (entry.made or entry.fixed) and entry.ends is None:
            call.last = self._last = self._remembered(call, args, kwargs, outside, containers, readers)
        return call

    def _arguments(self, call: Call) -> list[tree.Structure | None]:
        """The structure of each positional argument; None for one that is static."""
        found: list[Any] = call.structure.children()
        if call.structure.type is not tuple:
            found = found[0].children()
        for i, _ in call.static[0] if call.static is not None else ():
            found.insert(i, None)
        return found

    def _look(self, readers: Sequence[Captures]) -> tuple[list[Any], tuple[tree.Structure, ...]]:
        """What the function and its static arguments reach now."""
        outside, containers = self._captures.look()
        for captures in readers:
            found, structures = captures.look()
            outside, containers = outside + found, containers + structures
        return outside, containers

    def _readers_of(self, static: Sequence[Any]) -> tuple[Captures, ...]:
        """What finds the tensors that static functions and objects reach."""
        readers = []
        for x in static:
            if isinstance(x, PLAIN):
                continue
            captures = self._of_static.get(id(x))
            if captures is None:
                captures = self._of_static[id(x)] = Captures(x)
                if len(self._of_static) > _MOST_KEPT:
                    self._of_static.popitem(last=False)
            readers.append(captures)
        return tuple(readers)

    def _remembered(
        self, call: Call, args: Any, kwargs: Any, outside: list[Any], containers: Any, readers: tuple[Captures, ...]
    ) -> Last | None:
        """What `_like` compares the next call with; None where that is not enough."""
        entry, base = call.entry, call.base
        given, structure = tree.flatten_known([args, kwargs] if kwargs else args)
        fixed = _places(args, kwargs, {name for part in call.static or () for name, _ in part})
        static = [(i, given[i]) for i in fixed]
        dynamic = [i for i in range(len(given)) if i not in fixed]
        numbers = [
            (i, type(given[i]), x._dtype if isinstance(given[i], dtypes.SCALARS) else None)
            for i, x in zip(dynamic, call.leaves, strict=True)
            if not isinstance(given[i], Handle)
        ]
        tensors = call.leaves + outside
        if (
            len(numbers) == len(tensors)  # they went to the default device
            or not all([is_fixed(x) for _, x in static])  # noqa: C419
            or not all([x._backend is base for x in outside])  # noqa: C419
            or not all([type(h) is int for h in entry.hidden])  # noqa: C419
        ):
            return None
        places = [*range(len(dynamic)), *[len(dynamic) + h for h in entry.hidden]]
        inputs = None if places == list(range(len(tensors))) else places
        told = inputs is None and len(self._entries) == 1 and base.tells_types
        return Last(
            entry,
            base,
            tree.leaves_of(structure),
            static,
            numbers,
            dynamic,
            len(tensors),
            None if told else [(x._shape, x._dtype) for x in tensors],
            [(i, x.mark) for i, x in enumerate(tensors) if type(x) is Param],
            inputs,
            containers,
            shared_among(outside) if len(outside) > 1 else None,
            dtypes.x64_enabled(),
            is_strict(),
            readers,
            {},
        )

    def _write_down(
        self, static: Any, structure: Any, tensors: list[Any], outside: list[Any], base: Any, params: Any, styles: Any
    ) -> Entry:
        known = Known(outside, known_here())
        with deeper() as level, open_trace(level, base, f"jit({self._name})") as trace:
            trace.known = known
            inputs = [trace.input(x._shape, x._dtype) for x in tensors]
            inputs = lifted(inputs, styles[1:]) if styles else inputs
            args, kwargs = self._merge(static, tree.unflatten(structure, inputs))
            seen: list[Any] = []
            token = reads.set(seen)
            try:
                found, out_structure = tree.flatten(self._fn(*args, **kwargs))
            finally:
                reads.reset(token)
            outs = [settle(x, trace) if isinstance(x, Handle) else _constant(x) for x in found]
            traced: list[Any] = [x for x in outs if isinstance(x, Handle)]
            trace.program(traced)  # what it reaches is known from here on
            ends = ends_of(
                [x if isinstance(x, Handle) else y for x, y in zip(found, outs, strict=True) if isinstance(y, Handle)],
                inputs,
                trace,
                bool(styles),
            )
            if ends is not None and styles:
                kept = [end is None or end is RULED for end in ends]
                traced = [x if keep else trace.detach(x) for x, keep in zip(traced, kept, strict=True)]
            program = trace.program(traced)
        if styles and ends is None and trace.ruled:
            try:  # without the tape inside, rules of the user's are written down with the ops
                return self._write_down(static, structure, tensors, outside, base, params, None)
            except NotTrackedError:  # it differentiates itself
                ends = (RULED,) * len(traced)
        self.compilations += 1
        places = {id(x): i for i, x in enumerate(outside)}
        number = iter(range(len(traced)))
        return Entry(
            StagedOp(self._name, program, base, self._donate(static, structure)),
            tuple([places.get(id(x), x) for x, _ in trace.hidden.values()]),
            out_structure,
            tuple([next(number) if isinstance(x, Handle) else x for x in outs]) if len(traced) < len(outs) else None,
            params,
            tuple({id for id in ids_of(found) if id and id not in params[0] and id not in params[1]}),
            {},
            ends,
            len(traced) == 1 and out_structure == _LEAF,
            tuple([(i, x) for i, x in enumerate(outside) if any(x is y for y in seen)]),
        )

    def _partition(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """(what is static, what is dynamic), in a form that `_merge` undoes."""
        if not self._has_static:
            return None, [args, kwargs] if kwargs else args
        nums = {n % len(args) for n in self._static_nums if -len(args) <= n < len(args)} if args else set()
        static = (
            tuple((i, args[i]) for i in sorted(nums)),
            tuple((k, kwargs[k]) for k in sorted(kwargs) if k in self._static_names),
        )
        dynamic = [
            [a for i, a in enumerate(args) if i not in nums],
            {k: v for k, v in kwargs.items() if k not in self._static_names},
        ]
        return static, dynamic

    def _merge(self, static: Any, dynamic: Any) -> tuple[Any, Any]:
        args, kwargs = dynamic if type(dynamic) is list else (dynamic, {})  # all arguments are in a tuple
        if static is None:
            return args, kwargs
        args = list(args)
        for i, value in static[0]:
            args.insert(i, value)
        return args, {**kwargs, **dict(static[1])}

    def _donate(self, static: Any, structure: tree.Structure) -> tuple[int, ...]:
        if not self._donated:
            return ()
        blank = static and tuple([tuple([(place, None) for place, _ in values]) for values in static])
        args, kwargs = self._merge(blank, tree.unflatten(structure, range(structure.num_leaves)))
        given = dict(enumerate(args)) | {
            self._parameters.index(k): x for k, x in kwargs.items() if k in self._parameters
        }
        numbers = [n + len(self._parameters or args) if n < 0 else n for n in self._donated]
        return tuple(i for n in numbers for i in tree.leaves(given.get(n)))

    def _tensor(self, x: Any, index: int, leaves: Any, outside: Any, static: Any, dynamic: Any) -> Any:
        near = [y for y in (*leaves, *outside) if isinstance(y, Handle)]
        try:
            return operand(x, near[0] if near else None, beside(x, near), where=f"jit({self._name})")
        except ArgumentTypeError:
            raise ArgumentTypeError(
                f"jit({self._name}): argument {self._place(index, static, dynamic)} is {x!r} of type "
                f"{type(x).__name__}, which cannot be traced. Pass tensors, arrays, numbers or pytrees of them; name "
                "others with static_argnums or static_argnames."
            ) from None

    def _place(self, index: int, static: Any, dynamic: Any) -> str:
        """A leaf of the arguments as the user would write it."""
        args, kwargs = self._merge(static, dynamic)
        fixed = {i for i, _ in static[0]} if static is not None else set()
        places = []
        for i, arg in enumerate(args):
            if i not in fixed:
                name = self._parameters[i] if i < len(self._parameters) else str(i)
                places += [name + path for path in tree.paths(arg)]
        named = {k: x for k, x in kwargs.items() if static is None or k not in dict(static[1])}
        return [*places, *[k + path for k in sorted(named) for path in tree.paths(named[k])]][index]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<jit {self._name}: {self.compilations} compilation(s)>"


@explained
def jit(
    fn: Callable[..., Any],
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    donate_argnums: int | Sequence[int] = (),
) -> Jitted:
    """`fn`, compiled by XLA as a whole for each structure, shapes and dtypes of its arguments.

    Args:
        fn: a function of pytrees of tensors. Tensors it reaches by closure, by global name, in
            containers, as attributes of objects, classes and modules of your own, or as defaults of arguments
            are read anew at each call (where Python reads the value of one, a new one is compiled anew);
            anything else it captures is a constant.
        static_argnums: positions of arguments that are plain Python values, compiled in. Tensors that
            a static function or object reaches are read anew too.
        static_argnames: the same by name.
        donate_argnums: positions of arguments whose memory the result may take over.

    The compiled function is differentiable in every style, forward run once and residuals kept.
    `jit(fn).compilations` counts how often it was written down. On the NumPy device it runs op by op.

    >>> import functad as fd
    >>> square = fd.jit(lambda x: x * x)
    >>> square(3.0).item(), fd.grad(square)(3.0).item(), square.compilations
    (9.0, 6.0, 1)
    >>> power = fd.jit(lambda x, n: x**n, static_argnums=1)
    >>> power(3.0, 2).item(), power(3.0, n=3).item(), power.compilations
    (9.0, 27.0, 2)
    """
    if not callable(fn):
        raise ArgumentTypeError(f"jit: expected a function, got {fn!r} of type {type(fn).__name__}.")
    return Jitted(fn, static_argnums, static_argnames, donate_argnums)


def _told_apart(x: Any) -> Any:
    """A static value as a key: 1, 1.0 and True are equal, and make other programs."""
    if isinstance(x, tuple):
        return type(x), *map(_told_apart, x)
    return type(x), x.hex() if type(x) is float else x


def _is_plain(x: Any) -> bool:
    """Whether an argument is a tensor of no level, or a number or an array that becomes one."""
    return bool(x._backend.level == BASE) if type(x) in _TYPES else isinstance(x, _NUMBERS)


def _result(entry: Entry, outs: Sequence[Any], params: Any) -> Any:
    """What the function returns, with the ids that its Params have in this call."""
    if entry.single:
        return outs[0]
    results = outs if entry.outputs is None else [outs[o] if type(o) is int else o for o in entry.outputs]
    if params is not entry.ids and (entry.made or params != entry.ids):
        with renamed(entry.ids, params, entry.made):
            return entry.structure.unflatten(results)
    return entry.structure.unflatten(results)


def _differentiated(entry: Entry, gradient: Gradient, structures: Any, outs: Any, params: Any) -> Differentiated:
    """The value if it is among the outputs, the aux, and the gradients."""
    if gradient.visible == 0:
        value = aux = None
    elif entry.single:
        value, aux = outs[0], None
    else:
        value = _result(entry, outs[: gradient.visible], params)
        value, aux = value if gradient.has_aux else (value, None)
    grads = (
        outs[gradient.visible :] if gradient.order is None else [None if i is None else outs[i] for i in gradient.order]
    )
    return value, aux, unflatten(structures, grads)


def _places(args: tuple[Any, ...], kwargs: dict[str, Any], names: set[Any]) -> dict[int, None]:
    """The places of the leaves of some arguments, by number or name, among those of all."""
    found: dict[int, None] = {}
    start = 0
    for name, x in [*enumerate(args), *sorted(kwargs.items())] if names else ():
        size = len(tree.flatten_known(x)[0])
        found |= dict.fromkeys(range(start, start + size) if name in names else ())
        start += size
    return found


def _constant(x: Any) -> Any:
    try:
        return operand(x, where="jit")
    except ArgumentTypeError:
        return x
