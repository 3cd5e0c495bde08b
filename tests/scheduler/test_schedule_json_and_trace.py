"""A schedule survives JSON, takes measurements, and opens in Perfetto."""

from __future__ import annotations

import json

import msgspec
import pytest
from drawn_programs import Step, build, steps
from hypothesis import given
from programs import LAYER, Script

from djinn_lab.scheduler import DeviceProfile, ExecutionSchedule, Scheduler
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.program import Scope


def small() -> ExecutionSchedule:
    script = Script(0, LAYER)
    script.scope = Scope("Net.\x07bell", 1, "cell", 2, "forward")
    x = script.source((64, 64), blob="0" * 64)
    first = script.op("aten.relu.default", x, shape=(64, 64))
    last = script.op("aten.neg.default", first, shape=(64, 64))
    return Scheduler(devices=[DeviceProfile.default("cpu")]).create_schedule(
        SRG.from_program(script.program(fetch=(last,)))
    )


@given(steps)
def test_json_round_trip(plan: list[Step]) -> None:
    made = Scheduler().create_schedule(SRG.from_program(build(plan)))
    assert ExecutionSchedule.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_json_with_measurements_and_rejection_of_other_documents() -> None:
    made = small().with_measured([0.0, 0.5], [0.4, 0.9])
    again = ExecutionSchedule.from_json(json.loads(json.dumps(made.to_json())))
    assert again == made
    assert again.measured_s == pytest.approx(0.9)
    assert small().measured_s is None
    with pytest.raises(msgspec.ValidationError):
        ExecutionSchedule.from_json({"device": "cpu:0"})


def test_measurements_must_fit() -> None:
    with pytest.raises(ValueError, match="3 starts and 3 ends for 2 nodes"):
        small().with_measured([0, 1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="2 starts and 1 ends"):
        small().with_measured([0, 1], [1])


def test_the_trace_is_strict_json_with_named_lanes_and_relative_numbers() -> None:
    text = json.dumps(small().chrome_trace(), allow_nan=False)
    assert "\x07" not in text
    trace = json.loads(text)
    events = trace["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert names == {"cpu:0 predicted", "ops", "uploads", "fetches"}
    slices = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in slices] == [
        "aten.relu.default",
        "aten.neg.default",
        "upload value 0",
        "fetch value 2",
    ]
    for event in slices:
        assert isinstance(event["ts"], float)
        assert 0 <= event["ts"] < 1e6
        assert event["dur"] > 0
    lanes = {(event["pid"], event["tid"]) for event in slices}
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert lanes <= named


def test_flow_arrows_join_transfers_to_their_nodes() -> None:
    events = small().chrome_trace()["traceEvents"]
    slices = {event["name"]: event for event in events if event["ph"] == "X"}
    flows: dict[int, dict[str, float]] = {}
    for event in events:
        if event["ph"] in "sf":
            flows.setdefault(event["id"], {})[event["ph"]] = event["ts"]
    assert len(flows) == 2
    assert all(flow["s"] <= flow["f"] for flow in flows.values())
    assert flows[0]["f"] == slices["aten.relu.default"]["ts"]
    assert flows[1]["f"] == slices["fetch value 2"]["ts"]


def test_measured_times_get_their_own_process_even_when_the_run_stopped_early() -> None:
    trace = small().chrome_trace(measured=([0.001], [0.002]))
    measured = [event for event in trace["traceEvents"] if event["pid"] == 2 and event["ph"] == "X"]
    assert [(event["ts"], event["dur"]) for event in measured] == [(1000.0, pytest.approx(1000.0))]
    own = small().with_measured([0.0, 1.0], [1.0, 2.0]).chrome_trace()
    assert sum(event["pid"] == 2 and event["ph"] == "X" for event in own["traceEvents"]) == 2
