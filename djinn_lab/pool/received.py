"""What a client sent on this connection and need not send again: programs, cells' sources."""

from __future__ import annotations

import asyncio

import msgspec

from djinn_lab.errors import Refused
from djinn_lab.protocol.messages import CODES_MAX, SubmitSegment
from djinn_lab.srg.wire import ProgramReceiver, WireError

INLINE_BYTES_MAX = 256 * 2**10
"""Programs with more bytes are read in a thread."""


class Received:
    """Of one connection. Every submit must pass through :meth:`complete`, in the order they came."""

    def __init__(self) -> None:
        self._programs = ProgramReceiver()
        self._codes: dict[int, str] = {}

    def saw_state(self, state: bytes) -> None:
        """This random state goes to the client."""
        self._programs.saw_state(state)

    async def complete(self, submit: SubmitSegment) -> SubmitSegment:
        """The submit with its whole program and code. Raises Refused when it refers to what never came."""
        code = self._code(submit)
        if not submit.delta:
            return msgspec.structs.replace(submit, code=code)
        large = self._programs.weight(submit.program) > INLINE_BYTES_MAX
        whole = await asyncio.to_thread(self._whole, submit) if large else self._whole(submit)
        return msgspec.structs.replace(submit, program=whole, delta=False, code=code)

    def _whole(self, submit: SubmitSegment) -> bytes:
        try:
            return self._programs.decode(submit.program)
        except WireError as error:
            raise Refused(
                f"The submitted graph cannot be put together: {error}.",
                "Run the cell again; it is then sent whole.",
            ) from None

    def _code(self, submit: SubmitSegment) -> str:
        number = submit.code_number
        if number is None:
            return submit.code
        if not 0 <= number < CODES_MAX:
            raise Refused(f"Code number {number} is outside 0 to {CODES_MAX - 1}.")
        if submit.code:
            self._codes[number] = submit.code
        elif number not in self._codes:
            raise Refused(f"No code came under number {number}.")
        return self._codes[number]
