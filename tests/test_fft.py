"""Fourier transforms: values and arguments against NumPy, derivatives against JAX, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.fft

import functad as fd
import functad.numpy as fnp
from functad.errors import ArgumentError, DTypeError, ShapeError

RNG = np.random.default_rng(7)
REAL = RNG.normal(size=(2, 3, 4))
COMPLEX = REAL + 1j * RNG.normal(size=REAL.shape)

ONE_AXIS = [{}, {"n": 3}, {"n": 7, "axis": 0, "norm": "ortho"}, {"norm": "forward"}]
MANY_AXES = [{}, {"s": (3, 6), "axes": (1, 2)}, {"norm": "ortho", "axes": (0, 2)}, {"norm": "forward", "axes": (-1, 0)}]
TABLE = [
    *[(name, x, kw) for name in ("fft", "ifft", "hfft", "irfft") for x in (REAL, COMPLEX) for kw in ONE_AXIS],
    *[(name, REAL, kw) for name in ("rfft", "ihfft") for kw in ONE_AXIS],
    *[(name, COMPLEX, kw) for name in ("fft2", "ifft2", "fftn", "ifftn", "irfft2", "irfftn") for kw in MANY_AXES],
    *[(name, REAL, kw) for name in ("rfft2", "rfftn") for kw in MANY_AXES],
]


@pytest.mark.parametrize(("name", "x", "kw"), TABLE)
def test_values_are_numpys(name, x, kw, device, x64):
    got = getattr(fnp.fft, name)(fd.tensor(x, dtype=x.dtype, device=device), **kw).numpy()
    want = getattr(np.fft, name)(x, **kw)
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_derivatives_are_jaxs(x64):
    """Of one call of each transform: the real part of a weighed transform, squared and summed; one program each."""
    chosen = {name: (x, kw) for name, x, kw in TABLE if kw.get("norm") == "ortho"}
    rng = np.random.default_rng(3)
    weights = {
        name: rng.normal(size=getattr(np.fft, name)(x, **kw).shape) + 1j * rng.normal()
        for name, (x, kw) in chosen.items()
    }

    def loss(fft):
        return lambda xs: sum(
            ((getattr(fft, name)(x, **chosen[name][1]) * weights[name]).real ** 2).sum() for name, x in xs.items()
        )

    points = {name: x for name, (x, _) in chosen.items()}
    assert len(points) == 14
    got, want = fd.jit(fd.grad(loss(fnp.fft)))(points), jax.jit(jax.grad(loss(jnp.fft)))(points)
    for name in points:
        np.testing.assert_allclose(got[name].numpy(), want[name], rtol=1e-9, atol=1e-10, err_msg=name)


def test_more_axes_than_xla_takes_at_once(device, x64):
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 3, 2))
    ours = fd.tensor(x, dtype="float64", device=device)
    spectrum = fnp.fft.rfftn(ours)
    np.testing.assert_allclose(spectrum.numpy(), np.fft.rfftn(x), atol=1e-12)
    np.testing.assert_allclose(fnp.fft.irfftn(spectrum, s=x.shape).numpy(), x, atol=1e-12)
    np.testing.assert_allclose(fnp.fft.ifftn(fnp.fft.fftn(ours)).numpy(), x, atol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_parseval(n, device):
    """The squared length of a spectrum is n times that of the signal, so the gradient is 2 n x."""
    x = fd.tensor(np.arange(1.0, n + 1), device=device)
    gradient = fd.grad(lambda x: (fnp.abs(fnp.fft.fft(x)) ** 2).sum())(x)
    np.testing.assert_allclose(gradient.numpy(), 2 * n * np.arange(1.0, n + 1), rtol=1e-5)


def test_precision_stays_single(device):
    x = fd.tensor([1.0, 2.0, 3.0], dtype="float32", device=device)
    assert fnp.fft.fft(x).dtype == np.complex64
    assert fnp.fft.irfft(fnp.fft.rfft(x)).dtype == np.float32
    assert fnp.fft.rfft(x.astype("bfloat16")).dtype == np.complex64
    assert fd.grad(lambda x: fnp.fft.rfft(x).real.sum())(x.astype("float16")).dtype == np.float16
    assert fnp.fft.fft(fd.tensor([1, 2], device=device)).dtype == np.complex64


def test_vmap_moves_the_axis(device):
    x = fd.tensor(np.random.default_rng(0).normal(size=(3, 4, 5)), device=device)
    got = fd.vmap(fnp.fft.rfft2)(x)
    np.testing.assert_allclose(got.numpy(), np.fft.rfft2(x.numpy()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n", [1, 4, 7])
def test_frequencies_and_shifts(n):
    np.testing.assert_allclose(fnp.fft.fftfreq(n, 0.3).numpy(), np.fft.fftfreq(n, 0.3), rtol=1e-6)
    np.testing.assert_allclose(fnp.fft.rfftfreq(n, d=2).numpy(), np.fft.rfftfreq(n, d=2), rtol=1e-6)
    assert fnp.fft.fftfreq(n, dtype="float32", device=fd.Device.numpy()).device.name == "numpy"
    x = np.arange(2 * n).reshape(2, n)
    for axes in (None, 1, (0, 1)):
        assert np.array_equal(fnp.fft.fftshift(x, axes).numpy(), np.fft.fftshift(x, axes))
        assert np.array_equal(fnp.fft.ifftshift(x, axes).numpy(), np.fft.ifftshift(x, axes))


def test_numpys_functions_run_these():
    x = fd.tensor([1.0, 2.0, 3.0])
    gradient = fd.grad(lambda x: np.abs(np.fft.rfft(x, n=4)).sum())(x)
    want = jax.grad(lambda x: jnp.abs(jnp.fft.rfft(x, n=4)).sum())(jnp.array([1.0, 2.0, 3.0]))
    np.testing.assert_allclose(gradient.numpy(), want, rtol=1e-5)


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda f: f.fft(fd.ones(3), n=0), ArgumentError, "at least 1, got 0"),
        (lambda f: f.fft(fd.ones(3), norm="x"), ArgumentError, "'backward' .None., 'ortho' or 'forward', got 'x'"),
        (lambda f: f.fft(fd.ones(())), ShapeError, "0-d tensor"),
        (lambda f: f.fft(fd.ones(0)), ShapeError, "has no elements"),
        (lambda f: f.fft(fd.ones(3), axis=2), ShapeError, "axis 2 is out of range"),
        (lambda f: f.fftn(fd.ones((2, 2)), axes=(0, 0)), ShapeError, "twice"),
        (lambda f: f.fftn(fd.ones((2, 2)), s=(2,), axes=(0, 1)), ShapeError, "has 1 lengths and axes=.0, 1. names 2"),
        (lambda f: f.irfft(fd.ones(1)), ShapeError, "say it with n="),
        (lambda f: f.rfft(fd.ones(3) * 1j), DTypeError, "takes real numbers, got complex64"),
    ],
)
def test_errors_say_what_to_write(call, kind, text):
    with pytest.raises(kind, match=text):
        call(fnp.fft)


# --- short times


@pytest.mark.parametrize("hop", [3, 8, 11])
@pytest.mark.parametrize(("center", "normalized", "width"), [(True, False, None), (False, True, None), (True, True, 6)])
def test_short_time_transforms(hop, center, normalized, width, device, x64):
    """Each frame by hand; the inverse gives the signal back where frames reach it."""
    rng = np.random.default_rng(0)
    x, window = rng.normal(size=(2, 40)), rng.uniform(0.2, 1, width or 8)
    args = (8, hop, width, window, center)
    spectrum = fnp.fft.stft(fd.tensor(x, device=device), *args, normalized=normalized)
    padded = np.pad(x, [(0, 0), (4, 4)], "reflect") if center else x
    full = np.pad(window, (8 - len(window)) // 2)
    frames = [padded[:, s : s + 8] * full for s in range(0, padded.shape[1] - 7, hop)]
    expected = np.stack([np.fft.rfft(f, norm="ortho" if normalized else None) for f in frames], -1)
    np.testing.assert_allclose(spectrum.numpy(), expected, atol=1e-13)
    if hop == 3:
        back = fnp.fft.istft(spectrum, *args, normalized=normalized, length=36)
        reached = slice(1 if width else 0, 30)
        np.testing.assert_allclose(back.numpy()[:, reached], x[:, :36][:, reached], atol=1e-12)


def test_short_time_transforms_of_complex_signals(x64):
    x = np.exp(1j * np.arange(32.0))
    spectrum = fnp.fft.stft(x, 8)
    assert spectrum.shape == (8, 17)
    np.testing.assert_allclose(fnp.fft.istft(spectrum, 8, return_complex=True).numpy(), x, atol=1e-12)
    fd.testing.check_grads(
        lambda x, w: abs(fnp.fft.stft(x, 8, 3, window=w)) ** 2, (fd.tensor(x.real), fd.ones(8)), order=2
    )
    spectrum = fnp.fft.stft(x.real, 8)
    fd.testing.check_grads(
        lambda a, b, w: fnp.fft.istft(a + 1j * b, 8, window=w), (spectrum.real, spectrum.imag, fd.full(8, 0.7)), order=2
    )
    with pytest.raises(fd.errors.ShapeError, match="frequencies"):
        fnp.fft.istft(spectrum[:-1], 8, onesided=True)
    with pytest.raises(fd.errors.ShapeError, match="does not fit"):
        fnp.fft.stft(x.real[:5], 8, center=False)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize(("s", "axes"), [(None, None), ((3, 5), (0, 2)), ((4, 6), (-2, -1))])
def test_half_transforms_over_several_axes(norm, s, axes, device, x64):
    for name, x in (("hfftn", COMPLEX), ("ihfftn", REAL)):
        got = getattr(fnp.fft, name)(fd.tensor(x, dtype=x.dtype, device=device), s, axes, norm)
        np.testing.assert_allclose(got.numpy(), getattr(scipy.fft, name)(x, s, axes, norm), atol=1e-12)
    two = fnp.fft.hfft2(fd.tensor(COMPLEX, dtype=complex, device=device), norm=norm)
    np.testing.assert_allclose(two.numpy(), scipy.fft.hfft2(COMPLEX, norm=norm), atol=1e-12)
    assert np.allclose(fnp.fft.ihfft2(two, norm=norm).numpy(), scipy.fft.ihfft2(two.numpy(), norm=norm), atol=1e-12)
