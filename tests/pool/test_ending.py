"""Pools of tests end with the process that started them, also when it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from real_pool import wait_for

from djinn_lab.system.liveness import process_is_alive

TESTS = Path(__file__).parents[1]
PARENT = """
import subprocess, sys, time
from ending import end_with_this_process
keeper = end_with_this_process()
from pathlib import Path
from pool_kit import running_pool
from djinn_lab.protocol.runtime_file import supervisor_process
with running_pool(Path(sys.argv[1]), "cpu:1", restart=True) as info:
    other = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print(info.pid, supervisor_process(), other.pid, keeper, flush=True)
    time.sleep(600)
"""


@pytest.mark.processes
def test_all_that_a_killed_test_process_started_ends(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS / "pool")))}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        started = [int(word) for word in parent.stdout.readline().split()]
        assert len(started) == 4
        assert all(map(process_is_alive, started))
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not any(map(process_is_alive, started)))
    assert not (tmp_path / "pool.json").exists()
