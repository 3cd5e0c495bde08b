"""``make sweep-tutorials DJINN_TUTORIALS=<folder>``: public code as it stands, plain and with every cell
under ``%%djinn``, compared in what it prints and leaves behind.

``manifest.toml`` names the code; where it would download data or train for hours it names the small change.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import tomllib
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from comparison import compare, run_child
from repositories import MissingRepository, copy_repository, revision

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.capture.recorders import chosen

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
    commit = checkout_commit()
    found = []
    for item in tomllib.loads((HERE / "manifest.toml").read_text())["item"]:
        name = f"{item['repository']}/{item['path']}"
        if options.only and not any(part in name for part in options.only):
            continue
        answer = {
            "repository": item["repository"],
            "path": item["path"],
            **compare_item(root, item, options.budget),
        }
        found.append(answer)
        print(f"{answer['outcome']:14} {name}  {answer.get('reason', '')[:1500]}", flush=True)
    out = options.out or RESULTS / f"tutorials-{this_machine().slug}-{now().date()}.json"
    report = {
        "commit": commit,
        "recorder": chosen(),
        "what": "public scripts and notebooks, plain against every cell under %%djinn",
        "machine": asdict(this_machine()),
        "torch": str(torch.__version__),
        "date": now().isoformat(),
        "counts": dict(Counter(item["outcome"] for item in found)),
        "items": found,
    }
    out.write_text(json.dumps(report, indent=1) + "\n")
    print(report["counts"], out)


def compare_item(root: Path, item: dict[str, Any], budget_s: int) -> dict[str, Any]:
    """As :func:`compare` says, or ``missing``."""
    changes = {key: item[key] for key in ("replace", "arguments", "cells") if key in item}
    try:
        found = compare(lambda captured: run(root, item, captured, budget_s), budget_s)
    except MissingRepository as error:
        return {"outcome": "missing", "reason": str(error)}
    plain, captured = found.pop("plain", None), found.pop("captured", None)
    if plain is None or captured is None:
        return {**found, "changes": changes}
    return {
        **found,
        "revision": revision(root, item["repository"]),
        "changes": changes,
        "cells": plain["cells"],
        "values": len(plain["values"]),
        "lines": len(plain["printed"].splitlines()),
        "ops": captured["ops"],
        "plain_s": round(plain["seconds"], 2),
        "captured_s": round(captured["seconds"], 2),
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
        return run_child(folder, request, budget_s, item.get("environment", {}))


if __name__ == "__main__":
    main()
