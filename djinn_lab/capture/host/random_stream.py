"""One random stream for host and pool: the CPU generator of the notebook.

Programs that draw random numbers carry the generator's state along and return it advanced, so a
captured cell consumes the same stream as a plain one, and ``torch.manual_seed`` means what it always
means. ``torch.equal`` on 5 KB per random op is how a seed set in mid-cell is noticed: torch offers no
hook for it.

While a program is under way the host's generator stands where that program began; what is recorded meanwhile
begins where it will end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any

import blake3
import torch

from djinn_lab.capture.host.interrupts import locked, whole

if TYPE_CHECKING:
    from djinn_lab.capture.recorders import Recorder

DEFAULT: torch.Generator = torch.default_generator
_NAME = "default_generator"


class RandomStream:
    """Keeps the host's generator and the pool's in step. ``_seen``: the host's state when recorded draws
    began. ``_start``: where the pending program begins. ``_left``: the host's state when it left the draws of
    a cell to the pool and continued on a stream of its own."""

    def __init__(self) -> None:
        self._seen: torch.Tensor | None = None
        self._start: bytes | None = None
        self._under_way = False
        self._continues = False
        self._left: torch.Tensor | None = None

    @property
    def drawn(self) -> bool:
        """Return whether there are recorded draws that the host's generator has not made yet."""
        return self._seen is not None

    def reseeded(self) -> bool:
        """Return whether the host's generator was touched since the first of those draws."""
        return self._seen is not None and not torch.equal(self._seen, DEFAULT.get_state())

    def draw(self) -> None:
        """Note that a random op is being recorded (after :meth:`reseeded` said no)."""
        if self._under_way:
            self._continues = True
            return
        if self._seen is None:
            self._seen = DEFAULT.get_state()
        if self._start is None:
            self._start = self._seen.numpy().tobytes()

    def start_state(self) -> bytes | None:
        return self._start

    def sent(self) -> None:
        """Note that the pending program is under way."""
        self._under_way = self._start is not None
        self._start = None

    def leave(self) -> None:
        """Let the host continue while the pool makes the draws under way, for it is not known where they end:
        plain code draws from another stream until then, which follows from this one."""
        if self._under_way and self._seen is not None:
            self._left = self._seen
            digest = blake3.blake3(self._left.numpy().tobytes()).digest(8)
            DEFAULT.manual_seed(int.from_bytes(digest, "little") >> 1)
            self._seen = DEFAULT.get_state()

    def _return(self) -> None:
        """Take the host back to the stream that it left, unless it drew or was seeded since."""
        left, self._left = self._left, None
        if left is not None and not self.reseeded():
            DEFAULT.set_state(left)
            self._seen = left

    def finish(self, state: bytes | None) -> None:
        """Note that the program under way ran and left ``state`` (None: it did not run, or drew nothing)."""
        self._return()
        if self._under_way and state is not None:
            if not self.reseeded():
                DEFAULT.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
                self._seen = DEFAULT.get_state() if self._continues else None
            elif not self._continues:
                self._seen = None
            self._start = state if self._continues else None
        elif self._under_way:
            self._seen = self._start = None
        self._under_way = self._continues = False

    def fail(self, state: bytes | None) -> None:
        """Note that the program under way failed and left ``state`` (None: it drew nothing); what was
        recorded since will not run."""
        self._continues = False
        self.finish(state)
        self.forget()

    def forget(self) -> None:
        """Forget the recorded draws, which will not run."""
        self._return()
        self._seen = self._start = None
        self._under_way = self._continues = False


class SettledGenerator:
    """A default generator that answers as if every recorded draw had happened.

    ``torch.manual_seed``, ``torch.get_rng_state`` and the like end in one generator object that
    ``torch.random`` holds. Without a stand-in for it a state read in between is an old one (dropout under
    gradient checkpointing would not repeat), and the same seed set twice is not noticed."""

    def __init__(self, recorder: Recorder, generator: torch.Generator) -> None:
        self._recorder = recorder
        self._generator = generator

    @whole
    def _settle(self, cause: str) -> torch.Generator:
        with locked(self._recorder.lock):
            self._recorder.segment.finish_draws(cause)
        return self._generator

    def get_state(self) -> torch.Tensor:
        return self._settle("the state of random numbers was read").get_state()

    def set_state(self, state: torch.Tensor) -> torch.Generator:
        return self._settle("a random seed was set").set_state(state)

    def manual_seed(self, seed: int) -> torch.Generator:
        return self._settle("a random seed was set").manual_seed(seed)

    def seed(self) -> int:
        return self._settle("a random seed was set").seed()

    def initial_seed(self) -> int:
        return self._generator.initial_seed()

    def taken(self) -> torch.Generator:
        """Return the generator itself, where all recorded draws have happened."""
        return self._settle("the generator of random numbers was used")


@contextmanager
def settled_generator(recorder: Recorder) -> Iterator[None]:
    """Let recorded draws happen before torch's default generator is used, by way of :mod:`torch.random` or,
    in this thread, as ``torch.default_generator``, which Python then looks up by ``__getattr__``."""
    module: Any = torch.random
    before, of_torch = module.default_generator, vars(torch)
    held, look_up = of_torch.pop(_NAME, None), of_torch["__getattr__"]
    settled, thread = SettledGenerator(recorder, DEFAULT), get_ident()

    def found(name: str) -> Any:
        if name != _NAME:
            return look_up(name)
        return settled.taken() if get_ident() == thread else DEFAULT

    module.default_generator, of_torch["__getattr__"] = settled, found
    try:
        yield
    finally:
        module.default_generator, of_torch["__getattr__"] = before, look_up
        if held is not None:
            of_torch[_NAME] = held
