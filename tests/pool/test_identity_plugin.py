"""The identity provider of docs/extending.md, as an installed package of its own."""

from __future__ import annotations

import importlib
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pool_kit import Client, act, http, rest, running_pool

from djinn_lab.errors import AuthenticationError, OptionError
from djinn_lab.pool.identity.provider import load_provider
from djinn_lab.pool.identity.settings import IdentitySettings

pytestmark = pytest.mark.processes

PAGE = Path(__file__).parents[2] / "docs/extending.md"


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Install the example, for this process and for the pool's. ``identify`` also fails on request."""
    section = PAGE.read_text().partition("## An identity provider")[2]
    [code] = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    [offer] = re.findall(r"^(badges = .*)$", section, re.MULTILINE)
    faulty = code.replace(
        "    async def identify(self, secret: str) -> Identity:\n",
        "    async def identify(self, secret: str) -> Identity:\n        assert 'fault' not in secret\n",
    )
    site = tmp_path / "site"
    about = site / "badge_reader-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "badge_reader.py").write_text(faulty)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: badge-reader\nVersion: 1.0\n")
    offered = offer.replace('"', "")
    (about / "entry_points.txt").write_text(f"[djinn_lab.identity_providers]\n{offered}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    return importlib.import_module("badge_reader")


def test_installed_provider_admits_its_users(reader: Any, tmp_path: Path) -> None:
    runtime = tmp_path / "runtime"
    runtime.mkdir(mode=0o700)
    identity = IdentitySettings(others=("badges",)).encoded()
    with running_pool(runtime, "cpu:1", identity=identity) as info:
        with Client(info, reader.badge("ann")) as client:
            assert client.welcome.user == "badge:ann"
            assert client.run(act("")).outcome == "done"
        with pytest.raises(AuthenticationError, match="The badge is forged"):
            rest(info, "badge-ann-0").status()
        with pytest.raises(AuthenticationError, match="badge failed"):
            rest(info, "badge-fault-0").status()
        with pytest.raises(AuthenticationError, match="missing or wrong"):
            rest(info, "another").status()
        with http(info) as web:
            assert {"way": "badge"} in web.get("/v1/login").json()
        with closing(rest(info)) as owner:
            assert [row.user for row in owner.audit(action="login")] == ["badge:ann"]


def test_a_provider_that_is_not_installed_is_named(reader: Any) -> None:
    with pytest.raises(OptionError, match="Installed packages offer: badges"):
        load_provider("badge")
