"""Runs programs captured for a GPU beside eager ones on it, and a real pool with it (``make sweep-cuda``)."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from sweeps.cuda.pools import ACTS, gpu_pool, recorded_decoding, repeated_cell, walked
from sweeps.cuda.programs import PROGRAMS, Program
from sweeps.result_file import SweepResult, Verdict

from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session

TOLERANCE = 1e-2
"""Relative, and absolute: half-precision kernels that eager chooses otherwise differ by so much."""


def compare(session: Session, prepare: Callable[[], Program]) -> Verdict:
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
        return Verdict(True, "equal bits")
    close = all(torch.allclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True) for a, b in pairs)
    worst = max((a - b).abs().max().item() for a, b in pairs if a.numel())
    return Verdict(close, f"off by {worst:.2g}")


def compared(session: Session) -> dict[str, Verdict]:
    found: dict[str, Verdict] = {}
    for name, prepare in PROGRAMS.items():
        try:
            found[name] = compare(session, prepare)
        except Exception as error:  # noqa: BLE001 - each is reported
            found[name] = Verdict(False, f"{type(error).__name__}: {str(error)[:400]}")
        print(name, *found[name], flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = SweepResult("cuda", 7)
    with tempfile.TemporaryDirectory(prefix="djinn-cuda-") as directory, gpu_pool(Path(directory)) as pool:
        session = connect(name="programs")
        programs = compared(session)
        session.close()
        acts = walked(pool, (*ACTS, repeated_cell))
    with (
        tempfile.TemporaryDirectory(prefix="djinn-cuda-") as directory,
        gpu_pool(Path(directory), region_compiler="cuda-graphs") as pool,
    ):
        recorded = walked(pool, (repeated_cell, recorded_decoding))
        acts |= {
            "recorded_cell": recorded["repeated_cell"],
            "recorded_decoding": recorded["recorded_decoding"],
        }
    result.write(
        options.out,
        device=torch.cuda.get_device_name(),
        torch=str(torch.__version__),
        programs={name: verdict._asdict() for name, verdict in programs.items()},
        pool={name: verdict._asdict() for name, verdict in acts.items()},
    )
    failed = [name for name, verdict in (programs | acts).items() if not verdict.passed]
    print(json.dumps({"failed": failed}))
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
