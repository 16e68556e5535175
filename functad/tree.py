"""Pytrees: the one place that talks to optree and `jax.tree_util`.

A pytree is a nest of tuples, lists, dicts, named tuples, dataclasses registered with either
library, with arrays and other values as leaves. `None` has no leaf, as in JAX.
"""

from __future__ import annotations

import builtins
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import jax
import numpy as np
import optree

from functad.dispatch import Handle
from functad.errors import StructureError
from functad.hints import missing_name
from functad.keywords import explain

__all__ = ["flatten", "is_leaf", "leaves", "map", "paths", "register", "unflatten"]

Structure = optree.PyTreeSpec
_NAMESPACE = "functad"
_CUSTOM = "CustomTreeNode("
_LONGEST = 400
_MIXED = (dict, OrderedDict, defaultdict, deque)
_PLAIN = (Handle, np.ndarray, float, int, str)
_is_tensor = Handle.__instancecheck__  # a C function: quicker than to look a type up and not find it
_leaf_types: WeakSet[type] = WeakSet()
_seen: set[type] = set()  # types of leaves that are plain


def flatten(tree: Any) -> tuple[list[Any], Structure]:
    """The leaves of a pytree and its structure; dicts in the order of their sorted keys, as in JAX.

    >>> import functad as fd
    >>> leaves, structure = fd.tree.flatten({"w": [1.0, 2.0], "b": None})
    >>> leaves, structure.num_leaves
    ([1.0, 2.0], 2)
    """
    found: tuple[list[Any], Structure] = optree.tree_flatten(tree, _is_tensor, none_is_leaf=False, namespace=_NAMESPACE)
    if _seen.issuperset(builtins.map(type, found[0])):
        return found
    for x in found[0]:
        if isinstance(x, _PLAIN):
            _seen.add(type(x))
        elif type(x) not in _leaf_types and _adopt(x):
            return flatten(tree)
    return found


def flatten_known(tree: Any) -> tuple[list[Any], Structure]:
    """`flatten`, of a tree in which all types of nodes are known."""
    return optree.tree_flatten(tree, _is_tensor, none_is_leaf=False, namespace=_NAMESPACE)


def leaves_of(structure: Structure) -> Callable[[Any], list[Any]]:
    """What finds the leaves of trees of one structure, all types of which are known; raises `ValueError` for others.

    What it finds where a leaf should be may still be a tree.
    """

    def compare(tree: Any) -> list[Any]:
        found, other = flatten_known(tree)
        if other != structure:
            raise ValueError("another structure")
        return found

    return compare if _has_dicts(structure) else structure.flatten_up_to


def _has_dicts(structure: Structure) -> bool:
    """Whether dicts or deques are in it, which optree takes for one another there."""
    return structure.type in _MIXED or any(builtins.map(_has_dicts, structure.children()))


def _adopt(x: Any) -> bool:
    """Whether `x` is a leaf only because optree does not know its type, and JAX does; now both do."""
    if jax.tree_util.all_leaves([x]):
        _leaf_types.add(type(x))
        return False
    optree.register_pytree_node(
        type(x),
        lambda node: jax.tree.flatten(node, is_leaf=lambda y: y is not node),
        jax.tree.unflatten,
        namespace=_NAMESPACE,
    )
    return True


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """The pytree of a structure and its leaves.

    >>> import functad as fd
    >>> leaves, structure = fd.tree.flatten({"w": [1.0, 2.0], "b": (3.0,)})
    >>> fd.tree.unflatten(structure, [10 * x for x in leaves])
    {'w': [10.0, 20.0], 'b': (30.0,)}
    """
    return structure.unflatten(leaves)


def map(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `fn` to the leaves of pytrees of one structure.

    >>> import functad as fd
    >>> fd.tree.map(lambda w, g: w - 0.5 * g, {"w": [1.0, 2.0]}, {"w": [2.0, 0.0]})
    {'w': [0.0, 2.0]}
    """
    flatten(tree)  # learns the types in it
    return optree.tree_map(fn, tree, *rest, none_is_leaf=False, namespace=_NAMESPACE)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a pytree.

    >>> import functad as fd
    >>> fd.tree.leaves({"w": [1.0, 2.0], "b": None})
    [1.0, 2.0]
    """
    return flatten(tree)[0]


def paths(tree: Any) -> list[str]:
    """The leaves' places as Python would index them.

    >>> import functad as fd
    >>> fd.tree.paths({"w": [1.0, 2.0]}), fd.tree.paths(fd.nn.Linear(2, 1))
    (["['w'][0]", "['w'][1]"], ['.weight', '.bias'])
    """
    return paths_of(flatten(tree)[1])


def paths_of(structure: Structure) -> list[str]:
    """The places of a structure's leaves as Python would index them: `['w'][0]`."""
    return [accessor.codify("") for accessor in structure.accessors()]


def is_leaf(x: Any) -> bool:
    """Whether `x` is a leaf by itself (None is none).

    >>> import functad as fd
    >>> [fd.tree.is_leaf(x) for x in (1.0, fd.ones(2), [1.0], None)]
    [True, True, False, False]
    """
    return optree.tree_is_leaf(x, none_is_leaf=False, namespace=_NAMESPACE)


def holds(tree: Any, kind: Callable[[Any], bool]) -> bool:
    """Whether a node of some kind is in a pytree."""
    try:
        found = optree.tree_leaves(tree, is_leaf=kind, none_is_leaf=False, namespace=_NAMESPACE)
    except (TypeError, ValueError):  # not a pytree
        return False
    return any(kind(x) for x in found)


def one_level(x: Any) -> tuple[list[Any], tuple[Any, ...], Callable[[Sequence[Any]], Any]] | None:
    """The children of a container, the keys it has them under, and how to make it of others; None for a leaf."""
    if x is None or isinstance(x, _PLAIN) or (is_leaf(x) and not (type(x) not in _leaf_types and _adopt(x))):
        return None
    children, metadata, keys, make = optree.tree_flatten_one_level(x, none_is_leaf=False, namespace=_NAMESPACE)
    return children, keys, lambda parts: make(metadata, parts)


class Place(optree.PyTreeEntry):
    """Where a child of a registered class is: an attribute, and the keys within it: `.layers[0]`."""

    __slots__ = ()

    def __call__(self, node: Any) -> Any:
        """What is there in `node`."""
        name, *keys = self.entry if isinstance(self.entry, tuple) else (self.entry,)
        child = getattr(node, name)
        for key in keys:
            child = getattr(child, key) if isinstance(key, str) and hasattr(child, key) else child[key]
        return child

    def codify(self, node: str = "") -> str:
        """The place as code."""
        return node + written(self.entry)


def written(place: Any) -> str:
    """An attribute (and the keys within it) as code."""
    if not isinstance(place, tuple):
        return f".{place}"
    return f".{place[0]}" + "".join([f"[{key!r}]" for key in place[1:]])


def register(kind: type, flatten: Callable[[Any], Any], unflatten: Callable[[Any, Any], Any]) -> None:
    """Make a class known to both libraries: `flatten` gives the children, what is static, and the children's places.

    >>> import functad as fd
    >>> class Pair:
    ...     def __init__(self, a, b):
    ...         self.a, self.b = a, b
    >>> fd.tree.register(Pair, lambda p: ((p.a, p.b), None, ("a", "b")), lambda static, children: Pair(*children))
    >>> fd.grad(lambda p: p.a * p.b)(Pair(2.0, 3.0)).a.item()
    3.0
    """
    everywhere = optree.registry.__GLOBAL_NAMESPACE
    optree.register_pytree_node(kind, flatten, unflatten, path_entry_type=Place, namespace=everywhere)

    def with_keys(node: Any) -> Any:
        children, static, places = flatten(node)
        keys = [jax.tree_util.GetAttrKey(written(place)[1:]) for place in places]
        return tuple(zip(keys, children, strict=True)), static

    jax.tree_util.register_pytree_with_keys(kind, with_keys, unflatten, lambda node: flatten(node)[:2])


def shown(structure: Structure) -> str:
    """A structure in a message: `{'w': *}`, a class with its fields as `Linear[training](*, *)`."""
    text = str(structure).removeprefix("PyTreeSpec(").removesuffix(")").partition(", namespace=")[0]
    text = text.removesuffix(", NoneIsLeaf")
    while (start := text.rfind(_CUSTOM)) >= 0:  # the last one has no other within
        depth, children, end = 0, 0, start + len(_CUSTOM)
        while end < len(text) and depth >= 0:
            if depth == 0 and text[end] == "[":
                children = end
            depth += (text[end] in "([{") - (text[end] in ")]}")
            end += 1
        name = text[start + len(_CUSTOM) : children].removesuffix(", ")
        text = f"{text[:start]}{name}({text[children + 1 : end - 2]}){text[end:]}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def up_to(structure: Structure, tree: Any, where: str) -> list[Any]:
    """What stands in `tree` at the leaves of `structure`."""
    try:
        return structure.flatten_up_to(tree)
    except ValueError:
        raise StructureError(
            f"{where}: expected the structure {shown(structure)}, got {shown(flatten(tree)[1])}."
        ) from None


def spread(prefix: Any, structure: Structure, tree: Any, name: str, where: str) -> list[Any]:
    """The entry of `prefix` for each leaf of `tree`; None is an entry, and one may stand for a whole subtree."""
    entries, outline = optree.tree_flatten(prefix, none_is_leaf=True, namespace=_NAMESPACE)
    if len(entries) == 1 and outline.type is None:
        return entries * structure.num_leaves
    try:
        parts = outline.flatten_up_to(tree)
    except ValueError:
        raise StructureError(
            f"{where}: {name}={prefix!r} does not fit the structure {shown(structure)}: each entry must stand for a whole "
            f"part of it.{_misfit(prefix, tree, name)}"
        ) from None
    return [entry for entry, part in zip(entries, parts, strict=True) for _ in flatten(part)[0]]


def _misfit(prefix: Any, tree: Any, name: str) -> str:
    """Where two trees part that ought to be alike down to the leaves of the first, as a sentence."""
    ours = one_level(prefix)
    if ours is None:
        return ""
    theirs = one_level(tree)
    if theirs is None or type(prefix) is not type(tree):
        return f" {name} is a {type(prefix).__name__} where there is {'one leaf' if theirs is None else f'a {type(tree).__name__}'}."
    if list(ours[1]) != list(theirs[1]):
        return f" {name} has the keys {list(ours[1])} where there are {list(theirs[1])}."
    found = (_misfit(a, b, f"{name}[{key!r}]") for key, a, b in zip(ours[1], ours[0], theirs[0], strict=True))
    return next(filter(None, found), "")


def match(structure: Structure, tree: Any, where: str) -> list[Any]:
    """The leaves of `tree`, which must have `structure`."""
    found, other = flatten(tree)
    if other != structure:
        raise StructureError(f"{where}: expected the structure {shown(structure)}, got {shown(other)}.")
    return found


def flatten_as_jax(tree: Any) -> tuple[list[Any], Any]:
    """The leaves of a pytree of JAX, with tensors as leaves, and its structure."""
    return jax.tree.flatten(tree, is_leaf=lambda x: isinstance(x, Handle))


explain(globals(), __all__)


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__"]


if not TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise missing_name(__name__, name, __dir__())
