"""Runs programs captured for a GPU beside eager ones on it, and a real pool with it (``make sweep-cuda``)."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from sweeps.cuda.pools import gpu_pool, repeated_cell, walk
from sweeps.cuda.programs import PROGRAMS, Program
from sweeps.result_file import SweepResult

from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session


def compare(session: Session, prepare: Callable[[], Program]) -> str:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(7)
    eager = [one.detach().cpu() for one in prepare()()]
    torch.use_deterministic_algorithms(False)
    torch.manual_seed(7)
    program = prepare()
    with session.capture("captured"):
        made = program()
    pairs = [(a.double(), b.detach().cpu().double()) for a, b in zip(eager, made, strict=True)]
    if all(torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0)) for a, b in pairs):
        return "equal bits"
    close = all(torch.allclose(a, b, 1e-2, 1e-2, equal_nan=True) for a, b in pairs)
    worst = max((a - b).abs().max().item() for a, b in pairs if a.numel())
    return f"{'close' if close else 'WRONG'}, off by {worst:.2g}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = SweepResult("cuda", 7)
    programs: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="djinn-cuda-") as directory, gpu_pool(Path(directory)) as pool:
        session = connect(name="programs")
        for name, prepare in PROGRAMS.items():
            try:
                programs[name] = compare(session, prepare)
            except Exception as error:  # noqa: BLE001 - each is reported
                programs[name] = f"FAILED {type(error).__name__}: {str(error)[:400]}"
            print(name, programs[name], flush=True)
        session.close()
        acts = walk(pool)
    with (
        tempfile.TemporaryDirectory(prefix="djinn-cuda-") as directory,
        gpu_pool(Path(directory), region_compiler="cuda-graphs") as pool,
    ):
        acts["recorded_cell"] = walk(pool, (repeated_cell,))["repeated_cell"]
    device = torch.cuda.get_device_name()
    result.write(options.out, device=device, torch=str(torch.__version__), programs=programs, pool=acts)
    failed = [name for name, said in (programs | acts).items() if said.startswith(("FAILED", "WRONG"))]
    print(json.dumps({"failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
