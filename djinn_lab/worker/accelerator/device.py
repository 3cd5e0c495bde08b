"""What a worker asks of an accelerator beside its ops: CUDA, or one that an installed package adds to torch
(the entry points ``torch.backends``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from djinn_lab.protocol.device_processes import COPIES_BYTES

DEVICE_FAULT = 3
"""The exit code of a process whose accelerator refuses all further work, as after an index out of range."""


def is_accelerator(device: torch.device) -> bool:
    """Return whether ops on the device only begin when their calls return."""
    return device.type != "cpu"


def begin(device: torch.device) -> None:
    """Have the device's driver and libraries do what they do when they are first used."""
    matrix = torch.ones(64, 64, device=device)
    torch.conv2d((matrix @ matrix)[None, None], torch.ones(1, 1, 3, 3, device=device)).cpu()


def name_of(device: torch.device) -> str:
    """Return the product's name; that of the kind of device where torch says none."""
    ask = getattr(_module(device), "get_device_name", None)
    return device.type if ask is None else str(ask(device))


def reserved_bytes(device: torch.device) -> int:
    """Return what torch's allocator holds of the device for this process, in use or not."""
    return int(torch.accelerator.memory_reserved(device))


def free_bytes(device: torch.device) -> int:
    """Return the bytes of the device that no process holds."""
    return int(_module(device).mem_get_info(device)[0])


def limit_reserved(device: torch.device, nbytes: int) -> None:
    """Let torch's allocator hold no more of the device for this process than ``nbytes``, what it holds
    already, and what copies take. At the limit it returns what it keeps of freed tensors, and raises
    torch.OutOfMemoryError where that is no help."""
    limit = getattr(_module(device), "set_per_process_memory_fraction", None)
    if limit is not None:
        total = _module(device).mem_get_info(device)[1]
        limit(min(1.0, (nbytes + COPIES_BYTES) / total), device)


def generators(device: torch.device) -> Sequence[torch.Generator] | None:
    """Return the random generators of all devices of the kind; None where they draw from the CPU's."""
    found: Sequence[torch.Generator] | None = getattr(_module(device), "default_generators", None)
    return found


def register_memory(memory: torch.Tensor, device: torch.device) -> str:
    """Let the device read and write host memory by itself, at the link's rate; return why it does not, empty
    where it does."""
    module = _module(device)
    try:
        if hasattr(module, "cudart"):
            code = module.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
            return "" if int(code) == 0 else str(code)
        if hasattr(module, "pin"):
            module.pin(memory.data_ptr(), memory.nbytes)
            return ""
    except RuntimeError as error:
        return str(error)
    return f"torch's {device.type} registers no memory"


def unregister_memory(memory: torch.Tensor, device: torch.device) -> None:
    """Undo :func:`register_memory`, where it worked."""
    module = _module(device)
    if hasattr(module, "cudart"):
        module.cudart().cudaHostUnregister(memory.data_ptr())
    else:
        module.unpin(memory.data_ptr())


def fault_of(device: torch.device) -> torch.AcceleratorError | None:
    """Return the error with which a device answers everything from now on; None where it works. Waits for
    what is under way."""
    try:
        torch.accelerator.synchronize(device)
    except torch.AcceleratorError as error:
        return error
    return None


def _module(device: torch.device) -> Any:
    return torch.get_device_module(device)
