"""Discrete Fourier transforms under NumPy's names and with its arguments, all differentiable.

Single precision stays single. Real input is fine wherever complex is expected.

>>> import functad as fd
>>> import functad.numpy as fnp
>>> fnp.fft.rfft(fd.tensor([1.0, 0.0, 0.0, 0.0])).real.tolist()
[1.0, 1.0, 1.0]
"""

from typing import TYPE_CHECKING

from functad.hints import missing_name
from functad.numpy.spectral import istft, stft
from functad.ops import (
    fft,
    fft2,
    fftfreq,
    fftn,
    fftshift,
    hfft,
    hfft2,
    hfftn,
    ifft,
    ifft2,
    ifftn,
    ifftshift,
    ihfft,
    ihfft2,
    ihfftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftfreq,
    rfftn,
)

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "hfft2", "hfftn", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "ihfft2", "ihfftn", "irfft",
    "irfft2", "irfftn", "istft", "rfft", "rfft2", "rfftfreq", "rfftn", "stft",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # type checkers are to see that the name is missing

    def __getattr__(name):
        raise missing_name(__name__, name, __dir__())
