"""Captures programs and operators on the pool that it finds, beside its own eager torch.

``python -m sweeps.torch_versions.client OUT --operators COUNT`` says on standard output what it begins, so
that its reader knows of what the process died."""

from __future__ import annotations

import argparse
import hashlib
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from sweeps.operators.fixed import fixed_calls
from sweeps.operators.outcomes import (
    CRASH,
    EQUAL,
    REFUSED,
    WRONG_LAYOUT,
    WRONG_VALUE,
    Outcome,
    Raised,
    Verdict,
)
from sweeps.operators.runs import Bench, eager_outcome
from sweeps.operators.samples import operators
from sweeps.torch_versions.tried_programs import PROGRAMS, SEED, Program
from torch.utils import _pytree as pytree

from djinn_lab.capture.allow_list import table
from djinn_lab.capture.recorders import Recorder, chosen
from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.errors import CaptureError


def digest(tensors: Sequence[Any]) -> str:
    """Return equal texts for equal bits; of what is no dense tensor, for what it is printed as."""
    found = hashlib.sha256()
    for one in tensors:
        if isinstance(one, torch.Tensor) and one.layout is torch.strided and not one.is_quantized:
            plain = one.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
            found.update(f"{one.dtype} {tuple(one.shape)}".encode())
            found.update(bytes(plain.view(torch.uint8).numpy(force=True)) if plain.numel() else b"")
        else:
            found.update(repr(one).encode())
    return found.hexdigest()[:16]


def eager_digest(outcome: Outcome) -> str:
    if isinstance(outcome, Raised):
        return f"raises {type(outcome.error).__name__}"
    return digest(outcome.leaves)


def run_program(session: Session, program: Program) -> dict[str, str]:
    torch.manual_seed(SEED)
    eager = [one.clone() for one in program()]
    torch.manual_seed(SEED)
    try:
        with session.capture(program.__name__):
            made = program()
        captured = [one.cpu() for one in made]
        verdict = _compared(eager, captured)
    except CaptureError as refusal:
        verdict = Verdict(REFUSED, str(refusal))
    except Exception as error:  # noqa: BLE001 - whatever is raised is what the sweep is about
        verdict = Verdict(CRASH, f"{type(error).__name__}: {error}")
    return {"outcome": verdict.outcome, "reason": verdict.reason, "inputs": "", "eager": digest(eager)}


def _compared(eager: Sequence[torch.Tensor], captured: Sequence[torch.Tensor]) -> Verdict:
    for place, (one, other) in enumerate(zip(eager, captured, strict=True)):
        if one.dtype != other.dtype or one.shape != other.shape:
            return Verdict(
                WRONG_LAYOUT, f"item {place}: {other.dtype} {other.shape} for {one.dtype} {one.shape}"
            )
        if digest([one]) != digest([other]):
            worst = (one.double() - other.double()).abs().max().item()
            return Verdict(WRONG_VALUE, f"item {place}: off by {worst:.3g}")
    return Verdict(EQUAL)


def run_operators(session: Session, count: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Run the fixed calls of ``count`` operators, evenly spread over torch's database; 0: of all."""

    def enter(recorder: Recorder) -> AbstractContextManager[object]:
        return session.capture("operator")

    bench, every = Bench(lambda: session.recorder, enter), operators()
    for op in every[:: max(1, len(every) // count)] if count else every:
        for variant, mode in fixed_calls(op):
            name = f"{op.formatted_name}: {variant.name}, {mode} inputs"
            print(name, flush=True)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's samples use what torch deprecates
                eager = eager_digest(eager_outcome(variant))
            verdict, inputs = bench.judge(variant, mode), digest(pytree.tree_leaves(variant.tree))
            said = {"outcome": verdict.outcome, "reason": verdict.reason}
            yield name, {**said, "inputs": inputs, "eager": eager}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--operators", type=int, default=0, help="how many; default: all")
    options = parser.parse_args()
    torch.set_num_threads(1)
    session = connect(name="torch versions")
    programs = {}
    for name, program in PROGRAMS.items():
        print(name, flush=True)
        programs[name] = run_program(session, program)
    found = {
        "torch": str(torch.__version__),
        "recorder": chosen(),
        "programs": programs,
        "operators": dict(run_operators(session, options.operators)),
        "pool": sorted({one.torch_version for one in session.welcome.devices}),
        "table": list(table()),
    }
    session.close()
    options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
