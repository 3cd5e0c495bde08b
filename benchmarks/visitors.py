"""Visitors of a dashboard without a browser, in a process of their own, so that their work is not measured as
the server's delay.

Each gets the page and its document, says that it is loaded, and reads every change, as a browser does. It
draws nothing: a machine with two cores cannot draw fifty pages beside the server that is measured."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Protocol as Interface

import httpx
from bokeh.document import Document
from bokeh.document.events import MessageSentEvent
from bokeh.events import DocumentReady
from bokeh.protocol import Protocol
from bokeh.protocol.message import Message
from websockets.asyncio.client import ClientConnection, connect

ASKED_TIMEOUT_S = 300.0
OPENING_MAX = 2
"""Visitors that open the page at once."""
FRAMES = 3
"""Of a message without buffers: header, metadata, content."""
LOOK_EVERY_S = 0.02


class Visitors:
    """Open pages, and note when each of them got a text. ``url``: of the dashboard."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opening = asyncio.Semaphore(OPENING_MAX)
        self._sockets: list[ClientConnection] = []
        self._readers: list[asyncio.Task[None]] = []
        self._text = ""
        self._seen_s: dict[int, float] = {}
        self.bytes = 0

    async def open(self, queries: list[str]) -> list[float]:
        """Open a page for each query. Returns for each the seconds until its document had come."""
        async with httpx.AsyncClient(trust_env=False, timeout=ASKED_TIMEOUT_S) as http:
            return await asyncio.gather(*(self._open(http, query) for query in queries))

    async def _open(self, http: httpx.AsyncClient, query: str) -> float:
        async with self._opening:
            began_s = perf_counter()
            page = (await http.get(f"{self._url}?{query}")).raise_for_status().text
            found = re.search(r'"token":"([^"]+)"', page)
            assert found is not None, "the page has no session"
            socket = await connect(
                f"{self._url.replace('http', 'ws', 1)}/ws?{query}",
                subprotocols=["bokeh", found[1]],  # type: ignore[list-item]
                max_size=None,
                proxy=None,
                open_timeout=ASKED_TIMEOUT_S,
                ping_timeout=None,
            )
            messages = Protocol()
            for _ in range(FRAMES):
                await socket.recv()
            await _send(socket, messages.create("PULL-DOC-REQ"))
            for _ in range(FRAMES):
                await socket.recv()
            opened_s = perf_counter() - began_s
            ready = MessageSentEvent(Document(), "bokeh_event", DocumentReady())
            await _send(socket, messages.create("PATCH-DOC", [ready]))
        number = len(self._sockets)
        self._sockets.append(socket)
        self._readers.append(asyncio.create_task(self._read(number, socket)))
        return opened_s

    async def _read(self, number: int, socket: ClientConnection) -> None:
        async for frame in socket:
            self.bytes += len(frame)
            if self._text and number not in self._seen_s and self._text in str(frame):
                self._seen_s[number] = perf_counter()

    def expect(self, text: str) -> None:
        """Begin to look for a text, in place of the last one."""
        self._text, self._seen_s = text, {}

    async def seen(self) -> list[float]:
        """Return when each page got the text, by this machine's monotonic clock; wait until all did."""
        async with asyncio.timeout(ASKED_TIMEOUT_S):
            while len(self._seen_s) < len(self._sockets):
                await asyncio.sleep(LOOK_EVERY_S)
        return list(self._seen_s.values())


async def _send(socket: ClientConnection, message: Message) -> None:
    for part in (message.header_json, message.metadata_json, message.content_json):
        await socket.send(part)


class Ask(Interface):
    """Send an order: ``open`` with queries, ``expect`` with a text, ``seen`` or ``bytes`` with nothing."""

    def __call__(self, what: str, about: object = None) -> list[float]: ...


@contextmanager
def visitors_of(url: str) -> Iterator[Ask]:
    """Run visitors in a process of their own. Yields a call that sends an order and returns the answer."""
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, url), name="visitors", daemon=True)
    process.start()

    def ask(what: str, about: object = None) -> list[float]:
        here.send((what, about))
        if not here.poll(ASKED_TIMEOUT_S):
            raise TimeoutError(f"the visitors did not {what} within {ASKED_TIMEOUT_S:.0f} s")
        found: list[float] = here.recv()
        return found

    try:
        yield ask
    finally:
        process.terminate()
        process.join()


def _serve(orders: Connection, url: str) -> None:
    asyncio.run(_answer(orders, Visitors(url)))


async def _answer(orders: Connection, visitors: Visitors) -> None:
    while True:
        what, about = await asyncio.to_thread(orders.recv)
        if what == "open":
            orders.send(await visitors.open(about))
        elif what == "expect":
            visitors.expect(about)
            orders.send([])
        elif what == "seen":
            orders.send(await visitors.seen())
        else:
            orders.send([float(visitors.bytes)])
