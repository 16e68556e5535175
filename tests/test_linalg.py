"""Linear algebra: values against NumPy and SciPy, derivatives against JAX, special points, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import functad as fd
import functad.numpy as fnp
from functad.errors import ArgumentError, FunctadError, ShapeError
from functad.numpy import linalg

RNG = np.random.default_rng(11)
SQUARE = RNG.normal(size=(2, 4, 4)) + 3 * np.eye(4)
TALL, WIDE = RNG.normal(size=(5, 3)), RNG.normal(size=(2, 2, 4))
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2) + np.eye(4)
IMAGINARY = 1j * RNG.normal(size=(4, 4))
COMPLEX = SQUARE + IMAGINARY
HERMITIAN = COMPLEX @ COMPLEX.conj().swapaxes(-1, -2) + np.eye(4)


def put(x, device=None):
    x = np.asarray(x)
    return fd.tensor(x, dtype=x.dtype, device=device)


def close(got, want, atol=1e-9):
    np.testing.assert_allclose(got.numpy() if hasattr(got, "numpy") else got, want, rtol=1e-9, atol=atol)


# --- values


@pytest.mark.parametrize(
    ("name", "args", "kw"),
    [
        ("cholesky", [POSITIVE], {}),
        ("cholesky", [HERMITIAN], {"upper": True}),
        ("cond", [SQUARE], {}),
        ("cond", [SQUARE], {"p": -2}),
        ("cond", [SQUARE], {"p": 1}),
        ("cond", [SQUARE], {"p": "fro"}),
        ("cross", [TALL, TALL[:1] + 1], {}),
        ("det", [COMPLEX], {}),
        ("diagonal", [WIDE], {"offset": 1}),
        ("eigvalsh", [HERMITIAN], {}),
        ("eigvalsh", [np.triu(POSITIVE[0])], {"UPLO": "U"}),
        ("inv", [COMPLEX], {}),
        ("matrix_norm", [WIDE], {"ord": "nuc", "keepdims": True}),
        ("matrix_power", [SQUARE], {"n": 5}),
        ("matrix_power", [SQUARE], {"n": -2}),
        ("matrix_power", [np.array([[1, 1], [0, 1]])], {"n": 0}),
        ("matrix_rank", [np.ones((2, 3, 3))], {}),
        ("matrix_rank", [POSITIVE], {"tol": 30.0}),
        ("matrix_rank", [np.array([0.0, 2.0])], {}),
        ("multi_dot", [[TALL[0], TALL.T @ TALL, TALL.T, TALL]], {}),
        ("outer", [TALL[0], TALL[1]], {}),
        ("pinv", [WIDE], {}),
        ("pinv", [np.stack([np.ones((2, 2)), np.eye(2)])], {"rcond": 0.1}),
        ("pinv", [POSITIVE], {"hermitian": True, "rcond": 0.2}),
        ("solve", [SQUARE, TALL[:4]], {}),
        ("solve", [SQUARE, TALL[:4, 0]], {}),
        ("solve", [SQUARE[0], RNG.normal(size=(3, 4, 2))], {}),
        ("solve", [COMPLEX, SQUARE], {}),
        ("svdvals", [WIDE], {}),
        ("tensordot", [WIDE, WIDE], {"axes": ([0, 2], [0, 2])}),
        ("tensorinv", [RNG.normal(size=(4, 2, 2))], {"ind": 1}),
        ("tensorsolve", [RNG.normal(size=(2, 2, 4)), TALL[:2, :2]], {}),
        ("tensorsolve", [RNG.normal(size=(4, 2, 2)), TALL[:2, :2]], {"axes": (0,)}),
        ("trace", [WIDE], {"offset": 1}),
        ("vecdot", [TALL, TALL], {}),
        ("vector_norm", [WIDE], {"ord": 3, "axis": (0, 2)}),
    ],
)  # fmt: skip
def test_values_are_numpys(name, args, kw, device, x64):
    if name == "multi_dot":
        got = linalg.multi_dot([put(x, device) for x in args[0]])
    else:
        got = getattr(linalg, name)(*[put(x, device) for x in args], **kw)
    close(got, getattr(np.linalg, name)(*args, **kw))


@pytest.mark.parametrize("ord", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
@pytest.mark.parametrize(("x", "axis"), [(TALL, None), (WIDE, (0, 2)), (WIDE, (-1, 0))])
@pytest.mark.parametrize("keepdims", [False, True])
def test_matrix_norms(x, axis, ord, keepdims, device, x64):
    close(linalg.norm(put(x, device), ord, axis, keepdims), np.linalg.norm(x, ord, axis, keepdims))


@pytest.mark.parametrize("ord", [None, 0, 1, 2, 3, 0.5, -1, np.inf, -np.inf])
def test_vector_norms(ord, device, x64):
    close(linalg.norm(put(TALL, device), ord, 1), np.linalg.norm(TALL, ord, 1))
    close(linalg.norm(put(TALL[0], device), ord), np.linalg.norm(TALL[0], ord))


@pytest.mark.parametrize("shape", [(0, 2), (2, 0), (0, 0), (2, 0, 3)])
def test_norms_of_nothing(shape, device):
    """The largest of no sizes is 0, the smallest is none."""
    x = fd.ones(shape, device=device)
    for ord in ("fro", "nuc", 2, 1, np.inf):
        got = linalg.matrix_norm(x, ord=ord)
        assert got.tolist() == np.zeros(shape[:-2]).tolist(), ord
    assert linalg.vector_norm(x, ord=np.inf).item() == 0
    assert linalg.vector_norm(x, ord=np.inf, axis=shape.index(0), keepdims=True).numpy().any() == 0
    assert fd.grad(lambda x: linalg.vector_norm(x, ord=np.inf))(x).shape == shape
    for call in (lambda: linalg.matrix_norm(x, ord=-2), lambda: linalg.vector_norm(x, ord=-np.inf)):
        with pytest.raises(ShapeError, match="norm: there are no elements"):
            call()


def test_conditions_of_nothing(device):
    assert linalg.cond(fd.ones((0, 2, 2), device=device)).shape == linalg.cond(fd.ones((0, 2, 2)), 1).shape == (0,)
    for p in (None, 1):
        with pytest.raises(ShapeError, match="without entries"):
            linalg.cond(fd.ones((2, 0, 0), device=device), p)


def test_factors_multiply_to_the_matrix(device, x64):
    for x in (TALL, WIDE, SQUARE, COMPLEX) if device == fd.Device.numpy() else (WIDE[0],):
        a = put(x, device)
        for full in (False, True):
            u, s, vh = linalg.svd(a, full_matrices=full)
            k = s.shape[-1]
            assert (u.shape[-1], vh.shape[-2]) == ((x.shape[-2], x.shape[-1]) if full else (k, k))
            close((u[..., :k] * s[..., None, :]) @ vh[..., :k, :], x)
            q, r = linalg.qr(a, mode="complete" if full else "reduced")
            assert q.shape[-1] == (x.shape[-2] if full else k)
            close(q @ r, x)
            close(fnp.conj(q).mT @ q, np.broadcast_to(np.eye(q.shape[-1]), (*x.shape[:-2], *q.shape[-1:] * 2)))
        p, lower, upper = linalg.lu(a)
        close(p @ lower @ upper, x)
        close(linalg.lu(a, permute_l=True)[0], (p @ lower).numpy())
        close(linalg.qr(a, mode="r"), r.numpy()[..., : min(x.shape[-2:]), :])
    w, v = linalg.eigh(put(HERMITIAN, device))
    close((v * w[..., None, :]) @ fnp.conj(v).mT, HERMITIAN)
    w, v = linalg.eig(put(SQUARE, device))
    close(put(SQUARE, device) @ v, (v * w[..., None, :]).numpy())
    u, s, vh = linalg.svd(put(SQUARE + SQUARE.swapaxes(-1, -2) - 9 * np.eye(4), device), hermitian=True)
    close((u * s[..., None, :]) @ vh, SQUARE + SQUARE.swapaxes(-1, -2) - 9 * np.eye(4))
    assert (np.diff(s.numpy()) <= 0).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0])
def test_expm(scale, device, x64):
    close(linalg.expm(put(scale * TALL[:3], device)), scipy.linalg.expm(scale * TALL[:3]), atol=1e-7 * scale)
    got = linalg.expm(put(scale * TALL[:3].astype(np.float32), device)).numpy()
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, scipy.linalg.expm(scale * TALL[:3]), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("a", "b"), [(TALL, TALL[:, 0]), (TALL, TALL[:, :2] ** 2), (TALL.T, TALL[:3, :2])])
def test_lstsq(a, b, device, x64):
    got, want = linalg.lstsq(put(a, device), put(b, device)), np.linalg.lstsq(a, b, rcond=None)
    for ours, numpys in zip(got, want, strict=True):
        close(ours, numpys)


@pytest.mark.parametrize("trans", [0, "T", 2])
@pytest.mark.parametrize("lower", [False, True])
def test_triangular_solves(trans, lower, device, x64):
    a, b = COMPLEX[0], TALL[:4] + 1j
    for unit in (False, True):
        want = scipy.linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit)
        close(linalg.solve_triangular(put(a, device), put(b, device), trans, lower, unit), want)
    kw = {"lower": lower, "transpose_a": trans != 0, "conjugate_a": trans == 2}
    for left in (False, True):
        got = linalg.triangular_solve(put(a, device), put(b if left else b.T, device), left_side=left, **kw)
        close(got, jax.lax.linalg.triangular_solve(a, b if left else b.T, left_side=left, **kw))


def test_integers_and_half_types():
    device = fd.Device.numpy()
    assert linalg.inv(fd.tensor([[2, 0], [0, 4]], device=device)).tolist() == [[0.5, 0.0], [0.0, 0.25]]
    for dtype in ("float16", "bfloat16"):
        x = fd.tensor([[4.0, 2.0], [2.0, 5.0]], dtype=dtype, device=device)
        for fn in (linalg.cholesky, linalg.inv, linalg.det, linalg.svdvals, linalg.eigvalsh, linalg.expm, linalg.pinv):
            assert fn(x).dtype == dtype or fn(x).dtype.name == dtype
            assert fd.grad(lambda x, fn=fn: fn(x).astype("float32").sum())(x).dtype.name == dtype


def test_empty_matrices(device):
    nothing = fd.zeros((0, 0), device=device)
    assert linalg.det(nothing).item() == 1
    assert fd.grad(linalg.det)(nothing).shape == (0, 0)
    for fn in (linalg.inv, linalg.cholesky, linalg.expm):
        assert fn(nothing).shape == (0, 0)
    assert linalg.solve(nothing, fd.zeros((0, 2), device=device)).shape == (0, 2)
    assert linalg.inv(fd.zeros((0, 2, 2), device=device)).shape == (0, 2, 2)


# --- derivatives


def _polar(svd):
    def polar(x):
        u, _, vh = svd(x, full_matrices=False)
        return u @ vh

    return polar


def _projection(module):
    def projection(x):
        v = module.linalg.eigh(x)[1][..., :2]
        return v @ module.conj(v).mT

    return projection


def exponential_by_eigh(x):
    w, v = linalg.eigh(x)
    return ((v * fnp.exp(w)) @ v.mT).sum()


def whole_by_svd(x):
    u, s, vh = linalg.svd(x)
    return ((u * s) @ vh).sum()


DERIVATIVES = {
    "solve": (lambda m: m.linalg.solve, [SQUARE, TALL[:4]]),
    "solve, one matrix": (lambda m: m.linalg.solve, [COMPLEX[0], RNG.normal(size=(3, 4, 1))]),
    "det": (lambda m: m.linalg.det, [COMPLEX]),
    "log of a determinant": (lambda m: lambda x: m.linalg.slogdet(x)[1], [COMPLEX]),
    "its phase": (lambda m: lambda x: m.linalg.slogdet(x)[0], [COMPLEX]),
    "projection": (_projection, [HERMITIAN]),
    "polar factor": (lambda m: _polar(m.linalg.svd), [TALL + 1j * TALL[::-1]]),
    "polar factor, wide": (lambda m: _polar(m.linalg.svd), [WIDE]),
    "pinv": (lambda m: m.linalg.pinv, [COMPLEX[0, :3]]),
    "lstsq": (lambda m: lambda a, b: m.linalg.lstsq(a, b)[0], [TALL, TALL[:, :2] ** 2]),
    "cond": (lambda m: m.linalg.cond, [SQUARE]),
    "nuclear norm": (lambda m: lambda x: m.linalg.norm(x, "nuc"), [TALL]),
    "power": (lambda m: lambda x: m.linalg.matrix_power(x, -3), [SQUARE]),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_jaxs(name, x64):
    """First and second: what is composed or complex, which the matrix of ops does not reach."""
    make, point = DERIVATIVES[name]
    rng = np.random.default_rng(1)
    weights = rng.normal(size=make(np)(*point).shape) + 1j
    moved = [rng.normal(size=x.shape) for x in point]
    numbers = tuple(range(len(point)))

    def loss(module):
        return lambda *xs: (make(module)(*xs) * weights).real.sum()

    def second(grad, module):
        return grad(
            lambda *xs: sum((g * m).real.sum() for g, m in zip(grad(loss(module), numbers)(*xs), moved, strict=True)),
            numbers,
        )

    want = jax.jit(lambda *xs: (jax.grad(loss(jnp), numbers)(*xs), second(jax.grad, jnp)(*xs)))(*point)
    on_host = [put(x, fd.Device.numpy()) for x in point]
    got = (fd.grad(loss(fnp), numbers)(*on_host), second(fd.grad, fnp)(*on_host))
    for ours, jaxs in zip(got, want, strict=True):
        for g, w in zip(ours, jaxs, strict=True):
            scale = np.abs(w).max()
            close(g.numpy() / scale, np.asarray(w) / scale)


@pytest.mark.parametrize("shape", [(4, 2), (2, 4)])
def test_full_factors(shape, x64):
    """JAX refuses these: checked against differences, on what does not depend on the choice of the extra columns."""
    x = np.random.default_rng(5).normal(size=shape)

    def beyond(x):
        u, s, vh = linalg.svd(x)
        k = s.shape[-1]
        extra = u[..., k:] if shape[0] > k else vh[..., k:, :].mT
        q = linalg.qr(x if shape[0] > k else x.mT, mode="complete")[0][..., k:]
        return extra @ extra.mT, q @ q.mT, linalg.qr(x)[1] ** 2

    fd.testing.check_grads(beyond, (put(x, fd.Device.numpy()),), order=2)


def test_eigenvectors_of_general_matrices():
    """Each of length 1, its phase not looked at; the eigenvalues are complex."""
    x = put(SQUARE[0] - 3 * np.eye(4), fd.Device.numpy())

    def sizes(x):
        w, v = linalg.eig(x)
        return fnp.abs(v) ** 2, w.real, w.imag**2

    fd.testing.check_grads(sizes, (x,), order=2)


def test_a_matrix_is_factored_once_for_many_rows(device, x64):
    """vmap over right-hand sides makes them columns of one solve."""
    a, b = put(SQUARE[0], device), put(RNG.normal(size=(3, 4, 2)), device)
    want = np.linalg.solve(SQUARE[0], b.numpy())
    close(fd.vmap(linalg.solve, in_axes=(None, 0))(a, b), want)
    close(fd.vmap(linalg.inv)(put(SQUARE, device)), np.linalg.inv(SQUARE))


# --- special points


def _cofactors(x):
    n = len(x)
    minors = [[np.linalg.det(np.delete(np.delete(x, i, 0), j, 1)) for j in range(n)] for i in range(n)]
    return np.array(minors) * np.fromfunction(lambda i, j: (-1) ** (i + j), (n, n))


@pytest.mark.parametrize(("rank", "where"), [*[(rank, "numpy") for rank in range(6)], (4, "cpu")])
def test_derivatives_of_determinants_of_singular_matrices(rank, where, x64):
    """A product over the singular values: 1 / det must not enter. JAX gives NaN for a zero pivot that is not the last."""
    rng, device = np.random.default_rng(rank), getattr(fd.Device, where)()
    x, t = rng.normal(size=(5, rank)) @ rng.normal(size=(rank, 5)), rng.normal(size=(5, 5))
    close(fd.grad(linalg.det)(put(x, device)), _cofactors(x))
    got = fd.grad(lambda x: (fd.grad(linalg.det)(x) * put(t, device)).sum())(put(x, device))
    close(got, (_cofactors(x + 1e-4 * t) - _cofactors(x - 1e-4 * t)) / 2e-4, atol=1e-6)


def test_third_derivative_of_a_determinant():
    zero = fd.zeros((3, 3), device=fd.Device.numpy())
    third = fd.grad(lambda a: fd.grad(lambda b: fd.grad(linalg.det)(b)[0, 0])(a)[1, 1])(zero)
    assert third.tolist() == [[0, 0, 0], [0, 0, 0], [0, 0, 1]]


def test_matrix_functions_at_repeated_eigenvalues(device, x64):
    """exp'(2) = e^2 where a rule that drops equal eigenvalues gives 0."""
    a, c = put(np.diag([2.0, 2.0, 5.0]), device), put(np.arange(9.0).reshape(3, 3), device)
    assert fd.grad(lambda a: (linalg.expm(a) * c).sum())(a)[0, 1].item() == pytest.approx(np.exp(2))
    symmetric = fd.grad(lambda a: (linalg.expm((a + a.T) / 2) * c).sum())(a)
    assert symmetric[0, 1].item() == pytest.approx(2 * np.exp(2))
    a = put(np.diag([2.0, 2.0, 5.0]), fd.Device.numpy())
    second = fd.grad(lambda a: fd.grad(lambda a: linalg.expm(a)[0, 0])(a)[0, 1])(a)
    assert second[1, 0].item() == pytest.approx(np.exp(2) / 2)


@pytest.mark.parametrize("turn", [np.eye(3), np.linalg.qr(RNG.normal(size=(3, 3)))[0]])
def test_functions_of_hermitian_matrices(turn, x64):
    """Exact where eigenvalues are equal, and where rounding makes them almost so; the oracle is a block matrix."""
    x, c = turn @ np.diag([2.0, 2.0, 5.0]) @ turn.T, RNG.normal(size=(3, 3))
    c = c + c.T
    for fn, oracle in ((fnp.sqrt, scipy.linalg.sqrtm), (fnp.log, scipy.linalg.logm), (fnp.exp, scipy.linalg.expm)):
        close(linalg.funm_hermitian(put(x), fn), oracle(x), atol=1e-12)
        want = oracle(np.block([[x, c], [np.zeros((3, 3)), x]]))[:3, 3:]
        close(fd.grad(lambda x, fn=fn: (linalg.funm_hermitian(x, fn) * put(c)).sum())(put(x)), want, atol=1e-8)
        got = fd.jvp(lambda x, fn=fn: linalg.funm_hermitian(x, fn), (put(x),), (put(c),))[1]
        close(got, want, atol=1e-8)
    apart = put(HERMITIAN, fd.Device.numpy())
    fd.testing.check_grads(lambda x: fnp.abs(linalg.funm_hermitian(x, fnp.log)), (apart[0],), order=2)


@pytest.mark.parametrize("x", [np.eye(3), np.zeros((3, 3)), np.ones((3, 3)), np.diag([1.0, 1.0, 2.0])])
@pytest.mark.parametrize(
    "fn",
    [
        lambda x: linalg.norm(x, "nuc"), lambda x: linalg.norm(x, 2), linalg.norm, lambda x: linalg.svdvals(x).sum(),
        lambda x: linalg.pinv(x).sum(), lambda x: (linalg.eigvalsh(x) ** 2).sum(), lambda x: linalg.expm(x).sum(),
        exponential_by_eigh, whole_by_svd,
    ],
)  # fmt: skip
def test_degenerate_spectra_are_finite(fn, x):
    x = put(x.astype(np.float32), fd.Device.numpy())
    assert np.isfinite(fd.grad(fn)(x).numpy()).all()
    assert np.isfinite(fd.jvp(fn, (x,), (fnp.ones_like(x),))[1].numpy()).all()


def test_least_norm_subgradients():
    device = fd.Device.numpy()
    for kind in ("nuc", "fro"):
        assert not fd.grad(lambda x, kind=kind: linalg.norm(x, kind))(fd.zeros((2, 3), device=device)).numpy().any()
    nuclear = fd.grad(lambda x: linalg.norm(x, "nuc"))(fd.eye(3, device=device))
    np.testing.assert_allclose(nuclear.numpy(), np.eye(3), atol=1e-6)
    assert fd.grad(lambda x: linalg.norm(x) ** 2)(fd.zeros(2, device=device)).tolist() == [0, 0]


def test_second_derivatives_at_equal_singular_values():
    """Of the nuclear norm and of the polar factor, at the identity: half the antisymmetric part."""
    want = np.array([[0, 0, 0, 0], [0, 0.5, -0.5, 0], [0, -0.5, 0.5, 0], [0, 0, 0, 0]])
    one = fd.eye(2, device=fd.Device.numpy())
    np.testing.assert_allclose(fd.hessian(lambda x: linalg.norm(x, "nuc"))(one).numpy().reshape(4, 4), want, atol=1e-6)
    np.testing.assert_allclose(fd.jacrev(_polar(linalg.svd))(one).numpy().reshape(4, 4), want, atol=1e-6)


def test_the_branch_not_taken(device):
    """A zero cotangent stays zero at singular, indefinite and NaN matrices; inside strict_ieee it need not."""
    fns = (
        linalg.inv, linalg.det, linalg.cholesky, linalg.pinv, linalg.svdvals, linalg.eigvalsh, linalg.expm,
        lambda x: linalg.slogdet(x)[1], lambda x: linalg.solve(x, x), lambda x: linalg.qr(x)[1],
    )  # fmt: skip
    for entry in (1.0, float("nan")):
        x = fd.full((2, 2), entry, device=device)
        for fn in fns if device == fd.Device.numpy() else fns[:1]:
            got = fd.grad(lambda x, fn=fn: fnp.where(False, fn(-x).sum(), 1.0))(x)
            assert got.tolist() == [[0, 0], [0, 0]], fn
    with fd.strict_ieee():
        assert np.isnan(fd.grad(lambda x: fnp.where(False, linalg.inv(x).sum(), 1.0))(x).numpy()).any()


def test_a_hessian_through_a_zero_cotangent():
    """The guard looks at what is not finite only: at inv(x) = 1 the residual is 0, and its Hessian is not."""
    got = fd.hessian(lambda x: ((linalg.inv(x) - 1.0) ** 2).sum() / 2)(fd.ones((1, 1), device=fd.Device.numpy()))
    assert got.item() == pytest.approx(1.0)


def test_singular_and_indefinite_matrices_do_not_raise(device):
    """Reading the values to raise would wait for the device: inf and NaN say it, on both backends."""
    ones = fd.ones((2, 2), device=device)
    batch = fd.tensor([[[1.0, 1.0], [1.0, 1.0]], [[2.0, 0.0], [0.0, 4.0]]], device=device)
    assert not np.isfinite(linalg.inv(ones).numpy()).all()
    assert not np.isfinite(linalg.solve(ones, fd.tensor([1.0, 2.0], device=device)).numpy()).all()
    assert np.isnan(linalg.cholesky(-ones).numpy()[np.tril_indices(2)]).all()
    np.testing.assert_allclose(linalg.inv(batch)[1].numpy(), [[0.5, 0], [0, 0.25]], rtol=1e-6)
    np.testing.assert_allclose(
        linalg.cholesky(batch - fd.eye(2, device=device))[1].numpy(), np.diag([1, 3**0.5]), rtol=1e-6
    )
    sign, log = linalg.slogdet(ones)
    assert (sign.item(), log.item()) == (0, -np.inf)
    assert linalg.det(ones).item() == 0
    assert linalg.cond(fd.zeros((2, 2), device=device)).item() == np.inf


def test_one_triangle_alone_is_read(device):
    x = fd.tensor([[2.0, 9.0], [1.0, 2.0]], device=device)
    np.testing.assert_allclose(linalg.eigvalsh(x, "L").numpy(), [1, 3], rtol=1e-6)
    np.testing.assert_allclose(linalg.eigvalsh(x).numpy(), [-3, 7], rtol=1e-6)
    assert fd.grad(lambda x: linalg.eigvalsh(x, "L")[1])(x)[0, 1].item() == 0
    np.testing.assert_allclose(fd.grad(lambda x: linalg.eigvalsh(x)[1])(x).numpy(), np.full((2, 2), 0.5), rtol=1e-5)


# --- errors and dispatch


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: linalg.inv(fd.ones((2, 3))), ShapeError, "2 rows and 3 columns. For a rectangular matrix write linalg.pinv"),
        (lambda: linalg.solve(fd.ones((2, 3)), fd.ones(2)), ShapeError, "linalg.lstsq"),
        (lambda: linalg.solve(fd.ones((2, 2)), fd.ones(3)), ShapeError, "b needs 2 entries or rows"),
        (lambda: linalg.solve(fd.ones((5, 2, 2)), fd.ones((5, 2))), ShapeError, r"stack of vectors write b\[..., None\]"),
        (lambda: linalg.solve(fd.ones((5, 2, 2)), fd.ones((4, 2, 1))), ShapeError, "do not broadcast"),
        (lambda: linalg.det(fd.ones(3)), ShapeError, r"x\[:, None\]"),
        (lambda: linalg.qr(fd.ones((2, 2)), mode="raw"), ArgumentError, "'reduced', 'complete' or 'r', got 'raw'"),
        (lambda: linalg.eigh(fd.ones((2, 2)), UPLO="x"), ArgumentError, "UPLO is 'L'"),
        (lambda: linalg.norm(fd.ones((2, 2)), "x"), ArgumentError, "not the order of a matrix norm"),
        (lambda: linalg.norm(fd.ones(2), "fro"), ArgumentError, "order of matrices"),
        (lambda: linalg.norm(fd.ones((2, 2, 2)), 2), ShapeError, "linalg.vector_norm"),
        (lambda: linalg.multi_dot([fd.ones((2, 2))]), ArgumentError, "at least two"),
        (lambda: linalg.multi_dot([fd.ones((2, 2)), fd.ones((3, 2))]), ShapeError, "2 columns, 3 rows"),
        (lambda: linalg.lstsq(fd.ones((3, 2)), fd.ones(2)), ShapeError, "b needs 3"),
        (lambda: linalg.pinv(fd.ones((2, 2)), rcond=1e-3, rtol=1e-3), ArgumentError, "one argument under two names"),
        (lambda: linalg.tensorinv(fd.ones((2, 3))), ShapeError, "an invertible map needs as many"),
        (lambda: linalg.tensorsolve(fd.ones((2, 3)), fd.ones(2)), ShapeError, "must have the axes of b"),
        (lambda: linalg.matrix_power(fd.ones((2, 2)), 0.5), FunctadError, "n must be an int, got 0.5"),
        (lambda: linalg.outer(fd.ones((2, 2)), fd.ones(2)), ShapeError, "functad.numpy.outer flattens"),
        (lambda: linalg.solve_triangular(fd.eye(2), fd.ones(2), trans=3), ArgumentError, "trans is 0"),
    ],
)  # fmt: skip
def test_errors_say_what_to_write(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_numpys_functions_run_these():
    x = fd.tensor([[2.0, 1.0], [0.0, 3.0]])
    assert fd.grad(np.linalg.det)(x).tolist() == [[3, 0], [-1, 2]]
    assert type(np.linalg.svd(x)) is type(linalg.svd(x))
    assert isinstance(np.linalg.norm(x, 2), fd.Tensor)


def test_every_function_of_numpy_is_there():
    missing = {n for n in np.linalg.__all__ if not hasattr(linalg, n)} - {"LinAlgError"}
    assert not missing


# --- kept factors, roots, blocks


def test_factors_are_kept_to_solve_with(device):
    a = np.array([[0.0, 2.0, 1.0], [1.0, 3.0, 0.5], [4.0, 1.0, 1.0]], np.float32)
    s = a @ a.T + np.eye(3, dtype=np.float32)
    b = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, -1.0]], np.float32)
    x, y, z = (fd.tensor(v, device=device) for v in (a, s, b))

    for trans, matrix in ((0, a), (1, a.T)):
        np.testing.assert_allclose(
            linalg.lu_solve(linalg.lu_factor(x), z, trans).numpy(), np.linalg.solve(matrix, b), rtol=1e-5, atol=1e-6
        )
    for lower in (True, False):
        np.testing.assert_allclose(
            linalg.cho_solve(linalg.cho_factor(y, lower), z[:, 0]).numpy(), np.linalg.solve(s, b[:, 0]), rtol=2e-4
        )
    slope = fd.grad(lambda x: linalg.lu_solve(linalg.lu_factor(x), z).sum())(x)
    want = fd.grad(lambda x: linalg.solve(x, z).sum())(x)
    np.testing.assert_allclose(slope.numpy(), want.numpy(), rtol=1e-4, atol=1e-5)


def test_square_roots(device, x64):

    for matrix in ([[4.0, 1.0], [0.0, 4.0]], [[1.0, 5.0], [-1.0, 2.0]], np.diag([1e-8, 1.0, 1e6])):
        root = linalg.sqrtm(fd.tensor(matrix, "float64", device))
        np.testing.assert_allclose((root @ root).numpy(), matrix, rtol=1e-12, atol=1e-12)
    for matrix in (np.diag([1.0, -1.0]), np.zeros((2, 2))):
        assert np.isnan(linalg.sqrtm(fd.tensor(matrix, "float64", device)).numpy()).all()


def test_block_diag():
    out = fnp.linalg.block_diag([[1.0, 2.0], [3.0, 4.0]], [5.0], 6.0)
    assert out.tolist() == [[1, 2, 0, 0], [3, 4, 0, 0], [0, 0, 5, 0], [0, 0, 0, 6]]
    with pytest.raises(ValueError, match=r"block_diag: takes matrices, got shapes \(1, 1, 1\)"):
        fnp.linalg.block_diag([[[1.0]]])


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_products_of_reflections(kind, device, x64):
    """SciPy's `qr` gives reflections, of which the product is the Q of NumPy's."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(5, 3)) + (1j * rng.normal(size=(5, 3)) if kind == "complex" else 0)
    (packed, taus), _ = scipy.linalg.qr(a, mode="raw")
    q = linalg.householder_product(fd.tensor(packed, device=device), fd.tensor(taus, device=device)).numpy()
    np.testing.assert_allclose(q, scipy.linalg.qr(a, mode="economic")[0], atol=1e-13)
    stack = linalg.householder_product(fd.tensor(np.stack([packed] * 2)), fd.tensor(np.stack([taus * 0, taus]))[:, :2])
    np.testing.assert_allclose(stack.numpy()[0], np.eye(5, 3), atol=1e-15)
    if kind == "real":
        fd.testing.check_grads(linalg.householder_product, (fd.tensor(packed), fd.tensor(taus)), order=2)


def test_matrices_of_equal_diagonals(device, x64):
    rng = np.random.default_rng(0)
    c, r = rng.normal(size=4), rng.normal(size=3)
    x, y = fd.tensor(c, device=device), fd.tensor(r, device=device)
    for name in ("toeplitz", "hankel"):
        assert (getattr(linalg, name)(x, y).numpy() == getattr(scipy.linalg, name)(c, r)).all()
        assert (getattr(linalg, name)(x).numpy() == getattr(scipy.linalg, name)(c)).all()
        assert getattr(linalg, name)(x.broadcast_to((2, 4)), y[:1].broadcast_to((2, 1))).shape == (2, 4, 1)
    assert (linalg.circulant(x).numpy() == scipy.linalg.circulant(c)).all()
    count = fd.grad(lambda x: linalg.toeplitz(x, y).sum())(x)
    assert count.tolist() == [3.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize("shape", [(3, 5), (5, 3)])
def test_packed_factors_of_rectangular_matrices(shape, device, x64):
    a = np.random.default_rng(0).normal(size=shape)
    factors = linalg.lu_factor(put(a, device))
    np.testing.assert_allclose(factors.lu.numpy(), scipy.linalg.lu_factor(a)[0], atol=1e-14)
    lower, upper = (
        np.tril(factors.lu.numpy()[:, : min(shape)], -1) + np.eye(*shape)[:, : min(shape)],
        factors.lu[: min(shape)],
    )
    np.testing.assert_allclose(lower @ np.triu(upper.numpy()), a[factors.order.numpy()], atol=1e-14)
