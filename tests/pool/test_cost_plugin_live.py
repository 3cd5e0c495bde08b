"""Cost estimators of installed packages: the one in examples/, and others that misbehave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from device_kind import KIND, only_cpus
from example_package import EXAMPLE, import_from, install, write_package
from pool_kit import Client, act, rest, running_pool
from real_pool import PoolUnderTest, have_measured

from djinn_lab.cli.app import main
from djinn_lab.client.rest import PoolClient
from djinn_lab.config import BUILT_IN, save_profile
from djinn_lab.errors import OptionError
from djinn_lab.jobs.run_times import COMPARED_MIN, UNCOMPARED_SPREAD
from djinn_lab.pool.devices.estimator_plugin import load_estimator
from djinn_lab.protocol.rest.costs import EstimatorView

pytestmark = pytest.mark.processes

GROUP = "djinn_lab.cost_estimators"
OVERHEAD_S = 0.25
"""Of the example."""
BROKEN = """
import sys
import time


class Broken:
    \"\"\"Wrong in another way for each number of ops.\"\"\"

    def seconds(self, work, device):
        wrong = {2: float("nan"), 3: -1.0, 4: float("inf"), 5: "soon", 6: 1e300, 7: 1e-320, 8: True}
        if work.ops == 1:
            raise RuntimeError("no such \\x1b\\nkernel")
        if work.ops == 10:
            sys.exit("enough")
        if work.ops == 11:
            return None
        return wrong.get(work.ops, 10**400)


class Slow:
    def seconds(self, work, device):
        time.sleep(0.005)
        return 1.0


class Silent:
    \"\"\"Without the method.\"\"\"


class Unready:
    def __init__(self):
        raise LookupError("no table for this machine")
"""
REFUSALS = {
    1: "it raised RuntimeError: no such kernel",
    2: "it returned nan seconds",
    3: "it returned -1 seconds",
    4: "it returned inf seconds",
    5: "it returned an object of type str instead of seconds",
    6: "it returned 1e+300 seconds, above 1e+09",
    7: "it returned 9.99989e-321 seconds for 7 ops",
    8: "it returned an object of type bool instead of seconds",
    9: "it returned a number of seconds above 1e+09",
    10: "it raised SystemExit: enough",
}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example and the misbehaving estimators are installed. Two packages offer ``twice``."""
    place = tmp_path_factory.mktemp("plugins")
    offers = {"broken": "Broken", "slow": "Slow", "silent": "Silent", "unready": "Unready", "twice": "Slow"}
    broken = write_package(place, "broken_estimators", BROKEN, GROUP, offers)
    gone = {"gone": "Gone", "twice": "Other"}
    other = write_package(place, "other_estimators", "class Other: ...\n", GROUP, gone)
    return install(place, EXAMPLE, broken, other)


@pytest.fixture(autouse=True)
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_from(monkeypatch, site)
    monkeypatch.setenv("COLUMNS", "160")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


def estimator_of(api: PoolClient) -> EstimatorView:
    found = api.costs().estimator
    assert found is not None
    return found


@only_cpus("the estimator of the examples predicts theirs")
def test_installed_estimator_predicts_convolutions_until_runs_are_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    running = PoolUnderTest(tmp_path, f"{KIND}:1", cost_estimator="convolution-overhead")
    with running as pool, pool.session() as session:
        image, weight = torch.rand(1, 3, 16, 16), torch.rand(8, 3, 3, 3)

        def predicted_s(convolutions: int) -> float:
            with session.capture() as captured:
                x = image + 1
                for _ in range(convolutions):
                    x = x + torch.conv2d(image, weight, padding=1).sum()
            job = captured.report.job
            assert job is not None
            found = pool.rest.job(job).predicted_s
            assert found is not None
            return found

        assert "convolution-overhead of djinn-convolutions 1.0" in printed(capsys, "pool", "costs")
        have_measured(pool.rest)
        assert predicted_s(0) < OVERHEAD_S
        assert 2 * OVERHEAD_S < predicted_s(2) < 3 * OVERHEAD_S
        assert predicted_s(2) < OVERHEAD_S  # it ran
        found = estimator_of(pool.rest)
        assert found.predicted > 0
        assert found.asked > found.predicted
        assert found.refused == 0
        assert "It predicted" in printed(capsys, "pool", "costs")
        with pytest.raises(SystemExit):
            main(["pool", "start", "--cost-estimator", "built-in"])
        assert "the pool has convolution-overhead" in " ".join(capsys.readouterr().err.split())


def predictions(api: PoolClient, client: Client) -> Iterator[float | None]:
    """Run a new program for each number of ops, and yield what was predicted."""
    have_measured(api)
    for ops in (*REFUSALS, 11):
        result = client.run(act(*[""] * ops))
        assert result.outcome == "done"
        yield api.job(result.job).predicted_s


def test_broken_estimator_is_refused_named_and_replaced_by_the_built_in_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain, broken = tmp_path / "plain", tmp_path / "broken"
    for place in (plain, broken):
        place.mkdir(mode=0o700)
    with running_pool(plain, "cpu:1") as info, Client(info) as client:
        usual = list(predictions(rest(info), client))
        assert rest(info).costs().estimator is None
    with running_pool(broken, "cpu:1", cost_estimator="broken") as info, Client(info) as client:
        api = rest(info)
        refused, seen = 0, []
        for ops, seconds in enumerate(predictions(api, client), start=1):
            seen.append(seconds)
            found = estimator_of(api)
            assert (found.refused > refused) == (ops in REFUSALS)
            refused = found.refused
            assert found.last_refusal == REFUSALS.get(ops, REFUSALS[10])
        assert seen == usual
        shown = printed(capsys, "pool", "costs")
        assert "Cost estimator broken of broken_estimators 1.0" in shown
        assert f"Refused {refused} times" in shown
        assert "it raised SystemExit: enough." in shown
    log = (broken / "pool.log").read_text()
    assert log.count("The cost estimator broken of broken_estimators 1.0 was refused: it raised Runtime") == 1
    assert log.count("was refused") == 1


def test_spread_of_one_estimator_says_nothing_of_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_pool(tmp_path, "cpu:1") as info, Client(info) as client:
        api = rest(info)
        have_measured(api)
        for ops in range(1, 2 + COMPARED_MIN):
            client.run(act(*["sleep 0.01"] * ops))
        learned = api.costs().graph_spread
        assert learned != UNCOMPARED_SPREAD
    with running_pool(tmp_path, "cpu:1", cost_estimator="slow") as info, Client(info) as client:
        assert rest(info).costs().graph_spread == UNCOMPARED_SPREAD
        assert rest(info).job(client.run(act("", "")).job).predicted_s == 1.0
        assert "It takes longer than 1.0 ms" in printed(capsys, "pool", "costs")
    with running_pool(tmp_path, "cpu:1") as info:
        assert rest(info).costs().graph_spread == pytest.approx(learned)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "convolution-overheads",
            "There is no cost estimator 'convolution-overheads' (did you mean 'convolution-overhead'?)",
        ),
        ("", "Installed packages offer: broken, convolution-overhead, gone, silent, slow, twice, unready."),
        ("silent", "The cost estimator 'silent' of broken_estimators 1.0 has no method seconds"),
        ("unready", "'unready' of broken_estimators 1.0 cannot be made: LookupError: no table for this"),
        ("gone", "'gone' of other_estimators 1.0 cannot be made: AttributeError"),
        ("twice", "offer the cost estimator 'twice': broken_estimators 1.0, other_estimators 1.0"),
    ],
)
def test_pool_does_not_start_with_an_estimator_that_cannot_be_used(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["pool", "start", f"--cost-estimator={name}"])
    assert ended.value.code == 1
    assert words in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_profile_names_the_estimator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DJINN_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("DJINN_CONFIG_DIR", str(tmp_path))
    profile = BUILT_IN["basic_inference"].with_text("pool.cost_estimator", "not-installed")
    save_profile(profile)
    with pytest.raises(SystemExit):
        main(["pool", "start", "--profile", profile.name])
    assert "There is no cost estimator 'not-installed'" in capsys.readouterr().err


def test_built_in_needs_no_package() -> None:
    assert load_estimator("built-in") is None
    with pytest.raises(OptionError, match="no cost estimator 'built-ins'"):
        load_estimator("built-ins")
