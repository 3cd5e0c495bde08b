"""The parts that need no tensors: free ranges, the memory limit of the machine, the account."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.errors import DeviceMemoryError
from djinn_lab.protocol.host_limit import USABLE_PART, largest_host_bytes
from djinn_lab.worker.host_arena import Extents, rounded
from djinn_lab.worker.memory_account import MemoryAccount

GIB = 2**30


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 700)), max_size=120))
def test_ranges_never_overlap_and_join_again(steps: list[tuple[bool, int]]) -> None:
    capacity = 4096
    extents = Extents(capacity)
    taken: list[tuple[int, int]] = []
    for takes, number in steps:
        if takes or not taken:
            offset = extents.take(number)
            if offset is None:
                assert all(size < rounded(number) for _, size in extents.free_ranges)
                continue
            assert 0 <= offset <= capacity - rounded(number)
            assert all(
                offset + rounded(number) <= start or start + rounded(size) <= offset for start, size in taken
            )
            taken.append((offset, number))
        else:
            extents.give_back(*taken.pop(number % len(taken)))
        assert extents.used_bytes == sum(rounded(size) for _, size in taken)
        assert sum(size for _, size in extents.free_ranges) == capacity - extents.used_bytes
    for offset, size in taken:
        extents.give_back(offset, size)
    assert extents.free_ranges == [(0, capacity)]


def machine(root: Path, available_gib: int, groups: str, files: dict[str, str]) -> int:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available_gib * 2**20} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return largest_host_bytes(root)


@pytest.mark.parametrize(
    ("groups", "files", "expected_gib"),
    [
        ("0::/\n", {}, 16),
        ("0::/a/b\n", {"a/memory.max": str(8 * GIB), "a/memory.current": str(2 * GIB)}, 6),
        ("0::/a/b\n", {"a/memory.max": str(8 * GIB), "a/b/memory.max": "max"}, 8),
        ("0::/a\n", {"a/memory.max": str(GIB), "a/memory.current": str(2 * GIB)}, 0),
        ("9:cpu:/x\n4:memory:/a\n", {"memory/a/memory.limit_in_bytes": str(4 * GIB)}, 4),
        ("4:memory:/a\n", {"memory/a/memory.limit_in_bytes": str(2**63 - 4096)}, 16),
    ],
    ids=["none", "v2 of a parent", "v2 own without limit", "over its limit", "v1", "v1 without limit"],
)
def test_largest_host_tier_respects_cgroup_limits(
    tmp_path: Path, groups: str, files: dict[str, str], expected_gib: int
) -> None:
    assert machine(tmp_path, 16, groups, files) == int(expected_gib * GIB * USABLE_PART)


def test_largest_host_tier_of_this_machine_is_plausible() -> None:
    assert 0 < largest_host_bytes() < 2**50


@pytest.fixture
def many_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
def test_two_threads_never_take_more_than_there_is() -> None:
    account = MemoryAccount(100)
    highest: list[int] = []
    over = threading.Event()

    def other() -> None:
        chance = random.Random(1)
        for _ in range(20_000):
            nbytes = chance.randrange(1, 80)
            if account.reserve_other(nbytes):
                account.release_other(nbytes)
        over.set()

    thread = threading.Thread(target=other)
    thread.start()
    chance = random.Random(2)
    held = 0
    while not over.is_set():
        nbytes = chance.randrange(1, 60)
        try:
            account.reserve(nbytes, "a test")
        except DeviceMemoryError:
            account.release(held)
            held = 0
        else:
            held += nbytes
            account.mark_peak()
            highest.append(held)
    thread.join()
    account.release(held)
    assert account.used_bytes == 0
    assert max(highest) <= 100
    assert account.peak_bytes <= 100


def test_what_other_processes_have_of_a_device_is_said_where_memory_is_short() -> None:
    account = MemoryAccount(GIB)
    assert account.lease(GIB // 4) == GIB // 4
    with pytest.raises(DeviceMemoryError, match=r"768\.0 MiB of them by processes of other users"):
        account.reserve(GIB // 2, "aten.ones.default")
    assert account.lease(GIB) == GIB
    account.reserve(GIB // 2, "aten.ones.default")
