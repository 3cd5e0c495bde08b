"""The dashboard in JupyterLab: a tile of the launcher, and the page below Jupyter's own address.

jupyter-server-proxy finds :func:`dashboard_server` by its entry point. A user who is logged in at Jupyter
may run programs as this account, so that browser needs no other login: each request that Jupyter passes on
carries a code which only programs of this account can make."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from djinn_lab.protocol.dashboard_login import HEADER, make_code

NAME = "djinn"
"""Of the entry point, and in the address: ``.../djinn/dashboard``."""
START_TIMEOUT_S = 60.0


def dashboard_server() -> dict[str, object]:
    """Return how jupyter-server-proxy starts the dashboard, and shows it."""
    command = [sys.executable, "-m", "djinn_lab.cli", "dashboard", "--no-show", "--with-parent"]
    return {
        "command": [*command, "--port", "{port}", "--prefix", f"{{base_url}}{NAME}"],
        "absolute_url": True,
        "timeout": START_TIMEOUT_S,
        "new_browser_tab": True,
        "request_headers_override": _headers,
        "launcher_entry": {
            "title": "Djinn Lab",
            "icon_path": str(_icon()),
            "path_info": f"{NAME}/dashboard",
        },
    }


def _headers(port: int) -> dict[str, str]:
    """Return headers for one request. Jupyter has compared the browser's origin with its own; the dashboard
    admits the origins of its own address only."""
    return {HEADER: make_code(), "Origin": f"http://127.0.0.1:{port}"}


def _icon() -> Path:
    spec = find_spec("djinn_lab.dashboard")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "static" / "favicon.svg"
