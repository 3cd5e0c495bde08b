"""``make sweep-patterns``: patterns that are found in the graphs of models, beside the classes of their
modules.

Architectures of transformers, tiny and random: a fixed sample of each family, or all of them (``--all``). The
result lists precision and recall for each family and kind."""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import transformers
from architectures import build, model_types
from checks import _accepted, _forward
from in_process import InProcessBackend, cell
from truth import compare, describe

from benchmarks.machine import checkout_commit, now, this_machine
from djinn_lab.capture.recorders import make_recorder
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.merging import merge_programs

HERE = Path(__file__).parent
RESULTS = HERE.parents[2] / "benchmarks" / "results"
FAMILIES = {
    "text, decoder": "causal",
    "text, encoder": "masked",
    "text, encoder and decoder": "seq2seq",
    "vision": "vision",
    "audio": "audio",
    "multi-modal": "base",
}
"""Families of models by transformers' tables."""
MULTI_MODAL = ("clip", "siglip", "blip", "flava", "align", "altclip", "chinese_clip", "groupvit", "git")
SAMPLE = 12
"""Architectures of each family in a sample, evenly chosen."""


def graph_of(family: str, model_type: str) -> tuple[Any, SRG]:
    """Build a model and capture its forward pass. Raises what transformers raises."""
    model = build(family, model_type)
    inputs = _accepted(model)
    backend = InProcessBackend()
    with cell(make_recorder(backend)):
        returned = _forward(model, inputs)
    assert returned is not None  # what is kept of the cell
    return model, SRG.from_program(merge_programs(backend.programs))


def chosen(family: str, everything: bool) -> list[str]:
    names = [name for name in MULTI_MODAL if name in model_types(family)] if family == "base" else []
    names = names or model_types(family)
    if everything:
        return names
    step = max(1, len(names) // SAMPLE)
    return names[::step][:SAMPLE]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make sweep-patterns", description=__doc__)
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/patterns-<machine>-<date>.json")
    parser.add_argument("--all", action="store_true", help="every architecture, not a sample")
    parser.add_argument("--differences", action="store_true", help="print each pattern or module alone")
    options = parser.parse_args()
    commit = checkout_commit()
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    models: Counter[str] = Counter()
    for title, family in FAMILIES.items():
        for model_type in chosen(family, options.all):
            try:
                model, srg = graph_of(family, model_type)
            except Exception as error:  # noqa: BLE001 - an architecture that eager torch refuses, too
                print(f"{family}/{model_type}: left out: {str(error).splitlines()[:1]}", flush=True)
                continue
            models[title] += 1
            for kind, found in compare(model, srg).items():
                counts[title][kind].update(found)
            for line in describe(model, srg) if options.differences else ():
                print(f"{family}/{model_type}: {line}", flush=True)
    families = {title: _rates(by_kind) for title, by_kind in counts.items()}
    whole: dict[str, Counter[str]] = defaultdict(Counter)
    for by_kind in counts.values():
        for kind, found in by_kind.items():
            whole[kind].update(found)
    result = {
        "what": "patterns found in graphs, beside the classes of modules of transformers' architectures",
        "commit": commit,
        "machine": asdict(this_machine()),
        "transformers": transformers.__version__,
        "torch": str(torch.__version__),
        "date": now().isoformat(),
        "models": dict(models),
        "families": families,
        "all": _rates(whole),
    }
    out = options.out or RESULTS / f"patterns-{this_machine().slug}-{now().date()}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result["all"], indent=1))
    print(out)


def _rates(by_kind: dict[str, Counter[str]]) -> dict[str, dict[str, float | int | None]]:
    return {
        kind: {
            **{name: found[name] for name in ("both", "missed", "extra")},
            "precision": _part(found["both"], found["extra"]),
            "recall": _part(found["both"], found["missed"]),
        }
        for kind, found in by_kind.items()
    }


def _part(right: int, wrong: int) -> float | None:
    return round(right / (right + wrong), 4) if right + wrong else None


if __name__ == "__main__":
    main()
