"""What forecasts have learnt is in the database, of either kind, and the next pool continues from it."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import sqlalchemy as sa
from pool_kit import Client, act, rest, running_pool, until_dead
from real_pool import wait_for

from djinn_lab.jobs import start_forecasts
from djinn_lab.jobs.resources import COMPARED_MIN, RUNS_MAX, ResourceForecast, ResourceRecords, ResourceUse
from djinn_lab.jobs.start_forecasts import StartForecasts
from djinn_lab.pool.bookkeeping import overruns
from djinn_lab.pool.bookkeeping.overruns import OverrunDetector
from djinn_lab.pool.database import batch
from djinn_lab.pool.database import store as store_module
from djinn_lab.pool.database.forecasts import (
    RUN_RATIOS,
    START_WAITS,
    WHERE_CHARACTERS_MAX,
    forecast_rows,
    read_forecasts,
    read_samples,
    samples_row,
)
from djinn_lab.pool.database.store import Store
from djinn_lab.protocol.messages import JobUpdate
from djinn_lab.protocol.runtime_file import RuntimeInfo

USE = ResourceUse(1.5, 2**40, "In [1] \0 \u00e9")


def keep(store: Store, learnt: ResourceRecords, at_s: float) -> None:
    for row in forecast_rows(learnt, at_s):
        store.put(row)


def test_the_latest_is_read_in_the_order_in_which_it_was_learnt(database: str) -> None:
    store = Store(database)
    keep(store, ResourceRecords({"old": (USE,), "again": (USE,)}, {"runs": ((0.5, float("inf")),)}), 1.0)
    keep(store, ResourceRecords({"new": (USE, USE)}, {"graphs": ()}), 2.0)
    keep(store, ResourceRecords({"again": (USE, ResourceUse(0.0, 0, "x" * 10_000))}), 3.0)
    found = store.submit(read_forecasts).result()
    assert list(found.uses) == ["old", "new", "again"]
    assert found.uses["new"] == (USE, USE)
    assert found.uses["again"] == (USE, ResourceUse(0.0, 0, "x" * WHERE_CHARACTERS_MAX))
    assert found.errors == {"runs": ((0.5, float("inf")),), "graphs": ()}
    store.close()


def test_only_so_many_programs_are_kept(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FORECAST_PROGRAMS_MAX", 3)
    monkeypatch.setattr(store_module, "TRIM_EVERY_S", 0.0)
    store = Store(database)
    for number in range(6):
        keep(store, ResourceRecords({f"p{number}": (USE,)}, {"runs": ((0.5, 0.5),)}), float(number))
        store.flush(everything=True).result()  # and what is too old goes at its end
        found = store.submit(read_forecasts).result()
        assert list(found.uses) == [f"p{kept}" for kept in range(max(0, number - 2), number + 1)]
    assert list(found.errors) == ["runs"]
    store.close()


def predicted(info: RuntimeInfo) -> ResourceForecast:
    """Run a short cell that is always the same, and return its forecast."""
    with Client(info) as ann:
        job = ann.submit(act("sleep 0.002", keep=True), cell="In [7]")
        assert ann.result(job).outcome == "done"
    found = rest(info).job(job).predicted
    assert found is not None
    return found


@pytest.mark.processes
def test_the_next_pool_predicts_as_the_one_before(database: str, tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        before = [predicted(info) for _ in range(COMPARED_MIN + 2)]
    assert [one.runs for one in before] == [0, 1, 2, 3, 4, RUNS_MAX, RUNS_MAX]
    assert before[-1].error.count == COMPARED_MIN
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        after = predicted(info)
    assert (after.runs, after.where) == (RUNS_MAX, "In [7]")
    assert (after.peak_bytes, after.error.count) == (before[-1].peak_bytes, COMPARED_MIN + 1)
    assert after.device_s >= 0.002


@pytest.mark.processes
def test_learnt_forecasts_survive_a_killed_pool(database: str, tmp_path: Path) -> None:
    engine = sa.create_engine(database)

    def is_stored() -> bool:
        with engine.connect() as other:
            return any(len(uses) == 2 for uses in read_forecasts(other).uses.values())

    with running_pool(tmp_path, "cpu:1", database=database) as info:
        first, second = predicted(info), predicted(info)
        assert (first.runs, second.runs) == (0, 1)
        wait_for(is_stored)
        os.kill(info.pid, signal.SIGKILL)
        until_dead(info.pid)
    engine.dispose()
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        assert predicted(info).runs == 2


def test_latest_forecast_errors_are_stored(database: str) -> None:
    store, estimates, surprises = Store(database), StartForecasts(), OverrunDetector()
    assert (estimates.take_changes(), surprises.take_changes()) == (None, None)
    for number in range(start_forecasts.SAMPLES_MAX + overruns.SAMPLES_MAX):
        estimates.estimated({"job": (0, 0.0)}, 0.0)
        estimates.started("job", float(number))
        surprises.ended(1.0, float(number))
        if number in {3, 700}:
            keep_samples(store, estimates, surprises, float(number))
    keep_samples(store, estimates, surprises, 2000.0)
    assert (estimates.take_changes(), surprises.take_changes()) == (None, None)
    found = store.submit(read_samples).result()
    next_estimates, next_surprises = StartForecasts(found[START_WAITS]), OverrunDetector(found[RUN_RATIOS])
    assert len(found[START_WAITS]) == 3 * start_forecasts.SAMPLES_MAX
    assert len(found[RUN_RATIOS]) == overruns.SAMPLES_MAX
    assert next_estimates.skill == estimates.skill
    assert next_surprises.usual == surprises.usual
    assert store.submit(read_forecasts).result() == ResourceRecords()
    store.close()


def keep_samples(store: Store, estimates: StartForecasts, surprises: OverrunDetector, at_s: float) -> None:
    for name, samples in ((START_WAITS, estimates.take_changes()), (RUN_RATIOS, surprises.take_changes())):
        assert samples is not None
        store.put(samples_row(name, samples, at_s))


def updates_of_waits(info: RuntimeInfo) -> list[JobUpdate]:
    """Return the updates of five jobs that wait for a cell which runs for longer than a forecast takes."""
    with ExitStack() as stack:
        ann, *crowd = [stack.enter_context(Client(info)) for _ in range(6)]
        running = ann.submit(act("sleep 1.5"), cell="long")
        ann.until(running, "RUNNING")
        waiting = [one.submit(act(""), cell="next") for one in crowd]
        assert all(one.result(job).outcome == "done" for one, job in zip(crowd, waiting, strict=True))
        return [update for one in crowd for update in one.updates]


def is_unusual(info: RuntimeInfo) -> bool:
    """A cell that runs a hundred times as long as it did before."""
    with Client(info) as ann, closing(rest(info)) as client:
        assert ann.run(act("sleep 0.01"), cell="loop").outcome == "done"
        stuck = ann.submit(act("sleep 30"), cell="loop")
        ann.until(stuck, "RUNNING")
        wait_for(lambda: client.queue().running[0].since + 3 < client.queue().now)
        sentence = client.why(stuck).sentence
        client.cancel(stuck)
        assert ann.result(stuck).outcome == "cancelled"
    return "Unusually long" in sentence


@pytest.mark.processes
def test_how_far_starts_were_off_and_what_is_unusual_is_known_after_a_kill(
    database: str, tmp_path: Path
) -> None:
    engine = sa.create_engine(database)

    def stored() -> tuple[int, int]:
        with engine.connect() as other:
            found = read_samples(other)
        return len(found.get(START_WAITS, ())), len(found.get(RUN_RATIOS, ()))

    with running_pool(tmp_path, "cpu:1", database=database) as info:
        first = updates_of_waits(info)
        assert all(update.estimate_error_s is None for update in first)
        assert not is_unusual(info)
        with Client(info) as ann:
            for _ in range(overruns.SAMPLES_MIN + 1):
                assert ann.run(act("sleep 0.002"), cell="loop").outcome == "done"
        with closing(rest(info)) as client:
            error = client.queue().estimate_error
        wait_for(lambda: stored()[0] == 3 * error.count and stored()[1] >= overruns.SAMPLES_MIN)
        os.kill(info.pid, signal.SIGKILL)
        until_dead(info.pid)
    engine.dispose()
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        with closing(rest(info)) as client:
            assert client.queue().estimate_error == error
        predicted = [update for update in updates_of_waits(info) if update.estimate_s is not None]
        assert predicted
        assert all(update.estimate_error_s is not None for update in predicted)
        assert is_unusual(info)
