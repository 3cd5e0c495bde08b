"""Trace loaders, on files of their formats, and on the real ones where they are."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from djinn_lab.simulator.memory import load_parameters
from djinn_lab.simulator.traces.agents import (
    GAP_S_MAX,
    TRACES,
    TURNS_MAX,
    claude_code,
    lmcache_agent,
    mooncake,
    oversubscribed,
)
from djinn_lab.simulator.traces.lines import VARIABLE, NoTraces, traces_folder


def write(path: Path, *lines: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write("\n".join(lines) + "\n")


def test_claude_code_is_cut_at_compactions_and_scaled(tmp_path: Path) -> None:
    write(
        tmp_path / "claude_code_kvct" / "requests.csv.gz",
        "session,agent,turn,in_tokens,out_tokens,think_time_s",
        "1,main,0,64000,320,0.0",
        "1,main,1,67200,320,12.0",
        "1,agent_1,0,99999,320,1.0",
        "1,main,2,70400,320,99999.0",
        "1,main,3,32000,320,5.0",
        "1,main,4,35200,320,",
    )
    workload = claude_code(tmp_path, live=2, sessions=9, seed=1)
    lengths = sorted(len(script.turns) for script in workload.scripts)
    assert lengths == [2, 3]
    (long,) = [script for script in workload.scripts if len(script.turns) == 3]
    assert [turn.gap_s for turn in long.turns] == [0.0, 12.0, GAP_S_MAX]
    assert sum(turn.new_tokens + turn.said_tokens for turn in long.turns) == 2200 + 10


def test_mooncake_and_lmcache(tmp_path: Path) -> None:
    write(
        tmp_path / "mooncake" / "conversation_sessions.csv.gz",
        "session,turn,t_ms,input_tokens,output_tokens,gap_from_prev_arrival_ms",
        "0,0,0,8000,80,",
        "0,1,9000,16000,80,9000",
        "1,0,0,8000,80,",
    )
    (script,) = mooncake(tmp_path, live=2, sessions=9, seed=1).scripts
    assert [turn.gap_s for turn in script.turns] == [0.0, 9.0]
    write(
        tmp_path / "lmcache_agent" / "requests.csv.gz",
        "suite,session,turn,t_s,input_chars,output_chars,prefix_reuse_chars",
        "a,1,0,0.0,4000,800,0",
        "a,1,1,2.5,8000,800,4000",
    )
    (script,) = lmcache_agent(tmp_path, live=2, sessions=9, seed=1).scripts
    assert [turn.gap_s for turn in script.turns] == [0.0, 2.5]
    assert script.turns[0].new_tokens == 1000


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(NoTraces, match=VARIABLE):
        traces_folder()
    with pytest.raises(NoTraces, match="not a folder"):
        traces_folder(tmp_path / "nowhere")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for load in TRACES.values():
        with pytest.raises(NoTraces, match="no trace at"):
            load(traces_folder(), 2, 2, 1)


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} is not set")
@pytest.mark.parametrize("name", sorted(TRACES))
def test_real_traces(name: str) -> None:
    workload = TRACES[name](traces_folder(), 20, 40, 1)
    assert len(workload.scripts) == 40
    assert all(2 <= len(script.turns) <= TURNS_MAX for script in workload.scripts)
    device = oversubscribed(load_parameters("h200"), workload, 1.5)
    assert device.memory_bytes == device.host_bytes > 0
