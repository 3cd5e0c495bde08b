"""The dashboard in a real browser, with a real pool behind it."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from dashboard_serving import free_port, start_dashboard, stop
from device_kind import KIND
from real_pool import PoolUnderTest, have_measured, wait_for

pytestmark = [pytest.mark.browser, pytest.mark.processes]


def test_the_overview_comes_up_and_stays_live(
    visitor: Any, dashboard_url: str, finished_job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    visitor.open(dashboard_url).wait_for_selector(".card")
    began = time.monotonic()
    page = visitor.open(dashboard_url)
    page.wait_for_selector(f".card >> text={KIND}:0")
    content_s = time.monotonic() - began
    paint_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    with capsys.disabled():
        print(f"\ndashboard: first contentful paint {paint_ms:.0f} ms, device cards after {content_s:.2f} s")
    page.wait_for_selector("text=Live")
    page.wait_for_selector("td:has-text('ann')")
    page.click("text=All recent")
    page.wait_for_selector(f"td:has-text('{finished_job[:8]}')")
    page.wait_for_function("location.search.includes('show=all')")


def test_page_says_that_it_loads_until_its_scripts_have_arrived(visitor: Any, dashboard_url: str) -> None:
    page = visitor.open("about:blank")
    held: list[Any] = []
    holding = True
    page.route(
        re.compile(r"/static/.*\.js"), lambda route: held.append(route) if holding else route.continue_()
    )
    page.goto(dashboard_url, wait_until="commit")
    page.get_by_text("Loading", exact=True).wait_for()
    page.wait_for_function("performance.getEntriesByName('first-contentful-paint').length")
    assert held
    holding = False
    for route in held:
        route.continue_()
    page.locator("header .tabs, .empty").first.wait_for()
    page.locator("#skeleton").wait_for(state="detached")


def test_tabs_are_in_the_address_and_survive_reload_and_back(
    visitor: Any, dashboard_url: str, finished_job: str
) -> None:
    page = visitor.open(dashboard_url)
    page.click("role=tab[name='Schedule']")
    page.wait_for_selector("text=Schedule of the cell")
    page.wait_for_function("location.search.includes('page=schedule')")
    page.reload(wait_until="commit")
    page.wait_for_selector("text=Schedule of the cell")
    page.click("role=tab[name='Graph']")
    page.wait_for_selector("text=Graph of the cell")
    page.evaluate("history.back()")
    page.wait_for_selector("role=tab[name='Schedule'][selected]")


def test_changes_arrive_in_order_while_the_socket_is_being_written_to(visitor: Any, directory: Path) -> None:
    port, app = free_port(), "tests/dashboard/changes_on_a_slow_socket.py"
    process = start_dashboard(port, dict(os.environ), directory / "slow.log", app=app)
    try:
        visitor.open(f"http://127.0.0.1:{port}/{Path(app).stem}").wait_for_selector(
            "text=All changes arrived."
        )
    finally:
        stop(process)


def test_a_running_cell_appears_and_can_be_cancelled(
    visitor: Any, dashboard_url: str, session: Any, pool: PoolUnderTest
) -> None:
    page = visitor.open(dashboard_url)
    page.wait_for_selector(".card")
    worker = threading.Thread(target=_long_cell, args=(session,))
    worker.start()
    job = pool.wait_for_job(state="RUNNING")
    row = page.wait_for_selector("tr:has(.pill:text-is('running'))")
    before = row.text_content()
    page.wait_for_function("([row, before]) => row.textContent !== before", arg=[row, before])
    row.click()  # still the same element, or clicks would be lost while figures change
    page.wait_for_selector("text=Show schedule")
    page.click("button:has-text('Cancel cell'):not([disabled])")
    page.wait_for_selector("text=the pool accepted the cancel")
    worker.join(20)
    assert pool.rest.job(job.job).state == "CANCELLED"


def _long_cell(session: Any) -> None:
    import torch

    from djinn_lab.errors import CellCancelled, DjinnError

    weights = torch.randn(600, 600)
    try:
        with session.capture():
            value = weights
            for _ in range(2000):
                value = torch.tanh(value @ weights)
            value.sum().item()
    except (CellCancelled, DjinnError):
        return


def test_a_click_opens_a_group_and_shows_its_fields(
    visitor: Any, dashboard_url: str, finished_job: str
) -> None:
    page = visitor.open(f"{dashboard_url}?page=srg&job={finished_job}&open=0")
    page.wait_for_selector("text=Graph of the cell")
    page.wait_for_function(_BOX_SPOT + "() !== null")
    spot = page.evaluate(_BOX_SPOT + "()")
    page.mouse.click(spot["x"], spot["y"])
    page.wait_for_selector("table.facts >> text=FLOPs")
    page.wait_for_function("!new URLSearchParams(location.search).get('open').match(/^0$/)")
    page.wait_for_function("location.search.includes('item=')")
    page.fill("input[type=text]", "mm")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=ops match")
    page.click("button:has-text('Next match'):not([disabled])")
    page.wait_for_selector("table.facts >> text=Residency")


def test_the_small_map_moves_the_graph_and_pictures_are_saved(
    visitor: Any, dashboard_url: str, finished_job: str
) -> None:
    page = visitor.open(f"{dashboard_url}?page=srg&job={finished_job}&colour=measured")
    page.wait_for_selector("[aria-label='Colours: Measured']")
    page.wait_for_function(_BOX_SPOT + "() !== null")
    before = page.evaluate(_VIEW)
    spot = page.evaluate(_MAP_CORNER)
    page.mouse.click(spot["x"], spot["y"])
    page.wait_for_function(
        f"JSON.stringify({_VIEW}) !== {json.dumps(json.dumps(before, separators=(',', ':')))}"
    )
    for button, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.click(f"text='{button}'")
        assert Path(waiting.value.path()).read_bytes().startswith(start)


_VIEW = """(() => {
  const fig = [...Bokeh.documents[0]._all_models.values()]
    .find((model) => model.type === "Figure" && model.tags.length === 5);
  return [fig.x_range.start, fig.y_range.start];
})()"""
_MAP_CORNER = """(() => {
  const find = (root) => {
    for (const element of root.querySelectorAll("*")) {
      if (!element.shadowRoot) continue;
      const canvas = element.shadowRoot.querySelector("canvas");
      if (canvas && canvas.getBoundingClientRect().height === 150) return canvas;
      const inner = find(element.shadowRoot);
      if (inner) return inner;
    }
    return null;
  };
  const area = find(document).getBoundingClientRect();
  return { x: area.left + 20, y: area.top + 20 };
})()"""

_BOX_SPOT = """(() => {
  const models = [...Bokeh.documents[0]._all_models.values()];
  const fig = models.find((model) => model.type === "Figure" && model.tags.length === 5);
  const source = models.find((model) => model.data && model.data.sublabel_y);
  if (!fig || !source || !fig.inner_width || !source.data.x.length || fig.tags[0] === 0) return null;
  const find = (root) => {
    for (const el of root.querySelectorAll("*")) {
      if (el.shadowRoot) {
        const canvas = el.shadowRoot.querySelector("canvas");
        if (canvas && canvas.getBoundingClientRect().height > 300) return canvas;
        const inner = find(el.shadowRoot);
        if (inner) return inner;
      }
    }
    return null;
  };
  const canvas = find(document);
  if (!canvas) return null;
  const area = canvas.getBoundingClientRect();
  const x = source.data.x[0], y = source.data.y[0];
  const left = area.left + (area.width - fig.inner_width) / 2;
  const top = area.top + (area.height - fig.inner_height) / 2;
  return {
    x: left + (fig.inner_width * (x - fig.x_range.start)) / (fig.x_range.end - fig.x_range.start),
    y: top + (fig.inner_height * (y - fig.y_range.end)) / (fig.y_range.start - fig.y_range.end),
  };
})"""


def test_the_memory_page_shows_a_session_and_keeps_it_in_the_address(
    visitor: Any, dashboard_url: str, session: Any, finished_job: str
) -> None:
    own = session.welcome.session
    page = visitor.open(f"{dashboard_url}?page=memory")
    page.wait_for_selector(f"[aria-label='Memory of {KIND}:0']")
    page.wait_for_selector("text=Wake-up, p50 / p99")
    page.wait_for_function(_DRAWN_WIDTHS + ".every((width) => width > 300)")
    before = page.evaluate("window.__djinnBeat")
    page.wait_for_function(f"window.__djinnBeat > {before}")
    page.click(f"tr[data-id='{own}']")
    page.wait_for_selector(f"table.facts >> text={own}")
    page.wait_for_function(f"location.search.includes('session={own}')")
    page.reload(wait_until="commit")
    page.wait_for_selector(f"table.facts >> text={own}")
    with page.expect_download() as waiting:
        page.click("text=CSV of sessions")
    assert own in Path(waiting.value.path()).read_text()


_DRAWN_WIDTHS = """[...Bokeh.documents[0]._all_models.values()]
  .filter((model) => model.type === "Figure").map((model) => model.inner_width)"""


def test_the_costs_page_shows_measured_curves_and_runs_beside_predictions(
    visitor: Any, dashboard_url: str, session: Any, pool: PoolUnderTest
) -> None:
    import torch

    have_measured(pool.rest)
    for _ in range(2):
        with session.capture("measured cell"):
            value = torch.eye(64) @ torch.eye(64)
        assert value.sum().item() == 64
    page = visitor.open(f"{dashboard_url}?page=costs&device={KIND}:1&family=softmax")
    page.wait_for_selector(f"[aria-label='Costs of {KIND}:1'] >> text=GFLOP/s")
    page.wait_for_selector(f"text=/softmax on {KIND}:1, as measured: \\d+ probes/")
    page.wait_for_function(_DRAWN_WIDTHS + ".every((width) => width > 300)")
    page.wait_for_selector("text=/Of the last \\d+ runs/")
    page.get_by_label("Family of ops").first.select_option("matmul")
    page.wait_for_function("!location.search.includes('family=')")
    page.click("text=From earlier runs")
    page.wait_for_function("location.search.includes('source=runs')")
    page.locator("button:has-text('View as table')").nth(1).click()
    page.wait_for_selector("td:has-text('measured cell')")
    with page.expect_download() as waiting:
        page.click("text=CSV of runs")
    assert "predicted_s,measured_s,error" in Path(waiting.value.path()).read_text()


def test_devices_page_keeps_the_chosen_device_in_the_address(
    visitor: Any, dashboard_url: str, pool: PoolUnderTest
) -> None:
    page = visitor.open(f"{dashboard_url}?page=devices")
    page.wait_for_selector(f"[aria-label='Description: {KIND}:0']")
    page.click(f"tr[data-id='{KIND}:1']")
    page.wait_for_selector(f"[aria-label='Description: {KIND}:1']")
    page.wait_for_function(f"location.search.includes('device={KIND}%3A1')")
    page.click(f"button:text-is('Cordon {KIND}:1')")
    page.wait_for_selector(f"text={KIND}:1 is cordoned: no cell starts there.")
    page.wait_for_selector(f"tr[data-id='{KIND}:1'] .pill:has-text('cordoned')")
    page.click(f"button:text-is('Uncordon {KIND}:1')")
    page.wait_for_selector(f"text={KIND}:1 serves again.")


def test_admin_page_works_by_keyboard_and_asks_before_a_removal(
    visitor: Any, dashboard_url: str, pool: PoolUnderTest
) -> None:
    page = visitor.open(f"{dashboard_url}?page=admin&section=tokens")
    page.get_by_role("tab", name="Tokens").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("location.search.includes('section=users')")
    name, add = page.get_by_label("Name", exact=True), page.get_by_role("button", name="Add user")
    name.fill("no name!")
    add.press("Enter")
    page.wait_for_selector("text='no name!' is not a user name")
    assert name.input_value() == "no name!"
    name.fill("carla")
    add.press("Enter")
    page.wait_for_selector("text=carla may use the pool as user.")
    page.wait_for_selector("text=/export DJINN_POOL=.* DJINN_TOKEN=/")
    row = page.locator("tr[data-id='carla']")
    row.press("Enter")
    page.locator("button:has-text('Remove user'):not([disabled])").press("Enter")
    page.wait_for_selector("text=All tokens of carla end at once")
    assert "carla" in {user.name for user in pool.rest.users()}
    page.wait_for_selector("text=Remove user", state="hidden")
    page.get_by_role("button", name="Yes, remove carla").press("Enter")
    row.wait_for(state="hidden")
    assert "carla" not in {user.name for user in pool.rest.users()}


def test_the_history_page_shows_the_time_and_shares_of_its_address(
    visitor: Any, dashboard_url: str, finished_job: str
) -> None:
    page = visitor.open(f"{dashboard_url}?page=history&range=hour&by=project")
    page.wait_for_selector("text=/In the last hour, 2 devices ran cells for/")
    page.wait_for_selector("td:has-text('No project')")
    page.wait_for_function(_DRAWN_WIDTHS + ".every((width) => width > 300)")
    page.click("button:has-text('View as table') >> nth=1")
    page.wait_for_selector("th:has-text('90 % below')")
    page.click("button:text-is('Last week')")
    page.wait_for_function("location.search.includes('range=week')")
    page.wait_for_selector("text=/In the last week, 2 devices/")
    with page.expect_download() as waiting:
        page.click("text=CSV of shares")
    assert "from,to,user,account,device_s" in Path(waiting.value.path()).read_text()


def test_the_trace_can_be_taken_away(visitor: Any, dashboard_url: str, finished_job: str) -> None:
    page = visitor.open(f"{dashboard_url}?page=schedule&job={finished_job}")
    page.wait_for_selector("text=times the prediction")
    with page.expect_download() as download:
        page.click("text=Trace for Perfetto")
    trace = json.loads(Path(download.value.path()).read_text())
    assert any(event["ph"] == "X" for event in trace["traceEvents"])
    page.click("text=View as table")
    page.wait_for_selector("td:has-text('aten.')")


def test_the_wizard_refuses_and_then_saves(visitor: Any, dashboard_url: str, directory: Path) -> None:
    page = visitor.open(f"{dashboard_url}?page=wizard&step=settings")
    threads = page.get_by_label("Threads of each device")
    refused = page.get_by_text("found 'many'").first

    def asked() -> bool:
        """The page may not listen yet."""
        threads.fill("many")
        threads.press("Enter")
        page.wait_for_timeout(1000)
        return bool(refused.is_visible())

    wait_for(asked)
    threads.fill("1")
    threads.press("Enter")
    page.wait_for_selector(".badge.you")
    page.click("text=5 Save")
    page.wait_for_selector(r"text=/\+\[profiles\.\w+\.pool\]/")  # named after what is installed
    page.click("button:text-is('Save')")
    page.wait_for_selector("text=Saved profile ")
    assert "threads = 1" in (directory / "config" / "profiles.toml").read_text()


@pytest.mark.parametrize("name", ["overview", "schedule", "queue", "jobs", "memory", "devices"])
def test_tables_of_a_page_fit_a_narrow_window(
    dashboard_url: str, visitor: Any, finished_job: str, name: str
) -> None:
    page = visitor.open(f"{dashboard_url}?page={name}")
    page.set_viewport_size({"width": 420, "height": 900})
    tables = page.locator(".wrap >> visible=true")
    tables.first.wait_for()
    page.wait_for_function("document.documentElement.scrollWidth <= 420")
    hidden = tables.evaluate_all("all => all.map((one) => one.scrollWidth - one.clientWidth)")
    assert hidden
    assert max(hidden) <= 0


def test_dark_mode_is_a_click_and_stays_in_the_address(visitor: Any, dashboard_url: str) -> None:
    page = visitor.open(dashboard_url)
    page.wait_for_selector(".card")
    page.click("button.theme")
    page.wait_for_url(re.compile("theme=dark"))
    page.wait_for_selector(".card")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 23, 29)"


def test_an_empty_page_finds_the_pool_that_starts_later_and_a_restarted_server(
    visitor: Any, tmp_path: Path
) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    environment = {**os.environ, "DJINN_RUNTIME_DIR": str(runtime)}
    port = free_port()
    process = start_dashboard(port, environment, tmp_path / "serve.log")
    page = visitor.open(f"http://127.0.0.1:{port}/dashboard")
    page.wait_for_selector("text=djinn-lab pool start")
    with PoolUnderTest(runtime, devices=f"{KIND}:1"):
        page.wait_for_selector(f".card >> text={KIND}:0")
        page.wait_for_selector("text=No cells have run yet")
        stop(process)
        page.wait_for_selector("#offline.on")
        process = start_dashboard(port, environment, tmp_path / "serve.log")
        page.wait_for_selector("#offline:not(.on)", state="attached", timeout=120_000)
        page.wait_for_selector(f".card >> text={KIND}:0")
    stop(process)
    assert [text for text in visitor.complaints if "WebSocket" not in text and "ERR_" not in text] == []
    visitor.complaints.clear()
