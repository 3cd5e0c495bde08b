"""Compares captured calls with eager ones over torch's operator database (``make sweep-ops``)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sweeps.operators.runs import MODES, Bench
from sweeps.operators.samples import dtypes, operators, samples
from sweeps.operators.tally import Tally
from sweeps.operators.variants import KINDS, Variant, gradients, variants

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.capture.recorders import chosen

VIEW_SAMPLES = 8
"""Of each operator and dtype, so many samples, evenly spread, are also called on views."""


def calls(op: Any, dtype: torch.dtype, kinds: tuple[str, ...]) -> Iterator[tuple[int, Variant]]:
    every = list(samples(op, dtype))
    step = max(1, len(every) // VIEW_SAMPLES)
    for sample in every:
        wanted = tuple(kind for kind in kinds if kind != "views" or sample.index % step == 0)
        for variant in variants(op, sample, wanted):
            yield sample.index, variant
    if "gradients" in kinds and op.supports_autograd and dtype is torch.float32:
        for sample in samples(op, dtype, gradients=True):
            found = gradients(op, sample)
            if found is not None:
                yield sample.index, found


def sweep(options: argparse.Namespace) -> Tally:
    tally = Tally()
    chosen = operators(options.only)[options.part - 1 :: options.parts]
    started = time.monotonic()
    for position, op in enumerate(chosen, 1):
        bench = Bench()
        for dtype in dtypes(op):
            if options.dtype not in (None, str(dtype).removeprefix("torch.")):
                continue
            for index, variant in calls(op, dtype, options.kinds):
                for mode in MODES:
                    verdict = bench.judge(variant, mode)
                    name = str(dtype).removeprefix("torch.")
                    tally.add(op.formatted_name, name, index, variant.name, mode, verdict)
        done = tally.summary()
        elapsed = time.monotonic() - started
        print(
            f"\r{position}/{len(chosen)} {op.formatted_name:45.45} {done['runs']} runs, "
            f"{done['silently wrong']} silently wrong, {done['runs'] - done['right']} not right, "
            f"{elapsed:.0f} s",
            end="" if sys.stdout.isatty() else "\n",
            flush=True,
        )
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="one operator by name")
    parser.add_argument("--dtype", help="only this dtype, e.g. float32")
    parser.add_argument("--kinds", default=",".join(KINDS), help="some of " + ",".join(KINDS))
    parser.add_argument("--part", type=int, default=1, help="which of --parts slices of the operators")
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--merge", type=Path, nargs="+", help="put such files together; runs nothing")
    parser.add_argument("--out", type=Path, help="a file, or a folder for operators-<machine>-<date>.json")
    options = parser.parse_args()
    options.kinds = tuple(options.kinds.split(","))
    torch.set_num_threads(1)
    started, commit = time.monotonic(), checkout_commit()
    tally = sweep(options) if options.merge is None else _merged(options.merge)
    content: dict[str, Any] = {
        "format": 1,
        "finished_at": now().isoformat(),
        "seconds": round(time.monotonic() - started + sum(map(_seconds, options.merge or ()))),
        "machine": asdict(this_machine()),
        "commit": commit,
        "recorder": chosen(),
        "kinds": options.kinds,
        "operators": len(operators(options.only)),
        "summary": tally.summary(),
        "counts": tally.rows(),
        "not_equal": tally.not_equal(),
    }
    if options.out is not None:
        _write(options.out, content)
    print("\n" + json.dumps(content["summary"], indent=1))
    return 1 if content["summary"]["silently wrong"] else 0


def _merged(files: list[Path]) -> Tally:
    tally = Tally()
    for file in files:
        tally.add_all(json.loads(file.read_text()))
    return tally


def _seconds(file: Path) -> float:
    return float(json.loads(file.read_text())["seconds"])


def _write(out: Path, content: dict[str, Any]) -> None:
    name = f"operators-{this_machine().slug}-{now().date().isoformat()}.json"
    path = out / name if out.is_dir() else out
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\nwritten to {path}")


if __name__ == "__main__":
    sys.exit(main())
