"""The Memory page's cards, tables and plots from snapshots made by hand, without a pool or a browser."""

from __future__ import annotations

import csv
import io
import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_snapshots import ADA, BO, CY, DEE, HAPPENINGS, MIB, NOW_S, account, counters, device, memory

from djinn_lab.client.session_memory import STATES, expected_wake, format_rate
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.memory.cards import device_cards, figures, sentence
from djinn_lab.dashboard.memory.history import SPANS_MAX, MemoryHistory
from djinn_lab.dashboard.memory.lanes import (
    LANES_MAX,
    SPANS_DRAWN_MAX,
    MemoryLanes,
    event_columns,
    lane_sessions,
    span_columns,
)
from djinn_lab.dashboard.memory.tables import (
    SESSION_COLUMNS,
    WHAT,
    deferred_rows,
    happening_rows,
    happenings_csv,
    session_facts,
    session_rows,
    sessions_csv,
)
from djinn_lab.dashboard.memory.wake_chart import LABELS, WakeChart, ratio_counts, wake_sentence
from djinn_lab.dashboard.overview import sessions_sentence
from djinn_lab.dashboard.widgets.theme import DARK, LIGHT, MEMORY_COLOURS
from djinn_lab.memory.snapshot import MemoryChange, WakeUps
from djinn_lab.memory.states import Connection, Phase
from djinn_lab.protocol.rest.sessions import MemorySession, MemoryView, SessionView


def widths(html: str) -> list[float]:
    return [float(found) for found in re.findall(r"width:([\d.]+)%", html)]


def tile(html: str, title: str) -> str:
    """Return the text of the tile with this title."""
    return next(part for part in html.split("<div class='tile")[1:] if title in part)


def test_a_device_is_split_into_what_its_bytes_are_for() -> None:
    html = device_cards(memory(), stale=False)
    for words in (
        "busy 300.0 MiB",
        "idle 200.0 MiB",
        "loading 100.0 MiB",
        "shared weights 100.0 MiB",
        "reserved 50.0 MiB",
        "250.0 MiB free",
        "700.0 MiB of 1000.0 MiB (70%)",
        "at most 900.0 MiB so far",
        "parked 500.0 MiB",
        "copies 100.0 MiB",
        "1.4 GiB free",
        "2.5 GB/s of 10.0 GB/s",
        "5.0 GB/s of 10.0 GB/s",
        "2 resident, 1 loading, 1 parked",
    ):
        assert words in html
    assert widths(html) == [30, 20, 10, 10, 5, 25, 5, 10, 25, 50]


def test_device_card_names_a_tier_without_capacity_and_an_unmeasured_link() -> None:
    html = device_cards(memory(devices=(device(host_bytes=0, link_bytes_per_s=None),)), stale=False)
    assert "none is set aside for it" in html
    assert "not measured yet" in html
    assert "starting" in device_cards(memory(devices=()), stale=False)


def test_bytes_without_a_breakdown_are_shown_as_used() -> None:
    plain = device(busy_bytes=0, idle_bytes=0, loading_bytes=0, shared_bytes=0)
    assert "used 700.0 MiB" in device_cards(memory(devices=(plain,)), stale=False)


@given(
    st.integers(0, 1200),
    st.integers(0, 1200),
    st.integers(0, 1200),
    st.integers(0, 2000),
)
@settings(deadline=None)
def test_a_bar_is_never_longer_than_its_tier(busy: int, idle: int, used: int, reserved: int) -> None:
    full = device(
        busy_bytes=busy * MIB,
        idle_bytes=idle * MIB,
        loading_bytes=0,
        shared_bytes=0,
        used_bytes=used * MIB,
        reserved_bytes=reserved * MIB,
    )
    bar = (
        device_cards(memory(devices=(full,)), stale=False)
        .split("class='stack'")[1]
        .split("class='legend'")[0]
    )
    over = max(busy + idle, used) > 1000
    assert over or sum(widths(bar)) <= 100.1


def test_each_figure_moves_its_tile() -> None:
    html = figures(memory())
    assert "1.0 ms / 400.0 ms" in tile(html, "Wake-up, p50 / p99")
    assert "n = 100" in tile(html, "Wake-up, p50 / p99")
    assert "90% without a wait" in tile(html, "Wake-up, p50 / p99")
    assert "1.80 ×" in tile(html, "Wake-up beside the best copy")
    assert "60%" in tile(html, "Prefetches on time")
    assert "3 on time, 1 late, 1 wasted" in tile(html, "Prefetches on time")
    assert "9 of 10" in tile(html, "Useful swaps")
    assert "1,234 / 0" in tile(html, "Checked / failed")
    assert "3.0 GiB / 2.0 GiB" in tile(html, "Stored / restored")
    assert "1 for admission; 2 waited" in tile(html, "Waiting for memory")


@pytest.mark.parametrize(
    ("change", "title", "words"),
    [
        ({"mismatches": 3}, "Checked / failed", "1,234 / 3"),
        ({"failed_transfers": 4}, "Stored / restored", "4 failed"),
        ({"values_lost": 2}, "Waiting for memory", "2 times values were lost"),
        ({"admission_waits": 77}, "Waiting for memory", "77 waited"),
        ({"useful_swaps": 4}, "Useful swaps", "40%"),
        ({"prefetches_wasted": 6}, "Prefetches on time", "30%"),
    ],
)
def test_each_counter_that_went_wrong_is_seen(change: dict[str, int], title: str, words: str) -> None:
    assert words in tile(figures(counters(**change)), title)


def test_memory_figures_mark_what_went_wrong() -> None:
    assert "bad" not in tile(figures(memory()), "Checked / failed")
    assert tile(figures(counters(mismatches=1)), "Checked / failed").startswith(" bad")
    slow = memory(wake_ups=WakeUps(5, 0, 1.0, 2.0, 2.0, 2.5, 3.5))
    assert tile(figures(slow), "Wake-up beside the best copy").startswith(" bad")


def test_before_anything_happened_the_figures_say_so() -> None:
    from djinn_lab.memory.snapshot import Counters

    html = figures(memory(wake_ups=WakeUps(), counters=Counters(), deferred=()))
    for words in (
        "no session has woken up yet",
        "no wake-up needed a copy yet",
        "none was needed yet",
        "nothing was",
    ):
        assert words in html
    assert "No session has woken up yet" in wake_sentence(WakeUps())


def test_the_sentence_adds_it_all_up() -> None:
    said = sentence(memory())
    assert "4 sessions hold 1.1 GiB" in said
    assert "50.0 MiB of it key-value caches" in said
    assert "1.10 times the devices’ memory" in said
    assert "2 on a device, 1 loading, 1 on the host, 0 on disk" in said
    assert "Policy: lazy" in said


def test_a_session_is_a_row_with_its_state_and_expectation() -> None:
    rows = {row["id"]: row for row in session_rows(memory(), "all")[0]}
    assert list(rows) == [ADA, BO, DEE, CY]
    assert rows[ADA]["state"]["text"] == STATES["busy"]
    assert rows[ADA]["stored"]["text"] == "50%"
    assert rows[BO]["state"]["text"] == STATES["idle"]
    assert rows[BO]["wake"] == "in 20 s (10 s to 1 min)"
    assert rows[BO]["lease"]["text"] == "3 s"
    assert rows[BO]["kv"]["text"] == "50.0 MiB"
    assert rows[DEE]["state"]["text"] == STATES["loading"]
    assert rows[DEE]["moving"] == "restore"
    assert rows[CY]["ratio"]["text"] == "1.50"
    assert rows[CY]["last"]["text"] == "300.0 ms"
    columns = {column["key"] for column in SESSION_COLUMNS}
    assert all(set(row) == columns | {"id"} for row in rows.values())


def test_a_session_whose_client_is_away_or_gone_is_marked() -> None:
    near = MemorySession("a" * 32, "ann", Connection.CONNECTED, Phase.IO_WAIT, name="near")
    asleep = msgspec.structs.replace(near, session="b" * 32, name="asleep", away=True)
    shown = session_rows(MemoryView(0.0, sessions=(near, asleep)), "all")[0]
    assert [row["name"]["text"] for row in shown] == ["near · aaaa", "asleep · bbbb (away)"]
    listed = (SessionView("a", state="connected"), SessionView("b", state="away", used_bytes=2**20))
    assert sessions_sentence(Snapshot(sessions=listed)) == (
        "1 connected, 1 away, 0 detached; together they hold 1.0 MiB."
    )


def test_rows_are_filtered_and_bounded() -> None:
    assert {row["id"] for row in session_rows(memory(), "parked")[0]} == {CY}
    assert {row["id"] for row in session_rows(memory(), "device")[0]} == {ADA, BO, DEE}
    many = memory(sessions=tuple(account(f"{number:032x}", total_bytes=number) for number in range(350)))
    rows, note = session_rows(many, "all")
    assert len(rows) == 100
    assert "of 350" in note
    assert rows[0]["bytes"]["sort"] == 349


def test_an_expectation_can_be_overdue_or_absent() -> None:
    found = {session.session: session for session in memory().sessions}
    assert expected_wake(found[ADA], NOW_S) == ""
    assert expected_wake(found[BO], NOW_S + 25).startswith("5 s ago")
    assert expected_wake(found[BO], NOW_S - 600).startswith("in 10 min (")


def test_waiting_cells_say_for_what_and_why() -> None:
    [row] = deferred_rows(memory())
    assert row["kind"]["text"] == "admission"
    assert row["since"]["text"] == "12 s"
    assert row["estimate"]["text"] == "about 3.0 s"
    assert row["reason"] == "Needs 100.0 MiB"


def test_the_facts_of_a_session_escape_its_name() -> None:
    session = memory().session(CY)
    assert session is not None
    html = session_facts(session, NOW_S)
    assert "&lt;cy&gt;" in html
    assert "<cy>" not in html
    assert "1.50 times the 200.0 ms" in html


def test_a_session_is_found_by_a_unique_start_of_its_id() -> None:
    assert memory().session(CY[:3]) == memory().session(CY)
    assert memory().session("") is None
    assert memory().session("unknown") is None


def test_files_to_take_away_have_every_session_and_every_happening() -> None:
    rows = list(csv.DictReader(io.StringIO(sessions_csv(memory()))))
    assert {row["session"] for row in rows} == {ADA, BO, CY, DEE}
    assert next(row for row in rows if row["session"] == CY)["state"] == "host"
    assert sessions_csv(None).startswith("session,user")
    events = list(csv.DictReader(io.StringIO(happenings_csv(HAPPENINGS))))
    assert [row["what"] for row in events] == ["evict", "restore", "wake", "store"]
    assert int(events[1]["nbytes"]) == 500 * MIB


def test_the_newest_happening_comes_first_in_plain_words() -> None:
    rows = happening_rows(HAPPENINGS, 3, memory())
    assert [row["what"] for row in rows] == [WHAT["store"], WHAT["wake"], WHAT["restore"]]
    assert rows[2]["took"]["text"] == "2.0 s"
    assert rows[2]["reason"] == "its owner is back"


def test_history_keeps_states_and_takes_each_happening_once() -> None:
    history = MemoryHistory()
    history.note("pool", memory())
    before = history.version
    history.note("pool", memory(NOW_S + 1))
    assert history.version == before
    moved = tuple(
        msgspec.structs.replace(one, tier="host") if one.session == BO else one
        for one in memory().sessions
        if one.session != ADA
    )
    later = msgspec.structs.replace(
        memory(NOW_S + 2),
        sessions=moved,
        happenings=(*HAPPENINGS, MemoryChange(NOW_S - 10, "evict", BO, "cuda:0", 9, 0.001)),
    )
    history.note("pool", later)
    assert history.version > before
    assert [(span.state, span.end) for span in history.spans(BO, 0)] == [("idle", NOW_S + 2), ("host", None)]
    assert [(span.state, span.end) for span in history.spans(ADA, 0)] == [("busy", NOW_S + 2)]
    assert len(history.happenings(0)) == len(HAPPENINGS) + 1
    assert [one.what for one in history.happenings(0, BO)] == ["store", "evict"]
    assert history.happenings(NOW_S - 20, CY) == []
    history.note("another", memory(NOW_S + 3))
    assert [span.start for span in history.spans(BO, 0)] == [NOW_S + 3]


def test_history_forgets_what_is_old() -> None:
    history = MemoryHistory()
    history.note("pool", memory())
    history.note("pool", memory(NOW_S + 2000, sessions=(), happenings=()))
    history.note("pool", memory(NOW_S + 4000, sessions=(), happenings=()))
    assert history.spans(ADA, 0) == []
    assert history.happenings(0) == []
    for number in range(SPANS_MAX + 50):
        tier: Any = "host" if number % 2 else "disk"
        history.note("pool", memory(NOW_S + 4000 + number / 10, sessions=(account(CY, tier=tier),)))
    assert len(history.spans(CY, 0)) <= SPANS_MAX


def test_lanes_show_states_copies_and_moments_and_send_only_what_changed() -> None:
    history = MemoryHistory()
    lanes = MemoryLanes(LIGHT)
    history.note("pool", memory())
    lanes.update(memory(), history, 180.0, "")
    assert len(lanes.figure.y_range.factors) == 4
    assert set(lanes.spans.data["state"]) == {STATES[name] for name in ("busy", "idle", "loading", "host")}
    [copied, _] = sorted(zip(lanes.copies.data["left"], lanes.copies.data["right"], strict=True))
    assert copied == ((NOW_S - 52) * 1e3, (NOW_S - 50) * 1e3)
    assert sorted(lanes.marks.data["what"]) == sorted([WHAT["evict"], WHAT["wake"]])
    drawn = lanes.spans.data
    lanes.update(memory(NOW_S + 1), history, 180.0, "")
    assert lanes.spans.data is drawn
    assert lanes.figure.x_range.end == (NOW_S + 1) * 1e3
    lanes.update(memory(NOW_S + 1), history, 60.0, "")
    assert lanes.marks.data["what"] == [WHAT["wake"]]


def test_the_chosen_session_always_has_a_lane() -> None:
    many = memory(sessions=tuple(account(f"{number:032x}", total_bytes=5) for number in range(200)))
    chosen = f"{199:032x}"
    shown = lane_sessions(many, chosen, {f"{50:032x}"})
    assert len(shown) == LANES_MAX
    assert {chosen, f"{50:032x}"} <= {session.session for session in shown}


def test_memory_lanes_draw_a_bounded_number_of_items() -> None:
    history = MemoryHistory()
    for number in range(1800):
        tier: Any = "host" if number % 2 else "disk"
        sessions = tuple(account(f"{one:032x}", tier=tier, total_bytes=1) for one in range(40))
        history.note("pool", memory(NOW_S + number / 2, sessions=sessions, happenings=()))
    end_s = NOW_S + 900
    spans = {f"{one:032x}": history.spans(f"{one:032x}", NOW_S) for one in range(40)}
    columns = span_columns(spans, NOW_S, end_s)
    assert 40 <= len(columns["lane"]) <= 1.5 * SPANS_DRAWN_MAX
    copies, marks = event_columns([MemoryChange(NOW_S, "wake", CY, "cuda:0")] * 5000, {CY: "cy"})
    assert len(marks["lane"]) == 1200
    assert copies["lane"] == []


def test_the_histogram_has_every_wake_up_and_its_own_bar_for_those_without_a_copy() -> None:
    ratios = (0.0, 0.0, 0.9, 1.0, 1.05, 1.3, 1.99, 2.0, 4.0, 12.0)
    wakes = WakeUps(10, 2, 0.1, 0.2, 0.3, 1.0, 2.0, tuple(0.1 for _ in ratios), ratios)
    counts = dict(zip(LABELS, ratio_counts(wakes), strict=True))
    assert counts == {
        "no copy": 2,
        "< 1": 1,
        "1–1.1": 2,
        "1.1–1.25": 0,
        "1.25–1.5": 1,
        "1.5–2": 1,
        "2–3": 1,
        "3–5": 1,
        "5–10": 0,
        "> 10": 1,
    }
    assert "30.0% took more than twice" in wake_sentence(wakes)
    for look in (LIGHT, DARK):
        chart = WakeChart(look)
        chart.update(wakes)
        assert sum(chart.source.data["count"]) == 10
        assert chart.figure.y_range.end > 2


def test_every_state_has_words_and_a_colour() -> None:
    assert set(STATES) == set(MEMORY_COLOURS)


def test_a_copy_has_the_reason_that_it_began_with() -> None:
    history = MemoryHistory()
    began = MemoryChange(NOW_S - 3, "restore", CY, "cuda:0", 500, None, "it runs a cell")
    ahead = MemoryChange(NOW_S - 3, "prefetch", BO, "cuda:0", 200, None, "expected back in 2 s")
    history.note("pool", memory(happenings=(began, ahead)))
    assert [one.what for one in history.happenings(0)] == ["prefetch"]
    assert history.reason(CY) == "it runs a cell"
    ended = (
        MemoryChange(NOW_S - 1, "restore", CY, "cuda:0", 480, 2.0, "done"),
        MemoryChange(NOW_S - 1, "restore", BO, "cuda:0", 200, 2.0, "done"),
    )
    history.note("pool", memory(NOW_S + 1, happenings=(began, ahead, *ended)))
    history.note("pool", memory(NOW_S + 2, happenings=(began, ahead, *ended)))
    assert [(one.what, one.session, one.reason) for one in history.happenings(0)] == [
        ("prefetch", BO, "expected back in 2 s"),
        ("restore", CY, "it runs a cell"),
        ("restore", BO, "expected back in 2 s"),
    ]
    assert history.reason(CY) == ""


def test_sentences_of_the_pool_name_sessions_as_people_do() -> None:
    own = "0123456789abcdef" * 2
    seen = memory(sessions=(account(own),))
    assert seen.readable(f"{own} is due sooner") == "ann · 0123 is due sooner"
    assert seen.readable(f"evicted for {'f' * 32}, closed since") == "evicted for ffffffff, closed since"
    assert seen.readable("12 s") == "12 s"


def test_rates_are_in_the_units_of_links() -> None:
    assert [format_rate(rate) for rate in (0, 12_300, 4.5e6, 1.2e10)] == [
        "0 B/s",
        "12.3 kB/s",
        "4.5 MB/s",
        "12.0 GB/s",
    ]
