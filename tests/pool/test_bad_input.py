"""Bad input of every kind is refused with the reason, and the pool lives on."""

from __future__ import annotations

import math
import os
import struct
import uuid
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3
from pool_kit import (
    META,
    Client,
    Wire,
    act,
    http,
    peak_resident_bytes,
    read,
    rest,
    running_pool,
    upload,
)
from websockets.exceptions import ConnectionClosed, InvalidStatus

from djinn_lab.errors import AuthenticationError
from djinn_lab.protocol import messages
from djinn_lab.protocol.rest.status import BlobUsage
from djinn_lab.protocol.runtime_file import RuntimeInfo
from djinn_lab.srg.program import NodeRecord, Program, Source, TensorMeta, encode_program

pytestmark = pytest.mark.usefixtures("pool_lives_on")

GIB = 2**30
MIB = 2**20


def refusal(wire: Wire) -> messages.RequestRefused:
    """Receive the Refused message that must come next, and the end of the connection after it."""
    refused = wire.receive()
    assert isinstance(refused, messages.RequestRefused), refused
    with pytest.raises(ConnectionClosed):
        wire.receive()
    return refused


def test_a_wrong_token(shared_pool: RuntimeInfo) -> None:
    with pytest.raises(InvalidStatus) as refused:
        Wire(shared_pool, "wrong")
    assert refused.value.response.status_code == 401
    with pytest.raises(AuthenticationError, match="refused the token"):
        rest(shared_pool, "wrong").status()


def test_every_address_but_two_needs_the_token(shared_pool: RuntimeInfo) -> None:
    with http(shared_pool) as web:
        paths = web.get("/openapi.json").json()["paths"]
    open_ones = set()
    with http(shared_pool, "wrong") as web:
        for path, methods in [*paths.items(), ("/openapi.json", {"get": {}})]:
            filled = path.replace("{digest}", "0" * 64).replace("{", "").replace("}", "")
            for method in methods:
                if web.request(method, filled).status_code != 401:
                    open_ones.add(path)
        assert web.get("/nowhere").status_code == 404
    assert open_ones == {"/v1/alive", "/v1/login"}
    assert len(paths) >= 15


TAKES_ANY_BYTES = "/v1/link"
"""It says how many came."""


@pytest.mark.parametrize(
    "body",
    [
        b'{"new": ' * 3000,
        b'{"name": "\xff", "job": "\xff", "notebook": "\xff", "weight": "\xff"}',
        b"[" * 900_000,
        b"\x00",
        b'{"name": "\\ud800", "job": "\\ud800", "role": "\\ud800", "days": 1e999}',
    ],
    ids=["deep object", "no text", "deep list", "zero", "surrogates"],
)
def test_bodies_that_no_client_sends_are_refused(shared_pool: RuntimeInfo, body: bytes) -> None:
    with http(shared_pool) as web:
        paths = web.get("/openapi.json").json()["paths"]
        assert paths.pop(TAKES_ANY_BYTES)
        for path, methods in paths.items():
            for method in set(methods) & {"post", "put"} if path != "/v1/shutdown" else ():
                answer = web.request(method, path.replace("{", "").replace("}", ""), content=body)
                assert 400 <= answer.status_code < 500 or answer.status_code == 204, (path, answer.text)


@pytest.mark.parametrize("path", ["/v1/events?after=", "/v1/audit?after=", "/v1/jobs/none/program?segment="])
@pytest.mark.parametrize("number", [2**63, -(2**64), 10**40])
def test_numbers_that_no_database_takes_are_refused(shared_pool: RuntimeInfo, path: str, number: int) -> None:
    with http(shared_pool) as web:
        assert web.get(f"{path}{number}").status_code == 422


def test_another_protocol_version_is_named_before_anything_else_is_read(shared_pool: RuntimeInfo) -> None:
    with Wire(shared_pool) as wire:
        future = {"type": "hello", "protocol_version": 99, "client_version": ["not", "text"], "new": 1}
        wire.socket.send(msgspec.msgpack.encode(future))
        refused = refusal(wire)
    assert refused.kind == "version"
    assert "protocol 99" in refused.message
    assert " and ".join(map(str, messages.POOL_VERSIONS)) in refused.message


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (b"\xff\xfe garbage", "not a Hello"),
        (b"", "not a Hello"),
        pytest.param(os.urandom(65), "not a Hello", id="random"),
        (b"\x91" * 5000, "not a Hello"),
        pytest.param(os.urandom(70_000), "at most 65536", id="much random"),
        (messages.encode(messages.QueryBlobs([])), "not a Hello"),
        (msgspec.msgpack.encode({"type": "cancel", "protocol_version": 1}), "must be a Hello"),
        (msgspec.msgpack.encode({"type": "hello", "protocol_version": 1}), "malformed"),
    ],
)
def test_a_first_message_that_is_no_hello(shared_pool: RuntimeInfo, first: bytes, words: str) -> None:
    with Wire(shared_pool) as wire:
        wire.socket.send(first)
        refused = refusal(wire)
    assert refused.kind == "message"
    assert words in refused.message


def asking(terms: dict[str, object]) -> bytes:
    """Encode the submit of a cell with ``terms``, as a client that knows more terms than this pool does."""
    submit = messages.SubmitSegment("a" * 32, 0, "cell 1", "NORMAL", True, "cell end", 0, b"")
    return msgspec.msgpack.encode({**msgspec.to_builtins(submit), "program": b"", "terms": terms})


@pytest.mark.parametrize(
    ("garbage", "words"),
    [
        pytest.param(os.urandom(1000), "not a message of protocol", id="random"),
        (b"\x91" * 5000, "not a message of protocol"),
        pytest.param(os.urandom(8 * MIB), "not a message of protocol", id="much random"),
        (messages.encode(messages.Hello(1, "", "", "", "")), "second Hello"),
        (msgspec.msgpack.encode({"type": "submit", "job": 7}), "not a message of protocol"),
        (asking({"colour": "red"}), "unknown field `colour`"),
        (asking({"target": "cpu:0", "gpu": 1}), "unknown field `gpu`"),
        (messages.encode(messages.QueryBlobs(["../../etc/passwd"])), "not a BLAKE3 digest"),
        (messages.encode(messages.BlobStored("../" * 10 + "etc/passwd", 1)), "not a BLAKE3 digest"),
    ],
)
def test_garbage_in_an_open_session(client: Client, garbage: bytes, words: str) -> None:
    client.socket.send(garbage)
    refused = refusal(client)
    assert refused.kind == "message"
    assert words in refused.message


def test_a_text_frame(client: Client) -> None:
    client.socket.send("hello")
    assert "binary" in refusal(client).message


def flood(client: Client, fragment_bytes: int, total_bytes: int) -> int:
    """Send one message of ``total_bytes`` in fragments on the bare socket; bytes sent until the pool hung
    up."""
    chunk = bytes(MIB)
    raw = client.socket.socket
    sent = 0
    try:
        while sent < total_bytes:
            last = sent + fragment_bytes >= total_bytes
            opcode = (0x80 if last else 0) | (2 if sent == 0 else 0)
            raw.sendall(struct.pack(">BBQ", opcode, 0x80 | 127, fragment_bytes) + b"\0\0\0\0")
            for _ in range(fragment_bytes // MIB):
                raw.sendall(chunk)
                sent += MIB
    except OSError:
        pass
    return sent


@pytest.mark.parametrize("fragment_bytes", [GIB, 4 * MIB], ids=["one frame", "fragments"])
def test_a_gigabyte_of_garbage_costs_no_memory(shared_pool: RuntimeInfo, fragment_bytes: int) -> None:
    before = peak_resident_bytes(shared_pool.pid)
    with Client(shared_pool) as client:
        flood(client, fragment_bytes, GIB)
        with pytest.raises(ConnectionClosed) as closed:
            client.receive()
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    assert peak_resident_bytes(shared_pool.pid) - before < 2 * messages.MESSAGE_BYTES_MAX
    assert rest(shared_pool).status().ready


def announced_upload(info: RuntimeInfo, nbytes: int) -> int:
    """Return the status of an upload whose headers announce ``nbytes``."""
    with closing(HTTPConnection(info.url.removeprefix("http://"), timeout=10)) as connection:
        connection.putrequest("PUT", f"/v1/blobs/{'0' * 64}")
        connection.putheader("Authorization", f"Bearer {info.token}")
        connection.putheader("Content-Length", str(nbytes))
        connection.endheaders()
        return connection.getresponse().status


def test_a_gigabyte_of_upload_is_stopped_at_the_limit(tmp_path: Path) -> None:
    def stream() -> Iterator[bytes]:
        for _ in range(GIB // MIB):
            yield bytes(MIB)

    with running_pool(tmp_path, "cpu:1", blob_bytes_max=16 * MIB) as info, http(info) as web:
        before = peak_resident_bytes(info.pid)
        assert announced_upload(info, GIB) == 413
        try:
            answer = web.put(f"/v1/blobs/{'0' * 64}", content=stream())
        except OSError:
            pass
        else:
            assert answer.status_code == 422
            assert "exceeds 16.0 MiB" in answer.json()["detail"]
        assert peak_resident_bytes(info.pid) - before < 100 * MIB
        assert rest(info).status().blobs == BlobUsage()


def test_an_upload_that_breaks_off_leaves_nothing(shared_pool: RuntimeInfo) -> None:
    before = rest(shared_pool).status().blobs
    with closing(HTTPConnection(shared_pool.url.removeprefix("http://"), timeout=10)) as connection:
        connection.putrequest("PUT", f"/v1/blobs/{'0' * 64}")
        connection.putheader("Authorization", f"Bearer {shared_pool.token}")
        connection.putheader("Content-Length", str(MIB))
        connection.endheaders(b"only the beginning")
    assert rest(shared_pool).status().blobs == before


def changed(**changes: object) -> Program:
    return msgspec.structs.replace(act("", ""), **changes)


NODE = NodeRecord(0, (), (1,), (0,), (1,), 0)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (b"\x00\x01 garbage", "cannot be read"),
        (b"\x91" * 5000, "cannot be read"),
        pytest.param(os.urandom(100_000), "cannot be read", id="random"),
        (
            changed(templates=[msgspec.structs.replace(act("").templates[0], op="aten.system.default")]),
            "aten.system",
        ),
        (changed(templates=[msgspec.structs.replace(act("").templates[0], op="os.system")]), "os.system"),
        (changed(fetch=(77,)), "77"),
        (changed(nodes=[msgspec.structs.replace(NODE, template=9)]), "9"),
        (changed(nodes=[NODE, NODE]), "1"),
        (changed(metas=[TensorMeta("float32", (-2, 2), (2, 1))]), "-2"),
        (changed(metas=[TensorMeta("float99", (2, 2), (2, 1))]), "float99"),
        (changed(sources=[Source(5, 5, 0, "input", "../../etc/passwd")]), "BLAKE3"),
        (
            Program(
                (META,),
                (
                    msgspec.structs.replace(
                        act("").templates[0], op="aten.relu.default", args=[{"t": "tensor"}]
                    ),
                ),
                act("").scopes,
                (),
                (NodeRecord(0, (2,), (1,), (0,), (1,), 0), NodeRecord(0, (1,), (2,), (0,), (2,), 0)),
            ),
            "2",
        ),
    ],
    ids=lambda value: None if isinstance(value, (bytes, Program)) else str(value),
)
def test_a_bad_program(
    client: Client, shared_pool: RuntimeInfo, program: Program | bytes, words: str
) -> None:
    encoded = program if isinstance(program, bytes) else encode_program(program)
    result = client.run(encoded)
    assert (result.outcome, result.executed) == ("failed", 0)
    assert result.error is not None
    assert result.error.family == "refused"
    assert words in result.error.message
    assert rest(shared_pool).job(result.job).state == "FAILED"
    assert client.run(act("")).outcome == "done"


def test_bad_submits(client: Client) -> None:
    for options, words in (
        ({"priority": "URGENT"}, "CRITICAL, HIGH, NORMAL, LOW, SCAVENGER"),
        ({"segment": 4}, "segment 4 came where 0 was due"),
        ({"segment": -1}, "segment -1"),
    ):
        result = client.run(act(""), **options)
        assert result.error is not None
        assert result.error.family == "refused"
        assert words in result.error.message
    job = client.submit(act(""), final=True)
    client.result(job)
    again = client.run(act(""), job=job)
    assert again.error is not None
    assert "already DONE" in again.error.message


@pytest.mark.parametrize("job", ["", "a/0", "release a", "a b", "x" * 65, "../a", "0123/prelude"])
def test_names_of_jobs_that_mean_something_to_the_pool(client: Client, job: str) -> None:
    client.send(
        messages.SubmitSegment(
            job, 0, "cell 1", "NORMAL", True, "cell end", 0, encode_program(act("")), "y = x + 1"
        )
    )
    result = client.result(job)
    assert result.error is not None
    assert "is not a name for a job" in result.error.message


def test_an_upload_of_other_bytes_than_announced_does_not_count(
    client: Client, shared_pool: RuntimeInfo
) -> None:
    data = uuid.uuid4().bytes
    digest = blake3(data).hexdigest()
    client.write_blob(digest, b"x" * 16)
    assert client.missing(digest) == [digest]
    result = client.run(read(upload(1, digest)))
    assert result.error is not None
    assert result.error.family == "missing_blobs"
    assert "have the digest" in result.error.message
    client.send(messages.BlobStored(digest, 3))
    assert "No file" in (client.run(read(upload(1, digest))).error or result.error).message
    client.write_blob(digest, data)
    assert client.missing(digest) == []
    assert client.run(read(upload(1, digest))).fetched[0].data == data
    with http(shared_pool) as web:
        wrong = web.put(f"/v1/blobs/{digest}", content=b"other")
        assert wrong.status_code == 422
        assert "have the digest" in wrong.json()["detail"]


def test_an_upload_of_another_size_or_a_link_does_not_count(client: Client, tmp_path: Path) -> None:
    data = uuid.uuid4().bytes
    digest = blake3(data).hexdigest()
    assert client.welcome.blob_directory is not None
    (Path(client.welcome.blob_directory) / digest).write_bytes(data)
    client.send(messages.BlobStored(digest, 17))
    assert client.missing(digest) == [digest]
    secret = tmp_path / "secret"
    secret.write_bytes(data)
    (Path(client.welcome.blob_directory) / digest).symlink_to(secret)
    client.send(messages.BlobStored(digest, 16))
    assert client.missing(digest) == [digest]
    assert secret.read_bytes() == data


@pytest.mark.parametrize("tolerance", [math.nan, -1.0, math.inf, 0.2])
def test_tolerance_that_is_none_is_refused(client: Client, tolerance: float) -> None:
    job, program = uuid.uuid4().hex, encode_program(act(""))
    client.send(
        messages.SubmitSegment(
            *(job, 0, "cell", "NORMAL", True, "cell end", 0, program, ""), tolerance=tolerance
        )
    )
    assert "its tolerance is" in str(client.result(job).error)


BLOB_BYTES = 2000


def refused_segment(client: Client, why: str) -> messages.SegmentResult:
    """Submit a segment that the pool refuses, and return the answer."""
    if why == "its job has ended":
        job = client.submit(act(""))
        assert client.result(job).outcome == "done"
        assert client.missing(A_DIGEST) == []
        return client.run(act(""), job=job, segment=1)
    if why == "no job may be called that":
        return client.run(act(""), job="no job's name")
    return client.run(read(upload(1, blake3(b"never uploaded").hexdigest())))


A_BLOB = b"a" * BLOB_BYTES
A_DIGEST = blake3(A_BLOB).hexdigest()


@pytest.mark.parametrize("why", ["its job has ended", "no job may be called that", "an upload is missing"])
def test_a_refused_segment_leaves_no_upload_pinned(tmp_path: Path, why: str) -> None:
    other = b"b" * BLOB_BYTES
    with (
        running_pool(tmp_path, "cpu:1", blob_bytes_max=3 * BLOB_BYTES // 2) as info,
        Client(info) as client,
        http(info) as web,
    ):
        assert web.put(f"/v1/blobs/{A_DIGEST}", content=A_BLOB).is_success
        assert client.missing(A_DIGEST) == []
        assert refused_segment(client, why).outcome != "done"
        answer = web.put(f"/v1/blobs/{blake3(other).hexdigest()}", content=other)
        assert answer.is_success, answer.text
