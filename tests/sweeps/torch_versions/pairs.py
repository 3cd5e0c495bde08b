"""A client of one torch with a pool of another: what is right, and what differs and why."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from sweeps.operators.outcomes import (
    CRASH,
    MOVED,
    RAISED_DIFFERENTLY,
    REFUSED,
    RIGHT,
    ROUNDED,
    UNDEFINED,
    WRONG_VALUE,
)
from sweeps.torch_versions.environments import Environment

from djinn_lab.capture.recorders import CHOICE

ROOT = Path(__file__).resolve().parents[3]
CLIENT_S_MAX = 3600.0
BY_KERNELS = (WRONG_VALUE, ROUNDED, MOVED, RAISED_DIFFERENTLY, CRASH)
"""Outcomes that are as they must be where the pool's kernel computes or raises something else."""
KERNELS_DIFFER = "other result in the two versions' eager torch"
LACKING = "refused, as the pool's torch lacks the op"
LACKS = "which the pool has; this notebook has torch"
"""Of the pool's refusal, which names the op and both versions."""
TRACING = "make_fx"
"""The program that the recorder in Python refuses."""
KNOWN = {"nn_functional_group_norm: overlapping, plain inputs": "Expected X.is_contiguous(memory_format)"}
"""Calls that one version hands on as they are, and whose kernel in another takes less, and its words."""
STRICTER = "refused by the kernel of the pool's torch, which takes less"
LOG_LINES = 5


def run_pair(client: Environment, pool: Environment, recorder: str, operators: int) -> dict[str, Any]:
    """Return what the client's process wrote, or ``died`` with its last words."""
    with tempfile.TemporaryDirectory(prefix="djinn-torch-") as folder:
        out = Path(folder) / "found.json"
        (runtime := Path(folder) / "pool").mkdir()
        with _pool(pool, runtime) as variables:
            command = [str(client.python), "-W", "ignore", "-m", "sweeps.torch_versions.client", str(out)]
            done = subprocess.run(
                [*command, "--operators", str(operators)],
                env={**_variables(), **variables, CHOICE: recorder},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=CLIENT_S_MAX,
            )
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(out.read_text())
            return found
        return {
            "died": f"exit code {done.returncode} after: " + " | ".join(done.stdout.splitlines()[-LOG_LINES:])
        }


def _variables() -> dict[str, str]:
    folders = (ROOT, ROOT / "tests", ROOT / "tests" / "capture")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}


@contextmanager
def _pool(pool: Environment, runtime: Path) -> Iterator[dict[str, str]]:
    command = [str(pool.python), "-W", "ignore", "-m", "sweeps.torch_versions.pool", str(runtime)]
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=_variables(), **options) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"the pool of torch {pool.version} did not start: exit code {process.wait()}")
        yield json.loads(line)
        process.stdin.close()


class Eager(NamedTuple):
    """Digests of what a call was given and what plain torch made of it."""

    inputs: str
    result: str


def eager_of(found: Mapping[str, Any]) -> dict[str, Eager]:
    """Return the digests by call, without calls whose results eager torch leaves to chance."""
    parts = {**found.get("programs", {}), **found.get("operators", {})}
    certain = {name: item for name, item in parts.items() if item["outcome"] != UNDEFINED}
    return {name: Eager(item["inputs"], item["eager"]) for name, item in certain.items()}


def _differ(one: Eager, other: Eager | None) -> bool:
    """Return whether two versions make different results of the same inputs."""
    return other is not None and one.inputs == other.inputs and one.result != other.result


def judged(found: dict[str, Any], of_pool: Mapping[str, Eager]) -> dict[str, Any]:
    """Say of a pair what passed. ``of_pool``: digests of the results of the pool's eager torch; where these
    differ from the client's, other values are explained."""
    if "died" in found:
        return {"passed": False, **found}
    parts = {**found["programs"], **found["operators"]}
    refusable = {*found["operators"], *([TRACING] if found["recorder"] == "python" else [])}
    listed = [_judged(name, item, of_pool.get(name), name in refusable) for name, item in parts.items()]
    wrong = [item for item in listed if not item["passed"]]
    programs = {item["call"]: item["passed"] for item in listed if item["call"] in found["programs"]}
    return {
        "passed": not wrong,
        "client": found["torch"],
        "pool": found["pool"],
        "recorder": found["recorder"],
        "programs": programs,
        "calls": len(found["operators"]),
        "outcomes": dict(Counter(item["outcome"] for item in listed if item["call"] not in programs)),
        "not_equal": [item for item in listed if item["outcome"] not in RIGHT],
    }


def _judged(call: str, item: Mapping[str, str], of_pool: Eager | None, refusable: bool) -> dict[str, Any]:
    """``refusable``: it may be refused with advice."""
    outcome, reason = item["outcome"], item["reason"]
    if LACKS in reason:
        outcome = LACKING
    elif outcome in BY_KERNELS and _differ(Eager(item["inputs"], item["eager"]), of_pool):
        outcome = KERNELS_DIFFER
    elif outcome == CRASH and call in KNOWN and KNOWN[call] in reason:
        outcome = STRICTER
    passed = outcome in (*RIGHT, MOVED, KERNELS_DIFFER, LACKING, STRICTER)
    passed = passed or (outcome == REFUSED and refusable)
    return {"call": call, "outcome": outcome, "reason": reason, "passed": passed}


def changed(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Say what differs between two versions: ops of the table, and calls whose eager results do."""
    ops, others_ops = ({line.split(" ")[0]: line for line in found["table"]} for found in (one, other))
    results, others = eager_of(one), eager_of(other)
    both = [op for op in ops if op in others_ops]
    return {
        "only in the first": sorted(set(ops) - set(others_ops)),
        "only in the second": sorted(set(others_ops) - set(ops)),
        "other arguments": {op: [ops[op], others_ops[op]] for op in both if ops[op] != others_ops[op]},
        "other results": [name for name, made in results.items() if _differ(made, others.get(name))],
    }
