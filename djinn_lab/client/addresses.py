"""Several addresses for one pool: those of all that may lead on its database."""

from __future__ import annotations

import time
from enum import Enum

import httpx

from djinn_lab.client.trust import public_context, tls_context
from djinn_lab.client.ways import proxy_for
from djinn_lab.errors import PoolNotFound, PoolSilent, PoolWaits
from djinn_lab.protocol.runtime_file import (
    read_crashed,
    read_runtime,
    start_waits_for,
    supervisor_process,
)

ANSWER_TIMEOUT_S = 3.0
TAKE_OVER_S = 20.0
"""How long standby pools may need to see that no pool leads, and to start their workers."""
RETRY_S = 0.25
START_ADVICE = "Start one with `djinn-lab pool start`, then run the cell again."


class PoolState(Enum):
    LEADS = "leads"
    STANDS_BY = "stands by"
    SILENT = "does not answer"


def leader_url(addresses: str, certificate: str | None = None) -> str:
    """The URL of the pool that leads, of those separated by commas; a single one is not asked.
    ``certificate``: as of :func:`djinn_lab.client.trust.tls_context`. Raises PoolNotFound when none does, nor
    takes over soon."""
    urls = [url.strip().rstrip("/") for url in addresses.split(",") if url.strip()]
    if len(urls) == 1:
        return urls[0]
    deadline_s = time.monotonic() + TAKE_OVER_S
    while True:
        states = {url: _state(url, certificate) for url in urls}
        found = next((url for url, state in states.items() if state is PoolState.LEADS), None)
        if found is not None:
            return found
        if PoolState.STANDS_BY not in states.values() or time.monotonic() > deadline_s:
            answers = ", ".join(f"{url} {state.value}" for url, state in states.items())
            raise PoolNotFound(f"no pool leads: {answers or 'no address was given'}.", START_ADVICE)
        time.sleep(RETRY_S)


def _state(url: str, certificate: str | None) -> PoolState:
    try:
        verify = tls_context(url, certificate) or public_context()
        answer = httpx.get(
            f"{url}/v1/alive", timeout=ANSWER_TIMEOUT_S, trust_env=False, verify=verify, proxy=proxy_for(url)
        )
        leads = answer.json().get("leads", True) if answer.is_success else None
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError, PoolNotFound):
        return PoolState.SILENT
    if leads is None:
        return PoolState.SILENT
    return PoolState.LEADS if leads else PoolState.STANDS_BY


def restart_under_way() -> PoolSilent | None:
    """Return what to raise where this machine's pool is being started, for the first time or again after a
    crash, PoolWaits where something keeps it from that; None where it is not."""
    supervisor = supervisor_process()
    if supervisor is None or read_runtime() is not None:
        return None
    if reason := start_waits_for():
        return PoolWaits(
            f"The pool is down, and cannot start again now: {reason}",
            "It starts by itself as soon as that is mended, and sessions and cells continue; "
            "`djinn-lab pool stop` gives it up.",
        )
    if read_crashed() is None:
        return PoolSilent(
            f"The pool on this machine starts (process {supervisor}).",
            "That takes longer where the machine is busy. Cells wait for it; try anything else again.",
        )
    return PoolSilent(
        f"The pool's server crashed, and is being started again (by process {supervisor}).",
        "Sessions and cells continue then. The end of pool.log has the reason.",
    )
