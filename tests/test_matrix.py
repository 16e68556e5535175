"""Every op of the table against every property: an op that is declared is tested here, with no line of its own."""

from __future__ import annotations

import pytest

from functad.errors import CheckFailedError
from functad.ops import TABLE
from functad.testing.properties import PROPERTIES, applicable

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("eig", "jax"): "JAX has no derivative of eigenvectors unless asked for one",
    ("gammainc_slope", "jax"): "JAX has no second derivative of igamma in a, in any direction",
    ("nextafter", "jax"): "JAX has no derivative of nextafter",
    ("polygamma", "jax"): "JAX has no derivative of zeta",
    ("spence", "jax"): "JAX's derivative of spence is NaN above 1",
    ("zeta", "jax"): "JAX has no derivative of zeta",
}
"""(op, property) that cannot hold, and why; one that starts to hold fails until its line is gone."""


def _matrix() -> list[object]:
    cases = []
    for op in TABLE.values():
        for name in applicable(op):
            reason = EXCEPTIONS.get((op.name, name))
            marks = [pytest.mark.xfail(reason=reason, raises=CheckFailedError, strict=True)] if reason else []
            cases.append(pytest.param(op, name, id=f"{op.name}-{name}", marks=marks))
    return cases


@pytest.mark.parametrize(("op", "name"), _matrix())
def test_property(op, name):
    PROPERTIES[name](op, None, 0)


def test_exceptions_name_ops_and_properties():
    unknown = [key for key in EXCEPTIONS if key[0] not in TABLE or key[1] not in PROPERTIES]
    assert not unknown
