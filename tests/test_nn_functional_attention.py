"""Attention, dropout and CTC: figures of torch, masks, keys, alignments, and what is refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import functad as fd

F = fd.nn.functional
INF = float("inf")
attend = F.scaled_dot_product_attention


def wave(shape, step):
    return np.sin(np.arange(1, np.prod(shape, dtype=int) + 1) * step).reshape(shape)


Q, K, V = wave((2, 4, 3, 5), 1.0), wave((2, 2, 4, 5), 0.7), wave((2, 2, 4, 2), 0.4)


# --- attention


def test_attention_as_torch(device, x64):
    """Value and gradients of causal attention with shared heads, printed by torch 2.13 in float64."""
    xs = [fd.tensor(x, dtype="float64", device=device) for x in (Q, K, V)]

    def loss(*xs):
        out = attend(*xs, is_causal=True, scale=0.5, enable_gqa=True)
        return (out * wave(out.shape, 0.9)).sum()

    both = fd.value_and_grad(loss, argnums=(0, 1, 2))
    value, grads = both(*xs) if device == fd.Device.numpy() else fd.jit(both)(*xs)
    assert value.item() == pytest.approx(-1.73268461295, rel=1e-10)
    slopes = [(g * wave(g.shape, 2.0)).sum().item() for g in grads]
    assert slopes == pytest.approx([0.0269012475253, 0.0204637728846, 1.96544732998], rel=1e-9)
    if device == fd.Device.numpy():
        fd.testing.check_grads(loss, xs)


def test_a_query_that_may_attend_to_nothing(device):
    q, k, v = (fd.tensor(x, device=device) for x in (Q[:, :2], K, V))
    mask = np.ones((3, 4), bool)
    mask[1] = False
    for given in (mask, np.where(mask, 0.0, -INF)):
        out, pull = fd.vjp(lambda *xs, given=given: attend(*xs, given), q, k, v)
        assert not out.numpy()[:, :, 1].any()
        grads = [g.numpy() for g in pull(fd.ones_like(out))]
        assert all(np.isfinite(g).all() for g in grads) and not grads[0][:, :, 1].any()
    np.testing.assert_allclose(out.numpy()[:, :, 0], attend(q, k, v).numpy()[:, :, 0], rtol=1e-5)


def test_masks_and_shared_heads():
    q, k, v = (fd.tensor(x, device=fd.Device.numpy()) for x in (Q, K, V))
    mask = wave((2, 1, 3, 4), 1.0) > -0.5
    both = attend(q, k, v, mask, is_causal=True, enable_gqa=True)
    whole = attend(q, fd.ops.repeat(k, 2, 1), fd.ops.repeat(v, 2, 1), mask & np.tri(3, 4, dtype=bool))
    np.testing.assert_allclose(both.numpy(), whole.numpy(), rtol=1e-6)
    np.testing.assert_allclose(
        fd.vmap(attend)(q[:, :2], k, v).numpy(), attend(q[:, :2], k, v).numpy(), rtol=1e-6, atol=1e-7
    )
    half = attend(*[x.astype("bfloat16") for x in (q[:, :2], k, v)])
    assert half.dtype == fd.bfloat16
    np.testing.assert_allclose(half.astype("float32").numpy(), attend(q[:, :2], k, v).numpy(), atol=0.02)


def test_dropout_of_weights():
    numpy = fd.Device.numpy()
    q, v = fd.zeros((400, 2), device=numpy), fd.ones((2, 1), device=numpy)
    out = attend(q, fd.zeros((2, 2), device=numpy), v, dropout_p=0.5, dropout_key=fd.random.key(0)).numpy()
    assert set(out.ravel()) == {0.0, 1.0, 2.0} and abs(out.mean() - 1) < 0.1


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"attn_mask": np.ones((3, 4), int)}, "DTypeError", "attn_mask != 0"),
        ({"attn_mask": np.ones((2, 4), bool)}, "ShapeError", "does not broadcast to the scores"),
        ({"key": K[..., :4]}, "ShapeError", "one length of the last axis"),
        ({"value": V[:, :, :3]}, "ShapeError", "a value for each key"),
        ({"query": Q[:, :3], "enable_gqa": True}, "ShapeError", "multiple"),
        ({"query": Q[0, 0, 0]}, "ShapeError", "takes shapes"),
        ({"dropout_p": 1.5}, "ArgumentError", "from 0 to 1"),
    ],
)
def test_attention_refuses(change, error, text):
    numpy = fd.Device.numpy()
    given = {"query": Q[:, :2], "key": K, "value": V, **change}
    tensors = {k: fd.tensor(x, device=numpy) if k in ("query", "key", "value") else x for k, x in given.items()}
    with pytest.raises(getattr(fd.errors, error), match=text):
        attend(**tensors)


# --- dropout


def test_dropout_keeps_the_mean(device):
    x = fd.ones((100, 100), device=device)
    for p in (0.2, 0.75):
        out = F.dropout(x, p, key=fd.random.key(0)).numpy()
        assert set(out.ravel()) == {0.0, np.float32(1 / (1 - p))} and abs(out.mean() - 1) < 0.06
        slope = fd.grad(lambda x, p=p: F.dropout(x, p, key=fd.random.key(0)).sum())(x)
        np.testing.assert_array_equal(slope.numpy(), out)
    assert F.dropout(x, 0.0) is x and F.dropout(x, training=False) is x


def test_dropping_everything_drops_nan(device):
    x = fd.tensor([float("nan"), INF, 1.0], device=device)
    assert F.dropout(x, 1.0).tolist() == [0.0] * 3
    assert fd.grad(lambda x: F.dropout(x, 1.0).sum())(x).tolist() == [0.0] * 3


def test_dropout_follows_the_seed_and_the_key():
    x = fd.ones(64, device=fd.Device.numpy())
    fd.seed(3)
    first, second = F.dropout(x).tolist(), F.dropout(x).tolist()
    fd.seed(3)
    assert F.dropout(x).tolist() == first != second
    key = fd.random.key(1)
    assert F.dropout(x, key=key).tolist() == F.dropout(x, key=key).tolist()
    rows = fd.vmap(lambda k, x: F.dropout(x, key=k), in_axes=(0, None))(fd.random.split(key, 2), fd.ones(64))
    assert rows[0].tolist() != rows[1].tolist()
    compiled = fd.jit(lambda k: F.dropout(fd.ones(64), key=k))(key)
    assert compiled.tolist() == F.dropout(fd.ones(64), key=key).tolist()
    for transform in (fd.jit, fd.vmap):
        with pytest.raises(fd.errors.ConcreteValueError, match="key="):
            transform(F.dropout)(fd.ones((2, 3)))


def test_channels_are_dropped_whole():
    numpy = fd.Device.numpy()
    for fn, shape in [(F.dropout1d, (20, 3, 4)), (F.dropout1d, (60, 4)), (F.dropout2d, (20, 3, 2, 2)),
                      (F.dropout2d, (20, 3, 4)), (F.dropout3d, (60, 2, 2, 1)), (F.dropout3d, (20, 3, 2, 1, 2))]:  # fmt: skip
        out = fn(fd.ones(shape, device=numpy), key=fd.random.key(5)).numpy().reshape(60, 4)
        assert (out == out[:, :1]).all() and 15 < (out[:, 0] > 0).sum() < 45
    with pytest.raises(fd.errors.ShapeError, match=r"\(N, C, H, W\) or \(N, C, L\)"):
        F.dropout2d(fd.ones((2, 3)))


def test_alpha_dropout_keeps_mean_and_variance():
    x = fd.tensor(np.random.default_rng(0).normal(size=(200, 200)), device=fd.Device.numpy())
    for p in (0.2, 0.6):
        out = F.alpha_dropout(x, p, training=True, key=fd.random.key(2)).numpy()
        assert abs(out.mean()) < 0.02 and abs(out.std() - 1) < 0.02
    assert F.alpha_dropout(x) is x
    out = F.feature_alpha_dropout(x, 0.5, training=True, key=fd.random.key(2)).numpy()
    assert len(set(out.ravel().round(5)) & {0.0}) == 0 and out.shape == x.shape


def test_dropout_refuses():
    with pytest.raises(fd.errors.ArgumentError, match=r"p=1\.5"):
        F.dropout(fd.ones(3), 1.5)
    with pytest.raises(fd.errors.ArgumentTypeError, match="p must be a number"):
        F.dropout(fd.ones(3), "half")
    with pytest.raises(fd.errors.DTypeError, match="floats, got int32"):
        F.dropout(fd.ones(3, dtype="int32"))


# --- CTC


def by_enumeration(log_probs, labels, blank):
    """-log of the sum over every path that collapses to the labels."""
    total = -INF
    for path in itertools.product(range(log_probs.shape[1]), repeat=log_probs.shape[0]):
        if [c for c, _ in itertools.groupby(path) if c != blank] == list(labels):
            total = np.logaddexp(total, sum(log_probs[t, c] for t, c in enumerate(path)))
    return -total


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("labels", [[], [1], [1, 1], [0, 1], [1, 0, 1]])
def test_ctc_sums_over_alignments(labels, blank):
    labels = [2 if c == blank == 0 else c for c in labels]
    x = np.log(np.random.default_rng(1).dirichlet(np.ones(3), size=5))
    for steps in (3, 5):
        padded = labels + [blank] * (3 - len(labels))
        found = F.ctc_loss(
            fd.tensor(x, dtype="float64", device=fd.Device.numpy()), padded, steps, len(labels), blank, "sum"
        )
        assert found.item() == pytest.approx(by_enumeration(x[:steps], labels, blank), rel=1e-10)


def test_a_target_that_cannot_be_reached(device):
    """Two equal labels need a blank between them: three steps."""
    x = F.log_softmax(fd.zeros((3, 2, 3), device=device))

    def loss(x, zero=False, steps=(2, 3)):
        return F.ctc_loss(x, [[1, 1], [1, 1]], steps, [2, 2], reduction="none", zero_infinity=zero)

    assert loss(x).tolist() == [INF, pytest.approx(np.log(27), rel=1e-6)]
    assert loss(x, True)[0].item() == 0.0
    for zero in (False, True):
        slope = fd.grad(lambda x, zero=zero: loss(x, zero).sum())(x).numpy()
        assert not slope[:, 0].any() and slope[:, 1].sum() == pytest.approx(-3)


def test_forms_of_targets():
    x = F.log_softmax(fd.tensor(2 * wave((6, 2, 4), 1.0), device=fd.Device.numpy()))
    rows = F.ctc_loss(
        x, [[1, 2, 2], [3, 9, 9]], [6, 5], [3, 1], reduction="none"
    )  # what does not count may be anything
    assert F.ctc_loss(x, [1, 2, 2, 3], [6, 5], [3, 1], reduction="none").tolist() == rows.tolist()
    assert F.ctc_loss(x[:, 1], [3], 5, 1, reduction="none").item() == pytest.approx(rows[1].item())
    mean = F.ctc_loss(x, [1, 2, 2, 3], [6, 5], [3, 1])
    assert mean.item() == pytest.approx((rows[0].item() / 3 + rows[1].item()) / 2, rel=1e-6)


def test_ctc_under_jit_and_vmap(x64):
    x = fd.tensor(wave((6, 2, 4), 1.0))
    targets, steps, lengths = fd.tensor([[1, 2], [3, 3]]), fd.tensor([6, 5]), fd.tensor([2, 2])

    def loss(x, targets, steps, lengths):
        return F.ctc_loss(F.log_softmax(x), targets, steps, lengths)

    slope = fd.grad(loss)(x, targets, steps, lengths)
    np.testing.assert_allclose(fd.jit(fd.grad(loss))(x, targets, steps, lengths).numpy(), slope.numpy(), atol=1e-12)
    rows = fd.vmap(loss, in_axes=(0, None, None, None))(fd.stack([x, 2 * x]), targets, steps, lengths)
    assert rows[1].item() == pytest.approx(loss(2 * x, targets, steps, lengths).item())
    with pytest.raises(fd.errors.ConcreteValueError, match=r"\(N, S\)"):
        fd.jit(loss)(x, targets.reshape(-1), steps, lengths)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (([[1, 4]], [5], [2]), "OutOfBoundsError", "the class 4"),
        (([[1, 0]], [5], [2]), "ArgumentError", "the blank 0"),
        (([[1, 2]], [7], [2]), "ShapeError", "input_lengths holds 7; a length is from 0 to 5"),
        (([[1, 2]], [5], [3]), "ShapeError", "target_lengths holds 3"),
        (([[1, 2]], [5, 5], [2]), "ShapeError", r"input_lengths must have shape \(1,\)"),
        (([[1, 2]], [5.0], [2]), "DTypeError", "input_lengths must be ints"),
        (([[1, 2]], [5], [2], 4), "OutOfBoundsError", "blank=4"),
    ],
)
def test_ctc_refuses(arguments, error, text):
    with pytest.raises(getattr(fd.errors, error), match=text):
        F.ctc_loss(fd.zeros((5, 1, 4), device=fd.Device.numpy()), *arguments)
