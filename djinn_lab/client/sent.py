"""What this connection's pool has already: programs' structures, cells' sources. Only the rest is sent."""

from __future__ import annotations

from djinn_lab.protocol.messages import CODES_MAX
from djinn_lab.srg.delta import DeltaEncoder
from djinn_lab.srg.program import Program, encode_program

WHOLE_NODES_MAX = 4
"""Programs up to this size are sent whole: there is nothing to gain."""


class Sent:
    """Of one connection. ``deltas``: whether the pool understands differences. What was made for a message
    counts as sent only after :meth:`arrived`."""

    def __init__(self, deltas: bool) -> None:
        self._deltas = deltas
        self._encoder = DeltaEncoder()
        self._codes: dict[str, int] = {}
        self._next_code = 0
        self._new_code: str | None = None

    def saw_state(self, state: bytes) -> None:
        """This random state came from the pool."""
        self._encoder.saw_state(state)

    def program(self, program: Program) -> tuple[bytes, bool, int]:
        """Bytes to send, whether they are a delta, and how many the whole has."""
        if self._deltas and len(program.nodes) > WHOLE_NODES_MAX:
            data = self._encoder.encode(program)
            if data is not None:
                return data, True, self._encoder.whole_bytes
        data = encode_program(program)
        return data, False, len(data)

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
        self._encoder.arrived()
        if self._new_code is not None:
            number, self._next_code = self._next_code, (self._next_code + 1) % CODES_MAX
            self._codes = {code: other for code, other in self._codes.items() if other != number}
            self._codes[self._new_code] = number
            self._new_code = None
