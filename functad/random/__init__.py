"""Random numbers from explicit keys, as in `jax.random`: the same key gives the same numbers, on every device.

A draw takes a `key` first. `shape` is that of the result; where a distribution has parameters it is by default the one
they broadcast to, and ends with that. `dtype` is the default float without it (the default int for integers), and
`device` the key's. Raises `ArgumentTypeError` for what is no key, `DTypeError` for a dtype of another kind, `ShapeError`
for parameters that do not fit.

What draws without a key (dropout, the first weights of layers) takes one from the default generator:
`draw_key`, seeded by `fd.seed`.

>>> import functad as fd
>>> key = fd.random.key(0)
>>> k1, k2 = fd.random.split(key)
>>> fd.random.normal(k1, (2, 3)).shape
(2, 3)
"""

import typing as _typing

from functad.hints import listed as _listed
from functad.hints import missing_name as _missing_name
from functad.keywords import explain as _explain
from functad.random.continuous import cauchy as cauchy
from functad.random.continuous import double_sided_maxwell as double_sided_maxwell
from functad.random.continuous import exponential as exponential
from functad.random.continuous import gumbel as gumbel
from functad.random.continuous import laplace as laplace
from functad.random.continuous import logistic as logistic
from functad.random.continuous import lognormal as lognormal
from functad.random.continuous import maxwell as maxwell
from functad.random.continuous import multivariate_normal as multivariate_normal
from functad.random.continuous import normal as normal
from functad.random.continuous import orthogonal as orthogonal
from functad.random.continuous import pareto as pareto
from functad.random.continuous import rayleigh as rayleigh
from functad.random.continuous import triangular as triangular
from functad.random.continuous import truncated_normal as truncated_normal
from functad.random.continuous import uniform as uniform
from functad.random.continuous import wald as wald
from functad.random.continuous import weibull_min as weibull_min
from functad.random.discrete import bernoulli as bernoulli
from functad.random.discrete import binomial as binomial
from functad.random.discrete import bits as bits
from functad.random.discrete import categorical as categorical
from functad.random.discrete import choice as choice
from functad.random.discrete import geometric as geometric
from functad.random.discrete import multinomial as multinomial
from functad.random.discrete import permutation as permutation
from functad.random.discrete import poisson as poisson
from functad.random.discrete import rademacher as rademacher
from functad.random.discrete import randint as randint
from functad.random.gamma import ball as ball
from functad.random.gamma import beta as beta
from functad.random.gamma import chisquare as chisquare
from functad.random.gamma import dirichlet as dirichlet
from functad.random.gamma import f as f
from functad.random.gamma import gamma as gamma
from functad.random.gamma import generalized_normal as generalized_normal
from functad.random.gamma import loggamma as loggamma
from functad.random.gamma import t as t
from functad.random.keys import draw_key as draw_key
from functad.random.keys import fold_in as fold_in
from functad.random.keys import key as key
from functad.random.keys import seed as seed
from functad.random.keys import split as split

_explain(globals())


def __dir__() -> list[str]:
    return _listed(globals())


if not _typing.TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise _missing_name(__name__, name, __dir__())
