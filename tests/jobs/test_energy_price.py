"""Where energy has a price, a device's power is part of the cost of an hour on it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from djinn_lab.jobs import (
    DeviceAdded,
    DeviceDescribed,
    IllegalEvent,
    PolicyChanged,
    SegmentFinished,
    SegmentSubmitted,
    SessionClosed,
    StartSegment,
    Terms,
)
from djinn_lab.jobs.decision import POLICIES
from djinn_lab.jobs.machine.queue import JobQueue
from djinn_lab.jobs.resources import ResourceForecast, forecast_sentence
from djinn_lab.units import format_joules


def pool(*described: tuple[float, float | None]) -> JobQueue:
    """Return a queue over devices with these prices and watts."""
    queue = JobQueue()
    for number, (price, watts) in enumerate(described):
        queue.handle(DeviceAdded(0.0, f"cuda:{number}"))
        queue.handle(DeviceDescribed(0.0, f"cuda:{number}", price=price, watts=watts))
    return queue


def runs_on(queue: JobQueue, job: str, gang: int) -> list[str]:
    """Submit a cell, end it, close its session, and return its devices, the session's first."""
    event = SegmentSubmitted(
        0.0, job, 0, job, "ann", "NORMAL", 8, True, terms=Terms(gang=gang, gang_min=gang), devices=gang
    )
    started = next(one for one in queue.handle(event) if isinstance(one, StartSegment))
    queue.handle(SegmentFinished(0.0, job, 0, "done", 8))
    queue.handle(SessionClosed(0.0, job))
    return [started.device, *started.members]


@pytest.mark.parametrize("name", ["default", "ours"], ids=["name", "former-name"])
def test_the_device_that_draws_less_is_the_cheaper_one_once_energy_costs_something(name: str) -> None:
    queue = pool((0.0, 100), (0.1, 700), (0.2, 300))
    assert runs_on(queue, "before", 2) == ["cuda:0", "cuda:1"]
    green = replace(POLICIES["default"], name="green", energy_price_per_kwh=0.5)
    queue.handle(PolicyChanged(0.0, green))
    assert runs_on(queue, "alone", 1) == ["cuda:0"]
    assert runs_on(queue, "green", 2) == ["cuda:0", "cuda:2"]
    queue.handle(PolicyChanged(0.0, name))
    assert runs_on(queue, "after", 2) == ["cuda:0", "cuda:1"]


def test_device_without_known_watts_costs_its_price_alone() -> None:
    queue = pool((0.3, None), (0.0, 400))
    queue.handle(PolicyChanged(0.0, replace(POLICIES["default"], name="green", energy_price_per_kwh=1.0)))
    assert runs_on(queue, "any", 1) == ["cuda:0"]


@pytest.mark.parametrize("watts", [-1.0, math.inf, math.nan])
def test_invalid_watts_are_refused_and_change_nothing(watts: float) -> None:
    queue = pool((1.0, 250))
    with pytest.raises(IllegalEvent, match="watts"):
        queue.handle(DeviceDescribed(1.0, "cuda:0", watts=watts))
    (known,) = queue.snapshot().devices
    assert (known.price, known.watts) == (1.0, 250)


@pytest.mark.parametrize("price", [-0.1, math.inf, math.nan])
def test_invalid_energy_price_is_refused(price: float) -> None:
    with pytest.raises(ValueError, match="energy_price_per_kwh"):
        replace(POLICIES["default"], energy_price_per_kwh=price)


@given(st.none() | st.floats(0, 1e5), st.none() | st.floats(0, 2000))
def test_forecast_shows_joules_when_seconds_and_watts_are_known(
    seconds: float | None, watts: float | None
) -> None:
    sentence = forecast_sentence(ResourceForecast(seconds, 2**20), watts)
    known = seconds is not None and watts is not None
    assert (" W that operators say" in sentence) == known
    if seconds is not None and watts is not None:
        assert f"(about {format_joules(seconds * watts)}, at the {watts:g} W" in sentence
    assert "at most 1.0 MiB at once" in sentence


@pytest.mark.parametrize(
    ("joules", "text"), [(0.0, "0.0 J"), (999.0, "999.0 J"), (8400, "8.4 kJ"), (9e6, "2.5 kWh")]
)
def test_energy_for_people(joules: float, text: str) -> None:
    assert format_joules(joules) == text
