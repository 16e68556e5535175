"""`ParamGroup`: some of the parameters of a Module, by path, by the kind of Module they are in, or by id."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from typing import Any

from functad.errors import ArgumentError, ArgumentTypeError
from functad.module.layout import Found, is_module, walk
from functad.param import Param, ParamId

Choose = Callable[[Found], bool]


class ParamGroup:
    """Parameters of a Module, for `freeze`, `unfreeze` and the optimisers.

    Args:
        which: a pattern of paths such as `"layers.*.bias"` (`*` stands for anything; a path within a
            Module that matches is in the group too, so `"encoder"` is all of the encoder), a compiled
            regular expression, a class of Modules, ids or Params, or a function of path and Param.
        path_pattern: a pattern, by name.
        module_type: a class (or several), by name.
        ids: ids or Params, by name.

    Groups combine: `a | b`, `a & b`, `~a`.

    >>> import functad as fd
    >>> model = fd.nn.Linear(2, 2, key=fd.random.key(0))
    >>> fd.ParamGroup("*bias").names(model), (~fd.ParamGroup("*bias")).names(model)
    (['bias'], ['weight'])
    """

    __slots__ = ("_choose", "_text")

    def __init__(
        self,
        which: Any = None,
        *,
        path_pattern: str | re.Pattern[str] | None = None,
        module_type: type | tuple[type, ...] | None = None,
        ids: Iterable[ParamId | Param] | None = None,
    ):
        given = [x for x in (which, path_pattern, module_type, ids) if x is not None]
        if len(given) != 1:
            raise ArgumentError(
                "ParamGroup: say in one way which parameters are meant: ParamGroup('encoder.*'), ParamGroup(nn.Linear), "
                "ParamGroup([model.fc.weight]); groups combine with |, & and ~."
            )
        self._choose, self._text = _chooser(given[0])

    @classmethod
    def of(cls, which: Any) -> ParamGroup:
        """`which` as a group, if it is none yet.

        >>> import functad as fd
        >>> fd.ParamGroup.of("*bias"), fd.ParamGroup.of(fd.nn.Linear)
        (ParamGroup('*bias'), ParamGroup(Linear))
        """
        return which if isinstance(which, ParamGroup) else cls(which)

    def __contains__(self, found: Found) -> bool:
        return self._choose(found)

    def names(self, module: Any) -> list[str]:
        """The paths of the group's parameters in a Module."""
        return [found.path for found in walk(module) if found.mark is not None and found in self]

    def ids(self, module: Any) -> set[ParamId]:
        """Their ids; raises `ArgumentError` if there are none.

        >>> import functad as fd
        >>> fc = fd.nn.Linear(2, 2)
        >>> fd.ParamGroup("bias").ids(fc) == {fc.bias.id}
        True
        """
        ids = {found.mark.id for found in walk(module) if found.mark is not None and found in self}
        if not ids:
            have = [found.path for found in walk(module) if found.mark is not None]
            listed = ", ".join(have[:8]) + (", ..." if len(have) > 8 else "")
            raise ArgumentError(
                f"{self!r} matches none of the {len(have)} parameters of {type(module).__name__}: {listed or 'it has none'}."
            )
        return ids

    def __or__(self, other: Any) -> ParamGroup:
        b = ParamGroup.of(other)
        return _made(lambda found: found in self or found in b, f"{self!r} | {b!r}")

    def __and__(self, other: Any) -> ParamGroup:
        b = ParamGroup.of(other)
        return _made(lambda found: found in self and found in b, f"{self!r} & {b!r}")

    def __invert__(self) -> ParamGroup:
        return _made(lambda found: found not in self, f"~{self!r}")

    def __repr__(self) -> str:
        return self._text


def _made(choose: Choose, text: str) -> ParamGroup:
    group = object.__new__(ParamGroup)
    group._choose, group._text = choose, text
    return group


def _chooser(which: Any) -> tuple[Choose, str]:
    if isinstance(which, re.Pattern):
        return lambda found: which.search(found.path) is not None, f"ParamGroup({which!r})"
    if isinstance(which, str) and not isinstance(which, ParamId):
        matches = re.compile(fnmatch.translate(which)).match

        def choose(found: Found) -> bool:
            parts = found.path.split(".")
            return any(matches(".".join(parts[:n])) for n in range(len(parts), 0, -1))

        return choose, f"ParamGroup({which!r})"
    kinds = which if isinstance(which, tuple) else (which,)
    if kinds and all(isinstance(kind, type) for kind in kinds):
        names = ", ".join([kind.__name__ for kind in kinds])
        return lambda found: any(isinstance(owner, kinds) for owner in found.owners), f"ParamGroup({names})"
    if callable(which) and not is_module(which) and not isinstance(which, Param):
        return lambda found: bool(which(found.path, found.value)), f"ParamGroup({which!r})"
    items = [which] if isinstance(which, (Param, ParamId)) else which
    if isinstance(items, Iterable):
        listed = list(items)
        if all(isinstance(x, (Param, ParamId)) for x in listed):
            ids = {x.id if isinstance(x, Param) else x for x in listed}
            return lambda found: found.mark is not None and found.mark.id in ids, f"ParamGroup({len(ids)} ids)"
        if all(isinstance(x, str) for x in listed):
            choices = [_chooser(x)[0] for x in listed]
            return lambda found: any(choose(found) for choose in choices), f"ParamGroup({listed})"
    if is_module(which):
        return _chooser([found.value for found in walk(which) if found.mark is not None])
    raise ArgumentTypeError(
        f"ParamGroup: expected a pattern such as 'encoder.*', a class of Modules, or Params or their ids, got {which!r}."
    )
