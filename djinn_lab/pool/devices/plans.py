"""The devices of this machine, and how much of each the pool may use. Does not import torch."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import psutil

from djinn_lab.config import PoolSettings
from djinn_lab.config.fields import CPU_DEVICES_MAX
from djinn_lab.errors import OptionError
from djinn_lab.plugins import find_plugin
from djinn_lab.pool.devices.cuda_cards import Card, find_cards
from djinn_lab.pool.devices.other_accelerators import find_accelerators
from djinn_lab.protocol.compiling import BUILT_IN_COMPILERS, CUDA_GRAPHS, INDUCTOR, REGION_COMPILERS
from djinn_lab.protocol.device_processes import process_bytes
from djinn_lab.protocol.host_limit import free_shared_memory, largest_host_bytes
from djinn_lab.system.host import usable_cores
from djinn_lab.units import format_bytes

CPU_DEVICES_DEFAULT = 2
CPU_BYTES_MAX = 4 * 2**30
CPU_SHARE_OF_AVAILABLE = 0.4
CUDA_SHARE_OF_MEMORY = 0.92
"""Of what is free on a card; the rest is the CUDA context's and the libraries' own."""
CPU_HOST_FACTOR = 2
"""Host tier of a CPU device, in units of its memory."""
CPU_SHARE_FOR_HOST = 0.2
CUDA_SHARE_FOR_HOST = 0.8
"""Of available memory, for all host tiers together: on CPU devices the rest is what they compute in."""
SHARE_OF_SHARED_MEMORY = 0.45
"""Of free shared memory, for all host tiers together: uploads take up to half of it."""


class DevicePlan(msgspec.Struct, frozen=True):
    """Describe a worker to start. ``memory_bytes`` is the limit it enforces. ``host_bytes``, ``disk_bytes``:
    of its sessions' parked state, 0 for none. ``link_bytes_per_s``: of a CPU device, 0 for as fast as
    memory. ``spare_bytes``: of an accelerator, what is free beside ``memory_bytes``. ``host``: where it is,
    empty for the pool's own machine. ``region_compiler``: what compiles for it
    (:func:`checked_region_compiler`)."""

    device: str
    kind: str
    memory_bytes: int
    threads: int
    host_bytes: int = 0
    disk_bytes: int = 0
    link_bytes_per_s: int = 0
    spare_bytes: int = 0
    host: str = ""
    region_compiler: str = INDUCTOR


def plan_devices(
    devices: str | None,
    memory_bytes: int | None,
    threads: int | None,
    *,
    host_bytes: int | None = None,
    disk_bytes: int = 0,
    link_bytes_per_s: int | None = None,
    region_compiler: str = INDUCTOR,
) -> list[DevicePlan]:
    """``devices``: ``"auto"`` (or None), ``"cpu:N"``, ``"cpu"``, ``"cuda"``, or ``"NAME:N"`` of another
    accelerator that an installed package adds to torch. The sizes are per device; None takes a share of what
    this machine has. Raises OptionError."""
    plans = _computing(devices, memory_bytes, threads)
    check_recording(region_compiler, plans)
    rate = PoolSettings().link_bytes_per_s if link_bytes_per_s is None else link_bytes_per_s
    return [
        msgspec.structs.replace(
            plan,
            host_bytes=_host_share(plan, len(plans)) if host_bytes is None else host_bytes,
            disk_bytes=disk_bytes,
            link_bytes_per_s=rate if plan.kind == "cpu" else 0,
            region_compiler=compiler_for(plan.kind, region_compiler),
        )
        for plan in plans
    ]


def checked_region_compiler(name: str) -> str:
    """Return the name of a region compiler: ``"inductor"``, ``"cuda-graphs"``, or one that an installed
    package offers. Raises OptionError for any other."""
    find_plugin(REGION_COMPILERS, "region compiler", name, BUILT_IN_COMPILERS)
    return name


def compiler_for(kind: str, name: str) -> str:
    """Return what compiles for a kind of device: a CPU has no CUDA graphs."""
    return INDUCTOR if name == CUDA_GRAPHS and kind == "cpu" else name


def check_recording(name: str, plans: Sequence[DevicePlan]) -> None:
    """Raise OptionError for CUDA graphs without a GPU."""
    if name == CUDA_GRAPHS and all(plan.kind == "cpu" for plan in plans):
        raise OptionError(
            f"--region-compiler {name}: the pool has no GPU.",
            f"Leave it out: {INDUCTOR} compiles for CPU devices.",
        )


def check_host_bytes(plans: Sequence[DevicePlan], wanted: int | None) -> None:
    """Raise OptionError where each of these devices cannot have so much of the host for parked sessions."""
    if wanted is None:
        return
    count, available, shared = len(plans), largest_host_bytes(), free_shared_memory()
    if wanted * count > available:
        raise OptionError(
            f"{count} x {format_bytes(wanted)} of host memory for parked sessions are more than the "
            f"{format_bytes(available)} that this machine has left.",
            f"Give each device at most {format_bytes(int(available * CUDA_SHARE_FOR_HOST / count))}.",
        )
    if shared is not None and wanted * count > shared:
        raise OptionError(
            f"{count} x {format_bytes(wanted)} of host memory for parked sessions are more than the "
            f"{format_bytes(shared)} that shared memory (/dev/shm) has left.",
            f"Give each device at most {format_bytes(int(shared * SHARE_OF_SHARED_MEMORY / count))}, or "
            "enlarge it: mount -o remount,size=SIZE /dev/shm, in a container --shm-size.",
        )


def _host_share(plan: DevicePlan, count: int) -> int:
    shared = free_shared_memory()
    share = default_host_bytes(plan.kind, plan.memory_bytes, largest_host_bytes(), count)
    return share if shared is None else min(share, int(shared * SHARE_OF_SHARED_MEMORY / count))


def default_host_bytes(kind: str, memory_bytes: int, available_bytes: int, count: int) -> int:
    """Return the limit of a device's host tier, of ``count`` devices of a kind."""
    if kind != "cpu":
        return int(available_bytes * CUDA_SHARE_FOR_HOST / count)
    return min(CPU_HOST_FACTOR * memory_bytes, int(available_bytes * CPU_SHARE_FOR_HOST / count))


def _computing(devices: str | None, memory_bytes: int | None, threads: int | None) -> list[DevicePlan]:
    wanted = devices or "auto"
    if wanted in ("auto", "cuda"):
        found = find_cards()
        if found.cards:
            return _plan_cards("cuda", found.cards, memory_bytes, threads)
        if wanted == "cuda" or found.problem:
            problem = found.problem or "there is no NVIDIA driver, or CUDA_VISIBLE_DEVICES hides all devices"
            raise OptionError(
                f"No CUDA device can be used here: {problem}.",
                f"{found.advice} Or compute on CPUs: --devices cpu:{CPU_DEVICES_DEFAULT}.".strip(),
            )
        return _plan_cpu(CPU_DEVICES_DEFAULT, memory_bytes, threads)
    named = re.fullmatch(r"(?!cpu|cuda)([a-z]\w*):(\d{1,3})", wanted)
    if named and int(named[2]):
        cards = find_accelerators(named[1], int(named[2]))
        return _plan_cards(named[1], cards, memory_bytes, threads)
    return _plan_cpu(cpu_count_of(wanted), memory_bytes, threads)


def cpu_count_of(devices: str) -> int:
    """Return N of ``"cpu:N"``, 1 of ``"cpu"``. Raises OptionError for anything else."""
    match = re.fullmatch(r"cpu(?::(\d{1,3}))?", devices)
    if not match or not 1 <= int(match[1] or 1) <= CPU_DEVICES_MAX:
        raise OptionError(
            f"{devices!r} names no devices.",
            f"Write auto, cuda, or cpu:N with N from 1 to {CPU_DEVICES_MAX}, such as cpu:4.",
        )
    return int(match[1] or 1)


def _plan_cpu(count: int, memory_bytes: int | None, threads: int | None) -> list[DevicePlan]:
    limit = memory_bytes or cpu_limit_bytes(psutil.virtual_memory().available, count)
    each = threads or max(1, usable_cores() // count)
    return [DevicePlan(f"cpu:{index}", "cpu", limit, each) for index in range(count)]


def _plan_cards(
    kind: str, cards: Sequence[Card], memory_bytes: int | None, threads: int | None
) -> list[DevicePlan]:
    each = threads or max(1, usable_cores() // len(cards))
    plans = (DevicePlan(f"{kind}:{index}", kind, memory_bytes or 0, each) for index in range(len(cards)))
    return [on_card(plan, card) for plan, card in zip(plans, cards, strict=True)]


def on_card(plan: DevicePlan, card: Card) -> DevicePlan:
    """Fill in what a card has for a plan: all of its memory where that is 0. Raises OptionError as
    :func:`card_limit_bytes` does."""
    limit = card_limit_bytes(card, plan.kind, plan.memory_bytes)
    return msgspec.structs.replace(plan, memory_bytes=limit, spare_bytes=card.free_bytes - limit)


def cpu_limit_bytes(available_bytes: int, count: int) -> int:
    """Return how much memory sessions may use on each of ``count`` CPU devices."""
    return min(CPU_BYTES_MAX, int(available_bytes * CPU_SHARE_OF_AVAILABLE / count))


def card_limit_bytes(card: Card, kind: str, wanted_bytes: int | None = None) -> int:
    """Return how much of a card's memory sessions may use. Raises OptionError where more is wanted than other
    processes, and a worker's own, leave of it."""
    own_bytes = process_bytes(kind)
    left_bytes = card.free_bytes - own_bytes
    if max(wanted_bytes or 0, 1) > left_bytes:
        wanted = f"{format_bytes(wanted_bytes)} for sessions" if wanted_bytes else "A session"
        raise OptionError(
            f"{wanted} and the {format_bytes(own_bytes)} that a worker's process takes for itself are more "
            f"than the {format_bytes(card.free_bytes)} of {format_bytes(card.total_bytes)} that are free on "
            f"the {card.name}.",
            "End what else runs on it (nvidia-smi lists the processes), or give a smaller --memory.",
        )
    return wanted_bytes or min(left_bytes, int(card.free_bytes * CUDA_SHARE_OF_MEMORY))
