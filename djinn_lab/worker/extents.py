"""Which ranges of an arena are free: first fit, neighbours joined."""

from __future__ import annotations

from bisect import bisect_left

ALIGNMENT_BYTES = 64


class Extents:
    """Ranges of ``capacity_bytes``. Not safe for threads."""

    def __init__(self, capacity_bytes: int) -> None:
        self.used_bytes = 0
        self._starts: list[int] = [0] if capacity_bytes else []
        self._sizes: list[int] = [capacity_bytes] if capacity_bytes else []

    def take(self, nbytes: int) -> int | None:
        """The offset of a range of ``nbytes``, None when no free range is as long."""
        size = rounded(nbytes)
        for place, free in enumerate(self._sizes):
            if free >= size:
                offset = self._starts[place]
                if free == size:
                    del self._starts[place], self._sizes[place]
                else:
                    self._starts[place] += size
                    self._sizes[place] -= size
                self.used_bytes += size
                return offset
        return None

    def give_back(self, offset: int, nbytes: int) -> None:
        size = rounded(nbytes)
        self.used_bytes -= size
        place = bisect_left(self._starts, offset)
        joins_next = place < len(self._starts) and offset + size == self._starts[place]
        joins_previous = place > 0 and self._starts[place - 1] + self._sizes[place - 1] == offset
        if joins_previous:
            self._sizes[place - 1] += size
            if joins_next:
                self._sizes[place - 1] += self._sizes[place]
                del self._starts[place], self._sizes[place]
        elif joins_next:
            self._starts[place] = offset
            self._sizes[place] += size
        else:
            self._starts.insert(place, offset)
            self._sizes.insert(place, size)

    @property
    def free_ranges(self) -> list[tuple[int, int]]:
        """Offset and bytes of each, in order."""
        return list(zip(self._starts, self._sizes, strict=True))


def rounded(nbytes: int) -> int:
    """Return the bytes that ``nbytes`` take in an arena."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
