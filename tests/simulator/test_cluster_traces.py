"""Loaders of cluster traces, on files of their formats: what is understood, left out, or broken."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from djinn_lab.jobs.request import ComputeNode, Demand
from djinn_lab.simulator.traces.catalog import open_trace
from djinn_lab.simulator.traces.gpu_clusters import load_helios, load_itp, load_philly
from djinn_lab.simulator.traces.lines import NoTraces
from djinn_lab.simulator.traces.openb import load_openb
from djinn_lab.simulator.traces.swf import load_swf
from djinn_lab.simulator.traces.synthetic import Synthetic


def write(path: Path, *lines: str) -> Path:
    text = "\n".join(lines) + "\n"
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def swf_line(job: int, submit: int, run: int, procs: int, requested: int, seconds: int) -> str:
    return f"{job} {submit} 5 {run} {procs} -1 -1 {requested} {seconds} -1 1 7 3 1 1 -1 -1 -1"


@pytest.mark.parametrize("name", ["log.swf", "log.swf.gz"])
def test_swf(tmp_path: Path, name: str) -> None:
    path = write(
        tmp_path / name,
        "; MaxProcs: 64",
        ";",
        swf_line(2, 50, 100, 4, 8, 60),
        swf_line(1, 40, 0, 4, -1, -1),
        swf_line(3, 60, -1, -1, 8, 60),
        "4 70 oops",
        swf_line(5, 80, 10, 1, 1, 20).replace("80", "later"),
    )
    trace = load_swf(path)
    first, second = trace.jobs
    assert (first.job, first.submit_s, first.run_s, first.estimate_s) == ("1", 40.0, 1.0, None)
    assert (second.run_s, second.estimate_s, second.account) == (60.0, 60.0, "group3/user7")
    assert second.demand == Demand(members=8, members_min=8)
    assert trace.nodes == {"": (ComputeNode("machine", devices=64),)}
    assert trace.left_out == 1
    assert [(line.number, line.reason) for line in trace.broken] == [
        (6, "ValueError: 3 fields where 18 belong"),
        (7, "ValueError: could not convert string to float: 'later'"),
    ]


def test_philly_with_and_without_pools(tmp_path: Path) -> None:
    path = write(
        tmp_path / "jobs.csv.gz",
        "submit,duration,gpus,vc",
        "20,100,16,a",
        "10,50,1,b",
        "30,-5,1,a",
        "30,5,0,a",
        "30,5",
    )
    pools = tmp_path / "pools_small.json"
    pools.write_text(json.dumps({"a": 3, "c": 1}))
    trace = load_philly(path, pools)
    (only,) = trace.jobs
    assert (only.pool, only.account, only.demand.together) == ("a", "a", "packed")
    assert {pool: len(nodes) for pool, nodes in trace.nodes.items()} == {"a": 3, "c": 1}
    assert (trace.left_out, len(trace.broken)) == (1, 3)
    assert trace.name == "philly small"
    whole = load_philly(path)
    assert [job.submit_s for job in whole.jobs] == [10.0, 20.0]
    assert {job.pool for job in whole.jobs} == {""}


def test_itp_and_helios(tmp_path: Path) -> None:
    itp = write(
        tmp_path / "itp.csv",
        "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration,cluster",
        "x,1999,49066,resnet50,13212,128,4,13423,cluster07",
    )
    (job,) = load_itp(itp).jobs
    assert (job.submit_s, job.run_s, job.demand.members, job.account) == (1999.0, 13423.0, 4, "cluster07")
    helios = write(
        tmp_path / "cluster_log.csv",
        "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue",
        "1,u1,vcA,8,32,1,COMPLETED,2020-09-01 00:00:10,2020-09-01 00:00:20,2020-09-01 00:01:20,60,10",
        "2,u2,vcA,0,32,1,COMPLETED,2020-09-01 00:00:10,2020-09-01 00:00:20,2020-09-01 00:01:20,60,10",
        "3,u2,vcA,1,32,1,COMPLETED,yesterday,,,60,10",
    )
    trace = load_helios(helios)
    (job,) = trace.jobs
    assert (job.run_s, job.demand.members, job.account) == (60.0, 8, "vcA/u1")
    assert (trace.left_out, [line.number for line in trace.broken]) == (1, [4])


def test_openb(tmp_path: Path) -> None:
    nodes = write(
        tmp_path / "nodes.csv",
        "sn,cpu_milli,memory_mib,gpu,model",
        "n0,64000,262144,2,P100",
        "n1,96000,393216,8,V100M32",
    )
    pods = write(
        tmp_path / "pods.csv",
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time",
        "whole,12000,16384,2,1000,,LS,Running,0,100,0",
        "part,6000,12288,1,460,V100M16|V100M32,BE,Running,5,50,5",
        "host,1000,1024,0,0,,Burstable,Running,6,50,6",
        "odd,1000,1024,1,1460,,LS,Running,6,50,6",
    )
    trace = load_openb(pods, nodes)
    whole, part, host = trace.jobs
    assert (whole.demand.members, whole.demand.cpu_milli, whole.demand.together) == (2, 6000, "one_node")
    assert (part.demand.device_milli, part.rank > whole.rank) == (460, True)
    assert (host.demand.device_milli, host.run_s) == (0, 44.0)
    assert [node.labels for node in trace.nodes[""]] == [frozenset(), part.demand.selector]
    assert [line.reason for line in trace.broken] == ["ValueError: 1 devices of 1460 thousandths"]


@pytest.mark.parametrize(
    ("lines", "reason"), [((), "no trace at"), (("submit,duration,gpus", "1,2,3"), "has no column vc")]
)
def test_what_is_no_trace_says_so(tmp_path: Path, lines: tuple[str, ...], reason: str) -> None:
    path = tmp_path / "jobs.csv"
    if lines:
        write(path, *lines)
    with pytest.raises(NoTraces, match=reason):
        load_philly(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("noise.csv", bytes(range(128, 256))),
        ("noise.swf.gz", b"no gzip"),
        ("cut.csv.gz", gzip.compress(b"x" * 99, mtime=0)[:20]),
    ],
)
def test_what_is_no_text_says_so(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(NoTraces, match="cannot be read as a trace"):
        open_trace(str(path))


def test_the_format_is_seen_from_the_columns(tmp_path: Path) -> None:
    nodes = write(
        tmp_path / "openb_node_list_gpu_node.csv", "sn,cpu_milli,memory_mib,gpu,model", "n,1000,1000,1,T4"
    )
    assert nodes.exists()
    files = {
        "philly": ("submit,duration,gpus,vc", "0,1,1,a"),
        "itp": ("job_id,submission_time,num_gpu,duration,cluster", "x,0,1,1,c"),
        "helios": ("job_id,user,vc,gpu_num,submit_time,duration", "1,u,v,1,2020-09-01 00:00:10,60"),
        "pods": (
            "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time",
            "p,1000,1000,1,500,,LS,0,9",
        ),
    }
    for name, lines in files.items():
        trace = open_trace(str(write(tmp_path / f"{name}.csv", *lines)))
        assert trace.name.startswith(name)
        assert len(list(trace.jobs)) == 1


def test_pools_have_to_be_a_table(tmp_path: Path) -> None:
    path = write(tmp_path / "jobs.csv", "submit,duration,gpus,vc", "1,2,3,a")
    (tmp_path / "pools.json").write_text("[1]")
    with pytest.raises(NoTraces, match="not a table of nodes"):
        load_philly(path, tmp_path / "pools.json")


def test_made_up_load_is_what_was_asked_for() -> None:
    made = Synthetic(jobs=4_000, nodes=4, load=0.9, sizes=((1, 50), (4, 50)), users=3, sigma=1.0, seed=5)
    jobs = list(made.trace().jobs)
    offered = sum(job.run_s * job.demand.members for job in jobs) / (jobs[-1].submit_s * 32)
    assert offered == pytest.approx(0.9, rel=0.15)
    assert jobs == list(made.trace().jobs)
    counts = [sum(job.account == f"user00{number}" for job in jobs) for number in (1, 2, 3)]
    assert counts == sorted(counts, reverse=True)
    assert {job.estimate_s for job in Synthetic(jobs=5, estimate_sigma=None).trace().jobs} == {None}
