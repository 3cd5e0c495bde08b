"""Reports of copies that a host's workers made, each held until the session is on a second host, too."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

from djinn_lab.pool.launchers.ray_cluster.tasks import begin
from djinn_lab.protocol.worker import CopyDone, CopyFailed, FirstValuesCopied

HELD_S_MAX = 30.0
Report = CopyDone | CopyFailed | FirstValuesCopied

log = logging.getLogger(__name__)


class HeldCopies:
    """``secure``: has another host keep what a manifest names; raises OSError where that is not possible.
    ``lives``: waits until the host has answered, for ever where it is lost. ``report``: takes the reports of
    a device, those of one session in their order."""

    def __init__(
        self,
        secure: Callable[[bytes], Awaitable[None]],
        lives: Callable[[], Awaitable[None]],
        report: Callable[[str, Report], None],
    ) -> None:
        self._secure = secure
        self._lives = lives
        self._report = report
        self._held: dict[tuple[str, str], list[Report]] = {}
        """By device and session."""
        self._tasks: dict[tuple[str, str], asyncio.Task[None]] = {}

    def take(self, device: str, message: Report) -> None:
        """Report this once it may be."""
        key = device, message.session
        if key in self._held:
            self._held[key].append(message)
        elif _manifest_of(message) is None:
            self._report(device, message)
        else:
            self._held[key] = [message]
            self._tasks[key] = begin(self._report_all(key), f"copies of session {key[1]}")

    def release(self, device: str, sessions: frozenset[str] | None) -> None:
        """Report what is held at once, since workers of the device died: their files are there. None: of all
        sessions there."""
        for key in [
            key for key in self._held if key[0] == device and (sessions is None or key[1] in sessions)
        ]:
            self._tasks.pop(key).cancel()
            for message in self._held.pop(key):
                self._report(device, message)

    def clear(self) -> None:
        """Report nothing of it: the host is lost, and with it what a second host does not have yet."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()
        self._held.clear()

    def manifests(self) -> Iterator[bytes]:
        """List those that are held."""
        for messages in self._held.values():
            yield from (found for one in messages if (found := _manifest_of(one)) is not None)

    async def _report_all(self, key: tuple[str, str]) -> None:
        held = self._held[key]
        while held:
            manifest = _manifest_of(held[0])
            if manifest is not None:
                await self._secure_within(key[1], manifest)
            if len(held) == 1:
                del self._held[key], self._tasks[key]
            self._report(key[0], held.pop(0))

    async def _secure_within(self, session: str, manifest: bytes) -> None:
        try:
            async with asyncio.timeout(HELD_S_MAX):
                await self._secure(manifest)
        except (OSError, TimeoutError) as error:
            why = str(error) or f"it takes more than {HELD_S_MAX:.0f} s"
            await self._lives()  # the loss of this very host may be why: then the copy is lost, too
            log.warning("session %s is on one host only: %s", session, why)


def _manifest_of(message: Report) -> bytes | None:
    return message.manifest if isinstance(message, CopyDone) else None
