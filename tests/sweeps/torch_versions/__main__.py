"""Runs what users do with clients and pools of several versions of torch (``make sweep-torch``).

Each version is a client of its own pool and of one of the pinned version, and its pool has a client of that
one, too. In its own environment it also runs a fixed choice of the tests of capture."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from sweeps.result_file import SweepResult
from sweeps.torch_versions.environments import NEWEST, Environment, environment, resolved
from sweeps.torch_versions.pairs import changed, eager_of, judged, run_pair

from djinn_lab.capture.recorders import CHOICE

PINNED = str(torch.__version__).split("+")[0]
TESTS = tuple(
    f"tests/capture/test_{name}.py"
    for name in (
        "autograd_features",
        "checkpoints",
        "randomness_and_data",
        "semantics",
        "tracing",
        "training",
    )
)
DEPRECATED = ("-W", "ignore::FutureWarning", "-W", "ignore::DeprecationWarning")
"""What a newer torch warns of is no failure."""
OPTIONS = ("-q", "-p", "no:cacheprovider", "-k", "not python", *DEPRECATED)
TESTS_S_MAX = 1800.0


def capture_tests(of: Environment) -> dict[str, Any]:
    """Run the choice of tests with the native recorder."""
    done = subprocess.run(
        [str(of.python), "-m", "pytest", *OPTIONS, *TESTS],
        env={**os.environ, CHOICE: "native"},
        capture_output=True,
        text=True,
        timeout=TESTS_S_MAX,
    )
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {
        "passed": done.returncode == 0,
        "said": lines[-1] if lines else done.stderr[-500:],
        "failed": failed,
    }


def sweep(environments: list[Environment], operators: int) -> dict[str, Any]:
    """Return the verdicts of versions and pairs, and what changed between each version and the pinned one."""
    found: dict[str, Any] = {}
    pinned = environment(PINNED, Path())
    usable = [one for one in environments if not one.problem]
    others = [one for one in usable if one.version != PINNED]
    pairs = [(pinned, pinned, "native"), (pinned, pinned, "python")]
    for one in others:
        pairs += [(one, one, "native"), (one, pinned, "native"), (pinned, one, "native")]
    raw = {}
    for client, pool, recorder in pairs:
        name = f"client {client.version}, pool {pool.version}, {recorder} recorder"
        print(name, flush=True)
        raw[name] = run_pair(client, pool, recorder, operators)
    own = {one.version: raw[f"client {one.version}, pool {one.version}, native recorder"] for one in usable}
    for client, pool, recorder in pairs:
        name = f"client {client.version}, pool {pool.version}, {recorder} recorder"
        found[name] = judged(raw[name], eager_of(own[pool.version]))
        print(name, "passed" if found[name]["passed"] else "FAILED", flush=True)
    return {
        "versions": {one.version: _version(one, own) for one in environments},
        "pairs": found,
        "changed": {
            f"{PINNED} and {one.version}": changed(own[PINNED], own[one.version])
            for one in others
            if "died" not in own[one.version]
        },
    }


def _version(of: Environment, own: dict[str, Any]) -> dict[str, Any]:
    if of.problem:
        return {"passed": False, "problem": of.problem}
    print(f"tests of capture with torch {of.version}", flush=True)
    return {"torch": own[of.version].get("torch", of.version), "tests": capture_tests(of)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--versions", default=f"{PINNED},{NEWEST}", help="such as 2.13.0,newest")
    parser.add_argument("--cache", type=Path, default=Path("build/torch"), help="where environments are kept")
    parser.add_argument("--operators", type=int, default=0, help="how many of the database; default: all")
    parser.add_argument("--out", type=Path, help="a folder for torch-<machine>-<date>.json")
    options = parser.parse_args()
    result = SweepResult("torch", 0)
    versions = dict.fromkeys((PINNED, *map(resolved, options.versions.split(","))))
    environments = [environment(version, options.cache.resolve()) for version in versions]
    content = result.write(options.out, **sweep(environments, options.operators))
    passed = {
        **{f"torch {name}": item.get("tests", item)["passed"] for name, item in content["versions"].items()},
        **{name: item["passed"] for name, item in content["pairs"].items()},
    }
    print(json.dumps(passed, indent=1))
    return 0 if all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
