"""What the database has of a session is the state that its last committed answer stands for."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from djinn_lab.pool.database.address import sqlite_url
from djinn_lab.pool.database.sessions import (
    NO_SEGMENT,
    CopyOrigin,
    LeftSession,
    SessionRow,
    forget_session,
    read_sessions,
    release_row,
    run_row,
    session_row,
    write_lineage,
)
from djinn_lab.pool.database.store import Store, program_row
from djinn_lab.pool.lineage.log import Copy, Run, SessionLog

SESSION = SessionRow("s", "ann", "ann", "a notebook", True, 1.0, 2.0)
ORIGIN = CopyOrigin("cpu:0", "ann", (7,))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(sqlite_url(tmp_path / "pool.sqlite3"))
    made.opened()
    made.put(session_row(SESSION))
    return made


def run(serial: int) -> Run:
    return Run(serial, f"job{serial}", 0, b"program %d" % serial, ("blob",), b"key", held_bytes=serial)


def keep(store: Store, log: SessionLog, *serials: int) -> None:
    for serial in serials:
        store.put(program_row(f"job{serial}", 0, run(serial).program))
        store.put(run_row("s", run(serial)))
        log.serials = serial
        log.ran(run(serial))


def left(store: Store) -> LeftSession:
    found = store.submit(read_sessions).result()
    store.close()
    return found[0]


def test_runs_and_releases_come_back_in_their_order(store: Store) -> None:
    log = SessionLog()
    keep(store, log, 1, 2)
    store.put(release_row("s", log.release([5]), [5]))
    found = left(store)
    assert found.stored == SESSION
    assert found.log.runs == [run(1), run(2)]
    assert (found.log.released, found.log.serials) == ([(3, [5])], 3)


def test_a_copy_replaces_the_runs_that_it_has_results_of(store: Store) -> None:
    log = SessionLog()
    keep(store, log, 1, 2, 3)
    log.copied(Copy(2, 100, 4))
    store.write(write_lineage("s", log, ORIGIN, b"manifest"))
    keep(store, log, 4)
    store.put(run_row("s", run(2)))  # its answer came after the copy
    found = left(store)
    assert found.log.copy == Copy(2, 100, 4)
    assert (found.origin, found.manifest) == (ORIGIN, b"manifest")
    assert [one.serial for one in found.log.runs] == [3, 4]
    assert not found.log.void


def test_a_run_under_way_is_not_lost_when_a_copy_is_written_beside_its_answer(store: Store) -> None:
    log = SessionLog()
    keep(store, log, 1, 2)
    log.next_serial()  # a run is sent
    log.copied(Copy(1, 100, 4))
    store.write(write_lineage("s", log, ORIGIN, b"manifest"))
    keep(store, log, 3)  # the answer comes before the copy is written
    assert [one.serial for one in left(store).log.runs] == [2, 3]


def test_a_run_without_its_program_voids_the_log(store: Store) -> None:
    log = SessionLog()
    keep(store, log, 1)
    store.put(program_row("job2", 0, b"of another segment"))
    store.put(run_row("s", Run(2, "job2", NO_SEGMENT, b"", (), None)))
    assert left(store).log.void == "its runs are not whole in the database"


def test_a_lost_worker_renumbers_the_runs_in_one_transaction(store: Store) -> None:
    log = SessionLog()
    keep(store, log, 1, 2)
    log.lost()
    store.write(write_lineage("s", log, None, None))
    assert [one.serial for one in left(store).log.runs] == [3, 4]


def test_nothing_is_left_of_a_closed_session(store: Store, tmp_path: Path) -> None:
    keep(store, SessionLog(), 1)
    store.write(forget_session("s"))
    assert store.submit(read_sessions).result() == []
    store.close()
    connection = sqlite3.connect(tmp_path / "pool.sqlite3")
    for table in ("answers", "copies", "lineages", "releases", "runs", "sessions"):
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
    connection.close()


def test_rows_put_together_are_committed_together(store: Store) -> None:
    collected: list[int] = []

    def collect() -> None:
        collected.append(1)
        store.put(run_row("s", run(2)))

    with store.together(collect):
        store.put(run_row("s", run(1)))
        with store.together(collect):
            store.flush().result()
            assert store.submit(read_sessions).result()[0].log.runs == []
    with store.together(collect):
        pass
    assert collected == [1]
    assert [one.serial for one in left(store).log.runs] == [1, 2]
