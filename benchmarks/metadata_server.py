"""A server that knows shape, stride and dtype of values, and is asked for one value at a time over a socket:
what a scheduler has to do that does not get the graph with its metadata."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection

import msgspec

from djinn_lab.srg.program import TensorMeta

_REQUEST = struct.Struct("<I")
_LENGTH = struct.Struct("<H")
_decode = msgspec.msgpack.Decoder(TensorMeta).decode


class MetadataClient:
    """Ask for the metadata of values, each in a round trip of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def ask(self, places: Sequence[int]) -> list[TensorMeta]:
        """Return what the server has at these places."""
        return [self._ask(place) for place in places]

    def _ask(self, place: int) -> TensorMeta:
        self._connection.sendall(_REQUEST.pack(place))
        answer = self._connection.recv(2**16)
        while len(answer) < _LENGTH.size or len(answer) < _LENGTH.size + _LENGTH.unpack_from(answer)[0]:
            answer += self._connection.recv(2**16)
        return _decode(answer[_LENGTH.size :])


@contextmanager
def metadata_server(metas: Sequence[TensorMeta]) -> Iterator[MetadataClient]:
    """Serve metadata from a process of its own, over TCP on this machine."""
    answers = [msgspec.msgpack.encode(meta) for meta in metas]
    ours, theirs = get_context("spawn").Pipe()
    process = get_context("spawn").Process(target=_serve, args=(theirs, answers), daemon=True)
    process.start()
    try:
        with socket.create_connection(("127.0.0.1", ours.recv())) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield MetadataClient(connection)
    finally:
        process.join(10)


def _serve(parent: Connection, answers: Sequence[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        parent.send(server.getsockname()[1])
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        framed = [_LENGTH.pack(len(answer)) + answer for answer in answers]
        while request := connection.recv(_REQUEST.size, socket.MSG_WAITALL):
            connection.sendall(framed[_REQUEST.unpack(request)[0]])
