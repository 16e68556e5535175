"""When a structure is compiled as a whole, and what is kept.

A structure of ops that are new is compiled at once, for compiling its ops one by one would take
longer. Any other runs op by op until that has taken a share of the time that compiling is expected
to take; then it is compiled in the background, and goes on op by op meanwhile. So neither a shape
that occurs once nor a branch that changes makes a program wait.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any
from weakref import WeakSet

from functad.backends.autodiff import Autodiff
from functad.backends.fusion_record import Recording, immediate
from functad.backends.fusion_state import CONSTANT, TRACKED
from functad.backends.fusion_structure import Plan
from functad.errors import ConcreteValueError
from functad.ops.op import Op
from functad.ops.rules import is_strict
from functad.tensor import Tensor

_MOST_PLANS = 512
_MOST_OPS = 100_000  # in the plans that are kept: what bounds the memory of executables
_MOST_COMPILED = 1500  # ops in a structure that is worth compiling as a whole
_SHARE = 0.25  # of the time compiling is expected to take that is spent op by op before


COMPILERS: WeakSet[Compiler] = WeakSet()
"""One for each device that fuses."""


class Compiler:
    """The plans of one device, and the counts of what they did."""

    def __init__(self) -> None:
        self.plans: list[Plan] = []
        self._clock = self._kept = 0
        self._executor: ThreadPoolExecutor | None = None
        self.counts = Counter({"hits": 0, "compiled": 0, "op by op": 0})
        self.singles: Counter[str] = Counter()  # by name
        self.seconds = 0.0  # spent compiling
        self.pace = 2.5  # how much longer compiling takes here than plans expect; measured as it goes
        self.compiled_ops = 0
        COMPILERS.add(self)

    def snapshot(self) -> tuple[Counter[str], Counter[str], float, int]:
        """The counts as they are now."""
        return Counter(self.counts), Counter(self.singles), self.seconds, self.compiled_ops

    def keep(self, plan: Plan) -> None:
        """Count a new plan in, and let go of old ones for it."""
        plan.used = self._clock
        self.plans.append(plan)
        self._kept += plan.count
        if len(self.plans) > _MOST_PLANS or self._kept > _MOST_OPS:
            self._drop()

    def clear(self) -> None:
        """Forget all plans."""
        self.plans = []
        self._kept = 0

    def _drop(self) -> None:
        """Let go of the executables that were not used for longest."""
        self.plans.sort(key=lambda plan: plan.used)
        old = len(self.plans) // 4 + 1
        for plan in self.plans[:old]:
            plan.forget()
        self.plans = self.plans[old:]
        self._kept = sum([plan.count for plan in self.plans])

    def ready(self, plan: Plan, recording: Recording, build: Callable[[Plan], Any]) -> bool:
        """Whether to run a structure as a whole; has it compiled when that pays."""
        self._clock += 1
        plan.used = self._clock
        if plan.call is not None:
            return True
        plan.met += 1
        if plan.refused or plan.compiling or plan.count > _MOST_COMPILED:
            return False
        if plan.met == 1 and plan.novel * 2 >= len(plan.steps):
            self._compile(plan, recording, build, warm=False)
            return plan.call is not None
        if plan.met > 1 and plan.fastest * plan.met > _SHARE * self.pace * plan.cost and not is_strict():
            plan.compiling = True
            self._worker.submit(Context().run, self._compile, plan, _stand_in(recording, plan), build)
        return False

    def _compile(self, plan: Plan, recording: Recording, build: Callable[[Plan], Any], warm: bool = True) -> None:
        start = time.perf_counter()
        call = None
        try:
            with immediate(recording.x64):
                call = build(plan)
                if not warm:
                    plan.building = start
                elif isinstance(call, Op):
                    Autodiff.run(recording.tape, call, recording.knowns[: len(plan.inputs)], ())
                else:
                    call(*plan.arrays(recording.knowns))
        except ConcreteValueError:  # a rule reads values
            plan.refused = True
            return
        except Exception:
            plan.refused = True  # in the background nobody could catch it; op by op it is raised where it belongs
            if not warm:
                raise
            return
        finally:
            plan.compiling = False
        plan.call = call
        if warm:
            self.count_compiled(plan, start)

    def count_compiled(self, plan: Plan, start: float) -> None:
        seconds = time.perf_counter() - start
        plan.building = None
        self.counts["compiled"] += 1
        self.seconds += seconds
        self.pace += 0.3 * (seconds / plan.cost - self.pace)
        self.compiled_ops += plan.count

    def wait(self) -> None:
        """Until nothing is being compiled in the background."""
        if self._executor is not None:
            self._executor.submit(int).result()

    @property
    def _worker(self) -> ThreadPoolExecutor:
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "functad-compile")
        return self._executor


def _stand_in(recording: Recording, plan: Plan) -> Recording:
    """A recording with the same arrays from outside and nothing of the graph: compiling must not keep that alive."""
    fusion, tape = recording.fusion, recording.tape
    copy = Recording.__new__(Recording)
    copy.x64, copy.tape, copy.knowns = recording.x64, tape, []
    for array, kind in zip(plan.arrays(recording.knowns), plan.inputs, strict=True):
        x = Tensor(fusion, array, None, kind.shape, kind.dtype)
        copy.knowns.append(x if kind.role == CONSTANT else tape.leaf(x) if kind.role == TRACKED else tape.lift(x))
    return copy
