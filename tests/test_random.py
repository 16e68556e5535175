"""Keys and draws, and the default generator."""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest

import functad as fd
from functad.errors import ArgumentTypeError, ConcreteValueError

# --- the default generator


def noise(x):
    return x * fd.random.normal(fd.random.draw_key(), (3,))


def test_a_seed_decides_the_draws_on_every_device():
    fd.seed(3)
    first = [fd.random.draw_key().tolist() for _ in range(40)]
    fd.seed(3)
    assert [fd.random.draw_key(fd.Device.numpy()).tolist() for _ in range(40)] == first
    assert len(set(map(tuple, first))) == 40
    assert first[:2] == [fd.random.fold_in(fd.random.key(3), i).tolist() for i in range(2)]


def test_draws_of_threads_are_all_different():
    drawn: list[tuple[int, ...]] = []

    def work():
        drawn.extend([tuple(fd.random.draw_key().tolist()) for _ in range(50)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(drawn) == len(set(drawn)) == 200


@pytest.mark.parametrize(
    ("call", "names"),
    [
        pytest.param(lambda: fd.jit(noise)(fd.ones(3)), "jit(noise)", id="jit"),
        pytest.param(lambda: fd.vmap(noise)(fd.ones((2, 3))), "one per row", id="vmap"),
        pytest.param(
            lambda: fd.vmap(fd.grad(lambda x: noise(x).sum()))(fd.ones((2, 3))), "one per row", id="vmap of grad"
        ),
        pytest.param(lambda: fd.jit(fd.checkpoint(noise))(fd.ones(3)), "Pass a key", id="jit of checkpoint"),
        pytest.param(lambda: fd.scan(lambda c, x: (noise(c), x), fd.ones(3), fd.ones(2)), "scan", id="scan"),
        pytest.param(
            lambda: fd.jit(lambda x: fd.cond(x.sum() > 0, noise, lambda x: x, x))(fd.ones(3)), "Pass a key", id="cond"
        ),
        pytest.param(lambda: jax.jit(fd.to_jax(noise))(np.ones(3, np.float32)), "to_jax", id="to_jax"),
        pytest.param(jax.jit(lambda: fd.random.draw_key().jax()), "jax.jit", id="jax.jit"),
        pytest.param(lambda: fd.jit(lambda x: (fd.seed(0), x)[1])(1.0), "fd.seed", id="seed"),
    ],
)
def test_draws_are_refused_where_one_key_would_serve_many_calls(call, names):
    with pytest.raises(ConcreteValueError) as error:
        call()
    assert names in str(error.value)


def test_draws_in_eager_transforms():
    fd.seed(0)
    drawn = fd.random.normal(fd.random.draw_key(), (3,)).tolist()
    fd.seed(0)
    assert fd.grad(lambda x: noise(x).sum())(fd.ones(3)).tolist() == drawn
    fd.seed(0)
    assert fd.jvp(noise, (fd.ones(3),), (fd.ones(3),))[1].tolist() == drawn


@pytest.mark.parametrize("wrap", [fd.checkpoint, lambda f: fd.checkpoint(lambda x: fd.checkpoint(f)(x) + 0)])
def test_checkpoint_draws_what_it_drew(wrap):
    """A second run that draws anew gives the gradient of another mask, and moves the generator on."""

    def loss(x):
        return fd.ops.sin(noise(x)).sum()

    fd.seed(1)
    plain, after = fd.grad(loss)(fd.ones(3)), fd.random.draw_key()
    fd.seed(1)
    again, after_again = fd.grad(wrap(loss))(fd.ones(3)), fd.random.draw_key()
    assert plain.tolist() == again.tolist()
    assert after.tolist() == after_again.tolist()


def test_checkpoint_seeds_once():
    def loss(x):
        fd.seed(5)
        return noise(x).sum()

    grads = fd.grad(fd.checkpoint(loss))(fd.ones(3))
    assert grads.tolist() == fd.random.normal(fd.random.fold_in(fd.random.key(5), 0), (3,)).tolist()
    assert fd.random.draw_key().tolist() == fd.random.fold_in(fd.random.key(5), 1).tolist()


@pytest.mark.parametrize("seed", [1.5, "a", None])
def test_a_seed_is_an_int(seed):
    for call in (fd.seed, fd.random.key):
        with pytest.raises(ArgumentTypeError, match="a seed is an int"):
            call(seed)
