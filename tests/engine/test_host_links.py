"""How fast the links between hosts are decides whether a session moves."""

from __future__ import annotations

import pytest

from djinn_lab import memory
from djinn_lab.simulator.pool import MIB, SimulatedPool


def pool_of_two_hosts() -> SimulatedPool:
    """Return a pool of two devices, each on a host of its own."""
    return SimulatedPool(2, 1000, devices_per_host=1)


def device_of_second_cell(pool: SimulatedPool) -> str | None:
    """Return the device on which a session of 100 MiB runs a cell, where its own is busy for two seconds."""
    for name in ("ann", "bob"):
        pool.open(name)
    pool.submit("first", "ann", seconds=0.1, mib=100)
    pool.run(1.0)
    home = pool.engine.accounts.home_of("ann")
    pool.submit("busy", "bob", seconds=2.0, mib=1, target=home)
    pool.run(0.1)
    pool.submit("second", "ann", seconds=1.0, mib=100)
    pool.run(10.0)
    assert pool.outcomes["second"] == "DONE"
    return "home" if pool.engine.accounts.home_of("ann") == home else "away"


@pytest.mark.parametrize(("bytes_per_s", "runs"), [(1e12, "away"), (10.0 * MIB, "home")])
def test_a_session_moves_to_another_host_only_where_the_link_is_fast_enough(
    bytes_per_s: float, runs: str
) -> None:
    pool = pool_of_two_hosts()
    for host in ("host0", "host1"):
        pool.engine.handle(memory.HostLinkMeasured(pool.now_s, host, bytes_per_s))
    assert device_of_second_cell(pool) == runs


def test_seconds_to_another_host_are_those_of_the_slowest_known_link() -> None:
    pool = pool_of_two_hosts()
    pool.open("ann")
    pool.submit("first", "ann", seconds=0.1, mib=100)
    pool.run(1.0)
    accounts = pool.engine.accounts
    assert accounts.other_host_s("ann") == 0
    home = accounts.home_of("ann")
    own, other = ("host0", "host1") if home == "cpu:0" else ("host1", "host0")
    pool.engine.handle(memory.HostLinkMeasured(pool.now_s, own, 1.0))
    assert accounts.other_host_s("ann") == 0
    pool.engine.handle(memory.HostLinkMeasured(pool.now_s, other, 50.0 * MIB))
    assert accounts.other_host_s("ann") == pytest.approx(accounts.session_bytes("ann") / (50 * MIB))
    assert accounts.other_host_s("nobody") == 0
