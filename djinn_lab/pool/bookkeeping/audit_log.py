"""What goes into the audit, and what is counted there instead of getting a row each.

Every change that was made has a row of its own. Refusals of one kind may come thousands of times a second,
so that they would push everything else out: the first has a row, and those of the next minute are counted in
another one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from starlette.datastructures import Address

from djinn_lab.pool.authentication import Denial
from djinn_lab.pool.database.batch import Row, WriteKind
from djinn_lab.pool.database.store import Store
from djinn_lab.units import counted

COUNTED_FOR_S = 60.0
KINDS_MAX = 1000
"""Kinds of refusals that are distinguished. Those of further kinds are counted together."""
ACTION_CHARS_MAX = 300
DETAIL_CHARS_MAX = 2000
OK = 200


@dataclass(slots=True)
class _Repeated:
    until_s: float
    user: str
    action: str
    status: int
    more: int = 0


class AuditLog:
    """Put rows into the audit; the store's thread links them. For the event loop's thread alone. ``now_s``:
    the pool's clock."""

    def __init__(self, store: Store, pool: str, now_s: Callable[[], float]) -> None:
        self._store = store
        self._pool = pool
        self._now_s = now_s
        self._repeated: dict[Hashable, _Repeated] = {}

    def note(self, user: str, action: str, detail: str = "", status: int = OK) -> None:
        """Note what a user, or for an empty name the pool, has done."""
        values: dict[str, object] = {
            "at": self._now_s(),
            "pool": self._pool,
            "user": user,
            "action": _clean(action)[:ACTION_CHARS_MAX],
            "status": status,
            "body": _clean(detail)[:DETAIL_CHARS_MAX],
        }
        self._store.put(Row(WriteKind.AUDIT, values))

    def refused(self, user: str, action: str, status: int, detail: str, kind: str) -> None:
        """Note a refusal. ``kind``: repetitions of one kind by one user are only counted."""
        now_s = self._now_s()
        key: Hashable = (user, kind, status)
        if key not in self._repeated and len(self._repeated) >= KINDS_MAX:
            key, user, action = status, "", "many kinds of requests"
        known = self._repeated.get(key)
        if known is not None and now_s < known.until_s:
            known.more += 1
            return
        if known is not None:
            self._close(known)
        self._repeated[key] = _Repeated(now_s + COUNTED_FOR_S, user, action, status)
        self.note(user, action, detail, status)

    def stranger(self, client: Address | None, action: str, status: int, kind: str, denial: Denial) -> None:
        """Note a refusal of a client without a valid token. What it sent is not kept."""
        host = host_of(client)
        about = f"{denial.reason}, from {host}"
        self.refused("", action, status, about, f"{host} {kind} {denial.user}")

    def flush(self, everything: bool = False) -> None:
        """Note the counts whose minute is over."""
        now_s = self._now_s()
        for key, known in list(self._repeated.items()):
            if everything or now_s >= known.until_s:
                del self._repeated[key]
                self._close(known)

    def _close(self, known: _Repeated) -> None:
        if known.more:
            more = f"{counted(known.more, 'further refusal')} of this kind within a minute"
            self.note(known.user, known.action, more, known.status)


def host_of(client: Address | None) -> str:
    return "an unknown address" if client is None else client.host


def _clean(text: str) -> str:
    """PostgreSQL takes no NUL, and no encoding a lone surrogate."""
    return text.encode(errors="replace").decode().replace("\0", "\ufffd")
