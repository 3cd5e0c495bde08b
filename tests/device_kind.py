"""Which devices the pools of the tests have: CPUs, or by ``TEST_DEVICES=standin`` the tests' own accelerator,
which behaves as a GPU does (``make sweep-live``)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

KIND = os.environ.get("TEST_DEVICES", "cpu")
"""The kind of the devices, before the colon of their names."""

OUT_OF_RANGE: type[Exception] = IndexError if KIND == "cpu" else torch.AcceleratorError
"""What an index beyond a tensor's size raises: an error of the op, or a fault of the device."""

STANDIN_FOLDER = str(Path(__file__).parent / "standin")
"""Where an interpreter finds the stand-in, and the pool its entry points."""
MIB = 2**20


def only_cpus(reason: str) -> pytest.MarkDecorator:
    """Skip a test where the pools have other devices than CPUs. ``reason``: what a CPU alone does."""
    return pytest.mark.skipif(KIND != "cpu", reason=f"CPUs only: {reason}")


def variables(
    directory: Path, devices: str, memory_bytes: int, settings: Mapping[str, Any]
) -> dict[str, str]:
    """Return the environment in which a pool has these devices; none for CPUs.

    ``settings``: of :func:`standin.configure`. A card has room for what the pool may use of it and for the
    contexts and copies of five processes: each user has one, which the pool counts at 192 MiB.
    """
    kind, _, count = devices.partition(":")
    if kind != "standin":
        return {}
    room = {"devices": int(count or 1), "memory_bytes": memory_bytes + 1024 * MIB, "context_bytes": MIB}
    files = {"card": str(directory / "card"), "log": str(directory / "unordered")}
    path = os.pathsep.join(filter(None, (STANDIN_FOLDER, os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, "TORCH_STANDIN": json.dumps({**room, **settings, **files})}


def unordered(directory: Path) -> list[str]:
    """Return the accesses to memory of stand-ins below a pool's directory that no event or wait ordered."""
    log = directory / "unordered"
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if " fault: " not in line]
