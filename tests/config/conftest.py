from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from djinn_lab.config.detection import Cuda, CudaDevice, Facts, RunningPool

GIB = 2**30
Machine = Callable[..., Facts]


def build_machine(
    *,
    cores: float = 8,
    memory_gib: float | None = 16,
    cuda_gib: tuple[float, ...] = (),
    cuda_status: str = "",
    shared_gib: float | None = 8,
    packages: tuple[str, ...] = (),
) -> Facts:
    """Facts as ``detect()`` would state them; ``cuda_gib`` lists the memory of each CUDA device."""
    if cuda_gib:
        devices = tuple(CudaDevice("H200", int(size * GIB), int(size * GIB)) for size in cuda_gib)
        cuda = Cuda("found", devices, f"{len(devices)} CUDA device(s), the first a H200")
    elif cuda_status == "unknown":
        cuda = Cuda("unknown", (), "nvidia-smi did not answer within 5 s")
    else:
        cuda = Cuda("absent", (), "no NVIDIA driver and no nvidia-smi on this machine")
    return Facts(
        cores=cores,
        memory_bytes=None if memory_gib is None else int(memory_gib * GIB),
        memory_detail="available now" if memory_gib is not None else "available memory could not be read",
        cuda=cuda,
        shared_memory_bytes=None if shared_gib is None else int(shared_gib * GIB),
        packages=tuple(packages),
        pool=RunningPool("absent", "none runs"),
    )


@pytest.fixture
def machine() -> Machine:
    return build_machine


@pytest.fixture
def environments() -> list[dict[str, object]]:
    """The scripted environments, each with its ``facts``."""
    table = tomllib.loads((Path(__file__).parent / "environments.toml").read_text())
    found = []
    for entry in table["environment"]:
        keys = ("cores", "cuda_gib", "cuda_status", "packages")
        options = {key: entry[key] for key in keys if key in entry}
        entry["facts"] = build_machine(memory_gib=entry.get("memory_gib"), **options)
        found.append(entry)
    return found


@pytest.fixture(autouse=True)
def config_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has its own, empty configuration folder."""
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"
