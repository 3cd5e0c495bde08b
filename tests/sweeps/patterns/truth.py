"""Which patterns a model has by the classes of its modules, beside those that are found in its graph.

A module stands for one pattern at each call. A pattern belongs to a module when its defining node ran below
it. Kinds without modules of their own (residual connections, updates of weights) are not compared."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from djinn_lab.srg.graph import SRG
from djinn_lab.srg.patterns import Pattern, find_patterns

CLASSES = {
    "attention": r".*(Self|Cross|Global|Causal)?Attention\d*$|.*MultiHead(ed)?Attention$",
    "mlp": r".*(MLP|Mlp|FFN|FeedForward(Layer)?|Dense(Relu|Act|GatedAct)Dense|Intermediate|Experts)$",
    "normalisation": r"(?!_WeightNorm).*Norm(1d|2d|3d)?(Gated)?$",
    "embedding": r"Embedding$|.*(ScaledWord|LearnedPositional)Embedding$",
    "convolution block": r"(Parametrized)?Conv[123]d$",
    "lm head": "",
}
"""By kind: names of the classes whose calls are one pattern each."""
GATED = "gated mlp"


def compare(model: torch.nn.Module, srg: SRG) -> dict[str, Counter[str]]:
    """Counts by kind: ``both``, ``missed`` (a module without a pattern), ``extra`` (the reverse)."""
    found = find_patterns(srg)
    counts: dict[str, Counter[str]] = {}
    for kind in CLASSES:
        modules = set(_modules(model, srg, kind))
        patterns = [one for one in found if one.kind in _kinds(kind)]
        covered: set[str] = set()
        extra = 0
        for pattern in patterns:
            paths = {srg.nodes[node].module for node in pattern.nodes}
            owners = {path for path in modules if any(_below(one, path) for one in paths)}
            covered |= owners
            extra += not owners
        counts[kind] = Counter(both=len(covered), missed=len(modules - covered), extra=extra)
    return counts


def _kinds(kind: str) -> tuple[str, ...]:
    return (kind, GATED) if kind == "mlp" else (kind,)


def _modules(model: torch.nn.Module, srg: SRG, kind: str) -> Iterator[str]:
    """Paths of the innermost modules of this kind below which anything ran."""
    ran = {node.module for node in srg.nodes}
    named = _named(model)
    if kind == "lm head":
        head = getattr(model, "get_output_embeddings", lambda: None)()
        yield from (path for path, module in named.items() if module is head and _ran(ran, path))
        return
    pattern = re.compile(CLASSES[kind])
    chosen = [path for path, module in named.items() if pattern.match(type(module).__name__)]
    if kind == "mlp":
        chosen += [path for path in named if f"{path}.fc1" in named and f"{path}.fc2" in named]
    for path in chosen:
        inner = [other for other in chosen if other != path and _below(other, path)]
        if not inner and _ran(ran, path):
            yield path


def _named(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Modules by their paths in graphs, which begin with the class of the root."""
    root = type(model).__name__
    return {f"{root}.{path}" if path else root: module for path, module in model.named_modules()}


def _ran(ran: set[str], path: str) -> bool:
    return any(_below(one, path) for one in ran)


def _below(path: str, above: str) -> bool:
    return path == above or path.startswith(f"{above}.")


def describe(model: torch.nn.Module, srg: SRG) -> Iterator[str]:
    """Say what differs, for people."""
    found: tuple[Pattern, ...] = find_patterns(srg)
    for kind in CLASSES:
        modules = set(_modules(model, srg, kind))
        for pattern in (one for one in found if one.kind in _kinds(kind)):
            paths = {srg.nodes[node].module for node in pattern.nodes}
            owners = {path for path in modules if any(_below(one, path) for one in paths)}
            if not owners:
                ops = [srg.nodes[node].op for node in pattern.nodes]
                yield f"extra {pattern.kind}: {sorted(paths)} {ops[:8]}"
            modules -= owners
        classes = _named(model)
        for path in modules:
            ops = [node.op for node in srg.nodes if _below(node.module, path)]
            yield f"missed {kind}: {path} ({type(classes[path]).__name__}) {ops[:24]}"


def parameters_of(model: Any) -> int:
    return sum(item.numel() for item in model.parameters())
