"""What a worker is sent to repeat a run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from djinn_lab.pool.lineage.log import Run
from djinn_lab.protocol.worker import Resume
from djinn_lab.srg.program import NodeRecord, Program, decode_program, encode_program


class Step(NamedTuple):
    """A program that repeats a run. ``values``: how many it makes; ``ops``: how many it runs."""

    program: bytes
    key: bytes | None
    resume: Resume | None
    values: int
    ops: int


def step_of(run: Run) -> Step:
    """Return the program that does what the run did to its session. Nothing is fetched."""
    program = decode_program(run.program)
    end = len(program.nodes) if run.end is None else run.end
    if not run.loaded:
        return _releasing([*program.release])
    if run.begin and end == run.begin:
        left = {*program.keep} if run.closes else {*_made(program, end)}
        return _releasing([*(value for value in _made(program, end) if value not in left), *program.release])
    ops, values = end - run.begin, len(program.keep) if run.end is None else 0
    resume = Resume(run.begin, run.rng_state) if run.begin else None
    if run.end is None and not program.fetch:
        return Step(run.program, run.key, resume, values, ops)
    if run.end is None:
        key = None if run.key is None else hashlib.blake2b(b"replay" + run.key, digest_size=16).digest()
        return Step(encode_program(replace(program, fetch=())), key, resume, values, ops)
    cut = _cut(program, end, run.closes)
    return Step(encode_program(cut), None, resume, len(cut.keep) if run.closes else 0, ops)


def _releasing(values: Sequence[int]) -> Step:
    program = Program(metas=(), templates=(), scopes=(), sources=(), nodes=(), release=values)
    return Step(encode_program(program), None, None, 0, 0)


def _cut(program: Program, end: int, closes: bool) -> Program:
    """Return the program up to op ``end``. Where it is to resume there, it keeps what the rest needs."""
    made = _made(program, end)
    needed = {*program.keep}
    if not closes:
        needed |= {*program.fetch, *_read(program.nodes[end:])}
    kept = [value for value in made if value in needed]
    release = program.release if closes else ()
    return replace(program, nodes=program.nodes[:end], keep=kept, fetch=(), release=release)


def _made(program: Program, end: int) -> list[int]:
    """Values that came with the program, or were made before op ``end``."""
    made = {source.value: None for source in program.sources if not source.held}
    for node in program.nodes[:end]:
        made |= {value: None for value in node.outputs if value is not None and value not in node.inputs}
    return list(made)


def _read(nodes: Sequence[NodeRecord]) -> set[int]:
    return {value for node in nodes for value in node.inputs if value is not None}
