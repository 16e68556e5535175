"""Nine ways to have no gradient, and what `grads.explain(x)` says of each.

    python examples/why_none.py

A gradient that is absent is `None`, and `None` does not say why. There are three kinds of reasons:
the tensor is not a leaf that requires grad (1, 2, 7), backward did not arrive at it (3, 4, 5, 6), or
it is looked up in the wrong container (8, 9). `explain` tells which, and what to write instead.
"""

from __future__ import annotations

import textwrap

import functad as fd

CPU = fd.Device.cpu()
AD = CPU.autodiff()


def show(case: str, x: fd.Tensor, grads: fd.Gradients) -> None:
    """One row: the gradient, or the reason why there is none and the way out."""
    g = x.grad(grads)
    report = grads.explain(x)
    print(f"{case:<36}{report.reason.name:<22}{'None' if g is None else g.tolist()}")
    if g is None:
        for text in (report.message, "-> " + report.hint):
            print(textwrap.fill(text, 108, initial_indent=" " * 36, subsequent_indent=" " * 36))


def nine_cases() -> None:
    """One loss, in which every tensor but `w` takes part in a way that leaves it without a gradient."""
    # 1. Made on a device without autodiff: nothing done with it is ever recorded.
    x_plain = fd.tensor([1.0, 2.0], device=CPU)
    # 2. On an autodiff device, but nobody asked for its gradient: to the tape it is a constant.
    x_constant = fd.tensor([1.0, 2.0], device=AD)
    # 3. This one will be asked for too late: what was recorded before took it for a constant.
    x_late = fd.tensor([1.0, 2.0], device=AD)
    # The one that does it right.
    w = fd.tensor([3.0, 4.0], device=AD).require_grad()
    # 4. A leaf that the loss does not depend on.
    unused = fd.tensor([5.0, 5.0], device=AD).require_grad()
    # 5. A leaf whose only way to the loss is cut by detach(). The copy is a leaf of its own.
    x_detached = fd.tensor([1.0, 2.0], device=AD).require_grad()
    copy = x_detached.detach()
    # 6. A leaf whose only way to the loss leads through integers, which have no derivative.
    x_rounded = fd.tensor([1.0, 2.0], device=AD).require_grad()

    h = x_plain * w  # 7. An intermediate: its gradient passes through and is not kept.
    late_term = x_late * w
    x_late = x_late.require_grad()  # the same leaf, but `late_term` is recorded already
    integers = x_rounded.astype("int32").astype("float32")
    loss = (h + x_constant * w + late_term + copy * w + integers * w).sum()

    grads = loss.backward()
    show("w, a leaf on the path", w, grads)  # in five terms, each time times (1, 2): (5, 10)
    show("1 x on a device without autodiff", x_plain, grads)
    show("2 x without require_grad", x_constant, grads)
    show("3 require_grad after use", x_late, grads)
    show("4 unused leaf", unused, grads)
    show("5 path through detach()", x_detached, grads)
    show("  the detached copy itself", copy, grads)
    show("6 path through integers", x_rounded, grads)
    show("7 intermediate h", h, grads)
    show("7 the loss itself", loss, grads)

    # 8. A gradient can be taken out of its container, for good.
    w.grad_remove(grads)
    show("8 w after grad_remove", w, grads)

    # 9. Each backward has a container of its own. Ask `other` for what only `first` holds, and it says so.
    first = loss.backward()
    other = (unused * 2).sum().backward()
    show("9 w, in another container", w, other)
    show("  unused, in that container", unused, other)
    show("  w, in the container that has it", w, first)


def the_fix() -> None:
    """The same mistakes, mended: ask first, then compute; make a leaf of what is to be looked at."""
    w = fd.tensor([3.0, 4.0], device=AD).require_grad()
    x = fd.tensor([1.0, 2.0], device=AD).require_grad()  # before it takes part in anything
    h = (x * w).detach().require_grad()  # an intermediate, made a leaf of what follows
    grads = (h * 2.0 + x * w).sum().backward()
    show("w", w, grads)
    show("x", x, grads)
    show("h, a leaf by detach()", h, grads)

    # The price shows in w: the part that came through h is cut off. To look at a gradient without
    # cutting anything, leave the intermediate where it is and ask for its gradient to be kept.
    h = (x * w).retain_grad()
    grads = (h * 2.0 + x * w).sum().backward()
    show("w, nothing cut", w, grads)
    show("h, by retain_grad()", h, grads)


if __name__ == "__main__":
    print("Nine cases\n")
    nine_cases()
    print("\nThe fix\n")
    the_fix()
