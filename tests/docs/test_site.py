"""The pages as a site, which `make docs` builds."""

from __future__ import annotations

import html
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import djinn_lab
from djinn_lab import errors
from djinn_lab.config.fields import FIELDS
from djinn_lab.pool.scopes import SCOPES, SESSION_SOCKET

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    folder = tmp_path_factory.mktemp("built") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def text_of(site: Path, page: str) -> str:
    """Return what a reader of a page of the reference sees."""
    made = (site / "reference" / page / "index.html").read_text()
    return html.unescape(re.sub(r"<[^>]+>", "", made))


def test_every_page_is_on_the_site_and_every_link_leads_somewhere(site: Path) -> None:
    named = (ROOT / "mkdocs.yml").read_text()
    pages = [file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob("*.md")]
    pages += [Path("tutorials", f"{file.stem}.md") for file in (ROOT / "notebooks/tutorials").glob("*.ipynb")]
    assert [page for page in pages if f" {page}" not in named] == []
    for page in pages:
        place = page.parent if page.name == "index.md" else page.with_suffix("")
        assert (site / place / "index.html").exists()


def test_every_rest_request_is_in_the_reference(site: Path) -> None:
    text = text_of(site, "rest")
    requests = SCOPES.keys() - {SESSION_SOCKET, "GET /openapi.json"}
    assert [request for request in sorted(requests) if f"{request}¶" not in text] == []


def test_every_field_of_a_request_body_is_in_the_reference(site: Path) -> None:
    text = text_of(site, "rest")
    assert "Body: NewReservation." in text
    assert re.search(r"begins_at\s+number or null\s+s since the epoch", text)


def test_every_setting_is_in_the_reference_with_what_it_accepts(site: Path) -> None:
    text = text_of(site, "settings")
    lacking = [field.path for field in FIELDS if f"{field.path}¶" not in text or field.accepted not in text]
    assert lacking == []


def test_every_error_is_in_the_reference_under_an_anchor(site: Path) -> None:
    made = (site / "reference" / "errors" / "index.html").read_text()
    public = [
        name
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, BaseException) and not name.startswith("_")
    ]
    assert public
    assert [name for name in public if f'id="{name.lower()}"' not in made] == []


def test_every_metric_of_the_pool_page_is_in_the_reference(site: Path) -> None:
    """`test_pages.py` compares the pool page with what a pool renders."""
    named = re.findall(r"`(djinn_\w+)(?:\{[\w,]+\})?`", (ROOT / "docs" / "pool.md").read_text())
    listed = re.findall(r"\bdjinn_\w+", text_of(site, "metrics"))
    assert named
    assert sorted(set(named)) == sorted(set(listed))


def test_every_public_name_of_the_package_is_in_the_reference(site: Path) -> None:
    made = (site / "reference" / "python" / "index.html").read_text()
    assert [name for name in djinn_lab.__all__ if f'id="{name}"' not in made] == []
    assert "Open a session." in text_of(site, "python")
