"""A fixed selection of the operator sweep (``make sweep-ops``).

Of every operator in torch's database the first float32 sample is called plainly, and in one other way that
the operator's name picks.
"""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

PARTS = 20
REFUSED = {
    "sparse_mm_reduce": "its samples are sparse",
    "sparse_sampled_addmm": "its samples are sparse",
}
"""Operators that lazy tensors do not support; they must say so and what to do."""


@pytest.fixture(scope="module")
def bench() -> Any:
    from sweeps.operators.runs import Bench

    return Bench()


def _first(samples: Iterator[Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's samples use what torch deprecates
        return next(samples, None)


def _chosen(op: Any, number: int) -> Iterator[tuple[Any, str]]:
    """Variants with the way their inputs are made."""
    import torch
    from sweeps.operators.runs import MODES
    from sweeps.operators.samples import samples
    from sweeps.operators.variants import KINDS, gradients, variants

    sample = _first(samples(op, torch.float32))
    if sample is None:
        return
    found = list(variants(op, sample, KINDS))
    leaf = _first(samples(op, torch.float32, gradients=True)) if op.supports_autograd else None
    backward = gradients(op, leaf) if leaf is not None else None
    others = [*found[1:], *([backward] if backward is not None else [])]
    yield found[0], MODES[number % 2]
    if others:
        yield others[number // 2 % len(others)], MODES[(number + 1) % 2]


@pytest.mark.parametrize("part", range(PARTS))
def test_captured_equals_eager(part: int, bench: Any) -> None:
    import torch
    from sweeps.operators.outcomes import REFUSED as REFUSED_WITH_ADVICE
    from sweeps.operators.outcomes import RIGHT
    from sweeps.operators.samples import operators

    different, called = [], 0
    for op in operators()[part::PARTS]:
        if torch.float32 not in op.supported_dtypes("cpu"):
            continue
        for variant, mode in _chosen(op, zlib.crc32(op.formatted_name.encode())):
            verdict = bench.judge(variant, mode)
            called += 1
            expected = (REFUSED_WITH_ADVICE, *RIGHT) if op.formatted_name in REFUSED else RIGHT
            if verdict.outcome not in expected:
                called_as = f"{op.formatted_name} ({variant.name}, {mode} inputs)"
                different.append(f"{called_as}: {verdict.outcome}: {verdict.reason}")
    assert called > 30
    assert not different, "\n".join(different)
