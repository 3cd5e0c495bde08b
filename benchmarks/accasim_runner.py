"""Time EASY backfilling of AccaSim on a workload file, in a Python of its own that has AccaSim (PyPI). Prints
the seconds and AccaSim's mean wait as JSON. AccaSim 1.1.3 needs names that Python 3.10 moved."""

from __future__ import annotations

import collections
import collections.abc
import importlib
import json
import logging
import os
import sys
from pathlib import Path
from time import perf_counter

MOVED = ("Mapping", "MutableMapping", "Iterable", "Sequence", "Callable")


def main(workload: str, devices: int) -> None:
    for name in MOVED:
        setattr(collections, name, getattr(collections.abc, name))
    os.chdir(Path(workload).parent)
    schedulers = importlib.import_module("accasim.base.scheduler_class")
    allocators = importlib.import_module("accasim.base.allocator_class")
    simulators = importlib.import_module("accasim.base.simulator_class")
    system = {"groups": {"node": {"core": 1, "mem": 10**6}}, "resources": {"node": devices}}
    Path("system.json").write_text(json.dumps(system))
    dispatcher = schedulers.EASYBackfilling(allocators.FirstFit())
    waits: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: waits.append(record.getMessage())  # type: ignore[method-assign]
    beside = str(Path(workload).parent / "results")  # not beside this script
    simulator = simulators.Simulator(workload, "system.json", dispatcher, RESULTS_FOLDER_NAME=beside)
    for logger in [logging.getLogger(name) for name in logging.root.manager.loggerDict]:
        logger.addHandler(handler)
    logging.root.addHandler(handler)
    started = perf_counter()
    simulator.start_simulation()
    seconds = perf_counter() - started
    found = next((line for line in waits if "waiting times" in line), "")
    print(json.dumps({"seconds": seconds, "said": found.strip()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
