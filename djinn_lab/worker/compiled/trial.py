"""Whether one program is compiled, and stays so: what its runs so far say.

A program is counted until it is worth compiling. What was compiled is checked once against the program's own
ops, measured in turns with them, and kept only where it is faster. From time to time it is measured again."""

from __future__ import annotations

from collections import deque
from statistics import quantiles
from typing import Literal

RUNS_BEFORE = 3
"""Runs of a program before it is compiled."""
ROUNDS = 7
"""Runs of each way that are measured first. Their lower quartile counts, since other processes only take time
away."""
AGAIN_EVERY = 64
"""Of so many runs of a compiled program one runs op by op, to be compared."""
UNUSED_MAX = 5
"""So often in a row a program may turn out not to run as it was compiled."""
WORTH = 0.98
"""A compiled run takes at most this share of the time."""

Way = Literal["plain", "checked", "compiled"]
State = Literal["counting", "compiling", "checking", "measuring", "compiled", "dropped"]


class Trial:
    """``state``: as the name says; what follows from it is :meth:`way`. ``why``: of a dropped program.
    ``compile_s``: what compiling took, in all."""

    def __init__(self) -> None:
        self.state: State = "counting"
        self.why = ""
        self.compile_s = 0.0
        self.runs = 0
        self._unused = 0
        self._seconds: dict[Way, deque[float]] = {
            way: deque(maxlen=2 * ROUNDS + 1) for way in ("plain", "compiled")
        }

    @property
    def is_due(self) -> bool:
        """Return whether the program has run often enough to be compiled."""
        return self.state == "counting" and self.runs >= RUNS_BEFORE

    def way(self) -> Way:
        """Return how the next run is to run."""
        match self.state:
            case "checking":
                return "checked"
            case "measuring":
                behind = len(self._seconds["compiled"]) <= len(self._seconds["plain"])
                return "compiled" if behind else "plain"
            case "compiled":
                return "plain" if self.runs % AGAIN_EVERY == 0 else "compiled"
            case _:
                return "plain"

    def compiling(self) -> None:
        """Note that the program's regions were asked for."""
        self.state = "compiling"

    def compiled(self, compile_s: float) -> None:
        """Note that they are there, after so many seconds."""
        self.state, self.compile_s = "checking", compile_s

    def checked(self) -> None:
        """Note that the results are right."""
        self.state = "measuring"

    def drop(self, why: str) -> None:
        """Let the program run op by op from here on."""
        self.state, self.why = "dropped", why

    def unused(self, why: str) -> None:
        """Note a run that could not use what was compiled."""
        self._unused += 1
        if self._unused >= UNUSED_MAX:
            self.drop(why)

    def ran(self, way: Way, seconds: float) -> None:
        """Note a run that ended well."""
        self.runs += 1
        if self.state not in ("measuring", "compiled") or way == "checked":
            return
        self._unused = 0 if way == "compiled" else self._unused
        self._seconds[way].append(seconds)
        if all(len(taken) >= ROUNDS for taken in self._seconds.values()):
            self._decide()

    @property
    def plain_s(self) -> float:
        """Return what a run op by op takes, in the lower quartile."""
        return quantiles(self._seconds["plain"], n=4)[0]

    @property
    def compiled_s(self) -> float:
        """Return what a compiled run takes, in the lower quartile."""
        return quantiles(self._seconds["compiled"], n=4)[0]

    @property
    def runs_to_pay(self) -> int:
        """Return after how many compiled runs compiling has taken no more time than it saved."""
        saved_s = self.plain_s - self.compiled_s
        return int(self.compile_s / saved_s) + 1

    def _decide(self) -> None:
        if self.compiled_s <= WORTH * self.plain_s:
            self.state = "compiled"
        else:
            self.drop("it is not faster so")
