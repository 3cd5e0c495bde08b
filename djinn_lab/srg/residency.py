"""How long a value's memory lives, and why.

Sources say what they are. A produced value takes after its storage: a view of a weight, or the result of
its in-place update, is a weight. A fresh one is ``activation``, ``output`` when the client keeps it, or
``kv`` when it is a key-value cache by structure: it feeds an attention as key or value, and it either grew
by concatenation along the sequence or was written in place.
"""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.srg.attention import Attention
from djinn_lab.srg.program import NodeRecord, Residency
from djinn_lab.srg.wiring import Wiring

_CACHE_WRITES = frozenset(
    ("index_copy_", "copy_", "index_put_", "_index_put_impl_", "scatter_", "slice_scatter")
)


def assign_residency(wiring: Wiring, attentions: Sequence[Attention]) -> dict[int, Residency]:
    """Return the residency of every value."""
    program, storages = wiring.program, wiring.storages
    by_storage: dict[int, Residency] = {source.storage: source.residency for source in program.sources}
    for storage in _cache_storages(wiring, attentions):
        if by_storage.get(storage) != "weight":
            by_storage[storage] = "kv"
    kept = {storages[value] for value in (*program.keep, *program.fetch)}
    return {
        value: by_storage.get(storage, "output" if storage in kept else "activation")
        for value, storage in storages.items()
    }


def _cache_storages(wiring: Wiring, attentions: Sequence[Attention]) -> set[int]:
    """Storages that attention reads and that grew or were written in place, and the pasts they grew from."""
    storages = wiring.storages
    read = {storages[value] for attention in attentions for value in (attention.key, attention.value)}
    caches: set[int] = set()
    if not read:
        return caches
    nodes = wiring.program.nodes
    names = [wiring.names[node.template] for node in nodes]
    joined = {
        value for node, name in zip(nodes, names, strict=True) if name == "cat" for value in node.outputs
    }
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if names[index] == "cat" and node.storages[0] in read:
            past = node.inputs[0]
            if past is not None and _is_growth(wiring, node, past, past in joined):
                grown = {node.storages[0], storages[past]}
                caches.update(storage for storage in grown if storage is not None)
                read.add(storages[past])
        elif names[index] in _CACHE_WRITES:
            caches.update(storages[value] for value in wiring.writes[index] if storages[value] in read)
    return caches


def _is_growth(wiring: Wiring, node: NodeRecord, past: int, past_was_joined: bool) -> bool:
    """Return whether the op appends along the last dimension but one to something older than this step."""
    past_meta = wiring.metas[past]
    result = wiring.metas[node.outputs[0]] if node.outputs[0] is not None else None
    if past_meta is None or result is None or len(result.shape) < 3:
        return False
    template = wiring.program.templates[node.template]
    dimension = template.args[1] if len(template.args) > 1 else template.kwargs.get("dim", 0)
    along_sequence = dimension in (-2, len(result.shape) - 2)
    return along_sequence and (past in wiring.sources or past_was_joined or past_meta.numel == 0)
