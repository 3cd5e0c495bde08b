"""Users of a JupyterHub: a real pool that asks a real Hub process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hub_kit import ADMIN_TOKEN, Hub
from pool_kit import Client, act, http, rest, running_pool

from djinn_lab.errors import AuthenticationError
from djinn_lab.pool.identity.jupyterhub import FRESH_S
from djinn_lab.pool.identity.roles import RoleMapping
from djinn_lab.pool.identity.settings import HubSettings, IdentitySettings
from djinn_lab.protocol.messages import RequestRefused
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

ROLES = RoleMapping((("user", "staff"), ("operator", "chiefs")))


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub(tmp_path_factory.mktemp("hub")) as made:
        yield made


@pytest.fixture(scope="module")
def pool(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RuntimeInfo]:
    settings = IdentitySettings(jupyterhub=HubSettings(hub.api, ROLES, admin_role="admin"))
    with running_pool(tmp_path_factory.mktemp("pool"), "cpu:1", identity=settings.encoded()) as info:
        yield info


def test_roles_come_from_the_groups_and_admins_of_the_hub(hub: Hub, pool: RuntimeInfo) -> None:
    found = {}
    for user in ("ann", "bo", "root"):
        with closing(rest(pool, hub.token(user)[1])) as client:
            status = client.status()
        found[status.user] = status.role
    assert found == {"hub:ann": "user", "hub:bo": "operator", "hub:root": "admin"}
    for token, words in (
        (hub.token("zed")[1], "hub:zed is in no group of the Hub"),
        (ADMIN_TOKEN, "a service of the Hub, not of a user"),
        ("f" * 32, "does not know this token"),
    ):
        with pytest.raises(AuthenticationError, match=words):
            rest(pool, token).status()
    with closing(rest(pool)) as owner:
        [login] = [row for row in owner.audit(1000) if row.user == "hub:bo"]
        refused = [row.body for row in owner.audit(1000, refused=True)]
    assert (login.action, login.body) == ("login", "by hub as operator, from 127.0.0.1")
    assert any("of hub:zed" in body for body in refused)


def test_a_token_of_few_scopes_is_enough_and_a_scope_may_be_asked_for(hub: Hub, tmp_path: Path) -> None:
    roles = RoleMapping(default="viewer")
    settings = IdentitySettings(jupyterhub=HubSettings(hub.api, roles, scope="access:servers!user=ann"))
    with running_pool(tmp_path, "cpu:1", identity=settings.encoded()) as info:
        server = hub.token("ann", ["access:servers!user=ann"])[1]
        with closing(rest(info, server)) as client:
            assert client.status().user == "hub:ann"
        with pytest.raises(AuthenticationError, match="lacks the scope access:servers!user=ann"):
            rest(info, hub.token("ann", ["read:users:name!user=ann"])[1]).status()


def test_the_hub_is_asked_once_and_its_restart_ends_no_session(hub: Hub, pool: RuntimeInfo) -> None:
    token = hub.token("ann")[1]
    with Client(pool, token) as client:
        assert client.run(act("")).outcome == "done"
        hub.stop()
        try:
            with http(pool, token) as web:
                assert web.get("/v1/status").status_code == 200
            with http(pool, "e" * 32) as web:
                answer = web.get("/v1/status")
            assert answer.status_code == 401
            assert "JupyterHub does not answer" in answer.json()["detail"]
            assert client.run(act("")).outcome == "done"
        finally:
            hub.start()


def test_a_token_that_the_hub_revokes_closes_its_websocket(hub: Hub, pool: RuntimeInfo) -> None:
    identifier, token = hub.token("ann")
    with Client(pool, token) as client:
        hub.ask("DELETE", f"/users/ann/tokens/{identifier}")
        client.socket.socket.settimeout(None)
        deadline_s = time.monotonic() + FRESH_S + 20
        refused = None
        while refused is None and time.monotonic() < deadline_s:
            try:
                refused = client.receive()
            except TimeoutError:
                continue
    assert isinstance(refused, RequestRefused)
    assert refused.kind == "token"
    with http(pool, token) as web:
        assert web.get("/v1/status").status_code == 401


def test_a_notebook_on_the_hub_needs_no_token(hub: Hub, pool: RuntimeInfo, tmp_path: Path) -> None:
    """As in a single-user server: its environment has the Hub's token, and the address of the pool."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DJINN_")}
    environment = {
        **kept,
        "DJINN_POOL": pool.url,
        "DJINN_RUNTIME_DIR": str(tmp_path),
        "DJINN_CONFIG_DIR": str(tmp_path),
        "JUPYTERHUB_API_TOKEN": hub.token("ann")[1],
    }
    program = (
        "import djinn_lab, json\n"
        "session = djinn_lab.connect()\n"
        "print(json.dumps([session.welcome.user, session.pool.status().role]))\n"
        "session.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == ["hub:ann", "user"]
    command = [sys.executable, "-m", "djinn_lab.cli", "pool", "status", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["user"] == "hub:ann"
