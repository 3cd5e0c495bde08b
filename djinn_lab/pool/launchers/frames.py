"""Frames of a worker's connection, on the event loop: a 4-byte big-endian length, then the body."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import msgspec

from djinn_lab.protocol.worker import FRAME_BYTES_MAX

LENGTH = struct.Struct(">I")


def framed(body: bytes) -> bytes:
    return LENGTH.pack(len(body)) + body


class Frames(asyncio.Protocol):
    """``on_frame`` is given every frame as it comes. ``ended`` is done when no more will come, with what
    ``on_frame`` raised, if anything; ``closed`` when the connection is."""

    def __init__(self, on_frame: Callable[[bytes], None]) -> None:
        loop = asyncio.get_running_loop()
        self._on_frame = on_frame
        self._arrived = bytearray()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        try:
            while not self.ended.done() and (frame := self._next()) is not None:
                self._on_frame(frame)
        except Exception as error:  # noqa: BLE001 - what waits for the end gets it
            self.ended.set_exception(error)

    def _next(self) -> bytes | None:
        arrived = self._arrived
        if len(arrived) < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(arrived)
        if length > FRAME_BYTES_MAX:
            raise msgspec.DecodeError(f"a frame of {length} bytes")
        end = LENGTH.size + length
        if len(arrived) < end:
            return None
        with memoryview(arrived) as view:
            frame = bytes(view[LENGTH.size : end])
        del arrived[:end]
        return frame

    def connection_lost(self, _error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)
        self.closed.set_result(None)
