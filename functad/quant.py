"""Quantized tensors: `x.quantize_dynamic(fd.QuantScheme())`, and `y @ q` with the result.

>>> import functad as fd
>>> base = fd.random.normal(fd.random.key(0), (8, 4)).quantize_dynamic(fd.QuantScheme(block=2))
>>> low = fd.zeros((8, 4))
>>> x = fd.ones((3, 8))
>>> grads = fd.grad(lambda low: ((x @ base) + x @ low).sum())(low)  # the base is frozen, what is added to it trains
>>> grads.shape, base.nbytes
((8, 4), 96)
"""

from typing import TYPE_CHECKING

from functad.hints import missing_name
from functad.keywords import explain
from functad.ops.quantize import QuantScheme, QuantTensor, quantize, quantize_dynamic

__all__ = ["QuantScheme", "QuantTensor", "quantize", "quantize_dynamic"]


explain(globals(), __all__)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise missing_name(__name__, name, __dir__())
