"""Which ops of a program must come before which others, and which may run away from the session.

A program is looked at as a graph of ops with three kinds of edges, by storage: read after write, write after
read, write after write. Views of sent values that no op writes cost nothing and are *copied*: every part of a
program makes its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from djinn_lab.srg.ops import random_ops
from djinn_lab.srg.wiring import Wiring

_CHANGES_LAYOUT = frozenset(
    ("t_", "transpose_", "squeeze_", "unsqueeze_", "swapaxes_", "swapdims_", "as_strided_", "detach_")
)


def touched_storages(wiring: Wiring, node: int) -> set[int]:
    """Return the storages that the op makes, looks at through a result, or writes."""
    made = {storage for storage in wiring.program.nodes[node].storages if storage is not None}
    return made | {wiring.storages[value] for value in wiring.writes[node]}


class Facts:
    """Per op: ``copied``; ``stays``: it writes what the session held before; ``at_end``: it must be in the
    epilogue. ``random``: those that draw. ``held``: storages of the session. ``torn``: memory that is
    written came in several pieces."""

    def __init__(self, wiring: Wiring) -> None:
        program = wiring.program
        self.wiring = wiring
        self.held = {s.storage for s in program.sources if s.held}
        sent = {source.storage for source in program.sources} - self.held
        storages = wiring.storages
        sizes = Counter(source.storage for source in program.sources if source.storage in sent)
        self.written = {storages[value] for values in wiring.writes for value in values}
        still = sent - self.written
        self.torn = any(sizes[storage] > 1 for storage in self.written)
        self.copied = [
            view
            and any(storage is not None for storage in node.storages)
            and all(storages[value] in still for value in node.inputs if value is not None)
            for node, view in zip(program.nodes, wiring.views, strict=True)
        ]
        self.stays = [any(storages[value] in self.held for value in values) for values in wiring.writes]
        changes = [name in _CHANGES_LAYOUT or "resize" in name for name in wiring.names]
        self.at_end = [node.dynamic or changes[node.template] for node in program.nodes]
        draws = [template.op in random_ops() for template in program.templates]
        drawing = program.rng_state is not None
        self.random = {i for i, node in enumerate(program.nodes) if drawing and draws[node.template]}


class Edges:
    """``before``, ``after``: of every op that is not copied."""

    def __init__(self, facts: Facts) -> None:
        wiring, nodes = facts.wiring, facts.wiring.program.nodes
        self.before: list[list[int]] = [[] for _ in nodes]
        self.after: list[list[int]] = [[] for _ in nodes]
        writer: dict[int, int] = {}
        readers: dict[int, list[int]] = {}
        known = {source.storage for source in wiring.program.sources}
        for index, node in enumerate(nodes):
            if facts.copied[index]:
                continue
            touched = {wiring.storages[value] for value in node.inputs if value is not None}
            made = {storage for storage in node.storages if storage is not None}
            written = {wiring.storages[value] for value in wiring.writes[index]} | (made - known)
            known |= made
            found: dict[int, None] = {}
            for storage in touched | made:
                if storage in writer:
                    found[writer[storage]] = None
                if storage in written:
                    found.update(dict.fromkeys(readers.pop(storage, ())))
                    writer[storage] = index
                else:
                    readers.setdefault(storage, []).append(index)
            self.before[index] = list(found)
            for one in found:
                self.after[one].append(index)

    def depths(self) -> tuple[list[int], list[int]]:
        """Ops on the longest way from a first op to each, and from each to a last."""
        above = [0] * len(self.before)
        for node, before in enumerate(self.before):
            above[node] = 1 + max((above[one] for one in before), default=-1)
        below = [0] * len(self.before)
        for node in reversed(range(len(self.after))):
            below[node] = 1 + max((below[one] for one in self.after[node]), default=-1)
        return above, below

    def closed_above(self, nodes: set[int]) -> set[int]:
        return closed(nodes, self.before)

    def closed_below(self, nodes: set[int]) -> set[int]:
        return closed(nodes, self.after)


def closed(nodes: set[int], neighbours: Sequence[Sequence[int]]) -> set[int]:
    found, todo = set(nodes), list(nodes)
    while todo:
        fresh = [one for one in neighbours[todo.pop()] if one not in found]
        found.update(fresh)
        todo += fresh
    return found
