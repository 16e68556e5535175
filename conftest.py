"""Examples in docstrings run as if a user had typed them, not as lines of the module that they stand in."""

import builtins

import pytest


@pytest.fixture(autouse=True, scope="session")
def _typed_by_a_user(doctest_namespace):
    """Names of Python's are Python's there, though the module may have its own `round`; ops are the user's."""
    names = {name: value for name, value in vars(builtins).items() if not name.startswith("_")}
    doctest_namespace.update(names, __name__="__main__")
