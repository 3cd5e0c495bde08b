"""What simulated users do: sessions of turns, with gaps between them and what they announce of these."""

from __future__ import annotations

import math
from random import Random
from typing import Literal

import msgspec

Shape = Literal["open", "closed", "burst"]
GAP_S_MAX = 600.0


class Turn(msgspec.Struct, frozen=True):
    """One turn of a session; ``gap_s``: idle before it. ``announced_s``: what was expected of that gap, None
    when nothing is said. ``new_tokens`` are read, ``said_tokens`` computed one by one."""

    gap_s: float
    announced_s: float | None
    new_tokens: int
    said_tokens: int


class Script(msgspec.Struct, frozen=True):
    """Everything that one session will do. ``chaos``: its signals come twice and in the wrong order.
    ``dies_turn``: it is closed while this turn waits for its state. ``after``: it opens when this many
    sessions have closed. ``together_s``: it wakes at a multiple of this only."""

    session: str
    user: str
    opens_s: float
    turns: tuple[Turn, ...]
    chaos: bool = False
    dies_turn: int | None = None
    after: int = 0
    together_s: float | None = None


class Workload(msgspec.Struct, frozen=True):
    name: str
    scripts: tuple[Script, ...]


class AgentWorkload(msgspec.Struct, frozen=True, kw_only=True):
    """Agents that think and call tools. ``shape``: ``open`` (Poisson arrivals at ``per_s``), ``closed``
    (``live`` at once, the next when one closes) or ``burst`` (all within ``within_s``). Sessions end with
    ``tokens`` tokens, ``first_share`` of them in the first turn; a gap is uniform in ``gap_s``, or
    lognormal about its middle with ``gap_sigma``. Estimates are
    the gap times ``estimate_bias``, with a lognormal error of ``estimate_sigma``, and given with probability
    ``announced``. ``together_s``: every gap ends at a multiple of this, so that all wake at once. ``chaos``:
    signals come twice and in the wrong order. ``dying``: the share closed while their state is loaded."""

    name: str
    sessions: int = 80
    shape: Shape = "closed"
    live: int = 80
    per_s: float = 0.2
    within_s: float = 5.0
    turns: int = 8
    tokens: tuple[int, int] = (2500, 4000)
    first_share: float = 0.75
    said_tokens: int = 48
    gap_s: tuple[float, float] = (5.0, 20.0)
    gap_sigma: float | None = None
    estimate_sigma: float = 1.5
    estimate_bias: float = 1.0
    announced: float = 1.0
    together_s: float | None = None
    users: int = 8
    chaos: bool = False
    dying: float = 0.0

    def workload(self, seed: int) -> Workload:
        random = Random(f"{self.name}-{seed}")
        arrives_s = 0.0
        scripts = []
        for number in range(self.sessions):
            if self.shape == "open":
                arrives_s += random.expovariate(self.per_s)
                opens_s, after = arrives_s, 0
            else:
                opens_s = random.uniform(0.0, self.within_s)
                after = max(0, number - self.live + 1) if self.shape == "closed" else 0
            scripts.append(self._script(random, number, opens_s, after))
        return Workload(self.name, tuple(scripts))

    def _gap_s(self, random: Random) -> float:
        if self.gap_sigma is None:
            return random.uniform(*self.gap_s)
        return min(GAP_S_MAX, sum(self.gap_s) / 2 * math.exp(random.gauss(0.0, self.gap_sigma)))

    def _script(self, random: Random, number: int, opens_s: float, after: int) -> Script:
        tokens = random.randint(*self.tokens)
        first = int(self.first_share * tokens)
        later = (tokens - first - self.turns * self.said_tokens) // max(1, self.turns - 1)
        turns = [Turn(0.0, None, first, self.said_tokens)]
        for _ in range(self.turns - 1):
            gap_s = self._gap_s(random)
            announced_s = None
            if random.random() < self.announced:
                announced_s = gap_s * self.estimate_bias * math.exp(random.gauss(0.0, self.estimate_sigma))
            turns.append(Turn(gap_s, announced_s, max(1, later), self.said_tokens))
        dies = random.randrange(1, self.turns) if random.random() < self.dying else None
        user = f"user{number % self.users}"
        return Script(
            f"agent{number:03}", user, opens_s, tuple(turns), self.chaos, dies, after, self.together_s
        )
