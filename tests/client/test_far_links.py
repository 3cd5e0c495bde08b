"""A client of another host, over a link that is slow and breaks: what arrived stays, and cells go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from real_pool import PoolUnderTest

import djinn_lab
from benchmarks.far_link import FarLink
from djinn_lab.client import connection
from djinn_lab.client.session import Session
from djinn_lab.protocol.certificates import fingerprint
from djinn_lab.protocol.rest.transfers import PIECE_BYTES

pytestmark = pytest.mark.processes

PIECES = 24


@pytest.fixture(scope="module")
def far_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolUnderTest]:
    with PoolUnderTest(tmp_path_factory.mktemp("far"), tls=True) as running:
        yield running


@pytest.fixture
def link(far_pool: PoolUnderTest) -> Iterator[FarLink]:
    with FarLink(far_pool.info.url, delay_s=0.002, rate=50e6) as made:
        yield made


@pytest.fixture
def session(far_pool: PoolUnderTest, link: FarLink, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(connection, "host_id", lambda: "another host")
    info = far_pool.info
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
