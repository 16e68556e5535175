"""Pytrees: the one place that talks to optree and `jax.tree_util`.

A pytree is a nest of tuples, lists, dicts, named tuples, dataclasses registered with either
library, with arrays and other values as leaves. `None` has no leaf, as in JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import optree

from functad.errors import StructureError

Structure = optree.PyTreeSpec
_NAMESPACE = "functad"


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a pytree and its structure."""
    return optree.tree_flatten(tree, none_is_leaf=False, namespace=_NAMESPACE)


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The pytree of a structure and its leaves."""
    return optree.tree_unflatten(structure, leaves)


def map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `fn` to the leaves of pytrees of one structure."""
    return optree.tree_map(fn, tree, *rest, none_is_leaf=False, namespace=_NAMESPACE)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a pytree."""
    return flatten(tree)[0]


def paths(tree: Any) -> list[str]:
    """The leaves' places as Python would index them: `['w'][0]`."""
    accessors, _, _ = optree.tree_flatten_with_accessor(tree, none_is_leaf=False, namespace=_NAMESPACE)
    return [accessor.codify("") for accessor in accessors]


def match(structure: Structure, tree: Any, where: str) -> list[Any]:
    """The leaves of `tree`, which must have `structure`."""
    found, other = flatten(tree)
    if other != structure:
        raise StructureError(f"{where}: expected the structure {structure}, got {other}.")
    return found
