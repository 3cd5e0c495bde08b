"""A live pool keeps the start that conservative backfilling promised, whatever comes later."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from pool_kit import Client, act, rest, running_pool

LATE_S = 3.0


@pytest.mark.processes
def test_promised_start_is_kept_when_later_jobs_arrive(tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:2") as info, ExitStack() as stack:
        chief = stack.enter_context(closing(rest(info)))
        chief.set_policy("conservative")
        first, second, waiting, *later = [stack.enter_context(Client(info)) for _ in range(7)]
        for one in (first, second, *later):
            one.run(act("sleep 1"), cell="long")  # what it takes is known from here on
        waiting.run(act("sleep 0.2"), cell="short")
        running = [one.submit(act("sleep 1"), cell="long") for one in (first, second)]
        first.until(running[0], "RUNNING")
        second.until(running[1], "RUNNING")
        promised = waiting.submit(act("sleep 0.2"), cell="short")
        waiting.until(promised, "QUEUED")
        explanation = chief.why(promised).explanation
        passing = [one.submit(act("sleep 1"), cell="long") for one in later]
        results = [
            waiting.result(promised),
            *(one.result(job) for one, job in zip(later, passing, strict=True)),
        ]
        assert all(result.outcome == "done" for result in results)
        started_at = chief.job(promised).started_at
        assert started_at <= explanation.expected_s + LATE_S
        assert all(chief.job(job).started_at >= started_at for job in passing)
