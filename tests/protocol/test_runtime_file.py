"""The runtime file: private, atomic, and never of a dead pool."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from djinn_lab.errors import PoolError
from djinn_lab.protocol.runtime_file import (
    FILE_NAME,
    RuntimeInfo,
    data_directory,
    read_runtime,
    remove_runtime,
    runtime_directory,
    unwritable,
    write_runtime,
)
from djinn_lab.system.liveness import process_is_alive


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path / "run"))


def info(pid: int | None = None) -> RuntimeInfo:
    return RuntimeInfo("http://127.0.0.1:1", "secret", "pool", pid or os.getpid(), "host", "0.1.0", 1, 1.5)


def test_runtime_file_is_readable_by_its_owner_only() -> None:
    assert read_runtime() is None
    write_runtime(info())
    assert read_runtime() == info()
    path = runtime_directory() / FILE_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == [FILE_NAME]


def test_a_file_that_others_can_read_is_not_trusted() -> None:
    write_runtime(info())
    (runtime_directory() / FILE_NAME).chmod(0o644)
    with pytest.raises(PoolError, match=r"delete .*pool\.json"):
        read_runtime()


def test_a_dead_pool_is_no_pool() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    process.wait()
    write_runtime(info(process.pid))
    assert read_runtime() is None


def test_a_zombie_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    process.stdout.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not process_is_alive(process.pid)
    process.wait()


def test_only_its_own_pool_removes_the_file() -> None:
    write_runtime(info())
    remove_runtime(os.getpid() + 1)
    assert read_runtime() is not None
    remove_runtime(os.getpid())
    remove_runtime(os.getpid())
    assert read_runtime() is None


def test_garbage_says_what_to_do() -> None:
    path = runtime_directory() / FILE_NAME
    path.touch(0o600)
    with pytest.raises(PoolError, match="is not a runtime file"):
        read_runtime()
    path.write_bytes(msgspec.json.encode({"url": 3}))
    with pytest.raises(PoolError, match="is not a runtime file"):
        read_runtime()


def test_directories_without_override(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJINN_RUNTIME_DIR")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert runtime_directory() == tmp_path / "djinn-lab"
    assert data_directory() == tmp_path / "data" / "djinn-lab"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "absent"))
    assert runtime_directory() == tmp_path / "data" / "djinn-lab"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_and_full_quota_have_the_same_advice(tmp_path: Path, number: int) -> None:
    said = unwritable(tmp_path, OSError(number, os.strerror(number)))
    assert os.strerror(number) in str(said)
    assert "Free some space, or raise the quota" in str(said)
