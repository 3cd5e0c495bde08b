"""Accelerators that are neither CUDA's nor a CPU: those that installed packages add to torch.

A package names itself in the entry points ``torch.backends``, and torch loads it when it is imported."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import msgspec

from djinn_lab.errors import OptionError
from djinn_lab.pool.devices.cuda_cards import ANSWER_WITHIN_S, Card

GROUP = "torch.backends"
_ASK = """
import json, sys, torch
try:
    module = torch.get_device_module(sys.argv[1])
except RuntimeError:
    sys.exit(f"torch knows no devices called {sys.argv[1]} here")
cards = []
for index in range(module.device_count()):
    free, total = module.mem_get_info(index)
    cards.append({"name": sys.argv[1], "total_bytes": total, "free_bytes": free})
print(json.dumps(cards))
"""


def find_accelerators(kind: str, count: int) -> tuple[Card, ...]:
    """Return the first ``count`` devices of a kind, as torch names it. Raises OptionError where there are
    not so many."""
    if not entry_points(group=GROUP):
        raise OptionError(
            f"'{kind}:{count}' names no devices: torch knows CPUs and CUDA here.",
            "Write auto, cuda, or cpu:N, such as cpu:4. An installed package may add other accelerators.",
        )
    try:
        answer = subprocess.run(
            (sys.executable, "-c", _ASK, kind),
            capture_output=True,
            text=True,
            timeout=ANSWER_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _unusable(kind, count, f"torch did not answer within {ANSWER_WITHIN_S:.0f} s") from None
    if answer.returncode:
        raise _unusable(kind, count, (answer.stderr.strip() or "torch did not say why").splitlines()[-1])
    try:
        cards = msgspec.json.decode(answer.stdout.strip().splitlines()[-1], type=tuple[Card, ...])
    except (IndexError, msgspec.MsgspecError):
        raise _unusable(kind, count, f"torch answered {answer.stdout[:200]!r}") from None
    if len(cards) < count:
        raise _unusable(kind, count, f"there are {len(cards)} of them, not {count}")
    return cards[:count]


def _unusable(kind: str, count: int, why: str) -> OptionError:
    return OptionError(
        f"'{kind}:{count}' names no devices: {why}.",
        "Check the package that adds them to torch, or write auto, cuda, or cpu:N.",
    )
