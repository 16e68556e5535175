"""Every op of the table against every property: an op that is declared is tested here, with no line of its own."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from functad.errors import CheckFailedError
from functad.ops import TABLE
from functad.testing.properties import PROPERTIES, applicable

_OF_A_QUANTILE = "its derivative is that at a fixed quantile, not that of the algorithm"
_OF_A_DTYPE = "one key draws other numbers in another dtype"
_WIDE = "its function makes float32 of half types before it"
_PHASE = "the phase of a complex vector is not determined"

EXCEPTIONS: dict[tuple[str, str], str] = {
    **{
        (f"random_{name}", what): _OF_A_QUANTILE
        for name in ("dirichlet", "f", "gamma", "loggamma", "wald")
        for what in ("jax", "numeric")
    },
    **{
        (f"random_{name}", "dtypes"): _OF_A_DTYPE
        for name in ("dirichlet", "double_sided_maxwell", "f", "gamma", "loggamma", "lognormal", "wald")
    },
    **{(name, "rounding"): _WIDE for name in ("pinv", "qr", "svd")},
    ("tanh", "rounding"): "its derivative is made of the result as it was rounded",
    **{(name, "complex"): _PHASE for name in ("eig", "eigh", "svd")},
    ("gamma_slope", "jax"): "JAX has no second derivative of gamma numbers",
    ("loggamma_slope", "jax"): "JAX has no second derivative of gamma numbers",
    ("eig", "jax"): "JAX has no derivative of eigenvectors unless asked for one",
    ("gammainc_slope", "jax"): "JAX has no second derivative of igamma in a, in any direction",
    ("nextafter", "jax"): "JAX has no derivative of nextafter",
    ("polygamma", "jax"): "JAX has no derivative of zeta",
    ("scatter_mul", "jax"): "JAX has no derivative where several factors meet in one place",
    ("spence", "jax"): "JAX's derivative of spence is NaN above 1",
    ("zeta", "jax"): "JAX has no derivative of zeta",
}
"""(op, property) that cannot hold, and why; one that starts to hold fails until its line is gone."""

HOLDS_SINCE = {("nextafter", "jax"): (0, 12)}
"""The version of JAX from which on one of them holds."""


def _matrix() -> list[object]:
    cases = []
    for op in TABLE.values():
        for name in applicable(op):
            reason = EXCEPTIONS.get((op.name, name))
            holds = jax.__version_info__ >= HOLDS_SINCE.get((op.name, name), (99,))
            fails = pytest.mark.xfail(reason=reason, raises=CheckFailedError, strict=True)
            marks = [fails] if reason and not holds else []
            cases.append(pytest.param(op, name, id=f"{op.name}-{name}", marks=marks))
    return cases


@pytest.mark.parametrize(("op", "name"), _matrix())
def test_property(op, name):
    PROPERTIES[name](op, None, 0)


OPS = sorted(TABLE.values(), key=lambda op: op.name)  # before a test declares one of its own


def table() -> str:
    """The table of what each op passes, as it stands in the documentation."""
    said = [f"| `{name}` | {check.__doc__.strip().splitlines()[0]} |" for name, check in PROPERTIES.items()]
    rows, notes = [], []
    for op in OPS:
        cells = []
        for name in PROPERTIES:
            reason = EXCEPTIONS.get((op.name, name))
            if reason and reason not in notes:
                notes.append(reason)
            passes = "yes" if name in applicable(op) else ""
            cells.append(f"[{notes.index(reason) + 1}]" if reason else passes)
        kind = "smooth" if op.differentiable and op.pulls else "no derivative"
        rows.append(f"| `{op.name}` | {kind} | {op.cost.value} | {' | '.join(cells)} |")
    head = " | ".join(PROPERTIES)
    return "\n".join(
        [
            "# Ops, and what each is tested for",
            "",
            "Written by `python tests/test_matrix.py`, and compared with the tests by the tests. Every op is declared in one",
            "place with samples of its inputs; a property holds for all of them. Programs (`scan`, a compiled function) are",
            "ops too, but no array functions: they have tests of their own.",
            "",
            "| property | what holds |",
            "| --- | --- |",
            *said,
            "",
            f"| op | derivative | bound by | {head} |",
            f"| --- | --- | --- |{' --- |' * len(PROPERTIES)}",
            *rows,
            "",
            *[f"[{n}]: {note}.\n" for n, note in enumerate(notes, 1)],
        ]
    )


DOCUMENT = Path(__file__).parent.parent / "docs" / "ops.md"


def test_the_table_in_the_documentation_is_this_one():
    assert DOCUMENT.read_text() == table(), "run python tests/test_matrix.py"


def test_exceptions_name_ops_and_properties():
    unknown = [key for key in EXCEPTIONS if key[0] not in TABLE or key[1] not in PROPERTIES]
    assert not unknown


if __name__ == "__main__":
    DOCUMENT.write_text(table())
