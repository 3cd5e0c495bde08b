"""``make sweep-libraries``: short programs of other people's libraries, plain and as one ``%%djinn`` cell.

Each program of ``programs/`` runs in a process of its own, its imports first and the rest twice: the second
round is what the slowdown counts, as the first one warms up both sides. Captured programs use a real pool of
one CPU device with one thread.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from comparison import Answer, compare, run_child
from device_kind import KIND
from real_pool import PoolUnderTest

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.capture.recorders import chosen

HERE = Path(__file__).parent
RESULTS = HERE.parents[2] / "benchmarks" / "results"
ROUNDS = 2
POOL_MEMORY_BYTES = 4 * 2**30


def main() -> None:
    parser = argparse.ArgumentParser(prog="make sweep-libraries", description=__doc__)
    parser.add_argument("--only", action="append", help="a part of a program's name")
    parser.add_argument("--budget", type=int, default=240, metavar="S", help="seconds a run")
    parser.add_argument(
        "--out", type=Path, help="default: benchmarks/results/libraries-<machine>-<date>.json"
    )
    options = parser.parse_args()
    programs = [
        path
        for path in sorted((HERE / "programs").glob("*.py"))
        if not options.only or any(part in path.stem for part in options.only)
    ]
    out = options.out or RESULTS / f"libraries-{this_machine().slug}-{now().date()}.json"
    machine, commit, started = this_machine(), checkout_commit(), now()
    items = []
    with tempfile.TemporaryDirectory(prefix="djinn-pool-") as directory:
        with PoolUnderTest(Path(directory), devices=f"{KIND}:1", memory_bytes=POOL_MEMORY_BYTES) as pool:
            for path in programs:
                items.append(examine(path, pool.environment, options.budget))
                print(_line(items[-1]), flush=True)
    report = {
        "what": "programs of libraries, plain against one %%djinn cell on a real pool",
        "machine": asdict(machine),
        "commit": commit,
        "recorder": chosen(),
        "date": started.isoformat(),
        "libraries": {name: version(name) for name in _libraries()},
        "counts": dict(Counter(item["outcome"] for item in items)),
        "slowdown_wall_median": _median(items, "slowdown_wall"),
        "slowdown_cpu_median": _median(items, "slowdown_cpu"),
        "items": items,
    }
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(report["counts"], report["slowdown_wall_median"], report["slowdown_cpu_median"], out)


def examine(path: Path, environment: dict[str, str], budget_s: int) -> dict[str, Any]:
    found = compare(lambda captured: _run(path, captured, environment, budget_s), budget_s)
    plain, captured = found.pop("plain", None), found.pop("captured", None)
    item = {"program": path.stem, **found}
    if plain is None or captured is None:
        return item
    return {
        **item,
        "values": len(plain["values"]),
        "lines": len(plain["printed"].splitlines()),
        "ops": captured["ops"],
        "plain": plain["times"],
        "captured": captured["times"],
        **slowdown(plain["times"][-1], captured["times"][-1]),
    }


def slowdown(plain: dict[str, float], captured: dict[str, float]) -> dict[str, float]:
    """Compare the rounds' wall time, and their CPU time with that of the pool's worker."""
    cpu_s = captured["cpu_s"] + captured["worker_cpu_s"]
    return {
        "slowdown_wall": round(captured["wall_s"] / plain["wall_s"], 2),
        "slowdown_cpu": round(cpu_s / plain["cpu_s"], 2),
    }


def _run(path: Path, captured: bool, environment: dict[str, str], budget_s: int) -> Answer:
    with tempfile.TemporaryDirectory(prefix="djinn-library-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        script = folder / path.name
        shutil.copy(path, script)
        request = {
            "script": str(script),
            "arguments": [],
            "replace": [],
            "mask": [],
            "cells": None,
            "captured": captured,
            "pool": True,
            "prelude": str(HERE / "prelude.py"),
            "imports_apart": True,
            "rounds": ROUNDS,
        }
        return run_child(folder, request, budget_s, environment)


def _line(item: dict[str, Any]) -> str:
    times = f"{item['slowdown_wall']:6.1f}x {item['slowdown_cpu']:6.1f}x" if "slowdown_wall" in item else ""
    return f"{item['outcome']:14} {item['program']:44} {times} {item.get('reason', '')[:1500]}"


def _median(items: list[dict[str, Any]], key: str) -> float | None:
    known = [item[key] for item in items if item["outcome"] == "equal"]
    return round(median(known), 2) if known else None


def _libraries() -> list[str]:
    lines = ["torch", *(HERE / "requirements.txt").read_text().splitlines()]
    return [line for line in lines if re.match(r"\w", line)]


if __name__ == "__main__":
    main()
