"""Connections that send odd frames to a real pool, beside a session that computes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from pool_kit import Wire
from real_pool import PoolUnderTest
from sweeps.api.calls import resident_mb
from sweeps.frames.mutating import Frame, random_frame
from websockets.exceptions import ConnectionClosed, InvalidStatus

from djinn_lab.client.websocket import WebSocket
from djinn_lab.errors import DjinnError
from djinn_lab.protocol import messages

FRAMES_PER_CONNECTION = 25
HELLO_FIRST = 0.9
EXAMPLES_MAX = 20
ANSWERED, REFUSED, CLOSED, SILENT, UNREADABLE = "answered", "refused", "closed", "silent", "unreadable"
PROBE = messages.QueryBlobs([])


@dataclass
class Found:
    """``outcomes``: of frames. ``cells``: that the other session ran meanwhile, ``wrong`` of them with
    another value."""

    outcomes: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, Any]] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)
    sessions_left: int = 0
    cells: int = 0
    wrong: int = 0


def record(pool: PoolUnderTest) -> list[bytes]:
    """Return the messages of a real session: cells of several segments, uploads, signals, releases."""
    sent: list[bytes] = []
    send = WebSocket.send

    def noting(self: WebSocket, data: bytes) -> None:
        sent.append(bytes(data))
        send(self, data)

    WebSocket.send = noting  # type: ignore[method-assign]
    try:
        with pool.session("recorded") as session:
            weights = torch.rand(300, 300)
            for _ in range(2):
                with session.capture():
                    kept = (weights @ weights).relu()
                    if float(kept.sum()) > 0:
                        kept = kept * 2
            del kept
            session.signal_phase("IO_WAIT", 5.0)
            with session.capture():
                weights.add_(1)
    finally:
        WebSocket.send = send  # type: ignore[method-assign]
    return [
        *sent,
        messages.encode(messages.CancelJob("0" * 32)),
        messages.encode(messages.FinishJob("0" * 32, "done")),
    ]


def attack(pool: PoolUnderTest, count: int, first: int = 0, threads: int = 2) -> Found:
    """Send ``count`` frames; seeds count from ``first``."""
    found, recorded, stop = Found(), record(pool), threading.Event()
    watcher = threading.Thread(target=_compute, args=(pool, stop, found))
    watcher.start()
    while found.cells == 0 and watcher.is_alive():
        time.sleep(0.05)
    tokens = [pool.rest.create_user(f"odd-{first}-{number}").token for number in range(threads)]
    found.resident.append(resident_mb(pool.info.pid))
    for part in range(4):
        workers = [
            threading.Thread(
                target=_send,
                args=(
                    pool,
                    token,
                    Random(f"{first} {part} {number}"),
                    count // (4 * threads),
                    recorded,
                    found,
                ),
            )
            for number, token in enumerate(tokens)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found.resident.append(resident_mb(pool.info.pid))
    stop.set()
    watcher.join()
    for one in pool.rest.sessions():  # some frames were a Hello
        if one.user.startswith("odd-"):
            pool.rest.close_session(one.session)
    found.sessions_left = len(pool.rest.sessions())
    return found


def _send(
    pool: PoolUnderTest, token: str, random: Random, count: int, recorded: Sequence[bytes], found: Found
) -> None:
    left = count
    while left > 0:
        session = None
        try:
            with Wire(pool.info, token) as wire:
                if random.random() < HELLO_FIRST:
                    welcome = wire.hello(host=random.choice((None, "another host")), process=1)
                    session = welcome.session if isinstance(welcome, messages.Welcome) else None
                for _ in range(FRAMES_PER_CONNECTION):
                    frame = random_frame(random, recorded)
                    outcome = _outcome(wire, frame)
                    left -= 1
                    found.outcomes[outcome] += 1
                    if outcome in (SILENT, UNREADABLE) and len(found.examples) < EXAMPLES_MAX:
                        found.examples.append({"outcome": outcome, "frame": repr(frame)[:1000]})
                    if outcome != ANSWERED:
                        break
        except (ConnectionClosed, InvalidStatus, OSError) as error:
            found.outcomes[type(error).__name__] += 1
        if session is not None:
            with suppress(DjinnError):  # a close was among the frames
                pool.rest.close_session(session)


def _outcome(wire: Wire, frame: Frame) -> str:
    """Send a frame, and a question after it. The pool answers that, refuses, or closes the connection."""
    try:
        wire.socket.send(frame)
        wire.send(PROBE)
        while True:
            answer = wire.receive()
            if isinstance(answer, messages.RequestRefused):
                return REFUSED
            if isinstance(answer, messages.BlobsMissing) and not answer.sketches:
                return ANSWERED
    except ConnectionClosed:
        return CLOSED
    except TimeoutError:
        return SILENT
    except (AssertionError, ValueError):
        return UNREADABLE


def _compute(pool: PoolUnderTest, stop: threading.Event, found: Found) -> None:
    """Run cells that keep a value, and compare it with torch's own."""
    with pool.session("bystander") as session:
        here = torch.arange(900.0).reshape(30, 30)
        with session.capture():
            there = here.clone()
        while not stop.is_set():
            here = torch.sin(here) * 3
            with session.capture():
                there = torch.sin(there) * 3
            found.cells += 1
            found.wrong += not torch.equal(session.fetch(there), here)
            time.sleep(0.05)
