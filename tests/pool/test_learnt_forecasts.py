"""What forecasts have learnt is in the database, of either kind, and the next pool goes on with it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pool_kit import Client, act, rest, running_pool, until_dead
from real_pool import wait_for

from djinn_lab.jobs.resources import COMPARED_MIN, RUNS_MAX, Learnt, Use
from djinn_lab.pool.database import batch
from djinn_lab.pool.database import store as store_module
from djinn_lab.pool.database.forecasts import WHERE_CHARACTERS_MAX, forecast_rows, read_forecasts
from djinn_lab.pool.database.store import Store
from djinn_lab.protocol.runtime_file import RuntimeInfo

USE = Use(1.5, 2**40, "In [1] \0 \u00e9")


def keep(store: Store, learnt: Learnt, at_s: float) -> None:
    for row in forecast_rows(learnt, at_s):
        store.put(row)


def test_the_latest_is_read_in_the_order_in_which_it_was_learnt(database: str) -> None:
    store = Store(database)
    keep(store, Learnt({"old": (USE,), "again": (USE,)}, {"runs": ((0.5, float("inf")),)}), 1.0)
    keep(store, Learnt({"new": (USE, USE)}, {"graphs": ()}), 2.0)
    keep(store, Learnt({"again": (USE, Use(0.0, 0, "x" * 10_000))}), 3.0)
    found = store.submit(read_forecasts).result()
    assert list(found.uses) == ["old", "new", "again"]
    assert found.uses["new"] == (USE, USE)
    assert found.uses["again"] == (USE, Use(0.0, 0, "x" * WHERE_CHARACTERS_MAX))
    assert found.off == {"runs": ((0.5, float("inf")),), "graphs": ()}
    store.close()


def test_only_so_many_programs_are_kept(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "FORECAST_PROGRAMS_MAX", 3)
    monkeypatch.setattr(store_module, "TRIM_EVERY_S", 0.0)
    store = Store(database)
    for number in range(6):
        keep(store, Learnt({f"p{number}": (USE,)}, {"runs": ((0.5, 0.5),)}), float(number))
        store.flush(everything=True).result()  # and what is too old goes at its end
        found = store.submit(read_forecasts).result()
        assert list(found.uses) == [f"p{kept}" for kept in range(max(0, number - 2), number + 1)]
    assert list(found.off) == ["runs"]
    store.close()


def foretold(info: RuntimeInfo) -> dict[str, Any]:
    """Of a cell that is always the same, and takes a moment."""
    with Client(info) as ann:
        job = ann.submit(act("sleep 0.002", keep=True), cell="In [7]")
        assert ann.result(job).outcome == "done"
    found: dict[str, Any] = rest(info).job(job)["foretold"]
    return found


@pytest.mark.processes
def test_the_next_pool_foretells_as_the_one_before(database: str, tmp_path: Path) -> None:
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        before = [foretold(info) for _ in range(COMPARED_MIN + 2)]
    assert [one["runs"] for one in before] == [0, 1, 2, 3, 4, RUNS_MAX, RUNS_MAX]
    assert before[-1]["error"]["count"] == COMPARED_MIN
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        after = foretold(info)
    assert (after["runs"], after["where"]) == (RUNS_MAX, "In [7]")
    assert (after["peak_bytes"], after["error"]["count"]) == (before[-1]["peak_bytes"], COMPARED_MIN + 1)
    assert after["device_s"] >= 0.002


@pytest.mark.processes
def test_also_after_a_kill(database: str, tmp_path: Path) -> None:
    engine = sa.create_engine(database)

    def is_stored() -> bool:
        with engine.connect() as other:
            return any(len(uses) == 2 for uses in read_forecasts(other).uses.values())

    with running_pool(tmp_path, "cpu:1", database=database) as info:
        first, second = foretold(info), foretold(info)
        assert (first["runs"], second["runs"]) == (0, 1)
        wait_for(is_stored)
        os.kill(info.pid, signal.SIGKILL)
        until_dead(info.pid)
    engine.dispose()
    with running_pool(tmp_path, "cpu:1", database=database) as info:
        assert foretold(info)["runs"] == 2
