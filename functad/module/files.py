"""Modules in files."""

from __future__ import annotations

from typing import Any

from functad.errors import FunctadWarning
from functad.records import weights
from functad.source import warn


class PartialLoadWarning(FunctadWarning):
    """A file that did not fit a model in every part; `report` says where."""

    def __init__(self, message: str, report: weights.LoadReport | None = None):
        super().__init__(message)
        self.report = report


def save(module: Any, path: Any, dtype: Any) -> None:
    """Write the tensors of a Module."""
    weights.save(module, path, dtype)


def load(module: Any, path: Any, strict: bool, names: Any, dtype: Any) -> Any:
    """The Module with the tensors of a file; what did not fit is said in a warning."""
    new, report = weights.load_into(module, path, strict, names, dtype)
    if not report.complete:
        warn(PartialLoadWarning(f"{path}: {report}", report))
    return new
