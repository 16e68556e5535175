"""Distances and similarities as layers."""

from __future__ import annotations

from typing import Any

from functad.module import Module
from functad.nn import functional as F


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along `axis`, of which those shorter than `eps` count as that long.

    >>> import functad as fd
    >>> fd.nn.CosineSimilarity()(fd.tensor([[3.0, 0.0]]), fd.tensor([[4.0, 0.0]])).tolist()
    [1.0]
    """

    axis: int = 1
    eps: float = 1e-8

    def forward(self, x1: Any, x2: Any) -> Any:
        """The cosines."""
        return F.cosine_similarity(x1, x2, self.axis, self.eps)


class PairwiseDistance(Module):
    """The `p`-norm of `x1 - x2 + eps` along the last axis; its derivative where they are equal is 0.

    >>> import functad as fd
    >>> fd.nn.PairwiseDistance(eps=0.0)(fd.tensor([[3.0, 4.0]]), fd.tensor([[0.0, 0.0]])).tolist()
    [5.0]
    """

    p: float = 2.0
    eps: float = 1e-6
    keepdim: bool = False

    def forward(self, x1: Any, x2: Any) -> Any:
        """The distances."""
        return F.pairwise_distance(x1, x2, self.p, self.eps, self.keepdim)
