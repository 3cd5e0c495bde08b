"""Frames on a blocking socket: a 4-byte big-endian length, then the body."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct(">I")
READ_BYTES = 64 * 2**10


def send_frame(connection: socket.socket, body: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(body)) + body)


class FrameReader:
    """Reads frames with as few system calls as they take: most come whole in one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._arrived = bytearray()

    def next(self) -> bytes | None:
        """The next body, or None when the other side closed."""
        arrived = self._arrived
        while True:
            needed = _LENGTH.size
            if len(arrived) >= needed:
                needed += _LENGTH.unpack_from(arrived)[0]
                if len(arrived) >= needed:
                    with memoryview(arrived) as view:
                        frame = bytes(view[_LENGTH.size : needed])
                    del arrived[:needed]
                    return frame
            try:
                received = self._connection.recv(max(READ_BYTES, needed - len(arrived)))
            except ConnectionResetError:  # it was killed before it had read all that we sent
                return None
            if not received:
                return None
            arrived += received
