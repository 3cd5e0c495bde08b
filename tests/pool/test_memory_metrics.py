"""Each figure of session memory moves its metric, and what the shipped dashboards ask for exists."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from pool_kit import Client, act, http
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.snapshot import (
    Counters,
    DeferredSegment,
    DeviceAccount,
    MemorySnapshot,
    SessionAccount,
    WakeUps,
)
from djinn_lab.memory.states import Connection, Phase
from djinn_lab.pool.metrics.memory import MemoryCollector
from djinn_lab.protocol.runtime_file import RuntimeInfo

GRAFANA = Path(__file__).parents[2] / "docs" / "grafana"
NOW_S = 1000.0
Samples = dict[str, float]


def render(collector: MemoryCollector, snapshot: MemorySnapshot) -> Samples:
    """Return the samples by name and labels, as a scrape reads them."""
    registry = CollectorRegistry()
    registry.register(collector)
    collector.note(snapshot, NOW_S)
    return parse(generate_latest(registry).decode())


def parse(page: str) -> Samples:
    return {
        sample.name
        + "".join(f",{name}={value}" for name, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def snapshot(**changes: Any) -> MemorySnapshot:
    return msgspec.structs.replace(MemorySnapshot((), ()), **changes)


def moved(**changes: Any) -> Samples:
    """Return the samples that differ from those of an unused pool."""
    before = render(MemoryCollector(), snapshot())
    after = render(MemoryCollector(), snapshot(**changes))
    return {name: value for name, value in after.items() if before.get(name) != value}


@pytest.mark.parametrize("field", Counters.__struct_fields__)
def test_every_counter_moves_exactly_one_metric(field: str) -> None:
    [(name, value)] = moved(counters=Counters(**{field: 7})).items()
    assert value == 7
    assert name.split(",")[0].endswith("_total")


def test_counters_go_to_the_metric_of_their_name() -> None:
    counts = Counters(evictions=3, mismatches=2, prefetches_late=5, bytes_in=11, useful_swaps=1)
    assert moved(counters=counts) == {
        "djinn_memory_transfers_total,kind=evict": 3,
        "djinn_memory_hash_mismatches_total": 2,
        "djinn_memory_prefetch_outcomes_total,outcome=late": 5,
        "djinn_memory_transferred_bytes_total,direction=in": 11,
        "djinn_memory_useful_swaps_total": 1,
    }


def test_the_bytes_of_a_device_by_tier_and_kind_add_up() -> None:
    device = DeviceAccount(
        "cuda:0",
        1000,
        used_bytes=700,
        busy_bytes=300,
        idle_bytes=200,
        loading_bytes=50,
        shared_bytes=100,
        reserved_bytes=30,
        host_bytes=500,
        host_used_bytes=120,
        disk_bytes=900,
        disk_used_bytes=400,
        link_bytes_per_s=12e9,
        out_bytes_per_s=1e9,
        in_bytes_per_s=2e9,
    )
    found = moved(devices=(device,))
    held = {name: value for name, value in found.items() if name.startswith("djinn_memory_bytes")}
    assert {re.sub(r".*kind=(\w+),tier=(\w+)", r"\2 \1", name): value for name, value in held.items()} == {
        "device busy": 300,
        "device idle": 200,
        "device loading": 50,
        "device shared": 100,
        "device other": 50,
        "device reserved": 30,
        "device free": 300,
        "host parked": 120,
        "host free": 380,
        "disk parked": 400,
        "disk free": 500,
    }
    assert found["djinn_memory_link_bytes_per_second,device=cuda:0,direction=out"] == 1e9
    assert found["djinn_memory_link_bytes_per_second,device=cuda:0,direction=in"] == 2e9
    assert found["djinn_memory_link_limit_bytes_per_second,device=cuda:0"] == 12e9


def test_sessions_by_tier_and_their_bytes() -> None:
    def session(name: str, **changes: Any) -> SessionAccount:
        made = SessionAccount(name, "ann", Connection.CONNECTED, Phase.IO_WAIT)
        return msgspec.structs.replace(made, **changes)

    sessions = (
        session("a", tier="device", total_bytes=10, kv_bytes=4, stored_bytes=6),
        session("b", tier="host", total_bytes=20, stored_bytes=20, moving="restore"),
        session("c", tier="host", total_bytes=5, stored_bytes=5),
    )
    assert moved(sessions=sessions) == {
        "djinn_memory_sessions,tier=device": 1,
        "djinn_memory_sessions,tier=host": 2,
        "djinn_memory_moving_sessions,kind=restore": 1,
        "djinn_memory_session_bytes,part=total": 35,
        "djinn_memory_session_bytes,part=kv": 4,
        "djinn_memory_session_bytes,part=stored": 31,
    }


def test_cells_that_wait_and_the_longest_wait() -> None:
    held = (
        DeferredSegment("j", "a", "cuda:0", NOW_S - 40, "full", None, MemoryRelease.CLOSE),
        DeferredSegment("k", "b", "cuda:0", NOW_S - 3, "its copy", 0.1),
    )
    assert moved(deferred=held) == {
        "djinn_memory_deferred_segments,wait=admission": 1,
        "djinn_memory_deferred_segments,wait=copy": 1,
        "djinn_memory_longest_deferral_seconds": 40,
    }


def test_wake_ups_are_counted_once_over_many_scrapes() -> None:
    collector = MemoryCollector()
    first = WakeUps(3, 2, 0.001, 0.2, 0.2, 1.0, 1.5, (0.0005, 0.0005, 0.2), (0.0, 0.0, 1.5))
    render(collector, snapshot(wake_ups=first))
    again = render(collector, snapshot(wake_ups=first))
    assert again["djinn_wake_up_seconds_count"] == 3
    assert again["djinn_wake_up_seconds_bucket,le=0.001"] == 2
    assert again["djinn_wake_up_seconds_bucket,le=0.3"] == 3
    more = WakeUps(4, 2, 0.001, 50.0, 50.0, 1.0, 1.9, (0.0005, 0.0005, 0.2, 50.0), (0.0, 0.0, 1.5, 1.9))
    found = render(collector, snapshot(wake_ups=more))
    assert found["djinn_wake_up_seconds_count"] == 4
    assert found["djinn_wake_up_seconds_sum"] == pytest.approx(50.201)
    assert found["djinn_wake_up_seconds_bucket,le=30.0"] == 3
    assert found["djinn_wake_up_seconds_bucket,le=+Inf"] == 4
    assert found["djinn_wake_ups_total,outcome=hit"] == 2
    assert found["djinn_wake_ups_total,outcome=wait"] == 2
    assert found["djinn_wake_up_ratio,quantile=0.99"] == 1.9
    assert found["djinn_wake_up_recent_seconds,quantile=1"] == 50


def test_a_bucket_holds_its_upper_edge() -> None:
    at_edge = WakeUps(1, 0, 0.3, 0.3, 0.3, recent_s=(0.3,), recent_ratios=(1.0,))
    assert render(MemoryCollector(), snapshot(wake_ups=at_edge))["djinn_wake_up_seconds_bucket,le=0.3"] == 1


@pytest.fixture
def page(client: Client, shared_pool: RuntimeInfo) -> Iterator[str]:
    """The metrics of a live pool, after a cell that kept a value."""
    client.run(act("", keep=True), target="cpu:0")
    with http(shared_pool) as api:
        yield api.get("/metrics").text


def test_a_live_pool_reports_its_sessions(page: str) -> None:
    found = parse(page)
    assert found["djinn_memory_bytes,device=cpu:0,kind=free,tier=device"] > 0
    assert sum(value for name, value in found.items() if name.startswith("djinn_memory_sessions")) >= 1


def expressions() -> Iterator[str]:
    board = json.loads((GRAFANA / "session-memory.json").read_text())
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", []))
    rules = yaml.safe_load((GRAFANA / "alerts.yaml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def test_the_shipped_dashboard_and_alerts_ask_for_metrics_that_exist(page: str) -> None:
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
    known = {name for name, kind in kinds.items() if kind != "histogram"}
    known |= {
        f"{name}_{part}" for name, kind in kinds.items() if kind == "histogram" for part in ("bucket", "sum")
    }
    asked = {name for expression in expressions() for name in re.findall(r"\bdjinn_\w+", expression)}
    assert len(asked) > 20
    assert asked - known == set()


def test_alert_rules_cover_hashes_memory_use_hits_and_wake_ups() -> None:
    rules = yaml.safe_load((GRAFANA / "alerts.yaml").read_text())
    by_name = {rule["alert"]: rule["expr"] for group in rules["groups"] for rule in group["rules"]}
    assert "djinn_memory_hash_mismatches_total" in by_name["DjinnHashMismatch"]
    assert "< 0.5" in by_name["DjinnMemoryUseLow"]
    assert "< 0.85" in by_name["DjinnHitRateLow"]
    assert "> 2" in by_name["DjinnWakeUpSlow"]


def test_labels_that_are_asked_for_have_values_that_exist(page: str) -> None:
    """A panel that selects ``kind="evict"`` stays empty if the label has another name."""
    found = set(parse(page))
    wanted = [
        (name, label, value)
        for expression in expressions()
        for name, selectors in re.findall(r"(djinn_\w+)\{([^}]*)\}", expression)
        for label, value in re.findall(r"(\w+)=\"([\w.]+)\"", selectors)
        if not name.startswith(("djinn_wake_up_ratio", "djinn_wake_up_recent"))
    ]
    assert wanted
    missing = [
        (name, label, value)
        for name, label, value in wanted
        if not any(sample.startswith(f"{name},") and f"{label}={value}" in sample for sample in found)
    ]
    assert missing == []
