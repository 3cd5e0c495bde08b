"""A copy of a session is reported once a second host has it, or cannot have it, or its worker died."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from djinn_lab.pool.launchers.ray_cluster.held_copies import HeldCopies, Report
from djinn_lab.protocol.worker import CopyDone, CopyFailed, WorkerMemory

EMPTY = WorkerMemory(0, 0, {})
DEVICE = "cpu:0"


def copied(transfer: int, session: str = "a", manifest: bytes | None = b"where it lies") -> CopyDone:
    return CopyDone(transfer, session, "store", EMPTY, manifest=manifest)


@dataclass
class OtherHost:
    """Has a copy when the test says so."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    refuses: bool = False
    reported: list[int] = field(default_factory=list)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """Of the first host."""

    async def lives(self) -> None:
        await self.answers.wait()

    async def secure(self, manifest: bytes) -> None:
        await self.gate.wait()
        if self.refuses:
            raise OSError("the disk is full")

    def report(self, device: str, message: Report) -> None:
        assert device == DEVICE
        self.reported.append(message.transfer)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_a_session_s_reports_wait_in_their_order_and_no_other_s() -> None:
    async def story() -> None:
        other = OtherHost()
        held = HeldCopies(other.secure, other.lives, other.report)
        held.take(DEVICE, copied(1))
        held.take(DEVICE, copied(2, manifest=None))
        held.take(DEVICE, CopyFailed(3, "a", "restore", "no room", EMPTY))
        held.take(DEVICE, copied(4, "b", None))
        await settled()
        assert other.reported == [4]
        assert list(held.manifests()) == [b"where it lies"]
        other.gate.set()
        await settled()
        assert other.reported == [4, 1, 2, 3]
        held.take(DEVICE, copied(5, manifest=None))
        assert other.reported[-1] == 5
        assert not list(held.manifests())

    asyncio.run(story())


def test_a_copy_that_no_other_host_takes_is_reported_and_said(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        other = OtherHost(refuses=True)
        held = HeldCopies(other.secure, other.lives, other.report)
        held.take(DEVICE, copied(1))
        other.gate.set()
        other.answers.set()
        await settled()
        assert other.reported == [1]

    asyncio.run(story())
    assert "session a is on one host only: the disk is full" in caplog.text


def test_a_copy_is_not_reported_where_its_own_host_may_be_lost() -> None:
    """The loss is known a moment after the first request to that host fails; the log that makes the session
    again must not be cut for a copy that is lost, too."""

    async def story() -> None:
        other = OtherHost(refuses=True)
        held = HeldCopies(other.secure, other.lives, other.report)
        held.take(DEVICE, copied(1))
        held.take(DEVICE, copied(2, "b"))
        other.gate.set()
        await settled()
        assert other.reported == []
        held.clear()
        other.answers.set()
        await settled()
        assert other.reported == []

    asyncio.run(story())


def test_what_a_dead_worker_copied_is_reported_before_its_death_and_a_lost_host_s_never() -> None:
    async def story() -> None:
        other = OtherHost()
        held = HeldCopies(other.secure, other.lives, other.report)
        held.take(DEVICE, copied(1, "a"))
        held.take(DEVICE, copied(2, "b"))
        held.release(DEVICE, frozenset("a"))
        assert other.reported == [1]
        held.clear()
        other.gate.set()
        await settled()
        assert other.reported == [1]

    asyncio.run(story())
