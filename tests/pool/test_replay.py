"""The journal of a live run leads fresh cores to the same decisions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import sqlalchemy as sa
from pool_kit import Client, act, held, read, rest, running_pool

from djinn_lab import jobs
from djinn_lab.cli import main
from djinn_lab.engine import DeviceAdded, Engine
from djinn_lab.journal import CORE, Record, ReplayDiffers, replay
from djinn_lab.pool.database.tables import journal
from djinn_lab.protocol import messages


def lively_run(directory: Path) -> str:
    """Run cells of every kind on a pool, and return its id."""
    with running_pool(directory) as info:
        with Client(info) as ann, Client(info) as bob:
            for number in range(5):
                ann.run(act("", "", keep=True, first=10 * number + 1))
            ann.run(read(held(999)))
            running = ann.submit(act(*["sleep 0.1"] * 4))
            ann.until(running, "RUNNING")
            bob.run(act("", keep=True), target="cpu:1")
            bob.signal("IO_WAIT", 1.5)
            bob.run(act("", "crash"), final=False, priority="HIGH")
            bob.run(act(""), priority="LOW")
            bob.run(b"garbage")
            cancelled = bob.submit(act("sleep 20"))
            bob.until(cancelled, "RUNNING")
            bob.send(messages.CancelJob(cancelled))
            bob.result(cancelled)
            ann.result(running)
        with Client(info, session=ann.session) as again:
            again.run(act(""))
            again.send(messages.CloseSession())
        rest(info).status()
        return info.pool


def read_journal(directory: Path, pool: str) -> list[Record]:
    engine = sa.create_engine(f"sqlite:///{directory / 'pool.sqlite3'}")
    with engine.connect() as connection:
        rows = connection.execute(sa.select(journal).where(journal.c.pool == pool).order_by(journal.c.seq))
        records = [Record(**row._mapping) for row in rows]
    engine.dispose()
    return records


def test_replay_gives_the_same_commands(tmp_path: Path) -> None:
    pool = lively_run(tmp_path)
    records = read_journal(tmp_path, pool)
    assert len(records) > 40
    kinds = {record.event for record in records}
    assert {
        "DeviceLost",
        "CancelRequested",
        "SegmentRefused",
        "SegmentProgressed",
        "SessionDetached",
    } <= kinds
    engine = Engine()
    commands = [command for answer in replay(records, engine) for command in answer]
    engine.validate()
    assert sum(isinstance(command, jobs.StartSegment) for command in commands) >= 9

    missing_one = [record for record in records if record.event != "CancelRequested"]
    with pytest.raises(ReplayDiffers):
        list(replay(missing_one, Engine()))


def test_a_decision_that_differs_is_named() -> None:
    event = DeviceAdded(1.0, "cpu:0", 2**20)
    detail = msgspec.json.encode(event).decode()
    record = Record(7, "pool", 1.0, CORE, "DeviceAdded", detail, "0123456789abcdef")
    with pytest.raises(ReplayDiffers, match="Event 7 \\(DeviceAdded\\) led to other commands"):
        list(replay([record], Engine()))


def test_a_journal_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = lively_run(tmp_path)
    database = str(tmp_path / "pool.sqlite3")
    with pytest.raises(SystemExit) as ended:
        main(["replay", database])
    assert ended.value.code == 0
    assert f"events of pool {pool} lead to the same commands as they did live" in capsys.readouterr().out

    engine = sa.create_engine(f"sqlite:///{database}")
    with engine.begin() as connection:
        first = connection.scalar(sa.select(sa.func.min(journal.c.seq)))
        changed = connection.scalar(sa.select(journal.c.seq).where(journal.c.event == "CancelRequested"))
        connection.execute(sa.update(journal).where(journal.c.seq == changed).values(commands="0" * 16))
    assert failure(database, capsys).startswith(f"Event {changed} (CancelRequested) led to other commands")
    with engine.begin() as connection:
        opened = connection.scalar(sa.select(journal.c.detail).where(journal.c.seq == first))
        older = msgspec.json.encode({**msgspec.json.decode(opened), "version": "0.0.9"}).decode()
        connection.execute(sa.update(journal).where(journal.c.seq == first).values(detail=older))
    message = " ".join(failure(database, capsys).split())
    assert (
        f"pool {pool} was written by djinn-lab 0.0.9, and only that version is sure to replay it" in message
    )
    assert f"What differs first: Event {changed} (CancelRequested)" in message
    with engine.begin() as connection:
        connection.execute(sa.delete(journal).where(journal.c.seq == first))
    engine.dispose()
    assert "earlier events are gone" in failure(database, capsys)
    assert "There is no file nowhere.db" in failure("nowhere.db", capsys)


def failure(database: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["replay", database])
    assert ended.value.code == 1
    return capsys.readouterr().err
