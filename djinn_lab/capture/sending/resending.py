"""Send values again that a program reads and the pool has lost, or say which are lost for good."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import torch
from msgspec.structs import replace

from djinn_lab.capture.host.memory_bytes import bytes_of, bytes_of_storage, travelling
from djinn_lab.capture.sending.backend import INLINE_SOURCE_BYTES_MAX, RunResult
from djinn_lab.capture.values import Layout
from djinn_lab.errors import ValueLost
from djinn_lab.srg.lost_values import value_lost
from djinn_lab.srg.program import EncodedProgram, Source, TensorMeta


def naming_lost(
    result: RunResult, encoded: EncodedProgram, memories: Mapping[int, torch.UntypedStorage | None]
) -> RunResult:
    """Return the result with an error that names only the values that the host has not either. What the pool
    says of how they were lost stays."""
    if not isinstance(result.error, ValueLost):
        return result
    lost = value_lost(encoded.program, [value for value, memory in memories.items() if memory is None])
    message = "\n".join([lost.message, *result.error.message.split("\n")[1:]])
    return dataclasses.replace(result, error=ValueLost(message, lost.advice))


def with_bytes(
    encoded: EncodedProgram,
    memories: Mapping[int, torch.UntypedStorage | None],
    stage: Callable[[memoryview], str],
) -> EncodedProgram:
    """Return the program with the bytes of these sources, which lie at the beginning of the host's memory.
    ``stage``: as :meth:`~djinn_lab.capture.sending.backend.Backend.stage`."""
    program = encoded.program
    released = set(program.release)

    def brought(source: Source) -> Source:
        memory = memories.get(source.value)
        return source if memory is None else _brought(source, program.metas[source.meta], memory, stage)

    kept = [value for value in memories if value not in released]
    changed = replace(program, sources=[*map(brought, program.sources)], keep=[*kept, *program.keep])
    return EncodedProgram.of(changed)


def _brought(
    source: Source, meta: TensorMeta, memory: torch.UntypedStorage, stage: Callable[[memoryview], str]
) -> Source:
    if meta.blob_bytes == meta.span_bytes:
        data = bytes_of_storage(memory)[: meta.blob_bytes]
    else:
        layout = Layout.of_meta(meta)
        tensor = torch.empty(0, dtype=layout.dtype).set_(memory, 0, layout.shape, layout.stride)
        held = travelling(tensor, layout)
        data = bytes_of(held, layout)
    if data.nbytes <= INLINE_SOURCE_BYTES_MAX:
        return replace(source, inline=bytes(data))
    return replace(source, blob=stage(data))
