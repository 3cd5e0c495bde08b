"""What the process that compiles regions can reach, and what it does with bytes that are no region."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from programs import HOLE, Script

from djinn_lab.srg.program import Argument, Template, encode_program
from djinn_lab.worker.compiled.compiler import Target, compile_region
from djinn_lab.worker.compiled.compilers import Inductor
from djinn_lab.worker.sandbox import landlock

TRIES = """
import json, os, socket, subprocess, sys
from pathlib import Path
from djinn_lab.worker.compiled.compiler import confine

own, foreign = map(Path, sys.argv[1:])
confine((own,), memory_bytes=2**32, seconds=60)

def works(act):
    try:
        act()
    except OSError:
        return False
    return True

print(json.dumps({
    "write its own files": works(lambda: (own / "made").write_text("x")),
    "run a program": works(lambda: subprocess.run(["/usr/bin/env", "true"], check=True)),
    "read a file of the account": works(lambda: (foreign / "secret").read_text()),
    "list the account's files": works(lambda: list(foreign.iterdir())),
    "write elsewhere": works(lambda: (foreign / "made").write_text("x")),
    "read another process's environment": works(lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes()),
    "open a TCP connection": works(lambda: socket.create_connection(("127.0.0.1", int(foreign.name)), 5)),
}))
"""


@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
def test_process_that_compiles_reaches_its_own_files_and_programs_alone(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own, foreign = tmp_path / "own", tmp_path / str(listener.getsockname()[1])
        own.mkdir()
        foreign.mkdir()
        (foreign / "secret").write_text("secret")
        command = [sys.executable, "-c", TRIES, str(own), str(foreign)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    worked = {act for act, works in json.loads(done.stdout).items() if works}
    expected = {"write its own files", "run a program"}
    if landlock.version() < landlock.NETWORK_FROM:
        expected.add("open a TCP connection")
    assert worked == expected


def one_op(op: str, *more: Argument, **named: Argument) -> bytes:
    script = Script()
    made = script.op(op, script.source((4,)))
    program = script.program(keep=(made,))
    return encode_program(replace(program, templates=[Template(op, [HOLE, *more], named)]))


@pytest.mark.parametrize(
    ("region", "why"),
    [
        (b"garbage", "ValidationError"),
        (one_op("aten.from_file.default"), "not on the allow-list"),
        (one_op("aten.rand_like.default"), "may not be in a region"),
        (one_op("aten.as_strided.default", [4], [1]), "may not be in a region"),
        (one_op("aten.gelu.default", approximate='"); system("true'), "may not be in a region"),
    ],
)
def test_what_is_no_region_is_not_compiled(tmp_path: Path, region: bytes, why: str) -> None:
    assert why in compile_region(region, tmp_path, Target("cpu", 1, tmp_path), Inductor()).problem
    assert list(tmp_path.iterdir()) == []
