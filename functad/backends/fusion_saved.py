"""Which results of a forward are kept for its backward: a least cut between what is costly to compute and what is read.

What memory-bound ops make of kept results is computed again. So between a costly op and the rules that depend on it
something has to be kept, and the least of that is found as a cut of a network (as in Chen et al., "Min-cut
rematerialization", which torch.compile has too).
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from functad.backends.fusion_state import nbytes
from functad.backends.trace import Program

_ALL = 1 << 28  # half of what all results count together, in a network that counts in 32 bits
_NEVER = 1 << 30


def least_saved(program: Program, forward: Collection[int], costly: Collection[int], held: Collection[int]) -> set[int]:
    """The variables to keep, of a program that computes gradients.

    `forward` are the variables of results, `costly` those that are not to be computed again, `held` those that the
    program holds when the forward ends: of two that are as large such a one is kept.
    """
    read: set[int] = set()
    edges: list[tuple[int, int]] = []
    wanted = {x for x in program.outputs if type(x) is int}
    read |= wanted & set(forward)
    for eq in reversed(program.equations):
        if wanted.isdisjoint(eq.outputs):
            continue
        inputs = {x for x in eq.inputs if type(x) is int}
        wanted |= inputs
        if eq.outputs[0] not in forward:
            read |= inputs & set(forward)
        elif eq.outputs[0] not in costly:
            edges += [(x, y) for x in inputs for y in eq.outputs]
    return _least_cut(program, edges, wanted & set(costly), read, held)


def _least_cut(
    program: Program, edges: list[tuple[int, int]], sources: set[int], sinks: set[int], held: Collection[int]
) -> set[int]:
    """The variables whose removal parts the sources from the sinks, of least size; of several such the last."""
    from scipy.sparse import csr_array  # noqa: PLC0415  # it takes a while, and few programs need it
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # noqa: PLC0415

    variables = sorted(sources | sinks | {x for edge in edges for x in edge})
    if not (sources and sinks):
        return set()
    number = {x: i for i, x in enumerate(variables)}
    first, last = 2 * len(variables), 2 * len(variables) + 1  # a variable is two nodes, with its size between them
    sizes = [nbytes(program.types[x]) for x in variables]
    unit = max(sum(sizes) / _ALL, 1)
    arcs = [
        *[(2 * i, 2 * i + 1, max(2 * int(sizes[i] / unit), 2) - (x in held)) for x, i in number.items()],
        *[(2 * number[x] + 1, 2 * number[y], _NEVER) for x, y in set(edges)],
        *[(first, 2 * number[x], _NEVER) for x in sources],
        *[(2 * number[x] + 1, last, _NEVER) for x in sinks],
    ]
    start, end, room = (np.array(part, np.int32) for part in zip(*arcs, strict=True))
    network = csr_array((room, (start, end)), shape=(last + 1, last + 1))
    left = network - maximum_flow(network, first, last).flow
    left.data[left.data < 0] = 0
    left.eliminate_zeros()
    behind = {*breadth_first_order(left.T.tocsr(), last, return_predecessors=False).tolist()}
    return {x for x, i in number.items() if 2 * i + 1 in behind and 2 * i not in behind}
