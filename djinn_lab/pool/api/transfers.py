"""``/v1/blobs``, ``/v1/results`` and ``/v1/link``: tensors of clients on other hosts, and their way there."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Annotated, BinaryIO

import msgspec
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from starlette.responses import StreamingResponse

from djinn_lab.errors import Refused
from djinn_lab.pool.api.responses import answer, documented, runner, takes
from djinn_lab.pool.authentication import User
from djinn_lab.pool.blobs.joined_uploads import receive_joined
from djinn_lab.pool.blobs.names import checked_result_name
from djinn_lab.pool.blobs.piece_uploads import NotAnnounced
from djinn_lab.pool.context import PoolContext
from djinn_lab.protocol.rest.transfers import (
    LINK_BYTES_MAX,
    RESULTS_MAX,
    PiecesAnnounced,
    PiecesMissing,
    piece_count,
)
from djinn_lab.units import format_bytes

CHUNK_BYTES = 2**20
DIGEST_JSON_BYTES = 70
"""Of one digest in an announcement, with quotes and comma."""
_FROM = re.compile(r"bytes=(\d{1,18})-")
Names = Annotated[list[str], Query(min_length=1, max_length=RESULTS_MAX)]


def add_transfer_routes(app: FastAPI, context: PoolContext) -> None:
    blobs = context.blobs

    @app.put("/v1/blobs/{digest}", status_code=201, summary="Upload a tensor's bytes")
    async def put_blob(digest: str, request: Request, user: Annotated[User, Depends(runner)]) -> Response:
        announced = request.headers.get("content-length", "0")
        if announced.isdecimal() and int(announced) > blobs.bytes_max:
            raise HTTPException(413, f"The pool keeps at most {blobs.bytes_max} bytes of tensors.")
        nbytes = await blobs.receive(user.name, digest, request.stream())
        return answer({"digest": digest, "nbytes": nbytes}, 201)

    @app.put("/v1/blobs", status_code=201, summary="Upload small tensors: each its digest, bytes and length")
    async def put_blobs(request: Request, user: Annotated[User, Depends(runner)]) -> Response:
        return answer({"tensors": await receive_joined(blobs, user.name, request.stream())}, 201)

    @app.post(
        "/v1/blobs/{digest}/pieces",
        responses=documented(PiecesMissing),
        openapi_extra=takes(PiecesAnnounced),
        summary="Announce a tensor in pieces, and learn which to send",
    )
    async def announce_pieces(
        digest: str, request: Request, user: Annotated[User, Depends(runner)]
    ) -> Response:
        bytes_max = 1000 + DIGEST_JSON_BYTES * piece_count(blobs.bytes_max)
        body = await _whole_body(request, bytes_max)
        try:
            announced = msgspec.json.decode(body, type=PiecesAnnounced)
        except msgspec.DecodeError as error:
            raise Refused(f"The announcement is malformed: {error}.") from None
        return answer(PiecesMissing(await blobs.piece_uploads.begin(user.name, digest, announced)))

    @app.put(
        "/v1/blobs/{digest}/pieces",
        status_code=201,
        responses=documented(PiecesMissing, 201),
        summary="Upload pieces of an announced tensor: each its number, a length and its bytes",
    )
    async def put_pieces(digest: str, request: Request, user: Annotated[User, Depends(runner)]) -> Response:
        try:
            missing = await blobs.piece_uploads.receive(user.name, digest, request.stream())
        except NotAnnounced as error:
            raise HTTPException(409, str(error)) from None
        return answer(PiecesMissing(missing), 201)

    @app.get("/v1/results/{name}", summary="Fetch a result, which deletes it; it stays for `Range: bytes=N-`")
    async def get_result(
        name: str, request: Request, user: Annotated[User, Depends(runner)]
    ) -> StreamingResponse:
        session, file = _open(context, user, name)
        start = _start_of(request)
        if start is None:
            blobs.drop_result(session, name)
        return _contents([file], start)

    @app.get("/v1/results", summary="Fetch several results, one behind the other, which stay")
    async def get_results(
        name: Names, request: Request, user: Annotated[User, Depends(runner)]
    ) -> StreamingResponse:
        with ExitStack() as opened:
            files = [opened.enter_context(_open(context, user, one)[1]) for one in name]
            opened.pop_all()
        return _contents(files, _start_of(request))

    @app.delete("/v1/results", status_code=204, summary="Delete results that were fetched")
    async def delete_results(name: Names, user: Annotated[User, Depends(runner)]) -> None:
        for one in name:
            session = _session_with(context, user, one)
            if session is not None:
                blobs.drop_result(session, one)

    @app.delete("/v1/results/{name}", status_code=204, summary="Delete a result that was fetched by ranges")
    async def delete_result(name: str, user: Annotated[User, Depends(runner)]) -> None:
        session = _session_with(context, user, name)
        if session is not None:
            blobs.drop_result(session, name)

    @app.get("/v1/link", summary="So many random bytes, to measure the way from the pool")
    async def get_link(
        nbytes: Annotated[int, Query(ge=1, le=LINK_BYTES_MAX)], _user: Annotated[User, Depends(runner)]
    ) -> Response:
        return Response(os.urandom(nbytes), media_type="application/octet-stream")

    @app.put("/v1/link", summary="Send bytes, which are counted, to measure the way to the pool")
    async def put_link(request: Request, _user: Annotated[User, Depends(runner)]) -> Response:
        return answer({"nbytes": len(await _whole_body(request, LINK_BYTES_MAX))})


def _session_with(context: PoolContext, user: User, name: str) -> str | None:
    """Return the user's session that has a result, None where none has. Raises Refused for what is no
    result's name."""
    checked_result_name(name)
    own = (one.session for one in context.driver.registry if one.user == user.name)
    return next((session for session in own if context.blobs.has_result(session, name)), None)


def _open(context: PoolContext, user: User, name: str) -> tuple[str, BinaryIO]:
    """Return the user's session that has a result, and the result. Raises HTTPException where none has."""
    session = _session_with(context, user, name)
    file = None if session is None else context.blobs.open_result(session, name)
    if session is None or file is None:
        raise HTTPException(404, f"There is no result {name[:80]!r} of yours.")
    return session, file


def _start_of(request: Request) -> int | None:
    asked = _FROM.fullmatch(request.headers.get("range", ""))
    return None if asked is None else int(asked[1])


def _contents(files: list[BinaryIO], start: int | None) -> StreamingResponse:
    """Answer with results, one behind the other, from the byte ``start`` of all on. Closes them."""
    sizes = [os.fstat(file.fileno()).st_size for file in files]
    nbytes = sum(sizes)
    headers = {"Content-Length": str(nbytes - (start or 0))}
    if start is not None and start >= nbytes:
        for file in files:
            file.close()
        raise HTTPException(416, f"The result has {nbytes} bytes.", {"Content-Range": f"bytes */{nbytes}"})
    if start is not None:
        headers["Content-Range"] = f"bytes {start}-{nbytes - 1}/{nbytes}"
    skipped = start or 0
    for file, size in zip(files, sizes, strict=True):
        file.seek(min(skipped, size))
        skipped -= min(skipped, size)
    status = 200 if start is None else 206
    return StreamingResponse(_chunks(files), status, headers, "application/octet-stream")


def _chunks(files: list[BinaryIO]) -> Iterator[bytes]:
    with ExitStack() as opened:
        for file in files:
            opened.enter_context(file)
        for file in files:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


async def _whole_body(request: Request, bytes_max: int) -> bytes:
    """Read a body. Raises HTTPException for a larger one."""
    body = bytearray()
    stream: AsyncIterator[bytes] = request.stream()
    async for chunk in stream:
        body += chunk
        if len(body) > bytes_max:
            raise HTTPException(413, f"The body has more than {format_bytes(bytes_max)}.")
    return bytes(body)
