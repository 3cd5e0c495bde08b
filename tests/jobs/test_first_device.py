"""The device at which a session begins, by its profile's objective and reserve."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.jobs.placement.first_device import (
    SAME_SPEED,
    DeviceFit,
    DeviceOption,
    choose_first_device,
)


def option(
    device: str,
    load: int = 0,
    filled: float = 0.1,
    run_s: float | None = 1.0,
    price: float = 0.0,
    watts: float | None = None,
) -> DeviceOption:
    return DeviceOption(device, load, price, fit=DeviceFit(device, filled, run_s), watts=watts)


def chosen(*options: DeviceOption, objective: str = "latency", reserve: float = 0.05) -> tuple[str, str]:
    found = choose_first_device(options, objective, reserve)  # type: ignore[arg-type]
    assert found is not None
    return found.device, found.why


def test_least_load_then_price_then_name_where_devices_are_alike() -> None:
    assert chosen(option("a", load=2), option("b", load=1), option("c", load=1)) == ("b", "")
    assert chosen(option("a", price=2.0), option("b", price=1.0)) == ("b", "")
    assert choose_first_device((), "latency", 0.05) is None


def test_memory_takes_the_emptiest_and_says_so() -> None:
    full, empty = option("a", filled=0.61), option("b", load=3, filled=0.12)
    assert chosen(full, empty) == ("a", "")
    device, why = chosen(full, empty, objective="memory")
    assert device == "b"
    assert why == (
        "b instead of a: less of its memory is used with this cell (12%, 61% there), which the objective "
        "memory asks for."
    )
    assert chosen(option("a", filled=0.61), option("b", load=3, filled=0.62), objective="memory") == ("a", "")


def test_a_device_that_keeps_the_reserve_free_goes_before_an_idle_one() -> None:
    tight, roomy = option("a", filled=0.85), option("b", load=4, filled=0.5)
    assert chosen(tight, roomy) == ("a", "")
    device, why = chosen(tight, roomy, reserve=0.2)
    assert device == "b"
    assert "less than 20% of the memory would stay free (85% would be used, 50% here)" in why
    assert chosen(tight, option("b", load=4, filled=0.9), reserve=0.2) == ("a", "")


def test_latency_takes_a_much_faster_device_unless_too_many_wait_there() -> None:
    slow, fast = option("a", run_s=3.0), option("b", load=1, run_s=1.0)
    device, why = chosen(slow, fast)
    assert device == "b"
    assert "predicted to run 3.0 times as fast" in why
    assert chosen(slow, option("b", load=3, run_s=1.0)) == ("a", "")
    assert chosen(slow, option("b", run_s=3.0 / SAME_SPEED * 1.01, load=1)) == ("a", "")
    assert chosen(option("a", run_s=None), option("b", run_s=0.001)) == ("a", "")


def test_energy_takes_the_fewest_joules_and_says_so_in_numbers() -> None:
    fast, thrifty = option("a", run_s=1.0, watts=700), option("b", load=3, run_s=4.0, watts=65)
    assert chosen(fast, thrifty) == ("a", "")
    device, why = chosen(fast, thrifty, objective="energy")
    assert device == "b"
    assert why == (
        "b instead of a: the cell is predicted to use 260.0 J (4.0 s at 65 W), 700.0 J (1.0 s at 700 W) "
        "there, which the objective energy asks for."
    )
    assert chosen(fast, option("b", run_s=11.0, watts=65), objective="energy") == ("a", "")


def test_energy_names_devices_whose_power_is_unknown_and_guesses_none() -> None:
    unknown, known = option("a", run_s=0.001), option("b", run_s=1.0, watts=65)
    device, why = chosen(unknown, known, objective="energy")
    assert device == "b"
    assert "65.0 J (1.0 s at 65 W), an unknown energy there" in why
    assert "Energy was not compared on a: how much it draws is unknown" in why
    device, why = chosen(option("a", run_s=3.0), option("b", run_s=1.0), objective="energy")
    assert device == "b"
    assert "3.0 times as fast, which the objective latency asks for" in why
    assert "Energy was not compared on a, b, so the objective latency counted" in why
    untimed = chosen(option("a", run_s=None, watts=65), option("b", watts=900), objective="energy")
    assert untimed[0] == "b"
    assert "not compared on a: no run time is predicted there" in untimed[1]
    assert chosen(unknown, objective="energy") == ("a", "")


OPTIONS = st.lists(
    st.builds(
        option,
        device=st.sampled_from([f"cpu:{number}" for number in range(8)]),
        load=st.integers(0, 4),
        filled=st.floats(0.0, 2.0),
        run_s=st.none() | st.floats(1e-6, 1e3),
        price=st.floats(0.0, 3.0),
        watts=st.none() | st.floats(0.0, 1e3),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one.device,
)


@given(OPTIONS, st.sampled_from(["latency", "memory", "energy"]), st.floats(0.0, 0.9), st.randoms())
def test_choice_depends_on_no_order_and_keeps_the_reserve_where_any_can(
    options: list[DeviceOption], objective: str, reserve: float, chance: random.Random
) -> None:
    first = chosen(*options, objective=objective, reserve=reserve)
    shuffled = list(options)
    chance.shuffle(shuffled)
    assert chosen(*shuffled, objective=objective, reserve=reserve) == first
    fits = {one.device: one.fit for one in options}
    roomy = {name for name, fit in fits.items() if fit is not None and fit.filled <= 1 - reserve}
    assert not roomy or first[0] in roomy
