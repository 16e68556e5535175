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
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx, self.weight = _table(
            "Embedding", num_embeddings, embedding_dim, padding_idx, key, dtype, device
        )

    def forward(self, indices: Any) -> Any:
        """The rows at `indices`, along a new last axis."""
        return F.embedding(indices, self.weight, self.padding_idx)


class EmbeddingBag(Module):
    """The mean, sum or maximum of bags of rows of a trained table; first values standard normal, as in torch.

    Args:
        num_embeddings: how many rows.
        embedding_dim: how long they are.
        mode: "mean", "sum" or "max".
        include_last_offset: whether `offsets` end with the length of the input, which begins no bag.
        padding_idx: a row that starts as zeros, gets no gradient and counts as absent.
        key: where its numbers are drawn from; the generator of `fd.seed` without it.
        dtype: of the table.
        device: where it is.

    >>> import functad as fd
    >>> fd.nn.EmbeddingBag(10, 4, key=fd.random.key(0))(fd.tensor([1, 2, 1]), fd.tensor([0, 2])).shape
    (2, 4)
    """

    num_embeddings: int = field(static=True)
    embedding_dim: int = field(static=True)
    mode: str = field(static=True)
    include_last_offset: bool = field(static=True)
    padding_idx: int | None = field(static=True)
    weight: Param

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        mode: str = "mean",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        *,
        key: Tensor | None = None,
        dtype: Any = None,
        device: Device | None = None,
    ):
        if mode not in ("mean", "sum", "max"):
            raise ArgumentError(f'EmbeddingBag: mode must be "sum", "mean" or "max", got {mode!r}.')
        self.num_embeddings, self.embedding_dim, self.mode = num_embeddings, embedding_dim, mode
        self.include_last_offset = include_last_offset
        self.padding_idx, self.weight = _table(
            "EmbeddingBag", num_embeddings, embedding_dim, padding_idx, key, dtype, device
        )

    def forward(self, indices: Any, offsets: Any = None, per_sample_weights: Any = None) -> Any:
        """A row for each bag: (bags, rows per bag), or one axis of indices and where each bag begins."""
        return F.embedding_bag(
            indices, self.weight, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset, padding_idx=self.padding_idx,
        )  # fmt: skip


def _table(
    where: str, rows: int, length: int, padding_idx: int | None, key: Tensor | None, dtype: Any, device: Device | None
) -> tuple[int | None, Param]:
    """The number of the padding row, and a table of standard normal numbers in which it is 0."""
    at_least(where, 1, num_embeddings=rows, embedding_dim=length)
    if padding_idx is not None:
        padding_idx = counted(padding_idx, where, "padding_idx")
        if not -rows <= padding_idx < rows:
            raise ArgumentError(f"{where}: padding_idx={padding_idx} is not one of {rows} rows.")
        padding_idx %= rows
    weight = Maker(where, key, dtype, device).normal((rows, length))
    return padding_idx, weight if padding_idx is None else Param(weight.detach().at[padding_idx].set(0.0))
