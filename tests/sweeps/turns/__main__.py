"""Lets more sessions than a device holds take turns on it (``make sweep-turns``), compares every value, and
measures the worker's process: its memory must stay as it was at first."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import psutil
import torch
from device_kind import KIND
from real_pool import PoolUnderTest
from sweeps.result_file import SweepResult

from djinn_lab.errors import DjinnError

MIB = 2**20
DEVICE_BYTES, HOST_BYTES, DISK_BYTES = 200 * MIB, 150 * MIB, 150 * MIB
SESSIONS, ELEMENTS = 12, 4_999_936  # 20 MB each: eight fit the device, all fit its three tiers
BLOCK_TURNS = 500


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="a folder for turns-<machine>-<date>.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = SweepResult("turns", 0)
    with tempfile.TemporaryDirectory(prefix="djinn-turns-") as directory:
        found = run(Path(directory), options.turns)
    result.write(options.out, **found)
    return 1 if found["wrong"] or found["failed"] else 0


def run(directory: Path, turns: int) -> dict[str, object]:
    blocks, failed, wrong = [], [], 0
    with (
        PoolUnderTest(
            directory,
            f"{KIND}:1",
            DEVICE_BYTES,
            host_bytes=HOST_BYTES,
            disk_bytes=DISK_BYTES,
            link_bytes_per_s=400_000_000,
        ) as pool,
        ExitStack() as open_sessions,
    ):
        sessions = [open_sessions.enter_context(pool.session()) for _ in range(SESSIONS)]
        values, had = [], [0] * SESSIONS
        for number, session in enumerate(sessions):
            with session.capture("make"):
                values.append(torch.arange(ELEMENTS, dtype=torch.float32) + number)
        most = 0
        for turn in range(turns):
            number = turn % SESSIONS
            try:
                with sessions[number].capture("turn"):
                    values[number] = values[number] + 1
                had[number] += 1
                wrong += float(values[number][turn % 1000]) != turn % 1000 + number + had[number]
            except DjinnError as error:
                failed.append(f"turn {turn}: {type(error).__name__}: {error}"[:200])
            most = max(most, data_bytes(pool.info.pid))
            if (turn + 1) % BLOCK_TURNS == 0:
                blocks.append(round(most / MIB))
                print(json.dumps({"turns": turn + 1, "MiB": blocks[-1], "failed": len(failed)}), flush=True)
                most = 0
    return {
        "turns": turns,
        "sessions": SESSIONS,
        "device_bytes": DEVICE_BYTES,
        "most data of the worker in each 500 turns, MiB": blocks,
        "failed": failed,
        "wrong": wrong,
    }


def data_bytes(server: int) -> int:
    """Return the data segment of the largest process below the pool's server."""
    found = 0
    for process in psutil.Process(server).children(recursive=True):
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        found = max(found, *(int(line.split()[1]) << 10 for line in lines if line.startswith("VmData")))
    return found


if __name__ == "__main__":
    sys.exit(main())
