"""The default generator's state: a seed and the number of draws so far, one pair per process.

Plain numbers, so that this module lies under everything that draws or runs functions again;
`functad.random.draw_key` makes keys of them.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Draw(NamedTuple):
    """One draw: the key is `fold_in(key(seed), number)`."""

    seed: int
    number: int


class Generator:
    """Counts draws; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seed = secrets.randbits(32)
        self._number = 0

    def seed(self, seed: int) -> None:
        """Start again from `seed`."""
        with self._lock:
            self._seed, self._number = seed, 0

    def draw(self) -> Draw:
        """The next draw."""
        with self._lock:
            drawn = Draw(self._seed, self._number)
            self._number += 1
            return drawn

    def known(self) -> bool:
        """Whether the next draw was made before."""
        return False


class _Replay:
    """The draws of a block of code that may be run again: the first run's, then new ones."""

    def __init__(self, log: list[Draw], again: bool, above: Generator | _Replay):
        self._log = log
        self.again = again
        self.above = above
        self._place = 0

    def seed(self, seed: int) -> None:
        """As the block says, but once only."""
        if not self.again:
            self.above.seed(seed)

    def draw(self) -> Draw:
        """What was drawn here before, or the next draw from outside the block."""
        if not self.known():
            self._log.append(self.above.draw())
        self._place += 1
        return self._log[self._place - 1]

    def known(self) -> bool:
        """Whether the next draw was made before."""
        return self._place < len(self._log)


_current: ContextVar[Generator | _Replay | None] = ContextVar("functad_generator", default=None)
_mapped: ContextVar[str | None] = ContextVar("functad_draws_refused", default=None)

_process = Generator()


def current() -> Generator | _Replay:
    """What draws in this context come from."""
    return _current.get() or _process


def again(since: Generator | _Replay) -> bool:
    """Whether a block that began after draws came from `since` is run again now."""
    now = current()
    while now is not since and isinstance(now, _Replay):
        if now.again:
            return True
        now = now.above
    return False


@contextmanager
def replaying(log: list[Draw], again: bool) -> Iterator[None]:
    """Make the draws in `log` first; those beyond it are appended. `again` says that the block ran before."""
    token = _current.set(_Replay(log, again, current()))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """A block in which one key would have to be many; `what` is the transform that maps."""
    token = _mapped.set(what)
    try:
        yield
    finally:
        _mapped.reset(token)


def refused() -> str | None:
    """The transform that makes draws here meaningless, if there is one."""
    return _mapped.get()
