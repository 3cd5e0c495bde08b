"""A fixed selection of the operator database.

Of every operator the first float32 sample is called plainly, and in one other way that the operator's name
picks."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from sweeps.operators.runs import MODES
from sweeps.operators.samples import samples
from sweeps.operators.variants import KINDS, Variant, gradients, variants


class FixedCall(NamedTuple):
    """``mode``: of :data:`~sweeps.operators.runs.MODES`, how its inputs are made."""

    variant: Variant
    mode: str


def _first(found: Iterator[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's samples use what torch deprecates
        return next(found, None)


def fixed_calls(op: Any) -> Iterator[FixedCall]:
    """Return up to two calls; none for an operator without float32."""
    if torch.float32 not in op.supported_dtypes("cpu"):
        return
    sample = _first(samples(op, torch.float32))
    if sample is None:
        return
    number = zlib.crc32(op.formatted_name.encode())
    found = list(variants(op, sample, KINDS))
    leaf = _first(samples(op, torch.float32, gradients=True)) if op.supports_autograd else None
    backward = gradients(op, leaf) if leaf is not None else None
    others = [*found[1:], *([backward] if backward is not None else [])]
    yield FixedCall(found[0], MODES[number % 2])
    if others:
        yield FixedCall(others[number // 2 % len(others)], MODES[(number + 1) % 2])
