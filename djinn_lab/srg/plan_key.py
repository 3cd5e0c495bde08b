"""A key under which checking and measuring a program can be remembered.

Programs with equal keys differ only in what neither :mod:`djinn_lab.srg.validation`'s structural part nor a
memory plan looks at: the numbers of values and storages, scalars, names of cells, the data itself. (The
structural hash, which names a graph for people, also covers scalars and takes many times as long.)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from djinn_lab.native import load
from djinn_lab.srg.program import (
    Argument,
    Scope,
    Source,
    Template,
    TensorMeta,
    decode_program,
    decode_template,
    encode_program,
)
from djinn_lab.srg.relative import NUMBER_MAX

TEMPLATES_MAX = 8192
"""So many encoded templates are remembered, with what is known of each."""
TEMPLATE_BYTES_MAX = 2048
"""Longer ones, of ops on long lists, are looked at anew."""
_encode = msgspec.msgpack.Encoder().encode


def _digest(material: bytes) -> bytes:
    return hashlib.blake2b(material, digest_size=16).digest()


class KeyedProgram(NamedTuple):
    """The key of an encoded program. ``blobs``: the blobs that its sources name, where what its key does not
    cover is certainly right; None: look with :func:`decode_contents` and validate that. ``material``: what
    the key is made of, for :func:`resizable`; empty without a key."""

    key: bytes | None
    blobs: list[str] | None = None
    material: bytes = b""


def plan_key(encoded: bytes) -> bytes | None:
    """Return the key of an encoded program; see :func:`keyed`."""
    return keyed(encoded).key


def keyed(encoded: bytes) -> KeyedProgram:
    """Return the key of an encoded program, and what the way to it shows of the rest.

    No key for bytes that are no program as :func:`~djinn_lab.srg.program.encode_program` writes it, and for
    ids that cannot be right: they are better looked at closely. Bytes with the key of a program that was
    decoded are a program too, if :func:`decode_contents` reads them: the rest was compared with it or looked
    at. Where ``blobs`` is a list it would, and the contents of a program whose like was validated are valid.
    """
    native = load("wire")
    try:
        material, blobs = (_material(encoded), None) if native is None else native.plan_material(encoded)
    except ValueError:
        return KeyedProgram(None)
    return KeyedProgram(_digest(material), blobs, material)


class ResizableProgram(NamedTuple):
    """A program apart from its sizes. Of what their keys cover, programs of equal ``structure`` differ in
    ``metas`` and in the whole numbers of ``templates`` alone. The templates are encoded."""

    structure: bytes
    metas: list[TensorMeta]
    templates: list[bytes]


class _Material(msgspec.Struct, frozen=True, array_like=True):
    metas: list[TensorMeta]
    templates: list[msgspec.Raw]
    scopes: msgspec.Raw
    sources: msgspec.Raw
    nodes: msgspec.Raw
    keep: msgspec.Raw
    fetch: msgspec.Raw
    settings: msgspec.Raw


_decode_material = msgspec.msgpack.Decoder(_Material).decode


def resizable(material: bytes) -> ResizableProgram:
    """Return the program that a key was made of, apart from its sizes. Raises ``msgspec.DecodeError`` for the
    material of bytes that are no program."""
    try:
        parts = _decode_material(material)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"not a program: {error}") from None
    templates = list(map(bytes, parts.templates))
    rest = (parts.scopes, parts.sources, parts.nodes, parts.keep, parts.fetch, parts.settings)
    structure = _encode((len(parts.metas), list(map(_without_sizes, templates)), rest))
    return ResizableProgram(_digest(structure), parts.metas, templates)


def _without_sizes(template: bytes) -> bytes:
    """Return an encoded template with 0 for each whole number."""
    return _blanked(template) if len(template) > TEMPLATE_BYTES_MAX else _known_blanked(template)


def _blanked(template: bytes) -> bytes:

    def blank(argument: Argument) -> Argument:
        if isinstance(argument, list):
            return [blank(leaf) for leaf in argument]  # type: ignore[misc]
        return 0 if type(argument) is int else argument

    decoded = decode_template(template)
    kwargs = {name: blank(value) for name, value in decoded.kwargs.items()}
    return _encode(Template(decoded.op, list(map(blank, decoded.args)), kwargs))


_known_blanked = lru_cache(TEMPLATES_MAX)(_blanked)


class Contents(msgspec.Struct, frozen=True):
    """The parts of a program that its key does not cover, without its nodes; ``metas`` are what sources refer
    to."""

    metas: Sequence[TensorMeta]
    scopes: Sequence[Scope]
    sources: Sequence[Source]
    rng_state: bytes | None = None


_decode_contents = msgspec.msgpack.Decoder(Contents).decode


def decode_contents(encoded: bytes) -> Contents:
    """Read an encoded program without its nodes. Raises ``msgspec.DecodeError``."""
    try:
        return _decode_contents(encoded)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(f"not a program: {error}") from None


def _material(encoded: bytes) -> bytes:
    """Return what the key is made of; ids are numbered in the order in which they are met."""
    program = decode_program(encoded)
    if encode_program(program) != encoded:
        raise ValueError("another way of writing")
    numbers: dict[int, int] = {}

    def numbered(ids: Sequence[int | None]) -> list[int | None]:
        return [None if number is None else _number(number, numbers) for number in ids]

    sources = [
        (
            *numbered((source.value, source.storage)),
            source.meta,
            source.residency,
            source.blob is None,
            None if source.inline is None else len(source.inline),
        )
        for source in program.sources
    ]
    nodes = [
        (
            node.template,
            numbered(node.inputs),
            numbered(node.outputs),
            node.output_metas,
            numbered(node.storages),
            node.scope,
            len(node.scalars),
            node.dynamic,
        )
        for node in program.nodes
    ]
    keep, fetch = numbered(program.keep), numbered(program.fetch)
    return _encode(
        (program.metas, program.templates, len(program.scopes), sources, nodes, keep, fetch, program.settings)
    )


def _number(value: int, numbers: dict[int, int]) -> int:
    if not 0 <= value < NUMBER_MAX:
        raise ValueError("an impossible id")
    return numbers.setdefault(value, len(numbers))
