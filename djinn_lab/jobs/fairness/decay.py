"""Exponential decay without touching what decays.

An amount ``x`` charged at time ``t`` counts ``x * 2**-((now - t) / half_life)`` at ``now``. It is stored
*forward* from a landmark, as ``x * 2**((t - landmark) / half_life)``, and divided by the weight of ``now``
when it is read (Cormode, Shkapenyuk, Srivastava, Xu: Forward decay, ICDE 2009). So two stored amounts may
be added and compared at any time without reading the clock, and an order by them changes only when
something is charged. The landmark moves by whole half-lives, which only changes exponents of two: no bit
is lost."""

from __future__ import annotations

import math

HALF_LIVES_MAX = 256.0
"""How far a time may be from the landmark; doubles have exponents for four times that."""


class Decay:
    """Weights of charges by their time. ``landmark_s``: the time whose weight is 1."""

    __slots__ = ("half_life_s", "landmark_s")

    def __init__(self, half_life_s: float, landmark_s: float = 0.0) -> None:
        if not half_life_s > 0:
            raise ValueError(f"a half-life of {half_life_s} s; it must be above 0")
        self.half_life_s = half_life_s
        self.landmark_s = landmark_s

    def weight(self, at_s: float) -> float:
        """Return what one unit charged at ``at_s`` is stored as."""
        return math.exp2((at_s - self.landmark_s) / self.half_life_s) if self.covers(at_s) else 0.0

    def covers(self, at_s: float) -> bool:
        """Return whether this time can be weighed without moving the landmark first."""
        return abs(at_s - self.landmark_s) <= HALF_LIVES_MAX * self.half_life_s

    def move_to(self, at_s: float) -> float:
        """Move the landmark near ``at_s``; return the power of two that every stored amount is to be
        multiplied by."""
        half_lives = math.floor((at_s - self.landmark_s) / self.half_life_s)
        self.landmark_s += half_lives * self.half_life_s
        return math.ldexp(1.0, -half_lives) if half_lives < 1074 else 0.0

    @property
    def window_s(self) -> float:
        """The total weight of all of the past in seconds: the usage of a device that never rests."""
        return self.half_life_s / math.log(2)
