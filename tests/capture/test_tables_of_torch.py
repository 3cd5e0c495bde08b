"""Torch keeps tables of its own functions, made when they are first needed: in a process whose first need is
in a cell, they are what they are elsewhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch

TESTS = Path(__file__).parents[1]
FIRST_IN_A_CELL = """
import torch
from torch import nn
from in_process import InProcessBackend, cell
from djinn_lab.capture.recorders import make_recorder
recorder = make_recorder(InProcessBackend())
torch.manual_seed(1)
with cell(recorder):
    with torch.device("meta"):
        inside = nn.Linear(3, 2)
    compiled = torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
with torch.device("meta"):
    outside = nn.Linear(3, 2)
print(inside.weight.device, outside.weight.device, torch.rand(1).item())
print(torch.overrides.resolve_name(torch.ones))
print(torch.compile(lambda x: x + torch.zeros(2), backend="eager", fullgraph=True)(torch.ones(2)).tolist())
"""


def test_devices_names_and_the_compiler_know_torchs_functions_after_a_cell(recorder_kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIRST_IN_A_CELL],
        cwd=TESTS / "capture",
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    torch.manual_seed(1)
    expected = [f"meta meta {torch.rand(1).item()}", "torch.ones", "[1.0, 1.0]"]
    assert done.stdout.splitlines() == expected, done.stderr
