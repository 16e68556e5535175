"""functad: an eager autodiff tape and composable transforms over JAX arrays.

Write eager code on tensors, in object style (`loss.backward()`) or functional style
(`fd.grad(f)(x)`); both run over one tape and one set of ops.
"""

import typing as _typing

from functad import errors as errors
from functad import nn as nn
from functad import numpy as numpy
from functad import op as op
from functad import ops as ops
from functad import optim as optim
from functad import quant as quant
from functad import random as random
from functad import special as special
from functad import testing as testing
from functad.backends import autodiff as _autodiff  # a device finds its backends once they are imported
from functad.backends import fusion as _fusion
from functad.backends import fusion_nested as _fusion_nested
from functad.backends import numpy as _numpy
from functad.backends import xla as _xla
from functad.creation import arange as arange
from functad.creation import eye as eye
from functad.creation import full as full
from functad.creation import full_like as full_like
from functad.creation import linspace as linspace
from functad.creation import ones as ones
from functad.creation import ones_like as ones_like
from functad.creation import tensor as tensor
from functad.creation import zeros as zeros
from functad.creation import zeros_like as zeros_like
from functad.device import Device as Device
from functad.device import GradientCheckpointing as GradientCheckpointing
from functad.device import set_default_device as set_default_device
from functad.dtypes import bfloat16 as bfloat16
from functad.dtypes import bool_ as bool_
from functad.dtypes import complex64 as complex64
from functad.dtypes import complex128 as complex128
from functad.dtypes import enable_x64 as enable_x64
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
from functad.errors import FunctadError as FunctadError
from functad.gradients import GradientReport as GradientReport
from functad.gradients import Gradients as Gradients
from functad.gradients import Reason as Reason
from functad.hints import listed as _listed
from functad.hints import missing_name as _missing_name
from functad.keywords import explain as _explain
from functad.module import Module as Module
from functad.module import ParamGroup as ParamGroup
from functad.module import field as field
from functad.ops import concatenate as concatenate
from functad.ops import stack as stack
from functad.ops import where as where
from functad.ops.ieee import strict_ieee as strict_ieee
from functad.ops.transfer import stop_gradient as stop_gradient
from functad.param import Param as Param
from functad.param import ParamId as ParamId
from functad.profile import profile as profile
from functad.quant import QuantScheme as QuantScheme
from functad.quant import QuantTensor as QuantTensor
from functad.random import seed as seed
from functad.records import LoadReport as LoadReport
from functad.records import load as load
from functad.records import load_into as load_into
from functad.records import save as save
from functad.tensor import Tensor as Tensor
from functad.transforms.associative import associative_scan as associative_scan
from functad.transforms.checkpoint import checkpoint as checkpoint
from functad.transforms.control_flow import cond as cond
from functad.transforms.control_flow import fori_loop as fori_loop
from functad.transforms.control_flow import scan as scan
from functad.transforms.control_flow import switch as switch
from functad.transforms.control_flow import while_loop as while_loop
from functad.transforms.custom import custom_jvp as custom_jvp
from functad.transforms.custom import custom_vjp as custom_vjp
from functad.transforms.debug import debug_nans as debug_nans
from functad.transforms.forward import jvp as jvp
from functad.transforms.forward import linearize as linearize
from functad.transforms.grad import grad as grad
from functad.transforms.grad import value_and_grad as value_and_grad
from functad.transforms.interop import from_jax as from_jax
from functad.transforms.interop import to_jax as to_jax
from functad.transforms.jacobian import hessian as hessian
from functad.transforms.jacobian import hvp as hvp
from functad.transforms.jacobian import jacfwd as jacfwd
from functad.transforms.jacobian import jacrev as jacrev
from functad.transforms.jit import jit as jit
from functad.transforms.no_grad import no_grad as no_grad
from functad.transforms.vjp import vjp as vjp
from functad.transforms.vmap import vmap as vmap

__version__ = "0.1.0"

_explain(globals())

_TAKEN = ("errors", "numpy", "op", "ops", "random", "testing")
"""Modules that `from functad import *` does not bring: other packages have these names."""

__all__ = [_name for _name in _listed(globals()) if not _name.startswith("_") and _name not in _TAKEN]


def __dir__() -> list[str]:
    return _listed(globals())


if not _typing.TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise _missing_name(__name__, name, __dir__())
