"""A real pool in a runtime directory of its own, for tests of clients, notebooks and pages."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pytest
from device_kind import KIND, STANDIN_FOLDER, unordered, variables

from djinn_lab.client.rest import PoolClient
from djinn_lab.client.session import Session
from djinn_lab.config import default_profile
from djinn_lab.pool.launch import start_pool, stop_pool
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.status import DeviceView
from djinn_lab.protocol.runtime_file import DIRECTORY_VARIABLE

DEADLINE_S = 120.0
START_WITHIN_S = 240.0
"""Of a pool, on a machine that has begun several others."""


@contextmanager
def found_by_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let this process find the fixture ``shared_pool``, which lasts as long as the session, in a module that
    uses it: the one of another folder's tests may have begun since."""
    with pytest.MonkeyPatch.context() as patch:
        items = [item for item in request.session.items if item.path == request.path]
        if any("shared_pool" in getattr(item, "fixturenames", ()) for item in items):
            request.getfixturevalue("shared_pool")
            patch.setenv(DIRECTORY_VARIABLE, str(request.getfixturevalue("shared_pool_directory")))
        yield


class PoolUnderTest:
    """A pool that runs inside a ``with`` statement. ``environment``: variables with which a child process
    finds the pool. ``standin``: of :mod:`standin`, where its devices are such. ``options``: of
    :func:`~djinn_lab.pool.launch.start_pool`."""

    def __init__(
        self,
        directory: Path,
        devices: str = f"{KIND}:2",
        memory_bytes: int = 2**30,
        standin: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self.directory = directory
        directory.chmod(0o700)
        self._options: dict[str, Any] = {"devices": devices, "memory_bytes": memory_bytes, "threads": 1}
        self._variables = variables(directory, devices, memory_bytes, standin or {})
        usual: dict[str, Any] = {"host_bytes": 2**30} if self._variables else {}
        if os.environ.get("PYTHON_SIMULATED_SYSTEM"):  # no sandbox there
            usual["accept_weak_isolation"] = True
        self._options |= {"restart": False, "wait_s": START_WITHIN_S} | usual | options
        self._before: str | None = None

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DJINN_")}
        return {**kept, DIRECTORY_VARIABLE: str(self.directory)}

    def __enter__(self) -> PoolUnderTest:
        self._before = os.environ.get(DIRECTORY_VARIABLE)
        os.environ[DIRECTORY_VARIABLE] = str(self.directory)
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.rest.close()
        os.environ[DIRECTORY_VARIABLE] = str(self.directory)  # another pool's end may have put back its own
        stop_pool()
        if self._before is None:
            del os.environ[DIRECTORY_VARIABLE]
        else:
            os.environ[DIRECTORY_VARIABLE] = self._before
        if kind is None:
            assert unordered(self.directory) == []

    def start(self) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if self._variables:
                patch.syspath_prepend(STANDIN_FOLDER)
            for name, value in self._variables.items():
                patch.setenv(name, value)
            self.info = start_pool(**self._options)
        self.rest = PoolClient(self.info.url, self.info.token)

    def kill(self) -> None:
        """``kill -9`` the server; its workers notice by themselves."""
        os.kill(self.info.pid, signal.SIGKILL)

    @contextmanager
    def session(self, user: str | None = None) -> Iterator[Session]:
        token = self.info.token if user is None else self.rest.create_user(user).token
        opened = Session(self.info.url, token, default_profile(), user or "tester")
        try:
            yield opened
        finally:
            opened.close()

    def wait_for_job(self, **wanted: Any) -> JobView:
        """Wait for a job with these fields and return the newest one."""
        return wait_for(
            lambda: next(
                (
                    job
                    for job in self.rest.jobs(limit=200)
                    if all(getattr(job, name) == value for name, value in wanted.items())
                ),
                None,
            )
        )


def kill_worker(pool: PoolUnderTest, device: str = f"{KIND}:0") -> None:
    """``kill -9`` a device's process, and return when its successor is up."""
    before = device_row(pool, device).pid
    os.kill(before, signal.SIGKILL)
    until_back(pool, device, before)


def kill_host(pool: PoolUnderTest, device: str) -> None:
    """``kill -9`` the agent that has a device's workers on a host of Ray, and with it what they parked."""
    worker = psutil.Process(device_row(pool, device).pid)
    next(one for one in worker.parents() if "HostAgent" in one.name()).kill()


def device_row(pool: PoolUnderTest, device: str) -> DeviceView:
    return next(found for found in pool.rest.status().devices if found.device == device)


def until_back(pool: PoolUnderTest, device: str, before: int | None) -> None:
    """Wait until a device has another process than ``before``."""

    def is_back() -> bool:
        row = device_row(pool, device)
        return row.pid not in (None, before) and row.state in ("idle", "busy")

    wait_for(is_back)


def have_measured(api: PoolClient) -> None:
    """Have a pool's devices measured, and wait for that."""
    for device in api.costs().devices:
        api.calibrate(device.device)
    wait_for(lambda: all(device.measured for device in api.costs().devices))


def wait_for(look: Any) -> Any:
    """Call ``look`` until it returns something truthy, and return that."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)
