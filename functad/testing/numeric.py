"""Derivatives against central differences, to any order, and the report of where they differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import ml_dtypes
import numpy as np

from functad.errors import CheckFailedError, FunctadError
from functad.testing.derivatives import jvp, vjp
from functad.testing.sampling import describe

Array = Any
Mode = Literal["rev", "fwd"]
Outputs = dict[str, Any]

_MODES = {"rev": "reverse", "fwd": "forward"}
_SCANNED = 512  # larger arrays are searched by bisection


class Tolerance(NamedTuple):
    """The step of the differences and what they may be off by; None is chosen by the precision."""

    eps: float | None = None
    atol: float | None = None
    rtol: float | None = None

    def of(self, unit: float) -> tuple[float, float, float]:
        """Step, absolute and relative tolerance for numbers with a relative rounding error `unit`."""
        loose = max(1e-6, 100 * unit ** (2 / 3))
        eps = unit ** (1 / 3) if self.eps is None else self.eps
        return eps, loose if self.atol is None else self.atol, loose if self.rtol is None else self.rtol


@dataclass
class Check:
    """One function at one point, and every comparison of one order.

    `fn` takes tensors and returns tensors by name; `xs` are float64 or complex128 arrays.
    """

    fn: Callable[..., Outputs]
    names: Sequence[str]
    xs: Sequence[Array]
    put: Callable[[Array], Any]
    title: str = "check_grads"
    tolerance: Tolerance = field(default_factory=Tolerance)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    order: int = 1
    history: str = ""
    unit: float = 0.0  # the largest relative rounding error on the way
    given: Sequence[str] = ()  # the dtypes that the first arguments had

    def run(self, order: int, modes: Sequence[Mode]) -> None:
        """Compare the modes with differences and with each other, then do so for their derivatives."""
        self.outs = self.value(self.xs)
        self.unit = max([self.unit, *[float(ml_dtypes.finfo(y.dtype).eps) for y in self.outs.values()]])
        self.eps, self.atol, self.rtol = self.tolerance.of(self.unit)
        self._check_repeatable()
        self.noise = {k: 4 * self.unit * np.max(np.abs(y), initial=0) / self.eps for k, y in self.outs.items()}
        gs = {k: direction(self.rng, y) for k, y in self.outs.items()}
        pulled = self.pull(gs) if "rev" in modes else None
        for i, x in enumerate(self.xs):
            t = direction(self.rng, x, at_scale=True)
            numeric = self.along(i, t)
            pushed = self.push(i, t) if "fwd" in modes else None
            if pulled is not None and not self._pulls_right(pulled[i], t, gs, numeric):
                self._report("rev", i, gs)
            if pushed is not None and not self._pushes_right(pushed, numeric):
                self._report("fwd", i, gs)
            if pulled is not None and pushed is not None:
                self._check_adjoint(i, t, gs, pushed, pulled[i])
        if order > self.order:
            for mode in modes:
                self._derived(mode, gs).run(order, modes)

    # --- evaluation

    def value(self, xs: Sequence[Array]) -> Outputs:
        """The outputs as arrays."""
        return {k: y.numpy() for k, y in self.fn(*map(self.put, xs)).items()}

    def along(self, i: int, t: Array) -> Outputs:
        """The directional derivative in input `i` by central differences."""
        ahead, behind = self._moved(i, self.eps * t), self._moved(i, -self.eps * t)
        return {k: (_wide(y) - _wide(behind[k])) / (2 * self.eps) for k, y in ahead.items()}

    def push(self, i: int, t: Array) -> Outputs:
        """The directional derivative in input `i` by forward mode."""
        tangents = [self.put(t) if j == i else None for j in range(len(self.xs))]
        with self._explained("fwd"):
            pushed = jvp(self._flat, [self.put(x) for x in self.xs], tangents)[1]
        return {k: _wide(y.numpy()) for k, y in zip(self.outs, pushed, strict=True)}

    def pull(self, gs: Outputs) -> list[Array]:
        """The cotangents of the inputs by reverse mode."""
        with self._explained("rev"):
            outs, back = vjp(self._flat, [self.put(x) for x in self.xs])
            found = back([self.put(np.asarray(g, y.dtype)) for g, y in zip(gs.values(), outs, strict=True)])
        return [g.numpy() for g in found]

    def _flat(self, *xs: Any) -> list[Any]:
        return list(self.fn(*xs).values())

    def _moved(self, i: int, step: Array) -> Outputs:
        return self.value([np.asarray(x + step, x.dtype) if j == i else x for j, x in enumerate(self.xs)])

    def _derived(self, mode: Mode, gs: Outputs) -> Check:
        """The check of this function's derivative, as a function of point and (co)tangents."""
        count = len(self.xs)

        def reverse(*inputs: Any) -> Outputs:
            _, back = vjp(self._flat, inputs[:count])
            return {f"the gradient of {n}": g for n, g in zip(self.names, back(inputs[count:]), strict=True)}

        def forward(*inputs: Any) -> Outputs:
            _, pushed = jvp(self._flat, inputs[:count], inputs[count:])
            return {f"the tangent of {k}": t for k, t in zip(self.outs, pushed, strict=True)}

        more = list(gs.values()) if mode == "rev" else [direction(self.rng, x, at_scale=True) for x in self.xs]
        over = [f"the cotangent of {k}" for k in gs] if mode == "rev" else [f"the tangent of {n}" for n in self.names]
        return replace(
            self,
            fn=reverse if mode == "rev" else forward,
            names=[*self.names, *over],
            xs=[*self.xs, *more],
            order=self.order + 1,
            history=f" of the {_MODES[mode]}-mode derivative{self.history}",
        )

    # --- comparison

    def _allowed(self, a: Array, b: Array) -> Array:
        return self.atol + self.rtol * np.maximum(np.abs(a), np.abs(b))

    def _pushes_right(self, pushed: Outputs, numeric: Outputs) -> bool:
        return all(
            bool(np.all(np.abs(pushed[k] - y) <= self._allowed(pushed[k], y) + self.noise[k]))
            for k, y in numeric.items()
        )

    def _pulls_right(self, pulled: Array, t: Array, gs: Outputs, numeric: Outputs) -> bool:
        total = sum(pair(gs[k], y) for k, y in numeric.items())
        size = sum(size_of(gs[k], y) for k, y in numeric.items())
        noise = sum(float(np.sum(np.abs(g))) * self.noise[k] for k, g in gs.items())
        return abs(pair(pulled, t) - total) <= self.atol + self.rtol * size + noise

    def _check_repeatable(self) -> None:
        again = self.value(self.xs)
        for k, y in self.outs.items():
            if not np.all(np.isfinite(y)):
                where = np.argwhere(~np.isfinite(y))[0]
                raise CheckFailedError(
                    f"{self.title}: {k} is {y[tuple(where)]} at element {_index(where)}{self.history}, so there is no "
                    "derivative to check; choose arguments where the function is finite."
                )
            if np.any(np.abs(y - again[k]) > self._allowed(y, again[k])):  # run another way, it is rounded another way
                raise CheckFailedError(
                    f"{self.title}: two calls with the same arguments gave two values of {k}{self.history}; make the "
                    "function deterministic (pass a random key, switch dropout off)."
                )

    def _check_adjoint(self, i: int, t: Array, gs: Outputs, pushed: Outputs, pulled: Array) -> None:
        left = sum(pair(gs[k], y) for k, y in pushed.items())
        right = pair(pulled, t)
        size = sum(size_of(gs[k], y) for k, y in pushed.items()) + size_of(pulled, t)
        if abs(left - right) > max(1e-10, 1e4 * self.unit) * size:
            raise CheckFailedError(
                f"{self.title}: forward and reverse mode disagree about {self.names[i]} (order "
                f"{self.order}{self.history}): <g, J t> = {left:.15g}, <J^T g, t> = {right:.15g}. Both are close to "
                "the central differences, so the rules differ by little."
            )

    def _explained(self, mode: Mode) -> _Explained:
        return _Explained(f"{self.title}: {_MODES[mode]} mode failed (order {self.order}{self.history}): ")

    # --- finding the element

    def _report(self, mode: Mode, i: int, gs: Outputs) -> None:
        """Raise, naming the entry of the Jacobian that is off by most."""
        x = self.xs[i]
        wrong = ""
        if x.size <= _SCANNED:
            off = [(self._off(mode, i, t, gs), t) for t in units(x)]
            t = max(off, key=lambda pair: pair[0][0])[1]
            bad = [ratio for (error, ratio), _ in off if error > 1]
            same = len(bad) > 1 and all(np.isclose(r, bad[0], rtol=1e-3) for r in bad)
            wrong = f"\n  {len(bad)} of {len(off)} elements of this argument are wrong" if x.size > 1 else ""
            wrong += f"; analytic / numeric is {bad[0]:.4g} in each" if same and wrong else ""
        else:
            t = self._bisect(mode, i, gs)
        k, at, analytic, numeric = self._entry(mode, i, t)
        text = [
            f"{self.title}: {_MODES[mode]} mode is wrong (order {self.order}{self.history})",
            f"  argument: {self.names[i]}, element {_index(np.argwhere(t != 0)[0])} of {describe(x)}{self._given(i)}",
            f"  output:   {k}, element {_index(at)} of {describe(self.outs[k])}",
            f"  analytic: {analytic:.10g}",
            f"  numeric:  {numeric:.10g} (central differences, step {self.eps:.2g})" + wrong,
        ]
        before, after, half = self._slopes(i, t, k, at)
        loose = max(0.01 * abs(numeric), 100 * self.atol)
        if abs(after - before) > loose or abs(half - numeric) > loose:
            text.append(
                f"  the slopes before and after the point are {before:.6g} and {after:.6g}, and {half:.6g} with half "
                "the step: if the function has a kink or a jump here, move the argument away from it"
            )
        if self.unit > 1e-10:
            text.append("  an output has less than double precision: compute in float64, or pass eps, atol and rtol")
        raise CheckFailedError("\n".join(text))

    def _given(self, i: int) -> str:
        other = i < len(self.given) and self.given[i] != str(self.xs[i].dtype)
        return f" (given as {self.given[i]}; differences need {self.xs[i].dtype})" if other else ""

    def _off(self, mode: Mode, i: int, t: Array, gs: Outputs) -> tuple[float, float]:
        """By how many tolerances the derivative along `t` is off, and analytic / numeric."""
        numeric = self.along(i, t)
        pairs: list[tuple[float, float]] = []
        if mode == "rev":
            pairs.append((pair(self.pull(gs)[i], t), sum(pair(gs[k], y) for k, y in numeric.items())))
        else:
            for k, y in self.push(i, t).items():
                pairs.extend(zip(y.ravel().tolist(), numeric[k].ravel().tolist(), strict=True))
        errors = [(abs(a - n) / float(self._allowed(a, n)), a / n if n else np.inf) for a, n in pairs]
        return max(((np.inf if np.isnan(e) else e, abs(r) if isinstance(r, complex) else r) for e, r in errors))

    def _bisect(self, mode: Mode, i: int, gs: Outputs) -> Array:
        """A unit direction along which the derivative is off, found by halving."""
        x = self.xs[i]
        weights = direction(self.rng, x).ravel()
        low, high = 0, x.size
        while high - low > 1:
            middle = (low + high) // 2
            halves = [(low, middle), (middle, high)]
            errors = []
            for a, b in halves:
                t = np.zeros_like(weights)
                t[a:b] = weights[a:b]
                errors.append(self._off(mode, i, t.reshape(x.shape), gs)[0])
            low, high = halves[int(np.argmax(errors))]
        t = np.zeros_like(weights)
        t[low] = 1
        return t.reshape(x.shape)

    def _entry(self, mode: Mode, i: int, t: Array) -> tuple[str, tuple[int, ...], Any, Any]:
        """The output element whose derivative along `t` is off by most, with both values."""
        numeric = self.along(i, t)
        pushed = self.push(i, t) if mode == "fwd" else None
        found = []
        for k, y in numeric.items():
            for at in itertools.islice(np.ndindex(y.shape), _SCANNED):
                if pushed is not None:
                    pairs = (pushed[k][at], y[at])
                else:
                    gs = {name: np.zeros_like(out) for name, out in self.outs.items()}
                    gs[k][at] = 1
                    pairs = (pair(self.pull(gs)[i], t), y[at].real)
                error = abs(pairs[0] - pairs[1])
                found.append((np.inf if np.isnan(error) else error, k, at, *pairs))
        return max(found, key=lambda entry: entry[0])[1:]

    def _slopes(self, i: int, t: Array, k: str, at: tuple[int, ...]) -> tuple[Any, Any, Any]:
        """Differences backward and forward, and central ones with half the step."""

        def value(step: float) -> Any:
            return _wide(self._moved(i, step * self.eps * t)[k])[at]

        here = _wide(self.outs[k])[at]
        return (here - value(-1)) / self.eps, (value(1) - here) / self.eps, (value(0.5) - value(-0.5)) / self.eps


class _Explained:
    """Says of a refusal inside a derivative which mode and order it came from."""

    def __init__(self, text: str):
        self.text = text

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FunctadError):
            raise CheckFailedError(f"{self.text}{error}") from error


def direction(rng: np.random.Generator, x: Array, at_scale: bool = False) -> Array:
    """Random numbers of the type of `x`, none of them small; `at_scale` makes them grow with `x`."""
    scale = np.maximum(1, np.abs(_wide(x))) if at_scale else 1

    def part() -> Array:
        return rng.uniform(0.5, 1.5, x.shape) * rng.choice([-1.0, 1.0], x.shape) * scale

    wide = part() + 1j * part() if x.dtype.kind == "c" else part()
    return np.asarray(wide, x.dtype)


def units(x: Array) -> Iterator[Array]:
    """The unit directions in the space of `x`."""
    for at in np.ndindex(x.shape):
        for one in (1, 1j) if x.dtype.kind == "c" else (1,):
            t = np.zeros_like(x)
            t[at] = one
            yield t


def pair(g: Array, t: Array) -> float:
    """The real pairing of a cotangent and a tangent."""
    return float(np.sum(_wide(g) * _wide(t)).real)


def size_of(g: Array, t: Array) -> float:
    """What the pairing would be without cancellation."""
    return float(np.sum(np.abs(_wide(g)) * np.abs(_wide(t))))


def _wide(x: Array) -> Array:
    x = np.asarray(x)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _index(at: Sequence[int]) -> str:
    return str(tuple(int(n) for n in at))
