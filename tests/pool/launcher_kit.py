"""Drive a launcher through its interface alone, for the contract that all launchers must keep.

A :class:`Site` is what a test needs besides the interface: a launcher, its pool's blobs, a way to kill a
worker, and a look at what workers have left."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import psutil
import torch
from blake3 import blake3

from djinn_lab.pool.blobs.directory import RESULTS, STORE
from djinn_lab.pool.devices.launcher import GroupLost, Launcher
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.local import LocalLauncher
from djinn_lab.protocol.worker import (
    CopyFailed,
    FetchedTensor,
    FromWorker,
    RunSegment,
    SegmentDone,
    SegmentFailed,
    WorkerReady,
)
from djinn_lab.srg.program import Program, encode_program

MIB = 2**20
DEVICE_BYTES = HOST_BYTES = DISK_BYTES = 64 * MIB
MESSAGE_WITHIN_S = 240.0

Kind = TypeVar("Kind")
Result = TypeVar("Result")


class Site(Protocol):
    """One launcher implementation with the place where its workers run."""

    launcher: Launcher
    files_of_a_move: int
    """How many files hold a session that one device's dead worker parked and another device restored."""

    def put(self, tensor: torch.Tensor) -> str:
        """Put a tensor's bytes into the pool's store and return their name."""

    def take(self, result: str) -> bytes:
        """Return what a worker left under this name for the pool, and delete it."""

    def kill(self, device: str, group: str | None = None) -> None:
        """End a group's worker, or the device's first, as a crash of its machine would."""

    def pause(self, device: str) -> None:
        """Let the device's worker do nothing, as a machine without time for it would, until
        :meth:`unpause`."""

    def unpause(self, device: str) -> None:
        """Let it continue."""

    def parked(self) -> set[str]:
        """Return the files in which workers, alive or dead, keep sessions outside their devices."""

    def workers(self) -> set[str]:
        """Return the processes of workers."""

    def processes(self) -> set[str]:
        """Return all processes that run for the launcher."""


class ProcessesOfThisMachine:
    """What sites have in common whose workers are processes of this machine, wherever they belong."""

    launcher: Launcher

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for path in (directory / STORE, directory / RESULTS):
            path.mkdir()

    def put(self, tensor: torch.Tensor) -> str:
        content = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        name = blake3(content).hexdigest()
        (self._directory / STORE / name).write_bytes(content)
        return name

    def take(self, result: str) -> bytes:
        path = self._directory / RESULTS / result
        content = path.read_bytes()
        path.unlink()
        return content

    def kill(self, device: str, group: str | None = None) -> None:
        health = self.launcher.health(device)
        os.kill(health.shown["pid"] if group is None else health.groups[group], signal.SIGKILL)

    def pause(self, device: str) -> None:
        os.kill(self.launcher.health(device).shown["pid"], signal.SIGSTOP)

    def unpause(self, device: str) -> None:
        os.kill(self.launcher.health(device).shown["pid"], signal.SIGCONT)


class LocalSite(ProcessesOfThisMachine):
    """A launcher for this machine."""

    files_of_a_move = 1

    def __init__(self, directory: Path, worker_command: Sequence[str] | None = None) -> None:
        super().__init__(directory)
        self._before = {one.pid for one in psutil.Process().children(recursive=True)}
        self._parked = [directory / "host", directory / "disk"]
        for path in self._parked:
            path.mkdir()
        self.launcher = LocalLauncher(
            directory, worker_command, host_directory=self._parked[0], disk_directory=self._parked[1]
        )

    def parked(self) -> set[str]:
        return {file.name for path in self._parked for file in path.rglob("*.*")}

    def workers(self) -> set[str]:
        return {str(one.pid) for one in self._processes() if one.parent() != psutil.Process()}

    def processes(self) -> set[str]:
        return {str(one.pid) for one in self._processes()}

    def _processes(self) -> list[psutil.Process]:
        """The template that this launcher started, and its workers."""
        now = psutil.Process().children(recursive=True)
        return [one for one in now if one.pid not in self._before]


@contextmanager
def local_site() -> Iterator[Site]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="djinn-test-") as made:
        yield LocalSite(Path(made))


def ray_site() -> AbstractContextManager[Site]:
    """Return a site on a Ray cluster, which only ``make sweep-ray`` wants: its agents start slowly."""
    from ray_site import ray_site

    return ray_site()


SITES = {"local": local_site} | ({"ray": ray_site} if "SWEEP_RAY" in os.environ else {})
"""Launcher implementations by name. Ray's is asked for by ``make sweep-ray``: its agents start slowly."""


class Heard:
    """What the launcher reported, in order. ``said``: messages by device that no test has waited for, with
    None for the loss of a worker. ``answering``: whether a device's worker answers, as last reported.
    ``kept``: the manifests that the pool still needs; ``spare``: of these, those of sessions on a device.
    ``restarts_allowed``: whether a worn worker may be ended. ``groups``: the trust groups of sessions, all
    one where none is named."""

    def __init__(self) -> None:
        self.said: dict[str, list[FromWorker | None]] = {}
        self.deaths: list[tuple[str, str]] = []
        self.lost: list[GroupLost | None] = []
        self.groups: dict[str, str] = {}
        self.failures: list[tuple[str, str]] = []
        self.kept: list[bytes] = []
        self.spare: list[bytes] = []
        self.restarts_allowed = False
        self.answering: dict[str, bool] = {}
        self.changed = asyncio.Event()

    def worker_said(self, device: str, message: FromWorker) -> None:
        self.said.setdefault(device, []).append(message)
        self.changed.set()

    def worker_died(self, device: str, how: str, group: GroupLost | None = None) -> None:
        self.said.setdefault(device, []).append(None)
        self.lost.append(group)
        self.deaths.append((device, how))
        self.changed.set()

    def worker_heard(self, device: str, heard: bool) -> None:
        self.answering[device] = heard
        self.changed.set()

    def worker_failed(self, device: str, how: str) -> None:
        self.failures.append((device, how))
        self.changed.set()

    def trust_group(self, session: str) -> str:
        return self.groups.get(session, "all")

    def may_restart(self, device: str, sessions: frozenset[str]) -> bool:
        return self.restarts_allowed

    def manifests(self) -> list[bytes]:
        return self.kept

    def needed_manifests(self) -> list[bytes]:
        return [one for one in self.kept if one not in self.spare]


class Workers:
    """A launcher's workers, for tests that wait: every call enters the event loop and leaves it again."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.launcher = site.launcher
        self.heard = Heard()
        self._runner = asyncio.Runner()

    def start(self, *devices: str, host_bytes: int = HOST_BYTES, threads: int = 1) -> None:
        for device in devices:
            plan = DevicePlan(device, "cpu", DEVICE_BYTES, threads, host_bytes, DISK_BYTES)
            self.do(lambda plan=plan: self.launcher.spawn(plan, self.heard))  # type: ignore[misc]

    def ready(self, *devices: str) -> None:
        self.start(*devices)
        for device in devices:
            self.next(device, WorkerReady)

    def do(self, order: Callable[[], Result]) -> Result:
        """Call a method of the launcher where its pool does."""

        async def call() -> Result:
            return order()

        return self._wait(call())

    def run(self, device: str, session: str, program: Program, job: str = "job", **more: Any) -> SegmentDone:
        self.begin(device, session, program, job, **more)
        return self.next(device, SegmentDone)

    def begin(self, device: str, session: str, program: Program, job: str = "job", **more: Any) -> None:
        order = RunSegment(job, more.pop("segment", 0), session, encode_program(program), **more)
        self.do(lambda: self.launcher.run(device, order))

    def next(self, device: str, kind: type[Kind]) -> Kind:
        """Wait for the worker's next message of a kind. Messages before it are dropped, but none may be a
        failure."""

        def find() -> Kind | None:
            said = self.heard.said.get(device, [])
            while said:
                assert said[0] is not None, f"{device} was lost: {self.heard.deaths}"
                message = said.pop(0)
                if isinstance(message, kind):
                    return message
                assert not isinstance(message, SegmentFailed | CopyFailed), message
            return None

        return self.until(find)

    def answer(self, device: str) -> FromWorker:
        """Wait for the worker's next message, whatever it is."""

        def find() -> FromWorker | None:
            said = self.heard.said.get(device, [])
            assert None not in said, f"{device} was lost: {self.heard.deaths}"
            return said.pop(0) if said else None

        return self.until(find)

    def until(self, find: Callable[[], Result | None]) -> Result:
        """Wait until ``find`` returns something, and return that."""
        return self._wait(asyncio.wait_for(self._until(find), MESSAGE_WITHIN_S))

    def lost(self, device: str) -> None:
        """Wait for the loss of the device's worker; messages before it are dropped."""

        def find() -> bool | None:
            said = self.heard.said.get(device, [])
            if None not in said:
                return None
            del said[: said.index(None) + 1]
            return True

        self.until(find)

    def values(self, done: SegmentDone) -> list[bytes]:
        """Return the bytes of each fetched tensor."""
        return [self._bytes(one) for one in done.fetched]

    def close(self, at_once: bool = False) -> None:
        self._wait(self.launcher.close(at_once))

    def leave(self) -> None:
        self.close(at_once=True)
        self._runner.close()

    def _bytes(self, tensor: FetchedTensor) -> bytes:
        if tensor.data is not None:
            return tensor.data
        assert tensor.blob is not None
        return self.site.take(tensor.blob)

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._runner.run(work)

    async def _until(self, find: Callable[[], Result | None]) -> Result:
        while (found := find()) is None:
            self.heard.changed.clear()
            await self.heard.changed.wait()
        return found
