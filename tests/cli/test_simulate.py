"""``djinn-lab simulate``: tables, files, and what is wrong with an input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from djinn_lab.cli import main
from djinn_lab.errors import UserError
from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.request import Demand
from djinn_lab.simulator.queue import Trace, TraceJob, equal_nodes
from djinn_lab.simulator.queue.result_file import read_result

JOBS = ("submit,duration,gpus,vc", "0,100,8,a", "10,100,4,a", "20,10,1,b", "oops,1,1,b", "30,5,99,b")


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    monkeypatch.delenv("DJINN_TRACES", raising=False)


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    path = tmp_path / "jobs.csv"
    path.write_text("\n".join(JOBS) + "\n")
    return str(path)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(("simulate", *arguments))
    return int(ended.value.code or 0)


def test_a_table_says_what_each_policy_came_to(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "--nodes", "1", "--policy", "fifo, sjf", "--estimates", "exact") == 0
    shown = capsys.readouterr().out
    assert "philly on 8 devices" in shown
    (fifo,) = [line for line in shown.splitlines() if line.startswith("│ fifo")]
    assert [cell.strip() for cell in fifo.strip("│").split("│")][:3] == ["fifo", "3", "56.7 s"]
    assert "│ sjf" in shown
    assert "Jobs that fit on no node, not counted: 1." in shown
    assert "Broken lines, left out: 1 (line 5: ValueError: could not convert string to float" in shown


def test_all_policies_and_a_file_for_later(
    jobs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    assert run(jobs, "--nodes", "2", "--policy", "all", "--out", str(out)) == 0
    assert f"Written: {out}" in capsys.readouterr().out
    result = read_result(out)
    assert [run.figures.policy for run in result.runs] == list(POLICIES)
    assert (result.nodes, result.broken, result.broken_lines[0].number) == ({"": 16}, 1, 5)
    first = out.read_bytes()
    assert run(jobs, "--nodes", "2", "--policy", "all", "--out", str(out)) == 0
    assert out.read_bytes() == first


def test_json_for_programs(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "--nodes", "1", "--json", "--park", "5", "--jobs", "2") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["runs"][0]["figures"]["jobs"] == 2
    assert found["settings"]["parking"]["steps"] == [[1, 5.0, 5.0]]


def test_jobs_that_fit_nowhere_leave_figures_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "huge.csv"
    path.write_text("submit,duration,gpus,vc\n0,10,64,a\n")
    out = tmp_path / "result.json"
    assert run(str(path), "--nodes", "1", "--out", str(out)) == 0
    assert "Jobs that fit on no node, not counted: 1." in capsys.readouterr().out
    assert read_result(out).runs[0].figures.jobs == 0


def test_accounts_can_be_guaranteed_devices(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "--nodes", "1", "--guaranteed", "a=2", "--guaranteed", "b=0.5", "--json") == 0
    assert json.loads(capsys.readouterr().out)["settings"]["guaranteed"] == {"a": 2.0, "b": 0.5}


def test_nodes_can_fail(jobs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(jobs, "--nodes", "1", "--policy", "fifo", "--node-failures", "30", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["figures"]["failures"] > 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("{jobs}", "--guaranteed", "a=-1"), "--guaranteed a=-1 cannot be used: a guarantee of -1 devices"),
        (("{jobs}", "--guaranteed", "many"), "Write it like vision=2."),
        (("nowhere.csv",), "No trace at nowhere.csv."),
        (("sdsc-sp2",), "No traces: set DJINN_TRACES to the folder that holds them."),
        (("{jobs}",), "The trace philly names no nodes.\nGive --nodes N"),
        (("{jobs}", "--policy", "best"), "There is no policy best.\nThere are fifo"),
        (("{jobs}", "--estimates", "guess"), "--estimates guess is unknown"),
        (("{jobs}", "--pools", "nowhere.json"), "No pools at nowhere.json."),
        (("{jobs}", "--nodes", "1", "--out", "no/such/folder/x"), "no/such/folder/x cannot be written"),
        ((__file__,), "has no format that is known"),
        (
            ("{empty}", "--nodes", "1"),
            "philly has no jobs. Broken lines: 1 (line 2: ValueError: submit is -1).",
        ),
    ],
)
def test_errors_are_two_lines_at_most(
    arguments: tuple[str, ...],
    reason: str,
    jobs: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("submit,duration,gpus,vc\n-1,2,3,a\n")
    words = [argument.replace("{jobs}", jobs).replace("{empty}", str(empty)) for argument in arguments]
    assert run(*words) == 1
    shown = capsys.readouterr().err
    assert reason in shown
    assert len(shown.splitlines()) <= 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [("{}", "not a result of a queue simulation"), (None, "cannot be read")],
)
def test_a_file_that_is_no_result_says_so(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "result.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=reason):
        read_result(path)


def test_history_of_the_pool_says_which_jobs_are_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = (TraceJob("a", 0.0, 1.0, Demand(), "ann", 1.0), TraceJob("b", 0.0, 0.1, Demand(), "ann", 0.1))
    trace = Trace("this pool", ran, {"": equal_nodes(1, 1)})
    monkeypatch.setattr("djinn_lab.cli.simulate._own_history", lambda jobs: trace)
    assert run("pool", "--policy", "fifo") == 0
    assert "with the fetches between cells that djinn-lab jobs leaves out" in capsys.readouterr().out
