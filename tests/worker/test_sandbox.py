"""What a process in the sandbox of workers can do, and what it cannot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from djinn_lab.protocol.isolation import CanaryFindings
from djinn_lab.worker.sandbox import canary, landlock

pytestmark = pytest.mark.processes

HEAD = """
import json, sys
from pathlib import Path
from djinn_lab.worker.sandbox import Reach, canary, enter, enter_beside_driver, landlock
directories = [Path(argument) for argument in sys.argv[1:]]
"""
needs_landlock = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A directory of the account that runs the pool."""
    directory = tmp_path / "foreign"
    directory.mkdir()
    (directory / "secret").write_text("secret")
    return directory


def printed(code: str, *directories: Path) -> Any:
    """Run code in a process of its own, and return the JSON that it prints."""
    command = [sys.executable, "-c", HEAD + code, *map(str, directories)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_landlock
@pytest.mark.parametrize(("options", "level"), [([], "full"), ([canary.DRIVER], "driver")])
def test_a_compromised_worker_can_do_none_of_what_is_forbidden(
    foreign: Path, options: list[str], level: str
) -> None:
    command = [sys.executable, "-m", "djinn_lab.worker.sandbox.canary", str(foreign), *options]
    answer = subprocess.run(command, capture_output=True, check=True, stdin=subprocess.DEVNULL).stdout
    found = msgspec.json.decode(answer, type=CanaryFindings)
    assert (found.level, found.works) == (level, True)
    assert [attempt.act for attempt in found.attempts if not attempt.refused] == []
    assert (foreign / "secret").read_text() == "secret"
    assert os.listdir(foreign) == ["secret"]


def test_the_same_acts_succeed_outside_of_the_sandbox(foreign: Path) -> None:
    """Negative control."""
    acts = "[one.act for one in canary.attempts(directories[0]) if not one.refused]"
    assert {
        "read a file of the pool's account",
        "list a directory of the pool's account",
        "make a file elsewhere",
        "delete a file of the pool's account",
        "open a TCP connection",
        "run a program",
        "start a process",
        "signal another process",
    } <= set(printed(f"print(json.dumps({acts}))", foreign))


@needs_landlock
def test_packages_of_an_environment_elsewhere_are_read_and_other_entries_of_the_path_are_not(
    tmp_path: Path,
) -> None:
    packages, project = tmp_path / "packages", tmp_path / "project"
    (packages / "late-1.0.dist-info").mkdir(parents=True)
    (packages / "late.py").write_text("value = 7")
    project.mkdir()
    (project / "mine.py").write_text("value = 8")
    code = """
sys.path += map(str, directories)
enter(Reach())
found = []
for name in ("late", "mine"):
    try:
        found.append(__import__(name).value)
    except ImportError:
        found.append(None)
print(json.dumps(found))
"""
    linked = tmp_path / "linked"
    linked.symlink_to(packages)
    assert printed(code, linked, project) == [7, None]


@needs_landlock
def test_threads_of_a_worker_are_closed_in_too(foreign: Path) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
enter(Reach())
with ThreadPoolExecutor(1) as threads:
    found = threads.submit(canary.attempts, directories[0]).result()
print(json.dumps([one.act for one in found if not one.refused]))
"""
    assert printed(code, foreign) == []


@needs_landlock
def test_threads_that_a_driver_began_make_no_calls_that_it_does_not_need(foreign: Path) -> None:
    """They keep the files that the process could reach when they began."""
    code = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as threads:
    threads.submit(int).result()  # it has begun
    level = enter_beside_driver(Reach())
    found = threads.submit(canary.attempts, directories[0]).result()
left = [one.act for one in found if not one.refused and one.layer == "seccomp"]
print(json.dumps([level, left]))
"""
    assert printed(code, foreign) == ["driver", []]


@needs_landlock
def test_a_worker_reads_stored_files_by_name_and_cannot_list_them(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("store", "results", "own", "others")]
    for place in places:
        place.mkdir()
        (place / "known").write_text("content")
    code = """
store, results, own, others = directories
enter(Reach((own,), store, results))

def refused(act):
    try:
        act()
    except PermissionError:
        return True
    return False

for directory in (own, results):
    (directory / "made").write_text("mine")
(own / "made").unlink()
print(json.dumps({
    "read": [(directory / "known").read_text() for directory in (store, results, own)],
    "list": [refused(lambda: list(directory.iterdir())) for directory in directories],
    "write to the store": refused(lambda: (store / "known").write_text("x")),
    "delete a result": refused(lambda: (results / "known").unlink()),
    "read another group's": refused(lambda: (others / "known").read_text()),
}))
"""
    assert printed(code, *places) == {
        "read": ["content"] * 3,
        "list": [True, True, False, True],
        "write to the store": True,
        "delete a result": True,
        "read another group's": True,
    }


def test_the_level_says_which_layer_is_missing(foreign: Path) -> None:
    code = """
def missing(reach):
    raise OSError("no Landlock")

landlock.restrict = missing
print(json.dumps([enter(Reach()), (directories[0] / "secret").read_text()]))
"""
    assert printed(code, foreign) == ["no-landlock", "secret"]
