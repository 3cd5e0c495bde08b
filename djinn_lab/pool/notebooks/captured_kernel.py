"""The kernel "Python (Djinn)", in which every cell is captured: its command, from our own files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from djinn_lab.errors import UserError

KERNEL_NAME = "djinn"
PROVISIONER_NAME = "djinn-provisioner"


def kernel_folder() -> Path:
    """Find the kernel's files in this installation. Raises UserError when they are missing."""
    import djinn_lab

    for place in djinn_lab.__path__:
        folder = Path(place) / "kernels" / KERNEL_NAME
        if (folder / "kernel.json").is_file():
            return folder
    raise UserError(
        "This installation has no kernel files.", "Install djinn-lab again from a complete package."
    )


def kernel_spec(template: dict[str, Any], provisioner: bool = False) -> dict[str, Any]:
    """Make a kernel spec of the shipped one, with this Python in place of ``python``."""
    words = [sys.executable if word == "python" else word for word in template["argv"]]
    spec = {**template, "argv": words}
    if provisioner:
        spec["metadata"] = {
            **template.get("metadata", {}),
            "kernel_provisioner": {"provisioner_name": PROVISIONER_NAME},
        }
    return spec
