"""Newton's method for logistic regression on 178 wines: with products of the Hessian, and with the whole Hessian.

    python examples/newton.py

Newton-CG solves for each step by conjugate gradients, which need the Hessian only times a vector:
`fd.hvp`. Newton's method proper builds the matrix, `fd.hessian`, which comes as a pytree of blocks in
the structure of the parameters. Both take the same steps, and beat gradient descent by far.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

import functad as fd

PENALTY = 1.0  # as LogisticRegression(C=1) has it
Params = dict[str, fd.Tensor]


def tree_map(fn, *trees: Params) -> Params:
    """`fn` applied key by key."""
    return {k: fn(*[t[k] for t in trees]) for k in trees[0]}


def dot(a: Params, b: Params) -> float:
    """The inner product of two vectors that are pytrees."""
    return sum((a[k] * b[k]).sum().item() for k in a)


def newton_cg_step(loss, params: Params) -> Params:
    """Solve H s = -g by conjugate gradients, and step by s; H is never built."""
    residual = tree_map(lambda g: -g, fd.grad(loss)(params))
    direction, step = residual, tree_map(fd.zeros_like, params)
    start = norm = dot(residual, residual)
    while norm > 1e-20 * start:
        curved = fd.hvp(loss, (params,), (direction,))
        length = norm / dot(direction, curved)
        step = tree_map(lambda s, d: s + length * d, step, direction)  # noqa: B023  # used at once
        residual = tree_map(lambda r, c: r - length * c, residual, curved)  # noqa: B023
        norm, before = dot(residual, residual), norm
        direction = tree_map(lambda r, d: r + norm / before * d, residual, direction)  # noqa: B023
    return tree_map(lambda p, s: p + s, params, step)


def newton_step(loss, params: Params) -> Params:
    """Put the blocks of the Hessian together and solve at once."""
    gradient, blocks = fd.grad(loss)(params), fd.hessian(loss)(params)
    sizes = {k: p.size for k, p in params.items()}
    matrix = np.block([[blocks[k][m].reshape(sizes[k], sizes[m]).numpy() for m in sizes] for k in sizes])
    step = np.linalg.solve(matrix, -np.concatenate([gradient[k].ravel().numpy() for k in sizes]))
    pieces = np.split(step, np.cumsum(list(sizes.values()))[:-1])
    return {k: p + piece.reshape(p.shape) for (k, p), piece in zip(params.items(), pieces, strict=True)}


def gradient_step(loss, params: Params) -> Params:
    """The usual way."""
    return tree_map(lambda p, g: p - 0.02 * g, params, fd.grad(loss)(params))


def minimise(step, loss, params: Params, steps: int, name: str) -> tuple[Params, list[float]]:
    """The parameters after `steps` steps, and the loss before each and at the end."""
    losses = [loss(params).item()]
    for _ in (progress := tqdm(range(steps), desc=name, unit=" steps")):
        params = step(loss, params)
        losses.append(loss(params).item())
        progress.set_postfix(loss=f"{losses[-1]:.8f}", refresh=False)
    return params, losses


def save_curves(curves: dict[str, list[float]], path: Path) -> None:
    """How far each method is from the minimum, step by step."""
    best = min(map(min, curves.values()))
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for name, losses in curves.items():
        axes.semilogy(np.maximum(np.array(losses[:100]) - best, 1e-13), ".-", label=name, linewidth=0.8, markersize=3)
    axes.set(xlabel="step", ylabel="loss above the minimum", title="Logistic regression on wine")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Fit by three methods, compare with scikit-learn, save a picture; exits with an error on a mismatch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=["cpu", "gpu", "numpy"], default="cpu")
    parser.add_argument("--out", type=Path, default=Path("newton-out"))
    args = parser.parse_args()

    features, labels = load_wine(return_X_y=True)
    features = StandardScaler().fit_transform(features)
    reference = LogisticRegression(C=1 / PENALTY, tol=1e-10, max_iter=10_000).fit(features, labels)

    with fd.enable_x64(), fd.set_default_device(getattr(fd.Device, args.device)()):
        x, y = fd.tensor(features), fd.tensor(np.eye(3)[labels])

        def loss(params: Params) -> fd.Tensor:
            scores = (x @ params["w"] + params["b"]).log_softmax(axis=-1)
            penalty = PENALTY / 2 * (params["w"] ** 2).sum() + 1e-9 * (params["b"] ** 2).sum()  # b alone has no minimum
            return penalty - (y * scores).sum()

        start = {"w": fd.zeros((13, 3)), "b": fd.zeros(3)}
        params, by_products = minimise(newton_cg_step, loss, start, 8, "Newton-CG, fd.hvp")
        _, by_matrix = minimise(newton_step, loss, start, 8, "Newton, fd.hessian")
        _, by_gradient = minimise(gradient_step, loss, start, 300, "gradient descent")

        slope = fd.grad(loss)(params)
        size = max(abs(g.numpy()).max() for g in slope.values())
        apart = abs(params["w"].numpy().T - reference.coef_).max()
        accuracy = (np.asarray(x @ params["w"] + params["b"]).argmax(1) == labels).mean()
    print(
        f"after 8 steps: loss {by_products[-1]:.10f}, largest slope {size:.1e}, accuracy {accuracy:.1%}, "
        f"{apart:.1e} from scikit-learn's weights; gradient descent after 300: {by_gradient[-1]:.10f}"
    )
    args.out.mkdir(parents=True, exist_ok=True)
    save_curves({"Newton-CG": by_products, "Newton": by_matrix, "gradient descent": by_gradient}, args.out / "loss.png")
    same = np.allclose(by_products, by_matrix, rtol=1e-8)
    if not (same and size < 1e-6 and apart < 1e-4 and by_products[-1] < by_gradient[-1]):
        sys.exit("Newton's method did not reach the minimum that scikit-learn found")


if __name__ == "__main__":
    main()
