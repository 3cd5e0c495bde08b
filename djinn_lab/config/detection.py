"""Look at this machine. Every probe may end in *unknown*, which is not the same as *absent*."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from djinn_lab.system.host import SHARED_MEMORY, usable_cores

Status = Literal["found", "absent", "unknown"]
_SMI_TIMEOUT_S = 5.0
_PACKAGES = (
    "transformers",
    "sentence_transformers",
    "vllm",
    "sglang",
    "text_generation",
    "llama_cpp",
    "lightning",
    "pytorch_lightning",
    "accelerate",
    "deepspeed",
    "trl",
    "torchvision",
)


class CudaDevice(msgspec.Struct, frozen=True):
    name: str
    memory_bytes: int
    free_bytes: int


class Cuda(msgspec.Struct, frozen=True):
    """``detail`` is a sentence for people: what was found, or why it is not known."""

    status: Status
    devices: tuple[CudaDevice, ...] = ()
    detail: str = ""


class RunningPool(msgspec.Struct, frozen=True):
    status: Status
    detail: str = ""


class Torch(msgspec.Struct, frozen=True):
    """The installed torch. ``cuda``, ``rocm``: the version that it is built for, both empty for a CPU
    build."""

    status: Status
    version: str = ""
    cuda: str = ""
    rocm: str = ""


class NetworkLink(msgspec.Struct, frozen=True):
    """A network interface that is up. ``bytes_per_s``: None where its driver does not say."""

    name: str
    bytes_per_s: float | None


class Facts(msgspec.Struct, frozen=True):
    """What is known of a machine. ``cores`` may be a fraction under a container's CPU quota.

    None means that a probe failed. ``memory_bytes`` is what new processes may use now. ``network``: without
    the loopback.
    """

    cores: float
    memory_bytes: int | None
    memory_detail: str
    cuda: Cuda
    shared_memory_bytes: int | None
    packages: tuple[str, ...] = ()
    pool: RunningPool = RunningPool("unknown")
    torch: Torch = Torch("unknown")
    network: tuple[NetworkLink, ...] | None = None

    @property
    def whole_cores(self) -> int:
        return max(1, int(self.cores))


def detect(find_pool: Callable[[], RunningPool] | None = None) -> Facts:
    """Probe cores, memory, CUDA devices, shared memory, torch, packages, network and (by ``find_pool``) a
    running pool."""
    memory, detail = _available_memory()
    torch = probe_torch()
    return Facts(
        cores=_usable_cores(),
        memory_bytes=memory,
        memory_detail=detail,
        cuda=usable_cuda(_probe_cuda(), torch),
        shared_memory_bytes=_free_bytes(SHARED_MEMORY),
        packages=tuple(name for name in _PACKAGES if importlib.util.find_spec(name) is not None),
        pool=find_pool() if find_pool else RunningPool("unknown", "a running pool was not looked for"),
        torch=torch,
        network=_probe_network(),
    )


def _usable_cores() -> float:
    cores = float(usable_cores())
    quota = cpu_quota(_text(Path("/sys/fs/cgroup/cpu.max")))
    return min(cores, quota) if quota else cores


def cpu_quota(cpu_max: str | None) -> float | None:
    """Return the cores allowed by the text of a cgroup's ``cpu.max`` (``"150000 100000"``: 1.5); None if
    unlimited."""
    parts = (cpu_max or "").split()
    if len(parts) != 2 or parts[0] == "max":
        return None
    try:
        return int(parts[0]) / int(parts[1])
    except (ValueError, ZeroDivisionError):
        return None


def _available_memory() -> tuple[int | None, str]:
    try:
        available = psutil.virtual_memory().available
    except (OSError, psutil.Error) as error:
        return None, f"available memory could not be read: {error}"
    limit = _text(Path("/sys/fs/cgroup/memory.max"))
    used = _text(Path("/sys/fs/cgroup/memory.current"))
    free = cgroup_free_bytes(limit, used)
    if free is not None and free < available:
        return free, "limited by this container's cgroup"
    return available, "available now"


def cgroup_free_bytes(limit: str | None, used: str | None) -> int | None:
    """Return the bytes left under a cgroup's ``memory.max``, given ``memory.current``; None if unlimited."""
    try:
        return max(0, int(limit or "max") - int(used or "0"))
    except ValueError:
        return None


def _probe_cuda() -> Cuda:
    program = shutil.which("nvidia-smi")
    if program is None:
        if Path("/proc/driver/nvidia/version").exists():
            return Cuda("unknown", (), "an NVIDIA driver is loaded, but there is no nvidia-smi to ask")
        return Cuda("absent", (), "no NVIDIA driver and no nvidia-smi on this machine")
    query = [program, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return Cuda("unknown", (), f"nvidia-smi did not answer within {_SMI_TIMEOUT_S:.0f} s")
    except OSError as error:
        return Cuda("unknown", (), f"nvidia-smi could not be started: {error}")
    return parse_nvidia_smi(answer.returncode, answer.stdout, answer.stderr)


def parse_nvidia_smi(code: int, output: str, error_output: str) -> Cuda:
    """Read CUDA devices from the answer to ``--query-gpu=name,memory.total,memory.free`` (sizes in MiB)."""
    said = (error_output.strip() or output.strip() or "nothing").splitlines()[0]
    if code != 0:
        if "No devices were found" in said:
            return Cuda("absent", (), "nvidia-smi found no devices")
        return Cuda("unknown", (), f"nvidia-smi ended with code {code} and said: {said}")
    devices = []
    for line in filter(None, map(str.strip, output.splitlines())):
        try:
            name, total, free = (part.strip() for part in line.rsplit(",", 2))
            devices.append(CudaDevice(name, int(total) * 2**20, int(free) * 2**20))
        except ValueError:
            return Cuda("unknown", (), f"nvidia-smi answered a line that is not understood: {line}")
    if not devices:
        return Cuda("absent", (), "nvidia-smi found no devices")
    return Cuda("found", tuple(devices), f"{len(devices)} CUDA device(s), the first a {devices[0].name}")


def usable_cuda(cuda: Cuda, torch: Torch) -> Cuda:
    """Return the CUDA devices that the installed torch can use: none where it is a build for CPUs."""
    if cuda.status != "found" or torch.status != "found" or torch.cuda:
        return cuda
    unused = f"{len(cuda.devices)} CUDA device(s) found, but torch {torch.version} is built for CPUs only"
    return Cuda("absent", (), unused)


def probe_torch() -> Torch:
    """Read what torch says of itself, without the seconds that its import takes."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return Torch("absent")
    return parse_torch_version(_text(Path(found.origin).with_name("version.py")) or "")


def parse_torch_version(text: str) -> Torch:
    """Read ``torch/version.py``."""
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=]*=\s*(?:None|'([^']*)')", text, re.MULTILINE)
    rocm = re.search(r"^hip\b[^=]*=\s*'([^']*)'", text, re.MULTILINE)
    if version is None or cuda is None:
        return Torch("unknown")
    return Torch("found", version[1], cuda[1] or "", rocm[1] if rocm is not None else "")


def _probe_network() -> tuple[NetworkLink, ...] | None:
    try:
        states = psutil.net_if_stats()
    except (OSError, psutil.Error):
        return None
    return tuple(
        NetworkLink(name, state.speed * 1e6 / 8 if state.speed > 0 else None)
        for name, state in sorted(states.items())
        if state.isup and name not in ("lo", "lo0")
    )


def _free_bytes(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except OSError:
        return None
