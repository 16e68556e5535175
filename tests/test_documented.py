"""Everything public says in `help` what it does, with an example; the suite runs the examples as doctests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import functad as fd

SPACES = {
    "fd": fd,
    "fd.nn": fd.nn,
    "fd.nn.functional": fd.nn.functional,
    "fd.nn.init": fd.nn.init,
    "fd.numpy": fd.numpy,
    "fd.numpy.fft": fd.numpy.fft,
    "fd.numpy.linalg": fd.numpy.linalg,
    "fd.op": fd.op,
    "fd.optim": fd.optim,
    "fd.quant": fd.quant,
    "fd.random": fd.random,
    "fd.special": fd.special,
    "fd.testing": fd.testing,
    "fd.testing.strategies": fd.testing.strategies,
    "fd.tree": fd.tree,
}
CLASSES = [fd.Tensor, fd.Module, fd.Gradients, fd.Device, fd.ParamGroup, fd.QuantTensor, fd.optim.Optimizer]
CLASSES += [fd.optim.GradientsParams, fd.optim.GradientsAccumulator, fd.optim.OptState]


PLUMBING = {"Gradients.of", "Optimizer.made", "Module.forward"}
"""What the library calls on a container or an optimiser, and what only subclasses have."""


def example_of(thing: Any) -> bool:
    return ">>> " in (inspect.getdoc(thing) or "")


def called_by_users(thing: Any) -> bool:
    """Not what is raised (`fd.errors` says why), nor another library's type, such as those of dtypes."""
    if isinstance(thing, type):
        return thing.__module__.startswith("functad") and not issubclass(thing, BaseException)
    return callable(thing)


def public(space: Any) -> Iterator[tuple[str, Any]]:
    """What a namespace offers; of `fd.optim` without what optax documents."""
    for name in dir(space):
        if not name.startswith("_") and (space is not fd.optim or name in vars(fd.optim)):
            yield name, getattr(space, name)


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name in dir(kind):
        if not name.startswith("_") and callable(getattr(kind, name)):
            yield name, getattr(kind, name)


def forwards_to(method: Any) -> set[str]:
    """The ops that a method of a tensor is: `x.lgamma()` is `ops.gammaln(x)`."""
    names = set(inspect.unwrap(method).__code__.co_names)
    return names if names & {"ops", "namespace", "searchsorted"} else set()


@pytest.mark.parametrize("space", SPACES)
def test_everything_public_has_an_example(space):
    things = [(name, thing) for name, thing in public(SPACES[space]) if called_by_users(thing)]
    assert len(things) > 1
    assert [name for name, thing in things if not example_of(thing)] == []


def test_every_method_has_an_example():
    """Its own, that of the function which it is, or one of its class that calls it."""
    shown = {name for space in [*SPACES.values(), fd.ops] for name, thing in public(space) if example_of(thing)}
    bare = []
    for kind in CLASSES:
        texts = [inspect.getdoc(thing) or "" for thing in (kind, *(method for _, method in methods(kind)))]
        examples = "\n".join(re.findall(r"^(?:>>>|\.\.\.) .*", "\n".join(texts), re.MULTILINE))
        for name, method in methods(kind):
            called = f".{name}(" in examples
            known = called or example_of(method) or f"{kind.__name__}.{name}" in PLUMBING
            if not known and not (kind is fd.Tensor and forwards_to(method) & shown):
                bare.append(f"{kind.__name__}.{name}")
    assert bare == []


@pytest.mark.parametrize("space", SPACES)
def test_listed_arguments_are_those_of_the_signature(space):
    """Also under NumPy's names for them: `fd.numpy.roll(a, shift)` says what `a` is."""
    for name, thing in public(SPACES[space]):
        listed = re.search(r"^Args:\n((?: {4}.*\n|\n)*)", (inspect.getdoc(thing) or "") + "\n", re.MULTILINE)
        if listed is not None and called_by_users(thing):
            names = re.findall(r"^ {4}(\w+):", listed[1], re.MULTILINE)
            assert names == [x for x in inspect.signature(thing).parameters if x != "self"], name
