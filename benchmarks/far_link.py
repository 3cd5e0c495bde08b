"""A TCP proxy on loopback that is as slow as a link between hosts, and breaks when it is told to.

``python -m benchmarks.far_link HOST PORT DELAY_S BYTES_PER_S`` runs one in a process of its own, so that it
takes no time of its client's interpreter: it prints its port, and serves until its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, Self
from urllib.parse import urlsplit, urlunsplit

READ_BYTES = 16 * 2**10
BUFFER_BYTES = 2**18
"""On the way in one direction, beside what the delay holds: a router's queue."""
HOST = "127.0.0.1"


class Lane:
    """One direction, which all connections share. ``delay_s``: of each byte. ``rate``: bytes per second, 0
    for no limit."""

    def __init__(self, delay_s: float, rate: float) -> None:
        self.delay_s, self.rate = delay_s, rate
        self.nbytes = 0
        self.passed: Callable[[], None] = lambda: None
        """Called when bytes were taken from a source."""
        self._free_at_s = 0.0

    @property
    def held_max(self) -> float:
        """Return how many bytes of a connection are on the way at most."""
        return BUFFER_BYTES + self.rate * self.delay_s if self.rate else float("inf")

    def arrives_at_s(self, nbytes: int, now_s: float) -> float:
        """Return when bytes that are sent now will have arrived."""
        self.nbytes += nbytes
        if self.rate:
            self._free_at_s = max(self._free_at_s, now_s) + nbytes / self.rate
            return self._free_at_s + self.delay_s
        return now_s + self.delay_s


class _Pipe:
    """One direction of one connection."""

    def __init__(self, lane: Lane, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        self._lane, self._source, self._sink = lane, source, sink
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Pass on until the source ends or the sink breaks."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._take())
            both.create_task(self._give())

    async def _take(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while self._held_bytes > self._lane.held_max:
                self._changed.clear()
                await self._changed.wait()
            data = await self._source.read(READ_BYTES)
            self._held.append((self._lane.arrives_at_s(len(data), loop.time()), data))
            self._lane.passed()
            self._held_bytes += len(data)
            self._changed.set()
            if not data:
                return

    async def _give(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            while not self._held:
                self._changed.clear()
                await self._changed.wait()
            at_s, data = self._held.popleft()
            await asyncio.sleep(at_s - loop.time())
            if not data:
                self._sink.write_eof() if self._sink.can_write_eof() else self._sink.close()
                return
            self._sink.write(data)
            await self._sink.drain()
            self._held_bytes -= len(data)
            self._changed.set()


class FarLink:
    """Passes bytes on between clients and the server at ``url``, inside a ``with`` statement, in a thread of
    its own. ``delay_s``: each way. ``rate``: bytes per second each way, 0 for no limit. ``cut_after_s``: so
    old a connection is cut."""

    def __init__(
        self, url: str, delay_s: float = 0.0, rate: float = 0.0, cut_after_s: float | None = None
    ) -> None:
        self._parts = urlsplit(url)
        self.lead_to(url)
        self.up, self.down = Lane(delay_s, rate), Lane(delay_s, rate)
        self.cut_after_s = cut_after_s
        self.up.passed, self.down.passed = partial(self._passed, self.up), partial(self._passed, self.down)
        self.turns = 0
        """So often has the client sent something after it had received something."""
        self._last: Lane | None = None
        self._cut_at: tuple[Lane, int] | None = None
        self.accepted = 0
        self.port = 0
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="far link", daemon=True)

    @property
    def url(self) -> str:
        """Return the address by which clients reach the server over this link."""
        return urlunsplit(self._parts._replace(netloc=f"{HOST}:{self.port}"))

    def __enter__(self) -> Self:
        self._thread.start()
        self._listener = self._do(asyncio.start_server(self._serve, HOST, 0))
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *failure: object) -> None:
        self.refuse()
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def lead_to(self, url: str) -> None:
        """Let new connections reach another server."""
        parts = urlsplit(url)
        self._server = (parts.hostname or HOST, parts.port or 443)

    def cut(self) -> None:
        """Break all connections, without a word to either end."""
        self._do(self._cut())

    def cut_after(self, lane: Lane, nbytes: int) -> None:
        """Break all connections once, when so many bytes more have gone over ``lane``."""
        self._cut_at = (lane, lane.nbytes + nbytes)

    def refuse(self) -> None:
        """Break all connections, and every new one until :meth:`allow`."""
        self._refuses = True
        self.cut()

    def allow(self) -> None:
        self._refuses = False

    def _passed(self, lane: Lane) -> None:
        self.turns += lane is self.up and self._last is self.down
        self._last = lane
        if self._cut_at is not None and self._cut_at[0].nbytes >= self._cut_at[1]:
            self._cut_at = None
            self._cut_now()

    def _do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _cut(self) -> None:
        self._cut_now()

    def _cut_now(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        """Both ends of all connections are gone: what passed on between them ends by itself."""
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self._refuses:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            await asyncio.sleep(self.up.delay_s + self.down.delay_s)  # TCP's own handshake
            async with asyncio.timeout(self.cut_after_s):
                await self._connect(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ExceptionGroup):
            pass  # either end is gone, or the connection is as old as it may be
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_read, to_write = await asyncio.open_connection(*self._server)
        self._writers.add(to_write)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_Pipe(self.up, reader, to_write).run())
                both.create_task(_Pipe(self.down, to_read, writer).run())
        finally:
            self._writers.discard(to_write)
            to_write.transport.abort()


@contextlib.contextmanager
def far_process(url: str, delay_s: float, rate: float) -> Iterator[str]:
    """Run a link in a process of its own; the address by which clients reach the server over it."""
    parts = urlsplit(url)
    command = [sys.executable, "-m", "benchmarks.far_link", str(parts.hostname), str(parts.port)]
    command += [str(delay_s), str(rate)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        port = int(child.stdout.readline())
        yield urlunsplit(parts._replace(netloc=f"{HOST}:{port}"))
        child.stdin.close()


def main(host: str, port: str, delay_s: str, rate: str) -> None:
    with FarLink(f"http://{host}:{port}", float(delay_s), float(rate)) as link:
        print(link.port, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
