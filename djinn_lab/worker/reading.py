"""Reads a program whose plan is known: its nodes stay encoded, as Python looks at few of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import overload

import msgspec

from djinn_lab.srg.program import (
    NodeRecord,
    NumericSettings,
    Program,
    Scope,
    Source,
    Template,
    TensorMeta,
    decode_program,
)
from djinn_lab.worker.executor import EncodedRecords, Executor


class _Encoded(msgspec.Struct, frozen=True):
    """A :class:`~djinn_lab.srg.program.Program` with encoded nodes."""

    metas: msgspec.Raw
    templates: msgspec.Raw
    scopes: Sequence[Scope]
    sources: Sequence[Source]
    nodes: msgspec.Raw
    keep: Sequence[int] = ()
    fetch: Sequence[int] = ()
    release: Sequence[int] = ()
    rng_state: bytes | None = None
    settings: NumericSettings | None = None


TABLES_KEPT_MAX = 512
_decoder = msgspec.msgpack.Decoder(_Encoded)
_decode_node = msgspec.msgpack.Decoder(NodeRecord).decode


@lru_cache(TABLES_KEPT_MAX)
def _metas(encoded: bytes) -> tuple[TensorMeta, ...]:
    return msgspec.msgpack.decode(encoded, type=tuple[TensorMeta, ...])


@lru_cache(TABLES_KEPT_MAX)
def _templates(encoded: bytes) -> tuple[Template, ...]:
    """Programs of one plan have the same ones, and decoding them takes longer than all the rest."""
    return msgspec.msgpack.decode(encoded, type=tuple[Template, ...])


class LazyNodes(Sequence[NodeRecord]):
    """Nodes that are decoded when they are asked for. ``records``: the extension reads from them."""

    def __init__(self, records: EncodedRecords) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    @overload
    def __getitem__(self, index: int) -> NodeRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[NodeRecord]: ...
    def __getitem__(self, index: int | slice) -> NodeRecord | list[NodeRecord]:
        if isinstance(index, slice):
            return [self._node(place) for place in range(*index.indices(len(self)))]
        return self._node(range(len(self))[index])

    def __iter__(self) -> Iterator[NodeRecord]:
        return map(self._node, range(len(self)))

    def _node(self, index: int) -> NodeRecord:
        return _decode_node(self.records.encoded(index))


def read_program(encoded: bytes, executor: Executor) -> Program:
    """Decode as :func:`~djinn_lab.srg.program.decode_program` does, with :class:`LazyNodes`."""
    try:
        found = _decoder.decode(encoded)
        metas, templates = _metas(bytes(found.metas)), _templates(bytes(found.templates))
        nodes = LazyNodes(executor.EncodedRecords(bytes(found.nodes)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError):
        return decode_program(encoded)  # says what is wrong with it
    return Program(
        metas,
        templates,
        found.scopes,
        found.sources,
        nodes,
        found.keep,
        found.fetch,
        found.release,
        found.rng_state,
        found.settings,
    )
