"""Asks every node of a cluster what ``djinn-lab doctor`` finds there."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import msgspec
import ray

from djinn_lab.pool.launchers.ray_cluster.cluster import Cluster
from djinn_lab.protocol.version import VERSION

ANSWERS_WITHIN_S = 120.0
"""A node starts a process for the question, which imports torch's metadata and tries the sandbox."""


class NodeFindings(msgspec.Struct, frozen=True):
    """What one node answered. ``versions``: of Python, torch and djinn-lab. ``checks``: of its own doctor, as
    ``djinn-lab doctor --json`` prints them. ``problem``: why there is neither, empty for none."""

    node: str
    versions: Mapping[str, str] = {}
    checks: Sequence[Mapping[str, str]] = ()
    problem: str = ""


def own_versions() -> dict[str, str]:
    """Return what must be the same on all nodes."""
    return {"Python": platform.python_version(), "torch": version("torch"), "djinn-lab": VERSION}


def examine_nodes(cluster: Cluster) -> list[NodeFindings]:
    """Ask all nodes at once."""
    asked = {node.name: cluster.on_node(_examine, node.node).remote() for node in cluster.nodes}
    answered, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=ANSWERS_WITHIN_S)
    return [_found(name, one if one in answered else None) for name, one in asked.items()]


def _found(node: str, answer: Any) -> NodeFindings:
    if answer is None:
        return NodeFindings(node, problem=f"it does not answer within {ANSWERS_WITHIN_S:.0f} s")
    try:
        versions, checks = ray.get(answer)
    except ray.exceptions.RayError as error:
        return NodeFindings(node, problem=str(error).strip().splitlines()[-1])
    return NodeFindings(node, versions, checks)


def _examine() -> tuple[dict[str, str], list[dict[str, str]]]:
    """Run on a node."""
    command = [sys.executable, "-m", "djinn_lab.cli", "doctor", "--json"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if not answer.stdout.strip():
        raise RuntimeError((answer.stderr.strip() or "djinn-lab doctor prints nothing").splitlines()[-1])
    return own_versions(), json.loads(answer.stdout)
