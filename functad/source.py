"""Where the user's code stands, for messages."""

from __future__ import annotations

import sys
import warnings
from types import CodeType, FrameType
from typing import TypeAlias

OURS = __file__.rpartition("/")[0] + "/"

_LIBRARIES = ("jax", "numpy", "optree", "scipy", "functools", "contextlib")

Place: TypeAlias = tuple[CodeType, int]


def user_place(depth: int = 2) -> Place:
    """The innermost line outside functad, as cheaply as it can be noted."""
    frame = sys._getframe(depth)
    while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code, frame.f_lasti


def warn(message: str | Warning, kind: type[Warning] = UserWarning) -> None:
    """A warning that points at the innermost line outside functad."""
    frame, level = sys._getframe(1), 2
    while frame.f_code.co_filename.startswith(OURS) and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, kind, stacklevel=level)


def line_of(place: Place) -> str:
    """A place as `file:line`."""
    code, offset = place
    line = next((n for start, end, n in code.co_lines() if start <= offset < end), None)
    return f"{code.co_filename}:{line or code.co_firstlineno}"


def user_line() -> str:
    """The innermost line outside functad, and what it is built on, as `file:line`."""
    frame = sys._getframe(1)
    while _is_library(frame) and frame.f_back is not None:
        frame = frame.f_back
    return line_of((frame.f_code, frame.f_lasti))


def _is_library(frame: FrameType) -> bool:
    name = frame.f_code.co_filename
    return name.startswith(OURS) or str(frame.f_globals.get("__name__")).partition(".")[0] in _LIBRARIES
