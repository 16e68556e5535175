"""Dropout as layers: active in training, the identity after `valid()`."""

from __future__ import annotations

from typing import Any, ClassVar

from functad.module import Module
from functad.nn import functional as F
from functad.nn.parameters import probability


class _Dropout(Module):
    p: float = 0.5

    _function: ClassVar[Any]

    def __post_init__(self) -> None:
        probability(type(self).__name__, "p", self.p)

    def forward(self, x: Any, *, key: Any = None) -> Any:
        """`x` with a part dropped in training; the choice is drawn from `key`, or from the generator of `fd.seed`."""
        return type(self)._function(x, self.p, self.training, key=key)


class Dropout(_Dropout):
    """Each element 0 with probability `p`, the others scaled by 1 / (1 - p) (Srivastava et al. 2014).

    Under jit and vmap pass a key: `layer(x, key=key)`.

    >>> import functad as fd
    >>> drop = fd.nn.Dropout(0.5)
    >>> sorted(set(drop(fd.ones(100), key=fd.random.key(0)).tolist()))
    [0.0, 2.0]
    >>> drop.valid()(fd.ones(2)).tolist()
    [1.0, 1.0]
    """

    _function = staticmethod(F.dropout)


class Dropout1d(_Dropout):
    """Whole channels of `(batch, channels, length)` dropped in training (Tompson et al. 2015).

    >>> import functad as fd
    >>> y = fd.nn.Dropout1d(0.5)(fd.ones((1, 50, 4)), key=fd.random.key(0))
    >>> sorted(set(y.sum(-1).ravel().tolist()))
    [0.0, 8.0]
    """

    _function = staticmethod(F.dropout1d)


class Dropout2d(_Dropout):
    """Whole channels of `(batch, channels, height, width)` dropped in training (Tompson et al. 2015).

    >>> import functad as fd
    >>> y = fd.nn.Dropout2d(0.5)(fd.ones((1, 50, 2, 2)), key=fd.random.key(0))
    >>> sorted(set(y.sum((2, 3)).ravel().tolist()))
    [0.0, 8.0]
    """

    _function = staticmethod(F.dropout2d)


class Dropout3d(_Dropout):
    """Whole channels of `(batch, channels, depth, height, width)` dropped in training.

    >>> import functad as fd
    >>> y = fd.nn.Dropout3d(0.5)(fd.ones((1, 50, 2, 2, 2)), key=fd.random.key(0))
    >>> sorted(set(y.sum((2, 3, 4)).ravel().tolist()))
    [0.0, 16.0]
    """

    _function = staticmethod(F.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout that keeps mean and variance under SELU (Klambauer et al. 2017).

    >>> import functad as fd
    >>> drop = fd.nn.AlphaDropout(0.5)
    >>> len(set(drop(fd.ones(100), key=fd.random.key(0)).tolist())), drop.valid()(fd.ones(2)).tolist()
    (2, [1.0, 1.0])
    """

    _function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """`AlphaDropout` of whole channels of `(batch, channels, ...)`.

    >>> import functad as fd
    >>> y = fd.nn.FeatureAlphaDropout(0.5)(fd.ones((1, 50, 4)), key=fd.random.key(0))
    >>> len(set(y.ravel().tolist())), (y == y[..., :1]).all().item()
    (2, True)
    """

    _function = staticmethod(F.feature_alpha_dropout)
