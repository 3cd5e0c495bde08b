"""The simulator beside other people's programs on the same input. Their figures: pyss on SDSC-SP2 (for fifo
AccaSim, too), the Helios artifact (SC'21) on Philly. All of SDSC-SP2 is in the benchmark."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks.filling import fill, popularity
from djinn_lab.jobs.placement import DEFAULT, SCORINGS, fragmentation
from djinn_lab.simulator.queue import QueueFigures, QueueSettings, simulate_queue
from djinn_lab.simulator.queue.settings import CHECKPOINT
from djinn_lab.simulator.queue.workload import Trace
from djinn_lab.simulator.traces.gpu_clusters import PHILLY_CONTENDED, load_philly
from djinn_lab.simulator.traces.openb import load_openb
from djinn_lab.simulator.traces.swf import load_swf

SDSC_JOBS, SDSC_BEGIN = 54_044, 5_000
OTHERS = ("best_fit", "dot_product", "mixed_30_20_20_20_10")


@pytest.fixture(scope="module")
def sdsc(traces: Path) -> Trace:
    trace = load_swf(traces / "swf" / "SDSC-SP2-1998-4.2-cln.swf.gz")
    jobs = tuple(trace.jobs)
    assert (len(jobs), trace.left_out, trace.broken) == (SDSC_JOBS, 5_671, ())
    return replace(trace, jobs=jobs[:SDSC_BEGIN])


@pytest.fixture(scope="module")
def philly(traces: Path) -> Trace:
    folder = traces / "philly-adaptdl"
    return load_philly(
        folder / "philly_oct_nov_11vc.csv.gz", folder / "pools_contended.json", PHILLY_CONTENDED
    )


def figures(trace: Trace, policy: str, **settings: object) -> QueueFigures:
    return simulate_queue(trace, None, policy, QueueSettings(**settings)).figures  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "wait_s", "slowdown"),
    [("fifo", "20237.4", "177.856"), ("easy", "4038", "17.31")],
)
def test_the_first_5000_jobs_of_sdsc_sp2(sdsc: Trace, policy: str, wait_s: str, slowdown: str) -> None:
    found = figures(sdsc, policy)
    assert found.jobs == SDSC_BEGIN
    assert f"{found.wait_mean_s:.{len(wait_s.partition('.')[2])}f}" == wait_s
    assert f"{found.slowdown_mean:.{len(slowdown.partition('.')[2])}f}" == slowdown


@pytest.mark.parametrize(
    ("policy", "jct_s", "wait_s", "delayed"),
    [
        ("fifo", 404_293, 392_201, 7_148),
        ("sjf", 23_933, 11_842, 4_048),
        ("fifo_passing", 58_873, 46_781, 4_524),
    ],
)
def test_philly_contended_without_preemption_is_the_artifacts_to_the_second(
    philly: Trace, policy: str, jct_s: int, wait_s: int, delayed: int
) -> None:
    found = figures(philly, policy, estimates="exact")
    assert (found.jobs, int(found.jct_mean_s), int(found.wait_mean_s)) == (14_530, jct_s, wait_s)
    assert found.delayed == delayed


def test_srtf_on_philly_with_the_artifacts_checkpoint_costs(philly: Trace) -> None:
    found = figures(philly, "srtf", estimates="exact", parking=CHECKPOINT)
    assert found.jct_mean_s == pytest.approx(17_885, rel=0.01)
    assert found.preemptions > 1_000


def test_openb_is_filled_best_by_what_looks_at_fragments(traces: Path) -> None:
    """On an eighth of the nodes. A balancing load gives back more than anything else gains."""
    folder = traces / "alibaba-openb-2023"
    trace = load_openb(folder / "openb_pod_list_default.csv.gz", folder / "openb_node_list_gpu_node.csv")
    demands = [job.demand for job in trace.jobs]
    nodes = trace.nodes[""][::8]
    allocated = {
        scoring.name: fill(demands[:4000], nodes, scoring, 1.3, seed=1).allocated
        for scoring in (fragmentation(popularity(demands)), DEFAULT, *(SCORINGS[name] for name in OTHERS))
    }
    by_success = sorted(allocated, key=lambda name: -allocated[name])
    assert by_success[:2] == ["fragmentation", "default"]
    assert by_success[-1] == "mixed_30_20_20_20_10"
    assert allocated["fragmentation"] > 0.94
