"""Runs the calls of each overload in a forked child, and another from where it died."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from sweeps.hostile import memory
from sweeps.hostile.recorded import Recorded
from sweeps.hostile.trial import LEAKED, OK, WROTE, Verdict, arguments, attempt

DIED, SLOW = "died", "used up its time"
OUTCOMES = (OK, "refused by the pool", "raised", SLOW, DIED, LEAKED, WROTE)
BAD = (DIED, LEAKED, WROTE)
DEATHS_MAX = 5
CALL_CPU_S = 5.0
MEMORY_BYTES_MAX = 3 * 2**30
_EXAMPLES = 3


@dataclass
class Found:
    """What the calls of one overload came to. ``examples``: seed and text of some of the worst."""

    op: str
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[dict[str, Any]] = field(default_factory=list)

    def add(self, seed: int, outcome: str, text: str) -> None:
        self.counts[outcome] += 1
        if outcome in (*BAD, SLOW) and sum(one["outcome"] == outcome for one in self.examples) < _EXAMPLES:
            self.examples.append({"outcome": outcome, "seed": seed, "text": text})


def run_overload(
    op: str, calls: Mapping[str, Sequence[Recorded]], tries: int, seconds: float, first: int = 0
) -> Found:
    """Stops early after so many deaths or so many seconds of work."""
    found = Found(op)
    seed, end = first, first + tries
    while seed < end and found.counts[DIED] + found.counts[SLOW] < DEATHS_MAX:
        reached, how = _child(op, calls, range(seed, end), seconds, found)
        if how is None:
            break
        found.add(reached, SLOW if how == "SIGPROF" else DIED, how)
        seed = reached + 1
    return found


def _child(
    op: str, calls: Mapping[str, Sequence[Recorded]], seeds: range, seconds: float, found: Found
) -> tuple[int, str | None]:
    """The last seed that was begun, and the signal that ended the process, if any."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reading)
        _run_in_child(op, calls, seeds, seconds, writing)
    os.close(writing)
    reached = seeds.start
    with os.fdopen(reading) as lines:
        for line in lines:
            seed, *verdict = json.loads(line)
            if verdict:
                found.add(seed, *verdict)
            else:
                reached = seed
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return reached, signal.Signals(os.WTERMSIG(status)).name
    code = os.WEXITSTATUS(status)
    return reached, f"exit status {code}" if code else None


def _run_in_child(
    op: str, calls: Mapping[str, Sequence[Recorded]], seeds: range, seconds: float, writing: int
) -> None:
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
        torch.set_num_threads(1)
        memory.start()
        started = time.process_time()
        for seed in seeds:
            os.write(writing, f"[{seed}]\n".encode())
            signal.setitimer(signal.ITIMER_PROF, CALL_CPU_S)
            verdict = _judged(op, calls, seed)
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(writing, (json.dumps([seed, *verdict]) + "\n").encode())
            if time.process_time() - started > seconds:
                break
        os._exit(0)
    finally:
        os._exit(98)


def _judged(op: str, calls: Mapping[str, Sequence[Recorded]], seed: int) -> Verdict:
    try:
        given = arguments(op, calls, seed)
    except (RuntimeError, TypeError, ValueError) as error:  # not every change can be made
        return Verdict("raised", f"not called: {error}"[:100])
    return attempt(op, given)
