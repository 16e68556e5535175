"""The shape of the code base: what imports what, what an op must say, how far `x * y` is from XLA."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import functad as fd
from functad.ops import TABLE, mul
from functad.transforms.forward import jvp
from functad.transforms.vmap import vmap

ROOT = Path(fd.__file__).parent

LAYERS = (
    (
        "culprits",
        "errors",
        "foreign",
        "foreign_arguments",
        "foreign_attributes",
        "generator",
        "habits",
        "hints",
        "keywords",
        "levels",
        "source",
    ),
    ("dtypes", "device"),
    ("dispatch",),
    ("tree",),
    ("ops",),
    ("printing", "protocols", "operators", "methods", "values"),
    ("tensor",),
    ("tape", "gradients"),
    ("backends",),
    ("creation", "profile"),
    ("param",),
    ("transforms",),
    ("module", "records", "op", "random", "special", "numpy", "quant"),
    ("nn",),
    ("optim",),
    ("testing",),
)
"""Lowest first. A module imports from its own layer or from lower ones."""

UPSTREAM = ("jax", "numpy", "optree", "ml_dtypes", "scipy")


def module_name(path: Path) -> str:
    return ".".join(("functad", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


FILES = {module_name(path): path for path in sorted(ROOT.rglob("*.py"))}
SOURCES = {name: ast.parse(path.read_text(), str(path)) for name, path in FILES.items()}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that runs: not what `if TYPE_CHECKING:` guards."""
    for node in ast.iter_child_nodes(tree):
        guarded = isinstance(node, ast.If) and any(
            isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n).endswith("TYPE_CHECKING")
            for n in ast.walk(node.test)
        )
        for part in node.orelse if guarded else [node]:
            yield part
            yield from statements(part)


def imported(node: ast.AST) -> list[str]:
    """The modules, and names in them, that an import statement brings."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        return [f"{node.module}.{alias.name}" for alias in node.names]
    return []


def own_module(name: str) -> str | None:
    """The functad module that an imported name is, or is defined in."""
    if name.partition(".")[0] != "functad":
        return None
    while name not in FILES:
        name = name.rpartition(".")[0]
    return name


GRAPH = {
    name: {own for node in statements(tree) for item in imported(node) if (own := own_module(item))}
    for name, tree in SOURCES.items()
}


def layer(name: str) -> int:
    part = name.split(".")[1]
    found = [i for i, names in enumerate(LAYERS) if part in names]
    assert found, f"{name} is in no layer: give it a place in LAYERS"
    return found[0]


def test_no_import_cycles():
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, "import cycle: " + " -> ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in sorted(GRAPH[name]):
                visit(other, (*path, name))
            done.add(name)

    for name in GRAPH:
        visit(name, ())


@pytest.mark.parametrize("name", [name for name in FILES if name != "functad"])
def test_imports_go_down(name):
    upwards = [other for other in GRAPH[name] if other == "functad" or layer(other) > layer(name)]
    assert not upwards, f"{name} imports {', '.join(upwards)}, which is above it"


def test_no_import_inside_a_function():
    """They dodge cycles; there are none to dodge. (An optional package may be imported where it is used.)"""
    found = [
        f"{name}:{node.lineno} imports {item}"
        for name, tree in SOURCES.items()
        for fn in ast.walk(tree)
        if isinstance(fn, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(fn)
        for item in imported(node)
        if own_module(item)
    ]
    assert not found


def is_private(path: str) -> bool:
    """Whether a dotted name of another package is not part of its public API."""
    parts = path.split(".")
    if parts[:2] == ["jax", "interpreters"]:
        return True
    if parts[:2] == ["jax", "core"] and parts[2:3] not in ([], ["Tracer"]):
        return True
    return any(part.startswith("_") and not part.startswith("__") for part in parts)


@pytest.mark.parametrize(
    ("path", "private"),
    [
        ("jax.lax.sort", False),
        ("jax.core.Tracer", False),
        ("jax.core.Trace", True),
        ("jax.interpreters.ad", True),
        ("jax._src.core", True),
        ("numpy._core", True),
        ("numpy.__version__", False),
    ],
)
def test_private_names_are_known(path, private):
    assert is_private(path) is private


@pytest.mark.parametrize("name", FILES)
def test_no_private_upstream_names(name):
    aliases = {}
    used = []
    for node in ast.walk(SOURCES[name]):
        for path in imported(node):
            used.append(path)
            aliases[path.rpartition(".")[2]] = path
        if isinstance(node, ast.Import):
            aliases.update(
                {a.asname or a.name.partition(".")[0]: a.name for a in node.names if a.asname or "." not in a.name}
            )
    for node in ast.walk(SOURCES[name]):
        if isinstance(node, ast.Attribute):
            first, _, rest = ast.unparse(node).partition(".")
            if first in aliases and rest.replace(".", "").replace("_", "").isalnum():
                used.append(f"{aliases[first]}.{rest}")
    private = sorted({path for path in used if path.partition(".")[0] in UPSTREAM and is_private(path)})
    assert not private


def test_every_op_is_complete():
    assert len(TABLE) > 100
    for name, op in TABLE.items():
        assert op.name == name
        assert op.doc.strip(), f"{name} has no doc"
        assert op.samples is not None, f"{name} has no samples"
        assert not op.differentiable or op.pulls or op.joint_pull, f"{name} is differentiable and has no rule"


@pytest.mark.parametrize("name", FILES)
def test_files_are_short(name):
    length = len(FILES[name].read_text().splitlines())
    assert length <= 500, f"{name} has {length} lines: a family that wants splitting"


# --- the path of `x * y`

_lengths = itertools.count(2)


def product(x, y):
    return x * y


@pytest.mark.parametrize(
    ("call", "budget"),
    [
        pytest.param(lambda x: product(x, x), 4, id="eager"),
        pytest.param(fd.grad(lambda y: product(y, y).sum()), 6, id="grad"),
        pytest.param(lambda x: jvp(lambda y: product(y, y), (x,), (x,)), 8, id="jvp"),
        pytest.param(vmap(fd.grad(lambda y: product(y, y).sum())), 12, id="vmap of grad"),
    ],
)
def test_frames_from_product_to_xla(call, budget, monkeypatch):
    """Of functad's own, between the user's line and the compiled call; JAX's tracing of a new shape shows them."""
    paths = []

    def seen(xp, x, y, implementation=mul.impl):
        frames = []
        frame = sys._getframe()
        while frame is not None and frame.f_code is not product.__code__:
            frames.append(frame.f_code)
            frame = frame.f_back
        if frame is not None and not paths:  # the product itself, not its derivative
            ours = [code.co_qualname for code in reversed(frames) if code.co_filename.startswith(str(ROOT))]
            paths.append([name for name in ours if "<locals>" not in name])
        return implementation(xp, x, y)

    monkeypatch.setattr(mul, "impl", seen)
    length = 1000 + next(_lengths)  # a shape that was not compiled before
    call(fd.ones((2, length), device=fd.Device.cpu(fusion=False)))  # recorded ops are run later, from elsewhere
    assert paths, "the implementation did not run"
    assert len(paths[0]) <= budget, " -> ".join(paths[0])


def test_import_needs_neither_hypothesis_nor_optax():
    code = (
        "import sys\n"
        "sys.modules.update(hypothesis=None, optax=None)\n"
        "import functad, functad.testing\n"
        "functad.testing.check_grads(lambda x: x * x, (functad.ones(2),))\n"
        "try:\n    functad.testing.strategies\n"
        "except functad.errors.MissingDependencyError as error:\n    assert 'functad[testing]' in str(error)\n"
        "else:\n    raise SystemExit('strategies imported without hypothesis')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
