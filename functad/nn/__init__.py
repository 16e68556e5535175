"""Neural networks: layers, the functions they are made of (`functad.nn.functional`), and first values (`functad.nn.init`)."""

import typing as _typing

from functad.hints import listed as _listed
from functad.hints import missing_name as _missing_name
from functad.nn import functional as functional
from functad.nn import init as init
from functad.nn.activation import CELU as CELU
from functad.nn.activation import ELU as ELU
from functad.nn.activation import GELU as GELU
from functad.nn.activation import GLU as GLU
from functad.nn.activation import SELU as SELU
from functad.nn.activation import Hardshrink as Hardshrink
from functad.nn.activation import Hardsigmoid as Hardsigmoid
from functad.nn.activation import Hardswish as Hardswish
from functad.nn.activation import Hardtanh as Hardtanh
from functad.nn.activation import LeakyReLU as LeakyReLU
from functad.nn.activation import LogSigmoid as LogSigmoid
from functad.nn.activation import LogSoftmax as LogSoftmax
from functad.nn.activation import Mish as Mish
from functad.nn.activation import PReLU as PReLU
from functad.nn.activation import ReLU as ReLU
from functad.nn.activation import ReLU6 as ReLU6
from functad.nn.activation import RReLU as RReLU
from functad.nn.activation import Sigmoid as Sigmoid
from functad.nn.activation import SiLU as SiLU
from functad.nn.activation import Softmax as Softmax
from functad.nn.activation import Softmin as Softmin
from functad.nn.activation import Softplus as Softplus
from functad.nn.activation import Softshrink as Softshrink
from functad.nn.activation import Softsign as Softsign
from functad.nn.activation import Tanh as Tanh
from functad.nn.activation import Tanhshrink as Tanhshrink
from functad.nn.activation import Threshold as Threshold
from functad.nn.attention import KVCache as KVCache
from functad.nn.attention import MultiHeadAttention as MultiHeadAttention
from functad.nn.attention import MultiheadAttention as MultiheadAttention
from functad.nn.container import Flatten as Flatten
from functad.nn.container import Identity as Identity
from functad.nn.container import Lambda as Lambda
from functad.nn.container import PixelShuffle as PixelShuffle
from functad.nn.container import PixelUnshuffle as PixelUnshuffle
from functad.nn.container import Sequential as Sequential
from functad.nn.container import Unflatten as Unflatten
from functad.nn.container import Upsample as Upsample
from functad.nn.convolution import Conv1d as Conv1d
from functad.nn.convolution import Conv2d as Conv2d
from functad.nn.convolution import Conv3d as Conv3d
from functad.nn.convolution import ConvTranspose1d as ConvTranspose1d
from functad.nn.convolution import ConvTranspose2d as ConvTranspose2d
from functad.nn.convolution import ConvTranspose3d as ConvTranspose3d
from functad.nn.dropout import AlphaDropout as AlphaDropout
from functad.nn.dropout import Dropout as Dropout
from functad.nn.dropout import Dropout1d as Dropout1d
from functad.nn.dropout import Dropout2d as Dropout2d
from functad.nn.dropout import Dropout3d as Dropout3d
from functad.nn.embedding import Embedding as Embedding
from functad.nn.linear import Bilinear as Bilinear
from functad.nn.linear import Linear as Linear
from functad.nn.lora import LoraLinear as LoraLinear
from functad.nn.lora import lora as lora
from functad.nn.lora import merge_lora as merge_lora
from functad.nn.loss import BCELoss as BCELoss
from functad.nn.loss import BCEWithLogitsLoss as BCEWithLogitsLoss
from functad.nn.loss import CosineEmbeddingLoss as CosineEmbeddingLoss
from functad.nn.loss import CrossEntropyLoss as CrossEntropyLoss
from functad.nn.loss import CTCLoss as CTCLoss
from functad.nn.loss import GaussianNLLLoss as GaussianNLLLoss
from functad.nn.loss import HingeEmbeddingLoss as HingeEmbeddingLoss
from functad.nn.loss import HuberLoss as HuberLoss
from functad.nn.loss import KLDivLoss as KLDivLoss
from functad.nn.loss import L1Loss as L1Loss
from functad.nn.loss import MarginRankingLoss as MarginRankingLoss
from functad.nn.loss import MSELoss as MSELoss
from functad.nn.loss import MultiMarginLoss as MultiMarginLoss
from functad.nn.loss import NLLLoss as NLLLoss
from functad.nn.loss import PoissonNLLLoss as PoissonNLLLoss
from functad.nn.loss import SmoothL1Loss as SmoothL1Loss
from functad.nn.loss import SoftMarginLoss as SoftMarginLoss
from functad.nn.loss import TripletMarginLoss as TripletMarginLoss
from functad.nn.norm import BatchNorm1d as BatchNorm1d
from functad.nn.norm import BatchNorm2d as BatchNorm2d
from functad.nn.norm import BatchNorm3d as BatchNorm3d
from functad.nn.norm import GroupNorm as GroupNorm
from functad.nn.norm import InstanceNorm1d as InstanceNorm1d
from functad.nn.norm import InstanceNorm2d as InstanceNorm2d
from functad.nn.norm import InstanceNorm3d as InstanceNorm3d
from functad.nn.norm import LayerNorm as LayerNorm
from functad.nn.norm import LocalResponseNorm as LocalResponseNorm
from functad.nn.norm import RMSNorm as RMSNorm
from functad.nn.pooling import AdaptiveAvgPool1d as AdaptiveAvgPool1d
from functad.nn.pooling import AdaptiveAvgPool2d as AdaptiveAvgPool2d
from functad.nn.pooling import AdaptiveAvgPool3d as AdaptiveAvgPool3d
from functad.nn.pooling import AdaptiveMaxPool1d as AdaptiveMaxPool1d
from functad.nn.pooling import AdaptiveMaxPool2d as AdaptiveMaxPool2d
from functad.nn.pooling import AdaptiveMaxPool3d as AdaptiveMaxPool3d
from functad.nn.pooling import AvgPool1d as AvgPool1d
from functad.nn.pooling import AvgPool2d as AvgPool2d
from functad.nn.pooling import AvgPool3d as AvgPool3d
from functad.nn.pooling import LPPool1d as LPPool1d
from functad.nn.pooling import LPPool2d as LPPool2d
from functad.nn.pooling import MaxPool1d as MaxPool1d
from functad.nn.pooling import MaxPool2d as MaxPool2d
from functad.nn.pooling import MaxPool3d as MaxPool3d
from functad.nn.position import RotaryEncoding as RotaryEncoding
from functad.nn.position import SinusoidalEncoding as SinusoidalEncoding
from functad.nn.recurrent import GRU as GRU
from functad.nn.recurrent import LSTM as LSTM
from functad.nn.recurrent import RNN as RNN
from functad.nn.recurrent import Bidirectional as Bidirectional
from functad.nn.recurrent import GRUCell as GRUCell
from functad.nn.recurrent import LSTMCell as LSTMCell
from functad.nn.recurrent import RNNCell as RNNCell
from functad.nn.transformer import TransformerDecoder as TransformerDecoder
from functad.nn.transformer import TransformerDecoderLayer as TransformerDecoderLayer
from functad.nn.transformer import TransformerEncoder as TransformerEncoder
from functad.nn.transformer import TransformerEncoderLayer as TransformerEncoderLayer
from functad.nn.transformer import causal_mask as causal_mask


def __dir__() -> list[str]:
    return _listed(globals())


if not _typing.TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise _missing_name(__name__, name, __dir__())
