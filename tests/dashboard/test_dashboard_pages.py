"""Pages as objects, fed by a real pool: what they show is read from their sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest
from device_kind import KIND
from page_kit import board_of, wait_until

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.graph.page import SrgPage
from djinn_lab.dashboard.history.page import HistoryPage
from djinn_lab.dashboard.history.series import ALL_DEVICES, NO_PROJECT
from djinn_lab.dashboard.hub import JOBS_MAX, Hub, Snapshot
from djinn_lab.dashboard.jobs.page import JobsPage
from djinn_lab.dashboard.memory.page import MemoryPage
from djinn_lab.dashboard.overview import Overview, visible_jobs
from djinn_lab.dashboard.route import Route
from djinn_lab.dashboard.schedule.page import SchedulePage
from djinn_lab.dashboard.shell import freshness
from djinn_lab.dashboard.widgets.theme import LIGHT
from djinn_lab.dashboard.wizard.page import STEPS, WizardPage
from djinn_lab.errors import AuthenticationError, PoolNotFound
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.snapshot import PoolSnapshot

pytestmark = pytest.mark.processes


@pytest.fixture
def board(finished_job: str) -> Iterator[Board]:
    with board_of(PoolClient.find) as made:
        yield made


def test_the_overview_shows_devices_cells_and_sessions(board: Board, finished_job: str) -> None:
    page = Overview(board)
    page.filter.value = "all"
    page.update(board.hub.snapshot())
    assert f"{KIND}:0" in page.devices.object
    assert "512.0 MiB" in page.devices.object
    [row] = [row for row in page.jobs.rows if row["id"] == finished_job]
    assert row["state"]["text"] == "done"
    assert row["progress"]["done"] == row["progress"]["total"] > 10
    assert any(row["name"] == "ann" for row in page.sessions.rows)
    assert set(page.memory.sources) == {f"{KIND}:0", f"{KIND}:1"}
    assert len(page.memory.sources[f"{KIND}:0"].data["time"]) == 1


def test_memory_streams_each_sample_once_and_pause_keeps_the_view(board: Board) -> None:
    page = Overview(board)
    for _ in range(3):
        board.hub.poll()
        page.update(board.hub.snapshot())
        page.update(board.hub.snapshot())
    assert len(page.memory.sources[f"{KIND}:1"].data["time"]) == 4
    page.memory.follow.value = False
    before = page.memory.figure.x_range.end
    board.hub.poll()
    page.update(board.hub.snapshot())
    assert page.memory.figure.x_range.end == before
    assert len(page.memory.sources[f"{KIND}:1"].data["time"]) == 5
    assert page.memory.follow.label == "Paused"


def test_cancelling_a_finished_cell_says_why_not(board: Board, finished_job: str) -> None:
    page = Overview(board)
    page.filter.value = "all"
    page.update(board.hub.snapshot())
    page.jobs.selected = finished_job
    assert page.cancel.disabled
    wait_until(lambda: "cross_entropy" in page.details.object or "owner" in page.details.object)
    page.cancel_selected()
    wait_until(lambda: "Not cancelled" in page.result.object)


def test_running_cells_are_listed_before_pending_by_queue_position() -> None:
    jobs = tuple(
        JobView(name, state=state, position=place)
        for name, state, place in [
            ("a", "DONE", None),
            ("b", "QUEUED", 2),
            ("c", "QUEUED", 1),
            ("d", "RUNNING", None),
        ]
    )
    assert [job.job for job in visible_jobs(jobs, "active")] == ["d", "c", "b"]
    assert len(visible_jobs(jobs, "all")) == 4


def test_overview_counts_listed_cells_below_a_table_with_rows_only(board: Board) -> None:
    done = tuple(JobView(f"{number:032x}", state="DONE") for number in range(JOBS_MAX))
    page = Overview(board)
    page.update(msgspec.structs.replace(board.hub.snapshot(), jobs=done))
    assert (page.jobs.rows, page.jobs.note) == ([], "")
    page.filter.value = "all"
    assert len(page.jobs.rows) == JOBS_MAX
    assert page.jobs.note == f"The newest {JOBS_MAX} cells are listed"


def test_the_graph_page_draws_folds_searches_and_shows_details(board: Board, finished_job: str) -> None:
    board.route.update(job=finished_job)
    page = SrgPage(board)
    page.update(board.hub.snapshot())
    wait_until(lambda: page.tree is not None and page.scene is not None)
    assert page.tree is not None
    labels = page.graph.boxes.data["label"]
    assert labels
    page._tapped(page.tree.root.children[-1])
    wait_until(lambda: page.graph.boxes.data["label"] != labels)
    page.search.value = "addmm|mm"
    assert "ops match" in page.message.object
    page.next.clicks += 1
    wait_until(lambda: "aten." in page.details.object and "Residency" in page.details.object)
    assert board.route.number("item") is not None
    page.search.value = "("
    assert "not a regular expression" in page.message.object
    page.as_table.value = True
    assert page.table.rows


@pytest.fixture(scope="module")
def two_runs(session: Any, pool: Any) -> tuple[str, str]:
    """Two runs of a cell with a cut; the second has another op behind the cut. Their ids, the older first."""
    import torch

    jobs = []
    for again in (False, True):
        with session.capture("compared"):
            value = torch.ones(32) * 2
            if value.sum().item() > 1:
                value = torch.tanh(value) if again else value
            assert (value + 1).sum().item() > 0
        jobs.append(str(pool.wait_for_job(state="DONE", cell="compared").job))
    return jobs[0], jobs[1]


def test_the_graph_page_shows_a_whole_cell_in_colours_of_its_times(
    two_runs: tuple[str, str], board: Board
) -> None:
    board.route.update(job=two_runs[1], segment="all")
    page = SrgPage(board)
    page.update(board.hub.snapshot())
    wait_until(lambda: page.tree is not None and page.scene is not None)
    assert page.tree is not None
    parts = [page.tree.items[child] for child in page.tree.root.children]
    assert [part.name.split(":")[0] for part in parts] == ["part 1", "part 2"]
    assert "whole cell" in page.chooser.segment.options
    for by in ("predicted", "measured", "memory"):
        board.route.update(colour=by)
        page.update(board.hub.snapshot())
        wait_until(lambda by=by: page.colouring.by == by)  # type: ignore[misc]
        assert all(page.graph.boxes.data["figure"])
    assert page._svg().getvalue().startswith(b"<svg")
    page.png.clicks += 1
    assert page.graph.picture.data["svg"][0].startswith("<svg")
    schedule = SchedulePage(board)
    schedule.update(board.hub.snapshot())
    wait_until(lambda: schedule.paths is not None)
    assert schedule.schedule is not None
    assert len(schedule.schedule.nodes) == len(page.tree.srg.nodes)


def test_the_graph_page_compares_with_the_previous_run(two_runs: tuple[str, str], board: Board) -> None:
    board.route.update(job=two_runs[1], segment="all")
    page = SrgPage(board)
    page.update(board.hub.snapshot())
    wait_until(lambda: page.tree is not None and page.scene is not None)
    page.update(board.hub.snapshot())
    page.colouring.comparer.compare.value = True
    assert board.route.get("diff") == two_runs[0]
    page.update(board.hub.snapshot())
    wait_until(lambda: page.colouring.changes is not None)
    assert page.colouring.by == "change"
    assert "1 op added, 0 removed" in page.colouring._heading.object
    page.colouring.rows_by.value = "op"
    [row] = [row for row in page.colouring.table.rows if row["name"] == "tanh"]
    assert row["added"] == 1
    board.route.update(diff="0" * 32)
    page.update(board.hub.snapshot())
    wait_until(lambda: "There is no job" in page.colouring.message.object)
    assert not page.colouring.compared.visible
    assert page.graph.boxes.data["label"]


def test_a_cell_that_does_not_exist_has_an_empty_state(board: Board) -> None:
    board.route.update(job="0" * 32)
    graph, schedule = SrgPage(board), SchedulePage(board)
    for page in (graph, schedule):
        page.update(board.hub.snapshot())
    wait_until(lambda: "no graph to show" in graph._missing.object)
    wait_until(lambda: "no schedule to show" in schedule._missing.object)
    assert all("Choose another cell" in page._missing.object for page in (graph, schedule))


def test_overview_says_when_the_job_of_the_address_is_gone(board: Board, finished_job: str) -> None:
    board.route.update(job="gone")
    page = Overview(board)
    page.enter()
    page.update(board.hub.snapshot())
    wait_until(lambda: "There is no job" in page.result.object)
    page.jobs.selected = finished_job
    wait_until(lambda: finished_job[:8] in page.details.object)
    assert not page.result.object
    assert board.route.get("job") == finished_job


def test_the_jobs_page_says_when_the_job_of_the_address_is_gone(board: Board) -> None:
    board.route.update(job="0" * 32)
    page = JobsPage(board)
    page.enter()
    page.update(board.hub.snapshot())
    wait_until(lambda: "There is no job" in page.gone.object)
    assert "djinn-lab jobs" in page.gone.object


def test_the_schedule_page_draws_predicted_and_measured(board: Board, finished_job: str) -> None:
    board.route.update(job=finished_job)
    page = SchedulePage(board)
    page.update(board.hub.snapshot())
    wait_until(lambda: len(page.ops.data["row"]) > 0)
    rows = set(page.ops.data["row"])
    assert {name.split()[1] for name in rows} == {"predicted", "measured"}
    assert page.figure.x_range.end > 0
    assert "times the prediction" in page._heading.object
    page.as_table.value = True
    assert page.table.rows[0]["measured"] is not None
    assert b"traceEvents" in page._trace().getvalue()
    assert page._csv().getvalue().startswith(b"node,op")
    wait_until(lambda: page.paths is not None)
    assert page.outlines.data["row"]
    assert "critical path has" in page.path_heading.object
    assert page.path_table.rows
    assert "than predicted, mostly in" in page._heading.object


def test_the_memory_page_shows_devices_and_the_session_of_the_address(board: Board, session: Any) -> None:
    own = session.welcome.session
    board.route.update(session=own[:10])
    page = MemoryPage(board)
    page.enter()
    page.update(board.hub.snapshot())
    assert f"Memory of {KIND}:0" in page.devices.object
    assert "512.0 MiB" in page.devices.object
    assert "Wake-up, p50 / p99" in page.figures.object
    [row] = [row for row in page.sessions.rows if row["id"] == own]
    assert row["name"]["text"].startswith("ann")
    assert page.sessions.selected == own
    assert own in page.facts.object
    assert page.story.visible
    assert any(label.startswith("ann") for label in page.lanes.figure.y_range.factors)
    assert own in page._sessions_csv().getvalue().decode()
    assert page._events_csv().getvalue().startswith(b"at_s,what")
    page.filter.value = "parked"
    assert board.route.get("show") == "parked"
    page.window.value = 60
    assert board.route.number("window") == 60


def test_the_memory_page_says_when_a_session_of_the_address_is_gone(board: Board) -> None:
    board.route.update(session="f" * 32)
    page = MemoryPage(board)
    page.enter()
    page.update(board.hub.snapshot())
    assert "There is no session ffff" in page.facts.object
    assert not page.story.visible


def test_the_history_page_shows_the_time_of_the_address(board: Board) -> None:
    board.route.update(range="hour", by="project")
    page = HistoryPage(board)
    page.enter()
    page.update(board.hub.snapshot())
    wait_until(lambda: page.totals.rows)
    assert page.history is not None
    assert (page.history.bucket_s, page.totals.rows[0]["name"]) == (60.0, NO_PROJECT)
    assert any(value > 0 for value in page.use_chart.lines[0].data["y"])
    page.use.as_table.value = True
    assert [column["label"] for column in page.use.table.columns][:2] == ["From", ALL_DEVICES]
    assert page.use.table.rows[0]["0"] is not None
    assert f"{KIND}:0".encode() in page.use.csv.callback().getvalue()
    page.range.value = "week"
    wait_until(lambda: page.history.bucket_s == 7200.0)
    assert board.route.get("range") == "week"
    page.by.value = "user"
    assert board.route.get("by") == ""
    board.route.update(range="fortnight")
    page.enter()
    assert page.range.value == "hour", "all cells of this pool are younger"
    assert page.totals.columns[0]["label"] == "User"


def test_the_wizard_page_goes_from_detection_to_a_saved_file(board: Board) -> None:
    from djinn_lab.config import load_profile, profiles_path

    page = WizardPage(board)
    page.update(board.hub.snapshot())
    wait_until(lambda: page.draft is not None)
    assert page.draft is not None
    assert page.draft.facts.pool.status == "found"
    for step in STEPS.values():
        page._go(step)
        assert board.route.get("step") == step
    assert page.workload.value == "research_training", "the visitor's last cell has trained a network"
    assert "backward or optimizer phase" in page._evidence.object
    assert page.effects.rows[0]["id"] == "these settings"
    assert page.effects.rows[0]["begins on"] in (f"{KIND}:0", f"{KIND}:1")
    page.code.value = "y = model.generate(ids)"
    page.recognise.clicks += 1
    assert page.workload.value == "llm_serving"
    page.code.value = "loss.backward()\noptimizer.step()"
    page.recognise.clicks += 1
    assert page.workload.value == "research_training"
    page.form.inputs["pool.threads"].value = "many"
    page.save.clicks += 1
    assert not profiles_path().exists()
    assert "whole number" in page.form.notes["pool.threads"].object
    page.form.inputs["pool.threads"].value = "1"
    assert "badge you" in page.form.notes["pool.threads"].object
    page.name.value = "mine"
    assert "+[profiles.mine]" in page._diff.object
    assert "--profile mine" in page._command.object
    page.save.clicks += 1
    assert "Saved profile mine" in page.result.object
    assert load_profile("mine").pool.threads == 1
    assert "already says this" in page._diff.object
    assert profiles_path().exists()


class Answers:
    """A reader that gives the answers of a real pool, changed."""

    def __init__(self, real: PoolClient) -> None:
        self.real = real
        self.changes: dict[str, Any] = {}
        self.error: Exception | None = None

    def snapshot(self, jobs: int) -> Any:
        if self.error:
            raise self.error
        answer = msgspec.to_builtins(self.real.snapshot(jobs))
        answer["status"] |= self.changes
        return self.real._decoded(httpx.Response(200, json=answer), PoolSnapshot)


def test_the_hub_finds_the_pool_again_and_says_what_is_wrong(pool: Any) -> None:
    answers = Answers(PoolClient.find())
    found = []

    def find() -> Any:
        found.append(1)
        return answers

    hub = Hub(find)
    first = hub.poll()
    assert (first.connection, first.version) == ("live", 1)
    answers.error = PoolNotFound("gone", "start it")
    away = hub.poll()
    assert (away.connection, away.message, away.advice) == ("absent", "gone", "start it")
    assert away.status == first.status
    assert hub.poll().version == away.version
    answers.error = AuthenticationError("no")
    assert hub.poll().connection == "refused"
    answers.error = None
    answers.changes = {"devices": "nonsense"}
    assert hub.poll().connection == "lost"
    answers.changes = {"pool": "another"}
    back = hub.poll()
    assert back.connection == "live"
    assert [sample.pool for sample in hub.memory_after(0)] == ["another"]
    assert len(found) > 1
    hub.stop()


def test_the_badge_says_how_fresh_the_page_is(board: Board) -> None:
    live = board.hub.snapshot()
    now = live.polled_at or 0.0
    assert freshness(live, now)[0::2] == ("Live", "good")
    assert freshness(live, now + 10)[2] == "bad"
    assert freshness(live, now + 10)[0].startswith("Stale: last update ")
    assert freshness(Snapshot(), now)[2] == "warn"
    absent = msgspec.structs.replace(live, connection="absent", message="none")
    assert freshness(absent, now)[:2] == ("No pool", "none")


def test_without_a_pool_every_page_says_what_to_do() -> None:
    def find() -> Any:
        raise PoolNotFound("No pool is running", "djinn-lab pool start")

    hub = Hub(find)
    snapshot = hub.poll()
    board = Board(hub, Route(), Background(hub.executor), LIGHT)
    for page in (Overview(board), SrgPage(board), SchedulePage(board)):
        page.update(snapshot)
        assert "djinn-lab pool start" in page._missing.object
        assert page._missing.visible
        assert not page._live.visible
    hub.stop()
