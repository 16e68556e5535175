"""What transforms refuse and how they say it; leaks, levels, threads, tasks and exceptions."""

import asyncio
import contextvars
import functools
import gc
import math
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

import functad as fd
from functad import errors, hessian, hvp, jacfwd, jacrev, jvp, linearize, ops, vjp, vmap
from functad.levels import open_depth

grad, value_and_grad = fd.grad, fd.value_and_grad
NUMPY = fd.ones(3, device=fd.Device.numpy())
A3, A4, M = np.ones(3), np.ones(4), np.ones((3, 4))

REFUSED = [
    # grad
    (lambda: grad(3.0), errors.ArgumentTypeError, "expected a function, got 3.0"),
    (lambda: grad(lambda x: x)(A3), errors.ShapeError, r"scalar, got shape \(3,\).*jacrev or fd.vjp"),
    (lambda: grad(lambda x: x * x)(3), errors.DTypeError, r"argument 0 holds nothing but int32.*2\.0 instead of 2"),
    (lambda: grad(lambda x, y: x, 1)(1.0, {"m": True}), errors.DTypeError, "argument 1 holds nothing but bool"),
    (lambda: grad(lambda x: x)({"a": [1.0, "s"]}), errors.ArgumentTypeError, r"argument 0\['a'\]\[1\] is 's' of"),
    (lambda: grad(lambda x: x, 2)(1.0), errors.ArgumentError, r"argnums=2 .* 1 positional argument"),
    (lambda: grad(lambda x: x, -2)(1.0), errors.ArgumentError, "argnums=-2"),
    (lambda: grad(lambda x, y: x, (0, 0))(1.0, 2.0), errors.ArgumentError, "twice"),
    (lambda: grad(lambda x, y: x, (0, -2))(1.0, 2.0), errors.ArgumentError, "twice"),
    (lambda: grad(lambda x: x, 1.0)(1.0), errors.ArgumentTypeError, "argnums must be an int"),
    (lambda: grad(lambda x: x, "0")(1.0), errors.ArgumentTypeError, "argnums must be an int"),
    (lambda: grad(lambda x: (x, x))(1.0), errors.ArgumentTypeError, "got a tuple.*has_aux=True"),
    (lambda: grad(lambda x: None)(1.0), errors.ArgumentTypeError, "got a NoneType"),
    (lambda: grad(lambda x: "s")(1.0), errors.ArgumentTypeError, "function's result.*'s' of type str"),
    (lambda: grad(lambda x: x.astype(int))(1.0), errors.DTypeError, "must return a float, got int"),
    (lambda: grad(lambda x: x * 1j)(1.0), errors.DTypeError, "real scalar, got complex.*holomorphic=True"),
    (lambda: grad(lambda x: x, holomorphic=True)(1.0), errors.DTypeError, "needs complex inputs"),
    (lambda: grad(lambda x: x.real, holomorphic=True)(1j), errors.DTypeError, "needs a complex result"),
    (lambda: grad(lambda x: x, has_aux=True)(1.0), errors.ArgumentTypeError, r"pair \(value, aux\), got Tensor"),
    (lambda: grad(lambda x: (x, x, x), has_aux=True)(1.0), errors.ArgumentTypeError, "tuple of length 3"),
    (lambda: grad(lambda x: (yield x))(1.0), errors.ArgumentTypeError, "of type generator"),
    # vjp
    (lambda: vjp(3.0, 1.0), errors.ArgumentTypeError, "vjp: expected a function"),
    (lambda: vjp(lambda x: x, "s"), errors.ArgumentTypeError, "argument 0 is 's'"),
    (lambda: vjp(lambda x: [x, {"k": "s"}], 1.0), errors.ArgumentTypeError, r"'s' of type str at \[1\]\['k'\]"),
    (lambda: vjp(lambda x: (x, x), 1.0)[1](1.0), errors.StructureError, r"expected the structure .*\(\*, \*\)"),
    (lambda: vjp(lambda x: {"a": x}, A3)[1]({"a": A4}), errors.ShapeError, r"cotangent\['a'\] has shape \(4,\)"),
    (lambda: vjp(lambda x: [x], A3)[1]([1.0]), errors.ShapeError, r"cotangent\[0\] has shape \(\)"),
    (lambda: vjp(lambda x: x, A3)[1](A3.astype("float16")), errors.DTypeError, "cotangent is float16.*float32"),
    (lambda: vjp(lambda x: x, A3)[1](None), errors.StructureError, r"cotangent is None where .* float32\[3\]"),
    (lambda: vjp(lambda x: x, A3)[1]([1.0, 1.0, 1.0]), errors.StructureError, r"cotangent is \[1.0"),
    # jvp and linearize
    (lambda: jvp(3.0, (1.0,), (1.0,)), errors.ArgumentTypeError, "jvp: expected a function"),
    (lambda: jvp(lambda x: x, 1.0, 1.0), errors.ArgumentTypeError, r"primals must be a tuple.*write \(primal,\)"),
    (lambda: jvp(lambda x: x, (1.0,), 1.0), errors.ArgumentTypeError, "tangents must be a tuple or list"),
    (lambda: jvp(lambda x: x, (1.0,), (1.0, 1.0)), errors.StructureError, "1 primals and 2 tangents"),
    (lambda: jvp(lambda x: x["a"], ({"a": 1.0},), ({"b": 1.0},)), errors.StructureError, r"tangents\[0\].*'a'.*'b'"),
    (lambda: jvp(lambda x: x["a"], ({"a": A3},), ({"a": A4},)), errors.ShapeError, r"tangents\[0\]\['a'\] has shape"),
    (lambda: jvp(lambda x: x, (A3,), (A3.astype("float16"),)), errors.DTypeError, r"tangents\[0\] is float16"),
    (lambda: jvp(lambda x: x, (1.0,), (None,)), errors.StructureError, r"tangents\[0\] is None"),
    (lambda: jvp(lambda x: x, (3,), (1,)), errors.DTypeError, r"tangents\[0\] is 1, but its primal is int32"),
    (lambda: jvp(lambda x: x, (3,), (1.0,)), errors.DTypeError, "pass None"),
    (lambda: jvp(lambda x: "s", (1.0,), (1.0,)), errors.ArgumentTypeError, "returned 's'"),
    (lambda: linearize(lambda x: x, A3)[1](A4), errors.ShapeError, r"linearize: tangents\[0\] has shape \(4,\)"),
    (lambda: linearize(lambda x: x, A3)[1](A3, A3), errors.StructureError, r"1 argument\(s\).* 2 tangent"),
    # Jacobians
    (lambda: jacrev(3.0), errors.ArgumentTypeError, "jacrev: expected a function"),
    (lambda: jacfwd(lambda x: x, argnums=1.0), errors.ArgumentTypeError, "jacfwd: argnums must be an int.*1.0"),
    (lambda: grad(lambda x: x, "x"), errors.ArgumentTypeError, "grad: argnums must be an int or a sequence.*'x'"),
    (lambda: jacrev(lambda x: x * 2.0)(3), errors.DTypeError, "jacrev: argument 0 holds nothing but int32"),
    (lambda: jacfwd(lambda x: x * 2.0)(3), errors.DTypeError, "jacfwd: argument 0 holds nothing but int32"),
    (lambda: hessian(lambda x: x * 2.0)(3), errors.DTypeError, "hessian: argument 0 holds nothing but int32"),
    (lambda: jacrev(lambda x: [x.astype(int)])(1.0), errors.DTypeError, r"output\[0\] is int32.*has_aux"),
    (lambda: jacrev(lambda x: x * 1j)(1.0), errors.DTypeError, "complex.*holomorphic=True"),
    (lambda: jacfwd(lambda x: x)(1j), errors.DTypeError, "complex.*fd.jacrev"),
    (lambda: jacfwd(lambda x: x.real, holomorphic=True)(1j), errors.DTypeError, "needs complex outputs"),
    (lambda: hvp(lambda x: x, (A3,), (A3,)), errors.ShapeError, "hvp: the function must return a scalar"),
    (lambda: hvp(lambda x: x, 1.0, 1.0), errors.ArgumentTypeError, "hvp: primals must be a tuple"),
    # vmap
    (lambda: vmap(3.0), errors.ArgumentTypeError, "vmap: expected a function"),
    (lambda: vmap(lambda x: x)(1.0), errors.ShapeError, r"argument 0 is to be mapped over axis 0, but has 0 axes"),
    (lambda: vmap(lambda x: x, in_axes=1)(A3), errors.ShapeError, r"over axis 1, but has 1 axes \(shape \(3,\)\)"),
    (lambda: vmap(lambda x: x, in_axes=-3)(M), errors.ShapeError, "over axis -3, but has 2 axes"),
    (lambda: vmap(lambda x, s: x * s)(A3, s=2.0), errors.ShapeError, r"\['s'\] is to be mapped.*functools.partial"),
    (vmap(lambda: 1.0), errors.ArgumentError, "without any array"),
    (lambda: vmap(lambda x: x, in_axes=None)(A3), errors.ArgumentError, "no argument is mapped.*axis_size"),
    (lambda: vmap(lambda x: x, axis_size=2)(A3), errors.ShapeError, "axis_size is 2; argument 0 has 3"),
    (lambda: vmap(lambda x: x, axis_size=-1, in_axes=None)(A3), errors.ArgumentError, "not be negative"),
    (lambda: vmap(lambda x: x, axis_size=2.0)(A3), errors.ArgumentTypeError, "axis_size must be an int"),
    (
        lambda: vmap(lambda x, p, k: x)({"w": M}, [A4], k=A3),
        errors.ShapeError,
        r"argument 0\['w'\] has 3 \(axis 0 of \(3, 4\)\); argument 1\[0\] has 4 .*; keyword argument \['k'\] has 3",
    ),
    (lambda: vmap(lambda x: x, in_axes=(0, 0))(M), errors.StructureError, r"has 2 entries.*1 positional argument"),
    (lambda: vmap(lambda x: x, in_axes={"a": 0}), errors.ArgumentTypeError, r"in_axes must be .*in_axes=\(axes,\)"),
    (lambda: vmap(lambda x: x, in_axes=0.0), errors.ArgumentTypeError, "in_axes must be"),
    (lambda: vmap(lambda x: x, in_axes=("a",)), errors.ArgumentTypeError, "must hold ints and None, got 'a'"),
    (lambda: vmap(lambda x: x, out_axes="a"), errors.ArgumentTypeError, "out_axes must hold ints"),
    (lambda: vmap(lambda x: x, in_axes=True), errors.ArgumentTypeError, "got True"),
    (lambda: vmap(lambda x: x, in_axes=({"a": 0},))({"a": M, "b": 2.0}), errors.StructureError, r"in_axes\[0\].*'b'"),
    (lambda: vmap(lambda x: x[0], in_axes=([0, 0],))((M, M)), errors.StructureError, r"in_axes\[0\]=\[0, 0\]"),
    (lambda: vmap(lambda x: (x, x), out_axes=(0, 0, 0))(M), errors.StructureError, r"out_axes=\(0, 0, 0\)"),
    (lambda: vmap(lambda x: (x, x), out_axes=[0, 0])(M), errors.StructureError, r"out_axes=\[0, 0\]"),
    (lambda: vmap(lambda x: [x], out_axes=None)(M), errors.ArgumentError, r"None for the output\[0\].*\(4,\)"),
    (lambda: vmap(lambda x: x, out_axes=2)(M), errors.ShapeError, r"axis 2 of the output.*from -2 to 1"),
    (lambda: vmap(lambda x, y: x)(M, "s"), errors.ArgumentTypeError, "argument 1 is 's'.*None in in_axes"),
    (lambda: vmap(lambda x: {"k": "s"})(M), errors.ArgumentTypeError, r"returned 's' of type str at \['k'\]"),
    (lambda: vmap(lambda x: x + A3)(M), errors.ShapeError, r"add: shapes \(4,\) and \(3,\) do not broadcast"),
    (lambda: vmap(lambda x: x.sum(3))(M), errors.ShapeError, "axis 3 is out of range for a tensor with 1 axes"),
    (lambda: vmap(lambda x: -x if x.sum() > 0 else x)(M), errors.ConcreteValueError, "under vmap.*3 rows.*fd.where"),
    (lambda: vmap(lambda x: float(x.sum()))(M), errors.ConcreteValueError, r"float\(\): under vmap"),
    (lambda: vmap(lambda x: x.numpy())(M), errors.ConcreteValueError, r"numpy\(\): under vmap"),
    (lambda: vmap(np.asarray)(M), errors.ConcreteValueError, "under vmap"),
    (lambda: vmap(lambda x: x.item())(A3), errors.ConcreteValueError, "under vmap"),
    (lambda: vmap(lambda x: f"{x:.2f}")(A3), errors.ConcreteValueError, "under vmap"),
    (lambda: vmap(lambda x: list(range(x)))(np.arange(3)), errors.ConcreteValueError, "under vmap"),
    (lambda: vmap(grad(lambda x: x.numpy()))(A3), errors.ConcreteValueError, "under vmap"),
    (lambda: vmap(lambda x: "s")(A3), errors.ArgumentTypeError, r"pytrees of them\.$"),
    (lambda: vmap(lambda x: (x, [x]), out_axes=(0, (0,)))(A3), errors.StructureError, r"out_axes\[1\] is a tuple where there is a list"),
    (lambda: vmap(lambda x: x, out_axes=(0, 1))(A3), errors.StructureError, "out_axes is a tuple where there is one leaf"),
    # what is read off cuts the gradient, in whatever mode
    (lambda: grad(lambda x: (x * 2).jax())(1.0), errors.ArgumentTypeError, "cuts the gradient"),
    (lambda: vjp(lambda x: (x * 2).numpy(), A3), errors.ArgumentTypeError, "vjp: .* cuts the gradient"),
    (lambda: jvp(lambda x: (x * 2).numpy(), (A3,), (A3,)), errors.ArgumentTypeError, "jvp: .* cuts the gradient"),
    (lambda: linearize(lambda x: (x * 2).numpy(), A3), errors.ArgumentTypeError, "linearize: .* cuts the gradient"),
    (lambda: jacrev(lambda x: float(x * 2))(1.0), errors.ArgumentTypeError, "jacrev: .* cuts the gradient"),
    (lambda: jacfwd(lambda x: float(x * 2))(1.0), errors.ArgumentTypeError, "jacfwd: .* cuts the gradient"),
    (lambda: hessian(lambda x: float(x * 2))(1.0), errors.ArgumentTypeError, "hessian: .* cuts the gradient"),
    # a pullback has one argument, on the device of the output
    (lambda: vjp(lambda x: (x, x), A3)[1](A3, A3), errors.ArgumentTypeError, r"one argument.*got 2; write pullback\(\(g0, g1\)\)"),
    (vjp(lambda x: x, 1.0)[1], errors.ArgumentTypeError, r"got 0; write pullback\(1\.0\)"),
    (lambda: vjp(lambda x: x, A3)[1](NUMPY), errors.DeviceError, "cotangent is on the device numpy, but .* on cpu:0"),
    (lambda: jvp(lambda x: x, (A3,), (NUMPY,)), errors.DeviceError, r"tangents\[0\] is on the device numpy"),
    # jit
    (lambda: fd.jit(lambda x, n: x, static_argnums=1)(A3, [2]), errors.ArgumentTypeError, r"static argument n is \[2\] of type list.*tuple\(n\)"),
    (lambda: fd.jit(lambda x, n: x, static_argnames="n")(A3, n={"a": 1}), errors.ArgumentTypeError, r"static argument n is.*tuple\(n\.items\(\)\)"),
    (lambda: fd.jit(lambda x, n: x, static_argnums=-1)(A3, A3), errors.ArgumentTypeError, "Leave it out of static_argnums"),
    (lambda: fd.jit(lambda *a: a[0], static_argnums=1)(A3, {1}), errors.ArgumentTypeError, r"static argument 1 is \{1\}.*frozenset"),
    (lambda: fd.jit(lambda x, n: x.reshape(n, -1))(A3, 3), errors.ArgumentTypeError, "static_argnums"),
    (lambda: fd.jit(fd.zeros)(3), errors.ArgumentTypeError, "static_argnums.*x.shape"),
    (lambda: fd.ops.sin(jax.random.key(0)), errors.ArgumentTypeError, "typed key of JAX.*jax.random.key_data"),
    # control flow
    (lambda: fd.switch(0, lambda x: x, A3), errors.ArgumentTypeError, r"branches must be a list.*fd.switch\(index, \[f, g\]"),
    (lambda: fd.cond(True, fd.ones(3), lambda x: x, A3), errors.ArgumentTypeError, "It is true_fun of fd.cond"),
    (lambda: fd.while_loop(lambda x: x < 3, 1.0, 2.0), errors.ArgumentTypeError, "It is body_fun of fd.while_loop"),
    (lambda: fd.fori_loop(0, 3, lambda i, x: None, A3), errors.StructureError, r"init_val must keep .* goes in as \* and comes out as None\. The function returned None"),
    (lambda: fd.scan(lambda c, x: ({"a": c}, x), 1.0, A3), errors.StructureError, "scan: carry must keep its structure"),
    # rules
    (lambda: fd.custom_vjp(lambda x: x, nondiff_argnums=(3,)), errors.ArgumentError, r"nondiff_argnums=\(3,\), but the arguments are \['x'\]"),
    (lambda: fd.custom_vjp(lambda x: x).defvjp(lambda x: x), errors.ArgumentTypeError, r"give both rules: f.defvjp\(fwd, bwd\)"),
    # updates
    (lambda: fd.ones(3).at[0].set(1.0, mode="drop"), errors.ArgumentTypeError, "no argument 'mode'.*inside fd.jit"),
    (fd.ones(3).at[0].add, errors.ArgumentTypeError, r"takes one value, and got 0; write x = x.at\[i\].add\(value\)"),
    (lambda: fd.ones(3).at(0), errors.ArgumentTypeError, "indexed, not called"),
    (lambda: setattr(fd.ones(3), "shape", (1, 3)), errors.ImmutableError, r"x = x.reshape\(shape\)"),
    (lambda: setattr(fd.ones(3), "dtype", "float16"), errors.ImmutableError, r"x = x.astype\(dtype\)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), REFUSED, ids=[m[:40] for _, _, m in REFUSED])
def test_refusals_name_the_culprit(call, kind, message):
    with pytest.raises(kind, match=message) as caught:
        call()
    assert isinstance(caught.value, fd.FunctadError)
    assert open_depth() == 0


def test_a_value_asked_of_a_mapped_tensor_names_the_line():
    def f(x):
        return x if x.sum() > 0 else -x

    with pytest.raises(errors.ConcreteValueError) as caught:
        vmap(f)(M)
    line = f.__code__.co_firstlineno + 1
    assert str(caught.value).startswith(f"{__file__}:{line}: bool()")


def test_what_a_refusal_says_to_write_works():
    assert grad(lambda x: x.sum())(A3).tolist() == [1, 1, 1]
    assert jvp(lambda x: x, (1.0,), (1.0,))[1].item() == 1
    assert vmap(lambda x: x["a"], in_axes=({"a": 0, "b": None},))({"a": M, "b": 2.0}).shape == (3, 4)
    assert vmap(lambda x: x, in_axes=(0,))(M).shape == (3, 4)
    assert vmap(lambda x: ops.where(x > 0, -x, x))(M).shape == (3, 4)


def test_a_tensor_prints_under_every_transform():
    shown = []

    def keep(x):
        return (shown.append(repr(x)), x)[1]

    vmap(keep)(M)
    vmap(vmap(keep))(M)
    vmap(grad(keep))(A3)
    jvp(keep, (1.0,), (1.0,))
    jacfwd(keep)(A3)
    assert "shape=(4,)" in shown[0]
    assert "batch (3, 4)" in shown[0]
    assert "shape=()" in shown[1]
    assert all("dtype=float32" in text for text in shown)
    assert "1." in shown[3]


# --- leaks


def leaked_from(transform):
    box = []
    transform(lambda x: (box.append(x * x), x * x)[1])
    return box[0]


CLOSED = [
    lambda f: grad(f)(3.0),
    lambda f: vjp(f, 3.0),
    lambda f: jvp(f, (3.0,), (1.0,)),
    lambda f: linearize(f, 3.0),
    lambda f: jacfwd(f)(3.0),
    lambda f: grad(grad(f))(3.0),
]


@pytest.mark.parametrize("transform", CLOSED)
def test_a_tensor_of_a_closed_derivative_is_a_constant(transform):
    x = leaked_from(transform)
    assert x.item() == 9
    assert not x.is_tracked
    assert not x.is_autodiff
    assert np.asarray(x) == 9
    assert "tracked" not in repr(x)
    assert (x * 2 + x).item() == 27
    assert grad(lambda y: x * y * x)(2.0).item() == 81  # closed over, at the same level as before
    assert grad(lambda y: grad(lambda z: x * y * z)(1.0))(2.0).item() == 9
    assert jvp(lambda y: x * y, (2.0,), (1.0,))[1].item() == 9
    assert vmap(lambda y: x * y)(A3).tolist() == [9, 9, 9]
    assert grad(lambda y: y * y)(x).item() == 18  # passed in
    assert vjp(lambda y: y * y, x)[1](1.0)[0].item() == 18
    assert vjp(lambda y: y * y, 1.0)[1](x)[0].item() == 18  # as a cotangent
    assert jvp(lambda y: y * y, (x,), (x,))[1].item() == 162
    assert grad(lambda y: x)(1.0).item() == 0  # returned
    assert vmap(lambda y: x)(A3).tolist() == [9, 9, 9]
    assert vmap(lambda y: y * 2)(x.reshape(1)).tolist() == [18]
    w = fd.tensor(2.0, device=fd.Device.cpu().autodiff()).require_grad()
    assert w.grad((w * x).backward()).item() == 9
    leaf = x.autodiff().require_grad()
    assert leaf.grad((leaf * leaf).backward()).item() == 18
    assert (x * leaked_from(CLOSED[2])).item() == 81  # with a leak of another transform
    with pytest.raises(errors.NotTrackedError):
        x.backward()


def test_a_leak_that_is_zero_or_no_scalar_is_a_constant_too():
    box = []
    grad(lambda x: (box.append(x), x.sum())[1])(np.zeros(2))
    assert grad(lambda y: (box[0] * y).sum())(A3[:2]).tolist() == [0, 0]
    box.clear()
    grad(lambda x: (box.append(x), x)[1])(0.0)
    assert grad(lambda y: box[0] * y + y)(1.0).item() == 1


def test_an_inner_leak_inside_an_outer_transform_stays_differentiable_by_it():
    box = []

    def outer(x):
        grad(lambda y: (box.append(y * x), y)[1])(x)
        return box.pop() * 3  # y is x here

    assert grad(outer)(2.0).item() == 12
    assert jvp(outer, (2.0,), (1.0,))[1].item() == 12


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x * 2,
        lambda x: x.numpy(),
        lambda x: float(x[0]),
        lambda x: bool(x.sum() > 0),
        fd.Tensor.backward,
        lambda x: grad(lambda y: (x * y).sum())(1.0),
        grad(lambda y: y.sum()),
        lambda x: vmap(lambda y: x * y)(A4),
        vmap(lambda y: y),
        lambda x: vmap(lambda y: x)(A4),
        lambda x: jvp(lambda y: x * y, (1.0,), (1.0,)),
        vjp(lambda y: y, A4)[1],
    ],
)
@pytest.mark.parametrize(
    "transform", [lambda f: vmap(f)(M), lambda f: vmap(vmap(f))(M[None]), lambda f: vmap(grad(lambda x: f(x).sum()))(M)]
)
def test_a_tensor_of_a_closed_vmap_is_refused(transform, use):
    x = leaked_from(transform)
    with pytest.raises(errors.LevelError, match="leaked out of a vmap"):
        use(x)
    assert "one of a batch" in repr(x)


# --- object style and transforms


def tracked(value):
    return fd.tensor(value, device=fd.Device.cpu().autodiff()).require_grad()


def test_transforms_of_tracked_tensors_are_differentiable_by_backward():
    w = tracked(3.0)

    def cube(x):
        return x * x * x

    assert w.grad(grad(cube)(w).backward()).item() == 18
    assert w.grad(jvp(cube, (w,), (1.0,))[1].backward()).item() == 18
    assert w.grad(vjp(cube, w)[1](1.0)[0].backward()).item() == 18
    assert w.grad(linearize(cube, w)[1](1.0).backward()).item() == 18
    assert w.grad(hessian(cube)(w).backward()).item() == 6
    assert w.grad(vmap(lambda x: x * w * w)(A3).sum().backward()).item() == 18
    value, g = value_and_grad(lambda x: x * w)(w)
    assert value.is_tracked
    assert g.is_tracked
    assert w.grad(g.backward()).item() == 1


def test_stop_gradient_inside_a_transform_makes_no_leaf():
    w = tracked(3.0)
    for f in (
        lambda x: x * fd.stop_gradient(x),
        lambda x: x * x.detach(),
    ):
        for value in (
            vmap(f)(w.reshape(1)).sum(),
            jvp(f, (w,), (1.0,))[0],
            value_and_grad(f)(w)[0],
            linearize(f, w)[0],
        ):
            grads = value.backward()
            assert len(grads) == 1
            assert grads[w].item() == 3


def test_backward_inside_an_open_transform_is_refused():
    w = tracked(3.0)
    for transform, name in [
        (lambda f: grad(f)(2.0), "grad, vjp"),
        (lambda f: vjp(f, 2.0), "grad, vjp"),
        (lambda f: jvp(f, (2.0,), (1.0,)), "jvp"),
        (lambda f: linearize(f, 2.0), "jvp"),
        (lambda f: vmap(f)(A3), "vmap"),
    ]:
        with pytest.raises(errors.LevelError, match=name):
            transform(lambda x: (x * w).backward())
    # a tape that the transform has no part in may run backward inside
    assert grad(lambda x: x * w.grad((w * w).backward()))(2.0).item() == 6
    assert vmap(lambda x: x * w.grad((w * w).backward()))(A3).tolist() == [6, 6, 6]


def test_a_tape_made_inside_has_gradients_that_the_transform_differentiates():
    def slope(x):
        leaf = x.autodiff().require_grad()
        return leaf.grad((leaf * leaf * leaf * x).backward())  # 3 x^2 x

    assert grad(slope)(2.0).item() == 36
    assert jvp(slope, (2.0,), (1.0,))[1].item() == 36
    assert vmap(slope)(np.array([1.0, 2.0])).tolist() == [3, 24]
    assert vmap(grad(slope))(np.array([1.0, 2.0])).tolist() == [9, 36]
    w = tracked(2.0)
    assert w.grad(grad(slope)(w).backward()).item() == 36  # 9 x^2, differentiated from outside


def test_a_tape_made_inside_ends_with_the_transform():
    def f(x):
        leaf = x.autodiff().require_grad()
        return leaf * leaf

    assert grad(f)(3.0).item() == 6
    out = vmap(f)(A3)
    assert not out.is_autodiff
    value, aux = grad(lambda x: (f(x), f(x)), has_aux=True)(3.0)
    assert (value.item(), aux.item(), aux.is_autodiff) == (6, 9, False)


def test_a_parameter_made_inside_an_earlier_transform_is_refused_rather_than_lost():
    made = []
    grad(lambda x: (made.append(tracked(2.0)), x)[1])(1.0)
    (w,) = made
    assert w.grad((w * w).backward()).item() == 4  # it works by itself
    for use in (lambda: vmap(lambda x: x * w)(A3), lambda: grad(lambda x: x * w)(1.0)):
        with pytest.raises(errors.LevelError, match="made inside an earlier transform"):
            use()


def test_order_two_inside_a_transform():
    def curvature(x):
        leaf = x.without_autodiff().to_device(fd.Device.cpu().autodiff(order=2)).require_grad()
        g = leaf.grad((leaf * leaf * leaf * x).backward())
        return leaf.grad(g.backward())  # 6 leaf x

    assert grad(curvature)(2.0).item() == 12  # leaf was made a constant of x


# --- exceptions, threads, tasks


@pytest.mark.parametrize(
    "transform",
    [
        lambda f: grad(f)(1.0),
        lambda f: vjp(f, 1.0),
        lambda f: jvp(f, (1.0,), (1.0,)),
        lambda f: linearize(f, 1.0),
        lambda f: vmap(f)(A3),
        lambda f: hessian(f)(1.0),
        lambda f: jacrev(f)(1.0),
        lambda f: vmap(grad(f))(A3),
    ],
)
def test_an_exception_in_the_function_leaves_no_level_open(transform):
    box = []

    def broken(x):
        box.append(x * 2)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        transform(broken)
    assert open_depth() == 0
    assert transform(lambda x: x * x) is not None
    if "vmap" in transform.__code__.co_names:
        with pytest.raises(errors.LevelError, match="leaked out of a vmap"):
            (box[0] + 1).numpy()
    else:
        assert (box[0] + 1).item() == 3


def test_eight_threads_with_a_shared_closure():
    w = tracked(3.0)
    shared = fd.tensor(2.0)

    def work(n):
        results = []
        for _ in range(20):
            x = fd.tensor(float(n))
            results.append(
                (
                    grad(lambda y: grad(lambda z: z * z * y * shared)(y))(x).item(),
                    vmap(grad(lambda y: y * y * shared))(x.reshape(1)).item(),
                    jvp(lambda y: y * w.without_autodiff(), (x,), (1.0,))[1].item(),
                    w.grad(grad(lambda y: y * y * w)(x).backward()).item(),
                )
            )
        assert open_depth() == 0
        return results

    with ThreadPoolExecutor(8) as pool:
        for n, results in enumerate(pool.map(work, range(8))):
            assert set(results) == {(8 * n, 4 * n, 3, 2 * n)}


def test_a_thread_inside_a_transform_with_its_context_works():
    def f(x):
        context = contextvars.copy_context()
        box = []
        thread = threading.Thread(target=lambda: context.run(lambda: box.append(grad(lambda y: x * y * y)(x))))
        thread.start()
        thread.join()
        return box[0]

    assert grad(f)(3.0).item() == 12


def test_a_thread_inside_a_transform_without_its_context_is_refused():
    def f(x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: grad(lambda y: x * y * y)(2.0)).result()

    with pytest.raises(errors.LevelError, match="copy_context"):
        grad(f)(3.0)
    with pytest.raises(errors.LevelError, match="copy_context"):
        vmap(f)(A3)


def test_tasks_keep_their_levels_apart():
    async def work(n):
        def f(x):
            return x * x * n

        result = grad(f)(3.0)
        await asyncio.sleep(0)
        return result.item(), vmap(grad(f))(A3).tolist(), open_depth()

    async def main():
        return await asyncio.gather(*[work(float(n)) for n in range(8)])

    for n, result in enumerate(asyncio.run(main())):
        assert result == (6 * n, [2 * n] * 3, 0)


def test_a_transform_leaves_nothing_behind():
    gc.disable()
    try:
        for transform in CLOSED[:4]:
            made = []
            transform(functools.partial(lambda box, x: (box.append(weakref.ref(x * 2)), x * x)[1], made))
            assert made[0]() is None
    finally:
        gc.enable()


def test_a_pullback_owns_its_tape():
    box = []
    _, pullback = vjp(lambda x: (box.append(weakref.ref(y := ops.exp(x))), ops.sin(y))[1], 1.0)
    assert pullback(1.0)[0].item() == pytest.approx(np.cos(np.e) * np.e, rel=1e-5)
    nodes = [weakref.ref(n) for n in pullback._nodes]
    del pullback
    assert box[0]() is None
    assert nodes[0]() is None


def test_backward_of_what_came_in_without_its_tape_says_so():
    w = fd.ones(2, device=fd.Device.cpu().autodiff()).require_grad()
    assert fd.jit(lambda w: (w * w).sum().backward()[w])(w).tolist() == [2, 2]  # an argument comes with its tape
    with pytest.raises(fd.errors.NotTrackedError, match=r"jit\(.*\) reaches.*argument.*model\.fork.*x\.autodiff\(\)"):
        fd.jit(lambda x: (w * x).sum().backward()[w])(w.inner())

    def own(w):
        w = w.autodiff().require_grad()
        return (w * w).sum().backward()[w]

    assert fd.jit(own)(w.inner()).tolist() == [2, 2]


@pytest.mark.parametrize(
    "fn",
    [
        lambda w: (w**2).sum().item(),
        lambda w: float((w**2).sum()),
        lambda w: math.sin(w[0]),
        lambda w: ((w.numpy() - 1) ** 2).mean(),
        lambda w: np.float32(w.sum().item()),
    ],
)
def test_a_loss_that_was_read_off_is_refused(fn, device):
    """Its gradient would be zero without a word; a constant is another thing."""
    w = fd.ones(2, device=device)
    for transform in (fd.grad, fd.value_and_grad):
        with pytest.raises(fd.errors.ArgumentTypeError, match="Return the tensor itself"):
            transform(fn)(w)
    assert fd.grad(lambda w: 3.0)(w).tolist() == [0.0, 0.0]
    seen = []
    assert fd.grad(lambda w: seen.append(w.sum().item()) or (w * w).sum())(w).tolist() == [2.0, 2.0]


def test_a_library_is_not_the_users_line():
    """The line was one of jax or optree where these called the function."""

    def f(x):
        return np.stack([np.zeros(3), jax.numpy.ones(3)]) * np.asarray(jax.tree.map(float, [x]))

    with pytest.raises(errors.ConcreteValueError) as caught:
        fd.jit(f)(1.0)
    assert str(caught.value).startswith(f"{__file__}:{f.__code__.co_firstlineno + 1}: ")


def test_what_was_released_is_named_by_its_shape():
    w = fd.ones(3).autodiff().require_grad()
    for f, shape in ((fd.jit(lambda x: (x * x).sum()), r"\(\)"), (fd.checkpoint(lambda x: x.exp().sum()), r"\(\)")):
        y = f(w)
        y.backward(retain_graph=False)
        with pytest.raises(errors.GraphConsumedError, match=rf"output shape {shape}, made at"):
            y.backward()
