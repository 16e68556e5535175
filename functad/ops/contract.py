__all__ = ["matmul"]
from functad.ops.rules import multilinear
from functad.ops.op import Cost
matmul = multilinear("matmul", lambda xp, x, y: xp.matmul(x,y), lambda g, y: g @ y.T, lambda g, x: x.T @ g, cost=Cost.COMPUTE, promote="numeric")
