"""Modules whose own C++ code reads the memory of tensors, past every op."""

from __future__ import annotations

from typing import Any, NoReturn

from torch.nn.parallel import DistributedDataParallel

from djinn_lab.capture.torch_functions.replaced import Wanted
from djinn_lab.errors import CaptureError


def _refuse(original: Any) -> Any:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise CaptureError(
            "DistributedDataParallel cannot be captured: its own C++ code copies the gradients.",
            "Use the module that it wraps; --gang lets one cell have several devices. Or run the cell with "
            "%%local, after session.pull(module).",
        )

    return refuse


REFUSED_MODULES: tuple[Wanted, ...] = tuple(
    (DistributedDataParallel, name, _refuse) for name in ("__init__", "forward")
)
