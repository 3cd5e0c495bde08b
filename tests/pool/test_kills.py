"""``kill -9`` of pools under load: what they reported is in the database, and happened once.

A small sample of ``make sweep-kills``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from sweeps.kills.harness import run
from throwaway_postgresql import Postgresql

from djinn_lab.pool.database.address import checked_url

pytestmark = pytest.mark.processes
MOMENTS = 3


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_no_job_is_lost_or_run_twice_and_the_ledger_is_exact(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        url, pools = f"sqlite:///{tmp_path / 'pool.sqlite3'}", 1
    else:
        server: Postgresql = request.getfixturevalue("postgresql")
        url, pools = server.new_database(), 2
    outcome = run(tmp_path, checked_url(url), pools, MOMENTS, seed=7)
    assert outcome.findings.wrong == []
    assert outcome.kills >= MOMENTS
    assert outcome.findings.counts["results of done segments"] > 10
