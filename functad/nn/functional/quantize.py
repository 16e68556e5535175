"""Training that knows of the rounding to come."""

from __future__ import annotations

from typing import Any

from functad.ops.operand import operand
from functad.ops.quantize import QuantScheme, quantize_dynamic
from functad.ops.transfer import stop_gradient

__all__ = ["fake_quantize"]


def fake_quantize(input: Any, scheme: QuantScheme) -> Any:
    """`input` rounded as quantization would, with the gradient of the identity (Bengio et al. 2013): straight through.

    Args:
        input: floats.
        scheme: a `fd.QuantScheme`. Scales are those of `quantize_dynamic`, under which nothing is clipped.

    The value is that of `input.quantize_dynamic(scheme).dequantize()`, and so are the errors, but for gradients.

    >>> import functad as fd
    >>> w = fd.tensor([0.3, -1.27])
    >>> fd.nn.functional.fake_quantize(w, fd.QuantScheme()).tolist() == w.quantize_dynamic(
    ...     fd.QuantScheme()
    ... ).dequantize().tolist()
    True
    >>> fd.grad(lambda w: (fd.nn.functional.fake_quantize(w, fd.QuantScheme()) * fd.tensor([2.0, 5.0])).sum())(
    ...     w
    ... ).tolist()
    [2.0, 5.0]
    """
    x = operand(input, where="fake_quantize")
    fixed = stop_gradient(x)
    return quantize_dynamic(fixed, scheme).dequantize() + (x - fixed)
