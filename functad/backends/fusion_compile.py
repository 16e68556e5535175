"""When a structure is compiled as a whole, and what is kept.

A large structure of ops that are new is compiled at once, for compiling its ops one by one would take
longer; the ops of a small one run on the host. Any other runs op by op at first, mostly without being recorded; if it recurs often enough, for
its length, it is compiled in the background, and used from a fixed recurrence on. So neither a shape that
occurs once nor a branch that changes makes a program wait, and what runs does not depend on time: the
same program gives the same bits again.
"""

from __future__ import annotations

import operator
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field, fields
from typing import Any
from weakref import WeakSet

import jax

from functad.backends.base import refuse_donated
from functad.backends.fusion_record import ARRAYS, Recording, immediate
from functad.backends.fusion_structure import FORTH_AND_BACK, Plan
from functad.dispatch import base_tensor
from functad.dispatch import pending as local
from functad.errors import ConcreteValueError
from functad.ops.ieee import is_strict

_MOST_PLANS = 512
_MOST_OPS = 100_000  # in the plans that are kept
_MOST_BYTES = 1 << 30  # of the executables that are kept, by estimate
_BYTES_PER_LETTER = 25  # of memory for a letter of an executable's text; measured on a CPU, where XLA does not say
_MOST_COMPILED = 1500  # ops in a structure that is worth compiling as a whole
_START = 8  # how often a structure has been met, at least, when it goes to the compiler
_OVERHEAD = 8  # ops that take as long as what comes with each run of an executable
_WORTH = 512  # ... and how many ops it would have saved: a part of what compiling takes, as that is beside the program
_WORTH_PIECE = 8192  # ... if a tape goes on behind it: what compiling takes, as what comes then may change
_WAIT = 24  # how much more often until the executable is used, at least; who is there first waits for it
_WAIT_OPS = 1024  # ... and the ops that have run meanwhile
_PER_OP = 8  # ... and of how many ops in a large one each takes compiling as long as a run
_SAMPLED = 32  # of so many structures that run op by op on a tape one is recorded, for that costs half as much again
_SHARE = 4  # ... unless so many times as many ops run as a whole
_MOST_GAINED = 1024
_MOST_FUTILE = 128  # ops in new structures, less those that recurred
_REPAID = 4  # ops that each one in a structure that recurs makes up for
_PAUSE = 64  # ops that run at once for each one above
_LONGEST = 1 << 14


COMPILERS: WeakSet[Compiler] = WeakSet()
"""One for each device that fuses."""


STRUCTURE = "structure"
"""The name that compiled structures have with XLA."""


@dataclass
class Counts:
    """What one device, or several, ran and compiled."""

    runs: Counter[str] = field(default_factory=lambda: Counter({"hits": 0, "compiled": 0, "op by op": 0}))
    programs: Counter[str] = field(default_factory=Counter)  # jitted functions and loops, by name
    singles: Counter[str] = field(default_factory=Counter)  # ops that ran by themselves
    seconds: float = 0.0  # spent compiling structures
    ops: int = 0  # in these

    def __add__(self, other: Counts) -> Counts:
        return self._by(operator.add, other)

    def __sub__(self, other: Counts) -> Counts:
        return self._by(operator.sub, other)

    def _by(self, fn: Callable[[Any, Any], Any], other: Counts) -> Counts:
        return Counts(*[fn(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)])


class Compiler:
    """The plans of one device, and the counts of what they did."""

    def __init__(self, runs_near: Callable[[Plan], bool]) -> None:
        self._runs_near = runs_near  # whether what is new is run on the host, rather than compiled at once
        self.plans: list[Plan] = []
        self._clock = self._ops = 0
        self.bytes = 0  # of the executables that are kept
        self._lock = threading.Lock()  # for the lists; plans are made and compiled in any thread
        self._jobs: deque[Callable[[], None]] = deque()
        self._worker: threading.Thread | None = None
        self.counts = Counts()
        COMPILERS.add(self)

    def snapshot(self) -> Counts:
        """The counts as they are now."""
        return Counts() + self.counts

    def keep(self, plan: Plan) -> None:
        """Count a new plan in, and let go of old ones for it."""
        with self._lock:
            self._keep(plan)
            if len(self.plans) > _MOST_PLANS or self._ops > _MOST_OPS:
                self._drop()

    def _keep(self, plan: Plan) -> None:
        plan.used = self._clock
        plan.kept = True
        self.plans.append(plan)
        self._ops += plan.count

    def clear(self) -> None:
        """Forget all plans."""
        with self._lock:
            for plan in self.plans:
                plan.kept = False
            self.plans = []
            self._ops = self.bytes = 0

    def _drop(self) -> None:
        """Let go of the executables that were not used for longest: a quarter of what is allowed."""
        self.plans.sort(key=lambda plan: plan.used)
        dropped = 0
        for plan in self.plans[:-1]:
            left = len(self.plans) - dropped
            if max(left / _MOST_PLANS, self._ops / _MOST_OPS, self.bytes / _MOST_BYTES) <= 0.75:
                break
            self._ops -= plan.count
            self.bytes -= plan.bytes
            plan.forget()
            if plan.state.plans.get(plan.key) is plan:
                plan.state.plans.pop(plan.key, None)
            dropped += 1
        self.plans = self.plans[dropped:]

    def ready(
        self,
        plan: Plan,
        x64: bool,
        build: Callable[[Plan], Any],
        more: Callable[[Plan, bool], Plan | None] | None = None,
    ) -> bool:
        """Whether to run a structure as a whole; has it compiled when that pays, and `more` for it in the background."""
        self._clock += 1
        plan.used = self._clock
        if plan.call is not None:
            self.counts.runs["hits"] += 1
            return True
        _meet(plan)
        if plan.refused or plan.count > _MOST_COMPILED:
            return False
        if plan.met == 1 and plan.novel * 2 >= len(plan.steps) and not self._runs_near(plan):
            self._compile(plan, x64, build, ahead=False)
            plan.call = plan.made
        elif plan.done is None:
            if plan.met >= _START > 0 and (plan.expected or _is_worth(plan)) and not is_strict():
                plan.done = threading.Event()
                plan.switch = plan.met + max(_WAIT + plan.count // _PER_OP, _WAIT_OPS // plan.ops)
                self._submit(lambda: self._ahead(plan, x64, build, more))
        elif plan.met >= plan.switch:
            plan.done.wait()
            plan.call = plan.made
            if plan.beyond is not None:
                plan.beyond.call = plan.beyond.made
            self.counts.runs["hits"] += plan.call is not None
        return plan.call is not None

    def expect(self, plan: Plan, recurs: bool) -> None:
        """What is known of the backward of a structure when it is met first: whether its forward recurs, or is new."""
        if recurs:
            plan.met, plan.expected = max(_START - 1, 0), True
        else:
            plan.novel = len(plan.steps)

    def recurs(self, plan: Plan) -> bool:
        """Whether a structure of one op has been met as often as others when their executables are used."""
        _meet(plan)
        return plan.met > _START + _WAIT

    def compile(self, plan: Plan, x64: bool, build: Callable[[Plan], Any]) -> None:
        """Have a structure compiled, from a background thread, unless it has been."""
        if plan.made is None:
            self._compile(plan, x64, build, ahead=True)

    def _ahead(
        self,
        plan: Plan,
        x64: bool,
        build: Callable[[Plan], Any],
        more: Callable[[Plan, bool], Plan | None] | None,
    ) -> None:
        done = plan.done
        try:
            self._compile(plan, x64, build, ahead=True)
            if more is not None and plan.made is not None:
                plan.beyond = more(plan, x64)
        finally:
            done.set()

    def _compile(self, plan: Plan, x64: bool, build: Callable[[Plan], Any], ahead: bool) -> None:
        """Have XLA compile a structure, from its types alone: no array is kept for it."""
        start = time.perf_counter()
        try:
            with immediate(x64):
                call = build(plan)
                size = _compile(call, [*plan.inputs, *plan.seeds, *[plan.types_at[p] for p in plan.reads_saved]])
        except ConcreteValueError:  # a rule reads values
            plan.refused = True
            return
        except Exception:
            plan.refused = True  # in the background nobody could catch it; op by op it is raised where it belongs
            if ahead:
                return
            raise
        with self._lock:
            if not plan.kept:  # it had been let go of, and came back
                self._keep(plan)
            plan.made = call
            plan.bytes = size
            self.bytes += size
            self._count(plan, time.perf_counter() - start)
            if self.bytes > _MOST_BYTES and len(self.plans) > 1:
                self._drop()

    def _count(self, plan: Plan, seconds: float) -> None:
        self.counts.runs["compiled"] += 1
        self.counts.seconds += seconds
        self.counts.ops += plan.count

    # --- in the background

    def _submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.append(job)
            if self._worker is None or not self._worker.is_alive():  # none survives a fork
                self._worker = threading.Thread(target=self._work, name="functad-compile")
                self._worker.start()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs or not threading.main_thread().is_alive():  # a program that is over waits for one
                    self._worker = None
                    return
                job = self._jobs.popleft()
            Context().run(job)

    def wait(self) -> None:
        """Until nothing is being compiled in the background."""
        worker = self._worker
        if worker is not None:
            worker.join()


def _meet(plan: Plan) -> None:
    plan.met += local.stands_for if plan.met else 1
    local.stands_for = 1


def _is_worth(plan: Plan) -> bool:
    """Whether compiling a structure would have paid by now, in part."""
    runs, ops = 1, plan.ops
    if plan.pulled:  # what is met is a forward, and the backward comes with it
        runs, ops = 2, FORTH_AND_BACK * plan.count
    saved = plan.met * max(ops - runs * _OVERHEAD, 0.5)
    ends = not plan.seeds and (plan.roots or not plan.followed)  # with its backward, or has none
    return saved >= (_WORTH if ends else _WORTH_PIECE)


def _compile(call: Any, inputs: Any) -> int:
    """Fill the cache of a jitted function for inputs of these types; the bytes its executable takes, about."""
    done = call.lower(*[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs]).compile()
    memory = done.memory_analysis()
    return max(getattr(memory, "generated_code_size_in_bytes", 0), _BYTES_PER_LETTER * len(done.as_text() or ""))


def concrete(recording: Recording, run: Callable[[], Any]) -> Any:
    """What `run` computes, as arrays also where JAX is tracing and would write the calls down."""
    try:
        arrays = run()
        if all([type(a) in ARRAYS for a in arrays]):  # noqa: C419  # a list is quicker
            return arrays
    except (ValueError, RuntimeError) as error:
        given = [base_tensor(x)._value for x in recording.knowns if x is not None]
        refuse_donated("a recorded op", [*given, *recording.saved.values()])
        if isinstance(error, RuntimeError):
            raise  # else: JAX takes compiler options outside of its traces only
    with jax.ensure_compile_time_eval():
        return run()


# --- whether ops are recorded at all


def gained(plan: Plan) -> None:
    """Note that a structure ran as a whole."""
    local.gained = min(local.gained + plan.count, _MOST_GAINED)
    local.futile = max(local.futile - _REPAID * plan.count, 0)


def weigh(plan: Plan, taped: bool = True) -> None:
    """Stop recording for a while after a structure ran op by op.

    For long if hardly any structure comes back; else, on a tape, as far as one in some is enough to tell how often it comes.
    """
    pause = 0
    if plan.met == 1:
        local.futile += plan.count
        if local.futile > _MOST_FUTILE:
            pause = min(_PAUSE * (local.futile - _MOST_FUTILE), _LONGEST)
            local.futile = _MOST_FUTILE
    else:
        local.futile = max(local.futile - _REPAID * plan.count, 0)
        if local.gained >= _SHARE * plan.count:
            local.gained -= _SHARE * plan.count
        elif taped:
            local.stands_for = min(plan.met, _SAMPLED if plan.done is None else _START)
            pause = plan.count * (local.stands_for - 1)
    if pause:
        local.at_once = pause


def resume() -> None:
    """Record again if the pause is over: where recordings usually begin, so the structures are those met before."""
    if local.at_once == 1:
        local.at_once = 0
