"""A device for tests on machines without a GPU: the CPU's kernels compute, everything else is as on a GPU.

Its memory is not the host's, its calls return before their results are there, faults come late, and accesses
that no event or wait orders are listed. Call :func:`install` once and :func:`configure` before the first use.
The device is ``torch.device("standin:0")``; torch knows this package as its module (``torch.standin``).
A pool's processes have it by :mod:`standin_autoload`.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch.utils.backend_registration import (
    generate_methods_for_privateuse1_backend,
    rename_privateuse1_backend,
)

from standin.building import CannotBuild, build, load

__all__ = [
    "CannotBuild",
    "build",
    "configure",
    "counters",
    "current_device",
    "current_stream",
    "device",
    "device_count",
    "empty_cache",
    "fail_next",
    "get_amp_supported_dtype",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "install",
    "interrupt_kernels",
    "is_available",
    "is_initialized",
    "is_pinned",
    "link_bytes_per_s",
    "manual_seed",
    "manual_seed_all",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "next_kernel_takes",
    "pin",
    "races",
    "seed_all",
    "set_device",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "synchronize",
    "unpin",
]

NAME = "standin"
Device = torch.device | int | str | None

link_bytes_per_s: float
"""The rate of each direction of the link for pinned memory, as configured."""


def __getattr__(name: str) -> object:
    if name == "link_bytes_per_s":
        return float(load().settings().link_bytes_per_s)
    if name == "default_generators" and not load().settings().host_random:
        return tuple(_generator(index) for index in range(device_count()))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# --- for tests --------------------------------------------------------------------------------------------


def install() -> None:
    """Register the device type ``standin`` with torch. Builds it first where needed; once a process.

    Raises CannotBuild on a machine without a compiler.
    """
    if getattr(torch, NAME, None) is not None:
        return
    load()
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, __import__(NAME))
    generate_methods_for_privateuse1_backend()


def configure(
    devices: int = 1,
    memory_bytes: int = 2**30,
    context_bytes: int = 64 * 2**20,
    card: str = "",
    manual: bool = False,
    log: str | None = None,
    host_random: bool = True,
    *,
    launch_s: float = 3e-6,
    kernel_bytes_per_s: float = 20e9,
    link_bytes_per_s: float = 2e9,
) -> None:
    """Choose what the machine has. Raises RuntimeError once a device has been used.

    Each of ``devices`` has ``memory_bytes``, which all processes that name the same file ``card`` share.
    A process's first use costs ``context_bytes``. With ``manual`` the clock moves only when the host waits or
    asks. Races and faults are appended to the file ``log``. With ``host_random`` draws are those of the
    CPU's default generator. A kernel takes ``launch_s`` or its bytes by ``kernel_bytes_per_s``, whichever is
    longer; each direction of the link has a rate.
    """
    wanted = load().Settings()
    wanted.devices, wanted.memory_bytes, wanted.context_bytes = devices, memory_bytes, context_bytes
    wanted.card, wanted.manual, wanted.log, wanted.host_random = card, manual, log or "", host_random
    wanted.launch_s, wanted.kernel_bytes_per_s = launch_s, kernel_bytes_per_s
    wanted.link_bytes_per_s = link_bytes_per_s
    load().configure(wanted)


def races() -> list[str]:
    """Return, and forget, the accesses so far that no event or wait orders."""
    return list(load().take_races())


def counters(device: Device = None) -> dict[str, int]:
    """Return how many kernels were launched, views made, copies over the link made, and waits of the host."""
    return dict(load().counters(_index(device)))


def fail_next(text: str) -> None:
    """Let the next kernel fail with this text: later calls raise torch.AcceleratorError."""
    load().fail_next(text)


def next_kernel_takes(seconds: float) -> None:
    """Let the next kernel take so long; infinity: it never ends, and who waits for it is blocked."""
    load().next_kernel_takes(seconds)


def interrupt_kernels() -> None:
    """End what is running with a fault, as a driver's watchdog does: waits raise torch.AcceleratorError."""
    load().interrupt_kernels()


# --- memory -----------------------------------------------------------------------------------------------


def memory_reserved(device: Device = None) -> int:
    """Return the bytes that torch holds of the device, in use or cached."""
    return torch.accelerator.memory_reserved(_index(device))


def memory_allocated(device: Device = None) -> int:
    """Return the bytes that tensors hold."""
    return torch.accelerator.memory_allocated(_index(device))


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return the device's free and total bytes; free is what no process holds."""
    free, total = load().memory_info(_index(device))
    return int(free), int(total)


def empty_cache() -> None:
    """Give cached memory back to the card, for other processes."""
    torch.accelerator.empty_cache()


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let torch reserve no more of a device for this process than this part of it."""
    load().limit_memory(_index(device), int(fraction * load().settings().memory_bytes))


def pin(address: int, nbytes: int) -> None:
    """Register a range of host memory, as cudaHostRegister does. Raises RuntimeError if one overlaps it."""
    load().pin(address, nbytes)


def unpin(address: int) -> None:
    """Undo :func:`pin`. Raises RuntimeError where no range begins at the address."""
    load().unpin(address)


def is_pinned(address: int) -> bool:
    """Return whether the address lies in pinned memory."""
    return bool(load().is_pinned(address))


# --- what torch asks of a device's module -----------------------------------------------------------------


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return bool(load().in_bad_fork())


def device_count() -> int:
    return int(load().settings().devices)


def current_device() -> int:
    return int(load().current_device())


def set_device(device: Device) -> None:
    load().set_device(_index(device))


def synchronize(device: Device = None) -> None:
    torch.accelerator.synchronize(_index(device))


class device(torch.accelerator.device_index):
    """A context in which this device is the current one."""

    def __init__(self, device: Device) -> None:
        super().__init__(_index(device))


def current_stream(device: Device = None) -> torch.Stream:
    return torch.accelerator.current_stream(_index(device))


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


# --- random numbers ---------------------------------------------------------------------------------------


def _generator(device: Device) -> torch.Generator:
    found: torch.Generator = load().default_generator(_index(device))
    return found


def manual_seed(seed: int) -> None:
    """Seed the current device's default generator."""
    _generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the default generator of every device."""
    for index in range(device_count()):
        _generator(index).manual_seed(seed)


def seed_all() -> None:
    """Seed the default generator of every device with a number of chance."""
    manual_seed_all(_generator(0).seed())


def initial_seed() -> int:
    """Return the seed of the current device's default generator."""
    return _generator(None).initial_seed()


def get_rng_state(device: Device = None) -> torch.Tensor:
    """Return the state of the device's default generator, on the host."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Device = None) -> None:
    """Set the state of the device's default generator."""
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)


def _index(device: Device) -> int:
    """Return a device's number; the current one's for None and for a device without a number."""
    if isinstance(device, int):
        return device
    if device is not None:
        device = torch.device(device)
        if device.index is not None:
            return device.index
    return current_device()
