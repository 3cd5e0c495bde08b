"""Nothing about a job leaves the pool before the database has it.

The pool works ahead of the disk: it may start a cell whose acceptance is not committed yet. But what it says
waits for the commit of all that led to it. So a client finds in the database what the pool sent it, however
the pool ends. What no client received never happened: workers die with their pool.

While one commit is under way, what else is to be said gathers for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future

import sqlalchemy as sa
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from djinn_lab.pool.database.store import Store

SOON_S = 0.005
"""How long updates that no client waits for may gather; most cells' results come first, and commit them
too."""
SAY_NOTHING_OF_JOBS = ("/v1/alive", "/metrics", "/v1/blobs", "/v1/results", "/v1/link")

Committed = asyncio.Future[None]


class Durability:
    """Commit what is about to be sent to clients. For the event loop's thread alone. ``collect`` queues the
    rows of what has changed."""

    def __init__(self, store: Store, collect: Callable[[], None]) -> None:
        self._store = store
        self._collect = collect
        self._next: Committed | None = None
        self._under_way: Committed | None = None
        self._timer: asyncio.Handle | None = None
        self._urgent = False
        self._settled = 0

    def commit(self, urgent: bool = True) -> Committed:
        """Done once all that is known now is committed; SQLAlchemyError when it cannot be. Not ``urgent``:
        within SOON_S."""
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            self._urgent = False
        if self._timer is None or (urgent and not self._urgent):
            self._urgent = urgent
            if self._under_way is None:
                self._set_timer(loop)
        return self._next

    def delayed(self) -> str:
        """Return why nothing can be committed now; empty where it can."""
        full = self._store.full
        return f"the pool's database has no space, and all cells wait for it ({full})" if full else ""

    async def settle(self) -> None:
        """Wait until all that is known now is committed, the journal, too. Raises SQLAlchemyError when it
        cannot be."""
        self._collect()
        if self._store.queued == self._settled:
            return
        queued = self._store.queued
        await asyncio.wrap_future(self._store.flush(everything=True))
        self._settled = max(queued, self._settled)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_soon(self._write) if self._urgent else loop.call_later(SOON_S, self._write)

    def _write(self) -> None:
        self._timer = None
        self._under_way, self._next = self._next, None
        self._collect()
        future = self._store.flush()
        if future.done():
            self._written(future)
            return
        loop = asyncio.get_running_loop()

        def wake_loop(future: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._written, future)

        future.add_done_callback(wake_loop)

    def _written(self, future: Future[None]) -> None:
        done, self._under_way = self._under_way, None
        assert done is not None
        error = future.exception()
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
            done.exception()  # there may be no waiter
        if self._next is not None:
            self._set_timer(asyncio.get_running_loop())


class CommittedAnswers:
    """ASGI middleware: the API's answers wait, too."""

    def __init__(self, app: ASGIApp, durability: Durability) -> None:
        self._app = app
        self._durability = durability

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(SAY_NOTHING_OF_JOBS):
            await self._app(scope, receive, send)
            return
        lost = False

        async def send_committed(message: Message) -> None:
            nonlocal lost
            if message["type"] == "http.response.start":
                try:
                    await self._durability.settle()
                except sa.exc.SQLAlchemyError:
                    lost = True
                    await _say_lost(send)
            if not lost:
                await send(message)

        await self._app(scope, receive, send_committed)


async def _say_lost(send: Send) -> None:
    body = b'{"detail":"The pool lost its database and stops. It does not know whether this was done."}'
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})
