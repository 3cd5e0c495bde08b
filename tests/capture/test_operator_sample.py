"""A fixed selection of the operator sweep (``make sweep-ops``).

Of every operator in torch's database the first float32 sample is called plainly, and in one other way that
the operator's name picks.
"""

from __future__ import annotations

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


@pytest.mark.parametrize("part", range(PARTS))
def test_captured_equals_eager(part: int, bench: Any) -> None:
    from sweeps.operators.fixed import fixed_calls
    from sweeps.operators.outcomes import REFUSED as REFUSED_WITH_ADVICE
    from sweeps.operators.outcomes import RIGHT
    from sweeps.operators.samples import operators

    different, called = [], 0
    for op in operators()[part::PARTS]:
        for variant, mode in fixed_calls(op):
            verdict = bench.judge(variant, mode)
            called += 1
            expected = (REFUSED_WITH_ADVICE, *RIGHT) if op.formatted_name in REFUSED else RIGHT
            if verdict.outcome not in expected:
                called_as = f"{op.formatted_name} ({variant.name}, {mode} inputs)"
                different.append(f"{called_as}: {verdict.outcome}: {verdict.reason}")
    assert called > 30
    assert not different, "\n".join(different)
