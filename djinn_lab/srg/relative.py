"""A program's bytes with ids, calls and scopes relative to what came just before.

The relative form is MessagePack of the same structure as :func:`~djinn_lab.srg.program.encode_program` makes.
Equal iterations have equal bytes in it, wherever they are in a program or in a session, so that a compressor
finds them. These integers differ from the plain form:

ids
    The *cursor* is the largest id so far among sources, outputs and storages. An id from :attr:`Origin.floor`
    on is written as a negative number, ``-1 - zigzag(cursor - id)``; an older one stays.
``Scope.call``
    Other than 0, as ``-1 - zigzag(call - call before)``.
``NodeRecord.scope``
    As ``zigzag(scope - scope of the node before)``.
``rng_state``
    Empty for the state that came back from the pool last.

``srg/native/wire.cpp`` has the same in C++, which is used where it is built.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from djinn_lab.native import load
from djinn_lab.srg.program import NodeRecord, Program, Scope, Source, decode_program, encode_program

NUMBER_MAX = 2**62
"""Ids, calls and scopes are below; a program with a larger one has no relative form."""


class Origin(NamedTuple):
    """The ids that a program's relative form refers to; of the first program on a connection, all 0.

    ``highest``: the largest id of any program before, the cursor's first place. ``floor``: the first id that
    is written relative to the cursor, which is the first that nodes of the program before may have made; 0:
    that of this program, once its sources are read. ``call``: the last root module call so far.
    """

    highest: int = 0
    floor: int = 0
    call: int = 0


class Rewritten(NamedTuple):
    """A program in the other form, and what the next program on the connection refers to."""

    data: bytes
    next: Origin


class NotRelative(ValueError):
    """These bytes have no relative form, or are none."""


def to_relative(program: bytes, origin: Origin, state: bytes | None = None) -> Rewritten:
    """Return the relative form. ``state``: the random state that came back last.

    Raises NotRelative for bytes that are no program as encode_program writes it, or that have numbers beyond
    all measure.
    """
    native = load("wire")
    if native is None:
        return _to_relative(program, origin, state)
    return _checked(native.to_relative, program, origin, state)


def to_whole(relative: bytes, origin: Origin, state: bytes | None = None) -> Rewritten:
    """Return the plain form. Raises NotRelative."""
    native = load("wire")
    if native is None:
        return _to_whole(relative, origin, state)
    return _checked(native.to_whole, relative, origin, state)


def _checked(
    rewrite: Callable[..., tuple[bytes, tuple[int, int, int]]],
    data: bytes,
    origin: Origin,
    state: bytes | None,
) -> Rewritten:
    try:
        rewritten, following = rewrite(data, *origin, state)
    except ValueError as error:
        raise NotRelative(str(error)) from None
    return Rewritten(rewritten, Origin(*following))


class _Cursor:
    """Both directions of the numbers that are written relative to something."""

    def __init__(self, origin: Origin) -> None:
        self.id, self.floor, self.call = origin
        self.scope = self.next_floor = 0

    def end_sources(self) -> None:
        """Note that the ids that follow are of nodes."""
        self.next_floor = self.id + 1
        self.floor = self.floor or self.next_floor

    @property
    def next(self) -> Origin:
        return Origin(self.id, self.next_floor, self.call)


class _Writer(_Cursor):
    def number(self, value: int) -> int:
        _expect(0 <= value < NUMBER_MAX)
        return _negative(self.id - value) if value >= self.floor else value

    def defined(self, value: int) -> int:
        number = self.number(value)
        self.id = max(self.id, value)
        return number

    def scope_call(self, call: int) -> int:
        _expect(0 <= call < NUMBER_MAX)
        if call == 0:
            return 0
        before, self.call = self.call, call
        return _negative(call - before)

    def node_scope(self, scope: int) -> int:
        _expect(0 <= scope < NUMBER_MAX)
        before, self.scope = self.scope, scope
        return _zigzag(scope - before)


class _Reader(_Cursor):
    def number(self, number: int) -> int:
        value = self.id - _difference(-1 - number) if number < 0 else number
        _expect(0 <= value < NUMBER_MAX)
        return value

    def defined(self, number: int) -> int:
        value = self.number(number)
        self.id = max(self.id, value)
        return value

    def scope_call(self, number: int) -> int:
        if number < 0:
            self.call += _difference(-1 - number)
        _expect(0 <= self.call < NUMBER_MAX and number <= 0)
        return self.call if number < 0 else 0

    def node_scope(self, number: int) -> int:
        _expect(number >= 0)
        self.scope += _difference(number)
        _expect(0 <= self.scope < NUMBER_MAX)
        return self.scope


def _expect(right: bool) -> None:
    if not right:
        raise NotRelative("a number is out of range")


def _zigzag(difference: int) -> int:
    return 2 * difference if difference >= 0 else -2 * difference - 1


def _difference(zigzag: int) -> int:
    _expect(zigzag < 2**63)
    return -(zigzag + 1) // 2 if zigzag & 1 else zigzag // 2


def _negative(difference: int) -> int:
    return -1 - _zigzag(difference)


def _rewritten(program: Program, to: _Writer | _Reader, rng_state: bytes | None) -> Program:
    scopes = [
        Scope(scope.module, to.scope_call(scope.call), scope.cell, scope.line, scope.phase)
        for scope in program.scopes
    ]
    sources = [
        Source(
            to.defined(source.value),
            to.defined(source.storage),
            source.meta,
            source.residency,
            source.blob,
            source.inline,
        )
        for source in program.sources
    ]
    to.end_sources()
    nodes = [
        NodeRecord(
            node.template,
            tuple(None if number is None else to.number(number) for number in node.inputs),
            tuple(None if number is None else to.defined(number) for number in node.outputs),
            node.output_metas,
            tuple(None if number is None else to.defined(number) for number in node.storages),
            to.node_scope(node.scope),
            node.scalars,
            node.dynamic,
        )
        for node in program.nodes
    ]
    keep, fetch, release = (
        [to.number(number) for number in row] for row in (program.keep, program.fetch, program.release)
    )
    return Program(
        program.metas,
        program.templates,
        scopes,
        sources,
        nodes,
        keep,
        fetch,
        release,
        rng_state,
        program.settings,
    )


def _decoded(data: bytes) -> Program:
    try:
        return decode_program(data)
    except msgspec.DecodeError as error:
        raise NotRelative(str(error)) from None


def _to_relative(program: bytes, origin: Origin, state: bytes | None) -> Rewritten:
    decoded = _decoded(program)
    if decoded.rng_state == b"" or encode_program(decoded) != program:
        raise NotRelative("the program is written in another way than encode_program writes it")
    writer = _Writer(origin)
    same = decoded.rng_state is not None and decoded.rng_state == state
    relative = encode_program(_rewritten(decoded, writer, b"" if same else decoded.rng_state))
    return Rewritten(relative, writer.next)


def _to_whole(relative: bytes, origin: Origin, state: bytes | None) -> Rewritten:
    decoded = _decoded(relative)
    rng_state = decoded.rng_state
    if rng_state == b"":
        if state is None:
            raise NotRelative("no random state came back yet")
        rng_state = state
    reader = _Reader(origin)
    return Rewritten(encode_program(_rewritten(decoded, reader, rng_state)), reader.next)
