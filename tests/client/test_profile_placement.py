"""A profile's objective and reserve choose the device at which a session begins, on a real pool."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from real_pool import PoolUnderTest

import djinn_lab
from djinn_lab.client.explanation import explain_cell
from djinn_lab.client.session import Session
from djinn_lab.config import Profile, load_profile
from djinn_lab.errors import OptionError
from djinn_lab.scheduler import create_scheduler_for_workload

pytestmark = pytest.mark.processes
MIB = 2**20


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    """Two devices with one session each; that of ``cpu:0`` holds much."""
    place: Path = tmp_path_factory.mktemp("runtime")
    with (
        PoolUnderTest(place, memory_bytes=256 * MIB) as pool,
        pool.session() as full,
        pool.session() as small,
    ):
        held = []
        for session, elements in ((full, 40 * MIB), (small, 10)):
            with session.capture():
                held.append(torch.ones(elements, device="cuda"))
            assert held[-1].sum().item() > 0
        assert (full.device, small.device) == (f"{KIND}:0", f"{KIND}:1")
        yield pool


def first_cell(pool: PoolUnderTest, profile: Profile) -> tuple[str | None, str, list[str]]:
    """Return where a new session's first cell ran, how the profile changed that, and the explanation."""
    with closing(Session(pool.info.url, pool.info.token, profile, "new")) as session:
        with session.capture() as cell:
            value = torch.ones(1000).cuda() * 2
        assert value.sum().item() == 2000
        job = pool.rest.job(str(cell.report.job))
        return cell.report.device, job.placed, list(explain_cell(session, cell))


def test_profile_without_such_wishes_takes_the_first_of_equally_loaded(pool: PoolUnderTest) -> None:
    device, placed, lines = first_cell(pool, load_profile("basic_inference"))
    assert (device, placed) == (f"{KIND}:0", "")
    assert not any(line.startswith("Profile: ") for line in lines)


def test_objective_memory_takes_the_emptiest_device(pool: PoolUnderTest) -> None:
    device, placed, lines = first_cell(pool, load_profile("research_training"))
    assert device == f"{KIND}:1"
    assert placed.startswith(f"{KIND}:1 instead of {KIND}:0: less of its memory is used with this cell")
    assert f"Profile: {placed}" in lines
    assert any("begins on the device whose memory is filled least with it" in line for line in lines)


def test_reserve_passes_a_device_that_would_keep_too_little_free(pool: PoolUnderTest) -> None:
    profile = load_profile("llm_serving").with_text("scheduler.memory_reserve_fraction", "0.5")
    device, placed, _ = first_cell(pool, profile)
    assert device == f"{KIND}:1"
    assert "less than 50% of the memory would stay free" in placed


def test_objective_energy_takes_the_device_that_draws_less_and_says_so(pool: PoolUnderTest) -> None:
    green = load_profile("basic_inference").with_text("scheduler.objective", "energy")
    device, placed, _ = first_cell(pool, green)
    assert device == f"{KIND}:0"
    assert placed.startswith(
        f"Energy was not compared on {KIND}:0, {KIND}:1, so the objective latency counted"
    )
    pool.rest.describe_device(f"{KIND}:0", watts=700)
    pool.rest.describe_device(f"{KIND}:1", watts=65)
    device, placed, lines = first_cell(pool, green)
    assert device == f"{KIND}:1"
    assert placed.startswith(f"{KIND}:1 instead of {KIND}:0: the cell is predicted to use ")
    assert "at 65 W), " in placed
    assert any(
        "begins on the device where it is predicted to use the fewest joules" in line for line in lines
    )
    with closing(Session(pool.info.url, pool.info.token, green, "new")) as session:
        assert [profile.watts for profile in session.device_profiles(None)] == [700, 65]
    model, x = torch.nn.Linear(4, 2), torch.ones(1, 4)
    scheduler = create_scheduler_for_workload("basic_inference", objective="energy")
    for asked in (None, scheduler):  # the second run is predicted from the first
        with pool.session() as session:
            djinn_lab.execute_model(model, x, asked, session=session)
            session.pull(model)
            assert session.device == (f"{KIND}:0" if asked is None else f"{KIND}:1")
    for name in (f"{KIND}:0", f"{KIND}:1"):
        pool.rest.describe_device(name)


def test_execute_model_takes_the_profile_of_a_scheduler(pool: PoolUnderTest) -> None:
    model, x = torch.nn.Linear(4, 2), torch.ones(1, 4)
    expected = model(x).detach()
    roomy = create_scheduler_for_workload("llm_serving", reserve_fraction=0.5)
    for scheduler, device in ((None, f"{KIND}:0"), ("research_training", f"{KIND}:1"), (roomy, f"{KIND}:1")):
        with pool.session() as session:
            assert torch.equal(djinn_lab.execute_model(model, x, scheduler, session=session), expected)
            session.pull(model)
            assert session.device == device
    with pytest.raises(OptionError, match=r"no profile of the scheduler \(did you mean 'llm_serving'\?\)"):
        djinn_lab.execute_model(model, x, "llm_servin")
