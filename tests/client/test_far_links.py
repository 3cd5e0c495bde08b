"""A client of another host, over a link that is slow and breaks: what arrived stays, and cells go on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from device_kind import KIND
from impostor import Impostor
from real_pool import PoolUnderTest, wait_for
from typer.testing import CliRunner

import djinn_lab
from benchmarks.far_link import FarLink
from djinn_lab.cli.app import build_app
from djinn_lab.client import connection
from djinn_lab.client.session import Session
from djinn_lab.errors import CellCancelled
from djinn_lab.jobs import Terms
from djinn_lab.protocol import messages
from djinn_lab.protocol.certificates import fingerprint
from djinn_lab.protocol.messages import AWAY_S
from djinn_lab.protocol.rest.sessions import SessionView
from djinn_lab.protocol.rest.transfers import PIECE_BYTES
from djinn_lab.units import parse_bytes

pytestmark = pytest.mark.processes

PIECES = 24


@pytest.fixture
def link(tls_pool: PoolUnderTest) -> Iterator[FarLink]:
    with FarLink(tls_pool.info.url, delay_s=0.002, rate=50e6) as made:
        yield made


@pytest.fixture
def session(tls_pool: PoolUnderTest, link: FarLink, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(connection, "host_id", lambda: "another host")
    info = tls_pool.info
    made = djinn_lab.connect(link.url, token=info.token, certificate=fingerprint(info.certificate))
    assert made.welcome.blob_directory is None
    yield made
    made.close()


def tensor(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (PIECES * PIECE_BYTES,), dtype=torch.uint8, generator=generator)


def total_of(session: Session, plain: torch.Tensor) -> int:
    with session.capture():
        return int(plain.cuda().sum().item())


def test_an_upload_that_is_cut_continues_where_it_was(session: Session, link: FarLink) -> None:
    plain = tensor(1)
    before = link.up.nbytes
    link.cut_after(link.up, plain.nbytes * 3 // 4)
    assert total_of(session, plain) == int(plain.sum())
    assert link.accepted >= 4  # the session and its uploads, twice
    assert link.up.nbytes - before < 1.3 * plain.nbytes


def test_a_cell_waits_while_a_stranger_has_the_address_of_its_pool(
    tls_pool: PoolUnderTest, session: Session, link: FarLink, tmp_path: Path
) -> None:
    """As the login page of a hotel's network does, which ends every connection itself."""
    stranger = Impostor(tmp_path)

    def leave() -> None:
        wait_for(lambda: stranger.visits >= 2)
        link.lead_to(tls_pool.info.url)

    with session.capture():
        kept = torch.full((3,), 2.0).cuda()
    link.lead_to(stranger.url)
    link.cut()
    leaving = threading.Thread(target=leave)
    leaving.start()
    try:
        with session.capture():
            assert (kept + 1).tolist() == [3.0, 3.0, 3.0]
    finally:
        leaving.join()
        stranger.close()
    assert tls_pool.info.token.encode() not in stranger.heard


def test_an_upload_continues_where_it_was_when_the_pools_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "host_id", lambda: "another host")
    plain = tensor(6)
    with (
        PoolUnderTest(tmp_path, devices=f"{KIND}:1", restart=True) as pool,
        FarLink(pool.info.url, rate=plain.nbytes / 2) as link,
        closing(djinn_lab.connect(link.url, token=pool.info.token)) as session,
    ):

        def kill() -> None:
            wait_for(lambda: link.up.nbytes > plain.nbytes * 3 // 4)
            pool.kill()

        killing = threading.Thread(target=kill)
        killing.start()
        assert total_of(session, plain) == int(plain.sum())
        killing.join()
        assert link.accepted >= 4  # the session and its uploads, twice
        assert link.up.nbytes < 1.4 * plain.nbytes


def test_of_a_tensor_that_changed_only_the_changed_pieces_are_sent(session: Session, link: FarLink) -> None:
    plain = tensor(2)
    assert total_of(session, plain) == int(plain.sum())
    before = link.up.nbytes
    plain[5 * PIECE_BYTES + 7] += 1
    assert total_of(session, plain) == int(plain.sum())
    assert PIECE_BYTES < link.up.nbytes - before < 1.5 * PIECE_BYTES


def test_a_download_that_is_cut_continues_where_it_was(session: Session, link: FarLink) -> None:
    plain = tensor(3)
    with session.capture():
        lazy = plain.cuda() + 1
    before = link.down.nbytes
    link.cut_after(link.down, plain.nbytes * 3 // 4)
    assert torch.equal(session.fetch(lazy), plain + 1)
    assert link.down.nbytes - before < 1.4 * plain.nbytes


def small_tensors(count: int, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.rand(25_000, generator=generator) for _ in range(count)
    ]  # of 100 kB: too large for the program


def test_many_small_tensors_go_to_the_pool_and_back_in_a_few_round_trips(
    session: Session, link: FarLink
) -> None:
    plain = small_tensors(300, 10)
    before = link.turns
    with session.capture():
        doubled = [tensor.cuda() * 2 for tensor in plain]
    up, before = link.turns - before, link.turns
    found = session.fetch(doubled)
    down = link.turns - before
    assert all(torch.equal(mine, tensor * 2) for mine, tensor in zip(found, plain, strict=True))
    assert up < 30
    assert down < 30


def test_small_tensors_on_a_link_that_is_cut_are_not_sent_or_fetched_twice(
    session: Session, link: FarLink
) -> None:
    plain = small_tensors(150, 11)
    nbytes = sum(tensor.nbytes for tensor in plain)
    before = link.up.nbytes
    link.cut_after(link.up, nbytes // 2)
    with session.capture():
        doubled = [tensor.cuda() * 2 for tensor in plain]
    assert link.up.nbytes - before < 1.3 * nbytes
    before = link.down.nbytes
    link.cut_after(link.down, nbytes * 3 // 4)
    found = session.fetch(doubled)
    assert all(torch.equal(mine, tensor * 2) for mine, tensor in zip(found, plain, strict=True))
    assert link.down.nbytes - before < 1.4 * nbytes


def test_many_small_tensors_go_to_an_older_pool_one_by_one(
    session: Session, link: FarLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "CLIENT_VERSIONS", (1, 10))
    link.cut()
    plain = small_tensors(5, 13)
    with session.capture():
        doubled = [tensor.cuda() * 2 for tensor in plain]
    found = session.fetch(doubled)
    assert session.welcome.protocol_version == 10
    assert all(torch.equal(mine, tensor * 2) for mine, tensor in zip(found, plain, strict=True))


def test_a_cell_that_is_stopped_while_its_tensors_leave_keeps_the_notebook_whole(
    session: Session, link: FarLink
) -> None:
    plain = small_tensors(100, 14)
    link.up.rate = 0.5e6  # it would take 20 s
    before = link.up.nbytes

    def stop() -> None:
        wait_for(lambda: link.up.nbytes > before + 500_000)
        signal.raise_signal(signal.SIGINT)

    stopping = threading.Thread(target=stop)
    stopping.start()
    with pytest.raises((KeyboardInterrupt, CellCancelled)), session.capture():
        doubled = [tensor.cuda() * 2 for tensor in plain]
    stopping.join()
    assert link.up.nbytes - before < 0.9 * 100 * plain[0].nbytes
    link.up.rate = 50e6
    del doubled
    with session.capture():
        doubled = [tensor.cuda() * 2 for tensor in plain]
    found = session.fetch(doubled)
    assert all(torch.equal(mine, tensor * 2) for mine, tensor in zip(found, plain, strict=True))


def test_what_was_overwritten_after_it_was_read_arrives_as_it_was(session: Session) -> None:
    plain = small_tensors(1, 12)[0]
    before = plain.clone()
    with session.capture():
        doubled = plain.cuda() * 2
        plain.zero_()
        assert torch.equal(doubled.cpu(), before * 2)


def test_an_upload_over_a_link_that_breaks_again_and_again_arrives(session: Session, link: FarLink) -> None:
    plain = tensor(4)
    over = threading.Event()

    def cut_now_and_then() -> None:
        cut_at = link.up.nbytes
        while not over.wait(0.01):
            if link.up.nbytes > cut_at + 4 * PIECE_BYTES:
                link.cut()
                cut_at = link.up.nbytes

    cutting = threading.Thread(target=cut_now_and_then)
    cutting.start()
    try:
        assert total_of(session, plain) == int(plain.sum())
    finally:
        over.set()
        cutting.join()


def test_an_upload_says_bytes_rate_and_the_time_left(session: Session, link: FarLink) -> None:
    plain, seen = tensor(5), []
    link.up.rate = plain.nbytes / 2  # it takes two seconds
    session.executor.on_tick = lambda: seen.append(session.executor.uploads.state)
    assert total_of(session, plain) == int(plain.sum())
    states = [state for state in seen if state is not None]
    assert [state.sent for state in states] == sorted(state.sent for state in states)
    assert states[-1].sent == states[-1].total == plain.nbytes
    assert any(state.bytes_per_s and state.left_s for state in states)
    assert session.executor.uploads.state is None


def test_what_compresses_well_is_compressed_on_a_slow_link(session: Session, link: FarLink) -> None:
    link.up.rate = 5e6
    words = torch.arange(3 * PIECES * PIECE_BYTES // 8) % 1000  # as tokens are: most of each word is zeros
    before = link.up.nbytes
    assert total_of(session, words) == int(words.sum())
    assert link.up.nbytes - before < words.nbytes / 2


def steps(x: torch.Tensor, count: int, rounds: int = 3) -> list[float]:
    found = []
    for _ in range(count):
        for _ in range(rounds):
            x = (x @ x).clamp_(-1, 1) + 0.01
        found.append(x.sum().item())
    return found


def matrix() -> torch.Tensor:
    return torch.randn(200, 200, generator=torch.Generator().manual_seed(3))


def test_a_proxy_that_cuts_every_connection_after_a_while_costs_no_cell(
    session: Session, link: FarLink
) -> None:
    before = session.welcome.session
    link.cut_after_s = 0.4
    link.cut()
    with session.capture():
        found = steps(matrix().cuda(), 100, rounds=10)
    assert found == steps(matrix(), 100, rounds=10)
    assert link.accepted > 3
    assert session.welcome.session == before


def test_a_cell_whose_client_is_away_keeps_no_device(
    tls_pool: PoolUnderTest, session: Session, link: FarLink
) -> None:
    ended: list[int] = []

    def lose_the_way() -> None:
        own = session.welcome.session
        wait_for(
            lambda: any(job.session == own and job.ops_done > 20 for job in tls_pool.rest.jobs(limit=20))
        )
        link.refuse()
        command = [sys.executable, "-c", OTHER]
        ended.append(subprocess.run(command, env=tls_pool.environment, check=False).returncode)
        link.allow()

    losing = threading.Thread(target=lose_the_way)
    losing.start()
    with session.capture(terms=Terms(target="cpu:0")):
        mine = steps(matrix().cuda(), 300)
    losing.join()
    assert ended == [0]
    assert mine == steps(matrix(), 300)


OTHER = """
import torch, djinn_lab
from djinn_lab.jobs import Terms
with djinn_lab.connect().capture(terms=Terms(target="cpu:0")):
    assert torch.ones(3).cuda().sum().item() == 3
"""
CLIENT = """
import sys, torch, djinn_lab
sys.path[:0] = {folders!r}
from djinn_lab.cli.app import build_app
from djinn_lab.client import connection
from test_far_links import matrix, steps
connection.host_id = lambda: "another host"
torch.set_num_threads(1)  # as the pool does, so that the bits are equal
session = djinn_lab.connect({url!r}, token={token!r}, certificate={certificate!r})
print(session.welcome.session, flush=True)
with session.capture():
    found = steps(matrix().cuda(), 300)
assert found == steps(matrix(), 300)
print(session.welcome.session, flush=True)
"""


def test_a_client_that_slept_while_its_connection_died_continues_its_cell(
    tls_pool: PoolUnderTest, link: FarLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tls_pool.info
    known = fingerprint(info.certificate)
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    program = CLIENT.format(folders=folders, url=link.url, token=info.token, certificate=known)
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=tls_pool.environment, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        own = child.stdout.readline().strip()

        def done() -> int:
            return max(
                (job.ops_done for job in tls_pool.rest.jobs(limit=20) if job.session == own), default=0
            )

        wait_for(lambda: done() > 20)
        os.kill(child.pid, signal.SIGSTOP)
        link.cut()
        wait_for(lambda: [one.state for one in tls_pool.rest.sessions() if one.session == own] == ["away"])
        monkeypatch.setenv("DJINN_POOL", info.url)
        monkeypatch.setenv("DJINN_TOKEN", info.token)
        monkeypatch.setenv("DJINN_POOL_CERTIFICATE", known)
        (row,) = [
            line
            for line in CliRunner().invoke(build_app(), ["sessions"]).output.splitlines()
            if own[:8] in line
        ]
        assert "away" in row
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.readline().strip() == own
    assert child.returncode == 0


def test_an_idle_session_that_holds_nothing_waits_for_a_client_that_is_away(
    tls_pool: PoolUnderTest, session: Session, link: FarLink
) -> None:
    own = session.welcome.session
    link.refuse()

    def shown() -> SessionView:
        return next(one for one in tls_pool.rest.sessions() if one.session == own)

    wait_for(lambda: shown().state == "away")
    row = shown()
    assert row.ends_at is not None
    assert row.last_seen is not None
    assert row.ends_at - row.last_seen >= AWAY_S
    link.allow()
    assert total_of(session, torch.ones(3)) == 3
    assert session.welcome.session == own
    assert shown().state == "connected"


def test_the_doctor_measures_the_way_and_says_what_to_expect(
    tls_pool: PoolUnderTest, link: FarLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    link.up.delay_s = link.down.delay_s = 0.06
    link.up.rate, link.down.rate = 2e6, 4e6
    monkeypatch.setenv("DJINN_TOKEN", tls_pool.info.token)
    monkeypatch.setenv("DJINN_POOL_CERTIFICATE", fingerprint(tls_pool.info.certificate))
    done = CliRunner().invoke(build_app(), ["doctor", "--pool", link.url, "--json"])
    assert done.exit_code == 0, done.output
    found = {check["name"]: check for check in json.loads(done.output)}
    assert list(found) == ["pool", "round trip", "bandwidth", "cells"]
    assert found["round trip"]["status"] == "warn"  # at least 120 ms
    up, down = (parse_bytes(rate) for rate in re.findall(r"([\d.]+ .iB)/s", found["bandwidth"]["evidence"]))
    assert up < 2e6  # no faster than the link
    assert down < 4e6
    assert "costs a round trip: 100 of them" in found["cells"]["evidence"]
    assert found["cells"]["fix"]


def test_the_doctor_names_a_pool_that_does_not_answer(link: FarLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJINN_TOKEN", "x")
    monkeypatch.delenv("DJINN_POOL_CERTIFICATE", raising=False)
    link.refuse()
    done = CliRunner().invoke(build_app(), ["doctor", "--pool", link.url])
    assert done.exit_code == 1
    assert "No pool answers at" in done.output
