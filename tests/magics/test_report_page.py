"""The page of ``%djinn report --html`` in a browser: one file, light and dark, narrow and wide."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from real_pool import PoolUnderTest

from djinn_lab.magics.report_page import report_page

pytestmark = [pytest.mark.processes, pytest.mark.browser]
CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CODE = "%%djinn\nlosses = []  # <b>\nfor _ in range(9):\n    losses.append(float(model(inputs).sum()))"


@pytest.fixture(scope="module")
def page_file(pool: PoolUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    inputs = torch.ones(4, 8)
    with pool.session() as session:
        with session.capture("In [3]", code=CODE) as cell:
            for _ in range(9):
                float(model(inputs).sum().detach())
        file = tmp_path_factory.mktemp("report") / "report.html"
        file.write_text(report_page(session, cell))
    return file


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)


def section(page: Any, title: str) -> str:
    heading = page.get_by_role("heading", name=title, exact=True)
    return str(page.locator("section", has=heading).inner_text())


@pytest.mark.parametrize(
    ("scheme", "background"), [("light", "rgb(246, 247, 249)"), ("dark", "rgb(18, 22, 28)")]
)
@pytest.mark.parametrize("width", [380, 1200])
def test_report_page_loads_nothing_and_fits_its_window(
    browser: Any, page_file: Path, scheme: str, background: str, width: int
) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(page_file.as_uri())
    assert requested == [page_file.as_uri()]
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == background
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    context.close()


def test_report_page_shows_stages_to_scale_modules_and_the_loop_that_cuts(
    browser: Any, page_file: Path
) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    widths = page.evaluate("[...document.querySelectorAll('.bar i')].map(part => part.offsetWidth)")
    assert len(widths) >= 4
    assert max(widths) > 3 * min(widths)
    assert "Sequential.0" in section(page, "Ops by module")
    assert "cut the cell 9 times" in section(page, "Cuts")
    assert page.locator(".code span").nth(1).inner_text().strip() == "2losses = []  # <b>"
    page.close()
