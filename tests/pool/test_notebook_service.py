"""Batch notebooks when the database fails, or a caller stops waiting; in process, but for the runner."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from djinn_lab.jobs import IllegalEvent
from djinn_lab.jobs.batch import CheckpointAnnounced, Submission
from djinn_lab.pool.assembly import assemble
from djinn_lab.pool.authentication import owner_name
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.database.address import sqlite_url
from djinn_lab.pool.database.store import Store
from djinn_lab.pool.launchers.local import LocalLauncher
from djinn_lab.pool.notebooks.attempt_files import EXECUTED_BYTES_MAX, read_executed_file
from djinn_lab.pool.notebooks.messages import EXECUTED_FILE
from djinn_lab.pool.notebooks.service import NotebookService
from djinn_lab.pool.notebooks.store import AcceptedSubmission

SOON_S = 45.0
ENDLESS = b"""{"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [
{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": null,
 "source": "%%local\\nwhile True: pass"}]}"""


class FailingStore(Store):
    """A store whose next ``failing`` writes raise."""

    failing = 0

    async def commit(self, work: Callable[[sa.Connection], None]) -> None:
        await asyncio.sleep(0)
        if self.failing:
            self.failing -= 1
            raise sa.exc.OperationalError("INSERT", {}, Exception("the disk is full"))
        await super().commit(work)


def served(
    directory: Path, test: Callable[[NotebookService, FailingStore], Awaitable[None]], failing: int = 0
) -> None:
    """Run a test on a pool without devices or server. ``failing``: writes that raise at its start."""

    async def run() -> None:
        store = FailingStore(sqlite_url(directory / "pool.sqlite3"))
        try:
            launcher = LocalLauncher(directory)
            blobs = BlobStore(directory / "blobs", 2**20)
            service = assemble("pool", "token", launcher, (), blobs, store, lambda: None).notebooks
            store.failing = failing
            await service.start("http://127.0.0.1:9", directory / "notebooks")
            await service.started.wait()
            try:
                await asyncio.wait_for(test(service, store), SOON_S)
            finally:
                await service.stop()
        finally:
            await asyncio.to_thread(store.close)

    (directory / "blobs").mkdir(exist_ok=True)
    asyncio.run(run())


def asked(job: str, key: str = "key", **more: object) -> tuple[Submission, AcceptedSubmission, bytes]:
    submission = Submission(0.0, job, owner_name(), job, **more)  # type: ignore[arg-type]
    return submission, AcceptedSubmission(job, owner_name(), key, "", "digest"), ENDLESS


def test_cancelled_announcement_does_not_block_the_next(tmp_path: Path) -> None:
    async def test(service: NotebookService, _store: FailingStore) -> None:
        said = CheckpointAnnounced(0.0, "cell", "name")
        leaves = asyncio.create_task(service.announce(said))
        await asyncio.sleep(0)
        leaves.cancel()
        await service.announce(said)

    served(tmp_path, test)


def test_submissions_with_one_key_are_one_notebook_also_after_one_that_failed(tmp_path: Path) -> None:
    """The third submission arrives while the second, which waited for the first, is being stored."""

    async def test(service: NotebookService, store: FailingStore) -> None:
        store.failing = 1
        first = asyncio.create_task(service.submit(*asked("nb1", after=("data:never",))))
        second = asyncio.create_task(service.submit(*asked("nb2", after=("data:never",))))
        with pytest.raises(sa.exc.OperationalError):
            await first
        third = asyncio.create_task(service.submit(*asked("nb3", after=("data:never",))))
        assert [(await one).job for one in (second, third)] == ["nb2", "nb2"]

    served(tmp_path, test)


@pytest.mark.processes
def test_a_cancelled_notebook_is_stopped_although_that_cannot_be_stored(tmp_path: Path) -> None:
    async def test(service: NotebookService, store: FailingStore) -> None:
        await service.submit(*asked("nb1"))
        while (one := service.core.get("nb1")) is None or not one.cell:
            await asyncio.sleep(0.05)
        store.failing = 1
        service.cancel("nb1", "by a test")
        await service.until_over("nb1", SOON_S)
        assert service.core.get("nb1").state == "CANCELLED"  # type: ignore[union-attr]
        with pytest.raises(IllegalEvent, match="already CANCELLED"):
            service.cancel("nb1", "by a test")

    served(tmp_path, test)


@pytest.mark.processes
def test_a_cell_may_print_a_long_line(tmp_path: Path) -> None:
    """Text that a carriage return overwrites is not in the executed notebook."""
    code = r"print('x' * 2_000_000)\nprint('1 %\\r2 %\\r100 %')\nprint('whole', end='\\r\\n')"
    source = ENDLESS.replace(b"while True: pass", code.encode())

    async def test(service: NotebookService, _store: FailingStore) -> None:
        submission, accepted, _ = asked("nb1")
        await service.submit(submission, accepted, source)
        await service.until_over("nb1", SOON_S)
        assert service.core.get("nb1").state == "DONE"  # type: ignore[union-attr]
        (output,) = json.loads(await service.executed("nb1") or b"")["cells"][0]["outputs"]
        assert "".join(output["text"]) == "x" * 2_000_000 + "\n100 %\nwhole\r\n"

    served(tmp_path, test)


def test_an_executed_notebook_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / EXECUTED_FILE).open("wb") as file:
        file.truncate(EXECUTED_BYTES_MAX)
        assert read_executed_file(tmp_path) is not None
        file.truncate(EXECUTED_BYTES_MAX + 1)
        assert read_executed_file(tmp_path) is None
