"""A whole copy stays on the host until the pool's database has the next one: a next pool reads it there."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from programs import Script
from worker_kit import MIB, Device, done, failed, fetch, keep

from djinn_lab.protocol import worker as messages
from djinn_lab.protocol.worker import CopyDone
from djinn_lab.worker.values import COPIES_KEPT_MAX

Make = Callable[..., Device]
COUNT = MIB // 4
"""Elements of a value of one MiB."""


class Kept:
    """A session with a value of one MiB that changes."""

    def __init__(self, device: Device, name: str) -> None:
        self.device, self.name, self.script = device, name, Script()
        self.numbers = torch.randn(COUNT)
        (self.value,) = keep(device, name, self.script, self.numbers)

    def copy(self) -> tuple[CopyDone, torch.Tensor]:
        return self.device.store_whole(self.name), self.numbers

    def change(self) -> None:
        self.script.write("aten.add_.Tensor", self.value, scalars=(1,))
        self.device.run(self.name, self.script.program())
        self.numbers = self.numbers + 1

    def change_and_copy(self, committed: bool = True) -> None:
        self.change()
        self.commit(self.copy()[0], committed)

    def commit(self, copied: CopyDone, committed: bool = True) -> None:
        if committed:
            self.device.send(messages.CopyKept(copied.transfer, self.name))


def restored(make_device: Make, session: Kept, manifest: bytes | None) -> torch.Tensor:
    """Read a manifest on another device."""
    other = make_device()
    other.restore(session.name, manifest)
    return fetch(other, session.name, session.script, session.value)[0]


def test_a_copy_stays_until_the_next_one_is_committed(make_device: Make) -> None:
    """Bob's copies need space all the while."""
    device = make_device(host_bytes=5 * MIB)
    ann, bob = Kept(device, "ann"), Kept(device, "bob")
    first, numbers = ann.copy()
    ann.change()
    second, changed = ann.copy()
    for _ in range(6):
        bob.change_and_copy()
    assert torch.equal(restored(make_device, ann, first.manifest), numbers)
    assert torch.equal(restored(make_device, ann, second.manifest), changed)
    ann.commit(second)
    for _ in range(6):
        bob.change_and_copy()
    assert torch.equal(restored(make_device, ann, second.manifest), changed)
    other = make_device()
    answer = other.ask(messages.Restore(other.number(), "ann", manifest=first.manifest))
    assert failed(answer).mismatch


def test_a_late_commit_of_an_earlier_copy_takes_nothing_from_later_ones(make_device: Make) -> None:
    device = make_device(host_bytes=6 * MIB)
    ann, bob = Kept(device, "ann"), Kept(device, "bob")
    copies = []
    for _ in range(3):
        copies.append(ann.copy())
        ann.change()
    ann.commit(copies[1][0])
    for _ in range(6):
        bob.change_and_copy()
    for copied, numbers in copies[1:]:
        assert torch.equal(restored(make_device, ann, copied.manifest), numbers)


def test_of_a_database_that_stands_still_its_copy_stays_and_the_last_ones(make_device: Make) -> None:
    device = make_device(host_bytes=(COPIES_KEPT_MAX + 3) * MIB)
    ann, bob = Kept(device, "ann"), Kept(device, "bob")
    copies = []
    for _ in range(3 * COPIES_KEPT_MAX):
        copies.append(ann.copy())
        ann.change()
    for _ in range(6):
        bob.change_and_copy()
    for copied, numbers in [copies[0], *copies[1 - COPIES_KEPT_MAX :]]:
        assert torch.equal(restored(make_device, ann, copied.manifest), numbers)


def test_uncommitted_copies_give_way_where_a_session_has_no_other_space(make_device: Make) -> None:
    device = make_device(host_bytes=3 * MIB)
    ann = Kept(device, "ann")
    for _ in range(5):
        ann.change_and_copy(committed=False)
    assert torch.equal(restored(make_device, ann, ann.copy()[0].manifest), ann.numbers)


@pytest.mark.parametrize("session", ["ann", "another"])
def test_a_commit_of_what_was_closed_is_nothing(make_device: Make, session: str) -> None:
    device = make_device()
    ann = Kept(device, "ann")
    copied, _ = ann.copy()
    device.interpreter.close("ann")
    device.send(messages.CopyKept(copied.transfer, session))
    assert "ann" not in device.interpreter.sessions
    assert session not in device.memory().session_bytes
    assert done(device.ask(messages.StoreState(device.number(), "bob"))).whole
