"""Which orders of a graph's nodes give the same results.

A node runs after whatever made or last wrote what it reads, a write after the reads that came before it,
random ops in their own order, and an op whose sizes depend on data after everything else.
"""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.srg.graph import SRG, Node
from djinn_lab.srg.ops import base_name

_RANDOM = frozenset(
    (
        *(
            "bernoulli",
            "bernoulli_",
            "binomial",
            "cauchy_",
            "dropout",
            "dropout_",
            "exponential_",
            "geometric_",
        ),
        *(
            "log_normal_",
            "multinomial",
            "native_dropout",
            "normal",
            "normal_",
            "poisson",
            "rand",
            "rand_like",
        ),
        *(
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "random",
            "random_",
            "randperm",
            "rrelu_with_noise",
        ),
        *(
            "rrelu_with_noise_",
            "uniform",
            "uniform_",
            "_standard_gamma",
            "_sample_dirichlet",
            "_fused_dropout",
        ),
        *(
            "normal_functional",
            "alpha_dropout",
            "feature_dropout",
            "feature_alpha_dropout",
            "mkldnn_rnn_layer",
        ),
    )
)


def _is_dynamic(srg: SRG, node: Node) -> bool:
    return any(srg.values[value].shape is None for value in node.outputs)


def dependencies(srg: SRG) -> list[set[int]]:
    """For each node, the nodes that must run before it (direct ones)."""
    needs: list[set[int]] = [set() for _ in srg.nodes]
    for edge in srg.edges:
        if edge.source is not None:
            needs[edge.target].add(edge.source)
    readers: dict[int, list[int]] = {}
    last_random: int | None = None
    for node in srg.nodes:
        for value in node.writes:
            storage = srg.values[value].storage
            needs[node.id].update(readers.get(storage, ()))
            readers[storage] = []
        for value in node.inputs:
            readers.setdefault(srg.values[value].storage, []).append(node.id)
        if base_name(node.op) in _RANDOM:
            if last_random is not None:
                needs[node.id].add(last_random)
            last_random = node.id
        needs[node.id].discard(node.id)
    if srg.nodes and _is_dynamic(srg, srg.nodes[-1]):
        needs[-1].update(range(len(srg.nodes) - 1))
    return needs


def check_order(srg: SRG, order: Sequence[int]) -> None:
    """Raise ValueError unless running the nodes in ``order`` gives the results of program order."""
    position = {node: index for index, node in enumerate(order)}
    if (
        len(order) != len(srg.nodes)
        or len(position) != len(order)
        or not position.keys() <= set(range(len(order)))
    ):
        raise ValueError(f"an order must name each of the {len(srg.nodes)} nodes once")
    for node, before in enumerate(dependencies(srg)):
        late = [other for other in before if position[other] > position[node]]
        if late:
            raise ValueError(f"node {node} ({srg.nodes[node].op}) must run after node {late[0]}")
