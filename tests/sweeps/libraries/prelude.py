"""Runs before a program's imports.

PyPI's torchvision is compiled for a CUDA torch. Beside a CPU torch its library of operators does not load and
the import fails at the operators that it describes in any case. With those declared the Python parts work:
models, transforms, all but detection.
"""

from importlib.util import find_spec
from pathlib import Path

import torch


def declare_torchvision_operators() -> None:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return
    try:
        torch.ops.load_library(Path(spec.origin).parent / "_C.so")
    except OSError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        torch._djinn_sweep_library = library  # type: ignore[attr-defined]  # declared as long as it lives


declare_torchvision_operators()
