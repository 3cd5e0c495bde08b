"""The answer of a run and the values it leaves, for comparison bit by bit with another run."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from djinn_lab.worker.outcome import Outcome
from djinn_lab.worker.parked import ParkedLayout
from djinn_lab.worker.values import SessionValues


@dataclass(frozen=True)
class Left:
    """What a session holds: layouts and bytes by value, and which values lie in one storage."""

    tensors: dict[int, tuple[ParkedLayout, bytes]]
    together: set[frozenset[int]]

    @classmethod
    def of(cls, values: SessionValues) -> Left:
        found: dict[int, tuple[ParkedLayout, bytes]] = {}
        together: dict[int, set[int]] = {}
        for identifier, tensor in values.tensors.items():
            assert tensor is not None
            memory = tensor.untyped_storage()
            content = torch.empty(0, dtype=torch.uint8).set_(memory).numpy().tobytes()
            found[identifier] = ParkedLayout.of(tensor), content
            together.setdefault(memory.data_ptr(), set()).add(identifier)
        return cls(found, {frozenset(group) for group in together.values()})


def summary(outcome: Outcome) -> dict[str, object]:
    """Return all of an answer except its times."""
    failure = outcome.failure
    return {
        "executed": outcome.executed,
        "failure": None if failure is None else (failure.family, failure.type_name, failure.node, failure.op),
        "stopped": outcome.stopped,
        "fetched": [(item.value, item.meta, item.data) for item in outcome.fetched],
        "dynamic": outcome.dynamic_metas,
        "rng": outcome.rng_state,
    }
