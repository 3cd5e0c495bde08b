"""The pages as a site, which `make docs` builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_page_is_on_the_site_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    named = (ROOT / "mkdocs.yml").read_text()
    pages = [file.relative_to(ROOT / "docs") for file in (ROOT / "docs").rglob("*.md")]
    pages += [Path("tutorials", f"{file.stem}.md") for file in (ROOT / "notebooks/tutorials").glob("*.ipynb")]
    assert [page for page in pages if f" {page}" not in named] == []
    for page in pages:
        place = page.parent if page.name == "index.md" else page.with_suffix("")
        assert (tmp_path / "site" / place / "index.html").exists()
