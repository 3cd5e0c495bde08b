"""Parameters are chosen on earlier jobs and judged on later ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from djinn_lab.cli import main
from djinn_lab.errors import OptionError
from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.request import Demand
from djinn_lab.pool.policy_file import read_policy, write_policy
from djinn_lab.protocol.rest.jobs import JobUsage
from djinn_lab.simulator.queue import QueueSettings, Trace, TraceJob, equal_nodes
from djinn_lab.simulator.queue.tuning import EARLY_PART, halves, tune
from djinn_lab.simulator.traces.own_pool import trace_of_pool


def bursts(count: int, long_s: float = 100.0) -> Trace:
    """Every 300 s a long job and, right behind it, three short ones, on one device."""
    jobs = []
    for burst in range(count):
        at_s = 300.0 * burst
        jobs.append(TraceJob(f"l{burst}", at_s, long_s, Demand(), "ann", long_s))
        jobs += [TraceJob(f"s{burst}{n}", at_s + 1 + n, 2.0, Demand(), "bob", 2.0) for n in range(3)]
    return Trace("bursts", tuple(jobs), {"": equal_nodes(1, 1)})


def test_an_order_that_helps_on_both_halves_is_worth_it() -> None:
    heard: list[int] = []
    found = tune(bursts(20), policy=POLICIES["srtf"], settings=QueueSettings(estimates="exact"))
    assert found.tried > 5
    assert found.early.before.jobs + found.late.before.jobs == 80
    plain = replace(POLICIES["fifo"], preempts=("shorter",), backfill="always")
    found = tune(bursts(20), policy=plain, heard=lambda number, policy, figures: heard.append(number))
    assert found.worth_it
    assert found.policy.name == "fifo-tuned"
    assert {name: getattr(found.policy, name) for name in found.changed} == found.changed
    assert found.late.after.jct_mean_s < found.late.before.jct_mean_s
    assert heard == list(range(1, found.tried + 1))


def test_tuning_that_fits_the_past_only_is_rejected() -> None:
    """Later jobs come one by one: no order can help them."""
    early = bursts(10).jobs
    late = [TraceJob(f"x{n}", 10_000.0 + 300 * n, 50.0, Demand(), "ann", 50.0) for n in range(40)]
    trace = Trace("changed", (*early, *late), {"": equal_nodes(1, 1)})
    plain = replace(POLICIES["fifo"], preempts=("shorter",), backfill="always")
    found = tune(trace, policy=plain)
    assert found.changed
    assert found.early.wins
    assert found.late.gain == 0
    assert not found.worth_it


def test_halves_share_no_job_and_one_job_is_too_few() -> None:
    trace = bursts(5)
    early, late = halves(trace)
    assert [job.job for job in (*early.jobs, *late.jobs)] == [job.job for job in trace.jobs]
    assert len(tuple(early.jobs)) == int(20 * EARLY_PART)
    with pytest.raises(ValueError, match="too few jobs"):
        halves(replace(trace, jobs=tuple(trace.jobs)[:1]))


def test_the_command_writes_a_policy_that_a_pool_can_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, jobs = tmp_path / "tuned.json", tmp_path / "jobs.csv"
    lines = [f"{job.submit_s},{job.run_s},1,{job.account}" for job in bursts(20, 500.0).jobs]
    jobs.write_text("\n".join(["submit,duration,gpus,vc", *lines]) + "\n")
    options = ("--nodes", "1", "--devices", "1", "--estimates", "exact", "--policy", "easy")
    with pytest.raises(SystemExit) as ended:
        main(("simulate", str(jobs), *options, "--tune", str(out)))
    assert not ended.value.code
    assert "On the later jobs it completes" in capsys.readouterr().out
    policy = read_policy(str(out))
    assert not isinstance(policy, str)
    assert policy.name == "easy-tuned"
    assert policy.within != POLICIES["easy"].within


def test_a_policy_file_that_is_wrong_says_how(tmp_path: Path) -> None:
    assert read_policy("easy") == "easy"
    path = tmp_path / "mine.json"
    with pytest.raises(OptionError, match="cannot be read: No such file"):
        read_policy(str(path))
    path.write_text('{"name": "mine", "shorter": 2}')
    with pytest.raises(OptionError, match=r"no field shorter \(did you mean 'shorter_factor'\?\)"):
        read_policy(str(path))
    path.write_text('{"name": "mine", "within": "luck"}')
    with pytest.raises(OptionError, match="Invalid enum value 'luck'"):
        read_policy(str(path))
    path.write_text('{"name": "mine", "shorter_factor": 0.5}')
    with pytest.raises(OptionError, match="trade places for ever"):
        read_policy(str(path))
    write_policy(path, replace(POLICIES["default"], park_factor=1.0))
    with pytest.raises(OptionError, match="keeps its name"):
        read_policy(str(path))
    with pytest.raises(OptionError, match="'roulette' is not a queue policy"):
        read_policy("roulette")


def test_a_pools_own_history_is_a_trace() -> None:
    one = JobUsage("a", "ann", "ann", "HIGH", 5.0, 2.0, 1, 0.0, 0.0)
    rows = [one, replace(one, job="b", submitted_at=1.0, predicted_s=3.0), replace(one, priority="LOUD")]
    trace = trace_of_pool(rows, ["cpu:0", "cpu:1"])
    first, second = trace.jobs
    assert (first.job, first.estimate_s, second.job, second.rank) == ("b", 3.0, "a", 1)
    assert len(trace.nodes[""]) == 2
    assert [line.number for line in trace.broken] == [3]
