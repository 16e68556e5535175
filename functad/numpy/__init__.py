"""The array namespace: NumPy's names for functad's functions, and the array API standard's.

>>> import functad as fd
>>> import functad.numpy as fnp
>>> fnp.sum(fnp.multiply(fd.ones(3), 2.0)).item()
6.0

Arguments have NumPy's names and order. What NumPy does in place (`put_along_axis`, `fill_diagonal`,
...) returns a new tensor here. NumPy's own functions, called on tensors, run these.
"""

import sys as _sys
import typing as _typing

from functad import protocols as _protocols
from functad.dtypes import bfloat16 as bfloat16
from functad.dtypes import bool_ as bool
from functad.dtypes import bool_ as bool_
from functad.dtypes import complex64 as complex64
from functad.dtypes import complex128 as complex128
from functad.dtypes import float16 as float16
from functad.dtypes import float32 as float32
from functad.dtypes import float64 as float64
from functad.dtypes import int8 as int8
from functad.dtypes import int16 as int16
from functad.dtypes import int32 as int32
from functad.dtypes import int64 as int64
from functad.dtypes import uint8 as uint8
from functad.dtypes import uint16 as uint16
from functad.dtypes import uint32 as uint32
from functad.dtypes import uint64 as uint64
from functad.hints import listed as _listed
from functad.hints import missing_name as _missing_name
from functad.keywords import explain as _explain
from functad.numpy import fft as fft
from functad.numpy import linalg as linalg
from functad.numpy.calculus import *
from functad.numpy.creation import *
from functad.numpy.dtype_functions import *
from functad.numpy.elementwise import *
from functad.numpy.functional import *
from functad.numpy.grids import *
from functad.numpy.manipulation import *
from functad.numpy.nans import *
from functad.numpy.padding import *
from functad.numpy.polynomial import *
from functad.numpy.products import *
from functad.numpy.quantiles import *
from functad.numpy.reductions import *
from functad.numpy.searching import *
from functad.numpy.sets import *
from functad.numpy.statistics import *
from functad.ops import abs as abs
from functad.ops import abs as absolute
from functad.ops import add as add
from functad.ops import arccos as acos
from functad.ops import arccos as arccos
from functad.ops import arccosh as acosh
from functad.ops import arccosh as arccosh
from functad.ops import arcsin as arcsin
from functad.ops import arcsin as asin
from functad.ops import arcsinh as arcsinh
from functad.ops import arcsinh as asinh
from functad.ops import arctan as arctan
from functad.ops import arctan as atan
from functad.ops import arctan2 as arctan2
from functad.ops import arctan2 as atan2
from functad.ops import arctanh as arctanh
from functad.ops import arctanh as atanh
from functad.ops import atleast_1d as atleast_1d
from functad.ops import atleast_2d as atleast_2d
from functad.ops import atleast_3d as atleast_3d
from functad.ops import bitwise_and as bitwise_and
from functad.ops import bitwise_count as bitwise_count
from functad.ops import bitwise_not as bitwise_invert
from functad.ops import bitwise_not as bitwise_not
from functad.ops import bitwise_not as invert
from functad.ops import bitwise_or as bitwise_or
from functad.ops import bitwise_xor as bitwise_xor
from functad.ops import broadcast_shapes as broadcast_shapes
from functad.ops import cbrt as cbrt
from functad.ops import ceil as ceil
from functad.ops import conj as conj
from functad.ops import conj as conjugate
from functad.ops import copysign as copysign
from functad.ops import cos as cos
from functad.ops import cosh as cosh
from functad.ops import cummax as cummax
from functad.ops import cummin as cummin
from functad.ops import deg2rad as deg2rad
from functad.ops import deg2rad as radians
from functad.ops import div as divide
from functad.ops import div as true_divide
from functad.ops import equal as equal
from functad.ops import exp as exp
from functad.ops import exp2 as exp2
from functad.ops import expm1 as expm1
from functad.ops import floor as floor
from functad.ops import floor_divide as floor_divide
from functad.ops import fmod as fmod
from functad.ops import frexp as frexp
from functad.ops import gcd as gcd
from functad.ops import greater as greater
from functad.ops import greater_equal as greater_equal
from functad.ops import hypot as hypot
from functad.ops import i0 as i0
from functad.ops import imag as imag
from functad.ops import isfinite as isfinite
from functad.ops import isinf as isinf
from functad.ops import isnan as isnan
from functad.ops import lcm as lcm
from functad.ops import ldexp as ldexp
from functad.ops import left_shift as bitwise_left_shift
from functad.ops import left_shift as left_shift
from functad.ops import less as less
from functad.ops import less_equal as less_equal
from functad.ops import log as log
from functad.ops import log1p as log1p
from functad.ops import log2 as log2
from functad.ops import log10 as log10
from functad.ops import logaddexp as logaddexp
from functad.ops import logaddexp2 as logaddexp2
from functad.ops import logical_and as logical_and
from functad.ops import logical_not as logical_not
from functad.ops import logical_or as logical_or
from functad.ops import logical_xor as logical_xor
from functad.ops import matmul as matmul
from functad.ops import maximum as maximum
from functad.ops import minimum as minimum
from functad.ops import modf as modf
from functad.ops import mul as multiply
from functad.ops import neg as negative
from functad.ops import nextafter as nextafter
from functad.ops import not_equal as not_equal
from functad.ops import pow as pow
from functad.ops import pow as power
from functad.ops import rad2deg as degrees
from functad.ops import rad2deg as rad2deg
from functad.ops import real as real
from functad.ops import reciprocal as reciprocal
from functad.ops import remainder as mod
from functad.ops import remainder as remainder
from functad.ops import right_shift as bitwise_right_shift
from functad.ops import right_shift as right_shift
from functad.ops import sign as sign
from functad.ops import signbit as signbit
from functad.ops import sin as sin
from functad.ops import sinc as sinc
from functad.ops import sinh as sinh
from functad.ops import sqrt as sqrt
from functad.ops import square as square
from functad.ops import sub as subtract
from functad.ops import tan as tan
from functad.ops import tanh as tanh
from functad.ops import topk as topk
from functad.ops import trunc as trunc
from functad.ops import vecdot as vecdot

__array_api_version__ = "2024.12"

e = 2.718281828459045
euler_gamma = 0.5772156649015329
inf = float("inf")
nan = float("nan")
newaxis = None
pi = 3.141592653589793

_explain(globals())
_explain(vars(linalg))
_explain(vars(fft))
_protocols.enter(_sys.modules[__name__])


def __dir__() -> list[str]:
    return _listed(globals())


if not _typing.TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise _missing_name(__name__, name, __dir__())
