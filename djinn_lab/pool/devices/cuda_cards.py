"""The CUDA devices of this machine as torch counts them, and why there is none.

Torch is asked in a process of its own, which ends at once: the pool's server imports no torch, and a CUDA
context in it would take hundreds of megabytes of every card."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from djinn_lab.config.detection import Torch, probe_torch

ANSWER_WITHIN_S = 120.0
"""A driver that was not in use takes seconds for each card, as does an import of torch over a network."""
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
"""As ``nvidia-smi`` lists them; workers count the same way."""
DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version", "/dev/dxg")
"""The last one is that of Linux under Windows."""

_ASK = """
import json, torch
cards = []
if torch.version.cuda:
    torch.cuda.init()
    for index in range(torch.cuda.device_count()):
        known = torch.cuda.get_device_properties(index)
        free, total = torch.cuda.mem_get_info(index)
        cards.append({"name": known.name, "uuid": str(known.uuid), "total_bytes": total, "free_bytes": free})
print(json.dumps(cards))
"""


class Card(msgspec.Struct, frozen=True):
    """A card, or a slice of one (MIG). ``free_bytes``: of its memory, what no process has."""

    name: str
    total_bytes: int
    free_bytes: int
    uuid: str = ""


class Cards(msgspec.Struct, frozen=True):
    """``cards``: in torch's order. ``problem``: why a machine with a driver has none that can be used, and
    ``advice`` what to do; both empty where there is no driver, or ``CUDA_VISIBLE_DEVICES`` hides all."""

    cards: tuple[Card, ...] = ()
    problem: str = ""
    advice: str = ""


def find_cards(ask: Sequence[str] = (sys.executable, "-c", _ASK)) -> Cards:
    """Ask torch for the devices. ``ask``: the command that prints them as JSON."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible == "" or not _has_driver():
        return Cards()
    unfit = _unfit(probe_torch())
    if unfit is not None:
        return unfit
    answer = answered(ask)
    if answer is None:
        return Cards((), f"torch did not find its CUDA devices within {ANSWER_WITHIN_S:.0f} s", _CHECK_DRIVER)
    return read_answer(answer.returncode, answer.stdout, answer.stderr, visible)


def answered(ask: Sequence[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a command that asks torch; None where it takes too long."""
    try:
        return subprocess.run(
            ask, capture_output=True, text=True, timeout=ANSWER_WITHIN_S, env=ORDER | os.environ, check=False
        )
    except subprocess.TimeoutExpired:
        return None


def named_cards(output: str) -> tuple[Card, ...] | None:
    """Read the cards that such a command prints last; None where it prints something else."""
    try:
        return msgspec.json.decode(output.strip().splitlines()[-1], type=tuple[Card, ...])
    except (IndexError, msgspec.MsgspecError):
        return None


def read_answer(code: int, output: str, error_output: str, visible: str | None) -> Cards:
    """Read what torch said of its devices. ``visible``: the value of ``CUDA_VISIBLE_DEVICES``."""
    if code != 0:
        said = (error_output.strip() or output.strip() or f"exit code {code}").splitlines()[-1]
        return Cards((), f"torch finds no CUDA device it can use: {said}", _CHECK_DRIVER)
    cards = named_cards(output)
    if cards is None:
        return Cards(
            (), f"torch named its CUDA devices in no way that is known: {output[:200]!r}", _CHECK_DRIVER
        )
    if cards:
        return Cards(cards)
    if visible is not None:
        return Cards(
            (),
            f"CUDA_VISIBLE_DEVICES is {visible!r}, which names no CUDA device of this machine",
            "Unset it, or name devices as nvidia-smi -L lists them: 0,1 or a UUID.",
        )
    return Cards((), "there is an NVIDIA driver, and torch finds no CUDA device", _CHECK_DRIVER)


_CHECK_DRIVER = "Check that nvidia-smi lists devices, and that its driver is as new as torch's CUDA version."
_UNFIT = {
    "absent": ("torch is not installed", "Install torch."),
    "rocm": ("the installed torch is built for ROCm, which a pool does not use yet", ""),
    "cpu": ("the installed torch is built for CPUs only", "Install a CUDA build of torch (see pytorch.org)."),
}


def _unfit(torch: Torch) -> Cards | None:
    """Say why the installed torch can use no CUDA device; None where it may, or does not say."""
    if torch.cuda or torch.status == "unknown":
        return None
    problem, advice = _UNFIT["absent" if torch.status == "absent" else "rocm" if torch.rocm else "cpu"]
    return Cards((), f"there is an NVIDIA driver, but {problem}", advice)


def _has_driver() -> bool:
    return shutil.which("nvidia-smi") is not None or any(Path(name).exists() for name in DRIVER_FILES)
