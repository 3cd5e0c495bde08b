"""What a program leaves behind, as text that two processes can compare: variables, optimizers, files."""

from __future__ import annotations

import hashlib
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from equality import leaves

_KEPT = (torch.Tensor, torch.nn.Module, np.ndarray, np.generic, bool, int, float, str, list, tuple, dict)
_MASKS = (
    (r"0x[0-9a-f]{6,}", "<address>"),
    (r"<_?djinn[^>]*>", "<object>"),
    (
        r"\d+(\.\d+)?(e-?\d+)?(?=\s*(s|ms|µs|us|sec|secs|seconds|minutes|min|it/s|ms/batch|tokens/sec|tok/sec)\b)",
        "<time>",
    ),
    (r"(ms/batch|tok/s|it/s)(\s*)\d+(\.\d+)?", r"\1 <time>"),
    (r"(?i)(time|elapsed|took|duration|tokens/sec|sec|seconds)(\w*\W{1,12})\d+(\.\d+)?", r"\1\2<time>"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?(\.\d+)?", "<date>"),
)

_CLOCK = re.compile(r"(?i)time|elapsed|seconds|duration|^t0$|^t1$|^dt$|^(start|end|since)$")
"""Variables that hold what a clock said."""

made_optimizers: list[torch.optim.Optimizer] = []


def remember_optimizers() -> None:
    """Keep every optimizer, so that parameters are compared although they were local to a function."""
    original = torch.optim.Optimizer.__init__

    def init(self: Any, *args: Any, **named: Any) -> None:
        original(self, *args, **named)
        made_optimizers.append(self)

    torch.optim.Optimizer.__init__ = init  # type: ignore[method-assign]


def observe(
    namespace: Mapping[str, Any], printed: str, folder: Path, masks: list[list[str]]
) -> dict[str, Any]:
    variables = {
        name: value
        for name, value in namespace.items()
        if not name.startswith("_")
        and not _CLOCK.search(name)
        and isinstance(value, _KEPT)
        and not isinstance(value, types.ModuleType)
    }
    optimizers = [[item.param_groups, item.state_dict()] for item in made_optimizers]
    found = {
        f"{kind}{path}": digest(value)
        for kind, tree in (("variable", variables), ("optimizer", optimizers), ("file", _saved(folder)))
        for path, value in leaves(tree).items()
    }
    return {"values": found, "printed": mask(printed, masks)}


def _saved(folder: Path) -> dict[str, Any]:
    """Tensors in the files that the program wrote."""
    found = {}
    for path in sorted(folder.rglob("*.p[tk]*")):
        try:
            found[str(path.relative_to(folder))] = torch.load(path, weights_only=False)
        except Exception:  # noqa: BLE001 - not a file of torch's
            continue
    return found


def digest(value: object) -> str:
    if isinstance(value, torch.Tensor):
        host = value.detach().cpu()
        if host.layout is not torch.strided:
            host = host.to_dense()
        data = host.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        content = hashlib.sha256(data).hexdigest()[:16]
        return f"tensor {tuple(value.shape)} {value.dtype} {content} {_shown(host)}"
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            return f"array {value.shape} of objects"
        return f"array {value.shape} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()[:16]}"
    return mask(repr(value), [])


def _shown(host: torch.Tensor) -> str:
    return " ".join(f"{item:.4g}" for item in host.flatten()[:3].tolist()) if not host.is_complex() else ""


def mask(text: str, masks: list[list[str]]) -> str:
    for pattern, new in (*masks, *_MASKS):
        text = re.sub(pattern, new, text)
    return text
