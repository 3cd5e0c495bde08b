"""Child processes over a range of seeds: what they report, and which seed ended one."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from sweeps.fuzz.report import Tally

BATCH = 500
JOBS = 2
HANG_S = 60.0
TESTS = Path(__file__).resolve().parents[2]


def run_range(first: int, count: int, jobs: int, tally: Tally) -> None:
    """Run ``count`` seeds from ``first`` in batches, ``jobs`` processes at a time, and count in ``tally``."""
    lock = threading.Lock()
    with ThreadPoolExecutor(jobs) as threads:
        starts = range(first, first + count, BATCH)
        batches = [(start, min(BATCH, first + count - start)) for start in starts]
        for _ in threads.map(lambda batch: _run_batch(*batch, tally, lock), batches):
            with lock:
                print(f"\r{tally.sequences} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def _run_batch(first: int, count: int, tally: Tally, lock: threading.Lock) -> None:
    """Start a process, and another behind the seed that ended it, until every seed has run."""
    end = first + count
    while first < end:
        with tempfile.TemporaryFile("w+") as errors:
            reached, ended = _run_child(first, end - first, tally, lock, errors)
            if reached is None:
                return
            errors.seek(0)
            how = f"{ended}: {_last_words(errors.read())}"
        with lock:
            tally.sequences += "at exit" not in ended
            (tally.hangs if ended == "hang" else tally.crashes).append((reached, how))
        first = reached + 1


def _run_child(
    first: int, count: int, tally: Tally, lock: threading.Lock, errors: IO[str]
) -> tuple[int | None, str]:
    """Return (None, "") when every seed ran, else the seed that did not end and how its process did.

    Raises RuntimeError when the process ended with an error of its own.
    """
    command = [sys.executable, "-m", "sweeps.fuzz.child", str(first), str(count)]
    path = os.pathsep.join(map(str, (TESTS.parent, TESTS, TESTS / "capture", *sys.path)))
    environment = {**os.environ, "PYTHONPATH": path}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
    assert child.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(child.stdout, lines))
    reader.start()
    seed, open_, ended = first, True, "exit"
    while True:
        try:
            line = lines.get(timeout=HANG_S)
        except queue.Empty:
            child.kill()
            ended = "hang"
            break
        if not line:
            break
        if line.startswith("begin "):
            seed, open_ = int(line.split()[1]), True
        elif line.startswith("{"):
            open_ = False
            with lock:
                tally.add(json.loads(line))
    code = child.wait()
    reader.join()
    child.stdout.close()
    if ended != "hang" and code == 0:
        return None, ""
    if code > 0:
        errors.seek(0)
        raise RuntimeError(f"the child failed by itself at seed {seed}: {errors.read()[-2000:]}")
    if ended != "hang":
        ended = signal.Signals(-code).name
    if not open_ and seed == first + count - 1:
        ended += " at exit"
    return seed, ended


def _read(pipe: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in pipe:
        lines.put(line)
    lines.put("")


def _last_words(text: str) -> str:
    """The Python frames of a crash, or the last lines of a traceback."""
    text = text[text.find("Fatal Python error") :] if "Fatal Python error" in text else text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    frames = [line for line in lines if line.startswith("File ") and "/sweeps/fuzz/" not in line]
    return " | ".join([*lines[:1], *(frames[:6] or lines[-3:])])[:900]
