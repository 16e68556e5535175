"""Arithmetic, rounding, comparison and logic."""

from __future__ import annotations

from functad.ops.rules import PAIR, elementwise

__all__ = ["cos", "exp", "sin", "sub", "tanh"]

sub = elementwise("sub", lambda xp, x, y: xp.subtract(x, y), 1, -1, samples=PAIR, doc="x - y.")
sin = elementwise("sin", lambda xp, x: xp.sin(x), lambda x: cos(x), promote="float")
cos = elementwise("cos", lambda xp, x: xp.cos(x), lambda x: -sin(x), promote="float")
exp = elementwise("exp", lambda xp, x: xp.exp(x), lambda out: out, promote="float")
tanh = elementwise("tanh", lambda xp, x: xp.tanh(x), lambda out: 1 - out*out, promote="float")
