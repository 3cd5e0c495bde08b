"""``python -m benchmarks.queue_million JOBS POLICY``: a large pool, in a process of its own because of its
memory. Prints JSON."""

from __future__ import annotations

import json
import resource
import sys
from time import perf_counter

import msgspec

from djinn_lab.simulator.queue import simulate_queue
from djinn_lab.simulator.traces.synthetic import Synthetic

NODES, DEVICES_PER_NODE, LOAD, USERS = 1_250, 8, 0.8, 200
SIZES = ((1, 80), (2, 8), (4, 7), (8, 5))


def main(jobs: int, policy: str) -> None:
    made = Synthetic(
        name="large",
        jobs=jobs,
        nodes=NODES,
        devices_per_node=DEVICES_PER_NODE,
        load=LOAD,
        sigma=1.0,
        sizes=SIZES,
        users=USERS,
    )
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = perf_counter()
    figures = simulate_queue(made.trace(), None, policy).figures
    seconds = perf_counter() - started
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {
        "seconds": seconds,
        "peak_bytes": peak_kib * 1024,
        "before_bytes": before_kib * 1024,
        "figures": msgspec.to_builtins(figures),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
