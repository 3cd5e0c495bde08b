"""A client under load, in a process of its own: submit small cells and note every message of the pool.

The client speaks the protocol itself, so that no message escapes its notes. It continues its session with
whichever pool leads next, and sends again what was not answered."""

from __future__ import annotations

import json
import os
import random
import sys
import time
import uuid
from pathlib import Path
from typing import IO, Any, NamedTuple

from pool_kit import Client, act
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from djinn_lab.client.addresses import leader_url
from djinn_lab.errors import PoolNotFound
from djinn_lab.protocol.messages import CancelJob, JobUpdate, SegmentResult

RETRY_S = 0.05


class Target(NamedTuple):
    url: str
    token: str


class Cell(NamedTuple):
    """A cell under way: its present segment, of ``count`` in all, and that segment's program."""

    segment: int
    count: int
    program: Any


def main(addresses: str, token: str, seed: str, log: str, stop: str) -> None:
    """Submit cells to the leading pool until the file ``stop`` is there."""
    chance = random.Random(int(seed))
    cells: dict[str, Cell] = {}
    session: str | None = None
    with Path(log).open("a", buffering=1) as notes:
        while cells or not Path(stop).exists():
            try:
                target = Target(leader_url(addresses), token)
                with Client(target, session=session, process=os.getpid()) as client:  # type: ignore[arg-type]
                    if session is not None and not client.welcome.resumed:
                        note(notes, lost=session)
                        cells.clear()
                    session = client.session
                    for job, cell in cells.items():
                        send(client, job, cell, again=True)
                    while cells or not Path(stop).exists():
                        run_some(client, chance, notes, cells)
            except (ConnectionClosed, InvalidHandshake, OSError, EOFError, PoolNotFound, AssertionError):
                time.sleep(RETRY_S)  # it was killed, or takes over (a denied handshake asserts)


def run_some(client: Client, chance: random.Random, notes: IO[str], cells: dict[str, Cell]) -> None:
    """Run one to four cells at once, of one to three segments each; cancel one in twelve. ``cells``: those
    under way, which come first."""
    for _ in range(0 if cells else chance.choice((1, 1, 2, 4))):
        job, cell = uuid.uuid4().hex, Cell(0, chance.choice((1, 1, 2, 3)), program(chance))
        cells[job] = cell
        send(client, job, cell)
        if chance.random() < 1 / 12:
            client.send(CancelJob(job))
    while cells:
        message = client.receive()
        if isinstance(message, JobUpdate):
            note(notes, job=message.job, state=message.state)
        elif isinstance(message, SegmentResult) and message.job in cells:
            cell = cells[message.job]
            final = message.segment == cell.count - 1 or message.outcome != "done"
            note(notes, job=message.job, segment=message.segment, outcome=message.outcome, final=final)
            if final:
                del cells[message.job]
            else:
                cells[message.job] = Cell(message.segment + 1, cell.count, program(chance))
                send(client, message.job, cells[message.job])


def send(client: Client, job: str, cell: Cell, again: bool = False) -> None:
    client.submit(cell.program, job, cell.segment, final=cell.segment == cell.count - 1, again=again)


def program(chance: random.Random) -> Any:
    return act(f"sleep {chance.choice((0, 0.001, 0.01, 0.03))}", "")


def note(notes: IO[str], **what: object) -> None:
    notes.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
