"""Host memory that an accelerator reaches by itself: whatever is taken and returned, in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import standin
import torch
from hypothesis import given
from hypothesis import strategies as st
from isolated import on_standin

from djinn_lab.protocol.host_rows import FILE_BYTES
from djinn_lab.worker.host_account import HostAccount
from djinn_lab.worker.host_arena import SLAB_BYTES_MIN, HostArena, rounded
from djinn_lab.worker.pieces import PieceStore
from djinn_lab.worker.tiers import Tiers

MIB = 2**20
CAPACITY = 5 * SLAB_BYTES_MIN - 3 * MIB
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("take"), st.integers(0, 1), st.integers(1, 17 * MIB)),
        st.tuples(st.just("give back"), st.integers(0, 1), st.integers(0, 20)),
        st.tuples(st.just("pin"), st.integers(0, 1), st.integers(1, 40 * MIB)),
        st.tuples(st.just("release"), st.integers(0, 1), st.integers(0, 40 * MIB)),
    ),
    max_size=30,
)


class Worker:
    """One of two that count together."""

    def __init__(self, folder: Path, number: int) -> None:
        account = HostAccount.open(str(folder / "account"), number, CAPACITY)
        device = torch.device("standin:0")
        self.arena = HostArena(
            CAPACITY, folder, f"standin-{number}:0", registered_with=device, account=account
        )
        self.tiers = Tiers(PieceStore(self.arena))
        self.taken: list[tuple[int, int]] = []

    def act(self, name: str, number: int) -> None:
        if name == "take":
            offset = self.arena.take(number)
            if offset is not None:
                self.taken.append((offset, number))
                assert standin.is_pinned(self.arena.view(offset, number).data_ptr())
        elif name == "give back" and self.taken:
            self.arena.give_back(*self.taken.pop(number % len(self.taken)))
        elif name == "pin":
            self.tiers.pin_for(number)
        elif name == "release":
            self.tiers.release_host(number)

    def look(self) -> None:
        """Nothing that is taken overlaps, and every byte is counted once."""
        ends = 0
        for offset, nbytes in sorted(self.taken):
            assert offset >= ends
            ends = offset + nbytes
        assert ends <= CAPACITY
        assert self.arena.used_bytes == sum(rounded(nbytes) for _, nbytes in self.taken)
        assert self.arena.spare_bytes >= 0
        assert not self.arena.is_moving


@on_standin()
def test_slabs_are_counted_and_shared() -> None:
    given(ACTS)(_act)()


def _act(acts: list[tuple[str, int, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "account").write_bytes(bytes(FILE_BYTES))
        workers = [Worker(folder, number) for number in range(2)]
        for what, number, size in acts:
            workers[number].act(what, size)
            for worker in workers:
                worker.look()
            used = sum(worker.arena.used_bytes + worker.arena.spare_bytes for worker in workers)
            assert used == workers[0].arena.account.used_bytes <= CAPACITY
        for worker in workers:
            for offset, nbytes in worker.taken:
                worker.arena.give_back(offset, nbytes)
            worker.tiers.release_idle_host()
        assert workers[0].arena.account.used_bytes == 0
