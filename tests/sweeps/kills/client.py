"""A client under load, in a process of its own: submit small cells and note every message of the pool.

The client speaks the protocol itself, so that no message escapes its notes, and continues with whichever pool
leads next.
"""

from __future__ import annotations

import json
import random
import sys
import time
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


def main(addresses: str, token: str, seed: str, log: str, stop: str) -> None:
    """Submit cells to the leading pool until the file ``stop`` is there."""
    chance = random.Random(int(seed))
    with Path(log).open("a", buffering=1) as notes:
        while not Path(stop).exists():
            try:
                with Client(Target(leader_url(addresses), token)) as client:  # type: ignore[arg-type]
                    while not Path(stop).exists():
                        run_some(client, chance, notes)
            except (ConnectionClosed, InvalidHandshake, OSError, EOFError, PoolNotFound, AssertionError):
                time.sleep(RETRY_S)  # it was killed, or takes over (a denied handshake asserts)


def run_some(client: Client, chance: random.Random, notes: IO[str]) -> None:
    """Run one to four cells at once, of one to three segments each; cancel one in twelve."""
    segments: dict[str, int] = {}
    for _ in range(chance.choice((1, 1, 2, 4))):
        count = chance.choice((1, 1, 2, 3))
        job = client.submit(program(chance), final=count == 1)
        segments[job] = count
        if chance.random() < 1 / 12:
            client.send(CancelJob(job))
    while segments:
        message = client.receive()
        if isinstance(message, JobUpdate):
            note(notes, job=message.job, state=message.state)
        elif isinstance(message, SegmentResult):
            more = segments[message.job] - message.segment - 1
            final = more == 0 or message.outcome != "done"
            note(notes, job=message.job, segment=message.segment, outcome=message.outcome, final=final)
            if final:
                del segments[message.job]
            else:
                client.submit(program(chance), message.job, message.segment + 1, final=more == 1)


def program(chance: random.Random) -> Any:
    return act(f"sleep {chance.choice((0, 0.001, 0.01, 0.03))}", "")


def note(notes: IO[str], **what: object) -> None:
    notes.write(json.dumps(what) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
