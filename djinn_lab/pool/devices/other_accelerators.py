"""Accelerators that are neither CUDA's nor a CPU: those that installed packages add to torch.

A package names itself in the entry points ``torch.backends``, and torch loads it when it is imported."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

from djinn_lab.errors import OptionError
from djinn_lab.pool.devices.cuda_cards import ANSWER_WITHIN_S, Card, answered, named_cards

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
    answer = answered((sys.executable, "-c", _ASK, kind))
    if answer is None:
        raise _unusable(kind, count, f"torch did not answer within {ANSWER_WITHIN_S:.0f} s")
    if answer.returncode:
        raise _unusable(kind, count, (answer.stderr.strip() or "torch did not say why").splitlines()[-1])
    cards = named_cards(answer.stdout)
    if cards is None:
        raise _unusable(kind, count, f"torch answered {answer.stdout[:200]!r}")
    if len(cards) < count:
        raise _unusable(kind, count, f"there are {len(cards)} of them, not {count}")
    return cards[:count]


def _unusable(kind: str, count: int, why: str) -> OptionError:
    return OptionError(
        f"'{kind}:{count}' names no devices: {why}.",
        "Check the package that adds them to torch, or write auto, cuda, or cpu:N.",
    )
