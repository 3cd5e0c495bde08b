"""Many sessions that submit many cells at once."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from pool_kit import Client, act, http, rest, running_pool

from djinn_lab.pool.api.read_limits import READ_BURST_S, READ_COST_S_MAX, READ_SHARE, ReadPace

SESSIONS, CELLS = 100, 10


@pytest.mark.processes
def test_a_thousand_cells_of_a_hundred_sessions_end_while_the_pool_answers(tmp_path: Path) -> None:
    ended: dict[str, str] = {}
    over = threading.Event()
    answered: list[int] = []

    def probe(url: str) -> None:
        with httpx.Client(base_url=url, trust_env=False, timeout=20) as client:
            while not over.wait(0.02):
                answered.append(client.get("/v1/alive").status_code)

    def read_all(client: Client, cells: list[str]) -> None:
        for job in cells:
            ended[job] = client.result(job).outcome

    with running_pool(tmp_path) as info, ExitStack() as stack:
        clients = [stack.enter_context(Client(info)) for _ in range(SESSIONS)]
        prober = threading.Thread(target=probe, args=(info.url,))
        prober.start()
        try:
            program = act("add", fetch=False)
            cells = [[client.submit(program) for _ in range(CELLS)] for client in clients]
            readers = [
                threading.Thread(target=read_all, args=(client, own))
                for client, own in zip(clients, cells, strict=True)
            ]
            for reader in readers:
                reader.start()
            with http(info) as client:
                report = client.get("/v1/queue").json()
            for reader in readers:
                reader.join()
        finally:
            over.set()
            prober.join()
        assert len(report["waiting"]) <= report["waiting_count"] <= SESSIONS * CELLS
        assert rest(info).queue().waiting_count == 0
    assert list(ended.values()) == ["done"] * (SESSIONS * CELLS)
    assert answered
    assert set(answered) == {200}


def test_a_reader_without_pause_gets_its_share_of_the_time() -> None:
    pace, now_s, answered_s = ReadPace(), 0.0, 0.0
    while now_s < 100.0:
        now_s += pace.wait_s(now_s)
        now_s += READ_COST_S_MAX
        pace.took(READ_COST_S_MAX)
        answered_s += READ_COST_S_MAX
    assert answered_s <= READ_BURST_S + READ_SHARE * 100.0 + 2 * READ_COST_S_MAX
    assert answered_s >= READ_SHARE * 100.0


def test_a_reader_that_pauses_never_waits() -> None:
    pace = ReadPace()
    for number in range(100):
        assert pace.wait_s(number * READ_COST_S_MAX / READ_SHARE) == 0.0
        pace.took(READ_COST_S_MAX)
