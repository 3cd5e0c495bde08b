"""A real JupyterHub process with its REST API on loopback; it spawns nothing and has no proxy."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

ADMIN_TOKEN = "0123456789abcdef0123456789abcdef"
START_S = 60.0
CONFIG = """
from jupyterhub.proxy import Proxy


class NoProxy(Proxy):
    should_start = False
    async def add_route(self, routespec, target, data): ...
    async def delete_route(self, routespec): ...
    async def get_all_routes(self):
        return {{}}


c.JupyterHub.proxy_class = NoProxy
c.JupyterHub.ip = "127.0.0.1"
c.JupyterHub.port = {public}
c.JupyterHub.hub_ip = "127.0.0.1"
c.JupyterHub.hub_port = {port}
c.JupyterHub.db_url = "sqlite:///{folder}/hub.sqlite"
c.JupyterHub.cookie_secret_file = "{folder}/cookie"
c.JupyterHub.authenticator_class = "dummy"
c.JupyterHub.services = [{{"name": "tests", "api_token": "{token}"}}]
c.JupyterHub.load_roles = [
    {{"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:groups", "tokens"]}},
    {{"name": "pool", "scopes": ["access:services"], "groups": []}},
]
c.JupyterHub.load_groups = {{"staff": {{"users": ["ann"]}}, "chiefs": {{"users": ["bo"]}}}}
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {{"root"}}
"""


class Hub:
    """Inside a ``with`` statement."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port, public = _free_ports(2)
        text = CONFIG.format(folder=folder, port=self._port, public=public, token=ADMIN_TOKEN)
        (folder / "config.py").write_text(text)
        self.api = f"http://127.0.0.1:{self._port}/hub/api"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHONWARN")}
        with (self._folder / "hub.log").open("ab") as log:
            command = [sys.executable, "-m", "jupyterhub", "-f", str(self._folder / "config.py")]
            self._process = subprocess.Popen(
                command, cwd=self._folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        deadline_s = time.monotonic() + START_S
        while not self._answers():
            assert self._process.poll() is None, (self._folder / "hub.log").read_text()[-3000:]
            assert time.monotonic() < deadline_s, "the Hub did not start"
            time.sleep(0.1)

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, method: str, path: str, body: object = None) -> Any:
        headers = {"Authorization": f"token {ADMIN_TOKEN}"}
        answer = httpx.request(method, self.api + path, headers=headers, json=body, trust_env=False)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def token(self, user: str, scopes: Sequence[str] | None = None) -> tuple[str, str]:
        """Make a token of a user, and the user where there is none. Return the token's id and the token."""
        if user not in [one["name"] for one in self.ask("GET", "/users")]:
            self.ask("POST", f"/users/{user}")
        made = self.ask("POST", f"/users/{user}/tokens", None if scopes is None else {"scopes": list(scopes)})
        return made["id"], made["token"]

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.api}/", trust_env=False).is_success
        except httpx.TransportError:
            return False


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
