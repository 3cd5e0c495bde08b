"""Every tenth operator of torch's database, forward and backward; ``make sweep-standin`` runs all."""

from __future__ import annotations

import warnings

import standin
from isolated import on_standin
from operator_database import EXCEPTIONS, judge, operators

EVERY = 10


@on_standin(manual=True, memory_bytes=4 * 2**30)
def test_sample_of_the_operator_database_has_the_bits_of_the_cpu() -> None:
    warnings.simplefilter("ignore")
    sample = [op for op in operators()[::EVERY] if op.formatted_name not in EXCEPTIONS]
    verdicts = [verdict for op in sample for verdict in judge(op, 1)]
    assert len(verdicts) > 50
    assert [verdict for verdict in verdicts if verdict.problem] == []
    assert standin.races() == []
