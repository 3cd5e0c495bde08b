"""Runs one item of the manifest in this process and writes what it left behind.

python child.py REQUEST.json ANSWER.json
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import torch
from cells import Runner, read_cells, short_traceback, without_imports
from equality import seed
from observed import observe, remember_optimizers

from djinn_lab.client.connect import connect
from djinn_lab.client.session import Session
from djinn_lab.errors import CaptureError, Refused


def main(request: dict[str, Any]) -> dict[str, Any]:
    script = Path(request["script"])
    os.chdir(request.get("folder") or script.parent)
    sys.path[:0] = [os.getcwd(), str(script.parent)]
    sys.path.append(
        str(Path(__file__).parent / "stand_ins")
    )  # last: the real ones win where they are installed
    sys.argv = [str(script), *request["arguments"]]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    cells = read_cells(script, request["replace"])
    local = ""
    if request.get("imports_apart"):
        [script_text] = cells
        local, rest = without_imports(script_text)
        cells = [rest] * request["rounds"]
    if request["cells"] is not None:
        cells = [cells[index] for index in request["cells"]]
    remember_optimizers()
    session = connect() if request["captured"] and request.get("pool") else None
    runner = Runner(request["captured"], session)
    runner.shell.user_ns.update({"__name__": "__main__", "__file__": str(script)})
    before = set(runner.shell.user_ns)
    printed = io.StringIO()
    failure: dict[str, Any] | None = None
    times: list[dict[str, float]] = []
    if request.get("prelude"):
        runpy.run_path(request["prelude"])
    runner.run(local, local=True)
    started = time.perf_counter()
    seed(11)
    with contextlib.redirect_stdout(printed):
        for number, code in enumerate(cells, 1):
            try:
                with timed(session, times):
                    runner.run(code)
            except SystemExit:
                break
            except BaseException as error:  # noqa: BLE001 - what the tutorial raised is the outcome
                refused = isinstance(error, (CaptureError, Refused))
                failure = {"cell": number, "refused": refused, "text": short_traceback(error)}
                break
    seconds = time.perf_counter() - started
    namespace = {name: value for name, value in runner.shell.user_ns.items() if name not in before}
    observed = observe(namespace, printed.getvalue(), Path.cwd(), request["mask"])
    ops = runner.recorder.ops_recorded
    return {
        "failure": failure,
        "seconds": seconds,
        "times": times,
        "cells": len(cells),
        "ops": ops,
        **observed,
    }


@contextlib.contextmanager
def timed(session: Session | None, times: list[dict[str, float]]) -> Iterator[None]:
    """Append the block's wall time and its CPU time, here and in the pool's workers."""
    workers = _worker_cpu_s(session)
    started, cpu = time.perf_counter(), time.process_time()
    yield
    wall_s, cpu_s = time.perf_counter() - started, time.process_time() - cpu
    times.append({"wall_s": wall_s, "cpu_s": cpu_s, "worker_cpu_s": _worker_cpu_s(session) - workers})


def _worker_cpu_s(session: Session | None) -> float:
    if session is None:
        return 0.0
    spent = 0.0
    for device in session.pool.status().devices:
        if device.pid is not None:
            used = psutil.Process(device.pid).cpu_times()
            spent += used.user + used.system
    return spent


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    target = Path(sys.argv[2]).resolve()
    try:
        answer = main(asked)
    except Exception:  # noqa: BLE001 - the parent reports it
        answer = {"failure": {"cell": 0, "refused": False, "text": traceback.format_exc()[-1500:]}}
    target.write_text(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # tutorials leave threads and workers behind
