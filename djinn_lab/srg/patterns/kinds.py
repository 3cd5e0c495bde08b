"""What a pattern is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

PatternKind = Literal[
    "attention",
    "kv append",
    "mlp",
    "gated mlp",
    "convolution block",
    "embedding",
    "normalisation",
    "residual",
    "lm head",
    "optimizer step",
    "modality fusion",
]
KINDS: tuple[PatternKind, ...] = get_args(PatternKind)


class Pattern(msgspec.Struct, frozen=True):
    """``nodes``: ids of the nodes that make it up, in program order, at least one."""

    kind: PatternKind
    nodes: tuple[int, ...]

    @classmethod
    def of(cls, kind: PatternKind, nodes: Iterable[int]) -> Pattern:
        return cls(kind, tuple(sorted(set(nodes))))
