"""JAX's functions in functad's loops, and functad's functions in JAX's.

    python examples/jax_interop.py

`fd.from_jax` brings any JAX function onto functad's tape, with JAX's own derivatives: below, attention
is trained and a gamma distribution fitted in the object style, with functions that functad did not
write. `fd.to_jax` goes the other way: `jax.grad`, `jax.jit` and `jax.vmap` take the function as one of
theirs, and use functad's derivatives. Each result is checked against JAX alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import functad as fd
from functad import numpy as fnp

DEVICE = fd.Device.cpu().autodiff()
RNG = np.random.default_rng(0)


def check(what: str, ours: object, theirs: object, tolerance: float = 1e-4) -> None:
    """Stop if functad and JAX differ."""
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance, err_msg=what)
    print(f"  {what}: as JAX has it")


def attention() -> None:
    """Learn the projections of one attention layer, whose attention is `jax.nn.dot_product_attention`."""
    print("attention, by jax.nn.dot_product_attention")
    attend = fd.from_jax(jax.nn.dot_product_attention, static_argnames="is_causal")

    def layer(x, wq, wk, wv):
        # JAX wants (batch, length, heads, features)
        q, k, v = ((x @ w).reshape(*x.shape[:2], 2, 4) for w in (wq, wk, wv))
        return attend(q, k, v, is_causal=True).reshape(x.shape)

    x = fd.tensor(RNG.normal(size=(8, 6, 8)), dtype="float32")
    target = fnp.cumsum(x, axis=1) / fd.arange(1, 7).reshape(1, 6, 1)  # the mean of all tokens up to this one
    weights = [fd.tensor(RNG.normal(size=(8, 8)) / 3, dtype="float32", device=DEVICE).require_grad() for _ in range(3)]

    def jax_loss(weights, x, target):
        q, k, v = ((x @ w).reshape(8, 6, 2, 4) for w in weights)
        out = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape)
        return jnp.mean((out - target) ** 2)

    losses = []
    for step in range(60):
        loss = ((layer(x, *weights) - target) ** 2).mean()
        grads = loss.backward()
        if step == 0:
            expected = jax.grad(jax_loss)([w.jax() for w in weights], x.jax(), target.jax())
            for name, w, g in zip("qkv", weights, expected, strict=True):
                check(f"gradient of w{name}", grads[w].numpy(), g)
        weights = [(w - 2.0 * grads[w]).detach().require_grad() for w in weights]
        losses.append(loss.item())
    print(f"  loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    assert losses[-1] < 0.3 * losses[0]


def gamma() -> None:
    """Fit a gamma distribution: its normaliser is `jax.scipy.special.gammaln`, the rest is functad's."""
    print("a gamma distribution, by jax.scipy.special.gammaln")
    log_gamma = fd.from_jax(gammaln)
    shape, scale = 3.0, 0.5
    data = RNG.gamma(shape, scale, size=4000).astype(np.float32)

    def negative_log_likelihood(log_params, x):
        a, b = fnp.exp(log_params)  # shape and rate
        return (log_gamma(a) - a * fnp.log(b) - (a - 1) * fnp.log(x) + b * x).mean()

    log_params = fd.zeros(2, device=DEVICE).require_grad()
    for _ in range(200):
        grads = negative_log_likelihood(log_params, data).backward()
        log_params = (log_params - 0.2 * grads[log_params]).detach().require_grad()
    a, b = fnp.exp(log_params).tolist()
    print(f"  shape {a:.2f} (drawn with {shape}), scale {1 / b:.2f} (drawn with {scale})")
    assert abs(a - shape) < 0.3
    assert abs(1 / b - scale) < 0.06

    # The same function once more, now inside JAX: its Hessian gives the standard errors.
    in_jax = fd.to_jax(negative_log_likelihood)

    def by_jax(log_params, x):
        a, b = jnp.exp(log_params)
        return (gammaln(a) - a * jnp.log(b) - (a - 1) * jnp.log(x) + b * x).mean()

    point = log_params.without_autodiff().jax()
    hessian = jax.jit(jax.hessian(in_jax))(point, data)
    check("the Hessian, by jax.hessian of a functad function", hessian, jax.hessian(by_jax)(point, data))
    errors = np.sqrt(np.diag(np.linalg.inv(hessian)) / len(data))
    print(f"  standard errors of log shape and log rate: {errors[0]:.3f}, {errors[1]:.3f}")


def functad_in_jax() -> None:
    """A functad loss with a rule of its own, in a JAX training loop."""
    print("a functad function under jax.grad, jax.jit and jax.vmap")
    clip = fd.custom_vjp(lambda x: x)
    clip.defvjp(lambda x: (x, None), lambda _, g: (fnp.clip(g, -0.1, 0.1),))  # gradients beyond 0.1 are cut

    @fd.to_jax
    def loss(w, x, y):
        return (fnp.tanh(x @ clip(w)) - y) ** 2

    x = RNG.normal(size=(64, 3)).astype(np.float32)
    y = np.tanh(x @ np.array([1.0, -1.0, 0.5], np.float32))
    per_example = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))
    w = jnp.zeros(3)
    grads = per_example(w, x, y)
    plain = jax.vmap(jax.grad(lambda w, x, y: (jnp.tanh(x @ w) - y) ** 2), in_axes=(None, 0, 0))(w, x, y)
    check("gradients per example, each clipped by functad's rule", grads, jnp.clip(plain, -0.1, 0.1))
    for _ in range(300):
        w = w - 0.5 * per_example(w, x, y).mean(axis=0)
    print(f"  weights found: {np.round(np.asarray(w), 2)}")
    np.testing.assert_allclose(w, [1.0, -1.0, 0.5], atol=0.05)


def main() -> None:
    """Run the three parts."""
    attention()
    gamma()
    functad_in_jax()


if __name__ == "__main__":
    main()
