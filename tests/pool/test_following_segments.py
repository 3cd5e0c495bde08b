"""Segments that a client sends while the one before them runs."""

from __future__ import annotations

import pytest
from blake3 import blake3
from pool_kit import META, Client, act, held, read, rest, upload
from websockets.exceptions import ConnectionClosed

from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo


def follow(client: Client, job: str, segment: int, *verbs: str, final: bool = False, first: int = 10) -> None:
    client.submit(act(*verbs, first=first), job, segment, final, follows=True)


def outcomes(client: Client, job: str, count: int) -> list[tuple[int, str]]:
    results = [client.result(job) for _ in range(count)]
    return [(result.segment, result.outcome) for result in results]


def test_followers_run_in_order_after_the_segment_before_them(client: Client) -> None:
    job = client.submit(act("sleep 0.2", keep=True), final=False)
    follow(client, job, 1, "sleep 0.05")
    client.submit(read(held(1)), job, 2, follows=True)
    assert outcomes(client, job, 3) == [(0, "done"), (1, "done"), (2, "done")]


def test_time_of_a_follower_begins_when_the_segment_before_it_is_done(client: Client) -> None:
    job = client.submit(act("sleep 3"), final=False)
    follow(client, job, 1, "", final=True)
    before, follower = client.result(job), client.result(job)
    assert sum(before.stages.values()) == pytest.approx(before.pool_s, abs=1e-2)
    assert sum(follower.stages.values()) < follower.pool_s / 2


def test_followers_of_a_failed_segment_are_skipped(client: Client) -> None:
    job = client.submit(act("sleep 0.1", "fail it broke"), final=False)
    follow(client, job, 1, "")
    follow(client, job, 2, "", final=True)
    assert outcomes(client, job, 3) == [(0, "failed"), (1, "skipped"), (2, "skipped")]
    assert client.run(act("")).outcome == "done"


def test_followers_of_a_cancelled_segment_are_skipped(client: Client) -> None:
    job = client.submit(act("sleep 20"), final=False)
    follow(client, job, 1, "sleep 20", final=True)
    client.until(job, "RUNNING")
    client.send(messages.CancelJob(job))
    assert outcomes(client, job, 2) == [(0, "cancelled"), (1, "skipped")]


def test_a_follower_sent_after_the_failure_is_skipped_too(client: Client) -> None:
    job = client.submit(act("fail it broke"), final=False)
    assert client.result(job).outcome == "failed"
    follow(client, job, 1, "", final=True)
    assert client.result(job).outcome == "skipped"


def test_a_follower_sent_after_the_end_runs(client: Client) -> None:
    job = client.submit(act(""), final=False)
    assert client.result(job).outcome == "done"
    follow(client, job, 1, "", final=True)
    assert client.result(job).outcome == "done"


def test_a_refused_follower_is_answered_in_its_turn(client: Client) -> None:
    job = client.submit(act("sleep 0.2"), final=False)
    client.submit(b"no program", job, 1, follows=True)
    follow(client, job, 2, "", final=True)
    assert outcomes(client, job, 3) == [(0, "done"), (1, "failed"), (2, "skipped")]


def test_blobs_of_a_follower_are_kept_until_it_runs(client: Client) -> None:
    data = bytes(range(META.nbytes))
    digest = blake3(data).hexdigest()
    job = client.submit(act("sleep 3"), final=False)
    client.until(job, "RUNNING")
    assert client.missing(digest) == [digest]
    client.write_blob(digest, data)
    client.submit(read(upload(20, digest)), job, 1, follows=True)
    assert client.missing(digest) == []  # of a cell to come
    assert client.result(job).outcome == "done"
    assert client.result(job).fetched[0].data == data


def test_too_many_followers_end_the_connection_with_a_reason(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as client:
        job = client.submit(act("sleep 1"), final=False)
        for segment in range(1, messages.FOLLOWERS_MAX + 2):
            follow(client, job, segment, "")
        with pytest.raises((AssertionError, ConnectionClosed), match="sent ahead"):
            client.result(job)


def test_followers_of_a_client_that_vanishes_are_forgotten(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as client:
        job = client.submit(act("sleep 3"), final=False)
        follow(client, job, 1, "sleep 20", final=True)
        client.until(job, "RUNNING")
        session = client.session
    with Client(shared_pool, session=session) as again:
        assert again.run(act("")).outcome == "done"
        assert rest(shared_pool).job(job).segments == 1


def test_two_sessions_take_turns_between_followers(shared_pool: RuntimeInfo) -> None:
    with Client(shared_pool) as ann, Client(shared_pool) as bob:
        jobs = [one.submit(act("sleep 0.1", first=1), final=False) for one in (ann, bob)]
        for one, job in zip((ann, bob), jobs, strict=True):
            follow(one, job, 1, "sleep 0.1")
            follow(one, job, 2, "", final=True)
        for one, job in zip((ann, bob), jobs, strict=True):
            assert outcomes(one, job, 3) == [(0, "done"), (1, "done"), (2, "done")]
