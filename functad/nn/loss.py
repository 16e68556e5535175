"""Losses as layers, with torch's names and arguments.

>>> import functad as fd
>>> fd.nn.MSELoss()(fd.tensor([1.0, 2.0]), fd.tensor([1.0, 4.0])).item()
2.0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functad.module import Module, field
from functad.nn import functional as F
from functad.tensor import Tensor


class MSELoss(Module):
    """The mean of squared differences.

    As in every loss here, `reduction` is "mean", "sum" or "none", the last for one loss per element (per sample, where
    there are classes). Calling it raises `ShapeError` if the shapes differ.

    >>> import functad as fd
    >>> fd.nn.MSELoss(reduction="none")(fd.tensor([1.0, 2.0]), fd.tensor([1.0, 4.0])).tolist()
    [0.0, 4.0]
    """

    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.mse_loss(input, target, self.reduction)


class L1Loss(Module):
    """The mean of absolute differences; the derivative where there is none is 0.

    >>> import functad as fd
    >>> fd.nn.L1Loss()(fd.tensor([1.0, 2.0]), fd.tensor([1.0, 4.0])).item()
    1.0
    """

    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.l1_loss(input, target, self.reduction)


class SmoothL1Loss(Module):
    """Half the square over `beta` near 0, absolute with slope 1 beyond `beta` (Girshick 2015).

    >>> import functad as fd
    >>> fd.nn.SmoothL1Loss(reduction="none")(fd.tensor([0.5, 3.0]), fd.zeros(2)).tolist()
    [0.125, 2.5]
    """

    reduction: str = "mean"
    beta: float = 1.0

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(Module):
    """Half the square near 0, absolute with slope `delta` beyond `delta` (Huber 1964).

    >>> import functad as fd
    >>> fd.nn.HuberLoss(reduction="none", delta=2.0)(fd.tensor([0.5, 3.0]), fd.zeros(2)).tolist()
    [0.125, 4.0]
    """

    reduction: str = "mean"
    delta: float = 1.0

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.huber_loss(input, target, self.reduction, self.delta)


class CrossEntropyLoss(Module):
    """Minus the log probability of the target class, from logits; targets are class numbers or probabilities.

    Args:
        weight: a factor for each class; the mean is then the weighted one.
        ignore_index: the class number of targets that do not count.
        reduction: as in `MSELoss`.
        label_smoothing: the share of each target that is spread over all classes.

    >>> import functad as fd
    >>> loss = fd.nn.CrossEntropyLoss()(fd.zeros((2, 4)), fd.tensor([0, -100]))
    >>> f"{loss.item():.4f}"  # log 4
    '1.3863'
    """

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"
    label_smoothing: float = 0.0

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.cross_entropy(input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(Module):
    """Minus the log probability of the target class, from log probabilities; arguments as those of `CrossEntropyLoss`.

    >>> import functad as fd
    >>> fd.nn.NLLLoss()(fd.tensor([[-1.0, -3.0], [-5.0, -2.0]]), fd.tensor([0, 1])).item()
    1.5
    """

    weight: Tensor | None = None
    ignore_index: int = -100
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class BCELoss(Module):
    """Binary cross entropy of probabilities; their logs are cut at -100, as in torch. `weight` broadcasts with the elements.

    >>> import functad as fd
    >>> fd.nn.BCELoss()(fd.tensor([1.0, 0.0]), fd.tensor([1.0, 1.0])).item()
    50.0
    """

    weight: Tensor | None = None
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.binary_cross_entropy(input, target, self.weight, self.reduction)


class BCEWithLogitsLoss(Module):
    """Binary cross entropy of logits, stable; `pos_weight` multiplies the part of targets that are 1.

    >>> import functad as fd
    >>> fd.nn.BCEWithLogitsLoss()(fd.tensor([1000.0, -1000.0]), fd.tensor([1.0, 1.0])).item()
    500.0
    """

    weight: Tensor | None = None
    reduction: str = "mean"
    pos_weight: Tensor | None = None

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.binary_cross_entropy_with_logits(input, target, self.weight, self.reduction, self.pos_weight)


class KLDivLoss(Module):
    """The Kullback-Leibler divergence of the target from log probabilities, with 0 log 0 = 0.

    `log_target` says that targets are logarithms too. `reduction="mean"` is over all elements, "batchmean" over the first
    axis: the one that mathematics means.

    >>> import functad as fd
    >>> log_p, target = fd.tensor([[0.25, 0.75]]).log(), fd.tensor([[0.5, 0.5]])
    >>> f"{fd.nn.KLDivLoss('batchmean')(log_p, target).item():.4f}"
    '0.1438'
    """

    reduction: str = "mean"
    log_target: bool = False

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.kl_div(input, target, self.reduction, self.log_target)


class PoissonNLLLoss(Module):
    """Minus the log probability of counts under a Poisson rate, without the part that depends on the counts alone.

    The input is the log of the rate, or the rate for `log_input=False`; `full` adds Stirling's approximation of the rest.

    >>> import functad as fd
    >>> fd.nn.PoissonNLLLoss()(fd.tensor([0.0, 0.0]), fd.tensor([1.0, 2.0])).item()
    1.0
    """

    log_input: bool = True
    full: bool = False
    eps: float = 1e-8
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.poisson_nll_loss(input, target, self.log_input, self.full, self.eps, self.reduction)


class GaussianNLLLoss(Module):
    """Minus the log probability under a normal distribution of variance `var`, which is cut below at `eps` (Nix, Weigend 1994).

    >>> import functad as fd
    >>> fd.nn.GaussianNLLLoss()(fd.tensor([1.0, 3.0]), fd.tensor([1.0, 1.0]), fd.ones(2)).item()
    1.0
    """

    full: bool = False
    eps: float = 1e-6
    reduction: str = "mean"

    def forward(self, input: Any, target: Any, var: Any) -> Any:
        """The loss."""
        return F.gaussian_nll_loss(input, target, var, self.full, self.eps, self.reduction)


class HingeEmbeddingLoss(Module):
    """Of distances: themselves where the target is 1, what they lack of the margin where it is -1 (Hadsell et al. 2006).

    >>> import functad as fd
    >>> loss = fd.nn.HingeEmbeddingLoss(reduction="none")
    >>> loss(fd.tensor([0.25, 0.25, 3.0]), fd.tensor([1.0, -1.0, -1.0])).tolist()
    [0.25, 0.75, 0.0]
    """

    margin: float = 1.0
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.hinge_embedding_loss(input, target, self.margin, self.reduction)


class MarginRankingLoss(Module):
    """Which of two is to be larger, as the target's sign says, by a margin: max(0, margin - target * (input1 - input2)).

    >>> import functad as fd
    >>> loss = fd.nn.MarginRankingLoss(margin=1.0, reduction="none")
    >>> loss(fd.tensor([3.0, 3.0]), fd.tensor([1.0, 1.0]), fd.tensor([1.0, -1.0])).tolist()
    [0.0, 3.0]
    """

    margin: float = 0.0
    reduction: str = "mean"

    def forward(self, input1: Any, input2: Any, target: Any) -> Any:
        """The loss."""
        return F.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class SoftMarginLoss(Module):
    """The logistic loss of targets +-1: log(1 + exp(-target * input)), without overflow.

    >>> import functad as fd
    >>> fd.nn.SoftMarginLoss(reduction="sum")(fd.tensor([1000.0, -1000.0]), fd.tensor([1.0, 1.0])).item()
    1000.0
    """

    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.soft_margin_loss(input, target, self.reduction)


class MultiMarginLoss(Module):
    """The hinge loss of several classes: the mean over classes of what scores lack of the margin, to the power `p`.

    >>> import functad as fd
    >>> fd.nn.MultiMarginLoss()(fd.tensor([[2.0, 1.5, 0.0, 0.0]]), fd.tensor([0])).item()
    0.125
    """

    p: int = 1
    margin: float = 1.0
    weight: Tensor | None = None
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.multi_margin_loss(input, target, self.p, self.margin, self.weight, self.reduction)


class CosineEmbeddingLoss(Module):
    """Of angles: 1 - cos where the target is 1, what of the cosine is above the margin where it is -1.

    >>> import functad as fd
    >>> x = fd.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> fd.nn.CosineEmbeddingLoss(reduction="none")(x, fd.tensor([[0.0, 1.0], [2.0, 0.0]]), fd.tensor([1, -1])).tolist()
    [1.0, 1.0]
    """

    margin: float = 0.0
    reduction: str = "mean"

    def forward(self, input1: Any, input2: Any, target: Any) -> Any:
        """The loss."""
        return F.cosine_embedding_loss(input1, input2, target, self.margin, self.reduction)


class TripletMarginLoss(Module):
    """How far the negative is from being by a margin farther from the anchor than the positive (Balntas et al. 2016).

    Distances are p-norms of the difference plus `eps`. `swap` takes the positive for the anchor where the negative is
    nearer to it.

    >>> import functad as fd
    >>> anchor, positive, negative = fd.zeros((1, 2)), fd.zeros((1, 2)), fd.tensor([[0.25, 0.0]])
    >>> f"{fd.nn.TripletMarginLoss()(anchor, positive, negative).item():.4f}"
    '0.7500'
    """

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
    """Minus the log probability of a sequence whose alignment is unknown (Graves et al. 2006).

    Args:
        blank: the number of the class that stands for none.
        reduction: as in `MSELoss`; "mean" divides each loss by the length of its target first.
        zero_infinity: whether the loss of a target that does not fit in is 0 instead of inf; its gradient is 0 either way.

    It is called with log probabilities `(time, batch, classes)`, targets `(batch, longest)` and the lengths of both.

    >>> import functad as fd
    >>> log_probs = fd.full((2, 1, 2), 0.5).log()
    >>> loss = fd.nn.CTCLoss()(log_probs, fd.tensor([[1]]), fd.tensor([2]), fd.tensor([1]))
    >>> f"{loss.exp().item():.4f}"  # 1 / P, of the alignments 1 1, 1 blank and blank 1
    '1.3333'
    """

    blank: int = 0
    reduction: str = "mean"
    zero_infinity: bool = False

    def forward(self, log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any) -> Any:
        """The loss."""
        return F.ctc_loss(
            log_probs, targets, input_lengths, target_lengths, self.blank, self.reduction, self.zero_infinity
        )


class MultiLabelMarginLoss(Module):
    """The hinge loss of several right classes, which the target lists up to the first -1.

    >>> import functad as fd
    >>> fd.nn.MultiLabelMarginLoss()(fd.tensor([0.5, 1.0]), fd.tensor([0, -1])).item()
    0.75
    """

    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.multilabel_margin_loss(input, target, self.reduction)


class MultiLabelSoftMarginLoss(Module):
    """The mean over classes of binary cross entropies of logits; `weight` multiplies each class.

    >>> import functad as fd
    >>> fd.nn.MultiLabelSoftMarginLoss()(fd.tensor([[1000.0, -1000.0]]), fd.tensor([[0.0, 0.0]])).item()
    500.0
    """

    weight: Tensor | None = None
    reduction: str = "mean"

    def forward(self, input: Any, target: Any) -> Any:
        """The loss."""
        return F.multilabel_soft_margin_loss(input, target, self.weight, self.reduction)


class TripletMarginWithDistanceLoss(Module):
    """`TripletMarginLoss` with any distance, a function of two tensors.

    >>> import functad as fd
    >>> loss = fd.nn.TripletMarginWithDistanceLoss(distance_function=lambda x, y: abs(x - y).sum(-1))
    >>> loss(fd.tensor([[0.0]]), fd.tensor([[2.0]]), fd.tensor([[0.5]])).item()
    2.5
    """

    distance_function: Callable[[Any, Any], Any] | None = field(default=None, static=True)
    margin: float = 1.0
    swap: bool = False
    reduction: str = "mean"

    def forward(self, anchor: Any, positive: Any, negative: Any) -> Any:
        """The loss."""
        return F.triplet_margin_with_distance_loss(
            anchor, positive, negative, distance_function=self.distance_function, margin=self.margin, swap=self.swap,
            reduction=self.reduction,
        )  # fmt: skip
