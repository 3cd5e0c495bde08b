"""What was detected, in words, for every face of the wizard."""

from __future__ import annotations

from djinn_lab.config.detection import Facts, NetworkLink
from djinn_lab.units import format_bytes, format_seconds


def facts_rows(facts: Facts) -> list[tuple[str, str]]:
    """Return what was detected, as label and sentence; a failed probe says *unknown*."""
    memory = format_bytes(facts.memory_bytes) if facts.memory_bytes is not None else "unknown:"
    shared = facts.shared_memory_bytes
    return [
        ("CUDA devices", f"{facts.cuda.status}: {facts.cuda.detail}"),
        ("Cores", f"{facts.cores:g} usable"),
        ("Memory", f"{memory} {facts.memory_detail}"),
        ("Network", _network_sentence(facts.network)),
        ("Torch", _torch_sentence(facts)),
        ("Shared memory", f"{format_bytes(shared)} free in /dev/shm" if shared is not None else "unknown"),
        ("Packages", ", ".join(facts.packages) or "none that shows the workload"),
        ("Pool", f"{facts.pool.status}: {facts.pool.detail}" if facts.pool.detail else facts.pool.status),
    ]


def _network_sentence(links: tuple[NetworkLink, ...] | None) -> str:
    """Return the network interfaces, each with how long tensors of a GiB take to a pool elsewhere."""
    if links is None:
        return "unknown"
    if not links:
        return "none: only a pool on this machine can be reached"
    return "; ".join(_link_sentence(link) for link in links)


def _link_sentence(link: NetworkLink) -> str:
    if link.bytes_per_s is None:
        return f"{link.name}, whose speed is unknown"
    return f"{link.name}, {format_seconds(2**30 / link.bytes_per_s)} for a GiB to a pool elsewhere"


def _torch_sentence(facts: Facts) -> str:
    torch = facts.torch
    if torch.status != "found":
        return torch.status
    return f"{torch.version}, built for {f'CUDA {torch.cuda}' if torch.cuda else 'CPUs only'}"
