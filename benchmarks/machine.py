"""What the figures were measured on, without names of hosts or people."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
import torch

from djinn_lab.protocol.version import VERSION


@dataclass(frozen=True)
class Machine:
    """``load_average``: how many processes wanted a core in the last minute, ours among them."""

    cpu: str
    cores: int
    memory_bytes: int
    gpus: list[str]
    system: str
    python: str
    torch: str
    djinn_lab: str
    load_average: float

    @property
    def slug(self) -> str:
        words = f"{self.cpu} {self.cores} cores {' '.join(self.gpus)}"
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-")


def this_machine() -> Machine:
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Machine(
        cpu=cpu_model(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus,
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        djinn_lab=VERSION,
        load_average=os.getloadavg()[0],
    )


def cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def checkout_commit() -> str:
    """The commit of the checkout, with a plus sign when files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=False
    ).stdout
    return head.strip() + ("+" if changed else "")
