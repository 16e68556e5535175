"""Layers beside torch's: the same weights and inputs (waves, so that nothing needs storing), figures of value and gradient.

`python tests/layer_cases.py`, with torch installed, writes the figures that `test_layers.py` compares with.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

FIGURES = Path(__file__).parent / "data" / "layers.json"

PAD = np.array([[1, 1, 1, 0], [1, 1, 0, 0]], bool)
CAUSAL = np.tril(np.ones((4, 4), bool))

# name of the case: (layer, positional arguments, keyword arguments, shapes of inputs or arrays)
CASES: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], tuple[Any, ...]]] = {
    "linear": ("Linear", (3, 4), {}, ((5, 3),)),
    "bilinear": ("Bilinear", (3, 4, 2), {}, ((5, 3), (5, 4))),
    "conv1d": ("Conv1d", (4, 6, 3), {}, ((2, 4, 9),)),
    "conv1d reflect": ("Conv1d", (4, 6, 3), {"padding": 1, "padding_mode": "reflect"}, ((2, 4, 9),)),
    "conv1d same replicate": (
        "Conv1d", (4, 6, 4), {"padding": "same", "dilation": 2, "padding_mode": "replicate"}, ((2, 4, 9),)
    ),
    "conv2d": ("Conv2d", (4, 6, 3), {"stride": 2, "padding": 1}, ((2, 4, 7, 8),)),
    "conv2d same": ("Conv2d", (4, 6, 3), {"padding": "same", "dilation": 2, "groups": 2}, ((2, 4, 7, 8),)),
    "conv2d circular": ("Conv2d", (4, 6, 3), {"padding": (1, 2), "padding_mode": "circular"}, ((2, 4, 7, 8),)),
    "conv3d": ("Conv3d", (2, 3, 2), {"stride": 2, "bias": False}, ((1, 2, 4, 5, 6),)),
    "conv_transpose1d": ("ConvTranspose1d", (4, 6, 3), {"groups": 2, "dilation": 2}, ((2, 4, 9),)),
    "conv_transpose2d": (
        "ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, ((2, 4, 5, 6),)
    ),
    "conv_transpose3d": ("ConvTranspose3d", (2, 3, 2), {"stride": 2}, ((1, 2, 2, 3, 2),)),
    "embedding": ("Embedding", (7, 3), {"padding_idx": 1}, (np.array([[1, 2, 2], [0, 6, 1]]),)),
    "layer_norm": ("LayerNorm", ((3, 4),), {}, ((2, 3, 4),)),
    "rms_norm": ("RMSNorm", (4,), {}, ((2, 3, 4),)),
    "group_norm": ("GroupNorm", (2, 6), {}, ((3, 6, 4),)),
    "local_response_norm": ("LocalResponseNorm", (3,), {}, ((2, 5, 4, 4),)),
    "batch_norm1d": ("BatchNorm1d", (4,), {}, ((5, 4),)),
    "batch_norm1d mean": ("BatchNorm1d", (4,), {"momentum": None}, ((5, 4, 3),)),
    "batch_norm2d": ("BatchNorm2d", (4,), {"affine": False}, ((5, 4, 3, 2),)),
    "batch_norm3d": ("BatchNorm3d", (2,), {"track_running_stats": False}, ((2, 2, 3, 2, 2),)),
    "instance_norm1d": ("InstanceNorm1d", (4,), {}, ((4, 6),)),
    "instance_norm2d": ("InstanceNorm2d", (4,), {"affine": True, "track_running_stats": True}, ((5, 4, 3, 2),)),
    "lstm": ("LSTM", (3, 5), {}, ((4, 2, 3),)),
    "lstm deep": (
        "LSTM", (3, 5), {"num_layers": 2, "bidirectional": True, "batch_first": True}, ((4, 2, 3),)
    ),
    "lstm no batch": ("LSTM", (3, 5), {"bias": False}, ((4, 3),)),
    "gru": ("GRU", (3, 5), {"num_layers": 2}, ((4, 2, 3),)),
    "gru both": ("GRU", (3, 5), {"bidirectional": True}, ((4, 2, 3),)),
    "rnn": ("RNN", (3, 5), {"num_layers": 2}, ((4, 2, 3),)),
    "rnn relu": ("RNN", (3, 5), {"nonlinearity": "relu"}, ((4, 2, 3),)),
    "lstm cell": ("LSTMCell", (3, 5), {}, ((4, 3),)),
    "gru cell": ("GRUCell", (3, 5), {}, ((4, 3),)),
    "rnn cell": ("RNNCell", (3, 5), {}, ((4, 3),)),
    "attention": ("MultiheadAttention", (8, 2), {}, ((3, 4, 8), (6, 4, 8), (6, 4, 8))),
    "attention widths": (
        "MultiheadAttention", (8, 2), {"kdim": 3, "vdim": 5}, ((3, 4, 8), (6, 4, 3), (6, 4, 5))
    ),
    "attention batch_first": (
        "MultiheadAttention", (8, 2), {"batch_first": True, "bias": False}, ((2, 3, 8), (2, 6, 8), (2, 6, 8))
    ),
    "attention padding": (
        "MultiheadAttention", (8, 2), {"batch_first": True}, ((2, 4, 8), (2, 4, 8), (2, 4, 8), PAD)
    ),
    "encoder layer": ("TransformerEncoderLayer", (8, 2, 16, 0.0), {}, ((3, 4, 8),)),
    "encoder layer, norm first": (
        "TransformerEncoderLayer", (8, 2, 16, 0.0),
        {"norm_first": True, "batch_first": True, "activation": "gelu"}, ((2, 4, 8), CAUSAL, PAD),
    ),
    "decoder layer": ("TransformerDecoderLayer", (8, 2, 16, 0.0), {}, ((3, 4, 8), (5, 4, 8))),
    "decoder layer, norm first": (
        "TransformerDecoderLayer", (8, 2, 16, 0.0), {"norm_first": True, "batch_first": True},
        ((2, 4, 8), (2, 5, 8), CAUSAL),
    ),
    "prelu": ("PReLU", (3,), {}, ((2, 3, 4),)),
    **{
        name: (name, (), {}, ((3, 5),))
        for name in (
            "ReLU", "ReLU6", "LeakyReLU", "ELU", "SELU", "CELU", "GELU", "SiLU", "Mish", "Hardswish", "Hardtanh",
            "Hardshrink", "Softshrink", "Softplus", "Softsign", "Sigmoid", "LogSigmoid", "Tanh", "Tanhshrink",
        )
    },
    "max_pool2d": ("MaxPool2d", (3, 2, 1), {}, ((2, 3, 7, 8),)),
    "avg_pool1d": ("AvgPool1d", (3,), {"stride": 2, "ceil_mode": True}, ((2, 3, 8),)),
    "avg_pool2d": ("AvgPool2d", (3,), {"stride": 2, "padding": 1, "count_include_pad": False}, ((2, 3, 7, 8),)),
    "adaptive_avg_pool2d": ("AdaptiveAvgPool2d", ((3, None),), {}, ((2, 3, 7, 4),)),
    "adaptive_max_pool1d": ("AdaptiveMaxPool1d", (3,), {}, ((2, 3, 7),)),
    "lp_pool2d": ("LPPool2d", (2, 3), {}, ((2, 3, 7, 8),)),
    "lp_pool3d": ("LPPool3d", (3, 2), {}, ((2, 3, 4, 4, 5),)),
    "unfold": ("Unfold", ((2, 3),), {"padding": 1, "stride": 2}, ((2, 3, 5, 6),)),
    "fold": ("Fold", ((4, 5), (2, 3)), {"padding": (0, 1)}, ((2, 12, 15),)),
    "channel_shuffle": ("ChannelShuffle", (2,), {}, ((2, 6, 3),)),
    "softmax2d": ("Softmax2d", (), {}, ((2, 3, 2, 4),)),
    **{
        f"{kind}{n}d": (f"{kind}{n}d", (tuple(range(1, 2 * n + 1)) if n < 3 else 1, *value), {}, ((2, 1, 5, 6, 4)[: n + 2],))
        for kind, value in (
            ("ConstantPad", (0.5,)), ("ZeroPad", ()), ("ReflectionPad", ()), ("ReplicationPad", ()), ("CircularPad", ()),
        )
        for n in (1, 2, 3)
    },
    "cosine_similarity": ("CosineSimilarity", (), {"eps": 0.1}, ((3, 4), (3, 4))),
    "pairwise_distance": ("PairwiseDistance", (3.0,), {"keepdim": True}, ((3, 4), (3, 4))),
    "embedding_bag": (
        "EmbeddingBag", (7, 3), {"mode": "max", "padding_idx": 1}, (np.array([1, 2, 2, 0, 6, 1]), np.array([0, 3]))
    ),
    "multilabel_margin_loss": ("MultiLabelMarginLoss", (), {}, ((2, 4), np.array([[0, 2, -1, 1], [3, 1, 0, -1]]))),
    "multilabel_soft_margin_loss": (
        "MultiLabelSoftMarginLoss", (), {}, ((2, 4), np.array([[0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]]))
    ),
    "triplet_margin_with_distance_loss": (
        "TripletMarginWithDistanceLoss", (), {"margin": 2.0}, ((3, 4), (3, 4), (3, 4))
    ),
    "transformer": (
        "Transformer", (8, 2, 1, 2, 16, 0.0), {"batch_first": True}, ((3, 4, 8), (3, 5, 8))
    ),
    "pixel_shuffle": ("PixelShuffle", (2,), {}, ((1, 8, 2, 3),)),
    "upsample": ("Upsample", (), {"scale_factor": 2, "mode": "bilinear", "align_corners": True}, ((1, 2, 3, 4),)),
    "cosine_embedding_loss": (
        "CosineEmbeddingLoss", (), {"margin": 0.2}, ((3, 4), (3, 4), np.array([1, -1, 1]))
    ),
    "cross_entropy_loss": (
        "CrossEntropyLoss", (), {"label_smoothing": 0.1, "ignore_index": 2}, ((4, 3), np.array([0, 2, 1, 1]))
    ),
    "triplet_margin_loss": ("TripletMarginLoss", (), {"swap": True}, ((3, 4), (3, 4), (3, 4))),
    "huber_loss": ("HuberLoss", (), {"delta": 0.5}, ((3, 4), (3, 4))),
}  # fmt: skip

FLIPPED = ("MultiheadAttention", "TransformerEncoderLayer", "TransformerDecoderLayer")
"""Layers whose boolean masks say the opposite in torch."""


def wave(shape: tuple[int, ...], seed: int, phase: float = 0.0) -> np.ndarray:
    """Numbers that look random and are the same everywhere."""
    n = np.arange(math.prod(shape), dtype=np.float64)
    return (np.sin(n * (1.3 + 0.17 * seed) + seed + phase) + 0.3 * np.cos(n * n * 0.7 + seed)).reshape(shape)


def inputs_of(case: str) -> list[np.ndarray]:
    return [x if isinstance(x, np.ndarray) else wave(x, i + 1) for i, x in enumerate(CASES[case][3])]


def weight_of(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return 0.5 * wave(shape, sum(map(ord, name)) % 23, 0.4) + (1.0 if name.endswith("norm.weight") else 0.0)


def figures(value: list[np.ndarray], grads: dict[str, np.ndarray]) -> list[float]:
    """The value and each gradient, as products with waves."""
    found = [float((y * wave(y.shape, 3)).sum()) for y in value]
    return found + [float((g * wave(g.shape, 5)).sum()) for _, g in sorted(grads.items())]


def flat(out: Any) -> list[Any]:
    if isinstance(out, (tuple, list)):
        return [leaf for part in out for leaf in flat(part)]
    return [] if out is None else [out]


def _torch_figures(case: str) -> list[float]:
    import torch  # noqa: PLC0415  # an optional package

    layer, args, kwargs, _ = CASES[case]
    model = getattr(torch.nn, layer)(*args, **kwargs).double()
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(torch.tensor(weight_of(name, tuple(p.shape))))
    arrays = inputs_of(case)
    xs = [
        torch.tensor(~x if x.dtype == bool and layer in FLIPPED else x, requires_grad=x.dtype == np.float64)
        for x in arrays
    ]
    outs = flat(model(*xs))
    sum((y * torch.tensor(wave(tuple(y.shape), 3))).sum() for y in outs).backward()
    grads = {name: p.grad.numpy() for name, p in model.named_parameters()}
    grads |= {f"~{i}": x.grad.numpy() for i, x in enumerate(xs) if x.requires_grad}
    return figures([y.detach().numpy() for y in outs], grads)


if __name__ == "__main__":
    FIGURES.parent.mkdir(exist_ok=True)
    rows = [f"{json.dumps(case)}: {json.dumps(_torch_figures(case))}" for case in CASES]
    FIGURES.write_text("{\n" + ",\n".join(rows) + "\n}\n")
