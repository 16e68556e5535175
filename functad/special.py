"""Special functions, under SciPy's names, torch's and JAX's.

Each has its derivative in every argument where mathematics has one in closed form; elsewhere the
derivative is refused. Half types compute in float32 and round once.

>>> import functad as fd
>>> fd.grad(fd.special.xlogy)(0.0, 0.0).item()
0.0
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from functad import dtypes, ops
from functad.errors import ArgumentError
from functad.hints import listed as _listed
from functad.hints import missing_name as _missing_name
from functad.keywords import explain as _explain
from functad.ops import bessel_j0 as bessel_j0
from functad.ops import bessel_j0 as j0
from functad.ops import bessel_j1 as bessel_j1
from functad.ops import bessel_j1 as j1
from functad.ops import bessel_jn as bessel_jn
from functad.ops import bessel_y0 as bessel_y0
from functad.ops import bessel_y0 as y0
from functad.ops import bessel_y1 as bessel_y1
from functad.ops import bessel_y1 as y1
from functad.ops import bessel_yn as bessel_yn
from functad.ops import beta as beta
from functad.ops import betainc as betainc
from functad.ops import betaln as betaln
from functad.ops import binom as binom
from functad.ops import boxcox as boxcox
from functad.ops import boxcox1p as boxcox1p
from functad.ops import cbrt as cbrt
from functad.ops import chebyshev_polynomial_t as chebyshev_polynomial_t
from functad.ops import chebyshev_polynomial_u as chebyshev_polynomial_u
from functad.ops import chebyshev_polynomial_v as chebyshev_polynomial_v
from functad.ops import chebyshev_polynomial_w as chebyshev_polynomial_w
from functad.ops import comb as comb
from functad.ops import dawsn as dawsn
from functad.ops import digamma as digamma
from functad.ops import digamma as psi
from functad.ops import ellipe as ellipe
from functad.ops import ellipk as ellipk
from functad.ops import ellipkm1 as ellipkm1
from functad.ops import entr as entr
from functad.ops import erf as erf
from functad.ops import erfc as erfc
from functad.ops import erfcinv as erfcinv
from functad.ops import erfcx as erfcx
from functad.ops import erfinv as erfinv
from functad.ops import exp1 as exp1
from functad.ops import exp2 as exp2
from functad.ops import expi as expi
from functad.ops import expm1 as expm1
from functad.ops import expn as expn
from functad.ops import exprel as exprel
from functad.ops import factorial as factorial
from functad.ops import fresnel as fresnel
from functad.ops import gamma as gamma
from functad.ops import gammainc as gammainc
from functad.ops import gammaincc as gammaincc
from functad.ops import gammaln as gammaln
from functad.ops import gammaln as lgamma
from functad.ops import gammaln as loggamma
from functad.ops import gammasgn as gammasgn
from functad.ops import hermite_polynomial_h as hermite_polynomial_h
from functad.ops import hermite_polynomial_he as hermite_polynomial_he
from functad.ops import hyp1f1 as hyp1f1
from functad.ops import i0 as i0
from functad.ops import i0 as modified_bessel_i0
from functad.ops import i0e as i0e
from functad.ops import i1 as i1
from functad.ops import i1 as modified_bessel_i1
from functad.ops import i1e as i1e
from functad.ops import inv_boxcox as inv_boxcox
from functad.ops import inv_boxcox1p as inv_boxcox1p
from functad.ops import k0 as k0
from functad.ops import k0 as modified_bessel_k0
from functad.ops import k0e as k0e
from functad.ops import k0e as scaled_modified_bessel_k0
from functad.ops import k1 as k1
from functad.ops import k1 as modified_bessel_k1
from functad.ops import k1e as k1e
from functad.ops import k1e as scaled_modified_bessel_k1
from functad.ops import kl_div as kl_div
from functad.ops import laguerre_polynomial_l as laguerre_polynomial_l
from functad.ops import lambertw as lambertw
from functad.ops import legendre_polynomial_p as legendre_polynomial_p
from functad.ops import log1mexp as log1mexp
from functad.ops import log1p as log1p
from functad.ops import log1p_ratio as log1p_ratio
from functad.ops import log_ndtr as log_ndtr
from functad.ops import log_sigmoid as log_expit
from functad.ops import log_softmax as log_softmax
from functad.ops import logit as logit
from functad.ops import multigammaln as multigammaln
from functad.ops import multigammaln as mvlgamma
from functad.ops import ndtr as ndtr
from functad.ops import ndtri as ndtri
from functad.ops import owens_t as owens_t
from functad.ops import poch as poch
from functad.ops import polygamma as polygamma
from functad.ops import rel_entr as rel_entr
from functad.ops import round as round
from functad.ops import shifted_chebyshev_polynomial_t as shifted_chebyshev_polynomial_t
from functad.ops import shifted_chebyshev_polynomial_u as shifted_chebyshev_polynomial_u
from functad.ops import shifted_chebyshev_polynomial_v as shifted_chebyshev_polynomial_v
from functad.ops import shifted_chebyshev_polynomial_w as shifted_chebyshev_polynomial_w
from functad.ops import sici as sici
from functad.ops import sigmoid as expit
from functad.ops import sinc as sinc
from functad.ops import softmax as softmax
from functad.ops import softplus as softplus
from functad.ops import spence as spence
from functad.ops import spherical_bessel_j0 as spherical_bessel_j0
from functad.ops import voigt_profile as voigt_profile
from functad.ops import wofz as wofz
from functad.ops import xlog1py as xlog1py
from functad.ops import xlogy as xlogy
from functad.ops import zeta as zeta
from functad.ops.halves import rounded_once
from functad.ops.operand import operand, operands


@rounded_once
def logsumexp(
    a: Any, axis: Any = None, b: Any = None, keepdims: bool = False, return_sign: bool = False, where: Any = None
) -> Any:
    """log(sum(b * exp(a))) over axes, without overflow; -inf over nothing.

    Args:
        a: the exponents.
        axis: the axes to sum over, all by default.
        b: factors, which broadcast with `a`; where one is 0 its term is left out, whatever `a` is there.
        keepdims: keep the summed axes with length 1.
        return_sign: return a pair, of log |sum| and the sign of the sum. Without it a negative sum gives NaN.
        where: a mask of the terms that count.

    >>> import functad as fd
    >>> f"{fd.special.logsumexp([1000.0, 1000.0], b=[1.0, 3.0]).item():.4f}"
    '1001.3863'
    """
    if isinstance(b, bool):
        raise ArgumentError(f"logsumexp: b={b!r} stands for factors; write keepdims={b!r} if that was meant.")
    (a,) = operands("logsumexp", "float", (a,))
    if where is not None:
        a = ops.where(where, a, float("-inf"))
    if b is None:
        out = ops.logsumexp(a, axis, keepdims)
        return (out, ops.where(out == float("-inf"), 0.0, 1.0).astype(out.dtype)) if return_sign else out
    a, b = operands("logsumexp", "float", (a, b))
    a, b = ops.broadcast_arrays(a, b)
    a = ops.where(b == 0, float("-inf"), a)
    top = ops.max(ops.real(ops.stop_gradient(a)), axis, keepdims=True)
    top = ops.where(ops.isfinite(top), top, 0.0)
    total = ops.sum(b * ops.exp(a - top), axis, keepdims)
    top = top if keepdims else top.reshape(total.shape)
    if return_sign:
        return ops.log(ops.abs(total)) + top, ops.sign(total)
    return ops.log(total) + top


@rounded_once
def logmeanexp(x: Any, axis: Any = None, where: Any = None, keepdims: bool = False) -> Any:
    """log(mean(exp(x))) over axes, without overflow; as in `jax.nn`.

    >>> import functad as fd
    >>> fd.special.logmeanexp([1000.0, 1000.0]).item()
    1000.0
    """
    (x,) = operands("logmeanexp", "float", (x,))
    total = logsumexp(x, axis, keepdims=keepdims, where=where)
    if where is None:
        return total - math.log(max(x.size // max(total.size, 1), 1)) if x.size else total
    mask = ops.broadcast_to(operand(where, x, dtypes.bool_), x.shape)
    return total - ops.log(ops.sum(ops.astype(mask, total.dtype), axis, keepdims))


_explain(globals())


def __dir__() -> list[str]:
    return _listed(
        globals(),
        "Any",
        "ArgumentError",
        "TYPE_CHECKING",
        "dtypes",
        "math",
        "operand",
        "operands",
        "ops",
        "rounded_once",
    )


if not TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise _missing_name(__name__, name, __dir__())
