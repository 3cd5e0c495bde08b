"""The NUMA node of a device, as read from a machine's sysfs and as a worker reports it to its pool."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from worker_kit import WorkerUnderTest

from djinn_lab.worker.numa import cores_in, node_of_cores, node_of_pci

CARD = "0000:3b:00.0"


def machine(root: Path, **cores: str) -> Path:
    """Write the sysfs of a machine: its NUMA nodes, each with its list of cores."""
    for node, listed in cores.items():
        folder = root / "devices/system/node" / node
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(listed + "\n")
    return root


def card(root: Path, said: str) -> Path:
    folder = root / "bus/pci/devices" / CARD
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(said)
    return root


@pytest.mark.parametrize(("said", "node"), [("0\n", 0), ("3\n", 3), ("-1\n", None), ("?", None)])
def test_node_of_a_card_is_that_of_its_pci_slot(tmp_path: Path, said: str, node: int | None) -> None:
    sysfs = card(tmp_path, said)
    assert node_of_pci(CARD, sysfs) == node
    assert node_of_pci("0000:5e:00.0", sysfs) is None


def test_cores_of_one_node_lie_there_and_cores_of_several_nowhere(tmp_path: Path) -> None:
    two = machine(tmp_path, node0="0-3,8-11", node1="4-7,12-15", node2="")
    assert node_of_cores({0}, two) == 0
    assert node_of_cores({0, 3, 8, 11}, two) == 0
    assert node_of_cores({4, 5, 12}, two) == 1
    assert node_of_cores({3, 4}, two) is None
    assert node_of_cores({0, 16}, two) is None
    assert node_of_cores(set(), two) is None


def test_machine_without_valid_sysfs_has_no_numa_nodes(tmp_path: Path) -> None:
    assert node_of_cores({0}, tmp_path) is None
    assert node_of_cores({0}, machine(tmp_path, node0="all of them")) is None


@given(st.sets(st.integers(0, 300)))
def test_lists_of_cores_are_read_as_the_kernel_writes_them(cores: set[int]) -> None:
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and runs[-1][1] == core - 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    text = ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    assert cores_in(text + "\n") == cores


@pytest.mark.processes
def test_a_worker_says_where_it_is(start: Callable[[], WorkerUnderTest]) -> None:
    """The worker's node is the one that ``lscpu`` shows for this machine."""
    listed = subprocess.run(["lscpu", "--parse=CPU,NODE"], capture_output=True, text=True, check=True).stdout
    rows = [line.split(",") for line in listed.splitlines() if not line.startswith("#")]
    nodes = {node for core, node in rows if int(core) in os.sched_getaffinity(0)}
    expected = int(nodes.pop()) if len(nodes) == 1 and nodes != {""} else None
    assert start().ready.numa_node == expected
