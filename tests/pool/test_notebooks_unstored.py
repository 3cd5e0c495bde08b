"""What is decided about batch notebooks while the database is at fault is not lost; in process, but for the
runner."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path

import pytest
import sqlalchemy as sa
from test_notebook_service import FailingStore, asked, served

from djinn_lab.jobs.batch import BatchNotebook, CheckpointAnnounced
from djinn_lab.pool.notebooks import command_commits
from djinn_lab.pool.notebooks import store as notebook_store
from djinn_lab.pool.notebooks.service import NotebookService

SHORT = b"""{"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": [
{"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": null,
 "source": "%%local\\nprint(1)"}]}"""
FOREVER = 10**9


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(command_commits, "STORE_AGAIN_S", 0.1)
    caplog.set_level(logging.WARNING, command_commits.__name__)


async def stored(store: FailingStore, job: str) -> BatchNotebook:
    return {one.job: one for _, one in await store.read(notebook_store.read_all)}[job]


async def until_state(store: FailingStore, job: str, state: str) -> None:
    while (await stored(store, job)).state != state:
        await asyncio.sleep(0.02)


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == command_commits.__name__]


@pytest.mark.processes
def test_a_start_and_an_end_that_could_not_be_stored_are_stored_later_by_themselves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Although the notebook may run only once, and no other event occurs."""

    async def test(service: NotebookService, store: FailingStore) -> None:
        submission, accepted, _ = asked("nb1")
        await service.submit(submission, accepted, SHORT)
        store.failing = 3
        while store.failing:
            assert service.core.get("nb1").state == "RUNNING"  # type: ignore[union-attr]
            assert (await stored(store, "nb1")).state == "QUEUED"
            await asyncio.sleep(0.01)
        await until_state(store, "nb1", "RUNNING")
        assert len(logged(caplog)) == 2
        store.failing = FOREVER
        await service.until_over("nb1", 30.0)
        assert service.core.get("nb1").state == "DONE"  # type: ignore[union-attr]
        await asyncio.sleep(0.3)
        assert (await stored(store, "nb1")).state == "RUNNING"
        store.failing = 0
        await until_state(store, "nb1", "DONE")
        executed = json.loads(await service.executed("nb1") or b"")
        assert "".join(executed["cells"][0]["outputs"][0]["text"]) == "1\n"
        while len(logged(caplog)) < 4:
            await asyncio.sleep(0.02)

    served(tmp_path, test)
    failed, over, failed_again, over_again = logged(caplog)
    assert failed == failed_again
    assert "is tried again every 100.0 ms" in failed
    assert "the disk is full" in failed
    assert over == over_again == "what was decided about notebooks could be stored in the end"


def test_notebook_cancelled_before_its_start_was_stored_never_runs(tmp_path: Path) -> None:
    async def test(service: NotebookService, store: FailingStore) -> None:
        await service.submit(*asked("nb1"))
        store.failing = FOREVER
        await asyncio.sleep(0.05)
        service.cancel("nb1", "by a test")
        await service.until_over("nb1", 5.0)
        assert service.core.get("nb1").state == "CANCELLED"  # type: ignore[union-attr]
        store.failing = 0
        await until_state(store, "nb1", "CANCELLED")
        assert not list((tmp_path / "notebooks").glob("nb1-*")), "its kernel was started"

    served(tmp_path, test)


@pytest.mark.processes
def test_a_checkpoint_is_confirmed_only_when_it_is_stored_however_often_it_is_announced(
    tmp_path: Path,
) -> None:
    async def test(service: NotebookService, store: FailingStore) -> None:
        await service.submit(*asked("nb1"))
        await until_state(store, "nb1", "RUNNING")
        store.failing = FOREVER
        for _ in range(2):
            with pytest.raises(sa.exc.OperationalError):
                await service.announce(CheckpointAnnounced(0.0, "nb1", "epoch-1"))
        store.failing = 0
        await service.announce(CheckpointAnnounced(0.0, "nb1", "epoch-1"))
        assert (await stored(store, "nb1")).checkpoints == ("epoch-1",)

    served(tmp_path, test)


@pytest.mark.processes
def test_a_next_server_takes_notebooks_up_as_soon_as_the_database_lets_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def before(service: NotebookService, store: FailingStore) -> None:
        await service.submit(*asked("nb1"))
        await until_state(store, "nb1", "RUNNING")

    async def after(_service: NotebookService, store: FailingStore) -> None:
        assert store.failing == 0
        await until_state(store, "nb1", "FAILED")
        assert "ended while it ran" in (await stored(store, "nb1")).reason

    served(tmp_path, before)
    served(tmp_path, after, failing=2)
    (text,) = logged(caplog)
    assert "cannot be loaded" in text
