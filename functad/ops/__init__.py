"""Every op, and the functions over them.

`TABLE` holds the primitive ops by name, `describe` prints all that is known of one.
"""

from __future__ import annotations

from functad.ops.activation import *  # each family lists its public names in __all__
from functad.ops.arithmetic import *
from functad.ops.at import *
from functad.ops.contract import *
from functad.ops.conv import *
from functad.ops.convolve import *
from functad.ops.cumulative import *
from functad.ops.describe import *
from functad.ops.diagonal import *
from functad.ops.einsum import *
from functad.ops.elementary import *
from functad.ops.extrema import *
from functad.ops.floats import *
from functad.ops.fourier import *
from functad.ops.index import *
from functad.ops.join import *
from functad.ops.linalg_built import *
from functad.ops.linalg_det import *
from functad.ops.linalg_eigen import *
from functad.ops.linalg_expm import *
from functad.ops.linalg_factors import *
from functad.ops.linalg_norms import *
from functad.ops.linalg_qr import *
from functad.ops.linalg_solve import *
from functad.ops.linalg_svd import *
from functad.ops.logic import *
from functad.ops.loss import *
from functad.ops.normalize import *
from functad.ops.op import Cost, Op, Samples
from functad.ops.order import *
from functad.ops.outside import *
from functad.ops.pick import *
from functad.ops.place import *
from functad.ops.quantize import *
from functad.ops.reduce import *
from functad.ops.resample import *
from functad.ops.rules import TABLE, add, custom, elementwise, linear, mul, multilinear, neg, nondiff, reduction
from functad.ops.search import *
from functad.ops.segment import *
from functad.ops.shape import *
from functad.ops.slope import *
from functad.ops.special_bessel import *
from functad.ops.special_elliptic import *
from functad.ops.special_entropy import *
from functad.ops.special_error import *
from functad.ops.special_gamma import *
from functad.ops.special_integral import *
from functad.ops.special_more import *
from functad.ops.special_polynomial import *
from functad.ops.standardize import *
from functad.ops.transfer import *
from functad.ops.window import *
