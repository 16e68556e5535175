"""Special functions, under SciPy's names and torch's."""

from functad.ops import erf as erf
from functad.ops import erfc as erfc
from functad.ops import log_sigmoid as log_expit
from functad.ops import log_softmax as log_softmax
from functad.ops import logsumexp as logsumexp
from functad.ops import sigmoid as expit
from functad.ops import sinc as sinc
from functad.ops import softmax as softmax
from functad.ops import xlogy as xlogy
