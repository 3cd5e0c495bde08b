"""The energy of cells, from the power that operators declare for devices."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from pool_kit import Client, act, http, rest, running_pool

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import OptionError
from djinn_lab.jobs.decision import QueuePolicy
from djinn_lab.pool.bookkeeping.records import JobRecord
from djinn_lab.protocol.rest.jobs import JobUsage
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.processes

PREDICTED = re.compile(r"\(about ([\d.]+) J, at the 700 W that operators say its device draws\)")
ESTIMATE = re.compile(r"It used about ([\d.]+) (k?)J \(not measured")


def djinn_lab(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "djinn_lab.cli", *arguments]
    wide = {**os.environ, "COLUMNS": "300"}
    return subprocess.run(command, env=wide, capture_output=True, text=True, check=False)


def used(chief: PoolClient, job: str) -> JobUsage:
    return next(one for one in chief.usage() if one.job == job)


def estimated_j(sentence: str) -> float:
    found = ESTIMATE.search(sentence)
    assert found is not None, sentence
    return float(found[1]) * (1000 if found[2] else 1)


def test_energy_is_reported_for_devices_with_a_declared_power(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, closing(rest(pool)) as chief:
        unknown = ann.submit(act("sleep 0.2"), target="cpu:0")
        assert ann.result(unknown).outcome == "done"
        assert "used about" not in chief.why(unknown).sentence
        assert used(chief, unknown).used_j is None

        chief.describe_device("cpu:0", watts=700)
        known = ann.submit(act("sleep 0.2"), target="cpu:0")
        assert ann.result(known).outcome == "done"
        line = used(chief, known)
        assert line.used_j == pytest.approx(700 * line.run_s)
        assert line.used_j >= 700 * 0.2
        assert estimated_j(chief.why(known).sentence) == pytest.approx(line.used_j, rel=0.01)
        assert chief.job(known).used_j == line.used_j

        again = ann.submit(act("sleep 0.2", "sleep 30"), target="cpu:0")
        ann.until(again, "RUNNING")
        chief.cancel(again)
        assert ann.result(again).outcome == "cancelled"
        assert estimated_j(chief.why(again).sentence) > 0


def test_what_is_predicted_in_seconds_is_predicted_in_joules(pool: RuntimeInfo) -> None:
    with Client(pool) as ann, closing(rest(pool)) as chief:
        assert ann.run(act("sleep 1"), target="cpu:0").outcome == "done"
        chief.describe_device("cpu:1", watts=700)
        for device in ("cpu:1", "cpu:0"):
            job = ann.submit(act("sleep 1"), target=device)
            ann.until(job, "RUNNING")
            sentence, predicted = chief.why(job).sentence, chief.job(job).predicted
            assert "on devices" in sentence
            shown = PREDICTED.search(sentence)
            assert (shown is not None) == (device == "cpu:1"), sentence
            if shown is not None:
                assert float(shown[1]) == pytest.approx(700 * predicted.device_s, abs=0.1)
            assert ann.result(job).outcome == "done"


def test_the_command_says_shows_and_forgets_what_a_device_draws(pool: RuntimeInfo) -> None:
    with Client(pool) as ann:
        said = djinn_lab("device", "cpu:0", "--watts", "700", "--price", "2")
        assert said.stdout.strip() == "cpu:0: kind=cpu; 2 an hour; draws 700 W when busy."
        kept = djinn_lab("device", "cpu:0", "--label", "gpu=big")
        assert kept.stdout.strip() == "cpu:0: gpu=big, kind=cpu; 2 an hour; draws 700 W when busy."
        assert ann.run(act("sleep 0.1"), target="cpu:0").outcome == "done"
        assert re.search(r"m?s, ~[\d.]+ J", djinn_lab("jobs").stdout)
        for wrong in ("-1", "nan", "inf"):
            refused = djinn_lab("device", "cpu:0", "--watts", wrong)
            assert refused.returncode != 0
            assert "Traceback" not in refused.stderr
        assert djinn_lab("device", "cpu:0").stdout == kept.stdout
        assert djinn_lab("device", "cpu:0", "--clear").stdout.strip() == "cpu:0: kind=cpu."


@pytest.mark.parametrize("watts", [-1.0, math.inf, math.nan])
def test_invalid_watts_are_refused(shared_pool: RuntimeInfo, watts: float) -> None:
    with closing(rest(shared_pool)) as chief:
        with pytest.raises(OptionError, match="watts"):
            chief.describe_device("cpu:0", watts=watts)
        assert chief.status().devices[0].watts is None


def test_a_later_pool_knows_what_a_device_draws(tmp_path: Path) -> None:
    with running_pool(tmp_path) as info, closing(rest(info)) as chief:
        chief.describe_device("cpu:0", watts=250)
        chief.describe_device("cpu:1", watts=0)
    with running_pool(tmp_path) as info, closing(rest(info)) as chief:
        assert [device.watts for device in chief.status().devices] == [250, 0]
        chief.describe_device("cpu:0")
    with running_pool(tmp_path) as info, closing(rest(info)) as chief:
        assert [device.watts for device in chief.status().devices] == [None, 0]


def test_energy_has_a_price_in_a_policy_over_the_wire(pool: RuntimeInfo) -> None:
    """Of two devices at one price, the one that draws less is used, once energy has a price."""
    with closing(rest(pool)) as chief:
        chief.describe_device("cpu:0", watts=700)
        for price, device in ((0.0, "cpu:0"), (0.3, "cpu:1")):
            chief.set_policy(QueuePolicy("green", within="arrival", energy_price_per_kwh=price))
            with Client(pool) as ann:
                job = ann.submit(act(""))
                assert ann.result(job).outcome == "done"
                assert chief.job(job).device == device
                session = ann.session
            chief.close_session(session)
        with http(pool) as web:
            wrong = {"policy": {"name": "green", "energy_price_per_kwh": -1.0}}
            answer = web.put("/v1/queue/policy", json=wrong)
        assert answer.status_code == 422
        assert "energy_price_per_kwh" in answer.json()["detail"]


def test_gang_energy_sums_its_devices_and_is_unknown_if_one_is() -> None:
    both, one = (JobRecord("job", "session", "ann", "In [1]", "NORMAL", 0.0) for _ in range(2))
    both.add_energy(700, 2.0)
    both.add_energy(300, 1.0)
    assert both.view().used_j == 1700
    for watts in (700, None, 300):
        one.add_energy(watts, 2.0)
    assert one.view().used_j is None
