"""Losses and distances: figures of torch, extreme and equal arguments, masked classes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import functad as fd
import functad.numpy as fnp
from functad.errors import ArgumentError, ShapeError
from functad.nn.functional import checks

F = fd.nn.functional
INF = float("inf")


def wave(shape, step):
    return np.sin(np.arange(1, np.prod(shape, dtype=int) + 1) * step).reshape(shape)


X, Y = 2 * wave((3, 4), 1.0), wave((3, 4), 0.7)
P, Q = 0.5 + 0.45 * wave((3, 4), 1.0), 0.5 + 0.5 * wave((3, 4), 0.7)
SIGN, W = np.sign(wave((3, 4), 1.3)), 1 + 0.5 * wave((3, 4), 1.7)
CLASSES, CLASS_WEIGHT = np.array([2, 0, 3]), np.array([0.5, 1.0, 2.0, 0.7])
SOFT = np.exp(Y) / np.exp(Y).sum(1, keepdims=True)
LABELS = np.array([[0, 2, -1, 1], [1, -1, 0, 0], [3, 2, 1, 0]])
PATH = 2 * wave((6, 2, 4), 1.0)

FIGURES = [
    ("mse", lambda x, y: F.mse_loss(x, y, weight=W), (X, Y), 3.18844165078, [0.214928438764, -0.214928438764]),
    ("l1", lambda x, y: F.l1_loss(x, y, "sum"), (X, Y), 18.5559962177, [-0.59679841119, 0.59679841119]),
    ("huber", lambda x, y: F.huber_loss(x, y, delta=0.7), (X, Y), 0.844272067035, [-0.020268935876, 0.020268935876]),
    ("smooth", lambda x, y: F.smooth_l1_loss(x, y, beta=0.7), (X, Y), 1.20610295291, [-0.02895562268, 0.02895562268]),
    ("bce", lambda x, y: F.binary_cross_entropy(x, y, W), (P, Q), 1.25272613396, [-0.0392626803454, -0.104459751138]),
    ("logits", lambda x, y: F.binary_cross_entropy_with_logits(x, y, W, pos_weight=CLASS_WEIGHT), (X, Q),
     1.13190473479, [0.0196511180756, -0.0253899533422]),
    ("kl", lambda x, y: F.kl_div(x, y, "batchmean"), (X, Q), -0.222795631863, [0.111028462331, -0.85512901609]),
    ("kl_log", lambda x, y: F.kl_div(x, y, log_target=True), (X, Y), 1.13157855914, [0.0933199721982, -0.0436869053415]),
    ("hinge", lambda x: F.hinge_embedding_loss(x, SIGN, 0.8), (X,), 0.0840855815496, [-0.0540765758893]),
    ("ranking", lambda x, y: F.margin_ranking_loss(x, y, SIGN, 0.3), (X, Y), 1.12044947786,
     [-0.0411154193315, 0.0411154193315]),
    ("soft_margin", lambda x: F.soft_margin_loss(x, SIGN), (X,), 1.06971982334, [-0.0155860814638]),
    ("poisson", lambda x: F.poisson_nll_loss(x, 2 * Q, full=True), (X,), 2.79402170711, [0.0202802687407]),
    ("poisson_rate", lambda x: F.poisson_nll_loss(x, 2 * Q, log_input=False), (P,), 1.9057015123, [-0.0175815905958]),
    ("gaussian", lambda x, y, v: F.gaussian_nll_loss(x, y, v, full=True), (X, Y, W), 2.47452179891,
     [-0.0432654672355, 0.0432654672355, -0.775091080234]),
    ("ce", lambda x: F.cross_entropy(x, CLASSES), (X,), 2.9558374848, [0.428201188784]),
    ("ce_all", lambda x: F.cross_entropy(x, CLASSES, CLASS_WEIGHT, ignore_index=3, label_smoothing=0.1), (X,),
     2.60070940853, [0.318649201948]),
    ("ce_soft", lambda x, y: F.cross_entropy(x, y, CLASS_WEIGHT, label_smoothing=0.1), (X, SOFT), 2.36036037852,
     [-0.159044651313, 0.360720303585]),
    ("nll", lambda x: F.nll_loss(x, CLASSES, CLASS_WEIGHT), (X,), 0.358014477383, [0.45773325164]),
    ("multi", lambda x: F.multi_margin_loss(x, CLASSES, 2, 0.7, CLASS_WEIGHT), (X,), 3.69109093822, [1.27091301478]),
    ("multilabel", lambda x: F.multilabel_margin_loss(x, LABELS), (X,), 0.840196617087, [-0.030636420351]),
    ("multilabel_soft", lambda x: F.multilabel_soft_margin_loss(x, (SIGN > 0) * 1.0, CLASS_WEIGHT), (X,),
     1.10306851689, [-0.052781534225]),
    ("cosine_loss", lambda x, y: F.cosine_embedding_loss(x, y, [1, -1, 1], 0.1), (X, Y), 0.776666034562,
     [0.0162940966901, 0.184179411989]),
    ("cosine", lambda x, y: F.cosine_similarity(x, y).sum(), (X, Y), -0.626709354283,
     [-0.0135478841327, -0.123992708072]),
    ("pdist", lambda x: F.pdist(x, 3.0).sum(), (X,), 12.4438885882, [-0.40333039799]),
    ("pairwise", lambda x, y: F.pairwise_distance(x, y, 1.0).sum(), (X, Y), 18.5559962177,
     [-0.59679841119, 0.59679841119]),
    ("triplet", lambda x, y, z: F.triplet_margin_loss(x, y, z, swap=True), (X, Y, W), 2.34846442742,
     [-0.0346245049529, 0.0523431609424, -0.0177186559895]),
    ("ctc", lambda x: F.ctc_loss(F.log_softmax(x), [[1, 2, 2], [3, 1, 0]], [6, 5], [3, 2]), (PATH,), 2.43491084492,
     [0.282977371195]),
]  # fmt: skip
"""A function, its arguments; its value, and its gradients times a wave, printed by torch 2.13 in float64."""


@pytest.mark.parametrize(("fn", "inputs", "value", "slopes"), [f[1:] for f in FIGURES], ids=[f[0] for f in FIGURES])
def test_as_torch(fn, inputs, value, slopes, device, x64):
    xs = [fd.tensor(x, dtype="float64", device=device) for x in inputs]
    both = fd.value_and_grad(fn, argnums=tuple(range(len(xs))))
    found, grads = both(*xs) if device == fd.Device.numpy() else fd.jit(both)(*xs)
    assert found.item() == pytest.approx(value, rel=1e-9)
    assert [(g * wave(g.shape, 2.0)).sum().item() for g in grads] == pytest.approx(slopes, rel=1e-8)
    if device == fd.Device.numpy():  # the ops themselves are compared with differences on both
        fd.testing.check_grads(fn, xs)
        rows = fd.vmap(fn)(*[fd.stack([x, x]) for x in xs])
        assert rows.tolist() == pytest.approx([value, value], rel=1e-9)


# --- classes


def test_logits_of_any_size(device):
    x = fd.tensor([[1e30, -1e30, 0.0], [10000.0, 9990.0, -INF], [-INF, -INF, 3.0]], device=device)
    target = fd.tensor([1, 0, 0], device=device)
    loss = F.cross_entropy(x, target, reduction="none").numpy()
    assert loss[0] == pytest.approx(2e30) and loss[1] == pytest.approx(np.log1p(np.exp(-10)), rel=1e-3)
    assert loss[2] == INF  # the class is excluded
    slope = fd.grad(lambda x: F.cross_entropy(x, target, reduction="sum"))(x).numpy()
    np.testing.assert_allclose(slope, [[1, -1, 0], [-4.5398e-5, 4.5398e-5, 0], [-1, 0, 1]], atol=1e-7)


def test_excluded_classes_in_soft_targets(device):
    x = fd.tensor([[0.0, -INF, 0.0]], device=device)
    soft = fd.tensor([[0.5, 0.0, 0.5]], device=device)
    assert F.cross_entropy(x, soft).item() == pytest.approx(np.log(2))
    assert fd.grad(lambda x: F.cross_entropy(x, soft))(x).tolist() == [[0.0, 0.0, 0.0]]
    smooth = fd.grad(lambda x: F.cross_entropy(x, fd.tensor([0], device=device), label_smoothing=0.3))(x)
    np.testing.assert_allclose(smooth.numpy(), [[-0.3, -0.1, 0.4]], atol=1e-6)


def test_ignored_elements(device):
    x = fd.tensor([[1.0, 2.0], [float("nan"), 4.0]], device=device)
    loss = F.cross_entropy(x, [1, -100])
    assert loss.item() == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)
    assert fd.grad(lambda x: F.cross_entropy(x, [1, -100]))(x)[1].tolist() == [0.0, 0.0]
    none = fd.value_and_grad(lambda x: F.cross_entropy(x, [-100, -100]))(x)
    assert np.isnan(none[0].item()) and not none[1].numpy().any()
    assert F.cross_entropy(x, [1, 0], ignore_index=0).item() == loss.item()
    assert F.nll_loss(x, [1, -100], reduction="none").tolist() == [-2.0, 0.0]


def test_shapes_of_classes():
    x = fd.tensor(wave((2, 3, 4, 5), 1.0))
    target = np.arange(40).reshape(2, 4, 5) % 3
    whole = F.cross_entropy(x, target, reduction="none")
    assert whole.shape == (2, 4, 5)
    assert whole[1, 2, 3].item() == pytest.approx(F.cross_entropy(x[1, :, 2, 3], target[1, 2, 3]).item(), rel=1e-5)
    np.testing.assert_allclose(F.nll_loss(F.log_softmax(x, 1), target).numpy(), whole.mean().numpy(), rtol=1e-6)
    one_hot = fd.ops.moveaxis(F.one_hot(target, 3), -1, 1)
    np.testing.assert_allclose(F.cross_entropy(x, one_hot).numpy(), whole.mean().numpy(), rtol=1e-6)


def test_a_class_that_does_not_exist():
    x = fd.zeros((2, 3))
    with pytest.raises(fd.errors.OutOfBoundsError, match="the class 3, but there are 3 classes: use 0 to 2"):
        F.cross_entropy(x, [0, 3])
    with pytest.raises(fd.errors.OutOfBoundsError, match="the class -1"):
        F.nll_loss(x, [0, -1])
    with pytest.raises(fd.errors.OutOfBoundsError, match="the class 5"):
        fd.vmap(F.cross_entropy)(x, fd.tensor([0, 5]))
    traced = fd.jit(lambda x, t: F.cross_entropy(x, t, reduction="none"))(x, fd.tensor([1, 3]))
    assert traced[0].item() == pytest.approx(np.log(3)) and np.isnan(traced[1].item())


def test_only_the_logits_are_kept():
    """The softmax is computed again in backward."""
    x = fd.ones((4, 8), device=fd.Device.cpu(fusion=False).autodiff()).require_grad()
    node = F.cross_entropy(x * 2, [0, 1, 2, 3], reduction="none")._context
    assert node.out is None and [k.shape for k in node.inputs] == [(4, 8), (4,)]


# --- two classes, distributions


@pytest.mark.parametrize(("x", "target", "loss", "slope"), [
    (0.0, 1.0, np.log(2), -0.5), (1e4, 0.0, 1e4, 1.0), (1e4, 1.0, 0.0, 0.0), (-1e4, 1.0, 1e4, -1.0),
    (-20.0, 0.0, 2.0611537e-9, 2.0611537e-9), (INF, 1.0, 0.0, 0.0), (-INF, 0.0, 0.0, 0.0), (INF, 0.0, INF, 1.0),
])  # fmt: skip
def test_binary_logits_of_any_size(x, target, loss, slope):
    for weight in (None, 1.0):
        found = fd.value_and_grad(lambda x: F.binary_cross_entropy_with_logits(x, target, pos_weight=weight))(x)  # noqa: B023  # called in the same round of the loop
        assert [y.item() for y in found] == pytest.approx([loss, slope], rel=1e-5)


def test_probabilities_of_0_and_1(device):
    """As in torch: logarithms are at least -100, and the derivative is divided by at least 1e-12."""
    x, target = fd.tensor([0.0, 1.0, 1.0, 0.0], device=device), fd.tensor([1.0, 0.0, 1.0, 0.0], device=device)
    assert F.binary_cross_entropy(x, target, reduction="none").tolist() == [100.0, 100.0, 0.0, 0.0]
    slope = fd.grad(lambda x: F.binary_cross_entropy(x, target, reduction="sum"))(x).numpy()
    np.testing.assert_allclose(slope, [-1e12, 1e12, 0, 0], rtol=1e-6)
    with pytest.raises(fd.errors.ArgumentError, match=r"reach from 0\.5 to 3\.0"):
        F.binary_cross_entropy(fd.tensor([0.5, 3.0], device=device), fd.ones(2, device=device))


def test_targets_of_probability_0(device):
    x, target = fd.tensor([-INF, -1.0], device=device), fd.tensor([0.0, 1.0], device=device)
    assert F.kl_div(x, target, "none").tolist() == [0.0, 1.0]
    assert fd.grad(lambda x: F.kl_div(x, target, "sum"))(x).tolist() == [0.0, -1.0]
    logs = fd.tensor([-INF, 0.0], device=device)
    found = fd.value_and_grad(lambda *xs: F.kl_div(*xs, "sum", log_target=True), argnums=(0, 1))(x, logs)
    assert found[0].item() == 1.0 and [g.tolist() for g in found[1]] == [[0.0, -1.0], [0.0, 2.0]]


# --- distances


def test_equal_points_and_zero_vectors(device):
    x = fd.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)
    other = fd.tensor([[1.0, 2.0], [0.0, 0.0]], device=device)
    slope = fd.grad(lambda x: F.pairwise_distance(x, other).sum())(x).numpy()
    np.testing.assert_allclose(slope, [[0, 0], [0.6, 0.8]], rtol=1e-5)
    assert fd.grad(lambda x: F.pairwise_distance(x, other, eps=0.0).sum())(x)[0].tolist() == [0.0, 0.0]
    assert not fd.grad(lambda x: F.pdist(x).sum())(fd.ones((3, 2), device=device)).numpy().any()
    assert not fd.grad(lambda x: F.triplet_margin_loss(x, x, x))(x).numpy().any()
    zero = fd.zeros((1, 2), device=device)
    assert F.cosine_similarity(zero, x[:1]).tolist() == [0.0]
    assert np.isfinite(fd.grad(lambda x: F.cosine_similarity(x, other[:1]).sum())(zero).numpy()).all()


# --- arguments


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_types_keep_their_dtype(dtype):
    """A mean over 60,000 elements is no sum of halves; the cross entropy of equal logits is log(4)."""
    numpy = fd.Device.numpy()
    x = fd.ones((15000, 4), device=numpy).astype(dtype)
    assert F.mse_loss(x, x * 0).item() == 1.0
    loss, slope = fd.value_and_grad(lambda x: F.cross_entropy(x, np.zeros(15000, int)))(x)
    assert loss.dtype == slope.dtype == x.dtype and loss.item() == pytest.approx(np.log(4), rel=4e-3)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.mse_loss(fd.ones(3), fd.ones((3, 1))), "ShapeError", r"target has shape \(3, 1\) and input \(3,\)"),
        (lambda: F.mse_loss(fd.ones(3), fd.ones(3), "avg"), "ArgumentError", "'none', 'mean', 'sum', got 'avg'"),
        (lambda: F.mse_loss(fd.ones(3), fd.ones(3), weight=fd.ones(2)), "ShapeError", "weight has shape"),
        (lambda: F.kl_div(fd.ones(3), fd.ones(3), "avg"), "ArgumentError", "batchmean"),
        (lambda: F.huber_loss(fd.ones(3), 0.0, delta=0.0), "ArgumentError", "delta"),
        (lambda: F.cross_entropy(fd.ones((2, 3)), [0, 1, 2]), "ShapeError", r"must have shape \(2,\), got \(3,\)"),
        (lambda: F.cross_entropy(fd.ones((2, 3)), [[0, 1, 2]] * 2), "ShapeError", "probabilities, it needs a float"),
        (lambda: F.cross_entropy(fd.ones((2, 3)), fd.ones(2)), "DTypeError", "neither class indices"),
        (lambda: F.cross_entropy(fd.ones((2, 3)), [0, 1], fd.ones(2)), "ShapeError", "each of the 3 classes"),
        (lambda: F.cross_entropy(fd.ones((2, 3)), [0, 1], label_smoothing=2.0), "ArgumentError", "label_smoothing"),
        (lambda: F.nll_loss(fd.ones((2, 3)), fd.ones(2)), "DTypeError", "ints"),
        (lambda: F.multi_margin_loss(fd.ones((2, 3)), [0, 1], p=3), "ArgumentError", "p must be 1 or 2"),
        (lambda: F.gaussian_nll_loss(fd.ones(3), fd.ones(3), fd.ones(2)), "ShapeError", "var of shape"),
        (lambda: F.gaussian_nll_loss(fd.ones(2), fd.ones(2), -fd.ones(2)), "ArgumentError", "negative variance -1.0"),
        (lambda: F.cosine_embedding_loss(fd.ones((2, 3)), fd.ones((2, 3)), [1]), "ShapeError", r"got \(2, 3\)"),
        (lambda: F.triplet_margin_loss(fd.ones((2, 3)), fd.ones(3), fd.ones(3)), "ShapeError", "as many axes"),
        (lambda: F.pdist(fd.ones(3)), "ShapeError", r"\(N, D\)"),
    ],
)
def test_refusals(call, error, text):
    with pytest.raises(getattr(fd.errors, error), match=text):
        call()


def test_numbers_for_targets():
    assert F.mse_loss(fd.tensor([1.0, 3.0]), 1.0).item() == 2.0
    assert F.l1_loss([1.0, 3.0], [1.0, 2.0], "none").tolist() == [0.0, 1.0]
    distance = lambda x, y: abs(x - y).sum(-1)
    x = fd.tensor([[0.0, 1.0]])
    assert F.triplet_margin_with_distance_loss(x, x + 1, x + 3, distance_function=distance).item() == 0.0


@pytest.mark.parametrize("device", [fd.Device.cpu(), fd.Device.numpy()], ids=["xla", "numpy"])
def test_classes_of_a_small_integer_type(device):
    """With 300 classes an int8 target holds 100, but not 300; uint8 not -100, the index to ignore."""
    x = fd.zeros((2, 300), device=device)
    for dtype in ("int8", "uint8"):
        target = fd.tensor([100, 3], dtype=dtype, device=device)
        for loss in (F.cross_entropy(x, target), fd.jit(F.cross_entropy)(x, target)):
            np.testing.assert_allclose(loss.item(), np.log(300), rtol=1e-5)
        assert F.nll_loss(x, target).item() == 0.0


def test_the_distance_of_complex_points_is_real():
    x, y = (fd.tensor([[v]], dtype="complex64") for v in (3 + 1j, 5j))
    assert F.pairwise_distance(x, y, eps=0.0).tolist() == [5.0]


@pytest.mark.parametrize("loss", [F.cross_entropy, F.nll_loss])
def test_classes_of_weight_zero_count_nothing(loss):
    x = fd.tensor([[1.0, 2.0, 3.0], [float("-inf"), 0.0, 1.0]])
    target, weight = fd.tensor([1, 0]), fd.tensor([0.0, 2.0, 1.0])
    assert loss(x, target, weight, reduction="sum").item() == 2 * loss(x[:1], target[:1]).item()
    gradient = fd.grad(lambda x: loss(x, target, fd.zeros(3)))(x)
    assert gradient.numpy().any() == np.False_


def test_only_the_first_calls_of_a_line_wait_for_the_values(monkeypatch):
    looked = []
    monkeypatch.setattr(checks, "known", lambda x: looked.append(x) or np.asarray([0.5]))
    for _ in range(10):
        F.binary_cross_entropy(fd.tensor([0.5]), fd.tensor([1.0]))
    assert len(looked) == 3


def test_probabilities_out_of_range_are_refused_and_nan_where_no_one_looks():
    def loss(p):
        return F.binary_cross_entropy(fd.tensor([p]), fd.tensor([1.0]))

    for _ in range(2):
        with pytest.raises(ArgumentError, match="with_logits"):
            loss(2.0)
    for _ in range(4):
        loss(0.5)
    assert np.isnan(loss(2.0).item())
    assert np.isnan(loss(-1.0).item())


@pytest.mark.parametrize("p", [0.0, 0.5, 1.0, 2.0, 3.0, float("inf")])
def test_distances_of_all_pairs(p, device, x64):
    rng = np.random.default_rng(0)
    x, y = fd.tensor(rng.normal(size=(2, 3, 4)), device=device), fd.tensor(rng.normal(size=(5, 4)), device=device)
    found = F.cdist(x, y, p)
    assert found.shape == (2, 3, 5)
    assert found[1, 2, 3].item() == pytest.approx(fnp.linalg.vector_norm(x[1, 2] - y[3], ord=p).item(), rel=1e-14)
    same = fd.grad(lambda x: F.cdist(x, x, p).sum())(y)
    assert np.isfinite(same.numpy()).all()
    with pytest.raises(ShapeError, match="one length of rows"):
        F.cdist(x, y[:, 1:])


def test_focal_loss_is_its_formula(x64):
    x, y = np.array([-2.0, 0.3, 1.5, 60.0]), np.array([0.0, 1.0, 0.25, 1.0])
    p = 1 / (1 + np.exp(-x))
    right = p * y + (1 - p) * (1 - y)
    entropy = y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x)
    for device in (fd.Device.cpu(), fd.Device.numpy()):
        tx, ty = fd.tensor(x, device=device), fd.tensor(y, device=device)
        for alpha, gamma in ((0.25, 2.0), (-1.0, 1.5), (0.6, 0.0)):
            weight = 1.0 if alpha < 0 else alpha * y + (1 - alpha) * (1 - y)
            got = F.sigmoid_focal_loss(tx, ty, alpha, gamma)
            np.testing.assert_allclose(got.numpy(), weight * entropy * (1 - right) ** gamma, rtol=1e-5, atol=1e-7)
            fd.testing.check_grads(lambda x, a=alpha, g=gamma, y=ty[:3]: F.sigmoid_focal_loss(x, y, a, g), (tx[:3],), order=2)  # fmt: skip
        slope = fd.grad(lambda x, y=ty: F.sigmoid_focal_loss(x, y, reduction="sum"))(tx * 20)
        assert np.isfinite(slope.numpy()).all()
