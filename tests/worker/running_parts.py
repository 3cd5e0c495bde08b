"""Run a program in parts over devices in this process, as a pool does over workers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from worker_kit import Device

from djinn_lab.protocol.worker import Handed
from djinn_lab.srg.branches import COPIED
from djinn_lab.srg.parting import Part, part_program
from djinn_lab.srg.program import Program, Source, encode_program
from djinn_lab.srg.validation import validate_program
from djinn_lab.worker.interpreter import Outcome


def run_part(
    device: Device, session: str, part: Part, imports: Sequence[Handed] = ()
) -> tuple[Outcome, list[Handed]]:
    validate_program(msgspec.structs.replace(part.program, sources=_as_if_digests(part.program)))
    blobs = {
        source.blob: str(device.directory / source.blob)
        for source in part.program.sources
        if source.blob is not None
    }
    outcome = device.interpreter.run(
        session,
        encode_program(part.program),
        blobs,
        lambda: None,
        lambda done, total: None,
        imports=imports,
        exports=part.exports,
    )
    return outcome, list(outcome.exported)


def _as_if_digests(program: Program) -> list[Source]:
    """Return the sources with a digest for each blob: tests use shorter names than a pool accepts."""
    return [
        msgspec.structs.replace(source, blob=None if source.blob is None else "0" * 64)
        for source in program.sources
    ]


def run_in_parts(
    home: Device,
    others: Sequence[Device],
    program: Program,
    places: Sequence[int],
    groups: Sequence[Sequence[int]],
    choose: random.Random,
) -> Outcome | None:
    """Run the groups on random devices, in any order in which they can run. None if a part failed: the
    session is as before."""
    parts = part_program(program, places, groups)
    files: list[Handed] = []
    failed, executed = False, set[int]()
    rng_state: bytes | None = None
    if parts.prelude is not None:
        outcome, made = run_part(home, "ann", parts.prelude)
        files += made
        failed, rng_state = outcome.failure is not None, outcome.rng_state
        executed |= set(parts.prelude.nodes)
    handed: list[Handed] = []
    by_group: dict[int, list[Handed]] = {}
    left = set(range(len(parts.groups)))
    while left and not failed:
        number = choose.choice(
            sorted(number for number in left if left.isdisjoint(parts.groups[number].after))
        )
        group = parts.groups[number]
        left.remove(number)
        device = choose.choice([home, *others])
        made_before = [one for source in group.after for one in by_group[source]]
        wanted, imports = set(group.imports), list[Handed]()
        for one in (*made_before, *files):
            if wanted & set(one.values):
                wanted -= set(one.values)
                imports.append(one)
        outcome, made = run_part(device, f"part {number}", group, imports)
        device.interpreter.close(f"part {number}")
        handed += made
        by_group[number] = made
        failed = outcome.failure is not None
        executed |= set(group.nodes)
    if not failed:
        imports = [one for one in handed if set(one.values) & set(parts.epilogue.imports)]
        outcome, _ = run_part(home, "ann", parts.epilogue, imports)
        failed = outcome.failure is not None
        executed |= set(parts.epilogue.nodes)
    if failed:
        undo = Program((), (), (), (), (), release=parts.made)
        back = [one for one in files if set(one.values) & set(parts.undo)]
        outcome, _ = run_part(home, "ann", Part(undo, ()), back)
        assert outcome.failure is None, outcome.failure
    else:
        home.run("ann", Program((), (), (), (), (), release=parts.release))
    for one in (*files, *handed):
        if one.blob is not None:
            (home.results / one.blob).unlink()
    if failed:
        return None
    needed = {index for index, place in enumerate(places) if place != COPIED}
    assert needed <= executed
    outcome.rng_state = rng_state
    return outcome
