"""Tables of vectors."""

from __future__ import annotations

from typing import Any

from functad.device import Device
from functad.errors import ArgumentError
from functad.module import Module, field
from functad.nn import functional as F
from functad.nn.parameters import Maker, at_least
from functad.ops.axes import counted
from functad.param import Param
from functad.tensor import Tensor


class Embedding(Module):
    """A row of a trained table for each index; first values standard normal, as in torch.

    Args:
        num_embeddings: how many rows.
        embedding_dim: how long they are.
        padding_idx: a row that starts as zeros and gets no gradient.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the table.
        device: where it is.

    >>> import functad as fd
    >>> fd.nn.Embedding(10, 4, key=fd.random.key(0))(fd.tensor([[1, 2, 1]])).shape
    (1, 3, 4)
    """

    num_embeddings: int = field(static=True)
    embedding_dim: int = field(static=True)
    padding_idx: int | None = field(static=True)
    weight: Param

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        at_least("Embedding", 1, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        if padding_idx is not None:
            padding_idx = counted(padding_idx, "Embedding", "padding_idx")
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ArgumentError(f"Embedding: padding_idx={padding_idx} is not one of {num_embeddings} rows.")
            padding_idx %= num_embeddings
        self.num_embeddings, self.embedding_dim, self.padding_idx = num_embeddings, embedding_dim, padding_idx
        weight = Maker("Embedding", key, dtype, device).normal((num_embeddings, embedding_dim))
        self.weight = weight if padding_idx is None else Param(weight.detach().at[padding_idx].set(0.0))

    def forward(self, indices: Any) -> Any:
        """The rows at `indices`, along a new last axis."""
        return F.embedding(indices, self.weight, self.padding_idx)
