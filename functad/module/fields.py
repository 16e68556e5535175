"""Declaring the fields of a Module."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from functad.module.layout import Spec

_PARAM = re.compile(r"\bParam\b")
_TENSOR = re.compile(r"\bTensor\b")


def field(
    *,
    static: bool = False,
    default: Any = dataclasses.MISSING,
    default_factory: Callable[[], Any] | Any = dataclasses.MISSING,
    init: bool = True,
    kw_only: bool = False,
) -> Any:
    """What is to be said of a field of a Module besides its type.

    Args:
        static: it holds no tensor, and is compared when structures are (what holds no tensor is
            static anyway; saying so makes a tensor in it an error).
        default: its value when the caller gives none.
        default_factory: a function that makes that value.
        init: whether the automatic `__init__` takes it; if not, `__post_init__` assigns it.
        kw_only: whether it is passed by keyword only.

    >>> import functad as fd
    >>> class Scale(fd.Module):
    ...     factor: fd.Param
    ...     power: int = fd.field(static=True, default=1)
    ...
    ...     def forward(self, x):
    ...         return x * self.factor**self.power
    >>> Scale(fd.tensor(3.0), power=2)(2.0).item()
    18.0
    """
    given = {"default": default, "default_factory": default_factory}
    chosen: dict[str, Any] = {k: v for k, v in given.items() if v is not dataclasses.MISSING}
    return dataclasses.field(init=init, kw_only=kw_only, metadata={"static": static}, **chosen)


def specs_of(kind: Any) -> dict[str, Spec]:
    """What a class and its bases declare of their fields."""
    return {
        f.name: Spec(bool(f.metadata.get("static", False)), _holds_params(f.type)) for f in dataclasses.fields(kind)
    }


def _holds_params(annotation: Any) -> bool:
    """Whether a field's type speaks of Params and of no other tensors: `Param`, `Param | None`, `list[Param]`."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if not isinstance(annotation, (str, type)) or not text or "[" in str(annotation):
        text = str(annotation)
    return bool(_PARAM.search(text)) and not _TENSOR.search(text.replace("functad.param", ""))
