"""Public traces of agents and chats, as workloads of sessions."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random

from msgspec.structs import replace

from djinn_lab.memory import POLICIES
from djinn_lab.simulator.memory.parameters import DeviceParameters
from djinn_lab.simulator.memory.run import simulate
from djinn_lab.simulator.memory.workload import Script, Turn, Workload
from djinn_lab.simulator.traces.lines import NoTraces

GAP_S_MAX = 600.0
"""Longer gaps are cut to this: their owners went home."""
OPENS_WITHIN_S = 20.0
TURNS_MAX = 24
COMPACTED = 0.7
"""A context that shrinks below this part of itself was compacted: another session begins."""
CHARACTERS_PER_TOKEN = 4

Row = Mapping[str, str]


def claude_code(folder: Path, live: int, sessions: int, seed: int) -> Workload:
    """Agents that write code, from ``claude_code_kvct``: think time before each request; token counts over
    32, which scales contexts of 100,000 tokens to those of a 4,096-token model."""
    by_session: dict[str, list[Row]] = {}
    for row in _rows(folder / "claude_code_kvct" / "requests.csv.gz"):
        if row["agent"] == "main":
            by_session.setdefault(row["session"], []).append(row)
    found = []
    for rows in by_session.values():
        for part in _uncompacted(rows):
            contexts = [int(row["in_tokens"]) // 32 for row in part]
            said = [max(1, int(row["out_tokens"]) // 32) for row in part]
            gaps = [float(row["think_time_s"] or 0) for row in part]
            found.append(_turns(contexts, said, gaps))
    return _workload("claude_code", found, live, sessions, seed)


def mooncake(folder: Path, live: int, sessions: int, seed: int) -> Workload:
    """Chats, from ``mooncake``: gaps from arrival to arrival; token counts over 8."""
    by_session: dict[str, list[Row]] = {}
    for row in _rows(folder / "mooncake" / "conversation_sessions.csv.gz"):
        by_session.setdefault(row["session"], []).append(row)
    found = []
    for rows in by_session.values():
        contexts = [int(row["input_tokens"]) // 8 for row in rows]
        said = [max(1, int(row["output_tokens"]) // 8) for row in rows]
        gaps = [float(row["gap_from_prev_arrival_ms"] or 0) / 1000 for row in rows]
        found.append(_turns(contexts, said, gaps))
    return _workload("mooncake", found, live, sessions, seed)


def lmcache_agent(folder: Path, live: int, sessions: int, seed: int) -> Workload:
    """Agents on three benchmarks, from ``lmcache_agent``: gaps from arrival to arrival, lengths in
    characters."""
    by_session: dict[str, list[Row]] = {}
    for row in _rows(folder / "lmcache_agent" / "requests.csv.gz"):
        by_session.setdefault(f"{row['suite']}/{row['session']}", []).append(row)
    found = []
    for rows in by_session.values():
        contexts = [int(row["input_chars"]) // CHARACTERS_PER_TOKEN for row in rows]
        said = [max(1, int(row["output_chars"]) // CHARACTERS_PER_TOKEN // 8) for row in rows]
        times = [float(row["t_s"]) for row in rows]
        gaps = [0.0, *(later - earlier for earlier, later in pairwise(times))]
        found.append(_turns(contexts, said, gaps))
    return _workload("lmcache_agent", found, live, sessions, seed)


TRACES = {"claude_code": claude_code, "mooncake": mooncake, "lmcache_agent": lmcache_agent}


def oversubscribed(parameters: DeviceParameters, workload: Workload, by: float) -> DeviceParameters:
    """A device that holds the ``by``-th part of what the workload's sessions hold at once at most, where
    memory is no limit; and a host of the device's size."""
    unlimited = replace(parameters, memory_bytes=2**60)
    at_once = simulate(POLICIES["keep_all"], workload, unlimited).live_bytes_max
    largest = max(
        sum(turn.new_tokens + turn.said_tokens for turn in script.turns) for script in workload.scripts
    )
    memory_bytes = max(int(at_once / by), 2 * largest * parameters.bytes_per_token)
    return replace(parameters, memory_bytes=memory_bytes, host_bytes=memory_bytes)


def _rows(path: Path) -> Iterator[Row]:
    if not path.exists():
        raise NoTraces(f"no trace at {path}")
    with gzip.open(path, "rt", newline="") as file:
        yield from csv.DictReader(file)


def _uncompacted(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    begin = 0
    for number in range(1, len(rows)):
        if int(rows[number]["in_tokens"]) < COMPACTED * int(rows[number - 1]["in_tokens"]):
            yield rows[begin:number]
            begin = number
    yield rows[begin:]


def _turns(contexts: Sequence[int], said: Sequence[int], gaps: Sequence[float]) -> tuple[Turn, ...]:
    """Return what each turn adds to the context."""
    turns: list[Turn] = []
    held = 0
    for context, tokens, gap_s in zip(contexts, said, gaps, strict=True):
        new = max(1, context - held)
        held += new + tokens
        turns.append(Turn(min(gap_s, GAP_S_MAX) if turns else 0.0, None, new, tokens))
        if len(turns) == TURNS_MAX:
            break
    return tuple(turns)


def _workload(name: str, found: Sequence[tuple[Turn, ...]], live: int, sessions: int, seed: int) -> Workload:
    """A sample of those with at least two turns, ``live`` of them at once."""
    random = Random(f"{name}-{seed}")
    usable = [turns for turns in found if len(turns) >= 2]
    chosen = random.sample(usable, min(sessions, len(usable)))
    scripts = tuple(
        Script(
            f"{name}{number:04}",
            f"user{number % 16}",
            random.uniform(0.0, OPENS_WITHIN_S),
            turns,
            after=max(0, number - live + 1),
        )
        for number, turns in enumerate(chosen)
    )
    return Workload(name, scripts)
