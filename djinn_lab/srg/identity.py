"""The structural hash: equal programs hash equal, in any process, whatever their ids are.

It covers ops, arguments, layouts, wiring, aliasing, source residency, and what is kept and fetched. It
leaves out value and storage numbers (renumbered by first use), table order, scopes (module paths, cells,
lines) and the data itself.

``srg/native/hashed_content.h`` has the same in C++, which is used where it is built.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import chain

import msgspec

from djinn_lab.native import load
from djinn_lab.srg.program import Program, encode_program

_encode = msgspec.msgpack.Encoder().encode


class _Numbering(dict[int | None, int | None]):
    """Numbers keys 0, 1, 2 ... in the order of their first use, those ``used`` first. None stays None, and
    takes a number."""

    def __init__(self, used: Iterable[int | None] = ()) -> None:
        distinct = dict.fromkeys(used)
        super().__init__(zip(distinct, range(len(distinct)), strict=True))
        if None in self:
            self[None] = None

    def __missing__(self, key: int | None) -> int | None:
        number = self[key] = None if key is None else len(self)
        return number


def structural_hash(program: Program) -> str:
    """Return 64 hex digits that equal programs have in common, in any process."""
    native = load("wire")
    content = _content(program) if native is None else native.hashed_content(encode_program(program))
    return hashlib.blake2b(content, digest_size=32).hexdigest()


def _content(program: Program) -> bytes:
    values = _Numbering(chain.from_iterable(node.inputs + node.outputs for node in program.nodes))
    storages = _Numbering(chain.from_iterable(node.storages for node in program.nodes))
    metas, templates = _Numbering(), _Numbering()
    value_of, storage_of = values.__getitem__, storages.__getitem__
    meta_of, template_of = metas.__getitem__, templates.__getitem__
    nodes = [
        (
            template_of(node.template),
            tuple(map(value_of, node.inputs)),
            tuple(map(value_of, node.outputs)),
            tuple(map(meta_of, node.output_metas)),
            tuple(map(storage_of, node.storages)),
            node.scalars,
            node.dynamic,
        )
        for node in program.nodes
    ]
    sources = [
        (values[source.value], storages[source.storage], metas[source.meta], source.residency)
        for source in sorted(program.sources, key=lambda source: values.get(source.value, len(values)) or 0)
    ]
    content = (
        sources,
        nodes,
        [program.metas[index] for index in metas if index is not None],
        [program.templates[index] for index in templates if index is not None],
        sorted(values[value] or 0 for value in program.keep),
        tuple(map(value_of, program.fetch)),
        program.rng_state is not None,
        *(() if program.settings is None else (program.settings,)),
    )
    return _encode(content)
