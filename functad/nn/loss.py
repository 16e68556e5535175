"""Losses as layers, with torch's names and arguments.

>>> import functad as fd
>>> fd.nn.MSELoss()(fd.tensor([1.0, 2.0]), fd.tensor([1.0, 4.0])).item()
2.0
"""

from __future__ import annotations

from typing import Any

from functad.module import Module
from functad.nn import functional as F
from functad.tensor import Tensor


class MSELoss(Module):
    """The mean of squared differences."""

    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.mse_loss(input, target, self.reduction)


class L1Loss(Module):
    """The mean of absolute differences."""

    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.l1_loss(input, target, self.reduction)


class SmoothL1Loss(Module):
    """Squared near 0, absolute beyond `beta`."""

    reduction: str = "mean"
    beta: float = 1.0

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(Module):
    """Squared near 0, absolute beyond `delta`, of slope `delta` (Huber 1964)."""

    reduction: str = "mean"
    delta: float = 1.0

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.huber_loss(input, target, self.reduction, self.delta)


class CrossEntropyLoss(Module):
    """Minus the log probability of the target class, from logits; targets are class numbers or probabilities."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(Module):
    """Minus the log probability of the target class, from log probabilities."""

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class BCELoss(Module):
    """Binary cross entropy of probabilities."""

    weight: Tensor | None = None
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(Module):
    """Binary cross entropy of logits."""

    weight: Tensor | None = None
    reduction: str = "mean"
    pos_weight: Tensor | None = None

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


class KLDivLoss(Module):
    """The divergence of the target from log probabilities."""

    reduction: str = "mean"
    log_target: bool = False

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.kl_div(input, target, self.reduction, self.log_target)


class PoissonNLLLoss(Module):
    """Minus the log probability of counts under a Poisson rate."""

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.poisson_nll_loss(input, target, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(Module):
    """Minus the log probability under a normal distribution."""

    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"

    def forward(self, input: Any, target: Any, var: Any) -> Any:
        """The loss."""
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class HingeEmbeddingLoss(Module):
    """Distances: small where the target is 1, beyond the margin where it is -1."""

    margin: float = 1.0
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.hinge_embedding_loss(input, target, self.margin, self.reduction)


class MarginRankingLoss(Module):
    """Which of two is larger, as the target's sign says."""

    margin: float = 0.0
    reduction: str = "mean"

    def forward(self, input1: Any, input2: Any, target: Any) -> Any:
        """The loss."""
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class SoftMarginLoss(Module):
    """Logistic loss of targets +-1."""

    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.soft_margin_loss(input, target, self.reduction)


class MultiMarginLoss(Module):
    """The hinge loss of several classes."""

    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = None
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, self.reduction)


class CosineEmbeddingLoss(Module):
    """The angle between vectors: small where the target is 1, beyond the margin where it is -1."""

    margin: float = 0.0
    reduction: str = "mean"

    def forward(self, input1: Any, input2: Any, target: Any) -> Any:
        """The loss."""
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class TripletMarginLoss(Module):
    """Nearer to the positive than to the negative by a margin."""

    margin: float = 1.0
    p: float = 2.0
    eps: float = 1e-6
    swap: bool = False
    reduction: str = "mean"

    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any:
        """The loss."""
        return F.triplet_margin_loss(
            anchor, positive, negative, self.margin, self.p, self.eps, self.swap, self.reduction
        )


class CTCLoss(Module):
    """Minus the log probability of a sequence whose alignment is unknown (Graves et al. 2006)."""

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any:
        """The loss."""
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )
