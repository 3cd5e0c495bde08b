"""One program, plain and captured, each in a process of its own: the outcome, and what differs."""

from __future__ import annotations

import difflib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHILD = Path(__file__).parent / "child.py"

Answer = dict[str, Any]


def compare(run: Callable[[bool], Answer], budget_s: int) -> Answer:
    """Call ``run(False)``, then ``run(True)`` for the captured one, and compare what they left behind.

    ``outcome``: ``equal``, ``not in eager``, ``refused``, ``wrong``, ``raised`` or ``out of time``. The two
    answers of the child are under ``plain`` and ``captured`` when both ran to their end.
    """
    answers = []
    for captured in (False, True):
        try:
            answers.append(run(captured))
        except subprocess.TimeoutExpired:
            outcome = "out of time" if captured else "not in eager"
            return {"outcome": outcome, "reason": f"more than {budget_s} s"}
        failure = answers[-1]["failure"]
        if failure is not None and not captured:
            return {"outcome": "not in eager", "reason": _failure(failure)}
        if failure is not None:
            outcome = "refused" if failure["refused"] else "raised"
            return {"outcome": outcome, "reason": _failure(failure)}
    plain, captured_ = answers
    problem = difference(captured_, plain)
    reason = {} if problem is None else {"reason": problem}
    outcome = "equal" if problem is None else "wrong"
    return {"outcome": outcome, **reason, "plain": plain, "captured": captured_}


def run_child(folder: Path, request: dict[str, Any], budget_s: int, environment: dict[str, str]) -> Answer:
    """Run one request in ``folder``. A dead process is an answer with a failure. Raises TimeoutExpired."""
    (folder / "request.json").write_text(json.dumps(request))
    path = os.pathsep.join(map(os.path.abspath, sys.path))  # the child runs in another folder
    command = [sys.executable, str(CHILD), "request.json", "answer.json"]
    with (folder / "errors").open("w+") as errors:
        ran = subprocess.run(
            command, cwd=folder, stdout=errors, stderr=errors, timeout=budget_s, check=False,
            env={
                **os.environ, "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0", **environment, "PYTHONPATH": path,
            },
        )  # fmt: skip
    answer = folder / "answer.json"
    if not answer.exists():
        tail = (folder / "errors").read_text()[-500:]
        text = f"the process ended with code {ran.returncode}: {tail}"
        return {"failure": {"cell": 0, "refused": False, "text": text}}
    loaded: Answer = json.loads(answer.read_text().replace(str(folder), "<folder>"))
    return loaded


def difference(captured: dict[str, Any], plain: dict[str, Any]) -> str | None:
    if captured["printed"] != plain["printed"]:
        lines = difflib.unified_diff(
            plain["printed"].splitlines(),
            captured["printed"].splitlines(),
            "plain",
            "captured",
            n=0,
            lineterm="",
        )
        return "printed: " + "\n".join(list(lines)[:12])[:800]
    left, right = captured["values"], plain["values"]
    only = sorted(set(left) ^ set(right))
    if only:
        return f"on one side only: {only[:6]}"
    apart = [f"{name}: {left[name]} instead of {right[name]}" for name in right if left[name] != right[name]]
    return f"{len(apart)} of {len(right)} values: {'; '.join(apart[:3])}"[:800] if apart else None


def _failure(failure: dict[str, Any]) -> str:
    return f"in cell {failure['cell']}: {failure['text']}"
