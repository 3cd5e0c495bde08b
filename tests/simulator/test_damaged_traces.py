"""Damaged trace files are refused by name, or give what is left with the numbers of the broken lines."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from damage import damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from djinn_lab.simulator.traces.catalog import OPENB_NODES, open_trace
from djinn_lab.simulator.traces.gpu_clusters import load_philly
from djinn_lab.simulator.traces.lines import NODES_MAX, NoTraces

SWF = b"""; MaxProcs: 64
;
1 40 5 100 4 -1 -1 8 60 -1 1 7 3 1 1 -1 -1 -1
2 50 5 10 4 -1 -1 4 -1 -1 1 7 3 1 1 -1 -1 -1
3 60 5 -1 4 -1 -1 4 60 -1 1 7 3 1 1 -1 -1 -1
"""
PHILLY = b"submit,duration,gpus,vc\n20,100,16,a\n10,50,1,b\n30,5,2,a\n"
ITP = b"job_id,submission_time,num_gpu,duration,cluster\n1,10,8,100,x\n2,20,1,5,y\n"
HELIOS = (
    b"job_id,user,vc,gpu_num,submit_time,duration\n"
    b"1,ann,v,8,2020-04-01 10:00:00,100\n2,bo,v,0,2020-04-01 10:00:01,10\n"
)
OPENB = (
    b"name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,creation_time,deletion_time\n"
    b"p1,1000,1024,1,500,T4|P100,LS,10,100\np2,1000,1024,0,0,,BE,20,30\n"
)
NODES = b"sn,cpu_milli,memory_mib,gpu,model\nn1,32000,65536,2,T4\nn2,32000,65536,0,\n"
QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check(path: Path, content: bytes, other: str = "pools.json", pools: Path | None = None) -> None:
    """Assert that a trace is refused by the name of a file, or has numbers to simulate with. Every broken
    line must be a line of the file."""
    try:
        trace = open_trace(str(path), pools=pools)
    except NoTraces as error:
        refused = str(error)
    else:
        refused = ""
        last = content.count(b"\n") + content.count(b"\r") + 2
        assert all(1 <= line.number <= last and line.reason for line in trace.broken)
        for job in trace.jobs:
            assert 0 <= job.submit_s < float("inf")
            assert 0 <= job.run_s < float("inf")
            assert job.demand.members >= 1
        assert all(node.devices >= 0 for nodes in trace.nodes.values() for node in nodes)
    assert not refused or path.name in refused or other in refused


@QUIET
@given(content=damaged((SWF, PHILLY, ITP, HELIOS, OPENB)), packed=st.booleans())
def test_damaged_trace_is_refused_by_name_or_read_in_part(
    content: bytes, packed: bool, tmp_path: Path
) -> None:
    (tmp_path / OPENB_NODES).write_bytes(NODES)
    name = "trace.swf" if content.lstrip().startswith(b";") else "trace.csv"
    path = tmp_path / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    check(path, content)


@QUIET
@given(content=damaged((NODES,)))
def test_damaged_list_of_nodes_is_refused_by_name_and_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / OPENB_NODES).write_bytes(content)
    (tmp_path / "pods.csv").write_bytes(OPENB)
    check(tmp_path / "pods.csv", OPENB, OPENB_NODES)


@QUIET
@given(content=damaged((json.dumps({"a": 3, "b": 1}).encode(),)))
def test_damaged_pools_are_refused_by_name(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "pools.json").write_bytes(content)
    (tmp_path / "jobs.csv").write_bytes(PHILLY)
    check(tmp_path / "jobs.csv", PHILLY, pools=tmp_path / "pools.json")


@QUIET
@given(content=damaged((gzip.compress(PHILLY), gzip.compress(SWF))))
def test_damaged_gzip_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(content)
    check(path, PHILLY)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("log.swf", b"; MaxProcs: many\n", "log.swf, line 1: MaxProcs is 'many'"),
        (OPENB_NODES, NODES + b"n3,x,1,1,T4\n", f"{OPENB_NODES}, line 4"),
        (OPENB_NODES, NODES + b"n3,1\n", f"{OPENB_NODES}, line 4"),
        ("pools.json", b"{", "pools.json"),
        ("pools.json", json.dumps({"a": NODES_MAX + 1}).encode(), "pools.json"),
        ("jobs.csv", PHILLY + b'"' + b"x" * 200_000, "jobs.csv, line"),
    ],
)
def test_refusal_names_file_and_line(name: str, content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "pods.csv").write_bytes(OPENB)
    (tmp_path / "jobs.csv").write_bytes(PHILLY)
    (tmp_path / name).write_bytes(content)
    opened = {OPENB_NODES: "pods.csv", "pools.json": "jobs.csv"}.get(name, name)
    pools = tmp_path / name if name == "pools.json" else None
    with pytest.raises(NoTraces) as refused:
        open_trace(str(tmp_path / opened), pools=pools)
    assert words in str(refused.value)


def test_pools_that_lack_a_named_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pools.json").write_text("{}")
    (tmp_path / "jobs.csv").write_bytes(PHILLY)
    with pytest.raises(NoTraces, match=r"pools.json has no pool a"):
        load_philly(tmp_path / "jobs.csv", tmp_path / "pools.json", ["a"])
