"""One random stream for host and pool: the CPU generator of the notebook.

Programs that draw random numbers carry the generator's state along and bring it back advanced, so a
captured cell consumes the same stream as a plain one, and ``torch.manual_seed`` means what it always
means. ``torch.equal`` on 5 KB per random op is how a seed set in mid-cell is noticed: torch offers no
hook for it.
"""

from __future__ import annotations

import torch


class RandomStream:
    def __init__(self) -> None:
        self._start: torch.Tensor | None = None

    @property
    def drawn(self) -> bool:
        """Has the pending program drawn random numbers?"""
        return self._start is not None

    def reseeded(self) -> bool:
        """Was the host's generator touched since the pending program's first draw?"""
        return self._start is not None and not torch.equal(self._start, torch.get_rng_state())

    def draw(self) -> None:
        """A random op is being recorded (after :meth:`reseeded` said no)."""
        if self._start is None:
            self._start = torch.get_rng_state()

    def start_state(self) -> bytes | None:
        return None if self._start is None else self._start.numpy().tobytes()

    def finish(self, state: bytes | None) -> None:
        """The pending program ran and left ``state`` (None: it did not run, or drew nothing)."""
        if state is not None and not self.reseeded():
            torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        self._start = None
