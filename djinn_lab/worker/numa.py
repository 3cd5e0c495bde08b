"""On which NUMA node does a device lie? As Linux reports it in sysfs; None where it does not."""

from __future__ import annotations

import os
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

import torch

SYSFS = Path("/sys")


def node_of(device: torch.device) -> int | None:
    """Return the NUMA node of a device: of a CUDA device's PCI slot, or of the cores that a CPU device's
    process may run on."""
    if device.type == "cpu":
        if sys.platform != "linux":
            return None
        return node_of_cores(os.sched_getaffinity(0))
    known: Any = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    if not hasattr(known, "pci_domain_id"):  # not in every build of torch
        return None
    return node_of_pci(f"{known.pci_domain_id:04x}:{known.pci_bus_id:02x}:{known.pci_device_id:02x}.0")


def node_of_pci(address: str, sysfs: Path = SYSFS) -> int | None:
    """``address``: such as ``0000:3b:00.0``. The kernel says -1 where the firmware gives no node."""
    try:
        node = int((sysfs / "bus/pci/devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def node_of_cores(cores: Set[int], sysfs: Path = SYSFS) -> int | None:
    """The one that all these cores belong to; None where they are of several."""
    for listed in sorted((sysfs / "devices/system/node").glob("node[0-9]*/cpulist")):
        try:
            if cores and cores <= cores_in(listed.read_text()):
                return int(listed.parent.name.removeprefix("node"))
        except (OSError, ValueError):
            return None
    return None


def cores_in(text: str) -> set[int]:
    """``0-3,8,10-11``, as the kernel writes them; a node may have none. Raises ValueError for anything
    else."""
    cores: set[int] = set()
    for part in text.strip().split(",") if text.strip() else ():
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores
