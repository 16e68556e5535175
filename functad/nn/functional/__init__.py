"""Functions of neural networks, with torch's names and argument order; `axis` where torch says `dim`.

>>> import functad as fd
>>> import functad.nn.functional as F
>>> F.relu(fd.tensor([-1.0, 2.0])).tolist()
[0.0, 2.0]
"""

from functad.ops import gelu as gelu
from functad.ops import leaky_relu as leaky_relu
from functad.ops import log_sigmoid as logsigmoid
from functad.ops import log_softmax as log_softmax
from functad.ops import one_hot as one_hot
from functad.ops import relu as relu
from functad.ops import sigmoid as sigmoid
from functad.ops import silu as silu
from functad.ops import softmax as softmax
from functad.ops import softplus as softplus
from functad.ops import tanh as tanh
