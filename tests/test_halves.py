"""Functions made of ops on half types: the value and the gradient of float32, rounded once, in the type that comes in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad.numpy import linalg
from functad.ops.halves import ROUNDED_ONCE, rounded_once

F, S = fd.nn.functional, fd.special
HALVES = {"bfloat16": (np.dtype(ml_dtypes.bfloat16), 7), "float16": (np.dtype(np.float16), 10)}


class Numbers:
    """Float32 tensors of numbers that a half type holds."""

    def __init__(self, dtype, device):
        self.dtype, self.device, self.rng = dtype, device, np.random.default_rng(0)

    def __call__(self, *shape, low=None, high=1.0):
        x = self.rng.normal(size=shape) if low is None else self.rng.uniform(low, high, shape)
        return self.put(x)

    def put(self, x):
        return fd.tensor(np.asarray(x).astype(self.dtype).astype(np.float32), device=self.device)

    def ints(self, least, count, *shape):
        return fd.tensor(self.rng.integers(least, count, shape), device=self.device)


def pair(n):
    return n(4, 6), n(4, 6)


def share(n):
    return n(4, 6, low=0.05, high=0.95), n(4, 6, low=0.05, high=0.95)


def positive(n, *shape):
    return n(*(shape or (4, 6)), low=0.3, high=3.0)


def definite(n):
    x = n(4, 4).numpy()
    return n.put(x @ x.T / 4 + np.eye(4))


def sign(n):
    return fd.tensor(np.sign(n(4, 6).numpy()), dtype=int, device=n.device)


# name: function, and what makes its arguments
CASES = {
    "mse_loss": (lambda x, y, w: F.mse_loss(x, y, weight=w), lambda n: (*pair(n), positive(n))),
    "l1_loss": (F.l1_loss, pair),
    "huber_loss": (lambda x, y: F.huber_loss(x, y, delta=0.7), pair),
    "smooth_l1_loss": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.3), pair),
    "binary_cross_entropy": (F.binary_cross_entropy, lambda n: (*share(n), positive(n))),
    "sigmoid_focal_loss": (lambda x, y: F.sigmoid_focal_loss(x, y, reduction="sum"), lambda n: (n(4, 6), share(n)[0])),
    "binary_cross_entropy_with_logits": (
        lambda x, y, w, v: F.binary_cross_entropy_with_logits(x, y, w, "sum", v),
        lambda n: (n(4, 6), share(n)[0], positive(n), positive(n)),
    ),
    "soft_margin_loss": (F.soft_margin_loss, lambda n: (n(4, 6), sign(n))),
    "hinge_embedding_loss": (lambda x, y: F.hinge_embedding_loss(x, y, 1.3, "none"), lambda n: (n(4, 6), sign(n))),
    "margin_ranking_loss": (lambda x, y, t: F.margin_ranking_loss(x, y, t, 0.3), lambda n: (*pair(n), sign(n))),
    "kl_div": (lambda x, y: F.kl_div(x, y, "sum"), lambda n: (n(4, 6), share(n)[0])),
    "poisson_nll_loss": (lambda x, y: F.poisson_nll_loss(x, y, False, True), lambda n: (positive(n), positive(n))),
    "gaussian_nll_loss": (lambda x, y, v: F.gaussian_nll_loss(x, y, v, True), lambda n: (*pair(n), positive(n))),
    "_cross_entropy": (
        lambda x, t, w: F.cross_entropy(x, t, w, label_smoothing=0.1),
        lambda n: (n(4, 6), n.ints(0, 6, 4), positive(n, 6)),
    ),
    "_nll_loss": (F.nll_loss, lambda n: (n(4, 6), n.ints(0, 6, 4), positive(n, 6))),
    "multi_margin_loss": (lambda x, t: F.multi_margin_loss(x, t, 2), lambda n: (n(4, 6), n.ints(0, 6, 4))),
    "multilabel_margin_loss": (F.multilabel_margin_loss, lambda n: (n(4, 6), n.ints(-1, 6, 4, 6))),
    "multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss, lambda n: (n(4, 6), share(n)[0])),
    "cosine_similarity": (F.cosine_similarity, pair),
    "pairwise_distance": (lambda x, y: F.pairwise_distance(x, y, 3.0), pair),
    "pdist": (F.pdist, lambda n: (n(4, 6),)),
    "cdist": (F.cdist, pair),
    "cosine_embedding_loss": (
        lambda x, y, t: F.cosine_embedding_loss(x, y, t, 0.1), lambda n: (*pair(n), fd.tensor([1, -1, 1, -1], device=n.device))
    ),
    "triplet_margin_loss": (F.triplet_margin_loss, lambda n: (*pair(n), n(4, 6))),
    "triplet_margin_with_distance_loss": (F.triplet_margin_with_distance_loss, lambda n: (*pair(n), n(4, 6))),
    "scaled_dot_product_attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), lambda n: (n(2, 5, 4), n(2, 6, 4), n(2, 6, 3))
    ),
    "prelu": (F.prelu, lambda n: (n(4, 6), n(6))),
    "gumbel_softmax": (
        lambda x: F.gumbel_softmax(x, 0.7, key=fd.random.key(0, x.device)), lambda n: (n(4, 6),)
    ),
    "affine_grid": (lambda x: F.affine_grid(x, (2, 3, 4, 5)), lambda n: (n(2, 2, 3),)),
    "_bagged": (F.embedding_bag, lambda n: (fd.tensor([[5, 1, 2], [0, 3, 4]], device=n.device), n(6, 4))),
    "bilinear": (F.bilinear, lambda n: (n(3, 4), n(3, 5), n(2, 4, 5), n(2))),
    "corrcoef": (fnp.corrcoef, lambda n: (n(4, 6),)),
    "cov": (fnp.cov, lambda n: (n(4, 6),)),
    "histogram": (lambda x, w: fnp.histogram(x, 4, weights=w)[0], lambda n: (n(9), n(9))),
    "histogram2d": (lambda x, y, w: fnp.histogram2d(x, y, 3, weights=w)[0], lambda n: (n(9), n(9), n(9))),
    "histogramdd": (lambda x, w: fnp.histogramdd(x, 3, weights=w)[0], lambda n: (n(9, 2), n(9))),
    "average": (lambda x, w: fnp.average(x, 1, w), lambda n: (n(4, 6), positive(n, 6))),
    "cumulative_trapezoid": (fnp.cumulative_trapezoid, lambda n: (n(4, 6), fnp.sort(n(6)))),
    "gradient": (lambda x, s: fnp.gradient(x, s, axis=1), lambda n: (n(4, 6), fnp.sort(n(6)))),
    "interp": (fnp.interp, lambda n: (n(5), fnp.sort(n(6)), n(6))),
    "trapezoid": (fnp.trapezoid, lambda n: (n(4, 6), fnp.sort(n(6)))),
    "unwrap": (fnp.unwrap, lambda n: (n.put(4 * n(6).numpy()),)),
    "diff": (lambda x: fnp.diff(x, 2, prepend=0.0), lambda n: (n(4, 6),)),
    "ediff1d": (fnp.ediff1d, lambda n: (n(6),)),
    "poly": (fnp.poly, lambda n: (n(4),)),
    "polyadd": (fnp.polyadd, lambda n: (n(4), n(3))),
    "polydiv": (fnp.polydiv, lambda n: (n(5), n(3))),
    "polyfit": (lambda x, y: fnp.polyfit(x, y, 1), lambda n: (n(6), n(6))),
    "polymul": (fnp.polymul, lambda n: (n(4), n(3))),
    "polysub": (fnp.polysub, lambda n: (n(4), n(3))),
    "polyval": (fnp.polyval, lambda n: (n(4), n(6))),
    "polyint": (lambda x: fnp.polyint(x, 2), lambda n: (n(4),)),
    "polyder": (lambda x: fnp.polyder(x, 2), lambda n: (n(5),)),
    "roots": (lambda x: fnp.roots(x).real.astype(x.dtype), lambda n: (n.put([1.0, 0.5, -2.0]),)),
    "geomspace": (lambda x, y: fnp.geomspace(x, y, 4), lambda n: (positive(n, 2), positive(n, 2))),
    "linspace": (lambda x, y: fnp.linspace(x, y, 7), lambda n: (n(3), n(3))),
    "logspace": (lambda x, y: fnp.logspace(x, y, 4), lambda n: (n(3), n(3))),
    "vander": (lambda x: fnp.vander(x, 5), lambda n: (n(4),)),
    "median": (lambda x: fnp.median(x, 1), lambda n: (n(4, 6),)),
    "nanmedian": (lambda x: fnp.nanmedian(x, 1), lambda n: (n(4, 6),)),
    "percentile": (lambda x: fnp.percentile(x, 30.0, 1), lambda n: (n(4, 6),)),
    "nanpercentile": (lambda x: fnp.nanpercentile(x, 30.0, 1), lambda n: (n(4, 6),)),
    "quantile": (lambda x: fnp.quantile(x, [0.1, 0.3], 1), lambda n: (n(4, 6),)),
    "nanquantile": (lambda x: fnp.nanquantile(x, 0.3, 1), lambda n: (n(4, 6),)),
    "_flat_cross": (fnp.cross, lambda n: (n(4, 2), n(4, 2))),
    "_of_product": (lambda x, v: x.at[[0, 2, 2]].divide(v), lambda n: (n(6), positive(n, 3))),
    "_by_axis": (lambda x: fnp.pad(x, 2, "reflect", reflect_type="odd"), lambda n: (n(4, 6),)),
    "nanmean": (lambda x: fnp.nanmean(x, 1), lambda n: (n(4, 6),)),
    "nanstd": (lambda x: fnp.nanstd(x, 1), lambda n: (n(4, 6),)),
    "nanvar": (lambda x: fnp.nanvar(x, 1), lambda n: (n(4, 6),)),
    "stft": (lambda x, w: abs(fnp.fft.stft(x, 8, window=w)).astype(x.dtype), lambda n: (n(24), positive(n, 8))),
    "cho_solve": (lambda c, b: linalg.cho_solve((c, True), b), lambda n: (n.put(np.tril(definite(n).numpy())), n(4, 2))),
    "lu_solve": (
        lambda a, b: linalg.lu_solve((a, fd.tensor([1, 0, 2, 3], device=a.device)), b), lambda n: (definite(n), n(4, 2))
    ),
    "matrix_power": (lambda x: linalg.matrix_power(x, 5), lambda n: (definite(n),)),
    "multi_dot": (lambda x, y, z: linalg.multi_dot([x, y, z]), lambda n: (n(3, 4), n(4, 5), n(5, 2))),
    "lstsq": (lambda a, b: linalg.lstsq(a, b)[0], lambda n: (n(6, 3), n(6, 2))),
    "pinv": (linalg.pinv, lambda n: (n(5, 3),)),
    "eigh": (linalg.eigh, lambda n: (definite(n),)),
    "eigvalsh": (linalg.eigvalsh, lambda n: (definite(n),)),
    "beta": (S.beta, lambda n: (positive(n), positive(n))),
    "binom": (S.binom, lambda n: (positive(n), positive(n))),
    "comb": (S.comb, lambda n: (n.put(positive(n).numpy() + 3), positive(n))),
    "factorial": (S.factorial, lambda n: (positive(n),)),
    "multigammaln": (lambda x: S.multigammaln(x, 3), lambda n: (n.put(positive(n).numpy() + 1),)),
    "poch": (S.poch, lambda n: (positive(n), positive(n))),
    "inv_boxcox": (S.inv_boxcox, lambda n: (positive(n), positive(n))),
    "inv_boxcox1p": (S.inv_boxcox1p, lambda n: (positive(n), positive(n))),
    "spherical_bessel_j0": (S.spherical_bessel_j0, lambda n: (n(4, 6),)),
    **{
        f"shifted_chebyshev_polynomial_{kind}": (
            lambda x, kind=kind: getattr(S, f"shifted_chebyshev_polynomial_{kind}")(x, 4), lambda n: (share(n)[0],)
        )
        for kind in "tuvw"
    },
    "fresnel": (S.fresnel, lambda n: (n(4, 6),)),
    "sici": (S.sici, lambda n: (positive(n),)),
    "voigt_profile": (S.voigt_profile, lambda n: (n(4, 6), positive(n), positive(n))),
    "ellipk": (S.ellipk, lambda n: (share(n)[0],)),
    "ellipe": (S.ellipe, lambda n: (share(n)[0],)),
    "erfcinv": (S.erfcinv, lambda n: (share(n)[0],)),
    "ndtr": (S.ndtr, lambda n: (n(4, 6),)),
    "logsumexp": (lambda x, b: S.logsumexp(x, 1, b=b), lambda n: (n(4, 6), positive(n))),
    "logmeanexp": (lambda x: S.logmeanexp(x, 1), lambda n: (n(4, 6),)),
}  # fmt: skip

ELSEWHERE = {
    "boxcox": (S.boxcox, lambda n: (positive(n), n(4, 6))),
    "boxcox1p": (S.boxcox1p, lambda n: (positive(n), n(4, 6))),
    "var": (lambda x: fnp.var(x, 1), lambda n: (n(4, 6),)),
    "norm": (lambda x: linalg.norm(x, 3, 1), lambda n: (n(4, 6),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), lambda n: (n(4, 6), n(6), n(6))),
    "batch_norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), lambda n: (n(4, 3, 5), n(3), n(3))),
    "normalize": (F.normalize, lambda n: (n(4, 6),)),
    "cross_entropy": (F.cross_entropy, lambda n: (n(4, 6), n.ints(0, 6, 4))),
    "softplus": (F.softplus, lambda n: (n(4, 6),)),
    "mish": (F.mish, lambda n: (n(4, 6),)),
    "convolve": (fnp.convolve, lambda n: (n(7), n(4))),
    "cross": (fnp.cross, lambda n: (n(4, 3), n(4, 3))),
    "remainder": (fnp.remainder, lambda n: (n(4, 6), positive(n))),
    "erfinv": (S.erfinv, lambda n: (share(n)[0],)),
    "det": (linalg.det, lambda n: (definite(n),)),
    "expm": (linalg.expm, lambda n: (definite(n),)),
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 3.0, 2), lambda n: (positive(n, 2, 3, 6),)),
    "interpolate": (lambda x: F.interpolate(x, 7, mode="linear"), lambda n: (n(2, 3, 5),)),
}
"""Functions that round once by their own means."""


def test_each_has_a_case():
    assert {name.rpartition(".")[2] for name in ROUNDED_ONCE} == set(CASES)


def floats(out):
    """The results that are float, as a tuple."""
    outs = out if isinstance(out, (tuple, list)) else (out,)
    return tuple(x for x in outs if x.dtype.kind not in "biuc")


@pytest.mark.parametrize("name", [*CASES, *ELSEWHERE])
@pytest.mark.parametrize("half", HALVES)
def test_rounded_once(name, half):
    fn, make = (CASES | ELSEWHERE)[name]
    dtype, bits = HALVES[half]
    device = fd.Device.numpy()
    wide = make(Numbers(dtype, device))
    places = [i for i, x in enumerate(wide) if x.dtype == "float32"]

    def run(dtype):
        def call(*xs):
            args = list(wide)
            for i, x in zip(places, xs, strict=True):
                args[i] = x
            return floats(fn(*args))

        outs, pull = fd.vjp(call, *[wide[i].astype(dtype) for i in places])
        rng = np.random.default_rng(1)
        grads = pull(tuple(Numbers(HALVES[half][0], device).put(rng.normal(size=y.shape)).astype(dtype) for y in outs))
        return outs, grads if isinstance(grads, tuple) else (grads,)

    for kind, found, expected in zip(("value", "gradient"), run(half), run("float32"), strict=True):
        for ours, exact in zip(found, expected, strict=True):
            assert ours.dtype == dtype
            exact = exact.numpy().astype(np.float64)
            off = np.abs(ours.astype("float32").numpy() - exact)
            step = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(exact), 2.0**-14))) - bits)
            noise = 64 * 2.0**-24 * np.abs(exact).max(initial=0)
            assert (off <= (0.51 if name in CASES else 1.6) * step + noise).all(), (
                f"{kind}: {(off / step).max():.3g} steps"
            )


def test_other_types_promote_as_they_do_without():
    @rounded_once
    def total(x, y=None, dtype=None):
        seen.append(x.dtype)
        out = x if y is None else x + y
        return out if dtype is None else out.astype(dtype)

    seen: list[object] = []
    x = fd.ones(2, dtype="bfloat16")
    assert total(x).dtype == "bfloat16" and total(x, 2.0).dtype == "bfloat16"
    assert total(x, y=fd.ones(2)).dtype == total(x, np.ones(2, np.float32)).dtype == "float32"
    assert total(x, fd.ones(2, dtype="float16")).dtype == (x + fd.ones(2, dtype="float16")).dtype
    assert total(x, dtype="float32").dtype == "float32" and total(x, fd.ones(2, dtype=int)).dtype == "bfloat16"
    assert total(fd.ones(2)).dtype == "float32"
    assert list(map(str, seen)) == ["float32", "float32", *["bfloat16"] * 4, "float32", "float32"]


def test_the_error_for_another_librarys_argument_comes_through():
    with pytest.raises(fd.errors.ArgumentTypeError, match="write axis="):
        fnp.median(fd.ones(3), dim=0)
    with pytest.raises(fd.errors.ArgumentTypeError, match="write axis="):
        fnp.median(fd.ones(3, dtype="bfloat16"), dim=0)
