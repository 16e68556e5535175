"""The tensors of Modules in files: by path, in another dtype, in part, from other libraries under other names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from functad import dtypes
from functad.dispatch import Handle
from functad.errors import ArgumentError, ArgumentTypeError, DTypeError, RecordError
from functad.module.layout import Found, is_module, rebuild, walk
from functad.param import Mark, own_leaf
from functad.records.format import Array, Reader, write
from functad.tensor import Tensor

_MOST_LISTED = 12

Transform = Callable[[Array], Array]
Renamed = "str | None | tuple[str | None, Transform | None]"


@dataclass(frozen=True)
class LoadReport:
    """What came of loading: paths of the model, and names of the file that belong nowhere.

    >>> import functad as fd
    >>> _, report = fd.load_into(fd.nn.Linear(2, 1), {"weight": fd.ones((1, 2)), "scale": fd.ones(1)}, strict=False)
    >>> report.complete, report.loaded, report.missing, report.unexpected
    (False, ['weight'], ['bias'], ['scale'])
    """

    loaded: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatched: dict[str, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether every tensor was loaded and nothing was left over."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} loaded"]
        for what, names in (("missing in the file", self.missing), ("unexpected in the file", self.unexpected)):
            if names:
                parts.append(f"{what}: {_listed(names)}")
        if self.mismatched:
            parts.append("mismatched: " + _listed([f"{name} ({why})" for name, why in self.mismatched.items()]))
        return "; ".join(parts)


def _listed(names: list[str]) -> str:
    rest = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")


# --- writing


def save(module: Any, path: Any, dtype: Any = None) -> None:
    """Write a Module's tensors by path, a shared one once."""
    wanted = None if dtype is None else _float(dtype, "save")
    arrays: dict[str, Array] = {}
    shared: dict[str, str] = {}
    ids: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for x in walk(module):
        if x.path in arrays or x.path in shared:
            raise RecordError(
                f"save: two tensors have the path {x.path!r} (a dict key with a dot in it); rename one of them."
            )
        if x.mark is not None and x.mark.id in seen:
            shared[x.path] = seen[x.mark.id]
            continue
        if x.mark is not None:
            seen[x.mark.id] = x.path
            ids[x.path] = str(x.mark.id)
        array = x.value.numpy()
        arrays[x.path] = array.astype(wanted) if wanted is not None and dtypes.is_float(array.dtype) else array
    write(path, arrays, {"ids": ids, "shared": shared})


def _float(dtype: Any, where: str) -> dtypes.DType:
    wanted = dtypes.parse(dtype, where)
    if not dtypes.is_float(wanted):
        raise DTypeError(f"{where}: dtype must be a float type (it is for the floats in the file), got {wanted}.")
    return wanted


# --- reading


def load_into(
    module: Any, source: Any, strict: bool = True, names: Any = None, dtype: Any = None
) -> tuple[Any, LoadReport]:
    r"""A Module with the tensors of a file or of another library's weights, and what came of it.

    Args:
        module: the model; it stays as it is. The new one has its ids, devices and frozen parameters.
        source: a safetensors file, a mapping of names to arrays (a torch `state_dict`, where the layers of a
            Sequential may be called `0.weight` instead of `layers.0.weight`), or a nest of dicts of arrays
            (flax's params), whose keys are joined with dots.
        strict: whether every tensor of the model must be found, and nothing else.
        names: how names of the source become paths of the model: a dict, a function, or pairs
            `(regular expression, replacement)` tried in order. A name that becomes None is left out.
            With a third entry, or a pair in the place of the new name, a function of the array:
            `(r"(.*)\.kernel", r"\1.weight", numpy.transpose)`.
        dtype: of the floats: the model's by default, a dtype, or `"file"` for the file's own.

    Raises `RecordError` for a file that cannot be read, and where `strict` is not met; the model
    that was passed is never changed.

    >>> import functad as fd, numpy as np
    >>> fc = fd.nn.Linear(2, 1)
    >>> flax = {"params": {"kernel": np.ones((2, 1)), "bias": np.zeros(1)}}
    >>> rules = [(r"params\.kernel", "weight", np.transpose), (r"params\.", "")]
    >>> new, report = fd.load_into(fc, flax, names=rules)
    >>> new.weight.tolist(), report.complete
    ([[1.0, 1.0]], True)
    """
    if not is_module(module):
        raise ArgumentTypeError(
            f"load_into: expected a Module, got {type(module).__name__}; for what fd.save wrote of other values write "
            "value = fd.load(path, like=value)."
        )
    wanted = None if dtype in (None, "file") else _float(dtype, "load")
    given, whence = _given(source)
    entries = _rename(given, names)
    report = LoadReport()
    fresh: dict[Any, Any] = {}
    used: set[str] = set()
    first: dict[Any, Any] = {}
    spliced = _spliced(module)
    for x in walk(module):
        key = x.mark.id if x.mark is not None else x.path
        path = x.path if x.path in entries else _as_torch(x.path, spliced)
        entry = entries.get(path)
        if entry is None:
            if key not in fresh and not _elsewhere(module, x, entries):
                report.missing.append(x.path)
            continue
        used.add(path)
        array = entry.read()
        if key in first:
            if not np.array_equal(array, first[key], equal_nan=dtypes.is_inexact(array.dtype)):
                report.mismatched[x.path] = "shared in the model, and not the same twice in the file"
            continue
        problem = _problem(array, x.value)
        if problem:
            report.mismatched[x.path] = problem
            continue
        first[key] = array
        fresh[key] = array.astype(_dtype_of(array, x.value, wanted, dtype == "file"), copy=False)
        report.loaded.append(x.path)
    report.unexpected.extend(entry.name for path, entry in entries.items() if path not in used)
    if strict and not report.complete:
        raise RecordError(
            f"{whence} does not fit {type(module).__name__}: {report}. Pass strict=False to load what fits, or names= "
            "where names differ."
        )
    return rebuild(module, lambda x: _replaced(x, fresh)), report


def _spliced(module: Any) -> list[tuple[str, str]]:
    """What the paths of parts begin with here, and in torch, whose Sequential shows its layers as its own parts."""
    out: list[tuple[str, str]] = []
    for path, part in module.named_modules() if is_module(module) else ():
        if getattr(type(part), "_torch_splices", False):
            prefix = f"{path}." if path else ""
            names = part.names or range(len(part.layers))
            out.extend((f"{prefix}layers.{i}.", f"{prefix}{name}.") for i, name in enumerate(names))
    return out[::-1]  # the inner ones first


def _as_torch(path: str, spliced: list[tuple[str, str]]) -> str:
    for here, there in spliced:
        if path.startswith(here):
            path = there + path[len(here) :]
    return path


class _Entry(NamedTuple):
    """Something in the source: its name there, and how to read it."""

    name: str
    load: Callable[[], Any]
    transform: Transform | None

    def read(self) -> Array:
        array = _as_numpy(self.load(), self.name)
        return array if self.transform is None else np.asarray(self.transform(array))


def _given(source: Any) -> tuple[dict[str, Callable[[], Any]], str]:
    if isinstance(source, (str, os.PathLike)):
        reader = Reader(source)
        return {name: (lambda name=name: reader[name]) for name in reader.names()}, str(source)  # type: ignore[misc]
    if isinstance(source, Mapping):
        flat: dict[str, Any] = {}
        _flatten(source, "", flat)
        return {name: (lambda x=x: x) for name, x in flat.items()}, "the mapping"  # type: ignore[misc]
    raise ArgumentTypeError(
        f"load: expected a path or a mapping of names to arrays, got {type(source).__name__}. For a torch file pass "
        "torch.load(path, weights_only=True)."
    )


def _flatten(node: Mapping[Any, Any], prefix: str, flat: dict[str, Any]) -> None:
    for key, x in node.items():
        if isinstance(x, Mapping):
            _flatten(x, f"{prefix}{key}.", flat)
        elif x is not None:
            flat[f"{prefix}{key}"] = x


def _rename(given: Mapping[str, Callable[[], Any]], names: Any) -> dict[str, _Entry]:
    """The entries by path of the model."""
    rename = _renamer(names)
    out: dict[str, _Entry] = {}
    for name, read in given.items():
        new = rename(name)
        new, transform = new if isinstance(new, tuple) else (new, None)
        if new is None:
            continue
        if new in out:
            raise ArgumentError(f"load: names= makes {new!r} of both {out[new].name!r} and {name!r}.")
        out[new] = _Entry(name, read, transform)
    return out


def _renamer(names: Any) -> Callable[[str], Any]:
    if names is None:
        return lambda name: name
    if isinstance(names, Mapping):
        return lambda name: names.get(name, name)
    if callable(names):
        return names
    if isinstance(names, Iterable):
        rules = [(re.compile(rule[0]), rule[1], rule[2] if len(rule) > 2 else None) for rule in names]

        def rename(name: str) -> Any:
            transform = None
            for pattern, replacement, change in rules:
                if pattern.search(name):
                    if replacement is None:
                        return None
                    name, transform = pattern.sub(replacement, name), change or transform
            return name, transform

        return rename
    raise ArgumentTypeError(
        f"load: names must be a dict, a function, or pairs of a regular expression and what replaces it, got {names!r}."
    )


def _as_numpy(x: Any, name: str) -> Array:
    """An array of any library."""
    if isinstance(x, np.ndarray):
        return x
    if isinstance(x, Handle):
        return x.numpy()  # type: ignore[attr-defined]  # Tensor's
    if hasattr(x, "detach") and hasattr(x, "cpu"):  # torch's
        x = x.detach().cpu()
        if str(x.dtype) == "torch.bfloat16":
            return np.asarray(x.float().numpy().astype(dtypes.bfloat16))
        return np.asarray(x.numpy())
    if isinstance(x, (jax.Array, np.generic, int, float)) or hasattr(x, "__array__"):
        return np.asarray(x)
    raise ArgumentTypeError(f"load: {name!r} is {type(x).__name__}, which is no array.")


def _elsewhere(module: Any, x: Found, entries: Mapping[str, _Entry]) -> bool:
    """Whether the source has a shared parameter at another of its places."""
    return x.mark is not None and any(
        y.mark is not None and y.mark.id == x.mark.id and y.path in entries for y in walk(module)
    )


def _problem(array: Array, x: Any) -> str:
    if array.shape != x.shape:
        return f"shape {array.shape} in the file, {x.shape} in the model"
    if dtypes.is_float(array.dtype) != dtypes.is_float(x.dtype) or (array.dtype.kind == "c") != (x.dtype.kind == "c"):
        return f"{array.dtype} in the file, {x.dtype} in the model"
    return ""


def _dtype_of(array: Array, x: Any, wanted: Any, keep: bool) -> dtypes.DType:
    if wanted is not None and dtypes.is_float(x.dtype):
        return wanted
    return array.dtype if keep else x.dtype


def _replaced(found: Found, fresh: Mapping[Any, Array]) -> tuple[Any, Mark | None]:
    x, mark = found.value, found.mark
    array = fresh.get(mark.id if mark is not None else found.path)
    if array is None:
        return x, mark
    device = x.device
    new: Tensor = device.lift(device.base.put(array, array.dtype, f"load({found.path})"))
    return (own_leaf(new, mark.frozen), mark) if mark is not None else (new, None)
