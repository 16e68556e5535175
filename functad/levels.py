"""Levels: which interpreter an operation belongs to when transforms nest.

A level is a pair `(depth, order)`, compared in that order. The base is `(0, 0)`; a functional
transform opens `(1 + depth of the open ones, 0)`; a tensor on an autodiff device lives at
`(depth open when it was made, 1..order)`. The highest level among an op's inputs runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeAlias

Level: TypeAlias = tuple[int, int]

BASE: Level = (0, 0)

_depth: ContextVar[int] = ContextVar("functad_depth", default=0)
_regions: ContextVar[tuple[tuple[object, int], ...]] = ContextVar("functad_unrecorded_regions", default=())
_unrecorded: ContextVar[int] = ContextVar("functad_unrecorded_depth", default=-1)


def open_depth() -> int:
    """The number of functional transforms open in this context."""
    return _depth.get()


class deeper(AbstractContextManager[Level]):
    """Open one more transform; its level is free again when the block ends, however it ends.

    Its depth is more than `above`, that of levels which have ended but whose tensors are met again.
    """

    __slots__ = ("_above", "_token")

    def __init__(self, above: int = 0):
        self._above = above

    def __enter__(self) -> Level:
        depth = max(_depth.get(), self._above) + 1
        self._token = _depth.set(depth)
        return (depth, 0)

    def __exit__(self, *exc: object) -> None:
        _depth.reset(self._token)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Stop every tape that is open now; transforms opened inside record as usual."""
    region = (object(), _depth.get())
    _set_regions((*_regions.get(), region))
    try:
        yield
    finally:  # by name, not by token: generators may leave their regions in another order
        _set_regions(tuple(r for r in _regions.get() if r[0] is not region[0]))


def _set_regions(regions: tuple[tuple[object, int], ...]) -> None:
    _regions.set(regions)
    _unrecorded.set(max((depth for _, depth in regions), default=-1))


def is_recording(level: Level) -> bool:
    """Whether a tape at `level` records in this context."""
    return level[0] > _unrecorded.get()
