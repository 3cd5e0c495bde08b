"""What a pool predicts of cells: from measured curves, from runs, and how sure it is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from device_kind import KIND, only_cpus
from pool_kit import Client, act, http, rest, running_pool
from real_pool import PoolUnderTest, have_measured, wait_for

from djinn_lab.cli.app import main
from djinn_lab.jobs.run_times import COMPARED_MIN, UNCOMPARED_SPREAD
from djinn_lab.protocol.rest.costs import DeviceCosts
from djinn_lab.protocol.rest.jobs import JobDetail
from djinn_lab.srg.program import TensorMeta


def off(job: JobDetail) -> float:
    assert job.predicted_s is not None
    assert job.measured_s is not None
    return abs(job.predicted_s / job.measured_s - 1)


def command(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_a_prediction_carries_a_spread_and_its_error_shrinks_after_runs(tmp_path: Path) -> None:
    """Here a graph says nothing of the seconds, so what comes of it is far off."""
    with running_pool(tmp_path, "cpu:1") as info, Client(info) as client:
        api = rest(info)
        have_measured(api)
        ran = [api.job(client.run(act("sleep 0.1")).job) for _ in range(2 + COMPARED_MIN)]
        assert ran[0].predicted_spread == UNCOMPARED_SPREAD
        assert off(ran[0]) > 0.9
        assert off(ran[-1]) < 0.5
        costs = api.costs()
        assert costs.runs == ()
        runs = api.costs(details=True).runs
        assert [run.source for run in runs] == ["graph"] + ["runs"] * (len(ran) - 1)
        assert [run.job for run in runs] == [job.job for job in ran]
        assert runs[-1].error == pytest.approx(abs(runs[-1].measured_s / runs[-1].predicted_s - 1))
        assert 1 <= costs.runs_spread < UNCOMPARED_SPREAD
        assert ran[-1].predicted_spread is not None
        assert ran[-1].predicted_spread < UNCOMPARED_SPREAD
    with running_pool(tmp_path, "cpu:1") as info:
        assert rest(info).costs().runs_spread == pytest.approx(costs.runs_spread)


def test_an_operator_has_a_device_measured_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with running_pool(tmp_path, "cpu:1") as info:
        api = rest(info)
        have_measured(api)
        command("pool", "calibrate")
        assert "cpu:0" in capsys.readouterr().out
        wait_for(lambda: api.costs().devices[0].measurements == 2)
        seen = api.costs(details=True)
        assert [change.what for change in seen.changes] == ["measured", "measured"]
        assert seen.devices[0].measured_at == seen.changes[-1].at
        assert "measured again" in seen.changes[-1].detail
        assert seen.curves[seen.devices[0].kind].find("matmul", "float32")
        assert api.costs().curves == {}
        command("pool", "costs")
        assert "cpu:0: 1 GFLOP/s" in capsys.readouterr().out


def test_pool_costs_say_how_many_graphs_were_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    with running_pool(tmp_path, "cpu:1") as info, Client(info) as client:
        command("pool", "costs")
        assert "Graphs: none yet." in capsys.readouterr().out
        first = 1
        for size in (8, 8, 9, 10):  # new, equal, and equal but for its size
            client.run(act("nothing", meta=TensorMeta("float32", (size,), (1,)), first=first))
            first += 1
        usage = rest(info).costs().plan_cache
        assert (usage.hits, usage.misses, usage.resized) == (1, 3, 2)
        assert usage == rest(info).status().plan_cache
        command("pool", "costs")
        assert "Graphs: 4, of which 25% were known, and 50% but for their sizes." in capsys.readouterr().out
        with http(info) as plain:
            metrics = plain.get("/metrics").text
        for outcome, count in (("hit", 1), ("resized", 2), ("miss", 1)):
            assert f'djinn_plan_cache{{outcome="{outcome}"}} {count}' in metrics


@pytest.mark.processes
@only_cpus("the times of ops are those of their launches elsewhere, and nothing is learned from them")
def test_a_real_device_is_measured_beside_cells_and_learns_from_them(tmp_path: Path) -> None:
    with PoolUnderTest(tmp_path, f"{KIND}:1") as pool, pool.session() as session:

        def cell() -> str:
            with session.capture() as captured:
                x = torch.eye(256)
                for _ in range(20):
                    x = torch.tanh(x @ x)
            job: str = captured.report.job
            return job

        def device() -> DeviceCosts:
            [found] = pool.rest.costs().devices
            return found

        pool.rest.calibrate(f"{KIND}:0")
        wait_for(lambda: device().measuring)
        cell()  # while it is being measured
        wait_for(lambda: device().measured)
        found = device()
        assert found.flops_per_s is not None
        assert found.flops_per_s > 1e8
        job = pool.rest.job(cell())
        assert job.predicted_s is not None
        assert job.predicted_spread is not None
        assert job.predicted_spread >= 1

        def learned() -> bool:
            cell()
            return {"matmul", "hyperbolic"} <= {family.family for family in device().families}

        wait_for(learned)
        assert all(family.error <= family.error_p90 for family in device().families)
        assert pool.rest.costs().unpriced == ()
        with session.capture():
            far = torch.cdist(torch.eye(8), torch.eye(8), compute_mode="donot_use_mm_for_euclid_dist")
        assert far.shape == (8, 8)
        [unpriced] = wait_for(lambda: pool.rest.costs().unpriced)
        assert (unpriced.op, unpriced.runs) == ("_cdist_forward", 1)
