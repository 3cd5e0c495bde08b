"""Frames on a blocking socket: a 4-byte big-endian length, then the body."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct(">I")


def send_frame(connection: socket.socket, body: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive_frame(connection: socket.socket) -> bytes | None:
    """The next body, or None when the other side closed."""
    header = _receive_exactly(connection, _LENGTH.size)
    if header is None:
        return None
    return _receive_exactly(connection, _LENGTH.unpack(header)[0])


def _receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    buffer = bytearray(count)
    view = memoryview(buffer)
    filled = 0
    while filled < count:
        try:
            received = connection.recv_into(view[filled:])
        except ConnectionResetError:  # it was killed before it had read all that we sent
            return None
        if received == 0:
            return None
        filled += received
    return bytes(buffer)
