"""``panel serve dashboard``, as a user starts it, over plain HTTP."""

from __future__ import annotations

import re
import subprocess

import httpx
import pytest
from dashboard_serving import free_port
from real_pool import wait_for

from djinn_lab.cli.dashboard import dashboard_folder, serve_command

pytestmark = pytest.mark.processes


def test_the_page_is_served_and_the_root_leads_to_it(dashboard_url: str) -> None:
    root = httpx.get(dashboard_url.rsplit("/", 1)[0], trust_env=False, timeout=60)
    assert root.status_code == 302
    assert root.headers["location"].endswith("/dashboard")
    page = httpx.get(dashboard_url, trust_env=False, timeout=60)
    assert page.status_code == 200
    assert "Djinn Lab" in page.text


@pytest.mark.parametrize(
    "query",
    [
        "",
        "?page=srg",
        "?page=schedule&theme=dark",
        "?page=wizard&step=save",
        "?page=memory",
        "?page=costs",
        "?page=gone",
    ],
)
def test_no_page_asks_for_anything_from_another_host(dashboard_url: str, query: str) -> None:
    html = httpx.get(dashboard_url + query, trust_env=False, timeout=60).text
    sources = re.findall(r"""(?:src|href)=["']([^"']+)["']""", html)
    assert sources
    outside = [url for url in sources if re.match(r"(https?:)?//", url) and "127.0.0.1" not in url]
    assert outside == []
    assert "googleapis" not in html
    assert f'dataset.theme = "{"dark" if "dark" in query else "light"}"' in html


def test_prefix_leads_to_the_pages_with_and_without_its_slash_and_has_the_icon() -> None:
    port = free_port()
    with subprocess.Popen(serve_command(dashboard_folder(), port, prefix="/team/x")) as server:
        try:
            base = f"http://127.0.0.1:{port}/team/x"
            wait_for(lambda: _status(base + "/favicon.ico") == 200)
            reached = httpx.get(base, trust_env=False, timeout=60, follow_redirects=False)
            assert reached.headers["location"] == "/team/x/"
            root = httpx.get(base + "/", trust_env=False, timeout=60)
            assert root.url.join(root.headers["location"]).path == "/team/x/dashboard"
        finally:
            server.terminate()


def _status(url: str) -> int | None:
    try:
        return httpx.get(url, trust_env=False, timeout=60).status_code
    except httpx.ConnectError:
        return None


def test_the_source_is_not_served(dashboard_url: str) -> None:
    for path in ("/main.py", "/hub.py", "/../pyproject.toml"):
        assert httpx.get(dashboard_url + path, trust_env=False, timeout=60).status_code in (403, 404)


def test_the_dashboard_starts_without_torch() -> None:
    import sys

    code = "import sys, djinn_lab.dashboard.shell; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
