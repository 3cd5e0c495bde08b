"""What this connection's pool has already: programs, cells' sources. Only what is new is sent."""

from __future__ import annotations

from djinn_lab.protocol.messages import CODES_MAX
from djinn_lab.srg.wire import ProgramSender


class Sent:
    """Of one connection. ``deltas``: whether the pool reads the stream of programs, and codes by number. What
    was made for a message counts as sent only after :meth:`arrived`."""

    def __init__(self, deltas: bool) -> None:
        self._deltas = deltas
        self._programs = ProgramSender()
        self._codes: dict[str, int] = {}
        self._next_code = 0
        self._new_code: str | None = None

    def saw_state(self, state: bytes) -> None:
        """This random state came from the pool."""
        self._programs.saw_state(state)

    def program(self, encoded: bytes) -> tuple[bytes, bool, int]:
        """Return the bytes to send, whether they are of the stream, and how many the whole program has."""
        streamed = self._programs.encode(encoded) if self._deltas else None
        if streamed is None:
            return encoded, False, len(encoded)
        return streamed, True, len(encoded)

    def code(self, text: str) -> tuple[str, int | None]:
        """What to send of a cell's source: text and number."""
        self._new_code = None
        if not self._deltas or not text:
            return text, None
        known = self._codes.get(text)
        if known is not None:
            return "", known
        self._new_code = text
        return text, self._next_code

    def arrived(self) -> None:
        """The message with the last program and code went out."""
        self._programs.arrived()
        if self._new_code is not None:
            number, self._next_code = self._next_code, (self._next_code + 1) % CODES_MAX
            self._codes = {code: other for code, other in self._codes.items() if other != number}
            self._codes[self._new_code] = number
            self._new_code = None
