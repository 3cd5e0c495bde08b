"""Reads a program whose plan is known: its sources and nodes stay encoded, as Python looks at few of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

import msgspec
import torch

from djinn_lab.srg.program import NodeRecord, NumericSettings, Program, Source, decode_program
from djinn_lab.worker.executor import Executor, ProgramReader
from djinn_lab.worker.preparation import Preparation


class _Rest(msgspec.Struct, frozen=True):
    """The fields of a :class:`~djinn_lab.srg.program.Program` behind its nodes."""

    keep: Sequence[int]
    fetch: Sequence[int]
    release: Sequence[int]
    rng_state: bytes | None
    settings: NumericSettings | None


_decode_rest = msgspec.msgpack.Decoder(_Rest).decode
_decode_node = msgspec.msgpack.Decoder(NodeRecord).decode
_decode_source = msgspec.msgpack.Decoder(Source).decode


class LazyNodes(Sequence[NodeRecord]):
    """Nodes that are decoded when they are asked for. ``encoded``: the extension reads from it. ``program``:
    the encoded program."""

    def __init__(self, encoded: ProgramReader, program: bytes) -> None:
        self.encoded = encoded
        self.program = program

    def __len__(self) -> int:
        return self.encoded.node_count

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
        return _decode_node(self.encoded.node(index))


def read_program(encoded: bytes, preparation: Preparation, executor: Executor) -> Program:
    """Decode a program that ``preparation`` is for, with :class:`LazyNodes`, without scopes, and without the
    sources that the session holds (:func:`missing_values` knows them)."""
    try:
        found = executor.EncodedProgram(encoded)
        rest = _decode_rest(found.rest())
        sources = [_decode_source(source) for source in found.sent()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError, RuntimeError):
        return decode_program(encoded)  # says what is wrong with it
    return Program(
        preparation.metas,
        preparation.templates,
        (),
        sources,
        LazyNodes(found, encoded),
        rest.keep,
        rest.fetch,
        rest.release,
        rest.rng_state,
        rest.settings,
    )


def whole_program(program: Program) -> Program:
    """Return the program with all that :func:`read_program` leaves out."""
    return decode_program(program.nodes.program) if isinstance(program.nodes, LazyNodes) else program


def held_values(program: Program) -> list[int]:
    """Return the values that the session should hold for a program."""
    return missing_values(program, {})


def missing_values(program: Program, tensors: dict[int, torch.Tensor | None]) -> list[int]:
    """Return the values that the session should hold for a program, and that ``tensors`` has nothing for."""
    if isinstance(program.nodes, LazyNodes):
        return program.nodes.encoded.missing(tensors)
    held = (source.value for source in program.sources if source.held)
    return [value for value in held if tensors.get(value) is None]
