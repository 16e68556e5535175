"""Ops of your own, declared as functad's are: one place with implementation, derivative rule and samples.

An implementation takes an array namespace (`jax.numpy` or `numpy`), the inputs, and keyword-only
parameters, which may have defaults. It ends in `.astype(x.dtype)` where NumPy would change the dtype
(a Python number beside bfloat16, a sum of int32), and raises TypeError for numbers it is not for
(complex ones are tried too). The functions of a rule receive what they name: an input, the output `out`, a parameter,
and first the cotangent `g` or the tangent `t` where the kind has one. They are written with functad's
functions, so an op works in every mode, transform and order without further work; nothing but what a
rule names is kept for backward.

- `elementwise(name, impl, *partials)`: one partial derivative for each input
- `linear(name, impl, *transposes)`, `multilinear(...)`: the transpose, for each input
- `reduction(name, impl, partial)`: over `axis`, with `keepdims`
- `custom(name, impl, vjp=..., jvp=...)`: anything else
- `nondiff(name, impl)`: no derivative
- `product(g, x)`: how a rule of `multilinear` or `custom` multiplies, so that a zero cotangent stays zero

An op declared under the name of an earlier one of yours takes its place; functad's own names are taken.

`fd.testing.check_op` then tests what is tested of functad's own ops. (A function of arrays or tensors
that needs no rule is no op: write it down; for a JAX function see `fd.from_jax`, for a rule of a
function `fd.custom_vjp`.)

>>> import functad as fd
>>> cube = fd.op.elementwise(
...     "cube", lambda xp, x: x * x * x, lambda x: 3 * x * x, samples=fd.op.Samples([([(2, 3)], {})]), doc="x cubed."
... )
>>> fd.grad(fd.grad(lambda x: cube(x)))(2.0).item()
12.0
>>> fd.testing.check_op(cube, properties=["adjoint", "numeric", "memory"])
"""

from functad.keywords import explain as _explain
from functad.ops.op import Cost as Cost
from functad.ops.op import Op as Op
from functad.ops.op import Samples as Samples
from functad.ops.rules import custom as custom
from functad.ops.rules import elementwise as elementwise
from functad.ops.rules import linear as linear
from functad.ops.rules import multilinear as multilinear
from functad.ops.rules import nondiff as nondiff
from functad.ops.rules import product as product
from functad.ops.rules import reduction as reduction

_explain(globals())
