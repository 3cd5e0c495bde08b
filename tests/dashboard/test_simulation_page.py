"""The page about simulated queues, which needs a result file and no pool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bokeh.models import GlyphRenderer

from djinn_lab.dashboard.simulation.charts import SimulationCharts, completed_within
from djinn_lab.dashboard.simulation.tables import account_rows, best_sentence, policy_rows, result_sentence
from djinn_lab.dashboard.widgets.theme import LIGHT
from djinn_lab.jobs.decision import POLICIES as ALL_POLICIES
from djinn_lab.jobs.request import Demand
from djinn_lab.simulator.queue import QueueSettings, Trace, TraceJob, equal_nodes, simulate_queue
from djinn_lab.simulator.queue.result_file import QueueResult, result_of, write_result

POLICIES = ("fifo", "default")


def two_accounts(names: tuple[str, ...] = POLICIES) -> QueueResult:
    """Ann's long cells come before Bob's short ones, on one device."""
    long = [TraceJob(f"a{number}", float(number), 100.0, Demand(), "ann", 100.0) for number in range(3)]
    short = [TraceJob(f"b{number}", 5.0 + number, 2.0, Demand(), "bob", 2.0) for number in range(3)]
    trace = Trace("two accounts", tuple(sorted(long + short, key=lambda job: job.submit_s)))
    settings = QueueSettings()
    runs = [simulate_queue(trace, equal_nodes(1, 1), policy, settings) for policy in names]
    return result_of(trace.name, {"": 1}, settings, runs)


def test_tables_say_what_the_runs_came_to() -> None:
    result = two_accounts()
    fifo, default = policy_rows(result)
    assert (fifo["id"], default["id"]) == POLICIES
    assert default["completion"]["sort"] < fifo["completion"]["sort"]
    assert default["jain"]["sort"] > fifo["jain"]["sort"]
    assert default["preemptions"] >= 1
    assert fifo["preemptions"] == 0
    by_account = {row["id"]: row for row in account_rows(result.runs[0].accounts)}
    assert by_account["bob"]["wait"]["sort"] > 100
    assert "1 devices; run times" in result_sentence(result)
    assert best_sentence(result).startswith("default completes soonest on average")
    assert "default is most even" in best_sentence(result)


def test_charts_draw_every_run_and_bring_the_chosen_one_forward() -> None:
    result = two_accounts()
    charts = SimulationCharts(LIGHT)
    charts.show(result, "")
    held, waiting, within = (pane.object for pane in charts.plots.objects)
    lines = {
        plot: {str(line.data_source.data["policy"][0]): line for line in plot.select(GlyphRenderer)}
        for plot in (held, waiting, within)
    }
    assert all(set(of_plot) == set(POLICIES) for of_plot in lines.values())
    assert max(lines[waiting]["fifo"].data_source.data["y"]) == 5
    assert (
        len({(line.glyph.line_color, line.glyph.line_dash[0:1] == []) for line in lines[held].values()}) == 2
    )
    assert all(f"</i>{policy}</span>" in charts.legend.object for policy in POLICIES)
    charts.highlight("default")
    assert lines[held]["fifo"].glyph.line_alpha < lines[held]["default"].glyph.line_alpha
    charts.highlight("")
    assert lines[held]["fifo"].glyph.line_alpha == 1.0


def test_completion_is_counted_from_submission() -> None:
    times, parts = completed_within(two_accounts().runs[0])
    assert times == sorted(times)
    assert parts[-1] == 1.0
    assert times[-1] == pytest.approx(301.0, abs=5)


@pytest.fixture(scope="module")
def pool(directory: Path) -> Iterator[None]:
    """None runs."""
    (directory / "run").mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJINN_RUNTIME_DIR", str(directory / "run"))
        yield


@pytest.mark.browser
@pytest.mark.processes
def test_a_file_is_opened_in_the_browser(dashboard_url: str, visitor: Any, tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", two_accounts())
    (tmp_path / "other.json").write_text('{"format": "something else"}')
    page = visitor.open(f"{dashboard_url}?page=simulation")
    page.get_by_text("What would another policy have done?").wait_for()
    chooser = page.locator("input[type=file]")
    chooser.set_input_files(tmp_path / "result.json")
    page.get_by_text("Simulated: two accounts").wait_for()
    page.get_by_role("row").filter(has_text="default").first.click()
    page.get_by_text("Accounts under default").wait_for()
    page.wait_for_function("location.search.includes('policy=default')")
    chooser.set_input_files(tmp_path / "other.json")
    page.get_by_text("other.json is not a result of a queue simulation").wait_for()
    assert page.get_by_text("Simulated: two accounts").is_visible()


@pytest.mark.browser
@pytest.mark.processes
def test_every_policy_fits_a_narrow_window(dashboard_url: str, visitor: Any, tmp_path: Path) -> None:
    write_result(tmp_path / "result.json", two_accounts(tuple(ALL_POLICIES)))
    page = visitor.open(f"{dashboard_url}?page=simulation")
    page.set_viewport_size({"width": 420, "height": 900})
    page.locator("input[type=file]").set_input_files(tmp_path / "result.json")
    page.get_by_label("Lines of the policies").wait_for()
    page.locator("canvas").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
