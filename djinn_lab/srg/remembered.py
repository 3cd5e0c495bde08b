"""What one end of a connection remembers of the programs that went over it: :mod:`djinn_lab.srg.delta`."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from typing import Any

import numpy as np

from djinn_lab.srg.columns import Columns, Numbers
from djinn_lab.srg.program import Scope, Template, TensorMeta

PAYLOAD_BYTES_MAX = 16 * 2**20
TABLE_ENTRIES_MAX = 50_000


class DeltaError(ValueError):
    """The bytes refer to something that this end does not remember, or are no delta at all."""


class Unit:
    """What is remembered of one structure. ``step``: how the numbers changed last time."""

    __slots__ = ("digest", "nbytes", "number", "numbers", "others", "step", "structure")

    def __init__(self, number: int, digest: bytes, content: Columns) -> None:
        self.number = number
        self.digest = digest
        self.structure, self.numbers, self.others = content
        self.step: Numbers = np.zeros_like(self.numbers)
        self.nbytes = self._size()

    def _size(self) -> int:
        held = sum(len(item) if isinstance(item, (bytes, str)) else 16 for item in self.others)
        return len(self.structure) + 16 * len(self.numbers) + held

    def move_to(self, numbers: Numbers, others: list[Any]) -> None:
        self.step = numbers - self.numbers
        self.numbers = numbers
        if others is not self.others:
            self.others = others
            self.nbytes = self._size()


class Memory:
    """Units by structure and by number, least recently used first; and the agreed tables."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.clear()

    def clear(self) -> None:
        self._units: OrderedDict[bytes, Unit] = OrderedDict()
        self._digests: dict[int, bytes] = {}
        self._last = 0
        self._nbytes = 0
        self.metas: list[TensorMeta] = []
        self.templates: list[Template] = []
        self.scopes: list[Scope] = []
        self.payloads: OrderedDict[int, bytes] = OrderedDict()
        self._payload_bytes = 0
        self._last_payload = 0

    @property
    def tables(self) -> tuple[list[Any], list[Any], list[Any]]:
        return self.metas, self.templates, self.scopes

    def add_payload(self, payload: bytes) -> int:
        self._last_payload += 1
        self.payloads[self._last_payload] = payload
        self._payload_bytes += len(payload)
        return self._last_payload

    def trim_payloads(self) -> list[bytes]:
        """To be called between programs; those that went."""
        gone = []
        while self._payload_bytes > PAYLOAD_BYTES_MAX:
            _, payload = self.payloads.popitem(last=False)
            self._payload_bytes -= len(payload)
            gone.append(payload)
        return gone

    @property
    def is_full(self) -> bool:
        return max(len(self.metas), len(self.templates), len(self.scopes)) > TABLE_ENTRIES_MAX

    def find(self, structure: bytes) -> Unit | None:
        return self._units.get(_digest(structure))

    def numbered(self, number: int) -> Unit:
        digest = self._digests.get(number)
        if digest is None:
            raise DeltaError(f"unit {number} is not remembered")
        return self._units[digest]

    def size(self, number: int) -> int:
        """How many numbers a unit has, 0 when it is not remembered."""
        digest = self._digests.get(number)
        return 0 if digest is None else len(self._units[digest].numbers)

    def add(self, content: Columns) -> None:
        digest = _digest(content.structure)
        old = self._units.pop(digest, None)
        if old is not None:
            del self._digests[old.number]
            self._nbytes -= old.nbytes
        self._last += 1
        unit = self._units[digest] = Unit(self._last, digest, content)
        self._digests[unit.number] = digest
        self._nbytes += unit.nbytes
        while self._nbytes > self._bytes_max:
            _, gone = self._units.popitem(last=False)
            del self._digests[gone.number]
            self._nbytes -= gone.nbytes

    def use(self, unit: Unit, numbers: Numbers, others: list[Any]) -> None:
        self._units.move_to_end(unit.digest)
        self._nbytes -= unit.nbytes
        unit.move_to(numbers, others)
        self._nbytes += unit.nbytes


def _digest(structure: bytes) -> bytes:
    return hashlib.blake2b(structure, digest_size=16).digest()
