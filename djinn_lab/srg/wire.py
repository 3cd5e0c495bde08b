"""Programs on their way to the pool: the relative form, compressed as one stream per connection.

What came before on the connection costs a few bytes: the relative form (:mod:`djinn_lab.srg.relative`) makes
equal iterations equal bytes, and the compressor finds them in its window. A message is :data:`_CLEAR`, then
the stream's next bytes, which hold :data:`_INNER` and the program in relative form, or in plain form where it
has no relative one.
"""

from __future__ import annotations

import struct
from zlib import crc32

import zstandard

from djinn_lab.srg.relative import NotRelative, Origin, to_relative, to_whole

PROGRAM_BYTES_MAX = 64 * 2**20
"""About a million ops."""
WINDOW_LOG = 20
LEVEL = 3
_CLEAR = struct.Struct("<?I")
"""Whether the stream begins anew, and the length of what the stream yields for this message."""
_INNER = struct.Struct("<?I")
"""Whether the relative form follows, and a check of the plain form."""
_SLICE_BYTES = 256
"""Decompressed at once. Such a slice yields 8 MiB at most, since a block of zstd has at least 4 bytes and
yields at most 128 KiB."""


class WireError(ValueError):
    """A message is none of a :class:`ProgramSender`, or one of another stream."""


class ProgramSender:
    """One end of a connection. Call :meth:`arrived` when a message went out, or the stream begins anew."""

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._fresh = True
        self._made = False

    def saw_state(self, state: bytes) -> None:
        """This random state came back from a run."""
        self._state = state

    def arrived(self) -> None:
        """The last message is on its way, if there was one."""
        self._fresh = not self._made

    def encode(self, program: bytes) -> bytes | None:
        """Return the message for an encoded program; None when it is too large, send it plainly then."""
        fresh, self._fresh, self._made = self._fresh, True, False  # until it arrived
        if fresh:
            self._origin = Origin()
            parameters = zstandard.ZstdCompressionParameters.from_level(LEVEL, window_log=WINDOW_LOG)
            self._stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        try:
            relative, following = to_relative(program, self._origin, self._state)
        except NotRelative:
            inner = _INNER.pack(False, crc32(program)) + program
        else:
            self._origin = following
            inner = _INNER.pack(True, crc32(program)) + relative
        if len(inner) > PROGRAM_BYTES_MAX:
            return None
        compressed = self._stream.compress(inner), self._stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        self._made = True
        return b"".join((_CLEAR.pack(fresh, len(inner)), *compressed))


class ProgramReceiver:
    """The other end."""

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._stream: zstandard.ZstdDecompressionObj | None = None
        self._origin = Origin()

    def saw_state(self, state: bytes) -> None:
        self._state = state

    @staticmethod
    def weight(message: bytes) -> int:
        """Return how many bytes the message will yield, 0 when it is none."""
        return 0 if len(message) < _CLEAR.size else int(_CLEAR.unpack_from(message)[1])

    def decode(self, message: bytes) -> bytes:
        """Return the encoded program. Raises WireError; the connection is of no use then."""
        try:
            fresh, length = _CLEAR.unpack_from(message)
            if fresh:
                self._origin = Origin()
                self._stream = zstandard.ZstdDecompressor(max_window_size=2**WINDOW_LOG).decompressobj()
            inner = self._decompressed(message, length)
            is_relative, check = _INNER.unpack_from(inner)
            program = inner[_INNER.size :]
            if is_relative:
                program, self._origin = to_whole(program, self._origin, self._state)
        except (struct.error, zstandard.ZstdError, NotRelative) as error:
            raise WireError(f"these bytes are no program: {error}") from None
        if crc32(program) != check:
            raise WireError("the program came out differently")
        return program

    def _decompressed(self, message: bytes, length: int) -> bytes:
        if self._stream is None:
            raise WireError("the beginning of the stream never came")
        if length > PROGRAM_BYTES_MAX:
            raise WireError("the program is too large")
        pieces, total = [], 0
        for start in range(_CLEAR.size, len(message), _SLICE_BYTES):
            piece = self._stream.decompress(message[start : start + _SLICE_BYTES])
            pieces.append(piece)
            total += len(piece)
            if total > length or self._stream.eof:
                break
        if total != length or self._stream.eof:
            raise WireError("the message has another length than it says")
        return b"".join(pieces)
