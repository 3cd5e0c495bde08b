"""``make sweep-tutorials DJINN_TUTORIALS=<folder>``: public code as it stands, plain and with every cell
under ``%%djinn``, compared in what it prints and leaves behind.

``manifest.toml`` names the code; where it would download data or train for hours it names the small change.
"""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from repositories import MissingRepository, copy_repository, revision

from benchmarks.machine import now, this_machine

HERE = Path(__file__).parent
RESULTS = HERE.parents[2] / "benchmarks" / "results"


def main() -> None:
    parser = argparse.ArgumentParser(prog="make sweep-tutorials", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("DJINN_TUTORIALS"))
    parser.add_argument("--only", action="append", help="a part of owner/name/path")
    parser.add_argument("--budget", type=int, default=240, metavar="S", help="seconds a run")
    parser.add_argument(
        "--out", type=Path, help="default: benchmarks/results/tutorials-<machine>-<date>.json"
    )
    options = parser.parse_args()
    if options.folder is None:
        parser.error("say where the repositories are: an argument, or DJINN_TUTORIALS")
    root = Path(options.folder)
    found = []
    for item in tomllib.loads((HERE / "manifest.toml").read_text())["item"]:
        name = f"{item['repository']}/{item['path']}"
        if options.only and not any(part in name for part in options.only):
            continue
        answer = {
            "repository": item["repository"],
            "path": item["path"],
            **compare(root, item, options.budget),
        }
        found.append(answer)
        print(f"{answer['outcome']:14} {name}  {answer.get('reason', '')[:1500]}", flush=True)
    out = options.out or RESULTS / f"tutorials-{this_machine().slug}-{now().date()}.json"
    report = {
        "what": "public scripts and notebooks, plain against every cell under %%djinn",
        "machine": asdict(this_machine()),
        "torch": str(torch.__version__),
        "date": now().isoformat(),
        "counts": dict(Counter(item["outcome"] for item in found)),
        "items": found,
    }
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(report["counts"], out)


def compare(root: Path, item: dict[str, Any], budget_s: int) -> dict[str, Any]:
    """``equal``, ``not in eager``, ``refused``, ``wrong``, ``raised``, ``out of time`` or ``missing``."""
    changes = {key: item[key] for key in ("replace", "arguments", "cells") if key in item}
    answers = []
    for captured in (False, True):
        try:
            answers.append(run(root, item, captured, budget_s))
        except MissingRepository as error:
            return {"outcome": "missing", "reason": str(error)}
        except subprocess.TimeoutExpired:
            outcome = "out of time" if captured else "not in eager"
            return {"outcome": outcome, "reason": f"more than {budget_s} s", "changes": changes}
        failure = answers[-1]["failure"]
        if failure is not None and not captured:
            return {"outcome": "not in eager", "reason": _failure(failure), "changes": changes}
        if failure is not None:
            outcome = "refused" if failure["refused"] else "raised"
            return {"outcome": outcome, "reason": _failure(failure), "changes": changes}
    plain, captured_ = answers
    problem = difference(captured_, plain)
    return {
        "outcome": "equal" if problem is None else "wrong",
        **({} if problem is None else {"reason": problem}),
        "revision": revision(root, item["repository"]),
        "changes": changes,
        "cells": plain["cells"],
        "values": len(plain["values"]),
        "lines": len(plain["printed"].splitlines()),
        "ops": captured_["ops"],
        "plain_s": round(plain["seconds"], 2),
        "captured_s": round(captured_["seconds"], 2),
    }


def run(root: Path, item: dict[str, Any], captured: bool, budget_s: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="djinn-tutorial-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        code = folder / "code"
        code.mkdir()
        copy_repository(root, item["repository"], code)
        for target, text in item.get("files", {}).items():
            (code / target).parent.mkdir(parents=True, exist_ok=True)
            (code / target).write_text(text * item.get("repeat", 1))
        request = {
            "script": str(code / item["path"]),
            "folder": str(code / item["folder"]) if "folder" in item else None,
            "arguments": item.get("arguments", []),
            "replace": item.get("replace", []),
            "mask": item.get("mask", []),
            "cells": item.get("cells"),
            "captured": captured,
        }
        (folder / "request.json").write_text(json.dumps(request))
        command = [sys.executable, str(HERE / "child.py"), "request.json", "answer.json"]
        with (folder / "errors").open("w+") as errors:
            ran = subprocess.run(
                command, cwd=folder, stdout=errors, stderr=errors, timeout=budget_s, check=False,
                env={**os.environ, "MPLBACKEND": "Agg", "PYTHONHASHSEED": "0", **item.get("environment", {})},
            )  # fmt: skip
        answer = folder / "answer.json"
        if not answer.exists():
            tail = (folder / "errors").read_text()[-500:]
            text = f"the process ended with code {ran.returncode}: {tail}"
            return {"failure": {"cell": 0, "refused": False, "text": text}}
        loaded: dict[str, Any] = json.loads(answer.read_text().replace(str(folder), "<folder>"))
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


if __name__ == "__main__":
    main()
