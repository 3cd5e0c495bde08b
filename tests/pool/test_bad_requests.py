"""Requests for what belongs to others or does not exist are refused, and the pool lives on."""

from __future__ import annotations

import uuid

import pytest
from blake3 import blake3
from pool_kit import (
    Client,
    Wire,
    act,
    http,
    new_user,
    read,
    rest,
    upload,
)
from websockets.exceptions import InvalidStatus

from djinn_lab.errors import AuthenticationError, CancelFailed, OptionError, PoolError, Refused
from djinn_lab.protocol import messages
from djinn_lab.protocol.runtime_file import RuntimeInfo

pytestmark = pytest.mark.usefixtures("pool_lives_on")


def test_names_that_lead_elsewhere(shared_pool: RuntimeInfo) -> None:
    with http(shared_pool) as web:
        for name in ("..%2f..%2fetc%2fpasswd", "%2e%2e", "owner.pid", "0" * 63, "0" * 63 + "G", "A" * 64):
            assert web.put(f"/v1/blobs/{name}", content=b"x").status_code in (404, 405, 422), name
            assert web.get(f"/v1/results/{name}").status_code in (404, 405, 422), name


def test_digest_of_another_users_blob_is_missing_until_uploaded(shared_pool: RuntimeInfo) -> None:
    data = uuid.uuid4().bytes
    digest = blake3(data).hexdigest()
    _, token = new_user(shared_pool)
    with Client(shared_pool) as mine, Client(shared_pool, token) as theirs:
        mine.write_blob(digest, data)
        assert mine.missing(digest) == []
        assert theirs.missing(digest) == [digest]
        result = theirs.run(read(upload(1, digest)))
        assert result.error is not None
        assert result.error.family == "missing_blobs"
        theirs.send(messages.BlobStored(digest, 16))
        assert theirs.missing(digest) == [digest]
        before = rest(shared_pool).status().blobs
        theirs.write_blob(digest, data)
        assert theirs.missing(digest) == []
        assert theirs.run(read(upload(1, digest))).fetched[0].data == data
        assert rest(shared_pool).status().blobs == before


def test_requests_for_jobs_of_others_are_refused(client: Client, shared_pool: RuntimeInfo) -> None:
    _, token = new_user(shared_pool)
    _, viewer_token = new_user(shared_pool, "viewer")
    _, operator_token = new_user(shared_pool, "operator")
    job = client.submit(act("sleep 20"))
    client.until(job, "RUNNING")
    stranger, viewer = rest(shared_pool, token), rest(shared_pool, viewer_token)
    for call in (stranger.program, stranger.graph, stranger.schedule, stranger.cancel, viewer.cancel):
        with pytest.raises(Refused):
            call(job)
    for close in (stranger.close_session, viewer.close_session):
        with pytest.raises(Refused):
            close(client.session)
    for client_of_others in (stranger, viewer, rest(shared_pool, operator_token)):
        for forbidden in (
            client_of_others.users,
            client_of_others.shutdown,
            lambda user=client_of_others: user.create_user("eve", "admin"),
        ):
            with pytest.raises(Refused):
                forbidden()
        assert client_of_others.job(job).code == ""
        assert client_of_others.job(job).events == ()
    with pytest.raises(InvalidStatus) as refused:
        Wire(shared_pool, viewer_token)
    assert refused.value.response.status_code == 403
    assert rest(shared_pool).job(job).code == "y = x + 1"
    assert rest(shared_pool, operator_token).cancel(job).job == job
    assert client.result(job).outcome == "cancelled"


def test_requests_for_missing_or_ended_jobs_are_refused(client: Client, shared_pool: RuntimeInfo) -> None:
    api = rest(shared_pool)
    for call in (api.job, api.program, api.graph, api.schedule, api.cancel, api.close_session):
        with pytest.raises(PoolError, match="There is no"):
            call("nothing")
    job = client.run(act("")).job
    with pytest.raises(CancelFailed, match="already DONE"):
        api.cancel(job)
    with pytest.raises(PoolError, match="keeps no such program"):
        api.program(job, 5)
    for state, limit in (("SLEEPING", 1), ("DONE", 0), ("DONE", 10**9)):
        with pytest.raises(OptionError):
            api.jobs(state=state, limit=limit)


def test_bad_users(shared_pool: RuntimeInfo) -> None:
    api = rest(shared_pool)
    name, token = new_user(shared_pool)
    for bad, role, words in (
        (name, "user", "already"),
        ("a/b", "user", "not a user name"),
        ("x", "king", "not a role"),
    ):
        with pytest.raises(OptionError, match=words):
            api.create_user(bad, role)
    with http(shared_pool) as web:
        assert web.post("/v1/users", content=b"{").status_code == 422
    api.delete_user(name)
    with pytest.raises(AuthenticationError):
        rest(shared_pool, token).status()
    for gone in (name, api.status().user):
        with pytest.raises(PoolError, match="can be removed"):
            api.delete_user(gone)
