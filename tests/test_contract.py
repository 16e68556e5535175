"""Contractions: values by NumPy's rank rules, derivatives of both modes against JAX's, and what they cost."""

from __future__ import annotations

import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import vmap
from hypothesis import given, settings
from hypothesis import strategies as st

import functad as fd
from functad import errors, ops
from functad.backends.base import BaseBackend
from functad.testing.derivatives import execute, jvp, vjp

DEVICES = {"xla": fd.Device.cpu(), "numpy": fd.Device.numpy()}


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def put(x, device):
    return fd.tensor(x, device=device) if isinstance(x, (np.ndarray, np.generic)) else x


def leaf(data, device, dtype="float32"):
    return fd.tensor(data, dtype=dtype, device=device.autodiff()).require_grad()


def same(got, want):
    np.testing.assert_allclose(got.numpy(), want, rtol=2e-5, atol=1e-5)
    assert got.shape == np.shape(want)
    assert got.dtype.kind == np.asarray(want).dtype.kind


# --- values

RANKS = [
    ((2, 3), (3, 4)), ((3,), (3,)), ((3,), (3, 4)), ((2, 3), (3,)), ((5, 2, 3), (3, 4)), ((2, 3), (5, 3, 4)),
    ((5, 2, 3), (5, 3, 4)), ((5, 1, 2, 3), (1, 6, 3, 4)), ((5, 1, 2, 3), (6, 3, 4)), ((6, 2, 3), (1, 3, 4)),
    ((3,), (5, 3, 4)), ((5, 2, 3), (3,)), ((2, 0), (0, 3)), ((0, 3), (3, 2)), ((0, 2, 3), (1, 3, 4)), ((1, 1), (1, 1)),
]  # fmt: skip


@pytest.mark.parametrize(("x", "y"), RANKS, ids=str)
def test_matmul(x, y, device):
    x, y = draw(*x), draw(*y, seed=1)
    same(ops.matmul(put(x, device), put(y, device)), np.matmul(x, y))


@pytest.mark.parametrize(("x", "y"), [*RANKS[:7], ((), (2, 3)), ((2,), ()), ((2, 3), (4, 3, 5)), ((0,), (0,))], ids=str)
def test_dot(x, y, device):
    x, y = draw(*x), draw(*y, seed=1)
    same(ops.dot(put(x, device), put(y, device)), np.dot(x, y))


Z = draw(2, 3) + 1j * draw(2, 3, seed=1)
OTHERS = [
    ("inner", (draw(2, 3), draw(4, 5, 3))), ("inner", (draw(), draw(3))), ("outer", (draw(2, 3), draw(4))),
    ("vdot", (draw(2, 3), draw(6))), ("vdot", (Z, Z[::-1])), ("vecdot", (Z, Z[::-1])), ("matmul", (Z, Z.T)),
    ("vecdot", (draw(2, 1, 3), draw(4, 3))),
    ("tensordot", (draw(2, 3, 4), draw(3, 4, 5))), ("tensordot", (draw(2, 3), draw(3, 4), 1)),
    ("tensordot", (draw(2, 3), draw(4), 0)), ("tensordot", (draw(2, 3, 4), draw(4, 3, 5), ([1, 2], [1, 0]))),
    ("tensordot", (draw(2, 3), draw(3, 2), (0, -1))), ("kron", (draw(2, 3), draw(4, 5))),
    ("kron", (draw(3), draw(2, 2))),
    ("kron", (draw(), draw(2, 3))), ("cross", (draw(4, 3), draw(3))), ("cross", (draw(2, 1, 3), draw(4, 3))),
    ("cross", (draw(3, 2), draw(2, 3), 0, -1, 0)), ("matmul", (np.arange(6).reshape(2, 3), np.arange(3))),
    ("matmul", (draw(3, 4) > 0, draw(4, 2) > 0)), ("matmul", (np.full((1, 3), 100, np.int8), np.ones((3, 1), np.int8))),
    ("matmul", (draw(4, 3)[::-1, ::2], draw(2, 5)[:, ::-1])),
]  # fmt: skip


@pytest.mark.parametrize(("name", "args"), OTHERS, ids=[f"{name}-{i}" for i, (name, _) in enumerate(OTHERS)])
def test_other_products(name, args, device):
    same(getattr(ops, name)(*[put(a, device) for a in args]), getattr(np, name)(*args))


def test_vecdot_over_another_axis(device):
    x, y = draw(3, 2, 1), draw(3, 1, 4)
    same(ops.vecdot(put(x, device), put(y, device), axis=0), (x * y).sum(0))


SUBSCRIPTS = [
    ("ij,jk", (2, 3), (3, 4)), ("ij,jk->ki", (2, 3), (3, 4)), ("ii", (3, 3)), ("ii->i", (3, 3)), ("iij->j", (3, 3, 2)),
    ("iii->i", (3, 3, 3)), ("ijij->", (2, 3, 2, 3)), ("iijj->ij", (2, 2, 3, 3)), ("ba", (2, 3)), ("ij->", (2, 3)),
    ("i,j,k->kij", (2,), (3,), (4,)), ("ij,jk,kl->il", (2, 3), (3, 4), (4, 5)), ("i,i,i->", (3,), (3,), (3,)),
    ("ab,bc,cd,de,ef,fg->ag", (2, 3), (3, 4), (4, 2), (2, 3), (3, 2), (2, 2)), ("i,ij,j", (2,), (2, 3), (3,)),
    ("...ij,...jk->...ik", (5, 1, 2, 3), (6, 3, 4)), ("...i,...i", (2, 3), (3,)), ("i...->...", (2, 3)),
    ("ij,j...->i...", (2, 3), (3, 4, 5)), ("...->...", (2, 3)), ("ij,kl->", (2, 3), (4, 5)),
    ("ijk,jl->il", (2, 3, 4), (3, 2)),
    (" i j , j k -> i k ", (2, 3), (3, 4)), ("ij,jk->ik", (2, 1), (3, 4)), ("ij,jk->ik", (2, 3), (1, 4)),
    ("ij,ij->ij", (2, 1), (1, 3)), ("ij,ij->i", (2, 1), (1, 3)), ("ij,j->ij", (2, 3), (1,)), (",ij->ij", (), (2, 3)),
    (",", (), ()), ("ij,jk", (2, 0), (0, 3)), ("ii,i->i", (3, 3), (3,)), ("aab,bcc->ac", (2, 2, 3), (3, 4, 4)),
    ("ij,jk,jl->ikl", (2, 3), (1, 4), (3, 5)), ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
]  # fmt: skip


@pytest.mark.parametrize("case", SUBSCRIPTS, ids=str)
def test_einsum(case, device):
    subscripts, *shapes = case
    xs = [draw(*shape, seed=i) for i, shape in enumerate(shapes)]
    same(ops.einsum(subscripts, *[put(x, device) for x in xs]), np.einsum(subscripts, *xs))


def test_einsum_with_lists(device):
    x, y = draw(2, 3), draw(3, 4)
    a, b = put(x, device), put(y, device)
    same(ops.einsum(a, [0, 1], b, [1, 2], [2, 0]), np.einsum(x, [0, 1], y, [1, 2], [2, 0]))
    same(ops.einsum(a, [26, 1], b, [1, 0]), np.einsum(x, [26, 1], y, [1, 0]))
    same(ops.einsum(a, [..., 0], optimize=False), np.einsum(x, [..., 0]))


@st.composite
def contractions(draw):
    """Subscripts and shapes: repeated indices, sums within an operand, lengths of 0 and 1, broadcast lengths."""
    lengths = {c: draw(st.integers(0, 3)) for c in string.ascii_lowercase[:4]}
    terms = draw(st.lists(st.text("abcd", max_size=3), min_size=1, max_size=3))
    named = sorted(set("".join(terms)))
    out = "".join(draw(st.lists(st.sampled_from(named), unique=True, max_size=3))) if named else ""
    shapes = []
    for term in terms:
        narrow = draw(st.booleans()) and len(set(term)) == len(term)
        shapes.append(tuple(1 if narrow and draw(st.booleans()) else lengths[c] for c in term))
    return f"{','.join(terms)}->{out}", shapes


@settings(max_examples=150, deadline=None)
@given(contractions(), st.integers(0, 99))
def test_any_einsum(contraction, seed):
    """Its value, and <g, J t> = <J^T g, t> for each operand by itself."""
    subscripts, shapes = contraction
    rng = np.random.default_rng(seed)

    def numbers(shape):  # small integers, so that every sum is exact
        return fd.tensor(rng.integers(-3, 4, shape).astype(np.float32), device=DEVICES["numpy"])

    xs = [numbers(s) for s in shapes]
    want = np.einsum(subscripts, *[x.numpy() for x in xs])
    (out,), pull = vjp(lambda *xs: [ops.einsum(subscripts, *xs)], xs)
    np.testing.assert_array_equal(out.numpy(), want)
    g = numbers(out.shape)
    back = pull([g])
    for i, x in enumerate(xs):
        t = numbers(x.shape)
        (moved,) = jvp(lambda x, i=i: [ops.einsum(subscripts, *xs[:i], x, *xs[i + 1 :])], [x], [t])[1]
        assert back[i].shape == x.shape
        assert (g * moved).sum().item() == (back[i] * t).sum().item()


# --- derivatives: the function, JAX's, the shapes

DERIVATIVES = {
    **{f"matmul {x} {y}": (ops.matmul, jnp.matmul, [x, y]) for x, y in [RANKS[i] for i in (0, 3, 8, 12)]},
    "vecdot": (lambda x, y: ops.vecdot(x, y, 0), lambda x, y: (x * y).sum(0), [(3, 2, 1), (3, 1, 2)]),
    "tensordot": (
        lambda x, y: ops.tensordot(x, y, ([0, 2], [1, 0])), lambda x, y: jnp.tensordot(x, y, ([0, 2], [1, 0])),
        [(2, 3, 4), (4, 2)],
    ),
    "kron": (ops.kron, jnp.kron, [(2, 1), (2, 2)]),
    "cross": (ops.cross, jnp.cross, [(2, 3), (3,)]),
    **{
        f"einsum {s}": (lambda *xs, s=s: ops.einsum(s, *xs), lambda *xs, s=s: jnp.einsum(s, *xs), shapes)
        for s, *shapes in [SUBSCRIPTS[i] for i in (5, 11, 15, 20, 26, 32)]
    },
}  # fmt: skip


def ours(fn, xs, vs, weigh, all_ways):
    """Tangent, gradient, and the gradient along `vs`; also forward over reverse, and row by row."""

    def loss(*xs):
        out = fn(*xs)
        return [(ops.sin(out) * weigh(out)).sum()]

    def gradient(*xs):
        (out,), pull = vjp(loss, xs)
        return pull([fd.ones_like(out)])

    tangent = jvp(lambda *xs: [fn(*xs)], xs, vs)[1]
    gradients, pull = vjp(gradient, xs)
    found = [*tangent, *gradients, *pull(vs)]
    if all_ways:
        one = vmap(lambda x: gradient(x, *xs[1:])[0], 2)(ops.stack([xs[0], vs[0]]))  # the others are shared
        rows = [ops.stack([x, v]) for x, v in zip(xs, vs, strict=True)]
        found += [*jvp(gradient, xs, vs)[1], one, vmap(lambda *xs: gradient(*xs)[-1], 2)(*rows)]
    return found


def theirs(fn, xs, vs, weigh):
    def loss(*xs):
        out = fn(*xs)
        return (jnp.sin(out) * weigh(out)).sum()

    gradient = jax.grad(loss, tuple(range(len(xs))))
    gradients, tangents = jax.jvp(gradient, xs, vs)
    one = jnp.stack([gradients[0], gradient(vs[0], *xs[1:])[0]])
    both = jnp.stack([gradients[-1], gradient(*vs)[-1]])
    return [jax.jvp(fn, xs, vs)[1], *gradients, *tangents, *tangents, one, both]


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_jaxs(name):
    fn, by_jax, shapes = DERIVATIVES[name]
    with fd.enable_x64():
        rng = np.random.default_rng(1)
        xs, vs = (tuple(rng.normal(size=s) for s in shapes) for _ in range(2))

        def weigh(out):  # so that no two elements of a result count alike
            return np.cos(np.arange(float(out.size))).reshape(out.shape)

        options = {"xla_backend_optimization_level": 0}  # compiled to run once
        want = jax.jit(lambda xs, vs: theirs(by_jax, xs, vs, weigh), compiler_options=options)(xs, vs)
        for device in DEVICES.values():
            numpy = device.name == "numpy"  # computes all in no time; XLA compiles
            found = execute(device, lambda a: ours(fn, *a, weigh, numpy), (xs, vs))  # noqa: B023  # called in the same round of the loop
            for got, expected in zip(found, want, strict=numpy):
                np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12, err_msg=device.name)


def test_complex_derivative_is_jaxs(device):
    with fd.enable_x64():
        x, y = Z.astype(np.complex128), Z.T.astype(np.complex128) * 1j

        def by_jax(x, y):
            return (jnp.vdot(x, x @ y @ x) * jnp.vdot(y, y)).real

        def fn(x, y):
            return ops.real(ops.vdot(x, x @ y @ x) * ops.vdot(y, y))

        a, b = (leaf(v, device, "complex128") for v in (x, y))
        grads = fn(a, b).backward()
        for got, want in zip((grads[a], grads[b]), jax.grad(by_jax, (0, 1))(x, y), strict=True):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-10)


def test_cross_gives_each_operand_its_sign(device):
    x, y = leaf([1.0, 0.0, 0.0], device), leaf([0.0, 1.0, 0.0], device)
    z = ops.cross(x, y)
    assert z.tolist() == [0.0, 0.0, 1.0]
    grads = (z * fd.tensor([1.0, 2.0, 3.0], device=device)).sum().backward()
    assert grads[x].tolist() == np.cross([0.0, 1.0, 0.0], [1.0, 2.0, 3.0]).tolist()
    assert grads[y].tolist() == np.cross([1.0, 2.0, 3.0], [1.0, 0.0, 0.0]).tolist()


def test_one_tensor_as_both_operands(device):
    x = leaf([[1.0, 2.0], [3.0, 4.0]], device)
    grads = ops.matmul(x, x).sum().backward()
    ones = np.ones((2, 2))
    v = x.numpy()
    assert grads[x].tolist() == (ones @ v.T + v.T @ ones).tolist()


# --- precision


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_round_once(dtype, device):
    n = 4000  # summed in half, ones stop at 2048 (float16) or 256 (bfloat16)
    x = leaf(np.ones((1, n)), device, dtype)
    y = leaf(np.ones((n, 1)), device, dtype)
    out = ops.matmul(x, y)
    assert out.dtype == x.dtype
    assert float(out.item()) == float(np.asarray(n).astype(x.dtype))
    grads = ops.matmul(y, x).sum().backward()
    assert grads[x].dtype == x.dtype
    assert grads[x].numpy().astype(np.float32).tolist() == [[float(np.asarray(n).astype(x.dtype))] * n]


def test_half_cross_rounds_once(device):
    """1.0078125**2 - 1.015625 is 0 if the square is rounded before."""
    x, y = ([1.0078125, 1.015625, 0.0], [1.0, 1.0078125, 0.0])
    x, y = (fd.tensor(v, dtype="bfloat16", device=device) for v in (x, y))
    z = ops.cross(x, y)
    assert (z.dtype, z[2].item()) == (fd.bfloat16, 1.0078125**2 - 1.015625)


def test_half_chain_rounds_once(device):
    x = fd.tensor(draw(3, 3), dtype="bfloat16", device=device)
    exact = np.linalg.multi_dot([x.numpy().astype(np.float64)] * 3)
    out = ops.einsum("ij,jk,kl->il", x, x, x)
    assert out.dtype == x.dtype
    assert out.tolist() == exact.astype(np.float32).astype(x.dtype).tolist()


# --- cost: what runs


def runs(fn, *shapes):
    """The ops of a forward and of its backward, with their parameters."""
    xs = [leaf(draw(*shape), DEVICES["numpy"]) for shape in shapes]
    seen = []
    run = BaseBackend.run

    def spy(self, op, inputs, params):
        seen.append((op.name, *params))
        return run(self, op, inputs, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseBackend, "run", spy)
        out = fn(*xs)
        forward = seen[:]
        g = fd.ones(out.shape, device=DEVICES["numpy"])
        seen.clear()
        out.backward(g)
    return forward, seen


def test_backward_of_a_matrix_product_is_two():
    forward, backward = runs(ops.matmul, (2, 3), (3, 4))
    assert forward == [("contract", "ij,jk->ik")]
    assert backward == [("contract", "ik,jk->ij"), ("contract", "ij,ik->jk")]


def test_stack_against_one_matrix_is_one_product():
    forward, backward = runs(ops.matmul, (5, 2, 3), (3, 4))
    assert len(forward) == 1
    assert [name for name, _ in backward] == ["contract"] * 2  # the sum over the stack is within


@pytest.mark.parametrize("fn", [ops.dot, ops.matmul, lambda x, y: ops.einsum("ij,j->i", x, y), ops.inner])
def test_matrix_vector_products_are_one_op(fn):
    forward, backward = runs(fn, (2, 3), (3,))
    assert len(forward) == 1
    assert len(backward) == 2


def test_rows_share_one_product():
    """vmap over x of x @ w is one contraction, and so is the derivative with respect to w."""
    w = leaf(draw(3, 4), DEVICES["numpy"])

    def fn(x):
        return vmap(lambda row: ops.matmul(row, w), 5)(x)

    forward, backward = runs(fn, (5, 3))
    assert [name for name, _ in forward] == ["contract"]
    assert [name for name, _ in backward] == ["contract"] * 2


def test_long_einsum_contracts_the_small_first():
    sizes = []
    x, y, z = draw(1, 40), draw(40, 40), draw(40, 1)
    run = BaseBackend.run

    def spy(self, op, inputs, params):
        out = run(self, op, inputs, params)
        sizes.append(out.size)
        return out

    tensors = [put(a, DEVICES["numpy"]) for a in (y, z, x)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BaseBackend, "run", spy)
        ops.einsum("jk,kl,ij->il", *tensors)
    assert max(sizes) == 40


# --- refusals

REFUSED = {
    "lengths": (
        lambda x, y: ops.matmul(x, x),
        r"shape \(2, 3\), has length 3.*last but one.*length 2.*Transpose the second",
    ),
    "transposed": (lambda x, y: ops.matmul(y, y[:, :2]), "Transpose the first operand"),
    "exchanged": (lambda x, y: ops.matmul(y, x), "Exchange the operands"),
    "vector": (lambda x, y: ops.matmul(x, x[:, 0]), "only axis of the second"),
    "number": (lambda x, y: ops.matmul(x, 2.0), r"at least one axis, got shapes \(2, 3\) and \(\); use x \* y"),
    "stacks": (lambda x, y: ops.matmul(np.ones((2, 2, 3)), np.ones((3, 3, 4))), r"stacks \(2,\) of x.*\(3,\) of y"),
    "dot": (lambda x, y: ops.dot(x, x), "dot: axis 1 of x has length 3 .*axis 0 of y 2"),
    "vdot": (lambda x, y: ops.vdot(x, y[0]), "6 elements, y of shape .* has 4"),
    "vecdot": (ops.vecdot, "length 3 in shape .* and 4"),
    "tensordot": (ops.tensordot, "axis 0 of x has length 2"),
    "too many": (lambda x, y: ops.tensordot(x, y, 3), "asks for more axes"),
    "named twice": (lambda x, y: ops.tensordot(x, y, ([0, 0], [0, 1])), "each once"),
    "cross": (lambda x, y: ops.cross([1.0, 2.0], [3.0, 4.0]), r"3 components, got 2 and 2.*x\[..., 0\]"),
    "einsum": (
        lambda x, y: ops.einsum("ij,ik->jk", x, y),
        "'i' stands for an axis of length 3 in operand 1 .* length 2 before",
    ),
    "einsum axes": (lambda x, y: ops.einsum("i,jk", x, y), r"has 1 letter, and operand 0 has 2 axes"),
    "diagonal": (lambda x, y: ops.einsum("ii", x), "'i' stands for an axis of length 3 in operand 0"),
    "narrow": (lambda x, y: ops.einsum("ii", x[:1]), "lengths 1 and 3.*needs equal lengths"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_shapes(name, device):
    call, message = REFUSED[name]
    with pytest.raises(errors.ShapeError, match=f"(?s){message}"):
        call(fd.ones((2, 3), device=device), fd.ones((3, 4), device=device))


@pytest.mark.parametrize(
    ("subscripts", "message"),
    [
        ("ij", "have 1 term, and 2 operands were given"), ("ij,jk->ijj", "cannot have 'j', which stands twice"), ("i1,jk", "may hold letters"),
        ("ij,jk->m", "cannot have 'm', which stands for no axis"), ("i..,jk", "may hold letters"),
        ("...j,jk->jk", "the '...' of .* stands for 1 axis"),
    ],
)  # fmt: skip
def test_refused_subscripts(subscripts, message):
    with pytest.raises(errors.ArgumentError, match=message):
        ops.einsum(subscripts, fd.ones((2, 3)), fd.ones((3, 4)))
    with pytest.raises(errors.ArgumentError, match="there are no operands"):
        ops.einsum(subscripts)
    with pytest.raises(errors.ArgumentError, match="expected subscripts such as"):
        ops.einsum(fd.ones(2), "i")


# --- the branch not taken

X = [[1.0, 2.0], [np.inf, 1.0], [np.nan, -1.0]]
W = [[1.0, 2.0, 0.5], [3.0, 4.0, 1.0]]
DX, DW = [[3.5, 8.0], [0, 0], [0, 0]], [[1.0] * 3, [2.0] * 3]  # of the sum of the first row of x @ w


def first_row(product, device):
    """A loss of the first row of a product, the others left out."""
    mask = fd.tensor([[True], [False], [False]], device=device)
    return lambda x, w: ops.where(mask, product(x, w), 0.0).sum()


LEFT_OUT = {
    "matmul": ops.matmul,
    "einsum": lambda x, w: ops.einsum("ij,jk->ik", x, w),
    "stack": lambda x, w: ops.matmul(x[None], w[None])[0],
    "vectors": lambda x, w: ops.stack([ops.vecdot(x, w[:, i]) for i in range(3)], 1),
    "jitted": fd.jit(ops.matmul),
    "checkpointed": fd.checkpoint(ops.matmul),
    "scanned": lambda x, w: fd.scan(lambda c, row: (c, ops.matmul(row, w)), None, x)[1],
    "chosen": lambda x, w: fd.cond(w[0, 0] > 0, ops.matmul, lambda x, w: 2 * ops.matmul(x, w), x, w),
    "convolved": lambda x, w: fd.nn.functional.conv1d(x[:, :, None], w.T[:, :, None])[:, :, 0],
    "half": lambda x, w: ops.matmul(x.astype("float16"), w.astype("float16")).astype("float32"),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_rows_left_out_of_a_product(name, device):
    """Neither inf and NaN in rows that `where` drops nor their products reach a gradient."""
    f = first_row(LEFT_OUT[name], device)
    x, w = fd.tensor(X, device=device), fd.tensor(W, device=device)
    for gradient in (fd.grad(f, (0, 1)), fd.jit(fd.grad(f, (0, 1)))):
        assert [g.tolist() for g in gradient(x, w)] == [DX, DW]
    a, b = leaf(X, device), leaf(W, device)
    grads = f(a, b).backward()
    assert [grads[a].tolist(), grads[b].tolist()] == [DX, DW]


LEAVES_OUT = {
    "mean": lambda y, mask: 3 * fd.numpy.mean(y, where=mask),
    "nansum": lambda y, mask: fd.numpy.nansum(ops.where(mask, y, np.nan)),
    "nan_to_num": lambda y, mask: fd.numpy.nan_to_num(y, posinf=0.0).sum(),
    "slice": lambda y, mask: y.at[1:].set(0.0).sum(),
    "places": lambda y, mask: y.at[[1, 2]].set(0.0).sum(),
    "mask": lambda y, mask: y[mask[:, 0]].sum(),
    "mask_select": lambda y, mask: ops.mask_select(y, mask).sum(),
}


@pytest.mark.parametrize("name", LEAVES_OUT)
def test_other_ways_to_leave_rows_out(name, device):
    mask = fd.tensor([[True], [False], [False]], device=device)
    x, w = fd.tensor(X, device=device), fd.tensor(W, device=device)
    dx, dw = fd.grad(lambda x, w: LEAVES_OUT[name](ops.matmul(x, w), mask), (0, 1))(x, w)
    assert [dx.tolist(), dw.tolist()] == [DX, DW]


CONVOLUTIONS = {
    "groups": (lambda x, w: fd.nn.functional.conv1d(x, w, stride=2, padding=1, groups=2), (2, 4, 5), (4, 2, 3)),
    "transposed": (lambda x, w: fd.nn.functional.conv_transpose1d(x, w, stride=2, groups=2), (2, 4, 5), (4, 2, 3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("broken", [0, 1])
def test_what_only_left_out_places_of_a_convolution_use(name, broken, device):
    """An inf in the input or in a kernel spoils the places that use it, and no gradient once `where` leaves them out."""
    product, *shapes = CONVOLUTIONS[name]
    rng = np.random.default_rng(0)
    clean = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    clean[broken][1, 0, 1] = 0.0
    spoilt = [a.copy() for a in clean]
    spoilt[broken][1, 0, 1] = np.inf
    mask = np.isfinite(product(*[fd.tensor(a, device=device) for a in spoilt]).numpy())
    assert 0 < mask.sum() < mask.size
    mask = fd.tensor(mask, device=device)

    def loss(x, w):
        return (ops.where(mask, product(x, w), 0.0) ** 2).sum()

    def second(x, w):
        return sum((g**2).sum() for g in fd.grad(loss, (0, 1))(x, w))

    for f in (loss, second):
        found, right = (fd.grad(f, (0, 1))(*[fd.tensor(a, device=device) for a in given]) for given in (spoilt, clean))
        for a, b in zip(found, right, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-4)


def test_rows_left_out_of_a_product_by_row_and_to_second_order(device):
    x, w = fd.tensor(X, device=device), fd.tensor(W, device=device)

    def row(x, w, kept):
        return ops.where(kept, ops.matmul(x, w), 0.0).sum()

    dx, dw = fd.vmap(fd.grad(row, (0, 1)), (0, None, 0))(x, w, fd.tensor([True, False, False], device=device))
    assert dx.tolist() == DX
    assert dw.tolist() == [DW, *[np.zeros((2, 3)).tolist()] * 2]
    square = first_row(lambda x, w: ops.matmul(x, w) ** 2 / 2, device)
    for second in (fd.hessian, lambda f, n: fd.jacrev(fd.jacrev(f, n), n)):
        assert second(square, 1)(x, w).tolist() == np.einsum("a,c,bd->abcd", [1, 2], [1, 2], np.eye(3)).tolist()
        found = second(square, 0)(x, w).numpy()
        assert np.array_equal(found[0, :, 0], np.array(W) @ np.array(W).T)
        assert not found[1:].any() and not found[:, :, 1:].any()

    def scaled(x, w, b):
        return first_row(lambda x, w: ops.matmul(x, w) * b, device)(x, w)

    mixed = fd.grad(lambda w: fd.grad(scaled, 2)(x, w, fd.tensor(2.0, device=device)))(w)
    assert mixed.tolist() == DW


def test_what_a_product_keeps_is_not_hidden(device):
    """An inf that is used, in whatever column, is seen in the gradient; `strict_ieee` has what IEEE 754 says."""
    mask = fd.tensor([[True, False, False], [False, True, False]], device=device)
    x = fd.tensor([[1.0, 2.0], [np.inf, 1.0]], device=device)

    def loss(w):
        return ops.where(mask, ops.matmul(x, w), 0.0).sum()

    w = fd.tensor(W, device=device)
    dw = fd.grad(loss)(w).numpy()
    assert np.isnan(dw[0]).tolist() == [True, False, True]
    assert dw[0, 1] == np.inf
    assert dw[1].tolist() == [2.0, 1.0, 0.0]
    with fd.strict_ieee():
        assert np.isnan(fd.grad(first_row(ops.matmul, device), 1)(fd.tensor(X, device=device), w).numpy()[0]).all()
