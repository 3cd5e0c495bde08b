"""A key under which checking and measuring a program can be remembered.

Programs with equal keys differ only in what neither :mod:`djinn_lab.srg.validation`'s structural part nor a
memory plan looks at: the numbers of values and storages, scalars, names of cells, the data itself. (The
structural hash, which names a graph for people, also covers scalars and takes many times as long.)
"""

from __future__ import annotations

import hashlib
from itertools import chain

import msgspec
import numpy as np

from djinn_lab.srg.program import Program

_encode = msgspec.msgpack.Encoder().encode


def plan_key(program: Program) -> bytes | None:
    """None for a program with ids that cannot be right, which is better looked at closely."""
    nodes, sources = program.nodes, program.sources
    rows = (
        [node.inputs for node in nodes],
        [node.outputs for node in nodes],
        [node.storages for node in nodes],
        [node.output_metas for node in nodes],
        [node.scalars for node in nodes],
    )
    named = [
        *(source.value for source in sources),
        *(source.storage for source in sources),
        *program.keep,
        *program.fetch,
        *chain.from_iterable(rows[0]),
        *chain.from_iterable(rows[1]),
        *chain.from_iterable(rows[2]),
    ]
    if -1 in named:
        return None
    try:
        ids = np.array([-1 if number is None else number for number in named], dtype=np.int64)
    except OverflowError:
        return None
    if named and int(ids.min()) < -1:
        return None
    plain = [
        *(source.meta for source in sources),
        *(node.template for node in nodes),
        *(node.scope for node in nodes),
        *(-1 if meta is None else meta for meta in chain.from_iterable(rows[3])),
        *chain.from_iterable([map(len, row) for row in rows]),
    ]
    places = np.unique(ids, return_inverse=True)[1]
    head = (
        len(nodes),
        len(program.scopes),
        len(program.keep),
        len(program.fetch),
        None in named,
        program.metas,
        program.templates,
        [
            (source.residency, source.blob is None, None if source.inline is None else len(source.inline))
            for source in sources
        ],
        bytes([node.dynamic for node in nodes]),
    )
    digest = hashlib.blake2b(_encode(head), digest_size=16)
    digest.update(np.array(plain, dtype=np.int64).tobytes())
    digest.update(places.astype(np.int64).tobytes())
    return digest.digest()
