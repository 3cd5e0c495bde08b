"""One session's log: its runs since its last whole copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from djinn_lab.units import format_bytes

LOG_BYTES_MAX = 32 * 2**20
"""Programs of one session's log. Inputs that are no part of their program stay with the uploads."""


class Run(NamedTuple):
    """One run of a segment. It began before op ``begin``, with this random state where that is not the
    program's; and ended before op ``end``, None for its own end. ``closes``: the segment is over with it,
    so that only what the client holds is left. ``loaded``: what came with the program is there.
    ``peak_bytes``: that it held at most beside its session's values. ``held_bytes``: of these, after it."""

    serial: int
    job: str
    segment: int
    program: bytes
    blobs: Sequence[str]
    key: bytes | None
    begin: int = 0
    rng_state: bytes | None = None
    end: int | None = None
    closes: bool = True
    loaded: bool = True
    run_s: float = 0.0
    peak_bytes: int = 0
    held_bytes: int = 0

    @property
    def whole(self) -> bool:
        return self.begin == 0 and self.end is None


class Copy(NamedTuple):
    """A whole copy of a session below its device. ``serial``: of the last run that it has the results of.
    ``values``: how many it has, of ``nbytes``."""

    serial: int
    nbytes: int
    values: int


@dataclass
class SessionLog:
    """``done``: how many of the runs the session's present state has; the others are to be replayed.
    ``released``: values that the client released outside of programs, each with the serial of its release.
    ``void``: why nothing can be made again, empty while it can; until a copy of ``void_until`` or later.
    ``spread``: a gang is under way; ``blurred``: a copy was made meanwhile. ``dropped``: runs that left the
    log, until :meth:`take_dropped`. ``asked_s``: ``run_s`` when a copy was last asked for.
    ``answered``: the last serial of a run that the log knows of; a later one may be under way."""

    copy: Copy | None = None
    runs: list[Run] = field(default_factory=list)
    done: int = 0
    released: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    nbytes: int = 0
    run_s: float = 0.0
    void: str = ""
    void_until: int = 0
    spread: bool = False
    blurred: bool = False
    serials: int = 0
    answered: int = 0
    asked_s: float = 0.0
    dropped: list[Run] = field(default_factory=list)

    # -- what happened -------------------------------------------------------------------------------------

    def next_serial(self) -> int:
        self.serials += 1
        return self.serials

    def ran(self, run: Run) -> None:
        """Add a run that the worker has answered."""
        if self.done < len(self.runs):
            raise AssertionError("a segment ran before what it depends on was replayed.")
        self.answered = max(self.answered, run.serial)
        if self.copy is not None and run.serial <= self.copy.serial:
            return  # the copy was made, and reported, just before the answer
        self.runs.append(run)
        self.done = len(self.runs)
        self.nbytes += len(run.program)
        self.run_s += run.run_s
        if self.nbytes > LOG_BYTES_MAX:
            limit = format_bytes(LOG_BYTES_MAX)
            self.make_void(f"more than {limit} of programs ran since its last whole copy", run.serial)

    def release(self, values: Sequence[int]) -> int:
        """Note a release, and return its serial."""
        serial = self.next_serial()
        self.released.append((serial, values))
        return serial

    def release_all(self, values: Sequence[int]) -> tuple[int, list[int]]:
        """Note a release of these values, and of all that were released before; return its serial, and which
        they are."""
        every = [*(value for _, some in self.released for value in some), *values]
        self.released.clear()
        return (self.release(every) if every else 0), every

    def copied(self, copy: Copy) -> None:
        """A whole copy was made: what it has need not be made again."""
        if self.spread:
            self.blurred = True
            return
        if self.void and copy.serial >= self.void_until:
            self.void = ""
        self.copy = copy
        cut = sum(run.serial <= copy.serial for run in self.runs)
        self._drop(cut)
        self.done = max(0, self.done - cut)
        self.released = [one for one in self.released if one[0] > copy.serial]
        self.recount()

    def make_void(self, why: str, until: int) -> None:
        """Give up: nothing can be made again before a copy of the serial ``until``, or later."""
        self.void, self.void_until = why, until
        self.answered = max(self.answered, until)
        self._drop(len(self.runs))
        self.done = 0
        self.recount()

    def began_gang(self) -> None:
        """The session's state is spread over several devices until :meth:`ended_gang`."""
        self.spread, self.blurred = True, False

    def ended_gang(self, run: Run | None, serial: int) -> None:
        """The state is on one device again, as ``run`` made it; None for some state in between. ``serial``:
        of an order that was sent to the device after that."""
        blurred, self.spread = self.blurred, False
        if run is None or blurred:
            self.make_void("a cell on several devices was stopped", serial)
        else:
            self.ran(run._replace(serial=serial))

    def reset(self) -> None:
        """The session holds nothing any more: what comes is all that there is."""
        self.copy, self.void, self.spread = None, "", False
        self._drop(len(self.runs))
        self.released.clear()
        self.done, self.answered = 0, self.serials
        self.recount()

    @property
    def rebuildable(self) -> bool:
        """Return whether the device's state could be made again if it were lost now."""
        made = self.copy is not None or bool(self.runs) or not self.answered
        return made and not self.void and not self.spread

    def lost(self) -> bool:
        """The device's state is gone. Return whether it can be made again."""
        if self.spread:
            self.make_void("it was lost while a cell ran on several devices", self.serials)
            self.spread = False
        self.done = 0
        self._renumber(0)
        return not self.void and (self.copy is not None or bool(self.runs))

    # -- replaying -----------------------------------------------------------------------------------------

    @property
    def pending(self) -> Sequence[Run]:
        """The runs that are to be replayed."""
        return self.runs[self.done :]

    def replayed(self, run: Run) -> None:
        """The first pending run is done, or need not be."""
        self.done += self._is_next(run)

    def split(self, run: Run, executed: int, rng_state: bytes | None) -> None:
        """The first pending run was stopped before op ``executed``: its rest is pending."""
        if executed <= run.begin:
            return
        first = [run._replace(end=executed, closes=False)] if self._is_next(run) else []
        rest = run._replace(begin=executed, rng_state=rng_state, blobs=())
        self.runs[self.done : self.done + len(first)] = [*first, rest]
        self.done += len(first)
        self._renumber(self.done)
        self.recount()

    def _is_next(self, run: Run) -> bool:
        """Return whether the log still has a replayed run: a copy that was made, and reported, just before
        the answer has cut it."""
        return bool(self.pending) and self.pending[0].serial == run.serial

    @property
    def peak_bytes(self) -> int:
        """The most that a replay holds beside the session's values."""
        return max((run.peak_bytes for run in self.pending), default=0)

    def take_dropped(self) -> list[Run]:
        dropped, self.dropped = self.dropped, []
        return dropped

    # -- parts ---------------------------------------------------------------------------------------------

    def _drop(self, count: int) -> None:
        self.dropped += self.runs[:count]
        del self.runs[:count]

    def _renumber(self, first: int) -> None:
        """Give new serials to runs that no living process knows. What the client released is dropped after
        them."""
        for place, run in enumerate(self.runs[first:], first):
            self.runs[place] = run._replace(serial=self.next_serial())
        self.answered = self.serials
        self.released = [(self.next_serial(), values) for _, values in self.released]

    def recount(self) -> None:
        self.nbytes = sum(len(run.program) for run in self.runs)
        self.run_s = sum(run.run_s for run in self.runs)
        self.asked_s = min(self.asked_s, self.run_s)
