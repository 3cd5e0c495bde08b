"""How a quantity went over a run of unknown length: means over equal intervals, which double when there are
too many."""

from __future__ import annotations

INTERVALS_MAX = 512


class History:
    """The history of a value that stays until it is set again. ``times_s``: where intervals begin."""

    def __init__(self, interval_s: float = 1.0) -> None:
        self.interval_s = interval_s
        self._begin_s: float | None = None
        self._at_s = 0.0
        self._value = 0.0
        self._sums: list[float] = []

    def set(self, at_s: float, value: float) -> None:
        if self._begin_s is None:
            self._begin_s = self._at_s = at_s
        self._advance(at_s)
        self._value = value

    def add(self, at_s: float, change: float) -> None:
        self.set(at_s, self._value + change)

    @property
    def times_s(self) -> list[float]:
        begin_s = self._begin_s or 0.0
        return [begin_s + number * self.interval_s for number in range(len(self._sums))]

    @property
    def means(self) -> list[float]:
        return [total / self.interval_s for total in self._sums]

    def _advance(self, until_s: float) -> None:
        begin_s = self._begin_s or 0.0
        while until_s - begin_s > INTERVALS_MAX * self.interval_s:
            self._halve()
        while self._at_s < until_s:
            number = min(int((self._at_s - begin_s) / self.interval_s), INTERVALS_MAX - 1)
            edge_s = begin_s + (number + 1) * self.interval_s
            if edge_s <= self._at_s:
                number += 1
                edge_s += self.interval_s
            while len(self._sums) <= number:
                self._sums.append(0.0)
            to_s = min(edge_s, until_s)
            self._sums[number] += self._value * (to_s - self._at_s)
            self._at_s = to_s

    def _halve(self) -> None:
        sums = self._sums + [0.0] * (len(self._sums) % 2)
        self._sums = [sums[number] + sums[number + 1] for number in range(0, len(sums), 2)]
        self.interval_s *= 2
