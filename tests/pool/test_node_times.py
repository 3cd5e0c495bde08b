"""Times of nodes, from a worker's answer to the database."""

from __future__ import annotations

from pathlib import Path

import msgspec

from djinn_lab.pool.bookkeeping.records import SegmentPreemptions
from djinn_lab.pool.database import history
from djinn_lab.pool.database.address import sqlite_url
from djinn_lab.pool.database.store import Store, program_row, timings_row
from djinn_lab.protocol.worker import (
    NodeTimes,
    RunPreempted,
    SegmentDone,
    WorkerMemory,
    decode_from_worker,
    encode,
    pack_times,
)

MEMORY = WorkerMemory(0, 0, {})


def done(times: bytes) -> SegmentDone:
    return SegmentDone(
        job="job",
        segment=0,
        fetched=[],
        dynamic_metas=[],
        rng_state=None,
        node_times=times,
        load_s=0.0,
        run_s=1.0,
        fetch_s=0.0,
        memory=MEMORY,
    )


def test_node_times_packed_and_sent_are_the_same_numbers() -> None:
    message = decode_from_worker(encode(done(pack_times([0.1, 0.3], [0.2, 1e-9]))))
    assert isinstance(message, SegmentDone)
    assert (list(message.node_start_s), list(message.node_end_s)) == ([0.1, 0.3], [0.2, 1e-9])
    assert len(NodeTimes(node_times=b"").node_end_s) == 0


def test_preempted_runs_times_count_from_the_first_run() -> None:
    stops = SegmentPreemptions()
    for executed in (1, 2):
        stopped = RunPreempted(
            job="job",
            segment=0,
            executed=executed,
            ops_total=3,
            rng_state=None,
            if_given_up=[],
            node_times=pack_times([0.25], [0.5]),
            load_s=0.0,
            run_s=1.0,
            memory=MEMORY,
        )
        stops.add(stopped, 0.0)
    whole = stops.whole(done(pack_times([0.25], [0.75])))
    assert (list(whole.node_start_s), list(whole.node_end_s)) == ([0.25, 1.25, 2.25], [0.5, 1.5, 2.75])


def test_timings_of_this_and_of_earlier_pools_are_read(tmp_path: Path) -> None:
    store = Store(sqlite_url(tmp_path / "db"))
    starts, ends = [0.0, 0.2], [0.1, 0.3]
    stored = [msgspec.msgpack.encode((starts, ends)), msgspec.msgpack.encode(pack_times(starts, ends))]
    for segment, timings in enumerate(stored):
        store.put(program_row("job", segment, b"program"))
        store.put(timings_row("job", segment, timings))
    found = store.submit(lambda connection: history.read_program(connection, "job", None, [1])).result()
    store.close()
    assert found is not None
    timings_read = [part.timings for part in found.parts]
    assert [tuple(map(list, timings)) for timings in timings_read if timings] == [(starts, ends)] * 2
