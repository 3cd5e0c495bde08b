"""Bars of a schedule at screen resolution, and what can be taken away."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.dashboard.schedule.gantt import (
    BAR_COLUMNS,
    lanes,
    memory_columns,
    op_columns,
    row_names,
    schedule_sentence,
    table_rows,
    to_csv,
    to_trace,
    transfer_columns,
    transfer_lane,
)
from djinn_lab.dashboard.widgets.bars import BARS_MAX, bars_in, make_lane
from djinn_lab.dashboard.widgets.theme import PHASE_COLOURS
from djinn_lab.scheduler import DeviceProfile, ExecutionSchedule
from djinn_lab.scheduler.memory_plan import MemoryPlan
from djinn_lab.scheduler.schedule import PlannedTransfer, ScheduledNode


def schedule(count: int, measured: bool = True) -> ExecutionSchedule:
    nodes = tuple(
        ScheduledNode(
            node=number,
            op="aten.mm.default",
            module="Net.fc",
            line=2,
            phase="forward",
            start_s=0.001 * number,
            end_s=0.001 * number + 0.0008,
            bound="compute",
            live_bytes=1000 + number,
        )
        for number in range(count)
    )
    ran = tuple(0.002 * number for number in range(count))
    return ExecutionSchedule(
        device=DeviceProfile.default("cpu"),
        profile="basic_inference",
        structural_hash="x",
        nodes=nodes,
        transfers=(
            PlannedTransfer(1, "upload", 4096, 0.0, 0.001, 0),
            PlannedTransfer(2, "fetch", 64, 0.5, 0.501, 3),
        ),
        groups=(),
        memory=MemoryPlan(1000, 1000 + count, 0, 0, ()),
        limit_bytes=2**20,
        predicted_s=0.001 * count,
        decisions=("Order: as written.",),
        node_start_s=ran if measured else None,
        node_end_s=tuple(start + 0.001 for start in ran) if measured else None,
    )


def test_few_ops_have_a_bar_each_and_both_rows() -> None:
    made = schedule(10)
    columns = op_columns(made, lanes(made), 0.0, 100.0)
    assert set(columns) == set(BAR_COLUMNS)
    assert columns["row"].count("cpu:0 predicted") == columns["row"].count("cpu:0 measured") == 10
    assert set(columns["colour"]) == {PHASE_COLOURS["forward"]}
    assert row_names(made) == ["cpu:0 transfers", "cpu:0 predicted", "cpu:0 measured"]
    assert row_names(schedule(3, measured=False)) == ["cpu:0 transfers", "cpu:0 predicted"]


def test_many_ops_merge_and_zooming_in_shows_each() -> None:
    made = schedule(50_000, measured=False)
    rows = lanes(made)
    whole = op_columns(made, rows, 0.0, 50_000.0)
    assert 100 < len(whole["row"]) <= BARS_MAX
    assert "zoom in" in whole["detail"][3]
    near = op_columns(made, rows, 1000.0, 1020.0)
    assert 19 <= len(near["row"]) <= 22
    assert near["name"][0] == "mm"


def test_transfers_and_memory() -> None:
    made = schedule(4)
    columns = transfer_columns(made, transfer_lane(made), 0.0, 1000.0)
    assert columns["name"] == ["upload", "fetch"]
    assert columns["detail"] == ["4.0 KiB", "64 B"]
    memory = memory_columns(schedule(5000))
    assert len(memory["time"]) == len(memory["live"]) <= 2002
    assert memory_columns(schedule(0)) == {"time": [], "live": []}


def test_the_sentence_compares_predicted_with_measured() -> None:
    assert "measured" in schedule_sentence(schedule(10))
    assert "1.9 times the prediction" in schedule_sentence(schedule(10))
    assert "not measured yet" in schedule_sentence(schedule(10, measured=False))
    assert "0 ops" in schedule_sentence(schedule(0, measured=False))


def test_exported_schedule_has_all_rows() -> None:
    made = schedule(700)
    rows, note = table_rows(made)
    assert len(rows) == 300
    assert "of 700" in note
    lines = list(csv.DictReader(io.StringIO(to_csv(made))))
    assert len(lines) == 700
    assert float(lines[5]["predicted_ms"]) > 0
    events = json.loads(to_trace(made))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == 2 * 700 + 2


spans = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 5), st.integers(0, 5)), max_size=60)


@given(spans, st.integers(5, 40))
@settings(deadline=None)
def test_merging_loses_no_op_and_no_work(found: list[tuple[float, float, int]], most: int) -> None:
    lane = make_lane(
        [start for start, _, _ in found],
        [start + length for start, length, _ in found],
        [kind for _, _, kind in found],
        range(len(found)),
    )
    bars = bars_in(lane, -1.0, 1e6, most)
    assert sum(bar.ops for bar in bars) == len(found)
    assert np.isclose(sum(bar.busy for bar in bars), 1e3 * sum(length for _, length, _ in found), atol=1e-6)
    assert all(bar.left <= bar.right for bar in bars)
