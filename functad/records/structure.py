"""Any pytree in a file: its tensors, numbers and texts, and how they hang together."""

from __future__ import annotations

import base64
import importlib
import os
import sys
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from functad import dtypes, tree
from functad.device import Device
from functad.dispatch import Handle
from functad.errors import ArgumentTypeError, FunctadError, RecordError, UnknownAttributeError
from functad.habits import Count
from functad.module.layout import is_module
from functad.ops.quantize import QuantScheme, QuantTensor
from functad.param import Mark, Param, ParamId, as_leaf, own_leaf, wrap
from functad.records.format import Array, Reader, write
from functad.records.weights import load_into

Encode = Callable[[Any], Any]
Decode = Callable[[Any], Any]
Refill = Callable[[Any, Any], Any]

CODECS: dict[str, tuple[type, Encode, Decode]] = {}
"""Classes that are saved as a pytree of simpler ones: name, class, how to take apart and put together."""

_TRUSTED = ("functad", "optax", "collections")
"""Packages whose named tuples are imported when a file names them; others must be imported already."""


def save(value: Any, path: Any) -> None:
    """Write any pytree to a file: tensors, arrays, numbers, text, None, containers of them, Modules, optimisers' states.

    The file is a safetensors file, with the structure in its metadata. A crash or a full disk leaves
    the file that was there. Raises `ArgumentTypeError` for what cannot be written, and says where it is.

    >>> import functad as fd, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> fd.save({"step": 3, "key": fd.random.key(0), "notes": (None, "warm")}, path)
    >>> fd.load(path)["step"], fd.load(path)["notes"]
    (3, (None, 'warm'))
    """
    if isinstance(value, (str, os.PathLike)) and not isinstance(path, (str, os.PathLike)):
        value, path = path, value  # the other order
    writer = _Writer()
    structure = writer.encode(value, "")
    write(path, writer.arrays, {"structure": structure})


def load(path: Any, like: Any = None, device: Device | None = None) -> Any:
    """Read what `save` wrote, in the same structure.

    Args:
        path: the file.
        like: a pytree of the same structure, which the result takes devices, dtypes and ids from; needed
            where Modules were saved, whose code is not in the file. Lists and dicts of numbers and text
            alone may differ: those of the file are taken.
        device: where tensors go without `like` (the default device).

    Raises `RecordError` for a file that is corrupt, cut short, or does not fit `like`.

    >>> import functad as fd, tempfile, os
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> model = fd.nn.Linear(2, 1)
    >>> fd.save({"model": model, "step": 3}, path)
    >>> found = fd.load(path, like={"model": fd.nn.Linear(2, 1), "step": 0})
    >>> found["step"], (found["model"].weight == model.weight).all().item()
    (3, True)
    """
    if isinstance(like, (str, os.PathLike)) and not isinstance(path, (str, os.PathLike)):
        path, like = like, path  # the other order
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(
            f"load: path must be the name of a file, got a {type(path).__name__}. Write value = fd.load(path, like=value), or "
            "for the weights of a model model = model.load(path)."
        )
    reader = Reader(path)
    if "structure" not in reader.about:
        raise RecordError(
            f"{path} holds tensors by name and no structure (a Module's weights, or another library's file); load it into "
            "a model: model.load(path)."
        )
    try:
        found = _Reader(reader, device).decode(reader.about["structure"])
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        if isinstance(error, FunctadError):
            raise
        raise RecordError(f"{path}: its structure is not one that save writes ({error!r}).") from None
    return found if like is None else _refill(like, found, "")


# --- writing


class _Writer:
    def __init__(self) -> None:
        self.arrays: dict[str, Array] = {}
        self.params: dict[str, str] = {}

    def name(self, path: str) -> str:
        """A name no other array has."""
        name, number = path or "value", 1
        while name in self.arrays or name == "__metadata__":
            number += 1
            name = f"{path or 'value'}#{number}"
        return name

    def array(self, array: Array, path: str) -> str:
        name = self.name(path)
        self.arrays[name] = array
        return name

    def encode(self, x: Any, path: str) -> Any:
        """A value as JSON, its arrays put aside."""
        if x is None or type(x) in (bool, str):
            return x
        if type(x) in (int, Count):
            return int(x) if abs(x) < 2**53 else {"int": str(x)}
        if type(x) is float:
            return {"float": x.hex() if np.isfinite(x) else repr(x)}
        simple = _encode_simple(x)
        if simple is not None:
            return simple
        if type(x) is Param:
            id = str(x.id)
            if id not in self.params:
                self.params[id] = self.array(x.numpy(), path)
            return {"param": self.params[id], "id": id, "frozen": x.is_frozen}
        if isinstance(x, Handle):
            return {"tensor": self.array(x.numpy(), path)}  # type: ignore[attr-defined]  # Tensor's
        if isinstance(x, jax.Array):
            if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                data = np.asarray(jax.random.key_data(x))
                return {"key": self.array(data, path), "impl": str(jax.random.key_impl(x))}
            return {"jax": self.array(np.asarray(x), path)}
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype.kind not in "OUSMm":
            kind = "numpy" if isinstance(x, np.ndarray) else "scalar"
            return {kind: self.array(np.asarray(x), path)}
        return self.container(x, path)

    def container(self, x: Any, path: str) -> Any:
        def inside(key: Any) -> str:
            return f"{path}.{key}" if path else str(key)

        for name, (kind, encode, _) in CODECS.items():
            if type(x) is kind:
                return {"codec": name, "of": self.encode(encode(x), path)}
        if is_module(x):
            layout = x._layout
            parts = zip(layout.names, x._children, strict=True)
            return {"module": type(x).__name__, "of": {name: self.encode(y, inside(name)) for name, y in parts}}
        if type(x) in (list, tuple, deque):
            items = [self.encode(y, inside(i)) for i, y in enumerate(x)]
            return {type(x).__name__: items} | ({"maxlen": x.maxlen} if isinstance(x, deque) else {})
        if type(x) in (dict, OrderedDict):
            pairs = [[self.encode(key, inside("key")), self.encode(y, inside(key))] for key, y in x.items()]
            return {type(x).__name__: pairs}
        if isinstance(x, tuple) and hasattr(x, "_fields"):
            fields = {name: self.encode(getattr(x, name), inside(name)) for name in x._fields}
            return {"namedtuple": f"{type(x).__module__}:{type(x).__qualname__}", "of": fields}
        raise ArgumentTypeError(
            f"save: {path or 'the value'} is {x!r} of type {type(x).__name__}, which has no form in a file. Save tensors, "
            "numbers, text, None, and lists, tuples, dicts, named tuples and Modules of them."
        )


def _encode_simple(x: Any) -> Any:
    if type(x) is complex:
        return {"complex": [x.real.hex(), x.imag.hex()]}
    if type(x) is bytes:
        return {"bytes": base64.b64encode(x).decode()}
    if type(x) is ParamId:
        return {"ParamId": str(x)}
    if isinstance(x, np.dtype):
        return {"dtype": x.name}
    return None


# --- reading


class _Reader:
    def __init__(self, reader: Reader, device: Device | None):
        self.reader = reader
        self.device = device or Device.default()
        self.params: dict[str, Any] = {}

    def tensor(self, name: str) -> Any:
        array = self.reader[name]
        return self.device.lift(self.device.base.put(array, array.dtype, f"load({name})"))

    def decode(self, x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        kind = next(iter(x))
        try:
            make = _DECODERS[kind]
        except KeyError:
            raise RecordError(
                f"{self.reader.path} has a {kind!r} in it, which this version of functad does not know."
            ) from None
        return make(self, x)

    def param(self, x: Any) -> Any:
        id = x["id"]
        if id not in self.params:
            self.params[id] = wrap(as_leaf(self.tensor(x["param"]), x["frozen"]), Mark(ParamId(id), x["frozen"]))
        return self.params[id]

    def named(self, x: Any) -> Any:
        kind = _find(x["namedtuple"], str(self.reader.path))
        fields = {name: self.decode(y) for name, y in x["of"].items()}
        if set(fields) != set(kind._fields):
            raise RecordError(
                f"{self.reader.path} has {x['namedtuple']} with the fields {', '.join(fields)}; the class now has "
                f"{', '.join(kind._fields)}. Pass like= with a value of the structure of the file."
            )
        return kind(**fields)


_LIKE = (
    "fd.load(path, like=value) makes Modules, with a value of the structure that was saved, such as {'model': model}"
)


class _SavedModule(dict[str, Any]):
    """What was in a Module, by path, until `like` says which Module it is."""

    kind = ""

    def __repr__(self) -> str:
        held = f"{len(self)} field{'s' * (len(self) != 1)}"
        return f"<what was saved of a {self.kind}, {held}; {_LIKE}>"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UnknownAttributeError(f"this is what was saved of a {self.kind}, and no Module: {_LIKE}.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raise: there is no code in the file."""
        raise ArgumentTypeError(f"this is what was saved of a {self.kind}, and no Module: {_LIKE}.")


def _module(reader: _Reader, x: Any) -> Any:
    out = _SavedModule({name: reader.decode(y) for name, y in x["of"].items()})
    out.kind = x["module"]
    return out


def _key(reader: _Reader, x: Any) -> Any:
    return jax.random.wrap_key_data(jnp.asarray(reader.reader[x["key"]]), impl=x["impl"])


_DECODERS: dict[str, Callable[[_Reader, Any], Any]] = {
    "int": lambda r, x: int(x["int"]),
    "float": lambda r, x: float.fromhex(x["float"]),
    "complex": lambda r, x: complex(*map(float.fromhex, x["complex"])),
    "bytes": lambda r, x: base64.b64decode(x["bytes"]),
    "ParamId": lambda r, x: ParamId(x["ParamId"]),
    "dtype": lambda r, x: dtypes.parse(x["dtype"], "load"),
    "param": _Reader.param,
    "tensor": lambda r, x: r.tensor(x["tensor"]),
    "jax": lambda r, x: jnp.asarray(r.reader[x["jax"]]),
    "key": _key,
    "numpy": lambda r, x: r.reader[x["numpy"]].copy(),
    "scalar": lambda r, x: r.reader[x["scalar"]][()],
    "codec": lambda r, x: CODECS[x["codec"]][2](r.decode(x["of"])),
    "module": _module,
    "list": lambda r, x: [r.decode(y) for y in x["list"]],
    "tuple": lambda r, x: tuple([r.decode(y) for y in x["tuple"]]),
    "deque": lambda r, x: deque([r.decode(y) for y in x["deque"]], x["maxlen"]),
    "dict": lambda r, x: {r.decode(key): r.decode(y) for key, y in x["dict"]},
    "OrderedDict": lambda r, x: OrderedDict((r.decode(key), r.decode(y)) for key, y in x["OrderedDict"]),
    "namedtuple": _Reader.named,
}


def _find(place: str, path: str) -> Any:
    """A named tuple's class; nothing is imported that the program does not know."""
    module, _, name = place.partition(":")
    if module not in sys.modules and module.partition(".")[0] in _TRUSTED:
        importlib.import_module(module)
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and hasattr(found, "_fields")):
        raise RecordError(
            f"{path} has a named tuple {place} in it, and there is no such class now. Import {module} first, or pass like= "
            "with a value of the structure of the file."
        )
    return found


# --- into what is there


def _refill(like: Any, found: Any, path: str) -> Any:
    """`found` with the devices, dtypes, ids and classes of `like`."""
    if is_module(like):
        if not isinstance(found, _SavedModule):
            raise _unlike(like, found, path)
        return _module_like(like, found, path)
    if isinstance(found, _SavedModule):
        raise _unlike(like, found, path)
    for kind, take, make in CODECS.values():
        if type(like) is kind:
            if type(found) is not kind:
                raise _unlike(like, found, path)
            return make(_refill(take(like), take(found), path))
    if isinstance(like, Handle):
        if not isinstance(found, (Handle, np.ndarray, jax.Array)):
            raise _unlike(like, found, path)
        return _tensor_like(like, found, path)
    if isinstance(like, jax.Array) and isinstance(found, (jax.Array, Handle, np.ndarray)):
        if found.shape != like.shape:
            raise _unlike(like, found, path)
        return found.jax() if isinstance(found, Handle) else found  # type: ignore[attr-defined]  # Tensor's
    opened = tree.one_level(like)
    if opened is None:
        if type(like) is not type(found) and not (isinstance(like, (int, float)) and isinstance(found, (int, float))):
            raise _unlike(like, found, path)
        return found
    if type(like) is type(found) and _is_plain(like) and _is_plain(found):  # a history may have grown
        return found
    other = tree.one_level(found)
    if other is None or list(map(str, opened[1])) != list(map(str, other[1])):
        raise _unlike(like, found, path)
    parts = [
        _refill(a, b, f"{path}.{key}" if path else str(key))
        for key, a, b in zip(opened[1], opened[0], other[0], strict=True)
    ]
    return opened[2](parts)


def _is_plain(x: Any) -> bool:
    """Whether a value is a list or dict, of such and of numbers and text alone: nothing that `like` could say more of."""
    if type(x) in (list, dict):
        return all(_is_plain(y) for y in (x.values() if type(x) is dict else x))
    return x is None or isinstance(x, (bool, int, float, complex, str, bytes))


def _module_like(like: Any, found: _SavedModule, path: str) -> Any:
    flat: dict[str, Any] = {}
    _collect(found, "", flat)
    try:
        return load_into(like, flat)[0]
    except RecordError as error:
        raise RecordError(f"load: {path or 'the value'}: {error}") from None


def _collect(found: _SavedModule, prefix: str, flat: dict[str, Any]) -> None:
    for name, x in found.items():
        if isinstance(x, _SavedModule):
            _collect(x, f"{prefix}{name}.", flat)
        else:
            flat[prefix + name] = x


def _tensor_like(like: Any, found: Any, path: str) -> Any:
    array = found.numpy() if isinstance(found, Handle) else np.asarray(found)  # type: ignore[attr-defined]
    if array.shape != like.shape or dtypes.is_inexact(array.dtype) != dtypes.is_inexact(like.dtype):
        raise _unlike(like, found, path)
    device = like.device
    new = device.lift(device.base.put(array.astype(like.dtype), like.dtype, "load"))
    if type(like) is Param:
        return wrap(own_leaf(new, like.is_frozen), like.mark)
    return new.require_grad() if like.is_require_grad else new


def _unlike(like: Any, found: Any, path: str) -> RecordError:
    def what(x: Any) -> str:
        if isinstance(x, _SavedModule):
            return f"a Module {x.kind}"
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            return f"{x.dtype}{list(x.shape)}"
        opened = tree.one_level(x) if x is not None else None
        return f"{type(x).__name__}" + (f" with {', '.join(map(str, opened[1]))}" if opened else "")

    return RecordError(f"load: {path or 'the value'} is {what(found)} in the file, and {what(like)} in like=.")


def _quantized(parts: Any) -> QuantTensor:
    values, bits, block, of, transposed = parts
    return QuantTensor(values, bits, QuantScheme(block=block), of, transposed)


CODECS["QuantTensor"] = (
    QuantTensor,
    lambda q: (q._values, q._bits, q.scheme.block, q._of, q._transposed),
    _quantized,
)
