"""The part of the JupyterLab extension that runs in Jupyter's server: it asks the pool for the sidebar.

The browser never has a token of the pool: it asks Jupyter, which it is logged in to, and Jupyter asks the
pool as the account that runs it.
"""

from __future__ import annotations

import asyncio
import threading
from importlib.util import find_spec
from typing import Any

import msgspec
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado.web import HTTPError, authenticated

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import DjinnError
from djinn_lab.kernels.lab_view import LabView, view_of, without_pool
from djinn_lab.kernels.launcher import NAME as PROXY_NAME

NAMESPACE = "djinn-lab"
"""In the addresses of these handlers."""
JOBS_MAX = 200


class PoolReader:
    """Ask the pool for all browser tabs of one Jupyter; finds it again when it went away. For any thread."""

    def __init__(self) -> None:
        self._client: PoolClient | None = None
        self._lock = threading.Lock()
        self._dashboard = f"{PROXY_NAME}/dashboard" if find_spec("jupyter_server_proxy") else ""

    def view(self) -> LabView:
        """Read the pool. Blocks."""
        with self._lock:
            try:
                client = self._found()
                status, memory = client.status(), client.memory()
                active = [job for job in client.jobs(limit=JOBS_MAX) if not (job.finished or job.is_fetch)]
            except DjinnError as error:
                self._client = None
                return without_pool(error)
            return view_of(status, memory.sessions, active, self._dashboard)

    def cancel(self, job: str) -> None:
        """Cancel a job. Blocks; raises DjinnError."""
        with self._lock:
            self._found().cancel(job)

    def _found(self) -> PoolClient:
        if self._client is None:
            self._client = PoolClient.find()
        return self._client


class PoolHandler(APIHandler):  # type: ignore[misc, unused-ignore]
    """``GET djinn-lab/pool``: the view."""

    def initialize(self, reader: PoolReader) -> None:
        self.reader = reader

    @authenticated
    async def get(self) -> None:
        view = await asyncio.to_thread(self.reader.view)
        self.set_header("Content-Type", "application/json")
        self.finish(msgspec.json.encode(view))


class CancelHandler(APIHandler):  # type: ignore[misc, unused-ignore]
    """``POST djinn-lab/jobs/JOB/cancel``: stop a cell."""

    def initialize(self, reader: PoolReader) -> None:
        self.reader = reader

    @authenticated
    async def post(self, job: str) -> None:
        try:
            await asyncio.to_thread(self.reader.cancel, job)
        except DjinnError as error:
            raise HTTPError(409, reason=f"{error.message} {error.advice}".strip()) from None
        self.set_status(204)
        self.finish()


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Name the module that Jupyter loads."""
    return [{"module": "djinn_lab.kernels.lab_server"}]


def _load_jupyter_server_extension(server: Any) -> None:
    """Add the handlers to Jupyter's server."""
    application, reader = server.web_app, PoolReader()
    base = application.settings["base_url"]
    application.add_handlers(
        ".*$",
        [
            (url_path_join(base, NAMESPACE, "pool"), PoolHandler, {"reader": reader}),
            (
                url_path_join(base, NAMESPACE, r"jobs/([0-9A-Za-z_-]{1,64})/cancel"),
                CancelHandler,
                {"reader": reader},
            ),
        ],
    )
