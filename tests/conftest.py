"""Fixtures and settings that every test file shares."""

from __future__ import annotations

import gc
import importlib
import os
import threading
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import hypothesis
import pytest

# Most of the time goes into compiling thousands of tiny programs, and their speed is not what is tested.
QUICK = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
QUICK += ["--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):  # a flag that XLA does not know ends the process
    QUICK += ["--xla_cpu_use_fusion_emitters=false"]
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {' '.join(QUICK)}".strip()
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # its threads wait busily for matrices larger than those of tests

import functad as fd  # noqa: E402  # XLA reads its flags once
from functad.levels import open_depth  # noqa: E402

hypothesis.settings.register_profile("local", deadline=None, max_examples=30)
hypothesis.settings.register_profile(
    "ci", deadline=None, max_examples=30, derandomize=True, database=None, print_blob=True
)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")


class _Contexts(threading.local):
    """One MLIR context for many programs: JAX makes one for each, a fifth of the time that a small program takes."""

    def __init__(self) -> None:
        self.left, self.context = 0, None

    def __call__(self) -> Any:
        if not self.left:  # what was written in a context stays in its memory
            self.left, self.context = 100, _new_context()
        self.left -= 1
        return self.context


# JAX offers no way to ask for this. Where a release does it otherwise, the tests take longer, and that is all.
_mlir = importlib.import_module("jax._src.interpreters.mlir")
_new_context = getattr(_mlir, "make_ir_context", None)
if _new_context is not None:
    _mlir.make_ir_context = _Contexts()


# Tracing makes millions of short-lived objects beside caches that only grow: the collector looks less often.
gc.freeze()
gc.set_threshold(20_000, 20, 20)


@pytest.fixture(params=["xla", "numpy"])
def device(request: pytest.FixtureRequest) -> fd.Device:
    """Each base backend."""
    return fd.Device.cpu() if request.param == "xla" else fd.Device.numpy()


@pytest.fixture
def x64() -> Iterator[None]:
    """Float64 on XLA."""
    with fd.enable_x64():
        yield


@pytest.fixture(autouse=True)
def _closes_its_levels() -> Iterator[None]:
    """No test leaves a transform open or the precision mode changed, however it ends."""
    x64_before = fd.dtypes.x64_enabled()
    yield
    assert open_depth() == 0
    assert fd.dtypes.x64_enabled() == x64_before
