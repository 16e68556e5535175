"""A Module as text: the tree of its parts, and a table of the shapes they return."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from functad import tree
from functad.dispatch import Handle
from functad.errors import ArgumentError
from functad.module.layout import Layout, Nest, is_module, walk
from functad.ops.quantize import QuantTensor
from functad.param import Mark
from functad.transforms.no_grad import no_grad

watched: ContextVar[dict[int, list[str]] | None] = ContextVar("functad_watched_modules", default=None)
"""What the Modules that are called return, by the ids of the Modules, while a summary is made."""

_LONGEST = 60


def tree_repr(module: Any) -> str:
    """One line for each part."""
    count = _counted(module)
    where = ", ".join(sorted({repr(d) for d in module.devices}))
    mode = "training" if module.training else "valid"
    title = f"{_title(module)}: {', '.join(x for x in (count, mode, where) if x)}"
    return "\n".join([title, *_lines(module, "  ", "", {}, module.training)])


def _quantized(module: Any) -> Iterator[tuple[int, QuantTensor]]:
    """The quantized tensors among its own fields, with the numbers of their first children."""
    for name, nest in module._layout.nests:
        yield from _quantized_in(module.__dict__[name], nest)


def _quantized_in(value: Any, nest: Nest) -> Iterator[tuple[int, QuantTensor]]:
    if isinstance(value, QuantTensor):
        yield nest.parts[0].index, value
        return
    opened = tree.one_level(value)
    for item, part in zip(opened[0], nest.parts, strict=True) if opened is not None else ():
        if type(part) is Nest:
            yield from _quantized_in(item, part)


def _counted(module: Any) -> str:
    """Its parameters, and the quantized numbers that are none."""
    more = sum(
        q.size for _, part in module.named_modules() for _, q in _quantized(part) if isinstance(q.values, Handle)
    )
    return f"{module.num_params:,} parameters" + (f", {more:,} quantized numbers" if more else "")


def _lines(module: Any, indent: str, prefix: str, seen: dict[Any, str], training: bool) -> list[str]:
    layout: Layout = module._layout
    lines = []
    whole = dict(_quantized(module))
    for i, (name, child, mark) in enumerate(zip(layout.names, module._children, layout.marks, strict=True)):
        path = prefix + name
        if i in whole or i - 1 in whole:  # its two parts are one line
            if i in whole:
                lines.append(f"{indent}{name.rpartition('.')[0]}: {whole[i]!r}")
            continue
        if is_module(child):
            mode = "" if child.training == training else ", training" if child.training else ", valid"
            inner = _lines(child, indent + "  ", path + ".", seen, child.training)
            lines += [f"{indent}{name}: {_title(child)}{mode}", *inner]
        else:
            lines.append(f"{indent}{name}: {_leaf(child, mark, path, seen)}")
    return lines


def _title(module: Any) -> str:
    layout: Layout = module._layout
    inside = {name for name, _ in (*layout.direct, *layout.nests)}
    static = [f"{name}={_short(x)}" for name, x in layout.static.items() if name not in inside and x is not None]
    return f"{layout.kind.__name__}({', '.join(static)})" if static else layout.kind.__name__


def _leaf(x: Any, mark: Mark | None, path: str, seen: dict[Any, str]) -> str:
    if not isinstance(x, Handle):
        return _short(x)
    kind = "Param" if mark is not None else "Tensor"
    notes = [f"{kind} {x.dtype}{list(x.shape)}"]
    if mark is not None:
        if mark.frozen:
            notes.append("frozen")
        elif x.is_require_grad:  # type: ignore[attr-defined]  # Tensor's
            notes.append("require_grad")
        if mark.id in seen:
            notes.append(f"shared with {seen[mark.id]}")
        seen.setdefault(mark.id, path)
    return ", ".join(notes)


def _short(x: Any) -> str:
    text = getattr(x, "__name__", None) if callable(x) and not is_module(x) else None
    text = text or repr(x)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


# --- summary


def observe(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Module and note what it returns."""
    out = module.forward(*args, **kwargs)
    notes = watched.get()
    if notes is not None:
        notes.setdefault(id(module), []).append(_shapes(out))
    return out


def _shapes(out: Any) -> str:
    found = [f"{x.dtype}{list(x.shape)}" for x in tree.leaves(out) if isinstance(x, Handle)]
    return ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")


def summary(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A table: path and kind, parameters, what was returned."""
    if not args and not kwargs:
        raise ArgumentError("summary: pass what the model takes, for example model.summary(fd.ones((1, 784))).")
    model = module.valid()
    notes: dict[int, list[str]] = {}
    token = watched.set(notes)
    try:
        with no_grad():
            model(*args, **kwargs)
    finally:
        watched.reset(token)
    rows = [("module", "parameters", "returns")]
    for path, part in model.named_modules():
        depth = path.count(".") + 1 if path else 0
        returns = notes.get(id(part), ["-"])
        times = f" ({len(returns)} calls)" if len(returns) > 1 else ""
        label = "  " * depth + (f"{path.rpartition('.')[2]}: " if path else "") + type(part).__name__
        rows.append((label, f"{part.num_params:,}", returns[-1] + times))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{a:<{widths[0]}}  {b:>{widths[1]}}  {c}".rstrip() for a, b, c in rows]
    rule = "-" * max(len(line) for line in lines)
    ids = {x.mark.id for x in walk(model) if x.mark is not None and x.mark.frozen}
    frozen = sum(p.size for p in model.parameters() if p.id in ids)
    total = _counted(model) + (f", {frozen:,} of them frozen" if frozen else "")
    return "\n".join([lines[0], rule, *lines[1:], rule, total])
