"""The printed outputs of burn 0.22.1's autodiff pages, reproduced number by number."""

import os
import subprocess
import sys

import numpy as np
import pytest

import functad as fd
from functad import Reason


def flags(x):
    return x.is_autodiff, x.is_tracked, x.is_require_grad


@pytest.fixture
def ad(device):
    return device.autodiff()


def vec(values, device):
    return fd.tensor(values, dtype="float32", device=device)


class TestDecorator:
    """Page 1: the autodiff decorator."""

    def test_devices_are_equal_by_hardware_and_named_by_backend(self, device):
        ad, checkpointed = device.autodiff(), device.autodiff().gradient_checkpointing()
        assert device == ad == checkpointed
        assert hash(device) == hash(ad) == hash(checkpointed)
        assert ad.name == checkpointed.name == f"autodiff<{device.name}>"
        assert (device.gradient_checkpointing_strategy, ad.gradient_checkpointing_strategy) == (
            None,
            fd.GradientCheckpointing.DISABLED,
        )
        assert checkpointed.gradient_checkpointing_strategy is fd.GradientCheckpointing.BALANCED
        assert ad.inner().name == device.name
        assert ad.autodiff().name == ad.name

    def test_flags_of_six_tensors(self, device, ad):
        a = vec([[1, 2], [3, 4]], ad)
        w = vec([[1, 1], [1, 1]], ad).require_grad()
        c = vec([[1, 1], [1, 1]], device)
        assert flags(a) == (True, False, False)
        assert flags(w) == (True, True, True)
        assert flags(c) == (False, False, False)
        assert flags(a * a) == (True, False, False)
        assert flags(a * w) == (True, True, False)
        assert flags(c * w) == (True, True, False)
        assert c.device.gradient_checkpointing_strategy is None
        assert (a * w).device.gradient_checkpointing_strategy is fd.GradientCheckpointing.DISABLED

    def test_a_plain_tensor_is_a_constant_among_autodiff_ones(self, device, ad):
        a = vec([[1, 2], [3, 4]], ad)
        w = vec([[1, 1], [1, 1]], ad).require_grad()
        c = vec([[1, 1], [1, 1]], device)
        assert (c * w).device.name == ad.name
        grads = (a * w + c * w).sum().backward()
        assert w.grad(grads).tolist() == [[2.0, 3.0], [4.0, 5.0]]

    def test_int_and_bool_pass_through(self, ad):
        n = fd.tensor([1, 2], device=ad)
        assert n.device.is_autodiff and not n.is_tracked and not (n > 1).is_tracked
        w = vec([1, 2], ad).require_grad()
        assert (w > 1).device.is_autodiff and not (w > 1).is_tracked

    def test_two_strategies_in_one_op_are_refused(self, device):
        x = vec([1, 2], device.autodiff())
        y = vec([1, 2], device.autodiff().gradient_checkpointing())
        with pytest.raises(fd.errors.StrategyMismatchError, match=r"BALANCED vs DISABLED|DISABLED vs BALANCED"):
            x * y

    def test_the_three_refusals(self, device, ad):
        w = vec([1, 2], ad).require_grad()
        with pytest.raises(fd.errors.NotALeafError, match=r"retain_grad.*detach\(\)\.require_grad\(\)"):
            (w * 2.0).require_grad()
        with pytest.raises(fd.errors.NotALeafError, match=r"requires autodiff.*x\.autodiff\(\)"):
            vec([1, 2], device).require_grad()
        with pytest.raises(fd.errors.NotTrackedError, match=r"requires a tracked autodiff tensor"):
            (vec([1, 2], ad) * 2.0).backward()
        with pytest.raises(fd.errors.NotTrackedError, match=r"requires a tracked autodiff tensor"):
            (vec([1, 2], device) * 2.0).backward()


class TestGradReturnsNone:
    """Page 2: nine reasons for an absent gradient."""

    def test_the_five_term_loss(self, device, ad):
        x_plain = vec([1, 2], device)
        x_nograd = vec([1, 2], ad)
        x_late = vec([1, 2], ad)
        w = vec([3, 4], ad).require_grad()
        unused = vec([5, 5], ad).require_grad()
        x_detached = vec([1, 2], ad).require_grad()
        x_int = vec([1, 2], ad).require_grad()
        copy = x_detached.detach()
        h = x_plain * w
        used_late = x_late * w
        x_late = x_late.require_grad()
        loss = (h + x_nograd * w + used_late + copy * w + x_int.astype(int).astype("float32") * w).sum()
        grads = loss.backward()

        assert w.grad(grads).tolist() == [5.0, 10.0]
        assert copy.grad(grads).tolist() == [3.0, 4.0]
        assert len(grads) == 2
        absent = {
            Reason.NOT_AUTODIFF_DEVICE: x_plain,
            Reason.NOT_REQUIRE_GRAD: x_nograd,
            Reason.REQUIRED_TOO_LATE: x_late,
            Reason.NOT_REACHED: unused,
            Reason.CUT_BY_DETACH: x_detached,
            Reason.CUT_BY_INT_CAST: x_int,
            Reason.INTERMEDIATE: h,
        }
        for reason, x in absent.items():
            assert x.grad(grads) is None, reason
            assert x not in grads
            assert grads.explain(x).reason is reason
            with pytest.raises(fd.errors.NoGradientError, match=reason.name):
                grads[x]
        assert grads.explain(loss).reason is Reason.INTERMEDIATE
        assert grads.explain(w).reason is Reason.PRESENT

        other = (unused * 2.0).sum().backward()
        assert unused.grad(other).tolist() == [2.0, 2.0]
        assert w.grad(other) is None
        assert other.explain(w).reason is Reason.OTHER_GRADIENTS
        assert grads.explain(unused).reason is Reason.OTHER_GRADIENTS

        assert w.grad_remove(grads).tolist() == [5.0, 10.0]
        assert w.grad_remove(grads) is None
        assert grads.explain(w).reason is Reason.REMOVED
        assert other.explain(w).reason is Reason.NOT_REACHED

    def test_grads_fix(self, ad):
        w = vec([3, 4], ad).require_grad()
        x = vec([1, 2], ad).require_grad()
        h = (x * w).detach().require_grad()
        grads = (h * 2.0 + x * w).sum().backward()
        assert w.grad(grads).tolist() == [1.0, 2.0]
        assert x.grad(grads).tolist() == [3.0, 4.0]
        assert h.grad(grads).tolist() == [2.0, 2.0]


class TestRegionsWithoutGrad:
    """Page 3: detach, without_autodiff, inner."""

    def test_flags(self, ad):
        w = vec([3, 4], ad).require_grad()
        assert flags(w) == (True, True, True)
        assert flags(w.detach()) == (True, True, True)
        assert flags((w * 2.0).detach()) == (True, False, False)
        assert flags(w.without_autodiff()) == (False, False, False)
        assert flags(w.inner()) == (False, False, False)

    def test_side_branch(self, ad):
        w = vec([3, 4], ad).require_grad()
        x = vec([1, 2], ad).require_grad()
        side = (x * 10.0).detach()
        grads = ((side * w).sum() + (x * w).sum()).backward()
        assert x.grad(grads).tolist() == [3.0, 4.0]
        assert w.grad(grads).tolist() == [11.0, 22.0]

    def test_no_grad_region_gives_the_same(self, ad):
        w = vec([3, 4], ad).require_grad()
        x = vec([1, 2], ad).require_grad()
        with fd.no_grad():
            side = x * 10.0
        assert not side.is_tracked
        grads = ((side * w).sum() + (x * w).sum()).backward()
        assert x.grad(grads).tolist() == [3.0, 4.0]

    def test_dropped_forwards_do_not_grow_memory(self):
        """burn grows by 147 MiB here: its graph is process-wide, ours hangs on the outputs."""
        code = """
import resource, functad as fd, numpy as np
def rss():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20
p = fd.tensor(np.random.default_rng(0).random((1024, 1024), dtype=np.float32), device=fd.Device.cpu().autodiff())
p = p.require_grad()
def forward(p):
    return ((p.exp() * p) @ p).sum()
for _ in range(20):  # the allocator's working set, of JAX alone too, is some 30 MiB
    forward(p).backward()
    forward(p).block_until_ready()
base = rss()
for _ in range(20):
    forward(p).block_until_ready()
print(rss() - base)
"""
        if not sys.platform.startswith("linux"):
            pytest.skip("reads /proc")
        env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1000000"}  # freed arrays leave the process at once
        run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=env)
        grown = float(run.stdout)
        assert grown < 15.0

    def test_np_values_leave_explicitly(self, ad):
        w = vec([3, 4], ad).require_grad()
        with pytest.raises(TypeError, match=r"x\.numpy\(\)"):
            np.asarray(w)
        assert np.asarray(w.without_autodiff()).tolist() == [3.0, 4.0]
